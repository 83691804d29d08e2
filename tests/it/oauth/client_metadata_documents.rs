//! Client IDs that are URLs: metadata documents, their changes, and addresses never fetched.

#![expect(clippy::too_many_lines, reason = "tables of requests, each one story")]
#![expect(
    clippy::disallowed_types,
    reason = "held for a few instructions, never across an await"
)]

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use reqwest::StatusCode;
use rustls::{ServerConfig, pki_types::PrivateKeyDer};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::{JoinHandle, JoinSet},
    time::Instant,
};
use tokio_rustls::TlsAcceptor;

use crate::support::{
    browser::{Browser, Shown},
    harness::{client, until, within},
    oauth_client::{Answer, App, BACK, gateway, tenants},
    postgres::Postgres,
    served::Served,
};

/// A site that serves documents and counts requests.
pub(crate) struct Site {
    origin: String,
    pages: Pages,
    task: JoinHandle<()>,
}

/// The answer of each path, and the number of its requests.
type Pages = Arc<Mutex<HashMap<String, (String, usize)>>>;

impl Site {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let origin = format!("http://{}", listener.local_addr().unwrap());
        let pages = Pages::default();
        let shared = Arc::clone(&pages);
        let task = tokio::spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                let mut request = [0; 4096];
                let size = socket.read(&mut request).await.unwrap_or(0);
                let text = String::from_utf8_lossy(&request[..size]).into_owned();
                let path = text.split(' ').nth(1).unwrap_or_default().to_owned();
                let answer = {
                    let mut pages = shared.lock().unwrap();
                    let page = pages.entry(path).or_default();
                    page.1 += 1;
                    page.0.clone()
                };
                let _ = socket.write_all(answer.as_bytes()).await;
            }
        });
        Self {
            origin,
            pages,
            task,
        }
    }

    fn put(&self, path: &str, answer: String) {
        self.pages
            .lock()
            .unwrap()
            .entry(path.to_owned())
            .or_default()
            .0 = answer;
    }

    fn asked(&self, path: &str) -> usize {
        self.pages
            .lock()
            .unwrap()
            .get(path)
            .map_or(0, |page| page.1)
    }

    /// Publishes a client's metadata document, and returns its id.
    pub(crate) fn document(&self, path: &str, cache: &str, changed: Value) -> String {
        let id = format!("{}{path}", self.origin);
        let mut document = json!({"client_id": id, "client_name": "Documented",
            "redirect_uris": [BACK], "token_endpoint_auth_method": "none"});
        for (name, value) in changed.as_object().unwrap() {
            document[name] = value.clone();
        }
        self.put(path, ok(&document.to_string(), cache));
        id
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn ok(body: &str, cache: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nCache-Control: {cache}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

async fn open(config: Value) -> Served {
    let mut config = config;
    config["outbound"] = json!({"allow": ["127.0.0.0/8"]});
    gateway(config).await
}

#[tokio::test]
async fn a_document_is_a_client() {
    let (site, gateway) = (Site::start().await, open(json!({})).await);
    let id = site.document("/client.json", "max-age=600", json!({}));
    let app = App::of(&gateway, "a", &id);
    let tokens = app.tokens().await;
    let next = app.refresh(&tokens.text("refresh_token"), &[]).await;
    assert_eq!(next.status, StatusCode::OK, "{}", next.body);
    let (_, claims) = crate::support::oauth_client::said(&next.text("access_token"));
    assert_eq!(claims["client_id"], id);
    assert_eq!(site.asked("/client.json"), 1, "kept for ten minutes");
    // Only its redirect URIs are accepted.
    let mut browser = Browser::new();
    let elsewhere = app.request(&[("redirect_uri", "http://127.0.0.1:9/other")]);
    let shown = browser.open(&elsewhere).await;
    assert_eq!(shown.status, StatusCode::BAD_REQUEST);
    assert!(shown.location().is_none());
}

#[tokio::test]
async fn a_site_that_is_away_costs_no_token() {
    let (site, gateway) = (Site::start().await, open(json!({})).await);
    let id = site.document("/c", "no-store", json!({}));
    let app = App::of(&gateway, "a", &id);
    let tokens = app.tokens().await;
    assert!(site.asked("/c") > 1, "not kept");
    site.put(
        "/c",
        "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".into(),
    );
    let next = app.refresh(&tokens.text("refresh_token"), &[]).await;
    assert_eq!(next.status, StatusCode::OK, "{}", next.body);
    // A removed document is no client.
    site.put(
        "/c",
        "HTTP/1.1 404 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".into(),
    );
    let gone = app.refresh(&next.text("refresh_token"), &[]).await;
    gone.assert_refused(401, "invalid_client");
    // A document that was never fetched may become available later.
    site.put(
        "/d",
        "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".into(),
    );
    let unseen = App::of(&gateway, "a", &format!("{}/d", site.origin));
    unseen
        .refresh("lgr_x", &[])
        .await
        .assert_refused(503, "temporarily_unavailable");
}

#[tokio::test]
async fn a_document_that_changed_is_asked_about_again() {
    let (site, gateway) = (Site::start().await, open(json!({})).await);
    // Remembered, because the answer goes to a site.
    let back = "https://app.test/cb";
    let sites = json!({"redirect_uris": [back]});
    let id = site.document("/c", "no-cache", sites);
    let mut app = App::of(&gateway, "a", &id);
    back.clone_into(&mut app.back);
    let mut browser = Browser::new();
    let login = browser.open(&app.request(&[])).await;
    let ada = [("username", "ada"), ("password", "correct horse")];
    let sent = browser.submit(&login, &ada).await;
    let consent = browser.follow(sent, gateway.origin()).await;
    let described = "described by <code>127.0.0.1</code>";
    assert!(consent.text.contains(described), "{}", consent.text);
    browser.submit(&consent, &[("decision", "allow")]).await;
    let again = browser.open(&app.request(&[])).await;
    assert!(again.answer().contains_key("code"), "{}", again.text);
    let another = json!({"redirect_uris": [back], "client_name": "Another"});
    site.document("/c", "no-cache", another);
    let asked = browser.open(&app.request(&[])).await;
    assert!(asked.text.contains("Another") && asked.text.contains("name=\"decision\""));
}

#[tokio::test]
async fn invalid_documents_are_refused() {
    let (site, gateway) = (Site::start().await, open(json!({})).await);
    let long = "x".repeat(11 << 10);
    let mut ids = vec![
        site.document(
            "/other",
            "no-store",
            json!({"client_id": "https://app.test/c"}),
        ),
        site.document(
            "/slash",
            "no-store",
            json!({"client_id": format!("{}/slash/", site.origin)}),
        ),
        site.document("/none", "no-store", json!({"redirect_uris": []})),
        site.document(
            "/plain",
            "no-store",
            json!({"redirect_uris": ["http://app.test/cb"]}),
        ),
        site.document("/secret", "no-store", json!({"client_secret": "x"})),
        site.document(
            "/post",
            "no-store",
            json!({"token_endpoint_auth_method": "client_secret_post"}),
        ),
        site.document(
            "/jwt",
            "no-store",
            json!({"token_endpoint_auth_method": "private_key_jwt"}),
        ),
        site.document("/nameless", "no-store", json!({"client_name": null})),
        site.document("/long", "no-store", json!({"x": long})),
    ];
    let target = site.document("/target", "no-store", json!({}));
    let moved = format!(
        "HTTP/1.1 302 Found\r\nLocation: {target}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    );
    for (path, answer) in [
        ("/moved", moved),
        (
            "/gone",
            "HTTP/1.1 404 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_owned(),
        ),
        (
            "/text",
            ok("{}", "no-store").replace("application/json", "text/html"),
        ),
        ("/array", ok("[]", "no-store")),
        (
            "/slow",
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n".to_owned(),
        ),
    ] {
        site.put(path, answer);
        ids.push(format!("{}{path}", site.origin));
    }
    let mut browser = Browser::new();
    for id in ids {
        let began = Instant::now();
        let shown = browser
            .open(&App::of(&gateway, "a", &id).request(&[]))
            .await;
        assert!(
            matches!(shown.status.as_u16(), 400 | 503),
            "{id} {}",
            shown.status
        );
        assert!(shown.location().is_none(), "{id}");
        assert!(began.elapsed().as_secs() < 5, "{id}");
    }
    assert_eq!(site.asked("/target"), 0, "redirects are not followed");
    // A document that is there is told from one that is not.
    for (path, told) in [
        (
            "/long",
            "answers with more bytes than are read (10,240 of a document",
        ),
        ("/moved", "answers with a redirect, which is not followed"),
        ("/text", "answers with another type than application/json"),
        ("/gone", "does not have the document"),
    ] {
        let id = format!("{}{path}", site.origin);
        let url = App::of(&gateway, "a", &id).request(&[]);
        let shown = browser.open(&url).await;
        let is_told = shown.text.contains(told) && shown.text.contains("cannot be used: ");
        assert!(is_told, "{path}: {}", shown.text);
    }
}

/// Internal addresses are never requested, in any spelling.
#[tokio::test]
async fn internal_addresses_are_never_requested() {
    let (site, gateway) = (Site::start().await, gateway(json!({})).await);
    site.document("/c", "no-store", json!({}));
    let port = site.origin.rsplit(':').next().unwrap();
    let mut browser = Browser::new();
    for host in [
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "localhost",
        "localhost.",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "0.0.0.0",
        "user@127.0.0.1",
        "169.254.169.254",
        "10.0.0.1",
        "[fe80::1]",
        "[64:ff9b::7f00:1]",
    ] {
        for scheme in ["http", "https"] {
            let id = format!("{scheme}://{host}:{port}/c");
            let began = Instant::now();
            let shown = browser
                .open(&App::of(&gateway, "a", &id).request(&[]))
                .await;
            assert!(
                matches!(shown.status.as_u16(), 400 | 503),
                "{id} {}",
                shown.status
            );
            assert!(shown.location().is_none(), "{id}");
            assert!(began.elapsed().as_secs() < 5, "{id}");
        }
    }
    assert_eq!(site.asked("/c"), 0);
}

/// Concurrent requests wait for one fetch.
#[tokio::test]
async fn concurrent_requests_fetch_a_document_once() {
    let (site, gateway) = (Site::start().await, open(json!({})).await);
    let id = site.document("/c", "max-age=60", json!({}));
    let app = App::of(&gateway, "a", &id);
    let all = (0..30).map(|_| app.refresh("lgr_x", &[]));
    for answer in futures_util::future::join_all(all).await {
        answer.assert_refused(400, "invalid_grant");
    }
    assert_eq!(site.asked("/c"), 1);
}

/// 25 requests a second that named slow documents kept new clients of all other tenants out.
#[tokio::test(flavor = "multi_thread")]
async fn slow_documents_of_one_tenant_leave_fetches_to_others() {
    let (site, gateway) = (Site::start().await, open(json!({})).await);
    let slow = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let place = slow.local_addr().unwrap();
    let held = tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((socket, _)) = slow.accept().await {
            held.push(socket);
        }
    });
    let mut flood = JoinSet::new();
    let refused = Arc::new(AtomicUsize::new(0));
    for at in 0..100 {
        let app = App::of(&gateway, "a", &format!("http://{place}/{at}"));
        let refused = Arc::clone(&refused);
        flood.spawn(async move {
            loop {
                let began = Instant::now();
                app.refresh("lgr_x", &[])
                    .await
                    .assert_refused(503, "temporarily_unavailable");
                let is_at_once = began.elapsed() < Duration::from_secs(1);
                refused.fetch_add(usize::from(is_at_once), Ordering::Relaxed);
            }
        });
    }
    until("more than one tenant may fetch", || async {
        refused.load(Ordering::Relaxed) >= 400
    })
    .await;
    for at in 0..5 {
        let id = site.document(&format!("/{at}"), "no-store", json!({}));
        let answer = App::of(&gateway, "b", &id).refresh("lgr_x", &[]).await;
        answer.assert_refused(400, "invalid_grant");
    }
    flood.shutdown().await;
    held.abort();
}

/// Five requests a second for documents that are not there used up what is fetched of their host: at a replica that has
/// just started, its clients could neither log in nor refresh.
#[tokio::test(flavor = "multi_thread")]
async fn made_up_documents_leave_fetches_to_others() {
    let (site, postgres) = (Site::start().await, Postgres::start());
    let config = json!({
        "sql": {"url": postgres.url()}, "public_url": "https://gw.test",
        "master_key": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
        "oauth": {"failures": 100_000},
    });
    let (first, second) = (open(config.clone()).await, open(config).await);
    let id = site.document("/known", "no-store", json!({}));
    let known = App::of(&first, "a", &id);
    let mut refresh = known.tokens().await.text("refresh_token");
    // The second one has no document yet.
    let from = |last: u8, tenant: &str, id: &str| {
        let address = std::net::IpAddr::from([127, 0, 0, last]);
        let http = reqwest::Client::builder().local_address(address);
        App {
            http: http.build().unwrap(),
            ..App::of(&second, tenant, id)
        }
    };
    let busy = "too many documents are asked for";
    let until_busy = async |last: u8| {
        let mut asker = from(last, "a", "");
        for count in 0..1000 {
            asker.id = format!("{}/made-up-{last}-{count}", site.origin);
            let answer = asker.refresh("lgr_x", &[]).await;
            answer.assert_refused(503, "temporarily_unavailable");
            if answer.text("error_description") == busy {
                return count;
            }
        }
        panic!("nothing stops it")
    };
    let is_served = async |last: u8, tenant: &str, path: &str| {
        let id = site.document(path, "no-store", json!({}));
        let answer = from(last, tenant, &id).refresh("lgr_x", &[]).await;
        if answer.status != StatusCode::SERVICE_UNAVAILABLE {
            answer.assert_refused(400, "invalid_grant");
            return true;
        }
        assert_eq!(answer.text("error_description"), busy);
        false
    };
    assert_eq!(until_busy(2).await, 60, "of one address");
    assert!(is_served(3, "a", "/new").await);
    assert_eq!(until_busy(3).await, 59);
    assert_eq!(until_busy(4).await, 30, "of one host");
    assert!(!is_served(5, "a", "/newer").await);
    assert!(is_served(5, "b", "/newer").await, "at another tenant");
    for last in [5, 2] {
        let next = from(last, "a", &id).refresh(&refresh, &[]).await;
        assert_eq!(next.status, StatusCode::OK, "{}", next.body);
        refresh = next.text("refresh_token");
    }
}

/// Whether clients are told that they may name a document.
async fn offered(gateway: &Served) -> bool {
    let url = format!(
        "{}/.well-known/oauth-authorization-server/t/a",
        gateway.origin()
    );
    let asked = client().get(url).send();
    let answer = Answer::of(within("metadata", asked).await.unwrap()).await;
    answer.body["client_id_metadata_document_supported"]
        .as_bool()
        .unwrap()
}

/// A certificate for `host` with its key, and a TLS server of it that answers each request with `body`.
struct SecureSite {
    address: SocketAddr,
    certificate: tempfile::NamedTempFile,
    task: JoinHandle<()>,
}

impl SecureSite {
    async fn start(host: &str, body: String) -> Self {
        let made = rcgen::generate_simple_self_signed(vec![host.to_owned()]).unwrap();
        let mut certificate = tempfile::NamedTempFile::new().unwrap();
        std::io::Write::write_all(&mut certificate, made.cert.pem().as_bytes()).unwrap();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let config = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let Ok(mut socket) = acceptor.accept(socket).await else {
                    continue;
                };
                let mut request = [0; 4096];
                let _ = socket.read(&mut request).await;
                let _ = socket.write_all(ok(&body, "max-age=600").as_bytes()).await;
                let _ = socket.shutdown().await;
            }
        });
        Self {
            address,
            certificate,
            task,
        }
    }
}

impl Drop for SecureSite {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// An HTTP proxy that leads every tunnel to one address, or refuses it, and keeps the heads of requests.
struct Tunnels {
    url: String,
    heads: Arc<Mutex<Vec<String>>>,
    target: Arc<Mutex<Option<SocketAddr>>>,
    task: JoinHandle<()>,
}

impl Tunnels {
    async fn to(target: Option<SocketAddr>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://user:s3cret@{}", listener.local_addr().unwrap());
        let (heads, target) = (
            Arc::<Mutex<Vec<String>>>::default(),
            Arc::new(Mutex::new(target)),
        );
        let (kept, leads) = (Arc::clone(&heads), Arc::clone(&target));
        let task = tokio::spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                let mut head = [0; 4096];
                let size = socket.read(&mut head).await.unwrap_or(0);
                let head = String::from_utf8_lossy(&head[..size]).into_owned();
                kept.lock().unwrap().push(head);
                let target = *leads.lock().unwrap();
                let Some(target) = target else {
                    let _ = socket.write_all(b"HTTP/1.1 403 Forbidden\r\n\r\n").await;
                    continue;
                };
                let _ = socket.write_all(b"HTTP/1.1 200 Connected\r\n\r\n").await;
                let mut onward = TcpStream::connect(target).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut socket, &mut onward).await;
            }
        });
        Self {
            url,
            heads,
            target,
            task,
        }
    }

    fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }
}

impl Drop for Tunnels {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A name that no name server has.
const ELSEWHERE: &str = "client.documents.example";

/// The gateway has no way to the client's site but by the proxy, which looks its name up.
#[tokio::test]
async fn documents_come_through_a_proxy() {
    let id = format!("https://{ELSEWHERE}/client.json");
    let document = json!({"client_id": id, "client_name": "Far", "redirect_uris": [BACK],
        "token_endpoint_auth_method": "none"});
    let site = SecureSite::start(ELSEWHERE, document.to_string()).await;
    let proxy = Tunnels::to(Some(site.address)).await;
    let file = site.certificate.path().to_str().unwrap();
    let env = [
        ("SSL_CERT_FILE", file),
        ("HTTPS_PROXY", &proxy.url),
        ("NO_PROXY", "example.org, .documents.test"),
    ];
    let config = json!({"outbound": {"probe": [id]}});
    let gateway = Served::with(&env, config, tenants()).await;
    until("documents are offered", || offered(&gateway)).await;
    let app = App::of(&gateway, "a", &id);
    let tokens = app.tokens().await;
    assert!(app.reaches("x", &tokens.text("access_token")).await);
    let asked = proxy.heads();
    for head in &asked {
        assert!(
            head.starts_with(&format!("CONNECT {ELSEWHERE}:443 HTTP/1.1\r\n")),
            "{head}"
        );
        assert!(
            head.to_lowercase().contains("proxy-authorization: basic "),
            "{head}"
        );
    }
    assert!(!asked.is_empty());
    // What is known to be private is not asked of the proxy, nor what NO_PROXY names.
    for id in [
        "https://127.0.0.1/c",
        "https://localhost/c",
        "https://printer/c",
        "https://db.internal/c",
        "https://169.254.169.254/c",
        "https://a.documents.test/c",
    ] {
        let shown = Browser::new()
            .open(&App::of(&gateway, "a", id).request(&[]))
            .await;
        assert!(
            shown.status.is_client_error() || shown.status.is_server_error(),
            "{id}"
        );
    }
    assert_eq!(proxy.heads(), asked);
}

/// The client ID of Claude Code, whose document is shipped with the gateway.
const CLAUDE_CODE: &str = "https://claude.ai/oauth/claude-code-client-metadata";

/// A page of the tenant to which a client of `id` sends ada, who logs in.
async fn consent_page(gateway: &Served, browser: &mut Browser, app: &App) -> Shown {
    let login = browser.open(&app.request(&[])).await;
    if login.status != StatusCode::OK {
        return login;
    }
    let ada = [("username", "ada"), ("password", "correct horse")];
    let sent = browser.submit(&login, &ada).await;
    browser.follow(sent, gateway.origin()).await
}

/// The gateway has no way to claude.ai, which Claude Code names as soon as documents are offered.
#[tokio::test]
async fn a_shipped_document_serves_while_its_site_does_not_answer() {
    let proxy = Tunnels::to(None).await;
    for (known, is_served) in [("shipped", true), ("none", false)] {
        let config = json!({"outbound": {"proxy": proxy.url}, "oauth": {"known_clients": known}});
        let gateway = Served::start(config, tenants()).await;
        let mut app = App::of(&gateway, "a", CLAUDE_CODE);
        "http://localhost:54321/callback".clone_into(&mut app.back);
        let mut browser = Browser::new();
        let consent = consent_page(&gateway, &mut browser, &app).await;
        if !is_served {
            assert_eq!(consent.status, StatusCode::SERVICE_UNAVAILABLE);
            continue;
        }
        let text = &consent.text;
        assert!(
            text.contains("described by <code>claude.ai</code> on 2026-09-01"),
            "{text}"
        );
        assert!(
            text.contains("Claude Code") && text.contains("localhost:54321"),
            "{text}"
        );
        let done = browser.submit(&consent, &[("decision", "allow")]).await;
        let tokens = app.redeem(&done.answer()["code"], &[]).await;
        assert!(app.reaches("x", &tokens.text("access_token")).await);
        let next = app.refresh(&tokens.text("refresh_token"), &[]).await;
        assert_eq!(next.status, StatusCode::OK, "{}", next.body);
        // An unknown redirect URI of a known client.
        let elsewhere = app.request(&[("redirect_uri", "https://evil.test/callback")]);
        let refused = Browser::new().open(&elsewhere).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    }
    assert!(
        proxy
            .heads()
            .iter()
            .all(|head| head.contains("claude.ai:443"))
    );
}

/// The document of the site counts wherever it can be fetched.
#[tokio::test]
async fn a_fetched_document_wins_over_a_shipped_one() {
    let document = json!({"client_id": CLAUDE_CODE, "client_name": "Claude Code of today",
        "redirect_uris": ["http://localhost/callback"], "token_endpoint_auth_method": "none"});
    let site = SecureSite::start("claude.ai", document.to_string()).await;
    let proxy = Tunnels::to(Some(site.address)).await;
    let env = [("SSL_CERT_FILE", site.certificate.path().to_str().unwrap())];
    let gateway = Served::with(&env, json!({"outbound": {"proxy": proxy.url}}), tenants()).await;
    let mut app = App::of(&gateway, "a", CLAUDE_CODE);
    "http://localhost:54321/callback".clone_into(&mut app.back);
    let text = consent_page(&gateway, &mut Browser::new(), &app).await.text;
    assert!(text.contains("Claude Code of today"), "{text}");
    assert!(!text.contains("2026-09-01"), "{text}");
}

/// An operator may have other documents. One is of use while its site does not answer, not if the site has none.
#[tokio::test]
async fn known_documents_are_for_sites_that_do_not_answer() {
    let site = Site::start().await;
    let answered =
        |status| format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    let id = |path: &str| format!("{}{path}", site.origin);
    let clients = ["/away", "/gone", "/seen"]
        .map(|path| json!({"client_id": id(path), "client_name": "Own", "redirect_uris": [BACK]}));
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let known = json!({"date": "2026-10-02", "clients": clients});
    std::io::Write::write_all(&mut file, known.to_string().as_bytes()).unwrap();
    let gateway = open(json!({"oauth": {"known_clients": file.path()}})).await;
    let page = async |path: &str| {
        let app = App::of(&gateway, "a", &id(path));
        consent_page(&gateway, &mut Browser::new(), &app).await
    };
    site.put("/away", answered("503 Busy"));
    site.put("/gone", answered("404 No"));
    site.document("/seen", "no-store", json!({"client_name": "Fetched"}));
    let text = page("/away").await.text;
    assert!(
        text.contains("Own") && text.contains("2026-10-02"),
        "{text}"
    );
    assert_eq!(
        site.asked("/away"),
        1,
        "the steps of a log-in do not wait again"
    );
    assert_eq!(page("/gone").await.status, StatusCode::BAD_REQUEST);
    // The last document of the site is newer than the known one.
    assert!(page("/seen").await.text.contains("Fetched"));
    site.put("/seen", answered("503 Busy"));
    assert!(page("/seen").await.text.contains("Fetched"));
}

/// Clients that may do either named their document, and their people saw an error.
#[tokio::test]
async fn documents_are_offered_while_they_can_be_fetched() {
    let id = format!("https://{ELSEWHERE}/client.json");
    let site = SecureSite::start(ELSEWHERE, "{}".to_owned()).await;
    let proxy = Tunnels::to(None).await;
    let outbound = json!({"outbound": {"probe": [id], "proxy": proxy.url}});
    let mut all = tenants();
    all["b"]["auth"]["registration"] = json!(false);
    let env = [("SSL_CERT_FILE", site.certificate.path().to_str().unwrap())];
    let gateway = Served::with(&env, outbound, all).await;
    until("a probe", || async { !proxy.heads().is_empty() }).await;
    assert!(!offered(&gateway).await);
    // There a client can do nothing else.
    let url = format!(
        "{}/.well-known/oauth-authorization-server/t/b",
        gateway.origin()
    );
    let other = Answer::of(client().get(url).send().await.unwrap()).await;
    assert_eq!(other.body["client_id_metadata_document_supported"], true);
    // A client that names its document all the same is told what to set.
    let shown = Browser::new()
        .open(&App::of(&gateway, "a", &id).request(&[]))
        .await;
    assert_eq!(shown.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(shown.text.contains("outbound.proxy"), "{}", shown.text);
    let app = App::public(&gateway, "a").await;
    assert!(app.tokens().await.body["access_token"].is_string());
    // The way is open again.
    *proxy.target.lock().unwrap() = Some(site.address);
    until("documents are offered", || offered(&gateway)).await;
}

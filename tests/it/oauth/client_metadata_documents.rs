//! Client IDs that are URLs: metadata documents, their changes, and addresses never fetched.

#![expect(clippy::too_many_lines, reason = "tables of requests, each one story")]
#![expect(
    clippy::disallowed_types,
    reason = "held for a few instructions, never across an await"
)]

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use reqwest::StatusCode;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    task::{JoinHandle, JoinSet},
    time::Instant,
};

use crate::support::{
    browser::Browser,
    harness::until,
    oauth_client::{App, BACK, gateway},
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
    let id = site.document("/c", "no-cache", json!({}));
    let app = App::of(&gateway, "a", &id);
    let mut browser = Browser::new();
    let login = browser.open(&app.request(&[])).await;
    let ada = [("username", "ada"), ("password", "correct horse")];
    let sent = browser.submit(&login, &ada).await;
    let consent = browser.follow(sent, gateway.origin()).await;
    browser.submit(&consent, &[("decision", "allow")]).await;
    let again = browser.open(&app.request(&[])).await;
    assert!(again.answer().contains_key("code"), "{}", again.text);
    site.document("/c", "no-cache", json!({"client_name": "Another"}));
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

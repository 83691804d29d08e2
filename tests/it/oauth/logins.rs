//! Log-ins, tokens and clients over time: expiry, cookies, guessed passwords, clients with remote
//! keys (RFC 7523), and an unreachable store; and what operators read of each attempt.

use std::sync::Arc;

use reqwest::{
    Method, StatusCode,
    header::{HeaderMap, SET_COOKIE, WWW_AUTHENTICATE},
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};
use tokio_rustls::TlsAcceptor;

use crate::{
    auth::api_keys,
    oauth::pages::{self, ADA, consent_page, redeem},
    replicas::clocks::Faked,
    support::{
        browser::{Browser, Shown},
        cluster::Cluster,
        faulty::Mode,
        harness::{client, client_with, until, within},
        issuer::{Key, now},
        oauth_client::{self, Answer, App, BACK, VERIFIER, gateway, post, register, send},
        pair::Pair,
        postgres::Postgres,
        served::Served,
    },
};

/// A changed password ends log-ins with the old one.
#[tokio::test]
async fn a_new_password_ends_log_ins() {
    let gateway = pages::gateway(json!({}), json!({})).await;
    let url = pages::request(&gateway, &[]);
    let mut browser = Browser::new();
    let consent = consent_page(&gateway, &mut browser, &url).await;
    let done = browser.submit(&consent, &[("decision", "allow")]).await;
    let tokens = redeem(&gateway, &done.answer()["code"], &[]).await;
    let is_known = async |browser: &mut Browser| {
        let none = pages::request(&gateway, &[("prompt", "none")]);
        let answer = browser.open(&none).await.answer();
        match answer.get("error").map(String::as_str) {
            None => true,
            Some("login_required") => false,
            Some(other) => panic!("{other}"),
        }
    };
    assert!(is_known(&mut browser).await);
    let put = async |password: &str| {
        let user = json!({"password": password, "groups": ["eng"]});
        let url = format!("{}/api/v1/tenants/a/users/ada", gateway.origin());
        let put = send(Method::PUT, &url, &gateway.administrator(), Some(&user)).await;
        assert_eq!(put.status, StatusCode::OK, "{}", put.body);
    };
    put("correct horse").await;
    assert!(is_known(&mut browser).await, "it is the same password");
    put("another horse").await;
    assert!(!is_known(&mut browser).await);
    // The log-in page appears, and refuses the old password.
    let login = browser.open(&url).await;
    let refused = browser.submit(&login, &ADA).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN);
    let fields = [("username", "ada"), ("password", "another horse")];
    let sent = browser.submit(&login, &fields).await;
    let done = browser.follow(sent, gateway.origin()).await;
    assert!(done.answer()["code"].starts_with("lgc_"));
    // Grants of clients are revoked separately.
    let server = format!("{}/t/a/x/mcp", gateway.origin());
    let asked = client().get(server).header("Accept", "text/event-stream");
    let asked = asked.bearer_auth(tokens["access_token"].as_str().unwrap());
    let status = within("a status", asked.send()).await.unwrap().status();
    assert_eq!(status, StatusCode::BAD_REQUEST, "no session, but let in");
}

#[tokio::test]
async fn a_token_of_our_own_expires_on_sqlite() {
    expires(json!({}), &Faked::at("+0")).await;
}

/// Expiry by the clock of the database.
#[tokio::test]
async fn a_token_of_our_own_expires_on_postgres() {
    let faked = Faked::at("+0");
    let mut postgres = Postgres::prepared();
    postgres.environment = faked.environment().into();
    postgres.resume();
    expires(json!({"sql": {"url": postgres.url()}}), &faked).await;
}

/// An access token is valid for its lifetime and a minute of leeway.
async fn expires(config: Value, faked: &Faked) {
    let env = faked.environment();
    let env = env.each_ref().map(|(name, value)| (*name, value.as_str()));
    let mut gateway = Served::with(&env, config, oauth_client::tenants()).await;
    let app = App::public(&gateway, "a").await;
    let tokens = app.tokens().await;
    let token = tokens.text("access_token");
    let lasts = tokens.body["expires_in"].as_u64().unwrap();
    assert!(app.reaches("x", &token).await);
    faked.set(&format!("+{}", lasts - 5));
    assert!(app.reaches("x", &token).await);
    // Tokens of our own have no leeway: replicas follow one clock.
    faked.set(&format!("+{}", lasts + 5));
    // The gateway reads the clock of the database from time to time.
    until("another time", || async { !app.reaches("x", &token).await }).await;
    let url = format!("{}/t/a/x/mcp", gateway.origin());
    let asked = client().post(&url).bearer_auth(&token).send();
    let refused = within("a refusal", asked).await.unwrap();
    assert_eq!(refused.status(), StatusCode::UNAUTHORIZED);
    let challenge = refused.headers()[WWW_AUTHENTICATE].to_str().unwrap();
    assert!(
        challenge.contains("error=\"invalid_token\"") && challenge.contains("resource_metadata="),
        "{challenge}"
    );
    let next = app.refresh(&tokens.text("refresh_token"), &[]).await;
    assert!(app.reaches("x", &next.text("access_token")).await);
    gateway.stop().await;
}

/// Behind https no other host can set a cookie, and no script can read one.
#[tokio::test]
async fn cookies_behind_https_are_the_hosts() {
    let config = json!({"public_url": "https://gw.test", "http": {"allowed_hosts": ["127.0.0.1"]}});
    let gateway = pages::gateway(config, json!({})).await;
    let mut browser = Browser::new();
    let login = browser.open(&pages::request(&gateway, &[])).await;
    let sent = browser.submit(&login, &ADA).await;
    let set = |shown: &Shown| -> Vec<String> {
        let lines = shown.headers.get_all(SET_COOKIE).iter();
        lines
            .map(|line| line.to_str().unwrap().to_owned())
            .collect()
    };
    let mut lines = [set(&login), set(&sent)].concat();
    assert_eq!(lines.len(), 2, "one before the log-in, another one by it");
    let again = browser.follow(here(&gateway, sent), gateway.origin()).await;
    lines.extend(set(&again));
    for line in lines {
        assert!(line.starts_with("__Host-"), "{line}");
        for attribute in ["; Secure", "; HttpOnly", "; SameSite=Lax", "; Path=/"] {
            assert!(line.contains(attribute), "{line}");
        }
        assert!(!line.to_lowercase().contains("domain"), "{line}");
    }
}

/// A redirect to the public URL, rewritten to the real address of the gateway.
fn here(gateway: &Served, mut shown: Shown) -> Shown {
    let to = shown.headers["location"].to_str().unwrap();
    let to = to.replace("https://gw.test", gateway.origin());
    shown.headers.insert("location", to.parse().unwrap());
    shown
}

/// Guesses of one name from many addresses are throttled; other names are not.
#[tokio::test]
async fn a_name_is_not_guessed_from_many_addresses() {
    let config = json!({"oauth": {"failures": 4},
        "http": {"trusted_proxies": ["127.0.0.1/32"]}});
    let gateway = pages::gateway(config, json!({})).await;
    let from = |address: String| {
        let mut headers = HeaderMap::new();
        headers.insert("X-Forwarded-For", address.parse().unwrap());
        Browser::with(client_with(headers))
    };
    let mut statuses = Vec::new();
    for number in 0..60 {
        let mut browser = from(format!("192.0.2.{number}"));
        let login = browser.open(&pages::request(&gateway, &[])).await;
        let wrong = [("username", "ada"), ("password", "wrong horse")];
        let status = browser.submit(&login, &wrong).await.status;
        statuses.push(status);
        if status == StatusCode::TOO_MANY_REQUESTS {
            break;
        }
        assert_eq!(status, StatusCode::FORBIDDEN);
    }
    assert_eq!(
        statuses.last(),
        Some(&StatusCode::TOO_MANY_REQUESTS),
        "{statuses:?}"
    );
    // Other names are not affected.
    let mut browser = from("198.51.100.1".to_owned());
    let login = browser.open(&pages::request(&gateway, &[])).await;
    let eve = [("username", "eve"), ("password", "correct horse")];
    assert_eq!(
        browser.submit(&login, &eve).await.status,
        StatusCode::SEE_OTHER
    );
}

/// 252 comparisons in 5 s were possible at once, where 20 a minute were promised.
#[tokio::test]
async fn guesses_at_the_same_time_are_no_more_than_one_after_the_other() {
    let gateway = pages::gateway(json!({"oauth": {"failures": 1000}}), json!({})).await;
    let mut first = Browser::new();
    let login = first.open(&pages::request(&gateway, &[])).await;
    let guess = async |name: &str, password: &str| {
        let mut browser = Browser::new();
        browser.steal(&first);
        let fields = [("username", name), ("password", password)];
        browser.submit(&login, &fields).await.status.as_u16()
    };
    let guesses = (0..100).map(|_| guess("ada", "wrong horse"));
    let statuses = futures_util::future::join_all(guesses).await;
    let count = |wanted| statuses.iter().filter(|status| **status == wanted).count();
    assert_eq!((count(403), count(429)), (20, 80), "{statuses:?}");
    // A right password takes nothing from the attempts.
    for _ in 0..25 {
        assert_eq!(guess("eve", "correct horse").await, 303);
    }
    assert_eq!(guess("ada", "correct horse").await, 429);
}

/// A child sees neither the token nor the cookie of its browser.
#[tokio::test]
async fn children_see_nothing_of_a_token_of_our_own() {
    let gateway = gateway(json!({})).await;
    let app = App::public(&gateway, "a").await;
    let tokens = app.tokens().await;
    let (token, refresh) = (tokens.text("access_token"), tokens.text("refresh_token"));
    let (header, payload) = token.split_once('.').unwrap();
    let parts = [&header[..20], &payload[..40], &refresh];
    api_keys::are_unseen(format!("{}/t/a/x/mcp", gateway.origin()), &token, &parts).await;
}

/// While the database is unreachable, each step of a log-in gets 503; afterwards it succeeds.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_in_waits_for_its_store() {
    let cluster = Cluster::two().await;
    let gateway = &cluster.replicas[0];
    let app = App::public(gateway, "a").await;
    let mut browser = Browser::new();
    let login = browser.open(&app.request(&[])).await;
    cluster.sql_way.set(Mode::Cut);
    let refused = browser.submit(&login, &ADA).await;
    assert_eq!(
        refused.status,
        StatusCode::SERVICE_UNAVAILABLE,
        "{}",
        refused.text
    );
    assert!(refused.headers.contains_key("retry-after"));
    refused.assert_guarded();
    cluster.sql_way.set(Mode::Pass);
    let sent = insisted(&mut browser, &login, &ADA).await;
    let consent = browser.follow(sent, gateway.origin()).await;
    cluster.sql_way.set(Mode::Cut);
    let allow = [("decision", "allow")];
    let refused = browser.submit(&consent, &allow).await;
    assert_eq!(
        refused.status,
        StatusCode::SERVICE_UNAVAILABLE,
        "{}",
        refused.text
    );
    cluster.sql_way.set(Mode::Pass);
    let sent = insisted(&mut browser, &consent, &allow).await;
    let code = sent.answer()["code"].clone();
    let tokens = app.redeem(&code, &[]).await;
    assert_eq!(tokens.status, StatusCode::OK, "{}", tokens.body);
}

/// Sends a form until the answer is not 503.
async fn insisted(browser: &mut Browser, page: &Shown, fields: &[(&str, &str)]) -> Shown {
    within("an answer", async {
        loop {
            let sent = browser.submit(page, fields).await;
            if sent.status != StatusCode::SERVICE_UNAVAILABLE {
                assert_eq!(sent.status, StatusCode::SEE_OTHER, "{}", sent.text);
                return sent;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    })
    .await
}

/// An https site, and a file with its certificate.
struct Secure {
    origin: String,
    certificate: tempfile::NamedTempFile,
    pages: tokio::sync::watch::Sender<Vec<(&'static str, String)>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Secure {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Secure {
    async fn start() -> Self {
        let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
        let certificate = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(certificate.path(), made.cert.pem()).unwrap();
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
        let chain = vec![CertificateDer::from(made.cert.der().to_vec())];
        let config = rustls::ServerConfig::builder_with_provider(Arc::new(
            rustls::crypto::aws_lc_rs::default_provider(),
        ))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let origin = format!("https://{}", listener.local_addr().unwrap());
        let (pages, shared) = tokio::sync::watch::channel(Vec::<(&str, String)>::new());
        let task = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let Ok(mut socket) = acceptor.accept(socket).await else {
                    continue;
                };
                let mut request = [0; 4096];
                let size = socket.read(&mut request).await.unwrap_or(0);
                let text = String::from_utf8_lossy(&request[..size]).into_owned();
                let path = text.split(' ').nth(1).unwrap_or_default();
                let body = shared.borrow().iter().find(|(at, _)| *at == path).cloned();
                let body = body.map(|(_, body)| body).unwrap_or_default();
                let answer = format!(
                    "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nCache-Control: max-age=600\r\n\
                     Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
                    body.len()
                );
                let _ = socket.write_all(answer.as_bytes()).await;
                let _ = socket.shutdown().await;
            }
        });
        Self {
            origin,
            certificate,
            pages,
            task,
        }
    }

    fn put(&self, path: &'static str, body: &Value) {
        self.pages.send_modify(|pages| {
            pages.retain(|(at, _)| *at != path);
            pages.push((path, body.to_string()));
        });
    }
}

/// Clients with a `jwks_uri`: a registered one, and one with a metadata document. A new key is
/// valid as soon as it is published, and the old one is no longer valid.
#[tokio::test]
async fn clients_sign_with_keys_that_are_elsewhere() {
    let site = Secure::start().await;
    let (first, second) = (Key::new("first"), Key::new("second"));
    let set = |key: &Key| json!({"keys": [key.public()]});
    let keys = format!("{}/keys", site.origin);
    let document = format!("{}/client.json", site.origin);
    let metadata = json!({"redirect_uris": [BACK], "jwks_uri": keys, "client_name": "Signing",
        "token_endpoint_auth_method": "private_key_jwt"});
    let mut as_document = metadata.clone();
    as_document["client_id"] = json!(document);
    site.put("/client.json", &as_document);
    let file = site.certificate.path().to_str().unwrap();
    let config = json!({"outbound": {"allow": ["127.0.0.0/8"]}, "oauth": {"failures": 1000}});
    let gateway = Served::with(&[("SSL_CERT_FILE", file)], config, oauth_client::tenants()).await;
    let made = register(&gateway, "a", &metadata).await;
    for id in [made.text("client_id"), document] {
        site.put("/keys", &set(&first));
        let app = App::of(&gateway, "a", &id);
        let redeemed = redeemed(&app, &first, "first").await;
        assert_eq!(redeemed.status, StatusCode::OK, "{id}: {}", redeemed.body);
        let stranger = Key::new("first");
        let refused = self::redeemed(&app, &stranger, "first").await;
        refused.assert_refused(401, "invalid_client");
        site.put("/keys", &set(&second));
        let redeemed = self::redeemed(&app, &second, "second").await;
        assert_eq!(redeemed.status, StatusCode::OK, "{id}: {}", redeemed.body);
        let refused = self::redeemed(&app, &first, "first").await;
        refused.assert_refused(401, "invalid_client");
        // A key that nobody knows is asked for, and the keys that are known outlive a site that has none to give.
        site.put("/keys", &json!([]));
        let refused = self::redeemed(&app, &first, "first").await;
        refused.assert_refused(401, "invalid_client");
        let redeemed = self::redeemed(&app, &second, "second").await;
        assert_eq!(redeemed.status, StatusCode::OK, "{id}: {}", redeemed.body);
    }
    // A site that does not answer is the client's, and not the database.
    let away = json!({"redirect_uris": [BACK], "client_name": "Away",
        "jwks_uri": "https://127.0.0.1:9/keys", "token_endpoint_auth_method": "private_key_jwt"});
    let made = register(&gateway, "a", &away).await;
    let app = App::of(&gateway, "a", &made.text("client_id"));
    let refused = redeemed(&app, &first, "first").await;
    refused.assert_refused(503, "temporarily_unavailable");
    assert_eq!(
        refused.text("error_description"),
        "the client's site does not answer"
    );
}

/// The answer of the token endpoint to a code of ada, with an assertion signed by `key`.
async fn redeemed(app: &App, key: &Key, kid: &str) -> Answer {
    let code = app.code(&[]).await;
    let issuer = format!("{}/t/{}", app.origin, app.tenant);
    let claims = json!({"iss": app.id, "sub": app.id, "aud": issuer, "exp": now() + 60,
        "jti": uuid::Uuid::new_v4().to_string()});
    let header = json!({"alg": "ES256", "typ": "JWT", "kid": kid});
    let assertion = key.sign_as(&header.to_string(), &claims.to_string());
    let kind = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";
    let fields = [
        ("grant_type", "authorization_code"),
        ("code", code.as_str()),
        ("redirect_uri", BACK),
        ("code_verifier", VERIFIER),
        ("client_assertion_type", kind),
        ("client_assertion", &assertion),
    ];
    post(&app.endpoint("token"), &fields).await
}

/// What an administrator of the gateway reads below `/tenants/{tenant}/logins`.
async fn read(by: &(&Served, String), tenant: &str, more: &str) -> Answer {
    let (gateway, key) = by;
    let url = format!("{}/api/v1/tenants/{tenant}/logins{more}", gateway.origin());
    send(Method::GET, &url, key, None).await
}

/// The attempts of tenant `a`, once there are so many.
async fn attempts(by: &(&Served, String), count: usize) -> Vec<Value> {
    let all = async || {
        let list = read(by, "a", "").await;
        assert_eq!(list.status, StatusCode::OK, "{}", list.body);
        list.body["items"].as_array().unwrap().clone()
    };
    until("attempts", async || all().await.len() >= count).await;
    all().await
}

/// The steps of an attempt, once the last is this one.
async fn steps(by: &(&Served, String), id: &Value, last: &str) -> Vec<Value> {
    let id = id.as_str().unwrap();
    let all = async || {
        let list = read(by, "a", &format!("/{id}")).await;
        assert_eq!(list.status, StatusCode::OK, "{}", list.body);
        list.body["items"].as_array().unwrap().clone()
    };
    until("the last step", async || {
        all().await.last().is_some_and(|step| step["step"] == last)
    })
    .await;
    all().await
}

fn names(steps: &[Value]) -> Vec<&str> {
    let names = steps.iter().map(|step| step["step"].as_str().unwrap());
    names.collect()
}

async fn an_attempt_is_told_step_by_step(config: Value) {
    let gateway = pages::gateway(config, json!({})).await;
    let by = &(&gateway, gateway.administrator());
    let mut browser = Browser::new();
    let login = browser.open(&pages::request(&gateway, &[])).await;
    let wrong = [("username", "ada"), ("password", "battery staple")];
    let refused = browser.submit(&login, &wrong).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN);
    let sent = browser.submit(&login, &ADA).await;
    let consent = browser.follow(sent, gateway.origin()).await;
    let done = browser.submit(&consent, &[("decision", "allow")]).await;
    let code = done.answer()["code"].clone();
    let tokens = redeem(&gateway, &code, &[]).await;
    let again = redeem(&gateway, &code, &[]).await;
    assert_eq!(again["error"], "invalid_grant");
    let listed = attempts(by, 1).await;
    let steps = steps(by, &listed[0]["id"], "refused").await;
    assert_eq!(
        names(&steps),
        [
            "asked_to_log_in",
            "log_in_failed",
            "logged_in",
            "asked_to_consent",
            "code_sent",
            "token_issued",
            "refused",
        ]
    );
    assert_eq!(steps[0]["subject"], Value::Null, "nobody is logged in");
    assert_eq!(steps[2]["subject"], "ada");
    assert_eq!(steps[0]["address"], "127.0.0.1");
    let reason = steps[6]["reason"].as_str().unwrap();
    assert!(reason.starts_with("invalid_grant: "), "{reason}");
    let listed = attempts(by, 1).await;
    assert_eq!(listed.len(), 1, "one attempt: {listed:?}");
    for (name, value) in [
        ("client", "app"),
        ("title", "The App"),
        ("server", "x"),
        ("subject", "ada"),
        ("step", "refused"),
    ] {
        assert_eq!(listed[0][name], value, "{listed:?}");
    }
    // Nothing that lets anybody in, and nothing of other tenants.
    let token = tokens["access_token"].as_str().unwrap();
    let told = format!("{listed:?}{steps:?}");
    for secret in [VERIFIER, &code, token, "battery staple", "correct horse"] {
        assert!(!told.contains(secret), "{told}");
    }
    let id = listed[0]["id"].as_str().unwrap();
    let other = read(by, "b", "").await;
    assert_eq!(other.body["items"], json!([]));
    let other = read(by, "b", &format!("/{id}")).await;
    assert_eq!(other.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn an_attempt_is_told_step_by_step_on_sqlite() {
    an_attempt_is_told_step_by_step(json!({})).await;
}

#[tokio::test]
async fn an_attempt_is_told_step_by_step_on_postgres() {
    let postgres = Postgres::start();
    an_attempt_is_told_step_by_step(json!({"sql": {"url": postgres.url()}})).await;
}

/// What keeps clients out has its reason, also where nothing more is known of them.
#[tokio::test]
async fn each_refusal_has_its_reason() {
    let gateway = pages::gateway(json!({}), json!({})).await;
    let by = &(&gateway, gateway.administrator());
    let open = async |changed: &[(&str, &str)]| {
        let mut browser = Browser::new();
        let page = browser.open(&pages::request(&gateway, changed)).await;
        page.status
    };
    for (at, (changed, reason)) in [
        (
            [("client_id", "unknown")],
            "neither registered nor declared",
        ),
        (
            [("redirect_uri", "https://app.test/other")],
            "has not registered",
        ),
        (
            [("code_challenge_method", "plain")],
            "code_challenge_method must be S256",
        ),
        (
            [("resource", "https://else.test/mcp")],
            "resource must be the URL of an MCP server",
        ),
        ([("response_type", "token")], "unsupported_response_type"),
    ]
    .into_iter()
    .enumerate()
    {
        let challenge = format!("{at}{}", "a".repeat(42));
        open(&[changed[0], ("code_challenge", &challenge)]).await;
        let listed = attempts(by, at + 1).await;
        assert_eq!(listed.len(), at + 1);
        let told = &listed[0];
        assert_eq!(told["step"], "refused", "{told}");
        assert!(told["reason"].as_str().unwrap().contains(reason), "{told}");
    }
    // A verifier of something else is a step of the attempt whose code it came with.
    let mut browser = Browser::new();
    let consent = consent_page(&gateway, &mut browser, &pages::request(&gateway, &[])).await;
    let done = browser.submit(&consent, &[("decision", "allow")]).await;
    let other = "x".repeat(43);
    let fields = [
        ("grant_type", "authorization_code"),
        ("code", &done.answer()["code"]),
        ("client_id", "app"),
        ("redirect_uri", pages::BACK),
        ("code_verifier", &other),
    ];
    let url = format!("{}/t/a/oauth/token", gateway.origin());
    let sent = post(&url, &fields).await;
    sent.assert_refused(400, "invalid_grant");
    let listed = attempts(by, 6).await;
    assert_eq!(listed.len(), 6);
    let steps = steps(by, &listed[0]["id"], "refused").await;
    assert_eq!(steps.last().unwrap()["subject"], "ada");
}

/// A registration is an attempt of its own.
#[tokio::test]
async fn registrations_are_told() {
    let gateway = pages::gateway(json!({}), json!({})).await;
    let by = &(&gateway, gateway.administrator());
    let metadata = json!({"client_name": "Mine", "redirect_uris": ["http://127.0.0.1/cb"]});
    assert_eq!(register(&gateway, "a", &metadata).await.status, 201);
    let wrong = json!({"client_name": "Wrong", "redirect_uris": ["http://far.test/cb"]});
    assert_eq!(register(&gateway, "a", &wrong).await.status, 400);
    let listed = attempts(by, 2).await;
    assert_eq!(listed[1]["title"], "Mine");
    assert_eq!(listed[1]["step"], "registered");
    assert!(listed[1]["client"].as_str().unwrap().starts_with("c_"));
    assert_eq!(listed[0]["step"], "refused");
    assert!(
        listed[0]["reason"]
            .as_str()
            .unwrap()
            .contains("redirect_uri")
    );
    let few = read(by, "a", "?limit=1").await;
    assert_eq!(few.body["items"].as_array().unwrap().len(), 1);
}

/// Nobody has to log in to cause a step: an address causes so many a minute.
#[tokio::test]
async fn steps_of_one_address_have_a_budget() {
    let gateway = pages::gateway(json!({}), json!({})).await;
    let by = &(&gateway, gateway.administrator());
    let http = client();
    for at in 0..80 {
        let challenge = format!("{at:02}{}", "a".repeat(41));
        let url = pages::request(&gateway, &[("code_challenge", &challenge)]);
        let shown = within("a page", http.get(url).send()).await.unwrap();
        assert_eq!(shown.status(), StatusCode::OK);
    }
    attempts(by, 60).await;
    // Later ones would have been written before this record of the audit trail.
    let metadata = json!({"client_name": "Mine", "redirect_uris": ["http://127.0.0.1/cb"]});
    assert_eq!(register(&gateway, "a", &metadata).await.status, 201);
    let trail = format!("{}/api/v1/audit?kind=client.registered", gateway.origin());
    until("the record", async || {
        let found = send(Method::GET, &trail, &gateway.administrator(), None).await;
        found.body["items"].as_array().unwrap().len() == 1
    })
    .await;
    assert_eq!(attempts(by, 60).await.len(), 60);
}

/// The steps of an attempt come from any replica and are read at any.
#[tokio::test]
async fn an_attempt_by_way_of_two_replicas_is_one() {
    let pair = Pair::issuing(json!({})).await;
    let [first, second] = pair.both();
    let one = App::public(first, "a").await;
    let code = one.code(&[]).await;
    let other = App::of(second, "a", &one.id);
    assert_eq!(other.redeem(&code, &[]).await.status, StatusCode::OK);
    for replica in [first, second] {
        let by = &(replica, first.administrator());
        let listed = attempts(by, 2).await;
        assert_eq!(
            listed.len(),
            2,
            "the registration and the log-in: {listed:?}"
        );
        let steps = steps(by, &listed[0]["id"], "token_issued").await;
        assert!(names(&steps).contains(&"asked_to_consent"));
    }
}

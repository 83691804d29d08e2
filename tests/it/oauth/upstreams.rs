//! Upstreams: people connect their accounts at other services, and their children get the access tokens.

use futures_util::future::join_all;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::{
    auth::{api_keys::key, external_tokens::bearer},
    oauth::pages::{ADA, gateway},
    support::{
        browser::{Browser, Shown},
        harness::{NEWEST, Session, body, child, json_of, opening, until},
        issuer::Provider,
        oauth_client::send,
        pair::Pair,
        postgres::Postgres,
        served::Served,
        stage::{Answer, Stage},
    },
};

pub(super) const EVE: [(&str, &str); 2] = [("username", "eve"), ("password", "correct horse")];
/// The audience of the tokens of the real upstream, which gives opaque ones for it.
pub(super) const RESOURCE: &str = "https://api.test/opaque/";

/// The upstreams of a tenant, and the API keys of its people.
pub(super) struct People {
    pub(super) ada: String,
    pub(super) eve: String,
    pub(super) tenant: Value,
}

impl People {
    /// Servers `s`, which has the token of upstream `hub` in its environment, and `f`, in a file.
    pub(super) fn with(upstreams: Value) -> Self {
        let [ada, eve] = [key(), key()];
        let of =
            |hash: &str, subject: &str| json!({"hash": hash, "subject": subject, "servers": ["*"]});
        let slot = json!({"for": "principal", "upstream": "hub"});
        let file = json!({"for": "principal", "upstream": "hub", "as": "file"});
        let tenant = json!({
            "api_keys": {"ada": of(&ada.1, "ada"), "eve": of(&eve.1, "eve")},
            "upstreams": upstreams,
            "servers": {
                "s": {"command": child(), "secrets": {"TOKEN": slot}},
                "f": {"command": child(), "secrets": {"TOKEN": file}},
            },
        });
        Self {
            ada: ada.0,
            eve: eve.0,
            tenant,
        }
    }
}

pub(super) fn outbound(mut config: Value) -> Value {
    config["outbound"] = json!({"allow": ["127.0.0.0/8"]});
    config
}

pub(super) fn real(provider: &Provider) -> Value {
    json!({"hub": {"issuer": provider.issuer, "client_id": "gateway", "client_secret": "secret",
        "title": "The Hub", "scopes": ["openid", "offline_access", "files:read"], "resource": RESOURCE}})
}

/// An upstream without metadata at a scripted server.
pub(super) fn scripted(stage: &Stage) -> Value {
    let at = |path: &str| format!("{}{path}", stage.url);
    json!({"authorization_endpoint": at("/authorize"), "token_endpoint": at("/token"),
        "client_id": "gateway", "client_secret": "s3cret", "scopes": ["repo"]})
}

/// A token response.
pub(super) fn tokens(access: &str, expires_in: u32, refresh: &str) -> Value {
    json!({"access_token": access, "token_type": "bearer", "expires_in": expires_in,
        "refresh_token": refresh})
}

pub(super) fn session(gateway: &Served, key: &str, server: &str) -> Session {
    let url = format!("{}/t/a/{server}/mcp", gateway.origin());
    Session::at(bearer(key), url)
}

pub(super) async fn opened(gateway: &Served, key: &str, server: &str) -> Session {
    let mut session = session(gateway, key, server);
    session.initialize(NEWEST).await;
    session
}

/// The error of an `initialize`.
pub(super) async fn refused(gateway: &Served, key: &str, server: &str) -> Value {
    let answer = session(gateway, key, server).post(&opening(NEWEST)).await;
    json_of(answer).await["error"].take()
}

/// The token in the environment of a child, or in its file.
pub(super) async fn token(session: &Session) -> String {
    let answer = session.call("env", json!({})).await;
    let text = answer["result"]["content"][0]["text"].as_str();
    let env: Value = serde_json::from_str(text.unwrap_or("{}")).unwrap();
    let value = env["TOKEN"].as_str().unwrap_or_default();
    match std::fs::read_to_string(value) {
        Ok(content) => content,
        Err(_) => value.to_owned(),
    }
}

pub(super) async fn pid(session: &Session) -> Value {
    let text = session.text("whoami", json!({})).await;
    serde_json::from_str::<Value>(&text).unwrap()["pid"].take()
}

pub(super) async fn account(
    gateway: &Served,
    browser: &mut Browser,
    who: &[(&str, &str)],
) -> Shown {
    let url = format!("{}/t/a/account", gateway.origin());
    let page = browser.open(&url).await;
    if page.text.contains("Your account") {
        return page;
    }
    let sent = browser.submit(&page, who).await;
    let account = sent.location().unwrap();
    browser.open(&gateway_url(gateway, account.as_str())).await
}

/// A URL below the public URL, at this replica.
pub(super) fn gateway_url(gateway: &Served, url: &str) -> String {
    url.replace("https://gw.test", gateway.origin())
}

/// Sends a form of the account page about upstream `hub`.
async fn done(browser: &mut Browser, page: &Shown, what: &str) -> Shown {
    let (action, form) = page.form("do");
    let fields = [("form", form.as_str()), ("do", what), ("upstream", "hub")];
    browser
        .post(page.url.join(&action).unwrap().as_str(), &fields)
        .await
}

/// Connects a person to the real upstream; the page that follows.
async fn connected(
    gateway: &Served,
    provider: &Provider,
    who: &[(&str, &str)],
) -> (Browser, Shown) {
    let mut browser = Browser::new();
    let page = account(gateway, &mut browser, who).await;
    assert!(page.text.contains("The Hub") && page.text.contains("is not connected"));
    let sent = done(&mut browser, &page, "connect").await;
    assert_eq!(sent.status, StatusCode::SEE_OTHER, "{}", sent.text);
    let back = browser.follow(sent, &provider.issuer).await;
    let page = browser.follow(back, gateway.origin()).await;
    assert!(
        page.text.contains("The account is connected"),
        "{}",
        page.text
    );
    (browser, page)
}

/// Connects ada to the scripted upstream, which gives these tokens.
pub(super) async fn connected_to(stage: &Stage, gateway: &Served, given: Value) -> Browser {
    let mut browser = Browser::new();
    let page = account(gateway, &mut browser, &ADA).await;
    stage.json("/token", given);
    let sent = done(&mut browser, &page, "connect").await;
    let returned = browser.open(&returning(gateway, "hub", &sent)).await;
    assert_eq!(returned.status, StatusCode::FOUND, "{}", returned.text);
    browser
}

/// The URL by which a person returns who departed by this redirect.
pub(super) fn returning(gateway: &Served, upstream: &str, sent: &Shown) -> String {
    let state = &sent.answer()["state"];
    format!(
        "{}/t/a/oauth/connected/{upstream}?code=c&state={state}",
        gateway.origin()
    )
}

fn sql(postgres: &Postgres, statement: &str) {
    let done = postgres
        .command("psql")
        .args([&postgres.url(), "-c", statement])
        .output();
    assert!(done.unwrap().status.success());
}

/// The kinds of the audit records about upstreams, newest first.
pub(super) async fn audited(gateway: &Served) -> Vec<String> {
    let url = format!("{}/api/v1/audit?tenant=a", gateway.origin());
    let records = send(Method::GET, &url, &gateway.administrator(), None).await;
    let items = records.body["items"].as_array().unwrap().clone();
    let kinds = items.iter().filter_map(|item| item["kind"].as_str());
    let kinds = kinds.filter(|kind| kind.starts_with("upstream.") && !kind.ends_with("added"));
    kinds.map(str::to_owned).collect()
}

async fn people_connect_their_own_accounts(config: Value) {
    let mut provider = Provider::start().await;
    let people = People::with(real(&provider));
    let gateway = gateway(outbound(config), people.tenant.clone()).await;
    let callback = format!("{}/t/a/oauth/connected/hub", gateway.origin());
    provider.callback(&callback).await;
    let missing = refused(&gateway, &people.ada, "s").await;
    assert_eq!(missing["code"], -31005, "{missing}");
    let text = missing["message"].as_str().unwrap();
    assert!(
        text.contains("your account at hub") && text.contains("/t/a/account"),
        "{text}"
    );
    let (mut browser, page) = connected(&gateway, &provider, &ADA).await;
    provider.person("eve").await;
    connected(&gateway, &provider, &EVE).await;
    let (ada, eve) = (
        opened(&gateway, &people.ada, "s").await,
        opened(&gateway, &people.eve, "f").await,
    );
    let both = [token(&ada).await, token(&eve).await];
    for (token, subject) in both.iter().zip(["ada", "eve"]) {
        let said = provider.introspect(token).await;
        assert_eq!(said["active"], true, "{said}");
        assert_eq!(
            (&said["sub"], &said["aud"]),
            (&json!(subject), &json!(RESOURCE)),
            "{said}"
        );
        assert_eq!(said["scope"], "files:read", "{said}");
    }
    // The end here is the end there, for this person alone.
    let page = done(&mut browser, &page, "disconnect").await;
    let page = browser.follow(page, gateway.origin()).await;
    assert!(
        page.text.contains("not connected any more"),
        "{}",
        page.text
    );
    assert_eq!(provider.introspect(&both[0]).await["active"], false);
    assert_eq!(provider.introspect(&both[1]).await["active"], true);
    until("the end of the child", async || {
        ada.call("env", json!({})).await["error"]["code"] == -31005
    })
    .await;
    assert_eq!(token(&eve).await, both[1]);
    let kinds = audited(&gateway).await;
    assert_eq!(
        kinds,
        [
            "upstream.disconnected",
            "upstream.connected",
            "upstream.connected"
        ]
    );
    let page = account(&gateway, &mut browser, &ADA).await;
    are_unseen(gateway, &both, page.text).await;
}

/// The tokens are in no audit record, log line or page.
pub(super) async fn are_unseen(mut gateway: Served, tokens: &[String], page: String) {
    let url = format!("{}/api/v1/audit", gateway.origin());
    let records = send(Method::GET, &url, &gateway.administrator(), None).await;
    let logs = json!(gateway.end().await).to_string();
    for place in [records.body.to_string(), page, logs] {
        assert!(tokens.iter().all(|token| !place.contains(token)), "{place}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn people_connect_their_own_accounts_on_sqlite() {
    people_connect_their_own_accounts(json!({})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn people_connect_their_own_accounts_on_postgres() {
    let postgres = Postgres::start();
    people_connect_their_own_accounts(json!({"sql": {"url": postgres.url()}})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_refreshed_before_it_expires() {
    let mut provider = Provider::start().await;
    let people = People::with(real(&provider));
    let gateway = gateway(outbound(json!({})), people.tenant.clone()).await;
    let callback = format!("{}/t/a/oauth/connected/hub", gateway.origin());
    provider.callback(&callback).await;
    provider.ttl(8).await;
    connected(&gateway, &provider, &ADA).await;
    let [in_env, in_file] = [
        opened(&gateway, &people.ada, "s").await,
        opened(&gateway, &people.ada, "f").await,
    ];
    let (first, pids) = (
        token(&in_env).await,
        [pid(&in_env).await, pid(&in_file).await],
    );
    assert_eq!(token(&in_file).await, first);
    provider.ttl(3600).await;
    until("a new token in the file", async || {
        token(&in_file).await != first
    })
    .await;
    assert_eq!(audited(&gateway).await, ["upstream.connected"]);
    let second = token(&in_file).await;
    assert_eq!(provider.introspect(&second).await["sub"], "ada");
    until("the new token in the environment", async || {
        token(&in_env).await == second
    })
    .await;
    // A file is rewritten below the running child; the environment of a process cannot be.
    assert_eq!(pid(&in_file).await, pids[1]);
    assert_ne!(pid(&in_env).await, pids[0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_refresh_a_token_once() {
    let stage = Stage::start().await;
    let people = People::with(json!({"hub": scripted(&stage)}));
    let mut tenant = people.tenant.clone();
    tenant["auth"] = json!({"mode": "builtin"});
    tenant["users"] = json!({"ada": {"password": "correct horse"}});
    let pair = Pair::of(outbound(json!({})), json!({"a": tenant})).await;
    let [first, second] = pair.both();
    connected_to(&stage, first, tokens("canary-1", 12, "r1")).await;
    let [here, there] = [
        opened(first, &people.ada, "s").await,
        opened(second, &people.ada, "f").await,
    ];
    assert_eq!(
        [token(&here).await, token(&there).await],
        ["canary-1", "canary-1"]
    );
    stage.json("/token", tokens("canary-2", 3600, "r2"));
    for session in [&here, &there] {
        until("the new token", async || token(session).await == "canary-2").await;
    }
    let refreshes = stage.asked("POST /token");
    let refreshes = refreshes
        .iter()
        .filter(|asked| asked.contains("refresh_token=r1"));
    assert_eq!(refreshes.count(), 1, "a rotated token is used once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_the_upstream_ended_is_asked_for_again() {
    let stage = Stage::start().await;
    let people = People::with(json!({"hub": scripted(&stage)}));
    let gateway = gateway(outbound(json!({})), people.tenant.clone()).await;
    connected_to(&stage, &gateway, tokens("canary-1", 4, "r1")).await;
    let ada = opened(&gateway, &people.ada, "s").await;
    // While it is away, a child that runs goes on, and none starts once the token has expired.
    stage.set("/token", Answer::Json(503, json!({})));
    until("an expired token", async || {
        let answer = session(&gateway, &people.ada, "f")
            .post(&opening(NEWEST))
            .await;
        let is_refused = answer.status() == StatusCode::SERVICE_UNAVAILABLE;
        let why = "a secret that the server needs cannot be read at this moment";
        is_refused && body(answer).await.contains(why)
    })
    .await;
    assert_eq!(token(&ada).await, "canary-1");
    stage.set(
        "/token",
        Answer::Json(400, json!({"error": "invalid_grant"})),
    );
    until("the end of the connection", async || {
        ada.call("env", json!({})).await["error"]["code"] == -31005
    })
    .await;
    assert_eq!(
        audited(&gateway).await,
        ["upstream.expired", "upstream.connected"]
    );
    connected_to(&stage, &gateway, tokens("canary-2", 3600, "r2")).await;
    until("the new token", async || token(&ada).await == "canary-2").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_return_counts_once_for_the_person_and_the_upstream_that_it_began_with() {
    let stage = Stage::start().await;
    let mut people = People::with(json!({"hub": scripted(&stage), "other": scripted(&stage)}));
    let other = json!({"for": "principal", "upstream": "other"});
    people.tenant["servers"]["s"]["secrets"]["OTHER"] = other;
    let gateway = gateway(outbound(json!({})), people.tenant.clone()).await;
    stage.json("/token", tokens("canary-1", 3600, "r1"));
    let (mut ada, mut eve) = (Browser::new(), Browser::new());
    let page = account(&gateway, &mut ada, &ADA).await;
    account(&gateway, &mut eve, &EVE).await;
    let mut nobody = Browser::new();
    for browser in [&mut eve, &mut nobody] {
        let sent = done(&mut ada, &page, "connect").await;
        let refused = browser.open(&returning(&gateway, "hub", &sent)).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{}", refused.text);
    }
    // Another upstream, another tenant, another state, an error, and a return after the log-in has ended.
    let sent = done(&mut ada, &page, "connect").await;
    let url = returning(&gateway, "other", &sent);
    assert_eq!(ada.open(&url).await.status, StatusCode::BAD_REQUEST);
    let sent = done(&mut ada, &page, "connect").await;
    let url = returning(&gateway, "hub", &sent);
    let elsewhere = ada.open(&url.replace("/t/a/", "/t/b/")).await;
    assert_eq!(elsewhere.status, StatusCode::BAD_REQUEST);
    assert_eq!(
        ada.open(&format!("{url}x")).await.status,
        StatusCode::BAD_REQUEST
    );
    let denied = ada
        .open(&url.replace("code=c", "error=access_denied"))
        .await;
    assert_eq!(denied.status, StatusCode::BAD_REQUEST);
    assert!(denied.text.contains("did not allow it"), "{}", denied.text);
    assert_eq!(stage.asked("POST /token").len(), 0, "no code was redeemed");
    assert_eq!(refused(&gateway, &people.ada, "f").await["code"], -31005);
    // The right one counts, once.
    let sent = done(&mut ada, &page, "connect").await;
    let url = returning(&gateway, "hub", &sent);
    assert_eq!(ada.open(&url).await.status, StatusCode::FOUND);
    assert_eq!(ada.open(&url).await.status, StatusCode::BAD_REQUEST);
    assert_eq!(stage.asked("POST /token").len(), 1);
    assert_eq!(
        token(&opened(&gateway, &people.ada, "f").await).await,
        "canary-1"
    );
    // The other upstream of the server has no token: that of hub never goes there.
    assert_eq!(refused(&gateway, &people.ada, "s").await["code"], -31005);
    assert_eq!(refused(&gateway, &people.eve, "f").await["code"], -31005);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_return_from_another_issuer_is_refused() {
    let stage = Stage::start().await;
    let at = |path: &str| format!("{}{path}", stage.url);
    let metadata = json!({"issuer": stage.url, "authorization_endpoint": at("/authorize"),
        "token_endpoint": at("/token"), "authorization_response_iss_parameter_supported": true});
    stage.json("/.well-known/oauth-authorization-server", metadata);
    stage.json("/token", tokens("canary-1", 3600, "r1"));
    let hub =
        json!({"hub": {"issuer": stage.url, "client_id": "gateway", "client_secret": "s3cret"}});
    let people = People::with(hub);
    let mut gateway = gateway(outbound(json!({})), people.tenant.clone()).await;
    let mut ada = Browser::new();
    let page = account(&gateway, &mut ada, &ADA).await;
    let none = "no answer of hub: it does not name its issuer (iss)";
    let other = "no answer of hub: it names another issuer (iss)";
    for (iss, status, told) in [
        (String::new(), StatusCode::BAD_REQUEST, none),
        (
            "&iss=https://evil.test".to_owned(),
            StatusCode::BAD_REQUEST,
            other,
        ),
        (format!("&iss={}", stage.url), StatusCode::FOUND, ""),
    ] {
        let sent = done(&mut ada, &page, "connect").await;
        let url = returning(&gateway, "hub", &sent) + &iss;
        let returned = ada.open(&url).await;
        assert_eq!(returned.status, status, "{iss} {}", returned.text);
        // They were told as a connection that had expired, which sent people after cookies.
        assert!(returned.text.contains(told), "{iss} {}", returned.text);
    }
    assert_eq!(stage.asked("POST /token").len(), 1);
    let asked = stage.asked("POST /token")[0].clone();
    assert!(asked.contains("code_verifier=") && asked.contains("grant_type=authorization_code"));
    let logs = gateway.end().await;
    let is_told = |line: &Value| {
        line["why"] == "it names another issuer (iss)" && line["iss"] == "https://evil.test"
    };
    assert!(logs.iter().any(is_told), "{logs:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_is_asked_with_more_parameters() {
    let stage = Stage::start().await;
    let mut hub = scripted(&stage);
    hub["scopes"] = json!(["offline_access"]);
    let mut ada = Browser::new();
    let mut asked = async |hub: &Value| {
        let people = People::with(json!({"hub": hub}));
        let gateway = gateway(outbound(json!({})), people.tenant).await;
        let page = account(&gateway, &mut ada, &ADA).await;
        done(&mut ada, &page, "connect").await
    };
    assert_eq!(asked(&hub).await.answer()["prompt"], "consent");
    hub["authorization_parameters"] = json!({"access_type": "offline", "prompt": "select_account"});
    let sent = asked(&hub).await;
    let answer = sent.answer();
    assert_eq!(answer["access_type"], "offline");
    assert_eq!(answer["prompt"], "select_account");
    let url = sent.location().unwrap();
    assert_eq!(url.as_str().matches("prompt=").count(), 1, "{url}");
}

/// The upstream gave new tokens for those that the person ended.
#[tokio::test(flavor = "multi_thread")]
async fn a_disconnect_ends_what_is_refreshed_meanwhile() {
    let stage = Stage::start().await;
    let mut hub = scripted(&stage);
    hub["revocation_endpoint"] = json!(format!("{}/revoke", stage.url));
    stage.json("/revoke", json!({}));
    let people = People::with(json!({"hub": hub}));
    let gateway = gateway(outbound(json!({})), people.tenant.clone()).await;
    let mut browser = connected_to(&stage, &gateway, tokens("canary-1", 0, "r1")).await;
    let page = account(&gateway, &mut browser, &ADA).await;
    stage.set("/token", Answer::Held);
    let waiting = session(&gateway, &people.ada, "f");
    let opening = opening(NEWEST);
    let ended = async {
        until("it is asked", async || {
            stage.asked("POST /token").len() == 2
        })
        .await;
        done(&mut browser, &page, "disconnect").await;
        stage.json("/token", tokens("canary-2", 3600, "r2"));
    };
    let (refused, ()) = tokio::join!(waiting.post(&opening), ended);
    assert_eq!(json_of(refused).await["error"]["code"], -31005);
    until("the end of the new tokens", async || {
        let revoked = stage.asked("POST /revoke");
        revoked.iter().any(|asked| asked.contains("token=r2"))
    })
    .await;
}

/// Whoever gets the name of a user again gets nothing that the user was connected to.
#[tokio::test(flavor = "multi_thread")]
async fn a_removed_user_leaves_no_connection() {
    let stage = Stage::start().await;
    let people = People::with(json!({"hub": scripted(&stage)}));
    let gateway = gateway(outbound(json!({})), people.tenant.clone()).await;
    connected_to(&stage, &gateway, tokens("canary-1", 3600, "r1")).await;
    let ada = opened(&gateway, &people.ada, "s").await;
    assert_eq!(token(&ada).await, "canary-1");
    let url = format!("{}/api/v1/tenants/a/users/ada", gateway.origin());
    let by = gateway.administrator();
    let removed = send(Method::DELETE, &url, &by, None).await;
    assert!(removed.status.is_success(), "{}", removed.body);
    let again = json!({"password": "correct horse"});
    let put = send(Method::PUT, &url, &by, Some(&again)).await;
    assert!(put.status.is_success(), "{}", put.body);
    assert_eq!(refused(&gateway, &people.ada, "f").await["code"], -31005);
    connected_to(&stage, &gateway, tokens("canary-2", 3600, "r2")).await;
    assert_eq!(
        token(&opened(&gateway, &people.ada, "f").await).await,
        "canary-2"
    );
}

/// A start that needs a token from an upstream that does not answer ends in time, and delays no other.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_upstream_delays_the_starts_that_need_it_alone() {
    let (slow, quick) = (Stage::start().await, Stage::start().await);
    let mut people = People::with(json!({"hub": scripted(&slow), "other": scripted(&quick)}));
    let other = json!({"for": "principal", "upstream": "other"});
    people.tenant["servers"]["s"]["secrets"] = json!({"TOKEN": other});
    let gateway = gateway(outbound(json!({})), people.tenant.clone()).await;
    let mut browser = connected_to(&slow, &gateway, tokens("canary-1", 0, "r1")).await;
    let page = account(&gateway, &mut browser, &ADA).await;
    quick.json("/token", tokens("canary-2", 3600, "r2"));
    let (action, form) = page.form("do");
    let fields = [
        ("form", form.as_str()),
        ("do", "connect"),
        ("upstream", "other"),
    ];
    let sent = browser
        .post(page.url.join(&action).unwrap().as_str(), &fields)
        .await;
    browser.open(&returning(&gateway, "other", &sent)).await;
    slow.set("/token", Answer::Slow);
    let waiting = session(&gateway, &people.ada, "f");
    let starts = async {
        let (opening, began) = (opening(NEWEST), tokio::time::Instant::now());
        let status = waiting.post(&opening).await.status();
        (status, began.elapsed())
    };
    let others = async {
        until("the start begins", async || {
            slow.asked("POST /token").len() == 2
        })
        .await;
        token(&opened(&gateway, &people.ada, "s").await).await
    };
    let ((status, took), token) = tokio::join!(starts, others);
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(took < std::time::Duration::from_secs(15), "{took:?}");
    assert_eq!(token, "canary-2");
}

/// The tokens were stored after five seconds, and both starts were refused all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_takes_a_refresh_that_ends_late() {
    let stage = Stage::start().await;
    let people = People::with(json!({"hub": scripted(&stage)}));
    let gateway = gateway(outbound(json!({})), people.tenant.clone()).await;
    connected_to(&stage, &gateway, tokens("canary-1", 0, "r1")).await;
    stage.set("/token", Answer::Held);
    let answered = async {
        until("the refresh begins", async || {
            stage.asked("POST /token").len() == 2
        })
        .await;
        let began = tokio::time::Instant::now();
        until("a late answer", async || began.elapsed().as_secs() >= 6).await;
        stage.json("/token", tokens("canary-2", 3600, "r2"));
    };
    let started = async || token(&opened(&gateway, &people.ada, "f").await).await;
    let (one, other, ()) = tokio::join!(started(), started(), answered);
    assert_eq!([one, other], ["canary-2", "canary-2"]);
}

/// The count of these operations of the database.
async fn operations(gateway: &Served, name: &str) -> f64 {
    let name = format!(r#"db_client_operation_duration_seconds_count{{db_operation_name="{name}""#);
    let text = gateway.ops("/metrics").await;
    let lines = text.lines().filter(|line| line.starts_with(&name));
    let values = lines.map(|line| line.rsplit_once(' ').unwrap().1);
    values.map(|value| value.parse::<f64>().unwrap()).sum()
}

/// Each of them read the connection and wrote to it ten times a second, over the connections that log-ins have to share.
#[tokio::test(flavor = "multi_thread")]
async fn starts_that_wait_for_a_refresh_leave_the_database_alone() {
    let stage = Stage::start().await;
    let people = People::with(json!({"hub": scripted(&stage)}));
    let gateway = gateway(outbound(json!({})), people.tenant.clone()).await;
    connected_to(&stage, &gateway, tokens("canary-1", 0, "r1")).await;
    stage.set("/token", Answer::Held);
    let watched = async {
        until("the refresh begins", async || {
            stage.asked("POST /token").len() == 2
        })
        .await;
        let began = tokio::time::Instant::now();
        let both = async || {
            [
                operations(&gateway, "begin").await,
                operations(&gateway, "read").await,
            ]
        };
        let before = both().await;
        until("three seconds", async || began.elapsed().as_secs() >= 3).await;
        let after = both().await;
        stage.json("/token", tokens("canary-2", 3600, "r2"));
        [after[0] - before[0], after[1] - before[1]]
    };
    let starts = (0..10).map(|_| opened(&gateway, &people.ada, "f"));
    let (sessions, [written, read]) = tokio::join!(join_all(starts), watched);
    // Nine that waited, ten times a second each, did more than 250 of both.
    assert!(written < 100.0 && read < 180.0, "{written} {read}");
    for session in &sessions {
        assert_eq!(token(session).await, "canary-2");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_outlives_a_database_that_goes_away_while_it_is_refreshed() {
    let (stage, mut postgres) = (Stage::start().await, Postgres::start());
    let people = People::with(json!({"hub": scripted(&stage)}));
    let config = outbound(json!({"sql": {"url": postgres.url()}}));
    let gateway = gateway(config, people.tenant.clone()).await;
    connected_to(&stage, &gateway, tokens("canary-1", 0, "r1")).await;
    stage.set("/token", Answer::Slow);
    let waiting = session(&gateway, &people.ada, "f");
    let away = async {
        until("it is asked", async || {
            stage.asked("POST /token").len() == 2
        })
        .await;
        postgres.pause();
    };
    let opening = opening(NEWEST);
    let (refused, ()) = tokio::join!(waiting.post(&opening), away);
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    stage.json("/token", tokens("canary-2", 3600, "r2"));
    postgres.resume();
    // Otherwise the lease of the request that was lost has to end first.
    sql(&postgres, "UPDATE connections SET lease_ms = 0");
    until("it goes on", async || {
        let answer = session(&gateway, &people.ada, "f").post(&opening).await;
        answer.status() == StatusCode::OK
    })
    .await;
    let ada = opened(&gateway, &people.ada, "f").await;
    assert_eq!(token(&ada).await, "canary-2");
    assert_eq!(audited(&gateway).await, ["upstream.connected"]);
}

/// The upstream has used up the refresh token, and the database is away when it gives the next one.
#[tokio::test(flavor = "multi_thread")]
async fn refreshed_tokens_are_stored_once_the_database_is_back() {
    let (stage, mut postgres) = (Stage::start().await, Postgres::start());
    let people = People::with(json!({"hub": scripted(&stage)}));
    let config = outbound(json!({"sql": {"url": postgres.url()}}));
    let gateway = gateway(config, people.tenant.clone()).await;
    connected_to(&stage, &gateway, tokens("canary-1", 0, "r1")).await;
    stage.set("/token", Answer::Held);
    let waiting = session(&gateway, &people.ada, "f");
    let away = async {
        until("it is asked", async || {
            stage.asked("POST /token").len() == 2
        })
        .await;
        postgres.pause();
        let given = tokens("canary-2", 3600, "");
        stage.set("/token", Answer::Rotating(given, 1));
    };
    let opening = opening(NEWEST);
    let (refused, ()) = tokio::join!(waiting.post(&opening), away);
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    postgres.resume();
    until("it goes on", async || {
        let answer = session(&gateway, &people.ada, "f").post(&opening).await;
        answer.status() == StatusCode::OK
    })
    .await;
    let ada = opened(&gateway, &people.ada, "f").await;
    assert_eq!(token(&ada).await, "canary-2");
    assert_eq!(stage.asked("POST /token").len(), 2);
    assert_eq!(audited(&gateway).await, ["upstream.connected"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_never_goes_to_an_upstream_that_is_declared_later() {
    let (stage, later) = (Stage::start().await, Stage::start().await);
    let people = People::with(json!({"hub": scripted(&stage)}));
    let gateway = gateway(outbound(json!({})), people.tenant.clone()).await;
    connected_to(&stage, &gateway, tokens("canary-1", 3600, "r1")).await;
    assert_eq!(
        token(&opened(&gateway, &people.ada, "s").await).await,
        "canary-1"
    );
    later.json("/token", tokens("canary-2", 3600, "r2"));
    let url = format!("{}/api/v1/tenants/a/upstreams/hub", gateway.origin());
    let by = gateway.administrator();
    let put = send(Method::PUT, &url, &by, Some(&scripted(&later))).await;
    assert_eq!(put.status, StatusCode::OK, "{}", put.body);
    assert_eq!(put.body["spec"]["client_secret"], Value::Null);
    until("the new declaration", async || {
        refused(&gateway, &people.ada, "f").await["code"] == -31005
    })
    .await;
    let removed = send(Method::DELETE, &url, &by, None).await;
    assert_eq!(
        removed.status,
        StatusCode::UNPROCESSABLE_ENTITY,
        "servers use it"
    );
    assert!(later.asked("").is_empty());
    // No administrator fills such a slot by a value either.
    let slot = format!(
        "{}/api/v1/tenants/a/servers/s/secrets/TOKEN?subject=ada",
        gateway.origin()
    );
    let set = send(Method::PUT, &slot, &by, Some(&json!({"value": "x"}))).await;
    assert_eq!(set.status, StatusCode::UNPROCESSABLE_ENTITY, "{}", set.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_not_active_is_refreshed_or_ends_the_connection() {
    let (stage, postgres) = (Stage::start().await, Postgres::start());
    let mut hub = scripted(&stage);
    hub["introspection_endpoint"] = json!(format!("{}/introspect", stage.url));
    let people = People::with(json!({"hub": hub}));
    let config = outbound(json!({"sql": {"url": postgres.url()}}));
    let gateway = gateway(config, people.tenant.clone()).await;
    let a_minute_later = || sql(&postgres, "UPDATE connections SET checked_ms = 0");
    connected_to(&stage, &gateway, tokens("canary-1", 3600, "r1")).await;
    stage.json("/introspect", json!({"active": true}));
    let ada = opened(&gateway, &people.ada, "s").await;
    assert!(
        stage.asked("POST /introspect").is_empty(),
        "it has just come"
    );
    a_minute_later();
    for _ in 0..3 {
        opened(&gateway, &people.ada, "f").await;
    }
    let asked = stage.asked("POST /introspect");
    assert_eq!(asked.len(), 1, "once a minute");
    assert!(asked[0].contains("token=canary-1"));
    stage.json("/introspect", json!({"active": false}));
    // While the upstream cannot refresh it, nobody gets a token that has ended.
    stage.set("/token", Answer::Json(503, json!({})));
    a_minute_later();
    for _ in 0..2 {
        let answer = session(&gateway, &people.ada, "f")
            .post(&opening(NEWEST))
            .await;
        assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    }
    stage.json("/token", tokens("canary-2", 3600, "r2"));
    until("another token", async || token(&ada).await == "canary-2").await;
    assert_eq!(audited(&gateway).await, ["upstream.connected"]);
    // The refresh token has ended, too.
    stage.set(
        "/token",
        Answer::Json(400, json!({"error": "invalid_grant"})),
    );
    until("the end of the connection", async || {
        // The refresh of just now may write its time behind it.
        a_minute_later();
        refused(&gateway, &people.ada, "f").await["code"] == -31005
    })
    .await;
    until("the end of the child", async || {
        ada.call("env", json!({})).await["error"]["code"] == -31005
    })
    .await;
    assert_eq!(
        audited(&gateway).await,
        ["upstream.expired", "upstream.connected"]
    );
}

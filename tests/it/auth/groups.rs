//! What people may do by their groups: scopes, tools, and the loss of a group while sessions are open.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    auth::{api_keys::key, external_tokens::bearer},
    oauth::pages::{consent_page, gateway, request},
    support::{
        browser::Browser,
        harness::{Events, NEWEST, Session, child, tool_call, until, within},
        modern::Modern,
        oauth_client::{App, send},
        pair::Pair,
        served::Served,
    },
};

/// Tenant `a` with ada in these groups. Server x: `env` needs files:write, which implies files:read, which `received`
/// needs; staff have files:read, eng files:write; only eng may use `counter`.
pub(super) fn tenants(groups: &[&str]) -> Value {
    let policy = json!({
        "scopes": {"env": ["files:write"], "received": ["files:read"]},
        "implies": {"files:write": ["files:read"]},
        "groups": {"*": {"tools": {"deny": ["counter"]}, "prompts": {"allow": []}}, "eng": {}},
    });
    let grants = json!({"groups": {"eng": ["files:write"], "staff": ["files:read"]},
        "clients": {"ci": ["files:read"]}});
    json!({"a": {
        "auth": {"mode": "builtin", "scopes": ["files:read"]},
        "default_server": "x",
        "users": {"ada": {"password": "correct horse", "groups": groups}},
        "servers": {"x": {"command": child(), "policy": policy, "grants": grants}},
    }})
}

pub(super) const WRITE: (&str, &str) = ("scope", "files:read files:write");

/// A session at a replica, and its listener.
pub(super) async fn opened(gateway: &Served, token: &str) -> (Session, Events) {
    let url = format!("{}/t/a/x/mcp", gateway.origin());
    let mut session = Session::at(bearer(token), url);
    session.initialize(NEWEST).await;
    let listener = session.listen().await;
    (session, listener)
}

/// Which of four tools are listed.
async fn listed(session: &Session) -> Vec<&'static str> {
    let mut names = String::new();
    let mut cursor = json!({});
    loop {
        let page = session.ask("tools/list", cursor).await;
        names += &page["result"]["tools"].to_string();
        match &page["result"]["nextCursor"] {
            Value::Null => break,
            next => cursor = json!({ "cursor": next }),
        }
    }
    let is_there = |name: &&str| names.contains(&format!(r#""name":"{name}""#));
    let all = ["echo", "received", "env", "counter"];
    all.into_iter().filter(is_there).collect()
}

async fn message_of(session: &Session, tool: &str) -> Value {
    session.call(tool, json!({})).await["error"]["message"].clone()
}

pub(super) async fn put_in(gateway: &Served, key: &str, groups: &[&str]) {
    let ada = json!({"password": "correct horse", "groups": groups});
    let url = format!("{}/api/v1/tenants/a/users/ada", gateway.origin());
    let answer = send(Method::PUT, &url, key, Some(&ada)).await;
    assert!(answer.status.is_success(), "{}", answer.body);
}

/// Ada is in eng, then in staff, then in no group; her sessions are open at every replica meanwhile.
#[expect(clippy::too_many_lines, reason = "one story")]
async fn groups_decide(replicas: [&Served; 2]) {
    let [first, last] = replicas;
    let operator = first.administrator();
    let app = App::public(first, "a").await;
    let tokens = app.redeem(&app.code(&[WRITE]).await, &[]).await;
    assert_eq!(tokens.text("scope"), "files:read files:write");
    let token = tokens.text("access_token");
    let mut open = [opened(first, &token).await, opened(last, &token).await];
    for (session, _) in &open {
        assert_eq!(
            listed(session).await,
            ["echo", "received", "env", "counter"]
        );
        assert_eq!(session.call("env", json!({})).await["error"], Value::Null);
        assert_ne!(
            session.ask("prompts/list", json!({})).await["result"]["prompts"],
            json!([])
        );
    }
    put_in(first, &operator, &["staff"]).await;
    let began = Instant::now();
    for (session, listener) in &mut open {
        // The session learns of it, and what the group allowed is gone from lists and calls.
        let (_, told) = within("a change", listener.message()).await.unwrap();
        assert_eq!(told["method"], "notifications/tools/list_changed");
        assert_eq!(listed(session).await, ["echo", "received"]);
        assert_eq!(
            session.ask("prompts/list", json!({})).await["result"]["prompts"],
            json!([])
        );
        for tool in ["env", "counter"] {
            let unknown = format!("Unknown tool: {tool}");
            assert_eq!(
                message_of(session, tool).await,
                unknown,
                "no step-up to what nobody grants"
            );
        }
        assert_eq!(session.text("echo", json!({"text": "x"})).await, "x");
        assert_eq!(
            session.call("received", json!({})).await["error"],
            Value::Null
        );
    }
    assert!(began.elapsed().as_secs() < 5, "{:?}", began.elapsed());
    let mut modern = Modern::at(&format!("{}/t/a/x/mcp", last.origin()));
    modern.token = Some(token.clone());
    assert_eq!(
        modern.call("env", json!({})).await["error"]["message"],
        "Unknown tool: env"
    );
    // What is issued now, by the grant and by another log-in.
    let next = app.refresh(&tokens.text("refresh_token"), &[]).await;
    assert_eq!(next.text("scope"), "files:read");
    let again = app.redeem(&app.code(&[WRITE]).await, &[]).await;
    assert_eq!(again.text("scope"), "files:read");
    let only = app
        .redeem(&app.code(&[("scope", "files:write")]).await, &[])
        .await;
    assert_eq!(only.text("scope"), "offline_access", "nothing else is left");
    // The grant remembers what it was given while the group was there.
    put_in(first, &operator, &["eng"]).await;
    until("the scopes of the group", async || {
        listed(&open[1].0).await.len() == 4
    })
    .await;
    let back = app.refresh(&next.text("refresh_token"), &[]).await;
    assert_eq!(back.text("scope"), "files:read files:write");
    // Without a group there is no server.
    put_in(first, &operator, &[]).await;
    for (session, listener) in &mut open {
        within("the end of the stream", listener.rest()).await;
        until("an unknown server", async || {
            session
                .post(&json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}))
                .await
                .status()
                == StatusCode::NOT_FOUND
        })
        .await;
    }
    let answer = app.answer(&[]).await;
    assert_eq!(answer["error"], "invalid_target", "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_group_bites_at_once_on_sqlite() {
    let gateway = Served::start(json!({}), tenants(&["eng"])).await;
    groups_decide([&gateway, &gateway]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_group_bites_at_once_on_two_replicas() {
    let pair = Pair::of(json!({}), tenants(&["eng"])).await;
    groups_decide(pair.both()).await;
}

#[tokio::test]
async fn a_call_asks_for_a_scope_only_of_somebody_who_may_have_it() {
    for (groups, step) in [(["eng"], Some("files:read files:write")), (["staff"], None)] {
        let gateway = Served::start(json!({}), tenants(&groups)).await;
        let app = App::public(&gateway, "a").await;
        let tokens = app
            .redeem(&app.code(&[("scope", "files:read")]).await, &[])
            .await;
        let (session, _listener) = opened(&gateway, &tokens.text("access_token")).await;
        let call = tool_call(json!(7), "env", json!({}));
        let response = session.post(&call).await;
        let challenge = response.headers().get("www-authenticate");
        let scope = challenge.map(|value| value.to_str().unwrap().to_owned());
        match step {
            Some(step) => {
                let scope = scope.unwrap();
                assert!(scope.contains(&format!("scope=\"{step}\"")), "{scope}");
                assert_eq!(response.status(), StatusCode::FORBIDDEN);
            }
            None => {
                assert_eq!((response.status(), scope), (StatusCode::OK, None));
            }
        }
    }
}

#[tokio::test]
async fn consent_tells_what_the_person_may_not_have() {
    let more = json!({"servers": {"x": {"grants": {"groups": {"eng": ["files:write"]}, "users": ["eve"]}}}});
    let gateway = gateway(json!({}), more).await;
    let mut browser = Browser::new();
    let url = request(&gateway, &[("scope", "files:read files:write admin")]);
    let page = consent_page(&gateway, &mut browser, &url).await;
    let (may, may_not) = page.text.split_once("May not use").unwrap();
    assert!(
        may.contains("files:write") && !may.contains("admin"),
        "{may}"
    );
    assert!(may_not.contains("<code>admin</code>") && may_not.contains("<code>files:read</code>"));
    let mut other = Browser::new();
    let login = other.open(&url).await;
    let eve = [("username", "eve"), ("password", "correct horse")];
    let sent = other.submit(&login, &eve).await;
    let page = other.follow(sent, gateway.origin()).await;
    assert!(
        page.text.contains("admin") && !page.text.contains("May not use"),
        "{}",
        page.text
    );
}

/// A scope that was withheld is not among what the person has allowed, neither in a remembered consent nor on a page
/// that is still open.
#[tokio::test]
async fn a_scope_that_was_withheld_needs_another_consent() {
    let gateway = Served::start(json!({}), tenants(&["staff"])).await;
    let (operator, app) = (gateway.administrator(), App::site(&gateway, "a").await);
    let mut browser = Browser::new();
    let url = app.request(&[WRITE]);
    let page = consent_page(&gateway, &mut browser, &url).await;
    assert!(page.text.contains("May not use"), "{}", page.text);
    let allow = [("decision", "allow")];
    let done = browser.submit(&page, &allow).await;
    assert!(done.answer().contains_key("code"));
    assert!(
        browser.open(&url).await.answer().contains_key("code"),
        "it is remembered"
    );
    let asking = app.request(&[WRITE, ("prompt", "consent")]);
    let open = browser.open(&asking).await;
    put_in(&gateway, &operator, &["eng"]).await;
    let fresh = async { while browser.open(&asking).await.text.contains("May not use") {} };
    within("a page without withheld scopes", fresh).await;
    let again = browser.open(&url).await;
    assert!(
        again.location().is_none() && again.text.contains("files:write"),
        "{}",
        again.text
    );
    let shown = browser.submit(&open, &allow).await;
    assert!(shown.location().is_none() && !shown.text.contains("May not use"));
    let done = browser.submit(&shown, &allow).await;
    let token = app.redeem(&done.answer()["code"], &[]).await;
    assert_eq!(token.text("scope"), "files:read files:write");
}

#[tokio::test]
async fn a_key_has_the_scopes_of_its_grant_and_the_groups_of_everybody() {
    let (text, hash) = key();
    let mut tenants = tenants(&["eng"]);
    tenants["a"]["api_keys"] = json!({"ci": {"hash": hash, "subject": "robot", "servers": ["x"],
        "scopes": ["files:read", "files:write"]}});
    let gateway = Served::start(json!({}), tenants).await;
    let (session, _listener) = opened(&gateway, &text).await;
    assert_eq!(listed(&session).await, ["echo", "received"]);
    assert_eq!(message_of(&session, "env").await, "Unknown tool: env");
}

//! The account page: secrets, applications with access and log-ins, each changed by their person alone.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::{
    auth::external_tokens::bearer,
    oauth::{
        pages::{ADA, gateway},
        providers::behind,
    },
    support::{
        browser::{Browser, Shown},
        harness::{NEWEST, Session, child, json_of, opening, until},
        issuer::Provider,
        modern::{Modern, asked},
        oauth_client::{App, send},
        postgres::Postgres,
        served::Served,
    },
};

/// Server `s` with secrets of people, and `closed`, which eve alone may use.
fn slots() -> Value {
    let slot =
        |title: &str| json!({"for": "principal", "title": title, "help": "https://help.test/t"});
    let server = json!({"command": child(), "secrets": {
        "TOKEN": slot("Token <of> the service"),
        "KEY": {"for": "principal", "as": "file"}, "ALL": {"for": "tenant"}}});
    let one = json!({"command": child(), "secrets": {"TOKEN": slot("One")}});
    let mut closed = one.clone();
    closed["grants"] = json!({"users": ["eve"]});
    json!({"servers": {"s": server, "one": one, "closed": closed}})
}

pub(crate) const EVE: [(&str, &str); 2] = [("username", "eve"), ("password", "correct horse")];

pub(crate) fn page_of(gateway: &Served, tenant: &str) -> String {
    format!("{}/t/{tenant}/account", gateway.origin())
}

/// The account page after the log-in of a person.
pub(crate) async fn signed_in(
    gateway: &Served,
    browser: &mut Browser,
    who: &[(&str, &str)],
) -> Shown {
    let login = browser.open(&page_of(gateway, "a")).await;
    assert_eq!(login.status, StatusCode::OK, "{}", login.text);
    login.assert_guarded();
    let sent = browser.submit(&login, who).await;
    assert_eq!(sent.status, StatusCode::SEE_OTHER, "{}", sent.text);
    let page = browser.follow(sent, gateway.origin()).await;
    assert!(page.text.contains("Your account"), "{}", page.text);
    page
}

/// Sends a form of the page with these fields; the page that follows.
pub(crate) async fn changed(
    gateway: &Served,
    browser: &mut Browser,
    page: &Shown,
    fields: &[(&str, &str)],
) -> Shown {
    let sent = sent(browser, page, fields).await;
    assert_eq!(sent.status, StatusCode::SEE_OTHER, "{}", sent.text);
    browser.follow(sent, gateway.origin()).await
}

pub(crate) async fn sent(browser: &mut Browser, page: &Shown, fields: &[(&str, &str)]) -> Shown {
    let (action, form) = page.form("do");
    let mut all = vec![("form", form.as_str())];
    all.extend_from_slice(fields);
    let url = page.url.join(&action).unwrap();
    browser.post(url.as_str(), &all).await
}

pub(crate) fn set<'f>(server: &'f str, secret: &'f str, value: &'f str) -> [(&'f str, &'f str); 4] {
    [
        ("do", "set"),
        ("server", server),
        ("secret", secret),
        ("value", value),
    ]
}

fn remove<'f>(server: &'f str, secret: &'f str) -> [(&'f str, &'f str); 3] {
    [("do", "remove"), ("server", server), ("secret", secret)]
}

async fn env(session: &Session) -> Value {
    serde_json::from_str(&session.text("env", json!({})).await).unwrap()
}

/// The secrets that are set for a server of tenant `a`.
async fn listed(gateway: &Served, server: &str) -> usize {
    let url = format!(
        "{}/api/v1/tenants/a/servers/{server}/secrets",
        gateway.origin()
    );
    let list = send(Method::GET, &url, &gateway.administrator(), None).await;
    list.body["items"].as_array().unwrap().len()
}

/// An access token of ada for a server.
async fn token(gateway: &Served, app: &App, server: &str) -> String {
    let resource = format!("{}/t/a/{server}/mcp", gateway.origin());
    let code = app.code(&[("resource", &resource)]).await;
    app.redeem(&code, &[]).await.text("access_token")
}

#[expect(clippy::too_many_lines, reason = "one story, told in order")]
async fn a_person_sets_replaces_and_removes_secrets(config: Value) {
    let gateway = gateway(config, slots()).await;
    let app = App::public(&gateway, "a").await;
    let token = token(&gateway, &app, "s").await;
    let url = format!("{}/t/a/s/mcp", gateway.origin());
    let mut ada = Session::at(bearer(&token), url);
    let missing = json_of(ada.post(&opening(NEWEST)).await).await;
    let text = missing["error"]["message"].as_str().unwrap();
    assert!(text.contains("/t/a/account"), "{missing}");
    assert_eq!(missing["error"]["code"], -31005);
    let all = format!(
        "{}/api/v1/tenants/a/servers/s/secrets/ALL",
        gateway.origin()
    );
    let by = gateway.administrator();
    let done = send(Method::PUT, &all, &by, Some(&json!({"value": "all"}))).await;
    assert_eq!(done.status, StatusCode::NO_CONTENT);
    let mut browser = Browser::new();
    let page = signed_in(&gateway, &mut browser, &ADA).await;
    assert!(
        page.text.contains("Token &#60;of&#62; the service"),
        "{}",
        page.text
    );
    assert!(page.text.contains("href=\"https://help.test/t\""));
    assert!(
        page.header("content-security-policy")
            .ends_with("; form-action 'self'")
    );
    assert_eq!(page.text.matches("is not set").count(), 3, "{}", page.text);
    assert!(
        !page.text.contains("closed") && !page.text.contains("ALL"),
        "{}",
        page.text
    );
    let page = changed(
        &gateway,
        &mut browser,
        &page,
        &set("s", "TOKEN", "canary-1"),
    )
    .await;
    assert!(page.text.contains("The secret is saved"), "{}", page.text);
    let text = "canary-2\r\nwith a second line\r\n";
    let page = changed(&gateway, &mut browser, &page, &set("s", "KEY", text)).await;
    assert!(!page.text.contains("canary"), "{}", page.text);
    assert_eq!(
        page.text.matches("is set since").count(),
        2,
        "{}",
        page.text
    );
    ada.initialize(NEWEST).await;
    let own = env(&ada).await;
    assert_eq!(own["TOKEN"], "canary-1");
    let file = std::fs::read_to_string(own["KEY"].as_str().unwrap()).unwrap();
    assert_eq!(file, "canary-2\nwith a second line\n");
    let page = changed(
        &gateway,
        &mut browser,
        &page,
        &set("s", "TOKEN", "canary-3"),
    )
    .await;
    until("the new value", async || {
        env(&ada).await["TOKEN"] == "canary-3"
    })
    .await;
    let page = changed(&gateway, &mut browser, &page, &remove("s", "TOKEN")).await;
    assert!(page.text.contains("The secret is removed"), "{}", page.text);
    until("the end of the child", async || {
        ada.call("env", json!({})).await["error"]["code"] == -31005
    })
    .await;
    let long = "x".repeat((16 << 10) + 1);
    for (refused, status) in [
        (set("s", "TOKEN", ""), 400),
        (set("s", "TOKEN", &long), 400),
        (set("s", "TOKEN", "a\0b"), 400),
        (set("s", "ALL", "mine for all"), 400),
        (set("s", "PATH", "/evil"), 400),
        (set("closed", "TOKEN", "x"), 400),
        (set("none", "TOKEN", "x"), 400),
    ] {
        let answer = sent(&mut browser, &page, &refused).await;
        assert_eq!(answer.status, status, "{refused:?}");
        assert!(
            !answer.text.contains("xxxx") && !answer.text.contains("mine"),
            "{}",
            answer.text
        );
    }
    // The largest one, each byte of which a form writes by three.
    let long = "ü".repeat(8 << 10);
    changed(&gateway, &mut browser, &page, &set("s", "TOKEN", &long)).await;
    until("the largest one", async || {
        env(&ada).await["TOKEN"] == *long
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_sets_replaces_and_removes_secrets_on_sqlite() {
    a_person_sets_replaces_and_removes_secrets(json!({})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_sets_replaces_and_removes_secrets_on_postgres() {
    let postgres = Postgres::start();
    a_person_sets_replaces_and_removes_secrets(json!({"sql": {"url": postgres.url()}})).await;
}

#[tokio::test]
async fn a_form_of_another_persons_page_changes_nothing() {
    let mut more = slots();
    more["users"]["ada"] = json!({"password": "correct horse"});
    let gateway = gateway(json!({}), more).await;
    let (mut ada, mut eve) = (Browser::new(), Browser::new());
    let own = signed_in(&gateway, &mut ada, &ADA).await;
    let theirs = signed_in(&gateway, &mut eve, &EVE).await;
    let fields = set("one", "TOKEN", "planted");
    // A form of eve's page, sent by the browser of ada; by no browser; to another tenant.
    let refused = sent(&mut ada, &theirs, &fields).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{}", refused.text);
    let refused = sent(&mut Browser::new(), &own, &fields).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    let (_, form) = own.form("do");
    let mut all = vec![("form", form.as_str())];
    all.extend_from_slice(&fields);
    let elsewhere = ada.post(&page_of(&gateway, "b"), &all).await;
    assert_eq!(elsewhere.status, StatusCode::BAD_REQUEST);
    // Without a sealed form, with a changed one, and with that of a log-in.
    let login = Browser::new().open(&page_of(&gateway, "a")).await;
    let (_, of_login) = login.form("password");
    for form in ["", &form[1..], &of_login] {
        all[0].1 = form;
        let refused = ada.post(&page_of(&gateway, "a"), &all).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    }
    assert_eq!(listed(&gateway, "one").await, 0);
    // After another log-in in the same browser the forms of before are worth nothing.
    changed(&gateway, &mut ada, &own, &fields).await;
    assert_eq!(listed(&gateway, "one").await, 1);
    signed_in_again(&gateway, &mut ada, &own).await;
    let refused = sent(&mut ada, &own, &remove("one", "TOKEN")).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{}", refused.text);
    assert_eq!(listed(&gateway, "one").await, 1);
}

/// Signs ada out, and eve in.
async fn signed_in_again(gateway: &Served, browser: &mut Browser, page: &Shown) {
    let id = login_here(page);
    let page = changed(gateway, browser, page, &[("do", "end"), ("login", &id)]).await;
    assert!(page.text.contains("Sign in"), "{}", page.text);
    signed_in(gateway, browser, &EVE).await;
}

/// The log-in of the browser that shows a page.
fn login_here(page: &Shown) -> String {
    let (before, _) = page.text.split_once("This browser").unwrap();
    let (_, id) = before.rsplit_once("name=\"login\" value=\"").unwrap();
    id.split('"').next().unwrap().to_owned()
}

/// Both forms name what the person does not have, and are told apart by nothing.
async fn nothing_is_changed(browser: &mut Browser, page: &Shown, forms: [&[(&str, &str)]; 2]) {
    let [foreign, none] = forms;
    let foreign = sent(browser, page, foreign).await;
    assert_eq!(foreign.status, StatusCode::BAD_REQUEST, "{}", foreign.text);
    assert!(foreign.text.contains("Nothing was changed"));
    let none = sent(browser, page, none).await;
    assert_eq!((foreign.status, foreign.text), (none.status, none.text));
}

#[tokio::test]
async fn a_person_ends_the_access_of_an_application() {
    let gateway = gateway(json!({}), slots()).await;
    let app = App::public(&gateway, "a").await;
    // Two log-ins, as on two devices.
    let other = app.tokens().await;
    let tokens = app.tokens().await;
    let tokens = app.refresh(&tokens.text("refresh_token"), &[]).await;
    let mut eve = Browser::new();
    let theirs = signed_in(&gateway, &mut eve, &EVE).await;
    assert!(theirs.text.contains("No application acts for you"));
    let mut ada = Browser::new();
    let page = signed_in(&gateway, &mut ada, &ADA).await;
    assert!(page.text.contains("<bdi>Public</bdi>") && page.text.contains("Last token"));
    let (_, id) = page.text.split_once("name=\"grant\" value=\"").unwrap();
    let id = id.split('"').next().unwrap().to_owned();
    // The grant of another person is not there, as one that never was.
    let revoke = [("do", "revoke"), ("grant", id.as_str())];
    let none = Uuid::nil().to_string();
    let nobodys = [("do", "revoke"), ("grant", none.as_str())];
    nothing_is_changed(&mut eve, &theirs, [&revoke, &nobodys]).await;
    assert!(app.reaches("x", &tokens.text("access_token")).await);
    let page = changed(&gateway, &mut ada, &page, &revoke).await;
    assert!(
        page.text.contains("No application acts for you"),
        "{}",
        page.text
    );
    for tokens in [&tokens, &other] {
        assert!(!app.reaches("x", &tokens.text("access_token")).await);
        let refused = app.refresh(&tokens.text("refresh_token"), &[]).await;
        refused.assert_refused(400, "invalid_grant");
    }
    nothing_is_changed(&mut ada, &page, [&revoke, &nobodys]).await;
    let audit = format!("{}/api/v1/audit?kind=grant.revoked", gateway.origin());
    let audit = send(Method::GET, &audit, &gateway.administrator(), None).await;
    assert_eq!(audit.body["items"][0]["actor"], "ada", "{}", audit.body);
}

/// The page has the newest grants, and its form counts for any.
#[tokio::test]
async fn a_grant_is_ended_that_the_page_does_not_show_any_more() {
    let postgres = Postgres::start();
    let gateway = gateway(json!({"sql": {"url": postgres.url()}}), slots()).await;
    let app = App::public(&gateway, "a").await;
    let tokens = app.tokens().await;
    let mut ada = Browser::new();
    let page = signed_in(&gateway, &mut ada, &ADA).await;
    let (_, id) = page.text.split_once("name=\"grant\" value=\"").unwrap();
    let id = id.split('"').next().unwrap().to_owned();
    let copies = "INSERT INTO grants (id, tenant, subject, groups, client_id, resource, scope, auth_ms, created_ms, \
                  expires_ms) SELECT gen_random_uuid(), tenant, subject, groups, client_id, resource, scope, auth_ms, \
                  created_ms + 3600000 + n, expires_ms FROM grants, generate_series(1, 150) AS n";
    let mut psql = postgres.command("psql");
    let done = psql.args([&postgres.url(), "-c", copies]).output().unwrap();
    assert!(done.status.success(), "{done:?}");
    let page = ada.open(&page_of(&gateway, "a")).await;
    assert_eq!(page.text.matches("name=\"grant\"").count(), 100);
    assert!(
        !page.text.contains(&id),
        "it is older than a hundred others"
    );
    let revoke = [("do", "revoke"), ("grant", id.as_str())];
    changed(&gateway, &mut ada, &page, &revoke).await;
    assert!(!app.reaches("x", &tokens.text("access_token")).await);
}

#[tokio::test]
async fn a_person_ends_log_ins_of_other_browsers() {
    let gateway = gateway(json!({}), slots()).await;
    let (mut one, mut two, mut eve) = (Browser::new(), Browser::new(), Browser::new());
    let first = signed_in(&gateway, &mut one, &ADA).await;
    let second = signed_in(&gateway, &mut two, &ADA).await;
    let theirs = signed_in(&gateway, &mut eve, &EVE).await;
    assert_eq!(second.text.matches("name=\"login\"").count(), 2);
    assert_eq!(theirs.text.matches("name=\"login\"").count(), 1);
    let id = login_here(&first);
    let end = [("do", "end"), ("login", id.as_str())];
    let none = "0".repeat(64);
    let nobodys = [("do", "end"), ("login", none.as_str())];
    nothing_is_changed(&mut eve, &theirs, [&end, &nobodys]).await;
    assert!(
        one.open(&page_of(&gateway, "a"))
            .await
            .text
            .contains("Your account")
    );
    changed(&gateway, &mut two, &second, &end).await;
    nothing_is_changed(&mut two, &second, [&end, &nobodys]).await;
    assert!(
        one.open(&page_of(&gateway, "a"))
            .await
            .text
            .contains("Sign in")
    );
    assert!(
        two.open(&page_of(&gateway, "a"))
            .await
            .text
            .contains("Your account")
    );
}

#[tokio::test]
async fn a_wrong_password_opens_no_account_page() {
    let gateway = gateway(json!({}), slots()).await;
    let mut browser = Browser::new();
    let login = browser.open(&page_of(&gateway, "a")).await;
    let wrong = [("username", "ada"), ("password", "wrong")];
    let refused = browser.submit(&login, &wrong).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN);
    refused.assert_guarded();
    let again = browser.submit(&refused, &ADA).await;
    assert!(
        browser
            .follow(again, gateway.origin())
            .await
            .text
            .contains("Your account")
    );
    for nowhere in ["none", "k"] {
        let page = Browser::new().open(&page_of(&gateway, nowhere)).await;
        assert_eq!(page.status, StatusCode::NOT_FOUND);
    }
}

#[tokio::test]
async fn a_person_of_a_provider_has_an_account_page() {
    let mut provider = Provider::start().await;
    let acme = json!({"kind": "openid", "issuer": provider.issuer, "client_id": "gateway",
        "client_secret": "secret", "title": "Acme", "scopes": ["openid", "profile", "email"]});
    let gateway = behind(json!({}), json!({"acme": acme})).await;
    let callback = format!("{}/t/a/oauth/callback/acme", gateway.origin());
    provider.callback(&callback).await;
    let mut browser = Browser::new();
    let login = browser.open(&page_of(&gateway, "a")).await;
    let sent = browser.submit(&login, &[("provider", "acme")]).await;
    assert_eq!(sent.status, StatusCode::SEE_OTHER, "{}", sent.text);
    let back = browser.follow(sent, &provider.issuer).await;
    let page = browser.follow(back, gateway.origin()).await;
    assert!(
        page.text.contains("Your account") && page.text.contains("Acme")
            || page.text.contains("acme"),
        "{}",
        page.text
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_visits_urls_is_sent_to_the_account_page() {
    let gateway = gateway(json!({}), slots()).await;
    let app = App::public(&gateway, "a").await;
    let token = token(&gateway, &app, "one").await;
    let url = format!("{}/t/a/one/mcp", gateway.origin());
    let mut browser = Browser::new();
    let page = signed_in(&gateway, &mut browser, &ADA).await;
    // 2026-07-28: the call asks for the visit, and its retry works.
    let mut modern = Modern::at(&url).with(json!({"elicitation": {"url": {}}}));
    modern.token = Some(token.clone());
    let call = modern.tool("env", json!({}));
    let required = modern.answer(&call).await;
    assert_eq!(asked(&required)[0].1, "elicitation/create");
    let requests = required["result"]["inputRequests"].to_string();
    assert!(
        requests.contains("/t/a/account") && requests.contains("\"url\""),
        "{requests}"
    );
    let key = asked(&required)[0].0.clone();
    let accepted = json!({key: {"action": "accept"}});
    let again = modern
        .answer(&modern.retry(&call, &required, accepted.clone()))
        .await;
    assert_eq!(asked(&again)[0].1, "elicitation/create", "still missing");
    let page = changed(&gateway, &mut browser, &page, &set("one", "TOKEN", "mine")).await;
    let answer = modern.answer(&modern.retry(&call, &again, accepted)).await;
    assert!(answer["result"].to_string().contains("mine"), "{answer}");
    // Other requests cannot ask: the error says it.
    changed(&gateway, &mut browser, &page, &remove("one", "TOKEN")).await;
    until("the end of the child", async || {
        let list = modern.ask("tools/list", json!({})).await;
        list["error"]["code"] == -31005
    })
    .await;
    // 2025-11-25: a session that has begun gets the error of its revision.
    let page = browser.open(&page_of(&gateway, "a")).await;
    let page = changed(&gateway, &mut browser, &page, &set("one", "TOKEN", "mine")).await;
    let mut message = opening(NEWEST);
    message["params"]["capabilities"] = json!({"elicitation": {"url": {}}});
    let mut session = Session::at(bearer(&token), url);
    let begun = session.post(&message).await;
    session.id = begun.headers()["mcp-session-id"]
        .to_str()
        .ok()
        .map(str::to_owned);
    session.notify("notifications/initialized", json!({})).await;
    changed(&gateway, &mut browser, &page, &remove("one", "TOKEN")).await;
    let refused = std::cell::RefCell::default();
    until("the end of the child", async || {
        let answer = session.call("env", json!({})).await;
        let is_refused = answer["error"]["code"] == -32042;
        refused.replace(answer);
        is_refused
    })
    .await;
    let refused: Value = refused.into_inner();
    let asked = &refused["error"]["data"]["elicitations"][0];
    assert_eq!(asked["mode"], "url");
    assert!(
        asked["url"].as_str().unwrap().ends_with("/t/a/account"),
        "{refused}"
    );
}

//! Connections to upstreams at consent, and in the hands of administrators.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::{
    pages::{ADA, claims, consent_page, gateway, redeem, request},
    providers::{ALLOW, chosen, openid},
    upstreams::{
        EVE, People, account, are_unseen, audited, connected_to, gateway_url, opened, outbound,
        real, refused, returning, scripted, token, tokens,
    },
};
use crate::{
    cli::commands::{Said, stranger},
    support::{
        browser::{Browser, Shown},
        harness::{until, within},
        issuer::Provider,
        oauth_client::send,
        pair::Pair,
        postgres::Postgres,
        served::Served,
        stage::{Answer, Stage},
    },
};

const CONNECT: [(&str, &str); 1] = [("connect", "hub")];
/// The button that connects an account.
const BUTTON: &str = "name=\"connect\" value=\"hub\"";

/// An authorization request for server `s`.
fn asking(gateway: &Served, more: &[(&str, &str)]) -> String {
    let resource = format!("{}/t/a/s/mcp", gateway.origin());
    let mut changed = vec![("resource", resource.as_str())];
    changed.extend(more);
    request(gateway, &changed)
}

/// The consent page for server `s`, of a browser in which ada has just logged in.
async fn consent(gateway: &Served, browser: &mut Browser) -> Shown {
    let page = consent_page(gateway, browser, &asking(gateway, &[])).await;
    page.assert_guarded();
    page
}

async fn an_account_is_connected_at_consent(config: Value) {
    let mut provider = Provider::start().await;
    let people = People::with(real(&provider));
    let gateway = gateway(outbound(config), people.tenant.clone()).await;
    let callback = format!("{}/t/a/oauth/connected/hub", gateway.origin());
    provider.callback(&callback).await;
    let mut browser = Browser::new();
    let page = consent(&gateway, &mut browser).await;
    assert!(
        page.text.contains("<bdi>The Hub</bdi> is not connected"),
        "{}",
        page.text
    );
    assert!(
        page.text.contains(BUTTON) && page.text.contains("The App"),
        "{}",
        page.text
    );
    let sent = browser.submit(&page, &CONNECT).await;
    assert_eq!(sent.status, StatusCode::SEE_OTHER, "{}", sent.text);
    let back = browser.follow(sent, &provider.issuer).await;
    let page = browser.follow(back, gateway.origin()).await;
    page.assert_guarded();
    assert!(
        page.text.contains("<bdi>The Hub</bdi> is connected"),
        "{}",
        page.text
    );
    assert!(
        page.text.contains("The App") && !page.text.contains(BUTTON),
        "{}",
        page.text
    );
    // Its form leads to the client alone, and the client where it likes.
    let policy = page.header("content-security-policy");
    assert!(!policy.contains("form-action"), "{policy}");
    let done = browser.submit(&page, &ALLOW).await;
    let answer = done.answer();
    assert_eq!(answer["state"], "s");
    let claims = claims(&redeem(&gateway, &answer["code"], &[]).await);
    assert_eq!(claims["sub"], "ada");
    let given = token(&opened(&gateway, &people.ada, "s").await).await;
    assert_eq!(provider.introspect(&given).await["sub"], "ada");
    assert_eq!(audited(&gateway).await, ["upstream.connected"]);
    are_unseen(gateway, &[given], page.text).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_is_connected_at_consent_on_sqlite() {
    an_account_is_connected_at_consent(json!({})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_is_connected_at_consent_on_postgres() {
    let postgres = Postgres::start();
    an_account_is_connected_at_consent(json!({"sql": {"url": postgres.url()}})).await;
}

#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::too_many_lines, reason = "one story, told in order")]
async fn a_form_that_connects_counts_once_in_its_browser_and_for_its_server() {
    let stage = Stage::start().await;
    let mut people = People::with(json!({"hub": scripted(&stage), "other": scripted(&stage)}));
    let other = json!({"for": "principal", "upstream": "other"});
    people.tenant["servers"]["f"]["secrets"]["OTHER"] = other;
    let gateway = gateway(outbound(json!({})), people.tenant.clone()).await;
    stage.json("/token", tokens("canary-1", 3600, "r1"));
    let mut ada = Browser::new();
    let page = consent(&gateway, &mut ada).await;
    // The page offers what its own server needs.
    assert!(!page.text.contains("value=\"other\""), "{}", page.text);
    let unneeded = ada.submit_anyway(&page, &[("connect", "other")]).await;
    assert_eq!(
        unneeded.status,
        StatusCode::BAD_REQUEST,
        "{}",
        unneeded.text
    );
    let mut eve = Browser::new();
    consent_page(&gateway, &mut eve, &asking(&gateway, &[])).await;
    let stolen = eve.submit(&page, &CONNECT).await;
    let here = format!("{}/t/a/oauth/authorize?", gateway.origin());
    let again = stolen.location().unwrap();
    assert!(again.as_str().starts_with(&here), "{again}");
    let sent = ada.submit(&page, &CONNECT).await;
    assert!(
        sent.location().unwrap().as_str().starts_with(&stage.url),
        "{}",
        sent.text
    );
    for again in [CONNECT, ALLOW] {
        let refused = ada.submit(&page, &again).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{}", refused.text);
        assert!(
            refused.text.contains("already answered"),
            "{}",
            refused.text
        );
    }
    let url = returning(&gateway, "hub", &sent);
    let taken = eve.open(&url).await;
    assert_eq!(taken.status, StatusCode::BAD_REQUEST, "{}", taken.text);
    // Another log-in in the same browser is another person's.
    let mut both = Browser::new();
    let page = consent(&gateway, &mut both).await;
    let sent = both.submit(&page, &CONNECT).await;
    assert_eq!(sent.status, StatusCode::SEE_OTHER, "{}", sent.text);
    let login = both.open(&asking(&gateway, &[("prompt", "login")])).await;
    both.submit(&login, &EVE).await;
    let late = both.open(&returning(&gateway, "hub", &sent)).await;
    assert_eq!(late.status, StatusCode::BAD_REQUEST, "{}", late.text);
    assert!(
        stage.asked("POST /token").is_empty(),
        "no code was redeemed"
    );
    let back = ada.open(&url).await;
    assert!(
        back.location().unwrap().as_str().starts_with(&here),
        "{back:?}"
    );
    assert_eq!(
        ada.open(&url).await.status,
        StatusCode::BAD_REQUEST,
        "it counts once"
    );
    assert_eq!(stage.asked("POST /token").len(), 1);
    assert_eq!(refused(&gateway, &people.eve, "s").await["code"], -31005);
}

#[tokio::test(flavor = "multi_thread")]
async fn consent_goes_on_when_an_account_is_not_connected() {
    let stage = Stage::start().await;
    let at = |path: &str| format!("{}{path}", stage.url);
    let hub = json!({"hub": {"issuer": stage.url, "client_id": "gateway", "title": "The Hub"}});
    let people = People::with(hub);
    let gateway = gateway(outbound(json!({})), people.tenant.clone()).await;
    let mut ada = Browser::new();
    let page = consent(&gateway, &mut ada).await;
    // Its metadata are not there: the page stays good.
    let failed = ada.submit(&page, &CONNECT).await;
    failed.assert_guarded();
    assert!(
        failed.text.contains("The Hub does not answer"),
        "{}",
        failed.text
    );
    let metadata = json!({"issuer": stage.url, "authorization_endpoint": at("/authorize"),
        "token_endpoint": at("/token")});
    stage.json("/.well-known/oauth-authorization-server", metadata);
    let sent = ada.submit(&failed, &CONNECT).await;
    let denied = returning(&gateway, "hub", &sent).replace("code=c", "error=access_denied");
    let page = ada.open(&denied).await;
    page.assert_guarded();
    assert!(
        page.text.contains("The Hub did not allow it") && page.text.contains(BUTTON),
        "{}",
        page.text
    );
    let sent = ada.submit(&page, &CONNECT).await;
    stage.set("/token", Answer::Json(503, json!({})));
    let page = ada.open(&returning(&gateway, "hub", &sent)).await;
    assert!(
        page.text.contains("The Hub") && page.text.contains("role=\"alert\""),
        "{}",
        page.text
    );
    // Without an account, too; the error of the server tells of it.
    let done = ada.submit(&page, &ALLOW).await;
    assert!(done.answer()["code"].starts_with("lgc_"));
    assert_eq!(refused(&gateway, &people.ada, "s").await["code"], -31005);
    // A consent that is remembered shows no page.
    let again = ada.open(&asking(&gateway, &[])).await;
    assert!(again.answer().contains_key("code"));
}

/// A person whom a provider identifies is known only after the consent page.
#[tokio::test(flavor = "multi_thread")]
async fn a_person_of_a_provider_connects_after_the_log_in() {
    let (mut provider, stage) = (Provider::start().await, Stage::start().await);
    let mut people = People::with(json!({"hub": scripted(&stage)}));
    people.tenant["providers"] = json!({"acme": openid(&provider.issuer)});
    people.tenant["default_server"] = json!("s");
    let gateway = gateway(outbound(json!({})), people.tenant.clone()).await;
    let callback = format!("{}/t/a/oauth/callback/acme", gateway.origin());
    provider.callback(&callback).await;
    stage.json("/token", tokens("canary-1", 3600, "r1"));
    let mut browser = Browser::new();
    let page = chosen(&gateway, &mut browser, "acme").await;
    assert!(!page.text.contains(BUTTON), "{}", page.text);
    let unknown = browser.submit_anyway(&page, &CONNECT).await;
    assert_eq!(unknown.status, StatusCode::SEE_OTHER, "nobody is logged in");
    let sent = browser.submit(&page, &ALLOW).await;
    let back = browser.follow(sent, &provider.issuer).await;
    let page = browser.follow(back, gateway.origin()).await;
    assert!(
        page.text.contains(BUTTON) && page.text.contains("Signed in as <bdi>ada</bdi>"),
        "{}",
        page.text
    );
    let sent = browser.submit(&page, &CONNECT).await;
    let back = browser.open(&returning(&gateway, "hub", &sent)).await;
    let page = browser.follow(back, gateway.origin()).await;
    assert!(
        page.text.contains("<bdi>hub</bdi> is connected"),
        "{}",
        page.text
    );
    let done = browser.submit(&page, &ALLOW).await;
    assert!(done.answer()["code"].starts_with("lgc_"));
    // What has been allowed with the page in view is not asked again, although nothing was connected.
    provider.person("eve").await;
    let mut pages = Vec::new();
    for _ in 0..2 {
        let mut browser = Browser::new();
        let page = chosen(&gateway, &mut browser, "acme").await;
        let sent = browser.submit(&page, &ALLOW).await;
        let back = browser.follow(sent, &provider.issuer).await;
        let page = browser.follow(back, gateway.origin()).await;
        if page.text.contains(BUTTON) {
            browser.submit(&page, &ALLOW).await;
        }
        pages.push(page);
    }
    assert!(pages[0].text.contains(BUTTON), "{}", pages[0].text);
    assert!(pages[1].answer()["code"].starts_with("lgc_"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_leaves_from_one_replica_and_returns_to_another() {
    let stage = Stage::start().await;
    let people = People::with(json!({"hub": scripted(&stage)}));
    let mut tenant = people.tenant.clone();
    tenant["auth"] = json!({"mode": "builtin"});
    tenant["users"] = json!({"ada": {"password": "correct horse"}});
    tenant["clients"] = json!({"app": {"title": "The App", "redirect_uris": [super::pages::BACK]}});
    let pair = Pair::of(outbound(json!({})), json!({"a": tenant})).await;
    let [first, second] = pair.both();
    stage.json("/token", tokens("canary-1", 3600, "r1"));
    let mut browser = Browser::new();
    let url = request(first, &[("resource", "https://gw.test/t/a/s/mcp")]);
    let login = browser.open(&url).await;
    let sent = browser.submit(&login, &ADA).await;
    let at =
        |replica: &Served, shown: &Shown| gateway_url(replica, shown.location().unwrap().as_str());
    let page = browser.open(&at(first, &sent)).await;
    let sent = browser.submit(&page, &CONNECT).await;
    browser.know_as(first.origin(), second.origin());
    let back = browser.open(&returning(second, "hub", &sent)).await;
    assert_eq!(back.status, StatusCode::FOUND, "{}", back.text);
    let page = browser.open(&at(second, &back)).await;
    assert!(
        page.text.contains("<bdi>hub</bdi> is connected"),
        "{}",
        page.text
    );
    assert_eq!(
        browser.open(&returning(first, "hub", &sent)).await.status,
        StatusCode::BAD_REQUEST,
        "it counts once at both"
    );
}

/// Nobody has the tokens of a connection that is not kept, so they end where they are from.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_for_a_person_who_is_gone_end_at_the_upstream() {
    let stage = Stage::start().await;
    let mut hub = scripted(&stage);
    hub["revocation_endpoint"] = json!(format!("{}/revoke", stage.url));
    let people = People::with(json!({"hub": hub}));
    let gateway = gateway(outbound(json!({})), people.tenant.clone()).await;
    stage.set("/token", Answer::Held);
    let mut browser = Browser::new();
    let page = consent(&gateway, &mut browser).await;
    let sent = browser.submit(&page, &CONNECT).await;
    let url = returning(&gateway, "hub", &sent);
    let removed = async {
        until("the request for tokens", async || {
            !stage.asked("POST /token").is_empty()
        })
        .await;
        let operator = gateway.administrator();
        let ada = administered(&gateway, &operator, Method::DELETE, "a/users/ada").await;
        assert_eq!(ada.0, StatusCode::NO_CONTENT, "{}", ada.1);
        stage.json("/token", tokens("canary-1", 3600, "canary-r1"));
    };
    let (back, ()) = tokio::join!(browser.open(&url), removed);
    assert_eq!(back.status, StatusCode::BAD_REQUEST, "{}", back.text);
    assert!(back.text.contains("has expired"), "{}", back.text);
    let revoked = stage.asked("POST /revoke");
    assert!(
        revoked.len() == 1 && revoked[0].contains("token=canary-r1"),
        "{revoked:?}"
    );
}

/// An operation on connections of tenant `a`, or of `of`.
async fn administered(
    gateway: &Served,
    by: &str,
    method: Method,
    path: &str,
) -> (StatusCode, Value) {
    let url = format!("{}/api/v1/tenants/{path}", gateway.origin());
    let answer = send(method, &url, by, None).await;
    (answer.status, answer.body)
}

/// What `lockgate connection` prints for an operator.
async fn told(gateway: &Served, args: &[&str]) -> String {
    let url = gateway.origin().to_owned();
    let mut command = stranger(&[&["connection"], args, &["--url", &url]].concat());
    command.env("LOCKGATE_KEY", gateway.administrator());
    let said = Said::of(within("a command", command.output()).await.unwrap());
    assert_eq!(said.code, 0, "{args:?}: {}", said.err);
    said.out
}

#[expect(clippy::too_many_lines, reason = "one story, told in order")]
async fn administrators_list_and_end_connections(config: Value) {
    let stage = Stage::start().await;
    let mut hub = scripted(&stage);
    hub["revocation_endpoint"] = json!(format!("{}/revoke", stage.url));
    let mut people = People::with(json!({"hub": hub}));
    let [own, foreign] = [(); 2].map(|()| crate::auth::api_keys::key());
    people.tenant["api_keys"]["admin"] =
        json!({"hash": own.1, "subject": "boss", "scopes": ["admin"], "servers": ["*"]});
    let gateway = gateway(outbound(config), people.tenant.clone()).await;
    let operator = gateway.administrator();
    connected_to(&stage, &gateway, tokens("canary-1", 3600, "canary-r1")).await;
    let mut eve = Browser::new();
    let page = account(&gateway, &mut eve, &EVE).await;
    stage.json(
        "/token",
        json!({"access_token": "canary-2", "token_type": "bearer", "expires_in": 1}),
    );
    let (action, form) = page.form("do");
    let fields = [
        ("form", form.as_str()),
        ("do", "connect"),
        ("upstream", "hub"),
    ];
    let sent = eve
        .post(page.url.join(&action).unwrap().as_str(), &fields)
        .await;
    eve.open(&returning(&gateway, "hub", &sent)).await;
    let ada = opened(&gateway, &people.ada, "s").await;
    assert_eq!(token(&ada).await, "canary-1");
    for by in [&operator, &own.0] {
        let (status, listed) = administered(&gateway, by, Method::GET, "a/connections").await;
        assert_eq!(status, StatusCode::OK, "{listed}");
        let items = listed["items"].as_array().unwrap();
        let subjects: Vec<_> = items.iter().map(|item| &item["subject"]).collect();
        assert_eq!(subjects, ["ada", "eve"], "{listed}");
        assert_eq!(
            (&items[0]["upstream"], &items[0]["state"]),
            (&json!("hub"), &json!("connected"))
        );
        assert_eq!(items[0]["connected"], items[0]["refreshed"]);
        assert!(
            items[0]["expires"].is_string() && !listed.to_string().contains("canary"),
            "{listed}"
        );
    }
    // Its access token has expired, and nothing can refresh it.
    until("an expired connection", async || {
        let (_, listed) = administered(
            &gateway,
            &operator,
            Method::GET,
            "a/connections?subject=eve",
        )
        .await;
        listed["items"][0]["state"] == "expired"
    })
    .await;
    let (_, first) = administered(&gateway, &operator, Method::GET, "a/connections?limit=1").await;
    let next = first["next"].as_str().unwrap();
    let (_, last) = administered(
        &gateway,
        &operator,
        Method::GET,
        &format!("a/connections?after={next}"),
    )
    .await;
    assert_eq!(
        (&last["items"][0]["subject"], &last["next"]),
        (&json!("eve"), &Value::Null),
        "{last}"
    );
    let (_, none) = administered(
        &gateway,
        &operator,
        Method::GET,
        "a/connections?upstream=none",
    )
    .await;
    assert_eq!(none["items"], json!([]));
    // Administrators of another tenant, keys without the scope, and mistakes.
    let item = "a/connections/hub?subject=ada";
    for (by, method, path, wanted) in [
        (
            &foreign.0,
            Method::GET,
            "a/connections",
            StatusCode::UNAUTHORIZED,
        ),
        (
            &people.ada,
            Method::GET,
            "a/connections",
            StatusCode::FORBIDDEN,
        ),
        (&people.ada, Method::DELETE, item, StatusCode::FORBIDDEN),
        (&own.0, Method::GET, "b/connections", StatusCode::NOT_FOUND),
        (
            &own.0,
            Method::DELETE,
            "b/connections/hub?subject=ada",
            StatusCode::NOT_FOUND,
        ),
        (
            &own.0,
            Method::DELETE,
            "a/connections/hub",
            StatusCode::UNPROCESSABLE_ENTITY,
        ),
        (
            &own.0,
            Method::DELETE,
            "a/connections/none?subject=ada",
            StatusCode::NOT_FOUND,
        ),
        (
            &own.0,
            Method::DELETE,
            "a/connections/hub?subject=bob",
            StatusCode::NOT_FOUND,
        ),
    ] {
        let (status, body) = administered(&gateway, by, method.clone(), path).await;
        assert_eq!(status, wanted, "{method} {path}: {body}");
    }
    let listed = told(&gateway, &["list", "a", "--subject", "eve"]).await;
    assert!(
        listed.contains("SUBJECT") && listed.contains("expired") && !listed.contains("ada"),
        "{listed}"
    );
    assert_eq!(told(&gateway, &["remove", "a", "hub", "eve"]).await, "");
    let (_, left) = administered(&gateway, &operator, Method::GET, "a/connections").await;
    assert_eq!(left["items"].as_array().unwrap().len(), 1, "{left}");
    let revoked = stage.asked("POST /revoke");
    assert!(
        revoked.len() == 1 && revoked[0].contains("token=canary-2"),
        "it has no refresh token: {revoked:?}"
    );
    assert_eq!(token(&ada).await, "canary-1");
    let (status, _) = administered(&gateway, &own.0, Method::DELETE, item).await;
    assert_eq!(status, StatusCode::NO_CONTENT);
    let revoked = stage.asked("POST /revoke");
    assert!(
        revoked.len() == 2 && revoked[1].contains("token=canary-r1"),
        "{revoked:?}"
    );
    until("the end of the child", async || {
        ada.call("env", json!({})).await["error"]["code"] == -31005
    })
    .await;
    let (status, _) = administered(&gateway, &own.0, Method::DELETE, item).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert_eq!(
        audited(&gateway).await,
        [
            "upstream.disconnected",
            "upstream.disconnected",
            "upstream.connected",
            "upstream.connected"
        ]
    );
    let all = ["canary-1", "canary-2", "canary-r1"].map(str::to_owned);
    are_unseen(gateway, &all, String::new()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn administrators_list_and_end_connections_on_sqlite() {
    administrators_list_and_end_connections(json!({})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn administrators_list_and_end_connections_on_postgres() {
    let postgres = Postgres::start();
    administrators_list_and_end_connections(json!({"sql": {"url": postgres.url()}})).await;
}

//! Log-in and consent pages: forms, remembered decisions, refused requests.

use reqwest::{Method, StatusCode, header::LOCATION};
use serde_json::{Value, json};

use crate::support::{
    browser::{Browser, Shown},
    harness::{child, client, json_of, within},
    oauth_client::{post, send},
    postgres::Postgres,
    served::Served,
};

/// The code verifier of RFC 7636, appendix B.
pub(crate) const VERIFIER: &str = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
const CHALLENGE: &str = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM";
/// The redirect URI of the declared client.
pub(crate) const BACK: &str = "https://app.test/cb?own=1";
/// The log-in of the user ada.
pub(crate) const ADA: [(&str, &str); 2] = [("username", "ada"), ("password", "correct horse")];
const ALLOW: [(&str, &str); 1] = [("decision", "allow")];

/// Two equal tenants with users, clients and servers; `more` is merged into tenant `a`.
pub(crate) async fn gateway(config: Value, more: Value) -> Served {
    let server = |policy: Value| json!({"command": child(), "policy": policy});
    let user = |groups: &[&str]| json!({"password": "correct horse", "groups": groups});
    let tenant = || {
        let mut bob = user(&[]);
        bob["disabled"] = json!(true);
        json!({
            "auth": {"mode": "builtin", "scopes": ["files:read"]},
            "default_server": "x",
            "users": {"ada": user(&["eng"]), "eve": user(&[]), "bob": bob},
            "clients": {
                "app": {"title": "The App", "redirect_uris": [BACK]},
                "two": {"title": "Two", "redirect_uris": ["https://two.test/a", "https://two.test/b"]},
                "native": {"title": "Native", "redirect_uris": ["http://127.0.0.1/cb"]},
            },
            "servers": {
                "x": server(json!({"scopes": {"*": ["files:write"], "d*": ["admin"]}})),
                "y": server(json!({})),
                "closed": {"command": child(), "grants": {"users": ["eve"]}},
            },
        })
    };
    let mut tenants = json!({"a": tenant(), "b": tenant()});
    merge(&mut tenants["a"], more);
    Served::start(config, tenants).await
}

fn merge(into: &mut Value, more: Value) {
    match more {
        Value::Object(members) if into.is_object() => {
            for (name, value) in members {
                merge(&mut into[name], value);
            }
        }
        more => *into = more,
    }
}

/// An authorization request of the declared client. `changed` replaces parameters, and removes
/// those with an empty value.
pub(crate) fn request(gateway: &Served, changed: &[(&str, &str)]) -> String {
    let url = format!("{}/t/a/oauth/authorize", gateway.origin());
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    for (name, value) in parameters(changed) {
        query.append_pair(&name, &value);
    }
    format!("{url}?{}", query.finish())
}

fn parameters(changed: &[(&str, &str)]) -> Vec<(String, String)> {
    let own = [
        ("client_id", "app"),
        ("redirect_uri", BACK),
        ("response_type", "code"),
        ("code_challenge", CHALLENGE),
        ("code_challenge_method", "S256"),
        ("state", "s"),
    ];
    let kept = own
        .iter()
        .filter(|(name, _)| changed.iter().all(|(new, _)| new != name));
    let all = kept.chain(changed).filter(|(_, value)| !value.is_empty());
    all.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

/// Opens a request, logs ada in, and returns the next page.
pub(crate) async fn consent_page(gateway: &Served, browser: &mut Browser, url: &str) -> Shown {
    let login = browser.open(url).await;
    assert_eq!(login.status, StatusCode::OK, "{}", login.text);
    let sent = browser.submit(&login, &ADA).await;
    assert_eq!(sent.status, StatusCode::SEE_OTHER, "{}", sent.text);
    browser.follow(sent, gateway.origin()).await
}

/// Gets a code for ada, through the log-in page and the consent page.
async fn code(gateway: &Served, browser: &mut Browser, url: &str) -> String {
    let consent = consent_page(gateway, browser, url).await;
    let done = browser.submit(&consent, &ALLOW).await;
    assert_eq!(done.status, StatusCode::SEE_OTHER, "{}", done.text);
    done.answer()["code"].clone()
}

/// The answer of the token endpoint to a code.
pub(crate) async fn redeem(gateway: &Served, code: &str, more: &[(&str, &str)]) -> Value {
    let own = [
        ("grant_type", "authorization_code"),
        ("code", code),
        ("client_id", "app"),
        ("redirect_uri", BACK),
        ("code_verifier", VERIFIER),
    ];
    let body = url::form_urlencoded::Serializer::new(String::new())
        .extend_pairs(own.iter().chain(more))
        .finish();
    let asked = client()
        .post(format!("{}/t/a/oauth/token", gateway.origin()))
        .header("Content-Type", "application/x-www-form-urlencoded")
        .body(body);
    json_of(within("tokens", asked.send()).await.unwrap()).await
}

/// The claims of an access token.
pub(crate) fn claims(tokens: &Value) -> Value {
    use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
    let token = tokens["access_token"].as_str();
    let token = token.unwrap_or_else(|| panic!("no token: {tokens}"));
    let part = token.split('.').nth(1).unwrap();
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).unwrap()).unwrap()
}

async fn plain() -> Served {
    gateway(json!({}), json!({})).await
}

/// A whole log-in and consent, from the request to the code.
async fn a_person_lets_a_client_in(config: Value) {
    let gateway = gateway(config, json!({})).await;
    let mut browser = Browser::new();
    let login = browser.open(&request(&gateway, &[])).await;
    login.assert_guarded();
    assert!(login.text.contains("The App") && login.text.contains("<code>x</code>"));
    let before = browser.cookie("lockgate-a").unwrap();
    let cookie = login.header("set-cookie").to_owned();
    assert!(
        cookie.ends_with("HttpOnly; SameSite=Lax") && cookie.contains("; Path=/;"),
        "{cookie}"
    );
    let sent = browser.submit(&login, &ADA).await;
    assert_eq!(sent.status, StatusCode::SEE_OTHER);
    // A cookie from before the log-in is invalid afterwards.
    assert_ne!(browser.cookie("lockgate-a").unwrap(), before);
    let consent = browser.follow(sent, gateway.origin()).await;
    consent.assert_guarded();
    let resource = format!("{}/t/a/x/mcp", gateway.origin());
    for shown in [
        "The App",
        "app.test",
        &resource,
        "files:read",
        "files:write",
        "ada",
    ] {
        assert!(consent.text.contains(shown), "{shown}: {}", consent.text);
    }
    assert!(!consent.text.contains("not verified") && !consent.text.contains("on this computer"));
    // A browser would apply it to what the client's callback redirects to.
    for page in [&login, &consent] {
        let policy = page.header("content-security-policy");
        assert!(!policy.contains("form-action"), "{policy}");
    }
    let done = browser.submit(&consent, &ALLOW).await;
    assert_eq!(done.status, StatusCode::SEE_OTHER);
    assert!(
        done.header("location")
            .starts_with(&format!("{BACK}&code=lgc_"))
    );
    let answer = done.answer();
    assert_eq!((&*answer["state"], &*answer["own"]), ("s", "1"));
    assert_eq!(answer["iss"], format!("{}/t/a", gateway.origin()));
    let tokens = redeem(&gateway, &answer["code"], &[]).await;
    let claims = claims(&tokens);
    assert_eq!(
        (&claims["sub"], &claims["aud"]),
        (&json!("ada"), &json!(resource))
    );
    assert_eq!(claims["scope"], "files:read files:write");
    assert_eq!(claims["groups"], json!(["eng"]));
    // Consent that was given is not asked for again.
    let again = browser.open(&request(&gateway, &[])).await;
    assert_eq!(again.status, StatusCode::FOUND);
    assert!(again.answer()["code"].starts_with("lgc_"));
}

#[tokio::test]
async fn a_person_lets_a_client_in_on_sqlite() {
    a_person_lets_a_client_in(json!({})).await;
}

#[tokio::test]
async fn a_person_lets_a_client_in_on_postgres() {
    let postgres = Postgres::start();
    a_person_lets_a_client_in(json!({"sql": {"url": postgres.url()}})).await;
}

#[tokio::test]
async fn unknown_clients_and_redirect_uris_get_a_page() {
    let gateway = plain().await;
    let mut browser = Browser::new();
    for changed in [
        &[("client_id", "")][..],
        &[("client_id", "nobody")],
        &[("client_id", "c_AAAAAAAAAAAAAAAAAAAAAA")],
        &[("client_id", "two")],
        &[("client_id", "two"), ("redirect_uri", "")],
        &[("client_id", "app"), ("client_id", "app")],
        &[("redirect_uri", BACK), ("redirect_uri", BACK)],
        &[("redirect_uri", "https://app.test/cb")],
        &[("redirect_uri", "https://app.test/cb?own=1&x")],
        &[("redirect_uri", "https://app.test/CB?own=1")],
        &[("redirect_uri", "https://app.test:443/cb?own=1")],
        &[("redirect_uri", "https://app.test/cb?own=1#x")],
        &[("redirect_uri", "https://app.test\\@evil.test/cb?own=1")],
        &[("redirect_uri", "https://evil.test/cb?own=1")],
        &[("redirect_uri", "javascript:alert(1)")],
        &[
            ("client_id", "native"),
            ("redirect_uri", "http://127.0.0.1:9/other"),
        ],
        &[
            ("client_id", "native"),
            ("redirect_uri", "http://localhost:9/cb"),
        ],
    ] {
        let shown = browser.open(&request(&gateway, changed)).await;
        assert_eq!(shown.status, StatusCode::BAD_REQUEST, "{changed:?}");
        assert!(!shown.headers.contains_key(LOCATION), "{changed:?}");
        shown.assert_guarded();
        assert!(shown.text.contains("What to do"));
    }
    for (changed, what) in [
        (("state", "%ff"), "state=%25ff"),
        (("state", "s"), "state=s"),
    ] {
        let url = request(&gateway, &[changed]);
        assert!(url.contains(what));
        let shown = browser.open(&url.replace("%25ff", "%ff")).await;
        let is_text = what == "state=s";
        assert_eq!(
            shown.status.is_success(),
            is_text,
            "what cannot be echoed is not taken"
        );
    }
    // A native app has another port each time.
    let changed = [
        ("client_id", "native"),
        ("redirect_uri", "http://127.0.0.1:4711/cb"),
    ];
    let shown = browser.open(&request(&gateway, &changed)).await;
    assert_eq!(shown.status, StatusCode::OK);
}

/// Errors of response type, PKCE, `resource` (RFC 8707) and prompts, each with state and issuer.
#[tokio::test]
async fn other_errors_are_redirected_to_the_client() {
    let gateway = plain().await;
    let mut browser = Browser::new();
    let resource = format!("{}/t/a/x/mcp", gateway.origin());
    let foreign = format!("{}/t/b/x/mcp", gateway.origin());
    for (changed, error) in [
        (
            &[("response_type", "token")][..],
            "unsupported_response_type",
        ),
        (&[("response_type", "")], "invalid_request"),
        (&[("code_challenge", "")], "invalid_request"),
        (&[("code_challenge_method", "plain")], "invalid_request"),
        (&[("code_challenge_method", "")], "invalid_request"),
        (&[("code_challenge", "short")], "invalid_request"),
        (&[("resource", "x")], "invalid_target"),
        (&[("resource", foreign.as_str())], "invalid_target"),
        (
            &[("resource", &resource), ("resource", &resource)],
            "invalid_target",
        ),
        (&[("scope", "a\"b")], "invalid_scope"),
        (&[("scope", "a"), ("scope", "a")], "invalid_request"),
        (&[("request", "x")], "request_not_supported"),
        (
            &[("request_uri", "https://evil.test/")],
            "request_uri_not_supported",
        ),
        (&[("prompt", "none")], "login_required"),
        (&[("prompt", "none login")], "invalid_request"),
    ] {
        let shown = browser.open(&request(&gateway, changed)).await;
        assert_eq!(
            shown.status,
            StatusCode::FOUND,
            "{changed:?} {}",
            shown.text
        );
        assert!(shown.header("location").starts_with(BACK), "{changed:?}");
        let answer = shown.answer();
        assert_eq!(answer["error"], error, "{changed:?}");
        assert_eq!(answer["state"], "s");
        assert_eq!(answer["iss"], format!("{}/t/a", gateway.origin()));
        assert!(!answer.contains_key("code") && answer.contains_key("error_description"));
        assert_eq!(shown.header("cache-control"), "no-store");
    }
    // A request by a form gets 303.
    let url = format!("{}/t/a/oauth/authorize", gateway.origin());
    let sent = |changed: &'static [(&str, &str)]| parameters(changed);
    for (changed, status) in [
        (&[("response_type", "token")][..], StatusCode::SEE_OTHER),
        (&[], StatusCode::OK),
        (&[("client_id", "nobody")], StatusCode::BAD_REQUEST),
    ] {
        let fields = sent(changed);
        let fields: Vec<_> = fields
            .iter()
            .map(|(name, value)| (&**name, &**value))
            .collect();
        let shown = browser.post(&url, &fields).await;
        assert_eq!(shown.status, status, "{changed:?} {}", shown.text);
    }
}

/// Anybody can register a client, and then send people to its URI by a request that is wrong.
#[tokio::test]
async fn an_error_sends_nobody_to_a_client_that_is_not_trusted() {
    let gateway = plain().await;
    let registered = Registered::new(&gateway, "Evil").await;
    let ask = |changed: (&str, &str)| request(&gateway, &[("client_id", &registered.id), changed]);
    let mut browser = Browser::new();
    let wrong = [
        (("response_type", "token"), "unsupported_response_type"),
        (("scope", "a\"b"), "invalid_scope"),
        (("resource", "x"), "invalid_target"),
    ];
    let silent = (("prompt", "none"), "login_required");
    for (changed, error) in wrong.into_iter().chain([silent]) {
        let shown = browser.open(&ask(changed)).await;
        assert_eq!(shown.status, StatusCode::BAD_REQUEST, "{changed:?}");
        assert!(!shown.headers.contains_key(LOCATION), "{changed:?}");
        assert!(shown.text.contains(error), "{changed:?}: {}", shown.text);
        shown.assert_guarded();
    }
    consent_page(&gateway, &mut browser, &ask(("state", "s"))).await;
    let silent = (("prompt", "none"), "consent_required");
    for (changed, error) in wrong.into_iter().chain([silent]) {
        let shown = browser.open(&ask(changed)).await;
        assert_eq!(shown.answer()["error"], error, "{changed:?}");
    }
}

#[tokio::test]
async fn a_state_comes_back_as_it_was() {
    let gateway = plain().await;
    let mut browser = Browser::new();
    let long = "sté\0\r\nLocation: https://evil.test/ &code=x#+%".repeat(44);
    let state = long.as_str();
    assert!(state.len() > 1900);
    let shown = browser
        .open(&request(&gateway, &[("state", state), ("prompt", "none")]))
        .await;
    assert_eq!(shown.answer()["state"], state);
    assert!(
        shown
            .location()
            .unwrap()
            .as_str()
            .starts_with("https://app.test/cb?own=1&error=")
    );
    let consent = consent_page(
        &gateway,
        &mut browser,
        &request(&gateway, &[("state", state)]),
    )
    .await;
    let done = browser.submit(&consent, &ALLOW).await;
    assert_eq!(done.answer()["state"], state);
    // The answer to a request without a state has none.
    let shown = browser.open(&request(&gateway, &[("state", "")])).await;
    assert!(!shown.answer().contains_key("state") && shown.answer().contains_key("code"));
    let huge = request(&gateway, &[("state", &"x".repeat(60 << 10))]);
    assert_eq!(browser.open(&huge).await.status, StatusCode::URI_TOO_LONG);
}

#[tokio::test]
async fn a_person_says_no() {
    let gateway = plain().await;
    let mut browser = Browser::new();
    let consent = consent_page(&gateway, &mut browser, &request(&gateway, &[])).await;
    let done = browser.submit(&consent, &[("decision", "deny")]).await;
    assert_eq!(done.status, StatusCode::SEE_OTHER);
    let answer = done.answer();
    assert_eq!(
        (&*answer["error"], &*answer["state"]),
        ("access_denied", "s")
    );
    assert_eq!(answer["iss"], format!("{}/t/a", gateway.origin()));
    // Nothing was remembered.
    let again = browser.open(&request(&gateway, &[])).await;
    assert!(again.text.contains("name=\"decision\""), "{}", again.text);
}

/// Consent is remembered per person, per client, and per shown detail.
#[tokio::test]
async fn a_changed_request_asks_for_consent_again() {
    let gateway = plain().await;
    let mut browser = Browser::new();
    let two = [("client_id", "two"), ("redirect_uri", "https://two.test/a")];
    code(&gateway, &mut browser, &request(&gateway, &two)).await;
    let is_asked = async |browser: &mut Browser, more: &[(&str, &str)]| {
        let mut all = two.to_vec();
        all.retain(|(name, _)| more.iter().all(|(new, _)| new != name));
        let shown = browser
            .open(&request(&gateway, &[&all, more].concat()))
            .await;
        shown.text.contains("name=\"decision\"")
    };
    let sse = format!("{}/t/a/x/sse", gateway.origin());
    let other = format!("{}/t/a/y/mcp", gateway.origin());
    for (more, wanted) in [
        (&[][..], false),
        (&[("state", "another"), ("nonce", "x")], false),
        (&[("prompt", "consent")], true),
        (&[("redirect_uri", "https://two.test/b")], true),
        (&[("scope", "files:read")], true),
        (&[("scope", "files:write files:read")], false),
        (&[("scope", "files:write files:read admin")], true),
        (&[("resource", &*sse)], true),
        (&[("resource", &*other)], true),
        (&[("client_id", "app"), ("redirect_uri", BACK)], true),
    ] {
        assert_eq!(is_asked(&mut browser, more).await, wanted, "{more:?}");
    }
    // Another person in the same browser.
    let page = browser
        .open(&request(
            &gateway,
            &[&two[..], &[("prompt", "consent")]].concat(),
        ))
        .await;
    let switched = browser.submit(&page, &[("decision", "switch")]).await;
    assert_eq!(switched.status, StatusCode::SEE_OTHER);
    let login = browser.follow(switched, gateway.origin()).await;
    let eve = [("username", "eve"), ("password", "correct horse")];
    let sent = browser.submit(&login, &eve).await;
    let shown = browser.follow(sent, gateway.origin()).await;
    assert!(
        shown.text.contains("Signed in as <bdi>eve</bdi>"),
        "{}",
        shown.text
    );
    assert!(is_asked(&mut browser, &[]).await);
}

/// Any program on the machine can listen on a loopback port or take a scheme, and then name a public client.
#[tokio::test]
async fn a_client_that_can_be_imitated_is_asked_about_each_time() {
    let cursor = "cursor://anysphere/cb";
    let secret = "a secret of 32 bytes and a few more";
    let clients = json!({
        "cursor": {"redirect_uris": [cursor]},
        "sealed": {"redirect_uris": ["http://127.0.0.1/cb"], "secret": secret},
    });
    let gateway = gateway(json!({}), json!({"clients": clients})).await;
    let back = "http://127.0.0.1:4711/cb";
    for (id, back, is_asked) in [
        ("native", back, true),
        ("cursor", cursor, true),
        ("sealed", back, false),
    ] {
        let of = |more: &[(&str, &str)]| {
            let own = [("client_id", id), ("redirect_uri", back)];
            request(&gateway, &[&own, more].concat())
        };
        let mut browser = Browser::new();
        code(&gateway, &mut browser, &of(&[])).await;
        let again = browser.open(&of(&[])).await;
        assert_eq!(again.text.contains("name=\"decision\""), is_asked, "{id}");
        let silent = browser.open(&of(&[("prompt", "none")])).await.answer();
        let error = silent.get("error").map(String::as_str);
        assert_eq!(error, is_asked.then_some("consent_required"), "{id}");
    }
}

#[tokio::test]
async fn prompts_and_ages_are_obeyed() {
    let gateway = plain().await;
    let mut browser = Browser::new();
    let url = request(&gateway, &[]);
    code(&gateway, &mut browser, &url).await;
    let none = request(&gateway, &[("prompt", "none")]);
    assert!(browser.open(&none).await.answer()["code"].starts_with("lgc_"));
    let unseen = request(&gateway, &[("prompt", "none"), ("scope", "files:read")]);
    assert_eq!(
        browser.open(&unseen).await.answer()["error"],
        "consent_required"
    );
    for (name, value) in [("prompt", "login"), ("max_age", "0")] {
        if name == "max_age" {
            // A second has passed since the log-in.
            tokio::time::sleep(std::time::Duration::from_millis(2100)).await;
        }
        let url = request(&gateway, &[(name, value)]);
        let login = browser.open(&url).await;
        assert!(
            login.text.contains("name=\"password\""),
            "{name}: {}",
            login.text
        );
        let sent = browser.submit(&login, &ADA).await;
        // The log-in is asked for only once.
        let done = browser.follow(sent, gateway.origin()).await;
        assert!(done.answer()["code"].starts_with("lgc_"), "{name}");
    }
    let old = request(&gateway, &[("prompt", "none"), ("max_age", "3600")]);
    assert!(browser.open(&old).await.answer().contains_key("code"));
}

/// CSRF, changed fields, other browsers, other forms, other tenants, old forms.
#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one story, told as a table")]
async fn forms_are_bound_to_their_browser() {
    let gateway = gateway(json!({"oauth": {"flow": "3s"}}), json!({})).await;
    let (mut ada, mut eve) = (Browser::new(), Browser::new());
    let login = ada.open(&request(&gateway, &[])).await;
    let (_, login_form) = login.form("username");
    let consent = consent_page(&gateway, &mut ada, &request(&gateway, &[])).await;
    let (_, form) = consent.form("decision");
    let url = |tenant: &str, end: &str| format!("{}/t/{tenant}/oauth/{end}", gateway.origin());
    eve.open(&request(&gateway, &[])).await;
    let refused = async |browser: &mut Browser, url: &str, fields: &[(&str, &str)]| {
        let shown = browser.post(url, fields).await;
        assert_eq!(
            shown.status,
            StatusCode::BAD_REQUEST,
            "{fields:?} {}",
            shown.text
        );
        assert!(!shown.headers.contains_key(LOCATION));
        shown.assert_guarded();
    };
    let own = url("a", "consent");
    let allow = ("decision", "allow");
    // Of another browser it leads to its own log-in, as a link would.
    let elsewhere = async |browser: &mut Browser, url: &str, fields: &[(&str, &str)]| {
        let shown = browser.post(url, fields).await;
        assert_eq!(shown.status, StatusCode::SEE_OTHER, "{}", shown.text);
        let again = shown.location().unwrap();
        assert!(again.as_str().contains("/t/a/oauth/authorize?"), "{again}");
        assert!(again.as_str().ends_with("&prompt=consent"), "{again}");
        browser.open(again.as_str()).await
    };
    let again = elsewhere(&mut eve, &own, &[("form", &form), allow]).await;
    assert!(again.text.contains("name=\"password\""), "{}", again.text);
    refused(&mut Browser::new(), &own, &[("form", &form), allow]).await;
    refused(&mut ada, &own, &[allow]).await;
    refused(&mut ada, &own, &[("form", ""), allow]).await;
    refused(&mut ada, &own, &[("form", "AAAA"), allow]).await;
    for at in [0, form.len() / 2, form.len() - 2] {
        let mut changed = form.clone().into_bytes();
        changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
        let changed = String::from_utf8(changed).unwrap();
        refused(&mut ada, &own, &[("form", &changed), allow]).await;
    }
    refused(&mut ada, &own, &[("form", &login_form), allow]).await;
    refused(&mut ada, &url("b", "consent"), &[("form", &form), allow]).await;
    refused(
        &mut ada,
        &url("a", "login"),
        &[("form", &form), ADA[0], ADA[1]],
    )
    .await;
    // The cookie changed with the log-in.
    let eves = [("form", login_form.as_str()), ("username", "eve"), ADA[1]];
    let again = elsewhere(&mut ada, &url("a", "login"), &eves).await;
    assert!(
        again.text.contains("Signed in as <bdi>ada</bdi>"),
        "{}",
        again.text
    );
    refused(
        &mut ada,
        &own,
        &[("form", &form), allow, ("decision", "deny")],
    )
    .await;
    refused(&mut ada, &own, &[("form", &form), ("decision", "maybe")]).await;
    refused(&mut ada, &own, &[("form", &form)]).await;
    refused(&mut ada, &format!("{own}?form={form}"), &[allow]).await;
    let mut thief = Browser::new();
    thief.steal(&ada);
    let shown = thief.post(&own, &[("form", &form), allow]).await;
    assert_eq!(
        shown.status,
        StatusCode::SEE_OTHER,
        "with the cookie it is the same browser"
    );
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    refused(&mut ada, &own, &[("form", &form), allow]).await;
}

/// A client with several servers opens a tab for each, before anybody is logged in.
#[tokio::test]
async fn several_tabs_log_in_one_after_the_other() {
    let gateway = plain().await;
    let (mut browser, mut tab) = (Browser::new(), Browser::new());
    // Opened at once, each answer sets a cookie, and the last one counts.
    let first = browser.open(&request(&gateway, &[])).await;
    let second = tab.open(&request(&gateway, &[])).await;
    browser.steal(&tab);
    let third = browser.open(&request(&gateway, &[])).await;
    let again = browser.submit(&first, &ADA).await;
    assert_eq!(again.status, StatusCode::SEE_OTHER, "{}", again.text);
    let first = browser.follow(again, gateway.origin()).await;
    let sent = browser.submit(&first, &ADA).await;
    let first = browser.follow(sent, gateway.origin()).await;
    // The log-in of the first changes the cookie of the others.
    let mut pages = vec![first];
    for form in [second, third] {
        let sent = browser.submit(&form, &ADA).await;
        let next = browser.follow(sent, gateway.origin()).await;
        assert!(next.text.contains("Signed in as"), "{}", next.text);
        pages.push(next);
    }
    for page in pages {
        let done = browser.submit(&page, &ALLOW).await;
        assert!(done.answer()["code"].starts_with("lgc_"), "{}", done.text);
    }
}

/// Foreign pages cannot submit the forms.
#[tokio::test]
async fn forms_are_accepted_from_own_pages_only() {
    let gateway = plain().await;
    let post = async |end: &str, fields: &[(&str, &str)]| {
        let mut asked = client().post(format!("{}{end}", gateway.origin()));
        for (name, value) in fields {
            asked = asked.header(*name, *value);
        }
        let asked = asked.header("Content-Type", "application/x-www-form-urlencoded");
        within("an answer", asked.body("a=b").send())
            .await
            .unwrap()
            .status()
    };
    let own = [("Origin", "null"), ("Sec-Fetch-Site", "same-origin")];
    for end in [
        "/t/a/oauth/login",
        "/t/a/oauth/consent",
        "/t/a/oauth/authorize",
    ] {
        assert_eq!(post(end, &own).await, StatusCode::BAD_REQUEST, "{end}");
        assert_eq!(post(end, &[]).await, StatusCode::BAD_REQUEST, "{end}");
        for foreign in [
            &[("Origin", "null")][..],
            &[("Origin", "null"), ("Sec-Fetch-Site", "cross-site")],
            &[("Origin", "null"), ("Sec-Fetch-Site", "same-site")],
            &[
                ("Origin", "https://evil.test"),
                ("Sec-Fetch-Site", "same-origin"),
            ],
        ] {
            assert_eq!(
                post(end, foreign).await,
                StatusCode::FORBIDDEN,
                "{end} {foreign:?}"
            );
        }
    }
    for end in ["/t/a/oauth/callback/x", "/t/a/x/mcp", "/mcp"] {
        assert_eq!(post(end, &own).await, StatusCode::FORBIDDEN, "{end}");
    }
}

/// Over plain http on a network, browsers send no fetch metadata.
#[tokio::test]
async fn forms_are_accepted_from_own_pages_only_over_plain_http() {
    let config = json!({"public_url": "http://gw.test", "auth": {"insecure": true}});
    let gateway = gateway(config, json!({})).await;
    for (end, site, status) in [
        ("login", None, StatusCode::BAD_REQUEST),
        ("consent", None, StatusCode::BAD_REQUEST),
        ("login", Some("cross-site"), StatusCode::FORBIDDEN),
        ("callback/x", None, StatusCode::FORBIDDEN),
    ] {
        let asked = client().post(format!("{}/t/a/oauth/{end}", gateway.origin()));
        let mut asked = asked.header("Host", "gw.test").header("Origin", "null");
        if let Some(site) = site {
            asked = asked.header("Sec-Fetch-Site", site);
        }
        let asked = asked.header("Content-Type", "application/x-www-form-urlencoded");
        let answer = within("an answer", asked.body("a=b").send()).await.unwrap();
        assert_eq!(answer.status(), status, "{end} {site:?}");
    }
}

#[tokio::test]
async fn wrong_passwords_are_counted() {
    let gateway = gateway(json!({"oauth": {"failures": 4}}), json!({})).await;
    let mut browser = Browser::new();
    let login = browser.open(&request(&gateway, &[])).await;
    let mut texts = Vec::new();
    for fields in [
        [("username", "ada"), ("password", "wrong horse")],
        [("username", "nobody"), ("password", "correct horse")],
        // The right password of a disabled user.
        [("username", "bob"), ("password", "correct horse")],
        [("username", "ada"), ("password", "")],
    ] {
        let shown = browser.submit(&login, &fields).await;
        assert_eq!(shown.status, StatusCode::FORBIDDEN, "{fields:?}");
        shown.assert_guarded();
        let (_, form) = shown.form("username");
        // The name is there again, also for a name of nobody.
        let name = format!("value=\"{}\"", fields[0].1);
        assert!(shown.text.contains(&name), "{}", shown.text);
        texts.push(shown.text.replace(&form, "").replace(&name, ""));
    }
    assert!(
        texts.iter().all(|text| *text == texts[0]),
        "one text for every reason"
    );
    let shown = browser.submit(&login, &ADA).await;
    assert_eq!(shown.status, StatusCode::TOO_MANY_REQUESTS);
    let retry: u64 = shown.header("retry-after").parse().unwrap();
    assert!((1..=60).contains(&retry));
    shown.assert_guarded();
    // Pages are still shown: only guesses are limited.
    let page = browser.open(&request(&gateway, &[])).await;
    assert_eq!(page.status, StatusCode::OK, "asking is not guessing");
}

#[tokio::test]
async fn servers_that_a_person_may_not_use_are_like_those_that_are_not_there() {
    let gateway = plain().await;
    let mut browser = Browser::new();
    code(&gateway, &mut browser, &request(&gateway, &[])).await;
    let ask = |server: &str| {
        let resource = format!("{}/t/a/{server}/mcp", gateway.origin());
        request(&gateway, &[("resource", &resource)])
    };
    let (closed, missing) = (
        browser.open(&ask("closed")).await,
        browser.open(&ask("none")).await,
    );
    assert_eq!(closed.answer()["error"], "invalid_target");
    assert_eq!(closed.answer(), missing.answer());
    // Before the log-in, names reveal nothing.
    let mut stranger = Browser::new();
    for server in ["closed", "none"] {
        let shown = stranger.open(&ask(server)).await;
        assert!(shown.text.contains("name=\"password\""), "{server}");
    }
}

#[tokio::test]
async fn hostile_metadata_is_escaped() {
    let gateway = plain().await;
    let name = "</h1><script>alert(1)</script>\u{202e}evil\u{200b}\" onclick=\"x".to_owned();
    let name = format!("{name}{}", "x".repeat(150));
    let metadata = json!({"client_name": name, "redirect_uris": ["http://127.0.0.1/cb"],
        "token_endpoint_auth_method": "none"});
    let asked = client()
        .post(format!("{}/t/a/oauth/register", gateway.origin()))
        .header("Content-Type", "application/json")
        .body(metadata.to_string());
    let registered = json_of(within("a client", asked.send()).await.unwrap()).await;
    let id = registered["client_id"].as_str();
    let id = id.unwrap_or_else(|| panic!("not registered: {registered}"));
    let mut browser = Browser::new();
    let changed = [
        ("client_id", id),
        ("redirect_uri", "http://127.0.0.1:7777/cb"),
    ];
    let url = request(&gateway, &changed);
    let login = browser.open(&url).await;
    let consent = consent_page(&gateway, &mut browser, &url).await;
    for page in [&login, &consent] {
        page.assert_guarded();
        assert!(!page.text.contains("<script") && !page.text.contains("\" onclick"));
        assert!(!page.text.contains(['\u{202e}', '\u{200b}']));
        assert!(!page.text.contains(&"x".repeat(70)), "long names are cut");
    }
    assert!(consent.text.contains("not verified"), "{}", consent.text);
    assert!(
        consent.text.contains("on this computer"),
        "{}",
        consent.text
    );
    assert!(consent.text.contains("127.0.0.1:7777"));
}

/// A person cannot allow what they may not use.
#[tokio::test]
async fn the_audit_trail_has_the_scopes_that_were_allowed() {
    let more = json!({"servers": {"x": {"grants": {"users": {"ada": ["files:read"]}}}}});
    let gateway = gateway(json!({}), more).await;
    let mut browser = Browser::new();
    let url = request(&gateway, &[("scope", "files:read files:write")]);
    code(&gateway, &mut browser, &url).await;
    let audit = format!("{}/api/v1/audit?kind=consent.given", gateway.origin());
    let audit = send(Method::GET, &audit, &gateway.administrator(), None).await;
    let detail = &audit.body["items"][0]["detail"];
    assert_eq!(detail["scope"], "files:read", "{}", audit.body);
    assert_eq!(detail["asked"], "files:read files:write");
}

/// The warning is about the redirect URI of the request, whatever others the client has.
#[tokio::test]
async fn a_request_to_this_computer_is_warned_about() {
    let local = "http://127.0.0.1:33418/";
    let clients = json!({"code": {"redirect_uris": [local, BACK]}});
    let gateway = gateway(json!({}), json!({"clients": clients})).await;
    for (back, is_warned) in [(local, true), (BACK, false)] {
        let url = request(&gateway, &[("client_id", "code"), ("redirect_uri", back)]);
        let consent = consent_page(&gateway, &mut Browser::new(), &url).await;
        let text = &consent.text;
        assert_eq!(text.contains("on this computer"), is_warned, "{text}");
        assert!(!text.contains("described by"), "{text}");
    }
}

#[tokio::test]
async fn log_ins_and_decisions_are_on_record() {
    let gateway = plain().await;
    let mut browser = Browser::new();
    let login = browser.open(&request(&gateway, &[])).await;
    let wrong = [("username", "ada"), ("password", "wrong horse")];
    for _ in 0..3 {
        browser.submit(&login, &wrong).await;
    }
    let consent = consent_page(&gateway, &mut browser, &request(&gateway, &[])).await;
    browser.submit(&consent, &[("decision", "deny")]).await;
    let consent = browser.open(&request(&gateway, &[])).await;
    browser.submit(&consent, &ALLOW).await;
    let key = gateway.administrator();
    let asked = client()
        .get(format!("{}/api/v1/audit?tenant=a", gateway.origin()))
        .bearer_auth(key);
    let page = json_of(within("the audit trail", asked.send()).await.unwrap()).await;
    let text = page.to_string();
    let count = |kind: &str| text.matches(&format!("\"{kind}\"")).count();
    assert_eq!(
        (
            count("login"),
            count("consent.denied"),
            count("consent.given")
        ),
        (2, 1, 1),
        "{text}"
    );
    assert_eq!(count("bad_password"), 1, "folded: {text}");
    for secret in ["horse", "lgc_"] {
        assert!(!text.contains(secret), "{text}");
    }
}

#[tokio::test]
async fn nobody_logs_in_where_there_is_no_log_in() {
    let more = json!({"auth": {"mode": "keys"}, "users": null, "clients": null});
    drop(more);
    let gateway = plain().await;
    let mut browser = Browser::new();
    let url = request(&gateway, &[]).replace("/t/a/", "/t/none/");
    let shown = browser.open(&url).await;
    assert_eq!(shown.status, StatusCode::NOT_FOUND);
    assert!(!shown.headers.contains_key(LOCATION));
    shown.assert_guarded();
    let short = request(&gateway, &[]).replace("/t/a/oauth/", "/");
    assert_eq!(browser.open(&short).await.status, StatusCode::NOT_FOUND);
}

/// The default tenant has the paths of 2025-03-26, and the root as its issuer.
#[tokio::test]
async fn the_default_tenant_has_short_paths() {
    let config = json!({"default": {"tenant": "a", "server": "y"}});
    let gateway = gateway(config, json!({"default_server": "y"})).await;
    let mut browser = Browser::new();
    let url = request(&gateway, &[]).replace("/t/a/oauth/", "/");
    let consent = consent_page(&gateway, &mut browser, &url).await;
    assert_eq!(consent.url.path(), "/authorize");
    let done = browser.submit(&consent, &ALLOW).await;
    let answer = done.answer();
    assert_eq!(answer["iss"], gateway.origin());
    let claims = claims(&redeem(&gateway, &answer["code"], &[]).await);
    assert_eq!(claims["aud"], format!("{}/mcp", gateway.origin()));
    // Registration and tokens have them too.
    let metadata = json!({"redirect_uris": [BACK], "token_endpoint_auth_method": "none"});
    let asked = client()
        .post(format!("{}/register", gateway.origin()))
        .header("Content-Type", "application/json")
        .body(metadata.to_string());
    let registered = json_of(within("a client", asked.send()).await.unwrap()).await;
    let id = registered["client_id"].as_str().unwrap();
    let url = request(&gateway, &[("client_id", id)]).replace("/t/a/oauth/", "/");
    let consent = browser.open(&url).await;
    let code = browser.submit(&consent, &ALLOW).await.answer()["code"].clone();
    let fields = [
        ("grant_type", "authorization_code"),
        ("code", &code),
        ("client_id", id),
        ("code_verifier", VERIFIER),
    ];
    let tokens = post(&format!("{}/token", gateway.origin()), &fields).await;
    assert!(tokens.body["access_token"].is_string(), "{}", tokens.body);
}

/// A client that registered itself, with the URL and the token of its registration.
pub(crate) struct Registered {
    pub(crate) id: String,
    url: String,
    token: String,
}

impl Registered {
    /// Registers a client with this name.
    pub(crate) async fn new(gateway: &Served, name: &str) -> Self {
        let asked = client()
            .post(format!("{}/t/a/oauth/register", gateway.origin()))
            .header("Content-Type", "application/json")
            .body(Self::metadata(name).to_string());
        let all = json_of(within("a client", asked.send()).await.unwrap()).await;
        let text = |name: &str| {
            all[name]
                .as_str()
                .unwrap_or_else(|| panic!("{all}"))
                .to_owned()
        };
        Self {
            id: text("client_id"),
            url: text("registration_client_uri"),
            token: text("registration_access_token"),
        }
    }

    fn metadata(name: &str) -> Value {
        json!({"client_name": name, "redirect_uris": [BACK], "token_endpoint_auth_method": "none"})
    }

    /// Renames the client.
    pub(crate) async fn rename(&self, name: &str) {
        let mut metadata = Self::metadata(name);
        metadata["client_id"] = json!(self.id);
        let asked = client()
            .put(&self.url)
            .bearer_auth(&self.token)
            .header("Content-Type", "application/json")
            .body(metadata.to_string());
        let answer = within("a client", asked.send()).await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
    }
}

/// The consent page said "Allow to use x?".
#[tokio::test]
async fn a_client_whose_name_cannot_be_seen_is_shown_by_its_host() {
    let gateway = plain().await;
    for name in [" ", "\u{200b}", "\u{3164}"] {
        let registered = Registered::new(&gateway, name).await;
        let url = request(&gateway, &[("client_id", registered.id.as_str())]);
        let page = consent_page(&gateway, &mut Browser::new(), &url).await;
        assert!(
            !page.text.contains("<bdi></bdi>"),
            "{name:?}: {}",
            page.text
        );
        let host = url::Url::parse(BACK).unwrap();
        let host = host.host_str().unwrap();
        assert!(page.text.contains(&format!("<bdi>{host}")), "{}", page.text);
    }
}

/// A client that changes between the consent page and the decision is shown again.
#[tokio::test]
async fn a_client_that_changes_is_asked_about_again() {
    let gateway = plain().await;
    let registered = Registered::new(&gateway, "Before").await;
    let url = request(&gateway, &[("client_id", registered.id.as_str())]);
    let mut browser = Browser::new();
    let page = consent_page(&gateway, &mut browser, &url).await;
    registered.rename("Between").await;
    let shown = browser.submit(&page, &ALLOW).await;
    assert_eq!(shown.status, StatusCode::OK, "{}", shown.text);
    assert!(shown.text.contains("Between") && shown.text.contains("not verified"));
    let done = browser.submit(&shown, &ALLOW).await;
    assert!(done.answer()["code"].starts_with("lgc_"));
    assert!(browser.open(&url).await.answer().contains_key("code"));
    registered.rename("After").await;
    let again = browser.open(&url).await;
    assert!(again.text.contains("After") && again.text.contains("name=\"decision\""));
}

//! Log-in at identity providers: a real one, and scripted ones.

use std::time::Duration;

use reqwest::{Method, StatusCode, header::LOCATION};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    oauth::pages::{BACK, Registered, claims, gateway, redeem, request},
    support::{
        browser::{Browser, Shown},
        harness::until,
        issuer::{Key, Provider, now},
        oauth_client::{App, send},
        postgres::Postgres,
        served::Served,
        stage::{Answer, Stage},
    },
};

pub(crate) const ALLOW: [(&str, &str); 1] = [("decision", "allow")];

/// A gateway with these providers, and with the local user ada.
pub(crate) async fn behind(mut config: Value, providers: Value) -> Served {
    config["outbound"] = json!({"allow": ["127.0.0.0/8"]});
    let more = json!({"users": {"ada": {"password": "correct horse"}}, "providers": providers});
    gateway(config, more).await
}

pub(crate) fn openid(issuer: &str) -> Value {
    json!({"kind": "openid", "issuer": issuer, "client_id": "gateway", "client_secret": "secret",
        "title": "Acme", "scopes": ["openid", "profile", "email"]})
}

/// Chooses a provider on the log-in page. The consent page comes before the redirect.
pub(crate) async fn chosen(gateway: &Served, browser: &mut Browser, name: &str) -> Shown {
    let login = browser.open(&request(gateway, &[])).await;
    let consent = browser.submit(&login, &[("provider", name)]).await;
    assert_eq!(consent.status, StatusCode::OK, "{}", consent.text);
    consent.assert_guarded();
    assert!(consent.text.contains("The App") && consent.text.contains("app.test"));
    consent
}

/// The redirect of a browser to a provider.
pub(crate) async fn departed(gateway: &Served, browser: &mut Browser, name: &str) -> Shown {
    let consent = chosen(gateway, browser, name).await;
    let sent = browser.submit(&consent, &ALLOW).await;
    assert_eq!(sent.status, StatusCode::SEE_OTHER, "{}", sent.text);
    sent
}

async fn a_real_provider_logs_people_in(config: Value) {
    let mut provider = Provider::start().await;
    let gateway = behind(config, json!({"acme": openid(&provider.issuer)})).await;
    let callback = format!("{}/t/a/oauth/callback/acme", gateway.origin());
    provider.callback(&callback).await;
    let mut browser = Browser::new();
    let sent = departed(&gateway, &mut browser, "acme").await;
    let before = browser.cookie("lockgate-a").unwrap();
    // The browser passes the provider's pages and returns.
    let back = browser.follow(sent, &provider.issuer).await;
    assert!(
        back.location().unwrap().as_str().starts_with(&callback),
        "{}",
        back.text
    );
    let done = browser.follow(back, gateway.origin()).await;
    assert_eq!(done.status, StatusCode::FOUND, "{}", done.text);
    assert_ne!(browser.cookie("lockgate-a").unwrap(), before);
    let answer = done.answer();
    assert_eq!(answer["state"], "s");
    let claims = claims(&redeem(&gateway, &answer["code"], &[]).await);
    assert_eq!(claims["sub"], format!("{}#ada", provider.issuer));
    // Log-in and consent are remembered: neither page appears again, and the callback is spent.
    assert!(
        browser
            .open(&request(&gateway, &[]))
            .await
            .answer()
            .contains_key("code")
    );
    let replayed = browser.open(done.url.as_str()).await;
    assert_eq!(replayed.status, StatusCode::BAD_REQUEST);
    assert!(!replayed.headers.contains_key(LOCATION));
    // The subject ada of the provider is not the local user ada, who has given no consent.
    let mut other = Browser::new();
    let login = other.open(&request(&gateway, &[])).await;
    let logged = other.submit(&login, &crate::oauth::pages::ADA).await;
    let page = other.follow(logged, gateway.origin()).await;
    assert!(page.text.contains("name=\"decision\""), "{}", page.text);
}

#[tokio::test]
async fn a_real_provider_logs_people_in_on_sqlite() {
    a_real_provider_logs_people_in(json!({})).await;
}

#[tokio::test]
async fn a_real_provider_logs_people_in_on_postgres() {
    let postgres = Postgres::start();
    a_real_provider_logs_people_in(json!({"sql": {"url": postgres.url()}})).await;
}

/// A scripted provider.
pub(crate) struct Hostile {
    pub(crate) stage: Stage,
    key: Key,
}

impl Hostile {
    pub(crate) async fn start() -> Self {
        let (stage, key) = (Stage::start().await, Key::new("k"));
        stage.json("/.well-known/openid-configuration", Self::metadata(&stage));
        stage.json("/keys", json!({"keys": [key.public()]}));
        Self { stage, key }
    }

    pub(crate) fn metadata(stage: &Stage) -> Value {
        let at = |path: &str| format!("{}{path}", stage.url);
        json!({"issuer": stage.url, "authorization_endpoint": at("/authorize"),
            "token_endpoint": at("/token"), "jwks_uri": at("/keys"),
            "userinfo_endpoint": at("/user")})
    }

    /// The claims of a valid ID token for the log-in of the redirect `sent`.
    pub(crate) fn claims(&self, sent: &Shown) -> Value {
        json!({"iss": self.stage.url, "sub": "1", "aud": "gateway", "nonce": sent.answer()["nonce"],
            "iat": now(), "exp": now() + 300, "email": "ada@acme.test", "email_verified": true,
            "groups": ["eng"]})
    }

    /// Answers the next code with this ID token.
    fn give(&self, id_token: &str) {
        let tokens = json!({"access_token": "at", "token_type": "Bearer", "id_token": id_token});
        self.stage.json("/token", tokens);
    }

    pub(crate) fn signed(&self, claims: &Value) -> String {
        let header = json!({"alg": "ES256", "kid": "k"});
        self.key.sign_as(&header.to_string(), &claims.to_string())
    }
}

/// Returns a browser from the provider to the callback.
pub(crate) async fn returned(
    gateway: &Served,
    browser: &mut Browser,
    sent: &Shown,
    more: &str,
) -> Shown {
    let state = &sent.answer()["state"];
    let url = format!("{}/t/a/oauth/callback/acme", gateway.origin());
    browser.open(&format!("{url}?state={state}{more}")).await
}

/// A defect, and the ID token that has it, made from valid claims.
type Case<'c> = (&'c str, Box<dyn Fn(&Value) -> String + 'c>);

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one story, told as a table")]
async fn id_tokens_are_believed_only_if_all_of_them_is_right() {
    let hostile = Hostile::start().await;
    let gateway = behind(json!({}), json!({"acme": openid(&hostile.stage.url)})).await;
    let own = Key::new("k");
    let bare = |header: Value, claims: &Value, signature: &str| {
        let text = crate::support::issuer::unsigned(&header.to_string(), &claims.to_string());
        format!("{text}.{signature}")
    };
    let changed = |claims: &Value, name: &str, value: Value| {
        let mut claims = claims.clone();
        claims[name] = value;
        hostile.signed(&claims)
    };
    let set = |name: &'static str, value: Value| -> Case<'_> {
        (
            name,
            Box::new(move |claims| changed(claims, name, value.clone())),
        )
    };
    let cases: Vec<Case<'_>> = vec![
        set("nonce", json!("another")),
        set("nonce", Value::Null),
        set("aud", json!("another")),
        set("aud", json!(["gateway", "another"])),
        set("azp", json!("another")),
        set("iss", json!("https://idp.test")),
        set("exp", json!(now() - 61)),
        set("iat", json!(now() + 3600)),
        set("sub", json!("")),
        (
            "none",
            Box::new(|claims| bare(json!({"alg": "none"}), claims, "")),
        ),
        (
            "None",
            Box::new(|claims| bare(json!({"alg": "None"}), claims, "c2ln")),
        ),
        (
            "HS256",
            Box::new(|claims| bare(json!({"alg": "HS256", "kid": "k"}), claims, "c2ln")),
        ),
        (
            "unsigned",
            Box::new(|claims| bare(json!({"alg": "ES256", "kid": "k"}), claims, "")),
        ),
        (
            "another key",
            Box::new(|claims| {
                let header = json!({"alg": "ES256", "kid": "k"}).to_string();
                own.sign_as(&header, &claims.to_string())
            }),
        ),
        (
            "its own key",
            Box::new(|claims| {
                let header = json!({"alg": "ES256", "jwk": own.public()}).to_string();
                own.sign_as(&header, &claims.to_string())
            }),
        ),
        (
            "an access token",
            Box::new(|claims| hostile.key.sign(claims)),
        ),
        ("no token", Box::new(|_| String::new())),
    ];
    for (name, token) in &cases {
        let mut browser = Browser::new();
        let sent = departed(&gateway, &mut browser, "acme").await;
        hostile.give(&token(&hostile.claims(&sent)));
        let shown = returned(&gateway, &mut browser, &sent, "&code=c").await;
        assert_eq!(
            shown.status,
            StatusCode::BAD_REQUEST,
            "{name}: {}",
            shown.text
        );
        assert!(!shown.headers.contains_key(LOCATION), "{name}");
        shown.assert_guarded();
        // The browser is not logged in either.
        let again = browser.open(&request(&gateway, &[])).await;
        assert!(again.text.contains("name=\"password\""), "{name}");
    }
    // A valid token is accepted: only the defects above cause the refusals.
    let mut browser = Browser::new();
    let sent = departed(&gateway, &mut browser, "acme").await;
    hostile.give(&hostile.signed(&hostile.claims(&sent)));
    let done = returned(&gateway, &mut browser, &sent, "&code=c").await;
    let claims = claims(&redeem(&gateway, &done.answer()["code"], &[]).await);
    assert_eq!(claims["sub"], format!("{}#1", hostile.stage.url));
    // The gateway authenticates, uses PKCE, and passes on no cookie of the browser.
    let asked = hostile.stage.asked("POST /token");
    let asked = asked.last().unwrap();
    assert!(
        asked.contains("code_verifier=") && asked.contains("redirect_uri="),
        "{asked}"
    );
    assert!(
        asked.to_ascii_lowercase().contains("authorization: basic "),
        "{asked}"
    );
    assert!(!asked.to_ascii_lowercase().contains("cookie"), "{asked}");
}

/// Issuer and subject alone identify a person.
#[tokio::test]
async fn an_email_address_is_no_identity() {
    let (one, two) = (Hostile::start().await, Hostile::start().await);
    let providers = json!({"acme": openid(&one.stage.url), "other": openid(&two.stage.url)});
    let gateway = behind(json!({}), providers).await;
    let mut subjects = Vec::new();
    for (hostile, name, sub) in [
        (&one, "acme", "1"),
        (&one, "acme", "2"),
        (&two, "other", "1"),
    ] {
        let mut browser = Browser::new();
        let sent = departed(&gateway, &mut browser, name).await;
        let mut claims = hostile.claims(&sent);
        claims["sub"] = json!(sub);
        hostile.give(&hostile.signed(&claims));
        let state = &sent.answer()["state"];
        let url = format!(
            "{}/t/a/oauth/callback/{name}?code=c&state={state}",
            gateway.origin()
        );
        let done = browser.open(&url).await;
        let tokens = redeem(&gateway, &done.answer()["code"], &[]).await;
        subjects.push(crate::oauth::pages::claims(&tokens)["sub"].clone());
    }
    subjects.dedup();
    assert_eq!(subjects.len(), 3, "{subjects:?}");
}

/// Callbacks with foreign cookies, states or issuers (RFC 9207).
#[tokio::test]
async fn callbacks_must_come_from_the_browser_that_left() {
    let hostile = Hostile::start().await;
    let gateway = behind(json!({}), json!({"acme": openid(&hostile.stage.url)})).await;
    let (mut ada, mut eve) = (Browser::new(), Browser::new());
    let sent = departed(&gateway, &mut ada, "acme").await;
    hostile.give(&hostile.signed(&hostile.claims(&sent)));
    eve.open(&request(&gateway, &[])).await;
    let refused = async |browser: &mut Browser, more: &str| {
        let shown = returned(&gateway, browser, &sent, more).await;
        assert_eq!(
            shown.status,
            StatusCode::BAD_REQUEST,
            "{more}: {}",
            shown.text
        );
        assert!(!shown.headers.contains_key(LOCATION) && !shown.text.contains("lgc_"));
        shown.assert_guarded();
    };
    refused(&mut eve, "&code=c").await;
    refused(&mut Browser::new(), "&code=c").await;
    refused(&mut ada, "&code=c&code=d").await;
    refused(&mut ada, "x&code=c").await;
    // None of these spent the pending log-in.
    assert!(hostile.stage.asked("POST /token").is_empty());
    let done = returned(&gateway, &mut ada, &sent, "&code=c").await;
    assert!(done.answer()["code"].starts_with("lgc_"));
    refused(&mut ada, "&code=c").await;
    // Answers with a foreign issuer, without a code, and with an error.
    for (more, wanted) in [
        (
            "&code=c&iss=https%3A%2F%2Fevil.test",
            StatusCode::BAD_REQUEST,
        ),
        ("", StatusCode::BAD_REQUEST),
        ("&error=access_denied", StatusCode::FOUND),
    ] {
        let mut browser = Browser::new();
        let sent = departed(&gateway, &mut browser, "acme").await;
        let shown = returned(&gateway, &mut browser, &sent, more).await;
        assert_eq!(shown.status, wanted, "{more}: {}", shown.text);
        if wanted == StatusCode::FOUND {
            let answer = shown.answer();
            assert_eq!(
                (&*answer["error"], &*answer["state"]),
                ("access_denied", "s")
            );
            assert_eq!(answer["iss"], format!("{}/t/a", gateway.origin()));
        }
    }
}

/// A client with several servers sends a browser to the provider in a tab for each. The log-in of the tab that returned
/// first changed the cookie of the others, whose log-ins were those of another browser.
#[tokio::test]
async fn several_tabs_return_from_a_provider_one_after_the_other() {
    let hostile = Hostile::start().await;
    let gateway = behind(json!({}), json!({"acme": openid(&hostile.stage.url)})).await;
    let mut browser = Browser::new();
    let mut trips = Vec::new();
    for _ in 0..3 {
        trips.push(departed(&gateway, &mut browser, "acme").await);
    }
    // Each answer sets a cookie for trips, the same whichever comes last.
    let set = |sent: &Shown| sent.header("set-cookie").to_owned();
    let cookie = set(&trips[0]);
    assert!(cookie.starts_with("lockgate_trips-a-"), "{cookie}");
    assert!(trips.iter().all(|sent| set(sent) == cookie), "{cookie}");
    let mut before = browser.cookie("lockgate-a").unwrap();
    for sent in trips {
        hostile.give(&hostile.signed(&hostile.claims(&sent)));
        let done = returned(&gateway, &mut browser, &sent, "&code=c").await;
        assert_eq!(done.status, StatusCode::FOUND, "{}", done.text);
        assert!(done.answer()["code"].starts_with("lgc_"), "{done:?}");
        let now = browser.cookie("lockgate-a").unwrap();
        assert_ne!(now, before, "each log-in has a cookie of its own");
        before = now;
    }
}

/// RFC 9207, section 2.4: a response without the `iss` that the provider announces is of another one.
#[tokio::test]
async fn a_provider_that_announces_its_name_has_to_give_it() {
    let hostile = Hostile::start().await;
    let mut metadata = Hostile::metadata(&hostile.stage);
    metadata["authorization_response_iss_parameter_supported"] = json!(true);
    let place = "/.well-known/openid-configuration";
    hostile.stage.json(place, metadata);
    let gateway = behind(json!({}), json!({"acme": openid(&hostile.stage.url)})).await;
    let named = format!("&iss={}", hostile.stage.url);
    for (more, wanted) in [
        ("&code=c".to_owned(), StatusCode::BAD_REQUEST),
        ("&error=access_denied".to_owned(), StatusCode::BAD_REQUEST),
        (format!("&code=c{named}"), StatusCode::FOUND),
        (format!("&error=access_denied{named}"), StatusCode::FOUND),
    ] {
        let mut browser = Browser::new();
        let sent = departed(&gateway, &mut browser, "acme").await;
        hostile.give(&hostile.signed(&hostile.claims(&sent)));
        let shown = returned(&gateway, &mut browser, &sent, &more).await;
        assert_eq!(shown.status, wanted, "{more}: {}", shown.text);
    }
    assert_eq!(hostile.stage.asked("POST /token").len(), 1);
}

/// An answer of another issuer, and one that says nothing, were told as a log-in that had expired, and sent people and
/// operators after cookies.
#[tokio::test]
async fn an_answer_that_is_none_of_the_provider_is_told_as_such() {
    let hostile = Hostile::start().await;
    let mut metadata = Hostile::metadata(&hostile.stage);
    metadata["authorization_response_iss_parameter_supported"] = json!(true);
    let place = "/.well-known/openid-configuration";
    hostile.stage.json(place, metadata);
    let mut gateway = behind(json!({}), json!({"acme": openid(&hostile.stage.url)})).await;
    let administrator = gateway.administrator();
    let logins = format!("{}/api/v1/tenants/a/logins", gateway.origin());
    let own = &hostile.stage.url;
    for (more, told) in [
        (
            "&code=c&iss=https%3A%2F%2Fevil.test".to_owned(),
            "it names another issuer (iss)",
        ),
        ("&code=c".to_owned(), "it does not name its issuer (iss)"),
        (format!("&iss={own}"), "it has neither a code nor an error"),
    ] {
        let mut browser = Browser::new();
        let sent = departed(&gateway, &mut browser, "acme").await;
        let shown = returned(&gateway, &mut browser, &sent, &more).await;
        assert_eq!(shown.status, StatusCode::BAD_REQUEST, "{}", shown.text);
        let wanted = format!("This is no answer of Acme: {told}");
        assert!(shown.text.contains(&wanted), "{}", shown.text);
        shown.assert_guarded();
        // A step of the one attempt that all of these are by their challenge.
        until("the refusal", async || {
            let listed = send(Method::GET, &logins, &administrator, None).await;
            let items = listed.body["items"].as_array().unwrap();
            let is_told = |item: &Value| item["reason"].to_string().contains(&wanted);
            items.len() == 1 && items[0]["step"] == "refused" && is_told(&items[0])
        })
        .await;
    }
    assert!(hostile.stage.asked("POST /token").is_empty());
    let logs = gateway.end().await;
    let is_told = |line: &Value| {
        line["why"] == "it names another issuer (iss)" && line["iss"] == "https://evil.test"
    };
    assert!(logs.iter().any(is_told), "{logs:?}");
}

/// Consent precedes the redirect to the provider, and a remembered consent
/// skips it only for a person who is logged in here.
#[tokio::test]
async fn consent_precedes_the_redirect_to_a_provider() {
    let hostile = Hostile::start().await;
    let gateway = behind(json!({}), json!({"acme": openid(&hostile.stage.url)})).await;
    let mut victim = Browser::new();
    let sent = departed(&gateway, &mut victim, "acme").await;
    hostile.give(&hostile.signed(&hostile.claims(&sent)));
    let done = returned(&gateway, &mut victim, &sent, "&code=c").await;
    assert!(done.answer().contains_key("code"));
    // The same person's consent in another browser is not known to this one.
    let mut elsewhere = Browser::new();
    chosen(&gateway, &mut elsewhere, "acme").await;
    // A denial causes no redirect to the provider.
    let consent = chosen(&gateway, &mut elsewhere, "acme").await;
    let denied = elsewhere.submit(&consent, &[("decision", "deny")]).await;
    assert_eq!(denied.answer()["error"], "access_denied");
    // The attacker allows in its own browser and gives the provider's URL to the victim.
    let mut attacker = Browser::new();
    let sent = departed(&gateway, &mut attacker, "acme").await;
    hostile.give(&hostile.signed(&hostile.claims(&sent)));
    let shown = returned(&gateway, &mut victim, &sent, "&code=c").await;
    assert_eq!(shown.status, StatusCode::BAD_REQUEST);
    assert!(!shown.headers.contains_key(LOCATION));
}

/// A tenant without passwords: the page is the first that a stranger sees.
#[tokio::test]
async fn before_a_provider_the_page_does_not_tell_which_servers_there_are() {
    let hostile = Hostile::start().await;
    let tenant = json!({
        "auth": {"mode": "builtin", "scopes": ["files:read"]},
        "providers": {"acme": openid(&hostile.stage.url)},
        "clients": {"app": {"title": "The App", "redirect_uris": [BACK]}},
        "servers": {
            "for-all": {"command": "cat"},
            "for-eve": {"command": "cat", "grants": {"users": ["eve"]}},
        },
    });
    let config = json!({"outbound": {"allow": ["127.0.0.0/8"]}});
    let gateway = Served::start(config, json!({"a": tenant})).await;
    let mut pages = Vec::new();
    for (server, error) in [
        ("for-all", None),
        ("for-eve", Some("invalid_target")),
        ("for-nobody", Some("invalid_target")),
    ] {
        let resource = format!("{}/t/a/{server}/mcp", gateway.origin());
        let asked = [
            ("resource", &*resource),
            ("scope", "files:read offline_access"),
        ];
        let mut browser = Browser::new();
        let consent = browser.open(&request(&gateway, &asked)).await;
        let text = consent.text.replace(&consent.form("form").1, "");
        pages.push(text.replace(server, ""));
        // It is passed whether there is such a server or not.
        let sent = browser.submit(&consent, &ALLOW).await;
        assert_eq!(sent.status, StatusCode::SEE_OTHER, "{}", sent.text);
        hostile.give(&hostile.signed(&hostile.claims(&sent)));
        let done = returned(&gateway, &mut browser, &sent, "&code=c").await;
        let answer = done.answer();
        assert_eq!(answer.get("error").map(String::as_str), error, "{server}");
        assert_eq!(answer.contains_key("code"), error.is_none(), "{server}");
    }
    assert_eq!(pages[0], pages[2]);
    assert_eq!(pages[1], pages[2]);
    assert!(!pages[2].contains("May not use"), "{}", pages[2]);
}

/// **Use another account** makes the provider ask for one, with any `prompt` of the client.
#[tokio::test]
async fn another_account_is_asked_for_at_the_provider() {
    let hostile = Hostile::start().await;
    let gateway = behind(json!({}), json!({"acme": openid(&hostile.stage.url)})).await;
    let mut browser = Browser::new();
    let sent = departed(&gateway, &mut browser, "acme").await;
    assert!(!sent.answer().contains_key("prompt"));
    hostile.give(&hostile.signed(&hostile.claims(&sent)));
    returned(&gateway, &mut browser, &sent, "&code=c").await;
    let url = request(
        &gateway,
        &[("prompt", "consent"), ("scope", "offline_access")],
    );
    let consent = browser.open(&url).await;
    assert!(consent.text.contains("ada@acme.test"), "{}", consent.text);
    let switched = browser.submit(&consent, &[("decision", "switch")]).await;
    let login = browser.follow(switched, gateway.origin()).await;
    let consent = browser.submit(&login, &[("provider", "acme")]).await;
    let sent = browser.submit(&consent, &ALLOW).await;
    assert_eq!(sent.answer()["prompt"], "login");
    let mut other = hostile.claims(&sent);
    other["sub"] = json!("2");
    hostile.give(&hostile.signed(&other));
    let done = returned(&gateway, &mut browser, &sent, "&code=c").await;
    let claims = claims(&redeem(&gateway, &done.answer()["code"], &[]).await);
    assert_eq!(claims["sub"], format!("{}#2", hostile.stage.url));
}

/// A provider that answered with a session of long ago counted as a fresh log-in.
#[tokio::test]
async fn a_fresh_log_in_is_one_at_the_provider() {
    let hostile = Hostile::start().await;
    let gateway = behind(json!({}), json!({"acme": openid(&hostile.stage.url)})).await;
    let (login, hours) = ([("prompt", "login")], [("max_age", "7200")]);
    for (asked, age, wanted) in [
        (&[][..], Some(3600), None),
        (&login[..], None, None),
        (&login[..], Some(0), None),
        (&login[..], Some(3600), Some("login_required")),
        (&hours[..], Some(3600), None),
        (&hours[..], Some(9000), Some("login_required")),
    ] {
        let mut browser = Browser::new();
        let page = browser.open(&request(&gateway, asked)).await;
        let consent = browser.submit(&page, &[("provider", "acme")]).await;
        let sent = browser.submit(&consent, &ALLOW).await;
        let before = browser.cookie("lockgate-a");
        let mut claims = hostile.claims(&sent);
        if let Some(age) = age {
            claims["auth_time"] = json!(now() - age);
        }
        hostile.give(&hostile.signed(&claims));
        let answer = returned(&gateway, &mut browser, &sent, "&code=c").await;
        let answer = answer.answer();
        let error = answer.get("error").map(String::as_str);
        assert_eq!(error, wanted, "{asked:?} {age:?}");
        assert_eq!(answer.contains_key("code"), wanted.is_none());
        let is_logged_in = browser.cookie("lockgate-a") != before;
        assert_eq!(is_logged_in, wanted.is_none(), "{asked:?} {age:?}");
    }
}

/// A session at a provider without OpenID would identify the same person again.
#[tokio::test]
async fn another_account_is_asked_for_without_openid() {
    let stage = Stage::start().await;
    let at = |path: &str| format!("{}{path}", stage.url);
    for (declared, wanted) in [(None, "select_account"), (Some("login"), "login")] {
        let mut provider = json!({"kind": "oauth", "issuer": "https://hub.test", "client_id": "gateway",
            "client_secret": "secret", "authorization_url": at("/authorize"), "token_url": at("/token"),
            "user_url": at("/user")});
        if let Some(prompt) = declared {
            provider["authorization_parameters"] = json!({"prompt": prompt});
        }
        let gateway = behind(json!({}), json!({"acme": provider})).await;
        let mut browser = Browser::new();
        let sent = departed(&gateway, &mut browser, "acme").await;
        let usual = sent.answer().get("prompt").cloned();
        assert_eq!(usual.as_deref(), declared);
        let login = browser
            .open(&request(&gateway, &[("prompt", "login")]))
            .await;
        let consent = browser.submit(&login, &[("provider", "acme")]).await;
        let sent = browser.submit(&consent, &ALLOW).await;
        assert_eq!(sent.answer()["prompt"], wanted);
        let url = sent.location().unwrap();
        assert_eq!(url.as_str().matches("prompt=").count(), 1, "{url}");
    }
}

/// An operator adds parameters, and those of a log-in that has to be a fresh one stay.
#[tokio::test]
async fn a_provider_is_asked_with_more_parameters() {
    let hostile = Hostile::start().await;
    for (prompt, fresh) in [("consent", "login consent"), ("none", "login")] {
        let mut provider = openid(&hostile.stage.url);
        provider["authorization_parameters"] = json!({"access_type": "offline", "prompt": prompt});
        let gateway = behind(json!({}), json!({"acme": provider})).await;
        for (parameters, wanted) in [(&[][..], prompt), (&[("max_age", "0")], fresh)] {
            let mut browser = Browser::new();
            let login = browser.open(&request(&gateway, parameters)).await;
            let consent = browser.submit(&login, &[("provider", "acme")]).await;
            let sent = browser.submit(&consent, &ALLOW).await;
            let answer = sent.answer();
            assert_eq!(answer["access_type"], "offline");
            assert_eq!(answer["prompt"], wanted);
            let url = sent.location().unwrap();
            assert_eq!(url.as_str().matches("prompt=").count(), 1, "{url}");
        }
    }
}

/// A client that changes during the log-in at the provider is shown again.
#[tokio::test]
async fn a_client_that_changes_meanwhile_is_shown_again() {
    let hostile = Hostile::start().await;
    let gateway = behind(json!({}), json!({"acme": openid(&hostile.stage.url)})).await;
    let registered = Registered::new(&gateway, "Before").await;
    let mut browser = Browser::new();
    let url = request(&gateway, &[("client_id", registered.id.as_str())]);
    let login = browser.open(&url).await;
    let consent = browser.submit(&login, &[("provider", "acme")]).await;
    let sent = browser.submit(&consent, &ALLOW).await;
    hostile.give(&hostile.signed(&hostile.claims(&sent)));
    registered.rename("After").await;
    let shown = returned(&gateway, &mut browser, &sent, "&code=c").await;
    assert_eq!(shown.status, StatusCode::OK, "{}", shown.text);
    assert!(shown.text.contains("After") && shown.text.contains("ada@acme.test"));
    let done = browser.submit(&shown, &ALLOW).await;
    assert!(done.answer()["code"].starts_with("lgc_"));
}

#[tokio::test]
async fn the_tenant_decides_who_is_admitted() {
    let hostile = Hostile::start().await;
    for (allow, claims, status) in [
        (json!({"subjects": ["1"]}), json!({}), StatusCode::FOUND),
        (json!({"subjects": ["2"]}), json!({}), StatusCode::FORBIDDEN),
        (
            json!({"domains": ["acme.test"]}),
            json!({}),
            StatusCode::FOUND,
        ),
        (
            json!({"domains": ["acme.test"]}),
            json!({"email_verified": false}),
            StatusCode::FORBIDDEN,
        ),
        (
            json!({"domains": ["me.test"]}),
            json!({}),
            StatusCode::FORBIDDEN,
        ),
        (json!({"groups": ["eng"]}), json!({}), StatusCode::FOUND),
        (json!({"groups": ["ops"]}), json!({}), StatusCode::FORBIDDEN),
    ] {
        let mut provider = openid(&hostile.stage.url);
        provider["allow"] = allow.clone();
        let gateway = behind(json!({}), json!({"acme": provider})).await;
        let mut browser = Browser::new();
        let sent = departed(&gateway, &mut browser, "acme").await;
        let mut all = hostile.claims(&sent);
        for (name, value) in claims.as_object().unwrap() {
            all[name] = value.clone();
        }
        hostile.give(&hostile.signed(&all));
        let shown = returned(&gateway, &mut browser, &sent, "&code=c").await;
        assert_eq!(shown.status, status, "{allow} {claims}: {}", shown.text);
    }
}

/// A log-in ends when the tenant no longer admits the person.
#[tokio::test]
async fn people_who_are_no_longer_admitted_lose_their_tokens() {
    let hostile = Hostile::start().await;
    let mut provider = openid(&hostile.stage.url);
    let gateway = behind(json!({}), json!({"acme": provider})).await;
    let mut browser = Browser::new();
    let sent = departed(&gateway, &mut browser, "acme").await;
    hostile.give(&hostile.signed(&hostile.claims(&sent)));
    let done = returned(&gateway, &mut browser, &sent, "&code=c").await;
    let tokens = redeem(&gateway, &done.answer()["code"], &[]).await;
    let access = tokens["access_token"].as_str().unwrap();
    let app = App::of(&gateway, "a", "app");
    let mut refresh = tokens["refresh_token"].as_str().unwrap().to_owned();
    let path = format!("{}/api/v1/tenants/a/providers/acme", gateway.origin());
    for (allow, is_in) in [
        (json!({}), true),
        (json!({"subjects": ["1"]}), true),
        (json!({"domains": ["other.test"]}), true),
        (json!({"groups": ["eng"]}), true),
        (json!({"groups": ["ops"]}), false),
        (json!({"subjects": ["2"]}), false),
    ] {
        provider["allow"] = allow.clone();
        let by = gateway.administrator();
        let put = send(Method::PUT, &path, &by, Some(&provider)).await;
        assert_eq!(put.status, StatusCode::OK, "{}", put.body);
        assert_eq!(app.reaches("x", access).await, is_in, "{allow}");
        let next = app.refresh(&refresh, &[]).await;
        if is_in {
            refresh = next.text("refresh_token");
        } else {
            next.assert_refused(400, "invalid_grant");
        }
        let shown = browser.open(&request(&gateway, &[])).await;
        assert_eq!(shown.location().is_some(), is_in, "{allow}");
    }
}

/// Claims that the ID token lacks are fetched, and must be of the same person.
#[tokio::test]
async fn user_info_is_of_the_same_person() {
    let hostile = Hostile::start().await;
    let mut provider = openid(&hostile.stage.url);
    provider["allow"] = json!({"groups": ["eng"]});
    let gateway = behind(json!({}), json!({"acme": provider})).await;
    for (sub, status) in [("1", StatusCode::FOUND), ("2", StatusCode::BAD_REQUEST)] {
        hostile
            .stage
            .json("/user", json!({"sub": sub, "groups": ["eng"]}));
        let mut browser = Browser::new();
        let sent = departed(&gateway, &mut browser, "acme").await;
        let mut all = hostile.claims(&sent);
        all.as_object_mut().unwrap().remove("groups");
        hostile.give(&hostile.signed(&all));
        let shown = returned(&gateway, &mut browser, &sent, "&code=c").await;
        assert_eq!(shown.status, status, "{sub}: {}", shown.text);
    }
    assert!(hostile.stage.asked("GET /user")[0].contains("Bearer at"));
}

/// A provider that fails, is slow or redirects causes an error page in bounded time.
#[tokio::test]
async fn providers_that_do_not_answer() {
    let hostile = Hostile::start().await;
    let providers = json!({"acme": openid(&hostile.stage.url)});
    let place = "/.well-known/openid-configuration";
    let steering = json!({"issuer": hostile.stage.url, "jwks_uri": "http://169.254.169.254/keys",
        "authorization_endpoint": "javascript:alert(1)", "token_endpoint": "http://10.0.0.1/"});
    let foreign = json!({"issuer": format!("{}/", hostile.stage.url)});
    for (answer, status) in [
        (Answer::Slow, StatusCode::SERVICE_UNAVAILABLE),
        (
            Answer::Json(500, json!({})),
            StatusCode::SERVICE_UNAVAILABLE,
        ),
        (
            Answer::Redirect(format!("{}/keys", hostile.stage.url)),
            StatusCode::SERVICE_UNAVAILABLE,
        ),
        (Answer::Json(200, foreign), StatusCode::BAD_REQUEST),
        (Answer::Json(200, steering), StatusCode::BAD_REQUEST),
    ] {
        hostile.stage.set(place, answer.clone());
        let gateway = behind(json!({}), providers.clone()).await;
        let mut browser = Browser::new();
        let consent = chosen(&gateway, &mut browser, "acme").await;
        let began = Instant::now();
        let shown = browser.submit(&consent, &ALLOW).await;
        assert_eq!(shown.status, status, "{answer:?}: {}", shown.text);
        assert!(began.elapsed() < Duration::from_secs(8), "{answer:?}");
        shown.assert_guarded();
        let is_busy = status == StatusCode::SERVICE_UNAVAILABLE;
        assert_eq!(shown.headers.contains_key("retry-after"), is_busy);
    }
    hostile.stage.json(place, Hostile::metadata(&hostile.stage));
    for answer in [
        Answer::Slow,
        Answer::Json(503, json!({})),
        Answer::Redirect(format!("{}/keys", hostile.stage.url)),
    ] {
        let gateway = behind(json!({}), providers.clone()).await;
        let mut browser = Browser::new();
        let sent = departed(&gateway, &mut browser, "acme").await;
        hostile.stage.set("/token", answer);
        let shown = returned(&gateway, &mut browser, &sent, "&code=c").await;
        assert_eq!(
            shown.status,
            StatusCode::SERVICE_UNAVAILABLE,
            "{}",
            shown.text
        );
    }
}

/// The page tells what the provider did, and the log has the reason in plain words.
#[tokio::test]
async fn what_a_provider_did_is_told_as_it_was() {
    let hostile = Hostile::start().await;
    let mut gateway = behind(json!({}), json!({"acme": openid(&hostile.stage.url)})).await;
    let account = format!("{}/t/a/account", gateway.origin());
    for (error, told) in [
        ("access_denied", "Acme did not log you in: access_denied."),
        ("server_error", "Acme did not log you in: server_error."),
        ("login_required", "Acme did not log you in: login_required."),
        ("call+%2B1+555", "Acme did not log you in: an error."),
    ] {
        let mut browser = Browser::new();
        let login = browser.open(&account).await;
        let sent = browser.submit(&login, &[("provider", "acme")]).await;
        let more = format!("&error={error}");
        let shown = returned(&gateway, &mut browser, &sent, &more).await;
        assert_eq!(shown.status, StatusCode::FORBIDDEN);
        assert!(shown.text.contains(told), "{error}: {}", shown.text);
    }
    let large = format!(r#"{{"id_token": "{}"}}"#, "x".repeat(70 << 10));
    let tokens = |id_token: &str| {
        let tokens = json!({"access_token": "t", "token_type": "bearer", "id_token": id_token});
        Answer::Json(200, tokens)
    };
    for (answer, told) in [
        (
            Answer::Redirect(format!("{}/keys", hostile.stage.url)),
            "does not answer as it should.",
        ),
        (Answer::Text(large), "does not answer as it should."),
        (Answer::Slow, "does not answer."),
        (
            tokens("x"),
            "The answer of the identity provider is not valid.",
        ),
        // The usual mistake: a client secret that is wrong or too old.
        (
            Answer::Json(
                401,
                json!({"error": "invalid_client", "error_description": "too old"}),
            ),
            "Acme did not log you in: invalid_client.",
        ),
        (
            Answer::Json(200, json!({"error": "call +1 555"})),
            "Acme did not log you in: another error.",
        ),
    ] {
        let mut browser = Browser::new();
        let sent = departed(&gateway, &mut browser, "acme").await;
        hostile.stage.set("/token", answer.clone());
        let shown = returned(&gateway, &mut browser, &sent, "&code=c").await;
        assert!(shown.text.contains(told), "{answer:?}: {}", shown.text);
    }
    let logs = gateway.end().await;
    let is_told = |line: &Value| line["why"] == "its token: no JWT";
    assert!(logs.iter().any(is_told), "{logs:?}");
    let is_named = |line: &Value| line["why"] == "the token endpoint answers invalid_client";
    assert!(logs.iter().any(is_named), "{logs:?}");
}

/// GitHub's `iss` in answers (RFC 9207) differs from its name in subjects.
#[tokio::test]
async fn a_provider_without_openid_may_name_itself() {
    let stage = Stage::start().await;
    let at = |path: &str| format!("{}{path}", stage.url);
    let provider = json!({"kind": "oauth", "issuer": "https://hub.test", "client_id": "gateway",
        "client_secret": "secret", "authorization_url": at("/login/oauth/authorize"),
        "token_url": at("/token"), "user_url": at("/user")});
    let gateway = behind(json!({}), json!({"acme": provider})).await;
    stage.json(
        "/token",
        json!({"access_token": "gho_x", "token_type": "bearer"}),
    );
    stage.json("/user", json!({"id": 583_231, "login": "octocat"}));
    for (iss, status) in [
        (at("/login/oauth"), StatusCode::FOUND),
        ("https://hub.test".to_owned(), StatusCode::FOUND),
        (at("/login/oau"), StatusCode::BAD_REQUEST),
        ("https://evil.test".to_owned(), StatusCode::BAD_REQUEST),
    ] {
        let mut browser = Browser::new();
        let sent = departed(&gateway, &mut browser, "acme").await;
        let more = format!("&code=c&iss={iss}");
        let shown = returned(&gateway, &mut browser, &sent, &more).await;
        assert_eq!(shown.status, status, "{iss}: {}", shown.text);
        assert_eq!(
            shown.headers.contains_key(LOCATION),
            status == StatusCode::FOUND
        );
    }
}

/// Plain OAuth, like GitHub's.
#[tokio::test]
async fn a_provider_without_openid() {
    let stage = Stage::start().await;
    let at = |path: &str| format!("{}{path}", stage.url);
    let provider = json!({"kind": "oauth", "issuer": "https://hub.test", "client_id": "gateway",
        "client_secret": "secret", "authorization_url": at("/login/oauth/authorize"),
        "token_url": at("/login/oauth/access_token"), "user_url": at("/user"),
        "scopes": ["read:user"], "allow": {"subjects": ["583231"]}});
    let gateway = behind(json!({}), json!({"acme": provider})).await;
    stage.json(
        "/login/oauth/access_token",
        json!({"access_token": "gho_x", "token_type": "bearer", "scope": "read:user"}),
    );
    for (user, status) in [
        (
            json!({"id": 583_231, "login": "octo\0cat"}),
            StatusCode::FOUND,
        ),
        (json!({"id": 1, "login": "octocat"}), StatusCode::FORBIDDEN),
        (json!({"login": "583231"}), StatusCode::BAD_REQUEST),
        (json!({"id": 583_231.5}), StatusCode::BAD_REQUEST),
        (json!({"id": "583231\0"}), StatusCode::BAD_REQUEST),
        (json!({"id": "583231\u{1b}"}), StatusCode::BAD_REQUEST),
        (json!({"id": " "}), StatusCode::BAD_REQUEST),
        (json!([]), StatusCode::BAD_REQUEST),
    ] {
        stage.json("/user", user.clone());
        let mut browser = Browser::new();
        let sent = departed(&gateway, &mut browser, "acme").await;
        let asked = sent.answer();
        assert_eq!(
            (&*asked["scope"], &*asked["response_type"]),
            ("read:user", "code")
        );
        assert_eq!(asked["code_challenge_method"], "S256");
        assert!(!asked.contains_key("nonce"));
        let shown = returned(&gateway, &mut browser, &sent, "&code=c").await;
        assert_eq!(shown.status, status, "{user}: {}", shown.text);
        if status == StatusCode::FOUND {
            let tokens = redeem(&gateway, &shown.answer()["code"], &[]).await;
            assert_eq!(claims(&tokens)["sub"], "https://hub.test#583231");
        }
    }
    assert!(stage.asked("GET /user")[0].contains("Bearer gho_x"));
    // Another reader could take the first of two.
    stage.set(
        "/user",
        Answer::Text(r#"{"id": 1, "id": 583231}"#.to_owned()),
    );
    let mut browser = Browser::new();
    let sent = departed(&gateway, &mut browser, "acme").await;
    let shown = returned(&gateway, &mut browser, &sent, "&code=c").await;
    assert_eq!(shown.status, StatusCode::BAD_REQUEST, "{}", shown.text);
    // GitHub sends errors with 200.
    stage.json(
        "/login/oauth/access_token",
        json!({"error": "bad_verification_code"}),
    );
    let mut browser = Browser::new();
    let sent = departed(&gateway, &mut browser, "acme").await;
    let shown = returned(&gateway, &mut browser, &sent, "&code=c").await;
    assert_eq!(shown.status, StatusCode::BAD_REQUEST, "{}", shown.text);
}

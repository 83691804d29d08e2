//! Access tokens of people for other audiences, which their identity provider gives for that of the log-in (RFC 8693).

use futures_util::future::join_all;
use reqwest::StatusCode;
use serde_json::{Value, json};

use super::{
    pages::gateway,
    providers::{Hostile, openid},
    upstreams::{
        RESOURCE, are_unseen, gateway_url, opened, outbound, pid, refused, session, token,
    },
};
use crate::{
    auth::api_keys::key,
    support::{
        browser::{Browser, Shown},
        harness::{NEWEST, child, opening, until},
        issuer::Provider,
        pair::Pair,
        postgres::Postgres,
        served::Served,
        stage::Answer,
    },
};

/// The API keys of people of a provider, and a tenant whose servers get their exchanged tokens.
struct People {
    ada: String,
    eve: String,
    /// Of a user with a password.
    local: String,
    tenant: Value,
}

impl People {
    /// Servers `s`, which has the token in its environment, and `f`, in a file; `ada` is called so at the provider.
    fn of(issuer: &str, ada: &str, audience: &str) -> Self {
        let [ada_key, eve, local] = [key(), key(), key()];
        let of = |hash: &str, subject: String| json!({"hash": hash, "subject": subject, "servers": ["*"]});
        let mut provider = openid(issuer);
        provider["exchange"] = json!({"audiences": [audience]});
        // For a refresh token.
        provider["authorization_parameters"] = json!({"prompt": "consent"});
        let slot = json!({"for": "principal", "exchange": audience});
        let file = json!({"for": "principal", "exchange": audience, "as": "file"});
        let tenant = json!({
            "auth": {"mode": "builtin"},
            "api_keys": {
                "ada": of(&ada_key.1, format!("{issuer}#{ada}")), "eve": of(&eve.1, format!("{issuer}#eve")),
                "local": of(&local.1, "ada".to_owned()),
            },
            "users": {"ada": {"password": "correct horse"}},
            "providers": {"acme": provider},
            "servers": {
                "s": {"command": child(), "secrets": {"TOKEN": slot}},
                "f": {"command": child(), "secrets": {"TOKEN": file}},
            },
        });
        Self {
            ada: ada_key.0,
            eve: eve.0,
            local: local.0,
            tenant,
        }
    }
}

/// The redirect to the provider of somebody who opens the account page.
async fn departed(gateway: &Served, browser: &mut Browser) -> Shown {
    let page = browser
        .open(&format!("{}/t/a/account", gateway.origin()))
        .await;
    let sent = browser.submit(&page, &[("provider", "acme")]).await;
    assert_eq!(sent.status, StatusCode::SEE_OTHER, "{}", sent.text);
    sent
}

/// Logs somebody in at the real provider; the account page.
async fn logged_in(gateway: &Served, provider: &Provider) -> Shown {
    let mut browser = Browser::new();
    let sent = departed(gateway, &mut browser).await;
    let back = browser.follow(sent, &provider.issuer).await;
    let page = browser.follow(back, gateway.origin()).await;
    assert!(page.text.contains("Your account"), "{}", page.text);
    page
}

async fn people_have_tokens_of_their_own(config: Value) {
    let mut provider = Provider::start().await;
    let people = People::of(&provider.issuer, "ada", RESOURCE);
    let gateway = gateway(outbound(config), people.tenant.clone()).await;
    let callback = format!("{}/t/a/oauth/callback/acme", gateway.origin());
    provider.callback(&callback).await;
    // Nobody has logged in yet, and somebody with a password has no provider at all.
    for key in [&people.ada, &people.local] {
        let missing = refused(&gateway, key, "s").await;
        assert_eq!(missing["code"], -31005, "{missing}");
        let text = missing["message"].as_str().unwrap();
        assert!(
            text.contains("a token of your identity provider") && text.contains("sign in again"),
            "{text}"
        );
        assert!(text.contains("/t/a/account"), "{text}");
    }
    logged_in(&gateway, &provider).await;
    provider.person("eve").await;
    let page = logged_in(&gateway, &provider).await;
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
    }
    // The token of one person is exchanged once, for all of their children.
    assert_eq!(
        token(&opened(&gateway, &people.ada, "f").await).await,
        both[0]
    );
    // The page has no slot that somebody could fill.
    assert!(!page.text.contains("name=\"secret\""), "{}", page.text);
    assert_eq!(refused(&gateway, &people.local, "s").await["code"], -31005);
    are_unseen(gateway, &both, page.text).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn people_have_tokens_of_their_own_on_sqlite() {
    people_have_tokens_of_their_own(json!({})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn people_have_tokens_of_their_own_on_postgres() {
    let postgres = Postgres::start();
    people_have_tokens_of_their_own(json!({"sql": {"url": postgres.url()}})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_exchanged_again_before_it_expires() {
    let mut provider = Provider::start().await;
    let people = People::of(&provider.issuer, "ada", RESOURCE);
    let gateway = gateway(outbound(json!({})), people.tenant.clone()).await;
    let callback = format!("{}/t/a/oauth/callback/acme", gateway.origin());
    provider.callback(&callback).await;
    logged_in(&gateway, &provider).await;
    provider.ttl(8).await;
    let [in_env, in_file] = [
        opened(&gateway, &people.ada, "s").await,
        opened(&gateway, &people.ada, "f").await,
    ];
    let (first, pids) = (
        token(&in_env).await,
        [pid(&in_env).await, pid(&in_file).await],
    );
    until("a new token in the file", async || {
        token(&in_file).await != first
    })
    .await;
    let second = token(&in_file).await;
    assert_eq!(provider.introspect(&second).await["sub"], "ada");
    until("a new token in the environment", async || {
        token(&in_env).await != first
    })
    .await;
    assert_eq!(
        pid(&in_file).await,
        pids[1],
        "a file is rewritten below the child"
    );
    assert_ne!(pid(&in_env).await, pids[0]);
    // The token of the log-in ends early: it is refreshed, and the next exchange is by the new one.
    provider.forget().await;
    provider.ttl(3600).await;
    let before = token(&in_file).await;
    until("a token by a new log-in token", async || {
        let now = token(&in_file).await;
        now != before && provider.introspect(&now).await["active"] == true
    })
    .await;
    assert_eq!(pid(&in_file).await, pids[1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_of_the_provider_is_an_error_of_the_server_and_in_the_log() {
    let mut provider = Provider::start().await;
    let people = People::of(&provider.issuer, "ada", RESOURCE);
    let mut gateway = gateway(outbound(json!({})), people.tenant.clone()).await;
    let callback = format!("{}/t/a/oauth/callback/acme", gateway.origin());
    provider.callback(&callback).await;
    logged_in(&gateway, &provider).await;
    provider.ttl(8).await;
    let in_env = opened(&gateway, &people.ada, "s").await;
    provider.refuse("invalid_target").await;
    until("the end of the child", async || {
        in_env.call("env", json!({})).await["error"]["code"] == -31005
    })
    .await;
    assert_eq!(refused(&gateway, &people.ada, "f").await["code"], -31005);
    let logs = json!(gateway.end().await).to_string();
    assert!(
        logs.contains("refuses a token") && logs.contains("invalid_target"),
        "{logs}"
    );
}

/// The answer to an exchange, which may also be one to a refresh.
fn exchanged(access: &str, expires_in: u32) -> Value {
    json!({"access_token": access, "token_type": "Bearer", "expires_in": expires_in,
        "issued_token_type": "urn:ietf:params:oauth:token-type:access_token"})
}

/// Logs in the person "1" of a scripted provider, which gives tokens that live for so long.
async fn logged_in_at(gateway: &Served, hostile: &Hostile, expires_in: u32) {
    let mut browser = Browser::new();
    let sent = departed(gateway, &mut browser).await;
    let id_token = hostile.signed(&hostile.claims(&sent));
    let tokens = json!({"access_token": "canary-own", "token_type": "Bearer", "refresh_token": "canary-r",
        "expires_in": expires_in, "id_token": id_token});
    hostile.stage.json("/token", tokens);
    let state = &sent.answer()["state"];
    let url = format!("https://gw.test/t/a/oauth/callback/acme?code=c&state={state}");
    let done = browser.open(&gateway_url(gateway, &url)).await;
    assert_eq!(done.status, StatusCode::FOUND, "{}", done.text);
}

/// The exchanges that a scripted provider was asked for.
fn exchanges(hostile: &Hostile) -> Vec<String> {
    let mut asked = hostile.stage.asked("POST /token");
    asked.retain(|one| one.contains("token-exchange"));
    asked
}

#[tokio::test(flavor = "multi_thread")]
async fn one_exchange_at_a_time_is_asked_for_as_the_rfc_says() {
    let hostile = Hostile::start().await;
    let audience = "https://api.test/a b&c";
    let people = People::of(&hostile.stage.url, "1", audience);
    let mut gateway = gateway(outbound(json!({})), people.tenant.clone()).await;
    logged_in_at(&gateway, &hostile, 3600).await;
    // While the provider is away, nothing starts, and it is asked every few seconds.
    hostile.stage.set("/token", Answer::Json(503, json!({})));
    for _ in 0..3 {
        let answer = session(&gateway, &people.ada, "s")
            .post(&opening(NEWEST))
            .await;
        assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    }
    assert_eq!(exchanges(&hostile).len(), 1);
    hostile.stage.json("/token", exchanged("canary-1", 3600));
    until("an answer", async || {
        let answer = session(&gateway, &people.ada, "s")
            .post(&opening(NEWEST))
            .await;
        answer.status() == StatusCode::OK
    })
    .await;
    let before = exchanges(&hostile).len();
    let all =
        join_all(["s", "f", "s", "f"].map(|server| opened(&gateway, &people.ada, server))).await;
    for session in &all {
        assert_eq!(token(session).await, "canary-1");
    }
    let asked = exchanges(&hostile);
    assert_eq!(asked.len(), before, "the token lasts");
    let asked = asked.last().unwrap();
    for wanted in [
        "grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Atoken-exchange",
        "subject_token=canary-own",
        "subject_token_type=urn%3Aietf%3Aparams%3Aoauth%3Atoken-type%3Aaccess_token",
        "requested_token_type=urn%3Aietf%3Aparams%3Aoauth%3Atoken-type%3Aaccess_token",
        "audience=https%3A%2F%2Fapi.test%2Fa+b%26c",
    ] {
        assert!(asked.contains(wanted), "{wanted}: {asked}");
    }
    // gateway:secret, as the provider takes it for codes.
    assert!(
        asked
            .to_ascii_lowercase()
            .contains("authorization: basic z2f0zxdhetpzzwnyzxq="),
        "{asked}"
    );
    assert!(!asked.contains("refresh_token"), "{asked}");
    let logs = json!(gateway.end().await).to_string();
    assert!(!logs.contains("canary"), "{logs}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_audience_that_a_provider_does_not_list_is_not_asked_for() {
    let hostile = Hostile::start().await;
    let mut people = People::of(&hostile.stage.url, "1", RESOURCE);
    // Another provider of the tenant lists the audience of the slots.
    let mut other = openid("https://idp.test");
    other["exchange"] = people.tenant["providers"]["acme"]["exchange"].take();
    people.tenant["providers"]["acme"]["exchange"] = json!({"audiences": ["https://other.test"]});
    people.tenant["providers"]["other"] = other;
    let gateway = gateway(outbound(json!({})), people.tenant.clone()).await;
    logged_in_at(&gateway, &hostile, 3600).await;
    hostile.stage.json("/token", exchanged("canary-1", 3600));
    assert_eq!(refused(&gateway, &people.ada, "s").await["code"], -31005);
    assert!(exchanges(&hostile).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_token_of_a_log_in_is_refreshed_once_before_it_is_exchanged() {
    let hostile = Hostile::start().await;
    let people = People::of(&hostile.stage.url, "1", RESOURCE);
    let pair = Pair::of(outbound(json!({})), json!({"a": people.tenant})).await;
    let [first, second] = pair.both();
    hostile
        .stage
        .json("/user", json!({"sub": "1", "groups": ["eng"]}));
    logged_in_at(first, &hostile, 0).await;
    // It answers refreshes and exchanges alike.
    hostile.stage.json("/token", exchanged("canary-new", 3600));
    let all = join_all(
        [(first, "s"), (second, "s"), (first, "f"), (second, "f")]
            .map(|(replica, server)| opened(replica, &people.ada, server)),
    )
    .await;
    for session in &all {
        assert_eq!(token(session).await, "canary-new");
    }
    let refreshes = hostile.stage.asked("POST /token");
    let refreshes = refreshes
        .iter()
        .filter(|asked| asked.contains("refresh_token=canary-r"));
    assert_eq!(refreshes.count(), 1, "a rotated token is used once");
    let asked = exchanges(&hostile);
    assert!(
        (1..=2).contains(&asked.len()),
        "one at each replica: {asked:?}"
    );
    assert!(
        asked
            .iter()
            .all(|one| one.contains("subject_token=canary-new")),
        "{asked:?}"
    );
}

/// The time of a failure began before the request, so that a provider that hangs was asked by one start after the other.
#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_hangs_is_asked_once_for_all_starts_that_wait() {
    let hostile = Hostile::start().await;
    let people = People::of(&hostile.stage.url, "1", RESOURCE);
    let gateway = gateway(outbound(json!({})), people.tenant.clone()).await;
    // The token of the log-in has to be refreshed first.
    logged_in_at(&gateway, &hostile, 0).await;
    hostile.stage.set("/token", Answer::Slow);
    let starts = ["s", "f", "s"].map(|server| {
        let session = session(&gateway, &people.ada, server);
        async move { session.post(&opening(NEWEST)).await.status() }
    });
    let all = join_all(starts).await;
    assert_eq!(all, [StatusCode::SERVICE_UNAVAILABLE; 3]);
    let asked = hostile.stage.asked("POST /token");
    let refreshes = asked
        .iter()
        .filter(|one| one.contains("refresh_token=canary-r"));
    assert_eq!(refreshes.count(), 1, "{asked:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_whom_the_provider_lets_in_no_more_has_no_token() {
    let hostile = Hostile::start().await;
    let people = People::of(&hostile.stage.url, "1", RESOURCE);
    let gateway = gateway(outbound(json!({})), people.tenant.clone()).await;
    logged_in_at(&gateway, &hostile, 4).await;
    hostile.stage.json("/token", exchanged("canary-1", 4));
    let ada = opened(&gateway, &people.ada, "s").await;
    assert_eq!(token(&ada).await, "canary-1");
    hostile.stage.set(
        "/token",
        Answer::Json(400, json!({"error": "invalid_grant"})),
    );
    until("the end of the child", async || {
        ada.call("env", json!({})).await["error"]["code"] == -31005
    })
    .await;
    // The identity has ended: the next start asks nobody.
    until("the end of the identity", async || {
        let before = hostile.stage.asked("POST /token").len();
        refused(&gateway, &people.ada, "f").await["code"] == -31005
            && hostile.stage.asked("POST /token").len() == before
    })
    .await;
}

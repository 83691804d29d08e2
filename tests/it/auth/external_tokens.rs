//! Access tokens of other authorization servers: a real one with rotating keys, and hostile ones.

use std::time::Duration;

use jsonwebtoken::{Algorithm, EncodingKey};
use reqwest::{Method, Response, StatusCode, header::HeaderMap};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use crate::support::{
    harness::{
        BOTH, NEWEST, Session, body, child, client, client_with, json_of, opening, until, within,
    },
    issuer::{Issuer, Key, Mood, Provider, now, signed, unsigned},
    oauth_client::send,
    served::Served,
};

/// A gateway with tenants `a` and `b` that trust `issuer`, each with servers `x` and `y`.
pub(crate) async fn trusting(issuer: &str) -> Served {
    trusting_at(issuer, "").await
}

/// [`trusting`] with a public URL.
async fn trusting_at(issuer: &str, public_url: &str) -> Served {
    let server = || json!({"command": child()});
    let tenant = || {
        let scopes = ["files:read", "offline_access"];
        json!({"auth": {"mode": "external", "issuer": issuer, "scopes": scopes},
            "servers": {"x": server(), "y": server(),
                "few": {"command": child(), "grants": {"groups": ["app-group"]}}}})
    };
    let config = json!({"public_url": public_url, "outbound": {"allow": ["127.0.0.0/8"]},
        "default": {"tenant": "a", "server": "x"}});
    Served::start(config, json!({"a": tenant(), "b": tenant()})).await
}

/// A client that sends `token` with every request.
pub(crate) fn bearer(token: &str) -> reqwest::Client {
    let mut headers = HeaderMap::new();
    headers.insert("Authorization", format!("Bearer {token}").parse().unwrap());
    client_with(headers)
}

async fn initialize(url: &str, token: &str) -> Response {
    Session::at(bearer(token), url.to_owned())
        .post(&opening(NEWEST))
        .await
}

/// The status for a token, and the time until it.
async fn status(url: &str, token: &str) -> (StatusCode, Duration) {
    let began = Instant::now();
    let request = bearer(token).get(url).header("Accept", "text/event-stream");
    let response = within("a response", request.send()).await.unwrap();
    (response.status(), began.elapsed())
}

/// A valid token without a session id gets 400 and starts no child.
const TAKEN: StatusCode = StatusCode::BAD_REQUEST;

#[tokio::test]
async fn tokens_of_a_real_issuer() {
    let provider = Provider::start().await;
    let gateway = trusting(&provider.issuer).await;
    let url = gateway.stranger("a", "x").url;
    let app = provider.token("app", &url, "files:read").await;
    let mut session = Session::at(bearer(&app), url.clone());
    session.initialize(NEWEST).await;
    assert_eq!(session.text("echo", json!({"text": "hi"})).await, "hi");
    // The session belongs to the principal, not to the token.
    let fresh = provider.token("app", &url, "files:read files:write").await;
    assert_ne!(fresh, app);
    let mut again = session.again();
    again.http = bearer(&fresh);
    assert_eq!(again.text("counter", json!({})).await, "1");
    // A token of another client, with another algorithm: another principal.
    let curve = provider.token("curve", &url, "files:read").await;
    let mut thief = session.again();
    thief.http = bearer(&curve);
    let stolen = thief.begin("counter", json!({})).await;
    assert_eq!(stolen.status(), StatusCode::NOT_FOUND);
    assert_eq!(session.text("counter", json!({})).await, "2");
    // The token carries the groups.
    let few = gateway.stranger("a", "few").url;
    let app = provider.token("app", &few, "").await;
    let other = provider.token("other", &few, "").await;
    assert_eq!(status(&few, &app).await.0, TAKEN);
    assert_eq!(status(&few, &other).await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn tokens_are_for_one_server_only() {
    let key = Key::new("k");
    let issuer = Issuer::start(&[&key]).await;
    let gateway = trusting(&issuer.url).await;
    let url = |tenant, server| gateway.stranger(tenant, server).url;
    let (own, base) = (url("a", "x"), url("a", "x").replace("/t/a/x/mcp", ""));
    let token = key.sign(&issuer.claims(&own));
    for (at, is_good) in [
        (own.clone(), true),
        (own.replace("/mcp", "/sse"), true),
        // The default server has two URLs.
        (format!("{base}/mcp"), true),
        (url("a", "y"), false),
        (url("b", "x"), false),
        (url("a", "x2"), false),
    ] {
        let wrong_accept = bearer(&token).get(&at).header("Accept", "application/json");
        let code = within("a response", wrong_accept.send())
            .await
            .unwrap()
            .status();
        let wanted = if is_good {
            StatusCode::NOT_ACCEPTABLE
        } else {
            StatusCode::UNAUTHORIZED
        };
        assert_eq!(code, wanted, "{at}");
    }
    for resource in [
        format!("{own}/"),
        own.replace("/mcp", ""),
        own.replace("/mcp", "/messages"),
        own.replace("/a/x", "/A/x"),
        own.replace("http:", "https:"),
        own.replace("127.0.0.1", "127.0.0.2"),
        format!("{own}?a=b"),
        base.clone(),
        "https://elsewhere.test/mcp".to_owned(),
    ] {
        let token = key.sign(&issuer.claims(&resource));
        assert_eq!(
            status(&own, &token).await.0,
            StatusCode::UNAUTHORIZED,
            "{resource}"
        );
    }
    // The other names of this machine are the same host.
    for name in ["localhost", "[::1]"] {
        let token = key.sign(&issuer.claims(&own.replace("127.0.0.1", name)));
        assert_eq!(status(&own, &token).await.0, TAKEN, "{name}");
    }
}

/// Tokens as Entra and Keycloak write them: the application as audience, roles within an object, scopes elsewhere.
#[tokio::test]
async fn tokens_are_read_as_the_issuer_writes_them() {
    let key = Key::new("k");
    let issuer = Issuer::start(&[&key]).await;
    let tenant = |audiences: Value| {
        json!({
            "auth": {"mode": "external", "issuer": issuer.url, "audiences": audiences,
                "groups_claim": "realm_access.roles", "groups_map": {"0b1c": "staff"}, "scopes_claim": "permissions"},
            "servers": {
                "x": {"command": child(), "policy": {"scopes": {"env": ["read"]}},
                    "grants": {"groups": {"staff": ["read"]}}},
                "y": {"command": child(), "grants": {"groups": ["0b1c"]}},
            },
        })
    };
    let config = json!({"outbound": {"allow": ["127.0.0.0/8"]}});
    let tenants =
        json!({"a": tenant(json!(["api://app", "other"])), "b": tenant(json!(["api://b"]))});
    let gateway = Served::start(config, tenants).await;
    let url = |tenant, server| gateway.stranger(tenant, server).url;
    let token = |audience: &str, roles: Value| {
        let mut claims = issuer.claims(audience);
        claims["realm_access"] = json!({ "roles": roles });
        claims["permissions"] = json!(["read", "write"]);
        key.sign(&claims)
    };
    let good = token("api://app", json!(["0b1c", "unknown"]));
    let mut session = Session::at(bearer(&good), url("a", "x"));
    session.initialize(NEWEST).await;
    assert_eq!(session.call("env", json!({})).await["error"], Value::Null);
    for (at, token, wanted) in [
        (url("a", "x"), token(&url("a", "x"), json!(["0b1c"])), TAKEN),
        (
            url("a", "x"),
            token("api://app", json!(["staff"])),
            StatusCode::NOT_FOUND,
        ),
        (url("a", "y"), good.clone(), StatusCode::NOT_FOUND),
        (url("b", "x"), good.clone(), StatusCode::UNAUTHORIZED),
        (
            url("a", "x"),
            token("api://ap", json!(["0b1c"])),
            StatusCode::UNAUTHORIZED,
        ),
        (
            url("a", "x"),
            token(&url("a", "y"), json!(["0b1c"])),
            StatusCode::UNAUTHORIZED,
        ),
    ] {
        assert_eq!(status(&at, &token).await.0, wanted, "{at}");
    }
}

#[tokio::test]
async fn rotated_keys_cost_no_valid_token_anything() {
    let mut provider = Provider::start().await;
    let gateway = trusting(&provider.issuer).await;
    let url = gateway.stranger("a", "x").url;
    let first = provider.token("app", &url, "").await;
    let (stop, mut stopped) = tokio::sync::watch::channel(false);
    let load = {
        let (url, first) = (url.clone(), first.clone());
        tokio::spawn(async move {
            let (mut count, mut refused) = (0, 0);
            while !*stopped.borrow_and_update() {
                count += 1;
                refused += u32::from(status(&url, &first).await.0 != TAKEN);
            }
            (count, refused)
        })
    };
    for name in ["app", "curve"] {
        provider.rotate().await;
        for _ in 0..5 {
            let token = provider.token(name, &url, "").await;
            assert_eq!(status(&url, &token).await.0, TAKEN);
        }
    }
    stop.send(true).unwrap();
    let (count, refused) = within("the load", load).await.unwrap();
    assert!(count > 10 && refused == 0, "{refused} of {count}");
    // A removed key is refused after the next fetch of the keys. An unknown key triggers it.
    provider.retire().await;
    provider.rotate().await;
    let last = provider.token("app", &url, "").await;
    assert_eq!(status(&url, &last).await.0, TAKEN);
    assert_eq!(status(&url, &first).await.0, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn metadata_of_each_url() {
    let key = Key::new("k");
    let issuer = Issuer::start(&[&key]).await;
    let gateway = trusting(&issuer.url).await;
    let base = gateway.stranger("a", "x").url.replace("/t/a/x/mcp", "");
    for path in [
        "/t/a/x/mcp",
        "/t/a/x/sse",
        "/t/b/y/mcp",
        "/mcp",
        "/sse",
        "/t/a/unknown/mcp",
    ] {
        let page = client()
            .get(format!("{base}/.well-known/oauth-protected-resource{path}"))
            .header("Origin", "https://elsewhere.test");
        let answer = within("metadata", page.send()).await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK, "{path}");
        assert_eq!(answer.headers()["access-control-allow-origin"], "*");
        assert!(
            !answer
                .headers()
                .contains_key("access-control-allow-credentials")
        );
        assert_eq!(
            json_of(answer).await,
            json!({"resource": format!("{base}{path}"), "authorization_servers": [issuer.url],
                "bearer_methods_supported": ["header"], "scopes_supported": ["files:read"],
                "dpop_signing_alg_values_supported":
                    ["ES256", "Ed25519", "EdDSA", "RS256", "PS256"]})
        );
        // The challenge names this document.
        let refused = client().get(format!("{base}{path}")).send();
        let refused = within("a challenge", refused).await.unwrap();
        assert_eq!(refused.status(), StatusCode::UNAUTHORIZED);
        let wanted = format!(
            "Bearer resource_metadata=\"{base}/.well-known/oauth-protected-resource{path}\", scope=\"files:read\""
        );
        assert_eq!(refused.headers()["www-authenticate"], wanted);
    }
}

#[tokio::test]
async fn there_is_no_metadata_of_anything_else() {
    let key = Key::new("k");
    let issuer = Issuer::start(&[&key]).await;
    let gateway = trusting(&issuer.url).await;
    let base = gateway.stranger("a", "x").url.replace("/t/a/x/mcp", "");
    for path in [
        "",
        "/",
        "/t/a/x",
        "/t/a/x/messages",
        "/t/c/x/mcp",
        "/t/a/x/mcp/",
        "/messages",
        "/t/a/x/mcp/y",
    ] {
        let url = format!("{base}/.well-known/oauth-protected-resource{path}");
        let answer = within("nothing", client().get(url).send()).await.unwrap();
        assert_eq!(answer.status(), StatusCode::NOT_FOUND, "{path}");
    }
    let preflight = client()
        .request(
            Method::OPTIONS,
            format!("{base}/.well-known/oauth-protected-resource/mcp"),
        )
        .header("Origin", "https://elsewhere.test")
        .header("Access-Control-Request-Method", "GET")
        .header("Access-Control-Request-Headers", "mcp-protocol-version");
    let answer = within("a preflight", preflight.send()).await.unwrap();
    assert_eq!(answer.headers()["access-control-allow-origin"], "*");
    let allowed = answer.headers()["access-control-allow-headers"]
        .to_str()
        .unwrap();
    assert!(allowed.contains("mcp-protocol-version"), "{allowed}");
}

#[tokio::test]
async fn a_public_url_may_have_a_path() {
    let key = Key::new("k");
    let issuer = Issuer::start(&[&key]).await;
    let gateway = trusting_at(&issuer.url, "https://gw.test/mcp/v1").await;
    let here = gateway.stranger("a", "x").url;
    let base = here.replace("/t/a/x/mcp", "/.well-known/oauth-protected-resource");
    let there = "https://gw.test/mcp/v1/t/a/x/mcp";
    let page = client().get(format!("{base}/mcp/v1/t/a/x/mcp")).send();
    let page = json_of(within("metadata", page).await.unwrap()).await;
    assert_eq!(page["resource"], there);
    for path in ["/t/a/x/mcp", "/mcp", "/mcp/v2/t/a/x/mcp"] {
        let page = client().get(format!("{base}{path}")).send();
        let page = within("nothing", page).await.unwrap();
        assert_eq!(page.status(), StatusCode::NOT_FOUND, "{path}");
    }
    let refused = initialize(&here, "abc").await;
    let challenge = refused.headers()["www-authenticate"].to_str().unwrap();
    let named = "https://gw.test/.well-known/oauth-protected-resource/mcp/v1/t/a/x/mcp";
    assert!(challenge.contains(&format!("=\"{named}\"")), "{challenge}");
    let good = key.sign(&issuer.claims(there));
    assert_eq!(status(&here, &good).await.0, TAKEN);
    let local = key.sign(&issuer.claims(&here));
    assert_eq!(status(&here, &local).await.0, StatusCode::UNAUTHORIZED);
}

/// Tokens that a forger can make from public data.
fn forged_signatures(issuer: &Issuer, key: &Key, url: &str) -> Vec<(&'static str, String)> {
    let good = issuer.claims(url);
    let thief = Key::new(&key.kid);
    let text = good.to_string();
    let header = |more: Value| header(key, more);
    let hmac = |secret: &str| {
        let secret = EncodingKey::from_secret(secret.as_bytes());
        let header = header(json!({"alg": "HS256"}));
        signed(&header, &text, &secret, Algorithm::HS256)
    };
    let none = |alg: &str| format!("{}.", unsigned(&header(json!({"alg": alg})), &text));
    let own = key.sign(&good);
    let (head, _) = own.rsplit_once('.').unwrap();
    let other = key.sign(&json!({"iss": issuer.url, "sub": "eve"}));
    let other = other.rsplit_once('.').unwrap().1;
    let place = "http://127.0.0.1:1/";
    let brought = json!({"jwk": thief.public(), "jku": place, "x5u": place});
    let with = |more: Value| key.sign_as(&header(more), &text);
    let twice = header(json!({})).replacen('{', "{\"alg\":\"none\",", 1);
    vec![
        ("alg none", none("none")),
        ("alg None", none("None")),
        ("no signature", format!("{head}.")),
        ("the signature of another", format!("{head}.{other}")),
        ("HS256 with the key", hmac(&key.public().to_string())),
        (
            "HS256 with its x",
            hmac(key.public()["x"].as_str().unwrap()),
        ),
        ("HS256 with nothing", hmac("")),
        ("a swapped key", thief.sign(&good)),
        (
            "a key that it brings",
            thief.sign_as(&header(brought), &text),
        ),
        ("crit", with(json!({"crit": ["exp"]}))),
        ("another type", with(json!({"typ": "id+jwt"}))),
        ("a header name twice", key.sign_as(&twice, &text)),
        ("no token at all", "abc".to_owned()),
    ]
}

/// Signed tokens that are not valid access tokens of this server.
fn misused(issuer: &Issuer, key: &Key, url: &str) -> Vec<(&'static str, String)> {
    let good = issuer.claims(url);
    let text = good.to_string();
    let with = |name: &str, value: Value| {
        let mut claims = good.clone();
        claims[name] = value;
        key.sign(&claims)
    };
    let own = header(key, json!({}));
    let plain = header(key, json!({"typ": "JWT"}));
    let add = |header: &str, more: &str| key.sign_as(header, &text.replacen('{', more, 1));
    let elsewhere = "https://elsewhere.test";
    vec![
        ("a name twice", add(&own, "{\"sub\":\"eve\",")),
        (
            "an escaped name twice",
            add(&own, "{\"s\\u0075b\":\"eve\","),
        ),
        ("another issuer", with("iss", json!(elsewhere))),
        ("a slash", with("iss", json!(format!("{}/", issuer.url)))),
        ("another audience", with("aud", json!(elsewhere))),
        ("an empty audience", with("aud", json!([]))),
        ("expired", with("exp", json!(now() - 61))),
        ("a text", with("exp", json!((now() + 300).to_string()))),
        ("not valid yet", with("nbf", json!(now() + 120))),
        ("no subject", with("sub", json!(""))),
        ("no client", with("client_id", json!(""))),
        ("an ID token", add(&plain, "{\"nonce\":\"n\",")),
        ("9 KiB", with("x", json!("y".repeat(7000)))),
    ]
}

/// The header of a valid token, with the members of `more`.
fn header(key: &Key, more: Value) -> String {
    let mut header = json!({"alg": "ES256", "typ": "at+jwt", "kid": key.kid});
    let more = more.as_object().unwrap().clone();
    header.as_object_mut().unwrap().extend(more);
    header.to_string()
}

#[tokio::test]
async fn forged_tokens_are_worth_nothing() {
    let key = Key::new("k");
    let issuer = Issuer::start(&[&key]).await;
    let gateway = trusting(&issuer.url).await;
    let url = gateway.stranger("a", "x").url;
    let claims = issuer.claims(&url);
    assert_eq!(status(&url, &key.sign(&claims)).await.0, TAKEN);
    let hits = issuer.hits();
    let mut forged = forged_signatures(&issuer, &key, &url);
    forged.extend(misused(&issuer, &key, &url));
    for (name, token) in forged {
        let refused = initialize(&url, &token).await;
        assert_eq!(refused.status(), StatusCode::UNAUTHORIZED, "{name}");
        let challenge = refused.headers()["www-authenticate"].to_str().unwrap();
        assert!(
            challenge.starts_with("Bearer error=\"invalid_token\", resource_metadata=\""),
            "{challenge}"
        );
        let (_, took) = status(&url, &token).await;
        assert!(took < Duration::from_millis(500), "{name} took {took:?}");
    }
    assert_eq!(issuer.hits(), hits, "nothing was asked");
    // Unusual but valid tokens.
    let plain = json!({"alg": "ES256", "kid": "k"}).to_string();
    let mut azp = claims.clone();
    azp.as_object_mut().unwrap().remove("client_id");
    azp["azp"] = json!("app");
    azp["aud"] = json!(["https://elsewhere.test", url]);
    let mut late = claims.clone();
    late["exp"] = json!(now() - 30);
    late["nbf"] = json!(now() + 30);
    for token in [
        key.sign_as(&plain, &azp.to_string()),
        key.sign(&late),
        key.sign_as(&json!({"alg": "ES256"}).to_string(), &claims.to_string()),
    ] {
        assert_eq!(status(&url, &token).await.0, TAKEN);
    }
    assert!(gateway.descendants().is_empty(), "no child was started");
}

#[tokio::test]
async fn unknown_keys_cause_few_requests() {
    let key = Key::new("k");
    let issuer = Issuer::start(&[&key]).await;
    let gateway = trusting(&issuer.url).await;
    let url = gateway.stranger("a", "x").url;
    let claims = issuer.claims(&url);
    // All requests wait for the same fetch of metadata and keys.
    let token = key.sign(&claims);
    let all = (0..20).map(|_| status(&url, &token));
    let all = futures_util::future::join_all(all).await;
    assert!(all.iter().all(|(code, _)| *code == TAKEN), "{all:?}");
    assert_eq!(issuer.hits(), 2);
    for kid in ["../../etc/passwd", "' OR 1=1 --", "x\u{0}", "k "] {
        for _ in 0..10 {
            let token = Key::new(kid).sign(&claims);
            assert_eq!(
                status(&url, &token).await.0,
                StatusCode::UNAUTHORIZED,
                "{kid}"
            );
        }
    }
    // From then on nobody asks the issuer for a while: what it would say of other keys is not known.
    let mut asked = 0;
    for number in 0..50 {
        let token = Key::new(&number.to_string()).sign(&claims);
        match status(&url, &token).await.0 {
            StatusCode::UNAUTHORIZED => asked += 1,
            other => assert_eq!(other, StatusCode::SERVICE_UNAVAILABLE),
        }
    }
    assert!(asked <= 1, "{asked}");
    assert!(issuer.hits() <= 12, "{}", issuer.hits());
    assert_eq!(status(&url, &token).await.0, TAKEN);
    // One that is new ends no log-in: it is known after the time that its client is told, if it is not by now.
    let next = Key::new("next");
    issuer.publish(&[&key, &next]);
    let answer = initialize(&url, &next.sign(&claims)).await;
    if answer.status() != StatusCode::OK {
        assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
        let wait = answer.headers()["retry-after"].to_str().unwrap();
        let wait: u64 = wait.parse().unwrap();
        assert!((1..=15).contains(&wait), "{wait}");
    }
}

#[tokio::test]
async fn keys_that_cannot_be_had_are_503_and_never_401() {
    let key = Key::new("k");
    for mood in [
        Mood::Gone,
        Mood::Slow,
        Mood::Huge,
        Mood::Redirecting,
        Mood::Html,
        Mood::Failing,
        Mood::Foreign,
        Mood::Steering,
    ] {
        let issuer = Issuer::start(&[&key]).await;
        issuer.turn(mood);
        let gateway = trusting(&issuer.url).await;
        let url = gateway.stranger("a", "x").url;
        let token = key.sign(&issuer.claims(&url));
        let began = Instant::now();
        let refused = initialize(&url, &token).await;
        assert_eq!(
            refused.status(),
            StatusCode::SERVICE_UNAVAILABLE,
            "{mood:?}"
        );
        assert!(
            began.elapsed() < Duration::from_secs(8),
            "{mood:?}: {:?}",
            began.elapsed()
        );
        let retry: u64 = refused.headers()["retry-after"]
            .to_str()
            .unwrap()
            .parse()
            .unwrap();
        assert!((1..=30).contains(&retry) && !refused.headers().contains_key("www-authenticate"));
        let hits = issuer.hits();
        assert_eq!(
            status(&url, &token).await.0,
            StatusCode::SERVICE_UNAVAILABLE
        );
        assert_eq!(issuer.hits(), hits, "{mood:?}: not asked again at once");
        // An invalid token still gets 401.
        let forged = unsigned(r#"{"alg":"none"}"#, "{}");
        assert_eq!(
            status(&url, &format!("{forged}.")).await.0,
            StatusCode::UNAUTHORIZED
        );
        issuer.turn(Mood::Good);
        until("it is believed again", async || {
            status(&url, &token).await.0 == TAKEN
        })
        .await;
    }
}

/// Certificates on a disk that hangs: an https request waits for a bounded time, an http request
/// does not need them, and the gateway stops in time.
#[tokio::test]
async fn certificates_that_cannot_be_read_hold_up_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("certificates");
    let made = std::process::Command::new("mkfifo").arg(&file).status();
    assert!(made.unwrap().success());
    let key = Key::new("k");
    let issuer = Issuer::start(&[&key]).await;
    let secure = issuer.url.replace("http:", "https:");
    let tenant = |issuer: &str| {
        json!({"auth": {"mode": "external", "issuer": issuer},
            "servers": {"x": {"command": child()}}})
    };
    let mut gateway = Served::with(
        &[
            ("SSL_CERT_FILE", file.to_str().unwrap()),
            ("SSL_CERT_DIR", "/nowhere"),
        ],
        // One thread for all tasks: a call that blocks it stops them all.
        json!({"outbound": {"allow": ["127.0.0.0/8"]}, "limits": {"workers": 1}}),
        json!({"a": tenant(&issuer.url), "b": tenant(&secure)}),
    )
    .await;
    let url = gateway.stranger("b", "x").url;
    let mut claims = issuer.claims(&url);
    claims["iss"] = json!(secure);
    let limit = Duration::from_secs(8);
    let token = key.sign(&claims);
    let refused = timeout(limit, status(&url, &token)).await;
    assert_eq!(refused.unwrap().0, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(issuer.hits(), 0);
    let url = gateway.stranger("a", "x").url;
    let token = key.sign(&issuer.claims(&url));
    let taken = timeout(limit, status(&url, &token)).await;
    assert_eq!(taken.unwrap().0, TAKEN);
    gateway.stop().await;
}

#[tokio::test]
async fn keys_outlive_a_short_absence_of_their_issuer() {
    let (key, next) = (Key::new("k"), Key::new("next"));
    let issuer = Issuer::start(&[&key]).await;
    let gateway = trusting(&issuer.url).await;
    let url = gateway.stranger("a", "x").url;
    let claims = issuer.claims(&url);
    assert_eq!(status(&url, &key.sign(&claims)).await.0, TAKEN);
    issuer.turn(Mood::Gone);
    // The key may be there by now: a 401 would end the log-in of the client.
    for _ in 0..2 {
        let refused = initialize(&url, &next.sign(&claims)).await;
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
        let headers = refused.headers();
        assert!(headers.contains_key("retry-after") && !headers.contains_key("www-authenticate"));
    }
    let mut other = claims.clone();
    other["jti"] = json!("another token, so that the signature is looked at again");
    assert_eq!(status(&url, &key.sign(&other)).await.0, TAKEN);
    issuer.turn(Mood::Good);
    issuer.publish(&[&key, &next]);
    until("the new key is known", async || {
        status(&url, &next.sign(&other)).await.0 == TAKEN
    })
    .await;
}

#[tokio::test]
async fn issuers_on_the_own_network_need_leave() {
    let key = Key::new("k");
    let issuer = Issuer::start(&[&key]).await;
    let dir = tempfile::tempdir().unwrap();
    let manifest = dir.path().join("m.json");
    let named = json!({"tenants": {"a": {"auth": {"mode": "external", "issuer": issuer.url},
        "servers": {"x": {"command": child()}}}}});
    std::fs::write(&manifest, named.to_string()).unwrap();
    let checked = std::process::Command::new(env!("CARGO_BIN_EXE_lockgate"))
        .args([
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--set",
            "ops.listen=",
            "--apply",
        ])
        .arg(&manifest)
        .args(["--set", &format!("data_dir={}", dir.path().display())])
        .output()
        .unwrap();
    assert_eq!(checked.status.code(), Some(2));
    let said = String::from_utf8(checked.stderr).unwrap();
    assert!(
        said.contains("tenants.a.auth.issuer: is asked by http"),
        "{said}"
    );
    // Each start warns of the allowed address range.
    let mut allowed = trusting(&issuer.url).await;
    let logs = allowed.end().await;
    let told = |line: &&Value| line["allow"] == "127.0.0.0/8" && line["level"] == "WARN";
    assert_eq!(logs.iter().filter(told).count(), 1, "{logs:?}");
    // With https the gateway starts but does not connect: the address is not public.
    let secret = issuer.url.replace("http:", "https:");
    let tenants = json!({"a": {"auth": {"mode": "external", "issuer": secret},
        "servers": {"x": {"command": child()}}}});
    let gateway = Served::start(json!({}), tenants).await;
    let url = gateway.stranger("a", "x").url;
    let mut claims = issuer.claims(&url);
    claims["iss"] = json!(secret);
    let code = status(&url, &key.sign(&claims)).await.0;
    assert_eq!((code, issuer.hits()), (StatusCode::SERVICE_UNAVAILABLE, 0));
}

/// Where everybody may know the servers, a mistyped one is a page that says so; clients get the error.
#[tokio::test]
async fn a_mistyped_server_is_a_page_that_is_404() {
    let tenants = json!({"a": {"auth": {"mode": "none"}, "servers": {"x": {"command": child()}}}});
    let gateway = Served::start(json!({}), tenants).await;
    for (tenant, server, code, says) in [
        ("a", "x", StatusCode::OK, "<h1>x</h1>"),
        ("a", "y", StatusCode::NOT_FOUND, "<h1>No such server</h1>"),
        ("b", "x", StatusCode::NOT_FOUND, "<h1>No such server</h1>"),
    ] {
        let url = gateway.stranger(tenant, server).url;
        let page = client().get(&url).header("Accept", "text/html,*/*;q=0.8");
        let page = within("a page", page.send()).await.unwrap();
        assert_eq!(page.status(), code, "{url}");
        let text = body(page).await;
        assert!(text.contains(says), "{text}");
        let stream = client().get(&url).header("Accept", BOTH).send();
        let refused = within("a refusal", stream).await.unwrap();
        assert!(body(refused).await.starts_with(r#"{"jsonrpc""#), "{url}");
    }
}

#[tokio::test]
async fn a_browser_page_needs_no_token() {
    let key = Key::new("k");
    let issuer = Issuer::start(&[&key]).await;
    let gateway = trusting(&issuer.url).await;
    for server in ["x", "unknown"] {
        let url = gateway.stranger("a", server).url;
        let page = client().get(&url).header("Accept", "text/html,*/*;q=0.8");
        let page = within("a page", page.send()).await.unwrap();
        assert_eq!(page.status(), StatusCode::OK);
        assert!(body(page).await.contains(&url));
        let stream = client().get(&url).header("Accept", BOTH).send();
        let refused = within("a refusal", stream).await.unwrap();
        assert_eq!(refused.status(), StatusCode::UNAUTHORIZED);
    }
}

/// A gateway whose tenant asks the issuer about opaque tokens.
async fn asking(provider: &Provider, secret: &str) -> Served {
    let auth = json!({"mode": "external", "issuer": provider.issuer, "scopes": ["files:read"]});
    let asks = json!({"client_id": "introspector", "client_secret": secret});
    let few = json!({"command": child(), "grants": {"groups": ["app-group"]}});
    let tenants = json!({"opaque": {"auth": auth, "introspection": asks,
        "servers": {"x": {"command": child()}, "y": {"command": child()}, "few": few}}});
    let config = json!({"outbound": {"allow": ["127.0.0.0/8"]}});
    Served::start(config, tenants).await
}

const INTROSPECTOR: &str = "a secret: of%20spaces";

/// RFC 7662: the issuer says whether an opaque token is active, for whom, for which server and until when.
#[tokio::test]
async fn a_real_issuer_is_asked_about_opaque_tokens() {
    let provider = Provider::start().await;
    let gateway = asking(&provider, INTROSPECTOR).await;
    let url = |server: &str| gateway.stranger("opaque", server).url;
    let token = provider.token("app", &url("x"), "files:read").await;
    assert!(!token.contains('.'), "{token}");
    let mut session = Session::at(bearer(&token), url("x"));
    session.initialize(NEWEST).await;
    assert_eq!(session.text("echo", json!({"text": "hi"})).await, "hi");
    assert_eq!(
        status(&url("y"), &token).await.0,
        StatusCode::UNAUTHORIZED,
        "another audience"
    );
    let other = provider.token("other", &url("x"), "").await;
    let mut thief = session.again();
    thief.http = bearer(&other);
    let stolen = thief.begin("counter", json!({})).await;
    assert_eq!(stolen.status(), StatusCode::NOT_FOUND, "another client");
    for (client, wanted) in [("app", TAKEN), ("other", StatusCode::NOT_FOUND)] {
        let token = provider.token(client, &url("few"), "").await;
        assert_eq!(status(&url("few"), &token).await.0, wanted, "{client}");
    }
    let revoked = provider.token("app", &url("x"), "").await;
    provider.revoke("app", &revoked).await;
    for bad in [&*revoked, "nobody-issued-this", &"x".repeat(5000)] {
        assert_eq!(status(&url("x"), bad).await.0, StatusCode::UNAUTHORIZED);
    }
    let key = gateway.administrator();
    let path = format!("{}/api/v1/tenants/opaque", gateway.origin());
    let shown = send(Method::GET, &path, &key, None).await.body.to_string();
    assert!(
        shown.contains("external") && !shown.contains("of%20spaces"),
        "{shown}"
    );
}

/// An issuer that says nothing lets nobody in, and is not asked for each request.
#[tokio::test]
async fn an_issuer_that_does_not_answer_lets_no_opaque_token_in() {
    let provider = Provider::start().await;
    let (gateway, wrong) =
        tokio::join!(asking(&provider, INTROSPECTOR), asking(&provider, "wrong"));
    let url = gateway.stranger("opaque", "x").url;
    let known = provider.token("app", &url, "").await;
    let unknown = provider.token("app", &url, "").await;
    assert_eq!(status(&url, &known).await.0, TAKEN);
    let there = wrong.stranger("opaque", "x").url;
    let token = provider.token("app", &there, "").await;
    let refused = bearer(&token)
        .get(&there)
        .header("Accept", "text/event-stream")
        .send();
    let refused = within("a refusal", refused).await.unwrap();
    assert_eq!(
        refused.status(),
        StatusCode::SERVICE_UNAVAILABLE,
        "the gateway's own secret"
    );
    assert!(refused.headers().contains_key("retry-after"));
    drop(provider);
    assert_eq!(
        status(&url, &unknown).await.0,
        StatusCode::SERVICE_UNAVAILABLE
    );
    assert_eq!(
        status(&url, &known).await.0,
        TAKEN,
        "what it has said is believed for a while"
    );
}

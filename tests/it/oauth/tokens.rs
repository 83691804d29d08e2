//! Codes, access tokens and refresh tokens: exchange, refresh, revocation, client authentication,
//! limits.

#![expect(clippy::too_many_lines, reason = "tables of requests, each one story")]

use std::time::Duration;

use reqwest::{Method, StatusCode, header::WWW_AUTHENTICATE};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::cli::commands::stranger;
use crate::support::{
    harness::{child, client, until, within},
    issuer::{Key, now},
    oauth_client::{
        Answer, App, BACK, SECRET, VERIFIER, basic, gateway, post, post_with, register, said, send,
    },
    postgres::Postgres,
    served::Served,
};

async fn gets_tokens(config: Value) {
    let gateway = gateway(config).await;
    let app = App::public(&gateway, "a").await;
    let both = ("scope", "files:read files:write");
    let answer = app.answer(&[both]).await;
    assert_eq!(answer["iss"], format!("{}/t/a", gateway.origin()));
    let tokens = app.redeem(&answer["code"], &[]).await;
    let at = now();
    assert_eq!(tokens.status, StatusCode::OK, "{}", tokens.body);
    tokens.assert_not_kept();
    assert_eq!(tokens.text("token_type"), "Bearer");
    assert!(tokens.text("refresh_token").starts_with("lgr_"));
    assert_eq!(tokens.text("scope"), "files:read files:write");
    // The header and the claims of RFC 9068.
    let (header, claims) = said(&tokens.text("access_token"));
    assert_eq!(
        (&header["typ"], &header["alg"]),
        (&json!("at+jwt"), &json!("EdDSA"))
    );
    assert!(header["kid"].is_string());
    let resource = format!("{}/t/a/x/mcp", gateway.origin());
    for (name, wanted) in [
        ("iss", json!(format!("{}/t/a", gateway.origin()))),
        ("sub", json!("ada")),
        ("aud", json!(resource)),
        ("client_id", json!(app.id)),
        ("scope", json!("files:read files:write")),
        ("groups", json!(["eng"])),
    ] {
        assert_eq!(claims[name], wanted, "{name}");
    }
    assert!(claims["jti"].is_string() && claims["grant"].is_string());
    assert_eq!(claims.get("nbf"), None);
    // Exact to 2 s, and at most 15 minutes.
    let (expires, issued) = (
        claims["exp"].as_u64().unwrap(),
        claims["iat"].as_u64().unwrap(),
    );
    let expires_in = tokens.body["expires_in"].as_u64().unwrap();
    assert!((at + expires_in).abs_diff(expires) <= 2 && expires_in <= 900);
    assert!(issued.abs_diff(at) <= 2);
    // A refresh right after the exchange.
    let next = app.refresh(&tokens.text("refresh_token"), &[]).await;
    assert_eq!(next.status, StatusCode::OK, "{}", next.body);
    next.assert_not_kept();
    assert_ne!(next.text("refresh_token"), tokens.text("refresh_token"));
    assert_ne!(said(&next.text("access_token")).1["jti"], claims["jti"]);
    for token in [&tokens, &next] {
        assert!(app.reaches("x", &token.text("access_token")).await);
        assert!(
            !app.reaches("y", &token.text("access_token")).await,
            "another audience"
        );
    }
}

#[tokio::test]
async fn a_code_becomes_tokens_on_sqlite() {
    gets_tokens(json!({})).await;
}

#[tokio::test]
async fn a_code_becomes_tokens_on_postgres() {
    let postgres = Postgres::start();
    gets_tokens(json!({"sql": {"url": postgres.url()}})).await;
}

/// RFC 6749, section 3.1: no parameter twice, none in the query.
#[tokio::test]
async fn invalid_token_requests_are_refused() {
    let gateway = gateway(json!({"oauth": {"failures": 1000}})).await;
    let app = App::public(&gateway, "a").await;
    let url = app.endpoint("token");
    for kind in [
        "password",
        "client_credentials",
        "implicit",
        "urn:ietf:params:oauth:grant-type:jwt-bearer",
    ] {
        let refused = app.ask(&[("grant_type", kind), ("username", "ada")]).await;
        refused.assert_refused(400, "unsupported_grant_type");
    }
    let code = ("grant_type", "authorization_code");
    for fields in [
        &[][..],
        &[("grant_type", "")],
        &[code],
        &[code, ("code", "lgc_x")],
        &[code, ("code", ""), ("code_verifier", VERIFIER)],
        &[("grant_type", "refresh_token")],
        &[code, code, ("code", "lgc_x"), ("code_verifier", VERIFIER)],
        &[
            code,
            ("code", "lgc_x"),
            ("code", "lgc_x"),
            ("code_verifier", VERIFIER),
        ],
        &[
            ("grant_type", "refresh_token"),
            ("refresh_token", "lgr_x"),
            ("scope", "a"),
            ("scope", "b"),
        ],
    ] {
        let all = [&[("client_id", app.id.as_str())], fields].concat();
        post(&url, &all)
            .await
            .assert_refused(400, "invalid_request");
    }
    let two = [("resource", "x"), ("resource", "x")];
    let refused = app.refresh("lgr_x", &two).await;
    refused.assert_refused(400, "invalid_target");
    let in_query = format!(
        "{url}?grant_type=refresh_token&refresh_token=lgr_x&client_id={}",
        app.id
    );
    post(&in_query, &[])
        .await
        .assert_refused(400, "invalid_request");
    let mixed = format!("{url}?resource=x");
    let fields = [
        code,
        ("client_id", app.id.as_str()),
        ("code", "x"),
        ("code_verifier", VERIFIER),
    ];
    let refused = post(&mixed, &fields).await;
    refused.assert_refused(400, "invalid_request");
    for (kind, body) in [
        ("application/json", r#"{"grant_type":"refresh_token"}"#),
        ("text/plain", "grant_type=refresh_token"),
        ("application/x-www-form-urlencoded", "grant_type=%zz"),
        ("application/x-www-form-urlencoded", "grant_type=%ff"),
    ] {
        let asked = client().post(&url).header("Content-Type", kind).body(body);
        let refused = Answer::of(within("an answer", asked.send()).await.unwrap()).await;
        refused.assert_refused(400, "invalid_request");
    }
    let long = "x".repeat(70_000);
    let refused = post(&url, &[("grant_type", &long)]).await;
    refused.assert_refused(413, "invalid_request");
    let got = within("an answer", client().get(&url).send())
        .await
        .unwrap();
    assert_eq!(got.status(), StatusCode::METHOD_NOT_ALLOWED);
}

#[tokio::test]
async fn codes_end_soon() {
    let gateway = gateway(json!({"oauth": {"code": "1s"}})).await;
    let app = App::public(&gateway, "a").await;
    let code = app.code(&[]).await;
    sleep(Duration::from_millis(1100)).await;
    app.redeem(&code, &[])
        .await
        .assert_refused(400, "invalid_grant");
}

/// A code that is used wrongly is spent.
async fn spoils_codes(config: Value) {
    let gateway = gateway(config).await;
    let (app, other) = (
        App::public(&gateway, "a").await,
        App::public(&gateway, "a").await,
    );
    let resource = format!("{}/t/a/x/mcp", gateway.origin());
    let elsewhere = format!("{}/t/a/y/mcp", gateway.origin());
    let asked = [("resource", resource.as_str())];
    for (changed, error) in [
        (("client_id", other.id.as_str()), "invalid_grant"),
        (("redirect_uri", "http://127.0.0.1:10/cb"), "invalid_grant"),
        (("redirect_uri", "http://127.0.0.1:9/cb/"), "invalid_grant"),
        (
            (
                "code_verifier",
                "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM",
            ),
            "invalid_grant",
        ),
        (("code_verifier", "short"), "invalid_grant"),
        (("resource", elsewhere.as_str()), "invalid_target"),
        (("resource", "x"), "invalid_target"),
    ] {
        let code = app.code(&asked).await;
        let refused = app.redeem(&code, &[changed]).await;
        refused.assert_refused(400, error);
        let again = app.redeem(&code, &asked).await;
        again.assert_refused(400, "invalid_grant");
    }
    // RFC 3986, section 6.2.2.1: scheme and host are the same in any case.
    let loud = resource.replace("http://", "HTTP://");
    let code = app.code(&[("resource", loud.as_str())]).await;
    let tokens = app.redeem(&code, &[("resource", loud.as_str())]).await;
    assert_eq!(tokens.status, StatusCode::OK, "{}", tokens.body);
    let (_, claims) = said(&tokens.text("access_token"));
    assert_eq!(
        claims["aud"],
        resource.as_str(),
        "in the gateway's spelling"
    );
    // Another tenant does not know the code, which stays valid in its own.
    let code = app.code(&asked).await;
    let there = App::public(&gateway, "b").await;
    there
        .redeem(&code, &[])
        .await
        .assert_refused(400, "invalid_grant");
    let moved = App {
        tenant: "b".to_owned(),
        ..app.clone()
    };
    moved
        .redeem(&code, &[])
        .await
        .assert_refused(401, "invalid_client");
    let tokens = app.redeem(&code, &asked).await;
    assert_eq!(tokens.status, StatusCode::OK, "{}", tokens.body);
    let refresh = tokens.text("refresh_token");
    there
        .refresh(&refresh, &[])
        .await
        .assert_refused(400, "invalid_grant");
    other
        .refresh(&refresh, &[])
        .await
        .assert_refused(400, "invalid_grant");
    let good = app.refresh(&refresh, &[]).await;
    assert_eq!(good.status, StatusCode::OK, "{}", good.body);
    // A verifier of another flow, and none (PKCE is not optional).
    let code = app.code(&[]).await;
    app.redeem(&code, &[("code_verifier", "")])
        .await
        .assert_refused(400, "invalid_request");
    let swapped = "a".repeat(43);
    let refused = app.redeem(&code, &[("code_verifier", &swapped)]).await;
    refused.assert_refused(400, "invalid_grant");
    app.redeem(&code, &[])
        .await
        .assert_refused(400, "invalid_grant");
}

#[tokio::test]
async fn a_wrong_use_spoils_a_code_on_sqlite() {
    spoils_codes(json!({"oauth": {"failures": 1000}})).await;
}

#[tokio::test]
async fn a_wrong_use_spoils_a_code_on_postgres() {
    let postgres = Postgres::start();
    spoils_codes(json!({"oauth": {"failures": 1000}, "sql": {"url": postgres.url()}})).await;
}

/// An early replay may be of a client that missed the answer; a late replay counts as theft.
#[tokio::test]
async fn a_late_replay_of_a_code_ends_what_the_first_use_got() {
    let gateway = gateway(json!({"oauth": {"replay": "1s"}})).await;
    let app = App::public(&gateway, "a").await;
    let code = app.code(&[]).await;
    let tokens = app.redeem(&code, &[]).await;
    let access = tokens.text("access_token");
    app.redeem(&code, &[])
        .await
        .assert_refused(400, "invalid_grant");
    let next = app.refresh(&tokens.text("refresh_token"), &[]).await;
    assert_eq!(
        next.status,
        StatusCode::OK,
        "nothing is revoked yet: {}",
        next.body
    );
    assert!(app.reaches("x", &access).await);
    sleep(Duration::from_millis(1100)).await;
    // A used code may be found in a log or a history; without the rest it ends nothing.
    let other = App::public(&gateway, "a").await;
    let wrong = "a".repeat(43);
    for (by, changed) in [
        (&other, &[][..]),
        (&app, &[("code_verifier", wrong.as_str())]),
        (&app, &[("redirect_uri", "http://127.0.0.1:9/other")]),
    ] {
        let refused = by.redeem(&code, changed).await;
        refused.assert_refused(400, "invalid_grant");
        assert!(app.reaches("x", &access).await, "{changed:?}");
    }
    app.redeem(&code, &[])
        .await
        .assert_refused(400, "invalid_grant");
    assert!(!app.reaches("x", &access).await, "it is good still");
    let refused = app.refresh(&next.text("refresh_token"), &[]).await;
    refused.assert_refused(400, "invalid_grant");
}

async fn refreshes(config: Value) {
    let gateway = gateway(config).await;
    let app = App::public(&gateway, "a").await;
    let first = app.tokens().await;
    let old = first.text("refresh_token");
    let second = app.refresh(&old, &[]).await;
    let again = app.refresh(&old, &[]).await;
    assert_eq!(again.status, StatusCode::OK, "{}", again.body);
    assert_eq!(
        again.text("refresh_token"),
        second.text("refresh_token"),
        "the same successor"
    );
    let third = app.refresh(&second.text("refresh_token"), &[]).await;
    assert_eq!(third.status, StatusCode::OK);
    // The used successor gets no second branch, and within `grace` nothing is revoked.
    app.refresh(&old, &[])
        .await
        .assert_refused(400, "invalid_grant");
    let fourth = app.refresh(&third.text("refresh_token"), &[]).await;
    assert_eq!(fourth.status, StatusCode::OK);
    sleep(Duration::from_millis(2100)).await;
    app.refresh(&old, &[])
        .await
        .assert_refused(400, "invalid_grant");
    let access = fourth.text("access_token");
    assert!(!app.reaches("x", &access).await, "it is good still");
    let dead = app.refresh(&fourth.text("refresh_token"), &[]).await;
    dead.assert_refused(400, "invalid_grant");
}

#[tokio::test]
async fn refresh_tokens_are_used_once_on_sqlite() {
    refreshes(json!({"oauth": {"grace": "2s"}})).await;
}

#[tokio::test]
async fn refresh_tokens_are_used_once_on_postgres() {
    let postgres = Postgres::start();
    refreshes(json!({"oauth": {"grace": "2s"}, "sql": {"url": postgres.url()}})).await;
}

/// Scopes and resources (RFC 8707, section 2.2) of a refresh.
#[tokio::test]
async fn a_refresh_asks_for_no_more_than_was_granted() {
    let gateway = gateway(json!({})).await;
    let app = App::public(&gateway, "a").await;
    let code = app.code(&[("scope", "files:read files:write")]).await;
    let mut refresh = app.redeem(&code, &[]).await.text("refresh_token");
    for scope in ["files:read", "files:write files:read"] {
        let narrower = app.refresh(&refresh, &[("scope", scope)]).await;
        assert_eq!(narrower.text("scope"), scope);
        assert_eq!(said(&narrower.text("access_token")).1["scope"], scope);
        refresh = narrower.text("refresh_token");
    }
    let elsewhere = format!("{}/t/a/y/mcp", gateway.origin());
    for (more, error) in [
        (("scope", "files:read admin"), "invalid_scope"),
        (("scope", " "), "invalid_scope"),
        (("resource", elsewhere.as_str()), "invalid_target"),
        (("resource", "https://evil.test/mcp"), "invalid_target"),
        (
            ("resource", elsewhere.replace("/mcp", "/messages").as_str()),
            "invalid_target",
        ),
    ] {
        app.refresh(&refresh, &[more])
            .await
            .assert_refused(400, error);
    }
    // The refusals spend no token, and do not narrow the grant.
    let whole = app.refresh(&refresh, &[]).await;
    assert_eq!(whole.text("scope"), "files:read files:write");
}

/// Clients of HTTP+SSE post all their messages to one URL, and some name it in place of the resource.
#[tokio::test]
async fn a_refresh_may_name_the_url_of_the_messages() {
    let gateway = gateway(json!({})).await;
    let app = App::public(&gateway, "a").await;
    let at = |path: &str| format!("{}/t/a/{path}", gateway.origin());
    let (stream, scope) = (at("x/sse"), ("scope", "files:read"));
    let code = app.code(&[("resource", stream.as_str()), scope]).await;
    let tokens = app.redeem(&code, &[("resource", &stream)]).await;
    let mut refresh = tokens.text("refresh_token");
    for named in ["x/messages?session_id=01", "x/messages"] {
        let next = app.refresh(&refresh, &[("resource", &at(named))]).await;
        assert_eq!(next.status, StatusCode::OK, "{named}: {}", next.body);
        assert_eq!(said(&next.text("access_token")).1["aud"], stream.as_str());
        refresh = next.text("refresh_token");
    }
    for other in ["y/messages?session_id=01", "x/mcp"] {
        let refused = app.refresh(&refresh, &[("resource", &at(other))]).await;
        refused.assert_refused(400, "invalid_target");
    }
}

/// Claude Code names the URL that a person has typed, with its query.
#[tokio::test]
async fn a_query_of_the_resource_is_ignored() {
    let gateway = gateway(json!({})).await;
    let app = App::public(&gateway, "a").await;
    let bare = format!("{}/t/a/x/mcp", gateway.origin());
    let typed = format!("{bare}?utm_source=plugin");
    let typed = ("resource", typed.as_str());
    let code = app.code(&[typed, ("scope", "files:read")]).await;
    let tokens = app.redeem(&code, &[typed]).await;
    assert_eq!(tokens.status, StatusCode::OK, "{}", tokens.body);
    assert_eq!(said(&tokens.text("access_token")).1["aud"], bare.as_str());
    let refresh = tokens.text("refresh_token");
    for other in [format!("{}#x", typed.1), typed.1.replace("/x/", "/y/")] {
        let refused = app.refresh(&refresh, &[("resource", &other)]).await;
        refused.assert_refused(400, "invalid_target");
    }
    let next = app.refresh(&refresh, &[typed]).await;
    assert_eq!(next.status, StatusCode::OK, "{}", next.body);
    assert_eq!(said(&next.text("access_token")).1["aud"], bare.as_str());
}

/// A client is told that it got something else, also where nothing that it asked for exists.
#[tokio::test]
async fn scopes_that_do_not_exist_are_not_granted() {
    let gateway = gateway(json!({})).await;
    let app = App::public(&gateway, "a").await;
    for (asked, granted) in [
        ("openid email profile", "offline_access"),
        (" ", "offline_access"),
        (" offline_access", "offline_access"),
        ("openid files:read", "files:read"),
    ] {
        let tokens = app.redeem(&app.code(&[("scope", asked)]).await, &[]).await;
        assert_eq!(tokens.text("scope"), granted, "{asked}");
        let (_, claims) = said(&tokens.text("access_token"));
        assert_eq!(claims["scope"], granted, "{asked}");
    }
}

/// A scope is never empty (RFC 6749, appendix A.4): a grant without any has none.
#[tokio::test]
async fn a_grant_without_scopes_has_no_scope_in_its_answers() {
    let tenant = json!({"auth": {"mode": "builtin"},
        "users": {"ada": {"password": "correct horse"}},
        "servers": {"x": {"command": child()}}});
    let gateway = Served::start(json!({}), json!({"a": tenant})).await;
    let app = App::public(&gateway, "a").await;
    let first = app.tokens().await;
    let next = app.refresh(&first.text("refresh_token"), &[]).await;
    for answer in [&first, &next] {
        assert_eq!(answer.body.get("scope"), None, "{}", answer.body);
        let token = answer.text("access_token");
        assert_eq!(said(&token).1.get("scope"), None);
        assert!(app.reaches("x", &token).await);
    }
}

/// Tokens expire by their own limits, and no token outlives its grant.
#[tokio::test]
async fn tokens_expire_by_their_own_limits() {
    let idle = gateway(json!({"oauth": {"refresh_idle": "1s"}})).await;
    let app = App::public(&idle, "a").await;
    let tokens = app.tokens().await;
    sleep(Duration::from_millis(1100)).await;
    let refused = app.refresh(&tokens.text("refresh_token"), &[]).await;
    refused.assert_refused(400, "invalid_grant");
    let absolute = gateway(json!({"oauth": {"refresh_max": "4s"}})).await;
    let app = App::public(&absolute, "a").await;
    let tokens = app.tokens().await;
    let expires_in = tokens.body["expires_in"].as_u64().unwrap();
    assert!(expires_in <= 4, "no token outlives its grant: {expires_in}");
    let mut refresh = tokens.text("refresh_token");
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        let next = app.refresh(&refresh, &[]).await;
        if next.status == StatusCode::BAD_REQUEST {
            next.assert_refused(400, "invalid_grant");
            break;
        }
        refresh = next.text("refresh_token");
        assert!(Instant::now() < until, "the grant does not end");
        sleep(Duration::from_millis(100)).await;
    }
}

/// Client authentication by the registered method only.
#[tokio::test]
async fn clients_authenticate_by_their_registered_method() {
    let gateway = gateway(json!({"oauth": {"failures": 1000}})).await;
    for method in ["client_secret_basic", "client_secret_post"] {
        let metadata = json!({"redirect_uris": [BACK], "token_endpoint_auth_method": method});
        let made = register(&gateway, "a", &metadata).await;
        let (id, secret) = (made.text("client_id"), made.text("client_secret"));
        let app = App::of(&gateway, "a", &id);
        let url = app.endpoint("token");
        let code = app.code(&[]).await;
        let own = [
            ("grant_type", "authorization_code"),
            ("code", code.as_str()),
            ("redirect_uri", BACK),
            ("code_verifier", VERIFIER),
        ];
        let in_form = [&own[..], &[("client_id", &id), ("client_secret", &secret)]].concat();
        let wrong_form = [&own[..], &[("client_id", &id), ("client_secret", "lgs_x")]].concat();
        let only_id = [&own[..], &[("client_id", id.as_str())]].concat();
        let (right, wrong) = (basic(&id, &secret), basic(&id, "lgs_x"));
        let is_basic = method == "client_secret_basic";
        let mut refused = vec![
            post_with(&url, &own, Some(&wrong)).await,
            post(&url, &wrong_form).await,
            post(&url, &only_id).await,
            post_with(&url, &own, Some("Bearer x")).await,
            post(
                &format!("{url}?client_id={id}&client_secret={secret}"),
                &own,
            )
            .await,
            post(&format!("{url}?client_secret={secret}"), &only_id).await,
            post_with(&url, &own, Some(&basic("nobody", &secret))).await,
            post_with(&url, &own, Some(&basic("app", &secret))).await,
        ];
        refused.push(if is_basic {
            post(&url, &in_form).await
        } else {
            post_with(&url, &own, Some(&right)).await
        });
        for answer in refused {
            answer.assert_refused(401, "invalid_client");
            let challenge = answer.headers[WWW_AUTHENTICATE].to_str().unwrap();
            assert!(challenge.starts_with("Basic realm="), "{challenge}");
        }
        let both = post_with(&url, &in_form, Some(&right)).await;
        both.assert_refused(400, "invalid_request");
        // The code is not spent.
        let good = if is_basic {
            post_with(&url, &own, Some(&right)).await
        } else {
            post(&url, &in_form).await
        };
        assert_eq!(good.status, StatusCode::OK, "{}", good.body);
        // A refresh token of a confidential client is useless without the client's secret.
        let stolen = app.refresh(&good.text("refresh_token"), &[]).await;
        stolen.assert_refused(401, "invalid_client");
    }
    // A declared client may use either method.
    let app = App {
        secret: Some(SECRET.to_owned()),
        ..App::of(&gateway, "a", "app")
    };
    let tokens = app.tokens().await;
    let own = [
        ("grant_type", "refresh_token"),
        ("refresh_token", &tokens.text("refresh_token")),
    ];
    let good = post_with(&app.endpoint("token"), &own, Some(&basic("app", SECRET))).await;
    assert_eq!(good.status, StatusCode::OK, "{}", good.body);
    let moved = App {
        tenant: "b".to_owned(),
        secret: Some("x".to_owned()),
        ..app.clone()
    };
    moved
        .refresh("lgr_x", &[])
        .await
        .assert_refused(401, "invalid_client");
}

/// Client assertions (RFC 7523): audiences, replays, invalid claims, forged signatures.
#[tokio::test]
async fn clients_authenticate_by_signed_assertions() {
    let gateway = gateway(json!({"oauth": {"failures": 1000}})).await;
    let (key, stranger) = (Key::new("k"), Key::new("k"));
    let metadata = json!({"redirect_uris": [BACK], "jwks": {"keys": [key.public()]},
        "token_endpoint_auth_method": "private_key_jwt"});
    let made = register(&gateway, "a", &metadata).await;
    assert_eq!(made.body.get("client_secret"), None, "{}", made.body);
    let app = App::of(&gateway, "a", &made.text("client_id"));
    let issuer = format!("{}/t/a", gateway.origin());
    let claims = |aud: Value| {
        json!({"iss": app.id, "sub": app.id, "aud": aud, "exp": now() + 60,
            "jti": format!("j{}", rand_name())})
    };
    let kind = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";
    let sign = |key: &Key, claims: &Value| {
        let header = json!({"alg": "ES256", "typ": "JWT", "kid": "k"});
        key.sign_as(&header.to_string(), &claims.to_string())
    };
    let mut refresh = String::new();
    let by = async |assertion: &str, refresh: &str| {
        let (grant, name) = if refresh.starts_with("lgc_") {
            ("authorization_code", "code")
        } else {
            ("refresh_token", "refresh_token")
        };
        let fields = [
            ("grant_type", grant),
            (name, refresh),
            ("redirect_uri", BACK),
            ("code_verifier", VERIFIER),
            ("client_assertion_type", kind),
            ("client_assertion", assertion),
        ];
        post(&app.endpoint("token"), &fields).await
    };
    let mut token = app.code(&[]).await;
    // The SDK for Python writes the path "/" of an issuer that has none.
    let with_path = json!(format!("{issuer}/"));
    for aud in [json!(issuer), json!([app.endpoint("token")]), with_path] {
        let assertion = sign(&key, &claims(aud));
        let good = by(&assertion, &token).await;
        assert_eq!(good.status, StatusCode::OK, "{}", good.body);
        token = good.text("refresh_token");
        by(&assertion, &token)
            .await
            .assert_refused(401, "invalid_client");
        refresh.clone_from(&token);
    }
    for (name, value) in [
        ("iss", json!("app")),
        ("sub", json!("app")),
        ("aud", json!("https://evil.test")),
        ("aud", json!([issuer, "https://evil.test"])),
        ("aud", json!(format!("{}/t/b", gateway.origin()))),
        // No tenant is the default one here.
        ("aud", json!(format!("{}/token", gateway.origin()))),
        ("exp", json!(now() - 120)),
        ("exp", json!(now() + 3600)),
        ("nbf", json!(now() + 600)),
        ("jti", json!(null)),
        ("jti", json!("")),
    ] {
        let mut wrong = claims(json!(issuer));
        wrong[name] = value.clone();
        let refused = by(&sign(&key, &wrong), &refresh).await;
        refused.assert_refused(401, "invalid_client");
    }
    let forged = by(&sign(&stranger, &claims(json!(issuer))), &refresh).await;
    forged.assert_refused(401, "invalid_client");
    let told = forged.text("error_description");
    assert_eq!(told, "the client is not known");
    // Operators alone are told why.
    let logins = format!("{}/api/v1/tenants/a/logins", gateway.origin());
    for why in [
        "it was used before",
        "iss and sub differ",
        "another audience",
        "expired",
        "a claim is missing",
        "the signature is of no key of the client",
    ] {
        let wanted = format!("(the assertion: {why})");
        until(&wanted, async || {
            let kept = send(Method::GET, &logins, &gateway.administrator(), None).await;
            kept.body.to_string().contains(&wanted)
        })
        .await;
    }
    app.refresh(&refresh, &[])
        .await
        .assert_refused(401, "invalid_client");
    app.refresh(&refresh, &[("client_secret", "x")])
        .await
        .assert_refused(401, "invalid_client");
    let last = by(&sign(&key, &claims(json!(issuer))), &refresh).await;
    assert_eq!(last.status, StatusCode::OK, "{}", last.body);
}

fn rand_name() -> String {
    uuid::Uuid::new_v4().to_string()
}

async fn revokes(config: Value) {
    let gateway = gateway(config).await;
    let (app, other) = (
        App::public(&gateway, "a").await,
        App::public(&gateway, "a").await,
    );
    for name in ["access_token", "refresh_token"] {
        let tokens = app.tokens().await;
        let (access, refresh) = (tokens.text("access_token"), tokens.text("refresh_token"));
        // Foreign, unknown and malformed tokens: 200 without an effect.
        assert_eq!(other.revoke(&tokens.text(name)).await, StatusCode::OK);
        let forged = access.rsplit_once('.').unwrap().0.to_owned() + ".AAAA";
        for unknown in ["lgr_x", "x", "a.b.c", &forged] {
            assert_eq!(app.revoke(unknown).await, StatusCode::OK, "{unknown}");
        }
        sleep(Duration::from_millis(900)).await;
        assert!(app.reaches("x", &access).await, "{name}");
        let next = app.refresh(&refresh, &[]).await;
        assert_eq!(next.status, StatusCode::OK, "{}", next.body);
        let mine = if name == "access_token" {
            &access
        } else {
            &next.text("refresh_token")
        };
        assert_eq!(app.revoke(mine).await, StatusCode::OK);
        let refused = app.refresh(&next.text("refresh_token"), &[]).await;
        refused.assert_refused(400, "invalid_grant");
        assert!(!app.reaches("x", &access).await, "it is good still");
        assert!(!app.reaches("x", &next.text("access_token")).await);
        assert_eq!(
            app.revoke(mine).await,
            StatusCode::OK,
            "twice is no mistake"
        );
    }
    let url = app.endpoint("revoke");
    let nobody = post(&url, &[("client_id", "nobody"), ("token", "x")]).await;
    nobody.assert_refused(401, "invalid_client");
    let nothing = post(&url, &[("client_id", &app.id)]).await;
    nothing.assert_refused(400, "invalid_request");
}

#[tokio::test]
async fn clients_revoke_their_tokens_on_sqlite() {
    revokes(json!({})).await;
}

#[tokio::test]
async fn clients_revoke_their_tokens_on_postgres() {
    let postgres = Postgres::start();
    revokes(json!({"sql": {"url": postgres.url()}})).await;
}

/// A service has the clients of many people and tenants at one address: what ended at one tenant kept all of them out.
#[tokio::test]
async fn refresh_tokens_that_have_ended_keep_nobody_out() {
    let gateway = gateway(json!({"oauth": {"failures": 10}})).await;
    let (app, other) = (
        App::public(&gateway, "a").await,
        App::public(&gateway, "b").await,
    );
    let good = other.tokens().await.text("refresh_token");
    let mut ended = Vec::new();
    for _ in 0..12 {
        let token = app.tokens().await.text("refresh_token");
        assert_eq!(app.revoke(&token).await, StatusCode::OK);
        ended.push(token);
    }
    for token in &ended {
        let refused = app.refresh(token, &[]).await;
        refused.assert_refused(400, "invalid_grant");
    }
    // One that comes again and again counts, and so does what was guessed.
    let mut statuses = Vec::new();
    for _ in 0..15 {
        statuses.push(app.refresh(&ended[0], &[]).await.status.as_u16());
    }
    let stranger = App::public(&gateway, "a").await;
    statuses.push(stranger.refresh(&ended[1], &[]).await.status.as_u16());
    assert_eq!(statuses, [400; 16]);
    for at in 0..6 {
        statuses.push(app.refresh(&format!("lgr_{at}"), &[]).await.status.as_u16());
    }
    assert_eq!(statuses[16..], [400, 400, 400, 429, 429, 429]);
    // Not at another tenant.
    let next = other.refresh(&good, &[]).await;
    assert_eq!(next.status, StatusCode::OK, "{}", next.body);
}

/// Anybody can have a service send codes: at its address, they stopped the refreshes of all its people.
#[tokio::test]
async fn wrong_codes_of_a_service_stop_no_refresh() {
    let gateway = gateway(json!({"oauth": {"failures": 5}})).await;
    let app = App::public(&gateway, "a").await;
    let good = app.tokens().await.text("refresh_token");
    let mut statuses = Vec::new();
    for number in 0..7 {
        let answer = app.redeem(&format!("lgc_{number}"), &[]).await;
        statuses.push(answer.status.as_u16());
    }
    assert_eq!(statuses, [400, 400, 400, 400, 400, 429, 429]);
    let next = app.refresh(&good, &[]).await;
    assert_eq!(next.status, StatusCode::OK, "{}", next.body);
}

/// Guesses from one address are throttled.
#[tokio::test]
async fn guesses_are_stopped() {
    for guess in ["code", "secret", "refresh", "registration"] {
        let gateway = gateway(json!({"oauth": {"failures": 10}})).await;
        let app = App::public(&gateway, "a").await;
        let wrong = App {
            secret: Some("x".to_owned()),
            ..App::of(&gateway, "a", "app")
        };
        let url = format!("{}/{}", app.endpoint("register"), app.id);
        let mut statuses = Vec::new();
        for number in 0..12 {
            let answer = match guess {
                "code" => app.redeem(&format!("lgc_{number}"), &[]).await,
                "secret" => wrong.refresh("lgr_x", &[]).await,
                "refresh" => app.refresh(&format!("lgr_{number}"), &[]).await,
                _ => send(Method::GET, &url, "lga_x", None).await,
            };
            if answer.status == StatusCode::TOO_MANY_REQUESTS {
                let retry: u64 = answer.header("retry-after").parse().unwrap();
                assert!((1..=60).contains(&retry));
            }
            statuses.push(answer.status.as_u16());
        }
        let first = if matches!(guess, "code" | "refresh") {
            400
        } else {
            401
        };
        assert_eq!(
            statuses,
            [[first; 10].as_slice(), &[429, 429]].concat(),
            "{guess}"
        );
    }
}

/// The time of a refusal does not reveal which ids exist.
#[tokio::test]
async fn unknown_and_wrong_take_the_same_time() {
    let gateway =
        gateway(json!({"oauth": {"failures": 100_000, "registrations_address": 1000}})).await;
    let made = register(
        &gateway,
        "a",
        &json!({"redirect_uris": [BACK],
        "token_endpoint_auth_method": "client_secret_post"}),
    )
    .await;
    let id = made.text("client_id");
    let nobody = format!("c_{}", "A".repeat(22));
    let url = format!("{}/t/a/oauth/token", gateway.origin());
    let http = client();
    let one = async |id: &str| {
        let body = format!(
            "grant_type=refresh_token&refresh_token=lgr_x&client_id={id}&client_secret=lgs_x"
        );
        let asked = http
            .post(&url)
            .header("Content-Type", "application/x-www-form-urlencoded")
            .body(body);
        let began = Instant::now();
        let response = within("an answer", asked.send()).await.unwrap();
        let took = began.elapsed();
        assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
        within("its body", response.bytes()).await.unwrap();
        took
    };
    // In turns, so that other load of the machine affects both.
    let ratio = async || {
        let (mut known, mut unknown) = (Vec::new(), Vec::new());
        for _ in 0..200 {
            known.push(one(&id).await);
            unknown.push(one(&nobody).await);
        }
        let median = |all: &mut Vec<Duration>| {
            all.sort();
            all[all.len() / 2].as_secs_f64()
        };
        median(&mut known) / median(&mut unknown)
    };
    let mut ratios = Vec::new();
    for _ in 0..3 {
        let ratio = ratio().await;
        if (0.8..=1.25).contains(&ratio) {
            return;
        }
        ratios.push(ratio);
    }
    panic!("{ratios:?}");
}

/// Two processes over one database.
async fn replicas(postgres: &Postgres) -> [Served; 2] {
    let config = json!({
        "sql": {"url": postgres.url()}, "public_url": "https://gw.test",
        "master_key": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
        "oauth": {"failures": 100_000},
    });
    [gateway(config.clone()).await, gateway(config).await]
}

#[tokio::test]
async fn a_code_is_redeemed_once_by_two_replicas() {
    let postgres = Postgres::start();
    redeems_once(replicas(&postgres).await.each_ref()).await;
}

/// Repeats a request that gets 503: a busy machine may not serve fifty at once.
async fn patiently<F: Future<Output = Answer>>(ask: impl Fn() -> F) -> Answer {
    let mut answer = ask().await;
    while answer.status == StatusCode::SERVICE_UNAVAILABLE {
        answer = ask().await;
    }
    answer
}

/// Fifty concurrent uses of one code: only one of them gets tokens.
pub(crate) async fn redeems_once(replicas: [&Served; 2]) {
    let app = App::public(replicas[0], "a").await;
    let there = App {
        origin: replicas[1].origin().to_owned(),
        ..app.clone()
    };
    for _ in 0..3 {
        let code = app.code(&[]).await;
        let all = (0..50).map(|number| {
            let (app, code) = (if number % 2 == 0 { &app } else { &there }, &code);
            async move { patiently(|| app.redeem(code, &[])).await }
        });
        let answers = futures_util::future::join_all(all).await;
        let good: Vec<_> = answers
            .iter()
            .filter(|answer| answer.status == StatusCode::OK)
            .collect();
        assert_eq!(good.len(), 1);
        for answer in answers
            .iter()
            .filter(|answer| answer.status != StatusCode::OK)
        {
            answer.assert_refused(400, "invalid_grant");
        }
    }
}

#[tokio::test]
async fn a_refresh_token_has_one_successor_by_two_replicas() {
    let postgres = Postgres::start();
    refreshes_once(replicas(&postgres).await.each_ref()).await;
}

/// Fifty concurrent uses of one refresh token: all get the same successor.
pub(crate) async fn refreshes_once(replicas: [&Served; 2]) {
    let app = App::public(replicas[0], "a").await;
    let there = App {
        origin: replicas[1].origin().to_owned(),
        ..app.clone()
    };
    let mut refresh = app.tokens().await.text("refresh_token");
    for _ in 0..3 {
        let all = (0..50).map(|number| {
            let (app, token) = (if number % 2 == 0 { &app } else { &there }, &refresh);
            async move { patiently(|| app.refresh(token, &[])).await }
        });
        let answers = futures_util::future::join_all(all).await;
        let mut next: Vec<String> = answers
            .iter()
            .map(|answer| answer.text("refresh_token"))
            .collect();
        assert_eq!(next.len(), 50);
        next.dedup();
        assert_eq!(next.len(), 1, "one successor");
        refresh = next.remove(0);
    }
}

/// While the database is unreachable, token requests get 503, and no code or token is lost.
#[tokio::test]
async fn without_the_database_nobody_loses_anything() {
    let mut postgres = Postgres::start();
    let gateway = gateway(json!({"sql": {"url": postgres.url()}})).await;
    let app = App::public(&gateway, "a").await;
    let tokens = app.tokens().await;
    let code = app.code(&[]).await;
    postgres.pause();
    for answer in [
        app.refresh(&tokens.text("refresh_token"), &[]).await,
        app.redeem(&code, &[]).await,
        register(&gateway, "a", &json!({"redirect_uris": [BACK]})).await,
    ] {
        answer.assert_refused(503, "temporarily_unavailable");
        assert!(!answer.header("retry-after").is_empty());
    }
    let document = format!(
        "{}/.well-known/oauth-authorization-server/t/a",
        gateway.origin()
    );
    let status = within("a document", client().get(document).send())
        .await
        .unwrap()
        .status();
    assert_eq!(status, StatusCode::OK);
    postgres.resume();
    let next = app.refresh(&tokens.text("refresh_token"), &[]).await;
    assert_eq!(next.status, StatusCode::OK, "{}", next.body);
}

/// Operators see grants, and revoke one or all of a person, from the command line.
#[tokio::test]
async fn grants_are_listed_and_revoked_by_commands() {
    let gateway = gateway(json!({})).await;
    let app = App::public(&gateway, "a").await;
    let (one, two) = (app.tokens().await, app.tokens().await);
    let (one, two) = (one.text("access_token"), two.text("access_token"));
    let key = gateway.administrator();
    let run = async |args: &[&str]| {
        let to = ["--url", gateway.origin(), "--key", &key];
        let said = stranger(&[args, &to].concat()).output();
        let said = within("a command", said).await.unwrap();
        assert!(said.status.success(), "{said:?}");
        String::from_utf8(said.stdout).unwrap()
    };
    let (grant, subject) = (said(&one).1["grant"].clone(), said(&one).1["sub"].clone());
    let (grant, subject) = (grant.as_str().unwrap(), subject.as_str().unwrap());
    let listed = run(&["grant", "list", "a", "--subject", subject]).await;
    assert_eq!(listed.lines().count(), 3, "{listed}");
    assert!(listed.lines().any(|row| row.starts_with(grant)), "{listed}");
    assert!(app.reaches("x", &one).await && app.reaches("x", &two).await);
    run(&["grant", "revoke", "a", grant]).await;
    assert!(!app.reaches("x", &one).await && app.reaches("x", &two).await);
    run(&["grant", "revoke", "a", "--subject", subject]).await;
    assert!(!app.reaches("x", &two).await);
    // A name that is not theirs would leave all of it.
    let words = ["grant", "revoke", "a", "--subject", "ad"];
    let to = ["--url", gateway.origin(), "--key", &key];
    let refused = stranger(&[&words[..], &to].concat()).output();
    let refused = within("a command", refused).await.unwrap();
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let why = "lockgate: there is no grant, log-in or key of subject a/ad (404)\n";
    assert_eq!(String::from_utf8(refused.stderr).unwrap(), why);
    let listed = run(&["grant", "list", "a"]).await;
    assert_eq!(listed.lines().count(), 1, "{listed}");
}

//! Tokens that are bound to a key of the client (DPoP, RFC 9449): issued, presented, refreshed, stolen.

use reqwest::{Client, Method, Response, StatusCode, header::HeaderMap};
use serde_json::{Value, json};

use crate::{
    auth::external_tokens::bearer,
    support::{
        dpop::{Prover, claims, claims_with, proving},
        harness::{
            Events, NEWEST, Session, child, client, client_with, json_of, opening, until, within,
        },
        issuer::{Issuer, Key, Provider, now},
        oauth_client::{Answer, App, BACK, SECRET, basic, gateway, register, said, send, tenants},
        pair::Pair,
        served::Served,
    },
};

/// The same client with this proof in its requests.
pub(crate) fn with_proof(app: &App, proof: &str) -> App {
    let mut headers = HeaderMap::new();
    headers.insert("DPoP", proof.parse().unwrap());
    let http = client_with(headers);
    App {
        http,
        ..app.clone()
    }
}

/// A GET without a session: a good token gets 400.
async fn answered(http: Client, url: &str) -> Response {
    let asked = http.get(url).header("Accept", "text/event-stream");
    within("an answer", asked.send()).await.unwrap()
}

/// The status of a GET with a token and this proof.
async fn status(url: &str, token: &str, proof: &str) -> u16 {
    answered(proving(token, proof), url).await.status().as_u16()
}

/// The status for a valid token without a session id.
const GOOD: u16 = 400;

/// The challenges of a refusal: of the schemes Bearer and DPoP.
fn challenges(refused: &Response) -> [String; 2] {
    assert_eq!(refused.status(), StatusCode::UNAUTHORIZED);
    let all = refused.headers().get_all("www-authenticate").iter();
    let all: Vec<String> = all.map(|one| one.to_str().unwrap().to_owned()).collect();
    let [bearer, dpop] = all.try_into().unwrap();
    assert!(bearer.starts_with("Bearer ") && dpop.starts_with("DPoP "));
    assert!(
        dpop.contains(r#"algs="ES256 Ed25519 EdDSA RS256 PS256""#),
        "{dpop}"
    );
    assert!(dpop.contains("resource_metadata="), "{dpop}");
    [bearer, dpop]
}

/// The error of the challenge of one scheme; the other has none.
fn error(refused: &Response) -> (&'static str, String) {
    let error = |challenge: &str| {
        let (_, rest) = challenge.split_once("error=\"")?;
        Some(rest.split('"').next().unwrap().to_owned())
    };
    match challenges(refused).map(|challenge| error(&challenge)) {
        [Some(error), None] => ("Bearer", error),
        [None, Some(error)] => ("DPoP", error),
        other => panic!("{other:?}"),
    }
}

/// A bound access token for a proof at the token endpoint of the app's tenant.
async fn bound(app: &App, prover: &Prover) -> Answer {
    let code = app.code(&[]).await;
    let proof = prover.for_token(&app.endpoint("token"));
    let tokens = with_proof(app, &proof).redeem(&code, &[]).await;
    assert_eq!(tokens.status, StatusCode::OK, "{}", tokens.body);
    tokens
}

async fn document(url: &str) -> Value {
    let sent = client().get(url).send();
    json_of(within("a document", sent).await.unwrap()).await
}

/// The claims of a proof for the next request of a session.
fn next(session: &mut Session, method: &str, prover: &Prover, token: &str) {
    let proof = prover.with_token(method, &session.url, token);
    session.http = proving(token, &proof);
}

/// Opens a session, with another proof for each request.
async fn opened(session: &mut Session, prover: &Prover, token: &str) {
    next(session, "POST", prover, token);
    let response = session.post(&opening(NEWEST)).await;
    assert_eq!(response.status(), StatusCode::OK);
    let id = &response.headers()["mcp-session-id"];
    session.id = Some(id.to_str().unwrap().to_owned());
    session.revision = Some(NEWEST.to_owned());
    next(session, "POST", prover, token);
    let done = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    assert_eq!(session.post(&done).await.status(), StatusCode::ACCEPTED);
}

#[tokio::test]
async fn a_client_with_a_key_logs_in_calls_and_refreshes() {
    let gateway = gateway(json!({})).await;
    let origin = gateway.origin();
    let at = |path: &str| format!("{origin}/.well-known/{path}");
    for path in [
        "oauth-authorization-server/t/a",
        "oauth-protected-resource/t/a/x/mcp",
    ] {
        let algorithms = &document(&at(path)).await["dpop_signing_alg_values_supported"];
        assert_eq!(
            algorithms,
            &json!(["ES256", "Ed25519", "EdDSA", "RS256", "PS256"]),
            "{path}"
        );
    }
    let (app, prover) = (App::public(&gateway, "a").await, Prover::new());
    let tokens = bound(&app, &prover).await;
    assert_eq!(tokens.text("token_type"), "DPoP");
    let token = tokens.text("access_token");
    assert_eq!(said(&token).1["cnf"], json!({"jkt": prover.thumbprint()}));
    let url = format!("{origin}/t/a/x/mcp");
    let mut session = Session::at(client(), url.clone());
    opened(&mut session, &prover, &token).await;
    next(&mut session, "POST", &prover, &token);
    assert_eq!(session.text("echo", json!({"text": "hi"})).await, "hi");
    next(&mut session, "GET", &prover, &token);
    drop(session.listen().await);
    next(&mut session, "DELETE", &prover, &token);
    assert_eq!(session.delete().await.status(), StatusCode::NO_CONTENT);
    // The token of a call that lacks a scope.
    opened(&mut session, &prover, &token).await;
    next(&mut session, "POST", &prover, &token);
    let lacks = session.begin("delete_all", json!({})).await;
    assert_eq!(lacks.status(), StatusCode::FORBIDDEN);
    let challenge = lacks.headers()["www-authenticate"].to_str().unwrap();
    assert!(
        challenge.starts_with("DPoP error=\"insufficient_scope\""),
        "{challenge}"
    );
    // Each refresh has a token that is bound as well.
    let endpoint = app.endpoint("token");
    let mut refresh = tokens.text("refresh_token");
    for _ in 0..3 {
        let by = with_proof(&app, &prover.for_token(&endpoint));
        let again = by.refresh(&refresh, &[]).await;
        assert_eq!(again.text("token_type"), "DPoP", "{}", again.body);
        let token = again.text("access_token");
        let proof = prover.with_token("GET", &url, &token);
        assert_eq!(status(&url, &token, &proof).await, GOOD);
        refresh = again.text("refresh_token");
    }
    // A client revokes its token without a proof.
    assert_eq!(app.revoke(&refresh).await, StatusCode::OK);
    let proof = prover.with_token("GET", &url, &token);
    let refused = answered(proving(&token, &proof), &url).await;
    assert_eq!(error(&refused), ("DPoP", "invalid_token".to_owned()));
}

#[tokio::test]
#[expect(
    clippy::too_many_lines,
    reason = "one token, presented in every wrong way"
)]
async fn a_stolen_token_is_worth_nothing_without_the_key() {
    let gateway = gateway(json!({})).await;
    let (app, prover, thief) = (
        App::public(&gateway, "a").await,
        Prover::new(),
        Prover::new(),
    );
    let token = bound(&app, &prover).await.text("access_token");
    let url = format!("{}/t/a/x/mcp", gateway.origin());
    let is_good = async || {
        let proof = prover.with_token("GET", &url, &token);
        status(&url, &token, &proof).await == GOOD
    };
    assert!(is_good().await);
    let downgraded = answered(bearer(&token), &url).await;
    assert_eq!(error(&downgraded), ("Bearer", "invalid_token".to_owned()));
    // A proof beside a bearer token changes nothing.
    let mut headers = HeaderMap::new();
    headers.insert("Authorization", format!("Bearer {token}").parse().unwrap());
    let proof = prover.with_token("GET", &url, &token);
    headers.insert("DPoP", proof.parse().unwrap());
    let downgraded = answered(client_with(headers), &url).await;
    assert_eq!(error(&downgraded), ("Bearer", "invalid_token".to_owned()));
    let nobody = answered(client(), &url).await;
    assert!(challenges(&nobody).iter().all(|one| !one.contains("error")));
    let own = || claims_with("GET", &url, &token);
    let changed = |name: &str, value: Value| {
        let mut claims = own();
        claims[name] = value;
        prover.sign(&claims)
    };
    let headed = |name: &str, value: Value| {
        let mut header = prover.header();
        header[name] = value;
        prover.sign_as(&header, &own())
    };
    let mut unsigned = prover.sign(&own());
    unsigned.truncate(unsigned.rfind('.').unwrap() + 1);
    let proof = prover.sign(&own());
    assert_eq!(status(&url, &token, &proof).await, GOOD);
    for (what, proof) in [
        ("a replay", proof),
        ("no JWT", "x".to_owned()),
        ("no signature", unsigned),
        ("another key", thief.sign(&own())),
        (
            "the key of another",
            thief.sign_as(&prover.header(), &own()),
        ),
        ("another method", changed("htm", json!("POST"))),
        (
            "another server",
            changed("htu", json!(url.replace("/x/", "/y/"))),
        ),
        (
            "another tenant",
            changed("htu", json!(url.replace("/a/", "/b/"))),
        ),
        (
            "another site",
            changed("htu", json!("https://evil.test/t/a/x/mcp")),
        ),
        ("the past", changed("iat", json!(now() - 90))),
        ("the future", changed("iat", json!(now() + 60))),
        ("no jti", changed("jti", json!(""))),
        ("no ath", prover.sign(&claims("GET", &url))),
        ("another token", prover.with_token("GET", &url, "another")),
        ("another type", headed("typ", json!("JWT"))),
        ("no algorithm", headed("alg", json!("none"))),
        (
            "a secret key",
            headed("jwk", json!({"kty": "oct", "k": "AAAA"})),
        ),
    ] {
        let refused = answered(proving(&token, &proof), &url).await;
        let wanted = ("DPoP", "invalid_dpop_proof".to_owned());
        assert_eq!(error(&refused), wanted, "{what}");
    }
    for proofs in [vec![], vec![prover.sign(&own()), prover.sign(&own())]] {
        let mut asked = client().get(&url).header("Accept", "text/event-stream");
        asked = asked.header("Authorization", format!("DPoP {token}"));
        for proof in &proofs {
            asked = asked.header("DPoP", proof);
        }
        let refused = within("a refusal", asked.send()).await.unwrap();
        let wanted = ("DPoP", "invalid_dpop_proof".to_owned());
        assert_eq!(error(&refused), wanted, "{}", proofs.len());
    }
    assert!(is_good().await, "it is good for its own client still");
    // Another spelling of the URL is the same.
    let spelled = changed(
        "htu",
        json!(format!("{url}?a=b#c").replace("http:", "HTTP:")),
    );
    assert_eq!(status(&url, &token, &spelled).await, GOOD);
    // A proof for the token endpoint is none here, and a token of one server none of another.
    let other = url.replace("/x/", "/y/");
    let proof = prover.with_token("GET", &other, &token);
    let refused = answered(proving(&token, &proof), &other).await;
    assert_eq!(error(&refused), ("DPoP", "invalid_token".to_owned()));
    // What is bound to no key is not good as if it were.
    let plain = app.tokens().await.text("access_token");
    let proof = prover.with_token("GET", &url, &plain);
    for (token, proof) in [
        (plain.as_str(), proof),
        ("lgk_x", prover.sign(&own())),
        ("x.y.z", prover.sign(&own())),
    ] {
        let refused = answered(proving(token, &proof), &url).await;
        assert_eq!(
            error(&refused),
            ("DPoP", "invalid_token".to_owned()),
            "{token}"
        );
    }
    assert_eq!(answered(bearer(&plain), &url).await.status().as_u16(), GOOD);
}

#[tokio::test]
#[expect(
    clippy::too_many_lines,
    reason = "each way to be wrong, and what is left unused"
)]
async fn a_token_request_needs_a_good_proof_or_none() {
    let gateway = gateway(json!({})).await;
    let (app, prover) = (App::public(&gateway, "a").await, Prover::new());
    let endpoint = app.endpoint("token");
    let code = app.code(&[]).await;
    let replayed = prover.for_token(&endpoint);
    let refresh = {
        let code = app.code(&[]).await;
        let tokens = with_proof(&app, &replayed).redeem(&code, &[]).await;
        tokens.text("refresh_token")
    };
    let changed = |name: &str, value: Value| {
        let mut claims = claims("POST", &endpoint);
        claims[name] = value;
        prover.sign(&claims)
    };
    for (what, proof) in [
        ("no JWT", "x".to_owned()),
        ("another method", changed("htm", json!("GET"))),
        (
            "another endpoint",
            prover.for_token(&app.endpoint("revoke")),
        ),
        (
            "another tenant",
            prover.for_token(&endpoint.replace("/a/", "/b/")),
        ),
        ("a proof of before", replayed.clone()),
        ("the past", changed("iat", json!(now() - 90))),
        ("the future", changed("iat", json!(now() + 60))),
    ] {
        let refused = with_proof(&app, &proof).redeem(&code, &[]).await;
        refused.assert_refused(400, "invalid_dpop_proof");
        assert!(!refused.body.to_string().contains("eyJ"), "{what}");
    }
    let two = client().post(&endpoint).body(format!(
        "grant_type=authorization_code&client_id={}",
        app.id
    ));
    let two = two.header("Content-Type", "application/x-www-form-urlencoded");
    let two = two.header("DPoP", prover.for_token(&endpoint));
    let two = two.header("DPoP", prover.for_token(&endpoint)).send();
    let two = Answer::of(within("an answer", two).await.unwrap()).await;
    two.assert_refused(400, "invalid_dpop_proof");
    // None of them has used the code, nor does a replay use a refresh token.
    let refused = with_proof(&app, &replayed).refresh(&refresh, &[]).await;
    refused.assert_refused(400, "invalid_dpop_proof");
    let by = |proof: &str| with_proof(&app, proof);
    let tokens = by(&prover.for_token(&endpoint)).redeem(&code, &[]).await;
    assert_eq!(tokens.text("token_type"), "DPoP");
    // The refresh token of a public client is bound: none and another key are refused, and use nothing.
    for _ in 0..2 {
        let none = app.refresh(&refresh, &[]).await;
        none.assert_refused(400, "invalid_dpop_proof");
        let other = by(&Prover::new().for_token(&endpoint));
        let other = other.refresh(&refresh, &[]).await;
        other.assert_refused(400, "invalid_grant");
    }
    let own = by(&prover.for_token(&endpoint));
    assert_eq!(own.refresh(&refresh, &[]).await.text("token_type"), "DPoP");
    // One that is not bound is from the first proof on.
    let plain = app.tokens().await.text("refresh_token");
    let plain = app.refresh(&plain, &[]).await;
    assert_eq!(plain.text("token_type"), "Bearer");
    let plain = plain.text("refresh_token");
    let own = by(&prover.for_token(&endpoint)).refresh(&plain, &[]).await;
    let refused = app.refresh(&own.text("refresh_token"), &[]).await;
    refused.assert_refused(400, "invalid_dpop_proof");
}

/// A thief binds a token that is bound to no key: its owner, who comes with it and has none, ends the grant.
#[tokio::test]
async fn who_binds_a_stolen_refresh_token_is_found_out() {
    let gateway = gateway(json!({})).await;
    let app = App::public(&gateway, "a").await;
    let (thief, endpoint) = (Prover::new(), app.endpoint("token"));
    let by = async |refresh: &str| {
        let own = with_proof(&app, &thief.for_token(&endpoint));
        own.refresh(refresh, &[]).await.text("refresh_token")
    };
    // The owner used it before, and the thief repeats it: the successor stays good for its owner.
    let mine = app.tokens().await.text("refresh_token");
    let next = app.refresh(&mine, &[]).await.text("refresh_token");
    assert_eq!(by(&mine).await, next);
    let tokens = app.refresh(&next, &[]).await;
    assert_eq!(tokens.text("token_type"), "Bearer");
    // The thief is the first.
    let mine = tokens.text("refresh_token");
    let theirs = by(&mine).await;
    let refused = app.refresh(&mine, &[]).await;
    refused.assert_refused(400, "invalid_grant");
    let own = with_proof(&app, &thief.for_token(&endpoint));
    let refused = own.refresh(&theirs, &[]).await;
    refused.assert_refused(400, "invalid_grant");
    let audit = format!("{}/api/v1/audit?kind=grant.revoked", gateway.origin());
    until("a record", async || {
        let audit = send(Method::GET, &audit, &gateway.administrator(), None).await;
        audit.body.to_string().contains("before its key came again")
    })
    .await;
}

#[tokio::test]
async fn other_clients_bind_each_access_token() {
    let mut declared = tenants();
    let machine = json!({"secret": SECRET, "grant_types": ["client_credentials"]});
    declared["a"]["clients"]["ci"] = machine;
    let gateway = Served::start(json!({}), declared).await;
    let prover = Prover::new();
    // A client with a secret proves itself by that: its refresh token is bound to no key (section 5).
    let app = App {
        secret: Some(SECRET.to_owned()),
        ..App::of(&gateway, "a", "app")
    };
    let refresh = bound(&app, &prover).await.text("refresh_token");
    let (endpoint, other) = (app.endpoint("token"), Prover::new());
    let by = with_proof(&app, &other.for_token(&endpoint));
    let again = by.refresh(&refresh, &[]).await;
    let jkt = |answer: &Answer| said(&answer.text("access_token")).1["cnf"]["jkt"].clone();
    assert_eq!(jkt(&again), json!(other.thumbprint()));
    let plain = app.refresh(&again.text("refresh_token"), &[]).await;
    assert_eq!(
        (plain.text("token_type"), jkt(&plain)),
        ("Bearer".to_owned(), Value::Null)
    );
    // A machine.
    let mut headers = HeaderMap::new();
    headers.insert("Authorization", basic("ci", SECRET).parse().unwrap());
    headers.insert("DPoP", prover.for_token(&endpoint).parse().unwrap());
    let machine = App {
        http: client_with(headers),
        ..App::of(&gateway, "a", "")
    };
    let token = machine.ask(&[("grant_type", "client_credentials")]).await;
    assert_eq!(
        (token.text("token_type"), jkt(&token)),
        ("DPoP".to_owned(), json!(prover.thumbprint()))
    );
    let replayed = machine.ask(&[("grant_type", "client_credentials")]).await;
    replayed.assert_refused(400, "invalid_dpop_proof");
}

/// RFC 9449, section 5.2.
#[tokio::test]
async fn a_client_may_say_that_it_always_has_a_key() {
    let gateway = gateway(json!({})).await;
    let asked = |value: Value| {
        json!({"redirect_uris": [BACK], "token_endpoint_auth_method": "none",
            "dpop_bound_access_tokens": value})
    };
    let refused = register(&gateway, "a", &asked(json!("yes"))).await;
    refused.assert_refused(400, "invalid_client_metadata");
    let made = register(&gateway, "a", &asked(json!(true))).await;
    assert_eq!(made.body["dpop_bound_access_tokens"], json!(true));
    let (app, prover) = (
        App::of(&gateway, "a", &made.text("client_id")),
        Prover::new(),
    );
    let code = app.code(&[]).await;
    let refused = app.redeem(&code, &[]).await;
    refused.assert_refused(400, "invalid_dpop_proof");
    let by = with_proof(&app, &prover.for_token(&app.endpoint("token")));
    let tokens = by.redeem(&code, &[]).await;
    assert_eq!(tokens.text("token_type"), "DPoP");
}

/// RFC 9449, section 10.
#[tokio::test]
async fn an_authorization_request_binds_its_code_to_a_key() {
    let gateway = gateway(json!({})).await;
    let (app, prover) = (App::public(&gateway, "a").await, Prover::new());
    let (endpoint, jkt) = (app.endpoint("token"), prover.thumbprint());
    let code = async || app.code(&[("dpop_jkt", &jkt)]).await;
    let other = Prover::new().for_token(&endpoint);
    for by in [app.clone(), with_proof(&app, &other)] {
        let code = code().await;
        let refused = by.redeem(&code, &[]).await;
        refused.assert_refused(400, "invalid_grant");
        // It is used up.
        let by = with_proof(&app, &prover.for_token(&endpoint));
        by.redeem(&code, &[])
            .await
            .assert_refused(400, "invalid_grant");
    }
    let by = with_proof(&app, &prover.for_token(&endpoint));
    let tokens = by.redeem(&code().await, &[]).await;
    assert_eq!(tokens.text("token_type"), "DPoP");
}

/// The URL in a proof is the one that the client calls: at the tenant's host, or by another name of this machine.
#[tokio::test]
async fn a_proof_names_the_url_that_the_client_calls() {
    let mut declared = tenants();
    declared["a"]["hosts"] = json!(["a.localhost"]);
    let gateway = Served::start(json!({}), declared).await;
    let (app, prover) = (App::public(&gateway, "a").await, Prover::new());
    let public = gateway.origin();
    for name in ["127.0.0.1", "localhost", "a.localhost"] {
        let origin = public.replace("127.0.0.1", name);
        let app = App {
            origin: origin.clone(),
            ..app.clone()
        };
        let code = app
            .code(&[("resource", &format!("{origin}/t/a/x/mcp"))])
            .await;
        let other = if name == "127.0.0.1" {
            "localhost"
        } else {
            "127.0.0.1"
        };
        let endpoint = app.endpoint("token");
        let elsewhere = prover.for_token(&endpoint.replace(name, other));
        let refused = with_proof(&app, &elsewhere).redeem(&code, &[]).await;
        refused.assert_refused(400, "invalid_dpop_proof");
        let by = with_proof(&app, &prover.for_token(&endpoint));
        let token = by.redeem(&code, &[]).await.text("access_token");
        let url = format!("{origin}/t/a/x/mcp");
        let elsewhere = prover.with_token("GET", &url.replace(name, other), &token);
        assert_eq!(status(&url, &token, &elsewhere).await, 401, "{name}");
        let proof = prover.with_token("GET", &url, &token);
        assert_eq!(status(&url, &token, &proof).await, GOOD, "{name}");
    }
    // The short path at the host is another URL.
    let short = format!("{}/token", public.replace("127.0.0.1", "a.localhost"));
    let asked = async |proof: String| {
        let asked = client().post(&short).header("DPoP", proof);
        let asked = asked.header("Content-Type", "application/x-www-form-urlencoded");
        let form = format!(
            "client_id={}&grant_type=refresh_token&refresh_token=lgr_x",
            app.id
        );
        Answer::of(within("an answer", asked.body(form).send()).await.unwrap()).await
    };
    let long = short.replace("/token", "/t/a/oauth/token");
    asked(prover.for_token(&long))
        .await
        .assert_refused(400, "invalid_dpop_proof");
    asked(prover.for_token(&short))
        .await
        .assert_refused(400, "invalid_grant");
}

/// The tenants of [`tenants`], of which `a` requires proofs.
fn requiring() -> Value {
    let mut declared = tenants();
    declared["a"]["dpop"] = json!("required");
    declared
}

#[tokio::test]
async fn a_tenant_may_require_keys() {
    let gateway = Served::start(json!({}), requiring()).await;
    let origin = gateway.origin();
    let named =
        |tenant: &str| format!("{origin}/.well-known/oauth-protected-resource/t/{tenant}/x/mcp");
    let required = "dpop_bound_access_tokens_required";
    assert_eq!(document(&named("a")).await[required], json!(true));
    assert_eq!(document(&named("b")).await.get(required), None);
    let (app, prover) = (App::public(&gateway, "a").await, Prover::new());
    let code = app.code(&[]).await;
    let refused = app.redeem(&code, &[]).await;
    refused.assert_refused(400, "invalid_dpop_proof");
    // The code is not used up.
    let by = with_proof(&app, &prover.for_token(&app.endpoint("token")));
    let tokens = by.redeem(&code, &[]).await;
    let url = format!("{origin}/t/a/x/mcp");
    let token = tokens.text("access_token");
    let proof = prover.with_token("GET", &url, &token);
    assert_eq!(status(&url, &token, &proof).await, GOOD);
    // The other tenant is as before.
    App::public(&gateway, "b").await.tokens().await;
    // API keys are bound to nothing.
    let path = format!("{origin}/api/v1/tenants/a/api-keys");
    let key = json!({"name": "ci", "subject": "ci", "servers": ["*"]});
    let made = send(Method::POST, &path, &gateway.administrator(), Some(&key)).await;
    assert!(made.status.is_success(), "{}", made.body);
    let key = made.text("key");
    assert_eq!(answered(bearer(&key), &url).await.status().as_u16(), GOOD);
}

/// Sessions with tokens that are bound to no key end when the tenant begins to require one; others go on.
#[tokio::test]
async fn what_is_open_without_a_key_ends_when_keys_are_required() {
    let gateway = gateway(json!({})).await;
    let (app, prover) = (App::public(&gateway, "a").await, Prover::new());
    let url = format!("{}/t/a/x/mcp", gateway.origin());
    let plain = app.tokens().await.text("access_token");
    let mut session = Session::at(bearer(&plain), url.clone());
    session.initialize(NEWEST).await;
    let lost = session.listen().await;
    let other = App::public(&gateway, "a").await;
    let token = bound(&other, &prover).await.text("access_token");
    let mut kept = Session::at(client(), url.clone());
    opened(&mut kept, &prover, &token).await;
    next(&mut kept, "GET", &prover, &token);
    let stream = kept.listen().await;
    let path = format!("{}/api/v1/tenants/a", gateway.origin());
    let key = gateway.administrator();
    let mut declared = send(Method::GET, &path, &key, None).await.body["spec"].clone();
    declared["dpop"] = json!("required");
    let put = send(Method::PUT, &path, &key, Some(&declared)).await;
    assert!(put.status.is_success(), "{}", put.body);
    within("the end of the stream", ended(lost)).await;
    assert_eq!(
        answered(bearer(&plain), &url).await.status(),
        StatusCode::UNAUTHORIZED
    );
    next(&mut kept, "POST", &prover, &token);
    assert_eq!(kept.text("echo", json!({"text": "hi"})).await, "hi");
    drop(stream);
}

async fn ended(mut stream: Events) {
    while stream.next().await.is_some() {}
}

/// A proof is good once at all replicas, and is checked where it comes in, wherever the session is.
#[tokio::test(flavor = "multi_thread")]
async fn a_proof_is_good_once_at_both_replicas() {
    let mut pair = Pair::issuing(json!({})).await;
    let url = |replica: &Served| format!("{}/t/a/x/mcp", replica.origin());
    // What the client sees: the public URL, in front of both.
    let public = "https://gw.test/t/a/x/mcp";
    let prover = Prover::new();
    let token = {
        let [first, _] = pair.both();
        let app = App::public(first, "a").await;
        let code = app.code(&[]).await;
        let proof = prover.for_token("https://gw.test/t/a/oauth/token");
        let tokens = with_proof(&app, &proof).redeem(&code, &[]).await;
        assert_eq!(tokens.status, StatusCode::OK, "{}", tokens.body);
        tokens.text("access_token")
    };
    let [first, second] = pair.both();
    let own = |method: &str| prover.with_token(method, public, &token);
    let mut session = Session::at(proving(&token, &own("POST")), url(first));
    let response = session.post(&opening(NEWEST)).await;
    assert_eq!(response.status(), StatusCode::OK);
    session.id = Some(
        response.headers()["mcp-session-id"]
            .to_str()
            .unwrap()
            .to_owned(),
    );
    session.revision = Some(NEWEST.to_owned());
    // Through the other replica, by a hop.
    let proof = own("POST");
    let mut hopping = session.again();
    (hopping.url, hopping.http) = (url(second), proving(&token, &proof));
    assert_eq!(hopping.text("echo", json!({"text": "hi"})).await, "hi");
    for replica in [first, second] {
        let refused = answered(proving(&token, &proof), &url(replica)).await;
        assert_eq!(refused.status(), StatusCode::UNAUTHORIZED);
        let mut replayed = session.again();
        (replayed.url, replayed.http) = (url(replica), proving(&token, &proof));
        let refused = replayed.begin("echo", json!({"text": "hi"})).await;
        assert_eq!(error(&refused), ("DPoP", "invalid_dpop_proof".to_owned()));
    }
    // A bearer token is not good for the session at the other replica either.
    hopping.http = bearer(&token);
    let refused = hopping.begin("echo", json!({"text": "hi"})).await;
    assert_eq!(error(&refused), ("Bearer", "invalid_token".to_owned()));
    // While Redis is away, a proof is good once at each replica.
    let urls = pair.both().map(url);
    pair.redis.kill();
    let proof = own("GET");
    for url in &urls {
        let is_taken = |status: u16| status != 401;
        assert!(is_taken(status(url, &token, &proof).await), "{url}");
        assert_eq!(status(url, &token, &proof).await, 401, "{url}");
    }
}

/// A gateway without Redis forgets which proofs were used, and each was good once more after a restart.
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_makes_no_used_proof_good_again() {
    let mut config = json!({"public_url": "https://gw.test"});
    let mut first = gateway(config.clone()).await;
    let (app, prover) = (App::public(&first, "a").await, Prover::new());
    let code = app.code(&[]).await;
    let for_token = prover.for_token("https://gw.test/t/a/oauth/token");
    let tokens = with_proof(&app, &for_token).redeem(&code, &[]).await;
    assert_eq!(tokens.status, StatusCode::OK, "{}", tokens.body);
    let token = tokens.text("access_token");
    let own = || prover.with_token("GET", "https://gw.test/t/a/x/mcp", &token);
    let url = |gateway: &Served| format!("{}/t/a/x/mcp", gateway.origin());
    let (used, made) = (own(), now());
    assert_eq!(status(&url(&first), &token, &used).await, GOOD);
    first.stop().await;
    until("a second in which it was not made", async || now() > made).await;
    config["data_dir"] = json!(first.data());
    let again = Served::with(&[], config, Value::Null).await;
    assert_eq!(status(&url(&again), &token, &used).await, 401);
    assert_eq!(status(&url(&again), &token, &own()).await, GOOD);
    let app = App {
        origin: again.origin().to_owned(),
        ..app.clone()
    };
    let refresh = tokens.text("refresh_token");
    let replayed = with_proof(&app, &for_token).refresh(&refresh, &[]).await;
    replayed.assert_refused(400, "invalid_dpop_proof");
    let proof = prover.for_token("https://gw.test/t/a/oauth/token");
    let refreshed = with_proof(&app, &proof).refresh(&refresh, &[]).await;
    assert_eq!(refreshed.status, StatusCode::OK, "{}", refreshed.body);
}

/// A gateway whose tenants trust an issuer; `strict` requires keys.
async fn trusting(issuer: &str) -> Served {
    let tenant = |dpop: &str| {
        json!({"auth": {"mode": "external", "issuer": issuer}, "dpop": dpop,
            "servers": {"x": {"command": child()}}})
    };
    let config = json!({"outbound": {"allow": ["127.0.0.0/8"]}});
    let declared = json!({"a": tenant("optional"), "strict": tenant("required")});
    Served::start(config, declared).await
}

#[tokio::test]
async fn tokens_of_another_issuer_are_bound_too() {
    let (key, prover) = (Key::new("k"), Prover::new());
    let issuer = Issuer::start(&[&key]).await;
    let gateway = trusting(&issuer.url).await;
    for tenant in ["a", "strict"] {
        let url = gateway.stranger(tenant, "x").url;
        let signed = |cnf: Value| {
            let mut claims = issuer.claims(&url);
            claims["cnf"] = cnf;
            key.sign(&claims)
        };
        let token = signed(json!({"jkt": prover.thumbprint()}));
        let mut session = Session::at(client(), url.clone());
        opened(&mut session, &prover, &token).await;
        next(&mut session, "POST", &prover, &token);
        assert_eq!(session.text("echo", json!({"text": "hi"})).await, "hi");
        // The token is in the cache of verified tokens now.
        let replayed = session.begin("echo", json!({"text": "hi"})).await;
        assert_eq!(error(&replayed), ("DPoP", "invalid_dpop_proof".to_owned()));
        let refused = answered(bearer(&token), &url).await;
        assert_eq!(error(&refused), ("Bearer", "invalid_token".to_owned()));
        let thief = Prover::new().with_token("GET", &url, &token);
        assert_eq!(status(&url, &token, &thief).await, 401);
        // What cannot be proved here (RFC 8705), with a proof and without.
        let certificate = json!({"x5t#S256": prover.thumbprint()});
        let both = json!({"jkt": prover.thumbprint(), "x5t#S256": prover.thumbprint()});
        for cnf in [certificate, both, json!({}), json!({"jkt": "x"})] {
            let token = signed(cnf.clone());
            let proof = prover.with_token("GET", &url, &token);
            assert_eq!(status(&url, &token, &proof).await, 401, "{cnf}");
            let refused = answered(bearer(&token), &url).await;
            assert_eq!(refused.status(), StatusCode::UNAUTHORIZED, "{cnf}");
        }
        let plain = key.sign(&issuer.claims(&url));
        let wanted = if tenant == "a" { GOOD } else { 401 };
        assert_eq!(
            answered(bearer(&plain), &url).await.status().as_u16(),
            wanted
        );
    }
}

/// oidc-provider binds tokens by the same proofs: what it takes for the key, the gateway does.
#[tokio::test]
async fn a_real_issuer_binds_tokens_that_are_read_and_asked_about() {
    let (provider, prover) = (Provider::start().await, Prover::new());
    let auth = json!({"mode": "external", "issuer": provider.issuer});
    let asks = json!({"client_id": "introspector", "client_secret": "a secret: of%20spaces"});
    let server = json!({"x": {"command": child()}});
    let config = json!({"outbound": {"allow": ["127.0.0.0/8"]}});
    let declared = json!({"a": {"auth": auth, "servers": server},
        "opaque": {"auth": auth, "introspection": asks, "servers": server, "dpop": "required"}});
    let gateway = Served::start(config, declared).await;
    for tenant in ["a", "opaque"] {
        let url = gateway.stranger(tenant, "x").url;
        let proof = prover.for_token(&format!("{}/token", provider.issuer));
        let token = provider.bound_token("app", &url, &proof).await;
        assert_eq!(token.contains('.'), tenant == "a", "{token}");
        let mut session = Session::at(client(), url.clone());
        opened(&mut session, &prover, &token).await;
        next(&mut session, "POST", &prover, &token);
        assert_eq!(session.text("echo", json!({"text": "hi"})).await, "hi");
        let replayed = session.begin("echo", json!({"text": "hi"})).await;
        assert_eq!(error(&replayed), ("DPoP", "invalid_dpop_proof".to_owned()));
        let refused = answered(bearer(&token), &url).await;
        assert_eq!(error(&refused), ("Bearer", "invalid_token".to_owned()));
    }
    let url = gateway.stranger("opaque", "x").url;
    let plain = provider.token("app", &url, "").await;
    assert_eq!(
        answered(bearer(&plain), &url).await.status(),
        StatusCode::UNAUTHORIZED
    );
}

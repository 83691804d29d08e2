//! The official Rust client, `rmcp`, with nothing but a URL: discovery, registration, log-in,
//! tokens, calls, and a refreshed token.

use std::process::Stdio;

use rmcp::{
    ServiceExt,
    transport::{
        StreamableHttpClientTransport,
        auth::{AuthClient, AuthorizationRequest, OAuthState},
        streamable_http_client::StreamableHttpClientTransportConfig,
    },
};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::{
    auth::external_tokens::bearer,
    support::{
        harness::{NEWEST, Session, child, client, package, within},
        served::Served,
    },
};

/// The client's redirect URI. No server listens there; the browser prints the URL.
const REDIRECT: &str = "http://127.0.0.1:33422/callback";

async fn serving() -> Served {
    Served::start(json!({}), json!({"a": tenant(&json!({}))})).await
}

fn tenant(policy: &Value) -> Value {
    json!({"auth": {"mode": "builtin"},
        "users": {"ada": {"password": "correct horse battery"}},
        "servers": {"x": {"command": child(), "policy": policy}}})
}

/// The steps of a person's browser up to the redirect to the client.
async fn browsed(url: &str) -> String {
    let script = package().join("tests/referees/browser.mjs");
    let done = Command::new("node")
        .arg(script)
        .args(["--until", REDIRECT, url])
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let done = within("the browser", done).await.unwrap();
    let said = String::from_utf8(done.stderr).unwrap();
    assert!(done.status.success(), "{said}");
    String::from_utf8(done.stdout).unwrap().trim().to_owned()
}

#[tokio::test]
async fn rmcp_gets_in_with_nothing_but_a_url() {
    let gateway = serving().await;
    let url = gateway.stranger("a", "x").url;
    Box::pin(gets_in(&gateway, url.clone())).await;
    // Another name of this machine.
    Box::pin(gets_in(&gateway, url.replace("127.0.0.1", "localhost"))).await;
}

async fn gets_in(gateway: &Served, url: String) {
    let mut state = OAuthState::new(&url, Some(client())).await.unwrap();
    let request = AuthorizationRequest::new(REDIRECT).with_client_name("it");
    let started = state.start_authorization(request);
    within("discovery and registration", started).await.unwrap();
    let asked = state.get_authorization_url().await.unwrap();
    assert!(asked.starts_with(&format!("{}/t/a/oauth/authorize?", gateway.origin())));
    let landed = browsed(&asked).await;
    // `rmcp` compares `iss` with the issuer of the metadata (RFC 9207).
    let issuer = format!("{}/t/a", gateway.origin());
    let escaped: String = url::form_urlencoded::byte_serialize(issuer.as_bytes()).collect();
    assert!(landed.contains(&format!("iss={escaped}")), "{landed}");
    within("the exchange", state.handle_callback_url(&landed))
        .await
        .unwrap();
    let (_, first) = state.get_credentials().await.unwrap();
    within("a refresh", state.refresh_token()).await.unwrap();
    let (_, second) = state.get_credentials().await.unwrap();
    let text = |tokens| serde_json::to_value::<Option<_>>(tokens).unwrap();
    let (first, second): (Value, Value) = (text(first), text(second));
    for name in ["access_token", "refresh_token"] {
        assert!(second[name].is_string() && first[name] != second[name]);
    }

    let manager = state.into_authorization_manager().unwrap();
    let config = StreamableHttpClientTransportConfig::with_uri(url);
    let authorized = AuthClient::new(client(), manager);
    let transport = StreamableHttpClientTransport::with_client(authorized, config);
    let service = within("initialize", ().serve(transport)).await.unwrap();
    let params = serde_json::from_value(json!({"name": "echo", "arguments": {"text": "hi"}}));
    let called = service.call_tool(params.unwrap());
    let result = within("an answer", called).await.unwrap();
    let result = serde_json::to_value(result).unwrap();
    assert_eq!(result["content"][0]["text"], "hi");
    within("the end", service.cancel()).await.unwrap();
}

/// A call that is refused for want of scopes leads to a wider token.
#[tokio::test]
async fn rmcp_asks_for_more_scopes_when_a_call_needs_them() {
    let policy = json!({"scopes": {"*": ["base"], "counter": ["extra"]}});
    let gateway = Served::start(json!({}), json!({"a": tenant(&policy)})).await;
    let url = gateway.stranger("a", "x").url;
    let mut state = OAuthState::new(&url, Some(client())).await.unwrap();
    let request = AuthorizationRequest::new(REDIRECT).with_client_name("it");
    let started = state.start_authorization(request);
    within("discovery and registration", started).await.unwrap();
    let asked = state.get_authorization_url().await.unwrap();
    assert!(
        asked.contains("scope=base") && !asked.contains("extra"),
        "{asked}"
    );
    let landed = browsed(&asked).await;
    let exchanged = state.handle_callback_url(&landed);
    within("the exchange", exchanged).await.unwrap();
    let token = async |state: &OAuthState| {
        let (_, tokens) = state.get_credentials().await.unwrap();
        serde_json::to_value(tokens).unwrap()["access_token"].clone()
    };
    let first = token(&state).await;
    let mut session = Session::at(bearer(first.as_str().unwrap()), url.clone());
    session.initialize(NEWEST).await;
    let refused = session.begin("counter", json!({})).await;
    assert_eq!(refused.status(), 403);
    let challenge = refused.headers()["www-authenticate"].to_str().unwrap();
    let scopes = challenge.split('"').nth(3).unwrap();
    assert_eq!(scopes, "base extra", "{challenge}");
    let asked = state.request_scope_upgrade(scopes, REDIRECT).await.unwrap();
    let landed = browsed(&asked).await;
    let exchanged = state.handle_callback_url(&landed);
    within("the exchange", exchanged).await.unwrap();
    let second = token(&state).await;
    session.http = bearer(second.as_str().unwrap());
    assert_eq!(session.text("counter", json!({})).await, "1");
}

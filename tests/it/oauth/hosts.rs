//! Hosts of tenants: there a tenant has the short URLs, an issuer of its own, and no other tenant is reached.

#![expect(clippy::too_many_lines, reason = "tables of requests, each one story")]

use reqwest::{
    StatusCode,
    header::{self, HeaderMap, HeaderName, HeaderValue},
};
use serde_json::{Value, json};

use crate::auth::{api_keys::key, external_tokens::bearer};
use crate::support::{
    harness::{NEWEST, Session, child, client, client_with, json_of, opening, until, within},
    oauth_client::{Answer, App, BACK, post, said, send, tenants},
    pair::Pair,
    served::Served,
};

/// Tenants a and b with a host each.
fn with_hosts() -> Value {
    let mut all = tenants();
    for tenant in ["a", "b"] {
        all[tenant]["hosts"] = json!([format!("{tenant}.localhost")]);
    }
    all
}

async fn gateway() -> Served {
    Served::start(json!({}), with_hosts()).await
}

/// The URL of a host of this gateway.
fn at(gateway: &Served, host: &str) -> String {
    gateway.origin().replace("127.0.0.1", host)
}

/// A client that sends this header field.
fn sending(name: HeaderName, value: &str) -> reqwest::Client {
    let value = HeaderValue::from_str(value).unwrap();
    client_with(HeaderMap::from_iter([(name, value)]))
}

async fn get(url: &str) -> Answer {
    let asked = client().get(url).send();
    Answer::of(within("a document", asked).await.unwrap()).await
}

#[tokio::test]
async fn a_host_has_the_documents_of_its_tenant_alone() {
    let gateway = gateway().await;
    for (tenant, other) in [("a", "b"), ("b", "a")] {
        let host = at(&gateway, &format!("{tenant}.localhost"));
        for document in ["oauth-authorization-server", "openid-configuration"] {
            let found = get(&format!("{host}/.well-known/{document}")).await;
            assert_eq!(found.status, StatusCode::OK);
            assert_eq!(found.body["issuer"], *host, "{}", found.body);
            for (name, value) in found.body.as_object().unwrap() {
                let is_url = name.ends_with("_endpoint") || name == "jwks_uri";
                let of_host = value.as_str().is_some_and(|url| url.starts_with(&*host));
                assert!(!is_url || of_host, "{name}: {value}");
            }
            for path in [tenant, other] {
                let other = get(&format!("{host}/.well-known/{document}/t/{path}")).await;
                assert_eq!(other.status, StatusCode::NOT_FOUND, "{path}");
            }
        }
        for path in [
            "/api/v1/tenants/b/users",
            "/api/v1/status",
            "/api/v1/openapi.json",
        ] {
            assert_eq!(
                get(&format!("{host}{path}")).await.status,
                StatusCode::NOT_FOUND,
                "{path}"
            );
        }
        for path in ["/mcp".to_owned(), format!("/t/{tenant}/y/mcp")] {
            let metadata = format!("{host}/.well-known/oauth-protected-resource{path}");
            let found = get(&metadata).await.body;
            assert_eq!(found["resource"], format!("{host}{path}"));
            assert_eq!(found["authorization_servers"], json!([host]));
            let refused = get(&format!("{host}{path}")).await;
            assert_eq!(refused.status, StatusCode::UNAUTHORIZED);
            let challenge = refused.header("www-authenticate");
            assert!(
                challenge.contains(&format!("\"{metadata}\"")),
                "{challenge}"
            );
        }
        for path in [
            format!("/t/{other}/x/mcp"),
            format!("/t/{other}/oauth/jwks"),
            format!("/t/{other}/oauth/authorize"),
            format!("/.well-known/oauth-protected-resource/t/{other}/x/mcp"),
        ] {
            let found = get(&format!("{host}{path}")).await;
            assert_eq!(found.status, StatusCode::NOT_FOUND, "{path}");
        }
        let gateway = gateway.origin();
        let url = format!("{gateway}/.well-known/oauth-authorization-server/t/{tenant}");
        let issuer = get(&url).await.body["issuer"].clone();
        assert_eq!(issuer, format!("{gateway}/t/{tenant}"), "as before");
    }
    for host in ["c.localhost", "a.localhost.evil.test"] {
        let named = client().get(format!("{}/mcp", gateway.origin()));
        let port = gateway.origin().rsplit_once(':').unwrap().1;
        let named = named.header(header::HOST, format!("{host}:{port}")).send();
        let status = within("a refusal", named).await.unwrap().status();
        assert_eq!(status, StatusCode::FORBIDDEN, "{host}");
    }
    let other_port = client().get(format!("{}/mcp", gateway.origin()));
    let other_port = other_port.header(header::HOST, "a.localhost:1").send();
    let status = within("a refusal", other_port).await.unwrap().status();
    assert_eq!(status, StatusCode::FORBIDDEN);
}

/// "MCP clients MUST use the following default endpoints relative to the authorization base URL" (2025-03-26
/// authorization, "Fallbacks for Servers without Metadata Discovery"), which is that of any tenant at its host.
#[tokio::test]
async fn a_client_without_discovery_logs_in_at_the_host_of_any_tenant() {
    let gateway = gateway().await;
    let host = at(&gateway, "b.localhost");
    let metadata = json!({"redirect_uris": [BACK], "token_endpoint_auth_method": "none"});
    let url = format!("{host}/register");
    let registered = send(reqwest::Method::POST, &url, "", Some(&metadata));
    let id = registered.await.text("client_id");
    let app = App {
        origin: host.clone(),
        ..App::of(&gateway, "b", &id)
    };
    let short = app
        .request(&[])
        .replace("/t/b/oauth/authorize", "/authorize");
    let mut browser = crate::support::browser::Browser::new();
    let login = browser.open(&short).await;
    let ada = [("username", "ada"), ("password", "correct horse")];
    let sent = browser.submit(&login, &ada).await;
    let consent = browser.follow(sent, &host).await;
    let done = browser
        .submit(&consent, &[("decision", "allow")])
        .await
        .answer();
    assert_eq!(done["iss"], host);
    let verifier = crate::support::oauth_client::VERIFIER;
    let fields = [
        ("grant_type", "authorization_code"),
        ("client_id", &*id),
        ("code", &*done["code"]),
        ("redirect_uri", BACK),
        ("code_verifier", verifier),
    ];
    let elsewhere = post(&format!("{}/t/b/oauth/token", gateway.origin()), &fields).await;
    elsewhere.assert_refused(400, "invalid_grant");
    // The refused attempt has used the code up.
    let tokens = app.tokens().await;
    let access = tokens.text("access_token");
    let (_, claims) = said(&access);
    assert_eq!(
        (&claims["iss"], &claims["aud"]),
        (&json!(host), &json!(format!("{host}/mcp")))
    );
    let http = sending(header::AUTHORIZATION, &format!("Bearer {access}"));
    let mut session = Session::at(http, format!("{host}/mcp"));
    session.initialize("2025-03-26").await;
    assert_eq!(session.text("counter", json!({})).await, "1");
    for elsewhere in [gateway.origin(), &at(&gateway, "a.localhost")] {
        for path in ["/t/b/x/mcp", "/t/a/x/mcp"] {
            let asked = client()
                .get(format!("{elsewhere}{path}"))
                .bearer_auth(&access);
            let asked = asked.header("Accept", "text/event-stream").send();
            let status = within("a status", asked).await.unwrap().status();
            assert!(
                matches!(status.as_u16(), 401 | 404),
                "{elsewhere}{path}: {status}"
            );
        }
    }
    let refresh = tokens.text("refresh_token");
    let elsewhere = App {
        origin: gateway.origin().to_owned(),
        ..app.clone()
    };
    elsewhere
        .refresh(&refresh, &[])
        .await
        .assert_refused(400, "invalid_grant");
    let renewed = app.refresh(&refresh, &[]).await;
    assert_eq!(renewed.status, StatusCode::OK, "{}", renewed.body);
}

#[tokio::test]
async fn hosts_come_and_go_and_have_one_tenant() {
    let gateway = gateway().await;
    let key = gateway.administrator();
    let put = async |tenant: &str, hosts: Value| {
        let url = format!("{}/api/v1/tenants/{tenant}", gateway.origin());
        let auth = json!({"mode": "builtin", "scopes": ["files:read"]});
        let body = json!({"auth": auth, "default_server": "x", "hosts": hosts});
        let (status, answer) = {
            let answer = send(reqwest::Method::PUT, &url, &key, Some(&body)).await;
            (answer.status, answer.body)
        };
        (status.as_u16(), answer.to_string())
    };
    for taken in [
        "b.localhost",
        "B.LOCALHOST",
        "127.0.0.1",
        "localhost",
        "no host",
    ] {
        let (status, text) = put("a", json!([taken])).await;
        assert_eq!(status, 422, "{taken}: {text}");
        assert!(text.contains("tenants.a.hosts"), "{text}");
    }
    let (status, text) = put("a", json!(["c.localhost"])).await;
    assert_eq!(status, 200, "{text}");
    let issuer = async |host: &str| {
        let url = format!(
            "{}/.well-known/oauth-authorization-server",
            at(&gateway, host)
        );
        get(&url).await.status.as_u16()
    };
    until("the new host, and no old one", || async {
        issuer("c.localhost").await == 200 && issuer("a.localhost").await == 403
    })
    .await;
}

/// Another tenant did not change, and the replica still served the tenant that was to go.
#[tokio::test]
async fn a_host_goes_to_a_tenant_that_replaces_another() {
    let other = json!({"auth": {"mode": "keys"}, "servers": {}});
    let mut of_host = other.clone();
    of_host["hosts"] = json!(["a.localhost"]);
    let gateway = Served::start(json!({}), json!({"a": of_host, "c": other})).await;
    let key = gateway.administrator();
    let wanted = json!({"version": 1, "tenants": {"b": of_host, "c": other}});
    for query in ["prune=true&dry_run=true", "prune=true"] {
        let url = format!("{}/api/v1/apply?{query}", gateway.origin());
        let applied = send(reqwest::Method::POST, &url, &key, Some(&wanted)).await;
        assert_eq!(applied.status, StatusCode::OK, "{}", applied.body);
        let changes = applied.body["changes"].as_array().unwrap().iter();
        let changes: Vec<&str> = changes.map(|one| one["change"].as_str().unwrap()).collect();
        assert_eq!(changes, ["- tenant a", "+ tenant b"]);
    }
}

/// The replica that has the session is told which host its client named.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_at_a_host_is_reached_through_any_replica() {
    let server = json!({"command": child()});
    let tenants = json!({
        "a": {"auth": {"mode": "none"}, "hosts": ["a.gw.test"], "servers": {"x": server}},
        "b": {"auth": {"mode": "none"}, "hosts": ["b.gw.test"], "servers": {"x": server}},
    });
    let pair = Pair::of(json!({"public_url": "http://gw.test"}), tenants).await;
    let [first, second] = pair.both();
    let of_host = |host| sending(header::HOST, host);
    let mut session = Session::at(of_host("a.gw.test"), format!("{}/mcp", first.origin()));
    session.initialize(NEWEST).await;
    session.text("counter", json!({})).await;
    let mut other = session.again();
    (other.http, other.url) = (of_host("a.gw.test"), format!("{}/mcp", second.origin()));
    assert_eq!(other.text("counter", json!({})).await, "2");
    other.http = of_host("b.gw.test");
    let foreign = other
        .post(&json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}))
        .await;
    assert_eq!(foreign.status(), StatusCode::NOT_FOUND);
}

/// A person is logged in at each host apart, so a session leads to the page at the host where it was opened.
#[tokio::test(flavor = "multi_thread")]
async fn the_account_page_is_at_the_host_of_the_session() {
    let (key, hash) = key();
    let mut all = with_hosts();
    all["a"]["api_keys"] = json!({"ada": {"hash": hash, "subject": "ada", "servers": ["*"]}});
    all["a"]["servers"]["y"]["secrets"] = json!({"TOKEN": {"for": "principal"}});
    let gateway = Served::start(json!({}), all).await;
    for site in [&*at(&gateway, "a.localhost"), gateway.origin()] {
        let session = Session::at(bearer(&key), format!("{site}/t/a/y/mcp"));
        let refused = json_of(session.post(&opening(NEWEST)).await).await;
        assert_eq!(refused["error"]["code"], -31005, "{refused}");
        let text = refused["error"]["message"].as_str().unwrap();
        assert!(
            text.contains(&format!("{site}/t/a/account")),
            "{site}: {text}"
        );
    }
}

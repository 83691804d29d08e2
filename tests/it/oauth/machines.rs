//! Clients that act for themselves by their own credentials (RFC 6749, section 4.4).

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::support::{
    harness::{NEWEST, Session, child, client, json_of, until, within},
    oauth_client::{App, SECRET, basic, post_with, said, send},
    pair::Pair,
    served::Served,
};

/// Tenant `a` with the machines ci and two, and the client app of people; tenant `b` has no machine. ci may have
/// files:read of server x, everything of y, and nothing of z.
fn tenants() -> Value {
    let tenant = |clients: Value| {
        let policy = json!({"scopes": {"env": ["files:write"], "received": ["files:read"]}});
        json!({
            "auth": {"mode": "builtin"},
            "default_server": "x",
            "users": {"ada": {"password": "correct horse"}},
            "clients": clients,
            "servers": {
                "x": {"command": child(), "policy": policy,
                    "grants": {"users": ["ada"], "clients": {"ci": ["files:read"]}}},
                "y": {"command": child(), "policy": policy},
                "z": {"command": child(), "grants": {"users": ["ci", "ada"]}},
            },
        })
    };
    let machine = json!({"secret": SECRET, "grant_types": ["client_credentials"]});
    let app = json!({"secret": SECRET, "redirect_uris": ["https://app.test/cb"]});
    json!({"a": tenant(json!({"ci": machine, "two": machine, "app": app})), "b": tenant(json!({"app": app}))})
}

/// The answer to a request of a client with its secret, for a resource of tenant `a`.
async fn asked(
    gateway: &Served,
    id: &str,
    more: &[(&str, &str)],
) -> crate::support::oauth_client::Answer {
    let url = format!("{}/t/a/oauth/token", gateway.origin());
    let fields = [&[("grant_type", "client_credentials")][..], more].concat();
    post_with(&url, &fields, Some(&basic(id, SECRET))).await
}

async fn is_good(gateway: &Served, server: &str, token: &str) -> bool {
    App::of(gateway, "a", "ci").reaches(server, token).await
}

#[expect(clippy::too_many_lines, reason = "one story")]
async fn machines_get_tokens(replicas: [&Served; 2]) {
    let [first, last] = replicas;
    let public = json_of(
        client()
            .get(format!(
                "{}/.well-known/oauth-authorization-server/t/a",
                first.origin()
            ))
            .send()
            .await
            .unwrap(),
    )
    .await;
    let types = &public["grant_types_supported"];
    assert_eq!(
        types,
        &json!(["authorization_code", "refresh_token", "client_credentials"])
    );
    let token = asked(first, "ci", &[]).await;
    assert_eq!(token.status, StatusCode::OK, "{}", token.body);
    token.assert_not_kept();
    assert_eq!(
        (token.text("scope"), token.text("token_type")),
        ("files:read".into(), "Bearer".into())
    );
    assert_eq!(token.body.get("refresh_token"), None);
    let access = token.text("access_token");
    let claims = said(&access).1;
    for (name, wanted) in [
        ("sub", "client#ci"),
        ("client_id", "ci"),
        ("scope", "files:read"),
    ] {
        assert_eq!(claims[name], wanted);
    }
    assert!(claims["aud"].as_str().unwrap().ends_with("/t/a/x/mcp"));
    // It calls what its grant allows, at every replica.
    let mut session = Session::at(
        crate::auth::external_tokens::bearer(&access),
        format!("{}/t/a/x/mcp", last.origin()),
    );
    session.initialize(NEWEST).await;
    assert_eq!(session.text("echo", json!({"text": "x"})).await, "x");
    assert_eq!(
        session.call("env", json!({})).await["error"]["message"],
        "Unknown tool: env"
    );
    assert!(!is_good(last, "y", &access).await, "another audience");
    // One grant a resource, however often it asks and wherever.
    let again = said(
        &asked(last, "ci", &[("scope", "files:read files:write")])
            .await
            .text("access_token"),
    )
    .1;
    assert_eq!(
        (&again["grant"], &again["scope"]),
        (&claims["grant"], &json!("files:read"))
    );
    let resource = claims["aud"].as_str().unwrap().replace("/x/", "/y/");
    let other = asked(first, "ci", &[("resource", &resource)]).await;
    assert_eq!(
        other.text("scope"),
        "files:read files:write",
        "no grants there: all scopes of the server"
    );
    assert_ne!(
        said(&other.text("access_token")).1["grant"],
        claims["grant"]
    );
    // An operator sees the grant and ends it; the machine may ask again, and gets another one.
    let operator = first.administrator();
    let api = |path: &str| format!("{}/api/v1/tenants/a{path}", first.origin());
    let listed = send(Method::GET, &api("/grants?client=ci"), &operator, None).await;
    assert_eq!(
        listed.body["items"].as_array().map(Vec::len),
        Some(2),
        "{}",
        listed.body
    );
    let revoked = send(
        Method::POST,
        &api("/revocations"),
        &operator,
        Some(&json!({"grant": claims["grant"]})),
    )
    .await;
    assert_eq!(revoked.status, StatusCode::NO_CONTENT);
    for replica in replicas {
        until("a revoked token", async || {
            !is_good(replica, "x", &access).await
        })
        .await;
    }
    let next = asked(last, "ci", &[]).await.text("access_token");
    assert_ne!(said(&next).1["grant"], claims["grant"]);
    assert!(is_good(first, "x", &next).await);
    // A client that is a machine no longer, and one that is gone, lose their tokens.
    let people = json!({"secret": SECRET, "redirect_uris": ["https://app.test/cb"]});
    let put = send(Method::PUT, &api("/clients/ci"), &operator, Some(&people)).await;
    assert!(put.status.is_success(), "{}", put.body);
    for replica in replicas {
        until("a former machine", async || {
            !is_good(replica, "x", &next).await
        })
        .await;
    }
    asked(first, "ci", &[])
        .await
        .assert_refused(400, "unauthorized_client");
}

#[tokio::test]
async fn a_machine_has_tokens_of_its_own_on_sqlite() {
    let gateway = Served::start(json!({}), tenants()).await;
    machines_get_tokens([&gateway, &gateway]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_has_tokens_of_its_own_on_two_replicas() {
    let pair = Pair::of(json!({}), tenants()).await;
    machines_get_tokens(pair.both()).await;
}

#[expect(clippy::too_many_lines, reason = "one story")]
#[tokio::test]
async fn a_machine_gets_what_it_may_and_nobody_else_does() {
    let gateway = Served::start(json!({"oauth": {"failures": 1000}}), tenants()).await;
    let base = format!("{}/t/a", gateway.origin());
    for (id, more, status, error) in [
        ("app", &[][..], 400, "unauthorized_client"),
        ("nobody", &[], 401, "invalid_client"),
        ("two", &[], 400, "invalid_target"),
        (
            "ci",
            &[("resource", format!("{base}/z/mcp"))],
            400,
            "invalid_target",
        ),
        (
            "ci",
            &[("resource", format!("{base}/none/mcp"))],
            400,
            "invalid_target",
        ),
        (
            "ci",
            &[("resource", format!("{}/t/b/x/mcp", gateway.origin()))],
            400,
            "invalid_target",
        ),
        (
            "ci",
            &[("scope", "files:write".to_owned())],
            400,
            "invalid_scope",
        ),
        (
            "ci",
            &[("scope", "offline_access".to_owned())],
            400,
            "invalid_scope",
        ),
        (
            "ci",
            &[("scope", "unknown".to_owned())],
            400,
            "invalid_scope",
        ),
        ("ci", &[("scope", "a\"b".to_owned())], 400, "invalid_scope"),
    ] {
        let more: Vec<(&str, &str)> = more
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        asked(&gateway, id, &more)
            .await
            .assert_refused(status, error);
    }
    // By a wrong secret, and for a public client that has registered.
    let url = format!("{base}/oauth/token");
    let grant = [("grant_type", "client_credentials")];
    let wrong = post_with(
        &url,
        &grant,
        Some(&basic("ci", "another secret of that length")),
    )
    .await;
    wrong.assert_refused(401, "invalid_client");
    let public = App::public(&gateway, "a").await;
    public
        .ask(&grant)
        .await
        .assert_refused(400, "unauthorized_client");
    // A tenant without machines knows no such grant.
    let url = format!("{}/t/b/oauth/token", gateway.origin());
    let none = post_with(&url, &grant, Some(&basic("app", SECRET))).await;
    none.assert_refused(400, "unsupported_grant_type");
    // A machine has no log-in page.
    let ci = App::of(&gateway, "a", "ci");
    let page = within("a page", client().get(ci.request(&[])).send())
        .await
        .unwrap();
    assert_eq!(page.status(), StatusCode::BAD_REQUEST);
}

/// The first key of a tenant is made with its first token, and that token was refused for up to half a second.
#[tokio::test]
async fn the_first_token_of_a_new_tenant_is_good_at_once() {
    let gateway = Served::start(json!({}), tenants()).await;
    let put = async |path: String, spec: Value| {
        let url = format!("{}/api/v1/tenants/{path}", gateway.origin());
        let done = send(Method::PUT, &url, &gateway.administrator(), Some(&spec)).await;
        assert!(done.status.is_success(), "{}", done.body);
    };
    let machine = json!({"secret": SECRET, "grant_types": ["client_credentials"]});
    for tenant in ["n1", "n2", "n3", "n4"] {
        put(tenant.to_owned(), json!({"auth": {"mode": "builtin"}})).await;
        put(format!("{tenant}/clients/ci"), machine.clone()).await;
        put(format!("{tenant}/servers/x"), json!({"command": child()})).await;
        let at = format!("{}/t/{tenant}", gateway.origin());
        let (url, resource) = (format!("{at}/oauth/token"), format!("{at}/x/mcp"));
        let fields = [
            ("grant_type", "client_credentials"),
            ("resource", resource.as_str()),
        ];
        let token = post_with(&url, &fields, Some(&basic("ci", SECRET))).await;
        assert_eq!(token.status, StatusCode::OK, "{}", token.body);
        let ci = App::of(&gateway, tenant, "ci");
        assert!(ci.reaches("x", &token.text("access_token")).await);
    }
}

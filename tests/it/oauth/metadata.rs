//! Authorization server metadata: issuers, endpoints, keys and CORS.

#![expect(clippy::too_many_lines, reason = "tables of requests, each one story")]

use reqwest::{
    Method, StatusCode,
    header::{AUTHORIZATION, HOST, HeaderMap},
};
use serde_json::json;

use crate::support::{
    browser::Browser,
    harness::{NEWEST, Session, client, client_with, tool_call, within},
    oauth_client::{Answer, App, gateway, said, send},
    served::Served,
};

async fn get(gateway: &Served, path: &str) -> Answer {
    let asked = client().get(format!("{}{path}", gateway.origin())).send();
    Answer::of(within("a document", asked).await.unwrap()).await
}

const OAUTH: &str = "/.well-known/oauth-authorization-server";
const OPENID: &str = "/.well-known/openid-configuration";

#[tokio::test]
async fn every_tenant_has_one_issuer_and_its_documents() {
    let gateway = gateway(json!({"default": {"tenant": "a", "server": "x"}})).await;
    let origin = gateway.origin().to_owned();
    let places = [
        (
            &origin,
            "a",
            [OAUTH.to_owned(), OPENID.to_owned(), OPENID.to_owned()],
        ),
        (
            &format!("{origin}/t/b"),
            "b",
            [
                format!("{OAUTH}/t/b"),
                format!("{OPENID}/t/b"),
                format!("/t/b{OPENID}"),
            ],
        ),
    ];
    for (issuer, tenant, paths) in places {
        let first = get(&gateway, &paths[0]).await.body;
        assert_eq!(first["issuer"], **issuer);
        for path in &paths {
            let answer = get(&gateway, path).await;
            assert_eq!(
                (answer.status, &answer.body),
                (StatusCode::OK, &first),
                "{path}"
            );
            assert_eq!(answer.header("content-type"), "application/json");
            assert_eq!(answer.header("access-control-allow-origin"), "*");
        }
        let endpoint = |name: &str| json!(format!("{origin}/t/{tenant}/oauth/{name}"));
        for (name, wanted) in [
            ("authorization_endpoint", endpoint("authorize")),
            ("token_endpoint", endpoint("token")),
            ("registration_endpoint", endpoint("register")),
            ("revocation_endpoint", endpoint("revoke")),
            ("jwks_uri", endpoint("jwks")),
            ("code_challenge_methods_supported", json!(["S256"])),
            ("response_types_supported", json!(["code"])),
            ("response_modes_supported", json!(["query"])),
            (
                "grant_types_supported",
                json!(["authorization_code", "refresh_token"]),
            ),
            (
                "authorization_response_iss_parameter_supported",
                json!(true),
            ),
            ("client_id_metadata_document_supported", json!(true)),
            ("scopes_supported", json!(["files:read", "offline_access"])),
            ("subject_types_supported", json!(["public"])),
            ("id_token_signing_alg_values_supported", json!(["EdDSA"])),
            (
                "token_endpoint_auth_methods_supported",
                json!([
                    "client_secret_basic",
                    "client_secret_post",
                    "private_key_jwt",
                    "none"
                ]),
            ),
        ] {
            assert_eq!(first[name], wanted, "{name}");
        }
    }
    // Other paths have no document, in particular none of another tenant.
    for path in [
        format!("{OAUTH}/t/a"),
        format!("{OPENID}/t/a"),
        format!("/t/a{OPENID}"),
        format!("{OAUTH}/t/k"),
        format!("/t/k{OPENID}"),
        format!("{OAUTH}/t/nobody"),
        format!("{OAUTH}/t/b/"),
        format!("{OAUTH}/t/b/x/mcp"),
        format!("{OAUTH}/t/b/oauth"),
        format!("{OAUTH}/mcp"),
        format!("{OAUTH}/"),
        format!("{OAUTH}x"),
        format!("/t/b{OAUTH}"),
        format!("/b{OPENID}"),
    ] {
        let status = get(&gateway, &path).await.status;
        assert_eq!(status, StatusCode::NOT_FOUND, "{path}");
    }
}

#[tokio::test]
async fn without_a_default_the_root_has_no_issuer() {
    let gateway = gateway(json!({})).await;
    for path in [OAUTH, OPENID, "/token", "/register"] {
        let status = get(&gateway, path).await.status;
        assert!(matches!(status.as_u16(), 404 | 405), "{path} {status}");
    }
    let posted = client()
        .post(format!("{}/register", gateway.origin()))
        .send();
    assert_eq!(
        within("an answer", posted).await.unwrap().status(),
        StatusCode::NOT_FOUND
    );
}

/// The path of a public URL follows the well-known part.
#[tokio::test]
async fn a_public_url_may_have_a_path() {
    let public_url = "https://gw.test/base";
    let config = json!({"public_url": public_url, "default": {"tenant": "a", "server": "x"}});
    let gateway = gateway(config).await;
    for (path, issuer) in [
        (format!("{OAUTH}/base"), public_url.to_owned()),
        (format!("{OPENID}/base"), public_url.to_owned()),
        // A proxy may remove the path.
        (OPENID.to_owned(), public_url.to_owned()),
        (format!("{OAUTH}/base/t/b"), format!("{public_url}/t/b")),
        (format!("/t/b{OPENID}"), format!("{public_url}/t/b")),
    ] {
        assert_eq!(get(&gateway, &path).await.body["issuer"], issuer, "{path}");
    }
    for path in [
        OAUTH.to_owned(),
        format!("{OAUTH}/t/b"),
        format!("{OAUTH}/base/t/a"),
    ] {
        assert_eq!(
            get(&gateway, &path).await.status,
            StatusCode::NOT_FOUND,
            "{path}"
        );
    }
}

#[tokio::test]
async fn forbidden_registration_is_not_in_the_metadata() {
    let tenants = json!({"a": {
        "auth": {"mode": "builtin", "registration": false, "documents": false},
        "servers": {"x": {"command": crate::support::harness::child()}},
    }});
    let gateway = Served::start(json!({}), tenants).await;
    let document = get(&gateway, &format!("{OAUTH}/t/a")).await.body;
    assert_eq!(
        document["client_id_metadata_document_supported"],
        json!(false)
    );
    assert_eq!(document.get("registration_endpoint"), None);
    let metadata = json!({"redirect_uris": ["https://app.test/cb"]});
    let refused = crate::support::oauth_client::register(&gateway, "a", &metadata).await;
    refused.assert_refused(404, "not_found");
}

#[tokio::test]
async fn keys_are_published_with_a_tag() {
    let gateway = gateway(json!({})).await;
    // The first token creates the first key, if there is none yet.
    let app = App::public(&gateway, "a").await;
    let token = app.tokens().await.text("access_token");
    let (header, _) = said(&token);
    let path = "/t/a/oauth/jwks";
    crate::support::harness::until("the key is published", async || {
        let set = get(&gateway, path).await.body;
        let keys = set["keys"].as_array().cloned().unwrap_or_default();
        keys.iter().any(|key| key["kid"] == header["kid"])
    })
    .await;
    let answer = get(&gateway, path).await;
    assert_eq!(answer.header("cache-control"), "max-age=300");
    assert_eq!(answer.header("access-control-allow-origin"), "*");
    for key in answer.body["keys"].as_array().unwrap() {
        let of = |name: &str| key[name].as_str().unwrap().to_owned();
        assert_eq!(
            [of("kty"), of("crv"), of("use"), of("alg")],
            ["OKP", "Ed25519", "sig", "EdDSA"]
        );
        assert_eq!(key.as_object().unwrap().len(), 6, "no private part: {key}");
    }
    let tag = answer.header("etag").to_owned();
    assert!(tag.starts_with('"'));
    for (known, status) in [
        (tag.clone(), 304),
        (format!("\"x\", W/{tag}"), 304),
        ("\"x\"".to_owned(), 200),
    ] {
        let asked = client().get(format!("{}{path}", gateway.origin()));
        let asked = asked.header("If-None-Match", known).send();
        assert_eq!(
            within("keys", asked).await.unwrap().status().as_u16(),
            status
        );
    }
    // Another tenant has other keys.
    let other = get(&gateway, "/t/b/oauth/jwks").await.body;
    let other = other["keys"].as_array().unwrap();
    assert!(other.iter().all(|key| key["kid"] != header["kid"]));
    assert_eq!(
        get(&gateway, "/t/k/oauth/jwks").await.status,
        StatusCode::NOT_FOUND
    );
}

#[tokio::test]
async fn web_pages_may_use_the_endpoints_of_clients() {
    let gateway = gateway(json!({"default": {"tenant": "a", "server": "x"}})).await;
    let preflight = async |path: &str, method: &str| {
        let asked = client()
            .request(Method::OPTIONS, format!("{}{path}", gateway.origin()))
            .header("Origin", "https://inspector.test")
            .header("Access-Control-Request-Method", method)
            .header(
                "Access-Control-Request-Headers",
                "authorization, content-type, mcp-protocol-version",
            );
        Answer::of(within("an answer", asked.send()).await.unwrap()).await
    };
    for (path, method) in [
        (OAUTH, "GET"),
        ("/.well-known/oauth-authorization-server/t/b", "GET"),
        ("/t/b/.well-known/openid-configuration", "GET"),
        ("/t/b/oauth/jwks", "GET"),
        ("/t/b/oauth/token", "POST"),
        ("/t/b/oauth/register", "POST"),
        ("/t/b/oauth/register/c_x", "PUT"),
        ("/t/b/oauth/revoke", "POST"),
        ("/token", "POST"),
        ("/register", "POST"),
    ] {
        let answer = preflight(path, method).await;
        assert_eq!(answer.status, StatusCode::NO_CONTENT, "{path}");
        assert_eq!(answer.header("access-control-allow-origin"), "*", "{path}");
        assert!(
            answer
                .header("access-control-allow-methods")
                .contains(method),
            "{path}"
        );
        for name in ["authorization", "content-type", "mcp-protocol-version"] {
            assert!(
                answer.header("access-control-allow-headers").contains(name),
                "{path} {name}"
            );
        }
        assert!(
            !answer
                .headers
                .contains_key("access-control-allow-credentials")
        );
    }
    for path in [
        "/authorize",
        "/t/b/oauth/authorize",
        "/t/b/oauth/login",
        "/t/b/oauth/consent",
    ] {
        let answer = preflight(path, "GET").await;
        assert!(
            !answer.headers.contains_key("access-control-allow-origin"),
            "{path}"
        );
        assert!(!answer.status.is_success(), "{path}");
    }
    // Web pages can read refusals, too.
    let asked = client()
        .post(format!("{}/t/b/oauth/token", gateway.origin()))
        .header("Origin", "https://inspector.test")
        .send();
    let answer = Answer::of(within("an answer", asked).await.unwrap()).await;
    answer.assert_refused(400, "invalid_request");
    assert_eq!(answer.header("access-control-allow-origin"), "*");
}

/// A server may have the name of an endpoint.
#[tokio::test]
async fn a_server_named_oauth_is_reached() {
    let gateway = gateway(json!({})).await;
    let url = format!("{}/t/k/oauth/mcp", gateway.origin());
    let status = within("a status", client().post(url).send())
        .await
        .unwrap()
        .status();
    assert_eq!(status, StatusCode::UNAUTHORIZED, "an API key is asked for");
}

/// A client compares the resource of the metadata with the URL that it was given (RFC 9728, section 3.3),
/// and it may have been given any name of this machine.
#[tokio::test]
async fn the_names_of_this_machine_are_one_resource() {
    let gateway = gateway(json!({})).await;
    let (origin, path) = (gateway.origin(), "/t/a/x/mcp");
    let port = origin.rsplit(':').next().unwrap();
    let app = App::public(&gateway, "a").await;
    let metadata = format!("/.well-known/oauth-protected-resource{path}");
    let mut tokens = Vec::new();
    for name in ["127.0.0.1", "localhost", "[::1]"] {
        let (host, own) = (
            format!("{name}:{port}"),
            format!("http://{name}:{port}{path}"),
        );
        let ask = async |path: &str, token: Option<&String>| {
            let asked = client().get(format!("{origin}{path}"));
            let asked = asked
                .header(HOST, &host)
                .header("Accept", "text/event-stream");
            let asked = match token {
                Some(token) => asked.bearer_auth(token),
                None => asked,
            };
            Answer::of(within("an answer", asked.send()).await.unwrap()).await
        };
        let named = format!("resource_metadata=\"http://{host}{metadata}\"");
        let refused = ask(path, None).await;
        let challenge = refused.header("www-authenticate");
        assert!(challenge.contains(&named), "{challenge}");
        let document = ask(&metadata, None).await.body;
        assert_eq!(document["resource"], own);
        let issuer = format!("{origin}/t/a");
        assert_eq!(document["authorization_servers"], json!([issuer]));
        let code = app.code(&[("resource", &own)]).await;
        let answer = app.redeem(&code, &[("resource", &own)]).await;
        let token = answer.text("access_token");
        assert_eq!(said(&token).1["aud"], own);
        tokens.push(token);
        for token in &tokens {
            let known = ask(path, Some(token)).await;
            assert_eq!(
                known.status,
                StatusCode::BAD_REQUEST,
                "no session, but let in"
            );
        }
        // Any of the names is the resource of the grant.
        let other = format!("http://LOCALHOST:{port}{path}");
        let refresh = answer.text("refresh_token");
        let next = app.refresh(&refresh, &[("resource", &other)]).await;
        assert_eq!(said(&next.text("access_token")).1["aud"], own);
        let headers = HeaderMap::from_iter([
            (HOST, host.parse().unwrap()),
            (
                AUTHORIZATION,
                format!("Bearer {}", tokens[0]).parse().unwrap(),
            ),
        ]);
        let mut session = Session::at(client_with(headers), format!("{origin}{path}"));
        session.initialize(NEWEST).await;
        let call = tool_call(json!(7), "delete_all", json!({}));
        let refused = session.post(&call).await;
        assert_eq!(refused.status(), StatusCode::FORBIDDEN);
        let challenge = refused.headers()["www-authenticate"].to_str().unwrap();
        assert!(challenge.contains(&named), "{challenge}");
    }
    // A host that is no name of this machine is no resource.
    let elsewhere = format!("http://127.0.0.2:{port}{path}");
    let asked = App::of(&gateway, "a", "app").request(&[("resource", &elsewhere)]);
    let refused = Browser::new().open(&asked).await.answer();
    assert_eq!(refused["error"], "invalid_target");
}

/// The methods of an MCP endpoint came with every refusal.
#[tokio::test]
async fn a_refused_method_comes_with_those_of_its_endpoint() {
    let gateway = gateway(json!({})).await;
    for (path, methods) in [
        ("/t/a/oauth/authorize", "GET,HEAD,POST"),
        ("/t/a/oauth/token", "POST"),
        ("/t/a/oauth/register", "POST"),
        ("/t/a/oauth/register/x", "GET,HEAD,PUT,DELETE"),
        ("/t/a/account", "GET,HEAD,POST"),
        ("/api/v1/tenants/a/api-keys", "GET,HEAD,POST"),
    ] {
        for method in [Method::TRACE, Method::PATCH] {
            let url = format!("{}{path}", gateway.origin());
            let answer = send(method.clone(), &url, "", None).await;
            assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED, "{path}");
            let mut allowed: Vec<&str> = answer.header("allow").split(',').collect();
            allowed.sort_unstable();
            let mut methods: Vec<&str> = methods.split(',').collect();
            methods.sort_unstable();
            assert_eq!(allowed, methods, "{method} {path}");
        }
    }
}

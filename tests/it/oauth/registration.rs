//! Dynamic client registration (RFC 7591, RFC 7592): metadata, management, floods.

#![expect(clippy::too_many_lines, reason = "tables of requests, each one story")]

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::auth::external_tokens::bearer;
use crate::cli::commands::stranger;
use crate::support::{
    harness::{client, json_of, until, within},
    oauth_client::{Answer, App, BACK, gateway, register, send},
    postgres::Postgres,
    served::Served,
};

fn minimal() -> Value {
    json!({"redirect_uris": [BACK]})
}

async fn registers(config: Value) {
    let gateway = gateway(config).await;
    let answer = register(&gateway, "a", &minimal()).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    answer.assert_not_kept();
    let id = answer.text("client_id");
    assert!(id.starts_with("c_"), "{id}");
    assert_eq!(
        answer.text("registration_client_uri"),
        format!("{}/t/a/oauth/register/{id}", gateway.origin())
    );
    assert!(answer.text("registration_access_token").starts_with("lga_"));
    assert!(answer.text("client_secret").starts_with("lgs_"));
    assert_eq!(answer.body["client_secret_expires_at"], 0);
    assert_eq!(
        answer.body["token_endpoint_auth_method"],
        "client_secret_basic"
    );
    assert_eq!(answer.body["redirect_uris"], json!([BACK]));
    assert_eq!(
        answer.body["grant_types"],
        json!(["authorization_code", "refresh_token"])
    );
    assert_eq!(answer.body["response_types"], json!(["code"]));
    let issued = answer.body["client_id_issued_at"].as_u64().unwrap();
    assert!(crate::support::issuer::now().abs_diff(issued) < 60);
    // A tenant may have more scopes than are stored with a client.
    let mut wide = minimal();
    wide["scope"] = json!("files:read ".repeat(1000));
    let answer = register(&gateway, "a", &wide).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    assert_eq!(answer.body.get("scope"), None);
    // A public client has no secret. Each registration makes a new client.
    let public = json!({"redirect_uris": [BACK], "token_endpoint_auth_method": "none",
        "client_name": "<b>ü", "software_id": "x", "unknown": 1});
    let (one, two) = (
        register(&gateway, "a", &public).await,
        register(&gateway, "a", &public).await,
    );
    assert_ne!(one.text("client_id"), two.text("client_id"));
    for name in ["client_secret", "client_secret_expires_at", "unknown"] {
        assert_eq!(one.body.get(name), None, "{name}");
    }
    assert_eq!(
        (one.text("client_name"), one.text("software_id")),
        ("<b>ü".into(), "x".into())
    );
    // Secrets of clients are not stored in clear.
    let dumped: Vec<u8> = files(&gateway.data()).into_iter().flatten().collect();
    let dumped = String::from_utf8_lossy(&dumped);
    assert!(!dumped.contains(&answer.text("registration_access_token")));
    assert!(!dumped.contains(&answer.text("client_secret")));
}

/// Administrators see the clients that registered themselves behind the declared ones.
#[tokio::test]
async fn registered_clients_are_listed() {
    let gateway = gateway(json!({})).await;
    let mut ids = Vec::new();
    for name in ["One", "Two"] {
        let metadata = json!({"redirect_uris": [BACK], "client_name": name});
        ids.push(register(&gateway, "a", &metadata).await.text("client_id"));
    }
    let key = gateway.administrator();
    let list = [
        "client",
        "list",
        "a",
        "--url",
        gateway.origin(),
        "--key",
        &key,
    ];
    let said = within("a list", stranger(&list).output()).await.unwrap();
    let said = String::from_utf8(said.stdout).unwrap();
    let rows: Vec<&str> = said.lines().collect();
    assert!(rows[1].starts_with("app "), "{said}");
    for (id, name) in ids.iter().zip(["One", "Two"]) {
        let row = rows[2..].iter().find(|row| row.starts_with(id)).unwrap();
        assert!(row.contains(name) && row.contains(BACK), "{said}");
    }
    // Page by page.
    ids.sort();
    let mut url = format!(
        "{}/api/v1/tenants/a/registrations?limit=1",
        gateway.origin()
    );
    for (at, id) in ids.iter().enumerate() {
        let page = bearer(&key).get(&url).send();
        let page = json_of(within("a page", page).await.unwrap()).await;
        assert_eq!(page["items"][0]["id"], **id, "{page}");
        assert_eq!(page["next"].is_string(), at == 0, "{page}");
        assert_eq!(page["items"][0]["used"], Value::Null, "{page}");
        url = format!("{url}&after={id}");
    }
}

/// When a client and a grant were used last.
#[tokio::test]
async fn the_last_use_of_clients_and_grants_is_listed() {
    let gateway = gateway(json!({})).await;
    let app = App::public(&gateway, "a").await;
    let tokens = app.tokens().await;
    let used = async |segment: &str| {
        let url = format!("{}/api/v1/tenants/a/{segment}", gateway.origin());
        let list = send(Method::GET, &url, &gateway.administrator(), None).await;
        let one = &list.body["items"][0];
        one["used"].as_str().unwrap().to_owned()
    };
    let (client, grant) = (used("registrations").await, used("grants").await);
    let again = app.refresh(&tokens.text("refresh_token"), &[]).await;
    assert_eq!(again.status, StatusCode::OK);
    assert_ne!(used("registrations").await, client);
    assert_ne!(used("grants").await, grant);
}

fn files(dir: &std::path::Path) -> Vec<Vec<u8>> {
    let entries = std::fs::read_dir(dir).unwrap().flatten();
    let files = entries.filter(|entry| entry.path().is_file());
    files
        .map(|entry| std::fs::read(entry.path()).unwrap())
        .collect()
}

#[tokio::test]
async fn clients_register_themselves_on_sqlite() {
    registers(json!({})).await;
}

#[tokio::test]
async fn clients_register_themselves_on_postgres() {
    let postgres = Postgres::start();
    registers(json!({"sql": {"url": postgres.url()}})).await;
}

#[tokio::test]
async fn invalid_registrations_are_refused() {
    let gateway = gateway(json!({})).await;
    for uri in [
        "http://app.test/cb",
        "https://app.test/cb#x",
        "javascript:alert(1)",
        "data:text/html,x",
        "https://*.app.test/cb",
        "https://app.test/*",
        "https://user@app.test/cb",
        "http://127.0.0.1.evil.test/cb",
        "",
    ] {
        let uris = json!({"redirect_uris": [BACK, uri]});
        let refused = register(&gateway, "a", &uris).await;
        refused.assert_refused(400, "invalid_redirect_uri");
    }
    for wrong in [
        json!({}),
        json!({"redirect_uris": []}),
        json!({"redirect_uris": BACK}),
        // More than 8 KiB in all.
        json!({"redirect_uris": vec![format!("https://app.test/{}", "a".repeat(1000)); 9]}),
    ] {
        let refused = register(&gateway, "a", &wrong).await;
        refused.assert_refused(400, "invalid_redirect_uri");
    }
    for (name, value) in [
        ("token_endpoint_auth_method", json!("client_secret_jwt")),
        ("response_types", json!(["token"])),
        ("grant_types", json!(["password"])),
        ("client_uri", json!("javascript:alert(1)")),
        ("client_name", json!(["x"])),
    ] {
        let mut metadata = minimal();
        metadata[name] = value;
        let refused = register(&gateway, "a", &metadata).await;
        refused.assert_refused(400, "invalid_client_metadata");
    }
    let url = format!("{}/t/a/oauth/register", gateway.origin());
    let raw = async |url: &str, kind: &str, body: String| {
        let asked = client().post(url).header("Content-Type", kind).body(body);
        Answer::of(within("an answer", asked.send()).await.unwrap()).await
    };
    let (json, text) = ("application/json", minimal().to_string());
    let twice = text.replacen('{', r#"{"redirect_uris":["https://other.example/cb"],"#, 1);
    for (kind, body) in [
        (json, &*twice),
        (json, "{"),
        (json, "[]"),
        (json, "\"x\""),
        ("text/plain", &text),
        ("application/x-www-form-urlencoded", &text),
    ] {
        let refused = raw(&url, kind, body.to_owned()).await;
        refused.assert_refused(400, "invalid_client_metadata");
    }
    let refused = raw(&format!("{url}?redirect_uris={BACK}"), json, text.clone()).await;
    refused.assert_refused(400, "invalid_request");
    let long = json!({"redirect_uris": [BACK], "x": "y".repeat(64 << 10)}).to_string();
    raw(&url, json, long)
        .await
        .assert_refused(413, "invalid_request");
    let elsewhere = format!("{}/t/k/oauth/register", gateway.origin());
    raw(&elsewhere, json, text)
        .await
        .assert_refused(404, "not_found");
}

async fn manages(config: Value) {
    let gateway = gateway(config).await;
    let made = register(&gateway, "a", &minimal()).await;
    let other = register(&gateway, "a", &minimal()).await;
    let (url, token) = (
        made.text("registration_client_uri"),
        made.text("registration_access_token"),
    );
    let read = send(Method::GET, &url, &token, None).await;
    assert_eq!(read.status, StatusCode::OK);
    read.assert_not_kept();
    assert_eq!(read.body["redirect_uris"], json!([BACK]));
    assert_eq!(read.text("registration_access_token"), token);
    assert_eq!(
        read.body.get("client_secret"),
        None,
        "a secret is shown once"
    );
    // Another client's token, a wrong one, none, another tenant, no client: the same refusal.
    let foreign = other.text("registration_access_token");
    let elsewhere = url.replace("/t/a/", "/t/b/");
    let nobody = format!("{}/t/a/oauth/register/c_nobody", gateway.origin());
    for (at, by) in [
        (&url, &foreign),
        (&url, &format!("{token}x")),
        (&url, &String::new()),
        (&elsewhere, &token),
        (&nobody, &token),
    ] {
        let id = made.text("client_id");
        let metadata = json!({"client_id": id, "redirect_uris": ["https://evil.test/cb"]});
        for (method, body) in [
            (Method::GET, None),
            (Method::PUT, Some(&metadata)),
            (Method::DELETE, None),
        ] {
            let refused = send(method, at, by, body).await;
            refused.assert_refused(401, "invalid_token");
        }
    }
    // A PUT replaces all metadata.
    let id = made.text("client_id");
    let wanted = json!({"client_id": id, "redirect_uris": ["https://app.test/cb"],
        "client_name": "New", "token_endpoint_auth_method": "none"});
    let put = send(Method::PUT, &url, &token, Some(&wanted)).await;
    assert_eq!(put.status, StatusCode::OK, "{}", put.body);
    assert_eq!(put.body["redirect_uris"], json!(["https://app.test/cb"]));
    let read = send(Method::GET, &url, &token, None).await;
    assert_eq!(
        (read.text("client_name"), read.text("client_id")),
        ("New".into(), id.clone())
    );
    assert_eq!(read.body["token_endpoint_auth_method"], "none");
    for (name, value, error) in [
        ("client_id", json!("c_x"), "invalid_client_metadata"),
        ("client_id", json!(null), "invalid_client_metadata"),
        ("client_secret", json!("x"), "invalid_client_metadata"),
        (
            "redirect_uris",
            json!(["http://app.test/"]),
            "invalid_redirect_uri",
        ),
    ] {
        let mut wrong = wanted.clone();
        wrong[name] = value;
        let refused = send(Method::PUT, &url, &token, Some(&wrong)).await;
        refused.assert_refused(400, error);
    }
    let gone = send(Method::DELETE, &url, &token, None).await;
    assert_eq!(gone.status, StatusCode::NO_CONTENT);
    for method in [Method::GET, Method::DELETE] {
        let refused = send(method, &url, &token, None).await;
        refused.assert_refused(401, "invalid_token");
    }
    let app = App::of(&gateway, "a", &id);
    app.refresh("lgr_x", &[])
        .await
        .assert_refused(401, "invalid_client");
}

#[tokio::test]
async fn clients_manage_themselves_on_sqlite() {
    manages(json!({})).await;
}

#[tokio::test]
async fn clients_manage_themselves_on_postgres() {
    let postgres = Postgres::start();
    manages(json!({"sql": {"url": postgres.url()}})).await;
}

async fn until_refused(gateway: &Served, tenant: &str, metadata: impl Fn(usize) -> Value) -> usize {
    for count in 0..100 {
        let answer = register(gateway, tenant, &metadata(count)).await;
        if answer.status == StatusCode::TOO_MANY_REQUESTS {
            let retry: u64 = answer.header("retry-after").parse().unwrap();
            assert!((1..=3600).contains(&retry), "{retry}");
            answer.assert_refused(429, "temporarily_unavailable");
            return count;
        }
        assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    }
    panic!("nobody stops it");
}

#[tokio::test]
async fn floods_of_registrations_are_stopped() {
    let host = |count: usize| json!({"redirect_uris": [format!("https://h{count}.test/cb")]});
    let one = |_: usize| minimal();
    let address = gateway(json!({"oauth": {"registrations_address": 5}})).await;
    assert_eq!(until_refused(&address, "a", host).await, 5);
    let hosts = gateway(json!({"oauth": {"registrations_host": 4}})).await;
    assert_eq!(until_refused(&hosts, "a", one).await, 4);
    // Registrations of another host and in another tenant continue.
    for (tenant, metadata) in [("a", host(1)), ("b", one(0))] {
        let answer = register(&hosts, tenant, &metadata).await;
        assert_eq!(answer.status, StatusCode::CREATED);
    }
    // One tenant leaves a part to others; what is no registration takes nothing.
    let parts = gateway(json!({"oauth": {"registrations": 12}})).await;
    for _ in 0..12 {
        let wrong = register(&parts, "a", &json!({})).await;
        assert_eq!(wrong.status, StatusCode::BAD_REQUEST, "{}", wrong.body);
    }
    for (tenant, part) in [("a", 9), ("b", 3), ("a", 0)] {
        assert_eq!(until_refused(&parts, tenant, host).await, part, "{tenant}");
    }
    let all = gateway(json!({"oauth": {"registrations": 1}})).await;
    assert_eq!(until_refused(&all, "a", host).await, 1);
    assert_eq!(until_refused(&all, "b", host).await, 0);
}

/// Three addresses kept new clients out of a tenant.
#[tokio::test]
async fn clients_that_nobody_used_give_way_to_new_ones() {
    let gateway = gateway(json!({"oauth": {"clients": 2}})).await;
    let host = |count: usize| json!({"redirect_uris": [format!("https://h{count}.test/cb")]});
    let first = App::public(&gateway, "a").await;
    let tokens = first.tokens().await;
    let unused = register(&gateway, "a", &host(0)).await;
    for count in 1..5 {
        let answer = register(&gateway, "a", &host(count)).await;
        assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    }
    let (url, token) = (
        unused.text("registration_client_uri"),
        unused.text("registration_access_token"),
    );
    let gone = send(Method::GET, &url, &token, None).await;
    gone.assert_refused(401, "invalid_token");
    let next = first.refresh(&tokens.text("refresh_token"), &[]).await;
    assert_eq!(next.status, StatusCode::OK, "{}", next.body);
    // Those that somebody used give way to nobody.
    let second = App::public(&gateway, "a").await;
    second.tokens().await;
    assert_eq!(until_refused(&gateway, "a", host).await, 0);
    let other = register(&gateway, "b", &host(0)).await;
    assert_eq!(other.status, StatusCode::CREATED, "each tenant has its own");
}

/// Each registration left a record that was kept for months.
#[tokio::test]
async fn clients_that_nobody_uses_leave_no_record() {
    let gateway = gateway(json!({})).await;
    let withdraw = async |made: &Answer| {
        let url = made.text("registration_client_uri");
        let token = made.text("registration_access_token");
        let gone = send(Method::DELETE, &url, &token, None).await;
        assert_eq!(gone.status, StatusCode::NO_CONTENT);
    };
    let unused = register(&gateway, "a", &minimal()).await;
    withdraw(&unused).await;
    let allowed = register(&gateway, "a", &minimal()).await;
    let id = allowed.text("client_id");
    App::of(&gateway, "a", &id).code(&[]).await;
    withdraw(&allowed).await;
    let trail = format!("{}/api/v1/audit?limit=1000", gateway.origin());
    let wanted = [
        format!("client.removed client {id}"),
        format!("client.registered client {id}"),
    ];
    until("the records of the other", async || {
        let found = send(Method::GET, &trail, &gateway.administrator(), None).await;
        let items = found.body["items"].as_array().unwrap().iter();
        // Beside those of the declared client.
        let items = items.filter(|item| item["kind"] != "client.added");
        let items = items.filter(|item| item["kind"].as_str().unwrap().starts_with("client."));
        let shown = items.map(|item| {
            let [kind, target] = ["kind", "target"].map(|name| item[name].as_str().unwrap());
            format!("{kind} {target}")
        });
        shown.collect::<Vec<_>>() == wanted
    })
    .await;
}

#[tokio::test]
async fn clients_that_nobody_uses_are_forgotten() {
    let gateway = gateway(json!({"oauth": {"client_unused": "2s", "clients": 2}})).await;
    let app = App::public(&gateway, "a").await;
    let idle = register(&gateway, "a", &minimal()).await;
    let tokens = app.tokens().await;
    let url = idle.text("registration_client_uri");
    let token = idle.text("registration_access_token");
    until("it is forgotten", async || {
        send(Method::GET, &url, &token, None).await.status == StatusCode::UNAUTHORIZED
    })
    .await;
    // The used client stays, and the place of the other is free.
    let again = app.refresh(&tokens.text("refresh_token"), &[]).await;
    assert_eq!(again.status, StatusCode::OK, "{}", again.body);
    let next = register(&gateway, "a", &minimal()).await;
    assert_eq!(next.status, StatusCode::CREATED, "{}", next.body);
}

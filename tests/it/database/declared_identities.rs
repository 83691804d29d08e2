//! Users, clients and identity providers, declared by manifest and by API; their secrets stay
//! hidden.

#![expect(
    clippy::too_many_lines,
    reason = "a story is read from its beginning to its end"
)]

use std::path::Path;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::{
    database::persistence::{Ground, on_both},
    http::administration::Admin,
    support::harness::within,
};

/// The beginning of each secret: it must not appear anywhere.
const CANARY: &str = "canary-7c41e9";

on_both! {
    a_manifest_with_passwords_is_applied_once
    users_clients_and_providers_are_administrated
    a_tenants_administrator_declares_who_logs_in_and_not_where
}

/// True if a file below the folder contains the text.
fn stands_in(folder: &Path, text: &str) -> bool {
    let entries = std::fs::read_dir(folder).unwrap().flatten();
    entries.map(|entry| entry.path()).any(|path| {
        if path.is_dir() {
            return stands_in(&path, text);
        }
        let bytes = std::fs::read(&path).unwrap_or_default();
        bytes
            .windows(text.len())
            .any(|part| part == text.as_bytes())
    })
}

async fn a_manifest_with_passwords_is_applied_once(mut ground: Ground) {
    let tenants = |secret: &str| {
        json!({"a": {
            "users": {"ada": {"password": "${env:ADA}", "groups": ["g"]}, "bob@example.com": {}},
            "clients": {"app": {"redirect_uris": ["https://app.test/cb"], "secret": "${env:ADA}"}},
            "providers": {"corp": {"issuer": "https://corp.test", "client_id": "us",
                "client_secret": secret}},
        }})
    };
    let file = ground.manifest(&tenants("${env:ADA}"));
    let file = file.to_str().unwrap().to_owned();
    let args = ["--apply", file.as_str()];
    let secret = format!("{CANARY}-$-1");
    let first = ground.serve_with(&[("ADA", &secret)], &args).await;
    let wanted = [
        "+ tenant a",
        "+ user a/ada",
        "+ user a/bob@example.com",
        "+ client a/app",
        "+ provider a/corp",
    ];
    assert_eq!(first.logged("manifest.applied"), wanted);
    let admin = Admin::first(&ground, &first);
    let (_, shown) = admin.get("/tenants/a/users/ada").await;
    assert_eq!(
        shown["spec"],
        json!({"groups": ["g"], "password_hash": null})
    );
    let version = shown["version"].clone();
    let mut logs = first.kill().await;
    // Nothing changed: no new hash, no record, no revoked token.
    let second = ground.serve_with(&[("ADA", &secret)], &args).await;
    assert!(second.logged("manifest.applied").is_empty());
    let admin = Admin::first(&ground, &second);
    assert_eq!(
        admin.get("/tenants/a/users/ada").await.1["version"],
        version
    );
    let dry = admin.post("/apply?dry_run=true&prune=true", json!({"version": 1, "tenants": {"a": {
        "users": {"ada": {"password": format!("{CANARY}-$$-1"), "groups": ["g"]}, "bob@example.com": {}},
        "clients": {"app": {"redirect_uris": ["https://app.test/cb"], "secret": format!("{CANARY}-$$-1")}},
        "providers": {"corp": {"issuer": "https://corp.test", "client_id": "us",
            "client_secret": format!("{CANARY}-$$-2")}},
    }}})).await;
    let lines = dry.1["changes"].as_array().unwrap();
    assert_eq!(lines.len(), 1, "{}", dry.1);
    assert_eq!(lines[0]["change"], "~ provider a/corp: client_secret");
    logs.extend(second.kill().await);
    let other = format!("{CANARY}-$-3");
    let third = ground.serve_with(&[("ADA", &other)], &args).await;
    let wanted = [
        "~ user a/ada: password_hash",
        "~ client a/app: secret",
        "~ provider a/corp: client_secret",
    ];
    assert_eq!(third.logged("manifest.applied"), wanted);
    let admin = Admin::first(&ground, &third);
    let (_, trail) = admin.get("/audit?limit=1000").await;
    assert!(!trail.to_string().contains(CANARY), "{trail}");
    logs.extend(third.kill().await);
    for said in logs {
        let said = said.to_string();
        assert!(
            !said.contains(CANARY) && !said.contains("argon2id"),
            "{said}"
        );
    }
    assert!(!stands_in(&ground.data(), CANARY));
    assert!(!stands_in(&ground.data(), "argon2id"));
    if let Some(postgres) = ground.try_database() {
        assert!(stands_in(&postgres.data(), "https://app.test/cb"));
        assert!(!stands_in(&postgres.data(), CANARY));
        assert!(!stands_in(&postgres.data(), "argon2id"));
    } else {
        assert!(stands_in(&ground.data(), "https://app.test/cb"));
    }
}

async fn users_clients_and_providers_are_administrated(ground: Ground) {
    let replica = ground.serve(&[]).await;
    let admin = Admin::first(&ground, &replica);
    assert_eq!(admin.put("/tenants/a", json!({})).await.0, 201);
    let secret = format!("{CANARY}-secret-of-16");
    for (path, first, second, hidden) in [
        (
            "/tenants/a/users/ada@example.com",
            json!({"password": secret}),
            json!({"groups": ["g"]}),
            "password_hash",
        ),
        (
            "/tenants/a/clients/My.App",
            json!({"redirect_uris": ["https://a.test/cb"], "secret": secret}),
            json!({"redirect_uris": ["https://a.test/cb"], "title": "Mine"}),
            "secret",
        ),
        (
            "/tenants/a/providers/corp",
            json!({"issuer": "https://c.test", "client_id": "x", "client_secret": secret}),
            json!({"issuer": "https://c.test", "client_id": "y"}),
            "client_secret",
        ),
    ] {
        let (status, made) = admin.put(path, first.clone()).await;
        assert_eq!(status, 201, "{made}");
        assert_eq!(made["spec"][hidden], Value::Null);
        assert!(made["spec"].as_object().unwrap().contains_key(hidden));
        assert!(!made.to_string().contains(CANARY));
        // The same document writes nothing. A document that was read can be written back.
        let again = admin.put(path, first.clone()).await;
        assert_eq!((again.0, &again.1["version"]), (200, &made["version"]));
        let back = admin.put(path, made["spec"].clone()).await;
        assert_eq!((back.0, &back.1["version"]), (200, &made["version"]));
        let mut changed = second.clone();
        changed[hidden] = Value::Null;
        let (status, changed) = admin.put(path, changed).await;
        assert_eq!(status, 200, "{changed}");
        assert_ne!(changed["version"], made["version"]);
        assert_eq!(changed["spec"][hidden], Value::Null);
        let read = admin.send(Method::GET, path, None).await;
        let tag = read.headers()["etag"].to_str().unwrap().to_owned();
        assert_eq!(tag, format!("\"{}\"", changed["version"]));
        let (list, _) = path.rsplit_once('/').unwrap();
        let (_, page) = admin.get(&format!("{list}?limit=1")).await;
        assert_eq!(page["items"], json!([changed]));
        // Null is invalid where no secret is stored.
        let mut other = second;
        other[hidden] = Value::Null;
        let (status, problem) = admin.put(&format!("{list}/other"), other).await;
        assert_eq!(status, 422, "{problem}");
        assert_eq!(admin.delete(path).await, 204);
        assert_eq!(admin.get(path).await.0, 404);
        assert_eq!(admin.delete(path).await, 404);
    }
    // A password replaces the hash that is shown as null, and null keeps the hash.
    let path = "/tenants/a/users/ada";
    admin.put(path, json!({"password": secret})).await;
    let same = json!({"password": secret, "password_hash": null});
    let other = json!({"password": format!("{secret}-2"), "password_hash": null});
    let (_, first) = admin.put(path, same).await;
    let (status, second) = admin.put(path, other).await;
    assert_eq!(status, 200, "{second}");
    assert_ne!(first["version"], second["version"]);
    let (status, kept) = admin.put(path, json!({"password": null})).await;
    assert_eq!((status, &kept["version"]), (200, &second["version"]));
    for (path, wrong, key) in [
        ("users/Eve", json!({}), "tenants.a.users.Eve"),
        (
            "users/eve",
            json!({"password": "short"}),
            "tenants.a.users.eve.password",
        ),
        (
            "users/eve",
            json!({"admin": true}),
            "tenants.a.users.eve.admin",
        ),
        (
            "clients/c_x",
            json!({"redirect_uris": ["https://a.test"]}),
            "tenants.a.clients.c_x",
        ),
        (
            "clients/x",
            json!({"redirect_uris": ["http://a.test"]}),
            "tenants.a.clients.x.redirect_uris",
        ),
        (
            "providers/google",
            json!({"issuer": "https://accounts.google.com", "client_id": "x"}),
            "tenants.a.providers.google.allow",
        ),
        (
            "providers/plain",
            json!({"issuer": "http://10.0.0.1", "client_id": "x"}),
            "tenants.a.providers.plain.issuer",
        ),
    ] {
        let (status, problem) = admin.put(&format!("/tenants/a/{path}"), wrong).await;
        assert_eq!(status, 422, "{problem}");
        assert_eq!(problem["errors"][0]["key"], key, "{problem}");
    }
    // A tenant without an authorization server cannot have users.
    let keys = json!({"auth": {"mode": "keys"}});
    assert_eq!(admin.put("/tenants/a", keys).await.0, 422);
    assert_eq!(admin.delete(path).await, 204);
    let trail = admin.audited("tenant=a&limit=4").await;
    assert_eq!(
        trail,
        [
            "user.removed user a/ada",
            "user.changed user a/ada",
            "user.added user a/ada",
            "provider.removed provider a/corp",
        ]
    );
    let (_, trail) = admin.get("/audit?limit=1000").await;
    assert!(!trail.to_string().contains(CANARY), "{trail}");
    assert!(!stands_in(&ground.data(), CANARY));
    replica.stop().await;
}

async fn a_tenants_administrator_declares_who_logs_in_and_not_where(ground: Ground) {
    let replica = ground.serve(&[]).await;
    let operator = Admin::first(&ground, &replica);
    for tenant in ["a", "b"] {
        assert_eq!(
            operator
                .put(&format!("/tenants/{tenant}"), json!({}))
                .await
                .0,
            201
        );
    }
    let key = json!({"name": "boss", "subject": "ada", "servers": ["*"], "scopes": ["admin"]});
    let (_, made) = operator.post("/tenants/a/api-keys", key).await;
    let own = Admin::with(&replica, made["key"].as_str().unwrap());
    let client = json!({"redirect_uris": ["https://a.test/cb"]});
    let provider = json!({"issuer": "https://c.test", "client_id": "x"});
    let user = json!({"password": "long enough"});
    assert_eq!(own.put("/tenants/a/users/ada", user.clone()).await.0, 201);
    assert_eq!(
        own.put("/tenants/a/clients/app", client.clone()).await.0,
        201
    );
    assert_eq!(
        own.put("/tenants/a/providers/c", provider.clone()).await.0,
        403
    );
    assert_eq!(
        operator
            .put("/tenants/a/providers/c", provider.clone())
            .await
            .0,
        201
    );
    assert_eq!(own.get("/tenants/a/providers/c").await.0, 200);
    assert_eq!(own.delete("/tenants/a/providers/c").await, 403);
    for (path, body) in [
        ("users/ada", user),
        ("clients/app", client),
        ("providers/c", provider),
    ] {
        let (kind, _) = path.split_once('/').unwrap();
        for list in [kind, path] {
            let (foreign, nobodys) = (format!("/tenants/b/{list}"), format!("/tenants/no/{list}"));
            let foreign = own.get(&foreign).await;
            assert_eq!(foreign.0, 404, "{list}");
            let text = foreign.1.to_string().replace("no tenant b", "no tenant no");
            let nobodys = own.get(&nobodys).await;
            assert_eq!((404, text), (nobodys.0, nobodys.1.to_string()), "{list}");
        }
        let foreign = format!("/tenants/b/{path}");
        assert_eq!(own.put(&foreign, body.clone()).await.0, 404, "{path}");
        assert_eq!(own.delete(&foreign).await, 404, "{path}");
        assert_eq!(operator.get(&foreign).await.0, 404, "{path}");
    }
    assert_eq!(own.delete("/tenants/a/users/ada").await, 204);
    assert_eq!(own.delete("/tenants/a/clients/app").await, 204);
    replica.stop().await;
}

/// Hashing many passwords delays no other request for long.
#[tokio::test]
async fn many_passwords_are_hashed_beside_what_goes_on() {
    let ground = Ground::sqlite();
    let replica = ground.serve(&[]).await;
    let admin = Admin::first(&ground, &replica);
    let users: Value = (0..40)
        .map(|number| {
            (
                format!("u{number}"),
                json!({"password": format!("long enough {number}")}),
            )
        })
        .collect::<serde_json::Map<_, _>>()
        .into();
    let manifest = json!({"version": 1, "tenants": {"a": {"users": users}}});
    let applying = admin.send(Method::POST, "/apply", Some(&manifest));
    let mut applying = Box::pin(applying);
    let mut asked = 0;
    // Other writes continue meanwhile: no transaction waits for hashes.
    let applied = within("it", async {
        loop {
            let other = async {
                let tenant = format!("/tenants/t{asked}");
                admin.put(&tenant, json!({})).await.0
            };
            tokio::select! {
                applied = &mut applying => return applied,
                status = other => assert_eq!(status, 201),
            }
            asked += 1;
        }
    })
    .await;
    assert_eq!(applied.status(), StatusCode::OK);
    assert!(asked > 0, "it took no time");
    let (_, page) = admin.get("/tenants/a/users?limit=1000").await;
    assert_eq!(page["items"].as_array().unwrap().len(), 40);
    replica.stop().await;
}

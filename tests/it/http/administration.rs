//! The administration API on SQLite and on PostgreSQL: access, changes and their effects.

#![expect(
    clippy::too_many_lines,
    reason = "a story is read from its beginning to its end"
)]

use std::{os::unix::fs::PermissionsExt, time::Duration};

use reqwest::{Method, Response, StatusCode};
use serde_json::{Value, json};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use tokio::time::Instant;

use crate::{
    auth::{api_keys::key, external_tokens::bearer},
    database::persistence::{Ground, Replica, mark, on_both, server},
    support::{
        harness::{NEWEST, Session, child, client, json_of, until, within},
        issuer::now,
    },
};

/// A client of the administration API.
pub(crate) struct Admin {
    http: reqwest::Client,
    base: String,
}

impl Admin {
    /// The operator whose key the first start wrote.
    pub(crate) fn first(ground: &Ground, replica: &Replica) -> Self {
        let file = ground.data().join("admin.key");
        let mode = std::fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let key = std::fs::read_to_string(file).unwrap();
        Self::with(replica, key.trim())
    }

    pub(crate) fn with(replica: &Replica, key: &str) -> Self {
        Self {
            http: bearer(key),
            base: format!("{}/api/v1", replica.http),
        }
    }

    pub(crate) async fn send(&self, method: Method, path: &str, body: Option<&Value>) -> Response {
        let mut request = self.http.request(method, format!("{}{path}", self.base));
        if let Some(body) = body {
            request = request.json(body);
        }
        within("the API", request.send()).await.unwrap()
    }

    pub(crate) async fn get(&self, path: &str) -> (u16, Value) {
        read(self.send(Method::GET, path, None).await).await
    }

    pub(crate) async fn put(&self, path: &str, body: Value) -> (u16, Value) {
        read(self.send(Method::PUT, path, Some(&body)).await).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        read(self.send(Method::POST, path, Some(&body)).await).await
    }

    pub(crate) async fn delete(&self, path: &str) -> u16 {
        let answer = self.send(Method::DELETE, path, None).await;
        answer.status().as_u16()
    }

    /// A new API key of a tenant for its server `x`.
    pub(crate) async fn key(&self, tenant: &str, name: &str, scopes: &[&str]) -> String {
        let body = json!({"name": name, "subject": "ada", "servers": ["x"], "scopes": scopes});
        let (status, made) = self
            .post(&format!("/tenants/{tenant}/api-keys"), body)
            .await;
        assert_eq!(status, 201, "{made}");
        made["key"].as_str().unwrap().to_owned()
    }

    /// A tenant with API keys and the server `x`.
    pub(crate) async fn tenant(&self, tenant: &str, server: Value) {
        let path = format!("/tenants/{tenant}");
        let (status, said) = self.put(&path, json!({"auth": {"mode": "keys"}})).await;
        assert_eq!(status, 201, "{said}");
        let (status, said) = self.put(&format!("{path}/servers/x"), server).await;
        assert_eq!(status, 201, "{said}");
    }

    pub(crate) async fn audited(&self, query: &str) -> Vec<String> {
        let (status, page) = self.get(&format!("/audit?{query}")).await;
        assert_eq!(status, 200, "{page}");
        let items = page["items"].as_array().unwrap().iter();
        items
            .map(|item| {
                format!(
                    "{} {}",
                    item["kind"].as_str().unwrap(),
                    item["target"].as_str().unwrap()
                )
            })
            .collect()
    }
}

async fn read(answer: Response) -> (u16, Value) {
    let status = answer.status();
    let kind = answer.headers()["content-type"]
        .to_str()
        .unwrap()
        .to_owned();
    let wanted = if status.is_success() {
        "application/json"
    } else {
        "application/problem+json"
    };
    assert_eq!(kind, wanted);
    assert_eq!(answer.headers()["cache-control"], "no-store");
    (status.as_u16(), json_of(answer).await)
}

async fn session(replica: &Replica, tenant: &str, key: &str) -> Session {
    let mut session = replica.stranger(tenant, "x");
    session.http = bearer(key);
    session.initialize(NEWEST).await;
    session
}

on_both! {
    an_operator_runs_a_tenant
    changes_are_conditional
    changes_without_a_condition_do_not_meet
    a_rotated_key_ends_what_its_former_value_began
    a_tenants_administrator_sees_its_own
    the_next_tenant_of_a_name_is_told_nothing_of_the_last
    secrets_are_kept_and_never_shown
    removed_objects_are_gone_within_five_seconds
    a_replaced_specification_keeps_the_session
    a_manifest_is_applied_as_a_whole
    without_a_key_there_is_nothing
    a_nul_is_refused
    a_password_is_no_file_of_the_gateway
    a_key_of_two_tenants_administrates_each_by_its_path
    a_key_that_has_ended_is_no_last_key
    the_key_of_the_environment_gets_in
}

/// A key that was revoked stayed valid at a replica that could not serve another tenant.
#[tokio::test]
async fn a_tenant_that_cannot_be_served_here_keeps_no_other_as_it_was() {
    let ground = Ground::postgres();
    let one = ground
        .serve(&["--set=outbound.allow=[\"127.0.0.0/8\"]"])
        .await;
    let other = ground.serve(&[]).await;
    let here = Admin::first(&ground, &one);
    let there = Admin::first(&ground, &other);
    here.tenant("acme", server("1")).await;
    let key = here.key("acme", "ci", &[]).await;
    let is_valid = async || {
        let answer = client()
            .get(format!("{}/t/acme/x/mcp", other.http))
            .header("Accept", "text/event-stream")
            .bearer_auth(&key)
            .send();
        within("an answer", answer).await.unwrap().status() != StatusCode::UNAUTHORIZED
    };
    until("the key at the other replica", is_valid).await;
    // This replica may not ask an issuer by http.
    let external = json!({"auth": {"mode": "external", "issuer": "http://127.0.0.1:9"}});
    let (status, said) = here.put("/tenants/b", external).await;
    assert_eq!(status, 201, "{said}");
    assert_eq!(there.delete("/tenants/acme/api-keys/ci").await, 204);
    assert!(!is_valid().await, "it is revoked here at once");
    let lines = other.lines();
    let is_named = |line: &Value| line.to_string().contains("tenants.b.auth.issuer");
    assert!(lines.iter().any(is_named), "{lines:?}");
    // It is served as soon as it can be.
    let (status, said) = here
        .put("/tenants/b", json!({"auth": {"mode": "keys"}}))
        .await;
    assert_eq!(status, 200, "{said}");
    let (status, said) = here.put("/tenants/b/servers/x", server("1")).await;
    assert_eq!(status, 201, "{said}");
    let own = here.key("b", "ci", &[]).await;
    until("the tenant at the other replica", async || {
        let asked = client()
            .get(format!("{}/t/b/x/mcp", other.http))
            .bearer_auth(&own);
        within("an answer", asked.send()).await.unwrap().status() != StatusCode::UNAUTHORIZED
    })
    .await;
}

async fn an_operator_runs_a_tenant(ground: Ground) {
    let replica = ground.serve(&[]).await;
    let admin = Admin::first(&ground, &replica);
    assert_eq!(
        admin.get("/tenants").await.1,
        json!({"items": [], "next": null})
    );
    admin.tenant("a", server("one")).await;
    let key = admin.key("a", "ci", &[]).await;
    let one = session(&replica, "a", &key).await;
    assert_eq!(mark(&one).await, "one");
    let (_, seen) = admin.get("/tenants/a/sessions").await;
    let seen = &seen["items"][0];
    assert_eq!(
        (&seen["subject"], &seen["client"], &seen["server"]),
        (&json!("ada"), &json!("ci"), &json!("x"))
    );
    let name = seen["id"].as_str().unwrap().to_owned();
    // The id is a secret of the client: 20 of 32 letters, 80 bits, are not shown.
    let secret = one.id.as_ref().unwrap();
    assert!(secret.starts_with(&name), "{name}");
    assert_eq!((name.len(), secret.len()), (12, 32));
    let (_, children) = admin.get("/tenants/a/servers/x/children").await;
    assert_eq!(children["items"].as_array().unwrap().len(), 1, "{children}");
    let pid = children["items"][0]["pid"].clone();
    one.text("stderr", json!({"bytes": 100})).await;
    let logs = admin
        .send(Method::GET, "/tenants/a/servers/x/logs", None)
        .await;
    assert_eq!(logs.headers()["content-type"], "application/x-ndjson");
    assert!(logs.text().await.unwrap().contains("\"line\""));
    // A new child, the same session.
    let (status, said) = admin
        .post("/tenants/a/servers/x/restart?mode=now", json!({}))
        .await;
    let wanted = json!({"children": 1, "replicas": "all"});
    assert_eq!((status, said), (202, wanted));
    // A call during the restart may reach the old child, and end with it.
    until("the new child", || async {
        let answer = one.call("env", json!({})).await;
        let (_, children) = admin.get("/tenants/a/servers/x/children").await;
        let children = children["items"].as_array().unwrap();
        let is_gone = children.iter().all(|child| child["pid"] != pid);
        is_gone && answer["result"].is_object()
    })
    .await;
    assert_eq!(mark(&one).await, "one");
    let (_, quotas) = admin.get("/tenants/a/quotas").await;
    assert_eq!(quotas["used"]["sessions"], 1, "{quotas}");
    assert!(quotas["tenant"]["children"].is_number());
    assert!(quotas["tenant"].as_object().unwrap().contains_key("memory"));
    // The end of a session ends its streams.
    let mut listener = one.listen().await;
    assert_eq!(
        admin
            .delete(&format!("/tenants/a/sessions/{name}?mode=now"))
            .await,
        204
    );
    within("the end of its stream", async {
        while listener.next().await.is_some() {}
    })
    .await;
    assert_eq!(one.begin("echo", json!({"text": "x"})).await.status(), 404);
    assert_eq!(
        admin.delete(&format!("/tenants/a/sessions/{name}")).await,
        404
    );
    let wanted = [
        format!("session.ended session a/{name}"),
        "server.restarted server a/x".to_owned(),
        "api_key.added api_key a/ci".to_owned(),
    ];
    assert_eq!(admin.audited("limit=3").await, wanted);
    assert_eq!(
        admin.audited("kind=server.added&tenant=a").await,
        ["server.added server a/x"]
    );
    let export = admin.http.get(format!("{}/audit", admin.base));
    let export = export
        .header("Accept", "application/x-ndjson")
        .send()
        .await
        .unwrap();
    let lines = export.text().await.unwrap();
    let lines: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(lines.len() >= 6 && lines[0]["kind"] == "session.ended");
    replica.stop().await;
}

async fn changes_are_conditional(ground: Ground) {
    let replica = ground.serve(&[]).await;
    let admin = Admin::first(&ground, &replica);
    admin.tenant("a", server("one")).await;
    let url = format!("{}/tenants/a/servers/x", admin.base);
    let put = async |name: &str, value: &str| {
        let request = admin
            .http
            .put(&url)
            .header(name, value)
            .json(&server("two"));
        let answer = within("a change", request.send()).await.unwrap();
        (
            answer.status().as_u16(),
            answer.headers().get("etag").cloned(),
        )
    };
    let first = within("it", admin.http.get(&url).send()).await.unwrap();
    let tag = first.headers()["etag"].to_str().unwrap().to_owned();
    assert_eq!(put("If-None-Match", "*").await.0, 412);
    assert_eq!(put("If-Match", "\"99999\"").await.0, 412);
    assert_eq!(put("If-Match", "x").await.0, 400);
    assert_eq!(put("If-None-Match", "\"1\"").await.0, 400);
    let (status, new) = put("If-Match", &tag).await;
    assert_eq!(status, 200);
    assert_ne!(new.unwrap(), tag.as_str());
    assert_eq!(put("If-Match", &tag).await.0, 412, "changed meanwhile");
    assert_eq!(put("If-Match", "*").await.0, 200);
    // The same document writes nothing.
    let before = admin.audited("limit=1").await;
    assert_eq!(put("If-Match", "*").await.0, 200);
    assert_eq!(admin.audited("limit=1").await, before);
    let gone = admin.http.delete(&url).header("If-Match", &tag);
    assert_eq!(
        gone.send().await.unwrap().status(),
        StatusCode::PRECONDITION_FAILED
    );
    // Concurrent changes of different servers all succeed.
    let many = (0..8).map(|number| {
        let body = json!({"command": child(), "env": {"N": number.to_string()}});
        let request = admin
            .http
            .put(format!("{url}{number}"))
            .header("If-None-Match", "*");
        request.json(&body).send()
    });
    for answer in futures_util::future::join_all(many).await {
        assert_eq!(answer.unwrap().status(), StatusCode::CREATED);
    }
    let (_, page) = admin.get("/tenants/a/servers?limit=3").await;
    assert_eq!(
        (page["items"].as_array().unwrap().len(), &page["next"]),
        (3, &json!("x1"))
    );
    let (_, page) = admin.get("/tenants/a/servers?limit=1000&after=x1").await;
    assert_eq!(
        (page["items"].as_array().unwrap().len(), &page["next"]),
        (6, &json!(null))
    );
    for wrong in ["limit=0", "limit=x", "lmit=1", "limit=1&limit=2"] {
        assert_eq!(
            admin.get(&format!("/tenants/a/servers?{wrong}")).await.0,
            400,
            "{wrong}"
        );
    }
    replica.stop().await;
}

/// A change that names no version is not refused because another one was written at that instant.
async fn changes_without_a_condition_do_not_meet(ground: Ground) {
    let replica = ground.serve(&[]).await;
    let admin = Admin::first(&ground, &replica);
    admin.tenant("a", server("one")).await;
    let builtin = json!({"auth": {"mode": "builtin"}});
    assert_eq!(admin.put("/tenants/a", builtin).await.0, 200);
    admin.key("a", "ci", &[]).await;
    let user = "/tenants/a/users/ada";
    let password = json!({"password": "correct-horse-battery"});
    assert_eq!(admin.put(user, password).await.0, 201);
    for round in 0..5 {
        // A null keeps the stored secret, which belongs to the version that was read.
        let puts = (0..8).map(|number| {
            let groups = json!({"password": null, "groups": [format!("g{round}-{number}")]});
            admin.put(user, groups)
        });
        for (status, said) in futures_util::future::join_all(puts).await {
            assert_eq!(status, 200, "{said}");
        }
        let rotations = (0..4).map(|_| admin.post("/tenants/a/api-keys/ci/rotate", json!({})));
        for (status, said) in futures_util::future::join_all(rotations).await {
            assert_eq!(status, 201, "{said}");
        }
    }
    let (status, said) = admin.post("/tenants/a/api-keys/no/rotate", json!({})).await;
    assert_eq!(
        (status, &said["detail"]),
        (404, &json!("there is no api key a/no"))
    );
    let (status, said) = admin.get("/tenants/b/users/ada").await;
    assert_eq!(
        (status, &said["detail"]),
        (404, &json!("there is no tenant b"))
    );
}

/// A value is replaced because somebody else may have it, and they may have sessions.
async fn a_rotated_key_ends_what_its_former_value_began(ground: Ground) {
    let replica = ground.serve(&[]).await;
    let admin = Admin::first(&ground, &replica);
    admin.tenant("a", server("one")).await;
    let former = admin.key("a", "ci", &[]).await;
    let mut one = session(&replica, "a", &former).await;
    let mut listener = one.listen().await;
    let (status, made) = admin.post("/tenants/a/api-keys/ci/rotate", json!({})).await;
    assert_eq!(status, 201, "{made}");
    within("the end of its stream", async {
        while listener.next().await.is_some() {}
    })
    .await;
    let call = json!({"text": "x"});
    assert_eq!(one.begin("echo", call.clone()).await.status(), 401);
    let present = made["key"].as_str().unwrap();
    one.http = bearer(present);
    assert_eq!(one.begin("echo", call).await.status(), 404);
    session(&replica, "a", present).await;
    replica.stop().await;
}

/// The gateway asks the issuer of a workload for its keys, unless they are declared.
async fn an_operator_declares_who_is_asked(operator: &Admin, replica: &Replica) {
    let builtin = json!({"auth": {"mode": "builtin"}});
    assert_eq!(operator.put("/tenants/d", builtin).await.0, 201);
    let x = operator.put("/tenants/d/servers/x", server("d")).await;
    assert_eq!(x.0, 201);
    let admin = Admin::with(replica, &operator.key("d", "boss", &["admin"]).await);
    let mut client = json!({"workload": {"issuer": "https://ci.test", "claims": {"sub": "job"}}});
    let place = "/tenants/d/clients/ci";
    for jwks in [None, Some(json!(null)), Some(json!("{}"))] {
        if let Some(jwks) = jwks {
            client["workload"]["jwks"] = jwks;
        }
        let (status, said) = admin.put(place, client.clone()).await;
        assert_eq!(status, 403, "{said}");
    }
    client["workload"]["jwks"] = json!({"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "k",
        "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]});
    let (status, said) = admin.put(place, client.clone()).await;
    assert_eq!(status, 201, "{said}");
    client["workload"].as_object_mut().unwrap().remove("jwks");
    let (status, said) = operator.put(place, client).await;
    assert_eq!(status, 200, "{said}");
}

async fn a_tenants_administrator_sees_its_own(ground: Ground) {
    let replica = ground.serve(&[]).await;
    let operator = Admin::first(&ground, &replica);
    operator.tenant("a", server("one")).await;
    operator.tenant("b", server("b-canary")).await;
    let key = operator.key("a", "boss", &["admin"]).await;
    let worker = Admin::with(&replica, &operator.key("a", "ci", &[]).await);
    let foreign = operator.key("b", "ci", &[]).await;
    let other = session(&replica, "b", &foreign).await;
    let admin = Admin::with(&replica, &key);
    let (_, page) = admin.get("/tenants").await;
    assert_eq!(page["items"].as_array().unwrap().len(), 1);
    assert_eq!(page["items"][0]["name"], "a");
    assert_eq!(admin.get("/tenants/a/servers/x").await.0, 200);
    let (_, seen) = operator.get("/tenants/b/sessions").await;
    let name = seen["items"][0]["id"].as_str().unwrap();
    // Objects of another tenant get the same answer as unknown ones.
    for path in [
        "",
        "/servers",
        "/servers/x",
        "/servers/x/children",
        "/servers/x/logs",
        "/api-keys",
        "/api-keys/ci",
        "/sessions",
        "/quotas",
    ] {
        let (foreign, nobodys) = (
            format!("/tenants/b{path}"),
            format!("/tenants/nobody{path}"),
        );
        let (foreign, nobodys) = (admin.get(&foreign).await, admin.get(&nobodys).await);
        assert_eq!(foreign.0, 404, "{path}");
        let text = foreign
            .1
            .to_string()
            .replace("no tenant b", "no tenant nobody");
        assert_eq!(text, nobodys.1.to_string(), "{path}");
    }
    for path in ["/api-keys/ci", &format!("/sessions/{name}")] {
        assert_eq!(
            admin.delete(&format!("/tenants/b{path}")).await,
            404,
            "{path}"
        );
    }
    let key = json!({"name": "mine", "subject": "eve", "servers": ["x"]});
    assert_eq!(admin.post("/tenants/b/api-keys", key.clone()).await.0, 404);
    assert_eq!(
        admin
            .post("/tenants/b/servers/x/restart", json!({}))
            .await
            .0,
        404
    );
    assert_eq!(mark(&other).await, "b-canary");
    // The administrator manages its own tenant, except for programs and authentication.
    assert_eq!(admin.post("/tenants/a/api-keys", key).await.0, 201);
    assert_eq!(admin.delete("/tenants/a/api-keys/mine").await, 204);
    assert_eq!(
        admin.put("/tenants/a/servers/x", server("evil")).await.0,
        403
    );
    assert_eq!(
        admin.put("/tenants/a/servers/y", server("evil")).await.0,
        403
    );
    assert_eq!(
        admin
            .put("/tenants/a", json!({"auth": {"mode": "none"}}))
            .await
            .0,
        403
    );
    an_operator_declares_who_is_asked(&operator, &replica).await;
    assert_eq!(
        admin
            .put("/tenants/c", json!({"auth": {"mode": "none"}}))
            .await
            .0,
        403
    );
    assert_eq!(admin.delete("/tenants/a/servers/x").await, 403);
    assert_eq!(admin.delete("/tenants/a").await, 403);
    assert_eq!(admin.get("/operator-keys").await.0, 403);
    assert_eq!(
        admin.post("/operator-keys", json!({"name": "me"})).await.0,
        403
    );
    assert_eq!(admin.post("/apply", json!({"version": 1})).await.0, 403);
    assert_eq!(admin.get("/audit?tenant=b").await.0, 404);
    let trail = admin.get("/audit?limit=1000").await.1.to_string();
    assert!(
        trail.contains("api_key a/mine") && !trail.contains("b/"),
        "{trail}"
    );
    for path in ["/tenants", "/tenants/a", "/audit"] {
        assert_eq!(worker.get(path).await.0, 403, "{path}");
    }
    replica.stop().await;
}

/// Its administrator read what had been recorded of the last one.
async fn the_next_tenant_of_a_name_is_told_nothing_of_the_last(ground: Ground) {
    let replica = ground.serve(&[]).await;
    let operator = Admin::first(&ground, &replica);
    operator.tenant("a", server("one")).await;
    let old = Admin::with(&replica, &operator.key("a", "old-boss", &["admin"]).await);
    let (_, page) = old.get("/audit?limit=1").await;
    let next = page["next"].as_str().unwrap().to_owned();
    assert_eq!(operator.delete("/tenants/a").await, 204);
    operator.tenant("a", server("two")).await;
    let new = Admin::with(&replica, &operator.key("a", "boss", &["admin"]).await);
    let wanted = [
        "api_key.added api_key a/boss",
        "server.added server a/x",
        "tenant.added tenant a",
    ];
    assert_eq!(new.audited("").await, wanted);
    assert_eq!(new.audited("tenant=a&limit=9").await, wanted);
    assert!(new.audited(&format!("after={next}")).await.is_empty());
    let export = new.http.get(format!("{}/audit", new.base));
    let export = export.header("Accept", "application/x-ndjson").send().await;
    let lines = export.unwrap().text().await.unwrap();
    assert_eq!(lines.lines().count(), wanted.len(), "{lines}");
    let all = operator.audited("tenant=a&limit=99").await;
    assert!(all.contains(&"api_key.removed api_key a/old-boss".to_owned()));
    replica.stop().await;
}

async fn secrets_are_kept_and_never_shown(ground: Ground) {
    let replica = ground.serve(&[]).await;
    let admin = Admin::first(&ground, &replica);
    let mut spec = server("s3cret-canary");
    admin.tenant("a", spec.clone()).await;
    let (_, shown) = admin.get("/tenants/a/servers/x").await;
    assert_eq!(shown["spec"]["env"], json!({"MARK": null}));
    // A document that was read can be written back without a loss.
    spec = shown["spec"].clone();
    spec["idle"] = json!("9m");
    let (status, shown) = admin.put("/tenants/a/servers/x", spec.clone()).await;
    assert_eq!((status, &shown["spec"]), (200, &spec));
    let key = admin.key("a", "ci", &[]).await;
    assert_eq!(
        mark(&session(&replica, "a", &key).await).await,
        "s3cret-canary"
    );
    spec["env"]["NEW"] = Value::Null;
    let (status, problem) = admin.put("/tenants/a/servers/x", spec).await;
    assert_eq!(status, 422);
    assert_eq!(problem["errors"][0]["key"], "tenants.a.servers.x.env.NEW");
    for path in [
        "/tenants",
        "/tenants/a/servers",
        "/tenants/a/api-keys",
        "/audit",
        "/operator-keys",
    ] {
        let text = admin.get(path).await.1.to_string();
        assert!(
            !text.contains("s3cret-canary") && !text.contains(&key),
            "{path}: {text}"
        );
    }
    // All mistakes are reported with their keys; the gateway's environment is not available.
    for (body, keys) in [
        (
            json!({"comand": "x"}),
            vec!["tenants.a.servers.y.comand", "tenants.a.servers.y.command"],
        ),
        (
            json!({"command": child(), "args": ["${env:PATH}"]}),
            vec!["tenants.a.servers.y.args"],
        ),
        (
            json!({"command": child(), "cwd": "${file:/etc/passwd}"}),
            vec!["tenants.a.servers.y.cwd"],
        ),
    ] {
        let (status, problem) = admin.put("/tenants/a/servers/y", body).await;
        assert_eq!(status, 422, "{problem}");
        let found = problem["errors"].as_array().unwrap().iter();
        let mut found: Vec<&str> = found.map(|error| error["key"].as_str().unwrap()).collect();
        found.sort_unstable();
        assert_eq!(found, keys);
    }
    assert_eq!(admin.get("/tenants/a/servers/y").await.0, 404);
    replica.stop().await;
}

async fn removed_objects_are_gone_within_five_seconds(ground: Ground) {
    let replica = ground.serve(&[]).await;
    let admin = Admin::first(&ground, &replica);
    for tenant in ["a", "b", "c"] {
        admin.tenant(tenant, server(tenant)).await;
    }
    let keys = [
        admin.key("a", "ci", &[]).await,
        admin.key("b", "ci", &[]).await,
        admin.key("c", "ci", &[]).await,
    ];
    let mut open = Vec::new();
    for (tenant, key) in ["a", "b", "c"].into_iter().zip(&keys) {
        let session = session(&replica, tenant, key).await;
        let listener = session.listen().await;
        if tenant == "a" {
            // Only SIGKILL ends this child.
            session.text("ignore_term", json!({})).await;
        }
        let call = session
            .stream("slow", json!({"ms": 60_000, "n": 1}), json!(1))
            .await;
        open.push((session, listener, call));
    }
    let kept = session(&replica, "c", &keys[2]).await;
    let began = Instant::now();
    assert_eq!(admin.delete("/tenants/a").await, 204);
    assert_eq!(admin.delete("/tenants/b/api-keys/ci").await, 204);
    let mut rest = open.split_off(2);
    for (session, mut listener, mut call) in open {
        within("the ends of its streams", async {
            while listener.next().await.is_some() {}
            while call.next().await.is_some() {}
        })
        .await;
        let status = session
            .begin("echo", json!({"text": "x"}))
            .await
            .status()
            .as_u16();
        assert!([401, 404].contains(&status), "{status}");
    }
    until("no child of theirs", || async {
        let children: Vec<Value> =
            serde_json::from_value(replica.probe(&replica.ops, "/children").await.1).unwrap();
        children.iter().all(|child| child["tenant"] == "c")
    })
    .await;
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "{:?}",
        began.elapsed()
    );
    // No other session is affected.
    assert_eq!(mark(&kept).await, "c");
    // The removal of a grant ends sessions, too.
    let mut spec = server("c");
    spec["grants"] = json!({"users": ["eve"]});
    assert_eq!(admin.put("/tenants/c/servers/x", spec).await.0, 200);
    let (session, mut listener, _) = rest.pop().unwrap();
    within("the end of its stream", async {
        while listener.next().await.is_some() {}
    })
    .await;
    assert_eq!(
        session.begin("echo", json!({"text": "x"})).await.status(),
        404
    );
    replica.stop().await;
}

async fn a_replaced_specification_keeps_the_session(ground: Ground) {
    let replica = ground.serve(&[]).await;
    let admin = Admin::first(&ground, &replica);
    let mut shared = server("old");
    shared["isolation"] = json!("tenant");
    admin.tenant("a", server("old")).await;
    admin.tenant("b", shared.clone()).await;
    for tenant in ["a", "b"] {
        let key = admin.key(tenant, "ci", &[]).await;
        let session = session(&replica, tenant, &key).await;
        assert_eq!(mark(&session).await, "old");
        let mut other = session.again();
        other.http = session.http.clone();
        let slow =
            tokio::spawn(async move { other.text("slow", json!({"ms": 700, "n": 1})).await });
        until("the call", || async {
            let (_, seen) = admin
                .get(&format!("/tenants/{tenant}/servers/x/children"))
                .await;
            seen["items"][0]["calls"] == 1
        })
        .await;
        let mut spec = server("new");
        if tenant == "b" {
            spec["isolation"] = json!("tenant");
        }
        let path = format!("/tenants/{tenant}/servers/x");
        assert_eq!(admin.put(&path, spec).await.0, 200);
        // No call is cut; later calls reach the new child.
        assert!(!within("the call", slow).await.unwrap().is_empty());
        until("the new child", || async { mark(&session).await == "new" }).await;
    }
    replica.stop().await;
}

async fn a_manifest_is_applied_as_a_whole(ground: Ground) {
    let replica = ground.serve(&[]).await;
    let admin = Admin::first(&ground, &replica);
    let tenant = |servers: Value| json!({"auth": {"mode": "none"}, "servers": servers});
    let manifest = json!({"version": 1, "tenants": {"a": tenant(json!({"x": server("1")}))}});
    let (status, plan) = admin.post("/apply?dry_run=true", manifest.clone()).await;
    let changes = |said: &Value| -> Vec<String> {
        let all = said["changes"].as_array().unwrap().iter();
        all.map(|one| one["change"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(
        (status, changes(&plan)),
        (
            200,
            vec!["+ tenant a".to_owned(), "+ server a/x".to_owned()]
        )
    );
    assert!(!replica.serves("a", "x").await, "nothing was written");
    assert_eq!(admin.post("/apply", manifest.clone()).await.0, 200);
    assert!(
        replica.serves("a", "x").await,
        "served before it is answered"
    );
    assert_eq!(
        changes(&admin.post("/apply", manifest).await.1),
        Vec::<String>::new()
    );
    let yaml = "version: 1\ntenants:\n  b: {auth: {mode: none}}\n";
    let send = async |query: &str, kind: &str, text: &'static str| {
        let request = admin.http.post(format!("{}/apply{query}", admin.base));
        let request = request.header("Content-Type", kind).body(text);
        read(within("it", request.send()).await.unwrap()).await
    };
    let (_, said) = send("?prune=true", "application/yaml", yaml).await;
    assert_eq!(changes(&said), ["- server a/x", "- tenant a", "+ tenant b"]);
    let toml = "version = 1\n[tenants.c.auth]\nmode = \"none\"\n";
    assert_eq!(send("", "application/toml", toml).await.0, 200);
    assert_eq!(send("", "text/plain", yaml).await.0, 415);
    for wrong in [
        "tenants: {d: {auth: {mode: none}, servers: {x: {command: \"${env:PATH}\"}}}}",
        "tenants: {d: {auth: {mode: none}, servers: {x: {command: \"${file:/etc/passwd}\"}}}}",
        "tenants: [",
        "tenants: {d: {auth: {mode: none}, auth: {mode: none}}}",
        "tenants: {D: {auth: {mode: none}}}",
    ] {
        let (status, problem) = send("", "application/yaml", wrong).await;
        assert_eq!(status, 422, "{wrong}: {problem}");
        assert!(!problem["errors"].as_array().unwrap().is_empty());
        assert!(!problem.to_string().contains("root:"), "{problem}");
    }
    let (_, tenants) = admin.get("/tenants").await;
    assert_eq!(tenants["items"].as_array().unwrap().len(), 2);
    replica.stop().await;
}

async fn without_a_key_there_is_nothing(ground: Ground) {
    let replica = ground.serve(&[]).await;
    let admin = Admin::first(&ground, &replica);
    admin.tenant("a", server("one")).await;
    let url = format!("{}/api/openapi.json", replica.http);
    let document = json_of(within("it", client().get(url).send()).await.unwrap()).await;
    let stranger = Admin {
        http: client(),
        base: admin.base.clone(),
    };
    let mistyped = Admin::with(
        &replica,
        "lgk_0000000000000000000000000000000000000000000000000",
    );
    let mut count = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        let path = path.strip_prefix("/api/v1").unwrap();
        let path = path
            .replace("{tenant}", "a")
            .replace("{name}", "x")
            .replace("{id}", "x")
            .replace("{kid}", "x")
            .replace("{secret}", "x")
            .replace("{upstream}", "x");
        for method in methods.as_object().unwrap().keys() {
            let method: Method = method.to_uppercase().parse().unwrap();
            for (who, wanted) in [
                (&stranger, "Bearer realm=\"lockgate\""),
                (
                    &mistyped,
                    "Bearer realm=\"lockgate\", error=\"invalid_token\"",
                ),
            ] {
                let answer = who.send(method.clone(), &path, Some(&json!({}))).await;
                assert_eq!(answer.status(), 401, "{method} {path}");
                assert_eq!(answer.headers()["www-authenticate"], wanted);
            }
            count += 1;
        }
    }
    assert!(count >= 25, "{count}");
    assert_eq!(
        admin.get("/tenants").await.1["items"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    let twice = admin.http.get(format!("{}/tenants", admin.base));
    let twice = twice
        .header("Authorization", "Bearer x")
        .header("Authorization", "Bearer y");
    assert_eq!(twice.send().await.unwrap().status(), 400);
    // A key in the query is ignored.
    let key = std::fs::read_to_string(ground.data().join("admin.key")).unwrap();
    let path = format!("/tenants?access_token={}", key.trim());
    assert_eq!(stranger.get(&path).await.0, 401);
    for path in ["", "/", "/nothing", "/tenants/a/b/c", "/tenants/%ff"] {
        let answer = admin.send(Method::GET, path, None).await;
        assert_eq!(answer.status(), 404, "{path}");
    }
    replica.stop().await;
}

/// Keys expire, the last one too: the next start creates a first key again.
async fn a_key_that_has_ended_is_no_last_key(ground: Ground) {
    let replica = ground.serve(&[]).await;
    let first = Admin::first(&ground, &replica);
    let at = |seconds: i64| {
        let at = i64::try_from(now()).unwrap() + seconds;
        let at = OffsetDateTime::from_unix_timestamp(at).unwrap();
        at.format(&Rfc3339).unwrap()
    };
    let old = json!({"name": "old", "expires": at(2)});
    let (status, old) = first.post("/operator-keys", old).await;
    assert_eq!(status, 201, "{old}");
    let ended = Admin::with(&replica, old["key"].as_str().unwrap());
    until("the old key has ended", || async {
        ended.get("/tenants").await.0 == 401
    })
    .await;
    assert_eq!(first.delete("/operator-keys/first").await, 409);
    let short = json!({"name": "short", "expires": at(5)});
    let (status, made) = first.post("/operator-keys", short).await;
    assert_eq!(status, 201, "{made}");
    let short = Admin::with(&replica, made["key"].as_str().unwrap());
    assert_eq!(short.delete("/operator-keys/first").await, 204);
    until("the key has ended", || async {
        short.get("/tenants").await.0 == 401
    })
    .await;
    replica.stop().await;
    let replica = ground.serve(&[]).await;
    let first = Admin::first(&ground, &replica);
    assert_eq!(first.get("/tenants").await.0, 200);
    replica.stop().await;
    // A key in `LOCKGATE_ADMIN_KEY` becomes valid again, under its old name.
    let old = old["key"].as_str().unwrap();
    let replica = ground.serve_with(&[("LOCKGATE_ADMIN_KEY", old)], &[]).await;
    let given = Admin::with(&replica, old);
    let (_, keys) = given.get("/operator-keys").await;
    let items = keys["items"].as_array().unwrap().iter();
    let names: Vec<&Value> = items.map(|key| &key["name"]).collect();
    assert_eq!(names, ["first", "old", "short"]);
    replica.stop().await;
}

/// NUL, which PostgreSQL texts cannot contain, is a mistake of the sender.
/// An administrator of a tenant had any file of the gateway as a password, to try guesses at.
async fn a_password_is_no_file_of_the_gateway(ground: Ground) {
    let replica = ground.serve(&[]).await;
    let admin = Admin::first(&ground, &replica);
    let builtin = json!({"auth": {"mode": "builtin"}});
    assert_eq!(admin.put("/tenants/a", builtin).await.0, 201);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "correct-horse-battery").unwrap();
    for reference in [
        format!("${{file:{}}}", file.display()),
        "${env:HOME}/xxxxxxxx".to_owned(),
    ] {
        let (status, problem) = admin
            .put("/tenants/a/users/ada", json!({"password": reference}))
            .await;
        assert_eq!(status, 422, "{problem}");
        let key = &problem["errors"][0]["key"];
        assert_eq!(key, "tenants.a.users.ada.password", "{problem}");
    }
    let plain = json!({"password": "a $$ and 8 letters"});
    assert_eq!(admin.put("/tenants/a/users/ada", plain).await.0, 201);
    replica.stop().await;
}

async fn a_nul_is_refused(ground: Ground) {
    let replica = ground.serve(&[]).await;
    let admin = Admin::first(&ground, &replica);
    let builtin = json!({"auth": {"mode": "builtin"}});
    assert_eq!(admin.put("/tenants/a", builtin).await.0, 201);
    for path in [
        "/audit?kind=%00",
        "/audit?actor=a%00",
        "/tenants/a/grants?subject=%00",
        "/tenants/a/grants?client=c_%00",
        "/tenants/a/users?after=%00",
    ] {
        assert_eq!(admin.get(path).await.0, 400, "{path}");
    }
    for path in [
        "/tenants/a/users/x%00",
        "/tenants/a/api-keys/k_%00",
        "/tenants/a/clients/c_%00",
    ] {
        assert_eq!(admin.get(path).await.0, 404, "{path}");
    }
    for name in ["subject", "client"] {
        let body = json!({name: "a\0b"});
        assert_eq!(admin.post("/tenants/a/revocations", body).await.0, 422);
    }
    let key = json!({"name": "k", "subject": "a\0b", "servers": ["*"]});
    assert_eq!(admin.post("/tenants/a/api-keys", key).await.0, 422);
    let oauth = format!("{}/t/a/oauth", replica.http);
    let asked = client().get(format!("{oauth}/authorize?client_id=c_%00"));
    let shown = within("a page", asked.send()).await.unwrap();
    assert_eq!(shown.status(), 400);
    for end in ["token", "revoke"] {
        let form = "grant_type=refresh_token&refresh_token=x&token=x&client_id=c_%00";
        let asked = client()
            .post(format!("{oauth}/{end}"))
            .header("Content-Type", "application/x-www-form-urlencoded")
            .body(form);
        let refused = within("an answer", asked.send()).await.unwrap();
        assert_eq!(refused.status(), 401, "{end}");
    }
    replica.stop().await;
}

async fn the_key_of_the_environment_gets_in(ground: Ground) {
    let (key, _) = key();
    let key = key.as_str();
    let replica = ground.serve_with(&[("LOCKGATE_ADMIN_KEY", key)], &[]).await;
    assert!(!ground.data().join("admin.key").exists());
    let admin = Admin::with(&replica, key);
    assert_eq!(admin.get("/tenants").await.0, 200);
    // The last key cannot be removed; a second key can replace it.
    assert_eq!(admin.delete("/operator-keys/environment").await, 409);
    let (status, made) = admin
        .post("/operator-keys", json!({"name": "second"}))
        .await;
    assert_eq!(status, 201);
    let second = Admin::with(&replica, made["key"].as_str().unwrap());
    assert_eq!(second.delete("/operator-keys/environment").await, 204);
    assert_eq!(admin.get("/tenants").await.0, 401);
    assert_eq!(second.get("/tenants").await.0, 200);
    replica.stop().await;
    let refused = ground
        .try_serve_with(&[("LOCKGATE_ADMIN_KEY", "s3cret")], &[])
        .await;
    let said = refused.err().unwrap();
    assert!(
        said.contains("LOCKGATE_ADMIN_KEY: is no API key") && !said.contains("s3cret"),
        "{said}"
    );
}

/// With `admin.listen` the API is on that listener only.
#[tokio::test]
async fn administration_has_a_listener_of_its_own() {
    let ground = Ground::sqlite();
    let replica = ground.serve(&["--set", "admin.listen=127.0.0.1:0"]).await;
    let mut admin = Admin::first(&ground, &replica);
    let public = within(
        "it",
        admin.http.get(format!("{}/tenants", admin.base)).send(),
    )
    .await
    .unwrap();
    assert_eq!(public.status(), 404);
    admin.base = format!("{}/api/v1", replica.admin.clone().unwrap());
    assert_eq!(admin.get("/tenants").await.0, 200);
    let foreign = admin
        .http
        .get(format!("{}/tenants", admin.base))
        .header("Host", "evil.test");
    assert_eq!(foreign.send().await.unwrap().status(), 403);
    let mcp = admin
        .http
        .get(format!("{}/t/a/x/mcp", replica.admin.clone().unwrap()));
    assert_eq!(mcp.send().await.unwrap().status(), 404);
    replica.stop().await;
}

/// A listener on every address, as in a container: requests name one of the addresses.
#[tokio::test]
async fn administration_on_every_address_is_known_by_each_and_by_no_name() {
    let ground = Ground::sqlite();
    let replica = ground.serve(&["--set", "admin.listen=0.0.0.0:0"]).await;
    let mut admin = Admin::first(&ground, &replica);
    let port = replica
        .admin
        .as_ref()
        .unwrap()
        .rsplit_once(':')
        .unwrap()
        .1
        .to_owned();
    admin.base = format!("http://127.0.0.1:{port}/api/v1");
    assert_eq!(admin.get("/tenants").await.0, 200);
    for (host, status) in [("10.0.0.7", 200), ("localhost", 200), ("evil.test", 403)] {
        let asked = admin.http.get(format!("{}/tenants", admin.base));
        let asked = asked.header("Host", format!("{host}:{port}")).send();
        let answer = within("an answer", asked).await.unwrap();
        assert_eq!(answer.status(), status, "{host}");
    }
    replica.stop().await;
}

/// Guesses of keys are limited before any look-up, on either listener.
#[tokio::test]
async fn an_address_that_asks_too_often_is_refused_here_too() {
    let bound = "http.per_address.requests_per_second=5";
    for own in [&["--set", "admin.listen=127.0.0.1:0"][..], &[]] {
        let ground = Ground::sqlite();
        let args = [&["--set", bound], own].concat();
        let replica = ground.serve(&args).await;
        let base = replica.admin.as_ref().unwrap_or(&replica.http);
        let guess = Admin {
            http: bearer("lgk_0000000000000000000000000000000000000000000000000"),
            base: format!("{base}/api/v1"),
        };
        let refused = within("a refusal", async {
            loop {
                let answer = guess.send(Method::GET, "/tenants", None).await;
                if answer.status() != StatusCode::UNAUTHORIZED {
                    return answer;
                }
            }
        })
        .await;
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS, "{own:?}");
        let headers = refused.headers();
        assert_eq!(headers["retry-after"], "1");
        assert_eq!(headers["content-type"], "application/problem+json");
        let policy = headers["ratelimit-policy"].to_str().unwrap();
        assert!(policy.starts_with("\"address_requests\";q=5"), "{policy}");
        let problem = json_of(refused).await;
        assert_eq!(problem["status"], 429, "{problem}");
        until("the next second", || async {
            guess.send(Method::GET, "/tenants", None).await.status() == StatusCode::UNAUTHORIZED
        })
        .await;
        replica.stop().await;
    }
}

/// Regression: the manifest was applied twice at the start, the second time after the gateway
/// listened. A change by the API in between was undone, or got 409.
#[tokio::test]
async fn a_change_right_after_the_start_is_not_undone_by_the_manifest() {
    let ground = Ground::sqlite();
    // Passwords take long to hash, so each application of the manifest is slow.
    let users = (0..10).map(|n| {
        (
            format!("u{n}"),
            json!({"password": format!("password {n}")}),
        )
    });
    let users: Value = users.collect::<serde_json::Map<_, _>>().into();
    let tenants = |servers: Value| {
        let auth = json!({"mode": "builtin"});
        json!({"a": {"auth": auth, "users": users.clone(), "servers": servers}})
    };
    let file = ground.manifest(&tenants(json!({"x": server("manifest")})));
    let public = "--set=public_url=http://127.0.0.1:1";
    let level = "--set=telemetry.log=debug";
    let replica = ground
        .serve(&[public, level, "--apply", file.to_str().unwrap()])
        .await;
    until("a second read of the manifest", async || {
        !replica.logged("manifest.unchanged").is_empty()
    })
    .await;
    let admin = Admin::first(&ground, &replica);
    let path = "/tenants/a/servers/x";
    for name in ["first", "second"] {
        assert_eq!(admin.put(path, server(name)).await.0, 200);
    }
    let changed = "kind=server.changed";
    assert_eq!(admin.audited(changed).await.len(), 2);
    // Only a changed manifest is applied, and only once.
    ground.manifest(&tenants(
        json!({"x": server("manifest"), "y": server("manifest")}),
    ));
    until("the new server", async || {
        admin.get("/tenants/a/servers/y").await.0 == 200
    })
    .await;
    assert_eq!(admin.audited(changed).await.len(), 3);
}

/// A conflict told a tenant's administrator that a key exists in another tenant. Tenants that declare
/// one hash are independent of each other.
async fn a_key_of_two_tenants_administrates_each_by_its_path(ground: Ground) {
    let replica = ground.serve(&[]).await;
    let operator = Admin::first(&ground, &replica);
    operator.tenant("a", server("a")).await;
    operator.tenant("b", server("b")).await;
    let (text, hash) = key();
    let declared = |name: &str, scopes: Value| json!({"hash": hash, "subject": name, "servers": ["x"], "scopes": scopes});
    let put = operator.put(
        "/tenants/b/api-keys/boss",
        declared("bob", json!(["admin"])),
    );
    assert_eq!(put.await.0, 201);
    // The administrator of another tenant learns nothing by the hash.
    let guest = Admin::with(&replica, &operator.key("a", "guest", &["admin"]).await);
    let put = guest.put("/tenants/a/api-keys/copy", declared("ada", json!([])));
    assert_eq!(put.await.0, 201);
    let both = Admin::with(&replica, &text);
    assert_eq!(both.get("/tenants/a/users").await.0, 403, "no scope in a");
    assert_eq!(both.get("/tenants/b/users").await.0, 200);
    let (_, tenants) = both.get("/tenants").await;
    assert_eq!(tenants["items"].as_array().unwrap().len(), 1, "{tenants}");
    assert_eq!(tenants["items"][0]["name"], "b");
    // With the scope in both, each path has its own, and what has no tenant shows both.
    let put = guest.put(
        "/tenants/a/api-keys/copy",
        declared("ada", json!(["admin"])),
    );
    assert_eq!(put.await.0, 200);
    for tenant in ["a", "b"] {
        let (status, said) = both
            .put(&format!("/tenants/{tenant}/api-keys/{tenant}"), {
                let (_, other) = key();
                json!({"hash": other, "subject": "x", "servers": ["x"]})
            })
            .await;
        assert_eq!(status, 201, "{said}");
        let records = both.audited(&format!("tenant={tenant}&limit=1")).await;
        assert_eq!(
            records,
            [format!("api_key.added api_key {tenant}/{tenant}")]
        );
    }
    let (_, tenants) = both.get("/tenants").await;
    assert_eq!(tenants["items"].as_array().unwrap().len(), 2, "{tenants}");
    assert_eq!(both.get("/audit").await.0, 400);
    let session = session(&replica, "b", &text).await;
    assert_eq!(mark(&session).await, "b");
    replica.stop().await;
}

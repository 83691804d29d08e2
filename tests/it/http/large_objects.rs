//! Objects with very many members: their cost is linear, small for tenants' administrators, and no
//! request of another caller waits for it.

use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::time::Instant;

use crate::{
    database::persistence::{Ground, server},
    http::administration::Admin,
    support::{gauges::Gauge, harness::json_of},
};

/// An object of about 14 bytes a member.
fn members(count: usize) -> Value {
    let members = (0..count).map(|number| (format!("k{number:06}"), json!(1)));
    Value::Object(members.collect::<Map<_, _>>())
}

/// 60,000 members of one object took 17 s, and two such requests of a tenant's administrator stopped the
/// gateway.
#[tokio::test]
async fn an_object_of_a_tenants_administrator_is_small() {
    let ground = Ground::sqlite();
    let replica = ground.serve(&[]).await;
    let operator = Admin::first(&ground, &replica);
    operator.tenant("a", server("one")).await;
    let boss = Admin::with(&replica, &operator.key("a", "boss", &["admin"]).await);
    let (path, large) = ("/tenants/a/users/ada", members(60_000));
    let began = Instant::now();
    let (status, said) = boss.put(path, large.clone()).await;
    assert_eq!(status, 413, "{said}");
    let text = said["detail"].as_str().unwrap();
    assert!(text.contains("65536 bytes"), "{text}");
    let refused = began.elapsed();
    assert!(refused < Duration::from_secs(1), "{refused:?}");
    // Keys of a tenant are objects, too.
    let (status, said) = boss.post("/tenants/a/api-keys", large.clone()).await;
    assert_eq!(status, 413, "{said}");
    // An operator may write more, and is told one mistake after the other.
    let began = Instant::now();
    let answer = operator
        .send(reqwest::Method::PUT, path, Some(&large))
        .await;
    assert_eq!(answer.status().as_u16(), 422);
    drop(json_of(answer).await);
    let judged = began.elapsed();
    println!("60,000 members: {refused:?} refused, {judged:?} judged");
    // Quadratic it took minutes in a build without optimization, such as this one.
    assert!(judged < Duration::from_secs(15), "{judged:?}");
    replica.stop().await;
}

/// 64 KiB of short values were several MiB in each replica, and again at each change of the tenant.
#[tokio::test]
async fn an_object_counts_each_of_its_values() {
    let ground = Ground::sqlite();
    let replica = ground.serve(&[]).await;
    let operator = Admin::first(&ground, &replica);
    let tenant = operator.put("/tenants/a", json!({"auth": {"mode": "builtin"}}));
    assert_eq!(tenant.await.0, 201);
    let (status, said) = operator.put("/tenants/a/servers/x", server("one")).await;
    assert_eq!(status, 201, "{said}");
    let boss = Admin::with(&replica, &operator.key("a", "boss", &["admin"]).await);
    let names =
        |count: usize| -> Vec<_> { (0..count).map(|number| format!("n{number}")).collect() };
    let user = |groups: usize| json!({"groups": names(groups)});
    let key = |name: &str, scopes: usize| json!({"name": name, "subject": "k", "servers": ["x"], "scopes": names(scopes)});
    let path = "/tenants/a/users/ada";
    let (status, said) = boss.put(path, user(1000)).await;
    assert_eq!(status, 201, "{said}");
    let (status, said) = boss.put(path, user(2000)).await;
    assert_eq!(status, 413, "{said}");
    let text = said["detail"].as_str().unwrap();
    assert!(text.contains("each value"), "{text}");
    for (name, scopes, wanted) in [("one", 1000, 201), ("two", 2000, 413)] {
        let (status, said) = boss.post("/tenants/a/api-keys", key(name, scopes)).await;
        assert_eq!(status, wanted, "{said}");
    }
    // Keys are texts; what RFC 7517 does not have is refused with its name.
    let client = |member: Value| {
        json!({"redirect_uris": ["https://app.test/cb"],
            "jwks": {"keys": [{"kty": "EC", "ext": true, "x5c": ["MII"], "x": member}]}})
    };
    let path = "/tenants/a/clients/app";
    let (status, said) = boss.put(path, client(json!([0, 0]))).await;
    assert_eq!(status, 422, "{said}");
    let error = &said["errors"][0];
    assert_eq!(error["key"], "tenants.a.clients.app.jwks.keys", "{said}");
    let what = "holds a key whose \"x\" is no text and no list of texts";
    assert_eq!(error["what"], what);
    assert_eq!(boss.put(path, client(json!("abc"))).await.0, 201);
    // Operators have no such bound for one object.
    assert_eq!(
        operator.put("/tenants/a/users/ada", user(2000)).await.0,
        200
    );
    replica.stop().await;
}

/// A small machine has one worker of the gateway: large objects must not take it.
#[tokio::test]
async fn large_objects_hold_up_no_other_request() {
    let ground = Ground::sqlite();
    let replica = ground.serve(&[]).await;
    let operator = Admin::first(&ground, &replica);
    operator.tenant("a", server("one")).await;
    let large = members(60_000);
    let put = || operator.put("/tenants/a/users/ada", large.clone());
    let looking = async {
        let mut slowest = Duration::ZERO;
        for _ in 0..20 {
            let began = Instant::now();
            assert_eq!(operator.get("/tenants/a/servers/x").await.0, 200);
            slowest = slowest.max(began.elapsed());
        }
        slowest
    };
    let (one, two, slowest) = tokio::join!(put(), put(), looking);
    for (status, said) in [one, two] {
        assert_eq!(status, 422, "{said}");
    }
    println!("the slowest of twenty: {slowest:?}");
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
    replica.stop().await;
}

/// Repeated values of a list were found by comparing each with all before it, at every read of the object.
#[tokio::test]
async fn a_long_list_is_read_in_time_that_is_linear_in_its_length() {
    let ground = Ground::sqlite();
    let replica = ground.serve(&[]).await;
    let operator = Admin::first(&ground, &replica);
    operator.tenant("a", server("one")).await;
    let scopes: Vec<String> = (0..60_000).map(|number| format!("{number:x}")).collect();
    let key = json!({"name": "k", "subject": "k", "servers": ["*"], "scopes": scopes});
    let began = Instant::now();
    let (status, said) = operator.post("/tenants/a/api-keys", key).await;
    assert_eq!(status, 201, "{said}");
    let made = began.elapsed();
    println!("60,000 scopes: {made:?}");
    assert!(made < Duration::from_secs(15), "{made:?}");
    replica.stop().await;
}

/// Each object of a manifest is read, compared and judged once: 20,000 servers took a minute.
#[tokio::test]
async fn a_manifest_is_compared_in_time_that_is_linear_in_its_length() {
    let ground = Ground::sqlite();
    let replica = ground.serve(&[]).await;
    let operator = Admin::first(&ground, &replica);
    let gauge = Gauge::at(replica.pid());
    let taken = async |count: usize| {
        let servers = (0..count).map(|number| (format!("s{number}"), server("one")));
        let servers = Value::Object(servers.collect::<Map<_, _>>());
        let manifest = json!({"version": 1,
            "tenants": {"a": {"auth": {"mode": "none"}, "servers": servers}}});
        let before = gauge.processor();
        let (status, said) = operator.post("/apply?dry_run=true", manifest).await;
        assert_eq!(status, 200, "{said}");
        assert_eq!(said["changes"].as_array().unwrap().len(), count + 1);
        gauge.processor().saturating_sub(before)
    };
    let (small, large) = (taken(1000).await, taken(4000).await);
    println!("1,000 servers: {small:?}, 4,000: {large:?}");
    // Quadratic it would be sixteen times as much.
    assert!(large < small * 8, "{small:?} {large:?}");
}

/// The median time of a few requests.
async fn median(mut request: impl AsyncFnMut(usize) -> u16) -> Duration {
    let mut times = Vec::new();
    for at in 0..9 {
        let began = Instant::now();
        let status = request(at).await;
        assert!((200..300).contains(&status), "{status}");
        times.push(began.elapsed());
    }
    times.sort();
    times[times.len() / 2]
}

/// Each request of an administrator, on objects of its own tenant.
async fn each_request(boss: &Admin, round: &str) -> Vec<(&'static str, Duration)> {
    let user = |at: usize| format!("/tenants/b/users/{round}{at}");
    let key = |at: usize| json!({"name": format!("{round}{at}"), "subject": "k", "servers": ["x"]});
    vec![
        (
            "put",
            median(async |at| boss.put(&user(at), json!({})).await.0).await,
        ),
        ("read", median(async |at| boss.get(&user(at)).await.0).await),
        (
            "list",
            median(async |_| boss.get("/tenants/b/users").await.0).await,
        ),
        (
            "tenants",
            median(async |_| boss.get("/tenants").await.0).await,
        ),
        (
            "quotas",
            median(async |_| boss.get("/tenants/b/quotas").await.0).await,
        ),
        (
            "key",
            median(async |at| boss.post("/tenants/b/api-keys", key(at)).await.0).await,
        ),
        (
            "delete",
            median(async |at| boss.delete(&user(at)).await).await,
        ),
    ]
}

/// Each change read, checked and took over the objects of all tenants.
#[tokio::test]
async fn thousands_of_objects_of_a_tenant_delay_no_change_of_another() {
    let ground = Ground::sqlite();
    let replica = ground.serve(&[]).await;
    let operator = Admin::first(&ground, &replica);
    let (status, said) = operator.put("/tenants/b", json!({})).await;
    assert_eq!(status, 201, "{said}");
    let (status, said) = operator.put("/tenants/b/servers/x", server("one")).await;
    assert_eq!(status, 201, "{said}");
    let boss = Admin::with(&replica, &operator.key("b", "boss", &["admin"]).await);
    let alone = each_request(&boss, "u").await;
    let users = (0..6000).map(|number| (format!("user{number}"), json!({"groups": ["staff"]})));
    let users = Value::Object(users.collect());
    let manifest = json!({"version": 1, "tenants": {"a": {"users": users}}});
    let (status, said) = operator.post("/apply", manifest).await;
    assert_eq!(status, 200, "{said}");
    let beside = each_request(&boss, "v").await;
    println!("alone {alone:?}, beside {beside:?}");
    for ((what, before), (_, after)) in alone.iter().zip(&beside) {
        let most = *before * 3 + Duration::from_millis(20);
        assert!(
            *after < most,
            "{what}: {before:?} alone, {after:?} beside 6,000 objects"
        );
    }
    let (_, quotas) = operator.get("/tenants/a/quotas").await;
    assert_eq!(quotas["used"]["objects"], 6000, "{quotas}");
    replica.stop().await;
}

/// A tenant's administrator wrote any number of objects, which each replica keeps in memory.
#[tokio::test]
async fn objects_beyond_the_quota_of_a_tenant_are_not_written() {
    let ground = Ground::sqlite();
    let replica = ground.serve(&[]).await;
    let operator = Admin::first(&ground, &replica);
    let tenant = |quotas: Value| json!({"quotas": quotas});
    let put = operator.put(
        "/tenants/a",
        tenant(json!({"objects": 3, "object_bytes": "2KiB"})),
    );
    assert_eq!(put.await.0, 201);
    let (status, said) = operator.put("/tenants/a/servers/x", server("one")).await;
    assert_eq!(status, 201, "{said}");
    let boss = Admin::with(&replica, &operator.key("a", "boss", &["admin"]).await);
    assert_eq!(boss.put("/tenants/a/users/ada", json!({})).await.0, 201);
    for (path, body) in [
        ("/tenants/a/users/eve", json!({})),
        (
            "/tenants/a/clients/app",
            json!({"redirect_uris": ["https://app.test/cb"]}),
        ),
    ] {
        let (status, said) = boss.put(path, body).await;
        assert_eq!(status, 422, "{said}");
        let error = &said["errors"][0];
        assert_eq!(error["key"], "tenants.a.quotas.objects", "{said}");
        assert_eq!(error["what"], "permits 3 objects, and there would be 4");
        let remedy = "remove objects of the tenant, or let an operator raise the quota";
        assert_eq!(error["remedy"], remedy);
        assert_eq!(boss.get(path).await.0, 404);
    }
    let key = json!({"name": "k", "subject": "k", "servers": ["x"]});
    assert_eq!(boss.post("/tenants/a/api-keys", key.clone()).await.0, 422);
    // What is there can be changed and removed, and makes room.
    let large = json!({"groups": ["x".repeat(4000)]});
    let (status, said) = boss.put("/tenants/a/users/ada", large.clone()).await;
    assert_eq!(status, 422, "{said}");
    assert_eq!(said["errors"][0]["key"], "tenants.a.quotas.object_bytes");
    assert_eq!(
        boss.put("/tenants/a/users/ada", json!({"groups": ["x"]}))
            .await
            .0,
        200
    );
    assert_eq!(boss.delete("/tenants/a/users/ada").await, 204);
    assert_eq!(boss.post("/tenants/a/api-keys", key).await.0, 201);
    // Other tenants have quotas of their own, and an operator raises this one.
    let put = operator.put(
        "/tenants/a",
        tenant(json!({"objects": 5, "object_bytes": ""})),
    );
    assert_eq!(put.await.0, 200);
    assert_eq!(boss.put("/tenants/a/users/ada", large).await.0, 201);
    let manifest = json!({"tenants": {"a": {"quotas": {"objects": 5},
        "users": {"eve": {}, "joe": {}}}}});
    let (status, said) = operator.post("/apply", manifest).await;
    assert_eq!(status, 422, "a manifest is no way around it: {said}");
    replica.stop().await;
}

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

/// The workers of the gateway are two on a small machine: two large objects must not take them.
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
    replica.stop().await;
}

//! Wake-ups: changes at one replica reach the others by pub/sub.

use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use crate::{
    database::persistence::{Ground, Replica},
    http::administration::Admin,
    support::{
        harness::{Session, until},
        redis::{Kind, Redis, Reply},
    },
};

async fn replica(ground: &Ground, redis: &Redis) -> Replica {
    let url = format!("redis.url={}", redis.url());
    let sets = [
        &*url,
        "cluster.listen=127.0.0.1:0",
        "public_url=https://gw.test",
    ];
    let args: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
    ground.serve(&args).await
}

/// Waits until `count` replicas listen.
async fn listened_to(redis: &Redis, count: i64) {
    until("replicas that listen", || async {
        let said = redis.command(&["PUBSUB", "NUMSUB", "lockgate:v1:wake"]);
        matches!(said, Reply::List(pair) if pair[1] == Reply::Number(count))
    })
    .await;
}

/// The median time until a server that `admin` adds is visible at `at`.
async fn delay(admin: &Admin, at: &Replica, names: std::ops::Range<u32>) -> Duration {
    let mut waits = Vec::with_capacity(names.len());
    for number in names {
        let path = format!("/tenants/a/servers/s{number}");
        let (status, said) = admin.put(&path, json!({"command": "cat"})).await;
        assert_eq!(status, 201, "{said}");
        let began = Instant::now();
        let client: Session = at.stranger("a", &format!("s{number}"));
        until("the server", || async {
            // A request without a session gets 400 if the server exists.
            let status = client.get(None).await.status().as_u16();
            assert!([400, 404].contains(&status), "{status}");
            status == 400
        })
        .await;
        waits.push(began.elapsed());
    }
    waits.sort();
    waits[waits.len() / 2]
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_at_one_replica_reach_the_other_at_once() {
    let (ground, redis) = (Ground::postgres(), Redis::start(Kind::Redis));
    let one = replica(&ground, &redis).await;
    let other = replica(&ground, &redis).await;
    let admin = Admin::first(&ground, &one);
    let made = admin.put("/tenants/a", json!({"auth": {"mode": "none"}}));
    assert_eq!(made.await.0, 201);
    listened_to(&redis, 2).await;
    // Without notifications a replica polls every 400 ms: the median is 200 ms.
    let told = delay(&admin, &other, 0..20).await;
    assert!(told < Duration::from_millis(100), "{told:?}");
    // Notifications also arrive over a new connection.
    redis.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    listened_to(&redis, 2).await;
    let told = delay(&admin, &other, 20..40).await;
    assert!(told < Duration::from_millis(100), "{told:?}");
    // Notifications are optional.
    redis.pause();
    delay(&admin, &other, 40..42).await;
    redis.resume();
}

/// A load balancer takes the next request of the same administrator elsewhere.
#[tokio::test(flavor = "multi_thread")]
async fn an_administrator_finds_at_one_replica_what_it_made_at_another() {
    let (ground, redis) = (Ground::postgres(), Redis::start(Kind::Redis));
    let one = replica(&ground, &redis).await;
    let other = replica(&ground, &redis).await;
    let (first, second) = (Admin::first(&ground, &one), Admin::first(&ground, &other));
    // Without notifications the other one would know a tenant after up to 400 ms.
    redis.pause();
    for number in 0..5 {
        let tenant = format!("/tenants/t{number}");
        let (status, said) = first.put(&tenant, json!({"auth": {"mode": "none"}})).await;
        assert_eq!(status, 201, "{said}");
        let server = format!("{tenant}/servers/x");
        let (status, said) = second.put(&server, json!({"command": "cat"})).await;
        assert_eq!(status, 201, "{said}");
        // And back: the server has no children yet.
        let (status, said) = first.get(&format!("{server}/children")).await;
        assert_eq!(status, 200, "{said}");
    }
    // What nobody made stays unknown.
    let (status, _) = second
        .put("/tenants/t9/servers/x", json!({"command": "cat"}))
        .await;
    assert_eq!(status, 404);
    redis.resume();
}

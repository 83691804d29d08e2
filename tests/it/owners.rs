//! Sessions between replicas: how they end, and who goes on with them (DESIGN section 5).

use reqwest::StatusCode;
use serde_json::json;

use crate::{
    redis::{Kind, Redis},
    replicas::{Replicas, final_message, read},
    served::Served,
};

#[tokio::test(flavor = "multi_thread")]
async fn the_calls_of_a_deleted_session_end_before_it_is_gone() {
    let replicas = Replicas::two(&[]).await;
    let here = replicas.node(0).session().await;
    let there = replicas.by(&here, 1);
    let slow = json!({"n": 10_000, "ms": 20});
    let mut streams = Vec::new();
    for way in [&here, &there] {
        let mut events = way.stream("slow", slow.clone(), json!("t")).await;
        read(&mut events, 2).await;
        streams.push(events);
    }
    assert_eq!(there.delete().await.status(), StatusCode::NO_CONTENT);
    for mut events in streams {
        let end = final_message(&events.rest().await);
        assert_eq!(end["error"]["code"], -31001, "{end}");
        assert_eq!(end["error"]["data"]["reason"], "backend_exited");
    }
    for way in [&here, &there] {
        let answer = way.begin("echo", json!({})).await;
        assert_eq!(answer.status(), StatusCode::NOT_FOUND);
    }
    let (id, keys) = (here.id.as_deref().unwrap(), replicas.redis.keys());
    assert!(!keys.iter().any(|key| key.contains(id)), "{keys:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_with_a_store_of_its_own_says_so() {
    let redis = Redis::start(Kind::Redis);
    let tenants = json!({"a": {"auth": {"mode": "none"}, "servers": {"x": {"command": "cat"}}}});
    let shared = json!({"redis": {"url": redis.url()}, "cluster": {"listen": "127.0.0.1:0"}});
    for (config, is_told) in [(shared, true), (json!({}), false)] {
        let logs = Served::start(config, tenants.clone()).await.end().await;
        let of_it = logs.iter().filter(|line| {
            let text = line["message"].as_str().unwrap_or_default();
            line["level"] == "WARN" && text.contains("sql.url: is not set while redis.url is")
        });
        assert_eq!(of_it.count(), usize::from(is_told), "{logs:?}");
    }
}

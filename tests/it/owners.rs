//! Sessions between replicas: how they end, and who goes on with them (DESIGN section 5).

use serde_json::json;

use crate::{
    redis::{Kind, Redis},
    served::Served,
};

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

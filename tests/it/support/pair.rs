//! Two replicas over one PostgreSQL and one Redis with one manifest: a production set-up without
//! the load balancer.

use serde_json::{Value, json};

use crate::support::{
    harness::until,
    oauth_client::tenants,
    postgres::Postgres,
    redis::{Kind, Redis},
    served::Served,
};

/// The replicas and their shared services.
pub(crate) struct Pair {
    // The drop order: `first` waits for the end of all children, which have the same marker.
    second: Served,
    first: Served,
    pub(crate) redis: Redis,
    pub(crate) postgres: Postgres,
}

impl Pair {
    /// Serves tenants with their own authorization servers.
    pub(crate) async fn issuing(config: Value) -> Self {
        Self::of(config, tenants()).await
    }

    /// Serves `tenants` with the settings of `config`.
    pub(crate) async fn of(config: Value, tenants: Value) -> Self {
        let (redis, postgres) = (Redis::start(Kind::Redis), Postgres::start());
        let mut all = json!({
            "sql": {"url": postgres.url()}, "redis": {"url": redis.url()},
            "cluster": {"listen": "127.0.0.1:0"}, "public_url": "https://gw.test",
            "master_key": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
            "drain": {"delay": "0s", "timeout": "2s"},
        });
        for (key, value) in config.as_object().unwrap() {
            all[key] = value.clone();
        }
        let first = Served::start(all.clone(), tenants).await;
        let second = Served::joining(&all).await;
        let pair = Self {
            second,
            first,
            redis,
            postgres,
        };
        for replica in pair.both() {
            until("a replica that is ready", || async {
                replica.ops("/readyz").await.contains("\"ready\"")
            })
            .await;
        }
        pair
    }

    pub(crate) fn both(&self) -> [&Served; 2] {
        [&self.first, &self.second]
    }

    /// The children of both replicas.
    pub(crate) fn descendants(&self) -> Vec<u32> {
        self.first.descendants()
    }
}

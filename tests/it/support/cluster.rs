//! Two replicas over one Redis and one PostgreSQL, which is behind a fault-injecting forwarder. The
//! user ada can log in.

use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::{
    auth::external_tokens::bearer,
    support::{
        faulty::Faulty,
        harness::{NEWEST, Session, client, until},
        oauth_client::tenants,
        postgres::Postgres,
        redis::{Kind, Redis},
        served::Served,
    },
};

/// The replicas and their shared services.
pub(crate) struct Cluster {
    pub(crate) replicas: Vec<Served>,
    pub(crate) redis: Redis,
    pub(crate) postgres: Postgres,
    pub(crate) sql_way: Faulty,
}

impl Cluster {
    /// A cluster whose replicas are ready.
    pub(crate) async fn two() -> Self {
        Self::with([&[], &[]], json!({})).await
    }

    /// [`Cluster::two`] with more environment variables for each, and more settings for both.
    pub(crate) async fn with(env: [&[(&str, &str)]; 2], more: Value) -> Self {
        let (redis, postgres) = (Redis::start(Kind::Redis), Postgres::start());
        let cluster = Self::over(redis, postgres, env, more).await;
        cluster.ready().await;
        cluster
    }

    /// A cluster over stores that may be unreachable: the replicas listen, and may be unready.
    pub(crate) async fn over(
        redis: Redis,
        postgres: Postgres,
        env: [&[(&str, &str)]; 2],
        more: Value,
    ) -> Self {
        let server = place(&postgres.url());
        let sql_way = Faulty::before(&server).await;
        let mut config = json!({
            "public_url": "https://gw.test",
            "master_key": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
            "redis": {"url": redis.url()},
            "sql": {"url": postgres.url().replace(&server, &sql_way.address.to_string())},
            "cluster": {"listen": "127.0.0.1:0"},
            "drain": {"delay": "0s"},
        });
        for (part, keys) in more.as_object().unwrap() {
            for (key, value) in keys.as_object().unwrap() {
                config[part][key] = value.clone();
            }
        }
        // One replica applies the manifest, so that both serve the same objects.
        let first = Served::with(env[0], config.clone(), tenants()).await;
        let second = Served::with(env[1], config, Value::Null).await;
        let replicas = vec![first, second];
        Self {
            replicas,
            redis,
            postgres,
            sql_way,
        }
    }

    /// Waits until both replicas serve.
    pub(crate) async fn ready(&self) {
        for at in 0..2 {
            until("a replica that is ready", || async {
                self.health(at).await.0 == StatusCode::OK
            })
            .await;
        }
    }

    /// The detailed readiness of a replica.
    pub(crate) async fn health(&self, at: usize) -> (StatusCode, Value) {
        let (status, body) = self.replicas[at].ops_status("/readyz").await;
        (status, serde_json::from_str(&body).unwrap())
    }

    /// A session of tenant `a` with an access token, opened at a replica.
    pub(crate) async fn session(&self, at: usize, token: &str) -> Session {
        let mut session = Session::at(bearer(token), self.url(at));
        session.initialize(NEWEST).await;
        session
    }

    /// The same session through another replica, with any token.
    pub(crate) fn by(&self, session: &Session, at: usize, token: &str) -> Session {
        let mut other = session.again();
        other.http = bearer(token);
        other.url = self.url(at);
        other
    }

    /// The MCP endpoint of server x at a replica.
    pub(crate) fn url(&self, at: usize) -> String {
        format!("{}/t/a/x/mcp", self.replicas[at].origin())
    }

    /// The status for an access token at a replica: 400 for a valid token without a session.
    pub(crate) async fn status(&self, at: usize, token: &str) -> u16 {
        let asked = client().get(self.url(at)).bearer_auth(token);
        let asked = asked.header("Accept", "text/event-stream").send();
        asked.await.unwrap().status().as_u16()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // The first replica goes last: it checks that no child is left.
        while self.replicas.pop().is_some() {}
    }
}

/// `HOST:PORT` of a URL.
pub(crate) fn place(url: &str) -> String {
    let url = url::Url::parse(url).unwrap();
    format!("{}:{}", url.host_str().unwrap(), url.port().unwrap())
}

//! Strangers between replicas: those who can write Redis, have the address of a replica, or read and
//! repeat what replicas send each other.

use std::{
    net::SocketAddr,
    sync::{Arc, RwLock},
};

use axum::{
    Router,
    body::{Body, to_bytes},
    http::Request,
    response::Response,
};
use hyper::server::conn::http2;
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    service::TowerToHyperService,
};
use reqwest::{Client, Method, StatusCode, header::HeaderMap};
use rustix::process::Signal;
use serde_json::json;
use tokio::{net::TcpListener, task::JoinSet};

use crate::{
    auth::{api_keys::key, external_tokens::bearer},
    support::{
        harness::{NEWEST, Session, child, until},
        redis::{Kind, Redis},
        served::Served,
    },
};

/// A request as a stranger got it.
#[derive(Clone, Debug)]
struct Seen {
    method: Method,
    target: String,
    headers: HeaderMap,
    body: Vec<u8>,
}

/// Somebody who speaks HTTP/2 at an address, and remembers all requests.
struct Stranger {
    address: SocketAddr,
    seen: Arc<RwLock<Vec<Seen>>>,
    _serving: JoinSet<()>,
}

impl Stranger {
    /// Answers each request with 200; or with what `replica` answers, to which it sends it.
    async fn start(replica: Option<SocketAddr>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (seen, client): (Arc<RwLock<Vec<Seen>>>, _) = (Arc::default(), over_http2());
        let shared = Arc::clone(&seen);
        let app = Router::new().fallback(move |request: Request<Body>| {
            let (shared, client) = (Arc::clone(&shared), client.clone());
            async move {
                let request = read(request).await;
                shared.write().unwrap().push(request.clone());
                match replica {
                    None => Response::new(Body::from("{}")),
                    Some(replica) => relayed(repeat(&client, replica, &request).await),
                }
            }
        });
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let service = TowerToHyperService::new(app.clone());
                let http2 = http2::Builder::new(TokioExecutor::new());
                connections.spawn(http2.serve_connection(TokioIo::new(stream), service));
            }
        });
        Self {
            address,
            seen,
            _serving: serving,
        }
    }

    fn seen(&self) -> Vec<Seen> {
        self.seen.read().unwrap().clone()
    }
}

fn over_http2() -> Client {
    let client = Client::builder().no_proxy().tls_certs_only([]);
    client.http2_prior_knowledge().build().unwrap()
}

async fn read(request: Request<Body>) -> Seen {
    let (head, body) = request.into_parts();
    Seen {
        method: head.method,
        target: head.uri.path_and_query().unwrap().to_string(),
        headers: head.headers,
        body: to_bytes(body, 1 << 20).await.unwrap().into(),
    }
}

/// Sends a request once more.
async fn repeat(client: &Client, to: SocketAddr, seen: &Seen) -> reqwest::Response {
    let request = client.request(seen.method.clone(), format!("http://{to}{}", seen.target));
    let request = request.headers(seen.headers.clone());
    request.body(seen.body.clone()).send().await.unwrap()
}

fn relayed(answer: reqwest::Response) -> Response {
    let mut response = Response::builder().status(answer.status());
    response
        .headers_mut()
        .unwrap()
        .extend(answer.headers().clone());
    response
        .body(Body::from_stream(answer.bytes_stream()))
        .unwrap()
}

/// Two replicas with one tenant, and the API keys of ada and bob.
struct Keyed {
    // The first waits for the end of all children at its drop.
    second: Served,
    first: Served,
    redis: Redis,
    ada: String,
    bob: String,
}

impl Keyed {
    /// Starts both; `cluster` are the settings of the first.
    async fn start(cluster: &[(&str, String)]) -> Self {
        Self::with(cluster, "0s").await
    }

    /// Starts both, which listen for so long while they stop.
    async fn draining(delay: &str) -> Self {
        Self::with(&[], delay).await
    }

    async fn with(cluster: &[(&str, String)], delay: &str) -> Self {
        let redis = Redis::start(Kind::Redis);
        let ((ada, hash), (bob, other)) = (key(), key());
        let tenants = json!({"a": {
            "auth": {"mode": "keys"},
            "api_keys": {
                "ada": {"hash": hash, "subject": "ada", "servers": ["*"]},
                "bob": {"hash": other, "subject": "bob", "servers": ["*"]},
            },
            "servers": {"x": {"command": child()}},
        }});
        let mut config = json!({
            "redis": {"url": redis.url()}, "cluster": {"listen": "127.0.0.1:0"},
            "public_url": "https://gw.test", "drain": {"delay": delay},
            "master_key": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
        });
        let second = Served::start(config.clone(), tenants.clone()).await;
        for (key, value) in cluster {
            config["cluster"][key] = json!(value);
        }
        let first = Served::start(config, tenants).await;
        for replica in [&first, &second] {
            until("a replica that is ready", || async {
                replica.ops("/readyz").await.contains("\"ready\"")
            })
            .await;
        }
        Self {
            second,
            first,
            redis,
            ada,
            bob,
        }
    }

    /// A session at the first replica, and the way to it through the second.
    async fn session(&self) -> (Session, Session) {
        let url = |replica: &Served| format!("{}/t/a/x/mcp", replica.origin());
        let mut here = Session::at(bearer(&self.ada), url(&self.first));
        here.initialize(NEWEST).await;
        let mut there = here.again();
        there.http = bearer(&self.ada);
        there.url = url(&self.second);
        (here, there)
    }

    /// Writes into Redis that a session belongs to the replica at this address.
    fn forge(&self, session: &Session, address: &str, boot: &str) {
        let key = format!("lockgate:v1:{{{}}}", session.id.as_deref().unwrap());
        let replica = format!("lockgate:v1:replica:{boot}");
        let known = self.redis.keys();
        assert!(known.contains(&key), "{known:?}");
        let is_heartbeat = |key: &String| key.starts_with("lockgate:v1:replica:");
        assert!(known.iter().any(is_heartbeat), "{known:?}");
        for words in [
            &["HSET", &key, "address", address, "boot", boot][..],
            &["SET", &replica, address, "PX", "60000"],
        ] {
            self.redis.command(words);
        }
    }

    /// Writes into Redis that the replica at this address is the first to begin sessions.
    fn forge_successor(&self, address: &str) {
        let replica = format!("{} {address}", "0".repeat(64));
        // Older than the heartbeats of others, and not yet too old.
        let script =
            "return redis.call('ZADD', KEYS[1], redis.call('TIME')[1] * 1000 - 3000, ARGV[1])";
        let words = ["EVAL", script, "1", "lockgate:v1:open", &replica];
        assert_eq!(self.redis.command(&words).number(), 1);
    }
}

/// Asserts that no part of a request is a credential.
fn holds_no_credential(seen: &Seen, key: &str) {
    let text = format!("{seen:?} {}", String::from_utf8_lossy(&seen.body));
    assert!(
        !text.contains(key) && !seen.headers.contains_key("authorization"),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_of_redis_gets_no_request() {
    let (replicas, stranger) = (Keyed::start(&[]).await, Stranger::start(None).await);
    let address = stranger.address.to_string();
    let (first, _) = replicas.session().await;
    let key = format!("lockgate:v1:{{{}}}", first.id.as_deref().unwrap());
    let genuine = replicas.redis.command(&["HGET", &key, "boot"]).text();
    for boot in ["0".repeat(32), "0".repeat(64), genuine, "x".to_owned()] {
        let (here, there) = replicas.session().await;
        replicas.forge(&here, &address, &boot);
        // Another replica takes the session over.
        until("an answer", || async {
            let answer = there.begin("echo", json!({"text": "hi"})).await;
            let status = answer.status();
            assert!(matches!(status.as_u16(), 200 | 503), "{status}");
            status == StatusCode::OK
        })
        .await;
    }
    assert!(stranger.seen().is_empty(), "{:?}", stranger.seen());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_of_redis_gives_nobody_the_session_of_another() {
    let replicas = Keyed::start(&[]).await;
    let (here, there) = replicas.session().await;
    let mut bob = Session::at(bearer(&replicas.bob), there.url.clone());
    bob.initialize(NEWEST).await;
    let key = |session: &Session| format!("lockgate:v1:{{{}}}", session.id.as_deref().unwrap());
    for field in ["principal", "seal"] {
        let own = replicas.redis.command(&["HGET", &key(&bob), field]).text();
        let words = ["HSET", &key(&here), field, &own];
        replicas.redis.command(&words);
    }
    bob.id.clone_from(&here.id);
    let answer = bob.begin("echo", json!({"text": "hi"})).await;
    assert_eq!(answer.status(), StatusCode::NOT_FOUND);
    assert_eq!(here.text("echo", json!({"text": "hi"})).await, "hi");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_stops_begins_no_session_at_a_stranger() {
    let (replicas, stranger) = (Keyed::draining("2s").await, Stranger::start(None).await);
    let there = replicas.session().await.1;
    replicas.second.send(Signal::TERM);
    until("a replica that says that it ends", || async {
        !replicas.second.ops("/readyz").await.contains("\"ready\"")
    })
    .await;
    replicas.forge_successor(&stranger.address.to_string());
    let mut new = Session::at(bearer(&replicas.ada), there.url.clone());
    new.initialize(NEWEST).await;
    assert!(stranger.seen().is_empty(), "{:?}", stranger.seen());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_in_other_hands_gets_no_request() {
    let stranger = Stranger::start(None).await;
    let replicas = Keyed::start(&[("advertise", stranger.address.to_string())]).await;
    let (_here, there) = replicas.session().await;
    let refused = there.begin("echo", json!({"text": "hi"})).await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(refused.headers().contains_key("retry-after"));
    let seen = stranger.seen();
    assert!(!seen.is_empty(), "it is asked for its proof");
    for seen in seen {
        holds_no_credential(&seen, &replicas.ada);
        assert_eq!(
            (seen.target.as_str(), seen.body.len()),
            ("/", 0),
            "{seen:?}"
        );
    }
}

/// Each got the requests of the other's sessions, and said nothing.
#[tokio::test(flavor = "multi_thread")]
async fn replicas_with_one_address_are_told() {
    let redis = Redis::start(Kind::Redis);
    let tenants = json!({"a": {"auth": {"mode": "none"}, "servers": {"x": {"command": child()}}}});
    let address = "127.0.0.1:9";
    let config = json!({
        "redis": {"url": redis.url()}, "cluster": {"listen": "127.0.0.1:0", "advertise": address},
        "public_url": "https://gw.test", "master_key": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
    });
    let mut one = Served::start(config.clone(), tenants.clone()).await;
    let mut two = Served::start(config, tenants).await;
    let lines = tokio::join!(one.says("cluster.advertise"), two.says("cluster.advertise"));
    for line in [lines.0, lines.1] {
        assert_eq!(
            (&line["level"], &line["address"]),
            (&json!("ERROR"), &json!(address)),
            "{line}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hop_has_no_credentials_and_counts_once() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let listen = free.local_addr().unwrap();
    drop(free);
    let stranger = Stranger::start(Some(listen)).await;
    let address = ("advertise", stranger.address.to_string());
    let replicas = Keyed::start(&[("listen", listen.to_string()), address]).await;
    let (_here, there) = replicas.session().await;
    assert_eq!(there.text("echo", json!({"text": "hi"})).await, "hi");
    let seen = stranger.seen();
    for seen in &seen {
        holds_no_credential(seen, &replicas.ada);
    }
    let hop = seen.iter().find(|seen| seen.method == Method::POST);
    let hop = hop.unwrap_or_else(|| panic!("{seen:?}"));
    assert!(String::from_utf8_lossy(&hop.body).contains("tools/call"));
    let again = repeat(&over_http2(), listen, hop).await;
    assert_eq!(again.status(), StatusCode::FORBIDDEN);
}

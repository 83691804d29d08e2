//! Connections to replicas that refuse, drain, freeze or break, and slow readers.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{Router, body::Body, routing::get};
use bytes::Bytes;
use futures_util::{FutureExt, future::join_all};
use http::{
    HeaderValue, Request, StatusCode,
    header::{RETRY_AFTER, WWW_AUTHENTICATE},
};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, copy_bidirectional},
    net::{TcpListener, TcpStream},
    time::{Instant, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::http::{
    edge::App,
    listen::{
        Bounds, Connections,
        accept::{KEEP_ALIVE, serve_replicas},
    },
    peers::{Cluster, Hop, HopKeys, MAX_CONCURRENT, Peers, ResponseBody, SendError, SignedRequest},
};
use crate::{
    auth::Access,
    base::{Clock, MacKeys, sha256},
    config::Format,
    manifest::reader,
    state::ReplicaKeys,
};

struct Other {
    address: Arc<str>,
    /// Requests for `/quick`.
    requests: Arc<AtomicUsize>,
    stop: CancellationToken,
    tracker: TaskTracker,
}

/// A replica that answers `/quick`, never `/never`, `/endless` without an end, and `/challenge` with a long field.
async fn other(finish: Duration) -> Other {
    other_with(&KEY, finish).await
}

/// The replica, with a key of its own.
async fn other_with(key: &[u8; 32], finish: Duration) -> Other {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address: Arc<str> = listener.local_addr().unwrap().to_string().into();
    let requests = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&requests);
    let quick = async move || {
        counted.fetch_add(1, Ordering::Relaxed);
        "quick"
    };
    let (stop, tracker) = (CancellationToken::new(), TaskTracker::new());
    let (replicas, hops) = keys(key);
    let cluster = Cluster::new(
        (replicas.replica(&address).unwrap(), replicas.clone()),
        hops,
        Peers::new(replicas, tracker.clone(), stop.clone()),
        Clock::system(),
        [stop.clone(), stop.clone()],
    );
    let cluster = Arc::new(cluster);
    let prove = async move |request: Request<Body>| cluster.prove(&request).unwrap();
    let app = Router::new()
        .route("/", get(prove))
        .route("/quick", get(quick))
        .route("/never", get(std::future::pending::<&str>))
        .route(
            "/challenge",
            get(async || [(WWW_AUTHENTICATE, "a".repeat(75_000))]),
        )
        .route(
            "/endless",
            get(async || {
                let chunk = Ok::<_, std::convert::Infallible>(Bytes::from(vec![b'x'; 1 << 14]));
                Body::from_stream(futures_util::stream::repeat(chunk))
            }),
        );
    // This gate does not check the host.
    let app = App::of_operators(app, ([0, 0, 0, 0], 0).into());
    let bounds = Bounds {
        connections: Connections::new(10),
        finish,
        idle: KEEP_ALIVE,
    };
    let serving = serve_replicas(listener, app, bounds, stop.clone(), tracker.clone());
    tracker.spawn(serving);
    Other {
        address,
        requests,
        stop,
        tracker,
    }
}

fn keys(key: &[u8; 32]) -> (ReplicaKeys, HopKeys) {
    let keys = MacKeys::new([key]);
    (ReplicaKeys::new(keys.clone()), HopKeys::new(keys))
}

const KEY: [u8; 32] = [9; 32];

/// A caller of a tenant.
fn caller(tenant: &str, subject: &str) -> Access {
    let manifest = json!({"version": 1, "tenants": {tenant: {"auth": {"mode": "none"},
        "servers": {"main": {"command": "x"}}}}});
    let read = reader::parse("F", &manifest.to_string(), Format::Json, &BTreeMap::new());
    let (tenant, server) = read.unwrap().catalog.find(tenant, "main").unwrap();
    Access::of(&tenant, &server, subject)
}

struct Bench {
    peers: Peers,
    ada: Access,
    stop: CancellationToken,
    tracker: TaskTracker,
}

fn bench() -> Bench {
    let (stop, tracker) = (CancellationToken::new(), TaskTracker::new());
    Bench {
        peers: Peers::new(keys(&KEY).0, tracker.clone(), stop.clone()),
        ada: caller("a", "ada"),
        stop,
        tracker,
    }
}

impl Bench {
    async fn get(
        &self,
        address: &Arc<str>,
        path: &str,
    ) -> Result<http::Response<ResponseBody>, SendError> {
        self.get_by(&self.ada, address, path).await
    }

    async fn get_by(
        &self,
        caller: &Access,
        address: &Arc<str>,
        path: &str,
    ) -> Result<http::Response<ResponseBody>, SendError> {
        let request = Request::builder().uri(format!("http://{address}{path}"));
        let request = request.body(Bytes::new()).unwrap();
        self.peers.send(address, caller, request).await
    }

    async fn ends(&self) {
        self.stop.cancel();
        self.tracker.close();
        let ended = timeout(Duration::from_secs(5), self.tracker.wait()).await;
        ended.expect("tasks that do not end");
    }
}

#[tokio::test]
async fn concurrent_requests_share_one_connection() {
    let (bench, other) = (bench(), other(Duration::ZERO).await);
    let asked = (0..100).map(|_| async {
        let mut answer = bench
            .get(&other.address, "/quick")
            .await
            .unwrap()
            .into_body();
        assert_eq!(answer.next().await.unwrap().unwrap(), "quick");
        assert!(answer.next().await.unwrap().is_none());
    });
    join_all(asked).await;
    // The accept loop and one connection.
    assert_eq!(other.tracker.len(), 2);
    bench.ends().await;
}

#[tokio::test]
async fn a_peer_without_the_key_or_with_another_address_gets_no_request() {
    let bench = bench();
    let stranger = other_with(&[8; 32], Duration::ZERO).await;
    let asked = bench.get(&stranger.address, "/quick").await;
    assert_eq!(asked.err(), Some(SendError::NotTaken));
    // A forwarder to a true replica, which relays its proof.
    let replica = other(Duration::ZERO).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address: Arc<str> = listener.local_addr().unwrap().to_string().into();
    let to = Arc::clone(&replica.address);
    replica.tracker.spawn(async move {
        let (mut from, _) = listener.accept().await.unwrap();
        let mut to = TcpStream::connect(&*to).await.unwrap();
        let _ = copy_bidirectional(&mut from, &mut to).await;
    });
    let asked = bench.get(&address, "/quick").await;
    assert_eq!(asked.err(), Some(SendError::NotTaken));
    for peer in [&stranger, &replica] {
        assert_eq!(peer.requests.load(Ordering::Relaxed), 0);
    }
    assert!(bench.get(&replica.address, "/quick").await.is_ok());
    bench.ends().await;
}

#[tokio::test]
async fn a_refused_connection_is_reported() {
    let bench = bench();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address: Arc<str> = listener.local_addr().unwrap().to_string().into();
    drop(listener);
    let asked = bench.get(&address, "/quick").await;
    assert_eq!(asked.err(), Some(SendError::Refused));
    bench.ends().await;
}

#[tokio::test]
async fn requests_that_a_draining_replica_never_took_may_be_sent_again() {
    let (bench, other) = (bench(), other(Duration::from_secs(3)).await);
    let waiting = bench.get(&other.address, "/never");
    tokio::pin!(waiting);
    let early = timeout(Duration::from_millis(200), &mut waiting).await;
    assert!(early.is_err());
    other.stop.cancel();
    // A request is sent before or after the GOAWAY arrives; later connections are refused.
    for _ in 0..50 {
        let asked = bench.get(&other.address, "/quick").await;
        let why = asked.err();
        assert!(
            matches!(why, None | Some(SendError::NotTaken | SendError::Refused)),
            "{why:?}"
        );
    }
    // The replica had accepted the request, and then the time limit passed.
    assert_eq!(waiting.await.err(), Some(SendError::Broken));
    bench.ends().await;
}

#[tokio::test]
async fn a_frozen_replica_is_noticed() {
    let bench = bench();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address: Arc<str> = listener.local_addr().unwrap().to_string().into();
    let began = Instant::now();
    let asked = bench.get(&address, "/quick").await;
    assert_eq!(asked.err(), Some(SendError::Silent));
    let took = began.elapsed();
    assert!(
        took > Duration::from_secs(3) && took < Duration::from_secs(6),
        "{took:?}"
    );
    bench.ends().await;
}

#[tokio::test]
async fn a_broken_response_is_no_end_of_stream() {
    let (bench, other) = (bench(), other(Duration::ZERO).await);
    let mut answer = bench
        .get(&other.address, "/endless")
        .await
        .unwrap()
        .into_body();
    assert!(answer.next().await.unwrap().is_some());
    other.stop.cancel();
    let broke = async { while answer.next().await.is_ok_and(|data| data.is_some()) {} };
    timeout(Duration::from_secs(5), broke)
        .await
        .expect("it breaks");
    assert!(answer.next().await.is_err());
    bench.ends().await;
}

#[tokio::test]
async fn a_slow_reader_stops_no_other_stream() {
    let (bench, other) = (bench(), other(Duration::ZERO).await);
    let mut slow = Vec::new();
    for _ in 0..500 {
        slow.push(bench.get(&other.address, "/endless").await.unwrap());
    }
    let quick = async {
        for _ in 0..20 {
            let answer = bench.get(&other.address, "/quick").await;
            assert!(answer.unwrap().into_body().next().await.unwrap().is_some());
        }
    };
    let quick = timeout(Duration::from_secs(5), quick).await;
    quick.expect("others wait for a slow reader");
    drop(slow);
    let mut answer = bench
        .get(&other.address, "/quick")
        .await
        .unwrap()
        .into_body();
    assert!(answer.next().await.unwrap().is_some());
    bench.ends().await;
}

/// One caller that kept 10,000 answers open took the places of all others at that replica.
#[tokio::test]
async fn a_caller_has_its_share_of_the_places_at_a_replica_and_leaves_others_theirs() {
    let (bench, other) = (bench(), other(Duration::ZERO).await);
    let quick = async |caller: &Access| {
        let answer = bench.get_by(caller, &other.address, "/quick").await?;
        Ok::<_, SendError>(answer.into_body())
    };
    // The connection is open, so that no request waits for it.
    drop(quick(&bench.ada).await.unwrap());
    let mut waiting: Vec<_> = std::iter::from_fn(|| {
        let mut asked = Box::pin(bench.get(&other.address, "/never"));
        let refused = (&mut asked).now_or_never().map(Result::err);
        if let Some(refused) = refused {
            assert_eq!(refused, Some(SendError::Full));
            return None;
        }
        Some(asked)
    })
    .take(20_000)
    .collect();
    assert_eq!(waiting.len() as u64, MAX_CONCURRENT / 3);
    for another in [caller("a", "bob"), caller("b", "eve")] {
        assert!(quick(&another).await.is_ok());
    }
    // A place is free again with its request, or with its answer.
    drop(waiting.pop());
    let answer = quick(&bench.ada).await.unwrap();
    assert_eq!(quick(&bench.ada).await.err(), Some(SendError::Full));
    drop(answer);
    assert!(quick(&bench.ada).await.is_ok());
    bench.ends().await;
}

/// A byte takes up to 28 bits in HPACK, so that three long fields of one client ended the connection, with the requests
/// of all others.
#[tokio::test]
async fn header_fields_of_one_client_do_not_end_the_connection_of_all() {
    let (bench, other) = (bench(), other(Duration::ZERO).await);
    let asked = async |fields: usize| {
        let mut request = Request::builder().uri(format!("http://{}/quick", other.address));
        for number in 0..fields {
            let value = HeaderValue::from_bytes(&[0xF9; 16_000]).unwrap();
            request = request.header(format!("mcp-param-{number}"), value);
        }
        let request = request.body(Bytes::new()).unwrap();
        let answer = bench.peers.send(&other.address, &bench.ada, request).await;
        answer.map(|answer| answer.status().as_u16())
    };
    assert_eq!(asked(0).await, Ok(200));
    let mut open = Box::pin(bench.get(&other.address, "/never"));
    assert!((&mut open).now_or_never().is_none());
    // All that the public listener takes.
    assert_eq!(asked(4).await, Ok(200));
    assert_eq!(asked(30).await, Err(SendError::NotTaken));
    assert_eq!(asked(0).await, Ok(200));
    assert!((&mut open).now_or_never().is_none());
    drop(open);
    bench.ends().await;
}

/// h2 ended the connection at an answer with more than 64 KiB of header fields.
#[tokio::test]
async fn a_long_head_of_an_answer_does_not_end_the_connection_of_all() {
    let (bench, other) = (bench(), other(Duration::ZERO).await);
    assert!(bench.get(&other.address, "/quick").await.is_ok());
    let mut open = Box::pin(bench.get(&other.address, "/never"));
    assert!((&mut open).now_or_never().is_none());
    let answer = bench.get(&other.address, "/challenge").await.unwrap();
    assert_eq!(answer.headers()[WWW_AUTHENTICATE].len(), 75_000);
    assert!(bench.get(&other.address, "/quick").await.is_ok());
    assert!((&mut open).now_or_never().is_none());
    drop(open);
    bench.ends().await;
}

#[tokio::test]
async fn a_head_of_an_answer_that_another_replica_does_not_take_becomes_a_503() {
    let (bench, (replicas, hops)) = (bench(), keys(&KEY));
    let me = replicas.replica(&"127.0.0.1:1".into()).unwrap();
    let cluster = Arc::new(Cluster::new(
        (me.clone(), replicas),
        hops.clone(),
        bench.peers.clone(),
        Clock::system(),
        [bench.stop.clone(), bench.stop.clone()],
    ));
    let path = "/t/a/main/mcp";
    let of = async |number: u64, length: usize| {
        let field = [(WWW_AUTHENTICATE, "a".repeat(length))];
        let routes: Router = Router::new().route(path, get(async move || field));
        let app = App::of_replicas(routes.into(), Arc::clone(&cluster));
        let hop = Hop {
            target: Arc::clone(&me.boot),
            sender: "cccc".into(),
            number,
            client: None,
            caller: String::new(),
            body: sha256(b""),
        };
        let mut request = Request::new(Body::empty());
        *request.uri_mut() = path.parse().unwrap();
        let signed = SignedRequest {
            method: request.method(),
            target: path,
            headers: request.headers(),
        };
        let proof = hops.sign(&hop, signed, Clock::system().now_ms()).unwrap();
        request.headers_mut().insert("lockgate-hop", proof);
        let peer = ([127, 0, 0, 1], 1).into();
        let received = app.receive(peer, request).expect("a request");
        app.answer(peer, received).await
    };
    assert_eq!(of(0, 60_000).await.status(), StatusCode::OK);
    let refused = of(1, 75_000).await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(refused.headers().contains_key(RETRY_AFTER));
    assert!(!refused.headers().contains_key(WWW_AUTHENTICATE));
    bench.ends().await;
}

/// Strangers' heads of thousands of fields waited for their tasks, of 30,000 streams at once.
#[tokio::test]
async fn a_head_that_no_replica_sends_is_refused_before_it_waits() {
    let (bench, (replicas, hops)) = (bench(), keys(&KEY));
    let cluster = Cluster::new(
        (replicas.replica(&"127.0.0.1:1".into()).unwrap(), replicas),
        hops,
        bench.peers.clone(),
        Clock::system(),
        [bench.stop.clone(), bench.stop.clone()],
    );
    let routes: Router = Router::new();
    let app = App::of_replicas(routes.into(), Arc::new(cluster));
    let received = |fields: usize| {
        let mut request = Request::new(Body::empty());
        for _ in 0..fields {
            let field = HeaderValue::from_static("");
            request.headers_mut().append("mcp-param-a", field);
        }
        app.receive(([127, 0, 0, 1], 1).into(), request)
    };
    assert!(received(200).is_ok());
    let refused = received(201).err().expect("it is received");
    assert_eq!(refused.status(), StatusCode::FORBIDDEN);
    assert!(refused.headers().contains_key("lockgate-hop"));
    bench.ends().await;
}

/// They waited for each other in rows of 64, each for an attempt of its own.
#[tokio::test]
async fn all_that_wait_for_a_connection_share_one_attempt() {
    let bench = bench();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address: Arc<str> = listener.local_addr().unwrap().to_string().into();
    let asked = (0..200).map(|_| bench.get(&address, "/quick"));
    for answer in join_all(asked).await {
        assert_eq!(answer.err(), Some(SendError::Silent));
    }
    assert!(listener.accept().await.is_ok());
    assert!(listener.accept().now_or_never().is_none());
    bench.ends().await;
}

/// A peer that does not read cannot keep an unused connection open.
#[tokio::test]
async fn a_connection_ends_with_the_gateway() {
    let bench = bench();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address: Arc<str> = listener.local_addr().unwrap().to_string().into();
    let asked = bench.get(&address, "/quick");
    tokio::pin!(asked);
    assert!(
        timeout(Duration::from_millis(100), &mut asked)
            .await
            .is_err()
    );
    let (mut stream, _) = listener.accept().await.unwrap();
    bench.stop.cancel();
    assert!(asked.await.is_err());
    let mut all = Vec::new();
    let read = timeout(Duration::from_secs(2), stream.read_to_end(&mut all)).await;
    let _ = read.expect("the connection is closed");
    bench.ends().await;
}

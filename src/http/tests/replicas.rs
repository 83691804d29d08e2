//! Two replicas in one process: real hubs, children and connections, and shared state in memory.

use std::{
    collections::BTreeMap, convert::Infallible, future::ready, path::PathBuf, sync::Arc,
    time::Duration,
};

use aws_lc_rs::rand::SystemRandom;
use axum::{
    Router,
    body::Body,
    extract::Request,
    routing::{get, post},
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use futures_util::{
    StreamExt,
    stream::{once, pending},
};
use reqwest::{
    Method, RequestBuilder, StatusCode,
    header::{ACCEPT, HeaderMap, HeaderValue},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    runtime::Runtime,
    sync::oneshot,
    task::JoinSet,
    time::{Instant, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::base::budget::Descriptors;
use crate::http::{
    Front,
    edge::{Allowed, App, FoundHost, Gate},
    listen::{
        Bounds, Connections,
        accept::{self, KEEP_ALIVE},
    },
    peers::{Cluster, Hop, HopKeys, Peers, STREAM_WINDOW, SignedRequest},
    reply::{RetryDelay, event_stream::event_stream, header_name::STREAM_BEGIN},
    routes,
};
use crate::{
    auth::Verifier,
    backend::{
        child::{Ambient, Launcher, Zygote},
        sandbox::Sandbox,
    },
    base::{Clock, MacKeys, Outbound, sha256},
    config::{Config, Format, LoggedRequests, Sources},
    hub::{
        Hub, HubParts, Patience, Stores, limits::MemoryBudgets, ownership::ReplicaLease, retention,
    },
    manifest::reader,
    oauth::Upstreams,
    protocol::EventKey,
    snapshot::{AuditQueue, CurrentSnapshot},
    state::{
        ClaimFrom, Directory, Replica, ReplicaKeys, SessionId,
        memory::{MemoryDirectory, MemoryLimiter, MemoryLog},
    },
    telemetry::{Health, Metrics, Traces},
};

/// What one caller may have under way at a replica with 2 MiB, alone.
const SHARE: u64 = (2 << 20) / 3;
/// Pieces of an answer that are on their way beyond the share.
const PIECES: u64 = 128 << 10;

fn built(name: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap();
    own.parent().unwrap().parent().unwrap().join(name)
}

/// State that both replicas share.
#[derive(Clone)]
struct Shared {
    log: Arc<MemoryLog>,
    directory: Arc<MemoryDirectory>,
    config: Arc<Config>,
    work: Arc<tempfile::TempDir>,
}

impl Shared {
    fn new(sets: &[&str]) -> Self {
        let sets = sets.iter().copied();
        let sets = sets.chain(["http.per_address.requests_per_second=0"]);
        let sources = Sources {
            run: true,
            set: sets.map(str::to_owned).collect(),
            ..Sources::default()
        };
        let config = Config::load(&sources).unwrap();
        Self {
            log: Arc::new(MemoryLog::new(retention(&config))),
            directory: Arc::default(),
            config: Arc::new(config),
            work: Arc::new(tempfile::tempdir().unwrap()),
        }
    }

    /// The same for a replica whose callers have room for [`SHARE`].
    fn with_little_memory(&self) -> Self {
        Self {
            config: Self::new(&["http.max_body=256KiB", "limits.memory=2MiB"]).config,
            ..self.clone()
        }
    }

    fn stores(&self, owner: Arc<ReplicaLease>) -> Stores {
        Stores {
            log: self.log.clone(),
            directory: self.directory.clone(),
            limiter: Arc::new(MemoryLimiter::default()),
            owner,
            key: EventKey::new(&[7; 32]),
            patience: Patience::default(),
        }
    }
}

/// One replica, with its own threads so that it can be killed.
struct Gateway {
    runtime: Option<Runtime>,
    /// Ends the listeners.
    reached: CancellationToken,
    url: String,
    me: Replica,
    metrics: Arc<Metrics>,
    memory: Arc<MemoryBudgets>,
    client: reqwest::Client,
    /// Keeps the shared directory alive.
    _shared: Shared,
}

fn keys() -> MacKeys {
    MacKeys::new([&[9; 32]])
}

impl Gateway {
    async fn start(shared: &Shared) -> Self {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(2).enable_all().build().unwrap();
        let (tell, told) = oneshot::channel();
        let own = shared.clone();
        let reached = CancellationToken::new();
        let stop = reached.clone();
        runtime.spawn(async move {
            let _ = tell.send(serve(own, stop).await);
            std::future::pending::<()>().await;
        });
        let (url, me, metrics, memory) = told.await.unwrap();
        Self {
            runtime: Some(runtime),
            reached,
            url,
            me,
            metrics,
            memory,
            client: reqwest::Client::new(),
            _shared: shared.clone(),
        }
    }

    /// Ends the replica like a process: its connections break and its ports close before its tasks
    /// are dropped.
    async fn kill(&mut self) {
        self.reached.cancel();
        while TcpStream::connect(&*self.me.address).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }

    fn ask(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.client.request(method, format!("{}{path}", self.url));
        let request = request.timeout(Duration::from_secs(30));
        request.header("accept", "application/json, text/event-stream")
    }

    async fn open(&self, revision: &str) -> String {
        let message = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
            "protocolVersion": revision, "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"}}});
        let answer = self.ask(Method::POST, PATH).json(&message).send().await;
        let answer = answer.unwrap();
        assert_eq!(answer.status(), 200);
        let Some(id) = answer.headers().get("mcp-session-id").cloned() else {
            panic!("no session: {}", answer.text().await.unwrap());
        };
        let id = id.to_str().unwrap().to_owned();
        let message = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        let answer = self.of(Method::POST, &id).json(&message).send().await;
        assert_eq!(answer.unwrap().status(), 202);
        id
    }

    fn of(&self, method: Method, session: &str) -> RequestBuilder {
        self.ask(method, PATH).header("mcp-session-id", session)
    }

    fn call(&self, session: &str, id: u32, tool: &str, args: &Value) -> RequestBuilder {
        let params = json!({"name": tool, "arguments": args, "_meta": {"progressToken": 1}});
        let message = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params});
        self.of(Method::POST, session).json(&message)
    }

    /// The calls that hang in the server of a session.
    async fn hanging(&self, session: &str) -> usize {
        let received = self.call(session, 99, "received", &json!({})).send().await;
        let received = received.unwrap().text().await.unwrap();
        received.matches(r#"name\\\":\\\"hang"#).count()
    }

    /// What callers have under way here.
    fn used(&self) -> u64 {
        self.memory.requests().used()
    }

    fn count(&self, line: &str) -> u64 {
        let shown = self.metrics.render();
        let found = shown.lines().find_map(|shown| shown.strip_prefix(line));
        found.map_or(0, |count| count.trim().parse().unwrap())
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

const PATH: &str = "/t/a/main/mcp";
const MESSAGES: &str = "/t/a/main/messages";
/// Connections of each listener.
const CONNECTIONS: usize = 100;

async fn serve(
    shared: Shared,
    reached: CancellationToken,
) -> (String, Replica, Arc<Metrics>, Arc<MemoryBudgets>) {
    let http = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let hops = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address: Arc<str> = hops.local_addr().unwrap().to_string().into();
    let me = ReplicaKeys::new(keys()).replica(&address).unwrap();
    let metrics = Arc::new(Metrics::new(None).unwrap());
    let (stop, tracker) = (CancellationToken::new(), TaskTracker::new());
    let front = Arc::new(front(&shared, &me, &metrics, &stop, &tracker));
    let cluster = front.cluster.clone().unwrap();
    let bounds = || Bounds {
        connections: Connections::new(CONNECTIONS),
        finish: Duration::ZERO,
        idle: KEEP_ALIVE,
    };
    let app = routes::cluster(&front, cluster);
    let serving = accept::serve_replicas(hops, app, bounds(), reached, tracker.clone());
    tracker.spawn(serving);
    let bound = http.local_addr().unwrap();
    let url = format!("http://{bound}");
    let allowed = Allowed::new(&url.parse().unwrap(), bound, false, &[], &[]).unwrap();
    let gate = Gate::new(
        (
            allowed,
            Box::new(|_, _| FoundHost::None),
            Box::new(|_| None),
        ),
        Vec::new(),
        4 << 20,
        Arc::clone(front.hub.limits().memory()),
        (Arc::clone(&metrics), Traces::default()),
        LoggedRequests::All,
    );
    let memory = Arc::clone(front.hub.limits().memory());
    let app = App::of_public(routes::public(front, Health::default()), gate);
    let serving = accept::serve(http, None, app, bounds(), stop, tracker.clone());
    tracker.spawn(serving);
    (url, me, metrics, memory)
}

fn launcher(work: PathBuf) -> Launcher {
    Launcher {
        zygote: Arc::new(Zygote::new(built("lockgate"))),
        ambient: Ambient {
            cwd: "/".into(),
            ..Ambient::default()
        },
        prepared: work.join("prepared"),
        work,
        sandbox: Arc::new(Sandbox::none()),
        descriptors: Descriptors::new(10_000),
    }
}

fn front(
    shared: &Shared,
    me: &Replica,
    metrics: &Arc<Metrics>,
    stop: &CancellationToken,
    tracker: &TaskTracker,
) -> Front {
    let manifest = json!({"version": 1, "tenants": {"a": {"auth": {"mode": "none"},
        "servers": {"main": {"command": built("examples/child")}}}}});
    let manifest = reader::parse("F", &manifest.to_string(), Format::Json, &BTreeMap::new());
    let snapshot = CurrentSnapshot::fixed(manifest.unwrap().catalog);
    let work = shared.work.path().join(&*me.boot);
    std::fs::create_dir(&work).unwrap();
    let replicas = ReplicaKeys::new(keys());
    let lease = ReplicaLease::new(me.clone(), replicas.clone(), shared.directory.clone());
    let owner = Arc::new(lease);
    tracker.spawn(Arc::clone(&owner).run(|_| {}, stop.clone()));
    let random = Arc::new(SystemRandom::new());
    let hub = Hub::new(HubParts {
        stores: shared.stores(owner),
        config: Arc::clone(&shared.config),
        random: random.clone(),
        launcher: launcher(work),
        snapshot: Arc::clone(&snapshot),
        audit: AuditQueue::disabled(),
        tokens: Arc::new(|_, _| Box::pin(async { Err(crate::backend::Refused::Missing) })),
        metrics: Arc::clone(metrics),
        traces: Traces::default(),
        drain: stop.clone(),
        halt: stop.clone(),
        tracker: tracker.clone(),
    });
    let limiter = Arc::clone(hub.limits().limiter());
    let auth = Verifier::new(
        &shared.config,
        (Outbound::new(Vec::new()), limiter),
        (&snapshot, AuditQueue::disabled()),
        metrics,
        tracker,
        stop,
    );
    let cluster = Cluster::new(
        (me.clone(), replicas.clone()),
        HopKeys::new(keys()),
        Peers::new(replicas, tracker.clone(), stop.clone()),
        Clock::system(),
        [stop.clone(), stop.clone()],
    );
    Front {
        stateless: crate::hub::stateless::Stateless::new(hub.clone()),
        tasks: crate::hub::tasks::Tasks::new(hub.clone()),
        hub,
        auth,
        upstreams: upstreams(&snapshot, tracker),
        snapshot,
        config: Arc::clone(&shared.config),
        metrics: Arc::clone(metrics),
        traces: Traces::default(),
        retry: RetryDelay::new(Duration::from_secs(1), random),
        cluster: Some(Arc::new(cluster)),
        health: Health::default(),
        began: Instant::now(),
    }
}

fn upstreams(snapshot: &Arc<CurrentSnapshot>, tracker: &TaskTracker) -> Upstreams {
    Upstreams::new(
        Outbound::new(Vec::new()),
        Arc::clone(snapshot),
        tracker.clone(),
    )
}

/// Starts two replicas with shared state.
async fn two() -> (Gateway, Gateway) {
    let shared = Shared::new(&[]);
    let one = Gateway::start(&shared).await;
    (one, Gateway::start(&shared).await)
}

/// Events of a response, read as they arrive.
struct Events {
    response: reqwest::Response,
    text: String,
}

/// Id and data of an event; comments are left out.
type Event = (Option<String>, Option<String>);

impl Events {
    fn of(response: reqwest::Response) -> Self {
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let text = String::new();
        Self { response, text }
    }

    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let field = |name: &str| {
                    let mut lines = event.lines();
                    let found = lines.find_map(|line| line.strip_prefix(name));
                    found.map(str::to_owned)
                };
                let found = (field("id: "), field("data: "));
                self.text = rest.to_owned();
                if found != (None, None) {
                    return Some(found);
                }
                continue;
            }
            let chunk = timeout(Duration::from_secs(20), self.response.chunk());
            let chunk = chunk.await.expect("a stream that stands still").unwrap()?;
            self.text.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }

    async fn rest(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        while let Some(event) = self.next().await {
            events.push(event);
        }
        events
    }
}

fn ids(events: &[Event]) -> Vec<&String> {
    events.iter().filter_map(|(id, _)| id.as_ref()).collect()
}

#[tokio::test]
async fn any_replica_serves_any_session() {
    let (one, two) = two().await;
    let session = one.open("2025-11-25").await;
    let direct = one.call(&session, 1, "echo", &json!({"text": "hi"}));
    let direct = direct.send().await.unwrap();
    let hopped = two.call(&session, 1, "echo", &json!({"text": "hi"}));
    let hopped = hopped.send().await.unwrap();
    let names = |headers: &HeaderMap| {
        let mut names: Vec<_> = headers
            .keys()
            .map(|name| name.as_str().to_owned())
            .collect();
        names.sort();
        names
    };
    assert_eq!(names(direct.headers()), names(hopped.headers()));
    assert_eq!(direct.text().await.unwrap(), hopped.text().await.unwrap());
    // A streamed call, and the listener.
    let slow = two.call(&session, 2, "slow", &json!({"n": 5, "ms": 60}));
    let events = Events::of(slow.send().await.unwrap()).rest().await;
    assert_eq!(events.len(), 7, "{events:?}");
    let mut listener = Events::of(two.of(Method::GET, &session).send().await.unwrap());
    assert_eq!(listener.next().await.unwrap().1.as_deref(), Some(""));
    let notify = json!({"method": "notifications/prompts/list_changed", "params": {"hello": 1}});
    let sent = one.call(&session, 3, "notify", &notify).send().await;
    assert_eq!(sent.unwrap().status(), 200);
    let (_, data) = listener.next().await.unwrap();
    assert!(data.unwrap().contains("hello"));
    // The end of the session, and calls after it.
    let ended = two.of(Method::DELETE, &session).send().await.unwrap();
    assert_eq!(ended.status(), 204);
    for gateway in [&one, &two] {
        let gone = gateway.call(&session, 4, "echo", &json!({})).send().await;
        assert_eq!(gone.unwrap().status(), 404);
    }
    assert!(two.count("lockgate_hops_total{outcome=\"ok\"}") >= 4);
    assert_eq!(one.count("lockgate_hops_total{outcome=\"ok\"}"), 0);
}

/// The replica in between kept them without counting them.
#[tokio::test]
async fn bodies_for_another_replica_take_the_share_of_their_caller() {
    let shared = Shared::new(&["http.max_body=256KiB", "limits.memory=2MiB"]);
    let (one, two) = (Gateway::start(&shared).await, Gateway::start(&shared).await);
    let session = one.open("2025-11-25").await;
    let large = json!({"text": "x".repeat(200 << 10)});
    let mut calls = JoinSet::new();
    for id in 0..8 {
        let call = two.call(&session, id, "hang", &large);
        calls.spawn(call.headers(json_alone()).send());
    }
    let refused = calls.join_next().await.unwrap().unwrap().unwrap();
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    let beyond = "lockgate_limited_total{limit=\"caller_memory\"}";
    assert!(two.count(beyond) >= 1, "{}", two.metrics.render());
    assert_eq!(one.count(beyond), 0);
    // They are given back with their calls.
    drop(calls);
    let again = || two.call(&session, 9, "echo", &large).send();
    let given_back = async { while again().await.unwrap().status() != 200 {} };
    timeout(Duration::from_secs(20), given_back).await.unwrap();
}

/// A client that takes 64 KiB of an answer before it reads it.
fn unread() -> reqwest::Client {
    let client = reqwest::Client::builder().http2_prior_knowledge();
    let client = client.http2_initial_stream_window_size(64 << 10);
    client.build().unwrap()
}

async fn until(is_so: impl Fn() -> bool) {
    let waiting = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(Duration::from_secs(20), waiting).await.unwrap();
}

/// The replica in between kept up to 16 MiB for each stream of a client that reads nothing, and counted none
/// of it.
#[tokio::test]
async fn answers_of_another_replica_take_the_share_of_their_caller_until_they_are_read() {
    let (one, mut two) = two().await;
    let session = one.open("2025-11-25").await;
    two.client = unread();
    let size = 512 << 10;
    for (id, accept) in (0..).zip(["application/json", "text/event-stream"]) {
        let call = two.call(&session, id, "big", &json!({"bytes": size}));
        let only = [(ACCEPT, HeaderValue::from_static(accept))];
        let answer = call.headers(only.into_iter().collect()).send().await;
        let answer = answer.unwrap();
        assert_eq!(answer.headers()["content-type"], accept);
        until(|| two.used() >= size).await;
        // It stays so when the owner has sent all of it.
        until(|| one.used() < size / 2).await;
        assert_eq!(one.hanging(&session).await, 0);
        assert!(two.used() >= size, "{accept}");
        let text = answer.text().await.unwrap();
        assert!(text.contains(&"b".repeat(512 << 10)));
        until(|| two.used() < size / 2).await;
    }
}

#[tokio::test]
async fn an_answer_beyond_the_share_of_its_caller_stays_at_the_owner_until_it_is_read() {
    let shared = Shared::new(&[]);
    let small = shared.with_little_memory();
    let (one, mut two) = (Gateway::start(&shared).await, Gateway::start(&small).await);
    let session = one.open("2025-11-25").await;
    two.client = unread();
    let size = 1536 << 10;
    let call = two.call(&session, 1, "big", &json!({"bytes": size}));
    let answer = call.headers(json_alone()).send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    let used = two.used();
    // With the window, which waits here.
    assert!(
        (SHARE - (24 << 10)..SHARE + PIECES).contains(&used),
        "{used}"
    );
    assert!(one.used() >= size);
    let text = answer.text().await.unwrap();
    assert!(text.contains(&"b".repeat(1536 << 10)));
    until(|| one.used() < SHARE && two.used() < SHARE / 2).await;
}

/// It waited for room that only its own end would give back.
#[tokio::test]
async fn an_event_beyond_the_share_of_its_caller_comes_late_and_whole() {
    let shared = Shared::new(&[]);
    let small = shared.with_little_memory();
    let (one, two) = (Gateway::start(&shared).await, Gateway::start(&small).await);
    let session = one.open("2025-11-25").await;
    let call = two.call(&session, 1, "big", &json!({"bytes": 1536 << 10}));
    let events_alone = [(ACCEPT, HeaderValue::from_static("text/event-stream"))];
    let call = call.headers(events_alone.into_iter().collect());
    let answer = call.send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    let text = timeout(Duration::from_secs(30), answer.text()).await;
    let text = text.expect("it still waits").unwrap();
    assert!(text.starts_with("data: ") || text.contains("\ndata: "));
    assert!(text.contains(&"b".repeat(1536 << 10)));
    until(|| two.used() < SHARE / 2).await;
}

/// What waits at the replica in between for clients that read nothing was in no budget.
#[tokio::test]
async fn streams_of_another_replica_take_the_share_of_their_caller() {
    let shared = Shared::new(&[]);
    let small = shared.with_little_memory();
    let (one, two) = (Gateway::start(&shared).await, Gateway::start(&small).await);
    let session = one.open("2025-06-18").await;
    let mut streams = Vec::new();
    let refused = loop {
        let id = u32::try_from(streams.len()).unwrap();
        let answer = two.call(&session, id, "hang", &json!({})).send().await;
        let answer = answer.unwrap();
        if answer.status() != StatusCode::OK {
            break answer;
        }
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        streams.push(answer);
        let window = u64::from(STREAM_WINDOW);
        assert!((streams.len() as u64) * window <= SHARE);
    };
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(refused.headers().contains_key("retry-after"));
    let refused: Value = refused.json().await.unwrap();
    assert_eq!(refused["id"], streams.len());
    // It was refused before its call was made.
    assert_eq!(one.hanging(&session).await, streams.len());
    // An answer as JSON may wait for its client, too.
    let call = two.call(&session, 50, "echo", &json!({"text": "hi"}));
    let call = call.headers(json_alone()).send().await.unwrap();
    assert_eq!(call.status(), StatusCode::SERVICE_UNAVAILABLE);
    // What its streams may wait for passes: a response, and the end of a call.
    let response = json!({"jsonrpc": "2.0", "id": 7, "result": {}});
    let params = json!({"requestId": 0});
    let cancelled =
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params});
    for message in [response, cancelled] {
        let answer = two.of(Method::POST, &session).json(&message).send().await;
        assert_eq!(answer.unwrap().status(), StatusCode::ACCEPTED, "{message}");
    }
    drop(streams);
    until(|| two.used() < u64::from(STREAM_WINDOW)).await;
}

/// As many calls as had room for their bodies had answers of 64 KiB here that were in no budget.
#[tokio::test]
async fn answers_as_json_of_another_replica_have_room_before_their_calls() {
    const CALLS: u32 = 20;
    let shared = Shared::new(&[]);
    let small = shared.with_little_memory();
    let (one, two) = (Gateway::start(&shared).await, Gateway::start(&small).await);
    let session = one.open("2025-11-25").await;
    let mut calls = JoinSet::new();
    for id in 0..CALLS {
        let call = two.call(&session, id, "hang", &json!({}));
        calls.spawn(call.headers(json_alone()).send());
    }
    let window = u64::from(STREAM_WINDOW);
    let most = SHARE / window;
    for _ in most..CALLS.into() {
        let refused = timeout(Duration::from_secs(20), calls.join_next()).await;
        let refused = refused.expect("it has room").unwrap().unwrap().unwrap();
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    }
    assert!(one.hanging(&session).await as u64 <= most);
    drop(calls);
    until(|| two.used() < window).await;
}

fn json_alone() -> HeaderMap {
    HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static("application/json"))])
}

/// Makes a replica that begins an event and never ends it the owner of a session, whose listener begins behind this
/// event, as it tells. It ends with the first message of HTTP+SSE.
async fn stalls(
    shared: &Shared,
    session: &str,
    begin: &'static [u8],
    behind: Option<&str>,
) -> CancellationToken {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address: Arc<str> = listener.local_addr().unwrap().to_string().into();
    let (stop, tracker) = (CancellationToken::new(), TaskTracker::new());
    let replicas = ReplicaKeys::new(keys());
    let me = replicas.replica(&address).unwrap();
    let cluster = Cluster::new(
        (me.clone(), replicas.clone()),
        HopKeys::new(keys()),
        Peers::new(replicas, tracker.clone(), stop.clone()),
        Clock::system(),
        [stop.clone(), stop.clone()],
    );
    let cluster = Arc::new(cluster);
    let prove = async move |request: Request| cluster.prove(&request).unwrap();
    let behind = behind.map(|id| HeaderValue::try_from(id).unwrap());
    let events = async move || {
        let begun = once(ready(Ok::<_, Infallible>(Bytes::from_static(begin))));
        let mut response = event_stream(Body::from_stream(begun.chain(pending())));
        if let Some(behind) = behind {
            response.headers_mut().insert(STREAM_BEGIN, behind);
        }
        response
    };
    let end = stop.clone();
    let dies = async move || {
        end.cancel();
        std::future::pending::<StatusCode>().await
    };
    let app = Router::new()
        .route("/", get(prove))
        .route(PATH, get(events))
        .route(MESSAGES, post(dies));
    let app = App::of_operators(app, ([0, 0, 0, 0], 0).into());
    let bounds = Bounds {
        connections: Connections::new(10),
        finish: Duration::ZERO,
        idle: KEEP_ALIVE,
    };
    let serving = accept::serve_replicas(listener, app, bounds, stop.clone(), tracker.clone());
    tracker.spawn(serving);
    let session = SessionId(session.into());
    shared.directory.beat(&me).await.unwrap();
    let found = shared.directory.find(&session).await.unwrap().unwrap();
    let directory = &shared.directory;
    let claimed = directory.claim(&session, &found.record, &me, ClaimFrom::Any);
    assert!(claimed.await.unwrap().is_some());
    stop
}

/// It was told to be sent again, and could be executed twice.
#[tokio::test]
async fn a_message_of_http_sse_that_may_have_been_executed_is_not_asked_for_again() {
    let shared = Shared::new(&[]);
    let (one, two) = (Gateway::start(&shared).await, Gateway::start(&shared).await);
    let session = one.open("2025-11-25").await;
    let _stop = stalls(&shared, &session, b"", None).await;
    let params = json!({"name": "echo", "arguments": {"text": "hi"}});
    let call = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params});
    let to = format!("{MESSAGES}?session_id={session}");
    let lost = two.ask(Method::POST, &to).json(&call).send().await;
    let lost = lost.unwrap();
    assert_eq!(lost.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(!lost.headers().contains_key("retry-after"));
    let lost: Value = lost.json().await.unwrap();
    assert_eq!(lost["id"], 7);
    assert_eq!(lost["error"]["code"], -31001);
    assert_eq!(lost["error"]["data"]["retryable"], false);
}

#[tokio::test]
async fn an_incomplete_event_of_another_replica_takes_the_share_of_its_caller_and_no_more() {
    static BEGIN: [u8; 1 << 20] = [b'x'; 1 << 20];
    let shared = Shared::new(&[]);
    let small = shared.with_little_memory();
    let (one, two) = (Gateway::start(&shared).await, Gateway::start(&small).await);
    let session = one.open("2025-11-25").await;
    let stop = stalls(&shared, &session, &BEGIN, None).await;
    let listener = two.of(Method::GET, &session).send().await.unwrap();
    assert_eq!(listener.status(), StatusCode::OK);
    until(|| two.used() > SHARE).await;
    // It grows no further, however long that is.
    for _ in 0..50 {
        two.ask(Method::GET, "/").send().await.unwrap();
        let used = two.used();
        assert!(used < SHARE + PIECES, "{used}");
    }
    drop(listener);
    until(|| two.used() < SHARE / 2).await;
    stop.cancel();
}

#[tokio::test]
async fn a_call_whose_owner_is_lost_ends_with_an_error() {
    let (mut one, two) = two().await;
    let session = one.open("2025-11-25").await;
    let batch = one.open("2025-03-26").await;
    // A response that is held for longer than it may would be answered over SSE.
    let hang = two.call(&session, 7, "hang", &json!({}));
    let hang = hang.headers(json_alone());
    let item = |id| {
        json!({"jsonrpc": "2.0", "id": id, "method": "tools/call",
        "params": {"name": "hang", "arguments": {}}})
    };
    let several = two.ask(Method::POST, PATH).header("mcp-session-id", &batch);
    let several = several.headers(json_alone());
    let several = several.json(&json!([item("a"), item("b")])).send();
    // Those that have not come to their owner yet would be made by another replica, and hang there.
    let kill = async {
        let have_come =
            async { while one.hanging(&session).await < 1 || one.hanging(&batch).await < 2 {} };
        timeout(Duration::from_secs(20), have_come).await.unwrap();
        one.kill().await;
    };
    let (hang, several, ()) = tokio::join!(hang.send(), several, kill);
    let answer = hang.unwrap();
    assert_eq!(answer.status(), 200);
    let answer: Value = answer.json().await.unwrap();
    assert_eq!(answer["id"], 7);
    assert_eq!(answer["error"]["code"], -31001);
    let data = json!({"reason": "owner_lost", "retryable": false});
    assert_eq!(answer["error"]["data"], data);
    let answer: Value = several.unwrap().json().await.unwrap();
    let ids: Vec<_> = answer
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["id"])
        .collect();
    assert_eq!(ids, ["a", "b"]);
    // The session continues on this replica.
    let next = two.call(&session, 8, "echo", &json!({"text": "hi"}));
    let next = next.headers(json_alone()).send();
    let next: Value = next.await.unwrap().json().await.unwrap();
    assert_eq!(next["result"]["content"][0]["text"], "hi");
}

#[tokio::test]
async fn a_stream_goes_on_when_its_owner_is_lost() {
    let (mut one, two) = two().await;
    let session = one.open("2025-11-25").await;
    let mut listener = Events::of(two.of(Method::GET, &session).send().await.unwrap());
    listener.next().await.unwrap();
    let slow = two.call(&session, 7, "slow", &json!({"n": 1000, "ms": 20}));
    let mut stream = Events::of(slow.send().await.unwrap());
    let mut events = Vec::new();
    for _ in 0..10 {
        events.push(stream.next().await.unwrap());
    }
    one.kill().await;
    events.extend(stream.rest().await);
    let (_, last) = events.last().unwrap();
    let last: Value = serde_json::from_str(last.as_ref().unwrap()).unwrap();
    assert_eq!(
        (&last["id"], &last["error"]["code"]),
        (&json!(7), &json!(-31001))
    );
    let ids = ids(&events);
    let mut once = ids.clone();
    once.sort();
    once.dedup();
    assert_eq!(once.len(), ids.len(), "no event comes twice");
    let progress: Vec<u64> = events
        .iter()
        .filter_map(|(_, data)| serde_json::from_str::<Value>(data.as_ref()?).ok())
        .filter_map(|data| data["params"]["progress"].as_u64())
        .collect();
    let wanted: Vec<u64> = (1..=progress.len() as u64).collect();
    assert_eq!(progress, wanted, "none is missing");
    // Messages of the next child arrive on the client's open connection.
    let notify = json!({"method": "notifications/prompts/list_changed", "params": {"hello": 1}});
    let sent = two.call(&session, 8, "notify", &notify).send().await;
    assert_eq!(sent.unwrap().status(), 200);
    loop {
        let (id, data) = listener.next().await.unwrap();
        assert!(id.is_some());
        if data.unwrap().contains("hello") {
            break;
        }
    }
    assert_eq!(two.count("lockgate_streams_spliced_total"), 2);
}

/// Sends a notification with this text on the listener.
async fn notify(gateway: &Gateway, session: &str, text: &str) {
    let notify = json!({"method": "notifications/prompts/list_changed", "params": {"said": text}});
    let sent = gateway.call(session, 8, "notify", &notify).send().await;
    assert_eq!(sent.unwrap().status(), 200);
}

/// Waits for such a notification; returns its id.
async fn heard(listener: &mut Events, text: &str) -> String {
    loop {
        let (id, data) = listener.next().await.unwrap();
        if data.unwrap().contains(text) {
            return id.unwrap();
        }
    }
}

/// A listener that had got nothing yet went on behind what its owner had given to the connection that broke.
#[tokio::test]
async fn a_listener_without_an_event_misses_none_when_its_owner_is_lost() {
    let shared = Shared::new(&[]);
    let (mut one, two) = (Gateway::start(&shared).await, Gateway::start(&shared).await);
    let session = one.open("2025-06-18").await;
    let mut direct = Events::of(one.of(Method::GET, &session).send().await.unwrap());
    assert!(!direct.response.headers().contains_key(STREAM_BEGIN));
    notify(&one, &session, "first").await;
    let first = heard(&mut direct, "first").await;
    notify(&one, &session, "second").await;
    heard(&mut direct, "second").await;
    drop(direct);
    one.kill().await;
    let stop = stalls(&shared, &session, b"", Some(&first)).await;
    let mut listener = Events::of(two.of(Method::GET, &session).send().await.unwrap());
    assert!(!listener.response.headers().contains_key(STREAM_BEGIN));
    stop.cancel();
    heard(&mut listener, "second").await;
}

/// The owner tells where the listener begins.
#[tokio::test]
async fn a_listener_without_an_event_goes_on_when_its_owner_is_lost() {
    let (mut one, two) = two().await;
    let session = one.open("2025-06-18").await;
    let mut listener = Events::of(two.of(Method::GET, &session).send().await.unwrap());
    assert!(!listener.response.headers().contains_key(STREAM_BEGIN));
    one.kill().await;
    // A call on the breaking connection may be lost.
    until(|| two.count("lockgate_streams_spliced_total") == 1).await;
    notify(&two, &session, "hello").await;
    heard(&mut listener, "hello").await;
}

/// It went on without one, and its client had no id by which to ask for what it missed.
#[tokio::test]
async fn a_listener_whose_owner_is_lost_before_its_first_event_begins_with_an_id() {
    let shared = Shared::new(&[]);
    let (mut one, two) = (Gateway::start(&shared).await, Gateway::start(&shared).await);
    let session = one.open("2025-11-25").await;
    let mut direct = Events::of(one.of(Method::GET, &session).send().await.unwrap());
    let (begin, _) = direct.next().await.unwrap();
    drop(direct);
    one.kill().await;
    let stop = stalls(&shared, &session, b"", begin.as_deref()).await;
    let mut listener = Events::of(two.of(Method::GET, &session).send().await.unwrap());
    stop.cancel();
    until(|| two.count("lockgate_streams_spliced_total") == 1).await;
    notify(&two, &session, "hello").await;
    let (id, data) = listener.next().await.unwrap();
    assert_eq!((id, data.as_deref()), (begin, Some("")));
    heard(&mut listener, "hello").await;
}

/// An owner of an earlier build does not tell where the listener begins, and the client has to see the break.
#[tokio::test]
async fn a_listener_whose_begin_is_unknown_ends_when_its_owner_is_lost() {
    let shared = Shared::new(&[]);
    let (one, two) = (Gateway::start(&shared).await, Gateway::start(&shared).await);
    let session = one.open("2025-06-18").await;
    let stop = stalls(&shared, &session, b"", None).await;
    let listener = two.of(Method::GET, &session).send().await.unwrap();
    stop.cancel();
    let text = listener.text().await.unwrap();
    assert!(text.contains("retry:"), "{text}");
}

#[tokio::test]
async fn a_stream_without_ids_ends_with_errors_when_its_owner_is_lost() {
    let (mut one, two) = two().await;
    let session = one.open("2025-06-18").await;
    let hang = two.call(&session, 7, "hang", &json!({}));
    let mut stream = Events::of(hang.send().await.unwrap());
    one.kill().await;
    let events = stream.rest().await;
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(events[0].0.as_deref(), None, "not resumable");
    assert!(events[0].1.as_ref().unwrap().contains("owner_lost"));
}

#[tokio::test]
async fn http_with_sse_goes_on_at_another_replica() {
    let (mut one, two) = two().await;
    let first = one.ask(Method::GET, "/t/a/main/sse").send().await.unwrap();
    let mut first = Events::of(first);
    let (id, endpoint) = first.next().await.unwrap();
    let endpoint = endpoint.unwrap();
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2024-11-05", "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"}}});
    let posted = two.ask(Method::POST, &endpoint).json(&message).send().await;
    assert_eq!(posted.unwrap().status(), 202);
    let (cursor, answer) = first.next().await.unwrap();
    assert!(answer.unwrap().contains("serverInfo"));
    drop(first);
    // Read again from the beginning, through the other replica.
    let again = two.ask(Method::GET, "/t/a/main/sse");
    let again = again.header("last-event-id", id.unwrap()).send().await;
    let mut again = Events::of(again.unwrap());
    assert_eq!(again.next().await.unwrap().1, Some(endpoint.clone()));
    assert_eq!(again.next().await.unwrap().0, cursor);
    one.kill().await;
    let message = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call",
        "params": {"name": "echo", "arguments": {"text": "hi"}}});
    // A message on the breaking connection may be lost, which gives a 503 (docs/replicas.md).
    for left in (0..5).rev() {
        let posted = two.ask(Method::POST, &endpoint).json(&message).send().await;
        let posted = posted.unwrap();
        let (status, text) = (posted.status(), posted.text().await.unwrap());
        if status == 202 {
            break;
        }
        assert!(status == 503 && left > 0, "{status} {text}");
    }
    // The next child is new and announces itself first.
    let session = endpoint.split_once("session_id=").unwrap().1;
    loop {
        let (id, answer) = again.next().await.unwrap();
        assert!(id.unwrap().starts_with(session));
        if answer.unwrap().contains("hi") {
            break;
        }
    }
}

/// Connections of strangers that were refused took all places, so that replicas that came later got none.
#[tokio::test]
async fn strangers_at_the_cluster_listener_keep_no_replica_out() {
    let (one, two) = two().await;
    let session = one.open("2025-11-25").await;
    let mut strangers = Vec::new();
    for _ in 0..3 * CONNECTIONS {
        let mut stranger = TcpStream::connect(&*one.me.address).await.unwrap();
        // It may be gone by then.
        let _ = stranger
            .write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            .await;
        strangers.push(stranger);
        if let Some(before) = strangers.len().checked_sub(CONNECTIONS / 2 + 1) {
            let mut text = String::new();
            let end = strangers[before].read_to_string(&mut text);
            let _ = timeout(Duration::from_secs(20), end)
                .await
                .expect("an older one stays");
        }
    }
    let mut head = [0; 12];
    let newest = strangers.last_mut().unwrap();
    newest.read_exact(&mut head).await.unwrap();
    assert_eq!(&head, b"HTTP/1.1 403");
    let call = two.call(&session, 1, "echo", &json!({"text": "hi"}));
    assert_eq!(call.send().await.unwrap().status(), 200);
    // That of the replica is none of theirs.
    for _ in 0..CONNECTIONS {
        strangers.push(TcpStream::connect(&*one.me.address).await.unwrap());
    }
    let call = two.call(&session, 2, "echo", &json!({"text": "hi"}));
    assert_eq!(call.send().await.unwrap().status(), 200);
    assert_eq!(two.count("lockgate_hops_total{outcome=\"ok\"}"), 2);
}

/// The header of a hop that replica `cccc` sends with a POST to a session.
fn signed_hop(to: &Replica, session: &str, number: u64, body: &str) -> String {
    let caller =
        r#"{"issuer":null,"subject":null,"client":null,"scopes":[],"groups":[],"basis":"Open"}"#;
    let hop = Hop {
        target: Arc::clone(&to.boot),
        sender: "cccc".into(),
        number,
        client: None,
        caller: URL_SAFE_NO_PAD.encode(caller),
        body: sha256(body.as_bytes()),
    };
    let mut headers = HeaderMap::new();
    headers.insert("mcp-session-id", session.parse().unwrap());
    headers.insert("content-type", "application/json".parse().unwrap());
    headers.insert("accept", "*/*".parse().unwrap());
    let asked = SignedRequest {
        method: &Method::POST,
        target: PATH,
        headers: &headers,
    };
    let signed = HopKeys::new(keys()).sign(&hop, asked, Clock::system().now_ms());
    signed.unwrap().to_str().unwrap().to_owned()
}

#[tokio::test]
async fn only_replicas_may_use_the_cluster_listener() {
    let (one, two) = two().await;
    let session = one.open("2025-11-25").await;
    let client = reqwest::Client::builder().http2_prior_knowledge().build();
    let client = client.unwrap();
    let post = |to: &Replica, path: &str, hop: Option<&str>, body: &'static str| {
        let request = client.post(format!("http://{}{path}", to.address));
        let request = request.header("mcp-session-id", &session).body(body);
        let request = request.header("content-type", "application/json");
        match hop {
            Some(hop) => request.header("lockgate-hop", hop).send(),
            None => request.send(),
        }
    };
    for path in [
        PATH,
        "/t/a/main/sse",
        "/livez",
        "/metrics",
        "/api/v1/tenants",
    ] {
        let refused = post(&one.me, path, None, "{}").await.unwrap();
        assert_eq!(refused.status(), StatusCode::FORBIDDEN, "{path}");
    }
    let hop = |to: &Replica, number| signed_hop(to, &session, number, "{}");
    let status = async |to: &Replica, path: &str, hop: &str, body: &'static str| {
        let answer = post(to, path, Some(hop), body).await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    };
    let is_status = async |to: &Replica, path: &str, hop: &str, wanted: u16| {
        let (status, text) = status(to, path, hop, "{}").await;
        assert_eq!(status, wanted, "{path} {text}");
    };
    let for_one = hop(&one.me, 0);
    is_status(&one.me, "/t/a/main/messages", &for_one, 403).await;
    is_status(&one.me, PATH, &hop(&two.me, 0), 403).await;
    is_status(&one.me, PATH, &for_one.replace("cccc", "dddd"), 403).await;
    // The message is none, which shows that the request has reached a route; but only once.
    is_status(&one.me, PATH, &for_one, 400).await;
    is_status(&one.me, PATH, &for_one, 403).await;
    is_status(&one.me, PATH, &hop(&one.me, 1), 400).await;
    let (status, text) = status(&one.me, PATH, &hop(&one.me, 2), "[]").await;
    assert_eq!(status, 400);
    assert!(text.contains("the body ends early"), "another body: {text}");
    let for_two = hop(&two.me, 3);
    // A replica that is not the owner refuses the request before it reads the body, and never
    // forwards it.
    is_status(&two.me, PATH, &for_two, 421).await;
    assert_eq!(two.count("lockgate_hops_total{outcome=\"ok\"}"), 0);
    // The public listener refuses the header, valid or not.
    for hop in [for_one.as_str(), "", "x"] {
        let asked = one.call(&session, 1, "echo", &json!({}));
        let refused = asked.header("lockgate-hop", hop).send().await.unwrap();
        assert_eq!(refused.status(), StatusCode::FORBIDDEN);
    }
}

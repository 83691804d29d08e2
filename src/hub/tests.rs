//! Tests of the hub with real children, below HTTP: principals and restarts.

use std::{
    collections::BTreeMap,
    future::poll_fn,
    path::PathBuf,
    pin::{Pin, pin},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    task::Poll,
    time::Duration,
};

use aws_lc_rs::rand::SystemRandom;
use futures_util::FutureExt;
use serde_json::{Value, json};
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Answer, Form, Hub, HubParts, Stores, Transport,
    core::{Command, Delivery, Handle},
    ownership::{LookupSource, Place, ReplicaLease},
    stateless::{Begun, CallInFlight, Caller, Stateless, Subscribed},
    stream::{Next, Reader},
    tasks::{Task, TaskPlace, Tasks},
};
use crate::base::{
    MacKeys, Secret,
    budget::{Descriptors, LargeWork},
};
use crate::{
    auth::Access,
    backend::{
        Occasion,
        child::{Ambient, Holders, Launcher, Restart, Wanted, Zygote},
        sandbox::Sandbox,
    },
    config::{Config, Format, Sources, gateway},
    declare::{Catalog, SecretChange, Server, Tenant},
    error::Error,
    manifest::reader,
    protocol::{Body, EventKey, Kind, Message, Method, modern::Filter},
    snapshot::{AuditQueue, CurrentSnapshot},
    state::{
        BoxFuture, ClaimFrom, Claimed, Directory, Fence, Found, Heartbeat, Record, Replica,
        ReplicaKeys, SessionId, StoreError, memory::MemoryDirectory,
    },
    telemetry::{Metrics, Traces},
};

fn initialize(name: &str) -> Message {
    initialize_in("2025-11-25", name)
}

fn initialize_in(revision: &str, name: &str) -> Message {
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": revision, "capabilities": {},
        "clientInfo": {"name": name, "version": "1"}}});
    Message::parse(message.to_string().into()).unwrap()
}

fn built(name: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap();
    own.parent().unwrap().parent().unwrap().join(name)
}

/// A hub with one tenant and one server, `main`, that runs the hostile child.
struct Bench {
    hub: Hub,
    tenant: Arc<Tenant>,
    server: Arc<Server>,
    drain: CancellationToken,
    halt: CancellationToken,
    tracker: TaskTracker,
    _work: tempfile::TempDir,
}

impl Bench {
    fn new(keys: &Value) -> Self {
        Self::over(keys, |_| {})
    }

    /// The same with other stores.
    fn over(keys: &Value, change: impl FnOnce(&mut Stores)) -> Self {
        Self::of(keys, CurrentSnapshot::empty(), change)
    }

    /// The same, with what requests read of the database.
    fn of(keys: &Value, snapshot: Arc<CurrentSnapshot>, change: impl FnOnce(&mut Stores)) -> Self {
        Self::made(keys, snapshot, |_, stores| change(stores))
    }

    /// The same with another configuration, too.
    fn made(
        keys: &Value,
        snapshot: Arc<CurrentSnapshot>,
        change: impl FnOnce(&mut Config, &mut Stores),
    ) -> Self {
        let mut server = json!({"command": built("examples/child")});
        for (key, value) in keys.as_object().unwrap() {
            server[key] = value.clone();
        }
        let manifest = json!({"version": 1, "tenants": {"a": {"auth": {"mode": "none"},
            "servers": {"main": server}}}});
        let manifest = reader::parse("F", &manifest.to_string(), Format::Json, &BTreeMap::new());
        let (tenant, server) = manifest.unwrap().catalog.find("a", "main").unwrap();
        let work = tempfile::tempdir().unwrap();
        let launcher = Launcher {
            zygote: Arc::new(Zygote::new(built("lockgate"))),
            ambient: Ambient {
                cwd: "/".into(),
                ..Ambient::default()
            },
            work: work.path().into(),
            prepared: work.path().join("prepared"),
            sandbox: Arc::new(Sandbox::none()),
            descriptors: Descriptors::new(10_000),
        };
        let (halt, tracker) = (CancellationToken::new(), TaskTracker::new());
        let sources = Sources {
            run: true,
            ..Sources::default()
        };
        let mut config = Config::load(&sources).unwrap();
        let mut stores = Stores::in_memory(&config, &SystemRandom::new()).unwrap();
        change(&mut config, &mut stores);
        let drain = CancellationToken::new();
        let hub = Hub::new(HubParts {
            stores,
            config: Arc::new(config),
            random: Arc::new(SystemRandom::new()),
            launcher,
            snapshot,
            audit: AuditQueue::disabled(),
            tokens: Arc::new(|_, _| Box::pin(async { Err(crate::backend::Refused::Missing) })),
            metrics: Arc::new(Metrics::new(None).unwrap()),
            traces: Traces::default(),
            drain: drain.clone(),
            halt: halt.clone(),
            tracker: tracker.clone(),
        });
        Self {
            hub,
            tenant,
            server,
            drain,
            halt,
            tracker,
            _work: work,
        }
    }

    fn access(&self, subject: &str) -> Access {
        Access::of(&self.tenant, &self.server, subject)
    }

    async fn open(&self, subject: &str) -> Client<'_> {
        self.open_with(subject, initialize(subject)).await
    }

    async fn open_with(&self, subject: &str, message: Message) -> Client<'_> {
        let access = self.access(subject);
        let opened = self
            .hub
            .begin_with(&access, Transport::Streamable, message, Form::Json, None)
            .await;
        let (id, _, pending) = opened.unwrap();
        assert!(matches!(pending.answer().await, Answer::Json(_)));
        Client {
            bench: self,
            access,
            id,
        }
    }

    async fn end(self) {
        self.halt.cancel();
        self.tracker.close();
        let ended = tokio::time::timeout(Duration::from_secs(20), self.tracker.wait()).await;
        ended.expect("tasks that do not end");
    }
}

struct Client<'b> {
    bench: &'b Bench,
    access: Access,
    id: SessionId,
}

impl Client<'_> {
    async fn call(&self, tool: &str, args: &Value) -> Value {
        self.call_as(&self.access, tool, args).await.unwrap()
    }

    async fn call_as(&self, access: &Access, tool: &str, args: &Value) -> Result<Value, Error> {
        let params = json!({"name": tool, "arguments": args, "_meta": {"progressToken": 1}});
        self.ask_as(access, "tools/call", &params).await
    }

    async fn ask(&self, method: &str, params: &Value) -> Value {
        self.ask_as(&self.access, method, params).await.unwrap()
    }

    async fn ask_as(&self, access: &Access, method: &str, params: &Value) -> Result<Value, Error> {
        let message = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let body = Body::parse(message.to_string().into()).unwrap();
        let hub = &self.bench.hub;
        let id = self.id.as_str();
        let pending = hub
            .deliver(
                access,
                Transport::Streamable,
                id,
                body,
                Form::Json,
                (None, None),
            )
            .await?;
        let answer = tokio::time::timeout(Duration::from_secs(20), pending.answer()).await;
        match answer.expect("no answer") {
            Answer::Json(line) => Ok(serde_json::from_slice(&line).unwrap()),
            Answer::Refused(error) => Err(error),
            _ => panic!("another answer"),
        }
    }

    /// Sends a notification.
    async fn tell(&self, method: &str) -> Answer {
        let message = json!({"jsonrpc": "2.0", "method": method});
        self.send(&message).await
    }

    /// Sends a body; its first answer.
    async fn send(&self, body: &Value) -> Answer {
        let body = Body::parse(body.to_string().into()).unwrap();
        let (hub, by, id) = (&self.bench.hub, Transport::Streamable, self.id.as_str());
        let told = hub.deliver(&self.access, by, id, body, Form::Json, (None, None));
        told.await.unwrap().answer().await
    }

    async fn pid(&self) -> u64 {
        let answer = self.call("whoami", &json!({})).await;
        let who = answer["result"]["content"][0]["text"]
            .as_str()
            .unwrap()
            .to_owned();
        serde_json::from_str::<Value>(&who).unwrap()["pid"]
            .as_u64()
            .unwrap()
    }
}

/// What a child says at length is looked at in a turn of its tenant, as a shared child and as a session's own, and
/// as one without sessions, for which calls are translated as well.
#[tokio::test]
async fn a_large_answer_waits_for_a_turn_and_a_small_one_does_not() {
    for (isolation, era) in [
        ("session", "legacy"),
        ("tenant", "legacy"),
        ("session", "modern"),
    ] {
        let bench = Bench::new(&json!({"isolation": isolation, "env": {"ECHO_ERA": era}}));
        let client = bench.open("ada").await;
        let held = LargeWork::all_turns().await;
        client.pid().await;
        let bytes = json!({"bytes": 1 << 20});
        let mut large = Box::pin(client.call("big", &bytes));
        let patience = Duration::from_millis(500);
        let early = tokio::time::timeout(patience, &mut large).await;
        assert!(early.is_err(), "{isolation}: answered without a turn");
        drop(held);
        let text = large.await["result"]["content"][0]["text"].take();
        assert_eq!(text.as_str().map(str::len), Some(1 << 20), "{isolation}");
        let held = LargeWork::all_turns().await;
        let call = json!({"text": "x".repeat(1 << 20)});
        let mut large = Box::pin(client.call("echo", &call));
        let early = tokio::time::timeout(patience, &mut large).await;
        assert!(early.is_err(), "{isolation}: answered without a turn");
        drop(held);
        let text = large.await["result"]["content"][0]["text"].take();
        assert_eq!(text, call["text"], "{isolation}");
        drop(client);
        bench.end().await;
    }
}

#[tokio::test]
async fn principals_share_a_tenants_child_and_none_of_each_others() {
    for (isolation, is_shared) in [("tenant", true), ("principal", false), ("session", false)] {
        let bench = Bench::new(&json!({"isolation": isolation}));
        let (ada, bob) = (bench.open("ada").await, bench.open("bob").await);
        assert_eq!(ada.pid().await == bob.pid().await, is_shared, "{isolation}");
        let again = bench.open("ada").await;
        let is_own = isolation == "session";
        assert_eq!(again.pid().await != ada.pid().await, is_own, "{isolation}");
        // Another principal cannot use the session.
        let stolen = ada.call_as(&bench.access("bob"), "echo", &json!({})).await;
        assert!(matches!(stolen, Err(Error::NoSession)), "{stolen:?}");
        bench.end().await;
    }
}

#[tokio::test]
async fn two_principals_with_the_same_ids_get_their_own() {
    let bench = Bench::new(&json!({"isolation": "tenant"}));
    let (ada, bob) = (bench.open("ada").await, bench.open("bob").await);
    let rounds = async |client: &Client<'_>, name: &str| {
        for round in 0..200 {
            let text = format!("{name}-{round}");
            let answer = client.call("echo", &json!({"text": text})).await;
            assert_eq!(answer["result"]["content"][0]["text"], text);
        }
    };
    tokio::join!(rounds(&ada, "ada"), rounds(&bob, "bob"));
    bench.end().await;
}

/// 660,000 events a second were read, for clients that took none of them, while another tenant waited.
#[tokio::test]
async fn a_child_whose_events_nobody_takes_is_read_at_the_pace_of_its_caller() {
    let bench = Bench::new(&json!({}));
    let ada = bench.open("ada").await;
    // Others of the same caller have had all that it may have for a while.
    let caller = bench.hub.limits().memory().caller(&ada.access);
    let until = caller.pace(Duration::from_secs(2));
    let answer = ada.call("flood", &json!({"n": 200})).await;
    assert_eq!(answer["result"]["content"][0]["text"], "started");
    let metrics = &bench.hub.0.metrics;
    let is_read = |events: u64| {
        let (shown, name) = (metrics.render(), "lockgate_events_total ");
        let shown = shown.lines().find_map(|line| line.strip_prefix(name));
        shown.is_some_and(|shown| shown.parse::<u64>().unwrap() >= events)
    };
    let mut clock = tokio::time::interval(Duration::from_millis(5));
    // 64 without a pause, and as many as are paid for at once.
    while !is_read(80) {
        clock.tick().await;
    }
    assert!(Instant::now() < until, "too slow to tell");
    while !is_read(200) {
        clock.tick().await;
    }
    assert!(Instant::now() >= until);
    bench.end().await;
}

/// Restarts the children of a server as a change that the database has; returns their number.
fn restart(bench: &Bench, server: &str, how: Restart) -> usize {
    let count = bench.hub.child_count("a", server);
    let change = SecretChange {
        tenant: "a".to_owned(),
        server: server.to_owned(),
        is_now: how == Restart::Now,
        ..SecretChange::default()
    };
    bench.hub.0.pool.registry.secret_changed(1, &change);
    count
}

#[tokio::test]
async fn a_restart_waits_for_calls_or_ends_them() {
    for isolation in ["session", "tenant"] {
        let bench = Bench::new(&json!({"isolation": isolation}));
        let ada = bench.open("ada").await;
        let first = ada.pid().await;
        let slept = async {
            let answer = ada.call("sleep", &json!({"ms": 400})).await;
            assert_eq!(
                answer["result"]["content"][0]["text"], "slept",
                "{isolation}"
            );
        };
        let told = async {
            busy(&bench).await;
            assert_eq!(restart(&bench, "main", Restart::Drain), 1);
        };
        tokio::join!(slept, told);
        let second = other_than(&ada, first).await;
        let cut = async {
            let answer = ada.call("hang", &json!({})).await;
            assert_eq!(answer["error"]["code"], -31001, "{isolation} {answer}");
        };
        let told = async {
            busy(&bench).await;
            assert!(restart(&bench, "main", Restart::Now) > 0);
        };
        tokio::join!(cut, told);
        other_than(&ada, second).await;
        assert_eq!(restart(&bench, "none", Restart::Now), 0);
        bench.end().await;
    }
}

/// Principals of a tenant share a child, but no page cursor.
#[tokio::test]
async fn a_page_cursor_belongs_to_its_principal() {
    let bench = Bench::new(&json!({"isolation": "tenant"}));
    let (ada, bob) = (bench.open("ada").await, bench.open("bob").await);
    let list = ada.ask("tools/list", &json!({})).await;
    let cursor = json!({"cursor": list["result"]["nextCursor"]});
    assert!(ada.ask("tools/list", &cursor).await["result"].is_object());
    let stolen = bob.ask("tools/list", &cursor).await;
    assert_eq!(stolen["error"]["code"], -32602, "{stolen}");
    bench.end().await;
}

/// A directory whose records are written while `gate` is open, as one of several replicas has it.
#[derive(Default)]
struct Gated {
    records: MemoryDirectory,
    gate: tokio::sync::RwLock<()>,
    /// Told of each write and of each claim.
    asked: tokio::sync::Notify,
    /// The epoch, behind that of the records.
    epoch: AtomicU32,
    /// The number of look-ups.
    found: AtomicU32,
    /// The number of insertions.
    inserted: AtomicU32,
    /// Whether it does not answer, and has lost what it is to keep.
    is_away: AtomicBool,
    /// Whether no owner has a heartbeat.
    is_silent: AtomicBool,
}

impl Directory for Gated {
    fn beat<'a>(&'a self, replica: &'a Replica) -> BoxFuture<'a, Result<Heartbeat, StoreError>> {
        Box::pin(async move {
            let mut beat = self.records.beat(replica).await?;
            beat.epoch += self.epoch.load(Ordering::Relaxed);
            Ok(beat)
        })
    }

    fn open(&self) -> BoxFuture<'_, Result<Vec<Replica>, StoreError>> {
        self.records.open()
    }

    fn heartbeat_age<'a>(
        &'a self,
        replica: &'a Replica,
    ) -> BoxFuture<'a, Result<Option<Duration>, StoreError>> {
        self.records.heartbeat_age(replica)
    }

    fn close<'a>(&'a self, replica: &'a Replica) -> BoxFuture<'a, ()> {
        self.records.close(replica)
    }

    fn leave<'a>(&'a self, replica: &'a Replica) -> BoxFuture<'a, ()> {
        self.records.leave(replica)
    }

    fn insert<'a>(
        &'a self,
        session: &'a SessionId,
        record: Record,
        epoch: u32,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        if self.is_away.load(Ordering::Relaxed) {
            return Box::pin(std::future::ready(Err(StoreError::Away)));
        }
        self.inserted.fetch_add(1, Ordering::Relaxed);
        self.records.insert(session, record, epoch)
    }

    fn find<'a>(
        &'a self,
        session: &'a SessionId,
    ) -> BoxFuture<'a, Result<Option<Found>, StoreError>> {
        self.found.fetch_add(1, Ordering::Relaxed);
        if self.is_away.load(Ordering::Relaxed) {
            return Box::pin(std::future::ready(Err(StoreError::Away)));
        }
        Box::pin(async move {
            let mut found = self.records.find(session).await?;
            if let Some(found) = found.as_mut()
                && self.is_silent.load(Ordering::Relaxed)
            {
                found.heartbeat_age = None;
            }
            Ok(found)
        })
    }

    fn claim<'a>(
        &'a self,
        session: &'a SessionId,
        seen: &'a Record,
        me: &'a Replica,
        from: ClaimFrom,
    ) -> BoxFuture<'a, Result<Option<Claimed>, StoreError>> {
        Box::pin(async move {
            self.asked.notify_one();
            drop(self.gate.read().await);
            let from = if self.is_silent.load(Ordering::Relaxed) {
                ClaimFrom::Any
            } else {
                from
            };
            self.records.claim(session, seen, me, from).await
        })
    }

    fn keep<'a>(
        &'a self,
        session: &'a SessionId,
        fence: Fence,
        kept: Option<bytes::Bytes>,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            self.asked.notify_one();
            drop(self.gate.read().await);
            if self.is_away.load(Ordering::Relaxed) {
                return Err(StoreError::Flushed);
            }
            self.records.keep(session, fence, kept).await
        })
    }

    fn release<'a>(
        &'a self,
        session: &'a SessionId,
        fence: Fence,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        self.records.release(session, fence)
    }

    fn remove<'a>(
        &'a self,
        session: &'a SessionId,
        fence: Fence,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        self.records.remove(session, fence)
    }
}

/// A replica of several with a directory of its own.
async fn replica() -> (Arc<Gated>, Arc<ReplicaLease>) {
    let directory = Arc::new(Gated::default());
    let owner = replica_of(&directory, "a").await;
    (directory, owner)
}

/// A replica of several that share this directory.
async fn replica_of(directory: &Arc<Gated>, boot: &str) -> Arc<ReplicaLease> {
    let me = Replica {
        address: format!("{boot}:1").into(),
        boot: boot.into(),
    };
    let keys = ReplicaKeys::new(MacKeys::new([]));
    let owner = Arc::new(ReplicaLease::new(me, keys, Arc::clone(directory) as _));
    owner.beat().await.unwrap();
    owner
}

/// Waits until the response waits for its record, and not for an earlier one.
async fn until_written(directory: &Gated, asked: &mut Pin<Box<impl Future<Output = Value>>>) {
    let _ = futures_util::poll!(pin!(directory.asked.notified()));
    tokio::select! {
        answer = asked => panic!("before it is written: {answer}"),
        () = directory.asked.notified() => {}
    }
}

/// The client took the session for deleted, which went on at another replica.
#[tokio::test]
async fn a_deletion_that_its_owner_did_not_get_to_is_no_404() {
    let (directory, owner) = replica().await;
    let bench = Bench::over(&json!({}), |stores| {
        stores.directory = Arc::clone(&directory) as _;
        stores.owner = Arc::clone(&owner);
    });
    let client = bench.open("ada").await;
    // Its task has not run since.
    bench.halt.cancel();
    let ended = bench.hub.end(&client.access, client.id.as_str()).await;
    assert!(matches!(ended, Err(Error::Moved)), "{ended:?}");
    assert!(directory.find(&client.id).await.unwrap().is_some());
    bench.end().await;
}

/// A call that came behind the end of its session reached the child, and was lost with it.
#[tokio::test]
async fn a_call_behind_the_end_of_its_session_is_refused() {
    let bench = Bench::new(&json!({}));
    let client = bench.open("ada").await;
    let handle = bench.hub.0.sessions.get(&client.id).unwrap();
    let (done, ended) = oneshot::channel();
    assert!(handle.commands.try_send(Command::End(done)).is_ok());
    // Its task has not run since.
    let called = client.call_as(&client.access, "echo", &json!({})).await;
    assert!(matches!(called, Err(Error::NoSession)), "{called:?}");
    assert!(matches!(ended.await, Ok(Ok(()))));
    bench.end().await;
}

/// The session ended at the response, which was refused, and no other replica learned of the level.
#[tokio::test]
async fn a_session_that_drains_first_writes_what_its_last_call_changed() {
    let (directory, owner) = replica().await;
    let bench = Bench::over(&json!({}), |stores| {
        stores.directory = Arc::clone(&directory) as _;
        stores.owner = Arc::clone(&owner);
    });
    let beats = Arc::clone(&owner).run(|_| {}, bench.halt.clone());
    bench.tracker.spawn(beats);
    let client = bench.open("ada").await;
    let gate = directory.gate.write().await;
    let level = json!({"level": "error"});
    let mut asked = Box::pin(client.ask("logging/setLevel", &level));
    until_written(&directory, &mut asked).await;
    bench.drain.cancel();
    let early = tokio::time::timeout(Duration::from_millis(500), &mut asked).await;
    assert!(early.is_err(), "before it is written: {early:?}");
    drop(gate);
    let answer = asked.await;
    assert!(answer["result"].is_object(), "{answer}");
    let found = directory.find(&client.id).await.unwrap().unwrap();
    let record = String::from_utf8(found.record.kept.to_vec()).unwrap();
    assert!(record.contains(r#""level":"error""#), "{record}");
    bench.end().await;
}

/// It was refused as one that no server has seen.
#[tokio::test]
async fn a_response_that_waits_for_the_record_is_no_refusal_when_the_session_ends() {
    let (directory, owner) = replica().await;
    let bench = Bench::over(&json!({}), |stores| {
        stores.directory = Arc::clone(&directory) as _;
        stores.owner = Arc::clone(&owner);
    });
    let client = bench.open("ada").await;
    let gate = directory.gate.write().await;
    let level = json!({"level": "error"});
    let mut asked = Box::pin(client.ask("logging/setLevel", &level));
    until_written(&directory, &mut asked).await;
    bench.halt.cancel();
    let answer = asked.await;
    assert_eq!(answer["id"], 1, "{answer}");
    assert_eq!(answer["error"]["code"], -31001, "{answer}");
    assert_eq!(answer["error"]["data"]["reason"], "owner_lost", "{answer}");
    drop(gate);
    bench.end().await;
}

/// It was replaced by an error that a next owner would have given, where there is none.
#[tokio::test]
async fn a_response_that_waits_for_the_record_is_given_when_the_session_is_deleted() {
    let (directory, owner) = replica().await;
    let bench = Bench::over(&json!({}), |stores| {
        stores.directory = Arc::clone(&directory) as _;
        stores.owner = Arc::clone(&owner);
    });
    let client = bench.open("ada").await;
    let gate = directory.gate.write().await;
    let level = json!({"level": "error"});
    let mut asked = Box::pin(client.ask("logging/setLevel", &level));
    until_written(&directory, &mut asked).await;
    let ended = bench.hub.end(&client.access, client.id.as_str());
    let (answer, ended) = tokio::join!(asked, ended);
    assert!(ended.is_ok(), "{ended:?}");
    assert!(answer["result"].is_object(), "{answer}");
    drop(gate);
    bench.end().await;
}

/// It was 404, which clients of HTTP+SSE take for the end.
#[tokio::test]
async fn a_connection_that_the_store_does_not_take_is_to_come_again() {
    let (directory, owner) = replica().await;
    let bench = Bench::over(&json!({}), |stores| {
        stores.directory = Arc::clone(&directory) as _;
        stores.owner = Arc::clone(&owner);
    });
    let beats = Arc::clone(&owner).run(|_| {}, bench.halt.clone());
    bench.tracker.spawn(beats);
    let access = bench.access("ada");
    directory.is_away.store(true, Ordering::Relaxed);
    let refused = bench.hub.connect(&access).await.err();
    assert!(matches!(refused, Some(Error::Busy { .. })), "{refused:?}");
    let sessions = &bench.hub.0.sessions;
    assert!(sessions.all().is_empty(), "nothing is left of it");
    directory.is_away.store(false, Ordering::Relaxed);
    let (id, _reader) = bench.hub.connect(&access).await.unwrap();
    assert!(sessions.has(id.as_str()), "messages find it");
    bench.end().await;
}

/// Reads so many results from a listener.
async fn results(reader: &mut Reader, mut count: usize) {
    while count > 0 {
        let next = tokio::time::timeout(Duration::from_secs(20), reader.next()).await;
        let Next::Events(events) = next.expect("no event") else {
            panic!("the listener has ended");
        };
        let messages = events.into_iter().map(|(_, event)| Message::parse(event));
        let is_result = |message: &Message| message.kind() == Kind::Result;
        count -= messages.map(Result::unwrap).filter(is_result).count();
    }
}

/// Its replica was lost before the record had the revision, and the next one removed the session.
#[tokio::test]
async fn the_result_of_initialize_over_http_sse_waits_for_the_record() {
    let (directory, owner) = replica().await;
    let bench = Bench::over(&json!({}), |stores| {
        stores.directory = Arc::clone(&directory) as _;
        stores.owner = Arc::clone(&owner);
    });
    let beats = Arc::clone(&owner).run(|_| {}, bench.halt.clone());
    bench.tracker.spawn(beats);
    let access = bench.access("ada");
    let (id, mut reader) = bench.hub.connect(&access).await.unwrap();
    let gate = directory.gate.write().await;
    let _ = futures_util::poll!(pin!(directory.asked.notified()));
    let (by, body) = (
        Transport::Sse2024,
        Body::One(initialize_in("2024-11-05", "ada")),
    );
    let posted = bench
        .hub
        .deliver(&access, by, id.as_str(), body, Form::Sse, (None, None));
    let begun = posted.await.unwrap().answer().await;
    assert!(matches!(begun, Answer::Accepted));
    let mut result = Box::pin(results(&mut reader, 1));
    tokio::select! {
        () = &mut result => panic!("before it is written"),
        () = directory.asked.notified() => {}
    }
    let early = tokio::time::timeout(Duration::from_millis(500), &mut result).await;
    assert!(early.is_err(), "before it is written");
    drop(gate);
    result.await;
    let found = directory.find(&id).await.unwrap().unwrap();
    let record = String::from_utf8(found.record.kept.to_vec()).unwrap();
    assert!(record.contains(r#""revision":"2024-11-05""#), "{record}");
    bench.end().await;
}

/// They were in no count: a client had any number of them, each of them with the ids of all others in the log.
#[tokio::test]
async fn responses_that_wait_for_the_record_are_open_calls_of_their_session() {
    let (directory, owner) = replica().await;
    let bench = Bench::over(&json!({}), |stores| {
        stores.directory = Arc::clone(&directory) as _;
        stores.owner = Arc::clone(&owner);
    });
    let beats = Arc::clone(&owner).run(|_| {}, bench.halt.clone());
    bench.tracker.spawn(beats);
    let access = bench.access("ada");
    let (id, mut reader) = bench.hub.connect(&access).await.unwrap();
    let post = async |message: Message| {
        let (by, body) = (Transport::Sse2024, Body::One(message));
        let hub = &bench.hub;
        let posted = hub.deliver(&access, by, id.as_str(), body, Form::Sse, (None, None));
        posted.await.unwrap().answer().await
    };
    let begun = post(initialize_in("2024-11-05", "ada")).await;
    assert!(matches!(begun, Answer::Accepted));
    results(&mut reader, 1).await;
    let level = |id: usize| {
        let message = json!({"jsonrpc": "2.0", "id": id, "method": "logging/setLevel",
            "params": {"level": "error"}});
        Message::parse(message.to_string().into()).unwrap()
    };
    let most = bench.hub.0.config.stream.per_session;
    let gate = directory.gate.write().await;
    for id in 0..most {
        assert!(matches!(post(level(id)).await, Answer::Accepted), "{id}");
    }
    let answered = async {
        while bench.hub.children().iter().any(|child| child.calls > 0) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let answered = tokio::time::timeout(Duration::from_secs(20), answered).await;
    assert!(answered.is_ok(), "the child has answered all of them");
    let refused = post(level(most)).await;
    assert!(matches!(refused, Answer::Refused(Error::Limit { .. })));
    drop(gate);
    results(&mut reader, most).await;
    assert!(matches!(post(level(most)).await, Answer::Accepted));
    bench.end().await;
}

/// A child says what it likes in `initialize`, and sessions keep it.
#[tokio::test]
async fn a_server_with_too_many_capabilities_is_not_used() {
    let script = r#"
        read -r line
        id=$(printf %s "$line" | sed 's/.*"id":\([0-9]*\).*/\1/')
        if [ -e "$MARK" ]; then
            long=$(head -c "$BYTES" /dev/zero | tr '\0' x)
            case "$PLACE" in
                capabilities) more=",\"more\":{\"x\":\"$long\"}" ;;
                *) text=",\"$PLACE\":\"$long\"" ;;
            esac
        fi
        touch "$MARK"
        printf '{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}%s},"serverInfo":{"name":"s","version":"1"}%s}}\n' "$id" "$more" "$text"
        cat > /dev/null
    "#;
    for (isolation, place, bytes, is_used) in [
        ("session", "capabilities", 64_000, true),
        ("session", "capabilities", 66_000, false),
        ("session", "instructions", 260_000, true),
        ("session", "instructions", 263_000, false),
        ("tenant", "capabilities", 64_000, true),
        ("tenant", "capabilities", 66_000, false),
        ("tenant", "instructions", 260_000, true),
        ("tenant", "instructions", 263_000, false),
    ] {
        let marks = tempfile::tempdir().unwrap();
        let mark = marks.path().join("started");
        let bench = Bench::new(&json!({
            "isolation": isolation, "command": "/bin/sh", "args": ["-c", script.replace('$', "$$")],
            "env": {"MARK": mark, "PLACE": place, "BYTES": bytes.to_string(), "PATH": "/usr/bin:/bin"},
        }));
        // The first child says little; each other one says more.
        let client = bench.open("ada").await;
        assert!(restart(&bench, "main", Restart::Now) > 0);
        if is_used {
            bench.open("bob").await;
        } else {
            let refused = client.call("x", &json!({})).await;
            let reason = &refused["error"]["data"]["reason"];
            assert_eq!(reason, "invalid_answer", "{isolation} {refused}");
            let (access, message) = (bench.access("bob"), initialize("bob"));
            let form = (Transport::Streamable, Form::Json);
            let opened = bench.hub.begin_with(&access, form.0, message, form.1, None);
            let answer = opened.await.unwrap().2.answer().await;
            let Answer::Failed(line) = answer else {
                panic!("{isolation}: used at the first start");
            };
            let line = String::from_utf8(line.to_vec()).unwrap();
            assert!(line.contains("-31003"), "{isolation} {line}");
        }
        drop(client);
        bench.end().await;
    }
}

/// The next owner's child was never initialized, and refused every request.
#[tokio::test]
async fn a_session_is_initialized_once_the_next_owner_would_know() {
    let told = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    for (isolation, revision, told) in [
        ("session", "2025-11-25", told.clone()),
        ("session", "2025-03-26", json!([told])),
        // Its server may be declared for one session each by then.
        ("tenant", "2025-11-25", told),
    ] {
        let (directory, owner) = replica().await;
        let bench = Bench::over(&json!({"isolation": isolation}), |stores| {
            stores.directory = Arc::clone(&directory) as _;
            stores.owner = Arc::clone(&owner);
        });
        let beats = Arc::clone(&owner).run(|_| {}, bench.halt.clone());
        bench.tracker.spawn(beats);
        let client = bench.open_with("ada", initialize_in(revision, "ada")).await;
        let gate = directory.gate.write().await;
        let _ = futures_util::poll!(pin!(directory.asked.notified()));
        let mut first = Box::pin(client.send(&told));
        tokio::select! {
            _ = &mut first => panic!("before it is written"),
            () = directory.asked.notified() => {}
        }
        let early = tokio::time::timeout(Duration::from_millis(500), &mut first).await;
        assert!(
            early.is_err(),
            "{isolation} {revision}: before it is written"
        );
        // There is nothing to write of a second one.
        let again = client.send(&told).await;
        assert!(matches!(again, Answer::Accepted), "{isolation} {revision}");
        drop(gate);
        assert!(
            matches!(first.await, Answer::Accepted),
            "{isolation} {revision}"
        );
        let found = directory.find(&client.id).await.unwrap().unwrap();
        let record = String::from_utf8(found.record.kept.to_vec()).unwrap();
        assert!(record.contains(r#""is_initialized":true"#), "{record}");
        drop(client);
        bench.end().await;
    }
}

/// It hung for as long as the store was away, where all else was refused at once.
#[tokio::test]
async fn a_session_that_is_not_recorded_in_time_is_not_initialized() {
    let (directory, owner) = replica().await;
    let bench = Bench::over(&json!({}), |stores| {
        stores.directory = Arc::clone(&directory) as _;
        stores.owner = Arc::clone(&owner);
        stores.patience.close_after = Duration::from_millis(1);
    });
    let beats = Arc::clone(&owner).run(|_| {}, bench.halt.clone());
    bench.tracker.spawn(beats);
    let client = bench.open("ada").await;
    directory.is_away.store(true, Ordering::Relaxed);
    let told = client.tell("notifications/initialized");
    let told = tokio::time::timeout(Duration::from_secs(60), told).await;
    assert!(matches!(told, Ok(Answer::Refused(Error::Busy { .. }))));
    directory.is_away.store(false, Ordering::Relaxed);
    let recorded = async {
        while !matches!(
            client.tell("notifications/initialized").await,
            Answer::Accepted
        ) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let recorded = tokio::time::timeout(Duration::from_secs(60), recorded).await;
    assert!(recorded.is_ok(), "it is sent again");
    bench.end().await;
}

/// It hung until the session was given up, and then there was none.
#[tokio::test]
async fn an_administrator_ends_no_session_while_the_store_is_away() {
    let (directory, owner) = replica().await;
    let bench = Bench::over(&json!({}), |stores| {
        stores.directory = Arc::clone(&directory) as _;
        stores.owner = Arc::clone(&owner);
        stores.patience.close_after = Duration::from_millis(1);
    });
    let beats = Arc::clone(&owner).run(|_| {}, bench.halt.clone());
    bench.tracker.spawn(beats);
    let client = bench.open("ada").await;
    directory.is_away.store(true, Ordering::Relaxed);
    // The session waits for its lease from here on.
    let told = client.tell("notifications/initialized").await;
    assert!(matches!(told, Answer::Refused(Error::Busy { .. })));
    let (hub, id) = (&bench.hub, client.id.short());
    for end in [Restart::Now, Restart::Drain] {
        let ended = hub.end_session("a", id, end);
        let ended = tokio::time::timeout(Duration::from_secs(20), ended).await;
        assert!(matches!(ended, Ok(Err(Error::Busy { .. }))), "{ended:?}");
        assert!(hub.0.sessions.has(client.id.as_str()));
    }
    directory.is_away.store(false, Ordering::Relaxed);
    let ended = async {
        while hub.end_session("a", id, Restart::Now).await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let ended = tokio::time::timeout(Duration::from_secs(60), ended).await;
    assert!(ended.is_ok(), "it is ended once the store is back");
    let again = hub.end_session("a", id, Restart::Now).await;
    assert!(matches!(again, Err(Error::NoSession)), "{again:?}");
    bench.end().await;
}

/// A session whose queue is full; its commands.
fn busy_session(bench: &Bench) -> mpsc::Receiver<Command> {
    let (commands, received) = mpsc::channel(1);
    let drain = Command::Drain(oneshot::channel().0);
    assert!(commands.try_send(drain).is_ok(), "the queue is full");
    let handle = handle(bench, commands);
    bench
        .hub
        .0
        .sessions
        .insert(&SessionId("busy".into()), handle);
    received
}

/// The handle of a session without a task.
fn handle(bench: &Bench, commands: mpsc::Sender<Command>) -> Handle {
    Handle {
        commands,
        access: Arc::new(bench.access("ada")),
        transport: Transport::Streamable,
        born: Instant::now(),
        fence: Fence(1),
    }
}

/// They were asked first, the oldest first, and the time was over before those with one: a tenant with thousands of
/// sessions gave up no child.
#[tokio::test]
async fn sessions_without_a_child_of_their_own_are_not_asked_for_one() {
    let bench = Bench::new(&json!({"isolation": "session"}));
    let sessions = &bench.hub.0.sessions;
    let (commands, mut asked) = mpsc::channel(64);
    let without = SessionId("without".into());
    sessions.insert(&without, handle(&bench, commands));
    let client = bench.open("ada").await;
    assert_eq!(sessions.with_child_of("a").len(), 1);
    assert_eq!(sessions.with_child_of("b").len(), 0);
    let (wanted, requests) = mpsc::channel(1);
    bench.hub.reclaim_for(requests);
    let given = async {
        loop {
            let (reply, is_given) = oneshot::channel();
            let holders = Holders::Tenants(vec!["a".to_owned()]);
            assert!(wanted.send(Wanted { holders, reply }).await.is_ok());
            if is_given.await == Ok(true) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let given = tokio::time::timeout(Duration::from_secs(60), given).await;
    assert!(given.is_ok(), "no child is given up");
    assert!(asked.try_recv().is_err(), "it has none to give up");
    assert_eq!(sessions.with_child_of("a").len(), 0);
    // It gets another one.
    client.pid().await;
    assert_eq!(sessions.with_child_of("a").len(), 1);
    bench.end().await;
}

/// A session whose child held it up for five seconds went on without its access, until another change. Each change
/// waited for it anew.
#[tokio::test]
async fn a_session_that_was_busy_for_long_is_told_of_its_revocation() {
    // No tenant is left.
    let snapshot = CurrentSnapshot::fixed(Catalog::default());
    let bench = Bench::of(&json!({}), snapshot, |_| {});
    let mut received = busy_session(&bench);
    let tasks = bench.tracker.len();
    for _ in 0..3 {
        bench.hub.follow(&Arc::default()).await;
    }
    assert_eq!(bench.tracker.len(), tasks + 1, "one waits for all changes");
    let first = received.recv().await;
    assert!(matches!(first, Some(Command::Drain(_))));
    let told = tokio::time::timeout(Duration::from_secs(60), received.recv()).await;
    assert!(matches!(told, Ok(Some(Command::Change(None)))));
    let told = async {
        while bench.tracker.len() > tasks {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let told = tokio::time::timeout(Duration::from_secs(60), told).await;
    assert!(told.is_ok(), "and once");
    assert!(received.try_recv().is_err());
    bench.end().await;
}

/// A worker told all sessions at a stretch, at each revocation of anybody's, and its other tasks waited.
#[tokio::test]
async fn a_change_that_many_sessions_follow_lets_others_go_first() {
    // No tenant is left.
    let snapshot = CurrentSnapshot::fixed(Catalog::default());
    let bench = Bench::of(&json!({}), snapshot, |_| {});
    let mut all = Vec::new();
    for number in 0..6200 {
        let (commands, received) = mpsc::channel(1);
        let id = SessionId(format!("session {number}").into());
        bench.hub.0.sessions.insert(&id, handle(&bench, commands));
        all.push(received);
    }
    let polls = {
        let (catalog, mut polls) = (Arc::default(), 0);
        let mut following = pin!(bench.hub.follow(&catalog));
        poll_fn(|cx| {
            polls += 1;
            following.as_mut().poll(cx)
        })
        .await;
        polls
    };
    assert!(polls > 3, "{polls} polls");
    for received in &mut all {
        let told = received.try_recv();
        assert!(matches!(told, Ok(Command::Change(None))));
    }
    bench.end().await;
}

/// A session that had seen the later value of a key, while others were told that the earlier one had ended, ended with it.
#[tokio::test]
async fn a_session_that_another_access_has_joined_is_judged_by_that() {
    let manifest = json!({"version": 1, "tenants": {"a": {"auth": {"mode": "none"},
        "servers": {"main": {"command": "x"}}}}});
    let manifest = reader::parse("F", &manifest.to_string(), Format::Json, &BTreeMap::new());
    let snapshot = CurrentSnapshot::fixed(manifest.unwrap().catalog);
    let (tenant, server) = snapshot.catalog().find("a", "main").unwrap();
    let bench = Bench::of(&json!({}), snapshot, |_| {});
    let (commands, mut received) = mpsc::channel(1);
    // By a token, which is worth nothing here.
    let copied = handle(&bench, commands);
    let joined = Handle {
        access: Arc::new(Access::of_anybody(&tenant, &server)),
        ..copied.clone()
    };
    let (id, sessions) = (SessionId("joined".into()), &bench.hub.0.sessions);
    sessions.insert(&id, joined);
    bench.hub.tell(id.clone(), copied.clone());
    assert!(received.try_recv().is_err(), "it may go on");
    sessions.insert(&id, copied.clone());
    bench.hub.tell(id, copied);
    let told = received.try_recv();
    assert!(matches!(told, Ok(Command::Change(None))));
    bench.end().await;
}

/// A call was made by what its sender could do when its head came, which may be long before its body.
#[tokio::test]
async fn a_body_is_judged_by_the_catalogue_of_its_delivery() {
    let server =
        json!({"command": built("examples/child"), "policy": {"tools": {"deny": ["echo"]}}});
    let manifest = json!({"version": 1, "tenants": {"a": {"auth": {"mode": "none"},
        "servers": {"main": server}}}});
    let manifest = reader::parse("F", &manifest.to_string(), Format::Json, &BTreeMap::new());
    let snapshot = CurrentSnapshot::fixed(manifest.unwrap().catalog);
    let bench = Bench::of(&json!({}), snapshot, |_| {});
    let (hub, form) = (&bench.hub, Form::Json);
    // As its head was admitted.
    let before = Access::of_anybody(&bench.tenant, &bench.server);
    let begin = initialize("one");
    let begun = hub.begin_with(&before, Transport::Streamable, begin, form, None);
    let (_, handle, pending) = begun.await.unwrap();
    assert!(matches!(pending.answer().await, Answer::Json(_)));
    let body = Body::One(call_of("echo", &json!({"text": "x"})));
    let told = hub.deliver_to(&handle, &before, body, form, (None, None));
    let Answer::Json(line) = told.await.unwrap().answer().await else {
        panic!("no answer");
    };
    let line = String::from_utf8_lossy(&line);
    assert!(line.contains("Unknown tool: echo"), "{line}");
    bench.end().await;
}

/// A call whose caller has lost the access is cancelled all the same when its connection closes.
#[tokio::test]
async fn what_the_gateway_sends_itself_needs_no_valid_access() {
    // No tenant is left.
    let snapshot = CurrentSnapshot::fixed(Catalog::default());
    let bench = Bench::of(&json!({}), snapshot, |_| {});
    let (hub, form, access) = (&bench.hub, Form::Json, bench.access("ada"));
    let (commands, mut received) = mpsc::channel(1);
    let handle = handle(&bench, commands);
    let body = || Body::One(call_of("echo", &json!({})));
    let refused = hub.deliver_to(&handle, &access, body(), form, (None, None));
    assert!(matches!(refused.await, Err(Error::NoSession)));
    assert!(received.try_recv().is_err());
    let sent = hub.send_to(&handle, &access, body(), form, (None, None));
    assert!(sent.await.is_ok());
    assert!(matches!(received.try_recv(), Ok(Command::Deliver(_))));
    bench.end().await;
}

/// Compared with the access of its begin, a session was told of each change of anybody's once its own tenant had changed.
#[tokio::test]
async fn a_session_is_told_of_a_change_once() {
    let read = || {
        let manifest = json!({"version": 1, "tenants": {"a": {"auth": {"mode": "none"},
            "servers": {"main": {"command": "x"}}}}});
        let manifest = reader::parse("F", &manifest.to_string(), Format::Json, &BTreeMap::new());
        manifest.unwrap().catalog
    };
    let (tenant, server) = read().find("a", "main").unwrap();
    let bench = Bench::of(&json!({}), CurrentSnapshot::fixed(read()), |_| {});
    let (commands, mut received) = mpsc::channel(1);
    let begun = Handle {
        access: Arc::new(Access::of_anybody(&tenant, &server)),
        ..handle(&bench, commands)
    };
    let (id, core) = (SessionId("told".into()), &bench.hub.0);
    core.sessions.insert(&id, begun.clone());
    // It could not be told yet, and is by the next change.
    let drain = Command::Drain(oneshot::channel().0);
    assert!(begun.commands.try_send(drain).is_ok(), "the queue is full");
    core.tell(&id, begun.fence, |change| {
        begun.commands.try_send(change).is_ok()
    });
    assert!(matches!(received.try_recv(), Ok(Command::Drain(_))));
    for is_told in [true, false, false] {
        bench.hub.follow(&core.snapshot.catalog()).await;
        let told = received.try_recv();
        let is_change = matches!(told, Ok(Command::Change(Some(_))));
        assert_eq!(is_change, is_told);
    }
    let known = core.sessions.get(&id).unwrap().access;
    assert!(known.is_of(&core.snapshot.catalog()));
    bench.end().await;
}

/// The children of all tenants waited up to five seconds for a session with a full queue, at each change.
#[tokio::test]
async fn a_session_with_a_full_queue_delays_no_child() {
    let catalog = |servers: &Value| {
        let manifest = json!({"version": 1, "tenants": {"a": {"auth": {"mode": "none"},
            "servers": servers}}});
        let manifest = reader::parse("F", &manifest.to_string(), Format::Json, &BTreeMap::new());
        manifest.unwrap().catalog
    };
    let before = catalog(&json!({"main": {"command": "x"}, "gone": {"command": "x"}}));
    let after = catalog(&json!({"main": {"command": "y"}}));
    let new = after.find("a", "main").unwrap().1;
    let snapshot = CurrentSnapshot::fixed(after.clone());
    let bench = Bench::of(&json!({}), snapshot, |_| {});
    let mut received = busy_session(&bench);
    let registry = &bench.hub.0.pool.registry;
    let started = |server: &str| {
        let server = before.find("a", server).unwrap().1;
        registry.add(&server, None, 0)
    };
    let (main, gone) = (started("main"), started("gone"));
    bench.hub.follow(&Arc::new(before.clone())).await;
    let young = registry.add(&new, None, 0);
    bench.hub.follow(&Arc::new(after)).await;
    assert_eq!(main.restart(), Some(Restart::Drain));
    assert_eq!(gone.restart(), Some(Restart::Now));
    // Those of a session that was not told yet, by the old declaration.
    let late = started("main");
    assert_eq!(late.restart(), None);
    while !matches!(received.recv().await, Some(Command::Change(_))) {}
    let told = async {
        while late.restart() != Some(Restart::Drain) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let told = tokio::time::timeout(Duration::from_secs(60), told).await;
    assert!(told.is_ok());
    assert_eq!(young.restart(), None, "it is of the new declaration");
    for entry in [main, gone, young, late] {
        registry.remove(&entry);
    }
    bench.end().await;
}

/// A stream that was relayed for hours claimed its session by what was declared and granted then.
#[tokio::test]
async fn an_access_that_is_no_longer_valid_claims_no_session() {
    let (directory, owner) = replica().await;
    let snapshot = CurrentSnapshot::fixed(Catalog::default());
    let bench = Bench::of(&json!({}), snapshot, |stores| {
        stores.directory = Arc::clone(&directory) as _;
        stores.owner = Arc::clone(&owner);
    });
    let (access, id) = (bench.access("ada"), SessionId("left".into()));
    let record = Record {
        principal: access.principal().key().into(),
        server: access.server().name.clone(),
        owner: None,
        fence: Fence(1),
        kept: "{}".into(),
        ttl: Duration::from_secs(60),
        age: Duration::ZERO,
    };
    directory.insert(&id, record, 1).await.unwrap();
    let found = bench
        .hub
        .locate_or_claim(&access, "left", LookupSource::Fresh);
    assert!(matches!(found.await, Err(Error::NoSession)));
    let found = directory.find(&id).await.unwrap();
    assert!(
        found.is_some_and(|found| found.record.fence == Fence(1)),
        "untouched"
    );
    bench.end().await;
}

/// Another replica could have claimed it in the time that a lapse leaves.
#[tokio::test]
async fn a_session_that_was_claimed_over_a_lapse_is_looked_up_again() {
    for has_lapsed in [false, true] {
        let (directory, owner) = replica().await;
        let bench = Bench::over(&json!({}), |stores| {
            stores.directory = Arc::clone(&directory) as _;
            stores.owner = Arc::clone(&owner);
        });
        let mut client = bench.open("ada").await;
        // As a replica that has ended leaves one behind.
        let left = directory.find(&client.id).await.unwrap().unwrap().record;
        let ended = bench.hub.end(&client.access, client.id.as_str());
        ended.await.unwrap();
        let (id, record) = (
            SessionId("left".into()),
            Record {
                owner: None,
                ..left
            },
        );
        directory.insert(&id, record, 1).await.unwrap();
        client.id = id;
        let gate = directory.gate.write().await;
        let _ = futures_util::poll!(pin!(directory.asked.notified()));
        let hub = &bench.hub;
        let found = hub.locate_or_claim(&client.access, "left", LookupSource::Fresh);
        let mut found = Box::pin(found);
        tokio::select! {
            _ = &mut found => panic!("claimed without the directory"),
            () = directory.asked.notified() => {}
        }
        if has_lapsed {
            directory.epoch.fetch_add(1, Ordering::Relaxed);
            owner.beat().await.unwrap();
        }
        let before = directory.found.load(Ordering::Relaxed);
        drop(gate);
        assert!(matches!(found.await, Ok(Place::Here)));
        assert_eq!(client.call("counter", &json!({})).await["id"], 1);
        let after = directory.found.load(Ordering::Relaxed);
        assert_eq!(after > before, has_lapsed, "{before} {after}");
        drop(client);
        bench.end().await;
    }
}

/// A session as a replica has left it that had this owner, for the client that it was opened for.
async fn left_by(bench: &Bench, directory: &Gated, owner: Option<Replica>) -> (Access, Record) {
    let client = bench.open("ada").await;
    let left = directory.find(&client.id).await.unwrap().unwrap().record;
    let ended = bench.hub.end(&client.access, client.id.as_str());
    ended.await.unwrap();
    (client.access, Record { owner, ..left })
}

/// Looks for a session that this replica claims, and does `meanwhile` between its look-up and the claim.
async fn claimed_over(
    bench: &Bench,
    directory: &Gated,
    access: &Access,
    meanwhile: impl AsyncFnOnce(),
) -> Result<Place, Error> {
    let gate = directory.gate.write().await;
    let _ = futures_util::poll!(pin!(directory.asked.notified()));
    let found = bench
        .hub
        .locate_or_claim(access, "left", LookupSource::Fresh);
    let mut found = Box::pin(found);
    tokio::select! {
        _ = &mut found => panic!("claimed without the directory"),
        () = directory.asked.notified() => {}
    }
    meanwhile().await;
    drop(gate);
    found.await
}

/// Its owner had read its fence just before, and went on with it for its own clients.
#[tokio::test]
async fn a_session_whose_owner_is_back_is_not_claimed() {
    let directory = Arc::new(Gated::default());
    let keys = ReplicaKeys::new(MacKeys::new([&[7; 32]]));
    let [me, other] = ["a:1", "b:1"].map(|address| keys.replica(&address.into()).unwrap());
    let owner = Arc::new(ReplicaLease::new(me, keys, Arc::clone(&directory) as _));
    owner.beat().await.unwrap();
    let bench = Bench::over(&json!({}), |stores| {
        stores.directory = Arc::clone(&directory) as _;
        stores.owner = Arc::clone(&owner);
    });
    let (access, record) = left_by(&bench, &directory, Some(other.clone())).await;
    let id = SessionId("left".into());
    directory.insert(&id, record, 1).await.unwrap();
    directory.is_silent.store(true, Ordering::Relaxed);
    let found = claimed_over(&bench, &directory, &access, async || {
        directory.is_silent.store(false, Ordering::Relaxed);
    });
    assert_eq!(found.await.unwrap(), Place::There(other));
    bench.end().await;
}

/// What its owner had written since the look-up was lost.
#[tokio::test]
async fn a_claim_continues_from_what_was_kept_last() {
    let (directory, owner) = replica().await;
    let bench = Bench::over(&json!({}), |stores| {
        stores.directory = Arc::clone(&directory) as _;
        stores.owner = Arc::clone(&owner);
    });
    let (access, record) = left_by(&bench, &directory, None).await;
    let (id, fence, kept) = (SessionId("left".into()), record.fence, record.kept.clone());
    let record = Record {
        kept: "{}".into(),
        ..record
    };
    directory.insert(&id, record, 1).await.unwrap();
    let found = claimed_over(&bench, &directory, &access, async || {
        let written = directory.records.keep(&id, fence, Some(kept)).await;
        written.unwrap();
    });
    assert_eq!(found.await.unwrap(), Place::Here);
    bench.end().await;
}

/// It answered its own clients for minutes, as another replica did others.
#[tokio::test]
async fn a_session_that_is_claimed_from_a_living_owner_ends_there() {
    let (directory, owner) = replica().await;
    let bench = Bench::over(&json!({}), |stores| {
        stores.directory = Arc::clone(&directory) as _;
        stores.owner = Arc::clone(&owner);
    });
    let client = bench.open("ada").await;
    let found = directory.find(&client.id).await.unwrap().unwrap().record;
    let other = replica_of(&directory, "b").await;
    let claimed = directory.claim(&client.id, &found, &other.me, ClaimFrom::Any);
    assert!(claimed.await.unwrap().is_some());
    let beats = Arc::clone(&owner).run(|_| {}, bench.halt.clone());
    bench.tracker.spawn(beats);
    let ended = async {
        while bench.hub.has(&client.access, client.id.as_str()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let ended = tokio::time::timeout(Duration::from_secs(20), ended).await;
    assert!(ended.is_ok(), "its owner goes on with it");
    bench.end().await;
}

/// Waits until a child has a call.
async fn busy(bench: &Bench) {
    for _ in 0..2000 {
        if bench.hub.children().iter().any(|child| child.calls == 1) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("no child is busy");
}

/// Waits until the session has a child other than `pid`; returns the pid of that child.
async fn other_than(client: &Client<'_>, pid: u64) -> u64 {
    for _ in 0..2000 {
        let now = client.pid().await;
        if now != pid {
            return now;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("the child is the same");
}

/// Each request is checked against its own access, not against that of the session's first one.
#[tokio::test]
async fn scopes_are_those_of_the_request_and_what_lacks_them_reaches_no_child() {
    let policy = json!({
        "tools": {"deny": ["whoami"]},
        "scopes": {"counter": ["count:write"], "echo": ["read"]},
        "implies": {"count:write": ["read"]},
    });
    for isolation in ["session", "tenant"] {
        let bench = Bench::new(&json!({"isolation": isolation, "policy": policy}));
        let ada = bench.open("ada").await;
        let with = |scopes: &[&str]| bench.access("ada").with_scopes(scopes);
        let none = json!({});
        for (has, needed) in [
            (&[][..], &["count:write"][..]),
            (&["read", "x"], &["read", "x", "count:write"]),
        ] {
            match ada.call_as(&with(has), "counter", &none).await {
                Err(Error::Scopes(scopes)) => assert_eq!(scopes, needed, "{isolation}"),
                other => panic!("{other:?}"),
            }
        }
        let counted = ada
            .call_as(&with(&["count:write"]), "counter", &none)
            .await
            .unwrap();
        assert_eq!(
            counted["result"]["content"][0]["text"], "1",
            "the first that ran"
        );
        assert!(
            ada.call_as(&with(&["count:write"]), "echo", &none)
                .await
                .is_ok(),
            "implied"
        );
        let again = ada.call_as(&with(&[]), "counter", &none).await;
        assert!(matches!(again, Err(Error::Scopes(_))), "{again:?}");
        let denied = ada
            .call_as(&with(&["count:write"]), "whoami", &none)
            .await
            .unwrap();
        assert_eq!(
            denied["error"]["message"], "Unknown tool: whoami",
            "{isolation}"
        );
        bench.end().await;
    }
}

/// A client without sessions.
fn without_session(access: &Access) -> Caller<'_> {
    Caller {
        access,
        capabilities: b"{}",
        client_info: None,
        may_become_task: false,
        trace: None,
        group: OnceLock::new(),
    }
}

/// It was told that there is no such session, by the status that says in its revision that there is no such method.
#[tokio::test]
async fn a_session_that_ends_at_this_moment_is_none_to_a_client_without() {
    let bench = Bench::new(&json!({}));
    let stateless = Stateless::new(bench.hub.clone());
    let access = bench.access("one");
    let caller = without_session(&access);
    // Whoever finds the session finds it ended: its task has not run since.
    let end = || {
        let sessions = bench.hub.0.sessions.all();
        assert_eq!(sessions.len(), 1);
        for (_, handle) in sessions {
            let (done, _) = oneshot::channel();
            assert!(handle.commands.try_send(Command::End(done)).is_ok());
        }
    };
    assert!(
        stateless
            .lease(&caller)
            .await
            .is_ok_and(|leased| leased.is_ok())
    );
    end();
    let tools = stateless.tool_headers(&caller, false).await;
    let is_list = tools.is_ok_and(|tools| tools.is_ok_and(|tools| tools.is_some()));
    assert!(is_list, "a list of tools");
    end();
    let subscribed = stateless.subscribe(&caller, Filter::default()).await;
    assert!(matches!(subscribed, Ok(Subscribed::Running(..))));
    end();
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "echo", "arguments": {"text": "x"}}});
    let call = Message::parse(call.to_string().into()).unwrap();
    let begun = stateless.call(&caller, &call, Some("info"), false, None);
    let begun = begun.await;
    assert!(matches!(
        begun,
        Ok(Begun::Sent(Answer::Json(_) | Answer::Stream(_), _))
    ));
    drop(subscribed);
    bench.end().await;
}

/// The only session, with its own handle; the commands of all who find it from now on come to the test.
fn intercepted(bench: &Bench) -> (SessionId, Handle, mpsc::Receiver<Command>) {
    let mut sessions = bench.hub.0.sessions.all();
    assert_eq!(sessions.len(), 1);
    let (id, handle) = sessions.remove(0);
    let (commands, received) = mpsc::channel(1);
    let found = Handle {
        commands,
        ..handle.clone()
    };
    bench.hub.0.sessions.insert(&id, found);
    (id, handle, received)
}

/// Waits until a call delivers a message to an intercepted session; the message, with what takes its answer.
async fn until_delivered<T>(
    call: &mut Pin<Box<impl Future<Output = T>>>,
    received: &mut mpsc::Receiver<Command>,
) -> (Message, oneshot::Sender<Answer>) {
    let command = tokio::select! {
        _ = call => panic!("it has ended"),
        command = tokio::time::timeout(Duration::from_secs(20), received.recv()) => command,
    };
    let Ok(Some(Command::Deliver(delivery))) = command else {
        panic!("nothing is delivered");
    };
    let Delivery { body, reply, .. } = *delivery;
    let Body::One(message) = body else {
        panic!("a batch");
    };
    (message, reply)
}

/// Answers a message of a call to an intercepted session with an empty result.
fn answer(reply: oneshot::Sender<Answer>) {
    let line = r#"{"jsonrpc":"2.0","id":1,"result":{}}"#;
    assert!(reply.send(Answer::Json(line.into())).is_ok());
}

/// A call of a client without sessions.
fn call_of(tool: &str, args: &Value) -> Message {
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": tool, "arguments": args}});
    Message::parse(call.to_string().into()).unwrap()
}

/// It was taken for the level of the server from then on: no call of its principal got log messages, for as long as the
/// session lived.
#[tokio::test]
async fn a_log_level_that_was_refused_is_asked_for_again() {
    let bench = Bench::new(&json!({}));
    let stateless = Stateless::new(bench.hub.clone());
    let access = bench.access("one");
    let caller = without_session(&access);
    drop(stateless.lease(&caller).await);
    let (_, _, mut received) = intercepted(&bench);
    let call = call_of("echo", &json!({"text": "x"}));
    let begin = || Box::pin(stateless.call(&caller, &call, Some("debug"), false, None));
    let mut refused = begin();
    let (asked, reply) = until_delivered(&mut refused, &mut received).await;
    assert_eq!(asked.method(), Method::SetLevel);
    let busy = Error::Busy {
        what: "the backend does not read",
        retry: Duration::from_secs(1),
    };
    assert!(reply.send(Answer::Refused(busy)).is_ok());
    assert!(matches!(refused.await, Err(Error::Busy { .. })));
    // Its child ended before it was told.
    let mut ended = begin();
    let (asked, reply) = until_delivered(&mut ended, &mut received).await;
    assert_eq!(asked.method(), Method::SetLevel);
    let error = crate::hub::CallError::EXITED.line(b"1");
    assert!(reply.send(Answer::Json(error)).is_ok());
    let (message, reply) = until_delivered(&mut ended, &mut received).await;
    assert_eq!(message.method(), Method::ToolsCall);
    answer(reply);
    let Ok(Begun::Sent(_, sent)) = ended.await else {
        panic!("no answer");
    };
    sent.finish();
    let mut left = begin();
    let (asked, reply) = until_delivered(&mut left, &mut received).await;
    assert_eq!(asked.method(), Method::SetLevel);
    // Its client leaves, and the server has the level all the same.
    drop(left);
    answer(reply);
    let mut called = begin();
    let (message, reply) = until_delivered(&mut called, &mut received).await;
    assert_eq!(message.method(), Method::ToolsCall);
    answer(reply);
    let Ok(Begun::Sent(_, ended)) = called.await else {
        panic!("no answer");
    };
    ended.finish();
    drop(received);
    bench.end().await;
}

/// The second call does not overtake the first one, and asks for no higher level behind it.
#[tokio::test]
async fn the_lowest_log_level_of_calls_at_once_is_the_last_that_the_server_is_told() {
    for (levels, told) in [
        (["debug", "info"], &["debug"][..]),
        (["info", "debug"], &["info", "debug"]),
    ] {
        let bench = Bench::new(&json!({}));
        let stateless = Stateless::new(bench.hub.clone());
        let access = bench.access("one");
        let caller = without_session(&access);
        drop(stateless.lease(&caller).await);
        let (_, _, mut received) = intercepted(&bench);
        let call = call_of("echo", &json!({"text": "x"}));
        let [mut first, mut second] =
            levels.map(|level| Box::pin(stateless.call(&caller, &call, Some(level), false, None)));
        let (asked, reply) = until_delivered(&mut first, &mut received).await;
        assert_eq!(asked.level().as_deref(), Some(told[0]));
        assert!(polled(1, second.as_mut()).await.is_none());
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert!(received.try_recv().is_err(), "the second one waits");
        answer(reply);
        for level in &told[1..] {
            let (asked, reply) = until_delivered(&mut second, &mut received).await;
            assert_eq!(asked.level().as_deref(), Some(*level));
            answer(reply);
        }
        for mut call in [second, first] {
            let (message, reply) = until_delivered(&mut call, &mut received).await;
            assert_eq!(message.method(), Method::ToolsCall, "{levels:?}");
            answer(reply);
            let Ok(Begun::Sent(_, ended)) = call.await else {
                panic!("no answer");
            };
            ended.finish();
        }
        drop(received);
        bench.end().await;
    }
}

/// It was marked as heard for as long as it lived, and no subscription heard what the calls there changed.
#[tokio::test]
async fn a_session_is_heard_though_the_client_that_came_first_has_left() {
    let bench = Bench::new(&json!({}));
    let stateless = Stateless::new(bench.hub.clone());
    let access = bench.access("one");
    let caller = Caller {
        capabilities: br#"{"elicitation":{}}"#,
        ..without_session(&access)
    };
    drop(stateless.lease(&caller).await);
    let (id, handle, mut received) = intercepted(&bench);
    let mut subscribing = Box::pin(stateless.subscribe(&caller, Filter::default()));
    let attach = tokio::select! {
        _ = &mut subscribing => panic!("the session is not heard yet"),
        command = received.recv() => command.unwrap(),
    };
    assert!(matches!(attach, Command::Attach(_)));
    drop(subscribing);
    // The session takes it only now.
    bench.hub.0.sessions.insert(&id, handle.clone());
    assert!(handle.commands.send(attach).await.is_ok());
    let subscribed = stateless.subscribe(&caller, Filter::default()).await;
    let Ok(Subscribed::Running(mut subscription, reader)) = subscribed else {
        panic!("no subscription");
    };
    let changed = json!({"method": "notifications/tools/list_changed", "params": {}});
    let call = call_of("notify", &changed);
    let begun = stateless.call(&caller, &call, None, false, None).await;
    assert!(matches!(begun, Ok(Begun::Sent(..))));
    let heard = tokio::time::timeout(Duration::from_secs(20), subscription.changes.next()).await;
    assert!(matches!(heard, Ok(Some(_))), "{heard:?}");
    drop((begun, subscription, reader, received));
    bench.end().await;
}

/// A filter of subscriptions to these resources.
fn resources(uris: &[&str]) -> Filter {
    let wanted = json!({"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen",
        "params": {"notifications": {"resourceSubscriptions": uris}}});
    let wanted = Message::parse(wanted.to_string().into()).unwrap();
    Filter::of(&wanted, uris.len()).unwrap()
}

/// A client that listened again at once was acknowledged without any resource, ten seconds later: the server was told
/// of the end of each one first.
#[tokio::test]
async fn a_subscription_does_not_wait_for_the_end_of_another() {
    let bench = Bench::new(&json!({"env": {"CHILD_SILENT": "resources/unsubscribe"}}));
    let stateless = Stateless::new(bench.hub.clone());
    let access = bench.access("one");
    let caller = without_session(&access);
    let subscribe = async || {
        let wanted = resources(&["test://a", "test://b", "test://c"]);
        let subscribed = stateless.subscribe(&caller, wanted).await;
        let Ok(Subscribed::Running(subscription, reader)) = subscribed else {
            panic!("no subscription");
        };
        assert_eq!(subscription.filter.resources.len(), 3);
        (subscription, reader)
    };
    drop(subscribe().await);
    // The server does not answer to the end of the first one.
    busy(&bench).await;
    drop(subscribe().await);
    bench.end().await;
}

/// Its URIs were held beside the budget for as long as the server took to answer to the end of each, or one minute.
#[tokio::test]
async fn a_subscription_counts_until_its_server_has_answered_to_its_end() {
    let bench = Bench::new(&json!({"env": {"CHILD_SILENT": "resources/unsubscribe"}}));
    let stateless = Stateless::new(bench.hub.clone());
    let access = bench.access("one");
    let caller = without_session(&access);
    let share = bench.hub.limits().memory().caller(&access);
    let wanted = resources(&["test://a"]);
    let subscribed = stateless.subscribe(&caller, wanted).await;
    assert!(matches!(subscribed, Ok(Subscribed::Running(..))));
    let used = share.used();
    assert!(used > 8 << 10, "{used}");
    drop(subscribed);
    // The server does not answer.
    busy(&bench).await;
    assert!(share.used() + 1000 > used, "{} of {used}", share.used());
    bench.end().await;
}

/// It waited for as long as the server took, or one minute.
#[tokio::test]
async fn a_call_does_not_wait_for_a_subscription_of_its_caller() {
    let bench = Bench::new(&json!({"env": {"CHILD_SILENT": "resources/subscribe"}}));
    let stateless = Stateless::new(bench.hub.clone());
    let access = bench.access("one");
    let caller = Caller {
        capabilities: br#"{"elicitation":{}}"#,
        ..without_session(&access)
    };
    let mut subscribing = Box::pin(stateless.subscribe(&caller, resources(&["test://a"])));
    tokio::select! {
        _ = &mut subscribing => panic!("agreed"),
        () = busy(&bench) => {}
    }
    tokio::select! {
        _ = &mut subscribing => panic!("the call has waited for it"),
        leased = stateless.lease(&caller) => assert!(leased.is_ok_and(|leased| leased.is_ok())),
    }
    drop(subscribing);
    bench.end().await;
}

/// One whose policy denies a resource was subscribed to it where another of its principal was before, and heard of it
/// after any call of that one. The other way round, a call by a stricter policy muted the subscriptions of all.
#[tokio::test]
async fn a_subscription_hears_what_its_own_policy_allows() {
    let bench = Bench::new(&json!({}));
    let deny = json!({"resources": {"deny": ["test://a", "test://b/x"]}});
    let strict = Bench::new(&json!({ "policy": deny }));
    let stateless = Stateless::new(bench.hub.clone());
    let accesses = [bench.access("one"), strict.access("one")];
    let mut subscriptions = Vec::new();
    for (access, agreed) in accesses.iter().zip([2, 1]) {
        let caller = without_session(access);
        let wanted = resources(&["test://a", "test://b"]);
        let subscribed = stateless.subscribe(&caller, wanted).await;
        let Ok(Subscribed::Running(subscription, reader)) = subscribed else {
            panic!("no subscription");
        };
        assert_eq!(subscription.filter.resources.len(), agreed);
        subscriptions.push((subscription, reader));
    }
    // By the stricter policy, which is that of the session from then on.
    let caller = without_session(&accesses[1]);
    let method = "notifications/resources/updated";
    let updated = json!({"method": method, "params": {"uri": "test://b/x"}});
    let call = call_of("notify", &updated);
    let begun = stateless.call(&caller, &call, None, false, None).await;
    let Ok(Begun::Sent(_, call)) = begun else {
        panic!("no answer");
    };
    call.finish();
    for ((subscription, mut reader), hears) in subscriptions.into_iter().zip([true, false]) {
        let told = tokio::time::timeout(Duration::from_secs(20), reader.next()).await;
        let Ok(Next::Events(events)) = told else {
            panic!("the session is muted");
        };
        let message = Message::parse(events[0].1.clone()).unwrap();
        assert_eq!(message.method(), Method::Updated);
        assert_eq!(subscription.hears(&message), hears);
    }
    strict.end().await;
    bench.end().await;
}

/// The policy of the call decided what its child was subscribed to.
#[tokio::test]
async fn a_child_is_subscribed_whatever_the_policy_of_its_call() {
    let bench = Bench::new(&json!({}));
    let deny = json!({"resources": {"deny": ["test://a"]}});
    let strict = Bench::new(&json!({ "policy": deny }));
    let stateless = Stateless::new(bench.hub.clone());
    let (open, denied) = (bench.access("one"), strict.access("one"));
    let [listener, caller] = [&open, &denied].map(|access| Caller {
        capabilities: br#"{"elicitation":{}}"#,
        ..without_session(access)
    });
    let subscribed = stateless
        .subscribe(&listener, resources(&["test://a"]))
        .await;
    assert!(matches!(subscribed, Ok(Subscribed::Running(..))));
    let before = bench.hub.0.sessions.all();
    drop(stateless.lease(&caller).await);
    let mut sessions = bench.hub.0.sessions.all();
    sessions.retain(|(id, _)| before.iter().all(|(known, _)| known != id));
    let (hub, (_, handle)) = (&bench.hub, sessions.remove(0));
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let body = Body::One(call_of("subscribed", &json!({})));
        let told = hub.deliver_to(&handle, &denied, body, Form::Json, (None, None));
        let Answer::Json(line) = told.await.unwrap().answer().await else {
            panic!("no answer");
        };
        if String::from_utf8_lossy(&line).contains("test://a") {
            break;
        }
        assert!(Instant::now() < until, "{line:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(subscribed);
    strict.end().await;
    bench.end().await;
}

/// Its server waited for half a minute, or for ten while a subscription read the listener, and counted as used.
#[tokio::test]
async fn what_nobody_can_be_asked_is_refused_at_once() {
    let bench = Bench::new(&json!({}));
    let access = bench.access("one");
    let begin = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {"roots": {}},
        "clientInfo": {"name": "x", "version": "1"}}});
    let begin = Message::parse(begin.to_string().into()).unwrap();
    let (hub, form) = (&bench.hub, Form::Json);
    let begun = hub.begin_with(&access, Transport::Stateless, begin, form, None);
    let (_, handle, pending) = begun.await.unwrap();
    assert!(matches!(pending.answer().await, Answer::Json(_)));
    // A call whose answer is JSON carries no question.
    let call = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call",
        "params": {"name": "ask", "arguments": {"kind": "roots"}}});
    let call = Body::parse(call.to_string().into()).unwrap();
    let called = hub.deliver_to(&handle, &access, call, form, (None, None));
    let answer = called.await.unwrap().answer();
    let answer = tokio::time::timeout(Duration::from_secs(20), answer).await;
    let Ok(Answer::Json(line)) = answer else {
        panic!("it waits for its client");
    };
    let line = String::from_utf8_lossy(&line);
    assert!(line.contains("-32603"), "{line}");
    bench.end().await;
}

/// One that went between the answer of `initialize` and its own call left a session with a child.
#[tokio::test]
async fn a_client_without_a_session_leaves_none_whenever_it_goes() {
    let bench = Bench::new(&json!({}));
    let stateless = Stateless::new(bench.hub.clone());
    let access = bench.access("one");
    let mut polls = 0;
    loop {
        polls += 1;
        let capabilities = json!({"experimental": {"n": polls}}).to_string();
        let caller = Caller {
            access: &access,
            capabilities: capabilities.as_bytes(),
            client_info: None,
            may_become_task: false,
            trace: None,
            group: OnceLock::new(),
        };
        if polled(polls, stateless.lease(&caller)).await.is_some() {
            break;
        }
        let gone = async {
            while !bench.hub.0.sessions.all().is_empty() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let gone = tokio::time::timeout(Duration::from_secs(20), gone).await;
        assert!(gone.is_ok(), "after {polls} polls");
    }
    assert!(polls > 2, "{polls}");
    bench.end().await;
}

/// Its record stayed in the store for as long as a result is kept, and counted against no share.
#[tokio::test]
async fn a_task_that_its_client_does_not_know_leaves_no_record() {
    let (directory, owner) = replica().await;
    let bench = Bench::made(&json!({}), CurrentSnapshot::empty(), |config, stores| {
        stores.directory = Arc::clone(&directory) as _;
        stores.owner = Arc::clone(&owner);
        config.redis = Some(gateway::Redis {
            url: Secret::new("redis://127.0.0.1:1".to_owned()),
            prefix: "x".to_owned(),
            authorities: None,
        });
    });
    let stateless = Stateless::new(bench.hub.clone());
    let tasks = Tasks::new(bench.hub.clone());
    let access = bench.access("one");
    let caller = Caller {
        may_become_task: true,
        ..without_session(&access)
    };
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "hang", "arguments": {}}});
    let call = Message::parse(call.to_string().into()).unwrap();
    let begin = async || {
        let begun = stateless.call(&caller, &call, None, false, None).await;
        let Ok(Begun::Sent(Answer::Stream(reader), sent)) = begun else {
            panic!("no stream");
        };
        (*sent, *reader)
    };
    let has_record = async |number: u32| {
        let id = SessionId(format!("task:a:{number}").into());
        directory.find(&id).await.unwrap().is_some()
    };
    // Its client goes before the task is created.
    let (sent, reader) = begin().await;
    drop(tasks.begin(sent, reader, &call));
    let gone = async {
        while directory.inserted.load(Ordering::Relaxed) == 0 || has_record(1).await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let gone = tokio::time::timeout(Duration::from_secs(20), gone).await;
    assert!(gone.is_ok(), "a record that nobody counts");
    let (sent, reader) = begin().await;
    let made = tasks.begin(sent, reader, &call).await;
    assert!(matches!(made, Ok(Ok(_))));
    assert!(has_record(2).await, "the task of a client that waits");
    // Tasks end a second later.
    bench.drain.cancel();
    bench.end().await;
}

/// One of several replicas, whose tasks the others may find.
struct TaskBench {
    bench: Bench,
    stateless: Arc<Stateless>,
    tasks: Arc<Tasks>,
}

impl TaskBench {
    fn new(directory: &Arc<Gated>, owner: &Arc<ReplicaLease>) -> Self {
        Self::over(&json!({}), directory, owner)
    }

    /// The same over a server with these keys.
    fn over(keys: &Value, directory: &Arc<Gated>, owner: &Arc<ReplicaLease>) -> Self {
        let bench = Bench::made(keys, CurrentSnapshot::empty(), |config, stores| {
            stores.directory = Arc::clone(directory) as _;
            stores.owner = Arc::clone(owner);
            stores.key = EventKey::new(&[7; 32]);
            config.redis = Some(gateway::Redis {
                url: Secret::new("redis://127.0.0.1:1".to_owned()),
                prefix: "x".to_owned(),
                authorities: None,
            });
        });
        Self {
            stateless: Stateless::new(bench.hub.clone()),
            tasks: Tasks::new(bench.hub.clone()),
            bench,
        }
    }

    /// Makes a task of a call; the task and its id.
    async fn begin(&self, tool: &str, args: &Value) -> (Arc<Task>, String) {
        let (call, sent, reader) = self.call(tool, args).await;
        self.become_task(&call, sent, reader).await
    }

    /// A call that may become a task.
    async fn call(&self, tool: &str, args: &Value) -> (Message, CallInFlight, Reader) {
        let access = self.bench.access("one");
        let caller = Caller {
            may_become_task: true,
            ..without_session(&access)
        };
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
            "params": {"name": tool, "arguments": args}});
        let call = Message::parse(call.to_string().into()).unwrap();
        let begun = self.stateless.call(&caller, &call, None, false, None).await;
        let Ok(Begun::Sent(Answer::Stream(reader), sent)) = begun else {
            panic!("no stream");
        };
        (call, *sent, *reader)
    }

    /// The task that a call becomes, and its id.
    async fn become_task(
        &self,
        call: &Message,
        sent: CallInFlight,
        reader: Reader,
    ) -> (Arc<Task>, String) {
        let Ok(Ok(state)) = self.tasks.begin(sent, reader, call).await else {
            panic!("no task");
        };
        let state: Value = serde_json::from_slice(&state).unwrap();
        let id = state["taskId"].as_str().unwrap().to_owned();
        let TaskPlace::Here(task) = self.tasks.find(&self.bench.access("one"), &id) else {
            panic!("elsewhere");
        };
        (task, id)
    }

    /// The status of a task of another replica that does not answer.
    async fn status_of(&self, id: &str) -> Value {
        let access = self.bench.access("one");
        let TaskPlace::There(ticket) = self.tasks.find(&access, id) else {
            panic!("here");
        };
        let copy = self.tasks.copy(&access, &ticket).await.unwrap().unwrap();
        let state: Value = serde_json::from_slice(&copy.state).unwrap();
        state["status"].clone()
    }

    async fn end(self) {
        // Tasks end a second later.
        self.bench.drain.cancel();
        self.bench.end().await;
    }
}

/// The status of a task, once it has ended.
async fn ended(task: &Task) -> Value {
    let ended = async {
        loop {
            let state: Value = serde_json::from_slice(&task.state()).unwrap();
            if state["status"] != "working" {
                return state["status"].clone();
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let ended = tokio::time::timeout(Duration::from_secs(20), ended).await;
    ended.expect("it goes on")
}

/// A hundred of them, each just below `limits.line`, took all workers at one moment.
#[tokio::test]
async fn a_large_result_of_a_task_is_read_in_one_turn_and_shown_in_another() {
    let (directory, owner) = replica().await;
    let keys = json!({"reply": {"sse_after": "1ms"}});
    let here = TaskBench::over(&keys, &directory, &owner);
    let args = json!({"ms": 500, "bytes": 300 << 10});
    let (call, sent, reader) = here.call("sleep", &args).await;
    let answered = async {
        let result = r#"lockgate_calls_total{method="tool",outcome="result"} 1"#;
        while !here.bench.hub.0.metrics.render().contains(result) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let answered = tokio::time::timeout(Duration::from_secs(20), answered).await;
    answered.expect("its session does not read it");
    let held = LargeWork::all_turns().await;
    let (task, _) = here.become_task(&call, sent, reader).await;
    let patience = Duration::from_millis(500);
    let early = tokio::time::timeout(patience, ended(&task)).await;
    assert!(early.is_err(), "without a turn");
    // All turns but the first are theirs, and that as well once it was used.
    let others = held.iter().map(|_| LargeWork::turn("other", 1 << 20));
    let mut others: Vec<_> = others.map(Box::pin).collect();
    for other in &mut others {
        assert!(other.now_or_never().is_none());
    }
    drop(held);
    let early = tokio::time::timeout(patience, ended(&task)).await;
    assert!(early.is_err(), "with one turn");
    drop(others);
    assert_eq!(ended(&task).await, "completed");
    here.end().await;
}

/// It had failed for its client, through the others, and was completed when its replica was back.
#[tokio::test]
async fn a_task_that_another_replica_has_claimed_has_failed_at_its_own_too() {
    let (directory, owner) = replica().await;
    let here = TaskBench::new(&directory, &owner);
    let there = TaskBench::new(&directory, &replica_of(&directory, "b").await);
    let (ends, its_id) = here.begin("sleep", &json!({"ms": 1500})).await;
    let (goes_on, id) = here.begin("hang", &json!({})).await;
    directory.is_silent.store(true, Ordering::Relaxed);
    for id in [&its_id, &id] {
        assert_eq!(there.status_of(id).await, "failed");
    }
    directory.is_silent.store(false, Ordering::Relaxed);
    assert_eq!(ended(&ends).await, "failed", "its call ends behind that");
    // One whose call goes on hears of it when the store answers its replica again.
    directory.epoch.fetch_add(1, Ordering::Relaxed);
    owner.beat().await.unwrap();
    assert_eq!(ended(&goes_on).await, "failed");
    for id in [&its_id, &id] {
        assert_eq!(
            there.status_of(id).await,
            "failed",
            "whoever has a heartbeat"
        );
    }
    here.end().await;
    there.end().await;
}

/// It had failed for one poll, and its result was there.
#[tokio::test]
async fn the_end_of_a_task_that_comes_before_its_claim_stays() {
    let (directory, owner) = replica().await;
    let here = TaskBench::new(&directory, &owner);
    let there = TaskBench::new(&directory, &replica_of(&directory, "b").await);
    let (task, id) = here.begin("hang", &json!({})).await;
    directory.is_silent.store(true, Ordering::Relaxed);
    let gate = directory.gate.write().await;
    let mut status = Box::pin(there.status_of(&id));
    tokio::select! {
        status = &mut status => panic!("without a claim: {status}"),
        () = directory.asked.notified() => {}
    }
    task.cancel().await;
    assert_eq!(ended(&task).await, "cancelled");
    drop(gate);
    assert_eq!(status.await, "cancelled");
    // Its own replica asks the store when it is back, and finds the claim.
    let inserted = directory.inserted.load(Ordering::Relaxed);
    directory.epoch.fetch_add(1, Ordering::Relaxed);
    owner.beat().await.unwrap();
    here.tasks.settle(&task).await;
    assert!(directory.inserted.load(Ordering::Relaxed) > inserted);
    assert_eq!(ended(&task).await, "cancelled");
    here.end().await;
    there.end().await;
}

/// Its replica, which had asked the store just before, went on with it for minutes. The claim is that of an earlier
/// build, which no heartbeat counts.
#[tokio::test]
async fn a_claim_just_behind_the_return_of_its_replica_counts() {
    let (directory, owner) = replica().await;
    let here = TaskBench::new(&directory, &owner);
    let other = replica_of(&directory, "b").await;
    let (task, _) = here.begin("hang", &json!({})).await;
    let id = SessionId("task:a:1".into());
    let found = directory.find(&id).await.unwrap().unwrap();
    directory.epoch.fetch_add(1, Ordering::Relaxed);
    owner.beat().await.unwrap();
    here.tasks.settle(&task).await;
    let claimed = Record {
        owner: Some(other.me.clone()),
        fence: Fence(2),
        ..found.record
    };
    assert_eq!(directory.remove(&id, Fence(1)).await, Ok(()));
    assert_eq!(directory.insert(&id, claimed, 1).await, Ok(true));
    let beats = Arc::clone(&owner).run(|_| {}, here.bench.halt.clone());
    here.bench.tracker.spawn(beats);
    assert_eq!(ended(&task).await, "failed");
    here.end().await;
}

/// Each request about it waited for two seconds until it was copied.
#[tokio::test]
async fn a_task_whose_first_copy_was_missed_is_answered_at_once() {
    let (directory, owner) = replica().await;
    let here = TaskBench::new(&directory, &owner);
    let beats = Arc::clone(&owner).run(|_| {}, here.bench.halt.clone());
    here.bench.tracker.spawn(beats);
    directory.is_away.store(true, Ordering::Relaxed);
    let (task, _) = here.begin("hang", &json!({})).await;
    let settled = futures_util::poll!(pin!(here.tasks.settle(&task)));
    assert!(settled.is_ready());
    directory.is_away.store(false, Ordering::Relaxed);
    here.end().await;
}

/// One that went on was copied again half of `log.age` later, and one that had ended never. Where their caller had no
/// room for a second copy beside the one that was gone, neither was.
#[tokio::test]
async fn tasks_are_copied_again_to_a_store_that_was_emptied() {
    let (directory, owner) = replica().await;
    let here = TaskBench::new(&directory, &owner);
    let (done, _) = here.begin("sleep", &json!({"ms": 300})).await;
    here.begin("hang", &json!({})).await;
    assert_eq!(ended(&done).await, "completed");
    let memory = here.bench.hub.limits().memory();
    let access = here.bench.access("one");
    let others: Vec<_> = std::iter::from_fn(|| memory.record(&access, b"")).collect();
    let ids = [1, 2].map(|number| SessionId(format!("task:a:{number}").into()));
    for id in &ids {
        assert_eq!(directory.remove(id, Fence(1)).await, Ok(()));
    }
    directory.epoch.fetch_add(1, Ordering::Relaxed);
    owner.beat().await.unwrap();
    let copied = async {
        for id in &ids {
            while directory.find(id).await.unwrap().is_none() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    };
    let copied = tokio::time::timeout(Duration::from_secs(5), copied).await;
    assert!(copied.is_ok(), "they are here alone");
    drop(others);
    here.end().await;
}

/// They went on at the child for nobody. One that had asked was kept there, where a session that is asked needs room.
#[tokio::test]
async fn the_calls_of_a_session_that_loses_its_place_are_cancelled() {
    let (directory, owner) = replica().await;
    let bench = Bench::over(&json!({"isolation": "principal"}), |stores| {
        stores.directory = Arc::clone(&directory) as _;
        stores.owner = Arc::clone(&owner);
    });
    let beats = Arc::clone(&owner).run(|_| {}, bench.halt.clone());
    bench.tracker.spawn(beats);
    let ada = bench.open("ada").await;
    // Another session of hers in the same child, for which no store is asked.
    let (hub, form) = (&bench.hub, Form::Json);
    let begin = initialize("ada");
    let begun = hub.begin_with(&ada.access, Transport::Stateless, begin, form, None);
    let (_, other, pending) = begun.await.unwrap();
    assert!(matches!(pending.answer().await, Answer::Json(_)));
    let ask = async |tool: &str, args: Value| {
        let call = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call",
            "params": {"name": tool, "arguments": args}});
        let call = Body::parse(call.to_string().into()).unwrap();
        let called = hub.deliver_to(&other, &ada.access, call, form, (None, None));
        let answer = called.await.unwrap().answer();
        let answer = tokio::time::timeout(Duration::from_secs(20), answer).await;
        let Ok(Answer::Json(line)) = answer else {
            panic!("{tool} is not answered");
        };
        String::from_utf8(line.to_vec()).unwrap()
    };
    let nothing = json!({});
    let mut lost = Box::pin(ada.call("hang", &nothing));
    tokio::select! {
        answer = &mut lost => panic!("answered: {answer}"),
        () = busy(&bench) => {}
    }
    // From here on it waits for its lease, and takes nothing from the child.
    directory.is_away.store(true, Ordering::Relaxed);
    for epoch in [1, 0] {
        directory.epoch.store(epoch, Ordering::Relaxed);
        owner.beat().await.unwrap();
    }
    // More than its inbox holds, and then the answer.
    let answer = ask("burst", json!({"n": 600})).await;
    assert!(answer.contains(r#""sent""#), "{answer}");
    directory.is_away.store(false, Ordering::Relaxed);
    let lost = lost.await;
    assert_eq!(lost["error"]["data"]["reason"], "backend_exited", "{lost}");
    let cancelled = async {
        while !ask("received", json!({})).await.contains("/cancelled") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let cancelled = tokio::time::timeout(Duration::from_secs(20), cancelled).await;
    assert!(cancelled.is_ok(), "the child works on for nobody");
    bench.end().await;
}

/// The child would end without being stopped, and be counted for ever.
#[tokio::test]
async fn a_child_whose_owner_goes_during_the_probe_is_stopped() {
    let bench = Bench::new(&json!({"env": {"CHILD_IGNORES_UNKNOWN": "1"}}));
    let pool = Arc::clone(&bench.hub.0.pool);
    let occasion = Occasion {
        is_modern: true,
        ..Occasion::default()
    };
    let children = || {
        let text = bench.hub.0.metrics.render();
        let level = text
            .lines()
            .find_map(|line| line.strip_prefix("lockgate_children "));
        level.unwrap_or_default().to_owned()
    };
    let got = Arc::clone(&pool).get(Arc::clone(&bench.server), 0, None, occasion);
    let got = tokio::time::timeout(Duration::from_secs(1), got).await;
    assert!(got.is_err(), "the probe takes longer");
    assert_eq!(children(), "1");
    let stopped = async {
        while children() != "0" {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let stopped = tokio::time::timeout(Duration::from_secs(20), stopped).await;
    assert!(stopped.is_ok());
    bench.end().await;
}

/// Tenants make servers and delete them, and what their tools were was kept.
#[tokio::test]
async fn the_tools_of_a_server_that_is_gone_are_forgotten() {
    let bench = Bench::new(&json!({}));
    let catalog = |server: &str| {
        let manifest = json!({"version": 1, "tenants": {"a": {"auth": {"mode": "none"},
            "servers": {server: {"command": "x"}}}}});
        let manifest = reader::parse("F", &manifest.to_string(), Format::Json, &BTreeMap::new());
        Arc::new(manifest.unwrap().catalog)
    };
    let (hub, tools) = (&bench.hub, &bench.hub.0.tools);
    hub.follow(&catalog("main")).await;
    tools.compare(&bench.server, br#"[{"name": "x"}]"#);
    hub.follow(&catalog("main")).await;
    assert!(tools.has(&bench.server));
    hub.follow(&catalog("other")).await;
    assert!(!tools.has(&bench.server));
    bench.end().await;
}

/// Polls a future so many times at most.
async fn polled<F: Future>(mut polls: u32, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_fn(|cx| {
        let polled = future.as_mut().poll(cx).map(Some);
        polls -= 1;
        if polls == 0 && polled.is_pending() {
            return Poll::Ready(None);
        }
        polled
    })
    .await
}

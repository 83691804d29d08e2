//! Contract tests of the event log and the directory, in memory, on Redis and on Valkey.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::state::{
    ClaimFrom, Directory, EventLog, Fence, LogShare, OpenStream, Record, Replica, ReplicaKeys,
    SessionId, StoreError, WriteTarget,
    memory::{MemoryDirectory, MemoryLog, Retention},
    redis::{Redis, RedisDirectory, RedisLog, Settings},
};
use crate::{
    base::{MacKeys, Secret},
    protocol::StreamId,
};

#[path = "../../../tests/it/support/redis.rs"]
#[expect(clippy::disallowed_methods, dead_code, reason = "shared with tests/it")]
pub(crate) mod server;

pub(crate) use server::{Kind, Redis as Server, Reply};

/// The supported servers.
pub(super) const KINDS: [Kind; 2] = [Kind::Redis, Kind::Valkey];

pub(crate) const KEEP: Retention = Retention {
    events: 3,
    bytes: 1024,
    age: Duration::from_secs(60),
};

/// A retention large enough for every test except those of the bounds.
pub(super) const PLENTY: Retention = Retention {
    events: 10_000,
    bytes: 64 * 1024 * 1024,
    age: Duration::from_secs(60),
};

/// The log and directory of one replica.
pub(super) struct Side {
    pub(crate) log: Arc<dyn EventLog>,
    pub(super) directory: Arc<dyn Directory>,
    pub(crate) me: Replica,
    epoch: u32,
    tracker: TaskTracker,
    pub(crate) halt: CancellationToken,
}

impl Side {
    pub(super) async fn in_memory(retention: Retention) -> Self {
        let log = Arc::new(MemoryLog::new(retention));
        Self::with("a", log, Arc::new(MemoryDirectory::default())).await
    }

    /// Another replica on the same log and directory.
    pub(super) fn again(&self, boot: &str) -> Self {
        Self {
            log: Arc::clone(&self.log),
            directory: Arc::clone(&self.directory),
            me: replica(boot),
            epoch: self.epoch,
            tracker: TaskTracker::new(),
            halt: CancellationToken::new(),
        }
    }

    async fn with(boot: &str, log: Arc<dyn EventLog>, directory: Arc<dyn Directory>) -> Self {
        let mut side = Self {
            log,
            directory,
            me: replica(boot),
            epoch: 0,
            tracker: TaskTracker::new(),
            halt: CancellationToken::new(),
        };
        side.beat().await;
        side
    }

    pub(crate) async fn on(server: &Server, boot: &str, retention: Retention) -> Self {
        let (tracker, halt) = (TaskTracker::new(), CancellationToken::new());
        let redis = redis(server, &tracker, &halt);
        let (halted, name) = (halt.clone(), boot.into());
        let log = RedisLog::new(redis.clone(), name, retention, MAX_EVENT, &tracker, halted);
        let directory = Arc::new(RedisDirectory::new(redis, boot.into(), keys()));
        Self {
            tracker,
            halt,
            ..Self::with(boot, Arc::new(log), directory).await
        }
    }

    pub(crate) async fn beat(&mut self) -> bool {
        let beat = self.directory.beat(&self.me).await.unwrap();
        self.epoch = beat.epoch;
        beat.is_recovering
    }

    /// Adds a session with this fence.
    pub(crate) async fn add(&self, id: &str, fence: u64) -> Result<bool, StoreError> {
        let record = record(&self.me, fence);
        self.directory
            .insert(&session(id), record, self.epoch)
            .await
    }

    /// Claims the session from its owner; returns the new fence.
    pub(crate) async fn take(&self, id: &str) -> u64 {
        let found = self.directory.find(&session(id)).await.unwrap().unwrap();
        let claimed = self
            .directory
            .claim(&session(id), &found.record, &self.me, ClaimFrom::Any)
            .await;
        claimed.unwrap().unwrap().fence.0
    }

    pub(crate) fn spot(&self, id: &str, stream: StreamId, fence: u64) -> WriteTarget {
        WriteTarget {
            session: session(id),
            stream,
            fence: Fence(fence),
            epoch: self.epoch,
            share: LogShare::plenty(),
        }
    }

    pub(crate) async fn append(
        &self,
        id: &str,
        stream: StreamId,
        fence: u64,
        number: u64,
    ) -> Result<(), StoreError> {
        let at = self.spot(id, stream, fence);
        self.log.append(&at, number, event(number), None).await
    }

    /// The numbers of the events read, and whether the stream ends after them.
    pub(crate) async fn read(
        &self,
        id: &str,
        stream: StreamId,
        after: u64,
    ) -> Result<(Vec<u64>, bool), StoreError> {
        let page = self.log.read(&session(id), stream, after).await?;
        for (number, found) in &page.events {
            assert_eq!(*found, event(*number), "its own event");
        }
        let numbers = page.events.into_iter().map(|(number, _)| number);
        Ok((numbers.collect(), page.is_end))
    }

    /// Stops the replica, and checks that all of its tasks end.
    pub(crate) async fn end(self) {
        self.halt.cancel();
        self.tracker.close();
        let ended = tokio::time::timeout(Duration::from_secs(2), self.tracker.wait()).await;
        ended.expect("all tasks end");
    }
}

pub(crate) fn redis(server: &Server, tracker: &TaskTracker, halt: &CancellationToken) -> Redis {
    let settings = Settings {
        url: Secret::of(server.url()).unwrap(),
        prefix: "t".into(),
        authorities: None,
    };
    Redis::open(&settings, tracker, halt).unwrap()
}

pub(crate) fn replica(boot: &str) -> Replica {
    Replica {
        address: format!("{boot}.test:1").into(),
        boot: boot.into(),
    }
}

/// The keys of the deployment.
pub(crate) fn keys() -> ReplicaKeys {
    ReplicaKeys::new(MacKeys::new([&[7; 32]]))
}

pub(crate) fn record(owner: &Replica, fence: u64) -> Record {
    Record {
        principal: "ada".into(),
        server: "files".into(),
        owner: Some(owner.clone()),
        fence: Fence(fence),
        kept: Bytes::from_static(b"\0kept\xff"),
        ttl: Duration::from_secs(100),
        age: Duration::ZERO,
    }
}

pub(crate) fn session(id: &str) -> SessionId {
    SessionId(id.into())
}

pub(crate) fn event(number: u64) -> Bytes {
    format!("event {number}").into()
}

pub(crate) fn gone<T>(found: &Result<T, StoreError>) -> bool {
    matches!(found, Err(StoreError::Trimmed { .. }))
}

/// Waits until `is_so` returns true; returns the time that this took.
pub(crate) async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) -> Duration {
    let began = tokio::time::Instant::now();
    while !is_so().await {
        assert!(began.elapsed() < Duration::from_secs(20), "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    began.elapsed()
}

// The contract of an event log.

async fn numbers_and_fences(side: &Side) {
    for id in ["a", "b"] {
        assert_eq!(side.add(id, 2).await, Ok(true));
    }
    for number in 1..=3 {
        assert_eq!(side.append("a", 0, 2, number).await, Ok(()));
        assert_eq!(
            side.read("a", 0, number - 1).await,
            Ok((vec![number], false))
        );
    }
    assert_eq!(side.append("a", 0, 2, 3).await, Ok(()), "kept once");
    assert_eq!(
        side.append("a", 7, 2, 1).await,
        Ok(()),
        "each stream by itself"
    );
    assert_eq!(side.append("b", 0, 2, 1).await, Ok(()), "each session too");
    assert_eq!(side.take("a").await, 3);
    assert_eq!(side.append("a", 0, 3, 4).await, Ok(()));
    assert_eq!(side.append("a", 0, 2, 5).await, Err(StoreError::Fenced));
    assert_eq!(
        side.log.end(&side.spot("a", 0, 2)).await,
        Err(StoreError::Fenced)
    );
    assert_eq!(
        side.read("a", 0, 1).await,
        Ok((vec![2, 3, 4], false)),
        "nothing was kept"
    );
}

async fn reads_without_a_gap(side: &Side) {
    side.add("gap", 1).await.unwrap();
    for number in 1..=5 {
        assert_eq!(side.append("gap", 0, 1, number).await, Ok(()));
    }
    for (after, numbers) in [(2, vec![3, 4, 5]), (4, vec![5]), (5, vec![])] {
        assert_eq!(side.read("gap", 0, after).await, Ok((numbers, false)));
    }
    let table = [
        ("gap", 0, 1),
        ("gap", 0, 0),
        ("gap", 0, 6),
        ("gap", 9, 0),
        ("none", 0, 0),
    ];
    for (id, stream, after) in table {
        let found = side.read(id, stream, after).await;
        assert!(gone(&found), "{id} {stream} {after}: {found:?}");
    }
}

async fn nothing_follows_the_end(side: &Side) {
    side.add("end", 1).await.unwrap();
    assert_eq!(side.append("end", 1, 1, 1).await, Ok(()));
    assert_eq!(side.log.end(&side.spot("end", 1, 1)).await, Ok(()));
    assert_eq!(side.append("end", 1, 1, 2).await, Err(StoreError::Fenced));
    assert_eq!(side.log.end(&side.spot("end", 1, 1)).await, Ok(()));
    assert_eq!(side.read("end", 1, 0).await, Ok((vec![1], true)));
    assert_eq!(side.read("end", 1, 1).await, Ok((vec![], true)));
    assert_eq!(
        side.append("end", 2, 1, 1).await,
        Ok(()),
        "other streams go on"
    );
}

/// A batch whose reply was lost is written again as a whole.
async fn a_repeated_write_changes_nothing(side: &Side) {
    side.add("again", 1).await.unwrap();
    let at = side.spot("again", 1, 1);
    for _ in 0..2 {
        let kept = [
            side.log.open(&at, 0, Bytes::new()),
            side.log.append(&at, 1, event(1), None),
            side.log.append(&at, 2, event(2), Some(Bytes::new())),
            side.log.end(&at),
        ];
        for kept in kept {
            assert_eq!(kept.await, Ok(()));
        }
        assert_eq!(side.read("again", 1, 0).await, Ok((vec![1, 2], true)));
    }
    assert_eq!(side.append("again", 1, 1, 3).await, Err(StoreError::Fenced));
    let left = side.log.streams(&session("again")).await.unwrap();
    assert_eq!((left.highest, left.open), (1, vec![]), "it stays ended");
}

async fn a_new_owner_finds_what_is_open(side: &Side) {
    side.add("open", 1).await.unwrap();
    let calls = |text: &'static str| Bytes::from_static(text.as_bytes());
    for stream in [1, 2, 3] {
        let at = side.spot("open", stream, 1);
        assert_eq!(side.log.open(&at, 0, calls("two")).await, Ok(()));
    }
    assert_eq!(
        side.read("open", 2, 0).await,
        Ok((vec![], false)),
        "it has begun"
    );
    let at = side.spot("open", 2, 1);
    let kept = side.log.append(&at, 1, event(1), Some(calls("one")));
    assert_eq!(kept.await, Ok(()));
    assert_eq!(side.append("open", 2, 1, 2).await, Ok(()));
    assert_eq!(side.log.end(&side.spot("open", 3, 1)).await, Ok(()));
    let mut found = side.log.streams(&session("open")).await.unwrap();
    found.open.sort_by_key(|open| open.stream);
    let open = |stream, last, text| OpenStream {
        stream,
        last,
        calls: calls(text),
    };
    assert_eq!(
        (found.highest, found.open),
        (3, vec![open(1, 0, "two"), open(2, 2, "one")])
    );
    let none = side.log.streams(&session("none")).await.unwrap();
    assert_eq!(none, crate::state::Streams::default());
}

async fn writes_keep_their_order_unpolled(side: &Side) {
    side.add("order", 1).await.unwrap();
    let mut kept = Vec::new();
    for stream in [1, 2] {
        let at = side.spot("order", stream, 1);
        kept.push(side.log.open(&at, 0, Bytes::new()));
        for number in 1..=3 {
            kept.push(side.log.append(&at, number, event(number), None));
        }
        kept.push(side.log.end(&at));
    }
    // Awaits the last write first. The writes before it are then complete.
    assert_eq!(kept.pop().unwrap().await, Ok(()));
    for stream in [1, 2] {
        assert_eq!(
            side.read("order", stream, 0).await,
            Ok((vec![1, 2, 3], true))
        );
    }
    for kept in kept {
        assert_eq!(kept.await, Ok(()));
    }
}

async fn forget_leaves_nothing(side: &Side) {
    for id in ["forget", "stays"] {
        side.add(id, 5).await.unwrap();
        assert_eq!(side.append(id, 1, 5, 1).await, Ok(()));
    }
    side.log.forget(&session("forget")).await;
    assert!(gone(&side.read("forget", 1, 0).await));
    assert_eq!(side.read("stays", 1, 0).await, Ok((vec![1], false)));
    assert_eq!(
        side.append("forget", 1, 5, 1).await,
        Ok(()),
        "it may begin again"
    );
}

// The contract of a directory.

/// Claims a session from any owner; returns its new fence.
async fn claim(
    directory: &Arc<dyn Directory>,
    id: &SessionId,
    seen: &Record,
    me: &Replica,
) -> Result<Option<Fence>, StoreError> {
    let claimed = directory.claim(id, seen, me, ClaimFrom::Any).await?;
    Ok(claimed.map(|claimed| claimed.fence))
}

async fn sessions_are_added_once_and_found(side: &Side, other: &Replica) {
    let (id, directory) = (session("once"), &side.directory);
    assert!(directory.find(&id).await.unwrap().is_none());
    assert_eq!(side.add("once", 1).await, Ok(true));
    assert_eq!(side.add("once", 1).await, Ok(true), "the same again");
    assert_eq!(side.add("once", 2).await, Ok(false));
    let taken = directory.insert(&id, record(other, 1), side.epoch).await;
    assert_eq!(taken, Ok(false), "somebody else's");
    let found = directory.find(&id).await.unwrap().unwrap();
    let (known, expected) = (found.record, record(&side.me, 1));
    assert_eq!((&*known.principal, &*known.server), ("ada", "files"));
    assert_eq!((known.owner, known.fence), (expected.owner, Fence(1)));
    assert_eq!((known.kept, known.ttl), (expected.kept, expected.ttl));
    assert!(known.age < Duration::from_secs(5) && found.heartbeat_age.is_some());
    let age = directory.heartbeat_age(&side.me).await.unwrap();
    assert!(age.is_some_and(|age| age < Duration::from_secs(5)));
}

async fn one_of_two_claims_takes_place(side: &Side, other: &Replica) {
    let (id, directory) = (session("claimed"), &side.directory);
    side.add("claimed", 1).await.unwrap();
    let seen = directory.find(&id).await.unwrap().unwrap().record;
    let first = claim(directory, &id, &seen, other).await;
    assert_eq!(first, Ok(Some(Fence(2))));
    assert_eq!(claim(directory, &id, &seen, &side.me).await, Ok(None));
    let seen = directory.find(&id).await.unwrap().unwrap().record;
    assert_eq!((seen.owner.as_ref(), seen.fence), (Some(other), Fence(2)));
    let none = claim(directory, &session("nobody"), &seen, other).await;
    assert_eq!(none, Ok(None));
    let back = claim(directory, &id, &seen, &side.me).await;
    assert_eq!(back, Ok(Some(Fence(3))));
    let seen = directory.find(&id).await.unwrap().unwrap().record;
    // A wrong fence changes nothing.
    let kept = Bytes::from_static(b"new");
    for fence in [2, 4] {
        let fence = Fence(fence);
        let changed = directory.keep(&id, fence, Some(kept.clone())).await;
        assert_eq!(changed, Err(StoreError::Fenced));
        assert_eq!(directory.release(&id, fence).await, Err(StoreError::Fenced));
        assert_eq!(directory.remove(&id, fence).await, Err(StoreError::Fenced));
    }
    let found = directory.find(&id).await.unwrap().unwrap().record;
    assert_eq!((found.kept, found.owner), (seen.kept, seen.owner));
    assert_eq!(
        directory.keep(&id, Fence(3), Some(kept.clone())).await,
        Ok(())
    );
    assert_eq!(directory.keep(&id, Fence(3), None).await, Ok(()));
    assert_eq!(directory.release(&id, Fence(3)).await, Ok(()));
    let found = directory.find(&id).await.unwrap().unwrap();
    assert!(found.record.owner.is_none() && found.heartbeat_age.is_none());
    assert_eq!(found.record.kept, kept);
    let claimed = claim(directory, &id, &found.record, &side.me).await;
    assert_eq!(claimed, Ok(Some(Fence(4))));
    assert_eq!(directory.remove(&id, Fence(4)).await, Ok(()));
    assert!(directory.find(&id).await.unwrap().is_none());
}

/// A task whose owner is gone is claimed by whoever answers for it.
async fn an_owner_adds_nothing_behind_a_claim(side: &Side, other: &Replica) {
    let (id, directory) = (session("lost"), &side.directory);
    assert_eq!(side.add("lost", 1).await, Ok(true));
    let seen = directory.find(&id).await.unwrap().unwrap().record;
    // What its owner adds between the look and the claim is there behind it.
    let last = Record {
        kept: Bytes::from_static(b"last"),
        ..record(&side.me, 1)
    };
    let added = directory.insert(&id, last, side.epoch).await;
    assert_eq!(added, Ok(true));
    let claimed = directory.claim(&id, &seen, other, ClaimFrom::Any).await;
    let claimed = claimed.unwrap().unwrap();
    assert_eq!((claimed.fence, &*claimed.kept), (Fence(2), &b"last"[..]));
    assert_eq!(side.add("lost", 1).await, Ok(false));
    assert_eq!(
        directory.remove(&id, Fence(1)).await,
        Err(StoreError::Fenced)
    );
    let found = directory.find(&id).await.unwrap().unwrap().record;
    assert_eq!(
        (found.owner.as_ref(), &*found.kept),
        (Some(other), &b"last"[..])
    );
}

/// An owner that may wake up has to hear that another replica has its session.
async fn an_owner_hears_of_each_claim(side: &Side, other: &Replica) {
    let (id, directory) = (session("heard"), &side.directory);
    assert_eq!(side.add("heard", 1).await, Ok(true));
    let claims = async |replica: &Replica| directory.beat(replica).await.unwrap().claims;
    let before = claims(&side.me).await;
    let seen = directory.find(&id).await.unwrap().unwrap().record;
    let refused = directory.claim(&id, &seen, other, ClaimFrom::Silent).await;
    assert_eq!(refused, Ok(None), "it lives");
    assert_eq!(claims(&side.me).await, before);
    let claimed = claim(directory, &id, &seen, other).await;
    assert_eq!(claimed, Ok(Some(Fence(2))));
    assert_eq!(claim(directory, &id, &seen, other).await, Ok(None));
    for _ in 0..2 {
        assert_eq!(claims(&side.me).await, before + 1, "until the next one");
    }
    let of_other = claims(other).await;
    let seen = directory.find(&id).await.unwrap().unwrap().record;
    let own = directory.claim(&id, &seen, other, ClaimFrom::Silent).await;
    assert_eq!(own.unwrap().unwrap().fence, Fence(3));
    assert_eq!(claims(other).await, of_other, "its own");
    let seen = directory.find(&id).await.unwrap().unwrap().record;
    let back = claim(directory, &id, &seen, &side.me).await;
    assert_eq!(back, Ok(Some(Fence(4))));
    assert_eq!(claims(other).await, of_other + 1);
    assert_eq!(directory.release(&id, Fence(4)).await, Ok(()));
    let seen = directory.find(&id).await.unwrap().unwrap().record;
    let left = directory.claim(&id, &seen, other, ClaimFrom::Silent);
    assert_eq!(left.await.unwrap().unwrap().fence, Fence(5));
    assert_eq!(claims(&side.me).await, before + 1, "nobody's");
}

/// The whole contract, except that `remove` removes the streams too: that holds only where log and
/// directory share a store.
async fn keeps_all(side: &Side) {
    numbers_and_fences(side).await;
    reads_without_a_gap(side).await;
    nothing_follows_the_end(side).await;
    a_repeated_write_changes_nothing(side).await;
    a_new_owner_finds_what_is_open(side).await;
    writes_keep_their_order_unpolled(side).await;
    forget_leaves_nothing(side).await;
    sessions_are_added_once_and_found(side, &replica("b")).await;
    one_of_two_claims_takes_place(side, &replica("b")).await;
    an_owner_adds_nothing_behind_a_claim(side, &replica("b")).await;
    an_owner_hears_of_each_claim(side, &replica("b")).await;
}

#[tokio::test]
async fn memory_keeps_the_promises() {
    keeps_all(&Side::in_memory(KEEP).await).await;
}

#[tokio::test]
async fn redis_keeps_the_promises() {
    for kind in KINDS {
        let server = Server::start(kind);
        let side = Side::on(&server, "a", KEEP).await;
        keeps_all(&side).await;
        side.end().await;
    }
}

#[tokio::test]
async fn another_replica_reads_what_is_kept() {
    for kind in KINDS {
        let server = Server::start(kind);
        let (one, two) = (
            Side::on(&server, "one", KEEP).await,
            Side::on(&server, "two", KEEP).await,
        );
        one.add("s", 1).await.unwrap();
        one.log
            .open(&one.spot("s", 0, 1), 0, Bytes::new())
            .await
            .unwrap();
        assert_eq!(two.read("s", 0, 0).await, Ok((vec![], false)));
        for number in 1..=5 {
            one.append("s", 0, 1, number).await.unwrap();
        }
        assert_eq!(two.read("s", 0, 2).await, Ok((vec![3, 4, 5], false)));
        assert!(gone(&two.read("s", 0, 1).await) && gone(&two.read("s", 0, 6).await));
        // The new owner continues after the last event, and the old owner is fenced.
        assert_eq!(two.take("s").await, 2);
        assert_eq!(two.append("s", 0, 2, 6).await, Ok(()));
        assert_eq!(one.append("s", 0, 1, 6).await, Err(StoreError::Fenced));
        assert_eq!(
            one.log.end(&one.spot("s", 0, 1)).await,
            Err(StoreError::Fenced)
        );
        one.log.forget(&session("s")).await;
        assert_eq!(
            two.read("s", 0, 3).await,
            Ok((vec![4, 5, 6], false)),
            "of both"
        );
        assert_eq!(
            one.read("s", 0, 3).await,
            Ok((vec![4, 5, 6], false)),
            "and here too"
        );
        assert_eq!(two.log.end(&two.spot("s", 0, 2)).await, Ok(()));
        assert_eq!(one.read("s", 0, 6).await, Ok((vec![], true)));
        two.log.release(&session("s")).await;
        assert_eq!(two.read("s", 0, 5).await, Ok((vec![6], true)));
        one.end().await;
        two.end().await;
    }
}

const MAX_EVENT: usize = 4096;

//! The seams behind which state is kept: the event log, the directory of sessions, and limits.
//!
//! Each contract is the prose on its trait. The memory implementation is a product
//! feature: it is all that a gateway on one machine needs.

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;

use crate::protocol::StreamId;

/// A future that a seam returns.
pub(crate) type Later<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The id of a session: 128 random bits, as text that is safe in a header and a URL.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SessionId(pub(crate) Arc<str>);

impl SessionId {
    /// The whole id: a secret in the legacy era, so never for a log.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Enough of it to find a session in the logs, too little to use it.
    pub(crate) fn short(&self) -> &str {
        self.0.get(..8).unwrap_or_default()
    }
}

impl std::borrow::Borrow<str> for SessionId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// Grows with each change of a session's owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Fence(pub(crate) u64);

/// Events of one stream, in order.
#[derive(Debug, Default)]
pub(crate) struct Page {
    /// The events behind the cursor, with their sequence numbers, oldest first.
    pub(crate) events: Vec<(u64, Bytes)>,
    /// Whether the stream has ended and nothing is left behind these events.
    pub(crate) is_end: bool,
}

/// Why a store did not do it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum StoreError {
    /// Events behind the cursor are no longer kept, or the stream itself is not.
    #[error("events behind the cursor are gone")]
    Trimmed {
        /// The number before the oldest event that is kept.
        oldest: u64,
    },
    /// Somebody else owns the session now, or it was removed.
    #[error("fenced")]
    Fenced,
    /// The store lost what it had: it has another epoch than the caller.
    #[error("the store was flushed")]
    Flushed,
    /// The store cannot be reached, is full, or takes no writes.
    #[error("the store is away")]
    Away,
}

/// Where an owner writes: one stream of one session, with what its right to it rests on.
#[derive(Clone, Debug)]
pub(crate) struct Spot {
    /// The session.
    pub(crate) session: SessionId,
    /// Its stream.
    pub(crate) stream: StreamId,
    /// The owner's number.
    pub(crate) fence: Fence,
    /// The life of the log that the owner knows.
    pub(crate) epoch: u32,
}

/// An open stream, as a new owner finds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OpenStream {
    /// Which one.
    pub(crate) stream: StreamId,
    /// The number of its last event.
    pub(crate) last: u64,
    /// What `open` or a later `append` said of the calls that it still waits for.
    pub(crate) calls: Bytes,
}

/// The streams of a session, as a new owner finds them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Streams {
    /// The highest stream that was ever opened, whether it is still kept or not.
    pub(crate) highest: StreamId,
    /// Those that have not ended.
    pub(crate) open: Vec<OpenStream>,
}

/// The ordered events of every stream.
///
/// 1. What is written for one session happens in the order of the calls, whether their futures
///    are polled or not; a future is ready when its event is kept. Dropping one may undo it.
/// 2. The owner numbers the events of a stream, from 1 on without a gap. An event that is kept
///    already is kept once, however often it is appended under its number.
/// 3. `read` returns the events behind a cursor in order, without a gap: where a part of
///    them is no longer kept it fails with `Trimmed` and returns none. It may return events whose
///    append is not ready yet; its caller knows which are.
/// 4. `end` is the last thing that happens to a stream; afterwards `append` fails with `Fenced`.
/// 5. A stream is kept within the bounds of events, bytes and age; the oldest go first, and the
///    newest always stays.
/// 6. A write with a smaller fence than the session's fails with `Fenced`, one with another epoch
///    than the store's with `Flushed`; either keeps nothing. While the store is away, a write
///    waits; a read fails with `Away`.
/// 7. `forget` leaves nothing of a session; `release` leaves nothing of it in this process that
///    another replica could not read.
pub(crate) trait EventLog: Send + Sync {
    /// Makes a stream known before anybody is told of it, or what of it changed; `calls` is for the
    /// next owner. One that the log does not know goes on behind event `last`.
    fn open(&self, at: &Spot, last: u64, calls: Bytes) -> Later<'static, Result<(), StoreError>>;

    /// Keeps one event under its number; `calls` replaces what was said of them.
    fn append(
        &self,
        at: &Spot,
        number: u64,
        event: Bytes,
        calls: Option<Bytes>,
    ) -> Later<'static, Result<(), StoreError>>;

    /// Marks a stream as ended.
    fn end(&self, at: &Spot) -> Later<'static, Result<(), StoreError>>;

    /// Reads what stands behind number `after`, at most about 256 KiB of it.
    fn read<'a>(
        &'a self,
        session: &'a SessionId,
        stream: StreamId,
        after: u64,
    ) -> Later<'a, Result<Page, StoreError>>;

    /// What a new owner has to go on with.
    fn streams<'a>(&'a self, session: &'a SessionId) -> Later<'a, Result<Streams, StoreError>>;

    /// Drops every stream of a session.
    fn forget<'a>(&'a self, session: &'a SessionId) -> Later<'a, ()>;

    /// Drops what this process keeps of a session that goes on elsewhere.
    fn release<'a>(&'a self, session: &'a SessionId) -> Later<'a, ()>;
}

/// A replica in one of its lives.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Replica {
    /// Where others reach it: `host:port`.
    pub(crate) address: Arc<str>,
    /// Random at each start.
    pub(crate) boot: Arc<str>,
}

/// What the directory knows of a session.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    /// Whose session it is, as one text; nobody else learns that it exists.
    pub(crate) principal: Arc<str>,
    /// The tenant's server that it belongs to.
    pub(crate) server: String,
    /// Its present owner; none while nobody owns it.
    pub(crate) owner: Option<Replica>,
    /// The number of its present or last owner.
    pub(crate) fence: Fence,
    /// What the owner keeps for the next one.
    pub(crate) kept: Bytes,
    /// For how long it outlives its owner's last sign.
    pub(crate) ttl: Duration,
    /// How long ago the session began, by the store's clock.
    pub(crate) age: Duration,
}

/// A record that was found.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// It.
    pub(crate) record: Record,
    /// How long ago its owner gave its last sign of life; none within the last 5 s.
    pub(crate) sign: Option<Duration>,
}

/// What a replica learns by its heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Beat {
    /// The life of the store; another one after it lost what it had.
    pub(crate) epoch: u32,
    /// Whether what was lost may still be registered again by its owners: an id that is not
    /// there may be there soon.
    pub(crate) is_recovering: bool,
}

/// Which sessions there are, and who owns them.
///
/// 1. `insert` returns false for an id that is there, unless it has the same owner and fence.
/// 2. `find` returns what was inserted and kept, until `remove` or its `ttl` has passed since the
///    owner's last `insert`, `keep` or `claim`. It fails with `Flushed` where an id is not there
///    because the store has another epoch than at the last heartbeat.
/// 3. `claim` takes place only if owner and fence are still those that the claimer has seen; the
///    fence grows by one.
/// 4. `keep`, `release` and `remove` with an old fence fail with `Fenced`, and do nothing.
/// 5. `remove` drops the session's streams too. `release` leaves a session without an owner.
/// 6. Everything fails with `Away` while the store is; nothing waits longer than a second.
/// 7. A heartbeat stands for 5 s. `insert` fails with `Flushed` under another epoch.
pub(crate) trait Directory: Send + Sync {
    /// Says that a replica lives.
    fn beat<'a>(&'a self, replica: &'a Replica) -> Later<'a, Result<Beat, StoreError>>;
    /// The replicas that begin sessions, as of their last heartbeats; in one process that is nobody
    /// else.
    fn open(&self) -> Later<'_, Result<Vec<Replica>, StoreError>>;
    /// The replica begins no more sessions, and lives.
    fn close<'a>(&'a self, replica: &'a Replica) -> Later<'a, ()>;
    /// Takes back the heartbeat: the replica ends.
    fn leave<'a>(&'a self, replica: &'a Replica) -> Later<'a, ()>;
    /// Adds a session; false if the id is taken.
    fn insert<'a>(
        &'a self,
        session: &'a SessionId,
        record: Record,
        epoch: u32,
    ) -> Later<'a, Result<bool, StoreError>>;
    /// Looks a session up.
    fn find<'a>(&'a self, session: &'a SessionId) -> Later<'a, Result<Option<Found>, StoreError>>;
    /// Makes `me` the owner, if what was `seen` is still true. Returns the new fence.
    fn claim<'a>(
        &'a self,
        session: &'a SessionId,
        seen: &'a Record,
        me: &'a Replica,
    ) -> Later<'a, Result<Option<Fence>, StoreError>>;
    /// The session lives; its `kept` is replaced.
    fn keep<'a>(
        &'a self,
        session: &'a SessionId,
        fence: Fence,
        kept: Option<Bytes>,
    ) -> Later<'a, Result<(), StoreError>>;
    /// The owner lets go of a session, which goes on.
    fn release<'a>(
        &'a self,
        session: &'a SessionId,
        fence: Fence,
    ) -> Later<'a, Result<(), StoreError>>;
    /// Drops a session.
    fn remove<'a>(
        &'a self,
        session: &'a SessionId,
        fence: Fence,
    ) -> Later<'a, Result<(), StoreError>>;
}

/// What is counted together: one limit of one tenant, principal or address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Account(pub(crate) Arc<str>);

/// A place among those that an account has; dropping it gives it back.
pub(crate) struct Seat(Option<Box<dyn FnOnce() + Send + Sync>>);

impl Seat {
    /// A seat that is given back by `release`, which must not wait.
    pub(crate) fn new(release: impl FnOnce() + Send + Sync + 'static) -> Self {
        Self(Some(Box::new(release)))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if let Some(release) = self.0.take() {
            release();
        }
    }
}

/// How much of its limits each account uses.
///
/// 1. `draw` gives at most `wanted`, and to one account over any `t` seconds at most
///    `rate * (1 + t)`: what is not drawn is kept for one second and no longer.
/// 2. What one account draws is never taken from another one.
/// 3. `enter` gives a seat while fewer than `most` seats of the account are out, and none
///    otherwise, however many ask at once.
/// 4. A seat counts from before it is returned until it is dropped. A future of `enter` that is
///    dropped before it is done leaves nothing that counts.
/// 5. Accounts that nobody uses are forgotten.
/// 6. The caller spends what it drew without asking, and does not wait for a draw: one that takes
///    long is late, and costs no call anything.
pub(crate) trait Limiter: Send + Sync {
    /// Draws an allotment from an account that is filled with `rate` a second.
    fn draw(self: Arc<Self>, account: Account, rate: u64, wanted: u64) -> Later<'static, u64>;

    /// Takes a seat.
    fn enter(self: Arc<Self>, account: Account, most: u64) -> Later<'static, Option<Seat>>;
}

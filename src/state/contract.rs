//! The contracts of session state: the traits [`EventLog`], [`Directory`] and [`Limiter`].
//!
//! The docs of each trait are its contract, and `tests/contract.rs` runs it against both
//! implementations. The one in memory is a product feature: a gateway on one machine needs nothing
//! else.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::Poll,
    time::Duration,
};

use bytes::Bytes;

use crate::{
    base::budget::{Budget, Drawn},
    protocol::StreamId,
};

/// The future that the traits return.
pub(crate) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The id of a session: 128 random bits, as text that is safe in a header and a URL.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SessionId(pub(crate) Arc<str>);

impl SessionId {
    /// The whole id. It is a secret in revisions before 2026-07-28, so it never goes to a log.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// The first characters, by which logs, audit records, lists and commands name a session: enough
    /// to tell sessions apart, too few to use one (80 of 128 bits stay secret).
    pub(crate) fn short(&self) -> &str {
        Self::shown(&self.0)
    }

    /// The same of an id that is a plain text.
    pub(crate) fn shown(id: &str) -> &str {
        id.get(..SHORT).unwrap_or_default()
    }
}

/// The characters of an id that are shown.
const SHORT: usize = 12;

impl std::borrow::Borrow<str> for SessionId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// The fencing number of a session, which grows with each change of its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Fence(pub(crate) u64);

/// Consecutive events of one stream.
#[derive(Debug, Default)]
pub(crate) struct Page {
    /// The events behind the cursor, with their sequence numbers, oldest first.
    pub(crate) events: Vec<(u64, Bytes)>,
    /// The stream has ended, and no event follows these.
    pub(crate) is_end: bool,
}

/// The reason why an operation on the state failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum StoreError {
    /// Events behind the cursor, or the whole stream, are no longer kept.
    #[error("events behind the cursor are gone")]
    Trimmed {
        /// The number before the oldest event that is kept.
        oldest: u64,
    },
    /// Another replica owns the session, or it was removed.
    #[error("fenced")]
    Fenced,
    /// The state was lost: it has another epoch than the caller knows.
    #[error("the store was flushed")]
    Flushed,
    /// The state is unreachable, full, or read-only.
    #[error("the store is away")]
    Away,
}

/// The target of a write: one stream of one session, with the fence and epoch that permit the
/// write.
#[derive(Clone, Debug)]
pub(crate) struct WriteTarget {
    /// The session.
    pub(crate) session: SessionId,
    /// Its stream.
    pub(crate) stream: StreamId,
    /// The owner's fence.
    pub(crate) fence: Fence,
    /// The epoch that the owner knows.
    pub(crate) epoch: u32,
    /// What the session's events are counted against.
    pub(crate) share: LogShare,
}

/// The budgets of the events of one session.
#[derive(Clone, Debug)]
pub(crate) struct LogShare {
    /// For what the log keeps: beyond it the oldest events of the session go.
    pub(crate) kept: Arc<Budget>,
    /// For the copies in this process of what a store elsewhere keeps; none for a log in memory.
    pub(crate) copies: Option<Arc<Budget>>,
    /// The share of the caller for what is under way: long events for which the log has no room.
    pub(crate) under_way: Arc<Budget>,
}

/// Bytes of an event from which on there has to be room for it. The newest event of each stream stays beyond the share of
/// its session, and may be as long as a line of a child.
pub(crate) const LONG_EVENT: usize = 8 << 10;

impl LogShare {
    /// More than any test writes.
    #[cfg(test)]
    pub(crate) fn plenty() -> Self {
        Self {
            kept: Budget::new(u64::MAX >> 1).share(),
            copies: None,
            under_way: Budget::new(u64::MAX >> 1).share(),
        }
    }

    /// What a part of a response that is on its way to the client is counted against. A long one is a copy of an event for
    /// which there was room, and takes none of the log from others.
    pub(crate) fn on_its_way(&self, bytes: usize) -> &Arc<Budget> {
        if bytes < LONG_EVENT {
            self.memory()
        } else {
            &self.under_way
        }
    }

    /// Draws for a part of a response before it is made; none without room for a long one.
    pub(crate) fn room_for(&self, bytes: usize) -> Option<Drawn> {
        let share = self.on_its_way(bytes);
        if bytes < LONG_EVENT {
            return Some(share.hold(bytes as u64));
        }
        share.draw(bytes as u64)
    }

    /// Returns a message that may be an event: the log draws what it takes.
    ///
    /// # Errors
    ///
    /// The message, if it is long and its caller has no room for it.
    pub(crate) fn admit(&self, message: Bytes) -> Result<Bytes, Bytes> {
        let size = message.len() as u64;
        // A copy goes to the client.
        let has_room = || {
            self.under_way.has_room(2 * size)
                || self.under_way.has_room(size) && self.memory().has_room(size)
        };
        if message.len() < LONG_EVENT || has_room() {
            Ok(message)
        } else {
            Err(message)
        }
    }

    /// Draws what is to be kept until the client answers; none without room for it. What was taken long ago may fill the
    /// log, so that it is drawn beside that, where half of what is left stays free for the answer.
    pub(crate) fn draw(&self, bytes: u64) -> Option<Drawn> {
        let of_log = self.memory().draw(bytes);
        of_log.or_else(|| {
            let has_room = self.under_way.has_room(2 * bytes);
            has_room.then(|| self.under_way.draw(bytes)).flatten()
        })
    }

    /// Draws the memory of a message that is to wait for others, for as long as anything holds it.
    ///
    /// # Errors
    ///
    /// The message, if it is long and its caller has no room for it.
    pub(crate) fn draw_message(&self, message: Bytes) -> Result<Bytes, Bytes> {
        if message.len() < LONG_EVENT {
            return Ok(message);
        }
        match self.under_way.draw(message.len() as u64) {
            Some(drawn) => Ok(drawn.until_dropped(message)),
            None => Err(message),
        }
    }

    /// The budget of this process's memory.
    pub(crate) fn memory(&self) -> &Arc<Budget> {
        self.copies.as_ref().unwrap_or(&self.kept)
    }
}

/// An open stream, as a new owner finds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OpenStream {
    /// Its id.
    pub(crate) stream: StreamId,
    /// The number of its last event.
    pub(crate) last: u64,
    /// The pending calls of the stream, as the last `open` or `append` recorded them.
    pub(crate) calls: Bytes,
}

/// The streams of a session, as a new owner finds them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Streams {
    /// The highest stream id that was ever opened, even if that stream is no longer kept.
    pub(crate) highest: StreamId,
    /// Streams that have not ended.
    pub(crate) open: Vec<OpenStream>,
}

/// The present size of an event log, as far as it is in this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogSize {
    /// Bytes of events in memory.
    pub(crate) bytes: usize,
    /// Writes that wait for the store.
    pub(crate) queued: usize,
}

/// The ordered events of every stream.
///
/// 1. Writes to one session take effect in the order of the calls, whether their futures are polled
///    or not. A future is ready when its event is kept; dropping it may cancel the write.
/// 2. The owner numbers the events of a stream from 1 on without a gap. A write that is repeated,
///    because its result was lost, succeeds and changes nothing, also behind the end of its stream.
/// 3. `read` returns the events behind a cursor in order, without a gap. Where a part of them is no
///    longer kept, it fails with `Trimmed` and returns none. It may return events whose append is
///    not ready yet; its caller knows which.
/// 4. `end` is the last write to a stream; a later `append` of another event fails with `Fenced`.
/// 5. A stream is bounded in events, bytes and age, and a session by its [`LogShare`]. The oldest
///    events go first, and the newest of a stream that is open always stays. The end of the stream
///    that ended last can be read from behind its last event, also when that is no longer kept.
/// 6. A write with an older fence than the session's fails with `Fenced`, one with another epoch
///    than the state's with `Flushed`; neither keeps anything. While the state is away, writes wait
///    and reads fail with `Away`.
/// 7. `forget` removes everything of a session. `release` removes from this process what it alone
///    can read.
pub(crate) trait EventLog: Send + Sync {
    /// Registers a stream before its first event is sent, or replaces its `calls`, which the next
    /// owner needs. A stream that the log does not know continues behind event `last`.
    fn open(
        &self,
        at: &WriteTarget,
        last: u64,
        calls: Bytes,
    ) -> BoxFuture<'static, Result<(), StoreError>>;

    /// Keeps one event under its number; `calls` replaces those recorded before.
    fn append(
        &self,
        at: &WriteTarget,
        number: u64,
        event: Bytes,
        calls: Option<Bytes>,
    ) -> BoxFuture<'static, Result<(), StoreError>>;

    /// Marks a stream as ended.
    fn end(&self, at: &WriteTarget) -> BoxFuture<'static, Result<(), StoreError>>;

    /// Reads the events behind number `after`, up to about 256 KiB.
    fn read<'a>(
        &'a self,
        session: &'a SessionId,
        stream: StreamId,
        after: u64,
    ) -> BoxFuture<'a, Result<Page, StoreError>>;

    /// The streams of a session, for its new owner.
    fn streams<'a>(&'a self, session: &'a SessionId) -> BoxFuture<'a, Result<Streams, StoreError>>;

    /// Removes every stream of a session.
    fn forget<'a>(&'a self, session: &'a SessionId) -> BoxFuture<'a, ()>;

    /// Removes from this process the streams of a session that another replica will own.
    fn release<'a>(&'a self, session: &'a SessionId) -> BoxFuture<'a, ()>;

    /// Removes what is too old or beyond its share, of sessions that write nothing as well: for a task
    /// that calls it now and then.
    fn sweep(&self);

    /// Its size, added up over all sessions: a read of metrics may take that time, a request not.
    fn size(&self) -> LogSize;
}

/// A replica between a start and its end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Replica {
    /// The address for other replicas: `host:port`.
    pub(crate) address: Arc<str>,
    /// Random at each start.
    pub(crate) boot: Arc<str>,
}

/// The directory entry of a session.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    /// The principal of the session, as one text; other principals cannot learn that it exists.
    pub(crate) principal: Arc<str>,
    /// The server of the tenant.
    pub(crate) server: String,
    /// The current owner; none after a release.
    pub(crate) owner: Option<Replica>,
    /// The fence of the current or last owner.
    pub(crate) fence: Fence,
    /// The data that the owner leaves for the next one.
    pub(crate) kept: Bytes,
    /// The time that the session outlives its owner's last write.
    pub(crate) ttl: Duration,
    /// The time since the session began, by the state's clock.
    pub(crate) age: Duration,
}

/// The result of a look-up.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// The directory entry.
    pub(crate) record: Record,
    /// The age of the owner's last heartbeat; none if that has expired (5 s).
    pub(crate) heartbeat_age: Option<Duration>,
}

/// The answer to a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Heartbeat {
    /// The epoch of the state; it changes when the state is lost.
    pub(crate) epoch: u32,
    /// Owners may still be registering lost sessions again, so an unknown id may appear soon.
    pub(crate) is_recovering: bool,
    /// How often other replicas have claimed something of this one. Another number than before: it
    /// may own less than it knows.
    pub(crate) claims: u64,
}

/// The owners from which a session is claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClaimFrom {
    /// None that has a heartbeat at the time of the claim: it may have come back since it was seen.
    Silent,
    /// Any, whatever its heartbeat says.
    Any,
}

/// A session that was claimed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claimed {
    /// The fence of the new owner.
    pub(crate) fence: Fence,
    /// The data that the owner before it has left.
    pub(crate) kept: Bytes,
}

/// The sessions and their owners.
///
/// 1. `insert` returns false for a known id, unless owner and fence are the same.
/// 2. `find` returns the inserted entry with its latest `kept`, until `remove` or until `ttl` has
///    passed since the owner's last `insert`, `keep` or `claim`. It fails with `Flushed` for an
///    unknown id if the epoch differs from that of the last heartbeat.
/// 3. `claim` succeeds only if owner and fence are still those that the claimer has read, and if
///    [`ClaimFrom`] admits that owner. It increments the fence, and returns the latest `kept`. The
///    heartbeats of the former owner count it from then on, unless that claims it from itself.
/// 4. `keep`, `release` and `remove` with an old fence fail with `Fenced`, and change nothing.
/// 5. `remove` removes the session's streams too. `release` leaves the session without an owner.
/// 6. Every operation fails with `Away` while the state is away, within one second.
/// 7. A heartbeat expires after 5 s. `insert` fails with `Flushed` under another epoch.
pub(crate) trait Directory: Send + Sync {
    /// Sends a heartbeat.
    fn beat<'a>(&'a self, replica: &'a Replica) -> BoxFuture<'a, Result<Heartbeat, StoreError>>;
    /// The replicas that accept new sessions, as of their last heartbeats; none in one process.
    fn open(&self) -> BoxFuture<'_, Result<Vec<Replica>, StoreError>>;
    /// The age of a replica's last heartbeat; none if that has expired.
    fn heartbeat_age<'a>(
        &'a self,
        replica: &'a Replica,
    ) -> BoxFuture<'a, Result<Option<Duration>, StoreError>>;
    /// Marks the replica as closed to new sessions; it stays alive.
    fn close<'a>(&'a self, replica: &'a Replica) -> BoxFuture<'a, ()>;
    /// Withdraws the heartbeat when the replica ends.
    fn leave<'a>(&'a self, replica: &'a Replica) -> BoxFuture<'a, ()>;
    /// Adds a session; returns false if the id is taken.
    fn insert<'a>(
        &'a self,
        session: &'a SessionId,
        record: Record,
        epoch: u32,
    ) -> BoxFuture<'a, Result<bool, StoreError>>;
    /// Looks up a session.
    fn find<'a>(
        &'a self,
        session: &'a SessionId,
    ) -> BoxFuture<'a, Result<Option<Found>, StoreError>>;
    /// Makes `me` the owner, if `seen` is still current.
    fn claim<'a>(
        &'a self,
        session: &'a SessionId,
        seen: &'a Record,
        me: &'a Replica,
        from: ClaimFrom,
    ) -> BoxFuture<'a, Result<Option<Claimed>, StoreError>>;
    /// Extends the session's lifetime, and replaces `kept` if given.
    fn keep<'a>(
        &'a self,
        session: &'a SessionId,
        fence: Fence,
        kept: Option<Bytes>,
    ) -> BoxFuture<'a, Result<(), StoreError>>;
    /// Releases ownership; the session continues.
    fn release<'a>(
        &'a self,
        session: &'a SessionId,
        fence: Fence,
    ) -> BoxFuture<'a, Result<(), StoreError>>;
    /// Removes a session.
    fn remove<'a>(
        &'a self,
        session: &'a SessionId,
        fence: Fence,
    ) -> BoxFuture<'a, Result<(), StoreError>>;
}

/// The subject of one limit: one limit of one tenant, principal or address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Account {
    /// The name of the limit.
    pub(crate) limit: &'static str,
    /// The tenant, principal or address.
    pub(crate) owner: Arc<str>,
}

/// The name of the account in a store.
impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.limit, self.owner)
    }
}

/// A seat of an account, returned when dropped.
pub(crate) struct Seat(Release);

enum Release {
    Call(Option<Box<dyn FnOnce() + Send + Sync>>),
    Count(Arc<AtomicU64>),
}

impl Seat {
    /// A seat that calls `release` when it is dropped; `release` must not block.
    pub(crate) fn new(release: impl FnOnce() + Send + Sync + 'static) -> Self {
        Self(Release::Call(Some(Box::new(release))))
    }

    /// A seat that was counted, and is taken from the count when it is dropped.
    pub(crate) fn counted(count: Arc<AtomicU64>) -> Self {
        Self(Release::Count(count))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        match &mut self.0 {
            Release::Call(release) => {
                if let Some(release) = release.take() {
                    release();
                }
            }
            Release::Count(count) => {
                count.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

/// The use of a value that is good once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// The first within its window.
    First,
    /// A later one.
    Again,
    /// There is no room to remember it.
    Full,
}

/// The use of limits by account.
///
/// 1. `draw` gives at most `wanted`, and to one account over any `t` seconds at most `rate * (1 +
///    t)`: unused allowance is kept for one second.
/// 2. Accounts do not affect each other.
/// 3. `enter` gives a seat while fewer than `most` seats of the account are taken, and none
///    otherwise, under any concurrency.
/// 4. A seat counts from before its return until it is dropped. A future of `enter` that is dropped
///    early leaves no count behind.
/// 5. Unused accounts are forgotten.
/// 6. The caller spends its allotment without a request, and does not wait for a draw: a slow draw
///    delays no call.
/// 7. `once` gives [`Use::First`] once for a value within `window`, under any concurrency. A value is forgotten
///    after that or by `give_back`, and what has no room in the share of its
///    tenant is [`Use::Full`] and not remembered.
pub(crate) trait Limiter: Send + Sync {
    /// Draws an allotment from an account that refills at `rate` per second.
    fn draw(self: Arc<Self>, account: Account, rate: u64, wanted: u64) -> BoxFuture<'static, u64>;

    /// Takes a seat at once, if no store has to be asked; else pending, and [`Self::enter`] asks it.
    fn enter_at_once(&self, _: &Account, _: u64) -> Poll<Option<Seat>> {
        Poll::Pending
    }

    /// Takes a seat.
    fn enter(self: Arc<Self>, account: Account, most: u64) -> BoxFuture<'static, Option<Seat>>;

    /// Uses a value, a digest that tells purposes apart. The room for it is its tenant's.
    fn once(
        self: Arc<Self>,
        tenant: Arc<str>,
        value: [u8; 32],
        window: Duration,
    ) -> BoxFuture<'static, Use>;

    /// Takes back the first use of a value, by the one that had it.
    fn give_back(self: Arc<Self>, value: [u8; 32]) -> BoxFuture<'static, ()>;
}

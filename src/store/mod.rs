//! The seams behind which state is kept: the event log, the directory of sessions, and limits.
//!
//! Each contract is the prose on its trait. The memory implementation is a product
//! feature: it is all that a gateway on one machine needs.

use std::{future::Future, pin::Pin, sync::Arc};

use bytes::Bytes;

use crate::{auth::Principal, protocol::event::StreamId};

pub(crate) mod memory;
pub(crate) mod memory_limiter;

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

/// Why the log could not do it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LogError {
    /// Events behind the cursor are no longer kept, or the stream itself is not.
    #[error("events behind the cursor are gone")]
    Trimmed {
        /// The number before the oldest event that is kept.
        oldest: u64,
    },
    /// Somebody else owns the session now.
    #[error("fenced")]
    Fenced,
}

/// The ordered events of every stream.
///
/// 1. `append` gives each event of a stream the next number, from 1 on, and keeps it before
///    it returns; an append with a smaller fence than the last one fails and keeps nothing.
/// 2. `read` returns the events behind a cursor in order, without a gap: where a part of
///    them is no longer kept it fails with `Trimmed` and returns none.
/// 3. `end` is the last thing that happens to a stream; afterwards `append` fails.
/// 4. A stream is kept within the bounds of events, bytes and age; the oldest go first.
/// 5. `forget` leaves nothing of a session.
pub(crate) trait EventLog: Send + Sync {
    /// Keeps one event and returns its number.
    fn append<'a>(
        &'a self,
        session: &'a SessionId,
        stream: StreamId,
        fence: Fence,
        event: Bytes,
    ) -> Later<'a, Result<u64, LogError>>;

    /// Marks a stream as ended.
    fn end<'a>(
        &'a self,
        session: &'a SessionId,
        stream: StreamId,
        fence: Fence,
    ) -> Later<'a, Result<(), LogError>>;

    /// Reads what stands behind number `after`, at most about 256 KiB of it.
    fn read<'a>(
        &'a self,
        session: &'a SessionId,
        stream: StreamId,
        after: u64,
    ) -> Later<'a, Result<Page, LogError>>;

    /// Drops every stream of a session.
    fn forget<'a>(&'a self, session: &'a SessionId) -> Later<'a, ()>;
}

/// What the directory knows of a session.
#[expect(dead_code, reason = "a second replica will read what this one inserts")]
#[derive(Clone, Debug)]
pub(crate) struct Record {
    /// Whose session it is; nobody else learns that it exists.
    pub(crate) principal: Principal,
    /// The tenant's server that it belongs to.
    pub(crate) server: String,
    /// The number of its present owner.
    pub(crate) fence: Fence,
}

/// Which sessions there are, and who owns them.
///
/// 1. `insert` fails for an id that is there.
/// 2. `find` returns what was inserted, until `remove`.
/// 3. `remove` does nothing for an id that is not there.
pub(crate) trait Directory: Send + Sync {
    /// Adds a session; false if the id is taken.
    fn insert<'a>(&'a self, session: &'a SessionId, record: Record) -> Later<'a, bool>;
    /// Looks a session up.
    #[expect(dead_code, reason = "a second replica will look sessions up")]
    fn find<'a>(&'a self, session: &'a SessionId) -> Later<'a, Option<Record>>;
    /// Drops a session.
    fn remove<'a>(&'a self, session: &'a SessionId) -> Later<'a, ()>;
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

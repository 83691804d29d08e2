//! The seams behind which state is kept: the event log and the directory of sessions.
//!
//! Each contract is the prose on its trait. The memory implementation is a product
//! feature: it is all that a gateway on one machine needs.

use std::{future::Future, pin::Pin};

use bytes::Bytes;

use crate::{auth::Principal, protocol::event::StreamId};

pub(crate) mod memory;

/// A future that a seam returns.
pub(crate) type Later<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The id of a session: 128 random bits, as text that is safe in a header and a URL.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SessionId(pub(crate) std::sync::Arc<str>);

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

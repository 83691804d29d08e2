//! Event log as the streams of one session use it: the ids of their events, and reads of them.

use std::sync::Arc;

use crate::{
    error::Error,
    hub::ownership::{ReplicaLease, STORE_AWAY},
    protocol::{Cursor, EventKey, StreamId},
    state::{EventLog, LogShare, Page, SessionId, StoreError},
};

/// The event log of one session.
#[derive(Clone)]
pub(crate) struct SessionLog {
    /// The events of all streams.
    pub(crate) log: Arc<dyn EventLog>,
    /// The lease of this replica.
    pub(crate) owner: Arc<ReplicaLease>,
    /// The key of event ids.
    pub(crate) key: EventKey,
    /// The session.
    pub(crate) session: SessionId,
    /// The budgets of its events.
    pub(crate) share: LogShare,
}

impl SessionLog {
    /// The id of an event, which clients send back as `Last-Event-ID`.
    pub(super) fn event_id(&self, cursor: Cursor) -> String {
        self.key.encode(self.session.as_str(), cursor)
    }

    /// Reads the events behind event `seq` of a stream.
    pub(super) async fn read(&self, stream: StreamId, seq: u64) -> Result<Page, StoreError> {
        self.log.read(&self.session, stream, seq).await
    }
}

/// The error for a cursor behind which the log cannot be read.
pub(super) fn unreadable(error: StoreError) -> Error {
    match error {
        StoreError::Away => STORE_AWAY,
        StoreError::Trimmed { .. } | StoreError::Fenced | StoreError::Flushed => Error::Gone,
    }
}

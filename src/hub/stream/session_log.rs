//! Event log as the streams of one session use it: the ids of their events, and reads of them.

use std::{
    collections::VecDeque,
    sync::{Arc, PoisonError, RwLock},
};

use bytes::Bytes;

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
    /// Events that no connection may get any more.
    pub(crate) withdrawn: Arc<Withdrawn>,
}

/// Events that were withdrawn before a connection got them: requests to the client that the gateway has
/// answered itself. The log cannot remove them.
#[derive(Default)]
pub(crate) struct Withdrawn(RwLock<VecDeque<(StreamId, u64)>>);

/// The most events that are remembered as withdrawn, as many as a child may have asks; an answer
/// to one of the oldest finds no request.
const MAX_WITHDRAWN: usize = 256;

impl Withdrawn {
    pub(super) fn add(&self, stream: StreamId, number: u64) {
        let mut events = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if events.len() == MAX_WITHDRAWN {
            events.pop_front();
        }
        events.push_back((stream, number));
    }

    /// Removes the withdrawn ones from events of a stream.
    pub(super) fn remove_from(&self, stream: StreamId, events: &mut Vec<(u64, Bytes)>) {
        let withdrawn = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if !withdrawn.is_empty() {
            events.retain(|(number, _)| !withdrawn.contains(&(stream, *number)));
        }
    }
}

impl SessionLog {
    /// The id of an event, which clients send back as `Last-Event-ID`.
    pub(super) fn event_id(&self, cursor: Cursor) -> String {
        self.key.encode(self.session.as_str(), cursor)
    }

    /// The id of a position as one connection begins with it.
    pub(super) fn first_id(&self, cursor: Cursor, connection: u16) -> String {
        let session = self.session.as_str();
        self.key.encode_for(session, cursor, connection)
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

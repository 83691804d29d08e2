//! A cache of the events that this process has appended, so that readers here need no request to
//! Redis.
//!
//! Not here: events of other replicas; the log in Redis has all.

#![expect(
    clippy::disallowed_types,
    reason = "short critical sections without an await; tokio's mutex would only add a queue"
)]

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
};

use bytes::Bytes;
use tokio::time::Instant;

use crate::protocol::StreamId;
use crate::state::{
    Fence, Page, SessionId, WriteTarget,
    memory::{ENDED_STREAMS, Retention, SessionStreams},
};

/// The streams of the sessions that this replica owns, each from its beginning or the first event
/// that this process appends. One without events here may have some in Redis, where it is read.
pub(super) struct Cache {
    retention: Retention,
    sessions: RwLock<HashMap<SessionId, Arc<Mutex<Tenure>>>>,
}

/// The events that were appended to a session under one fence and epoch. All other events belong to
/// another owner, or are lost.
struct Tenure {
    fence: Fence,
    epoch: u32,
    streams: SessionStreams,
}

impl Cache {
    pub(crate) fn new(retention: Retention) -> Self {
        Self {
            retention,
            sessions: RwLock::default(),
        }
    }

    /// Counts a stream that begins: until its end is forgotten it takes room, in Redis as well, with
    /// an event or without one.
    pub(super) fn open(&self, at: &WriteTarget) {
        let tenure = self.tenure(at);
        locked(&tenure).streams.open(at.stream, 0, Bytes::new());
    }

    /// Keeps an event. Returns the number before which this process trimmed the stream, 0 if it did
    /// not, and whether the log has room for the event.
    pub(crate) fn append(&self, at: &WriteTarget, number: u64, event: Bytes) -> (u64, bool) {
        let tenure = self.tenure(at);
        let mut tenure = locked(&tenure);
        let (now, keep) = (Instant::now(), self.retention);
        let kept = tenure
            .streams
            .append(at.stream, (number, event), None, now, keep);
        (kept.unwrap_or(0), tenure.streams.has_room(at.stream))
    }

    /// Redis has an event that was written under this fence and epoch.
    pub(super) fn acknowledge(
        &self,
        session: &SessionId,
        (fence, epoch): (Fence, u32),
        (stream, number): (StreamId, u64),
    ) {
        let Some(tenure) = self.find(session) else {
            return;
        };
        let mut tenure = locked(&tenure);
        if (tenure.fence, tenure.epoch) == (fence, epoch) {
            tenure.streams.acknowledge(stream, number, Instant::now());
        }
    }

    /// The bytes and the number of ended streams that a session may keep.
    pub(super) fn ended_room(&self, session: &SessionId) -> (usize, usize) {
        let keep = self.retention;
        let tenure = self.find(session);
        tenure.map_or((keep.of_ended(), ENDED_STREAMS), |tenure| {
            locked(&tenure).streams.ended_room(keep)
        })
    }

    /// Drops copies that are too old or beyond the share of their session, and then events of which
    /// there are too many for that.
    pub(super) fn sweep(&self) {
        let all = self.all();
        for tenure in &all {
            let streams = &mut locked(tenure).streams;
            streams.sweep(Instant::now(), self.retention);
        }
        for tenure in &all {
            locked(tenure).streams.sweep_places();
        }
    }

    /// Ends a stream. Returns its size, if the cache holds all of it.
    pub(crate) fn end(&self, at: &WriteTarget) -> Option<usize> {
        let tenure = self.find(&at.session)?;
        let mut tenure = locked(&tenure);
        // A stream that is not cached has events elsewhere, so it must not end as an empty one
        // here.
        let is_here = tenure.streams.has(at.stream);
        if !is_here || (tenure.fence, tenure.epoch) != (at.fence, at.epoch) {
            return None;
        }
        let bytes = tenure.streams.all_bytes(at.stream);
        tenure
            .streams
            .end(at.stream, Instant::now(), self.retention);
        bytes
    }

    /// The events behind `after`, if the cache holds all of them.
    pub(crate) fn read(&self, session: &SessionId, stream: StreamId, after: u64) -> Option<Page> {
        let tenure = self.find(session)?;
        let page = locked(&tenure)
            .streams
            .read(stream, after, Instant::now(), self.retention);
        page.ok()
            .filter(|page| after > 0 || !page.events.is_empty())
    }

    /// The fence and epoch under which this process has written to a session.
    pub(super) fn tenure_of(&self, session: &SessionId) -> Option<(Fence, u32)> {
        let tenure = self.find(session)?;
        let tenure = locked(&tenure);
        Some((tenure.fence, tenure.epoch))
    }

    /// The bytes of all events.
    pub(super) fn bytes(&self) -> usize {
        let bytes = |session: &Arc<Mutex<Tenure>>| locked(session).streams.bytes();
        self.all().iter().map(bytes).sum()
    }

    fn all(&self) -> Vec<Arc<Mutex<Tenure>>> {
        let sessions = self.sessions.read().unwrap_or_else(PoisonError::into_inner);
        sessions.values().cloned().collect()
    }

    /// Drops what was appended under this fence and epoch. What was under later ones may be nowhere else: Redis has the
    /// mark alone of an event that is too large for it.
    pub(super) fn drop_tenure(&self, session: &SessionId, (fence, epoch): (Fence, u32)) {
        let mut sessions = self
            .sessions
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let is_of_it = sessions.get(session).is_some_and(|tenure| {
            let tenure = locked(tenure);
            (tenure.fence, tenure.epoch) == (fence, epoch)
        });
        if is_of_it {
            sessions.remove(session);
        }
    }

    pub(crate) fn drop_all(&self, session: &SessionId) {
        self.sessions
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(session);
    }

    fn find(&self, session: &SessionId) -> Option<Arc<Mutex<Tenure>>> {
        self.sessions
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(session)
            .cloned()
    }

    /// The tenure of `at`; it replaces an older one.
    fn tenure(&self, at: &WriteTarget) -> Arc<Mutex<Tenure>> {
        let new = || Tenure {
            fence: at.fence,
            epoch: at.epoch,
            streams: SessionStreams::new(at.share.clone()),
        };
        let Some(known) = self.find(&at.session) else {
            let mut sessions = self
                .sessions
                .write()
                .unwrap_or_else(PoisonError::into_inner);
            let entry = sessions.entry(at.session.clone());
            return Arc::clone(entry.or_insert_with(|| Arc::new(Mutex::new(new()))));
        };
        {
            let mut tenure = locked(&known);
            if (tenure.fence, tenure.epoch) != (at.fence, at.epoch) {
                *tenure = new();
            }
        }
        known
    }
}

fn locked(tenure: &Mutex<Tenure>) -> MutexGuard<'_, Tenure> {
    tenure.lock().unwrap_or_else(PoisonError::into_inner)
}

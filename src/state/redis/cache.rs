//! What this process has appended itself, kept where readers find it without asking Redis.
//!
//! Not here: what others appended; the log in Redis has all.

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
    Fence, Page, SessionId, Spot,
    memory::{OfSession, Retention},
};

/// The streams of the sessions that this process owns.
pub(super) struct Cache {
    retention: Retention,
    sessions: RwLock<HashMap<SessionId, Arc<Mutex<Tenure>>>>,
}

/// What was appended to a session under one fence, in one life of the store: whatever else there
/// is came from somebody else, or is gone.
struct Tenure {
    fence: Fence,
    epoch: u32,
    streams: OfSession,
}

impl Cache {
    pub(crate) fn new(retention: Retention) -> Self {
        Self {
            retention,
            sessions: RwLock::default(),
        }
    }

    /// Keeps an event. Returns the number before which the stream is no longer kept, if it was
    /// this process that trimmed it; 0 otherwise.
    pub(crate) fn append(&self, at: &Spot, number: u64, event: Bytes) -> u64 {
        let tenure = self.tenure(at);
        let mut tenure = locked(&tenure);
        let kept = tenure.streams.open(at.stream).map(|stream| {
            stream.append(number, event, Instant::now(), self.retention);
            stream.cut()
        });
        kept.unwrap_or(0)
    }

    /// A stream has begun, and nobody has appended anything to it.
    pub(crate) fn open(&self, at: &Spot) {
        if let Some(tenure) = self.find(&at.session) {
            let mut tenure = locked(&tenure);
            if (tenure.fence, tenure.epoch) == (at.fence, at.epoch) {
                // One that has ended is there already.
                let _ = tenure.streams.open(at.stream);
            }
            return;
        }
        let _ = locked(&self.tenure(at)).streams.open(at.stream);
    }

    /// Ends a stream. Returns how many bytes it holds, if all of it is here.
    pub(crate) fn end(&self, at: &Spot) -> Option<usize> {
        let tenure = self.find(&at.session)?;
        let mut tenure = locked(&tenure);
        // One that is not here has events elsewhere: it must not seem to end empty.
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

    /// What stands behind `after`, if all of that is here.
    pub(crate) fn read(&self, session: &SessionId, stream: StreamId, after: u64) -> Option<Page> {
        let tenure = self.find(session)?;
        let page = locked(&tenure)
            .streams
            .read(stream, after, Instant::now(), self.retention);
        page.ok()
    }

    /// Under which fence and epoch this process has written to a session, if it has.
    pub(super) fn tenure_of(&self, session: &SessionId) -> Option<(Fence, u32)> {
        let tenure = self.find(session)?;
        let tenure = locked(&tenure);
        Some((tenure.fence, tenure.epoch))
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

    /// The tenure that `at` belongs to; an older one ends.
    fn tenure(&self, at: &Spot) -> Arc<Mutex<Tenure>> {
        let new = || Tenure {
            fence: at.fence,
            epoch: at.epoch,
            streams: OfSession::default(),
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

//! Event log and directory in memory, for `lockgate run` and a single replica.

#![expect(
    clippy::disallowed_types,
    reason = "short critical sections without an await; tokio's mutex would only add a queue"
)]

use std::{
    collections::HashMap,
    future::ready,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
    time::Duration,
};

use bytes::Bytes;
use tokio::time::Instant;

use super::streams::{Retention, SessionStreams};
use crate::protocol::StreamId;
use crate::state::{
    BoxFuture, ClaimFrom, Claimed, Directory, EventLog, Fence, Found, Heartbeat, LogSize, Page,
    Record, Replica, SessionId, StoreError, Streams, WriteTarget,
};

/// The event log in memory.
pub(crate) struct MemoryLog {
    retention: Retention,
    sessions: RwLock<HashMap<SessionId, Arc<Mutex<SessionStreams>>>>,
}

impl MemoryLog {
    /// An empty log.
    pub(crate) fn new(retention: Retention) -> Self {
        Self {
            retention,
            sessions: RwLock::default(),
        }
    }

    fn session(&self, id: &SessionId) -> Option<Arc<Mutex<SessionStreams>>> {
        self.sessions
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(id)
            .cloned()
    }

    fn session_or_new(&self, at: &WriteTarget) -> Arc<Mutex<SessionStreams>> {
        self.session(&at.session).unwrap_or_else(|| {
            let mut sessions = self
                .sessions
                .write()
                .unwrap_or_else(PoisonError::into_inner);
            let new = || Arc::new(Mutex::new(SessionStreams::new(at.share.clone())));
            Arc::clone(sessions.entry(at.session.clone()).or_insert_with(new))
        })
    }

    fn all(&self) -> Vec<Arc<Mutex<SessionStreams>>> {
        let sessions = self.sessions.read().unwrap_or_else(PoisonError::into_inner);
        sessions.values().cloned().collect()
    }

    fn write(
        &self,
        at: &WriteTarget,
        write: impl FnOnce(&mut SessionStreams) -> Result<(), StoreError>,
    ) -> BoxFuture<'static, Result<(), StoreError>> {
        let session = self.session_or_new(at);
        let mut session = locked(&session);
        let written = session.check(at.fence).and_then(|()| write(&mut session));
        Box::pin(ready(written))
    }

    fn drop_all(&self, session: &SessionId) {
        self.sessions
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(session);
    }
}

fn locked(session: &Mutex<SessionStreams>) -> MutexGuard<'_, SessionStreams> {
    session.lock().unwrap_or_else(PoisonError::into_inner)
}

impl EventLog for MemoryLog {
    fn open(
        &self,
        at: &WriteTarget,
        last: u64,
        calls: Bytes,
    ) -> BoxFuture<'static, Result<(), StoreError>> {
        self.write(at, |session| {
            session.open(at.stream, last, calls);
            Ok(())
        })
    }

    fn append(
        &self,
        at: &WriteTarget,
        number: u64,
        event: Bytes,
        calls: Option<Bytes>,
    ) -> BoxFuture<'static, Result<(), StoreError>> {
        self.write(at, |session| {
            let (now, keep) = (Instant::now(), self.retention);
            let kept = session.append(at.stream, (number, event), calls, now, keep);
            kept.map(drop)
        })
    }

    fn end(&self, at: &WriteTarget) -> BoxFuture<'static, Result<(), StoreError>> {
        self.write(at, |session| {
            session.end(at.stream, Instant::now(), self.retention);
            Ok(())
        })
    }

    fn read<'a>(
        &'a self,
        session: &'a SessionId,
        stream: StreamId,
        after: u64,
    ) -> BoxFuture<'a, Result<Page, StoreError>> {
        let page = match self.session(session) {
            Some(session) => locked(&session).read(stream, after, Instant::now(), self.retention),
            None => Err(StoreError::Trimmed { oldest: 0 }),
        };
        Box::pin(ready(page))
    }

    fn streams<'a>(&'a self, session: &'a SessionId) -> BoxFuture<'a, Result<Streams, StoreError>> {
        let found = self.session(session).map(|session| locked(&session).left());
        Box::pin(ready(Ok(found.unwrap_or_default())))
    }

    fn forget<'a>(&'a self, session: &'a SessionId) -> BoxFuture<'a, ()> {
        self.drop_all(session);
        Box::pin(ready(()))
    }

    /// No other process can read the session, so a release removes it.
    fn release<'a>(&'a self, session: &'a SessionId) -> BoxFuture<'a, ()> {
        self.forget(session)
    }

    fn sweep(&self) {
        for session in self.all() {
            locked(&session).sweep(Instant::now(), self.retention);
        }
    }

    fn size(&self) -> LogSize {
        let bytes = |session: &Arc<Mutex<SessionStreams>>| locked(session).bytes();
        LogSize {
            bytes: self.all().iter().map(bytes).sum(),
            queued: 0,
        }
    }
}

/// The directory in memory, for a single replica.
#[derive(Default)]
pub(crate) struct MemoryDirectory {
    records: RwLock<HashMap<SessionId, (Record, Instant)>>,
    /// The claims from each replica, by its boot id.
    claims: RwLock<HashMap<Arc<str>, u64>>,
}

impl MemoryDirectory {
    fn count_claim(&self, from: &Replica) {
        let mut claims = self.claims.write().unwrap_or_else(PoisonError::into_inner);
        *claims.entry(Arc::clone(&from.boot)).or_default() += 1;
    }

    fn change<T>(
        &self,
        session: &SessionId,
        fence: Fence,
        change: impl FnOnce(&mut HashMap<SessionId, (Record, Instant)>) -> T,
    ) -> BoxFuture<'static, Result<T, StoreError>>
    where
        T: Send + 'static,
    {
        let mut records = self.records.write().unwrap_or_else(PoisonError::into_inner);
        let is_own = records
            .get(session)
            .is_some_and(|(record, _)| record.fence == fence);
        let changed = is_own.then(|| change(&mut records));
        Box::pin(ready(changed.ok_or(StoreError::Fenced)))
    }
}

/// The only epoch of state that ends with its process.
pub(crate) const EPOCH: u32 = 1;

impl Directory for MemoryDirectory {
    fn beat<'a>(&'a self, replica: &'a Replica) -> BoxFuture<'a, Result<Heartbeat, StoreError>> {
        let claims = self.claims.read().unwrap_or_else(PoisonError::into_inner);
        Box::pin(ready(Ok(Heartbeat {
            epoch: EPOCH,
            is_recovering: false,
            claims: claims.get(&replica.boot).copied().unwrap_or_default(),
        })))
    }

    fn open(&self) -> BoxFuture<'_, Result<Vec<Replica>, StoreError>> {
        Box::pin(ready(Ok(Vec::new())))
    }

    fn heartbeat_age<'a>(
        &'a self,
        _: &'a Replica,
    ) -> BoxFuture<'a, Result<Option<Duration>, StoreError>> {
        Box::pin(ready(Ok(Some(Duration::ZERO))))
    }

    fn close<'a>(&'a self, _: &'a Replica) -> BoxFuture<'a, ()> {
        Box::pin(ready(()))
    }

    fn leave<'a>(&'a self, _: &'a Replica) -> BoxFuture<'a, ()> {
        Box::pin(ready(()))
    }

    fn insert<'a>(
        &'a self,
        session: &'a SessionId,
        record: Record,
        _: u32,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        let mut records = self.records.write().unwrap_or_else(PoisonError::into_inner);
        let is_free = records
            .get(session)
            .is_none_or(|(known, _)| known.owner == record.owner && known.fence == record.fence);
        if is_free {
            records.insert(session.clone(), (record, Instant::now()));
        }
        Box::pin(ready(Ok(is_free)))
    }

    fn find<'a>(
        &'a self,
        session: &'a SessionId,
    ) -> BoxFuture<'a, Result<Option<Found>, StoreError>> {
        let records = self.records.read().unwrap_or_else(PoisonError::into_inner);
        let found = records.get(session).map(|(record, since)| Found {
            record: Record {
                age: since.elapsed(),
                ..record.clone()
            },
            heartbeat_age: record.owner.is_some().then_some(Duration::ZERO),
        });
        Box::pin(ready(Ok(found)))
    }

    fn claim<'a>(
        &'a self,
        session: &'a SessionId,
        seen: &'a Record,
        me: &'a Replica,
        from: ClaimFrom,
    ) -> BoxFuture<'a, Result<Option<Claimed>, StoreError>> {
        let mut records = self.records.write().unwrap_or_else(PoisonError::into_inner);
        let claimed = records.get_mut(session).and_then(|(record, _)| {
            let other = record.owner.as_ref().filter(|owner| *owner != me);
            let is_same = record.owner == seen.owner && record.fence == seen.fence;
            // Every owner has a heartbeat here.
            if !is_same || other.is_some() && from == ClaimFrom::Silent {
                return None;
            }
            if let Some(other) = other {
                self.count_claim(other);
            }
            record.owner = Some(me.clone());
            record.fence.0 += 1;
            let (fence, kept) = (record.fence, record.kept.clone());
            Some(Claimed { fence, kept })
        });
        Box::pin(ready(Ok(claimed)))
    }

    fn keep<'a>(
        &'a self,
        session: &'a SessionId,
        fence: Fence,
        kept: Option<Bytes>,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        self.change(session, fence, |records| {
            if let Some(((record, _), kept)) = records.get_mut(session).zip(kept) {
                record.kept = kept;
            }
        })
    }

    fn release<'a>(
        &'a self,
        session: &'a SessionId,
        fence: Fence,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        self.change(session, fence, |records| {
            if let Some((record, _)) = records.get_mut(session) {
                record.owner = None;
            }
        })
    }

    fn remove<'a>(
        &'a self,
        session: &'a SessionId,
        fence: Fence,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        self.change(session, fence, |records| {
            records.remove(session);
        })
    }
}

#[cfg(test)]
#[path = "../tests/log.rs"]
mod tests;

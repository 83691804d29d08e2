//! Event log and directory in memory, for `lockgate run` and a single replica.

#![expect(
    clippy::disallowed_types,
    reason = "short critical sections without an await; tokio's mutex would only add a queue"
)]

use std::{
    collections::{HashMap, VecDeque},
    future::ready,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
    time::Duration,
};

use bytes::Bytes;
use tokio::time::Instant;

use crate::protocol::StreamId;
use crate::state::{
    BoxFuture, Directory, EventLog, Fence, Found, Heartbeat, LogSize, OpenStream, Page, Record,
    Replica, SessionId, StoreError, Streams, WriteTarget,
};

/// The bounds of a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retention {
    /// Maximum number of events.
    pub(crate) events: usize,
    /// Maximum number of bytes.
    pub(crate) bytes: usize,
    /// Maximum age of an event, and of an ended stream.
    pub(crate) age: Duration,
}

impl Retention {
    /// Maximum bytes of all ended streams of a session. Several large results that arrive while no
    /// client is connected all stay, and a session that is never resumed has a bounded cost.
    pub(crate) fn of_ended(self) -> usize {
        self.bytes.saturating_mul(4)
    }
}

/// Maximum number of ended streams of a session, kept for a late resume: clients resume the streams
/// that they were reading, which `stream.per_session` bounds.
pub(crate) const ENDED_STREAMS: usize = 256;

/// Maximum bytes of one `read`: enough to fill a socket, little enough to hold in memory.
pub(crate) const PAGE: usize = 256 * 1024;

/// The event log in memory.
pub(crate) struct MemoryLog {
    retention: Retention,
    sessions: RwLock<HashMap<SessionId, Arc<Mutex<SessionStreams>>>>,
}

/// The streams of one session.
#[derive(Default)]
pub(crate) struct SessionStreams {
    fence: Option<Fence>,
    highest: StreamId,
    streams: HashMap<StreamId, Stream>,
    /// Ended streams, oldest first, with the bytes that each holds.
    ended: VecDeque<(StreamId, Instant, usize)>,
    ended_bytes: usize,
}

#[derive(Default)]
pub(crate) struct Stream {
    events: VecDeque<(Instant, Bytes)>,
    bytes: usize,
    /// The number of trimmed events; the first kept event has the next number.
    trimmed: u64,
    /// How many of them were appended by another replica.
    foreign: u64,
    calls: Bytes,
    is_ended: bool,
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

    fn session_or_new(&self, id: &SessionId) -> Arc<Mutex<SessionStreams>> {
        self.session(id).unwrap_or_else(|| {
            let mut sessions = self
                .sessions
                .write()
                .unwrap_or_else(PoisonError::into_inner);
            Arc::clone(sessions.entry(id.clone()).or_default())
        })
    }

    fn write(
        &self,
        at: &WriteTarget,
        write: impl FnOnce(&mut SessionStreams) -> Result<(), StoreError>,
    ) -> BoxFuture<'static, Result<(), StoreError>> {
        let session = self.session_or_new(&at.session);
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

impl SessionStreams {
    fn check(&mut self, fence: Fence) -> Result<(), StoreError> {
        if self.fence.is_some_and(|last| fence < last) {
            return Err(StoreError::Fenced);
        }
        self.fence = Some(fence);
        Ok(())
    }

    /// Returns a stream that has not ended, and creates it if needed.
    pub(crate) fn open(&mut self, id: StreamId) -> Result<&mut Stream, StoreError> {
        self.highest = self.highest.max(id);
        let stream = self.streams.entry(id).or_default();
        if stream.is_ended {
            return Err(StoreError::Fenced);
        }
        Ok(stream)
    }

    /// Marks a stream as ended.
    pub(crate) fn end(&mut self, id: StreamId, now: Instant, keep: Retention) {
        self.highest = self.highest.max(id);
        let stream = self.streams.entry(id).or_default();
        if stream.is_ended {
            return;
        }
        stream.is_ended = true;
        stream.events.shrink_to_fit();
        self.ended.push_back((id, now, stream.bytes));
        self.ended_bytes += stream.bytes;
        self.drop_ended(now, keep);
    }

    /// See [`EventLog::read`].
    pub(crate) fn read(
        &mut self,
        id: StreamId,
        after: u64,
        now: Instant,
        keep: Retention,
    ) -> Result<Page, StoreError> {
        self.drop_ended(now, keep);
        let gone = StoreError::Trimmed { oldest: 0 };
        let stream = self.streams.get_mut(&id).ok_or(gone)?;
        if !stream.is_ended {
            stream.trim(now, keep);
        }
        stream.read(after)
    }

    /// Reports whether a stream is present.
    pub(crate) fn has(&self, id: StreamId) -> bool {
        self.streams.contains_key(&id)
    }

    /// The bytes of all streams.
    pub(crate) fn bytes(&self) -> usize {
        self.streams.values().map(|stream| stream.bytes).sum()
    }

    /// The bytes of a stream, if all its events were appended here.
    pub(crate) fn all_bytes(&self, id: StreamId) -> Option<usize> {
        let stream = self.streams.get(&id)?;
        (stream.foreign == 0).then_some(stream.bytes)
    }

    /// Removes ended streams that are too many, too large together, or too old.
    fn drop_ended(&mut self, now: Instant, keep: Retention) {
        while let Some((id, since, bytes)) = self.ended.front().copied() {
            let is_too_old = now.duration_since(since) > keep.age;
            let is_too_much =
                self.ended.len() > ENDED_STREAMS || self.ended_bytes > keep.of_ended();
            if !(is_too_old || is_too_much && self.ended.len() > 1) {
                return;
            }
            self.ended.pop_front();
            self.ended_bytes -= bytes;
            self.streams.remove(&id);
        }
    }
}

impl Stream {
    fn last(&self) -> u64 {
        self.trimmed + self.events.len() as u64
    }

    /// The number of the oldest event left after a local trim; 0 without one.
    pub(crate) fn oldest_after_trim(&self) -> u64 {
        if self.trimmed > self.foreign {
            self.trimmed + 1
        } else {
            0
        }
    }

    pub(crate) fn append(&mut self, number: u64, event: Bytes, now: Instant, keep: Retention) {
        if number <= self.last() {
            return;
        }
        if number > self.last() + 1 {
            // A gap in the numbers: no earlier event is kept here.
            (self.bytes, self.trimmed, self.foreign) = (0, number - 1, number - 1);
            self.events.clear();
        }
        self.bytes += event.len();
        self.events.push_back((now, event));
        self.trim(now, keep);
    }

    fn trim(&mut self, now: Instant, keep: Retention) {
        while let Some((since, event)) = self.events.front() {
            let is_too_much = self.events.len() > keep.events || self.bytes > keep.bytes;
            let is_too_old = now.duration_since(*since) > keep.age;
            // The newest event always stays, as no client has received it yet.
            if self.events.len() == 1 || !(is_too_much || is_too_old) {
                return;
            }
            self.bytes -= event.len();
            self.trimmed += 1;
            self.events.pop_front();
        }
    }

    fn read(&self, after: u64) -> Result<Page, StoreError> {
        if after < self.trimmed || after > self.last() {
            return Err(StoreError::Trimmed {
                oldest: self.trimmed,
            });
        }
        let skip = usize::try_from(after - self.trimmed).unwrap_or(usize::MAX);
        let mut page = Page::default();
        let mut bytes = 0;
        for (number, (_, event)) in (after + 1..).zip(self.events.iter().skip(skip)) {
            if bytes > PAGE {
                return Ok(page);
            }
            bytes += event.len();
            page.events.push((number, event.clone()));
        }
        page.is_end = self.is_ended;
        Ok(page)
    }
}

impl EventLog for MemoryLog {
    fn open(
        &self,
        at: &WriteTarget,
        last: u64,
        calls: Bytes,
    ) -> BoxFuture<'static, Result<(), StoreError>> {
        self.write(at, |session| {
            let stream = session.open(at.stream)?;
            if stream.last() == 0 {
                stream.trimmed = last;
            }
            stream.calls = calls;
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
            let stream = session.open(at.stream)?;
            stream.append(number, event, Instant::now(), self.retention);
            if let Some(calls) = calls {
                stream.calls = calls;
            }
            Ok(())
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
        let found = self.session(session).map(|session| {
            let session = locked(&session);
            let open = session
                .streams
                .iter()
                .filter(|(_, stream)| !stream.is_ended);
            let open = open.map(|(id, stream)| OpenStream {
                stream: *id,
                last: stream.last(),
                calls: stream.calls.clone(),
            });
            Streams {
                highest: session.highest,
                open: open.collect(),
            }
        });
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

    fn size(&self) -> LogSize {
        let sessions: Vec<_> = {
            let sessions = self.sessions.read().unwrap_or_else(PoisonError::into_inner);
            sessions.values().cloned().collect()
        };
        LogSize {
            bytes: sessions.iter().map(|session| locked(session).bytes()).sum(),
            queued: 0,
        }
    }
}

/// The directory in memory, for a single replica.
#[derive(Default)]
pub(crate) struct MemoryDirectory {
    records: RwLock<HashMap<SessionId, (Record, Instant)>>,
}

impl MemoryDirectory {
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
    fn beat<'a>(&'a self, _: &'a Replica) -> BoxFuture<'a, Result<Heartbeat, StoreError>> {
        Box::pin(ready(Ok(Heartbeat {
            epoch: EPOCH,
            is_recovering: false,
        })))
    }

    fn open(&self) -> BoxFuture<'_, Result<Vec<Replica>, StoreError>> {
        Box::pin(ready(Ok(Vec::new())))
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
    ) -> BoxFuture<'a, Result<Option<Fence>, StoreError>> {
        let mut records = self.records.write().unwrap_or_else(PoisonError::into_inner);
        let claimed = records.get_mut(session).and_then(|(record, _)| {
            let is_same = record.owner == seen.owner && record.fence == seen.fence;
            is_same.then(|| {
                record.owner = Some(me.clone());
                record.fence.0 += 1;
                record.fence
            })
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

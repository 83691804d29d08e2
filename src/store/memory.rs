//! Event log and directory in this process: what `lockgate run` and a single replica use.

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

use super::{Directory, EventLog, Fence, Later, LogError, Page, Record, SessionId};
use crate::protocol::event::StreamId;

/// How much of each stream is kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retention {
    /// Events of one stream.
    pub(crate) events: usize,
    /// Bytes of one stream, and of all ended streams of a session together.
    pub(crate) bytes: usize,
    /// Age of an event, and of an ended stream.
    pub(crate) age: Duration,
}

/// How many ended streams of a session are kept for a late resume: clients resume the
/// streams that they were reading, and those are bounded by `stream.per_session`.
const ENDED_STREAMS: usize = 256;

/// What one `read` returns at most: enough to fill a socket, little enough to hold.
const PAGE: usize = 256 * 1024;

/// The event log in memory.
pub(crate) struct MemoryLog {
    retention: Retention,
    sessions: RwLock<HashMap<SessionId, Arc<Mutex<Streams>>>>,
}

/// The streams of one session.
#[derive(Default)]
struct Streams {
    fence: Option<Fence>,
    streams: HashMap<StreamId, Stream>,
    /// Ended streams, oldest first, with the bytes they still hold.
    ended: VecDeque<(StreamId, Instant, usize)>,
    ended_bytes: usize,
}

#[derive(Default)]
struct Stream {
    events: VecDeque<(Instant, Bytes)>,
    bytes: usize,
    /// How many events were trimmed: the number of the first kept one is one more.
    trimmed: u64,
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

    fn session(&self, id: &SessionId) -> Option<Arc<Mutex<Streams>>> {
        self.sessions
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(id)
            .cloned()
    }

    fn session_or_new(&self, id: &SessionId) -> Arc<Mutex<Streams>> {
        self.session(id).unwrap_or_else(|| {
            let mut sessions = self
                .sessions
                .write()
                .unwrap_or_else(PoisonError::into_inner);
            Arc::clone(sessions.entry(id.clone()).or_default())
        })
    }
}

fn locked(streams: &Mutex<Streams>) -> MutexGuard<'_, Streams> {
    streams.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Streams {
    fn check(&mut self, fence: Fence) -> Result<(), LogError> {
        if self.fence.is_some_and(|last| fence < last) {
            return Err(LogError::Fenced);
        }
        self.fence = Some(fence);
        Ok(())
    }

    fn append(
        &mut self,
        id: StreamId,
        event: Bytes,
        now: Instant,
        keep: Retention,
    ) -> Result<u64, LogError> {
        let stream = self.streams.entry(id).or_default();
        if stream.is_ended {
            return Err(LogError::Fenced);
        }
        stream.bytes += event.len();
        stream.events.push_back((now, event));
        stream.trim(now, keep);
        Ok(stream.trimmed + stream.events.len() as u64)
    }

    fn end(&mut self, id: StreamId, now: Instant, keep: Retention) {
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

    /// Ended streams go when they are too many, too large together, or too old.
    fn drop_ended(&mut self, now: Instant, keep: Retention) {
        while let Some((id, since, bytes)) = self.ended.front().copied() {
            let is_too_old = now.duration_since(since) > keep.age;
            let is_too_much = self.ended.len() > ENDED_STREAMS || self.ended_bytes > keep.bytes;
            if !is_too_old && !(is_too_much && self.ended.len() > 1) {
                return;
            }
            self.ended.pop_front();
            self.ended_bytes -= bytes;
            self.streams.remove(&id);
        }
    }
}

impl Stream {
    fn trim(&mut self, now: Instant, keep: Retention) {
        while let Some((since, event)) = self.events.front() {
            let is_too_much = self.events.len() > keep.events || self.bytes > keep.bytes;
            let is_too_old = now.duration_since(*since) > keep.age;
            // The newest event always stays: it has not been sent to anybody yet.
            if self.events.len() == 1 || !(is_too_much || is_too_old) {
                return;
            }
            self.bytes -= event.len();
            self.trimmed += 1;
            self.events.pop_front();
        }
    }

    fn read(&self, after: u64) -> Result<Page, LogError> {
        let last = self.trimmed + self.events.len() as u64;
        if after < self.trimmed || after > last {
            return Err(LogError::Trimmed {
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
    fn append<'a>(
        &'a self,
        session: &'a SessionId,
        stream: StreamId,
        fence: Fence,
        event: Bytes,
    ) -> Later<'a, Result<u64, LogError>> {
        let streams = self.session_or_new(session);
        let mut streams = locked(&streams);
        let kept = streams
            .check(fence)
            .and_then(|()| streams.append(stream, event, Instant::now(), self.retention));
        Box::pin(ready(kept))
    }

    fn end<'a>(
        &'a self,
        session: &'a SessionId,
        stream: StreamId,
        fence: Fence,
    ) -> Later<'a, Result<(), LogError>> {
        let streams = self.session_or_new(session);
        let mut streams = locked(&streams);
        let checked = streams.check(fence);
        if checked.is_ok() {
            streams.end(stream, Instant::now(), self.retention);
        }
        Box::pin(ready(checked))
    }

    fn read<'a>(
        &'a self,
        session: &'a SessionId,
        stream: StreamId,
        after: u64,
    ) -> Later<'a, Result<Page, LogError>> {
        let page = match self.session(session) {
            Some(streams) => {
                let mut streams = locked(&streams);
                streams.drop_ended(Instant::now(), self.retention);
                match streams.streams.get_mut(&stream) {
                    Some(stream) => {
                        if !stream.is_ended {
                            stream.trim(Instant::now(), self.retention);
                        }
                        stream.read(after)
                    }
                    None => Err(LogError::Trimmed { oldest: 0 }),
                }
            }
            None => Err(LogError::Trimmed { oldest: 0 }),
        };
        Box::pin(ready(page))
    }

    fn forget<'a>(&'a self, session: &'a SessionId) -> Later<'a, ()> {
        self.sessions
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(session);
        Box::pin(ready(()))
    }
}

/// The directory in memory.
#[derive(Default)]
pub(crate) struct MemoryDirectory {
    records: RwLock<HashMap<SessionId, Record>>,
}

impl Directory for MemoryDirectory {
    fn insert<'a>(&'a self, session: &'a SessionId, record: Record) -> Later<'a, bool> {
        let mut records = self.records.write().unwrap_or_else(PoisonError::into_inner);
        let is_new = !records.contains_key(session);
        if is_new {
            records.insert(session.clone(), record);
        }
        Box::pin(ready(is_new))
    }

    fn find<'a>(&'a self, session: &'a SessionId) -> Later<'a, Option<Record>> {
        let records = self.records.read().unwrap_or_else(PoisonError::into_inner);
        Box::pin(ready(records.get(session).cloned()))
    }

    fn remove<'a>(&'a self, session: &'a SessionId) -> Later<'a, ()> {
        self.records
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(session);
        Box::pin(ready(()))
    }
}

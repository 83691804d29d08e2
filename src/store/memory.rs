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

#[cfg(test)]
mod tests {
    use super::*;

    const KEEP: Retention = Retention {
        events: 3,
        bytes: 1024,
        age: Duration::from_secs(60),
    };

    fn session(name: &str) -> SessionId {
        SessionId(name.into())
    }

    fn log() -> MemoryLog {
        MemoryLog::new(KEEP)
    }

    async fn read(
        log: &dyn EventLog,
        id: &str,
        stream: StreamId,
        after: u64,
    ) -> (Vec<(u64, Bytes)>, bool) {
        let page = log.read(&session(id), stream, after).await.unwrap();
        (page.events, page.is_end)
    }

    async fn append(
        log: &dyn EventLog,
        id: &str,
        stream: StreamId,
        fence: u64,
    ) -> Result<u64, LogError> {
        log.append(
            &session(id),
            stream,
            Fence(fence),
            Bytes::from_static(b"event"),
        )
        .await
    }

    async fn promise_1_numbers_and_fences(log: &dyn EventLog) {
        for number in 1..=3 {
            assert_eq!(append(log, "a", 0, 2).await, Ok(number));
            assert_eq!(read(log, "a", 0, number - 1).await.0.len(), 1);
        }
        assert_eq!(
            append(log, "a", 7, 2).await,
            Ok(1),
            "each stream counts by itself"
        );
        assert_eq!(append(log, "b", 0, 1).await, Ok(1), "each session too");
        assert_eq!(append(log, "a", 0, 1).await, Err(LogError::Fenced));
        assert_eq!(
            log.end(&session("a"), 0, Fence(1)).await,
            Err(LogError::Fenced)
        );
        let (events, is_end) = read(log, "a", 0, 0).await;
        assert_eq!((events.len(), is_end), (3, false), "nothing was kept");
        assert_eq!(append(log, "a", 0, 3).await, Ok(4));
        assert_eq!(append(log, "a", 0, 2).await, Err(LogError::Fenced));
    }

    async fn promise_2_reads_without_a_gap(log: &dyn EventLog) {
        for number in 1..=5 {
            assert_eq!(append(log, "a", 0, 1).await, Ok(number));
        }
        let numbers = |(events, _): (Vec<(u64, Bytes)>, bool)| -> Vec<u64> {
            events.into_iter().map(|(number, _)| number).collect()
        };
        assert_eq!(numbers(read(log, "a", 0, 2).await), [3, 4, 5]);
        assert_eq!(numbers(read(log, "a", 0, 4).await), [5]);
        assert_eq!(numbers(read(log, "a", 0, 5).await), [0; 0]);
        for (id, stream, after) in [
            ("a", 0, 1),
            ("a", 0, 0),
            ("a", 0, 6),
            ("a", 9, 0),
            ("b", 0, 0),
        ] {
            let found = log.read(&session(id), stream, after).await;
            assert!(
                matches!(found, Err(LogError::Trimmed { .. })),
                "{id} {stream} {after}"
            );
        }
    }

    async fn promise_3_nothing_follows_the_end(log: &dyn EventLog) {
        assert_eq!(append(log, "a", 1, 1).await, Ok(1));
        assert_eq!(log.end(&session("a"), 1, Fence(1)).await, Ok(()));
        assert!(append(log, "a", 1, 1).await.is_err());
        assert_eq!(log.end(&session("a"), 1, Fence(1)).await, Ok(()));
        let (events, is_end) = read(log, "a", 1, 0).await;
        assert_eq!((events.len(), is_end), (1, true));
        assert_eq!(read(log, "a", 1, 1).await, (Vec::new(), true));
        assert_eq!(append(log, "a", 2, 1).await, Ok(1), "other streams go on");
    }

    async fn promise_5_forget_leaves_nothing(log: &dyn EventLog) {
        assert_eq!(append(log, "a", 1, 5).await, Ok(1));
        assert_eq!(append(log, "b", 1, 5).await, Ok(1));
        log.forget(&session("a")).await;
        assert!(log.read(&session("a"), 1, 0).await.is_err());
        assert_eq!(read(log, "b", 1, 0).await.0.len(), 1);
        assert_eq!(append(log, "a", 1, 1).await, Ok(1), "not even the fence");
    }

    #[tokio::test]
    async fn keeps_the_promises_of_an_event_log() {
        promise_1_numbers_and_fences(&log()).await;
        promise_2_reads_without_a_gap(&log()).await;
        promise_3_nothing_follows_the_end(&log()).await;
        promise_5_forget_leaves_nothing(&log()).await;
    }

    fn event(bytes: usize) -> Bytes {
        vec![b'x'; bytes].into()
    }

    #[test]
    fn promise_4_count_bytes_and_age_bound_a_stream() {
        let now = Instant::now();
        let mut streams = Streams::default();
        for number in 1..=10 {
            assert_eq!(streams.append(0, event(1), now, KEEP), Ok(number));
        }
        assert_eq!(streams.streams[&0].events.len(), 3);
        assert_eq!(
            streams.streams[&0].read(6).err(),
            Some(LogError::Trimmed { oldest: 7 })
        );

        for number in 1..=3 {
            assert_eq!(streams.append(1, event(512), now, KEEP), Ok(number));
        }
        let stream = &streams.streams[&1];
        assert_eq!(
            (stream.events.len(), stream.bytes, stream.trimmed),
            (2, 1024, 1)
        );
        // The newest stays, however large.
        assert_eq!(streams.append(1, event(5000), now, KEEP), Ok(4));
        let stream = &streams.streams[&1];
        assert_eq!((stream.events.len(), stream.bytes), (1, 5000));

        assert_eq!(streams.append(2, event(1), now, KEEP), Ok(1));
        assert_eq!(streams.append(2, event(1), now + KEEP.age, KEEP), Ok(2));
        assert_eq!(streams.streams[&2].trimmed, 0);
        let later = now + KEEP.age + Duration::from_secs(1);
        assert_eq!(streams.append(2, event(1), later, KEEP), Ok(3));
        assert_eq!(streams.streams[&2].trimmed, 1);
    }

    #[test]
    fn ended_streams_go_in_order() {
        let now = Instant::now();
        let mut streams = Streams::default();
        for id in 1..=3 {
            assert_eq!(streams.append(id, event(400), now, KEEP), Ok(1));
        }
        for id in [2, 1, 3] {
            streams.end(id, now, KEEP);
        }
        let mut left: Vec<_> = streams.streams.keys().copied().collect();
        left.sort_unstable();
        assert_eq!(left, [1, 3], "the first that ended goes by bytes");
        assert_eq!(streams.ended_bytes, 800);
        streams.drop_ended(now + KEEP.age, KEEP);
        assert_eq!(streams.streams.len(), 2);
        streams.drop_ended(now + KEEP.age + Duration::from_secs(1), KEEP);
        assert!(streams.streams.is_empty() && streams.ended.is_empty());
        assert_eq!(streams.ended_bytes, 0);

        for id in 0..=u32::try_from(ENDED_STREAMS).unwrap() {
            streams.end(id, now, KEEP);
        }
        assert_eq!(streams.streams.len(), ENDED_STREAMS);
        assert!(!streams.streams.contains_key(&0) && streams.streams.contains_key(&1));
    }

    #[test]
    fn a_page_is_bounded_and_the_end_comes_with_the_last() {
        let now = Instant::now();
        let keep = Retention {
            events: 10,
            bytes: 10 * PAGE,
            ..KEEP
        };
        let mut streams = Streams::default();
        for number in 1..=3 {
            assert_eq!(streams.append(0, event(PAGE), now, keep), Ok(number));
        }
        streams.end(0, now, keep);
        let first = streams.streams[&0].read(0).unwrap();
        assert_eq!((first.events.len(), first.is_end), (2, false));
        let second = streams.streams[&0].read(2).unwrap();
        assert_eq!((second.events.len(), second.is_end), (1, true));
    }
}

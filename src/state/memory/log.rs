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
    BoxFuture, Directory, EventLog, Fence, Found, Heartbeat, OpenStream, Page, Record, Replica,
    SessionId, StoreError, Streams, WriteTarget,
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
mod tests {
    use super::super::log::*;

    const KEEP: Retention = Retention {
        events: 3,
        bytes: 1024,
        age: Duration::from_secs(60),
    };

    fn spot(id: &str, stream: StreamId, fence: u64) -> WriteTarget {
        WriteTarget {
            session: session(id),
            stream,
            fence: Fence(fence),
            epoch: EPOCH,
        }
    }

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
        number: u64,
    ) -> Result<(), StoreError> {
        let event = Bytes::from_static(b"event");
        log.append(&spot(id, stream, fence), number, event, None)
            .await
    }

    async fn promise_1_numbers_and_fences(log: &dyn EventLog) {
        for number in 1..=3 {
            assert_eq!(append(log, "a", 0, 2, number).await, Ok(()));
            assert_eq!(read(log, "a", 0, number - 1).await.0.len(), 1);
        }
        assert_eq!(append(log, "a", 0, 2, 3).await, Ok(()), "kept once");
        assert_eq!(
            append(log, "a", 7, 2, 1).await,
            Ok(()),
            "each stream counts by itself"
        );
        assert_eq!(append(log, "b", 0, 1, 1).await, Ok(()), "each session too");
        assert_eq!(append(log, "a", 0, 1, 4).await, Err(StoreError::Fenced));
        assert_eq!(log.end(&spot("a", 0, 1)).await, Err(StoreError::Fenced));
        let (events, is_end) = read(log, "a", 0, 0).await;
        assert_eq!((events.len(), is_end), (3, false), "nothing was kept");
        assert_eq!(append(log, "a", 0, 3, 4).await, Ok(()));
        assert_eq!(append(log, "a", 0, 2, 5).await, Err(StoreError::Fenced));
    }

    async fn promise_2_reads_without_a_gap(log: &dyn EventLog) {
        for number in 1..=5 {
            assert_eq!(append(log, "a", 0, 1, number).await, Ok(()));
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
                matches!(found, Err(StoreError::Trimmed { .. })),
                "{id} {stream} {after}"
            );
        }
    }

    async fn promise_4_nothing_follows_the_end(log: &dyn EventLog) {
        assert_eq!(append(log, "a", 1, 1, 1).await, Ok(()));
        assert_eq!(log.end(&spot("a", 1, 1)).await, Ok(()));
        assert!(append(log, "a", 1, 1, 2).await.is_err());
        assert_eq!(log.end(&spot("a", 1, 1)).await, Ok(()));
        let (events, is_end) = read(log, "a", 1, 0).await;
        assert_eq!((events.len(), is_end), (1, true));
        assert_eq!(read(log, "a", 1, 1).await, (Vec::new(), true));
        assert_eq!(
            append(log, "a", 2, 1, 1).await,
            Ok(()),
            "other streams go on"
        );
    }

    async fn promise_7_forget_leaves_nothing(log: &dyn EventLog) {
        assert_eq!(append(log, "a", 1, 5, 1).await, Ok(()));
        assert_eq!(append(log, "b", 1, 5, 1).await, Ok(()));
        log.forget(&session("a")).await;
        assert!(log.read(&session("a"), 1, 0).await.is_err());
        assert_eq!(read(log, "b", 1, 0).await.0.len(), 1);
        assert_eq!(
            append(log, "a", 1, 1, 1).await,
            Ok(()),
            "not even the fence"
        );
    }

    #[tokio::test]
    async fn keeps_the_promises_of_an_event_log() {
        promise_1_numbers_and_fences(&log()).await;
        promise_2_reads_without_a_gap(&log()).await;
        promise_4_nothing_follows_the_end(&log()).await;
        promise_7_forget_leaves_nothing(&log()).await;
    }

    fn event(bytes: usize) -> Bytes {
        vec![b'x'; bytes].into()
    }

    #[test]
    fn promise_5_count_bytes_and_age_bound_a_stream() {
        let now = Instant::now();
        let mut streams = SessionStreams::default();
        for number in 1..=10 {
            streams.open(0).unwrap().append(number, event(1), now, KEEP);
        }
        assert_eq!(streams.streams[&0].events.len(), 3);
        assert_eq!(
            streams.streams[&0].read(6).err(),
            Some(StoreError::Trimmed { oldest: 7 })
        );

        for number in 1..=3 {
            streams
                .open(1)
                .unwrap()
                .append(number, event(512), now, KEEP);
        }
        let stream = &streams.streams[&1];
        assert_eq!(
            (stream.events.len(), stream.bytes, stream.trimmed),
            (2, 1024, 1)
        );
        // The newest stays, however large.
        streams.open(1).unwrap().append(4, event(5000), now, KEEP);
        let stream = &streams.streams[&1];
        assert_eq!((stream.events.len(), stream.bytes), (1, 5000));

        streams.open(2).unwrap().append(1, event(1), now, KEEP);
        streams
            .open(2)
            .unwrap()
            .append(2, event(1), now + KEEP.age, KEEP);
        assert_eq!(streams.streams[&2].trimmed, 0);
        let later = now + KEEP.age + Duration::from_secs(1);
        streams.open(2).unwrap().append(3, event(1), later, KEEP);
        assert_eq!(streams.streams[&2].trimmed, 1);
    }

    #[test]
    fn ended_streams_go_in_order() {
        let now = Instant::now();
        let mut streams = SessionStreams::default();
        for id in 1..=5 {
            streams.open(id).unwrap().append(1, event(1000), now, KEEP);
        }
        for id in [2, 1, 3, 4] {
            streams.end(id, now, KEEP);
        }
        assert_eq!(streams.streams.len(), 5, "as large as four may be");
        streams.end(5, now, KEEP);
        let mut left: Vec<_> = streams.streams.keys().copied().collect();
        left.sort_unstable();
        assert_eq!(left, [1, 3, 4, 5], "the first that ended goes by bytes");
        assert_eq!(streams.ended_bytes, 4000);
        streams.drop_ended(now + KEEP.age, KEEP);
        assert_eq!(streams.streams.len(), 4);
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
        let mut streams = SessionStreams::default();
        for number in 1..=3 {
            streams
                .open(0)
                .unwrap()
                .append(number, event(PAGE), now, keep);
        }
        streams.end(0, now, keep);
        let first = streams.streams[&0].read(0).unwrap();
        assert_eq!((first.events.len(), first.is_end), (2, false));
        let second = streams.streams[&0].read(2).unwrap();
        assert_eq!((second.events.len(), second.is_end), (1, true));
    }
}

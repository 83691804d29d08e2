//! The appender: writes events to Redis in order, in batches, with retries.
//!
//! One task writes for all sessions. The writes of a session in one batch are one script call,
//! which applies all of them or none. Writes that may not have reached Redis come first in the next
//! batch, in halves; repeating a write changes nothing. Those that it refuses, as it has no memory
//! left, hold up their own session alone.

#![expect(
    clippy::disallowed_types,
    reason = "short critical sections without an await; who writes must not wait for a place"
)]

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use redis::Value;
use tokio::{
    sync::{Notify, oneshot},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    cache::Cache,
    client::{Call, MARGIN, Redis},
    scripts::{Lua, ms},
};
use crate::base::budget::{drop_room, push_back};
use crate::protocol::StreamId;
use crate::state::{
    Fence, LONG_EVENT, SessionId, StoreError, WriteTarget,
    memory::{ENDED_STREAMS, Retention},
};

/// The stream of a write, and what permits it.
pub(super) struct At {
    pub(super) session: SessionId,
    pub(super) stream: StreamId,
    pub(super) fence: Fence,
    pub(super) epoch: u32,
}

impl At {
    /// The fence and the epoch that permit the write.
    const fn tenure(&self) -> (Fence, u32) {
        (self.fence, self.epoch)
    }
}

impl From<&WriteTarget> for At {
    fn from(target: &WriteTarget) -> Self {
        Self {
            session: target.session.clone(),
            stream: target.stream,
            fence: target.fence,
            epoch: target.epoch,
        }
    }
}

/// One write, with the sender of its result.
pub(super) struct Write {
    pub(super) at: At,
    pub(crate) operation: Operation,
    pub(super) done: oneshot::Sender<Result<(), StoreError>>,
}

/// The operation of a write.
pub(super) enum Operation {
    /// Registers a stream behind an event number, with its calls.
    Open(u64, Bytes),
    /// Appends an event; none if it is too large to keep.
    Append {
        number: u64,
        event: Option<Bytes>,
        /// The number before which the stream is trimmed; 0 for no change.
        trim_before: u64,
        calls: Option<Bytes>,
    },
    /// Ends a stream. `bytes` is its size, if known.
    End { bytes: Option<usize> },
    /// Removes all streams of the session.
    Forget,
    /// Writes nothing; it is done when all earlier writes are.
    Barrier,
}

impl Operation {
    fn bytes(&self) -> usize {
        let length = |bytes: &Option<Bytes>| bytes.as_ref().map_or(0, Bytes::len);
        match self {
            Self::Open(_, calls) => calls.len(),
            Self::Append { event, calls, .. } => length(event) + length(calls),
            Self::End { .. } | Self::Forget | Self::Barrier => 0,
        }
    }

    /// Reports whether the write must happen even if its caller is gone.
    const fn is_mandatory(&self) -> bool {
        matches!(self, Self::Forget)
    }
}

/// The queue of writes. Its bound follows from that of the sessions (`hub::stream::writes`): each has
/// a bounded number of writes in flight, and stops reading its child at that number.
#[derive(Default)]
pub(super) struct Queue {
    writes: Mutex<Pending>,
    added: Notify,
}

#[derive(Default)]
struct Pending {
    queue: VecDeque<Write>,
    is_closed: bool,
}

impl Queue {
    /// Adds a write; after the end of the appender it is discarded.
    pub(crate) fn push(&self, write: Write) {
        let mut writes = self.locked();
        if !writes.is_closed {
            push_back(&mut writes.queue, write);
            drop(writes);
            self.added.notify_one();
        }
    }

    /// Appends queued writes to `batch` until enough of them may be next.
    fn fill(&self, batch: &mut Batch) {
        let next = batch.next.iter();
        let mut bytes: usize = next.map(|write| write.operation.bytes()).sum();
        let mut writes = self.locked();
        while batch.next.len() < MAX_BATCH.0 && bytes < MAX_BATCH.1 {
            let Some(next) = writes.queue.pop_front() else {
                break;
            };
            if batch.waiting.contains(&next.at.session) {
                batch.refused.push_back(next);
            } else {
                bytes += next.operation.bytes();
                batch.next.push_back(next);
            }
        }
        drop_room(&mut writes.queue);
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of writes that no batch has taken yet.
    pub(super) fn len(&self) -> usize {
        self.locked().queue.len()
    }

    fn close(&self) {
        let mut writes = self.locked();
        writes.is_closed = true;
        writes.queue.clear();
    }

    fn locked(&self) -> MutexGuard<'_, Pending> {
        self.writes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes without a result. Those of one session are made in order: of what is tried, of what is next, of what was
/// refused.
#[derive(Default)]
struct Batch {
    /// Those that Redis may have made.
    tried: VecDeque<Write>,
    next: VecDeque<Write>,
    /// Those that Redis answered not to take, and those of their sessions behind them. The others go first, since
    /// they may be what gives memory back.
    refused: VecDeque<Write>,
    /// The sessions of those.
    waiting: HashSet<SessionId>,
}

impl Batch {
    fn is_empty(&self) -> bool {
        self.tried.is_empty() && self.next.is_empty() && self.refused.is_empty()
    }

    /// Keeps the wanted writes, after a try.
    fn retain(&mut self, is_wanted: impl Fn(&Write) -> bool) {
        while let Some(write) = self.tried.pop_back() {
            if self.waiting.contains(&write.at.session) {
                self.refused.push_front(write);
            } else {
                self.next.push_front(write);
            }
        }
        self.next.retain(&is_wanted);
        if self.waiting.is_empty() {
            return;
        }
        // What gives memory back waits for writes of its own session alone, which are gone when that has ended.
        let mut refused = std::mem::take(&mut self.refused);
        refused.retain(&is_wanted);
        self.waiting.clear();
        for write in refused {
            let session = &write.at.session;
            if write.operation.is_mandatory() && !self.waiting.contains(session) {
                self.next.push_back(write);
            } else {
                self.waiting.insert(session.clone());
                self.refused.push_back(write);
            }
        }
    }

    /// Takes at most so many writes to try; returns their number.
    fn take(&mut self, most: usize) -> usize {
        // One of those that were refused shows whether Redis takes them again.
        self.tried.extend(self.refused.pop_front());
        let mut bytes = 0;
        while self.tried.len() < most && bytes < MAX_BATCH.1 {
            let Some(next) = self.next.pop_front() else {
                break;
            };
            bytes += next.operation.bytes();
            self.tried.push_back(next);
        }
        self.tried.len()
    }

    /// Redis has answered, and refused what is left of those that were tried. They go to the end, so that each session
    /// has its turn, with what is behind them of their sessions.
    fn answered(&mut self) {
        if self.tried.is_empty() {
            // It takes all again.
            if !self.waiting.is_empty() {
                self.waiting.clear();
                self.refused.append(&mut self.next);
                std::mem::swap(&mut self.refused, &mut self.next);
            }
            return;
        }
        // Not those whose last write has just been taken.
        let refused = self.tried.iter().chain(&self.refused);
        self.waiting = refused.map(|write| write.at.session.clone()).collect();
        let next = std::mem::take(&mut self.next).into_iter();
        let (mut behind, next) = next.partition(|write| self.waiting.contains(&write.at.session));
        self.next = next;
        self.tried.append(&mut behind);
        // Behind what was refused before of other sessions, one of which is the next to show whether Redis takes it.
        let losers: HashSet<&SessionId> =
            self.tried.iter().map(|write| &write.at.session).collect();
        let refused = std::mem::take(&mut self.refused).into_iter();
        let (mut own, others) = refused.partition(|write| losers.contains(&write.at.session));
        self.refused = others;
        self.refused.append(&mut self.tried);
        self.refused.append(&mut own);
    }
}

/// The task that writes.
pub(super) struct Appender {
    pub(crate) redis: Redis,
    pub(super) queue: Arc<Queue>,
    pub(super) cache: Arc<Cache>,
    pub(crate) retention: Retention,
    /// The boot id of this replica.
    pub(super) boot: Arc<str>,
}

impl Appender {
    /// Writes until `halt`, then flushes the queue for at most a second.
    pub(crate) async fn run(self, halt: CancellationToken) {
        let mut batch = Batch::default();
        halt.run_until_cancelled(async {
            loop {
                if self.queue.is_empty() {
                    self.queue.added.notified().await;
                }
                self.write_all(&mut batch).await;
            }
        })
        .await;
        // A batch that `halt` interrupted is still complete, and is written again.
        let _ = timeout(FLUSH_TIMEOUT, self.write_all(&mut batch)).await;
        self.queue.close();
    }

    /// Writes until the queue is empty. Cancel-safe: `batch` keeps every write without a result. After a try without
    /// an answer, the next one has half as many.
    async fn write_all(&self, batch: &mut Batch) {
        let (mut delay, mut most) = (RETRY_DELAY.0, MAX_BATCH.0);
        loop {
            self.queue.fill(batch);
            batch.retain(|write| {
                let is_wanted = write.operation.is_mandatory() || !write.done.is_closed();
                if !is_wanted {
                    // The cache holds the event, and Redis does not; only Redis is authoritative.
                    let at = &write.at;
                    self.cache.drop_tenure(&at.session, at.tenure());
                }
                is_wanted
            });
            if batch.is_empty() {
                if self.queue.is_empty() {
                    // Of all that was refused for a while.
                    batch.next.shrink_to(MAX_BATCH.0);
                    return;
                }
                continue;
            }
            let tried = batch.take(most);
            let is_answered = self.write(&mut batch.tried).await;
            most = next_most(most, tried, is_answered);
            let is_written = batch.tried.is_empty();
            if is_answered {
                batch.answered();
            }
            if is_written {
                delay = RETRY_DELAY.0;
            } else {
                sleep(delay).await;
                delay = (delay * 2).min(RETRY_DELAY.1);
            }
        }
    }

    /// Makes these writes; those that Redis did not take stay, in order. False if it did not answer.
    async fn write(&self, batch: &mut VecDeque<Write>) -> bool {
        let groups = groups(batch);
        let sent: Vec<usize> = (0..groups.len())
            .filter(|group| {
                groups[*group]
                    .writes
                    .iter()
                    .any(|at| batch[*at].operation.is_sent())
            })
            .collect();
        let calls = sent.iter().map(|group| self.call(&groups[*group], batch));
        let calls: Vec<Call> = calls.collect();
        let replies = if calls.is_empty() {
            Vec::new()
        } else {
            match self.redis.batch(calls).await {
                Ok(replies) => replies,
                Err(_) => return false,
            }
        };
        let mut replies: HashMap<usize, _> = sent.into_iter().zip(replies).collect();
        let mut remaining: Vec<Option<Write>> = batch.drain(..).map(Some).collect();
        for (at, group) in groups.iter().enumerate() {
            let reply = replies.remove(&at).unwrap_or(Ok(Value::Nil));
            let reply = match reply {
                Ok(reply) => reply,
                Err(StoreError::Away) => continue,
                Err(_) => Value::Int(-1),
            };
            let writes = group.writes.iter().filter_map(|at| remaining[*at].take());
            self.reply(writes, &reply);
        }
        batch.extend(remaining.into_iter().flatten());
        true
    }

    fn call(&self, group: &Group, batch: &VecDeque<Write>) -> Call {
        let (session, epoch) = (self.redis.session(&group.session), self.redis.key("epoch"));
        let at = &batch[group.writes[0]].at;
        let writes = group.writes.iter().map(|at| &batch[*at]);
        let bytes: usize = writes.clone().map(|write| write.operation.bytes()).sum();
        let keys = [session.as_str(), epoch.as_str()];
        let (arguments, bytes) = (16 + 8 * writes.len(), 256 + 64 * writes.len() + bytes);
        let (ended_bytes, ended) = self.cache.ended_room(&at.session);
        // Those of this call may not be among the ended ones yet.
        let ends = writes
            .clone()
            .filter(|write| matches!(write.operation, Operation::End { .. }));
        let ended = ENDED_STREAMS.min(ended + ends.count());
        let mut call = Call::with_capacity(Lua::Write, &keys, arguments, bytes)
            .arg(at.epoch)
            .arg(at.fence.0)
            .arg(ms(self.retention.age))
            .arg(self.retention.events)
            .arg(ended_bytes)
            .arg(ended)
            .arg(ms(MARGIN))
            .arg(&*self.boot);
        for write in writes {
            let stream = write.at.stream;
            match &write.operation {
                Operation::Open(last, calls) => {
                    call = call.arg("o").arg(stream).arg(*last).arg(&calls[..]);
                }
                Operation::Append {
                    number,
                    event,
                    trim_before,
                    calls,
                } => {
                    let kind = if event.is_some() { "a" } else { "m" };
                    call = call.arg(kind).arg(stream).arg(*number).arg(*trim_before);
                    if let Some(event) = event {
                        call.add(&event[..]);
                    }
                    if let Some(calls) = calls {
                        call = call.arg("c").arg(stream).arg(&calls[..]);
                    }
                }
                Operation::End { bytes } => {
                    let bytes = bytes.and_then(|bytes| i64::try_from(bytes).ok());
                    call = call.arg("e").arg(stream).arg(bytes.unwrap_or(-1));
                }
                Operation::Forget => call.add("f"),
                Operation::Barrier => {}
            }
        }
        call
    }

    /// Sends the results to the callers.
    fn reply(&self, writes: impl Iterator<Item = Write>, reply: &Value) {
        let mut results = match reply {
            Value::Array(results) => results.as_slice(),
            _ => &[],
        }
        .iter();
        for write in writes {
            let result = match (&write.operation, reply) {
                (Operation::Barrier, _) => Ok(()),
                (_, Value::Int(-2)) => Err(StoreError::Flushed),
                (_, Value::Int(_)) => Err(StoreError::Fenced),
                _ => match results.next() {
                    Some(Value::Int(0..)) => Ok(()),
                    _ => Err(StoreError::Fenced),
                },
            };
            let at = &write.at;
            match &write.operation {
                _ if result.is_err() => self.cache.drop_tenure(&at.session, at.tenure()),
                Operation::Append { number, event, .. } if is_long(event.as_ref()) => {
                    let event = (at.stream, *number);
                    self.cache.acknowledge(&at.session, at.tenure(), event);
                }
                _ => {}
            }
            // The caller may be gone; the write has happened anyway.
            let _ = write.done.send(result);
        }
    }
}

impl Operation {
    const fn is_sent(&self) -> bool {
        !matches!(self, Self::Barrier)
    }
}

/// Whether an event is long, as those are that are written as a mark.
fn is_long(event: Option<&Bytes>) -> bool {
    event.is_none_or(|event| event.len() >= LONG_EVENT)
}

/// The most writes of the next try. What is too much for the time limit would fail for ever, and hold up all sessions.
fn next_most(most: usize, tried: usize, is_answered: bool) -> usize {
    if is_answered {
        (most * 2).min(MAX_BATCH.0)
    } else {
        (tried / 2).max(1)
    }
}

/// The writes of a batch that form one script call: same session, fence and epoch.
struct Group {
    session: SessionId,
    /// Their indices in the batch.
    writes: Vec<usize>,
}

/// The groups of these writes.
fn groups(batch: &VecDeque<Write>) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    let mut last: HashMap<&SessionId, usize> = HashMap::new();
    for (at, write) in batch.iter().enumerate() {
        let session = &write.at.session;
        let known = last.get(session).copied().filter(|group| {
            let first = &batch[groups[*group].writes[0]];
            let is_same = (first.at.fence, first.at.epoch) == (write.at.fence, write.at.epoch);
            // A barrier joins the last group, whatever its fence.
            is_same || !write.operation.is_sent()
        });
        if let Some(group) = known {
            groups[group].writes.push(at);
        } else {
            last.insert(session, groups.len());
            groups.push(Group {
                session: session.clone(),
                writes: vec![at],
            });
        }
    }
    groups
}

/// Maximum writes and bytes of a batch. Redis serves no other client meanwhile, and each byte is
/// copied three times: into the call, the pipeline and the buffer of the connection.
const MAX_BATCH: (usize, usize) = (1024, 128 * 1024);
/// The delay before a failed batch is retried: the first, and the maximum.
const RETRY_DELAY: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(200));
/// The time limit of the last flush.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop, proptest};

    use super::super::appender::*;

    fn write(session: &str, operation: Operation) -> Write {
        let at = At {
            session: SessionId(session.into()),
            stream: StreamId::default(),
            fence: Fence(1),
            epoch: 1,
        };
        Write {
            at,
            operation,
            done: oneshot::channel().0,
        }
    }

    #[test]
    fn the_queue_gives_back_the_room_of_what_batches_took() {
        let (queue, mut batch) = (Queue::default(), Batch::default());
        for _ in 0..10_000 {
            queue.push(write("s", Operation::Barrier));
        }
        while !queue.is_empty() {
            queue.fill(&mut batch);
            batch.next.clear();
        }
        let room = queue.locked().queue.capacity();
        assert!(room <= 8, "{room}");
    }

    /// A thousand lists of ids were one batch, which Redis never took within its time.
    #[test]
    fn the_ids_of_calls_are_bytes_of_a_batch() {
        let calls = Bytes::from(vec![b' '; MAX_BATCH.1 / 2]);
        for with_event in [false, true] {
            let operation = || {
                if !with_event {
                    return Operation::Open(0, calls.clone());
                }
                Operation::Append {
                    number: 1,
                    event: None,
                    trim_before: 0,
                    calls: Some(calls.clone()),
                }
            };
            let (queue, mut batch) = (Queue::default(), Batch::default());
            for _ in 0..10 {
                queue.push(write("s", operation()));
            }
            queue.fill(&mut batch);
            assert_eq!((batch.next.len(), queue.len()), (2, 8), "{with_event}");
        }
    }

    /// What Redis did not take within its time was repeated as it was, for ever.
    #[test]
    fn a_batch_that_fails_is_repeated_in_halves() {
        let most = next_most(MAX_BATCH.0, 9, false);
        assert_eq!((most, next_most(most, 4, false)), (4, 2));
        assert_eq!(next_most(1, 1, false), 1);
        assert_eq!(next_most(4, 4, true), 8);
        assert_eq!(next_most(MAX_BATCH.0, 3, true), MAX_BATCH.0);
    }

    fn append(session: &str, number: u64) -> Write {
        let operation = Operation::Append {
            number,
            event: Some(vec![b' '; MAX_BATCH.1 / 2].into()),
            trim_before: 0,
            calls: None,
        };
        write(session, operation)
    }

    /// Of a Redis without memory, a round of the appender. Returns the sessions that were forgotten.
    fn refuse(queue: &Queue, batch: &mut Batch, is_wanted: impl Fn(&Write) -> bool) -> Vec<String> {
        queue.fill(batch);
        batch.retain(is_wanted);
        batch.take(MAX_BATCH.0);
        let forgets = |write: &Write| matches!(write.operation, Operation::Forget);
        let tried = batch.tried.iter().filter(|write| forgets(write));
        let forgotten = tried.map(|write| write.at.session.as_str().to_owned());
        let forgotten = forgotten.collect();
        // A call of a session is taken as a whole, or not.
        let appends = batch.tried.iter().filter(|write| !forgets(write));
        let refused: HashSet<SessionId> = appends.map(|write| write.at.session.clone()).collect();
        batch
            .tried
            .retain(|write| refused.contains(&write.at.session));
        batch.answered();
        forgotten
    }

    /// The log of the whole replica stood behind an event that a full Redis did not take, and so did all that would
    /// have given it memory.
    #[test]
    fn what_gives_memory_back_waits_for_no_event_of_another_session() {
        let (queue, mut batch) = (Queue::default(), Batch::default());
        for number in 1..=10 {
            queue.push(append("a", number));
            queue.push(append("b", number));
        }
        for session in ["x", "y"] {
            queue.push(write(session, Operation::Forget));
        }
        let all = |_: &Write| true;
        let mut forgotten = refuse(&queue, &mut batch, all);
        forgotten.extend(refuse(&queue, &mut batch, all));
        assert_eq!(forgotten, ["x", "y"]);
        // Of a session whose events wait, behind them, until it is over.
        queue.push(write("b", Operation::Forget));
        assert!(refuse(&queue, &mut batch, all).is_empty());
        let is_of_a = |write: &Write| write.at.session.as_str() == "a";
        let is_wanted = |write: &Write| is_of_a(write) || write.operation.is_mandatory();
        assert_eq!(refuse(&queue, &mut batch, is_wanted), ["b"]);
        // With memory again, all is written in order.
        let mut written = Vec::new();
        while !batch.is_empty() {
            batch.retain(all);
            batch.take(MAX_BATCH.0);
            written.extend(batch.tried.drain(..));
            batch.answered();
        }
        let numbers = written.iter().map(|write| match write.operation {
            Operation::Append { number, .. } => number,
            _ => 0,
        });
        assert!(numbers.eq(1..=10));
    }

    /// Of a Redis that was short of memory, each round refused another session first, and the oldest waited longest.
    #[test]
    fn of_refused_sessions_each_is_tried_again_in_turn() {
        let (queue, mut batch) = (Queue::default(), Batch::default());
        for session in ["a", "b", "a"] {
            queue.push(write(session, Operation::End { bytes: None }));
        }
        refuse(&queue, &mut batch, |_| true);
        let mut first = Vec::new();
        for new in ["x", "y", "z", "a"] {
            queue.push(write(new, Operation::End { bytes: None }));
            queue.fill(&mut batch);
            batch.retain(|_| true);
            batch.take(MAX_BATCH.0);
            first.push(batch.tried[0].at.session.as_str().to_owned());
            batch.answered();
        }
        assert_eq!(first, ["a", "b", "a", "x"]);
        // The last write of a session was taken, and its next one waits for nobody.
        queue.fill(&mut batch);
        batch.retain(|_| true);
        batch.take(MAX_BATCH.0);
        let taken = batch.tried.pop_front().unwrap().at.session;
        assert_eq!(taken.as_str(), "b");
        batch.tried.push_back(write("c", Operation::Barrier));
        batch.answered();
        assert!(!batch.waiting.contains(&taken));
        queue.push(write("b", Operation::Barrier));
        queue.fill(&mut batch);
        let next = batch.next.iter();
        assert!(next.map(|write| &write.at.session).eq([&taken]));
    }

    proptest! {
        /// Whatever Redis takes, refuses, or does not answer.
        #[test]
        fn the_writes_of_a_session_stay_in_order(
            rounds in prop::collection::vec((0..4_usize, 0..16_u8, 1..4_usize, any::<bool>()), 0..60),
        ) {
            let (queue, mut batch) = (Queue::default(), Batch::default());
            let sessions = ["a", "b", "c", "d"];
            let (mut pushed, mut taken) = ([0_u64; 4], [0_u64; 4]);
            let of = |write: &Write| {
                let name = write.at.session.as_str();
                sessions.iter().position(|one| *one == name).unwrap()
            };
            let rest = std::iter::repeat_n((0, 0, MAX_BATCH.0, true), 2);
            for (session, refuses, most, is_answered) in rounds.into_iter().chain(rest) {
                for at in [session, 0] {
                    pushed[at] += 1;
                    let operation = Operation::Append {
                        number: pushed[at],
                        event: None,
                        trim_before: 0,
                        calls: None,
                    };
                    queue.push(write(sessions[at], operation));
                }
                queue.fill(&mut batch);
                batch.retain(|_| true);
                batch.take(most);
                if !is_answered {
                    continue;
                }
                for write in std::mem::take(&mut batch.tried) {
                    let at = of(&write);
                    if refuses & (1 << at) != 0 {
                        batch.tried.push_back(write);
                        continue;
                    }
                    let Operation::Append { number, .. } = write.operation else { unreachable!() };
                    taken[at] += 1;
                    assert_eq!(number, taken[at]);
                }
                batch.answered();
            }
            assert!(batch.is_empty() && taken == pushed);
        }
    }

    /// A try whose answer was lost puts nothing before what it had refused.
    #[test]
    fn a_try_without_an_answer_keeps_the_order_of_a_session() {
        let (queue, mut batch) = (Queue::default(), Batch::default());
        (1..=4).for_each(|number| queue.push(append("a", number)));
        refuse(&queue, &mut batch, |_| true);
        for _ in 0..3 {
            queue.fill(&mut batch);
            batch.retain(|_| true);
            assert_eq!(batch.take(1), 1);
            let first = batch.tried.front().map(|write| &write.operation);
            assert!(matches!(first, Some(Operation::Append { number: 1, .. })));
        }
    }

    #[test]
    fn a_part_of_a_batch_has_its_first_writes() {
        let sessions = ["a", "b", "a", "a", "b"];
        let mut batch = Batch {
            next: sessions
                .map(|session| write(session, Operation::Forget))
                .into(),
            ..Batch::default()
        };
        assert_eq!(batch.take(3), 3);
        let parts = groups(&batch.tried);
        let parts = parts
            .iter()
            .map(|group| (group.session.as_str(), &group.writes[..]));
        assert_eq!(
            parts.collect::<Vec<_>>(),
            [("a", &[0, 2][..]), ("b", &[1][..])]
        );
    }
}

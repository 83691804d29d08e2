//! The appender: writes events to Redis in order, in batches, with retries.
//!
//! One task writes for all sessions. The writes of a session in one batch are one script call,
//! which applies all of them or none. Writes that Redis did not take, or may not have taken, come
//! first in the next batch, in halves; repeating a write changes nothing.

#![expect(
    clippy::disallowed_types,
    reason = "short critical sections without an await; who writes must not wait for a place"
)]

use std::{
    collections::{HashMap, VecDeque},
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
    Fence, SessionId, StoreError, WriteTarget,
    memory::{ENDED_STREAMS, Retention},
};

/// The stream of a write, and what permits it.
pub(super) struct At {
    pub(super) session: SessionId,
    pub(super) stream: StreamId,
    pub(super) fence: Fence,
    pub(super) epoch: u32,
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

    /// Appends queued writes to `batch` until that is full.
    fn fill(&self, batch: &mut VecDeque<Write>) {
        let mut bytes: usize = batch.iter().map(|write| write.operation.bytes()).sum();
        let mut writes = self.locked();
        while batch.len() < MAX_BATCH.0 && bytes < MAX_BATCH.1 {
            let Some(next) = writes.queue.pop_front() else {
                break;
            };
            bytes += next.operation.bytes();
            batch.push_back(next);
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

/// The task that writes.
pub(super) struct Appender {
    pub(crate) redis: Redis,
    pub(super) queue: Arc<Queue>,
    pub(super) cache: Arc<Cache>,
    pub(crate) retention: Retention,
}

impl Appender {
    /// Writes until `halt`, then flushes the queue for at most a second.
    pub(crate) async fn run(self, halt: CancellationToken) {
        let mut batch = VecDeque::new();
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

    /// Writes until the queue is empty. Cancel-safe: `batch` keeps every write without a result. After a failure,
    /// the next try has half as many.
    async fn write_all(&self, batch: &mut VecDeque<Write>) {
        let (mut delay, mut most) = (RETRY_DELAY.0, MAX_BATCH.0);
        loop {
            self.queue.fill(batch);
            batch.retain(|write| {
                let is_wanted = write.operation.is_mandatory() || !write.done.is_closed();
                if !is_wanted {
                    // The cache holds the event, and Redis does not; only Redis is authoritative.
                    self.cache.drop_all(&write.at.session);
                }
                is_wanted
            });
            if batch.is_empty() {
                if self.queue.is_empty() {
                    return;
                }
                continue;
            }
            let (before, tried) = (batch.len(), batch.len().min(most));
            self.write(batch, tried).await;
            let is_written = batch.len() + tried == before;
            most = next_most(most, tried, is_written);
            if is_written {
                delay = RETRY_DELAY.0;
            } else {
                sleep(delay).await;
                delay = (delay * 2).min(RETRY_DELAY.1);
            }
        }
    }

    /// Writes the first `count` of a batch. Writes that Redis did not take stay in it, in order.
    async fn write(&self, batch: &mut VecDeque<Write>, count: usize) {
        let groups = groups(batch, count);
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
                Err(_) => return,
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
            .arg(ms(MARGIN));
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
            if result.is_err() {
                self.cache.drop_all(&write.at.session);
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

/// The most writes of the next try. What is too much for the time limit would fail for ever, and hold up all sessions.
fn next_most(most: usize, tried: usize, is_written: bool) -> usize {
    if is_written {
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

/// The groups of the first `count` writes.
fn groups(batch: &VecDeque<Write>, count: usize) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    let mut last: HashMap<&SessionId, usize> = HashMap::new();
    for (at, write) in batch.iter().take(count).enumerate() {
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
        let (queue, mut batch) = (Queue::default(), VecDeque::new());
        for _ in 0..10_000 {
            queue.push(write("s", Operation::Barrier));
        }
        while !queue.is_empty() {
            queue.fill(&mut batch);
            batch.clear();
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
            let (queue, mut batch) = (Queue::default(), VecDeque::new());
            for _ in 0..10 {
                queue.push(write("s", operation()));
            }
            queue.fill(&mut batch);
            assert_eq!((batch.len(), queue.len()), (2, 8), "{with_event}");
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

    #[test]
    fn a_part_of_a_batch_has_its_first_writes() {
        let sessions = ["a", "b", "a", "a", "b"];
        let batch = sessions.map(|session| write(session, Operation::Forget));
        let parts = groups(&batch.into(), 3);
        let parts = parts
            .iter()
            .map(|group| (group.session.as_str(), &group.writes[..]));
        assert_eq!(
            parts.collect::<Vec<_>>(),
            [("a", &[0, 2][..]), ("b", &[1][..])]
        );
    }
}

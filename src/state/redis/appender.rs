//! How writes of the event log get to Redis: in order, in batches, again and again.
//!
//! One task takes what all sessions write. The writes of a session that are in one batch are one
//! call of a script, which does all of them or none. Those that Redis did not take, or may not
//! have taken, come first in the next batch: to repeat a write changes nothing.

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
use crate::state::{
    SessionId, Spot, StoreError,
    memory::{ENDED_STREAMS, Retention},
};

/// One write, and who waits for it.
pub(super) struct Write {
    pub(crate) at: Spot,
    pub(crate) what: What,
    pub(super) done: oneshot::Sender<Result<(), StoreError>>,
}

/// What is written.
pub(super) enum What {
    /// A stream begins, with its calls.
    Open(u64, Bytes),
    /// An event; none is too large to be kept.
    Append {
        number: u64,
        event: Option<Bytes>,
        /// The number before which nothing is kept any more; 0 if that has not changed.
        cut: u64,
        calls: Option<Bytes>,
    },
    /// A stream ends, holding so many bytes, if that is known.
    End { bytes: Option<usize> },
    /// Nothing of the session's streams is left.
    Forget,
    /// Nothing: done when all that was written before it is.
    Barrier,
}

impl What {
    fn bytes(&self) -> usize {
        match self {
            Self::Append { event, .. } => event.as_ref().map_or(0, Bytes::len),
            _ => 0,
        }
    }

    /// Whether it is done even if nobody waits for it any more.
    const fn is_owed(&self) -> bool {
        matches!(self, Self::Forget)
    }
}

/// What waits to be written. Its bound is the sessions': each has a bounded number of writes under
/// way, and stops reading its child at it.
#[derive(Default)]
pub(super) struct Queue {
    writes: Mutex<Waiting>,
    news: Notify,
}

#[derive(Default)]
struct Waiting {
    queue: VecDeque<Write>,
    is_closed: bool,
}

impl Queue {
    /// Adds a write. After the end of the appender it is dropped.
    pub(crate) fn push(&self, write: Write) {
        let mut writes = self.locked();
        if !writes.is_closed {
            writes.queue.push_back(write);
            drop(writes);
            self.news.notify_one();
        }
    }

    /// Moves the next ones behind those in `batch`, until that is full.
    fn fill(&self, batch: &mut VecDeque<Write>) {
        let mut bytes: usize = batch.iter().map(|write| write.what.bytes()).sum();
        let mut writes = self.locked();
        while batch.len() < BATCH.0 && bytes < BATCH.1 {
            let Some(next) = writes.queue.pop_front() else {
                return;
            };
            bytes += next.what.bytes();
            batch.push_back(next);
        }
    }

    fn is_empty(&self) -> bool {
        self.locked().queue.is_empty()
    }

    fn close(&self) {
        let mut writes = self.locked();
        writes.is_closed = true;
        writes.queue.clear();
    }

    fn locked(&self) -> MutexGuard<'_, Waiting> {
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
    /// Writes until `halt`, and then what there is for at most a second.
    pub(crate) async fn run(self, halt: CancellationToken) {
        let mut batch = VecDeque::new();
        halt.run_until_cancelled(async {
            loop {
                if self.queue.is_empty() {
                    self.queue.news.notified().await;
                }
                self.write_all(&mut batch).await;
            }
        })
        .await;
        // What was under way when `halt` came is in the batch still: it is written again.
        let _ = timeout(LAST, self.write_all(&mut batch)).await;
        self.queue.close();
    }

    /// Writes until nothing is left. Cancel-safe: what is not known to be written is in the batch.
    async fn write_all(&self, batch: &mut VecDeque<Write>) {
        let mut delay = DELAY.0;
        loop {
            self.queue.fill(batch);
            batch.retain(|write| {
                let is_wanted = write.what.is_owed() || !write.done.is_closed();
                if !is_wanted {
                    // It is in memory and not in Redis: only Redis is right.
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
            self.write(batch).await;
            if batch.is_empty() {
                delay = DELAY.0;
            } else {
                sleep(delay).await;
                delay = (delay * 2).min(DELAY.1);
            }
        }
    }

    /// Writes a batch; what Redis did not take is left in it, in order.
    async fn write(&self, batch: &mut VecDeque<Write>) {
        let parts = parts(batch);
        let asked: Vec<usize> = (0..parts.len())
            .filter(|part| {
                parts[*part]
                    .writes
                    .iter()
                    .any(|at| batch[*at].what.is_asked())
            })
            .collect();
        let calls = asked.iter().map(|part| self.call(&parts[*part], batch));
        let calls: Vec<Call> = calls.collect();
        let answers = if calls.is_empty() {
            Vec::new()
        } else {
            match self.redis.batch(calls).await {
                Ok(answers) => answers,
                Err(_) => return,
            }
        };
        let mut answers: HashMap<usize, _> = asked.into_iter().zip(answers).collect();
        let mut left: Vec<Option<Write>> = batch.drain(..).map(Some).collect();
        for (at, part) in parts.iter().enumerate() {
            let answer = answers.remove(&at).unwrap_or(Ok(Value::Nil));
            let answer = match answer {
                Ok(answer) => answer,
                Err(StoreError::Away) => continue,
                Err(_) => Value::Int(-1),
            };
            let writes = part.writes.iter().filter_map(|at| left[*at].take());
            self.answer(writes, &answer);
        }
        batch.extend(left.into_iter().flatten());
    }

    fn call(&self, part: &Part, batch: &VecDeque<Write>) -> Call {
        let (session, epoch) = (self.redis.session(&part.session), self.redis.key("epoch"));
        let at = &batch[part.writes[0]].at;
        let mut call = Call::new(Lua::Write, &[&session, &epoch])
            .arg(at.epoch)
            .arg(at.fence.0)
            .arg(ms(self.retention.age))
            .arg(self.retention.events)
            .arg(self.retention.of_ended())
            .arg(ENDED_STREAMS)
            .arg(ms(MARGIN));
        for write in part.writes.iter().map(|at| &batch[*at]) {
            let stream = write.at.stream;
            match &write.what {
                What::Open(last, calls) => {
                    call = call.arg("o").arg(stream).arg(*last).arg(&calls[..]);
                }
                What::Append {
                    number,
                    event,
                    cut,
                    calls,
                } => {
                    let kind = if event.is_some() { "a" } else { "m" };
                    call = call.arg(kind).arg(stream).arg(*number).arg(*cut);
                    if let Some(event) = event {
                        call.add(&event[..]);
                    }
                    if let Some(calls) = calls {
                        call = call.arg("c").arg(stream).arg(&calls[..]);
                    }
                }
                What::End { bytes } => {
                    let bytes = bytes.and_then(|bytes| i64::try_from(bytes).ok());
                    call = call.arg("e").arg(stream).arg(bytes.unwrap_or(-1));
                }
                What::Forget => call.add("f"),
                What::Barrier => {}
            }
        }
        call
    }

    /// Tells those who wait what became of their writes.
    fn answer(&self, writes: impl Iterator<Item = Write>, answer: &Value) {
        let mut results = match answer {
            Value::Array(results) => results.as_slice(),
            _ => &[],
        }
        .iter();
        for write in writes {
            let result = match (&write.what, answer) {
                (What::Barrier, _) => Ok(()),
                (_, Value::Int(-2)) => Err(StoreError::Flushed),
                (_, Value::Int(_)) => Err(StoreError::Fenced),
                _ => match results.next() {
                    Some(Value::Int(last @ 0..)) => {
                        let is_new = *last == 0 && matches!(write.what, What::Open(..));
                        // Nobody waits any more: the session may have been released.
                        if is_new && !write.done.is_closed() {
                            self.cache.open(&write.at);
                        }
                        Ok(())
                    }
                    _ => Err(StoreError::Fenced),
                },
            };
            if result.is_err() {
                self.cache.drop_all(&write.at.session);
            }
            // Who waited may be gone: it is written all the same.
            let _ = write.done.send(result);
        }
    }
}

impl What {
    const fn is_asked(&self) -> bool {
        !matches!(self, Self::Barrier)
    }
}

/// The writes of a batch that are one call: of one session, under one fence, in one epoch.
struct Part {
    session: SessionId,
    /// Where they stand in the batch.
    writes: Vec<usize>,
}

fn parts(batch: &VecDeque<Write>) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    let mut last: HashMap<&SessionId, usize> = HashMap::new();
    for (at, write) in batch.iter().enumerate() {
        let session = &write.at.session;
        let known = last.get(session).copied().filter(|part| {
            let first = &batch[parts[*part].writes[0]];
            let is_same = (first.at.fence, first.at.epoch) == (write.at.fence, write.at.epoch);
            // Whoever waits for all waits for the last, whosever it is.
            is_same || !write.what.is_asked()
        });
        if let Some(part) = known {
            parts[part].writes.push(at);
        } else {
            last.insert(session, parts.len());
            parts.push(Part {
                session: session.clone(),
                writes: vec![at],
            });
        }
    }
    parts
}

/// Writes and bytes that go to Redis in one go: it answers nobody else meanwhile, and each of these bytes
/// is copied three times on its way, into the call, the pipeline and the connection's buffer.
const BATCH: (usize, usize) = (1024, 1024 * 1024);
/// Before a batch is tried again, and at most.
const DELAY: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(200));
/// How long the last batches may take.
const LAST: Duration = Duration::from_secs(1);

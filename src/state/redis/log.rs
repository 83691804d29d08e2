//! The event log in Redis: a Redis Stream per stream, with a cache of this process's own events.
//!
//! Not here: the queue of writes (`appender`).

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use redis::Value;
use tokio::{sync::oneshot, time::timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    appender::{Appender, At, Operation, Queue, Write},
    cache::Cache,
    client::{Call, Redis},
    scripts::Lua,
};
use crate::protocol::{LISTENER_STREAM, StreamId};
use crate::state::{
    BoxFuture, EventLog, Fence, LONG_EVENT, LogSize, OpenStream, Page, SessionId, StoreError,
    Streams, WriteTarget,
    memory::{PAGE, Retention},
};

/// The event log that replicas share.
///
/// The events of a session's owner are also kept in its memory, within the same bounds, so its
/// readers need no request to Redis.
pub(crate) struct RedisLog {
    redis: Redis,
    cache: Arc<Cache>,
    queue: Arc<Queue>,
    max_event: usize,
}

impl RedisLog {
    /// The log of the replica of this boot id, whose appender runs until `halt`, and then flushes for at most a second.
    ///
    /// Of an event of more than `max_event` bytes only the number is kept in Redis: readers of it
    /// there get `Trimmed`.
    pub(crate) fn new(
        redis: Redis,
        boot: Arc<str>,
        retention: Retention,
        max_event: usize,
        tracker: &TaskTracker,
        halt: CancellationToken,
    ) -> Self {
        let cache = Arc::new(Cache::new(retention));
        let queue = Arc::new(Queue::default());
        let appender = Appender {
            redis: redis.clone(),
            queue: Arc::clone(&queue),
            cache: Arc::clone(&cache),
            retention,
            boot,
        };
        tracker.spawn(appender.run(halt));
        Self {
            redis,
            cache,
            queue,
            max_event,
        }
    }

    fn write(&self, at: At, operation: Operation) -> oneshot::Receiver<Result<(), StoreError>> {
        let (done, written) = oneshot::channel();
        self.queue.push(Write {
            at,
            operation,
            done,
        });
        written
    }
}

/// Resolves when the write is done; `Away` if the process ends first.
fn outcome(
    written: oneshot::Receiver<Result<(), StoreError>>,
) -> BoxFuture<'static, Result<(), StoreError>> {
    Box::pin(async move { written.await.unwrap_or(Err(StoreError::Away)) })
}

impl EventLog for RedisLog {
    fn open(
        &self,
        at: &WriteTarget,
        last: u64,
        calls: Bytes,
    ) -> BoxFuture<'static, Result<(), StoreError>> {
        // The listener counts with its session until its first event: most never have one.
        if last == 0 && at.stream != LISTENER_STREAM {
            self.cache.open(at);
        }
        outcome(self.write(at.into(), Operation::Open(last, calls)))
    }

    fn append(
        &self,
        at: &WriteTarget,
        number: u64,
        event: Bytes,
        calls: Option<Bytes>,
    ) -> BoxFuture<'static, Result<(), StoreError>> {
        let (trim_before, has_room) = self.cache.append(at, number, event.clone());
        let is_kept = event.len() <= self.max_event && (has_room || event.len() < LONG_EVENT);
        let event = is_kept.then_some(event);
        outcome(self.write(
            at.into(),
            Operation::Append {
                number,
                event,
                trim_before,
                calls,
            },
        ))
    }

    fn end(&self, at: &WriteTarget) -> BoxFuture<'static, Result<(), StoreError>> {
        let bytes = self.cache.end(at);
        outcome(self.write(at.into(), Operation::End { bytes }))
    }

    fn read<'a>(
        &'a self,
        session: &'a SessionId,
        stream: StreamId,
        after: u64,
    ) -> BoxFuture<'a, Result<Page, StoreError>> {
        if let Some(page) = self.cache.read(session, stream, after) {
            return Box::pin(std::future::ready(Ok(page)));
        }
        Box::pin(async move {
            let call = Call::new(Lua::Read, &[&self.redis.session(session)])
                .arg(stream)
                .arg(after)
                .arg(PAGE);
            page(self.redis.call(call).await?, after)
        })
    }

    fn streams<'a>(&'a self, session: &'a SessionId) -> BoxFuture<'a, Result<Streams, StoreError>> {
        Box::pin(async move {
            let key = self.redis.session(session);
            let found = self.redis.hash(&key).await?;
            Ok(streams(&found))
        })
    }

    fn forget<'a>(&'a self, session: &'a SessionId) -> BoxFuture<'a, ()> {
        // A replica that never wrote to the session has nothing to forget, and one that lost it
        // must not remove it.
        let Some((fence, epoch)) = self.cache.tenure_of(session) else {
            return Box::pin(std::future::ready(()));
        };
        self.cache.drop_all(session);
        let written = self.write(whole_session(session, fence, epoch), Operation::Forget);
        // While Redis is away the removal stays queued, and the caller continues.
        Box::pin(async move { drop(timeout(WAIT_LIMIT, written).await) })
    }

    fn release<'a>(&'a self, session: &'a SessionId) -> BoxFuture<'a, ()> {
        let (fence, epoch) = self.cache.tenure_of(session).unwrap_or((Fence(0), 0));
        let written = self.write(whole_session(session, fence, epoch), Operation::Barrier);
        Box::pin(async move {
            let _ = timeout(WAIT_LIMIT, written).await;
            self.cache.drop_all(session);
        })
    }

    fn sweep(&self) {
        self.cache.sweep();
    }

    fn size(&self) -> LogSize {
        LogSize {
            bytes: self.cache.bytes(),
            queued: self.queue.len(),
        }
    }
}

/// A target that stands for the whole session.
fn whole_session(session: &SessionId, fence: Fence, epoch: u32) -> At {
    At {
        session: session.clone(),
        stream: LISTENER_STREAM,
        fence,
        epoch,
    }
}

/// Reads the reply of `read.lua`.
fn page(reply: Value, after: u64) -> Result<Page, StoreError> {
    let Value::Array(items) = reply else {
        return Err(StoreError::Away);
    };
    let number = |at: usize| match items.get(at) {
        Some(Value::Int(number)) => Ok(*number),
        _ => Err(StoreError::Away),
    };
    if number(0)? < 0 {
        let oldest = u64::try_from(number(1)?).unwrap_or(0);
        return Err(StoreError::Trimmed { oldest });
    }
    let (is_ended, last) = (number(1)? == 1, u64::try_from(number(2)?).unwrap_or(0));
    let events = items.into_iter().skip(3).map(|event| match event {
        Value::BulkString(event) => Ok(Bytes::from(event)),
        _ => Err(StoreError::Away),
    });
    let events = (after + 1..)
        .zip(events)
        .map(|(number, event)| Ok((number, event?)))
        .collect::<Result<Vec<_>, StoreError>>()?;
    let reached = events.last().map_or(after, |(number, _)| *number);
    Ok(Page {
        events,
        is_end: is_ended && reached == last,
    })
}

/// Reads the streams from a session's hash, and ignores its other fields.
fn streams(fields: &[(String, Vec<u8>)]) -> Streams {
    let number = |bytes: &[u8]| std::str::from_utf8(bytes).ok()?.parse::<u64>().ok();
    let mut found = Streams::default();
    for (name, value) in fields {
        if name == "h" {
            let highest = number(value).and_then(|highest| StreamId::try_from(highest).ok());
            found.highest = highest.unwrap_or_default();
        }
        let Some(stream) = name.strip_prefix("o:").and_then(|id| id.parse().ok()) else {
            continue;
        };
        let last = format!("n:{stream}");
        let last = fields.iter().find(|(name, _)| *name == last);
        found.open.push(OpenStream {
            stream,
            last: last.and_then(|(_, value)| number(value)).unwrap_or(0),
            calls: Bytes::copy_from_slice(value),
        });
    }
    found
}

/// The time limit of a wait that is not required.
const WAIT_LIMIT: Duration = Duration::from_secs(1);

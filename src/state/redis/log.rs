//! The event log in Redis: a Redis Stream per stream, and what this process appended in memory.
//!
//! Not here: how writes get there (`redis_appender`).

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use redis::Value;
use tokio::{sync::oneshot, time::timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    appender::{Appender, Queue, What, Write},
    cache::Cache,
    client::{Call, Redis},
    scripts::Lua,
};
use crate::protocol::{LISTENER, StreamId};
use crate::state::{
    EventLog, Fence, Later, OpenStream, Page, SessionId, Spot, StoreError, Streams,
    memory::{PAGE, Retention},
};

/// The event log that all replicas share.
///
/// What a session's owner appends is also kept in its memory, within the same bounds: its readers
/// do not ask Redis.
pub(crate) struct RedisLog {
    redis: Redis,
    cache: Arc<Cache>,
    queue: Arc<Queue>,
    max_event: usize,
}

impl RedisLog {
    /// A log whose appender runs until `halt`, and then for up to a second until all is written.
    ///
    /// Of an event of more than `max_event` bytes only its number is kept in Redis: whoever reads
    /// it there gets `Trimmed`.
    pub(crate) fn new(
        redis: Redis,
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
        };
        tracker.spawn(appender.run(halt));
        Self {
            redis,
            cache,
            queue,
            max_event,
        }
    }

    fn write(&self, at: &Spot, what: What) -> oneshot::Receiver<Result<(), StoreError>> {
        let (done, kept) = oneshot::channel();
        self.queue.push(Write {
            at: at.clone(),
            what,
            done,
        });
        kept
    }
}

/// Ready when the write is; a write that the end of the process overtook is away.
fn outcome(
    kept: oneshot::Receiver<Result<(), StoreError>>,
) -> Later<'static, Result<(), StoreError>> {
    Box::pin(async move { kept.await.unwrap_or(Err(StoreError::Away)) })
}

impl EventLog for RedisLog {
    fn open(&self, at: &Spot, last: u64, calls: Bytes) -> Later<'static, Result<(), StoreError>> {
        outcome(self.write(at, What::Open(last, calls)))
    }

    fn append(
        &self,
        at: &Spot,
        number: u64,
        event: Bytes,
        calls: Option<Bytes>,
    ) -> Later<'static, Result<(), StoreError>> {
        let cut = self.cache.append(at, number, event.clone());
        let event = (event.len() <= self.max_event).then_some(event);
        outcome(self.write(
            at,
            What::Append {
                number,
                event,
                cut,
                calls,
            },
        ))
    }

    fn end(&self, at: &Spot) -> Later<'static, Result<(), StoreError>> {
        let bytes = self.cache.end(at);
        outcome(self.write(at, What::End { bytes }))
    }

    fn read<'a>(
        &'a self,
        session: &'a SessionId,
        stream: StreamId,
        after: u64,
    ) -> Later<'a, Result<Page, StoreError>> {
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

    fn streams<'a>(&'a self, session: &'a SessionId) -> Later<'a, Result<Streams, StoreError>> {
        Box::pin(async move {
            let key = self.redis.session(session);
            let found = self.redis.hash(&key).await?;
            Ok(streams(&found))
        })
    }

    fn forget<'a>(&'a self, session: &'a SessionId) -> Later<'a, ()> {
        // Who has not written to it has nothing to forget; who lost it must not.
        let Some((fence, epoch)) = self.cache.tenure_of(session) else {
            return Box::pin(std::future::ready(()));
        };
        self.cache.drop_all(session);
        let at = spot(session, fence, epoch);
        let kept = self.write(&at, What::Forget);
        // While Redis is away it stays to be done, and nobody waits.
        Box::pin(async move { drop(timeout(PATIENCE, kept).await) })
    }

    fn release<'a>(&'a self, session: &'a SessionId) -> Later<'a, ()> {
        let (fence, epoch) = self.cache.tenure_of(session).unwrap_or((Fence(0), 0));
        let kept = self.write(&spot(session, fence, epoch), What::Barrier);
        Box::pin(async move {
            let _ = timeout(PATIENCE, kept).await;
            self.cache.drop_all(session);
        })
    }
}

/// A place that stands for the whole session.
fn spot(session: &SessionId, fence: Fence, epoch: u32) -> Spot {
    Spot {
        session: session.clone(),
        stream: LISTENER,
        fence,
        epoch,
    }
}

/// What `read.lua` returned.
fn page(answer: Value, after: u64) -> Result<Page, StoreError> {
    let Value::Array(items) = answer else {
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

/// What a session's hash says of its streams; other fields are not for here.
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

/// For how long somebody waits for the end of what need not be waited for.
const PATIENCE: Duration = Duration::from_secs(1);

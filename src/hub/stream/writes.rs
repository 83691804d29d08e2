//! Writes of a session that the event log has not acknowledged, and the limit of them at which its
//! child is not read.
//!
//! The log in memory acknowledges at once. With a shared store, no event is sent to a connection
//! before the store has acknowledged it.

use std::{
    collections::VecDeque,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use bytes::Bytes;

use super::session_log::SessionLog;
use crate::{
    base::budget::{Drawn, drop_room, push_back},
    protocol::{StreamId, json},
    state::{BoxFuture, EventLog, Fence, LogShare, SessionId, StoreError, WriteTarget},
};

/// The unacknowledged writes of one session, in order.
pub(crate) struct Writes {
    log: Arc<dyn EventLog>,
    session: SessionId,
    share: LogShare,
    fence: Fence,
    epoch: u32,
    queue: VecDeque<Pending>,
    bytes: usize,
    /// What is drawn for them.
    drawn: Drawn,
    /// Whether there were as many as a child waits for while the share has no room, and some are left.
    is_waited_for: bool,
    stage: Stage,
}

/// What becomes of writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// They wait: the store has no record of the session yet, without which it refuses them.
    Early,
    /// They are written.
    Open,
    /// The oldest failed with `Flushed`, and has to be written again.
    Parked,
    /// Nothing is written any more.
    Closed,
}

struct Pending {
    done: BoxFuture<'static, Result<(), StoreError>>,
    stream: StreamId,
    write: Write,
}

/// A write to a stream.
#[derive(Clone, Debug)]
pub(crate) enum Write {
    /// A stream begins.
    Open {
        /// The number of its last event.
        last: u64,
        /// The calls that it waits for.
        calls: Bytes,
    },
    /// An event.
    Event {
        /// Its number.
        number: u64,
        /// The message.
        line: Bytes,
        /// The calls that the stream waits for, if they changed.
        calls: Option<Bytes>,
    },
    /// A stream ends.
    End,
}

/// The writes and the bytes under way beyond which the child is not read.
const MAX_WRITES: usize = 512;
const MAX_BYTES: usize = 512 * 1024;
/// The writes and the bytes that a child waits for while the share has no room: as one, they cost the store little
/// more than the first.
const FEW_WRITES: usize = 4;
const FEW_BYTES: usize = 2 * 1024;

/// What a write takes beside its bytes: its places in this queue and the one of the log, with their free
/// room while they grow, the channel for its result, and the rounding of the allocator. Measured with a
/// thousand sessions, of which each had 50.
const WEIGHT: u64 = 1280;

impl Writes {
    pub(crate) fn new(log: &SessionLog, fence: Fence, epoch: u32) -> Self {
        Self {
            log: Arc::clone(&log.log),
            session: log.session.clone(),
            share: log.share.clone(),
            fence,
            epoch,
            queue: VecDeque::new(),
            bytes: 0,
            drawn: log.share.memory().hold(0),
            is_waited_for: false,
            stage: if log.owner.is_alone() {
                Stage::Open
            } else {
                Stage::Early
            },
        }
    }

    /// The fence of this owner.
    pub(super) fn fence(&self) -> Fence {
        self.fence
    }

    /// Writes under the fence of another owner from now on.
    pub(crate) fn adopt(&mut self, fence: Fence) {
        self.fence = fence;
        self.go_on();
    }

    /// Drops the writes under way; from now on nothing is written.
    pub(crate) fn close(&mut self) {
        self.stage = Stage::Closed;
        _ = self.take();
    }

    /// Writes from now on, unless it is over.
    pub(super) fn go_on(&mut self) {
        if self.stage != Stage::Closed {
            self.stage = Stage::Open;
        }
    }

    /// Takes all writes under way.
    fn take(&mut self) -> VecDeque<Pending> {
        self.bytes = 0;
        self.is_waited_for = false;
        self.drawn.give_back(self.drawn.amount());
        std::mem::take(&mut self.queue)
    }

    /// The epoch of the store that is written to.
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// The events of a stream that are under way, in order.
    pub(super) fn events(&self, stream: StreamId) -> impl Iterator<Item = &Bytes> {
        let queue = self
            .queue
            .iter()
            .filter(move |pending| pending.stream == stream);
        queue.filter_map(|pending| match &pending.write {
            Write::Event { line, .. } => Some(line),
            Write::Open { .. } | Write::End => None,
        })
    }

    /// The raw ids of the calls that the log knows, and whose responses to a stream are under way.
    pub(super) fn answered(&self, stream: StreamId) -> impl Iterator<Item = &[u8]> {
        let queue = self
            .queue
            .iter()
            .filter(move |pending| pending.stream == stream);
        queue.filter_map(|pending| match &pending.write {
            Write::Event {
                line,
                calls: Some(_),
                ..
            } => json::get(line, "id"),
            // The response to a call of which the log has never heard changes no calls.
            Write::Event { calls: None, .. } | Write::Open { .. } | Write::End => None,
        })
    }

    /// The number of writes under way.
    pub(super) fn under_way(&self) -> usize {
        self.queue.len()
    }

    /// Whether the writes under way have to be written again in this epoch of the store: it is another one, or the
    /// store did not know it for a moment.
    pub(super) fn are_lost_in(&self, epoch: u32) -> bool {
        self.stage == Stage::Parked || self.epoch != epoch
    }

    /// Whether no write is under way: those before the session has a record end by nothing that the log does.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty() || self.stage == Stage::Early
    }

    /// Whether so much is under way that the child has to wait. Before the session has a record it is read on, since
    /// the record waits for its answer.
    pub(crate) fn is_full(&self) -> bool {
        self.stage != Stage::Early && self.is_beyond_room()
    }

    /// Whether so much waits for the record of the session that no more may.
    pub(super) fn has_no_early_room(&self) -> bool {
        self.stage == Stage::Early && self.is_beyond_room()
    }

    /// Whether there is more than a session may have, or, while the share has no room for it, any of a few that were
    /// written together.
    fn is_beyond_room(&self) -> bool {
        let is_too_much = self.are_too_many() || self.bytes > MAX_BYTES;
        is_too_much || self.is_waited_for && self.drawn.is_too_much()
    }

    /// Whether more writes are under way than a session may have, however small.
    pub(super) fn are_too_many(&self) -> bool {
        self.queue.len() > MAX_WRITES
    }

    /// Begins a write; returns it if it is acknowledged at once. Those before the session has a record wait for
    /// [`Self::go_on`] and [`Self::renew`].
    pub(crate) fn write(
        &mut self,
        stream: StreamId,
        write: Write,
    ) -> Result<Option<Write>, StoreError> {
        match self.stage {
            Stage::Closed => return Ok(None),
            Stage::Early => {
                self.enqueue(Box::pin(std::future::pending()), stream, write);
                return Ok(None);
            }
            Stage::Open | Stage::Parked => {}
        }
        let mut done = self.begin(stream, &write);
        if self.queue.is_empty()
            && let Poll::Ready(done) = done.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        {
            return done.map(|()| Some(write));
        }
        self.enqueue(done, stream, write);
        Ok(None)
    }

    fn enqueue(
        &mut self,
        done: BoxFuture<'static, Result<(), StoreError>>,
        stream: StreamId,
        write: Write,
    ) {
        self.bytes += write.bytes();
        self.drawn.add(write.weight());
        let pending = Pending {
            done,
            stream,
            write,
        };
        push_back(&mut self.queue, pending);
        self.is_waited_for |= self.queue.len() >= FEW_WRITES || self.bytes >= FEW_BYTES;
    }

    /// Waits for the oldest write under way; forever without one. Cancel-safe. A write that failed
    /// with `Flushed` stays under way for [`Self::renew`].
    pub(crate) async fn next(&mut self) -> Result<(StreamId, Write), StoreError> {
        let Some(first) = self.queue.front_mut() else {
            return std::future::pending().await;
        };
        let done = (&mut first.done).await;
        if done == Err(StoreError::Flushed) {
            // A future that is ready must not be polled again.
            first.done = Box::pin(std::future::pending());
            self.stage = Stage::Parked;
            return Err(StoreError::Flushed);
        }
        let Some(pending) = self.queue.pop_front() else {
            return Err(StoreError::Fenced);
        };
        drop_room(&mut self.queue);
        self.is_waited_for &= !self.queue.is_empty();
        self.bytes -= pending.write.bytes();
        self.drawn.give_back(pending.write.weight());
        done.map(|()| (pending.stream, pending.write))
    }

    /// Writes to another epoch of the store: `first`, then the writes that were under way. Without a record of the
    /// session they wait on, for the record in that epoch.
    pub(crate) fn renew(&mut self, epoch: u32, first: impl IntoIterator<Item = (StreamId, Write)>) {
        self.epoch = epoch;
        if self.stage == Stage::Early {
            return;
        }
        self.go_on();
        let left = self.take().into_iter();
        let left = left.map(|pending| (pending.stream, pending.write));
        let all: Vec<_> = first.into_iter().chain(left).collect();
        for (stream, write) in all {
            let done = self.begin(stream, &write);
            self.enqueue(done, stream, write);
        }
    }

    fn begin(&self, stream: StreamId, write: &Write) -> BoxFuture<'static, Result<(), StoreError>> {
        let at = WriteTarget {
            session: self.session.clone(),
            stream,
            fence: self.fence,
            epoch: self.epoch,
            share: self.share.clone(),
        };
        match write {
            Write::Open { last, calls } => self.log.open(&at, *last, calls.clone()),
            Write::Event {
                number,
                line,
                calls,
            } => self.log.append(&at, *number, line.clone(), calls.clone()),
            Write::End => self.log.end(&at),
        }
    }
}

impl Write {
    fn bytes(&self) -> usize {
        match self {
            Self::Event { line, calls, .. } => line.len() + calls.as_ref().map_or(0, Bytes::len),
            Self::Open { calls, .. } => calls.len(),
            Self::End => 0,
        }
    }

    fn weight(&self) -> u64 {
        WEIGHT + self.bytes() as u64
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use super::super::writes::*;
    use crate::{
        base::budget::Budget,
        state::memory::{MemoryLog, Retention},
    };

    fn writes(share: &Arc<Budget>) -> Writes {
        let keep = Retention {
            events: 1,
            bytes: 1,
            age: std::time::Duration::ZERO,
        };
        Writes {
            log: Arc::new(MemoryLog::new(keep)),
            session: SessionId("s".into()),
            share: LogShare::plenty(),
            fence: Fence(1),
            epoch: 1,
            queue: VecDeque::new(),
            bytes: 0,
            drawn: share.hold(0),
            is_waited_for: false,
            stage: Stage::Open,
        }
    }

    fn add(writes: &mut Writes, bytes: usize) {
        let event = Write::Event {
            number: 1,
            line: vec![0; bytes].into(),
            calls: None,
        };
        writes.enqueue(Box::pin(ready(Ok(()))), StreamId::default(), event);
    }

    /// A thousand sessions kept room for the most writes that they had ever had under way.
    #[tokio::test]
    async fn writes_give_back_their_room_and_what_was_drawn_for_them() {
        let share = Budget::new(u64::MAX >> 1).share();
        let mut writes = writes(&share);
        for _ in 0..500 {
            add(&mut writes, 10);
        }
        assert_eq!(share.used(), 500 * (WEIGHT + 10));
        for _ in 0..499 {
            writes.next().await.unwrap();
        }
        assert!(writes.queue.capacity() <= 9, "{}", writes.queue.capacity());
        assert_eq!(share.used(), WEIGHT + 10);
        writes.close();
        assert_eq!((share.used(), writes.bytes), (0, 0));
    }

    /// Writes of HTTP+SSE had no length, though each has the ids of all calls that wait.
    #[tokio::test]
    async fn the_ids_of_calls_count_as_bytes_under_way() {
        let share = Budget::new(u64::MAX >> 1).share();
        let mut writes = writes(&share);
        let calls = Bytes::from(vec![0; MAX_BYTES / 2]);
        let open = Write::Open {
            last: 0,
            calls: calls.clone(),
        };
        let event = Write::Event {
            number: 1,
            line: "{}".into(),
            calls: Some(calls),
        };
        writes.enqueue(Box::pin(ready(Ok(()))), StreamId::default(), open);
        assert!(!writes.is_full());
        writes.enqueue(Box::pin(ready(Ok(()))), StreamId::default(), event);
        assert!(writes.is_full() && !writes.are_too_many());
        assert_eq!(share.used(), 2 * WEIGHT + MAX_BYTES as u64 + 2);
        for _ in 0..2 {
            writes.next().await.unwrap();
        }
        assert_eq!((share.used(), writes.bytes), (0, 0));
    }

    /// A session whose record was there still, under the same epoch, wrote nothing any more.
    #[tokio::test]
    async fn a_write_that_the_store_has_lost_is_written_again_in_the_same_epoch() {
        let share = Budget::new(u64::MAX >> 1).share();
        let mut writes = writes(&share);
        add(&mut writes, 10);
        assert!(!writes.are_lost_in(1) && writes.are_lost_in(2));
        let lost = Box::pin(ready(Err(StoreError::Flushed)));
        writes.queue[0].done = lost;
        assert_eq!(writes.next().await.err(), Some(StoreError::Flushed));
        assert!(writes.are_lost_in(1));
        writes.renew(1, []);
        assert!(!writes.are_lost_in(1));
        assert!(matches!(writes.next().await, Ok((_, Write::Event { .. }))));
    }

    #[tokio::test]
    async fn writes_before_the_record_outlast_epochs_and_have_a_bound() {
        let share = Budget::new(u64::MAX >> 1).share();
        let mut writes = writes(&share);
        writes.stage = Stage::Early;
        let event = Write::Event {
            number: 1,
            line: vec![0; MAX_BYTES].into(),
            calls: None,
        };
        writes.write(StreamId::default(), event).unwrap();
        assert!(!writes.has_no_early_room() && !writes.is_full());
        add(&mut writes, 1);
        assert!(writes.has_no_early_room() && !writes.is_full());
        writes.renew(2, []);
        assert_eq!((writes.stage, writes.epoch), (Stage::Early, 2));
        assert_eq!(writes.queue.len(), 2);
        writes.go_on();
        assert!(!writes.has_no_early_room() && writes.is_full());
        writes.renew(2, []);
        assert!(matches!(writes.next().await, Ok((_, Write::Event { .. }))));
    }

    #[tokio::test]
    async fn without_room_in_the_share_a_child_waits_for_a_few_writes() {
        let share = Budget::new(30_000).share();
        let mut writes = writes(&share);
        let fill = |writes: &mut Writes, bytes| {
            let mut count = 0;
            while !writes.is_full() {
                add(writes, bytes);
                count += 1;
            }
            count
        };
        add(&mut writes, 2500);
        assert!(!writes.is_full(), "there is room");
        let others = share.hold(20_000);
        assert!(writes.is_full());
        writes.next().await.unwrap();
        for round in 0..3 {
            assert_eq!(fill(&mut writes, 100), 4, "small ones, in round {round}");
            for left in (0..4).rev() {
                writes.next().await.unwrap();
                assert_eq!(writes.is_full(), left > 0, "all of them are waited for");
            }
            assert_eq!(fill(&mut writes, 2500), 1, "a large one, in round {round}");
            writes.next().await.unwrap();
            assert!(!writes.is_full(), "it would wait forever");
        }
        assert_eq!(fill(&mut writes, 100), 4);
        drop(others);
        assert!(!writes.is_full(), "there is room");
    }
}

//! Writes of a session that the event log has not acknowledged.
//!
//! The log in memory acknowledges at once. With a shared store, no event goes to a socket before
//! the store has it.

use std::{
    collections::VecDeque,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use bytes::Bytes;

use crate::{
    protocol::StreamId,
    state::{BoxFuture, EventLog, Fence, SessionId, StoreError, WriteTarget},
};

/// The writes of one session, in order.
pub(crate) struct Writing {
    log: Arc<dyn EventLog>,
    session: SessionId,
    fence: Fence,
    epoch: u32,
    queue: VecDeque<Write>,
    bytes: usize,
    is_closed: bool,
}

struct Write {
    kept: BoxFuture<'static, Result<(), StoreError>>,
    stream: StreamId,
    what: What,
}

/// A write.
#[derive(Clone, Debug)]
pub(crate) enum What {
    /// A stream begins: the number of its last event, and the calls that it waits for.
    Open(u64, Bytes),
    /// Event, its number, and the calls that are left, where they changed.
    Event(u64, Bytes, Option<Bytes>),
    /// A stream ends.
    End,
}

/// Writes and bytes under way beyond which the child is not read.
const FULL: (usize, usize) = (512, 4 * 1024 * 1024);

impl Writing {
    pub(crate) fn new(
        log: Arc<dyn EventLog>,
        session: SessionId,
        (fence, epoch): (Fence, u32),
    ) -> Self {
        Self {
            log,
            session,
            fence,
            epoch,
            queue: VecDeque::new(),
            bytes: 0,
            is_closed: false,
        }
    }

    /// The session has another owner's number now.
    pub(crate) fn adopt(&mut self, fence: Fence) {
        self.fence = fence;
    }

    /// Gives up what is under way; from now on nothing is written.
    pub(crate) fn close(&mut self) {
        (self.is_closed, self.bytes) = (true, 0);
        self.queue.clear();
    }

    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Whether nothing is under way.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether so much is under way that there should be no more.
    pub(crate) fn is_full(&self) -> bool {
        self.queue.len() > FULL.0 || self.bytes > FULL.1
    }

    /// Writes; returns `what` if it is kept already.
    pub(crate) fn write(
        &mut self,
        stream: StreamId,
        what: What,
    ) -> Result<Option<What>, StoreError> {
        if self.is_closed {
            return Ok(None);
        }
        let mut kept = self.begin(stream, &what);
        if self.queue.is_empty()
            && let Poll::Ready(kept) = kept.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        {
            return kept.map(|()| Some(what));
        }
        self.bytes += what.bytes();
        self.queue.push_back(Write { kept, stream, what });
        Ok(None)
    }

    /// Waits for the oldest write under way; for ever, where there is none. Cancel-safe. One that
    /// failed with `Flushed` stays under way for [`Self::renew`].
    pub(crate) async fn next(&mut self) -> Result<(StreamId, What), StoreError> {
        let Some(first) = self.queue.front_mut() else {
            return std::future::pending().await;
        };
        let kept = (&mut first.kept).await;
        if kept == Err(StoreError::Flushed) {
            // Done is done: it must not be polled again.
            first.kept = Box::pin(std::future::pending());
            return Err(StoreError::Flushed);
        }
        let Some(write) = self.queue.pop_front() else {
            return Err(StoreError::Fenced);
        };
        self.bytes -= write.what.bytes();
        kept.map(|()| (write.stream, write.what))
    }

    /// Another life of the store: `first` is written anew, then what was under way.
    pub(crate) fn renew(&mut self, epoch: u32, first: impl IntoIterator<Item = (StreamId, What)>) {
        self.epoch = epoch;
        let left = std::mem::take(&mut self.queue);
        let left = left.into_iter().map(|write| (write.stream, write.what));
        let all: Vec<_> = first.into_iter().chain(left).collect();
        self.bytes = 0;
        for (stream, what) in all {
            let kept = self.begin(stream, &what);
            self.bytes += what.bytes();
            self.queue.push_back(Write { kept, stream, what });
        }
    }

    fn begin(&self, stream: StreamId, what: &What) -> BoxFuture<'static, Result<(), StoreError>> {
        let at = WriteTarget {
            session: self.session.clone(),
            stream,
            fence: self.fence,
            epoch: self.epoch,
        };
        match what {
            What::Open(last, calls) => self.log.open(&at, *last, calls.clone()),
            What::Event(number, event, calls) => {
                self.log.append(&at, *number, event.clone(), calls.clone())
            }
            What::End => self.log.end(&at),
        }
    }
}

impl What {
    fn bytes(&self) -> usize {
        match self {
            Self::Event(_, event, _) => event.len(),
            Self::Open(..) | Self::End => 0,
        }
    }
}

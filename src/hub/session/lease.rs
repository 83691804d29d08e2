//! Lease of a session: the fence of its owner, and the times at which its record is written.
//!
//! Not here: the writes themselves (`ownership`), and the content of the record (`record`).

use std::{future::poll_fn, sync::atomic::Ordering, task::Poll, time::Duration};

use bytes::Bytes;
use tokio::{sync::oneshot, time::Instant};

use crate::{
    hub::{
        ownership::ReplicaLease,
        stream::{Answer, Pulse},
    },
    protocol::StreamId,
    state::{BoxFuture, Fence, StoreError},
};

/// Writes in the time to live of a record.
const RENEWALS: u32 = 10;

/// The hold of this replica on a session. Its record has one write at a time, so that the last
/// one wins.
pub(super) struct Lease {
    fence: Fence,
    write: Option<BoxFuture<'static, Result<(), StoreError>>>,
    is_changed: bool,
    /// The latest write; none for a session that the directory does not have.
    written: Option<Instant>,
    /// Responses whose effect the directory has to know first.
    responses: Vec<(StreamId, Bytes)>,
    /// The same for the POST of `notifications/initialized`.
    initialized: Option<oneshot::Sender<Answer>>,
}

impl Lease {
    /// The lease of a session that the directory does not have.
    pub(super) fn new(fence: Fence) -> Self {
        Self {
            fence,
            write: None,
            is_changed: false,
            written: None,
            responses: Vec::new(),
            initialized: None,
        }
    }

    /// The lease of a session that another replica inserted.
    pub(super) fn adopted(fence: Fence) -> Self {
        Self {
            written: Some(Instant::now()),
            ..Self::new(fence)
        }
    }

    /// The number of this owner.
    pub(super) fn fence(&self) -> Fence {
        self.fence
    }

    /// Whether the directory has the session: until then no other replica can own it.
    pub(super) fn is_registered(&self) -> bool {
        self.written.is_some()
    }

    /// The record was inserted into the directory.
    pub(super) fn inserted(&mut self) {
        self.written = Some(Instant::now());
    }

    /// Marks the record as changed.
    pub(super) fn mark_changed(&mut self) {
        self.is_changed = true;
    }

    /// Whether a change has not been written.
    pub(super) fn is_changed(&self) -> bool {
        self.is_changed
    }

    /// The time of the next write: at a change, and before the time to live runs out, unless a
    /// write is under way; none for a session that the directory does not have.
    pub(super) fn due(&self, now: Instant, ttl: Duration) -> Option<Instant> {
        let due = self.written? + ttl / RENEWALS;
        if self.write.is_some() || now < due && !self.is_changed {
            return Some(due.max(now + Duration::from_secs(1)));
        }
        Some(now)
    }

    /// Begins a write; returns the time of the next one.
    pub(super) fn begin_write(
        &mut self,
        now: Instant,
        ttl: Duration,
        write: BoxFuture<'static, Result<(), StoreError>>,
    ) -> Instant {
        (self.written, self.is_changed) = (Some(now), false);
        self.write = Some(write);
        now + ttl / RENEWALS
    }

    /// Whether a write is under way.
    pub(super) fn is_writing(&self) -> bool {
        self.write.is_some()
    }

    /// Whether something is left that the next owner has to find in the record, or a response that waits for that.
    pub(super) fn is_unsettled(&self) -> bool {
        let is_unwritten = self.is_registered() && (self.is_changed || self.is_writing());
        is_unwritten || !self.responses.is_empty() || self.initialized.is_some()
    }

    /// Waits for the write under way; forever without one. Cancel-safe.
    pub(super) async fn write_done(&mut self) -> Result<(), StoreError> {
        match &mut self.write {
            Some(write) => write.await,
            None => std::future::pending().await,
        }
    }

    /// The write under way has ended.
    pub(super) fn end_write(&mut self) {
        self.write = None;
    }

    /// Holds a response until the write under way has ended.
    pub(super) fn hold_response(&mut self, stream: StreamId, line: Bytes) {
        self.responses.push((stream, line));
    }

    /// The number of responses that are held.
    pub(super) fn held(&self) -> usize {
        self.responses.len()
    }

    /// Holds the answer to `notifications/initialized` likewise.
    pub(super) fn hold_initialized(&mut self, reply: oneshot::Sender<Answer>) {
        self.initialized = Some(reply);
    }

    /// Takes the answer that was held.
    pub(super) fn take_initialized(&mut self) -> Option<oneshot::Sender<Answer>> {
        self.initialized.take()
    }

    /// Takes the responses that were held.
    pub(super) fn take_responses(&mut self) -> Vec<(StreamId, Bytes)> {
        std::mem::take(&mut self.responses)
    }
}

/// Waits until a session may not be served any more.
///
/// The future registers no waker: the task of the session polls it before each event. After a
/// freeze of this replica, events are ready for a session that may belong to another owner.
pub(super) async fn lapse(owner: &ReplicaLease, pulse: &Pulse) {
    poll_fn(|_| {
        if is_served(owner, pulse) {
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    })
    .await;
}

/// Whether this replica may serve a session with this pulse now.
pub(super) fn is_served(owner: &ReplicaLease, pulse: &Pulse) -> bool {
    owner.serves(pulse.confirmed.load(Ordering::Acquire))
}

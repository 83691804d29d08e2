//! Limits of request bodies: size and stalls.
//!
//! Wraps the body that a route reads; at a limit the route gets an error. Not here: collecting and
//! parsing.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::{Instant, Sleep};

/// State of a body, shared by the body and the gate.
#[derive(Clone, Debug)]
pub(crate) struct BodyState(Arc<AtomicU8>);

/// How far a body was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadState {
    /// Parts of the body may still be in the connection.
    Partial,
    /// The body was read to its end.
    Complete,
    /// The body exceeded `max_body`.
    TooLarge,
    /// The body stalled.
    Stalled,
}

impl BodyState {
    /// Returns how far the body was read.
    pub(crate) fn get(&self) -> ReadState {
        match self.0.load(Ordering::Relaxed) {
            0 => ReadState::Partial,
            1 => ReadState::Complete,
            2 => ReadState::TooLarge,
            _ => ReadState::Stalled,
        }
    }

    fn set(&self, state: ReadState) {
        self.0.store(state as u8, Ordering::Relaxed);
    }
}

/// A body under its limits.
struct LimitedBody {
    inner: Body,
    state: BodyState,
    /// Bytes that may still come.
    left: u64,
    /// Bytes since the deadline was last moved.
    fresh: usize,
    /// Created at the first wait, because most bodies arrive at once.
    deadline: Option<Pin<Box<Sleep>>>,
}

/// Reason why a body ended early. The route may ignore it: the gate sends 413 or 408 itself.
#[derive(Debug, thiserror::Error)]
enum BodyError {
    #[error("body too large")]
    TooLarge,
    #[error("body stalled")]
    Stalled,
}

/// Puts a body under its limits.
pub(crate) fn limit(inner: Body, max: u64) -> (Body, BodyState) {
    let state = BodyState(Arc::new(AtomicU8::new(ReadState::Partial as u8)));
    if inner.is_end_stream() {
        state.set(ReadState::Complete);
        return (inner, state);
    }
    let limited = LimitedBody {
        inner,
        state: state.clone(),
        left: max,
        fresh: 0,
        deadline: None,
    };
    (Body::new(limited), state)
}

impl LimitedBody {
    fn poll_deadline(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let fresh = std::mem::take(&mut self.fresh);
        match &mut self.deadline {
            None => self.deadline = Some(Box::pin(tokio::time::sleep(STALL))),
            Some(deadline) if fresh >= STEP => deadline.as_mut().reset(Instant::now() + STALL),
            // A few bytes do not move the deadline, so a slow drip cannot keep the request open.
            Some(_) => self.fresh = fresh,
        }
        self.deadline
            .as_mut()
            .map_or(Poll::Pending, |deadline| deadline.as_mut().poll(cx))
    }

    fn count(&mut self, size: usize) -> Result<(), BodyError> {
        self.fresh = self.fresh.saturating_add(size);
        let Some(left) = self.left.checked_sub(size as u64) else {
            self.state.set(ReadState::TooLarge);
            return Err(BodyError::TooLarge);
        };
        self.left = left;
        Ok(())
    }
}

impl HttpBody for LimitedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        match Pin::new(&mut this.inner).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                let size = frame.data_ref().map_or(0, Bytes::len);
                if let Err(error) = this.count(size) {
                    return Poll::Ready(Some(Err(axum::Error::new(error))));
                }
                if this.inner.is_end_stream() {
                    this.state.set(ReadState::Complete);
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(None) => {
                this.state.set(ReadState::Complete);
                Poll::Ready(None)
            }
            Poll::Ready(error) => Poll::Ready(error),
            Poll::Pending => {
                std::task::ready!(this.poll_deadline(cx));
                this.state.set(ReadState::Stalled);
                Poll::Ready(Some(Err(axum::Error::new(BodyError::Stalled))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// Time limit for the next [`STEP`] bytes, within the promised 30 s.
const STALL: Duration = Duration::from_secs(20);
/// Bytes that must arrive for the deadline to move.
const STEP: usize = 16 << 10;

//! Limits of requests: size and stalls of their bodies, and what they and their answers take of their address's memory.
//!
//! Wraps the body that a route reads; at a limit the route gets an error. Wraps the body of a complete answer too, which
//! counts until the client has taken it. Not here: collecting and parsing.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt;
use tokio::time::{Instant, Sleep};

use crate::base::budget::Budget;

/// State of a request and its body, shared by the body and the gate.
#[derive(Clone, Debug)]
pub(crate) struct BodyState(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: AtomicU8,
    /// What the request takes is drawn from here, until it is answered.
    budget: Arc<Budget>,
    drawn: AtomicU64,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.budget.give_back(self.drawn.load(Ordering::Relaxed));
    }
}

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
    /// The address has too much under way.
    NoRoom,
    /// The body came in too many parts.
    Scattered,
}

impl BodyState {
    /// Returns how far the body was read.
    pub(crate) fn get(&self) -> ReadState {
        match self.0.state.load(Ordering::Relaxed) {
            0 => ReadState::Partial,
            1 => ReadState::Complete,
            2 => ReadState::TooLarge,
            3 => ReadState::Stalled,
            4 => ReadState::NoRoom,
            _ => ReadState::Scattered,
        }
    }

    fn set(&self, state: ReadState) {
        self.0.state.store(state as u8, Ordering::Relaxed);
    }

    /// Draws what the request takes. False, with the state set, if its address has no room for it.
    pub(super) fn draw(&self, bytes: usize) -> bool {
        let Shared { budget, drawn, .. } = &*self.0;
        let bytes = bytes as u64;
        budget.take(bytes);
        drawn.fetch_add(bytes, Ordering::Relaxed);
        let has_room = budget.left() >= 0;
        if !has_room {
            self.set(ReadState::NoRoom);
        }
        has_room
    }

    /// The share of its address.
    pub(super) fn budget(&self) -> &Arc<Budget> {
        &self.0.budget
    }

    /// Gives back what was drawn, and holds what is left of a request that is refused, whose body nobody reads.
    pub(super) fn keep(&self, bytes: u64) {
        self.set(ReadState::Partial);
        let Shared { budget, drawn, .. } = &*self.0;
        budget.take(bytes);
        budget.give_back(drawn.swap(bytes, Ordering::Relaxed));
    }

    /// Counts the parts of an answer, each of them as `least` bytes or more, until the client has taken them. They exist
    /// already, so that none is refused.
    pub(super) fn count_until_taken(&self, answer: Body, least: u64) -> Body {
        let budget = Arc::clone(&self.0.budget);
        Body::new(CountedAnswer {
            inner: answer,
            budget,
            least,
        })
    }

    /// Holds an amount as long as an answer goes on.
    pub(super) fn hold_with(&self, answer: Body, amount: u64) -> Body {
        if amount == 0 {
            return answer;
        }
        let held = self.0.budget.hold(amount);
        Body::new(answer.map_frame(move |frame| {
            let _held = &held;
            frame
        }))
    }
}

/// The body of an answer that counts for its address. hyper polls it before it asks whether the client takes anything,
/// and h2 keeps the bytes, not the body.
struct CountedAnswer {
    inner: Body,
    budget: Arc<Budget>,
    least: u64,
}

impl HttpBody for CountedAnswer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = std::task::ready!(Pin::new(&mut self.inner).poll_frame(cx));
        let count = |bytes: Bytes| {
            let amount = self.least.max(bytes.len() as u64);
            self.budget.hold(amount).until_dropped(bytes)
        };
        Poll::Ready(frame.map(|frame| frame.map(|frame| frame.map_data(count))))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// A body under its limits.
struct LimitedBody {
    inner: Body,
    state: BodyState,
    is_begun: bool,
    /// Bytes that may still come.
    left: u64,
    /// Bytes that the parts which may still come are worth, at [`PART`] bytes a part.
    worth: usize,
    /// Bytes since the deadline was last moved.
    fresh: usize,
    /// Created at the first wait, because most bodies arrive at once.
    deadline: Option<Pin<Box<Sleep>>>,
}

/// Reason why a body ended early. The route may ignore it: the gate sends its own response.
#[derive(Debug, thiserror::Error)]
enum BodyError {
    #[error("body too large")]
    TooLarge,
    #[error("body stalled")]
    Stalled,
    #[error("the address has too much under way")]
    NoRoom,
    #[error("the body comes in too many parts")]
    Scattered,
}

/// Puts a body under its limits: `max` bytes, their parts, and the share of its address.
pub(crate) fn limit(inner: Body, max: u64, budget: Arc<Budget>) -> (Body, BodyState) {
    let state = BodyState(Arc::new(Shared {
        state: AtomicU8::new(ReadState::Partial as u8),
        budget,
        drawn: AtomicU64::new(0),
    }));
    if inner.is_end_stream() {
        state.set(ReadState::Complete);
        return (inner, state);
    }
    let limited = LimitedBody {
        inner,
        state: state.clone(),
        is_begun: false,
        left: max,
        worth: PARTS * PART,
        fresh: 0,
        deadline: None,
    };
    (Body::new(limited), state)
}

impl LimitedBody {
    /// Whether there is room for all of the body, if it says how long it is.
    ///
    /// One that does not fit would be read in vain, and so would the next one in the room that it gave back.
    fn may_fit(&self) -> bool {
        let length = self.inner.size_hint().exact().unwrap_or_default();
        length <= STEP as u64 || self.state.0.budget.has_twice(length)
    }

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
        // A part costs as much as some kilobytes, so bytes one by one would cost us hundreds of times what they cost
        // their client.
        let Some(worth) = self.worth.saturating_add(size).checked_sub(PART) else {
            self.state.set(ReadState::Scattered);
            return Err(BodyError::Scattered);
        };
        self.worth = worth;
        if !self.state.draw(size) {
            return Err(BodyError::NoRoom);
        }
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
        if !std::mem::replace(&mut this.is_begun, true) && !this.may_fit() {
            this.state.set(ReadState::NoRoom);
            return Poll::Ready(Some(Err(axum::Error::new(BodyError::NoRoom))));
        }
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
/// Bytes of a body that an HTTP/2 client may send before they are read.
pub(crate) const STREAM_WINDOW: u32 = 256 << 10;
/// Most bytes of trailers of a request over HTTP/2, which h2 keeps with their stream also if nobody reads its body. Each may
/// name a field.
pub(crate) const TRAILERS_MAX: usize = 128;
/// Parts of a body (chunks of HTTP/1.1, DATA frames of HTTP/2, or what was read at once) that may come whatever their
/// size: clients that write as they serialize send one for each token.
const PARTS: usize = 8 << 10;
/// Bytes for which one more part may come: of the largest body 16,384 in all.
const PART: usize = 512;
/// Bytes that must arrive for the deadline to move.
const STEP: usize = 16 << 10;

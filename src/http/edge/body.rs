//! The body of a request on its way to a route: bounded in size and in time.
//!
//! Does not collect or parse; a route reads it as it likes and sees an error at a bound.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::{Instant, Sleep};

/// How far the reading of a body has come; shared by the body and the gate.
#[derive(Clone, Debug)]
pub(crate) struct Progress(Arc<AtomicU8>);

/// What became of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Read {
    /// Something of it may still be in the connection.
    Partly,
    /// To its end.
    Whole,
    /// It went beyond `max_body`.
    TooLarge,
    /// It stood still.
    Stalled,
}

impl Progress {
    /// What became of the body so far.
    pub(crate) fn read(&self) -> Read {
        match self.0.load(Ordering::Relaxed) {
            0 => Read::Partly,
            1 => Read::Whole,
            2 => Read::TooLarge,
            _ => Read::Stalled,
        }
    }

    fn set(&self, read: Read) {
        self.0.store(read as u8, Ordering::Relaxed);
    }
}

/// A body with its bounds.
struct Metered {
    inner: Body,
    progress: Progress,
    /// How many bytes may still come.
    left: u64,
    /// How many bytes came since the deadline was last moved.
    fresh: usize,
    /// Made at the first wait: most bodies are there at once.
    deadline: Option<Pin<Box<Sleep>>>,
}

/// Why a body ended early; the route need not look, the gate answers 413 or 408 itself.
#[derive(Debug, thiserror::Error)]
enum Cut {
    #[error("body too large")]
    TooLarge,
    #[error("body stalled")]
    Stalled,
}

/// Puts a body under its bounds.
pub(crate) fn meter(inner: Body, max: u64) -> (Body, Progress) {
    let progress = Progress(Arc::new(AtomicU8::new(Read::Partly as u8)));
    if inner.is_end_stream() {
        progress.set(Read::Whole);
        return (inner, progress);
    }
    let metered = Metered {
        inner,
        progress: progress.clone(),
        left: max,
        fresh: 0,
        deadline: None,
    };
    (Body::new(metered), progress)
}

impl Metered {
    fn poll_deadline(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let fresh = std::mem::take(&mut self.fresh);
        match &mut self.deadline {
            None => self.deadline = Some(Box::pin(tokio::time::sleep(STALL))),
            Some(deadline) if fresh >= STEP => deadline.as_mut().reset(Instant::now() + STALL),
            // A few bytes do not move the deadline, so a body cannot be dripped in for ever.
            Some(_) => self.fresh = fresh,
        }
        self.deadline
            .as_mut()
            .map_or(Poll::Pending, |deadline| deadline.as_mut().poll(cx))
    }

    fn taken(&mut self, size: usize) -> Result<(), Cut> {
        self.fresh = self.fresh.saturating_add(size);
        let Some(left) = self.left.checked_sub(size as u64) else {
            self.progress.set(Read::TooLarge);
            return Err(Cut::TooLarge);
        };
        self.left = left;
        Ok(())
    }
}

impl HttpBody for Metered {
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
                if let Err(cut) = this.taken(size) {
                    return Poll::Ready(Some(Err(axum::Error::new(cut))));
                }
                if this.inner.is_end_stream() {
                    this.progress.set(Read::Whole);
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(None) => {
                this.progress.set(Read::Whole);
                Poll::Ready(None)
            }
            Poll::Ready(error) => Poll::Ready(error),
            Poll::Pending => {
                std::task::ready!(this.poll_deadline(cx));
                this.progress.set(Read::Stalled);
                Poll::Ready(Some(Err(axum::Error::new(Cut::Stalled))))
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

/// C11 and P103 allow 30 s for a body that stands still.
const STALL: Duration = Duration::from_secs(20);
/// What must arrive for the deadline to move.
const STEP: usize = 16 << 10;

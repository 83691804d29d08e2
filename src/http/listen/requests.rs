//! Requests of one connection: who answers them, and how far the current one is.
//!
//! Not here: open requests of HTTP/2, of which there are several at a time (`activity`).

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use axum::body::Body;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;

use crate::base::budget::Budget;
use crate::http::edge::App;

/// What a connection and its requests have in common. It is the connection's own, so that requests count references to
/// it without disturbing other connections.
pub(super) struct Requests {
    /// Routes that answer them.
    pub(super) app: App,
    /// Address of the peer.
    pub(super) peer: SocketAddr,
    /// Whether there was any.
    have_begun: AtomicBool,
    /// Whether one waits for its answer.
    is_under_way: AtomicBool,
    /// Whether one was answered since the last look.
    was_answered: AtomicBool,
    /// Bytes that were taken since the last look; of a head at least one.
    taken: AtomicUsize,
    /// Whether its body may have trailers, of which hyper keeps what it has read.
    may_have_trailers: AtomicBool,
    /// Whether the buffer that HTTP/1 is read into has grown for good.
    has_grown: AtomicBool,
}

impl Requests {
    /// Those of a connection that has just been accepted.
    pub(super) fn new(app: App, peer: SocketAddr) -> Arc<Self> {
        Arc::new(Self {
            app,
            peer,
            have_begun: AtomicBool::new(false),
            is_under_way: AtomicBool::new(false),
            was_answered: AtomicBool::new(false),
            taken: AtomicUsize::new(0),
            may_have_trailers: AtomicBool::new(false),
            has_grown: AtomicBool::new(false),
        })
    }

    /// Notes a request, whose head is complete.
    pub(super) fn begin(&self) {
        self.have_begun.store(true, Ordering::Relaxed);
        self.is_under_way.store(true, Ordering::Relaxed);
        self.taken.fetch_add(1, Ordering::Relaxed);
        self.may_have_trailers.store(false, Ordering::Relaxed);
    }

    /// The body of a request of HTTP/1, which notes what is taken of it.
    pub(super) fn body(self: &Arc<Self>, body: Incoming) -> Body {
        if body.is_end_stream() {
            return Body::new(body);
        }
        // One without a length is in chunks (RFC 9112, section 7.1.2).
        let is_chunked = body.size_hint().exact().is_none();
        self.may_have_trailers.store(is_chunked, Ordering::Relaxed);
        let requests = Arc::clone(self);
        Body::new(TakenBody { body, requests })
    }

    /// Notes the answer to it.
    pub(super) fn answered(&self) {
        self.is_under_way.store(false, Ordering::Relaxed);
        self.was_answered.store(true, Ordering::Relaxed);
    }

    /// Whether there was any.
    pub(super) fn have_begun(&self) -> bool {
        self.have_begun.load(Ordering::Relaxed)
    }

    /// Whether the body of the present one may have trailers.
    pub(super) fn may_have_trailers(&self) -> bool {
        self.may_have_trailers.load(Ordering::Relaxed)
    }

    /// Whether one waits for its answer.
    pub(super) fn is_under_way(&self) -> bool {
        self.is_under_way.load(Ordering::Relaxed)
    }

    /// Whether one was answered since the last look.
    pub(super) fn was_answered(&self) -> bool {
        let was_answered = self.was_answered.load(Ordering::Relaxed);
        if was_answered {
            self.was_answered.store(false, Ordering::Relaxed);
        }
        was_answered
    }

    /// Bytes that were taken since the last look; of a head or trailers at least one.
    pub(super) fn taken(&self) -> usize {
        if self.taken.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        self.taken.swap(0, Ordering::Relaxed)
    }

    /// The share of the peer's address, or all that is free for a proxy; none at listeners that are not for everybody.
    pub(super) fn share(&self) -> Option<Arc<Budget>> {
        self.app.share_of_peer(self.peer.ip())
    }

    /// Notes that the buffer that HTTP/1 is read into has grown for good.
    pub(super) fn note_grown(&self) {
        self.has_grown.store(true, Ordering::Relaxed);
    }

    /// Whether that takes room that others need, so that the connection ends behind an answer.
    pub(super) fn has_to_end(&self) -> bool {
        let has_grown = self.has_grown.load(Ordering::Relaxed);
        has_grown && self.share().is_some_and(|share| share.left() < 0)
    }

    /// Counts a head for which that share has no room.
    pub(super) fn count_refused(&self) {
        self.app.count_refused();
    }
}

/// A body of HTTP/1, of which hyper may have more than it has given away.
struct TakenBody {
    body: Incoming,
    requests: Arc<Requests>,
}

impl HttpBody for TakenBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(Ok(frame)) = &frame {
            let length = frame.data_ref().map_or(1, Bytes::len);
            self.requests.taken.fetch_add(length, Ordering::Relaxed);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

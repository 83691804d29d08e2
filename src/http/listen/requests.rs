//! Requests of one connection: who answers them, and how far the current one is.
//!
//! Not here: open requests of HTTP/2, of which there are several at a time (`activity`).

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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
        })
    }

    /// Notes a request, whose head is complete.
    pub(super) fn begin(&self) {
        self.have_begun.store(true, Ordering::Relaxed);
        self.is_under_way.store(true, Ordering::Relaxed);
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

    /// The share of the peer's address; none at listeners that are not for everybody.
    pub(super) fn share(&self) -> Option<Arc<Budget>> {
        self.app.share(self.peer.ip())
    }

    /// Counts a head for which that share has no room.
    pub(super) fn count_refused(&self) {
        self.app.count_refused();
    }
}

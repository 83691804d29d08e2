//! Link to the backend of a session: none, one that is being started, a child of its own, or a
//! place in a shared one.
//!
//! Lines that are meant for a backend which is not there yet wait here. Not here: when one is got
//! and what its loss means (`restore`).

use std::pin::Pin;

use bytes::BytesMut;
use tokio::time::Instant;

use crate::backend::{
    Place, Refused, Started,
    child::{Child, Happened, Restart},
    dialect::CallId,
    shared::{Member, mailbox},
};

/// The backend of one session.
pub(crate) struct Link {
    pub(crate) state: State,
    held: BytesMut,
}

/// How far it is.
pub(crate) enum State {
    /// There is none; the next request gets one.
    Absent,
    /// One is being got.
    Waiting(Getting),
    /// The session's own has been sent `initialize`.
    Starting {
        /// The child.
        own: Box<Own>,
        /// The gateway's id of `initialize`.
        hello: CallId,
        /// When its answer is overdue.
        until: Instant,
    },
    /// The session's own serves it.
    Ready(Box<Own>),
    /// A shared one serves it.
    Shared(Box<Member>),
}

/// A child of one session.
pub(crate) struct Own {
    pub(crate) child: Child,
    pub(crate) place: Place,
}

/// A backend under way.
pub(super) type Getting = Pin<Box<dyn Future<Output = Result<Got, Refused>> + Send>>;

/// A backend that was got.
pub(crate) enum Got {
    /// A child that has been sent nothing.
    Own(Box<Started>),
    /// A place in a shared child, which is initialized.
    Shared(Box<Member>),
}

/// An event of the backend.
pub(crate) enum Heard {
    /// It was got, or not.
    Got(Result<Got, Refused>),
    /// Its own child did this.
    Happened(Happened),
    /// Of the shared child.
    Shared(mailbox::Heard),
}

impl Link {
    /// No backend.
    pub(crate) fn new() -> Self {
        Self {
            state: State::Absent,
            held: BytesMut::new(),
        }
    }

    /// Where lines for the backend go; append whole lines only.
    pub(super) fn out(&mut self) -> &mut BytesMut {
        match &mut self.state {
            State::Ready(own) => own.child.out(),
            State::Shared(member) => member.out(),
            State::Absent | State::Waiting(_) | State::Starting { .. } => &mut self.held,
        }
    }

    /// Bytes that the backend has not taken.
    pub(super) fn queued(&self) -> usize {
        match &self.state {
            State::Ready(own) => own.child.queued(),
            State::Shared(member) => member.queued(),
            State::Absent | State::Waiting(_) | State::Starting { .. } => self.held.len(),
        }
    }

    /// Writes what can be written without waiting.
    pub(super) fn try_flush(&mut self) {
        match &mut self.state {
            State::Ready(own) | State::Starting { own, .. } => own.child.try_flush(),
            State::Shared(member) => member.try_flush(),
            State::Absent | State::Waiting(_) => {}
        }
    }

    /// The next thing that it does; never, where there is none. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Heard {
        match &mut self.state {
            State::Absent => std::future::pending().await,
            State::Waiting(getting) => Heard::Got(getting.await),
            State::Starting { own, .. } | State::Ready(own) => {
                Heard::Happened(own.child.next().await)
            }
            State::Shared(member) => Heard::Shared(member.next().await),
        }
    }

    /// Whether it serves.
    pub(super) fn is_up(&self) -> bool {
        matches!(self.state, State::Ready(_) | State::Shared(_))
    }

    /// Until when a child of its own must have answered `initialize`, if it has not.
    pub(super) fn starts_by(&self) -> Option<Instant> {
        if let State::Starting { until, .. } = self.state {
            Some(until)
        } else {
            None
        }
    }

    /// Whether it is, or will be, shared with other sessions.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.state, State::Shared(_))
    }

    /// Lets the held lines go to the backend, which serves from now on.
    pub(super) fn up(&mut self, state: State) {
        self.state = state;
        let held = std::mem::take(&mut self.held);
        self.out().unsplit(held);
        self.try_flush();
    }

    /// Ends the link; what was held for the backend is lost. Returns the session's own child.
    pub(super) fn down(&mut self) -> Option<Box<Own>> {
        self.held = BytesMut::new();
        match std::mem::replace(&mut self.state, State::Absent) {
            State::Starting { own, .. } | State::Ready(own) => Some(own),
            State::Absent | State::Waiting(_) | State::Shared(_) => None,
        }
    }

    /// Notes how many calls are in flight.
    pub(super) fn set_calls(&mut self, calls: usize) {
        match &mut self.state {
            State::Ready(own) => own.place.entry().set_calls(calls),
            State::Shared(member) => member.set_calls(calls),
            State::Absent | State::Waiting(_) | State::Starting { .. } => {}
        }
    }

    /// Whether an operator wants the session's own child to be replaced.
    pub(crate) fn restart(&self) -> Option<Restart> {
        match &self.state {
            State::Starting { own, .. } | State::Ready(own) => own.place.entry().restart(),
            State::Absent | State::Waiting(_) | State::Shared(_) => None,
        }
    }
}

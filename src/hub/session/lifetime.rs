//! Lifetime of a session: its phases, its idle time, its age, and the reason of its end.
//!
//! The record in the directory has a time to live of its own (`ownership`).

use std::time::Duration;

use tokio::{sync::oneshot, time::Instant};

use crate::{
    error::Error,
    hub::{core::Transport, stream::Answer},
    protocol::Revision,
    telemetry::TraceContext,
};

/// The time that an HTTP+SSE session outlives its connection.
pub(super) const DISCONNECTED: Duration = Duration::from_secs(60);

/// The time between two looks whether the calls of a session that is kept for them have ended, once it is old.
const LOOK: Duration = Duration::from_secs(10);

/// The lifetime of a session.
pub(super) struct Lifetime {
    phase: Phase,
    born: Instant,
    /// The latest command of the client, or the end of its latest call.
    touched: Instant,
    end: Option<EndReason>,
    is_draining: bool,
    /// Whether an administrator closes the session once its calls have ended.
    is_closing: bool,
    /// The requests that wait for the end.
    waiters: Vec<oneshot::Sender<Result<(), Error>>>,
}

/// The configured limits of the lifetime.
#[derive(Clone, Copy, Debug)]
pub(super) struct LifetimeLimits {
    /// The idle time (`session.idle`).
    pub(super) idle: Duration,
    /// The absolute age (`session.max`).
    pub(super) max: Duration,
}

/// The activity that keeps a session from being idle.
#[derive(Clone, Copy, Debug)]
pub(super) struct Activity {
    /// Whether a living connection reads the listener.
    pub(super) has_reader: bool,
    /// Since when no connection reads the listener.
    pub(super) no_reader_since: Option<Instant>,
    /// Whether calls are in flight or the backend is being initialized.
    pub(super) is_busy: bool,
}

/// The phase of a session.
enum Phase {
    /// Nothing has been started.
    New,
    /// The client waits for the response to its `initialize`.
    Starting(Initializing),
    /// Initialized with this revision.
    Ready(Revision),
}

/// An `initialize` that has no response yet.
pub(super) struct Initializing {
    /// The client's raw id of it.
    pub(super) id: Box<[u8]>,
    /// The time at which it arrived.
    pub(super) began: Instant,
    /// The trace of its request.
    pub(super) trace: Option<TraceContext>,
    /// Receives the response; none on HTTP+SSE, where the response goes to the listener.
    pub(super) reply: Option<oneshot::Sender<Answer>>,
}

/// The reason of the end of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndReason {
    /// The client or an administrator ended it.
    Deleted,
    /// The principal may not use the server any more, or one of them is gone.
    Revoked,
    /// The idle time is over.
    Idle,
    /// The session reached its absolute age.
    Expired,
    /// The connection of HTTP+SSE is gone.
    Disconnected,
    /// The child is gone and cannot be restored.
    Lost,
    /// The start failed.
    Failed,
    /// The gateway stops.
    Drained,
    /// Another replica owns it now.
    Fenced,
    /// The store was away for so long that another replica must be its owner.
    Orphaned,
}

impl Lifetime {
    /// The lifetime of a session that begins.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            phase: Phase::New,
            born: now,
            touched: now,
            end: None,
            is_draining: false,
            is_closing: false,
            waiters: Vec::new(),
        }
    }

    /// The first time at which a session may have to end.
    pub(super) fn first_deadline(&self, limits: LifetimeLimits) -> Instant {
        self.born + DISCONNECTED.min(limits.idle).min(limits.max)
    }

    /// Continues a session that another replica began.
    pub(super) fn adopt(&mut self, revision: Revision, born: Instant) {
        (self.phase, self.born) = (Phase::Ready(revision), born);
    }

    /// Whether nothing has been started.
    pub(super) fn is_new(&self) -> bool {
        matches!(self.phase, Phase::New)
    }

    /// Whether the session is initialized.
    pub(super) fn is_ready(&self) -> bool {
        matches!(self.phase, Phase::Ready(_))
    }

    /// The negotiated revision; none before the session is initialized.
    pub(super) fn revision(&self) -> Option<Revision> {
        match self.phase {
            Phase::Ready(revision) => Some(revision),
            Phase::New | Phase::Starting(_) => None,
        }
    }

    /// The client's `initialize`, while it has no response.
    pub(super) fn initializing(&self) -> Option<&Initializing> {
        match &self.phase {
            Phase::Starting(initializing) => Some(initializing),
            Phase::New | Phase::Ready(_) => None,
        }
    }

    /// Whether the client waits for the response to its `initialize`.
    pub(super) fn is_starting(&self) -> bool {
        self.initializing().is_some()
    }

    /// The client has sent `initialize`.
    pub(super) fn start(&mut self, initializing: Initializing) {
        self.phase = Phase::Starting(initializing);
    }

    /// Makes a session that is starting ready; returns its `initialize`.
    pub(super) fn finish_start(&mut self, revision: Revision) -> Option<Initializing> {
        self.replace_phase(Phase::Ready(revision))
    }

    /// Makes a session that is starting new again; returns its `initialize`.
    pub(super) fn abort_start(&mut self) -> Option<Initializing> {
        self.replace_phase(Phase::New)
    }

    fn replace_phase(&mut self, phase: Phase) -> Option<Initializing> {
        match std::mem::replace(&mut self.phase, phase) {
            Phase::Starting(initializing) => Some(initializing),
            Phase::New | Phase::Ready(_) => None,
        }
    }

    /// The age of the session.
    pub(super) fn age(&self) -> Duration {
        self.born.elapsed()
    }

    /// The latest command of the client, or the end of its latest call.
    pub(super) fn touched(&self) -> Instant {
        self.touched
    }

    /// Restarts the idle time.
    pub(super) fn touch(&mut self) {
        self.touched = Instant::now();
    }

    /// The time and the reason of the end if nothing happens: the idle time or the absolute age.
    pub(super) fn expiry(
        &self,
        now: Instant,
        limits: LifetimeLimits,
        transport: Transport,
        activity: Activity,
    ) -> (Instant, EndReason) {
        let mut by_age = (self.born + limits.max, EndReason::Expired);
        if transport == Transport::Stateless && activity.is_busy {
            // Its clients know of no session: their calls end by clocks of their own, and new ones begin another.
            by_age.0 = by_age.0.max(now + LOOK);
        }
        let by_idleness = match transport {
            Transport::Sse2024 => {
                let since = activity.no_reader_since.unwrap_or(now);
                (since + DISCONNECTED, EndReason::Disconnected)
            }
            Transport::Streamable | Transport::Stateless
                if activity.has_reader || activity.is_busy =>
            {
                (now + limits.idle, EndReason::Idle)
            }
            Transport::Streamable | Transport::Stateless => {
                let heard = activity.no_reader_since.unwrap_or(self.touched);
                (self.touched.max(heard) + limits.idle, EndReason::Idle)
            }
        };
        if by_age.0 <= by_idleness.0 {
            by_age
        } else {
            by_idleness
        }
    }

    /// Ends the session; an earlier reason stays.
    pub(super) fn end(&mut self, reason: EndReason) {
        self.end.get_or_insert(reason);
    }

    /// Ends the session for this reason even if it had another one.
    pub(super) fn force_end(&mut self, reason: EndReason) {
        self.end = Some(reason);
    }

    /// The reason of the end; none while the session continues.
    pub(super) fn end_reason(&self) -> Option<EndReason> {
        self.end
    }

    /// Whether the session is over.
    pub(super) fn is_over(&self) -> bool {
        self.end.is_some()
    }

    /// Ends a session that drains: its calls have ended. One that an administrator closes is
    /// deleted where another replica would continue it.
    pub(super) fn end_drained(&mut self, is_alone: bool) {
        self.end(if self.is_closing && !is_alone {
            EndReason::Deleted
        } else {
            EndReason::Drained
        });
    }

    /// Ends the session once its calls have ended.
    pub(super) fn drain(&mut self) {
        self.is_draining = true;
    }

    /// Ends the session for good once its calls have ended: no other replica continues it.
    pub(super) fn close(&mut self) {
        (self.is_draining, self.is_closing) = (true, true);
    }

    /// Whether the session ends once its calls have ended.
    pub(super) fn is_draining(&self) -> bool {
        self.is_draining
    }

    /// Whether no other replica continues a session that drains.
    pub(super) fn is_closing(&self) -> bool {
        self.is_closing
    }

    /// Adds a request that waits for the end.
    pub(super) fn add_waiter(&mut self, waiter: oneshot::Sender<Result<(), Error>>) {
        self.waiters.push(waiter);
    }

    /// Answers the requests that wait for the end.
    pub(super) fn notify_waiters(&mut self, ended: impl Fn() -> Result<(), Error>) {
        for waiter in self.waiters.drain(..) {
            let _ = waiter.send(ended());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::lifetime::*;

    /// Calls of clients without sessions, some of which had just begun, were answered with an error once a day.
    #[test]
    fn a_session_that_is_kept_for_calls_is_not_cut_with_them() {
        let born = Instant::now();
        let lifetime = Lifetime::new(born);
        let limits = LifetimeLimits {
            idle: Duration::from_secs(1800),
            max: Duration::from_secs(3600),
        };
        let end = |now, transport, is_busy| {
            let activity = Activity {
                has_reader: false,
                no_reader_since: None,
                is_busy,
            };
            lifetime.expiry(now, limits, transport, activity)
        };
        let old = born + limits.max;
        let (next, _) = end(old, Transport::Stateless, true);
        assert!(
            next > old && next < old + limits.idle,
            "it is looked at again"
        );
        let expired = (old, EndReason::Expired);
        assert_eq!(end(old, Transport::Streamable, true), expired);
        let late = old + limits.max;
        assert!(end(late, Transport::Stateless, true).0 > late);
        assert!(end(late, Transport::Stateless, false).0 <= late);
    }
}

//! Link to the backend of a session: none, one that is being started, a child of its own, or a
//! place in a shared one.
//!
//! Lines for a backend that is not ready are held here. Not here: the start of a backend (`start`)
//! and the consequences of its loss (`restore`).

use std::{pin::Pin, sync::Arc, time::Duration};

use bytes::BytesMut;
use tokio::time::Instant;

use super::record::Subscription;
use crate::{
    backend::{
        Circuit, Place, Refused, Started, Verdict,
        child::{Child, ChildEvent, Restart},
        dialect::CallId,
        shared::{Loss, Member, STABLE, mailbox},
    },
    base::budget::{Budget, Drawn, SMALL_STEP},
};

/// The time for a child to answer a ping.
const PROBE: Duration = Duration::from_secs(5);

/// The time without an answer to `initialize` after which people are told.
const SILENCE: Duration = Duration::from_secs(5);
/// Bytes that are kept of a line that is no message.
const NOISE: usize = 120;

/// The backend of one session.
pub(super) struct Link {
    state: State,
    held: BytesMut,
    /// The start of the idle time of the backend.
    used: Instant,
    /// Until when the child must answer a ping.
    probe: Option<Instant>,
    /// The time of the last periodic ping, or at which the child began to serve.
    pinged: Instant,
    /// Crashes of the session's own children.
    crashes: Circuit,
    /// The last time at which a start was asked for: it may be the probe of their circuit.
    asked: Instant,
    restarts: u32,
    /// The number of the session in shared children; 0 before the first one.
    number: u32,
    /// The reason why the shared child takes no further calls.
    closing: Option<Loss>,
    /// Subscriptions of the client that wait for a shared child.
    waiting: Vec<Subscription>,
    /// Bytes of these.
    waiting_bytes: usize,
    /// What is drawn from the share of the caller for all that waits here: held lines and subscriptions, and what the
    /// mailbox of a shared child has no room for. The queue of a child of its own counts itself.
    waits: Drawn,
}

/// The state of the link.
enum State {
    /// There is no backend; the next request gets one.
    Absent,
    /// A backend is being acquired.
    Acquiring(Acquisition),
    /// The session's own child has been sent `initialize`.
    Initializing { own: Box<Own>, wait: Box<Wait> },
    /// The session's own child serves it.
    Ready(Box<Own>),
    /// A shared child serves it.
    Shared(Box<Member>),
}

/// The wait for the response to `initialize`: on the heap, since sessions rest in other states.
struct Wait {
    /// The gateway's id of `initialize`.
    id: CallId,
    /// The time at which its response is overdue.
    until: Instant,
    /// The time at which people are told that there is none; none once they were.
    silence: Option<Instant>,
    /// The beginning of the child's first line that is no message.
    noise: Option<Box<str>>,
    /// Its stdout has ended, and its exit is awaited.
    is_closed: bool,
}

/// A child of one session.
pub(super) struct Own {
    pub(super) child: Child,
    pub(super) place: Place,
}

/// The wait for a backend.
pub(super) type Acquisition = Pin<Box<dyn Future<Output = Result<Acquired, Refused>> + Send>>;

/// A backend that was acquired.
pub(super) enum Acquired {
    /// A child that has been sent nothing.
    Own(Box<Started>),
    /// A place in a shared child, which is initialized.
    Shared(Box<Member>),
}

/// An event of the backend.
pub(super) enum BackendEvent {
    /// The backend was acquired, or refused.
    Acquired(Result<Acquired, Refused>),
    /// An event of the session's own child.
    Own(ChildEvent),
    /// An event of the shared child.
    Shared(mailbox::ToSession),
}

impl BackendEvent {
    /// The length of what the child said.
    pub(super) fn length(&self) -> usize {
        match self {
            Self::Own(ChildEvent::Line(line)) => line.len(),
            Self::Shared(mailbox::ToSession::Message(message)) => message.bytes().len(),
            Self::Own(_) | Self::Shared(_) | Self::Acquired(_) => 0,
        }
    }
}

impl Link {
    /// No backend; what waits for one is counted against the share.
    pub(super) fn new(now: Instant, share: &Arc<Budget>) -> Self {
        Self {
            state: State::Absent,
            held: BytesMut::new(),
            used: now,
            probe: None,
            pinged: now,
            crashes: Circuit::default(),
            asked: now,
            restarts: 0,
            number: 0,
            closing: None,
            waiting: Vec::new(),
            waiting_bytes: 0,
            waits: share.hold(0),
        }
    }

    /// The output for lines to the backend; append whole lines only.
    pub(super) fn out(&mut self) -> &mut BytesMut {
        match &mut self.state {
            State::Ready(own) => own.child.out(),
            State::Shared(member) => member.out(),
            State::Absent | State::Acquiring(_) | State::Initializing { .. } => &mut self.held,
        }
    }

    /// The output for responses to the backend, which are not held while it is initialized.
    pub(super) fn out_now(&mut self) -> &mut BytesMut {
        match &mut self.state {
            State::Initializing { own, .. } | State::Ready(own) => own.child.out(),
            State::Shared(member) => member.out(),
            State::Absent | State::Acquiring(_) => &mut self.held,
        }
    }

    /// Bytes that the backend has not taken.
    pub(super) fn queued(&self) -> usize {
        match &self.state {
            State::Ready(own) => own.child.queued(),
            State::Shared(member) => member.queued(),
            State::Absent | State::Acquiring(_) | State::Initializing { .. } => {
                self.held.len() + self.waiting_bytes
            }
        }
    }

    /// Whether a step or more waits here, and the share of the caller has no room for it.
    pub(super) fn is_too_much(&self) -> bool {
        self.waits.amount() > 0 && self.waits.is_too_much()
    }

    /// Counts what waits here now.
    pub(super) fn count_waiting(&mut self) {
        let unsent = match &self.state {
            State::Shared(member) => member.kept(),
            _ => 0,
        };
        let all = self.held.len() + self.waiting_bytes + unsent;
        self.waits.count(all, SMALL_STEP);
    }

    /// Writes what can be written without waiting, and counts the rest.
    pub(super) fn try_flush(&mut self) {
        match &mut self.state {
            State::Ready(own) | State::Initializing { own, .. } => own.child.try_flush(),
            State::Shared(member) => member.try_flush(),
            State::Absent | State::Acquiring(_) => {}
        }
        self.count_waiting();
    }

    /// The next event of the backend; never, where there is none. Cancel-safe.
    pub(super) async fn next(&mut self) -> BackendEvent {
        match &mut self.state {
            State::Absent => std::future::pending().await,
            State::Acquiring(acquisition) => BackendEvent::Acquired(acquisition.await),
            State::Initializing { own, .. } | State::Ready(own) => {
                BackendEvent::Own(own.child.next().await)
            }
            State::Shared(member) => BackendEvent::Shared(member.next(&mut self.waits).await),
        }
    }

    /// The next event of the backend if it is here already.
    pub(super) fn next_ready(&mut self) -> Option<BackendEvent> {
        match &mut self.state {
            State::Ready(own) => own.child.next_ready().map(BackendEvent::Own),
            State::Shared(member) => member.next_ready().map(BackendEvent::Shared),
            State::Absent | State::Acquiring(_) | State::Initializing { .. } => None,
        }
    }

    /// The session's own child is not read for a while.
    pub(super) fn slow_down(&mut self) {
        if let State::Ready(own) = &mut self.state {
            own.child.slow_down();
        }
    }

    /// Whether there is no backend, and none is being acquired.
    pub(super) fn is_absent(&self) -> bool {
        matches!(self.state, State::Absent)
    }

    /// Whether a backend serves the session.
    pub(super) fn is_up(&self) -> bool {
        matches!(self.state, State::Ready(_) | State::Shared(_))
    }

    /// Whether the session's own child serves it.
    pub(super) fn is_own(&self) -> bool {
        matches!(self.state, State::Ready(_))
    }

    /// Whether a shared child serves the session.
    pub(super) fn is_shared(&self) -> bool {
        matches!(self.state, State::Shared(_))
    }

    /// The place in the shared child.
    pub(super) fn member(&mut self) -> Option<&mut Member> {
        match &mut self.state {
            State::Shared(member) => Some(member),
            _ => None,
        }
    }

    /// Waits for a backend from now on.
    pub(super) fn acquire(&mut self, acquisition: Acquisition) {
        self.state = State::Acquiring(acquisition);
    }

    /// The session's own child was sent `initialize` under this id.
    pub(super) fn begin_initialize(&mut self, own: Own, id: CallId, until: Instant) {
        let own = Box::new(own);
        let silence = Some(Instant::now() + SILENCE);
        let wait = Box::new(Wait {
            id,
            until,
            silence,
            noise: None,
            is_closed: false,
        });
        self.state = State::Initializing { own, wait };
    }

    /// Keeps the beginning of a line that is no message, for people who are told that there is no answer.
    pub(super) fn keep_noise(&mut self, line: &[u8]) {
        if let State::Initializing { wait, .. } = &mut self.state {
            let begin = line.get(..NOISE).unwrap_or(line);
            let kept = || String::from_utf8_lossy(begin).into();
            wait.noise.get_or_insert_with(kept);
        }
    }

    /// The line that was kept.
    pub(super) fn noise(&self) -> Option<&str> {
        match &self.state {
            State::Initializing { wait, .. } => wait.noise.as_deref(),
            _ => None,
        }
    }

    /// Waits until `until` for the exit of a child whose stdout ended before it was initialized;
    /// false if it was.
    pub(super) fn await_exit(&mut self, until: Instant) -> bool {
        let State::Initializing { wait, .. } = &mut self.state else {
            return false;
        };
        wait.until = until.min(wait.until);
        (wait.silence, wait.is_closed) = (None, true);
        true
    }

    /// Whether the stdout of the child ended before it was initialized.
    pub(super) fn is_closed(&self) -> bool {
        matches!(&self.state, State::Initializing { wait, .. } if wait.is_closed)
    }

    /// The time at which people are told that the child does not answer `initialize`.
    pub(super) fn silence(&self) -> Option<Instant> {
        match &self.state {
            State::Initializing { wait, .. } => wait.silence,
            _ => None,
        }
    }

    /// Whether people have to be told so now; once.
    pub(super) fn is_silent(&mut self, now: Instant) -> bool {
        match &mut self.state {
            State::Initializing { wait, .. } => wait.silence.take_if(|at| *at <= now).is_some(),
            _ => false,
        }
    }

    /// The session's own child, while it is being initialized.
    pub(super) fn initializing(&mut self) -> Option<&mut Own> {
        match &mut self.state {
            State::Initializing { own, .. } => Some(own),
            _ => None,
        }
    }

    /// The gateway's id of `initialize`, while the child has not answered it.
    pub(super) fn initialize_id(&self) -> Option<CallId> {
        match &self.state {
            State::Initializing { wait, .. } => Some(wait.id),
            _ => None,
        }
    }

    /// The time by which the child must answer `initialize`, while it has not.
    pub(super) fn initialize_deadline(&self) -> Option<Instant> {
        match &self.state {
            State::Initializing { wait, .. } => Some(wait.until),
            _ => None,
        }
    }

    /// Takes the child that has answered `initialize`.
    pub(super) fn take_initialized(&mut self) -> Option<Box<Own>> {
        match std::mem::replace(&mut self.state, State::Absent) {
            State::Initializing { own, .. } => Some(own),
            _ => None,
        }
    }

    /// Serves the session with its own child.
    pub(super) fn serve_own(&mut self, own: Box<Own>) {
        self.serve(State::Ready(own));
    }

    /// Serves the session with a shared child.
    pub(super) fn serve_shared(&mut self, member: Box<Member>) {
        self.serve(State::Shared(member));
    }

    /// Whether the backend that serves the session is a server without sessions.
    pub(super) fn is_stateless(&self) -> bool {
        match &self.state {
            State::Ready(own) => own.child.is_stateless(),
            State::Shared(member) => member.initialized.is_stateless,
            State::Absent | State::Acquiring(_) | State::Initializing { .. } => false,
        }
    }

    /// Passes the held lines to the backend, which serves from now on.
    fn serve(&mut self, state: State) {
        self.state = state;
        self.pinged = Instant::now();
        let held = std::mem::take(&mut self.held);
        self.out().unsplit(held);
        self.try_flush();
    }

    /// Ends the link; lines and subscriptions that were held for the backend are lost. Returns the
    /// session's own child.
    pub(super) fn disconnect(&mut self) -> Option<Box<Own>> {
        self.held = BytesMut::new();
        self.closing = None;
        (self.waiting, self.waiting_bytes) = (Vec::new(), 0);
        let before = std::mem::replace(&mut self.state, State::Absent);
        self.count_waiting();
        match before {
            State::Initializing { own, .. } | State::Ready(own) => Some(own),
            State::Acquiring(_) => {
                // No child has come of it: the next start may be the probe.
                self.crashes.release(self.asked);
                None
            }
            State::Absent | State::Shared(_) => None,
        }
    }

    /// The shared child.
    pub(super) fn shared(&mut self) -> Option<&mut Member> {
        match &mut self.state {
            State::Shared(member) => Some(member),
            _ => None,
        }
    }

    /// Sets the number of calls in flight.
    pub(super) fn set_calls(&mut self, calls: usize) {
        match &mut self.state {
            State::Ready(own) => own.place.entry().set_calls(calls),
            State::Shared(member) => member.set_calls(calls),
            State::Absent | State::Acquiring(_) | State::Initializing { .. } => {}
        }
    }

    /// The session's own child is about to end for the sake of another caller.
    pub(super) fn give_way(&self) {
        if let State::Ready(own) = &self.state {
            own.place.give_way();
        }
    }

    /// Whether the backend that serves the session is to be replaced.
    pub(super) fn is_to_be_replaced(&self) -> bool {
        match &self.state {
            State::Ready(own) => own.place.entry().restart().is_some(),
            State::Shared(member) => member.is_to_be_replaced(),
            State::Absent | State::Acquiring(_) | State::Initializing { .. } => false,
        }
    }

    /// The restart of the session's own child that an administrator has requested.
    pub(super) fn restart(&self) -> Option<Restart> {
        match &self.state {
            State::Initializing { own, .. } | State::Ready(own) => own.place.entry().restart(),
            State::Absent | State::Acquiring(_) | State::Shared(_) => None,
        }
    }
}

/// Idle time and probes.
impl Link {
    /// Restarts the idle time of the backend.
    pub(super) fn touch(&mut self, now: Instant) {
        self.used = now;
    }

    /// The start of the idle time of the backend.
    pub(super) fn used(&self) -> Instant {
        self.used
    }

    /// Sets the deadline for the answer to a ping, unless one is set.
    pub(super) fn begin_probe(&mut self, now: Instant) {
        self.probe.get_or_insert(now + PROBE);
    }

    /// Moves the deadline of a child that is not read at present.
    pub(super) fn postpone_probe(&mut self, now: Instant) {
        if let Some(probe) = &mut self.probe {
            *probe = now + PROBE;
        }
    }

    /// The time of the next periodic ping.
    pub(super) fn next_ping(&self, every: Duration) -> Instant {
        self.pinged + every
    }

    /// A periodic ping was sent.
    pub(super) fn count_ping(&mut self, now: Instant) {
        self.pinged = now;
    }

    /// Clears the deadline: the child has answered, or is gone.
    pub(super) fn end_probe(&mut self) {
        self.probe = None;
    }

    /// The time by which the child must answer a ping.
    pub(super) fn probe_deadline(&self) -> Option<Instant> {
        self.probe
    }
}

/// Crashes of the session's own children.
impl Link {
    /// Whether a child may be started now.
    pub(super) fn ask_circuit(&mut self, now: Instant) -> Verdict {
        self.asked = now;
        self.crashes.try_start(now)
    }

    /// The number of crashed children.
    pub(super) fn restarts(&self) -> u32 {
        self.restarts
    }

    /// Counts a crash; returns whether the circuit opens.
    pub(super) fn count_crash(&mut self, own: &Own, now: Instant, jitter: f64) -> bool {
        self.restarts += 1;
        if own.place.entry().age() >= STABLE {
            self.crashes.succeeded();
        }
        self.crashes.crashed(now, jitter)
    }

    /// A child ended in good order: earlier crashes are forgotten.
    pub(super) fn forget_crashes(&mut self) {
        self.crashes.succeeded();
    }
}

/// Shared children.
impl Link {
    /// The number of the session in shared children; none before the first one.
    pub(super) fn number(&self) -> Option<u32> {
        (self.number != 0).then_some(self.number)
    }

    /// Sets the number of the session in shared children.
    pub(super) fn set_number(&mut self, number: u32) {
        self.number = number;
    }

    /// The shared child takes no further calls.
    pub(super) fn close(&mut self, loss: Loss) {
        self.closing = Some(loss);
    }

    /// The reason why the shared child takes no further calls.
    pub(super) fn closing(&self) -> Option<Loss> {
        self.closing
    }

    /// Passes a subscription to the shared child, or holds it until there is one.
    pub(super) fn subscribe(&mut self, subscription: Subscription) {
        if let Some(member) = self.member() {
            subscription.send(member);
            return;
        }
        self.waiting_bytes += subscription.bytes();
        self.waiting.push(subscription);
    }

    /// Passes the held subscriptions to the shared child.
    pub(super) fn send_waiting(&mut self) {
        if let State::Shared(member) = &mut self.state {
            for subscription in self.waiting.drain(..) {
                subscription.send(member);
            }
            self.waiting_bytes = 0;
            self.count_waiting();
        }
    }

    /// Drops a held subscription whose call has ended.
    pub(super) fn drop_waiting(&mut self, call: CallId) {
        self.waiting.retain(|waiting| waiting.call != call);
        self.waiting_bytes = self.waiting.iter().map(Subscription::bytes).sum();
        self.count_waiting();
    }
}

#[cfg(test)]
mod tests {
    use super::super::link::*;

    /// A session whose start found no room was refused for two minutes.
    #[test]
    fn a_probe_without_a_child_is_given_back() {
        let began = Instant::now();
        let mut link = Link::new(began, &Budget::new(1));
        for _ in 0..6 {
            link.crashes.crashed(began, 0.0);
        }
        let later = began + Duration::from_secs(30);
        for _ in 0..2 {
            assert_eq!(link.ask_circuit(later), Verdict::Now);
            assert_ne!(link.crashes.peek(later), Verdict::Now);
            link.acquire(Box::pin(std::future::ready(Err(Refused::Busy))));
            assert!(link.disconnect().is_none());
        }
    }

    /// A thousand sessions that waited for one child had 12 GB in no budget, and as many subscriptions had no bound.
    #[test]
    fn what_waits_for_a_backend_is_counted_until_it_is_gone() {
        let root = Budget::new(8 << 20);
        let share = root.share();
        let mut link = Link::new(Instant::now(), &share);
        link.acquire(Box::pin(std::future::pending()));
        link.out().extend_from_slice(&b"x".repeat(4095));
        link.try_flush();
        assert_eq!(root.used(), 0, "less than a step");
        // Of 200,000 sessions, 64 KiB each would be 13 GB.
        let lines: u64 = 56 << 10;
        link.out().extend_from_slice(&b"x".repeat(56 << 10));
        link.try_flush();
        assert_eq!(root.used(), lines);
        let subscription = |call: CallId| Subscription {
            call,
            uri: vec![b'u'; 64 << 10].into(),
            is_subscribe: false,
            line: vec![b'x'; 1 << 20].into(),
        };
        for call in 1..=3 {
            link.subscribe(subscription(call));
        }
        link.try_flush();
        let each = (1 << 20) + (64 << 10);
        let queued = 3 * 1_114_112 + (56 << 10) + 4095;
        assert_eq!((root.used(), link.queued()), (lines + 3 * each, queued));
        assert!(!link.is_too_much());
        let others = share.hold(4 << 20);
        assert!(link.is_too_much());
        link.drop_waiting(2);
        assert_eq!(share.used(), (4 << 20) + lines + 2 * each);
        assert!(link.disconnect().is_none());
        assert_eq!(share.used(), 4 << 20);
        assert!(!link.is_too_much(), "nothing waits here");
        drop((others, link));
        assert_eq!(root.used(), 0);
    }
}

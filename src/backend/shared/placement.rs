//! Placement of sessions on shared children: on the child with the fewest calls in flight, or on a
//! new one while all are busy and `max_children` allows it.
//!
//! Not here: the child itself (`child`).

use std::{
    collections::HashMap,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    child::{SharedChild, Whose},
    mailbox::{
        Handle, Inbox, Initialized, Loss, MAILBOX, Outbox, Received, Status, ToChild, ToSession,
    },
    pace::Calls,
};
use crate::backend::{
    Pool,
    admission::{Circuit, Refused, Spec, Verdict, spec},
    dialect::{IdBlocks, IdLease},
};
use crate::{
    base::budget::{Drawn, SMALL_STEP},
    declare::Server,
    protocol::{LogLevel, Revision},
};

/// All shared children of the gateway.
pub(crate) struct SharedChildren {
    pool: Arc<Pool>,
    keys: RwLock<HashMap<Key, Group>>,
    /// The number of the last session.
    last: AtomicU32,
    ids: Arc<IdBlocks>,
    tracker: TaskTracker,
    drain: CancellationToken,
    halt: CancellationToken,
}

/// The key of shared children: a launch specification, the principal if they serve only one, and the
/// revision that they are offered.
type Key = (Spec, Option<Box<str>>, Revision);

/// The children of one key.
#[derive(Default)]
struct Group {
    handles: Vec<Handle>,
    /// Crashes after the start; failed starts count for the specification (`admission`).
    crashes: Circuit,
    restarts: u32,
}

/// The place of a session in a shared child, left by being dropped.
pub(crate) struct Member {
    number: u32,
    mailbox: mpsc::Sender<ToChild>,
    inbox: Received,
    outbox: Outbox,
    of_all: Arc<Calls>,
    /// Bytes of all sessions in the mailbox.
    waiting: Arc<AtomicUsize>,
    calls: usize,
    /// Result of the child's initialization.
    pub(crate) initialized: Arc<Initialized>,
}

/// Lifetime after which a child counts as working.
pub(crate) const STABLE: Duration = Duration::from_secs(30);

/// Attempts to join, if children end meanwhile.
const TRIES: usize = 3;

impl SharedChildren {
    /// No children.
    pub(crate) fn new(
        pool: Arc<Pool>,
        tracker: TaskTracker,
        drain: CancellationToken,
        halt: CancellationToken,
    ) -> Arc<Self> {
        Arc::new(Self {
            pool,
            keys: RwLock::default(),
            last: AtomicU32::new(0),
            ids: IdBlocks::new(),
            tracker,
            drain,
            halt,
        })
    }

    /// A number for a session of a caller, reused only after all others, and its ids at shared children; none if the
    /// ids of all children are leased.
    pub(crate) fn enlist(&self, caller: &str) -> Option<(u32, IdLease)> {
        let number = loop {
            let number = self.last.fetch_add(1, Ordering::Relaxed);
            if number != 0 {
                break number;
            }
        };
        Some((number, IdLease::new(&self.ids, number, caller)?))
    }

    /// Joins a child of `server` that the sessions of a principal share, or those of all principals. Each revision
    /// has children of its own: a server knows by the revision what its client understands, such as kinds of
    /// content.
    ///
    /// # Errors
    ///
    /// As [`Pool::get`]; `Failed` if the child did not start.
    pub(crate) async fn join(
        self: Arc<Self>,
        server: Arc<Server>,
        whose: Whose,
        revision: Revision,
        number: u32,
    ) -> Result<Member, Refused> {
        let key = (spec(&server), whose.principal.clone(), revision);
        for _ in 0..TRIES {
            let handle = self.pick(&key, &server, &whose)?;
            let mut status = handle.status.clone();
            let settled = status
                .wait_for(|status| !matches!(status, Status::Starting))
                .await
                .map(|status| status.clone());
            let initialized = match settled {
                // A secret that it was started with has changed meanwhile.
                Ok(Status::Ready(initialized)) if initialized.entry.restart().is_some() => continue,
                Ok(Status::Ready(initialized)) => initialized,
                Ok(Status::Failed(refused)) => return Err(refused),
                Ok(Status::Starting) | Err(_) => continue,
            };
            let (inbox, received) = Inbox::new();
            if handle
                .mailbox
                .send(ToChild::Join { number, inbox })
                .await
                .is_ok()
            {
                return Ok(Member {
                    number,
                    mailbox: handle.mailbox,
                    inbox: received,
                    outbox: Outbox::default(),
                    of_all: handle.calls,
                    waiting: handle.waiting,
                    calls: 0,
                    initialized,
                });
            }
        }
        Err(Refused::Failed("backend_exited"))
    }

    /// Closes the children that this tenant's sessions of a revision share: they end after their calls.
    pub(crate) fn close(&self, tenant: &str, revision: Revision) {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        for ((_, _, offered), group) in keys.iter().filter(|((spec, ..), _)| spec.0 == tenant) {
            for handle in &group.handles {
                if handle.revision(*offered) == revision {
                    handle.is_closing.store(true, Ordering::Relaxed);
                }
            }
        }
    }

    fn pick(
        self: &Arc<Self>,
        key: &Key,
        server: &Arc<Server>,
        whose: &Whose,
    ) -> Result<Handle, Refused> {
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if keys.len() > 64 {
            keys.retain(|_, group| !group.is_empty(now));
        }
        let group = keys.entry(key.clone()).or_default();
        group.handles.retain(Handle::is_open);
        let most = usize::try_from(server.supervision.max_children).unwrap_or(usize::MAX);
        let load = |handle: &&Handle| handle.calls.in_flight();
        let idlest = group.handles.iter().min_by_key(load);
        if let Some(handle) = idlest
            && (load(&handle) == 0 || group.handles.len() >= most)
        {
            return Ok(handle.clone());
        }
        let not_before = match (group.crashes.try_start(now), idlest) {
            (Verdict::Now, _) => None,
            // Running children take the load meanwhile.
            (Verdict::After(_) | Verdict::Open(_), Some(handle)) => return Ok(handle.clone()),
            (Verdict::After(wait), None) => Some(now + wait),
            (Verdict::Open(left), None) => return Err(Refused::Circuit(left)),
        };
        let handle = self.start(key, (server, whose), group.restarts, now, not_before);
        group.handles.push(handle.clone());
        Ok(handle)
    }

    fn start(
        self: &Arc<Self>,
        key: &Key,
        (server, whose): (&Arc<Server>, &Whose),
        restarts: u32,
        began: Instant,
        not_before: Option<Instant>,
    ) -> Handle {
        let (mailbox, receiver) = mpsc::channel(MAILBOX);
        let (settle, status) = watch::channel(Status::Starting);
        let handle = Handle {
            mailbox,
            status,
            calls: Arc::default(),
            waiting: Arc::default(),
            is_closing: Arc::new(AtomicBool::new(false)),
        };
        let shared = SharedChild {
            pool: Arc::clone(&self.pool),
            server: Arc::clone(server),
            whose: whose.clone(),
            revision: key.2,
            ids: Arc::clone(&self.ids),
            mailbox: receiver,
            status: settle,
            calls: Arc::clone(&handle.calls),
            waiting: Arc::clone(&handle.waiting),
            is_closing: Arc::clone(&handle.is_closing),
            drain: self.drain.clone(),
            halt: self.halt.clone(),
        };
        let (children, key) = (Arc::clone(self), key.clone());
        self.tracker.spawn(async move {
            let loss = Box::pin(shared.run(restarts, not_before)).await;
            children.count_end(&key, loss, began);
        });
        handle
    }

    /// Counts the end of a child for its key, or that it was not started.
    fn count_end(&self, key: &Key, loss: Option<Loss>, began: Instant) {
        let jitter = self.pool.jitter();
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        let Some(group) = keys.get_mut(key) else {
            return;
        };
        group.handles.retain(Handle::is_open);
        if group.count_end(loss, (began, Instant::now()), jitter) {
            self.pool.metrics.circuits_opened.add(1);
            let (tenant, server, _) = &key.0;
            tracing::warn!(
                tenant.id = tenant,
                server.name = server,
                "a shared child keeps crashing: its circuit opens"
            );
        }
    }
}

impl Group {
    /// Counts the end of a child whose start began then; returns whether the circuit opens.
    fn count_end(
        &mut self,
        loss: Option<Loss>,
        (began, now): (Instant, Instant),
        jitter: f64,
    ) -> bool {
        let Some(loss) = loss else {
            // A probe without a result: the next start is one.
            self.crashes.release(began);
            return false;
        };
        if now.saturating_duration_since(began) >= STABLE {
            self.crashes.succeeded();
        }
        match loss {
            Loss::Crash | Loss::TooLong => {
                self.restarts += 1;
                self.crashes.crashed(now, jitter)
            }
            Loss::Idle | Loss::Restart => {
                self.crashes.succeeded();
                false
            }
        }
    }

    fn is_empty(&self, now: Instant) -> bool {
        !self.handles.iter().any(Handle::is_open) && self.crashes.is_idle(now)
    }
}

impl Handle {
    /// The revision that the child has, or is `offered`.
    fn revision(&self, offered: Revision) -> Revision {
        match &*self.status.borrow() {
            Status::Ready(initialized) => initialized.revision,
            Status::Starting | Status::Failed(_) => offered,
        }
    }

    fn is_open(&self) -> bool {
        let may_serve = match &*self.status.borrow() {
            Status::Starting => true,
            Status::Ready(initialized) => initialized.entry.restart().is_none(),
            Status::Failed(_) => false,
        };
        !self.mailbox.is_closed() && !self.is_closing.load(Ordering::Relaxed) && may_serve
    }
}

impl Member {
    /// The queue of lines for the child, for whole lines only.
    pub(crate) fn out(&mut self) -> &mut BytesMut {
        self.outbox.lines()
    }

    /// Bytes of all sessions that the task of the child has not taken: a child that does not read
    /// blocks all of them.
    pub(crate) fn queued(&self) -> usize {
        self.outbox.bytes() + self.waiting.load(Ordering::Relaxed)
    }

    /// Bytes that wait here, because the mailbox has no room.
    pub(crate) fn kept(&self) -> usize {
        self.outbox.bytes()
    }

    /// Sends messages as far as there is room.
    pub(crate) fn try_flush(&mut self) {
        while !self.outbox.is_empty()
            && let Ok(room) = self.mailbox.try_reserve()
            && let Some(message) = self.outbox.pop()
        {
            self.waiting.fetch_add(message.bytes(), Ordering::Relaxed);
            room.send(message);
        }
    }

    /// Waits until the task of the child has taken all messages.
    pub(crate) async fn flush(&mut self) {
        while !self.outbox.is_empty()
            && let Ok(room) = self.mailbox.reserve().await
            && let Some(message) = self.outbox.pop()
        {
            self.waiting.fetch_add(message.bytes(), Ordering::Relaxed);
            room.send(message);
        }
    }

    /// Sends whole lines as soon as there is room, also behind the end of this place: a message of another kind would be
    /// taken for one of the place that the session has by then. Nothing is sent to a child that is gone.
    pub(crate) fn send_last(&self, lines: Bytes) -> impl Future<Output = ()> + Send + use<> {
        let (mailbox, waiting) = (self.mailbox.clone(), Arc::clone(&self.waiting));
        async move {
            if let Ok(room) = mailbox.reserve().await {
                waiting.fetch_add(lines.len(), Ordering::Relaxed);
                room.send(ToChild::Lines(lines));
            }
        }
    }

    /// Waits for the next message and sends queued ones meanwhile, which are counted by `waits`; cancel-safe.
    pub(crate) async fn next(&mut self, waits: &mut Drawn) -> ToSession {
        loop {
            // With many messages this future is cancelled often, before the branch below is polled.
            self.try_flush();
            waits.count(self.kept(), SMALL_STEP);
            tokio::select! {
                biased;
                message = self.inbox.next() => return message.unwrap_or(ToSession::Ended(Loss::Crash)),
                room = self.mailbox.reserve(), if !self.outbox.is_empty() => match room {
                    Ok(room) => {
                        if let Some(message) = self.outbox.pop() {
                            self.waiting.fetch_add(message.bytes(), Ordering::Relaxed);
                            room.send(message);
                        }
                    }
                    Err(_) => self.outbox = Outbox::default(),
                },
            }
        }
    }

    /// The next message if it is here already.
    pub(crate) fn next_ready(&mut self) -> Option<ToSession> {
        self.inbox.next_ready()
    }

    /// Subscribes or unsubscribes.
    pub(crate) fn subscription(
        &mut self,
        call: u64,
        uri: Box<[u8]>,
        is_subscribe: bool,
        line: Bytes,
    ) {
        self.post(ToChild::Subscription {
            call,
            uri,
            is_subscribe,
            line,
        });
    }

    /// Abandons a subscription without a response; `is_kept` if the session has it by an earlier
    /// request.
    pub(crate) fn abandon(&mut self, call: u64, uri: Box<[u8]>, is_kept: bool) {
        self.post(ToChild::Abandon { call, uri, is_kept });
    }

    /// Sets the log level of the session.
    pub(crate) fn set_level(&mut self, level: LogLevel) {
        self.post(ToChild::Level(self.number, level));
    }

    fn post(&mut self, message: ToChild) {
        self.outbox.push(message);
        self.try_flush();
    }

    /// Whether the child is to be replaced.
    pub(crate) fn is_to_be_replaced(&self) -> bool {
        self.initialized.entry.restart().is_some()
    }

    /// Requests a ping of the child.
    pub(crate) fn probe(&self) {
        // With a full mailbox the child works on it, or its own timeout ends it.
        _ = self.mailbox.try_send(ToChild::Probe);
    }

    /// Sets the number of the session's calls in flight.
    pub(crate) fn set_calls(&mut self, calls: usize) {
        let before = std::mem::replace(&mut self.calls, calls);
        let of_all = self.of_all.set(before, calls);
        self.initialized.entry.set_calls(of_all);
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.set_calls(0);
        // Without room the child's task notices the closed inbox.
        _ = self.mailbox.try_send(ToChild::Leave(self.number));
    }
}

#[cfg(test)]
mod tests {
    use super::super::placement::*;

    /// Sessions were refused for two minutes after a start that found no room was the probe.
    #[test]
    fn a_probe_that_is_no_child_is_given_back() {
        let began = Instant::now();
        let at = |seconds: u64| began + Duration::from_secs(seconds);
        let mut group = Group::default();
        for crashes in 1..=6 {
            let opens = group.count_end(Some(Loss::Crash), (at(0), at(0)), 0.0);
            assert_eq!(opens, crashes == 6);
        }
        assert_eq!(group.crashes.try_start(at(30)), Verdict::Now);
        assert!(!group.count_end(None, (at(29), at(31)), 0.0));
        assert_ne!(group.crashes.peek(at(31)), Verdict::Now, "of another");
        assert!(!group.count_end(None, (at(30), at(31)), 0.0));
        assert_eq!(group.crashes.try_start(at(31)), Verdict::Now);
        let opens = group.count_end(Some(Loss::TooLong), (at(31), at(32)), 0.0);
        assert!(opens, "a result");
        assert_eq!(group.restarts, 7);
        let opens = group.count_end(Some(Loss::Crash), (at(40), at(80)), 0.0);
        assert!(!opens, "it has worked");
    }
}

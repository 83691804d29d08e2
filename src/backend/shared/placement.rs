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
    child::Shared,
    mailbox::{Handle, Heard, Hello, INBOX, Loss, MAILBOX, Standing, Unsent, Wanted},
    routing::Level,
};
use crate::backend::{
    Pool,
    admission::{Circuit, Refused, Spec, Verdict, spec},
};
use crate::declare::Server;

/// All shared children.
pub(crate) struct Shares {
    pool: Arc<Pool>,
    keys: RwLock<HashMap<Key, Shelf>>,
    last: AtomicU32,
    tracker: TaskTracker,
    drain: CancellationToken,
    halt: CancellationToken,
}

/// Key of shared children: a launch specification, and the principal if they serve only one.
type Key = (Spec, Option<Box<str>>);

/// Children of one key.
#[derive(Default)]
struct Shelf {
    handles: Vec<Handle>,
    /// Crashes after the start; failed starts count for the specification (`admission`).
    crashes: Circuit,
    restarts: u32,
}

/// Place of a session in a shared child, left by being dropped.
pub(crate) struct Member {
    number: u32,
    mailbox: mpsc::Sender<Wanted>,
    inbox: mpsc::Receiver<Heard>,
    unsent: Unsent,
    load: Arc<AtomicUsize>,
    /// Bytes of all sessions in the mailbox.
    waiting: Arc<AtomicUsize>,
    calls: usize,
    /// Result of the child's initialization.
    pub(crate) hello: Arc<Hello>,
}

/// Lifetime after which a child counts as working.
pub(crate) const STABLE: Duration = Duration::from_secs(30);

/// Attempts to join, if children end meanwhile.
const TRIES: usize = 3;

impl Shares {
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
            tracker,
            drain,
            halt,
        })
    }

    /// Next number for a session, with which its ids towards shared children begin. Reused only
    /// after all others.
    pub(crate) fn number(&self) -> u32 {
        // 29 bits: with CALL_BITS a number that JavaScript represents exactly (2^53).
        const MASK: u32 = (1 << 29) - 1;
        loop {
            let number = self.last.fetch_add(1, Ordering::Relaxed) & MASK;
            if number != 0 {
                return number;
            }
        }
    }

    /// Joins a child of `server` that the sessions of `principal` share, or those of all principals
    /// if none is given.
    ///
    /// # Errors
    ///
    /// As [`Pool::get`]; `Failed` if the child did not start.
    pub(crate) async fn join(
        self: Arc<Self>,
        server: Arc<Server>,
        principal: Option<Box<str>>,
        number: u32,
    ) -> Result<Member, Refused> {
        let key = (spec(&server), principal);
        for _ in 0..TRIES {
            let handle = self.pick(&key, &server)?;
            let mut standing = handle.standing.clone();
            let settled = standing
                .wait_for(|standing| !matches!(standing, Standing::Starting))
                .await
                .map(|standing| standing.clone());
            let hello = match settled {
                Ok(Standing::Ready(hello)) => hello,
                Ok(Standing::Failed(why)) => return Err(why),
                Ok(Standing::Starting) | Err(_) => continue,
            };
            let (inbox, heard) = mpsc::channel(INBOX);
            if handle
                .mailbox
                .send(Wanted::Join { number, inbox })
                .await
                .is_ok()
            {
                return Ok(Member {
                    number,
                    mailbox: handle.mailbox,
                    inbox: heard,
                    unsent: Unsent::default(),
                    load: handle.load,
                    waiting: handle.waiting,
                    calls: 0,
                    hello,
                });
            }
        }
        Err(Refused::Failed("backend_exited"))
    }

    fn pick(self: &Arc<Self>, key: &Key, server: &Arc<Server>) -> Result<Handle, Refused> {
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if keys.len() > 64 {
            keys.retain(|_, shelf| !shelf.is_empty(now));
        }
        let shelf = keys.entry(key.clone()).or_default();
        shelf.handles.retain(Handle::is_open);
        let most = usize::try_from(server.supervision.max_children).unwrap_or(usize::MAX);
        let load = |handle: &&Handle| handle.load.load(Ordering::Relaxed);
        let idlest = shelf.handles.iter().min_by_key(load);
        if let Some(handle) = idlest
            && (load(&handle) == 0 || shelf.handles.len() >= most)
        {
            return Ok(handle.clone());
        }
        let not_before = match (shelf.crashes.ask(now), idlest) {
            (Verdict::Now, _) => None,
            // Living children take the load meanwhile.
            (Verdict::After(_) | Verdict::Open(_), Some(handle)) => return Ok(handle.clone()),
            (Verdict::After(wait), None) => Some(now + wait),
            (Verdict::Open(left), None) => return Err(Refused::Circuit(left)),
        };
        let handle = self.begin(key, server, shelf.restarts, not_before);
        shelf.handles.push(handle.clone());
        Ok(handle)
    }

    fn begin(
        self: &Arc<Self>,
        key: &Key,
        server: &Arc<Server>,
        restarts: u32,
        not_before: Option<Instant>,
    ) -> Handle {
        let (mailbox, wanted) = mpsc::channel(MAILBOX);
        let (settle, standing) = watch::channel(Standing::Starting);
        let handle = Handle {
            mailbox,
            standing,
            load: Arc::default(),
            waiting: Arc::default(),
            is_closing: Arc::new(AtomicBool::new(false)),
        };
        let shared = Shared {
            pool: Arc::clone(&self.pool),
            server: Arc::clone(server),
            wanted,
            standing: settle,
            load: Arc::clone(&handle.load),
            waiting: Arc::clone(&handle.waiting),
            is_closing: Arc::clone(&handle.is_closing),
            drain: self.drain.clone(),
            halt: self.halt.clone(),
        };
        let (shares, key) = (Arc::clone(self), key.clone());
        self.tracker.spawn(async move {
            let born = Instant::now();
            let loss = shared.run(restarts, not_before).await;
            shares.ended(&key, loss, born);
        });
        handle
    }

    fn ended(&self, key: &Key, loss: Option<Loss>, born: Instant) {
        let jitter = self.pool.jitter();
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        let Some(shelf) = keys.get_mut(key) else {
            return;
        };
        shelf.handles.retain(Handle::is_open);
        if loss.is_some() && born.elapsed() >= STABLE {
            shelf.crashes.succeeded();
        }
        match loss {
            Some(Loss::Crash | Loss::TooLong) => {
                shelf.restarts += 1;
                if shelf.crashes.failed(Instant::now(), jitter) {
                    self.pool.metrics.circuit_opened();
                    let (tenant, server, _) = &key.0;
                    tracing::warn!(
                        tenant.id = tenant,
                        server.name = server,
                        "a shared child keeps crashing: its circuit opens"
                    );
                }
            }
            Some(Loss::Idle | Loss::Restart) => shelf.crashes.succeeded(),
            None => {}
        }
    }
}

impl Shelf {
    fn is_empty(&self, now: Instant) -> bool {
        !self.handles.iter().any(Handle::is_open) && self.crashes.is_idle(now)
    }
}

impl Handle {
    fn is_open(&self) -> bool {
        let has_failed = matches!(&*self.standing.borrow(), Standing::Failed(_));
        !self.mailbox.is_closed() && !self.is_closing.load(Ordering::Relaxed) && !has_failed
    }
}

impl Member {
    /// Queue of lines for the child, for whole lines only.
    pub(crate) fn out(&mut self) -> &mut BytesMut {
        self.unsent.lines()
    }

    /// Bytes that the child's task has not taken yet, of all its sessions: a child that does not
    /// read blocks all of them.
    pub(crate) fn queued(&self) -> usize {
        self.unsent.bytes() + self.waiting.load(Ordering::Relaxed)
    }

    /// Sends messages as far as there is room.
    pub(crate) fn try_flush(&mut self) {
        while !self.unsent.is_empty()
            && let Ok(room) = self.mailbox.try_reserve()
            && let Some(wanted) = self.unsent.pop()
        {
            self.waiting.fetch_add(wanted.bytes(), Ordering::Relaxed);
            room.send(wanted);
        }
    }

    /// Waits for the next message and sends queued ones meanwhile; cancel-safe.
    pub(crate) async fn next(&mut self) -> Heard {
        loop {
            // With many messages this future is cancelled often, before the branch below is polled.
            self.try_flush();
            tokio::select! {
                biased;
                heard = self.inbox.recv() => return heard.unwrap_or(Heard::Ended(Loss::Crash)),
                room = self.mailbox.reserve(), if !self.unsent.is_empty() => match room {
                    Ok(room) => {
                        if let Some(wanted) = self.unsent.pop() {
                            self.waiting.fetch_add(wanted.bytes(), Ordering::Relaxed);
                            room.send(wanted);
                        }
                    }
                    Err(_) => self.unsent = Unsent::default(),
                },
            }
        }
    }

    /// Begins or ends a subscription.
    pub(crate) fn subscription(&mut self, call: u64, uri: Box<[u8]>, begins: bool, line: Bytes) {
        self.want(Wanted::Subscription {
            call,
            uri,
            begins,
            line,
        });
    }

    /// Abandons an unanswered subscription; `is_kept` if the session has it by an earlier request.
    pub(crate) fn abandon(&mut self, call: u64, uri: Box<[u8]>, is_kept: bool) {
        self.want(Wanted::Abandon { call, uri, is_kept });
    }

    /// Sets the log level of the session.
    pub(crate) fn set_level(&mut self, level: Level) {
        self.want(Wanted::Level(self.number, level));
    }

    fn want(&mut self, wanted: Wanted) {
        self.unsent.push(wanted);
        self.try_flush();
    }

    /// Asks for a sign of life.
    pub(crate) fn probe(&self) {
        // A full mailbox is being worked on, or the child's own timeout ends it.
        _ = self.mailbox.try_send(Wanted::Probe);
    }

    /// Notes the number of the session's calls in flight.
    pub(crate) fn set_calls(&mut self, calls: usize) {
        let of_all = if calls >= self.calls {
            let more = calls - self.calls;
            self.load.fetch_add(more, Ordering::Relaxed) + more
        } else {
            let fewer = self.calls - calls;
            self.load.fetch_sub(fewer, Ordering::Relaxed) - fewer
        };
        self.calls = calls;
        self.hello.entry.set_calls(of_all);
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.set_calls(0);
        // Without room the child's task notices the closed inbox.
        _ = self.mailbox.try_send(Wanted::Leave(self.number));
    }
}

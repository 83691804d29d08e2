//! Which shared child a session uses: the one with the fewest calls in flight, a new one while
//! all are busy and `max_children` allows it.
//!
//! Not here: the child itself (`shared`).

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
    mailbox::{Handle, Heard, Hello, INBOX, LANE, Loss, Standing, Unsent, Wanted},
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

/// Who shares children: a launch specification, and the principal where only one may.
type Key = (Spec, Option<Box<str>>);

/// The children of one key.
#[derive(Default)]
struct Shelf {
    handles: Vec<Handle>,
    /// Crashes after the start; failed starts are counted by specification (`pool`).
    crashes: Circuit,
    restarts: u32,
}

/// A session's place in a shared child. Dropping it takes the session out.
pub(crate) struct Member {
    number: u32,
    lane: mpsc::Sender<Wanted>,
    inbox: mpsc::Receiver<Heard>,
    unsent: Unsent,
    load: Arc<AtomicUsize>,
    /// Bytes in the lane, of all sessions.
    waiting: Arc<AtomicUsize>,
    calls: usize,
    /// What the child said of itself.
    pub(crate) hello: Arc<Hello>,
}

/// A child that lived for so long has shown that it works.
pub(crate) const STABLE: Duration = Duration::from_secs(30);

/// How often a child that went while it was being joined is replaced.
const TRIES: usize = 3;

impl Shares {
    /// None yet.
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

    /// A number for a session: its ids towards shared children begin with it. Never given twice
    /// while anything remembers it.
    pub(crate) fn number(&self) -> u32 {
        // 29 bits: with CALL_BITS a number that JavaScript keeps exactly (2^53).
        const MASK: u32 = (1 << 29) - 1;
        loop {
            let number = self.last.fetch_add(1, Ordering::Relaxed) & MASK;
            if number != 0 {
                return number;
            }
        }
    }

    /// A place in a child of `server` that the sessions of `principal` share; of all principals
    /// where that is none.
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
                .lane
                .send(Wanted::Join { number, inbox })
                .await
                .is_ok()
            {
                return Ok(Member {
                    number,
                    lane: handle.lane,
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
            // Those that live have more to do meanwhile.
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
        let (lane, wanted) = mpsc::channel(LANE);
        let (settle, standing) = watch::channel(Standing::Starting);
        let handle = Handle {
            lane,
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
        !self.lane.is_closed() && !self.is_closing.load(Ordering::Relaxed) && !has_failed
    }
}

impl Member {
    /// What goes to the child; append whole lines only.
    pub(crate) fn out(&mut self) -> &mut BytesMut {
        self.unsent.lines()
    }

    /// Bytes that the child's task has not taken yet, of all its sessions: one that does not read
    /// reads for none of them.
    pub(crate) fn queued(&self) -> usize {
        self.unsent.bytes() + self.waiting.load(Ordering::Relaxed)
    }

    /// Sends what there is, as far as there is room.
    pub(crate) fn try_flush(&mut self) {
        while !self.unsent.is_empty()
            && let Ok(room) = self.lane.try_reserve()
            && let Some(wanted) = self.unsent.pop()
        {
            self.waiting.fetch_add(wanted.bytes(), Ordering::Relaxed);
            room.send(wanted);
        }
    }

    /// Waits for what is heard next, and sends what there is meanwhile; cancel-safe.
    pub(crate) async fn next(&mut self) -> Heard {
        loop {
            // Whoever hears much is cancelled often, and would never come to its turn below.
            self.try_flush();
            tokio::select! {
                biased;
                heard = self.inbox.recv() => return heard.unwrap_or(Heard::Ended(Loss::Crash)),
                room = self.lane.reserve(), if !self.unsent.is_empty() => match room {
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

    /// Ends a subscription that has no answer; `is_kept` if the session has it nevertheless.
    pub(crate) fn abandon(&mut self, call: u64, uri: Box<[u8]>, is_kept: bool) {
        self.want(Wanted::Abandon { call, uri, is_kept });
    }

    /// Asks for log messages from a level on.
    pub(crate) fn set_level(&mut self, level: Level) {
        self.want(Wanted::Level(self.number, level));
    }

    fn want(&mut self, wanted: Wanted) {
        self.unsent.push(wanted);
        self.try_flush();
    }

    /// Asks for a sign of life.
    pub(crate) fn probe(&self) {
        // A lane that is full is being worked on, or the child's own clock will see to it.
        _ = self.lane.try_send(Wanted::Probe);
    }

    /// Notes how many calls the session has in flight.
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
        // Where there is no room the child's task notices that the inbox is closed.
        _ = self.lane.try_send(Wanted::Leave(self.number));
    }
}

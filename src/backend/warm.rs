//! Children kept started ahead of the sessions that will use them (`warm`).
//!
//! One task for each server that wants them owns its shelf; who takes one from it sends it a
//! message. A child on the shelf has been given nothing, so that it may become anybody's.

use std::{
    collections::{HashMap, VecDeque},
    future::poll_fn,
    pin::Pin,
    sync::{Arc, PoisonError, RwLock},
    task::Poll,
    time::Duration,
};

use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    child::{Child, Exit},
    pool::{Pool, Refused, Spec, Started, spec},
};
use crate::{declare::Server, telemetry::metrics};

/// The shelves, by what stands on them.
#[derive(Default)]
pub(crate) struct Keepers {
    shelves: RwLock<HashMap<Spec, Shelf>>,
}

/// How to take from a shelf.
struct Shelf {
    /// What it is for.
    server: Arc<Server>,
    takers: mpsc::Sender<oneshot::Sender<Started>>,
}

/// Takers that wait for an answer; it comes without waiting for anything.
const TAKERS: usize = 64;

/// How long a refill waits after it was refused.
const PAUSE: Duration = Duration::from_secs(1);

impl Keepers {
    /// A warm child of `server`; none where there is none right now.
    pub(super) async fn take(&self, server: &Server) -> Option<Started> {
        if server.supervision.warm == 0 {
            return None;
        }
        let shelf = {
            let shelves = self.shelves.read().unwrap_or_else(PoisonError::into_inner);
            shelves.get(&spec(server))?.takers.clone()
        };
        let (reply, started) = oneshot::channel();
        shelf.send(reply).await.ok()?;
        started.await.ok()
    }
}

impl Pool {
    /// Keeps children of `wanted`, as many as each says, started until `halt`, and no others.
    ///
    /// Servers that were not changed are known by their addresses.
    pub(crate) fn keep_only(
        self: &Arc<Self>,
        wanted: &[Arc<Server>],
        halt: &CancellationToken,
        tracker: &TaskTracker,
    ) {
        let mut shelves = self
            .keepers
            .shelves
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let is_wanted =
            |server: &Arc<Server>| wanted.iter().any(|wanted| Arc::ptr_eq(wanted, server));
        // Without its sender a shelf is cleared.
        shelves.retain(|_, shelf| is_wanted(&shelf.server));
        for server in wanted {
            if server.supervision.warm > 0 {
                let open = || self.open_shelf(server, halt.clone(), tracker);
                shelves.entry(spec(server)).or_insert_with(open);
            }
        }
    }

    fn open_shelf(
        self: &Arc<Self>,
        server: &Arc<Server>,
        halt: CancellationToken,
        tracker: &TaskTracker,
    ) -> Shelf {
        let (takers, asked) = mpsc::channel(TAKERS);
        let keeper = Keeper {
            pool: Arc::clone(self),
            server: Arc::clone(server),
            shelf: VecDeque::new(),
            tracker: tracker.clone(),
        };
        tracker.spawn(async move {
            let mut keeper = keeper;
            halt.run_until_cancelled(keeper.run(asked)).await;
            keeper.clear();
        });
        Shelf {
            server: Arc::clone(server),
            takers,
        }
    }
}

/// The owner of one shelf.
struct Keeper {
    pool: Arc<Pool>,
    server: Arc<Server>,
    shelf: VecDeque<Started>,
    tracker: TaskTracker,
}

/// A refill under way, or the pause after one that was refused.
type Refill = Pin<Box<dyn Future<Output = Result<Started, Refused>> + Send>>;

impl Keeper {
    async fn run(&mut self, mut takers: mpsc::Receiver<oneshot::Sender<Started>>) {
        let wanted = usize::try_from(self.server.supervision.warm).unwrap_or(usize::MAX);
        let mut refill: Option<Refill> = None;
        loop {
            if refill.is_none() && self.shelf.len() < wanted {
                refill = Some(self.refill());
            }
            tokio::select! {
                biased;
                taker = takers.recv() => match taker {
                    Some(taker) => self.hand_over(taker),
                    None => return,
                },
                started = async { refill.as_mut()?.await.ok() }, if refill.is_some() => {
                    refill = None;
                    self.shelf.extend(started.map(|mut started| {
                        started.place.settle();
                        started
                    }));
                }
                (at, exit) = ended(&mut self.shelf) => self.lost(at, &exit),
            }
        }
    }

    fn refill(&self) -> Refill {
        let (pool, server) = (Arc::clone(&self.pool), Arc::clone(&self.server));
        Box::pin(async move {
            let started = match pool.prepared(&server).await {
                Ok(ready) => {
                    let deadline = Instant::now() + server.clocks.start.max(PAUSE);
                    pool.start(&server, ready.as_deref(), 0, deadline).await
                }
                Err(refused) => Err(refused),
            };
            match &started {
                Err(Refused::Circuit(left)) => sleep((*left).max(PAUSE)).await,
                Err(_) => sleep(PAUSE).await,
                Ok(_) => {}
            }
            started
        })
    }

    fn hand_over(&mut self, taker: oneshot::Sender<Started>) {
        if let Some(started) = self.shelf.pop_front()
            // Whoever asked is gone: it stays warm.
            && let Err(started) = taker.send(started)
        {
            self.shelf.push_front(started);
        }
    }

    /// A child that ends on the shelf would have failed its start.
    fn lost(&mut self, at: usize, exit: &Exit) {
        let Some(mut started) = self.shelf.remove(at) else {
            return;
        };
        tracing::warn!(
            tenant.id = self.server.tenant,
            server.name = self.server.name,
            code = exit.code,
            signal = exit.signal,
            "a warm child ended"
        );
        started.place.fail();
        self.pool.metrics.child_exited(metrics::Exit::FailedStart);
    }

    fn clear(&mut self) {
        for started in self.shelf.drain(..) {
            let (stop, pool) = (self.server.clocks.stop, Arc::clone(&self.pool));
            self.tracker.spawn(async move {
                let Started { child, place } = started;
                place.entry().set(metrics::ChildState::Stopping);
                child.stop(stop).await;
                pool.metrics.child_exited(metrics::Exit::Stopped);
            });
        }
    }
}

/// Waits until a child on the shelf ends; drains what they write to stderr meanwhile.
async fn ended(shelf: &mut VecDeque<Started>) -> (usize, Exit) {
    poll_fn(|cx| {
        for (at, started) in shelf.iter_mut().enumerate() {
            if let Poll::Ready(exit) = Child::poll_rest(&mut started.child, cx) {
                return Poll::Ready((at, exit));
            }
        }
        Poll::Pending
    })
    .await
}

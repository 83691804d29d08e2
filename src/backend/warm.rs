//! Warm children: started ahead of the sessions that will use them.
//!
//! One task owns the shelf of each server with `warm` children, and hands them over by message. A
//! warm child has received nothing, so that any session may take it.

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
    admission::{Refused, Spec, spec},
    child::{Child, Exit},
    prepare::Preparations,
    starter::{Started, Starter},
};
use crate::{
    declare::Server,
    telemetry::{ChildState, Exit as Exited},
};

/// Shelves of warm children, one for each server that asks for some.
pub(super) struct Shelves {
    /// Never locked across an await.
    shelves: RwLock<HashMap<Spec, Shelf>>,
    starter: Arc<Starter>,
    preparations: Arc<Preparations>,
}

/// Shelf of one server, as others see it.
struct Shelf {
    /// Server of its children.
    server: Arc<Server>,
    takers: mpsc::Sender<oneshot::Sender<Started>>,
}

/// Takers in the queue of a shelf; each is answered at once.
const TAKERS: usize = 64;

/// Pause of a refill after a refusal.
const PAUSE: Duration = Duration::from_secs(1);

impl Shelves {
    /// No shelf.
    pub(super) fn new(starter: Arc<Starter>, preparations: Arc<Preparations>) -> Self {
        Self {
            shelves: RwLock::default(),
            starter,
            preparations,
        }
    }

    /// Takes a warm child of `server`, if there is one now.
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

    /// Keeps as many children of each `wanted` server started as it asks for, until `halt`, and
    /// none of others.
    ///
    /// A server that did not change has the same address.
    pub(super) fn keep_only(
        &self,
        wanted: &[Arc<Server>],
        halt: &CancellationToken,
        tracker: &TaskTracker,
    ) {
        let mut shelves = self.shelves.write().unwrap_or_else(PoisonError::into_inner);
        let is_wanted =
            |server: &Arc<Server>| wanted.iter().any(|wanted| Arc::ptr_eq(wanted, server));
        // A shelf without a sender is cleared.
        shelves.retain(|_, shelf| is_wanted(&shelf.server));
        for server in wanted {
            if server.supervision.warm > 0 {
                let open = || self.open_shelf(server, halt.clone(), tracker);
                shelves.entry(spec(server)).or_insert_with(open);
            }
        }
    }

    fn open_shelf(
        &self,
        server: &Arc<Server>,
        halt: CancellationToken,
        tracker: &TaskTracker,
    ) -> Shelf {
        let (takers, asked) = mpsc::channel(TAKERS);
        let keeper = Keeper {
            starter: Arc::clone(&self.starter),
            preparations: Arc::clone(&self.preparations),
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
    starter: Arc<Starter>,
    preparations: Arc<Preparations>,
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
        let (starter, server) = (Arc::clone(&self.starter), Arc::clone(&self.server));
        let preparations = Arc::clone(&self.preparations);
        Box::pin(async move {
            let started = match preparations.prepared(&server).await {
                Ok(ready) => {
                    let deadline = Instant::now() + server.clocks.start.max(PAUSE);
                    starter.start(&server, ready.as_deref(), 0, deadline).await
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
            // The taker is gone: the child stays warm.
            && let Err(started) = taker.send(started)
        {
            self.shelf.push_front(started);
        }
    }

    /// Counts a child that ended on the shelf as a failed start.
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
        self.starter.metrics.child_exited(Exited::FailedStart);
    }

    fn clear(&mut self) {
        for started in self.shelf.drain(..) {
            let (stop, metrics) = (self.server.clocks.stop, Arc::clone(&self.starter.metrics));
            self.tracker.spawn(async move {
                let Started { child, place } = started;
                place.entry().set(ChildState::Stopping);
                child.stop(stop).await;
                metrics.child_exited(Exited::Stopped);
            });
        }
    }
}

/// Waits until a child on the shelf ends, and drains stderr of all meanwhile.
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

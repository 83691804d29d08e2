//! Warm children: started ahead of the sessions that will use them.
//!
//! One task owns the queue of each server with `warm` children, and hands them over by message. A
//! warm child has received no message, so that any session may take it.

use std::{
    collections::{HashMap, VecDeque},
    future::poll_fn,
    pin::Pin,
    sync::{Arc, PoisonError, RwLock},
    task::Poll,
    time::Duration,
};

use tokio::{
    sync::{Notify, mpsc, oneshot},
    time::{Instant, sleep},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    admission::{Refused, Spec, Stage, spec},
    child::{Child, Exit},
    prepare::Preparations,
    starter::{Occasion, SLOT, Started, Starter},
};
use crate::{
    declare::Server,
    telemetry::{ChildState, Exit as Exited},
};

/// All warm children, in one queue for each server that declares `warm`.
pub(super) struct WarmChildren {
    /// Never locked across an await.
    queues: RwLock<HashMap<Spec, ServerQueue>>,
    starter: Arc<Starter>,
    preparations: Arc<Preparations>,
}

/// The queue of one server, for its takers.
struct ServerQueue {
    /// Server of its children.
    server: Arc<Server>,
    takers: mpsc::Sender<oneshot::Sender<Started>>,
}

/// The most requests for a warm child that wait at one server; each is answered at once.
const MAX_TAKERS: usize = 64;

/// Pause of a refill after a refusal, or a child that there was no process for.
const PAUSE: Duration = Duration::from_secs(1);

impl WarmChildren {
    /// No queue.
    pub(super) fn new(starter: Arc<Starter>, preparations: Arc<Preparations>) -> Self {
        Self {
            queues: RwLock::default(),
            starter,
            preparations,
        }
    }

    /// Takes a warm child of `server`, if there is one now.
    pub(super) async fn take(&self, server: &Server) -> Option<Started> {
        if server.supervision.warm == 0 {
            return None;
        }
        let queue = {
            let queues = self.queues.read().unwrap_or_else(PoisonError::into_inner);
            queues.get(&spec(server))?.takers.clone()
        };
        let (reply, started) = oneshot::channel();
        queue.send(reply).await.ok()?;
        started.await.ok()
    }

    /// Takes a warm child of any server of a tenant.
    pub(super) async fn take_any(&self, tenant: &str) -> Option<(Arc<Server>, Started)> {
        let servers: Vec<_> = {
            let queues = self.queues.read().unwrap_or_else(PoisonError::into_inner);
            let all = queues.values().map(|queue| &queue.server);
            let own = all.filter(|server| server.tenant == tenant);
            own.cloned().collect()
        };
        for server in servers {
            if let Some(started) = self.take(&server).await {
                return Some((server, started));
            }
        }
        None
    }

    /// Keeps the declared number of warm children of each `wanted` server, and none of other servers,
    /// until `halt`.
    ///
    /// A server that did not change has the same address.
    pub(super) fn keep_only<'s>(
        &self,
        wanted: impl Iterator<Item = &'s Arc<Server>>,
        halt: &CancellationToken,
        tracker: &TaskTracker,
    ) {
        let mut queues = self.queues.write().unwrap_or_else(PoisonError::into_inner);
        for server in without_queue(&mut queues, wanted) {
            let queue = self.open_queue(server, halt.clone(), tracker);
            queues.insert(spec(server), queue);
        }
    }

    fn open_queue(
        &self,
        server: &Arc<Server>,
        halt: CancellationToken,
        tracker: &TaskTracker,
    ) -> ServerQueue {
        let (takers, asked) = mpsc::channel(MAX_TAKERS);
        let task = QueueTask {
            starter: Arc::clone(&self.starter),
            preparations: Arc::clone(&self.preparations),
            server: Arc::clone(server),
            queue: VecDeque::new(),
            replaced: Arc::default(),
            pause: Duration::ZERO,
            tracker: tracker.clone(),
        };
        tracker.spawn(async move {
            let mut task = task;
            halt.run_until_cancelled(task.run(asked)).await;
            task.clear();
        });
        ServerQueue {
            server: Arc::clone(server),
            takers,
        }
    }
}

/// Clears the queues of servers that are not wanted; returns the servers that want one and have none.
///
/// Every change comes here, also each revocation: it looks at each server once, and at the launch of none.
fn without_queue<'s>(
    queues: &mut HashMap<Spec, ServerQueue>,
    wanted: impl Iterator<Item = &'s Arc<Server>>,
) -> Vec<&'s Arc<Server>> {
    let warm = wanted.filter(|server| server.supervision.warm > 0);
    let mut wanted: HashMap<_, _> = warm.map(|server| (Arc::as_ptr(server), server)).collect();
    // A queue without a sender is cleared.
    queues.retain(|_, queue| wanted.remove(&Arc::as_ptr(&queue.server)).is_some());
    wanted.into_values().collect()
}

/// The owner of one queue.
struct QueueTask {
    starter: Arc<Starter>,
    preparations: Arc<Preparations>,
    server: Arc<Server>,
    queue: VecDeque<Started>,
    /// Told when one of them is to be replaced.
    replaced: Arc<Notify>,
    /// Pause before the next refill.
    pause: Duration,
    tracker: TaskTracker,
}

/// A refill under way, or the pause after one that was refused.
type Refill = Pin<Box<dyn Future<Output = Result<Started, Refused>> + Send>>;

impl QueueTask {
    async fn run(&mut self, mut takers: mpsc::Receiver<oneshot::Sender<Started>>) {
        let wanted = usize::try_from(self.server.supervision.warm).unwrap_or(usize::MAX);
        let mut refill: Option<Refill> = None;
        let replaced = Arc::clone(&self.replaced);
        loop {
            if refill.is_none() && self.queue.len() < wanted {
                refill = Some(self.refill());
            }
            tokio::select! {
                biased;
                taker = takers.recv() => match taker {
                    Some(taker) => self.hand_over(taker),
                    None => return,
                },
                () = replaced.notified() => self.stop_replaced(),
                started = async { refill.as_mut()?.await.ok() }, if refill.is_some() => {
                    refill = None;
                    if let Some(started) = started {
                        self.keep(started);
                    }
                }
                (at, exit) = ended(&mut self.queue) => self.lost(at, &exit),
            }
        }
    }

    fn refill(&mut self) -> Refill {
        let (starter, server) = (Arc::clone(&self.starter), Arc::clone(&self.server));
        let preparations = Arc::clone(&self.preparations);
        let pause = std::mem::take(&mut self.pause);
        Box::pin(async move {
            if !pause.is_zero() {
                sleep(pause).await;
            }
            let started = match preparations.prepared(&server).await {
                Ok(ready) => {
                    let turn = starter.warm_turn(&server).await;
                    // No longer than the turn, for which others wait.
                    let (deadline, occasion) = (Instant::now() + SLOT, Occasion::default());
                    let ready = ready.as_deref();
                    let mut started = starter.start(&server, ready, 0, deadline, occasion).await;
                    if let Ok(started) = &mut started {
                        started.settle(turn);
                    }
                    started
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

    /// Keeps a child until a session takes it.
    fn keep(&mut self, started: Started) {
        let replaced = Arc::clone(&self.replaced);
        started
            .place
            .entry()
            .on_restart(move || replaced.notify_one());
        self.queue.push_back(started);
        // It may be to be replaced since before this was told of it.
        self.stop_replaced();
    }

    /// Stops the children that are to be replaced: the next ones are started at once, not when a session comes.
    fn stop_replaced(&mut self) {
        let is_replaced = |started: &Started| started.place.entry().restart().is_some();
        let queue = std::mem::take(&mut self.queue).into_iter();
        let (replaced, kept): (VecDeque<_>, _) = queue.partition(is_replaced);
        self.queue = kept;
        for started in replaced {
            self.stop(started);
        }
    }

    fn hand_over(&mut self, taker: oneshot::Sender<Started>) {
        while let Some(started) = self.queue.pop_front() {
            // Its session would have it replaced at once.
            if started.place.entry().restart().is_some() {
                self.stop(started);
                continue;
            }
            if let Err(started) = taker.send(started) {
                // The taker is gone: the child stays warm.
                self.queue.push_front(started);
            }
            return;
        }
    }

    /// Counts a child that ended on the queue as a failed start, unless the machine had no process for it: then no
    /// circuit delays the next one.
    fn lost(&mut self, at: usize, exit: &Exit) {
        let Some(mut started) = self.queue.remove(at) else {
            return;
        };
        if exit.is_shortage {
            self.pause = PAUSE;
        } else {
            started.place.fail(Stage::Start, &exit.in_words());
        }
        self.starter.metrics.child_exited(Exited::FailedStart);
    }

    fn clear(&mut self) {
        while let Some(started) = self.queue.pop_front() {
            self.stop(started);
        }
    }

    fn stop(&self, Started { child, place }: Started) {
        let (stop, metrics) = (self.server.clocks.stop, Arc::clone(&self.starter.metrics));
        self.tracker.spawn(async move {
            place.entry().set(ChildState::Stopping);
            child.stop(stop).await;
            metrics.child_exited(Exited::Stopped);
            drop(place);
        });
    }
}

/// Waits until a child on the queue ends, and drains stderr of all meanwhile: of one after the other, each in a turn of
/// its tenant.
async fn ended(queue: &mut VecDeque<Started>) -> (usize, Exit) {
    let mut first = 0;
    loop {
        let polled = poll_fn(|cx| {
            for at in (first..queue.len()).chain(0..first) {
                if let Poll::Ready(exit) = Child::poll_rest(&mut queue[at].child, cx) {
                    return Poll::Ready((at, exit));
                }
            }
            Poll::Pending
        });
        let at = match polled.await {
            (at, Some(exit)) => return (at, exit),
            (at, None) => at,
        };
        first = at + 1;
        let share = queue[at].child.share().cloned();
        if let Some(share) = share {
            share.others_first().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{
        child::{Owner, Restart},
        starter::tests::{preparations, server, server_with, starter},
        warm::*,
    };
    use crate::base::budget::Budget;

    fn queue_task(starter: Arc<Starter>, server: Arc<Server>) -> QueueTask {
        QueueTask {
            preparations: preparations(&starter),
            server,
            queue: VecDeque::new(),
            replaced: Arc::default(),
            pause: Duration::ZERO,
            tracker: TaskTracker::new(),
            starter,
        }
    }

    /// After a restart all of them booted at once, and no child of a client had an answer in time.
    #[tokio::test]
    async fn warm_children_boot_in_turn_and_children_of_clients_beside_them() {
        let (starter, _work) = starter(4);
        let busy = server_with(
            "a",
            "command: sh, args: [-c, \"while :; do :; done\"], warm: 2",
        );
        let mut task = queue_task(Arc::clone(&starter), busy);
        let Started { child, place } = task.refill().await.ok().unwrap();
        let mut second = task.refill();
        let occasion = Occasion {
            owner: Some(Owner::Tenant),
            ..Occasion::default()
        };
        let (server, deadline) = (server("era: auto"), Instant::now() + SLOT);
        let of_client = starter.start(&server, None, 0, deadline, occasion);
        let of_client = tokio::select! {
            biased;
            _ = &mut second => None,
            started = of_client => started.ok(),
        };
        assert!(of_client.is_some(), "it waited behind two warm ones");
        let started = task.starter.registry.list(|_| true).len();
        assert_eq!(started, 2, "the second warm one boots beside the first");
        drop(of_client);
        child.kill().await;
        drop(place);
        assert!(second.await.is_ok());
    }

    /// A server that has all that it wants is full again at once where nothing else boots.
    #[tokio::test]
    async fn a_warm_child_that_is_up_keeps_no_other_from_booting() {
        let (starter, _work) = starter(4);
        let mut task = queue_task(starter, server("warm: 3"));
        let begun = Instant::now();
        for _ in 0..3 {
            let started = task.refill().await.ok().unwrap();
            task.keep(started);
        }
        assert!(begun.elapsed() < SLOT, "their turns lapsed");
    }

    /// Each revocation compared all queues with all servers, and hashed what each of these is launched with.
    #[test]
    fn a_server_that_did_not_change_is_not_looked_at_for_a_queue() {
        let queue = |server: &Arc<Server>| ServerQueue {
            server: Arc::clone(server),
            takers: mpsc::channel(1).0,
        };
        let [kept, gone, new] = ["warm: 1", "args: [a], warm: 1", "args: [b], warm: 1"].map(server);
        let (cold, changed) = (server("args: [c]"), server("args: [a], warm: 1"));
        let queues = [&kept, &gone].map(|server| (spec(server), queue(server)));
        let mut queues = HashMap::from(queues);
        let wanted = [&kept, &new, &cold, &changed];
        let mut missing: Vec<_> = without_queue(&mut queues, wanted.into_iter())
            .into_iter()
            .map(Arc::as_ptr)
            .collect();
        let mut expected = [&new, &changed].map(Arc::as_ptr);
        missing.sort_unstable();
        expected.sort_unstable();
        assert_eq!(missing, expected);
        let left: Vec<_> = queues.into_values().map(|queue| queue.server).collect();
        assert!(left.len() == 1 && Arc::ptr_eq(&left[0], &kept));
    }

    /// Those of a restart, or with a secret that had changed, were handed out and replaced at once.
    #[tokio::test]
    async fn a_warm_child_that_is_to_be_replaced_is_handed_to_nobody() {
        let (starter, _work) = starter(4);
        let mut task = queue_task(starter, server("warm: 3"));
        for _ in 0..4 {
            let started = task.refill().await.ok().unwrap();
            task.queue.push_back(started);
        }
        task.queue[0].place.entry().drain();
        let second = Arc::clone(task.queue[1].place.entry());
        let (reply, started) = oneshot::channel();
        task.hand_over(reply);
        let first = started.await.unwrap();
        assert!(Arc::ptr_eq(first.place.entry(), &second));
        assert_eq!(task.queue.len(), 2);
        let registry = Arc::clone(&task.starter.registry);
        registry.restart("a", "x", Restart::Drain);
        let (reply, started) = oneshot::channel();
        task.hand_over(reply);
        assert!(started.await.is_err() && task.queue.is_empty());
        task.tracker.close();
        task.tracker.wait().await;
        assert_eq!(registry.list(|_| true).len(), 1, "the others are stopped");
    }

    /// Warm children that wrote to stderr without end were all read at each poll of their task.
    #[tokio::test]
    async fn the_stderr_of_warm_children_is_read_in_turns_of_their_tenant() {
        let (starter, _work) = starter(2);
        // Its only complaint is that there is no such file.
        let mut task = queue_task(starter, server("args: [/nonexistent, \"-\"], warm: 2"));
        let tenant = Budget::new(1 << 30).share();
        for _ in 0..2 {
            let mut started = task.refill().await.ok().unwrap();
            started.child.count_against(&tenant);
            task.keep(started);
        }
        let tails: Vec<_> = task
            .queue
            .iter()
            .map(|started| started.child.stderr().clone())
            .collect();
        let mut line: Vec<_> = (0..3).map(|_| Box::pin(tenant.others_first())).collect();
        for one in &mut line {
            assert!(futures_util::poll!(one).is_pending());
        }
        let mut ended = Box::pin(ended(&mut task.queue));
        let begun = Instant::now();
        for read in 1..=2 {
            let count = || tails.iter().filter(|tail| !tail.bytes().is_empty()).count();
            while count() < read {
                assert!(begun.elapsed() < Duration::from_secs(20), "it is not read");
                tokio::task::yield_now().await;
                assert!(futures_util::poll!(&mut ended).is_pending());
            }
            assert_eq!(count(), read, "one in each turn");
            assert!(tenant.is_busy(), "it has a turn");
        }
        drop(ended);
        assert!(!tenant.is_busy());
        drop(line);
        task.clear();
        task.tracker.close();
        task.tracker.wait().await;
    }

    /// It counted as a failure of the server.
    #[tokio::test]
    async fn a_warm_child_without_a_process_delays_the_next_one_alone() {
        let (starter, _work) = starter(2);
        let mut task = queue_task(starter, server("warm: 1"));
        for (is_shortage, state, pause) in [
            (true, ChildState::Starting, PAUSE),
            (false, ChildState::Stopping, Duration::ZERO),
        ] {
            task.pause = Duration::ZERO;
            let started = task.refill().await.ok().unwrap();
            task.keep(started);
            let entry = Arc::clone(task.queue[0].place.entry());
            let exit = Exit {
                code: None,
                signal: Some(12),
                is_shortage,
                stderr_tail: Vec::new(),
            };
            task.lost(0, &exit);
            assert_eq!((entry.state(), task.pause), (state, pause), "{is_shortage}");
        }
    }

    /// They went on with an old program until the next session came, which found none then.
    #[tokio::test]
    async fn warm_children_are_replaced_at_once() {
        let (starter, _work) = starter(8);
        let registry = Arc::clone(&starter.registry);
        let mut task = queue_task(starter, server("warm: 2"));
        // One that is to be replaced before it is kept.
        let started = task.refill().await.ok().unwrap();
        started.place.entry().drain();
        task.keep(started);
        assert!(task.queue.is_empty());
        for _ in 0..2 {
            let started = task.refill().await.ok().unwrap();
            task.keep(started);
        }
        let numbers = || -> Vec<u64> {
            let children = registry.list(|_| true);
            children.iter().map(|child| child.number).collect()
        };
        let old = numbers();
        let (takers, asked) = mpsc::channel(MAX_TAKERS);
        let replaced = async {
            registry.restart("a", "x", Restart::Drain);
            while numbers().len() != 2 || numbers().iter().any(|number| old.contains(number)) {
                sleep(Duration::from_millis(1)).await;
            }
            drop(takers);
        };
        let both = async { tokio::join!(task.run(asked), replaced) };
        let both = tokio::time::timeout(Duration::from_secs(20), both).await;
        assert!(both.is_ok(), "they are kept");
        task.clear();
        task.tracker.close();
        task.tracker.wait().await;
    }
}

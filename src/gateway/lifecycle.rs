//! Lifecycle: the stages of a gateway, each with its tasks, its token and its deadline.
//!
//! Not here: what runs in a stage (`wiring`).

use std::time::Duration;

use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{config::Drain, http::Health, hub::Hub};

/// When to stop.
#[derive(Clone, Default)]
pub(crate) struct Shutdown {
    /// Drain: end what can end, wait for the rest.
    pub(crate) drain: CancellationToken,
    /// End now.
    pub(crate) halt: CancellationToken,
}

/// Tasks that end together.
pub(super) struct Stage {
    /// The tasks.
    pub(super) tasks: TaskTracker,
    /// Asks them to end.
    pub(super) stop: CancellationToken,
    /// How long the end may take.
    deadline: Duration,
}

impl Stage {
    fn new(deadline: Duration) -> Self {
        Self {
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            deadline,
        }
    }

    /// Asks the tasks to end, and waits for them until the deadline.
    async fn end(&self) {
        self.stop.cancel();
        self.tasks.close();
        let _ = tokio::time::timeout(self.deadline, self.tasks.wait()).await;
    }
}

/// The stages, in the order in which they end. Each uses only what ends after it.
pub(super) struct Stages {
    /// Listeners for clients and administrators, with their connections.
    pub(super) accepting: Stage,
    /// Sessions: the stop token releases those without a call, and all after their last call.
    pub(super) sessions: Stage,
    /// Children and what is left of their sessions: tasks of `sessions` that end at once by this token.
    pub(super) children: CancellationToken,
    /// The listener for other replicas and the connections to them: needed until no session is left.
    pub(super) cluster: Stage,
    /// The connection to Redis: heartbeats, announcements.
    pub(super) state: Stage,
    /// Audit records that wait to be written.
    pub(super) audit: Stage,
    /// The connection to the database: it outlives what may still write to it.
    pub(super) database: Stage,
    /// Health and metrics, which answer until the very end.
    pub(super) operations: Stage,
}

impl Stages {
    /// Stages in which nothing runs yet; calls in flight have `drain.timeout` to end.
    pub(super) fn new(drain: &Drain) -> Self {
        Self {
            accepting: Stage::new(drain.timeout),
            sessions: Stage::new(drain.timeout),
            children: CancellationToken::new(),
            cluster: Stage::new(LAST_WORDS),
            state: Stage::new(LAST_WORDS),
            audit: Stage::new(LAST_WORDS),
            database: Stage::new(LAST_WORDS),
            operations: Stage::new(LAST_WORDS),
        }
    }

    /// Drains and ends everything, at once when `halt` says so: readiness, delay, listeners, sessions,
    /// children, and then what they used.
    pub(super) async fn end(
        self,
        (hub, health): (&Hub, &Health),
        delay: Duration,
        halt: &CancellationToken,
    ) {
        tracing::info!("draining");
        health.drain();
        hub.close().await;
        if !delay.is_zero() {
            let _ = tokio::time::timeout(delay, halt.cancelled()).await;
        }
        let drained = async { tokio::join!(self.accepting.end(), self.sessions.end()) };
        tokio::select! {
            _ = drained => {}
            () = halt.cancelled() => {}
        }
        self.children.cancel();
        let left = async { tokio::join!(self.accepting.tasks.wait(), self.sessions.tasks.wait()) };
        let _ = tokio::time::timeout(LAST, left).await;
        self.cluster.end().await;
        self.state.end().await;
        self.audit.end().await;
        self.database.end().await;
        self.operations.end().await;
    }
}

/// How long children may take beyond their own stop clocks.
const LAST: Duration = Duration::from_secs(10);

/// How long a connection may take for its last words when the time to drain is over.
pub(super) const LAST_WORDS: Duration = Duration::from_secs(1);

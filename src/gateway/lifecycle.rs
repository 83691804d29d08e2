//! Lifecycle: the stages of a gateway, each with its tasks, its token and its deadline.
//!
//! Not here: what runs in a stage (`wiring`).

use std::time::Duration;

use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    config::Drain,
    hub::Hub,
    telemetry::{Health, setup::FLUSH_TIMEOUT},
};

/// What a gateway and its process tell each other.
#[derive(Clone, Default)]
pub(crate) struct Lifecycle {
    /// The gateway serves: its listeners accept connections.
    pub(crate) serving: CancellationToken,
    /// Drain: end idle sessions, and wait for calls in flight.
    pub(crate) drain: CancellationToken,
    /// End at once.
    pub(crate) halt: CancellationToken,
}

/// Tasks that end together.
pub(super) struct Stage {
    /// The tasks.
    pub(super) tasks: TaskTracker,
    /// Tells the tasks to end.
    pub(super) stop: CancellationToken,
    /// The time that their end may take.
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

    /// Cancels the tasks, and waits for them until the deadline.
    async fn end(&self) {
        self.stop.cancel();
        self.tasks.close();
        let _ = tokio::time::timeout(self.deadline, self.tasks.wait()).await;
    }
}

/// The stages, in the order of their end. Each uses only stages that end after it.
pub(super) struct Stages {
    /// Listeners for clients and administrators, with their connections.
    pub(super) accepting: Stage,
    /// Sessions: the token releases idle sessions at once, and others after their last call.
    pub(super) sessions: Stage,
    /// The token of children. Their tasks, and those of their sessions, belong to `sessions`.
    pub(super) children: CancellationToken,
    /// The listener for other replicas and the connections to them, needed until the last session
    /// ends.
    pub(super) cluster: Stage,
    /// The connection to Redis: heartbeats, announcements.
    pub(super) state: Stage,
    /// The writer of queued audit records.
    pub(super) audit: Stage,
    /// The connection to the database, which outlives all its writers.
    pub(super) database: Stage,
    /// Health and metrics, available to the very end.
    pub(super) operations: Stage,
}

impl Stages {
    /// Stages without tasks; calls in flight have `drain.timeout` to end.
    pub(super) fn new(drain: &Drain) -> Self {
        Self {
            accepting: Stage::new(drain.timeout),
            sessions: Stage::new(drain.timeout),
            children: CancellationToken::new(),
            cluster: Stage::new(FINISH_TIMEOUT),
            state: Stage::new(FINISH_TIMEOUT),
            audit: Stage::new(AUDIT_TIMEOUT),
            database: Stage::new(FINISH_TIMEOUT),
            operations: Stage::new(FINISH_TIMEOUT),
        }
    }

    /// Drains and ends all stages, at once if `halt` is cancelled: readiness, delay, listeners,
    /// sessions, children, and then the stages that they use.
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
        let _ = tokio::time::timeout(CHILDREN_TIMEOUT, left).await;
        self.cluster.end().await;
        self.state.end().await;
        self.audit.end().await;
        self.database.end().await;
        self.operations.end().await;
    }
}

/// The longest time from the begin of a drain to the end of the gateway.
pub(crate) fn longest_end(drain: &Drain) -> Duration {
    let last = FINISH_TIMEOUT * LAST_STAGES + AUDIT_TIMEOUT + FLUSH_TIMEOUT;
    drain.delay + drain.timeout + CHILDREN_TIMEOUT + last
}

/// The stages that end one after the other behind the children, that of the audit records aside.
const LAST_STAGES: u32 = 4;

/// The time for the last audit records: their writer gives up half a second earlier, and logs how many are lost.
const AUDIT_TIMEOUT: Duration = Duration::from_secs(5);

/// The time that children may take beyond their own stop timeouts.
const CHILDREN_TIMEOUT: Duration = Duration::from_secs(10);

/// The time that a connection has for its last response after the drain timeout.
pub(super) const FINISH_TIMEOUT: Duration = Duration::from_secs(1);

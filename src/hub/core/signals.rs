//! Signals to a session: the halt and the drain of the gateway, changes of the lease, and the pulse of
//! its readers.
//!
//! They are rare, and the task of a session polls every branch of its loop at each message. Together
//! they are one future, which is polled only when it was woken: apart, each poll takes locks, some of
//! which all sessions of a gateway share.

use std::sync::Arc;

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::select;

use super::shared::Core;
use crate::{
    hub::{ownership::ReplicaLease, stream::Pulse},
    state::BoxFuture,
};

/// The signals to one session.
pub(crate) struct Signals {
    core: Arc<Core>,
    /// The lease under which the session is served.
    owner: Arc<ReplicaLease>,
    pulse: Arc<Pulse>,
    /// The next signal: always one future, which knows whether it was woken.
    next: FuturesUnordered<BoxFuture<'static, Signal>>,
}

/// A signal to a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// The gateway halts.
    Halt,
    /// The gateway drains; repeated until [`Signals::rearm`] is told so.
    Drain,
    /// The lease of this replica has changed.
    Lease,
    /// A reader of the session's streams has moved or gone.
    Readers,
}

impl Signals {
    /// The signals to a session that begins.
    pub(crate) fn new(core: &Arc<Core>, owner: &Arc<ReplicaLease>, pulse: &Arc<Pulse>) -> Self {
        let signals = Self {
            core: Arc::clone(core),
            owner: Arc::clone(owner),
            pulse: Arc::clone(pulse),
            next: FuturesUnordered::new(),
        };
        signals.rearm(false);
        signals
    }

    /// Waits for the next signal, which [`Self::rearm`] must follow. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Signal {
        // Without a future the session was not rearmed.
        self.next.next().await.unwrap_or(Signal::Halt)
    }

    /// Waits for another signal; for the drain only while the session does not drain.
    pub(crate) fn rearm(&self, is_draining: bool) {
        let (core, pulse) = (Arc::clone(&self.core), Arc::clone(&self.pulse));
        let owner = Arc::clone(&self.owner);
        let mut lease = owner.lease_status();
        self.next.push(Box::pin(async move {
            select! {
                biased;
                () = core.halt.cancelled() => Signal::Halt,
                () = core.drain.cancelled(), if !is_draining => Signal::Drain,
                () = pulse.notify.notified() => Signal::Readers,
                // The sender lives as long as the owner.
                _ = lease.changed(), if !owner.is_alone() => Signal::Lease,
            }
        }));
    }
}

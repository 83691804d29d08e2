//! Parts that all sessions of a hub share, and new session ids.

use std::sync::{Arc, RwLock};

use aws_lc_rs::rand::SecureRandom;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    command::Transport,
    sessions::Sessions,
    stores::{Patience, SessionStores},
    tool_digests::ToolDigests,
};
use crate::{
    auth::Access,
    backend::{Pool, shared::SharedChildren},
    base::hex,
    config::Config,
    declare::Catalog,
    error::Error,
    hub::{
        limits::Limits,
        ownership::{Claims, Places, ReplicaLease, Unresponsive},
    },
    protocol::EventKey,
    snapshot::{AuditQueue, CurrentSnapshot},
    state::{Directory, EventLog, LogShare, SessionId},
    telemetry::{Metrics, Traces},
};

/// The parts that all sessions of a hub share.
pub(crate) struct Core {
    /// The events of all streams.
    pub(crate) log: Arc<dyn EventLog>,
    /// The sessions of all replicas.
    pub(crate) directory: Arc<dyn Directory>,
    /// The lease of this replica.
    pub(crate) owner: Arc<ReplicaLease>,
    /// The stores of sessions that no other replica continues.
    pub(crate) local: SessionStores,
    /// The limits of an outage of the store.
    pub(crate) patience: Patience,
    /// Cache of the replicas that own sessions.
    pub(crate) places: Places,
    /// Claims under way.
    pub(crate) claims: Claims,
    /// Replicas that did not answer a request, until their next heartbeat.
    pub(crate) unresponsive: Unresponsive,
    /// The sessions that this replica owns.
    pub(crate) sessions: Sessions,
    /// The declared tenants and servers, as requests read them.
    pub(crate) snapshot: Arc<CurrentSnapshot>,
    /// The catalogue that sessions and children follow.
    pub(crate) followed: RwLock<Arc<Catalog>>,
    /// The key of event ids.
    pub(crate) key: EventKey,
    /// The source of session ids.
    pub(crate) random: Arc<dyn SecureRandom + Send + Sync>,
    /// The configuration.
    pub(crate) config: Arc<Config>,
    /// The children of single sessions.
    pub(crate) pool: Arc<Pool>,
    /// The children that sessions share.
    pub(crate) shared_children: Arc<SharedChildren>,
    /// The digests of listed tools.
    pub(crate) tools: ToolDigests,
    /// Quotas of tenants, principals and addresses.
    pub(crate) limits: Arc<Limits>,
    /// The metrics of the gateway.
    pub(crate) metrics: Arc<Metrics>,
    /// The traces of the gateway.
    pub(crate) traces: Traces,
    /// The audit trail.
    pub(crate) audit: AuditQueue,
    /// The tasks of the hub.
    pub(crate) tracker: TaskTracker,
    /// Cancelled when no session may begin any more, and sessions end with their calls.
    pub(crate) drain: CancellationToken,
    /// Cancelled when all sessions end.
    pub(crate) halt: CancellationToken,
}

impl Core {
    /// The stores of a session of this transport, and the budgets of its events.
    pub(crate) fn stores_of(
        &self,
        transport: Transport,
        access: &Access,
    ) -> (SessionStores, LogShare) {
        let memory = self.limits.memory();
        if transport == Transport::Stateless {
            return (self.local.clone(), memory.local_session(access));
        }
        let stores = SessionStores {
            log: Arc::clone(&self.log),
            directory: Arc::clone(&self.directory),
            owner: Arc::clone(&self.owner),
        };
        (stores, memory.session(access))
    }

    /// A new session id: 128 random bits in hexadecimal, which is visible ASCII (2025-11-25
    /// transports, "Session Management" 1) and reveals nothing.
    pub(crate) fn new_session_id(&self) -> Result<SessionId, Error> {
        let mut bits = [0; 16];
        self.random
            .fill(&mut bits)
            .map_err(|_| Error::Bug("no randomness"))?;
        Ok(SessionId(hex(&bits).into()))
    }
}

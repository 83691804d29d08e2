//! Parts that all sessions of a hub share.

use std::sync::{Arc, RwLock};

use aws_lc_rs::rand::SecureRandom;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{sessions::Sessions, stores::Patience, tool_digests::ToolDigests};
use crate::{
    backend::{Pool, shared::Shares},
    config::Config,
    declare::Catalog,
    error::Error,
    hub::{
        limits::Limits,
        ownership::{Claims, Owner, Places, Unresponsive},
    },
    protocol::EventKey,
    snapshot::{AuditQueue, CurrentSnapshot},
    state::{Directory, EventLog, SessionId},
    telemetry::Metrics,
};

/// The parts that all sessions share.
pub(crate) struct Core {
    /// The events of all streams.
    pub(crate) log: Arc<dyn EventLog>,
    /// The sessions of all replicas.
    pub(crate) directory: Arc<dyn Directory>,
    /// The lease of this replica.
    pub(crate) owner: Arc<Owner>,
    /// The limits of an outage of the store.
    pub(crate) patience: Patience,
    /// Cache of the replicas that own sessions.
    pub(crate) places: Places,
    /// Claims under way.
    pub(crate) claims: Claims,
    /// Replicas that let a request go without an answer.
    pub(crate) unresponsive: Unresponsive,
    /// The sessions that this replica owns.
    pub(crate) sessions: Sessions,
    /// The declared tenants and servers, as requests read them.
    pub(crate) snapshot: Arc<CurrentSnapshot>,
    /// The catalogue that sessions and children follow at present.
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
    pub(crate) shares: Arc<Shares>,
    /// The digests of listed tools.
    pub(crate) tools: ToolDigests,
    /// Quotas of tenants, principals and addresses.
    pub(crate) limits: Arc<Limits>,
    /// The metrics of the gateway.
    pub(crate) metrics: Arc<Metrics>,
    /// The audit trail.
    pub(crate) audit: AuditQueue,
    /// The tasks of the hub.
    pub(crate) tracker: TaskTracker,
    /// Cancelled when no session may begin any more and those without a call end.
    pub(crate) drain: CancellationToken,
    /// Cancelled when all sessions end.
    pub(crate) halt: CancellationToken,
}

impl Core {
    /// 128 random bits in hexadecimal: visible ASCII (2025-11-25 transports, "Session
    /// Management" 1), and nothing can be read from it.
    pub(crate) fn new_id(&self) -> Result<SessionId, Error> {
        let mut bits = [0; 16];
        self.random
            .fill(&mut bits)
            .map_err(|_| Error::Bug("no randomness"))?;
        let text: String = bits.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(SessionId(text.into()))
    }
}

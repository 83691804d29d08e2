//! The state that all routes share.

use std::sync::Arc;

use tokio::time::Instant;

use crate::http::{peers::Cluster, reply::RetryDelay};
use crate::{
    auth::Verifier,
    config::Config,
    hub::{Hub, stateless::Stateless},
    snapshot::CurrentSnapshot,
    telemetry::{Health, Metrics, Traces},
};

/// State that all routes share.
pub(crate) struct Front {
    /// Sessions and their streams.
    pub(crate) hub: Hub,
    /// Sessions that the gateway keeps for clients without sessions.
    pub(crate) stateless: Arc<Stateless>,
    /// Verifier of credentials.
    pub(crate) auth: Verifier,
    /// Current tenants and servers.
    pub(crate) snapshot: Arc<CurrentSnapshot>,
    /// Configuration of the gateway.
    pub(crate) config: Arc<Config>,
    /// Metrics.
    pub(crate) metrics: Arc<Metrics>,
    /// Traces.
    pub(crate) traces: Traces,
    /// Delay before clients reconnect.
    pub(crate) retry: RetryDelay,
    /// The cluster; `None` for a single gateway.
    pub(crate) cluster: Option<Arc<Cluster>>,
    /// Unavailable dependencies.
    pub(crate) health: Health,
    /// The begin of this process.
    pub(crate) began: Instant,
}

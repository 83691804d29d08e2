//! The state that all routes share.

use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;

use crate::http::{
    peers::Cluster,
    reply::{RetryDelay, json::SHORT},
};
use crate::{
    auth::{Access, Verifier},
    config::Config,
    hub::{Hub, stateless::Stateless, tasks::Tasks},
    oauth::Upstreams,
    snapshot::CurrentSnapshot,
    telemetry::{Health, Metrics, Traces},
};

/// State that all routes share.
pub(crate) struct Front {
    /// Sessions and their streams.
    pub(crate) hub: Hub,
    /// Sessions that the gateway keeps for clients without sessions.
    pub(crate) stateless: Arc<Stateless>,
    /// Calls of such clients that go on behind their response.
    pub(crate) tasks: Arc<Tasks>,
    /// Verifier of credentials.
    pub(crate) auth: Verifier,
    /// Current tenants and servers.
    pub(crate) snapshot: Arc<CurrentSnapshot>,
    /// Connections of people to upstreams, which administrators end.
    pub(crate) upstreams: Upstreams,
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

impl Front {
    /// Counts a long answer against the share of its caller until the client has taken it. A short one is
    /// part of what its call has drawn.
    pub(crate) fn counted(&self, access: &Access, line: Bytes) -> Bytes {
        if line.len() <= SHORT {
            return line;
        }
        let share = self.hub.limits().memory().caller(access);
        share.hold(line.len() as u64).until_dropped(line)
    }
}

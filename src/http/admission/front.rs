//! The state that all routes share.

use std::sync::Arc;

use crate::http::{peers::Cluster, reply::Retry};
use crate::{
    auth::Verifier, config::Config, hub::Hub, snapshot::CurrentSnapshot, telemetry::Metrics,
};

/// What the routes share.
pub(crate) struct Front {
    /// The core.
    pub(crate) hub: Hub,
    /// Who decides who calls.
    pub(crate) auth: Verifier,
    /// Tenants and servers, as they are right now.
    pub(crate) snapshot: Arc<CurrentSnapshot>,
    /// Settings.
    pub(crate) config: Arc<Config>,
    /// Counters.
    pub(crate) metrics: Arc<Metrics>,
    /// When clients come again whose connection is closed.
    pub(crate) retry: Retry,
    /// The other replicas; none is one gateway alone.
    pub(crate) cluster: Option<Arc<Cluster>>,
}

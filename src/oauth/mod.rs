//! The authorization server of each tenant (OAuth 2.1, DESIGN section 6).
//!
//! Not here: what tokens are worth (`auth`), and the rows (`control`).

use std::{sync::Arc, time::Duration};

use axum::Router;

use crate::{
    config::Config,
    control::{
        Tenant,
        builtin::Builtin,
        clock::Clock,
        live::Live,
        store::{Failure, Store},
        trail::Trail,
    },
    outbound::Outbound,
    telemetry::Metrics,
};

/// What every endpoint shares; clones are the same.
#[derive(Clone)]
pub(crate) struct Oauth(Arc<State>);

/// The parts.
pub(crate) struct State {
    /// Settings.
    pub(crate) config: Arc<Config>,
    /// Tenants, and the store.
    pub(crate) live: Arc<Live>,
    /// Asks what clients and providers name.
    pub(crate) outbound: Outbound,
    /// Wall time.
    pub(crate) clock: Clock,
    /// The audit trail.
    pub(crate) trail: Trail,
    /// Counters.
    pub(crate) metrics: Arc<Metrics>,
}

impl Oauth {
    /// From its parts.
    pub(crate) fn new(state: State) -> Self {
        Self(Arc::new(state))
    }

    /// Every endpoint of every issuer.
    pub(crate) fn routes(self) -> Router {
        Router::new()
    }
}

/// One tenant's authorization server, for the time of one request.
#[derive(Clone)]
pub(crate) struct Server {
    /// The tenant.
    pub(crate) tenant: Arc<Tenant>,
    /// What is declared for it.
    pub(crate) builtin: Arc<Builtin>,
    /// Its issuer.
    pub(crate) issuer: String,
}

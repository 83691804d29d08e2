//! The HTTP skin: all routes, and what stands before them.
//!
//! `accept` owns connections, `gate` what every request passes, `mcp` the part that all MCP
//! endpoints share; `legacy` and `sse_2024` are the fronts; `stream` and `reply` write.

use std::sync::Arc;

use axum::{Router, routing::get};

use crate::{config::Config, control::Catalog, hub::Hub, telemetry::Metrics};

pub(crate) mod accept;
pub(crate) mod address;
pub(crate) mod body;
pub(crate) mod cors;
pub(crate) mod gate;
mod legacy;
mod mcp;
pub(crate) mod ops;
pub(crate) mod page;
pub(crate) mod refusal;
mod reply;
mod sse_2024;
mod stream;
#[cfg(test)]
mod surface_tests;
pub(crate) mod tls;
pub(crate) mod wire;

/// What the routes share.
pub(crate) struct Front {
    /// The core.
    pub(crate) hub: Hub,
    /// Tenants and servers.
    pub(crate) catalog: Arc<Catalog>,
    /// Settings.
    pub(crate) config: Arc<Config>,
    /// Counters.
    pub(crate) metrics: Arc<Metrics>,
}

/// Every route of the public listener.
pub(crate) fn routes(front: Arc<Front>, health: ops::Health) -> Router {
    let mcp = || get(legacy::get).post(legacy::post).delete(legacy::delete);
    let sse = || get(sse_2024::connect);
    let messages = || axum::routing::post(sse_2024::post);
    Router::new()
        .route("/t/{tenant}/{server}/mcp", mcp())
        .route("/t/{tenant}/{server}/sse", sse())
        .route("/t/{tenant}/{server}/messages", messages())
        .route("/mcp", mcp())
        .route("/sse", sse())
        .route("/messages", messages())
        .with_state(front)
        .merge(ops::public(health))
}

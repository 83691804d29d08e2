//! Listeners: sockets that the caller has bound.

use std::sync::Arc;

use tokio::net::TcpListener;

/// Sockets that the caller has bound.
pub(crate) struct Listeners {
    /// For clients.
    pub(crate) http: TcpListener,
    /// For health and metrics.
    pub(crate) ops: Option<TcpListener>,
    /// For administration, where that has a listener of its own.
    pub(crate) admin: Option<TcpListener>,
    /// For other replicas, where there can be any.
    pub(crate) cluster: Option<Reached>,
}

/// The listener for other replicas.
pub(crate) struct Reached {
    /// It.
    pub(crate) listener: TcpListener,
    /// Where they reach it: `host:port`.
    pub(crate) address: Arc<str>,
}

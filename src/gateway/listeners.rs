//! Listener sockets, bound by the caller.

use std::sync::Arc;

use tokio::net::TcpListener;

/// The bound listener sockets.
pub(crate) struct Listeners {
    /// For clients.
    pub(crate) http: TcpListener,
    /// For health and metrics.
    pub(crate) ops: Option<TcpListener>,
    /// For administration, if that is separate.
    pub(crate) admin: Option<TcpListener>,
    /// For other replicas, if there may be any.
    pub(crate) cluster: Option<ClusterListener>,
}

/// The listener for other replicas.
pub(crate) struct ClusterListener {
    /// The socket.
    pub(crate) listener: TcpListener,
    /// Its address for other replicas: `host:port`.
    pub(crate) address: Arc<str>,
}

//! Requests between replicas: forwarding, the cluster listener, and relayed streams.

pub(crate) mod draining;
pub(crate) mod forward;
pub(crate) mod hop;
pub(crate) mod listener;
pub(crate) mod peers;
pub(crate) mod relay;
pub(crate) mod sse_parser;

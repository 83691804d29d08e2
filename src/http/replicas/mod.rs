//! Requests between replicas: forwarding, the cluster listener, and relayed streams.

mod draining;
pub(crate) mod forward;
pub(crate) mod hop;
pub(crate) mod listener;
mod peers;
mod relay;
mod sse_parser;

#[cfg(test)]
pub(crate) use self::hop::Asked;
pub(crate) use self::hop::{HOP, Hop, HopKeys};
pub(crate) use self::listener::Cluster;
pub(crate) use self::peers::Peers;
#[cfg(test)]
pub(crate) use self::peers::{Answer, NotSent, PLACES};

//! Logs and metrics of the gateway.

pub(crate) mod hops;
pub(crate) mod logs;
pub(crate) mod metrics;

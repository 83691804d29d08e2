//! Tests of logs, metrics, and what is built on them.

mod dashboards;
pub(crate) mod log_outputs;
mod metrics;

//! Tests of logs, metrics, traces, and what is built on them.

mod dashboards;
pub(crate) mod log_outputs;
mod metrics;
mod secrets;
mod traces;

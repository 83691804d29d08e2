//! Tests of logs and metrics.

pub(crate) mod log_outputs;
mod metrics;

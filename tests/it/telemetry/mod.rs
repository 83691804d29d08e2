//! Tests of logs.

pub(crate) mod log_outputs;

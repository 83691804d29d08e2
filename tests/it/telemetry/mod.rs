//! Logs.

pub(crate) mod log_outputs;

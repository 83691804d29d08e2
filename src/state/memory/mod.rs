//! Event log, directory and limiter in this process.

pub(crate) mod limiter;
pub(crate) mod log;

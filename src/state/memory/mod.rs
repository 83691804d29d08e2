//! Event log, directory and limiter in the memory of one replica.
//!
//! * `limiter`: limits
//! * `log`: event log and directory
//! * `streams`: what is kept of the streams of one session
//! * `uses`: values that are good once

mod limiter;
mod log;
mod streams;
mod uses;

pub(crate) use self::limiter::MemoryLimiter;
pub(crate) use self::log::{EPOCH, MemoryDirectory, MemoryLog};
pub(crate) use self::streams::{ENDED_STREAMS, ENTRY, PAGE, Retention, SessionStreams};

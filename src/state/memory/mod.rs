//! Event log, directory and limiter in the memory of one replica.
//!
//! * `limiter`: limits
//! * `log`: event log, with what is trimmed of a stream, and directory

mod limiter;
mod log;

pub(crate) use self::limiter::MemoryLimiter;
pub(crate) use self::log::{
    ENDED_STREAMS, EPOCH, MemoryDirectory, MemoryLog, PAGE, Retention, SessionStreams,
};

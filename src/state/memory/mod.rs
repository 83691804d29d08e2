//! Event log, directory and limiter in this process.

mod limiter;
mod log;

pub(crate) use self::limiter::MemoryLimiter;
pub(crate) use self::log::{
    ENDED_STREAMS, EPOCH, MemoryDirectory, MemoryLog, OfSession, PAGE, Retention,
};

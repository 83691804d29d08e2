//! Event log, directory and limiter in Redis, shared by replicas.

pub(crate) mod agreement;
mod appender;
mod cache;
mod directory;
mod limiter;
mod link;
mod log;
mod scripts;
pub(crate) mod wake;

pub(crate) use self::directory::RedisDirectory;
pub(crate) use self::limiter::RedisLimiter;
pub(crate) use self::log::RedisLog;
pub(crate) use self::scripts::{Redis, Settings, Unsuitable};

//! Event log, directory and limiter in Redis, shared by replicas.

pub(crate) mod agreement;
mod appender;
mod cache;
mod client;
mod directory;
mod limiter;
mod link;
mod log;
mod scripts;
pub(crate) mod wake;

pub(crate) use self::client::{Redis, Settings};
pub(crate) use self::directory::RedisDirectory;
pub(crate) use self::limiter::RedisLimiter;
pub(crate) use self::link::Unsuitable;
pub(crate) use self::log::RedisLog;

//! Event log, directory and limiter in Redis, shared by replicas.
//!
//! * `agreement`: agreement of replicas on keys and public URL
//! * `appender`: the queue of event writes
//! * `cache`: the events of this process, by which streams are trimmed
//! * `client`: script calls and batches
//! * `directory`: the session directory, and heartbeats of replicas with their time to live
//! * `limiter`: limits
//! * `link`: the connection, which is made again when it is lost
//! * `log`: the event log
//! * `scripts`: the Lua scripts
//! * `wake`: change announcements by pub/sub

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

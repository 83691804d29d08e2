//! Event log, directory and limiter in Redis, shared by replicas.

pub(crate) mod agreement;
pub(crate) mod appender;
pub(crate) mod cache;
pub(crate) mod directory;
pub(crate) mod limiter;
pub(crate) mod link;
pub(crate) mod log;
pub(crate) mod scripts;
pub(crate) mod wake;

//! Streams of a session: routing, writing and reading events.

pub(crate) mod attach;
pub(crate) mod entry;
pub(crate) mod log_only;
pub(crate) mod pages;
pub(crate) mod reading;
pub(crate) mod routes;
pub(crate) mod table;
pub(crate) mod writing;

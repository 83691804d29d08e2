//! Streams of a session: routing, writing and reading events.

mod attach;
mod entry;
mod log_only;
mod pages;
mod reading;
pub(crate) mod routes;
mod table;
mod writing;

pub(crate) use self::entry::Bounds;
pub(crate) use self::log_only::Unowned;
pub(crate) use self::reading::{Next, Pulse, Reading, StreamEnd};
pub(crate) use self::routes::{About, InFlight};
pub(crate) use self::table::Streams;

//! The core: finds a session, delivers messages to it, reads its streams.

pub(crate) mod answer;
mod changes;
pub(crate) mod core;
pub(crate) mod limits;
pub(crate) mod listing;
pub(crate) mod ownership;
pub(crate) mod session;
pub(crate) mod stores;
pub(crate) mod stream;
#[cfg(test)]
mod tests;
mod tools;

//! The core: finds a session, delivers messages to it, reads its streams.

pub(crate) mod answer;
mod changes;
pub(crate) mod core;
pub(crate) mod limits;
mod listing;
pub(crate) mod ownership;
pub(crate) mod session;
pub(crate) mod stores;
pub(crate) mod stream;
#[cfg(test)]
mod tests;
mod tools;

pub(crate) use self::answer::{Answer, Form};
pub(crate) use self::core::{COMMANDS, Core, Handle, Hub};
pub(crate) use self::listing::SeenSession;
#[cfg(test)]
pub(crate) use self::stores::Patience;
pub(crate) use self::stores::Stores;

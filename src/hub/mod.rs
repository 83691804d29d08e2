//! Hub: the sessions of this replica, from the message of a client to the backend and back.
//!
//! The hub knows MCP and sessions, not HTTP. Rooms from the bottom up: `limits` and `ownership`,
//! `stream`, `core` (shared parts), `call`, `session`, and the files of the hub itself on top.
//!
//! * `changes`: changes of the catalogue, followed by sessions and children
//! * `listing`: list of sessions for administrators, and the end of one
//! * `requests`: requests of clients to sessions of this replica
//! * `locate`: look-up of the replica that serves a session
//! * `takeover`: takeover of a session whose owner is gone
//! * `closing`: closing of this replica, and its successors
//! * `reclaim`: children that one caller or tenant gives up for another one

mod call;
mod changes;
mod closing;
mod core;
pub(crate) mod limits;
mod listing;
mod locate;
pub(crate) mod ownership;
mod reclaim;
mod requests;
pub(crate) mod session;
pub(crate) mod stateless;
pub(crate) mod stream;
mod takeover;
pub(crate) mod tasks;
#[cfg(test)]
mod tests;

pub(crate) use self::call::CallError;
#[cfg(test)]
pub(crate) use self::core::{Patience, retention};
pub(crate) use self::core::{Stores, Transport};
pub(crate) use self::listing::SessionSummary;
pub(crate) use self::requests::{Hub, HubParts};
pub(crate) use self::session::MAX_SUBSCRIPTIONS;
pub(crate) use self::stream::{Answer, Form};

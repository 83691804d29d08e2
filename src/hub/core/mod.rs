//! Core of the hub: the parts that its sessions share.
//!
//! This room imports neither sessions nor requests of clients; both import it. Not here: the way
//! of a request to a session (`hub::requests`) and its handling there (`hub::session`).
//!
//! * `access`: lookup of a session by an access, and changes of the access since
//! * `command`: commands to the task of a session
//! * `secrets`: secrets of children, from the database
//! * `sessions`: table of the sessions that this replica owns
//! * `shared`: shared parts, and new session ids
//! * `signals`: signals to a session
//! * `stores`: event log, directory, limiter and lease, in memory or in Redis
//! * `tool_digests`: digests of listed tools, to detect changed descriptions

mod access;
mod command;
mod secrets;
mod sessions;
mod shared;
mod signals;
mod stores;
mod tool_digests;

pub(crate) use self::access::{AccessChange, owner_of};
pub(crate) use self::command::{
    Attach, AttachAt, COMMANDS, ChildUse, Command, Delivery, Transport, check_initialize,
};
pub(crate) use self::secrets::secret_source;
pub(crate) use self::sessions::{Handle, Sessions};
pub(crate) use self::shared::Core;
pub(crate) use self::signals::{Signal, Signals};
#[cfg(test)]
pub(crate) use self::stores::{Patience, retention};
pub(crate) use self::stores::{SessionStores, Stores, or_never, sweep};
pub(crate) use self::tool_digests::ToolDigests;

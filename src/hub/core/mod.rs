//! Core of the hub: the parts that its sessions share.
//!
//! Sessions and requests of clients import this room; it knows neither. Not here: how requests
//! reach a session (`hub::requests`) and how a session handles them (`hub::session`).
//!
//! * `access`: lookup of a session by an access, and accesses that changed meanwhile
//! * `command`: commands to the task of a session
//! * `sessions`: table of the sessions that this replica owns
//! * `shared`: the parts themselves
//! * `stores`: event log, directory, limiter and lease, in memory or in Redis
//! * `tool_digests`: digests of listed tools, to notice changed descriptions

mod access;
mod command;
mod sessions;
mod shared;
mod stores;
mod tool_digests;

pub(crate) use self::access::Changed;
pub(crate) use self::command::{COMMANDS, Command, Delivery, Transport, check_initialize};
pub(crate) use self::sessions::{Handle, Sessions};
pub(crate) use self::shared::Core;
#[cfg(test)]
pub(crate) use self::stores::{Patience, retention};
pub(crate) use self::stores::{Stores, or_never};
pub(crate) use self::tool_digests::ToolDigests;

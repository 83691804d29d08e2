//! Facts of MCP and JSON-RPC: pure functions over bytes, no IO.
//!
//! Only the envelope is parsed, and of `params` and `result` only the members that the
//! gateway acts on. There is deliberately no typed model of MCP: a new kind of content
//! passes without a release.

pub(crate) mod event;
pub(crate) mod headers;
pub(crate) mod initialize;
pub(crate) mod json;
pub(crate) mod jsonrpc;
mod message;
mod meta;
mod method;
mod params;
mod refusal;
pub(crate) mod revision;

pub(crate) use self::event::{Cursor, EventKey, KEEP_ALIVE, LISTENER, StreamId};
pub(crate) use self::headers::{Accepts, LAST_EVENT_ID, SESSION_ID, Version};
pub(crate) use self::json::{Fault, Scanner, Span};
pub(crate) use self::message::{Body, Kind, Message};
pub(crate) use self::method::Method;
pub(crate) use self::refusal::Refusal;
pub(crate) use self::revision::Revision;

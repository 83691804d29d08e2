//! MCP and JSON-RPC messages: pure functions over bytes, without IO.
//!
//! Only the envelope is parsed, and of `params` and `result` only the members that the
//! gateway acts on. There is deliberately no typed model of MCP: a new kind of content
//! passes without a release. Not here: sessions (`hub`) and HTTP (`http`).
//!
//! * `capabilities`: capabilities of clients, as far as they decide what a server may ask
//! * `event`: event ids (`Last-Event-ID`), sealed page cursors, and the framing of Server-Sent Events
//! * `headers`: names and values of the header fields of MCP requests
//! * `initialize`: results of `initialize`, and the lines that restore a session
//! * `json`: strict scanner over JSON text
//! * `jsonrpc`: writers of requests, notifications, results and errors
//! * `message`: JSON-RPC messages and bodies of requests
//! * `meta`: keys of `_meta`
//! * `method`: methods that the gateway treats specially
//! * `modern`: messages of the modern era (2026-07-28)
//! * `params`: members of `params` that the gateway acts on
//! * `refusal`: reasons to refuse a message
//! * `revision`: protocol revisions
//! * `trace`: trace context in `_meta`

mod capabilities;
pub(crate) mod event;
pub(crate) mod headers;
pub(crate) mod initialize;
pub(crate) mod json;
pub(crate) mod jsonrpc;
mod message;
pub(crate) mod meta;
mod method;
pub(crate) mod modern;
mod params;
mod refusal;
pub(crate) mod revision;
mod trace;

pub(crate) use self::capabilities::{ClientCapabilities, Lacking};
pub(crate) use self::event::{Cursor, EventKey, KEEP_ALIVE, LISTENER_STREAM, StreamId};
pub(crate) use self::headers::{Accepts, LAST_EVENT_ID, SESSION_ID, Version};
pub(crate) use self::json::{Scanner, Span, SyntaxError};
pub(crate) use self::message::{Body, Kind, Message, end_no_line, has_line_end};
pub(crate) use self::method::Method;
pub(crate) use self::params::{LOG_LEVELS, LogLevel, is_subscribed, log_level};
pub(crate) use self::refusal::{Refusal, Rejected};
pub(crate) use self::revision::Revision;
pub(crate) use self::trace::Trace;

//! Facts of MCP and JSON-RPC: pure functions over bytes, no IO.
//!
//! Only the envelope is parsed, and of `params` and `result` only the members that the
//! gateway acts on. There is deliberately no typed model of MCP: a new kind of content
//! passes without a release.

pub(crate) mod event;
pub(crate) mod headers;
pub(crate) mod initialize;
pub(crate) mod json;
pub(crate) mod message;
pub(crate) mod meta;
pub(crate) mod method;
pub(crate) mod params;
pub(crate) mod revision;

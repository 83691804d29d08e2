//! Responses: errors in the form of each surface, JSON, event streams, and the connect page.
//!
//! Not here: the decision to refuse.
//!
//! * `failure`: errors of MCP endpoints as a status and a JSON-RPC error
//! * `problem`: errors of the administration API
//! * `refusal`: errors of requests that never reach a route
//! * `json`: JSON responses
//! * `event_stream`: streams as `text/event-stream`
//! * `page`: the page for a browser that opens an MCP URL
//! * `rate_limit`: `RateLimit` fields
//! * `header_name`: names of header fields

pub(crate) mod event_stream;
mod failure;
pub(crate) mod header_name;
pub(crate) mod json;
pub(crate) mod page;
mod problem;
pub(crate) mod rate_limit;
pub(crate) mod refusal;

pub(crate) use self::event_stream::{Retry, Writing};
pub(crate) use self::failure::Failure;
pub(crate) use self::json::answer;
pub(crate) use self::problem::{PROBLEM, Problem};

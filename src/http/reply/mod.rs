//! Responses: refusals in the form of each surface, JSON, event streams, and the connect page.
//!
//! Not here: the decision to refuse.
//!
//! * `mcp_refusal`: refusals of MCP endpoints, a status with a JSON-RPC error
//! * `problem`: refusals of the administration API
//! * `refusal`: refusals of the gates in front of all routes
//! * `json`: JSON responses
//! * `event_stream`: streams as `text/event-stream`
//! * `page`: the connect page, for a browser that opens an MCP URL
//! * `rate_limit`: `RateLimit` header fields
//! * `header_name`: names of header fields

pub(crate) mod event_stream;
pub(crate) mod header_name;
pub(crate) mod json;
mod mcp_refusal;
pub(crate) mod page;
mod problem;
pub(crate) mod rate_limit;
pub(crate) mod refusal;

pub(crate) use self::event_stream::{Pace, Part, RetryDelay, Source, StreamOptions};
pub(crate) use self::json::answer;
pub(crate) use self::mcp_refusal::McpRefusal;
pub(crate) use self::problem::{PROBLEM, Problem};

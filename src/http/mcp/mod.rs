//! MCP endpoints, one file for each transport.
//!
//! Not here: sessions (`hub`), admission (`admission`), forwarding (`replicas`).
//!
//! * `modern`: Streamable HTTP of 2026-07-28
//! * `modern_answer`: its complete responses
//! * `modern_request`: check of its requests
//! * `modern_stream`: its event streams
//! * `modern_tasks`: its requests about tasks
//! * `streamable_http`: Streamable HTTP of 2025-03-26 to 2025-11-25
//! * `slow_start`: response to an `initialize` whose server takes its time
//! * `sse_2024`: HTTP+SSE of 2024-11-05
//! * `wellknown`: protected resource metadata

mod modern;
mod modern_answer;
mod modern_request;
mod modern_stream;
mod modern_tasks;
mod slow_start;
pub(crate) mod sse_2024;
pub(crate) mod streamable_http;
pub(crate) mod wellknown;

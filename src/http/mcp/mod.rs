//! MCP endpoints, one file for each transport.
//!
//! Not here: sessions (`hub`), admission (`admission`), forwarding (`replicas`).
//!
//! * `streamable_http`: Streamable HTTP since 2025-03-26
//! * `sse_2024`: HTTP+SSE of 2024-11-05
//! * `wellknown`: protected resource metadata

pub(crate) mod sse_2024;
pub(crate) mod streamable_http;
pub(crate) mod wellknown;

//! MCP endpoints: Streamable HTTP, HTTP+SSE, and protected resource metadata.

pub(crate) mod bearer;
mod challenge;
pub(crate) mod endpoint;
pub(crate) mod page;
pub(crate) mod reply;
pub(crate) mod sse_2024;
pub(crate) mod stream;
pub(crate) mod streamable_http;
pub(crate) mod wellknown;

pub(crate) use self::endpoint::Admitted;
pub(crate) use self::reply::Failure;
pub(crate) use self::stream::{Retry, Writing};

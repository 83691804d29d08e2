//! The answer to a request that never reaches a route.
//!
//! Errors of MCP and JSON-RPC are not made here: `reply.rs` makes them.

use axum::body::Body;
use axum::response::Response;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, StatusCode};

/// A status with one fixed sentence; fixed, so that nothing of ours or of another leaks into it.
pub(crate) fn refusal(status: StatusCode, message: &'static str) -> Response {
    let body = format!("{{\"error\":{{\"message\":\"{message}\"}}}}\n");
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

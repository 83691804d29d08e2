//! JSON responses that no cache may store.

use axum::{body::Body, response::Response};
use http::{
    HeaderValue, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS},
};

/// Makes a JSON response from serialized JSON.
pub(crate) fn text(status: StatusCode, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Makes a JSON response from a value.
pub(crate) fn answer(status: StatusCode, body: &serde_json::Value) -> Response {
    text(status, body.to_string())
}

/// Longest answer to a call that does not count for its caller.
pub(crate) const SHORT: usize = 4 << 10;
/// Media type of JSON.
pub(crate) const JSON: &str = "application/json";

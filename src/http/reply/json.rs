//! JSON responses, which no cache may keep.

use axum::{body::Body, response::Response};
use http::{
    HeaderValue, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE},
};

/// A response of the type `application/json`; `body` is JSON already.
pub(crate) fn text(status: StatusCode, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// A response with `body` in its JSON text.
pub(crate) fn answer(status: StatusCode, body: &serde_json::Value) -> Response {
    text(status, body.to_string())
}

//! Calls of routes, whose panics end one request only.

use std::any::Any;
use std::panic::AssertUnwindSafe;

use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use futures_util::FutureExt;
use http::header::RETRY_AFTER;
use http::{HeaderValue, StatusCode};
use tower::Service;

use crate::http::reply::refusal::refusal;

/// Passes a request to its route and turns a panic into a response.
pub(super) async fn route(routes: Router, request: Request) -> Response {
    let response = AssertUnwindSafe(call(routes, request));
    response.catch_unwind().await.unwrap_or_else(panic_response)
}

/// Passes a request to its route.
pub(super) async fn call(mut routes: Router, request: Request) -> Response {
    let response = routes.call(request).await;
    response.unwrap_or_else(|never| match never {})
}

/// Makes the response after a panic. It is a 503, because the gateway promises never to send a 500.
#[expect(
    clippy::needless_pass_by_value,
    reason = "the signature is tower-http's"
)]
pub(super) fn panic_response(panic: Box<dyn Any + Send + 'static>) -> Response {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no text");
    tracing::error!(panic = text, "a route panicked");
    let mut response = refusal(StatusCode::SERVICE_UNAVAILABLE, "internal error");
    response
        .headers_mut()
        .insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

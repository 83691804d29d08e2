//! Calls a route; a panic there costs its request and nothing else.

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

/// Hands a request to its route; a panic there costs this request and nothing else.
pub(super) async fn route(routes: Router, request: Request) -> Response {
    let answer = AssertUnwindSafe(called(routes, request));
    answer.catch_unwind().await.unwrap_or_else(panicked)
}

/// Hands a request to its route.
pub(super) async fn called(mut routes: Router, request: Request) -> Response {
    let answer = routes.call(request).await;
    answer.unwrap_or_else(|never| match never {})
}

/// A panic is our fault and passes; 503 says so, and no 500 is ever a correct answer (C18).
#[expect(
    clippy::needless_pass_by_value,
    reason = "the signature is tower-http's"
)]
pub(super) fn panicked(panic: Box<dyn Any + Send + 'static>) -> Response {
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

//! Refusals of requests that never reach a route.
//!
//! Not here: errors of MCP endpoints (`mcp_refusal`).

use axum::response::{IntoResponse, Response};
use http::{StatusCode, header::CONTENT_LENGTH};

use super::{json, problem::Problem};

/// Makes a refusal with one sentence, a constant so that no internal detail leaks into it.
pub(crate) fn refusal(status: StatusCode, message: &'static str) -> Response {
    let body = format!("{{\"error\":{{\"message\":\"{message}\"}}}}\n");
    let mut response = json::text(status, body);
    response.extensions_mut().insert(RefusalText(message));
    response
}

/// Converts a refusal into the form of the surface that `path` belongs to: all errors of the
/// administration API are problem details (RFC 9457).
pub(crate) fn in_form_of(path: &str, refused: Response) -> Response {
    let text = refused.extensions().get::<RefusalText>();
    let Some(RefusalText(text)) = text.filter(|_| path.starts_with("/api/")) else {
        return refused;
    };
    let mut response = Problem::new(refused.status(), *text).into_response();
    let headers = response.headers_mut();
    for (name, value) in refused.headers() {
        // The old length does not fit the new body.
        if name != CONTENT_LENGTH && !headers.contains_key(name) {
            headers.append(name, value.clone());
        }
    }
    response
}

/// Text of a refusal, kept with the response for its conversion into another form.
#[derive(Clone, Copy)]
struct RefusalText(&'static str);

//! The answer to a request that never reaches a route.
//!
//! Errors of MCP and JSON-RPC are not made here: `reply.rs` makes them.

use axum::response::{IntoResponse, Response};
use http::{StatusCode, header::CONTENT_LENGTH};

use super::{json, problem::Problem};

/// A status with one fixed sentence; fixed, so that nothing of ours or of another leaks into it.
pub(crate) fn refusal(status: StatusCode, message: &'static str) -> Response {
    let body = format!("{{\"error\":{{\"message\":\"{message}\"}}}}\n");
    let mut response = json::text(status, body);
    response.extensions_mut().insert(Sentence(message));
    response
}

/// A refusal in the words of the surface that `path` belongs to: the administration API knows one
/// form of errors (RFC 9457), whoever makes them.
pub(crate) fn in_form_of(path: &str, refused: Response) -> Response {
    let sentence = refused.extensions().get::<Sentence>();
    let Some(Sentence(sentence)) = sentence.filter(|_| path.starts_with("/api/")) else {
        return refused;
    };
    let mut response = Problem::new(refused.status(), *sentence).into_response();
    let headers = response.headers_mut();
    for (name, value) in refused.headers() {
        // The length is of the text that gives way.
        if name != CONTENT_LENGTH && !headers.contains_key(name) {
            headers.append(name, value.clone());
        }
    }
    response
}

/// What a refusal says, for whoever says it in another form.
#[derive(Clone, Copy)]
struct Sentence(&'static str);

//! Refusals of requests that never reach a route.
//!
//! Not here: errors of MCP endpoints (`mcp_refusal`).

use axum::response::{IntoResponse, Response};
use http::{StatusCode, header::CONTENT_LENGTH};

use super::{json, mcp_refusal::McpRefusal, problem::Problem};
use crate::endpoint::Kind;

/// Makes a refusal with one sentence, a constant so that no internal detail leaks into it.
pub(crate) fn refusal(status: StatusCode, message: &'static str) -> Response {
    let code = match status {
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => -31004,
        _ => -32600,
    };
    coded(status, code, message)
}

/// Makes the refusal of a request for which the gateway has a bug.
pub(crate) fn of_bug() -> Response {
    coded(StatusCode::SERVICE_UNAVAILABLE, -32603, "internal error")
}

fn coded(status: StatusCode, code: i32, message: &'static str) -> Response {
    let body = format!("{{\"error\":{{\"message\":\"{message}\"}}}}\n");
    let mut response = json::text(status, body);
    response.extensions_mut().insert(Refused { code, message });
    response
}

/// Converts a refusal into the form of the surface that `path` belongs to: all errors of the
/// administration API are problem details (RFC 9457), and those of MCP endpoints JSON-RPC errors without an id.
pub(crate) fn in_form_of(path: &str, refused: Response) -> Response {
    let Some(Refused { code, message }) = refused.extensions().get::<Refused>().copied() else {
        return refused;
    };
    let status = refused.status();
    let mut response = if path.starts_with("/api/") {
        Problem::new(status, message).into_response()
    } else if Kind::served(path).is_some() {
        McpRefusal::coded(status, code, message).into_response()
    } else {
        return refused;
    };
    let headers = response.headers_mut();
    for (name, value) in refused.headers() {
        // The old length does not fit the new body.
        if name != CONTENT_LENGTH && !headers.contains_key(name) {
            headers.append(name, value.clone());
        }
    }
    response
}

/// What a refusal says, kept with the response for its conversion into another form.
#[derive(Clone, Copy)]
struct Refused {
    /// The code of JSON-RPC.
    code: i32,
    message: &'static str,
}

#[cfg(test)]
mod tests {
    use http::{HeaderValue, header::ALLOW};
    use http_body_util::BodyExt;

    use super::super::refusal::*;

    /// Those of the gate had a body that no client of MCP reads.
    #[tokio::test]
    async fn refusals_of_an_mcp_endpoint_are_errors_of_json_rpc() {
        let of_mcp = |code: i32, text: &str| {
            format!(r#"{{"jsonrpc":"2.0","id":null,"error":{{"code":{code},"message":"{text}"}}}}"#)
        };
        let plain = "{\"error\":{\"message\":\"m\"}}\n".to_owned();
        let refused = |status| refusal(status, "m");
        for (path, refused, expected) in [
            ("/mcp", refused(StatusCode::FORBIDDEN), of_mcp(-32600, "m")),
            (
                "/t/a/b/messages",
                refused(StatusCode::PAYLOAD_TOO_LARGE),
                of_mcp(-32600, "m"),
            ),
            (
                "/t/a/b/sse",
                refused(StatusCode::SERVICE_UNAVAILABLE),
                of_mcp(-31004, "m"),
            ),
            ("/mcp", of_bug(), of_mcp(-32603, "internal error")),
            ("/mcp/", refused(StatusCode::FORBIDDEN), plain.clone()),
            ("/livez", refused(StatusCode::FORBIDDEN), plain),
        ] {
            let mut refused = refused;
            let allow = HeaderValue::from_static("GET");
            refused.headers_mut().insert(ALLOW, allow);
            let status = refused.status();
            let response = in_form_of(path, refused);
            assert_eq!(response.status(), status, "{path}");
            assert_eq!(response.headers()[ALLOW], "GET", "{path}");
            let body = response.into_body().collect().await.unwrap().to_bytes();
            assert_eq!(body, expected, "{path}");
        }
    }
}

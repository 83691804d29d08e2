//! What a page of an allowed origin may ask and read.
//!
//! Whether the origin is allowed was decided before: `address.rs`.

use axum::body::Body;
use axum::response::Response;
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, VARY,
};
use http::{HeaderMap, HeaderValue, Method, StatusCode};

use crate::endpoint::{OauthEndpoint, is_well_known};

/// Whether this is a browser's question before a request, and not a request.
pub(crate) fn is_preflight(method: &Method, headers: &HeaderMap) -> bool {
    method == Method::OPTIONS && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

/// The answer to it; the origin itself is added by [`mark`], as to every response.
pub(crate) fn preflight(headers: &HeaderMap) -> Response {
    let mut allowed = String::from(HEADERS);
    // SEP-2243 lets a server name headers of its own: they cannot be listed beforehand.
    headers
        .get_all(ACCESS_CONTROL_REQUEST_HEADERS)
        .iter()
        .flat_map(|line| line.to_str().unwrap_or("").split(','))
        .map(|name| name.trim().to_ascii_lowercase())
        .filter(|name| name.starts_with("mcp-param-") && name.bytes().all(is_token))
        .take(PARAMS_MAX)
        .for_each(|name| {
            allowed.push_str(", ");
            allowed.push_str(&name);
        });
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let answer = response.headers_mut();
    answer.insert(
        ACCESS_CONTROL_ALLOW_METHODS,
        HeaderValue::from_static("GET, POST, DELETE"),
    );
    // Tokens and commas only, so the value is always well-formed.
    if let Ok(allowed) = HeaderValue::try_from(allowed) {
        answer.insert(ACCESS_CONTROL_ALLOW_HEADERS, allowed);
    }
    answer.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("7200"));
    answer.append(
        VARY,
        HeaderValue::from_static("Access-Control-Request-Headers"),
    );
    response
}

/// Lets the page of `origin` read the response; says to caches that others may not.
pub(crate) fn mark(headers: &mut HeaderMap, origin: Option<HeaderValue>) {
    headers.append(VARY, HeaderValue::from_static("Origin"));
    if let Some(origin) = origin {
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(
            ACCESS_CONTROL_EXPOSE_HEADERS,
            HeaderValue::from_static("Mcp-Session-Id, WWW-Authenticate"),
        );
    }
}

/// Whether pages of every origin may read what is at a path (CONTRACT P89): documents, and what a
/// client that is a page asks an authorization server; never what a person sees.
pub(crate) fn is_public(path: &str) -> bool {
    is_well_known(path)
        || matches!(
            OauthEndpoint::parse(path),
            Some(
                OauthEndpoint::Jwks
                    | OauthEndpoint::Register
                    | OauthEndpoint::Registration(_)
                    | OauthEndpoint::Revoke
                    | OauthEndpoint::Token
            )
        )
}

/// Lets every page read the response, without credentials.
pub(crate) fn mark_public(headers: &mut HeaderMap) {
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    headers.insert(
        ACCESS_CONTROL_EXPOSE_HEADERS,
        HeaderValue::from_static("WWW-Authenticate, Retry-After"),
    );
    if headers.contains_key(ACCESS_CONTROL_ALLOW_METHODS) {
        // Registrations are replaced too (RFC 7592, section 2.2).
        let methods = HeaderValue::from_static("GET, POST, PUT, DELETE");
        headers.insert(ACCESS_CONTROL_ALLOW_METHODS, methods);
    }
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// What MCP clients send.
const HEADERS: &str = "content-type, accept, authorization, mcp-session-id, \
mcp-protocol-version, last-event-id, mcp-method, mcp-name";
/// A tool has few parameters; a list without end would be an amplifier.
const PARAMS_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use super::super::cors::*;

    #[test]
    fn what_every_page_may_read() {
        for path in [
            "/.well-known/oauth-authorization-server",
            "/.well-known/oauth-authorization-server/t/a",
            "/.well-known/oauth-protected-resource/t/a/x/mcp",
            "/t/a/.well-known/openid-configuration",
            "/t/a/oauth/jwks",
            "/t/a/oauth/token",
            "/t/a/oauth/register",
            "/t/a/oauth/register/c_x",
            "/t/a/oauth/revoke",
            "/token",
            "/register",
        ] {
            assert!(is_public(path), "{path}");
        }
        for path in [
            "/authorize",
            "/t/a/oauth/authorize",
            "/t/a/oauth/login",
            "/t/a/oauth/consent",
            "/t/a/oauth/callback/x",
            "/t/a/x/mcp",
            "/t/a/oauth/mcp",
            "/t/a/b/oauth/token",
            "/mcp",
            "/api/v1/tenants",
            "/t/a/oauth/tokens",
        ] {
            assert!(!is_public(path), "{path}");
        }
    }
}

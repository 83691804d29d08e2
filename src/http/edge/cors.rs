//! Cross-origin requests: preflights and response header fields.
//!
//! Not here: the check of the origin (`address`).

use std::collections::HashSet;

use axum::body::Body;
use axum::response::Response;
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, VARY,
};
use http::{HeaderMap, HeaderValue, Method, StatusCode};

use crate::endpoint::{OauthEndpoint, is_well_known};
use crate::protocol::{
    LAST_EVENT_ID, SESSION_ID,
    headers::{ARGUMENT_PREFIX, MAX_ARGUMENTS, PROTOCOL_VERSION},
};

/// Returns whether a request is a CORS preflight.
pub(crate) fn is_preflight(method: &Method, headers: &HeaderMap) -> bool {
    method == Method::OPTIONS && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

/// Answers a preflight. [`allow_origin`] adds the origin, as to every response.
pub(crate) fn preflight(headers: &HeaderMap) -> Response {
    let mut allowed = REQUEST_HEADERS.join(", ");
    let mut known = HashSet::new();
    // SEP-2243 lets a server name its own header fields, which cannot be listed in advance.
    headers
        .get_all(ACCESS_CONTROL_REQUEST_HEADERS)
        .iter()
        .flat_map(|line| line.to_str().unwrap_or("").split(','))
        .map(str::trim)
        // Over HTTP/2 a byte may stand for a name of kilobytes, and the answer repeats it.
        .filter(|name| name.len() <= NAME_MAX)
        .map(str::to_ascii_lowercase)
        .filter(|name| name.starts_with(ARGUMENT_PREFIX) && name.bytes().all(is_token))
        .filter(|name| known.insert(name.clone()))
        // As many as a tool may have, so that preflights are no amplifier.
        .take(MAX_ARGUMENTS)
        .for_each(|name| {
            if allowed.len() + name.len() + 2 > ALLOWED_MAX {
                return;
            }
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
    // The value consists of tokens and commas, so it is always well-formed.
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

/// Lets pages of `origin` read the response, and keeps caches from serving it to other origins.
pub(crate) fn allow_origin(headers: &mut HeaderMap, origin: Option<HeaderValue>) {
    headers.append(VARY, HeaderValue::from_static("Origin"));
    if let Some(origin) = origin {
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(
            ACCESS_CONTROL_EXPOSE_HEADERS,
            HeaderValue::from_static(
                "Mcp-Session-Id, WWW-Authenticate, Retry-After, RateLimit, RateLimit-Policy",
            ),
        );
    }
}

/// Returns whether pages of every origin may read a path: metadata documents and the OAuth endpoints
/// that browser-based clients call, but no page for people.
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

/// Lets pages of every origin read the response, without credentials.
pub(crate) fn allow_any_origin(headers: &mut HeaderMap) {
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    headers.insert(
        ACCESS_CONTROL_EXPOSE_HEADERS,
        HeaderValue::from_static("WWW-Authenticate, Retry-After, RateLimit, RateLimit-Policy"),
    );
    if headers.contains_key(ACCESS_CONTROL_ALLOW_METHODS) {
        // PUT replaces a registration (RFC 7592, section 2.2).
        let methods = HeaderValue::from_static("GET, POST, PUT, DELETE");
        headers.insert(ACCESS_CONTROL_ALLOW_METHODS, methods);
    }
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Longest name of a header field of a server that an answer to a preflight allows.
const NAME_MAX: usize = 128;
/// Longest list of names that it allows: as many as a tool may have, of usual length.
const ALLOWED_MAX: usize = 4 << 10;
/// Header fields that MCP clients send.
const REQUEST_HEADERS: [&str; 9] = [
    "content-type",
    "accept",
    "authorization",
    "dpop",
    SESSION_ID,
    PROTOCOL_VERSION,
    LAST_EVENT_ID,
    "mcp-method",
    "mcp-name",
];

#[cfg(test)]
mod tests {
    use super::super::cors::*;

    #[test]
    fn a_preflight_allows_every_argument_that_a_tool_may_mirror() {
        let names = (0..=MAX_ARGUMENTS).map(|number| format!("Mcp-Param-A{number}"));
        let names: Vec<String> = names.collect();
        let mut headers = HeaderMap::new();
        let asked = HeaderValue::try_from(names.join(", ")).unwrap();
        headers.insert(ACCESS_CONTROL_REQUEST_HEADERS, asked);
        let response = preflight(&headers);
        let allowed = &response.headers()[ACCESS_CONTROL_ALLOW_HEADERS];
        let allowed: Vec<&str> = allowed.to_str().unwrap().split(", ").collect();
        for (at, name) in names.iter().enumerate() {
            let is_allowed = allowed.contains(&&*name.to_ascii_lowercase());
            assert_eq!(is_allowed, at < MAX_ARGUMENTS, "{name}");
        }
    }

    /// A byte over HTTP/2 named a field of 4,000 bytes, which the answer repeated for each: 60 KiB for forty bytes.
    #[test]
    fn a_preflight_is_no_amplifier() {
        let allowed = |names: &[String]| {
            let mut headers = HeaderMap::new();
            for name in names {
                let name = HeaderValue::try_from(name.as_str()).unwrap();
                headers.append(ACCESS_CONTROL_REQUEST_HEADERS, name);
            }
            let response = preflight(&headers);
            let allowed = &response.headers()[ACCESS_CONTROL_ALLOW_HEADERS];
            allowed.to_str().unwrap().to_owned()
        };
        let named = |number: usize, length: usize| {
            let name = format!("{ARGUMENT_PREFIX}{number:02}");
            let more = "x".repeat(length - name.len());
            name + &more
        };
        let usual = allowed(&[]);
        assert_eq!(allowed(&vec![named(1, 4000); 15]), usual);
        assert_eq!(allowed(&[named(1, NAME_MAX + 1)]), usual);
        let longest = named(1, NAME_MAX);
        let once = format!("{usual}, {longest}");
        assert_eq!(allowed(&vec![longest; 15]), once);
        let long: Vec<_> = (0..MAX_ARGUMENTS)
            .map(|number| named(number, NAME_MAX))
            .collect();
        let most = allowed(&long);
        assert!((ALLOWED_MAX / 2..=ALLOWED_MAX).contains(&most.len()));
        let fits: Vec<_> = (0..MAX_ARGUMENTS).map(|number| named(number, 60)).collect();
        assert!(allowed(&fits).ends_with(&fits[MAX_ARGUMENTS - 1]));
    }

    #[test]
    fn public_paths() {
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

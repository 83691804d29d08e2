//! Checks of the header fields of MCP requests: accepted types, revision and session.

use std::{borrow::Cow, sync::Arc};

use http::{
    Extensions, HeaderMap, HeaderName, HeaderValue, StatusCode, Uri,
    header::{self, AsHeaderName},
    uri::Authority,
};

use crate::{
    auth::Access,
    config::Config,
    endpoint::{self, Site, TenantHost},
    error::Error,
    http::reply::McpRefusal,
    protocol::{Accepts, Revision, SESSION_ID, Version, headers::PROTOCOL_VERSION},
};

/// Returns the only value of a header field; different values are refused.
pub(crate) fn single(
    headers: &HeaderMap,
    name: impl AsHeaderName,
) -> Result<Option<&str>, McpRefusal> {
    let mut values = headers.get_all(name).iter();
    let Some(first) = values.next() else {
        return Ok(None);
    };
    let bad = McpRefusal::http(StatusCode::BAD_REQUEST, "a header is repeated or not ASCII");
    if values.any(|value| value != first) {
        return Err(bad);
    }
    first.to_str().map(Some).map_err(|_| bad)
}

/// Returns the site of a request, with its URL in the spelling of the request, whose host the gate has checked.
pub(crate) fn site<'c>(
    config: &'c Config,
    extensions: &'c Extensions,
    (uri, headers): (&Uri, &HeaderMap),
) -> (Site<'c>, Cow<'c, str>) {
    let site = site_of(config, extensions);
    let host = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    let host = uri.authority().map(Authority::as_str).or(host);
    let url = endpoint::spelled(site.url, host.unwrap_or_default());
    (site, url)
}

/// Returns the site of a request.
pub(crate) fn site_of<'c>(config: &'c Config, extensions: &'c Extensions) -> Site<'c> {
    let host = extensions.get::<Arc<TenantHost>>().map(AsRef::as_ref);
    Site::of(&config.public_url, config.default.as_ref(), host)
}

/// Reads the content types that the client accepts.
pub(crate) fn accepts(headers: &HeaderMap) -> Accepts {
    Accepts::parse(
        headers
            .get_all(header::ACCEPT)
            .iter()
            .filter_map(|value| value.to_str().ok()),
    )
}

/// Checks the protocol version as far as the header alone decides it; returns it. "If the server receives
/// a request with an invalid or unsupported MCP-Protocol-Version, it MUST respond with 400 Bad Request"
/// (2025-11-25 transports, "Protocol Version Header"), and a tenant supports the revisions that it allows.
pub(crate) fn check_version(
    headers: &HeaderMap,
    access: &Access,
) -> Result<Option<Revision>, McpRefusal> {
    match Version::parse(single(headers, VERSION)?) {
        // Requests of modern revisions come here on HTTP+SSE only.
        Version::Modern => Err(no_modern()),
        Version::Unknown => Err(McpRefusal::http(
            StatusCode::BAD_REQUEST,
            "no such MCP-Protocol-Version",
        )),
        Version::Legacy(revision) if !access.tenant().revisions.contains(&revision) => {
            let text = "this MCP-Protocol-Version is not allowed here";
            Err(McpRefusal::http(StatusCode::BAD_REQUEST, text))
        }
        Version::Legacy(revision) => Ok(Some(revision)),
        Version::Absent => Ok(None),
    }
}

/// The refusal of a modern revision at HTTP+SSE, whether a header field or `_meta` names it.
pub(crate) fn no_modern() -> McpRefusal {
    McpRefusal::http(
        StatusCode::BAD_REQUEST,
        "HTTP+SSE has no such MCP-Protocol-Version; POST to the MCP endpoint",
    )
}

/// Whether the protocol version in the header is one of the modern era.
pub(crate) fn is_modern(headers: &HeaderMap) -> bool {
    let mut versions = headers.get_all(VERSION).iter();
    versions.any(|version| Version::parse(version.to_str().ok()) == Version::Modern)
}

/// Whether a client takes a `retry:` on a stream that goes on. The Java SDK ends a stream with an error at such a line
/// (modelcontextprotocol/java-sdk #1047); the JDK writes the `User-Agent` of its requests.
pub(crate) fn takes_retry(headers: &HeaderMap) -> bool {
    let agent = headers.get(header::USER_AGENT).map(HeaderValue::as_bytes);
    agent.is_none_or(|agent| !agent.starts_with(JDK_CLIENT.as_bytes()))
}

/// Returns the session id of a request that needs one.
pub(crate) fn session_id(headers: &HeaderMap) -> Result<&str, McpRefusal> {
    single(headers, SESSION)?.ok_or_else(no_session_id)
}

/// Makes the refusal of a request without a session.
pub(crate) fn no_session_id() -> McpRefusal {
    Error::Invalid("Mcp-Session-Id is missing; begin with initialize").into()
}

/// The beginning of the `User-Agent` of the JDK's HTTP client.
pub(crate) const JDK_CLIENT: &str = "Java-http-client";

/// Parsed once: the names of a request's fields are looked up several times.
pub(crate) const SESSION: HeaderName = HeaderName::from_static(SESSION_ID);
const VERSION: HeaderName = HeaderName::from_static(PROTOCOL_VERSION);

//! Header fields of MCP requests: accepted types, revision and session.

use http::{HeaderMap, StatusCode, header};

use crate::{
    error::Error,
    http::reply::Failure,
    protocol::{Accepts, Version, headers},
};

/// The one value of a header; two different ones are a mistake.
pub(crate) fn single<'a>(
    headers: &'a HeaderMap,
    name: &'static str,
) -> Result<Option<&'a str>, Failure> {
    let mut values = headers.get_all(name).iter();
    let Some(first) = values.next() else {
        return Ok(None);
    };
    let bad = Failure::http(StatusCode::BAD_REQUEST, "a header is repeated or not ASCII");
    if values.any(|value| value != first) {
        return Err(bad);
    }
    first.to_str().map(Some).map_err(|_| bad)
}

/// What the client takes.
pub(crate) fn accepts(headers: &HeaderMap) -> Accepts {
    Accepts::parse(
        headers
            .get_all(header::ACCEPT)
            .iter()
            .filter_map(|value| value.to_str().ok()),
    )
}

/// The era rules that need no body (DESIGN section 2, rows 1 and 2).
pub(crate) fn check_version(headers: &HeaderMap) -> Result<(), Failure> {
    match Version::parse(single(headers, headers::PROTOCOL_VERSION)?) {
        // Until the modern front exists its requests are legacy ones without a session.
        Version::Modern => Err(no_session_id()),
        Version::Unknown => Err(Failure::http(
            StatusCode::BAD_REQUEST,
            "no such MCP-Protocol-Version",
        )),
        Version::Absent | Version::Legacy(_) => Ok(()),
    }
}

/// The session id of a request that needs one (CONTRACT C5).
pub(crate) fn session_id(headers: &HeaderMap) -> Result<&str, Failure> {
    single(headers, headers::SESSION_ID)?.ok_or_else(no_session_id)
}

/// What a request without a session is told.
pub(crate) fn no_session_id() -> Failure {
    Error::Invalid("Mcp-Session-Id is missing; begin with initialize").into()
}

//! What every MCP endpoint does first: find the server, check who calls, read the body.

use std::{sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::{FromRequestParts, RawPathParams},
    response::{IntoResponse, Response},
};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, StatusCode, header, request::Parts};
use http_body_util::BodyExt;

use super::{Front, challenge, limits, reply::Failure};
use crate::{
    auth::{self, Access},
    error::Error,
    protocol::headers::{self, Accepts, Version},
};

/// How long a client may take for a body (CONTRACT P103).
const BODY: Duration = Duration::from_secs(30);

/// A request for a server that its caller may use.
pub(crate) struct Admitted {
    /// The proof.
    pub(crate) access: Access,
    /// The path before `/mcp`, `/sse` or `/messages`, as the client called it.
    pub(crate) base: String,
}

impl FromRequestParts<Arc<Front>> for Admitted {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, front: &Arc<Front>) -> Result<Self, Response> {
        let path = parts.uri.path();
        let base = path
            .rsplit_once('/')
            .map_or("", |(base, _)| base)
            .to_owned();
        let params = RawPathParams::from_request_parts(parts, front).await;
        let named = params.ok().and_then(|params| {
            let find = |wanted| params.iter().find(|(name, _)| *name == wanted);
            Some((find("tenant")?.1.to_owned(), find("server")?.1.to_owned()))
        });
        let is_alias = base.is_empty();
        let named = if is_alias {
            front.config.default.clone()
        } else {
            named
        };
        let found = named.and_then(|(tenant, server)| front.catalog.find(&tenant, &server));
        let (tenant, server) =
            found.ok_or_else(|| Failure::from(Error::NoServer).into_response())?;
        let access = auth::admit(tenant, server);
        let left = front.hub.limits().request(&access);
        let left = left.map_err(|error| Failure::from(error).into_response())?;
        if let Some((left, notice)) = left.zip(parts.extensions.get::<limits::Notice>()) {
            notice.set(left);
        }
        Ok(Self { access, base })
    }
}

/// A refusal by the hub; one for lack of scopes says how to get them, for the resource whose
/// `path` the client called (CONTRACT C2).
pub(crate) fn refused(front: &Front, path: &str, error: Error) -> Failure {
    let challenge = match &error {
        Error::Scopes(scopes) => {
            let metadata = resource_metadata(&front.config.public_url, path);
            Some(challenge::insufficient_scope(&metadata, scopes))
        }
        _ => None,
    };
    let failure = Failure::from(error);
    match challenge {
        Some(challenge) => failure.with(header::WWW_AUTHENTICATE, challenge),
        None => failure,
    }
}

/// Where the metadata of a resource stands (RFC 9728, section 3.1): the well-known part goes
/// between the host and the path.
fn resource_metadata(public_url: &str, path: &str) -> String {
    let from = public_url.find("://").map_or(0, |at| at + 3);
    let host = public_url[from..]
        .find('/')
        .map_or(public_url.len(), |at| from + at);
    let (host, base) = public_url.split_at(host);
    format!("{host}/.well-known/oauth-protected-resource{base}{path}")
}

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

/// Reads a body that says that it is JSON, within its bounds of size and time.
pub(crate) async fn read(headers: &HeaderMap, body: Body, max: usize) -> Result<Bytes, Failure> {
    let content_type = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    if !content_type.is_some_and(headers::is_json) {
        let text = "Content-Type must be application/json";
        return Err(Failure::http(StatusCode::UNSUPPORTED_MEDIA_TYPE, text));
    }
    let late = Failure::http(
        StatusCode::REQUEST_TIMEOUT,
        "the body did not arrive in time",
    );
    tokio::time::timeout(BODY, collect(body, max))
        .await
        .unwrap_or(Err(late))
}

/// Keeps the pieces as they come and joins them at the end: a body that turns out too large
/// never costs more than its limit.
async fn collect(mut body: Body, max: usize) -> Result<Bytes, Failure> {
    let mut pieces: Vec<Bytes> = Vec::new();
    let mut length = 0;
    while let Some(frame) = body.frame().await {
        let broken = Failure::http(StatusCode::BAD_REQUEST, "the body ends early");
        let Ok(data) = frame.map_err(|_| broken)?.into_data() else {
            continue;
        };
        length += data.len();
        if length > max {
            return Err(Failure::http(
                StatusCode::PAYLOAD_TOO_LARGE,
                "the body is too large",
            ));
        }
        pieces.push(data);
    }
    // Most bodies are one frame: that one is not copied.
    if pieces.len() < 2 {
        return Ok(pieces.pop().unwrap_or_default());
    }
    let mut joined = BytesMut::with_capacity(length);
    for piece in pieces {
        joined.extend_from_slice(&piece);
    }
    Ok(joined.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_well_known_part_goes_before_the_path() {
        let of = |url: &str| resource_metadata(url, "/t/a/x/mcp");
        let well_known = "/.well-known/oauth-protected-resource";
        assert_eq!(
            of("https://g:1"),
            format!("https://g:1{well_known}/t/a/x/mcp")
        );
        assert_eq!(
            of("https://g/b"),
            format!("https://g{well_known}/b/t/a/x/mcp")
        );
    }
}

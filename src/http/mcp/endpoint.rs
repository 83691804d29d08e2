//! What every MCP endpoint does first: find the server, check who calls, read the body.

use std::{sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::Request,
    response::{IntoResponse, Response},
};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header, request::Parts};
use http_body_util::BodyExt;

use super::{
    bearer, challenge, page,
    reply::Failure,
    wellknown::{self, Endpoint},
};
use crate::config::ClientAddress;
use crate::http::{Front, edge::limits, replicas::Hop};
use crate::{
    auth::{Access, Refused, access},
    declare::AuthMode,
    error::Error,
    hub::limits::Left,
    protocol::{Accepts, Version, headers},
};

/// How long a client may take for a body (CONTRACT P103).
const BODY: Duration = Duration::from_secs(30);
/// When to come back while the store was never read.
const STORE: Duration = Duration::from_secs(1);

/// A request for a server that its caller may use.
pub(crate) struct Admitted {
    /// The proof.
    pub(crate) access: Access,
    /// The path before `/mcp`, `/sse` or `/messages`, as the client called it.
    pub(crate) base: String,
    /// `mcp`, `sse` or `messages`.
    kind: &'static str,
    /// What is left of its caller's rate, if that is little.
    left: Option<Left>,
}

/// What every request for an MCP endpoint passes: who calls is decided, and counted, by its head
/// alone; nothing of the body is read before. Whoever is about to be refused is told by the answer.
pub(crate) async fn enter<A: Future<Output = Response>>(
    front: Arc<Front>,
    request: Request,
    answer: impl FnOnce(Arc<Front>, Admitted, Request) -> A,
) -> Response {
    let (parts, body) = request.into_parts();
    let admitted = match Admitted::of(&parts, &front).await {
        Ok(admitted) => admitted,
        Err(refused) => return refused,
    };
    let left = admitted.left;
    let mut response = answer(front, admitted, Request::from_parts(parts, body)).await;
    if let Some(left) = left {
        limits::tell(response.headers_mut(), left);
    }
    response
}

impl Admitted {
    /// A refusal by the hub; one for lack of scopes says how to get them (CONTRACT C2).
    pub(crate) fn refused(&self, front: &Front, error: Error) -> Failure {
        let challenge = match &error {
            Error::Scopes(scopes) => {
                let metadata = self.resource_metadata(front);
                Some(challenge::insufficient_scope(metadata.as_deref(), scopes))
            }
            _ => None,
        };
        let failure = Failure::from(error);
        match challenge {
            Some(challenge) => failure.with(header::WWW_AUTHENTICATE, challenge),
            None => failure,
        }
    }

    /// Where the metadata of what was called is; none where no authorization server could give
    /// out more.
    fn resource_metadata(&self, front: &Front) -> Option<String> {
        let endpoint = Endpoint {
            base: &self.base,
            tenant: &self.access.tenant().name,
            server: &self.access.server().name,
            kind: self.kind,
        };
        let has_issuer = self.access.tenant().auth.has_issuer();
        has_issuer.then(|| wellknown::metadata_url(&front.config.public_url, &endpoint))
    }

    async fn of(parts: &Parts, front: &Front) -> Result<Self, Response> {
        let (path, config) = (parts.uri.path(), &front.config);
        let (headers, extensions) = (&parts.headers, &parts.extensions);
        // A hop was counted by the replica that the client asked.
        let is_hop = extensions.get::<Hop>().is_some();
        if !is_hop && let Err(error) = limits::address(front, extensions) {
            return Err(Failure::from(error).into_response());
        }
        let no_server = || {
            if front.live.is_loaded() {
                return Failure::from(Error::NoServer).into_response();
            }
            // Nobody can say yet that there is no such server: 404 would end clients' sessions.
            let busy = Error::Busy {
                what: "nothing was read from the store yet",
                retry: STORE,
            };
            Failure::from(busy).into_response()
        };
        let endpoint = Endpoint::at(path, config.default.as_ref()).ok_or_else(no_server)?;
        let catalog = &front.live.current();
        let tenant = catalog.tenants.get(endpoint.tenant).ok_or_else(no_server)?;
        let credential = bearer::credential(headers).map_err(Failure::into_response)?;
        let is_open = tenant.auth == AuthMode::None;
        if !is_open && page::is_browser(&parts.method, headers) {
            // It says nothing but what the URL says, whether there is such a server or not.
            let url = format!("{}{}/mcp", config.public_url, endpoint.base);
            return Err(page::page(endpoint.tenant, endpoint.server, &url));
        }
        let asked = access::Request {
            tenant: endpoint.tenant,
            server: endpoint.server,
            credential,
            from: extensions.get::<ClientAddress>().map(|from| from.0),
            route: endpoint.kind,
        };
        let access = front.auth.admit(catalog, &asked).await;
        let access = access.map_err(|refused| match refused {
            Refused::NoServer => no_server(),
            Refused::Unknown { tenant, had_token } => {
                bearer::unauthorized(&config.public_url, &endpoint, &tenant, had_token)
            }
            Refused::Later(error) => Failure::from(error).into_response(),
        })?;
        let left = if is_hop {
            None
        } else {
            let left = front.hub.limits().request(&access);
            left.map_err(|error| Failure::from(error).into_response())?
        };
        Ok(Self {
            access,
            base: endpoint.base.to_owned(),
            kind: endpoint.kind,
            left,
        })
    }
}

/// A method that an endpoint does not have: who calls comes first here too (CONTRACT C1, C11).
pub(crate) async fn other_method(front: Arc<Front>, request: Request) -> Response {
    if request.method() != Method::OPTIONS {
        return enter(front, request, async |_, _, request| not_allowed(&request)).await;
    }
    // A browser's question, which carries no credentials.
    match limits::address(&front, request.extensions()) {
        Ok(()) => not_allowed(&request),
        Err(error) => Failure::from(error).into_response(),
    }
}

/// 405, with what may be asked there (RFC 9110, section 15.5.6).
pub(super) fn not_allowed(request: &Request) -> Response {
    let allowed = match request.uri().path().rsplit_once('/') {
        Some((_, "sse")) => "GET",
        Some((_, "messages")) => "POST",
        _ => "GET, POST, DELETE",
    };
    let refused = Failure::http(StatusCode::METHOD_NOT_ALLOWED, "no such method here");
    let mut response = refused.into_response();
    let allowed = HeaderValue::from_static(allowed);
    response.headers_mut().insert(header::ALLOW, allowed);
    response
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
    whole(body, max).await
}

/// Reads a body within its bounds of size and time.
pub(crate) async fn whole(body: Body, max: usize) -> Result<Bytes, Failure> {
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
    // Most bodies are one frame: that one is not copied.
    let (mut first, mut rest, mut length) = (Bytes::new(), Vec::new(), 0);
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
        if first.is_empty() {
            first = data;
        } else {
            rest.push(data);
        }
    }
    if rest.is_empty() {
        return Ok(first);
    }
    let mut joined = BytesMut::with_capacity(length);
    joined.extend_from_slice(&first);
    for piece in rest {
        joined.extend_from_slice(&piece);
    }
    Ok(joined.freeze())
}

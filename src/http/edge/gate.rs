//! What stands in front of every route of the public listener.
//!
//! Refuses what no route should see, and says on every response what no route should forget; who
//! calls, and what they may do, is decided behind it.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use http::header::{
    ALLOW, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, ORIGIN, TRANSFER_ENCODING,
    X_CONTENT_TYPE_OPTIONS,
};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, StatusCode, Version};
use ipnet::IpNet;

use super::access_log::AccessLog;
use super::address::{Allowed, HostCheck, OriginCheck, canonical, client};
use super::body::{Read, meter};
use super::cors;
use super::own_form;
use super::panic::route;
use crate::config::ClientAddress;
use crate::endpoint::Kind;
use crate::http::reply::{
    header_name::HOP,
    refusal::{in_form_of, refusal},
};
use crate::telemetry::{Metrics, Route};

/// What the gate of one listener needs to know.
pub(crate) struct Gate {
    /// The hosts and origins that are ours.
    allowed: Allowed,
    /// Whose `X-Forwarded-For` is believed.
    proxies: Vec<IpNet>,
    /// The largest request body, in bytes.
    max_body: u64,
    /// Counts every answer, refusals too.
    metrics: Arc<Metrics>,
    /// Writes a line for each request.
    log: AccessLog,
}

impl Gate {
    /// A gate in front of the public listener.
    pub(crate) fn new(
        allowed: Allowed,
        proxies: Vec<IpNet>,
        max_body: u64,
        metrics: Arc<Metrics>,
    ) -> Arc<Self> {
        Arc::new(Self {
            allowed,
            proxies,
            max_body,
            metrics,
            log: AccessLog::new(),
        })
    }

    /// Everything that is refused by the head of the request alone, in this order.
    fn check(&self, head: &Parts) -> Result<Option<HeaderValue>, Response> {
        let target = head
            .uri
            .path_and_query()
            .map_or(0, |target| target.as_str().len());
        if target > TARGET_MAX {
            return Err(refusal(StatusCode::URI_TOO_LONG, "request target too long"));
        }
        if head.headers.contains_key(HOP) {
            // Only replicas say that, and only on the cluster listener.
            return Err(refusal(StatusCode::FORBIDDEN, "header not allowed"));
        }
        check_size(&head.headers)?;
        check_framing(&head.headers)?;
        check_method(&head.method)?;
        match self.allowed.host(head.version, &head.uri, &head.headers) {
            HostCheck::Ours => {}
            HostCheck::Foreign => return Err(refusal(StatusCode::FORBIDDEN, "host not allowed")),
            HostCheck::Malformed => return Err(refusal(StatusCode::BAD_REQUEST, "bad host")),
        }
        let origin = match self.allowed.origin(&head.headers) {
            OriginCheck::Absent => None,
            OriginCheck::Ours => head.headers.get(ORIGIN).cloned(),
            // Documents for everybody, which tell no page more than anybody may know.
            OriginCheck::Foreign if cors::is_public(head.uri.path()) => None,
            OriginCheck::Foreign if own_form::is_own_form(head, self.allowed.is_trustworthy()) => {
                None
            }
            OriginCheck::Foreign => {
                return Err(refusal(StatusCode::FORBIDDEN, "origin not allowed"));
            }
        };
        // From here on a page of an allowed origin must be able to read the refusal.
        self.check_rest(head).map_err(|mut refused| {
            cors::mark(refused.headers_mut(), origin.clone());
            refused
        })?;
        Ok(origin)
    }

    fn check_rest(&self, head: &Parts) -> Result<(), Response> {
        if !canonical(head.uri.path()) {
            return Err(refusal(StatusCode::NOT_FOUND, "not found"));
        }
        let is_encoded = head.headers.get_all(CONTENT_ENCODING).iter().any(|coding| {
            !coding
                .as_bytes()
                .trim_ascii()
                .eq_ignore_ascii_case(b"identity")
        });
        if is_encoded {
            let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            return Err(refusal(status, "content coding not supported"));
        }
        // Before the body is polled: only then hyper sends `100 Continue` (P105).
        let length = head
            .headers
            .get(CONTENT_LENGTH)
            .and_then(|length| length.to_str().ok());
        if length
            .and_then(|length| length.parse().ok())
            .is_some_and(|l: u64| l > self.max_body)
        {
            return Err(refusal(StatusCode::PAYLOAD_TOO_LARGE, "body too large"));
        }
        Ok(())
    }
}

impl Gate {
    /// One request through the gate and back.
    pub(super) async fn pass(
        &self,
        peer: SocketAddr,
        request: Request,
        routes: Router,
    ) -> Response {
        let address = client(peer.ip(), request.headers(), &self.proxies);
        let (mut head, body) = request.into_parts();
        let line = self.log.begin(&head, address);
        let path = line.path();
        let version = head.version;
        let (body, progress) = meter(body, self.max_body);
        let response = match self.check(&head) {
            Err(refused) => in_form_of(path, refused),
            Ok(origin) => {
                let mut response = if cors::is_preflight(&head.method, &head.headers) {
                    cors::preflight(&head.headers)
                } else {
                    head.extensions.insert(ClientAddress(address));
                    let response = route(routes, Request::from_parts(head, body)).await;
                    // The route saw an error and cannot know which; its answer gives way.
                    let refused = match progress.read() {
                        Read::TooLarge => refusal(StatusCode::PAYLOAD_TOO_LARGE, "body too large"),
                        Read::Stalled => refusal(StatusCode::REQUEST_TIMEOUT, "body stalled"),
                        Read::Partly | Read::Whole => response,
                    };
                    in_form_of(path, refused)
                };
                if cors::is_public(path) {
                    cors::mark_public(response.headers_mut());
                } else {
                    cors::mark(response.headers_mut(), origin);
                }
                response
            }
        };
        let response = finish(response, version, progress.read());
        let status = response.status();
        self.metrics.request(kind(path), status.as_u16());
        line.write(status);
        response
    }
}

/// What a request is counted as.
fn kind(path: &str) -> Route {
    if matches!(path, "/livez" | "/readyz") {
        return Route::Health;
    }
    match Kind::of(path) {
        Some(Kind::Mcp) => Route::Mcp,
        Some(Kind::Sse | Kind::Messages) => Route::Sse,
        None => Route::Other,
    }
}

/// What every response carries.
fn finish(mut response: Response, version: Version, read: Read) -> Response {
    let headers = response.headers_mut();
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    // What is left of a body must never be read as the next request (P114). HTTP/2 has frames.
    if read != Read::Whole && version < Version::HTTP_2 {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// C11, for HTTP/2 too, where hyper counts bytes but not fields.
fn check_size(headers: &HeaderMap) -> Result<(), Response> {
    let is_long = |value: &HeaderValue| value.len() > FIELD_MAX;
    if headers.len() > FIELDS_MAX || headers.values().any(is_long) {
        let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
        let mut refused = refusal(status, "header fields too large");
        refused
            .headers_mut()
            .insert(CONNECTION, HeaderValue::from_static("close"));
        return Err(refused);
    }
    Ok(())
}

/// hyper looks at the last transfer coding only; whoever stands before us may look at the first,
/// and see another end of the body (RFC 9112, section 6.1: chunked is applied once).
fn check_framing(headers: &HeaderMap) -> Result<(), Response> {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let is_chunked = |coding: &HeaderValue| coding.as_bytes().eq_ignore_ascii_case(b"chunked");
    match (codings.next(), codings.next()) {
        (None, _) => Ok(()),
        (Some(coding), None) if is_chunked(coding) => Ok(()),
        _ => Err(refusal(StatusCode::BAD_REQUEST, "bad transfer coding")),
    }
}

/// Methods that no route has: those that tunnel or echo, and those that we do not know. RFC 9110
/// has 501 for the latter, but no such status is ever an answer to a client's input (C18).
fn check_method(method: &Method) -> Result<(), Response> {
    match method.as_str() {
        "GET" | "HEAD" | "POST" | "PUT" | "PATCH" | "DELETE" | "OPTIONS" => Ok(()),
        _ => {
            let mut refused = refusal(StatusCode::METHOD_NOT_ALLOWED, "method not allowed");
            let allow = HeaderValue::from_static("GET, POST, DELETE");
            refused.headers_mut().insert(ALLOW, allow);
            Err(refused)
        }
    }
}

/// C11.
const TARGET_MAX: usize = 8 << 10;
/// C11.
const FIELDS_MAX: usize = 100;
/// A single field of 60 KiB is refused (P102); the largest useful one is a token.
const FIELD_MAX: usize = 16 << 10;

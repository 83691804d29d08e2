//! What stands in front of every route of the public listener.
//!
//! Refuses what no route should see, and says on every response what no route should forget; who
//! calls, and what they may do, is decided behind it.

use std::any::Any;
use std::net::{IpAddr, SocketAddr};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::response::Response;
use futures_util::FutureExt;
use http::header::{
    ALLOW, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, ORIGIN, TRANSFER_ENCODING,
    X_CONTENT_TYPE_OPTIONS,
};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, Version};
use ipnet::IpNet;
use tokio::time::Instant;
use tower::Service;
use tower_http::catch_panic::CatchPanicLayer;

use super::address::{Allowed, HostCheck, OriginCheck, canonical, client, is_to_loopback};
use super::body::{Read, meter};
use super::cors;
use super::own_form;
use super::refusal::{in_form_of, refusal};
pub(crate) use crate::config::ClientAddress;
use crate::http::replicas::Cluster;
use crate::http::replicas::HOP;
use crate::telemetry::{Metrics, Route};

/// What one listener serves. A handle.
///
/// What stands before is no layer of the router: axum clones and boxes a layer for each route and request.
#[derive(Clone)]
pub(crate) struct App {
    routes: Router,
    before: Before,
}

/// What every request of a listener passes first.
#[derive(Clone)]
enum Before {
    /// The check of who may be an operator, with the address that the listener has.
    Operators(SocketAddr),
    Gate(Arc<Gate>),
    /// The check of what another replica says.
    Hops(Arc<Cluster>),
}

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
    /// Makes request ids of one process differ from those of every other.
    boot: u64,
    /// Makes them differ from each other.
    next: AtomicU64,
}

impl Gate {
    /// A gate with a random boot number.
    pub(crate) fn new(
        allowed: Allowed,
        proxies: Vec<IpNet>,
        max_body: u64,
        metrics: Arc<Metrics>,
    ) -> Arc<Self> {
        let boot = uuid::Uuid::new_v4().as_u64_pair().1;
        Arc::new(Self {
            allowed,
            proxies,
            max_body,
            metrics,
            boot,
            next: AtomicU64::new(1),
        })
    }

    /// Puts the gate, and the net for panics, in front of every route and fallback of `routes`.
    pub(crate) fn guard(self: Arc<Self>, routes: Router) -> App {
        let before = Before::Gate(self);
        App { routes, before }
    }

    /// The name of one request in logs. A random one would cost a system call; this one is as
    /// unique. It is no secret, and nothing is looked up by it.
    fn request_id(&self) -> String {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        format!("{:016x}{next:08x}", self.boot)
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

impl App {
    /// Routes that need no gate: nobody but operators reaches the listener at `bound`, save web pages
    /// in their browsers. With the net for panics.
    pub(crate) fn of_operators(routes: Router, bound: SocketAddr) -> Self {
        Self {
            routes: routes.layer(CatchPanicLayer::custom(panicked)),
            before: Before::Operators(bound),
        }
    }

    /// What other replicas ask for.
    pub(crate) fn of_replicas(routes: Router, cluster: Arc<Cluster>) -> Self {
        let before = Before::Hops(cluster);
        Self { routes, before }
    }

    /// Answers one request that came from `peer`.
    pub(crate) async fn answer(self, peer: SocketAddr, request: Request) -> Response {
        let Self { routes, before } = self;
        let is_head = request.method() == Method::HEAD;
        let response = match before {
            Before::Operators(bound) => match check_operator(bound, &request) {
                Ok(()) => called(routes, request).await,
                Err(refused) => refused,
            },
            Before::Gate(gate) => gate.pass(peer, request, routes).await,
            Before::Hops(cluster) => cluster.pass(request, routes).await,
        };
        if is_head {
            without_body(response)
        } else {
            response
        }
    }
}

impl Gate {
    /// One request through the gate and back.
    async fn pass(&self, peer: SocketAddr, request: Request, routes: Router) -> Response {
        let began = Instant::now();
        let address = client(peer.ip(), request.headers(), &self.proxies);
        let (mut head, body) = request.into_parts();
        let line = Line {
            method: head.method.clone(),
            uri: head.uri.clone(),
            address,
        };
        let path = line.uri.path();
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
        line.write(|| self.request_id(), status, began);
        response
    }
}

/// Hands a request to its route; a panic there costs this request and nothing else.
pub(crate) async fn route(routes: Router, request: Request) -> Response {
    let answer = AssertUnwindSafe(called(routes, request));
    answer.catch_unwind().await.unwrap_or_else(panicked)
}

async fn called(mut routes: Router, request: Request) -> Response {
    let answer = routes.call(request).await;
    answer.unwrap_or_else(|never| match never {})
}

/// Refuses what a web page sends: no scraper, no probe and no operator names an origin. A page whose
/// own name was made to lead here (DNS rebinding) needs none, but its browser names that host.
///
/// Only on loopback can that be told: elsewhere a scraper may call us by any name, those of pods and
/// services among them.
fn check_operator(bound: SocketAddr, request: &Request) -> Result<(), Response> {
    if request.headers().contains_key(ORIGIN) {
        return Err(refusal(StatusCode::FORBIDDEN, "origin not allowed"));
    }
    let is_local = bound.ip().to_canonical().is_loopback();
    if is_local && !is_to_loopback(request.uri(), request.headers()) {
        return Err(refusal(StatusCode::FORBIDDEN, "host not allowed"));
    }
    Ok(())
}

/// The answer to HEAD: what GET would say, save its body. Whatever refuses need not know; hyper itself
/// keeps the body back over HTTP/1 only, and over HTTP/2 that is an error of the protocol.
fn without_body(response: Response) -> Response {
    let (mut head, body) = response.into_parts();
    if let Some(length @ 1..) = body.size_hint().exact() {
        let said = head.headers.entry(CONTENT_LENGTH);
        said.or_insert(HeaderValue::from(length));
    }
    Response::from_parts(head, Body::empty())
}

/// What a request is counted as.
fn kind(path: &str) -> Route {
    if matches!(path, "/livez" | "/readyz") {
        return Route::Health;
    }
    let (parent, end) = path.rsplit_once('/').unwrap_or_default();
    match end {
        _ if !parent.is_empty() && !parent.starts_with("/t/") => Route::Other,
        "mcp" => Route::Mcp,
        "sse" | "messages" => Route::Sse,
        _ => Route::Other,
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

/// A panic is our fault and passes; 503 says so, and no 500 is ever a correct answer (C18).
#[expect(
    clippy::needless_pass_by_value,
    reason = "the signature is tower-http's"
)]
fn panicked(panic: Box<dyn Any + Send + 'static>) -> Response {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no text");
    tracing::error!(panic = text, "a route panicked");
    let mut response = refusal(StatusCode::SERVICE_UNAVAILABLE, "internal error");
    response
        .headers_mut()
        .insert(http::header::RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

/// The log line of one request: no query, no header, no session id.
struct Line {
    method: Method,
    uri: Uri,
    address: IpAddr,
}

impl Line {
    fn write(&self, id: impl Fn() -> String, status: StatusCode, began: Instant) {
        if !tracing::enabled!(target: "lockgate::http", tracing::Level::INFO) {
            return;
        }
        // An unknown method is the client's text and may be long.
        let method = self.method.as_str();
        let method = method.get(..METHOD_LOGGED).unwrap_or(method);
        let path = self.uri.path();
        let logged = path.char_indices().nth(PATH_LOGGED);
        let logged = logged.map_or(path, |(end, _)| &path[..end]);
        let (tenant, server) = names(logged);
        let (id, code) = (&*id(), status.as_u16());
        let ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let address = tracing::field::display(self.address);
        tracing::info!(
            target: "lockgate::http",
            {
                request.id = id,
                http.method = method,
                url.path = logged,
                tenant.id = tenant,
                server.name = server,
                http.status = code,
                client.address = address,
                ms
            },
            "request"
        );
    }
}

/// The tenant and the server that a path names.
fn names(path: &str) -> (Option<&str>, Option<&str>) {
    if let Some(rest) = path.strip_prefix("/t/") {
        let mut parts = rest.split('/');
        return match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some(tenant), Some(server), Some("mcp" | "sse" | "messages"), None) => {
                (Some(tenant), Some(server))
            }
            (Some(tenant), Some("oauth"), Some(_), _) => (Some(tenant), None),
            _ => (None, None),
        };
    }
    let tenants = path.strip_prefix("/api/v1/tenants/");
    let tenant = tenants.and_then(|rest| rest.split('/').next());
    (tenant.filter(|tenant| !tenant.is_empty()), None)
}

/// C11.
const TARGET_MAX: usize = 8 << 10;
/// C11.
const FIELDS_MAX: usize = 100;
/// A single field of 60 KiB is refused (P102); the largest useful one is a token.
const FIELD_MAX: usize = 16 << 10;
/// No method of ours is longer.
const METHOD_LOGGED: usize = 16;
/// No path of ours is longer.
const PATH_LOGGED: usize = 256;

#[cfg(test)]
mod tests {
    use super::super::gate::*;

    #[test]
    fn the_log_says_whom_a_path_names() {
        let table = [
            ("/t/a/b/mcp", (Some("a"), Some("b"))),
            ("/t/a/b/sse", (Some("a"), Some("b"))),
            ("/t/a/b/messages", (Some("a"), Some("b"))),
            ("/t/a/oauth/mcp", (Some("a"), Some("oauth"))),
            ("/t/a/oauth/token", (Some("a"), None)),
            ("/t/a/oauth/callback/login", (Some("a"), None)),
            ("/t/a/b/c", (None, None)),
            ("/t/a/b/c/mcp", (None, None)),
            ("/t/a", (None, None)),
            ("/mcp", (None, None)),
            ("/api/v1/tenants", (None, None)),
            ("/api/v1/tenants/", (None, None)),
            ("/api/v1/tenants/a", (Some("a"), None)),
            ("/api/v1/tenants/a/servers/b", (Some("a"), None)),
        ];
        for (path, named) in table {
            assert_eq!(names(path), named, "{path}");
        }
    }
}

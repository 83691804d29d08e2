//! Gate of the public listener: checks of the request head, and header fields of every response.
//!
//! Not here: credentials and permissions, which are checked behind the gate; header fields of the
//! other listeners (`app`), and the response above `http.max_connections` (`accept`).

use std::net::IpAddr;
use std::sync::Arc;

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::{
    ALLOW, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, ORIGIN, RETRY_AFTER,
    TRANSFER_ENCODING, VARY, X_CONTENT_TYPE_OPTIONS,
};
use http::request::Parts;
use http::uri::Scheme;
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, Version};
use ipnet::IpNet;

use super::access_log::{AccessLog, Line};
use super::address::{Allowed, HostCheck, OriginCheck, client_address, copied, is_canonical};
use super::body_limit::{self, BodyState, ReadState, TRAILERS_MAX};
use super::cors;
use super::head::{FIELD, let_go, measure, text_of_target, unread};
use super::null_origin;
use super::routes::Routes;
use crate::base::budget::Budget;
use crate::config::{ClientAddress, LoggedRequests};
use crate::endpoint::{Kind, TenantHost};
use crate::http::reply::{
    McpRefusal,
    header_name::HOP,
    json,
    refusal::{in_form_of, refusal},
};
use crate::hub::limits::MemoryBudgets;
use crate::telemetry::{LimitName, Metrics, Route, Span, TraceContext, Traces};

/// Finds the tenant with a host, in lower case, and a port.
pub(crate) type FindHost = Box<dyn Fn(&str, u16) -> FoundHost + Send + Sync>;

/// Counts a request for the rate of its address; the refusal of one beyond that.
pub(crate) type LimitAddress = Box<dyn Fn(IpAddr) -> Option<McpRefusal> + Send + Sync>;

/// What a host that is not the gateway's is.
pub(crate) enum FoundHost {
    /// The host of a tenant.
    Tenant(Arc<TenantHost>),
    /// No tenant's.
    None,
    /// The tenants were not read yet.
    Unknown,
}

/// What is known of a request that has been received, and counted, before anything was waited for.
pub(super) struct Admitted {
    /// Address of its client.
    address: IpAddr,
    /// What was drawn for it, and how far its body was read.
    state: BodyState,
    /// Why it is refused in its turn.
    lacks: Option<Lacks>,
}

/// What a request lacks that is refused for its head alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lacks {
    /// It has too many or too long header fields.
    Bounds,
    /// Its address has no room for it.
    Room,
}

/// A request whose line in the access log has begun.
struct Begun<'g> {
    line: Line<'g>,
    span: Option<Span>,
    /// Kind of the endpoint whose path it has.
    served: Option<Kind>,
    label: Route,
    version: Version,
    is_head: bool,
}

impl Begun<'_> {
    /// Completes the answer, and ends the line.
    fn answered(mut self, response: Response, state: &BodyState) -> Response {
        let response = with_response_headers(response, self.version, state.get());
        let mut response = counted(response, state, (self.served, self.version));
        let has_body = !self.is_head && !response.body().is_end_stream();
        if self.version == Version::HTTP_2 && !has_body {
            count_head(response.headers_mut(), state);
        }
        let status = response.status();
        self.line.write(status);
        if let Some(span) = &mut self.span {
            span.answered(status);
        }
        response
    }
}

/// Gate of the public listener.
pub(crate) struct Gate {
    /// Allowed hosts and origins.
    allowed: Allowed,
    /// Hosts of tenants.
    hosts: FindHost,
    /// Rates of addresses, which routes count but for what the gate answers itself.
    limit: LimitAddress,
    /// Proxies whose `X-Forwarded-For` is trusted.
    proxies: Vec<IpNet>,
    /// Largest request body in bytes.
    max_body: u64,
    /// Memory for requests, shared out to addresses.
    memory: Arc<MemoryBudgets>,
    /// Counts refusals of the gate's limits.
    metrics: Arc<Metrics>,
    traces: Traces,
    log: AccessLog,
}

impl Gate {
    /// Makes the gate.
    pub(crate) fn new(
        (allowed, hosts, limit): (Allowed, FindHost, LimitAddress),
        proxies: Vec<IpNet>,
        max_body: u64,
        memory: Arc<MemoryBudgets>,
        (metrics, traces): (Arc<Metrics>, Traces),
        logged: LoggedRequests,
    ) -> Arc<Self> {
        Arc::new(Self {
            allowed,
            hosts,
            limit,
            proxies,
            max_body,
            memory,
            log: AccessLog::new(Arc::clone(&metrics), logged),
            metrics,
            traces,
        })
    }

    /// Checks the head of a request, and returns its allowed origin, if it has one. A request to the host of a
    /// tenant gets that as an extension.
    fn check(
        &self,
        head: &mut Parts,
        lacks: Option<Lacks>,
    ) -> Result<Option<HeaderValue>, Response> {
        let target = head
            .uri
            .path_and_query()
            .map_or(0, |target| target.as_str().len());
        if target > TARGET_MAX {
            return Err(refusal(StatusCode::URI_TOO_LONG, "request target too long"));
        }
        if head.headers.contains_key(HOP) {
            // Only replicas send this field, and only to the cluster listener.
            return Err(refusal(StatusCode::FORBIDDEN, "header not allowed"));
        }
        match lacks {
            Some(Lacks::Bounds) => return Err(fields_too_large()),
            Some(Lacks::Room) => return Err(self.no_room()),
            None => {}
        }
        check_framing(&head.headers)?;
        check_method(&head.method)?;
        check_scheme(&head.uri)?;
        match self.allowed.host(head.version, &head.uri, &head.headers) {
            HostCheck::Ours => {}
            // Probes of a load balancer name the address of a pod.
            // Some of HTTP/1.0 name none.
            HostCheck::ForeignAddress | HostCheck::Missing
                if route_label(head.uri.path()) == Route::Health => {}
            HostCheck::Foreign => {
                let host = self.tenant_host(head)?;
                // No other tenant is reached there, whatever the key.
                if is_administration(head.uri.path()) {
                    return Err(refusal(StatusCode::NOT_FOUND, "not found"));
                }
                head.extensions.insert(host);
            }
            HostCheck::ForeignAddress => {
                return Err(refusal(StatusCode::FORBIDDEN, "host not allowed"));
            }
            HostCheck::Missing | HostCheck::Malformed => {
                return Err(refusal(StatusCode::BAD_REQUEST, "bad host"));
            }
        }
        let origin = match self.origin(head) {
            OriginCheck::Absent | OriginCheck::OwnUrl => None,
            OriginCheck::Ours => head.headers.get(ORIGIN).cloned(),
            // Responses of public paths contain nothing that a page may not know.
            OriginCheck::Foreign if cors::is_public(head.uri.path()) => None,
            OriginCheck::Foreign
                if null_origin::is_own_form(head, self.allowed.is_trustworthy()) =>
            {
                None
            }
            OriginCheck::Foreign => {
                return Err(refusal(StatusCode::FORBIDDEN, "origin not allowed"));
            }
        };
        // From here on a page of an allowed origin may read the refusal.
        self.check_content(head).map_err(|mut refused| {
            cors::allow_origin(refused.headers_mut(), origin.clone());
            refused
        })?;
        Ok(origin)
    }

    /// Checks the origin of a request, also by the host of a tenant that it names.
    fn origin(&self, head: &Parts) -> OriginCheck {
        let host = head.extensions.get::<Arc<TenantHost>>();
        match (self.allowed.origin(&head.headers), host) {
            (OriginCheck::Foreign, Some(host)) => Allowed::origin_at(&head.headers, host.url()),
            (checked, _) => checked,
        }
    }

    /// Finds the tenant whose host a request names.
    fn tenant_host(&self, head: &Parts) -> Result<Arc<TenantHost>, Response> {
        let named = self.allowed.named(&head.uri, &head.headers);
        let found = named.map(|(host, port)| (self.hosts)(&host, port));
        match found.unwrap_or(FoundHost::None) {
            FoundHost::Tenant(host) => Ok(host),
            FoundHost::None => Err(refusal(StatusCode::FORBIDDEN, "host not allowed")),
            FoundHost::Unknown => {
                let status = StatusCode::SERVICE_UNAVAILABLE;
                let mut refused = refusal(status, "hosts of tenants are not known yet");
                let headers = refused.headers_mut();
                headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
                Err(refused)
            }
        }
    }

    /// Returns the share of an address.
    fn share(&self, address: IpAddr) -> Arc<Budget> {
        self.memory.address(address)
    }

    /// Returns the share in which a request of an address counts. A health probe that has no room in the usual one counts
    /// beside all requests: it costs little, and a busy gateway must not look dead.
    fn share_of_request(&self, address: IpAddr, is_probe: bool, cost: usize) -> Arc<Budget> {
        let share = self.share(address);
        if is_probe && !share.has_room(cost as u64) {
            return self.memory.probes(address);
        }
        share
    }

    /// Returns the share of a peer, or all that there is for a proxy, whose connections are those of many clients.
    pub(super) fn share_of_peer(&self, peer: IpAddr) -> Arc<Budget> {
        let peer = peer.to_canonical();
        if self.proxies.iter().any(|proxy| proxy.contains(&peer)) {
            return Arc::clone(self.memory.requests());
        }
        self.share(peer)
    }

    /// Counts what is refused for want of room in such a share.
    pub(super) fn count_refused(&self) {
        self.metrics.limited.add(LimitName("address_memory"));
    }

    /// Makes the response to an address that has too much under way.
    fn no_room(&self) -> Response {
        self.count_refused();
        let status = StatusCode::SERVICE_UNAVAILABLE;
        let mut refused = refusal(status, "too much of this address is under way");
        let headers = refused.headers_mut();
        headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        refused
    }

    fn check_content(&self, head: &Parts) -> Result<(), Response> {
        if !is_canonical(head.uri.path()) {
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
        // Checked before the body is polled, because hyper then sends `100 Continue`.
        let length = head
            .headers
            .get(CONTENT_LENGTH)
            .and_then(|length| length.to_str().ok());
        if length
            .and_then(|length| length.parse().ok())
            .is_some_and(|length: u64| length > self.max_body)
        {
            return Err(refusal(StatusCode::PAYLOAD_TOO_LARGE, "body too large"));
        }
        Ok(())
    }
}

impl Gate {
    /// Counts a request for its address, before anything is waited for: over HTTP/2 each is a task that runs behind all
    /// others that are ready, and then waits in the line of its address.
    ///
    /// # Errors
    ///
    /// The answer to a request of HTTP/2 for which there is no room, or to CONNECT. That of HTTP/1, of which a connection
    /// has one at a time, is made in its turn.
    pub(super) fn receive(
        &self,
        peer: IpAddr,
        request: Request,
    ) -> Result<(Request, Admitted), Response> {
        let address = client_address(peer, request.headers(), &self.proxies);
        let (mut head, body) = request.into_parts();
        let is_http2 = head.version == Version::HTTP_2;
        if is_http2 {
            head.uri = copied(&head.uri);
        }
        let is_probe = route_label(head.uri.path()) == Route::Health;
        let (mut size, is_too_large) = measure(&head.headers);
        if is_too_large {
            let_go(&mut head);
            size = measure(&head.headers).0;
        }
        let text = text_of_target(&head);
        let mut cost = REQUEST + text + size + head.headers.len() * FIELD;
        let is_read = !is_probe && !is_too_large;
        // hyper tells of no body behind CONNECT, and has what comes there kept until that is answered.
        let is_connect = is_http2 && head.method == Method::CONNECT;
        let is_open = is_http2 && (is_connect || !body.is_end_stream());
        if is_open {
            cost += TRAILERS + if is_read { unread(&head.headers) } else { 0 };
        }
        let share = self.share_of_request(address, is_probe, cost);
        let (mut body, state) = body_limit::limit(body, self.max_body, share);
        if is_http2 && !is_read {
            // h2 keeps what comes of it until it is let go of.
            body = Body::empty();
        }
        let has_room = state.draw(cost);
        if is_connect || (is_http2 && !has_room) {
            drop(body);
            state.keep(STREAM + if is_open { TRAILERS as u64 } else { 0 });
            let refused = if has_room {
                no_tunnel()
            } else {
                self.no_room()
            };
            return Err(self.refuse(refused, &mut head, address, state));
        }
        let lacks = match (is_too_large, has_room) {
            (true, _) => Some(Lacks::Bounds),
            (false, false) => Some(Lacks::Room),
            (false, true) => None,
        };
        if lacks == Some(Lacks::Room) {
            let_go(&mut head);
            state.keep((REQUEST + text) as u64);
        }
        let admitted = Admitted {
            address,
            state,
            lacks,
        };
        Ok((Request::from_parts(head, body), admitted))
    }

    /// Refuses a request before its turn.
    fn refuse(
        &self,
        refused: Response,
        head: &mut Parts,
        address: IpAddr,
        state: BodyState,
    ) -> Response {
        let_go(head);
        let begun = self.begin(head, address);
        let refused = self.readable(refused, head, begun.served);
        let refused = in_form_of(begun.line.path(), refused);
        let mut refused = begun.answered(refused, &state);
        // Until it is sent.
        refused.extensions_mut().insert(state);
        refused
    }

    /// Begins the line of a request in the access log, and its span.
    fn begin(&self, head: &mut Parts, address: IpAddr) -> Begun<'_> {
        let served = Kind::served(head.uri.path());
        let label = served.map_or_else(|| route_label(head.uri.path()), label_of);
        let span = self.begin_span(head, label);
        let trace = match &span {
            Some(span) => Some(span.context()),
            None => TraceContext::of_headers(&head.headers),
        };
        if let Some(trace) = &trace {
            head.extensions.insert(trace.clone());
        }
        Begun {
            line: self.log.begin(head, label, address, trace),
            span,
            served,
            label,
            version: head.version,
            is_head: head.method == Method::HEAD,
        }
    }

    /// Passes a request through the gate to its route, and the response back.
    pub(super) async fn pass(
        &self,
        request: Request,
        admitted: Admitted,
        routes: &Routes,
    ) -> Response {
        let Admitted {
            address,
            state,
            lacks,
        } = admitted;
        let share = state.budget();
        // Requests that come at once, on one connection or on many, would be handled at once.
        if share.is_due() || share.is_busy() {
            share.others_first().await;
        }
        let (mut head, body) = request.into_parts();
        let begun = self.begin(&mut head, address);
        let (path, served, label) = (begun.line.path(), begun.served, begun.label);
        let response = match self.check(&mut head, lacks) {
            Err(refused) => {
                let refused = with_methods(refused, &head.uri, routes).await;
                in_form_of(path, self.readable(refused, &head, served))
            }
            Ok(origin) => {
                let mut response = if cors::is_preflight(&head.method, &head.headers) {
                    in_form_of(path, self.preflight(&head.headers, address, label))
                } else {
                    head.extensions.insert(ClientAddress(address));
                    let response = routes.call_safely(Request::from_parts(head, body)).await;
                    in_form_of(path, self.judged(response, state.get(), label))
                };
                if served.is_none() && cors::is_public(path) {
                    cors::allow_any_origin(response.headers_mut());
                } else {
                    cors::allow_origin(response.headers_mut(), origin);
                }
                response
            }
        };
        begun.answered(response, &state)
    }

    /// Returns the response of a route, or the one to a body beyond a limit: a route cannot tell the limits apart.
    fn judged(&self, response: Response, body: ReadState, label: Route) -> Response {
        match body {
            ReadState::TooLarge => refusal(StatusCode::PAYLOAD_TOO_LARGE, "body too large"),
            ReadState::Stalled => refusal(StatusCode::REQUEST_TIMEOUT, "body stalled"),
            ReadState::Scattered => {
                refusal(StatusCode::BAD_REQUEST, "the body comes in too many parts")
            }
            ReadState::NoRoom if label != Route::Health => self.no_room(),
            ReadState::Partial | ReadState::Complete | ReadState::NoRoom => response,
        }
    }

    /// Lets pages read a refusal that came before their origin was looked at, as they read others.
    fn readable(&self, mut refused: Response, head: &Parts, served: Option<Kind>) -> Response {
        let headers = refused.headers_mut();
        if headers.contains_key(VARY) {
            return refused;
        }
        if served.is_none() && cors::is_public(head.uri.path()) {
            cors::allow_any_origin(headers);
        } else {
            let is_ours = self.allowed.origin(&head.headers) == OriginCheck::Ours;
            let origin = head.headers.get(ORIGIN).filter(|_| is_ours);
            cors::allow_origin(headers, origin.cloned());
        }
        refused
    }

    /// Answers a preflight, which no route sees, within the rate of its address.
    fn preflight(&self, headers: &HeaderMap, address: IpAddr, label: Route) -> Response {
        if label == Route::Health {
            return cors::preflight(headers);
        }
        (self.limit)(address).map_or_else(|| cors::preflight(headers), over_rate)
    }

    /// Begins the span of a request; health probes have none.
    fn begin_span(&self, head: &Parts, label: Route) -> Option<Span> {
        if label == Route::Health || !self.traces.is_enabled() {
            return None;
        }
        let route = Kind::route(head.uri.path());
        self.traces.request(&head.method, route, &head.headers)
    }
}

/// Makes the response to an address beyond its rate.
fn over_rate(refused: McpRefusal) -> Response {
    let (status, text) = refused.parts();
    let mut response = refusal(status, text);
    for (name, value) in refused.into_response().headers() {
        let field = response.headers_mut().entry(name);
        field.or_insert_with(|| value.clone());
    }
    response
}

/// Returns the label under which a request is counted.
fn route_label(path: &str) -> Route {
    if matches!(path, "/livez" | "/readyz") {
        return Route::Health;
    }
    Kind::of(path).map_or(Route::Other, label_of)
}

/// Returns whether a path is one of the administration API.
fn is_administration(path: &str) -> bool {
    path.strip_prefix("/api")
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns the label of requests to an MCP endpoint.
const fn label_of(kind: Kind) -> Route {
    match kind {
        Kind::Mcp => Route::Mcp,
        Kind::Sse | Kind::Messages => Route::Sse,
    }
}

/// Counts a complete answer for its address until the client has taken it. A stream has no size, and counts for its
/// session, but what may come behind its request for the address; a long answer to a call counts for its caller, of which
/// a page has none. Nor has a refusal: an answer with the status of one may be that of a call, and counts twice then.
fn counted(
    response: Response,
    state: &BodyState,
    (served, version): (Option<Kind>, Version),
) -> Response {
    let trailers = trailers_of(state, version);
    let Some(length) = response.body().size_hint().exact() else {
        return response.map(|answer| state.hold_with(answer, trailers));
    };
    // Of HTTP/1 a connection has one answer at a time.
    let (uncounted, least) = if version == Version::HTTP_2 {
        (0, STREAM + trailers)
    } else {
        (UNCOUNTED, 0)
    };
    if length <= uncounted {
        return response;
    }
    let content_type = response.headers().get(CONTENT_TYPE);
    let is_page = content_type.is_some_and(|value| value.as_bytes().starts_with(b"text/html"));
    let is_of_call = served.is_some() && !is_page && response.status().is_success();
    if is_of_call && length > json::SHORT as u64 {
        return response;
    }
    response.map(|answer| state.count_until_taken(answer, least))
}

/// Returns what trailers may take behind a body that was not read to its end: they may come as long as its stream is kept.
fn trailers_of(state: &BodyState, version: Version) -> u64 {
    let is_open = version == Version::HTTP_2 && state.get() != ReadState::Complete;
    if is_open { TRAILERS as u64 } else { 0 }
}

/// Counts the head of an answer without a body for its address, until h2 has written it: those that a client does not take
/// wait there, and nothing else of their streams does.
fn count_head(headers: &mut HeaderMap, state: &BodyState) {
    let held = STREAM + trailers_of(state, Version::HTTP_2) + measure(headers).0 as u64;
    let held = state.budget().hold(held);
    // h2 drops the value with the head, and knows nothing else of ours.
    let value = held.until_dropped(Bytes::from_static(b"nosniff"));
    if let Ok(mut value) = HeaderValue::from_maybe_shared(value) {
        // It would keep one that it may refer to in further heads.
        value.set_sensitive(true);
        headers.insert(X_CONTENT_TYPE_OPTIONS, value);
    }
}

/// Adds the header fields that every response of this listener has.
fn with_response_headers(mut response: Response, version: Version, body: ReadState) -> Response {
    let headers = response.headers_mut();
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    // The rest of a body must never be read as the next request. HTTP/2 has frames for that.
    if body != ReadState::Complete && version < Version::HTTP_2 {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Makes the response to a request with too many or too long header fields.
fn fields_too_large() -> Response {
    let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
    let mut refused = refusal(status, "header fields too large");
    let headers = refused.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    refused
}

/// Refuses several transfer codings (RFC 9112, section 6.1: chunked is applied once). hyper reads the
/// last one only; a proxy may read the first and find another end of the body.
fn check_framing(headers: &HeaderMap) -> Result<(), Response> {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let is_chunked = |coding: &HeaderValue| coding.as_bytes().eq_ignore_ascii_case(b"chunked");
    match (codings.next(), codings.next()) {
        (None, _) => Ok(()),
        (Some(coding), None) if is_chunked(coding) => Ok(()),
        _ => Err(refusal(StatusCode::BAD_REQUEST, "bad transfer coding")),
    }
}

/// Refuses methods that no route has: CONNECT, TRACE and unknown ones. RFC 9110 has 501 for the
/// latter, but the gateway promises never to answer a client's mistake with it.
fn check_method(method: &Method) -> Result<(), Response> {
    match method.as_str() {
        "GET" | "HEAD" | "POST" | "PUT" | "PATCH" | "DELETE" | "OPTIONS" => Ok(()),
        _ => Err(refusal(
            StatusCode::METHOD_NOT_ALLOWED,
            "method not allowed",
        )),
    }
}

/// Makes the response to CONNECT over HTTP/2, whose target is no path with methods.
fn no_tunnel() -> Response {
    let mut refused = refusal(StatusCode::METHOD_NOT_ALLOWED, "method not allowed");
    let headers = refused.headers_mut();
    headers.insert(ALLOW, HeaderValue::from_static(""));
    refused
}

/// Adds the methods of its path to a refusal of [`check_method`] (RFC 9110, section 15.5.6).
async fn with_methods(mut refused: Response, uri: &Uri, routes: &Routes) -> Response {
    if refused.status() == StatusCode::METHOD_NOT_ALLOWED {
        let methods = routes.methods(uri).await;
        refused.headers_mut().insert(ALLOW, methods);
    }
    refused
}

/// Refuses a target with the scheme of another protocol (RFC 9112, section 3.2.2; `:scheme` in RFC 9113, section
/// 8.3.1). http and https mean the same here: a proxy that ends TLS passes on either.
fn check_scheme(uri: &Uri) -> Result<(), Response> {
    match uri.scheme() {
        None => Ok(()),
        Some(scheme) if [Scheme::HTTP, Scheme::HTTPS].contains(scheme) => Ok(()),
        Some(_) => Err(refusal(StatusCode::BAD_REQUEST, "bad scheme")),
    }
}

/// What a request takes beside its head and its body: its tasks, buffers, and the answer that is made.
const REQUEST: usize = 8 << 10;
/// Longest answer that does not count: its connection takes more.
const UNCOUNTED: u64 = 1 << 10;
/// What an answer over HTTP/2 counts as at least: its stream, with its task, is kept as long as the client takes none of it.
const STREAM: u64 = 2 << 10;
/// What trailers over HTTP/2 take.
const TRAILERS: usize = TRAILERS_MAX * FIELD;
/// Longest request target.
const TARGET_MAX: usize = 8 << 10;

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::super::gate::*;

    /// Heads of answers without a body waited in h2 for clients that read nothing, and counted for nobody.
    #[test]
    fn a_head_without_a_body_counts_until_it_is_dropped() {
        let memory = Budget::new(1 << 20);
        let (_, state) = body_limit::limit(Body::empty(), 1, memory.share());
        let mut headers = HeaderMap::new();
        headers.insert(ALLOW, HeaderValue::from_static("GET, POST"));
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        count_head(&mut headers, &state);
        drop(state);
        assert_eq!(headers.len(), 2);
        let value = &headers[X_CONTENT_TYPE_OPTIONS];
        assert_eq!(value, "nosniff");
        assert!(value.is_sensitive(), "h2 keeps it");
        assert!((STREAM..STREAM + 100).contains(&memory.used()));
        drop(headers);
        assert_eq!(memory.used(), 0);
    }

    /// Trailers behind a request whose answer is a stream stayed as long as that, and counted for nobody.
    #[test]
    fn trailers_behind_a_request_count_as_long_as_its_answer_is_a_stream() {
        let endless = || {
            let parts = futures_util::stream::pending::<Result<Bytes, std::convert::Infallible>>();
            Body::from_stream(parts)
        };
        let http2 = (None, Version::HTTP_2);
        for (body, expected) in [(Body::empty(), 0), (endless(), TRAILERS as u64)] {
            let memory = Budget::new(1 << 20);
            let (body, state) = body_limit::limit(body, 1, memory.share());
            drop(body);
            let answer = counted(Response::new(endless()), &state, http2);
            let mut head = HeaderMap::new();
            count_head(&mut head, &state);
            drop(state);
            assert!((STREAM + 2 * expected..).contains(&memory.used()));
            drop(head);
            assert_eq!(memory.used(), expected);
            drop(answer);
            assert_eq!(memory.used(), 0);
        }
    }

    /// A refusal that repeated what was sent was held for clients that read nothing, and counted for nobody.
    #[tokio::test]
    async fn a_long_refusal_of_an_mcp_endpoint_counts_for_its_address() {
        let memory = Budget::new(1 << 20);
        for (status, is_counted) in [(StatusCode::OK, false), (StatusCode::BAD_REQUEST, true)] {
            let (_, state) = body_limit::limit(Body::empty(), 1, memory.share());
            let answer = json::text(status, vec![b' '; 2 * json::SHORT]);
            let answer = counted(answer, &state, (Some(Kind::Mcp), Version::HTTP_11));
            drop(state);
            let held = answer.into_body().frame().await.unwrap().unwrap();
            let least = if is_counted {
                2 * json::SHORT as u64
            } else {
                0
            };
            assert_eq!(memory.used() > 0, is_counted, "{status}");
            assert!(memory.used() >= least, "{status}");
            drop(held);
            assert_eq!(memory.used(), 0, "{status}");
        }
    }
}

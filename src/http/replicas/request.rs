//! Forwarded request: its copy, a single hop to another replica, and the errors of a failed hop.

use std::{net::IpAddr, sync::Arc, time::Duration};

use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, StatusCode,
    header::{self, CONTENT_TYPE},
    request::Parts,
};
use tokio::time::Instant;

use crate::http::{
    admission::{Admitted, Front, body, headers},
    peers::{
        Cluster, Hop, ResponseBody, STREAM_WINDOW, SendError, SignedRequest, carried, mark_refused,
        replaced_for,
    },
    reply::{
        McpRefusal,
        event_stream::EVENT_STREAM,
        header_name::{
            HOP, KEEP_ALIVE, PROXY_CONNECTION, REST_OF_STREAM, TENANT_HOST, TRACEPARENT,
        },
        refusal::refusal,
    },
};
use crate::{
    auth::Access,
    base::{budget::Drawn, sha256},
    config::ClientAddress,
    endpoint::{self, TenantHost},
    error::Error,
    hub::{CallError, ownership::LookupSource},
    protocol::{
        Body as Messages, Kind, LAST_EVENT_ID, Message, Rejected, SESSION_ID,
        headers::PROTOCOL_VERSION,
    },
    state::{Replica, SessionId},
    telemetry::{HopOutcome, Span, TraceContext},
};

/// A client's request that is being forwarded, with its caller and session.
#[derive(Clone)]
pub(crate) struct Forwarding {
    pub(crate) front: Arc<Front>,
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) access: Access,
    /// Session id; empty for a request that begins a session.
    pub(crate) session: String,
    pub(super) request: ForwardedRequest,
    /// What is kept here of its answer before the client takes it; none if that is short.
    pub(super) room: Option<Arc<Drawn>>,
}

/// Copy of a client's request as it is sent to another replica.
#[derive(Clone)]
pub(crate) struct ForwardedRequest {
    pub(crate) method: Method,
    /// Path and query.
    pub(crate) target: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    client: Option<IpAddr>,
    trace: Option<TraceContext>,
}

/// Reason why a hop has no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HopError {
    /// The connection to the other replica failed.
    Send(SendError),
    /// The other replica is not the owner.
    NotOwner,
    /// Another replica has had the address of that one for so long.
    Replaced(Duration),
}

impl Forwarding {
    /// Makes a request for `session` of another replica, within the share of its caller: a call whose answer finds no
    /// room is refused before it is made. Responses and notifications are not: streams that fill the share may wait for
    /// them.
    ///
    /// # Errors
    ///
    /// The refusal of a request beyond that share.
    pub(super) async fn new(
        (front, cluster): (&Arc<Front>, &Arc<Cluster>),
        admitted: &Admitted,
        session: String,
        (parts, body): (&Parts, Bytes),
    ) -> Result<Self, Response> {
        let (access, limits) = (&admitted.access, front.hub.limits());
        let request = ForwardedRequest::of(parts, body);
        let mut room = None;
        if request.may_have_long_answer() {
            room = limits.memory().caller(access).draw(STREAM_WINDOW.into());
            if room.is_none() {
                let parsed = body::messages(access, request.body.clone()).await;
                if may_have_request(&parsed) {
                    let refused = McpRefusal::from(limits.no_room(RETRY_AFTER));
                    let id = body::id_in(parsed);
                    return Err(refused.answering(id.as_deref()).into_response());
                }
            }
        }
        Ok(Self {
            front: Arc::clone(front),
            cluster: Arc::clone(cluster),
            access: access.clone(),
            session,
            request,
            room: room.map(Arc::new),
        })
    }

    /// Sends `request` to a replica and waits for the head of the response.
    pub(crate) async fn hop(
        &self,
        to: &Replica,
        request: &ForwardedRequest,
    ) -> Result<http::Response<ResponseBody>, HopError> {
        let began = Instant::now();
        let mut span = self.front.traces.hop(request.trace.as_ref());
        let context = span.as_ref().map(Span::context);
        let signed = self.sign(to, request, context.as_ref());
        let signed = signed.ok_or(HopError::NotOwner)?;
        let peers = &self.cluster.peers;
        let sent = peers.send(&to.address, &self.access, signed).await;
        let sent = sent.map_err(HopError::Send).and_then(|answer| {
            // The replica refused the hop: it is not the owner, or it was restarted.
            if let Some(refused) = answer.headers().get(HOP) {
                return Err(replaced_for(refused).map_or(HopError::NotOwner, HopError::Replaced));
            }
            Ok(answer)
        });
        let outcome = match &sent {
            Ok(_) => HopOutcome::Ok,
            Err(HopError::NotOwner | HopError::Replaced(_)) => HopOutcome::Moved,
            Err(HopError::Send(SendError::Refused | SendError::NotTaken)) => HopOutcome::Refused,
            Err(HopError::Send(SendError::Full)) => HopOutcome::Full,
            Err(HopError::Send(SendError::Broken | SendError::Silent)) => HopOutcome::Broken,
        };
        self.front.metrics.hop(outcome, began.elapsed());
        if let Some(span) = &mut span
            && sent.is_err()
        {
            span.fail(Some(outcome.into()));
        }
        if let Err(HopError::Send(SendError::Silent)) = &sent {
            self.front.hub.mark_unresponsive(to);
        }
        if let Err(missed) = &sent {
            let (session, address) = (SessionId::shown(&self.session), &*to.address);
            tracing::debug!(
                session.id = session,
                address,
                ?missed,
                "a hop has no answer"
            );
        }
        sent
    }

    /// Makes the HTTP request of a hop in the trace of its span; `None` if it cannot be signed.
    fn sign(
        &self,
        to: &Replica,
        forwarded: &ForwardedRequest,
        span: Option<&TraceContext>,
    ) -> Option<http::Request<Bytes>> {
        let mut own = forwarded.headers.clone();
        if let Some(span) = span {
            own.insert(TRACEPARENT, HeaderValue::try_from(span.parent()).ok()?);
        }
        let hop = Hop {
            target: Arc::clone(&to.boot),
            sender: Arc::clone(&self.cluster.me.boot),
            number: self.cluster.next_number(),
            client: forwarded.client,
            caller: self.access.caller(),
            body: sha256(&forwarded.body),
        };
        let signed = SignedRequest {
            method: &forwarded.method,
            target: &forwarded.target,
            headers: &own,
        };
        let now = self.cluster.clock.now_ms();
        let proof = self.cluster.keys.sign(&hop, signed, now)?;
        let uri = format!("http://{}{}", to.address, forwarded.target);
        let request = http::Request::builder()
            .method(forwarded.method.clone())
            .uri(uri);
        let mut request = request.body(forwarded.body.clone()).ok()?;
        let headers = request.headers_mut();
        *headers = own;
        if !forwarded.body.is_empty() {
            let length = HeaderValue::from(forwarded.body.len());
            headers.insert(header::CONTENT_LENGTH, length);
        }
        headers.insert(HOP, proof);
        Some(request)
    }
}

impl HopError {
    /// Returns how to look for the owner after a failed hop to `owner`.
    pub(super) fn look(self, owner: Replica) -> LookupSource {
        match self {
            Self::Send(SendError::Refused) => LookupSource::OwnerRefused(owner),
            Self::Replaced(age) => LookupSource::OwnerReplaced(owner, age),
            Self::Send(
                SendError::NotTaken | SendError::Full | SendError::Broken | SendError::Silent,
            )
            | Self::NotOwner => LookupSource::Fresh,
        }
    }
}

impl ForwardedRequest {
    /// Copies a request, with the header fields that a hop carries: its credentials stay here.
    pub(crate) fn of(parts: &Parts, body: Bytes) -> Self {
        let carried = carried(&parts.headers);
        let mut headers = HeaderMap::with_capacity(carried.len());
        for (name, value) in carried {
            headers.append(name, value.clone());
        }
        let host = parts.extensions.get::<Arc<TenantHost>>();
        let host = host.map(|host| HeaderValue::try_from(host.authority()));
        if let Some(Ok(host)) = host {
            headers.insert(TENANT_HOST, host);
        } else {
            // A client's own means nothing.
            headers.remove(TENANT_HOST);
        }
        if !headers::takes_retry(&parts.headers) {
            // The owner, which makes the streams, has to know it as well.
            let agent = HeaderValue::from_static(headers::JDK_CLIENT);
            headers.insert(header::USER_AGENT, agent);
        }
        let target = parts.uri.path_and_query();
        let client = parts.extensions.get::<ClientAddress>();
        Self {
            method: parts.method.clone(),
            target: target.map_or("/", |target| target.as_str()).to_owned(),
            headers,
            body,
            client: client.map(|client| client.0),
            trace: parts.extensions.get().cloned(),
        }
    }

    /// Returns whether a stream may answer this request, or the result of a call. It fills the window, as JSON too, before
    /// it is known to be long.
    fn may_have_long_answer(&self) -> bool {
        match self.method {
            Method::GET => true,
            // Of 2024-11-05: results go over the connection of the session.
            Method::POST => self.kind() != Some(endpoint::Kind::Messages),
            _ => false,
        }
    }

    /// Lets go of the header fields that no resume needs, and of the buffer that all of them were read into.
    pub(super) fn keep_for_resume(&mut self) {
        let mut kept = HeaderMap::with_capacity(RESUMED.len());
        for name in &RESUMED {
            let value = self.headers.get(name).map(HeaderValue::as_bytes);
            let value = value.filter(|value| value.len() <= RESUMED_MAX);
            if let Some(Ok(copy)) = value.map(HeaderValue::from_bytes) {
                kept.insert(name, copy);
            }
        }
        self.headers = kept;
    }

    /// Makes the GET that resumes the response to this request behind `cursor`.
    pub(super) fn resume(&self, cursor: &str) -> Self {
        let mut headers = self.headers.clone();
        headers.remove(CONTENT_TYPE);
        headers.remove(LAST_EVENT_ID);
        headers.insert(header::ACCEPT, HeaderValue::from_static(EVENT_STREAM));
        if let Ok(cursor) = HeaderValue::try_from(cursor) {
            headers.insert(LAST_EVENT_ID, cursor);
        }
        // At the end of a call its client may get the listener instead. The relay would go on with the id of the call.
        headers.insert(REST_OF_STREAM, HeaderValue::from_static("1"));
        Self {
            method: Method::GET,
            target: self.target.clone(),
            headers,
            body: Bytes::new(),
            client: self.client,
            trace: self.trace.clone(),
        }
    }

    /// Returns whether this request resumes a stream and can be served from the log alone. HTTP+SSE
    /// cannot: its streams begin with an event that only the owner sends.
    pub(super) fn is_resume(&self) -> bool {
        let has_cursor = self.headers.contains_key(LAST_EVENT_ID);
        self.method == Method::GET && has_cursor && self.kind() == Some(endpoint::Kind::Mcp)
    }

    /// Returns the kind of the endpoint.
    pub(super) fn kind(&self) -> Option<endpoint::Kind> {
        endpoint::Kind::of(self.target.split('?').next()?)
    }

    /// Makes an `owner_lost` error for each JSON-RPC request in the body: the owner may have executed
    /// it.
    pub(super) fn owner_lost_errors(&self) -> Vec<Bytes> {
        let line = |message: &Message| {
            let id = message.id().filter(|_| message.kind() == Kind::Request)?;
            Some(CallError::OWNER_LOST.line(id))
        };
        match Messages::parse(self.body.clone()) {
            Ok(Messages::One(message)) => line(&message).into_iter().collect(),
            Ok(Messages::Batch(items)) => items.iter().flatten().filter_map(line).collect(),
            Err(_) => Vec::new(),
        }
    }
}

/// Whether a body may have a request: "202 Accepted with no body" answers responses and notifications (2025-11-25
/// transports, "Sending Messages to the Server" 4).
fn may_have_request(parsed: &Result<Messages, Rejected>) -> bool {
    match parsed {
        Ok(Messages::One(message)) => message.kind() == Kind::Request,
        Ok(Messages::Batch(items)) => {
            let is_other = |message: &Message| message.kind() != Kind::Request;
            !items.iter().all(|item| item.as_ref().is_ok_and(is_other))
        }
        Err(_) => true,
    }
}

/// Removes hop-by-hop header fields (RFC 9110, section 7.6.1), the proof of a hop, and fields that
/// each connection sets for itself.
pub(super) fn strip_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

/// Makes the response to a hop whose session is not on this replica; its body is not read.
pub(super) fn not_owner() -> Response {
    mark_refused(refusal(StatusCode::MISDIRECTED_REQUEST, "not the owner"))
}

/// Makes the response for a session that exists but whose owner cannot be reached.
pub(crate) fn owner_unreachable() -> Response {
    McpRefusal::from(OWNER_UNREACHABLE).into_response()
}

pub(super) const OWNER_UNREACHABLE: Error = Error::Busy {
    what: "the replica that has the session cannot be reached",
    retry: RETRY_AFTER,
};

const HOP_BY_HOP: [HeaderName; 13] = [
    HOP,
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::EXPECT,
    header::HOST,
    KEEP_ALIVE,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    PROXY_CONNECTION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];
/// The header fields that a resume sends again, beside those that it makes itself.
static RESUMED: [HeaderName; 6] = [
    HeaderName::from_static(SESSION_ID),
    HeaderName::from_static(PROTOCOL_VERSION),
    HeaderName::from_static(LAST_EVENT_ID),
    TRACEPARENT,
    TENANT_HOST,
    header::USER_AGENT,
];
/// Longest value of one: an owner takes none that is longer, but for the context of a trace, which is none then.
const RESUMED_MAX: usize = 512;
/// Delay after which a client retries.
const RETRY_AFTER: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use http::Request;

    use super::super::request::*;

    #[test]
    fn a_stream_keeps_of_its_request_what_a_resume_needs() {
        let head = Bytes::from([vec![b'x'; 8 << 10], b"s1".to_vec()].concat());
        let (long, id) = (head.slice(..8 << 10), head.slice(8 << 10..));
        let value = |bytes: Bytes| HeaderValue::from_maybe_shared(bytes).unwrap();
        let request = Request::get("/t/a/b/mcp").header(SESSION_ID, value(id));
        let request = request.header("mcp-param-region", value(long.clone()));
        let request = request.header(TRACEPARENT, value(long));
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let mut request = ForwardedRequest::of(&parts, Bytes::new());
        drop(parts);
        assert_eq!(request.headers.len(), 3);
        assert!(!head.is_unique());
        request.keep_for_resume();
        assert!(head.is_unique(), "the buffer of the head stays");
        let resume = request.resume("m1");
        let expected = [
            ("accept", EVENT_STREAM),
            ("lockgate-rest", "1"),
            (LAST_EVENT_ID, "m1"),
            (SESSION_ID, "s1"),
        ];
        assert_eq!(resume.headers.len(), expected.len());
        for (name, value) in expected {
            assert_eq!(resume.headers[name], value);
        }
    }

    /// At the end of a call its client would have got the listener, if that had been abandoned.
    #[test]
    fn the_rest_of_a_stream_is_marked() {
        for method in [Method::POST, Method::GET] {
            let request = Request::builder().method(method).uri("/t/a/b/mcp");
            let (parts, ()) = request.body(()).unwrap().into_parts();
            let resume = ForwardedRequest::of(&parts, Bytes::new()).resume("m1");
            assert_eq!(resume.method, Method::GET);
            assert!(resume.headers.contains_key(REST_OF_STREAM));
        }
    }

    #[test]
    fn only_the_agent_of_the_jdk_travels() {
        for (agent, told) in [
            ("Java-http-client/21.0.4", Some("Java-http-client")),
            ("node", None),
        ] {
            let request = Request::get("/t/a/b/mcp").header(header::USER_AGENT, agent);
            let (parts, ()) = request.body(()).unwrap().into_parts();
            let mut request = ForwardedRequest::of(&parts, Bytes::new());
            request.keep_for_resume();
            let resume = request.resume("m1");
            let found = resume.headers.get(header::USER_AGENT);
            assert_eq!(found.map(|found| found.to_str().unwrap()), told);
        }
    }

    /// Those as JSON were in no budget.
    #[test]
    fn calls_have_long_answers_in_whichever_form() {
        let of = |method: &Method, path: &str, accept: &'static str| {
            let request = Request::builder().method(method).uri(path);
            let request = request.header(header::ACCEPT, accept).body(()).unwrap();
            let (parts, ()) = request.into_parts();
            ForwardedRequest::of(&parts, Bytes::new()).may_have_long_answer()
        };
        let (both, json) = ("application/json, text/event-stream", "application/json");
        assert!(of(&Method::GET, "/t/a/b/sse", json));
        for accept in [both, json, EVENT_STREAM] {
            assert!(of(&Method::POST, "/t/a/b/mcp", accept));
        }
        assert!(!of(&Method::POST, "/t/a/b/messages?session_id=x", both));
        assert!(!of(&Method::DELETE, "/t/a/b/mcp", both));
    }

    #[test]
    fn a_body_that_may_have_a_request_has_an_answer() {
        let request = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
        let notification = r#"{"jsonrpc":"2.0","method":"notifications/cancelled"}"#;
        let result = r#"{"jsonrpc":"2.0","id":1,"result":{}}"#;
        let error = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"no"}}"#;
        let of = |text: &str| may_have_request(&Messages::parse(Bytes::from(text.to_owned())));
        for text in [notification, result, error] {
            assert!(!of(text), "{text}");
        }
        assert!(!of(&format!("[{result},{notification},{error}]")));
        let (mixed, odd) = (format!("[{result},{request}]"), format!("[{result},1]"));
        for text in [request, mixed.as_str(), odd.as_str(), "{}", "[]", ""] {
            assert!(of(text), "{text}");
        }
    }
}

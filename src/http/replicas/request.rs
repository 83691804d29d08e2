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
    admission::Front,
    peers::{
        Cluster, Hop, ResponseBody, SendError, SignedRequest, carried, mark_refused, replaced_for,
    },
    reply::{
        McpRefusal,
        event_stream::EVENT_STREAM,
        header_name::{HOP, KEEP_ALIVE, PROXY_CONNECTION, TENANT_HOST, TRACEPARENT},
        refusal::refusal,
    },
};
use crate::{
    auth::Access,
    base::sha256,
    config::ClientAddress,
    endpoint::{self, TenantHost},
    error::Error,
    hub::{CallError, ownership::LookupSource},
    protocol::{Body as Messages, Kind, LAST_EVENT_ID, Message},
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

    /// Makes the GET that resumes the response to this request behind `cursor`.
    pub(super) fn resume(&self, cursor: Option<&str>) -> Self {
        let mut headers = self.headers.clone();
        headers.remove(CONTENT_TYPE);
        headers.remove(LAST_EVENT_ID);
        headers.insert(header::ACCEPT, HeaderValue::from_static(EVENT_STREAM));
        if let Some(cursor) = cursor.and_then(|cursor| HeaderValue::try_from(cursor).ok()) {
            headers.insert(LAST_EVENT_ID, cursor);
        }
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
/// Delay after which a client retries.
const RETRY_AFTER: Duration = Duration::from_secs(1);

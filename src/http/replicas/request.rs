//! A request that goes to another replica, and the answers where it does not arrive.

use std::{net::IpAddr, sync::Arc, time::Duration};

use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, StatusCode,
    header::{self, CONTENT_TYPE},
    request::Parts,
};
use http_body_util::Full;
use tokio::time::Instant;

use crate::http::{
    admission::Front,
    peers::{Answer, Asked, Cluster, Hop, NotSent, no_route},
    reply::{Failure, header_name::HOP, refusal::refusal},
};
use crate::{
    auth::Access,
    config::ClientAddress,
    endpoint,
    error::Error,
    hub::ownership::Look,
    protocol::{Body as Said, Kind, LAST_EVENT_ID, Message},
    state::Replica,
    telemetry::Hopped,
};

/// A request on its way, and on whose behalf.
#[derive(Clone)]
pub(crate) struct Errand {
    pub(crate) front: Arc<Front>,
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) access: Access,
    pub(crate) session: String,
    pub(super) parcel: Parcel,
}

/// What is sent.
#[derive(Clone)]
pub(crate) struct Parcel {
    pub(crate) method: Method,
    /// Path and query.
    pub(crate) target: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    client: Option<IpAddr>,
}

/// Why a hop has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missed {
    /// Nobody saw it.
    Not(NotSent),
    /// The other replica is not the owner.
    Moved,
}

impl Errand {
    /// Sends `parcel` to a replica; returns when the head of an answer is there.
    pub(crate) async fn hop(
        &self,
        to: &Replica,
        parcel: &Parcel,
    ) -> Result<http::Response<Answer>, Missed> {
        let began = Instant::now();
        let request = self.request(to, parcel).ok_or(Missed::Moved)?;
        let sent = self.cluster.peers.send(&to.address, request).await;
        let sent = sent.map_err(Missed::Not).and_then(|answer| {
            // No route answered it: it knows another owner, or is another life of that replica.
            if answer.headers().contains_key(HOP) {
                return Err(Missed::Moved);
            }
            Ok(answer)
        });
        let outcome = match &sent {
            Ok(_) => Hopped::Ok,
            Err(Missed::Moved) => Hopped::Moved,
            Err(Missed::Not(NotSent::Refused | NotSent::NotTaken)) => Hopped::Refused,
            Err(Missed::Not(NotSent::Full)) => Hopped::Full,
            Err(Missed::Not(NotSent::Broken | NotSent::Silent)) => Hopped::Broken,
        };
        self.front.metrics.hops.hop(outcome, began.elapsed());
        if let Err(Missed::Not(NotSent::Silent)) = &sent {
            self.front.hub.mark_unresponsive(to);
        }
        if let Err(missed) = &sent {
            let (session, address) = (self.session.get(..8), &*to.address);
            tracing::debug!(
                session.id = session,
                address,
                ?missed,
                "a hop has no answer"
            );
        }
        sent
    }

    fn request(&self, to: &Replica, parcel: &Parcel) -> Option<http::Request<Full<Bytes>>> {
        let trace = parcel.headers.get("traceparent");
        let hop = Hop {
            target: Arc::clone(&to.boot),
            sender: Arc::clone(&self.cluster.me.boot),
            client: parcel.client,
            is_tls: self.front.config.http.tls.is_some(),
            trace: trace
                .and_then(|trace| trace.to_str().ok())
                .unwrap_or_default()
                .to_owned(),
        };
        let asked = Asked {
            method: &parcel.method,
            target: &parcel.target,
            length: parcel.body.len() as u64,
        };
        let now = self.cluster.clock.now_ms();
        let signed = self.cluster.keys.sign(&hop, asked, now)?;
        let uri = format!("http://{}{}", to.address, parcel.target);
        let request = http::Request::builder()
            .method(parcel.method.clone())
            .uri(uri);
        let mut request = request.body(Full::new(parcel.body.clone())).ok()?;
        let headers = request.headers_mut();
        headers.clone_from(&parcel.headers);
        if !parcel.body.is_empty() {
            let length = HeaderValue::from(parcel.body.len());
            headers.insert(header::CONTENT_LENGTH, length);
        }
        headers.insert(HOP, signed);
        Some(request)
    }
}

impl Missed {
    /// What is known of a session whose owner was `owner`.
    pub(super) fn look(self, owner: Replica) -> Look {
        match self {
            Self::Not(NotSent::Refused) => Look::Refused(owner),
            Self::Not(NotSent::NotTaken | NotSent::Full | NotSent::Broken | NotSent::Silent)
            | Self::Moved => Look::Anew,
        }
    }
}

impl Parcel {
    pub(crate) fn of(parts: &Parts, body: Bytes) -> Self {
        let mut headers = parts.headers.clone();
        strip(&mut headers);
        let target = parts.uri.path_and_query();
        let client = parts.extensions.get::<ClientAddress>();
        Self {
            method: parts.method.clone(),
            target: target.map_or("/", |target| target.as_str()).to_owned(),
            headers,
            body,
            client: client.map(|client| client.0),
        }
    }

    /// A request to read on behind `cursor` what the answer to this one was.
    pub(super) fn resume(&self, cursor: Option<&str>) -> Self {
        let mut headers = self.headers.clone();
        headers.remove(CONTENT_TYPE);
        headers.remove(LAST_EVENT_ID);
        let accept = HeaderValue::from_static("text/event-stream");
        headers.insert(header::ACCEPT, accept);
        if let Some(cursor) = cursor.and_then(|cursor| HeaderValue::try_from(cursor).ok()) {
            headers.insert(LAST_EVENT_ID, cursor);
        }
        Self {
            method: Method::GET,
            target: self.target.clone(),
            headers,
            body: Bytes::new(),
            client: self.client,
        }
    }

    /// Whether it reads on behind an event, and nothing else. HTTP+SSE does not: it begins with
    /// what only the owner says.
    pub(super) fn is_resume(&self) -> bool {
        let is_named = self.headers.contains_key(LAST_EVENT_ID);
        self.method == Method::GET && is_named && self.kind() == Some(endpoint::Kind::Mcp)
    }

    /// Kind of the endpoint.
    pub(super) fn kind(&self) -> Option<endpoint::Kind> {
        endpoint::Kind::of(self.target.split('?').next()?)
    }

    /// An error for each request in the body: it may have had its effect, and nobody knows.
    pub(super) fn losses(&self) -> Vec<Bytes> {
        let line = |message: &Message| {
            let id = message.id().filter(|_| message.kind() == Kind::Request)?;
            Some([b"{\"jsonrpc\":\"2.0\",\"id\":", id, LOST].concat().into())
        };
        match Said::parse(self.body.clone()) {
            Ok(Said::One(message)) => line(&message).into_iter().collect(),
            Ok(Said::Batch(items)) => items.iter().flatten().filter_map(line).collect(),
            Err(_) => Vec::new(),
        }
    }
}

/// Takes off what belongs to one connection (RFC 9110, section 7.6.1), what only a replica may say,
/// and what is said anew for each connection.
pub(super) fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&OF_ONE_CONNECTION) {
        headers.remove(name);
    }
    for name in ["keep-alive", "proxy-connection"] {
        headers.remove(name);
    }
}

/// The answer to a hop whose session is not here; its body is not read.
pub(super) fn not_here() -> Response {
    no_route(refusal(StatusCode::MISDIRECTED_REQUEST, "not the owner"))
}

/// The session goes on, and nobody can say where.
pub(crate) fn busy() -> Response {
    Failure::from(UNREACHED).into_response()
}

pub(super) const UNREACHED: Error = Error::Busy {
    what: "the replica that has the session cannot be reached",
    retry: AGAIN,
};

const OF_ONE_CONNECTION: [HeaderName; 11] = [
    HOP,
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::EXPECT,
    header::HOST,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];
/// When to come back.
const AGAIN: Duration = Duration::from_secs(1);
/// Behind the id of a request whose owner is lost (DESIGN section 10, "Errors of ours").
const LOST: &[u8] = b",\"error\":{\"code\":-31001,\"message\":\"the replica that had the call is \
gone\",\"data\":{\"reason\":\"owner_lost\",\"retryable\":false}}}";

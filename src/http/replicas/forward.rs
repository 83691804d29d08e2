//! Requests for sessions of other replicas: sent on to the owner, and its answer back.
//!
//! A request goes on before any route has read it, and comes back as if the owner were here. What
//! nobody has taken is sent once more; what may have been taken never is. How a stream whose hop
//! breaks goes on is `splice`.

use std::{net::IpAddr, sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::Request,
    response::{IntoResponse, Response},
};
use bytes::{Bytes, BytesMut};
use futures_util::stream::unfold;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, StatusCode,
    header::{self, CONTENT_TYPE},
    request::Parts,
};
use http_body_util::Full;
use tokio::time::{Instant, timeout};

use super::{
    draining,
    hop::{Asked, HOP, Hop},
    listener::{Cluster, not_here},
    peers::{Answer, Cut, NotSent},
    relay,
};
use crate::config::ClientAddress;
use crate::http::{
    Front,
    mcp::{Admitted, Failure, endpoint, stream, streamable_http},
};
use crate::{
    auth::Access,
    error::Error,
    hub::ownership::{Look, Place},
    protocol::{Body as Said, Kind, LAST_EVENT_ID, Message, event::push_message},
    state::Replica,
    telemetry::Hopped,
};

/// Gives a request back that is to be served here; else its answer.
///
/// Call it before anything of the body is read. `session_of` finds the session that a request
/// names; one that names none stays here.
pub(crate) async fn place(
    front: &Arc<Front>,
    admitted: &Admitted,
    session_of: impl FnOnce(&Request) -> Option<String>,
    request: Request,
) -> Result<Request, Response> {
    let Some(cluster) = &front.cluster else {
        return Ok(request);
    };
    let Some(session) = session_of(&request) else {
        return draining::place(front, cluster, admitted, request).await;
    };
    let is_hop = request.extensions().get::<Hop>().is_some();
    let is_resume = request.headers().contains_key(LAST_EVENT_ID);
    let owner = match owner(front, &admitted.access, &session, Look::Known).await {
        Ok(None) => return Ok(request),
        // A replica that ends claims nothing; whoever sent it here may.
        Ok(Some(_)) | Err(Error::Draining) if is_hop => return Err(not_here()),
        Ok(Some(owner)) => Ok(owner),
        Err(error) if is_hop || !(is_resume || matches!(error, Error::Draining)) => {
            return Err(Failure::from(error).into_response());
        }
        Err(error) => Err(error),
    };
    let owner = match owner {
        // This replica claims nothing any more; that one does.
        Err(Error::Draining) => front.hub.successors().await.pop().ok_or(Error::Draining),
        owner => owner,
    };
    let (parts, body) = request.into_parts();
    // Whole before it leaves: it may have to be sent once more, and if the owner is lost with it, its
    // requests are to be answered by their ids.
    let body = endpoint::whole(body, front.config.http.max_body).await;
    let body = body.map_err(IntoResponse::into_response)?;
    let errand = Errand {
        front: Arc::clone(front),
        cluster: Arc::clone(cluster),
        access: admitted.access.clone(),
        session,
        parcel: Parcel::of(&parts, body.clone()),
    };
    let answering = async {
        match owner {
            Ok(owner) => errand.run(owner).await,
            Err(error) => Some(errand.refused(error).await),
        }
    };
    let ran = tokio::select! {
        ran = answering => ran,
        () = cluster.halt.cancelled() => Some(errand.lost()),
    };
    match ran {
        Some(answer) => Err(answer),
        None => Ok(Request::from_parts(parts, Body::from(body))),
    }
}

/// The other replica that owns a session; none if it is to be served, or refused, here.
async fn owner(
    front: &Front,
    access: &Access,
    session: &str,
    look: Look,
) -> Result<Option<Replica>, Error> {
    match front.hub.locate(access, session, look).await {
        Ok(Place::There(owner)) => Ok(Some(owner)),
        // The route says so, in its own words; `initialize` needs no session.
        Ok(Place::Here) | Err(Error::NoSession) => Ok(None),
        Err(error) => Err(error),
    }
}

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
    /// The answer of the owner, or of whoever owns the session then; none if that is here.
    async fn run(&self, mut owner: Replica) -> Option<Response> {
        let (mut tries, deadline) = (0, Instant::now() + PATIENCE);
        while tries < TRIES {
            tries += 1;
            let missed = match self.sent(&owner).await {
                Ok(answer) => match self.relay(answer).await {
                    Ok(response) => return Some(response),
                    Err(Cut) => Missed::Not(NotSent::Broken),
                },
                Err(missed) => missed,
            };
            let before = owner.clone();
            let look = match missed {
                Missed::Not(NotSent::Full) => break,
                // To listen once more does nothing twice.
                Missed::Not(NotSent::Broken | NotSent::Silent)
                    if self.parcel.method != Method::GET =>
                {
                    return Some(self.lost());
                }
                missed => missed.look(owner),
            };
            match self::owner(&self.front, &self.access, &self.session, look).await {
                Ok(Some(next)) => {
                    // It says that it is not, and the directory that it is: it is about to let go.
                    let is_leaving = missed == Missed::Moved && next == before;
                    if self.parcel.is_resume() && next == before && !is_leaving {
                        break;
                    }
                    if is_leaving && Instant::now() < deadline {
                        tries = 1;
                        tokio::time::sleep(LEAVING).await;
                    }
                    owner = next;
                }
                Ok(None) => return None,
                Err(Error::Draining) => {
                    let mut others = self.front.hub.successors().await.into_iter();
                    let Some(next) = others.find(|next| *next != before) else {
                        return Some(self.refused(Error::Draining).await);
                    };
                    owner = next;
                }
                Err(error) => return Some(self.refused(error).await),
            }
        }
        Some(self.refused(UNREACHED).await)
    }

    /// One attempt of [`Self::run`]. What only reads on is in the log, if the owner takes too long.
    async fn sent(&self, owner: &Replica) -> Result<http::Response<Answer>, Missed> {
        let hop = self.hop(owner, &self.parcel);
        if !self.parcel.is_resume() {
            return hop.await;
        }
        let late = Err(Missed::Not(NotSent::Broken));
        timeout(RESUME, hop).await.unwrap_or(late)
    }

    /// The answer while the owner cannot be reached: a stream can be read without it.
    async fn refused(&self, error: Error) -> Response {
        if self.parcel.is_resume() && matches!(error, Error::Busy { .. }) {
            return relay::read_on(self.clone())
                .await
                .unwrap_or_else(IntoResponse::into_response);
        }
        Failure::from(error).into_response()
    }

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

    /// The owner's answer as that of this replica.
    pub(super) async fn relay(&self, answer: http::Response<Answer>) -> Result<Response, Cut> {
        let (head, body) = answer.into_parts();
        let mut headers = head.headers;
        strip(&mut headers);
        let kind = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
        let is_stream = kind.is_some_and(|kind| kind.starts_with(b"text/event-stream"));
        let body = if is_stream && head.status == StatusCode::OK {
            relay::body(self.clone(), body)
        } else {
            held(body).await?
        };
        let mut response = Response::new(body);
        *response.status_mut() = head.status;
        *response.headers_mut() = headers;
        Ok(response)
    }

    /// The answer to a request that may have been taken, and whose owner is gone.
    fn lost(&self) -> Response {
        let lines = self.parcel.losses();
        let is_2024 = self.parcel.path().ends_with("/messages");
        if lines.is_empty() || is_2024 {
            return busy();
        }
        if !endpoint::accepts(&self.parcel.headers).json {
            let mut events = BytesMut::new();
            for line in &lines {
                push_message(&mut events, "", line);
            }
            return stream::event_stream(Body::from(events.freeze()));
        }
        let is_batch = self.parcel.body.trim_ascii_start().starts_with(b"[");
        streamable_http::json(match lines.as_slice() {
            [line] if !is_batch => line.clone(),
            lines => [b"[", &*lines.join(&b","[..]), b"]"].concat().into(),
        })
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
    fn is_resume(&self) -> bool {
        let is_named = self.headers.contains_key(LAST_EVENT_ID);
        self.method == Method::GET && is_named && self.path().ends_with("/mcp")
    }

    /// The path alone.
    pub(crate) fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
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

/// An answer that is no stream, whole: so that what breaks in its middle is still answered.
async fn held(mut answer: Answer) -> Result<Body, Cut> {
    let mut pieces = BytesMut::new();
    while let Some(piece) = answer.next().await? {
        pieces.extend_from_slice(&piece);
        if pieces.len() > HELD {
            let first = Some(pieces.freeze());
            let rest = unfold((first, Some(answer)), async |(first, answer)| {
                let mut answer = answer?;
                if let Some(first) = first {
                    return Some((Ok(first), (None, Some(answer))));
                }
                match answer.next().await {
                    Ok(None) => None,
                    Ok(Some(piece)) => Some((Ok(piece), (None, Some(answer)))),
                    Err(cut) => Some((Err(cut), (None, None))),
                }
            });
            return Ok(Body::from_stream(rest));
        }
    }
    Ok(Body::from(pieces.freeze()))
}

/// Takes off what belongs to one connection (RFC 9110, section 7.6.1), what only a replica may say,
/// and what is said anew for each connection.
fn strip(headers: &mut HeaderMap) {
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

/// The session goes on, and nobody can say where.
pub(crate) fn busy() -> Response {
    Failure::from(UNREACHED).into_response()
}

const UNREACHED: Error = Error::Busy {
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
/// A request is sent once, and once more if nobody took it.
const TRIES: usize = 2;
/// How long a replica may take to let go of a session, and between two looks whether it has.
const PATIENCE: Duration = Duration::from_secs(1);
const LEAVING: Duration = Duration::from_millis(20);
/// How long an owner may take to attach a connection that reads on: longer than its own look into
/// the log, and much shorter than a frozen one takes to be noticed.
const RESUME: Duration = Duration::from_secs(1);
/// When to come back.
const AGAIN: Duration = Duration::from_secs(1);
/// The longest answer that is held; one that breaks behind it breaks its client's connection. As
/// long as the longest line of a child by default.
const HELD: usize = 16 << 20;
/// Behind the id of a request whose owner is lost (DESIGN section 10, "Errors of ours").
const LOST: &[u8] = b",\"error\":{\"code\":-31001,\"message\":\"the replica that had the call is \
gone\",\"data\":{\"reason\":\"owner_lost\",\"retryable\":false}}}";

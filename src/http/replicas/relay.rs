//! Relay of another replica's response, which survives the loss of that replica.
//!
//! The client is connected to this replica, so its connection outlives the owner. The stream
//! continues on it, behind the last event that the client received, from the next owner or from the
//! log.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use bytes::{Bytes, BytesMut};
use futures_util::{
    StreamExt,
    future::ready,
    stream::{once, unfold},
};
use http::{HeaderValue, Method, StatusCode, header::CONTENT_TYPE};
use http_body_util::BodyExt;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::{
    request::{Forwarding, HopError, strip_hop_by_hop},
    sse_parser::SseParser,
};
use crate::http::{
    admission::headers,
    peers::{BrokenResponse, ResponseBody, SendError},
    reply::{
        McpRefusal, StreamOptions,
        event_stream::{self, EVENT_STREAM},
        header_name::STREAM_BEGIN,
    },
};
use crate::{
    base::budget::{Budget, Drawn},
    endpoint,
    error::Error,
    hub::{
        Transport,
        limits::Flow,
        ownership::{LookupSource, Place},
        stream::{LogOnlyStream, RECONNECT_TIMEOUT},
    },
    protocol::{
        KEEP_ALIVE, LAST_EVENT_ID, Revision,
        event::{push_message, push_priming, push_retry},
    },
    state::Replica,
};

/// An event stream that is being relayed to a client.
struct Relay {
    forwarding: Forwarding,
    parser: SseParser,
    source: Source,
    /// What counts the events on their way to the client.
    share: Arc<Budget>,
    /// Held of it for an incomplete event.
    held: Drawn,
    /// The time until which that waits for room, if it has to.
    patience: Option<Instant>,
}

/// Source of the events.
enum Source {
    /// The response of another replica.
    Remote(ResponseBody),
    /// A stream of this replica.
    Local(Body),
    /// The log, until an owner is found.
    Log(Box<LogSource>),
    Ended,
}

/// A stream whose owner cannot be reached.
struct LogSource {
    log: LogOnlyStream,
    flow: Flow,
    /// Bytes to be sent first.
    first: BytesMut,
    /// Where to look for the owner.
    look: LookupSource,
    /// Time of the last bytes sent to the client.
    last_sent: Instant,
    /// Time at which the client is asked to reconnect.
    deadline: Instant,
}

/// Result of a search for the rest of a stream.
enum Lookup {
    /// The stream continues from this source.
    Found(Source),
    /// The client has received the whole stream.
    Complete,
    /// The stream cannot be continued; the client's own resume gets the reason.
    Failed,
    /// The owner is not known yet.
    Pending(LookupSource),
}

/// Relays a stream that begins behind the event with this id, if that is known.
fn body(mut forwarding: Forwarding, source: Source, begin: Option<String>) -> Body {
    forwarding.request.keep_for_resume();
    let share = forwarding.share();
    let relay = Relay {
        forwarding,
        parser: SseParser::behind(begin),
        source,
        held: share.hold(0),
        share,
        patience: None,
    };
    let chunks = unfold(relay, async |mut relay| {
        let chunk = relay.next().await?;
        Some((Ok::<_, Infallible>(chunk), relay))
    });
    Body::from_stream(chunks)
}

/// Serves a resume while the owner cannot be reached: first from the log, and then from the next
/// owner.
pub(super) async fn from_log(forwarding: Forwarding) -> Result<Response, McpRefusal> {
    let Forwarding {
        front,
        access,
        session,
        request,
        ..
    } = &forwarding;
    if !headers::accepts(&request.headers).sse {
        let text = "Accept must permit text/event-stream";
        return Err(McpRefusal::http(StatusCode::NOT_ACCEPTABLE, text));
    }
    headers::check_version(&request.headers, access)?;
    let cursor = headers::single(&request.headers, LAST_EVENT_ID)?.unwrap_or_default();
    let read = front.hub.read_log(access, session, cursor.as_bytes());
    let Some(log) = read.await? else {
        return Ok(StatusCode::NO_CONTENT.into_response());
    };
    let has_priming = log.revision().is_some_and(Revision::has_priming);
    let first = if has_priming {
        forwarding.priming(&log.id())
    } else {
        BytesMut::new()
    };
    let now = Instant::now();
    let source = LogSource {
        log,
        flow: front.hub.limits().flow(access),
        first,
        look: LookupSource::Fresh,
        last_sent: now,
        deadline: now + LOG_TIMEOUT,
    };
    let source = Source::Log(Box::new(source));
    Ok(event_stream::event_stream(body(forwarding, source, None)))
}

impl Relay {
    async fn next(&mut self) -> Option<Bytes> {
        // The connection ends with this replica, though the owner goes on. A GET ends as soon as
        // this replica drains, as it does on a draining owner.
        let cluster = &self.forwarding.cluster;
        let stop = if self.forwarding.request.method == Method::GET {
            cluster.release.clone()
        } else {
            cluster.halt.clone()
        };
        loop {
            let chunk = match &mut self.source {
                Source::Ended => return None,
                Source::Local(body) => match body.frame().await {
                    Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
                    Some(Err(_)) | None => return None,
                },
                Source::Log(_) => {
                    tokio::select! {
                        chunk = self.next_from_log() => chunk,
                        () = stop.cancelled() => self.close(),
                    }
                }
                Source::Remote(answer) => {
                    // What is not read of an event stays at the owner, which counts it. But several that wait
                    // for each other's room would do so for ever.
                    let patience = Instant::now() + PATIENCE;
                    let next = async {
                        while self.held.amount() > 0
                            && self.held.is_too_much()
                            && Instant::now() < self.patience.unwrap_or(patience)
                        {
                            self.patience.get_or_insert(patience);
                            sleep(ROOM).await;
                        }
                        answer.next().await
                    };
                    let next = tokio::select! {
                        biased;
                        next = next => Some(next),
                        () = stop.cancelled() => None,
                    };
                    match next {
                        Some(Ok(Some(data))) => self.parser.push(data),
                        Some(Ok(None)) => return None,
                        Some(Err(_)) => self.reconnect().await,
                        None => self.close(),
                    }
                }
            };
            self.count_incomplete();
            if self.parser.last_id().is_some() && !self.forwarding.request.body.is_empty() {
                // The stream can be resumed from here on, so the request body is not needed.
                self.forwarding.request.body = Bytes::new();
            }
            // Empty frames are skipped: HTTP/2 peers count them as abuse.
            if !chunk.is_empty() {
                // A stream of this replica counts its events itself.
                if matches!(self.source, Source::Local(_)) {
                    return Some(chunk);
                }
                let held = self.share.hold(chunk.len() as u64);
                return Some(held.until_dropped(chunk));
            }
        }
    }

    /// Counts what the parser keeps.
    fn count_incomplete(&mut self) {
        let (kept, held) = (self.parser.kept() as u64, self.held.amount());
        self.held.add(kept.saturating_sub(held));
        self.held.give_back(held.saturating_sub(kept));
        if kept == 0 {
            self.patience = None;
        }
    }

    /// Reads the next events of the log. If there are none, looks for an owner.
    async fn next_from_log(&mut self) -> Bytes {
        let Source::Log(source) = &mut self.source else {
            return Bytes::new();
        };
        if !source.first.is_empty() {
            let first = source.first.split().freeze();
            return self.parser.push(first);
        }
        if let Some(pause) = source.flow.pause() {
            sleep(pause.min(LAST_PAUSE)).await;
            return Bytes::new();
        }
        match source.log.next().await {
            Ok(Some(events)) if events.is_empty() => {}
            Ok(Some(events)) => {
                let mut chunk = BytesMut::new();
                for (id, data) in events {
                    push_message(&mut chunk, &id, &data);
                }
                let now = Instant::now();
                (source.last_sent, source.deadline) = (now, now + LOG_TIMEOUT);
                source.flow.wrote(chunk.len());
                return self.parser.push(chunk.freeze());
            }
            Ok(None) => {
                self.source = Source::Ended;
                return Bytes::new();
            }
            Err(Error::Busy { .. }) => {}
            // The log was trimmed meanwhile; the client's resume gets that error.
            Err(_) => return self.close(),
        }
        self.find_owner().await
    }

    /// Makes one attempt to leave the log for an owner; returns bytes for the client.
    async fn find_owner(&mut self) -> Bytes {
        let has_begun = self.parser.has_passed();
        let Source::Log(source) = &mut self.source else {
            return Bytes::new();
        };
        let (cursor, look) = (source.log.id(), source.look.clone());
        let lookup = self.forwarding.locate(look, &cursor, has_begun);
        let lookup = timeout(LOOKUP_TIMEOUT, lookup).await;
        match lookup.unwrap_or(Lookup::Pending(LookupSource::Fresh)) {
            Lookup::Found(source) => self.continue_from(source),
            Lookup::Complete => self.source = Source::Ended,
            Lookup::Pending(look) if Instant::now() < source.deadline => {
                source.look = look;
                let keep_alive = self.forwarding.front.config.stream.keep_alive;
                if !keep_alive.is_zero() && source.last_sent.elapsed() >= keep_alive {
                    source.last_sent = Instant::now();
                    return Bytes::from_static(KEEP_ALIVE);
                }
                sleep(LOOKUP_INTERVAL).await;
            }
            Lookup::Pending(_) | Lookup::Failed => return self.close(),
        }
        Bytes::new()
    }

    /// Looks for the rest of the stream after the connection to the owner broke; returns bytes for
    /// the client.
    async fn reconnect(&mut self) -> Bytes {
        self.source = Source::Ended;
        self.parser.discard_partial();
        self.count_incomplete();
        let request = &self.forwarding.request;
        let requested = request.headers.get(LAST_EVENT_ID);
        let requested = requested.filter(|_| request.method == Method::GET);
        let requested = requested.and_then(|id| id.to_str().ok());
        let cursor = self.parser.last_id().or(requested).map(str::to_owned);
        let Some(cursor) = cursor else {
            // What went down with the connection would be missing unseen. Owners of an earlier build do not tell where
            // a stream begins.
            return self.close();
        };
        let deadline = Instant::now() + RECONNECT_TIMEOUT;
        let (mut look, mut pause) = (LookupSource::Fresh, FIRST_PAUSE);
        let has_begun = self.parser.has_passed();
        loop {
            let lookup = self.forwarding.locate(look, &cursor, has_begun);
            let lookup = timeout_at(deadline, lookup).await;
            match lookup.unwrap_or(Lookup::Failed) {
                Lookup::Found(source) => {
                    self.continue_from(source);
                    return Bytes::new();
                }
                Lookup::Complete => return Bytes::new(),
                Lookup::Pending(next) if Instant::now() + pause < deadline => look = next,
                Lookup::Pending(_) | Lookup::Failed => break,
            }
            sleep(pause).await;
            pause = (pause * 2).min(LAST_PAUSE);
        }
        self.close()
    }

    fn continue_from(&mut self, source: Source) {
        self.forwarding.front.metrics.streams_spliced.add(1);
        self.source = source;
        self.parser.resume();
    }

    /// Ends the connection with a `retry`, or with errors if the client cannot resume the stream.
    fn close(&mut self) -> Bytes {
        self.source = Source::Ended;
        if self.parser.last_id().is_none() && self.forwarding.request.method != Method::GET {
            return self.owner_lost();
        }
        let mut chunk = BytesMut::new();
        push_retry(&mut chunk, self.forwarding.front.retry.next());
        chunk.freeze()
    }

    /// Makes the last events of a stream that cannot be resumed: an error for each call.
    fn owner_lost(&self) -> Bytes {
        let mut events = BytesMut::new();
        for line in self.forwarding.request.owner_lost_errors() {
            push_message(&mut events, "", &line);
        }
        events.freeze()
    }
}

impl Forwarding {
    /// Turns the owner's response into one of this replica.
    pub(super) async fn relay(
        &self,
        answer: http::Response<ResponseBody>,
    ) -> Result<Response, BrokenResponse> {
        let (head, answer) = answer.into_parts();
        let mut headers = head.headers;
        strip_hop_by_hop(&mut headers);
        let begin = headers.remove(STREAM_BEGIN);
        let begin = begin.and_then(|id| id.to_str().ok().map(str::to_owned));
        let content_type = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
        let is_stream = content_type.is_some_and(|kind| kind.starts_with(EVENT_STREAM.as_bytes()));
        let body = if is_stream && head.status == StatusCode::OK {
            body(self.clone(), Source::Remote(answer), begin)
        } else {
            buffered(answer, &self.share(), self.room.clone()).await?
        };
        let mut response = Response::new(body);
        *response.status_mut() = head.status;
        *response.headers_mut() = headers;
        Ok(response)
    }

    /// The share that counts what the caller has under way here.
    fn share(&self) -> Arc<Budget> {
        self.front.hub.limits().memory().caller(&self.access)
    }

    /// Makes the priming event of a stream that begins here.
    fn priming(&self, id: &str) -> BytesMut {
        let mut first = BytesMut::new();
        let close_after = self.access.server().reply.close_after;
        let retry = self.front.retry.at_begin(close_after, id);
        push_priming(&mut first, id, retry);
        first
    }

    /// Finds the source of the stream behind `cursor`, for a caller that may still have it. The client of one that has
    /// not begun has no event of it.
    async fn locate(&mut self, look: LookupSource, cursor: &str, has_begun: bool) -> Lookup {
        // That of when the stream was opened: its owner followed the changes since.
        match self.front.hub.renewed(&self.access) {
            Ok(access) => self.access = access,
            Err(error) => return Lookup::after(&error),
        }
        let Self {
            front,
            access,
            session,
            ..
        } = &*self;
        match front.hub.locate_or_claim(access, session, look).await {
            Ok(Place::Here) => self.resume_here(cursor, has_begun).await,
            Ok(Place::There(owner)) => self.resume_at(owner, cursor).await,
            Err(error) => Lookup::after(&error),
        }
    }

    /// Resumes the stream on this replica, which owns the session now or can read its log.
    async fn resume_here(&self, cursor: &str, has_begun: bool) -> Lookup {
        let Self {
            front,
            access,
            session,
            request,
            ..
        } = self;
        // Event ids of HTTP+SSE begin with the session id.
        let (transport, prefix) = if request.kind() == Some(endpoint::Kind::Sse) {
            (Transport::Sse2024, format!("{session}."))
        } else {
            (Transport::Streamable, String::new())
        };
        let bare = cursor.strip_prefix(&prefix).unwrap_or(cursor);
        let last = Some(bare.as_bytes());
        let attached = front.hub.attach(access, transport, session, last);
        let reading = match attached.await {
            Ok(Some(reading)) => reading,
            Ok(None) => return Lookup::Complete,
            Err(error) => return Lookup::after(&error),
        };
        let has_priming = reading.revision().is_some_and(Revision::has_priming);
        let first = if !has_begun && has_priming && transport == Transport::Streamable {
            // Without one the client could not ask for what it misses (2025-11-25 transports, "Sending Messages to the
            // Server" 6).
            self.priming(&reading.id())
        } else {
            BytesMut::new()
        };
        let options = StreamOptions {
            keep_alive: front.config.stream.keep_alive,
            retry: front.retry.clone(),
            takes_retry: headers::takes_retry(&request.headers),
            close_at: None,
            first,
            prefix,
            flow: front.hub.limits().flow(access),
        };
        let response = event_stream::respond(&front.metrics, reading, options);
        Lookup::Found(Source::Local(response.into_body()))
    }

    /// Resumes the stream at the next owner.
    async fn resume_at(&self, owner: Replica, cursor: &str) -> Lookup {
        let request = self.request.resume(cursor);
        let hop = timeout(LOOKUP_TIMEOUT, self.hop(&owner, &request)).await;
        let answer = match hop.unwrap_or(Err(HopError::Send(SendError::Broken))) {
            Ok(answer) => answer,
            Err(HopError::Send(SendError::Full)) => return Lookup::Failed,
            Err(error) => return Lookup::Pending(error.look(owner)),
        };
        match answer.status() {
            StatusCode::OK => Lookup::Found(Source::Remote(answer.into_body())),
            StatusCode::NO_CONTENT => Lookup::Complete,
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => {
                Lookup::Pending(LookupSource::Fresh)
            }
            _ => Lookup::Failed,
        }
    }
}

/// Reads a response that is no stream whole, so that an early end can still become an error response.
/// Beyond [`BUFFERED_MAX`] or the share of the caller the rest is streamed: the owner keeps and counts
/// what the client does not take, but for the window, for which there is `room` here.
async fn buffered(
    mut answer: ResponseBody,
    share: &Arc<Budget>,
    room: Option<Arc<Drawn>>,
) -> Result<Body, BrokenResponse> {
    let (mut pieces, mut drawn) = (BytesMut::new(), share.hold(0));
    while let Some(piece) = answer.next().await? {
        let length = piece.len() as u64;
        let has_room = drawn.grow(length);
        if !has_room {
            // It is here already.
            drawn.add(length);
        }
        pieces.extend_from_slice(&piece);
        if !has_room || pieces.len() > BUFFERED_MAX {
            let first = drawn.until_dropped(pieces.freeze());
            return Ok(streamed(first, answer, (Arc::clone(share), room)));
        }
    }
    Ok(Body::from(drawn.until_dropped(pieces.freeze())))
}

/// A body of these bytes and the rest of a response, which is read as the client takes it. It has the share of the caller,
/// and the room for what waits here, until its end.
fn streamed(
    first: Bytes,
    answer: ResponseBody,
    counted: (Arc<Budget>, Option<Arc<Drawn>>),
) -> Body {
    let rest = unfold(Some((answer, counted)), async |rest| {
        let (mut answer, counted) = rest?;
        match answer.next().await {
            Ok(None) => None,
            Ok(Some(piece)) => {
                let held = counted.0.hold(piece.len() as u64);
                Some((Ok(held.until_dropped(piece)), Some((answer, counted))))
            }
            Err(cut) => Some((Err(cut), None)),
        }
    });
    Body::from_stream(once(ready(Ok(first))).chain(rest))
}

impl Lookup {
    /// Result of a search that failed: pending for errors that pass by themselves.
    fn after(error: &Error) -> Self {
        match error {
            Error::Busy { .. } | Error::Limit { .. } | Error::Quota(_) | Error::Moved => {
                Self::Pending(LookupSource::Fresh)
            }
            Error::NoSession
            | Error::NoServer
            | Error::Invalid(_)
            | Error::NotJson(_)
            | Error::NoCursor
            | Error::Gone
            | Error::Scopes(_)
            | Error::Lost
            | Error::Draining
            | Error::Bug(_) => Self::Failed,
        }
    }
}

/// Time for which a stream without an owner waits for another event or for a new owner.
const LOG_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit of one search for an owner.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval between searches while the log is read.
const LOOKUP_INTERVAL: Duration = Duration::from_millis(250);
/// Pause after the first failed search.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// Time for which an incomplete event waits for room.
const PATIENCE: Duration = Duration::from_secs(5);
/// Interval between looks at a share that has no room for more of an event.
const ROOM: Duration = Duration::from_millis(50);
/// Longest pause between searches.
const LAST_PAUSE: Duration = Duration::from_secs(1);
/// Longest response that is buffered: the default limit for a line of a child. If a longer response
/// breaks, so does the client's connection.
const BUFFERED_MAX: usize = 16 << 20;

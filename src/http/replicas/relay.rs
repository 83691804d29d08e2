//! A stream of another replica as an HTTP body, which goes on when that replica is lost.
//!
//! The client's connection is here and still good: what the next owner, or the log, has behind the
//! last event that the client got is written to it as if nothing had happened.

use std::{convert::Infallible, time::Duration};

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use bytes::{Bytes, BytesMut};
use futures_util::stream::unfold;
use http::{HeaderValue, Method, StatusCode, header::CONTENT_TYPE};
use http_body_util::BodyExt;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::{
    request::{Errand, Missed, strip},
    sse_parser::Cutter,
};
use crate::http::{
    admission::headers,
    peers::{Answer, Cut, NotSent},
    reply::{Failure, Writing, event_stream},
};
use crate::{
    endpoint,
    error::Error,
    hub::{
        Transport,
        limits::Flow,
        ownership::{Look, Place},
        stream::Unowned,
    },
    protocol::{
        KEEP_ALIVE, LAST_EVENT_ID, Revision,
        event::{push_message, push_priming, push_retry},
    },
    state::Replica,
};

/// One connection of a client while it is written.
struct Splice {
    errand: Errand,
    cutter: Cutter,
    source: Source,
}

/// Where its events come from.
enum Source {
    /// Another replica.
    There(Answer),
    /// This one.
    Here(Body),
    /// The log, until somebody is found who has the rest.
    Log(Box<Waiting>),
    /// Nowhere any more.
    Over,
}

/// A stream without an owner that can be reached.
struct Waiting {
    log: Unowned,
    flow: Flow,
    /// What comes first.
    first: BytesMut,
    /// What is known of the owner.
    look: Look,
    /// When the client was last told anything.
    told: Instant,
    /// When it is to come again instead.
    until: Instant,
}

/// What came of looking for the rest of a stream.
enum Found {
    /// It goes on.
    Rest(Source),
    /// The client has all of it.
    End,
    /// Nowhere; a resume says why.
    Nowhere,
    /// Nobody can say yet.
    Later(Look),
}

/// The answer to `errand` as a body.
fn stream(errand: Errand, answer: Answer) -> Body {
    chunks(errand, Source::There(answer))
}

fn chunks(errand: Errand, source: Source) -> Body {
    let splice = Splice {
        errand,
        cutter: Cutter::default(),
        source,
    };
    let chunks = unfold(splice, async |mut splice| {
        let chunk = splice.next().await?;
        Some((Ok::<_, Infallible>(chunk), splice))
    });
    Body::from_stream(chunks)
}

/// The answer to a request that reads on behind an event, while nobody can reach the owner: what is in
/// the log, and then the rest.
pub(super) async fn read_on(errand: Errand) -> Result<Response, Failure> {
    let Errand {
        front,
        access,
        session,
        parcel,
        ..
    } = &errand;
    if !headers::accepts(&parcel.headers).sse {
        let text = "Accept must permit text/event-stream";
        return Err(Failure::http(StatusCode::NOT_ACCEPTABLE, text));
    }
    headers::check_version(&parcel.headers)?;
    let cursor = headers::single(&parcel.headers, LAST_EVENT_ID)?.unwrap_or_default();
    let read = front.hub.read_on(access, session, cursor.as_bytes());
    let Some(log) = read.await? else {
        return Ok(StatusCode::NO_CONTENT.into_response());
    };
    let mut first = BytesMut::new();
    if log.revision().is_some_and(Revision::has_priming) {
        let id = log.id();
        push_priming(&mut first, &id, front.retry.at(&id));
    }
    let now = Instant::now();
    let waiting = Waiting {
        log,
        flow: front.hub.limits().flow(access),
        first,
        look: Look::Anew,
        told: now,
        until: now + WAIT,
    };
    let source = Source::Log(Box::new(waiting));
    Ok(event_stream::event_stream(chunks(errand, source)))
}

impl Splice {
    async fn next(&mut self) -> Option<Bytes> {
        // The owner goes on, and this connection ends with this replica: one that only listens at
        // once, as it would at its owner's end.
        let cluster = &self.errand.cluster;
        let until = if self.errand.parcel.method == Method::GET {
            cluster.release.clone()
        } else {
            cluster.halt.clone()
        };
        loop {
            let chunk = match &mut self.source {
                Source::Over => return None,
                Source::Here(body) => match body.frame().await {
                    Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
                    Some(Err(_)) | None => return None,
                },
                Source::Log(_) => {
                    tokio::select! {
                        chunk = self.wait() => chunk,
                        () = until.cancelled() => self.release(),
                    }
                }
                Source::There(answer) => {
                    let next = tokio::select! {
                        biased;
                        next = answer.next() => Some(next),
                        () = until.cancelled() => None,
                    };
                    match next {
                        Some(Ok(Some(data))) => self.cutter.push(data),
                        Some(Ok(None)) => return None,
                        Some(Err(_)) => self.mend().await,
                        None => self.release(),
                    }
                }
            };
            if self.cutter.last_id().is_some() && !self.errand.parcel.body.is_empty() {
                // From here on it can be resumed; what was asked for is no more needed.
                self.errand.parcel.body = Bytes::new();
            }
            // A frame without bytes says nothing, and HTTP/2 counts them.
            if !chunk.is_empty() {
                return Some(chunk);
            }
        }
    }

    /// What is in the log by now; else looks whether the session has an owner again.
    async fn wait(&mut self) -> Bytes {
        let Source::Log(waiting) = &mut self.source else {
            return Bytes::new();
        };
        if !waiting.first.is_empty() {
            let first = waiting.first.split().freeze();
            return self.cutter.push(first);
        }
        if let Some(pause) = waiting.flow.pause() {
            sleep(pause.min(LAST_PAUSE)).await;
            return Bytes::new();
        }
        match waiting.log.next().await {
            Ok(Some(events)) if events.is_empty() => {}
            Ok(Some(events)) => {
                let mut chunk = BytesMut::new();
                for (id, data) in events {
                    push_message(&mut chunk, &id, &data);
                }
                let now = Instant::now();
                (waiting.told, waiting.until) = (now, now + WAIT);
                waiting.flow.wrote(chunk.len());
                return self.cutter.push(chunk.freeze());
            }
            Ok(None) => {
                self.source = Source::Over;
                return Bytes::new();
            }
            Err(Error::Busy { .. }) => {}
            // It was trimmed meanwhile: a resume says so.
            Err(_) => return self.release(),
        }
        self.find_owner().await
    }

    async fn find_owner(&mut self) -> Bytes {
        let Source::Log(waiting) = &mut self.source else {
            return Bytes::new();
        };
        let (cursor, look) = (waiting.log.id(), waiting.look.clone());
        let looking = self.errand.look(look, Some(&cursor));
        let found = timeout(LOOK, looking).await;
        match found.unwrap_or(Found::Later(Look::Anew)) {
            Found::Rest(source) => {
                self.errand.front.metrics.hops.spliced();
                self.source = source;
                self.cutter.resumed();
            }
            Found::End => self.source = Source::Over,
            Found::Later(look) if Instant::now() < waiting.until => {
                waiting.look = look;
                let keep_alive = self.errand.front.config.stream.keep_alive;
                if !keep_alive.is_zero() && waiting.told.elapsed() >= keep_alive {
                    waiting.told = Instant::now();
                    return Bytes::from_static(KEEP_ALIVE);
                }
                sleep(PAUSE).await;
            }
            Found::Later(_) | Found::Nowhere => return self.release(),
        }
        Bytes::new()
    }

    /// Looks for the rest of the stream; what is returned is to be written before it.
    async fn mend(&mut self) -> Bytes {
        self.source = Source::Over;
        self.cutter.broke();
        let parcel = &self.errand.parcel;
        let named = parcel.headers.get(LAST_EVENT_ID);
        let named = named.filter(|_| parcel.method == Method::GET);
        let named = named.and_then(|id| id.to_str().ok());
        let cursor = self.cutter.last_id().or(named).map(str::to_owned);
        if cursor.is_none() && parcel.method != Method::GET {
            return self.lost();
        }
        let deadline = Instant::now() + MEND;
        let (mut look, mut pause) = (Look::Anew, FIRST_PAUSE);
        loop {
            let found = timeout_at(deadline, self.errand.look(look, cursor.as_deref())).await;
            match found.unwrap_or(Found::Nowhere) {
                Found::Rest(source) => {
                    self.errand.front.metrics.hops.spliced();
                    self.source = source;
                    self.cutter.resumed();
                    return Bytes::new();
                }
                Found::End => return Bytes::new(),
                Found::Later(next) if Instant::now() + pause < deadline => look = next,
                Found::Later(_) | Found::Nowhere => break,
            }
            sleep(pause).await;
            pause = (pause * 2).min(LAST_PAUSE);
        }
        self.release()
    }

    /// Ends the connection: its client is to come again, unless it could not read on.
    fn release(&mut self) -> Bytes {
        self.source = Source::Over;
        if self.cutter.last_id().is_none() && self.errand.parcel.method != Method::GET {
            return self.lost();
        }
        let mut chunk = BytesMut::new();
        push_retry(&mut chunk, self.errand.front.retry.next());
        chunk.freeze()
    }

    /// Nothing of the stream is resumable: its calls end here.
    fn lost(&self) -> Bytes {
        let mut events = BytesMut::new();
        for line in self.errand.parcel.losses() {
            push_message(&mut events, "", &line);
        }
        events.freeze()
    }
}

impl Errand {
    /// The owner's answer as that of this replica.
    pub(super) async fn relay(&self, answer: http::Response<Answer>) -> Result<Response, Cut> {
        let (head, body) = answer.into_parts();
        let mut headers = head.headers;
        strip(&mut headers);
        let kind = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
        let is_stream = kind.is_some_and(|kind| kind.starts_with(b"text/event-stream"));
        let body = if is_stream && head.status == StatusCode::OK {
            stream(self.clone(), body)
        } else {
            held(body).await?
        };
        let mut response = Response::new(body);
        *response.status_mut() = head.status;
        *response.headers_mut() = headers;
        Ok(response)
    }

    /// Finds who has the rest of a stream behind `cursor`.
    async fn look(&self, look: Look, cursor: Option<&str>) -> Found {
        let Self {
            front,
            access,
            session,
            ..
        } = self;
        match front.hub.locate(access, session, look).await {
            Ok(Place::Here) => self.attach(cursor).await,
            Ok(Place::There(owner)) => self.resume(owner, cursor).await,
            Err(error) => later(&error),
        }
    }

    /// Reads on here: the session is this replica's now, or its log is readable.
    async fn attach(&self, cursor: Option<&str>) -> Found {
        let Self {
            front,
            access,
            session,
            parcel,
            ..
        } = self;
        // Event ids of HTTP+SSE begin with the session.
        let (transport, prefix) = if parcel.kind() == Some(endpoint::Kind::Sse) {
            (Transport::Sse2024, format!("{session}."))
        } else {
            (Transport::Streamable, String::new())
        };
        let bare = cursor.map(|cursor| cursor.strip_prefix(&prefix).unwrap_or(cursor));
        let id = (transport, &**session);
        let attached = front.hub.attach(access, id, bare.map(str::as_bytes));
        let reading = match attached.await {
            Ok(Some(reading)) => reading,
            Ok(None) => return Found::End,
            Err(error) => return later(&error),
        };
        let writing = Writing {
            keep_alive: front.config.stream.keep_alive,
            retry: front.retry.clone(),
            close_at: None,
            first: BytesMut::new(),
            prefix,
            flow: front.hub.limits().flow(access),
        };
        let response = event_stream::respond(&front.metrics, reading, writing);
        Found::Rest(Source::Here(response.into_body()))
    }

    /// Reads on at the next owner.
    async fn resume(&self, owner: Replica, cursor: Option<&str>) -> Found {
        let parcel = self.parcel.resume(cursor);
        let hopped = timeout(LOOK, self.hop(&owner, &parcel)).await;
        let answer = match hopped.unwrap_or(Err(Missed::Not(NotSent::Broken))) {
            Ok(answer) => answer,
            Err(Missed::Not(NotSent::Full)) => return Found::Nowhere,
            Err(missed) => return Found::Later(missed.look(owner)),
        };
        match answer.status() {
            StatusCode::OK => Found::Rest(Source::There(answer.into_body())),
            StatusCode::NO_CONTENT => Found::End,
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => {
                Found::Later(Look::Anew)
            }
            _ => Found::Nowhere,
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

/// Whether what cannot be had now may be had soon.
fn later(error: &Error) -> Found {
    match error {
        Error::Busy { .. } | Error::Limit { .. } | Error::Quota(_) | Error::Moved => {
            Found::Later(Look::Anew)
        }
        Error::NoSession
        | Error::NoServer
        | Error::Invalid(_)
        | Error::NotJson(_)
        | Error::NoCursor
        | Error::Gone
        | Error::Scopes(_)
        | Error::Draining
        | Error::Bug(_) => Found::Nowhere,
    }
}

/// For so long a stream waits for its next owner; its client's own attempt costs it no more.
const MEND: Duration = Duration::from_secs(10);
/// For so long a stream without an owner waits for another event, or for somebody who claims it.
const WAIT: Duration = Duration::from_secs(30);
/// How long one look for an owner may take, and from one to the next.
const LOOK: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(250);
/// After the first look.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// Between later ones.
const LAST_PAUSE: Duration = Duration::from_secs(1);
/// The longest answer that is held; one that breaks behind it breaks its client's connection. As
/// long as the longest line of a child by default.
const HELD: usize = 16 << 20;

//! A stream as an HTTP body: events as they come, comments in silence, and a `retry:`
//! before the gateway itself closes the connection.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{body::Body, response::Response};
use bytes::{Bytes, BytesMut};
use futures_util::stream::unfold;
use http::{
    HeaderValue,
    header::{CACHE_CONTROL, CONTENT_TYPE},
};
use tokio::{
    select,
    time::{Instant, sleep_until},
};

use super::header_name::X_ACCEL_BUFFERING;
use crate::{
    base::Random,
    hub::{
        limits::Flow,
        stream::{Next, Reading},
    },
    protocol::{
        KEEP_ALIVE, Revision,
        event::{push_message, push_retry},
        json,
    },
    telemetry::Metrics,
};

/// How a connection is written.
pub(crate) struct Writing {
    /// Silence after which a comment is sent.
    pub(crate) keep_alive: Duration,
    /// What a client waits before it comes again.
    pub(crate) retry: Retry,
    /// When the connection is closed to be polled.
    pub(crate) close_at: Option<Instant>,
    /// What comes first: the priming event, or the endpoint of HTTP+SSE.
    pub(crate) first: BytesMut,
    /// What stands before each event id.
    pub(crate) prefix: String,
    /// The bytes that may be written.
    pub(crate) flow: Flow,
}

/// How long clients wait before they come again; a handle.
#[derive(Clone)]
pub(crate) struct Retry {
    usual: Duration,
    random: Arc<Random>,
}

impl Retry {
    /// About `usual` (`stream.retry`).
    pub(crate) fn new(usual: Duration, random: Arc<Random>) -> Self {
        Self { usual, random }
    }

    /// A time from a half of the usual one to one and a half: what is closed at once must not come
    /// back at once (P168).
    pub(crate) fn next(&self) -> Duration {
        let mut bytes = [0; 2];
        // Without randomness all of them take the shortest time: correct, and the more crowded.
        let _ = self.random.fill(&mut bytes);
        self.share(u16::from_le_bytes(bytes))
    }

    /// Such a time for a connection that begins at this event id, always the same: so is what is
    /// replayed from there.
    pub(crate) fn at(&self, id: &str) -> Duration {
        let sum = id.bytes().fold(0_u16, |sum, byte| {
            sum.wrapping_mul(31).wrapping_add(byte.into())
        });
        self.share(sum)
    }

    fn share(&self, of: u16) -> Duration {
        self.usual
            .mul_f64(0.5 + f64::from(of) / f64::from(u16::MAX))
    }
}

/// One connection while it is being written.
struct Connection {
    reading: Reading,
    writing: Writing,
    /// The latest message of what answers a request.
    last: Bytes,
    is_over: bool,
    _open: Open,
}

/// Counts a connection as long as it lives.
struct Open(Arc<Metrics>);

impl Open {
    fn count(metrics: &Arc<Metrics>) -> Self {
        metrics.stream_opened();
        Self(Arc::clone(metrics))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.stream_closed();
    }
}

/// The response whose body is `reading`.
pub(crate) fn respond(metrics: &Arc<Metrics>, reading: Reading, writing: Writing) -> Response {
    let connection = Connection {
        reading,
        writing,
        last: Bytes::new(),
        is_over: false,
        _open: Open::count(metrics),
    };
    let chunks = unfold(connection, |mut connection| async move {
        connection
            .next()
            .await
            .map(|chunk| (Ok::<_, Infallible>(chunk), connection))
    });
    event_stream(Body::from_stream(chunks))
}

/// A response of the type `text/event-stream` that no proxy may keep (CONTRACT P32).
pub(crate) fn event_stream(body: Body) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_ACCEL_BUFFERING, HeaderValue::from_static("no"));
    response
}

impl Connection {
    async fn next(&mut self) -> Option<Bytes> {
        if self.is_over {
            return None;
        }
        if !self.writing.first.is_empty() {
            return Some(self.writing.first.split().freeze());
        }
        let silence = Instant::now() + self.writing.keep_alive;
        let close = self.writing.close_at;
        loop {
            // The log keeps what waits for its turn, within its bounds; a connection that falls
            // behind them ends like that of any other slow reader, and its resume is told.
            let pause = self
                .writing
                .flow
                .pause()
                .map(|pause| Instant::now() + pause);
            select! {
                biased;
                next = self.reading.next(), if pause.is_none() => return self.write(next),
                () = sleep_until(close.unwrap_or(silence)), if close.is_some() => {
                    return Some(self.release());
                }
                () = sleep_until(silence), if !self.writing.keep_alive.is_zero() => {
                    self.reading.took();
                    return Some(Bytes::from_static(KEEP_ALIVE));
                }
                () = sleep_until(pause.unwrap_or(silence)), if pause.is_some() => {}
            }
        }
    }

    fn write(&mut self, next: Next) -> Option<Bytes> {
        match next {
            Next::Events(events) => {
                let mut chunk = BytesMut::new();
                if let Some((_, last)) = events.last()
                    && !self.reading.is_listener()
                {
                    self.last = last.clone();
                }
                for (id, data) in events {
                    push_message(&mut chunk, &format!("{}{id}", self.writing.prefix), &data);
                }
                self.writing.flow.wrote(chunk.len());
                Some(chunk.freeze())
            }
            Next::Finished => self.end(),
            Next::Released => Some(self.release()),
        }
    }

    /// The end of a stream. Official clients take only a result for the end of an answer, and come
    /// back behind an error, or behind what they cancelled, although nothing follows: not so soon
    /// (CONTRACT P30). Not where no stream begins with the usual time, which takes this back.
    fn end(&mut self) -> Option<Bytes> {
        self.is_over = true;
        let begins_with_retry = self.reading.revision().is_some_and(Revision::has_priming);
        let is_answer = begins_with_retry && !self.reading.is_listener();
        if !is_answer || json::get(&self.last, "result").is_some() {
            return None;
        }
        let mut chunk = BytesMut::new();
        push_retry(&mut chunk, QUIET + self.writing.retry.next());
        Some(chunk.freeze())
    }

    /// 2025-11-25 transports, "Sending Messages to the Server" 6: a `retry` before closing.
    fn release(&mut self) -> Bytes {
        self.is_over = true;
        let mut chunk = BytesMut::new();
        push_retry(&mut chunk, self.writing.retry.next());
        chunk.freeze()
    }
}

/// How long clients wait at least before they ask again for a stream that has ended without a
/// result. The next stream that begins tells them the usual time.
const QUIET: Duration = Duration::from_secs(15);

//! Event streams as HTTP bodies, with keep-alive comments and `retry:` fields.
//!
//! A `retry:` precedes each end that the gateway itself decides. Streams begin with one at servers alone that close them
//! early.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{body::Body, response::Response};
use bytes::{Bytes, BytesMut};
use futures_util::stream::unfold;
use http::{
    HeaderValue,
    header::{CACHE_CONTROL, CONTENT_TYPE},
};
use tokio::{
    select,
    sync::Notify,
    time::{Instant, sleep_until},
};

use super::header_name::X_ACCEL_BUFFERING;
use crate::{
    base::{
        Random,
        budget::{Budget, Drawn},
    },
    hub::{
        limits::Flow,
        stream::{LongRetries, Next, RETRY_AFTER_END, Reader},
    },
    protocol::{
        KEEP_ALIVE, Revision,
        event::{event_room, push_message, push_retry},
        json,
    },
    telemetry::Metrics,
};

/// Settings of one connection.
pub(crate) struct StreamOptions {
    /// Silence after which a comment is sent (`stream.keep_alive`).
    pub(crate) keep_alive: Duration,
    /// Delay before a client reconnects.
    pub(crate) retry: RetryDelay,
    /// Whether the client takes a `retry:` on a stream that goes on.
    pub(crate) takes_retry: bool,
    /// Time at which the connection is closed so that the client polls.
    pub(crate) close_at: Option<Instant>,
    /// First bytes: the priming event, or the `endpoint` event of HTTP+SSE.
    pub(crate) first: BytesMut,
    /// Prefix of each event id.
    pub(crate) prefix: String,
    /// Limit on the bytes that may be written.
    pub(crate) flow: Flow,
}

/// Delay before clients reconnect, with jitter; a handle.
#[derive(Clone)]
pub(crate) struct RetryDelay {
    usual: Duration,
    random: Arc<Random>,
}

impl RetryDelay {
    /// Makes a delay of about `usual` (`stream.retry`).
    pub(crate) fn new(usual: Duration, random: Arc<Random>) -> Self {
        Self { usual, random }
    }

    /// Returns a random delay between 0.5 and 1.5 times the usual one, so that connections closed
    /// together do not return together.
    pub(crate) fn next(&self) -> Duration {
        let mut bytes = [0; 2];
        // Without randomness every client gets the shortest delay, which is correct but unspread.
        let _ = self.random.fill(&mut bytes);
        self.share(u16::from_le_bytes(bytes))
    }

    /// Returns the delay with which a stream begins at a server that closes streams of calls after this time. At
    /// others it is none: "If the server does close the connection [...] it SHOULD send an SSE event with a standard
    /// retry field before closing the connection" (2025-11-25 transports, "Sending Messages to the Server" 6), and
    /// there are clients that take a stream with such a line for broken.
    pub(crate) fn at_begin(&self, close_after: Duration, id: &str) -> Option<Duration> {
        (!close_after.is_zero()).then(|| self.at(id))
    }

    /// Returns a delay in the same range that depends on the event id alone, so that a replay sends
    /// the same bytes.
    fn at(&self, id: &str) -> Duration {
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

/// The source of an event stream.
pub(crate) trait Source: Send + 'static {
    /// Waits for the next part. Cancel-safe.
    fn next(&mut self) -> impl Future<Output = Part> + Send;

    /// What short parts on their way to the client are counted against.
    fn budget(&self) -> &Arc<Budget>;

    /// What is drawn for the part of so many bytes that it has just returned, until the client has taken it.
    fn drawn(&mut self, bytes: usize) -> Drawn;

    /// Marks the connection as alive: its peer takes what is sent.
    fn took(&self);

    /// The time at which it has a part of its own ([`Source::due`]).
    fn deadline(&self) -> Option<Instant> {
        None
    }

    /// The part that is due.
    fn due(&mut self) -> Part {
        Part::Last(None)
    }
}

/// A part of an event stream.
pub(crate) enum Part {
    /// Events.
    More(Bytes),
    /// The end, after these bytes.
    Last(Option<Bytes>),
}

/// How a stream is written.
pub(crate) struct Pace {
    /// Silence after which a comment is sent (`stream.keep_alive`).
    pub(crate) keep_alive: Duration,
    /// Limit on the bytes that may be written.
    pub(crate) flow: Flow,
}

/// One connection while it is being written.
struct Connection<S> {
    source: S,
    /// The first bytes, counted like the others.
    first: Option<Bytes>,
    pace: Pace,
    is_ended: bool,
    unsent: Arc<Unsent>,
    _open: OpenStream,
}

/// A stream of a session.
struct SessionStream {
    /// Long delays that other connections of the session have given its client. It is dropped before the
    /// reader, which tells the session that this connection has let go of it.
    long_retries: LongRetries,
    reading: Reader,
    retry: RetryDelay,
    takes_retry: bool,
    close_at: Option<Instant>,
    prefix: String,
    /// Latest message of a stream that answers a request.
    last: Bytes,
    /// When the usual delay is given again.
    usual_again_at: Option<Instant>,
}

/// The bytes of events that hyper has and the socket has not.
#[derive(Default)]
struct Unsent {
    bytes: AtomicUsize,
    sent: Notify,
}

/// Events on their way to the client.
struct Chunk {
    bytes: Bytes,
    unsent: Arc<Unsent>,
    _drawn: Drawn,
}

impl Unsent {
    /// Whether the client is so far behind that its next events stay in the log, which may trim them:
    /// hyper would take as many as a header block is long, of each client that does not read. Beyond the
    /// share of its session the client has to take what was handed to it before anything else.
    fn is_full(&self, share: &Budget) -> bool {
        match self.bytes.load(Ordering::Relaxed) {
            0 => false,
            bytes => bytes >= MAX_UNSENT || share.left() < 0,
        }
    }
}

impl AsRef<[u8]> for Chunk {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        let (size, unsent) = (self.bytes.len(), &self.unsent);
        let before = unsent.bytes.fetch_sub(size, Ordering::Relaxed);
        if before >= MAX_UNSENT || before == size {
            unsent.sent.notify_one();
        }
    }
}

/// Counts an open stream until it is dropped.
struct OpenStream(Arc<Metrics>);

impl OpenStream {
    fn count(metrics: &Arc<Metrics>) -> Self {
        metrics.streams_open.add(1);
        Self(Arc::clone(metrics))
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.streams_open.add(-1);
    }
}

/// Makes a response that streams `reading`.
pub(crate) fn respond(metrics: &Arc<Metrics>, reading: Reader, options: StreamOptions) -> Response {
    let StreamOptions {
        keep_alive,
        retry,
        takes_retry,
        close_at,
        first,
        prefix,
        flow,
    } = options;
    let long_retries = reading.long_retries();
    let mut source = SessionStream {
        long_retries,
        usual_again_at: None,
        reading,
        retry,
        takes_retry,
        close_at,
        prefix,
        last: Bytes::new(),
    };
    // The client may still have one of before this stream.
    let is_behind_one = source.has_retries() && source.reading.has_given_long_retry();
    source.usual_again_at = is_behind_one.then(|| Instant::now() + USUAL_AGAIN);
    respond_with(metrics, source, first, Pace { keep_alive, flow })
}

/// Makes a response that streams `first`, and then the parts of `source`.
pub(crate) fn respond_with(
    metrics: &Arc<Metrics>,
    source: impl Source,
    first: BytesMut,
    pace: Pace,
) -> Response {
    let mut connection = Connection {
        source,
        first: None,
        pace,
        is_ended: false,
        unsent: Arc::default(),
        _open: OpenStream::count(metrics),
    };
    if !first.is_empty() {
        // Counted before the body is polled: over HTTP/2 a client without a window lets it wait.
        connection.first = connection.write(Part::More(first.freeze()));
    }
    let chunks = unfold(connection, |mut connection| async move {
        connection
            .next()
            .await
            .map(|chunk| (Ok::<_, Infallible>(chunk), connection))
    });
    event_stream(Body::from_stream(chunks))
}

/// Makes a `text/event-stream` response that no proxy may store or buffer.
pub(crate) fn event_stream(body: Body) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(EVENT_STREAM));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_ACCEL_BUFFERING, HeaderValue::from_static("no"));
    response
}

impl<S: Source> Connection<S> {
    async fn next(&mut self) -> Option<Bytes> {
        if self.is_ended {
            return None;
        }
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        let silence = Instant::now() + self.pace.keep_alive;
        loop {
            // Events that must wait stay in the log, within its bounds. A connection that falls
            // behind them ends like that of any slow reader, and its resume gets the error.
            let pause = self.pace.flow.pause().map(|pause| Instant::now() + pause);
            let is_full = self.unsent.is_full(self.source.budget());
            let deadline = self.source.deadline();
            let silent = Some(silence).filter(|_| !self.pace.keep_alive.is_zero());
            let waits = [silent, pause].into_iter().flatten();
            // One timer for the first of them: every open stream keeps room for all timers named here.
            let first = deadline.into_iter().chain(waits.filter(|_| !is_full)).min();
            select! {
                biased;
                () = self.unsent.sent.notified(), if is_full => {}
                part = self.source.next(), if pause.is_none() && !is_full => {
                    // A part without bytes is another deadline.
                    if !matches!(&part, Part::More(bytes) if bytes.is_empty()) {
                        return self.write(part);
                    }
                }
                () = sleep_until(first.unwrap_or(silence)), if first.is_some() => {
                    if first == deadline {
                        let part = self.source.due();
                        return self.write(part);
                    }
                    if first == silent {
                        self.source.took();
                        return Some(Bytes::from_static(KEEP_ALIVE));
                    }
                }
            }
        }
    }

    fn write(&mut self, part: Part) -> Option<Bytes> {
        match part {
            Part::More(bytes) => {
                self.pace.flow.wrote(bytes.len());
                Some(self.counted(bytes))
            }
            Part::Last(bytes) => {
                self.is_ended = true;
                let bytes = bytes?;
                self.pace.flow.wrote(bytes.len());
                Some(self.counted(bytes))
            }
        }
    }

    /// Counts events until they are sent.
    fn counted(&mut self, bytes: Bytes) -> Bytes {
        self.unsent.bytes.fetch_add(bytes.len(), Ordering::Relaxed);
        Bytes::from_owner(Chunk {
            unsent: Arc::clone(&self.unsent),
            _drawn: self.source.drawn(bytes.len()),
            bytes,
        })
    }
}

impl Source for SessionStream {
    async fn next(&mut self) -> Part {
        let is_told = self.has_retries() && self.usual_again_at.is_none();
        select! {
            biased;
            // One that comes while another waits is noticed after that.
            () = self.long_retries.next(), if is_told => {
                self.usual_again_at = Some(Instant::now() + USUAL_AGAIN);
                Part::More(Bytes::new())
            }
            next = self.reading.next() => self.part(next),
        }
    }

    fn budget(&self) -> &Arc<Budget> {
        self.reading.budget()
    }

    fn drawn(&mut self, bytes: usize) -> Drawn {
        self.reading.drawn_for(bytes)
    }

    fn took(&self) {
        self.reading.took();
    }

    fn deadline(&self) -> Option<Instant> {
        let both = [self.close_at, self.usual_again_at];
        both.into_iter().flatten().min()
    }

    fn due(&mut self) -> Part {
        if self.close_at.is_some() && self.close_at == self.deadline() {
            return Part::Last(Some(self.close()));
        }
        self.usual_again_at = None;
        Part::More(self.usual_retry())
    }
}

impl SessionStream {
    fn part(&mut self, next: Next) -> Part {
        match next {
            Next::Events(events) => {
                let prefix = self.prefix.len();
                let room = events
                    .iter()
                    .map(|(id, data)| event_room(prefix + id.len(), data));
                // Not grown step by step: a client that does not read keeps all of the buffer.
                let mut chunk = BytesMut::with_capacity(room.sum());
                if let Some((_, last)) = events.last()
                    && !self.reading.is_listener()
                {
                    // A long one counts, or is not kept: it would outlive the log's.
                    self.last = self
                        .reading
                        .budgets()
                        .draw_message(last.clone())
                        .unwrap_or_default();
                }
                for (id, data) in events {
                    push_message(&mut chunk, &format!("{}{id}", self.prefix), &data);
                }
                Part::More(chunk.freeze())
            }
            Next::Finished => Part::Last(self.end()),
            Next::Released => Part::Last(Some(self.close())),
        }
    }

    /// Ends a finished stream.
    ///
    /// Official clients take only a result as the end of a response. After an error or a
    /// cancellation they reconnect, though nothing follows, so this end sends a long `retry`. The
    /// TypeScript SDK holds one delay for all streams of a transport: the other connections of the
    /// session give the usual one again, so that a listener that breaks later is not away for long.
    /// Clients that are not given the usual one again get none.
    fn end(&self) -> Option<Bytes> {
        let is_answer = self.has_retries() && !self.reading.is_listener();
        if !is_answer || json::get(&self.last, "result").is_some() {
            return None;
        }
        let mut chunk = BytesMut::new();
        push_retry(&mut chunk, RETRY_AFTER_END + self.retry.next());
        self.reading.gave_long_retry();
        Some(chunk.freeze())
    }

    /// Whether streams of the session may end with a long `retry`, and give the usual one again behind it: those that
    /// clients ask for again, by the id that they begin with.
    fn has_retries(&self) -> bool {
        self.takes_retry && self.reading.revision().is_some_and(Revision::has_priming)
    }

    /// Closes the connection of an unfinished stream, with the `retry` of 2025-11-25 transports,
    /// "Sending Messages to the Server" 6.
    fn close(&self) -> Bytes {
        self.usual_retry()
    }

    /// The usual delay.
    fn usual_retry(&self) -> Bytes {
        let mut chunk = BytesMut::new();
        push_retry(&mut chunk, self.retry.next());
        chunk.freeze()
    }
}

/// Media type of server-sent events.
pub(crate) const EVENT_STREAM: &str = "text/event-stream";
/// Bytes of events that are handed to hyper before the client takes them.
const MAX_UNSENT: usize = 16 << 10;
/// Delay before open streams give the usual delay again: the client has to see the end of the other
/// stream, on another connection, before.
const USUAL_AGAIN: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::super::event_stream::*;

    fn chunk(unsent: &Arc<Unsent>, share: &Arc<Budget>, size: usize) -> Chunk {
        unsent.bytes.fetch_add(size, Ordering::Relaxed);
        Chunk {
            bytes: vec![b'x'; size].into(),
            unsent: Arc::clone(unsent),
            _drawn: share.hold(size as u64),
        }
    }

    #[tokio::test]
    async fn a_client_that_reads_nothing_is_handed_a_bounded_part() {
        let (root, unsent) = (Budget::new(8 << 20), Arc::<Unsent>::default());
        let share = root.share();
        let first = chunk(&unsent, &share, MAX_UNSENT - 1);
        assert!(!unsent.is_full(&share));
        let second = chunk(&unsent, &share, 1);
        assert!(unsent.is_full(&share));
        drop(second);
        unsent.sent.notified().await;
        assert!(!unsent.is_full(&share));
        // Beyond the share it takes the first before anything else.
        let others = root.hold(8 << 20);
        assert!(unsent.is_full(&share));
        drop(first);
        unsent.sent.notified().await;
        assert!(!unsent.is_full(&share), "nothing is on its way");
        drop(others);
        assert_eq!(root.used(), 0);
    }
}

//! Event streams as HTTP bodies, with keep-alive comments and `retry:` fields.
//!
//! A `retry:` precedes each end that the gateway itself decides.

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
    sync::{Notify, watch},
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
        stream::{Next, Reader},
    },
    protocol::{
        KEEP_ALIVE, Revision,
        event::{push_message, push_retry},
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

    /// Returns a delay in the same range that depends on the event id alone, so that a replay sends
    /// the same bytes.
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
    reading: Reader,
    options: StreamOptions,
    /// Latest message of a stream that answers a request.
    last: Bytes,
    is_ended: bool,
    unsent: Arc<Unsent>,
    /// Long delays that other connections of the session have given its client.
    long_retries: watch::Receiver<u32>,
    /// When the usual delay is given again.
    usual_again_at: Option<Instant>,
    _open: OpenStream,
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
    let connection = Connection {
        long_retries: reading.long_retries(),
        usual_again_at: None,
        reading,
        options,
        last: Bytes::new(),
        is_ended: false,
        unsent: Arc::default(),
        _open: OpenStream::count(metrics),
    };
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

impl Connection {
    async fn next(&mut self) -> Option<Bytes> {
        if self.is_ended {
            return None;
        }
        if !self.options.first.is_empty() {
            return Some(self.options.first.split().freeze());
        }
        let silence = Instant::now() + self.options.keep_alive;
        let close = self.options.close_at;
        let begins_with_retry = self.begins_with_retry();
        loop {
            let usual_again = self.usual_again_at;
            // Events that must wait stay in the log, within its bounds. A connection that falls
            // behind them ends like that of any slow reader, and its resume gets the error.
            let pause = self
                .options
                .flow
                .pause()
                .map(|pause| Instant::now() + pause);
            let is_full = self.unsent.is_full(self.reading.budget());
            select! {
                biased;
                () = self.unsent.sent.notified(), if is_full => {}
                // One that comes while another waits is noticed after that.
                Ok(()) = self.long_retries.changed(), if begins_with_retry && usual_again.is_none() => {
                    self.usual_again_at = Some(Instant::now() + USUAL_AGAIN);
                }
                () = sleep_until(usual_again.unwrap_or(silence)), if usual_again.is_some() && !is_full => {
                    self.usual_again_at = None;
                    return Some(self.usual_retry());
                }
                next = self.reading.next(), if pause.is_none() && !is_full => {
                    return self.write(next);
                }
                () = sleep_until(close.unwrap_or(silence)), if close.is_some() => {
                    return Some(self.close());
                }
                () = sleep_until(silence), if !is_full && !self.options.keep_alive.is_zero() => {
                    self.reading.took();
                    return Some(Bytes::from_static(KEEP_ALIVE));
                }
                () = sleep_until(pause.unwrap_or(silence)), if pause.is_some() && !is_full => {}
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
                    push_message(&mut chunk, &format!("{}{id}", self.options.prefix), &data);
                }
                self.options.flow.wrote(chunk.len());
                Some(self.counted(chunk.freeze()))
            }
            Next::Finished => self.end(),
            Next::Released => Some(self.close()),
        }
    }

    /// Counts events until they are sent.
    fn counted(&self, bytes: Bytes) -> Bytes {
        self.unsent.bytes.fetch_add(bytes.len(), Ordering::Relaxed);
        Bytes::from_owner(Chunk {
            unsent: Arc::clone(&self.unsent),
            _drawn: self.reading.budget().hold(bytes.len() as u64),
            bytes,
        })
    }

    /// Ends a finished stream.
    ///
    /// Official clients take only a result as the end of a response. After an error or a
    /// cancellation they reconnect, though nothing follows, so this end sends a long `retry`. The
    /// TypeScript SDK holds one delay for all streams of a transport: the other connections of the
    /// session give the usual one again, so that a listener that breaks later is not away for long.
    /// Streams that do not begin with the usual delay get none, because nothing would reset it.
    fn end(&mut self) -> Option<Bytes> {
        self.is_ended = true;
        let is_answer = self.begins_with_retry() && !self.reading.is_listener();
        if !is_answer || json::get(&self.last, "result").is_some() {
            return None;
        }
        let mut chunk = BytesMut::new();
        push_retry(&mut chunk, RETRY_AFTER_END + self.options.retry.next());
        self.reading.gave_long_retry();
        Some(chunk.freeze())
    }

    /// Whether streams of the session begin with a `retry`, and may end with a long one.
    fn begins_with_retry(&self) -> bool {
        self.reading.revision().is_some_and(Revision::has_priming)
    }

    /// Closes the connection of an unfinished stream, with the `retry` of 2025-11-25 transports,
    /// "Sending Messages to the Server" 6.
    fn close(&mut self) -> Bytes {
        self.is_ended = true;
        self.usual_retry()
    }

    /// The usual delay.
    fn usual_retry(&self) -> Bytes {
        let mut chunk = BytesMut::new();
        push_retry(&mut chunk, self.options.retry.next());
        chunk.freeze()
    }
}

/// Media type of server-sent events.
pub(crate) const EVENT_STREAM: &str = "text/event-stream";
/// Bytes of events that are handed to hyper before the client takes them.
const MAX_UNSENT: usize = 32 << 10;
/// Shortest delay before clients ask again for a stream that ended without a result. The next stream
/// that begins resets it to the usual delay, and so do those that are open.
const RETRY_AFTER_END: Duration = Duration::from_secs(15);
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

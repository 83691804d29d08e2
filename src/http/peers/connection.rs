//! One connection to another replica: HTTP/2 with prior knowledge, by `h2` itself.
//!
//! A request goes to the connection with its body in one step, so that both are one write here and one
//! read there; the task of the connection wakes the request itself when there is a response. Not here:
//! which connection a request takes, and the proof of a peer before it gets one.

use std::{
    error::Error,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use h2::{Ping, PingPong, Reason, RecvStream, client};
use http::{HeaderMap, Request, Response, uri::PathAndQuery};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::{sleep, timeout},
};
use tokio_util::{
    sync::{CancellationToken, WaitForCancellationFutureOwned},
    task::TaskTracker,
};

use crate::base::budget::Drawn;

/// An open connection; a handle. It ends once there is neither a handle nor a response.
#[derive(Clone)]
pub(super) struct Connection {
    requests: client::SendRequest<Bytes>,
    state: Arc<ConnectionState>,
}

/// What is known of a connection.
#[derive(Default)]
struct ConnectionState {
    /// Whether it takes no more requests.
    is_closed: AtomicBool,
    /// Whether the peer did not answer a ping.
    is_silent: AtomicBool,
}

/// Reason why a request has no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendError {
    /// The connection was refused: no replica saw the request.
    Refused,
    /// There was no connection, or the replica never took the request.
    NotTaken,
    /// The caller has as many requests under way there as its share allows; the replica did not see the
    /// request.
    Full,
    /// The request was sent and may have been executed.
    Broken,
    /// The request was sent, and the replica does not respond: it is frozen or cut off.
    Silent,
}

/// Body of a response. It holds its place among the concurrent requests until it is dropped.
#[derive(Debug)]
pub(crate) struct ResponseBody {
    body: RecvStream,
    _place: Drawn,
}

/// The connection broke before the end of the response.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the connection to another replica broke")]
pub(crate) struct BrokenResponse;

/// Reason why a connection could not be opened.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectError {
    #[error("{0}")]
    Socket(io::Error),
    #[error("{0}")]
    Handshake(h2::Error),
}

impl Connection {
    /// Connects to `address`. The connection runs as a task of `tracker` and breaks at `stop`; `ended` gets the error that
    /// ends it.
    ///
    /// # Errors
    ///
    /// Nobody listens there, or speaks another protocol.
    pub(super) async fn open(
        address: &str,
        tracker: &TaskTracker,
        stop: &CancellationToken,
        ended: impl Fn(&(dyn Error + 'static)) + Send + 'static,
    ) -> Result<Self, ConnectError> {
        let stream = TcpStream::connect(address)
            .await
            .map_err(ConnectError::Socket)?;
        let set = stream.set_nodelay(true);
        set.map_err(ConnectError::Socket)?;
        let stream = StoppableStream {
            stream,
            stop: Box::pin(stop.child_token().cancelled_owned()),
        };
        let mut builder = client::Builder::new();
        builder
            // A slow reader stops only its own stream, because the shared window is never used up.
            .initial_connection_window_size(CONNECTION_WINDOW)
            .initial_window_size(STREAM_WINDOW)
            // One that is too long ends the connection: `takes_answer` holds back those far below it.
            .max_header_list_size(HEADER_LIST)
            // h2 gives back nothing of its budget for a small frame that comes behind the end of its stream, so clients
            // that leave would use it up, and end the connection of all. The window bounds what waits here.
            .data_frame_budget(usize::MAX >> 1)
            .max_send_buffer_size(64 << 10)
            // Clients leave at once, and frames that are on their way to them then are no mistake of the peer. h2 counts
            // those mistakes for the life of the connection.
            .max_concurrent_reset_streams(RESETS)
            .max_local_error_reset_streams(None)
            .enable_push(false);
        let handshake = builder.handshake(stream).await;
        let (requests, mut connection) = handshake.map_err(ConnectError::Handshake)?;
        let state = Arc::new(ConnectionState::default());
        let (pings, known) = (connection.ping_pong(), Arc::clone(&state));
        let address: Arc<str> = address.into();
        tracker.spawn(async move {
            tokio::select! {
                end = &mut connection => if let Err(error) = end {
                    ended(&error);
                },
                () = silence(pings) => {
                    known.is_silent.store(true, Ordering::Release);
                    tracing::debug!(%address, "a replica answers no pings");
                }
            }
            known.is_closed.store(true, Ordering::Release);
            // Only now do the requests on it learn that it is gone.
            drop(connection);
        });
        Ok(Self { requests, state })
    }

    /// Returns whether it takes no more requests, as far as is known.
    pub(super) fn is_closed(&self) -> bool {
        self.state.is_closed.load(Ordering::Acquire)
    }

    /// Sends a request and waits for the head of the response.
    ///
    /// # Errors
    ///
    /// The reason why there is no response.
    pub(super) async fn send(
        &mut self,
        request: Request<Bytes>,
    ) -> Result<Response<RecvStream>, SendError> {
        let (parts, body) = request.into_parts();
        let head = Request::from_parts(parts, ());
        if !fits(&head) {
            tracing::debug!("the head of a request is too long for another replica");
            return Err(SendError::NotTaken);
        }
        let sent = self.requests.send_request(head, body.is_empty());
        let Ok((response, mut rest)) = sent else {
            // The peer ended the connection, or asked for no more on it.
            self.state.is_closed.store(true, Ordering::Release);
            return Err(SendError::NotTaken);
        };
        if !body.is_empty() {
            // It is in memory whole: h2 keeps what the peer has no window for yet. Where the stream has ended
            // already, as below a GOAWAY of this instant, the response tells why.
            let _ = rest.send_data(body, true);
        }
        response.await.map_err(|error| self.classify(&error))
    }

    /// Classifies the error of a request that was handed to the connection, by whether the peer may
    /// have taken it (RFC 9113, sections 6.8 and 8.7).
    fn classify(&self, error: &h2::Error) -> SendError {
        if self.state.is_silent.load(Ordering::Acquire) {
            return SendError::Silent;
        }
        let is_refused = error.is_reset() && error.reason() == Some(Reason::REFUSED_STREAM);
        // h2 reports this error only for streams above the last one that the peer names.
        let is_behind = error.is_go_away() && error.reason() == Some(Reason::NO_ERROR);
        if error.is_remote() && (is_refused || is_behind) {
            SendError::NotTaken
        } else {
            SendError::Broken
        }
    }
}

impl ResponseBody {
    /// The body of a response to a request that has `place`.
    pub(super) fn new(body: RecvStream, place: Drawn) -> Self {
        Self {
            body,
            _place: place,
        }
    }

    /// Returns the next bytes, or `None` at the end. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, BrokenResponse> {
        loop {
            match self.body.data().await {
                Some(Ok(data)) => {
                    let read = self.body.flow_control().release_capacity(data.len());
                    read.map_err(|_| BrokenResponse)?;
                    if !data.is_empty() {
                        return Ok(Some(own(data)));
                    }
                }
                None if self.body.is_end_stream() => return Ok(None),
                Some(Err(_)) | None => return Err(BrokenResponse),
            }
        }
    }
}

/// Copies a short frame: it would keep the buffer that it was read into, with all else that came then.
fn own(data: Bytes) -> Bytes {
    if data.len() < SHORT {
        Bytes::copy_from_slice(&data)
    } else {
        data
    }
}

/// Returns whether the replica that forwarded a request takes an answer with these header fields, however HPACK writes
/// them. One that is too long would end the connection, with the requests of everybody.
pub(crate) fn takes_answer(headers: &HeaderMap) -> bool {
    let fields = headers.iter();
    let listed = fields.map(|(name, value)| FIELD + name.as_str().len() + value.len());
    listed.sum::<usize>() <= ANSWER_LIST
}

/// Returns whether an error, of h2 or of hyper, broke a connection for all requests on it. A socket that closes is the
/// end of a replica.
pub(super) fn is_broken(error: &(dyn Error + 'static)) -> bool {
    let error: Option<&h2::Error> = error.source().unwrap_or(error).downcast_ref();
    error.is_some_and(|error| !error.is_io() && error.reason() != Some(Reason::NO_ERROR))
}

/// Returns whether another replica takes this head, however HPACK writes it. One that is too long would end the
/// connection, with the requests of everybody.
fn fits(head: &Request<()>) -> bool {
    let target = head.uri().path_and_query().map_or("", PathAndQuery::as_str);
    let target = (":path", target.as_bytes());
    let fields = head.headers().iter();
    let fields = fields.map(|(name, value)| (name.as_str(), value.as_bytes()));
    let (mut listed, mut bits) = (0, 0);
    for (name, value) in fields.chain([target]) {
        listed += FIELD + name.len() + value.len();
        let bytes = name.as_bytes().iter().chain(value);
        bits += 8 * FIELD + bytes.map(|byte| most_bits(*byte)).sum::<usize>();
    }
    listed <= HEADER_LIST as usize && bits / 8 <= HEADER_BLOCK
}

/// Returns the most bits that HPACK writes for a byte (RFC 7541, appendix B).
const fn most_bits(byte: u8) -> usize {
    match byte {
        b'a'..=b'z'
        | b'A'..=b'Z'
        | b'0'..=b'9'
        | b' '
        | b'-'
        | b'_'
        | b'.'
        | b';'
        | b'/'
        | b':' => 8,
        _ => 28,
    }
}

/// Returns once the peer does not answer a ping: it is frozen or cut off, also where the connection is
/// idle.
async fn silence(pings: Option<PingPong>) {
    if let Some(mut pings) = pings {
        loop {
            sleep(PING).await;
            match timeout(PONG, pings.ping(Ping::opaque())).await {
                Ok(Ok(_)) => {}
                // The connection ended, which it tells itself.
                Ok(Err(_)) => break,
                Err(_) => return,
            }
        }
    }
    std::future::pending::<()>().await;
}

/// A socket that fails at `stop`, together with all requests on it.
struct StoppableStream {
    stream: TcpStream,
    stop: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl StoppableStream {
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if self.stop.as_mut().poll(cx).is_ready() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        Ok(())
    }
}

impl AsyncRead for StoppableStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for StoppableStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// Time between a response to a ping and the next ping.
const PING: Duration = Duration::from_secs(1);
/// Time limit for the response to a ping.
const PONG: Duration = Duration::from_secs(3);
/// The largest window that HTTP/2 allows.
const CONNECTION_WINDOW: u32 = (1 << 31) - 1;
/// Bytes buffered here for a slow client; further events stay in the owner's log.
pub(crate) const STREAM_WINDOW: u32 = 64 << 10;
/// Frames below this are copied out of the buffer that they were read into, which has 8 KiB or more.
const SHORT: usize = 2 << 10;
/// Requests without their client whose late frames are expected, for a second: all that `connections` allows.
const RESETS: usize = 30_000;
/// Longest list of header fields of an answer to another replica. In HPACK it has at most 224 KiB, for which h2 reads
/// enough frames there.
const ANSWER_LIST: usize = 64 << 10;
/// Longest list of header fields, at the replica that receives it: of a request what the public listener takes, and
/// the proof of the hop.
pub(crate) const HEADER_LIST: u32 = 256 << 10;
/// Longest form of it in HPACK, where a byte of a client can take 28 bits. For a list of 256 KiB h2 reads 22 frames of
/// 16 KiB; it ends the connection at the next one.
const HEADER_BLOCK: usize = 320 << 10;
/// Bytes of a field beside its name and its value (RFC 9113, section 6.5.2); in HPACK they are fewer.
const FIELD: usize = 32;

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::super::connection::*;
    use crate::base::budget::Budget;

    const DATA: u8 = 0;
    const HEADERS: u8 = 1;
    const SETTINGS: u8 = 4;
    const PING_FRAME: u8 = 6;
    const GOAWAY: u8 = 7;
    const END_STREAM: u8 = 1;
    const ACK: u8 = 1;
    const END_HEADERS: u8 = 4;

    /// The other end of a connection, frame by frame.
    struct Frames(TcpStream);

    impl Frames {
        async fn write(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
            let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
            let mut frame = length[1..].to_vec();
            frame.extend([kind, flags]);
            frame.extend(stream.to_be_bytes());
            frame.extend(payload);
            self.0.write_all(&frame).await.unwrap();
        }

        /// Reads up to a frame of this kind; returns its stream.
        async fn read(&mut self, wanted: u8) -> u32 {
            loop {
                let mut head = [0; 9];
                self.0.read_exact(&mut head).await.unwrap();
                let [a, b, c, kind, flags, stream @ ..] = head;
                let length = u32::from_be_bytes([0, a, b, c]);
                let mut payload = vec![0; length as usize];
                self.0.read_exact(&mut payload).await.unwrap();
                if kind == PING_FRAME && flags != ACK {
                    self.write(PING_FRAME, ACK, 0, &payload).await;
                }
                if kind == wanted {
                    return u32::from_be_bytes(stream);
                }
            }
        }

        /// Answers the next request.
        async fn answer(&mut self) -> u32 {
            let stream = self.read(HEADERS).await;
            let status_200 = 0x88;
            let flags = END_HEADERS | END_STREAM;
            self.write(HEADERS, flags, stream, &[status_200]).await;
            stream
        }
    }

    /// A connection that adds 1 to `broken` if it breaks.
    async fn connected(broken: &Arc<AtomicUsize>) -> (Connection, Frames) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (tracker, stop) = (TaskTracker::new(), CancellationToken::new());
        let counted = Arc::clone(broken);
        let ended = move |error: &(dyn Error + 'static)| {
            counted.fetch_add(is_broken(error).into(), Ordering::Relaxed);
        };
        let opening = Connection::open(&address, &tracker, &stop, ended);
        let accepting = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.read_exact(&mut [0; 24]).await.unwrap();
            let mut frames = Frames(stream);
            frames.write(SETTINGS, 0, 0, &[]).await;
            frames
        };
        let (connection, frames) = tokio::join!(opening, accepting);
        (connection.unwrap(), frames)
    }

    async fn ask(connection: &Connection) -> Result<Response<RecvStream>, SendError> {
        let request = Request::get("http://other.test/").body(Bytes::new());
        connection.clone().send(request.unwrap()).await
    }

    /// h2 counted such frames for the life of the connection, and ended it at the 1025th.
    #[tokio::test]
    async fn frames_for_clients_that_have_left_do_not_end_the_connection() {
        let (connection, mut frames) = connected(&Arc::default()).await;
        let mut gone = Vec::new();
        for _ in 0..1100 {
            let (answer, stream) = tokio::join!(ask(&connection), frames.answer());
            assert!(answer.is_ok());
            gone.push(stream);
        }
        for stream in gone {
            frames.write(DATA, 0, stream, b"x").await;
        }
        let (answer, _) = tokio::join!(ask(&connection), frames.answer());
        assert!(answer.is_ok());
    }

    #[tokio::test]
    async fn a_short_piece_of_an_answer_keeps_no_buffer_of_others() {
        let (connection, mut frames) = connected(&Arc::default()).await;
        let answering = async {
            let (stream, status_200) = (frames.read(HEADERS).await, [0x88]);
            let flags = END_HEADERS;
            frames.write(HEADERS, flags, stream, &status_200).await;
            frames.write(DATA, 0, stream, b"short").await;
        };
        let (answer, ()) = tokio::join!(ask(&connection), answering);
        let place = Budget::new(2).draw(1).unwrap();
        let mut body = ResponseBody::new(answer.unwrap().into_body(), place);
        let piece = body.next().await.unwrap().unwrap();
        assert_eq!(piece, "short");
        assert!(piece.is_unique(), "the buffer of the connection stays");
    }

    #[test]
    fn an_answer_with_more_fields_than_another_replica_takes_is_held_back() {
        let of = |length: usize| {
            let value = http::HeaderValue::from_bytes(&vec![0xF9; length]).unwrap();
            HeaderMap::from_iter([(http::header::WWW_AUTHENTICATE, value)])
        };
        let rest = FIELD + "www-authenticate".len();
        assert!(takes_answer(&of(ANSWER_LIST - rest)));
        assert!(!takes_answer(&of(ANSWER_LIST - rest + 1)));
    }

    #[tokio::test]
    async fn a_connection_breaks_by_an_error_and_not_by_the_end_of_a_replica() {
        for (reason, is_reset, expected) in [
            (Some(Reason::ENHANCE_YOUR_CALM), false, 1),
            (Some(Reason::NO_ERROR), false, 0),
            (None, false, 0),
            (None, true, 0),
        ] {
            let broken = Arc::default();
            let (connection, mut frames) = connected(&broken).await;
            if let Some(reason) = reason {
                let payload = [0_u32.to_be_bytes(), u32::from(reason).to_be_bytes()];
                frames.write(GOAWAY, 0, 0, &payload.concat()).await;
            }
            // All is read on either side, so that the socket closes without a reset.
            frames.write(PING_FRAME, 0, 0, &[0; 8]).await;
            frames.read(PING_FRAME).await;
            if is_reset {
                frames.0.set_zero_linger().unwrap();
            }
            drop(frames);
            while !connection.is_closed() {
                tokio::task::yield_now().await;
            }
            let broken = broken.load(Ordering::Relaxed);
            assert_eq!(broken, expected, "{reason:?} {is_reset}");
        }
    }
}

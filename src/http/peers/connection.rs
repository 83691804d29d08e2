//! One connection to another replica: HTTP/2 with prior knowledge, by `h2` itself.
//!
//! A request goes to the connection with its body in one step, so that both are one write here and one
//! read there; the task of the connection wakes the request itself when there is a response, and takes
//! the bodies of responses out of `h2` as they come. Not here: which connection a request takes, and the
//! proof of a peer before it gets one.

use std::{
    collections::HashMap,
    error::Error,
    future::poll_fn,
    io,
    mem::take,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    pin::Pin,
    sync::{
        Arc, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{FutureExt, future::BoxFuture};
use h2::{Ping, PingPong, Reason, RecvStream, client};
use http::{HeaderMap, Request, Response, uri::PathAndQuery};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::{Instant, sleep, timeout},
};
use tokio_util::{
    sync::{CancellationToken, WaitForCancellationFutureOwned},
    task::TaskTracker,
};

use super::{unread::Unread, wake_line::WakeLine};
use crate::base::budget::{Drawn, Stepped, others_first};

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
    /// Bodies of its responses to read.
    arrivals: Arc<Arrivals>,
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

/// Body of a response. It holds its place among the concurrent requests until it is dropped; its stream is
/// reset then, unless it has ended.
#[derive(Debug)]
pub(crate) struct ResponseBody {
    /// None if the response ended with its head.
    incoming: Option<Arc<Incoming>>,
    _place: Drawn,
}

/// The connection broke before the end of the response.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the connection to another replica broke")]
pub(crate) struct BrokenResponse;

/// A body on its way here.
///
/// A frame that waits in h2 has an entry there, and keeps the buffer that it was read into, however short it
/// is. So each is taken out as it comes, by the task of the connection: the client may not be able to. But the
/// peer gets its window back only as the client takes the bytes, so that no more than the window is here.
#[derive(Debug)]
struct Incoming {
    state: Lock<IncomingState>,
    arrivals: Arc<Arrivals>,
    /// The owner of its request, by the number of the share.
    owner: usize,
}

#[derive(Debug, Default)]
struct IncomingState {
    /// None once nobody reads it.
    stream: Option<RecvStream>,
    unread: Unread,
    /// How it ended, behind those bytes.
    end: Option<Result<(), BrokenResponse>>,
    /// The task that waits for bytes or for the end.
    reader: Option<Waker>,
    /// Whether it stands in line to be woken.
    is_in_line: bool,
}

/// Bodies of which h2 has something, for the task of their connection.
#[derive(Debug, Default)]
struct Arrivals(Lock<Arrived>);

#[derive(Debug, Default)]
struct Arrived {
    /// Each of them once: h2 tells of a body again after it was read.
    bodies: Vec<Arc<Incoming>>,
    /// Those that are read, by their addresses: behind a panic h2 may tell of none.
    read: HashMap<usize, Weak<Incoming>>,
    /// Those whose readers wait until others have gone first.
    line: WakeLine<Arc<Incoming>>,
    /// The task, while it waits.
    driver: Option<Waker>,
}

/// The order is: that of a body, that of h2, that of the arrivals.
#[expect(
    clippy::disallowed_types,
    reason = "held for short copies, never across an await"
)]
type Lock<T> = std::sync::Mutex<T>;

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
            stream: Stepped::new(stream),
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
        let address = address.to_owned();
        tracker.spawn(async move {
            let running = known.run((&mut connection, pings), &address, ended);
            // Behind a panic too: whoever reads a response would wait for ever.
            let ran = AssertUnwindSafe(running).catch_unwind().await;
            known.is_closed.store(true, Ordering::Release);
            let ended = catch_unwind(AssertUnwindSafe(|| {
                // Only now do the requests on it learn that it is gone.
                drop(connection);
                // h2 tells of nothing more.
                known.arrivals.finish();
            }));
            if let Err(panic) = ran.and(ended) {
                known.arrivals.abandon();
                resume_unwind(panic);
            }
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

    /// Begins to read the body of a response to a request that has `place`.
    pub(super) fn read(&self, body: RecvStream, place: Drawn) -> ResponseBody {
        let has_more = !body.is_end_stream();
        let owner = place.budget().owner();
        let incoming = has_more.then(|| Incoming::begin(body, &self.state.arrivals, owner));
        ResponseBody {
            incoming,
            _place: place,
        }
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

impl ConnectionState {
    /// Drives a connection until it ends or its peer answers no pings. `ended` gets the error that ends it.
    async fn run(
        &self,
        (connection, pings): (
            &mut client::Connection<StoppableStream, Bytes>,
            Option<PingPong>,
        ),
        address: &str,
        ended: impl Fn(&(dyn Error + 'static)) + Send,
    ) {
        tokio::select! {
            end = self.arrivals.drive(connection) => if let Err(error) = end {
                ended(&error);
            },
            () = silence(pings) => {
                self.is_silent.store(true, Ordering::Release);
                tracing::debug!(address, "a replica answers no pings");
            }
        }
    }
}

impl ResponseBody {
    /// Returns the next bytes, or `None` at the end. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, BrokenResponse> {
        let Some(incoming) = &self.incoming else {
            return Ok(None);
        };
        poll_fn(|cx| incoming.state().poll_next(cx)).await
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        if let Some(incoming) = &self.incoming {
            incoming.arrivals.arrived().read.remove(&incoming.address());
            // The end of its stream: h2 may have this body for longer, to wake it.
            let _left = take(&mut *incoming.state());
        }
    }
}

impl Incoming {
    /// Reads what has come of a body; the task of the connection reads the rest.
    fn begin(stream: RecvStream, arrivals: &Arc<Arrivals>, owner: usize) -> Arc<Self> {
        let state = IncomingState {
            stream: Some(stream),
            ..IncomingState::default()
        };
        let incoming = Arc::new(Self {
            state: Lock::new(state),
            arrivals: Arc::clone(arrivals),
            owner,
        });
        let known = Arc::downgrade(&incoming);
        arrivals.arrived().read.insert(incoming.address(), known);
        incoming.receive();
        incoming
    }

    /// Where it is in memory, as long as it is read.
    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Ends it behind a panic. The lock of h2 may be poisoned, at which h2 panics again, so nothing is asked of it.
    fn abandon(&self) {
        let (stream, reader) = {
            let mut state = self.state();
            let end = state.end.unwrap_or(Err(BrokenResponse));
            state.end = Some(end);
            (state.stream.take(), state.reader.take())
        };
        // Here, where a panic is caught: one in a reader that panics already would end the process.
        _ = catch_unwind(AssertUnwindSafe(|| drop(stream)));
        _ = catch_unwind(AssertUnwindSafe(|| reader.map(Waker::wake)));
    }

    fn state(&self) -> MutexGuard<'_, IncomingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what has come out of h2, and wakes the reader, or lets it stand in line.
    fn receive(self: &Arc<Self>) {
        let waker = Waker::from(Arc::clone(self));
        let is_awaited = self.state().receive(&mut Context::from_waker(&waker));
        if is_awaited && !self.arrivals.has_to_wait(self) {
            self.wake_reader();
        }
    }

    /// Wakes the reader, unless it has read everything meanwhile or is gone.
    fn wake_reader(&self) {
        let reader = {
            let mut state = self.state();
            state.is_in_line = false;
            if state.has_more() {
                state.reader.take()
            } else {
                None
            }
        };
        if let Some(reader) = reader {
            reader.wake();
        }
    }
}

impl Wake for Incoming {
    /// h2 has its lock meanwhile, so nothing of it may be called or dropped here. A body with a stream is never
    /// dropped here: its reader has it too.
    fn wake(self: Arc<Self>) {
        let arrivals = Arc::clone(&self.arrivals);
        arrivals.add(self);
    }
}

impl IncomingState {
    /// Takes what has come out of h2; returns whether a reader that does not stand in line waits for it.
    fn receive(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(stream) = self.stream.as_mut() else {
            return false;
        };
        while self.end.is_none() {
            match stream.poll_data(cx) {
                Poll::Ready(Some(Ok(data))) => self.unread.push(&data),
                Poll::Ready(None) if stream.is_end_stream() => self.end = Some(Ok(())),
                Poll::Ready(Some(Err(_)) | None) => self.end = Some(Err(BrokenResponse)),
                Poll::Pending => break,
            }
        }
        let is_awaited = self.has_more() && self.reader.is_some() && !self.is_in_line;
        self.is_in_line |= is_awaited;
        is_awaited
    }

    /// Returns whether there is something for a reader.
    fn has_more(&self) -> bool {
        self.end.is_some() || !self.unread.is_empty()
    }

    fn poll_next(&mut self, cx: &Context<'_>) -> Poll<Result<Option<Bytes>, BrokenResponse>> {
        if let Some(data) = self.unread.pop() {
            // Behind its end a stream needs no window.
            if let (Some(stream), None) = (&mut self.stream, self.end) {
                let given = stream.flow_control().release_capacity(data.len());
                given.map_err(|_| BrokenResponse)?;
            }
            return Poll::Ready(Ok(Some(data)));
        }
        if let Some(end) = self.end {
            return Poll::Ready(end.map(|()| None));
        }
        self.reader = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Arrivals {
    fn arrived(&self) -> MutexGuard<'_, Arrived> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a body, for the task of the connection.
    fn add(&self, body: Arc<Incoming>) {
        let mut arrived = self.arrived();
        arrived.bodies.push(body);
        let driver = arrived.driver.take();
        drop(arrived);
        if let Some(driver) = driver {
            driver.wake();
        }
    }

    /// Returns whether the reader of a body has to wait until others have gone first: the body stands in line then.
    fn has_to_wait(&self, body: &Arc<Incoming>) -> bool {
        let now = Instant::now();
        self.arrived().line.has_to_wait(body.owner, body, now)
    }

    fn has_line(&self) -> bool {
        !self.arrived().line.is_empty()
    }

    /// Wakes the readers whose turn it is.
    fn wake_next(&self) {
        let now = Instant::now();
        let next = self.arrived().line.take_next(now);
        for body in next {
            body.wake_reader();
        }
    }

    /// Reads all bodies that were added, and wakes their readers.
    fn finish(&self) {
        self.receive(Waker::noop());
        while self.has_line() {
            self.wake_next();
        }
    }

    /// Drives a connection to its end, and reads the bodies that come on it. It waits itself for others that go before
    /// readers in line: a reader is polled when its client takes something, which may be never.
    async fn drive(
        &self,
        connection: &mut client::Connection<StoppableStream, Bytes>,
    ) -> Result<(), h2::Error> {
        let mut others: Option<BoxFuture<'static, ()>> = None;
        poll_fn(|cx| {
            // What comes now is read below.
            self.arrived().driver = None;
            let end = Pin::new(&mut *connection).poll(cx);
            self.receive(cx.waker());
            while self.has_line() {
                let passing = others.get_or_insert_with(|| others_first().boxed());
                if passing.as_mut().poll(cx).is_pending() {
                    break;
                }
                others = None;
                self.wake_next();
            }
            end
        })
        .await
    }

    /// Reads all bodies that were added; one that is added later wakes `driver`.
    fn receive(&self, driver: &Waker) {
        loop {
            let mut arrived = self.arrived();
            // One at a time: a panic over one leaves the others here.
            let Some(body) = arrived.bodies.pop() else {
                arrived.driver = Some(driver.clone());
                return;
            };
            drop(arrived);
            body.receive();
        }
    }

    /// Ends all bodies behind a panic, and wakes their readers.
    fn abandon(&self) {
        let (read, _line) = {
            let mut arrived = self.arrived();
            (take(&mut arrived.read), take(&mut arrived.line))
        };
        for body in read.into_values() {
            if let Some(body) = body.upgrade() {
                body.abandon();
            }
        }
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
    stream: Stepped<TcpStream>,
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

    use super::super::{connection::*, wake_line::WAKES};
    use crate::base::budget::Budget;

    const DATA: u8 = 0;
    const HEADERS: u8 = 1;
    const RST_STREAM: u8 = 3;
    const SETTINGS: u8 = 4;
    const PING_FRAME: u8 = 6;
    const GOAWAY: u8 = 7;
    const WINDOW_UPDATE: u8 = 8;
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

        /// Reads a frame; returns its kind and its stream.
        async fn next(&mut self) -> (u8, u32) {
            let mut head = [0; 9];
            self.0.read_exact(&mut head).await.unwrap();
            let [a, b, c, kind, flags, stream @ ..] = head;
            let length = u32::from_be_bytes([0, a, b, c]);
            let mut payload = vec![0; length as usize];
            self.0.read_exact(&mut payload).await.unwrap();
            if kind == PING_FRAME && flags != ACK {
                self.write(PING_FRAME, ACK, 0, &payload).await;
            }
            (kind, u32::from_be_bytes(stream))
        }

        /// Reads up to a frame of this kind; returns its stream.
        async fn read(&mut self, wanted: u8) -> u32 {
            loop {
                let (kind, stream) = self.next().await;
                if kind == wanted {
                    return stream;
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

    fn place() -> Drawn {
        Budget::new(2).draw(1).unwrap()
    }

    /// A response whose body is to come, and its stream.
    async fn begun(connection: &Connection, frames: &mut Frames) -> (ResponseBody, u32) {
        let (body, stream) = headed(connection, frames).await;
        (connection.read(body, place()), stream)
    }

    /// The same, as h2 has it.
    async fn headed(connection: &Connection, frames: &mut Frames) -> (RecvStream, u32) {
        let answering = async {
            let (stream, status_200) = (frames.read(HEADERS).await, [0x88]);
            frames
                .write(HEADERS, END_HEADERS, stream, &status_200)
                .await;
            stream
        };
        let (answer, stream) = tokio::join!(ask(connection), answering);
        (answer.unwrap().into_body(), stream)
    }

    async fn within<T>(waiting: impl Future<Output = T>) -> T {
        let waiting = timeout(Duration::from_secs(20), waiting);
        waiting.await.expect("it does not come")
    }

    fn incoming(body: &ResponseBody) -> Arc<Incoming> {
        Arc::clone(body.incoming.as_ref().unwrap())
    }

    async fn until(incoming: &Incoming, is_so: impl Fn(&IncomingState) -> bool) {
        let waiting = async {
            while !is_so(&incoming.state()) {
                tokio::task::yield_now().await;
            }
        };
        within(waiting).await;
    }

    /// Frames of 4 KiB and more kept the buffer of the connection, which may have 32 KiB.
    #[tokio::test]
    async fn a_piece_of_an_answer_keeps_no_buffer_of_others() {
        let (connection, mut frames) = connected(&Arc::default()).await;
        let (mut body, stream) = begun(&connection, &mut frames).await;
        for length in [5, 4 << 10, 9000] {
            let sent = vec![b'x'; length];
            let write = frames.write(DATA, 0, stream, &sent);
            let (piece, ()) = within(async { tokio::join!(body.next(), write) }).await;
            let piece = piece.unwrap().unwrap();
            assert_eq!(piece, sent);
            let capacity = piece.try_into_mut().map(|piece| piece.capacity());
            let capacity = capacity.expect("the buffer of the connection stays");
            assert!(capacity <= 2 * length.max(8), "{capacity} for {length}");
        }
    }

    /// Each had an entry in h2, and kept up to 8 KiB, so that clients that read nothing filled the memory.
    #[tokio::test]
    async fn short_frames_for_a_client_that_does_not_read_take_the_window_and_no_more() {
        let (connection, mut frames) = connected(&Arc::default()).await;
        let (mut body, stream) = begun(&connection, &mut frames).await;
        let pieces: Vec<_> = (0..800).map(|number| format!("{number:080}")).collect();
        for piece in &pieces {
            frames.write(DATA, 0, stream, piece.as_bytes()).await;
        }
        let sent = pieces.concat();
        let incoming = incoming(&body);
        until(&incoming, |state| state.unread.kept().0 == sent.len()).await;
        let (_, buffers) = incoming.state().unread.kept();
        assert!(buffers <= 4, "{buffers} buffers");
        // A window that was given back would be told before the second answer.
        for _ in 0..2 {
            frames.write(PING_FRAME, 0, 0, &[0; 8]).await;
            let no_window = async {
                loop {
                    match frames.next().await {
                        (PING_FRAME, _) => break,
                        next => assert_ne!(next, (WINDOW_UPDATE, stream)),
                    }
                }
            };
            within(no_window).await;
        }
        let mut got = Vec::new();
        while got.len() < sent.len() {
            let piece = within(body.next()).await;
            got.extend_from_slice(&piece.unwrap().unwrap());
        }
        assert!(got == sent.as_bytes());
        within(async { while frames.read(WINDOW_UPDATE).await != stream {} }).await;
        // Its owner learns at once that the client has left, whatever waits here.
        frames.write(DATA, 0, stream, b"more").await;
        until(&incoming, |state| state.unread.kept().0 == 4).await;
        drop(body);
        assert_eq!(within(frames.read(RST_STREAM)).await, stream);
    }

    #[tokio::test]
    async fn an_answer_ends_behind_its_bytes_as_its_stream_does() {
        for how in ["end", "reset", "goaway", "close"] {
            let (connection, mut frames) = connected(&Arc::default()).await;
            let (mut body, stream) = begun(&connection, &mut frames).await;
            frames.write(DATA, 0, stream, b"last").await;
            let incoming = incoming(&body);
            until(&incoming, |state| !state.unread.is_empty()).await;
            match how {
                "end" => frames.write(DATA, END_STREAM, stream, b"").await,
                "reset" => frames.write(RST_STREAM, 0, stream, &[0, 0, 0, 8]).await,
                "goaway" => frames.write(GOAWAY, 0, 0, &[0, 0, 0, 0, 0, 0, 0, 2]).await,
                _ => drop(frames),
            }
            until(&incoming, |state| state.end.is_some()).await;
            assert_eq!(body.next().await.unwrap().unwrap(), "last");
            for _ in 0..2 {
                let is_end = body.next().await.map(|next| next.is_none()).ok();
                assert_eq!(is_end, (how == "end").then_some(true), "{how}");
            }
        }
        let (connection, mut frames) = connected(&Arc::default()).await;
        let (answer, _) = tokio::join!(ask(&connection), frames.answer());
        let mut body = connection.read(answer.unwrap().into_body(), place());
        assert!(body.incoming.is_none());
        assert!(body.next().await.unwrap().is_none());
    }

    #[tokio::test]
    async fn a_client_that_waits_learns_that_the_connection_broke() {
        for is_closed in [true, false] {
            let (connection, mut frames) = connected(&Arc::default()).await;
            let (mut body, _) = begun(&connection, &mut frames).await;
            let incoming = incoming(&body);
            let breaking = async {
                until(&incoming, |state| state.reader.is_some()).await;
                // The other end answers no ping.
                (!is_closed).then_some(frames)
            };
            let (next, _silent) = within(async { tokio::join!(body.next(), breaking) }).await;
            assert!(next.is_err(), "{is_closed}");
        }
    }

    /// A task that panics as it is woken.
    struct Panics;

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("a bug");
        }
    }

    /// They slept on: h2 told of their end, and nobody read it.
    #[tokio::test]
    async fn clients_that_wait_learn_that_the_task_of_the_connection_panicked() {
        let (connection, mut frames) = connected(&Arc::default()).await;
        let (mut first, stream) = begun(&connection, &mut frames).await;
        let (mut second, _) = begun(&connection, &mut frames).await;
        let waker = Waker::from(Arc::new(Panics));
        let mut next = Box::pin(first.next());
        let polled = next.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        let incoming = incoming(&second);
        let breaking = async {
            until(&incoming, |state| state.reader.is_some()).await;
            frames.write(DATA, 0, stream, b"x").await;
        };
        let (next, ()) = within(async { tokio::join!(second.next(), breaking) }).await;
        assert!(next.is_err());
        assert!(connection.is_closed());
    }

    /// Those beside it were lost.
    #[tokio::test]
    async fn a_panic_over_one_body_leaves_others_what_has_come() {
        let (connection, mut frames) = connected(&Arc::default()).await;
        let (mut first, one) = begun(&connection, &mut frames).await;
        let (mut second, two) = begun(&connection, &mut frames).await;
        let (mut third, three) = begun(&connection, &mut frames).await;
        let waker = Waker::from(Arc::new(Panics));
        let mut next = Box::pin(second.next());
        let polled = next.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        // At once, so that they are read together.
        let mut sent = Vec::new();
        for stream in [one, two, three] {
            sent.extend([0, 0, 1, DATA, 0]);
            sent.extend(stream.to_be_bytes());
            sent.push(b'x');
        }
        frames.0.write_all(&sent).await.unwrap();
        for body in [&mut first, &mut third] {
            assert_eq!(within(body.next()).await.unwrap().unwrap(), "x");
            assert!(within(body.next()).await.is_err());
        }
    }

    /// So many that some are in line when the connection has ended.
    const TURNS: usize = 5;

    /// Counts how often it is woken.
    #[derive(Default)]
    struct Counts(AtomicUsize);

    impl Counts {
        fn count(&self) -> usize {
            self.0.load(Ordering::Relaxed)
        }
    }

    impl Wake for Counts {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Bodies of a busy tenant for some turns, and one of a quiet tenant among them, of each of which a byte was sent at
    /// once; and how often their readers are woken.
    async fn come_at_once(
        connection: &Connection,
        frames: &mut Frames,
    ) -> (Vec<ResponseBody>, [Arc<Counts>; 2]) {
        let root = Budget::new(1000);
        let (busy, quiet) = (root.share(), root.share().share());
        let callers = [busy.share(), busy.share()];
        let counts = <[Arc<Counts>; 2]>::default();
        let (mut bodies, mut sent) = (Vec::new(), Vec::new());
        for number in 0..=TURNS * WAKES {
            let is_quiet = number == 2 * WAKES;
            let (raw, stream) = headed(connection, frames).await;
            let share = if is_quiet {
                &quiet
            } else {
                &callers[number % 2]
            };
            let mut body = connection.read(raw, share.draw(1).unwrap());
            let waker = Waker::from(Arc::clone(&counts[usize::from(is_quiet)]));
            let mut next = Box::pin(body.next());
            let polled = next.as_mut().poll(&mut Context::from_waker(&waker));
            assert!(polled.is_pending());
            drop(next);
            bodies.push(body);
            sent.extend([0, 0, 1, DATA, 0]);
            sent.extend(stream.to_be_bytes());
            sent.push(b'x');
        }
        frames.0.write_all(&sent).await.unwrap();
        (bodies, counts)
    }

    /// A step of the connection woke hundreds of relays of a tenant, all of them before a request of another.
    #[tokio::test]
    async fn readers_of_an_owner_are_woken_a_few_at_a_time() {
        for is_closed in [false, true] {
            let (connection, mut frames) = connected(&Arc::default()).await;
            let (mut bodies, [busy, quiet]) = come_at_once(&connection, &mut frames).await;
            let until_woken = async |count: usize| {
                while busy.count() < count {
                    tokio::task::yield_now().await;
                }
            };
            within(until_woken(1)).await;
            // In one step: the runtime of this test has one thread. A machine that stands still lets some more go.
            assert!((WAKES..3 * WAKES).contains(&busy.count()));
            assert_eq!(quiet.count(), 1);
            // More for a body in line is no second place, and one that has gone is no obstacle.
            let is_in_line = |body: &ResponseBody| incoming(body).state().is_in_line;
            let waiting = || connection.state.arrivals.arrived().line.len();
            let at = bodies.iter().position(is_in_line).unwrap();
            let before = waiting();
            incoming(&bodies[at]).receive();
            assert_eq!(waiting(), before);
            drop(bodies.remove(at));
            if is_closed {
                drop(frames);
            }
            within(until_woken(TURNS * WAKES - 1)).await;
            for body in &mut bodies {
                assert_eq!(within(body.next()).await.unwrap().unwrap(), "x");
            }
        }
    }

    /// h2 tells of nothing then, and panics again as it is asked.
    #[tokio::test]
    async fn clients_that_wait_learn_that_h2_panicked_with_its_lock() {
        let (connection, mut frames) = connected(&Arc::default()).await;
        let (mut body, _) = begun(&connection, &mut frames).await;
        let (raw, stream) = headed(&connection, &mut frames).await;
        // It would panic as it is dropped.
        let mut raw = std::mem::ManuallyDrop::new(raw);
        let waker = Waker::from(Arc::new(Panics));
        let polled = raw.poll_data(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        let incoming = incoming(&body);
        let breaking = async {
            until(&incoming, |state| state.reader.is_some()).await;
            frames.write(DATA, 0, stream, b"x").await;
        };
        let (next, ()) = within(async { tokio::join!(body.next(), breaking) }).await;
        assert!(next.is_err());
        assert!(connection.is_closed());
        drop(body);
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

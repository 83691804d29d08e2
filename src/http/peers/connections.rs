//! Connections to other replicas: HTTP/2 with prior knowledge, one per replica, shared by all
//! requests. A peer proves that it is a replica before it gets one.
//!
//! Not here: sessions and retries. An error tells the caller whether a retry is safe.

use std::{
    collections::HashMap,
    error::Error as _,
    future::Future,
    io,
    pin::Pin,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::{
    body::{Body as _, Incoming},
    client::conn::http2::{self, SendRequest},
    rt::Executor,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot},
    time::timeout,
};
use tokio_util::{
    sync::{CancellationToken, WaitForCancellationFutureOwned},
    task::TaskTracker,
};

use super::proof::{self, ProofError};
use crate::state::ReplicaKeys;

/// Connections to all other replicas; a handle.
#[derive(Clone)]
pub(crate) struct Peers(Arc<Pool>);

struct Pool {
    /// By address; never held across an await.
    peers: RwLock<HashMap<Arc<str>, Peer>>,
    keys: ReplicaKeys,
    tracker: TaskTracker,
    stop: CancellationToken,
}

/// Another replica, by its address; a handle.
#[derive(Clone)]
struct Peer {
    state: Arc<PeerState>,
    /// Requests for a connection, sent to the task that owns it. Senders wait beyond
    /// [`QUEUED_MAX`].
    connection_requests: mpsc::Sender<ConnectionRequest>,
}

/// State of a peer that its task shares. The task must not hold the sender of its own channel:
/// it ends when the last sender is gone.
struct PeerState {
    /// Permits for concurrent requests and responses.
    permits: Arc<Semaphore>,
    /// The open connection, as far as is known.
    open: RwLock<Option<Sender>>,
    /// Whether the connection was used since the last idle check.
    is_used: AtomicBool,
}

type ConnectionRequest = oneshot::Sender<Result<Sender, SendError>>;
type Sender = SendRequest<Full<Bytes>>;

/// Reason why a request has no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendError {
    /// The connection was refused: no replica saw the request.
    Refused,
    /// There was no connection, or the replica never took the request.
    NotTaken,
    /// The limit of concurrent requests is reached; the replica did not see the request.
    Full,
    /// The request was sent and may have been executed.
    Broken,
    /// The request was sent, and the replica does not respond: it is frozen or cut off.
    Silent,
}

/// Body of a response. It holds its permit for a concurrent request until it is dropped.
#[derive(Debug)]
pub(crate) struct ResponseBody {
    body: Incoming,
    _permit: OwnedSemaphorePermit,
}

/// The connection broke before the end of the response.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the connection to another replica broke")]
pub(crate) struct BrokenResponse;

impl ResponseBody {
    /// Returns the next bytes, or `None` at the end. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, BrokenResponse> {
        loop {
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
                // hyper takes a reset with `NO_ERROR` for the end; only END_STREAM is one.
                None if self.body.is_end_stream() => return Ok(None),
                Some(Err(_)) | None => return Err(BrokenResponse),
            }
        }
    }
}

impl Peers {
    /// Makes an empty pool, whose peers prove themselves by `keys`. Its connections run as tasks of
    /// `tracker` and break at `stop`.
    pub(crate) fn new(keys: ReplicaKeys, tracker: TaskTracker, stop: CancellationToken) -> Self {
        let peers = RwLock::default();
        Self(Arc::new(Pool {
            peers,
            keys,
            tracker,
            stop,
        }))
    }

    /// Sends a request to the replica at `address` (`host:port`) and waits for the head of the
    /// response. The URI of the request must be absolute.
    ///
    /// # Errors
    ///
    /// The reason why there is no response, which tells whether the request may be sent again.
    pub(crate) async fn send(
        &self,
        address: &Arc<str>,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<ResponseBody>, SendError> {
        let peer = self.peer(address);
        let permit = Arc::clone(&peer.state.permits).try_acquire_owned();
        let permit = permit.map_err(|_| SendError::Full)?;
        peer.state.is_used.store(true, Ordering::Relaxed);
        let mut sender = peer.sender().await?;
        match sender.try_send_request(request).await {
            Ok(response) => Ok(response.map(|body| ResponseBody {
                body,
                _permit: permit,
            })),
            Err(error) if error.message().is_some() => Err(SendError::NotTaken),
            Err(error) => Err(classify(error.error())),
        }
    }

    fn peer(&self, address: &Arc<str>) -> Peer {
        let pool = &self.0;
        let known = pool.peers.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(peer) = known.get(address) {
            return peer.clone();
        }
        drop(known);
        let mut peers = pool.peers.write().unwrap_or_else(PoisonError::into_inner);
        // Each deployment brings new addresses; unused ones are removed here.
        peers.retain(|_, peer| !peer.state.is_idle());
        let peer = peers.entry(Arc::clone(address)).or_insert_with(|| {
            let (connection_requests, requests) = mpsc::channel(QUEUED_MAX);
            let state = Arc::new(PeerState {
                permits: Arc::new(Semaphore::new(MAX_CONCURRENT)),
                open: RwLock::default(),
                is_used: AtomicBool::new(true),
            });
            let (address, shared) = (Arc::clone(address), Arc::clone(&state));
            let task = own_connection(address, shared, Arc::clone(pool), requests);
            pool.tracker.spawn(task);
            Peer {
                state,
                connection_requests,
            }
        });
        peer.clone()
    }
}

impl Peer {
    /// Returns a working connection, and opens one if there is none.
    async fn sender(&self) -> Result<Sender, SendError> {
        if let Some(sender) = self.state.sender() {
            return Ok(sender);
        }
        let (reply, response) = oneshot::channel();
        let sent = self.connection_requests.send(reply).await;
        sent.map_err(|_| SendError::NotTaken)?;
        response.await.unwrap_or(Err(SendError::NotTaken))
    }
}

impl PeerState {
    fn is_unused(&self) -> bool {
        self.permits.available_permits() == MAX_CONCURRENT
    }

    fn is_idle(&self) -> bool {
        self.is_unused() && self.sender().is_none()
    }

    /// Returns the open connection if it works.
    fn sender(&self) -> Option<Sender> {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        open.as_ref().filter(|sender| !sender.is_closed()).cloned()
    }

    fn set_sender(&self, sender: Option<Sender>) {
        *self.open.write().unwrap_or_else(PoisonError::into_inner) = sender;
    }
}

/// Owns the connection to one peer: opens it on request, and closes it when it is idle.
async fn own_connection(
    address: Arc<str>,
    peer: Arc<PeerState>,
    pool: Arc<Pool>,
    mut requests: mpsc::Receiver<ConnectionRequest>,
) {
    loop {
        let reply = tokio::select! {
            () = pool.stop.cancelled() => break,
            request = timeout(IDLE, requests.recv()) => match request {
                Ok(Some(reply)) => reply,
                Ok(None) => break,
                Err(_) => {
                    let is_used = peer.is_used.swap(false, Ordering::Relaxed);
                    if !is_used && peer.is_unused() {
                        peer.set_sender(None);
                    }
                    continue;
                }
            },
        };
        let connected = match peer.sender() {
            Some(sender) => Ok(sender),
            None => pool.connect(&address).await,
        };
        peer.set_sender(connected.as_ref().ok().cloned());
        // All requests that are queued by now waited for this attempt, so they share its result.
        let _ = reply.send(connected.clone());
        while let Ok(reply) = requests.try_recv() {
            let _ = reply.send(connected.clone());
        }
    }
    peer.set_sender(None);
}

impl Pool {
    async fn connect(&self, address: &str) -> Result<Sender, SendError> {
        let connected = timeout(CONNECT, self.open(address)).await;
        match connected {
            Ok(Ok(sender)) => self.proved(sender, address).await,
            Ok(Err(ConnectError::Socket(error)))
                if error.kind() == io::ErrorKind::ConnectionRefused =>
            {
                tracing::debug!(address, "a replica refused the connection");
                Err(SendError::Refused)
            }
            Ok(Err(error)) => {
                tracing::debug!(address, %error, "cannot connect to a replica");
                Err(SendError::NotTaken)
            }
            Err(_) => {
                tracing::debug!(address, "a replica does not answer");
                Err(SendError::NotTaken)
            }
        }
    }

    /// Returns the connection once the peer has proved itself.
    async fn proved(&self, mut sender: Sender, address: &str) -> Result<Sender, SendError> {
        let proved = timeout(PROOF, proof::demand(&mut sender, &self.keys, address)).await;
        match proved {
            Ok(Ok(())) => Ok(sender),
            Ok(Err(ProofError::Connection(error))) => match classify(&error) {
                SendError::Silent => Err(SendError::Silent),
                // No request was sent.
                _ => Err(SendError::NotTaken),
            },
            Ok(Err(error)) => {
                tracing::warn!(address, %error, "a peer got no request");
                Err(SendError::NotTaken)
            }
            Err(_) => Err(SendError::Silent),
        }
    }

    async fn open(&self, address: &str) -> Result<Sender, ConnectError> {
        let stream = TcpStream::connect(address)
            .await
            .map_err(ConnectError::Socket)?;
        let set = stream.set_nodelay(true);
        set.map_err(ConnectError::Socket)?;
        let tracked = Tracked(self.tracker.clone());
        let mut builder = http2::Builder::new(tracked.clone());
        builder
            .timer(TokioTimer::new())
            // A slow reader stops only its own stream, because the shared window is never used up.
            // h2's budget for small waiting frames is half of that window.
            .initial_connection_window_size(CONNECTION_WINDOW)
            .initial_stream_window_size(STREAM_WINDOW)
            .adaptive_window(false)
            .max_send_buf_size(64 << 10)
            // A frozen peer is noticed within about four seconds, even on an idle connection.
            .keep_alive_interval(PING)
            .keep_alive_timeout(PONG)
            .keep_alive_while_idle(true);
        let stream = StoppableStream {
            stream,
            stop: Box::pin(self.stop.child_token().cancelled_owned()),
        };
        let handshake = builder.handshake(TokioIo::new(stream)).await;
        let (sender, connection) = handshake.map_err(ConnectError::Handshake)?;
        tracked.execute(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "the connection to a replica ended");
            }
        });
        Ok(sender)
    }
}

/// Reason why a connection could not be opened.
#[derive(Debug, thiserror::Error)]
enum ConnectError {
    #[error("{0}")]
    Socket(io::Error),
    #[error("{0}")]
    Handshake(hyper::Error),
}

/// Executor that spawns the tasks of hyper, one per request, on the tracker.
#[derive(Clone)]
struct Tracked(TaskTracker);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Tracked {
    fn execute(&self, future: F) {
        self.0.spawn(future);
    }
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

/// Classifies the error of a request that was handed to the connection, by whether the peer may have
/// taken it (RFC 9113, sections 6.8 and 8.7).
fn classify(error: &hyper::Error) -> SendError {
    if error.is_timeout() {
        return SendError::Silent;
    }
    let mut source = error.source();
    while let Some(cause) = source {
        if let Some(error) = cause.downcast_ref::<h2::Error>() {
            let is_refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
            // h2 reports this error only for streams above the last one that the peer names.
            let is_behind = error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR);
            if error.is_remote() && (is_refused || is_behind) {
                return SendError::NotTaken;
            }
        }
        source = cause.source();
    }
    SendError::Broken
}

/// Time limit for connecting, name resolution included.
const CONNECT: Duration = Duration::from_millis(500);
/// Time limit for the proof of a peer that answers pings: longer than the detection of one that does
/// not.
const PROOF: Duration = Duration::from_secs(5);
/// Silence after which a ping is sent.
const PING: Duration = Duration::from_secs(1);
/// Time limit for the response to a ping.
const PONG: Duration = Duration::from_secs(3);
/// Interval of idle checks: an unused connection is closed after one to two of them.
const IDLE: Duration = Duration::from_secs(60);
/// The largest window that HTTP/2 allows.
const CONNECTION_WINDOW: u32 = (1 << 31) - 1;
/// Bytes buffered here for a slow client; further events stay in the owner's log.
const STREAM_WINDOW: u32 = 64 << 10;
/// Concurrent requests to one replica; its listener has the same limit per connection.
pub(crate) const MAX_CONCURRENT: usize = 10_000;
/// Queued requests for a connection that is being opened; further senders wait.
const QUEUED_MAX: usize = 64;

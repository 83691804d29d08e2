//! Connections to other replicas: HTTP/2 with prior knowledge, one to each, shared by all requests.
//!
//! Knows nothing of sessions and does not try again; it tells apart what the caller may do about
//! a request that was not answered.

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

/// All other replicas; a handle.
#[derive(Clone)]
pub(crate) struct Peers(Arc<Pool>);

struct Pool {
    /// By address; never held across an await.
    peers: RwLock<HashMap<Arc<str>, Peer>>,
    tracker: TaskTracker,
    stop: CancellationToken,
}

/// Another replica, by its address; a handle.
#[derive(Clone)]
struct Peer {
    /// Requests and responses that may be under way.
    places: Arc<Semaphore>,
    /// The open connection, as far as is known.
    open: Arc<RwLock<Option<Sender>>>,
    /// Asks the task that owns the connection for one; beyond [`WAITING`] that waits.
    asks: mpsc::Sender<oneshot::Sender<Result<Sender, NotSent>>>,
    /// Whether it was used since somebody looked.
    is_used: Arc<AtomicBool>,
}

type Sender = SendRequest<Full<Bytes>>;

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotSent {
    /// Nobody listens at the address: no replica saw the request.
    Refused,
    /// There was no connection, or the replica never took the request.
    NotTaken,
    /// As many are under way as may be; the replica did not see it.
    Full,
    /// It was sent, and may have had its effect.
    Broken,
    /// Likewise, and the replica does not answer: it is frozen, or cut off.
    Silent,
}

/// The body of an answer; the place among those that are under way is held until it is dropped.
#[derive(Debug)]
pub(crate) struct Answer {
    body: Incoming,
    _place: OwnedSemaphorePermit,
}

/// The connection broke before the end of the answer.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the connection to another replica broke")]
pub(crate) struct Cut;

impl Answer {
    /// The next bytes; none at the end. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, Cut> {
        loop {
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
                // hyper takes a reset without an error for the end; only one that was said is one.
                None if self.body.is_end_stream() => return Ok(None),
                Some(Err(_)) | None => return Err(Cut),
            }
        }
    }
}

impl Peers {
    /// No connections yet. They are tasks of `tracker`, and break at `stop`.
    pub(crate) fn new(tracker: TaskTracker, stop: CancellationToken) -> Self {
        let peers = RwLock::default();
        Self(Arc::new(Pool {
            peers,
            tracker,
            stop,
        }))
    }

    /// Sends a request to the replica at `address` (`host:port`) and waits for the head of its
    /// answer; the request's URI must be absolute.
    ///
    /// # Errors
    ///
    /// Why there is none, and so whether it may be sent again.
    pub(crate) async fn send(
        &self,
        address: &Arc<str>,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Answer>, NotSent> {
        let peer = self.peer(address);
        let place = Arc::clone(&peer.places).try_acquire_owned();
        let place = place.map_err(|_| NotSent::Full)?;
        peer.is_used.store(true, Ordering::Relaxed);
        let mut sender = peer.sender().await?;
        match sender.try_send_request(request).await {
            Ok(response) => Ok(response.map(|body| Answer {
                body,
                _place: place,
            })),
            Err(error) if error.message().is_some() => Err(NotSent::NotTaken),
            Err(error) => Err(why(error.error())),
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
        // Each deploy brings new addresses; those that nobody asks for any more are forgotten.
        peers.retain(|_, peer| !peer.is_idle());
        let peer = peers.entry(Arc::clone(address)).or_insert_with(|| {
            let (asks, asked) = mpsc::channel(WAITING);
            let peer = Peer {
                places: Arc::new(Semaphore::new(PLACES)),
                open: Arc::default(),
                asks,
                is_used: Arc::new(AtomicBool::new(true)),
            };
            let keep = keep(Arc::clone(address), peer.weak(), Arc::clone(pool), asked);
            pool.tracker.spawn(keep);
            peer
        });
        peer.clone()
    }
}

/// What the task of a peer has of it: not what it ends by.
struct Weak {
    places: Arc<Semaphore>,
    open: Arc<RwLock<Option<Sender>>>,
    is_used: Arc<AtomicBool>,
}

impl Peer {
    fn weak(&self) -> Weak {
        Weak {
            places: Arc::clone(&self.places),
            open: Arc::clone(&self.open),
            is_used: Arc::clone(&self.is_used),
        }
    }

    fn is_idle(&self) -> bool {
        self.places.available_permits() == PLACES && current(&self.open).is_none()
    }

    /// The connection; a new one where there is none that works.
    async fn sender(&self) -> Result<Sender, NotSent> {
        if let Some(sender) = current(&self.open) {
            return Ok(sender);
        }
        let (reply, answer) = oneshot::channel();
        let asked = self.asks.send(reply).await;
        asked.map_err(|_| NotSent::NotTaken)?;
        answer.await.unwrap_or(Err(NotSent::NotTaken))
    }
}

fn current(open: &RwLock<Option<Sender>>) -> Option<Sender> {
    let open = open.read().unwrap_or_else(PoisonError::into_inner);
    open.as_ref().filter(|sender| !sender.is_closed()).cloned()
}

/// Owns the connection to one peer: makes one when it is asked to and there is none, and lets go
/// of one that nobody uses.
async fn keep(
    address: Arc<str>,
    peer: Weak,
    pool: Arc<Pool>,
    mut asked: mpsc::Receiver<oneshot::Sender<Result<Sender, NotSent>>>,
) {
    let put = |sender: Option<Sender>| {
        *peer.open.write().unwrap_or_else(PoisonError::into_inner) = sender;
    };
    loop {
        let reply = tokio::select! {
            () = pool.stop.cancelled() => break,
            asked = timeout(IDLE, asked.recv()) => match asked {
                Ok(Some(reply)) => reply,
                Ok(None) => break,
                Err(_) => {
                    let is_used = peer.is_used.swap(false, Ordering::Relaxed);
                    if !is_used && peer.places.available_permits() == PLACES {
                        put(None);
                    }
                    continue;
                }
            },
        };
        let connected = match current(&peer.open) {
            Some(sender) => Ok(sender),
            None => pool.connect(&address).await,
        };
        put(connected.as_ref().ok().cloned());
        // All that wait by now waited for this attempt: none of them begins one of its own.
        let _ = reply.send(connected.clone());
        while let Ok(reply) = asked.try_recv() {
            let _ = reply.send(connected.clone());
        }
    }
    put(None);
}

impl Pool {
    async fn connect(&self, address: &str) -> Result<Sender, NotSent> {
        let connected = timeout(CONNECT, self.open(address)).await;
        match connected {
            Ok(Ok(sender)) => Ok(sender),
            Ok(Err(Open::Socket(error))) if error.kind() == io::ErrorKind::ConnectionRefused => {
                tracing::debug!(address, "nobody listens at the address of a replica");
                Err(NotSent::Refused)
            }
            Ok(Err(error)) => {
                tracing::debug!(address, %error, "cannot connect to a replica");
                Err(NotSent::NotTaken)
            }
            Err(_) => {
                tracing::debug!(address, "a replica does not answer");
                Err(NotSent::NotTaken)
            }
        }
    }

    async fn open(&self, address: &str) -> Result<Sender, Open> {
        let stream = TcpStream::connect(address).await.map_err(Open::Socket)?;
        let set = stream.set_nodelay(true);
        set.map_err(Open::Socket)?;
        let tracked = Tracked(self.tracker.clone());
        let mut builder = http2::Builder::new(tracked.clone());
        builder
            .timer(TokioTimer::new())
            // A stream whose reader is slow stops alone: it never uses up what others share. With
            // it goes h2's budget for small frames that wait, which is a half of it.
            .initial_connection_window_size(CONNECTION_WINDOW)
            .initial_stream_window_size(STREAM_WINDOW)
            .adaptive_window(false)
            .max_send_buf_size(64 << 10)
            // A frozen peer is noticed within about four seconds, also before it is needed.
            .keep_alive_interval(PING)
            .keep_alive_timeout(PONG)
            .keep_alive_while_idle(true);
        let stream = Breaking {
            stream,
            stop: Box::pin(self.stop.child_token().cancelled_owned()),
        };
        let shaken = builder.handshake(TokioIo::new(stream)).await;
        let (sender, connection) = shaken.map_err(Open::Handshake)?;
        tracked.execute(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "the connection to a replica ended");
            }
        });
        Ok(sender)
    }
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
enum Open {
    #[error("{0}")]
    Socket(io::Error),
    #[error("{0}")]
    Handshake(hyper::Error),
}

/// Runs what belongs to connections, and ends with them: there is a task for each request.
#[derive(Clone)]
struct Tracked(TaskTracker);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Tracked {
    fn execute(&self, future: F) {
        self.0.spawn(future);
    }
}

/// A socket that breaks at `stop`, and with it all that is under way on it.
struct Breaking {
    stream: TcpStream,
    stop: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl Breaking {
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if self.stop.as_mut().poll(cx).is_ready() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        Ok(())
    }
}

impl AsyncRead for Breaking {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Breaking {
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

/// Whether a request that failed after it was handed to the connection may have been taken
/// (RFC 9113, sections 6.8 and 8.7).
fn why(error: &hyper::Error) -> NotSent {
    if error.is_timeout() {
        return NotSent::Silent;
    }
    let mut source = error.source();
    while let Some(cause) = source {
        if let Some(error) = cause.downcast_ref::<h2::Error>() {
            let is_refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
            // h2 says so of the streams behind the last one that the peer names, and of no other.
            let is_behind = error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR);
            if error.is_remote() && (is_refused || is_behind) {
                return NotSent::NotTaken;
            }
        }
        source = cause.source();
    }
    NotSent::Broken
}

/// To connect, a name to be looked up included.
const CONNECT: Duration = Duration::from_millis(500);
/// Silence after which a connection is asked for a sign.
const PING: Duration = Duration::from_secs(1);
/// How long it has for that.
const PONG: Duration = Duration::from_secs(3);
/// A connection that nobody used for twice as long at most is closed.
const IDLE: Duration = Duration::from_secs(60);
/// The most that HTTP/2 allows.
const CONNECTION_WINDOW: u32 = (1 << 31) - 1;
/// What waits here for a slow client at most; the rest waits in the owner's log.
const STREAM_WINDOW: u32 = 64 << 10;
/// Requests and responses under way to one replica: as many as it takes of one connection.
pub(crate) const PLACES: usize = 10_000;
/// Requests that wait for a connection to be made; more wait for their turn to wait.
const WAITING: usize = 64;

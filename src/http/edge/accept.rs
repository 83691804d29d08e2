//! The accept loop: from a listening socket to requests of the router.
//!
//! Bounds connections, handshakes and header blocks; knows no route and checks no header.
//!
//! hyper-util's `auto` builder was the alternative: it waits for the first bytes without any
//! deadline, and costs 8 KiB more per idle connection than choosing the protocol here.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use hyper_util::server::graceful::GracefulConnection;
use rustix::net::{RecvFlags, SendFlags};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::app::App;
use super::tls::TlsReload;
use super::wire::Wire;

/// What one listener may use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Connections at once; one more is told 503 and closed.
    pub(crate) max_connections: usize,
    /// How long a connection may take to finish once it has to.
    pub(crate) finish: Duration,
}

/// Serves `app` on `listener` until `stop`, then lets open connections finish their requests.
///
/// Returns when nothing more is accepted; the connections themselves are tasks of `tracker`.
pub(crate) async fn serve(
    listener: TcpListener,
    tls: Option<TlsReload>,
    app: App,
    bounds: Bounds,
    stop: CancellationToken,
    tracker: TaskTracker,
) {
    let protocols = Protocols::new();
    accept(listener, tls, app, bounds, protocols, (stop, tracker)).await;
}

/// The same for other replicas, each of which sends all that it has over one connection.
pub(crate) async fn serve_replicas(
    listener: TcpListener,
    app: App,
    bounds: Bounds,
    stop: CancellationToken,
    tracker: TaskTracker,
) {
    let protocols = Protocols::of_replicas();
    accept(listener, None, app, bounds, protocols, (stop, tracker)).await;
}

async fn accept(
    listener: TcpListener,
    tls: Option<TlsReload>,
    app: App,
    bounds: Bounds,
    protocols: Protocols,
    (stop, tracker): (CancellationToken, TaskTracker),
) {
    let places = Arc::new(Semaphore::new(bounds.max_connections));
    let protocols = Arc::new(protocols);
    let mut pause = FIRST_PAUSE;
    let mut is_full = false;
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) if is_of_one_connection(&error) => continue,
            Err(error) => {
                // EMFILE, ENFILE, ENOBUFS, ENOMEM stay true until something else closes.
                tracing::warn!(%error, "cannot accept; pausing");
                tokio::select! { () = stop.cancelled() => return, () = sleep(pause) => {} }
                pause = (pause * 2).min(LAST_PAUSE);
                continue;
            }
        };
        pause = FIRST_PAUSE;
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            if !is_full {
                tracing::warn!(
                    max = bounds.max_connections,
                    "connections are at their bound"
                );
            }
            is_full = true;
            refuse(&stream, tls.is_some());
            continue;
        };
        is_full = false;
        prepare(&stream);
        let connection = Connection {
            peer,
            app: app.clone(),
            protocols: Arc::clone(&protocols),
            stop: stop.clone(),
            finish: bounds.finish,
            _place: place,
        };
        match &tls {
            // Boxed, so that the larger state of a TLS connection is not paid for by a plain one.
            Some(tls) => drop(tracker.spawn(Box::pin(connection.secure(stream, tls.load_full())))),
            None => drop(tracker.spawn(connection.plain(stream))),
        }
    }
}

/// One accepted connection and what it holds.
struct Connection {
    /// The other end.
    peer: SocketAddr,
    /// What answers its requests.
    app: App,
    /// The settings of hyper, shared by all.
    protocols: Arc<Protocols>,
    /// Tells it to finish.
    stop: CancellationToken,
    /// How long it may take for that.
    finish: Duration,
    /// Its place among `max_connections`.
    _place: OwnedSemaphorePermit,
}

impl Connection {
    async fn plain(self, stream: TcpStream) {
        let began = Instant::now();
        match self.begin(speaks_http2(&stream)).await {
            Some(Ok(true)) => Box::pin(self.http2(stream)).await,
            Some(Ok(false)) => Box::pin(self.http1(stream, began.elapsed())).await,
            Some(Err(_)) | None => {}
        }
    }

    async fn secure(self, stream: TcpStream, config: Arc<rustls::ServerConfig>) {
        let handshake = tokio_rustls::TlsAcceptor::from(config).accept(stream);
        let stream = match self.begin(handshake).await {
            Some(Ok(stream)) => stream,
            Some(Err(error)) => {
                tracing::debug!(%error, "TLS handshake failed");
                return;
            }
            None => return,
        };
        if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
            Box::pin(self.http2(stream)).await;
        } else {
            Box::pin(self.http1(stream, Duration::ZERO)).await;
        }
    }

    /// Waits for what comes before any request; a gateway that stops does not.
    async fn begin<T>(&self, first: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            () = self.stop.cancelled() => None,
            first = timeout(HANDSHAKE, first) => first.ok(),
        }
    }

    /// `waited` for the first byte counts for the header block: together they get 10 s (P103).
    async fn http1<S>(self, stream: S, waited: Duration)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Self {
            peer,
            app,
            protocols,
            stop,
            finish,
            _place,
        } = self;
        let asked = Arc::new(AtomicBool::new(false));
        let service = watched(app, peer, Arc::clone(&asked));
        let connection = protocols.http1.serve_connection(Wire::new(stream), service);
        let connection = pin!(connection);
        let driven = pin!(drive(connection, stop, finish));
        let limit = HANDSHAKE.saturating_sub(waited).max(NOTICED);
        if_asked(driven, &asked, limit).await;
    }

    async fn http2<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(self, stream: S) {
        let Self {
            peer,
            app,
            protocols,
            stop,
            finish,
            _place,
        } = self;
        let asked = Arc::new(AtomicBool::new(false));
        let service = watched(app, peer, Arc::clone(&asked));
        let connection = protocols.http2.serve_connection(Wire::new(stream), service);
        let connection = pin!(connection);
        let driven = pin!(drive(connection, stop, finish));
        if_asked(driven, &asked, HANDSHAKE).await;
    }
}

/// Requests of one connection, the first of which is noted.
fn watched(
    app: App,
    peer: SocketAddr,
    asked: Arc<AtomicBool>,
) -> impl hyper::service::Service<Request<Incoming>, Response = Response, Error = Infallible, Future: Send>
{
    service_fn(move |request| {
        asked.store(true, Ordering::Relaxed);
        call(app.clone(), peer, request)
    })
}

/// Runs a connection, but without a first request only for so long: for the preface and the first
/// header block hyper has either no deadline or that of an idle connection.
///
/// Pinned by the caller: a future that is moved into another one stands in it twice.
async fn if_asked(
    mut driven: Pin<&mut impl Future<Output = ()>>,
    asked: &AtomicBool,
    limit: Duration,
) {
    if timeout(limit, &mut driven).await.is_err() && asked.load(Ordering::Relaxed) {
        driven.await;
    }
}

/// Hands one request to what answers it. Boxed: hyper keeps room for it as long as the connection lives.
fn call(
    app: App,
    peer: SocketAddr,
    request: Request<Incoming>,
) -> Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>> {
    Box::pin(async move { Ok(app.answer(peer, request.map(Body::new)).await) })
}

/// Runs a connection to its end; from `stop` on it takes no further request, and has until
/// `finish` for those that it took: a peer that reads nothing keeps no gateway from its end.
async fn drive<C>(mut connection: Pin<&mut C>, stop: CancellationToken, finish: Duration)
where
    C: GracefulConnection,
    C::Error: std::fmt::Display,
{
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            let Ok(ended) = timeout(finish, connection).await else { return };
            ended
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended");
    }
}

/// Whether the first bytes are the preface of HTTP/2; leaves them in the socket.
async fn speaks_http2(stream: &TcpStream) -> io::Result<bool> {
    let mut first = [0; PREFACE.len()];
    let mut pause = PEEK_AGAIN;
    loop {
        let seen = stream.peek(&mut first).await?;
        if seen == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if first[..seen] != PREFACE[..seen] {
            return Ok(false);
        }
        if seen == PREFACE.len() {
            return Ok(true);
        }
        // What was peeked at stays readable, so readiness cannot be awaited a second time.
        sleep(pause).await;
        pause *= 2;
    }
}

/// Settings of the socket; none of them is worth losing the connection for.
fn prepare(stream: &TcpStream) {
    let nodelay = stream.set_nodelay(true);
    let timeout = rustix::net::sockopt::set_tcp_user_timeout(stream, PEER_GONE_MS);
    if nodelay.is_err() || timeout.is_err() {
        tracing::debug!("cannot set the options of a socket");
    }
}

/// One attempt to say why, without waiting; over TLS there is no time for a handshake.
fn refuse(stream: &TcpStream, is_tls: bool) {
    if is_tls {
        return;
    }
    // Past tokio, which refuses before it has heard from the kernel that a new socket takes bytes.
    if rustix::net::send(stream, FULL, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).is_err() {
        tracing::debug!("could not say 503 before closing");
    }
    // A request that lies unread makes a reset of the end, which takes the answer away.
    let mut request = [0_u8; 4096];
    _ = rustix::net::recv(stream, &mut request, RecvFlags::DONTWAIT);
}

/// Whether `accept` failed for the connection that it was about to return, and only for that.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::Interrupted
    )
}

/// hyper's settings for both protocols.
struct Protocols {
    /// For everything that does not begin with the preface of HTTP/2.
    http1: http1::Builder,
    /// By ALPN, or with prior knowledge.
    http2: http2::Builder<TokioExecutor>,
}

impl Protocols {
    fn new() -> Self {
        let mut http1 = http1::Builder::new();
        // `max_headers` stays unset: its default is the 100 of C11, and to set it costs an
        // allocation per request.
        http1
            .timer(TokioTimer::new())
            .header_read_timeout(KEEP_ALIVE)
            .max_header_size(HEADER_BLOCK)
            .max_buf_size(HEADER_BLOCK)
            .keep_alive(true)
            .half_close(false)
            .pipeline_flush(false);
        let mut http2 = http2::Builder::new(TokioExecutor::new());
        http2
            .timer(TokioTimer::new())
            .max_concurrent_streams(250)
            .keep_alive_interval(Duration::from_secs(20))
            .keep_alive_timeout(Duration::from_secs(20))
            .max_header_list_size(HEADER_BLOCK_H2)
            .initial_stream_window_size(256 << 10)
            .initial_connection_window_size(1 << 20)
            .max_pending_accept_reset_streams(20)
            .max_local_error_reset_streams(32)
            .max_send_buf_size(64 << 10);
        Self { http1, http2 }
    }

    fn of_replicas() -> Self {
        let mut protocols = Self::new();
        protocols
            .http2
            .max_concurrent_streams(REPLICA_STREAMS)
            // The other end says that it lives more often; here a dead one only holds places.
            .keep_alive_interval(REPLICA_SILENCE)
            .keep_alive_timeout(REPLICA_SILENCE)
            // No request waits because another one's body is not read.
            .initial_connection_window_size((1 << 31) - 1)
            // When a crowd of clients goes, so do all their streams at once: that is no attack.
            .max_pending_accept_reset_streams(REPLICA_STREAMS as usize)
            .max_local_error_reset_streams(REPLICA_STREAMS as usize);
        protocols
    }
}

/// For the TLS handshake, for the first byte, and for a header block (P103).
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long a connection may be idle between requests, the next header block included. Longer than
/// the minute for which load balancers keep theirs: who closes first must be the one who sends.
const KEEP_ALIVE: Duration = Duration::from_secs(75);
/// A shorter wait for the first byte is not worth settings of its own.
const NOTICED: Duration = Duration::from_millis(500);
/// Requests and responses of one other replica at a time; it keeps to the same bound (`peers`).
const REPLICA_STREAMS: u32 = 10_000;
/// Between signs of life of another replica, and for its answer.
const REPLICA_SILENCE: Duration = Duration::from_secs(5);
/// C11.
const HEADER_BLOCK: usize = 64 << 10;
const HEADER_BLOCK_H2: u32 = 64 << 10;
/// No method but HTTP/2's `PRI` begins like this.
const PREFACE: &[u8; 4] = b"PRI ";
/// Only for a client that sends its first bytes one by one; doubled each time, because a crowd
/// of clients that stop after a `P` (of `POST` as well) must not keep a processor busy.
const PEEK_AGAIN: Duration = Duration::from_millis(10);
/// A peer that acknowledges nothing for so long is gone.
const PEER_GONE_MS: u32 = 30_000;
/// After the first failed accept.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// Between accepts that go on failing.
const LAST_PAUSE: Duration = Duration::from_secs(1);
/// What a connection beyond the bound is told.
const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\n\
content-type: application/json\r\nx-content-type-options: nosniff\r\ncache-control: no-store\r\n\
content-length: 45\r\n\r\n{\"error\":{\"message\":\"too many connections\"}}\n";

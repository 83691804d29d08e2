//! Accept loop: from a listener socket to requests.
//!
//! Limits connections, handshakes and header blocks. Not here: routes, and checks of header fields.
//!
//! Rejected: hyper-util's `auto` builder. It waits for the first bytes without a deadline, and costs
//! 8 KiB more per idle connection than the choice of the protocol here.

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use futures_util::FutureExt;
use http::header::CONNECTION;
use http::{HeaderValue, Request};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use hyper_util::server::graceful::GracefulConnection;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::activity::{Activity, Open};
use super::connections::{Admission, Connections};
use super::requests::Requests;
use super::tls::{self, TlsReload};
use super::wire::{BlockBounds, HEAD, Wire};
use crate::base::budget::{Stepped, others_first};
use crate::base::memory::pinned;
use crate::http::edge::{App, STREAM_WINDOW, TRAILERS_MAX};
use crate::http::peers::{BrokenConnections, HEADER_LIST, Stranger, Strangers};

/// Limits of one listener.
pub(crate) struct Bounds {
    /// Concurrent connections; a further one gets a 503 and is closed.
    pub(crate) connections: Connections,
    /// Time limit for a connection to finish its requests at shutdown.
    pub(crate) finish: Duration,
    /// Time limit of a connection without a request, the next header block included; other replicas
    /// have none.
    pub(crate) idle: Duration,
}

/// Serves `app` on `listener` until `stop`, then lets open connections finish their requests.
///
/// Returns when no more connections are accepted. The connections are tasks of `tracker`.
pub(crate) async fn serve(
    listener: TcpListener,
    tls: Option<TlsReload>,
    app: App,
    bounds: Bounds,
    stop: CancellationToken,
    tracker: TaskTracker,
) {
    let protocols = Protocols::new(bounds.idle);
    accept(
        listener,
        (tls, None),
        app,
        bounds,
        protocols,
        (stop, tracker),
    )
    .await;
}

/// Serves `app` to other replicas, each of which sends all its requests over one connection. Half of all connections
/// may be those of peers that have not proved to be one.
pub(crate) async fn serve_replicas(
    listener: TcpListener,
    app: App,
    bounds: Bounds,
    stop: CancellationToken,
    tracker: TaskTracker,
) {
    let protocols = Protocols::of_replicas();
    let most = usize::try_from(bounds.connections.max() / 2).unwrap_or(usize::MAX);
    let peers = (None, Some(Strangers::new(most, HANDSHAKE)));
    accept(listener, peers, app, bounds, protocols, (stop, tracker)).await;
}

async fn accept(
    listener: TcpListener,
    (tls, mut strangers): (Option<TlsReload>, Option<Strangers>),
    app: App,
    bounds: Bounds,
    protocols: Protocols,
    (stop, tracker): (CancellationToken, TaskTracker),
) {
    let (protocols, broken) = (Arc::new(protocols), Arc::new(BrokenConnections::new()));
    let mut pause = FIRST_PAUSE;
    let mut is_full = false;
    let mut fresh = 0;
    loop {
        // Those that have come at once would all go before a request on a connection that is open.
        if fresh == AT_ONCE {
            fresh = 0;
            others_first().await;
        }
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) if is_of_one_connection(&error) => continue,
            Err(error) => {
                // EMFILE, ENFILE, ENOBUFS, ENOMEM and ENOSPC persist until something else is closed.
                tracing::warn!(%error, "{}", obstacle(&error));
                tokio::select! { () = stop.cancelled() => return, () = sleep(pause) => {} }
                pause = (pause * 2).min(LAST_PAUSE);
                continue;
            }
        };
        pause = FIRST_PAUSE;
        let Some(admission) = bounds.connections.enter(peer.ip()) else {
            if !is_full {
                tracing::warn!(
                    client.address = %peer.ip(),
                    max = bounds.connections.max(),
                    "too many connections, in all or of this address"
                );
            }
            is_full = true;
            refuse(&stream, tls.is_some());
            // With a turn for each, a flood of them would keep everybody else in the kernel's queue.
            fresh += 1;
            continue;
        };
        is_full = false;
        fresh += 1;
        set_options(&stream);
        let connection = Connection {
            requests: Requests::new(app.clone(), peer),
            protocols: Arc::clone(&protocols),
            stop: stop.clone(),
            finish: bounds.finish,
            stranger: strangers.as_mut().map(Strangers::enter),
            broken: Arc::clone(&broken),
            admission,
        };
        match &tls {
            // Boxed, so that a plain connection does not pay for the larger state of a TLS one.
            Some(tls) => drop(tracker.spawn(Box::pin(connection.secure(stream, tls.load_full())))),
            None => connection.spawn_plain(stream, &tracker),
        }
    }
}

/// One accepted connection.
struct Connection {
    /// Its requests.
    requests: Arc<Requests>,
    /// Settings of hyper, shared by all connections.
    protocols: Arc<Protocols>,
    /// Cancelled when the connection is to finish.
    stop: CancellationToken,
    /// Time limit for finishing.
    finish: Duration,
    /// What a peer that is to be a replica has proved.
    stranger: Option<Arc<Stranger>>,
    /// Connections of replicas that broke.
    broken: Arc<BrokenConnections>,
    /// Its place among all connections.
    admission: Admission,
}

impl Connection {
    fn spawn_plain(self, stream: TcpStream, tracker: &TaskTracker) {
        let Some(stranger) = self.stranger.clone() else {
            tracker.spawn(self.plain(stream));
            return;
        };
        tracker.spawn(async move {
            tokio::select! {
                () = self.plain(stream) => {}
                () = stranger.has_to_end() => {}
            }
        });
    }

    async fn plain(self, stream: TcpStream) {
        let began = Instant::now();
        // Boxed until it is over, as is a handshake: a task keeps room for the largest of its steps as long
        // as it lives.
        let is_http2 = Box::pin(self.with_deadline(speaks_http2(&stream))).await;
        let waited = began.elapsed();
        // Thousands of an address, whose first bytes have come at once, would all go before a request of another.
        let is_http2 = match is_http2 {
            Some(Ok(is_http2)) => Box::pin(self.in_turn(is_http2)).await,
            Some(Err(_)) | None => None,
        };
        match is_http2 {
            Some(true) => Box::pin(self.http2(stream)).await,
            Some(false) => Box::pin(self.http1(stream, waited)).await,
            None => {}
        }
    }

    /// This value, in a turn of the address, or at once when connections are to finish: its request has come already.
    async fn in_turn<T>(&self, value: T) -> Option<T> {
        tokio::select! {
            () = self.stop.cancelled() => Some(value),
            turn = timeout(HANDSHAKE, self.admission.others_first()) => turn.ok().map(|()| value),
        }
    }

    async fn secure(self, stream: TcpStream, config: Arc<rustls::ServerConfig>) {
        let handshake = async {
            // No turn is spent on waiting for the peer.
            stream.readable().await?;
            self.admission.others_first().await;
            tls::accept(stream, config).await
        };
        let secured = Box::pin(self.with_deadline(handshake)).await;
        let stream = match secured {
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

    /// Runs a step before the first request, within its time limit and until `stop`.
    async fn with_deadline<T>(&self, step: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            () = self.stop.cancelled() => None,
            step = timeout(HANDSHAKE, step) => step.ok(),
        }
    }

    /// Serves HTTP/1. The time already `waited` for the first byte counts towards the limit of the
    /// header block.
    async fn http1<S>(self, stream: S, waited: Duration)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Self {
            requests,
            protocols,
            stop,
            finish,
            stranger,
            admission: _admission,
            broken: _,
        } = self;
        let service = service(Arc::clone(&requests), stranger, None);
        let wire = Wire::of_http1(stream, Arc::clone(&requests));
        let connection = protocols.http1.serve_connection(wire, service);
        let connection = pin!(connection);
        let ended = |error: &hyper::Error| tracing::debug!(%error, "connection ended");
        let connection = pin!(run(connection, pending(), stop, finish, ended));
        let limit = HANDSHAKE.saturating_sub(waited).max(FIRST_REQUEST_MIN);
        await_first_request(connection, &requests, limit).await;
    }

    async fn http2<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(self, stream: S) {
        let Self {
            requests,
            protocols,
            stop,
            finish,
            stranger,
            broken,
            admission,
        } = self;
        let activity = Arc::new(Activity::default());
        let open = Some(Arc::clone(&activity));
        let service = service(Arc::clone(&requests), stranger.clone(), open);
        let http2 = if admission.is_of_proxy() {
            &protocols.http2_of_proxies
        } else {
            &protocols.http2
        };
        // One client must not end the requests of all others of its proxy, which bounds what it passes on.
        let bounds = if admission.is_of_proxy() {
            BlockBounds {
                trailers: usize::MAX,
                fields: usize::MAX,
            }
        } else {
            BlockBounds {
                trailers: TRAILERS_MAX,
                fields: FIELDS_MAX,
            }
        };
        let wire = Wire::of_http2(Stepped::new(stream), Arc::clone(&requests), bounds);
        let connection = http2.serve_connection(wire, service);
        let connection = pin!(connection);
        let idle = CancellationToken::new();
        let ended = |error: &hyper::Error| {
            if stranger
                .as_ref()
                .is_some_and(|stranger| stranger.is_known())
            {
                broken.log(&requests.peer, error);
            } else {
                tracing::debug!(%error, "connection ended");
            }
        };
        let running = pin!(run(connection, idle.cancelled(), stop, finish, ended));
        let mut running = pin!(await_first_request(running, &requests, HANDSHAKE));
        let Some(limit) = protocols.idle else {
            return running.await;
        };
        tokio::select! {
            () = &mut running => return,
            () = activity.idle(limit) => idle.cancel(),
        }
        // A request that was on its way takes its time, and hyper ends the connection behind it, but not behind answers
        // that nobody takes.
        tokio::select! {
            () = running => {}
            () = activity.idle(finish) => {}
        }
    }
}

/// Makes the service of one connection, which notes its requests, and counts open ones in `activity`.
fn service(
    requests: Arc<Requests>,
    stranger: Option<Arc<Stranger>>,
    activity: Option<Arc<Activity>>,
) -> impl hyper::service::Service<Request<Incoming>, Response = Response, Error = Infallible, Future: Send>
{
    service_fn(move |mut request: Request<Incoming>| {
        if let Some(stranger) = &stranger {
            request.extensions_mut().insert(Arc::clone(stranger));
        }
        requests.begin();
        let open = activity.as_ref().map(Activity::begin);
        call(Arc::clone(&requests), request, open)
    })
}

/// Runs a connection to its end, or to `limit` if no request came by then.
///
/// For the preface and the first header block hyper has either no deadline or that of an idle
/// connection. The caller pins the future, because a future that is moved into another one takes its
/// space twice.
async fn await_first_request(
    mut connection: Pin<&mut impl Future<Output = ()>>,
    requests: &Requests,
    limit: Duration,
) {
    if timeout(limit, &mut connection).await.is_err() && requests.have_begun() {
        connection.await;
    }
}

/// Passes one request to the routes. Boxed, because hyper reserves space for the future as long as
/// the connection lives.
fn call(
    requests: Arc<Requests>,
    request: Request<Incoming>,
    open: Option<Open>,
) -> Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>> {
    // Only of HTTP/1 is what was taken of interest.
    let request = match open {
        Some(_) => request.map(Body::new),
        None => request.map(|body| requests.body(body)),
    };
    // Here, and not in the task that hyper begins for it, which runs behind all others that are ready.
    match requests.app.receive(requests.peer, request) {
        Ok(received) => pinned(|| async move {
            let response = requests.app.answer(requests.peer, received).await;
            Ok(answered(&requests, open, response))
        }),
        // Apart, so that none of the room for the states of an answer is taken.
        Err(refused) => pinned(|| async move { Ok(answered(&requests, open, refused)) }),
    }
}

/// Notes the answer to a request, which is open until all of it is sent.
fn answered(requests: &Requests, open: Option<Open>, mut response: Response) -> Response {
    requests.answered();
    if let Some(open) = open {
        open.until_sent(response)
    } else {
        // Its buffer is kept as long as the connection, though nothing waits in it.
        if requests.has_to_end() {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(CONNECTION, close);
        }
        response
    }
}

/// Runs a connection to its end; `ended` gets the error of that. From `idle` and from `stop` on it takes no further
/// request. From `stop` on it has `finish` for the open ones, so that a peer that reads nothing cannot delay the shutdown.
async fn run<C: GracefulConnection>(
    mut connection: Pin<&mut C>,
    idle: impl Future<Output = ()>,
    stop: CancellationToken,
    finish: Duration,
    ended: impl Fn(&C::Error),
) {
    let mut idle = pin!(idle.fuse());
    let end = loop {
        tokio::select! {
            biased;
            // First: a request that has come before is read before the connection is to finish.
            end = connection.as_mut() => break end,
            () = stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                let Ok(end) = timeout(finish, connection).await else { return };
                break end;
            }
            () = &mut idle => connection.as_mut().graceful_shutdown(),
        }
    };
    if let Err(error) = end {
        ended(&error);
    }
}

/// Returns whether the connection begins with the HTTP/2 preface; leaves the bytes in the socket.
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
        // The peeked bytes keep the socket readable, so its readiness cannot be awaited again.
        sleep(pause).await;
        pause *= 2;
    }
}

/// Sets the socket options. Failures are logged only: no option is worth the connection.
fn set_options(stream: &TcpStream) {
    let nodelay = stream.set_nodelay(true);
    let timeout = rustix::net::sockopt::set_tcp_user_timeout(stream, PEER_GONE_MS);
    if nodelay.is_err() || timeout.is_err() {
        tracing::debug!("cannot set the options of a socket");
    }
}

/// Sends a 503 without waiting. A TLS connection is closed without one, because the handshake would
/// take time.
fn refuse(stream: &TcpStream, is_tls: bool) {
    if is_tls {
        return;
    }
    // Bypasses tokio, which fails until the kernel has reported a new socket as writable.
    if rustix::net::send(stream, FULL, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).is_err() {
        tracing::debug!("could not say 503 before closing");
    }
    // An unread request would turn the close into a reset, which discards the response.
    let mut request = [0_u8; 4096];
    _ = rustix::net::recv(stream, &mut request, RecvFlags::DONTWAIT);
}

/// Returns whether `accept` failed because of the connection that it was about to return.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::Interrupted
    )
}

/// Text of the log for an error that concerns more than one connection: of `accept`, or of the registration of the
/// new socket with epoll.
fn obstacle(error: &io::Error) -> &'static str {
    match Errno::from_io_error(error) {
        // epoll_ctl(2); the text of the error itself is about a disk.
        Some(Errno::NOSPC) => NO_WATCH,
        _ => "cannot accept; pausing",
    }
}

/// Settings of hyper for both protocols.
struct Protocols {
    /// For connections that do not begin with the HTTP/2 preface.
    http1: http1::Builder,
    /// For ALPN `h2` and prior knowledge.
    http2: http2::Builder<TokioExecutor>,
    /// The same for proxies whose connections are those of many clients.
    http2_of_proxies: http2::Builder<TokioExecutor>,
    /// Time after which an HTTP/2 connection without requests ends.
    idle: Option<Duration>,
}

impl Protocols {
    fn new(idle: Duration) -> Self {
        let mut http1 = http1::Builder::new();
        // `max_headers` stays unset: its default is the promised limit of 100, and setting it costs
        // an allocation per request.
        http1
            .timer(TokioTimer::new())
            .header_read_timeout(idle)
            .max_header_size(HEADER_BLOCK)
            .max_buf_size(HEADER_BLOCK)
            .keep_alive(true)
            .half_close(false)
            .pipeline_flush(false);
        let mut http2 = http2::Builder::new(TokioExecutor::new());
        http2
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS)
            .keep_alive_interval(Duration::from_secs(20))
            .keep_alive_timeout(Duration::from_secs(20))
            .max_header_list_size(HEADER_BLOCK_H2)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(1 << 20)
            .max_pending_accept_reset_streams(20)
            .max_local_error_reset_streams(RESETS)
            .max_send_buf_size(64 << 10);
        let mut http2_of_proxies = http2.clone();
        // One client must not end the requests of all the others, nor stop them by bodies that nobody reads yet: those are
        // counted for each request.
        http2_of_proxies
            .max_local_error_reset_streams(None::<usize>)
            .max_pending_accept_reset_streams(PROXY_RESETS)
            .initial_connection_window_size(STREAMS * STREAM_WINDOW);
        Self {
            http1,
            http2,
            http2_of_proxies,
            idle: Some(idle),
        }
    }

    fn of_replicas() -> Self {
        let mut protocols = Self::new(KEEP_ALIVE);
        protocols.idle = None;
        protocols
            .http2
            .max_concurrent_streams(REPLICA_STREAMS)
            // The other replica pings more often; here a dead one only occupies places.
            .keep_alive_interval(REPLICA_SILENCE)
            .keep_alive_timeout(REPLICA_SILENCE)
            // An unread body must not stop other requests.
            .initial_connection_window_size((1 << 31) - 1)
            // What a client sent to the other replica has to fit, with the proof of the hop.
            .max_header_list_size(HEADER_LIST)
            // Many clients may disconnect at once and reset all their streams; that is no attack.
            .max_pending_accept_reset_streams(REPLICA_STREAMS as usize)
            // h2 counts these for the life of the connection.
            .max_local_error_reset_streams(None::<usize>);
        protocols
    }
}

/// Time limit for the TLS handshake, for the first byte, for a header block, and for the first valid hop of a replica,
/// which sends one as soon as it is connected.
const HANDSHAKE: Duration = HEAD;
/// [`Bounds::idle`] of clients. It exceeds the minute for which
/// load balancers keep idle connections: the side that sends requests must close first.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(75);
/// Concurrent requests of one HTTP/2 connection.
const STREAMS: u32 = 64;
/// The streams of one HTTP/2 connection that are reset for a mistake of its client, or for a frame of one that
/// was: the next one ends the connection. Before they have read the settings, clients open up to 100 (Go's and
/// nghttp2 do): of those the ones beyond [`STREAMS`] are refused, and reset again for each frame of a body.
const RESETS: usize = 256;
/// The most streams of a proxy that its clients have ended before they were taken up. The next one ends the connection.
const PROXY_RESETS: usize = 4096;
/// Shortest time limit for the first request, however late the first byte came.
const FIRST_REQUEST_MIN: Duration = Duration::from_millis(500);
/// Concurrent requests of one other replica; `peers` has the same limit.
const REPLICA_STREAMS: u32 = 30_000;
/// Interval between pings to another replica, and time limit for the response.
const REPLICA_SILENCE: Duration = Duration::from_secs(5);
/// Longest header block.
const HEADER_BLOCK: usize = 64 << 10;
const HEADER_BLOCK_H2: u32 = 64 << 10;

/// The most fields of a frame of HTTP/2. More are beyond that block in any case, since each counts 32 bytes of it
/// (RFC 9113, section 6.5.2), and these take two tenths of a millisecond.
const FIELDS_MAX: usize = HEADER_BLOCK_H2 as usize / 32;
/// Beginning of the HTTP/2 preface; no HTTP/1 request begins like this.
const PREFACE: &[u8; 4] = b"PRI ";
/// First pause between peeks, for clients that send their first bytes one by one. It doubles each
/// time: many clients that stop after a `P` (also of `POST`) must not keep a processor busy.
const PEEK_AGAIN: Duration = Duration::from_millis(10);
/// Time without acknowledgement after which the kernel drops a connection.
const PEER_GONE_MS: u32 = 30_000;
/// The connections that are accepted before others go first: a millisecond of work with what they send at once. With fewer,
/// those behind a thousand others would be in the kernel's queue for a second.
const AT_ONCE: u32 = 4;
/// Pause after the first failed accept.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// Longest pause between failing accepts.
const LAST_PAUSE: Duration = Duration::from_secs(1);
/// Text for a lack of epoll watches, which the kernel counts per user.
const NO_WATCH: &str = "cannot accept; pausing: the epoll watches of this user (fs.epoll.max_user_watches) are used up, \
     as by a server that has the same user; with separation uid each server has its own";
/// Response to a connection beyond the limit.
const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\n\
content-type: application/json\r\nx-content-type-options: nosniff\r\ncache-control: no-store\r\n\
content-length: 45\r\n\r\n{\"error\":{\"message\":\"too many connections\"}}\n";

#[cfg(test)]
mod tests {
    use super::super::accept::*;

    /// The log said "No space left on device", and no disk was full.
    #[test]
    fn a_lack_of_epoll_watches_is_told_from_that_of_other_things() {
        for (errno, is_told) in [
            (Errno::NOSPC, true),
            (Errno::MFILE, false),
            (Errno::NFILE, false),
            (Errno::NOBUFS, false),
            (Errno::NOMEM, false),
        ] {
            let said = obstacle(&errno.into());
            assert!(said.starts_with("cannot accept; pausing"), "{said}");
            let names_limit = said.contains("fs.epoll.max_user_watches");
            assert_eq!(names_limit, is_told, "{errno:?}: {said}");
        }
    }
}

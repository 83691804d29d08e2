//! Public and operations listeners over real sockets, without MCP routes.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Path;
use axum::routing::{get, post};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use ipnet::IpNet;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::base::budget::Descriptors;
use crate::config::{ClientAddress, LoggedRequests};
use crate::error::Error;
use crate::http::edge::{Allowed, App, FoundHost, Gate, LimitAddress, TRAILERS_MAX};
use crate::http::listen::{
    Bounds, Connections,
    accept::{KEEP_ALIVE, serve},
};
use crate::http::ops::public;
use crate::http::reply::McpRefusal;
use crate::hub::limits::MemoryBudgets;
use crate::telemetry::{Health, Metrics, Traces};

struct Surface {
    address: SocketAddr,
    stop: CancellationToken,
    tracker: TaskTracker,
}

const MAX_BODY: u64 = 64 << 10;
/// Time for connections to finish their requests.
const FINISH: Duration = Duration::from_secs(10);
/// Bytes of a long answer.
const LONG: usize = 100 << 10;
const PAGE: usize = 6 << 10;
/// What a short answer over HTTP/2 counts as.
const STREAM: usize = 2 << 10;

async fn surface(max_connections: usize) -> Surface {
    surface_of(max_connections, MemoryBudgets::of(64 << 20, 64 << 20, None)).await
}

async fn surface_of(max_connections: usize, memory: Arc<MemoryBudgets>) -> Surface {
    surface_within(max_connections, memory, Box::new(|_| None)).await
}

/// Counts what the gate answers itself for a rate.
async fn surface_within(
    max_connections: usize,
    memory: Arc<MemoryBudgets>,
    limit: LimitAddress,
) -> Surface {
    surface_behind(max_connections, memory, limit, Vec::new()).await
}

/// Has clients behind these proxies.
async fn surface_behind(
    max_connections: usize,
    memory: Arc<MemoryBudgets>,
    limit: LimitAddress,
    proxies: Vec<IpNet>,
) -> Surface {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = listener.local_addr().expect("address");
    let url = format!("http://{address}").parse().expect("url");
    let allowed = Allowed::new(&url, address, false, &[], &[]).expect("allowed");
    let routes = Router::new()
        .route(
            "/mcp",
            post(async |body: Bytes| format!("got {}", body.len())),
        )
        .route(
            "/unread",
            post(async || (http::StatusCode::BAD_REQUEST, "unread")),
        )
        .route(
            "/panic",
            get(async || -> &'static str { panic!("on purpose") }),
        )
        .route(
            "/t/{tenant}/{server}/mcp",
            get(async |Path((t, s)): Path<(String, String)>| t + &s),
        )
        .route(
            "/who",
            get(async |client: axum::Extension<ClientAddress>| client.0.0.to_string()),
        )
        .route("/hang", get(std::future::pending::<&'static str>))
        .route("/long", get(async || "x".repeat(LONG)))
        .route("/short", get(async || "x".repeat(1 << 10)))
        .route("/sse", get(async || "x".repeat(LONG)))
        .route(
            "/messages",
            get(async || axum::response::Html("x".repeat(PAGE))),
        )
        .merge(public(Health::default()));
    let metrics = Arc::new(Metrics::new(None).expect("metrics"));
    let app = App::of_public(
        routes,
        Gate::new(
            (allowed, Box::new(|_, _| FoundHost::None), limit),
            proxies,
            MAX_BODY,
            memory,
            (metrics, Traces::default()),
            LoggedRequests::All,
        ),
    );
    serving(listener, app, max_connections)
}

/// Starts an operations listener that takes `bound` for its address and has only the probes.
async fn operations(bound: &str) -> Surface {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let bound = bound.parse().expect("address");
    let app = App::of_operators(public(Health::default()), bound);
    serving(listener, app, 100)
}

fn serving(listener: TcpListener, app: App, max_connections: usize) -> Surface {
    serving_idle(listener, app, max_connections, KEEP_ALIVE)
}

/// Ends connections that are idle for this time.
fn serving_idle(
    listener: TcpListener,
    app: App,
    max_connections: usize,
    idle: Duration,
) -> Surface {
    let connections = Connections::new(max_connections);
    serving_by(listener, app, connections, (idle, FINISH))
}

fn serving_by(
    listener: TcpListener,
    app: App,
    connections: Connections,
    (idle, finish): (Duration, Duration),
) -> Surface {
    let address = listener.local_addr().expect("address");
    let (stop, tracker) = (CancellationToken::new(), TaskTracker::new());
    let bounds = Bounds {
        connections,
        finish,
        idle,
    };
    tracker.spawn(serve(
        listener,
        None,
        app,
        bounds,
        stop.clone(),
        tracker.clone(),
    ));
    Surface {
        address,
        stop,
        tracker,
    }
}

impl Surface {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.expect("connect")
    }

    /// Sends bytes and reads until the connection closes or is quiet.
    async fn raw(&self, request: impl AsRef<[u8]>) -> (String, bool) {
        let mut stream = self.connect().await;
        let (mut from, mut to) = stream.split();
        let request = request.as_ref();
        let send = async {
            // The peer may close before it has read everything, so only the response is checked.
            let _ = to.write_all(request).await;
            std::future::pending::<()>().await;
        };
        tokio::select! { () = send => unreachable!(), answer = quiet(&mut from) => answer }
    }

    /// Sends a request with the correct host.
    async fn ask(&self, line: &str, headers: &str) -> (String, bool) {
        self.raw(format!(
            "{line} HTTP/1.1\r\nHost: {}\r\n{headers}\r\n",
            self.address
        ))
        .await
    }

    async fn ends(self) {
        self.stop.cancel();
        self.tracker.close();
        timeout(Duration::from_secs(15), self.tracker.wait())
            .await
            .expect("no task is left");
    }
}

/// Reads until the connection closes or is quiet; returns the text and whether it closed.
async fn quiet(from: &mut (impl AsyncReadExt + Unpin)) -> (String, bool) {
    let mut all = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        match timeout(Duration::from_millis(400), from.read(&mut chunk)).await {
            Ok(Ok(0) | Err(_)) => return (String::from_utf8_lossy(&all).into_owned(), true),
            Ok(Ok(size)) => all.extend_from_slice(&chunk[..size]),
            Err(_) => return (String::from_utf8_lossy(&all).into_owned(), false),
        }
    }
}

fn status(answer: &str) -> &str {
    answer.get(9..12).unwrap_or("none")
}

#[tokio::test]
async fn hosts() {
    let surface = surface(100).await;
    let port = surface.address.port();
    for path in ["/livez", "/mcp", "/t/a/b/mcp", "/nowhere"] {
        for (host, expected) in [
            ("Host: evil.test\r\n".to_owned(), "403"),
            (String::new(), "400"),
            ("Host: \r\n".to_owned(), "400"),
            (
                format!("Host: 127.0.0.1:{port}\r\nHost: 127.0.0.1:{port}\r\n"),
                "400",
            ),
            (format!("Host: x@127.0.0.1:{port}\r\n"), "400"),
            (format!("Host: 127.0.0.1:{port}/x\r\n"), "400"),
        ] {
            let (answer, _) = surface
                .raw(format!("GET {path} HTTP/1.1\r\n{host}\r\n"))
                .await;
            assert_eq!(status(&answer), expected, "{path} {host}");
            assert!(
                answer.contains("x-content-type-options: nosniff"),
                "{answer}"
            );
        }
    }
    let absolute = format!("GET http://evil.test/livez HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n");
    assert_eq!(status(&surface.raw(absolute).await.0), "400");
    let (answer, _) = surface
        .raw(format!(
            "GET /livez HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n"
        ))
        .await;
    assert_eq!(status(&answer), "200");
    // Probes of HTTP/1.0 name no host, and need none.
    for (path, expected) in [("/livez", "200"), ("/who", "400")] {
        let (answer, _) = surface.raw(format!("GET {path} HTTP/1.0\r\n\r\n")).await;
        assert_eq!(status(&answer), expected, "{path}");
    }
    // The request id is only in the log, so that equal responses have equal bytes.
    assert!(!answer.contains("x-request-id"), "{answer}");
    surface.ends().await;
}

#[tokio::test]
async fn origins_and_preflight() {
    let surface = surface(100).await;
    let ours = format!("http://localhost:{}", surface.address.port());
    for (origin, expected) in [
        ("http://evil.test", "403"),
        ("null", "403"),
        ("http://localhost.evil.test", "403"),
        ("http://localhost:1", "403"),
        (ours.replace("http", "https").as_str(), "403"),
        (ours.as_str(), "200"),
    ] {
        let (answer, _) = surface
            .ask("GET /livez", &format!("Origin: {origin}\r\n"))
            .await;
        assert_eq!(status(&answer), expected, "{origin}");
        let reads = answer.contains(&format!("access-control-allow-origin: {origin}\r\n"));
        assert_eq!(reads, expected == "200", "{answer}");
    }
    let asks = "Access-Control-Request-Method: POST\r\n\
                Access-Control-Request-Headers: mcp-param-city, x-evil\r\n";
    let (answer, _) = surface
        .ask("OPTIONS /mcp", &format!("Origin: {ours}\r\n{asks}"))
        .await;
    assert_eq!(status(&answer), "204");
    assert!(answer.contains("mcp-name, mcp-param-city\r\n"), "{answer}");
    assert!(!answer.contains("x-evil"), "{answer}");
    surface.ends().await;
}

/// A page saw no status of what was refused before its origin was looked at, and never when to come back.
#[tokio::test]
async fn pages_of_an_allowed_origin_read_every_refusal() {
    let memory = MemoryBudgets::of(1 << 20, 1 << 20, None);
    let surface = surface_of(100, Arc::clone(&memory)).await;
    let share = memory.address("127.0.0.1".parse().unwrap());
    let ours = format!("http://localhost:{}", surface.address.port());
    let long = format!("/mcp?{}", "a".repeat(9 << 10));
    for (path, origin, expected, reader) in [
        ("/mcp", &*ours, "503", Some(&*ours)),
        (&*long, &*ours, "414", Some(&*ours)),
        ("/mcp", "http://evil.test", "503", None),
        ("/token", "http://evil.test", "503", Some("*")),
    ] {
        let _all = (expected == "503").then(|| share.hold(1 << 20));
        let headers = format!("Origin: {origin}\r\nContent-Length: 0\r\n");
        let (answer, _) = surface.ask(&format!("POST {path}"), &headers).await;
        assert_eq!(status(&answer), expected, "{answer}");
        let allows = answer.split_once("access-control-allow-origin: ");
        let allowed = allows.and_then(|(_, rest)| rest.lines().next());
        assert_eq!(allowed, reader, "{answer}");
        let exposes = answer.split_once("access-control-expose-headers: ");
        let exposed = exposes.and_then(|(_, rest)| rest.lines().next());
        let exposed: Vec<&str> = exposed.unwrap_or_default().split(", ").collect();
        for name in ["Retry-After", "RateLimit", "RateLimit-Policy"] {
            assert_eq!(
                exposed.contains(&name),
                reader.is_some(),
                "{name}: {answer}"
            );
        }
    }
    surface.ends().await;
}

/// The gate answers them, and no route counted them.
#[tokio::test]
async fn preflights_count_for_the_rate_of_their_address() {
    let asked = AtomicUsize::new(0);
    let limit = move |_: IpAddr| {
        let (what, retry) = ("requests of the address", Duration::from_secs(1));
        let is_beyond = asked.fetch_add(1, Ordering::Relaxed) >= 2;
        is_beyond.then(|| McpRefusal::from(Error::Limit { what, retry }))
    };
    let memory = MemoryBudgets::of(64 << 20, 64 << 20, None);
    let surface = surface_within(100, memory, Box::new(limit)).await;
    let origin = format!("http://localhost:{}", surface.address.port());
    let headers = format!("Origin: {origin}\r\nAccess-Control-Request-Method: POST\r\n");
    let mut answers = Vec::new();
    for path in ["/mcp", "/livez", "/who", "/livez", "/mcp", "/livez"] {
        answers.push(surface.ask(&format!("OPTIONS {path}"), &headers).await.0);
    }
    let statuses: Vec<&str> = answers.iter().map(|answer| status(answer)).collect();
    assert_eq!(statuses, ["204", "204", "204", "204", "429", "204"]);
    let refused = &answers[4];
    assert!(refused.contains("retry-after: 1\r\n"), "{refused}");
    let reads = format!("access-control-allow-origin: {origin}\r\n");
    assert!(refused.contains(&reads), "{refused}");
    surface.ends().await;
}

#[tokio::test]
async fn header_blocks() {
    let surface = surface(100).await;
    let long = format!("X: {}\r\n", "a".repeat(60 << 10));
    let many = (0..100)
        .map(|at| format!("X{at}: a\r\n"))
        .collect::<String>();
    let block = (0..66)
        .map(|at| format!("X{at}: {}\r\n", "a".repeat(1024)))
        .collect::<String>();
    for headers in [long, many, block] {
        let began = Instant::now();
        let (answer, closed) = surface.ask("GET /livez", &headers).await;
        assert_eq!(status(&answer), "431", "{} bytes", headers.len());
        assert!(closed || answer.contains("connection: close"), "{answer}");
        assert!(began.elapsed() < Duration::from_secs(3));
    }
    let fits = (0..90)
        .map(|at| format!("X{at}: a\r\n"))
        .collect::<String>();
    assert_eq!(status(&surface.ask("GET /livez", &fits).await.0), "200");
    let target = format!("GET /livez?{}", "a".repeat(9 << 10));
    assert_eq!(status(&surface.ask(&target, "").await.0), "414");
    surface.ends().await;
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one story, told in order")]
async fn a_slow_header_block_is_cut_off() {
    let surface = surface(100).await;
    let began = Instant::now();
    let slow = async |wait: u64, first: &'static str| {
        let mut stream = surface.connect().await;
        tokio::time::sleep(Duration::from_secs(wait)).await;
        stream.write_all(first.as_bytes()).await.expect("write");
        let mut rest = Vec::new();
        let read = stream.read_to_end(&mut rest);
        // A reset also counts as closed.
        drop(
            timeout(Duration::from_secs(12), read)
                .await
                .expect("closed in time"),
        );
    };
    // That of a further request has as long, from its first bytes on, which may come with the request before.
    let request = format!("GET /livez HTTP/1.1\r\nHost: {}\r\n\r\n", surface.address);
    let further = async |with: &'static str, then: &'static str| {
        let mut stream = surface.connect().await;
        let first = format!("{request}{with}");
        stream.write_all(first.as_bytes()).await.expect("write");
        let (answer, is_closed) = quiet(&mut stream).await;
        assert_eq!((status(&answer), is_closed), ("200", false), "{answer}");
        let (mut from, mut to) = stream.split();
        let drip = async {
            for byte in then.bytes() {
                // The gateway closes meanwhile.
                let _ = to.write_all(&[byte]).await;
                tokio::time::sleep(Duration::from_secs(2)).await;
            }
            std::future::pending::<()>().await;
        };
        let mut rest = Vec::new();
        let ended = async {
            tokio::select! { () = drip => {}, _ = from.read_to_end(&mut rest) => {} }
        };
        timeout(Duration::from_secs(12), ended)
            .await
            .expect("closed in time");
    };
    let mut idle = surface.connect().await;
    idle.write_all(request.as_bytes()).await.expect("write");
    assert_eq!(status(&quiet(&mut idle).await.0), "200");
    // The end of a line behind a request, or behind its answer, is no head.
    let mut lines = [surface.connect().await, surface.connect().await];
    for (stream, with) in lines.iter_mut().zip(["\r\n", ""]) {
        let first = format!("{request}{with}");
        stream.write_all(first.as_bytes()).await.expect("write");
        assert_eq!(status(&quiet(stream).await.0), "200");
    }
    lines[1].write_all(b"\r\n").await.expect("write");
    tokio::join!(
        slow(0, ""),
        slow(0, "P"),
        slow(0, "GET / HT"),
        slow(5, "GET / HT"),
        further("", "GET / HT"),
        further("GET / HT", ""),
        further("GET", " / HTTP"),
    );
    assert!(began.elapsed() < Duration::from_secs(12));
    // One without a further request is not slow.
    for mut stream in lines.into_iter().chain([idle]) {
        stream.write_all(request.as_bytes()).await.expect("write");
        assert_eq!(status(&quiet(&mut stream).await.0), "200");
    }
    surface.ends().await;
}

#[tokio::test]
async fn too_large_bodies_are_refused_before_continue() {
    let surface = surface(100).await;
    let headers = "Content-Length: 99999999\r\nExpect: 100-continue\r\n";
    let (answer, closed) = surface.ask("POST /mcp", headers).await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    assert!(!answer.contains("100 Continue") && closed);
    surface.ends().await;
}

#[tokio::test]
async fn codings_and_methods() {
    let surface = surface(100).await;
    for (line, headers, expected) in [
        (
            "POST /mcp",
            "Content-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx",
            "415",
        ),
        (
            "POST /mcp",
            "Content-Encoding: identity, br\r\nContent-Length: 1\r\n\r\nx",
            "415",
        ),
        ("TRACE /livez", "", "405"),
        ("CONNECT evil.test:443", "", "405"),
        ("BREW /livez", "", "405"),
        ("DELETE /livez", "", "405"),
        (
            "POST /livez",
            "X-HTTP-Method-Override: GET\r\nContent-Length: 0\r\n",
            "405",
        ),
        ("GET /panic", "", "503"),
    ] {
        let (answer, _) = surface.ask(line, headers).await;
        assert_eq!(status(&answer), expected, "{line} {answer}");
    }
    surface.ends().await;
}

/// They had neither `jsonrpc` nor `id`.
#[tokio::test]
async fn an_mcp_endpoint_is_refused_in_the_form_of_json_rpc() {
    let memory = MemoryBudgets::of(1 << 20, 1 << 20, None);
    let surface = surface_of(100, Arc::clone(&memory)).await;
    let share = memory.address("127.0.0.1".parse().unwrap());
    let long = format!(
        "Transfer-Encoding: chunked\r\n\r\n11000\r\n{}\r\n0\r\n",
        "x".repeat(0x11000)
    );
    for (line, headers, expected, text) in [
        (
            "POST /mcp",
            "Content-Length: 99999999\r\n",
            "413",
            "body too large",
        ),
        ("POST /mcp", &long, "413", "body too large"),
        (
            "GET /t/a/b/mcp",
            "Origin: http://evil.test\r\n",
            "403",
            "origin not allowed",
        ),
        ("GET http://evil.test/sse", "", "400", "bad host"),
        ("TRACE /messages", "", "405", "method not allowed"),
        (
            "POST /sse",
            "Content-Encoding: br\r\n",
            "415",
            "content coding not supported",
        ),
        (
            "POST /mcp",
            "",
            "503",
            "too much of this address is under way",
        ),
    ] {
        let _all = (expected == "503").then(|| share.hold(1 << 20));
        let (answer, _) = surface.ask(line, headers).await;
        assert_eq!(status(&answer), expected, "{line} {answer}");
        let code = if expected == "503" { -31004 } else { -32600 };
        let error = format!(r#"{{"code":{code},"message":"{text}"}}"#);
        let body = format!(r#"{{"jsonrpc":"2.0","id":null,"error":{error}}}"#);
        let said = answer.split_once("\r\n\r\n").map(|(_, body)| body);
        assert_eq!(said, Some(&*body), "{line} {answer}");
        let allows = answer.contains("\r\nallow: GET,HEAD\r\n");
        assert_eq!(allows, expected == "405", "{answer}");
    }
    surface.ends().await;
}

/// Every path answered a method that no route has with the methods of an MCP endpoint.
#[tokio::test]
async fn a_refused_method_comes_with_those_of_its_path() {
    let surface = surface(100).await;
    for (path, methods) in [
        ("/mcp", "POST"),
        ("/panic", "GET,HEAD"),
        ("/t/a/b/mcp", "GET,HEAD"),
        ("/nowhere", ""),
    ] {
        for method in ["TRACE", "BREW"] {
            let answer = surface.ask(&format!("{method} {path}"), "").await.0;
            assert_eq!(status(&answer), "405", "{answer}");
            let allow = format!("\r\nallow: {methods}\r\n");
            assert!(answer.contains(&allow), "{method} {path} {answer}");
        }
    }
    surface.ends().await;
}

#[tokio::test]
async fn a_target_of_another_protocol_is_refused() {
    let surface = surface(100).await;
    let (stream, tracker) = (surface.connect().await, TaskTracker::new());
    let handshake = http2::Builder::new(TokioExecutor::new()).handshake(TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.expect("handshake");
    tracker.spawn(connection);
    for (scheme, expected) in [
        ("http", 200),
        ("https", 200),
        ("HTTP", 200),
        ("ftp", 400),
        ("ws", 400),
        ("httpx", 400),
    ] {
        let target = format!("{scheme}://{}/who", surface.address);
        let answer = surface.ask(&format!("GET {target}"), "").await.0;
        assert_eq!(status(&answer), expected.to_string(), "{target} {answer}");
        let request = http::Request::get(&target).body(Body::empty());
        let answer = sender.send_request(request.expect("a request")).await;
        assert_eq!(answer.expect("an answer").status(), expected, "{target}");
    }
    drop(sender);
    surface.ends().await;
}

#[tokio::test]
async fn paths_and_forged_addresses() {
    let surface = surface(100).await;
    assert!(surface.ask("GET /t/a/b/mcp", "").await.0.ends_with("ab"));
    for path in [
        "/t/a/b/mcp;x",
        "/t/a/b%2fmcp",
        "/t/a/../a/b/mcp",
        "//t/a/b/mcp",
        "/t/a/b/./mcp",
        "/t/%61/b/mcp",
        "/t/a%00/b/mcp",
        "/t/a/%252e%252e/mcp",
        "/t/a//mcp",
        "*",
    ] {
        let answer = surface.ask(&format!("GET {path}"), "").await.0;
        assert!(matches!(status(&answer), "404" | "400"), "{path} {answer}");
    }
    let forged = "X-Forwarded-For: 1.2.3.4\r\nForwarded: for=1.2.3.4\r\nX-Forwarded-Host: evil\r\n";
    assert!(
        surface
            .ask("GET /who", forged)
            .await
            .0
            .ends_with("127.0.0.1")
    );
    surface.ends().await;
}

#[tokio::test]
async fn connections_beyond_the_limit_get_503() {
    let surface = surface(2).await;
    let held = (surface.connect().await, surface.connect().await);
    tokio::time::sleep(Duration::from_millis(50)).await;
    let (answer, closed) = surface.raw("").await;
    assert!(answer.starts_with("HTTP/1.1 503") && closed, "{answer}");
    drop(held);
    timeout(Duration::from_secs(2), async {
        while status(&surface.ask("GET /livez", "").await.0) != "200" {}
    })
    .await
    .expect("recovers");
    surface.ends().await;
}

#[tokio::test]
async fn the_rest_of_a_body_is_no_request() {
    let surface = surface(100).await;
    let inner = format!("GET /livez HTTP/1.1\r\nHost: {}\r\n\r\n", surface.address);
    // The request is refused with its body unread. The body looks like a request.
    let padded = format!("{inner}{}", "x".repeat(200_000));
    for line in ["POST /unread", "POST /nowhere", "POST /mcp%20"] {
        for (field, body) in [
            (
                format!("Content-Length: {}\r\n", inner.len()),
                inner.clone(),
            ),
            (
                "Transfer-Encoding: chunked\r\n".to_owned(),
                format!("{:x}\r\n{inner}\r\n0\r\n\r\n", inner.len()),
            ),
            (
                format!("Content-Length: {}\r\n", 60_000),
                padded[..60_000].to_owned(),
            ),
        ] {
            let (answer, closed) = surface.ask(line, &format!("{field}\r\n{body}")).await;
            assert_eq!(answer.matches("HTTP/1.1").count(), 1, "{line} {answer}");
            assert!(
                answer.contains("connection: close") && closed,
                "{line} {answer}"
            );
        }
    }
    // A chunked body beyond the limit: the response arrives although the client is still sending.
    let chunk = format!("{:x}\r\n{}\r\n", 16 << 10, "x".repeat(16 << 10));
    let body = format!(
        "Transfer-Encoding: chunked\r\n\r\n{}0\r\n\r\n",
        chunk.repeat(60)
    );
    let (answer, closed) = surface.ask("POST /mcp", &body).await;
    assert_eq!(status(&answer), "413", "{answer}");
    assert!(answer.contains("connection: close") && closed, "{answer}");
    // Pipelined requests are answered in order.
    let two = format!("Content-Length: 3\r\n\r\nabc{inner}");
    let (answer, _) = surface.ask("POST /mcp", &two).await;
    let first = answer.find("got 3").expect("first");
    assert!(answer.find("\"ok\"").expect("second") > first, "{answer}");
    surface.ends().await;
}

#[tokio::test]
async fn old_versions_and_upgrades() {
    let surface = surface(100).await;
    let host = surface.address;
    let old = format!(
        "POST /mcp HTTP/1.0\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    );
    assert_eq!(status(&surface.raw(old).await.0), "400");
    let (oldest, closed) = surface.raw("GET /livez\r\n\r\n").await;
    assert!(
        matches!(status(&oldest), "400" | "505") && closed,
        "{oldest}"
    );
    for kind in ["websocket", "h2c"] {
        let headers =
            format!("Connection: Upgrade\r\nUpgrade: {kind}\r\nContent-Length: 3\r\n\r\nabc");
        let (answer, _) = surface.ask("POST /mcp", &headers).await;
        assert!(
            answer.starts_with("HTTP/1.1 200") && answer.ends_with("got 3"),
            "{answer}"
        );
    }
    surface.ends().await;
}

#[tokio::test]
async fn http2_with_prior_knowledge_passes_the_same_gate() {
    let surface = surface(100).await;
    let client = reqwest::Client::builder()
        .http2_prior_knowledge()
        .build()
        .expect("client");
    let url = format!("http://{}", surface.address);
    let sent = client
        .post(format!("{url}/mcp"))
        .body("abc")
        .send()
        .await
        .expect("answer");
    assert_eq!(sent.version(), http::Version::HTTP_2);
    assert_eq!(sent.text().await.expect("text"), "got 3");
    let large = client
        .post(format!("{url}/mcp"))
        .body("x".repeat(70_000))
        .send()
        .await;
    assert_eq!(large.expect("answer").status(), 413);
    let host = client
        .get(format!("{url}/livez"))
        .header("host", "evil.test")
        .send()
        .await;
    assert!(host.is_err() || host.is_ok_and(|answer| answer.status().is_client_error()));
    drop(client);
    surface.ends().await;
}

#[tokio::test]
async fn no_web_page_reads_the_operations_listener() {
    let asked = async |surface: &Surface, headers: &str| {
        let request = format!("GET /livez HTTP/1.1\r\nConnection: close\r\n{headers}\r\n");
        let (answer, _) = surface.raw(request).await;
        status(&answer).to_owned()
    };
    for (bound, host, expected) in [
        ("127.0.0.1:9090", "127.0.0.1:9090", "200"),
        // A port forwarder uses another port.
        ("127.0.0.1:9090", "LocalHost:19090", "200"),
        ("127.0.0.1:9090", "127.1.2.3", "200"),
        ("[::1]:9090", "[::1]:9090", "200"),
        ("[::1]:9090", "evil.test:9090", "403"),
        ("127.0.0.1:9090", "evil.test:9090", "403"),
        ("127.0.0.1:9090", "localhost.evil.test", "403"),
        ("127.0.0.1:9090", "10.0.0.7:9090", "403"),
        ("127.0.0.1:9090", "", "403"),
        ("0.0.0.0:9090", "10.0.0.7:9090", "200"),
        ("[::]:9090", "gateway.tools.svc.cluster.local:9090", "200"),
        ("10.0.0.7:9090", "gateway-0.gateway", "200"),
    ] {
        let surface = operations(bound).await;
        let host = format!("Host: {host}\r\n");
        assert_eq!(asked(&surface, &host).await, expected, "{bound} {host}");
        for origin in ["http://evil.test", "null", "http://127.0.0.1:9090"] {
            let headers = format!("{host}Origin: {origin}\r\n");
            assert_eq!(asked(&surface, &headers).await, "403", "{bound} {headers}");
            let request = format!("GET /livez HTTP/1.1\r\nConnection: close\r\n{headers}\r\n");
            let (answer, _) = surface.raw(request).await;
            let is_sniffed = !answer.contains("x-content-type-options: nosniff");
            assert!(!is_sniffed, "{answer}");
        }
        surface.ends().await;
    }
    let surface = operations("127.0.0.1:9090").await;
    let (answer, _) = surface.raw("GET /livez HTTP/1.0\r\n\r\n").await;
    assert_eq!(status(&answer), "200", "probes may name no host");
    let absolute = "GET http://evil.test/livez HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let (answer, _) = surface.raw(absolute).await;
    assert_eq!(status(&answer), "403");
    surface.ends().await;
}

#[tokio::test]
async fn head_has_no_body_over_http2_either() {
    let surface = surface(100).await;
    let client = reqwest::Client::builder()
        .http2_prior_knowledge()
        .build()
        .expect("client");
    for (path, origin, expected) in [
        ("/livez", "", 200),
        ("/livez", "http://evil.test", 403),
        ("/a//b", "", 404),
        ("/panic", "", 503),
    ] {
        let mut asked = client.head(format!("http://{}{path}", surface.address));
        if !origin.is_empty() {
            asked = asked.header("origin", origin);
        }
        let answer = asked.send().await.expect("answer");
        assert_eq!(answer.status(), expected, "{path} {origin}");
        let length = answer.headers().get("content-length").cloned();
        assert_ne!(length.expect("length"), "0", "{path} {origin}");
        assert_eq!(answer.bytes().await.expect("the end"), "", "{path}");
    }
    drop(client);
    surface.ends().await;
}

#[tokio::test]
async fn an_address_without_room_is_refused_and_probes_are_answered() {
    let memory = MemoryBudgets::of(1 << 20, 1 << 20, None);
    let surface = surface_of(100, Arc::clone(&memory)).await;
    let body = "x".repeat(40 << 10);
    let headers = format!("Content-Length: {}\r\n\r\n{body}", body.len());
    let post = async || surface.ask("POST /mcp", &headers).await.0;
    assert_eq!(status(&post().await), "200");
    holds_between(&memory, 0, 0).await;
    let own = "127.0.0.1".parse().unwrap();
    // A body that cannot fit is refused before any of it comes.
    let begun = format!("Content-Length: {}\r\n\r\n", 60 << 10);
    let rest = memory.address(own).left() - (80 << 10);
    let little = memory.address(own).hold(rest.cast_unsigned());
    let (refused, _) = surface.ask("POST /mcp", &begun).await;
    assert_eq!(status(&refused), "503", "{refused}");
    drop(little);
    // The head has room, the body has none.
    let most = memory.address(own).hold((512 - 40) << 10);
    let refused = post().await;
    assert_eq!(status(&refused), "503", "{refused}");
    assert!(refused.contains("retry-after: 1"), "{refused}");
    assert!(refused.contains("connection: close"), "{refused}");
    let all = memory.address(own).hold(40 << 10);
    let (refused, _) = surface.ask("GET /who", "").await;
    assert_eq!(status(&refused), "503", "{refused}");
    let (alive, _) = surface.ask("GET /livez", "").await;
    assert_eq!(status(&alive), "200", "{alive}");
    drop((most, all));
    assert_eq!(status(&post().await), "200");
    let other = memory.address("127.0.0.2".parse().unwrap()).hold(1 << 20);
    assert_eq!(status(&post().await), "503", "all is in use");
    drop(other);
    surface.ends().await;
    assert_eq!(memory.requests().used(), 0);
}

/// A thousand heads of 63 KiB without their ends were in nobody's share, nor was what comes behind a request.
#[tokio::test]
async fn what_is_read_ahead_of_a_request_takes_room_in_the_share_of_its_address() {
    let memory = MemoryBudgets::of(1 << 20, 1 << 20, None);
    let surface = surface_of(100, Arc::clone(&memory)).await;
    let host = format!("Host: {}\r\n", surface.address);
    let fields = format!("X: {}\r\n", "x".repeat(15_000)).repeat(4);
    let length = fields.len() as u64;
    let used = || memory.requests().used();
    let held_between = async |least: u64, most: u64| {
        while !(least..=most).contains(&used()) {
            tokio::task::yield_now().await;
        }
    };
    let within = async |what: &str, least: u64, most: u64| {
        let held = timeout(Duration::from_secs(10), held_between(least, most)).await;
        held.unwrap_or_else(|_| panic!("{what}: {} bytes", used()));
    };
    let (mut held, mut refused) = (Vec::new(), 0);
    // Behind a request that there was room for: one without room is refused as such.
    let first = format!("GET /livez HTTP/1.1\r\n{host}\r\n");
    let answered = async || {
        let mut stream = surface.connect().await;
        stream.write_all(first.as_bytes()).await.expect("write");
        let (answer, is_closed) = quiet(&mut stream).await;
        assert_eq!((status(&answer), is_closed), ("200", false), "{answer}");
        stream
    };
    let streams = futures_util::future::join_all((0..20).map(|_| answered())).await;
    for mut stream in streams {
        let whole = length * (held.len() as u64 + 1);
        let begun = format!("GET /livez HTTP/1.1\r\n{host}{fields}");
        // Of one that is refused not all is taken.
        let _ = stream.write_all(begun.as_bytes()).await;
        let is_taken = async {
            let closed = async { while !quiet(&mut stream).await.1 {} };
            tokio::select! { () = held_between(whole, u64::MAX) => true, () = closed => false }
        };
        let is_taken = timeout(Duration::from_secs(10), is_taken).await;
        if is_taken.expect("neither counted nor refused") {
            held.push(stream);
        } else {
            refused += 1;
        }
    }
    assert!((6..=10).contains(&held.len()), "{} are kept", held.len());
    assert_eq!(held.len() + refused, 20);
    assert_eq!(status(&surface.ask("GET /livez", "").await.0), "200");
    drop(held);
    within("none is left", 0, 0).await;
}

/// A buffer of about 100 KiB was nobody's, once its head was taken.
#[tokio::test]
async fn what_is_read_ahead_of_a_request_is_given_back_but_for_its_buffer() {
    let memory = MemoryBudgets::of(1 << 20, 1 << 20, None);
    let surface = surface_of(100, Arc::clone(&memory)).await;
    let host = format!("Host: {}\r\n", surface.address);
    let fields = format!("X: {}\r\n", "x".repeat(15_000)).repeat(4);
    let length = fields.len() as u64;
    let first = format!("GET /livez HTTP/1.1\r\n{host}\r\n");
    // A head that comes to its end is taken, but the buffer that it was read into stays with its connection.
    let mut stream = surface.connect().await;
    let whole = format!("GET /livez HTTP/1.1\r\n{host}{fields}\r\n");
    stream.write_all(whole.as_bytes()).await.expect("write");
    let (answer, is_closed) = quiet(&mut stream).await;
    assert_eq!((status(&answer), is_closed), ("200", false), "{answer}");
    holds_between(&memory, length, 128 << 10).await;
    stream.write_all(first.as_bytes()).await.expect("write");
    let (answer, is_closed) = quiet(&mut stream).await;
    assert_eq!((status(&answer), is_closed), ("200", false), "{answer}");
    holds_between(&memory, length, 128 << 10).await;
    drop(stream);
    holds_between(&memory, 0, 0).await;
    // A head of some length leaves nothing, though more is read at a time behind the next request.
    let mut stream = surface.connect().await;
    let whole = format!(
        "GET /livez HTTP/1.1\r\n{host}X: {}\r\n\r\n",
        "x".repeat(9000)
    );
    stream.write_all(whole.as_bytes()).await.expect("write");
    let (answer, is_closed) = quiet(&mut stream).await;
    assert_eq!((status(&answer), is_closed), ("200", false), "{answer}");
    holds_between(&memory, 0, 0).await;
    let hang = format!("GET /hang HTTP/1.1\r\n{host}\r\n");
    stream.write_all(hang.as_bytes()).await.expect("write");
    holds_between(&memory, 1, u64::MAX).await;
    let least = memory.requests().used() + (8 << 10);
    stream.write_all(fields.as_bytes()).await.expect("write");
    holds_between(&memory, least + 1, u64::MAX).await;
}

/// Ten thousand connections kept 100 KiB each for a head that each had sent once, and nobody counted them.
#[tokio::test]
async fn a_connection_whose_buffer_has_grown_ends_where_its_address_has_no_room() {
    let memory = MemoryBudgets::of(1 << 20, 1 << 20, None);
    let surface = surface_of(100, Arc::clone(&memory)).await;
    let host = format!("Host: {}\r\n", surface.address);
    let fields = format!("X: {}\r\n", "x".repeat(15_000)).repeat(4);
    let long = format!("GET /livez HTTP/1.1\r\n{host}{fields}\r\n");
    let short = format!("GET /livez HTTP/1.1\r\n{host}\r\n");
    let (mut grown, mut other) = (surface.connect().await, surface.connect().await);
    for (stream, request) in [(&mut grown, &long), (&mut other, &short)] {
        stream.write_all(request.as_bytes()).await.expect("write");
        let (answer, is_closed) = quiet(stream).await;
        assert_eq!((status(&answer), is_closed), ("200", false), "{answer}");
    }
    holds_between(&memory, 60_000, 128 << 10).await;
    // Something else of all takes what is left.
    let all = memory.requests().hold(1 << 20);
    for (stream, ends) in [(&mut grown, true), (&mut other, false)] {
        stream.write_all(short.as_bytes()).await.expect("write");
        let (answer, is_closed) = quiet(stream).await;
        assert_eq!((status(&answer), is_closed), ("200", ends), "{answer}");
    }
    drop(all);
    holds_between(&memory, 0, 0).await;
}

/// Of each connection that a body had been sent by, hyper kept 64 KiB and more.
#[tokio::test]
async fn a_long_body_leaves_no_buffer_with_its_connection() {
    let memory = MemoryBudgets::of(1 << 20, 1 << 20, None);
    let surface = surface_of(100, Arc::clone(&memory)).await;
    let host = format!("Host: {}\r\n", surface.address);
    let body = "x".repeat(60_000);
    let request = format!("POST /mcp HTTP/1.1\r\n{host}Content-Length: 60000\r\n\r\n{body}");
    let mut stream = surface.connect().await;
    for _ in 0..3 {
        stream.write_all(request.as_bytes()).await.expect("write");
        let (answer, is_closed) = quiet(&mut stream).await;
        assert_eq!((status(&answer), is_closed), ("200", false), "{answer}");
        assert!(answer.ends_with("got 60000"), "{answer}");
        holds_between(&memory, 0, 0).await;
    }
}

/// hyper keeps trailers of up to 64 KiB, which nobody counted.
#[tokio::test]
async fn trailers_without_their_end_take_room_in_the_share_of_their_address() {
    let memory = MemoryBudgets::of(1 << 20, 1 << 20, None);
    let surface = surface_of(100, Arc::clone(&memory)).await;
    let host = format!("Host: {}\r\n", surface.address);
    let trailers = format!("X: {}\r\n", "x".repeat(15_000)).repeat(4);
    let begun = format!(
        "POST /mcp HTTP/1.1\r\n{host}Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n{trailers}"
    );
    let mut stream = surface.connect().await;
    stream.write_all(begun.as_bytes()).await.expect("write");
    // What was read with the head is of the request.
    holds_between(&memory, 40_000, u64::MAX).await;
    stream.write_all(b"\r\n").await.expect("write");
    let (answer, is_closed) = quiet(&mut stream).await;
    assert_eq!((status(&answer), is_closed), ("200", false), "{answer}");
    assert!(answer.ends_with("got 3"), "{answer}");
    holds_between(&memory, 0, 0).await;
}

/// Waits until so much is held of what requests may take.
async fn holds_between(memory: &MemoryBudgets, least: u64, most: u64) {
    let used = || memory.requests().used();
    let held = async {
        while !(least..=most).contains(&used()) {
            tokio::task::yield_now().await;
        }
    };
    let held = timeout(Duration::from_secs(10), held).await;
    held.unwrap_or_else(|_| panic!("{least} to {most}: {} bytes", used()));
}

/// A kilobyte of fields without a value each was kept as 147 KiB, for nobody and as long as the connection lived.
#[tokio::test]
async fn a_header_block_without_its_end_over_http2_takes_room_and_has_its_time() {
    let memory = MemoryBudgets::of(1 << 20, 1 << 20, None);
    let surface = surface_of(100, Arc::clone(&memory)).await;
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let fields = b"\x82\x86\x04\x06/livez\x01\x09localhost";
    // A field that is remembered, and then named by a byte each time.
    let fields = [&fields[..], b"\x40\x01a\x00", &[0xbe; 50]].concat();
    let length = u8::try_from(fields.len()).expect("short");
    // HEADERS with END_STREAM and without END_HEADERS.
    let begun = [&[0, 0, length, 1, 1, 0, 0, 0, 3][..], &fields].concat();
    let block = 128 << 10;
    let (mut held, mut refused) = (Vec::new(), 0);
    for _ in 0..5 {
        let mut stream = surface.connect().await;
        stream.write_all(preface).await.expect("preface");
        assert!(is_alive(&mut stream, 1).await);
        holds_between(&memory, held.len() as u64 * block, u64::MAX).await;
        let least = memory.requests().used() + block;
        stream.write_all(&begun).await.expect("begun");
        let is_closed = tokio::select! {
            () = holds_between(&memory, least, u64::MAX) => false,
            is_alive = comes(&mut stream, |_, _, _| false) => !is_alive,
        };
        if is_closed {
            refused += 1;
        } else {
            held.push(stream);
        }
    }
    assert_eq!((held.len(), refused), (2, 3));
    // One that comes to its end is answered, and holds nothing any more; the other has its time.
    let began = Instant::now();
    let mut whole = held.remove(0);
    // CONTINUATION with END_HEADERS.
    let end = [0, 0, 1, 9, 4, 0, 0, 0, 3, 0xbe];
    whole.write_all(&end).await.expect("end");
    let is_end = |kind: u8, flags: u8, of: u32| kind <= 1 && flags & 1 == 1 && of == 3;
    assert!(comes(&mut whole, is_end).await);
    let mut slow = held.remove(0);
    let closed = timeout(Duration::from_secs(15), comes(&mut slow, |_, _, _| false)).await;
    assert!(!closed.expect("it is waited for"));
    holds_between(&memory, 0, 0).await;
    assert!(is_alive(&mut whole, 5).await, "{:?}", began.elapsed());
}

/// A proxy's connections are those of all its clients, and had the share of one.
#[tokio::test]
async fn what_a_proxy_sends_ahead_of_a_request_takes_room_of_all() {
    let memory = MemoryBudgets::of(1 << 20, 1 << 20, None);
    let proxies = vec!["127.0.0.0/8".parse().expect("network")];
    let surface = surface_behind(100, Arc::clone(&memory), Box::new(|_| None), proxies).await;
    let most = 600 << 10;
    let own = memory.address("127.0.0.1".parse().unwrap()).hold(most);
    let mut stream = surface.connect().await;
    let fields = format!("X: {}\r\n", "x".repeat(15_000)).repeat(2);
    let begun = format!(
        "GET /who HTTP/1.1\r\nHost: {}\r\nX-Forwarded-For: 192.0.2.1\r\n{fields}",
        surface.address
    );
    stream.write_all(begun.as_bytes()).await.expect("write");
    holds_between(&memory, most + fields.len() as u64, u64::MAX).await;
    stream.write_all(b"\r\n").await.expect("write");
    let (answer, _) = quiet(&mut stream).await;
    assert!(answer.ends_with("192.0.2.1"), "{answer}");
    drop(own);
    surface.ends().await;
}

/// What HTTP/2 holds of a body until it is read was counted of requests with a usual body alone.
#[tokio::test]
async fn the_body_of_a_get_over_http2_takes_room_too() {
    let memory = MemoryBudgets::of(1 << 20, 1 << 20, None);
    let surface = surface_of(100, Arc::clone(&memory)).await;
    let stream = TcpStream::connect(surface.address).await.expect("connect");
    let handshake = http2::Builder::new(TokioExecutor::new()).handshake(TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.expect("handshake");
    let tracker = TaskTracker::new();
    tracker.spawn(connection);
    let mut get = async |has_body: bool| {
        let body = if has_body {
            Body::from_stream(futures_util::stream::pending::<Result<Bytes, Infallible>>())
        } else {
            Body::empty()
        };
        let request = http::Request::get(format!("http://{}/who", surface.address)).body(body);
        let answer = sender.send_request(request.expect("a request")).await;
        answer.expect("an answer").status().as_u16()
    };
    assert_eq!((get(false).await, get(true).await), (200, 200));
    // Half of all is an address's.
    let own = "127.0.0.1".parse().unwrap();
    let little = memory.address(own).hold((512 - 128) << 10);
    assert_eq!((get(false).await, get(true).await), (200, 503));
    drop(little);
}

/// Answers that no client took were kept without being counted, as many as streams can be open.
#[tokio::test]
async fn an_answer_counts_for_its_address_until_the_client_takes_it() {
    let memory = MemoryBudgets::of(1 << 20, 1 << 20, None);
    let surface = surface_of(100, Arc::clone(&memory)).await;
    let stream = TcpStream::connect(surface.address).await.expect("connect");
    let handshake = http2::Builder::new(TokioExecutor::new())
        // h2 takes the whole of an answer as soon as there is room for a byte of it.
        .initial_stream_window_size(1)
        .handshake(TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.expect("handshake");
    let tracker = TaskTracker::new();
    tracker.spawn(connection);
    let mut get = async |path: &str| {
        let url = format!("http://{}{path}", surface.address);
        let request = http::Request::get(url).body(Body::empty());
        let answer = sender.send_request(request.expect("a request")).await;
        answer.expect("an answer")
    };
    let holds = async |bytes: usize| {
        let held = async {
            while memory.requests().used() != bytes as u64 {
                tokio::task::yield_now().await;
            }
        };
        let held = timeout(Duration::from_secs(10), held).await;
        held.unwrap_or_else(|_| panic!("{} of {bytes}", memory.requests().used()));
    };
    // A short one counts as what its stream takes, and those of calls count for their callers.
    let mut open = vec![get("/sse").await];
    for number in 1..=3 {
        open.push(get("/short").await);
        holds(number * STREAM).await;
    }
    open.truncate(1);
    open.push(get("/messages").await);
    for number in 1..=5 {
        open.push(get("/long").await);
        holds(PAGE + number * LONG).await;
    }
    // One more request is more than half of all, which is an address's share.
    assert_eq!(get("/long").await.status(), 503);
    assert_eq!(get("/livez").await.status(), 200);
    drop(open);
    holds(0).await;
    assert_eq!(get("/long").await.status(), 200);
}

/// Header fields of a byte each were kept as 72 bytes, in no share, while their requests waited for their turns: 147 KiB of
/// a request.
#[tokio::test]
async fn requests_over_http2_count_for_their_address_before_they_wait() {
    let memory = MemoryBudgets::of(1 << 20, 1 << 20, None);
    let surface = surface_of(100, Arc::clone(&memory)).await;
    let share = memory.address("127.0.0.1".parse().unwrap());
    let stream = TcpStream::connect(surface.address).await.expect("connect");
    let handshake = http2::Builder::new(TokioExecutor::new()).handshake(TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.expect("handshake");
    let tracker = TaskTracker::new();
    tracker.spawn(connection);
    let mut send = |path: &str, fields: usize, body: Body| {
        let url = format!("http://{}{path}", surface.address);
        let mut request = http::Request::get(url);
        for _ in 0..fields {
            request = request.header("a", "");
        }
        sender.send_request(request.body(body).expect("a request"))
    };
    // All turns of the address are taken.
    let mut line: Vec<_> = (0..4).map(|_| Box::pin(share.others_first())).collect();
    for one in &mut line {
        assert!(futures_util::poll!(one).is_pending());
    }
    let (each, most) = (8 << 10, 9 << 10);
    let many = send("/who", 600, Body::empty());
    // Its block waits for a turn before it is decoded, and what it has become for another one.
    holds_between(&memory, 600, 2000).await;
    line.push(Box::pin(share.others_first()));
    assert!(futures_util::poll!(&mut line[4]).is_pending());
    drop(line.remove(0));
    // It holds no field that is more than are allowed.
    holds_between(&memory, each, most).await;
    let usual = send("/who", 20, Body::empty());
    holds_between(&memory, 2 * each + 20 * 100, 2 * most + 20 * 120).await;
    // Where there is no room, a request does not wait, whatever it has.
    let rest = share.left() - (100 << 10);
    let rest = share.hold(rest.cast_unsigned());
    let before = memory.requests().used();
    let unread = Body::from_stream(futures_util::stream::pending::<Result<Bytes, Infallible>>());
    let refused = timeout(Duration::from_secs(10), send("/who", 0, unread)).await;
    let refused = refused.expect("it waits").expect("an answer");
    assert_eq!(refused.status(), 503);
    assert_eq!(refused.headers()["retry-after"], "1");
    drop(refused);
    holds_between(&memory, before, before).await;
    let full = share.hold(share.left().cast_unsigned());
    let probe = send("/livez", 0, Body::empty());
    let refused = timeout(Duration::from_secs(10), send("/who", 0, Body::empty())).await;
    assert_eq!(refused.expect("it waits").expect("an answer").status(), 503);
    drop(line);
    assert_eq!(many.await.expect("an answer").status(), 431);
    assert_eq!(usual.await.expect("an answer").status(), 200);
    assert_eq!(probe.await.expect("an answer").status(), 200);
    drop((rest, full));
    holds_between(&memory, 0, 0).await;
    let answer = send("/who", 0, Body::empty()).await;
    assert_eq!(answer.expect("an answer").status(), 200);
}

/// What probes took beyond the share of their address was without an end, and then bounded for each address alone: those
/// of two took the room of all others.
#[tokio::test]
async fn probes_of_an_address_take_no_room_of_others() {
    let memory = MemoryBudgets::of(1 << 20, 1 << 20, None);
    let proxies = vec!["127.0.0.0/8".parse().expect("network")];
    let surface = surface_behind(100, Arc::clone(&memory), Box::new(|_| None), proxies).await;
    let stream = TcpStream::connect(surface.address).await.expect("connect");
    let handshake = http2::Builder::new(TokioExecutor::new()).handshake(TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.expect("handshake");
    let tracker = TaskTracker::new();
    tracker.spawn(connection);
    let mut send = |path: &str, client: &str| {
        let url = format!("http://{}{path}", surface.address);
        let request = http::Request::get(url).header("x-forwarded-for", client);
        let answer = sender.send_request(request.body(Body::empty()).expect("a request"));
        async move { answer.await.expect("an answer").status().as_u16() }
    };
    let greedy = ["192.0.2.1", "192.0.2.2"];
    let addresses = greedy.map(|client| client.parse::<IpAddr>().unwrap());
    // Their shares have no room, and their turns are taken.
    let full = addresses.map(|address| {
        let share = memory.address(address);
        share.hold(share.left().cast_unsigned())
    });
    let used = memory.requests().used();
    let of_each = |address| [memory.address(address), memory.probes(address)];
    let shares: Vec<_> = addresses.into_iter().flat_map(of_each).collect();
    let turns = shares
        .iter()
        .flat_map(|share| std::iter::repeat_n(share, 4));
    let mut line: Vec<_> = turns.map(|share| Box::pin(share.others_first())).collect();
    for one in &mut line {
        assert!(futures_util::poll!(one).is_pending());
    }
    let mut probes: FuturesUnordered<_> = (0..60)
        .map(|number| send("/livez", greedy[number % 2]))
        .collect();
    for _ in 0..50 {
        let refused = timeout(Duration::from_secs(10), probes.next()).await;
        assert_eq!(refused.expect("it waits"), Some(503));
    }
    holds_between(&memory, used, used).await;
    for path in ["/who", "/livez"] {
        assert_eq!(send(path, "192.0.2.3").await, 200, "{path}");
    }
    drop(line);
    let rest: Vec<u16> = probes.collect().await;
    assert!(rest.contains(&200), "{rest:?}");
    // One that never stops has none of the room of others for probes either.
    let all = memory.requests().hold(1 << 20);
    assert_eq!(send("/livez", "192.0.2.3").await, 200);
    assert_eq!(send("/who", "192.0.2.3").await, 503);
    drop((full, all));
    assert_eq!(send("/who", greedy[0]).await, 200);
}

/// A surface whose clients may be behind a proxy on this machine.
async fn behind(is_proxy: bool) -> Surface {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let bound = listener.local_addr().expect("address");
    let app = App::of_operators(public(Health::default()), bound);
    let proxies = is_proxy.then(|| "127.0.0.0/8".parse().unwrap());
    let proxies = proxies.into_iter().collect();
    let connections = Connections::shared(100, None, proxies, Descriptors::new(10_000));
    serving_by(listener, app, connections, (KEEP_ALIVE, FINISH))
}

/// A proxy's connection is that of many clients, one of whom ended the requests of the others.
#[tokio::test]
async fn late_frames_end_the_connection_of_a_client_and_not_that_of_a_proxy() {
    for is_proxy in [false, true] {
        let surface = behind(is_proxy).await;
        let mut stream = surface.connect().await;
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
        stream.write_all(preface).await.expect("preface");
        // More than are forgiven to a client, or remembered.
        let ended: Vec<u32> = (0..320).map(|number| number * 2 + 1).collect();
        for number in &ended {
            assert!(is_alive(&mut stream, *number).await);
        }
        for number in &ended {
            let data = [&[0, 0, 1, 0, 0][..], &number.to_be_bytes(), b"x"].concat();
            // A client's connection ends meanwhile.
            let _ = stream.write_all(&data).await;
        }
        assert_eq!(is_alive(&mut stream, 999).await, is_proxy);
    }
}

/// A client that gives up many requests at once ended those of all others behind the proxy.
#[tokio::test]
async fn requests_that_are_given_up_at_once_do_not_end_the_connection_of_a_proxy() {
    for is_proxy in [false, true] {
        let surface = behind(is_proxy).await;
        let mut stream = surface.connect().await;
        let mut written = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
        // More than are forgiven to a client, in one write.
        for number in (1_u32..=61).step_by(2) {
            let fields = b"\x82\x86\x04\x06/livez\x01\x09localhost";
            let length = u8::try_from(fields.len()).expect("short");
            written.extend([0, 0, length, 1, 5]);
            written.extend(number.to_be_bytes());
            written.extend(fields);
            // RST_STREAM with CANCEL.
            written.extend([0, 0, 4, 3, 0]);
            written.extend(number.to_be_bytes());
            written.extend(8_u32.to_be_bytes());
        }
        stream.write_all(&written).await.expect("frames");
        assert_eq!(is_alive(&mut stream, 999).await, is_proxy);
    }
}

/// Trailers of a body that nobody read any more stayed with their streams, 72 bytes for each of theirs.
#[tokio::test]
async fn long_trailers_over_http2_end_the_connection_of_a_client_and_not_that_of_a_proxy() {
    for is_proxy in [false, true] {
        let surface = behind(is_proxy).await;
        let mut stream = surface.connect().await;
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
        stream.write_all(preface).await.expect("preface");
        for (number, length, lives) in [(1_u32, 128_u8, true), (5, 129, is_proxy)] {
            // A request whose body has no end yet: HEADERS with END_HEADERS.
            let fields = b"\x82\x86\x04\x06/livez\x01\x09localhost";
            let begun = [&[0, 0, 21, 1, 4][..], &number.to_be_bytes(), fields].concat();
            stream.write_all(&begun).await.expect("begun");
            let is_head = |kind: u8, _: u8, of: u32| kind == 1 && of == number;
            assert!(comes(&mut stream, is_head).await);
            // Each of these bytes is a field without a value.
            let fields = vec![0x8f; usize::from(length)];
            let trailers = [&[0, 0, length, 1, 5][..], &number.to_be_bytes(), &fields].concat();
            let _ = stream.write_all(&trailers).await;
            assert_eq!(is_alive(&mut stream, number + 2).await, lives, "{length}");
        }
    }
}

/// A path of a few bytes in the table of header fields kept the buffer that its frame was read into: megabytes of a
/// connection, which counted for nobody.
#[tokio::test]
async fn buffers_that_the_table_of_fields_keeps_take_room_in_the_share_of_their_address() {
    const FREE: u64 = 40 << 10;
    let memory = MemoryBudgets::of(1 << 20, 1 << 20, None);
    let surface = surface_of(100, Arc::clone(&memory)).await;
    let mut stream = surface.connect().await;
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    stream.write_all(preface).await.expect("preface");
    // A field without indexing, of 15,359 bytes.
    let long = [&b"\x00\x01x\x7f\x80\x77"[..], &[b'x'; 15_359]].concat();
    let mut answered = 0;
    for number in (1_u32..).step_by(2).take(100) {
        // With incremental indexing.
        let path = format!("\x44\x0a/livez?{number:03}");
        let pseudo = [&b"\x82\x86"[..], path.as_bytes(), b"\x01\x09localhost"].concat();
        let fields = [pseudo, long.clone()].concat();
        if !answers(&mut stream, number, &fields).await {
            break;
        }
        answered += 1;
        if answered == 8 {
            // Those of the first 40 KiB are free.
            holds_between(&memory, 8 * (28 << 10) - FREE, 8 * (32 << 10) - FREE).await;
        }
    }
    assert!((12..=20).contains(&answered), "{answered}");
    drop(stream);
    holds_between(&memory, 0, 0).await;
    surface.ends().await;
}

/// An app without a listener, and an address of a client.
fn app_within(memory: Arc<MemoryBudgets>) -> (App, SocketAddr) {
    let address = "127.0.0.1:1".parse().expect("address");
    let url = "http://127.0.0.1:1".parse().expect("url");
    let allowed = Allowed::new(&url, address, false, &[], &[]).expect("allowed");
    let metrics = Arc::new(Metrics::new(None).expect("metrics"));
    let app = App::of_public(
        public(Health::default()),
        Gate::new(
            (
                allowed,
                Box::new(|_, _| FoundHost::None),
                Box::new(|_| None),
            ),
            Vec::new(),
            MAX_BODY,
            memory,
            (metrics, Traces::default()),
            LoggedRequests::All,
        ),
    );
    (app, address)
}

/// Trailers may come behind a body that is let go of, or that has no bytes, and counted for nobody there.
#[tokio::test]
async fn trailers_that_may_come_over_http2_take_room() {
    let memory = MemoryBudgets::of(64 << 20, 64 << 20, None);
    let (app, address) = app_within(Arc::clone(&memory));
    let trailers = TRAILERS_MAX as u64 * 72;
    for (path, fields) in [("/who", 0), ("/livez", 0), ("/who", 101)] {
        let used = |body: Body| {
            let target = format!("http://127.0.0.1:1{path}");
            let mut request = http::Request::post(target).version(http::Version::HTTP_2);
            for _ in 0..fields {
                request = request.header("x", "");
            }
            let request = request.header("content-length", "0").body(body);
            let received = app.receive(address, request.expect("a request"));
            let used = memory.requests().used();
            drop(received.expect("it has room"));
            assert_eq!(memory.requests().used(), 0);
            used
        };
        let open = futures_util::stream::pending::<Result<Bytes, Infallible>>();
        let (open, ended) = (used(Body::from_stream(open)), used(Body::empty()));
        assert!(open < 24 << 10, "{path} {fields}: {open}");
        assert!(open >= ended + trailers, "{path} {fields}: {ended} {open}");
    }
}

/// What came behind CONNECT waited with it, up to a window of each stream, and counted for nobody.
#[tokio::test]
async fn connect_over_http2_is_refused_before_it_waits() {
    let memory = MemoryBudgets::of(64 << 20, 64 << 20, None);
    let (app, address) = app_within(Arc::clone(&memory));
    let mut request = http::Request::new(Body::empty());
    *request.method_mut() = http::Method::CONNECT;
    *request.version_mut() = http::Version::HTTP_2;
    *request.uri_mut() = http::Uri::from_static("127.0.0.1:1");
    let Err(refused) = app.receive(address, request) else {
        panic!("it waits");
    };
    assert_eq!(refused.status(), 405);
    // Its target has no path, and so no methods.
    assert_eq!(refused.headers()["allow"], "");
    assert!(memory.requests().used() > 0);
    drop(refused);
    assert_eq!(memory.requests().used(), 0);
}

/// A path of a few bytes kept the buffer of its frame as long as its request waited, or was answered by a stream.
#[tokio::test]
async fn a_target_over_http2_keeps_no_buffer() {
    let memory = MemoryBudgets::of(64 << 20, 64 << 20, None);
    let (app, address) = app_within(memory);
    let buffer = Bytes::from("127.0.0.1:1/who?a=b".to_owned());
    let authority = http::uri::Authority::from_maybe_shared(buffer.slice(..11));
    let path = http::uri::PathAndQuery::from_maybe_shared(buffer.slice(11..));
    let target = http::Uri::builder()
        .scheme("http")
        .authority(authority.expect("authority"))
        .path_and_query(path.expect("path"))
        .build();
    let mut request = http::Request::new(Body::empty());
    *request.version_mut() = http::Version::HTTP_2;
    *request.uri_mut() = target.expect("target");
    assert!(!buffer.is_unique());
    let received = app.receive(address, request).expect("a request");
    assert!(buffer.is_unique(), "it is kept");
    drop(received);
}

#[tokio::test]
async fn usual_fields_in_the_table_of_an_http2_connection_take_no_room() {
    let memory = MemoryBudgets::of(1 << 20, 1 << 20, None);
    let surface = surface_of(100, Arc::clone(&memory)).await;
    let mut stream = surface.connect().await;
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    stream.write_all(preface).await.expect("preface");
    // A field without indexing, of 1151 bytes.
    let long = [&b"\x00\x01x\x7f\x80\x08"[..], &[b'x'; 1151]].concat();
    for number in (1_u32..).step_by(2).take(150) {
        let (path, name) = if number == 1 {
            (&b"\x44\x06/livez\x41\x09localhost"[..], &b"\x40\x01a"[..])
        } else {
            // The name is that of the newest entry.
            (&b"\x04\x06/livez\x01\x09localhost"[..], &b"\x7e"[..])
        };
        let value = format!("\x03{number:03}");
        let fields = [&b"\x82\x86"[..], path, name, value.as_bytes(), &long].concat();
        assert!(answers(&mut stream, number, &fields).await, "{number}");
    }
    holds_between(&memory, 0, 0).await;
    drop(stream);
    surface.ends().await;
}

/// Sends a request with these fields on an HTTP/2 stream; returns whether there is an answer.
async fn answers(connection: &mut TcpStream, stream: u32, fields: &[u8]) -> bool {
    let length = u32::try_from(fields.len()).expect("short").to_be_bytes();
    // HEADERS with END_HEADERS and END_STREAM.
    let request = [&length[1..], &[1, 5], &stream.to_be_bytes(), fields].concat();
    // A connection that has ended takes no more.
    let _ = connection.write_all(&request).await;
    let is_end = |kind: u8, flags: u8, of: u32| kind <= 1 && flags & 1 == 1 && of == stream;
    comes(connection, is_end).await
}

/// Asks for `/livez` on an HTTP/2 stream; returns whether there is an answer.
async fn is_alive(connection: &mut TcpStream, stream: u32) -> bool {
    has_answer(connection, "/livez", stream).await
}

/// Asks for a path on an HTTP/2 stream; returns whether there is an answer.
async fn has_answer(connection: &mut TcpStream, path: &str, stream: u32) -> bool {
    let size = |text: &[u8]| u8::try_from(text.len()).expect("short");
    let path = path.as_bytes();
    let fields = [&b"\x82\x86\x04"[..], &[size(path)], path].concat();
    let fields = [&fields[..], b"\x01\x09localhost"].concat();
    // HEADERS with END_HEADERS and END_STREAM.
    let head = [0, 0, size(&fields), 1, 5];
    let request = [&head[..], &stream.to_be_bytes(), &fields].concat();
    let _ = connection.write_all(&request).await;
    // DATA, HEADERS, with END_STREAM.
    let is_end = |kind: u8, flags: u8, of: u32| kind <= 1 && flags & 1 == 1 && of == stream;
    comes(connection, is_end).await
}

/// Reads HTTP/2 frames until one of this type, with these flags and of this stream; returns whether it comes.
async fn comes(connection: &mut TcpStream, is_it: impl Fn(u8, u8, u32) -> bool) -> bool {
    loop {
        let mut head = [0; 9];
        if connection.read_exact(&mut head).await.is_err() {
            return false;
        }
        let [a, b, c, kind, flags, of @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        if connection.read_exact(&mut payload).await.is_err() {
            return false;
        }
        if is_it(kind, flags, u32::from_be_bytes(of)) {
            return true;
        }
    }
}

/// One address held all connections for minutes, since hyper keeps one whose peer answers pings.
#[tokio::test]
async fn an_idle_http2_connection_ends_though_its_pings_are_answered() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let bound = listener.local_addr().expect("address");
    let app = App::of_operators(public(Health::default()), bound);
    let idle = Duration::from_millis(400);
    let surface = serving_idle(listener, app, 10, idle);
    let stream = TcpStream::connect(bound).await.expect("connect");
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .keep_alive_interval(Duration::from_millis(50))
        .keep_alive_timeout(Duration::from_secs(20))
        .keep_alive_while_idle(true);
    let handshake = builder.handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.expect("handshake");
    let connection = surface.tracker.spawn(connection);
    let request = http::Request::builder().uri(format!("http://{bound}/livez"));
    let request = request.body(Full::<Bytes>::default()).expect("request");
    let answer = sender.send_request(request).await.expect("answer");
    assert_eq!(answer.status(), 200);
    let whole = answer.into_body().collect().await;
    let (_, began) = (whole.expect("body"), Instant::now());
    let ended = timeout(Duration::from_secs(20), connection).await;
    let ended = ended.expect("it stays open").expect("no panic");
    assert!(ended.is_ok(), "it ends by GOAWAY: {ended:?}");
    assert!(began.elapsed() >= idle / 2, "{:?}", began.elapsed());
}

/// A client that takes no answers, but answers pings, held its connection and what is kept for its requests for ever.
#[tokio::test]
async fn an_http2_connection_whose_answers_nobody_takes_ends() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let bound = listener.local_addr().expect("address");
    let routes = Router::new().route("/long", get(async || "x".repeat(LONG)));
    let (app, soon) = (App::of_operators(routes, bound), Duration::from_millis(400));
    let surface = serving_by(listener, app, Connections::new(10), (soon, soon));
    // With a window of one byte h2 has the whole of an answer, and with none the task of its stream.
    for window in [0_u32, 1] {
        let stream = TcpStream::connect(bound).await.expect("connect");
        let handshake = http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(window)
            .handshake(TokioIo::new(stream))
            .await;
        let (mut sender, connection) = handshake.expect("handshake");
        let connection = surface.tracker.spawn(connection);
        let request = http::Request::builder().uri(format!("http://{bound}/long"));
        let request = request.body(Body::empty()).expect("request");
        let answer = sender.send_request(request).await.expect("answer");
        let ended = timeout(Duration::from_secs(20), connection).await;
        drop(ended.expect("it stays open"));
        drop((answer, sender));
    }
}

/// It was cut after the time for a shutdown, in the middle of its answer.
#[tokio::test]
async fn a_request_on_its_way_to_an_idle_http2_connection_is_answered() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let bound = listener.local_addr().expect("address");
    let slow = async || {
        tokio::time::sleep(Duration::from_millis(2500)).await;
        "done"
    };
    let routes = public(Health::default()).route("/slow", get(slow));
    let app = App::of_operators(routes, bound);
    let clocks = (Duration::from_millis(300), Duration::from_secs(1));
    let surface = serving_by(listener, app, Connections::new(10), clocks);
    let mut stream = surface.connect().await;
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    stream.write_all(preface).await.expect("preface");
    assert!(is_alive(&mut stream, 1).await);
    // GOAWAY, behind which a PING asks whether its client has read it.
    let goaway = comes(&mut stream, |kind, _, _| kind == 7);
    let goaway = timeout(Duration::from_secs(10), goaway);
    assert!(goaway.await.expect("it stays open"));
    assert!(has_answer(&mut stream, "/slow", 3).await, "it was cut");
}

/// Connections that came at once, each with a request, all went before a request on a connection that was open.
#[tokio::test]
async fn connections_that_come_at_once_are_accepted_a_few_at_a_time() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let bound = listener.local_addr().expect("address");
    let mut clients = Vec::new();
    for _ in 0..100 {
        clients.push(TcpStream::connect(bound).await.expect("connect"));
    }
    let app = App::of_operators(public(Health::default()), bound);
    let surface = serving_idle(listener, app, 200, KEEP_ALIVE);
    let mut rounds = 0;
    while surface.tracker.len() <= clients.len() {
        tokio::task::yield_now().await;
        rounds += 1;
    }
    assert!(rounds >= 20, "{rounds} rounds");
    drop(clients);
    surface.ends().await;
}

/// Thousands of connections of an address, each of which sent its first request at once, went before a request of another.
#[tokio::test]
async fn connections_of_an_address_begin_in_turn() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let bound = listener.local_addr().expect("address");
    let app = App::of_operators(public(Health::default()), bound);
    let connections = Connections::shared(100, None, Vec::new(), Descriptors::new(10_000));
    let admission = connections.enter(bound.ip()).expect("room");
    let surface = serving_by(listener, app, connections, (KEEP_ALIVE, FINISH));
    let ask = format!("GET /livez HTTP/1.1\r\nHost: {bound}\r\n\r\n");
    let mut line: Vec<_> = (0..4).map(|_| Box::pin(admission.others_first())).collect();
    for one in &mut line {
        assert!(futures_util::poll!(one).is_pending());
    }
    let mut second = surface.connect().await;
    second.write_all(ask.as_bytes()).await.expect("send");
    let (said, is_closed) = quiet(&mut second).await;
    assert_eq!((said.as_str(), is_closed), ("", false), "behind the line");
    drop(line);
    let mut answer = [0; 12];
    second.read_exact(&mut answer).await.expect("answer");
    assert_eq!(&answer, b"HTTP/1.1 200");
    drop((second, admission));
    surface.ends().await;
}

/// Header blocks of an address were decoded as they came, each a millisecond for 16 KiB, on all of its connections at once.
#[tokio::test]
async fn header_blocks_with_many_fields_wait_in_line() {
    let memory = MemoryBudgets::of(64 << 20, 64 << 20, None);
    let surface = surface_of(10, Arc::clone(&memory)).await;
    let share = memory.address(surface.address.ip());
    let mut stream = surface.connect().await;
    let settings = frame(4, 0, 0, &[]);
    let begun = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &settings].concat();
    stream.write_all(&begun).await.expect("send");
    assert_eq!(read_frame(&mut stream).await.0, 4, "settings of the server");
    let mut line: Vec<_> = (0..4).map(|_| Box::pin(share.others_first())).collect();
    for one in &mut line {
        assert!(futures_util::poll!(one).is_pending());
    }
    // A field that is remembered, and named again and again.
    let fields = [&b"\x82\x86\x84\x01\x01a\x40\x01a\x00"[..], &[0xbe; 1900]].concat();
    let ends = 5;
    stream
        .write_all(&frame(1, ends, 1, &fields))
        .await
        .expect("send");
    let length = fields.len() as u64 + 9;
    while share.used() < length {
        tokio::task::yield_now().await;
    }
    drop(line);
    // Of the answer; others may come before it.
    while read_frame(&mut stream).await.0 != 1 {}
    surface.ends().await;
}

/// A frame of 16 KiB with a field in each byte was decoded at once, and one that no client may send kept what it had in
/// the table.
#[tokio::test]
async fn a_frame_with_more_fields_than_a_block_may_have_ends_the_connection() {
    let memory = MemoryBudgets::of(64 << 20, 64 << 20, None);
    let surface = surface_of(10, Arc::clone(&memory)).await;
    let many = [0x82; 2049];
    let wrong = [&[0, 0, 0, 2][..], &[0x82; 20]].concat();
    for (kind, fields, ends) in [
        (1, &many[..], true),
        (1, &many[1..], false),
        (5, &wrong[..], true),
    ] {
        let mut stream = surface.connect().await;
        let settings = frame(4, 0, 0, &[]);
        let begun = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &settings].concat();
        stream.write_all(&begun).await.expect("send");
        let block = frame(kind, 5, 1, fields);
        stream.write_all(&block).await.expect("send");
        // A block that is wrong in itself ends its stream alone (section 8.1.1).
        let ping = frame(6, 0, 0, &[7; 8]);
        _ = stream.write_all(&ping).await;
        let mut all = Vec::new();
        let mut part = [0; 1024];
        let pong = frame(6, 1, 0, &[7; 8]);
        let has_ended = loop {
            match stream.read(&mut part).await {
                Ok(0) | Err(_) => break true,
                Ok(length) => all.extend_from_slice(&part[..length]),
            }
            if all.windows(pong.len()).any(|frame| frame == pong) {
                break false;
            }
        };
        assert_eq!(has_ended, ends, "{kind} with {} bytes", fields.len());
    }
    surface.ends().await;
}

/// A frame of HTTP/2 (RFC 9113, section 4.1).
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    let head = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
    [&head[..], payload].concat()
}

/// The kind and the payload of the next frame.
async fn read_frame(stream: &mut TcpStream) -> (u8, Vec<u8>) {
    let mut head = [0; 9];
    stream.read_exact(&mut head).await.expect("a frame");
    let [a, b, c, kind, ..] = head;
    let length = u32::from_be_bytes([0, a, b, c]);
    let mut payload = vec![0; length as usize];
    stream.read_exact(&mut payload).await.expect("its payload");
    (kind, payload)
}

/// Eight of a connection were counted: an address with a request on each of thousands of connections never let others go
/// first.
#[tokio::test]
async fn requests_of_an_address_count_for_its_turns() {
    let memory = MemoryBudgets::of(64 << 20, 64 << 20, None);
    let surface = surface_of(10, Arc::clone(&memory)).await;
    let share = memory.address(surface.address.ip());
    assert_eq!(share.pieces(), 0);
    for _ in 0..3 {
        let (answer, _) = surface.ask("GET /short", "Connection: close\r\n").await;
        assert_eq!(status(&answer), "200");
    }
    // Of those that came at once.
    assert!((1..=3).contains(&share.pieces()));
    surface.ends().await;
}

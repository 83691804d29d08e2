//! Connections that break at any byte or are never read, and their resumption.

use std::time::Duration;

use futures_util::future::join_all;
use reqwest::StatusCode;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
};

use crate::support::{
    gauges::{Gauge, OPS, median, metric, scaled, slow_call, stays_quick},
    harness::{Event, Events, Gateway, Legacy, Session, text_of, tool_call, until, within},
    wire::{chunked_body, connect, head},
};

/// Pseudo-random numbers, which a seed repeats.
pub(crate) struct Chance(u64);

impl Chance {
    /// Seeded by `SEED`, or at random; prints the seed.
    #[expect(
        clippy::disallowed_methods,
        reason = "a test has no configuration to read it from"
    )]
    pub(crate) fn new() -> Self {
        let fresh = || uuid::Uuid::new_v4().as_u64_pair().0 | 1;
        let seed = std::env::var("SEED").map_or_else(|_| fresh(), |seed| seed.parse().unwrap());
        println!("SEED={seed}");
        Self(seed)
    }

    /// The next number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> usize {
        // xorshift64
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound).unwrap()
    }
}

/// The complete events in the received part of a response.
fn events(bytes: &[u8]) -> Vec<Event> {
    let body = chunked_body(bytes);
    let whole = body.windows(2).rposition(|two| two == b"\n\n");
    let text = std::str::from_utf8(&body[..whole.map_or(0, |at| at + 2)]).unwrap();
    text.split_terminator("\n\n").map(Event::parse).collect()
}

/// A connection that reads `count` bytes and closes.
async fn cut(gateway: &Gateway, session: &Session, cursor: &str, count: usize) -> Vec<u8> {
    let headers = format!("Last-Event-ID: {cursor}\r\nConnection: close\r\n");
    let request = head(gateway, session, "GET /mcp", &headers);
    let mut socket = connect(gateway).await;
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut bytes = vec![0; count];
    let mut read = 0;
    // The stream may end earlier.
    while read < count
        && let more @ 1.. = within("bytes", socket.read(&mut bytes[read..]))
            .await
            .unwrap()
    {
        read += more;
    }
    bytes.truncate(read);
    assert!(
        bytes.starts_with(&b"HTTP/1.1 200"[..read.min(12)]),
        "refused"
    );
    bytes
}

/// Forced disconnects at arbitrary bytes.
#[tokio::test]
async fn cuts_at_any_byte_lose_nothing_and_repeat_nothing() {
    let count = scaled("events", 150_000, 1500) as u64;
    let mut chance = Chance::new();
    let gateway = Gateway::start(&["log.events=1000000", "log.bytes=1GiB"]).await;
    let session = gateway.session().await;
    let args = json!({"n": count, "ms": 1});
    let mut stream = session.stream("slow", args, json!("t")).await;
    let mut cursor = stream.next().await.unwrap().id.unwrap();
    drop(stream);
    let (mut cuts, mut ids, mut last) = (0, vec![cursor.clone()], Value::Null);
    let mut next = 1;
    while last.is_null() {
        // Every third client closes without reading.
        let bytes = chance.below(3).min(1) * chance.below(2500);
        let bytes = cut(&gateway, &session, &cursor, bytes).await;
        cuts += 1;
        for event in events(&bytes).into_iter().filter(Event::is_message) {
            let message: Value = serde_json::from_str(&event.data.unwrap()).unwrap();
            cursor = event.id.unwrap();
            ids.push(cursor.clone());
            if message["method"] == "notifications/progress" {
                assert_eq!(message["params"]["progress"], next, "behind {cursor}");
                next += 1;
            } else {
                last = message;
            }
        }
    }
    println!("{cuts} cuts");
    assert!(cuts >= 100, "{cuts} cuts");
    assert_eq!((next, &*text_of(&last)), (count + 1, "done"));
    let all = ids.len();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), all, "an id came twice");
    let end = session.get(Some(&cursor)).await;
    assert_eq!(end.status(), StatusCode::NO_CONTENT);
}

/// Two connections resume from the same cursor; the later one reads and ends first.
#[tokio::test]
async fn what_a_later_connection_took_is_not_lost_for_an_earlier_one() {
    let gateway = Gateway::start(&[]).await;
    let session = gateway.session().await;
    let args = json!({"n": 200, "ms": 5});
    let mut stream = session.stream("slow", args, json!("t")).await;
    let (first, _) = stream.message().await.unwrap();
    let mut numbers = vec![1];
    let mut earlier = session.resume(&first).await;
    let mut later = session.resume(&first).await;
    for number in 2..20 {
        let (_, message) = later.message().await.unwrap();
        assert_eq!(message["params"]["progress"], number);
    }
    drop(later);
    // The earlier connection continues or ends with `retry:`; it never skips an event.
    let mut cursor = first;
    loop {
        let messages = earlier.messages().await;
        for (id, message) in messages {
            cursor = id;
            numbers.extend(message["params"]["progress"].as_u64());
        }
        let again = session.get(Some(&cursor)).await;
        if again.status() == StatusCode::NO_CONTENT {
            break;
        }
        earlier = Events::of(again);
    }
    assert_eq!(numbers, (1..=200).collect::<Vec<_>>());
}

/// Bytes that the kernel has of the gateway's output to the connection from this port, and has not delivered.
fn undelivered(port: u16) -> usize {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let remote = format!(":{port:04X}");
    let row = table.lines().map(str::split_whitespace).find_map(|fields| {
        let fields: Vec<_> = fields.collect();
        fields[2].ends_with(&remote).then_some(fields[4])
    });
    let (waiting, _) = row.unwrap().split_once(':').unwrap();
    usize::from_str_radix(waiting, 16).unwrap()
}

/// The kernel took two megabytes for each connection that nobody read, and could take four, beside all budgets.
#[tokio::test]
async fn what_a_client_does_not_read_waits_in_the_log_and_not_in_the_kernel() {
    let gateway = Gateway::start(&[]).await;
    let session = gateway.session().await;
    // With two calls in flight, log messages go to the listener.
    let hang = session.begin("hang", json!({})).await;
    let socket = deaf(&session).await;
    let port = socket.local_addr().unwrap().port();
    let args = json!({"n": 240, "text": "x".repeat(8000)});
    assert_eq!(session.text("burst", args).await, "sent");
    let gauge = Gauge::of(&gateway);
    until("a standstill", || async {
        gauge.load(Duration::from_millis(200)).await < 0.1
    })
    .await;
    let waiting = undelivered(port);
    assert!((32 << 10..=128 << 10).contains(&waiting), "{waiting}");
    drop((hang, socket));
}

/// A listener whose client reads only the status, with a small receive buffer.
pub(crate) async fn deaf(session: &Session) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let url = url::Url::parse(&session.url).unwrap();
    let (host, id) = (url.authority(), session.id.as_ref().unwrap());
    let mut socket = socket.connect(host.parse().unwrap()).await.unwrap();
    let request = format!(
        "GET {} HTTP/1.1\r\nHost: {host}\r\nMcp-Session-Id: {id}\r\n\
         Accept: text/event-stream\r\nConnection: close\r\n\r\n",
        url.path()
    );
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut first = [0; 12];
    within("a status", socket.read_exact(&mut first))
        .await
        .unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    socket
}

/// Reads a deaf listener to its end: messages without a gap, then a `retry:`. Returns the number of
/// messages and the last id.
pub(crate) async fn wakes(mut socket: TcpStream) -> (u64, String) {
    let mut bytes = b"HTTP/1.1 200".to_vec();
    within("the end", socket.read_to_end(&mut bytes))
        .await
        .unwrap();
    let events = events(&bytes);
    assert!(events.last().unwrap().retry.is_some());
    let (mut next, mut last) = (0, String::new());
    for event in events {
        last = event.id.clone().unwrap_or(last);
        if event.is_message() {
            let message: Value = serde_json::from_str(&event.data.unwrap()).unwrap();
            assert_eq!(message["params"]["data"]["n"], next, "no gap");
            next += 1;
        }
    }
    (next, last)
}

#[tokio::test]
async fn clients_that_never_read_cost_little_and_meet_no_gap() {
    let count = scaled("deaf clients", 500, 5);
    let sets = [
        "log.bytes=256KiB",
        "log.events=200",
        "server.reply.sse_after=10ms",
    ];
    let gateway = Gateway::start(&sets).await;
    let gauge = Gauge::of(&gateway);
    let other = gateway.session().await;
    let mut deafs = Vec::new();
    for _ in 0..count {
        let session = gateway.session().await;
        // With two calls in flight, log messages go to the listener.
        let hang = session.begin("hang", json!({})).await;
        let socket = deaf(&session).await;
        deafs.push((session, socket, hang));
    }
    let before = median(|| slow_call(&other)).await;
    let memory = gauge.memory();
    let floods = deafs.iter().map(|(session, ..)| async {
        let args = json!({"n": 500, "text": "x".repeat(8000)});
        assert_eq!(session.text("burst", args).await, "sent");
    });
    let others = async {
        // The children are blocked by clients that do not read.
        for (_, socket, _) in &deafs {
            until("something to read", || async {
                socket.peek(&mut [0; 3000]).await.unwrap() == 3000
            })
            .await;
        }
        until("a standstill", || async {
            gauge.load(Duration::from_millis(200)).await < 0.1
        })
        .await;
        stays_quick("another session", before, || slow_call(&other)).await;
    };
    tokio::join!(join_all(floods), others);
    let grown = gauge.memory() - memory;
    println!("{grown} KiB more for {count} clients");
    // The log, its pending output, and the read-ahead of the child.
    assert!(grown / i64::try_from(count).unwrap() <= 3072, "{grown} KiB");
    let ends = deafs
        .into_iter()
        .map(|(session, socket, _hang)| async move {
            let (next, last) = wakes(socket).await;
            println!("{next} events came through");
            assert!((1..500).contains(&next));
            assert_eq!(session.get(Some(&last)).await.status(), StatusCode::GONE);
            session.delete().await;
        });
    join_all(ends).await;
}

/// A call continues without its connection.
#[tokio::test]
async fn a_call_whose_client_is_gone_ends_and_is_kept() {
    let gateway = Gateway::start(&["server.reply.mode=sse"]).await;
    let session = gateway.session().await;
    let call = tool_call(json!("lost"), "sleep", json!({"ms": 300}));
    let mut stream = Events::of(session.post(&call).await);
    let cursor = stream.next().await.unwrap().id.unwrap();
    drop(stream);
    assert_eq!(session.text("cancelled", json!({})).await, "[]");
    let messages = session.resume(&cursor).await.messages().await;
    assert_eq!(messages.len(), 1);
    assert_eq!(messages[0].1["id"], "lost");
    assert_eq!(text_of(&messages[0].1), "slept");
    assert_eq!(session.text("cancelled", json!({})).await, "[]");
    assert_eq!(session.text("counter", json!({})).await, "1");
    // The same with a result that precedes the resume.
    let call = tool_call(json!("kept"), "counter", json!({}));
    let mut stream = Events::of(session.post(&call).await);
    let cursor = stream.next().await.unwrap().id.unwrap();
    drop(stream);
    assert_eq!(session.text("counter", json!({})).await, "3");
    let messages = session.resume(&cursor).await.messages().await;
    assert_eq!(text_of(&messages[0].1), "2", "{messages:?}");
}

/// A held response is lost with its connection, but its call runs to the end, once.
#[tokio::test]
async fn a_held_call_whose_client_is_gone_runs_to_its_end_once() {
    let gateway = Gateway::start(&["server.reply.sse_after=10s", OPS]).await;
    let session = gateway.session().await;
    let held = tool_call(json!(1), "sleep", json!({"ms": 1000}));
    let text = held.to_string();
    let headers = format!(
        "Content-Type: application/json\r\nContent-Length: {}\r\n",
        text.len()
    );
    let request = head(&gateway, &session, "POST /mcp", &headers) + &text;
    let mut socket = connect(&gateway).await;
    socket.write_all(request.as_bytes()).await.unwrap();
    until("the child has it", || async {
        session.text("received", json!({})).await.contains("sleep")
    })
    .await;
    drop(socket);
    assert_eq!(session.text("sleep", json!({"ms": 1100})).await, "slept");
    assert_eq!(session.text("cancelled", json!({})).await, "[]");
    let received = session.text("received", json!({})).await;
    assert_eq!(
        received.matches("\\\"name\\\":\\\"sleep\\\"").count(),
        2,
        "{received}"
    );
    let aborted = r#"lockgate_requests_total{route="mcp",status="aborted"} "#;
    until("its count", async || metric(&gateway, aborted).await == 1).await;
}

#[tokio::test]
async fn a_call_of_http_sse_whose_connection_is_gone_is_collected_by_the_next() {
    let gateway = Gateway::start(&[]).await;
    let mut legacy = Legacy::connect(&gateway, None).await;
    legacy.initialize().await;
    let call = tool_call(json!("lost"), "sleep", json!({"ms": 200}));
    assert_eq!(legacy.post(&call).await.status(), StatusCode::ACCEPTED);
    // The connection breaks while the call runs.
    let call = tool_call(json!("seen"), "echo", json!({"text": "x"}));
    legacy.post(&call).await;
    let (cursor, seen) = legacy.events.message().await.unwrap();
    assert_eq!(seen["id"], "seen");
    drop(legacy);
    let mut again = Legacy::connect(&gateway, Some(&cursor)).await;
    let (_, lost) = again.events.message().await.unwrap();
    assert_eq!((&lost["id"], &*text_of(&lost)), (&json!("lost"), "slept"));
    let call = tool_call(json!(3), "cancelled", json!({}));
    again.post(&call).await;
    assert_eq!(text_of(&again.events.message().await.unwrap().1), "[]");
}

//! Mutated requests over the wire.
//!
//! `SCALE` is the fraction of ten million requests that is sent (`SCALE=1 cargo nextest run
//! --release -E 'test(mutated)'`); by default a debug build runs for a few seconds. `SEED` repeats
//! a run.

use std::collections::BTreeMap;

use reqwest::StatusCode;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
};

use crate::support::{
    harness::{Gateway, Legacy, NEWEST, Session, until, within},
    mutator::{Dice, Place, Request},
};

/// The full count of requests.
const FULL: f64 = 1e7;
/// The default number of requests.
const GATE: f64 = 6e3;
/// The parts of a run. Memory is measured after each.
const PARTS: u64 = 32;

/// One connection, and the clients that keep its sessions alive.
struct Worker<'a> {
    gateway: &'a Gateway,
    dice: Dice,
    place: Place,
    sessions: [Session; 2],
    socket: TcpStream,
    buffer: Vec<u8>,
    /// The number of responses with each status.
    statuses: BTreeMap<u16, u64>,
    sent: u64,
    /// Reads the HTTP+SSE stream, which keeps its session alive.
    _reader: JoinSet<()>,
}

/// One response.
#[derive(Debug)]
struct Reply {
    status: u16,
    head: String,
}

impl Reply {
    fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines();
        lines.find_map(|line| {
            let (other, value) = line.split_once(':')?;
            other.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

impl<'a> Worker<'a> {
    async fn new(gateway: &'a Gateway, seed: u64) -> Self {
        let mut legacy = Legacy::connect(gateway, None).await;
        legacy.initialize().await;
        let sessions = [
            gateway.session().await,
            gateway.initialize("2025-03-26").await,
        ];
        let gone = gateway.session().await;
        assert_eq!(gone.delete().await.status(), StatusCode::NO_CONTENT);
        let endpoint = legacy.endpoint.clone();
        let mut reader = JoinSet::new();
        reader.spawn(async move { while legacy.events.next().await.is_some() {} });
        let host = gateway.base().strip_prefix("http://").unwrap();
        let mut worker = Self {
            gateway,
            dice: Dice(seed),
            place: Place {
                host: host.to_owned(),
                session: String::new(),
                batches: String::new(),
                gone: gone.id.unwrap(),
                endpoint,
                event: String::new(),
                oauth: String::new(),
                client: String::new(),
            },
            sessions,
            socket: TcpStream::connect(host).await.unwrap(),
            buffer: Vec::new(),
            statuses: BTreeMap::new(),
            sent: 0,
            _reader: reader,
        };
        worker.learn().await;
        worker
    }

    /// Stores the ids of the sessions, and of an event, in `place`.
    async fn learn(&mut self) {
        let [newest, batches] = &self.sessions;
        let mut stream = newest.stream("slow", json!({"n": 1}), json!("t")).await;
        self.place.event = stream.next().await.unwrap().id.unwrap();
        self.place.session = newest.id.clone().unwrap();
        self.place.batches = batches.id.clone().unwrap();
    }

    /// Sends `count` requests.
    async fn run(&mut self, count: u64) {
        for _ in 0..count {
            self.sent += 1;
            let request = Request::random(&mut self.dice, &self.place);
            let bytes = request.bytes();
            let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(2000)]);
            let what = format!("request {}: {shown}", self.sent);
            let replies = within(&what, self.exchange(&request, &bytes)).await;
            assert!(
                !request.is_sound || !replies.is_empty(),
                "no answer to {what}"
            );
            for reply in &replies {
                let is_fine = reply.status < 500 || reply.status == 503;
                assert!(is_fine, "{} to {what}", reply.head);
                *self.statuses.entry(reply.status).or_default() += 1;
            }
            self.mend(&request, &replies).await;
        }
    }

    /// Sends one request, and reads its responses.
    async fn exchange(&mut self, request: &Request, bytes: &[u8]) -> Vec<Reply> {
        if !request.is_sound {
            return self.last_words(bytes).await;
        }
        // A refusal may arrive, and the connection close, before all is written.
        let _ = self.socket.write_all(bytes).await;
        let Some(reply) = self.reply().await else {
            self.connect().await;
            return Vec::new();
        };
        let is_endless =
            request.method == "GET" && reply.header("content-type") == Some("text/event-stream");
        let stays =
            !is_endless && reply.header("connection") != Some("close") && self.body(&reply).await;
        if !stays {
            self.connect().await;
        }
        vec![reply]
    }

    /// Sends bytes that may be no request or several, then a valid request, and closes the sending
    /// side: the gateway need not wait for more, and has to close the connection.
    async fn last_words(&mut self, bytes: &[u8]) -> Vec<Reply> {
        let last = format!(
            "GET /livez HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
            self.place.host
        );
        let _ = self
            .socket
            .write_all(&[bytes, last.as_bytes()].concat())
            .await;
        let _ = self.socket.shutdown().await;
        // A stream may be endless, and a request after it is never answered.
        let is_stream = |seen: &[u8]| seen.windows(17).any(|part| part == b"text/event-stream");
        while !is_stream(&self.buffer) && self.fill().await {}
        let all = String::from_utf8_lossy(&self.buffer).into_owned();
        self.connect().await;
        let starts = all.match_indices("HTTP/1.").filter_map(|(at, _)| {
            let status = all.get(at + 9..at + 12)?.parse().ok()?;
            Some(Reply {
                status,
                head: all[at..].to_owned(),
            })
        });
        starts.collect()
    }

    async fn connect(&mut self) {
        self.socket = TcpStream::connect(&self.place.host).await.unwrap();
        self.buffer.clear();
    }

    /// Reads more; false at the end.
    async fn fill(&mut self) -> bool {
        matches!(self.socket.read_buf(&mut self.buffer).await, Ok(1..))
    }

    /// Reads up to `end`, and drops `end`; `None` if the connection ends before.
    async fn until(&mut self, end: &[u8]) -> Option<Vec<u8>> {
        loop {
            if let Some(at) = self.buffer.windows(end.len()).position(|part| part == end) {
                let mut part: Vec<u8> = self.buffer.drain(..at + end.len()).collect();
                part.truncate(at);
                return Some(part);
            }
            if !self.fill().await {
                return None;
            }
        }
    }

    /// The head of the next final response.
    async fn reply(&mut self) -> Option<Reply> {
        loop {
            let head = String::from_utf8_lossy(&self.until(b"\r\n\r\n").await?).into_owned();
            let status = head.get(9..12).and_then(|status| status.parse().ok());
            let status = status.unwrap_or_else(|| panic!("no status: {head}"));
            if status >= 200 {
                return Some(Reply { status, head });
            }
        }
    }

    /// Reads a body to its end; false if the connection ends with it.
    async fn body(&mut self, reply: &Reply) -> bool {
        if reply.status == 204 {
            return true;
        }
        if let Some(length) = reply.header("content-length") {
            return self.skip(length.parse().unwrap()).await;
        }
        if reply.header("transfer-encoding") != Some("chunked") {
            return false;
        }
        loop {
            let Some(line) = self.until(b"\r\n").await else {
                return false;
            };
            let line = String::from_utf8(line).unwrap();
            let size = usize::from_str_radix(&line, 16).unwrap();
            if !self.skip(size + 2).await {
                return false;
            }
            if size == 0 {
                return true;
            }
        }
    }

    async fn skip(&mut self, count: usize) -> bool {
        while self.buffer.len() < count {
            if !self.fill().await {
                return false;
            }
        }
        self.buffer.drain(..count);
        true
    }

    /// Ends the sessions that a request opened, and replaces those that it ended.
    async fn mend(&mut self, request: &Request, replies: &[Reply]) {
        for id in replies
            .iter()
            .filter_map(|reply| reply.header("mcp-session-id"))
        {
            let mut opened = self.gateway.stranger();
            opened.id = Some(id.to_owned());
            opened.delete().await;
        }
        let is_ended = |reply: &Reply| matches!(reply.status, 204 | 404);
        let names = request.names(&self.place.session) || request.names(&self.place.batches);
        if !names || !replies.iter().any(is_ended) {
            return;
        }
        for (at, revision) in [NEWEST, "2025-03-26"].into_iter().enumerate() {
            let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
            if self.sessions[at].post(&ping).await.status() == StatusCode::NOT_FOUND {
                self.sessions[at] = self.gateway.initialize(revision).await;
                self.learn().await;
            }
        }
    }
}

/// The memory of the gateway, in KiB.
fn memory(gateway: &Gateway) -> u64 {
    let status = format!("/proc/{}/status", gateway.process.id().unwrap());
    let status = std::fs::read_to_string(status).unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[tokio::test]
async fn mutated_requests_are_refused_or_served() {
    let (count, seed) = plan();
    println!("{count} requests, SEED={seed}");
    let mut gateway = Gateway::start(&SETS).await;
    let pid = gateway.process.id();
    let mut one = Worker::new(&gateway, seed).await;
    let mut two = Worker::new(&gateway, !seed).await;
    let mut samples = Vec::new();
    for _ in 0..PARTS {
        tokio::join!(one.run(count / PARTS / 2), two.run(count / PARTS / 2));
        samples.push(memory(&gateway));
    }
    let mut statuses = one.statuses.clone();
    for (status, times) in &two.statuses {
        *statuses.entry(*status).or_default() += times;
    }
    println!("{samples:?} KiB; {statuses:?}");
    stays(&samples);
    // The mutations cause every kind of answer: neither all are refused, nor all accepted.
    for status in [200, 202, 204, 400, 403, 404, 405, 406, 415, 431] {
        assert!(statuses.contains_key(&status), "no {status}: {statuses:?}");
    }
    drop((one, two));
    let session = gateway.session().await;
    // The deadline of a call is short: an answer may miss it on a busy machine.
    until("an answer", || async {
        session.call("counter", json!({})).await["result"].is_object()
    })
    .await;
    assert_eq!(session.delete().await.status(), StatusCode::NO_CONTENT);
    assert!(
        !gateway.stderr().contains("panicked"),
        "{}",
        gateway.stderr()
    );
    assert_eq!(gateway.process.try_wait().unwrap(), None);
    assert_eq!(gateway.process.id(), pid);
}

/// The number of requests, and the seed.
#[expect(
    clippy::disallowed_methods,
    reason = "settings of the test, not of the gateway"
)]
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a count is small and positive"
)]
fn plan() -> (u64, u64) {
    let count = std::env::var("SCALE").map_or(GATE, |scale| FULL * scale.parse::<f64>().unwrap());
    let seed = std::env::var("SEED").map_or(0x10c6_9a7e, |seed| seed.parse().unwrap());
    (count as u64, seed)
}

/// Asserts that memory, in KiB, does not grow. The first quarter warms up pools, tables and the
/// sessions' buffers. The minima of the two halves of the rest are compared: the allocator releases
/// memory late.
fn stays(samples: &[u64]) {
    let warm = &samples[samples.len() / 4..];
    let (early, late) = warm.split_at(warm.len() / 2);
    let least = |part: &[u64]| *part.iter().min().unwrap();
    let bound = least(early) + least(early) / 20 + ALLOWANCE;
    assert!(least(late) <= bound, "memory grows: {samples:?}");
}

/// Short clocks: the child does not answer messages that its parser refuses, such as 1e999.
const SETS: [&str; 6] = [
    "telemetry.log=warn",
    "log.age=1s",
    "server.clocks.start=5s",
    "server.clocks.call=100ms",
    "server.clocks.call_max=100ms",
    "server.reply.sse_after=50ms",
];

/// In KiB: the allocator takes or releases up to 4 MiB in one step.
const ALLOWANCE: u64 = 6 << 10;

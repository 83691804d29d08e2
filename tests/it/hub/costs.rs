//! Costs of a call that do not depend on the machine: its system calls and allocations.

use std::time::Duration;

use futures_util::{StreamExt, future::join_all, stream::FuturesUnordered};
use serde_json::json;
use tokio::{io::AsyncReadExt, process::Command, time::Instant};

use crate::support::{
    gauges::{Gauge, OPS, metric},
    harness::{self, Gateway, Session, tool_call, until, within},
    wire::{connect, head},
};

/// The time between two writes of log lines, at least.
const GATHER: Duration = Duration::from_millis(5);
/// The allocations of a call.
const ALLOCATIONS: u64 = 60;
/// The bytes that they have together.
const ALLOCATED: u64 = 34_000;
/// The bytes of an idle session.
const IDLE: i64 = 29_000;
/// The bytes of a request that waits for its answer.
const WAITING: i64 = 31_000;
/// What is drawn for it at least.
const UNDER_WAY: i64 = 8 << 10;

async fn calls(sessions: &[Session], count: usize) {
    let some = async |session: &Session| {
        for _ in 0..count {
            assert_eq!(session.text("echo", json!({"text": "x"})).await, "x");
        }
    };
    join_all(sessions.iter().map(some)).await;
}

/// One write to the child, one to the client, and one read from the child. Each call has a line in the
/// log, and lines are written together.
#[tokio::test]
async fn a_call_takes_two_writes_and_a_read_and_its_log_line_none() {
    let gateway = Gateway::start(&[]).await;
    let gauge = Gauge::of(&gateway);
    let sessions = join_all((0..16).map(|_| gateway.session())).await;
    calls(&sessions, 5).await;
    let ((reads, writes), began) = (gauge.reads_and_writes(), Instant::now());
    calls(&sessions, 100).await;
    let of_the_log = u64::try_from(began.elapsed().as_millis() / GATHER.as_millis()).unwrap() + 2;
    let (reads, writes) = {
        let (more_reads, more_writes) = gauge.reads_and_writes();
        (more_reads - reads, more_writes - writes)
    };
    println!("{reads} reads, {writes} writes, at most {of_the_log} of them of the log");
    assert!(reads <= 1600 * 5 / 4, "{reads} reads");
    assert!(writes <= 1600 * 9 / 4 + of_the_log, "{writes} writes");
    let lines = gateway.stderr();
    assert!(lines.matches("tools/call echo").count() >= 1600, "{lines}");
}

/// `limits.workers`. Threads for work that blocks come and go beside them.
#[tokio::test]
async fn as_many_threads_serve_requests_as_are_configured() {
    let many = Gateway::start(&["limits.workers=40"]).await;
    let threads = Gauge::of(&many).threads();
    assert!(threads >= 40, "{threads} threads");
    let one = Gateway::start(&["limits.workers=1"]).await;
    let session = one.session().await;
    assert_eq!(session.text("echo", json!({"text": "x"})).await, "x");
    let fewer = Gauge::of(&one).threads();
    assert!(fewer + 30 < threads, "{fewer} threads");
}

/// Requests that are there at once are written to the child together, though each came by a connection of
/// its own.
#[tokio::test]
async fn requests_at_once_share_their_write_to_the_child() {
    // With one processor it is decided who goes first.
    let args = harness::run_args(&["server.reply.mode=json"], &[]);
    let gateway = Gateway::through(&["taskset", "-c", "0"], &args, &[&harness::child()]).await;
    let (gauge, session) = (Gauge::of(&gateway), gateway.session().await);
    let mut sockets = Vec::new();
    for _ in 0..32 {
        sockets.push(connect(&gateway).await);
    }
    let request = |id: usize| {
        let call = tool_call(id.into(), "echo", json!({"text": "x"})).to_string();
        let fields = format!(
            "Content-Type: application/json\r\nContent-Length: {}\r\n",
            call.len()
        );
        head(&gateway, &session, "POST /mcp", &fields) + &call
    };
    let (mut writes, mut log, mut chunk) = (0, 0, [0; 4096]);
    for round in 0..100 {
        let ((_, before), began) = (gauge.reads_and_writes(), Instant::now());
        let requests: Vec<String> = (0..32).map(|at| request(round * 32 + at + 10)).collect();
        for (socket, request) in sockets.iter().zip(&requests) {
            assert_eq!(socket.try_write(request.as_bytes()).unwrap(), request.len());
        }
        for socket in &mut sockets {
            let count = within("an answer", socket.read(&mut chunk)).await.unwrap();
            let answer = std::str::from_utf8(&chunk[..count]).unwrap();
            assert!(
                answer.starts_with("HTTP/1.1 200") && answer.ends_with('}'),
                "{answer}"
            );
        }
        writes += gauge.reads_and_writes().1 - before;
        log += u64::try_from(began.elapsed().as_millis() / GATHER.as_millis()).unwrap() + 2;
    }
    println!("{writes} writes, at most {log} of them of the log");
    assert!(writes <= 3200 * 5 / 3, "{writes} writes");
}

/// A gateway that counts its allocations: `examples/counted.rs`.
struct Counted {
    gateway: Gateway,
    file: tempfile::NamedTempFile,
}

impl Counted {
    async fn start(sets: &[&str]) -> Self {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut program = Command::new(harness::example("counted"));
        program.env("COUNTED", file.path());
        let args = harness::run_args(sets, &[]);
        let gateway = Gateway::run(program, &args, &[&harness::child()]).await;
        Self { gateway, file }
    }

    fn numbers(&self) -> [u64; 3] {
        let bytes = std::fs::read(self.file.path()).unwrap();
        std::array::from_fn(|at| {
            let number = bytes[8 * at..][..8].try_into().unwrap();
            u64::from_ne_bytes(number)
        })
    }

    /// The allocations so far, and their bytes.
    fn allocations(&self) -> (u64, u64) {
        let [count, _, bytes] = self.numbers();
        (count, bytes)
    }

    /// The bytes that are allocated now.
    fn bytes(&self) -> i64 {
        self.numbers()[1].cast_signed()
    }
}

/// Those of hyper, of the two heads, of the route and of the session's entry; none of them for the log. Of their
/// bytes, half are buffers for reading, and a third is the state of the route, without what few requests need.
#[tokio::test]
async fn a_call_takes_few_and_small_allocations() {
    let counted = Counted::start(&[]).await;
    let sessions = [counted.gateway.session().await];
    calls(&sessions, 100).await;
    let before = counted.allocations();
    calls(&sessions, 1000).await;
    let (count, bytes) = counted.allocations();
    let (each, size) = ((count - before.0) / 1000, (bytes - before.1) / 1000);
    println!("{each} allocations a call, {size} bytes");
    assert!((5..=ALLOCATIONS).contains(&each), "{each} allocations");
    assert!((1 << 10..=ALLOCATED).contains(&size), "{size} bytes");
}

/// Half of them are the buffers of hyper, of 8 KiB each, of which little is written to.
#[tokio::test]
async fn an_idle_session_with_an_open_stream_holds_few_bytes() {
    let counted = Counted::start(&["server.isolation=tenant"]).await;
    let mut open = Vec::new();
    let mut bytes = Vec::new();
    for count in [20, 80] {
        while open.len() < count {
            let session = counted.gateway.session().await;
            open.push((session.listen().await, session));
        }
        bytes.push(counted.bytes());
    }
    let each = (bytes[1] - bytes[0]) / 60;
    println!("{each} bytes of an idle session");
    assert!((16 << 10..=IDLE).contains(&each), "{each} bytes");
}

/// 16 KiB of them are the buffers of hyper for its connection. The one that the head and the body came in
/// is none of them.
#[tokio::test]
async fn a_request_that_waits_holds_few_bytes() {
    let sets = ["server.isolation=tenant", "server.reply.mode=json", OPS];
    let counted = Counted::start(&sets).await;
    let gateway = &counted.gateway;
    let mut sessions = Vec::new();
    for _ in 0..80 {
        sessions.push(gateway.session().await);
    }
    let (mut waiting, mut bytes) = (FuturesUnordered::new(), Vec::new());
    let before = metric(gateway, "lockgate_requests_bytes ").await;
    for count in [20, 80] {
        let more = &sessions[waiting.len()..count];
        waiting.extend(more.iter().map(|session| session.begin("hang", json!({}))));
        let all = before + i64::try_from(count).unwrap() * UNDER_WAY;
        let arrived = until("all are under way", || async {
            metric(gateway, "lockgate_requests_bytes ").await >= all
        });
        tokio::select! {
            () = arrived => bytes.push(counted.bytes()),
            answer = waiting.next() => panic!("{answer:?}"),
        }
    }
    let each = (bytes[1] - bytes[0]) / 60;
    println!("{each} bytes of a request that waits");
    assert!((16 << 10..=WAITING).contains(&each), "{each} bytes");
}

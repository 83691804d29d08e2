//! Costs of a call that do not depend on the machine: its system calls and allocations.

use std::{path::Path, time::Duration};

use futures_util::future::join_all;
use serde_json::json;
use tokio::{process::Command, time::Instant};

use crate::support::{
    gauges::Gauge,
    harness::{self, Gateway, Session},
};

/// The time between two writes of log lines, at least.
const GATHER: Duration = Duration::from_millis(5);
/// The allocations of a call.
const ALLOCATIONS: u64 = 60;

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

/// The number in the file of `examples/counted.rs`.
fn allocations(file: &Path) -> u64 {
    let bytes = std::fs::read(file).unwrap();
    u64::from_ne_bytes(bytes.try_into().unwrap())
}

/// Those of hyper, of the two heads, of the route and of the session's entry; none of them for the log.
#[tokio::test]
async fn a_call_takes_few_allocations() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut program = Command::new(harness::example("counted"));
    program.env("COUNTED", file.path());
    let args = harness::run_args(&[], &[]);
    let gateway = Gateway::run(program, &args, &[&harness::child()]).await;
    let sessions = [gateway.session().await];
    calls(&sessions, 100).await;
    let before = allocations(file.path());
    calls(&sessions, 1000).await;
    let each = (allocations(file.path()) - before) / 1000;
    println!("{each} allocations a call");
    assert!((5..=ALLOCATIONS).contains(&each), "{each} allocations");
}

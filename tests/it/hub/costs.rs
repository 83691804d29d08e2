//! Costs of a call that do not depend on the machine: its system calls.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;
use tokio::time::Instant;

use crate::support::{
    gauges::Gauge,
    harness::{Gateway, Session},
};

/// The time between two writes of log lines, at least.
const GATHER: Duration = Duration::from_millis(5);

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

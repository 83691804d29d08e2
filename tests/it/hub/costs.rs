//! Costs of a call that do not depend on the machine: its system calls.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;
use tokio::time::Instant;

use crate::support::{gauges::Gauge, harness::Gateway};

/// The time between two writes of log lines, at least.
const GATHER: Duration = Duration::from_millis(5);

/// One write to the child, one to the client, and one read from the child. Each call has a line in the
/// log, and lines are written together.
#[tokio::test]
async fn a_call_takes_two_writes_and_a_read_and_its_log_line_none() {
    let gateway = Gateway::start(&[]).await;
    let gauge = Gauge::of(&gateway);
    let sessions = join_all((0..16).map(|_| gateway.session())).await;
    let calls = |count: usize| {
        join_all(sessions.iter().map(async move |session| {
            for _ in 0..count {
                assert_eq!(session.text("echo", json!({"text": "x"})).await, "x");
            }
        }))
    };
    calls(5).await;
    let ((reads, writes), began) = (gauge.reads_and_writes(), Instant::now());
    calls(100).await;
    let elapsed = began.elapsed();
    let (reads, writes) = {
        let (more_reads, more_writes) = gauge.reads_and_writes();
        (more_reads - reads, more_writes - writes)
    };
    let of_the_log = elapsed.div_duration_f64(GATHER) + 2.0;
    let each = |calls: f64| calls / 1600.0;
    let (reads, writes) = (each(reads as f64), each(writes as f64 - of_the_log));
    println!("{reads:.2} reads and {writes:.2} writes a call");
    assert!(reads <= 1.5, "{reads} reads a call");
    assert!(writes <= 2.4, "{writes} writes a call");
    let lines = gateway.stderr();
    assert!(lines.matches("tools/call echo").count() >= 1600, "{lines}");
}

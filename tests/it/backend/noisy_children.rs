//! Children that write too much, or come and go too often: the cost for others.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;
use tokio::time::Instant;

use crate::support::{
    gauges::{Gauge, OPS, median, metric, scaled, slow_call, slow_of_twenty, stays_quick},
    harness::{Gateway, Session, opening, tool_call, until},
};

#[tokio::test]
async fn stderr_without_end_disturbs_no_call_and_takes_no_room() {
    let bytes = scaled("bytes of stderr", 1_000_000_000, 10_000_000);
    let gateway = Gateway::start(&[]).await;
    let gauge = Gauge::of(&gateway);
    let (loud, quiet) = (gateway.session().await, gateway.session().await);
    let before = median(|| slow_call(&quiet)).await;
    let memory = gauge.memory();
    let flood = loud.again();
    let flood = flood.text("stderr", json!({"bytes": bytes}));
    let calls = async {
        stays_quick("another session", before, || slow_call(&quiet)).await;
        stays_quick("the same session", before, || slow_call(&loud)).await;
    };
    assert_eq!(tokio::join!(flood, calls).0, "written");
    let grown = gauge.memory() - memory;
    println!("{grown} KiB more");
    assert!(grown <= 4 << 10, "{grown} KiB");
    let logged = gateway.stderr().len();
    assert!(logged < 1 << 20, "{logged} bytes of log");
}

#[tokio::test]
async fn children_that_come_and_go_leave_nothing() {
    let count = scaled("cycles", 1000, 100);
    let gateway = Gateway::start(&[OPS]).await;
    let gauge = Gauge::of(&gateway);
    let mut after = Vec::new();
    // The first round warms up the allocator.
    for round in 0..3 {
        let cycles = if round == 0 { 20 } else { count / 2 };
        for cycle in 0..cycles / 5 {
            join_all((0..5).map(|number| come_and_go(&gateway, cycle * 5 + number))).await;
        }
        until("the end of all children", || async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            metric(&gateway, "lockgate_children ").await == 0 && gauge.children() == 0
        })
        .await;
        after.push((gauge.memory(), gauge.descriptors()));
    }
    println!("memory and descriptors after each round: {after:?}");
    assert_eq!(gateway.descendants(), Vec::<u32>::new());
    let (first, last) = (after[0], after[2]);
    // 2 %, and 2 MiB for the allocator's granularity in a small process.
    assert!(last.0 - first.0 <= first.0 / 50 + 2048, "{after:?}");
    // The number of this client's open connections varies.
    assert!(last.1 <= first.1 + 5, "{after:?}");
}

async fn come_and_go(gateway: &Gateway, cycle: usize) {
    let session = gateway.session().await;
    match cycle % 3 {
        0 => drop(session.delete().await),
        1 => drop(session.call("exit", json!({"code": 1})).await),
        _ => drop(session.call("abort", json!({})).await),
    }
}

/// A server that answers a tool call with a flood of its second argument, and any other request
/// with an `initialize` result.
const FLOOD: &str = r#"while read -r line; do case $line in
    *tools/call*) yes "$2" | head -n "$1";;
    *'"id":'*) id=${line#*'"id":'}; id=${id%%[,\}]*}
    printf '{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25",' "$id"
    printf '"capabilities":{},"serverInfo":{"name":"flood","version":"1"}}}\n';; esac; done"#;

#[tokio::test]
async fn a_flood_of_notifications_waits_and_others_do_not() {
    flood_waits(&[], r#"{"jsonrpc":"2.0","method":"n"}"#).await;
}

#[tokio::test]
async fn a_flood_of_what_is_no_message_waits_too() {
    flood_waits(&[], NOISE).await;
}

/// Requests, which no server of 2026-07-28 writes: they are dropped before its session sees them.
#[tokio::test]
async fn a_flood_that_reaches_no_session_waits_too() {
    let line = r#"{"jsonrpc":"2.0","id":1,"method":"n"}"#;
    flood_waits(&["server.era=modern"], line).await;
}

#[tokio::test]
async fn a_flood_before_the_first_answer_waits_too() {
    for isolation in ["session", "tenant"] {
        let setting = format!("server.isolation={isolation}");
        let gateway = Gateway::of(&[&setting], &[], &["yes", NOISE]).await;
        let gauge = Gauge::of(&gateway);
        let read = gauge.bytes_read();
        let stranger = gateway.stranger();
        let opened = tokio::spawn(async move { stranger.post(&opening("2025-11-25")).await });
        until("the flood", || async {
            gauge.bytes_read() > read + 100_000
        })
        .await;
        let rate = rate_of(&gauge, NOISE, gauge.bytes_read(), Instant::now()).await;
        assert!((1000.0..50_000.0).contains(&rate), "{isolation}: {rate}");
        opened.abort();
    }
}

/// A line that is no message, as long as the notification above.
const NOISE: &str = "this, of thirty, is no message";

/// The lines per second of a flood, from `began` until two seconds after the call.
async fn rate_of(gauge: &Gauge, line: &str, read: u64, began: Instant) -> f64 {
    tokio::time::sleep(Duration::from_secs(2)).await;
    let lines = (gauge.bytes_read() - read) / (line.len() as u64 + 1);
    let rate = Duration::from_secs(lines).div_duration_f64(began.elapsed());
    println!("{rate:.0} lines a second");
    rate
}

async fn flood_waits(sets: &[&str], line: &str) {
    let count = scaled("lines", 20_000_000, 200_000).to_string();
    let gateway = Gateway::of(sets, &[], &["sh", "-c", FLOOD, "sh", &count, line]).await;
    let gauge = Gauge::of(&gateway);
    let (loud, quiet) = (gateway.session().await, gateway.session().await);
    let list = || {
        slow_of_twenty(async || {
            let list = quiet.ask("tools/list", json!({})).await;
            assert!(list["result"].is_object(), "{list}");
        })
    };
    let before = median(list).await;
    let memory = gauge.memory();
    drop(loud.begin("flood", json!({})).await);
    let (began, read) = (Instant::now(), gauge.bytes_read());
    stays_quick("another session", before, list).await;
    let rate = rate_of(&gauge, line, read, began).await;
    assert!((1000.0..50_000.0).contains(&rate), "{rate}: it has to wait");
    let grown = gauge.memory() - memory;
    println!("{grown} KiB more");
    assert!(grown <= 32 << 10, "{grown} KiB");
    assert_eq!(loud.delete().await.status(), 204);
}

/// The number of dropped responses without a request.
async fn unasked(gateway: &Gateway) -> i64 {
    metric(
        gateway,
        "lockgate_messages_dropped_total{reason=\"unknown\"}",
    )
    .await
}

/// Makes the child write `line`. The tool that does so never answers.
async fn says(session: &Session, line: &str) {
    let call = tool_call(json!(9000), "raw", json!({"line": line}));
    drop(session.post(&call).await);
    let cancel = json!({"requestId": 9000});
    session.notify("notifications/cancelled", cancel).await;
    assert_eq!(session.text("echo", json!({"text": "x"})).await, "x");
}

#[tokio::test]
async fn answers_to_nothing_are_dropped_and_counted() {
    let gateway = Gateway::start(&[OPS]).await;
    let (session, other) = (gateway.session().await, gateway.session().await);
    let mut listener = session.listen().await;
    let hang = other.begin("hang", json!({})).await;
    let base = unasked(&gateway).await;
    assert_eq!(session.text("twice", json!({})).await, "first");
    until("the repeated one", || async {
        unasked(&gateway).await == base + 1
    })
    .await;
    assert_eq!(session.text("foreign_id", json!({})).await, "own");
    assert_eq!(unasked(&gateway).await, base + 2);
    for (number, id) in ["987654", "\"x\"", "2", "-1", "\"2\""].iter().enumerate() {
        let result = r#""result":{"content":[{"type":"text","text":"4711"}]}"#;
        says(
            &session,
            &format!(r#"{{"jsonrpc":"2.0","id":{id},{result}}}"#),
        )
        .await;
        let counted = unasked(&gateway).await - base - 2;
        assert_eq!(counted, i64::try_from(number).unwrap() + 1, "{id}");
    }
    let args = json!({"method": "notifications/end", "params": {}});
    assert_eq!(session.text("notify", args).await, "sent");
    let (_, only) = listener.message().await.unwrap();
    assert_eq!(only["method"], "notifications/end", "nothing else is said");
    assert_eq!(other.text("echo", json!({"text": "y"})).await, "y");
    assert!(other.delete().await.status().is_success());
    drop(hang);
}

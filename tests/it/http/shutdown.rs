//! Shutdown of a gateway: sessions, connections and clients that must not delay it.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;
use tokio::{io::AsyncWriteExt, time::Instant};

use crate::support::{
    harness::{Gateway, child, opening, run_args, within},
    wire::{connect, host, raw, statuses},
};

/// The time from SIGTERM to the end of the gateway, which must exit with 0.
async fn ends(mut gateway: Gateway) -> Duration {
    let began = Instant::now();
    gateway.signal(Signal::TERM);
    let status = within("the end", gateway.process.wait()).await;
    assert_eq!(status.unwrap().code(), Some(0));
    began.elapsed()
}

/// Opens a session, and keeps no connection of it.
async fn sleeping(gateway: &Gateway) {
    let (host, opening) = (host(gateway), opening("2025-11-25").to_string());
    let request = format!(
        "POST /mcp HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nAccept: application/json\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{opening}",
        opening.len()
    );
    assert_eq!(statuses(&raw(gateway, request).await), [200]);
}

#[tokio::test]
async fn a_session_that_sleeps_holds_up_nothing() {
    let gateway = Gateway::start(&[]).await;
    for _ in 0..3 {
        sleeping(&gateway).await;
    }
    let time = ends(gateway).await;
    assert!(time < Duration::from_millis(700), "{time:?}");
}

#[tokio::test]
async fn a_connection_that_says_nothing_holds_up_nothing() {
    let gateway = Gateway::start(&[]).await;
    let silent = connect(&gateway).await;
    let mut half = connect(&gateway).await;
    half.write_all(b"P").await.unwrap();
    sleeping(&gateway).await;
    let time = ends(gateway).await;
    assert!(time < Duration::from_millis(1500), "{time:?}");
    drop((silent, half));
}

#[tokio::test]
async fn a_terminal_that_goes_drains_it_and_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let temporary = format!("TMPDIR={}", dir.path().display());
    // The tests themselves may run under nohup.
    let wrapper = ["env", "--default-signal=HUP", temporary.as_str()];
    let mut gateway = Gateway::through(&wrapper, &run_args(&[], &[]), &[&child()]).await;
    sleeping(&gateway).await;
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    gateway.signal(Signal::HUP);
    let status = within("the end", gateway.process.wait()).await;
    assert_eq!(status.unwrap().code(), Some(0));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn under_nohup_it_outlives_its_terminal() {
    let gateway = Gateway::through(&["nohup"], &run_args(&[], &[]), &[&child()]).await;
    gateway.signal(Signal::HUP);
    let session = gateway.session().await;
    assert_eq!(session.text("echo", json!({"text": "x"})).await, "x");
    assert!(!gateway.stderr().contains("draining"));
    ends(gateway).await;
}

/// The client gets the two seconds for which `run` drains, and one more.
#[tokio::test]
async fn a_client_that_never_says_goodbye_is_not_waited_for() {
    let gateway = Gateway::start(&[]).await;
    let mut deaf = connect(&gateway).await;
    let hello = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    deaf.write_all(hello).await.unwrap();
    sleeping(&gateway).await;
    let time = ends(gateway).await;
    assert!(time < Duration::from_secs(5), "{time:?}");
    drop(deaf);
}

//! Children that misbehave behind the real gateway.

use std::{collections::BTreeSet, time::Duration};

use reqwest::{Response, StatusCode};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::support::gauges::{Gauge, ZYGOTE, name_of};
use crate::support::harness::{Gateway, Session, child, last, opening, until, within};

fn code(answer: &Value) -> i64 {
    answer["error"]["code"].as_i64().unwrap_or_default()
}

async fn echoes(session: &Session) {
    assert_eq!(session.text("echo", json!({"text": "here"})).await, "here");
}

/// Waits until the session is gone.
async fn is_lost(session: &Session) {
    until("the end of a session", || async {
        let ping = json!({"jsonrpc": "2.0", "id": 77, "method": "ping"});
        session.post(&ping).await.status() == StatusCode::NOT_FOUND
    })
    .await;
}

/// Waits until these processes are gone and the session uses another child.
async fn is_replaced(gateway: &Gateway, session: &Session, before: &[u32]) {
    until("the end of the first child", || async {
        !gateway.descendants().iter().any(|pid| before.contains(pid))
    })
    .await;
    echoes(session).await;
}

async fn no_children(gateway: &Gateway) {
    until("the end of all children", || async {
        gateway.descendants().is_empty()
    })
    .await;
}

/// The answer to a refused `initialize`, which opens no session.
async fn refused(response: Response) -> Value {
    assert_eq!(response.status(), StatusCode::OK);
    assert!(response.headers().get("mcp-session-id").is_none());
    last(response).await
}

#[tokio::test]
async fn noise_is_skipped() {
    let gateway = Gateway::of(&[], &["CHILD_BANNER=1"], &[&child()]).await;
    let session = gateway.session().await;
    for what in ["text", "utf8", "nul"] {
        let text = session.text("garbage", json!({"what": what})).await;
        assert_eq!(text, "done", "{what}");
    }
    let answer = session.call("answer_bad_utf8", json!({})).await;
    assert_eq!(code(&answer), -31003, "{answer}");
    echoes(&session).await;
}

#[tokio::test]
async fn a_line_that_is_too_long() {
    let gateway = Gateway::start(&["server.limits.line=64KiB"]).await;
    let session = gateway.session().await;
    let before = gateway.descendants();
    let answer = session.call("big", json!({"bytes": 70_000})).await;
    assert_eq!(code(&answer), -31003, "{answer}");
    is_replaced(&gateway, &session, &before).await;
}

#[tokio::test]
async fn an_exit_during_a_call() {
    let gateway = Gateway::start(&[]).await;
    for (tool, args) in [
        ("exit", json!({"code": 0})),
        ("exit", json!({"code": 1})),
        ("segv", json!({})),
        ("abort", json!({})),
    ] {
        let mut best = Duration::MAX;
        // Other tests share the processors: one of three attempts has to be in time.
        for _ in 0..3 {
            let session = gateway.session().await;
            let began = Instant::now();
            let answer = session.call(tool, args.clone()).await;
            best = best.min(began.elapsed());
            assert_eq!(code(&answer), -31001, "{tool} {answer}");
            let text = answer.to_string().to_lowercase();
            for word in ["signal", "exit code", "status", "segv"] {
                assert!(!text.contains(word), "the cause is for the log: {text}");
            }
            echoes(&session).await;
        }
        assert!(best <= Duration::from_millis(250), "{tool} {best:?}");
    }
}

/// The setting `on_loss = "end"`.
#[tokio::test]
async fn a_session_that_is_not_to_be_restored_ends_with_its_child() {
    let gateway = Gateway::start(&["server.on_loss=end"]).await;
    let session = gateway.session().await;
    let answer = session.call("exit", json!({"code": 1})).await;
    assert_eq!(code(&answer), -31001, "{answer}");
    is_lost(&session).await;
    no_children(&gateway).await;
}

#[tokio::test]
async fn a_child_that_will_not_stop() {
    let gateway = Gateway::start(&["server.clocks.stop=[\"100ms\", \"100ms\"]"]).await;
    let session = gateway.session().await;
    assert_eq!(session.text("ignore_term", json!({})).await, "ignored");
    assert!(!gateway.descendants().is_empty());
    let began = Instant::now();
    session.delete().await;
    no_children(&gateway).await;
    assert!(began.elapsed() >= Duration::from_millis(150), "not polite");
}

#[tokio::test]
async fn what_a_child_inherits() {
    let gateway = Gateway::of(&[], &["CHILD_USER=me"], &[&child()]).await;
    let session = gateway.session().await;
    let env: Value = serde_json::from_str(&session.text("env", json!({})).await).unwrap();
    let names: BTreeSet<&str> = env
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    let known = [
        "CHILD_USER",
        "HOME",
        "IT_MARKER",
        "LANG",
        "LC_ALL",
        "LOGNAME",
        "PATH",
        "SHELL",
        "TERM",
        "TMPDIR",
        "TZ",
        "USER",
    ];
    // Those of proxies and certificates, where the tests run behind some.
    let of_network = |name: &str| {
        let parts = ["_proxy", "_cert_", "_ca_"];
        let name = name.to_lowercase();
        parts.iter().any(|part| name.contains(part))
    };
    for name in names {
        assert!(known.contains(&name) || of_network(name), "{name}");
    }
    let fds: Value = serde_json::from_str(&session.text("fds", json!({})).await).unwrap();
    let numbers: Vec<&str> = fds
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    assert_eq!(numbers, ["0", "1", "2"]);
}

#[tokio::test]
async fn a_child_that_never_starts() {
    let gateway = Gateway::of(
        &[
            "server.clocks.start=300ms",
            "server.clocks.stop=[\"50ms\", \"50ms\"]",
        ],
        &["CHILD_START_MS=600000"],
        &[&child()],
    )
    .await;
    let answer = refused(gateway.stranger().post(&opening("2025-11-25")).await).await;
    assert_eq!(code(&answer), -31002, "{answer}");
    no_children(&gateway).await;
    let gateway = Gateway::of(&[], &[], &["sh", "-c", "exit 3"]).await;
    let answer = refused(gateway.stranger().post(&opening("2025-11-25")).await).await;
    assert_eq!(code(&answer), -31001, "{answer}");
}

#[tokio::test]
async fn answers_to_nothing() {
    let gateway = Gateway::start(&[]).await;
    let session = gateway.session().await;
    assert_eq!(session.text("twice", json!({})).await, "first");
    assert_eq!(session.text("foreign_id", json!({})).await, "own");
    for line in [
        r#"{"jsonrpc":"2.0","id":987654,"result":{}}"#,
        r#"{"jsonrpc":"2.0","id":"x","error":{"code":1,"message":"m"}}"#,
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"m"}}"#,
    ] {
        let pending = session.begin("sleep", json!({"ms": 100}));
        let noise = session.again();
        // `raw` itself is never answered; its session's other calls are.
        let noise = async {
            let raw = noise.begin("raw", json!({"line": line}));
            drop(tokio::time::timeout(Duration::from_millis(100), raw).await);
        };
        let (slept, ()) = tokio::join!(pending, noise);
        let slept = last(slept).await;
        assert_eq!(slept["result"]["content"][0]["text"], "slept", "{line}");
    }
    echoes(&session).await;
}

#[tokio::test]
async fn stdout_is_closed() {
    let gateway = Gateway::start(&["server.clocks.stop=[\"100ms\", \"100ms\"]"]).await;
    let session = gateway.session().await;
    let (before, began) = (gateway.descendants(), Instant::now());
    session.call("close_stdout", json!({})).await;
    is_replaced(&gateway, &session, &before).await;
    assert!(began.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn stdin_is_closed() {
    let gateway = Gateway::start(&["server.clocks.stop=[\"100ms\", \"100ms\"]"]).await;
    let session = gateway.session().await;
    let who: Value = serde_json::from_str(&session.text("whoami", json!({})).await).unwrap();
    let stdin = format!("/proc/{}/fd/0", who["pid"]);
    assert_eq!(session.text("close_stdin", json!({})).await, "closed");
    until("a closed stdin", || async {
        std::fs::symlink_metadata(&stdin).is_err()
    })
    .await;
    let before = gateway.descendants();
    let answer = session.call("echo", json!({"text": "x"})).await;
    assert_eq!(code(&answer), -31001, "{answer}");
    is_replaced(&gateway, &session, &before).await;
}

#[tokio::test]
async fn no_shell() {
    let hostile = [
        "; touch /tmp/evil",
        "$(id)",
        "`id`",
        "--flag",
        "a b",
        "*",
        "| cat",
        "\"'\\",
    ];
    let child = child();
    let command: Vec<&str> = std::iter::once(child.as_str()).chain(hostile).collect();
    let gateway = Gateway::of(&[], &["CHILD_USER=$(id); --x"], &command).await;
    let session = gateway.session().await;
    let args: Vec<String> = serde_json::from_str(&session.text("args", json!({})).await).unwrap();
    assert_eq!(args[1..], hostile);
    let who = session.text("whoami", json!({})).await;
    assert!(who.contains("$(id); --x"), "{who}");
    for text in hostile {
        assert_eq!(session.text("echo", json!({"text": text})).await, text);
    }
}

#[tokio::test]
async fn a_stopped_child() {
    let gateway = Gateway::start(&[
        "server.clocks.call=400ms",
        "server.clocks.call_max=400ms",
        "server.clocks.stop=[\"50ms\", \"50ms\"]",
    ])
    .await;
    let session = gateway.session().await;
    let who: Value = serde_json::from_str(&session.text("whoami", json!({})).await).unwrap();
    let pid = i32::try_from(who["pid"].as_i64().unwrap()).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::STOP).unwrap();
    let answer = session.call("echo", json!({"text": "x"})).await;
    assert_eq!(code(&answer), -31002, "{answer}");
    session.delete().await;
    no_children(&gateway).await;
}

#[tokio::test]
async fn nothing_survives_a_session() {
    let gateway = Gateway::start(&["server.clocks.stop=[\"50ms\", \"50ms\"]"]).await;
    let session = gateway.session().await;
    session.call("spawn_tree", json!({})).await;
    assert!(gateway.descendants().len() >= 8);
    session.delete().await;
    no_children(&gateway).await;
}

#[tokio::test]
async fn nothing_survives_a_killed_gateway() {
    let mut gateway = Gateway::start(&[]).await;
    let session = gateway.session().await;
    session.call("spawn_tree", json!({})).await;
    assert!(gateway.descendants().len() >= 8);
    let zygote = Gauge::of(&gateway).zygote().unwrap();
    gateway.process.kill().await.unwrap();
    no_children(&gateway).await;
    until("the end of the zygote", || async {
        name_of(zygote).is_none_or(|name| name != ZYGOTE)
    })
    .await;
}

#[tokio::test]
async fn a_killed_zygote_takes_no_child_with_it_and_is_replaced() {
    let gateway = Gateway::start(&[]).await;
    let first = gateway.session().await;
    let before = Gauge::of(&gateway).zygote().unwrap();
    let pid = Pid::from_raw(before.cast_signed()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    let second = gateway.session().await;
    echoes(&first).await;
    echoes(&second).await;
    let gauge = Gauge::of(&gateway);
    let after = gauge.zygote().unwrap();
    assert_ne!(before, after);
    // Its guards are still the gateway's own children, which the gateway reaps.
    first.delete().await;
    second.delete().await;
    no_children(&gateway).await;
    until("the end of both guards", || async { gauge.children() == 0 }).await;
}

#[tokio::test]
async fn a_drained_gateway_ends_with_zero() {
    let mut gateway = Gateway::start(&[]).await;
    let session = gateway.session().await;
    let mut call = std::pin::pin!(session.call("sleep", json!({"ms": 500})));
    let first = tokio::time::timeout(Duration::from_millis(200), &mut call).await;
    assert!(first.is_err(), "answered early: {first:?}");
    gateway.signal(Signal::TERM);
    let status = within("the exit", gateway.process.wait());
    let (answer, status) = tokio::join!(call, status);
    assert_eq!(answer["result"]["content"][0]["text"], "slept", "{answer}");
    assert_eq!(status.unwrap().code(), Some(0));
    no_children(&gateway).await;
}

/// Only the operator's configuration decides which program starts.
#[tokio::test]
async fn callers_cannot_choose_what_is_started() {
    let gateway = Gateway::start(&[]).await;
    let evil =
        json!({"command": "/bin/evil", "args": ["--evil"], "env": {"EVIL": "1"}, "cwd": "/evil"});
    let mut message = opening("2025-11-25");
    for (key, value) in evil.as_object().unwrap() {
        message[key] = value.clone();
        message["params"][key] = value.clone();
        message["params"]["clientInfo"][key] = value.clone();
        message["params"]["_meta"][key] = value.clone();
    }
    let mut session = gateway.stranger();
    let request = session
        .http
        .post(format!("{}?command=/bin/evil&EVIL=1", session.url));
    let request = request
        .header("Accept", session.accept)
        .header("Content-Type", "application/json")
        .header("X-Command", "/bin/evil")
        .header("EVIL", "1")
        .body(message.to_string());
    let opened = within("initialize", request.send()).await.unwrap();
    let id = opened.headers()["mcp-session-id"]
        .to_str()
        .unwrap()
        .to_owned();
    session.id = Some(id);
    session.notify("notifications/initialized", json!({})).await;
    let args: Vec<String> =
        serde_json::from_str(&session.text("args", evil.clone()).await).unwrap();
    assert_eq!(args, [child()]);
    let env = session.text("env", json!({})).await;
    assert!(!env.contains("EVIL"), "{env}");
    let cwd = session.text("cwd", json!({})).await;
    assert!(!cwd.contains("evil"), "{cwd}");
}

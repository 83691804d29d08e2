//! Metrics that an operator asks for first, by calls of a real client.

use reqwest::StatusCode;
use serde_json::json;

use crate::{
    auth::external_tokens::bearer,
    support::{
        cluster::Cluster,
        harness::{NEWEST, Session, until},
        oauth_client::{App, gateway},
        served::Served,
    },
};

/// The value of a series: its name with all of its labels.
async fn value(gateway: &Served, series: &str) -> Option<f64> {
    let text = gateway.ops("/metrics").await;
    let mut lines = text.lines();
    let rest = lines.find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
    rest.parse().ok()
}

/// A client of tenant `a` with an access token, and its session at server `x`.
async fn opened(gateway: &Served) -> (App, String, Session) {
    let app = App::public(gateway, "a").await;
    let token = app.tokens().await.text("access_token");
    let url = format!("{}/t/a/x/mcp", gateway.origin());
    let mut session = Session::at(bearer(&token), url);
    session.initialize(NEWEST).await;
    (app, token, session)
}

/// Type of error, tool and method of calls that ended with an error once.
const ERRORS: [(&str, &str, &str); 5] = [
    ("tool_error", r#"gen_ai_tool_name="_OTHER","#, "tools/call"),
    ("-32000", r#"gen_ai_tool_name="_OTHER","#, "tools/call"),
    ("-32602", r#"gen_ai_tool_name="_OTHER","#, "tools/call"),
    ("-32601", "", "_OTHER"),
    (
        "backend_exited",
        r#"gen_ai_tool_name="_OTHER","#,
        "tools/call",
    ),
];

#[tokio::test]
async fn calls_are_measured_by_tenant_server_method_tool_and_error() {
    let gateway = gateway(json!({})).await;
    let (_, _, session) = opened(&gateway).await;
    for _ in 0..3 {
        session.text("echo", json!({"text": "x"})).await;
    }
    session.call("tool_error", json!({})).await;
    session.call("error", json!({})).await;
    session.call("invented", json!({})).await;
    session.ask("invented/method", json!({})).await;
    session.ask("tools/list", json!({})).await;
    session.call("exit", json!({"code": 1})).await;
    let count = async |labels: &str| {
        let name = "mcp_server_operation_duration_seconds_count";
        value(
            &gateway,
            &format!("{name}{{{labels}server=\"x\",tenant=\"a\"}}"),
        )
        .await
    };
    for (labels, wanted) in [
        (r#"mcp_method_name="initialize","#, 1.0),
        (r#"mcp_method_name="tools/list","#, 1.0),
        (
            r#"gen_ai_tool_name="echo",mcp_method_name="tools/call","#,
            3.0,
        ),
    ] {
        assert_eq!(count(labels).await, Some(wanted), "{labels}");
    }
    for (error, tool, method) in ERRORS {
        let labels = format!(r#"error_type="{error}",{tool}mcp_method_name="{method}","#);
        assert_eq!(count(&labels).await, Some(1.0), "{labels}");
    }
}

#[tokio::test]
async fn starts_sessions_and_log_ins_are_measured_without_ids_and_secrets() {
    let gateway = gateway(json!({})).await;
    let (app, token, session) = opened(&gateway).await;
    session
        .text("echo", json!({"text": "canary of an argument"}))
        .await;
    session.call("canary-of-a-tool", json!({})).await;
    session.ask("canary/method", json!({})).await;
    assert_eq!(session.delete().await.status(), StatusCode::NO_CONTENT);
    for series in [
        r#"mcp_server_session_duration_seconds_count{server="x",tenant="a"}"#,
        r#"lockgate_child_start_duration_seconds_count{server="x",tenant="a"}"#,
        r#"lockgate_logins_total{outcome="success"}"#,
        r#"lockgate_oauth_requests_total{endpoint="token",outcome="ok"}"#,
    ] {
        until(series, async || value(&gateway, series).await == Some(1.0)).await;
    }
    let text = gateway.ops("/metrics").await;
    let session = session.id.unwrap();
    for secret in ["canary", "ada", &app.id, &token, &session, &session[..8]] {
        assert!(!text.contains(secret), "{secret}: {text}");
    }
}

#[tokio::test]
async fn operations_of_stores_are_measured_by_outcome() {
    let cluster = Cluster::two().await;
    let token = App::public(&cluster.replicas[0], "a").await.tokens().await;
    let session = cluster.session(0, &token.text("access_token")).await;
    session.text("whoami", json!({})).await;
    let series = |store: &str, operation: &str, error: &str| {
        let name = "db_client_operation_duration_seconds_count";
        format!(r#"{name}{{db_operation_name="{operation}",db_system_name="{store}"{error}}}"#)
    };
    let gateway = &cluster.replicas[0];
    for (store, operation) in [
        ("redis", "insert"),
        ("redis", "beat"),
        ("postgresql", "read"),
    ] {
        let series = series(store, operation, "");
        until(&series, async || value(gateway, &series).await >= Some(1.0)).await;
    }
    cluster.redis.pause();
    let failed = series("redis", "beat", r#",error_type="timeout""#);
    until(&failed, async || value(gateway, &failed).await >= Some(1.0)).await;
}

#[tokio::test]
async fn resumed_and_lost_streams_are_counted() {
    let gateway = gateway(json!({"log": {"events": 16}})).await;
    let (_, _, session) = opened(&gateway).await;
    let before = value(&gateway, "lockgate_events_total")
        .await
        .unwrap_or(0.0);
    let mut stream = session.stream("burst", json!({"n": 4}), json!("t")).await;
    let (first, _) = stream.message().await.unwrap();
    let rest = stream.messages().await;
    assert!(!rest.is_empty());
    let events = value(&gateway, "lockgate_events_total").await.unwrap();
    assert!(events >= before + 4.0, "{before} {events}");
    let bytes = value(&gateway, "lockgate_event_bytes_total").await.unwrap();
    assert!(bytes > events, "{bytes}");
    let kept = value(&gateway, "lockgate_log_bytes").await.unwrap();
    assert!(kept > 0.0 && kept <= bytes, "{kept} of {bytes}");
    assert_eq!(value(&gateway, "lockgate_log_queue").await, Some(0.0));
    assert_eq!(value(&gateway, "lockgate_audit_queue").await, Some(0.0));
    let resumed = session.resume(&first).await.messages().await;
    assert_eq!(resumed.len(), rest.len());
    let (last, _) = &resumed[resumed.len() - 1];
    let ended = session.get(Some(last)).await;
    assert_eq!(ended.status(), StatusCode::NO_CONTENT);
    // Behind the first event of a long stream, events are trimmed.
    let mut long = session.stream("burst", json!({"n": 100}), json!("t")).await;
    let (first, _) = long.message().await.unwrap();
    long.messages().await;
    let lost = session.get(Some(&first)).await;
    assert!(!lost.status().is_success(), "{}", lost.status());
    for outcome in ["continued", "ended", "lost"] {
        let series = format!("lockgate_streams_resumed_total{{outcome=\"{outcome}\"}}");
        assert_eq!(value(&gateway, &series).await, Some(1.0), "{outcome}");
    }
}

//! Messages: accepted and refused ones, ids, progress tokens and clocks.

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use futures_util::{FutureExt, future::BoxFuture};
use reqwest::{Body, Method, Response, StatusCode};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::support::{
    gauges::{OPS, metric},
    harness::{
        Events, Gateway, Legacy, NEWEST, Session, body, child, is_stream, json_of, last, opening,
        text_of, tool_call, until, within,
    },
};

/// Status and JSON-RPC code of a refusal.
async fn refusal(response: Response) -> (u16, i64) {
    let status = response.status().as_u16();
    let code = json_of(response).await["error"]["code"].as_i64();
    (status, code.unwrap_or_default())
}

/// The status, the headers without the date, and the body of a response.
async fn whole(response: Response) -> (StatusCode, String, String) {
    let mut headers = response.headers().clone();
    headers.remove("date");
    (
        response.status(),
        format!("{headers:?}"),
        body(response).await,
    )
}

#[tokio::test]
async fn a_session_id_is_never_the_clients_choice() {
    let gateway = Gateway::start(&[]).await;
    let mut stranger = gateway.stranger();
    let chosen = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
    stranger.id = Some(chosen.to_owned());
    let response = stranger.post(&opening(NEWEST)).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_ne!(response.headers()["mcp-session-id"], chosen);
    let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
    assert_eq!(stranger.post(&ping).await.status(), StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn two_calls_of_one_id_both_get_their_own_answer() {
    let gateway = Gateway::start(&[]).await;
    let session = gateway.session().await;
    let slow = tool_call(json!(1), "sleep", json!({"ms": 200}));
    let fast = tool_call(json!(1), "echo", json!({"text": "fast"}));
    let (slow, fast) = tokio::join!(session.post(&slow), session.post(&fast));
    let (slow, fast) = (last(slow).await, last(fast).await);
    assert_eq!((&slow["id"], &fast["id"]), (&json!(1), &json!(1)));
    assert_eq!((&*text_of(&slow), &*text_of(&fast)), ("slept", "fast"));
}

#[tokio::test]
async fn an_answer_to_nothing_never_reaches_the_child() {
    let gateway = Gateway::start(&[]).await;
    let session = gateway.session().await;
    for id in [json!("ask-0"), json!(0), json!("canary-1")] {
        let result = json!({"jsonrpc": "2.0", "id": id, "result": {"canary": "4711"}});
        let error = json!({"jsonrpc": "2.0", "id": id, "error": {"code": 1, "message": "4711"}});
        for answer in [result, error] {
            let response = session.post(&answer).await;
            assert_eq!(response.status(), StatusCode::ACCEPTED);
            assert_eq!(body(response).await, "");
        }
    }
    assert!(!session.text("received", json!({})).await.contains("4711"));
}

#[tokio::test]
async fn a_second_initialize_changes_nothing() {
    let gateway = Gateway::start(&[]).await;
    let session = gateway.session().await;
    let mut other = opening("2025-03-26");
    other["params"]["clientInfo"]["name"] = json!("canary");
    let refused = refusal(session.post(&other).await).await;
    assert_eq!(refused, (400, -32600));
    let received = session.text("received", json!({})).await;
    assert!(!received.contains("canary"));
    let batch = json!([{"jsonrpc": "2.0", "id": 1, "method": "ping"}]);
    assert_eq!(refusal(session.post(&batch).await).await, (400, -32600));
}

#[tokio::test]
async fn without_a_session_only_initialize_is_taken() {
    let gateway = Gateway::start(&[]).await;
    let stranger = gateway.stranger();
    for message in [
        json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}),
        json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
        json!({"jsonrpc": "2.0", "id": 1, "result": {}}),
    ] {
        assert_eq!(
            refusal(stranger.post(&message).await).await,
            (400, -32600),
            "{message}"
        );
    }
    assert_eq!(refusal(stranger.get(None).await).await, (400, -32600));
    assert_eq!(refusal(stranger.delete().await).await, (400, -32600));
    assert!(gateway.descendants().is_empty());
}

#[tokio::test]
async fn sessions_that_are_gone_look_like_those_that_never_were() {
    let gateway = Gateway::start(&["server.on_loss=end"]).await;
    let (lost, deleted) = (gateway.session().await, gateway.session().await);
    let lived = lost.call("exit", json!({"code": 0})).await;
    assert_eq!(lived["error"]["code"], -31001, "{lived}");
    let mut unknown = gateway.stranger();
    unknown.id = Some("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA".into());
    let mut odd = gateway.stranger();
    odd.id = Some("a b/../\"".into());
    assert_eq!(deleted.delete().await.status(), StatusCode::NO_CONTENT);
    until("both children are gone", || async {
        gateway.descendants().is_empty()
    })
    .await;
    let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
    let posted = whole(unknown.post(&ping).await).await;
    let expected = whole(unknown.get(None).await).await;
    assert_eq!(expected.0, StatusCode::NOT_FOUND);
    assert_eq!(posted.2.replace(r#""id":1"#, r#""id":null"#), expected.2);
    for session in [&lost, &deleted, &unknown, &odd] {
        assert_eq!(whole(session.post(&ping).await).await, posted);
        assert_eq!(whole(session.get(None).await).await, expected);
        assert_eq!(whole(session.get(Some("x")).await).await, expected);
        assert_eq!(whole(session.delete().await).await, expected);
    }
}

#[tokio::test]
async fn an_idle_session_ends_in_time() {
    let gateway = Gateway::start(&["session.idle=300ms"]).await;
    let session = gateway.session().await;
    until("the child is gone", || async {
        gateway.descendants().is_empty()
    })
    .await;
    let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
    assert_eq!(session.post(&ping).await.status(), StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn an_attached_listener_keeps_an_idle_session() {
    let gateway = Gateway::start(&["session.idle=200ms", "stream.keep_alive=100ms"]).await;
    let session = gateway.session().await;
    let mut listener = session.listen().await;
    for _ in 0..6 {
        assert!(listener.next().await.is_some());
    }
    assert_eq!(session.text("echo", json!({"text": "x"})).await, "x");
}

/// The idle time begins with the end of the last use, not with the last request.
#[tokio::test]
async fn a_session_is_idle_from_the_end_of_its_last_call_and_of_its_listener() {
    let (idle, least) = (Duration::from_secs(2), Duration::from_millis(1700));
    let lives = async |use_it: &dyn Fn(Session) -> BoxFuture<'static, ()>| {
        let gateway = Gateway::start(&["session.idle=2s", "stream.keep_alive=300ms"]).await;
        let began = Instant::now();
        use_it(gateway.session().await).await;
        assert!(began.elapsed() > idle);
        let since = Instant::now();
        until("the session ends", || async {
            gateway.descendants().is_empty()
        })
        .await;
        assert!(since.elapsed() >= least, "{:?}", since.elapsed());
    };
    let calls = |session: Session| {
        async move { _ = session.text("sleep", json!({"ms": 2500})).await }.boxed()
    };
    let listens = |session: Session| {
        let listen = async move {
            let mut listener = session.listen().await;
            for _ in 0..9 {
                assert!(listener.next().await.is_some());
            }
        };
        listen.boxed()
    };
    tokio::join!(lives(&calls), lives(&listens));
}

/// Sessions of `/sse` are unknown to `/mcp`, and the reverse.
#[tokio::test]
async fn a_session_is_of_the_transport_that_began_it() {
    let gateway = Gateway::start(&[]).await;
    let session = gateway.session().await;
    let mut legacy = Legacy::connect(&gateway, None).await;
    legacy.initialize().await;
    let call = tool_call(json!(7), "counter", json!({}));
    let (path, own) = legacy.endpoint.rsplit_once('=').unwrap();
    let (endpoint, own) = (
        format!("{path}={}", session.id.as_deref().unwrap()),
        own.to_owned(),
    );
    let right = std::mem::replace(&mut legacy.endpoint, endpoint);
    assert_eq!(legacy.post(&call).await.status(), StatusCode::NOT_FOUND);
    let mut other = session.again();
    other.id = Some(own);
    assert_eq!(other.post(&call).await.status(), StatusCode::NOT_FOUND);
    assert_eq!(other.get(None).await.status(), StatusCode::NOT_FOUND);
    assert_eq!(other.delete().await.status(), StatusCode::NOT_FOUND);
    legacy.endpoint = right;
    assert_eq!(legacy.post(&call).await.status(), StatusCode::ACCEPTED);
    let (_, first) = legacy.events.message().await.unwrap();
    assert_eq!(text_of(&first), "1");
    assert_eq!(session.text("counter", json!({})).await, "1");
}

/// The bounds of a session's record: client information, one URI, and subscriptions.
#[tokio::test]
async fn the_record_of_a_session_is_bounded() {
    let gateway = Gateway::start(&[]).await;
    let mut large = opening(NEWEST);
    large["params"]["clientInfo"]["title"] = "x".repeat(65 << 10).into();
    let answer = gateway.stranger().post(&large).await;
    assert_eq!(refusal(answer).await, (400, -32600));
    let mut legacy = Legacy::connect(&gateway, None).await;
    assert_eq!(legacy.post(&large).await.status(), StatusCode::BAD_REQUEST);
    legacy.initialize().await;
    let session = gateway.session().await;
    let code = async |uri: String| {
        let answer = session
            .ask("resources/subscribe", json!({"uri": uri}))
            .await;
        answer["error"]["code"].clone()
    };
    assert_eq!(
        code(format!("test://{}", "x".repeat(8 << 10))).await,
        -32602
    );
    // The quotes counted.
    let longest = format!("test://{}", "x".repeat((8 << 10) - 7));
    assert_eq!(code(format!("{longest}x")).await, -32602);
    assert_eq!(code(longest.clone()).await, Value::Null);
    session
        .ask("resources/unsubscribe", json!({"uri": longest}))
        .await;
    for number in 0..1000 {
        assert_eq!(code(format!("test://{number}")).await, Value::Null);
    }
    assert_eq!(code("test://1000".into()).await, -32602);
    session
        .ask("resources/unsubscribe", json!({"uri": "test://7"}))
        .await;
    assert_eq!(code("test://1000".into()).await, Value::Null);
}

#[tokio::test]
async fn the_uris_of_a_session_are_bounded_together() {
    let gateway = Gateway::start(&[]).await;
    let session = gateway.session().await;
    let uri = |number: usize| json!({"uri": format!("test://{number:02}{}", "x".repeat(8000))});
    let code = async |method: &str, number| {
        let answer = session.ask(method, uri(number)).await;
        answer["error"]["code"].clone()
    };
    for number in 0..32 {
        assert_eq!(code("resources/subscribe", number).await, Value::Null);
    }
    assert_eq!(code("resources/subscribe", 32).await, -32602);
    // An end makes room, and so does a repetition, which replaces what it repeats.
    assert_eq!(code("resources/unsubscribe", 7).await, Value::Null);
    assert_eq!(code("resources/subscribe", 8).await, Value::Null);
    assert_eq!(code("resources/subscribe", 32).await, Value::Null);
    assert_eq!(code("resources/subscribe", 33).await, -32602);
}

/// Methods of requests without an id, and methods of notifications with one.
#[tokio::test]
async fn messages_of_the_wrong_kind_reach_no_child() {
    let gateway = Gateway::start(&[]).await;
    let session = gateway.session().await;
    let hidden = json!({"requestId": 4711, "name": "counter", "uri": "test://4711"});
    for name in [
        "initialize",
        "tools/call",
        "logging/setLevel",
        "tasks/cancel",
    ] {
        session.notify(name, hidden.clone()).await;
    }
    for name in ["notifications/cancelled", "notifications/progress"] {
        let answer = session.ask(name, hidden.clone()).await;
        assert_eq!(answer["error"]["code"], -32601, "{answer}");
    }
    let received = session.text("received", json!({})).await;
    assert!(!received.contains("4711"), "{received}");
    session
        .notify("notifications/of_ours", json!({"n": 4711}))
        .await;
    let received = session.text("received", json!({})).await;
    assert!(received.contains("notifications/of_ours"), "{received}");
}

#[tokio::test]
async fn an_unknown_revision_in_the_header_is_refused() {
    let gateway = Gateway::start(&[]).await;
    let mut session = gateway.session().await;
    let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
    for (revision, status) in [
        ("2024-01-01", 400),
        ("nonsense", 400),
        ("2025-11-25, 2025-06-18", 400),
        ("2025-06-18", 200),
        // Two equal lines, as they may arrive.
        ("2025-11-25, 2025-11-25", 200),
    ] {
        session.revision = Some(revision.to_owned());
        assert_eq!(
            session.post(&ping).await.status().as_u16(),
            status,
            "{revision}"
        );
        let is_refused = session.get(None).await.status() == StatusCode::BAD_REQUEST;
        assert_eq!(is_refused, status == 400, "{revision}");
        if status == 400 {
            let refused = session.delete().await.status();
            assert_eq!(refused, StatusCode::BAD_REQUEST, "{revision}");
        }
    }
    session.revision = None;
    assert_eq!(session.post(&ping).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_body_beyond_the_limit_is_refused() {
    let gateway = Gateway::start(&[]).await;
    let session = gateway.session().await;
    let body = vec![b' '; (4 << 20) + 1];
    let before = memory(&gateway);
    let chunked = body
        .chunks(60_000)
        .map(Bytes::copy_from_slice)
        .map(Ok::<_, Infallible>);
    let chunked = Body::wrap_stream(futures_util::stream::iter(chunked.collect::<Vec<_>>()));
    for body in [Body::from(body.clone()), chunked] {
        let request = session
            .request(Method::POST)
            .header("Content-Type", "application/json");
        let request = request.header("Accept", session.accept).body(body);
        let response = within("a refusal", request.send()).await.unwrap();
        assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!(response.headers()["connection"], "close");
    }
    let grown = memory(&gateway).saturating_sub(before);
    assert!(grown <= 8 << 10, "{grown} KiB");
    assert_eq!(session.text("echo", json!({"text": "x"})).await, "x");
}

#[tokio::test]
async fn a_body_of_too_many_parts_is_refused() {
    let gateway = Gateway::start(&[]).await;
    let session = gateway.session().await;
    for (length, size, status) in [
        (8 << 10, 1, StatusCode::OK),
        (9 << 10, 1, StatusCode::BAD_REQUEST),
        (4 << 20, 320, StatusCode::OK),
        (4 << 20, 224, StatusCode::BAD_REQUEST),
    ] {
        let mut body = br#"{"jsonrpc":"2.0","id":7,"method":"ping"}"#.to_vec();
        body.resize(length, b' ');
        let parts = body.chunks(size).map(Bytes::copy_from_slice);
        let parts = parts.map(Ok::<_, Infallible>).collect::<Vec<_>>();
        let request = session.request(Method::POST);
        let request = request.header("Content-Type", "application/json");
        let request = request.header("Accept", session.accept);
        let request = request.body(Body::wrap_stream(futures_util::stream::iter(parts)));
        let response = within("a response", request.send()).await.unwrap();
        assert_eq!(response.status(), status, "{length} bytes, {size} each");
        let is_refused = status != StatusCode::OK;
        let closes = response.headers().get("connection");
        assert_eq!(closes.is_some_and(|value| value == "close"), is_refused);
        let text = within("a body", response.text()).await.unwrap();
        assert_eq!(text.contains("too many parts"), is_refused, "{text}");
    }
}

/// Resident memory of the gateway, in KiB.
fn memory(gateway: &Gateway) -> u64 {
    let pid = gateway.process.id().unwrap();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[tokio::test]
async fn invalid_messages_are_refused_with_the_right_code() {
    let gateway = Gateway::start(&[]).await;
    let session = gateway.session().await;
    let deep = |depth: usize| {
        let (open, close) = ("[".repeat(depth), "]".repeat(depth));
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"ping","params":{{"a":{open}{close}}}}}"#)
    };
    let whole = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    let utf16: Vec<u8> = whole.encode_utf16().flat_map(u16::to_le_bytes).collect();
    for (body, code) in [
        (deep(200).into_bytes(), -32700),
        (utf16, -32700),
        (format!("\u{feff}{whole}").into_bytes(), -32700),
        (format!("{whole} x").into_bytes(), -32700),
        (format!("{whole}{whole}").into_bytes(), -32700),
        (b"".to_vec(), -32700),
        (
            b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xff\"}".to_vec(),
            -32700,
        ),
        (
            br#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#.to_vec(),
            -32600,
        ),
        (br#"{"id":1,"method":"ping"}"#.to_vec(), -32600),
        (br#"{"jsonrpc":"2.0","id":1}"#.to_vec(), -32600),
        (br#"{"jsonrpc":"2.0","id":1,"method":7}"#.to_vec(), -32600),
        (
            br#"{"jsonrpc":"2.0","id":1,"method":"ping","params":7}"#.to_vec(),
            -32600,
        ),
        (
            br#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#.to_vec(),
            -32600,
        ),
        (
            br#"{"jsonrpc":"2.0","id":true,"method":"ping"}"#.to_vec(),
            -32600,
        ),
        (
            br#"{"jsonrpc":"2.0","id":{},"method":"ping"}"#.to_vec(),
            -32600,
        ),
        (
            br#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#.to_vec(),
            -32600,
        ),
        (b"7".to_vec(), -32600),
    ] {
        let name = String::from_utf8_lossy(&body).into_owned();
        let response = session.post_text(body).await;
        assert_eq!(refusal(response).await, (400, code), "{name}");
    }
    assert_eq!(session.post_text(deep(100)).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn depth_128_is_the_last_that_is_taken() {
    let gateway = Gateway::start(&[]).await;
    let session = gateway.session().await;
    let of = |depth: usize| {
        let (open, close) = ("[".repeat(depth - 2), "]".repeat(depth - 2));
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"ping","params":{{"a":{open}{close}}}}}"#)
    };
    assert_eq!(session.post_text(of(128)).await.status(), StatusCode::OK);
    let (status, code) = refusal(session.post_text(of(129)).await).await;
    assert!(status == 400 && [-32700, -32600].contains(&code), "{code}");
}

#[tokio::test]
async fn objects_that_are_read_have_at_most_10_000_members() {
    let gateway = Gateway::start(&[]).await;
    let session = gateway.session().await;
    let keys = |count: usize| -> String { (0..count).map(|at| format!(r#""k{at}":0,"#)).collect() };
    let beside = |count: usize| {
        format!(
            r#"{{{}"jsonrpc":"2.0","id":1,"method":"ping"}}"#,
            keys(count - 3)
        )
    };
    let params = |members: String| {
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"ping","params":{{{members}}}}}"#)
    };
    let inside = |count: usize| params(format!(r#"{}"z":0"#, keys(count - 1)));
    let meta = |count: usize| params(format!(r#""_meta":{{{}"z":0}}"#, keys(count - 1)));
    for of in [&beside as &dyn Fn(usize) -> String, &inside, &meta] {
        assert_eq!(session.post_text(of(10_000)).await.status(), StatusCode::OK);
        let refused = refusal(session.post_text(of(10_001)).await).await;
        assert_eq!(refused, (400, -32600));
        let broken = of(10_001).replace("\"k9997\":0", "\"k9997\":x");
        assert_eq!(refusal(session.post_text(broken).await).await.1, -32700);
    }
    // Those of arguments are the server's.
    let arguments = format!(r#"{{{}"text":"x"}}"#, keys(20_000));
    let call = format!(
        r#"{{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{{"name":"echo","arguments":{arguments}}}}}"#
    );
    assert_eq!(session.post_text(call).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn batches_are_part_of_one_revision_only() {
    let gateway = Gateway::start(&["server.reply.sse_after=10s"]).await;
    let ping = |id: Value| json!({"jsonrpc": "2.0", "id": id, "method": "ping"});
    let batch = json!([ping(json!(1)), tool_call(json!("b"), "echo", json!({"text": "x"})),
        {"jsonrpc": "2.0", "method": "notifications/x"}]);
    for revision in ["2025-06-18", NEWEST] {
        let session = gateway.initialize(revision).await;
        assert_eq!(refusal(session.post(&batch).await).await, (400, -32600));
    }
    let session = gateway.initialize("2025-03-26").await;
    let response = session.post(&batch).await;
    assert!(!is_stream(&response));
    let answers = json_of(response).await;
    assert_eq!(answers.as_array().unwrap().len(), 2);
    let of = |id: Value| {
        answers
            .as_array()
            .unwrap()
            .iter()
            .find(|one| one["id"] == id)
            .unwrap()
    };
    assert_eq!(of(json!(1))["result"], json!({}));
    assert_eq!(text_of(of(json!("b"))), "x");
    let notes = json!([{"jsonrpc": "2.0", "method": "notifications/x"}]);
    assert_eq!(session.post(&notes).await.status(), StatusCode::ACCEPTED);
    let many = |count: u64| (0..count).map(|id| ping(json!(id))).collect::<Value>();
    assert_eq!(session.post(&many(100)).await.status(), StatusCode::OK);
    for bad in [many(101), json!([])] {
        assert_eq!(refusal(session.post(&bad).await).await, (400, -32600));
    }
}

/// A batch does not evade the check of the revision.
#[tokio::test]
async fn a_batch_with_a_modern_request_is_refused_as_a_whole() {
    let gateway = Gateway::start(&[]).await;
    let session = gateway.initialize("2025-03-26").await;
    let mut modern = tool_call(json!(1), "counter", json!({}));
    let key = "io.modelcontextprotocol/protocolVersion";
    modern["params"]["_meta"] = json!({key: "2026-07-28"});
    let legacy = tool_call(json!(2), "counter", json!({}));
    for body in [json!([modern]), json!([legacy, modern])] {
        assert_eq!(refusal(session.post(&body).await).await, (400, -32600));
    }
    // Its header names another revision.
    let refused = refusal(session.post(&modern).await).await;
    assert_eq!(refused, (400, -32020));
    assert_eq!(
        session.text("counter", json!({})).await,
        "1",
        "nothing was sent"
    );
}

/// Clients of both eras send some keys of 2026-07-28 in sessions, too.
#[tokio::test]
async fn a_request_that_names_no_revision_is_of_its_session() {
    let key = |key: &str| format!("io.modelcontextprotocol/{key}");
    for (name, value) in [
        ("logLevel", json!("debug")),
        ("clientInfo", json!({"name": "it", "version": "1"})),
        ("clientCapabilities", json!({})),
    ] {
        for era in ["legacy", "modern"] {
            let variables = [&*format!("CHILD_ERA={era}")];
            let gateway = Gateway::of(&[], &variables, &[&child()]).await;
            let mut opening = opening(NEWEST);
            opening["params"]["_meta"] = json!({ key(name): value });
            let mut session = gateway.stranger();
            let opened = session.post(&opening).await;
            assert_eq!(opened.status(), StatusCode::OK, "{name}");
            session.id = Some(opened.headers()["mcp-session-id"].to_str().unwrap().into());
            let mut call = tool_call(json!(2), "echo", json!({"text": "x"}));
            call["params"]["_meta"] = json!({ key(name): value });
            for revision in [None, Some(NEWEST)] {
                session.revision = revision.map(str::to_owned);
                assert_eq!(
                    text_of(&last(session.post(&call).await).await),
                    "x",
                    "{name}"
                );
            }
            // The revision alone is what the header has to agree with.
            call["params"]["_meta"][key("protocolVersion")] = json!("2026-07-28");
            assert_eq!(refusal(session.post(&call).await).await, (400, -32020));
            session.id = None;
            call["params"]["_meta"] = json!({ key(name): value });
            assert_eq!(refusal(session.post(&call).await).await, (400, -32600));
        }
    }
}

#[tokio::test]
async fn a_slow_batch_is_one_stream_with_every_answer() {
    let gateway = Gateway::start(&["server.reply.sse_after=20ms"]).await;
    let session = gateway.initialize("2025-03-26").await;
    let batch = json!([
        tool_call(json!(1), "sleep", json!({"ms": 150})),
        tool_call(json!(2), "echo", json!({"text": "x"})),
        tool_call(json!(3), "hang", json!({})),
    ]);
    let mut stream = Events::of(session.post(&batch).await);
    let ids = [
        stream.message().await.unwrap(),
        stream.message().await.unwrap(),
    ];
    assert_eq!((&ids[0].1["id"], &ids[1].1["id"]), (&json!(2), &json!(1)));
    session
        .notify("notifications/cancelled", json!({"requestId": 3}))
        .await;
    assert_eq!(stream.messages().await, []);
}

#[tokio::test]
async fn a_body_that_does_not_say_json_is_never_executed() {
    let gateway = Gateway::start(&[]).await;
    let session = gateway.session().await;
    let call = tool_call(json!(1), "counter", json!({})).to_string();
    for content_type in [
        None,
        Some("text/plain"),
        Some("application/x-www-form-urlencoded"),
        Some("multipart/form-data; boundary=x"),
        Some("application/jsonx"),
    ] {
        let mut request = session
            .request(Method::POST)
            .header("Accept", session.accept);
        if let Some(content_type) = content_type {
            request = request.header("Content-Type", content_type);
        }
        let response = within("a refusal", request.body(call.clone()).send()).await;
        let status = response.unwrap().status();
        assert_eq!(
            status,
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "{content_type:?}"
        );
    }
    assert_eq!(session.text("counter", json!({})).await, "1");
}

#[tokio::test]
async fn an_unknown_notification_is_taken_in_silence() {
    let gateway = Gateway::start(&[]).await;
    let session = gateway.session().await;
    let note = json!({"jsonrpc": "2.0", "method": "notifications/x-unknown", "params": {"a": 1}});
    let response = session.post(&note).await;
    assert_eq!(response.status(), StatusCode::ACCEPTED);
    assert_eq!(body(response).await, "");
    assert!(
        session
            .text("received", json!({}))
            .await
            .contains("x-unknown")
    );
}

#[tokio::test]
async fn a_uri_of_thirty_thousand_commas_takes_no_time() {
    let gateway = Gateway::start(&[]).await;
    let session = gateway.session().await;
    let uri = format!("test://{}{}", ",".repeat(30_000), "a".repeat(34_000));
    let mut times = Vec::new();
    for _ in 0..3 {
        let began = Instant::now();
        let answer = session
            .ask("resources/read", json!({"uri": uri.clone()}))
            .await;
        times.push(began.elapsed());
        assert_eq!(answer["result"]["contents"][0]["uri"], uri);
    }
    times.sort();
    assert!(times[1] < Duration::from_millis(250), "{times:?}");
}

#[tokio::test]
async fn accept_and_mode_decide_between_json_and_a_stream() {
    let echo = json!({"text": "x"});
    for (mode, accept, expected) in [
        ("auto", "application/json, text/event-stream", Some(false)),
        ("auto", "text/event-stream", Some(true)),
        ("auto", "application/json", Some(false)),
        ("auto", "*/*", Some(false)),
        ("sse", "application/json, text/event-stream", Some(true)),
        ("sse", "application/json", Some(false)),
        ("json", "application/json, text/event-stream", Some(false)),
        ("json", "text/event-stream", Some(true)),
        ("json", "text/html", None),
    ] {
        let mode = format!("server.reply.mode={mode}");
        let gateway = Gateway::start(&[&mode, "server.reply.sse_after=10s"]).await;
        let mut session = gateway.session().await;
        session.accept = accept;
        let response = session.begin("echo", echo.clone()).await;
        let Some(is_sse) = expected else {
            assert_eq!(response.status(), StatusCode::NOT_ACCEPTABLE);
            continue;
        };
        assert_eq!(is_stream(&response), is_sse, "{mode} {accept}");
        assert_eq!(text_of(&last(response).await), "x");
    }
}

/// A response that comes late, or after another message, becomes a stream.
#[tokio::test]
async fn a_response_that_takes_its_time_becomes_a_stream() {
    let gateway = Gateway::start(&["server.reply.sse_after=50ms"]).await;
    let session = gateway.session().await;
    let late = session.begin("sleep", json!({"ms": 300})).await;
    assert!(is_stream(&late));
    assert_eq!(text_of(&last(late).await), "slept");
    let json = Gateway::start(&["server.reply.mode=json"]).await;
    let session = json.session().await;
    let mut message = tool_call(json!(1), "slow", json!({"n": 30, "ms": 10}));
    message["params"]["_meta"] = json!({"progressToken": 1});
    let response = session.post(&message).await;
    assert!(!is_stream(&response));
    assert_eq!(text_of(&json_of(response).await), "done");
}

#[tokio::test]
async fn ids_come_back_as_they_were_written() {
    let gateway = Gateway::start(&[]).await;
    let session = gateway.session().await;
    for id in [
        "1",
        "\"1\"",
        "0",
        "-7",
        "9007199254740993",
        "123456789012345678901234567890",
        "\"\"",
        "\"\\u0061\\\"\\/b\"",
        "\"\u{1f600}\u{2028}\"",
    ] {
        for method in ["tools/list", "ping", "no/such"] {
            let text = format!(r#"{{"jsonrpc":"2.0","method":"{method}","id":{id}}}"#);
            let answer = body(session.post_text(text).await).await;
            assert!(answer.contains(&format!("\"id\":{id}")), "{answer}");
        }
    }
}

#[tokio::test]
async fn progress_tokens_come_back_as_they_were() {
    let gateway = Gateway::start(&[]).await;
    let session = gateway.session().await;
    for token in [json!("t\u{2028}\""), json!(7), json!("7"), json!(-1)] {
        let args = json!({"n": 2, "ms": 1});
        let messages = session
            .stream("slow", args, token.clone())
            .await
            .messages()
            .await;
        assert_eq!(messages.len(), 3);
        assert_eq!(messages[0].1["params"]["progressToken"], token);
    }
    let (one, two) = tokio::join!(
        session.stream("slow", json!({"n": 5, "ms": 9}), json!("same")),
        session.stream("slow", json!({"n": 7, "ms": 8}), json!("same"))
    );
    for (mut stream, count) in [(one, 5), (two, 7)] {
        let messages = stream.messages().await;
        assert_eq!(messages.len(), count + 1);
        assert_eq!(messages[0].1["params"]["total"], count);
    }
}

/// Makes a tool ask, answers, and returns the question and the answer that the child got.
async fn round(session: &Session, kind: &str, answer: &Value) -> (Value, Value) {
    let args = json!({"kind": kind, "message": "who?"});
    let mut stream = Events::of(session.begin("ask", args).await);
    let (_, asked) = stream.message().await.unwrap();
    let mut reply = answer.clone();
    reply["jsonrpc"] = json!("2.0");
    reply["id"] = asked["id"].clone();
    assert_eq!(session.post(&reply).await.status(), StatusCode::ACCEPTED);
    let messages = stream.messages().await;
    assert_eq!(messages.len(), 1);
    let got = serde_json::from_str(&text_of(&messages[0].1)).unwrap();
    // A second answer to the same question is dropped.
    assert_eq!(session.post(&reply).await.status(), StatusCode::ACCEPTED);
    (asked, got)
}

#[tokio::test]
async fn what_the_child_asks_comes_back_under_its_own_id() {
    let gateway = Gateway::start(&[]).await;
    let session = gateway.session().await;
    let result = json!({"result": {"action": "accept", "content": {"name": "Eve\u{2028}"}}});
    let error = json!({"error": {"code": -1, "message": "no", "data": [1.0, 2e3]}});
    for (number, (kind, method, answer)) in [
        ("elicitation", "elicitation/create", &result),
        ("sampling", "sampling/createMessage", &error),
        ("roots", "roots/list", &result),
    ]
    .into_iter()
    .enumerate()
    {
        let (asked, got) = round(&session, kind, answer).await;
        assert_eq!(asked["method"], method);
        let own = json!(format!("ask-{number}"));
        assert_ne!(asked["id"], own, "the child's id is not shown");
        assert_eq!(got["id"], own);
        assert_eq!(got["result"], answer["result"]);
        assert_eq!(got["error"], answer["error"]);
    }
    let received = session.text("received", json!({})).await;
    assert_eq!(received.matches("ask-0").count(), 1);
}

/// 2025-11-25 transports, "stdio": "The client MUST NOT write anything to the server's stdin that is not a
/// valid MCP message."
#[tokio::test]
async fn an_answer_of_a_wrong_shape_reaches_no_child() {
    let gateway = Gateway::start(&[]).await;
    let session = gateway.session().await;
    for wrong in [
        json!({"result": "4711"}),
        json!({"result": null}),
        json!({"result": [4711]}),
        json!({"error": {}}),
        json!({"error": {"code": "4711", "message": "m"}}),
        json!({"error": {"code": 1.5, "message": "4711"}}),
        json!({"error": {"code": 4711}}),
    ] {
        let mut stream = Events::of(session.begin("ask", json!({"kind": "roots"})).await);
        let (_, asked) = stream.message().await.unwrap();
        let mut answer = wrong.clone();
        (answer["jsonrpc"], answer["id"]) = (json!("2.0"), asked["id"].clone());
        let refused = refusal(session.post(&answer).await).await;
        assert_eq!(refused, (400, -32600), "{wrong}");
        // Its child does not wait any longer.
        let (_, ended) = stream.message().await.unwrap();
        assert!(text_of(&ended).contains("-32603"), "{wrong}: {ended}");
    }
    let received = session.text("received", json!({})).await;
    assert!(!received.contains("4711"), "{received}");
}

/// 2025-03-26 transports, "Sending Messages to the Server" 4.
#[tokio::test]
async fn an_array_of_responses_is_taken() {
    let gateway = Gateway::start(&[]).await;
    let session = gateway.initialize("2025-03-26").await;
    let ask = async || {
        let mut stream = Events::of(session.begin("ask", json!({"kind": "roots"})).await);
        let (_, asked) = stream.message().await.unwrap();
        (stream, asked["id"].clone())
    };
    let ends = async |mut stream: Events, text: &str| {
        let (_, answer) = stream.message().await.unwrap();
        assert!(text_of(&answer).contains(text), "{answer}");
        assert_eq!(stream.messages().await, []);
    };
    let right = |id: &Value| json!({"jsonrpc": "2.0", "id": id, "result": {"roots": []}});
    let ((one, first), (two, second)) = (ask().await, ask().await);
    let taken = session.post(&json!([right(&first), right(&second)])).await;
    assert_eq!(taken.status(), StatusCode::ACCEPTED);
    assert_eq!(body(taken).await, "");
    ends(one, "roots").await;
    ends(two, "roots").await;
    // One of a wrong shape makes the array a refused one, whose other items are taken.
    let ((one, first), (two, second)) = (ask().await, ask().await);
    let wrong = json!({"jsonrpc": "2.0", "id": first, "result": null});
    let refused = session.post(&json!([wrong, right(&second)])).await;
    assert_eq!(refusal(refused).await, (400, -32600));
    ends(one, "-32603").await;
    ends(two, "roots").await;
}

/// 2025-03-26 transports, "Sending Messages to the Server" 4: "If the server cannot accept the input, it MUST
/// return an HTTP error status code."
#[tokio::test]
async fn a_batch_that_the_queue_has_no_room_for_is_refused() {
    let gateway = Gateway::start(&[]).await;
    let session = gateway.initialize("2025-03-26").await;
    assert_eq!(session.text("stop_reading", json!({})).await, "stopped");
    let note = |bytes: usize| {
        let text = "x".repeat(bytes);
        json!({"jsonrpc": "2.0", "method": "notifications/x", "params": {"t": text}})
    };
    for _ in 0..2 {
        let taken = session.post(&note(3 << 20)).await;
        assert_eq!(taken.status(), StatusCode::ACCEPTED);
    }
    // The first item fills the queue.
    let refused = session.post(&json!([note(3 << 20), note(1)])).await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
}

/// The answer of a batch with requests cannot say it.
#[tokio::test]
async fn a_notification_that_is_refused_beside_requests_is_counted() {
    let gateway = Gateway::start(&[OPS]).await;
    let session = gateway.initialize("2025-03-26").await;
    assert_eq!(session.text("stop_reading", json!({})).await, "stopped");
    let note = |bytes: usize| {
        let text = "x".repeat(bytes);
        json!({"jsonrpc": "2.0", "method": "notifications/x", "params": {"t": text}})
    };
    for _ in 0..2 {
        let taken = session.post(&note(3 << 20)).await;
        assert_eq!(taken.status(), StatusCode::ACCEPTED);
    }
    let refused = "lockgate_messages_dropped_total{reason=\"refused\"}";
    assert_eq!(metric(&gateway, refused).await, 0);
    let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
    let answered = session.post(&json!([note(3 << 20), note(1), ping])).await;
    assert_eq!(answered.status(), StatusCode::OK);
    assert_eq!(last(answered).await[0]["id"], 1);
    assert_eq!(metric(&gateway, refused).await, 1);
}

#[tokio::test]
async fn an_answer_of_another_session_is_not_taken() {
    let gateway = Gateway::start(&[]).await;
    let (session, other) = (gateway.session().await, gateway.session().await);
    let args = json!({"kind": "elicitation", "message": "who?"});
    let mut stream = Events::of(session.begin("ask", args).await);
    let (_, asked) = stream.message().await.unwrap();
    let of = |name: &str| json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"by": name}});
    assert_eq!(other.post(&of("4711")).await.status(), StatusCode::ACCEPTED);
    session.post(&of("own")).await;
    let (_, answer) = stream.message().await.unwrap();
    assert!(text_of(&answer).contains("own"));
    for session in [&session, &other] {
        assert!(!session.text("received", json!({})).await.contains("4711"));
    }
}

/// The gateway answers an ask that no stream can carry (`clocks.ask_unclaimed`).
#[tokio::test]
async fn an_ask_that_nobody_hears_is_refused_in_time() {
    let gateway = Gateway::start(&["server.clocks.ask_unclaimed=150ms"]).await;
    let mut session = gateway.session().await;
    session.accept = "application/json";
    let answer = session.call("ask", json!({"kind": "sampling"})).await;
    let got: Value = serde_json::from_str(&text_of(&answer)).unwrap();
    assert_eq!(got["id"], "ask-0");
    assert_eq!(got["error"]["code"], -32603);
}

/// The deadline of a call is suspended while its child waits for the client.
#[tokio::test]
async fn an_ask_stops_the_clock_of_its_call() {
    let gateway = Gateway::start(&["server.clocks.call=300ms", "stream.keep_alive=100ms"]).await;
    let session = gateway.session().await;
    let args = json!({"kind": "elicitation", "message": "who?"});
    let mut stream = Events::of(session.begin("ask", args).await);
    let (_, asked) = stream.message().await.unwrap();
    for _ in 0..6 {
        assert!(stream.next().await.unwrap().comment.is_some());
    }
    let reply = json!({"jsonrpc": "2.0", "id": asked["id"], "result": {}});
    session.post(&reply).await;
    assert!(text_of(&stream.message().await.unwrap().1).contains("ask-0"));
}

/// An ask on the listener suspends the deadline of its call, too.
#[tokio::test]
async fn an_ask_on_the_listener_stops_the_clock_of_its_call() {
    let gateway = Gateway::start(&["server.clocks.call=1s", "server.reply.mode=json"]).await;
    let session = gateway.session().await;
    let mut listener = session.listen().await;
    let args = json!({"kind": "elicitation", "message": "who?"});
    let answer = async {
        let (_, asked) = listener.message().await.unwrap();
        for _ in 0..2 {
            session.text("sleep", json!({"ms": 700})).await;
        }
        let reply = json!({"jsonrpc": "2.0", "id": asked["id"], "result": {}});
        session.post(&reply).await;
    };
    let (greeted, ()) = tokio::join!(session.call("ask", args), answer);
    assert!(text_of(&greeted).contains("ask-0"), "{greeted}");
    // After the answer deadlines run again.
    let late = session.call("hang", json!({})).await;
    assert_eq!(late["error"]["code"], -31002, "{late}");
}

/// An overdue call: −31002 for the client, a cancellation for the child, which survives.
#[tokio::test]
async fn an_overdue_call_ends_alone() {
    let gateway = Gateway::start(&["server.clocks.call=200ms"]).await;
    let session = gateway.session().await;
    let pid = session.text("whoami", json!({})).await;
    let answer = session.call("hang", json!({})).await;
    assert_eq!(answer["error"]["code"], -31002, "{answer}");
    assert_eq!(answer["error"]["data"]["reason"], "timeout");
    let cancelled = session.text("cancelled", json!({})).await;
    assert!(cancelled.contains("took too long"), "{cancelled}");
    assert_eq!(session.text("whoami", json!({})).await, pid);
}

/// Progress restarts the deadline of a call.
#[tokio::test]
async fn progress_keeps_a_call_alive() {
    let gateway = Gateway::start(&["server.clocks.call=700ms"]).await;
    let session = gateway.session().await;
    let args = json!({"n": 12, "ms": 100});
    let messages = session.stream("slow", args, json!(1)).await;
    let messages = { messages }.messages().await;
    assert_eq!(text_of(&messages.last().unwrap().1), "done");
}

/// Queued writes to a child are bounded. A shared child that does not read is ended, because no
/// ping would notice it.
#[tokio::test]
async fn writes_to_a_child_that_does_not_read_are_bounded() {
    for isolation in ["session", "tenant"] {
        let set = format!("server.isolation={isolation}");
        let gateway = Gateway::start(&[&set]).await;
        let session = gateway.session().await;
        assert_eq!(session.text("stop_reading", json!({})).await, "stopped");
        let before = memory(&gateway);
        let (children, text) = (gateway.descendants(), "x".repeat(3 << 20));
        let note = json!({"jsonrpc": "2.0", "method": "notifications/x", "params": {"t": text}});
        let mut taken = 0;
        while session.post(&note).await.status() == StatusCode::ACCEPTED {
            taken += 1;
            assert!(taken < 12, "{isolation}");
        }
        let grown = memory(&gateway) - before;
        assert!(grown < 80 << 10, "{isolation}: {grown} KiB");
        if isolation == "tenant" {
            until("the child is ended", || async {
                gateway
                    .descendants()
                    .iter()
                    .all(|pid| !children.contains(pid))
            })
            .await;
        }
    }
}

#[tokio::test]
async fn a_child_that_answers_no_ping_after_an_overdue_call_is_ended() {
    let gateway = Gateway::start(&["server.clocks.call=150ms"]).await;
    let session = gateway.session().await;
    assert_eq!(session.text("stop_reading", json!({})).await, "stopped");
    let answer = session.call("echo", json!({"text": "x"})).await;
    assert_eq!(answer["error"]["code"], -31002, "{answer}");
    let before = gateway.descendants();
    assert!(!before.is_empty());
    until("the child is ended", || async {
        !gateway.descendants().iter().any(|pid| before.contains(pid))
    })
    .await;
    let text = session.text("echo", json!({"text": "again"})).await;
    assert_eq!(text, "again", "another child");
}

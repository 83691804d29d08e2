//! Sentences of the specification about sessions and their messages, each named where it is tested.

use std::{collections::BTreeSet, time::Duration};

use reqwest::StatusCode;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::{io::AsyncWriteExt, net::TcpStream};

use crate::auth::external_tokens::bearer;
use crate::support::{
    harness::{
        Events, NEWEST, Session, child, json_of, last, opening, text_of, tool_call, until, within,
    },
    modern::{Modern, asked},
    served::Served,
    wire::rest,
};

/// A gateway with one tenant and this server, `main`.
async fn served(config: Value, server: Value) -> Served {
    let servers = json!({"main": server});
    let tenants = json!({"a": {"auth": {"mode": "none"}, "servers": servers}});
    Served::start(config, tenants).await
}

async fn own(env: Value) -> Served {
    served(json!({}), json!({"command": child(), "env": env})).await
}

/// Begins a session with this `initialize`; its response.
async fn begin(session: &mut Session, opening: &Value) -> Value {
    let response = session.post(opening).await;
    let id = response.headers()["mcp-session-id"].to_str().unwrap();
    session.id = Some(id.to_owned());
    let opened = last(response).await;
    session.notify("notifications/initialized", json!({})).await;
    opened
}

/// Every message that the child has got.
async fn received(session: &Session) -> Vec<Value> {
    let lines = session.text("received", json!({})).await;
    let lines: Vec<String> = serde_json::from_str(&lines).unwrap();
    let parsed = lines.iter().map(|line| serde_json::from_str(line).unwrap());
    parsed.collect()
}

/// Lets the child write a line.
async fn say(session: &Session, line: &Value) {
    let said = session.text("say", json!({"line": line.to_string()})).await;
    assert_eq!(said, "said");
}

/// What the child got in answer to its request `id`.
async fn answered(session: &Session, id: &str) -> Value {
    let mut found = None;
    until("an answer to the child", || async {
        let all = received(session).await;
        all.iter()
            .any(|message| message["id"] == id && message.get("method").is_none())
    })
    .await;
    for message in received(session).await {
        if message["id"] == id && message.get("method").is_none() {
            found = Some(message);
        }
    }
    found.unwrap()
}

async fn kill(session: &Session) {
    let who: Value = serde_json::from_str(&session.text("whoami", json!({})).await).unwrap();
    let pid = i32::try_from(who["pid"].as_i64().unwrap()).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
}

/// The gateway's id of the call of `tool` that is in flight.
async fn id_of(session: &Session, tool: &str) -> Value {
    let all = received(session).await;
    let call = all.iter().rfind(|one| one["params"]["name"] == tool);
    call.unwrap()["id"].clone()
}

/// 2025-11-25 basic, "Requests": "The request ID MUST NOT have been previously used by the requestor
/// within the same session."
#[tokio::test]
async fn no_id_is_used_twice_in_a_session() {
    for isolation in ["session", "tenant"] {
        let server = json!({"command": child(), "isolation": isolation,
            "clocks": {"call": "300ms"}});
        let gateway = served(json!({}), server).await;
        let session = gateway.session("a", "main").await;
        let level = json!({"level": "debug"});
        assert!(session.ask("logging/setLevel", level).await["result"].is_object());
        for uri in ["test://one", "test://two", "test://three"] {
            let asked = session.ask("resources/subscribe", json!({"uri": uri}));
            assert!(asked.await["result"].is_object());
        }
        kill(&session).await;
        until("the subscriptions are restored", || async {
            let subscribed = session.call("subscribed", json!({})).await;
            let text = subscribed["result"]["content"][0]["text"].as_str();
            text.is_some_and(|text| text.matches("test://").count() == 3)
        })
        .await;
        // Two overdue calls, each with a ping behind it.
        for _ in 0..2 {
            let late = session.call("hang", json!({})).await;
            assert_eq!(late["error"]["code"], -31002, "{late}");
        }
        for uri in ["test://one", "test://two"] {
            session
                .ask("resources/unsubscribe", json!({"uri": uri}))
                .await;
        }
        let all = received(&session).await;
        let requests = all.iter().filter(|one| one.get("method").is_some());
        let ids: Vec<&Value> = requests.filter_map(|one| one.get("id")).collect();
        let different: BTreeSet<String> = ids.iter().map(ToString::to_string).collect();
        assert_eq!(different.len(), ids.len(), "{all:?}");
        assert!(
            all.iter().filter(|one| one["method"] == "ping").count() >= 1,
            "{all:?}"
        );
        // Older SDKs hold ids in 32 bits with a sign.
        for id in ids {
            assert!(id.as_u64().is_some_and(|id| id < 1 << 31), "{id}");
        }
    }
}

/// Older SDKs hold ids in 32 bits with a sign: also those of a server that many sessions share.
#[tokio::test]
async fn ids_of_many_sessions_of_a_shared_child_have_31_bits() {
    let server = json!({"command": child(), "isolation": "tenant"});
    let gateway = served(json!({}), server).await;
    let mut session = gateway.session("a", "main").await;
    for _ in 0..130 {
        session = gateway.session("a", "main").await;
        assert_eq!(session.text("echo", json!({"text": "x"})).await, "x");
    }
    let all = received(&session).await;
    let ids: BTreeSet<u64> = all.iter().filter_map(|one| one["id"].as_u64()).collect();
    assert!(ids.len() > 130, "{ids:?}");
    assert!(ids.iter().all(|id| *id < 1 << 31), "{ids:?}");
}

/// A subscription that the next child refuses is not lost in silence.
#[tokio::test]
async fn errors_to_the_gateways_own_requests_are_logged() {
    for isolation in ["session", "tenant"] {
        let dir = tempfile::tempdir().unwrap();
        let script = format!(
            "if [ -e {flag} ]; then export CHILD_NO_SUBSCRIBE=1; fi; touch {flag}; exec {}",
            child(),
            flag = dir.path().join("flag").display()
        );
        let server = json!({"command": "/bin/sh", "args": ["-c", script],
            "isolation": isolation, "sandbox": {"profile": "open"}});
        let mut gateway = served(json!({}), server).await;
        let session = gateway.session("a", "main").await;
        let asked = session.ask("resources/subscribe", json!({"uri": "test://one"}));
        assert!(asked.await["result"].is_object());
        kill(&session).await;
        until("another child", || async {
            let all = session.call("received", json!({})).await;
            all.to_string().contains("resources/subscribe")
        })
        .await;
        session.text("echo", json!({"text": "x"})).await;
        let logs = gateway.end().await;
        let is_told = logs.iter().any(|line| {
            line["level"] == "WARN"
                && line["mcp.method.name"] == "resources/subscribe"
                && line["code"] == -32002
        });
        assert!(is_told, "{isolation}: {logs:?}");
    }
}

/// 2025-11-25 lifecycle, "Timeouts": "Implementations SHOULD establish timeouts for all sent requests", and
/// cancel those that are overdue. A subscription that is not restored is told in the log.
#[tokio::test]
async fn requests_of_the_gateway_that_are_not_answered_are_cancelled() {
    for (isolation, silent) in [
        ("session", "resources/subscribe"),
        ("tenant", "resources/subscribe"),
        ("tenant", "logging/setLevel"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let script = format!(
            "if [ -e {flag} ]; then export CHILD_SILENT={silent}; fi; touch {flag}; exec {}",
            child(),
            flag = dir.path().join("flag").display()
        );
        let server = json!({"command": "/bin/sh", "args": ["-c", script], "isolation": isolation,
            "clocks": {"call": "300ms"}, "sandbox": {"profile": "open"}});
        let mut gateway = served(json!({}), server).await;
        let session = gateway.session("a", "main").await;
        let params = json!({"uri": "test://one", "level": "debug"});
        assert!(session.ask(silent, params).await["result"].is_object());
        kill(&session).await;
        until("its cancellation", || async {
            let all = session.call("received", json!({})).await;
            let text = all["result"]["content"][0]["text"].as_str();
            let all: Vec<String> = serde_json::from_str(text.unwrap_or("[]")).unwrap();
            let all: Vec<Value> = all
                .iter()
                .map(|line| serde_json::from_str(line).unwrap())
                .collect();
            let asked = all.iter().find(|one| one["method"] == silent);
            asked.is_some_and(|asked| {
                all.iter().any(|one| {
                    one["method"] == "notifications/cancelled"
                        && one["params"]["requestId"] == asked["id"]
                })
            })
        })
        .await;
        let logs = gateway.end().await;
        let is_told = |line: &Value| {
            line["level"] == "WARN"
                && line["mcp.method.name"] == silent
                && line["message"] == "the child does not answer a request of the gateway"
        };
        assert!(logs.iter().any(is_told), "{isolation} {silent}: {logs:?}");
    }
}

/// Capabilities of a client, a request of its server, and the code of the gateway's refusal.
fn questions() -> Vec<(Value, Value, Option<i64>)> {
    let ask = |method: &str, params: Value| json!({"jsonrpc": "2.0", "id": "q", "method": method, "params": params});
    let form = || {
        ask(
            "elicitation/create",
            json!({"message": "?", "requestedSchema": {}}),
        )
    };
    let url = || {
        ask(
            "elicitation/create",
            json!({"mode": "url", "message": "?", "url": "https://x"}),
        )
    };
    let sampling = || {
        ask(
            "sampling/createMessage",
            json!({"maxTokens": 1, "messages": []}),
        )
    };
    let tools = || {
        ask(
            "sampling/createMessage",
            json!({"maxTokens": 1, "messages": [], "tools": []}),
        )
    };
    let roots = || ask("roots/list", json!({}));
    let tasks = || ask("tasks/list", json!({}));
    vec![
        (json!({}), roots(), Some(-32601)),
        (json!({}), sampling(), Some(-32601)),
        (json!({}), form(), Some(-32601)),
        (json!({}), tasks(), Some(-32601)),
        (json!({"roots": null}), roots(), Some(-32601)),
        (json!({"roots": {}}), roots(), None),
        (json!({"sampling": {}}), sampling(), None),
        (json!({"sampling": {}}), tools(), Some(-32602)),
        (json!({"sampling": {"tools": {}}}), tools(), None),
        (json!({"elicitation": {}}), form(), None),
        (json!({"elicitation": {}}), url(), Some(-32602)),
        (json!({"elicitation": {"url": {}}}), url(), None),
        (json!({"elicitation": {"url": {}}}), form(), Some(-32602)),
        (
            json!({"elicitation": {"form": {}, "url": {}}}),
            form(),
            None,
        ),
        (json!({"tasks": {"list": {}}}), tasks(), None),
        // What this gateway does not know is for the client to refuse.
        (json!({}), ask("example/ask", json!({})), None),
    ]
}

/// 2025-11-25 roots, "Error Handling"; elicitation, "Error Handling"; sampling, "Tools in Sampling".
#[tokio::test]
async fn a_child_asks_only_what_its_client_declared() {
    let gateway = own(json!({})).await;
    for (capabilities, question, code) in questions() {
        let mut session = gateway.stranger("a", "main");
        let mut opening = opening(NEWEST);
        opening["params"]["capabilities"] = capabilities.clone();
        begin(&mut session, &opening).await;
        let mut listener = session.listen().await;
        session.accept = "application/json";
        say(&session, &question).await;
        let Some(code) = code else {
            let (_, asked) = listener.message().await.unwrap();
            assert_eq!(asked["method"], question["method"], "{capabilities}");
            continue;
        };
        let refused = answered(&session, "q").await;
        assert_eq!(refused["error"]["code"], code, "{capabilities} {question}");
        // The next message shows that nothing was sent before.
        say(
            &session,
            &json!({"jsonrpc": "2.0", "method": "notifications/example"}),
        )
        .await;
        let (_, next) = listener.message().await.unwrap();
        assert_eq!(next["method"], "notifications/example", "{capabilities}");
    }
}

/// 2025-11-25 logging, "Capabilities": a server without `logging` has no levels.
#[tokio::test]
async fn a_shared_child_without_logging_is_asked_for_no_level() {
    let server =
        json!({"command": child(), "isolation": "tenant", "env": {"CHILD_NO_LOGGING": "1"}});
    let gateway = served(json!({}), server).await;
    let session = gateway.session("a", "main").await;
    let answer = session
        .ask("logging/setLevel", json!({"level": "debug"}))
        .await;
    assert_eq!(answer["error"]["code"], -32601, "{answer}");
    let all = received(&session).await;
    assert!(
        all.iter().all(|one| one["method"] != "logging/setLevel"),
        "{all:?}"
    );
}

/// 2025-11-25 lifecycle, "Timeouts": "the sender SHOULD issue a cancellation notification for that
/// request".
#[tokio::test]
async fn an_ask_that_is_not_answered_in_time_is_cancelled() {
    let clocks = json!({"ask": "300ms", "ask_unclaimed": "10s"});
    let gateway = served(json!({}), json!({"command": child(), "clocks": clocks})).await;
    let session = gateway.session("a", "main").await;
    let args = json!({"kind": "elicitation", "message": "?"});
    let mut stream = Events::of(session.begin("ask", args).await);
    let (_, asked) = stream.message().await.unwrap();
    let (_, cancelled) = stream.message().await.unwrap();
    assert_eq!(
        cancelled["method"], "notifications/cancelled",
        "{cancelled}"
    );
    assert_eq!(cancelled["params"]["requestId"], asked["id"], "{cancelled}");
    let (_, answer) = stream.message().await.unwrap();
    assert!(text_of(&answer).contains("-32603"), "{answer}");
}

/// 2025-11-25 tasks, "Associating Task-Related Messages" 1: "All requests, notifications, and responses related
/// to a task MUST include" its id.
#[tokio::test]
async fn the_cancellation_of_an_ask_names_its_task() {
    let clocks = json!({"ask": "300ms", "ask_unclaimed": "10s"});
    let server = json!({"command": child(), "clocks": clocks, "env": {"CHILD_TASKS": "1"}});
    let gateway = served(json!({}), server).await;
    let mut session = gateway.session("a", "main").await;
    let mut listener = session.listen().await;
    session.accept = "application/json";
    let related = json!({"io.modelcontextprotocol/related-task": {"taskId": "t"}});
    let ask = json!({"jsonrpc": "2.0", "id": "q", "method": "elicitation/create", "params": {
        "message": "?", "requestedSchema": {}, "_meta": related}});
    say(&session, &ask).await;
    let (_, asked) = listener.message().await.unwrap();
    assert_eq!(asked["method"], "elicitation/create");
    let (_, cancelled) = listener.message().await.unwrap();
    assert_eq!(cancelled["params"]["requestId"], asked["id"], "{cancelled}");
    assert_eq!(cancelled["params"]["_meta"], related, "{cancelled}");
}

/// 2025-11-25 lifecycle, "Timeouts": "SDKs and other middleware SHOULD allow these timeouts to be configured on
/// a per-request basis."
#[tokio::test]
async fn a_tool_has_clocks_of_its_own() {
    let server = json!({"command": child(), "clocks": {"call": "60s", "ask_unclaimed": "60s"},
        "tools": {"hang": {"call": "200ms"}, "ask": {"ask": "300ms"},
            "roots": {"ask_unclaimed": "200ms"}}});
    let gateway = served(json!({}), server).await;
    let mut session = gateway.session("a", "main").await;
    let late = session.call("hang", json!({})).await;
    assert_eq!(late["error"]["code"], -31002, "{late}");
    assert_eq!(session.text("sleep", json!({"ms": 600})).await, "slept");
    let args = json!({"kind": "elicitation", "message": "?"});
    let mut stream = Events::of(session.begin("ask", args).await);
    let (_, asked) = stream.message().await.unwrap();
    let (_, cancelled) = stream.message().await.unwrap();
    assert_eq!(cancelled["params"]["requestId"], asked["id"], "{cancelled}");
    let (_, ended) = stream.message().await.unwrap();
    assert!(text_of(&ended).contains("-32603"), "{ended}");
    // No connection carries it.
    session.accept = "application/json";
    let refused = session.text("roots", json!({})).await;
    assert!(refused.contains("-32603"), "{refused}");
}

/// The same for a call of a client without sessions, which is parked while its client is asked.
#[tokio::test]
async fn a_parked_call_has_the_clock_of_its_tool() {
    let server = json!({"command": child(), "tools": {"ask": {"ask": "300ms"}}});
    let gateway = served(json!({}), server).await;
    let url = gateway.stranger("a", "main").url;
    let client = Modern::at(&url).with(json!({"elicitation": {}}));
    let call = client.tool("ask", json!({"kind": "elicitation", "message": "?"}));
    let required = client.answer(&call).await;
    asked(&required);
    let before = gateway.descendants();
    until("the end of its session", || async {
        let children = gateway.descendants();
        before.iter().all(|pid| !children.contains(pid))
    })
    .await;
}

/// An ask that no connection carried in time is answered by the gateway; a client that comes later
/// does not get it.
#[tokio::test]
async fn an_ask_that_was_withdrawn_is_never_delivered() {
    let clocks = json!({"ask_unclaimed": "200ms"});
    let gateway = served(json!({}), json!({"command": child(), "clocks": clocks})).await;
    let mut session = gateway.session("a", "main").await;
    session.accept = "application/json";
    let mut listener = session.listen().await;
    say(
        &session,
        &json!({"jsonrpc": "2.0", "method": "notifications/first"}),
    )
    .await;
    let (first, _) = listener.message().await.unwrap();
    drop(listener);
    let answer = session
        .call("ask", json!({"kind": "elicitation", "message": "?"}))
        .await;
    assert!(text_of(&answer).contains("-32603"), "{answer}");
    say(
        &session,
        &json!({"jsonrpc": "2.0", "method": "notifications/second"}),
    )
    .await;
    // On the stream that the client had, and on a new one.
    for cursor in [Some(&*first), None] {
        let mut later = match cursor {
            Some(first) => session.resume(first).await,
            None => session.listen().await,
        };
        let third = json!({"jsonrpc": "2.0", "method": "notifications/third"});
        say(&session, &third).await;
        loop {
            let (_, message) = later.message().await.unwrap();
            assert_ne!(message["method"], "elicitation/create", "{message}");
            if message["method"] == "notifications/third" {
                break;
            }
        }
    }
}

/// An elicitation that the child sends during a call which ends at once, and with it the stream that carries both.
fn short_lived(id: &str) -> Value {
    let ask = json!({"jsonrpc": "2.0", "id": id, "method": "elicitation/create", "params": {
        "message": "?", "requestedSchema": {}}});
    json!({"line": ask.to_string()})
}

/// It was refused as one that nobody had got, and the answer of its client was dropped.
#[tokio::test]
async fn an_ask_whose_stream_has_ended_is_waited_for() {
    let clocks = json!({"ask": "60s", "ask_unclaimed": "200ms"});
    let gateway = served(json!({}), json!({"command": child(), "clocks": clocks})).await;
    let session = gateway.session("a", "main").await;
    let mut stream = Events::of(session.begin("say", short_lived("q")).await);
    let messages = stream.messages().await;
    let asked = &messages[0].1;
    assert_eq!(asked["method"], "elicitation/create", "{asked}");
    // Longer than for one that nobody has got.
    assert_eq!(session.text("sleep", json!({"ms": 600})).await, "slept");
    let result = json!({"action": "decline"});
    let reply = json!({"jsonrpc": "2.0", "id": asked["id"], "result": result});
    assert_eq!(session.post(&reply).await.status(), StatusCode::ACCEPTED);
    let got = answered(&session, "q").await;
    assert_eq!(got["result"], result, "{got}");
}

/// The same lifecycle sentence, and 2025-11-25 cancellation: the client goes on showing a question that no cancellation
/// has reached.
#[tokio::test]
async fn an_ask_whose_stream_has_ended_is_cancelled_on_the_listener() {
    for by_child in [false, true] {
        let clock = if by_child { "60s" } else { "300ms" };
        let clocks = json!({"ask": clock, "ask_unclaimed": "10s"});
        let gateway = served(json!({}), json!({"command": child(), "clocks": clocks})).await;
        let session = gateway.session("a", "main").await;
        let mut listener = session.listen().await;
        let mut stream = Events::of(session.begin("say", short_lived("q")).await);
        let begin = stream.next().await.unwrap().id.unwrap();
        let messages = stream.messages().await;
        let asked = &messages[0].1;
        assert_eq!(asked["method"], "elicitation/create", "{asked}");
        if by_child {
            let params = json!({"requestId": "q"});
            let method = "notifications/cancelled";
            say(
                &session,
                &json!({"jsonrpc": "2.0", "method": method, "params": params}),
            )
            .await;
        }
        let (_, cancelled) = listener.message().await.unwrap();
        let named = &cancelled["params"]["requestId"];
        assert_eq!(named, &asked["id"], "{by_child}: {cancelled}");
        let resumed = session.resume(&begin).await.messages().await;
        let is_there = resumed.iter().any(|(_, message)| message == asked);
        let is_alone = resumed.len() == 1;
        assert!(!is_there && is_alone, "{by_child}: {resumed:?}");
    }
}

/// 2025-11-25 tasks, "Task Support and Handling" 1: "Receivers that do not declare the task capability
/// for a request type MUST process requests of that type normally, ignoring any task-augmentation
/// metadata if present."
#[tokio::test]
async fn a_task_that_a_server_does_not_know_is_an_ordinary_call() {
    for (isolation, env) in [
        ("session", json!({})),
        ("tenant", json!({"CHILD_TASKS": "1"})),
    ] {
        let server = json!({"command": child(), "isolation": isolation, "env": env});
        let gateway = served(json!({}), server).await;
        let session = gateway.session("a", "main").await;
        for params in [
            json!({"name": "echo", "arguments": {"text": "x"}, "task": {"ttl": 1000}}),
            json!({"task": {"ttl": 1000}, "name": "echo", "arguments": {"text": "x"}}),
        ] {
            let answer = session.ask("tools/call", params).await;
            assert_eq!(text_of(&answer), "x", "{isolation}");
        }
        let all = received(&session).await;
        let calls: Vec<&Value> = all
            .iter()
            .filter(|one| one["params"]["name"] == "echo")
            .collect();
        assert_eq!(calls.len(), 2, "{all:?}");
        assert!(
            calls
                .iter()
                .all(|call| call["params"].get("task").is_none()),
            "{calls:?}"
        );
    }
}

/// 2025-11-25 tasks, "TTL and Resource Management": a task lives for the `ttl` that its client was
/// told, however long a call may take.
#[tokio::test]
async fn a_task_outlives_the_longest_call() {
    let server = json!({"command": child(), "idle": "200ms", "env": {"CHILD_TASKS": "1"},
        "clocks": {"call": "300ms", "call_max": "400ms"}});
    let gateway = served(json!({"session": {"idle": "500ms"}}), server).await;
    let session = gateway.session("a", "main").await;
    let before = gateway.descendants();
    let task = json!({"task": {"taskId": "t", "status": "working", "ttl": 60_000}});
    let call = json!({"name": "result", "arguments": {"result": task}, "task": {"ttl": 60_000}});
    let made = session.ask("tools/call", call).await;
    assert_eq!(made["result"]["task"]["taskId"], "t", "{made}");
    // Beyond the longest call and the idle times: others' time passes, too.
    let other = gateway.session("a", "main").await;
    for _ in 0..8 {
        other.text("sleep", json!({"ms": 200})).await;
    }
    assert!(before.iter().all(|pid| gateway.descendants().contains(pid)));
    assert!(session.ask("tasks/result", json!({"taskId": "t"})).await["result"].is_object());
    until("the child ends with its task", || async {
        !before.iter().any(|pid| gateway.descendants().contains(pid))
    })
    .await;
}

/// 2025-11-25 cancellation, "Behavior Requirements" 3: `tasks/cancel` ends a task; a client that has
/// cancelled its call before it knew the task, or whose call was overdue, cannot send it.
#[tokio::test]
async fn the_task_of_a_call_that_has_ended_is_cancelled() {
    let server = json!({"command": child(), "env": {"CHILD_TASKS": "1"},
        "clocks": {"call": "300ms"}});
    let gateway = served(json!({}), server).await;
    let session = gateway.session("a", "main").await;
    let params = json!({"name": "hang", "arguments": {}, "task": {"ttl": 60_000}});
    let overdue = session.ask("tools/call", params.clone()).await;
    assert_eq!(overdue["error"]["code"], -31002, "{overdue}");
    let late = id_of(&session, "hang").await;
    let call = json!({"jsonrpc": "2.0", "id": "c", "method": "tools/call", "params": params});
    let other = session.again();
    let cancelled = tokio::spawn(async move { other.post(&call).await });
    until("the second call", || async {
        id_of(&session, "hang").await != late
    })
    .await;
    let gone = id_of(&session, "hang").await;
    session
        .notify("notifications/cancelled", json!({"requestId": "c"}))
        .await;
    within("the end of the call", cancelled).await.unwrap();
    for id in [late, gone] {
        let task = json!({"taskId": format!("t{id}"), "status": "working"});
        say(
            &session,
            &json!({"jsonrpc": "2.0", "id": id, "result": {"task": task}}),
        )
        .await;
        until("its cancellation", || async {
            let all = received(&session).await;
            all.iter().any(|one| {
                one["method"] == "tasks/cancel" && one["params"]["taskId"] == format!("t{id}")
            })
        })
        .await;
    }
}

/// 2025-11-25 cancellation, "Behavior Requirements" 2: "The `initialize` request MUST NOT be cancelled by
/// clients." Its id may be that of a call that waits for another child, which gets `initialize` again.
#[tokio::test]
async fn a_cancelled_call_with_the_id_of_initialize_costs_no_child() {
    let server = json!({"command": child(), "idle": "200ms", "reply": {"sse_after": "15s"},
        "env": {"CHILD_START_MS": "1500"}});
    let gateway = served(json!({}), server).await;
    let session = gateway.session("a", "main").await;
    assert_eq!(session.opened["id"], 0);
    until("the idle child is stopped", || async {
        gateway.descendants().is_empty()
    })
    .await;
    let call = tool_call(json!(0), "sleep", json!({"ms": 10_000}));
    let cancel = async {
        until("another child", || async {
            !gateway.descendants().is_empty()
        })
        .await;
        let named = json!({"requestId": 0});
        session.notify("notifications/cancelled", named).await;
    };
    let (response, ()) = tokio::join!(session.post(&call), cancel);
    assert_eq!(Events::of(response).rest().await, []);
    assert_eq!(session.text("echo", json!({"text": "x"})).await, "x");
}

/// 2025-11-25 progress, "Behavior Requirements": "For task-augmented requests, the `progressToken` provided in the
/// original request MUST continue to be used for progress notifications throughout the task's lifetime".
#[tokio::test]
async fn progress_of_a_task_goes_on_behind_its_call() {
    let gateway = own(json!({"CHILD_TASKS": "1"})).await;
    let mut session = gateway.session("a", "main").await;
    let mut listener = session.listen().await;
    session.accept = "application/json";
    let task = json!({"task": {"taskId": "t", "status": "working", "ttl": 60_000}});
    let call = json!({"name": "result", "arguments": {"result": task}, "task": {"ttl": 60_000},
        "_meta": {"progressToken": "p"}});
    let made = session.ask("tools/call", call).await;
    assert_eq!(made["result"]["task"]["taskId"], "t", "{made}");
    let progress = json!({"jsonrpc": "2.0", "method": "notifications/progress",
        "params": {"progressToken": id_of(&session, "result").await, "progress": 1}});
    say(&session, &progress).await;
    let (_, told) = listener.message().await.unwrap();
    assert_eq!(told["method"], "notifications/progress", "{told}");
    assert_eq!(told["params"]["progressToken"], "p", "{told}");
    // With its result the task is over for its client.
    let fetched = session.ask("tasks/result", json!({"taskId": "t"})).await;
    assert!(fetched["result"].is_object(), "{fetched}");
    say(&session, &progress).await;
    let marker = json!({"jsonrpc": "2.0", "method": "notifications/example"});
    say(&session, &marker).await;
    let (_, next) = listener.message().await.unwrap();
    assert_eq!(next["method"], "notifications/example", "{next}");
}

/// 2025-11-25 tasks, "Associating Task-Related Messages" 3: for `tasks/result` "the `taskId` parameter in the
/// request MUST be used as the source of truth", whatever `related-task` says.
#[tokio::test]
async fn a_task_is_named_by_its_parameter() {
    let gateway = own(json!({"CHILD_TASKS": "1", "CHILD_SILENT": "tasks/result"})).await;
    let session = gateway.session("a", "main").await;
    let related = |task: &str| json!({"io.modelcontextprotocol/related-task": {"taskId": task}});
    let result = async |id: u64, params: Value| {
        let message =
            json!({"jsonrpc": "2.0", "id": id, "method": "tasks/result", "params": params});
        Events::of(session.post(&message).await)
    };
    let mut first = result(101, json!({"taskId": "t", "_meta": related("u")})).await;
    let _second = result(102, json!({"taskId": "v", "_meta": related("t")})).await;
    let ask = json!({"jsonrpc": "2.0", "id": "q", "method": "elicitation/create", "params": {
        "message": "?", "requestedSchema": {}, "_meta": related("t")}});
    say(&session, &ask).await;
    let (_, asked) = first.message().await.unwrap();
    assert_eq!(asked["method"], "elicitation/create", "{asked}");
}

/// 2025-11-25 basic, "Responses": a response has a result or an error, never both or neither.
#[tokio::test]
async fn a_line_that_is_no_answer_ends_its_call_at_once() {
    for isolation in ["session", "tenant"] {
        let server = json!({"command": child(), "isolation": isolation});
        let gateway = served(json!({}), server).await;
        let session = gateway.session("a", "main").await;
        for wrong in [
            json!({"result": {}, "error": null}),
            json!({"result": {}, "error": {"code": 1, "message": "m"}}),
            json!({}),
            json!({"result": "text"}),
            json!({"result": null}),
            json!({"result": [1]}),
            json!({"error": "text"}),
            json!({"error": {}}),
            json!({"error": {"code": "E", "message": "m"}}),
            json!({"error": {"code": 1}}),
        ] {
            let hanging = session.begin("hang", json!({})).await;
            let mut line = wrong.clone();
            (line["jsonrpc"], line["id"]) = (json!("2.0"), id_of(&session, "hang").await);
            say(&session, &line).await;
            let answer = last(hanging).await;
            assert_eq!(
                answer["error"]["code"], -31003,
                "{isolation} {wrong}: {answer}"
            );
        }
        let deep = [&*"[".repeat(200), &*"]".repeat(200)].concat();
        for rest in [
            format!(r#""result":{{"deep":{deep}}}"#),
            r#""id":0,"result":{}"#.to_owned(),
        ] {
            let hanging = session.begin("hang", json!({})).await;
            let id = id_of(&session, "hang").await;
            let line = format!(r#"{{"jsonrpc":"2.0",{rest},"id":{id}}}"#);
            assert_eq!(session.text("say", json!({"line": line})).await, "said");
            let answer = last(hanging).await;
            assert_eq!(answer["error"]["code"], -31003, "{isolation} {line}");
        }
        // A log line of the server that happens to have an `id` is no answer.
        let hanging = session.begin("hang", json!({})).await;
        let id = id_of(&session, "hang").await;
        say(&session, &json!({"id": id, "level": "info"})).await;
        let right = json!({"jsonrpc": "2.0", "id": id, "result": {"right": true}});
        say(&session, &right).await;
        assert_eq!(last(hanging).await["result"]["right"], true);
    }
}

/// Each cost its call the whole clock.
#[tokio::test]
async fn an_answer_in_a_wrong_form_ends_its_call_at_once() {
    for isolation in ["session", "tenant"] {
        let server = json!({"command": child(), "isolation": isolation});
        let gateway = served(json!({}), server).await;
        let session = gateway.session("a", "main").await;
        for form in [
            r#"{"jsonrpc":"2.0","id":ID,"method":"x","result":{}}"#,
            r#"{"jsonrpc":"2.0","id":ID,"result":{}}{"jsonrpc":"2.0","id":ID,"result":{}}"#,
            "\u{feff}{\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":{}}",
            r#"{"jsonrpc":"2.0","id":ID,"result":{"content":[}}"#,
            r#"[{"jsonrpc":"2.0","id":ID,"result":{}}]"#,
        ] {
            let hanging = session.begin("hang", json!({})).await;
            let id = id_of(&session, "hang").await;
            let line = form.replace("ID", &id.to_string());
            assert_eq!(session.text("say", json!({"line": line})).await, "said");
            let answer = last(hanging).await;
            assert_eq!(answer["error"]["code"], -31003, "{isolation} {line}");
        }
    }
}

/// 2025-03-26 basic, "Batching": has no bound for what a server sends.
#[tokio::test]
async fn an_array_of_the_child_may_be_long() {
    for isolation in ["session", "tenant"] {
        let env = json!({"CHILD_REVISION": "2025-03-26"});
        let server = json!({"command": child(), "isolation": isolation, "env": env});
        let gateway = served(json!({}), server).await;
        let mut session = gateway.stranger("a", "main");
        session.initialize("2025-03-26").await;
        let hanging = session.begin("hang", json!({})).await;
        let id = id_of(&session, "hang").await;
        let note = json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"});
        let mut items = vec![note; 250];
        items.push(json!({"jsonrpc": "2.0", "id": id, "result": {"right": true}}));
        say(&session, &json!(items)).await;
        assert_eq!(last(hanging).await["result"]["right"], true, "{isolation}");
        let hanging = session.begin("hang", json!({})).await;
        let id = id_of(&session, "hang").await;
        say(&session, &json!([1, {"jsonrpc": "2.0", "id": id}])).await;
        assert_eq!(last(hanging).await["error"]["code"], -31003, "{isolation}");
    }
}

/// An array may have as many messages as fit into a line: it is read in steps, like single messages, and its
/// session goes on between them.
#[tokio::test]
async fn a_session_goes_on_within_a_long_array() {
    let env = json!({"CHILD_REVISION": "2025-03-26"});
    let gateway = own(env).await;
    let mut session = gateway.stranger("a", "main");
    session.initialize("2025-03-26").await;
    let mut listener = session.listen().await;
    let hanging = session.begin("hang", json!({})).await;
    let id = id_of(&session, "hang").await;
    let note = json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"});
    let mut items = vec![note; 30_000];
    items.push(json!({"jsonrpc": "2.0", "id": id, "result": {"right": true}}));
    let (array, other) = (json!(items), session.again());
    let said = tokio::spawn(async move { say(&other, &array).await });
    let answer = tokio::spawn(last(hanging));
    listener.message().await.unwrap();
    drop(listener);
    let mut pings = 0;
    while !answer.is_finished() {
        session.ask("ping", json!({})).await;
        pings += 1;
    }
    assert_eq!(
        within("the answer", answer).await.unwrap()["result"]["right"],
        true
    );
    within("the child's own answer", said).await.unwrap();
    assert!(pings > 10, "{pings}");
}

/// 2025-06-18 schema: `resource_link` and `structuredContent` are of that revision; audio is of
/// 2025-03-26. A server knows by the revision what its client understands.
#[tokio::test]
async fn a_shared_child_speaks_the_revision_of_its_sessions() {
    let gateway = served(
        json!({}),
        json!({"command": child(), "isolation": "tenant"}),
    )
    .await;
    let mut children = BTreeSet::new();
    for revision in ["2025-03-26", "2025-06-18", "2025-11-25", "2025-03-26"] {
        let mut session = gateway.stranger("a", "main");
        session.initialize(revision).await;
        assert_eq!(session.opened["result"]["protocolVersion"], revision);
        let all = received(&session).await;
        assert_eq!(all[0]["params"]["protocolVersion"], revision);
        children.insert(session.text("whoami", json!({})).await);
    }
    assert_eq!(children.len(), 3, "one for each revision");
    // What the child answers is the revision of the session, as for a child of one session.
    let server = json!({"command": child(), "isolation": "tenant",
        "env": {"CHILD_REVISION": "2025-06-18"}});
    let gateway = served(json!({}), server).await;
    let session = gateway.session("a", "main").await;
    assert_eq!(session.opened["result"]["protocolVersion"], "2025-06-18");
}

/// It lived on for as long as a session of it did.
#[tokio::test]
async fn a_shared_child_of_an_excluded_revision_ends_after_its_calls() {
    let server = json!({"command": child(), "isolation": "tenant"});
    let gateway = served(json!({}), server).await;
    let mut old = gateway.stranger("a", "main");
    old.initialize("2025-06-18").await;
    let new = gateway.session("a", "main").await;
    assert_eq!(gateway.children().await.len(), 2);
    let slow = json!({"n": 50, "ms": 20});
    let mut slow = old.stream("slow", slow, json!("t")).await;
    slow.message().await.unwrap();
    let tenant = json!({"auth": {"mode": "none"}, "revisions": [NEWEST]});
    let url = format!("{}/api/v1/tenants/a", gateway.origin());
    let put = bearer(&gateway.administrator()).put(&url).json(&tenant);
    assert_eq!(put.send().await.unwrap().status(), StatusCode::OK);
    assert_eq!(slow.messages().await.len(), 50, "the call ends");
    let is_one = async || gateway.children().await.len() == 1;
    until("that of the other revision", is_one).await;
    // Nor does another one start for its sessions.
    old.revision = None;
    let answer = old.call("echo", json!({"text": "x"})).await;
    assert_eq!(answer["error"]["code"], -31003, "{answer}");
    assert!(is_one().await);
    assert_eq!(new.text("echo", json!({"text": "x"})).await, "x");
}

/// 2025-11-25 lifecycle, "Version Negotiation": "Otherwise, the server MUST respond with another protocol version
/// it supports. This SHOULD be the latest version supported by the server."
#[tokio::test]
async fn an_unknown_revision_is_answered_with_the_newest() {
    let all = json!([]);
    let some = json!(["2025-06-18", "2024-11-05"]);
    for isolation in ["session", "tenant"] {
        for (revisions, requested, offered) in
            [(&all, "1999-01-01", NEWEST), (&some, NEWEST, "2025-06-18")]
        {
            let servers = json!({"main": {"command": child(), "isolation": isolation}});
            let tenants = json!({"a": {"auth": {"mode": "none"}, "revisions": revisions,
                "servers": servers}});
            let gateway = Served::start(json!({}), tenants).await;
            let mut session = gateway.stranger("a", "main");
            let opened = begin(&mut session, &opening(requested)).await;
            assert_eq!(opened["result"]["protocolVersion"], offered, "{isolation}");
            let initialize = received(&session).await.swap_remove(0);
            assert_eq!(initialize["params"]["protocolVersion"], offered);
        }
    }
}

/// 2025-11-25 lifecycle, "Version Negotiation": "If the client does not support the version in the server's
/// response, it SHOULD disconnect."
#[tokio::test]
async fn a_child_of_an_unknown_revision_is_ended() {
    for (isolation, revisions, answered) in [
        ("session", json!([]), "1999-01-01"),
        ("tenant", json!([]), "1999-01-01"),
        ("session", json!([NEWEST]), "2025-03-26"),
    ] {
        let servers = json!({"main": {"command": child(), "isolation": isolation,
            "env": {"CHILD_REVISION": answered}}});
        let tenants = json!({"a": {"auth": {"mode": "none"}, "revisions": revisions,
            "servers": servers}});
        let gateway = Served::start(json!({}), tenants).await;
        let refused = gateway.stranger("a", "main").post(&opening(NEWEST)).await;
        assert!(!refused.headers().contains_key("mcp-session-id"));
        let error = last(refused).await["error"].clone();
        assert_eq!(error["code"], -31003, "{isolation} {answered}: {error}");
        assert_eq!(error["data"]["reason"], "unsupported_revision", "{error}");
        until("the end of the child", || async {
            gateway.descendants().is_empty()
        })
        .await;
    }
}

/// 2025-11-25 tools, resources, prompts, logging and completion, "Capabilities": those of a server are its own.
#[tokio::test]
async fn capabilities_of_a_server_reach_its_client_unchanged() {
    let tasks = json!({"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}});
    for (env, name, value) in [
        (json!({}), "tasks", Value::Null),
        (json!({"CHILD_TASKS": "1"}), "tasks", tasks),
        (json!({"CHILD_NO_LOGGING": "1"}), "logging", Value::Null),
    ] {
        let mut expected = json!({
            "tools": {"listChanged": true}, "prompts": {"listChanged": true},
            "resources": {"subscribe": true, "listChanged": true},
            "logging": {}, "completions": {},
        });
        if value.is_null() {
            expected.as_object_mut().unwrap().remove(name);
        } else {
            expected[name] = value;
        }
        let gateway = own(env).await;
        let session = gateway.session("a", "main").await;
        assert_eq!(session.opened["result"]["capabilities"], expected);
    }
}

/// 2025-11-25 roots, "Root List Changes".
#[tokio::test]
async fn a_change_of_roots_reaches_the_server() {
    let gateway = own(json!({})).await;
    let session = gateway.session("a", "main").await;
    let changed = "notifications/roots/list_changed";
    session.notify(changed, json!({})).await;
    let all = received(&session).await;
    let told = all.iter().filter(|one| one["method"] == changed);
    assert_eq!(told.count(), 1, "{all:?}");
}

/// 2025-11-25 elicitation, "URL Elicitation Required Error": the error has the elicitations in its data.
#[tokio::test]
async fn an_error_of_a_server_passes_with_its_code_and_its_data() {
    let elicitation = json!({"mode": "url", "elicitationId": "e", "url": "https://x.test/?a=1",
        "message": "m"});
    let error = json!({"code": -32042, "message": "m", "data": {"elicitations": [elicitation]}});
    for isolation in ["session", "tenant"] {
        let server = json!({"command": child(), "isolation": isolation});
        let gateway = served(json!({}), server).await;
        let session = gateway.session("a", "main").await;
        let hanging = session.begin("hang", json!({})).await;
        let id = id_of(&session, "hang").await;
        say(
            &session,
            &json!({"jsonrpc": "2.0", "id": id, "error": error}),
        )
        .await;
        assert_eq!(last(hanging).await["error"], error, "{isolation}");
    }
}

/// JSON-RPC 2.0 section 5: the id of an error is that of the request, or null if none could be read.
#[tokio::test]
async fn a_refusal_has_the_id_of_its_request() {
    let gateway = own(json!({})).await;
    let session = gateway.session("a", "main").await;
    let mut gone = session.again();
    gone.id = Some("gone".to_owned());
    let refused = gone
        .post(&tool_call(json!("a\"b"), "echo", json!({})))
        .await;
    assert_eq!(refused.status(), StatusCode::NOT_FOUND);
    assert_eq!(json_of(refused).await["id"], "a\"b");
    for (text, id) in [
        (
            r#"{"jsonrpc":"2.0","id":7,"method":"x","params":[]}"#,
            json!(7),
        ),
        (r#"{"id":7,"method":"x"}"#, json!(7)),
        (r#"{"jsonrpc":"2.0","id":null,"method":"x"}"#, Value::Null),
        (r#"{"jsonrpc":"2.0","id":{},"method":"x"}"#, Value::Null),
        (r#"{"jsonrpc":"2.0","id":7,"method":"x""#, Value::Null),
        (
            r#"{"jsonrpc":"2.0","id":7,"method":"initialize"}"#,
            json!(7),
        ),
    ] {
        let refused = session.post_text(text).await;
        assert_eq!(refused.status(), StatusCode::BAD_REQUEST, "{text}");
        assert_eq!(json_of(refused).await["id"], id, "{text}");
    }
}

/// A refusal that needs no more than the head has the id too, if a short body came with it; nothing is waited
/// for, and a long body is not read.
#[tokio::test]
async fn a_refusal_by_the_head_has_the_id_that_is_here() {
    let server = json!({"main": {"command": child(), "isolation": "tenant"}});
    let quotas = json!({"requests_per_second": 1});
    let tenants = json!({
        "keys": {"auth": {"mode": "keys"}, "servers": server},
        "open": {"auth": {"mode": "none"}, "servers": server},
        "busy": {"auth": {"mode": "none"}, "servers": server, "quotas": quotas},
    });
    let gateway = Served::start(json!({}), tenants).await;
    for (tenant, server, status) in [
        ("keys", "main", StatusCode::UNAUTHORIZED),
        ("open", "nowhere", StatusCode::NOT_FOUND),
        ("busy", "main", StatusCode::TOO_MANY_REQUESTS),
    ] {
        let session = gateway.stranger(tenant, server);
        for (length, id) in [(8 << 10, json!("a\"b")), (64 << 10, Value::Null)] {
            let text = json!({"text": "x".repeat(length)});
            let call = tool_call(json!("a\"b"), "echo", text);
            let mut refused = session.post(&call).await;
            while refused.status() == StatusCode::BAD_REQUEST {
                // Within its rate it is refused for want of a session.
                refused = session.post(&call).await;
            }
            assert_eq!(refused.status(), status);
            assert_eq!(json_of(refused).await["id"], id, "{status}");
        }
        if tenant == "busy" {
            continue;
        }
        // Without its body the refusal comes at once.
        let host = gateway.origin().split_once("://").unwrap().1;
        let head = format!(
            "POST /t/{tenant}/{server}/mcp HTTP/1.1\r\nHost: {host}\r\n\
             Content-Type: application/json\r\nContent-Length: 9\r\n\r\n"
        );
        let mut socket = TcpStream::connect(host).await.unwrap();
        socket.write_all(head.as_bytes()).await.unwrap();
        let answer = within("a refusal", rest(&mut socket)).await;
        let line = format!("HTTP/1.1 {}", status.as_u16());
        assert!(answer.starts_with(&line), "{answer}");
        assert!(answer.contains(r#""id":null"#), "{answer}");
    }
}

/// JSON-RPC 2.0 section 6: each item of a batch is answered by itself.
#[tokio::test]
async fn a_bad_item_of_a_batch_costs_that_item_alone() {
    let gateway = own(json!({})).await;
    let mut session = gateway.stranger("a", "main");
    session.initialize("2025-03-26").await;
    let batch = json!([
        tool_call(json!(1), "echo", json!({"text": "x"})),
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": []},
        17,
        opening("2025-03-26"),
        {"jsonrpc": "2.0", "method": "notifications/cancelled"},
    ]);
    let answers = json_of(session.post(&batch).await).await;
    let mut answers = answers.as_array().unwrap().clone();
    answers.sort_by_key(|one| one["id"].to_string());
    let summary: Vec<(Value, Value)> = answers
        .iter()
        .map(|one| (one["id"].clone(), one["error"]["code"].clone()))
        .collect();
    let expected = [
        (json!(0), json!(-32600)),
        (json!(1), Value::Null),
        (json!(2), json!(-32600)),
        (Value::Null, json!(-32600)),
    ];
    assert_eq!(summary, expected);
    assert_eq!(text_of(&answers[1]), "x");
}

/// 2025-11-25 transports, "Protocol Version Header": an "unsupported MCP-Protocol-Version" is 400.
#[tokio::test]
async fn a_revision_that_is_not_allowed_is_refused_in_the_header() {
    let tenants = json!({"a": {"auth": {"mode": "none"}, "revisions": ["2025-06-18", "2024-11-05"],
        "servers": {"main": {"command": child()}}}});
    let config = json!({"telemetry": {"log": "debug"}});
    let mut gateway = Served::start(config, tenants).await;
    let mut session = gateway.stranger("a", "main");
    session.initialize("2025-06-18").await;
    let base = session.url.strip_suffix("/mcp").unwrap().to_owned();
    session.revision = Some("2025-11-25".to_owned());
    let refused = session.post(&tool_call(json!(1), "echo", json!({}))).await;
    assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
    for (method, path, sent, status) in [
        ("GET", "sse", "2025-11-25", StatusCode::BAD_REQUEST),
        ("GET", "sse", "2024-11-05", StatusCode::OK),
        (
            "POST",
            "messages?session_id=x",
            "2025-11-25",
            StatusCode::BAD_REQUEST,
        ),
        (
            "POST",
            "messages?session_id=x",
            "1999-01-01",
            StatusCode::BAD_REQUEST,
        ),
        (
            "POST",
            "messages?session_id=x",
            "2024-11-05",
            StatusCode::NOT_FOUND,
        ),
    ] {
        let url = format!("{base}/{path}");
        let request = session.http.request(method.parse().unwrap(), url);
        let request = request
            .header("MCP-Protocol-Version", sent)
            .header("Content-Type", "application/json")
            .body(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#);
        let answer = within("a response", request.send()).await.unwrap();
        assert_eq!(answer.status(), status, "{method} {path} {sent}");
    }
    session.revision = Some("2024-11-05".to_owned());
    assert_eq!(session.text("echo", json!({"text": "x"})).await, "x");
    let logs = gateway.end().await;
    let is_told = |line: &Value| line["header"] == "2024-11-05" && line["revision"] == "2025-06-18";
    assert!(logs.iter().any(is_told), "{logs:?}");
}

/// 2025-11-25 cancellation, "Implementation Notes": "Both parties SHOULD log cancellation reasons";
/// ping, "Implementation Considerations": failures are logged.
#[tokio::test]
async fn reasons_of_cancellations_and_pings_are_logged() {
    let config = json!({"telemetry": {"log": "debug"}});
    let mut gateway = served(config, json!({"command": child()})).await;
    let session = gateway.session("a", "main").await;
    let hanging = session.begin("hang", json!({})).await;
    let cancelled = json!({"requestId": 1, "reason": "the person\nhas left"});
    session.notify("notifications/cancelled", cancelled).await;
    assert_eq!(hanging.status(), StatusCode::OK);
    drop(hanging);
    session.ask("ping", json!({})).await;
    say(
        &session,
        &json!({"jsonrpc": "2.0", "id": "p", "method": "ping"}),
    )
    .await;
    answered(&session, "p").await;
    let of_child = json!({"jsonrpc": "2.0", "method": "notifications/cancelled",
        "params": {"requestId": "none", "reason": "changed my mind"}});
    say(&session, &of_child).await;
    let logs = gateway.end().await;
    let has = |field: &str, text: &str| {
        logs.iter().any(|line| {
            line[field]
                .as_str()
                .is_some_and(|value| value.contains(text))
        })
    };
    assert!(has("reason", "has left"), "{logs:?}");
    assert!(has("reason", "changed my mind"), "{logs:?}");
    let pings = logs.iter().filter(|line| line["how"] == "ping");
    assert_eq!(pings.count(), 2, "{logs:?}");
}

/// 2025-11-25 tasks, "Input Required Status": "servers SHOULD NOT upgrade to an SSE stream in response to a
/// tasks/get request".
#[tokio::test]
async fn tasks_get_is_answered_as_json() {
    let server = json!({"command": child(), "reply": {"mode": "sse"}, "env": {"CHILD_TASKS": "1"}});
    let gateway = served(json!({}), server).await;
    let session = gateway.session("a", "main").await;
    let get = |method: &str| json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": {"taskId": "t"}});
    let kind = async |method: &str| {
        let response = session.post(&get(method)).await;
        response.headers()["content-type"]
            .to_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(kind("tasks/get").await, "application/json");
    assert_eq!(kind("tasks/result").await, "text/event-stream");
}

/// The clock of a call stands still only for asks that may be its own: one of a task is not.
#[tokio::test]
async fn an_ask_of_a_task_stops_no_other_clock() {
    let server =
        json!({"command": child(), "clocks": {"call": "700ms"}, "env": {"CHILD_TASKS": "1"}});
    let gateway = served(json!({}), server).await;
    let mut session = gateway.session("a", "main").await;
    let mut listener = session.listen().await;
    session.accept = "application/json";
    let other = session.again();
    let began = std::time::Instant::now();
    let call = tokio::spawn(async move { other.call("hang", json!({})).await });
    until("the call", || async {
        let all = received(&session).await;
        all.iter().any(|one| one["params"]["name"] == "hang")
    })
    .await;
    let related = json!({"io.modelcontextprotocol/related-task": {"taskId": "t"}});
    let ask = json!({"jsonrpc": "2.0", "id": "q", "method": "elicitation/create", "params": {
        "message": "?", "requestedSchema": {}, "_meta": related}});
    say(&session, &ask).await;
    let (_, asked) = listener.message().await.unwrap();
    assert_eq!(asked["method"], "elicitation/create");
    let answer = within("the overdue call", call).await.unwrap();
    assert_eq!(answer["error"]["code"], -31002, "{answer}");
    assert!(
        began.elapsed() < Duration::from_secs(15),
        "{:?}",
        began.elapsed()
    );
}

/// 2025-11-25 ping, "Implementation Considerations": "Implementations SHOULD periodically issue pings to
/// detect connection health", and failures are connection failures; "Error Handling": they are logged.
#[tokio::test]
async fn a_child_that_answers_no_periodic_ping_is_ended() {
    for isolation in ["session", "tenant"] {
        let server = json!({"command": child(), "isolation": isolation,
            "clocks": {"ping": "300ms"}});
        let mut gateway = served(json!({}), server).await;
        let session = gateway.session("a", "main").await;
        until("two pings", || async {
            let all = received(&session).await;
            all.iter().filter(|one| one["method"] == "ping").count() >= 2
        })
        .await;
        let who: Value = serde_json::from_str(&session.text("whoami", json!({})).await).unwrap();
        let pid = i32::try_from(who["pid"].as_i64().unwrap()).unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), Signal::STOP).unwrap();
        let is_there = |pid: i32| gateway.descendants().contains(&u32::try_from(pid).unwrap());
        assert!(is_there(pid));
        until("the end of the child", || async { !is_there(pid) }).await;
        // The session goes on with another one.
        assert_eq!(session.text("echo", json!({"text": "x"})).await, "x");
        let logs = gateway.end().await;
        let is_told = |line: &Value| {
            let message = line["message"].as_str().unwrap_or_default();
            line["level"] == "WARN" && message.contains("does not answer a ping")
        };
        assert!(logs.iter().any(is_told), "{isolation}: {logs:?}");
    }
}

/// 2025-11-25 ping, "Behavior Requirements" 2: without a response the sender may "consider the connection
/// stale" and terminate it.
#[tokio::test]
async fn a_client_that_answers_no_ping_loses_its_connection() {
    let config = json!({"session": {"ping": "700ms"}, "telemetry": {"log": "info"}});
    let mut gateway = served(config, json!({"command": child()})).await;
    let session = gateway.session("a", "main").await;
    let mut listener = session.listen().await;
    let mut ids = BTreeSet::new();
    for _ in 0..2 {
        let (_, ping) = listener.message().await.unwrap();
        assert_eq!(ping["method"], "ping", "{ping}");
        let id = ping["id"].clone();
        assert!(ids.insert(id.to_string()), "{ids:?}");
        let pong = json!({"jsonrpc": "2.0", "id": id, "result": {}});
        assert_eq!(session.post(&pong).await.status(), StatusCode::ACCEPTED);
    }
    let (_, ping) = listener.message().await.unwrap();
    assert_eq!(ping["method"], "ping", "{ping}");
    let end = listener.rest().await;
    assert!(end.last().unwrap().retry.is_some(), "{end:?}");
    // The session goes on, and the child has heard nothing of it.
    assert_eq!(session.text("echo", json!({"text": "x"})).await, "x");
    let mut listener = session.listen().await;
    assert_eq!(listener.message().await.unwrap().1["method"], "ping");
    let all = received(&session).await;
    assert!(all.iter().all(|one| one.get("result").is_none()), "{all:?}");
    drop(listener);
    let logs = gateway.end().await;
    let told = "the client does not answer a ping: its listener is closed";
    assert!(logs.iter().any(|line| line["message"] == told), "{logs:?}");
}

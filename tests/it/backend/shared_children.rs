//! Children that several sessions share (`isolation`).

use std::{collections::BTreeSet, time::Duration};

use reqwest::StatusCode;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::support::{
    harness::{Session, body, child, client, last, opening, text_of, tool_call, until, within},
    served::Served,
};

/// A gateway with one tenant and this server, `main`.
async fn served(server: Value) -> Served {
    let servers = json!({"main": server});
    let tenants = json!({"a": {"auth": {"mode": "none"}, "servers": servers}});
    Served::start(json!({}), tenants).await
}

async fn whoami(session: &Session) -> Value {
    let who = session.text("whoami", json!({})).await;
    serde_json::from_str::<Value>(&who).unwrap()["pid"].clone()
}

async fn received(session: &Session) -> Vec<Value> {
    let lines = session.text("received", json!({})).await;
    let lines: Vec<String> = serde_json::from_str(&lines).unwrap();
    lines
        .iter()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// `SCALE` percent of the full count, 1 percent by default.
fn scaled(count: usize) -> usize {
    let scale = std::env::var("SCALE")
        .ok()
        .and_then(|scale| scale.parse().ok());
    let scaled = count * scale.unwrap_or(1) / 100;
    println!("{scaled} of {count}");
    scaled
}

#[tokio::test]
async fn a_shared_child_knows_nothing_of_its_sessions() {
    let gateway = served(json!({"command": child(), "isolation": "tenant"})).await;
    let (one, two) = (
        gateway.session("a", "main").await,
        gateway.session("a", "main").await,
    );
    assert_eq!(whoami(&one).await, whoami(&two).await);
    assert_ne!(one.id, two.id);
    let opened = &one.opened["result"];
    assert_eq!(opened["serverInfo"]["name"], "child");
    assert_eq!(opened["instructions"], "Be careful.");
    assert_eq!(opened["protocolVersion"], "2025-11-25");
    assert_eq!(opened["capabilities"]["tools"]["listChanged"], true);
    one.notify("notifications/roots/list_changed", json!({}))
        .await;
    let received = received(&two).await;
    let initialize: Vec<&Value> = received
        .iter()
        .filter(|one| one["method"] == "initialize")
        .collect();
    assert_eq!(initialize.len(), 1, "{received:?}");
    assert_eq!(initialize[0]["params"]["clientInfo"]["name"], "lockgate");
    assert_eq!(initialize[0]["params"]["capabilities"], json!({}));
    let count = |method| {
        received
            .iter()
            .filter(|one| one["method"] == method)
            .count()
    };
    assert_eq!(count("notifications/initialized"), 1);
    assert_eq!(count("notifications/roots/list_changed"), 0);
}

#[tokio::test]
async fn each_session_settles_its_own_revision() {
    let gateway = served(json!({"command": child(), "isolation": "tenant"})).await;
    for revision in ["2025-03-26", "2025-06-18", "2025-11-25"] {
        let mut session = gateway.stranger("a", "main");
        session.initialize(revision).await;
        assert_eq!(session.opened["result"]["protocolVersion"], revision);
        assert_eq!(
            session.text("echo", json!({"text": revision})).await,
            revision
        );
    }
}

/// Sessions with the same request ids and progress tokens get their own answers and progress.
#[tokio::test]
async fn sessions_with_the_same_ids_get_their_own() {
    let server = json!({"command": child(), "isolation": "tenant", "reply": {"mode": "sse"}});
    let gateway = served(server).await;
    let sessions = 50;
    let rounds = (scaled(10_000) / sessions).max(2);
    let one = async |number: usize| {
        let session = gateway.session("a", "main").await;
        for round in 0..rounds {
            let text = format!("{number}-{round}");
            let answer = session
                .post(&tool_call(json!(1), "echo", json!({"text": text})))
                .await;
            assert_eq!(text_of(&last(answer).await), text);
            let mut slow = tool_call(json!(1), "slow", json!({"n": 3, "ms": 1, "text": text}));
            slow["params"]["_meta"] = json!({"progressToken": "same"});
            let mut events = crate::support::harness::Events::of(session.post(&slow).await);
            for step in 1..=3 {
                let (_, progress) = events.message().await.unwrap();
                assert_eq!(progress["params"]["progressToken"], "same", "{progress}");
                assert_eq!(progress["params"]["progress"], step, "{progress}");
            }
            let (_, end) = events.message().await.unwrap();
            assert_eq!(end["id"], 1);
            assert!(events.message().await.is_none());
        }
        session
    };
    let sessions = futures_util::future::join_all((0..sessions).map(one)).await;
    let first = whoami(&sessions[0]).await;
    assert_eq!(whoami(&sessions[49]).await, first);
    assert_eq!(gateway.children().await.len(), 1);
}

#[tokio::test]
async fn a_cancellation_reaches_only_its_own_call() {
    let gateway = served(json!({"command": child(), "isolation": "tenant"})).await;
    let (one, two) = (
        gateway.session("a", "main").await,
        gateway.session("a", "main").await,
    );
    let (first, second) = (one.again(), two.again());
    let cancelled = tokio::spawn(async move {
        first
            .post(&tool_call(json!(7), "hang", json!({})))
            .await
            .status()
    });
    let kept = tokio::spawn(async move {
        last(
            second
                .post(&tool_call(json!(7), "sleep", json!({"ms": 600})))
                .await,
        )
        .await
    });
    until("both calls", || async {
        let calls = received(&one).await;
        calls
            .iter()
            .filter(|call| call["params"]["name"] == "hang")
            .count()
            == 1
            && calls
                .iter()
                .filter(|call| call["params"]["name"] == "sleep")
                .count()
                == 1
    })
    .await;
    one.notify("notifications/cancelled", json!({"requestId": 7}))
        .await;
    two.notify("notifications/cancelled", json!({"requestId": 999}))
        .await;
    assert_eq!(cancelled.await.unwrap(), StatusCode::OK);
    assert_eq!(text_of(&kept.await.unwrap()), "slept");
    let told: Vec<Value> = serde_json::from_str(&one.text("cancelled", json!({})).await).unwrap();
    assert_eq!(told.len(), 1, "{told:?}");
}

#[tokio::test]
async fn updates_go_to_subscribers_and_the_child_is_subscribed_once() {
    let gateway = served(json!({"command": child(), "isolation": "tenant"})).await;
    let (one, two) = (
        gateway.session("a", "main").await,
        gateway.session("a", "main").await,
    );
    let three = gateway.session("a", "main").await;
    let mut heard = [one.listen().await, two.listen().await, three.listen().await];
    for session in [&one, &two] {
        let answer = session
            .ask("resources/subscribe", json!({"uri": "test://one"}))
            .await;
        assert_eq!(answer["result"], json!({}), "{answer}");
    }
    assert_eq!(
        three.text("subscribed", json!({})).await,
        r#"["test://one"]"#
    );
    three.text("touch", json!({"uri": "test://one"})).await;
    for listener in &mut heard[..2] {
        let (_, updated) = listener.message().await.unwrap();
        assert_eq!(updated["params"]["uri"], "test://one");
    }
    // The third session gets the broadcast, and no update before it.
    let method = "notifications/tools/list_changed";
    three
        .text("notify", json!({"method": method, "params": {}}))
        .await;
    for listener in &mut heard {
        let (_, changed) = listener.message().await.unwrap();
        assert_eq!(changed["method"], method);
    }
    one.delete().await;
    two.ask("resources/unsubscribe", json!({"uri": "test://one"}))
        .await;
    until("the end of the subscription", || async {
        three.text("subscribed", json!({})).await == "[]"
    })
    .await;
}

/// URIs are compared unescaped: their spelling in JSON does not matter.
#[tokio::test]
async fn spellings_of_a_uri_are_one_subscription() {
    let gateway = served(json!({"command": child(), "isolation": "tenant"})).await;
    let (one, two) = (
        gateway.session("a", "main").await,
        gateway.session("a", "main").await,
    );
    let mut heard = one.listen().await;
    let uri = json!({"uri": "db://x?a=1&b=2"});
    one.ask("resources/subscribe", uri).await;
    let escaped = r#"{"uri":"db:\/\/x?a=1\u0026b=2"}"#;
    let line = format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{escaped}}}"#
    );
    two.begin("raw", json!({"line": line})).await;
    let (_, updated) = heard.message().await.unwrap();
    assert_eq!(updated["params"]["uri"], "db://x?a=1&b=2");
    let ask = |id: u64, method: &str| {
        format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"resources/{method}","params":{escaped}}}"#)
    };
    let again = last(two.post_text(ask(77, "subscribe")).await).await;
    assert_eq!(again["result"], json!({}), "{again}");
    let known = two.text("subscribed", json!({})).await;
    assert_eq!(known, r#"["db://x?a=1&b=2"]"#, "the child has it once");
    for session in [&one, &two] {
        let ended = last(session.post_text(ask(78, "unsubscribe")).await).await;
        assert_eq!(ended["result"], json!({}), "{ended}");
    }
    assert_eq!(two.text("subscribed", json!({})).await, "[]");
}

#[tokio::test]
async fn log_messages_of_a_tenants_child_go_to_nobody_of_a_principals_to_all() {
    for (isolation, hears) in [("tenant", false), ("principal", true)] {
        let gateway = served(json!({"command": child(), "isolation": isolation})).await;
        let (one, two) = (
            gateway.session("a", "main").await,
            gateway.session("a", "main").await,
        );
        assert_eq!(whoami(&one).await, whoami(&two).await);
        let mut listener = two.listen().await;
        let level = one.ask("logging/setLevel", json!({"level": "error"})).await;
        assert_eq!(level["result"], json!({}), "{level}");
        let wrong = one.ask("logging/setLevel", json!({"level": "loud"})).await;
        assert_eq!(wrong["error"]["code"], -32602);
        two.ask("logging/setLevel", json!({"level": "debug"})).await;
        let mut own = one.listen().await;
        one.text("log", json!({"level": "debug", "text": "quiet"}))
            .await;
        one.text("log", json!({"level": "error", "text": "loud"}))
            .await;
        let method = "notifications/tools/list_changed";
        one.text("notify", json!({"method": method, "params": {}}))
            .await;
        let expected: &[&str] = if hears { &["quiet", "loud"] } else { &[] };
        for text in expected {
            let (_, message) = listener.message().await.unwrap();
            assert_eq!(message["params"]["data"], *text, "{message}");
        }
        assert_eq!(listener.message().await.unwrap().1["method"], method);
        if hears {
            let (_, message) = own.message().await.unwrap();
            assert_eq!(message["params"]["data"], "loud", "{message}");
        }
        assert_eq!(own.message().await.unwrap().1["method"], method);
    }
}

#[tokio::test]
async fn requests_of_a_shared_child_are_refused() {
    let gateway = served(json!({"command": child(), "isolation": "tenant"})).await;
    let session = gateway.session("a", "main").await;
    let text = session
        .text("ask", json!({"kind": "elicitation", "message": "?"}))
        .await;
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(answer["error"]["code"], -32601, "{answer}");
    let answer = session.ask("tasks/list", json!({})).await;
    assert_eq!(answer["error"]["code"], -32601, "{answer}");
}

#[tokio::test]
async fn a_shared_child_that_dies_costs_every_call_and_no_session() {
    let gateway = served(json!({"command": child(), "isolation": "tenant"})).await;
    let (one, two) = (
        gateway.session("a", "main").await,
        gateway.session("a", "main").await,
    );
    one.ask("resources/subscribe", json!({"uri": "test://one"}))
        .await;
    let first = whoami(&one).await;
    let (a, b) = (one.again(), two.again());
    let calls = [
        tokio::spawn(async move { a.call("hang", json!({})).await }),
        tokio::spawn(async move { b.call("hang", json!({})).await }),
    ];
    until("both calls", || async {
        let calls = received(&one).await;
        calls
            .iter()
            .filter(|call| call["params"]["name"] == "hang")
            .count()
            == 2
    })
    .await;
    let pid = i32::try_from(first.as_u64().unwrap()).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    for call in calls {
        let answer = call.await.unwrap();
        assert_eq!(answer["error"]["code"], -31001, "{answer}");
    }
    let second = whoami(&two).await;
    assert_ne!(first, second);
    assert_eq!(whoami(&one).await, second);
    until("the subscription again", || async {
        one.text("subscribed", json!({})).await == r#"["test://one"]"#
    })
    .await;
}

/// The log had neither its status nor its last line, which is beyond the lines that are logged of a child.
#[tokio::test]
async fn the_log_says_why_a_shared_child_ended() {
    let script = format!(
        "{}; code=$$?; echo 'boom: no token' >&2; exit $$code",
        child()
    );
    let mut gateway = served(json!({"command": "/bin/sh", "args": ["-c", script],
        "isolation": "tenant", "sandbox": {"profile": "open"}}))
    .await;
    let session = gateway.session("a", "main").await;
    for (tool, args, code, signal) in [
        ("exit", json!({"code": 7}), json!(7), json!(null)),
        ("abort", json!({}), json!(null), json!(6)),
    ] {
        let written = session.text("stderr", json!({"bytes": 100_000})).await;
        assert_eq!(written, "written");
        let answer = session.call(tool, args).await;
        assert_eq!(answer["error"]["code"], -31001, "{answer}");
        let said = gateway.says("the shared child ended by itself").await;
        assert_eq!((&said["code"], &said["signal"]), (&code, &signal), "{said}");
        assert_eq!(said["tenant.id"], "a", "{said}");
        assert_eq!(said["server.name"], "main", "{said}");
        let stderr = said["stderr"].as_str().unwrap();
        assert!(stderr.ends_with(r"boom: no token\n"), "{said}");
    }
}

/// The signal that the gateway kills it with is not its own.
#[tokio::test]
async fn the_log_says_why_a_shared_child_is_ended() {
    let server = json!({"command": child(), "isolation": "tenant", "limits": {"line": "64KiB"}});
    let mut gateway = served(server).await;
    let session = gateway.session("a", "main").await;
    for (tool, args, why) in [
        (
            "close_stdout",
            json!({}),
            "closed its stdin or stdout and runs on",
        ),
        (
            "big",
            json!({"bytes": 70_000}),
            "wrote a line above limits.line",
        ),
    ] {
        session.call(tool, args).await;
        let wanted = format!("the shared child {why}: it is ended");
        let said = gateway.says(&wanted).await;
        assert_eq!(said["message"], wanted, "{said}");
        assert_eq!(said["server.name"], "main", "{said}");
        assert!(said["signal"].is_null(), "{said}");
    }
}

/// More subscriptions than the channels between session and child hold, in each direction.
#[tokio::test]
async fn many_subscriptions_outlive_a_shared_child() {
    let gateway = served(json!({"command": child(), "isolation": "tenant"})).await;
    let (mut one, mut two) = (gateway.stranger("a", "main"), gateway.stranger("a", "main"));
    let wanted = 1500;
    for session in [&mut one, &mut two] {
        session.initialize("2025-03-26").await;
        let numbers: Vec<usize> = (0..wanted).collect();
        let batches = numbers.chunks(100).map(async |numbers| {
            let subscribe = numbers.iter().map(|number| {
                json!({"jsonrpc": "2.0", "id": number, "method": "resources/subscribe",
                    "params": {"uri": format!("test://{number}")}})
            });
            let answers = body(session.post(&subscribe.collect()).await).await;
            assert_eq!(answers.matches(r#""result""#).count(), 100, "{answers}");
        });
        futures_util::future::join_all(batches).await;
    }
    let first = whoami(&one).await;
    let pid = i32::try_from(first.as_u64().unwrap()).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    for session in [&one, &two] {
        until("all subscriptions again", || async {
            let answer = session.call("subscribed", json!({})).await;
            let text = answer["result"]["content"][0]["text"].as_str();
            // A call during the end of the child gets an error.
            let known: BTreeSet<String> = serde_json::from_str(text.unwrap_or("[]")).unwrap();
            known.len() == wanted && whoami(session).await != first
        })
        .await;
    }
}

#[tokio::test]
async fn a_shared_child_without_work_is_stopped_and_the_sessions_stay() {
    let server = json!({"command": child(), "isolation": "tenant", "idle": "300ms"});
    let gateway = served(server).await;
    let (one, two) = (
        gateway.session("a", "main").await,
        gateway.session("a", "main").await,
    );
    let first = whoami(&one).await;
    let _listener = two.listen().await;
    until("no child", || async { gateway.descendants().is_empty() }).await;
    let second = whoami(&two).await;
    assert_ne!(first, second);
    assert_eq!(whoami(&one).await, second);
}

/// A call during the stop of a child is answered, by it or by the next child.
#[tokio::test(flavor = "multi_thread")]
async fn a_shared_child_that_is_about_to_go_costs_no_call() {
    let served = served(json!({"command": child(), "isolation": "tenant"})).await;
    // Few sessions: between their calls there are moments without any call.
    let mut sessions = Vec::new();
    for _ in 0..3 {
        sessions.push(served.session("a", "main").await);
    }
    let mut children = BTreeSet::new();
    for _ in 0..40 {
        let calls = sessions.iter().map(async |session| {
            // Before, during and after the restart.
            let mut pids = BTreeSet::new();
            for _ in 0..12 {
                pids.insert(whoami(session).await.to_string());
            }
            pids
        });
        let calls = futures_util::future::join_all(calls);
        let (pids, ()) = tokio::join!(calls, restart(&served));
        children.extend(pids.into_iter().flatten());
    }
    assert!(children.len() > 20, "it was replaced: {children:?}");
}

/// A subscription right before the stop of a child is restored in the next child.
#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_outlives_a_shared_child_that_goes() {
    // The lists of this server never change: only subscriptions start the next child.
    let env = json!({"CHILD_STEADY": "1"});
    let server = json!({"command": child(), "isolation": "tenant", "env": env});
    let served = served(server).await;
    let other = served.session("a", "main").await;
    let (mut sessions, mut listeners) = (Vec::new(), Vec::new());
    for _ in 0..20 {
        let session = served.session("a", "main").await;
        listeners.push(session.listen().await);
        sessions.push(session);
    }
    for round in 0..5 {
        let asked = sessions.iter().enumerate().map(async |(at, session)| {
            tokio::time::sleep(Duration::from_micros(at as u64 * 300)).await;
            let uri = json!({"uri": format!("test://{round}/{at}")});
            let answer = session.ask("resources/subscribe", uri).await;
            assert!(answer["result"].is_object(), "{answer}");
        });
        let asked = futures_util::future::join_all(asked);
        let (_, ()) = tokio::join!(asked, restart(&served));
        // Only `other` sends calls meanwhile.
        let wanted = (round + 1) * sessions.len();
        until("all subscriptions", || async {
            let known = other.text("subscribed", json!({})).await;
            let known: BTreeSet<String> = serde_json::from_str(&known).unwrap();
            known.len() == wanted
        })
        .await;
    }
}

/// Requests a replacement of the children of `main`, which waits for the end of their calls.
async fn restart(served: &Served) {
    let url = format!("{}/api/v1/tenants/a/servers/main/restart", served.origin());
    let asked = client()
        .post(url)
        .bearer_auth(served.administrator())
        .send();
    let answer = within("a restart", asked).await.unwrap();
    assert!(answer.status().is_success(), "{}", answer.status());
}

#[tokio::test]
async fn more_children_serve_one_key_while_all_are_busy() {
    let server = json!({"command": child(), "isolation": "tenant", "max_children": 2});
    let gateway = served(server).await;
    let one = gateway.session("a", "main").await;
    let busy = one.again();
    let call = tokio::spawn(async move { busy.call("sleep", json!({"ms": 1500})).await });
    until("a busy child", || async {
        gateway.children().await[0]["calls"] == 1
    })
    .await;
    let two = gateway.session("a", "main").await;
    let first = whoami(&one).await;
    assert_ne!(whoami(&two).await, first);
    assert_eq!(text_of(&call.await.unwrap()), "slept");
    // Further sessions start no third child.
    for _ in 0..3 {
        gateway.session("a", "main").await;
    }
    assert_eq!(gateway.children().await.len(), 2);
}

#[tokio::test]
async fn a_shared_child_that_cannot_start_refuses_every_session() {
    let gateway = served(json!({"command": "/bin/false", "isolation": "tenant"})).await;
    let stranger = gateway.stranger("a", "main");
    let answer = last(stranger.post(&opening("2025-11-25")).await).await;
    assert_eq!(answer["error"]["code"], -31001, "{answer}");
    let server = json!({"command": child(), "isolation": "principal",
        "env": {"CHILD_NO_INIT": "1"}, "clocks": {"start": "300ms"}});
    let gateway = served(server).await;
    let stranger = gateway.stranger("a", "main");
    let answer = last(stranger.post(&opening("2025-11-25")).await).await;
    assert_eq!(answer["error"]["code"], -31002, "{answer}");
    until("no child", || async { gateway.descendants().is_empty() }).await;
}

/// The client gets the child's error, which does not count as a failed start.
#[tokio::test]
async fn the_error_of_a_shared_child_is_its_clients() {
    let server =
        json!({"command": child(), "isolation": "tenant", "env": {"CHILD_INIT_ERROR": "1"}});
    let gateway = served(server).await;
    let stranger = gateway.stranger("a", "main");
    // More attempts than the failed starts that open a circuit.
    for _ in 0..8 {
        let response = stranger.post(&opening("2025-11-25")).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert!(response.headers().get("mcp-session-id").is_none());
        let error = json!({"code": -32603, "message": "no initialize today"});
        let answer = last(response).await;
        assert_eq!(answer, json!({"jsonrpc": "2.0", "id": 0, "error": error}));
    }
    until("no child", || async { gateway.descendants().is_empty() }).await;
}

/// A subscription without an answer does not keep a child busy.
#[tokio::test]
async fn a_subscription_that_is_never_answered_keeps_no_child() {
    let server = |call: &str| {
        json!({"command": child(), "isolation": "tenant", "idle": "200ms",
            "clocks": {"call": call}, "env": {"CHILD_SILENT": "resources/subscribe"}})
    };
    let uri = json!({"uri": "test://one"});
    let gateway = served(server("200ms")).await;
    let session = gateway.session("a", "main").await;
    let answer = session.ask("resources/subscribe", uri.clone()).await;
    assert_eq!(answer["error"]["code"], -31002, "{answer}");
    until("no child", || async { gateway.descendants().is_empty() }).await;
    // A cancelled subscription does not keep it busy either.
    let gateway = served(server("60s")).await;
    let session = gateway.session("a", "main").await;
    let ask = json!({"jsonrpc": "2.0", "id": 7, "method": "resources/subscribe", "params": uri});
    let other = session.again();
    let asked = tokio::spawn(async move { other.post(&ask).await.status() });
    until("the call", || async {
        let mut calls = received(&session).await.into_iter();
        calls.any(|call| call["method"] == "resources/subscribe")
    })
    .await;
    let taken_back = json!({"requestId": 7});
    session.notify("notifications/cancelled", taken_back).await;
    assert_eq!(asked.await.unwrap(), StatusCode::OK);
    until("no child", || async { gateway.descendants().is_empty() }).await;
}

/// A session that does not read delays no other session of the same child.
#[tokio::test]
async fn a_session_that_does_not_read_holds_up_no_other() {
    let server = json!({"command": child(), "isolation": "principal"});
    let gateway = served(server).await;
    let (one, two) = (
        gateway.session("a", "main").await,
        gateway.session("a", "main").await,
    );
    let silent = two.get(None).await;
    let text = "x".repeat(10_000);
    one.text("burst", json!({"n": 2000, "text": text})).await;
    let began = tokio::time::Instant::now();
    assert_eq!(one.text("echo", json!({"text": "x"})).await, "x");
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "{:?}",
        began.elapsed()
    );
    drop(silent);
}

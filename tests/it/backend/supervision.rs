//! Supervision of children: loss, idle stops, backoff, warm children, bounds on starts.

use std::{collections::BTreeSet, time::Duration};

use reqwest::StatusCode;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    auth::{api_keys::key, external_tokens::bearer},
    support::{
        gauges::Gauge,
        harness::{Gateway, Session, child, last, opening, text_of, tool_call, until, within},
        served::Served,
    },
};

/// A gateway with one tenant and this server, `main`.
async fn served(server: Value) -> Served {
    Served::start(
        json!({}),
        json!({"a": {"auth": {"mode": "none"}, "servers": {"main": server}}}),
    )
    .await
}

/// The pid of the session's child.
async fn pid(session: &Session) -> u32 {
    let who: Value = serde_json::from_str(&session.text("whoami", json!({})).await).unwrap();
    who["pid"].as_u64().unwrap().try_into().unwrap()
}

fn kill(pid: u32) {
    let pid = Pid::from_raw(pid.cast_signed()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
}

fn niceness(pid: u32) -> i32 {
    let pid = Pid::from_raw(pid.cast_signed());
    rustix::process::getpriority_process(pid).unwrap()
}

/// Many busy children took the processors from the gateway, and so from every tenant.
#[tokio::test]
async fn children_weigh_less_than_the_gateway_if_told_so_and_in_run_as_much() {
    let server = json!({"command": child()});
    let tenants = json!({"a": {"auth": {"mode": "none"}, "servers": {"main": server}}});
    for (config, more) in [
        (json!({}), 0),
        (json!({"children": {"nice": 3}}), 3),
        (json!({"children": {"nice": 10}}), 10),
    ] {
        let gateway = Served::start(config, tenants.clone()).await;
        let session = gateway.session("a", "main").await;
        let child = niceness(pid(&session).await);
        let own = niceness(gateway.pid());
        assert_eq!(child, (own + more).min(19), "beside {own}");
        let autogroup = std::fs::read_to_string(format!("/proc/{}/autogroup", pid(&session).await));
        if let Ok(group) = autogroup
            && rustix::process::geteuid().is_root()
        {
            assert!(group.ends_with(&format!("nice {more}\n")), "{group}");
        }
    }
    let run = Gateway::start(&["children.nice=3"]).await;
    let session = run.session().await;
    let own = niceness(run.process.id().unwrap());
    assert_eq!(niceness(pid(&session).await), own);
}

/// `SCHED_OTHER` and `SCHED_BATCH`.
const OTHER: u32 = 0;
const BATCH: u32 = 3;

/// The policy of a process (sched(7)): field 41 in `proc_pid_stat(5)`.
fn policy(pid: u32) -> u32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let behind_name = stat.rsplit(')').next().unwrap();
    behind_name.split(' ').nth(39).unwrap().parse().unwrap()
}

/// Each server that was woken interrupted the gateway, which then had the next request a little later.
#[tokio::test]
async fn children_that_are_woken_let_the_gateway_go_on_unless_told_otherwise() {
    let server = json!({"command": child()});
    let tenants = json!({"a": {"auth": {"mode": "none"}, "servers": {"main": server}}});
    for (config, expected) in [
        (json!({}), BATCH),
        (json!({"children": {"batch": false}}), OTHER),
    ] {
        let gateway = Served::start(config, tenants.clone()).await;
        let session = gateway.session("a", "main").await;
        assert_eq!(policy(pid(&session).await), expected);
        assert_eq!(policy(gateway.pid()), OTHER);
    }
    let run = Gateway::start(&[]).await;
    let session = run.session().await;
    assert_eq!(policy(pid(&session).await), BATCH);
}

/// A process with less memory than the gateway was spared, and the sessions of all tenants ended.
#[tokio::test]
async fn servers_end_before_the_gateway_when_memory_ends() {
    let score = |pid: u32| -> i32 {
        let text = std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap();
        text.trim().parse().unwrap()
    };
    let gateway = served(json!({"command": child()})).await;
    let session = gateway.session("a", "main").await;
    let own = score(std::process::id());
    assert_eq!(score(gateway.pid()), own);
    assert_eq!(score(pid(&session).await), own.max(800));
}

/// A call of `hang` as the child received it, in a JSON string.
const HANG: &str = r#"\"name\":\"hang\""#;

fn code(answer: &Value) -> i64 {
    answer["error"]["code"].as_i64().unwrap_or_default()
}

fn reason(answer: &Value) -> &str {
    answer["error"]["data"]["reason"]
        .as_str()
        .unwrap_or_default()
}

async fn is_gone(gateway: &Served, pid: u32) {
    until("the end of a child", || async {
        !gateway.descendants().contains(&pid)
    })
    .await;
}

#[tokio::test]
async fn a_killed_child_costs_the_call_and_not_the_session() {
    let gateway = served(json!({"command": child()})).await;
    let session = gateway.session("a", "main").await;
    let level = session
        .ask("logging/setLevel", json!({"level": "error"}))
        .await;
    assert!(level["result"].is_object(), "{level}");
    session
        .ask("resources/subscribe", json!({"uri": "test://one"}))
        .await;
    let first = pid(&session).await;
    let other = session.again();
    let call = tokio::spawn(async move { (other.call("hang", json!({})).await, Instant::now()) });
    until("the call has begun", || async {
        let received = session.text("received", json!({})).await;
        received.contains(HANG)
    })
    .await;
    let killed = Instant::now();
    kill(first);
    let (answer, ended) = within("the end of the call", call).await.unwrap();
    assert_eq!((code(&answer), reason(&answer)), (-31001, "backend_exited"));
    assert_eq!(answer["error"]["data"]["retryable"], false, "{answer}");
    assert!(
        ended - killed < Duration::from_millis(250 * 5),
        "{:?}",
        ended - killed
    );
    let second = pid(&session).await;
    assert_ne!(first, second);
    let received: Vec<String> =
        serde_json::from_str(&session.text("received", json!({})).await).unwrap();
    let methods: Vec<Value> = received
        .iter()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["method"].clone())
        .collect();
    let expected = [
        "initialize",
        "notifications/initialized",
        "logging/setLevel",
        "resources/subscribe",
    ];
    assert_eq!(methods[..4], expected, "{received:?}");
    let replayed =
        |at: usize| serde_json::from_str::<Value>(&received[at]).unwrap()["params"].clone();
    assert_eq!(replayed(0), opening("2025-11-25")["params"]);
    assert_eq!(replayed(2), json!({"level": "error"}));
    assert_eq!(replayed(3), json!({"uri": "test://one"}));
    assert!(
        !received
            .iter()
            .any(|line| line.contains(r#""name":"hang""#)),
        "never again"
    );
    assert_eq!(
        session.text("subscribed", json!({})).await,
        r#"["test://one"]"#
    );
}

#[tokio::test]
async fn a_crash_is_announced_to_listeners() {
    let gateway = served(json!({"command": child()})).await;
    let session = gateway.session("a", "main").await;
    let first = pid(&session).await;
    let mut listener = session.listen().await;
    kill(first);
    let mut changed = BTreeSet::new();
    while changed.len() < 3 {
        let (_, message) = listener.message().await.unwrap();
        changed.insert(message["method"].as_str().unwrap().to_owned());
    }
    let expected = ["prompts", "resources", "tools"];
    assert_eq!(
        changed,
        expected
            .map(|kind| format!("notifications/{kind}/list_changed"))
            .into()
    );
    assert_ne!(pid(&session).await, first);
}

#[tokio::test]
async fn an_idle_child_is_stopped_and_started_by_the_next_call() {
    let gateway =
        served(json!({"command": child(), "idle": "300ms", "env": {"CHILD_TASKS": "1"}})).await;
    let session = gateway.session("a", "main").await;
    let listener = session.listen().await;
    let first = pid(&session).await;
    // Neither an open GET nor a ping keeps the child alive or starts it.
    is_gone(&gateway, first).await;
    let pong = session.ask("ping", json!({})).await;
    assert!(pong["result"].is_object(), "{pong}");
    assert!(gateway.descendants().is_empty());
    assert_ne!(pid(&session).await, first);
    drop(listener);
}

/// Tasks (2025-11-25): a child stays until the result is fetched or the TTL is over.
#[tokio::test]
async fn a_task_keeps_a_child_for_as_long_as_it_lives() {
    let gateway =
        served(json!({"command": child(), "idle": "300ms", "env": {"CHILD_TASKS": "1"}})).await;
    let begin = async |ttl: Value| {
        let session = gateway.session("a", "main").await;
        let first = pid(&session).await;
        let task = json!({"task": {"taskId": "t", "status": "working", "ttl": ttl}});
        let call = json!({"name": "result", "arguments": {"result": task}, "task": {}});
        let made = session.ask("tools/call", call).await;
        assert_eq!(made["result"]["task"]["taskId"], "t", "{made}");
        (session, first, Instant::now())
    };
    let (_session, first, began) = begin(json!(1200)).await;
    is_gone(&gateway, first).await;
    let lived = began.elapsed();
    assert!(lived >= Duration::from_millis(1200), "{lived:?}");
    assert!(lived < Duration::from_secs(30), "{lived:?}");
    let (session, first, _) = begin(Value::Null).await;
    let fetched = session.ask("tasks/result", json!({"taskId": "t"})).await;
    assert!(fetched["result"].is_object(), "{fetched}");
    is_gone(&gateway, first).await;
}

#[tokio::test]
async fn a_subscription_keeps_a_child_and_so_does_a_call() {
    let gateway = served(json!({"command": child(), "idle": "800ms"})).await;
    let session = gateway.session("a", "main").await;
    let first = pid(&session).await;
    let slept = session.text("sleep", json!({"ms": 2000})).await;
    assert_eq!(slept, "slept");
    assert_eq!(pid(&session).await, first);
    session
        .ask("resources/subscribe", json!({"uri": "test://one"}))
        .await;
    let mut listener = session.listen().await;
    tokio::time::sleep(Duration::from_millis(2000)).await;
    session.text("touch", json!({"uri": "test://one"})).await;
    let (_, updated) = listener.message().await.unwrap();
    assert_eq!(updated["method"], "notifications/resources/updated");
    assert_eq!(pid(&session).await, first);
    session
        .ask("resources/unsubscribe", json!({"uri": "test://one"}))
        .await;
    is_gone(&gateway, first).await;
}

#[tokio::test]
async fn requests_of_a_dead_child_are_withdrawn() {
    let gateway = served(json!({"command": child()})).await;
    let session = gateway.session("a", "main").await;
    let first = pid(&session).await;
    let message = json!({"kind": "elicitation", "message": "?"});
    let mut stream = session.stream("ask", message, json!("t")).await;
    let (_, ask) = stream.message().await.unwrap();
    assert!(ask["id"].is_u64(), "{ask}");
    kill(first);
    let (_, taken_back) = stream.message().await.unwrap();
    assert_eq!(taken_back["method"], "notifications/cancelled");
    assert_eq!(taken_back["params"]["requestId"], ask["id"]);
    let (_, end) = stream.message().await.unwrap();
    assert_eq!(code(&end), -31001, "{end}");
    assert!(stream.message().await.is_none());
}

#[tokio::test]
async fn a_child_that_offers_less_than_before_ends_the_session() {
    let dir = tempfile::tempdir().unwrap();
    let flag = dir.path().join("flag");
    // The second start answers in another revision.
    let script = format!(
        "if [ -e {flag} ]; then export CHILD_REVISION=2025-03-26; fi; touch {flag}; exec {}",
        child(),
        flag = flag.display()
    );
    let gateway = served(json!({"command": "/bin/sh", "args": ["-c", script],
        "sandbox": {"profile": "open"}}))
    .await;
    let session = gateway.session("a", "main").await;
    kill(pid(&session).await);
    let echo = tool_call(json!(5), "echo", json!({"text": "x"}));
    until("the end of the session", || async {
        session.post(&echo).await.status() == StatusCode::NOT_FOUND
    })
    .await;
}

#[tokio::test]
async fn a_child_that_refuses_to_take_the_place_of_another_says_so() {
    for isolation in ["session", "tenant"] {
        let dir = tempfile::tempdir().unwrap();
        let script = format!(
            "if [ -e {flag} ]; then export CHILD_INIT_ERROR=1; fi; touch {flag}; exec {}",
            child(),
            flag = dir.path().join("flag").display()
        );
        let gateway = served(json!({"command": "/bin/sh", "args": ["-c", script],
            "isolation": isolation, "sandbox": {"profile": "open"}}))
        .await;
        let session = gateway.session("a", "main").await;
        kill(pid(&session).await);
        until("a refusal", || async {
            let answer = session.call("echo", json!({"text": "x"})).await;
            let data = json!({"reason": "backend_refused", "retryable": false});
            code(&answer) == -31001 && answer["error"]["data"] == data
        })
        .await;
    }
}

#[tokio::test]
async fn a_failing_server_is_left_alone_and_others_are_served() {
    let gateway = Served::start(
        json!({}),
        json!({"a": {"auth": {"mode": "none"}, "servers": {
            "main": {"command": child()}, "bad": {"command": "/bin/false"},
        }}}),
    )
    .await;
    let stranger = gateway.stranger("a", "bad");
    let mut began = Instant::now();
    let mut answers = Vec::new();
    loop {
        let response = stranger.post(&opening("2025-11-25")).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert!(response.headers().get("mcp-session-id").is_none());
        let answer = last(response).await;
        assert_eq!(code(&answer), -31001, "{answer}");
        answers.push(reason(&answer).to_owned());
        if reason(&answer) == "circuit_open" {
            break;
        }
        began = Instant::now();
        assert!(answers.len() < 10, "{answers:?}");
    }
    assert_eq!(answers.len(), 6, "five failed starts open it: {answers:?}");
    assert!(began.elapsed() < Duration::from_millis(50 * 5));
    assert_eq!(
        gateway
            .session("a", "main")
            .await
            .text("echo", json!({"text": "x"}))
            .await,
        "x"
    );
    let ready = gateway.ops("/readyz").await;
    assert!(ready.contains("\"ready\""), "{ready}");
    assert!(
        gateway
            .ops("/metrics")
            .await
            .contains("lockgate_circuits_opened_total 1")
    );
}

/// Each such start counted as a failure of the server, whose circuit opened for everybody.
#[tokio::test]
async fn a_machine_without_processes_is_no_failure_of_a_server() {
    for isolation in ["session", "tenant"] {
        let gateway = served(json!({"command": child(), "isolation": isolation})).await;
        Gauge::at(gateway.pid()).bound_guards(6).await;
        let stranger = gateway.stranger("a", "main");
        for _ in 0..7 {
            let response = stranger.post(&opening("2025-11-25")).await;
            let status = response.status();
            assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{isolation}");
        }
    }
}

/// The circuit opened for everybody: a client shut all others out of a server by an `initialize` that
/// it dies of.
#[tokio::test]
async fn a_client_whose_initialize_ends_the_child_shuts_no_other_out() {
    let keys = [key(), key()];
    let declared = keys.iter().zip(["eve", "ada"]).map(|((_, hash), subject)| {
        let key = json!({"hash": hash, "subject": subject, "servers": ["*"]});
        (subject.to_owned(), key)
    });
    let declared = Value::Object(declared.collect());
    let servers = json!({
        "main": {"command": child()},
        "warm": {"command": child(), "warm": 1},
    });
    let gateway = Served::start(
        json!({}),
        json!({
            "a": {"auth": {"mode": "keys"}, "api_keys": declared, "servers": servers},
            "open": {"auth": {"mode": "none"}, "servers": servers},
        }),
    )
    .await;
    let mut killing = opening("2025-11-25");
    killing["params"]["clientInfo"]["name"] = "killer".into();
    for (tenant, server) in [
        ("a", "main"),
        ("a", "warm"),
        ("open", "main"),
        ("open", "warm"),
    ] {
        let (mut killer, mut other) = (
            gateway.stranger(tenant, server),
            gateway.stranger(tenant, server),
        );
        if tenant == "a" {
            killer.http = bearer(&keys[0].0);
            other.http = bearer(&keys[1].0);
        }
        let mut answers = Vec::new();
        while answers.last().is_none_or(|last| last != "circuit_open") {
            let answer = last(killer.post(&killing).await).await;
            assert_eq!(code(&answer), -31001, "{answer}");
            answers.push(reason(&answer).to_owned());
            assert!(answers.len() < 12, "{tenant}/{server}: {answers:?}");
        }
        assert!(answers.len() >= 6, "{tenant}/{server}: {answers:?}");
        other.initialize("2025-11-25").await;
        assert_eq!(other.text("echo", json!({"text": "x"})).await, "x");
        let answer = last(killer.post(&killing).await).await;
        assert_eq!(
            reason(&answer),
            "circuit_open",
            "{tenant}/{server}: {answer}"
        );
    }
}

#[tokio::test]
async fn a_session_whose_child_keeps_crashing_is_answered_at_once_and_no_other_is() {
    let gateway = served(json!({"command": child()})).await;
    let (session, other) = (
        gateway.session("a", "main").await,
        gateway.session("a", "main").await,
    );
    let mut answers = Vec::new();
    for _ in 0..8 {
        let answer = session.call("exit", json!({"code": 1})).await;
        assert_eq!(code(&answer), -31001, "{answer}");
        answers.push(reason(&answer).to_owned());
    }
    assert_eq!(answers[..6], vec!["backend_exited"; 6][..]);
    assert_eq!(answers[6..], vec!["circuit_open"; 2][..]);
    assert_eq!(other.text("echo", json!({"text": "x"})).await, "x");
}

#[tokio::test]
async fn starts_are_bounded_and_wait_their_turn() {
    let config = json!({"spawn": {"parallel": 2, "wait": "15s", "children": 30}});
    let env = json!({"CHILD_START_MS": "100"});
    let server = json!({"command": child(), "env": env});
    let tenant = json!({"auth": {"mode": "none"}, "servers": {"main": server}});
    // Three tenants, of which each may have one of two slots.
    let tenants = json!({"a": tenant, "b": tenant, "c": tenant});
    let gateway = Served::start(config, tenants).await;
    let opened = (0..7).flat_map(|_| ["a", "b", "c"].map(|tenant| gateway.session(tenant, "main")));
    let mut opened = Box::pin(futures_util::future::join_all(opened));
    let mut most = 0;
    let sessions = loop {
        tokio::select! {
            sessions = &mut opened => break sessions,
            children = gateway.children() => {
                let starting = children.iter().filter(|one| one["state"] == "starting").count();
                most = most.max(starting);
            }
        }
    };
    assert_eq!(most, 2, "never more, and never fewer for long");
    assert_eq!(sessions.len(), 21);
    assert_eq!(gateway.children().await.len(), 21);
}

#[tokio::test]
async fn silent_servers_of_one_tenant_stop_no_other() {
    let config = json!({"spawn": {"parallel": 4}});
    let silent = json!({"command": child(), "env": {"CHILD_START_MS": "600000"}});
    let gateway = Served::start(
        config,
        json!({"a": {"auth": {"mode": "none"}, "servers": {"main": silent}},
               "b": {"auth": {"mode": "none"}, "servers": {"main": {"command": child()}}}}),
    )
    .await;
    let opened: Vec<_> = (0..6)
        .map(|_| {
            let stranger = gateway.stranger("a", "main");
            tokio::spawn(async move { stranger.post(&opening("2025-11-25")).await.status() })
        })
        .collect();
    until("the tenant has its share", || async {
        gateway.children().await.len() == 3
    })
    .await;
    gateway.session("b", "main").await;
    let starting = gateway.children().await;
    let starting = starting.iter().filter(|one| one["state"] == "starting");
    assert_eq!(starting.count(), 3, "never more than three quarters");
    for one in opened {
        one.abort();
    }
}

/// Two tenants can have all slots between them.
#[tokio::test]
async fn silent_servers_of_two_tenants_delay_a_third_for_the_time_of_a_slot() {
    let config = json!({"spawn": {"parallel": 4}});
    let silent = json!({"command": child(), "env": {"CHILD_START_MS": "600000"}});
    let silent = json!({"auth": {"mode": "none"}, "servers": {"main": silent}});
    let quiet = json!({"auth": {"mode": "none"}, "servers": {"main": {"command": child()}}});
    let tenants = json!({"a": silent, "b": silent, "quiet": quiet});
    let gateway = Served::start(config, tenants).await;
    let opened: Vec<_> = ["a", "b"]
        .repeat(4)
        .into_iter()
        .map(|tenant| {
            let stranger = gateway.stranger(tenant, "main");
            tokio::spawn(async move { stranger.post(&opening("2025-11-25")).await.status() })
        })
        .collect();
    until("no slot is free", || async {
        gateway.children().await.len() == 4
    })
    .await;
    let began = Instant::now();
    gateway.session("quiet", "main").await;
    let waited = began.elapsed();
    assert!(waited <= Duration::from_secs(8), "{waited:?}");
    for one in opened {
        one.abort();
    }
}

#[tokio::test]
async fn beyond_the_room_of_the_gateway_503_and_beyond_the_tenants_429() {
    let config = json!({"spawn": {"wait": "200ms", "children": 2}});
    let tenants = json!({
        "a": {"auth": {"mode": "none"}, "quotas": {"children": 1},
              "servers": {"main": {"command": child()}}},
        "b": {"auth": {"mode": "none"}, "servers": {"main": {"command": child()}}},
    });
    let gateway = Served::start(config, tenants).await;
    let first = gateway.session("a", "main").await;
    let refused = gateway
        .stranger("a", "main")
        .post(&opening("2025-11-25"))
        .await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(refused.headers().get("retry-after").is_some());
    let _second = gateway.session("b", "main").await;
    let began = Instant::now();
    let refused = gateway
        .stranger("b", "main")
        .post(&opening("2025-11-25"))
        .await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(refused.headers().get("retry-after").is_some());
    assert!(began.elapsed() >= Duration::from_millis(200));
    // The end of a session frees its place.
    first.delete().await;
    until("room again", || async {
        let response = gateway
            .stranger("a", "main")
            .post(&opening("2025-11-25"))
            .await;
        response.status() == StatusCode::OK
    })
    .await;
}

#[tokio::test]
async fn warm_children_are_handed_out_and_refilled() {
    let env = json!({"CHILD_START_MS": "300"});
    let gateway = served(json!({"command": child(), "warm": 2, "env": env})).await;
    until("two warm children", || async {
        let children = gateway.children().await;
        children.len() == 2 && children.iter().all(|one| one["pid"].is_u64())
    })
    .await;
    let warm = gateway.children().await;
    let session = gateway.session("a", "main").await;
    let used = pid(&session).await;
    let pids: Vec<u32> = warm
        .iter()
        .filter_map(|one| one["pid"].as_u64()?.try_into().ok())
        .collect();
    assert!(pids.contains(&used), "{pids:?} {used}");
    until("a refill", || async { gateway.children().await.len() == 3 }).await;
    // A warm child that dies is replaced.
    let shelf = gateway.children().await;
    let idle = shelf.iter().find(|one| one["pid"] != used).unwrap();
    kill(idle["pid"].as_u64().unwrap().try_into().unwrap());
    until("another one", || async {
        let children = gateway.children().await;
        children.len() == 3 && !children.iter().any(|one| one["number"] == idle["number"])
    })
    .await;
}

#[tokio::test]
async fn what_runs_can_be_seen() {
    let gateway = served(json!({"command": child()})).await;
    let session = gateway.session("a", "main").await;
    session.text("stderr", json!({"bytes": 500})).await;
    let other = session.again();
    let call = tokio::spawn(async move { other.call("sleep", json!({"ms": 400})).await });
    until("a busy child", || async {
        gateway.children().await[0]["state"] == "busy"
    })
    .await;
    let seen = gateway.children().await.remove(0);
    assert_eq!(
        (&seen["tenant"], &seen["server"]),
        (&json!("a"), &json!("main"))
    );
    assert_eq!((&seen["calls"], &seen["restarts"]), (&json!(1), &json!(0)));
    assert!(seen["memory"].as_u64().unwrap() > 100_000, "{seen}");
    assert!(
        seen["stderr"][0].as_str().unwrap().starts_with("eee"),
        "{seen}"
    );
    assert_eq!(text_of(&call.await.unwrap()), "slept");
    assert_eq!(seen["pid"], pid(&session).await);
    until("an idle child", || async {
        gateway.children().await[0]["state"] == "idle"
    })
    .await;
    assert!(
        gateway
            .ops("/metrics")
            .await
            .contains("lockgate_children_state{state=\"idle\"} 1")
    );
}

/// 2025-03-26 basic, "Batching": a server may send batches, too.
#[tokio::test]
async fn an_array_of_the_child_is_taken_apart() {
    for isolation in ["session", "tenant"] {
        let env = json!({"CHILD_REVISION": "2025-03-26"});
        let gateway = served(json!({"command": child(), "isolation": isolation, "env": env})).await;
        let mut session = gateway.stranger("a", "main");
        session.initialize("2025-03-26").await;
        let mut listener = session.listen().await;
        let hanging = session.begin("hang", json!({})).await;
        let received = session.text("received", json!({})).await;
        let received: Vec<String> = serde_json::from_str(&received).unwrap();
        let mut received = received
            .iter()
            .map(|line| serde_json::from_str::<Value>(line).unwrap());
        let call = received
            .find(|one| one["params"]["name"] == "hang")
            .unwrap();
        let line = json!([
            {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"},
            {"jsonrpc": "2.0", "id": call["id"], "result": {}},
            {"jsonrpc": "2.0", "method": "notifications/prompts/list_changed"},
        ]);
        session
            .begin("raw", json!({"line": line.to_string()}))
            .await;
        for kind in ["tools", "prompts"] {
            let (_, message) = listener.message().await.unwrap();
            assert_eq!(
                message["method"],
                format!("notifications/{kind}/list_changed")
            );
        }
        assert_eq!(last(hanging).await["result"], json!({}), "{isolation}");
    }
}

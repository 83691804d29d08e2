//! Sentences of the specification about sessions and their messages, each named where it is tested.

use std::{collections::BTreeSet, time::Duration};

use reqwest::StatusCode;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::support::{
    harness::{Events, Session, child, json_of, last, opening, text_of, tool_call, until, within},
    served::Served,
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
        let different: BTreeSet<String> = ids.iter().map(|id| id.to_string()).collect();
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

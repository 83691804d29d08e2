//! Clients of revision 2026-07-28 at two replicas: their calls leave no trace in the store, and a retry
//! finds its call through any replica.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{
    harness::{Events, child, json_of, text_of, until, within},
    modern::{Modern, asked},
    pair::Pair,
};

/// Two replicas of a tenant without authentication.
async fn pair() -> Pair {
    pair_of(json!({"x": {"command": child()}})).await
}

async fn pair_of(servers: Value) -> Pair {
    let tenants = json!({"a": {"auth": {"mode": "none"}, "servers": servers}});
    Pair::of(json!({"public_url": "http://127.0.0.1:8080"}), tenants).await
}

/// A client of each replica, which can be asked for anything.
fn clients(pair: &Pair) -> [Modern; 2] {
    pair.both().map(|replica| {
        let url = format!("{}/t/a/x/mcp", replica.origin());
        Modern::at(&url).with(json!({"elicitation": {}, "sampling": {}, "roots": {}}))
    })
}

fn question(client: &Modern) -> Value {
    client.tool("ask", json!({"kind": "elicitation", "message": "Who?"}))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_reads_on_through_the_other_replica() {
    let pair = pair().await;
    let [first, second] = clients(&pair);
    for _ in 0..2 {
        let call = question(&first);
        let required = first.answer(&call).await;
        let key = asked(&required)[0].0.clone();
        let response = json!({"action": "accept", "content": {"name": "Ada"}});
        let retry = second.retry(&call, &required, json!({key: response}));
        let response = second.post(&retry).await;
        assert!(!response.headers().contains_key("mcp-session-id"));
        let answer = json_of(response).await;
        assert_eq!(answer["id"], retry["id"], "{answer}");
        assert!(text_of(&answer).contains("Ada"), "{answer}");
        let again = second.post(&retry).await;
        assert_eq!(again.status(), 400, "used");
    }
    let received = first.text("received", json!({})).await;
    assert_eq!(
        received.matches(r#"\"name\":\"ask\""#).count(),
        2,
        "{received}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_and_subscriptions_leave_nothing_in_the_store() {
    let pair = pair().await;
    let [first, second] = clients(&pair);
    let session = pair.both()[0].session("a", "x").await;
    let of_sessions = |keys: &[String]| keys.iter().filter(|key| key.contains('{')).count();
    let before = of_sessions(&pair.redis.keys());
    assert!(before > 0, "a session-based client has its record there");
    for client in [&first, &second] {
        let mut call = client.tool("slow", json!({"n": 5, "ms": 1}));
        call["params"]["_meta"]["progressToken"] = json!(1);
        let messages = Events::of(client.post(&call).await).messages().await;
        assert_eq!(messages.len(), 6);
        let (_, mut events) = client.listen(json!({"toolsListChanged": true})).await;
        let changed = json!({"method": "notifications/tools/list_changed", "params": {}});
        client.text("notify", changed).await;
        assert!(events.message().await.is_some());
        let required = client.answer(&question(client)).await;
        assert_eq!(asked(&required).len(), 1);
    }
    assert_eq!(of_sessions(&pair.redis.keys()), before);
    drop(session);
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_go_on_while_redis_is_away() {
    let pair = pair().await;
    let [first, _] = clients(&pair);
    assert_eq!(first.text("counter", json!({})).await, "1");
    let call = question(&first);
    let required = first.answer(&call).await;
    pair.redis.pause();
    let key = asked(&required)[0].0.clone();
    let retry = first.retry(&call, &required, json!({key: {"action": "decline"}}));
    let answer = first.answer(&retry).await;
    pair.redis.resume();
    assert_eq!(answer["result"]["resultType"], "complete", "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_drains_passes_requests_on() {
    let schema =
        r#"{"type":"object","properties":{"text":{"type":"string","x-mcp-header":"Text"}}}"#;
    let server = json!({"command": child(), "env": {"CHILD_SCHEMA": schema}});
    let tenants = json!({"a": {"auth": {"mode": "none"}, "servers": {"x": server}}});
    let drain = json!({"delay": "5s", "timeout": "2s"});
    let config = json!({"public_url": "http://127.0.0.1:8080", "drain": drain});
    let pair = Pair::of(config, tenants).await;
    let [first, second] = clients(&pair);
    let pid = async |client: &Modern| -> Value {
        let who = client.text("whoami", json!({})).await;
        serde_json::from_str::<Value>(&who).unwrap()["pid"].clone()
    };
    let of_second = pid(&second).await;
    assert_ne!(pid(&first).await, of_second);
    let parked = async || {
        let call = question(&first);
        let required = first.answer(&call).await;
        let key = asked(&required)[0].0.clone();
        first.retry(&call, &required, json!({key: {"action": "decline"}}))
    };
    let (here, there) = (parked().await, parked().await);
    pair.both()[0].send(Signal::TERM);
    until("requests go to the successor", || async {
        pid(&first).await == of_second
    })
    .await;
    // The field that mirrors an argument comes along.
    for (field, status) in [(Some("x"), 200), (Some("y"), 400), (None, 400)] {
        let mut request = first.request(&first.tool("echo", json!({"text": "x"})));
        if let Some(field) = field {
            request = request.header("Mcp-Param-Text", field);
        }
        let response = within("a response", request.send()).await.unwrap();
        assert_eq!(response.status(), status, "{field:?}");
    }
    for (client, retry) in [(&first, here), (&second, there)] {
        let answer = client.answer(&retry).await;
        assert_eq!(answer["result"]["resultType"], "complete", "{answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_of_a_replica_that_is_gone_says_so() {
    let pair = pair().await;
    let [first, second] = clients(&pair);
    let call = question(&second);
    let required = second.answer(&call).await;
    let key = asked(&required)[0].0.clone();
    pair.both()[1].send(Signal::KILL);
    let retry = first.retry(&call, &required, json!({key: {"action": "decline"}}));
    until("the loss is known", || async {
        let response = first.post(&retry).await;
        let status = response.status();
        let answer = json_of(response).await;
        status == 200 && answer["error"]["data"]["reason"] == "owner_lost"
    })
    .await;
    let received = first.text("received", json!({})).await;
    assert!(
        !received.contains(r#"\"name\":\"ask\""#),
        "never executed again: {received}"
    );
}

/// The state of a server of this revision is all that the retry of a call needs (2026-07-28 mrtr).
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_a_server_without_sessions_asks_in_outlives_its_replica() {
    let server = json!({"command": child(), "env": {"CHILD_ERA": "modern"}});
    let pair = pair_of(json!({"x": server, "y": server})).await;
    let [first, second] = clients(&pair);
    let of_sessions = || {
        let keys = pair.redis.keys();
        keys.iter().filter(|key| key.contains('{')).count()
    };
    let before = of_sessions();
    let call = first.tool("ask", json!({"kind": "roots", "times": 3}));
    let answers = |client: &Modern, required: &Value| {
        client.retry(&call, required, json!({"first": {"roots": []}}))
    };
    let required = first.answer(&call).await;
    let required = second.answer(&answers(&first, &required)).await;
    let required = first.answer(&answers(&second, &required)).await;
    assert_eq!(asked(&required)[0].1, "roots/list");
    assert_eq!(of_sessions(), before, "nothing is written");
    pair.both()[0].send(Signal::KILL);
    let retry = answers(&second, &required);
    let elsewhere = Modern::at(&second.url.replace("/x/", "/y/")).with(json!({"roots": {}}));
    assert_eq!(elsewhere.post(&retry).await.status(), 400, "another server");
    let answer = second.answer(&retry).await;
    assert_eq!(text_of(&answer), r#"{"first":{"roots":[]}}"#);
    assert_eq!(second.post(&retry).await.status(), 400, "used");
}

/// "Servers for which a given `requestState` must be consumed at most once MUST enforce that invariant" (2026-07-28
/// mrtr, "Server Requirements"), and no server behind the gateway can: it may have a child at each replica.
#[tokio::test(flavor = "multi_thread")]
async fn a_carried_ticket_works_once_at_all_replicas() {
    let server = json!({"command": child(), "env": {"CHILD_ERA": "modern"}});
    let pair = pair_of(json!({"x": server})).await;
    let [first, second] = clients(&pair);
    let roots = json!({"first": {"roots": []}});
    for _ in 0..8 {
        let call = first.tool("ask", json!({"kind": "roots"}));
        let required = first.answer(&call).await;
        let retry = first.retry(&call, &required, roots.clone());
        let both = tokio::join!(first.post(&retry), second.post(&retry));
        let mut both = [both.0.status().as_u16(), both.1.status().as_u16()];
        both.sort_unstable();
        assert_eq!(both, [200, 400]);
        for client in [&first, &second] {
            assert_eq!(client.post(&retry).await.status(), 400, "used");
        }
    }
}

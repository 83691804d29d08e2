//! Tasks of clients of revision 2026-07-28 at two replicas: any replica answers for a task, and a result
//! outlives the replica that had it.

use std::time::Duration;

use reqwest::{Method, StatusCode};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::support::{
    harness::{child, text_of, until},
    modern::Modern,
    oauth_client::send,
    pair::Pair,
};

/// Two replicas of a tenant without authentication.
async fn pair() -> Pair {
    let server = json!({"command": child(), "reply": {"task_after": "100ms"}});
    let tenants = json!({"a": {"auth": {"mode": "none"}, "servers": {"x": server}}});
    let drain = json!({"delay": "1s", "timeout": "5s"});
    let config = json!({"public_url": "http://127.0.0.1:8080", "drain": drain});
    Pair::of(config, tenants).await
}

/// A client of each replica.
fn clients(pair: &Pair) -> [Modern; 2] {
    pair.both().map(|replica| {
        let url = format!("{}/t/a/x/mcp", replica.origin());
        let extensions = json!({"io.modelcontextprotocol/tasks": {}});
        Modern::at(&url).with(json!({"extensions": extensions, "elicitation": {}}))
    })
}

async fn begun(client: &Modern, tool: &str, args: Value) -> Value {
    let created = client.call(tool, args).await;
    assert_eq!(created["result"]["resultType"], "task", "{created}");
    created["result"].clone()
}

/// Keys of tasks in Redis.
fn kept(pair: &Pair) -> usize {
    let keys = pair.redis.keys();
    keys.iter().filter(|key| key.contains("{task:")).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_is_reached_through_the_other_replica() {
    let pair = pair().await;
    let [first, second] = clients(&pair);
    let question = json!({"kind": "elicitation", "message": "Who?", "after": 800});
    let task = begun(&first, "ask", question).await;
    let state = second.polled(&task, "input_required").await;
    let key = state["inputRequests"].as_object().unwrap().keys().next();
    let responses = json!({key.unwrap(): {"action": "decline"}});
    let params = json!({"taskId": task["taskId"], "inputResponses": responses});
    let taken = second.ask("tasks/update", params).await;
    assert_eq!(taken["result"]["resultType"], "complete", "{taken}");
    let state = second.polled(&task, "completed").await;
    assert!(text_of(&state).contains("decline"), "{state}");
    let task = begun(&first, "hang", json!({})).await;
    second.of_task("tasks/cancel", &task).await;
    first.polled(&task, "cancelled").await;
    // A subscription is for the tasks of its own replica.
    let (acknowledged, _) = second.listen(json!({"taskIds": [task["taskId"]]})).await;
    assert_eq!(acknowledged["params"]["notifications"], json!({}));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_outlives_its_replica_and_a_call_does_not() {
    let pair = pair().await;
    let [first, second] = clients(&pair);
    assert_eq!(second.text("echo", json!({"text": "x"})).await, "x");
    assert_eq!(kept(&pair), 0, "a call that is no task");
    let done = begun(&second, "sleep", json!({"ms": 800})).await;
    second.polled(&done, "completed").await;
    let running = begun(&second, "hang", json!({})).await;
    assert_eq!(kept(&pair), 2);
    pair.both()[1].send(Signal::KILL);
    let state = first.polled(&done, "completed").await;
    assert_eq!(text_of(&state), "slept");
    assert_eq!(state["taskId"], done["taskId"]);
    let state = first.polled(&running, "failed").await;
    assert_eq!(state["error"]["data"]["reason"], "owner_lost", "{state}");
    assert_eq!(state["createdAt"], running["createdAt"]);
    let taken = first.of_task("tasks/cancel", &running).await;
    assert_eq!(taken["result"]["resultType"], "complete", "{taken}");
}

/// Each poll waited four seconds for the same replica.
#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_replica_is_not_asked_again_before_its_next_heartbeat() {
    let pair = pair().await;
    let [first, second] = clients(&pair);
    let task = begun(&second, "hang", json!({})).await;
    first.polled(&task, "working").await;
    let get = first.message("tasks/get", json!({"taskId": task["taskId"]}));
    // Where no connection is open at that moment, it cannot be asked.
    let mut is_asked = false;
    for _ in 0..5 {
        pair.both()[1].send(Signal::STOP);
        let mut waits = 0;
        for _ in 0..4 {
            let began = Instant::now();
            first.post(&get).await;
            waits += u32::from(began.elapsed() > Duration::from_secs(2));
        }
        pair.both()[1].send(Signal::CONT);
        // It has failed, if its replica had no heartbeat any more.
        until("an answer", || async {
            let state = first.answer(&get).await["result"].clone();
            let is_lost = state["error"]["data"]["reason"] == "owner_lost";
            let status = if is_lost { "failed" } else { "working" };
            assert!(state.is_null() || state["status"] == status, "{state}");
            !state.is_null()
        })
        .await;
        assert!(waits <= 1, "asked again: {waits}");
        is_asked |= waits == 1;
        if is_asked {
            break;
        }
    }
    assert!(is_asked, "it is asked once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_drains_ends_its_tasks_first() {
    let pair = pair().await;
    let [first, second] = clients(&pair);
    let task = begun(&first, "sleep", json!({"ms": 2000})).await;
    pair.both()[0].send(Signal::TERM);
    // Through either replica, also when the first has gone.
    let state = second.polled(&task, "completed").await;
    assert_eq!(text_of(&state), "slept");
    until("the end of the first", || async {
        let request = first.message("tasks/get", json!({"taskId": task["taskId"]}));
        first.request(&request).send().await.is_err()
    })
    .await;
    let state = second.of_task("tasks/get", &task).await;
    assert_eq!(state["result"]["status"], "completed", "{state}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_go_on_while_redis_is_away() {
    let pair = pair().await;
    let [first, second] = clients(&pair);
    assert_eq!(first.text("counter", json!({})).await, "1");
    pair.redis.pause();
    // Longer than the limiter is waited for.
    let task = begun(&first, "sleep", json!({"ms": 3000})).await;
    let state = second.polled(&task, "completed").await;
    assert_eq!(text_of(&state), "slept");
    pair.redis.resume();
    until("its copy", || async { kept(&pair) == 1 }).await;
    let other = begun(&first, "hang", json!({})).await;
    pair.both()[0].send(Signal::KILL);
    let state = second.polled(&task, "completed").await;
    assert_eq!(text_of(&state), "slept");
    second.polled(&other, "failed").await;
}

/// The others said that it had failed, and took its cancellation for nothing; awake, its replica went on with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_task_of_a_replica_that_was_frozen_has_failed_when_it_wakes() {
    let pair = pair().await;
    // Without other capabilities they have one child, which tells what was cancelled.
    let [first, second] = clients(&pair).map(|client| {
        let extensions = json!({"io.modelcontextprotocol/tasks": {}});
        client.with(json!({"extensions": extensions}))
    });
    let task = begun(&second, "hang", json!({})).await;
    let other = begun(&second, "sleep", json!({"ms": 1500})).await;
    pair.both()[1].send(Signal::STOP);
    // Refused for as long as there is a heartbeat: no order is taken that nobody carries out.
    let request = first.message("tasks/cancel", json!({"taskId": task["taskId"]}));
    until("the cancellation is taken", || async {
        let status = first.post(&request).await.status();
        assert!(status == 503 || status == 200, "{status}");
        status == 200
    })
    .await;
    for task in [&task, &other] {
        first.polled(task, "failed").await;
    }
    pair.both()[1].send(Signal::CONT);
    for client in [&second, &first, &second] {
        for task in [&task, &other] {
            until("its state", || async {
                let state = client.of_task("tasks/get", task).await["result"].clone();
                let reason = &state["error"]["data"]["reason"];
                assert!(state.is_null() || reason == "owner_lost", "{state}");
                !state.is_null()
            })
            .await;
        }
    }
    until("the cancellation at the child", || async {
        let cancelled = second.text("cancelled", json!({})).await;
        cancelled.contains("requestId")
    })
    .await;
}

/// Results were kept for as long as those of others, and the end of a call was written after the deletion.
#[tokio::test(flavor = "multi_thread")]
async fn the_tasks_of_a_deleted_tenant_are_gone_from_redis() {
    let pair = pair().await;
    let [first, second] = clients(&pair);
    let done = begun(&first, "sleep", json!({"ms": 800})).await;
    first.polled(&done, "completed").await;
    begun(&second, "hang", json!({})).await;
    assert_eq!(kept(&pair), 2);
    let operated = pair.both()[0];
    let url = format!("{}/api/v1/tenants/a", operated.origin());
    let gone = send(Method::DELETE, &url, &operated.administrator(), None).await;
    assert_eq!(gone.status, StatusCode::NO_CONTENT, "{}", gone.body);
    until("no copy of a task", || async { kept(&pair) == 0 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_ends_while_redis_is_away_is_copied_when_it_is_back() {
    let mut pair = pair().await;
    let [first, second] = clients(&pair);
    let task = begun(&first, "sleep", json!({"ms": 1000})).await;
    pair.redis.kill();
    first.polled(&task, "completed").await;
    // Its first state could not be copied either, and was tried behind the last one of the other.
    begun(&first, "hang", json!({})).await;
    pair.redis.restart();
    until("the copy of its end", || async {
        let keys = pair.redis.keys();
        let copies = keys.iter().filter(|key| key.contains("{task:"));
        let mut records = copies.map(|key| pair.redis.command(&["HGETALL", key]));
        records.any(|record| format!("{record:?}").contains("slept"))
    })
    .await;
    pair.both()[0].send(Signal::KILL);
    let state = second.polled(&task, "completed").await;
    assert_eq!(text_of(&state), "slept");
}

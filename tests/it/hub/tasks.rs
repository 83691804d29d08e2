//! Tasks of clients of revision 2026-07-28 (extension `io.modelcontextprotocol/tasks`) at session-based
//! servers.

use std::time::Duration;

use reqwest::StatusCode;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::support::{
    gauges::Gauge,
    harness::{Events, Gateway, child, json_of, text_of, until, within},
    modern::{Modern, asked},
};

const EXTENSION: &str = "io.modelcontextprotocol/tasks";
/// Calls become tasks soon.
const SOON: &str = "server.reply.task_after=200ms";

/// Capabilities of a client with the extension.
fn tasks() -> Value {
    json!({"extensions": {EXTENSION: {}}})
}

/// The same of one that can be asked.
fn asks() -> Value {
    json!({"extensions": {EXTENSION: {}}, "elicitation": {}, "roots": {}})
}

/// Calls a tool that becomes a task; the task.
async fn begun(client: &Modern, tool: &str, args: Value) -> Value {
    let created = client.call(tool, args).await;
    assert_eq!(created["result"]["resultType"], "task", "{created}");
    created["result"].clone()
}

async fn update(client: &Modern, task: &Value, responses: Value) -> Value {
    let params = json!({"taskId": task["taskId"], "inputResponses": responses});
    client.ask("tasks/update", params).await
}

/// Status and code of a refusal.
async fn refusal(response: reqwest::Response) -> (u16, i64) {
    let status = response.status().as_u16();
    let code = json_of(response).await["error"]["code"].as_i64();
    (status, code.unwrap_or_default())
}

#[tokio::test]
async fn a_long_call_becomes_a_task_that_is_polled_to_its_end() {
    let gateway = Gateway::start(&[SOON]).await;
    let client = Modern::at(&gateway.url).with(tasks());
    let found = client.ask("server/discover", json!({})).await;
    let extensions = &found["result"]["capabilities"]["extensions"];
    assert_eq!(extensions[EXTENSION], json!({}), "{found}");
    let quick = client.call("echo", json!({"text": "x"})).await;
    assert_eq!(quick["result"]["resultType"], "complete", "{quick}");
    for accept in ["application/json", "text/event-stream"] {
        let mut client = Modern::at(&gateway.url).with(tasks());
        client.accept = accept;
        let task = begun(&client, "sleep", json!({"ms": 1200})).await;
        assert_eq!(task["status"], "working");
        assert!(task["ttlMs"].as_u64().unwrap() > 600_000, "{task}");
        assert!(task["pollIntervalMs"].as_u64().unwrap() > 0);
        for time in ["createdAt", "lastUpdatedAt"] {
            assert!(task[time].as_str().unwrap().ends_with('Z'), "{task}");
        }
        let server = &task["_meta"]["io.modelcontextprotocol/serverInfo"];
        assert_eq!(server["name"], "child");
        // Another connection, as after a restart of the client.
        let again = Modern::at(&gateway.url).with(tasks());
        let found = again.of_task("tasks/get", &task).await;
        assert_eq!(found["result"]["resultType"], "complete");
        assert_eq!(found["result"]["status"], "working", "{found}");
        let state = again.polled(&task, "completed").await;
        assert_eq!(text_of(&state), "slept");
        assert_eq!(state["result"]["resultType"], "complete", "{state}");
        assert_eq!(state["taskId"], task["taskId"]);
        assert_eq!(state["createdAt"], task["createdAt"]);
        assert_ne!(state["lastUpdatedAt"], task["lastUpdatedAt"]);
    }
}

/// "A server MUST NOT return `CreateTaskResult` to a client that did not include the extension capability on
/// its request, regardless of prior declarations".
#[tokio::test]
async fn only_a_client_that_declares_the_extension_gets_tasks() {
    let gateway = Gateway::start(&[SOON]).await;
    let client = Modern::at(&gateway.url).with(tasks());
    let task = begun(&client, "sleep", json!({"ms": 800})).await;
    let other = Modern::at(&gateway.url);
    let answer = other.call("sleep", json!({"ms": 800})).await;
    assert_eq!(text_of(&answer), "slept");
    for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
        let params = json!({"taskId": task["taskId"], "inputResponses": {}});
        let refused = other.post(&other.message(method, params)).await;
        assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
        let error = json_of(refused).await["error"].clone();
        assert_eq!(error["code"], -32021, "{error}");
        let needed = &error["data"]["requiredCapabilities"]["extensions"];
        assert_eq!(needed, &json!({EXTENSION: {}}));
    }
    // Of 2025-11-25, and of no revision.
    for method in ["tasks/result", "tasks/list", "tasks/other"] {
        let request = client.message(method, json!({"taskId": task["taskId"]}));
        assert_eq!(refusal(client.post(&request).await).await, (404, -32601));
    }
    client.polled(&task, "completed").await;
}

#[tokio::test]
async fn a_server_without_the_extension_has_no_tasks() {
    let gateway = Gateway::start(&["server.reply.task_after=0s"]).await;
    let client = Modern::at(&gateway.url).with(tasks());
    let found = client.ask("server/discover", json!({})).await;
    let capabilities = &found["result"]["capabilities"];
    assert!(capabilities.get("extensions").is_none(), "{found}");
    let answer = client.call("sleep", json!({"ms": 800})).await;
    assert_eq!(text_of(&answer), "slept");
    let request = client.message("tasks/get", json!({"taskId": "x"}));
    assert_eq!(refusal(client.post(&request).await).await, (404, -32601));
    let (acknowledged, _) = client.listen(json!({"taskIds": ["x"]})).await;
    assert_eq!(acknowledged["params"]["notifications"], json!({}));
}

#[tokio::test]
async fn a_cancelled_task_ends_at_its_server() {
    let gateway = Gateway::start(&[SOON]).await;
    let client = Modern::at(&gateway.url).with(tasks());
    let task = begun(&client, "hang", json!({})).await;
    let began = Instant::now();
    let cancelled = client.of_task("tasks/cancel", &task).await;
    assert_eq!(cancelled["result"]["resultType"], "complete", "{cancelled}");
    assert!(cancelled["result"].get("status").is_none(), "{cancelled}");
    until("the cancellation at the child", || async {
        client
            .text("cancelled", json!({}))
            .await
            .contains("requestId")
    })
    .await;
    assert!(began.elapsed() < Duration::from_secs(1));
    let state = client.polled(&task, "cancelled").await;
    assert!(state.get("result").is_none(), "{state}");
    // A task that has ended stays as it is.
    let again = client.of_task("tasks/cancel", &task).await;
    assert_eq!(again["result"]["resultType"], "complete", "{again}");
    client.polled(&task, "cancelled").await;
    // One that has its child alone ends it.
    let client = Modern::at(&gateway.url).with(asks());
    let before = gateway.descendants();
    let task = begun(&client, "hang", json!({})).await;
    let new = |now: Vec<u32>| now.iter().any(|pid| !before.contains(pid));
    assert!(new(gateway.descendants()));
    client.of_task("tasks/cancel", &task).await;
    until("the end of its child", || async {
        !new(gateway.descendants())
    })
    .await;
}

#[tokio::test]
async fn a_server_asks_during_a_task_and_goes_on_with_the_answer() {
    let gateway = Gateway::start(&[SOON]).await;
    let client = Modern::at(&gateway.url).with(asks());
    let question = json!({"kind": "elicitation", "message": "Who?", "after": 800});
    let task = begun(&client, "ask", question).await;
    let state = client.polled(&task, "input_required").await;
    let requests = state["inputRequests"].as_object().unwrap();
    let (key, request) = requests.iter().next().unwrap();
    assert_eq!(requests.len(), 1);
    assert_eq!(request["method"], "elicitation/create", "{state}");
    assert_eq!(request["params"]["message"], "Who?");
    let other = client.message("tasks/update", json!({"taskId": task["taskId"]}));
    assert_eq!(refusal(client.post(&other).await).await, (400, -32602));
    // Keys that are not outstanding are ignored.
    let unknown = update(&client, &task, json!({"x": {"action": "decline"}})).await;
    assert_eq!(unknown["result"]["resultType"], "complete", "{unknown}");
    client.polled(&task, "input_required").await;
    let answer = json!({"action": "accept", "content": {"name": "Ada"}});
    let taken = update(&client, &task, json!({key: answer})).await;
    assert_eq!(taken["result"]["resultType"], "complete", "{taken}");
    // Nothing is asked again that was answered.
    let state = client.of_task("tasks/get", &task).await["result"].clone();
    assert_ne!(state["status"], "input_required", "{state}");
    let state = client.polled(&task, "completed").await;
    assert!(text_of(&state).contains("Ada"), "{state}");
}

#[tokio::test]
async fn a_question_of_a_task_beyond_the_share_is_refused() {
    let sets = [SOON, "log.memory=1MiB", "limits.memory=32MiB"];
    let gateway = Gateway::start(&sets).await;
    let client = Modern::at(&gateway.url).with(asks());
    // The event needs room before the question does: the longest one for which there is some.
    let (mut pad, mut told) = (4 << 20, String::new());
    while !told.contains("no room") && pad > 100_000 {
        let question = json!({"kind": "elicitation", "pad": pad, "after": 400});
        let task = begun(&client, "ask", question).await;
        told = text_of(&client.polled(&task, "completed").await);
        pad = pad * 9 / 10;
    }
    assert!(
        told.contains("-32603") && told.contains("no room"),
        "{told}"
    );
}

/// "SHOULD resolve all MRTR exchanges synchronously before responding with a `CreateTaskResult`".
#[tokio::test]
async fn a_question_before_the_task_is_answered_by_a_retry() {
    let gateway = Gateway::start(&["server.reply.task_after=1s"]).await;
    let client = Modern::at(&gateway.url).with(asks());
    let call = client.tool("ask", json!({"kind": "roots"}));
    let required = client.answer(&call).await;
    let key = asked(&required)[0].0.clone();
    let retry = client.retry(&call, &required, json!({key: {"roots": []}}));
    assert!(text_of(&client.answer(&retry).await).contains("roots"));
}

#[tokio::test]
async fn a_task_says_what_its_server_says_of_its_progress() {
    let gateway = Gateway::start(&[SOON]).await;
    let client = Modern::at(&gateway.url).with(tasks());
    let mut call = client.tool("slow", json!({"n": 2, "ms": 700, "says": true}));
    call["params"]["_meta"]["progressToken"] = json!(1);
    let task = client.answer(&call).await["result"].clone();
    until("the progress of the call", || async {
        let state = client.of_task("tasks/get", &task).await["result"].clone();
        state["status"] == "working" && state["statusMessage"] == "step 1"
    })
    .await;
    let state = client.polled(&task, "completed").await;
    assert!(state.get("statusMessage").is_none(), "{state}");
}

/// "If the underlying request resulted in a JSON-RPC error, the task uses `failed` status".
#[tokio::test]
async fn a_call_that_fails_makes_a_task_that_has_failed() {
    let gateway = Gateway::start(&[SOON, "server.clocks.call=1s"]).await;
    let client = Modern::at(&gateway.url).with(tasks());
    let overdue = begun(&client, "hang", json!({})).await;
    let state = client.polled(&overdue, "failed").await;
    assert_eq!(state["error"]["code"], -31002, "{state}");
    assert_eq!(state["statusMessage"], state["error"]["message"]);
    // Its child ends.
    let lost = begun(&client, "hang", json!({})).await;
    client.call("exit", json!({})).await;
    let state = client.polled(&lost, "failed").await;
    assert_eq!(state["error"]["code"], -31001, "{state}");
    assert_eq!(state["error"]["data"]["reason"], "backend_exited");
    let next = begun(&client, "sleep", json!({"ms": 800})).await;
    assert_eq!(text_of(&client.polled(&next, "completed").await), "slept");
}

#[tokio::test]
async fn a_changed_id_is_that_of_no_task() {
    let gateway = Gateway::start(&[SOON]).await;
    let client = Modern::at(&gateway.url).with(tasks());
    let task = begun(&client, "sleep", json!({"ms": 1000})).await;
    let id = task["taskId"].as_str().unwrap();
    let last = if id.ends_with('A') { "B" } else { "A" };
    let changed = format!("{}{last}", &id[..id.len() - 1]);
    for id in [json!(changed), json!("x"), json!(""), json!(7), Value::Null] {
        for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
            let params = json!({"taskId": id, "inputResponses": {}});
            let refused = client.post(&client.message(method, params)).await;
            assert_eq!(refusal(refused).await, (400, -32602), "{method} {id}");
        }
    }
    // The header field names the task too.
    let request = client.message("tasks/cancel", json!({"taskId": id}));
    for name in [None, Some("x")] {
        let bare = client
            .bare(&request)
            .header("MCP-Protocol-Version", "2026-07-28");
        let mut bare = bare.header("Mcp-Method", "tasks/cancel");
        if let Some(name) = name {
            bare = bare.header("Mcp-Name", name);
        }
        let refused = within("a response", bare.send()).await.unwrap();
        assert_eq!(refusal(refused).await, (400, -32020), "{name:?}");
    }
    client.polled(&task, "completed").await;
}

#[tokio::test]
async fn a_subscription_hears_of_tasks() {
    let gateway = Gateway::start(&[SOON]).await;
    let client = Modern::at(&gateway.url).with(asks());
    let question = json!({"kind": "elicitation", "message": "Who?", "after": 1000});
    let task = begun(&client, "ask", question).await;
    let wanted = json!({"taskIds": [task["taskId"], "x"]});
    let (acknowledged, mut events) = client.listen(wanted.clone()).await;
    let agreed = json!({"taskIds": [task["taskId"]]});
    assert_eq!(acknowledged["params"]["notifications"], agreed);
    let id = "io.modelcontextprotocol/subscriptionId";
    let mut heard = async || {
        let (_, message) = events.message().await.unwrap();
        assert_eq!(message["method"], "notifications/tasks", "{message}");
        let params = message["params"].clone();
        assert_eq!(params["taskId"], task["taskId"]);
        assert_eq!(params["_meta"][id], acknowledged["params"]["_meta"][id]);
        params
    };
    assert_eq!(heard().await["status"], "working");
    let state = heard().await;
    assert_eq!(state["status"], "input_required");
    let key = state["inputRequests"].as_object().unwrap().keys().next();
    let key = key.unwrap().clone();
    update(&client, &task, json!({key: {"action": "decline"}})).await;
    let mut state = heard().await;
    if state["status"] == "working" {
        state = heard().await;
    }
    assert_eq!(state["status"], "completed", "{state}");
    assert!(text_of(&state).contains("decline"), "{state}");
    let other = Modern::at(&gateway.url);
    let request = other.message("subscriptions/listen", json!({"notifications": wanted}));
    assert_eq!(refusal(other.post(&request).await).await, (400, -32021));
}

#[tokio::test]
async fn a_principal_has_a_bounded_number_of_tasks() {
    let gateway = Gateway::start(&[SOON]).await;
    let client = Modern::at(&gateway.url).with(tasks());
    let calls = (0..100).map(|_| begun(&client, "hang", json!({})));
    let tasks = futures_util::future::join_all(calls).await;
    let answer = client.call("sleep", json!({"ms": 800})).await;
    assert_eq!(answer["result"]["resultType"], "complete", "{answer}");
    assert_eq!(text_of(&answer), "slept");
    for task in &tasks {
        client.polled(task, "working").await;
    }
}

/// A result is kept in the share of its caller, or not at all.
#[tokio::test]
async fn a_result_beyond_the_share_of_its_caller_is_not_kept() {
    let sets = [SOON, "log.memory=1MiB", "log.bytes=64KiB", "log.events=4"];
    let gateway = Gateway::start(&sets).await;
    let client = Modern::at(&gateway.url).with(tasks());
    let args = |bytes: u32| json!({"ms": 800, "bytes": bytes});
    let task = begun(&client, "sleep", args(600_000)).await;
    let state = client.polled(&task, "failed").await;
    assert_eq!(state["error"]["data"]["reason"], "overloaded", "{state}");
    let task = begun(&client, "sleep", args(10_000)).await;
    client.polled(&task, "completed").await;
}

/// Its answer was held for as long as the task is kept, and counted nowhere.
#[tokio::test]
async fn a_result_that_is_not_kept_takes_no_memory() {
    let soon = "server.reply.task_after=50ms";
    let sets = [soon, "log.memory=1MiB", "log.bytes=64KiB", "log.events=4"];
    let gateway = Gateway::start(&sets).await;
    let client = Modern::at(&gateway.url).with(tasks());
    let fail = async |count: u32| {
        for _ in 0..count {
            let args = json!({"ms": 400, "bytes": 8_000_000});
            let task = begun(&client, "sleep", args).await;
            client.polled(&task, "failed").await;
        }
    };
    // What the first ones take, the allocator keeps for the others.
    fail(3).await;
    let gauge = Gauge::of(&gateway);
    let before = gauge.memory();
    fail(20).await;
    let grown = gauge.memory() - before;
    assert!(grown < 64 << 10, "{grown} KiB");
}

#[tokio::test]
async fn a_task_is_kept_for_as_long_as_it_says() {
    let gateway = Gateway::start(&[SOON, "log.age=1s", "server.clocks.call_max=10s"]).await;
    let client = Modern::at(&gateway.url).with(tasks());
    let task = begun(&client, "sleep", json!({"ms": 800})).await;
    assert_eq!(task["ttlMs"], 11_000);
    let state = client.polled(&task, "completed").await;
    let ttl = state["ttlMs"].as_u64().unwrap();
    assert!((1_000..5_000).contains(&ttl), "{state}");
    let request = client.message("tasks/get", json!({"taskId": task["taskId"]}));
    until("its end", || async {
        refusal(client.post(&request).await).await == (400, -32602)
    })
    .await;
}

/// What a call streams before it becomes a task, its client gets.
#[tokio::test]
async fn a_stream_ends_with_the_task() {
    let gateway = Gateway::start(&["server.reply.task_after=500ms"]).await;
    let client = Modern::at(&gateway.url).with(tasks());
    let mut call = client.tool("slow", json!({"n": 8, "ms": 200}));
    call["params"]["_meta"]["progressToken"] = json!(1);
    let messages = Events::of(client.post(&call).await).messages().await;
    let (_, last) = messages.last().unwrap();
    assert!(messages.len() > 1, "{messages:?}");
    assert_eq!(last["id"], call["id"]);
    assert_eq!(last["result"]["resultType"], "task", "{last}");
    client.polled(&last["result"], "completed").await;
}

/// A session-based server has tasks of its own: a tool that can be called as a task alone is called so.
#[tokio::test]
async fn a_tool_that_has_to_be_a_task_is_called_as_one() {
    let gateway = Gateway::of(&[SOON], &["CHILD_TASKS=required"], &[&child()]).await;
    // Of a client without the extension.
    let client = Modern::at(&gateway.url);
    let answer = client.call("sleep", json!({"ms": 800})).await;
    assert_eq!(text_of(&answer), "slept");
    let mut call = client.tool("slow", json!({"n": 2, "ms": 50}));
    call["params"]["_meta"]["progressToken"] = json!("p");
    let messages = Events::of(client.post(&call).await).messages().await;
    let (_, last) = messages.last().unwrap();
    assert_eq!(text_of(last), "done");
    assert_eq!(
        messages[0].1["params"]["progressToken"], "p",
        "{messages:?}"
    );
    let client = client.with(tasks());
    let task = begun(&client, "sleep", json!({"ms": 1000})).await;
    assert_eq!(text_of(&client.polled(&task, "completed").await), "slept");
    let task = begun(&client, "hang", json!({})).await;
    client.of_task("tasks/cancel", &task).await;
    until("the cancellation at the child", || async {
        client
            .text("received", json!({}))
            .await
            .contains("tasks/cancel")
    })
    .await;
    let client = client.with(json!({"roots": {}}));
    for after in [0, 500] {
        let call = client.tool("ask", json!({"kind": "roots", "after": after}));
        let required = client.answer(&call).await;
        let key = asked(&required)[0].0.clone();
        let retry = client.retry(&call, &required, json!({key: {"roots": []}}));
        let answer = client.answer(&retry).await;
        assert!(text_of(&answer).contains("related-task"), "{answer}");
    }
}

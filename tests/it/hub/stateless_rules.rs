//! The letter of revision 2026-07-28 where its clients meet session-based servers.

use futures_util::future::join_all;
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::support::{
    harness::{Events, Gateway, NEWEST, child, json_of, opening, text_of, until, within},
    modern::{MODERN, Modern, asked},
    served::Served,
};

/// Capabilities of a client that can be asked for anything.
fn asks() -> Value {
    json!({"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}})
}

/// A gateway whose server has these variables. What has only an answer is JSON, however late.
async fn with(variables: &[&str]) -> Gateway {
    Gateway::of(&["server.reply.sse_after=60s"], variables, &[&child()]).await
}

async fn refusal(response: reqwest::Response) -> (u16, i64) {
    let status = response.status().as_u16();
    let code = json_of(response).await["error"]["code"].as_i64();
    (status, code.unwrap_or_default())
}

/// The lines that the server has received, with this text.
async fn received(client: &Modern, text: &str) -> Vec<Value> {
    let lines = client.text("received", json!({})).await;
    let lines: Vec<String> = serde_json::from_str(&lines).unwrap();
    let lines = lines.iter().filter(|line| line.contains(text));
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Basic, "Requests": an id is unique to its connection, and no connection has two requests here.
#[tokio::test]
async fn two_requests_of_one_id_get_their_own_answers() {
    let gateway = with(&[]).await;
    let client = Modern::at(&gateway.url);
    let mut slow = client.tool("sleep", json!({"ms": 300}));
    let mut quick = client.tool("echo", json!({"text": "x"}));
    for message in [&mut slow, &mut quick] {
        message["id"] = json!(1);
    }
    let (slow, quick) = tokio::join!(client.answer(&slow), client.answer(&quick));
    assert_eq!((&slow["id"], &quick["id"]), (&json!(1), &json!(1)));
    assert_eq!(
        (text_of(&slow), text_of(&quick)),
        ("slept".into(), "x".into())
    );
}

/// Basic, "Per-request protocol fields": `clientInfo` is for people.
#[tokio::test]
async fn a_name_of_a_client_changes_nothing() {
    let gateway = with(&[]).await;
    let client = Modern::at(&gateway.url);
    for (name, count) in [(None, "1"), (Some("one"), "2"), (Some("two"), "3")] {
        let mut call = client.tool("counter", json!({}));
        let meta = call["params"]["_meta"].as_object_mut().unwrap();
        match name {
            Some(name) => meta["io.modelcontextprotocol/clientInfo"]["name"] = json!(name),
            None => _ = meta.remove("io.modelcontextprotocol/clientInfo"),
        }
        assert_eq!(text_of(&client.answer(&call).await), count);
    }
}

/// Basic, "Error Codes"; elicitation of 2025-11-25 has an error that this revision does not have.
#[tokio::test]
async fn a_server_that_wants_a_url_visited_asks_for_it() {
    let gateway = with(&[]).await;
    let client = Modern::at(&gateway.url).with(asks());
    let call = client.tool("visit", json!({"message": "Sign in"}));
    let required = client.answer(&call).await;
    let (key, method) = asked(&required)[0].clone();
    assert_eq!(method, "elicitation/create");
    let params = &required["result"]["inputRequests"][&key]["params"];
    assert_eq!(params["url"], "https://example.org/?a=1");
    let responses = json!({key: {"action": "accept"}});
    let mut other = client.retry(&call, &required, responses.clone());
    other["params"]["arguments"]["message"] = json!("another");
    assert_eq!(refusal(client.post(&other).await).await, (400, -32602));
    let retry = client.retry(&call, &required, responses);
    assert_eq!(text_of(&client.answer(&retry).await), "visited");
    let client = Modern::at(&gateway.url).with(json!({"elicitation": {}}));
    let refused = client.call("visit", json!({"message": "Sign in"})).await;
    assert_eq!(refused["error"]["code"], -32603, "{refused}");
    assert_eq!(refused["error"]["message"], "visit");
}

/// The codes of a refused `initialize` would be taken for the gateway's own: "this method does not exist
/// here", or "this revision is not served".
#[tokio::test]
async fn a_refused_initialize_is_no_error_of_the_request() {
    for code in ["-32601", "-32022", "-32602"] {
        let gateway = with(&[&format!("CHILD_INIT_ERROR={code}")]).await;
        let client = Modern::at(&gateway.url);
        let response = client.post(&client.message("tools/list", json!({}))).await;
        assert_eq!(response.status(), StatusCode::OK);
        let error = &json_of(response).await["error"];
        assert_eq!(error["code"], -31001, "{error}");
        assert_eq!(error["data"]["reason"], "backend_refused");
        let message =
            format!("the backend refused to be initialized ({code}: no initialize today)");
        assert_eq!(error["message"], message);
        // And so is its line of the log.
        let told = async || gateway.stderr().contains(": no initialize today");
        until("the error in the log", told).await;
    }
}

/// Streamable HTTP, "Protocol Version Header": 404 is for a method that the server does not have. Clients read no body behind
/// it, and servers say the same code of a tool that they do not have.
#[tokio::test]
async fn only_a_method_that_the_server_does_not_have_is_not_found() {
    let gateway = with(&["CHILD_LACKS=prompts"]).await;
    let client = Modern::at(&gateway.url);
    let tool = client.tool("error", json!({"code": -32601}));
    assert_eq!(refusal(client.post(&tool).await).await, (200, -32601));
    for method in ["prompts/list", "prompts/get", "tools/other"] {
        let message = client.message(method, json!({"name": "greet"}));
        let refused = refusal(client.post(&message).await).await;
        assert_eq!(refused, (404, -32601), "{method}");
    }
}

/// Pagination: only "whether a non-null value was provided" means anything.
#[tokio::test]
async fn a_cursor_that_is_null_is_the_end_of_a_list() {
    let gateway = with(&["CHILD_NULL_CURSOR=1"]).await;
    let client = Modern::at(&gateway.url);
    client.text("counter", json!({})).await;
    let lists = received(&client, "tools/list").await;
    assert_eq!(lists.len(), 5, "a list of five pages: {lists:?}");
}

/// Each call waited for a list of its own, one behind the other, before its own time had begun.
#[tokio::test]
async fn calls_wait_once_for_a_list_that_does_not_come() {
    let sets = ["server.reply.sse_after=60s", "server.clocks.call=2s"];
    let gateway = Gateway::of(&sets, &["CHILD_SILENT=tools/list"], &[&child()]).await;
    let client = Modern::at(&gateway.url);
    let calls = (0..5).map(|_| client.text("echo", json!({"text": "x"})));
    assert_eq!(join_all(calls).await, ["x"; 5]);
    let lists = received(&client, "tools/list").await;
    assert_eq!(lists.len(), 1, "one for them and for this: {lists:?}");
}

/// The list of its tools had a start of its own, so that the error came after twice `clocks.start`.
#[tokio::test]
async fn a_call_waits_for_one_start() {
    let dir = tempfile::tempdir().unwrap();
    let starts = dir.path().join("starts");
    let script = format!(
        "echo x >> {}; while read -r line; do :; done",
        starts.display()
    );
    let sets = ["server.era=legacy", "server.clocks.start=1s"];
    let gateway = Gateway::of(&sets, &[], &["sh", "-c", &script]).await;
    let refused = Modern::at(&gateway.url).call("echo", json!({})).await;
    assert_eq!(refused["error"]["code"], -31002, "{refused}");
    assert_eq!(std::fs::read_to_string(&starts).unwrap(), "x\n");
}

/// Mirrored fields are of the request that they come with, also of a retry.
#[tokio::test]
async fn a_retry_mirrors_its_arguments() {
    let schema = r#"CHILD_SCHEMA={"type":"object","properties":{"kind":{"type":"string","x-mcp-header":"Kind"}}}"#;
    let gateway = with(&[schema]).await;
    let client = Modern::at(&gateway.url).with(asks());
    let call = client.tool("ask", json!({"kind": "roots"}));
    let send = async |message: &Value, field: Option<&str>| {
        let mut request = client.request(message);
        if let Some(field) = field {
            request = request.header("Mcp-Param-Kind", field);
        }
        within("a response", request.send()).await.unwrap()
    };
    let required = json_of(send(&call, Some("roots")).await).await;
    let key = asked(&required)[0].0.clone();
    let retry = client.retry(&call, &required, json!({key: {"roots": []}}));
    for wrong in [None, Some("sampling")] {
        assert_eq!(refusal(send(&retry, wrong).await).await, (400, -32020));
    }
    let answer = json_of(send(&retry, Some("roots")).await).await;
    assert_eq!(answer["result"]["resultType"], "complete", "{answer}");
}

/// "This might be a sub-resource of the one that the client actually subscribed to" (schema).
#[tokio::test]
async fn a_subscription_hears_of_the_resources_below_its_own() {
    let gateway = with(&[]).await;
    let client = Modern::at(&gateway.url);
    let wanted = json!({"resourceSubscriptions": ["test://one"]});
    let (_, mut events) = client.listen(wanted).await;
    for uri in ["test://onetwo", "test://one/a"] {
        let args = json!({"method": "notifications/resources/updated", "params": {"uri": uri}});
        client.text("notify", args).await;
    }
    let (_, message) = events.message().await.unwrap();
    assert_eq!(message["params"]["uri"], "test://one/a", "{message}");
}

/// What a call changes, it changes in a child of its own, which was subscribed to nothing.
#[tokio::test]
async fn a_subscription_hears_what_a_call_with_a_child_alone_changes() {
    let gateway = with(&[]).await;
    let client = Modern::at(&gateway.url).with(asks());
    let mut heard = Vec::new();
    // The child of the calls begins before the first subscription, and the second comes behind it.
    client.text("counter", json!({})).await;
    for uri in ["test://one", "test://two"] {
        let (_, mut events) = client.listen(json!({"resourceSubscriptions": [uri]})).await;
        until("its child is subscribed", || async {
            client.text("subscribed", json!({})).await.contains(uri)
        })
        .await;
        client.text("touch", json!({"uri": uri})).await;
        let (_, message) = events.message().await.unwrap();
        assert_eq!(message["params"]["uri"], uri, "{message}");
        heard.push(events);
    }
    // Another child, which begins behind both.
    let call = client.tool("ask", json!({"kind": "roots"}));
    let required = client.answer(&call).await;
    assert_eq!(asked(&required).len(), 1);
    until("the next child is subscribed to both", || async {
        client
            .text("subscribed", json!({}))
            .await
            .matches("test://")
            .count()
            == 2
    })
    .await;
}

/// Tasks of 2025-11-25 are none of this revision's.
#[tokio::test]
async fn tasks_of_a_session_are_not_offered() {
    let gateway = with(&["CHILD_TASKS=1", r#"CHILD_EXTENSIONS={"org.example/x":{}}"#]).await;
    let client = Modern::at(&gateway.url).with(json!({"extensions": {"org.example/x": {}}}));
    let found = client.ask("server/discover", json!({})).await;
    let capabilities = &found["result"]["capabilities"];
    assert!(capabilities.get("tasks").is_none(), "{capabilities}");
    assert_eq!(capabilities["extensions"]["org.example/x"], json!({}));
    let begun = received(&client, "\"initialize\"").await;
    let declared = &begun[0]["params"]["capabilities"]["extensions"];
    assert_eq!(declared, &json!({"org.example/x": {}}), "extensions pass");
    // Those with the name of a method of the extension are of the gateway's own tasks.
    for (method, status, code) in [
        ("tasks/list", 404, -32601),
        ("tasks/result", 404, -32601),
        ("tasks/get", 400, -32021),
        ("tasks/cancel", 400, -32021),
    ] {
        let message = client.message(method, json!({"taskId": "t"}));
        assert_eq!(refusal(client.post(&message).await).await, (status, code));
    }
    let mut call = client.tool("echo", json!({"text": "x"}));
    call["params"]["task"] = json!({"ttl": 1000});
    assert_eq!(text_of(&client.answer(&call).await), "x");
    let echo = received(&client, "\"echo\"").await;
    assert!(echo[0]["params"].get("task").is_none(), "{echo:?}");
}

/// Versioning: a tenant says which revisions it serves.
#[tokio::test]
async fn a_tenant_says_which_revisions_it_serves() {
    let tenant = |revisions: Value| {
        json!({"auth": {"mode": "none"}, "revisions": revisions,
        "servers": {"main": {"command": child()}}})
    };
    let tenants = json!({
        "old": tenant(json!(["2025-06-18"])),
        "both": tenant(json!([MODERN, NEWEST])),
        "new": tenant(json!([MODERN])),
    });
    let gateway = Served::start(json!({}), tenants).await;
    let at = |name: &str| Modern::at(&format!("{}/t/{name}/main/mcp", gateway.origin()));
    let (old, both, new) = (at("old"), at("both"), at("new"));
    let refused = json_of(old.post(&old.message("tools/list", json!({}))).await).await;
    assert_eq!(refused["error"]["code"], -32022, "{refused}");
    assert_eq!(refused["error"]["data"]["supported"], json!(["2025-06-18"]));
    let legacy = gateway.stranger("new", "main");
    let response = legacy.post(&opening(NEWEST)).await;
    assert_eq!(response.status(), StatusCode::BAD_REQUEST);
    let error = &json_of(response).await["error"];
    assert_eq!(error["code"], -32022, "{error}");
    assert_eq!(
        error["data"],
        json!({"supported": [MODERN], "requested": NEWEST})
    );
    let bare = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    assert_eq!(refusal(legacy.post(&bare).await).await, (400, -32020));
    let http = reqwest::Client::new();
    for method in ["GET", "DELETE", "HEAD", "PUT", "PATCH"] {
        for (url, methods) in [(&new.url, "POST"), (&both.url, "GET, POST, DELETE")] {
            let method = reqwest::Method::from_bytes(method.as_bytes()).unwrap();
            let is_served = url == &both.url && ["GET", "DELETE"].contains(&method.as_str());
            let request = http.request(method, url);
            let request = request.header("Accept", "text/event-stream");
            let response = within("a response", request.send()).await.unwrap();
            if !is_served {
                assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED);
                assert_eq!(response.headers()["allow"], methods);
            }
        }
    }
    assert!(gateway.descendants().is_empty(), "no child was started");
    let found = both.ask("server/discover", json!({})).await;
    assert_eq!(
        found["result"]["supportedVersions"],
        json!([MODERN, NEWEST])
    );
    let found = new.ask("server/discover", json!({})).await;
    assert_eq!(found["result"]["supportedVersions"], json!([MODERN]));
}

/// Streamable HTTP, "Receiving Messages": what is on the stream of a call "MUST relate to" it.
#[tokio::test]
async fn only_what_is_about_a_call_is_on_its_stream() {
    let gateway = with(&[]).await;
    let client = Modern::at(&gateway.url);
    let mut call = client.tool("slow", json!({"n": 3, "ms": 100}));
    call["params"]["_meta"]["progressToken"] = json!(1);
    let mut events = Events::of(client.post(&call).await);
    for method in [
        "notifications/tools/list_changed",
        "notifications/resources/updated",
        "notifications/x",
    ] {
        let args = json!({"method": method, "params": {"uri": "test://one"}});
        let response = client.post(&client.tool("notify", args)).await;
        assert_eq!(response.headers()["content-type"], "application/json");
    }
    let messages = events.messages().await;
    let methods = messages
        .iter()
        .map(|(_, message)| message["method"].as_str());
    let progress = Some("notifications/progress");
    assert_eq!(
        methods.collect::<Vec<_>>(),
        [progress, progress, progress, None]
    );
}

/// Streamable HTTP, "Receiving Messages": intermediaries neither keep streams nor hold them up.
#[tokio::test]
async fn streams_are_not_buffered_and_have_comments() {
    let gateway = Gateway::start(&["stream.keep_alive=100ms"]).await;
    let client = Modern::at(&gateway.url);
    let mut call = client.tool("slow", json!({"n": 1, "ms": 10}));
    call["params"]["_meta"]["progressToken"] = json!(1);
    let listen = client.message(
        "subscriptions/listen",
        json!({"notifications": {"toolsListChanged": true}}),
    );
    for message in [&call, &listen] {
        let response = client.post(message).await;
        assert_eq!(response.headers()["x-accel-buffering"], "no");
        assert_eq!(response.headers()["cache-control"], "no-store");
        if message == &listen {
            let mut events = Events::of(response);
            while events.next().await.unwrap().comment.is_none() {}
        }
    }
}

/// MRTR, "Supported Requests": no other request is answered by `input_required`.
#[tokio::test]
async fn nobody_is_asked_during_a_completion() {
    let gateway = with(&["CHILD_ASK_COMPLETING=1"]).await;
    let client = Modern::at(&gateway.url).with(asks());
    let params = json!({"ref": {"type": "ref/prompt", "name": "greet"},
        "argument": {"name": "who", "value": "A"}});
    let answer = client.ask("completion/complete", params).await;
    assert_eq!(answer["result"]["resultType"], "complete", "{answer}");
    assert!(text_of(&answer).contains("-32603"), "{answer}");
}

/// MRTR, `InputRequests`: what a server asks besides is refused to it, and so is what it does not wait
/// for; what it has taken back is not asked.
#[tokio::test]
async fn other_questions_of_a_server_reach_no_client() {
    let gateway = with(&[]).await;
    let client = Modern::at(&gateway.url).with(asks());
    let answer = client.call("ask", json!({"kind": "other"})).await;
    assert!(text_of(&answer).contains("-3260"), "{answer}");
    for ends in ["at once", "taken back"] {
        let response = client
            .post(&client.tool("ask", json!({"kind": "roots", "ends": ends})))
            .await;
        assert_eq!(response.headers()["content-type"], "application/json");
        assert_eq!(text_of(&json_of(response).await), "not waited");
    }
    // The first question was refused for what it is, the second since its call had ended.
    until("the one that it does not wait for is refused", || async {
        let refused = received(&client, "the client cannot be asked").await;
        refused.iter().any(|refused| refused["id"] == "ask-1")
    })
    .await;
    assert!(gateway.descendants().len() <= 3, "one child has them all");
}

/// Progress: each round has its own token.
#[tokio::test]
async fn progress_behind_a_retry_has_its_token() {
    let gateway = with(&[]).await;
    let client = Modern::at(&gateway.url).with(asks());
    for token in [Some("b"), None] {
        let mut call = client.tool("ask", json!({"kind": "roots", "progress": true}));
        call["params"]["_meta"]["progressToken"] = json!("a");
        let required = client.answer(&call).await;
        let key = asked(&required)[0].0.clone();
        let mut retry = client.retry(&call, &required, json!({key: {"roots": []}}));
        let meta = retry["params"]["_meta"].as_object_mut().unwrap();
        match token {
            Some(token) => meta["progressToken"] = json!(token),
            None => _ = meta.remove("progressToken"),
        }
        let response = client.post(&retry).await;
        if token.is_none() {
            assert_eq!(response.headers()["content-type"], "application/json");
            continue;
        }
        let messages = Events::of(response).messages().await;
        assert_eq!(
            messages[0].1["params"]["progressToken"], "b",
            "{messages:?}"
        );
        assert_eq!(messages.len(), 2);
    }
}

/// Streamable HTTP, "Server Validation": the field names what the body does.
#[tokio::test]
async fn a_name_without_one_in_the_body_is_refused() {
    let gateway = with(&[]).await;
    let client = Modern::at(&gateway.url);
    for method in ["tools/call", "prompts/get", "resources/read"] {
        let message = client.message(method, json!({}));
        let request = client.request(&message).header("Mcp-Name", "echo");
        let response = within("a response", request.send()).await.unwrap();
        assert_eq!(refusal(response).await, (400, -32020), "{method}");
    }
}

/// Basic, "Result Responses"; MRTR and subscriptions: every result has the name of its server.
#[tokio::test]
async fn every_result_has_the_name_of_its_server() {
    let mut gateway = with(&[]).await;
    let client = Modern::at(&gateway.url).with(asks());
    let server = json!({"name": "child", "version": "1.0"});
    let key = "io.modelcontextprotocol/serverInfo";
    let call = client.tool("ask", json!({"kind": "roots"}));
    let required = client.answer(&call).await;
    assert_eq!(required["result"]["_meta"][key], server, "{required}");
    let again = client
        .answer(&client.retry(&call, &required, json!({})))
        .await;
    assert_eq!(again["result"]["_meta"][key], server, "{again}");
    let (_, mut events) = client.listen(json!({"toolsListChanged": true})).await;
    gateway.signal(rustix::process::Signal::TERM);
    let (_, end) = events.message().await.unwrap();
    assert_eq!(end["result"]["_meta"][key], server, "{end}");
    within("its end", gateway.process.wait()).await.unwrap();
}

/// Streamable HTTP, "Schema Extension": the warning names the tool.
#[tokio::test]
async fn a_warning_names_the_tools_that_are_left_out() {
    let schema = r#"{"type":"object","properties":{"n":{"type":"number","x-mcp-header":"N"}}}"#;
    let server = json!({"command": child(), "env": {"CHILD_SCHEMA": schema}});
    let tenants = json!({"a": {"auth": {"mode": "none"}, "servers": {"main": server}}});
    let mut gateway = Served::start(json!({}), tenants).await;
    let client = Modern::at(&format!("{}/t/a/main/mcp", gateway.origin()));
    let list = client.ask("tools/list", json!({})).await;
    assert_eq!(list["result"]["tools"], json!([]));
    let lines = gateway.end().await;
    let is_it = |line: &&Value| line.to_string().contains("tools are left out");
    let line = lines.iter().find(is_it).unwrap().to_string();
    assert!(line.contains("echo, slow, counter"), "{line}");
}

/// MRTR, "Error Handling".
#[tokio::test]
async fn input_responses_are_an_object() {
    let gateway = with(&[]).await;
    let client = Modern::at(&gateway.url).with(asks());
    let call = client.tool("ask", json!({"kind": "roots"}));
    let required = client.answer(&call).await;
    let key = asked(&required)[0].0.clone();
    for wrong in [json!(5), json!([]), json!(null)] {
        let retry = client.retry(&call, &required, wrong);
        assert_eq!(refusal(client.post(&retry).await).await, (400, -32602));
    }
    let retry = client.retry(&call, &required, json!({key: {"roots": []}}));
    let answer = client.answer(&retry).await;
    assert_eq!(answer["result"]["resultType"], "complete", "{answer}");
}

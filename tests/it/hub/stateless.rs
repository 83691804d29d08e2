//! Clients of revision 2026-07-28 at session-based servers.

use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::support::{
    harness::{Events, Gateway, NEWEST, body, child, json_of, opening, text_of, until, within},
    modern::{MODERN, Modern, asked},
};

/// Capabilities of a client that can be asked for anything.
fn asks() -> Value {
    json!({"elicitation": {}, "sampling": {}, "roots": {}})
}

/// Status and code of a refusal.
async fn refusal(response: reqwest::Response) -> (u16, i64) {
    let status = response.status().as_u16();
    let code = json_of(response).await["error"]["code"].as_i64();
    (status, code.unwrap_or_default())
}

#[tokio::test]
async fn a_client_without_a_session_uses_a_session_based_server() {
    let gateway = Gateway::start(&[]).await;
    let client = Modern::at(&gateway.url);
    let found = client.ask("server/discover", json!({})).await;
    let result = &found["result"];
    assert_eq!(
        result["supportedVersions"],
        json!([MODERN, NEWEST, "2025-06-18", "2025-03-26", "2024-11-05"])
    );
    assert_eq!(result["instructions"], "Be careful.");
    assert_eq!(result["capabilities"]["tools"]["listChanged"], true);
    let server = json!({"name": "child", "version": "1.0"});
    for (method, params, is_cacheable) in [
        ("server/discover", json!({}), true),
        ("tools/list", json!({}), true),
        ("prompts/list", json!({}), true),
        ("resources/list", json!({}), true),
        ("resources/templates/list", json!({}), true),
        ("resources/read", json!({"uri": "test://one"}), true),
        ("prompts/get", json!({"name": "greet"}), false),
        (
            "tools/call",
            json!({"name": "echo", "arguments": {"text": "x"}}),
            false,
        ),
    ] {
        let response = client.post(&client.message(method, params)).await;
        assert_eq!(response.status(), StatusCode::OK, "{method}");
        assert!(!response.headers().contains_key("mcp-session-id"));
        let answer = json_of(response).await;
        let result = &answer["result"];
        assert_eq!(result["resultType"], "complete", "{answer}");
        assert_eq!(
            result["_meta"]["io.modelcontextprotocol/serverInfo"],
            server
        );
        assert_eq!(result["ttlMs"] == json!(0), is_cacheable, "{answer}");
        assert_eq!(result["cacheScope"] == "private", is_cacheable, "{answer}");
    }
    let pages = client.ask("tools/list", json!({})).await;
    let cursor = &pages["result"]["nextCursor"];
    let next = client.ask("tools/list", json!({"cursor": cursor})).await;
    assert_ne!(next["result"]["tools"][0], pages["result"]["tools"][0]);
}

#[tokio::test]
async fn all_calls_that_are_never_asked_share_one_child() {
    let gateway = Gateway::start(&[]).await;
    let client = Modern::at(&gateway.url);
    let calls = (0..8).map(|_| client.text("counter", json!({})));
    let mut counts = futures_util::future::join_all(calls).await;
    counts.sort();
    assert_eq!(counts, ["1", "2", "3", "4", "5", "6", "7", "8"]);
    let received = client.text("received", json!({})).await;
    let mut received: Vec<String> = serde_json::from_str(&received).unwrap();
    // The question whether it is a server of this revision.
    received.retain(|line| !line.contains("server/discover"));
    let received = received.concat();
    assert!(!received.contains("clientCapabilities"), "{received}");
    assert!(!received.contains(MODERN), "{received}");
}

#[tokio::test]
async fn headers_and_body_have_to_agree() {
    let gateway = Gateway::start(&[]).await;
    let client = Modern::at(&gateway.url);
    let call = client.tool("counter", json!({}));
    // Revision, method and name; none of the last for no field.
    for fields in [
        "",
        " tools/call counter",
        "2025-11-25 tools/call counter",
        "2026-07-28,2026-07-28 tools/call counter",
        "2026-07-28  counter",
        "2026-07-28 tools/list counter",
        "2026-07-28 TOOLS/CALL counter",
        "2026-07-28 tools/call",
        "2026-07-28 tools/call echo",
        "2026-07-28 tools/call =?base64?###?=",
        "2026-07-28 tools/call counter counter",
    ] {
        let names = ["mcp-protocol-version", "mcp-method", "mcp-name", "mcp-name"];
        let values = fields.split(' ').zip(names);
        let set = values.filter(|(value, _)| !value.is_empty());
        let request = set.fold(client.bare(&call), |request, (value, name)| {
            request.header(name, value)
        });
        let response = within("a response", request.send()).await.unwrap();
        assert_eq!(refusal(response).await, (400, -32020), "{fields}");
    }
    // "counter" in Base64.
    let request = client.bare(&call).header("MCP-PROTOCOL-VERSION", MODERN);
    let request = request.header("MCP-METHOD", "tools/call");
    let request = request.header("Mcp-Name", "=?base64?Y291bnRlcg==?=");
    let response = within("a response", request.send()).await.unwrap();
    assert_eq!(
        text_of(&json_of(response).await),
        "1",
        "no other was executed"
    );
}

#[tokio::test]
async fn arguments_are_mirrored_in_header_fields() {
    let program = child();
    let of = |schema: &'static str| {
        let program = program.clone();
        async move {
            let schema = format!("CHILD_SCHEMA={schema}");
            Gateway::of(&[], &[&schema], &[&program]).await
        }
    };
    let schema =
        r#"{"type":"object","properties":{"text":{"type":"string","x-mcp-header":"Text"}}}"#;
    let gateway = of(schema).await;
    let client = Modern::at(&gateway.url);
    let call = client.tool("echo", json!({"text": "hällo"}));
    for (field, is_right) in [
        (None, false),
        (Some("hallo"), false),
        (Some("=?base64?###?="), false),
        (Some("=?base64?aMOkbGxv?="), true),
    ] {
        let mut request = client.request(&call);
        if let Some(field) = field {
            request = request.header("Mcp-Param-Text", field);
        }
        let response = within("a response", request.send()).await.unwrap();
        if is_right {
            assert_eq!(text_of(&json_of(response).await), "hällo");
        } else {
            assert_eq!(refusal(response).await, (400, -32020), "{field:?}");
        }
    }
    let received = client.call("received", json!({})).await;
    let received = text_of(&received);
    assert_eq!(
        received.matches(r#"\"name\":\"echo\""#).count(),
        1,
        "{received}"
    );
    let invalid = r#"{"type":"object","properties":{"n":{"type":"number","x-mcp-header":"N"}}}"#;
    let gateway = of(invalid).await;
    let list = Modern::at(&gateway.url).ask("tools/list", json!({})).await;
    assert_eq!(list["result"]["tools"], json!([]), "{list}");
    let session = gateway.session().await;
    let list = session.ask("tools/list", json!({})).await;
    assert_ne!(
        list["result"]["tools"],
        json!([]),
        "a session has no such fields"
    );
}

#[tokio::test]
async fn every_request_says_its_revision_and_its_capabilities() {
    let gateway = Gateway::start(&[]).await;
    let client = Modern::at(&gateway.url);
    let whole = client.tool("counter", json!({}));
    for (key, value) in [
        ("protocolVersion", None),
        ("clientCapabilities", None),
        ("clientCapabilities", Some(json!([]))),
        ("logLevel", Some(json!("loud"))),
    ] {
        let mut message = whole.clone();
        let key = format!("io.modelcontextprotocol/{key}");
        let meta = message["params"]["_meta"].as_object_mut().unwrap();
        match value {
            Some(value) => _ = meta.insert(key.clone(), value),
            None => _ = meta.remove(&key),
        }
        let refused = refusal(client.post(&message).await).await;
        assert_eq!(refused, (400, -32602), "{key}");
    }
    let mut none = whole.clone();
    none["params"].as_object_mut().unwrap().remove("_meta");
    assert_eq!(refusal(client.post(&none).await).await, (400, -32602));
    let mut anonymous = whole.clone();
    let meta = anonymous["params"]["_meta"].as_object_mut().unwrap();
    meta.remove("io.modelcontextprotocol/clientInfo");
    assert_eq!(text_of(&client.answer(&anonymous).await), "1");
}

/// The field is one of this era, and a name of another one takes no request out of its session.
#[tokio::test]
async fn a_request_of_a_session_may_name_its_revision_in_meta() {
    let gateway = Gateway::start(&[]).await;
    let session = gateway.session().await;
    let named = |revision: &str| {
        let meta = json!({"io.modelcontextprotocol/protocolVersion": revision});
        json!({"name": "counter", "arguments": {}, "_meta": meta})
    };
    for count in ["1", "2"] {
        let answer = session.ask("tools/call", named(NEWEST)).await;
        assert_eq!(text_of(&answer), count, "in one session");
    }
    for other in [MODERN, "2027-01-01"] {
        let answer = session.ask("tools/call", named(other)).await;
        assert_eq!(answer["error"]["code"], -32020, "{answer}");
    }
}

#[tokio::test]
async fn a_revision_that_is_not_served_is_refused_with_those_that_are() {
    let gateway = Gateway::start(&[]).await;
    let client = Modern::at(&gateway.url);
    for revision in ["2027-01-01", "1900-01-01", "2025-11-25"] {
        let mut message = client.message("server/discover", json!({}));
        message["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!(revision);
        let request = client.bare(&message);
        let request = request.header("MCP-Protocol-Version", revision);
        let request = request.header("Mcp-Method", "server/discover");
        let response = within("a response", request.send()).await.unwrap();
        assert_eq!(response.status(), StatusCode::BAD_REQUEST);
        let error = &json_of(response).await["error"];
        assert_eq!(error["code"], -32022);
        assert_eq!(error["data"]["requested"], revision);
        assert_eq!(error["data"]["supported"][0], MODERN);
        assert_eq!(error["data"]["supported"][1], NEWEST);
    }
    assert!(gateway.descendants().is_empty());
}

/// It was told that its revision is not served, with a list of those that are, which named it.
#[tokio::test]
async fn an_initialize_with_the_header_of_this_revision_is_not_sent_round_in_circles() {
    let gateway = Gateway::start(&[]).await;
    let client = Modern::at(&gateway.url);
    for (revision, status, code) in [(NEWEST, 404, -32601), ("2019-01-01", 400, -32022)] {
        let params = json!({"protocolVersion": revision});
        for message in [opening(revision), client.message("initialize", params)] {
            let refused = client.post(&message).await;
            assert_eq!(refused.status().as_u16(), status, "{message}");
            let error = &json_of(refused).await["error"];
            assert_eq!(error["code"], code, "{message}");
            assert_eq!(error["data"]["supported"][1], NEWEST, "{error}");
        }
    }
    assert!(gateway.descendants().is_empty());
}

/// The answer repeated the revision, of any length, and counted for nobody while its client did not read it.
#[tokio::test]
async fn a_refusal_repeats_little_of_a_revision() {
    let gateway = Gateway::start(&[]).await;
    let client = Modern::at(&gateway.url);
    let long = "1".repeat(1 << 20);
    let params = json!({"protocolVersion": long});
    let in_meta = client.message("initialize", params);
    for message in [opening(&long), in_meta] {
        let refused = client.post(&message).await;
        assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
        let error = &json_of(refused).await["error"];
        assert_eq!(error["code"], -32022);
        assert_eq!(error["data"]["requested"], "1".repeat(64));
    }
    assert!(gateway.descendants().is_empty());
}

#[tokio::test]
async fn what_this_revision_has_not_is_not_found() {
    let gateway = Gateway::start(&[]).await;
    let client = Modern::at(&gateway.url);
    for method in [
        "initialize",
        "ping",
        "logging/setLevel",
        "resources/subscribe",
        "resources/unsubscribe",
        "notifications/initialized",
        "no/such/method",
    ] {
        let refused = refusal(client.post(&client.message(method, json!({}))).await).await;
        assert_eq!(refused, (404, -32601), "{method}");
    }
    let response = json!({"jsonrpc": "2.0", "id": 1, "result": {}});
    assert_eq!(refusal(client.post(&response).await).await, (400, -32600));
    let batch = json!([client.tool("counter", json!({}))]);
    assert_eq!(refusal(client.post(&batch).await).await, (400, -32600));
    let cancelled = json!({"jsonrpc": "2.0", "method": "notifications/cancelled",
        "params": {"requestId": 1}});
    let accepted = client.post(&cancelled).await;
    assert_eq!(accepted.status(), StatusCode::ACCEPTED);
    assert_eq!(body(accepted).await, "");
    for method in [Method::GET, Method::DELETE] {
        let request = gateway.http.request(method.clone(), &gateway.url);
        let request = request.header("Accept", "text/event-stream");
        let request = request.header("MCP-Protocol-Version", MODERN);
        let response = within("a response", request.send()).await.unwrap();
        assert_eq!(
            response.status(),
            StatusCode::METHOD_NOT_ALLOWED,
            "{method}"
        );
        assert_eq!(response.headers()["allow"], "POST");
    }
}

#[tokio::test]
async fn headers_of_sessions_are_ignored() {
    let gateway = Gateway::start(&[]).await;
    let (client, session) = (Modern::at(&gateway.url), gateway.session().await);
    let count = session.text("counter", json!({})).await;
    assert_eq!(count, "1");
    for id in [session.id.clone().unwrap(), "nobody".to_owned()] {
        let call = client.tool("whoami", json!({}));
        let request = client.request(&call).header("Mcp-Session-Id", id);
        let request = request.header("Last-Event-ID", "x");
        let response = within("a response", request.send()).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert!(!response.headers().contains_key("mcp-session-id"));
        let who: Value = serde_json::from_str(&text_of(&json_of(response).await)).unwrap();
        let own: Value = serde_json::from_str(&session.text("whoami", json!({})).await).unwrap();
        assert_ne!(who["pid"], own["pid"]);
    }
}

#[tokio::test]
async fn progress_comes_under_the_token_and_logs_only_if_asked_for() {
    let gateway = Gateway::start(&[]).await;
    let mut client = Modern::at(&gateway.url);
    let mut call = client.tool("slow", json!({"n": 3, "ms": 10}));
    call["params"]["_meta"]["progressToken"] = json!("p-1");
    let mut events = Events::of(client.post(&call).await);
    let mut seen = Vec::new();
    while let Some((id, message)) = events.message().await {
        assert_eq!(id, "", "no event has an id");
        seen.push(message);
    }
    let (answer, progress) = seen.split_last().unwrap();
    assert_eq!(answer["id"], call["id"]);
    assert_eq!(progress.len(), 3, "{seen:?}");
    for message in progress {
        assert_eq!(message["method"], "notifications/progress");
        assert_eq!(message["params"]["progressToken"], "p-1");
    }
    for (level, logs) in [(None, 0), (Some("error"), 0), (Some("info"), 2)] {
        client.level = level;
        let call = client.tool("burst", json!({"n": 2, "text": "x"}));
        let response = client.post(&call).await;
        let messages = if logs == 0 {
            vec![json_of(response).await]
        } else {
            let messages = Events::of(response).messages().await;
            messages.into_iter().map(|(_, message)| message).collect()
        };
        let is_log = |message: &&Value| message["method"] == "notifications/message";
        assert_eq!(messages.iter().filter(is_log).count(), logs, "{messages:?}");
        assert_eq!(text_of(messages.last().unwrap()), "sent");
    }
}

#[tokio::test]
async fn a_client_that_accepts_only_json_gets_json() {
    let gateway = Gateway::start(&[]).await;
    let mut client = Modern::at(&gateway.url).with(asks());
    client.accept = "application/json";
    let mut call = client.tool("slow", json!({"n": 3, "ms": 60}));
    call["params"]["_meta"]["progressToken"] = json!(1);
    let answer = json_of(client.post(&call).await).await;
    assert_eq!(answer["result"]["resultType"], "complete", "{answer}");
    let required = client.call("ask", json!({"kind": "roots"})).await;
    assert_eq!(asked(&required)[0].1, "roots/list");
}

#[tokio::test]
async fn a_client_that_accepts_only_events_gets_events() {
    let gateway = Gateway::start(&[]).await;
    let mut client = Modern::at(&gateway.url).with(asks());
    client.accept = "text/event-stream";
    for message in [
        client.message("server/discover", json!({})),
        client.tool("counter", json!({})),
        client.tool("ask", json!({"kind": "roots"})),
    ] {
        let response = client.post(&message).await;
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let messages = Events::of(response).messages().await;
        assert_eq!(messages.len(), 1, "{messages:?}");
        assert_eq!(messages[0].1["id"], message["id"]);
    }
}

#[tokio::test]
async fn a_call_alone_that_is_closed_ends_its_child() {
    let gateway = Gateway::start(&["server.reply.sse_after=50ms"]).await;
    let client = Modern::at(&gateway.url).with(asks());
    let stream = client.post(&client.tool("hang", json!({}))).await;
    let before = gateway.descendants();
    assert!(!before.is_empty());
    drop(stream);
    until("the end of its child", || async {
        let now = gateway.descendants();
        before.iter().all(|pid| !now.contains(pid))
    })
    .await;
    assert_eq!(client.text("counter", json!({})).await, "1", "a new child");
}

#[tokio::test]
async fn closing_the_response_cancels_the_call() {
    let gateway = Gateway::start(&["server.reply.sse_after=50ms"]).await;
    let client = Modern::at(&gateway.url);
    // Once before anything was sent, and once in the middle of a stream.
    let call = client.tool("hang", json!({}));
    let mut held = Box::pin(client.request(&call).send());
    let is_sent = async || {
        let received = client.text("received", json!({})).await;
        received.contains(r#"\"name\":\"hang\""#)
    };
    tokio::select! {
        _ = &mut held => panic!("hang has no answer"),
        () = until("the call at the child", is_sent) => {}
    }
    drop(held);
    let began = Instant::now();
    let cancelled = async |count: usize| {
        let list: Value = serde_json::from_str(&client.text("cancelled", json!({})).await).unwrap();
        list.as_array().unwrap().len() == count
    };
    until("the first cancellation", || cancelled(1)).await;
    let stream = client.post(&client.tool("hang", json!({}))).await;
    assert_eq!(stream.headers()["content-type"], "text/event-stream");
    drop(stream);
    until("the second cancellation", || cancelled(2)).await;
    assert!(began.elapsed() < Duration::from_secs(3));
}

#[tokio::test]
async fn a_server_asks_and_the_retry_reads_on() {
    let gateway = Gateway::start(&[]).await;
    let client = Modern::at(&gateway.url).with(asks());
    for (kind, method, response) in [
        (
            "elicitation",
            "elicitation/create",
            json!({"action": "accept", "content": {"name": "Ada"}}),
        ),
        (
            "sampling",
            "sampling/createMessage",
            json!({"role": "assistant", "model": "m",
            "content": {"type": "text", "text": "Paris"}}),
        ),
        ("roots", "roots/list", json!({"roots": []})),
    ] {
        let call = client.tool("ask", json!({"kind": kind, "message": "Who?"}));
        let required = client.answer(&call).await;
        assert_eq!(required["id"], call["id"]);
        let asked = asked(&required);
        assert_eq!(asked.len(), 1, "{required}");
        let (key, asked) = &asked[0];
        assert_eq!(asked, method);
        let request = &required["result"]["inputRequests"][key];
        assert!(request.get("id").is_none() && request.get("jsonrpc").is_none());
        assert!(required["result"].get("ttlMs").is_none(), "not cacheable");
        let retry = client.retry(&call, &required, json!({key: response}));
        let answer = client.answer(&retry).await;
        assert_eq!(answer["id"], retry["id"]);
        assert_eq!(answer["result"]["resultType"], "complete", "{answer}");
        let reply: Value = serde_json::from_str(&text_of(&answer)).unwrap();
        assert_eq!(reply["result"], response);
    }
    let received = client.text("received", json!({})).await;
    let calls = received.matches(r#"\"name\":\"ask\""#).count();
    assert_eq!(calls, 3, "each call was executed once: {received}");
    assert!(!received.contains("requestState") && !received.contains("inputResponses"));
}

#[tokio::test]
async fn a_call_that_needs_more_than_its_client_declared_is_refused() {
    let gateway = Gateway::start(&[]).await;
    for (declared, kind, lacking) in [
        (json!({}), "sampling", json!({"sampling": {}})),
        (
            json!({"sampling": {}}),
            "elicitation",
            json!({"elicitation": {}}),
        ),
        (json!({"elicitation": {}}), "roots", json!({"roots": {}})),
        (
            json!({"sampling": {}}),
            "tools",
            json!({"sampling": {"tools": {}}}),
        ),
        (
            json!({"elicitation": {}}),
            "url",
            json!({"elicitation": {"url": {}}}),
        ),
        (
            json!({"elicitation": {"url": {}}}),
            "elicitation",
            json!({"elicitation": {"form": {}}}),
        ),
    ] {
        let client = Modern::at(&gateway.url).with(declared);
        let call = client.tool("ask", json!({"kind": kind, "message": "Who?"}));
        let response = client.post(&call).await;
        assert_eq!(response.status(), StatusCode::BAD_REQUEST);
        let refused = json_of(response).await;
        assert_eq!(refused["id"], call["id"]);
        assert_eq!(refused["error"]["code"], -32021, "{refused}");
        let required = &refused["error"]["data"]["requiredCapabilities"];
        assert_eq!(required, &lacking);
        let cancelled = client.text("cancelled", json!({})).await;
        assert!(
            cancelled.contains("requestId"),
            "the server is told: {cancelled}"
        );
    }
}

#[tokio::test]
async fn a_ticket_works_once_and_for_its_request_alone() {
    let gateway = Gateway::start(&[]).await;
    let client = Modern::at(&gateway.url).with(asks());
    let call = client.tool("ask", json!({"kind": "elicitation", "message": "Who?"}));
    let required = client.answer(&call).await;
    let key = asked(&required)[0].0.clone();
    let responses = json!({key: {"action": "decline"}});
    let right = client.retry(&call, &required, responses.clone());
    let mut other_tool = right.clone();
    other_tool["params"]["name"] = json!("counter");
    let mut other_arguments = right.clone();
    other_arguments["params"]["arguments"]["message"] = json!("Who else?");
    let mut forged = right.clone();
    let state = right["params"]["requestState"].as_str().unwrap();
    let last = if state.ends_with('A') { "B" } else { "A" };
    forged["params"]["requestState"] = json!(format!("{}{last}", &state[..state.len() - 1]));
    let mut nonsense = right.clone();
    nonsense["params"]["requestState"] = json!("x");
    let mut no_text = right.clone();
    no_text["params"]["requestState"] = json!(1);
    for wrong in [&other_tool, &other_arguments, &forged, &nonsense, &no_text] {
        let refused = refusal(client.post(wrong).await).await;
        assert_eq!(refused, (400, -32602), "{wrong}");
    }
    let both = tokio::join!(client.post(&right), client.post(&right));
    let mut statuses = [both.0.status().as_u16(), both.1.status().as_u16()];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 400], "of two at once one reads on");
    assert_eq!(refusal(client.post(&right).await).await, (400, -32602));
    assert_eq!(
        client.text("counter", json!({})).await,
        "1",
        "nothing was executed"
    );
}

/// It was kept for `clocks.ask` beyond any share of the log, so that the events of all others went for it.
#[tokio::test]
async fn a_question_beyond_the_share_of_its_caller_is_refused() {
    let sets = ["log.memory=1MiB", "limits.memory=32MiB"];
    let gateway = Gateway::start(&sets).await;
    let client = Modern::at(&gateway.url).with(asks());
    // The event needs room before the question does: the longest one for which there is some.
    let (mut pad, mut told) = (4 << 20, String::new());
    while !told.contains("no room") && pad > 100_000 {
        let answer = client
            .call("ask", json!({"kind": "elicitation", "pad": pad}))
            .await;
        assert_eq!(answer["result"]["resultType"], "complete");
        told = text_of(&answer);
        pad = pad * 9 / 10;
    }
    assert!(
        told.contains("-32603") && told.contains("no room"),
        "{told}"
    );
    until("room for a small one", || async {
        let answer = client.call("ask", json!({"kind": "roots"})).await;
        answer["result"]["resultType"] == "input_required"
    })
    .await;
}

#[tokio::test]
async fn a_partial_answer_is_delivered_and_the_rest_asked_again() {
    let gateway = Gateway::start(&[]).await;
    let client = Modern::at(&gateway.url).with(asks());
    let first = client.tool("ask", json!({"kind": "elicitation", "message": "Who?"}));
    let required = client.answer(&first).await;
    let key = asked(&required)[0].0.clone();
    let nothing = client.retry(&first, &required, json!({}));
    let again = client.answer(&nothing).await;
    assert_eq!(asked(&again), asked(&required));
    let used = client.retry(
        &first,
        &required,
        json!({key.clone(): {"action": "decline"}}),
    );
    assert_eq!(refusal(client.post(&used).await).await, (400, -32602));
    let odd = json!({key.clone(): "no object", "unknown": {}});
    let again = client.answer(&client.retry(&first, &again, odd)).await;
    let right = json!({key: {"action": "cancel"}, "unknown": {}});
    let answer = client.answer(&client.retry(&first, &again, right)).await;
    assert_eq!(answer["result"]["resultType"], "complete", "{answer}");
}

#[tokio::test]
async fn calls_that_may_be_asked_have_a_child_alone() {
    let gateway = Gateway::start(&[]).await;
    let client = Modern::at(&gateway.url).with(asks());
    let calls: Vec<Value> = (0..3)
        .map(|n| {
            client.tool(
                "ask",
                json!({"kind": "elicitation", "message": format!("{n}")}),
            )
        })
        .collect();
    let required =
        futures_util::future::join_all(calls.iter().map(|call| client.answer(call))).await;
    for (call, required) in calls.iter().zip(&required) {
        let key = asked(required)[0].0.clone();
        let request = &required["result"]["inputRequests"][&key];
        assert_eq!(
            request["params"]["message"],
            call["params"]["arguments"]["message"]
        );
    }
    assert_eq!(gateway.descendants().len() % 3, 0, "three children");
    for (call, required) in calls.iter().zip(&required) {
        let key = asked(required)[0].0.clone();
        let retry = client.retry(call, required, json!({key: {"action": "decline"}}));
        assert_eq!(
            client.answer(&retry).await["result"]["resultType"],
            "complete"
        );
    }
    let before = gateway.descendants();
    client.text("counter", json!({})).await;
    assert_eq!(
        gateway.descendants(),
        before,
        "a child that is free is used again"
    );
}

#[tokio::test]
async fn a_call_whose_client_never_answers_ends() {
    let gateway = Gateway::start(&["server.clocks.ask=300ms"]).await;
    let client = Modern::at(&gateway.url).with(asks());
    let call = client.tool("ask", json!({"kind": "elicitation", "message": "Who?"}));
    let required = client.answer(&call).await;
    let key = asked(&required)[0].0.clone();
    let before = gateway.descendants();
    until("the end of its session", || async {
        before
            .iter()
            .all(|pid| !gateway.descendants().contains(pid))
    })
    .await;
    let retry = client.retry(&call, &required, json!({key: {"action": "decline"}}));
    assert_eq!(refusal(client.post(&retry).await).await, (400, -32602));
}

#[tokio::test]
async fn a_subscription_hears_what_it_asked_for() {
    let gateway = Gateway::start(&[]).await;
    let client = Modern::at(&gateway.url);
    let wanted = json!({"toolsListChanged": true, "resourceSubscriptions": ["test://one"]});
    let (acknowledged, mut first) = client.listen(wanted.clone()).await;
    assert_eq!(
        acknowledged["method"],
        "notifications/subscriptions/acknowledged"
    );
    assert_eq!(acknowledged["params"]["notifications"], wanted);
    let id = &acknowledged["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"];
    let (other, mut second) = client.listen(json!({"promptsListChanged": true})).await;
    let other = &other["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"];
    assert_ne!(id, other);
    for uri in ["test://one", "test://two"] {
        client.text("touch", json!({"uri": uri})).await;
    }
    for kind in ["prompts", "tools"] {
        let method = format!("notifications/{kind}/list_changed");
        client
            .text("notify", json!({"method": method, "params": {}}))
            .await;
    }
    for (method, uri) in [
        ("notifications/resources/updated", json!("test://one")),
        ("notifications/tools/list_changed", Value::Null),
    ] {
        let (_, message) = first.message().await.unwrap();
        assert_eq!(message["method"], method, "{message}");
        assert_eq!(message["params"]["uri"], uri);
        assert_eq!(
            &message["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"],
            id
        );
    }
    let (_, message) = second.message().await.unwrap();
    assert_eq!(message["method"], "notifications/prompts/list_changed");
    let (_, mut again) = client
        .listen(json!({"resourceSubscriptions": ["test://one"]}))
        .await;
    drop(first);
    client.text("touch", json!({"uri": "test://one"})).await;
    let (_, message) = again.message().await.unwrap();
    assert_eq!(
        message["params"]["uri"], "test://one",
        "others are still subscribed"
    );
    drop(again);
    until("no subscription is left at the server", || async {
        client.text("subscribed", json!({})).await == "[]"
    })
    .await;
}

#[tokio::test]
async fn a_subscription_hears_of_the_calls_that_have_a_child_alone() {
    let gateway = Gateway::start(&[]).await;
    let client = Modern::at(&gateway.url).with(asks());
    // One child was there before, and one begins later.
    let call = client.tool("ask", json!({"kind": "roots"}));
    let required = client.answer(&call).await;
    let (_, mut events) = client.listen(json!({"toolsListChanged": true})).await;
    let method = "notifications/tools/list_changed";
    let notify = json!({"method": method, "params": {}});
    client.text("notify", notify.clone()).await;
    let (_, message) = events.message().await.unwrap();
    assert_eq!(message["method"], method, "{message}");
    let key = asked(&required)[0].0.clone();
    let retry = client.retry(&call, &required, json!({key: {"roots": []}}));
    client.answer(&retry).await;
    let hangs = client.request(&client.tool("hang", json!({}))).send();
    let hangs = tokio::spawn(hangs);
    until("two children that are used", || async {
        client.text("notify", notify.clone()).await;
        gateway.descendants().len() >= 3
    })
    .await;
    let (_, message) = events.message().await.unwrap();
    assert_eq!(message["method"], method, "{message}");
    hangs.abort();
    // The end of a call's child is none of the subscription.
    let touch = json!({"method": "notifications/prompts/list_changed", "params": {}});
    client.text("notify", touch).await;
    client.text("notify", notify).await;
    let (_, message) = events.message().await.unwrap();
    assert_eq!(message["method"], method, "{message}");
}

/// Each subscription had all of its resources subscribed again in all of them.
#[tokio::test]
async fn a_child_that_calls_have_alone_is_subscribed_once() {
    let gateway = Gateway::start(&[]).await;
    let client = Modern::at(&gateway.url).with(asks());
    client.text("echo", json!({"text": "x"})).await;
    let mut held = Vec::new();
    for uris in [
        &["test://one"][..],
        &["test://one"],
        &["test://one", "test://two"],
    ] {
        let wanted = json!({"resourceSubscriptions": uris});
        held.push(client.listen(wanted).await);
    }
    let received = async || client.text("received", json!({})).await;
    until("the last one", async || {
        received().await.contains("test://two")
    })
    .await;
    let lines = received().await;
    assert_eq!(lines.matches("resources/subscribe").count(), 2, "{lines}");
}

#[tokio::test]
async fn a_child_that_calls_have_alone_is_subscribed_no_longer_than_the_subscription() {
    let gateway = Gateway::start(&[]).await;
    let client = Modern::at(&gateway.url).with(asks());
    client.text("echo", json!({"text": "x"})).await;
    let wanted = json!({"resourceSubscriptions": ["test://one"]});
    let held = client.listen(wanted).await;
    let subscribed = async || client.text("subscribed", json!({})).await;
    until("the subscription", async || {
        subscribed().await.contains("test://one")
    })
    .await;
    drop(held);
    until("its end", async || subscribed().await == "[]").await;
}

/// The server may agree later to what nobody is told of then.
#[tokio::test]
async fn a_subscription_that_is_not_answered_is_taken_back() {
    let silent = "CHILD_SILENT=resources/subscribe";
    let gateway = Gateway::of(&[], &[silent], &[&child()]).await;
    let client = Modern::at(&gateway.url);
    let wanted = json!({"resourceSubscriptions": ["test://one"]});
    let (acknowledged, _events) = client.listen(wanted).await;
    let agreed = acknowledged["params"]["notifications"].to_string();
    assert!(!agreed.contains("test://one"), "{acknowledged}");
    until("it is taken back", async || {
        let received = client.text("received", json!({})).await;
        received.contains("resources/unsubscribe")
    })
    .await;
}

#[tokio::test]
async fn a_subscription_is_not_pinged() {
    let gateway = Gateway::start(&["session.ping=700ms"]).await;
    let client = Modern::at(&gateway.url);
    let (_, mut events) = client.listen(json!({"toolsListChanged": true})).await;
    // Meanwhile a session-based client that answers no ping loses its connection.
    let session = gateway.session().await;
    let mut listener = session.listen().await;
    while listener.message().await.is_some() {}
    let method = "notifications/tools/list_changed";
    let notify = json!({"method": method, "params": {}});
    client.text("notify", notify).await;
    let (_, message) = events.message().await.unwrap();
    assert_eq!(message["method"], method, "{message}");
}

#[tokio::test]
async fn a_subscription_ends_with_a_response() {
    let mut gateway = Gateway::start(&[]).await;
    let client = Modern::at(&gateway.url);
    let (acknowledged, mut events) = client.listen(json!({"toolsListChanged": true})).await;
    let id = &acknowledged["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"];
    gateway.signal(rustix::process::Signal::TERM);
    let (_, end) = events.message().await.unwrap();
    assert_eq!(&end["id"], id, "{end}");
    assert_eq!(end["result"]["resultType"], "complete");
    assert_eq!(
        &end["result"]["_meta"]["io.modelcontextprotocol/subscriptionId"],
        id
    );
    assert!(events.message().await.is_none());
    within("its end", gateway.process.wait()).await.unwrap();
}

#[tokio::test]
async fn a_server_without_a_feature_acknowledges_less() {
    let gateway = Gateway::of(&[], &["CHILD_STEADY=1"], &[&child()]).await;
    let client = Modern::at(&gateway.url);
    let wanted = json!({"toolsListChanged": true, "resourceSubscriptions": ["test://one"]});
    let (acknowledged, _events) = client.listen(wanted).await;
    let honoured = json!({"resourceSubscriptions": ["test://one"]});
    assert_eq!(acknowledged["params"]["notifications"], honoured);
    for notifications in [json!(1), json!({"toolsListChanged": "yes"})] {
        let params = json!({"notifications": notifications});
        let message = client.message("subscriptions/listen", params);
        assert_eq!(refusal(client.post(&message).await).await, (400, -32602));
    }
}

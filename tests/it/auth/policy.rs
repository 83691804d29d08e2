//! Access policy of a server, on every transport and in both directions.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::{
    auth::external_tokens::bearer,
    support::{
        harness::{Legacy, Session, body, child, is_stream, last, tool_call, until, within},
        modern::{Modern, asked},
        oauth_client::send,
        served::Served,
    },
};

/// A gateway with one tenant `a`: server `main` with `policy`, and server `open` without.
async fn served(policy: Value, keys: Value) -> Served {
    let mut main = json!({"command": child(), "policy": policy});
    for (key, value) in keys.as_object().unwrap() {
        main[key] = value.clone();
    }
    let servers = json!({"main": main, "open": {"command": child()}});
    Served::start(
        json!({}),
        json!({"a": {"auth": {"mode": "none"}, "servers": servers}}),
    )
    .await
}

/// The lines that the child received.
async fn received(session: &Session) -> Vec<String> {
    serde_json::from_str(&session.text("received", json!({})).await).unwrap()
}

fn unknown(what: &str) -> Value {
    json!({"code": -32602, "message": what})
}

#[tokio::test]
async fn a_denied_tool_answers_like_an_unknown_one_and_no_child_sees_it() {
    let policy =
        json!({"tools": {"allow": ["e*", "received", "no_such*"], "deny": ["env", "ex*"]}});
    for keys in [
        json!({}),
        json!({"isolation": "tenant"}),
        json!({"reply": {"mode": "sse"}}),
        json!({"reply": {"mode": "json"}}),
    ] {
        let gateway = served(policy.clone(), keys).await;
        let session = gateway.session("a", "main").await;
        for name in [
            "env",
            "exit",
            "counter",
            "whatever",
            "",
            "ECHO",
            " echo",
            "received\u{0}",
        ] {
            let answer = session.call(name, json!({})).await;
            let expected = unknown(&format!("Unknown tool: {name}"));
            assert_eq!(answer["error"], expected, "{name}");
        }
        assert_eq!(session.text("echo", json!({"text": "x"})).await, "x");
        let own = session.call("no_such_tool", json!({})).await;
        assert_eq!(
            own["error"]["message"], "no such tool",
            "the child's own answer"
        );
        let lines = received(&session).await.join("\n");
        assert!(lines.contains(r#""name":"no_such_tool""#), "{lines}");
        for denied in [
            "env",
            "exit",
            "counter",
            "whatever",
            "ECHO",
            r" echo",
            r"received\u0000",
        ] {
            assert!(
                !lines.contains(&format!(r#""name":"{denied}""#)),
                "{denied} {lines}"
            );
        }
    }
}

#[tokio::test]
async fn batches_notifications_and_http_sse_pass_the_same_policy() {
    let policy = json!({"tools": {"deny": ["counter"]}});
    let gateway = served(policy, json!({})).await;
    let mut session = gateway.stranger("a", "main");
    session.initialize("2025-03-26").await;
    let note = json!({"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "counter"}});
    let batch = json!([
        tool_call(json!("a"), "counter", json!({})),
        tool_call(json!("b"), "echo", json!({"text": "x"})),
        note,
        {"jsonrpc": "2.0", "id": "c", "method": "ping"},
    ]);
    let response = session.post(&batch).await;
    let answers = if is_stream(&response) {
        let events = crate::support::harness::Events::of(response)
            .messages()
            .await;
        Value::Array(events.into_iter().map(|(_, message)| message).collect())
    } else {
        crate::support::harness::json_of(response).await
    };
    let of = |id: &str| {
        let mut answers = answers.as_array().unwrap().iter();
        answers.find(|answer| answer["id"] == id).unwrap().clone()
    };
    assert_eq!(of("a")["error"], unknown("Unknown tool: counter"));
    assert_eq!(of("b")["result"]["content"][0]["text"], "x");
    assert_eq!(of("c")["result"], json!({}));
    session
        .notify("tools/call", json!({"name": "counter"}))
        .await;
    // A server that ignores case, or knows a newer method, must not offer a bypass.
    session
        .notify("Tools/Call", json!({"name": "counter"}))
        .await;
    let lines = received(&session).await.join("\n");
    assert!(!lines.contains("counter"), "{lines}");

    let mut old = Legacy::at(gateway.origin(), "/t/a/main").await;
    old.initialize().await;
    old.post(&tool_call(json!(1), "counter", json!({}))).await;
    let (_, answer) = old.events.message().await.unwrap();
    assert_eq!(answer["id"], 1);
    assert_eq!(answer["error"], unknown("Unknown tool: counter"));
    old.post(&json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list"}))
        .await;
    let (_, list) = old.events.message().await.unwrap();
    assert!(
        names(&list, "tools", "name")
            .iter()
            .all(|name| name != "counter"),
        "{list}"
    );
}

fn names(answer: &Value, list: &str, name: &str) -> Vec<String> {
    let entries = answer["result"][list].as_array().unwrap().iter();
    entries
        .map(|entry| entry[name].as_str().unwrap().to_owned())
        .collect()
}

/// All pages of the tool list, as the gateway wrote them.
async fn pages(session: &Session) -> Vec<String> {
    let (mut pages, mut cursor) = (Vec::new(), json!({}));
    loop {
        let message = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/list", "params": cursor});
        let page = body(session.post(&message).await).await;
        let read: Value = serde_json::from_str(&page).unwrap();
        pages.push(page);
        match &read["result"]["nextCursor"] {
            Value::Null => return pages,
            next => cursor = json!({"cursor": next}),
        }
    }
}

#[tokio::test]
async fn lists_are_cut_by_the_guard_of_calls_and_keep_their_cursors() {
    let policy = json!({"tools": {"allow": ["echo", "sl*", "list_dir"], "deny": ["slee*"]}});
    for keys in [json!({}), json!({"isolation": "tenant"})] {
        let gateway = served(policy.clone(), keys).await;
        let (session, open) = (
            gateway.session("a", "main").await,
            gateway.session("a", "open").await,
        );
        let (cut, whole) = (pages(&session).await, pages(&open).await);
        assert_eq!(cut.len(), whole.len(), "as many pages");
        let mut seen = Vec::new();
        for (cut, whole) in cut.iter().zip(&whole) {
            let [cut_read, whole_read]: [Value; 2] =
                [cut, whole].map(|page| serde_json::from_str(page).unwrap());
            let has_next = |page: &Value| page["result"]["nextCursor"].is_string();
            assert_eq!(has_next(&cut_read), has_next(&whole_read));
            for entry in cut_read["result"]["tools"].as_array().unwrap() {
                let raw = format!(r#""name":{}"#, entry["name"]);
                let at = |page: &str| {
                    let name = page.find(&raw).unwrap();
                    let (from, to) = (page[..name].rfind('{'), page[name..].find('}'));
                    page[from.unwrap()..name + to.unwrap()].to_owned()
                };
                assert_eq!(at(cut), at(whole), "an entry that was changed");
                seen.push(entry["name"].as_str().unwrap().to_owned());
            }
        }
        assert!(
            cut.iter().any(|page| page.contains(r#""tools":[]"#)),
            "an empty page"
        );
        // Listed tools can be called, and others cannot.
        assert!(seen.contains(&"echo".to_owned()) && seen.contains(&"slow".to_owned()));
        for name in whole
            .iter()
            .flat_map(|page| names(&serde_json::from_str(page).unwrap(), "tools", "name"))
        {
            let is_allowed = ["echo", "slow", "list_dir"].contains(&&*name);
            assert_eq!(seen.contains(&name), is_allowed, "{name}");
        }
    }
}

/// The policy of the next two tests.
fn read_and_prompt() -> Value {
    json!({"prompts": {"deny": ["greet"]}, "resources": {"allow": ["test://o*", "test://a/*"]}})
}

#[tokio::test]
async fn resources_are_compared_as_they_stand() {
    for keys in [json!({}), json!({"isolation": "tenant"})] {
        let gateway = served(read_and_prompt(), keys).await;
        let session = gateway.session("a", "main").await;
        let list = session.ask("resources/list", json!({})).await;
        assert_eq!(names(&list, "resources", "uri"), ["test://one"]);
        let list = session.ask("resources/templates/list", json!({})).await;
        let templates = names(&list, "resourceTemplates", "uriTemplate");
        assert_eq!(templates, ["test://{name}"]);
        let read = session
            .ask("resources/read", json!({"uri": "test://one"}))
            .await;
        assert_eq!(read["result"]["contents"][0]["text"], "text of test://one");
        // Each of these equals an allowed name only after normalization.
        for uri in [
            "test://two",
            "TEST://one",
            "test://b/../one",
            "test:///one",
            "test://%6fne",
        ] {
            for method in [
                "resources/read",
                "resources/subscribe",
                "resources/unsubscribe",
            ] {
                let answer = session.ask(method, json!({"uri": uri})).await;
                let expected = json!({"code": -32002, "message": "Resource not found",
                    "data": {"uri": uri}});
                assert_eq!(answer["error"], expected, "{method} {uri}");
            }
        }
        // The code of clients without sessions.
        let client = Modern::at(&session.url);
        let answer = client
            .ask("resources/read", json!({"uri": "test://two"}))
            .await;
        let expected = json!({"code": -32602, "message": "Resource not found",
            "data": {"uri": "test://two"}});
        assert_eq!(answer["error"], expected);
        // Unknown methods of these families are refused: the child might know them.
        for method in [
            "resources/copy",
            "Resources/Read",
            "prompts/run",
            "completion/x",
        ] {
            let answer = session.ask(method, json!({"uri": "test://two"})).await;
            let expected = json!({"code": -32601, "message": "Method not found"});
            assert_eq!(answer["error"], expected, "{method}");
        }
        let lines = received(&session).await.join("\n");
        for denied in [
            "test://two",
            "TEST",
            "%6f",
            "resources/copy",
            "Resources/Read",
        ] {
            assert!(!lines.contains(denied), "{denied} {lines}");
        }
    }
}

#[tokio::test]
async fn prompts_and_completions_have_their_own_rules() {
    for keys in [json!({}), json!({"isolation": "tenant"})] {
        let gateway = served(read_and_prompt(), keys).await;
        let session = gateway.session("a", "main").await;
        let list = session.ask("prompts/list", json!({})).await;
        assert_eq!(list["result"]["prompts"], json!([]));
        let answer = session.ask("prompts/get", json!({"name": "greet"})).await;
        assert_eq!(answer["error"], unknown("Unknown prompt: greet"));
        let complete = async |reference: Value| {
            let params = json!({"ref": reference, "argument": {"name": "x", "value": "v"}});
            session.ask("completion/complete", params).await
        };
        for reference in [
            json!({"type": "ref/prompt", "name": "other"}),
            json!({"type": "ref/resource", "uri": "test://{name}"}),
        ] {
            let answer = complete(reference).await;
            assert_eq!(answer["result"]["completion"]["values"], json!(["v!"]));
        }
        let answer = complete(json!({"type": "ref/prompt", "name": "greet"})).await;
        assert_eq!(answer["error"], unknown("Unknown prompt: greet"));
        let answer = complete(json!({"type": "ref/resource", "uri": "secret://{name}"})).await;
        let expected = unknown("Unknown resource template: secret://{name}");
        assert_eq!(answer["error"], expected);
        let both = json!({"type": "ref/prompt", "name": "other", "uri": "test://two"});
        assert_eq!(complete(both).await["error"]["code"], -32602);
        let lines = received(&session).await.join("\n");
        for denied in ["test://two", "greet", "secret://"] {
            assert!(!lines.contains(denied), "{denied} {lines}");
        }
    }
}

/// Without authentication there are no scopes: tools that require one are refused on every route.
#[tokio::test]
async fn a_batch_of_long_templates_takes_a_moment() {
    let allow: Vec<String> = (0..256)
        .map(|at| format!("file:///public/*/docs/{at}/*.md"))
        .collect();
    let gateway = served(json!({"resources": {"allow": allow}}), json!({})).await;
    let mut session = gateway.stranger("a", "main");
    session.initialize("2025-03-26").await;
    let uri = format!("file:///public/{}}}", "{a}p".repeat(250));
    let batch: Vec<Value> = (0..100)
        .map(|id| {
            json!({"jsonrpc": "2.0", "id": id, "method": "completion/complete", "params": {
                "ref": {"type": "ref/resource", "uri": uri}, "argument": {"name": "a", "value": "b"}}})
        })
        .collect();
    let began = std::time::Instant::now();
    let answer = body(session.post(&json!(batch)).await).await;
    assert!(began.elapsed() < std::time::Duration::from_secs(3));
    assert_eq!(answer.matches("Unknown resource template").count(), 100);
}

#[tokio::test]
async fn a_call_without_its_scopes_is_challenged_with_all_of_them() {
    let policy = json!({"scopes": {"counter": ["count:write", "count:read"], "c*": ["c"]}});
    let gateway = served(policy, json!({"reply": {"mode": "sse"}})).await;
    let mut session = gateway.stranger("a", "main");
    session.initialize("2025-03-26").await;
    let list = session.ask("tools/list", json!({})).await;
    assert!(
        names(&list, "tools", "name").contains(&"counter".to_owned()),
        "still listed"
    );
    let call = tool_call(json!(1), "counter", json!({}));
    let batch = json!([tool_call(json!(2), "echo", json!({})), call]);
    let mut old = Legacy::at(gateway.origin(), "/t/a/main").await;
    old.initialize().await;
    for (response, end) in [
        (session.post(&call).await, "mcp"),
        (session.post(&batch).await, "mcp"),
        (old.post(&call).await, "sse"),
    ] {
        assert_eq!(response.status(), 403);
        let challenge = response.headers()["www-authenticate"]
            .to_str()
            .unwrap()
            .to_owned();
        // Without an authorization server there is no metadata to name.
        let wanted = r#"Bearer error="insufficient_scope", scope="c count:write count:read""#;
        assert_eq!(challenge, wanted, "{end}");
        assert_eq!(
            crate::support::harness::json_of(response).await["error"]["code"],
            -32600
        );
    }
    assert_eq!(session.text("echo", json!({"text": "x"})).await, "x");
    let lines = received(&session).await.join("\n");
    assert!(!lines.contains("counter"), "{lines}");
}

/// "MUST NOT rely on `cacheScope` alone" (2026-07-28 caching, "Security Considerations"): the server calls its
/// list public.
#[tokio::test]
async fn a_list_that_policy_cuts_is_never_public() {
    let env = json!({"CHILD_ERA": "modern", "CHILD_TTL": "600000", "CHILD_SCOPE": "public"});
    let server = |policy: Value| json!({"command": child(), "env": env, "policy": policy});
    let servers = json!({
        "open": server(json!({})),
        "prompts": server(json!({"prompts": {"deny": ["x"]}})),
        "scopes": server(json!({"scopes": {"echo": ["echo:read"]}})),
    });
    let tenants = json!({"a": {"auth": {"mode": "none"}, "servers": servers}});
    let gateway = Served::start(json!({}), tenants).await;
    for (server, scope) in [
        ("open", "public"),
        ("prompts", "private"),
        ("scopes", "private"),
    ] {
        let client = Modern::at(&format!("{}/t/a/{server}/mcp", gateway.origin()));
        let list = client.ask("tools/list", json!({})).await["result"].clone();
        assert_eq!(list["cacheScope"], scope, "{server}: {list}");
        assert_eq!(list["ttlMs"], 600_000);
    }
}

/// What a call has been asked for may take long: a change of the policy counts for its retry, too.
#[tokio::test]
async fn a_retry_is_held_to_the_policy_of_its_time() {
    let gateway = served(json!({}), json!({})).await;
    let url = format!("{}/t/a/main/mcp", gateway.origin());
    let client = Modern::at(&url).with(json!({"roots": {}}));
    let call = client.tool("ask", json!({"kind": "roots"}));
    let required = client.answer(&call).await;
    let key = asked(&required)[0].0.clone();
    let retry = client.retry(&call, &required, json!({key: {"roots": []}}));
    let change = async |policy: Value| {
        let path = format!("{}/api/v1/tenants/a/servers/main", gateway.origin());
        let server = json!({"command": child(), "policy": policy});
        let http = bearer(&gateway.administrator());
        let answer = within("the API", http.put(path).json(&server).send()).await;
        assert_eq!(answer.unwrap().status(), 200);
    };
    change(json!({"scopes": {"ask": ["ask:write"]}})).await;
    let refused = client.post(&retry).await;
    assert_eq!(refused.status(), 403);
    let challenge = refused.headers()["www-authenticate"].to_str().unwrap();
    assert!(challenge.contains("ask:write"), "{challenge}");
    change(json!({"tools": {"deny": ["ask"]}})).await;
    let denied = client.answer(&retry).await;
    assert_eq!(denied["error"], unknown("Unknown tool: ask"));
    change(json!({})).await;
    let answer = client.answer(&retry).await;
    assert_eq!(answer["result"]["resultType"], "complete", "{answer}");
}

#[tokio::test]
async fn a_task_is_held_to_the_policy_of_its_time() {
    let reply = json!({"task_after": "100ms"});
    let gateway = served(json!({}), json!({"reply": reply})).await;
    let url = format!("{}/t/a/main/mcp", gateway.origin());
    let extensions = json!({"io.modelcontextprotocol/tasks": {}});
    let client = Modern::at(&url).with(json!({"extensions": extensions}));
    let task = client.call("sleep", json!({"ms": 800})).await["result"].clone();
    client.polled(&task, "completed").await;
    let change = async |policy: Value| {
        let path = format!("{}/api/v1/tenants/a/servers/main", gateway.origin());
        let server = json!({"command": child(), "policy": policy, "reply": reply});
        let http = bearer(&gateway.administrator());
        let answer = within("the API", http.put(path).json(&server).send()).await;
        assert_eq!(answer.unwrap().status(), 200);
    };
    let request = client.message("tasks/get", json!({"taskId": task["taskId"]}));
    change(json!({"scopes": {"sleep": ["sleep:read"]}})).await;
    assert_eq!(client.post(&request).await.status(), 403);
    change(json!({"tools": {"deny": ["sleep"]}})).await;
    let denied = client.answer(&request).await;
    assert_eq!(denied["error"], unknown("Unknown tool: sleep"));
    let (acknowledged, _) = client.listen(json!({"taskIds": [task["taskId"]]})).await;
    assert_eq!(acknowledged["params"]["notifications"], json!({}));
    change(json!({})).await;
    client.polled(&task, "completed").await;
}

#[tokio::test]
async fn updates_of_denied_resources_are_dropped() {
    let policy = json!({"resources": {"deny": ["test://two*"]}});
    let gateway = served(policy, json!({})).await;
    let session = gateway.session("a", "main").await;
    let mut listener = session.listen().await;
    let updated = "notifications/resources/updated";
    for uri in ["test://two", "test://two/a", "test://one"] {
        let note = json!({"method": updated, "params": {"uri": uri}});
        session.text("notify", note).await;
    }
    let (_, heard) = listener.message().await.unwrap();
    assert_eq!(heard["params"]["uri"], "test://one", "{heard}");
}

/// The gateway decides what a list shows, so it says when that changes, and only then.
#[tokio::test]
async fn a_changed_policy_is_announced_to_open_sessions() {
    let gateway = served(json!({"tools": {"allow": ["echo"]}}), json!({})).await;
    let put = async |tools: &[&str], audit_calls: bool| {
        let server = json!({"command": child(), "policy": {"tools": {"allow": tools}},
            "audit_calls": audit_calls});
        let url = format!("{}/api/v1/tenants/a/servers/main", gateway.origin());
        let put = send(Method::PUT, &url, &gateway.administrator(), Some(&server)).await;
        assert_eq!(put.status, StatusCode::OK, "{}", put.body);
    };
    // The server has another environment than in the manifest of the test.
    put(&["echo"], false).await;
    let session = gateway.session("a", "main").await;
    let mut listener = session.listen().await;
    let tools = async || names(&session.ask("tools/list", json!({})).await, "tools", "name");
    assert_eq!(tools().await, ["echo"]);
    put(&["echo"], true).await;
    put(&["echo", "notify"], true).await;
    for kind in ["tools", "prompts", "resources"] {
        let (_, heard) = listener.message().await.unwrap();
        let changed = format!("notifications/{kind}/list_changed");
        assert_eq!(heard, json!({"jsonrpc": "2.0", "method": changed}));
    }
    assert_eq!(tools().await, ["echo", "notify"]);
    let note =
        json!({"method": "notifications/resources/updated", "params": {"uri": "test://one"}});
    session.text("notify", note).await;
    let (_, heard) = listener.message().await.unwrap();
    assert_eq!(heard["params"]["uri"], "test://one", "{heard}");
}

#[tokio::test]
async fn a_restored_child_is_held_to_the_same_policy() {
    let policy = json!({"tools": {"allow": ["whoami", "exit", "echo"]}});
    let gateway = served(policy, json!({})).await;
    let session = gateway.session("a", "main").await;
    let before = session.text("whoami", json!({})).await;
    let answer = session.call("exit", json!({})).await;
    assert_eq!(answer["error"]["code"], -31001, "{answer}");
    until("another child", || async {
        let who = session.call("whoami", json!({})).await;
        who["result"].is_object() && !who.to_string().contains(&before)
    })
    .await;
    let list = session.ask("tools/list", json!({})).await;
    assert_eq!(names(&list, "tools", "name"), ["echo", "exit"]);
    let answer = session.call("env", json!({})).await;
    assert_eq!(answer["error"], unknown("Unknown tool: env"));
}

/// Gateway and child read the same members: escapes are decoded, ambiguous names are refused.
#[tokio::test]
async fn the_child_gets_the_bytes_that_policy_judged() {
    let policy = json!({"tools": {"deny": ["counter"]}, "resources": {"deny": ["test://two"]}});
    let gateway = served(policy, json!({})).await;
    let session = gateway.session("a", "main").await;
    let send = async |method: &str, params: &str| {
        let text = format!(r#"{{"jsonrpc":"2.0","id":5,"method":"{method}","params":{params}}}"#);
        let response = session.post_text(text).await;
        let status = response.status().as_u16();
        (status, last(response).await["error"]["code"].clone())
    };
    let call = "tools/call";
    let read = "resources/read";
    let complete = "completion/complete";
    let table = [
        (call, r#"{"name":"count\u0065r"}"#, 200),
        (call, r#"{"n\u0061me":"\u0063ounter"}"#, 200),
        (call, r#"{"name":"echo","name":"counter"}"#, 400),
        (call, r#"{"name":"echo","n\u0061me":"counter"}"#, 400),
        (call, r#"{"name":"echo","Name":"counter"}"#, 400),
        (call, r#"{"name":"echo","NAME":"counter"}"#, 400),
        (call, r#"{"name":"counter\ud800"}"#, 200),
        (call, r#"{"name":["counter"]}"#, 200),
        (call, r#"{"arguments":{}}"#, 200),
        (r"tools\/c\u0061ll", r#"{"name":"counter"}"#, 200),
        ("Tools/Call", r#"{"name":"counter"}"#, 200),
        ("tool\u{17f}/call", r#"{"name":"counter"}"#, 200),
        (read, r#"{"uri":"test:\/\/two"}"#, 200),
        (read, r#"{"uri":"test://one","URI":"test://two"}"#, 400),
        (read, r#"{"uri":"test://one","\u0075ri":"test://two"}"#, 400),
        (
            complete,
            r#"{"ref":{"type":"ref/resource","uri":"test://two"}}"#,
            200,
        ),
        (
            complete,
            r#"{"ref":{"uri":"a","u\u0072i":"test://two"}}"#,
            400,
        ),
        (complete, r#"{"ref":{"uri":"a","Uri":"test://two"}}"#, 400),
        (complete, r#"{"ref":{},"Ref":{"uri":"test://two"}}"#, 400),
    ];
    for (method, params, status) in table {
        let (found, code) = send(method, params).await;
        assert_eq!(found, status, "{method} {params}");
        assert!(code.is_i64(), "{method} {params}: not refused");
    }
    let lines = received(&session).await.join("\n");
    for sign in ["counter", "ount", "two", "Tools", "\u{17f}"] {
        assert!(!lines.contains(sign), "{sign} {lines}");
    }
}

/// A cursor belongs to its principal, also within one tenant.
#[tokio::test]
async fn a_cursor_in_other_hands_is_no_cursor() {
    for isolation in ["session", "tenant"] {
        let server = json!({"command": child(), "isolation": isolation});
        let servers = json!({"main": server, "other": server});
        let tenant = json!({"auth": {"mode": "none"}, "servers": servers});
        let gateway = Served::start(json!({}), json!({"a": tenant, "b": tenant})).await;
        let own = gateway.session("a", "main").await;
        let list = own.ask("tools/list", json!({})).await;
        let cursor = &list["result"]["nextCursor"];
        assert!(cursor.is_string(), "{list}");
        let with = json!({"cursor": cursor});
        let second = own.ask("tools/list", with.clone()).await;
        assert_eq!(
            second["result"]["tools"][0]["name"], "abort",
            "the second page"
        );
        let again = gateway
            .session("a", "main")
            .await
            .ask("tools/list", with.clone())
            .await;
        assert_eq!(
            again["result"]["tools"], second["result"]["tools"],
            "the same principal"
        );
        let invalid = json!({"code": -32602, "message": "Invalid cursor"});
        for (tenant, server) in [("b", "main"), ("a", "other")] {
            let session = gateway.session(tenant, server).await;
            let answer = session.ask("tools/list", with.clone()).await;
            assert_eq!(answer["error"], invalid, "{tenant} {server}");
            assert!(
                !received(&session).await.join("").contains("cursor"),
                "{tenant} {server}"
            );
        }
        let answer = own.ask("prompts/list", with).await;
        assert_eq!(answer["error"], invalid, "of another list");
        for forged in [json!("10"), json!(""), json!(10), json!("AAAAAAAAAAA10")] {
            let answer = own.ask("tools/list", json!({"cursor": forged})).await;
            assert_eq!(answer["error"], invalid, "{forged}");
        }
        let none = own.ask("tools/list", json!({"cursor": null})).await;
        assert_eq!(none["result"]["tools"][0]["name"], "echo");
        let lines = received(&own).await.join("\n");
        assert!(
            lines.contains(r#"{"cursor":"10"}"#),
            "as the server gave it out: {lines}"
        );
    }
}

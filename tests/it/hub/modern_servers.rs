//! Servers of revision 2026-07-28, and clients of either era that use them.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::timeout;

use crate::{
    auth::api_keys::key,
    support::{
        gauges::{Gauge, OPS, metric},
        harness::{
            Events, Gateway, NEWEST, Session, is_stream, last, text_of, tool_call, until, within,
        },
        modern::{Modern, asked},
        served::Served,
    },
};

/// A gateway over a child of this era.
async fn gateway(era: &str, sets: &[&str]) -> Gateway {
    let era = format!("CHILD_ERA={era}");
    Gateway::of(sets, &[&era], &[&crate::support::harness::child()]).await
}

/// The fields of a request as the child got them.
async fn meta_of(session: &Session) -> Value {
    serde_json::from_str(&session.text("meta", json!({})).await).unwrap()
}

fn request_of(tool: &str, args: Value) -> Value {
    tool_call(json!("own"), tool, args)
}

#[tokio::test]
async fn a_client_with_a_session_uses_a_server_without() {
    let gateway = gateway("modern", &[]).await;
    for revision in [NEWEST, "2025-06-18", "2025-03-26", "2024-11-05"] {
        let session = gateway.initialize(revision).await;
        let opened = &session.opened["result"];
        assert_eq!(opened["protocolVersion"], revision);
        assert_eq!(
            opened["serverInfo"],
            json!({"name": "child", "version": "1.0"})
        );
        assert_eq!(opened["instructions"], "Be modern.");
        assert_eq!(opened["capabilities"]["tools"]["listChanged"], true);
        assert_eq!(
            opened["capabilities"]["extensions"],
            json!({"example.org/own": {"a": 1}}),
            "tasks of this era are none that the client knows"
        );
        for (method, params, expected) in [
            ("ping", json!({}), json!({})),
            ("prompts/get", json!({"name": "greet"}), Value::Null),
            ("resources/read", json!({"uri": "test://one"}), Value::Null),
            (
                "completion/complete",
                json!({"argument": {"value": "a"}, "ref": {"type": "ref/prompt", "name": "greet"}}),
                Value::Null,
            ),
        ] {
            let answer = session.ask(method, params).await;
            let result = &answer["result"];
            assert!(result.is_object(), "{method}: {answer}");
            assert!(result["resultType"].is_null(), "{answer}");
            assert!(expected.is_null() || *result == expected, "{answer}");
        }
        let page = session.ask("tools/list", json!({})).await;
        let cursor = &page["result"]["nextCursor"];
        let next = session.ask("tools/list", json!({"cursor": cursor})).await;
        assert_ne!(next["result"]["tools"][0], page["result"]["tools"][0]);
        assert_eq!(session.text("echo", json!({"text": "x"})).await, "x");
        let meta = meta_of(&session).await;
        assert_eq!(
            meta["io.modelcontextprotocol/protocolVersion"],
            "2026-07-28"
        );
        assert_eq!(meta["io.modelcontextprotocol/clientInfo"]["name"], "it");
        assert!(meta["io.modelcontextprotocol/clientCapabilities"]["sampling"].is_object());
        let unknown = session.ask("x/unknown", json!({})).await;
        assert_eq!(unknown["error"]["code"], -32601, "{unknown}");
        assert_eq!(session.delete().await.status(), 204);
    }
}

/// Clients of older revisions refuse a whole list for one schema of a result that is no object, and a result that is none
/// after its call has had its effect.
#[tokio::test]
async fn a_client_with_a_session_gets_results_alone_that_it_can_read() {
    for isolation in ["session", "tenant"] {
        let set = format!("server.isolation={isolation}");
        let variables = [
            "CHILD_ERA=modern",
            r#"CHILD_OUTPUT_SCHEMA={"type":"array"}"#,
        ];
        let gateway = Gateway::of(&[&set], &variables, &[&crate::support::harness::child()]).await;
        let (session, modern) = (gateway.session().await, Modern::at(&gateway.url));
        let (list, call) = ("tools/list", "tools/call");
        let structured =
            |value: Value| json!({"name": "structured", "arguments": {"value": value}});
        for (answers, is_read) in [
            (
                [
                    session.ask(list, json!({})).await,
                    session.ask(call, structured(json!([1]))).await,
                    session.ask(call, structured(json!({"a": 1}))).await,
                ],
                false,
            ),
            (
                [
                    modern.ask(list, json!({})).await,
                    modern.ask(call, structured(json!([1]))).await,
                    modern.ask(call, structured(json!({"a": 1}))).await,
                ],
                true,
            ),
        ] {
            let [list, array, object] = answers.map(|answer| answer["result"].clone());
            let echo = &list["tools"][0];
            assert_eq!(echo["name"], "echo", "{list}");
            assert_eq!(
                echo.get("outputSchema").is_some(),
                is_read,
                "{isolation}: {echo}"
            );
            assert_eq!(
                array.get("structuredContent").is_some(),
                is_read,
                "{isolation}: {array}"
            );
            assert_eq!(array["content"], json!([]), "{array}");
            assert_eq!(object["structuredContent"], json!({"a": 1}), "{object}");
        }
    }
}

/// Its next client was told that the server refuses what it had not been asked.
#[tokio::test]
async fn a_machine_without_processes_shows_no_era() {
    let gateway = gateway("modern", &[]).await;
    let gauge = Gauge::of(&gateway);
    gauge.bound_guards(6).await;
    let client = Modern::at(&gateway.url);
    let refused = client
        .post(&client.tool("echo", json!({"text": "x"})))
        .await;
    assert_eq!(refused.status(), 503);
    gauge.bound_guards(1024).await;
    assert_eq!(client.text("echo", json!({"text": "x"})).await, "x");
}

#[tokio::test]
async fn progress_and_logs_of_a_server_without_sessions_reach_the_call() {
    let gateway = gateway("modern", &[]).await;
    let session = gateway.session().await;
    let mut stream = session
        .stream("slow", json!({"n": 2, "ms": 10}), json!("t"))
        .await;
    for n in 1..3 {
        let (_, progress) = stream.message().await.unwrap();
        assert_eq!(progress["params"]["progressToken"], "t");
        assert_eq!(progress["params"]["progress"], n);
    }
    assert_eq!(text_of(&stream.message().await.unwrap().1), "done");
    // A client that has set no level gets what a server with sessions would send.
    let args = |level: &str| json!({"level": level, "text": "a"});
    let mut stream = session.stream("log", args("info"), json!("t")).await;
    assert_eq!(stream.message().await.unwrap().1["params"]["data"], "a");
    let debug = session.post(&request_of("log", args("debug"))).await;
    assert!(!is_stream(&debug), "nothing but the answer");
    session
        .ask("logging/setLevel", json!({"level": "warning"}))
        .await;
    let low = session
        .call("log", json!({"level": "info", "text": "b"}))
        .await;
    assert_eq!(text_of(&low), "logged");
    let args = json!({"level": "error", "text": "c"});
    let mut stream = session.stream("log", args, json!("t")).await;
    let (_, log) = stream.message().await.unwrap();
    assert_eq!(log["params"]["data"], "c");
}

#[tokio::test]
async fn a_server_without_sessions_asks_a_client_with_one() {
    let gateway = gateway("modern", &[]).await;
    let session = gateway.session().await;
    let args = json!({"kind": "elicitation", "message": "Who?", "times": 2});
    let mut stream = Events::of(session.begin("ask", args).await);
    for name in ["one", "two"] {
        let (_, ask) = stream.message().await.unwrap();
        assert_eq!(ask["method"], "elicitation/create", "{ask}");
        assert_eq!(ask["params"]["message"], "Who?");
        let content = json!({"action": "accept", "content": {"name": name}});
        let reply = json!({"jsonrpc": "2.0", "id": ask["id"], "result": content});
        session.post(&reply).await;
    }
    let answer = text_of(&stream.message().await.unwrap().1);
    assert_eq!(
        answer,
        r#"{"first":{"action":"accept","content":{"name":"two"}}}"#
    );
    // A client that cannot answer: the call ends, and the server is asked nothing.
    let mut stream = Events::of(session.begin("ask", json!({"kind": "sampling"})).await);
    let (_, ask) = stream.message().await.unwrap();
    let error = json!({"code": -1, "message": "rejected"});
    let refusal = json!({"jsonrpc": "2.0", "id": ask["id"], "error": error});
    session.post(&refusal).await;
    let (_, answer) = stream.message().await.unwrap();
    assert_eq!(answer["error"]["code"], -32603, "{answer}");
    assert_eq!(
        session.text("echo", json!({"text": "alive"})).await,
        "alive"
    );
}

#[tokio::test]
async fn a_client_without_a_session_is_asked_by_a_server_without() {
    let gateway = gateway("modern", &[]).await;
    let client = Modern::at(&gateway.url).with(json!({"elicitation": {}, "roots": {}}));
    for (method, params) in [
        (
            "tools/call",
            json!({"name": "ask", "arguments": {"times": 2}}),
        ),
        (
            "prompts/get",
            json!({"name": "greet", "arguments": {"asks": "true", "times": 2}}),
        ),
        ("resources/read", json!({"uri": "test://ask"})),
    ] {
        let mut call = client.message(method, params.clone());
        let mut required = client.answer(&call).await;
        let rounds = if method == "resources/read" { 1 } else { 2 };
        for _ in 0..rounds {
            let key = asked(&required)[0].0.clone();
            assert_eq!(key, "first", "the server's own");
            let responses = json!({key: {"action": "decline"}});
            call = client.retry(&call, &required, responses);
            required = client.answer(&call).await;
        }
        assert_eq!(required["result"]["resultType"], "complete", "{required}");
        assert!(required.to_string().contains("decline"), "{required}");
    }
    let meta = client.text("meta", json!({})).await;
    assert!(meta.contains(r#""elicitation":{}"#), "{meta}");
    // A client that knows what is asked need not be asked.
    let params = json!({"name": "ask", "arguments": {}, "inputResponses": {
        "first": {"action": "decline"}, "unknown": {"action": "accept"}}});
    let tasks = json!({"elicitation": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}});
    let of_tasks = Modern::at(&gateway.url).with(tasks);
    for client in [client, of_tasks] {
        let answer = client.ask("tools/call", params.clone()).await;
        assert_eq!(text_of(&answer), r#"{"first":{"action":"decline"}}"#);
    }
}

#[tokio::test]
async fn a_cancelled_call_reaches_a_server_without_sessions() {
    let gateway = gateway("modern", &[]).await;
    let session = gateway.session().await;
    let mut stream = session.stream("hang", json!({}), json!("t")).await;
    let id = session.next_id() - 1;
    session
        .notify(
            "notifications/cancelled",
            json!({"requestId": id, "reason": "enough"}),
        )
        .await;
    until("the server is told", || async {
        session
            .text("cancelled", json!({}))
            .await
            .contains("enough")
    })
    .await;
    drop(stream.next());
    // One that waits for its client is nothing that the server works on.
    let mut stream = Events::of(session.begin("ask", json!({"kind": "roots"})).await);
    let id = session.next_id() - 1;
    let (_, ask) = stream.message().await.unwrap();
    assert_eq!(ask["method"], "roots/list");
    session
        .notify(
            "notifications/cancelled",
            json!({"requestId": id, "reason": "again"}),
        )
        .await;
    let late = json!({"jsonrpc": "2.0", "id": ask["id"], "result": {"roots": []}});
    session.post(&late).await;
    let cancelled = session.text("cancelled", json!({})).await;
    assert!(!cancelled.contains("again"), "{cancelled}");
}

#[tokio::test]
async fn subscriptions_of_a_session_are_kept_at_a_server_without() {
    let gateway = gateway("modern", &[]).await;
    let session = gateway.session().await;
    let mut listener = session.listen().await;
    let uri = json!({"uri": "test://one"});
    let subscribed = session.ask("resources/subscribe", uri.clone()).await;
    assert_eq!(subscribed["result"], json!({}), "{subscribed}");
    let refused = session
        .ask("resources/subscribe", json!({"uri": "test://unknown"}))
        .await;
    assert_eq!(refused["error"]["code"], -32602, "{refused}");
    session.text("touch", uri.clone()).await;
    let (_, updated) = listener.message().await.unwrap();
    assert_eq!(updated["method"], "notifications/resources/updated");
    assert_eq!(updated["params"], json!({"uri": "test://one", "_meta": {}}));
    let method = "notifications/tools/list_changed";
    session.text("notify", json!({"method": method})).await;
    assert_eq!(listener.message().await.unwrap().1["method"], method);
    // A server that is started again is told again.
    let call = session.call("exit", json!({"code": 3})).await;
    assert!(call["error"].is_object(), "{call}");
    until("the subscription is back", || async {
        let listeners = session.text("listeners", json!({})).await;
        listeners.contains("test://one")
    })
    .await;
    session.text("touch", uri.clone()).await;
    let updated = async {
        loop {
            let (_, message) = listener.message().await.unwrap();
            if message["method"] == "notifications/resources/updated" {
                return message;
            }
        }
    };
    updated.await;
    session.ask("resources/unsubscribe", uri).await;
    until("the subscription is gone", || async {
        let listeners = session.text("listeners", json!({})).await;
        !listeners.contains("test://one")
    })
    .await;
}

#[tokio::test]
async fn sessions_share_a_server_without() {
    let gateway = gateway("modern", &["server.isolation=tenant"]).await;
    let (one, other) = (gateway.session().await, gateway.session().await);
    assert!(!one.opened.to_string().contains("lockgate/"));
    let modern = Modern::at(&gateway.url);
    assert_eq!(one.text("counter", json!({})).await, "1");
    assert_eq!(other.text("counter", json!({})).await, "2");
    assert_eq!(modern.text("counter", json!({})).await, "3");
    let mut heard = other.listen().await;
    let uri = json!({"uri": "test://one"});
    other.ask("resources/subscribe", uri.clone()).await;
    one.text("touch", uri).await;
    assert_eq!(
        heard.message().await.unwrap().1["params"]["uri"],
        "test://one"
    );
}

/// What a server without sessions asks belongs to one call, whose session is asked.
#[tokio::test]
async fn sessions_that_share_a_server_without_are_asked() {
    let gateway = gateway("modern", &["server.isolation=tenant"]).await;
    let (one, other) = (gateway.session().await, gateway.session().await);
    let call = json!({"kind": "elicitation", "message": "Who?"});
    let mut streams = Vec::new();
    for session in [&one, &other] {
        let mut stream = Events::of(session.begin("ask", call.clone()).await);
        let (_, ask) = stream.message().await.unwrap();
        assert_eq!(ask["method"], "elicitation/create", "{ask}");
        assert_eq!(ask["params"]["message"], "Who?");
        streams.push((session, stream, ask));
    }
    // Another session answers nothing in its place.
    let reply = |ask: &Value, name: &str| {
        let content = json!({"action": "accept", "content": {"name": name}});
        json!({"jsonrpc": "2.0", "id": ask["id"], "result": content})
    };
    for (name, (session, mut stream, ask)) in ["one", "two"].iter().zip(streams) {
        session.post(&reply(&ask, name)).await;
        let answer = stream.message().await.unwrap().1;
        let expected = json!({"first": reply(&ask, name)["result"]});
        assert_eq!(text_of(&answer), expected.to_string());
    }
    let meta = meta_of(&one).await;
    assert_eq!(
        meta["io.modelcontextprotocol/clientInfo"]["name"], "it",
        "its own: {meta}"
    );
    assert!(!meta.to_string().contains("lockgate/"), "{meta}");
    assert_eq!(one.text("counter", json!({})).await, "1", "one child");
    assert_eq!(other.text("counter", json!({})).await, "2", "one child");
    // One that declared nothing is not asked.
    let nobody = gateway.declaring(json!({})).await;
    let refused = nobody.call("ask", json!({})).await;
    assert_eq!(refused["error"]["code"], -32603, "{refused}");
    let listens = gateway.declaring(json!({"roots": {}})).await;
    let refused = listens.call("ask", json!({"kind": "sampling"})).await;
    assert_eq!(refused["error"]["code"], -32603, "{refused}");
}

/// The end of a session leaves nothing of its calls at a child that others use.
#[tokio::test]
async fn what_a_session_leaves_behind_at_a_shared_server_is_taken_back() {
    let gateway = gateway("modern", &["server.isolation=tenant"]).await;
    let stays = gateway.session().await;
    for _ in 0..5 {
        let goes = gateway.session().await;
        // Two of these at once are more than the gateway keeps for one caller, and five more than for one child.
        let call = json!({"kind": "elicitation", "message": "x".repeat(900 << 10)});
        let mut streams = Vec::new();
        for _ in 0..4 {
            let mut stream = Events::of(goes.begin("ask", call.clone()).await);
            let (_, ask) = stream.message().await.unwrap();
            assert_eq!(ask["method"], "elicitation/create", "{}", ask["error"]);
            streams.push(stream);
        }
        assert_eq!(goes.delete().await.status(), 204);
    }
    let mut stream = Events::of(stays.begin("ask", json!({})).await);
    assert_eq!(
        stream.message().await.unwrap().1["method"],
        "elicitation/create"
    );
}

/// Its request stayed beside the child, which had answered it, as long as that ran: after a few there was no room for a
/// question in any other.
#[tokio::test]
async fn a_call_with_an_unusable_answer_leaves_nothing_at_a_server_without_sessions() {
    for isolation in ["session", "tenant"] {
        let isolation = format!("server.isolation={isolation}");
        let gateway = gateway("modern", &[&isolation]).await;
        let session = gateway.session().await;
        let long = "x".repeat(3 << 20);
        for _ in 0..6 {
            let failed = session.call("answer_bad_utf8", json!({"pad": long})).await;
            assert_eq!(failed["error"]["code"], -31003, "{isolation}: {failed}");
        }
        let call = json!({"kind": "elicitation", "message": long});
        let mut stream = Events::of(session.begin("ask", call).await);
        let (_, ask) = stream.message().await.unwrap();
        let why = &ask["error"];
        assert_eq!(ask["method"], "elicitation/create", "{isolation}: {why}");
    }
}

#[tokio::test]
async fn a_server_of_both_eras_is_spoken_to_as_its_client_speaks() {
    let gateway = gateway("dual", &[]).await;
    let session = gateway.session().await;
    let received = session.text("received", json!({})).await;
    assert!(
        received.contains(r#"\"method\":\"initialize\""#),
        "{received}"
    );
    assert_eq!(session.opened["result"]["instructions"], "Be careful.");
    let modern = Modern::at(&gateway.url);
    let received = modern.text("received", json!({})).await;
    assert!(
        !received.contains(r#"\"method\":\"initialize\""#),
        "{received}"
    );
    assert!(received.contains("2026-07-28"));
}

/// A client without a session that has a child to itself.
fn newcomer(gateway: &Gateway, number: u32) -> Modern {
    Modern::at(&gateway.url).with(json!({"experimental": {"number": number}}))
}

#[tokio::test]
async fn a_session_based_server_is_asked_once_which_era_it_is_of() {
    let gateway = Gateway::start(&[]).await;
    let session = gateway.session().await.text("received", json!({})).await;
    assert!(
        !session.contains("server/discover"),
        "a session asks nothing: {session}"
    );
    let first = newcomer(&gateway, 1).text("received", json!({})).await;
    assert_eq!(first.matches("server/discover").count(), 1, "{first}");
    let second = newcomer(&gateway, 2).text("received", json!({})).await;
    assert!(!second.contains("server/discover"), "{second}");
}

#[tokio::test]
async fn a_server_that_ends_of_the_probe_is_started_without_it() {
    let child = crate::support::harness::child();
    let gateway = Gateway::of(&[OPS], &["CHILD_UPSET=1"], &[&child]).await;
    for number in 0..2 {
        let received = newcomer(&gateway, number).text("received", json!({})).await;
        assert!(!received.contains("server/discover"), "{received}");
    }
    // To end of a probe is no failure, after which starts would be put off.
    for (cause, count) in [("failed_start", 0), ("crashed", 0), ("stopped", 1)] {
        let name = format!("lockgate_children_exits_total{{cause=\"{cause}\"}}");
        assert_eq!(metric(&gateway, &name).await, count, "{cause}");
    }
}

#[tokio::test]
async fn a_server_that_does_not_answer_the_probe_gets_initialize() {
    let child = crate::support::harness::child();
    let gateway = Gateway::of(&[], &["CHILD_IGNORES_UNKNOWN=1"], &[&child]).await;
    let received = newcomer(&gateway, 1).text("received", json!({})).await;
    assert!(received.contains("server/discover"), "{received}");
    assert!(
        received.contains(r#"\"method\":\"initialize\""#),
        "{received}"
    );
    let received = newcomer(&gateway, 2).text("received", json!({})).await;
    assert!(
        !received.contains("server/discover"),
        "it is known: {received}"
    );
}

#[tokio::test]
async fn a_manifest_says_the_era_of_a_server() {
    let child = crate::support::harness::child();
    let legacy = ["server.era=legacy"];
    let gateway = Gateway::of(&legacy, &["CHILD_ERA=dual"], &[&child]).await;
    let modern = Modern::at(&gateway.url);
    let received = modern.text("received", json!({})).await;
    assert!(!received.contains("server/discover"), "{received}");
    let modern = ["server.era=modern", "server.reply.cache_for=90s"];
    let gateway = Gateway::of(&modern, &["CHILD_ERA=dual"], &[&child]).await;
    let session = gateway.session().await;
    assert_eq!(session.opened["result"]["instructions"], "Be modern.");
    // What the child says of caching is for all its callers.
    let client = Modern::at(&gateway.url);
    for method in ["server/discover", "tools/list"] {
        let result = &client.ask(method, json!({})).await["result"];
        assert_eq!(result["ttlMs"], 90_000, "{method}");
        assert_eq!(result["cacheScope"], "private");
    }
}

/// The number of requests of a method, but for those of further pages, that the server has received.
async fn number_of(client: &Modern, method: &str) -> usize {
    let received = client.text("received", json!({})).await;
    let received: Vec<String> = serde_json::from_str(&received).unwrap();
    let is_one = |line: &&String| {
        let line: Value = serde_json::from_str(line).unwrap();
        line["method"] == method && line["params"]["cursor"].is_null()
    };
    received.iter().filter(is_one).count()
}

/// 2026-07-28 caching: a child that several sessions share is asked once for what it says may be kept.
#[tokio::test]
async fn a_shared_server_without_sessions_is_asked_once_for_what_may_be_kept() {
    let caches = ["CHILD_ERA=modern", "CHILD_TTL=600000", "CHILD_SCOPE=public"];
    let tenant = ["server.isolation=tenant"];
    let gateway = Gateway::of(&tenant, &caches, &[&crate::support::harness::child()]).await;
    // What a client declares the server may answer by, so that its reads are its own.
    let (session, client) = (gateway.declaring(json!({})).await, Modern::at(&gateway.url));
    let read = json!({"uri": "test://one"});
    for (method, params) in [
        ("tools/list", json!({})),
        ("prompts/list", json!({})),
        ("resources/list", json!({})),
        ("resources/templates/list", json!({})),
        ("resources/read", read.clone()),
    ] {
        let first = session.ask(method, params.clone()).await["result"].clone();
        assert!(first.is_object(), "{first}");
        let again = gateway
            .declaring(json!({}))
            .await
            .ask(method, params.clone())
            .await;
        assert_eq!(again["result"], first, "{method}");
        // A client with a session is told nothing of it.
        assert!(!first.to_string().contains("ttlMs"), "{first}");
        let told = client.ask(method, params).await["result"].clone();
        let ttl = told["ttlMs"].as_u64().unwrap();
        assert!((1..=600_000).contains(&ttl), "{told}");
        assert_eq!(told["cacheScope"], "public", "there is no log-in");
        assert!(!told.to_string().contains("lockgate"), "{told}");
        assert_eq!(number_of(&client, method).await, 1, "{method}");
    }
    // Another page, another resource, and what the server may answer by.
    let cursor = &session.ask("tools/list", json!({})).await["result"]["nextCursor"];
    let next = session.ask("tools/list", json!({"cursor": cursor})).await;
    let first = session.ask("tools/list", json!({})).await;
    assert_ne!(next["result"]["tools"], first["result"]["tools"]);
    let own = json!({"example.org/user": "x"});
    session.ask("tools/list", json!({"_meta": own})).await;
    session.ask("tools/list", json!({"_meta": own})).await;
    assert_eq!(number_of(&client, "tools/list").await, 3);
    // A change is asked for.
    for (uri, reads) in [("test://two", 1), ("test://one", 2)] {
        session
            .ask("resources/subscribe", json!({"uri": uri}))
            .await;
        session.text("touch", json!({"uri": uri})).await;
        session.ask("resources/read", read.clone()).await;
        assert_eq!(number_of(&client, "resources/read").await, reads, "{uri}");
    }
    let changed = json!({"method": "notifications/tools/list_changed"});
    session.text("notify", changed).await;
    session.ask("tools/list", json!({})).await;
    session.ask("prompts/list", json!({})).await;
    assert_eq!(number_of(&client, "tools/list").await, 4);
    assert_eq!(number_of(&client, "prompts/list").await, 1);
}

/// "Caches MUST NOT be shared across authorization contexts" (2026-07-28 caching, "Cache Scope Field").
#[tokio::test]
async fn what_is_private_is_kept_for_one_principal_alone() {
    let server = |isolation: &str, scope: &str| {
        json!({"command": crate::support::harness::child(), "isolation": isolation, "env":
            {"CHILD_ERA": "modern", "CHILD_TTL": "600000", "CHILD_SCOPE": scope}})
    };
    let (ada, bob) = (key(), key());
    let of = |digest: &str, name: &str| json!({"hash": digest, "subject": name, "servers": ["*"]});
    let tenants = json!({"a": {"auth": {"mode": "keys"},
        "api_keys": {"ada": of(&ada.1, "ada"), "bob": of(&bob.1, "bob")},
        "servers": {"public": server("tenant", "public"), "private": server("tenant", "private"),
            "own": server("principal", "private")}}});
    let gateway = Served::start(json!({}), tenants).await;
    for (server, asked) in [("public", 1), ("private", 4), ("own", 1)] {
        let url = format!("{}/t/a/{server}/mcp", gateway.origin());
        let at = |key: &str| {
            let mut client = Modern::at(&url);
            client.token = Some(key.to_owned());
            client
        };
        let (ada, bob) = (at(&ada.0), at(&bob.0));
        for client in [&ada, &bob, &ada, &bob] {
            let list = client.ask("prompts/list", json!({})).await["result"].clone();
            assert!(list["ttlMs"].as_u64().unwrap() > 1, "{list}");
            assert_eq!(list["cacheScope"], "private", "there is a log-in");
        }
        assert_eq!(number_of(&ada, "prompts/list").await, asked, "{server}");
    }
}

/// 2026-07-28 mrtr: the state of the server is all that a retry needs, which never goes out bare.
#[tokio::test]
async fn a_retry_reaches_any_child_of_a_server_without_sessions() {
    let gateway = gateway("modern", &[]).await;
    let client = Modern::at(&gateway.url).with(json!({"elicitation": {}, "roots": {}}));
    client.text("counter", json!({})).await;
    let children = gateway.descendants().len();
    let call = client.tool("ask", json!({"kind": "roots"}));
    let (required, other) = (client.answer(&call).await, client.answer(&call).await);
    assert_eq!(gateway.descendants().len(), children, "nothing waits");
    assert_eq!(number_of(&client, "tools/call").await, 4, "of one child");
    for required in [&required, &other] {
        assert_eq!(asked(required)[0].0, "first", "the server's own");
        let state = required["result"]["requestState"].as_str().unwrap();
        assert!(!state.contains("asked-1"), "{state}");
    }
    let ended = client.call("exit", json!({"code": 3})).await;
    assert!(ended["error"].is_object(), "{ended}");
    let roots = json!({"first": {"roots": []}});
    let mut wrong = client.retry(&call, &required, roots.clone());
    wrong["params"]["arguments"]["kind"] = json!("sampling");
    assert_eq!(client.post(&wrong).await.status(), 400, "another call");
    let mut wrong = client.retry(&call, &required, roots.clone());
    let state = required["result"]["requestState"].as_str().unwrap();
    let end = if state.ends_with('A') { "B" } else { "A" };
    wrong["params"]["requestState"] = json!(format!("{}{end}", &state[..state.len() - 1]));
    assert_eq!(client.post(&wrong).await.status(), 400, "tampered with");
    let bare = json!({"result": {"requestState": "asked-1"}});
    let bare = client.retry(&call, &bare, roots.clone());
    assert_eq!(client.post(&bare).await.status(), 400, "the server's own");
    assert_eq!(
        number_of(&client, "tools/call").await,
        1,
        "nothing was sent"
    );
    let retry = client.retry(&call, &required, roots.clone());
    let answer = client.answer(&retry).await;
    assert_eq!(text_of(&answer), roots.to_string());
    assert_eq!(client.post(&retry).await.status(), 400, "used");
    let other = client.answer(&client.retry(&call, &other, roots)).await;
    assert_eq!(other["result"]["resultType"], "complete", "{other}");
}

/// A connection breaks while the server of a retry is being started: no server has seen the answers of the person.
#[tokio::test]
async fn a_retry_that_was_not_sent_can_be_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let (starts, closed) = (dir.path().join("starts"), dir.path().join("closed"));
    let script = format!(
        "echo x >> '{}'; while [ -e '{}' ]; do sleep 0.05; done; exec '{}'",
        starts.display(),
        closed.display(),
        crate::support::harness::child()
    );
    let sets = ["server.era=modern", "session.idle=300ms"];
    let gateway = Gateway::of(&sets, &["CHILD_ERA=modern"], &["sh", "-c", &script]).await;
    let client = Modern::at(&gateway.url).with(json!({"roots": {}}));
    let call = client.tool("ask", json!({"kind": "roots"}));
    let required = client.answer(&call).await;
    let roots = json!({"first": {"roots": []}});
    let retry = client.retry(&call, &required, roots.clone());
    until("the end of its child", || async {
        gateway.descendants().is_empty()
    })
    .await;
    std::fs::write(&closed, "").unwrap();
    let is_started = async || std::fs::read_to_string(&starts).unwrap().lines().count() == 2;
    tokio::select! {
        response = client.request(&retry).send() => panic!("it waits for no start: {response:?}"),
        () = until("another start", &is_started) => {}
    }
    // It was used until the gateway knows that its client has left; from then on a retry waits for the start.
    let waiting = loop {
        let mut sent = Box::pin(client.request(&retry).send());
        match timeout(Duration::from_secs(2), &mut sent).await {
            Ok(response) => assert_eq!(response.unwrap().status(), 400),
            Err(_) => break sent,
        }
    };
    std::fs::remove_file(&closed).unwrap();
    let answer = last(within("an answer", waiting).await.unwrap()).await;
    assert_eq!(text_of(&answer), roots.to_string());
    assert_eq!(client.post(&retry).await.status(), 400, "used");
}

#[tokio::test]
async fn a_carried_ticket_has_an_end() {
    let gateway = gateway("modern", &["server.clocks.ask=5ms"]).await;
    let client = Modern::at(&gateway.url).with(json!({"roots": {}}));
    let call = client.tool("ask", json!({"kind": "roots"}));
    let required = client.answer(&call).await;
    client.text("sleep", json!({"ms": 20})).await;
    let retry = client.retry(&call, &required, json!({"first": {"roots": []}}));
    assert_eq!(client.post(&retry).await.status(), 400);
}

/// "Servers MUST NOT send an `inputRequests` that the client has not declared support for" (2026-07-28 mrtr,
/// "Server Requirements").
#[tokio::test]
async fn a_server_without_sessions_asks_only_what_its_client_declared() {
    let gateway = gateway("modern", &[]).await;
    let client = Modern::at(&gateway.url).with(json!({"roots": {}}));
    for kind in ["elicitation", "sampling"] {
        let response = client
            .post(&client.tool("ask", json!({ "kind": kind })))
            .await;
        assert_eq!(response.status(), 400);
        let error = last(response).await["error"].clone();
        assert_eq!(error["code"], -32021, "{error}");
        let required = &error["data"]["requiredCapabilities"];
        assert!(required[kind].is_object(), "{error}");
    }
    let required = client.call("ask", json!({"kind": "roots"})).await;
    assert_eq!(asked(&required).len(), 1);
}

/// A result that asks belongs to one call, so that callers can share the server that asks them.
#[tokio::test]
async fn callers_that_share_a_server_without_sessions_are_asked() {
    let gateway = gateway("modern", &["server.isolation=tenant"]).await;
    let at = |capabilities| Modern::at(&gateway.url).with(capabilities);
    let (roots, elicits) = (at(json!({"roots": {}})), at(json!({"elicitation": {}})));
    let nobody = at(json!({}));
    let calls = [
        (&roots, roots.tool("ask", json!({"kind": "roots"}))),
        (
            &elicits,
            elicits.tool("ask", json!({"kind": "elicitation"})),
        ),
    ];
    let mut required = Vec::new();
    for (client, call) in &calls {
        required.push(client.answer(call).await);
    }
    for (((client, call), required), answer) in calls.iter().zip(&required).zip([
        json!({"first": {"roots": []}}),
        json!({"first": {"action": "decline"}}),
    ]) {
        let told = client
            .answer(&client.retry(call, required, answer.clone()))
            .await;
        assert_eq!(text_of(&told), answer.to_string());
        let meta: Value = serde_json::from_str(&client.text("meta", json!({})).await).unwrap();
        let declared = &meta["io.modelcontextprotocol/clientCapabilities"];
        assert_eq!(declared, &client.capabilities, "its own: {meta}");
        assert!(!meta.to_string().contains("lockgate/"), "{meta}");
    }
    let refused = nobody
        .post(&nobody.tool("ask", json!({"kind": "roots"})))
        .await;
    assert_eq!(refused.status(), 400);
    let refused = last(refused).await;
    assert_eq!(refused["error"]["code"], -32021, "{refused}");
    assert_eq!(number_of(&nobody, "tools/call").await, 8, "one child");
}

/// 2026-07-28 basic, "Per-request protocol fields", and what needs no capability: a state alone.
#[tokio::test]
async fn a_client_that_declares_nothing_is_told_what_it_lacks() {
    for isolation in ["session", "tenant"] {
        let isolation = format!("server.isolation={isolation}");
        let gateway = gateway("modern", &[&isolation, "server.reply.task_after=1h"]).await;
        let extension = json!({"extensions": {"io.modelcontextprotocol/tasks": {}}});
        for declared in [json!({}), extension] {
            let client = Modern::at(&gateway.url).with(declared);
            let call = client.tool("ask", json!({"kind": "sampling"}));
            let refused = client.post(&call).await;
            assert_eq!(refused.status(), 400, "{isolation}");
            let error = last(refused).await["error"].clone();
            assert_eq!(error["code"], -32021, "{isolation}: {error}");
            let required = json!({"requiredCapabilities": {"sampling": {}}});
            assert_eq!(error["data"], required, "{isolation}");
            let call = client.tool("ask", json!({"kind": "nothing"}));
            let required = client.answer(&call).await;
            assert_eq!(required["result"]["resultType"], "input_required");
            assert!(required["result"]["inputRequests"].is_null(), "{required}");
            let mut retry = client.retry(&call, &required, json!({}));
            let params = retry["params"].as_object_mut().unwrap();
            params.remove("inputResponses");
            let told = client.answer(&retry).await;
            assert_eq!(text_of(&told), r#"{"first":null}"#, "{isolation}");
        }
    }
}

/// The extension for tasks keeps no client from being asked at once.
#[tokio::test]
async fn a_client_with_tasks_is_asked_by_a_shared_server() {
    let sets = ["server.isolation=tenant", "server.reply.task_after=1s"];
    let gateway = gateway("modern", &sets).await;
    let tasks =
        json!({"roots": {}, "extensions": {"io.modelcontextprotocol/tasks": {}, "own": {}}});
    let client = Modern::at(&gateway.url).with(tasks);
    let call = client.tool("ask", json!({"kind": "roots"}));
    let required = client.answer(&call).await;
    assert_eq!(asked(&required).len(), 1, "{required}");
    let roots = json!({"first": {"roots": []}});
    let told = client
        .answer(&client.retry(&call, &required, roots.clone()))
        .await;
    assert_eq!(text_of(&told), roots.to_string());
    // A call still becomes a task, and the server hears of none.
    let task = client.call("sleep", json!({"ms": 3000})).await;
    assert_eq!(task["result"]["resultType"], "task", "{task}");
    let meta: Value = serde_json::from_str(&client.text("meta", json!({})).await).unwrap();
    let declared = &meta["io.modelcontextprotocol/clientCapabilities"];
    assert_eq!(*declared, json!({"roots": {}, "extensions": {"own": {}}}));
}

/// The tasks of a client are those of the gateway: a server that is told of them answers by tasks of its own, which no
/// client can follow.
#[tokio::test]
async fn a_server_of_one_session_hears_of_no_tasks() {
    let gateway = gateway("modern", &[]).await;
    for declared in [json!({}), json!({"roots": {}})] {
        let mut client = Modern::at(&gateway.url).with(declared);
        client.capabilities["extensions"] = json!({"io.modelcontextprotocol/tasks": {}});
        let meta: Value = serde_json::from_str(&client.text("meta", json!({})).await).unwrap();
        let told = &meta["io.modelcontextprotocol/clientCapabilities"];
        client.capabilities["extensions"] = json!({});
        assert_eq!(told, &client.capabilities, "{meta}");
    }
}

/// A client whose update was lost repeats it, and must not answer by it what it has not seen. The server gives both of its
/// questions one key, as it may where it is asked anew.
#[tokio::test]
async fn no_two_questions_of_a_task_have_one_key() {
    let gateway = gateway("modern", &["server.reply.task_after=200ms"]).await;
    let tasks = json!({"roots": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}});
    let client = Modern::at(&gateway.url).with(tasks);
    let args = json!({"kind": "roots", "times": 2, "after": 800});
    let task = client.call("ask", args).await["result"].clone();
    assert_eq!(task["resultType"], "task", "{task}");
    let key = |state: &Value| {
        let requests = state["inputRequests"].as_object();
        requests.and_then(|requests| requests.keys().next().cloned())
    };
    let update = async |key: &str, roots: Value| {
        let responses = json!({key: {"roots": roots}});
        let params = json!({"taskId": task["taskId"], "inputResponses": responses});
        client.ask("tasks/update", params).await
    };
    let state = client.polled(&task, "input_required").await;
    let first = key(&state).unwrap();
    update(&first, json!([])).await;
    until("another question", || async {
        let state = client.of_task("tasks/get", &task).await["result"].clone();
        key(&state).is_some_and(|key| key != first)
    })
    .await;
    let repeated = update(&first, json!([])).await;
    assert_eq!(repeated["result"]["resultType"], "complete", "{repeated}");
    let state = client.of_task("tasks/get", &task).await["result"].clone();
    assert_eq!(state["status"], "input_required", "{state}");
    let roots = json!([{"uri": "file:///second"}]);
    update(&key(&state).unwrap(), roots.clone()).await;
    let state = client.polled(&task, "completed").await;
    assert_eq!(
        text_of(&state),
        json!({"first": {"roots": roots}}).to_string()
    );
}

/// A call that may be asked carries what it is asked, so that it needs no child of its own.
#[tokio::test]
async fn calls_that_may_be_asked_share_the_child_of_their_caller() {
    let plain = gateway("modern", &[]).await;
    assert_eq!(Modern::at(&plain.url).text("counter", json!({})).await, "1");
    let gateway = gateway("modern", &[]).await;
    let client = Modern::at(&gateway.url).with(json!({"elicitation": {}}));
    assert_eq!(client.text("counter", json!({})).await, "1");
    let sleep = client.tool("sleep", json!({"ms": 500}));
    let sleeps = client.post(&sleep);
    let counts = async {
        until("the other call", || async {
            let received = client.text("received", json!({})).await;
            received.contains("sleep")
        })
        .await;
        client.text("counter", json!({})).await
    };
    let (slept, counted) = tokio::join!(sleeps, counts);
    assert_eq!(slept.status(), 200);
    assert_eq!(counted, "2");
    // A second child would stay for the next call.
    assert_eq!(
        gateway.descendants().len(),
        plain.descendants().len(),
        "one child, as for a client that cannot be asked"
    );
}

/// What the gateway says to itself, no client may say.
#[tokio::test]
async fn keys_of_the_gateway_itself_are_refused() {
    let gateway = gateway("modern", &[]).await;
    let mark = |mut call: Value| {
        call["params"]["_meta"]["lockgate/carries"] = json!(true);
        call
    };
    let client = Modern::at(&gateway.url);
    let refused = client.post(&mark(client.tool("echo", json!({})))).await;
    assert_eq!(refused.status(), 400);
    let session = gateway.session().await;
    let refused = last(session.post(&mark(request_of("ask", json!({})))).await).await;
    assert_eq!(refused["error"]["code"], -32602, "{refused}");
    assert!(!session.opened.to_string().contains("lockgate/"));
}

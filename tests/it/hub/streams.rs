//! Streams: delivery, resumption, routing and their ends.

use std::time::Duration;

use futures_util::future::join_all;
use reqwest::{
    Method, StatusCode,
    header::{HeaderMap, HeaderValue, USER_AGENT},
};
use serde_json::{Value, json};

use crate::support::harness::{
    Event, Events, Gateway, Legacy, NEWEST, body, child, client_with, json_of, last, opening,
    text_of, tool_call, until, within,
};

/// The numbers of all progress among `messages`.
fn progress(messages: &[(String, Value)]) -> Vec<u64> {
    let of = |(_, message): &(String, Value)| message["params"]["progress"].as_u64();
    messages.iter().filter_map(of).collect()
}

/// Makes the child send a message for the listener.
async fn announce(session: &crate::support::harness::Session, name: &str) {
    let method = format!("notifications/{name}");
    let args = json!({"method": method, "params": {}});
    assert_eq!(session.text("notify", args).await, "sent");
}

#[tokio::test]
async fn twenty_cuts_lose_nothing_and_repeat_nothing() {
    let gateway = Gateway::start(&[]).await;
    let session = gateway.session().await;
    let mut stream = session
        .stream("slow", json!({"n": 150, "ms": 4}), json!("t"))
        .await;
    let mut all = Vec::new();
    for cycle in 0..20 {
        for _ in 0..=cycle % 4 {
            all.push(stream.message().await.unwrap());
        }
        stream = session.resume(&all.last().unwrap().0).await;
    }
    all.extend(stream.messages().await);
    assert_eq!(progress(&all), (1..=150).collect::<Vec<_>>());
    assert_eq!(text_of(&all.last().unwrap().1), "done");
    assert_eq!(all.len(), 151);
}

#[tokio::test]
async fn a_stream_begins_with_an_empty_event_and_an_id() {
    let gateway = Gateway::start(&["server.reply.mode=sse"]).await;
    let session = gateway.session().await;
    let call = Events::of(session.begin("echo", json!({"text": "x"})).await)
        .next()
        .await;
    let listener = session.listen().await.next().await;
    for first in [call.unwrap(), listener.unwrap()] {
        assert_eq!(first.data.as_deref(), Some(""));
        assert!(first.id.is_some_and(|id| !id.is_empty()));
        assert_eq!(first.retry, None, "nothing closes it early");
    }
    let older = gateway.initialize("2025-06-18").await;
    let mut stream = Events::of(older.begin("echo", json!({"text": "x"})).await);
    assert!(stream.next().await.unwrap().is_message());
}

#[tokio::test]
async fn a_polled_stream_closes_with_retry_and_goes_on() {
    let gateway = Gateway::start(&[
        "server.reply.close_after=80ms",
        "server.reply.mode=sse",
        "stream.retry=123ms",
    ])
    .await;
    let session = gateway.session().await;
    let mut stream = Events::of(session.begin("sleep", json!({"ms": 400})).await);
    let blocks = stream.rest().await;
    assert_eq!(blocks.len(), 2, "{blocks:?}");
    // 50 % to 150 % of `stream.retry`: clients that are disconnected together return apart.
    for block in &blocks {
        let retry: u64 = block.retry.as_deref().unwrap().parse().unwrap();
        assert!((61..=185).contains(&retry), "{retry}");
    }
    let mut rest = session.resume(blocks[0].id.as_ref().unwrap()).await;
    let messages = rest.messages().await;
    assert_eq!(messages.len(), 1);
    assert_eq!(text_of(&messages[0].1), "slept");
}

/// A stream that ends without a result gets a long `retry`.
#[tokio::test]
async fn a_stream_that_ends_without_a_result_is_not_asked_for_soon() {
    let gateway = Gateway::start(&["server.reply.mode=sse", "stream.retry=100ms"]).await;
    let session = gateway.session().await;
    let retry = |event: &Event| -> Option<u64> { Some(event.retry.as_ref()?.parse().unwrap()) };
    let mut failed = Events::of(session.begin("error", json!({})).await);
    let mut done = Events::of(session.begin("echo", json!({"text": "x"})).await);
    let call = tool_call(json!("c"), "hang", json!({}));
    let mut cancelled = Events::of(session.post(&call).await);
    let cancel = json!({"requestId": "c"});
    session.notify("notifications/cancelled", cancel).await;
    for stream in [&mut failed, &mut cancelled] {
        let events = stream.rest().await;
        // Longer than clients wait, at the end alone.
        assert_eq!(retry(&events[0]), None, "{events:?}");
        let end = retry(events.last().unwrap());
        assert!(end.is_some_and(|end| end >= 15_000), "{events:?}");
    }
    // Clients of older revisions do not ask again.
    let older = gateway.initialize("2025-06-18").await;
    let mut failed = Events::of(older.begin("error", json!({})).await);
    let events = failed.rest().await;
    assert!(events[0].is_message() && events.len() == 1, "{events:?}");
    let events = done.rest().await;
    assert!(
        events.iter().all(|event| event.retry.is_none()),
        "{events:?}"
    );
}

/// The TypeScript SDK holds one `retry` for all streams of a transport: a listener that breaks after
/// another stream ended with a long one must not stay away for long.
#[tokio::test]
async fn a_long_retry_holds_for_no_other_stream() {
    let gateway = Gateway::start(&["server.reply.mode=sse", "stream.retry=100ms"]).await;
    let session = gateway.session().await;
    let mut listener = session.listen().await;
    let mut hanging = Events::of(session.begin("hang", json!({})).await);
    let (primed, _) = (listener.next().await.unwrap(), hanging.next().await);
    assert!(primed.retry.is_none());
    let is_usual = |event: Option<Event>| {
        let event = event.unwrap();
        assert!(!event.is_message(), "{event:?}");
        let retry: u64 = event.retry.unwrap().parse().unwrap();
        assert!((50..=150).contains(&retry), "{retry}");
    };
    for _ in 0..2 {
        let mut failed = Events::of(session.begin("error", json!({})).await);
        let end = failed.rest().await.pop().unwrap();
        assert!(end.retry.unwrap().parse::<u64>().unwrap() >= 15_000);
        is_usual(listener.next().await);
        is_usual(hanging.next().await);
    }
    // A stream that begins later gives it as well: there may have been none before it.
    let mut later = Events::of(session.begin("hang", json!({})).await);
    assert!(later.next().await.unwrap().id.is_some());
    is_usual(later.next().await);
}

/// The Java SDK ends a stream with an error at a `retry:`, though more follows.
#[tokio::test]
async fn the_java_sdk_gets_no_retry_on_a_stream_that_goes_on() {
    let gateway = Gateway::start(&["server.reply.mode=sse", "stream.retry=100ms"]).await;
    let mut session = gateway.session().await;
    let other = session.again();
    let agent = HeaderValue::from_static("Java-http-client/21.0.4");
    session.http = client_with(HeaderMap::from_iter([(USER_AGENT, agent)]));
    let mut listener = session.listen().await;
    assert!(listener.next().await.unwrap().id.is_some());
    let mut hanging = Events::of(other.begin("hang", json!({})).await);
    hanging.next().await.unwrap();
    for _ in 0..2 {
        let mut failed = Events::of(session.begin("error", json!({})).await);
        let events = failed.rest().await;
        assert!(
            events.iter().all(|event| event.retry.is_none()),
            "{events:?}"
        );
        Events::of(other.begin("error", json!({})).await)
            .rest()
            .await;
        // Other clients are given the usual delay again.
        assert!(hanging.next().await.unwrap().retry.is_some());
    }
    announce(&session, "end").await;
    let event = listener.next().await.unwrap();
    assert!(event.is_message() && event.retry.is_none(), "{event:?}");
}

#[tokio::test]
async fn the_listener_never_carries_a_response() {
    let gateway = Gateway::start(&["server.reply.mode=sse"]).await;
    let session = gateway.session().await;
    let mut listener = session.listen().await;
    for n in 0..5 {
        let text = session.text("echo", json!({"text": n.to_string()})).await;
        assert_eq!(text, n.to_string());
        let mut lost = Events::of(session.begin("sleep", json!({"ms": 20})).await);
        lost.next().await.unwrap();
    }
    announce(&session, "end").await;
    let (_, only) = listener.message().await.unwrap();
    assert_eq!(only["method"], "notifications/end");
}

#[tokio::test]
async fn hostile_text_stays_one_event_and_the_same_text() {
    let hostile = "a\n\nevent: x\rid: 7\r\n\r\ndata: {}\u{2028}\u{2029}\u{85}: c\n\n\u{feff}retry: 1\n\0\u{1f600}";
    let gateway = Gateway::start(&["server.reply.mode=sse"]).await;
    let session = gateway.session().await;
    let mut stream = Events::of(session.begin("echo", json!({"text": hostile})).await);
    let blocks = stream.rest().await;
    assert_eq!(blocks.len(), 2, "{blocks:?}");
    let message: Value = serde_json::from_str(blocks[1].data.as_ref().unwrap()).unwrap();
    assert_eq!(text_of(&message), hostile);
}

#[tokio::test]
async fn a_bare_carriage_return_of_the_child_breaks_no_event() {
    let gateway = Gateway::start(&[]).await;
    let session = gateway.session().await;
    let mut listener = session.listen().await;
    let line = "{\"jsonrpc\":\"2.0\",\rid\u{2028}: 1\r\"method\":\"notifications/x\"}";
    let bad = session.begin("raw", json!({"line": line})).await;
    let line =
        "{\"jsonrpc\":\"2.0\",\r\"method\":\"notifications/x\",\r\"params\":{\"a\":\"\u{2028}\"}}";
    let good = session.begin("raw", json!({"line": line})).await;
    let event = loop {
        let event = listener.next().await.unwrap();
        if event.is_message() {
            break event.data.unwrap();
        }
    };
    assert!(!event.contains('\r'), "{event:?}");
    let message: Value = serde_json::from_str(&event).unwrap();
    assert_eq!(message["params"]["a"], "\u{2028}");
    drop((bad, good));
}

#[tokio::test]
async fn silence_is_filled_with_comments_without_id() {
    let gateway = Gateway::start(&["stream.keep_alive=100ms", "server.reply.mode=sse"]).await;
    let session = gateway.session().await;
    let call = Events::of(session.begin("hang", json!({})).await);
    for mut stream in [session.listen().await, call] {
        assert!(stream.next().await.unwrap().id.is_some());
        for _ in 0..3 {
            let event = stream.next().await.unwrap();
            assert!(event.comment.is_some(), "{event:?}");
            assert_eq!((event.id, event.data), (None, None));
        }
    }
}

#[tokio::test]
async fn one_call_too_many_is_refused_and_touches_no_other() {
    let gateway = Gateway::start(&["server.reply.mode=sse"]).await;
    let session = gateway.session().await;
    let mut open = Vec::new();
    for n in 0..31 {
        let message = tool_call(json!(n + 500), "hang", json!({}));
        open.push(Events::of(session.post(&message).await));
    }
    let slow = session
        .stream("slow", json!({"n": 40, "ms": 20}), json!(1))
        .await;
    open.push(slow);
    let refused = session.begin("echo", json!({"text": "33"})).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(refused.headers().contains_key("retry-after"));
    assert_eq!(json_of(refused).await["error"]["code"], -31004);
    let messages = open.pop().unwrap().messages().await;
    assert_eq!(messages.len(), 41);
    assert_eq!(session.text("echo", json!({"text": "y"})).await, "y");
    let cancel = json!({"requestId": 500});
    session.notify("notifications/cancelled", cancel).await;
    assert_eq!(open[0].messages().await, []);
}

#[tokio::test]
async fn a_get_that_takes_no_stream_is_refused() {
    let gateway = Gateway::start(&[]).await;
    let session = gateway.session().await;
    let request = session
        .request(Method::GET)
        .header("Accept", "application/json");
    let refused = within("a response", request.send()).await.unwrap();
    assert_eq!(refused.status(), StatusCode::NOT_ACCEPTABLE);
    for method in [Method::PUT, Method::HEAD] {
        let refused = within("a response", session.request(method).send()).await;
        let refused = refused.unwrap();
        assert_eq!(refused.status(), StatusCode::METHOD_NOT_ALLOWED);
        assert_eq!(refused.headers()["allow"], "GET, POST, DELETE");
    }
}

#[tokio::test]
async fn of_two_listeners_only_the_newer_hears_and_the_older_takes_over() {
    let gateway = Gateway::start(&["stream.keep_alive=50ms"]).await;
    let session = gateway.session().await;
    let mut older = session.listen().await;
    let mut newer = session.listen().await;
    for n in 0..5 {
        announce(&session, &format!("first{n}")).await;
        let (_, message) = newer.message().await.unwrap();
        assert_eq!(message["method"], format!("notifications/first{n}"));
    }
    let mut comments = 0;
    while comments < 3 {
        let event = older.next().await.unwrap();
        assert!(!event.is_message(), "{event:?}");
        comments += usize::from(event.comment.is_some());
    }
    drop(newer);
    // The gateway notices the end of `newer` at its next write, at the latest.
    let message = loop {
        announce(&session, "second").await;
        let event = older.next().await.unwrap();
        if event.is_message() {
            break event.data.unwrap();
        }
    };
    assert!(message.contains("notifications/second"), "{message}");
}

#[tokio::test]
async fn a_cancelled_call_ends_its_stream_without_a_response() {
    let gateway = Gateway::start(&["server.reply.mode=sse"]).await;
    let session = gateway.session().await;
    let mut listener = session.listen().await;
    let call = tool_call(json!("mine"), "sleep", json!({"ms": 150}));
    let mut stream = Events::of(session.post(&call).await);
    let first = stream.next().await.unwrap().id.unwrap();
    let other = session.begin("sleep", json!({"ms": 400})).await;
    let cancel = json!({"requestId": "mine", "reason": "r"});
    session.notify("notifications/cancelled", cancel).await;
    assert_eq!(stream.messages().await, []);
    let again = session.get(Some(&first)).await;
    assert_eq!(again.status(), StatusCode::NO_CONTENT);
    assert_eq!(body(again).await, "");
    // By the end of the other call the late answer has arrived, and is dropped.
    assert_eq!(text_of(&last(other).await), "slept");
    announce(&session, "end").await;
    let (_, message) = listener.message().await.unwrap();
    assert_eq!(message["method"], "notifications/end");
    let again = session.get(Some(&first)).await;
    assert_eq!(again.status(), StatusCode::NO_CONTENT);
    assert!(
        session
            .text("cancelled", json!({}))
            .await
            .contains("\"reason\":\"r\"")
    );
}

#[tokio::test]
async fn a_cancellation_of_no_call_does_nothing() {
    let gateway = Gateway::start(&[]).await;
    let (session, foreign) = (gateway.session().await, gateway.session().await);
    let echo = tool_call(json!(7), "echo", json!({"text": "seven"}));
    let mut victim = Events::of(
        session
            .post(&tool_call(json!(8), "sleep", json!({"ms": 300})))
            .await,
    );
    for id in [json!(7), json!("7"), json!(null), json!({"a": 1}), json!(8)] {
        let params = json!({"requestId": id});
        let cancel =
            json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params});
        let response = foreign.post(&cancel).await;
        assert!(!response.status().is_server_error());
    }
    for id in [json!(7), json!("8"), json!(9)] {
        let params = json!({"requestId": id});
        session
            .notify("notifications/cancelled", params.clone())
            .await;
        assert_eq!(text_of(&last(session.post(&echo).await).await), "seven");
        session.notify("notifications/cancelled", params).await;
    }
    assert_eq!(text_of(&victim.messages().await[0].1), "slept");
}

#[tokio::test]
async fn a_held_call_that_is_cancelled_is_an_empty_stream() {
    let gateway = Gateway::start(&["server.reply.sse_after=10s"]).await;
    let session = gateway.session().await;
    let held = tool_call(json!(70), "hang", json!({}));
    let cancel = async {
        until("the child has it", || async {
            session.text("received", json!({})).await.contains("hang")
        })
        .await;
        let params = json!({"requestId": 70});
        session.notify("notifications/cancelled", params).await;
    };
    let (response, ()) = tokio::join!(session.post(&held), cancel);
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(Events::of(response).rest().await, []);
}

/// 2025-11-25 transports, "Sending Messages to the Server" 5: the answer is an event stream for a client that
/// takes nothing else. There is nothing to resume yet, so the event has no id, not even an empty one, by which
/// clients would forget the last.
#[tokio::test]
async fn initialize_is_one_event_for_a_client_of_streams_alone() {
    let gateway = Gateway::start(&[]).await;
    let mut client = gateway.stranger();
    client.accept = "text/event-stream";
    let response = client.post(&opening(NEWEST)).await;
    let session = response.headers()["mcp-session-id"].to_str().unwrap();
    client.id = Some(session.to_owned());
    let events = Events::of(response).rest().await;
    let [event] = &events[..] else {
        panic!("{events:?}")
    };
    assert_eq!(
        (event.event.as_deref(), &event.id),
        (Some("message"), &None)
    );
    let opened: Value = serde_json::from_str(event.data.as_ref().unwrap()).unwrap();
    assert_eq!(opened["result"]["protocolVersion"], NEWEST);
    client.notify("notifications/initialized", json!({})).await;
    assert_eq!(client.text("echo", json!({"text": "x"})).await, "x");
}

/// 2025-11-25 transports, "Backwards Compatibility": a client of both transports posts `initialize` first, and
/// falls back to HTTP+SSE upon 400, 404 or 405.
#[tokio::test]
async fn a_client_of_both_transports_finds_http_sse() {
    let gateway = Gateway::start(&[]).await;
    let mut client = gateway.stranger();
    client.url = format!("{}/sse", gateway.base());
    let refused = client.post(&opening(NEWEST)).await;
    assert_eq!(refused.status(), StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(refused.headers()["allow"], "GET");
    assert!(gateway.descendants().is_empty());
    // A revision that it has not is named, and where that is.
    let modern = client.http.get(&client.url);
    let modern = modern.header("Accept", "text/event-stream");
    let modern = modern.header("MCP-Protocol-Version", "2026-07-28");
    let refused = within("an answer", modern.send()).await.unwrap();
    assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
    let text = json_of(refused).await["error"]["message"].to_string();
    assert!(text.contains("POST to the MCP endpoint"), "{text}");
    let mut legacy = Legacy::connect(&gateway, None).await;
    assert!(legacy.initialize().await["result"].is_object());
}

/// 2024-11-05 lifecycle, "Initialization": only pings are taken before `initialize`.
#[tokio::test]
async fn http_sse_begins_with_initialize() {
    let gateway = Gateway::start(&[]).await;
    let mut legacy = Legacy::connect(&gateway, None).await;
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    let refused = legacy.post(&list).await;
    assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
    assert!(gateway.descendants().is_empty());
    let ping = json!({"jsonrpc": "2.0", "id": 2, "method": "ping"});
    assert_eq!(legacy.post(&ping).await.status(), StatusCode::ACCEPTED);
    let (_, pong) = legacy.events.message().await.unwrap();
    assert_eq!((&pong["id"], &pong["result"]), (&json!(2), &json!({})));
    assert!(legacy.initialize().await["result"].is_object());
}

/// Each call writes the ids of all to the log of several replicas: a thousand of one session held up everybody's.
#[tokio::test]
async fn http_sse_has_as_many_calls_as_streams() {
    let gateway = Gateway::start(&["stream.per_session=2"]).await;
    let mut legacy = Legacy::connect(&gateway, None).await;
    legacy.initialize().await;
    let call = |id: &str| tool_call(json!(id), "hang", json!({}));
    for id in ["a", "b"] {
        assert_eq!(legacy.post(&call(id)).await.status(), StatusCode::ACCEPTED);
    }
    let refused = legacy.post(&call("c")).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(refused.headers().contains_key("retry-after"));
    let ping = json!({"jsonrpc": "2.0", "id": "p", "method": "ping"});
    assert_eq!(legacy.post(&ping).await.status(), StatusCode::ACCEPTED);
    let (_, pong) = legacy.events.message().await.unwrap();
    assert_eq!(pong["id"], "p");
    let cancelled = json!({"jsonrpc": "2.0", "method": "notifications/cancelled",
        "params": {"requestId": "a"}});
    assert_eq!(legacy.post(&cancelled).await.status(), StatusCode::ACCEPTED);
    assert_eq!(legacy.post(&call("c")).await.status(), StatusCode::ACCEPTED);
}

/// 2025-03-26 and 2025-06-18 transports, "Sending Messages to the Server": "The server SHOULD NOT close the SSE
/// stream before sending the JSON-RPC response". `close_after` is of the revision that has polling.
#[tokio::test]
async fn only_the_newest_revision_is_polled() {
    let sets = ["server.reply.close_after=80ms", "server.reply.mode=sse"];
    let gateway = Gateway::start(&sets).await;
    for revision in ["2025-03-26", "2025-06-18"] {
        let session = gateway.initialize(revision).await;
        let mut stream = Events::of(session.begin("sleep", json!({"ms": 400})).await);
        let events = stream.rest().await;
        let [event] = &events[..] else {
            panic!("{events:?}")
        };
        assert!(event.is_message() && event.retry.is_none(), "{event:?}");
    }
}

#[tokio::test]
async fn the_endpoint_of_http_sse_takes_only_its_own_session() {
    let gateway = Gateway::start(&[]).await;
    let mut legacy = Legacy::connect(&gateway, None).await;
    legacy.initialize().await;
    assert!(legacy.endpoint.starts_with('/') && !legacy.endpoint.starts_with("//"));
    let path = legacy.endpoint.split('?').next().unwrap();
    let other = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
    let stranger = format!("{path}?session_id={other}");
    let twice = format!("{}&session_id={other}", legacy.endpoint);
    for (target, status) in [
        (path, 400),
        (&stranger, 404),
        (&twice, 400),
        (&format!("{path}?session_id="), 404),
    ] {
        let request = gateway.http.post(format!("{}{target}", gateway.base()));
        let request = request
            .header("Content-Type", "application/json")
            .body("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/list\"}");
        let response = within("a response", request.send()).await.unwrap();
        assert_eq!(response.status().as_u16(), status, "{target}");
    }
    // A message of a revision that has no HTTP+SSE.
    let modern = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{
        "io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}"#;
    let url = format!("{}{}", gateway.base(), legacy.endpoint);
    let request = gateway.http.post(url).body(modern);
    let request = request.header("Content-Type", "application/json");
    let response = within("a response", request.send()).await.unwrap();
    assert_eq!(response.status().as_u16(), 400);
    let call = tool_call(json!(5), "echo", json!({"text": "own"}));
    legacy.post(&call).await;
    assert_eq!(
        text_of(&legacy.events.message().await.unwrap().1),
        "own",
        "no answer to a stranger comes first"
    );
}

#[tokio::test]
async fn no_proxy_may_keep_or_hold_a_stream() {
    let gateway = Gateway::start(&["server.reply.mode=sse"]).await;
    let session = gateway.session().await;
    let call = Events::of(session.begin("echo", json!({})).await);
    let legacy = Legacy::connect(&gateway, None).await;
    for headers in [
        call.headers,
        session.listen().await.headers,
        legacy.events.headers,
    ] {
        assert_eq!(headers["content-type"], "text/event-stream");
        assert_eq!(headers["cache-control"], "no-store");
        assert_eq!(headers["x-accel-buffering"], "no");
    }
}

#[tokio::test]
async fn a_deleted_session_ends_its_streams_and_its_child() {
    let gateway = Gateway::start(&["server.reply.mode=sse"]).await;
    let session = gateway.session().await;
    let mut listener = session.listen().await;
    let mut call = Events::of(session.begin("hang", json!({})).await);
    assert!(!gateway.descendants().is_empty());
    assert_eq!(session.delete().await.status(), StatusCode::NO_CONTENT);
    let began = tokio::time::Instant::now();
    assert_eq!(listener.messages().await, []);
    let messages = call.messages().await;
    assert!(began.elapsed() < Duration::from_secs(2));
    assert_eq!(messages[0].1["error"]["code"], -31001);
    until("the child is gone", || async {
        gateway.descendants().is_empty()
    })
    .await;
    assert!(began.elapsed() < Duration::from_secs(8));
    assert_eq!(session.delete().await.status(), StatusCode::NOT_FOUND);
}

/// The Swift and the Kotlin SDK keep one event id for all of their streams, and never had a listener again.
#[tokio::test]
async fn a_client_with_the_id_of_an_ended_call_gets_its_lost_listener_back() {
    let sets = [
        "server.reply.mode=sse",
        "stream.retry=50ms",
        "stream.keep_alive=100ms",
    ];
    let gateway = Gateway::start(&sets).await;
    let session = gateway.session().await;
    let call = session.begin("echo", json!({"text": "x"})).await;
    let (end, _) = Events::of(call).messages().await.pop().unwrap();
    let ended = session.get(Some(&end)).await;
    assert_eq!(ended.status(), StatusCode::NO_CONTENT, "it never listened");
    let mut listener = session.listen().await;
    announce(&session, "first").await;
    let (first, _) = listener.message().await.unwrap();
    let ended = session.get(Some(&end)).await;
    assert_eq!(ended.status(), StatusCode::NO_CONTENT, "it listens");
    drop(listener);
    let again = within("the listener", async {
        loop {
            let response = session.get(Some(&end)).await;
            match response.status() {
                StatusCode::OK => break Events::of(response),
                status => assert_eq!(status, StatusCode::NO_CONTENT),
            }
        }
    });
    let mut again = again.await;
    let begins = again.next().await.unwrap().id.unwrap();
    assert_ne!(begins, end);
    announce(&session, "second").await;
    let (second, message) = again.message().await.unwrap();
    assert_eq!(message["method"], "notifications/second", "and no other");
    assert_ne!(second, first);
    drop(again);
    let all = session.resume(&first).await.message().await.unwrap();
    assert_eq!(all.0, second, "it is the same stream");
}

/// The Go SDK ends a session whose listener began six times with the same id, in however many days.
#[tokio::test]
async fn each_connection_to_a_listener_begins_with_an_id_of_its_own() {
    let gateway = Gateway::start(&[]).await;
    let session = gateway.session().await;
    let (mut listener, mut ids) = (session.listen().await, Vec::new());
    for _ in 0..8 {
        let id = listener.next().await.unwrap().id.unwrap();
        assert!(!ids.contains(&id), "{id} came again");
        listener = session.resume(&id).await;
        ids.push(id);
    }
    announce(&session, "end").await;
    let (_, message) = listener.message().await.unwrap();
    assert_eq!(message["method"], "notifications/end");
    // Each of them is the same position.
    for id in [&ids[0], &ids[7]] {
        let (_, again) = session.resume(id).await.message().await.unwrap();
        assert_eq!(again, message);
    }
}

#[tokio::test]
async fn the_same_cursor_gives_the_same_replay() {
    let gateway = Gateway::start(&[]).await;
    let session = gateway.session().await;
    let mut stream = session
        .stream("slow", json!({"n": 10, "ms": 1}), json!(1))
        .await;
    let first = stream.next().await.unwrap().id.unwrap();
    let all = stream.messages().await;
    assert_eq!(all.len(), 11);
    assert_eq!(session.resume(&first).await.messages().await, all);
    assert_eq!(session.resume(&first).await.messages().await, all);
    let middle = session.resume(&all[4].0).await.rest().await;
    assert_eq!(session.resume(&all[4].0).await.rest().await, middle);
    let end = session.get(Some(&all[10].0)).await;
    assert_eq!(end.status(), StatusCode::NO_CONTENT);
}

#[tokio::test]
async fn a_cursor_that_is_not_ours_always_gets_the_same_refusal() {
    let gateway = Gateway::start(&["server.reply.mode=sse"]).await;
    let (session, other) = (gateway.session().await, gateway.session().await);
    let mut stream = Events::of(other.begin("echo", json!({"text": "secret"})).await);
    let foreign = stream.next().await.unwrap().id.unwrap();
    let listener = other.listen().await.next().await.unwrap().id.unwrap();
    let mut forged = foreign.clone().into_bytes();
    forged[3] = if forged[3] == b'A' { b'B' } else { b'A' };
    let forged = String::from_utf8(forged).unwrap();
    let mut answers = Vec::new();
    for id in ["x", "0", "AAAA", &forged, &foreign, &listener, "a.b"] {
        let response = session.get(Some(id)).await;
        assert_eq!(response.status(), StatusCode::BAD_REQUEST, "{id}");
        let mut headers = response.headers().clone();
        headers.remove("date");
        answers.push((headers, body(response).await));
    }
    assert!(answers[0].1.contains("-32602"));
    assert!(answers.iter().all(|answer| *answer == answers[0]));
}

#[tokio::test]
async fn trimmed_events_are_gone_and_never_a_gap() {
    let gateway = Gateway::start(&["log.events=20"]).await;
    let session = gateway.session().await;
    let mut stream = session
        .stream("slow", json!({"n": 60, "ms": 2}), json!(1))
        .await;
    let first = stream.next().await.unwrap().id.unwrap();
    let all = stream.messages().await;
    assert_eq!(all.len(), 61);
    for gone in [&first, &all[10].0, &all[39].0] {
        let response = session.get(Some(gone)).await;
        assert_eq!(response.status(), StatusCode::GONE);
        assert_eq!(json_of(response).await["error"]["code"], -32602);
    }
    assert_eq!(
        session.resume(&all[45].0).await.messages().await,
        all[46..].to_vec()
    );
    let end = session.get(Some(&all[60].0)).await;
    assert_eq!(end.status(), StatusCode::NO_CONTENT);
}

#[tokio::test]
async fn a_reader_that_falls_behind_is_cut_off_and_told_at_its_resume() {
    let gateway = Gateway::start(&["log.events=20"]).await;
    let session = gateway.session().await;
    let mut stream = session.listen().await;
    // With two calls in flight, log messages go to the listener, which is not read.
    let hang = session.begin("hang", json!({})).await;
    let args = json!({"n": 500, "text": "x".repeat(64 << 10)});
    assert_eq!(session.text("burst", args).await, "sent");
    let blocks = stream.rest().await;
    let retry = blocks.last().unwrap();
    let count = blocks.len();
    assert!(retry.retry.is_some(), "{count} {:?}", stream.error);
    let said: Vec<_> = blocks.iter().filter(|block| block.is_message()).collect();
    for (n, block) in said.iter().enumerate() {
        let message: Value = serde_json::from_str(block.data.as_ref().unwrap()).unwrap();
        assert_eq!(message["params"]["data"]["n"], n, "no gap");
    }
    let resumed = session
        .get(Some(said.last().unwrap().id.as_ref().unwrap()))
        .await;
    assert_eq!(resumed.status(), StatusCode::GONE);
    drop(hang);
}

/// The boundary between replay and live events.
#[tokio::test]
async fn between_replay_and_live_nothing_is_lost_or_repeated() {
    let gateway = Gateway::start(&["log.events=100000", "log.bytes=64MiB"]).await;
    let session = gateway.session().await;
    let mut listener = session.listen().await;
    let started = session.text("flood", json!({"n": 12000})).await;
    assert_eq!(started, "started");
    let mut numbers = Vec::new();
    while numbers.len() < 12000 {
        let mut id = String::new();
        for _ in 0..400.min(12000 - numbers.len()) {
            let (at, message) = listener.message().await.unwrap();
            numbers.push(message["params"]["data"]["flood"].as_u64().unwrap());
            id = at;
        }
        listener = session.resume(&id).await;
    }
    assert_eq!(numbers, (0..12000).collect::<Vec<_>>());
}

/// Progress tokens and notifications of sessions with the same ids.
#[tokio::test]
async fn six_sessions_at_once_hear_only_their_own() {
    let gateway = Gateway::start(&[]).await;
    let modern = (0..6).map(|n| streamable(&gateway, n));
    let older = (6..12).map(|n| legacy(&gateway, n));
    tokio::join!(join_all(modern), join_all(older));
}

async fn streamable(gateway: &Gateway, n: u64) {
    let session = gateway.session().await;
    let mut listener = session.listen().await;
    let slow = session.stream("slow", json!({"n": 20, "ms": 5}), json!("same"));
    let log = session.begin("burst", json!({"n": n + 1, "text": n}));
    let (mut slow, log) = tokio::join!(slow, log);
    last(log).await;
    let mut all = slow.messages().await;
    announce(&session, &format!("own{n}")).await;
    while all
        .last()
        .is_none_or(|(_, message)| message["method"] != format!("notifications/own{n}"))
    {
        all.push(listener.message().await.unwrap());
    }
    check_own(&all, n);
}

async fn legacy(gateway: &Gateway, n: u64) {
    let mut legacy = Legacy::connect(gateway, None).await;
    legacy.initialize().await;
    let mut slow = tool_call(json!(1), "slow", json!({"n": 20, "ms": 5}));
    slow["params"]["_meta"] = json!({"progressToken": "same"});
    let burst = tool_call(json!(2), "burst", json!({"n": n + 1, "text": n}));
    let end = tool_call(
        json!(3),
        "notify",
        json!({"method": format!("notifications/own{n}")}),
    );
    legacy.post(&slow).await;
    legacy.post(&burst).await;
    let mut all = Vec::new();
    let is_done = |(_, message): &(String, Value)| message["id"] == 1;
    while !all.last().is_some_and(is_done) {
        all.push(legacy.events.message().await.unwrap());
    }
    legacy.post(&end).await;
    while all.last().is_some_and(|(_, message)| message["id"] != 3) {
        all.push(legacy.events.message().await.unwrap());
    }
    check_own(&all, n);
    let logs = all
        .iter()
        .filter(|(_, message)| message["params"]["data"]["text"] == n);
    assert_eq!(logs.count() as u64, n + 1);
}

/// Asserts complete progress, and that every log message and announcement is of session `n`.
fn check_own(all: &[(String, Value)], n: u64) {
    assert_eq!(progress(all), (1..=20).collect::<Vec<_>>());
    for (_, message) in all {
        match message["method"].as_str() {
            Some("notifications/message") => {
                assert_eq!(message["params"]["data"]["text"], n, "{message}");
            }
            Some("notifications/progress") => {
                assert_eq!(message["params"]["progressToken"], "same");
            }
            Some(other) => assert_eq!(other, format!("notifications/own{n}")),
            None => assert!(message["result"].is_object(), "{message}"),
        }
    }
}

/// Resumption of HTTP+SSE.
#[tokio::test]
async fn http_sse_goes_on_after_a_reconnect() {
    let gateway = Gateway::start(&[]).await;
    let legacy = Legacy::connect(&gateway, None).await;
    let mut legacy = Legacy::connect(&gateway, Some(&legacy.first)).await;
    let opened = legacy.initialize().await;
    assert_eq!(opened["result"]["protocolVersion"], "2024-11-05");
    let mut slow = tool_call(json!("s"), "slow", json!({"n": 60, "ms": 5}));
    slow["params"]["_meta"] = json!({"progressToken": 9});
    assert_eq!(legacy.post(&slow).await.status(), StatusCode::ACCEPTED);
    let mut all = Vec::new();
    let endpoint = legacy.endpoint.clone();
    for _ in 0..6 {
        for _ in 0..3 {
            all.push(legacy.events.message().await.unwrap());
        }
        legacy = Legacy::connect(&gateway, Some(&all.last().unwrap().0)).await;
        assert_eq!(legacy.endpoint, endpoint);
    }
    while all.last().is_some_and(|(_, message)| message["id"] != "s") {
        all.push(legacy.events.message().await.unwrap());
    }
    assert_eq!(progress(&all), (1..=60).collect::<Vec<_>>());
    let ask = tool_call(
        json!("a"),
        "ask",
        json!({"kind": "elicitation", "message": "who"}),
    );
    legacy.post(&ask).await;
    let (_, asked) = legacy.events.message().await.unwrap();
    let reply = json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "accept"}});
    assert_eq!(legacy.post(&reply).await.status(), StatusCode::ACCEPTED);
    let (_, answer) = legacy.events.message().await.unwrap();
    assert!(text_of(&answer).contains("accept"));
}

/// The start of a server may take as long as clients wait by themselves: those with a progress token are
/// told that it goes on.
#[tokio::test]
async fn a_slow_start_tells_of_its_progress() {
    let sets = ["server.reply.sse_after=50ms"];
    let gateway = Gateway::of(&sets, &["CHILD_START_MS=600"], &[&child()]).await;
    let mut message = opening(NEWEST);
    let plain = gateway.stranger().post(&message).await;
    assert_eq!(plain.headers()["content-type"], "application/json");
    message["params"]["_meta"] = json!({"progressToken": "t"});
    let mut session = gateway.stranger();
    let response = session.post(&message).await;
    let id = response.headers()["mcp-session-id"].to_str().unwrap();
    (session.id, session.revision) = (Some(id.to_owned()), Some(NEWEST.to_owned()));
    let messages = Events::of(response).messages().await;
    let [(_, progress), (_, answer)] = &*messages else {
        panic!("{messages:?}")
    };
    assert_eq!(progress["method"], "notifications/progress");
    assert_eq!(progress["params"]["progressToken"], "t");
    assert_eq!(answer["result"]["serverInfo"]["name"], "child");
    session.notify("notifications/initialized", json!({})).await;
    assert_eq!(session.text("echo", json!({"text": "x"})).await, "x");
    let gateway = Gateway::of(&sets, &[], &["sh", "-c", "sleep 0.6; exit 3"]).await;
    let messages = Events::of(gateway.stranger().post(&message).await)
        .messages()
        .await;
    let error = &messages.last().unwrap().1["error"];
    assert_eq!(error["code"], -31001, "{error}");
}

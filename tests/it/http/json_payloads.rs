//! JSON that is ambiguous or excessive, and hostile schemas.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{net::TcpListener, time::Instant};

use crate::support::{
    gauges::{Gauge, calls_stay_quick, median},
    harness::{Events, Gateway, Session, body, child, json_of, last, text_of, tool_call},
};

/// The last line that the child received before this call.
async fn heard(session: &Session) -> String {
    let received = session.text("received", json!({})).await;
    let mut lines: Vec<String> = serde_json::from_str(&received).unwrap();
    lines.truncate(lines.len() - 1);
    lines.pop().unwrap()
}

/// Bodies with imitated or repeated keys. A strict and a lenient parser would read different
/// calls, one of which increments the counter.
const IMITATIONS: [&str; 29] = [
    r#"{"jsonrpc":"2.0","id":1,"method":"ping","Method":"tools/call","params":{"name":"counter"}}"#,
    r#"{"jsonrpc":"2.0","id":1,"METHOD":"tools/call","method":"ping","params":{"name":"counter"}}"#,
    r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo"},"Params":{"name":"counter"}}"#,
    r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo"},"paramſ":{"name":"counter"}}"#,
    r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo"},"param\u017f":{"name":"counter"}}"#,
    r#"{"jsonrpc":"2.0","id":1,"ID":2,"method":"tools/call","params":{"name":"counter"}}"#,
    r#"{"jsonrpc":"2.0","JSONRPC":"1.0","id":1,"method":"tools/call","params":{"name":"counter"}}"#,
    r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","Name":"counter"}}"#,
    r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"NAME":"counter","name":"echo"}}"#,
    r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"N\u0041ME":"counter","name":"echo"}}"#,
    r#"{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/call","params":{"name":"counter"}}"#,
    r#"{"jsonrpc":"2.0","id":1,"method":"ping","m\u0065thod":"tools/call","params":{"name":"counter"}}"#,
    r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo"},"params":{"name":"counter"}}"#,
    r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","name":"counter"}}"#,
    r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","n\u0061me":"counter"}}"#,
    r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"tools/call","params":{"name":"counter"}}"#,
    r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"counter","_meta":{"progressToken":1,"progressToken":2}}}"#,
    r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"counter","_meta":{"progressToken":1,"ProgressToken":2}}}"#,
    r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"counter","_Meta":{"progressToken":2}}}"#,
    r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"counter","_meta":{"io.modelcontextprotocol/logLevel":"info","io.modelcontextprotocol/logLevel":"debug"}}}"#,
    r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"counter","_meta":{"io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/ClientCapabilities":{}}}}"#,
    r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"counter","_meta":{"io.modelcontextprotocol/clientCapabilities":{"roots":{},"roots":{}}}}}"#,
    r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"counter","arguments":{},"Arguments":{}}}"#,
    r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"counter","Task":{}}}"#,
    r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"counter","RequestState":"x"}}"#,
    r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"counter","input\u0052esponses":{},"InputResponses":{}}}"#,
    r#"{"jsonrpc":"2.0","id":1,"method":"logging/setLevel","params":{"level":"info","Level":"debug"}}"#,
    r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":9,"RequestId":2}}"#,
    r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":9,"reque\u017ftId":2}}"#,
];

/// Keys in other spellings, which another parser might read as known keys.
#[tokio::test]
async fn a_key_that_imitates_another_is_refused_and_nothing_is_run() {
    let gateway = Gateway::start(&[]).await;
    let session = gateway.session().await;
    for text in IMITATIONS {
        let response = session.post_text(text).await;
        assert_eq!(response.status(), 400, "{text}");
        assert_eq!(json_of(response).await["error"]["code"], -32600, "{text}");
    }
    assert_eq!(
        session.text("counter", json!({})).await,
        "1",
        "one of them ran"
    );
    assert_eq!(session.text("cancelled", json!({})).await, "[]");
}

/// Escaped keys mean the same call to gateway and child.
#[tokio::test]
async fn an_escaped_key_is_the_key_for_gateway_and_child() {
    let gateway = Gateway::start(&[]).await;
    let session = gateway.session().await;
    let text = r#"{"\u006asonrpc":"2.0","m\u0065thod":"tools\/c\u0061ll","\u0069d":"a","p\u0061rams":
        {"n\u0061me":"c\u006funter","_m\u0065ta":{"progr\u0065ssToken":5}}}"#;
    let answer = last(session.post_text(text).await).await;
    assert_eq!((&answer["id"], &*text_of(&answer)), (&json!("a"), "1"));
    let heard = heard(&session).await;
    assert!(heard.contains(r#""n\u0061me":"c\u006funter""#), "{heard}");
    assert!(!heard.contains(r#""a""#), "the client's id: {heard}");
    assert!(!heard.contains(r#"n":5"#), "the client's token: {heard}");
    // Members that the gateway does not interpret are neither refused nor changed.
    let args = r#"{"text":"x","Text":"y","text":"z","\u0074ext":"v","Name":1,"METHOD":2}"#;
    let text = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"echo","arguments":{args}}}}}"#
    );
    let answer = last(session.post_text(text).await).await;
    assert_eq!(text_of(&answer), "v", "serde_json takes the last");
    assert!(self::heard(&session).await.contains(args));
}

/// Posts `text` three times: the last status, and the shortest time.
async fn refused(gauge: &Gauge, session: &Session, text: &[u8]) -> (u16, Duration) {
    let (mut status, mut best) = (0, Duration::MAX);
    for _ in 0..3 {
        let (began, before) = (Instant::now(), gauge.processor());
        let response = session.post_text(text.to_vec()).await;
        status = response.status().as_u16();
        drop(body(response).await);
        // On a busy machine the processor time of the gateway counts.
        let own = gauge.processor().saturating_sub(before);
        best = best.min(own.min(began.elapsed()));
        // By then the child has read all forwarded messages.
        assert_eq!(session.text("echo", json!({"text": "x"})).await, "x");
    }
    (status, best)
}

/// A notification with `value` among its parameters.
fn note(value: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"notifications/x","params":{{"a":{value}}}}}"#)
}

/// An object of `members`, each with a comma at its end.
fn object(members: &str) -> String {
    format!("{{{members}\"b\":1}}")
}

/// Bodies that are refused for their shape or passed on: name, text, status.
fn excesses() -> Vec<(&'static str, String, u16)> {
    let deep = 1_000_000;
    let (open, close) = ("[".repeat(deep), "]".repeat(deep));
    let keys: String = (0..100_000).map(|n| format!(r#""k{n}":{n},"#)).collect();
    let (same, methods) = (
        r#""a":1,"#.repeat(200_000),
        r#""method":1,"#.repeat(100_000),
    );
    let million = "1".repeat(1 << 20);
    vec![
        ("arrays", note(&open), 400),
        ("closed arrays", note(&(open.clone() + &close)), 400),
        ("objects", note(&r#"{"a":"#.repeat(deep / 2)), 400),
        ("an array outside", open, 400),
        ("keys", note(&object(&keys)), 202),
        ("keys outside", object(&keys), 400),
        ("one key", note(&object(&same)), 202),
        ("methods", object(&methods), 400),
        (
            "escapes",
            note(&format!("\"{}\"", r"\u0000".repeat(200_000))),
            202,
        ),
        ("digits", note(&million), 202),
        ("a key of 1 MiB", note(&format!("{{\"{million}\":1}}")), 202),
    ]
}

/// Invalid UTF-8 within an otherwise valid string.
fn broken() -> Vec<(&'static str, Vec<u8>, u16)> {
    let sequences: [(&str, &[u8]); 5] = [
        ("overlong", b"\xc0\xaf"),
        ("surrogate", b"\xed\xa0\x80"),
        ("beyond Unicode", b"\xf4\x90\x80\x80"),
        ("cut", b"\xe2\x82"),
        ("Latin-1", b"\xe9"),
    ];
    let within = |(name, bytes): (&'static str, &[u8])| {
        let text = note("\"@\"");
        let (before, after) = text.split_once('@').unwrap();
        let text = [before.as_bytes(), bytes, after.as_bytes()].concat();
        (name, text, 400)
    };
    sequences.map(within).to_vec()
}

/// Deep JSON, floods of keys, huge numbers, bad UTF-8.
#[tokio::test]
async fn json_in_excess_is_refused_at_once_and_costs_no_memory() {
    let gateway = Gateway::start(&[]).await;
    let (gauge, session) = (Gauge::of(&gateway), gateway.session().await);
    refused(&gauge, &session, note(&"1".repeat(1 << 20)).as_bytes()).await;
    let memory = gauge.memory();
    let excesses = excesses().into_iter();
    let excesses = excesses.map(|(what, text, status)| (what, text.into_bytes(), status));
    for (what, text, status) in excesses.chain(broken()) {
        let (got, time) = refused(&gauge, &session, &text).await;
        assert_eq!(got, status, "{what}");
        let grown = gauge.memory() - memory;
        println!("{what}: {status} after {time:?}; {grown} KiB more than before all");
        assert!(time <= Duration::from_millis(500), "{what}: {time:?}");
        assert!(grown <= 8 << 10, "{what}: {grown} KiB");
    }
}

/// Huge numbers and ids come back as they were written.
#[tokio::test]
async fn numbers_without_bounds_stay_as_they_were_written() {
    let gateway = Gateway::start(&[]).await;
    let session = gateway.session().await;
    let digits = "9".repeat(400);
    for number in [
        "1e400",
        "-1E-400",
        "0.1e+400",
        "-0",
        "1.0",
        &digits,
        "1e99999999999",
    ] {
        let params = format!(r#"{{"n":{number},"_meta":{{"n":[{number}]}}}}"#);
        let text = format!(r#"{{"jsonrpc":"2.0","method":"notifications/x","params":{params}}}"#);
        assert_eq!(session.post_text(text).await.status(), 202, "{number}");
        assert!(heard(&session).await.contains(&params), "{number}");
    }
    for (id, status) in [
        (&*digits, 200),
        (&*format!("-{digits}"), 200),
        (&*format!("\"{digits}\""), 200),
        ("-0", 200),
        ("1.0", 200),
        ("1e400", 400),
        ("1E2", 400),
        ("01", 400),
        ("+1", 400),
        ("NaN", 400),
        (&*"9".repeat(2000), 400),
    ] {
        for method in ["ping", "tools/list"] {
            let text = format!(r#"{{"jsonrpc":"2.0","method":"{method}","id":{id}}}"#);
            let response = session.post_text(text).await;
            assert_eq!(response.status(), status, "{id}");
            let answer = body(response).await;
            assert!(
                status == 400 || answer.contains(&format!("\"id\":{id},")),
                "{answer}"
            );
        }
    }
    // The same holds for a progress token of the client, which the child never sees.
    let text = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"slow",
        "arguments":{{"n":1}},"_meta":{{"progressToken":{digits}}}}}}}"#
    );
    let mut stream = Events::of(session.post_text(text).await);
    let progress = loop {
        let event = stream.next().await.unwrap();
        if event.is_message() {
            break event.data.unwrap();
        }
    };
    assert!(
        progress.contains(&format!("\"progressToken\":{digits}")),
        "{progress}"
    );
}

/// An HTTP server that only counts connections.
async fn canary() -> (String, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let hits = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&hits);
    #[expect(clippy::disallowed_methods, reason = "it ends with the test's runtime")]
    tokio::spawn(async move {
        while listener.accept().await.is_ok() {
            counted.fetch_add(1, Ordering::SeqCst);
        }
    });
    (format!("http://{address}"), hits)
}

/// A gateway whose child gives every tool this schema, a session, and the schema that it gets.
async fn with_schema(schema: &Value) -> (Gateway, Session, Value) {
    let env = format!("CHILD_SCHEMA={schema}");
    let gateway = Gateway::of(&[], &[&env], &[&child()]).await;
    let session = gateway.session().await;
    let tools = session.ask("tools/list", json!({})).await;
    let told = tools["result"]["tools"][0]["inputSchema"].clone();
    (gateway, session, told)
}

#[tokio::test]
async fn a_remote_schema_is_never_fetched() {
    let (url, hits) = canary().await;
    let schema = json!({
        "$schema": format!("{url}/dialect"), "$id": format!("{url}/id"), "type": "object",
        "$ref": format!("{url}/ref"), "allOf": [{"$ref": format!("{url}/all#/a")}],
        "properties": {"text": {"$dynamicRef": format!("{url}/dynamic")}},
    });
    let (gateway, session, told) = with_schema(&schema).await;
    assert_eq!(told, schema, "what we do not understand passes");
    let text = format!("{url}/argument");
    assert_eq!(session.text("echo", json!({"text": text})).await, text);
    let text = session
        .ask("resources/read", json!({"uri": format!("{url}/resource")}))
        .await;
    assert!(text["result"].is_object());
    let meta = tool_call(
        json!(7),
        "echo",
        json!({"text": "x", "$ref": format!("{url}/call")}),
    );
    assert_eq!(session.post(&meta).await.status(), 200);
    drop((session, gateway));
    assert_eq!(hits.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_schema_that_explodes_costs_nobody_anything() {
    let mut defs = serde_json::Map::new();
    for level in 0..20 {
        let next = json!({"$ref": format!("#/$defs/d{}", (level + 1) % 20)});
        let all =
            json!({"anyOf": [next, next, next], "allOf": [next, next], "oneOf": [next, next]});
        defs.insert(format!("d{level}"), all);
    }
    let pattern = json!({"type": "string", "pattern": "^(a+)+$"});
    let schema = json!({"type": "object", "$ref": "#/$defs/d0", "$defs": defs,
        "properties": {"text": pattern}});
    let (gateway, session, told) = with_schema(&schema).await;
    assert_eq!(told, schema, "what we do not understand passes");
    let other = gateway.session().await;
    let gauge = Gauge::of(&gateway);
    let text = "a".repeat(50) + "!";
    let own = median(|| async {
        let before = gauge.processor();
        let tools = session.ask("tools/list", json!({})).await;
        assert_eq!(tools["result"]["tools"].as_array().unwrap().len(), 10);
        assert_eq!(session.text("echo", json!({"text": text})).await, text);
        gauge.processor().saturating_sub(before)
    });
    let own = own.await;
    println!("{own:?} of the gateway's time for a list and a call");
    assert!(own <= Duration::from_millis(250), "{own:?}");
    let list = async || session.ask("tools/list", json!({})).await;
    let lists = calls_stay_quick(&other, list).await;
    assert!(lists.iter().all(|list| list["result"].is_object()));
}

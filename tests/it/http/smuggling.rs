//! Request smuggling, and headers that only replicas may send.

use serde_json::json;

use crate::support::{
    harness::{Gateway, Session, tool_call},
    wire::{ask, head, raw, status, statuses},
};

/// A complete request in `session` that calls `counter`.
fn counting(gateway: &Gateway, session: &Session) -> String {
    let call = tool_call(json!(1), "counter", json!({})).to_string();
    let length = call.len();
    let headers = format!("Content-Type: application/json\r\nContent-Length: {length}\r\n");
    head(gateway, session, "POST /mcp", &headers) + &call
}

/// Heads and bodies with an ambiguous end. `HIDDEN` stands for a request that one of two parsers
/// would find behind the first.
const AMBIGUOUS: [(&str, &str); 35] = [
    // CL.TE and TE.CL, in both orders and both lengths.
    (
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "0\r\n\r\nHIDDEN",
    ),
    (
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        "0\r\n\r\nHIDDEN",
    ),
    (
        "Content-Length: 0\r\nTransfer-Encoding: chunked\r\n",
        "SIZE\r\nHIDDEN\r\n0\r\n\r\n",
    ),
    (
        "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        "SIZE\r\nHIDDEN\r\n0\r\n\r\n",
    ),
    // TE.TE: one of the two codings is meant to be ignored.
    (
        "Transfer-Encoding: xchunked\r\nContent-Length: 5\r\n",
        "0\r\n\r\nHIDDEN",
    ),
    (
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        "0\r\n\r\nHIDDEN",
    ),
    (
        "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n",
        "SIZE\r\nHIDDEN\r\n0\r\n\r\n",
    ),
    (
        "Transfer-Encoding: chunked, identity\r\n",
        "0\r\n\r\nHIDDEN",
    ),
    ("Transfer-Encoding: chunked, chunked\r\n", "0\r\n\r\nHIDDEN"),
    ("Transfer-Encoding: \"chunked\"\r\n", "0\r\n\r\nHIDDEN"),
    (
        "Transfer-Encoding: chunk\r\nContent-Length: 5\r\n",
        "0\r\n\r\nHIDDEN",
    ),
    (
        "Transfer-Encoding: \x0bchunked\r\nContent-Length: 5\r\n",
        "0\r\n\r\nHIDDEN",
    ),
    (
        "Transfer-Encoding\t: chunked\r\nContent-Length: 5\r\n",
        "0\r\n\r\nHIDDEN",
    ),
    // Ambiguous and invalid lengths.
    ("Content-Length: 0\r\nContent-Length: 400\r\n", "HIDDEN"),
    ("Content-Length: 400\r\nContent-Length: 0\r\n", "HIDDEN"),
    ("Content-Length: 0, 400\r\n", "HIDDEN"),
    ("Content-Length: +0\r\n", "HIDDEN"),
    ("Content-Length: -1\r\n", "HIDDEN"),
    ("Content-Length: 0x0\r\n", "HIDDEN"),
    ("Content-Length: 0 0\r\n", "HIDDEN"),
    ("Content-Length: \r\n", "HIDDEN"),
    ("Content-Length: 18446744073709551616\r\n", "HIDDEN"),
    ("Content-Length : 0\r\n", "HIDDEN"),
    (" Content-Length: 0\r\n", "HIDDEN"),
    // Chunks.
    (
        "Transfer-Encoding: chunked\r\n",
        "10000000000000000\r\nHIDDEN\r\n0\r\n\r\n",
    ),
    (
        "Transfer-Encoding: chunked\r\n",
        "0x5\r\nHIDDEN\r\n0\r\n\r\n",
    ),
    (
        "Transfer-Encoding: chunked\r\n",
        "-1\r\nHIDDEN\r\n0\r\n\r\n",
    ),
    (
        "Transfer-Encoding: chunked\r\n",
        "2;a\nxx\r\n0\r\n\r\nHIDDEN",
    ),
    ("Transfer-Encoding: chunked\r\n", "2\r\nxxyy0\r\n\r\nHIDDEN"),
    ("Transfer-Encoding: chunked\r\n", "2\nxx\n0\n\nHIDDEN"),
    // Lines.
    ("X: a\r\n Content-Length: 0\r\n", "HIDDEN"),
    (
        "Content-Length: 400\r\nX: a\nContent-Length: 0\r\n",
        "HIDDEN",
    ),
    (
        "X: a\nTransfer-Encoding: chunked\nContent-Length: 5\r\n",
        "0\r\n\r\nHIDDEN",
    ),
    ("X: a\0b\r\n", "HIDDEN"),
    ("X\0: a\r\n", "HIDDEN"),
];

#[tokio::test]
async fn a_request_inside_a_request_is_never_run() {
    let gateway = Gateway::start(&[]).await;
    let session = gateway.session().await;
    let hidden = counting(&gateway, &session);
    let size = format!("{:x}", hidden.len());
    for (headers, body) in AMBIGUOUS {
        let headers = format!("Content-Type: application/json\r\n{headers}");
        let body = body.replace("HIDDEN", &hidden).replace("SIZE", &size);
        let request = head(&gateway, &session, "POST /mcp", &headers) + &body;
        let answer = raw(&gateway, request).await;
        let codes = statuses(&answer);
        assert!(
            matches!(codes[..], [] | [400 | 411 | 413 | 501]),
            "{headers:?} {answer}"
        );
    }
    assert_eq!(
        session.text("counter", json!({})).await,
        "1",
        "one of them ran"
    );
}

/// Odd headers of a valid request, and its body with the bytes behind it. `GOOD` stands for the
/// valid message, `LENGTH` for its length. Each request is answered once, or not at all.
const ODD: [(&str, &str); 11] = [
    (
        "Content-Length: LENGTH\r\nTransfer-Encoding: chunked\r\n",
        "GOODHIDDEN",
    ),
    ("Content-Length: 00LENGTH\r\n", "GOOD"),
    ("Content-Length:   LENGTH  \r\n", "GOOD"),
    (
        "Content-Length: LENGTH\r\nContent-Length: LENGTH\r\n",
        "GOOD",
    ),
    ("Content-Length: LENGTH, LENGTH\r\n", "GOOD"),
    (
        "transfer-encoding: Chunked\r\n",
        "SIZE;a=\"b\"\r\nGOOD\r\n0\r\n\r\n",
    ),
    (
        "Transfer-Encoding: chunked\r\n",
        "SIZE\r\nGOOD\r\n0\r\nMcp-Session-Id: x\r\n\r\n",
    ),
    (
        "Transfer-Encoding: chunked\r\n",
        "SIZE;\nGOOD\r\n0\r\n\r\nHIDDEN",
    ),
    ("Content-Length: LENGTH\r\n", "GOODHIDDEN"),
    (
        "Content-Length: LENGTH\r\nConnection: Content-Length\r\n",
        "GOODHIDDEN",
    ),
    (
        "Content-Length: LENGTH\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n",
        "GOODHIDDEN",
    ),
];

#[tokio::test]
async fn a_request_hidden_behind_a_valid_one_is_never_run() {
    let gateway = Gateway::start(&[]).await;
    let session = gateway.session().await;
    let (hidden, good) = (
        counting(&gateway, &session),
        r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#,
    );
    let (length, size) = (good.len().to_string(), format!("{:x}", good.len()));
    let mut answered = 0;
    for (headers, body) in ODD {
        // The gateway serves no request after `Connection: close`.
        let headers = headers.replace("LENGTH", &length) + "Connection: close\r\n";
        let headers = format!("Content-Type: application/json\r\n{headers}");
        let body = body.replace("GOOD", good).replace("SIZE", &size);
        let body = body.replace("HIDDEN", &hidden);
        let request = head(&gateway, &session, "POST /mcp", &headers) + &body;
        let answer = raw(&gateway, request).await;
        match statuses(&answer)[..] {
            [200] => answered += 1,
            [] | [400] => {}
            _ => panic!("{headers:?} {answer}"),
        }
    }
    println!("{answered} were answered");
    assert!(answered >= 4, "{answered} were answered");
    assert_eq!(
        session.text("counter", json!({})).await,
        "1",
        "one of them ran"
    );
}

/// A pipelined second request is executed, too: both in order, each once.
#[tokio::test]
async fn an_honest_second_request_is_answered_second() {
    let gateway = Gateway::start(&[]).await;
    let session = gateway.session().await;
    let one = counting(&gateway, &session);
    let last = one.replacen("\r\n", "\r\nConnection: close\r\n", 1);
    let answer = raw(&gateway, format!("{one}{last}")).await;
    assert_eq!(statuses(&answer), [200, 200]);
    let (first, second) = answer.rsplit_once("HTTP/1.1").unwrap();
    assert!(
        first.contains(r#""text":"1""#) && second.contains(r#""text":"2""#),
        "{answer}"
    );
}

/// Headers by which proxies, replicas or frameworks pass on decisions.
const INTERNAL: [&str; 22] = [
    "X-Forwarded-For: 6.6.6.6",
    "X-Forwarded-Host: evil.test",
    "X-Forwarded-Proto: https",
    "X-Forwarded-Prefix: /t/evil",
    "X-Forwarded-Port: 1",
    "X-Real-IP: 6.6.6.6",
    "Forwarded: for=6.6.6.6;host=evil.test;proto=https",
    "True-Client-IP: 6.6.6.6",
    "X-Original-URL: /metrics",
    "X-Rewrite-URL: /metrics",
    "X-Original-Host: evil.test",
    "X-Tenant: evil",
    "X-Principal: root",
    "X-Remote-User: root",
    "X-Lockgate-Session: evil",
    "X-Lockgate-Owner: evil",
    "Lockgate-Forwarded: 1",
    "X-Envoy-Internal: true",
    "Via: 1.1 evil.test",
    "Max-Forwards: 0",
    "Connection: Mcp-Session-Id, Host, Content-Type",
    "Connection: Origin, X-Forwarded-For",
];

/// A response without its date.
fn stable(answer: &str) -> String {
    let lines = answer.split("\r\n");
    let stays = |line: &&str| !line.to_lowercase().starts_with("date:");
    lines.filter(stays).collect::<Vec<_>>().join("\n")
}

/// Spoofed headers of replicas, and hosts that would poison metadata.
#[tokio::test]
async fn headers_of_replicas_change_no_answer_of_clients() {
    let gateway = Gateway::start(&[]).await;
    let session = gateway.session().await;
    let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    let length = ping.len();
    let own = format!("Content-Type: application/json\r\nContent-Length: {length}\r\n");
    for (line, headers, body) in [
        ("GET /mcp", "Accept: text/html\r\n".to_owned(), ""),
        ("GET /metrics", String::new(), ""),
        (
            "GET /t/local/main/mcp",
            "Accept: text/event-stream\r\n".to_owned(),
            "",
        ),
        (
            "GET /.well-known/oauth-protected-resource/mcp",
            String::new(),
            "",
        ),
        ("POST /t/local/other/mcp", own.clone(), ping),
    ] {
        let plain = stable(&ask(&gateway, line, &format!("{headers}\r\n{body}")).await);
        for spoofed in INTERNAL {
            let headers = format!("{headers}{spoofed}\r\n\r\n{body}");
            let answer = stable(&ask(&gateway, line, &headers).await);
            assert_eq!(answer, plain, "{line} {spoofed}");
        }
    }
    for spoofed in INTERNAL {
        let headers = format!("{own}{spoofed}\r\nConnection: close\r\n");
        let request = head(&gateway, &session, "POST /mcp", &headers) + ping;
        let answer = raw(&gateway, request).await;
        assert_eq!(status(&answer), 200, "{spoofed}");
        assert!(
            answer.ends_with(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#),
            "{answer}"
        );
    }
    assert!(!gateway.stderr().contains("6.6.6.6"), "believed");
}

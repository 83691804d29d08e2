//! Requests whose bodies come long after their heads: what their senders have lost by then is lost.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::{
    api_keys::key,
    groups::{WRITE, opened, put_in, tenants},
};
use crate::support::{
    harness::{BOTH, NEWEST, tool_call, within},
    modern::{MODERN, Modern},
    oauth_client::{App, send},
    served::Served,
    wire::{rest, status},
};

/// A request whose head was admitted, without its body.
struct Begun {
    socket: TcpStream,
    body: String,
}

impl Begun {
    /// Sends the head, and waits until the gateway wants the body: it has admitted the head then.
    async fn send(gateway: &Served, line: &str, headers: &str, body: &Value) -> Self {
        let (host, body) = (
            gateway.origin().split_once("://").unwrap().1,
            body.to_string(),
        );
        let head = format!(
            "{line} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nAccept: {BOTH}\r\n\
             Expect: 100-continue\r\nConnection: close\r\n{headers}Content-Length: {}\r\n\r\n",
            body.len()
        );
        let mut socket = TcpStream::connect(host).await.unwrap();
        socket.write_all(head.as_bytes()).await.unwrap();
        let wanted = b"HTTP/1.1 100 Continue\r\n\r\n";
        let mut said = [0; 25];
        let read = within("the wait for a body", socket.read_exact(&mut said)).await;
        assert_eq!(read.unwrap(), wanted.len());
        assert_eq!(&said, wanted, "{}", String::from_utf8_lossy(&said));
        Self { socket, body }
    }

    /// Sends the body; the answer.
    async fn end(mut self) -> String {
        self.socket.write_all(self.body.as_bytes()).await.unwrap();
        within("an answer", rest(&mut self.socket)).await
    }
}

/// It was judged by what its sender could do when its head came: up to 94 s before.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_is_worth_what_its_sender_may_do_when_its_body_is_here() {
    let gateway = Served::start(json!({}), tenants(&["eng"])).await;
    let (operator, app) = (gateway.administrator(), App::public(&gateway, "a").await);
    let tokens = app.redeem(&app.code(&[WRITE]).await, &[]).await;
    let token = tokens.text("access_token");
    let (session, _listener) = opened(&gateway, &token).await;
    let id = session.id.clone().unwrap();
    let modern = Modern::at(&format!("{}/t/a/x/mcp", gateway.origin()));
    let bearer = format!("Authorization: Bearer {token}\r\n");
    let calls = [
        (
            format!("{bearer}Mcp-Session-Id: {id}\r\nMCP-Protocol-Version: {NEWEST}\r\n"),
            tool_call(json!(7), "env", json!({})),
        ),
        (
            format!(
                "{bearer}MCP-Protocol-Version: {MODERN}\r\nMcp-Method: tools/call\r\nMcp-Name: env\r\n"
            ),
            modern.tool("env", json!({})),
        ),
    ];
    let begun = async || {
        let mut begun = Vec::new();
        for (headers, call) in &calls {
            begun.push(Begun::send(&gateway, "POST /t/a/x/mcp", headers, call).await);
        }
        begun
    };
    // As long as nothing changes, a late body is as good as another.
    for call in begun().await {
        let answer = call.end().await;
        assert!(answer.contains("\"content\""), "{answer}");
    }
    let late = begun().await;
    put_in(&gateway, &operator, &["staff"]).await;
    for call in late {
        let answer = call.end().await;
        assert!(answer.contains("Unknown tool: env"), "{answer}");
    }
    // Without a group there is no server. The next head is told so.
    let late = begun().await;
    put_in(&gateway, &operator, &[]).await;
    for call in late {
        let answer = call.end().await;
        assert_eq!(status(&answer), 503, "{answer}");
        assert!(
            answer.to_ascii_lowercase().contains("retry-after: 1"),
            "{answer}"
        );
    }
}

/// A key that had leaked declared a user with a head of before its removal.
#[tokio::test]
async fn a_change_is_worth_what_its_sender_may_do_when_its_body_is_here() {
    let (boss, hash) = key();
    let mut tenants = tenants(&["eng"]);
    tenants["a"]["api_keys"] = json!({"boss": {"hash": hash, "subject": "robot", "servers": ["x"],
        "scopes": ["admin"]}});
    let gateway = Served::start(json!({}), tenants).await;
    let operator = gateway.administrator();
    let (bearer, user) = (
        format!("Authorization: Bearer {boss}\r\n"),
        json!({"password": "correct horse", "groups": ["eng"]}),
    );
    let begun = async |name: &str| {
        let line = format!("PUT /api/v1/tenants/a/users/{name}");
        Begun::send(&gateway, &line, &bearer, &user).await
    };
    let answer = begun("early").await.end().await;
    assert_eq!(status(&answer), 201, "{answer}");
    let late = begun("late").await;
    let url = |path: &str| format!("{}/api/v1/tenants/a/{path}", gateway.origin());
    let removed = send(Method::DELETE, &url("api-keys/boss"), &operator, None).await;
    assert!(removed.status.is_success(), "{}", removed.body);
    let answer = late.end().await;
    assert_eq!(status(&answer), 503, "{answer}");
    for (name, wanted) in [("early", StatusCode::OK), ("late", StatusCode::NOT_FOUND)] {
        let found = send(Method::GET, &url(&format!("users/{name}")), &operator, None).await;
        assert_eq!(found.status, wanted, "{name}: {}", found.body);
    }
}

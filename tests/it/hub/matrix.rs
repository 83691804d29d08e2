//! The compatibility matrix: every kind of client at every kind of server, feature by feature. Its verdicts
//! are docs/compatibility.md; `MATRIX_WRITE=1` writes them anew.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::support::{
    harness::{
        Events, Gateway, Legacy, NEWEST, Session, child, is_stream, json_of, opening, package,
        text_of, within,
    },
    modern::{MODERN, Modern},
};

/// The features of MCP.
const FEATURES: [&str; 12] = [
    "tools",
    "progress",
    "logging",
    "cancellation",
    "sampling",
    "elicitation",
    "roots",
    "resources",
    "subscriptions",
    "prompts",
    "completion",
    "pagination",
];

const SESSIONS: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", NEWEST];

/// What a client answers when it is asked.
const MARK: &str = "file:///mark-42";

/// A client of one revision by one transport.
enum Peer {
    Streamable(Session, Events),
    Sse(Legacy),
    Stateless(Modern),
}

/// What was heard until a request was answered.
#[derive(Default)]
struct Heard {
    notes: Vec<Value>,
    asked: Vec<String>,
    answer: Value,
}

impl Heard {
    /// Takes a message; the answer to it, if it is a request of the server.
    fn take(&mut self, message: &Value) -> Option<Value> {
        let method = message["method"].as_str()?;
        if message["id"].is_null() {
            self.notes.push(message.clone());
            return None;
        }
        self.asked.push(method.to_owned());
        Some(json!({"jsonrpc": "2.0", "id": message["id"], "result": reply(method)}))
    }
}

/// The answer of a client to a request of a server.
fn reply(method: &str) -> Value {
    match method {
        "roots/list" => json!({"roots": [{"uri": MARK}]}),
        "elicitation/create" => json!({"action": "accept", "content": {"name": MARK}}),
        _ => json!({"role": "assistant", "model": "m", "content": {"type": "text", "text": MARK}}),
    }
}

fn request(id: u64, method: &str, params: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

/// Makes a request without a session again with what the server asks for, until it is complete.
async fn ask_stateless(client: &Modern, method: &str, params: Value) -> Heard {
    let mut heard = Heard::default();
    let call = client.message(method, params);
    let mut message = call.clone();
    loop {
        let response = client.post(&message).await;
        let mut answer = Value::Null;
        if is_stream(&response) {
            let mut events = Events::of(response);
            while let Some((_, message)) = events.message().await {
                heard.take(&message);
                answer = message;
            }
        } else {
            answer = json_of(response).await;
        }
        if answer["result"]["resultType"] != "input_required" {
            heard.answer = answer;
            return heard;
        }
        let asks = answer["result"]["inputRequests"].as_object().unwrap();
        let mut replies = json!({});
        for (key, ask) in asks {
            let method = ask["method"].as_str().unwrap();
            heard.asked.push(method.to_owned());
            replies[key] = reply(method);
        }
        message = client.retry(&call, &answer, replies);
    }
}

impl Peer {
    /// Sends a request, answers what the server asks meanwhile, and returns what was heard.
    async fn ask(&mut self, method: &str, params: Value) -> Heard {
        let mut heard = Heard::default();
        match self {
            Self::Streamable(session, _) => {
                let response = session
                    .post(&request(session.next_id(), method, &params))
                    .await;
                if !is_stream(&response) {
                    heard.answer = json_of(response).await;
                    return heard;
                }
                let mut events = Events::of(response);
                while let Some((_, message)) = events.message().await {
                    match heard.take(&message) {
                        Some(reply) => _ = session.post(&reply).await,
                        None if message["method"].is_null() => heard.answer = message,
                        None => {}
                    }
                }
            }
            Self::Sse(client) => {
                client.post(&request(7, method, &params)).await;
                while heard.answer.is_null() {
                    let (_, message) = client.events.message().await.unwrap();
                    match heard.take(&message) {
                        Some(reply) => _ = client.post(&reply).await,
                        None if message["id"] == 7 => heard.answer = message,
                        None => {}
                    }
                }
            }
            Self::Stateless(client) => return ask_stateless(client, method, params).await,
        }
        heard
    }

    async fn call(&mut self, tool: &str, args: Value) -> Heard {
        self.ask("tools/call", json!({"name": tool, "arguments": args}))
            .await
    }

    /// The next message that belongs to no request.
    async fn told(&mut self) -> Value {
        let events = match self {
            Self::Streamable(_, events) => events,
            Self::Sse(client) => &mut client.events,
            Self::Stateless(_) => panic!("it is told on streams of its own"),
        };
        events.message().await.unwrap().1
    }

    async fn notify(&mut self, method: &str, params: Value) {
        let message = json!({"jsonrpc": "2.0", "method": method, "params": params});
        match self {
            Self::Streamable(session, _) => _ = session.post(&message).await,
            Self::Sse(client) => _ = client.post(&message).await,
            Self::Stateless(_) => {}
        }
    }
}

/// Tries a feature; whether it does what its page says.
async fn works(peer: &mut Peer, feature: &str) -> bool {
    match feature {
        "tools" => {
            let listed = peer.ask("tools/list", json!({})).await.answer;
            let called = peer.call("echo", json!({"text": "x"})).await.answer;
            listed["result"]["tools"][0]["name"] == "echo" && text_of(&called) == "x"
        }
        "progress" => {
            let params = json!({"name": "slow", "arguments": {"n": 2, "ms": 5},
                "_meta": {"progressToken": "own"}});
            let heard = peer.ask("tools/call", params).await;
            let tokens = heard
                .notes
                .iter()
                .map(|note| &note["params"]["progressToken"]);
            tokens.filter(|token| *token == "own").count() == 2
        }
        "logging" => logs(peer).await,
        "cancellation" => cancels(peer).await,
        "sampling" => asks(peer, "sampling", "sampling/createMessage").await,
        "elicitation" => asks(peer, "elicitation", "elicitation/create").await,
        "roots" => asks(peer, "roots", "roots/list").await,
        "resources" => {
            let listed = peer.ask("resources/list", json!({})).await.answer;
            let templates = peer.ask("resources/templates/list", json!({})).await.answer;
            let uri = &listed["result"]["resources"][0]["uri"];
            let read = peer.ask("resources/read", json!({"uri": uri})).await.answer;
            templates["result"]["resourceTemplates"][0].is_object()
                && read["result"]["contents"][0]["uri"] == *uri
        }
        "subscriptions" => subscribes(peer).await,
        "prompts" => {
            let listed = peer.ask("prompts/list", json!({})).await.answer;
            let params = json!({"name": "greet", "arguments": {"who": "Ada"}});
            let got = peer.ask("prompts/get", params).await.answer;
            listed["result"]["prompts"][0]["name"] == "greet"
                && got["result"]["messages"][0]["content"]["text"] == "Greet Ada"
        }
        "completion" => {
            let params = json!({"ref": {"type": "ref/prompt", "name": "greet"},
                "argument": {"name": "who", "value": "Ada"}});
            let completed = peer.ask("completion/complete", params).await.answer;
            completed["result"]["completion"]["values"][0] == "Ada!"
        }
        _ => {
            let first = peer.ask("tools/list", json!({})).await.answer;
            let cursor = &first["result"]["nextCursor"];
            let params = json!({"cursor": cursor});
            let second = peer.ask("tools/list", params).await.answer;
            let tools = |page: &Value| page["result"]["tools"].as_array().map(Vec::len);
            tools(&second) == Some(10) && second["result"]["tools"] != first["result"]["tools"]
        }
    }
}

async fn asks(peer: &mut Peer, kind: &str, method: &str) -> bool {
    let heard = peer
        .call("ask", json!({"kind": kind, "message": "?"}))
        .await;
    heard.asked == [method] && text_of(&heard.answer).contains("mark-42")
}

async fn logs(peer: &mut Peer) -> bool {
    match peer {
        Peer::Stateless(client) => client.level = Some("warning"),
        _ => drop(
            peer.ask("logging/setLevel", json!({"level": "warning"}))
                .await,
        ),
    }
    peer.call("log", json!({"level": "info", "text": "low"}))
        .await;
    let heard = peer
        .call("log", json!({"level": "error", "text": "high"}))
        .await;
    let told = match heard.notes.into_iter().next() {
        Some(note) => note,
        None => peer.told().await,
    };
    if let Peer::Stateless(client) = peer {
        client.level = None;
    }
    told["method"] == "notifications/message" && told["params"]["data"] == "high"
}

async fn cancels(peer: &mut Peer) -> bool {
    let hang = json!({"name": "hang", "arguments": {}});
    match peer {
        Peer::Streamable(session, _) => {
            let id = session.next_id();
            let response = session.post(&request(id, "tools/call", &hang)).await;
            peer.notify("notifications/cancelled", json!({"requestId": id}))
                .await;
            drop(response);
        }
        Peer::Sse(client) => {
            client.post(&request(8, "tools/call", &hang)).await;
            peer.notify("notifications/cancelled", json!({"requestId": 8}))
                .await;
        }
        Peer::Stateless(client) => drop(client.post(&client.message("tools/call", hang)).await),
    }
    within("the server is told", async {
        loop {
            let told = peer.call("cancelled", json!({})).await.answer;
            if text_of(&told) != "[]" {
                return true;
            }
        }
    })
    .await
}

async fn subscribes(peer: &mut Peer) -> bool {
    let uri = json!({"uri": "test://one"});
    if let Peer::Stateless(client) = peer {
        let filter = json!({"resourceSubscriptions": ["test://one"]});
        let (_, mut events) = client.listen(filter).await;
        client.text("touch", uri).await;
        let (_, told) = events.message().await.unwrap();
        return told["params"]["uri"] == "test://one";
    }
    peer.ask("resources/subscribe", uri.clone()).await;
    let heard = peer.call("touch", uri.clone()).await;
    let told = match heard.notes.into_iter().next() {
        Some(note) => note,
        None => peer.told().await,
    };
    let ended = peer.ask("resources/unsubscribe", uri).await.answer;
    told["params"]["uri"] == "test://one" && ended["result"].is_object()
}

/// The clients of a gateway, by revision; `sse` is HTTP+SSE.
async fn peer(gateway: &Gateway, revision: &str, is_sse: bool, feature: &str) -> Peer {
    if revision == MODERN {
        // A call that may be asked has a server alone: what became of it is told by none.
        let is_asked = matches!(feature, "sampling" | "elicitation" | "roots");
        let all = json!({"elicitation": {}, "sampling": {}, "roots": {}});
        let capabilities = if is_asked { all } else { json!({}) };
        return Peer::Stateless(Modern::at(&gateway.url).with(capabilities));
    }
    if is_sse {
        let mut client = Legacy::connect(gateway, None).await;
        client.post(&opening(revision)).await;
        let (_, opened) = client.events.message().await.unwrap();
        assert_eq!(opened["result"]["protocolVersion"], revision, "{opened}");
        let mut peer = Peer::Sse(client);
        peer.notify("notifications/initialized", json!({})).await;
        return peer;
    }
    let session = gateway.initialize(revision).await;
    let listener = session.listen().await;
    Peer::Streamable(session, listener)
}

/// The columns of a table: the heading, the revision, and whether it is by HTTP+SSE.
fn columns() -> Vec<(String, &'static str, bool)> {
    let mut all = Vec::new();
    for (name, is_sse) in [("HTTP+SSE", true), ("Streamable HTTP", false)] {
        all.extend(SESSIONS.map(|revision| (format!("{revision}, {name}"), revision, is_sse)));
    }
    all.push((format!("{MODERN}, without a session"), MODERN, false));
    all
}

/// Whether a revision has a feature at all: elicitation is there since 2025-06-18.
fn has(revision: &str, feature: &str) -> bool {
    feature != "elicitation" || revision >= "2025-06-18"
}

async fn table(era: &str) -> String {
    let env = format!("CHILD_ERA={era}");
    let envs: Vec<&str> = if era.is_empty() { vec![] } else { vec![&env] };
    let gateway = Gateway::of(&[], &envs, &[&child()]).await;
    let mut text = String::from("| feature |");
    let columns = columns();
    for (heading, ..) in &columns {
        write!(text, " {heading} |").unwrap();
    }
    text.push_str("\n|---|");
    text.push_str(&"---|".repeat(columns.len()));
    for feature in FEATURES {
        write!(text, "\n| {feature} |").unwrap();
        let tried = columns.iter().map(|(heading, revision, is_sse)| {
            let gateway = &gateway;
            async move {
                if !has(revision, feature) {
                    return "–";
                }
                let mut peer = peer(gateway, revision, *is_sse, feature).await;
                let is_right = works(&mut peer, feature).await;
                assert!(is_right, "{feature} for {heading} at a server {era:?}");
                "✓"
            }
        });
        for verdict in futures_util::future::join_all(tried).await {
            write!(text, " {verdict} |").unwrap();
        }
    }
    text
}

#[tokio::test]
async fn every_client_uses_every_server() {
    let (sessions, modern) = tokio::join!(table(""), table("modern"));
    let page = format!(
        "# Compatibility\n\nEach cell is the verdict of a test in CI: a client of that revision and transport used the feature at a server\nbehind the gateway (`tests/it/hub/matrix.rs`). Elicitation is part of MCP since 2025-06-18.\n\n## Servers with sessions (2024-11-05 to 2025-11-25)\n\n{sessions}\n\n## Servers of 2026-07-28\n\n{modern}\n"
    );
    let place = package().join("docs/compatibility.md");
    if std::env::var_os("MATRIX_WRITE").is_some() {
        std::fs::write(&place, &page).unwrap();
    }
    let written = std::fs::read_to_string(&place).unwrap_or_default();
    assert!(written == page, "run this test with MATRIX_WRITE=1");
}

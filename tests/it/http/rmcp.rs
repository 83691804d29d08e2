//! The official Rust client, `rmcp`, over Streamable HTTP: complete sessions and transcripts.

#![expect(
    deprecated,
    reason = "the next revision drops sampling and roots, this one has them"
)]

use std::{sync::Arc, time::Duration};

use reqwest::StatusCode;
use rmcp::{
    ClientHandler, ErrorData, RoleClient, ServiceError,
    model::{
        ClientConfig, ClientRequest, CreateMessageRequestParams, CreateMessageResult,
        ElicitRequestParams, ElicitResult, ListRootsResult, ProtocolVersion,
    },
    service::{
        ClientLifecycleMode, ClientServiceExt, PeerRequestOptions, RequestContext, RequestHandle,
        RunningService, RxJsonRpcMessage, TxJsonRpcMessage,
    },
    transport::{
        StreamableHttpClientTransport, Transport, common::client_side_sse::FixedInterval,
        streamable_http_client::StreamableHttpClientTransportConfig,
    },
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::support::{
    cutter::Cutter,
    harness::{Gateway, NEWEST, until, within},
    modern::MODERN,
};

/// A typed value of `rmcp`, whose structs cannot be constructed outside of it.
fn typed<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// The handler of the server's requests.
struct Person;

impl ClientHandler for Person {
    #[expect(
        deprecated,
        reason = "the next revision drops sampling, this one has it"
    )]
    async fn create_message(
        &self,
        params: CreateMessageRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<CreateMessageResult, ErrorData> {
        let asked = serde_json::to_value(&params).unwrap();
        let text = format!("sampled {}", asked["messages"][0]["content"]["text"]);
        Ok(typed(json!({"model": "none", "role": "assistant",
            "content": {"type": "text", "text": text}})))
    }

    async fn create_elicitation(
        &self,
        params: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let asked = serde_json::to_value(&params).unwrap();
        assert!(asked["requestedSchema"]["properties"]["name"].is_object());
        Ok(typed(
            json!({"action": "accept", "content": {"name": asked["message"]}}),
        ))
    }

    #[expect(
        deprecated,
        reason = "the next revision drops roots, this one has them"
    )]
    async fn list_roots(
        &self,
        _: RequestContext<RoleClient>,
    ) -> Result<ListRootsResult, ErrorData> {
        Ok(typed(json!({"roots": [{"uri": "file:///srv/it"}]})))
    }

    fn get_info(&self) -> ClientConfig {
        typed(
            json!({"protocolVersion": NEWEST, "clientInfo": {"name": "it", "version": "1"},
            "capabilities": {"sampling": {}, "elicitation": {}, "roots": {"listChanged": true}}}),
        )
    }
}

/// A transport that records its messages before the client reads them.
struct Tap<T> {
    inner: T,
    seen: mpsc::Sender<Value>,
}

impl<T: Transport<RoleClient>> Transport<RoleClient> for Tap<T> {
    type Error = T::Error;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), T::Error>> + Send + 'static {
        self.inner.send(item)
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        let message = self.inner.receive().await?;
        let value = serde_json::to_value(&message).unwrap();
        self.seen.try_send(value).expect("room for a transcript");
        Some(message)
    }

    async fn close(&mut self) -> Result<(), T::Error> {
        self.inner.close().await
    }
}

/// A connected client with its transcript.
struct Client {
    service: RunningService<RoleClient, Person>,
    seen: mpsc::Receiver<Value>,
    transcript: Vec<Value>,
}

impl Client {
    async fn connect(url: &str) -> Self {
        Self::with_lifecycle(url, ClientLifecycleMode::Initialize).await
    }

    async fn with_lifecycle(url: &str, lifecycle: ClientLifecycleMode) -> Self {
        let mut config = StreamableHttpClientTransportConfig::with_uri(url);
        let mut retry = FixedInterval::default();
        retry.duration = Duration::from_millis(10);
        config.retry_config = Arc::new(retry);
        let (sender, seen) = mpsc::channel(1 << 12);
        let transport = Tap {
            inner: StreamableHttpClientTransport::from_config(config),
            seen: sender,
        };
        let service = Person.serve_with_lifecycle(transport, lifecycle);
        Self {
            service: within("initialize", service).await.unwrap(),
            seen,
            transcript: Vec::new(),
        }
    }

    /// Calls a tool; its whole result.
    async fn call(&self, tool: &str, args: Value) -> Result<Value, ServiceError> {
        let params = typed(json!({"name": tool, "arguments": args}));
        let result = within("an answer", self.service.call_tool(params)).await?;
        Ok(serde_json::to_value(result).unwrap())
    }

    /// Calls a tool; the text of its result.
    async fn text(&self, tool: &str, args: Value) -> String {
        let result = self.call(tool, args).await.unwrap();
        result["content"][0]["text"].as_str().unwrap().to_owned()
    }

    /// Calls a tool and leaves it running.
    async fn begin(&self, tool: &str, args: Value) -> RequestHandle<RoleClient> {
        let params = json!({"name": tool, "arguments": args});
        let request = typed(json!({"method": "tools/call", "params": params}));
        let options = PeerRequestOptions::no_options();
        let sent = self.service.send_cancellable_request(request, options);
        sent.await.unwrap()
    }

    /// Sends another request; its whole result.
    async fn ask(&self, method: &str, params: Value) -> Value {
        let request: ClientRequest = typed(json!({"method": method, "params": params}));
        let result = within("an answer", self.service.send_request(request)).await;
        serde_json::to_value(result.unwrap()).unwrap()
    }

    /// Makes the server send a message that belongs to no request.
    async fn announce(&self, name: &str, params: Value) {
        let args = json!({"method": format!("notifications/{name}"), "params": params});
        assert_eq!(self.text("notify", args).await, "sent");
    }

    /// Reads until a message matches.
    async fn see(&mut self, what: &str, is_wanted: impl Fn(&Value) -> bool) {
        loop {
            let message = within(what, self.seen.recv()).await.expect(what);
            self.transcript.push(message);
            if is_wanted(&self.transcript[self.transcript.len() - 1]) {
                return;
            }
        }
    }

    /// Ends the session, and returns every delivered message. The listener is in order: no earlier
    /// message follows the last announcement, not even as a repetition.
    async fn finish(mut self) -> Vec<Value> {
        self.announce("end", json!({})).await;
        let is_end = |message: &Value| message["method"] == "notifications/end";
        self.see("the end", is_end).await;
        within("the end", self.service.cancel()).await.unwrap();
        while let Some(message) = self.seen.recv().await {
            self.transcript.push(message);
        }
        self.transcript
    }
}

/// A message in short form, without the ids of server requests, which the gateway chooses.
fn line(message: &Value) -> String {
    let (id, params) = (&message["id"], &message["params"]);
    match message["method"].as_str() {
        Some(method) if !id.is_null() => format!("ask {method}"),
        Some(method) => {
            let name = method.strip_prefix("notifications/").unwrap();
            match name {
                "progress" => format!("progress {} of {}", params["progress"], params["total"]),
                "message" => format!("log {} {}", params["level"], params["data"]),
                "mark" => format!("mark {}", params["n"]),
                "resources/updated" => format!("updated {}", params["uri"]),
                _ => name.to_owned(),
            }
        }
        None if message["error"].is_object() => format!("error {id} {}", message["error"]["code"]),
        None => format!("answer {id}"),
    }
}

/// The messages of the listener, and those of the request streams, in order.
fn split(transcript: &[Value]) -> (Vec<String>, Vec<String>) {
    let of_listener = ["mark", "updated", "end", "tools/", "prompts/", "resources/"];
    let is_of_listener = |line: &String| of_listener.iter().any(|name| line.starts_with(name));
    transcript.iter().map(line).partition(is_of_listener)
}

/// The progress that carried `token`.
fn progress(transcript: &[Value], token: &Value) -> Vec<Value> {
    let is_its = |message: &&Value| &message["params"]["progressToken"] == token;
    let its = transcript.iter().filter(is_its);
    its.map(|message| message["params"]["progress"].clone())
        .collect()
}

/// All progress of a call of `slow`: `rmcp` reads numbers as floats.
fn steps(count: u32) -> Vec<Value> {
    (1..=count).map(|n| json!(f64::from(n))).collect()
}

/// Makes every call once, in the order of `every_call_of_a_session`.
async fn tell(client: &Client) {
    tell_tools(client).await;
    tell_changes(client).await;
}

/// Lists, calls, and what a server asks during a call.
async fn tell_tools(client: &Client) {
    let tools = within("tools", client.service.list_all_tools()).await;
    let names: Vec<_> = tools.unwrap().into_iter().map(|tool| tool.name).collect();
    assert_eq!((&*names[0], names.len()), ("echo", 50));
    assert_eq!(client.text("slow", json!({"n": 3, "ms": 5})).await, "done");

    let ask = |kind: &str| json!({"kind": kind, "message": "who?"});
    for (kind, member, said) in [
        ("sampling", "/content/text", "sampled \"who?\""),
        ("elicitation", "/content/name", "who?"),
        ("roots", "/roots/0/uri", "file:///srv/it"),
    ] {
        let reply: Value = serde_json::from_str(&client.text("ask", ask(kind)).await).unwrap();
        assert_eq!(
            reply["result"].pointer(member),
            Some(&json!(said)),
            "{reply}"
        );
    }
}

/// Subscriptions and announcements.
async fn tell_changes(client: &Client) {
    let uri = json!({"uri": "test://one"});
    let read = within(
        "a resource",
        client.service.read_resource(typed(uri.clone())),
    )
    .await;
    let read = serde_json::to_value(read.unwrap()).unwrap();
    assert_eq!(read["contents"][0]["text"], "text of test://one");
    client.ask("resources/subscribe", uri.clone()).await;
    assert_eq!(client.text("touch", uri.clone()).await, "touched");
    client.ask("resources/unsubscribe", uri.clone()).await;
    assert_eq!(client.text("touch", uri).await, "touched");

    client
        .ask("logging/setLevel", json!({"level": "warning"}))
        .await;
    for level in ["error", "info"] {
        let args = json!({"level": level, "text": "hot"});
        assert_eq!(client.text("log", args).await, "logged");
    }
    let greet = json!({"name": "greet", "arguments": {"who": "Ada"}});
    let prompt = client.ask("prompts/get", greet).await;
    assert_eq!(prompt["messages"][0]["content"]["text"], "Greet Ada");
    let error = client.call("error", json!({})).await.unwrap_err();
    assert!(matches!(error, ServiceError::McpError(error) if error.code.0 == -32000));
    for list in ["tools", "prompts", "resources"] {
        client
            .announce(&format!("{list}/list_changed"), json!({}))
            .await;
    }
}

#[tokio::test]
async fn every_call_of_a_session() {
    let gateway = Gateway::start(&[]).await;
    let client = Client::connect(&gateway.url).await;
    tell(&client).await;
    let transcript = client.finish().await;
    let (listener, calls) = split(&transcript);
    let lists = [
        "tools/list_changed",
        "prompts/list_changed",
        "resources/list_changed",
    ];
    assert_eq!(
        listener,
        [&["updated \"test://one\""], &lists[..], &["end"]].concat()
    );
    let answers = |from: u32, to: u32| (from..=to).map(|id| format!("answer {id}"));
    // The start, then the pages of tools.
    let mut expected: Vec<String> = answers(0, 5).collect();
    expected.extend((1..=3).map(|n| format!("progress {n}.0 of 3.0")));
    expected.extend(answers(6, 6));
    let asked = ["sampling/createMessage", "elicitation/create", "roots/list"];
    for (id, method) in (7..).zip(asked) {
        expected.push(format!("ask {method}"));
        expected.extend(answers(id, id));
    }
    // Read, subscribe, touch, unsubscribe, touch, level.
    expected.extend(answers(10, 15));
    expected.push("log \"error\" \"hot\"".to_owned());
    expected.extend(answers(16, 18));
    expected.push("error 19 -32000".to_owned());
    expected.extend(answers(20, 23));
    assert_eq!(calls, expected);
    until("the session's end", || async {
        gateway.descendants().is_empty()
    })
    .await;
}

#[tokio::test]
async fn calls_at_once_never_mix() {
    let gateway = Gateway::start(&[]).await;
    let client = Client::connect(&gateway.url).await;
    let mut tokens = Vec::new();
    let mut handles = Vec::new();
    for n in 1..=8 {
        let handle = client.begin("slow", json!({"n": n, "ms": 5})).await;
        tokens.push((n, serde_json::to_value(&handle.progress_token).unwrap()));
        handles.push((handle.id.clone(), handle));
    }
    let mut ids = Vec::new();
    for (id, handle) in handles {
        within("an answer", handle.await_response()).await.unwrap();
        ids.push(format!("answer {id}"));
    }
    let transcript = client.finish().await;
    for (n, token) in &tokens {
        assert_eq!(progress(&transcript, token), steps(*n), "{n}");
    }
    let (listener, calls) = split(&transcript);
    assert_eq!(listener, ["end"]);
    for id in ids {
        assert_eq!(calls.iter().filter(|line| **line == id).count(), 1, "{id}");
    }
    // `initialize`, eight calls with 1 to 8 steps, and the last announcement.
    assert_eq!(calls.len(), 1 + 8 + 36 + 1);
}

/// The client begins with `server/discover`, and stays with what it is told there.
#[tokio::test]
async fn a_client_of_both_eras_settles_on_the_newest_revision() {
    let gateway = Gateway::start(&[]).await;
    let lifecycle = ClientLifecycleMode::Auto {
        preferred_versions: vec![ProtocolVersion::V_2026_07_28],
        legacy_version: None,
    };
    let client = Client::with_lifecycle(&gateway.url, lifecycle).await;
    let peer = serde_json::to_value(&*client.service.peer_info().unwrap()).unwrap();
    assert_eq!(peer["protocolVersion"], MODERN, "{peer}");
    tell_tools(&client).await;
    within("the end", client.service.cancel()).await.unwrap();
}

#[tokio::test]
async fn cut_connections_lose_nothing_and_repeat_nothing() {
    let (cutter, _gateway) = Cutter::before(&[]).await;
    let mut client = Client::connect(&cutter.url()).await;
    let handle = client.begin("slow", json!({"n": 60, "ms": 10})).await;
    let token = serde_json::to_value(&handle.progress_token).unwrap();
    for cut in 1..=5 {
        client.announce("mark", json!({"n": cut})).await;
        let wanted = json!(f64::from(cut * 10));
        let is_far = |message: &Value| message["params"]["progress"] == wanted;
        client.see("progress", is_far).await;
        assert!(cutter.cut() >= 1);
    }
    within("an answer", handle.await_response()).await.unwrap();
    let transcript = client.finish().await;
    assert_eq!(progress(&transcript, &token), steps(60));
    let (listener, calls) = split(&transcript);
    assert_eq!(
        listener,
        ["mark 1", "mark 2", "mark 3", "mark 4", "mark 5", "end"]
    );
    // `initialize`, the marks, the call with its steps, and the last announcement.
    assert_eq!(calls.len(), 1 + 5 + 61 + 1);
}

#[tokio::test]
async fn polled_streams_are_read_to_their_end() {
    let sets = ["server.reply.close_after=30ms", "stream.retry=10ms"];
    let gateway = Gateway::start(&sets).await;
    let client = Client::connect(&gateway.url).await;
    let handle = client.begin("slow", json!({"n": 10, "ms": 20})).await;
    let token = serde_json::to_value(&handle.progress_token).unwrap();
    let ask = json!({"kind": "elicitation", "message": "who?"});
    assert!(client.text("ask", ask).await.contains("\"name\":\"who?\""));
    within("an answer", handle.await_response()).await.unwrap();
    let transcript = client.finish().await;
    assert_eq!(progress(&transcript, &token), steps(10));
    let (listener, calls) = split(&transcript);
    assert_eq!(listener, ["end"]);
    // `initialize`, eleven of one call, two of the other, and the last announcement.
    assert_eq!(calls.len(), 1 + 11 + 2 + 1);
}

#[tokio::test]
async fn a_cancelled_call_is_never_answered() {
    let gateway = Gateway::start(&[]).await;
    let client = Client::connect(&gateway.url).await;
    let handle = client.begin("hang", json!({})).await;
    let id = handle.id.clone();
    let is_there = || Box::pin(async { client.text("received", json!({})).await.contains("hang") });
    until("the call at the server", is_there).await;
    handle.cancel(Some("enough".to_owned())).await.unwrap();
    let cancelled = client.text("cancelled", json!({})).await;
    let cancelled: Value = serde_json::from_str(&cancelled).unwrap();
    assert_eq!(cancelled.as_array().unwrap().len(), 1);
    assert_eq!(cancelled[0]["reason"], "enough");
    let transcript = client.finish().await;
    assert!(transcript.iter().all(|message| message["id"] != json!(id)));
}

/// The call in flight ends with an error. The next call gets 404, and `rmcp` opens a new session.
#[tokio::test]
async fn a_lost_session_is_followed_by_a_new_one() {
    let gateway = Gateway::start(&["server.on_loss=end"]).await;
    let client = Client::connect(&gateway.url).await;
    assert_eq!(client.text("counter", json!({})).await, "1");
    let error = client.call("exit", json!({"code": 3})).await.unwrap_err();
    assert!(
        matches!(&error, ServiceError::McpError(error) if error.code.0 == -31001),
        "{error}"
    );
    assert_eq!(client.text("counter", json!({})).await, "1");
    assert_eq!(client.text("counter", json!({})).await, "2");
    let (listener, _) = split(&client.finish().await);
    assert_eq!(listener, ["end"]);
    let livez = gateway.http.get(format!("{}/livez", gateway.base())).send();
    assert_eq!(
        within("health", livez).await.unwrap().status(),
        StatusCode::OK
    );
}

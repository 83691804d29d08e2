//! A client of revision 2026-07-28: it has no session, and each of its requests stands for itself.

use std::sync::atomic::{AtomicU64, Ordering};

use reqwest::{Client, Method, RequestBuilder, Response};
use serde_json::{Value, json};

use super::harness::{BOTH, Events, client, last, text_of, until, within};

/// The revision.
pub(crate) const MODERN: &str = "2026-07-28";

/// A client.
pub(crate) struct Modern {
    http: Client,
    /// The MCP endpoint.
    pub(crate) url: String,
    /// Its bearer token.
    pub(crate) token: Option<String>,
    /// The capabilities that it declares.
    pub(crate) capabilities: Value,
    /// The log level that it asks for.
    pub(crate) level: Option<&'static str>,
    /// `Accept`.
    pub(crate) accept: &'static str,
    last: AtomicU64,
}

impl Modern {
    /// A client of the MCP endpoint `url` that cannot be asked for anything.
    pub(crate) fn at(url: &str) -> Self {
        Self {
            http: client(),
            url: url.to_owned(),
            token: None,
            capabilities: json!({}),
            level: None,
            accept: BOTH,
            last: AtomicU64::new(0),
        }
    }

    /// The same client with these capabilities.
    pub(crate) fn with(self, capabilities: Value) -> Self {
        Self {
            capabilities,
            ..self
        }
    }

    /// A request with what this revision requires in `_meta`.
    pub(crate) fn message(&self, method: &str, params: Value) -> Value {
        let id = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let mut message =
            json!({"jsonrpc": "2.0", "id": format!("m{id}"), "method": method, "params": params});
        let meta = &mut message["params"]["_meta"];
        meta["io.modelcontextprotocol/protocolVersion"] = json!(MODERN);
        meta["io.modelcontextprotocol/clientInfo"] = json!({"name": "it", "version": "1"});
        meta["io.modelcontextprotocol/clientCapabilities"] = self.capabilities.clone();
        if let Some(level) = self.level {
            meta["io.modelcontextprotocol/logLevel"] = json!(level);
        }
        message
    }

    /// A `tools/call`.
    pub(crate) fn tool(&self, tool: &str, args: Value) -> Value {
        self.message("tools/call", json!({"name": tool, "arguments": args}))
    }

    /// A POST of a message, without the header fields that mirror it.
    pub(crate) fn bare(&self, message: &Value) -> RequestBuilder {
        let mut request = self.http.request(Method::POST, &self.url);
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        request
            .header("Content-Type", "application/json")
            .header("Accept", self.accept)
            .body(message.to_string())
    }

    /// A POST of a message with the header fields that mirror it.
    pub(crate) fn request(&self, message: &Value) -> RequestBuilder {
        let mut request = self.bare(message).header("MCP-Protocol-Version", MODERN);
        if let Some(method) = message["method"].as_str() {
            request = request.header("Mcp-Method", method);
        }
        let params = &message["params"];
        let name = match message["method"].as_str() {
            Some("tools/call" | "prompts/get") => params["name"].as_str(),
            Some("resources/read") => params["uri"].as_str(),
            Some(method) if method.starts_with("tasks/") => params["taskId"].as_str(),
            _ => None,
        };
        match name {
            Some(name) => request.header("Mcp-Name", name),
            None => request,
        }
    }

    /// Posts a message with its header fields.
    pub(crate) async fn post(&self, message: &Value) -> Response {
        within("a response", self.request(message).send())
            .await
            .unwrap()
    }

    /// Posts a message; its answer, JSON or the last message of a stream.
    pub(crate) async fn answer(&self, message: &Value) -> Value {
        last(self.post(message).await).await
    }

    /// A request; its answer.
    pub(crate) async fn ask(&self, method: &str, params: Value) -> Value {
        self.answer(&self.message(method, params)).await
    }

    /// Calls a tool; its answer.
    pub(crate) async fn call(&self, tool: &str, args: Value) -> Value {
        self.answer(&self.tool(tool, args)).await
    }

    /// Calls a tool; the text of its result.
    pub(crate) async fn text(&self, tool: &str, args: Value) -> String {
        text_of(&self.call(tool, args).await)
    }

    /// The retry of a call that was answered by `required`, with these input responses.
    pub(crate) fn retry(&self, call: &Value, required: &Value, responses: Value) -> Value {
        let mut params = call["params"].clone();
        params["inputResponses"] = responses;
        params["requestState"] = required["result"]["requestState"].clone();
        self.message(call["method"].as_str().unwrap(), params)
    }

    /// A request about a task; its answer.
    pub(crate) async fn of_task(&self, method: &str, task: &Value) -> Value {
        self.ask(method, json!({"taskId": task["taskId"]})).await
    }

    /// Polls a task until it has this status; its state.
    pub(crate) async fn polled(&self, task: &Value, status: &str) -> Value {
        let state = std::cell::RefCell::new(Value::Null);
        until(status, || async {
            state.replace(self.of_task("tasks/get", task).await["result"].clone());
            state.borrow()["status"] == status
        })
        .await;
        state.into_inner()
    }

    /// Opens a subscription; its acknowledgement, and the events behind it.
    pub(crate) async fn listen(&self, notifications: Value) -> (Value, Events) {
        let message = self.message(
            "subscriptions/listen",
            json!({"notifications": notifications}),
        );
        let mut events = Events::of(self.post(&message).await);
        let (_, acknowledged) = events.message().await.unwrap();
        (acknowledged, events)
    }
}

/// The keys and the methods of what a result asks for.
pub(crate) fn asked(required: &Value) -> Vec<(String, String)> {
    assert_eq!(
        required["result"]["resultType"], "input_required",
        "{required}"
    );
    let requests = required["result"]["inputRequests"].as_object().unwrap();
    let requests = requests.iter();
    requests
        .map(|(key, request)| (key.clone(), request["method"].as_str().unwrap().to_owned()))
        .collect()
}

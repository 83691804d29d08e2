//! The demo server: a small stdio MCP server, started like any other child.
//!
//! With it, `lockgate run` shows every feature without a command.

use std::{
    collections::HashMap,
    io::{BufRead, Write},
    process::ExitCode,
    sync::{
        Arc, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use serde_json::{Value, json};

/// Pending requests of the demo to its client, by id.
#[expect(
    clippy::disallowed_types,
    reason = "plain threads; nothing here is async"
)]
type PendingRequests = Arc<std::sync::Mutex<HashMap<u64, mpsc::Sender<Value>>>>;

/// Serves stdin and stdout until stdin ends.
pub(crate) fn run() -> ExitCode {
    let answers = PendingRequests::default();
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        let Ok(message) = serde_json::from_str::<Value>(&line) else {
            continue;
        };
        if message.get("method").is_some() {
            request(message, &answers);
        } else if let Some(id) = message["id"].as_u64() {
            let pending = answers
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .remove(&id);
            if let Some(pending) = pending {
                // The tool call behind the request may have ended.
                let _ = pending.send(message);
            }
        }
    }
    ExitCode::SUCCESS
}

fn request(message: Value, answers: &PendingRequests) {
    let id = message["id"].clone();
    if id.is_null() {
        return;
    }
    let result = match message["method"].as_str().unwrap_or_default() {
        "initialize" => {
            let requested = message["params"]["protocolVersion"]
                .as_str()
                .unwrap_or_default();
            let known = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];
            let revision = if known.contains(&requested) {
                requested
            } else {
                "2025-11-25"
            };
            Ok(json!({
                "protocolVersion": revision,
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "lockgate-demo", "version": env!("CARGO_PKG_VERSION")},
                "instructions": "Three tools to try a client with: echo, slow (progress) and ask (elicitation).",
            }))
        }
        "ping" => Ok(json!({})),
        "tools/list" => Ok(tools()),
        "tools/call" => {
            let answers = Arc::clone(answers);
            thread::spawn(move || {
                let outcome = call(&message["params"], &answers);
                respond(&message["id"], outcome);
            });
            return;
        }
        _ => Err((-32601, "method not found")),
    };
    respond(&id, result);
}

fn respond(id: &Value, outcome: Result<Value, (i32, &str)>) {
    send(&match outcome {
        Ok(result) => json!({"jsonrpc": "2.0", "id": id, "result": result}),
        Err((code, text)) => {
            json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": text}})
        }
    });
}

fn send(message: &Value) {
    let mut out = std::io::stdout().lock();
    // Without a client this process ends, as its stdin ends too.
    let _ = writeln!(out, "{message}").and_then(|()| out.flush());
}

fn tools() -> Value {
    json!({"tools": [
        {"name": "echo", "description": "Returns its text",
         "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}},
        {"name": "slow", "description": "Counts to steps, one step each quarter of a second, and reports progress",
         "inputSchema": {"type": "object", "properties": {"steps": {"type": "integer", "minimum": 1, "maximum": 100}}}},
        {"name": "ask", "description": "Asks you for your name, and greets you",
         "inputSchema": {"type": "object", "properties": {}}},
    ]})
}

fn call(params: &Value, answers: &PendingRequests) -> Result<Value, (i32, &'static str)> {
    let arguments = &params["arguments"];
    match params["name"].as_str().unwrap_or_default() {
        "echo" => match arguments["text"].as_str() {
            Some(input) => Ok(text(input)),
            None => Err((-32602, "echo needs text")),
        },
        "slow" => {
            let steps = arguments["steps"].as_u64().unwrap_or(4).clamp(1, 100);
            let token = &params["_meta"]["progressToken"];
            for step in 1..=steps {
                thread::sleep(Duration::from_millis(250));
                if !token.is_null() {
                    send(
                        &json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": {
                        "progressToken": token, "progress": step, "total": steps}}),
                    );
                }
            }
            Ok(text(&format!("counted to {steps}")))
        }
        "ask" => Ok(greet(answers)),
        _ => Err((-32602, "no such tool")),
    }
}

fn greet(answers: &PendingRequests) -> Value {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let id = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    let (answered, answer) = mpsc::channel();
    answers
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .insert(id, answered);
    send(
        &json!({"jsonrpc": "2.0", "id": id, "method": "elicitation/create", "params": {
        "message": "What is your name?",
        "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}}}),
    );
    let answer = answer
        .recv_timeout(Duration::from_secs(600))
        .unwrap_or_default();
    match answer["result"]["content"]["name"].as_str() {
        Some(name) => text(&format!("Hello, {name}!")),
        None => text("Hello, whoever you are!"),
    }
}

fn text(text: &str) -> Value {
    json!({"content": [{"type": "text", "text": text}]})
}

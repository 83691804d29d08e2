//! The child as a server of revision 2026-07-28 (`CHILD_ERA=modern`), or of both eras (`dual`).

use std::sync::{
    Mutex,
    atomic::{AtomicBool, Ordering::SeqCst},
};

use serde_json::{Value, json};

use super::{answer, env, fail, lock, log, notify, number, rank, send, sleep, string, text};

/// The subscriptions: the id and the filter of each.
static LISTENERS: Mutex<Vec<(Value, Value)>> = Mutex::new(Vec::new());
/// Whether it was initialized, and is a session-based server since.
static HAS_SESSION: AtomicBool = AtomicBool::new(false);

const REVISION: &str = "2026-07-28";

fn meta(name: &str) -> String {
    format!("io.modelcontextprotocol/{name}")
}

/// Whether it is a server of this era now.
pub(crate) fn is_modern() -> bool {
    env("CHILD_ERA").is_some() && !HAS_SESSION.load(SeqCst)
}

/// What results of this era have.
pub(crate) fn complete(result: &mut Value) {
    if is_modern() && result.is_object() && result["resultType"].is_null() {
        result["resultType"] = "complete".into();
        result["_meta"][meta("serverInfo")] = json!({"name": "child", "version": "1.0"});
        let lists = [
            "tools",
            "prompts",
            "resources",
            "resourceTemplates",
            "contents",
        ];
        if let (Some(time), true) = (
            env("CHILD_TTL"),
            lists.iter().any(|list| result.get(list).is_some()),
        ) {
            result["ttlMs"] = time.parse().unwrap_or(0).into();
            result["cacheScope"] = env("CHILD_SCOPE").unwrap_or("private".into()).into();
        }
    }
}

/// Handles a message of this era; false for one that is the same in both.
pub(crate) fn receive(message: &Value) -> bool {
    let (id, params) = (&message["id"], &message["params"]);
    let method = message["method"].as_str().unwrap_or_default();
    if method == "initialize" && env("CHILD_ERA").is_some_and(|era| era == "dual") {
        HAS_SESSION.store(true, SeqCst);
        return false;
    }
    if method == "notifications/cancelled" {
        lock(&LISTENERS).retain(|(id, _)| *id != params["requestId"]);
    }
    if id.is_null() {
        return false;
    }
    if method.is_empty() {
        // There are no responses to a server of this era.
        std::process::exit(9);
    }
    let meta_of = |name: &str| &params["_meta"][meta(name)];
    if *meta_of("protocolVersion") != REVISION || !meta_of("clientCapabilities").is_object() {
        let versions = json!({"supported": supported(), "requested": meta_of("protocolVersion")});
        let error = json!({"code": -32022, "message": "no such revision", "data": versions});
        send(&json!({"jsonrpc": "2.0", "id": id, "error": error}));
        return true;
    }
    match method {
        "server/discover" => discover(id),
        "subscriptions/listen" => listen(id, &params["notifications"]),
        "ping"
        | "initialize"
        | "logging/setLevel"
        | "resources/subscribe"
        | "resources/unsubscribe" => fail(id, -32601, "no such method in this era"),
        "tools/call" => return call(id, params),
        "prompts/get" if !params["arguments"]["asks"].is_null() => ask(id, params),
        "resources/read" if params["uri"] == "test://ask" => ask(id, params),
        _ => return false,
    }
    true
}

fn supported() -> Value {
    if env("CHILD_ERA").is_some_and(|era| era == "dual") {
        json!([REVISION, "2025-11-25"])
    } else {
        json!([REVISION])
    }
}

fn discover(id: &Value) {
    answer(
        id,
        json!({
            "supportedVersions": supported(),
            "instructions": "Be modern.",
            "capabilities": {
                "tools": {"listChanged": true}, "prompts": {"listChanged": true},
                "resources": {"subscribe": true, "listChanged": true},
                "logging": {}, "completions": {},
                "extensions": {"io.modelcontextprotocol/tasks": {}, "example.org/own": {"a": 1}},
            },
            "ttlMs": 1000, "cacheScope": "public",
        }),
    );
}

fn listen(id: &Value, filter: &Value) {
    lock(&LISTENERS).push((id.clone(), filter.clone()));
    let mut agreed = filter.clone();
    if let Some(uris) = agreed["resourceSubscriptions"].as_array_mut() {
        uris.retain(|uri| uri != "test://unknown");
    }
    tell(
        "notifications/subscriptions/acknowledged",
        id,
        json!({"notifications": agreed}),
    );
}

fn tell(method: &str, subscription: &Value, mut params: Value) {
    params["_meta"][meta("subscriptionId")] = subscription.clone();
    notify(method, &params);
}

fn call(id: &Value, params: &Value) -> bool {
    let args = &params["arguments"];
    match params["name"].as_str().unwrap_or_default() {
        "ask" | "roots" => ask(id, params),
        "log" => {
            let wanted = params["_meta"][meta("logLevel")].as_str();
            let level = string(args, "level");
            if wanted.is_some_and(|wanted| rank(&level) >= rank(wanted)) {
                log(&level, &args["text"]);
            }
            text(id, "logged");
        }
        "touch" => {
            for (subscription, filter) in lock(&LISTENERS).iter() {
                let uris = filter["resourceSubscriptions"].as_array();
                if uris.is_some_and(|uris| uris.contains(&args["uri"])) {
                    let params = json!({"uri": args["uri"]});
                    tell("notifications/resources/updated", subscription, params);
                }
            }
            text(id, "touched");
        }
        "notify" => {
            let method = string(args, "method");
            for (subscription, filter) in lock(&LISTENERS).iter() {
                if filter["toolsListChanged"] == true {
                    tell(&method, subscription, json!({}));
                }
            }
            text(id, "sent");
        }
        "listeners" => text(id, &json!(*lock(&LISTENERS)).to_string()),
        "structured" => answer(
            id,
            json!({"content": [], "structuredContent": args["value"]}),
        ),
        "meta" => text(id, &params["_meta"].to_string()),
        _ => return false,
    }
    true
}

/// Asks its client as often as it is told to, each time after a while if so told, and answers with what came back;
/// without any state but that of the request.
fn ask(id: &Value, params: &Value) {
    let args = &params["arguments"];
    sleep(number(args, "after"));
    let asked: u64 = params["requestState"]
        .as_str()
        .and_then(|state| state.strip_prefix("asked-")?.parse().ok())
        .unwrap_or(0);
    let is_bare = args["kind"] == "nothing";
    if asked > 0 && params["inputResponses"].is_null() && !is_bare {
        return fail(id, -32602, "no inputResponses");
    }
    let first = &params["inputResponses"]["first"];
    let is_ahead = params["requestState"].is_null() && first.is_object();
    if is_ahead || asked >= args["times"].as_u64().unwrap_or(1) {
        let told = json!({ "first": first }).to_string();
        return match params["uri"].as_str() {
            Some(uri) => answer(id, json!({"contents": [{"uri": uri, "text": told}]})),
            None => text(id, &told),
        };
    }
    if is_bare {
        let state = format!("asked-{}", asked + 1);
        let required = json!({"resultType": "input_required", "requestState": state});
        return answer(id, required);
    }
    let request = match args["kind"].as_str() {
        Some("elicitation") | None => json!({"method": "elicitation/create", "params": {
            "message": args["message"].as_str().unwrap_or("who?"), "mode": "form",
            "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}}}}),
        Some("sampling") => json!({"method": "sampling/createMessage", "params": {"maxTokens": 10,
            "messages": [{"role": "user", "content": {"type": "text", "text": "?"}}]}}),
        _ => json!({"method": "roots/list"}),
    };
    answer(
        id,
        json!({"resultType": "input_required", "requestState": format!("asked-{}", asked + 1),
            "inputRequests": {"first": request}}),
    );
}

//! A hostile MCP server on stdio: every behaviour is a tool, so that tests drive it by calls.

#![expect(
    unsafe_code,
    clippy::disallowed_types,
    clippy::too_many_lines,
    reason = "a program of plain threads that has to misbehave; nothing of it is shipped"
)]

use std::{
    collections::{BTreeMap, HashMap},
    io::{BufRead, Write},
    process::{Command, Stdio},
    sync::{
        LazyLock, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::SeqCst},
        mpsc,
    },
    thread,
    time::Duration,
};

use serde_json::{Value, json};

mod era;
mod hogs;
mod jobs;
mod reach;
mod syscalls;

static RECEIVED: Mutex<Vec<String>> = Mutex::new(Vec::new());
static CANCELLED: Mutex<Vec<Value>> = Mutex::new(Vec::new());
static SUBSCRIBED: Mutex<Vec<String>> = Mutex::new(Vec::new());
static ASKED: LazyLock<Mutex<HashMap<String, mpsc::Sender<Value>>>> = LazyLock::new(Mutex::default);
static COUNTER: AtomicI64 = AtomicI64::new(0);
static ASKS: AtomicU64 = AtomicU64::new(0);
static LEVEL: AtomicU64 = AtomicU64::new(0);
static STAYS: AtomicBool = AtomicBool::new(false);
static STOPPED: AtomicBool = AtomicBool::new(false);

fn main() {
    if let Some(ms) = env("CHILD_START_MS").and_then(|ms| ms.parse().ok()) {
        sleep(ms);
    }
    if env("CHILD_BANNER").is_some() {
        write(b"Welcome to the hostile child v1.0\n");
    }
    for line in std::io::stdin().lock().split(b'\n') {
        let Ok(line) = line else { break };
        let text = String::from_utf8_lossy(&line).into_owned();
        let message = serde_json::from_str::<Value>(&text);
        lock(&RECEIVED).push(text);
        match message {
            Ok(Value::Array(batch)) => batch.into_iter().for_each(receive),
            Ok(message) => receive(message),
            Err(error) => send(&json!({"jsonrpc": "2.0", "id": null,
                "error": {"code": -32700, "message": error.to_string()}})),
        }
        while STOPPED.load(SeqCst) {
            sleep(1000);
        }
    }
    while STAYS.load(SeqCst) {
        sleep(1000);
    }
}

/// One message of the client.
fn receive(message: Value) {
    if era::is_modern() && era::receive(&message) {
        return;
    }
    if message["method"] == "server/discover" {
        if env("CHILD_UPSET").is_some() {
            std::process::exit(4);
        }
        if env("CHILD_IGNORES_UNKNOWN").is_some() {
            return;
        }
    }
    let id = message.get("id").cloned().filter(|id| !id.is_null());
    let params = message.get("params").cloned().unwrap_or(Value::Null);
    match (message["method"].as_str(), id) {
        (Some("tools/call"), Some(id)) => call(id, &params),
        (Some(method @ ("tasks/result" | "tasks/cancel")), Some(id))
            if jobs::request(&id, method, &params) => {}
        (Some("completion/complete"), Some(id)) if env("CHILD_ASK_COMPLETING").is_some() => {
            thread::spawn(move || ask(&id, &json!({"kind": "roots"}), &Value::Null));
        }
        (Some(method), Some(id)) => match request(method, &params) {
            Some(Ok(result)) => answer(&id, result),
            Some(Err((code, text))) => fail(&id, code, text),
            None => {}
        },
        (Some("notifications/cancelled"), None) => lock(&CANCELLED).push(params),
        (Some(_), None) => {}
        (None, id) => {
            let waiting = id.and_then(|id| lock(&ASKED).remove(id.as_str().unwrap_or_default()));
            waiting.map(|waiting| waiting.send(message));
        }
    }
}

/// Every request but `tools/call`; none is silence.
fn request(method: &str, params: &Value) -> Option<Result<Value, (i64, &'static str)>> {
    let uri = || params["uri"].as_str().unwrap_or_default().to_owned();
    if env("CHILD_SILENT").is_some_and(|silent| silent == method) {
        return None;
    }
    if env("CHILD_LACKS").is_some_and(|lacks| method.starts_with(&format!("{lacks}/"))) {
        return Some(Err((-32601, "no such method")));
    }
    Some(Ok(match method {
        "initialize" if env("CHILD_NO_INIT").is_some() => return None,
        "initialize" if env("CHILD_INIT_ERROR").is_some() => {
            let code = env("CHILD_INIT_ERROR").and_then(|code| code.parse().ok());
            return Some(Err((
                code.filter(|code| *code < 0).unwrap_or(-32603),
                "no initialize today",
            )));
        }
        "initialize" if params["clientInfo"]["name"] == "killer" => std::process::exit(3),
        "initialize" => {
            if params["clientInfo"]["name"] == "early" {
                let said = json!({"jsonrpc": "2.0", "method": "notifications/message",
                    "params": {"level": "info", "data": "early"}});
                write(format!("{said}\n").as_bytes());
                sleep(50);
            }
            initialize(params)
        }
        "ping" => json!({}),
        "tools/list" => tools(params["cursor"].as_str()),
        "resources/list" => json!({"resources": [
            {"uri": "test://one", "name": "one"}, {"uri": "test://two", "name": "two"}]}),
        "resources/templates/list" => json!({"resourceTemplates": [
            {"uriTemplate": "test://{name}", "name": "any"}]}),
        "resources/read" => json!({"contents": [
            {"uri": uri(), "mimeType": "text/plain", "text": format!("text of {}", uri())}]}),
        "resources/subscribe" => {
            if env("CHILD_NO_SUBSCRIBE").is_some() {
                return Some(Err((-32002, "no such resource any more")));
            }
            lock(&SUBSCRIBED).push(uri());
            json!({})
        }
        "resources/unsubscribe" => {
            lock(&SUBSCRIBED).retain(|other| *other != uri());
            json!({})
        }
        "prompts/list" => json!({"prompts": [
            {"name": "greet", "arguments": [{"name": "who", "required": true}]}]}),
        "prompts/get" => json!({"messages": [{"role": "user", "content": {"type": "text",
            "text": format!("Greet {}", params["arguments"]["who"].as_str().unwrap_or("you"))}}]}),
        "completion/complete" => json!({"completion": {"values": [
            format!("{}!", params["argument"]["value"].as_str().unwrap_or_default())],
            "hasMore": false}}),
        "tasks/result" => json!({"content": []}),
        "logging/setLevel" => {
            LEVEL.store(rank(params["level"].as_str().unwrap_or("debug")), SeqCst);
            json!({})
        }
        _ => return Some(Err((-32601, "no such method"))),
    }))
}

fn initialize(params: &Value) -> Value {
    let revision = env("CHILD_REVISION").map_or(params["protocolVersion"].clone(), Value::from);
    let changes = env("CHILD_STEADY").is_none();
    let mut result = json!({
        "protocolVersion": revision,
        "serverInfo": {"name": "child", "version": "1.0"},
        "instructions": "Be careful.",
        "capabilities": {
            "tools": {"listChanged": changes}, "prompts": {"listChanged": changes},
            "resources": {"subscribe": true, "listChanged": changes},
            "logging": {}, "completions": {},
        },
    });
    let capabilities = &mut result["capabilities"];
    if env("CHILD_TASKS").is_some() {
        capabilities["tasks"] = json!({
            "list": {}, "cancel": {}, "requests": {"tools": {"call": {}}},
        });
    }
    if let Some(extensions) = env("CHILD_EXTENSIONS") {
        capabilities["extensions"] = serde_json::from_str(&extensions).unwrap_or_default();
    }
    if env("CHILD_NO_LOGGING").is_some() {
        capabilities
            .as_object_mut()
            .map(|all| all.remove("logging"));
    }
    if let (Some(lacks), Some(all)) = (env("CHILD_LACKS"), capabilities.as_object_mut()) {
        all.remove(&lacks);
    }
    result
}

/// The tools, ten a page.
fn tools(cursor: Option<&str>) -> Value {
    let from: usize = cursor.and_then(|cursor| cursor.parse().ok()).unwrap_or(0);
    let names = TOOLS.iter().skip(from).take(10);
    let schema = env("CHILD_SCHEMA").unwrap_or_else(|| r#"{"type":"object"}"#.into());
    let schema: Value = serde_json::from_str(&schema).unwrap_or_default();
    let tool = |name: &&str| {
        let mut tool = json!({"name": name, "description": name, "inputSchema": schema});
        if let Some(schema) = env("CHILD_OUTPUT_SCHEMA").filter(|_| *name == "echo") {
            tool["outputSchema"] = serde_json::from_str(&schema).unwrap_or_default();
        }
        if jobs::is_required(name) {
            tool["execution"] = json!({"taskSupport": "required"});
        }
        tool
    };
    let page: Vec<_> = names.map(tool).collect();
    let mut result = json!({"tools": page});
    if from + 10 < TOOLS.len() {
        result["nextCursor"] = (from + 10).to_string().into();
    } else if env("CHILD_NULL_CURSOR").is_some() {
        result["nextCursor"] = Value::Null;
    }
    result
}

const TOOLS: [&str; 50] = [
    "echo",
    "slow",
    "counter",
    "ask",
    "notify",
    "burst",
    "env",
    "fds",
    "cwd",
    "exit",
    "abort",
    "hang",
    "stop_reading",
    "close_stdout",
    "close_stdin",
    "garbage",
    "answer_bad_utf8",
    "stderr",
    "flood",
    "spawn_tree",
    "ignore_term",
    "raw",
    "twice",
    "foreign_id",
    "whoami",
    "touch",
    "log",
    "received",
    "cancelled",
    "sleep",
    "segv",
    "subscribed",
    "error",
    "tool_error",
    "big",
    "roots",
    "args",
    "write_file",
    "forks",
    "read_path",
    "list_dir",
    "kill",
    "attach",
    "connect",
    "bind",
    "try_call",
    "fork_bomb",
    "hog",
    "fill",
    "chmod",
];

/// A tool call; those that take time, or ask, run in a thread of their own.
fn call(id: Value, params: &Value) {
    let name = params["name"].as_str().unwrap_or_default().to_owned();
    let id = match jobs::is_required(&name) {
        true if params["task"].is_null() => return fail(&id, -32601, "only as a task"),
        true => jobs::begin(&id),
        false => id,
    };
    let args = params["arguments"].clone();
    let token = params["_meta"]["progressToken"].clone();
    match name.as_str() {
        "slow" => _ = thread::spawn(move || slow(&id, &args, &token)),
        "ask" | "roots" => _ = thread::spawn(move || ask(&id, &args, &token)),
        "visit" => visit(&id, &args),
        "flood" => {
            let count = number(&args, "n");
            text(&id, "started");
            thread::spawn(move || (0..count).for_each(|n| log("info", &json!({"flood": n}))));
        }
        "sleep" => {
            thread::spawn(move || {
                sleep(number(&args, "ms"));
                let bytes = usize::try_from(number(&args, "bytes")).unwrap_or(0);
                text(&id, &format!("slept{}", "b".repeat(bytes)));
            });
        }
        // Says so much first, if so told.
        "hang" if args["bytes"].is_u64() => {
            let said = "x".repeat(usize::try_from(number(&args, "bytes")).unwrap_or(0));
            let params = json!({"progressToken": token, "progress": 1, "message": said});
            notify("notifications/progress", &params);
        }
        "hang" => {}
        _ => broken(&id, &name, &args),
    }
}

/// The tools that break something.
fn broken(id: &Value, name: &str, args: &Value) {
    match name {
        "exit" => std::process::exit(i32::try_from(number(args, "code")).unwrap_or(0)),
        "abort" => std::process::abort(),
        // SAFETY: it is meant to die of this; std's own handler would only return.
        "segv" => unsafe {
            libc::signal(libc::SIGSEGV, libc::SIG_DFL);
            libc::raise(libc::SIGSEGV);
        },
        "stop_reading" => {
            text(id, "stopped");
            STOPPED.store(true, SeqCst);
        }
        "close_stdout" | "close_stdin" => {
            text(id, "closed");
            STAYS.store(true, SeqCst);
            // SAFETY: nothing in this program relies on owning the descriptor.
            unsafe { libc::close(i32::from(name == "close_stdout")) };
        }
        "garbage" => {
            garbage(args);
            text(id, "done");
        }
        "answer_bad_utf8" => {
            let mut line = format!(
                r#"{{"jsonrpc":"2.0","id":{id},"result":{{"content":[{{"type":"text","text":""#
            )
            .into_bytes();
            line.extend_from_slice(b"\xff\xfe\"}]}}\n");
            write(&line);
        }
        "stderr" => {
            let (id, bytes) = (id.clone(), number(args, "bytes"));
            thread::spawn(move || {
                complain(bytes);
                text(&id, "written");
            });
        }
        "ignore_term" => {
            // SAFETY: no handler, only an ignored signal.
            unsafe { libc::signal(libc::SIGTERM, libc::SIG_IGN) };
            STAYS.store(true, SeqCst);
            text(id, "ignored");
        }
        "result" => answer(id, args["result"].clone()),
        "raw" => write(format!("{}\n", string(args, "line")).as_bytes()),
        "twice" => {
            text(id, "first");
            text(id, "second");
        }
        "foreign_id" => {
            text(&json!("never-asked-987"), "foreign");
            text(id, "own");
        }
        "spawn_tree" => spawn_tree(id),
        "forks" => {
            for _ in 0..number(args, "n") {
                spawn("sleep 1000");
            }
            text(id, "forked");
        }
        _ => plain(id, name, args),
    }
}

/// The tools that only answer.
fn plain(id: &Value, name: &str, args: &Value) {
    let result = match name {
        "echo" => string(args, "text"),
        "say" => {
            write(format!("{}\n", string(args, "line")).as_bytes());
            "said".into()
        }
        "counter" => (COUNTER.fetch_add(1, SeqCst) + 1).to_string(),
        "notify" => {
            notify(&string(args, "method"), &args["params"]);
            "sent".into()
        }
        "burst" => {
            (0..number(args, "n"))
                .for_each(|n| log("info", &json!({"n": n, "text": args["text"]})));
            "sent".into()
        }
        "env" => json!(std::env::vars().collect::<BTreeMap<_, _>>()).to_string(),
        "args" => json!(std::env::args().collect::<Vec<_>>()).to_string(),
        "fds" => fds().to_string(),
        "cwd" => whereabouts().to_string(),
        "whoami" => json!({"pid": std::process::id(), "user": env("CHILD_USER")}).to_string(),
        "touch" => {
            let uri = string(args, "uri");
            if lock(&SUBSCRIBED).contains(&uri) {
                notify("notifications/resources/updated", &json!({"uri": uri}));
            }
            "touched".into()
        }
        "log" => {
            let level = string(args, "level");
            if rank(&level) >= LEVEL.load(SeqCst) {
                log(&level, &args["text"]);
            }
            "logged".into()
        }
        "received" => json!(*lock(&RECEIVED)).to_string(),
        "cancelled" => json!(*lock(&CANCELLED)).to_string(),
        "subscribed" => json!(*lock(&SUBSCRIBED)).to_string(),
        "big" => "b".repeat(usize::try_from(number(args, "bytes")).unwrap_or(0)),
        "read_path" => match std::fs::read(string(args, "path")) {
            Ok(bytes) => format!("read {}", String::from_utf8_lossy(&bytes)),
            Err(error) => format!("refused: {error}"),
        },
        "list_dir" => list(&string(args, "path")),
        "kill" | "attach" | "try_call" => match syscalls::attempt(name, args) {
            Ok(()) => "done".into(),
            Err(error) => format!("refused: {error}"),
        },
        "reach" => {
            let number = i32::try_from(args["number"].as_i64().unwrap_or(0)).unwrap_or(-1);
            reach::attempt(&string(args, "what"), &string(args, "path"), number)
        }
        "connect" => reach::tcp(&string(args, "address")),
        "bind" => match std::net::TcpListener::bind(string(args, "address")) {
            Ok(_) => "bound".into(),
            Err(error) => format!("refused: {error}"),
        },
        "fork_bomb" => {
            let started = (0..number(args, "n")).filter(|_| spawn("sleep 1000") != 0);
            started.count().to_string()
        }
        "hog" => hogs::hog(number(args, "bytes"), number(args, "ms")),
        "hold" => hogs::hold(number(args, "bytes")),
        "outrun" => hogs::outrun(&string(args, "path"), number(args, "ms")),
        "fill" => hogs::fill(&string(args, "path"), number(args, "bytes")),
        "chmod" => match syscalls::chmod(&string(args, "path")) {
            Ok(()) => "done".into(),
            Err(error) => format!("refused: {error}"),
        },
        "write_file" => match std::fs::write(string(args, "path"), string(args, "text")) {
            Ok(()) => "written".into(),
            Err(error) => format!("refused: {error}"),
        },
        "error" => {
            let code = args["code"].as_i64().unwrap_or(-32000);
            return fail(id, code, "an error of the tool's own");
        }
        "tool_error" => {
            let content = json!([{"type": "text", "text": "it did not work"}]);
            return answer(id, json!({"content": content, "isError": true}));
        }
        _ => return fail(id, -32602, "no such tool"),
    };
    text(id, &result);
}

fn list(path: &str) -> String {
    match std::fs::read_dir(path) {
        Ok(entries) => {
            let names = entries.flatten().map(|entry| entry.file_name());
            let names: Vec<_> = names
                .map(|name| name.to_string_lossy().into_owned())
                .collect();
            format!("listed {}", json!(names))
        }
        Err(error) => format!("refused: {error}"),
    }
}

fn slow(id: &Value, args: &Value, token: &Value) {
    let count = number(args, "n");
    for n in 1..=count {
        sleep(number(args, "ms"));
        if !token.is_null() {
            let mut params = json!({"progressToken": token, "progress": n, "total": count});
            if args["says"] == true {
                params["message"] = format!("step {n}").into();
            }
            notify("notifications/progress", &params);
        }
    }
    text(id, "done");
}

/// Refuses the first call until its client has visited a URL.
fn visit(id: &Value, args: &Value) {
    if COUNTER.fetch_add(1, SeqCst) > 0 {
        return text(id, "visited");
    }
    let url = json!({"mode": "url", "elicitationId": "e-1", "url": "https://example.org/?a=1",
        "message": string(args, "message")});
    let error = json!({"code": -32042, "message": "visit", "data": {"elicitations": [url]}});
    send(&json!({"jsonrpc": "2.0", "id": id, "error": error}));
}

/// Asks the client something, after a while if so told, and answers with what came back, after progress if so told; or without
/// waiting for it, having taken the question back before that if so told.
fn ask(id: &Value, args: &Value, token: &Value) {
    sleep(number(args, "after"));
    let pad = usize::try_from(number(args, "pad")).unwrap_or(0);
    let message = string(args, "message") + &"?".repeat(pad);
    let (method, params) = match args["kind"].as_str() {
        Some("elicitation") => (
            "elicitation/create",
            json!({"message": message,
            "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}}}),
        ),
        Some("sampling") => (
            "sampling/createMessage",
            json!({"maxTokens": 10, "messages": [
            {"role": "user", "content": {"type": "text", "text": message}}]}),
        ),
        Some("url") => (
            "elicitation/create",
            json!({"mode": "url", "message": message, "elicitationId": "e-1",
            "url": "https://example.org/"}),
        ),
        Some("tools") => (
            "sampling/createMessage",
            json!({"maxTokens": 10, "tools": [], "messages": [
            {"role": "user", "content": {"type": "text", "text": message}}]}),
        ),
        Some("other") => ("x/other", json!({})),
        _ => ("roots/list", json!({})),
    };
    let own = format!("ask-{}", ASKS.fetch_add(1, SeqCst));
    let (sender, receiver) = mpsc::channel();
    lock(&ASKED).insert(own.clone(), sender);
    let params = jobs::asked(id, params);
    send(&json!({"jsonrpc": "2.0", "id": own, "method": method, "params": params}));
    if args["ends"] == "taken back" {
        notify("notifications/cancelled", &json!({"requestId": own}));
        sleep(100);
    }
    if !args["ends"].is_null() {
        return text(id, "not waited");
    }
    if let Ok(reply) = receiver.recv() {
        if args["progress"] == true && !token.is_null() {
            notify(
                "notifications/progress",
                &json!({"progressToken": token, "progress": 1}),
            );
        }
        text(id, &reply.to_string());
    }
}

/// Writes to stderr.
fn complain(bytes: u64) {
    let chunk = [[b'e'; 99].as_slice(), b"\n"].concat().repeat(640);
    let mut left = usize::try_from(bytes).unwrap_or(0);
    while left > 0 {
        let size = left.min(chunk.len());
        _ = std::io::stderr().write_all(&chunk[..size]);
        left -= size;
    }
}

fn garbage(args: &Value) {
    match args["what"].as_str() {
        Some("utf8") => write(b"\xff\xfe\xfd\n"),
        Some("nul") => write(b"{\"a\":\0}\n"),
        Some("huge") => {
            let mut line = vec![b'x'; usize::try_from(number(args, "bytes")).unwrap_or(0)];
            line.push(b'\n');
            write(&line);
        }
        _ => write(b"just some words\n"),
    }
}

/// Grandchildren that try to get away; answers with their process numbers.
fn spawn_tree(id: &Value) {
    let scripts = [
        "sleep 1000",
        "trap '' TERM; sleep 1000; sleep 1000",
        "setsid sleep 1000 & sleep 1000 & wait",
        "setsid sh -c 'trap \"\" TERM HUP; (sleep 1000 &) ; sleep 1000; sleep 1000'",
    ];
    let pids: Vec<u32> = scripts.iter().map(|script| spawn(script)).collect();
    // The shells need a moment to start theirs.
    sleep(200);
    text(id, &json!(pids).to_string());
}

fn spawn(script: &str) -> u32 {
    let mut command = Command::new("sh");
    command
        .args(["-c", script])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.spawn().map_or(0, |child| child.id())
}

fn fds() -> Value {
    let entries = std::fs::read_dir("/proc/self/fd")
        .into_iter()
        .flatten()
        .flatten();
    let target = |entry: std::fs::DirEntry| {
        let target = std::fs::read_link(entry.path()).ok()?;
        Some((
            entry.file_name().into_string().ok()?,
            target.to_string_lossy().into_owned(),
        ))
    };
    // Without the one that is open for this listing.
    let all = entries
        .filter_map(target)
        .filter(|(_, target)| !target.starts_with("/proc/"));
    json!(all.collect::<BTreeMap<_, _>>())
}

fn whereabouts() -> Value {
    use std::os::unix::fs::MetadataExt;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| {
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_default().trim().to_owned()
    };
    let mode = std::fs::metadata(".").map_or(0, |dir| dir.mode() & 0o7777);
    // SAFETY: a question without arguments of ours.
    let session = unsafe { libc::getsid(0) };
    json!({
        "cwd": std::env::current_dir().unwrap_or_default(), "mode": format!("{mode:o}"),
        "umask": field("Umask"), "uid": field("Uid"), "no_new_privs": field("NoNewPrivs"),
        "capabilities": field("CapEff"), "seccomp": field("Seccomp"),
        "signals_ignored": field("SigIgn"), "signals_blocked": field("SigBlk"),
        "limits": std::fs::read_to_string("/proc/self/limits").unwrap_or_default(),
        "pid": std::process::id(), "ppid": std::os::unix::process::parent_id(), "session": session,
    })
}

fn answer(id: &Value, mut result: Value) {
    era::complete(&mut result);
    send(&json!({"jsonrpc": "2.0", "id": id, "result": result}));
}

fn text(id: &Value, text: &str) {
    answer(id, json!({"content": [{"type": "text", "text": text}]}));
}

fn fail(id: &Value, code: i64, message: &str) {
    send(&json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}}));
}

fn notify(method: &str, params: &Value) {
    send(&json!({"jsonrpc": "2.0", "method": method, "params": params}));
}

fn log(level: &str, data: &Value) {
    notify(
        "notifications/message",
        &json!({"level": level, "logger": "child", "data": data}),
    );
}

fn send(message: &Value) {
    if jobs::keep(message) {
        return;
    }
    write(format!("{message}\n").as_bytes());
}

/// Writes whole lines: one call, one lock, so that threads do not mix theirs.
fn write(bytes: &[u8]) {
    let mut stdout = std::io::stdout().lock();
    _ = stdout.write_all(bytes).and_then(|()| stdout.flush());
}

fn rank(level: &str) -> u64 {
    let levels = [
        "debug",
        "info",
        "notice",
        "warning",
        "error",
        "critical",
        "alert",
        "emergency",
    ];
    levels
        .iter()
        .position(|other| *other == level)
        .map_or(0, |at| at as u64)
}

fn number(args: &Value, name: &str) -> u64 {
    args[name].as_u64().unwrap_or(0)
}

fn string(args: &Value, name: &str) -> String {
    args[name].as_str().unwrap_or_default().to_owned()
}

#[expect(
    clippy::disallowed_methods,
    reason = "a program of its own, without configuration"
)]
fn env(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn sleep(ms: u64) {
    thread::sleep(Duration::from_millis(ms));
}

//! A running gateway and a client of it; every wait has a deadline.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    process::Stdio,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use reqwest::{Client, Method, RequestBuilder, Response, StatusCode, header::HeaderMap};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    time::{Instant, timeout},
};

/// The deadline of every wait.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

/// The newest revision with sessions.
pub(crate) const NEWEST: &str = "2025-11-25";

/// The `Accept` of most clients.
pub(crate) const BOTH: &str = "application/json, text/event-stream";

/// Waits for `future` up to the deadline.
pub(crate) async fn within<F: Future>(what: &str, future: F) -> F::Output {
    match timeout(DEADLINE, future).await {
        Ok(output) => output,
        Err(_) => panic!("deadline: {what}"),
    }
}

/// Polls `check` until it is true.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut check: impl FnMut() -> F) {
    within(what, async {
        while !check().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// The folder of this package at run time: the tests may have been built under another
/// path.
pub(crate) fn package() -> PathBuf {
    std::env::var_os("CARGO_MANIFEST_DIR")
        .expect("cargo says it")
        .into()
}

/// The path of the hostile child.
pub(crate) fn child() -> String {
    example("child")
}

/// The path of an example.
pub(crate) fn example(name: &str) -> String {
    let own = std::env::current_exe().unwrap();
    let debug = own.parent().unwrap().parent().unwrap();
    let path = debug.join("examples").join(name);
    path.to_str().unwrap().to_owned()
}

/// A directory with `child`, a copy of a program that every user can start: the build directory may
/// be open to its owner only.
pub(crate) fn for_everybody(program: &str) -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::Permissions::from_mode(0o755);
    let dir = tempfile::Builder::new()
        .permissions(mode)
        .tempdir()
        .unwrap();
    let copy = dir.path().join("child");
    std::fs::hard_link(program, &copy)
        .or_else(|_| std::fs::copy(program, &copy).map(drop))
        .unwrap();
    dir
}

/// A running gateway.
pub(crate) struct Gateway {
    /// The child's program, if it is a copy.
    program: Option<tempfile::TempDir>,
    /// The URL of the MCP endpoint.
    pub(crate) url: String,
    /// A client without retries, redirects or proxies.
    pub(crate) http: Client,
    /// The gateway's process.
    pub(crate) process: Child,
    /// Stays open, because the gateway may write more.
    _stdout: Lines<BufReader<ChildStdout>>,
    stderr: tempfile::NamedTempFile,
    /// The marker in the environment of its children.
    pub(crate) marker: String,
}

impl Gateway {
    /// `lockgate run` of the hostile child, with `--set` for each of `sets`.
    pub(crate) async fn start(sets: &[&str]) -> Self {
        Self::of(sets, &[], &[&child()]).await
    }

    /// `lockgate run` of `command`, with `--set` and `--env` for the child.
    pub(crate) async fn of(sets: &[&str], envs: &[&str], command: &[&str]) -> Self {
        Self::through(&[], &run_args(sets, envs), command).await
    }

    /// `lockgate serve` of the tenants `a` and `b`, each with the hostile child as server `x`, all
    /// with `keys`; `dir` becomes the data directory. Its URL is that of `a`.
    ///
    /// A child has the marker as `IT_MARKER`, and the marker with its tenant as `CHILD_USER`.
    pub(crate) async fn serve(dir: &std::path::Path, sets: &[&str], keys: &str) -> Self {
        let (marker, manifest) = (marker(), dir.join("it-manifest.yaml"));
        let program = for_everybody(&child());
        let tenant = |name: &str| {
            let env = format!("{{IT_MARKER: {0}, CHILD_USER: {0}-{name}}}", &marker[10..]);
            let command = program.path().join("child");
            let command = command.display();
            format!(
                "  {name}: {{auth: {{mode: none}}, servers: {{x: {{command: {command}, env: {env}, {keys}}}}}}}\n"
            )
        };
        let text = format!("tenants:\n{}{}", tenant("a"), tenant("b"));
        std::fs::write(&manifest, text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockgate"));
        command
            .args(["serve", "--listen", "127.0.0.1:0", "--apply"])
            .arg(manifest)
            .args(["--set", &format!("data_dir={}", dir.display())])
            .args(["--set", "ops.listen="])
            .args(sets.iter().flat_map(|set| ["--set", set]));
        let mut gateway = Self::spawn(command, marker, |line| {
            let line: Value = serde_json::from_str(line).ok()?;
            let http = line["http"].as_str()?;
            Some(format!("http://{http}/t/a/x/mcp"))
        })
        .await;
        gateway.program = Some(program);
        gateway
    }

    /// Starts the binary with `args`, then `-- command`; its first line has to be the URL. A
    /// `wrapper` executes the words behind its own.
    pub(crate) async fn through(wrapper: &[&str], args: &[String], command: &[&str]) -> Self {
        let words = [wrapper, &[env!("CARGO_BIN_EXE_lockgate")]].concat();
        let mut own = Command::new(words[0]);
        own.args(&words[1..]);
        Self::run(own, args, command).await
    }

    /// Starts `program` with `args`, then `-- command`; its first line has to be the URL.
    pub(crate) async fn run(mut program: Command, args: &[String], command: &[&str]) -> Self {
        let marker = marker();
        program
            .args(args)
            .args(["--env", &marker, "--"])
            .args(command);
        Self::spawn(program, marker, |line| Some(line.to_owned())).await
    }

    /// Starts `command`; `url` finds the URL in the first line that has it.
    async fn spawn(
        mut command: Command,
        marker: String,
        url: impl Fn(&str) -> Option<String>,
    ) -> Self {
        let stderr = tempfile::NamedTempFile::new().unwrap();
        let mut process = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr.reopen().unwrap())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(process.stdout.take().unwrap()).lines();
        let found = loop {
            let line = within("the first line", stdout.next_line()).await.unwrap();
            let line = line.unwrap_or_else(|| {
                panic!(
                    "no URL: {}",
                    std::fs::read_to_string(stderr.path()).unwrap()
                )
            });
            if let Some(url) = url(&line) {
                break url;
            }
        };
        Self {
            url: found,
            http: client(),
            program: None,
            process,
            _stdout: stdout,
            stderr,
            marker,
        }
    }

    /// The base of all paths.
    pub(crate) fn base(&self) -> &str {
        self.url.strip_suffix("/mcp").unwrap()
    }

    /// The stderr of the gateway so far.
    pub(crate) fn stderr(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.stderr.path()).unwrap()).into_owned()
    }

    /// Processes of the gateway's children: those with the marker in their environment.
    pub(crate) fn descendants(&self) -> Vec<u32> {
        marked(&self.marker)
    }

    /// Sends a signal to the gateway; after SIGSTOP it waits until the gateway has stopped.
    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        if let Some(id) = self.process.id()
            && let Some(pid) = rustix::process::Pid::from_raw(id.cast_signed())
        {
            let _ = rustix::process::kill_process(pid, signal);
            // Each thread stops when it runs next, and may take a request until then.
            while signal == rustix::process::Signal::STOP && has_running_thread(id) {
                std::thread::yield_now();
            }
        }
    }

    /// A client that has no session yet.
    pub(crate) fn stranger(&self) -> Session {
        Session::at(self.http.clone(), self.url.clone())
    }

    /// A session of the newest revision.
    pub(crate) async fn session(&self) -> Session {
        self.initialize(NEWEST).await
    }

    /// A session of `revision`.
    pub(crate) async fn initialize(&self, revision: &str) -> Session {
        let mut session = self.stranger();
        session.initialize(revision).await;
        session
    }

    /// A session of a client that declares these capabilities.
    pub(crate) async fn declaring(&self, capabilities: Value) -> Session {
        let mut session = self.stranger();
        let mut opening = opening(NEWEST);
        opening["params"]["capabilities"] = capabilities;
        session.begin_session(&opening).await;
        session
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.signal(rustix::process::Signal::TERM);
        let began = Instant::now();
        let mut is_gone = false;
        while !is_gone && began.elapsed() < DEADLINE {
            is_gone = !matches!(self.process.try_wait(), Ok(None));
            std::thread::sleep(Duration::from_millis(2));
        }
        // A guard may outlive the gateway by a moment.
        let mut left = self.descendants();
        while !left.is_empty() && began.elapsed() < DEADLINE {
            std::thread::sleep(Duration::from_millis(2));
            left = self.descendants();
        }
        if std::thread::panicking() {
            eprintln!("--- stderr of the gateway ---\n{}", self.stderr());
            return;
        }
        assert!(is_gone, "the gateway does not end: {}", self.stderr());
        assert!(
            left.is_empty(),
            "descendants live: {left:?} {}",
            self.stderr()
        );
    }
}

/// A marker that only the children of one gateway have in their environment.
fn marker() -> String {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let number = LAST.fetch_add(1, Ordering::Relaxed);
    format!("IT_MARKER={}-{number}", std::process::id())
}

/// The arguments of `lockgate run` before its command.
pub(crate) fn run_args(sets: &[&str], envs: &[&str]) -> Vec<String> {
    let mut args = vec!["run".to_owned(), "--listen".into(), "127.0.0.1:0".into()];
    let pairs = |flag: &str, values: &[&str]| {
        let pair = |value: &&str| [flag.to_owned(), (*value).to_owned()];
        values.iter().flat_map(pair).collect::<Vec<_>>()
    };
    args.extend(pairs("--set", sets));
    args.extend(pairs("--env", envs));
    args
}

/// Processes with `marker` in their environment.
pub(crate) fn marked(marker: &str) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_marked = |pid: &u32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment
            .split(|byte| *byte == 0)
            .any(|pair| pair == marker.as_bytes())
    };
    numbers.filter(is_marked).collect()
}

/// A client without retries, redirects or proxies.
///
/// It trusts no certificate: gateways of tests speak plain HTTP, and reading the system's
/// certificates costs a debug build 30 ms of processor time per client.
pub(crate) fn client() -> Client {
    client_with(HeaderMap::new())
}

/// A client that sends these header fields with each request.
pub(crate) fn client_with(headers: HeaderMap) -> Client {
    Client::builder()
        .default_headers(headers)
        .no_proxy()
        .tls_certs_only([])
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .resolve("a.localhost", LOCAL)
        .resolve("b.localhost", LOCAL)
        .resolve("c.localhost", LOCAL)
        .build()
        .unwrap()
}

/// Where hosts of tenants are found, at the port of each URL.
const LOCAL: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// A client of the gateway, which sends the headers of its session as far as they are set.
pub(crate) struct Session {
    /// The HTTP client.
    pub(crate) http: Client,
    /// The MCP endpoint.
    pub(crate) url: String,
    /// `Mcp-Session-Id`.
    pub(crate) id: Option<String>,
    /// `MCP-Protocol-Version`.
    pub(crate) revision: Option<String>,
    /// `Accept` of a POST.
    pub(crate) accept: &'static str,
    /// The answer to `initialize`.
    pub(crate) opened: Value,
    last: AtomicU64,
}

impl Session {
    /// A client of the MCP endpoint `url` that has no session yet.
    pub(crate) fn at(http: Client, url: String) -> Self {
        Self {
            http,
            url,
            id: None,
            revision: None,
            accept: BOTH,
            opened: Value::Null,
            last: AtomicU64::new(0),
        }
    }

    /// `initialize` and `notifications/initialized`.
    pub(crate) async fn initialize(&mut self, revision: &str) {
        self.begin_session(&opening(revision)).await;
    }

    /// This `initialize`, and `notifications/initialized`.
    pub(crate) async fn begin_session(&mut self, opening: &Value) {
        let revision = opening["params"]["protocolVersion"].as_str().unwrap();
        let response = self.post(opening).await;
        assert_eq!(response.status(), StatusCode::OK);
        let id = response.headers().get("mcp-session-id").cloned();
        self.opened = last(response).await;
        assert!(self.opened["result"].is_object(), "{}", self.opened);
        self.id = id.map(|id| id.to_str().unwrap().to_owned());
        self.revision = Some(revision.to_owned());
        let done = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        assert_eq!(self.post(&done).await.status(), StatusCode::ACCEPTED);
    }

    /// Another client of the same session.
    pub(crate) fn again(&self) -> Self {
        Self {
            http: client(),
            url: self.url.clone(),
            id: self.id.clone(),
            revision: self.revision.clone(),
            accept: self.accept,
            opened: self.opened.clone(),
            last: AtomicU64::new(1_000_000),
        }
    }

    /// A request with the session's headers.
    pub(crate) fn request(&self, method: Method) -> RequestBuilder {
        let mut request = self.http.request(method, &self.url);
        if let Some(id) = &self.id {
            request = request.header("Mcp-Session-Id", id);
        }
        if let Some(revision) = &self.revision {
            request = request.header("MCP-Protocol-Version", revision);
        }
        request
    }

    /// Posts a message.
    pub(crate) async fn post(&self, message: &Value) -> Response {
        self.post_text(message.to_string()).await
    }

    /// Posts raw bytes.
    pub(crate) async fn post_text(&self, body: impl Into<reqwest::Body>) -> Response {
        let request = self.request(Method::POST).body(body);
        let request = request
            .header("Content-Type", "application/json")
            .header("Accept", self.accept);
        within("a response", request.send()).await.unwrap()
    }

    /// The next id of a request.
    pub(crate) fn next_id(&self) -> u64 {
        self.last.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Calls a tool and returns the response.
    pub(crate) async fn begin(&self, tool: &str, args: Value) -> Response {
        self.post(&tool_call(self.next_id().into(), tool, args))
            .await
    }

    /// Calls a tool with a progress token, expecting a stream.
    pub(crate) async fn stream(&self, tool: &str, args: Value, token: Value) -> Events {
        let mut message = tool_call(self.next_id().into(), tool, args);
        message["params"]["_meta"] = json!({"progressToken": token});
        Events::of(self.post(&message).await)
    }

    /// Calls a tool; its answer, JSON or the last message of a stream.
    pub(crate) async fn call(&self, tool: &str, args: Value) -> Value {
        last(self.begin(tool, args).await).await
    }

    /// Calls a tool; the text of its result.
    pub(crate) async fn text(&self, tool: &str, args: Value) -> String {
        text_of(&self.call(tool, args).await)
    }

    /// A request other than a call; its answer.
    pub(crate) async fn ask(&self, method: &str, params: Value) -> Value {
        let id = self.next_id();
        let message = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        last(self.post(&message).await).await
    }

    /// Sends a notification, which has to be accepted.
    pub(crate) async fn notify(&self, method: &str, params: Value) {
        let message = json!({"jsonrpc": "2.0", "method": method, "params": params});
        assert_eq!(self.post(&message).await.status(), StatusCode::ACCEPTED);
    }

    /// GET, with `Last-Event-ID` if there is one.
    pub(crate) async fn get(&self, last_event_id: Option<&str>) -> Response {
        let mut request = self
            .request(Method::GET)
            .header("Accept", "text/event-stream");
        if let Some(id) = last_event_id {
            request = request.header("Last-Event-ID", id);
        }
        within("a response", request.send()).await.unwrap()
    }

    /// Opens the listener.
    pub(crate) async fn listen(&self) -> Events {
        Events::of(self.get(None).await)
    }

    /// Resumes the stream behind `id`.
    pub(crate) async fn resume(&self, id: &str) -> Events {
        Events::of(self.get(Some(id)).await)
    }

    /// Ends the session with DELETE.
    pub(crate) async fn delete(&self) -> Response {
        let request = self.request(Method::DELETE);
        within("a response", request.send()).await.unwrap()
    }
}

/// A connection of HTTP+SSE (2024-11-05).
pub(crate) struct Legacy {
    /// The received events.
    pub(crate) events: Events,
    /// The id of the endpoint event.
    pub(crate) first: String,
    /// The path of the endpoint.
    pub(crate) endpoint: String,
    base: String,
    http: Client,
}

impl Legacy {
    /// Connects, or reconnects.
    pub(crate) async fn connect(gateway: &Gateway, last_event_id: Option<&str>) -> Self {
        Self::open(&gateway.http, gateway.base(), "", last_event_id).await
    }

    /// Connects to the server whose paths begin with `path`.
    pub(crate) async fn at(base: &str, path: &str) -> Self {
        Self::open(&client(), base, path, None).await
    }

    async fn open(http: &Client, base: &str, path: &str, last_event_id: Option<&str>) -> Self {
        let url = format!("{base}{path}/sse");
        let mut request = http.get(url).header("Accept", "text/event-stream");
        if let Some(id) = last_event_id {
            request = request.header("Last-Event-ID", id);
        }
        let mut events = Events::of(within("a response", request.send()).await.unwrap());
        let first = events.next().await.unwrap();
        assert_eq!(first.event.as_deref(), Some("endpoint"));
        Self {
            events,
            first: first.id.unwrap_or_default(),
            endpoint: first.data.unwrap(),
            base: base.to_owned(),
            http: http.clone(),
        }
    }

    /// Posts a message.
    pub(crate) async fn post(&self, message: &Value) -> Response {
        let request = self.http.post(format!("{}{}", self.base, self.endpoint));
        let request = request
            .header("Content-Type", "application/json")
            .body(message.to_string());
        within("a response", request.send()).await.unwrap()
    }

    /// `initialize` and `notifications/initialized`.
    pub(crate) async fn initialize(&mut self) -> Value {
        let opening = opening("2024-11-05");
        assert_eq!(self.post(&opening).await.status(), StatusCode::ACCEPTED);
        let (_, opened) = self.events.message().await.unwrap();
        let done = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        assert_eq!(self.post(&done).await.status(), StatusCode::ACCEPTED);
        opened
    }
}

/// An `initialize` of `revision`.
pub(crate) fn opening(revision: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": revision, "clientInfo": {"name": "it", "version": "1"},
        "capabilities": {"elicitation": {}, "sampling": {}, "roots": {"listChanged": true}}}})
}

/// A `tools/call`.
pub(crate) fn tool_call(id: Value, tool: &str, args: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call",
        "params": {"name": tool, "arguments": args}})
}

/// The text of a tool's result.
pub(crate) fn text_of(message: &Value) -> String {
    let text = message["result"]["content"][0]["text"].as_str();
    text.unwrap_or_else(|| panic!("no text: {message}"))
        .to_owned()
}

/// A response that must be JSON.
pub(crate) async fn json_of(response: Response) -> Value {
    serde_json::from_str(&body(response).await).unwrap()
}

/// The whole body.
pub(crate) async fn body(response: Response) -> String {
    within("a body", response.text()).await.unwrap()
}

/// The answer in a response: its JSON, or the last message of its stream.
pub(crate) async fn last(response: Response) -> Value {
    if !is_stream(&response) {
        return json_of(response).await;
    }
    let messages = Events::of(response).messages().await;
    messages.last().expect("a message").1.clone()
}

/// True if a response is SSE.
pub(crate) fn is_stream(response: &Response) -> bool {
    response
        .headers()
        .get("content-type")
        .is_some_and(|value| value == "text/event-stream")
}

/// One raw block of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) id: Option<String>,
    pub(crate) event: Option<String>,
    pub(crate) data: Option<String>,
    pub(crate) retry: Option<String>,
    pub(crate) comment: Option<String>,
}

impl Event {
    pub(crate) fn parse(block: &str) -> Self {
        let mut event = Self::default();
        for line in block.split('\n') {
            let (name, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value).to_owned();
            let field = match name {
                "id" => &mut event.id,
                "event" => &mut event.event,
                "data" => &mut event.data,
                "retry" => &mut event.retry,
                "" => &mut event.comment,
                _ => panic!("no such field: {line}"),
            };
            assert!(field.is_none(), "a field twice in {block:?}");
            *field = Some(value);
        }
        event
    }

    /// True if the event carries a message.
    pub(crate) fn is_message(&self) -> bool {
        self.data.as_ref().is_some_and(|data| !data.is_empty())
    }
}

/// The events of a response, one at a time.
pub(crate) struct Events {
    /// The headers of the response.
    pub(crate) headers: HeaderMap,
    /// The error that broke the connection.
    pub(crate) error: Option<String>,
    response: Response,
    buffer: Vec<u8>,
}

impl Events {
    /// Reads a response that must be SSE.
    pub(crate) fn of(response: Response) -> Self {
        assert_eq!(response.status(), StatusCode::OK);
        let headers = response.headers().clone();
        assert!(is_stream(&response), "{headers:?}");
        Self {
            headers,
            error: None,
            response,
            buffer: Vec::new(),
        }
    }

    /// The next block; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Event> {
        within("an event", self.take()).await
    }

    async fn take(&mut self) -> Option<Event> {
        loop {
            // A comment is a line. An empty one behind it ends no event, for which some clients wait.
            let is_comment = self.buffer.starts_with(b":");
            let end = self.buffer.iter().position(|byte| *byte == b'\n');
            if let Some(end) = end.filter(|_| is_comment) {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Some(Event::parse(std::str::from_utf8(&line[..end]).unwrap()));
            }
            assert!(!self.buffer.starts_with(b"\n"), "it ends no event");
            if let Some(end) = self.buffer.windows(2).position(|pair| pair == b"\n\n") {
                let block: Vec<u8> = self.buffer.drain(..end + 2).collect();
                return Some(Event::parse(std::str::from_utf8(&block[..end]).unwrap()));
            }
            // A cut by the gateway counts as the end.
            let chunk = self.response.chunk().await;
            if let Err(error) = &chunk {
                self.error = Some(format!("{error:?}"));
            }
            let chunk = chunk.ok().flatten()?;
            self.buffer.extend_from_slice(&chunk);
        }
    }

    /// The next message with its id; `None` at the end.
    pub(crate) async fn message(&mut self) -> Option<(String, Value)> {
        // One deadline for all: comments that keep the connection alive are no progress.
        within("a message", async {
            loop {
                let event = self.take().await?;
                if event.is_message() {
                    // 2024-11-05 transports, "HTTP with SSE": "Server messages are sent as SSE `message`
                    // events".
                    assert_eq!(event.event.as_deref(), Some("message"));
                    let data = serde_json::from_str(event.data.as_ref()?).unwrap();
                    return Some((event.id.unwrap_or_default(), data));
                }
            }
        })
        .await
    }

    /// All messages up to the end.
    pub(crate) async fn messages(&mut self) -> Vec<(String, Value)> {
        let mut all = Vec::new();
        while let Some(message) = self.message().await {
            all.push(message);
        }
        all
    }

    /// All blocks up to the end.
    pub(crate) async fn rest(&mut self) -> Vec<Event> {
        let mut all = Vec::new();
        while let Some(event) = self.next().await {
            all.push(event);
        }
        all
    }
}

/// True if a thread of a process has not stopped yet.
fn has_running_thread(process: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    threads.flatten().any(|thread| {
        let status = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        let state = status
            .rsplit(") ")
            .next()
            .and_then(|rest| rest.chars().next());
        state.is_some_and(|state| !matches!(state, 'T' | 't' | 'X' | 'Z'))
    })
}

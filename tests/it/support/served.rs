//! `lockgate serve` with a manifest of several servers, and its operations listener.

use std::{os::fd::AsFd, path::PathBuf, process::Stdio};

use reqwest::StatusCode;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    time::Instant,
};

use crate::support::{
    harness::{DEADLINE, NEWEST, Session, client, marked, within},
    postgres::Postgres,
};

/// A gateway that serves a manifest.
pub(crate) struct Served {
    http: String,
    ops: String,
    process: Child,
    /// Log lines from before it listened.
    early: Vec<Value>,
    /// Its stdout, which stays open: the log.
    stdout: Lines<BufReader<ChildStdout>>,
    dir: tempfile::TempDir,
    marker: (String, String),
    /// Outlives the process.
    _database: Option<Postgres>,
}

/// With `IT_DATABASE=postgres`, a PostgreSQL for a gateway whose test names no database: tests that
/// pass on SQLite have to pass there, too.
#[expect(
    clippy::disallowed_methods,
    reason = "a test has no configuration to read it from"
)]
fn database(env: &[(&str, &str)], config: &Value, settings: &mut Vec<String>) -> Option<Postgres> {
    let is_named = config["sql"]["url"].is_string()
        || env
            .iter()
            .any(|(name, _)| name.ends_with("_URL") || name.starts_with("FAKETIME"));
    let is_wanted = std::env::var("IT_DATABASE").is_ok_and(|kind| kind == "postgres");
    let made = (is_wanted && !is_named).then(Postgres::start);
    settings.extend(made.iter().map(|made| format!("sql.url={}", made.url())));
    made
}

impl Served {
    /// Serves `tenants` with the settings of `config`.
    pub(crate) async fn start(config: Value, tenants: Value) -> Self {
        Self::with(&[], config, tenants).await
    }

    /// [`Served::start`] with more environment variables. Without tenants: the stored ones.
    pub(crate) async fn with(env: &[(&str, &str)], config: Value, tenants: Value) -> Self {
        let tenants = (!tenants.is_null()).then_some(tenants);
        Self::run(env, &config, tenants).await
    }

    /// Serves the objects that another gateway declared in the shared database.
    pub(crate) async fn joining(config: &Value) -> Self {
        Self::run(&[], config, None).await
    }

    async fn run(env: &[(&str, &str)], config: &Value, tenants: Option<Value>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let value = dir.path().file_name().unwrap().to_str().unwrap().to_owned();
        let marker = ("IT_MARKER".to_owned(), value);
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockgate"));
        command.arg("serve");
        if let Some(tenants) = tenants {
            command.arg("--apply").arg(written(&dir, tenants, &marker));
        }
        let mut settings = vec![
            "http.listen=127.0.0.1:0".to_owned(),
            "ops.listen=127.0.0.1:0".to_owned(),
            format!("data_dir={}", dir.path().join("data").display()),
            "telemetry.log=warn,lockgate::cli=info".to_owned(),
            // Children see the same process numbers as the tests.
            "sandbox.separation=none".to_owned(),
            "sandbox.shared_uid=true".to_owned(),
            // The delay that a client that does not read may cause.
            "drain.timeout=2s".to_owned(),
            // Nothing outside is asked.
            "outbound.probe=[]".to_owned(),
        ];
        settings.extend(settings_of(config));
        let database = database(env, config, &mut settings);
        let sets = settings.iter().flat_map(|set| ["--set", set]);
        let log = std::fs::File::create(dir.path().join("stderr")).unwrap();
        let mut process = command
            .args(sets)
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut early = Vec::new();
        let bound = within("the listening line", async {
            while let Some(line) = stdout.next_line().await.unwrap() {
                let line: Value = serde_json::from_str(&line).unwrap();
                if line["event"] == "listening" {
                    return line;
                }
                early.push(line);
            }
            let said = std::fs::read_to_string(dir.path().join("stderr")).unwrap();
            panic!("it does not listen: {said}")
        })
        .await;
        let url = |which: &str| format!("http://{}", bound[which].as_str().unwrap());
        Self {
            http: url("http"),
            ops: url("ops"),
            process,
            early,
            stdout,
            dir,
            marker,
            _database: database,
        }
    }

    /// The beginning of its URLs.
    pub(crate) fn origin(&self) -> &str {
        &self.http
    }

    /// The operator's key.
    pub(crate) fn administrator(&self) -> String {
        let key = std::fs::read_to_string(self.dir.path().join("data/admin.key"));
        key.unwrap().trim().to_owned()
    }

    /// A client of a server that has no session yet.
    pub(crate) fn stranger(&self, tenant: &str, server: &str) -> Session {
        Session::at(client(), format!("{}/t/{tenant}/{server}/mcp", self.http))
    }

    /// The process id.
    pub(crate) fn pid(&self) -> u32 {
        self.process.id().unwrap()
    }

    /// A session of the newest revision.
    pub(crate) async fn session(&self, tenant: &str, server: &str) -> Session {
        let mut session = self.stranger(tenant, server);
        session.initialize(NEWEST).await;
        session
    }

    /// `HOST:PORT` of the operations listener.
    pub(crate) fn ops_address(&self) -> String {
        self.ops.trim_start_matches("http://").to_owned()
    }

    /// An answer of the operations listener.
    pub(crate) async fn ops(&self, path: &str) -> String {
        self.ops_status(path).await.1
    }

    /// The status and the text of an answer of the operations listener.
    pub(crate) async fn ops_status(&self, path: &str) -> (StatusCode, String) {
        let asked = client().get(format!("{}{path}", self.ops)).send();
        let answer = within("operations", asked).await.unwrap();
        (answer.status(), answer.text().await.unwrap())
    }

    /// Every child with its state.
    pub(crate) async fn children(&self) -> Vec<Value> {
        serde_json::from_str(&self.ops("/children").await).unwrap()
    }

    /// The processes of all its children.
    pub(crate) fn descendants(&self) -> Vec<u32> {
        marked(&format!("{}={}", self.marker.0, self.marker.1))
    }

    /// Ends the gateway, and waits for its end.
    pub(crate) async fn stop(&mut self) {
        self.signal();
        within("its end", self.process.wait()).await.unwrap();
    }

    /// Waits until its log has a line with these words.
    pub(crate) async fn says(&mut self, words: &str) -> Value {
        let said = within(words, async {
            loop {
                let line = self.stdout.next_line().await.unwrap().expect("a line");
                let line: Value = serde_json::from_str(&line).unwrap();
                self.early.push(line.clone());
                if line.to_string().contains(words) {
                    return line;
                }
            }
        });
        said.await
    }

    /// Ends the gateway, and returns its log.
    pub(crate) async fn end(&mut self) -> Vec<Value> {
        self.signal();
        let mut logs = std::mem::take(&mut self.early);
        while let Some(line) = within("a line", self.stdout.next_line()).await.unwrap() {
            logs.push(serde_json::from_str(&line).unwrap());
        }
        within("its end", self.process.wait()).await.unwrap();
        logs
    }

    fn signal(&self) {
        self.send(rustix::process::Signal::TERM);
    }

    /// Sends a signal to the gateway's own process.
    pub(crate) fn send(&self, signal: rustix::process::Signal) {
        let pid = self
            .process
            .id()
            .and_then(|pid| rustix::process::Pid::from_raw(pid.cast_signed()));
        if let Some(pid) = pid {
            let _ = rustix::process::kill_process(pid, signal);
        }
    }

    /// The log lines that the test has not read. The pipe does not block.
    fn unread(&mut self) -> String {
        let reader = self.stdout.get_mut();
        let mut unread = reader.buffer().to_vec();
        let mut chunk = [0; 4096];
        while let Ok(count @ 1..) = rustix::io::read(reader.get_ref().as_fd(), &mut chunk) {
            unread.extend_from_slice(&chunk[..count]);
        }
        String::from_utf8_lossy(&unread).into_owned()
    }

    /// Its data directory.
    pub(crate) fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }
}

/// Writes a manifest whose children have `marker` in their environment.
fn written(dir: &tempfile::TempDir, mut tenants: Value, marker: &(String, String)) -> PathBuf {
    for tenant in tenants.as_object_mut().unwrap().values_mut() {
        for server in tenant["servers"].as_object_mut().unwrap().values_mut() {
            server["env"][&marker.0] = json!(marker.1);
        }
    }
    let manifest = dir.path().join("manifest.json");
    let text = json!({"version": 1, "tenants": tenants}).to_string();
    std::fs::write(&manifest, text).unwrap();
    manifest
}

/// `KEY=VALUE` for each key of `config`.
fn settings_of(config: &Value) -> Vec<String> {
    let word = |value: &Value| value.as_str().map_or(value.to_string(), str::to_owned);
    let mut settings = Vec::new();
    for (part, keys) in config.as_object().unwrap() {
        match keys.as_object() {
            Some(keys) => {
                let inner = keys.iter();
                settings.extend(inner.map(|(key, value)| format!("{part}.{key}={}", word(value))));
            }
            None => settings.push(format!("{part}={}", word(keys))),
        }
    }
    settings
}

impl Drop for Served {
    fn drop(&mut self) {
        self.signal();
        let began = Instant::now();
        let mut is_gone = false;
        while !is_gone && began.elapsed() < DEADLINE {
            is_gone = !matches!(self.process.try_wait(), Ok(None));
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        let mut left = self.descendants();
        while !left.is_empty() && began.elapsed() < DEADLINE {
            std::thread::sleep(std::time::Duration::from_millis(2));
            left = self.descendants();
        }
        if std::thread::panicking() {
            let said = std::fs::read_to_string(self.dir.path().join("stderr"));
            eprintln!(
                "--- stderr of the gateway ---\n{}\n--- its log ---\n{}",
                said.unwrap_or_default(),
                self.unread()
            );
            return;
        }
        assert!(is_gone, "the gateway does not end");
        assert!(left.is_empty(), "descendants live: {left:?}");
    }
}

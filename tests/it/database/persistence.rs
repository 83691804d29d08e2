//! `lockgate serve` with SQLite and with PostgreSQL: restarts, outages, backups and keys.

use std::{
    path::{Path, PathBuf},
    process::{Output, Stdio},
};

use reqwest::Method;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{Child, Command},
    sync::watch,
    task::JoinHandle,
    time::Instant,
};

use crate::{
    auth::{api_keys::key, external_tokens::bearer},
    http::administration::Admin,
    support::{
        harness::{NEWEST, Session, child, client, json_of, opening, until, within},
        postgres::Postgres,
    },
};

/// A data directory and an optional PostgreSQL, which outlive the gateways that use them.
pub(crate) struct Ground {
    dir: tempfile::TempDir,
    postgres: Option<Postgres>,
}

impl Ground {
    pub(crate) fn sqlite() -> Self {
        let (dir, postgres) = (tempfile::tempdir().unwrap(), None);
        Self { dir, postgres }
    }

    pub(crate) fn postgres() -> Self {
        Self {
            postgres: Some(Postgres::start()),
            ..Self::sqlite()
        }
    }

    /// The PostgreSQL; panics without one.
    pub(crate) fn database(&mut self) -> &mut Postgres {
        self.postgres.as_mut().unwrap()
    }

    /// The PostgreSQL, if there is one.
    pub(crate) fn try_database(&mut self) -> Option<&mut Postgres> {
        self.postgres.as_mut()
    }

    /// A `psql` that ran `statements` on the PostgreSQL. Its end rolls back an open transaction.
    async fn psql(&self, statements: &str) -> Child {
        let postgres = self.postgres.as_ref().unwrap();
        let mut psql = Command::from(postgres.command("psql"));
        psql.args(["-qAt", "-v", "ON_ERROR_STOP=1", "-d", &postgres.url()]);
        psql.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut psql = psql.kill_on_drop(true).spawn().unwrap();
        let asked = format!("{statements};\n\\echo done\n");
        let stdin = psql.stdin.as_mut().unwrap();
        stdin.write_all(asked.as_bytes()).await.unwrap();
        let mut said = BufReader::new(psql.stdout.as_mut().unwrap()).lines();
        let said = within("psql", said.next_line()).await.unwrap();
        assert_eq!(said.as_deref(), Some("done"), "{statements}");
        psql
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// Writes a manifest as editors do: a new file replaces the old one.
    pub(crate) fn manifest(&self, tenants: &Value) -> PathBuf {
        let file = self.dir.path().join("manifest.json");
        let new = self.dir.path().join("manifest.new");
        let text = json!({"version": 1, "tenants": tenants}).to_string();
        std::fs::write(&new, text).unwrap();
        std::fs::rename(&new, &file).unwrap();
        file
    }

    fn settings(&self) -> Vec<String> {
        let url = self.postgres.as_ref().map(Postgres::url);
        let data = format!("data_dir={}", self.data().display());
        let mut all = vec![data];
        all.extend(url.map(|url| format!("sql.url={url}")));
        all.extend(["sandbox.separation=none", "sandbox.shared_uid=true"].map(str::to_owned));
        all
    }

    /// Starts `lockgate serve`, and waits until it listens.
    pub(crate) async fn serve(&self, args: &[&str]) -> Replica {
        let started = self.try_serve(args).await;
        started.unwrap_or_else(|said| panic!("it does not listen: {said}"))
    }

    /// [`Ground::serve`], or the exit code and the stderr of a gateway that ends.
    async fn try_serve(&self, args: &[&str]) -> Result<Replica, String> {
        self.try_serve_with(&[], args).await
    }

    /// Starts `lockgate serve` with additional environment variables, and waits until it listens.
    pub(crate) async fn serve_with(&self, env: &[(&str, &str)], args: &[&str]) -> Replica {
        let started = self.try_serve_with(env, args).await;
        started.unwrap_or_else(|said| panic!("it does not listen: {said}"))
    }

    /// [`Ground::serve_with`], or the exit code and the stderr of a gateway that ends.
    pub(crate) async fn try_serve_with(
        &self,
        env: &[(&str, &str)],
        args: &[&str],
    ) -> Result<Replica, String> {
        let listeners = [
            "http.listen=127.0.0.1:0",
            "ops.listen=127.0.0.1:0",
            "drain.timeout=2s",
        ];
        let mut settings = self.settings();
        settings.extend(self.data_beside());
        settings.extend(listeners.map(str::to_owned));
        let mut command = Self::command();
        command.arg("serve").envs(env.iter().copied());
        command.args(settings.iter().flat_map(|set| ["--set", set]));
        command.args(args);
        Replica::start(command).await
    }

    /// A data directory for a replica beside one that runs, with the same master key.
    fn data_beside(&self) -> Option<String> {
        let lock = std::fs::File::open(self.data().join("serve.lock")).ok()?;
        if self.postgres.is_none() || lock.try_lock().is_ok() {
            return None;
        }
        let beside = self.dir.path().join(uuid::Uuid::new_v4().to_string());
        std::fs::create_dir(&beside).unwrap();
        // None if the key is given by the environment.
        let _ = std::fs::copy(self.data().join("master.key"), beside.join("master.key"));
        Some(format!("data_dir={}", beside.display()))
    }

    /// Runs another command on the same store.
    async fn run(&self, args: &[&str]) -> Output {
        let settings = self.settings();
        let mut command = Self::command();
        command.args(args);
        command.args(settings.iter().flat_map(|set| ["--set", set]));
        within("a command", command.output()).await.unwrap()
    }

    /// The stdout of a command that must succeed.
    async fn done(&self, args: &[&str]) -> String {
        let output = self.run(args).await;
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The stderr of a command that must fail with a mistake.
    async fn refused(&self, args: &[&str]) -> String {
        let output = self.run(args).await;
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    fn command() -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockgate"));
        command
            .env_remove("DATABASE_URL")
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }
}

/// A gateway and its log.
pub(crate) struct Replica {
    pub(crate) http: String,
    pub(crate) ops: String,
    /// The listener for administration, if it is separate.
    pub(crate) admin: Option<String>,
    process: Child,
    lines: watch::Receiver<Vec<Value>>,
    reader: JoinHandle<()>,
}

impl Replica {
    async fn start(mut command: Command) -> Result<Self, String> {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let mut stdout = BufReader::new(process.stdout.take().unwrap()).lines();
        let (sender, lines) = watch::channel(Vec::new());
        let mut bound = None;
        while bound.is_none() {
            let Some(line) = within("a line", stdout.next_line()).await.unwrap() else {
                let output = within("its end", process.wait_with_output()).await.unwrap();
                let said = String::from_utf8(output.stderr).unwrap();
                return Err(format!("{:?} {said}", output.status.code()));
            };
            let line: Value = serde_json::from_str(&line).unwrap();
            bound = (line["event"] == "listening").then(|| line.clone());
            sender.send_modify(|lines| lines.push(line));
        }
        let reader = tokio::spawn(async move {
            while let Ok(Some(line)) = stdout.next_line().await {
                let line = serde_json::from_str(&line).unwrap();
                sender.send_modify(|lines| lines.push(line));
            }
        });
        let url = |which: &str| {
            format!(
                "http://{}",
                bound.as_ref().unwrap()[which].as_str().unwrap()
            )
        };
        Ok(Self {
            http: url("http"),
            ops: url("ops"),
            admin: bound.as_ref().unwrap()["admin"]
                .is_string()
                .then(|| url("admin")),
            process,
            lines,
            reader,
        })
    }

    pub(crate) fn stranger(&self, tenant: &str, server: &str) -> Session {
        Session::at(client(), format!("{}/t/{tenant}/{server}/mcp", self.http))
    }

    pub(crate) async fn session(&self, tenant: &str, server: &str) -> Session {
        let mut session = self.stranger(tenant, server);
        session.initialize(NEWEST).await;
        session
    }

    /// The status of a request for a server. The request starts no child.
    async fn status(&self, tenant: &str, server: &str) -> u16 {
        let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
        let answer = self.stranger(tenant, server).post(&message).await;
        answer.status().as_u16()
    }

    /// True if there is such a server: a request without a session gets 400 there.
    pub(crate) async fn serves(&self, tenant: &str, server: &str) -> bool {
        self.status(tenant, server).await == 400
    }

    pub(crate) async fn probe(&self, base: &str, path: &str) -> (u16, Value) {
        let asked = client().get(format!("{base}{path}")).send();
        let answer = within("a probe", asked).await.unwrap();
        (answer.status().as_u16(), json_of(answer).await)
    }

    async fn ready(&self) -> (u16, Value) {
        self.probe(&self.ops, "/readyz").await
    }

    /// The messages of the lines with this event.
    pub(crate) fn logged(&self, event: &str) -> Vec<String> {
        let lines = self.lines.borrow();
        let of = lines.iter().filter(|line| line["event"] == event);
        of.map(|line| line["message"].as_str().unwrap().to_owned())
            .collect()
    }

    /// True if a line of the log has this message.
    pub(crate) fn said(&self, message: &str) -> bool {
        self.lines
            .borrow()
            .iter()
            .any(|line| line["message"] == message)
    }

    /// Its log so far.
    pub(crate) fn lines(&self) -> Vec<Value> {
        self.lines.borrow().clone()
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.process.id().unwrap()
    }

    /// Ends it with SIGTERM.
    pub(crate) async fn stop(mut self) {
        let pid = self
            .process
            .id()
            .and_then(|pid| rustix::process::Pid::from_raw(pid.cast_signed()));
        rustix::process::kill_process(pid.unwrap(), rustix::process::Signal::TERM).unwrap();
        let status = within("its end", self.process.wait()).await.unwrap();
        assert!(status.success(), "{status:?}");
        within("its last line", self.reader).await.unwrap();
    }

    /// Ends it with SIGKILL, and returns its log.
    pub(crate) async fn kill(mut self) -> Vec<Value> {
        self.process.kill().await.unwrap();
        within("its last line", self.reader).await.unwrap();
        self.lines.borrow().clone()
    }
}

/// A server entry: the test child in an open sandbox, with `MARK` in its environment.
pub(crate) fn server(mark: &str) -> Value {
    json!({"command": child(), "env": {"MARK": mark}, "sandbox": {"profile": "open", "required": false}})
}

fn tenant(servers: &Value) -> Value {
    json!({"auth": {"mode": "none"}, "servers": servers})
}

/// The `MARK` of a session's child.
pub(crate) async fn mark(session: &Session) -> String {
    let env: Value = serde_json::from_str(&session.text("env", json!({})).await).unwrap();
    env["MARK"].as_str().unwrap().to_owned()
}

/// Declares each test twice: on SQLite and on PostgreSQL.
macro_rules! on_both {
    ($($story:ident)*) => {
        mod on_sqlite {
            $(#[tokio::test] async fn $story() {
                super::$story($crate::database::persistence::Ground::sqlite()).await;
            })*
        }
        mod on_postgres {
            $(#[tokio::test] async fn $story() {
                super::$story($crate::database::persistence::Ground::postgres()).await;
            })*
        }
    };
}

pub(crate) use on_both;

on_both! {
    serves_what_was_applied_before
    keeps_what_is_not_in_the_manifest_unless_told_to_prune
    a_changed_file_is_applied_and_a_bad_one_is_not
    what_an_administrator_has_stored_stops_no_start
    another_key_does_not_start
    the_key_is_rotated_while_it_serves
}

async fn serves_what_was_applied_before(ground: Ground) {
    let file = ground.manifest(&json!({"a": tenant(&json!({"x": server("one")}))}));
    let first = ground.serve(&["--apply", file.to_str().unwrap()]).await;
    assert_eq!(
        first.logged("manifest.applied"),
        ["+ tenant a", "+ server a/x"]
    );
    let session = first.session("a", "x").await;
    assert_eq!(mark(&session).await, "one");
    first.stop().await;
    let second = ground.serve(&["--apply", file.to_str().unwrap()]).await;
    assert!(
        second.logged("manifest.applied").is_empty(),
        "the same writes nothing"
    );
    second.stop().await;
    assert!(
        ground
            .done(&["migrate"])
            .await
            .ends_with("changes so far: 2\n")
    );
    std::fs::remove_file(file).unwrap();
    let third = ground.serve(&[]).await;
    assert_eq!(
        third.ready().await,
        (200, json!({"status": "ready", "degraded": []}))
    );
    let session = third.session("a", "x").await;
    assert_eq!(mark(&session).await, "one");
    third.stop().await;
}

async fn keeps_what_is_not_in_the_manifest_unless_told_to_prune(ground: Ground) {
    let servers = json!({"x": server("1"), "y": server("1")});
    let file = ground.manifest(&json!({"a": tenant(&servers), "b": tenant(&json!({}))}));
    let file = file.to_str().unwrap();
    ground.serve(&["--apply", file]).await.stop().await;
    ground.manifest(&json!({"a": tenant(&json!({"x": server("2")}))}));
    let keeping = ground.serve(&["--apply", file]).await;
    assert_eq!(keeping.logged("manifest.applied"), ["~ server a/x: env"]);
    assert!(keeping.serves("a", "y").await);
    keeping.stop().await;
    let pruning = ground.serve(&["--apply", file, "--prune"]).await;
    assert_eq!(
        pruning.logged("manifest.applied"),
        ["- tenant b", "- server a/y"]
    );
    assert!(pruning.serves("a", "x").await);
    assert_eq!(pruning.status("a", "y").await, 404);
    pruning.stop().await;
}

async fn a_changed_file_is_applied_and_a_bad_one_is_not(ground: Ground) {
    let file = ground.manifest(&json!({"a": tenant(&json!({"x": server("1")}))}));
    let replica = ground.serve(&["--apply", file.to_str().unwrap()]).await;
    // A new file replaces the old one.
    ground.manifest(&json!({"a": tenant(&json!({"x": server("1"), "y": server("1")}))}));
    until("the new server", || replica.serves("a", "y")).await;
    // Two mistakes in the text of a manifest, and then one in the resulting state.
    ground.manifest(&json!({"a": {"auth": {"mode": "none"}, "servers": {"z": {"comand": "x"}}}}));
    until("two mistakes", async || {
        replica.logged("manifest.refused").len() == 2
    })
    .await;
    let missing = json!({"z": {"command": "no-such-program-here"}, "y": server("2")});
    ground.manifest(&json!({"a": tenant(&missing)}));
    until("a mistake", async || {
        replica.logged("manifest.refused").len() == 3
    })
    .await;
    let refused = replica.logged("manifest.refused");
    let place = format!("{}:1: tenants.a.servers.z.command: ", file.display());
    assert!(
        refused[0].contains("unknown key; did you mean command?"),
        "{refused:?}"
    );
    assert!(refused[2].starts_with(&place), "{refused:?}");
    assert!(refused[2].contains("not found"), "{refused:?}");
    assert_eq!(replica.status("a", "z").await, 404);
    assert!(replica.serves("a", "x").await);
    // The same file is overwritten.
    let text =
        json!({"version": 1, "tenants": {"a": tenant(&json!({"z": server("1")}))}}).to_string();
    std::fs::write(&file, text).unwrap();
    until("the next server", || replica.serves("a", "z")).await;
    assert_eq!(replica.ready().await.0, 200);
    replica.stop().await;
}

/// An administrator of a tenant made the next start fail, for all tenants.
async fn what_an_administrator_has_stored_stops_no_start(ground: Ground) {
    let key = |digit: &str| {
        let hash = format!("sha256:{}", digit.repeat(64));
        json!({"hash": hash, "subject": "s", "servers": ["*"]})
    };
    let declared = |servers: &Value| {
        let a = json!({"auth": {"mode": "keys"}, "api_keys": {"ci": key("1")}});
        json!({"a": a, "b": tenant(servers)})
    };
    let file = ground.manifest(&declared(&json!({"x": server("1")})));
    let args = ["--apply", file.to_str().unwrap()];
    let first = ground.serve(&args).await;
    let admin = Admin::first(&ground, &first);
    for (name, digit, status) in [("ci", "2", 200), ("own", "1", 201)] {
        let path = format!("/tenants/a/api-keys/{name}");
        assert_eq!(admin.put(&path, key(digit)).await.0, status);
    }
    first.stop().await;
    ground.manifest(&declared(&json!({"x": server("1"), "y": server("1")})));
    let second = ground.serve(&args).await;
    assert!(second.serves("b", "y").await, "the other tenant changes");
    let refused = second.logged("manifest.refused");
    let mistake = "tenants.a.api_keys.own.hash: is the hash of ci too";
    assert!(
        refused.len() == 1 && refused[0].contains(mistake),
        "{refused:?}"
    );
    let degraded = (200, json!({"status": "degraded", "degraded": ["manifest"]}));
    until("the reason", async || second.ready().await == degraded).await;
    // The rest is applied as soon as it fits, without another start.
    let admin = Admin::first(&ground, &second);
    assert_eq!(admin.delete("/tenants/a/api-keys/own").await, 204);
    until("the rest", async || {
        second.ready().await.1["status"] == "ready"
    })
    .await;
    assert_eq!(
        second.logged("manifest.applied"),
        ["+ server b/y", "~ api_key a/ci: hash"]
    );
    assert_eq!(second.logged("manifest.refused").len(), 1);
    second.stop().await;
    // A mistake of the file itself is not what somebody has stored.
    let missing = json!({"x": {"command": "no-such-program-here"}});
    ground.manifest(&declared(&missing));
    let Err(said) = ground.try_serve(&args).await else {
        panic!("it serves")
    };
    assert!(
        said.starts_with("Some(2)") && said.contains("not found"),
        "{said}"
    );
}

async fn another_key_does_not_start(ground: Ground) {
    let file = ground.manifest(&json!({"a": tenant(&json!({"x": server("1")}))}));
    ground
        .serve(&["--apply", file.to_str().unwrap()])
        .await
        .stop()
        .await;
    let key = ground.data().join("master.key");
    assert_eq!(std::fs::metadata(&key).map(mode).unwrap(), 0o600);
    let other = "--set=master_key=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    let Err(said) = ground.try_serve(&[other]).await else {
        panic!("it serves")
    };
    assert!(
        said.starts_with("Some(2) configuration: master_key: "),
        "{said}"
    );
    assert!(!said.contains("AAAAAAA"), "{said}");
    std::fs::rename(&key, key.with_extension("away")).unwrap();
    let Err(said) = ground.try_serve(&[]).await else {
        panic!("it serves")
    };
    assert!(
        said.starts_with("Some(2)") && said.contains(": master_key: "),
        "{said}"
    );
    std::fs::rename(key.with_extension("away"), &key).unwrap();
    ground.serve(&[]).await.stop().await;
}

#[tokio::test]
async fn insecure_is_warned_of_at_every_start() {
    let ground = Ground::sqlite();
    for set in ["auth.insecure=true", "auth.insecure=false"] {
        let gateway = ground.serve(&["--set", set]).await;
        let warned =
            gateway.said("auth.insecure: tenants without authentication are open to everybody who reaches this gateway");
        assert_eq!(warned, set.ends_with("true"));
        gateway.stop().await;
    }
}

#[tokio::test]
async fn a_data_directory_that_others_use_is_refused_and_left_as_it_is() {
    let ground = Ground::sqlite();
    let before = std::fs::metadata("/usr").map(mode).unwrap();
    std::os::unix::fs::symlink("/usr", ground.data()).unwrap();
    let Err(said) = ground.try_serve(&[]).await else {
        panic!("it serves")
    };
    assert!(said.starts_with("Some(2) --set: data_dir: "), "{said}");
    assert!(said.contains("; name a directory below it"), "{said}");
    assert_eq!(std::fs::metadata("/usr").map(mode).unwrap(), before);
}

#[tokio::test]
async fn a_work_dir_of_others_is_refused_and_left_as_it_is() {
    let ground = Ground::sqlite();
    let before = std::fs::metadata("/usr").map(mode).unwrap();
    let Err(said) = ground.try_serve(&["--set", "work_dir=/usr"]).await else {
        panic!("it serves")
    };
    assert!(said.starts_with("Some(2) --set: work_dir: /usr "), "{said}");
    assert!(said.contains("; name a directory below it"), "{said}");
    assert_eq!(std::fs::metadata("/usr").map(mode).unwrap(), before);
}

fn mode(metadata: std::fs::Metadata) -> u32 {
    use std::os::unix::fs::PermissionsExt;
    metadata.permissions().mode() & 0o777
}

async fn the_key_is_rotated_while_it_serves(ground: Ground) {
    let file = ground.manifest(&json!({"a": tenant(&json!({"x": server("one")}))}));
    let replica = ground.serve(&["--apply", file.to_str().unwrap()]).await;
    let old = std::fs::read(ground.data().join("master.key")).unwrap();
    ground.done(&["key", "rotate"]).await;
    let new = std::fs::read(ground.data().join("master.key")).unwrap();
    assert_ne!(old, new);
    ground.manifest(&json!({"a": tenant(&json!({"x": server("one"), "y": server("two")}))}));
    until("the new server", || replica.serves("a", "y")).await;
    replica.stop().await;
    let again = ground.serve(&[]).await;
    for (name, wanted) in [("x", "one"), ("y", "two")] {
        let session = again.session("a", name).await;
        assert_eq!(mark(&session).await, wanted);
    }
    again.stop().await;
}

#[tokio::test]
async fn replicas_see_each_others_changes_within_a_second() {
    let ground = Ground::postgres();
    let file = ground.manifest(&json!({"a": tenant(&json!({"x": server("1")}))}));
    let one = ground.serve(&["--apply", file.to_str().unwrap()]).await;
    let other = ground.serve(&[]).await;
    until("the first server", || other.serves("a", "x")).await;
    for round in 0..3 {
        let name = format!("y{round}");
        ground.manifest(
            &json!({"a": tenant(&json!({"x": server("1"), name.as_str(): server("1")}))}),
        );
        until("the change", || one.serves("a", &name)).await;
        let began = Instant::now();
        until("the change elsewhere", || other.serves("a", &name)).await;
        assert!(began.elapsed().as_millis() < 1_000, "{:?}", began.elapsed());
    }
    one.stop().await;
    other.stop().await;
}

/// A start without the database: unready, then ready without a restart.
#[tokio::test]
async fn starts_without_its_database_and_recovers() {
    let mut ground = Ground {
        postgres: Some(Postgres::prepared()),
        ..Ground::sqlite()
    };
    let file = ground.manifest(&json!({"a": tenant(&json!({"x": server("1")}))}));
    let replica = ground.serve(&["--apply", file.to_str().unwrap()]).await;
    let unready = json!({"status": "unready", "degraded": ["sql"]});
    assert_eq!(replica.ready().await, (503, unready));
    let public = replica.probe(&replica.http, "/readyz").await;
    assert_eq!(public, (503, json!({"status": "unready"})));
    assert_eq!(replica.probe(&replica.http, "/livez").await.0, 200);
    // Not 404, on which a client would give up its session.
    let answer = replica.stranger("a", "x").post(&opening(NEWEST)).await;
    assert_eq!(answer.status(), 503);
    assert!(answer.headers().contains_key("retry-after"));
    ground.postgres.as_mut().unwrap().resume();
    until("its recovery", async || replica.ready().await.0 == 200).await;
    replica.session("a", "x").await;
    assert_eq!(replica.logged("store.back").len(), 1);
    replica.stop().await;
}

/// A manifest that is refused when its database comes was dropped, and the gateway was ready without it.
#[tokio::test]
async fn a_manifest_that_is_refused_after_an_outage_is_not_forgotten() {
    let mut ground = Ground {
        postgres: Some(Postgres::prepared()),
        ..Ground::sqlite()
    };
    let file = ground.manifest(&json!({"a": tenant(&json!({"x": server("1")}))}));
    let replica = ground
        .serve(&[
            "--apply",
            file.to_str().unwrap(),
            "--set=default.tenant=a",
            "--set=default.server=z",
        ])
        .await;
    ground.postgres.as_mut().unwrap().resume();
    let refused = async || !replica.logged("manifest.refused").is_empty();
    until("the mistake", refused).await;
    let said = "default.tenant and default.server name a/z";
    let is_said = |line: &String| line.contains(said);
    assert!(replica.logged("manifest.refused").iter().all(is_said));
    assert!(!replica.logged("store.away").iter().any(is_said));
    // Nothing is stored: not 404, on which clients would give up.
    for _ in 0..100 {
        assert_eq!(replica.ready().await.0, 503);
    }
    assert_eq!(replica.status("a", "x").await, 503);
    ground.manifest(&json!({"a": tenant(&json!({"x": server("1"), "z": server("1")}))}));
    until("its mend", async || replica.ready().await.0 == 200).await;
    assert!(replica.serves("a", "x").await);
    assert_eq!(replica.ready().await.1["status"], "ready");
    assert_eq!(replica.logged("manifest.refused").len(), 1);
    replica.stop().await;
}

/// A database that answers the first read, and blocks writes for a while.
#[tokio::test]
async fn the_first_operators_key_waits_for_a_database_that_is_slow() {
    let ground = Ground::postgres();
    ground.serve(&[]).await.stop().await;
    std::fs::remove_file(ground.data().join("admin.key")).unwrap();
    let removed = "DELETE FROM api_keys; BEGIN; LOCK TABLE api_keys IN EXCLUSIVE MODE";
    let mut holder = ground.psql(removed).await;
    let replica = ground.serve(&[]).await;
    assert_eq!(replica.ready().await.0, 200);
    let failed = async || replica.said("nobody may administrate yet");
    until("a failed attempt", failed).await;
    assert!(replica.logged("admin.key").is_empty());
    holder.kill().await.unwrap();
    until("the key", async || replica.logged("admin.key").len() == 1).await;
    let admin = Admin::first(&ground, &replica);
    until("its effect", async || admin.get("/tenants").await.0 == 200).await;
    replica.stop().await;
}

/// The statuses of the token endpoint, the metadata and the host of a tenant that is not known here, of metadata of what
/// is known to have none, and of a text that no API key has.
async fn around_unknown(replica: &Replica) -> [u16; 6] {
    let authority = replica.http.strip_prefix("http://").unwrap();
    let ask = async |method: Method, host: &str, path: &str, token: &str| {
        let asked = client().request(method, format!("{}{path}", replica.http));
        let asked = asked.header("Host", host).bearer_auth(token).send();
        within("an answer", asked).await.unwrap().status().as_u16()
    };
    let server = "/.well-known/oauth-authorization-server/t";
    let resource = "/.well-known/oauth-protected-resource/t/a/x/mcp";
    [
        ask(Method::POST, authority, "/t/unknown/oauth/token", "t").await,
        ask(Method::GET, authority, &format!("{server}/unknown"), "t").await,
        ask(Method::GET, "unknown.example", "/t/a/x/mcp", "t").await,
        ask(Method::GET, authority, &format!("{server}/a"), "t").await,
        ask(Method::GET, authority, resource, "t").await,
        ask(Method::GET, authority, "/t/k/x/mcp", "lgk_short").await,
    ]
}

/// During an outage of the database the last snapshot is served.
#[tokio::test]
async fn goes_on_while_its_database_is_away() {
    let mut ground = Ground::postgres();
    let keyed = json!({"auth": {"mode": "keys"}, "servers": {"x": server("one")}});
    let open = tenant(&json!({"x": server("one")}));
    let file = ground.manifest(&json!({"a": open, "k": keyed}));
    let replica = ground.serve(&["--apply", file.to_str().unwrap()]).await;
    let session = replica.session("a", "x").await;
    let (unknown, _) = key();
    let by_unknown = async || {
        let mcp = Session::at(bearer(&unknown), format!("{}/t/k/x/mcp", replica.http));
        let refused = mcp.post(&opening(NEWEST)).await.status().as_u16();
        let administrator = Admin::with(&replica, &unknown);
        (refused, administrator.get("/tenants").await.0)
    };
    assert_eq!(by_unknown().await, (401, 401));
    let known = [404, 404, 403, 404, 404, 401];
    assert_eq!(around_unknown(&replica).await, known);
    let admin = Admin::first(&ground, &replica);
    admin.tenant("d", server("one")).await;
    let of_tenant = admin.key("d", "own", &["admin"]).await;
    let of_tenant = Admin::with(&replica, &of_tenant);
    ground.postgres.as_mut().unwrap().pause();
    let degraded = (200, json!({"status": "degraded", "degraded": ["sql"]}));
    until("the loss", async || replica.ready().await == degraded).await;
    assert_eq!(mark(&session).await, "one");
    replica.session("a", "x").await;
    // Another replica may have declared it meanwhile, and clients give up at a 404.
    assert_eq!(replica.status("a", "unknown").await, 503);
    assert_eq!(replica.status("unknown", "x").await, 503);
    assert_eq!(admin.get("/tenants/unknown").await.0, 503);
    assert_eq!(of_tenant.get("/operator-keys").await.0, 403);
    assert_eq!(by_unknown().await, (503, 503));
    let away = [503, 503, 503, 404, 404, 401];
    assert_eq!(around_unknown(&replica).await, away);
    assert_eq!(replica.probe(&replica.http, "/livez").await.0, 200);
    let public = replica.probe(&replica.http, "/readyz").await;
    assert_eq!(public, (200, json!({"status": "degraded"})));
    // A manifest that is written during the outage is applied after it.
    ground.manifest(&json!({"a": tenant(&json!({"x": server("one"), "y": server("two")}))}));
    ground.postgres.as_mut().unwrap().resume();
    until("its return", async || replica.ready().await.0 == 200).await;
    until("the new server", || replica.serves("a", "y")).await;
    assert_eq!(by_unknown().await, (401, 401));
    until("ready", async || {
        replica.ready().await.1["status"] == "ready"
    })
    .await;
    assert_eq!(mark(&session).await, "one");
    replica.stop().await;
}

/// A change is durable as soon as the log reports it as applied.
#[tokio::test]
async fn a_killed_gateway_leaves_every_change_it_acknowledged() {
    let ground = Ground::sqlite();
    let mut acknowledged = 0;
    for round in 0..3 {
        let name = |number: i32| format!("s{round}-{number}");
        let file = ground.manifest(&json!({"a": tenant(&json!({name(0): server("1")}))}));
        let replica = ground.serve(&["--apply", file.to_str().unwrap()]).await;
        for number in 1..10 {
            ground.manifest(&json!({"a": tenant(&json!({name(number): server("1")}))}));
            // The kill meets the last write, which may or may not be acknowledged.
            if number < 9 {
                let line = format!("+ server a/{}", name(number));
                until("an acknowledgement", async || {
                    replica.logged("manifest.applied").contains(&line)
                })
                .await;
            }
        }
        let lines = replica.kill().await;
        let applied = lines
            .iter()
            .filter(|line| line["event"] == "manifest.applied");
        let servers =
            applied.filter_map(|line| line["message"].as_str()?.strip_prefix("+ server a/"));
        let servers: Vec<&str> = servers.collect();
        assert!(servers.len() >= 9, "{servers:?}");
        acknowledged += servers.len();
        let again = ground.serve(&[]).await;
        for server in servers {
            assert!(again.serves("a", server).await, "{server} is lost");
        }
        again.stop().await;
    }
    assert!(acknowledged >= 27);
    let copy = ground.dir.path().join("copy.db");
    ground.done(&["backup", copy.to_str().unwrap()]).await;
    std::fs::remove_file(ground.data().join("lockgate.db")).unwrap();
    ground.done(&["restore", copy.to_str().unwrap()]).await;
}

/// A wrong directory got an empty database, of which there were good copies from then on.
#[tokio::test]
async fn of_nothing_there_is_no_copy() {
    let ground = Ground::sqlite();
    let copy = ground.dir.path().join("copy.db");
    // Behind a gateway the directory is there.
    std::fs::create_dir(ground.data()).unwrap();
    let backup = ["backup", copy.to_str().unwrap()];
    for words in [&backup[..], &["key", "rotate"], &["migrate"]] {
        let refused = ground.refused(words).await;
        assert!(
            refused.contains("does not exist; name the data directory"),
            "{refused}"
        );
        assert!(!copy.exists() && !ground.data().join("lockgate.db").exists());
        assert!(!ground.data().join("master.key").exists());
    }
}

/// A file that is mounted alone, or is behind a link, changed without an event in its folder.
#[tokio::test]
async fn a_manifest_behind_a_link_is_applied_when_it_changes() {
    let ground = Ground::sqlite();
    let file = ground.manifest(&json!({"a": tenant(&json!({"x": server("1")}))}));
    let link = tempfile::tempdir().unwrap();
    let link = link.path().join("manifest.json");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    let replica = ground.serve(&["--apply", link.to_str().unwrap()]).await;
    assert!(replica.serves("a", "x").await);
    ground.manifest(&json!({"a": tenant(&json!({"x": server("1"), "y": server("1")}))}));
    until("the new server", || replica.serves("a", "y")).await;
    replica.stop().await;
}

#[tokio::test]
async fn a_copy_brings_back_what_was() {
    let ground = Ground::sqlite();
    let file = ground.manifest(&json!({"a": tenant(&json!({"x": server("one")}))}));
    let apply = ["--apply", file.to_str().unwrap()];
    let replica = ground.serve(&apply).await;
    let copy = ground.dir.path().join("copy.db");
    let copy = copy.to_str().unwrap();
    ground.done(&["backup", copy]).await;
    assert_eq!(std::fs::metadata(copy).map(mode).unwrap(), 0o600);
    let again = ground.refused(&["backup", copy]).await;
    assert!(again.contains("cannot be made: File exists"), "{again}");
    ground.manifest(&json!({"a": tenant(&json!({"x": server("two"), "y": server("1")}))}));
    until("the new server", || replica.serves("a", "y")).await;
    let running = ground.refused(&["restore", copy]).await;
    assert!(
        running.contains("is in use by a running gateway"),
        "{running}"
    );
    replica.stop().await;
    ground.done(&["restore", copy]).await;
    let restored = ground.serve(&[]).await;
    assert_eq!(restored.status("a", "y").await, 404);
    let session = restored.session("a", "x").await;
    assert_eq!(mark(&session).await, "one");
    restored.stop().await;
    // What was there before is kept, whole.
    let before = ground.data().join("lockgate.db.before");
    ground.done(&["restore", before.to_str().unwrap()]).await;
    let back = ground.serve(&[]).await;
    assert_eq!(mark(&back.session("a", "x").await).await, "two");
    back.stop().await;
}

#[tokio::test]
async fn a_copy_under_another_master_key_replaces_nothing() {
    let ground = Ground::sqlite();
    let file = ground.manifest(&json!({"a": tenant(&json!({"x": server("one")}))}));
    let apply = ["--apply", file.to_str().unwrap()];
    ground.serve(&apply).await.stop().await;
    let copy = ground.dir.path().join("copy.db");
    ground.done(&["backup", copy.to_str().unwrap()]).await;
    let key = ground.data().join("master.key");
    let own = std::fs::read(&key).unwrap();
    std::fs::write(&key, "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=").unwrap();
    let store = ground.data().join("lockgate.db");
    let before = std::fs::read(&store).unwrap();
    let said = ground.refused(&["restore", copy.to_str().unwrap()]).await;
    assert!(said.contains("master_key"), "{said}");
    assert!(std::fs::read(&store).unwrap() == before, "it was replaced");
    assert!(!ground.data().join("lockgate.db.new").exists());
    std::fs::write(&key, own).unwrap();
    ground.serve(&[]).await.stop().await;
}

#[tokio::test]
async fn a_second_gateway_on_the_same_data_directory_refuses_to_start() {
    let ground = Ground::sqlite();
    let file = ground.manifest(&json!({"a": tenant(&json!({"x": server("one")}))}));
    let apply = ["--apply", file.to_str().unwrap()];
    let first = ground.serve(&apply).await;
    let second = ground.run(&["serve", apply[0], apply[1]]).await;
    assert_eq!(second.status.code(), Some(1), "{second:?}");
    let said = String::from_utf8(second.stderr).unwrap();
    assert!(said.contains("data_dir: "), "{said}");
    assert!(said.contains("is in use by another gateway"), "{said}");
    assert_eq!(mark(&first.session("a", "x").await).await, "one");
    first.stop().await;
    ground.serve(&[]).await.stop().await;
}

#[tokio::test]
async fn what_is_no_copy_is_not_put_back() {
    let ground = Ground::sqlite();
    let file = ground.manifest(&json!({"a": tenant(&json!({"x": server("one")}))}));
    ground
        .serve(&["--apply", file.to_str().unwrap()])
        .await
        .stop()
        .await;
    let before = std::fs::read(ground.data().join("lockgate.db")).unwrap();
    let refused = async |path: &Path, why: &str| {
        let said = ground.refused(&["restore", path.to_str().unwrap()]).await;
        assert!(said.contains(why), "{said}");
        assert!(std::fs::read(ground.data().join("lockgate.db")).unwrap() == before);
    };
    refused(&file, "is no whole database").await;
    refused(&ground.dir.path().join("missing"), "unable to open").await;
    let copy = ground.dir.path().join("copy.db");
    ground.done(&["backup", copy.to_str().unwrap()]).await;
    let bytes = std::fs::read(&copy).unwrap();
    let cut = ground.dir.path().join("cut.db");
    std::fs::write(&cut, &bytes[..bytes.len() / 2]).unwrap();
    refused(&cut, "is no whole database").await;
    let other = ground.dir.path().join("other.db");
    sql(&other, "CREATE TABLE x (y)").await;
    refused(&other, "is no store of lockgate").await;
    let newer =
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
                 VALUES (9999, 'newer', TRUE, x'00', 0)";
    sql(&copy, newer).await;
    refused(&copy, "was made by a newer lockgate").await;
}

/// It was told as a bug of the gateway, without its file and a remedy.
#[tokio::test]
async fn a_damaged_store_is_named_with_its_remedy() {
    let ground = Ground::sqlite();
    let file = ground.manifest(&json!({"a": tenant(&json!({"x": server("one")}))}));
    let apply = ["--apply", file.to_str().unwrap()];
    ground.serve(&apply).await.stop().await;
    let copy = ground.dir.path().join("copy.db");
    ground.done(&["backup", copy.to_str().unwrap()]).await;
    let store = ground.data().join("lockgate.db");
    std::fs::write(&store, "no database\n".repeat(1000)).unwrap();
    let of_command = ground.refused(&["migrate"]).await;
    let Err(of_gateway) = ground.try_serve(&[]).await else {
        panic!("it serves")
    };
    assert!(of_gateway.starts_with("Some(1) "), "{of_gateway}");
    let wanted = format!("{}: store: is damaged, or no database: ", store.display());
    for said in [of_command, of_gateway] {
        assert!(said.contains(&wanted), "{said}");
        assert!(said.contains("lockgate restore COPY"), "{said}");
    }
    ground.done(&["restore", copy.to_str().unwrap()]).await;
    ground.serve(&[]).await.stop().await;
}

/// Changes a database without the gateway.
async fn sql(file: &Path, statement: &str) {
    let script =
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute(sys.argv[2]); c.commit()";
    let mut command = Command::new("python3");
    command.args(["-c", script]).arg(file).arg(statement);
    let output = within("python3", command.output()).await.unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[tokio::test]
async fn a_database_that_nobody_can_use_is_a_mistake() {
    let ground = Ground::sqlite();
    let said = ground
        .refused(&["migrate", "--set=sql.url=mysql://u:s3cret@h/x"])
        .await;
    assert!(
        said.starts_with("--set: sql.url: is no URL of PostgreSQL; "),
        "{said}"
    );
    assert!(!said.contains("s3cret"), "{said}");
    std::fs::create_dir(ground.data()).unwrap();
    std::fs::write(
        ground.data().join("lockgate.db"),
        "no database, and long enough to look at it",
    )
    .unwrap();
    let Err(said) = ground.try_serve(&[]).await else {
        panic!("it serves")
    };
    assert!(
        said.starts_with("Some(1) lockgate: cannot use the database"),
        "{said}"
    );
}

#[tokio::test]
async fn secrets_are_not_in_the_data_directory_in_clear() {
    let ground = Ground::sqlite();
    let canary = "canary-1d7c3f80a2";
    let file = ground.manifest(&json!({"a": tenant(&json!({"x": server(canary)}))}));
    let replica = ground.serve(&["--apply", file.to_str().unwrap()]).await;
    let session = replica.session("a", "x").await;
    assert_eq!(mark(&session).await, canary);
    let is_in_a_file = |text: &str| {
        let files = std::fs::read_dir(ground.data()).unwrap().flatten();
        let mut contents = files.filter_map(|file| std::fs::read(file.path()).ok());
        contents.any(|bytes| {
            bytes
                .windows(text.len())
                .any(|part| part == text.as_bytes())
        })
    };
    assert!(is_in_a_file("sandbox"), "looks at the right files");
    assert!(!is_in_a_file(canary));
    replica.kill().await;
    assert!(!is_in_a_file(canary));
}

#[tokio::test]
async fn a_relative_data_directory_has_room_for_confined_children() {
    let dir = tempfile::tempdir().unwrap();
    let program = env!("CARGO_BIN_EXE_lockgate");
    let servers = json!({"x": {"command": program, "args": ["__demo"]}});
    let manifest =
        json!({"version": 1, "tenants": {"a": {"auth": {"mode": "none"}, "servers": servers}}});
    std::fs::write(dir.path().join("manifest.json"), manifest.to_string()).unwrap();
    let mut command = Ground::command();
    let sets = [
        "data_dir=own",
        "http.listen=127.0.0.1:0",
        "ops.listen=127.0.0.1:0",
        "sandbox.shared_uid=true",
    ];
    command.current_dir(dir.path());
    command.args(["serve", "--apply", "manifest.json"]);
    command.args(sets.iter().flat_map(|set| ["--set", set]));
    let replica = Replica::start(command).await.unwrap();
    let answer = replica.stranger("a", "x").post(&opening(NEWEST)).await;
    assert!(
        answer.headers().contains_key("mcp-session-id"),
        "{answer:?}"
    );
    replica.stop().await;
}

//! Commands for a running gateway: effects, output and exit codes.

use std::{
    fs,
    process::{Output, Stdio},
};

use serde_json::{Value, json};
use tokio::{io::AsyncWriteExt, process::Command};

use crate::{
    auth::external_tokens::bearer,
    database::persistence::{Ground, Replica, mark, server},
    support::harness::{NEWEST, Session, child, client, json_of, package, until, within},
};

/// The command line on the machine of a gateway.
pub(crate) struct Shell {
    ground: Ground,
    pub(crate) replica: Replica,
}

impl Shell {
    pub(crate) async fn new() -> Self {
        let ground = Ground::sqlite();
        let replica = ground.serve(&[]).await;
        let shell = Self { ground, replica };
        // The first key may be made a moment after the gateway listens.
        let is_let_in = async || shell.run(&["tenant", "list"]).await.code == 0;
        until("the first key", is_let_in).await;
        shell
    }

    /// A command of an operator whose key is at its default place.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = stranger(args);
        command
            .env("LOCKGATE_URL", &self.replica.http)
            .env("LOCKGATE_DATA_DIR", self.ground.data());
        command
    }

    pub(crate) async fn run(&self, args: &[&str]) -> Said {
        Said::of(
            within("a command", self.command(args).output())
                .await
                .unwrap(),
        )
    }

    /// The output of a command that must succeed.
    pub(crate) async fn done(&self, args: &[&str]) -> String {
        let said = self.run(args).await;
        assert_eq!(said.code, 0, "{args:?}: {}", said.err);
        said.out
    }

    pub(crate) async fn done_json(&self, args: &[&str]) -> Value {
        let args = [args, &["--json"]].concat();
        serde_json::from_str(&self.done(&args).await).unwrap()
    }

    /// The stderr of a command that ends with `code`.
    pub(crate) async fn fails(&self, code: i32, args: &[&str]) -> String {
        let said = self.run(args).await;
        assert_eq!(said.code, code, "{args:?}: {} {}", said.out, said.err);
        assert_eq!(said.out, "", "{args:?}");
        said.err
    }

    /// Runs a command with `input` on stdin.
    pub(crate) async fn fed(&self, args: &[&str], input: &str) -> Said {
        let mut command = self.command(args);
        command.stdin(Stdio::piped());
        command.stdout(Stdio::piped());
        command.stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let mut stdin = process.stdin.take().unwrap();
        stdin.write_all(input.as_bytes()).await.unwrap();
        drop(stdin);
        Said::of(
            within("a command", process.wait_with_output())
                .await
                .unwrap(),
        )
    }

    /// Runs a command whose output goes to `out`.
    async fn prints_to(&self, args: &[&str], out: Stdio) -> Said {
        let mut command = self.command(args);
        command.stdout(out).stderr(Stdio::piped());
        let process = command.spawn().unwrap();
        drop(command);
        let ended = within("a command", process.wait_with_output()).await;
        Said::of(ended.unwrap())
    }

    pub(crate) fn file(&self, name: &str, text: &str) -> String {
        let file = self.ground.data().join(name);
        fs::write(&file, text).unwrap();
        file.to_str().unwrap().to_owned()
    }

    /// A session of a new tenant with the server `x` and an API key.
    pub(crate) async fn session(&self, tenant: &str) -> Session {
        self.done(&["tenant", "add", tenant]).await;
        let document = self.file("server.json", &server("one").to_string());
        self.done(&["server", "add", tenant, "x", &document]).await;
        let made = self
            .done(&[
                "key",
                "add",
                tenant,
                "ci",
                "--server",
                "x",
                "--subject",
                "ada",
            ])
            .await;
        let mut session = self.replica.stranger(tenant, "x");
        session.http = bearer(made.trim());
        session.initialize(NEWEST).await;
        session
    }
}

/// A command without settings from the environment.
pub(crate) fn stranger(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockgate"));
    for name in ["LOCKGATE_KEY", "LOCKGATE_KEY_FILE", "LOCKGATE_CONFIG"] {
        command.env_remove(name);
    }
    command.args(args).kill_on_drop(true);
    command
}

/// The exit code and the output of a command.
pub(crate) struct Said {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Said {
    pub(crate) fn of(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

#[tokio::test]
async fn a_server_is_run_from_the_command_line() {
    let shell = Shell::new().await;
    let session = shell.session("a").await;
    assert_eq!(mark(&session).await, "one");
    let listed = shell.done(&["server", "list", "a"]).await;
    let lines: Vec<&str> = listed.lines().collect();
    assert!(lines[0].starts_with("NAME  STATE    URL"), "{listed}");
    assert!(
        lines[1].starts_with("x  ") && lines[1].contains(&child()),
        "{listed}"
    );
    // Secrets are never shown.
    let shown = shell.done(&["server", "show", "a", "x"]).await;
    assert!(shown.starts_with("server a/x, version "), "{shown}");
    assert!(shown.contains("\"MARK\": (set)"), "{shown}");
    let children = shell.done_json(&["server", "children", "a", "x"]).await;
    let pid = children["items"][0]["pid"].to_string();
    let table = shell.done(&["server", "children", "a", "x"]).await;
    assert!(table.lines().nth(1).unwrap().contains(&pid), "{table}");
    session.text("stderr", json!({"bytes": 100})).await;
    let logs = async || !shell.done(&["server", "logs", "a", "x"]).await.is_empty();
    until("the log of the child", logs).await;
    let line = shell.done(&["server", "logs", "a", "x", "--json"]).await;
    let line: Value = serde_json::from_str(line.lines().next().unwrap()).unwrap();
    assert_eq!(line["child"], children["items"][0]["number"]);
    let said = shell.done(&["server", "restart", "a", "x", "--now"]).await;
    let (here, there) = (
        "at the replica that answered: 1",
        "of other replicas follow",
    );
    assert!(said.contains(here) && said.contains(there), "{said}");
    assert_eq!(mark(&session).await, "one", "the session goes on");
    let after = shell.done(&["server", "children", "a", "x"]).await;
    assert_ne!(table.lines().nth(1), after.lines().nth(1));
    let used = shell.fails(2, &["server", "remove", "a", "x"]).await;
    assert!(
        used.starts_with("tenants.a.api_keys.ci.servers: "),
        "{used}"
    );
    shell.done(&["key", "remove", "a", "ci"]).await;
    shell.done(&["server", "remove", "a", "x"]).await;
    let gone = shell.fails(1, &["server", "show", "a", "x"]).await;
    assert_eq!(gone, "lockgate: there is no server a/x (404)\n");
}

#[tokio::test]
async fn sessions_are_listed_and_ended() {
    let shell = Shell::new().await;
    let session = shell.session("a").await;
    let list = ["session", "list", "a"];
    let listed = shell.done_json(&list).await;
    let id = listed["items"][0]["id"].as_str().unwrap();
    let row = shell.done(&list).await;
    let row = row.lines().nth(1).unwrap();
    assert!(
        row.contains(id) && row.contains("ada") && row.contains("ci"),
        "{row}"
    );
    // Logs call the session so too.
    let logged = async || {
        let lines = shell.replica.lines();
        let mut began = lines
            .iter()
            .filter(|line| line["message"] == "session began");
        began.any(|line| line["session.id"] == id)
    };
    until("the line of the session", logged).await;
    assert!(session.id.as_ref().unwrap().starts_with(id) && id.len() == 12);
    let other = shell
        .done_json(&["session", "list", "a", "--server", "y"])
        .await;
    assert_eq!(other, json!({"items": [], "next": null}));
    shell.done(&["session", "end", "a", id, "--now"]).await;
    let ended = async || session.begin("echo", json!({"text": "x"})).await.status() == 404;
    until("the end of the session", ended).await;
    shell.fails(1, &["session", "end", "a", id]).await;
    let quotas: Value =
        serde_json::from_str(&shell.done(&["tenant", "quotas", "a"]).await).unwrap();
    assert_eq!(quotas["used"]["sessions"], 0);
}

#[tokio::test]
async fn api_keys_are_made_renewed_and_removed() {
    let shell = Shell::new().await;
    let session = shell.session("a").await;
    let listed = shell.done(&["key", "list", "a"]).await;
    assert!(listed.contains("ci    ada      x "), "{listed}");
    assert!(
        !listed.contains("lgk_") && !listed.contains("sha256"),
        "{listed}"
    );
    // Only the key is on stdout, so that a shell can capture it.
    let said = shell.run(&["key", "renew", "a", "ci"]).await;
    let key = said.out.strip_suffix('\n').unwrap();
    assert!(key.starts_with("lgk_") && !key.contains('\n'), "{key}");
    assert!(!said.err.contains("lgk_"));
    let refused = async || session.begin("echo", json!({"text": "x"})).await.status() == 401;
    until("the end of the old key", refused).await;
    let mut again = shell.replica.stranger("a", "x");
    again.http = bearer(key);
    again.initialize(NEWEST).await;
    shell.done(&["key", "remove", "a", "ci"]).await;
    let said = shell
        .fails(2, &["key", "add", "a", "no", "--server", "z"])
        .await;
    assert!(
        said.starts_with("tenants.a.api_keys.no.servers: "),
        "{said}"
    );
    // Operators' keys belong to no tenant.
    let operator = shell.done(&["key", "add", "--operators", "eve"]).await;
    let list = ["key", "list", "--operators", "--key", operator.trim()];
    assert_eq!(shell.done(&list).await.lines().count(), 3);
    shell.done(&["key", "remove", "--operators", "eve"]).await;
    shell.fails(1, &list).await;
    shell
        .fails(2, &["key", "renew", "--operators", "admin"])
        .await;
    shell.fails(2, &["key", "show", "ci"]).await;
}

#[tokio::test]
async fn a_manifest_is_applied_and_the_difference_shown() {
    let shell = Shell::new().await;
    let one = "version: 1\ntenants:\n  a:\n    auth: {mode: none}\n    servers:\n";
    let server = |name: &str| {
        format!(
            "      {name}: {{command: {:?}, env: {{MARK: \"${{env:GIVEN}}\"}}, \
             sandbox: {{profile: open, required: false}}}}\n",
            child()
        )
    };
    let both = shell.file("m.yaml", &format!("{one}{}{}", server("x"), server("y")));
    let apply = ["apply", "-f", &both];
    // Variables are read from the caller's environment, not from the gateway's.
    let said = shell.fails(2, &apply).await;
    assert!(
        said.starts_with(&format!("{both}:6: tenants.a.servers.x.env.MARK: ")),
        "{said}"
    );
    let given = async |args: &[&str]| {
        let mut command = shell.command(args);
        command.env("GIVEN", "mine");
        Said::of(within("a command", command.output()).await.unwrap()).out
    };
    let plan = "+ tenant a\n+ server a/x\n+ server a/y\n";
    assert_eq!(given(&["apply", "-f", &both, "--dry-run"]).await, plan);
    assert_eq!(shell.done(&["tenant", "list"]).await.lines().count(), 1);
    assert_eq!(given(&apply).await, plan);
    assert_eq!(mark(&shell.replica.session("a", "x").await).await, "mine");
    assert_eq!(given(&apply).await, "nothing to change\n");
    let plain = one.to_owned() + &server("x").replace("${env:GIVEN}", "mine");
    let said = shell.fed(&["apply", "-f", "-"], &plain).await;
    assert_eq!(
        (said.code, said.out.as_str()),
        (0, "nothing to change\n"),
        "{}",
        said.err
    );
    let said = shell
        .fed(&["apply", "-f", "-", "--prune", "--json"], &plain)
        .await;
    let said: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(said["changes"][0]["change"], "- server a/y");
    assert!(!shell.replica.serves("a", "y").await);
}

#[tokio::test]
async fn a_mistake_that_the_gateway_finds_names_its_line() {
    let shell = Shell::new().await;
    let missing = shell.file(
        "n.yaml",
        "version: 1\ntenants:\n  a:\n    servers:\n      x: {command: /no/such}\n",
    );
    let said = shell.fails(2, &["apply", "-f", &missing]).await;
    assert!(
        said.contains(&format!("\n{missing}:5: tenants.a.servers.x.command: ")),
        "{said}"
    );
}

#[tokio::test]
async fn mistakes_and_refusals_are_told_apart() {
    let shell = Shell::new().await;
    // A mistake found locally names its line, a mistake in an object that the gateway finds its key.
    let wrong = shell.file(
        "m.yaml",
        "version: 1\ntenants:\n  a: {auth: {mode: nine}}\n",
    );
    let said = shell.fails(2, &["apply", "-f", &wrong]).await;
    assert!(
        said.starts_with(&format!("{wrong}:3: tenants.a.auth.mode: ")),
        "{said}"
    );
    shell.done(&["tenant", "add", "a"]).await;
    let said = shell
        .fails(2, &["server", "add", "a", "x", "--", "/no/such"])
        .await;
    assert!(said.starts_with("tenants.a.servers.x.command: "), "{said}");
    let document = shell.file("s.yaml", "command: x\ncommand: y\n");
    let said = shell
        .fails(2, &["server", "add", "a", "x", &document])
        .await;
    assert!(
        said.starts_with(&format!("{document}:2: command: ")),
        "{said}"
    );
    shell.fails(2, &["server", "add", "a", "x"]).await;
    shell.fails(2, &["apply", "-f", "no.yaml"]).await;
    shell.fails(2, &["audit", "--from", "today"]).await;
    shell
        .fails(2, &["tenant", "list", "--url", "localhost"])
        .await;
    // Valid commands that fail at the gateway.
    let said = shell.fails(1, &["tenant", "add", "a"]).await;
    assert_eq!(said, "lockgate: tenant a exists; use --replace (412)\n");
    shell
        .done(&["tenant", "add", "a", "--replace", "--auth", "none"])
        .await;
    shell
        .fails(1, &["tenant", "list", "--key", "lgk_wrong"])
        .await;
    let said = shell
        .fails(1, &["tenant", "list", "--url", "http://127.0.0.1:1"])
        .await;
    assert!(
        said.starts_with("lockgate: cannot reach http://127.0.0.1:1/: "),
        "{said}"
    );
}

#[tokio::test]
async fn a_caller_without_a_key_is_told_how_to_get_one() {
    let shell = Shell::new().await;
    let nobody = tempfile::tempdir().unwrap();
    let mut command = stranger(&["tenant", "list", "--url", &shell.replica.http]);
    command.env("LOCKGATE_DATA_DIR", nobody.path());
    let said = Said::of(within("a command", command.output()).await.unwrap());
    assert_eq!(said.code, 2);
    assert!(
        said.err.starts_with("--key: was not named, and "),
        "{}",
        said.err
    );
    assert!(said.err.contains("LOCKGATE_ADMIN_KEY"), "{}", said.err);
    // The key of another store is there, as after a restore.
    fs::write(nobody.path().join("admin.key"), "lgk_another").unwrap();
    let mut command = stranger(&["tenant", "list", "--url", &shell.replica.http]);
    command.env("LOCKGATE_DATA_DIR", nobody.path());
    let said = Said::of(within("a command", command.output()).await.unwrap());
    assert_eq!(said.code, 1);
    for part in [
        "(401); ",
        "admin.key is no key of this gateway",
        "LOCKGATE_ADMIN_KEY",
    ] {
        assert!(said.err.contains(part), "{}", said.err);
    }
}

/// `lockgate openapi | head -1` was a panic now and then, and told as a failure where the work was done.
#[tokio::test]
async fn a_reader_that_has_seen_enough_is_no_error() {
    let shell = Shell::new().await;
    let copy = shell.file("copy.db", "");
    fs::remove_file(&copy).unwrap();
    for args in [
        &["openapi"][..],
        &["openapi", "--markdown"],
        &["schema"],
        &["completions", "bash"],
        &["backup", &copy],
        &["tenant", "list"],
        &["audit", "--export"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let said = shell.prints_to(args, writer.into()).await;
        assert_eq!((said.code, &*said.err), (0, ""), "{args:?}");
        if args[0] != "backup" {
            let full = fs::File::options().write(true).open("/dev/full").unwrap();
            let said = shell.prints_to(args, full.into()).await;
            assert_eq!(said.code, 1, "{args:?}: {}", said.err);
            assert!(
                said.err.starts_with("lockgate: cannot write: "),
                "{}",
                said.err
            );
        }
    }
}

#[tokio::test]
async fn an_administrator_of_a_tenant_uses_the_same_commands() {
    let shell = Shell::new().await;
    shell.session("a").await;
    shell.done(&["tenant", "add", "b"]).await;
    let args = [
        "key", "add", "a", "boss", "--server", "x", "--scope", "admin",
    ];
    let boss = shell.done(&args).await;
    let own = async |code: i32, args: &[&str]| {
        let said = shell.run(&[args, &["--key", boss.trim()]].concat()).await;
        assert_eq!(said.code, code, "{args:?}: {}", said.err);
        said.out
    };
    let tenants = own(0, &["tenant", "list"]).await;
    assert_eq!(tenants.lines().count(), 2, "{tenants}");
    own(0, &["key", "add", "a", "more", "--server", "x"]).await;
    own(1, &["server", "list", "b"]).await;
    own(1, &["server", "remove", "a", "x"]).await;
    own(1, &["key", "list", "--operators"]).await;
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one story, told as a table")]
async fn users_clients_and_providers_are_declared_by_commands() {
    let shell = Shell::new().await;
    shell.done(&["tenant", "add", "a"]).await;
    let canary = "canary-$-2f9c01-long";
    // A password is never an argument: every user of the machine could read it.
    let args = [
        "user",
        "add",
        "a",
        "ada",
        "--group",
        "g",
        "--password-stdin",
    ];
    let said = shell.fed(&args, &format!("{canary}\nnot of it\n")).await;
    assert_eq!(said.code, 0, "{}", said.err);
    assert!(said.out.starts_with("user a/ada, version "), "{}", said.out);
    assert!(
        said.out.contains("\"password_hash\": (set)"),
        "{}",
        said.out
    );
    assert!(!said.out.contains("canary"), "{}", said.out);
    let same = ["user", "add", "a", "ada", "--group", "g", "--replace"];
    let before = shell.done_json(&["user", "show", "a", "ada"]).await;
    let with = async |args: &[&str], (name, value): (&str, &str)| {
        let mut command = shell.command(args);
        command.env(name, value);
        let said = Said::of(within("a command", command.output()).await.unwrap());
        assert_eq!(said.code, 0, "{}", said.err);
        shell.done_json(&["user", "show", "a", "ada"]).await["version"].clone()
    };
    let file = shell.file("password", &format!("{canary}\n"));
    for given in [
        ("LOCKGATE_USER_PASSWORD", canary),
        ("LOCKGATE_USER_PASSWORD_FILE", file.as_str()),
    ] {
        assert_eq!(with(&same, given).await, before["version"], "{given:?}");
    }
    let other = ("LOCKGATE_USER_PASSWORD", "another one");
    assert_ne!(with(&same, other).await, before["version"]);
    shell.done(&[&same[..], &["--disabled"]].concat()).await;
    let table = shell.done(&["user", "list", "a"]).await;
    let row = table.lines().nth(1).unwrap();
    assert!(row.starts_with("ada   g       true"), "{table}");
    let said = shell.fails(2, &["user", "add", "a", "eve"]).await;
    assert!(
        said.starts_with("--password-stdin: no password; "),
        "{said}"
    );
    let said = shell
        .fails(2, &["user", "add", "a", "eve", "--password-stdin"])
        .await;
    assert!(
        said.starts_with("--password-stdin: nothing is there; "),
        "{said}"
    );
    let client = [
        "client",
        "add",
        "a",
        "app",
        "--redirect-uri",
        "https://a.test/cb",
    ];
    let secret = [&client[..], &["--title", "App", "--secret-stdin"]].concat();
    let said = shell.fed(&secret, &format!("{canary}\n")).await;
    assert_eq!(said.code, 0, "{}", said.err);
    assert!(said.out.contains("\"secret\": (set)"), "{}", said.out);
    let said = shell.fails(1, &client).await;
    assert_eq!(said, "lockgate: client a/app exists; use --replace (412)\n");
    let wrong = [
        "client",
        "add",
        "a",
        "x",
        "--redirect-uri",
        "http://a.test/cb",
    ];
    let said = shell.fails(2, &wrong).await;
    assert!(
        said.starts_with("tenants.a.clients.x.redirect_uris: "),
        "{said}"
    );
    shell.fails(2, &["client", "add", "a", "x"]).await;
    // Variables in the document are read from the caller's environment.
    let text = "issuer: https://corp.test\nclient_id: us\nclient_secret: \"${env:OURS}\"\n";
    let file = shell.file("corp.yaml", text);
    let said = shell
        .fails(2, &["provider", "add", "a", "corp", &file])
        .await;
    assert!(
        said.contains(":3: client_secret: the variable OURS is not set"),
        "{said}"
    );
    let mut command = shell.command(&["provider", "add", "a", "corp", &file]);
    command.env("OURS", canary);
    let said = Said::of(within("a command", command.output()).await.unwrap());
    assert_eq!(said.code, 0, "{}", said.err);
    let table = shell.done(&["provider", "list", "a"]).await;
    assert!(table.contains("corp  https://corp.test  us"), "{table}");
    for (kind, name) in [("user", "ada"), ("client", "app"), ("provider", "corp")] {
        let shown = shell.done(&[kind, "show", "a", name]).await;
        assert!(
            shown.contains(": (set)") && !shown.contains("canary"),
            "{shown}"
        );
        shell.done(&[kind, "remove", "a", name]).await;
        shell.fails(1, &[kind, "remove", "a", name]).await;
        assert_eq!(shell.done(&[kind, "list", "a"]).await.lines().count(), 1);
    }
}

#[tokio::test]
async fn the_audit_trail_is_shown_and_exported() {
    let shell = Shell::new().await;
    shell.session("a").await;
    let table = shell.done(&["audit", "--kind", "server.added"]).await;
    let rows: Vec<&str> = table.lines().collect();
    assert_eq!(rows.len(), 2, "{table}");
    assert!(rows[1].contains("server a/x"), "{table}");
    let last = shell.done_json(&["audit", "--limit", "1"]).await;
    assert_eq!(last["items"].as_array().unwrap().len(), 1);
    assert_eq!(last["items"][0]["kind"], "api_key.added");
    let exported = shell.done(&["audit", "--export", "--tenant", "a"]).await;
    let kinds: Vec<String> = exported
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["kind"].to_string())
        .collect();
    assert_eq!(
        kinds,
        [
            r#""api_key.added""#,
            r#""server.added""#,
            r#""tenant.added""#
        ]
    );
}

#[tokio::test]
async fn every_refusal_below_api_is_a_problem_document() {
    // Found by schemathesis: a refusal before any route was no problem document (RFC 9457).
    let shell = Shell::new().await;
    let ask = async |path: &str| {
        let url = format!("{}{path}", shell.replica.http);
        let answer = within("an answer", client().get(url).send()).await.unwrap();
        assert_eq!(answer.status(), 404, "{path}");
        let kind = answer.headers()["content-type"]
            .to_str()
            .unwrap()
            .to_owned();
        (kind, json_of(answer).await)
    };
    for path in ["/api/v1/tenants/a%2Cb", "/api/v2"] {
        let (kind, said) = ask(path).await;
        assert_eq!(
            (kind.as_str(), &said["status"]),
            ("application/problem+json", &json!(404))
        );
    }
    let (kind, said) = ask("/t/a%2Cb/x/mcp").await;
    assert_eq!(kind, "application/json");
    assert_eq!(said["error"]["message"], "not found");
}

/// The text of a page after `mark`.
fn ends_with(page: &str, mark: &str) -> String {
    let text = fs::read_to_string(package().join(page)).unwrap();
    text.split_once(mark).unwrap().1.to_owned()
}

#[tokio::test]
async fn the_reference_is_that_of_this_build() {
    let printed = async |args: &[&str]| {
        let said = Said::of(within("a command", stranger(args).output()).await.unwrap());
        assert_eq!(said.code, 0, "{}", said.err);
        said.out
    };
    let reference = ends_with(
        "docs/administration.md",
        "<!-- lockgate openapi --markdown: nothing is written below by hand -->\n\n",
    );
    assert_eq!(printed(&["openapi", "--markdown"]).await, reference);
    let schema = fs::read_to_string(package().join("docs/manifest.schema.json")).unwrap();
    assert_eq!(printed(&["schema"]).await, schema);
}

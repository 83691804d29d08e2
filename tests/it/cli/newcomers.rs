//! The first hour of a newcomer: failures, certificates, addresses and commands that explain
//! themselves.

use serde_json::{Value, json};

use super::commands::{Said, Shell};
use crate::support::harness::{Gateway, Session, child, json_of, opening, run_args, until, within};

/// The error of an `initialize` that fails.
async fn refused(gateway: &Gateway) -> Value {
    let answer = gateway.stranger().post(&opening("2025-11-25")).await;
    json_of(answer).await["error"].clone()
}

/// The owner of a server is told why it does not start: in the error, and in one line of the log.
#[tokio::test]
async fn a_server_that_ends_says_why() {
    let script = "echo one >&2; echo 'boom: no token' >&2; exit 3";
    let gateway = Gateway::of(&[], &[], &["sh", "-c", script]).await;
    let error = refused(&gateway).await;
    let message = "the backend could not be started (initialize: exit status 3: boom: no token)";
    assert_eq!(error["message"], message);
    let data = json!({
        "reason": "backend_exited", "retryable": true, "stage": "initialize",
        "status": "exit status 3", "stderr": ["one", "boom: no token"],
    });
    assert_eq!(error["data"], data);
    let told = async || gateway.stderr().contains("warning");
    until("the warning", told).await;
    let log = gateway.stderr();
    let warned: Vec<&str> = log
        .lines()
        .filter(|line| line.contains("warning"))
        .collect();
    assert_eq!(warned.len(), 1, "{log}");
    let wanted = "a server could not be started  stage=initialize  why=exit status 3  \
                  stderr=boom: no token";
    assert!(warned[0].contains(wanted), "{log}");
}

/// A package that does not exist is no reason to try again.
#[tokio::test]
async fn a_missing_package_is_not_tried_again() {
    let script = "echo 'npm error code E404' >&2; exit 1";
    let gateway = Gateway::of(&[], &[], &["sh", "-c", script]).await;
    assert_eq!(refused(&gateway).await["data"]["retryable"], false);
}

/// A program that is no MCP server is noticed before `clocks.start`.
#[tokio::test]
async fn a_server_that_does_not_answer_is_told_of_early() {
    let gateway = Gateway::of(&["server.clocks.start=8s"], &[], &["cat"]).await;
    let asking = refused(&gateway);
    let told = async || {
        let log = gateway.stderr();
        log.contains("the server has not answered initialize for 5 s: is it an MCP server")
    };
    let (error, ()) = tokio::join!(asking, until("the warning", told));
    assert_eq!(error["data"]["reason"], "timeout");
    assert_eq!(
        error["data"]["status"],
        "no answer to initialize within clocks.start"
    );
    assert_eq!(gateway.stderr().matches("has not answered").count(), 1);
}

/// A child that closes its stdout and lives on does not hold its session until `clocks.start`.
#[tokio::test]
async fn a_server_that_closes_its_stdout_is_given_up() {
    let script = "exec >&-; while read -r line; do :; done";
    let gateway = Gateway::of(&[], &[], &["sh", "-c", script]).await;
    let error = refused(&gateway).await;
    assert_eq!(error["data"]["status"], "it closed its stdout");
}

/// The failure of a server is told to operators, and not to clients of `serve`.
#[tokio::test]
async fn operators_see_why_a_server_does_not_start() {
    for isolation in ["session", "tenant"] {
        let shell = Shell::new().await;
        shell.done(&["tenant", "add", "a", "--auth", "none"]).await;
        let document = json!({
            "command": "sh", "args": ["-c", "echo 'boom: no token' >&2; exit 3"],
            "isolation": isolation, "sandbox": {"profile": "open", "required": false},
        });
        let file = shell.file("server.json", &document.to_string());
        let said = shell.done(&["server", "add", "a", "x", &file]).await;
        let url = format!("{}/t/a/x/mcp", shell.replica.http);
        assert!(said.ends_with(&format!("URL: {url}\n")), "{said}");
        let row = |listed: &str| listed.lines().nth(1).unwrap().to_owned();
        let listed = row(&shell.done(&["server", "list", "a"]).await);
        assert!(
            listed.starts_with(&format!("x     stopped  {url}  sh")),
            "{listed}"
        );
        let answer = shell
            .replica
            .stranger("a", "x")
            .post(&opening("2025-11-25"))
            .await;
        let error = json_of(answer).await["error"].clone();
        assert_eq!(
            error["data"],
            json!({"reason": "backend_exited", "retryable": true})
        );
        let listed = shell.done(&["server", "list", "a"]).await;
        assert!(row(&listed).starts_with("x     failed  "), "{listed}");
        let why = "x failed: initialize: exit status 3: boom: no token\n";
        assert!(listed.ends_with(why), "{listed}");
        let logs = shell.done(&["server", "logs", "a", "x"]).await;
        let wanted = "start: initialize failed: exit status 3\nstart: boom: no token\n";
        assert_eq!(logs, wanted);
        // Forgotten when it starts.
        let works = json!({
            "command": child(), "isolation": isolation,
            "sandbox": {"profile": "open", "required": false},
        });
        let file = shell.file("server.json", &works.to_string());
        shell
            .done(&["server", "add", "a", "x", &file, "--replace", "--yes"])
            .await;
        let _session = shell.replica.session("a", "x").await;
        let listed = row(&shell.done(&["server", "list", "a"]).await);
        assert!(listed.starts_with("x     running  "), "{listed}");
    }
}

/// `run` passes on what a machine behind a proxy, or with a company's certificates, needs.
#[tokio::test]
async fn run_passes_on_proxies_and_certificates() {
    let given = [
        ("SSL_CERT_FILE", "/etc/corp.pem"),
        ("NODE_EXTRA_CA_CERTS", "/etc/corp.pem"),
        ("https_proxy", "http://proxy.test:3128"),
        ("NO_PROXY", "localhost"),
        ("SECRET_OF_THE_CALLER", "x"),
    ];
    let words: Vec<String> = given
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let wrapper = [&["env"], &words[..]].concat();
    let program = child();
    let own = ["HTTPS_PROXY=http://own.test"];
    let gateway = Gateway::through(&wrapper, &run_args(&[], &own), &[&program]).await;
    let session = gateway.session().await;
    let told = environment(&session).await;
    for (name, value) in &given[..4] {
        assert!(told[*name] == **value, "{told}");
    }
    assert_eq!(told["HTTPS_PROXY"], "http://own.test");
    assert!(told["SECRET_OF_THE_CALLER"].is_null(), "{told}");
}

/// `[children]` does the same for every server of `serve`, which may read the certificates.
#[tokio::test]
async fn children_share_certificates_and_variables() {
    let dir = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["corp.test".to_owned()]).unwrap();
    let outside = tempfile::Builder::new().tempfile_in("/var/tmp").unwrap();
    std::fs::write(outside.path(), made.cert.pem()).unwrap();
    let file = outside.path().display().to_string();
    let sets = [
        format!("children.ca_file={file}"),
        "children.env=[\"HTTPS_PROXY=http://proxy.test\"]".to_owned(),
    ];
    let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
    let gateway = Gateway::serve(dir.path(), &sets, "sandbox: {required: false}").await;
    let session = gateway.session().await;
    let told = environment(&session).await;
    for name in ["SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE"] {
        assert!(told[name] == file.as_str(), "{told}");
    }
    assert_eq!(told["HTTPS_PROXY"], "http://proxy.test");
    let read = session.text("read_path", json!({"path": file})).await;
    assert!(read.contains("BEGIN CERTIFICATE"), "{read}");
}

/// The environment of a session's child.
async fn environment(session: &Session) -> Value {
    serde_json::from_str(&session.text("env", json!({})).await).unwrap()
}

/// A replacement that would drop settings takes a yes.
#[tokio::test]
async fn nothing_is_loosened_silently() {
    let shell = Shell::new().await;
    shell.done(&["tenant", "add", "a", "--auth", "none"]).await;
    let document = json!({
        "command": child(), "env": {"TOKEN": "s3cret", "MODE": "x"}, "limits": {"memory": "1GiB"},
        "sandbox": {"profile": "open", "required": false},
    });
    let file = shell.file("server.json", &document.to_string());
    shell.done(&["server", "add", "a", "x", &file]).await;
    let program = child();
    let short = [
        "server",
        "add",
        "a",
        "x",
        "--replace",
        "--env",
        "MODE=y",
        "--",
        &program,
    ];
    let said = shell.fails(2, &short).await;
    let wanted = "--replace: drops env.TOKEN, limits, sandbox; write --yes if that is meant\n";
    assert_eq!(said, wanted);
    let stored = async || shell.done_json(&["server", "show", "a", "x"]).await["spec"].clone();
    assert_eq!(
        stored().await["limits"]["memory"],
        "1GiB",
        "nothing has changed"
    );
    // The same settings, and single keys, need no yes.
    shell
        .done(&["server", "add", "a", "x", &file, "--replace"])
        .await;
    let set = [
        "server",
        "set",
        "a",
        "x",
        "limits.memory=2GiB",
        "env.MODE=z",
        "env.TOKEN=",
    ];
    shell.done(&set).await;
    let limits = json!({"command": child(), "env": {"MODE": null}, "limits": {"memory": "2GiB"},
        "sandbox": {"profile": "open", "required": false}});
    assert_eq!(stored().await, limits);
    let said = shell
        .fails(2, &["server", "set", "a", "x", "limits.nosuch=1"])
        .await;
    assert!(
        said.starts_with("tenants.a.servers.x.limits.nosuch: "),
        "{said}"
    );
    let yes = [&short[..5], &["--yes"], &short[5..]].concat();
    shell.done(&yes).await;
}

/// The manifest of a tenant declares the same again; its secrets come from the environment.
#[tokio::test]
async fn an_exported_tenant_applies_again() {
    let shell = Shell::new().await;
    shell.session("a").await;
    let document =
        json!({"command": child(), "args": ["$$x"], "env": {"TOKEN": "s3cret", "MODE": "m"}});
    let file = shell.file("server.json", &document.to_string());
    shell.done(&["server", "add", "a", "y", &file]).await;
    let add = [
        "user",
        "add",
        "a",
        "ada",
        "--group",
        "g",
        "--password-stdin",
    ];
    assert_eq!(shell.fed(&add, "correct horse battery").await.code, 0);
    let uri = "http://127.0.0.1:1/callback";
    shell
        .done(&["client", "add", "a", "c", "--redirect-uri", uri])
        .await;
    let said = shell.run(&["tenant", "export", "a"]).await;
    assert_eq!(said.code, 0, "{}", said.err);
    assert!(!said.out.contains("s3cret"), "{}", said.out);
    let env = [
        ("X_ENV_MARK", "one"),
        ("Y_ENV_MODE", "m"),
        ("Y_ENV_TOKEN", "s3cret"),
        (
            "ADA_PASSWORD_HASH",
            "$argon2id$v=19$m=19456,t=2,p=1$c2FsdHNhbHQ$DHOmUkOTSYHb3Sb4hLTFhQ",
        ),
    ];
    for (name, _) in env {
        let told = said
            .err
            .lines()
            .any(|line| line.trim_start().starts_with(name));
        assert!(told, "{name}: {}", said.err);
    }
    let file = shell.file("a.json", &said.out);
    let apply = async |args: &[&str]| {
        let mut command = shell.command(&[&["apply", "-f", &file], args].concat());
        for (name, value) in env {
            command.env(name, value);
        }
        let said = Said::of(within("a command", command.output()).await.unwrap());
        assert_eq!(said.code, 0, "{}", said.err);
        said.out
    };
    // Of all that is there only the hash is another one.
    assert_eq!(apply(&["--dry-run"]).await, "~ user a/ada: password_hash\n");
    shell.done(&["tenant", "remove", "a", "--yes"]).await;
    let made = apply(&["--prune"]).await;
    assert_eq!(made.lines().count(), 6, "{made}");
    assert_eq!(shell.done(&["tenant", "export", "a"]).await, said.out);
}

/// A key does not remove itself by the way.
#[tokio::test]
async fn ones_own_key_is_removed_by_a_yes_only() {
    let shell = Shell::new().await;
    let made = shell.done(&["key", "add", "--operators", "second"]).await;
    let remove = ["key", "remove", "--operators", "second"];
    let own = [&remove[..], &["--key", made.trim()]].concat();
    let said = shell.fails(2, &own).await;
    let wanted = "--yes: removes the key that this command itself uses; \
                  write --yes if that is meant\n";
    assert_eq!(said, wanted);
    shell.done(&[&own[..], &["--yes"]].concat()).await;
    // That of another needs no yes.
    shell.done(&["key", "add", "--operators", "second"]).await;
    shell.done(&remove).await;
}

/// A tenant is not removed, nor its mode of authentication replaced, by the way.
#[tokio::test]
async fn a_tenant_is_removed_by_a_yes_only() {
    let shell = Shell::new().await;
    shell.session("a").await;
    let said = shell.fails(2, &["tenant", "add", "a", "--replace"]).await;
    assert!(
        said.starts_with("--replace: has nothing to write; "),
        "{said}"
    );
    let said = shell.fails(2, &["tenant", "remove", "a"]).await;
    let wanted = "--yes: removes tenant a and all that it has (servers: 1, api-keys: 1); \
                  write --yes if that is meant\n";
    assert_eq!(said, wanted);
    shell.done(&["tenant", "remove", "a", "--yes"]).await;
    assert_eq!(shell.done(&["tenant", "list"]).await.lines().count(), 1);
}

/// Users are disabled, enabled and given another password without being declared anew.
#[tokio::test]
async fn a_user_is_changed_without_a_new_declaration() {
    let shell = Shell::new().await;
    shell.done(&["tenant", "add", "a"]).await;
    let add = [
        "user",
        "add",
        "a",
        "ada",
        "--group",
        "g",
        "--password-stdin",
    ];
    assert_eq!(shell.fed(&add, "correct-horse-battery\n").await.code, 0);
    let user = async || shell.done_json(&["user", "show", "a", "ada"]).await;
    shell.done(&["user", "disable", "a", "ada"]).await;
    assert_eq!(user().await["spec"]["disabled"], true);
    // Otherwise this would let the user in again.
    let again = ["user", "add", "a", "ada", "--group", "g", "--replace"];
    let said = shell.fails(2, &again).await;
    assert!(said.starts_with("--replace: drops disabled; "), "{said}");
    shell.done(&["user", "enable", "a", "ada"]).await;
    let before = user().await;
    assert_eq!(
        before["spec"],
        json!({"groups": ["g"], "disabled": false, "password_hash": null})
    );
    let passwd = ["user", "passwd", "a", "ada", "--password-stdin"];
    assert_eq!(shell.fed(&passwd, "another-horse-battery\n").await.code, 0);
    let after = user().await;
    assert_eq!(after["spec"], before["spec"]);
    assert_ne!(after["version"], before["version"]);
    let none = shell.fails(1, &["user", "disable", "a", "eve"]).await;
    assert_eq!(none, "lockgate: there is no user a/eve (404)\n");
}

/// Keys that end before they begin, and kinds of records that do not exist, are mistakes.
#[tokio::test]
async fn times_and_kinds_that_cannot_be_are_refused() {
    let shell = Shell::new().await;
    shell.done(&["tenant", "add", "a", "--auth", "keys"]).await;
    let past = "2020-01-31T12:00:00Z";
    for place in [&["a", "ci"][..], &["--operators", "ci"]] {
        let args = [&["key", "add"], place, &["--expires", past]].concat();
        let said = shell.fails(2, &args).await;
        assert_eq!(
            said,
            format!("expires: {past} is in the past; write a later time\n")
        );
    }
    let said = shell.fails(2, &["audit", "--kind", "server.aded"]).await;
    let wanted =
        "the parameter kind: there is no such kind of record; did you mean server.added? (400)\n";
    assert_eq!(said, wanted);
    shell.fails(2, &["audit", "--kind", "nope"]).await;
}

/// Commands find the gateway by its configuration, and by a short address.
#[tokio::test]
async fn commands_know_where_the_gateway_is() {
    let shell = Shell::new().await;
    let place = shell.replica.http.strip_prefix("http://").unwrap();
    let (_, port) = place.rsplit_once(':').unwrap();
    for address in [format!("localhost:{port}"), format!(":{port}")] {
        shell.done(&["tenant", "list", "--url", &address]).await;
    }
    let file = shell.file("lockgate.toml", &format!("[http]\nlisten = \"{place}\"\n"));
    let mut command = shell.command(&["status", "--config", &file]);
    // A service may have no home.
    command.env_remove("LOCKGATE_URL").env_remove("HOME");
    let said = Said::of(within("a command", command.output()).await.unwrap());
    assert_eq!(said.code, 0, "{}", said.err);
    assert!(said.out.starts_with("ready; "), "{}", said.out);
}

/// A new key comes with the settings of each client; only a terminal gets the key in them.
#[tokio::test]
async fn a_new_key_comes_with_settings() {
    let shell = Shell::new().await;
    shell.session("a").await;
    let said = shell
        .run(&["key", "add", "a", "laptop", "--server", "x"])
        .await;
    assert_eq!(said.code, 0, "{}", said.err);
    let line = format!(
        "claude mcp add --transport http x {}/t/a/x/mcp --header \"Authorization: Bearer $KEY\"\n",
        shell.replica.http
    );
    assert!(said.err.contains(&line), "{}", said.err);
    assert!(!said.err.contains("lgk_"), "{}", said.err);
    let again = shell
        .fails(1, &["key", "add", "a", "laptop", "--server", "x"])
        .await;
    assert!(
        again.contains("there is a key of this name already"),
        "{again}"
    );
}

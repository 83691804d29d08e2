//! The first hour of a newcomer: failures, certificates, addresses and commands that explain
//! themselves.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use serde_json::{Value, json};

use super::commands::{Said, Shell};
use crate::support::{
    harness::{Gateway, Session, child, json_of, opening, run_args, until, within},
    served::Served,
};

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

/// The last line of npm says where a log is, which is gone.
#[tokio::test]
async fn the_warning_of_a_failed_start_has_the_line_that_tells_most() {
    let script = "echo 'npm error request to https://r.test failed' >&2; \
                  echo 'npm error A complete log of this run can be found in: /x' >&2; exit 1";
    let gateway = Gateway::of(&[], &[], &["sh", "-c", script]).await;
    refused(&gateway).await;
    let told = async || gateway.stderr().contains("a server could not be started");
    until("the warning", told).await;
    let log = gateway.stderr();
    assert!(
        log.contains("stderr=npm error request to https://r.test failed"),
        "{log}"
    );
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
    let script = "echo Listening on port 8000; exec cat";
    let command = ["sh", "-c", script];
    let gateway = Gateway::of(&["server.clocks.start=8s"], &[], &command).await;
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
    let log = gateway.stderr();
    assert_eq!(log.matches("has not answered").count(), 1);
    assert!(log.contains("no_message=Listening on port 8000"), "{log}");
}

/// `npx` and `uvx` may be fetching packages.
#[tokio::test]
async fn a_download_is_thought_of() {
    let dir = tempfile::tempdir().unwrap();
    let npx = script(&dir.path().join("npx"), "#!/bin/sh\nexec cat\n");
    let gateway = Gateway::of(&["server.clocks.start=8s"], &[], &[&npx]).await;
    let asking = refused(&gateway);
    let told = async || {
        let log = gateway.stderr();
        log.contains("is it an MCP server on stdio, or is npx still downloading it?")
    };
    tokio::join!(asking, until("the warning", told));
}

/// Writes an executable file.
fn script(file: &Path, text: &str) -> String {
    fs::write(file, text).unwrap();
    fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
    file.display().to_string()
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
    fs::write(outside.path(), made.cert.pem()).unwrap();
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

/// What `run` passes on and `serve` does not is told at the start.
#[tokio::test]
async fn serve_tells_of_the_certificates_that_it_keeps() {
    let env = [("NODE_EXTRA_CA_CERTS", "/etc/corp.pem"), ("LC_ALL", "C")];
    let servers = json!({"main": {"command": child()}});
    let tenants = json!({"a": {"auth": {"mode": "none"}, "servers": servers}});
    let passed = json!({"children": {"env": ["NODE_EXTRA_CA_CERTS"]}});
    for (config, is_told) in [(json!({}), true), (passed, false)] {
        let mut gateway = Served::with(&env, config, tenants.clone()).await;
        let lines = gateway.end().await;
        let is_it = |line: &Value| {
            let line = line.to_string();
            line.contains("servers do not get") && line.contains("NODE_EXTRA_CA_CERTS")
        };
        assert_eq!(lines.iter().any(is_it), is_told, "{lines:?}");
    }
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
    for part in ["tenant.added, tenant.changed, ", "exists: 'server.added'"] {
        assert!(said.contains(part), "{said}");
    }
    shell.done(&["audit", "--kind", "login"]).await;
    let said = shell.fails(1, &["audit", "--tenant", "nosuch"]).await;
    let wanted = "lockgate: there is no tenant nosuch, and no such record\n";
    assert_eq!(said, wanted);
    // A tenant without such records, and the records of one that is gone.
    let login = ["audit", "--tenant", "a", "--kind", "login"];
    assert_eq!(shell.done(&login).await.lines().count(), 1);
    shell.done(&["tenant", "remove", "a", "--yes"]).await;
    let gone = shell.done(&["audit", "--tenant", "a"]).await;
    assert!(gone.contains("tenant.removed"), "{gone}");
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

/// Files in a command that the server will not find are named when it is declared, with the remedy.
#[tokio::test]
async fn files_behind_the_sandbox_are_named() {
    let shell = Shell::new().await;
    shell.done(&["tenant", "add", "a", "--auth", "none"]).await;
    let dir = tempfile::Builder::new().tempdir_in("/var/tmp").unwrap();
    let file = dir.path().join("server.sh");
    fs::write(&file, "").unwrap();
    let (file, own) = (file.display().to_string(), dir.path().display());
    let said = async |args: &[&str]| {
        let mut command = shell.command(args);
        let command = command.current_dir(dir.path());
        let said = Said::of(within("a command", command.output()).await.unwrap());
        assert_eq!(said.code, 0, "{}", said.err);
        said.err
    };
    let relative = said(&["server", "add", "a", "y", "--", "sh", "server.sh"]).await;
    let wanted = format!(
        "note: a/y: server.sh is in this directory, and the server runs in another; write it \
         absolute: {file}\n"
    );
    assert_eq!(relative, wanted);
    if shell.run(&["check"]).await.out.contains("Landlock no") {
        return;
    }
    let hidden = said(&["server", "add", "a", "x", "--", "sh", &file]).await;
    let pair = format!("sandbox.read=[\"{own}\"]");
    let wanted = format!(
        "note: a/x: the sandbox of the server hides {file}; to let it read them: \
         lockgate server set a x '{pair}'\n"
    );
    assert_eq!(hidden, wanted);
    let again = said(&["server", "set", "a", "x", "audit_calls=true"]).await;
    assert_eq!(again, wanted);
    assert_eq!(said(&["server", "set", "a", "x", &pair]).await, "");
    let stored = shell.done_json(&["server", "show", "a", "x"]).await["spec"].clone();
    assert_eq!(stored["sandbox"]["read"], json!([own.to_string()]));
    assert_eq!(stored["audit_calls"], true);
}

/// What is no name is in no request: as part of a path it would ask for something else.
#[tokio::test]
async fn names_are_checked_before_they_are_sent() {
    let shell = Shell::new().await;
    shell.session("a").await;
    let remedy = "use a-z, 0-9 and -, at most 63, the first not -";
    for (args, wanted) in [
        (
            &["tenant", "add", "My Team"][..],
            format!("tenants.My Team: \"My Team\" is not a name; {remedy}\n"),
        ),
        (
            &["tenant", "show", ".."],
            format!("tenants...: \"..\" is not a name; {remedy}\n"),
        ),
        (
            &["server", "remove", "a", ".."],
            format!("tenants.a.servers...: \"..\" is not a name; {remedy}\n"),
        ),
    ] {
        assert_eq!(shell.fails(2, args).await, wanted, "{args:?}");
    }
    for args in [
        &["tenant", "add", "acme/x"][..],
        &["tenant", "quotas", "."],
        &["server", "add", "a", "My Server", "--", "sh"],
        &["server", "logs", "a", "../x"],
        &["user", "disable", "a", "Bob X"],
        &["key", "remove", "a", "../x"],
        &["key", "remove", "--operators", ".."],
        &["client", "show", "a", "a/b"],
        &["session", "end", "a", ".."],
    ] {
        let said = shell.fails(2, args).await;
        assert!(said.contains(" is not a name; "), "{args:?}: {said}");
    }
    let said = shell.fails(2, &["grant", "revoke", "a", "x"]).await;
    assert_eq!(
        said,
        "GRANT: is no id; write an id of `lockgate grant list`\n"
    );
}

/// A command line that forgets what clap cannot guess is told what to write.
#[tokio::test]
async fn what_was_forgotten_is_told() {
    let shell = Shell::new().await;
    let line = "write the command of the server behind --: lockgate server add a x -- ";
    let add = ["server", "add", "a", "x"];
    for (words, command) in [
        (&["npx", "-y", "foo"][..], "npx -y foo"),
        (&["npx", "foo"], "npx foo"),
        (&["npx"], "npx"),
        (&[], "COMMAND"),
    ] {
        let said = shell.fails(2, &[&add[..], words].concat()).await;
        assert_eq!(said, format!("{line}{command}\n"));
    }
    // A misspelt flag is told as before.
    let said = shell.fails(2, &[&add[..], &["--replce"]].concat()).await;
    assert!(said.contains("unexpected argument '--replce'"), "{said}");
    let said = shell
        .fails(2, &["user", "add", "a", "bob", "bobspassword1"])
        .await;
    assert!(
        said.starts_with("FILE: is no file with the specification of a user"),
        "{said}"
    );
    assert!(
        said.contains("--password-stdin") && !said.contains("bobspassword1"),
        "{said}"
    );
    let help = shell.done(&["user", "add", "--help"]).await;
    assert!(
        help.contains("Declare a user") && help.contains("The user\n"),
        "{help}"
    );
}

/// `apply` takes the manifest as `import` does, and a dry run does not say that it applied anything.
#[tokio::test]
async fn a_dry_run_would_change() {
    let shell = Shell::new().await;
    let file = shell.file("m.yaml", "version: 1\ntenants: {a: {auth: {mode: none}}}\n");
    let said = shell.run(&["apply", &file, "--dry-run"]).await;
    assert_eq!(
        (said.code, said.out.as_str()),
        (0, "+ tenant a\n"),
        "{}",
        said.err
    );
    assert!(
        said.err.ends_with("would change, without --dry-run:\n"),
        "{}",
        said.err
    );
    assert!(!said.err.contains("appl"), "{}", said.err);
    let said = shell.run(&["apply", &file]).await;
    assert_eq!(
        (said.code, said.out.as_str()),
        (0, "+ tenant a\n"),
        "{}",
        said.err
    );
    assert!(
        said.err.contains(&format!("applied {file}")),
        "{}",
        said.err
    );
    shell.fails(2, &["apply"]).await;
    shell.fails(2, &["apply", &file, "-f", &file]).await;
}

/// Sessions have the name of their client, and an age for people; a log without lines says so.
#[tokio::test]
async fn lists_are_for_people() {
    let shell = Shell::new().await;
    let _session = shell.session("a").await;
    let uri = "http://127.0.0.1:1/callback";
    let client = [
        "client",
        "add",
        "a",
        "ci",
        "--redirect-uri",
        uri,
        "--title",
        "The App",
    ];
    shell.done(&client).await;
    let listed = shell.done(&["session", "list", "a"]).await;
    let lines: Vec<&str> = listed.lines().collect();
    assert!(lines[0].contains("CLIENT  NAME     TRANSPORT"), "{listed}");
    assert!(lines[1].contains("ci      The App  "), "{listed}");
    let age = lines[1].rsplit(' ').next().unwrap();
    assert!(age.ends_with('s') && !age.contains('.'), "{listed}");
    let said = shell.run(&["server", "logs", "a", "x"]).await;
    assert_eq!((said.code, said.out.as_str()), (0, ""), "{}", said.err);
    assert_eq!(said.err, "no lines yet\n");
}

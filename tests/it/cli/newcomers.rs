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

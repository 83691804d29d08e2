//! Commands for containers and packages: health check, completions, man pages.

use std::{collections::BTreeSet, fs, process::Stdio};

use reqwest::StatusCode;
use serde_json::{Value, json};
use tokio::{io::AsyncWriteExt, net::TcpListener, process::Command};

use super::commands::{Said, Shell, stranger};
use crate::support::{harness::within, served::Served};

/// The listener that a health check asks, as a setting.
fn asking(address: &str) -> String {
    format!("ops.listen={address}")
}

async fn checked(args: &[&str]) -> Said {
    let mut command = stranger(&["healthcheck"]);
    command.args(args);
    Said::of(within("a health check", command.output()).await.unwrap())
}

#[tokio::test]
async fn a_health_check_asks_the_gateway_of_its_configuration() {
    let shell = Shell::new().await;
    let place = asking(shell.replica.ops.strip_prefix("http://").unwrap());
    for more in [&[][..], &["--live"]] {
        let said = checked(&[&["--set", &place], more].concat()).await;
        assert_eq!(said.code, 0, "{}", said.err);
        assert!(said.out.contains("\"status\""), "{}", said.out);
    }
    // The same by the environment, as in a container.
    let mut command = stranger(&["healthcheck"]);
    command.env(
        "LOCKGATE_OPS__LISTEN",
        place.strip_prefix("ops.listen=").unwrap(),
    );
    let said = Said::of(within("a health check", command.output()).await.unwrap());
    assert_eq!(said.code, 0, "{}", said.err);
    // Nobody listens any more.
    drop(shell);
    let said = checked(&["--set", &place]).await;
    assert_eq!((said.code, said.out.as_str()), (1, ""));
    assert!(said.err.contains("no connection"), "{}", said.err);
}

/// A gateway whose database is away from the start lives, and does not serve.
#[tokio::test]
async fn a_health_check_of_an_unready_gateway_fails() {
    let config = json!({"sql": {"url": "postgres://lockgate@127.0.0.1:1/lockgate"}});
    let gateway = Served::start(config, Value::Null).await;
    let (status, _) = gateway.ops_status("/readyz").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    let place = asking(&gateway.ops_address());
    let said = checked(&["--set", &place]).await;
    assert_eq!((said.code, said.out.as_str()), (1, ""));
    assert!(
        said.err.contains("503") && said.err.contains("unready"),
        "{}",
        said.err
    );
    assert_eq!(checked(&["--set", &place, "--live"]).await.code, 0);
}

#[tokio::test]
async fn a_health_check_ends_in_time_and_names_mistakes() {
    // Accepts connections and answers nothing.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let place = asking(&silent.local_addr().unwrap().to_string());
    let said = checked(&["--set", &place]).await;
    assert_eq!(said.code, 1, "{}", said.err);
    assert!(said.err.contains("no answer within 2s"), "{}", said.err);
    for (set, key) in [
        ("ops.listen=", "ops.listen"),
        ("ops.listen=127.0.0.1:0", "ops.listen"),
        ("ops.listne=127.0.0.1:1", "ops.listne"),
    ] {
        let said = checked(&["--set", set]).await;
        assert_eq!(said.code, 2, "{set}: {}", said.err);
        assert!(said.err.contains(key), "{set}: {}", said.err);
    }
}

/// Checks a script with the shell itself, if it is installed.
async fn is_sound(shell: &str, script: &str) -> Option<bool> {
    let process = Command::new(shell)
        .arg("-n")
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut process = process.ok()?;
    let mut stdin = process.stdin.take().unwrap();
    stdin.write_all(script.as_bytes()).await.unwrap();
    drop(stdin);
    Some(within("a shell", process.wait()).await.unwrap().success())
}

#[tokio::test]
async fn shells_complete_every_command() {
    for shell in ["bash", "zsh", "fish"] {
        let mut command = stranger(&["completions", shell]);
        let said = Said::of(within("completions", command.output()).await.unwrap());
        assert_eq!(said.code, 0, "{}", said.err);
        for name in ["serve", "healthcheck", "tenant", "completions"] {
            assert!(said.out.contains(name), "{shell}: {name}");
        }
        assert!(!said.out.contains("__demo"), "{shell}: an internal command");
        let is_sound = is_sound(shell, &said.out).await;
        assert!(is_sound.unwrap_or(shell != "bash"), "{shell}: {}", said.out);
    }
    let mut unknown = stranger(&["completions", "tcsh"]);
    assert_eq!(
        within("usage", unknown.output())
            .await
            .unwrap()
            .status
            .code(),
        Some(2)
    );
}

#[tokio::test]
async fn every_command_has_a_man_page() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().to_str().unwrap();
    let mut command = stranger(&["man", place]);
    let said = Said::of(within("man pages", command.output()).await.unwrap());
    assert_eq!(said.code, 0, "{}", said.err);
    let pages: BTreeSet<String> = fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    for page in [
        "lockgate.1",
        "lockgate-serve.1",
        "lockgate-key-new.1",
        "lockgate-tenant-list.1",
    ] {
        assert!(pages.contains(page), "{page}: {pages:?}");
    }
    assert!(!pages.iter().any(|page| page.contains("demo")), "{pages:?}");
    let page = fs::read_to_string(dir.path().join("lockgate-serve.1")).unwrap();
    assert!(
        page.contains(".SH OPTIONS") && page.contains("config"),
        "{page}"
    );
    let mut nowhere = stranger(&["man", "/nowhere"]);
    let said = Said::of(within("man pages", nowhere.output()).await.unwrap());
    assert_eq!(said.code, 1);
    assert!(said.err.contains("/nowhere"), "{}", said.err);
}

//! What a restored copy brings back of what was revoked and deleted after it was made.

use std::{path::Path, process::Output};

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::{
    auth::external_tokens::bearer,
    oauth::{
        account::{changed, signed_in},
        own_keys::{made, names_in},
        pages::ADA,
    },
    support::{
        browser::Browser,
        harness::{NEWEST, Session, opening, within},
        oauth_client::{App, gateway, send, tenants},
        served::Served,
    },
};

/// Runs a command on a data directory.
async fn run(data: &Path, words: &[&str]) -> String {
    let command = Command::new(env!("CARGO_BIN_EXE_lockgate"))
        .args(words)
        .args(["--set", &format!("data_dir={}", data.display())])
        .env_remove("DATABASE_URL")
        .kill_on_drop(true)
        .output();
    let output: Output = within("the end of a command", command).await.unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The command waited for a writer.
#[tokio::test]
async fn a_pipe_is_no_copy() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status().await.unwrap();
    assert!(made.success());
    let command = Command::new(env!("CARGO_BIN_EXE_lockgate"))
        .arg("restore")
        .arg(&pipe)
        .args(["--set", &format!("data_dir={}", folder.path().display())])
        .env_remove("DATABASE_URL")
        .kill_on_drop(true)
        .output();
    let refused: Output = within("a refusal", command).await.unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("is no file"), "{said}");
}

fn config(data: Option<&Path>) -> Value {
    let mut config = json!({"public_url": "https://gw.test"});
    if let Some(data) = data {
        config["data_dir"] = json!(data);
    }
    config
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_copy_revives_no_grant_and_names_keys_that_came_back() {
    let mut first = gateway(config(None)).await;
    let data = first.data();
    let operator = first.administrator();
    let app = App::public(&first, "a").await;
    let (revoked, kept) = (app.tokens().await, app.tokens().await);
    let keys = format!("{}/api/v1/operator-keys", first.origin());
    for name in ["gone", "stays"] {
        let added = send(Method::POST, &keys, &operator, Some(&json!({"name": name}))).await;
        assert_eq!(added.status, StatusCode::CREATED, "{}", added.body);
    }
    let copy = data.with_file_name("copy.db");
    let copy = copy.to_str().unwrap();
    run(&data, &["backup", copy]).await;
    let removed = send(Method::DELETE, &format!("{keys}/gone"), &operator, None).await;
    assert_eq!(removed.status, StatusCode::NO_CONTENT);
    assert_eq!(
        app.revoke(&revoked.text("refresh_token")).await,
        StatusCode::OK
    );
    let later = app.tokens().await.text("access_token");
    first.stop().await;
    for (more, is_good) in [(&[][..], false), (&["--keep-grants"], true)] {
        let said = run(&data, &[&["restore", copy], more].concat()).await;
        assert_ne!(said.contains("operator key gone"), is_good, "{said}");
        assert!(!said.contains("stays"), "{said}");
        let ended = said.contains("grants of the copy that ended: 2");
        assert_ne!(ended, is_good, "{said}");
        let mut again = Served::with(&[], config(Some(&data)), Value::Null).await;
        let app = App {
            origin: again.origin().to_owned(),
            ..app.clone()
        };
        for tokens in [&revoked, &kept] {
            let access = tokens.text("access_token");
            assert_eq!(app.reaches("x", &access).await, is_good);
            let refreshed = app.refresh(&tokens.text("refresh_token"), &[]).await;
            assert_eq!(
                refreshed.status == StatusCode::OK,
                is_good,
                "{}",
                refreshed.body
            );
        }
        assert!(
            is_good || !app.reaches("x", &later).await,
            "newer than the copy"
        );
        again.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_of_people_that_came_back_are_named() {
    let mut tenants = tenants();
    tenants["a"]["auth"]["own_keys"] = json!({});
    let mut first = Served::start(config(None), tenants).await;
    let data = first.data();
    let mut browser = Browser::new();
    let mut page = signed_in(&first, &mut browser, &ADA).await;
    let mut keys = Vec::new();
    for label in ["gone", "stays"] {
        let fields = [
            ("do", "make-key"),
            ("label", label),
            ("server.x", "yes"),
            ("life", "86400"),
        ];
        let (key, next) = made(&mut browser, &page, &fields).await;
        page = next;
        keys.push(key);
    }
    let names = names_in(&page);
    let copy = data.with_file_name("copy.db");
    let copy = copy.to_str().unwrap();
    run(&data, &["backup", copy]).await;
    let remove = [("do", "remove-key"), ("key", names[0].as_str())];
    changed(&first, &mut browser, &page, &remove).await;
    first.stop().await;
    let said = run(&data, &["restore", copy]).await;
    let line = format!("key {} of ada of tenant a", names[0]);
    assert!(said.contains(&line) && !said.contains(&names[1]), "{said}");
    let again = Served::with(&[], config(Some(&data)), Value::Null).await;
    for key in &keys {
        let url = format!("{}/t/a/x/mcp", again.origin());
        let session = Session::at(bearer(key), url);
        let opened = within("an answer", session.post(&opening(NEWEST))).await;
        assert_eq!(opened.status(), StatusCode::OK);
    }
}

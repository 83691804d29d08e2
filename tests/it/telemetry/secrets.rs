//! No secret of a whole story is in logs, stores, arguments or environments (R21).

use std::{collections::BTreeMap, path::Path, process::Stdio};

use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    auth::{api_keys::key, external_tokens::bearer},
    database::persistence::{Ground, Replica},
    support::{
        harness::{NEWEST, Session, client, marked},
        oauth_client::{App, BACK, SECRET, VERIFIER, send, tenants},
        redis::{Kind, Redis, Reply},
    },
};

#[expect(
    clippy::too_many_lines,
    reason = "a story is read from its beginning to its end"
)]
/// A call from the log-in on, at two replicas: the client, and every credential by its kind.
async fn story(replicas: [&Replica; 2], admin: &str) -> (App, BTreeMap<&'static str, String>) {
    let metadata =
        json!({"redirect_uris": [BACK], "token_endpoint_auth_method": "client_secret_post"});
    let url = format!("{}/t/a/oauth/register", replicas[0].http);
    let registered = send(Method::POST, &url, "", Some(&metadata)).await;
    let app = App {
        origin: replicas[0].http.clone(),
        tenant: "a".to_owned(),
        id: registered.text("client_id"),
        back: BACK.to_owned(),
        secret: Some(registered.text("client_secret")),
        http: client(),
    };
    let code = app.code(&[]).await;
    let first = app.redeem(&code, &[]).await;
    let second = app.refresh(&first.text("refresh_token"), &[]).await;
    assert_eq!(second.status, 200, "{}", second.body);
    // What is wrong is reported, and not repeated.
    let wrong = "a wrong but secret word";
    assert_eq!(
        app.ask(&[
            ("client_secret", wrong),
            ("grant_type", "refresh_token"),
            ("refresh_token", wrong)
        ])
        .await
        .status,
        401
    );
    assert_eq!(
        app.redeem(wrong, &[("code_verifier", wrong)]).await.status,
        400
    );
    let token = second.text("access_token");
    let mut here = Session::at(bearer(&token), format!("{}/t/a/x/mcp", replicas[0].http));
    here.initialize(NEWEST).await;
    let mut there = here.again();
    there.http = bearer(&token);
    there.url = format!("{}/t/a/x/mcp", replicas[1].http);
    for session in [&here, &there] {
        session
            .text("echo", json!({"text": "an argument of a call"}))
            .await;
    }
    let stranger = Session::at(bearer(wrong), here.url.clone());
    assert_eq!(
        stranger.ask("tools/list", json!({})).await["status"],
        Value::Null
    );
    let keys = format!("{}/api/v1/tenants/a/api-keys", replicas[1].http);
    let made = send(
        Method::POST,
        &keys,
        admin,
        Some(&json!({"name": "n", "subject": "s", "servers": ["*"]})),
    )
    .await;
    assert_eq!(made.status, 201, "{}", made.body);
    let secrets = BTreeMap::from([
        ("password", "correct horse".to_owned()),
        ("declared client's secret", SECRET.to_owned()),
        ("registered client's secret", app.secret.clone().unwrap()),
        ("code", code),
        ("verifier", VERIFIER.to_owned()),
        ("first access token", first.text("access_token")),
        ("first refresh token", first.text("refresh_token")),
        ("access token", token),
        ("refresh token", second.text("refresh_token")),
        ("wrong word", wrong.to_owned()),
        ("API key", made.text("key")),
        ("operator's key", admin.to_owned()),
        (
            "registration token",
            registered.text("registration_access_token"),
        ),
    ]);
    (app, secrets)
}

/// Everything that Redis keeps, keys and values.
fn kept(redis: &Redis) -> String {
    let mut text = String::new();
    for key in redis.keys() {
        let kind = redis.command(&["TYPE", &key]).text();
        let read: &[&str] = match kind.as_str() {
            "string" => &["GET", &key],
            "hash" => &["HGETALL", &key],
            "list" => &["LRANGE", &key, "0", "-1"],
            "set" => &["SMEMBERS", &key],
            "zset" => &["ZRANGE", &key, "0", "-1"],
            "stream" => &["XRANGE", &key, "-", "+"],
            // It has ended meanwhile.
            "none" => continue,
            other => panic!("{key} is a {other}"),
        };
        text.push_str(&format!("{key} {}\n", flat(&redis.command(read))));
    }
    text
}

fn flat(reply: &Reply) -> String {
    match reply {
        Reply::List(all) => all.iter().map(flat).collect::<Vec<_>>().join(" "),
        one => one.text(),
    }
}

/// The content of every file below a folder, but those that have a key by design.
fn files(folder: &Path) -> String {
    let mut text = String::new();
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        if path.is_dir() {
            text.push_str(&files(&path));
        } else if path.is_file() && name != "admin.key" && name != "master.key" {
            text.push_str(&String::from_utf8_lossy(&std::fs::read(&path).unwrap()));
        }
    }
    text
}

/// What `/proc` shows of processes.
fn shown(pids: &[u32], what: &str) -> String {
    let read = |pid: &u32| std::fs::read(format!("/proc/{pid}/{what}")).unwrap_or_default();
    let texts = pids
        .iter()
        .map(|pid| String::from_utf8_lossy(&read(pid)).replace('\0', " "));
    texts.collect()
}

#[expect(
    clippy::too_many_lines,
    reason = "a story is read from its beginning to its end"
)]
#[tokio::test(flavor = "multi_thread")]
async fn no_secret_of_a_whole_story_is_in_logs_stores_or_arguments() {
    let (mut ground, redis) = (Ground::postgres(), Redis::start(Kind::Redis));
    let (operator, _) = key();
    let (master, marker) = (
        "c2VjcmV0IG1hc3RlciBrZXkgb2YgMzIgYnl0ZXMhISE=",
        "canary-of-the-story",
    );
    let environment = "a secret in the environment of a server";
    let mut declared = tenants();
    declared["a"]["servers"]["x"]["env"] = json!({"TOKEN": environment, "MARKER": marker});
    let manifest = ground.manifest(&declared);
    let env = [
        ("LOCKGATE_MASTER_KEY", master),
        ("LOCKGATE_ADMIN_KEY", &*operator),
        ("LOCKGATE_REDIS__URL", &*redis.url()),
    ];
    let sets = [
        "--set=telemetry.log=debug",
        "--set=cluster.listen=127.0.0.1:0",
        "--set=public_url=https://gw.test",
    ];
    let args = [sets.as_slice(), &["--apply", manifest.to_str().unwrap()]].concat();
    let one = ground.serve_with(&env, &args).await;
    let other = ground.serve_with(&env, &sets).await;
    let (app, secrets) = story([&one, &other], &operator).await;
    let children = marked(&format!("MARKER={marker}"));
    assert!(!children.is_empty());
    let gateways = [one.pid(), other.pid()];
    let arguments = shown(&[children.as_slice(), &gateways].concat(), "cmdline");
    let inherited = shown(&children, "environ");
    // It ends the sessions, and their children.
    assert_eq!(app.revoke(&secrets["refresh token"]).await, 200);
    let in_redis = kept(&redis);
    let postgres = ground.database();
    let dump = postgres
        .command("pg_dump")
        .args(["--inserts", "-d", &postgres.url()])
        .stdout(Stdio::piped())
        .output()
        .unwrap();
    let dump = String::from_utf8(dump.stdout).unwrap();
    assert!(
        dump.contains("ada") && in_redis.contains("lockgate:v1:"),
        "they were used"
    );
    let in_files = files(&ground.data());
    let mut logs = one.kill().await;
    logs.extend(other.kill().await);
    let log = serde_json::to_string(&logs).unwrap();
    assert!(log.contains("DEBUG"), "all levels are in it");
    let hex = |text: &str| {
        text.bytes()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    let places = [
        ("log", &log),
        ("Redis", &in_redis),
        ("PostgreSQL", &dump),
        ("files", &in_files),
        ("arguments", &arguments),
        ("environments", &inherited),
    ];
    let own = [
        ("master key", master.to_owned()),
        ("secret of a server", environment.to_owned()),
    ];
    for (kind, secret) in secrets.into_iter().chain(own) {
        assert!(secret.len() > 10, "{kind} {secret}");
        for (place, text) in places {
            let is_its_own = (kind, place) == ("secret of a server", "environments");
            assert_eq!(
                text.contains(&secret),
                is_its_own,
                "{kind} in {place}: {secret}"
            );
            assert!(
                !text.contains(&hex(&secret)),
                "{kind} in {place}, in hexadecimal"
            );
        }
    }
}

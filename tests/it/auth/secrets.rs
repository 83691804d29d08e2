//! Secrets in the slots of servers: whose child gets them, when, and where else they are not.

use std::{
    io::Write,
    os::unix::fs::PermissionsExt,
    process::{Command, Stdio},
};

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::{
    auth::{api_keys::key, external_tokens::bearer},
    support::{
        harness::{NEWEST, Session, body, child, client, json_of, opening, text_of, until},
        modern::Modern,
        oauth_client::{Answer, send},
        pair::Pair,
        postgres::Postgres,
        served::Served,
    },
};

/// Tenants with API keys of people, and servers with slots.
struct People {
    ada: String,
    /// Another key of ada, as of another client.
    second: String,
    eve: String,
    /// Of tenant `b`, where the subject is named `ada`, too.
    stranger: String,
    tenants: Value,
}

impl People {
    fn new() -> Self {
        let [ada, second, eve, stranger] = [key(), key(), key(), key()];
        let of =
            |hash: &str, subject: &str| json!({"hash": hash, "subject": subject, "servers": ["*"]});
        let slot = json!({"for": "principal", "title": "Token of the service"});
        let x = json!({"command": child(), "secrets": {"TOKEN": slot}});
        let with = |key: &str, value: Value| {
            let mut server = x.clone();
            server[key] = value;
            server
        };
        let all = json!({"TOKEN": slot, "SHARED": {"for": "tenant"},
            "CREDENTIALS": {"for": "principal", "as": "file"}});
        let slow = json!({"CHILD_START_MS": "1500"});
        let tenants = json!({
            "a": {"auth": {"mode": "keys"},
                "api_keys": {"ada": of(&ada.1, "ada"), "second": of(&second.1, "ada"),
                    "eve": of(&eve.1, "eve")},
                "servers": {"x": x, "all": with("secrets", all), "slow": with("env", slow),
                    "own": with("isolation", json!("principal"))}},
            "b": {"auth": {"mode": "keys"}, "api_keys": {"ada": of(&stranger.1, "ada")},
                "servers": {"x": x}}});
        Self {
            ada: ada.0,
            second: second.0,
            eve: eve.0,
            stranger: stranger.0,
            tenants,
        }
    }
}

/// Sets a secret, or removes it without a value.
async fn put(
    gateway: &Served,
    (server, name): (&str, &str),
    subject: Option<&str>,
    value: Option<&str>,
) -> Answer {
    let admin = gateway.administrator();
    at(gateway, &admin, (server, name), subject, value).await
}

async fn at(
    gateway: &Served,
    admin: &str,
    (server, name): (&str, &str),
    subject: Option<&str>,
    value: Option<&str>,
) -> Answer {
    let query = subject.map_or(String::new(), |subject| format!("?subject={subject}"));
    let path = format!("api/v1/tenants/a/servers/{server}/secrets/{name}{query}");
    let url = format!("{}/{path}", gateway.origin());
    let body = value.map(|value| json!({"value": value}));
    let method = if value.is_some() {
        Method::PUT
    } else {
        Method::DELETE
    };
    send(method, &url, admin, body.as_ref()).await
}

async fn set(gateway: &Served, of: (&str, &str), subject: Option<&str>, value: &str) {
    let answer = put(gateway, of, subject, Some(value)).await;
    assert_eq!(answer.status, StatusCode::NO_CONTENT, "{}", answer.body);
}

fn stranger(gateway: &Served, key: &str, server: &str) -> Session {
    Session::at(bearer(key), format!("{}/t/{server}/mcp", gateway.origin()))
}

async fn session(gateway: &Served, key: &str, server: &str) -> Session {
    let mut session = stranger(gateway, key, server);
    session.initialize(NEWEST).await;
    session
}

/// The environment of the child of a session.
async fn env(session: &Session) -> Value {
    serde_json::from_str(&session.text("env", json!({})).await).unwrap()
}

async fn token(session: &Session) -> String {
    env(session).await["TOKEN"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

/// The error of an `initialize`.
async fn refused(gateway: &Served, key: &str, server: &str) -> Value {
    let answer = stranger(gateway, key, server).post(&opening(NEWEST)).await;
    json_of(answer).await["error"].take()
}

#[expect(clippy::too_many_lines, reason = "one story, told in order")]
#[tokio::test(flavor = "multi_thread")]
async fn each_child_has_the_secrets_of_its_own_person() {
    let people = People::new();
    let gateway = Served::start(json!({}), people.tenants.clone()).await;
    let missing = refused(&gateway, &people.ada, "a/all").await;
    assert_eq!(missing["code"], -31005, "{missing}");
    let text = missing["message"].as_str().unwrap();
    assert!(
        text.contains("TOKEN (Token of the service)") && text.contains("SHARED"),
        "{text}"
    );
    assert_eq!(missing["data"]["reason"], "secret_missing");
    set(&gateway, ("all", "TOKEN"), Some("ada"), "of ada").await;
    set(
        &gateway,
        ("all", "CREDENTIALS"),
        Some("ada"),
        "{\"file\":\n1}",
    )
    .await;
    assert_eq!(
        refused(&gateway, &people.ada, "a/all").await["code"],
        -31005
    );
    set(&gateway, ("all", "SHARED"), None, "of all").await;
    // Nobody else has what ada has: not by name, and not in another tenant.
    assert_eq!(
        refused(&gateway, &people.eve, "a/all").await["code"],
        -31005
    );
    assert_eq!(refused(&gateway, &people.ada, "a/x").await["code"], -31005);
    assert_eq!(
        refused(&gateway, &people.stranger, "b/x").await["code"],
        -31005
    );
    set(&gateway, ("all", "TOKEN"), Some("eve"), "of eve").await;
    set(&gateway, ("all", "CREDENTIALS"), Some("eve"), "eve's").await;
    let (ada, eve) = (
        session(&gateway, &people.ada, "a/all").await,
        session(&gateway, &people.eve, "a/all").await,
    );
    let (own, theirs) = (env(&ada).await, env(&eve).await);
    assert_eq!(
        (&own["TOKEN"], &own["SHARED"]),
        (&json!("of ada"), &json!("of all"))
    );
    assert_eq!(
        (&theirs["TOKEN"], &theirs["SHARED"]),
        (&json!("of eve"), &json!("of all"))
    );
    assert!(!own.to_string().contains("eve") && !theirs.to_string().contains("of ada"));
    let file = own["CREDENTIALS"].as_str().unwrap();
    assert_eq!(std::fs::read_to_string(file).unwrap(), "{\"file\":\n1}");
    let mode = std::fs::metadata(file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(
        file,
        format!("{}/CREDENTIALS", own["HOME"].as_str().unwrap())
    );
    // The same person by another client.
    let second = session(&gateway, &people.second, "a/all").await;
    assert_eq!(token(&second).await, "of ada");
    ada.delete().await;
    until("the file to go", async || {
        !std::path::Path::new(file).exists()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_secret_replaces_the_child_and_keeps_the_session() {
    let people = People::new();
    let gateway = Served::start(json!({}), people.tenants.clone()).await;
    for server in ["x", "own"] {
        for (subject, value) in [("ada", "first"), ("eve", "eve's")] {
            set(&gateway, (server, "TOKEN"), Some(subject), value).await;
        }
        let path = format!("a/{server}");
        let (ada, eve) = (
            session(&gateway, &people.ada, &path).await,
            session(&gateway, &people.eve, &path).await,
        );
        let pid = async |session: &Session| session.text("whoami", json!({})).await;
        let (before, other) = (pid(&ada).await, pid(&eve).await);
        assert_eq!(token(&ada).await, "first");
        // The same value changes nothing; another one is not seen by a call that is under way.
        set(&gateway, (server, "TOKEN"), Some("ada"), "first").await;
        assert_eq!(pid(&ada).await, before);
        let call = ada.begin("slow", json!({"n": 5, "ms": 100})).await;
        set(&gateway, (server, "TOKEN"), Some("ada"), "second").await;
        assert!(body(call).await.contains("done"));
        until("the new value", async || token(&ada).await == "second").await;
        assert_eq!(pid(&eve).await, other, "another person's child");
        let removed = put(&gateway, (server, "TOKEN"), Some("ada"), None).await;
        assert_eq!(removed.status, StatusCode::NO_CONTENT);
        until("the child to end", async || {
            let answer = ada.call("env", json!({})).await;
            answer["error"]["code"] == -31005
        })
        .await;
        set(&gateway, (server, "TOKEN"), Some("ada"), "third").await;
        assert_eq!(token(&ada).await, "third", "the session goes on");
        assert_eq!(token(&eve).await, "eve's");
    }
}

/// The next request behind a new secret uses it, at a child of its own and at a shared one.
#[tokio::test(flavor = "multi_thread")]
async fn the_request_behind_a_new_secret_has_it() {
    let people = People::new();
    let gateway = Served::start(json!({}), people.tenants.clone()).await;
    for server in ["x", "own"] {
        set(&gateway, (server, "TOKEN"), Some("ada"), "first").await;
        let path = format!("a/{server}");
        let ada = session(&gateway, &people.ada, &path).await;
        let mut modern = Modern::at(&format!("{}/t/{path}/mcp", gateway.origin()));
        modern.token = Some(people.ada.clone());
        for round in 0..10 {
            let value = format!("value {round}");
            set(&gateway, (server, "TOKEN"), Some("ada"), &value).await;
            assert_eq!(token(&ada).await, value, "{server}");
            let text = modern.text("env", json!({})).await;
            assert!(text.contains(&value), "{server}: {text}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_that_changes_while_its_child_starts_reaches_the_session() {
    let people = People::new();
    let gateway = Served::start(json!({}), people.tenants.clone()).await;
    set(&gateway, ("slow", "TOKEN"), Some("ada"), "old").await;
    let mut ada = stranger(&gateway, &people.ada, "a/slow");
    let beginning = ada.initialize(NEWEST);
    let changing = async {
        until("a child that starts", async || {
            let children = gateway.children().await;
            children
                .iter()
                .any(|one| one["server"] == "slow" && !one["pid"].is_null())
        })
        .await;
        set(&gateway, ("slow", "TOKEN"), Some("ada"), "new").await;
    };
    tokio::join!(beginning, changing);
    assert_eq!(token(&ada).await, "new");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_changes_at_both_replicas() {
    let people = People::new();
    let pair = Pair::of(json!({}), people.tenants.clone()).await;
    let [first, second] = pair.both();
    let admin = first.administrator();
    let set = async |gateway: &Served, value: &str| {
        let answer = at(gateway, &admin, ("x", "TOKEN"), Some("ada"), Some(value)).await;
        assert_eq!(answer.status, StatusCode::NO_CONTENT, "{}", answer.body);
    };
    set(first, "one").await;
    let here = session(first, &people.ada, "a/x").await;
    let there = session(second, &people.ada, "a/x").await;
    assert_eq!(
        (token(&here).await, token(&there).await),
        ("one".into(), "one".into())
    );
    for (at, value) in [(second, "two"), (first, "three")] {
        set(at, value).await;
        for session in [&here, &there] {
            until("the new value", async || token(session).await == value).await;
        }
    }
}

/// One command replaces the children that a leaked value or a new binary concerns, wherever they run.
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_of_a_server_replaces_its_children_at_both_replicas() {
    let people = People::new();
    let pair = Pair::of(json!({}), people.tenants.clone()).await;
    let [first, second] = pair.both();
    let admin = first.administrator();
    for name in ["ada", "eve"] {
        let answer = at(first, &admin, ("x", "TOKEN"), Some(name), Some("one")).await;
        assert_eq!(answer.status, StatusCode::NO_CONTENT, "{}", answer.body);
    }
    let here = session(first, &people.ada, "a/x").await;
    let there = session(second, &people.eve, "a/x").await;
    let pid = async |session: &Session| session.text("whoami", json!({})).await;
    let before = [pid(&here).await, pid(&there).await];
    // A call that would never end by itself.
    let call = there.call("hang", json!({}));
    let restart = async {
        until("the call", async || {
            second.children().await[0]["calls"] == 1
        })
        .await;
        let url = format!(
            "{}/api/v1/tenants/a/servers/x/restart?mode=now",
            first.origin()
        );
        let asked = client().post(url).bearer_auth(&admin).send();
        let said = json_of(asked.await.unwrap()).await;
        assert_eq!(said, json!({"children": 1, "replicas": "all"}));
    };
    let (cut, ()) = tokio::join!(call, restart);
    assert_eq!(cut["error"]["code"], -31001, "{cut}");
    for (session, before) in [&here, &there].into_iter().zip(before) {
        // A call may still reach the old child, and end with it.
        until("a new child", async || {
            let answer = session.call("whoami", json!({})).await;
            answer["result"].is_object() && text_of(&answer) != before
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_without_sessions_is_told_which_secret_is_missing() {
    let people = People::new();
    let gateway = Served::start(json!({}), people.tenants.clone()).await;
    let url = format!("{}/t/a/x/mcp", gateway.origin());
    let mut client = Modern::at(&url);
    client.token = Some(people.ada.clone());
    let missing = client.call("env", json!({})).await;
    assert_eq!(missing["error"]["code"], -31005, "{missing}");
    set(&gateway, ("x", "TOKEN"), Some("ada"), "mine").await;
    let text = client.text("env", json!({})).await;
    assert!(text.contains("mine"), "{text}");
    // Another person, with the same capabilities, by the same URL.
    client.token = Some(people.eve.clone());
    let missing = client.call("env", json!({})).await;
    assert_eq!(missing["error"]["code"], -31005, "{missing}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_set_is_what_a_server_declares_for_that_holder() {
    let people = People::new();
    let gateway = Served::start(json!({}), people.tenants.clone()).await;
    let long = "x".repeat((16 << 10) + 1);
    for (of, subject, value, status) in [
        (("all", "TOKEN"), None, "v", 422),
        (("all", "SHARED"), Some("ada"), "v", 422),
        (("all", "TOKEN"), Some(""), "v", 422),
        (("all", "NOTHING"), Some("ada"), "v", 404),
        (("all", "LD_PRELOAD"), Some("ada"), "v", 404),
        (("all", "..%2FTOKEN"), Some("ada"), "v", 404),
        (("none", "TOKEN"), Some("ada"), "v", 404),
        (("all", "TOKEN"), Some("ada"), "", 422),
        (("all", "TOKEN"), Some("ada"), "a\0b", 422),
        (("all", "TOKEN"), Some("ada"), &long, 422),
    ] {
        let answer = put(&gateway, of, subject, Some(value)).await;
        assert_eq!(answer.status, status, "{of:?}: {}", answer.body);
    }
    let gone = put(&gateway, ("all", "TOKEN"), Some("ada"), None).await;
    assert_eq!(gone.status, 404);
    // People are no administrators, not even of what is their own.
    let own = at(
        &gateway,
        &people.ada,
        ("all", "TOKEN"),
        Some("ada"),
        Some("v"),
    )
    .await;
    assert_eq!(own.status, 403);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_child_starts_while_its_secrets_cannot_be_read() {
    let (people, postgres) = (People::new(), Postgres::start());
    let config = json!({"sql": {"url": postgres.url()}});
    let gateway = Served::start(config, people.tenants.clone()).await;
    set(&gateway, ("x", "TOKEN"), Some("ada"), "v").await;
    drop(postgres);
    let later = stranger(&gateway, &people.ada, "a/x");
    let refused = later.post(&opening(NEWEST)).await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(refused.headers().contains_key("retry-after"));
    let told = body(refused).await;
    assert!(
        told.contains("a secret that the server needs cannot be read"),
        "{told}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_are_listed_page_by_page_without_values() {
    let people = People::new();
    let gateway = Served::start(json!({}), people.tenants.clone()).await;
    for subject in ["ada", "eve"] {
        set(&gateway, ("all", "TOKEN"), Some(subject), "canary").await;
        set(&gateway, ("all", "CREDENTIALS"), Some(subject), "canary").await;
    }
    set(&gateway, ("all", "SHARED"), None, "canary").await;
    let list = async |query: &str| {
        let path = "api/v1/tenants/a/servers/all/secrets";
        let url = format!("{}/{path}?{query}", gateway.origin());
        let answer = send(Method::GET, &url, &gateway.administrator(), None).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.body
    };
    let (mut after, mut seen) = (String::new(), Vec::new());
    loop {
        let page = list(&format!("limit=2&after={after}")).await;
        assert!(!page.to_string().contains("canary"));
        for one in page["items"].as_array().unwrap() {
            let subject = one["subject"].as_str().unwrap_or("-");
            seen.push(format!("{subject} {}", one["name"].as_str().unwrap()));
        }
        match page["next"].as_str() {
            Some(next) => next.clone_into(&mut after),
            None => break,
        }
    }
    seen.sort();
    let wanted = [
        "- SHARED",
        "ada CREDENTIALS",
        "ada TOKEN",
        "eve CREDENTIALS",
        "eve TOKEN",
    ];
    assert_eq!(seen, wanted);
    let eves = list("subject=eve").await;
    assert_eq!(eves["items"].as_array().unwrap().len(), 2, "{eves}");
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_go_with_their_server_and_their_user() {
    let people = People::new();
    let mut tenants = people.tenants.clone();
    tenants["a"]["auth"]["mode"] = json!("builtin");
    tenants["a"]["users"] = json!({"ada": {"password": "correct horse"}});
    let config = json!({"public_url": "http://127.0.0.1"});
    let gateway = Served::start(config, tenants).await;
    let api = format!("{}/api/v1/tenants/a", gateway.origin());
    let admin = gateway.administrator();
    for subject in ["ada", "eve"] {
        set(&gateway, ("x", "TOKEN"), Some(subject), "v").await;
    }
    let count = async || {
        let list = send(
            Method::GET,
            &format!("{api}/servers/x/secrets"),
            &admin,
            None,
        )
        .await;
        list.body["items"].as_array().map_or(99, Vec::len)
    };
    assert_eq!(count().await, 2);
    let removed = send(Method::DELETE, &format!("{api}/users/ada"), &admin, None).await;
    assert_eq!(removed.status, 204);
    assert_eq!(count().await, 1);
    let server = send(Method::GET, &format!("{api}/servers/x"), &admin, None).await;
    let removed = send(Method::DELETE, &format!("{api}/servers/x"), &admin, None).await;
    assert_eq!(removed.status, 204);
    let mut again = server.body["spec"].clone();
    again["env"] = json!({});
    let again = send(
        Method::PUT,
        &format!("{api}/servers/x"),
        &admin,
        Some(&again),
    )
    .await;
    assert_eq!(again.status, 201, "{}", again.body);
    assert_eq!(count().await, 0);
}

/// What `lockgate server …` prints, with this on its stdin.
fn command(gateway: &Served, args: &[&str], stdin: &str) -> (bool, String) {
    let mut run = Command::new(env!("CARGO_BIN_EXE_lockgate"))
        .args(args)
        .env("LOCKGATE_URL", gateway.origin())
        .env("LOCKGATE_KEY", gateway.administrator())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    run.stdin
        .take()
        .unwrap()
        .write_all(stdin.as_bytes())
        .unwrap();
    let output = run.wait_with_output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).unwrap())
}

/// The content of every file below a folder, but the keys.
fn files(folder: &std::path::Path) -> String {
    let mut text = String::new();
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        if path.is_dir() {
            text.push_str(&files(&path));
        } else if path.is_file() && name != "admin.key" && name != "master.key" {
            text.push_str(&String::from_utf8_lossy(
                &std::fs::read(&path).unwrap_or_default(),
            ));
        }
    }
    text
}

#[expect(clippy::too_many_lines, reason = "one story, told in order")]
#[tokio::test(flavor = "multi_thread")]
async fn a_secret_is_nowhere_but_in_its_child() {
    let people = People::new();
    let config = json!({"telemetry": {"log": "trace"}});
    let mut gateway = Served::start(config, people.tenants.clone()).await;
    let canary = "canary-7d31f0";
    let by = |args: &[&str], stdin: &str| command(&gateway, args, stdin);
    let of = ["a", "x", "TOKEN", "--subject=ada"];
    let (is_set, text) = by(
        &[&["server", "set-secret"], &of[..]].concat(),
        &format!("{canary}-1\n"),
    );
    assert!(is_set, "{text}");
    let ada = session(&gateway, &people.ada, "a/x").await;
    assert_eq!(token(&ada).await, format!("{canary}-1"));
    set(
        &gateway,
        ("x", "TOKEN"),
        Some("ada"),
        &format!("{canary}-2"),
    )
    .await;
    until("the new value", async || {
        token(&ada).await == format!("{canary}-2")
    })
    .await;
    // Requests that fail with it.
    put(&gateway, ("x", "NOTHING"), Some("ada"), Some(canary)).await;
    put(&gateway, ("all", "SHARED"), Some("ada"), Some(canary)).await;
    put(
        &gateway,
        ("x", "TOKEN"),
        Some("ada"),
        Some(&format!("{canary}\0")),
    )
    .await;
    let eve = refused(&gateway, &people.eve, "a/x").await;
    let mut all = eve.to_string() + &text;
    let (_, listed) = by(&["server", "secrets", "a", "x"], "");
    assert!(
        listed.contains("TOKEN") && listed.contains("ada"),
        "{listed}"
    );
    let (_, shown) = by(&["server", "show", "a", "x"], "");
    let (_, audit) = by(&["audit", "--json"], "");
    assert!(
        audit.contains("secret.set") && audit.contains("secret a/x/TOKEN"),
        "{audit}"
    );
    all.extend([listed, shown, audit]);
    for path in [
        "status",
        "tenants/a/servers/x/children",
        "tenants/a/servers/x/logs",
    ] {
        let url = format!("{}/api/v1/{path}", gateway.origin());
        all += &send(Method::GET, &url, &gateway.administrator(), None)
            .await
            .body
            .to_string();
    }
    all += &gateway.ops("/metrics").await;
    for process in gateway.descendants().into_iter().chain([gateway.pid()]) {
        let line = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        all += &String::from_utf8_lossy(&line);
    }
    all += &files(&gateway.data());
    let (is_removed, text) = by(&[&["server", "remove-secret"], &of[..]].concat(), "");
    assert!(is_removed, "{text}");
    for line in gateway.end().await {
        all += &line.to_string();
    }
    assert!(
        all.len() > 10_000 && !all.contains(canary),
        "a canary was seen"
    );
}

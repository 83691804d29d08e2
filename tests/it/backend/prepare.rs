//! Preparation of servers: one installation before the first child. The registries here are
//! scripts; `tests/referees` has the real ones.

use std::{
    collections::BTreeSet,
    fs,
    io::Write,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

use futures_util::future::join_all;
use reqwest::StatusCode;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::auth::external_tokens::bearer;
use crate::support::{
    harness::{BOTH, Gateway, NEWEST, Session, body, child, opening, until, within},
    served::Served,
};

/// A directory with the log of a test's preparations, and the pipe that they wait for.
struct Site {
    dir: tempfile::TempDir,
}

impl Site {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let made = std::process::Command::new("mkfifo")
            .arg(dir.path().join("gate"))
            .status();
        assert!(made.unwrap().success());
        Self { dir }
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    /// A preparation that logs its run, does `work`, and installs a server.
    fn words(&self, work: &str) -> Value {
        let text = format!(
            "pwd >> {}; {work}; mkdir bin; printf '#!/bin/sh\\nexec {} \"$@\"\\n' > bin/server; chmod +x bin/server; ln -s / bin/root",
            self.path("runs"),
            child(),
        );
        json!(["sh", "-c", text.replace('$', "$$")])
    }

    /// The sandbox settings of these preparations.
    fn walls(&self) -> Value {
        let child = child();
        let programs = Path::new(&child).parent().unwrap();
        json!({"read": [programs], "write": [self.dir.path()]})
    }

    /// The command that waits for [`Site::open`].
    fn wait(&self) -> String {
        format!("read go < {}", self.path("gate"))
    }

    /// Lets one waiting preparation continue.
    fn open(&self) {
        let mut gate = fs::OpenOptions::new()
            .write(true)
            .open(self.path("gate"))
            .unwrap();
        gate.write_all(b"go\n").unwrap();
    }

    /// A server whose preparation waits for [`Site::go`] of its number.
    fn waiting(&self, number: u32) -> Value {
        let go = self.path(&format!("go-{number}"));
        let work = format!("until [ -e {go} ]; do sleep 0.01; done");
        json!({"command": "${prepared}/bin/server", "sandbox": self.walls(),
            "prepare": self.words(&work)})
    }

    fn go(&self, number: &str) {
        fs::write(self.path(&format!("go-{number}")), "").unwrap();
    }

    fn runs(&self) -> usize {
        let runs = fs::read_to_string(self.path("runs")).unwrap_or_default();
        runs.lines().count()
    }

    /// Writes a shell script, and returns its path.
    fn program(&self, name: &str, lines: &[&str]) -> String {
        let path = self.path(name);
        fs::write(&path, format!("#!/bin/sh\nset -e\n{}\n", lines.join("\n"))).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }
}

async fn served(servers: Value) -> Served {
    Served::start(
        json!({}),
        json!({"a": {"auth": {"mode": "none"}, "servers": servers}}),
    )
    .await
}

async fn prepared(gateway: &Served) -> Vec<Value> {
    serde_json::from_str(&gateway.ops("/prepared").await).unwrap()
}

async fn is_in_state(gateway: &Served, state: &str) {
    until(state, || async {
        let all = prepared(gateway).await;
        !all.is_empty() && all.iter().all(|one| one["state"] == state)
    })
    .await;
}

/// The arguments of a session's child.
async fn args(session: &Session) -> Vec<String> {
    let args: Vec<String> = serde_json::from_str(&session.text("args", json!({})).await).unwrap();
    args.into_iter().skip(1).collect()
}

async fn environment(session: &Session) -> Value {
    serde_json::from_str(&session.text("env", json!({})).await).unwrap()
}

/// The store that a session's child was started with.
async fn store_of(session: &Session) -> PathBuf {
    let env = environment(session).await;
    PathBuf::from(env["LOCKGATE_PREPARED"].as_str().unwrap())
}

fn names(dir: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect()
}

#[tokio::test]
async fn ten_sessions_wait_for_one_run_and_read_what_it_made() {
    let site = Site::new();
    let server = json!({"command": "${prepared}/bin/server", "sandbox": site.walls(),
        "prepare": site.words(&site.wait())});
    let gateway = served(json!({"main": server, "same": server})).await;
    is_in_state(&gateway, "preparing").await;
    let names_of = ["main", "same"].into_iter().cycle();
    let opened = join_all(names_of.take(10).map(|name| gateway.session("a", name)));
    let (sessions, ()) = tokio::join!(opened, async {
        until("both servers asked", || async {
            prepared(&gateway).await[0]["servers"] == json!(["a/main", "a/same"])
        })
        .await;
        assert!(gateway.children().await.is_empty());
        site.open();
    });
    assert_eq!(site.runs(), 1);
    let mut stores = BTreeSet::new();
    let mut own = BTreeSet::new();
    for session in &sessions {
        stores.insert(store_of(session).await);
        let env = environment(session).await;
        own.insert(env["HOME"].as_str().unwrap().to_owned());
    }
    assert_eq!((stores.len(), own.len()), (1, 10));
    let store = stores.pop_first().unwrap();
    let all = prepared(&gateway).await;
    assert_eq!(
        (all.len(), &all[0]["state"], &all[0]["subject"]),
        (1, &json!("ready"), &json!("sh"))
    );
    let link = gateway
        .data()
        .join("prepared")
        .join(all[0]["digest"].as_str().unwrap());
    assert_eq!(fs::canonicalize(&link).unwrap(), store);
    for path in ["", "bin", "bin/server"] {
        let mode = fs::metadata(store.join(path)).unwrap().permissions().mode();
        assert_eq!(mode & 0o222, 0, "{path}: {mode:o}");
    }
    assert_eq!(names(&store), BTreeSet::from(["bin".to_owned()]));
    let outside = fs::metadata("/").unwrap().permissions().mode();
    assert_ne!(outside & 0o200, 0, "no link is followed");
}

#[tokio::test]
async fn a_failed_one_is_told_to_the_operator_and_not_to_the_client() {
    let site = Site::new();
    let work = "seq 30; echo out; echo \"s3cret $HOME\" >&2; exit 3";
    let gateway = served(json!({
        "bad": {"command": "${prepared}/bin/server", "prepare": site.words(work),
            "sandbox": site.walls()},
        "main": {"command": child()},
    }))
    .await;
    let stranger = gateway.stranger("a", "bad");
    let mut answers = 0;
    loop {
        let response = stranger.post(&opening("2025-11-25")).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert!(response.headers().get("mcp-session-id").is_none());
        let text = body(response).await;
        assert!(!text.contains("s3cret"), "{text}");
        let answer: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(answer["error"]["code"], -31001, "{answer}");
        assert_eq!(answer["error"]["data"]["retryable"], true, "{answer}");
        if answer["error"]["data"]["reason"] == "circuit_open" {
            break;
        }
        assert_eq!(answer["error"]["data"]["reason"], "prepare_failed");
        answers += 1;
        assert!(answers < 10);
    }
    assert_eq!(site.runs(), 5, "as many as other failed starts");
    let seen = prepared(&gateway).await.remove(0);
    assert_eq!(seen["state"], "failed");
    let output: Vec<&str> = seen["output"]
        .as_array()
        .unwrap()
        .iter()
        .map(|line| line.as_str().unwrap())
        .collect();
    assert_eq!(output.len(), 21, "{output:?}");
    assert_eq!(output[17..19], ["30", "out"]);
    assert!(output[19].starts_with("s3cret /"), "{output:?}");
    assert_eq!(output[20], "it ended with 3");
    let store = gateway.data().join("prepared");
    assert_eq!(names(&store), BTreeSet::new(), "nothing half is left");
    let main = gateway.session("a", "main").await;
    assert_eq!(main.text("echo", json!({"text": "x"})).await, "x");
}

/// What no server needs any more is not listed, and does not grow with every change.
#[tokio::test]
async fn a_replaced_package_is_not_listed() {
    let site = Site::new();
    let server = |work: &str| {
        json!({"command": "${prepared}/bin/server", "prepare": site.words(work),
            "sandbox": site.walls()})
    };
    let gateway = served(json!({"main": server("true")})).await;
    is_in_state(&gateway, "ready").await;
    let old = prepared(&gateway).await.remove(0)["digest"].clone();
    let url = format!("{}/api/v1/tenants/a/servers/main", gateway.origin());
    let operator = bearer(&gateway.administrator());
    let put = operator.put(&url).json(&server(": again")).send();
    assert_eq!(put.await.unwrap().status(), StatusCode::OK);
    until("the new one alone", || async {
        let all = prepared(&gateway).await;
        all.len() == 1 && all[0]["state"] == "ready" && all[0]["digest"] != old
    })
    .await;
    let removed = operator.delete(&url).send().await.unwrap();
    assert_eq!(removed.status(), StatusCode::NO_CONTENT);
    until("none", || async { prepared(&gateway).await.is_empty() }).await;
}

#[tokio::test]
async fn what_failed_once_is_tried_again() {
    let site = Site::new();
    let work = format!("test -e {}", site.path("there"));
    let work = format!("{work} || exit 1");
    let server = json!({"command": "${prepared}/bin/server", "cwd": "${prepared}/bin",
        "prepare": site.words(&work), "sandbox": site.walls(), "warm": 1});
    let gateway = served(json!({"main": server})).await;
    is_in_state(&gateway, "failed").await;
    fs::write(site.path("there"), "").unwrap();
    // The start of warm children repeats the preparation.
    is_in_state(&gateway, "ready").await;
    let session = gateway.session("a", "main").await;
    let place: Value = serde_json::from_str(&session.text("cwd", json!({})).await).unwrap();
    let bin = store_of(&session).await.join("bin");
    assert_eq!(place["cwd"].as_str().map(Path::new), Some(&*bin));
}

#[tokio::test]
async fn preparations_of_one_tenant_that_do_not_end_stop_no_other() {
    let site = Site::new();
    let server = |work: &str| {
        json!({"command": "${prepared}/bin/server", "sandbox": site.walls(),
            "prepare": site.words(work)})
    };
    let stuck = |one: u32| server(&format!("true {one}; {}", site.wait()));
    // The preparation of `b` ends when three of `a` run, too.
    let runs = site.path("runs");
    let after = format!("until [ $(wc -l < {runs}) -ge 4 ]; do sleep 0.01; done");
    let one = |servers: Value| json!({"auth": {"mode": "none"}, "servers": servers});
    let stuck = json!({"1": stuck(1), "2": stuck(2), "3": stuck(3), "4": stuck(4), "5": stuck(5)});
    let gateway = Served::start(
        json!({}),
        json!({"a": one(stuck), "b": one(json!({"main": server(&after)}))}),
    )
    .await;
    gateway.session("b", "main").await;
    assert_eq!(site.runs(), 4, "three of the one, and that of the other");
}

/// A tenant with many recipes had more processes than its quota.
#[tokio::test]
async fn preparations_are_children_of_their_tenant() {
    let site = Site::new();
    let one = |quotas: Value, servers: Value| json!({"auth": {"mode": "none"}, "quotas": quotas, "servers": servers});
    let servers = json!({"1": site.waiting(1), "2": site.waiting(2), "3": site.waiting(3)});
    let tenants = json!({"a": one(json!({"children": 2}), servers),
        "b": one(json!({}), json!({"main": {"command": child()}}))});
    let gateway = Served::start(json!({}), tenants).await;
    until("two that run", || async {
        let all = prepared(&gateway).await;
        let of = |state: &str| all.iter().filter(|one| one["state"] == state).count();
        (of("preparing"), of("failed"), site.runs()) == (2, 1, 2)
    })
    .await;
    gateway.session("b", "main").await;
    let all = prepared(&gateway).await;
    let refused = all.iter().find(|one| one["state"] == "failed").unwrap();
    let reason = "no room for it among the children of its tenant, or of the gateway";
    assert_eq!(refused["output"], json!([reason]));
    let refused = refused["servers"][0].as_str().unwrap();
    let refused = refused.strip_prefix("a/").unwrap();
    let response = gateway.stranger("a", refused).post(&opening(NEWEST)).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(body(response).await.contains("children of the tenant"));
    assert_eq!(site.runs(), 2);
    // A place is free as soon as a preparation has ended, also for one that was refused.
    let other = if refused == "1" { "2" } else { "1" };
    site.go(other);
    until("one is ready", || async {
        let all = prepared(&gateway).await;
        all.iter().any(|one| one["state"] == "ready")
    })
    .await;
    site.go(refused);
    let began = gateway.session("a", refused).await;
    assert_eq!(began.text("echo", json!({"text": "x"})).await, "x");
    assert_eq!(site.runs(), 3);
}

/// One that was refused at the start of the gateway waited for its first caller.
#[tokio::test]
async fn a_preparation_without_room_is_tried_again_by_itself() {
    let site = Site::new();
    let servers = json!({"1": site.waiting(1), "2": site.waiting(2)});
    let tenant = json!({"auth": {"mode": "none"}, "quotas": {"children": 1}, "servers": servers});
    let config = json!({"spawn": {"wait": "100ms"}});
    let gateway = Served::start(config, json!({"a": tenant})).await;
    until("one that is refused", || async {
        let all = prepared(&gateway).await;
        all.iter().any(|one| one["state"] == "failed") && site.runs() == 1
    })
    .await;
    site.go("1");
    site.go("2");
    is_in_state(&gateway, "ready").await;
    assert_eq!(site.runs(), 2);
}

/// As many as the slots of preparations ran beyond `spawn.children`.
#[tokio::test]
async fn preparations_count_among_the_children_of_the_gateway() {
    let site = Site::new();
    let one = |servers: Value| json!({"auth": {"mode": "none"}, "servers": servers});
    let tenants = json!({"a": one(json!({"1": site.waiting(1)})),
        "b": one(json!({"main": {"command": child()}}))});
    let config = json!({"spawn": {"wait": "100ms", "children": 1}});
    let gateway = Served::start(config, tenants).await;
    until("it runs", || async { site.runs() == 1 }).await;
    let refused = gateway.stranger("b", "main").post(&opening(NEWEST)).await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(refused.headers().contains_key("retry-after"));
    site.go("1");
    is_in_state(&gateway, "ready").await;
    gateway.session("b", "main").await;
}

#[tokio::test]
async fn no_child_starts_while_preparations_take_too_much_memory() {
    let site = Site::new();
    let hold = "head -c 150000000 /dev/zero";
    let work = format!("{{ {hold}; {}; }} | tail > /dev/null", site.wait());
    let large = json!({"command": "${prepared}/bin/server", "sandbox": site.walls(),
        "prepare": site.words(&work)});
    let servers = json!({"large": large, "main": {"command": child()}});
    let tenant = json!({"auth": {"mode": "none"}, "quotas": {"memory": "90MiB"},
        "servers": servers});
    let gateway = Served::start(json!({}), json!({"a": tenant})).await;
    let status = async || {
        let mut session = gateway.stranger("a", "main");
        let response = session.post(&opening(NEWEST)).await;
        let id = response.headers().get("mcp-session-id");
        session.id = id.map(|id| id.to_str().unwrap().to_owned());
        if session.id.is_some() {
            session.delete().await;
        }
        response.status()
    };
    until("a refusal", async || {
        status().await == StatusCode::TOO_MANY_REQUESTS
    })
    .await;
    site.open();
    until("a child", async || status().await == StatusCode::OK).await;
}

/// A tenant's own servers waited for ten minutes.
#[tokio::test]
async fn preparations_that_do_not_end_stop_no_other_of_their_tenant_for_long() {
    let site = Site::new();
    let server = |work: &str| {
        json!({"command": "${prepared}/bin/server", "sandbox": site.walls(),
            "prepare": site.words(work)})
    };
    let stuck = |one: u32| server(&format!("true {one}; {}", site.wait()));
    let mut servers: serde_json::Map<_, _> =
        (0..3).map(|one| (one.to_string(), stuck(one))).collect();
    let gateway = served(json!(servers)).await;
    until("three that are stuck", || async { site.runs() == 3 }).await;
    servers.insert("main".to_owned(), server("true"));
    let url = format!("{}/api/v1/tenants/a/servers/main", gateway.origin());
    let operator = bearer(&gateway.administrator());
    let put = operator.put(&url).json(&servers["main"]).send().await;
    assert_eq!(put.unwrap().status(), StatusCode::CREATED);
    let session = gateway.session("a", "main").await;
    assert_eq!(session.text("echo", json!({"text": "x"})).await, "x");
}

/// Clients gave up after a minute, while this waited for ten.
#[tokio::test]
async fn a_client_that_comes_too_early_is_told_to_come_again() {
    let site = Site::new();
    let server = json!({"command": "${prepared}/bin/server", "sandbox": site.walls(),
        "prepare": site.words(&site.wait()), "clocks": {"start": "1s"}});
    let gateway = served(json!({"main": server})).await;
    let response = gateway.stranger("a", "main").post(&opening(NEWEST)).await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(response.headers()["retry-after"], "5");
    let text = body(response).await;
    assert!(text.contains("still being installed"), "{text}");
    site.open();
    is_in_state(&gateway, "ready").await;
    assert_eq!(site.runs(), 1, "it went on");
    let session = gateway.session("a", "main").await;
    assert_eq!(session.text("echo", json!({"text": "x"})).await, "x");
}

/// A package that cannot be had cost each client as long as its registry was tried.
#[tokio::test]
async fn a_failure_that_took_long_is_remembered() {
    let site = Site::new();
    let work = format!("{}; exit 1", site.wait());
    let server = json!({"command": "${prepared}/bin/server", "sandbox": site.walls(),
        "prepare": site.words(&work)});
    let gateway = served(json!({"main": server})).await;
    until("it runs", || async { site.runs() == 1 }).await;
    let began = Instant::now();
    until("it took long", async || {
        began.elapsed() > Duration::from_secs(2)
    })
    .await;
    site.open();
    is_in_state(&gateway, "failed").await;
    let stranger = gateway.stranger("a", "main");
    for _ in 0..3 {
        let response = stranger.post(&opening(NEWEST)).await;
        assert_eq!(response.status(), StatusCode::OK);
        let answer: Value = serde_json::from_str(&body(response).await).unwrap();
        assert_eq!(answer["error"]["data"]["reason"], "prepare_failed");
    }
    assert_eq!(site.runs(), 1, "nobody waited for another try");
    // It is forgotten after a while. The next try may succeed.
    let opening = opening(NEWEST);
    let next = async {
        loop {
            tokio::select! {
                _ = stranger.post(&opening) => {}
                () = until("another try", || async { site.runs() == 2 }) => break,
            }
        }
    };
    within("another try", next).await;
}

#[tokio::test]
async fn the_end_of_the_gateway_ends_what_is_under_way() {
    let site = Site::new();
    let server = json!({"command": child(), "sandbox": site.walls(),
        "prepare": site.words(&site.wait())});
    let mut gateway = served(json!({"main": server})).await;
    until("it runs", || async { site.runs() == 1 }).await;
    let stranger = gateway.stranger("a", "main");
    let request = stranger.request(reqwest::Method::POST);
    let request = request
        .header("Content-Type", "application/json")
        .header("Accept", BOTH)
        .body(opening("2025-11-25").to_string());
    // The request only has to end: its outcome does not matter.
    let asked = within("the end of a request", request.send());
    let (_, ()) = tokio::join!(asked, gateway.stop());
    assert_eq!(names(&gateway.data().join("prepared")), BTreeSet::new());
    let script = site.path("gate");
    let runs = |pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&script)
    };
    let all = names(Path::new("/proc"));
    let left: Vec<u32> = all.iter().filter_map(|name| name.parse().ok()).collect();
    assert_eq!(left.iter().find(|pid| runs(pid)), None);
}

#[tokio::test]
async fn npx_is_resolved_once_and_started_without_npx() {
    let site = Site::new();
    let (runs, child) = (site.path("runs"), child());
    let bin = format!("printf '#!/bin/sh\\nexec {child} \"$@\"\\n' > node_modules/.bin/tool");
    site.program(
        "npm",
        &[
            &format!("echo \"$@ cache=$npm_config_cache home=$HOME token=$TOKEN set=$npm_config_registry\" >> {runs}"),
            "mkdir -p node_modules/.bin node_modules/@x/tool \"$npm_config_cache/_logs\"",
            "echo '{\"name\": \"@x/tool\", \"version\": \"1.2.3\", \"bin\": {\"tool\": \"t\", \"other\": \"o\"}}' > node_modules/@x/tool/package.json",
            &bin,
            "chmod +x node_modules/.bin/tool",
        ],
    );
    let npx = site.program("npx", &["exit 1"]);
    let gateway = served(json!({"main": {
        "command": npx, "args": ["-y", "@x/tool@latest", "--flag", "${prepared}"],
        "env": {"TOKEN": "t", "npm_config_registry": "r"}, "sandbox": site.walls(),
    }}))
    .await;
    let session = gateway.session("a", "main").await;
    let store = store_of(&session).await;
    let place = store.to_str().unwrap();
    assert_eq!(args(&session).await, ["--flag", place]);
    let asked = fs::read_to_string(runs).unwrap();
    assert_eq!(
        asked,
        format!(
            "install --prefix . --no-audit --no-fund --no-update-notifier @x/tool@latest \
             cache={place}/.tmp/npm home={place} token= set=r\n"
        )
    );
    let seen = prepared(&gateway).await.remove(0);
    assert_eq!(
        (&seen["subject"], &seen["version"]),
        (&json!("@x/tool@latest"), &json!("1.2.3"))
    );
    assert_eq!(environment(&session).await["TOKEN"], "t");
}

#[tokio::test]
async fn uvx_is_installed_once_and_started_without_uvx() {
    let site = Site::new();
    let child = child();
    site.program(
        "uv",
        &[
            "[ \"$*\" = 'tool install --python 3.12 some-tool==2.0' ]",
            "mkdir -p \"$UV_TOOL_BIN_DIR\" \"$UV_TOOL_DIR/some-tool/lib/python3.12/site-packages/some_tool-2.0.dist-info\"",
            "cd \"$UV_TOOL_BIN_DIR\"",
            &format!("printf '#!/bin/sh\\nexec {child} \"$@\"\\n' > tool"),
            "chmod +x tool",
        ],
    );
    let uvx = site.program("uvx", &["exit 1"]);
    let gateway = served(json!({"main": {
        "command": uvx, "args": ["--python", "3.12", "--from", "some-tool@2.0", "tool", "-v"],
        "sandbox": site.walls(),
    }}))
    .await;
    let session = gateway.session("a", "main").await;
    assert_eq!(args(&session).await, ["-v"]);
    assert_eq!(prepared(&gateway).await[0]["version"], "2.0");
    assert_eq!(environment(&session).await["PYTHONDONTWRITEBYTECODE"], "1");
}

#[tokio::test]
async fn run_prepares_only_when_told_to_and_leaves_nothing() {
    let site = Site::new();
    let npx = site.program("npx", &[&format!("exec {} plain", child())]);
    let store = {
        let plain = Gateway::of(&[], &[], &[&npx, "-y", "x"]).await;
        let session = plain.session().await;
        assert_eq!(args(&session).await, ["plain"]);
        let words = format!("server.prepare={}", site.words(":"));
        let sets = [words.as_str(), "server.command=${prepared}/bin/server"];
        let gateway = Gateway::of(&sets, &[], &["sh", "${prepared}"]).await;
        let session = gateway.session().await;
        let args = args(&session).await;
        assert_eq!(args, ["${prepared}"], "the command line is literal");
        store_of(&session).await
    };
    assert_eq!(site.runs(), 1);
    let work = store.parent().unwrap().parent().unwrap();
    until("nothing is left", || async { !work.exists() }).await;
}

#[tokio::test]
async fn no_child_can_write_to_a_store() {
    for separation in ["uid", "namespace", "landlock"] {
        for profile in ["standard", "open"] {
            let data = tempfile::tempdir().unwrap();
            let keys = format!(
                "prepare: [sh, -c, 'mkdir d; echo made > d/file; echo $$(id -u) > d/uid'], \
                 sandbox: {{profile: {profile}}}"
            );
            let separation_is = format!("sandbox.separation={separation}");
            let sets = [separation_is.as_str(), "sandbox.uids=700000-765535"];
            let sets = if separation == "uid" {
                &sets[..]
            } else {
                &sets[..1]
            };
            let gateway = Gateway::serve(data.path(), sets, &keys).await;
            let mut other = gateway.stranger();
            other.url = gateway.url.replace("/t/a/", "/t/b/");
            other.initialize(NEWEST).await;
            let session = gateway.session().await;
            let store = store_of(&session).await;
            // One that was filled without walls serves its own tenant alone.
            let others = store_of(&other).await;
            let is_shared = others == store;
            assert_eq!(is_shared, profile == "standard", "{separation}");
            for (one, store) in [(&session, &store), (&other, &others)] {
                let file = json!({"path": store.join("d/file")});
                assert_eq!(one.text("read_path", file).await, "read made\n");
                for path in ["", "d", "d/file"] {
                    // The owner may change the mode, but still cannot write.
                    one.text("chmod", json!({"path": store.join(path)})).await;
                }
                for path in ["d/file", "d/new", "new"] {
                    let write = json!({"path": store.join(path), "text": "x"});
                    let text = one.text("write_file", write).await;
                    assert!(
                        text.starts_with("refused"),
                        "{separation} {profile} {path} {text}"
                    );
                }
            }
            let uid = fs::read_to_string(store.join("d/uid")).unwrap();
            assert_eq!(uid.starts_with('7'), separation == "uid", "{uid}");
            let owner = fs::metadata(store.join("d/uid")).unwrap().uid();
            assert_eq!(owner, rustix::process::geteuid().as_raw());
        }
    }
}

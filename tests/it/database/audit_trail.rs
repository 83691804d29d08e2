//! Audit records of denials and calls: denials are written before their answer and folded, calls
//! only for servers that ask for it. Records that an outage of the database costs are counted.

use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    auth::external_tokens::bearer,
    database::persistence::{Ground, Replica, on_both, server},
    http::administration::Admin,
    oauth::pages,
    support::{
        browser::Browser,
        gauges::{Gauge, metric_of},
        harness::{NEWEST, body, child, opening, package, until},
        oauth_client::send,
    },
};

on_both! {
    a_denial_is_on_record_before_its_answer_and_folded
    each_denial_is_on_record_before_its_answer
    calls_are_on_record_without_what_is_in_them
}

/// The kinds of records that are string literals in the source.
fn kinds(text: &str) -> impl Iterator<Item = String> + '_ {
    let nouns = [
        "client", "consent", "grant", "grants", "login", "server", "session",
    ];
    let is_event = |line: &&str| line.contains("event = ");
    let lines = text.lines().filter(move |line| !is_event(line));
    let words = lines.flat_map(|line| line.split('"').skip(1).step_by(2));
    let kinds = words.filter(move |word| {
        let (noun, verb) = word.split_once('.').unwrap_or_default();
        nouns.contains(&noun) && (verb.ends_with("ed") || verb.ends_with("en"))
    });
    kinds.map(str::to_owned)
}

#[test]
fn every_kind_is_documented() {
    let docs = std::fs::read_to_string(package().join("docs/administration.md")).unwrap();
    let mut all: Vec<String> = [
        "call",
        "denied",
        "login",
        "signing_key.added",
        "signing_key.removed",
    ]
    .map(str::to_owned)
    .into();
    for kind in ["tenant", "server", "user", "client", "provider", "api_key"] {
        all.extend(["added", "changed", "removed"].map(|what| format!("{kind}.{what}")));
    }
    let written = all.len();
    let mut folders = vec![package().join("src")];
    while let Some(folder) = folders.pop() {
        for file in std::fs::read_dir(folder).unwrap().flatten() {
            if file.path().is_dir() {
                folders.push(file.path());
            } else if file.path().extension().is_some_and(|kind| kind == "rs") {
                all.extend(kinds(&std::fs::read_to_string(file.path()).unwrap()));
            }
        }
    }
    assert!(all.len() > written + 10, "{all:?}");
    let rows: Vec<&str> = docs
        .lines()
        .filter(|line| line.starts_with("| `"))
        .collect();
    all.retain(|kind| !rows.iter().any(|row| row.contains(&format!("`{kind}`"))));
    assert!(all.is_empty(), "{all:?}");
}

/// The records of a kind, newest first.
async fn records(admin: &Admin, kind: &str) -> Vec<Value> {
    let (status, page) = admin.get(&format!("/audit?kind={kind}&limit=1000")).await;
    assert_eq!(status, 200, "{page}");
    page["items"].as_array().unwrap().clone()
}

async fn dropped(replica: &Replica) -> i64 {
    metric_of(&replica.ops, "lockgate_audit_dropped_total").await
}

async fn a_denial_is_on_record_before_its_answer_and_folded(ground: Ground) {
    let replica = ground.serve(&[]).await;
    let admin = Admin::first(&ground, &replica);
    admin.tenant("a", server("one")).await;
    let stranger = replica.stranger("a", "x");
    let denied = async || {
        let answer = stranger.post(&opening(NEWEST)).await;
        assert_eq!(answer.status(), 401);
    };
    denied().await;
    let first = records(&admin, "denied").await;
    assert_eq!(first.len(), 1, "{first:?}");
    let record = &first[0];
    assert_eq!(
        (&record["tenant"], &record["target"], &record["actor"]),
        (&json!("a"), &json!("server a/x"), &json!(""))
    );
    let detail = &record["detail"];
    assert_eq!(
        (&detail["count"], &detail["address"], &detail["route"]),
        (&json!(1), &json!("127.0.0.1"), &json!("mcp"))
    );
    for _ in 0..6 {
        denied().await;
    }
    // Another caller gets its own record. The six denials are folded until their minute ends.
    let key = admin.key("a", "ci", &[]).await;
    let worker = Admin::with(&replica, &key);
    assert_eq!(worker.get("/tenants").await.0, 403);
    let second = records(&admin, "denied").await;
    assert_eq!(second.len(), 2, "{second:?}");
    assert_eq!(second[0]["actor"], "ada");
    assert!(!json!(second).to_string().contains(&key));
    // The stop of the gateway writes the counts of folded denials.
    replica.stop().await;
    let replica = ground.serve(&[]).await;
    let admin = Admin::first(&ground, &replica);
    let mut counts: Vec<u64> = records(&admin, "denied")
        .await
        .iter()
        .map(|record| record["detail"]["count"].as_u64().unwrap())
        .collect();
    counts.sort_unstable();
    assert_eq!(counts, [1, 1, 6]);
    assert_eq!(dropped(&replica).await, 0);
    replica.stop().await;
}

/// Twenty denials: a single one could be on record in time by chance.
async fn each_denial_is_on_record_before_its_answer(ground: Ground) {
    let replica = ground.serve(&[]).await;
    let admin = Admin::first(&ground, &replica);
    let tenants: serde_json::Map<_, _> = (0..20)
        .map(|number| (format!("t{number}"), json!({"auth": {"mode": "keys"}})))
        .collect();
    let manifest = json!({"version": 1, "tenants": tenants});
    let (status, said) = admin.post("/apply", manifest).await;
    assert_eq!(status, 200, "{said}");
    for tenant in tenants.keys() {
        let answer = replica.stranger(tenant, "x").post(&opening(NEWEST)).await;
        assert_eq!(answer.status(), 401);
        let path = format!("/audit?kind=denied&tenant={tenant}");
        let (_, page) = admin.get(&path).await;
        assert_eq!(page["items"].as_array().unwrap().len(), 1, "{tenant}");
    }
    replica.stop().await;
}

async fn calls_are_on_record_without_what_is_in_them(ground: Ground) {
    let replica = ground.serve(&[]).await;
    let admin = Admin::first(&ground, &replica);
    let mut audited = server("one");
    audited["audit_calls"] = json!(true);
    admin.tenant("a", audited).await;
    let (status, said) = admin.put("/tenants/a/servers/y", server("two")).await;
    assert_eq!(status, 201, "{said}");
    let body = json!({"name": "all", "subject": "ada", "servers": ["*"]});
    let (_, made) = admin.post("/tenants/a/api-keys", body).await;
    let http = bearer(made["key"].as_str().unwrap());
    let canary = "canary-93be07";
    for name in ["x", "y"] {
        let mut session = replica.stranger("a", name);
        session.http = http.clone();
        session.initialize(NEWEST).await;
        let said = session.text("echo", json!({"text": canary})).await;
        assert_eq!(said, canary);
    }
    // Records of calls are written in batches, and no call waits for them.
    until("the record", || async {
        let calls = records(&admin, "call").await;
        calls.iter().any(|call| call["detail"]["name"] == "echo")
    })
    .await;
    let calls = records(&admin, "call").await;
    let of: Vec<&Value> = calls
        .iter()
        .filter(|call| call["detail"]["name"] == "echo")
        .collect();
    assert_eq!(of.len(), 1, "only where the server says so: {calls:?}");
    let (call, detail) = (of[0], &of[0]["detail"]);
    assert_eq!(
        (&call["actor"], &call["target"], &call["tenant"]),
        (&json!("ada"), &json!("server a/x"), &json!("a"))
    );
    assert_eq!(
        (&detail["method"], &detail["client"], &detail["outcome"]),
        (&json!("tools/call"), &json!("all"), &json!("result"))
    );
    assert!(detail["ms"].is_u64(), "{detail}");
    let members: Vec<&String> = detail.as_object().unwrap().keys().collect();
    assert_eq!(
        members,
        ["client", "method", "ms", "name", "outcome", "session"]
    );
    assert!(
        calls.iter().all(|call| call["target"] == "server a/x"),
        "{calls:?}"
    );
    assert!(!json!(calls).to_string().contains(canary));
    replica.stop().await;
}

/// During an outage of the database records are dropped and counted, and no answer waits.
#[tokio::test]
async fn records_that_a_lost_store_costs_are_counted() {
    let mut ground = Ground::postgres();
    let replica = ground.serve(&[]).await;
    let admin = Admin::first(&ground, &replica);
    let server = json!({"command": child(), "audit_calls": true,
        "sandbox": {"profile": "open", "required": false}});
    admin.tenant("a", server).await;
    let mut session = replica.stranger("a", "x");
    session.http = bearer(&admin.key("a", "ci", &[]).await);
    session.initialize(NEWEST).await;
    assert_eq!(session.text("echo", json!({"text": "x"})).await, "x");
    until("nothing is dropped while all is well", || async {
        !records(&admin, "call").await.is_empty()
    })
    .await;
    assert_eq!(dropped(&replica).await, 0);
    ground.database().pause();
    assert_eq!(session.text("echo", json!({"text": "x"})).await, "x");
    let answer = replica.stranger("a", "x").post(&opening(NEWEST)).await;
    assert_eq!(answer.status(), 401);
    until("both to be counted", || async {
        dropped(&replica).await >= 2
    })
    .await;
    ground.database().resume();
    // Later calls are recorded again.
    until("a record", || async {
        session.text("echo", json!({"text": "y"})).await;
        let (status, page) = admin.get("/audit?kind=call&limit=1000").await;
        status == 200 && page["items"].as_array().unwrap().len() >= 2
    })
    .await;
    replica.stop().await;
}

/// Names come from clients. Those of tools are bounded; a `name` of another method may have megabytes. 544
/// calls with 3 MiB each grew the gateway by 1.4 GiB, which stayed.
#[tokio::test]
async fn records_of_calls_are_small_whatever_a_client_names() {
    let ground = Ground::sqlite();
    let replica = ground.serve(&[]).await;
    let admin = Admin::first(&ground, &replica);
    let mut audited = server("one");
    audited["audit_calls"] = json!(true);
    admin.tenant("a", audited).await;
    let mut session = replica.stranger("a", "x");
    session.http = bearer(&admin.key("a", "ci", &[]).await);
    session.initialize(NEWEST).await;
    let name = format!("{}{}", "x".repeat(200), "ü".repeat(1_500_000));
    let gauge = Gauge::at(replica.pid());
    let before = gauge.memory();
    for _ in 0..40 {
        let params = json!({"name": name});
        let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": params});
        let asked = session.post(&list).await;
        let (status, said) = (asked.status(), body(asked).await);
        assert_eq!(status, 200, "{said}");
    }
    until("the records", || async {
        let calls = records(&admin, "call").await;
        let of_tools = calls
            .iter()
            .filter(|call| call["detail"]["method"] == "tools/list");
        of_tools.count() == 40
    })
    .await;
    let grown = gauge.memory() - before;
    let calls = records(&admin, "call").await;
    for call in &calls {
        let name = call["detail"]["name"].as_str().unwrap_or_default();
        assert!(name.len() <= 256, "{} bytes", name.len());
        assert!(
            name.is_empty() || (name.starts_with('x') && name.ends_with('…')),
            "{name}"
        );
    }
    let stored = std::fs::metadata(ground.data().join("lockgate.db"))
        .unwrap()
        .len();
    assert!(stored < 2 << 20, "{stored} bytes for 40 records");
    println!("grown by {grown} KiB");
    assert!(grown < 96 << 10, "{grown} KiB more");
    assert_eq!(dropped(&replica).await, 0);
    replica.stop().await;
}

/// A password guessed and a token left out are two denials, and so are guesses for two people.
#[tokio::test]
async fn denials_are_told_apart_by_kind_and_user() {
    let gateway = pages::gateway(json!({}), json!({})).await;
    let denied = async || {
        let url = format!("{}/api/v1/audit?kind=denied&limit=1000", gateway.origin());
        let page = send(Method::GET, &url, &gateway.administrator(), None).await;
        let mut all: Vec<String> = page.body["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|record| {
                let detail = &record["detail"];
                let user = detail["user"].as_str().unwrap_or("-");
                format!(
                    "{} {user} {}",
                    detail["reason"].as_str().unwrap(),
                    detail["count"]
                )
            })
            .collect();
        all.sort();
        all
    };
    let mut browser = Browser::new();
    let login = browser.open(&pages::request(&gateway, &[])).await;
    for name in ["ada", "eve", "ada", "my secret password", "nobody"] {
        let fields = [("username", name), ("password", "wrong horse")];
        let shown = browser.submit(&login, &fields).await;
        assert_eq!(shown.status, 403, "{name}");
    }
    for _ in 0..5 {
        let answer = gateway.stranger("a", "x").post(&opening(NEWEST)).await;
        assert_eq!(answer.status(), 401);
    }
    assert_eq!(
        denied().await,
        [
            "bad_password - 1",
            "bad_password ada 1",
            "bad_password eve 1",
            "no_token - 1"
        ]
    );
}

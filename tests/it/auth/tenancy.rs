//! Separation of tenants: session ids, error texts and metrics.

#![expect(
    clippy::too_many_lines,
    reason = "a story is read from its beginning to its end"
)]

use std::collections::BTreeSet;

use futures_util::future::join_all;
use reqwest::{Method, Response};
use serde_json::{Value, json};

use crate::{
    auth::{api_keys::key, external_tokens::bearer},
    database::persistence::{Ground, server},
    http::administration::Admin,
    support::{
        gauges::scaled,
        harness::{NEWEST, Session, child, client, json_of, opening, tool_call, until, within},
        served::Served,
    },
};

/// A server entry: the test child in an open sandbox, with these keys.
fn hostile(keys: Value) -> Value {
    let mut server = json!({
        "command": child(), "sandbox": {"profile": "open", "required": false},
    });
    server
        .as_object_mut()
        .unwrap()
        .extend(keys.as_object().unwrap().clone());
    server
}

#[tokio::test]
async fn session_ids_are_random() {
    let count = scaled("session ids", 10_000, 600);
    let shared = hostile(json!({"isolation": "tenant"}));
    let tenants = json!({"a": {"auth": {"mode": "none"}, "servers": {"x": shared}}});
    let mut gateway = Served::start(json!({}), tenants).await;
    let mut ids = BTreeSet::new();
    while ids.len() < count {
        let open = (0..20).map(|_| async {
            let mut session = gateway.stranger("a", "x");
            session.initialize(NEWEST).await;
            session.id.unwrap()
        });
        for id in join_all(open).await {
            assert!(id.bytes().all(|byte| (0x21..=0x7e).contains(&byte)), "{id}");
            assert_eq!(id.len(), 32, "{id}");
            assert!(ids.insert(id), "an id came twice");
        }
    }
    // Each of the 128 bits is 1 in half of the ids: none belongs to a counter, time or pid.
    let bits = ids.iter().map(|id| u128::from_str_radix(id, 16).unwrap());
    let mut ones = [0_u32; 128];
    for id in bits {
        for (at, count) in ones.iter_mut().enumerate() {
            *count += u32::from(id >> at & 1 == 1);
        }
    }
    let count = f64::from(u32::try_from(ids.len()).unwrap());
    let most = 6.0 * (count / 4.0).sqrt();
    for (at, ones) in ones.into_iter().enumerate() {
        assert!(
            (f64::from(ones) - count / 2.0).abs() < most,
            "bit {at}: {ones} of {count}"
        );
    }
    gateway.stop().await;
}

#[tokio::test]
async fn without_a_tenant_there_is_no_server() {
    let tenants = json!({"a": {"auth": {"mode": "none"}, "servers": {"x": hostile(json!({}))}}});
    let mut gateway = Served::start(json!({}), tenants).await;
    let answer = async |method: Method, path: &str| {
        let url = format!("{}{path}", gateway.origin());
        let request = client().request(method, url).json(&opening(NEWEST));
        within("it", request.send())
            .await
            .unwrap()
            .status()
            .as_u16()
    };
    for path in [
        "/mcp",
        "/sse",
        "/messages?session_id=x",
        "/t//x/mcp",
        "/t/a//mcp",
        "/t/a/mcp",
        "/t/x/mcp",
        "//mcp",
    ] {
        for method in [Method::POST, Method::GET, Method::DELETE] {
            let status = answer(method.clone(), path).await;
            assert!([404, 405].contains(&status), "{method} {path}: {status}");
        }
    }
    assert!(gateway.children().await.is_empty());
    gateway.stop().await;
}

/// The answers to failures contain no secret, path, SQL or name of another tenant.
#[tokio::test]
async fn errors_reveal_nothing() {
    let (key_a, hash_a) = key();
    let (key_b, hash_b) = key();
    let canary = "c4nary-0d5b";
    let env = json!({"SECRET": canary});
    let tenant = |hash: &str, servers: Value| {
        let api_keys =
            json!({"k": {"hash": hash, "subject": format!("{canary}-ada"), "servers": ["*"]}});
        json!({"auth": {"mode": "keys"}, "servers": servers, "api_keys": api_keys})
    };
    let clocks = json!({"start": "1s", "call": "300ms", "stop": ["200ms", "200ms"]});
    let policy = json!({"tools": {"deny": ["counter"]}});
    let limits = json!({"line": "64KiB"});
    let good = hostile(json!({"env": env, "clocks": clocks, "policy": policy, "limits": limits}));
    let mute = json!({"command": "sleep", "args": ["60"], "env": env, "clocks": clocks, "sandbox": {"profile": "open", "required": false}});
    let dead =
        json!({"command": "false", "env": env, "sandbox": {"profile": "open", "required": false}});
    let unprepared =
        hostile(json!({"env": env, "prepare": ["sh", "-c", format!("echo {canary}; exit 3")]}));
    let servers = json!({"x": good, "mute": mute, "dead": dead, "unprepared": unprepared});
    let tenants = json!({
        "a": tenant(&hash_a, servers.clone()),
        "canary-tenant": tenant(&hash_b, servers),
    });
    let mut gateway = Served::start(json!({"http": {"max_body": "64KiB"}}), tenants).await;
    let mut said: Vec<(String, String)> = Vec::new();
    let mut keep = async |what: &str, answer: Response| {
        let headers = format!("{:?}", answer.headers());
        let status = answer.status();
        assert!(status.as_u16() < 500 || status == 503, "{what}: {status}");
        said.push((
            what.to_owned(),
            format!("{headers} {}", answer.text().await.unwrap()),
        ));
    };
    for server in ["mute", "dead", "unprepared"] {
        let mut session = gateway.stranger("a", server);
        session.http = bearer(&key_a);
        keep(server, session.post(&opening(NEWEST)).await).await;
    }
    let session = async || {
        let mut session = gateway.stranger("a", "x");
        session.http = bearer(&key_a);
        session.initialize(NEWEST).await;
        session
    };
    for (tool, args) in [
        ("exit", json!({"code": 1})),
        ("segv", json!({})),
        ("slow", json!({"ms": 5000, "n": 1})),
        ("big", json!({"bytes": 100_000})),
        ("counter", json!({})),
        ("no-such-tool", json!({})),
    ] {
        keep(tool, session().await.begin(tool, args).await).await;
    }
    let own = session().await;
    for (what, body) in [
        ("not json", "{".to_owned()),
        ("not a request", "{}".to_owned()),
        (
            "too deep",
            format!("{}{}", "[".repeat(500), "]".repeat(500)),
        ),
        ("too large", format!("\"{}\"", "x".repeat(70_000))),
        (
            "batch",
            json!([tool_call(json!(1), "echo", json!({}))]).to_string(),
        ),
    ] {
        keep(what, own.post_text(body).await).await;
    }
    // A session of another tenant, a key of another tenant, and no key.
    let mut thief = own.again();
    thief.url = thief.url.replace("/t/a/", "/t/canary-tenant/");
    thief.http = bearer(&key_b);
    keep("thief", thief.begin("echo", json!({})).await).await;
    thief.http = bearer(&key_a);
    keep("foreign key", thief.begin("echo", json!({})).await).await;
    thief.http = client();
    keep("no key", thief.begin("echo", json!({})).await).await;
    for path in [
        "/",
        "/t/a/nothing/mcp",
        "/t/nobody/x/mcp",
        "/api/v1/tenants",
        "/metrics",
        "/%2e%2e/etc/passwd",
    ] {
        let request = client().get(format!("{}{path}", gateway.origin()));
        keep(path, within("it", request.send()).await.unwrap()).await;
    }
    assert!(said.len() >= 23);
    let data = gateway.data().display().to_string();
    let command = child();
    let mine = [
        "sleep 60",
        "/prepared",
        "/proc",
        "panicked",
        ".rs:",
        "SELECT",
        "sqlite",
    ];
    for (what, text) in &said {
        let text = text.replace(gateway.origin(), "");
        for secret in [canary, &data, &command, &key_a, &key_b]
            .into_iter()
            .chain(mine)
        {
            assert!(!text.contains(secret), "{what}: {secret:?} in {text}");
        }
        assert!(
            !text.contains("canary-tenant") || what == "no key" || what == "foreign key",
            "{what}: {text}"
        );
    }
    gateway.stop().await;
}

/// Metrics name no caller, and no input adds a series.
#[tokio::test]
async fn metrics_are_bounded_and_name_no_caller() {
    let count = scaled("random inputs", 10_000, 300);
    let (text, hash) = key();
    let keys = json!({"canary-key": {"hash": hash, "subject": "canary-ada", "servers": ["*"]}});
    let tenants = json!({"a": {
        "auth": {"mode": "keys"}, "servers": {"x": hostile(json!({"isolation": "tenant"}))},
        "api_keys": keys,
    }});
    let mut gateway = Served::start(json!({}), tenants).await;
    let mut session = gateway.stranger("a", "x");
    session.http = bearer(&text);
    session.initialize(NEWEST).await;
    let series = async || {
        let text = gateway.ops("/metrics").await;
        let names = text.lines().filter(|line| !line.starts_with('#'));
        let names = names.filter_map(|line| line.rsplit_once(' '));
        let names: BTreeSet<String> = names.map(|(name, _)| name.to_owned()).collect();
        names
    };
    // Every series exists after one request of each kind. This stream adds the series of streams:
    // on a busy machine an answer may become one.
    drop(session.listen().await);
    let send = async |number: usize| {
        let word = format!("canary{:x}", number.wrapping_mul(0x9e37_79b9) & 0xffff_ffff);
        let origin = gateway.origin();
        let ask = async |method: &str, url: String| {
            let method: Method = method.parse().unwrap();
            let request = client()
                .request(method, url)
                .header("Mcp-Session-Id", &word);
            let request = request
                .header("User-Agent", &word)
                .header("Authorization", format!("Bearer {word}"));
            within("it", request.send()).await.unwrap();
        };
        ask("GET", format!("{origin}/{word}")).await;
        ask("POST", format!("{origin}/t/{word}/x/mcp")).await;
        ask("DELETE", format!("{origin}/t/a/{word}/mcp")).await;
        ask(&word.to_uppercase(), format!("{origin}/t/a/x/sse")).await;
        session.begin(&word, json!({"text": word})).await;
        let message = json!({"jsonrpc": "2.0", "id": word, "method": word});
        session.post(&message).await;
    };
    for number in 0..20 {
        send(number).await;
    }
    let before = series().await;
    for number in 20..count {
        send(number).await;
    }
    let after = series().await;
    assert_eq!(
        after.difference(&before).collect::<Vec<_>>(),
        Vec::<&String>::new()
    );
    let id = session.id.clone().unwrap();
    for name in &after {
        for secret in ["canary", &id[..8], &text[..12]] {
            assert!(!name.contains(secret), "{name}");
        }
    }
    assert!(after.len() < 1000, "{}", after.len());
    gateway.stop().await;
}

/// While the database is unreachable, calls continue and administration gets 503.
#[tokio::test]
async fn administration_waits_for_its_database_and_calls_do_not() {
    let mut ground = Ground::postgres();
    let replica = ground.serve(&[]).await;
    let admin = Admin::first(&ground, &replica);
    admin.tenant("a", server("one")).await;
    let key = admin.key("a", "ci", &[]).await;
    let mut session: Session = replica.stranger("a", "x");
    session.http = bearer(&key);
    session.initialize(NEWEST).await;
    ground.database().pause();
    for (method, path) in [
        (Method::GET, "/tenants"),
        (Method::PUT, "/tenants/b"),
        (Method::POST, "/tenants/a/servers/x/restart"),
        (Method::GET, "/audit"),
    ] {
        let answer = admin.send(method.clone(), path, Some(&json!({}))).await;
        assert_eq!(answer.status(), 503, "{method} {path}");
        assert!(answer.headers().contains_key("retry-after"));
        let problem = json_of(answer).await.to_string();
        assert!(
            !problem.contains("postgres") && !problem.contains("127.0.0.1"),
            "{problem}"
        );
    }
    assert_eq!(session.text("echo", json!({"text": "on"})).await, "on");
    let mut fresh = replica.stranger("a", "x");
    fresh.http = bearer(&key);
    fresh.initialize(NEWEST).await;
    ground.database().resume();
    until("its return", || async {
        let answer: (u16, Value) = admin.get("/tenants").await;
        answer.0 == 200
    })
    .await;
    replica.stop().await;
}

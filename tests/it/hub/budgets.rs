//! Budgets of memory, connections and open files: one address or caller uses up its own share.

use std::{net::SocketAddr, time::Duration};

use futures_util::future::join_all;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
};

use super::broken_connections::deaf;
use crate::{
    replicas::sessions::Replicas,
    support::{
        gauges::{Gauge, OPS, median, metric, metric_of, scaled, slow_call, stays_quick},
        harness::{
            Events, Gateway, Session, body, child, opening, run_args, tool_call, until, within,
        },
        modern::Modern,
        redis::Redis,
        served::Served,
        wire::{host, rest, statuses},
    },
};

/// A connection from another address of this machine.
async fn from(address: &str, gateway: &Gateway) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket
        .bind(format!("{address}:0").parse().unwrap())
        .unwrap();
    let target: SocketAddr = host(gateway).parse().unwrap();
    socket.connect(target).await.unwrap()
}

#[tokio::test]
async fn bodies_that_do_not_end_take_the_share_of_their_address_alone() {
    let gateway = Gateway::start(&["limits.memory=64MiB", OPS]).await;
    let gauge = Gauge::of(&gateway);
    let session = gateway.session().await;
    let before = median(|| slow_call(&session)).await;
    let memory = gauge.memory();
    let head = format!(
        "POST /mcp HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nContent-Length: 4194304\r\n\r\n",
        host(&gateway)
    );
    let part = vec![b' '; (4 << 20) - 1];
    let mut refused = 0;
    let mut held = Vec::new();
    for _ in 0..100 {
        let mut socket = from("127.0.0.2", &gateway).await;
        socket.write_all(head.as_bytes()).await.unwrap();
        // A refusal closes the connection while the body is still on its way.
        let whole = socket.write_all(&part).await.is_ok();
        let mut first = [0; 12];
        let answered = tokio::time::timeout(Duration::from_millis(200), socket.read(&mut first));
        match answered.await {
            Ok(Ok(12)) => {
                assert_eq!(&first, b"HTTP/1.1 503");
                let answer = rest(&mut socket).await;
                assert!(answer.contains("retry-after: 1"), "{answer}");
                refused += 1;
            }
            _ if whole => held.push(socket),
            _ => refused += 1,
        }
    }
    let grown = gauge.memory() - memory;
    println!("{refused} of 100 refused, {grown} KiB more");
    assert!(refused >= 80, "{refused} refused");
    assert!(grown <= 64 << 10, "{grown} KiB");
    let drawn = metric(&gateway, "lockgate_requests_bytes ").await;
    assert!((16 << 20..=48 << 20).contains(&drawn), "{drawn}");
    // Nothing of it has to arrive.
    let mut socket = from("127.0.0.2", &gateway).await;
    socket.write_all(head.as_bytes()).await.unwrap();
    let refused = within("a refusal", rest(&mut socket)).await;
    assert_eq!(statuses(&refused), [503], "{refused}");
    stays_quick("another address", before, || slow_call(&session)).await;
    drop(held);
    until("nothing under way", || async {
        metric(&gateway, "lockgate_requests_bytes ").await < 1 << 20
    })
    .await;
}

#[tokio::test]
async fn clients_that_never_read_share_the_log_and_leave_room_for_others() {
    let count = scaled("deaf clients", 1000, 24);
    // With two calls in flight, log messages go to the listener.
    let gateway = Gateway::start(&["server.reply.sse_after=10ms", OPS]).await;
    let gauge = Gauge::of(&gateway);
    let other = gateway.session().await;
    let mut deafs = Vec::new();
    for _ in 0..count {
        let session = gateway.session().await;
        let hang = session.begin("hang", json!({})).await;
        deafs.push((deaf(&session).await, session, hang));
    }
    let memory = gauge.memory();
    let floods = deafs.iter().map(|(_, session, _)| async {
        let args = json!({"n": 900, "text": "x".repeat(8000)});
        assert_eq!(session.text("burst", args).await, "sent");
    });
    within("all floods", join_all(floods)).await;
    let grown = gauge.memory() - memory;
    let kept = metric(&gateway, "lockgate_log_bytes ").await;
    println!("{grown} KiB more for {count} clients, {kept} bytes of events");
    // Each alone would keep 4 MiB: 1,000 events of 8 KB are more.
    assert!(kept <= 17 << 20, "{kept}");
    assert!(grown <= 64 << 10, "{grown} KiB");
    // A stream of a session that is read loses nothing.
    let mut stream = other
        .stream("slow", json!({"n": 20, "ms": 1}), json!("t"))
        .await;
    let (first, _) = stream.message().await.unwrap();
    assert_eq!(stream.messages().await.len(), 20);
    assert_eq!(other.resume(&first).await.messages().await.len(), 20);
}

/// The newest event of each stream stayed, whatever its size: 16 calls kept 64 MB of a log of 48 MiB.
#[tokio::test]
async fn long_events_of_many_calls_take_the_share_of_their_caller_alone() {
    let sets = ["limits.memory=64MiB", "server.reply.sse_after=10ms", OPS];
    let gateway = Gateway::start(&sets).await;
    let other = gateway.session().await;
    let mut stream = other
        .stream("slow", json!({"n": 20, "ms": 1}), json!("t"))
        .await;
    let (first, _) = stream.message().await.unwrap();
    assert_eq!(stream.messages().await.len(), 20);
    let session = gateway.session().await;
    let mut streams = Vec::new();
    for token in 0..16 {
        let stream = session.stream("hang", json!({"bytes": 4_000_000}), json!(token));
        streams.push(stream.await);
    }
    let refused = r#"lockgate_messages_dropped_total{reason="no_room"} "#;
    until("what has no room is refused", || async {
        metric(&gateway, refused).await >= 4
    })
    .await;
    assert!(metric(&gateway, "lockgate_log_bytes ").await <= 40 << 20);
    assert!(metric(&gateway, "lockgate_requests_bytes ").await <= 24 << 20);
    drop(streams);
    assert!(session.delete().await.status().is_success());
    until("nothing is left", || async {
        metric(&gateway, "lockgate_requests_bytes ").await < 1 << 20
    })
    .await;
    assert_eq!(other.resume(&first).await.messages().await.len(), 20);
}

#[tokio::test]
async fn one_address_has_half_of_the_connections() {
    let gateway = Gateway::start(&["http.max_connections=40"]).await;
    let mut held = Vec::new();
    for _ in 0..20 {
        held.push(from("127.0.0.2", &gateway).await);
    }
    let refused = within("a refusal", rest(&mut from("127.0.0.2", &gateway).await)).await;
    assert_eq!(statuses(&refused), [503], "{refused}");
    assert!(refused.contains("retry-after: 1"), "{refused}");
    let session = gateway.session().await;
    assert_eq!(session.text("echo", json!({"text": "x"})).await, "x");
    assert_eq!(gateway.stderr().matches("too many connections").count(), 1);
    drop(held);
    until("a place again", || async {
        let mut socket = from("127.0.0.2", &gateway).await;
        let request = format!(
            "GET /livez HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
            host(&gateway)
        );
        let _ = socket.write_all(request.as_bytes()).await;
        statuses(&rest(&mut socket).await) == [200]
    })
    .await;
}

#[tokio::test]
async fn a_shortage_of_open_files_refuses_sessions_and_opens_no_circuit() {
    let wrapper = ["sh", "-c", "ulimit -n 128; exec \"$@\"", "sh"];
    let gateway = Gateway::through(&wrapper, &run_args(&[OPS], &[]), &[&child()]).await;
    let gauge = Gauge::of(&gateway);
    let mut sessions = Vec::new();
    let refused = loop {
        assert!(sessions.len() < 40, "never refused");
        let mut session = gateway.stranger();
        let answer = session.post(&opening("2025-11-25")).await;
        if answer.status() != StatusCode::OK {
            break answer;
        }
        session.id = answer.headers()["mcp-session-id"]
            .to_str()
            .ok()
            .map(Into::into);
        sessions.push(session);
    };
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(refused.headers().contains_key("retry-after"));
    println!(
        "{} sessions, {} descriptors",
        sessions.len(),
        gauge.descriptors()
    );
    assert!(sessions.len() >= 8, "{} sessions", sessions.len());
    assert!(gauge.descriptors() < 120, "some are left");
    for _ in 0..20 {
        let again = gateway.stranger().post(&opening("2025-11-25")).await;
        assert_eq!(again.status(), StatusCode::SERVICE_UNAVAILABLE);
    }
    assert_eq!(metric(&gateway, "lockgate_circuits_opened_total ").await, 0);
    assert!(!gateway.stderr().contains("cannot accept"));
    // Those that there are go on, and an ended one makes room.
    let first = sessions.remove(0);
    let echo = first
        .post(&tool_call(json!(1), "echo", json!({"text": "x"})))
        .await;
    assert_eq!(echo.status(), StatusCode::OK);
    first.delete().await;
    until("room for another", || async {
        let answer = gateway.stranger().post(&opening("2025-11-25")).await;
        answer.status() == StatusCode::OK
    })
    .await;
}

#[tokio::test]
async fn lines_without_end_take_the_share_of_their_tenant_alone() {
    let long = "head -c 3900000 /dev/zero | tr '\\0' x; exec sleep 600";
    let sets = ["limits.memory=64MiB", "spawn.parallel=100", OPS];
    let gateway = Gateway::of(&sets, &[], &["sh", "-c", long]).await;
    let gauge = Gauge::of(&gateway);
    let memory = gauge.memory();
    let begun: Vec<_> = (0..40)
        .map(|_| {
            let stranger = gateway.stranger();
            tokio::spawn(async move { stranger.post(&opening("2025-11-25")).await.status() })
        })
        .collect();
    until("the share of the tenant is used", || async {
        metric(&gateway, "lockgate_requests_bytes ").await >= 30 << 20
    })
    .await;
    until("a standstill", || async {
        gauge.load(Duration::from_millis(300)).await < 0.1
    })
    .await;
    let grown = gauge.memory() - memory;
    let drawn = metric(&gateway, "lockgate_requests_bytes ").await;
    println!("{grown} KiB more, {drawn} bytes drawn");
    assert!(gauge.children() >= 38, "all have started");
    assert!(drawn <= 40 << 20, "{drawn}");
    assert!(grown <= 64 << 10, "{grown} KiB");
    begun.iter().for_each(tokio::task::JoinHandle::abort);
}

/// Whether a notification is accepted. A refusal may close the connection while the body is still on its way.
async fn is_taken(session: &Session, note: &str) -> bool {
    let request = session.request(Method::POST).body(note.to_owned());
    let request = request
        .header("Content-Type", "application/json")
        .header("Accept", session.accept);
    let answer = within("an answer", request.send()).await;
    answer.is_ok_and(|answer| answer.status() == StatusCode::ACCEPTED)
}

/// A session had 12 MiB of what the mailbox of a shared child had no room for, and no budget counted it.
#[tokio::test]
async fn what_waits_for_a_child_that_does_not_read_takes_the_share_of_its_callers() {
    let sets = ["server.isolation=tenant", "limits.memory=64MiB", OPS];
    let gateway = Gateway::start(&sets).await;
    let drawn = || metric(&gateway, "lockgate_requests_bytes ");
    let note = |bytes: usize| {
        let text = "x".repeat(bytes);
        let note = json!({"jsonrpc": "2.0", "method": "notifications/x", "params": {"t": text}});
        note.to_string()
    };
    let (large, small) = (note(3 << 20), note(1));
    let mut sessions = Vec::new();
    for _ in 0..10 {
        sessions.push(gateway.session().await);
    }
    let first = &sessions[0];
    assert_eq!(first.text("stop_reading", json!({})).await, "stopped");
    // Three fill the queue of the child, and its mailbox has the fourth.
    for _ in 0..4 {
        until("it is taken", || is_taken(first, &large)).await;
    }
    until("the mailbox is counted", || async {
        drawn().await >= 23 << 19
    })
    .await;
    // Small ones fill the mailbox, so that the rest stays in the sessions.
    for _ in 0..26 {
        join_all(sessions.iter().map(|session| is_taken(session, &small))).await;
    }
    let mut refused = 0;
    for session in &sessions[1..] {
        for _ in 0..2 {
            refused += usize::from(!is_taken(session, &large).await);
        }
    }
    assert!(refused >= 9, "{refused} of 18 are refused");
    until("all is gone with the child", || async {
        drawn().await < 1 << 20
    })
    .await;
}

/// They were written without being counted.
#[tokio::test]
async fn answers_of_calls_without_sessions_are_counted_until_they_are_taken() {
    let gateway = Gateway::start(&["server.reply.sse_after=60s", OPS]).await;
    let mut client = Modern::at(&gateway.url);
    let counted = || metric(&gateway, "lockgate_requests_bytes ");
    let mut held = Vec::new();
    for (accept, count) in [("text/event-stream", 1), ("application/json", 2)] {
        client.accept = accept;
        let call = client.tool("big", json!({"bytes": 15_000_000}));
        let request = client.request(&call).build().unwrap();
        let fields = request.headers().iter();
        let fields = fields.map(|(name, value)| format!("{name}: {}\r\n", value.to_str().unwrap()));
        let (fields, body) = (fields.collect::<String>(), call.to_string());
        let (host, length) = (host(&gateway), body.len());
        let path = request.url().path();
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let mut socket = socket.connect(host.parse().unwrap()).await.unwrap();
        let head = format!("POST {path} HTTP/1.1\r\nHost: {host}\r\n{fields}");
        let head = format!("{head}Content-Length: {length}\r\n\r\n{body}");
        socket.write_all(head.as_bytes()).await.unwrap();
        let mut first = [0; 12];
        // What is read from the server is counted as well, before this.
        within("a status", socket.read_exact(&mut first))
            .await
            .unwrap();
        assert_eq!(&first, b"HTTP/1.1 200");
        held.push(socket);
        until("the answer is counted", || async {
            counted().await >= count * 15_000_000
        })
        .await;
    }
    drop(held);
    until("nothing is counted any more", || async {
        counted().await < 1 << 20
    })
    .await;
}

/// Subscribes to 32 long URIs; returns the answer.
async fn subscribe(session: &Session) -> String {
    let item = |number: usize| {
        json!({"jsonrpc": "2.0", "id": 10 + number, "method": "resources/subscribe",
            "params": {"uri": format!("test://{}{}", 10 + number, "x".repeat(8000))}})
    };
    let items: Value = (0..32).map(item).collect();
    body(session.post(&items).await).await
}

#[tokio::test]
async fn what_sessions_keep_takes_the_share_of_their_caller_alone() {
    let server = json!({"command": child(), "isolation": "tenant"});
    let tenant = json!({"auth": {"mode": "none"}, "servers": {"main": server}});
    let config = json!({"limits": {"memory": "32MiB"}});
    let gateway = Served::start(config, json!({"a": tenant.clone(), "b": tenant})).await;
    let ops = format!("http://{}", gateway.ops_address());
    let drawn = async || metric_of(&ops, "lockgate_requests_bytes ").await;
    let mut sessions = Vec::new();
    for _ in 0..30 {
        let mut session = gateway.stranger("a", "main");
        session.initialize("2025-03-26").await;
        sessions.push(session);
    }
    let mut answers = Vec::new();
    for session in &sessions {
        answers.push(subscribe(session).await);
        if answers.last().unwrap().contains("error") {
            break;
        }
    }
    let held = drawn().await;
    // A third of all, of which each session takes half a MiB.
    assert!((12..=22).contains(&answers.len()), "{}", answers.len());
    assert!((9 << 20..=11 << 20).contains(&held), "{held}");
    let refused = answers.last().unwrap();
    assert!(refused.contains("-31004") && refused.contains("overloaded"));
    assert!(refused.contains(r#""result""#), "as many as fit");
    // The end of a subscription gives back what it took.
    let uri = json!({"uri": format!("test://10{}", "x".repeat(8000))});
    let ended = sessions[0].ask("resources/unsubscribe", uri).await;
    assert_eq!(ended["error"], Value::Null);
    let left = drawn().await;
    assert!((16_000..18_000).contains(&(held - left)), "{held} {left}");
    // An `initialize` is kept as long as its session.
    let mut large = opening("2025-03-26");
    large["params"]["clientInfo"]["title"] = "x".repeat(60_000).into();
    let (mut begun, mut more) = (30, 0);
    let refusal = loop {
        assert!(more < 20, "never refused");
        let mut session = gateway.stranger("a", "main");
        let answer = session.post(&large).await;
        if answer.status() != StatusCode::OK {
            break answer;
        }
        let id = &answer.headers()["mcp-session-id"];
        session.id = id.to_str().ok().map(Into::into);
        sessions.push(session);
        (begun, more) = (begun + 1, more + 1);
    };
    assert_eq!(refusal.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(refusal.headers().contains_key("retry-after"));
    assert!(drawn().await - left >= 136_000 * more);
    until("no session without its initialize", || async {
        metric_of(&ops, "lockgate_sessions ").await == begun
    })
    .await;
    // Another tenant has its own share.
    let mut other = gateway.stranger("b", "main");
    other.initialize("2025-03-26").await;
    assert!(!subscribe(&other).await.contains("error"));
    for session in sessions.iter().chain([&other]) {
        session.delete().await;
    }
    until("nothing kept", || async { drawn().await < 64 << 10 }).await;
}

/// Each kept its URIs without counting them.
#[tokio::test]
async fn subscriptions_without_sessions_take_the_share_of_their_caller() {
    let gateway = Gateway::start(&["limits.memory=32MiB", OPS]).await;
    let client = Modern::at(&gateway.url);
    let uris: Vec<String> = (0..240)
        .map(|one| format!("test://{one:03}{}", "x".repeat(1000)))
        .collect();
    let wanted = json!({"notifications": {"resourceSubscriptions": uris}});
    let listen = || client.message("subscriptions/listen", wanted.clone());
    let mut held = Vec::new();
    let refused = loop {
        assert!(held.len() < 100, "never refused");
        let response = client.post(&listen()).await;
        if response.status() != StatusCode::OK {
            break response;
        }
        let mut events = Events::of(response);
        let (_, acknowledged) = within("an event", events.message()).await.unwrap();
        let agreed = &acknowledged["params"]["notifications"]["resourceSubscriptions"];
        assert_eq!(agreed.as_array().unwrap().len(), 240);
        held.push(events);
    };
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(refused.headers().contains_key("retry-after"));
    // A quarter of a MiB each.
    assert!((20..=60).contains(&held.len()), "{}", held.len());
    drop(held);
    let again = async || client.post(&listen()).await.status() == StatusCode::OK;
    until("room again", again).await;
}

/// Bytes that Redis has allocated.
fn in_redis(redis: &Redis) -> i64 {
    let info = redis.command(&["INFO", "memory"]).text();
    let line = info
        .lines()
        .find_map(|line| line.strip_prefix("used_memory:"));
    line.unwrap().parse().unwrap()
}

/// The keys of sessions, without those of their streams.
fn records(redis: &Redis) -> usize {
    let keys = redis.keys();
    let is_record = |key: &&String| key.ends_with('}');
    keys.iter().filter(is_record).count()
}

/// Records counted against the memory of the gateway only: one tenant filled the Redis of all.
#[tokio::test(flavor = "multi_thread")]
async fn records_in_redis_take_the_share_of_their_caller_alone() {
    let replicas = Replicas::with(1, &["log.redis=2MiB"], "isolation: tenant").await;
    let gateway = replicas.node(0);
    let mut large = opening("2025-11-25");
    large["params"]["clientInfo"]["title"] = "x".repeat(8000).into();
    let (before, none) = (in_redis(&replicas.redis), records(&replicas.redis));
    let mut sessions = Vec::new();
    let refusal = loop {
        assert!(sessions.len() < 100, "never refused");
        let mut session = gateway.stranger();
        let answer = session.post(&large).await;
        if answer.status() != StatusCode::OK {
            break answer;
        }
        let id = &answer.headers()["mcp-session-id"];
        session.id = id.to_str().ok().map(Into::into);
        sessions.push(session);
    };
    let grown = in_redis(&replicas.redis) - before;
    println!("{} sessions, {grown} bytes in Redis", sessions.len());
    assert_eq!(refusal.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(refusal.headers().contains_key("retry-after"));
    assert!(body(refusal).await.contains("-31004"));
    // A third of the half that records may take.
    assert!((25..=36).contains(&sessions.len()), "{}", sessions.len());
    assert!(grown < 700 << 10, "{grown}");
    let written = records(&replicas.redis) - none;
    assert_eq!(written, sessions.len(), "{:?}", replicas.redis.keys());
    // Another tenant has its own share, and the end of a session gives its part back.
    let mut other = gateway.stranger();
    other.url = gateway.url.replace("/t/a/", "/t/b/");
    other.initialize("2025-11-25").await;
    sessions.pop().unwrap().delete().await;
    until("room for another", || async {
        gateway.stranger().post(&large).await.status() == StatusCode::OK
    })
    .await;
}

/// A stream takes 4 KiB of Redis from its first event on, of which the event itself was counted.
#[tokio::test(flavor = "multi_thread")]
async fn streams_in_redis_stay_within_their_budget() {
    let sets = ["log.redis=4MiB"];
    let replicas = Replicas::with(1, &sets, "isolation: tenant, idle: 10m").await;
    let mut sessions = Vec::new();
    for _ in 0..8 {
        sessions.push(replicas.node(0).session().await);
    }
    let before = in_redis(&replicas.redis);
    let calls = sessions.iter().map(|session| async {
        for at in 0..250 {
            let mut stream = session
                .stream("slow", json!({"n": 1, "ms": 0}), json!(at))
                .await;
            // The budget may take the progress before it was read, and never the answer.
            let messages = stream.messages().await;
            let answer = messages.last().map(|(_, message)| &message["result"]);
            assert!(answer.is_some_and(Value::is_object), "{messages:?}");
        }
    });
    join_all(calls).await;
    let grown = in_redis(&replicas.redis) - before;
    println!(
        "{grown} bytes in Redis for 2,000 streams, {} keys",
        replicas.redis.keys().len()
    );
    assert!(grown <= (4 << 20) * 6 / 5, "{grown}");
    // The newest of each session can still be resumed.
    for session in &sessions {
        let mut stream = session
            .stream("slow", json!({"n": 1, "ms": 0}), json!("t"))
            .await;
        let (first, _) = stream.message().await.unwrap();
        assert_eq!(stream.messages().await.len(), 1);
        assert_eq!(session.resume(&first).await.messages().await.len(), 1);
    }
}

//! Ownership of sessions: their deletion, their claims, and their handover between replicas.

use std::time::Duration;

use reqwest::StatusCode;
use rustix::process::Signal;
use serde_json::json;
use tokio::time::Instant;

use crate::{
    replicas::sessions::{Replicas, count, final_message, progress, read},
    support::{
        harness::{Legacy, last, text_of, until, within},
        redis::{Kind, Redis},
        served::Served,
    },
};

#[tokio::test(flavor = "multi_thread")]
async fn the_calls_of_a_deleted_session_end_before_it_is_gone() {
    let replicas = Replicas::two(&[]).await;
    let here = replicas.node(0).session().await;
    let there = replicas.by(&here, 1);
    let slow = json!({"n": 10_000, "ms": 20});
    let mut streams = Vec::new();
    for way in [&here, &there] {
        let mut events = way.stream("slow", slow.clone(), json!("t")).await;
        read(&mut events, 2).await;
        streams.push(events);
    }
    assert_eq!(there.delete().await.status(), StatusCode::NO_CONTENT);
    for mut events in streams {
        let end = final_message(&events.rest().await);
        assert_eq!(end["error"]["code"], -31001, "{end}");
        assert_eq!(end["error"]["data"]["reason"], "backend_exited");
    }
    for way in [&here, &there] {
        let answer = way.begin("echo", json!({})).await;
        assert_eq!(answer.status(), StatusCode::NOT_FOUND);
    }
    let (id, keys) = (here.id.as_deref().unwrap(), replicas.redis.keys());
    assert!(!keys.iter().any(|key| key.contains(id)), "{keys:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_with_a_store_of_its_own_says_so() {
    let redis = Redis::start(Kind::Redis);
    let tenants = json!({"a": {"auth": {"mode": "none"}, "servers": {"x": {"command": "cat"}}}});
    let shared = json!({"redis": {"url": redis.url()}, "cluster": {"listen": "127.0.0.1:0"}});
    for (config, is_told) in [(shared, true), (json!({}), false)] {
        let logs = Served::start(config, tenants.clone()).await.end().await;
        let of_it = logs.iter().filter(|line| {
            let text = line["message"].as_str().unwrap_or_default();
            line["level"] == "WARN" && text.contains("sql.url: is not set while redis.url is")
        });
        assert_eq!(of_it.count(), usize::from(is_told), "{logs:?}");
    }
}

/// Each request hung for a second and was 503, until the heartbeat of the earlier start had expired.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_is_up_again_at_once_costs_its_sessions_nothing() {
    let mut replicas = Replicas::two(&[]).await;
    let node = replicas.node(0);
    let sessions = [node.session().await, node.session().await];
    assert_eq!(count(&replicas.by(&sessions[0], 1)).await, 1);
    let key = format!("lockgate:v1:{{{}}}", sessions[0].id.as_deref().unwrap());
    let address = replicas.redis.command(&["HGET", &key, "address"]).text();
    replicas.kill(0).await;
    let listen = format!("cluster.listen={address}");
    replicas.start(0, &[&listen], "idle: 10m").await;
    // Through the other replica, and through the one that has the address now.
    for (session, at) in sessions.iter().zip([1, 0]) {
        let way = replicas.by(session, at);
        let response = within("an answer", way.begin("counter", json!({}))).await;
        assert_eq!(response.status(), StatusCode::OK, "by replica {at}");
        assert_eq!(text_of(&last(response).await), "1", "a new child");
    }
}

/// The fence of a session, which counts its owners.
fn fence(replicas: &Replicas, id: &str) -> String {
    let key = format!("lockgate:v1:{{{id}}}");
    replicas.redis.command(&["HGET", &key, "fence"]).text()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resume_reads_the_log_while_its_owner_is_frozen() {
    let sets = ["stream.keep_alive=500ms", "log.events=1000"];
    let replicas = Replicas::two(&sets).await;
    let here = replicas.node(0).session().await;
    let there = replicas.by(&here, 1);
    assert_eq!(count(&there).await, 1);
    let long = json!({"n": 1_500, "ms": 0});
    let mut ended = here.stream("slow", long, json!("e")).await;
    let ended = ended.rest().await;
    let (trimmed, _) = &progress(&ended)[0];
    let ended = ended.last().unwrap().id.as_deref().unwrap();
    let slow = json!({"n": 100_000, "ms": 10});
    let mut events = here.stream("slow", slow, json!("t")).await;
    let seen = progress(&read(&mut events, 20).await);
    replicas.node(0).signal(Signal::STOP);
    let began = Instant::now();
    // The resume replays the owner's events after the third at once.
    let mut resumed = there.resume(&seen[2].0).await;
    let mut rest = read(&mut resumed, 17).await;
    assert!(
        began.elapsed() < Duration::from_secs(4),
        "{:?}",
        began.elapsed()
    );
    let again = progress(&rest);
    let known = again.len().min(seen.len() - 3);
    assert!(known > 0, "{rest:?}");
    assert_eq!(again[..known], seen[3..][..known], "the same ids");
    let id = here.id.as_deref().unwrap();
    assert_eq!(fence(&replicas, id), "1", "nobody has claimed it yet");
    for (cursor, status) in [
        (ended, StatusCode::NO_CONTENT),
        (trimmed, StatusCode::GONE),
        ("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", StatusCode::BAD_REQUEST),
        ("nonsense", StatusCode::BAD_REQUEST),
    ] {
        assert_eq!(there.get(Some(cursor)).await.status(), status, "{cursor}");
    }
    // Then the stream waits, with comments, for a new owner of the session.
    rest.extend(resumed.rest().await);
    let comments = rest.iter().filter(|event| event.comment.is_some());
    assert!(comments.count() > 0, "{rest:?}");
    let numbers: Vec<u64> = progress(&rest).into_iter().map(|(_, n)| n).collect();
    let expected: Vec<u64> = (4..).take(numbers.len()).collect();
    assert_eq!(numbers, expected, "no gap, none twice");
    let end = final_message(&rest);
    assert_eq!(end["error"]["data"]["reason"], "owner_lost", "{end}");
    assert_eq!(fence(&replicas, id), "2");
    replicas.node(0).signal(Signal::CONT);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_owner_is_found_out_once() {
    let replicas = Replicas::two(&[]).await;
    let here = replicas.node(0).session().await;
    let other = replicas.node(0).session().await;
    let ways = [replicas.by(&here, 1), replicas.by(&other, 1)];
    assert_eq!(count(&ways[0]).await, 1);
    replicas.node(0).signal(Signal::STOP);
    let first = last(ways[0].begin("echo", json!({"text": "x"})).await).await;
    assert_eq!(first["error"]["data"]["reason"], "owner_lost", "{first}");
    // No further request waits for the frozen owner.
    for way in &ways {
        loop {
            let began = Instant::now();
            let response = within("an answer", way.begin("counter", json!({}))).await;
            let took = began.elapsed();
            assert!(took < Duration::from_secs(2), "{took:?}");
            if response.status() == StatusCode::OK {
                assert!(last(response).await["result"].is_object());
                break;
            }
            assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
            assert!(response.headers().contains_key("retry-after"));
        }
    }
    replicas.node(0).signal(Signal::CONT);
    for way in &ways {
        assert_eq!(count(way).await, 2, "it stays where it is");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_stops_begins_and_claims_nothing() {
    let sets = ["drain.delay=30s", "drain.timeout=2s"];
    let mut replicas = Replicas::with(3, &sets, "idle: 10m").await;
    let orphan = replicas.node(2).session().await;
    assert_eq!(count(&orphan).await, 1);
    let own = replicas.node(0).session().await;
    assert_eq!(count(&own).await, 1);
    let before = replicas.node(0).descendants();
    replicas.node(0).signal(Signal::TERM);
    let ready = replicas.node(0).url.replace("/t/a/x/mcp", "/readyz");
    until("a replica that says that it ends", || async {
        let answer = replicas.node(0).http.get(&ready).send().await.unwrap();
        answer.status() == StatusCode::SERVICE_UNAVAILABLE
    })
    .await;
    let open = || {
        replicas
            .redis
            .command(&["ZCARD", "lockgate:v1:open"])
            .number()
    };
    until("the others know", || async { open() == 2 }).await;
    replicas.kill(2).await;
    let url = replicas.node(0).url.replace("/t/a/x/mcp", "");
    let mut begun = Vec::new();
    for _ in 0..3 {
        begun.push(replicas.node(0).session().await);
    }
    for session in &begun {
        assert_eq!(count(session).await, 1, "by way of the one that stops");
        assert_eq!(count(&replicas.by(session, 1)).await, 2);
    }
    let mut legacy = Legacy::at(&url, "/t/a/x").await;
    legacy.initialize().await;
    // The stopping replica does not claim the session of a dead replica either.
    until("the end of its heartbeat", || async {
        let keys = replicas.redis.keys();
        keys.iter().filter(|key| key.contains(":replica:")).count() == 2
    })
    .await;
    assert_eq!(count(&replicas.by(&orphan, 0)).await, 1);
    assert_eq!(count(&own).await, 2, "what it has it serves");
    assert_eq!(
        replicas.node(0).descendants(),
        before,
        "nothing was begun here"
    );
    assert!(replicas.node(1).descendants().len() >= 5);
    drop(legacy);
    for session in [begun.remove(0), own] {
        let there = replicas.by(&session, 1);
        until("the session at the other", || async {
            let answer = there.begin("counter", json!({})).await;
            answer.status() == StatusCode::OK && text_of(&last(answer).await).parse::<u64>().is_ok()
        })
        .await;
    }
    // The test does not wait for the end of the drain delay.
    for at in 0..2 {
        replicas.kill(at).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_stops_alone_serves_until_it_closes() {
    let replicas = Replicas::with(1, &["drain.delay=3s"], "idle: 10m").await;
    replicas.node(0).signal(Signal::TERM);
    until("nobody who begins sessions", || async {
        let open = replicas.redis.command(&["ZCARD", "lockgate:v1:open"]);
        open.number() == 0
    })
    .await;
    let session = replicas.node(0).session().await;
    assert_eq!(count(&session).await, 1);
}

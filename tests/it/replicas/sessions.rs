//! Sessions of replicas that share Redis: any replica serves any session, and the loss of a replica
//! loses no session. Replicas are processes of the real binary.

use std::{collections::BTreeSet, time::Duration};

use reqwest::StatusCode;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::support::{
    faulty::{Faulty, Mode},
    gauges::Gauge,
    harness::{
        Event, Events, Gateway, Legacy, NEWEST, Session, client, last, opening, text_of, tool_call,
        until, within,
    },
    redis::{Kind, Redis},
};

/// Replicas over one Redis, each with its own data directory.
pub(crate) struct Replicas {
    nodes: Vec<Option<Gateway>>,
    pub(crate) redis: Redis,
    dirs: Vec<tempfile::TempDir>,
}

/// The settings that all replicas of a test share.
const COMMON: [&str; 5] = [
    "public_url=http://127.0.0.1:8080",
    "master_key=MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=",
    "cluster.listen=127.0.0.1:0",
    "drain.delay=0s",
    "stream.retry=100ms",
];

impl Replicas {
    /// Two replicas.
    pub(crate) async fn two(sets: &[&str]) -> Self {
        Self::with(2, sets, "idle: 10m").await
    }

    /// `count` replicas, whose servers have `keys`.
    pub(crate) async fn with(count: usize, sets: &[&str], keys: &str) -> Self {
        let redis = Redis::start(Kind::Redis);
        let url = redis.url();
        let urls: Vec<&str> = (0..count).map(|_| url.as_str()).collect();
        Self::over(redis, &urls, sets, keys).await
    }

    /// One replica for each URL of Redis.
    pub(crate) async fn over(redis: Redis, urls: &[&str], sets: &[&str], keys: &str) -> Self {
        let (mut nodes, mut dirs) = (Vec::new(), Vec::new());
        for url in urls {
            let dir = tempfile::tempdir().unwrap();
            nodes.push(Some(node(dir.path(), url, sets, keys).await));
            dirs.push(dir);
        }
        let replicas = Self { nodes, redis, dirs };
        for at in 0..urls.len() {
            replicas.ready(at).await;
        }
        replicas
    }

    pub(crate) fn node(&self, at: usize) -> &Gateway {
        self.nodes[at].as_ref().unwrap()
    }

    /// Waits until a replica serves.
    pub(crate) async fn ready(&self, at: usize) {
        let node = self.node(at);
        let url = node.url.replace("/t/a/x/mcp", "/readyz");
        until("a replica that is ready", || async {
            let answer = node.http.get(&url).send().await;
            answer.is_ok_and(|answer| answer.status() == StatusCode::OK)
        })
        .await;
    }

    /// Kills a replica with SIGKILL.
    pub(crate) async fn kill(&mut self, at: usize) {
        let mut node = self.nodes[at].take().unwrap();
        node.process.start_kill().unwrap();
        node.process.wait().await.unwrap();
    }

    /// Waits for the end of a replica that was signalled; its exit code.
    pub(crate) async fn wait(&mut self, at: usize) -> Option<i32> {
        let mut node = self.nodes[at].take().unwrap();
        let status = within("its end", node.process.wait()).await;
        status.unwrap().code()
    }

    /// Starts a replica again, and waits until it serves.
    pub(crate) async fn start(&mut self, at: usize, sets: &[&str], keys: &str) {
        let dir = self.dirs[at].path();
        self.nodes[at] = Some(node(dir, &self.redis.url(), sets, keys).await);
        self.ready(at).await;
    }

    /// The same session through another replica.
    pub(crate) fn by(&self, session: &Session, at: usize) -> Session {
        let mut other = session.again();
        other.url.clone_from(&self.node(at).url);
        other
    }
}

pub(crate) async fn node(dir: &std::path::Path, redis: &str, sets: &[&str], keys: &str) -> Gateway {
    let redis = format!("redis.url={redis}");
    Gateway::serve(
        dir,
        &[&[redis.as_str()], COMMON.as_slice(), sets].concat(),
        keys,
    )
    .await
}

/// A forwarder to Redis that can be cut, and its URL.
async fn way_to(redis: &Redis) -> (Faulty, String) {
    let url = redis.url();
    let address = url.trim_start_matches("redis://").trim_end_matches("/0");
    let way = Faulty::before(address).await;
    let url = format!("redis://{}/0", way.address);
    (way, url)
}

/// The count of a session's child; a new child starts at one.
pub(crate) async fn count(session: &Session) -> u64 {
    let text = session.text("counter", json!({})).await;
    text.parse().unwrap()
}

/// The sequence numbers in the progress of a stream, with the ids of its events.
pub(crate) fn progress(events: &[Event]) -> Vec<(String, u64)> {
    let numbers = events.iter().filter(|event| event.is_message());
    let numbers = numbers.filter_map(|event| {
        let message: Value = serde_json::from_str(event.data.as_deref()?).ok()?;
        let number = message["params"]["progress"].as_u64()?;
        Some((event.id.clone().unwrap_or_default(), number))
    });
    numbers.collect()
}

/// The last message of a stream.
pub(crate) fn final_message(events: &[Event]) -> Value {
    let last = events.iter().rfind(|event| event.is_message());
    serde_json::from_str(last.and_then(|event| event.data.as_deref()).unwrap()).unwrap()
}

/// Reads progress until `count` messages came.
pub(crate) async fn read(events: &mut Events, count: usize) -> Vec<Event> {
    let mut read = Vec::new();
    while progress(&read).len() < count {
        read.push(within("an event", events.next()).await.unwrap());
    }
    read
}

#[tokio::test(flavor = "multi_thread")]
async fn any_replica_serves_a_session_and_its_child_is_one() {
    let replicas = Replicas::two(&[]).await;
    let here = replicas.node(0).session().await;
    let there = replicas.by(&here, 1);
    assert_eq!(count(&here).await, 1);
    assert_eq!(count(&there).await, 2, "one child");
    assert_eq!(
        there.text("echo", json!({"text": "by the other"})).await,
        "by the other"
    );
    let mut listener = there.listen().await;
    here.call(
        "notify",
        json!({"method": "notifications/tools/list_changed", "params": {}}),
    )
    .await;
    let heard = within("a notification", listener.message()).await.unwrap();
    assert_eq!(heard.1["method"], "notifications/tools/list_changed");
    assert_eq!(there.delete().await.status(), StatusCode::NO_CONTENT);
    for session in [&here, &there] {
        let answer = session.post(&tool_call(json!(1), "echo", json!({}))).await;
        assert_eq!(answer.status(), StatusCode::NOT_FOUND);
    }
    until("the child's end", || async {
        replicas.node(0).descendants().is_empty()
    })
    .await;
    let keys = replicas.redis.keys();
    let id = here.id.as_deref().unwrap();
    assert!(!keys.iter().any(|key| key.contains(id)), "{keys:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_requests_of_a_session_without_stickiness() {
    let replicas = Replicas::with(3, &[], "idle: 10m").await;
    let first = replicas.node(0).session().await;
    let ways: Vec<Session> = (0..3).map(|at| replicas.by(&first, at)).collect();
    for number in 1..=1000 {
        let way = &ways[number % 3];
        let response = way.begin("counter", json!({})).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(text_of(&last(response).await), number.to_string());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_no_other_tenants_on_any_replica() {
    let replicas = Replicas::two(&[]).await;
    let session = replicas.node(0).session().await;
    let mut answers = BTreeSet::new();
    for at in 0..2 {
        for id in [
            session.id.clone().unwrap(),
            "0123456789abcdef0123456789abcdef".to_owned(),
        ] {
            let mut foreign = replicas.by(&session, at);
            foreign.url = foreign.url.replace("/t/a/", "/t/b/");
            foreign.id = Some(id);
            let response = foreign.begin("counter", json!({})).await;
            assert_eq!(response.status(), StatusCode::NOT_FOUND);
            answers.insert(response.text().await.unwrap());
            assert_eq!(foreign.delete().await.status(), StatusCode::NOT_FOUND);
        }
    }
    assert_eq!(answers.len(), 1, "one answer for all of them");
    assert_eq!(session.text("counter", json!({})).await, "1", "untouched");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_resumed_by_the_other_replica_and_twice_the_same() {
    let replicas = Replicas::two(&[]).await;
    let here = replicas.node(0).session().await;
    let there = replicas.by(&here, 1);
    let mut events = here
        .stream("slow", json!({"n": 20, "ms": 20}), json!("t"))
        .await;
    let seen = read(&mut events, 5).await;
    drop(events);
    let cursor = progress(&seen).last().unwrap().0.clone();
    let rest = there.resume(&cursor).await.rest().await;
    let numbers: Vec<u64> = progress(&seen)
        .into_iter()
        .chain(progress(&rest))
        .map(|(_, n)| n)
        .collect();
    assert_eq!(numbers, (1..=20).collect::<Vec<_>>());
    let again = here.resume(&cursor).await.rest().await;
    assert_eq!(progress(&again), progress(&rest));
}

/// The ids of three pings, each of which is answered.
async fn pinged(session: &Session) -> Vec<String> {
    let mut listener = session.listen().await;
    let mut ids = Vec::new();
    while ids.len() < 3 {
        let (_, ping) = listener.message().await.unwrap();
        if ping["method"] != "ping" {
            continue;
        }
        let pong = json!({"jsonrpc": "2.0", "id": ping["id"], "result": {}});
        assert_eq!(session.post(&pong).await.status(), StatusCode::ACCEPTED);
        ids.push(ping["id"].to_string());
    }
    ids
}

/// 2025-11-25 basic, "Requests": no id twice in a session, whichever replica sends the request. The ids of a
/// shared child say nothing of the replica.
#[tokio::test(flavor = "multi_thread")]
async fn pings_of_two_owners_have_different_ids() {
    let mut replicas = Replicas::with(2, &["session.ping=300ms"], "isolation: tenant").await;
    let here = replicas.node(0).session().await;
    let there = replicas.by(&here, 1);
    let mut ids = pinged(&here).await;
    replicas.kill(0).await;
    until("the session is taken over", || async {
        there.begin("echo", json!({"text": "x"})).await.status() == StatusCode::OK
    })
    .await;
    ids.extend(pinged(&there).await);
    let different: BTreeSet<&String> = ids.iter().collect();
    assert_eq!(different.len(), 6, "{ids:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_replica_loses_no_event_and_its_calls_end() {
    let mut replicas = Replicas::two(&[]).await;
    let here = replicas.node(0).session().await;
    let there = replicas.by(&here, 1);
    let mut listener = here.listen().await;
    let mut events = here
        .stream("slow", json!({"n": 1000, "ms": 10}), json!("t"))
        .await;
    let seen = read(&mut events, 10).await;
    // A call that was forwarded, and waits for its answer.
    let waiting = tokio::spawn({
        let (there, message) = (
            there.again(),
            tool_call(json!("forwarded"), "hang", json!({})),
        );
        async move { there.post(&message).await }
    });
    // Before that, the other replica would begin the call itself, and wait for it at its end.
    until("its owner has it", || async {
        let received = here.text("received", json!({})).await;
        received.contains(r#"\"hang\""#)
    })
    .await;
    let began = Instant::now();
    replicas.kill(0).await;
    while let Some(event) = events.next().await {
        drop(event);
    }
    let cursor = progress(&seen).last().unwrap().0.clone();
    let mut resumed = there.resume(&cursor).await;
    let rest = resumed.rest().await;
    assert!(began.elapsed() < Duration::from_secs(10));
    let numbers: Vec<u64> = progress(&seen)
        .into_iter()
        .chain(progress(&rest))
        .map(|(_, n)| n)
        .collect();
    let expected: Vec<u64> = (1..=numbers.len() as u64).collect();
    assert_eq!(numbers, expected, "no gap, none twice");
    let end: Value = final_message(&rest);
    assert_eq!(end["error"]["code"], -31001);
    assert_eq!(
        end["error"]["data"],
        json!({"reason": "owner_lost", "retryable": false})
    );
    while listener.next().await.is_some() {}
    // The session continues with another child.
    assert_eq!(there.text("counter", json!({})).await, "1");
    waiting.abort();
}

/// Calls whose streams were open from the start were in no log: the stream ended without a response.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_a_stream_from_the_start_ends_with_its_replica() {
    let mut replicas = Replicas::with(2, &[], "reply: {mode: sse}").await;
    let here = replicas.node(0).session().await;
    let there = replicas.by(&here, 1);
    let mut events = here
        .stream("slow", json!({"n": 1000, "ms": 10}), json!("t"))
        .await;
    let seen = read(&mut events, 10).await;
    replicas.kill(0).await;
    while let Some(event) = events.next().await {
        drop(event);
    }
    let cursor = progress(&seen).last().unwrap().0.clone();
    let rest = there.resume(&cursor).await.rest().await;
    let end: Value = final_message(&rest);
    assert_eq!(end["error"]["code"], -31001, "{end}");
}

/// Clients with one delay for all streams kept the long one: its owner was gone before it gave the usual one again.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_was_taken_over_gives_the_usual_delay_again() {
    let mut replicas = Replicas::with(2, &[], "reply: {mode: sse}").await;
    let here = replicas.node(0).session().await;
    let there = replicas.by(&here, 1);
    let mut failed = Events::of(here.begin("error", json!({})).await);
    let end = failed.rest().await.pop().unwrap();
    assert!(end.retry.unwrap().parse::<u64>().unwrap() >= 15_000);
    replicas.kill(0).await;
    assert_eq!(there.text("counter", json!({})).await, "1");
    let mut listener = there.listen().await;
    let retry = loop {
        let event = within("the usual delay", listener.next()).await.unwrap();
        if let Some(retry) = event.retry {
            break retry.parse::<u64>().unwrap();
        }
    };
    assert!((50..=150).contains(&retry), "{retry}");
}

/// What a child said before its answer was refused by the store, and the session ended at its begin.
#[tokio::test(flavor = "multi_thread")]
async fn a_child_that_speaks_before_it_is_initialized_has_a_session() {
    let replicas = Replicas::with(1, &[], "").await;
    let mut session = replicas.node(0).stranger();
    let mut opening = opening(NEWEST);
    opening["params"]["clientInfo"]["name"] = json!("early");
    session.begin_session(&opening).await;
    let mut listener = session.listen().await;
    let said = within("what it said", listener.message()).await;
    let (_, said) = said.expect("an event");
    assert_eq!(said["params"]["data"], "early", "{said}");
    assert_eq!(session.text("counter", json!({})).await, "1");
    assert_eq!(
        session.text("counter", json!({})).await,
        "2",
        "the same child"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_forwarded_to_a_killed_replica_end() {
    let mut replicas = Replicas::two(&[]).await;
    let here = replicas.node(0).session().await;
    let there = replicas.by(&here, 1);
    let mut json_only = replicas.by(&here, 1);
    json_only.accept = "application/json";
    let held = tokio::spawn(async move {
        last(
            json_only
                .post(&tool_call(json!("held"), "hang", json!({})))
                .await,
        )
        .await
    });
    let mut events = there
        .stream("slow", json!({"n": 1000, "ms": 10}), json!("t"))
        .await;
    let mut seen = read(&mut events, 10).await;
    replicas.kill(0).await;
    let held = within("the held call's end", held).await.unwrap();
    assert_eq!(
        (&held["id"], &held["error"]["code"]),
        (&json!("held"), &json!(-31001))
    );
    assert_eq!(held["error"]["data"]["reason"], "owner_lost");
    // The stream through the live replica continues to its end, without a reconnect.
    seen.extend(events.rest().await);
    let numbers: Vec<u64> = progress(&seen)
        .into_iter()
        .map(|(_, number)| number)
        .collect();
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>());
    let end: Value = final_message(&seen);
    assert_eq!(end["error"]["code"], -31001, "{end}");
}

/// A client whose `notifications/initialized` gets 503 has no session.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_call_outlives_the_replica_that_it_was_forwarded_to() {
    let mut replicas = Replicas::two(&[]).await;
    let (kept, deleted) = (
        replicas.node(0).session().await,
        replicas.node(0).session().await,
    );
    let (kept, mut deleted) = (replicas.by(&kept, 1), replicas.by(&deleted, 1));
    assert_eq!(count(&kept).await, 1);
    let owner = Gauge::of(replicas.node(0));
    replicas.node(0).signal(Signal::STOP);
    let pad = "x".repeat(5_000);
    let notified = tokio::spawn({
        let (kept, params) = (kept.again(), json!({"_meta": {"pad": pad}}));
        async move {
            kept.notify("notifications/roots/list_changed", params)
                .await;
        }
    });
    let url = deleted.url.clone();
    deleted.url = format!("{url}?pad={pad}");
    let ended = tokio::spawn({
        let deleted = deleted.again();
        async move { deleted.delete().await.status() }
    });
    until("both are on their way to the frozen replica", || async {
        owner.unread() > 10_000
    })
    .await;
    replicas.kill(0).await;
    within("the notification", notified).await.unwrap();
    let ended = within("the end of a session", ended).await.unwrap();
    assert_eq!(ended, StatusCode::NO_CONTENT);
    assert_eq!(count(&kept).await, 1, "another child has the session");
    deleted.url = url;
    let answer = deleted.begin("counter", json!({})).await;
    assert_eq!(answer.status(), StatusCode::NOT_FOUND);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_stops_hands_its_sessions_over() {
    let replicas = Replicas::two(&["drain.timeout=2s"]).await;
    let here = replicas.node(0).session().await;
    let there = replicas.by(&here, 1);
    here.notify("notifications/roots/list_changed", json!({}))
        .await;
    let mut listener = here.listen().await;
    here.call(
        "notify",
        json!({"method": "notifications/tools/list_changed", "params": {}}),
    )
    .await;
    let (cursor, _) = within("a notification", listener.message()).await.unwrap();
    replicas.node(0).signal(Signal::TERM);
    let rest = listener.rest().await;
    assert!(
        rest.iter().any(|event| event.retry.is_some()),
        "come again: {rest:?}"
    );
    let began = Instant::now();
    let mut resumed = there.resume(&cursor).await;
    assert!(began.elapsed() < Duration::from_secs(2));
    there
        .call(
            "notify",
            json!({"method": "notifications/prompts/list_changed", "params": {}}),
        )
        .await;
    loop {
        let (_, heard) = within("a notification", resumed.message()).await.unwrap();
        if heard["method"] == "notifications/prompts/list_changed" {
            break;
        }
    }
    assert_eq!(there.text("echo", json!({"text": "on"})).await, "on");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_was_frozen_is_fenced_when_it_wakes() {
    let replicas = Replicas::two(&[]).await;
    let here = replicas.node(0).session().await;
    let there = replicas.by(&here, 1);
    assert_eq!(count(&here).await, 1);
    // An idle session: no write of it can be refused.
    let quiet = replicas.node(0).session().await;
    assert_eq!(count(&quiet).await, 1);
    let first = replicas.node(0).descendants();
    let mut events = here
        .stream("slow", json!({"n": 100_000, "ms": 20}), json!("t"))
        .await;
    let seen = read(&mut events, 3).await;
    replicas.node(0).signal(Signal::STOP);
    let cursor = progress(&seen).last().unwrap().0.clone();
    until("an owner that lives", || async {
        let response = there.begin("echo", json!({"text": "alive"})).await;
        response.status() == StatusCode::OK && last(response).await["result"].is_object()
    })
    .await;
    assert_eq!(count(&there).await, 1, "another child");
    assert_eq!(count(&replicas.by(&quiet, 1)).await, 1, "another child");
    let rest = there.resume(&cursor).await.rest().await;
    let end: Value = final_message(&rest);
    assert_eq!(end["error"]["data"]["reason"], "owner_lost");
    replicas.node(0).signal(Signal::CONT);
    // The woken replica sends nothing of its old sessions, ends their children, and serves again.
    let late = events.rest().await;
    let frozen: Vec<u64> = progress(&late)
        .into_iter()
        .map(|(_, number)| number)
        .collect();
    let before = progress(&rest).last().map_or(3, |(_, number)| *number);
    assert!(
        frozen.iter().all(|number| *number <= before),
        "{frozen:?} after {before}"
    );
    until("the end of the zombie's children", || async {
        let left = replicas.node(0).descendants();
        !left.iter().any(|child| first.contains(child))
    })
    .await;
    until("the woken one serves", || async {
        let response = here.begin("whoami", json!({})).await;
        response.status() == StatusCode::OK
    })
    .await;
    for session in [&here, &quiet] {
        assert_eq!(count(session).await, 2, "one session, one child");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_away_is_503_and_costs_no_child() {
    let replicas = Replicas::two(&[]).await;
    let sessions = [
        replicas.node(0).session().await,
        replicas.node(1).session().await,
    ];
    for session in &sessions {
        assert_eq!(count(session).await, 1);
    }
    replicas.redis.pause();
    let began = Instant::now();
    for at in 0..2 {
        let node = replicas.node(at);
        let url = node.url.replace("/t/a/x/mcp", "/readyz");
        until("a replica that is not ready", || async {
            let answer = node.http.get(&url).send().await.unwrap();
            answer.status() == StatusCode::SERVICE_UNAVAILABLE
        })
        .await;
    }
    assert!(began.elapsed() < Duration::from_secs(5));
    let strangers = [replicas.node(0).stranger(), replicas.node(1).stranger()];
    for (at, session) in sessions.iter().enumerate() {
        for way in [session, &replicas.by(session, 1 - at)] {
            let began = Instant::now();
            let response = way.begin("whoami", json!({})).await;
            assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
            assert!(response.headers().contains_key("retry-after"));
            assert!(
                began.elapsed() < Duration::from_millis(2250),
                "{:?}",
                began.elapsed()
            );
            assert_eq!(
                way.get(None).await.status(),
                StatusCode::SERVICE_UNAVAILABLE
            );
            assert_eq!(way.delete().await.status(), StatusCode::SERVICE_UNAVAILABLE);
        }
        let response = strangers[at].post(&opening("2025-11-25")).await;
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    }
    replicas.redis.resume();
    let began = Instant::now();
    for session in &sessions {
        until("normal service", || async {
            let response = session.begin("whoami", json!({})).await;
            assert!([200, 503].contains(&response.status().as_u16()));
            response.status() == StatusCode::OK
        })
        .await;
        assert_eq!(count(session).await, 2, "the same child");
    }
    assert!(
        began.elapsed() < Duration::from_secs(2),
        "{:?}",
        began.elapsed()
    );
}

/// Polls the count until three seconds after `back`. Each answer other than 503 must be a count.
/// Returns the time of the last 503, and the counts.
async fn counted(way: Session, back: Instant) -> (Instant, Vec<u64>) {
    let (mut late, mut counts) = (back, Vec::new());
    while back.elapsed() < Duration::from_secs(3) {
        let response = way.begin("counter", json!({})).await;
        if response.status() == StatusCode::SERVICE_UNAVAILABLE {
            late = Instant::now();
        } else {
            assert_eq!(response.status(), StatusCode::OK);
            counts.push(text_of(&last(response).await).parse().unwrap());
        }
    }
    (late, counts)
}

/// All heartbeats have expired when Redis returns, and one replica reaches it before the other: it
/// claims no session of a live owner.
#[tokio::test(flavor = "multi_thread")]
async fn redis_away_beyond_all_heartbeats_costs_no_child() {
    let redis = Redis::start(Kind::Redis);
    let (one, other) = (way_to(&redis).await, way_to(&redis).await);
    let replicas = Replicas::over(redis, &[&one.1, &other.1], &[], "idle: 10m").await;
    let ways = [one.0, other.0];
    let sessions = [
        replicas.node(0).session().await,
        replicas.node(1).session().await,
    ];
    for session in &sessions {
        assert_eq!(count(session).await, 1);
    }
    for way in &ways {
        way.set(Mode::Cut);
    }
    // The length of the outage, not a wait for a condition.
    tokio::time::sleep(Duration::from_secs(6)).await;
    ways[0].set(Mode::Pass);
    let back = Instant::now();
    let told = sessions.iter().map(|session| {
        let asked = (0..2).map(|at| counted(replicas.by(session, at), back));
        futures_util::future::join_all(asked)
    });
    let later = async {
        until("the first to be back", || async {
            let response = sessions[0].begin("echo", json!({"text": "on"})).await;
            response.status() == StatusCode::OK
        })
        .await;
        let foreign = replicas.by(&sessions[1], 0);
        let response = foreign.begin("counter", json!({})).await;
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        ways[1].set(Mode::Pass);
    };
    let (told, ()) = tokio::join!(futures_util::future::join_all(told), later);
    for (at, asked) in told.iter().enumerate() {
        let late = asked.iter().map(|(late, _)| *late).max().unwrap();
        assert!(late - back < Duration::from_secs(2), "{:?}", late - back);
        let mut counts: Vec<u64> = asked
            .iter()
            .flat_map(|(_, counts)| counts)
            .copied()
            .collect();
        counts.sort_unstable();
        let wanted: Vec<u64> = (2..).take(counts.len()).collect();
        assert_eq!(counts, wanted, "one child all along, of session {at}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flushed_redis_is_filled_again_by_the_owners() {
    let replicas = Replicas::two(&[]).await;
    let here = replicas.node(0).session().await;
    let there = replicas.by(&here, 1);
    assert_eq!(count(&here).await, 1);
    let mut listener = here.listen().await;
    here.call(
        "notify",
        json!({"method": "notifications/tools/list_changed", "params": {}}),
    )
    .await;
    let (old, _) = within("a notification", listener.message()).await.unwrap();
    drop(listener);
    replicas.redis.command(&["FLUSHALL"]);
    let began = Instant::now();
    until("the session by way of the other", || async {
        let response = there.begin("echo", json!({"text": "x"})).await;
        assert!(
            [200, 503].contains(&response.status().as_u16()),
            "{}",
            response.status()
        );
        response.status() == StatusCode::OK
    })
    .await;
    assert!(
        began.elapsed() < Duration::from_secs(3),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(count(&there).await, 2, "the same child");
    until("an old cursor is gone", || async {
        there.get(Some(&old)).await.status() == StatusCode::GONE
    })
    .await;
    let mut listener = there.listen().await;
    here.call(
        "notify",
        json!({"method": "notifications/prompts/list_changed", "params": {}}),
    )
    .await;
    let (new, heard) = within("a notification", listener.message()).await.unwrap();
    assert_eq!(heard["method"], "notifications/prompts/list_changed");
    drop(listener);
    assert_eq!(there.get(Some(&new)).await.status(), StatusCode::OK);
    let mut unknown = there.again();
    unknown.id = Some("0123456789abcdef0123456789abcdef".to_owned());
    until("unknown sessions are 404 again", || async {
        let status = unknown.begin("echo", json!({})).await.status();
        assert!([404, 503].contains(&status.as_u16()));
        status == StatusCode::NOT_FOUND
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_cut_off_from_redis_sends_its_streams_elsewhere() {
    let redis = Redis::start(Kind::Redis);
    let (way, first) = way_to(&redis).await;
    let second = redis.url();
    let sets = ["cluster.close_after=3s", "cluster.orphan_after=8s"];
    let replicas = Replicas::over(redis, &[&first, &second], &sets, "idle: 10m").await;
    let here = replicas.node(0).session().await;
    let there = replicas.by(&here, 1);
    assert_eq!(count(&here).await, 1);
    let mut events = here
        .stream("slow", json!({"n": 100_000, "ms": 20}), json!("t"))
        .await;
    let seen = read(&mut events, 5).await;
    let first = replicas.node(0).descendants();
    way.set(Mode::Cut);
    let began = Instant::now();
    let rest = within("the end of the stream", events.rest()).await;
    assert!(began.elapsed() < Duration::from_secs(3 + 3 + 1));
    assert!(rest.iter().any(|event| event.retry.is_some()), "{rest:?}");
    let url = replicas.node(0).url.replace("/t/a/x/mcp", "/readyz");
    let ready = replicas.node(0).http.get(&url).send().await.unwrap();
    assert_eq!(ready.status(), StatusCode::SERVICE_UNAVAILABLE);
    // The other replica continues the stream behind the last event that was sent.
    let all: Vec<_> = seen.iter().chain(&rest).cloned().collect();
    let (cursor, last_seen) = progress(&all).last().unwrap().clone();
    until("another owner", || async {
        let response = there.get(Some(&cursor)).await;
        response.status() == StatusCode::OK
    })
    .await;
    let rest = there.resume(&cursor).await.rest().await;
    let numbers: Vec<u64> = progress(&rest).into_iter().map(|(_, n)| n).collect();
    let expected: Vec<u64> = (last_seen + 1..).take(numbers.len()).collect();
    assert_eq!(numbers, expected);
    assert_eq!(
        final_message(&rest)["error"]["data"]["reason"],
        "owner_lost"
    );
    assert_eq!(count(&there).await, 1, "another child");
    until("the children of the replica that is cut off", || async {
        let left = replicas.node(0).descendants();
        !left.iter().any(|child| first.contains(child))
    })
    .await;
    way.set(Mode::Pass);
    replicas.ready(0).await;
    assert_eq!(count(&here).await, 2, "by way of the owner");
}

/// A replica that is cut off from Redis may be lost with the events that Redis does not have.
#[tokio::test(flavor = "multi_thread")]
async fn no_call_is_answered_before_its_notifications_are_kept() {
    let redis = Redis::start(Kind::Redis);
    let (way, first) = way_to(&redis).await;
    let second = redis.url();
    let sets = ["cluster.orphan_after=6s"];
    let replicas = Replicas::over(redis, &[&first, &second], &sets, "idle: 10m").await;
    let here = replicas.node(0).session().await;
    let there = replicas.by(&here, 1);
    let notify = |session: Session, number: u64| async move {
        let params = json!({"_meta": {"data": number}});
        let args = json!({"method": "notifications/tools/list_changed", "params": params});
        session.call("notify", args).await
    };
    let mut listener = here.listen().await;
    assert_eq!(text_of(&notify(here.again(), 1).await), "sent");
    let heard = within("a notification", listener.message()).await.unwrap();
    assert_eq!(heard.1["params"]["_meta"]["data"], 1);
    // Redis comes back in time: nothing is missing, and the call is answered.
    way.set(Mode::Cut);
    let answer = here.text("echo", json!({"text": "json"})).await;
    assert_eq!(answer, "json", "nothing came before it");
    let mut pending = tokio::spawn(notify(here.again(), 2));
    let quiet = Duration::from_millis(500);
    let early = tokio::time::timeout(quiet, &mut pending).await;
    assert!(early.is_err(), "answered before Redis has it: {early:?}");
    way.set(Mode::Pass);
    let answer = within("the answer", pending).await.unwrap();
    assert_eq!(text_of(&answer), "sent");
    let heard = within("a notification", listener.message()).await.unwrap();
    assert_eq!(heard.1["params"]["_meta"]["data"], 2);
    // It does not, and another replica claims the session.
    replicas.ready(0).await;
    way.set(Mode::Cut);
    let pending = tokio::spawn(notify(here.again(), 3));
    // Its response becomes a stream, of which Redis never hears.
    let hanging = here.again();
    let hanging = tokio::spawn(async move { hanging.call("hang", json!({})).await });
    until("another owner", || async {
        there.begin("echo", json!({"text": "x"})).await.status() == StatusCode::OK
    })
    .await;
    for call in [pending, hanging] {
        let answer = within("the answer", call).await.unwrap();
        assert_eq!(answer["error"]["data"]["reason"], "owner_lost", "{answer}");
    }
}

/// It was taken with 202, and lost with its replica: nobody answered it.
#[tokio::test(flavor = "multi_thread")]
async fn http_sse_takes_no_call_of_which_redis_does_not_know() {
    let redis = Redis::start(Kind::Redis);
    let (way, first) = way_to(&redis).await;
    let second = redis.url();
    let sets = ["cluster.orphan_after=6s"];
    let replicas = Replicas::over(redis, &[&first, &second], &sets, "idle: 10m").await;
    let origin = |at: usize| replicas.node(at).url.replace("/t/a/x/mcp", "");
    let mut legacy = Legacy::at(&origin(0), "/t/a/x").await;
    legacy.initialize().await;
    let post = |at: usize, message: Value| {
        let request = client().post(format!("{}{}", origin(at), legacy.endpoint));
        let request = request.header("Content-Type", "application/json");
        let sent = request.body(message.to_string()).send();
        async move { within("a response", sent).await.unwrap() }
    };
    let echo = |id: &str| tool_call(json!(id), "echo", json!({"text": "x"}));
    // Redis comes back in time.
    way.set(Mode::Cut);
    let mut pending = tokio::spawn(post(0, echo("first")));
    let quiet = Duration::from_millis(500);
    let early = tokio::time::timeout(quiet, &mut pending).await;
    assert!(early.is_err(), "taken before Redis knows it: {early:?}");
    way.set(Mode::Pass);
    assert_eq!(pending.await.unwrap().status(), StatusCode::ACCEPTED);
    // Read before the next cut: its event is written behind its id.
    let (_, answer) = within("an answer", legacy.events.message()).await.unwrap();
    assert_eq!(answer["id"], "first");
    // It does not.
    replicas.ready(0).await;
    way.set(Mode::Cut);
    let lost = post(0, echo("second")).await;
    assert_eq!(lost.status(), StatusCode::SERVICE_UNAVAILABLE);
    // It may have been executed, so nothing may send it again by itself.
    assert!(!lost.headers().contains_key("retry-after"));
    let lost: Value = lost.json().await.unwrap();
    assert_eq!(
        (&lost["id"], &lost["error"]["code"]),
        (&json!("second"), &json!(-31001))
    );
    // The session goes on at the other replica.
    let ping = json!({"jsonrpc": "2.0", "id": "p", "method": "ping"});
    until("another owner", || async {
        post(1, ping.clone()).await.status() == StatusCode::ACCEPTED
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn http_sse_works_by_way_of_any_replica() {
    let replicas = Replicas::two(&[]).await;
    let origin = |at: usize| replicas.node(at).url.replace("/t/a/x/mcp", "");
    let mut legacy = Legacy::at(&origin(0), "/t/a/x").await;
    legacy.initialize().await;
    let url = format!("{}{}", origin(1), legacy.endpoint);
    let post = async |message: Value| {
        let request = client()
            .post(&url)
            .header("Content-Type", "application/json");
        let sent = request.body(message.to_string()).send();
        within("a response", sent).await.unwrap().status()
    };
    let call = tool_call(json!("there"), "echo", json!({"text": "by the other"}));
    assert_eq!(post(call).await, StatusCode::ACCEPTED);
    let (_, answer) = within("an answer", legacy.events.message()).await.unwrap();
    assert_eq!(
        (&answer["id"], text_of(&answer)),
        (&json!("there"), "by the other".to_owned())
    );
    let unknown = url.replace("session_id=", "session_id=0");
    let refused = client()
        .post(&unknown)
        .header("Content-Type", "application/json");
    let refused = refused.body("{}").send().await.unwrap();
    assert_ne!(refused.status(), StatusCode::ACCEPTED);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_on_one_stream_also_of_two_replicas() {
    let replicas = Replicas::two(&[]).await;
    let here = replicas.node(0).session().await;
    let there = replicas.by(&here, 1);
    let (mut one, mut other) = (here.listen().await, there.listen().await);
    let changed = json!({"method": "notifications/tools/list_changed", "params": {}});
    for _ in 0..5 {
        there.call("notify", changed.clone()).await;
    }
    let mut heard = 0;
    while heard < 5 {
        tokio::select! {
            message = one.message() => { message.unwrap(); heard += 1; }
            message = other.message() => { message.unwrap(); heard += 1; }
        }
    }
    drop((one, other));
    // No sixth event was kept.
    let mut third = here.listen().await;
    here.call(
        "notify",
        json!({"method": "notifications/prompts/list_changed", "params": {}}),
    )
    .await;
    let (_, next) = within("a notification", third.message()).await.unwrap();
    assert_eq!(next["method"], "notifications/prompts/list_changed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_must_not_be_restored_ends_its_sessions_with_their_replica() {
    let mut replicas = Replicas::with(2, &[], "on_loss: end").await;
    let here = replicas.node(0).session().await;
    let there = replicas.by(&here, 1);
    assert_eq!(count(&there).await, 1);
    replicas.kill(0).await;
    let response = there.begin("counter", json!({})).await;
    assert_eq!(response.status(), StatusCode::NOT_FOUND);
    let id = here.id.as_deref().unwrap();
    assert!(!replicas.redis.keys().iter().any(|key| key.contains(id)));
}

#[tokio::test(flavor = "multi_thread")]
async fn abandoned_sessions_leave_no_key() {
    let replicas = Replicas::two(&["session.idle=3s"]).await;
    let before = replicas.redis.keys().len();
    // All at once: on a busy machine the first must not be idle for too long.
    let abandoned = (0..20).map(async |number: usize| {
        let session = replicas.node(number % 2).session().await;
        session
            .call("log", json!({"level": "error", "text": "kept"}))
            .await;
        drop(session.listen().await);
    });
    futures_util::future::join_all(abandoned).await;
    assert!(replicas.redis.keys().len() >= before + 20);
    until("as many keys as before", || async {
        replicas.redis.keys().len() <= before
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_survives_every_replica_it_had() {
    let mut replicas = Replicas::with(3, &[], "idle: 10m").await;
    let first = replicas.node(0).session().await;
    first
        .ask("logging/setLevel", json!({"level": "error"}))
        .await;
    first
        .ask("resources/subscribe", json!({"uri": "test://a"}))
        .await;
    for at in 0..2 {
        replicas.kill(at).await;
        let next = replicas.by(&first, at + 1);
        assert_eq!(count(&next).await, 1, "a new child each time");
        let subscribed = next.text("subscribed", json!({})).await;
        assert!(subscribed.contains("test://a"), "{subscribed}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_replica_claims_when_many_requests_arrive_at_once() {
    let mut replicas = Replicas::with(3, &["stream.per_session=64"], "idle: 10m").await;
    let first = replicas.node(0).session().await;
    assert_eq!(count(&first).await, 1);
    replicas.kill(0).await;
    let ways: Vec<Session> = (0..40).map(|n| replicas.by(&first, 1 + n % 2)).collect();
    let counts = ways.iter().map(async |way| {
        let response = way.begin("counter", json!({})).await;
        (response.status(), text_of(&last(response).await))
    });
    let counts = futures_util::future::join_all(counts).await;
    assert!(
        counts.iter().all(|(status, _)| *status == StatusCode::OK),
        "{counts:?}"
    );
    let numbers: BTreeSet<u64> = counts.iter().map(|(_, n)| n.parse().unwrap()).collect();
    assert_eq!(numbers, (1..=40).collect(), "one child counted them all");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_redis_makes_streams_late_and_calls_not() {
    let redis = Redis::start(Kind::Redis);
    let (way, url) = way_to(&redis).await;
    let replicas = Replicas::over(redis, &[&url, &url], &[], "isolation: tenant").await;
    let mut sessions = Vec::new();
    for number in 0..20 {
        sessions.push(replicas.node(number % 2).session().await);
    }
    way.set(Mode::Delay(Duration::from_millis(100)));
    let began = Instant::now();
    let mut waits = Vec::new();
    let asked = sessions.iter().map(async |session| {
        let began = Instant::now();
        let text = session.text("echo", json!({"text": "json"})).await;
        assert_eq!(text, "json");
        began.elapsed()
    });
    waits.extend(futures_util::future::join_all(asked).await);
    waits.sort();
    assert!(
        waits[10] < Duration::from_millis(150),
        "no call waits for Redis: {waits:?}"
    );
    // All listeners connect at once, each through the other replica.
    let came = sessions.iter().enumerate().map(async |(number, session)| {
        let began = Instant::now();
        let response = replicas.by(session, (number + 1) % 2).get(None).await;
        assert_eq!(response.status(), StatusCode::OK);
        (began.elapsed(), response)
    });
    let came = futures_util::future::join_all(came).await;
    let slowest = came.iter().map(|(wait, _)| *wait).max().unwrap();
    assert!(slowest < Duration::from_secs(5), "{slowest:?}");
    let mut events = sessions[0]
        .stream("slow", json!({"n": 50, "ms": 10}), json!("t"))
        .await;
    let numbers = progress(&events.rest().await);
    assert_eq!(numbers.len(), 50, "late, and all of them");
    assert!(began.elapsed() < Duration::from_secs(15));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_of_another_deployment_does_not_start() {
    let replicas = Replicas::two(&[]).await;
    let redis = replicas.redis.url();
    for other in [
        "master_key=QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVphYmNkZWY=",
        "public_url=http://127.0.0.1:8081",
    ] {
        let dir = tempfile::tempdir().unwrap();
        let mut stranger = node(dir.path(), &redis, &[other], "idle: 10m").await;
        let exit = within("its end", stranger.process.wait()).await.unwrap();
        assert_eq!(exit.code(), Some(1));
        assert!(
            stranger.stderr().contains("redis.prefix"),
            "{}",
            stranger.stderr()
        );
    }
    // A further replica of the same deployment starts.
    let dir = tempfile::tempdir().unwrap();
    let third = node(dir.path(), &redis, &[], "idle: 10m").await;
    let session = replicas.node(0).session().await;
    let mut by_third = session.again();
    by_third.url.clone_from(&third.url);
    until("the third serves", || async {
        by_third.begin("counter", json!({})).await.status() == StatusCode::OK
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_sent_that_redis_does_not_have() {
    let replicas = Replicas::two(&[]).await;
    let here = replicas.node(0).session().await;
    let mut events = here
        .stream("slow", json!({"n": 150, "ms": 20}), json!("t"))
        .await;
    let mut seen = read(&mut events, 5).await;
    replicas.redis.pause();
    // Events that were acknowledged before may still be on their way.
    let quiet = Duration::from_millis(500);
    while let Ok(event) = tokio::time::timeout(quiet, events.next()).await {
        seen.push(event.unwrap());
        assert!(progress(&seen).len() < 40, "it goes on without Redis");
    }
    replicas.redis.resume();
    seen.extend(events.rest().await);
    let numbers: Vec<u64> = progress(&seen).into_iter().map(|(_, n)| n).collect();
    assert_eq!(numbers, (1..=150).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_session_of_a_dead_replica_stays_its_principals() {
    let mut replicas = Replicas::two(&[]).await;
    let here = replicas.node(0).session().await;
    let there = replicas.by(&here, 1);
    replicas.kill(0).await;
    let mut foreign = there.again();
    foreign.url = foreign.url.replace("/t/a/", "/t/b/");
    for _ in 0..3 {
        let response = foreign.begin("counter", json!({})).await;
        assert_eq!(response.status(), StatusCode::NOT_FOUND);
    }
    assert!(replicas.node(1).descendants().is_empty(), "no child for it");
    assert_eq!(count(&there).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_stops_fails_no_request() {
    let replicas = Replicas::two(&["drain.timeout=5s"]).await;
    let mut sessions = Vec::new();
    for _ in 0..10 {
        let session = replicas.node(0).session().await;
        sessions.push(replicas.by(&session, 1));
    }
    let asking = sessions.iter().map(async |session| {
        for number in 0..40 {
            let response = session.begin("sleep", json!({"ms": 20 + number % 3})).await;
            assert_eq!(response.status(), StatusCode::OK, "request {number}");
            let answer = last(response).await;
            assert!(answer["result"].is_object(), "request {number}: {answer}");
        }
    });
    let stopping = async {
        tokio::time::timeout(Duration::from_millis(300), std::future::pending::<()>())
            .await
            .unwrap_err();
        replicas.node(0).signal(Signal::TERM);
    };
    tokio::join!(futures_util::future::join_all(asking), stopping);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_changes_a_session_in_a_flushed_redis_does_not_end_it() {
    let replicas = Replicas::two(&[]).await;
    let here = replicas.node(0).session().await;
    assert_eq!(count(&here).await, 1);
    replicas.redis.command(&["FLUSHALL"]);
    // The owner has to write the record before it notices the loss.
    let level = json!({"jsonrpc": "2.0", "id": "level", "method": "logging/setLevel",
        "params": {"level": "error"}});
    let answer = last(here.post(&level).await).await;
    assert_eq!(answer["id"], "level");
    assert!(answer["result"].is_object(), "{answer}");
    until("the session by way of the other", || async {
        let response = replicas.by(&here, 1).begin("echo", json!({})).await;
        assert!([200, 503].contains(&response.status().as_u16()));
        response.status() == StatusCode::OK
    })
    .await;
    assert_eq!(count(&here).await, 2, "the same child");
}

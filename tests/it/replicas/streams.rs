//! Streams of sessions over two replicas: cut at any byte, resumed often, never read, read too
//! late, and owned by a frozen replica.

use std::{collections::BTreeSet, time::Duration};

use futures_util::future::join_all;
use reqwest::{Method, Response, StatusCode};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::{net::TcpStream, task::JoinHandle, time::Instant};

use crate::{
    hub::broken_connections::{Chance, deaf, wakes},
    replicas::sessions::{Replicas, count, final_message, progress, read},
    support::{
        balancer::Balancer,
        gauges::{Gauge, median, scaled, slow_call, stays_quick},
        harness::{
            Events, Gateway, Session, is_stream, json_of, last, text_of, tool_call, until, within,
        },
    },
};

/// Host and port of a replica.
fn host(node: &Gateway) -> String {
    let url = url::Url::parse(&node.url).unwrap();
    url.authority().to_owned()
}

/// The answer to a resume. A 503, which a slow Redis causes, is retried.
async fn resumed(way: &Session, cursor: &str) -> Response {
    let mut response = way.get(Some(cursor)).await;
    while response.status() == StatusCode::SERVICE_UNAVAILABLE {
        response = way.get(Some(cursor)).await;
    }
    response
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_left_and_resumed_twenty_times_at_alternating_replicas() {
    let replicas = Replicas::two(&[]).await;
    let here = replicas.node(0).session().await;
    let there = replicas.by(&here, 1);
    let args = json!({"n": 200, "ms": 10});
    let mut events = here.stream("slow", args, json!("t")).await;
    let mut seen = progress(&read(&mut events, 5).await);
    for cycle in 0..20 {
        drop(events);
        let way = if cycle % 2 == 0 { &there } else { &here };
        // Events that no connection has read.
        way.text("sleep", json!({"ms": 30})).await;
        events = Events::of(resumed(way, &seen.last().unwrap().0).await);
        seen.extend(progress(&read(&mut events, 1 + cycle % 7).await));
    }
    let rest = events.rest().await;
    seen.extend(progress(&rest));
    let numbers: Vec<u64> = seen.iter().map(|(_, number)| *number).collect();
    assert_eq!(numbers, (1..=200).collect::<Vec<_>>());
    let ids: BTreeSet<&String> = seen.iter().map(|(id, _)| id).collect();
    assert_eq!(ids.len(), 200, "an id came twice");
    assert_eq!(text_of(&final_message(&rest)), "done");
    let end = rest.last().and_then(|event| event.id.as_deref()).unwrap();
    for way in [&here, &there] {
        let response = resumed(way, end).await;
        assert_eq!(response.status(), StatusCode::NO_CONTENT);
    }
}

/// The owner of a session counts its streams, through either replica.
#[tokio::test(flavor = "multi_thread")]
async fn streams_of_a_session_are_limited_over_both_replicas() {
    let replicas = Replicas::two(&["stream.per_session=2"]).await;
    let here = replicas.node(0).session().await;
    let there = replicas.by(&here, 1);
    let args = json!({"n": 100, "ms": 20});
    let mut open = [
        here.stream("slow", args.clone(), json!("a")).await,
        there.stream("slow", args, json!("b")).await,
    ];
    for way in [&here, &there, &here, &there] {
        let refused = way.begin("echo", json!({"text": "x"})).await;
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        assert!(refused.headers().contains_key("retry-after"));
    }
    // Twice as many connections as streams: two read calls, two more may listen.
    let mut listeners = vec![there.listen().await, here.listen().await];
    for way in [&here, &there] {
        let refused = way.get(None).await;
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    }
    // Open streams continue to their ends, without a gap.
    for events in &mut open {
        let rest = events.rest().await;
        let numbers: Vec<u64> = progress(&rest).into_iter().map(|(_, n)| n).collect();
        assert_eq!(numbers, (1..=100).collect::<Vec<_>>());
        assert_eq!(text_of(&final_message(&rest)), "done");
    }
    let changed = json!({"method": "notifications/tools/list_changed", "params": {}});
    assert_eq!(there.text("notify", changed).await, "sent");
    let heard = within("a notification", listeners[1].message()).await;
    assert_eq!(
        heard.unwrap().1["method"],
        "notifications/tools/list_changed"
    );
    // A freed place can be used again.
    listeners.clear();
    until("a place", || async {
        there.get(None).await.status() == StatusCode::OK
    })
    .await;
}

/// The events of a stream over all reconnects: the ids, and the number of cuts.
async fn collect(direct: &Session, by: &Session, count: u64) -> (Vec<String>, usize) {
    let args = json!({"n": count, "ms": 1});
    let mut stream = direct.stream("slow", args, json!("t")).await;
    let mut ids = vec![within("an id", stream.next()).await.unwrap().id.unwrap()];
    drop(stream);
    let (mut cuts, mut next, mut end) = (0, 1, Value::Null);
    loop {
        let request = by.request(Method::GET);
        let request = request
            .header("Accept", "text/event-stream")
            .header("Last-Event-ID", ids.last().unwrap());
        let Ok(response) = within("a response, or a cut", request.send()).await else {
            cuts += 1;
            continue;
        };
        match response.status() {
            StatusCode::NO_CONTENT => break,
            // Redis is too slow: retry.
            StatusCode::SERVICE_UNAVAILABLE => continue,
            _ => {}
        }
        let mut events = Events::of(response);
        while let Some((id, message)) = events.message().await {
            ids.push(id);
            if message["method"] == "notifications/progress" {
                assert_eq!(message["params"]["progress"], next, "behind {ids:?}");
                next += 1;
            } else {
                assert_eq!(end, Value::Null, "a second end");
                end = message;
            }
        }
        cuts += usize::from(events.error.is_some());
    }
    assert_eq!((next, &*text_of(&end)), (count + 1, "done"));
    (ids, cuts)
}

/// Forced disconnects at arbitrary bytes.
#[tokio::test(flavor = "multi_thread")]
async fn cuts_at_any_byte_lose_nothing_and_repeat_nothing_at_two_replicas() {
    let disconnects = scaled("disconnects", 10_000, 1000);
    let mut chance = Chance::new();
    let mut balancer = Balancer::new().await;
    let sets = ["log.events=1000000", "log.bytes=1GiB", &*balancer.host()];
    let replicas = Replicas::two(&sets).await;
    let hosts = (0..2).map(|at| host(replicas.node(at))).collect();
    // Every third connection breaks before its first byte.
    balancer.before(hosts, move || chance.below(3).min(1) * chance.below(1600));
    let count = disconnects as u64 * 5 / 8;
    let mut sessions = Vec::new();
    for at in [0, 1, 0, 1] {
        let direct = replicas.node(at).session().await;
        let mut by = direct.again();
        by.url = balancer.by(&by.url);
        sessions.push((direct, by));
    }
    let all = sessions
        .iter()
        .map(|(direct, by)| collect(direct, by, count));
    let all = join_all(all).await;
    let cuts: usize = all.iter().map(|(_, cuts)| cuts).sum();
    println!("{cuts} cuts of {} events", 4 * count);
    assert!(cuts >= disconnects, "{cuts} cuts");
    let ids: Vec<&String> = all.iter().flat_map(|(ids, _)| ids).collect();
    let once: BTreeSet<&String> = ids.iter().copied().collect();
    assert_eq!(once.len(), ids.len(), "an id came twice");
}

/// The boundary between replay and live events, under 1,000 events a second.
#[tokio::test(flavor = "multi_thread")]
async fn where_replay_becomes_live_there_is_no_seam_at_either_replica() {
    let count = scaled("events", 100_000, 3000) as u64;
    let mut chance = Chance::new();
    let replicas = Replicas::two(&["log.events=1000000", "log.bytes=1GiB"]).await;
    let here = replicas.node(0).session().await;
    let ways = [replicas.by(&here, 0), replicas.by(&here, 1)];
    let args = json!({"n": count, "ms": 1});
    let mut events = ways[0].stream("slow", args, json!("t")).await;
    let (mut resumes, mut next) = (0, 1);
    let mut cursor = within("an id", events.next()).await.unwrap().id.unwrap();
    loop {
        // From replayed events to live events: the boundary is in between.
        let stop = next + 1 + chance.below(40) as u64;
        let mut end = None;
        while next < stop {
            let Some((id, message)) = events.message().await else {
                panic!("it ended behind {next}: {:?}", events.error);
            };
            cursor = id;
            if message["method"] != "notifications/progress" {
                end = Some(message);
                break;
            }
            assert_eq!(message["params"]["progress"], next, "resume {resumes}");
            next += 1;
        }
        if let Some(end) = end {
            assert_eq!((next, &*text_of(&end)), (count + 1, "done"));
            break;
        }
        resumes += 1;
        events = Events::of(resumed(&ways[resumes % 2], &cursor).await);
    }
    println!("{resumes} resumes of {count} events");
    assert!(resumes >= 50, "{resumes}");
}

/// The events of a stream, more than the log keeps.
const MANY: u64 = 600;

/// True if a resume behind `number` gets 410; asserts that it gets the next event otherwise.
async fn is_gone(response: Response, number: u64) -> bool {
    if response.status() == StatusCode::GONE {
        return true;
    }
    assert!(is_stream(&response), "{response:?}");
    let Some((_, message)) = Events::of(response).message().await else {
        // The stream was cut before its first event.
        return false;
    };
    let next = message["params"]["progress"].as_u64();
    let next = next.unwrap_or_else(|| {
        assert_eq!(text_of(&message), "done");
        MANY + 1
    });
    assert_eq!(next, number + 1, "a gap: {message}");
    false
}

#[tokio::test(flavor = "multi_thread")]
async fn trimmed_events_are_gone_at_every_replica() {
    let mut replicas = Replicas::two(&["log.events=50"]).await;
    let here = replicas.node(0).session().await;
    let there = replicas.by(&here, 1);
    let args = json!({"n": MANY, "ms": 2});
    let mut events = here.stream("slow", args, json!("t")).await;
    let (old, number) = progress(&read(&mut events, 3).await)[2].clone();
    let mut fresh = Vec::new();
    // The client reads on, so that the child continues; others resume from an old cursor.
    let reading = async { fresh = events.rest().await };
    let asking = async {
        until("an old cursor is gone", || async {
            let here = is_gone(resumed(&here, &old).await, number).await;
            is_gone(resumed(&there, &old).await, number).await && here
        })
        .await;
    };
    tokio::join!(reading, asking);
    // The resumes took the stream over from the client, which reconnects until the end.
    let seen = progress(&fresh);
    let (mut kept, mut number_kept) = seen.last().cloned().unwrap_or((old.clone(), number));
    loop {
        let response = resumed(&there, &kept).await;
        if [204, 410].contains(&response.status().as_u16()) {
            break;
        }
        for (id, message) in Events::of(response).messages().await {
            number_kept += 1;
            let progress = message["params"]["progress"].as_u64();
            assert_eq!(
                progress.unwrap_or(MANY + 1),
                number_kept,
                "a gap: {message}"
            );
            kept = id;
        }
    }
    for way in [&here, &there] {
        assert!(is_gone(resumed(way, &old).await, number).await);
    }
    // The same holds at a replica that has the log, and never wrote to it.
    replicas.kill(0).await;
    until("another owner", || async {
        let response = there.get(Some(&old)).await;
        assert!([410, 503].contains(&response.status().as_u16()));
        response.status() == StatusCode::GONE
    })
    .await;
    assert_eq!(count(&there).await, 1, "the session goes on");
}

/// A held response of a lost connection becomes no stream: its client knows of none.
#[tokio::test(flavor = "multi_thread")]
async fn a_response_that_nobody_waits_for_is_in_no_log() {
    let replicas = Replicas::with(1, &[], "reply: {sse_after: 500ms}").await;
    let session = replicas.node(0).session().await;
    let id = session.id.as_deref().unwrap();
    let is_stream_key = |key: &String| {
        let end = key.rsplit(':').next().unwrap();
        key.contains(id) && end.parse::<u32>().is_ok()
    };
    let client = session.again();
    let mut call = Box::pin(client.begin("sleep", json!({"ms": 700})));
    let is_there = until("the call is the child's", || async {
        let received = session.text("received", json!({})).await;
        received.contains("sleep")
    });
    tokio::select! {
        _ = &mut call => panic!("answered early"),
        () = is_there => {}
    }
    drop(call);
    // Longer than the first call and `sse_after`.
    let answered = session.begin("sleep", json!({"ms": 1_000})).await;
    assert!(is_stream(&answered));
    assert_eq!(text_of(&last(answered).await), "slept");
    let kept: Vec<_> = replicas
        .redis
        .keys()
        .into_iter()
        .filter(is_stream_key)
        .collect();
    assert_eq!(kept.len(), 1, "only the second call: {kept:?}");
}

/// Clients that never read, connected to a replica that owns none of their sessions.
#[tokio::test(flavor = "multi_thread")]
async fn clients_that_never_read_cost_both_replicas_little_and_meet_no_gap() {
    let clients = scaled("deaf clients", 100, 1);
    let sets = ["log.bytes=256KiB", "log.events=200"];
    let replicas = Replicas::with(2, &sets, "reply: {sse_after: 10ms}").await;
    let other = replicas.node(0).session().await;
    let other_way = replicas.by(&other, 1);
    let mut deafs = Vec::new();
    for _ in 0..clients {
        let session = replicas.node(0).session().await;
        let there = replicas.by(&session, 1);
        // With two calls in flight, log messages go to the listener.
        let hang = session.begin("hang", json!({})).await;
        let socket = deaf(&there).await;
        deafs.push((session, there, socket, hang));
    }
    let before = [
        median(|| slow_call(&other)).await,
        median(|| slow_call(&other_way)).await,
    ];
    let gauges = [Gauge::of(replicas.node(0)), Gauge::of(replicas.node(1))];
    let memory = gauges.each_ref().map(Gauge::memory);
    let floods = deafs.iter().map(|(session, ..)| async {
        let args = json!({"n": FLOOD, "text": "x".repeat(8000)});
        assert_eq!(session.text("burst", args).await, "sent");
    });
    let others = async {
        for (_, _, socket, _) in &deafs {
            is_stuffed(socket).await;
        }
        stays_quick("another session", before[0], || slow_call(&other)).await;
        stays_quick("by the other replica", before[1], || slow_call(&other_way)).await;
    };
    tokio::join!(join_all(floods), others);
    // The owner holds the writes that wait for Redis, the copies of the current batch, the log,
    // and the read-ahead of the child; the other replica only its pending output. A whole flood
    // is 24,000 KiB.
    for ((gauge, memory), bound) in gauges.iter().zip(memory).zip([12 << 10, 2 << 10]) {
        let grown = gauge.memory() - memory;
        println!("{grown} KiB more for {clients} clients");
        let each = grown / i64::try_from(clients).unwrap();
        assert!(each <= bound, "{grown} KiB");
    }
    let ends = deafs
        .into_iter()
        .map(|(session, there, socket, _hang)| async move {
            let (next, last) = wakes(socket).await;
            println!("{next} events came through");
            assert!(next < FLOOD);
            for way in [&session, &there] {
                let response = resumed(way, &last).await;
                assert_eq!(response.status(), StatusCode::GONE);
            }
            assert_eq!(session.text("echo", json!({"text": "on"})).await, "on");
            session.delete().await;
        });
    join_all(ends).await;
}

/// No event is sent before Redis has it: a child that continued would fill the owner's memory.
#[tokio::test(flavor = "multi_thread")]
async fn a_child_that_floods_waits_for_a_redis_that_hangs_and_loses_nothing() {
    let replicas = Replicas::with(2, &["log.bytes=64MiB", "log.events=10000"], "").await;
    let session = replicas.node(0).session().await;
    let mut listener = session.listen().await;
    let hang = session.begin("hang", json!({})).await;
    let gauge = Gauge::of(replicas.node(0));
    let before = gauge.bytes_read();
    replicas.redis.pause();
    let flood = async {
        let args = json!({"n": FLOOD, "text": "x".repeat(8000)});
        assert_eq!(session.text("burst", args).await, "sent");
    };
    let reading = async {
        let mut grew = (before, Instant::now());
        until("the child waits", || {
            let read = gauge.bytes_read();
            if read > grew.0 + (20 << 10) {
                grew = (read, Instant::now());
            }
            let waits = read > before + (100 << 10) && grew.1.elapsed() > QUIET;
            async move { waits }
        })
        .await;
        // Writes that wait for Redis, and the read-ahead of the child.
        let read = gauge.bytes_read() - before;
        assert!(read < 2 << 20, "{read} bytes of {} KiB", FLOOD * 8);
        replicas.redis.resume();
        for n in 0..FLOOD {
            let (_, message) = listener.message().await.unwrap();
            assert_eq!(message["params"]["data"]["n"], n);
        }
    };
    tokio::join!(flood, reading);
    session.delete().await;
    drop(hang);
}

/// A child is blocked if nothing was read from it for this long.
const QUIET: Duration = Duration::from_millis(300);

/// The number of events of 8 KB that a client does not read.
const FLOOD: u64 = 3000;

/// Waits until a client that does not read has something to read: an event, or a `retry:` because
/// it fell behind before the first event.
async fn is_stuffed(socket: &TcpStream) {
    until("something to read", || async {
        let mut seen = [0; 3000];
        let size = within("a look", socket.peek(&mut seen)).await.unwrap();
        size == seen.len() || String::from_utf8_lossy(&seen[..size]).contains("retry:")
    })
    .await;
}

/// JSON answers need no store, so a frozen replica could send one when it wakes: deliveries and
/// answers check the lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_replica_answers_no_call_with_json_when_it_wakes() {
    let replicas = Replicas::two(&[]).await;
    let here = plain(&replicas.node(0).session().await);
    for number in 1..=40 {
        assert_eq!(count(&here).await, number);
    }
    // Several sessions, because each wakes on its own.
    let mut sessions = vec![plain(&here)];
    for _ in 0..5 {
        sessions.push(plain(&replicas.node(0).session().await));
    }
    let first = replicas.node(0).descendants();
    let mut held = Vec::new();
    for session in &sessions {
        held.push(hold(session).await);
    }
    replicas.node(0).signal(Signal::STOP);
    // Requests that arrive meanwhile, on known connections and new ones, are read when it wakes.
    let queued = (0..10).map(|_| {
        let mut way = plain(&here);
        way.http = here.http.clone();
        tokio::spawn(async move { answered(way.begin("counter", json!({})).await).await })
    });
    let queued: Vec<_> = queued.collect();
    for session in &sessions {
        let there = replicas.by(session, 1);
        until("an owner that lives", || async {
            let (status, answer) = answered(there.begin("counter", json!({})).await).await;
            status == StatusCode::OK && answer["result"].is_object()
        })
        .await;
    }
    replicas.node(0).signal(Signal::CONT);
    // The children answered long ago, for sessions that another replica owns now.
    for held in held {
        let (status, answer) = within("the held call's end", held).await.unwrap();
        assert!(answer["result"].is_null(), "{status} {answer}");
        assert!([200, 503].contains(&status.as_u16()), "{status} {answer}");
    }
    for queued in queued {
        let (status, answer) = within("an answer", queued).await.unwrap();
        assert!([200, 503].contains(&status.as_u16()), "{status} {answer}");
        if answer["result"].is_object() {
            let number: u64 = text_of(&answer).parse().unwrap();
            assert!(number < 40, "the zombie's child counted: {number}");
        }
    }
    until("the end of the zombie's children", || async {
        let left = replicas.node(0).descendants();
        !left.iter().any(|child| first.contains(child))
    })
    .await;
    // No call was given to a second child.
    for session in &sessions {
        let received = session.text("received", json!({})).await;
        assert!(!received.contains("sleep"), "{received}");
    }
}

/// Starts a call that the child answers after a second; returns when the child has the call.
async fn hold(session: &Session) -> JoinHandle<(StatusCode, Value)> {
    let own = plain(session);
    let call = tool_call(json!("held"), "sleep", json!({"ms": 1000}));
    let held = tokio::spawn(async move { answered(own.post(&call).await).await });
    until("the child has it", || async {
        let received = session.text("received", json!({})).await;
        received.contains("sleep")
    })
    .await;
    held
}

/// Another client of the session, which can be answered only with JSON.
fn plain(session: &Session) -> Session {
    let mut plain = session.again();
    plain.accept = "application/json";
    plain
}

/// The status and the answer of a call that can be answered only with JSON.
async fn answered(response: Response) -> (StatusCode, Value) {
    let status = response.status();
    assert!(!is_stream(&response));
    (status, json_of(response).await)
}

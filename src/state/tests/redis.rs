//! The state in Redis while Redis fails, loses its data, or is full.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::join_all;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::contract::{
    KEEP, KINDS, Kind, PLENTY, Reply, Server, Side, event, gone, keys, record, redis, replica,
    session, until,
};
use crate::state::{
    BoxFuture, ClaimFrom, Directory, EventLog, Fence, LogShare, LogSize, Record, StoreError,
    WriteTarget,
    memory::{PAGE, Retention},
    redis::{Redis, RedisDirectory, RedisLog, Settings},
};
use crate::{
    base::{Secret, budget::Budget},
    protocol::StreamId,
};

type Kept = BoxFuture<'static, Result<(), StoreError>>;

fn append(side: &Side, numbers: impl Iterator<Item = u64>) -> Vec<Kept> {
    let at = side.spot("s", 0, 1);
    let append = |number| side.log.append(&at, number, event(number), None);
    numbers.map(append).collect()
}

/// Writes the responses to calls: the beginning of each stream, its event and its end.
fn respond(side: &Side, streams: impl Iterator<Item = StreamId>) -> Vec<Kept> {
    let respond = |stream| {
        let at = side.spot("s", stream, 1);
        [
            side.log.open(&at, 0, Bytes::new()),
            side.log.append(&at, 1, event(1), None),
            side.log.end(&at),
        ]
    };
    streams.flat_map(respond).collect()
}

/// The numbers of all events of a stream, as `side` reads them.
async fn all(side: &Side, stream: StreamId) -> Vec<u64> {
    let mut all = Vec::new();
    loop {
        let after = all.last().copied().unwrap_or(0);
        let (numbers, _) = side.read("s", stream, after).await.unwrap();
        if numbers.is_empty() {
            return all;
        }
        all.extend(numbers);
    }
}

/// Appends a thousand events: 400 before the trouble begins, 400 during it, 200 after its end; and
/// writes the responses to thirty calls, ten each.
async fn in_trouble(server: &Server, begin: impl Fn(&Server), end: impl AsyncFn(&Server)) {
    let (one, two) = (
        Side::on(server, "one", PLENTY).await,
        Side::on(server, "two", PLENTY).await,
    );
    one.add("s", 1).await.unwrap();
    let mut kept = append(&one, 1..=400);
    kept.extend(respond(&one, 1..=10));
    tokio::task::yield_now().await;
    sleep(Duration::from_millis(2)).await;
    begin(server);
    kept.extend(append(&one, 401..=800));
    kept.extend(respond(&one, 11..=20));
    end(server).await;
    kept.extend(append(&one, 801..=1000));
    kept.extend(respond(&one, 21..=30));
    let healed = Instant::now();
    let results = timeout(Duration::from_secs(10), join_all(kept))
        .await
        .unwrap();
    let took = healed.elapsed();
    assert!(results.iter().all(Result::is_ok));
    assert!(
        took < Duration::from_secs(2),
        "{took:?} after the end of the trouble"
    );
    assert_eq!(all(&two, 0).await, (1..=1000).collect::<Vec<u64>>());
    for stream in 1..=30 {
        assert_eq!(two.read("s", stream, 0).await, Ok((vec![1], true)));
    }
    one.end().await;
    two.end().await;
}

#[tokio::test]
async fn events_keep_their_order_and_arrive_once() {
    for kind in KINDS {
        in_trouble(&Server::start(kind), |_| {}, async |_| {}).await;
    }
}

#[tokio::test]
async fn events_wait_for_a_frozen_server() {
    let end = async |server: &Server| {
        sleep(Duration::from_secs(2)).await;
        server.resume();
    };
    in_trouble(&Server::start(Kind::Redis), Server::pause, end).await;
}

#[tokio::test]
async fn events_survive_cut_connections() {
    let cut = |server: &Server| {
        server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
    };
    for kind in KINDS {
        in_trouble(&Server::start(kind), cut, async |server| cut(server)).await;
    }
}

#[tokio::test]
async fn events_wait_for_a_full_server() {
    let full = |server: &Server| {
        server.command(&["CONFIG", "SET", "maxmemory", "1mb"]);
    };
    let end = async |server: &Server| {
        sleep(Duration::from_millis(700)).await;
        server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    };
    for kind in KINDS {
        in_trouble(&Server::start(kind), full, end).await;
    }
}

#[tokio::test]
async fn events_wait_for_a_server_that_takes_no_writes() {
    let begin = |server: &Server| {
        server.command(&["REPLICAOF", "127.0.0.1", "1"]);
    };
    let end = async |server: &Server| {
        sleep(Duration::from_millis(700)).await;
        server.command(&["REPLICAOF", "NO", "ONE"]);
    };
    for kind in KINDS {
        in_trouble(&Server::start(kind), begin, end).await;
    }
}

/// A demoted server answers as before. A connection to it stayed for ever, and nobody asked where the name leads by now.
#[tokio::test]
async fn a_name_that_leads_to_another_server_by_now_is_followed() {
    for kind in KINDS {
        let (old, new) = (Server::start(kind), Server::start(kind));
        let (tracker, halt) = (TaskTracker::new(), CancellationToken::new());
        let redis = redis(&old, &tracker, &halt);
        let (directory, me) = (
            RedisDirectory::new(redis.clone(), "one".into(), keys()),
            replica("one"),
        );
        let (boot, halted) = ("one".into(), halt.clone());
        let log = RedisLog::new(redis.clone(), boot, PLENTY, 4096, &tracker, halted);
        let at = WriteTarget {
            session: session("s"),
            stream: 0,
            fence: Fence(1),
            epoch: directory.beat(&me).await.unwrap().epoch,
            share: LogShare::plenty(),
        };
        let added = directory.insert(&at.session, record(&me, 1), at.epoch);
        assert_eq!(added.await, Ok(true));
        log.append(&at, 1, event(1), None).await.unwrap();
        old.command(&["REPLICAOF", "127.0.0.1", "1"]);
        let away = Some(StoreError::Away);
        assert_eq!(directory.beat(&me).await.err(), away);
        // The name still leads to it. What it has may be old, so it is not read.
        assert_eq!(directory.find(&at.session).await.err(), away);
        let kept = log.append(&at, 2, event(2), None);
        let moved = Settings {
            url: Secret::of(new.url()).unwrap(),
            prefix: "t".into(),
            authorities: None,
        };
        redis.reconnect(&moved).unwrap();
        let beats = async || directory.beat(&me).await.is_ok();
        let took = until("it is followed", beats).await;
        assert!(took < Duration::from_secs(2), "{took:?}");
        // The other server is in another life.
        let kept = timeout(Duration::from_secs(10), kept).await.unwrap();
        assert_eq!(kept, Err(StoreError::Flushed));
        halt.cancel();
        tracker.close();
        timeout(Duration::from_secs(5), tracker.wait())
            .await
            .unwrap();
    }
}

/// The claim of the first was lost with its master, and the next one got the same number.
#[tokio::test]
async fn of_two_owners_with_one_number_only_the_known_one_writes() {
    for kind in KINDS {
        let server = Server::start(kind);
        let (lost, known) = (
            Side::on(&server, "lost", PLENTY).await,
            Side::on(&server, "known", PLENTY).await,
        );
        lost.add("s", 1).await.unwrap();
        assert_eq!(known.take("s").await, 2);
        assert_eq!(lost.append("s", 0, 2, 1).await, Err(StoreError::Fenced));
        assert_eq!(known.append("s", 0, 2, 1).await, Ok(()));
        let (id, fence, fenced) = (session("s"), Fence(2), Err(StoreError::Fenced));
        let of_lost = &lost.directory;
        let kept = of_lost.keep(&id, fence, Some(b"of the lost one"[..].into()));
        assert_eq!(kept.await, fenced);
        assert_eq!(of_lost.release(&id, fence).await, fenced);
        assert_eq!(of_lost.remove(&id, fence).await, fenced);
        let found = known.directory.find(&id).await.unwrap().unwrap().record;
        assert_eq!(found.owner, Some(known.me.clone()));
        assert_ne!(found.kept, b"of the lost one"[..]);
        assert_eq!(known.directory.remove(&id, fence).await, Ok(()));
        lost.end().await;
        known.end().await;
    }
}

#[tokio::test]
async fn nobody_waits_long_for_a_server_that_is_away() {
    let mut server = Server::start(Kind::Redis);
    let mut side = Side::on(&server, "one", KEEP).await;
    side.add("s", 1).await.unwrap();
    let away = async |side: &Side| {
        let (id, patience) = (session("s"), Duration::from_millis(700));
        let found = timeout(patience, side.directory.find(&id)).await.unwrap();
        assert_eq!(found.err(), Some(StoreError::Away));
        let added = timeout(patience, side.add("t", 1)).await.unwrap();
        assert_eq!(added, Err(StoreError::Away));
        let read = timeout(patience, side.read("s", 0, 0)).await.unwrap();
        assert_eq!(read, Err(StoreError::Away));
        let kept = side.directory.keep(&id, Fence(1), None);
        assert_eq!(
            timeout(patience, kept).await.unwrap(),
            Err(StoreError::Away)
        );
    };
    server.pause();
    // Sequential calls, as within one `initialize`: only the first waits for a response.
    let began = Instant::now();
    away(&side).await;
    assert!(
        began.elapsed() < Duration::from_millis(1000),
        "{:?}",
        began.elapsed()
    );
    server.resume();
    let is_there = async |side: &Side| side.directory.find(&session("s")).await.is_ok();
    let took = until("it is there again", async || is_there(&side).await).await;
    assert!(took < Duration::from_secs(2), "{took:?}");
    // A full server refuses writes at once, and still serves reads.
    server.command(&["CONFIG", "SET", "maxmemory", "1mb"]);
    assert_eq!(side.add("t", 1).await, Err(StoreError::Away));
    assert!(is_there(&side).await);
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(side.add("t", 1).await, Ok(true));
    server.kill();
    away(&side).await;
    server.restart();
    let took = until("it is there again", async || {
        side.directory.beat(&side.me).await.is_ok()
    })
    .await;
    assert!(took < Duration::from_secs(2), "{took:?}");
    side.beat().await;
    assert_eq!(side.add("s", 1).await, Ok(true));
    side.end().await;
}

#[tokio::test]
async fn another_life_of_the_store_is_noticed() {
    for kind in KINDS {
        let server = Server::start(kind);
        let (mut one, mut two) = (
            Side::on(&server, "one", KEEP).await,
            Side::on(&server, "two", KEEP).await,
        );
        assert!(!one.beat().await, "a new store recovers from nothing");
        one.add("s", 1).await.unwrap();
        one.append("s", 0, 1, 1).await.unwrap();
        server.command(&["FLUSHALL"]);
        let flushed = Err(StoreError::Flushed);
        assert_eq!(one.append("s", 0, 1, 2).await, flushed);
        assert_eq!(one.add("s", 1).await, Err(StoreError::Flushed));
        let found = two.directory.find(&session("s")).await;
        assert_eq!(found.err(), Some(StoreError::Flushed), "not there yet");
        // A new replica is the first to send a heartbeat, which begins a new epoch.
        let mut three = Side::on(&server, "three", KEEP).await;
        assert_eq!(one.append("s", 0, 1, 2).await, flushed, "another epoch now");
        assert!(one.beat().await && two.beat().await && three.beat().await);
        assert_eq!(one.add("s", 1).await, Ok(true), "it is there again");
        assert_eq!(one.append("s", 0, 1, 2).await, Ok(()), "numbers go on");
        assert!(gone(&one.read("s", 0, 0).await) && gone(&two.read("s", 0, 0).await));
        assert_eq!(two.read("s", 0, 1).await, Ok((vec![2], false)));
        let left = server.command(&["PTTL", "t:v1:recovering"]).number();
        assert!((1..=5000).contains(&left), "{left}");
        server.command(&["DEL", "t:v1:recovering"]);
        assert!(!one.beat().await && !two.beat().await);
        assert!(
            two.directory
                .find(&session("none"))
                .await
                .unwrap()
                .is_none()
        );
        one.end().await;
        two.end().await;
        three.end().await;
    }
}

#[tokio::test]
async fn a_write_that_is_given_up_hides_no_event() {
    for kind in KINDS {
        let server = Server::start(kind);
        let side = Side::on(&server, "one", KEEP).await;
        side.add("s", 1).await.unwrap();
        // As after a loss of the store's data: what was under way is given up, and the same is
        // written again, all of it before any of it is sent.
        let at = side.spot("s", 1, 1);
        drop(side.log.open(&at, 0, Bytes::new()));
        let kept = vec![
            side.log.open(&at, 0, Bytes::new()),
            side.log.append(&at, 1, event(1), None),
        ];
        assert!(join_all(kept).await.iter().all(Result::is_ok));
        assert_eq!(side.read("s", 1, 0).await, Ok((vec![1], false)));
        side.log.end(&at).await.unwrap();
        assert_eq!(side.read("s", 1, 0).await, Ok((vec![1], true)));
        side.end().await;
    }
}

/// The store came back empty, and what its owner had written to the one before was given up, or refused.
#[tokio::test]
async fn a_stale_write_drops_no_event_of_a_later_epoch() {
    for kind in KINDS {
        let server = Server::start(kind);
        let mut side = Side::on(&server, "one", PLENTY).await;
        side.add("s", 1).await.unwrap();
        let before = side.spot("s", 1, 1);
        server.command(&["FLUSHALL"]);
        side.beat().await;
        side.add("s", 1).await.unwrap();
        for is_given_up in [false, true] {
            let at = side.spot("s", 1 + StreamId::from(is_given_up), 1);
            let stale = WriteTarget {
                epoch: before.epoch,
                ..at.clone()
            };
            assert_ne!(stale.epoch, at.epoch);
            // Too large for Redis, which has its mark.
            let large = Bytes::from(vec![b'x'; 5000]);
            let stale = side.log.append(&stale, 1, large.clone(), None);
            let kept = side.log.append(&at, 1, large, None);
            if is_given_up {
                drop(stale);
            } else {
                assert_eq!(stale.await, Err(StoreError::Flushed));
            }
            assert_eq!(kept.await, Ok(()));
            let read = side.log.read(&at.session, at.stream, 0).await;
            let is_there = read.is_ok_and(|page| page.events.len() == 1);
            assert!(is_there, "{is_given_up}");
        }
        side.end().await;
    }
}

#[tokio::test]
async fn scripts_that_the_server_forgot_are_there_again() {
    let server = Server::start(Kind::Redis);
    let side = Side::on(&server, "one", KEEP).await;
    for number in 1..=3 {
        server.command(&["SCRIPT", "FLUSH"]);
        assert_eq!(side.add("s", 1).await, Ok(true));
        server.command(&["SCRIPT", "FLUSH"]);
        assert_eq!(side.append("s", 0, 1, number).await, Ok(()));
    }
    side.end().await;
}

#[tokio::test]
async fn a_stream_is_bounded_in_redis_too() {
    let server = Server::start(Kind::Redis);
    let keep = Retention {
        age: Duration::from_secs(1),
        ..KEEP
    };
    let side = Side::on(&server, "one", keep).await;
    side.add("s", 1).await.unwrap();
    let length = |stream: StreamId| server.command(&["XLEN", &format!("t:v1:{{s}}:{stream}")]);
    let write = async |stream, number, bytes: usize| {
        let at = side.spot("s", stream, 1);
        let kept = side.log.append(&at, number, vec![b'x'; bytes].into(), None);
        kept.await.unwrap();
    };
    for number in 1..=10 {
        write(1, number, 1).await;
    }
    assert_eq!(length(1), Reply::Number(3), "events");
    for number in 1..=3 {
        write(2, number, 512).await;
    }
    assert_eq!(length(2), Reply::Number(2), "bytes");
    write(3, 1, 1).await;
    sleep(Duration::from_millis(700)).await;
    write(3, 2, 1).await;
    sleep(Duration::from_millis(500)).await;
    write(3, 3, 1).await;
    assert_eq!(length(3), Reply::Number(2), "age");
    assert_eq!(
        length(1),
        Reply::Number(0),
        "a stream that is left alone goes"
    );
    assert!(side.read("s", 1, 10).await.is_ok(), "its end is known");
    // A new owner does not know the sizes of the events that it finds. The bound on their
    // number still holds.
    for number in 1..=3 {
        write(4, number, 1).await;
    }
    side.log.release(&session("s")).await;
    for number in 4..=6 {
        write(4, number, 1).await;
        assert_eq!(length(4), Reply::Number(3));
    }
    side.end().await;
}

/// Each stream keeps its newest event, and each of those may be as large as `log.max_event`.
#[tokio::test]
async fn a_long_event_for_which_its_share_has_no_room_is_not_kept() {
    let server = Server::start(Kind::Redis);
    let side = Side::on(&server, "one", PLENTY).await;
    side.add("s", 1).await.unwrap();
    let (tracker, halt) = (TaskTracker::new(), CancellationToken::new());
    let redis = redis(&server, &tracker, &halt);
    let log = RedisLog::new(redis, "one".into(), PLENTY, 1 << 20, &tracker, halt.clone());
    let share = LogShare {
        kept: Budget::new(80 << 10).share(),
        copies: Some(Budget::new(1 << 20).share()),
        ..LogShare::plenty()
    };
    let (other, mut stored) = (Side::on(&server, "two", PLENTY).await, Vec::new());
    for stream in 1..=4 {
        let at = WriteTarget {
            share: share.clone(),
            ..side.spot("s", stream, 1)
        };
        let event = Bytes::from(vec![b'x'; 12 << 10]);
        log.append(&at, 1, event, None).await.unwrap();
        let page = log.read(&session("s"), stream, 0).await.unwrap();
        assert_eq!(page.events.len(), 1, "sent");
        stored.push(other.log.read(&session("s"), stream, 0).await.is_ok());
    }
    assert_eq!(stored, [true, true, false, false]);
    halt.cancel();
    side.end().await;
    other.end().await;
}

#[tokio::test]
async fn ended_streams_go_in_order() {
    let server = Server::start(Kind::Redis);
    let keep = Retention {
        bytes: 2500,
        ..KEEP
    };
    let side = Side::on(&server, "one", keep).await;
    side.add("s", 1).await.unwrap();
    let large = Bytes::from(vec![b'x'; 4000]);
    let mut kept = Vec::new();
    for stream in 1..=3 {
        let at = side.spot("s", stream, 1);
        kept.push(side.log.append(&at, 1, large.clone(), None));
        kept.push(side.log.end(&at));
    }
    join_all(kept).await;
    let exists = |stream: StreamId| {
        let key = format!("t:v1:{{s}}:{stream}");
        server.command(&["EXISTS", &key]) == Reply::Number(1)
    };
    assert!(!exists(1) && exists(2) && exists(3), "by bytes");
    let ends: Vec<Kept> = (4..=300)
        .map(|stream| side.log.end(&side.spot("s", stream, 1)))
        .collect();
    assert!(join_all(ends).await.iter().all(Result::is_ok));
    let ended = server.command(&["LLEN", "t:v1:{s}:ended"]);
    assert_eq!(ended, Reply::Number(256), "by number");
    let other = Side::on(&server, "two", keep).await;
    assert!(!exists(3) && gone(&other.read("s", 44, 0).await));
    assert_eq!(other.read("s", 45, 0).await, Ok((vec![], true)));
    assert_eq!(server.command(&["HGET", "t:v1:{s}", "eb"]).text(), "0");
    side.end().await;
    other.end().await;
}

/// They stayed for as long as their session, and their bytes left no room for those that ended later.
#[tokio::test]
async fn ended_streams_leave_nothing_once_their_list_has_expired() {
    let server = Server::start(Kind::Redis);
    let side = Side::on(&server, "one", PLENTY).await;
    side.add("s", 1).await.unwrap();
    side.append("s", 0, 1, 1).await.unwrap();
    let fields = || server.command(&["HLEN", "t:v1:{s}"]).number();
    let bytes = || {
        let bytes = server.command(&["HGET", "t:v1:{s}", "eb"]);
        bytes.text().parse::<usize>().unwrap()
    };
    let mut kept = None;
    for first in [1, 11] {
        assert!(
            join_all(respond(&side, first..first + 5))
                .await
                .iter()
                .all(Result::is_ok)
        );
        assert_eq!(bytes(), 5 * event(1).len());
        let before = kept.replace(fields());
        assert!(before.is_none_or(|before| before == fields()), "{before:?}");
        server.command(&["PEXPIRE", "t:v1:{s}:ended", "0"]);
    }
    let stream = |stream: StreamId| {
        let key = format!("t:v1:{{s}}:{stream}");
        server.command(&["EXISTS", &key]).number()
    };
    assert_eq!((stream(0), stream(1), stream(11)), (1, 0, 1));
    assert_eq!(side.append("s", 0, 1, 2).await, Ok(()));
    assert_eq!(side.log.streams(&session("s")).await.unwrap().open.len(), 1);
    side.end().await;
}

/// A session that only pinged kept those of 256 streams until its end, and counted none of them.
#[tokio::test]
async fn ended_streams_leave_nothing_once_their_session_is_kept() {
    for kind in KINDS {
        let server = Server::start(kind);
        let side = Side::on(&server, "one", PLENTY).await;
        side.add("s", 1).await.unwrap();
        side.append("s", 0, 1, 1).await.unwrap();
        let fields = || server.command(&["HLEN", "t:v1:{s}"]).number();
        let before = fields();
        let kept = join_all(respond(&side, 1..6)).await;
        assert!(kept.iter().all(Result::is_ok));
        let id = session("s");
        let keep = async || side.directory.keep(&id, Fence(1), None).await;
        assert_eq!(keep().await, Ok(()));
        assert_eq!(fields(), before + 6, "they can be read");
        server.command(&["PEXPIRE", "t:v1:{s}:ended", "0"]);
        assert_eq!(keep().await, Ok(()));
        assert_eq!(fields(), before);
        assert_eq!(side.append("s", 0, 1, 2).await, Ok(()));
        assert_eq!(side.log.streams(&id).await.unwrap().open.len(), 1);
        side.end().await;
    }
}

#[tokio::test]
async fn streams_without_events_are_within_the_share() {
    let server = Server::start(Kind::Redis);
    let side = Side::on(&server, "one", PLENTY).await;
    side.add("s", 1).await.unwrap();
    let kept = Budget::new(2 * 2560).share();
    for stream in 1..=50 {
        let at = WriteTarget {
            share: LogShare {
                kept: Arc::clone(&kept),
                copies: Some(Budget::new(1 << 20).share()),
                ..LogShare::plenty()
            },
            ..side.spot("s", stream, 1)
        };
        side.log.open(&at, 0, Bytes::new()).await.unwrap();
        side.log.end(&at).await.unwrap();
    }
    assert_eq!(kept.used(), 2560);
    // One more than are counted, as the last may not be among them yet.
    let ended = server.command(&["LLEN", "t:v1:{s}:ended"]);
    assert_eq!(ended, Reply::Number(11));
    assert!(gone(&side.read("s", 39, 0).await));
    assert_eq!(side.read("s", 50, 0).await, Ok((vec![], true)));
    // One that has lost its events here has them there.
    side.append("s", 60, 1, 1).await.unwrap();
    side.log.release(&session("s")).await;
    let again = side.log.open(&side.spot("s", 60, 1), 0, Bytes::new());
    assert_eq!(again.await, Ok(()));
    assert_eq!(side.read("s", 60, 0).await, Ok((vec![1], false)));
    side.end().await;
}

#[tokio::test]
async fn a_large_event_is_sent_and_not_kept() {
    let server = Server::start(Kind::Valkey);
    let (one, two) = (
        Side::on(&server, "one", PLENTY).await,
        Side::on(&server, "two", PLENTY).await,
    );
    one.add("s", 1).await.unwrap();
    one.append("s", 0, 1, 1).await.unwrap();
    let large = Bytes::from(vec![b'x'; 5000]);
    let at = one.spot("s", 0, 1);
    one.log.append(&at, 2, large.clone(), None).await.unwrap();
    one.append("s", 0, 1, 3).await.unwrap();
    let page = one.log.read(&session("s"), 0, 1).await.unwrap();
    assert_eq!(page.events[0], (2, large));
    assert_eq!(two.read("s", 0, 0).await, Ok((vec![1], false)));
    assert_eq!(
        two.read("s", 0, 1).await,
        Err(StoreError::Trimmed { oldest: 2 })
    );
    assert_eq!(two.read("s", 0, 2).await, Ok((vec![3], false)));
    // The size of a page is bounded.
    for number in 4..=200 {
        let event = Bytes::from(vec![b'x'; 4000]);
        one.log.append(&at, number, event, None).await.unwrap();
    }
    let page = two.log.read(&session("s"), 0, 2).await.unwrap();
    let bytes: usize = page.events.iter().map(|(_, event)| event.len()).sum();
    assert!((PAGE - 4000..PAGE + 4000).contains(&bytes), "{bytes}");
    one.end().await;
    two.end().await;
}

#[tokio::test]
async fn every_key_ends_by_itself_and_nothing_is_left_of_a_session() {
    for kind in KINDS {
        let server = Server::start(kind);
        let side = Side::on(&server, "one", KEEP).await;
        side.add("s", 1).await.unwrap();
        for stream in 0..5 {
            side.append("s", stream, 1, 1).await.unwrap();
        }
        side.log.end(&side.spot("s", 3, 1)).await.unwrap();
        side.directory
            .keep(&session("s"), Fence(1), None)
            .await
            .unwrap();
        let keys = server.keys();
        // Of the session: its hash, five streams and the list of ended streams. Of the state: the
        // epoch, the heartbeat and the set of replicas that accept sessions.
        assert_eq!(keys.len(), 10, "{keys:?}");
        for key in &keys {
            let left = server.command(&["PTTL", key]).number();
            assert!(left > 0, "{key}: {left}");
        }
        let left = |key: &str| server.command(&["PTTL", key]).number();
        assert!(
            (150_000..=160_000).contains(&left("t:v1:{s}")),
            "ttl and margin"
        );
        assert!((50_000..=60_000).contains(&left("t:v1:{s}:0")), "age");
        // Unknown fields of another version are ignored.
        server.command(&["HSET", "t:v1:{s}", "later", "x", "n:x", "y"]);
        assert!(side.directory.find(&session("s")).await.unwrap().is_some());
        assert_eq!(side.append("s", 0, 1, 2).await, Ok(()));
        assert_eq!(side.log.streams(&session("s")).await.unwrap().open.len(), 4);
        side.directory
            .remove(&session("s"), Fence(1))
            .await
            .unwrap();
        assert_eq!(side.append("s", 0, 1, 3).await, Err(StoreError::Fenced));
        side.directory.leave(&side.me).await;
        assert_eq!(server.keys(), ["t:v1:epoch"]);
        side.end().await;
    }
}

/// One that was found without a heartbeat has it again by the time of the claim. What it has lost it hears of at any later
/// heartbeat: the answer to one may be lost, and its machine suspended for a day.
#[tokio::test]
async fn an_owner_that_is_back_keeps_its_sessions_and_hears_what_it_has_lost() {
    for kind in KINDS {
        let server = Server::start(kind);
        let one = Side::on(&server, "one", KEEP).await;
        let two = Side::on(&server, "two", KEEP).await;
        one.add("s", 1).await.unwrap();
        let id = session("s");
        let silent = async || {
            server.command(&["DEL", "t:v1:replica:one"]);
            let found = two.directory.find(&id).await.unwrap().unwrap();
            assert!(found.heartbeat_age.is_none());
            found.record
        };
        let claim = async |seen: &Record| {
            let claimed = two.directory.claim(&id, seen, &two.me, ClaimFrom::Silent);
            claimed.await.unwrap().map(|claimed| claimed.fence)
        };
        let claims = async || one.directory.beat(&one.me).await.unwrap().claims;
        let seen = silent().await;
        assert_eq!(claims().await, 0);
        assert_eq!(claim(&seen).await, None);
        let seen = silent().await;
        assert_eq!(claim(&seen).await, Some(Fence(2)));
        assert_eq!((claims().await, claims().await), (1, 1));
        let left = server.command(&["PTTL", "t:v1:claims:one"]).number();
        assert!(left > 24 * 3_600_000, "{left}");
        one.directory.leave(&one.me).await;
        let keys = server.keys();
        assert!(!keys.iter().any(|key| key.ends_with(":one")), "{keys:?}");
        one.end().await;
        two.end().await;
    }
}

#[tokio::test]
async fn the_end_of_a_replica_writes_what_it_has() {
    let server = Server::start(Kind::Redis);
    let (one, two) = (
        Side::on(&server, "one", PLENTY).await,
        Side::on(&server, "two", PLENTY).await,
    );
    one.add("s", 1).await.unwrap();
    let kept = append(&one, 1..=2000);
    one.end().await;
    assert!(join_all(kept).await.iter().all(Result::is_ok));
    assert_eq!(all(&two, 0).await.len(), 2000);
    two.end().await;
}

#[tokio::test]
async fn the_size_of_a_log_is_that_of_its_events_and_its_queue() {
    let server = Server::start(Kind::Redis);
    let one = Side::on(&server, "one", PLENTY).await;
    one.add("s", 1).await.unwrap();
    join_all(append(&one, 1..=3)).await;
    let bytes = (1..=3).map(|number| event(number).len()).sum();
    assert_eq!(one.log.size(), LogSize { bytes, queued: 0 });
    let kept = append(&one, 4..=9);
    assert_eq!(one.log.size().queued, 6);
    assert!(join_all(kept).await.iter().all(Result::is_ok));
    assert_eq!(one.log.size().queued, 0);
    one.log.forget(&session("s")).await;
    assert_eq!(one.log.size(), LogSize::default());
    one.end().await;
}

#[tokio::test]
async fn a_write_that_nobody_waits_for_may_be_undone() {
    let server = Server::start(Kind::Redis);
    let (one, two) = (
        Side::on(&server, "one", PLENTY).await,
        Side::on(&server, "two", PLENTY).await,
    );
    one.add("s", 1).await.unwrap();
    one.append("s", 0, 1, 1).await.unwrap();
    server.pause();
    let mut kept = append(&one, 2..=5);
    drop(kept.drain(1..3));
    kept.extend(append(&one, 3..=6));
    server.resume();
    assert!(join_all(kept).await.iter().all(Result::is_ok));
    // The cache is dropped with the cancelled writes, so both replicas read the same events.
    let of_two = two.read("s", 0, 4).await;
    assert_eq!(one.read("s", 0, 4).await, of_two);
    assert_eq!(of_two, Ok((vec![5, 6], false)));
    one.end().await;
    two.end().await;
}

#[tokio::test]
async fn a_server_that_will_not_do_is_refused_until_it_does() {
    let server = Server::start(Kind::Redis);
    let (tracker, halt) = (TaskTracker::new(), CancellationToken::new());
    let open = |url: String| {
        let settings = Settings {
            url: Secret::of(url).unwrap(),
            prefix: "t".into(),
            authorities: None,
        };
        Redis::open(&settings, &tracker, &halt)
    };
    let why = open("http://ada:s3cret@x".into())
        .err()
        .unwrap()
        .to_string();
    assert!(
        why.starts_with("redis.url: is no URL") && !why.contains("s3cret"),
        "{why}"
    );
    server.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let redis = open(server.url()).unwrap();
    let why = redis.check().await.unwrap_err().to_string();
    assert!(why.contains("allkeys-lru"), "{why}");
    let directory = RedisDirectory::new(redis.clone(), "one".into(), keys());
    let beat = async || directory.beat(&replica("one")).await.is_ok();
    assert!(!beat().await);
    server.command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    let took = until("it will do", beat).await;
    assert!(took < Duration::from_secs(2) && redis.check().await.is_ok());
    // An ACL user with its password is accepted; a missing password is refused.
    server.command(&["ACL", "SETUSER", "ada", "on", ">s3cret", "~t:*", "+@all"]);
    server.command(&["ACL", "SETUSER", "default", "resetpass", ">other"]);
    let own = server.url().replace("//", "//ada:s3cret@");
    let own = open(own).unwrap();
    assert!(own.check().await.is_ok());
    assert!(
        RedisDirectory::new(own, "x".into(), keys())
            .beat(&replica("x"))
            .await
            .is_ok()
    );
    let why = open(server.url())
        .unwrap()
        .check()
        .await
        .unwrap_err()
        .to_string();
    assert!(why.contains("does not let this user in"), "{why}");
    // An unreachable server is not an error.
    let nobody = Server::prepared(Kind::Redis);
    assert!(open(nobody.url()).unwrap().check().await.is_ok());
    halt.cancel();
}

/// The memory that a server uses, in bytes.
fn used(server: &Server) -> i64 {
    let text = server.command(&["INFO", "memory"]).text();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("used_memory:"));
    line.unwrap().parse().unwrap()
}

/// Appends events to each session, with at most 256 in flight per session; returns the events
/// per second.
async fn speed(side: &Side, sessions: u64, events: u64) -> u128 {
    let names: Vec<String> = (0..sessions).map(|id| format!("{sessions} {id}")).collect();
    for name in &names {
        side.add(name, 1).await.unwrap();
    }
    let began = Instant::now();
    let of_one = names.iter().map(async |name| {
        let (at, event) = (side.spot(name, 0, 1), Bytes::from(vec![b'x'; 200]));
        let mut kept = std::collections::VecDeque::new();
        for number in 1..=events {
            kept.push_back(side.log.append(&at, number, event.clone(), None));
            if kept.len() > 256 {
                kept.pop_front().unwrap().await.unwrap();
            }
        }
        assert!(join_all(kept).await.iter().all(Result::is_ok));
    });
    join_all(of_one).await;
    u128::from(sessions * events) * 1000 / began.elapsed().as_millis()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn figures() {
    for kind in KINDS {
        let server = Server::start(kind);
        let side = Side::on(&server, "one", PLENTY).await;
        let (one, many) = (speed(&side, 1, 50_000).await, speed(&side, 100, 1000).await);
        let began = Instant::now();
        side.add("slow", 1).await.unwrap();
        for number in 1..=1000 {
            side.append("slow", 0, 1, number).await.unwrap();
        }
        let each = began.elapsed() / 1000;
        println!("{kind:?}: {one} events/s in one session, {many} in 100; {each:?} for one");
        server.command(&["FLUSHALL", "SYNC"]);
        let side = Side::on(&server, "two", PLENTY).await;
        let before = used(&server);
        for id in 0..1000 {
            side.add(&format!("0123456789abcdef0123456789ab{id:04}"), 1)
                .await
                .unwrap();
        }
        let sessions = used(&server);
        for id in 0..1000 {
            let id = format!("0123456789abcdef0123456789ab{id:04}");
            let (at, event) = (side.spot(&id, 1, 1), Bytes::from(vec![b'x'; 200]));
            let kept = (1..=10).map(|number| side.log.append(&at, number, event.clone(), None));
            join_all(kept.collect::<Vec<_>>()).await;
        }
        let streams = used(&server);
        let (idle, stream) = ((sessions - before) / 1000, (streams - sessions) / 1000);
        println!("{kind:?}: {idle} bytes an idle session, {stream} a stream of ten events");
    }
}

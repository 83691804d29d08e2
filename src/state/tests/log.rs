//! Tests of `state::memory::log`.

use super::super::log::*;
use crate::{
    base::budget::Budget,
    state::{
        LONG_EVENT, LogShare,
        memory::streams::{STREAM, weight},
    },
};

const KEEP: Retention = Retention {
    events: 3,
    bytes: 1024,
    age: Duration::from_secs(60),
};

fn spot(id: &str, stream: StreamId, fence: u64) -> WriteTarget {
    WriteTarget {
        session: session(id),
        stream,
        fence: Fence(fence),
        epoch: EPOCH,
        share: LogShare::plenty(),
    }
}

fn session(name: &str) -> SessionId {
    SessionId(name.into())
}

fn log() -> MemoryLog {
    MemoryLog::new(KEEP)
}

async fn read(
    log: &dyn EventLog,
    id: &str,
    stream: StreamId,
    after: u64,
) -> (Vec<(u64, Bytes)>, bool) {
    let page = log.read(&session(id), stream, after).await.unwrap();
    (page.events, page.is_end)
}

async fn append(
    log: &dyn EventLog,
    id: &str,
    stream: StreamId,
    fence: u64,
    number: u64,
) -> Result<(), StoreError> {
    let event = Bytes::from_static(b"event");
    log.append(&spot(id, stream, fence), number, event, None)
        .await
}

async fn promise_1_numbers_and_fences(log: &dyn EventLog) {
    for number in 1..=3 {
        assert_eq!(append(log, "a", 0, 2, number).await, Ok(()));
        assert_eq!(read(log, "a", 0, number - 1).await.0.len(), 1);
    }
    assert_eq!(append(log, "a", 0, 2, 3).await, Ok(()), "kept once");
    assert_eq!(
        append(log, "a", 7, 2, 1).await,
        Ok(()),
        "each stream counts by itself"
    );
    assert_eq!(append(log, "b", 0, 1, 1).await, Ok(()), "each session too");
    assert_eq!(append(log, "a", 0, 1, 4).await, Err(StoreError::Fenced));
    assert_eq!(log.end(&spot("a", 0, 1)).await, Err(StoreError::Fenced));
    let (events, is_end) = read(log, "a", 0, 0).await;
    assert_eq!((events.len(), is_end), (3, false), "nothing was kept");
    assert_eq!(append(log, "a", 0, 3, 4).await, Ok(()));
    assert_eq!(append(log, "a", 0, 2, 5).await, Err(StoreError::Fenced));
}

async fn promise_2_reads_without_a_gap(log: &dyn EventLog) {
    for number in 1..=5 {
        assert_eq!(append(log, "a", 0, 1, number).await, Ok(()));
    }
    let numbers = |(events, _): (Vec<(u64, Bytes)>, bool)| -> Vec<u64> {
        events.into_iter().map(|(number, _)| number).collect()
    };
    assert_eq!(numbers(read(log, "a", 0, 2).await), [3, 4, 5]);
    assert_eq!(numbers(read(log, "a", 0, 4).await), [5]);
    assert_eq!(numbers(read(log, "a", 0, 5).await), [0; 0]);
    for (id, stream, after) in [
        ("a", 0, 1),
        ("a", 0, 0),
        ("a", 0, 6),
        ("a", 9, 0),
        ("b", 0, 0),
    ] {
        let found = log.read(&session(id), stream, after).await;
        assert!(
            matches!(found, Err(StoreError::Trimmed { .. })),
            "{id} {stream} {after}"
        );
    }
}

async fn promise_4_nothing_follows_the_end(log: &dyn EventLog) {
    assert_eq!(append(log, "a", 1, 1, 1).await, Ok(()));
    assert_eq!(log.end(&spot("a", 1, 1)).await, Ok(()));
    assert!(append(log, "a", 1, 1, 2).await.is_err());
    assert_eq!(log.end(&spot("a", 1, 1)).await, Ok(()));
    let (events, is_end) = read(log, "a", 1, 0).await;
    assert_eq!((events.len(), is_end), (1, true));
    assert_eq!(read(log, "a", 1, 1).await, (Vec::new(), true));
    assert_eq!(
        append(log, "a", 2, 1, 1).await,
        Ok(()),
        "other streams go on"
    );
}

async fn promise_7_forget_leaves_nothing(log: &dyn EventLog) {
    assert_eq!(append(log, "a", 1, 5, 1).await, Ok(()));
    assert_eq!(append(log, "b", 1, 5, 1).await, Ok(()));
    log.forget(&session("a")).await;
    assert!(log.read(&session("a"), 1, 0).await.is_err());
    assert_eq!(read(log, "b", 1, 0).await.0.len(), 1);
    assert_eq!(
        append(log, "a", 1, 1, 1).await,
        Ok(()),
        "not even the fence"
    );
}

#[tokio::test]
async fn keeps_the_promises_of_an_event_log() {
    promise_1_numbers_and_fences(&log()).await;
    promise_2_reads_without_a_gap(&log()).await;
    promise_4_nothing_follows_the_end(&log()).await;
    promise_7_forget_leaves_nothing(&log()).await;
}

#[tokio::test]
async fn the_size_of_a_log_is_that_of_the_kept_events() {
    let log = log();
    for number in 1..=5 {
        append(&log, "a", 0, 1, number).await.unwrap();
    }
    append(&log, "b", 0, 1, 1).await.unwrap();
    // Three of five fit.
    assert_eq!(log.size().bytes, 4 * b"event".len());
    log.forget(&session("a")).await;
    assert_eq!(log.size().bytes, b"event".len());
}

/// A share of a budget that holds a stream with ten events of a byte each.
fn small() -> LogShare {
    LogShare {
        kept: Budget::new(2 * (STREAM + 10 * weight(1))).share(),
        ..LogShare::plenty()
    }
}

#[test]
fn a_long_message_is_drawn_for_as_long_as_anything_holds_it() {
    let under_way = Budget::new(4 * LONG_EVENT as u64).share();
    let share = LogShare {
        under_way: Arc::clone(&under_way),
        ..LogShare::plenty()
    };
    let message = |bytes: usize| Bytes::from(vec![b'x'; bytes]);
    let short = share.draw_message(message(LONG_EVENT - 1)).unwrap();
    assert_eq!((under_way.used(), short.len()), (0, LONG_EVENT - 1));
    let long = share.draw_message(message(2 * LONG_EVENT)).unwrap();
    let part = long.slice(..10);
    let refused = share.draw_message(message(LONG_EVENT)).unwrap_err();
    assert_eq!(refused.len(), LONG_EVENT);
    drop(long);
    assert_eq!(under_way.used(), 2 * LONG_EVENT as u64);
    drop(part);
    assert_eq!(under_way.used(), 0);
}

#[test]
fn a_long_event_needs_room_in_the_log_or_beside_it() {
    let (log, beside) = (Budget::new(80 << 10).share(), Budget::new(80 << 10).share());
    let share = LogShare {
        kept: Arc::clone(&log),
        copies: None,
        under_way: Arc::clone(&beside),
    };
    let is_admitted = |bytes: usize| share.admit(vec![b'x'; bytes].into()).is_ok();
    assert!(is_admitted(40 << 10) && !is_admitted(41 << 10));
    let in_log = log.hold(40 << 10);
    assert!(is_admitted(20 << 10), "beside it, with a copy");
    assert!(!is_admitted(21 << 10));
    drop(in_log);
    let beside = beside.hold(30 << 10);
    assert!(is_admitted(10 << 10) && !is_admitted(11 << 10), "a copy");
    assert!(is_admitted(LONG_EVENT - 1));
    let _in_log = log.hold(40 << 10);
    assert!(share.draw(5 << 10).is_some(), "beside it");
    assert!(
        share.draw(6 << 10).is_none(),
        "there is room for the answer"
    );
    drop(beside);
    // A session whose ended streams fill the log asked its client nothing of 8 KiB any more.
    assert!(share.draw(20 << 10).is_some());
    assert!(share.draw(21 << 10).is_none());
}

#[tokio::test]
async fn a_sweep_trims_sessions_that_write_nothing() {
    let (log, share) = (MemoryLog::new(WIDE), small());
    let write = async |id: &str, number| {
        let at = WriteTarget {
            share: share.clone(),
            ..spot(id, 0, 1)
        };
        let event = Bytes::from_static(b"e");
        log.append(&at, number, event, None).await.unwrap();
    };
    for number in 1..=10 {
        write("quiet", number).await;
    }
    assert_eq!(log.size().bytes, 10);
    let other = share.kept.hold(2 * weight(1));
    log.sweep();
    assert_eq!(log.size().bytes, 8);
    assert_eq!(read(&log, "quiet", 0, 2).await.0.len(), 8);
    drop(other);
    // A session that is gone gives back all that it has.
    log.forget(&session("quiet")).await;
    assert_eq!(share.kept.used(), 0);
}

const WIDE: Retention = Retention {
    events: 1000,
    bytes: 1 << 20,
    age: Duration::from_secs(60),
};

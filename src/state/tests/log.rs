//! Tests of `state::memory::log`.

use super::super::log::*;

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

fn event(bytes: usize) -> Bytes {
    vec![b'x'; bytes].into()
}

#[test]
fn promise_5_count_bytes_and_age_bound_a_stream() {
    let now = Instant::now();
    let mut streams = SessionStreams::default();
    for number in 1..=10 {
        streams.open(0).unwrap().append(number, event(1), now, KEEP);
    }
    assert_eq!(streams.streams[&0].events.len(), 3);
    assert_eq!(
        streams.streams[&0].read(6).err(),
        Some(StoreError::Trimmed { oldest: 7 })
    );

    for number in 1..=3 {
        streams
            .open(1)
            .unwrap()
            .append(number, event(512), now, KEEP);
    }
    let stream = &streams.streams[&1];
    assert_eq!(
        (stream.events.len(), stream.bytes, stream.trimmed),
        (2, 1024, 1)
    );
    // The newest event is kept, whatever its size.
    streams.open(1).unwrap().append(4, event(5000), now, KEEP);
    let stream = &streams.streams[&1];
    assert_eq!((stream.events.len(), stream.bytes), (1, 5000));

    streams.open(2).unwrap().append(1, event(1), now, KEEP);
    streams
        .open(2)
        .unwrap()
        .append(2, event(1), now + KEEP.age, KEEP);
    assert_eq!(streams.streams[&2].trimmed, 0);
    let later = now + KEEP.age + Duration::from_secs(1);
    streams.open(2).unwrap().append(3, event(1), later, KEEP);
    assert_eq!(streams.streams[&2].trimmed, 1);
}

#[test]
fn ended_streams_go_in_order() {
    let now = Instant::now();
    let mut streams = SessionStreams::default();
    for id in 1..=5 {
        streams.open(id).unwrap().append(1, event(1000), now, KEEP);
    }
    for id in [2, 1, 3, 4] {
        streams.end(id, now, KEEP);
    }
    assert_eq!(streams.streams.len(), 5, "as large as four may be");
    streams.end(5, now, KEEP);
    let mut left: Vec<_> = streams.streams.keys().copied().collect();
    left.sort_unstable();
    assert_eq!(left, [1, 3, 4, 5], "the first that ended goes by bytes");
    assert_eq!(streams.ended_bytes, 4000);
    streams.drop_ended(now + KEEP.age, KEEP);
    assert_eq!(streams.streams.len(), 4);
    streams.drop_ended(now + KEEP.age + Duration::from_secs(1), KEEP);
    assert!(streams.streams.is_empty() && streams.ended.is_empty());
    assert_eq!(streams.ended_bytes, 0);

    for id in 0..=u32::try_from(ENDED_STREAMS).unwrap() {
        streams.end(id, now, KEEP);
    }
    assert_eq!(streams.streams.len(), ENDED_STREAMS);
    assert!(!streams.streams.contains_key(&0) && streams.streams.contains_key(&1));
}

#[test]
fn a_page_is_bounded_and_the_end_comes_with_the_last() {
    let now = Instant::now();
    let keep = Retention {
        events: 10,
        bytes: 10 * PAGE,
        ..KEEP
    };
    let mut streams = SessionStreams::default();
    for number in 1..=3 {
        streams
            .open(0)
            .unwrap()
            .append(number, event(PAGE), now, keep);
    }
    streams.end(0, now, keep);
    let first = streams.streams[&0].read(0).unwrap();
    assert_eq!((first.events.len(), first.is_end), (2, false));
    let second = streams.streams[&0].read(2).unwrap();
    assert_eq!((second.events.len(), second.is_end), (1, true));
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

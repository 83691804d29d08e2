//! Tests of `state::memory::streams`.

use super::super::streams::*;
use crate::base::budget::Budget;

const KEEP: Retention = Retention {
    events: 3,
    bytes: 1024,
    age: Duration::from_secs(60),
};

/// Appends an event; returns the number of the oldest that is left after a trim.
fn append(
    streams: &mut SessionStreams,
    id: StreamId,
    number: u64,
    event: Bytes,
    now: Instant,
    keep: Retention,
) -> u64 {
    let appended = streams.append(id, (number, event), None, now, keep);
    appended.unwrap()
}

fn event(bytes: usize) -> Bytes {
    vec![b'x'; bytes].into()
}

#[test]
fn promise_5_count_bytes_and_age_bound_a_stream() {
    let now = Instant::now();
    let mut streams = SessionStreams::new(LogShare::plenty());
    for number in 1..=10 {
        append(&mut streams, 0, number, event(1), now, KEEP);
    }
    assert_eq!(streams.streams[&0].events.len(), 3);
    assert_eq!(
        streams.streams[&0].read(6).err(),
        Some(StoreError::Trimmed { oldest: 7 })
    );

    for number in 1..=3 {
        append(&mut streams, 1, number, event(512), now, KEEP);
    }
    let stream = &streams.streams[&1];
    assert_eq!(
        (stream.events.len(), stream.bytes, stream.trimmed),
        (2, 1024, 1)
    );
    // The newest event is kept, whatever its size.
    append(&mut streams, 1, 4, event(5000), now, KEEP);
    let stream = &streams.streams[&1];
    assert_eq!((stream.events.len(), stream.bytes), (1, 5000));

    append(&mut streams, 2, 1, event(1), now, KEEP);
    append(&mut streams, 2, 2, event(1), now + KEEP.age, KEEP);
    assert_eq!(streams.streams[&2].trimmed, 0);
    let later = now + KEEP.age + Duration::from_secs(1);
    append(&mut streams, 2, 3, event(1), later, KEEP);
    assert_eq!(streams.streams[&2].trimmed, 1);
}

#[test]
fn ended_streams_go_in_order() {
    let now = Instant::now();
    let mut streams = SessionStreams::new(LogShare::plenty());
    for id in 1..=5 {
        append(&mut streams, id, 1, event(1000), now, KEEP);
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

/// A client that was at this end asked by it for its listener, and was told that events are gone.
#[test]
fn the_end_of_the_stream_that_ended_last_stays_known() {
    let now = Instant::now();
    let mut streams = SessionStreams::new(LogShare::plenty());
    for id in [1, 2] {
        for number in [1, 2] {
            append(&mut streams, id, number, event(1), now, KEEP);
        }
        streams.end(id, now, KEEP);
    }
    let later = now + KEEP.age + Duration::from_secs(1);
    streams.sweep(later, KEEP);
    assert!(streams.streams.is_empty());
    let end = streams.read(2, 2, later, KEEP).unwrap();
    assert!(end.events.is_empty() && end.is_end);
    for (id, after) in [(2, 0), (2, 1), (2, 3), (1, 2), (0, 0)] {
        let gone = streams.read(id, after, later, KEEP).err();
        assert_eq!(gone, Some(StoreError::Trimmed { oldest: 0 }));
    }
}

#[test]
fn a_page_is_bounded_and_the_end_comes_with_the_last() {
    let now = Instant::now();
    let keep = Retention {
        events: 10,
        bytes: 10 * PAGE,
        ..KEEP
    };
    let mut streams = SessionStreams::new(LogShare::plenty());
    for number in 1..=3 {
        append(&mut streams, 0, number, event(PAGE / 2), now, keep);
    }
    streams.end(0, now, keep);
    let first = streams.streams[&0].read(0).unwrap();
    assert_eq!((first.events.len(), first.is_end), (2, false));
    let second = streams.streams[&0].read(2).unwrap();
    assert_eq!((second.events.len(), second.is_end), (1, true));
}

const WIDE: Retention = Retention {
    events: 1000,
    bytes: 1 << 20,
    age: Duration::from_secs(60),
};

/// What a stream takes in Redis beside its events.
const IN_REDIS: u64 = FIELDS + KEY;

/// A share that holds so many streams with as many events of one byte together, and copies of as many.
fn share(streams: u64, events: u64, copies: Option<u64>) -> LogShare {
    let share = |bytes: u64| Budget::new(2 * bytes).share();
    let each = if copies.is_some() { IN_REDIS } else { STREAM };
    let of_copies = |copies| copies * weight(1) + (events - copies) * PLACE + streams * STREAM;
    LogShare {
        kept: share(events * weight(1) + streams * each),
        copies: copies.map(|copies| share(of_copies(copies))),
        ..LogShare::plenty()
    }
}

/// What a session has in memory beside its events, but for what the allocator rounds up.
fn room(streams: &SessionStreams) -> u64 {
    let of_table = streams.streams.capacity() * 8 / 7 * (size_of::<(StreamId, Box<Stream>)>() + 1);
    let of_ended = streams.ended.capacity() * size_of::<(StreamId, Instant, usize)>();
    (of_table + of_ended + streams.streams.len() * size_of::<Stream>()) as u64
}

/// Those of ten thousand sessions were a gigabyte, counted nowhere, until the sessions ended.
#[test]
fn what_streams_take_without_events_counts_and_is_given_back() {
    let now = Instant::now();
    let late = now + WIDE.age + Duration::from_secs(1);
    let share = share(300, 0, None);
    let mut streams = SessionStreams::new(share.clone());
    let many = StreamId::try_from(ENDED_STREAMS).unwrap();
    for id in 1..=many {
        streams.end(id, now, WIDE);
        assert_eq!(share.kept.used(), u64::from(id) * STREAM);
        let room = room(&streams);
        assert!(id < 16 || room <= share.kept.used(), "{room} of {id}");
    }
    let mut moves = vec![streams.streams.capacity()];
    while streams.drop_oldest_ended() {
        let (room, left) = (room(&streams), streams.ended.len());
        assert!(left < 16 || room <= share.kept.used(), "{room} of {left}");
        moves.push(streams.streams.capacity());
    }
    assert!(room(&streams) <= 1024, "{}", room(&streams));
    assert_eq!(share.kept.used(), 0);
    moves.dedup_by_key(|room| room.next_power_of_two());
    assert!(moves.len() <= 6, "{moves:?}");
    for id in many + 1..=2 * many {
        streams.end(id, now, WIDE);
    }
    streams.sweep(late, WIDE);
    assert!(room(&streams) <= 1024, "{}", room(&streams));
    assert_eq!(share.kept.used(), 0);
}

#[test]
fn ended_streams_without_events_stay_within_the_share() {
    let now = Instant::now();
    for is_in_redis in [false, true] {
        let each = if is_in_redis { FIELDS } else { STREAM };
        let share = LogShare {
            kept: Budget::new(2 * 10 * each).share(),
            copies: is_in_redis.then(|| Budget::new(1 << 20).share()),
            ..LogShare::plenty()
        };
        let mut streams = SessionStreams::new(share.clone());
        for id in 1..=20 {
            streams.end(id, now, WIDE);
        }
        let left = (1..=20).filter(|id| streams.has(*id));
        assert!(left.eq(11..=20), "{:?}", streams.ended);
        assert_eq!(streams.ended_room(WIDE).1, 10, "in Redis too");
        let _others = share.kept.hold(10 * each);
        streams.end(21, now, WIDE);
        assert!(streams.has(21) && streams.streams.len() == 1);
    }
}

/// A call for each event, and each event as long as a line of a child, were no bound.
#[test]
fn a_long_newest_event_beyond_the_share_counts_little_and_goes_after_a_while() {
    let (now, late) = (Instant::now(), NEWEST_STAYS + Duration::from_secs(1));
    let share = share(3, 20, None);
    let mut streams = SessionStreams::new(share.clone());
    for id in [1, 2] {
        append(&mut streams, id, 1, event(1), now, WIDE);
        append(&mut streams, id, 2, event(LONG_EVENT), now, WIDE);
        assert!(!streams.has_room(id));
        assert_eq!(
            streams.streams[&id].events.len(),
            1,
            "the older one has gone"
        );
    }
    let few = 2 * (NEWEST + STREAM);
    assert_eq!(share.kept.used(), few, "nothing against others");
    let excess = weight(LONG_EVENT) - NEWEST;
    assert_eq!(share.under_way.used(), 2 * excess);
    // An event behind it pushes it out, and what is small stays.
    append(&mut streams, 2, 3, event(1), now, WIDE);
    assert_eq!(streams.streams[&2].trimmed, 2);
    assert_eq!(share.under_way.used(), excess);
    append(&mut streams, 3, 1, event(LONG_EVENT), now, WIDE);
    streams.end(3, now, WIDE);
    streams.sweep(now + NEWEST_STAYS, WIDE);
    assert_eq!(streams.streams[&1].read(1).unwrap().events.len(), 1);
    assert!(streams.has(3));
    streams.sweep(now + late, WIDE);
    assert!(streams.streams[&1].read(1).is_err());
    assert!(!streams.has(3) && streams.ended_bytes == 0);
    let left = weight(1) + 2 * STREAM;
    assert_eq!((share.kept.used(), share.under_way.used()), (left, 0));
}

#[test]
fn a_long_newest_event_counts_whole_once_the_share_has_room() {
    let now = Instant::now();
    let share = share(1, 200, None);
    let mut streams = SessionStreams::new(share.clone());
    let others = share.kept.hold(150 * weight(1));
    append(&mut streams, 1, 1, event(LONG_EVENT), now, WIDE);
    assert_eq!(share.kept.used(), STREAM + NEWEST + 150 * weight(1));
    drop(others);
    streams.sweep(now, WIDE);
    assert_eq!(share.kept.used(), STREAM + weight(LONG_EVENT));
    assert_eq!(share.under_way.used(), 0);
    streams.sweep(now + 2 * NEWEST_STAYS, WIDE);
    assert_eq!(streams.streams[&1].events.len(), 1);
    drop(streams);
    assert_eq!(share.kept.used(), 0);
}

#[test]
fn the_copy_of_a_long_newest_event_beyond_the_share_goes_after_a_while() {
    let now = Instant::now();
    let share = share(1, 1000, Some(3));
    let mut streams = SessionStreams::new(share.clone());
    let copies = share.copies.as_ref().unwrap();
    append(&mut streams, 1, 1, event(LONG_EVENT), now, WIDE);
    assert!(streams.has_room(1), "elsewhere");
    streams.acknowledge(1, 1, now);
    let read = |streams: &SessionStreams| streams.streams[&1].read(0).is_ok();
    streams.sweep(now + NEWEST_STAYS, WIDE);
    assert!(read(&streams));
    let _others = copies.hold(200 * weight(1));
    streams.sweep(now + 2 * NEWEST_STAYS, WIDE);
    assert!(!read(&streams), "to be read elsewhere");
    assert_eq!(copies.used(), 200 * weight(1) + PLACE + STREAM);
    drop(streams);
    assert_eq!(copies.used(), 200 * weight(1));
}

/// It went while Redis was away, and its client, which was there all the time, got no answer.
#[test]
fn a_long_event_that_nobody_may_have_yet_stays() {
    let born = Instant::now();
    let share = share(2, 20, Some(3));
    let mut streams = SessionStreams::new(share);
    for id in [1, 2] {
        append(&mut streams, id, 1, event(LONG_EVENT), born, WIDE);
    }
    streams.end(2, born, WIDE);
    let are_here = |streams: &SessionStreams| {
        [1, 2].map(|id| {
            streams
                .streams
                .get(&id)
                .is_some_and(|one| one.read(0).is_ok())
        })
    };
    let late = born + 2 * NEWEST_STAYS;
    streams.sweep(late, WIDE);
    assert_eq!(are_here(&streams), [true; 2]);
    for id in [1, 2] {
        streams.acknowledge(id, 2, late);
        streams.acknowledge(id, 1, late);
    }
    streams.sweep(late + NEWEST_STAYS, WIDE);
    assert_eq!(
        are_here(&streams),
        [true; 2],
        "they may have it from now on"
    );
    streams.sweep(late + 2 * NEWEST_STAYS, WIDE);
    assert_eq!(are_here(&streams), [false; 2]);
}

#[test]
fn promise_5_a_share_bounds_a_session() {
    let now = Instant::now();
    let share = share(2, 5, None);
    let mut streams = SessionStreams::new(share.clone());
    for number in 1..=3 {
        append(&mut streams, 1, number, event(1), now, WIDE);
    }
    streams.end(1, now, WIDE);
    assert_eq!(append(&mut streams, 2, 1, event(1), now, WIDE), 0);
    assert_eq!(append(&mut streams, 2, 2, event(1), now, WIDE), 0);
    assert!(streams.has(1), "what fits stays");
    assert_eq!(append(&mut streams, 2, 3, event(1), now, WIDE), 0);
    assert!(!streams.has(1), "a stream that has ended goes first");
    let another = share.kept.hold(STREAM);
    for number in 4..=9 {
        append(&mut streams, 2, number, event(1), now, WIDE);
    }
    let stream = &streams.streams[&2];
    assert_eq!((stream.events.len(), stream.trimmed), (5, 4));
    assert_eq!(share.kept.used(), 5 * weight(1) + 2 * STREAM);
    // Use by other owners makes the share smaller, and the newest stays in any case.
    let other = share.kept.hold(100 * weight(1));
    assert_eq!(append(&mut streams, 2, 10, event(1), now, WIDE), 10);
    assert_eq!(streams.streams[&2].events.len(), 1);
    drop((another, other, streams));
    assert_eq!(share.kept.used(), 0);
}

/// A thousand clients that did not read left queues of thousands of places with a hundred events each.
#[test]
fn a_queue_gives_back_the_room_of_events_that_were_trimmed() {
    let now = Instant::now();
    let share = share(1, 1000, None);
    let mut streams = SessionStreams::new(share.clone());
    let mut room = Vec::new();
    for number in 1..=1000 {
        append(&mut streams, 1, number, event(1), now, WIDE);
        room.push(streams.streams[&1].events.capacity());
    }
    assert!(room[999] <= 1250, "{}", room[999]);
    room.dedup();
    assert!(room.len() <= 30, "moved {} times", room.len());
    let _other = share.kept.hold(1990 * weight(1));
    append(&mut streams, 1, 1001, event(1), now, WIDE);
    let events = &streams.streams[&1].events;
    assert!(events.len() <= 10, "{}", events.len());
    assert!(events.capacity() <= 18, "{}", events.capacity());
}

#[test]
fn copies_go_and_the_log_elsewhere_keeps_its_events() {
    let now = Instant::now();
    let share = share(1, 8, Some(3));
    let mut streams = SessionStreams::new(share.clone());
    for number in 1..=8 {
        let oldest = append(&mut streams, 1, number, event(1), now, WIDE);
        assert_eq!(oldest, 0, "nothing is trimmed");
    }
    let copies = share.copies.as_ref().unwrap();
    assert_eq!(
        (copies.used(), share.kept.used()),
        (3 * weight(1) + 5 * PLACE + STREAM, 8 * weight(1) + IN_REDIS)
    );
    assert_eq!(streams.bytes(), 3);
    assert_eq!(streams.all_bytes(1), Some(8));
    let read = |streams: &SessionStreams, after| {
        let page = streams.streams[&1].read(after);
        page.map(|page| page.events.len()).ok()
    };
    assert_eq!(read(&streams, 4), None, "to be read elsewhere");
    assert_eq!(read(&streams, 5), Some(3));
    // With the share used up by others only the newest copy stays, and the sweep trims nothing.
    let other = copies.hold(100 * weight(1));
    streams.sweep(now, WIDE);
    assert_eq!((read(&streams, 6), read(&streams, 7)), (None, Some(1)));
    assert_eq!(streams.all_bytes(1), Some(8));
    drop(other);
    // Beyond the share of the log elsewhere events go there too.
    assert_eq!(append(&mut streams, 1, 9, event(1), now, WIDE), 2);
    assert_eq!(streams.all_bytes(1), Some(8));
    let later = now + WIDE.age + Duration::from_secs(1);
    streams.sweep(later, WIDE);
    assert_eq!(streams.all_bytes(1), Some(1), "the newest");
    drop(streams);
    assert_eq!((copies.used(), share.kept.used()), (0, 0));
}

/// A thousand streams of small events took 40 MiB more than their copies.
#[test]
fn what_is_left_of_an_event_elsewhere_takes_little_room() {
    let now = Instant::now();
    let share = share(1, 1000, Some(1));
    let mut streams = SessionStreams::new(share.clone());
    for number in 1..=1000 {
        let then = now + Duration::from_millis(number);
        append(&mut streams, 1, number, event(1), then, WIDE);
    }
    let stream = &streams.streams[&1];
    assert_eq!((stream.count(), stream.events.len()), (1000, 1));
    let room = stream.room();
    let copies = share.copies.as_ref().unwrap().used() - STREAM;
    assert!(
        room <= copies,
        "{room} bytes, of which {copies} are counted"
    );
    assert!(room <= 16 * 1000, "{room} bytes");
    // It is as old as the event, to a tenth of a second: those of the first 400 ms are too old.
    streams.sweep(now + WIDE.age + Duration::from_millis(500), WIDE);
    let left = streams.streams[&1].count();
    assert!((595..=600).contains(&left), "{left}");
}

/// A log of small events in Redis took more memory here than that of the copies.
#[test]
fn events_elsewhere_go_when_their_places_are_beyond_the_share() {
    let now = Instant::now();
    let share = share(2, 8, Some(8));
    let mut streams = SessionStreams::new(share.clone());
    append(&mut streams, 1, 1, event(1), now, WIDE);
    streams.end(1, now, WIDE);
    for number in 1..=5 {
        append(&mut streams, 2, number, event(1), now, WIDE);
    }
    let mut sweep = || {
        streams.sweep(now, WIDE);
        streams.sweep_places();
        (streams.has(1), streams.streams[&2].count())
    };
    let copies = share.copies.as_ref().unwrap();
    let copy = weight(1) - PLACE;
    let mut others = copies.hold(2 * weight(1) + 3 * copy);
    assert_eq!(sweep(), (true, 5), "copies go first");
    others.add(copy + 1);
    assert_eq!(sweep(), (false, 5), "then a stream that has ended");
    others.add(weight(1) + STREAM);
    assert_eq!(sweep(), (false, 4), "then the oldest events");
    drop(others);
    assert_eq!(append(&mut streams, 2, 6, event(1), now, WIDE), 2);
    drop(streams);
    assert_eq!(copies.used(), 0);
}

#[test]
fn ended_streams_elsewhere_follow_the_share() {
    let now = Instant::now();
    let share = share(2, 4, Some(4));
    let mut streams = SessionStreams::new(share.clone());
    for id in 1..=2 {
        append(&mut streams, id, 1, event(1), now, WIDE);
        streams.end(id, now, WIDE);
    }
    assert_eq!(streams.ended_room(WIDE), (WIDE.of_ended(), ENDED_STREAMS));
    let _other = share.kept.hold(2 * 3 * weight(1) + IN_REDIS);
    assert_eq!(streams.ended_room(WIDE), (2, ENDED_STREAMS));
    append(&mut streams, 3, 1, event(1), now, WIDE);
    assert_eq!(streams.ended_room(WIDE), (0, 0));
    streams.end(3, now, WIDE);
    assert_eq!(streams.ended_room(WIDE), (1, 1));
}

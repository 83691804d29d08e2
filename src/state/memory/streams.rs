//! What is kept of the streams of one session, and what of it goes.
//!
//! Used as the log in memory, and as a copy of what this process has written to a log elsewhere.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use bytes::Bytes;
use tokio::time::Instant;

use crate::{
    base::budget::{Drawn, drop_room, push_back},
    protocol::StreamId,
    state::{Fence, LONG_EVENT, LogShare, OpenStream, Page, StoreError, Streams},
};

/// The bounds of a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retention {
    /// Maximum number of events.
    pub(crate) events: usize,
    /// Maximum number of bytes.
    pub(crate) bytes: usize,
    /// Maximum age of an event, and of an ended stream.
    pub(crate) age: Duration,
}

impl Retention {
    /// Maximum bytes of all ended streams of a session. Several large results that arrive while no
    /// client is connected all stay, and a session that is never resumed has a bounded cost.
    pub(crate) fn of_ended(self) -> usize {
        self.bytes.saturating_mul(4)
    }
}

/// Maximum number of ended streams of a session, kept for a late resume: clients resume the streams
/// that they were reading, which `stream.per_session` bounds.
pub(crate) const ENDED_STREAMS: usize = 256;

/// Maximum bytes of one `read`, but for a single event that is larger: enough for each write to a
/// socket, little enough to hold for each reader that does not read.
pub(crate) const PAGE: usize = 8 * 1024;

/// What an event takes beside its bytes: its [`Entry`], with its part of the queue's free room, and what
/// counts the references to its bytes.
pub(crate) const ENTRY: usize = 128;
/// What an event takes here whose copy is gone: its [`Place`], with its part of the queue's free room, and of
/// what a queue that grows leaves behind.
const PLACE: u64 = 24;
/// How exactly the time of an event is known whose copy is gone.
const TICK: Duration = Duration::from_millis(100);
/// What a stream with events takes in Redis beside them: the node of its radix tree, which is 4 KiB from
/// its first event on (`stream-node-max-bytes`), and its key.
const KEY: u64 = 5 << 10;
/// What a stream takes in Redis without events: its fields in the record of the session.
const FIELDS: u64 = 256;
/// What a stream takes here without events: itself, and its part of the tables, of whose room it may take a quarter.
pub(super) const STREAM: u64 = 384;
/// The room that the table of streams keeps, however few there are.
const FEW_STREAMS: usize = 16;
/// What counts of the newest event of a stream for which the share has no room.
const NEWEST: u64 = 1 << 10;
/// The time for which a long one stays nevertheless: a client that has lost its connection is back by then.
const NEWEST_STAYS: Duration = Duration::from_secs(10);

/// The streams of one session.
pub(crate) struct SessionStreams {
    share: LogShare,
    fence: Option<Fence>,
    highest: StreamId,
    /// Boxed: the table has more room than they take.
    pub(super) streams: HashMap<StreamId, Box<Stream>>,
    /// Ended streams, oldest first, with the bytes that each holds.
    pub(super) ended: VecDeque<(StreamId, Instant, usize)>,
    pub(super) ended_bytes: usize,
    /// The stream that ended last and its last event, however old: a client at this position has missed nothing. Boxed:
    /// many sessions have none.
    ended_last: Option<Box<(StreamId, u64)>>,
    /// Ended streams went because the share had no room for them. From then on a log elsewhere keeps as
    /// many as are here, and no older ones of another owner.
    is_short: bool,
}

/// The kept events of one stream.
pub(super) struct Stream {
    pub(super) events: VecDeque<Entry>,
    /// Those before them, if the log is elsewhere and their copies are gone.
    elsewhere: VecDeque<Place>,
    /// What the times of `elsewhere` count from.
    born: Instant,
    pub(super) bytes: usize,
    /// What is drawn for them.
    kept: Account,
    /// What is drawn for their copies, if the log is elsewhere.
    copies: Option<Account>,
    /// What is drawn of what is under way, for a long newest event that is here and beyond the share.
    excess: Drawn,
    /// The number of trimmed events; the first kept event has the next number.
    pub(super) trimmed: u64,
    /// How many of them were appended by another replica.
    foreign: u64,
    calls: Bytes,
    is_ended: bool,
    /// Whether its newest event is long, and a log elsewhere has not acknowledged it: nobody may have it yet.
    is_awaited: bool,
}

/// What is drawn for the events of a stream.
struct Account {
    drawn: Drawn,
    /// What is not drawn of the newest event, because the share has no room for it. That event stays all the same, as
    /// no client has received it yet, and must not count against others.
    beyond: u64,
}

/// An event that is here.
pub(super) struct Entry {
    since: Instant,
    event: Bytes,
}

/// What is left here of an event in a log elsewhere: as little as there can be, since a log of many small
/// events has a place for each.
struct Place {
    /// The time from the birth of the stream to the event, in [`TICK`]s, rounded up: 13 years fit.
    since: u32,
    /// Its bytes, of which no line has as many as fit.
    size: u32,
}

impl SessionStreams {
    /// No streams.
    pub(crate) fn new(share: LogShare) -> Self {
        Self {
            share,
            fence: None,
            highest: StreamId::default(),
            streams: HashMap::new(),
            ended: VecDeque::new(),
            ended_bytes: 0,
            ended_last: None,
            is_short: false,
        }
    }

    /// Refuses a fence that is older than the last.
    pub(super) fn check(&mut self, fence: Fence) -> Result<(), StoreError> {
        if self.fence.is_some_and(|last| fence < last) {
            return Err(StoreError::Fenced);
        }
        self.fence = Some(fence);
        Ok(())
    }

    /// See [`EventLog::open`](crate::state::EventLog::open).
    pub(crate) fn open(&mut self, id: StreamId, last: u64, calls: Bytes) {
        let Ok(stream) = self.unended(id) else {
            return;
        };
        if stream.last() == 0 {
            stream.trimmed = last;
        }
        stream.calls = calls;
    }

    /// See [`EventLog::append`](crate::state::EventLog::append). Returns the number of the oldest event
    /// that is left after events of this process were trimmed; 0 if none was.
    pub(crate) fn append(
        &mut self,
        id: StreamId,
        (number, event): (u64, Bytes),
        calls: Option<Bytes>,
        now: Instant,
        keep: Retention,
    ) -> Result<u64, StoreError> {
        let known = self.streams.get(&id).filter(|known| known.is_ended);
        if known.is_some_and(|ended| number <= ended.last()) {
            return Ok(0);
        }
        let stream = self.unended(id)?;
        stream.append(number, event, now);
        if let Some(calls) = calls {
            stream.calls = calls;
        }
        let wanted = stream.kept.beyond;
        // Ended streams may never be asked for; readers wait for the events of an open one.
        while !self.share.kept.has_room(wanted) && self.drop_oldest_ended() {
            self.is_short = true;
        }
        let stream = self.unended(id)?;
        stream.trim(now, keep);
        Ok(stream.oldest_after_trim())
    }

    /// A stream that has not ended; it begins if it is not known.
    fn unended(&mut self, id: StreamId) -> Result<&mut Stream, StoreError> {
        self.highest = self.highest.max(id);
        let share = &self.share;
        let stream = self
            .streams
            .entry(id)
            .or_insert_with(|| Box::new(Stream::new(share, Instant::now())));
        if stream.is_ended {
            return Err(StoreError::Fenced);
        }
        Ok(stream)
    }

    /// Marks a stream as ended.
    pub(crate) fn end(&mut self, id: StreamId, now: Instant, keep: Retention) {
        let Ok(stream) = self.unended(id) else {
            return;
        };
        stream.is_ended = true;
        stream.events.shrink_to_fit();
        stream.elsewhere.shrink_to_fit();
        let (bytes, last) = (stream.bytes, stream.last());
        self.ended_last = Some(Box::new((id, last)));
        push_back(&mut self.ended, (id, now, bytes));
        self.ended_bytes += bytes;
        self.drop_ended(now, keep);
        // One without events takes room as well, and no append makes it.
        while self.ended.len() > 1 && self.share.kept.left() < 0 && self.drop_oldest_ended() {
            self.is_short = true;
        }
    }

    /// See [`EventLog::read`](crate::state::EventLog::read).
    pub(crate) fn read(
        &mut self,
        id: StreamId,
        after: u64,
        now: Instant,
        keep: Retention,
    ) -> Result<Page, StoreError> {
        self.drop_ended(now, keep);
        let Some(stream) = self.streams.get_mut(&id) else {
            let is_end = self.ended_last.as_deref() == Some(&(id, after));
            let end = is_end.then(|| Page {
                is_end,
                ..Page::default()
            });
            return end.ok_or(StoreError::Trimmed { oldest: 0 });
        };
        if !stream.is_ended {
            stream.trim(now, keep);
        }
        stream.read(after)
    }

    /// A log elsewhere has an event, which its readers may have from now on.
    pub(crate) fn acknowledge(&mut self, id: StreamId, number: u64, now: Instant) {
        let stream = self.streams.get_mut(&id);
        if let Some(stream) = stream.filter(|stream| stream.is_awaited && stream.last() == number) {
            stream.is_awaited = false;
            if let Some(newest) = stream.events.back_mut() {
                newest.since = now;
            }
        }
    }

    /// The streams for a new owner.
    pub(super) fn left(&self) -> Streams {
        let open = self.streams.iter().filter(|(_, stream)| !stream.is_ended);
        let open = open.map(|(id, stream)| OpenStream {
            stream: *id,
            last: stream.last(),
            calls: stream.calls.clone(),
        });
        Streams {
            highest: self.highest,
            open: open.collect(),
        }
    }

    /// Whether the log has room for the newest event of a stream.
    pub(crate) fn has_room(&self, id: StreamId) -> bool {
        let stream = self.streams.get(&id);
        stream.is_none_or(|stream| stream.kept.beyond == 0)
    }

    /// Reports whether a stream is present.
    pub(crate) fn has(&self, id: StreamId) -> bool {
        self.streams.contains_key(&id)
    }

    /// The bytes of all streams, as far as they are in this process.
    pub(crate) fn bytes(&self) -> usize {
        let events = self.streams.values().flat_map(|stream| &stream.events);
        events.map(|entry| entry.event.len()).sum()
    }

    /// The bytes of a stream, if all its events were appended here.
    pub(crate) fn all_bytes(&self, id: StreamId) -> Option<usize> {
        let stream = self.streams.get(&id)?;
        (stream.foreign == 0).then_some(stream.bytes)
    }

    /// The bytes and the number of ended streams that may stay in a log elsewhere: less than
    /// [`Retention::of_ended`] and [`ENDED_STREAMS`] if the share of the session has no room for them.
    pub(crate) fn ended_room(&self, keep: Retention) -> (usize, usize) {
        let bytes = if self.share.kept.left() < 0 {
            self.ended_bytes
        } else {
            keep.of_ended()
        };
        let streams = if self.is_short {
            self.ended.len()
        } else {
            ENDED_STREAMS
        };
        (bytes, streams)
    }

    /// Removes what is too old. What is beyond the share goes too, if the log is here; of a log
    /// elsewhere only the copies, because it learns of more with the next event alone.
    pub(crate) fn sweep(&mut self, now: Instant, keep: Retention) {
        self.drop_ended(now, keep);
        self.drop_overdue(now);
        if self.share.copies.is_none() {
            while self.share.kept.left() < 0 && self.drop_oldest_ended() {}
        }
        for stream in self.streams.values_mut() {
            stream.kept.count_newest();
            stream.drop_copies(now);
            stream.drop_room();
            if stream.is_ended {
                continue;
            }
            if stream.copies.is_none() {
                stream.trim(now, keep);
            } else {
                stream.trim_old(now, keep);
            }
        }
    }

    /// Removes events of a log elsewhere whose places here are beyond the share; called after
    /// [`Self::sweep`] of all sessions, since their copies go first.
    pub(crate) fn sweep_places(&mut self) {
        let is_too_much =
            |share: &LogShare| share.copies.as_ref().is_some_and(|all| all.left() < 0);
        while is_too_much(&self.share) && self.drop_oldest_ended() {
            self.is_short = true;
        }
        let open = self.streams.values_mut().filter(|stream| !stream.is_ended);
        open.for_each(|stream| stream.drop_places());
    }

    /// Removes ended streams that are too many, too large together, or too old.
    pub(super) fn drop_ended(&mut self, now: Instant, keep: Retention) {
        while let Some((_, since, _)) = self.ended.front() {
            let is_too_old = now.duration_since(*since) > keep.age;
            let is_too_much =
                self.ended.len() > ENDED_STREAMS || self.ended_bytes > keep.of_ended();
            if !(is_too_old || is_too_much && self.ended.len() > 1) {
                return;
            }
            self.drop_oldest_ended();
        }
    }

    /// Removes ended streams whose last event has been beyond the share for too long.
    fn drop_overdue(&mut self, now: Instant) {
        let Self { streams, ended, .. } = self;
        let mut freed = 0;
        ended.retain(|(id, _, bytes)| {
            let is_overdue = streams.get(id).is_some_and(|stream| stream.is_overdue(now));
            if is_overdue {
                freed += bytes;
                streams.remove(id);
            }
            !is_overdue
        });
        self.ended_bytes -= freed;
        self.drop_room();
    }

    fn drop_oldest_ended(&mut self) -> bool {
        let Some((id, _, bytes)) = self.ended.pop_front() else {
            return false;
        };
        self.ended_bytes -= bytes;
        self.streams.remove(&id);
        self.drop_room();
        true
    }

    /// Gives back the room of streams that are gone: nothing else may happen to their session until its end. Each time
    /// the table becomes half as large or less, so that it seldom moves.
    fn drop_room(&mut self) {
        let (room, length) = (self.streams.capacity(), self.streams.len());
        if room > FEW_STREAMS && length < room / 4 {
            self.streams.shrink_to(2 * length);
        }
        drop_room(&mut self.ended);
    }
}

impl Account {
    fn new(drawn: Drawn) -> Self {
        Self { drawn, beyond: 0 }
    }

    /// Counts an event, which is the newest from now on. Of a larger one only a part counts until there is room for the
    /// rest, or another event follows.
    fn add(&mut self, weight: u64) {
        self.drawn.add(self.beyond);
        let counted = weight.min(NEWEST);
        self.drawn.add(counted);
        self.beyond = weight - counted;
    }

    /// Whether the share has no room for all that is kept.
    fn is_too_much(&self) -> bool {
        !self.drawn.budget().has_room(self.beyond)
    }

    /// Counts all of the newest event if there is room.
    fn count_newest(&mut self) {
        if self.beyond > 0 && self.drawn.grow(self.beyond) {
            self.beyond = 0;
        }
    }

    /// Gives back what an event takes that has gone.
    fn give_back(&mut self, weight: u64, is_newest: bool) {
        let beyond = if is_newest {
            std::mem::take(&mut self.beyond)
        } else {
            0
        };
        self.drawn.give_back(weight.saturating_sub(beyond));
    }
}

impl Stream {
    fn new(share: &LogShare, now: Instant) -> Self {
        let is_in_redis = share.copies.is_some();
        Self {
            events: VecDeque::new(),
            elsewhere: VecDeque::new(),
            born: now,
            bytes: 0,
            kept: Account::new(share.kept.hold(if is_in_redis { FIELDS } else { STREAM })),
            copies: share
                .copies
                .as_ref()
                .map(|copies| Account::new(copies.hold(STREAM))),
            excess: share.under_way.hold(0),
            trimmed: 0,
            foreign: 0,
            calls: Bytes::new(),
            is_ended: false,
            is_awaited: false,
        }
    }

    fn last(&self) -> u64 {
        self.trimmed + self.count() as u64
    }

    /// The bytes of its queues.
    #[cfg(test)]
    pub(super) fn room(&self) -> u64 {
        let events = self.events.capacity() * size_of::<Entry>();
        (events + self.elsewhere.capacity() * size_of::<Place>()) as u64
    }

    /// The number of kept events, here and elsewhere.
    pub(super) fn count(&self) -> usize {
        self.elsewhere.len() + self.events.len()
    }

    /// The number of the oldest event left after a local trim; 0 without one.
    fn oldest_after_trim(&self) -> u64 {
        if self.trimmed > self.foreign {
            self.trimmed + 1
        } else {
            0
        }
    }

    fn append(&mut self, number: u64, event: Bytes, now: Instant) {
        if number <= self.last() {
            return;
        }
        if number > self.last() + 1 {
            // A gap in the numbers: no earlier event is kept here.
            while self.drop_oldest() {}
            (self.trimmed, self.foreign) = (number - 1, number - 1);
        }
        let size = event.len();
        self.is_awaited = self.copies.is_some() && size >= LONG_EVENT;
        self.bytes += size;
        let key = self.key();
        self.kept.drawn.add(key);
        self.kept.add(weight(size));
        if let Some(copies) = &mut self.copies {
            copies.add(weight(size));
        }
        push_back(&mut self.events, Entry { since: now, event });
    }

    /// What the key of the stream takes if it is there for a single event.
    fn key(&self) -> u64 {
        if self.copies.is_some() && self.count() == 0 {
            KEY
        } else {
            0
        }
    }

    /// Removes the oldest events that are too old, too many, or beyond the share of the session.
    fn trim(&mut self, now: Instant, keep: Retention) {
        self.trim_old(now, keep);
        // The newest event stays, as no client has received it yet.
        while self.count() > 1 {
            let is_too_much =
                self.count() > keep.events || self.bytes > keep.bytes || self.kept.is_too_much();
            if !is_too_much {
                break;
            }
            self.drop_oldest();
        }
        self.kept.count_newest();
        if self.copies.is_none() && self.is_overdue(now) {
            self.drop_oldest();
        }
        self.drop_copies(now);
        self.drop_room();
    }

    /// Counts what is beyond the share of the log for as long as it is.
    fn count_excess(&mut self) {
        let memory = self.copies.as_ref().unwrap_or(&self.kept);
        let newest = self.events.back().map_or(0, |newest| newest.event.len());
        let beyond = if newest < LONG_EVENT {
            0
        } else {
            memory.beyond
        };
        let held = self.excess.amount();
        self.excess.add(beyond.saturating_sub(held));
        self.excess.give_back(held.saturating_sub(beyond));
    }

    /// Whether its newest event is long, and has been beyond the share of the log for as long as a client may take to
    /// come back for it.
    fn is_overdue(&self, now: Instant) -> bool {
        self.kept.beyond > 0 && self.has_long_newest_since(now)
    }

    fn has_long_newest_since(&self, now: Instant) -> bool {
        let newest = self.events.back();
        newest.is_some_and(|newest| {
            let age = now.saturating_duration_since(newest.since);
            newest.event.len() >= LONG_EVENT && age > NEWEST_STAYS && !self.is_awaited
        })
    }

    fn drop_room(&mut self) {
        drop_room(&mut self.events);
        drop_room(&mut self.elsewhere);
    }

    fn trim_old(&mut self, now: Instant, keep: Retention) {
        while self.count() > 1
            && let Some(since) = self.oldest_since()
            && now.duration_since(since) > keep.age
        {
            self.drop_oldest();
        }
    }

    /// The time of the oldest event.
    fn oldest_since(&self) -> Option<Instant> {
        match self.elsewhere.front() {
            Some(place) => Some(self.born + TICK * place.since),
            None => self.events.front().map(|entry| entry.since),
        }
    }

    fn drop_oldest(&mut self) -> bool {
        let (size, here) = if let Some(place) = self.elsewhere.pop_front() {
            (place.size as usize, PLACE)
        } else if let Some(oldest) = self.events.pop_front() {
            (oldest.event.len(), weight(oldest.event.len()))
        } else {
            return false;
        };
        self.bytes -= size;
        self.trimmed += 1;
        let (key, is_newest) = (self.key(), self.count() == 0);
        self.kept.give_back(weight(size), is_newest);
        self.kept.drawn.give_back(key);
        if let Some(copies) = &mut self.copies {
            copies.give_back(here, is_newest);
        }
        true
    }

    /// Drops the oldest copies that are beyond the share of the session. The newest stays: its readers
    /// are about to ask for it.
    fn drop_copies(&mut self, now: Instant) {
        let least = usize::from(!self.has_long_newest_since(now));
        let Some(copies) = &mut self.copies else {
            self.count_excess();
            return;
        };
        while copies.is_too_much()
            && self.events.len() > least
            && let Some(entry) = self.events.pop_front()
        {
            let age = entry.since.saturating_duration_since(self.born);
            let place = Place {
                since: u32::try_from(age.as_millis().div_ceil(TICK.as_millis()))
                    .unwrap_or(u32::MAX),
                size: u32::try_from(entry.event.len()).unwrap_or(u32::MAX),
            };
            copies.give_back(weight(entry.event.len()), self.events.is_empty());
            copies.drawn.add(PLACE);
            push_back(&mut self.elsewhere, place);
        }
        copies.count_newest();
        self.count_excess();
    }

    /// Removes the oldest events while their places are beyond the share of the session.
    fn drop_places(&mut self) {
        while self.copies.as_ref().is_some_and(Account::is_too_much) && self.count() > 1 {
            self.drop_oldest();
        }
        self.drop_room();
    }

    pub(super) fn read(&self, after: u64) -> Result<Page, StoreError> {
        let trimmed = StoreError::Trimmed {
            oldest: self.trimmed,
        };
        if after < self.trimmed || after > self.last() {
            return Err(trimmed);
        }
        let skip = usize::try_from(after - self.trimmed).unwrap_or(usize::MAX);
        let Some(skip) = skip.checked_sub(self.elsewhere.len()) else {
            return Err(trimmed);
        };
        let mut page = Page::default();
        let mut bytes = 0;
        for (number, entry) in (after + 1..).zip(self.events.iter().skip(skip)) {
            bytes += entry.event.len();
            if bytes > PAGE && !page.events.is_empty() {
                return Ok(page);
            }
            page.events.push((number, entry.event.clone()));
        }
        page.is_end = self.is_ended;
        Ok(page)
    }
}

/// What an event of this size takes.
pub(super) const fn weight(size: usize) -> u64 {
    (size + ENTRY) as u64
}

#[cfg(test)]
#[path = "../tests/streams.rs"]
mod tests;

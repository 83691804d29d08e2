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
    state::{Fence, LogShare, OpenStream, Page, StoreError, Streams},
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
pub(crate) const PAGE: usize = 32 * 1024;

/// What an event takes beside its bytes: its [`Entry`], with its part of the queue's free room, and what
/// counts the references to its bytes.
const ENTRY: usize = 128;
/// What an event takes here whose copy is gone: its [`Entry`], with its part of the queue's free room.
const PLACE: u64 = 64;
/// What a stream with events takes in Redis beside them: the node of its radix tree, which is 4 KiB from
/// its first event on (`stream-node-max-bytes`), and its key.
const KEY: u64 = 5 << 10;
/// What a stream takes in Redis without events: its fields in the record of the session.
const FIELDS: u64 = 256;

/// The streams of one session.
pub(crate) struct SessionStreams {
    share: LogShare,
    fence: Option<Fence>,
    highest: StreamId,
    pub(super) streams: HashMap<StreamId, Stream>,
    /// Ended streams, oldest first, with the bytes that each holds.
    pub(super) ended: VecDeque<(StreamId, Instant, usize)>,
    pub(super) ended_bytes: usize,
    /// Ended streams went because the share had no room for them. From then on a log elsewhere keeps as
    /// many as are here, and no older ones of another owner.
    is_short: bool,
}

/// The kept events of one stream.
pub(super) struct Stream {
    pub(super) events: VecDeque<Entry>,
    pub(super) bytes: usize,
    /// What is drawn for them.
    kept: Drawn,
    /// What is drawn for their copies, if the log is elsewhere.
    copies: Option<Drawn>,
    /// The number of events, from the oldest on, that have no copy any more.
    without_copy: usize,
    /// The number of trimmed events; the first kept event has the next number.
    pub(super) trimmed: u64,
    /// How many of them were appended by another replica.
    foreign: u64,
    calls: Bytes,
    is_ended: bool,
}

/// A kept event.
pub(super) struct Entry {
    since: Instant,
    event: Event,
}

/// What is here of an event.
enum Event {
    Here(Bytes),
    /// Its size: the event is in a log elsewhere, and its copy is gone.
    Elsewhere(usize),
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
    pub(super) fn open(&mut self, id: StreamId, last: u64, calls: Bytes) -> Result<(), StoreError> {
        let stream = self.unended(id)?;
        if stream.last() == 0 {
            stream.trimmed = last;
        }
        stream.calls = calls;
        Ok(())
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
        let stream = self.unended(id)?;
        stream.append(number, event, now);
        if let Some(calls) = calls {
            stream.calls = calls;
        }
        // Ended streams may never be asked for; readers wait for the events of an open one.
        while self.share.kept.left() < 0 && self.drop_oldest_ended() {
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
        let stream = self.streams.entry(id).or_insert_with(|| Stream::new(share));
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
        let bytes = stream.bytes;
        self.ended.push_back((id, now, bytes));
        self.ended_bytes += bytes;
        self.drop_ended(now, keep);
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
        let gone = StoreError::Trimmed { oldest: 0 };
        let stream = self.streams.get_mut(&id).ok_or(gone)?;
        if !stream.is_ended {
            stream.trim(now, keep);
        }
        stream.read(after)
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

    /// Reports whether a stream is present.
    pub(crate) fn has(&self, id: StreamId) -> bool {
        self.streams.contains_key(&id)
    }

    /// The bytes of all streams, as far as they are in this process.
    pub(crate) fn bytes(&self) -> usize {
        let gone = |stream: &Stream| {
            let gone = stream.events.iter().take(stream.without_copy);
            gone.map(Entry::size).sum::<usize>()
        };
        let streams = self.streams.values();
        streams.map(|stream| stream.bytes - gone(stream)).sum()
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
        if self.share.copies.is_none() {
            while self.share.kept.left() < 0 && self.drop_oldest_ended() {}
        }
        for stream in self.streams.values_mut() {
            stream.drop_copies();
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
        open.for_each(Stream::drop_places);
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

    fn drop_oldest_ended(&mut self) -> bool {
        let Some((id, _, bytes)) = self.ended.pop_front() else {
            return false;
        };
        self.ended_bytes -= bytes;
        self.streams.remove(&id);
        true
    }
}

impl Entry {
    fn size(&self) -> usize {
        match &self.event {
            Event::Here(bytes) => bytes.len(),
            Event::Elsewhere(size) => *size,
        }
    }
}

impl Stream {
    fn new(share: &LogShare) -> Self {
        let is_in_redis = share.copies.is_some();
        Self {
            events: VecDeque::new(),
            bytes: 0,
            kept: share.kept.hold(if is_in_redis { FIELDS } else { 0 }),
            copies: share.copies.as_ref().map(|copies| copies.hold(0)),
            without_copy: 0,
            trimmed: 0,
            foreign: 0,
            calls: Bytes::new(),
            is_ended: false,
        }
    }

    fn last(&self) -> u64 {
        self.trimmed + self.events.len() as u64
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
        self.bytes += size;
        self.kept.add(weight(size) + self.key());
        if let Some(copies) = &mut self.copies {
            copies.add(weight(size));
        }
        let event = Event::Here(event);
        push_back(&mut self.events, Entry { since: now, event });
    }

    /// What the key of the stream takes if it is there for a single event.
    fn key(&self) -> u64 {
        if self.copies.is_some() && self.events.is_empty() {
            KEY
        } else {
            0
        }
    }

    /// Removes the oldest events that are too old, too many, or beyond the share of the session.
    fn trim(&mut self, now: Instant, keep: Retention) {
        self.trim_old(now, keep);
        // The newest event always stays, as no client has received it yet.
        while self.events.len() > 1 {
            let is_too_much = self.events.len() > keep.events
                || self.bytes > keep.bytes
                || self.kept.is_too_much();
            if !is_too_much {
                break;
            }
            self.drop_oldest();
        }
        drop_room(&mut self.events);
        self.drop_copies();
    }

    fn trim_old(&mut self, now: Instant, keep: Retention) {
        while self.events.len() > 1
            && let Some(oldest) = self.events.front()
            && now.duration_since(oldest.since) > keep.age
        {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) -> bool {
        let Some(oldest) = self.events.pop_front() else {
            return false;
        };
        let size = oldest.size();
        self.bytes -= size;
        self.trimmed += 1;
        self.kept.give_back(weight(size) + self.key());
        if let Some(copies) = &mut self.copies {
            let has_copy = self.without_copy == 0;
            copies.give_back(if has_copy { weight(size) } else { PLACE });
        }
        self.without_copy = self.without_copy.saturating_sub(1);
        true
    }

    /// Drops the oldest copies that are beyond the share of the session. The newest stays: its readers
    /// are about to ask for it.
    fn drop_copies(&mut self) {
        let Some(copies) = &mut self.copies else {
            return;
        };
        while copies.is_too_much()
            && self.without_copy + 1 < self.events.len()
            && let Some(entry) = self.events.get_mut(self.without_copy)
        {
            let size = entry.size();
            entry.event = Event::Elsewhere(size);
            copies.give_back(weight(size) - PLACE);
            self.without_copy += 1;
        }
    }

    /// Removes the oldest events while their places are beyond the share of the session.
    fn drop_places(&mut self) {
        while self.copies.as_ref().is_some_and(Drawn::is_too_much) && self.events.len() > 1 {
            self.drop_oldest();
        }
        drop_room(&mut self.events);
    }

    pub(super) fn read(&self, after: u64) -> Result<Page, StoreError> {
        let trimmed = StoreError::Trimmed {
            oldest: self.trimmed,
        };
        if after < self.trimmed || after > self.last() {
            return Err(trimmed);
        }
        let skip = usize::try_from(after - self.trimmed).unwrap_or(usize::MAX);
        let mut page = Page::default();
        let mut bytes = 0;
        for (number, entry) in (after + 1..).zip(self.events.iter().skip(skip)) {
            let Event::Here(event) = &entry.event else {
                return Err(trimmed);
            };
            bytes += event.len();
            if bytes > PAGE && !page.events.is_empty() {
                return Ok(page);
            }
            page.events.push((number, event.clone()));
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

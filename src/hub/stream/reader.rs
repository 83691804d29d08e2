//! Reader of a stream: the position of one connection, and its state for the owner of the stream.
//!
//! First delivery and resumption differ by the cursor alone.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep, timeout},
};

use super::session_log::SessionLog;
use crate::{
    base::budget::{Budget, Drawn},
    hub::limits::Seats,
    protocol::{Cursor, LISTENER_STREAM, Revision, StreamId},
    state::{LONG_EVENT, LogShare, Page, StoreError},
};

/// The state of a stream, from its owner to its readers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tail {
    /// The number of the last event in the log.
    pub(crate) last: u64,
    /// The epoch of the log that the numbers belong to.
    pub(crate) epoch: u32,
    /// Connections up to this number have to end and reconnect.
    pub(crate) released: u32,
    /// The end of the stream, if it is over.
    pub(crate) end: Option<StreamEnd>,
    /// The number of the connection that gets events; the others get what they resume, and then comments only.
    pub(crate) attached: u32,
    /// The event behind which a connection that is attached again reads on.
    pub(crate) resume: u64,
}

/// The owner's end of a [`Tail`]. Its channel begins with the first reader: most streams are answered
/// as JSON and have none.
#[derive(Debug, Default)]
pub(crate) struct TailSender {
    tail: Tail,
    readers: Option<watch::Sender<Tail>>,
}

impl TailSender {
    /// The tail of a stream in this epoch of the log, with events up to `last`.
    pub(crate) fn new(epoch: u32, last: u64) -> Self {
        let tail = Tail {
            epoch,
            last,
            ..Tail::default()
        };
        Self {
            tail,
            readers: None,
        }
    }

    /// The present state.
    pub(crate) fn get(&self) -> Tail {
        self.tail
    }

    /// Changes the state, and wakes the readers.
    pub(crate) fn modify(&mut self, change: impl FnOnce(&mut Tail)) {
        change(&mut self.tail);
        if let Some(readers) = &self.readers {
            readers.send_replace(self.tail);
        }
    }

    /// The state for a reader.
    pub(crate) fn subscribe(&mut self) -> watch::Receiver<Tail> {
        let tail = self.tail;
        let readers = self.readers.get_or_insert_with(|| watch::Sender::new(tail));
        readers.subscribe()
    }
}

/// The end of a stream for its readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamEnd {
    /// The stream has ended.
    Finished,
    /// The gateway releases the stream; the client reconnects (`retry:`).
    Released,
}

/// The state of one connection, shared between its reader and the owner of the stream, so that a
/// connection that closes needs no message and no room in a queue.
pub(crate) struct Attachment {
    /// The number of the connection within the stream.
    pub(crate) number: u32,
    /// Whether the client named the event behind which the connection reads.
    pub(crate) is_named: bool,
    /// The last event handed to the connection.
    pub(crate) written: AtomicU64,
    /// Bytes of events handed to the connection.
    pub(crate) bytes: AtomicU64,
    /// Milliseconds after `born` at which the connection last took something.
    pub(crate) taken: AtomicU64,
    /// Whether the connection is closed.
    pub(crate) is_closed: AtomicBool,
    /// When the connection was attached.
    pub(crate) born: Instant,
    /// Wakes the session when the connection closes, or catches up while the session waits.
    pub(crate) pulse: Arc<Pulse>,
}

/// The signals between a session and the readers of its streams.
#[derive(Default)]
pub(crate) struct Pulse {
    /// Wakes the session.
    pub(crate) notify: Notify,
    /// Whether the session waits for readers to catch up.
    is_awaited: AtomicBool,
    /// The number of lapses of the lease when the session's fence was last read.
    pub(crate) confirmed: AtomicU32,
    /// The number of streams that ended with a long `retry:`, and one for those at earlier owners.
    long_retries: AtomicU32,
    /// Wakes the other connections after each.
    long_retry: Notify,
}

/// The long delays that connections of a session give their client, from the time of this on.
pub(crate) struct LongRetries {
    pulse: Arc<Pulse>,
    seen: u32,
}

impl LongRetries {
    /// Waits for the next one. Cancel-safe.
    pub(crate) async fn next(&mut self) {
        loop {
            // Made before the number is read: it hears of every one behind that.
            let told = self.pulse.long_retry.notified();
            let number = self.pulse.long_retries.load(Ordering::Acquire);
            if number != self.seen {
                self.seen = number;
                return;
            }
            told.await;
        }
    }
}

impl Pulse {
    /// The pulse of a session whose fence was read after this number of lapses.
    pub(crate) fn new(lapses: u32) -> Self {
        Self {
            confirmed: AtomicU32::new(lapses),
            ..Self::default()
        }
    }

    /// Counts a long `retry:` that an earlier owner of the session may have given.
    pub(super) fn assume_long_retry(&self) {
        self.long_retries.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether a connection of the session has given its client a long delay, or may have at an earlier owner.
    pub(super) fn has_given_long_retry(&self) -> bool {
        self.long_retries.load(Ordering::Acquire) > 0
    }

    /// Sets whether the session waits for readers to catch up.
    pub(crate) fn set_awaited(&self, is_awaited: bool) {
        self.is_awaited.store(is_awaited, Ordering::Relaxed);
    }
}

/// The reader of a stream for one connection. Dropping it detaches the connection; the stream and
/// its calls go on.
pub(crate) struct Reader {
    log: SessionLog,
    stream: StreamId,
    cursor: u64,
    /// The last event that there was when a client that named its cursor came: what it resumes, it gets, whoever comes
    /// after it.
    replay_to: u64,
    is_over: bool,
    is_displaced: bool,
    /// Whether other connections to the stream do not displace this one.
    is_shared: bool,
    tail: watch::Receiver<Tail>,
    attachment: Arc<Attachment>,
    /// What distinguishes the first id of this connection to the listener from those of others; else 0.
    number: u16,
    revision: Option<Revision>,
    seats: Seats,
    /// Events taken since others went first.
    taken: usize,
    /// What is drawn for long events that were returned, until a part of the response has it.
    drawn: Option<Drawn>,
    /// The bytes of those for which there was no room; else 0.
    wanted: u64,
}

/// Time after which it is looked again for room for a long part.
const AGAIN: Duration = Duration::from_millis(50);

/// The events of a reader after which others go first: about a page.
const STEP: usize = 64;

/// The next step of a reader.
#[derive(Debug)]
pub(crate) enum Next {
    /// Events with their ids, oldest first.
    Events(Vec<(String, Bytes)>),
    /// The stream has ended, and all events were read.
    Finished,
    /// The connection must end although the stream has not; the client reconnects.
    Released,
}

impl Reader {
    /// A reader behind event `cursor` of a stream.
    pub(crate) fn new(
        log: SessionLog,
        stream: StreamId,
        cursor: u64,
        tail: watch::Receiver<Tail>,
        attachment: Arc<Attachment>,
        revision: Option<Revision>,
    ) -> Self {
        let replay_to = if attachment.is_named {
            tail.borrow().last
        } else {
            0
        };
        Self {
            log,
            stream,
            cursor,
            replay_to,
            is_over: false,
            is_displaced: false,
            is_shared: false,
            tail,
            attachment,
            number: 0,
            revision,
            seats: Seats::new(),
            taken: 0,
            drawn: None,
            wanted: 0,
        }
    }

    /// Gives the connection a first id of its own.
    pub(super) fn set_number(&mut self, number: u16) {
        self.number = number;
    }

    /// Reads whether or not other connections are attached to the stream.
    pub(super) fn share(&mut self) {
        self.is_shared = true;
    }

    /// Holds the seats of this connection until it closes.
    pub(crate) fn hold(&mut self, seats: Seats) {
        self.seats = seats;
    }

    /// Whether the stream is the listener.
    pub(crate) fn is_listener(&self) -> bool {
        self.stream == LISTENER_STREAM
    }

    /// The revision that the session has negotiated, if any.
    pub(crate) fn revision(&self) -> Option<Revision> {
        self.revision
    }

    /// What the events that are on their way to the client are counted against.
    pub(crate) fn budget(&self) -> &Arc<Budget> {
        self.log.share.memory()
    }

    /// The budgets of the session's events.
    pub(crate) fn budgets(&self) -> &LogShare {
        &self.log.share
    }

    /// The id of the present position, for the priming event.
    pub(crate) fn id(&self) -> String {
        self.log.first_id(self.at(self.cursor), self.number)
    }

    /// The long delays that connections of the session give their client, from now on.
    pub(crate) fn long_retries(&self) -> LongRetries {
        let pulse = Arc::clone(&self.attachment.pulse);
        LongRetries {
            seen: pulse.long_retries.load(Ordering::Acquire),
            pulse,
        }
    }

    /// Tells the other connections of the session that this one gave the client a long delay.
    pub(crate) fn gave_long_retry(&self) {
        let pulse = &self.attachment.pulse;
        pulse.long_retries.fetch_add(1, Ordering::AcqRel);
        pulse.long_retry.notify_waiters();
    }

    /// Whether a connection of the session has given its client a long delay, or may have at an earlier owner.
    pub(crate) fn has_given_long_retry(&self) -> bool {
        self.attachment.pulse.has_given_long_retry()
    }

    fn has_given_nothing(&self) -> bool {
        let given = self.attachment.bytes.load(Ordering::Relaxed);
        !self.attachment.is_named && given == 0
    }

    fn id_of(&self, seq: u64) -> String {
        self.log.event_id(self.at(seq))
    }

    fn at(&self, seq: u64) -> Cursor {
        Cursor {
            stream: self.stream,
            epoch: self.tail.borrow().epoch,
            seq,
        }
    }

    /// Marks the connection as alive: its peer takes what is sent.
    pub(crate) fn took(&self) {
        let age = u64::try_from(self.attachment.born.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.attachment.taken.store(age, Ordering::Relaxed);
    }

    /// Waits for the next step. Cancel-safe: nothing is taken before it is returned.
    pub(crate) async fn next(&mut self) -> Next {
        let mut has_turn = false;
        self.drawn = None;
        loop {
            if self.is_over {
                return Next::Finished;
            }
            let tail = *self.tail.borrow_and_update();
            if tail.released >= self.attachment.number {
                return Next::Released;
            }
            if tail.end.is_none() && !self.is_served() {
                // Comments only: another replica may be the one to send events.
                if self.tail.changed().await.is_err() {
                    return Next::Released;
                }
                continue;
            }
            let is_attached = self.is_shared || tail.attached == self.attachment.number;
            if !self.takes_over(tail, is_attached) {
                return Next::Released;
            }
            let last = self.last(tail, is_attached);
            if last > self.cursor {
                if !has_turn && self.has_to_wait() {
                    self.budget().others_first().await;
                    (self.taken, has_turn) = (0, true);
                    continue;
                }
                match self.read(last).await {
                    Ok(None) if tail.end == Some(StreamEnd::Released) => return Next::Released,
                    Ok(None) => self.wait_for_room().await,
                    Ok(Some(page)) if page.events.is_empty() && page.is_end => {
                        return Next::Finished;
                    }
                    // A log without an event that it has acknowledged: not to be asked again at once.
                    Ok(Some(page)) if page.events.is_empty() => return Next::Released,
                    Ok(Some(page)) => {
                        let events = self.take(page, last);
                        if !events.is_empty() {
                            return Next::Events(events);
                        }
                    }
                    // The budget has taken events that nobody has read, and no id was sent by which the client
                    // could ask for those that are left: it gets these, the answer among them.
                    Err(StoreError::Trimmed { oldest })
                        if oldest > self.cursor && self.has_given_nothing() =>
                    {
                        self.cursor = oldest;
                    }
                    // 2025-11-25 defines no error on an open stream; the resume gets 410.
                    Err(_) => return Next::Released,
                }
                continue;
            }
            match tail.end {
                Some(StreamEnd::Finished) => return Next::Finished,
                Some(StreamEnd::Released) => return Next::Released,
                None => {}
            }
            if self.tail.changed().await.is_err() {
                return Next::Released;
            }
        }
    }

    /// Goes on where the connection ended that was attached meanwhile; false if its client has to ask again.
    fn takes_over(&mut self, tail: Tail, is_attached: bool) -> bool {
        if is_attached && self.is_displaced && tail.resume > self.cursor {
            // Connections of one client can arrive in another order than it opened them, and
            // events taken by the other connection may never have arrived. The client knows
            // its last event.
            if self.attachment.is_named {
                return false;
            }
            self.cursor = tail.resume;
        }
        self.is_displaced = !is_attached;
        true
    }

    /// Reads the next page, and draws what a long one takes on its way to the client; none while there is no room for it.
    async fn read(&mut self, last: u64) -> Result<Option<Page>, StoreError> {
        let under_way = &self.log.share.under_way;
        // Not read again before, from a store elsewhere each time.
        if self.wanted > 0 && !under_way.has_room(self.wanted) {
            return Ok(None);
        }
        let page = self.log.read(self.stream, self.cursor).await?;
        let events = page.events.iter().filter(|(number, _)| *number <= last);
        let bytes: usize = events.map(|(_, event)| event.len()).sum();
        self.wanted = 0;
        if bytes >= LONG_EVENT {
            self.drawn = self.log.share.under_way.draw(bytes as u64);
            if self.drawn.is_none() {
                self.wanted = bytes as u64;
                return Ok(before_long(page));
            }
        }
        Ok(Some(page))
    }

    /// Waits until there may be room, or something else has happened.
    async fn wait_for_room(&mut self) {
        // Boxed: few wait, and every open stream keeps room for it.
        Box::pin(async {
            if let Ok(Err(_)) = timeout(AGAIN, self.tail.changed()).await {
                sleep(AGAIN).await;
            }
        })
        .await;
    }

    /// Takes what was drawn for a part that is no event of its stream, until the response has that part.
    pub(crate) fn give(&mut self, drawn: Drawn) {
        self.drawn = Some(drawn);
    }

    /// What is drawn for a part of a response with the events that were returned last, until the client has taken it.
    pub(crate) fn drawn_for(&mut self, bytes: usize) -> Drawn {
        let wanted = bytes as u64;
        let Some(mut drawn) = self.drawn.take() else {
            return self.log.share.on_its_way(bytes).hold(wanted);
        };
        drawn.add(wanted.saturating_sub(drawn.amount()));
        drawn.give_back(drawn.amount().saturating_sub(wanted));
        drawn
    }

    /// The last event that it hands to its connection now.
    fn last(&self, tail: Tail, is_attached: bool) -> u64 {
        if is_attached {
            tail.last
        } else {
            tail.last.min(self.replay_to)
        }
    }

    /// Whether others go first: it has had its turn, or others of its tenant stand in line. A thousand
    /// connections to which servers send without end are not written to at once.
    fn has_to_wait(&self) -> bool {
        self.taken >= STEP || self.budget().is_busy()
    }

    /// Whether this replica may serve the session now.
    fn is_served(&self) -> bool {
        let confirmed = &self.attachment.pulse.confirmed;
        self.log.owner.serves(confirmed.load(Ordering::Acquire))
    }

    /// Takes the acknowledged events, up to number `last`, but for withdrawn ones.
    fn take(&mut self, mut page: Page, last: u64) -> Vec<(String, Bytes)> {
        let is_acknowledged = |(number, _): &(u64, Bytes)| *number <= last;
        let acknowledged = page.events.partition_point(is_acknowledged);
        self.is_over = page.is_end && acknowledged == page.events.len();
        page.events.truncate(acknowledged);
        self.taken += page.events.len();
        let bytes: usize = page.events.iter().map(|(_, event)| event.len()).sum();
        if let Some((last, _)) = page.events.last() {
            self.cursor = *last;
        }
        self.attachment
            .written
            .store(self.cursor, Ordering::Relaxed);
        self.attachment
            .bytes
            .fetch_add(bytes as u64, Ordering::Relaxed);
        self.took();
        if self.attachment.pulse.is_awaited.load(Ordering::Relaxed) {
            self.attachment.pulse.notify.notify_one();
        }
        self.log
            .withdrawn
            .remove_from(self.stream, &mut page.events);
        if page.events.is_empty() {
            self.drawn = None;
        }
        page.events
            .into_iter()
            .map(|(seq, event)| (self.id_of(seq), event))
            .collect()
    }
}

/// The part of a page that needs no room; none if it begins with a long event.
fn before_long(mut page: Page) -> Option<Page> {
    let mut bytes = 0;
    let events = page.events.iter().take_while(|(_, event)| {
        bytes += event.len();
        bytes < LONG_EVENT
    });
    let short = events.count();
    page.events.truncate(short);
    page.is_end = false;
    (short > 0).then_some(page)
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.attachment.is_closed.store(true, Ordering::Relaxed);
        self.attachment.pulse.notify.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::super::reader::*;

    /// A store elsewhere has both in one page, and nothing came until there was room for the long one.
    #[test]
    fn short_events_do_not_wait_behind_a_long_one() {
        let page = |sizes: &[usize]| Page {
            events: (1..)
                .zip(sizes.iter().map(|size| vec![b'x'; *size].into()))
                .collect(),
            is_end: true,
        };
        let short = before_long(page(&[100, 200, LONG_EVENT, 300])).unwrap();
        assert_eq!((short.events.len(), short.is_end), (2, false));
        let part = before_long(page(&[LONG_EVENT - 1, 1])).unwrap();
        assert_eq!(part.events.len(), 1, "both are as long as a long one");
        assert!(before_long(page(&[LONG_EVENT, 1])).is_none());
    }
}

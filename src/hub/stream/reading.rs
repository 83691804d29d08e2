//! Reading: one connection's place in a stream.
//!
//! First delivery and resumption differ by the cursor alone.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
};

use bytes::Bytes;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use crate::hub::{limits::Seats, ownership::Owner};
use crate::{
    protocol::{Cursor, EventKey, LISTENER, Revision, StreamId},
    state::{EventLog, Page, SessionId},
};

/// The state of a stream, from its owner to its readers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tail {
    /// The number of the last event in the log.
    pub(crate) last: u64,
    /// The life of the log that its numbers belong to.
    pub(crate) epoch: u32,
    /// Connections up to this number have to end, and come again.
    pub(crate) released: u32,
    /// Whether and how the stream is over.
    pub(crate) end: Option<StreamEnd>,
    /// The one connection that gets events; the others get comments only.
    pub(crate) attached: u32,
    /// Where a connection reads on that is attached again.
    pub(crate) resume: u64,
}

/// How a stream is over for its readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamEnd {
    /// Nothing will come any more.
    Finished,
    /// The gateway lets go of it: come again (`retry:`).
    Released,
}

/// The state of one connection, for the owner of its stream. Shared with the reader, so that a connection
/// that goes needs no message and no room in a queue.
pub(crate) struct Attachment {
    /// Its number within the stream.
    pub(crate) number: u32,
    /// Whether its client named the event behind which it reads.
    pub(crate) is_named: bool,
    /// The last event handed to the connection.
    pub(crate) written: AtomicU64,
    /// Bytes of events handed to the connection.
    pub(crate) bytes: AtomicU64,
    /// Milliseconds after `born` at which the connection last took something.
    pub(crate) taken: AtomicU64,
    /// Whether the connection is gone.
    pub(crate) is_closed: AtomicBool,
    /// When it was attached.
    pub(crate) born: Instant,
    /// Wakes the session when the connection goes, or has caught up while it waits.
    pub(crate) pulse: Arc<Pulse>,
}

/// How readers wake the session that owns their stream.
#[derive(Default)]
pub(crate) struct Pulse {
    /// The session waits here.
    pub(crate) notify: Notify,
    /// Whether the session waits for readers to catch up.
    pub(crate) is_choked: AtomicBool,
    /// The lapse of the lease after which the session's fence was read.
    pub(crate) confirmed: AtomicU32,
}

/// One connection's place in a stream. Dropping it detaches the connection; the stream and
/// its calls go on.
pub(crate) struct Reading {
    log: Arc<dyn EventLog>,
    owner: Arc<Owner>,
    key: EventKey,
    session: SessionId,
    stream: StreamId,
    cursor: u64,
    is_over: bool,
    is_displaced: bool,
    tail: watch::Receiver<Tail>,
    attachment: Arc<Attachment>,
    revision: Option<Revision>,
    seats: Seats,
}

/// The next step of a connection.
#[derive(Debug)]
pub(crate) enum Next {
    /// Events with their ids, oldest first.
    Events(Vec<(String, Bytes)>),
    /// The stream has ended, and everything was read.
    Finished,
    /// The connection must end although the stream has not: come again.
    Released,
}

impl Reading {
    /// A place behind an event of a stream.
    pub(crate) fn new(
        (log, owner): (Arc<dyn EventLog>, Arc<Owner>),
        key: EventKey,
        session: SessionId,
        (stream, cursor): (StreamId, u64),
        tail: watch::Receiver<Tail>,
        attachment: Arc<Attachment>,
        revision: Option<Revision>,
    ) -> Self {
        Self {
            log,
            owner,
            key,
            session,
            stream,
            cursor,
            is_over: false,
            is_displaced: false,
            tail,
            attachment,
            revision,
            seats: Seats::new(),
        }
    }

    /// Keeps the places of this connection among the streams for as long as it lives.
    pub(crate) fn hold(&mut self, seats: Seats) {
        self.seats = seats;
    }

    /// Whether its stream is the listener.
    pub(crate) fn is_listener(&self) -> bool {
        self.stream == LISTENER
    }

    /// The revision that the session negotiated, if it has.
    pub(crate) fn revision(&self) -> Option<Revision> {
        self.revision
    }

    /// The id of the place itself, for the priming event.
    pub(crate) fn id(&self) -> String {
        self.id_of(self.cursor)
    }

    fn id_of(&self, seq: u64) -> String {
        let cursor = Cursor {
            stream: self.stream,
            epoch: self.tail.borrow().epoch,
            seq,
        };
        self.key.encode(self.session.as_str(), cursor)
    }

    /// Notes that the connection takes what it is given: it is not a peer that vanished.
    pub(crate) fn took(&self) {
        let age = u64::try_from(self.attachment.born.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.attachment.taken.store(age, Ordering::Relaxed);
    }

    /// Waits for the next step. Cancel-safe: nothing is taken before it is returned.
    pub(crate) async fn next(&mut self) -> Next {
        loop {
            if self.is_over {
                return Next::Finished;
            }
            let tail = *self.tail.borrow_and_update();
            if tail.released >= self.attachment.number {
                return Next::Released;
            }
            if tail.end.is_none() && !self.is_served() {
                // Comments only: events may be another replica's to send.
                if self.tail.changed().await.is_err() {
                    return Next::Released;
                }
                continue;
            }
            let is_attached = tail.attached == self.attachment.number;
            if is_attached && self.is_displaced && tail.resume > self.cursor {
                // Connections of one client can arrive in another order than it made them:
                // what the other took may never have arrived. It knows what it has.
                if self.attachment.is_named {
                    return Next::Released;
                }
                self.cursor = tail.resume;
            }
            self.is_displaced = !is_attached;
            if is_attached && tail.last > self.cursor {
                match self.log.read(&self.session, self.stream, self.cursor).await {
                    Ok(page) if page.events.is_empty() && page.is_end => return Next::Finished,
                    Ok(page) => return self.take(page, tail.last),
                    // 2025-11-25 has no word for it on an open stream; the resume gets 410.
                    Err(_) => return Next::Released,
                }
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

    /// Whether the session is this replica's at this moment.
    fn is_served(&self) -> bool {
        let confirmed = &self.attachment.pulse.confirmed;
        self.owner.serves(confirmed.load(Ordering::Acquire))
    }

    /// Takes the acknowledged events: up to number `last`.
    fn take(&mut self, mut page: Page, last: u64) -> Next {
        let is_kept = |(number, _): &(u64, Bytes)| *number <= last;
        let kept = page.events.partition_point(is_kept);
        self.is_over = page.is_end && kept == page.events.len();
        page.events.truncate(kept);
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
        if self.attachment.pulse.is_choked.load(Ordering::Relaxed) {
            self.attachment.pulse.notify.notify_one();
        }
        Next::Events(
            page.events
                .into_iter()
                .map(|(seq, event)| (self.id_of(seq), event))
                .collect(),
        )
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.attachment.is_closed.store(true, Ordering::Relaxed);
        self.attachment.pulse.notify.notify_one();
    }
}

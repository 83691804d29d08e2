//! One stream of a session: its calls, its held response, and its connections.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::{sync::oneshot, time::Instant};

use super::{
    answer::{Answer, Form},
    reader::{Attachment, Pulse, Reader, TailSender},
};
use crate::state::memory::{ENTRY, PAGE};

/// The limits of the streams of a session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamLimits {
    /// The most streams of calls; the most connections are twice as many.
    pub(crate) streams: usize,
    /// The events that the log keeps; a reader that is half as far behind makes the child wait.
    pub(crate) events: u64,
    /// The same in bytes.
    pub(crate) bytes: u64,
    /// The time after which a connection that took nothing does not count as alive.
    pub(crate) silence: Duration,
}

/// One stream.
pub(crate) struct Stream {
    /// The number of calls whose responses it waits for; the listener never ends with them.
    pub(crate) calls: usize,
    /// The raw ids of those calls, if another replica may have to answer them.
    pub(crate) ids: Vec<Box<[u8]>>,
    /// The changes of them since they were written, on a stream that the log knows.
    pub(super) changes: u32,
    /// The response while its headers are held.
    pub(crate) held: Option<Held>,
    /// The response that waits until the log has opened the stream.
    pub(super) opening: Option<(oneshot::Sender<Answer>, Box<Reader>)>,
    pub(crate) is_batch: bool,
    /// Whether the end of the stream was written.
    pub(super) is_ending: bool,
    /// The number of the last event written, acknowledged or not.
    pub(crate) last: u64,
    pub(crate) tail: TailSender,
    pub(crate) bytes: u64,
    written: u64,
    pub(super) attachments: Vec<Arc<Attachment>>,
    last_attachment: u32,
    /// Since when the stream has no connection.
    pub(super) detached: Option<Instant>,
    /// Whether the child no longer waits for the attached connection.
    pub(super) is_given_up: bool,
}

/// A response whose headers have not been sent.
pub(crate) struct Held {
    pub(crate) reply: oneshot::Sender<Answer>,
    pub(crate) form: Form,
    /// The time at which the response becomes SSE without a message.
    pub(crate) until: Option<Instant>,
    /// The responses so far.
    pub(crate) done: Vec<Bytes>,
}

impl Stream {
    pub(crate) fn new(calls: usize, held: Option<Held>, is_batch: bool, epoch: u32) -> Self {
        Self {
            calls,
            ids: Vec::new(),
            changes: 0,
            held,
            opening: None,
            is_batch,
            is_ending: false,
            last: 0,
            tail: TailSender::new(epoch, 0),
            bytes: 0,
            written: 0,
            attachments: Vec::new(),
            last_attachment: 0,
            detached: Some(Instant::now()),
            is_given_up: false,
        }
    }

    /// A stream whose events up to `last` are in the log.
    pub(crate) fn known(last: u64, epoch: u32) -> Self {
        Self {
            last,
            written: last,
            tail: TailSender::new(epoch, last),
            ..Self::new(0, None, false, epoch)
        }
    }

    /// The calls that the next owner has to answer, and `more`: an array of raw ids.
    pub(super) fn open_calls<'a>(&'a self, more: impl IntoIterator<Item = &'a [u8]>) -> Bytes {
        let ids: Vec<&[u8]> = self.ids.iter().map(|id| &**id).chain(more).collect();
        [b"[", &*ids.join(&b","[..]), b"]"].concat().into()
    }

    /// The same for a write.
    pub(super) fn calls_to_write(&mut self) -> Bytes {
        self.changes = 0;
        self.open_calls([])
    }

    /// Removes one call of this raw id: its client may have given others the same.
    pub(super) fn forget_call(&mut self, id: &[u8]) {
        if let Some(at) = self.ids.iter().position(|known| **known == *id) {
            self.ids.remove(at);
        }
    }

    /// The last event that was handed to a connection.
    pub(crate) fn written(&self) -> u64 {
        let of_all = self
            .attachments
            .iter()
            .map(|attachment| attachment.written.load(Ordering::Relaxed));
        of_all.max().unwrap_or(0).max(self.written)
    }

    /// Attaches a connection behind event `cursor`; it gets the events from now on.
    pub(crate) fn attach(
        &mut self,
        cursor: u64,
        is_named: bool,
        pulse: &Arc<Pulse>,
    ) -> Arc<Attachment> {
        self.written = self.written();
        self.last_attachment += 1;
        let attachment = Arc::new(Attachment {
            number: self.last_attachment,
            is_named,
            written: AtomicU64::new(cursor),
            bytes: AtomicU64::new(self.bytes),
            taken: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
            born: Instant::now(),
            pulse: Arc::clone(pulse),
        });
        self.attachments.push(Arc::clone(&attachment));
        (self.detached, self.is_given_up) = (None, false);
        let number = attachment.number;
        self.tail.modify(|tail| tail.attached = number);
        attachment
    }

    /// Ends all connections; later ones can read the stream.
    pub(crate) fn release(&mut self) {
        let last = self.last_attachment;
        self.tail.modify(|tail| tail.released = last);
    }

    /// Removes closed connections; the youngest that is left is attached again.
    pub(crate) fn sweep(&mut self, now: Instant) {
        let is_open = |attachment: &Arc<Attachment>| !attachment.is_closed.load(Ordering::Relaxed);
        if self.attachments.iter().all(is_open) {
            return;
        }
        self.written = self.written();
        self.attachments.retain(is_open);
        match self.attachments.last() {
            Some(last) if last.number != self.tail.get().attached => {
                let (number, written) = (last.number, self.written);
                last.bytes.store(self.bytes, Ordering::Relaxed);
                self.tail
                    .modify(|tail| (tail.attached, tail.resume) = (number, written));
            }
            Some(_) => {}
            None => {
                self.detached.get_or_insert(now);
            }
        }
    }

    /// Whether it had a connection, and has been without one for this long.
    pub(super) fn is_abandoned(&self, after: Duration) -> bool {
        let is_left = |since: Instant| since.elapsed() >= after;
        self.last_attachment > 0 && self.detached.is_some_and(is_left)
    }

    /// Whether the attached connection is so far behind that retention may overtake it: half of what the limits
    /// allow, or by more than the log has `room` for.
    pub(crate) fn is_behind(&self, limits: StreamLimits, room: u64) -> bool {
        self.attachments.last().is_some_and(|attachment| {
            let last = self.tail.get().last;
            let events = last.saturating_sub(attachment.written.load(Ordering::Relaxed));
            let bytes = self
                .bytes
                .saturating_sub(attachment.bytes.load(Ordering::Relaxed));
            let held = bytes + events * ENTRY as u64;
            events > limits.events / 2 || bytes > limits.bytes / 2 || held > room.max(LEAST)
        })
    }

    /// Whether no connection takes its events, and many have not been taken.
    pub(crate) fn is_unread(&self) -> bool {
        (self.attachments.is_empty() || self.is_given_up)
            && self.tail.get().last.saturating_sub(self.written()) > UNTAKEN
    }
}

/// Bytes by which a connection may be behind, however little room the log has: it takes as much at once.
const LEAST: u64 = PAGE as u64;

/// Events that a connection which comes back finds without any pause.
const UNTAKEN: u64 = 64;

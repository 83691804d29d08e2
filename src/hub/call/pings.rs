//! Pings of the client of a session, which its listener carries (`session.ping`).

use std::time::Duration;

use tokio::time::Instant;

use crate::state::Fence;

/// When the client is pinged, and the ping that it has not answered.
#[derive(Default)]
pub(crate) struct Pings {
    /// The time of the next ping; none while no connection can carry one.
    next: Option<Instant>,
    /// The number of the last ping.
    last: u64,
    /// The number of the event on the listener that has it, while it is not answered.
    open: Option<u64>,
}

impl Pings {
    /// Whether a ping is due; the first one after `every`.
    pub(crate) fn is_due(&mut self, now: Instant, every: Duration) -> bool {
        *self.next.get_or_insert(now + every) <= now
    }

    /// The time of the next ping.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.next
    }

    /// The raw id of a new ping. It is no id of an ask, which is a number, and no replica uses it twice:
    /// "The request ID MUST NOT have been previously used by the requestor within the same session"
    /// (2025-11-25 basic, "Requests").
    pub(crate) fn begin(&mut self, owner: Fence) -> String {
        self.last += 1;
        self.id(owner)
    }

    fn id(&self, owner: Fence) -> String {
        format!("\"ping-{}-{}\"", owner.0, self.last)
    }

    /// The ping was sent as this event; the client has to answer before the next one.
    pub(crate) fn sent(&mut self, event: u64, next: Instant) {
        (self.open, self.next) = (Some(event), Some(next));
    }

    /// Takes the ping that the client has not answered: the number of its event.
    pub(crate) fn take_unanswered(&mut self) -> Option<u64> {
        self.open.take()
    }

    /// No connection can carry a ping.
    pub(crate) fn pause(&mut self) {
        (self.open, self.next) = (None, None);
    }

    /// Takes the answer of the client; false if it answers no ping.
    pub(crate) fn answer(&mut self, owner: Fence, id: &[u8]) -> bool {
        self.id(owner).as_bytes() == id && self.open.take().is_some()
    }
}

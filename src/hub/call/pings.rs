//! Pings of the client of a session, which its listener carries (`session.ping`).

use std::time::Duration;

use tokio::time::Instant;

use crate::backend::dialect::AskId;

/// When the client is pinged, and the ping that it has not answered.
#[derive(Default)]
pub(crate) struct Pings {
    /// The time of the next ping; none while no connection can carry one.
    next: Option<Instant>,
    /// The ping under way, and the number of its event on the listener.
    open: Option<(AskId, u64)>,
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

    /// A ping was sent; the client has to answer before the next one.
    pub(crate) fn sent(&mut self, id: AskId, number: u64, next: Instant) {
        (self.open, self.next) = (Some((id, number)), Some(next));
    }

    /// Takes the ping that the client has not answered: the number of its event.
    pub(crate) fn take_unanswered(&mut self) -> Option<u64> {
        self.open.take().map(|(_, number)| number)
    }

    /// No connection can carry a ping.
    pub(crate) fn pause(&mut self) {
        *self = Self::default();
    }

    /// Takes the answer of the client; false if it answers no ping.
    pub(crate) fn answer(&mut self, id: &[u8]) -> bool {
        let is_answer = |(open, _): &mut (AskId, u64)| open.to_string().as_bytes() == id;
        self.open.take_if(is_answer).is_some()
    }
}

//! Attachment of a connection to a stream: to the listener, or to the stream of an event id.

use std::time::Duration;

use super::{
    entry::Stream,
    reader::{Reader, StreamEnd},
    session_log::unreadable,
    table::Streams,
};
use crate::{
    error::Error,
    hub::ownership::STORE_AWAY,
    protocol::{Cursor, LISTENER_STREAM, Revision, StreamId},
    state::StoreError,
};

impl Streams {
    /// Attaches a connection to the listener (no cursor), or to the stream of a cursor.
    ///
    /// # Errors
    ///
    /// `Gone` for a cursor behind which events are trimmed, `NoCursor` for a cursor of no event, `Busy` for
    /// one of an event that the log has not acknowledged, `Limit` for too many connections; `Ok(None)` at the end
    /// of a stream that has ended.
    pub(crate) async fn attach(&mut self, cursor: Option<Cursor>) -> Result<Option<Reader>, Error> {
        let attached: usize = self
            .open
            .values()
            .map(|stream| stream.attachments.len())
            .sum();
        if attached >= self.limits.streams * 2 {
            let retry = Duration::from_secs(1);
            return Err(Error::Limit {
                what: "connections of the session",
                retry,
            });
        }
        if cursor.is_some_and(|cursor| cursor.epoch != self.writes.epoch()) {
            return Err(Error::Gone);
        }
        let id = cursor.map_or(LISTENER_STREAM, |cursor| cursor.stream);
        let (last, begun, written) = match self.open.get(&id) {
            Some(stream) => (stream.tail.get().last, stream.last, stream.written()),
            None => {
                return self
                    .attach_ended(id, cursor.map_or(0, |cursor| cursor.seq))
                    .await;
            }
        };
        // Each of several clients hears what comes from now on.
        let first = if self.has_many_listeners {
            last
        } else {
            written
        };
        let mut seq = cursor.map_or(first, |cursor| cursor.seq);
        if seq > last {
            // Another replica may have read it in the log, whose acknowledgement is late.
            let is_under_way = seq <= begun;
            return Err(if is_under_way {
                STORE_AWAY
            } else {
                Error::NoCursor
            });
        }
        if seq < last {
            match self.log.read(id, seq).await {
                Ok(_) => {}
                Err(StoreError::Trimmed { oldest }) if cursor.is_none() => seq = oldest,
                Err(error) => return Err(unreadable(error)),
            }
        }
        let Some(stream) = self.open.get_mut(&id) else {
            return Err(Error::Bug("a stream vanished"));
        };
        let attachment = stream.attach(seq, cursor.is_some(), &self.pulse);
        let tail = stream.tail.subscribe();
        Ok(Some(self.reader(id, seq, tail, attachment)))
    }

    /// The stream on which event `number` of stream `id` is cancelled: the listener, once that one has ended. A client
    /// that resumes it would get the event after its cancellation, and gets it no more.
    pub(crate) fn cancelled_on(&self, id: StreamId, number: u64) -> StreamId {
        let stream = self.open.get(&id);
        if stream.is_some_and(|stream| !stream.is_ending) {
            return id;
        }
        self.withdraw(id, number);
        LISTENER_STREAM
    }

    /// Whether each stream begins with an id, by which a client may ask for it before it had an event.
    pub(super) fn has_ids(&self) -> bool {
        self.revision.is_some_and(Revision::has_priming)
    }

    /// The time without a connection after which the listener is abandoned. Clients that have an id for each stream are
    /// back before, by whichever delay they were given, and name the last event of the listener.
    pub(crate) fn abandoned_after(&self, retry: Duration) -> Duration {
        let mut after = retry.saturating_mul(4);
        if self.pulse.has_given_long_retry() {
            after = after.saturating_add(RETRY_AFTER_END);
        }
        if !self.log.owner.is_alone() {
            // Another replica may look for the owner in place of the client.
            after = after.saturating_add(RECONNECT_TIMEOUT);
        }
        after
    }

    async fn attach_ended(&mut self, id: StreamId, seq: u64) -> Result<Option<Reader>, Error> {
        match self.log.read(id, seq).await {
            Ok(page) if page.events.is_empty() => return Ok(None),
            Ok(_) => {}
            Err(error) => return Err(unreadable(error)),
        }
        // Nothing is written to this stream any more.
        let mut stream = Stream::known(seq, self.writes.epoch());
        let attachment = stream.attach(seq, true, &self.pulse);
        stream.tail.modify(|tail| {
            (tail.last, tail.end) = (u64::MAX, Some(StreamEnd::Finished));
        });
        Ok(Some(self.reader(
            id,
            seq,
            stream.tail.subscribe(),
            attachment,
        )))
    }
}

/// Shortest delay before clients ask again for a stream that ended without a result. The other streams of the session
/// reset it to the usual delay, those that are open and those that begin later.
pub(crate) const RETRY_AFTER_END: Duration = Duration::from_secs(15);
/// Time limit for finding the next owner of a stream that is relayed. Beyond it the client's own attempt is as good.
pub(crate) const RECONNECT_TIMEOUT: Duration = Duration::from_secs(10);

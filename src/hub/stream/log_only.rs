//! Log-only stream: read from the event log by a replica that does not own the session, while the
//! owner is out of reach.
//!
//! The log holds only events that were written under the fence of their owner, so they are valid.
//! Later events are written by the owner or by the next one.

use bytes::Bytes;

use super::session_log::{SessionLog, unreadable};
use crate::{
    error::Error,
    hub::limits::Seats,
    protocol::{Cursor, Revision},
    state::Page,
};

/// The position of a connection in a log-only stream.
pub(crate) struct LogOnlyStream {
    log: SessionLog,
    cursor: Cursor,
    revision: Option<Revision>,
    _seats: Seats,
}

impl LogOnlyStream {
    /// Starts to read behind an event; none at the end of a stream that has ended.
    ///
    /// # Errors
    ///
    /// Those of [`Self::next`].
    pub(crate) async fn begin(
        log: SessionLog,
        cursor: Cursor,
        revision: Option<Revision>,
        seats: Seats,
    ) -> Result<Option<Self>, Error> {
        let stream = Self {
            log,
            cursor,
            revision,
            _seats: seats,
        };
        let page = stream.page().await?;
        let is_over = page.is_end && page.events.is_empty();
        Ok((!is_over).then_some(stream))
    }

    /// The revision that the session negotiated.
    pub(crate) fn revision(&self) -> Option<Revision> {
        self.revision
    }

    /// The id of the present position, for the priming event.
    pub(crate) fn id(&self) -> String {
        self.log.event_id(self.cursor)
    }

    /// The next events with their ids, possibly none yet; `None` behind the end of the stream.
    ///
    /// # Errors
    ///
    /// `Gone` if events behind the position are trimmed, `Busy` while the store is away.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<(String, Bytes)>>, Error> {
        let page = self.page().await?;
        if page.is_end && page.events.is_empty() {
            return Ok(None);
        }
        let mut events = Vec::with_capacity(page.events.len());
        for (number, event) in page.events {
            self.cursor.seq = number;
            events.push((self.id(), event));
        }
        Ok(Some(events))
    }

    async fn page(&self) -> Result<Page, Error> {
        let cursor = self.cursor;
        // Without a lease this replica does not know whether the store has begun another epoch.
        self.log.owner.check()?;
        if cursor.epoch != self.log.owner.epoch() {
            return Err(Error::Gone);
        }
        let read = self.log.read(cursor.stream, cursor.seq);
        read.await.map_err(unreadable)
    }
}

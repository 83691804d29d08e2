//! Stream that is read from the log alone, by a replica that does not own its session, while the
//! owner is out of reach.
//!
//! The log holds only events that were written under the fence of their owner, so they are good.
//! Later events, and their time, are the business of the owner or of the next one.

use std::sync::Arc;

use bytes::Bytes;

use super::attach::unread;
use crate::{
    error::Error,
    hub::{limits::Seats, ownership::Owner},
    protocol::{Cursor, EventKey, Revision},
    state::{EventLog, Page, SessionId},
};

/// A place in such a stream.
pub(crate) struct Unowned {
    log: Arc<dyn EventLog>,
    owner: Arc<Owner>,
    key: EventKey,
    session: SessionId,
    cursor: Cursor,
    revision: Option<Revision>,
    _seats: Seats,
}

impl Unowned {
    /// Begins to read behind an event; none at the end of a stream that has ended.
    ///
    /// # Errors
    ///
    /// Those of [`Self::next`].
    pub(crate) async fn begin(
        (log, owner): (Arc<dyn EventLog>, Arc<Owner>),
        key: EventKey,
        (session, cursor): (SessionId, Cursor),
        revision: Option<Revision>,
        seats: Seats,
    ) -> Result<Option<Self>, Error> {
        let unowned = Self {
            log,
            owner,
            key,
            session,
            cursor,
            revision,
            _seats: seats,
        };
        let page = unowned.page().await?;
        let is_over = page.is_end && page.events.is_empty();
        Ok((!is_over).then_some(unowned))
    }

    /// The revision that the session negotiated.
    pub(crate) fn revision(&self) -> Option<Revision> {
        self.revision
    }

    /// The id of the place itself, for the priming event.
    pub(crate) fn id(&self) -> String {
        self.key.encode(self.session.as_str(), self.cursor)
    }

    /// The events by now, with ids, which may be none yet; `None` behind the end of the stream.
    ///
    /// # Errors
    ///
    /// `Gone` where events behind the place are not kept, `Busy` while the store is away.
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
        // Without a lease this replica does not know whether the store has begun another life.
        self.owner.check()?;
        if cursor.epoch != self.owner.epoch() {
            return Err(Error::Gone);
        }
        let read = self.log.read(&self.session, cursor.stream, cursor.seq);
        read.await.map_err(unread)
    }
}

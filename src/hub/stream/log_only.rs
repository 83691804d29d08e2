//! A stream that is read from the log alone: by a replica that does not own its session, while nobody
//! can reach the one that does (DESIGN section 5, "Claims").
//!
//! What is in the log is good whoever wrote it: it was kept under the owner's fence. What comes behind
//! it, and when, only the owner knows, or the next one.

use std::sync::Arc;

use bytes::Bytes;

use super::attach::unread;
use crate::hub::{
    Core, Hub,
    limits::Seats,
    ownership::{AWAY, place::is_of},
    session::Remembered,
};
use crate::{
    auth::Access,
    error::Error,
    protocol::{Cursor, Revision},
    state::{Page, SessionId},
};

/// A place in such a stream.
pub(crate) struct Unowned {
    core: Arc<Core>,
    session: SessionId,
    cursor: Cursor,
    revision: Option<Revision>,
    _seats: Seats,
}

impl Hub {
    /// Reads on behind an event without the owner of the session; none at the end of a stream that
    /// has ended.
    ///
    /// # Errors
    ///
    /// Those of [`Hub::attach`]; `Busy` while the store is away.
    pub(crate) async fn read_on(
        &self,
        access: &Access,
        id: &str,
        last_event_id: &[u8],
    ) -> Result<Option<Unowned>, Error> {
        let core = &self.0;
        let session = SessionId(id.into());
        let found = core.directory.find(&session).await.map_err(|_| AWAY)?;
        let Some(found) = found.filter(|found| is_of(found, access)) else {
            return Err(core.nowhere().await);
        };
        let cursor = core.key.decode(id, last_event_id).ok_or(Error::NoCursor)?;
        let seats = core.limits.stream(access).await?;
        let remembered = Remembered::parse(&found.record.kept);
        let unowned = Unowned {
            core: Arc::clone(core),
            session,
            cursor,
            revision: remembered.and_then(|remembered| remembered.revision()),
            _seats: seats,
        };
        let page = unowned.page().await?;
        let is_over = page.is_end && page.events.is_empty();
        Ok((!is_over).then_some(unowned))
    }
}

impl Unowned {
    /// The revision that the session negotiated.
    pub(crate) fn revision(&self) -> Option<Revision> {
        self.revision
    }

    /// The id of the place itself, for the priming event.
    pub(crate) fn id(&self) -> String {
        self.core.key.encode(self.session.as_str(), self.cursor)
    }

    /// What is there by now, with ids, which may be nothing yet; none behind the end of the stream.
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
        let (core, cursor) = (&self.core, self.cursor);
        // While this replica does not know whether it is another life of the store, nobody does.
        core.owner.check()?;
        if cursor.epoch != core.owner.epoch() {
            return Err(Error::Gone);
        }
        let read = core.log.read(&self.session, cursor.stream, cursor.seq);
        read.await.map_err(unread)
    }
}

//! Calls that the streams of a session wait for: room for more of them, and their ids in the event log, by which
//! another replica answers them.

use std::time::Duration;

use tokio::sync::oneshot;

use super::{
    answer::{Acceptance, Answer},
    table::Streams,
    writes::Write,
};
use crate::{error::Error, protocol::StreamId, state::StoreError};

/// The refusal of a stream or a call beyond the limit of a session.
const NO_ROOM: Error = Error::Limit {
    what: "streams and calls of the session",
    retry: Duration::from_secs(1),
};

impl Streams {
    /// Whether one more stream may begin.
    pub(crate) fn check_room(&self) -> Result<(), Error> {
        if self.open.len() > self.limits.streams {
            return Err(NO_ROOM);
        }
        self.check_log()
    }

    /// Whether so many calls of one body may begin whose responses are events of the listener, beside others. Each
    /// body writes the ids of all of them to the log, which may be slower than the client. A batch that could never
    /// begin beside others begins alone.
    pub(crate) fn check_calls(&self, calls: usize, others: usize) -> Result<(), Error> {
        let most = self.limits.streams;
        // A body that waits to be accepted counts though its calls have ended.
        let others = others.max(self.accepted.len());
        if others >= most || others > 0 && others + calls > most {
            return Err(NO_ROOM);
        }
        self.check_log()
    }

    /// Whether the log keeps up: calls that are refused on their stream end at once, and are bounded by nothing else.
    fn check_log(&self) -> Result<(), Error> {
        if self.writes.are_too_many() {
            let (what, retry) = ("the event log is behind", Duration::from_secs(1));
            return Err(Error::Busy { what, retry });
        }
        Ok(())
    }

    /// Accepts a body of HTTP+SSE with requests, once the log has acknowledged what is written for it up to the next
    /// [`Self::write_calls`]: the next owner answers no call that the log does not know.
    pub(crate) fn accept(&mut self, reply: oneshot::Sender<Answer>) {
        // Beyond the limit there are only pings, which change nothing.
        let is_full = self.accepted.len() >= self.limits.streams;
        if self.log.owner.is_alone() || is_full {
            // A client that is gone needs no answer.
            let _ = reply.send(Answer::Accepted);
            return;
        }
        let behind = None;
        self.accepted.push(Acceptance { reply, behind });
    }

    /// The log has acknowledged the oldest write under way: accepts the bodies that have waited for it.
    pub(super) fn accept_behind_write(&mut self) {
        for acceptance in self.accepted.iter_mut() {
            acceptance.behind = acceptance.behind.map(|behind| behind.saturating_sub(1));
        }
        self.send_accepted();
    }

    fn send_accepted(&mut self) {
        let is_done = |acceptance: &mut Acceptance| acceptance.behind == Some(0);
        while let Some(acceptance) = self.accepted.pop_if(is_done) {
            let _ = acceptance.reply.send(Answer::Accepted);
        }
    }

    /// Adds a request whose response a stream waits for: another replica may have to answer it, once
    /// [`Self::write_calls`] has written it.
    pub(crate) fn await_response(&mut self, id: StreamId, request: &[u8]) {
        if self.log.owner.is_alone() {
            return;
        }
        if let Some(stream) = self.open.get_mut(&id) {
            stream.ids.push(request.into());
            // A held stream is opened with all of its calls.
            stream.changes += u32::from(stream.held.is_none());
        }
    }

    /// Removes a request that the client has cancelled.
    pub(crate) fn forget_request(&mut self, id: StreamId, request: &[u8]) {
        if let Some(stream) = self.open.get_mut(&id) {
            let before = stream.ids.len();
            stream.forget_call(request);
            stream.changes += u32::from(stream.ids.len() < before && stream.held.is_none());
        }
    }

    /// Writes the calls of the streams for which a body of the client has changed them: once for all calls of the
    /// body, since each write has the ids of all that wait. The body is accepted behind all that was written for it.
    pub(crate) fn write_calls(&mut self) -> Result<(), StoreError> {
        if self.log.owner.is_alone() {
            return Ok(());
        }
        let streams = self.open.iter_mut();
        let changed = streams.filter(|(_, stream)| stream.changes > 0 && !stream.is_ending);
        let changed = changed.map(|(id, stream)| {
            let (last, calls) = (stream.last, stream.calls_to_write());
            (*id, Write::Open { last, calls })
        });
        let changed: Vec<_> = changed.collect();
        for (id, write) in changed {
            self.write(id, write)?;
        }
        let under_way = self.writes.under_way();
        for acceptance in self.accepted.iter_mut() {
            acceptance.behind.get_or_insert(under_way);
        }
        self.send_accepted();
        Ok(())
    }
}

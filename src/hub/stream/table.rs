//! Streams of one session: held responses, open streams, and the connections that read them.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use serde_json::value::RawValue;
use tokio::{
    sync::{oneshot, watch},
    time::Instant,
};

use super::{
    answer::{Acceptance, Answer, Form},
    entry::{Held, Stream, StreamLimits},
    reader::{Attachment, Pulse, Reader, StreamEnd, Tail},
    seldom::Seldom,
    session_log::SessionLog,
    writes::{Write, Writes},
};
use crate::{
    base::{Table, budget::Drawn},
    error::Error,
    protocol::{LISTENER_STREAM, Revision, StreamId, json},
    state::{Fence, StoreError, contract},
    telemetry::{Dropped, Metrics},
};

/// All streams of a session that have not ended.
pub(crate) struct Streams {
    pub(super) log: SessionLog,
    pub(super) limits: StreamLimits,
    last: StreamId,
    /// Boxed: most sessions have one, in a table with room for several.
    pub(super) open: Table<StreamId, Box<Stream>>,
    pub(super) writes: Writes,
    /// Answers that wait for events of the listener, in the order of the events.
    answers: Seldom<WaitingAnswer>,
    /// Bodies of HTTP+SSE that wait to be accepted, in their order.
    pub(super) accepted: Seldom<Acceptance>,
    pub(super) pulse: Arc<Pulse>,
    pub(super) revision: Option<Revision>,
    /// Whether every connection to the listener gets its events, and not the youngest alone.
    pub(super) has_many_listeners: bool,
    /// What is sent in place of a response for which its caller has no room, made of the raw id.
    no_room: fn(&[u8]) -> Bytes,
    metrics: Arc<Metrics>,
}

/// The responses to a batch.
fn batch(lines: &[Bytes]) -> Bytes {
    [b"[", &*lines.join(&b","[..]), b"]"].concat().into()
}

/// The errors in place of a response, or of the responses to a batch.
fn failed(lines: &[u8], error: impl Fn(&[u8]) -> Bytes) -> Bytes {
    let failed = |line: &[u8]| error(json::get(line, "id").unwrap_or(b"null"));
    if !lines.starts_with(b"[") {
        return failed(lines);
    }
    let lines: Vec<&RawValue> = serde_json::from_slice(lines).unwrap_or_default();
    let lines = lines.iter().map(|line| failed(line.get().as_bytes()));
    batch(&lines.collect::<Vec<_>>())
}

/// The answers that wait for the log beyond which the child is not read: each may be as long as a line.
const MAX_ANSWERS: usize = 4;

/// An answer that the log holds up.
struct WaitingAnswer {
    /// The event of the listener that the log has to acknowledge first.
    behind: u64,
    reply: oneshot::Sender<Answer>,
    answer: Answer,
}

impl Streams {
    /// The streams of a session that begins: the listener alone.
    pub(crate) fn new(
        log: SessionLog,
        fence: Fence,
        limits: StreamLimits,
        no_room: fn(&[u8]) -> Bytes,
        metrics: Arc<Metrics>,
    ) -> Self {
        let epoch = log.owner.epoch();
        let writes = Writes::new(&log, fence, epoch);
        let open = [(
            LISTENER_STREAM,
            Box::new(Stream::new(0, None, false, epoch)),
        )];
        let open = Table::from_iter(open);
        let pulse = Arc::new(Pulse::new(log.owner.lapses()));
        Self {
            log,
            limits,
            last: LISTENER_STREAM,
            open,
            writes,
            answers: Seldom::new(),
            accepted: Seldom::new(),
            pulse,
            revision: None,
            has_many_listeners: false,
            no_room,
            metrics,
        }
    }

    /// Gives the events of the listener to every connection: they belong to different clients.
    pub(crate) fn share_listener(&mut self) {
        self.has_many_listeners = true;
    }

    /// Sets the revision that the session has negotiated.
    pub(crate) fn set_revision(&mut self, revision: Revision) {
        self.revision = Some(revision);
    }

    /// Opens the listener in the log, for other replicas, and writes what was said before the session had a record.
    pub(crate) fn announce(&mut self) {
        if self.log.owner.is_alone() {
            return;
        }
        let listener = self.open.get(&LISTENER_STREAM);
        let calls = listener.map_or_else(Bytes::new, |listener| listener.open_calls([]));
        let open = (LISTENER_STREAM, Write::Open { last: 0, calls });
        self.writes.go_on();
        self.writes.renew(self.writes.epoch(), [open]);
    }

    /// Continues the streams of another replica. Returns the open streams with the raw ids of the
    /// calls that each waits for.
    pub(crate) fn adopt(
        &mut self,
        fence: Fence,
        left: contract::Streams,
    ) -> Vec<(StreamId, Vec<Box<[u8]>>)> {
        self.last = left.highest;
        self.writes.adopt(fence);
        // The client may hold a long delay, whose owner was gone before it gave the usual one again.
        self.pulse.assume_long_retry();
        let mut calls = Vec::new();
        for contract::OpenStream {
            stream,
            last,
            calls: ids,
        } in left.open
        {
            let ids: Vec<&RawValue> = serde_json::from_slice(&ids).unwrap_or_default();
            let ids = ids.into_iter().map(|id| id.get().as_bytes().into());
            let mut known = Stream::known(last, self.writes.epoch());
            known.ids = ids.collect();
            calls.push((stream, known.ids.clone()));
            self.open.insert(stream, Box::new(known));
        }
        calls
    }

    /// The epoch of the store that holds the streams.
    pub(crate) fn epoch(&self) -> u32 {
        self.writes.epoch()
    }

    /// Stops writing: the log belongs to another owner. Calls whose responses were under way end with `error`, made
    /// of their raw ids.
    pub(crate) fn close(&mut self, error: impl Fn(&[u8]) -> Bytes) {
        self.hold_again(error);
        self.writes.close();
    }

    /// Holds the responses again whose streams the log has not opened, since their clients have got nothing. Those
    /// that were under way to it become errors.
    fn hold_again(&mut self, error: impl Fn(&[u8]) -> Bytes) {
        let mut complete = Vec::new();
        for (id, stream) in &mut self.open {
            let Some((reply, _)) = stream.opening.take() else {
                continue;
            };
            let lines = self.writes.events(*id);
            let responses = lines.filter(|line| json::get(line, "method").is_none());
            let ids = responses.filter_map(|line| json::get(line, "id"));
            stream.held = Some(Held {
                reply,
                form: Form::Json,
                until: None,
                done: ids.map(&error).collect(),
            });
            if stream.calls == 0 {
                complete.push(*id);
            }
        }
        for id in complete {
            self.answer_held(id);
        }
    }

    /// Continues in this epoch of the store, which has the session.
    pub(crate) fn resume(&mut self, epoch: u32) {
        if self.writes.are_lost_in(epoch) {
            self.renew(epoch);
        }
    }

    /// Continues in another epoch of the store, which has no streams of this session.
    pub(crate) fn renew(&mut self, epoch: u32) {
        let known = self.open.iter().filter(|(_, stream)| stream.held.is_none());
        let known = known.map(|(id, stream)| {
            // A response that is under way may be written much later than this: until then its call is open.
            let calls = stream.open_calls(self.writes.answered(*id));
            let last = stream.tail.get().last;
            (*id, Write::Open { last, calls })
        });
        let known: Vec<_> = known.collect();
        for acceptance in self.accepted.iter_mut() {
            acceptance.behind = acceptance.behind.map(|behind| behind + known.len());
        }
        self.writes.renew(epoch, known);
        for stream in self.open.values_mut() {
            stream.tail.modify(|tail| tail.epoch = epoch);
        }
    }

    /// Begins the response to `calls` requests of one POST. Its headers are held until its first
    /// message, and at most until `until`.
    pub(crate) fn begin(
        &mut self,
        calls: usize,
        form: Form,
        until: Option<Instant>,
        is_batch: bool,
        reply: oneshot::Sender<Answer>,
    ) -> StreamId {
        self.last += 1;
        let held = Held {
            reply,
            form,
            until,
            done: Vec::new(),
        };
        let stream = Stream::new(calls, Some(held), is_batch, self.writes.epoch());
        self.open.insert(self.last, Box::new(stream));
        self.last
    }

    /// Sends the headers of a held response as SSE, once the log has opened the stream.
    pub(crate) fn open(&mut self, id: StreamId) -> Result<(), StoreError> {
        let Some(stream) = self.open.get_mut(&id) else {
            return Ok(());
        };
        let Some(held) = stream.held.take() else {
            return Ok(());
        };
        let attachment = stream.attach(0, false, &self.pulse);
        let (tail, calls) = (stream.tail.subscribe(), stream.calls_to_write());
        let reader = Box::new(self.reader(id, 0, tail, attachment));
        if self.log.owner.is_alone() {
            // The stream goes on if the client closed its connection while the response was held.
            let _ = held.reply.send(Answer::Stream(reader));
        } else {
            if let Some(stream) = self.open.get_mut(&id) {
                stream.opening = Some((held.reply, reader));
            }
            self.write(id, Write::Open { last: 0, calls })?;
        }
        for line in held.done {
            self.append(id, line)?;
        }
        Ok(())
    }

    /// Opens the held responses that are due. Returns the time of the next one.
    pub(crate) fn open_due(&mut self, now: Instant) -> Result<Option<Instant>, StoreError> {
        let held = self.open.iter().filter_map(|(id, stream)| {
            let held = stream.held.as_ref()?;
            // A response whose client has gone stays held.
            let until = held.until.filter(|_| !held.reply.is_closed())?;
            Some((until, *id))
        });
        let (due, later): (Vec<_>, Vec<_>) = held.partition(|(until, _)| *until <= now);
        for (_, id) in due {
            self.open(id)?;
        }
        Ok(later.into_iter().map(|(until, _)| until).min())
    }

    /// A reader behind event `seq` of a stream.
    pub(super) fn reader(
        &self,
        stream: StreamId,
        seq: u64,
        tail: watch::Receiver<Tail>,
        attachment: Arc<Attachment>,
    ) -> Reader {
        let log = self.log.clone();
        let of_owner = self.writes.fence().0.wrapping_mul(257);
        let number = of_owner.wrapping_add(attachment.number.into());
        let mut reader = Reader::new(log, stream, seq, tail, attachment, self.revision);
        // A replica of an earlier build, which may have the session next, knows no such id.
        let is_read_here_alone = self.log.owner.is_alone();
        if stream == LISTENER_STREAM && self.has_ids() && is_read_here_alone {
            // The Go SDK takes a listener without a new id for one without progress. It ends the session behind the
            // sixth, also if each was open for days. Streams of calls are replayed byte by byte.
            reader.set_number(u16::try_from(number % (1 << 16)).unwrap_or_default());
        }
        if self.has_many_listeners {
            reader.share();
        }
        reader
    }

    /// Draws for a message to the client before it is made; none without room for a long one.
    pub(crate) fn room_for(&self, bytes: usize) -> Option<Drawn> {
        self.log.share.room_for(bytes)
    }

    /// Returns a message for which there is room as an event; one without counts as dropped.
    pub(crate) fn admit(&self, line: Bytes) -> Option<Bytes> {
        let line = (!self.writes.has_no_early_room()).then_some(line);
        let admitted = line.and_then(|line| self.log.share.admit(line).ok());
        if admitted.is_none() {
            self.metrics.messages_dropped.add(Dropped::NoRoom);
        }
        admitted
    }

    /// Sends a message on a stream, which becomes SSE by it. Returns the number of the event.
    pub(crate) fn message(&mut self, id: StreamId, line: Bytes) -> Result<u64, StoreError> {
        self.open(id)?;
        self.append(id, line)
    }

    fn append(&mut self, id: StreamId, line: Bytes) -> Result<u64, StoreError> {
        let Some(stream) = self.open.get_mut(&id) else {
            return Ok(0);
        };
        if stream.is_ending {
            return Ok(0);
        }
        stream.last += 1;
        let number = stream.last;
        self.metrics.events.add(1);
        self.metrics.event_bytes.add(line.len() as u64);
        // A response ends a call that another replica would have to answer.
        let before = stream.ids.len();
        if before > 0 {
            let answered = json::get(&line, "method").is_none();
            if let Some(answered) = answered.then(|| json::get(&line, "id")).flatten() {
                stream.forget_call(answered);
            }
        }
        let calls = (stream.ids.len() < before).then(|| stream.calls_to_write());
        let write = Write::Event {
            number,
            line,
            calls,
        };
        self.write(id, write)?;
        Ok(number)
    }

    pub(super) fn write(&mut self, id: StreamId, write: Write) -> Result<(), StoreError> {
        if let Some(write) = self.writes.write(id, write)? {
            self.acknowledged(id, &write);
        }
        Ok(())
    }

    /// Publishes a write that the log has acknowledged to the readers.
    fn acknowledged(&mut self, id: StreamId, write: &Write) {
        let Some(stream) = self.open.get_mut(&id) else {
            return;
        };
        match write {
            Write::Open { .. } => {
                if let Some((reply, reader)) = stream.opening.take() {
                    // The stream goes on if the client closed its connection while the response was held.
                    let _ = reply.send(Answer::Stream(reader));
                }
            }
            Write::Event { number, line, .. } => {
                stream.bytes += line.len() as u64;
                stream.tail.modify(|tail| tail.last = *number);
                if id == LISTENER_STREAM {
                    self.send_answers(*number);
                }
            }
            Write::End => {
                stream
                    .tail
                    .modify(|tail| tail.end = Some(StreamEnd::Finished));
                self.open.remove(&id);
            }
        }
    }

    /// Waits until the log acknowledges the oldest write under way; forever without one.
    /// Cancel-safe.
    pub(crate) async fn written(&mut self) -> Result<(), StoreError> {
        let (stream, write) = self.writes.next().await?;
        self.acknowledged(stream, &write);
        self.accept_behind_write();
        Ok(())
    }

    /// Whether the log has acknowledged every write that it may have.
    pub(crate) fn is_flushed(&self) -> bool {
        self.writes.is_empty()
    }

    /// Whether so much is under way to the log that the child has to wait.
    pub(crate) fn is_full(&self) -> bool {
        // Answers that wait have no place among the streams any more.
        self.writes.is_full() || self.answers.len() >= MAX_ANSWERS
    }

    /// Ends one call of a stream: with its response, or without one if it was cancelled.
    pub(crate) fn finish_call(
        &mut self,
        id: StreamId,
        line: Option<Bytes>,
    ) -> Result<(), StoreError> {
        let Some(stream) = self.open.get_mut(&id) else {
            return Ok(());
        };
        stream.calls = stream.calls.saturating_sub(1);
        let is_last = stream.calls == 0 && id != LISTENER_STREAM;
        let is_held = stream
            .held
            .as_ref()
            .is_some_and(|held| held.form != Form::Sse);
        let (is_batch, share) = (stream.is_batch, &self.log.share);
        let admitted = |line: Bytes| {
            if !is_held {
                share.admit(line)
            } else if is_batch {
                share.draw_message(line)
            } else {
                // It goes to its client at once, and counts there.
                Ok(line)
            }
        };
        let refused = |line: Bytes| failed(&line, self.no_room);
        let line = line.map(|line| admitted(line).unwrap_or_else(refused));
        match &mut stream.held {
            Some(held) if held.form != Form::Sse || line.is_none() => {
                held.done.extend(line);
                if is_last {
                    self.answer_held(id);
                }
                return Ok(());
            }
            _ => {}
        }
        if let Some(line) = line {
            self.message(id, line)?;
        }
        if is_last { self.finish(id) } else { Ok(()) }
    }

    /// Ends a call that no backend has seen: with `refusal` if nothing was sent, else with `line`.
    pub(crate) fn refuse_call(
        &mut self,
        id: StreamId,
        line: Bytes,
        refusal: Error,
    ) -> Result<(), StoreError> {
        if let Some(stream) = self.open.get_mut(&id).filter(|stream| !stream.is_batch)
            && let Some(held) = stream.held.take()
        {
            self.open.remove(&id);
            let _ = held.reply.send(Answer::Refused(refusal));
            return Ok(());
        }
        self.finish_call(id, Some(line))
    }

    fn answer_held(&mut self, id: StreamId) {
        let Some(stream) = self.open.remove(&id) else {
            return;
        };
        let Some(Held {
            reply, mut done, ..
        }) = stream.held
        else {
            return;
        };
        let answer = match (stream.is_batch, done.pop()) {
            (_, None) => Answer::Silent,
            (false, Some(line)) => Answer::Json(line),
            (true, Some(line)) => {
                done.push(line);
                Answer::Json(batch(&done))
            }
        };
        self.answer(reply, answer);
    }

    /// Sends an answer, once the log has the events that the child sent to the listener before it. A
    /// replica that is lost meanwhile answers nothing, and the client knows that something is missing.
    fn answer(&mut self, reply: oneshot::Sender<Answer>, answer: Answer) {
        let listener = self.open.get(&LISTENER_STREAM);
        let unacknowledged = listener.filter(|listener| listener.last > listener.tail.get().last);
        if let Some(listener) = unacknowledged {
            self.answers.push(WaitingAnswer {
                behind: listener.last,
                reply,
                answer,
            });
        } else {
            // A client that closed its connection has lost the response.
            let _ = reply.send(answer);
        }
    }

    /// Answers the calls whose events the log does not take any more by `error`, made of their raw ids: a server has
    /// seen them, so their clients must not be told to repeat them.
    pub(crate) fn fail_answers(&mut self, error: impl Fn(&[u8]) -> Bytes) {
        self.hold_again(&error);
        for WaitingAnswer { reply, answer, .. } in self.answers.take_all() {
            let _ = reply.send(match answer {
                Answer::Json(lines) => Answer::Json(failed(&lines, &error)),
                other => other,
            });
        }
    }

    /// Sends the answers that waited for event `number` of the listener.
    fn send_answers(&mut self, number: u64) {
        let is_due = |waiting: &mut WaitingAnswer| waiting.behind <= number;
        while let Some(waiting) = self.answers.pop_if(is_due) {
            let _ = waiting.reply.send(waiting.answer);
        }
    }

    /// Ends a stream.
    pub(crate) fn finish(&mut self, id: StreamId) -> Result<(), StoreError> {
        let Some(stream) = self.open.get_mut(&id).filter(|stream| !stream.is_ending) else {
            return Ok(());
        };
        stream.is_ending = true;
        // Without an id nobody asks for it again, and in one process the log has not heard of it.
        if stream.last == 0 && !self.has_ids() && self.log.owner.is_alone() {
            self.acknowledged(id, &Write::End);
            return Ok(());
        }
        self.write(id, Write::End)
    }

    /// Ends every stream at the end of the session; held responses are answered with `refusal`.
    pub(crate) fn release(&mut self, end: StreamEnd, refusal: impl Fn() -> Answer) {
        for waiting in self.answers.take_all() {
            let _ = waiting.reply.send(refusal());
        }
        // The server had them before the log, and a refusal would say that they can be sent again.
        for body in self.accepted.take_all() {
            let _ = body.reply.send(Answer::Refused(Error::Lost));
        }
        for (_, mut stream) in self.open.drain() {
            let opening = stream.opening.map(|(reply, _)| reply);
            if let Some(reply) = stream.held.map(|held| held.reply).or(opening) {
                let _ = reply.send(refusal());
            }
            stream.tail.modify(|tail| tail.end = Some(end));
        }
    }

    /// Ends every connection, to reconnect; the streams go on.
    pub(crate) fn disconnect_all(&mut self) {
        let streams = self.open.values_mut();
        streams.for_each(|stream| stream.release());
    }

    /// Wakes every connection, to check again whether it may be served.
    pub(crate) fn wake(&mut self) {
        for stream in self.open.values_mut() {
            stream.tail.modify(|_| {});
        }
    }

    /// Removes closed connections.
    pub(crate) fn sweep(&mut self, now: Instant) {
        self.open.values_mut().for_each(|stream| stream.sweep(now));
    }

    /// Whether a reader of a stream is so far behind that the child has to wait for it.
    pub(crate) fn is_behind(&self, id: StreamId) -> bool {
        let is_behind = |stream: &Stream| stream.is_behind(self.limits, self.room());
        let stream = self.open.get(&id);
        stream.is_some_and(|stream| !stream.is_given_up && is_behind(stream))
    }

    /// Whether no connection takes the events of a stream.
    pub(crate) fn is_unread(&self, id: StreamId) -> bool {
        self.open.get(&id).is_some_and(|stream| stream.is_unread())
    }

    /// The bytes by which a connection may be behind: half of what the log holds of the session, where each further event
    /// pushes out an older one, and what it has room for.
    fn room(&self) -> u64 {
        let kept = &self.log.share.kept;
        kept.used() / 2 + u64::try_from(kept.left()).unwrap_or(0)
    }

    /// Stops waiting for connections that are behind; retention will end them.
    pub(crate) fn give_up(&mut self) {
        let room = self.room();
        for stream in self.open.values_mut() {
            stream.is_given_up = stream.is_behind(self.limits, room);
        }
    }

    /// Whether any reader is so far behind that the child has to wait for it.
    pub(crate) fn is_any_behind(&self) -> bool {
        let room = self.room();
        self.open
            .values()
            .any(|stream| !stream.is_given_up && stream.is_behind(self.limits, room))
    }

    /// Whether event `number` of a stream was handed to a connection. One that has ended counts: its readers read on.
    pub(crate) fn is_written(&self, id: StreamId, number: u64) -> bool {
        self.open
            .get(&id)
            .is_none_or(|stream| stream.written() >= number)
    }

    /// Keeps an event from every connection that has not got it.
    pub(crate) fn withdraw(&self, id: StreamId, number: u64) {
        self.log.withdrawn.add(id, number);
    }

    /// Whether a living connection is attached to the listener.
    pub(crate) fn has_reader(&self, now: Instant) -> bool {
        self.open.get(&LISTENER_STREAM).is_some_and(|stream| {
            stream.attachments.iter().any(|attachment| {
                let taken = Duration::from_millis(attachment.taken.load(Ordering::Relaxed));
                now.saturating_duration_since(attachment.born + taken) < self.limits.silence
            })
        })
    }

    /// Ends the connections of the listener; the client may connect again.
    pub(crate) fn release_listener(&mut self) {
        if let Some(stream) = self.open.get_mut(&LISTENER_STREAM) {
            stream.release();
        }
    }

    /// Since when no connection is attached to the listener.
    pub(crate) fn no_reader_since(&self) -> Option<Instant> {
        self.open.get(&LISTENER_STREAM)?.detached
    }

    /// Whether the listener had a connection at this owner, and has been without one for this long: its client has lost
    /// it, or has given it up.
    pub(crate) fn is_listener_abandoned(&self, after: Duration) -> bool {
        let listener = self.open.get(&LISTENER_STREAM);
        listener.is_some_and(|listener| listener.is_abandoned(after))
    }

    /// The pulse of the session; every reader holds a reference to it.
    pub(crate) fn pulse(&self) -> &Arc<Pulse> {
        &self.pulse
    }
}

#[cfg(test)]
mod tests {
    use std::{future::ready, task::Poll};

    use tokio::{
        sync::{Semaphore, SemaphorePermit},
        time::timeout,
    };

    use super::super::table::*;
    use crate::{
        base::{MacKeys, budget::Budget},
        hub::{
            ownership::{ReplicaLease, STORE_AWAY},
            stream::Next,
        },
        protocol::{Cursor, EventKey},
        state::{
            BoxFuture, EventLog, LogShare, Page, Replica, ReplicaKeys, SessionId, WriteTarget,
            contract::LogSize,
            memory::{MemoryDirectory, MemoryLog, Retention},
        },
    };

    /// A log that acknowledges an event for each permit, and shows the calls of the stream that it opened last.
    struct Slow {
        permits: Arc<Semaphore>,
        opened: watch::Sender<Bytes>,
    }

    impl EventLog for Slow {
        fn open(
            &self,
            _: &WriteTarget,
            _: u64,
            calls: Bytes,
        ) -> BoxFuture<'static, Result<(), StoreError>> {
            self.opened.send_replace(calls);
            Box::pin(ready(Ok(())))
        }

        fn append(
            &self,
            _: &WriteTarget,
            _: u64,
            _: Bytes,
            _: Option<Bytes>,
        ) -> BoxFuture<'static, Result<(), StoreError>> {
            let permits = Arc::clone(&self.permits);
            Box::pin(async move {
                let permit = permits.acquire().await;
                permit
                    .map(SemaphorePermit::forget)
                    .map_err(|_| StoreError::Away)
            })
        }

        fn end(&self, _: &WriteTarget) -> BoxFuture<'static, Result<(), StoreError>> {
            Box::pin(ready(Ok(())))
        }

        fn read<'a>(
            &'a self,
            _: &'a SessionId,
            _: StreamId,
            _: u64,
        ) -> BoxFuture<'a, Result<Page, StoreError>> {
            Box::pin(ready(Err(StoreError::Away)))
        }

        fn streams<'a>(
            &'a self,
            _: &'a SessionId,
        ) -> BoxFuture<'a, Result<contract::Streams, StoreError>> {
            Box::pin(ready(Err(StoreError::Away)))
        }

        fn forget<'a>(&'a self, _: &'a SessionId) -> BoxFuture<'a, ()> {
            Box::pin(ready(()))
        }

        fn release<'a>(&'a self, _: &'a SessionId) -> BoxFuture<'a, ()> {
            Box::pin(ready(()))
        }

        fn sweep(&self) {}

        fn size(&self) -> LogSize {
            LogSize::default()
        }
    }

    fn slow(permits: &Arc<Semaphore>) -> Arc<Slow> {
        let permits = Arc::clone(permits);
        let (opened, _) = watch::channel(Bytes::new());
        Arc::new(Slow { permits, opened })
    }

    fn streams(permits: &Arc<Semaphore>) -> Streams {
        streams_in(slow(permits))
    }

    fn streams_in(log: Arc<dyn EventLog>) -> Streams {
        streams_of(log, LogShare::plenty())
    }

    fn streams_of(log: Arc<dyn EventLog>, share: LogShare) -> Streams {
        let owner = ReplicaLease::alone(Arc::new(MemoryDirectory::default()), 1);
        streams_at(log, share, owner)
    }

    /// Streams of one of several replicas, in a log that acknowledges no event, with an event of the listener.
    fn stuck_streams() -> Streams {
        let mut streams = early_streams(slow(&Arc::new(Semaphore::new(0))));
        streams.message(LISTENER_STREAM, "{}".into()).unwrap();
        streams
    }

    /// Streams of one of several replicas, whose session has no record yet.
    fn early_streams(log: Arc<dyn EventLog>) -> Streams {
        let me = Replica {
            address: "a:1".into(),
            boot: "a".into(),
        };
        let keys = ReplicaKeys::new(MacKeys::new([]));
        let owner = ReplicaLease::new(me, keys, Arc::new(MemoryDirectory::default()));
        streams_at(log, LogShare::plenty(), owner)
    }

    fn streams_at(log: Arc<dyn EventLog>, share: LogShare, owner: ReplicaLease) -> Streams {
        let log = SessionLog {
            log,
            owner: Arc::new(owner),
            key: EventKey::new(&[0; 32]),
            session: SessionId("s".into()),
            share,
            withdrawn: Arc::default(),
        };
        let limits = StreamLimits {
            streams: 32,
            events: 1000,
            bytes: 1 << 20,
            silence: Duration::from_secs(60),
        };
        let metrics = Arc::new(Metrics::new(None).unwrap());
        Streams::new(log, Fence(1), limits, lost, metrics)
    }

    /// A call that is answered at once.
    fn call(streams: &mut Streams, id: usize) -> oneshot::Receiver<Answer> {
        let (reply, answer) = oneshot::channel();
        let stream = streams.begin(1, Form::Json, None, false, reply);
        let line = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#);
        streams.finish_call(stream, Some(line.into())).unwrap();
        answer
    }

    /// The streams of a session with an event of 20,000 bytes on its listener, a reader of it, and the budget of 80 KiB
    /// for what is under way.
    async fn long_event() -> (Streams, Reader, Arc<Budget>) {
        let under_way = Budget::new(80 << 10).share();
        let share = LogShare {
            under_way: Arc::clone(&under_way),
            ..LogShare::plenty()
        };
        let mut streams = streams_of(memory(), share);
        let reader = streams.attach(None).await.unwrap().unwrap();
        let line = "x".repeat(20_000).into();
        streams.message(LISTENER_STREAM, line).unwrap();
        (streams, reader, under_way)
    }

    /// Connections that took nothing held a copy each, and left the gateway without memory.
    #[tokio::test]
    async fn a_long_part_waits_for_room() {
        let (mut streams, mut reader, under_way) = long_event().await;
        let others = under_way.hold(40 << 10);
        let waits = futures_util::poll!(Box::pin(reader.next())).is_pending();
        assert!(waits);
        drop(others);
        assert!(matches!(reader.next().await, Next::Events(events) if events.len() == 1));
        let part = reader.drawn_for(20_100);
        assert_eq!((part.amount(), under_way.used()), (20_100, 20_100));
        drop(part);
        let line = "x".repeat(20_000).into();
        streams.message(LISTENER_STREAM, line).unwrap();
        assert!(matches!(reader.next().await, Next::Events(_)));
        assert_eq!(under_way.used(), 20_000, "no part was made of it");
        assert!(futures_util::poll!(Box::pin(reader.next())).is_pending());
        assert_eq!(under_way.used(), 0);
        streams.message(LISTENER_STREAM, "{}".into()).unwrap();
        assert!(matches!(reader.next().await, Next::Events(_)));
        assert_eq!(reader.drawn_for(100).amount(), 100);
        assert_eq!(under_way.used(), 0, "short ones are the log's");
    }

    /// Its client waited at a replica that had lost the session.
    #[tokio::test]
    async fn a_reader_without_room_is_released_with_its_session() {
        let (mut streams, mut reader, under_way) = long_event().await;
        let _others = under_way.hold(80 << 10);
        assert!(futures_util::poll!(Box::pin(reader.next())).is_pending());
        streams.release(StreamEnd::Released, || unreachable!("nobody waits"));
        let next = timeout(Duration::from_secs(20), reader.next()).await;
        assert!(matches!(next, Ok(Next::Released)), "{next:?}");
    }

    #[tokio::test]
    async fn a_long_response_without_room_becomes_an_error() {
        let share = LogShare {
            kept: Budget::new(1 << 10).share(),
            under_way: Budget::new(1 << 10).share(),
            ..LogShare::plenty()
        };
        let mut streams = streams_of(memory(), share);
        let line = format!(
            r#"{{"jsonrpc":"2.0","id":7,"result":"{}"}}"#,
            "x".repeat(9000)
        );
        let mut answers = Vec::new();
        for (calls, form) in [(1, Form::Json), (2, Form::Json), (1, Form::Sse)] {
            let (reply, answer) = oneshot::channel();
            let stream = streams.begin(calls, form, None, calls > 1, reply);
            for _ in 0..calls {
                let line = line.clone().into();
                streams.finish_call(stream, Some(line)).unwrap();
            }
            answers.push(answer);
        }
        let error = error(7);
        assert_eq!(text(&mut answers[0]), Some(line), "it does not wait");
        assert_eq!(text(&mut answers[1]), Some(format!("[{error},{error}]")));
        let Ok(Answer::Stream(mut reader)) = answers[2].try_recv() else {
            panic!("no stream");
        };
        let next = reader.next().await;
        assert!(matches!(next, Next::Events(events) if *events[0].1 == *error.as_bytes()));
        let dropped = streams.admit("x".repeat(9000).into());
        assert!(dropped.is_none());
    }

    fn text(answer: &mut oneshot::Receiver<Answer>) -> Option<String> {
        match answer.try_recv() {
            Ok(Answer::Json(line)) => Some(String::from_utf8(line.to_vec()).unwrap()),
            _ => None,
        }
    }

    /// A thousand calls that were cancelled were 120 KiB that counted nowhere.
    #[tokio::test]
    async fn a_silent_stream_is_kept_for_those_alone_that_have_an_id_of_it() {
        for revision in [Revision::V2025_06_18, Revision::V2025_11_25] {
            let log = memory();
            let mut streams = streams_in(Arc::clone(&log));
            streams.set_revision(revision);
            let (reply, mut answer) = oneshot::channel();
            let stream = streams.begin(1, Form::Sse, None, false, reply);
            streams.open(stream).unwrap();
            streams.finish_call(stream, None).unwrap();
            let Ok(Answer::Stream(mut reader)) = answer.try_recv() else {
                panic!("no stream");
            };
            assert!(matches!(reader.next().await, Next::Finished));
            assert_eq!(streams.open.len(), 1, "the listener");
            let kept = log.read(&SessionId("s".into()), stream, 0).await;
            let has_id = revision == Revision::V2025_11_25;
            assert_eq!(kept.is_ok_and(|page| page.is_end), has_id, "{revision:?}");
        }
    }

    fn memory() -> Arc<dyn EventLog> {
        Arc::new(MemoryLog::new(Retention {
            events: 1000,
            bytes: 1 << 20,
            age: Duration::from_secs(60),
        }))
    }

    /// Where a thousand sessions shared the log, none waited for its reader before retention overtook it.
    #[tokio::test]
    async fn a_reader_is_behind_before_a_full_share_pushes_out_what_it_has_not_taken() {
        let share = LogShare {
            kept: Budget::new(80 << 10).share(),
            ..LogShare::plenty()
        };
        let mut streams = streams_of(memory(), share);
        let mut reader = streams.attach(None).await.unwrap().unwrap();
        // The log keeps 40 KiB of the session, what an event takes beside its bytes included.
        for round in 0..3 {
            let mut sent = 0;
            while !streams.is_behind(LISTENER_STREAM) && sent < 1000 {
                let line = "x".repeat(100).into();
                streams.message(LISTENER_STREAM, line).unwrap();
                sent += 1;
            }
            assert!((30..170).contains(&sent), "{sent} in round {round}");
            assert!(streams.is_any_behind());
            while sent > 0 {
                match reader.next().await {
                    Next::Events(events) => sent -= events.len(),
                    _ => panic!("overtaken with {sent} events left in round {round}"),
                }
            }
            assert!(!streams.is_any_behind());
        }
        // One for which there is no room is pushed out by the next, whatever that takes.
        let line = "x".repeat(50_000).into();
        streams.message(LISTENER_STREAM, line).unwrap();
        assert!(streams.is_behind(LISTENER_STREAM));
        assert!(matches!(reader.next().await, Next::Events(events) if events.len() == 1));
        assert!(!streams.is_any_behind());
        for _ in 0..100 {
            let line = "x".repeat(100).into();
            streams.message(LISTENER_STREAM, line).unwrap();
        }
        streams.give_up();
        assert!(!streams.is_any_behind());
    }

    /// A batch of a hundred calls was one call.
    #[tokio::test]
    async fn a_batch_over_the_listener_is_as_many_calls_as_it_has() {
        let streams = streams_in(memory());
        let cases = [(1, 31, true), (1, 32, false), (2, 31, false), (31, 1, true)];
        for (calls, others, has_room) in cases {
            let checked = streams.check_calls(calls, others);
            assert_eq!(checked.is_ok(), has_room, "{calls} beside {others}");
        }
        assert!(streams.check_calls(100, 0).is_ok(), "it would never begin");
    }

    /// A batch of a hundred calls with long ids, on a stream from the start, was 5 MiB of ids to the log.
    #[tokio::test]
    async fn a_body_writes_the_ids_of_its_calls_once() {
        let mut streams = stuck_streams();
        streams.announce();
        let (reply, _answer) = oneshot::channel();
        let stream = streams.begin(100, Form::Sse, None, true, reply);
        streams.open(stream).unwrap();
        let used = |streams: &Streams| streams.log.share.memory().used();
        let before = used(&streams);
        for id in 0..100 {
            streams.await_response(stream, format!("{id:01000}").as_bytes());
        }
        assert_eq!(used(&streams), before, "the body has not ended");
        streams.write_calls().unwrap();
        let written = used(&streams) - before;
        assert!((100_000..110_000).contains(&written), "{written}");
        streams.write_calls().unwrap();
        assert_eq!(used(&streams) - before, written, "nothing has changed");
        for id in 0..50 {
            streams.forget_request(stream, format!("{id:01000}").as_bytes());
        }
        assert_eq!(used(&streams) - before, written, "the body has not ended");
        streams.write_calls().unwrap();
        let written = used(&streams) - before - written;
        assert!((50_000..60_000).contains(&written), "{written}");
    }

    /// The calls of a stream, as the next owner would find them.
    async fn calls_in(log: &Arc<dyn EventLog>, stream: StreamId) -> Bytes {
        let left = log.streams(&SessionId("s".into())).await.unwrap();
        let mut open = left.open.into_iter();
        open.find(|open| open.stream == stream).unwrap().calls
    }

    #[tokio::test]
    async fn the_next_owner_knows_the_calls_of_each_body() {
        let log = memory();
        let mut streams = early_streams(Arc::clone(&log));
        streams.announce();
        streams.written().await.unwrap();
        let (reply, _answer) = oneshot::channel();
        let stream = streams.begin(3, Form::Sse, None, true, reply);
        streams.open(stream).unwrap();
        for id in ["1", "2", "3"] {
            streams.await_response(stream, id.as_bytes());
        }
        streams.write_calls().unwrap();
        assert_eq!(calls_in(&log, stream).await, "[1,2,3]");
        streams.forget_request(stream, b"2");
        streams.finish_call(stream, None).unwrap();
        streams.write_calls().unwrap();
        assert_eq!(calls_in(&log, stream).await, "[1,3]");
        streams.finish_call(stream, Some(result(1))).unwrap();
        assert_eq!(calls_in(&log, stream).await, "[3]");
        // A held stream is opened with its calls.
        let (reply, _answer) = oneshot::channel();
        let held = streams.begin(1, Form::Auto, None, false, reply);
        streams.await_response(held, b"4");
        streams.write_calls().unwrap();
        streams.open(held).unwrap();
        assert_eq!(calls_in(&log, held).await, "[4]");
    }

    /// The next owner answered none of them when the first had its response, and their client waited for ever.
    #[tokio::test]
    async fn of_calls_with_one_id_one_ends_at_a_time() {
        let log = memory();
        let mut streams = early_streams(Arc::clone(&log));
        streams.announce();
        streams.written().await.unwrap();
        for _ in 0..3 {
            streams.await_response(LISTENER_STREAM, b"7");
        }
        streams.write_calls().unwrap();
        assert_eq!(calls_in(&log, LISTENER_STREAM).await, "[7,7,7]");
        streams.message(LISTENER_STREAM, result(7)).unwrap();
        assert_eq!(calls_in(&log, LISTENER_STREAM).await, "[7,7]");
        streams.forget_request(LISTENER_STREAM, b"7");
        streams.write_calls().unwrap();
        assert_eq!(calls_in(&log, LISTENER_STREAM).await, "[7]");
    }

    /// Streams of one of several replicas, whose session has a record.
    async fn known_streams(log: Arc<dyn EventLog>) -> Streams {
        let mut streams = early_streams(log);
        streams.announce();
        streams.written().await.unwrap();
        assert!(streams.is_flushed());
        streams
    }

    /// Accepts a body of HTTP+SSE with one call.
    fn accept(streams: &mut Streams, id: usize) -> oneshot::Receiver<Answer> {
        let (reply, answer) = oneshot::channel();
        streams.accept(reply);
        streams.await_response(LISTENER_STREAM, id.to_string().as_bytes());
        streams.write_calls().unwrap();
        answer
    }

    fn is_accepted(answer: &mut oneshot::Receiver<Answer>) -> bool {
        matches!(answer.try_recv(), Ok(Answer::Accepted))
    }

    /// Its replica was lost before the log knew the call, which it had taken, and the client waited forever.
    #[tokio::test]
    async fn a_body_of_http_sse_is_accepted_once_the_log_knows_its_calls() {
        let permits = Arc::new(Semaphore::new(0));
        let mut streams = known_streams(slow(&permits)).await;
        let mut at_once = accept(&mut streams, 1);
        assert!(is_accepted(&mut at_once), "the log has acknowledged it");
        streams.message(LISTENER_STREAM, "{}".into()).unwrap();
        let mut first = accept(&mut streams, 2);
        let mut second = accept(&mut streams, 3);
        // Written again in another epoch, behind the streams that are open.
        streams.resume(7);
        permits.add_permits(1);
        for _ in 0..2 {
            streams.written().await.unwrap();
            assert!(first.try_recv().is_err(), "it is not in the log");
        }
        streams.written().await.unwrap();
        assert!(is_accepted(&mut first) && second.try_recv().is_err());
        streams.written().await.unwrap();
        assert!(is_accepted(&mut second) && streams.is_flushed());
        // In one process the log has everything.
        let mut alone = streams_in(slow(&permits));
        alone.message(LISTENER_STREAM, "{}".into()).unwrap();
        assert!(is_accepted(&mut accept(&mut alone, 1)));
    }

    #[tokio::test]
    async fn bodies_that_the_log_never_knew_are_refused_and_bounded() {
        let mut streams = known_streams(slow(&Arc::new(Semaphore::new(0)))).await;
        streams.message(LISTENER_STREAM, "{}".into()).unwrap();
        let mut waiting = Vec::new();
        for id in 0..32 {
            assert!(streams.check_calls(1, 0).is_ok(), "{id}");
            waiting.push(accept(&mut streams, id));
        }
        let refused = streams.check_calls(1, 0);
        assert!(matches!(refused, Err(Error::Limit { .. })), "{refused:?}");
        let (reply, mut ping) = oneshot::channel();
        streams.accept(reply);
        assert!(is_accepted(&mut ping), "pings have no limit");
        streams.close(lost);
        streams.fail_answers(lost);
        assert!(waiting.iter_mut().all(|body| body.try_recv().is_err()));
        streams.release(StreamEnd::Released, || Answer::Refused(STORE_AWAY));
        let is_lost = |body: &mut oneshot::Receiver<Answer>| {
            matches!(body.try_recv(), Ok(Answer::Refused(Error::Lost)))
        };
        assert!(
            waiting.iter_mut().all(is_lost),
            "they may have been executed"
        );
    }

    /// A replica that was lost before its last writes to an empty Redis left neither the call nor its response there.
    #[tokio::test]
    async fn a_call_is_open_in_another_epoch_until_its_response_is_written() {
        let log = slow(&Arc::new(Semaphore::new(0)));
        let mut streams = known_streams(Arc::clone(&log) as _).await;
        for id in ["1", "2"] {
            streams.await_response(LISTENER_STREAM, id.as_bytes());
        }
        streams.write_calls().unwrap();
        assert_eq!(*log.opened.borrow(), "[1,2]");
        // The log has never heard of the last one, which is a ping.
        for id in [2, 3] {
            let response = Some(result(id));
            streams.finish_call(LISTENER_STREAM, response).unwrap();
        }
        log.opened.send_replace(Bytes::new());
        streams.resume(7);
        assert_eq!(*log.opened.borrow(), "[1,2]");
    }

    /// It was refused for good, though another replica had read the event in Redis.
    #[tokio::test]
    async fn a_cursor_of_an_event_under_way_may_come_again() {
        let permits = Arc::new(Semaphore::new(0));
        let mut streams = known_streams(slow(&permits)).await;
        streams.message(LISTENER_STREAM, "{}".into()).unwrap();
        let epoch = streams.epoch();
        let cursor = |seq| {
            Some(Cursor {
                stream: LISTENER_STREAM,
                epoch,
                seq,
            })
        };
        let early = streams.attach(cursor(1)).await.err();
        assert!(matches!(early, Some(Error::Busy { .. })), "{early:?}");
        let never = streams.attach(cursor(2)).await.err();
        assert!(matches!(never, Some(Error::NoCursor)), "{never:?}");
        permits.add_permits(1);
        streams.written().await.unwrap();
        assert!(matches!(streams.attach(cursor(1)).await, Ok(Some(_))));
    }

    #[tokio::test]
    async fn a_stream_begins_once_the_log_keeps_up() {
        let mut streams = stuck_streams();
        streams.announce();
        assert!(streams.check_room().is_ok());
        while !streams.writes.are_too_many() {
            streams.message(LISTENER_STREAM, "{}".into()).unwrap();
        }
        for checked in [streams.check_room(), streams.check_calls(1, 0)] {
            assert!(matches!(checked, Err(Error::Busy { .. })), "{checked:?}");
        }
    }

    /// A Redis that came back empty while a child started ended its session, which needed no record yet.
    #[tokio::test]
    async fn an_early_event_waits_for_the_record_in_whatever_epoch() {
        let (log, session) = (memory(), SessionId("s".into()));
        let mut streams = early_streams(Arc::clone(&log));
        streams.message(LISTENER_STREAM, "{}".into()).unwrap();
        streams.resume(7);
        assert!(log.streams(&session).await.unwrap().open.is_empty());
        assert_eq!(streams.epoch(), 7);
        streams.announce();
        let page = log.read(&session, LISTENER_STREAM, 0).await.unwrap();
        assert_eq!(page.events.len(), 1);
        for _ in 0..2 {
            streams.written().await.unwrap();
        }
        assert!(streams.is_flushed());
    }

    /// It was not read any more, and its answer neither.
    #[tokio::test]
    async fn a_child_that_says_much_before_its_answer_is_read_on() {
        let mut streams = stuck_streams();
        let mut said = 1;
        while let Some(line) = streams.admit("{}".into()) {
            streams.message(LISTENER_STREAM, line).unwrap();
            said += 1;
            assert!(said < 1000 && !streams.is_full(), "{said}");
        }
        assert!(said > 500 && !streams.is_full(), "{said}");
        streams.announce();
        assert!(streams.is_full(), "the child waits for the log");
        assert!(streams.admit("{}".into()).is_some());
    }

    /// The end of one that failed to start took 0.9 s, for which it kept the seat of its child.
    #[tokio::test]
    async fn a_session_without_a_record_waits_for_no_write() {
        let mut streams = stuck_streams();
        assert!(streams.is_flushed());
        streams.announce();
        assert!(!streams.is_flushed());
    }

    #[tokio::test]
    async fn events_are_unread_once_many_were_taken_by_no_connection() {
        let mut streams = streams_in(memory());
        let send = |streams: &mut Streams, count: usize| {
            for _ in 0..count {
                streams.message(LISTENER_STREAM, "{}".into()).unwrap();
            }
        };
        send(&mut streams, 64);
        assert!(!streams.is_unread(LISTENER_STREAM));
        send(&mut streams, 1);
        assert!(streams.is_unread(LISTENER_STREAM));
        let reader = streams.attach(None).await.unwrap().unwrap();
        send(&mut streams, 900);
        assert!(!streams.is_unread(LISTENER_STREAM), "it is waited for");
        streams.give_up();
        assert!(streams.is_unread(LISTENER_STREAM));
        drop(reader);
    }

    /// Of four resumes at once, the older ones stopped in the middle, and were silent as long as the newest was there.
    #[tokio::test]
    async fn a_resume_gets_all_that_it_resumes_beside_newer_ones() {
        let mut streams = streams_in(memory());
        let send = |streams: &mut Streams, count: usize| {
            for _ in 0..count {
                streams
                    .message(LISTENER_STREAM, "x".repeat(1000).into())
                    .unwrap();
            }
        };
        send(&mut streams, 400);
        let cursor = Cursor {
            stream: LISTENER_STREAM,
            epoch: streams.writes.epoch(),
            seq: 4,
        };
        let mut older = streams.attach(Some(cursor)).await.unwrap().unwrap();
        let Next::Events(first) = older.next().await else {
            panic!("there are events")
        };
        let mut read = first.len();
        assert!(read < 396, "all in one page");
        let mut newer = streams.attach(Some(cursor)).await.unwrap().unwrap();
        send(&mut streams, 10);
        let next = async |reader: &mut Reader| match timeout(MOMENT, reader.next()).await {
            Ok(Next::Events(events)) => events.len(),
            Ok(other) => panic!("{other:?}"),
            Err(_) => 0,
        };
        while read < 396 {
            let more = next(&mut older).await;
            assert!(more > 0, "silent after {read} events");
            read += more;
        }
        // What came later is for the newest one.
        assert_eq!((read, next(&mut older).await), (396, 0));
        let mut read = 0;
        while read < 406 {
            read += next(&mut newer).await;
        }
        assert_eq!(next(&mut newer).await, 0);
    }

    /// A time within which what is there is read.
    const MOMENT: Duration = Duration::from_millis(100);

    #[tokio::test]
    async fn a_listener_is_abandoned_a_while_behind_its_last_connection() {
        let mut streams = streams_in(memory());
        let (at_once, later) = (Duration::ZERO, Duration::from_secs(600));
        assert!(!streams.is_listener_abandoned(at_once), "it had none");
        let reader = streams.attach(None).await.unwrap().unwrap();
        assert!(!streams.is_listener_abandoned(at_once));
        drop(reader);
        streams.sweep(Instant::now());
        assert!(streams.is_listener_abandoned(at_once));
        assert!(!streams.is_listener_abandoned(later));
    }

    /// A client with one delay for all streams came back by the end of a call, and had the events of its pause twice.
    #[tokio::test]
    async fn a_listener_is_not_abandoned_within_a_delay_that_the_gateway_gave() {
        let (retry, seconds) = (Duration::from_secs(1), Duration::from_secs);
        let mut alone = streams_in(memory());
        assert_eq!(alone.abandoned_after(retry), seconds(4));
        let reader = alone.attach(None).await.unwrap().unwrap();
        reader.gave_long_retry();
        assert_eq!(alone.abandoned_after(retry), seconds(19));
        let mut shared = early_streams(memory());
        assert_eq!(shared.abandoned_after(retry), seconds(14), "a relay waits");
        let left = contract::Streams::default();
        shared.adopt(Fence(2), left);
        assert_eq!(shared.abandoned_after(retry), seconds(29));
        assert_eq!(shared.abandoned_after(Duration::MAX), Duration::MAX);
    }

    /// A replica of an earlier build refused them, and its client had no listener any more.
    #[tokio::test]
    async fn connections_have_no_ids_of_their_own_where_others_may_have_to_read_them() {
        let log = memory();
        for (mut streams, are_own) in [
            (streams_in(Arc::clone(&log)), true),
            (early_streams(log), false),
        ] {
            streams.set_revision(Revision::V2025_11_25);
            let first = streams.attach(None).await.unwrap().unwrap();
            let second = streams.attach(None).await.unwrap().unwrap();
            assert_eq!(first.id() != second.id(), are_own);
        }
    }

    /// A thousand connections that were written to without end went before the requests of other tenants.
    #[tokio::test]
    async fn readers_with_many_events_stand_in_line() {
        let mut streams = streams_in(memory());
        let mut reader = streams.attach(None).await.unwrap().unwrap();
        let share = Arc::clone(reader.budget());
        let mut send = |count: usize| {
            for _ in 0..count {
                streams.message(LISTENER_STREAM, "{}".into()).unwrap();
            }
        };
        // Others stand in line.
        let mut line: Vec<_> = (0..4).map(|_| Box::pin(share.others_first())).collect();
        for one in &mut line {
            assert!(futures_util::poll!(one).is_pending());
        }
        send(1);
        assert!(futures_util::poll!(Box::pin(reader.next())).is_pending());
        drop(line);
        assert!(matches!(reader.next().await, Next::Events(events) if events.len() == 1));
        // It has had its turn.
        send(100);
        let first = futures_util::poll!(Box::pin(reader.next()));
        assert!(matches!(first, Poll::Ready(Next::Events(events)) if events.len() == 100));
        send(1);
        assert!(futures_util::poll!(Box::pin(reader.next())).is_pending());
        assert!(matches!(reader.next().await, Next::Events(events) if events.len() == 1));
    }

    #[tokio::test]
    async fn answers_wait_for_the_listener_and_hold_up_their_child() {
        let permits = Arc::new(Semaphore::new(0));
        let mut streams = streams(&permits);
        assert!(
            text(&mut call(&mut streams, 0)).is_some(),
            "nothing came before"
        );
        streams.message(LISTENER_STREAM, "{}".into()).unwrap();
        let mut answers = Vec::new();
        for id in 1..=MAX_ANSWERS {
            assert!(!streams.is_full(), "{id}");
            answers.push(call(&mut streams, id));
        }
        assert!(streams.is_full(), "the child is not read any more");
        assert!(answers.iter_mut().all(|answer| text(answer).is_none()));
        permits.add_permits(1);
        streams.written().await.unwrap();
        assert!(!streams.is_full());
        for (id, answer) in (1..).zip(&mut answers) {
            let answer = text(answer).unwrap();
            assert!(answer.contains(&format!(r#""id":{id},"#)), "{answer}");
        }
    }

    #[tokio::test]
    async fn answers_that_the_log_never_lets_go_become_errors_with_their_ids() {
        let mut streams = streams(&Arc::new(Semaphore::new(0)));
        streams.message(LISTENER_STREAM, "{}".into()).unwrap();
        let mut answers: Vec<_> = (1..=3).map(|id| call(&mut streams, id)).collect();
        streams.close(lost);
        streams.fail_answers(lost);
        let failed: Vec<_> = answers.iter_mut().filter_map(text).collect();
        assert_eq!(failed, [error(1), error(2), error(3)]);
    }

    fn lost(id: &[u8]) -> Bytes {
        [br#"{"error":{},"id":"#, id, b"}"].concat().into()
    }

    fn error(id: usize) -> String {
        String::from_utf8(lost(id.to_string().as_bytes()).to_vec()).unwrap()
    }

    fn result(id: usize) -> Bytes {
        format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#).into()
    }

    /// Calls whose log was another owner's were answered with 503, and made again by their clients.
    #[tokio::test]
    async fn calls_that_end_behind_a_closed_log_become_errors() {
        let mut streams = stuck_streams();
        let (reply, mut one) = oneshot::channel();
        let single = streams.begin(1, Form::Auto, None, false, reply);
        let (reply, mut two) = oneshot::channel();
        let several = streams.begin(2, Form::Auto, None, true, reply);
        streams.finish_call(several, Some(result(2))).unwrap();
        streams.close(lost);
        for (stream, id) in [(single, 1), (several, 3)] {
            streams.finish_call(stream, Some(result(id))).unwrap();
        }
        streams.fail_answers(lost);
        assert_eq!(text(&mut one), Some(error(1)));
        assert_eq!(text(&mut two), Some(format!("[{},{}]", error(2), error(3))));
    }

    #[tokio::test]
    async fn responses_whose_streams_the_log_never_opened_become_errors() {
        for is_closed in [true, false] {
            let mut streams = stuck_streams();
            let mut answers = Vec::new();
            let mut open = |streams: &mut Streams, calls, is_batch| {
                let (reply, answer) = oneshot::channel();
                let stream = streams.begin(calls, Form::Auto, None, is_batch, reply);
                streams.open(stream).unwrap();
                answers.push(answer);
                stream
            };
            let complete = open(&mut streams, 1, false);
            let progress = r#"{"method":"notifications/progress","params":{}}"#;
            streams.message(complete, progress.into()).unwrap();
            streams.finish_call(complete, Some(result(1))).unwrap();
            let single = open(&mut streams, 1, false);
            let several = open(&mut streams, 2, true);
            streams.finish_call(several, Some(result(3))).unwrap();
            if is_closed {
                streams.close(lost);
            }
            // The calls in flight end with their session.
            for (stream, id) in [(single, 2), (several, 4)] {
                let line = if is_closed {
                    error(id).into()
                } else {
                    result(id)
                };
                streams.finish_call(stream, Some(line)).unwrap();
            }
            streams.fail_answers(lost);
            let failed: Vec<_> = answers.iter_mut().filter_map(text).collect();
            let of_batch = format!("[{},{}]", error(3), error(4));
            assert_eq!(failed, [error(1), error(2), of_batch], "{is_closed}");
        }
    }
}

//! The streams of one session: which responses are still held, which are open, and which
//! connection reads each.

use std::{
    collections::HashMap,
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
    answer::{Answer, Form},
    entry::{Bounds, Held, Stream},
    reading::{Attachment, Pulse, Reading, StreamEnd, Tail},
    writing::{What, Writing},
};
use crate::{
    error::Error,
    hub::ownership::Owner,
    protocol::{EventKey, LISTENER, Revision, StreamId, json},
    state::{EventLog, Fence, SessionId, StoreError, contract},
};

/// All streams of a session that have not ended.
pub(crate) struct Streams {
    pub(crate) log: Arc<dyn EventLog>,
    owner: Arc<Owner>,
    key: EventKey,
    pub(crate) session: SessionId,
    pub(crate) bounds: Bounds,
    last: StreamId,
    pub(crate) open: HashMap<StreamId, Stream>,
    pub(crate) writing: Writing,
    pub(crate) pulse: Arc<Pulse>,
    revision: Option<Revision>,
}

impl Streams {
    /// The listener alone.
    pub(crate) fn new(
        (log, owner): (Arc<dyn EventLog>, Arc<Owner>),
        key: EventKey,
        session: SessionId,
        fence: Fence,
        bounds: Bounds,
        pulse: Arc<Pulse>,
    ) -> Self {
        let epoch = owner.epoch();
        let writing = Writing::new(Arc::clone(&log), session.clone(), (fence, epoch));
        let open = HashMap::from([(LISTENER, Stream::new(0, None, false, epoch))]);
        Self {
            log,
            owner,
            key,
            session,
            bounds,
            last: LISTENER,
            open,
            writing,
            pulse,
            revision: None,
        }
    }

    /// The session has negotiated a revision.
    pub(crate) fn settle(&mut self, revision: Revision) {
        self.revision = Some(revision);
    }

    /// Lets other replicas know the listener.
    pub(crate) fn announce(&mut self) -> Result<(), StoreError> {
        if self.owner.is_alone() {
            return Ok(());
        }
        let calls = self.open.get(&LISTENER).map(Stream::open_calls);
        self.write(LISTENER, What::Open(0, calls.unwrap_or_default()))
    }

    /// Continues the streams of another replica. Returns the open streams with the raw ids of the
    /// calls that each waits for.
    pub(crate) fn adopt(
        &mut self,
        fence: Fence,
        left: contract::Streams,
    ) -> Vec<(StreamId, Vec<Box<[u8]>>)> {
        self.last = left.highest;
        self.writing.adopt(fence);
        let mut calls = Vec::new();
        for contract::OpenStream {
            stream,
            last,
            calls: ids,
        } in left.open
        {
            let ids: Vec<&RawValue> = serde_json::from_slice(&ids).unwrap_or_default();
            let ids = ids.into_iter().map(|id| id.get().as_bytes().into());
            let mut known = Stream::known(last, self.writing.epoch());
            known.ids = ids.collect();
            calls.push((stream, known.ids.clone()));
            self.open.insert(stream, known);
        }
        calls
    }

    /// The life of the store that the streams are in.
    pub(crate) fn epoch(&self) -> u32 {
        self.writing.epoch()
    }

    /// From now on nothing is written: the log is another's.
    pub(crate) fn close(&mut self) {
        self.writing.close();
    }

    /// Another life of the store, which knows nothing of this session's streams.
    pub(crate) fn renew(&mut self, epoch: u32) {
        let known = self.open.iter().filter(|(_, stream)| stream.held.is_none());
        let known = known.map(|(id, stream)| {
            let last = stream.tail.borrow().last;
            (*id, What::Open(last, stream.open_calls()))
        });
        let known: Vec<_> = known.collect();
        self.writing.renew(epoch, known);
        for stream in self.open.values() {
            stream.tail.send_modify(|tail| tail.epoch = epoch);
        }
    }

    /// Begins the response to `calls` requests of one POST, which waits until `until` for its first
    /// message.
    pub(crate) fn begin(
        &mut self,
        calls: usize,
        (form, until): (Form, Option<Instant>),
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
        let stream = Stream::new(calls, Some(held), is_batch, self.writing.epoch());
        self.open.insert(self.last, stream);
        self.last
    }

    /// Whether one more stream may begin.
    pub(crate) fn check_room(&self) -> Result<(), Error> {
        if self.open.len() > self.bounds.streams {
            let (what, retry) = ("streams of the session", Duration::from_secs(1));
            return Err(Error::Limit { what, retry });
        }
        Ok(())
    }

    /// A request whose response a stream waits for: another replica may have to answer it.
    pub(crate) fn awaits(&mut self, id: StreamId, request: &[u8]) -> Result<(), StoreError> {
        if self.owner.is_alone() {
            return Ok(());
        }
        let Some(stream) = self.open.get_mut(&id) else {
            return Ok(());
        };
        stream.ids.push(request.into());
        if id == LISTENER {
            let (last, calls) = (stream.last, stream.open_calls());
            return self.write(id, What::Open(last, calls));
        }
        Ok(())
    }

    /// The client waits no more for the response to a request.
    pub(crate) fn forgets(&mut self, id: StreamId, request: &[u8]) -> Result<(), StoreError> {
        let Some(stream) = self.open.get_mut(&id) else {
            return Ok(());
        };
        let before = stream.ids.len();
        stream.ids.retain(|known| **known != *request);
        if stream.ids.len() < before && stream.held.is_none() && !stream.is_ending {
            let (last, calls) = (stream.last, stream.open_calls());
            return self.write(id, What::Open(last, calls));
        }
        Ok(())
    }

    /// Sends the headers of a held response as SSE, once the log knows the stream.
    pub(crate) fn open(&mut self, id: StreamId) -> Result<(), StoreError> {
        let Some(stream) = self.open.get_mut(&id) else {
            return Ok(());
        };
        let Some(held) = stream.held.take() else {
            return Ok(());
        };
        let attachment = stream.attach(0, false, &self.pulse);
        let (tail, calls) = (stream.tail.subscribe(), stream.open_calls());
        let reading = Box::new(self.reading(id, 0, tail, attachment));
        if self.owner.is_alone() {
            // A client that went away while the response was held: its stream goes on.
            let _ = held.reply.send(Answer::Stream(reading));
        } else {
            if let Some(stream) = self.open.get_mut(&id) {
                stream.opening = Some((held.reply, reading));
            }
            self.write(id, What::Open(0, calls))?;
        }
        for line in held.done {
            self.append(id, line)?;
        }
        Ok(())
    }

    /// Opens responses that were held for long enough. Returns when to look again.
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

    pub(crate) fn reading(
        &self,
        stream: StreamId,
        seq: u64,
        tail: watch::Receiver<Tail>,
        attachment: Arc<Attachment>,
    ) -> Reading {
        Reading::new(
            (Arc::clone(&self.log), Arc::clone(&self.owner)),
            self.key.clone(),
            self.session.clone(),
            (stream, seq),
            tail,
            attachment,
            self.revision,
        )
    }

    /// Puts a message on a stream, which becomes SSE by it. Returns its number.
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
        // A response is the end of a call that another replica would have to answer.
        let before = stream.ids.len();
        if before > 0 {
            let answered = json::get(&line, "method").is_none();
            let answered = answered.then(|| json::get(&line, "id")).flatten();
            stream.ids.retain(|id| Some(&**id) != answered);
        }
        let calls = (stream.ids.len() < before).then(|| stream.open_calls());
        self.write(id, What::Event(number, line, calls))?;
        Ok(number)
    }

    fn write(&mut self, id: StreamId, what: What) -> Result<(), StoreError> {
        if let Some(what) = self.writing.write(id, what)? {
            self.kept(id, &what);
        }
        Ok(())
    }

    /// The log has acknowledged a write: it may be sent.
    fn kept(&mut self, id: StreamId, what: &What) {
        let Some(stream) = self.open.get_mut(&id) else {
            return;
        };
        match what {
            What::Open(..) => {
                if let Some((reply, reading)) = stream.opening.take() {
                    // A client that went away while the response was held: its stream goes on.
                    let _ = reply.send(Answer::Stream(reading));
                }
            }
            What::Event(number, line, _) => {
                stream.bytes += line.len() as u64;
                stream.tail.send_modify(|tail| tail.last = *number);
            }
            What::End => {
                stream
                    .tail
                    .send_modify(|tail| tail.end = Some(StreamEnd::Finished));
                self.open.remove(&id);
            }
        }
    }

    /// Waits until the oldest write that is under way is kept; for ever, where none is.
    /// Cancel-safe.
    pub(crate) async fn written(&mut self) -> Result<(), StoreError> {
        let (stream, what) = self.writing.next().await?;
        self.kept(stream, &what);
        Ok(())
    }

    /// Whether every write is kept.
    pub(crate) fn is_kept(&self) -> bool {
        self.writing.is_empty()
    }

    /// Whether so much is under way to the log that the child should wait.
    pub(crate) fn is_full(&self) -> bool {
        self.writing.is_full()
    }

    /// Ends one call of a stream: with its response, or without (cancelled).
    pub(crate) fn finish_call(
        &mut self,
        id: StreamId,
        line: Option<Bytes>,
    ) -> Result<(), StoreError> {
        let Some(stream) = self.open.get_mut(&id) else {
            return Ok(());
        };
        stream.calls = stream.calls.saturating_sub(1);
        let is_last = stream.calls == 0 && id != LISTENER;
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

    /// Ends a call that no backend has seen: by `refusal` where nothing was sent.
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
                Answer::Json([b"[", &*done.join(&b","[..]), b"]"].concat().into())
            }
        };
        // A client that went away has lost it.
        let _ = reply.send(answer);
    }

    /// Nothing follows on a stream.
    pub(crate) fn finish(&mut self, id: StreamId) -> Result<(), StoreError> {
        let Some(stream) = self.open.get_mut(&id).filter(|stream| !stream.is_ending) else {
            return Ok(());
        };
        stream.is_ending = true;
        self.write(id, What::End)
    }

    /// Ends every stream, held ones with `refusal`; for the end of the session.
    pub(crate) fn release(&mut self, end: StreamEnd, refusal: impl Fn() -> Answer) {
        for (_, stream) in self.open.drain() {
            let opening = stream.opening.map(|(reply, _)| reply);
            if let Some(reply) = stream.held.map(|held| held.reply).or(opening) {
                let _ = reply.send(refusal());
            }
            stream.tail.send_modify(|tail| tail.end = Some(end));
        }
    }

    /// Ends every connection, to come again; the streams go on.
    pub(crate) fn send_away(&self) {
        self.open.values().for_each(Stream::release);
    }

    /// Wakes every connection: whether it may be served is another matter now.
    pub(crate) fn wake(&self) {
        for stream in self.open.values() {
            stream.tail.send_modify(|_| {});
        }
    }

    /// Lets go of connections that are gone.
    pub(crate) fn sweep(&mut self, now: Instant) {
        self.open.values_mut().for_each(|stream| stream.sweep(now));
    }

    /// Whether a reader is so far behind that the child should wait for it.
    pub(crate) fn is_behind(&self, id: StreamId) -> bool {
        self.open
            .get(&id)
            .is_some_and(|stream| !stream.is_given_up && stream.is_behind(self.bounds))
    }

    /// The child waits no longer for connections that are behind; retention will end them.
    pub(crate) fn give_up(&mut self) {
        for stream in self.open.values_mut() {
            stream.is_given_up = stream.is_behind(self.bounds);
        }
    }

    /// Whether any reader is.
    pub(crate) fn is_any_behind(&self) -> bool {
        self.open
            .values()
            .any(|stream| !stream.is_given_up && stream.is_behind(self.bounds))
    }

    /// Whether event `number` of a stream was handed to a connection.
    pub(crate) fn is_written(&self, id: StreamId, number: u64) -> bool {
        self.open
            .get(&id)
            .is_some_and(|stream| stream.written() >= number)
    }

    /// Whether a living connection is attached to the listener.
    pub(crate) fn is_listened_to(&self, now: Instant) -> bool {
        self.open.get(&LISTENER).is_some_and(|stream| {
            stream.attachments.iter().any(|attachment| {
                let taken = Duration::from_millis(attachment.taken.load(Ordering::Relaxed));
                now.saturating_duration_since(attachment.born + taken) < self.bounds.silence
            })
        })
    }

    /// Since when no connection is attached to the listener.
    pub(crate) fn unheard_since(&self) -> Option<Instant> {
        self.open.get(&LISTENER)?.detached
    }

    /// Held by every reader.
    pub(crate) fn pulse(&self) -> &Arc<Pulse> {
        &self.pulse
    }
}

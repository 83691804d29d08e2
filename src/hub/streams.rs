//! The streams of one session: which responses are still held, which are open, and which
//! connection reads each.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    sync::{oneshot, watch},
    time::Instant,
};

use super::{
    Answer, Form,
    fault::Status,
    reading::{Attachment, Pulse, Reading, StreamEnd, Tail},
};
use crate::{
    error::Error,
    protocol::{
        event::{Cursor, EventKey, LISTENER, StreamId},
        revision::Revision,
    },
    store::{EventLog, Fence, SessionId, Spot, StoreError},
};

/// All streams of a session that have not ended.
pub(crate) struct Streams {
    log: Arc<dyn EventLog>,
    key: EventKey,
    session: SessionId,
    fence: Fence,
    epoch: u32,
    bounds: Bounds,
    last: StreamId,
    open: HashMap<StreamId, Stream>,
    pulse: Arc<Pulse>,
    revision: Option<Revision>,
}

/// What bounds the streams of a session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Streams of calls, and connections, that a session may have at a time.
    pub(crate) streams: usize,
    /// A reader further behind than half of these makes the child wait.
    pub(crate) events: u64,
    /// Likewise in bytes.
    pub(crate) bytes: u64,
    /// A connection that took nothing for this long does not count as alive.
    pub(crate) silence: Duration,
}

/// One stream.
struct Stream {
    /// Calls whose response it waits for; the listener never ends with them.
    calls: usize,
    /// The response as long as it may still become JSON.
    held: Option<Held>,
    is_batch: bool,
    tail: watch::Sender<Tail>,
    bytes: u64,
    written: u64,
    attachments: Vec<Arc<Attachment>>,
    last_attachment: u32,
    /// When the last connection went; none while there is one.
    detached: Option<Instant>,
    /// Whether the child no longer waits for the attached connection.
    is_given_up: bool,
}

/// A response whose headers have not been sent.
struct Held {
    reply: oneshot::Sender<Answer>,
    form: Form,
    done: Vec<Bytes>,
}

impl Stream {
    fn new(calls: usize, held: Option<Held>, is_batch: bool, now: Instant) -> Self {
        Self {
            calls,
            held,
            is_batch,
            tail: watch::Sender::new(Tail::default()),
            bytes: 0,
            written: 0,
            attachments: Vec::new(),
            last_attachment: 0,
            detached: Some(now),
            is_given_up: false,
        }
    }

    fn written(&self) -> u64 {
        let of_all = self
            .attachments
            .iter()
            .map(|attachment| attachment.written.load(Ordering::Relaxed));
        of_all.max().unwrap_or(0).max(self.written)
    }

    fn attach(&mut self, cursor: u64, is_named: bool, pulse: &Arc<Pulse>) -> Arc<Attachment> {
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
        self.tail.send_modify(|tail| tail.attached = number);
        attachment
    }

    /// Lets go of connections that are gone; the youngest that is left is attached again.
    fn sweep(&mut self, now: Instant) {
        let is_open = |attachment: &Arc<Attachment>| !attachment.is_closed.load(Ordering::Relaxed);
        if self.attachments.iter().all(is_open) {
            return;
        }
        self.written = self.written();
        self.attachments.retain(is_open);
        match self.attachments.last() {
            Some(last) if last.number != self.tail.borrow().attached => {
                let (number, written) = (last.number, self.written);
                last.bytes.store(self.bytes, Ordering::Relaxed);
                self.tail
                    .send_modify(|tail| (tail.attached, tail.resume) = (number, written));
            }
            Some(_) => {}
            None => {
                self.detached.get_or_insert(now);
            }
        }
    }

    /// Whether the attached connection is so far behind that retention may overtake it.
    fn is_behind(&self, bounds: Bounds) -> bool {
        self.attachments.last().is_some_and(|attachment| {
            let last = self.tail.borrow().last;
            let events = last.saturating_sub(attachment.written.load(Ordering::Relaxed));
            let bytes = self
                .bytes
                .saturating_sub(attachment.bytes.load(Ordering::Relaxed));
            events > bounds.events / 2 || bytes > bounds.bytes / 2
        })
    }
}

impl Streams {
    /// The listener alone.
    pub(crate) fn new(
        log: Arc<dyn EventLog>,
        key: EventKey,
        session: SessionId,
        (fence, epoch): (Fence, u32),
        bounds: Bounds,
        pulse: Arc<Pulse>,
    ) -> Self {
        let open = HashMap::from([(LISTENER, Stream::new(0, None, false, Instant::now()))]);
        Self {
            log,
            key,
            session,
            fence,
            epoch,
            bounds,
            last: LISTENER,
            open,
            pulse,
            revision: None,
        }
    }

    /// The session has negotiated a revision.
    pub(crate) fn settle(&mut self, revision: Revision) {
        self.revision = Some(revision);
    }

    /// Begins the response to `calls` requests of one POST.
    pub(crate) fn begin(
        &mut self,
        calls: usize,
        form: Form,
        is_batch: bool,
        reply: oneshot::Sender<Answer>,
    ) -> Result<StreamId, (Error, oneshot::Sender<Answer>)> {
        if self.open.len() > self.bounds.streams {
            let retry = Duration::from_secs(1);
            return Err((
                Error::Limit {
                    what: "streams of the session",
                    retry,
                },
                reply,
            ));
        }
        self.last += 1;
        let held = Held {
            reply,
            form,
            done: Vec::new(),
        };
        self.open.insert(
            self.last,
            Stream::new(calls, Some(held), is_batch, Instant::now()),
        );
        Ok(self.last)
    }

    /// Sends the headers of a held response as SSE.
    pub(crate) async fn open(&mut self, id: StreamId) -> Result<(), StoreError> {
        let Some(stream) = self.open.get_mut(&id) else {
            return Ok(());
        };
        let Some(held) = stream.held.take() else {
            return Ok(());
        };
        let attachment = stream.attach(0, false, &self.pulse);
        let tail = stream.tail.subscribe();
        let reading = self.reading(id, 0, tail, attachment);
        // A client that went away while the response was held: its stream goes on.
        let _ = held.reply.send(Answer::Stream(Box::new(reading)));
        for line in held.done {
            self.append(id, line).await?;
        }
        Ok(())
    }

    fn reading(
        &self,
        stream: StreamId,
        seq: u64,
        tail: watch::Receiver<Tail>,
        attachment: Arc<Attachment>,
    ) -> Reading {
        let at = Cursor {
            stream,
            epoch: self.epoch,
            seq,
        };
        let (log, key, session) = (
            Arc::clone(&self.log),
            self.key.clone(),
            self.session.clone(),
        );
        Reading::new(log, key, session, at, tail, attachment, self.revision)
    }

    /// Puts a message on a stream, which becomes SSE by it. Returns its number.
    pub(crate) async fn message(&mut self, id: StreamId, line: Bytes) -> Result<u64, StoreError> {
        self.open(id).await?;
        self.append(id, line).await
    }

    async fn append(&mut self, id: StreamId, line: Bytes) -> Result<u64, StoreError> {
        let Some(stream) = self.open.get_mut(&id) else {
            return Ok(0);
        };
        let at = Spot {
            session: self.session.clone(),
            stream: id,
            fence: self.fence,
            epoch: self.epoch,
        };
        let bytes = line.len() as u64;
        let last = stream.tail.borrow().last + 1;
        self.log.append(&at, last, line, None).await?;
        stream.bytes += bytes;
        stream.tail.send_modify(|tail| tail.last = last);
        Ok(last)
    }

    /// Ends one call of a stream: with its response, or without (cancelled).
    pub(crate) async fn finish_call(
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
            self.message(id, line).await?;
        }
        if is_last {
            self.finish(id).await
        } else {
            Ok(())
        }
    }

    /// Ends a call that no backend has seen: by a status where nothing was sent.
    pub(super) async fn refuse_call(
        &mut self,
        id: StreamId,
        line: Bytes,
        status: Status,
    ) -> Result<(), StoreError> {
        if let Some(stream) = self.open.get_mut(&id).filter(|stream| !stream.is_batch)
            && let Some(held) = stream.held.take()
        {
            self.open.remove(&id);
            let _ = held.reply.send(Answer::Refused(status.error()));
            return Ok(());
        }
        self.finish_call(id, Some(line)).await
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
        // A client that went away has lost it (DESIGN section 2).
        let _ = reply.send(answer);
    }

    async fn finish(&mut self, id: StreamId) -> Result<(), StoreError> {
        let Some(stream) = self.open.remove(&id) else {
            return Ok(());
        };
        let at = Spot {
            session: self.session.clone(),
            stream: id,
            fence: self.fence,
            epoch: self.epoch,
        };
        let ended = self.log.end(&at).await;
        stream
            .tail
            .send_modify(|tail| tail.end = Some(StreamEnd::Finished));
        ended
    }

    /// Ends every stream, held ones with `refusal`; for the end of the session.
    pub(crate) fn release(&mut self, end: StreamEnd, refusal: impl Fn() -> Answer) {
        for (_, stream) in self.open.drain() {
            if let Some(held) = stream.held {
                let _ = held.reply.send(refusal());
            }
            stream.tail.send_modify(|tail| tail.end = Some(end));
        }
    }

    /// Attaches a connection to the listener (no cursor), or to the stream of a cursor.
    ///
    /// # Errors
    ///
    /// `Gone` for a cursor whose events are not kept, `NoCursor` for one that never was,
    /// `Limit` for too many connections; `Ok(None)` at the end of a stream that has ended.
    pub(crate) async fn attach(
        &mut self,
        cursor: Option<Cursor>,
    ) -> Result<Option<Reading>, Error> {
        let attached: usize = self
            .open
            .values()
            .map(|stream| stream.attachments.len())
            .sum();
        if attached >= self.bounds.streams * 2 {
            let retry = Duration::from_secs(1);
            return Err(Error::Limit {
                what: "connections of the session",
                retry,
            });
        }
        if cursor.is_some_and(|cursor| cursor.epoch != self.epoch) {
            return Err(Error::Gone);
        }
        let id = cursor.map_or(LISTENER, |cursor| cursor.stream);
        let (last, written) = match self.open.get(&id) {
            Some(stream) => (stream.tail.borrow().last, stream.written()),
            None => {
                return self
                    .attach_ended(id, cursor.map_or(0, |cursor| cursor.seq))
                    .await;
            }
        };
        let mut seq = cursor.map_or(written, |cursor| cursor.seq);
        if seq > last {
            return Err(Error::NoCursor);
        }
        if seq < last {
            match self.log.read(&self.session, id, seq).await {
                Ok(_) => {}
                Err(StoreError::Trimmed { oldest }) if cursor.is_none() => seq = oldest,
                Err(_) => return Err(Error::Gone),
            }
        }
        let Some(stream) = self.open.get_mut(&id) else {
            return Err(Error::Bug("a stream vanished"));
        };
        let attachment = stream.attach(seq, cursor.is_some(), &self.pulse);
        let tail = stream.tail.subscribe();
        Ok(Some(self.reading(id, seq, tail, attachment)))
    }

    async fn attach_ended(&self, id: StreamId, seq: u64) -> Result<Option<Reading>, Error> {
        match self.log.read(&self.session, id, seq).await {
            Ok(page) if page.events.is_empty() => return Ok(None),
            Ok(_) => {}
            Err(_) => return Err(Error::Gone),
        }
        // Nobody writes to it any more.
        let mut stream = Stream::new(0, None, false, Instant::now());
        let attachment = stream.attach(seq, true, &self.pulse);
        stream.tail.send_modify(|tail| {
            (tail.last, tail.end) = (u64::MAX, Some(StreamEnd::Finished));
        });
        Ok(Some(self.reading(
            id,
            seq,
            stream.tail.subscribe(),
            attachment,
        )))
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

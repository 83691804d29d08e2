//! Socket between hyper and the network: bounds of what is read ahead of a request, and a lingering close.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::future::BoxFuture;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use super::dense::Dense;
use super::frames::Frames;
use super::requests::Requests;
use crate::base::budget::{Budget, Drawn};

/// A socket that is read within bounds, and closed in two steps.
///
/// Of HTTP/1 hyper keeps up to 112 KiB that no request has taken: a head that is not complete, what comes behind a
/// request that is under way, or trailers. Of HTTP/2 h2 keeps the fields of a header block without its end. From
/// [`AHEAD`] on that is drawn from the share of the peer's address, and a head has [`HEAD`] to come, the first one of a
/// connection apart, whose time `accept` keeps. Trailers of HTTP/2 stay with their stream though nobody reads them, so
/// that long ones end the connection. Buffers that its table of header fields keeps are drawn from the share as long as
/// the connection lives, as is hyper's buffer of HTTP/1 once it has grown beyond [`ROOM`]: it never shrinks. Bodies do not
/// let it grow, since [`READ`] bytes are read at a time.
///
/// If a socket is closed while the peer is still sending, the kernel sends a reset, which can overtake
/// the response (413, 408). After the write side is shut down, input is therefore discarded for a
/// moment; none of it reaches the parser.
pub(crate) struct Wire<S> {
    /// Socket or TLS stream.
    io: TokioIo<S>,
    /// The lingering close; set when the write side is shut down.
    closing: Option<Box<Closing>>,
    /// The requests of the connection; without them it is read without bounds.
    requests: Option<Arc<Requests>>,
    /// How far it was read ahead of them.
    progress: Progress,
    /// What most connections never need.
    unparsed: Option<Box<Unparsed>>,
}

/// How far a connection was read ahead of its requests.
enum Progress {
    Http1(Ahead),
    /// Boxed, so that connections of HTTP/1 do not pay for it.
    Http2(Box<Blocks>),
}

/// What header blocks of a connection of HTTP/2 may have, beyond which it ends.
#[derive(Clone, Copy)]
pub(super) struct BlockBounds {
    /// Bytes of trailers.
    pub(super) trailers: usize,
    /// Fields of a frame, all of which are decoded at once.
    pub(super) fields: usize,
}

/// Header blocks of a connection of HTTP/2.
struct Blocks {
    frames: Frames,
    bounds: BlockBounds,
    /// What is held of the share of the address for what the table of fields keeps.
    table: Option<Drawn>,
    /// What was read and waits in the line of the address.
    dense: Option<Dense>,
}

/// What of HTTP/1 was read ahead of a request.
#[derive(Default)]
struct Ahead {
    /// The most bytes that hyper may have of it.
    bytes: usize,
    /// Bytes of the last read.
    last: usize,
    /// Bytes that were read since hyper's buffer was empty, or since a request was taken from it.
    fresh: u32,
    /// The most that its buffer had room for, in KiB.
    room: u16,
    /// Whether that ended with the end of a line.
    ends_line: bool,
    /// Whether nothing but ends of lines may have come since the last answer.
    is_idle: bool,
}

/// The bounds of what was read ahead of a request.
#[derive(Default)]
struct Unparsed {
    /// What is held for it of the share of the address.
    held: Option<Drawn>,
    /// The end of the time for a head that has begun.
    deadline: Option<Pin<Box<Sleep>>>,
}

/// What is left of a connection whose write side is shut down.
struct Closing {
    /// The end of its time.
    end: Pin<Box<Sleep>>,
    /// Bytes discarded so far.
    discarded: usize,
    /// The place in the line of those that discard.
    in_line: Option<BoxFuture<'static, ()>>,
}

impl<S> Wire<S> {
    /// Wraps a connected stream.
    pub(crate) fn new(stream: S) -> Self {
        Self {
            io: TokioIo::new(stream),
            closing: None,
            requests: None,
            progress: Progress::Http1(Ahead::default()),
            unparsed: None,
        }
    }

    /// Wraps a stream that HTTP/1 requests come by.
    pub(super) fn of_http1(stream: S, requests: Arc<Requests>) -> Self {
        Self {
            requests: Some(requests),
            ..Self::new(stream)
        }
    }

    /// Wraps a stream that HTTP/2 requests come by, with header blocks of no more than this.
    pub(super) fn of_http2(stream: S, requests: Arc<Requests>, bounds: BlockBounds) -> Self {
        let blocks = Blocks {
            frames: Frames::new(),
            bounds,
            table: None,
            dense: None,
        };
        Self {
            requests: Some(requests),
            progress: Progress::Http2(Box::new(blocks)),
            ..Self::new(stream)
        }
    }
}

impl<S> Wire<S> {
    /// Goes on in the line of the address where nothing is read.
    fn go_on_in_line(&mut self, cx: &mut Context<'_>) {
        if let Progress::Http2(blocks) = &mut self.progress {
            blocks.go_on_in_line(cx);
        }
    }
}

impl Ahead {
    /// Notes what was `taken` of it since the last read.
    fn take(
        &mut self,
        taken: usize,
        may_have_trailers: bool,
        (is_under_way, was_answered): (bool, bool),
    ) {
        if is_under_way || taken > 0 {
            self.fresh = 0;
        }
        if is_under_way {
            // Behind a head or a part of a body hyper reads on only when nothing is left of what it has read, though the
            // part may still wait to be taken. Trailers it keeps until it has all of them.
            if taken > 0 || !may_have_trailers {
                self.bytes = 0;
            }
        } else if was_answered || taken > 0 {
            // A request that was taken has its end in the last read: heads are looked at after each read, and bodies
            // are read when nothing else is left.
            self.bytes = self.bytes.min(self.last).saturating_sub(taken);
            // The end of a line behind a body is no head, though some clients send one (RFC 9112, section 2.2): the time
            // of an idle connection is for it.
            self.is_idle = self.bytes == 0 || self.ends_line;
        }
    }

    /// Notes what was read.
    fn note(&mut self, read: &[u8]) {
        if read.is_empty() {
            return;
        }
        self.bytes += read.len();
        self.last = read.len();
        let length = u32::try_from(read.len()).unwrap_or(u32::MAX);
        self.fresh = self.fresh.saturating_add(length);
        self.ends_line = read.ends_with(b"\n");
        self.is_idle &= read.iter().all(|byte| b"\r\n".contains(byte));
    }

    /// Notes for how much more hyper's buffer has room before a read.
    fn note_room(&mut self, free: usize) {
        let room = (self.fresh as usize + free) >> 10;
        let room = u16::try_from(room).unwrap_or(u16::MAX);
        self.room = self.room.max(room);
    }

    /// What hyper's buffer has grown by; nothing if it is no longer than usual.
    fn grown(&self) -> usize {
        let room = usize::from(self.room) << 10;
        if room > ROOM { room - AHEAD } else { 0 }
    }

    fn poll_read<S: AsyncRead + Unpin>(
        &mut self,
        stream: &mut S,
        (requests, unparsed): (&Requests, &mut Option<Box<Unparsed>>),
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let (is_under_way, was_answered) = (requests.is_under_way(), requests.was_answered());
        let (taken, may_have_trailers) = (requests.taken(), requests.may_have_trailers());
        self.take(taken, may_have_trailers, (is_under_way, was_answered));
        if (is_under_way || was_answered)
            && let Some(unparsed) = unparsed.as_mut()
        {
            unparsed.deadline = None;
        }
        self.note_room(buf.remaining());
        if self.grown() > 0 {
            requests.note_grown();
        }
        let mut most = buf.remaining().min(READ);
        if self.bytes + most > AHEAD {
            let unparsed = unparsed.get_or_insert_default();
            let Some(room) = unparsed.room(requests, self.bytes, most) else {
                return out_of_memory(requests);
            };
            most = room;
        }
        let mut read = TokioIo::new(Seen {
            stream,
            most,
            pass: |read: &[u8]| {
                self.note(read);
                true
            },
        });
        let result = Pin::new(&mut read).poll_read(cx, buf);
        if let Some(unparsed) = unparsed.as_mut() {
            unparsed.hold(requests, self.bytes, self.grown());
        }
        let is_head = self.bytes > 0 && !is_under_way && !self.is_idle;
        if result.is_pending() && is_head {
            let unparsed = unparsed.get_or_insert_default();
            ready!(unparsed.poll_deadline(cx));
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        result
    }
}

/// Reads frames of HTTP/2, and bounds trailers, a header block until it has its end, and what the table of fields keeps.
fn poll_frames<S: AsyncRead + Unpin>(
    blocks: &mut Blocks,
    stream: &mut S,
    (requests, unparsed): (&Requests, &mut Option<Box<Unparsed>>),
    cx: &mut Context<'_>,
    buf: ReadBufCursor<'_>,
) -> Poll<io::Result<()>> {
    if let Some(dense) = &mut blocks.dense {
        if ready!(dense.poll_part(cx, buf)) {
            blocks.dense = None;
        }
        return Poll::Ready(Ok(()));
    }
    let (most, mut has_ended, mut dense) = (buf.remaining(), false, None);
    let frames = &mut blocks.frames;
    let mut read = TokioIo::new(Seen {
        stream,
        most,
        pass: |read: &[u8]| {
            let before = frames.fields();
            has_ended = frames.follow(read);
            let fields = frames.fields().wrapping_sub(before);
            dense = Dense::of(read, fields, || requests.share());
            dense.is_none()
        },
    });
    let mut result = Pin::new(&mut read).poll_read(cx, buf);
    if blocks.are_refused() {
        *unparsed = None;
        return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
    }
    let waits = dense.is_some();
    if let Some(dense) = blocks.wait_in_line(dense) {
        if dense.is_too_much(AHEAD) {
            *unparsed = None;
            return out_of_memory(requests);
        }
        result = dense.begin(cx);
    }
    if !blocks.hold_table(requests) {
        *unparsed = None;
        return out_of_memory(requests);
    }
    let frames = &blocks.frames;
    if !frames.are_within_block() {
        *unparsed = None;
        return result;
    }
    let bounds = unparsed.get_or_insert_default();
    if has_ended {
        // That of another block.
        bounds.deadline = None;
    }
    let kept = frames.kept();
    bounds.hold(requests, kept, 0);
    if result.is_pending() && !waits {
        ready!(bounds.poll_deadline(cx));
        return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
    }
    if kept > AHEAD && bounds.is_too_much(requests) {
        *unparsed = None;
        return out_of_memory(requests);
    }
    result
}

impl Blocks {
    /// Keeps what was read until its turn, if it has to wait for one.
    fn wait_in_line(&mut self, dense: Option<Dense>) -> Option<&mut Dense> {
        self.dense = dense;
        self.dense.as_mut()
    }

    /// Whether the connection ends by them.
    fn are_refused(&self) -> bool {
        let Self { frames, bounds, .. } = self;
        let are_long = frames.longest_trailers() > bounds.trailers;
        are_long || frames.most_fields() > bounds.fields || frames.is_wrong()
    }

    /// Goes on in line though nothing is read, since the turn is none of this connection's any more once it is had: h2 reads
    /// nothing as long as it has to write something of its own first.
    fn go_on_in_line(&mut self, cx: &mut Context<'_>) {
        if let Some(dense) = &mut self.dense {
            dense.go_on(cx);
        }
    }

    /// Holds what the table of fields keeps; whether the share of the address has room for more, if it is more.
    fn hold_table(&mut self, requests: &Requests) -> bool {
        let kept = self.frames.kept_by_table();
        if kept == self.table.as_ref().map_or(0, Drawn::amount) {
            return true;
        }
        let Some(held) = held_of(&mut self.table, requests) else {
            return true;
        };
        let is_more = kept > held.amount();
        set_held(held, kept);
        !(is_more && held.is_too_much())
    }
}

/// What is held of the share of the address, once there is anything; none at listeners that are not for everybody.
fn held_of<'h>(held: &'h mut Option<Drawn>, requests: &Requests) -> Option<&'h mut Drawn> {
    if held.is_none() {
        *held = requests.share().map(|share| share.hold(0));
    }
    held.as_mut()
}

/// Holds as much as this.
fn set_held(held: &mut Drawn, wanted: u64) {
    let amount = held.amount();
    if wanted > amount {
        held.add(wanted - amount);
    }
    if wanted < amount {
        held.give_back(amount - wanted);
    }
}

/// Ends a connection, since the share of the address has no room for what is read of it.
fn out_of_memory(requests: &Requests) -> Poll<io::Result<()>> {
    requests.count_refused();
    Poll::Ready(Err(io::ErrorKind::OutOfMemory.into()))
}

impl Unparsed {
    /// How many of `most` bytes may be read behind `ahead` bytes; none if the share of the address has no room.
    fn room(&mut self, requests: &Requests, ahead: usize, most: usize) -> Option<usize> {
        if !self.is_too_much(requests) {
            return Some(most);
        }
        let left = AHEAD.saturating_sub(ahead);
        (left > 0).then_some(left)
    }

    /// Whether the share of the address holds more than it may.
    fn is_too_much(&mut self, requests: &Requests) -> bool {
        held_of(&mut self.held, requests).is_some_and(|held| held.is_too_much())
    }

    /// Holds as much as is read ahead, if that is more than every connection may have, or what the buffer of that has
    /// `grown` by.
    fn hold(&mut self, requests: &Requests, ahead: usize, grown: usize) {
        let wanted = if ahead > AHEAD { ahead as u64 } else { 0 };
        let wanted = wanted.max(grown as u64);
        if wanted == 0 && self.held.is_none() {
            return;
        }
        if let Some(held) = held_of(&mut self.held, requests) {
            set_held(held, wanted);
        }
    }

    /// Waits for the end of the time for a head.
    fn poll_deadline(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(sleep(HEAD)));
        deadline.as_mut().poll(cx)
    }
}

/// A stream for one read, of which what was read is seen: the caller's buffer does not tell what came into it. What it is
/// not to have is taken out again.
struct Seen<'s, S, F> {
    stream: &'s mut S,
    /// The most bytes that are read.
    most: usize,
    /// Gets what was read; whether the caller gets it as well.
    pass: F,
}

impl<S: AsyncRead + Unpin, F: FnMut(&[u8]) -> bool + Unpin> AsyncRead for Seen<'_, S, F> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let stream = Pin::new(&mut *this.stream);
        let before = buf.filled().len();
        if this.most >= buf.remaining() {
            ready!(stream.poll_read(cx, buf))?;
        } else {
            let mut part = ReadBuf::new(buf.initialize_unfilled_to(this.most));
            ready!(stream.poll_read(cx, &mut part))?;
            let length = part.filled().len();
            buf.advance(length);
        }
        if !(this.pass)(&buf.filled()[before..]) {
            buf.set_filled(before);
        }
        Poll::Ready(Ok(()))
    }
}

impl Closing {
    fn new() -> Self {
        Self {
            end: Box::pin(sleep(LINGER)),
            discarded: 0,
            in_line: None,
        }
    }

    /// Discards input until the peer closes, the time is over or the limit is reached.
    fn poll<S: AsyncRead + Unpin>(&mut self, stream: &mut S, cx: &mut Context<'_>) -> Poll<()> {
        // Others go first: peers may send as fast as this is done, and there may be thousands of them.
        if self.in_line.is_none() && DISCARDS.is_busy() {
            self.in_line = Some(Box::pin(others_first()));
        }
        let mut scratch = [MaybeUninit::uninit(); DISCARD_CHUNK];
        let mut step = self.discarded + DISCARD_STEP;
        while self.discarded < DISCARD_MAX {
            if let Some(line) = &mut self.in_line {
                if line.as_mut().poll(cx).is_pending() {
                    return self.end.as_mut().poll(cx);
                }
                self.in_line = None;
            }
            if self.discarded >= step {
                step += DISCARD_STEP;
                self.in_line = Some(Box::pin(others_first()));
                continue;
            }
            let mut buf = ReadBuf::uninit(&mut scratch);
            match Pin::new(&mut *stream).poll_read(cx, &mut buf) {
                Poll::Ready(Ok(())) if !buf.filled().is_empty() => {
                    self.discarded += buf.filled().len();
                }
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => return self.end.as_mut().poll(cx),
            }
        }
        Poll::Ready(())
    }
}

impl<S: AsyncRead + Unpin> Read for Wire<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let Self {
            io,
            requests,
            progress,
            unparsed,
            closing: _,
        } = &mut *self;
        let Some(requests) = requests else {
            return Pin::new(io).poll_read(cx, buf);
        };
        let (stream, requests) = (io.inner_mut(), &**requests);
        match progress {
            Progress::Http1(ahead) => ahead.poll_read(stream, (requests, unparsed), cx, buf),
            Progress::Http2(blocks) => poll_frames(blocks, stream, (requests, unparsed), cx, buf),
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Write for Wire<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.go_on_in_line(cx);
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.go_on_in_line(cx);
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        // What was read is not parsed any more.
        this.unparsed = None;
        if let Progress::Http2(blocks) = &mut this.progress {
            blocks.dense = None;
        }
        let Self { io, closing, .. } = this;
        if closing.is_none() {
            ready!(Pin::new(&mut *io).poll_shutdown(cx))?;
        }
        let closing = closing.get_or_insert_with(|| Box::new(Closing::new()));
        closing.poll(io.inner_mut(), cx).map(Ok)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.go_on_in_line(cx);
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }
}

/// Lets others go first: other connections that discard, and everything else, of which all discards together
/// leave most of the time.
async fn others_first() {
    DISCARDS.others_first().await;
    let until = DISCARDS.pace(DISCARD_COST);
    if until > Instant::now() + DISCARD_AHEAD {
        sleep_until(until).await;
    }
}

/// Bytes ahead of a request that do not count: the buffer of hyper that every connection has.
const AHEAD: usize = 8 << 10;
/// The buffer that hyper makes of those for bodies, and for heads of up to 16 KiB in few parts.
const ROOM: usize = 24 << 10;
/// Bytes of HTTP/1 that are read at a time. hyper makes its next read twice as long behind each one that fills it, up to
/// 64 KiB, and this is less than the second one.
const READ: usize = (16 << 10) - 1;
/// Time limit for a head from its first bytes on.
pub(super) const HEAD: Duration = Duration::from_secs(10);
/// Duration of a lingering close: longer than any round trip.
const LINGER: Duration = Duration::from_secs(1);
/// Limit of discarded bytes, beyond which the peer gets a reset.
const DISCARD_MAX: usize = 16 << 20;
/// Bytes discarded at a time: some ten microseconds.
const DISCARD_STEP: usize = 32 << 10;
/// What a step counts as: 256 MiB a second.
const DISCARD_COST: Duration = Duration::from_micros(125);
/// How far discards may be ahead of that.
const DISCARD_AHEAD: Duration = Duration::from_millis(2);
/// Whose turn it is to discard, of all connections together.
static DISCARDS: LazyLock<Arc<Budget>> = LazyLock::new(|| Budget::new(0).share());
/// Size of the buffer, which lies on the stack of the worker and not in the connection.
const DISCARD_CHUNK: usize = 8 << 10;

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::AsyncWriteExt;

    use super::*;

    /// A peer that sent as fast as its input was discarded kept a worker for a millisecond at a time.
    #[tokio::test]
    async fn input_is_discarded_in_steps_and_up_to_a_limit() {
        let (stream, mut peer) = tokio::io::duplex(DISCARD_MAX + DISCARD_STEP);
        let all = vec![0; DISCARD_MAX + DISCARD_STEP];
        peer.write_all(&all).await.unwrap();
        let mut wire = Wire::new(stream);
        // The runtime's own limit is not what this is about.
        tokio::task::unconstrained(poll_fn(|cx| {
            let before = discarded(&wire);
            let closed = Pin::new(&mut wire).poll_shutdown(cx);
            assert!(discarded(&wire) - before <= DISCARD_STEP);
            closed
        }))
        .await
        .unwrap();
        assert_eq!(discarded(&wire), DISCARD_MAX);
    }

    #[tokio::test]
    async fn a_peer_that_closes_is_discarded_to_its_end() {
        let (stream, mut peer) = tokio::io::duplex(1 << 20);
        peer.write_all(&vec![0; 3 * DISCARD_STEP]).await.unwrap();
        drop(peer);
        let mut wire = Wire::new(stream);
        // Each step wakes its task for the next one.
        let closed = poll_fn(|cx| Pin::new(&mut wire).poll_shutdown(cx));
        let closed = tokio::time::timeout(LINGER * 5, closed).await;
        closed.expect("nothing woke it").unwrap();
        assert_eq!(discarded(&wire), 3 * DISCARD_STEP);
    }

    /// Four thousand clients that went on with bodies that had been refused made others wait ten milliseconds.
    #[tokio::test]
    async fn input_of_many_peers_is_discarded_by_few_at_a_time() {
        let mut peers = Vec::new();
        let mut wires: Vec<_> = (0..100)
            .map(|_| {
                let (stream, peer) = tokio::io::duplex(4 * DISCARD_STEP);
                peers.push(peer);
                Wire::new(stream)
            })
            .collect();
        for peer in &mut peers {
            peer.write_all(&vec![0; 3 * DISCARD_STEP]).await.unwrap();
        }
        // Not the runtime's own limit either.
        tokio::task::unconstrained(poll_fn(|cx| {
            for wire in &mut wires {
                _ = Pin::new(wire).poll_shutdown(cx);
            }
            Poll::Ready(())
        }))
        .await;
        let begun = wires.iter().filter(|wire| discarded(wire) > 0).count();
        assert!((1..=8).contains(&begun), "{begun}");
        drop(peers);
        let closed = wires
            .iter_mut()
            .map(|wire| poll_fn(|cx| Pin::new(&mut *wire).poll_shutdown(cx)));
        let closed = futures_util::future::join_all(closed);
        let closed = tokio::time::timeout(LINGER * 5, closed).await;
        closed.expect("nothing woke one");
        assert!(wires.iter().all(|wire| discarded(wire) == 3 * DISCARD_STEP));
    }

    /// What is discarded in a second leaves a worker most of it.
    #[tokio::test]
    async fn discarding_leaves_time_to_others() {
        let began = Instant::now();
        let (stream, mut peer) = tokio::io::duplex(DISCARD_MAX + DISCARD_STEP);
        peer.write_all(&vec![0; DISCARD_MAX]).await.unwrap();
        let mut wire = Wire::new(stream);
        let closed = poll_fn(|cx| Pin::new(&mut wire).poll_shutdown(cx));
        closed.await.unwrap();
        let steps = u32::try_from(DISCARD_MAX / DISCARD_STEP).unwrap();
        assert!(began.elapsed() + DISCARD_AHEAD * 2 >= DISCARD_COST * steps);
    }

    /// Where its address had no more room, a request was cut off whose body had come: the look for the end of the
    /// connection comes before the last part is taken.
    #[test]
    fn the_last_part_of_a_body_with_a_length_is_not_ahead() {
        for (may_have_trailers, left) in [(false, 0), (true, 9000)] {
            let mut ahead = Ahead::default();
            ahead.note(&[0; 9000]);
            ahead.take(0, may_have_trailers, (true, false));
            assert_eq!(ahead.bytes, left);
        }
    }

    /// What was read with each request was ahead of all further ones.
    #[test]
    fn what_is_left_behind_a_request_is_of_the_last_read() {
        let mut ahead = Ahead::default();
        for _ in 0..1000 {
            ahead.take(0, false, (false, false));
            ahead.note(&[b"POST".repeat(100), b"\r\n".to_vec()].concat());
            // The body was taken; there was no read while the request was under way.
            ahead.take(300, false, (false, true));
            assert_eq!((ahead.bytes, ahead.is_idle), (102, true));
        }
        ahead.note(b"\r\n");
        assert!(ahead.is_idle);
        ahead.note(b"GET / HTTP/1.1\r\n");
        assert!(!ahead.is_idle);
        // A body that is read while its request is under way, and trailers.
        ahead.take(1, true, (true, false));
        assert_eq!(ahead.bytes, 0);
        ahead.note(&[b'x'; 1000]);
        ahead.take(1000, true, (true, false));
        for number in 1..=3 {
            ahead.note(&[b'x'; 1000]);
            ahead.take(0, true, (true, false));
            assert_eq!(ahead.bytes, number * 1000);
        }
    }

    /// What a long head made of the buffer was counted until the head was taken.
    #[test]
    fn a_buffer_that_has_grown_counts_as_long_as_its_connection_lives() {
        let mut ahead = Ahead::default();
        for (free, read) in [
            (8192, 8192),
            (16_384, READ),
            (24_577, READ),
            (57_346, 20_000),
        ] {
            ahead.take(0, false, (false, false));
            ahead.note_room(free);
            ahead.note(&vec![b'x'; read]);
        }
        assert_eq!(ahead.grown(), (96 << 10) - AHEAD);
        ahead.take(1, false, (false, true));
        ahead.note_room(96 << 10);
        ahead.note(&[b'x'; 100]);
        ahead.take(1, false, (false, true));
        ahead.note_room(8192);
        assert_eq!(ahead.grown(), (96 << 10) - AHEAD);
    }

    /// They would take room though hyper's buffer is that of all others.
    #[test]
    fn usual_heads_and_bodies_let_no_buffer_grow() {
        // A head of 16 KiB, and the next one into the buffer that is left.
        let mut ahead = Ahead::default();
        for (free, read) in [(8192, 8192), (16_384, 8192)] {
            ahead.take(0, false, (false, false));
            ahead.note_room(free);
            ahead.note(&vec![b'x'; read]);
        }
        ahead.take(1, false, (false, true));
        ahead.note_room(24 << 10);
        assert_eq!(ahead.grown(), 0);
        // A body, and trailers that are kept elsewhere: hyper's buffer is empty before each read.
        for taken in [READ, 0] {
            for _ in 0..100 {
                ahead.take(taken, true, (true, false));
                ahead.note_room(24 << 10);
                ahead.note(&[b'x'; READ]);
            }
        }
        assert_eq!(ahead.grown(), 0);
    }

    fn discarded<S>(wire: &Wire<S>) -> usize {
        wire.closing.as_ref().map_or(0, |closing| closing.discarded)
    }
}

//! Lines of a child's stdout, cut from the bytes of its pipe.
//!
//! Bounds the memory that a line takes, and takes arrays of messages apart. No I/O; not here: the pipe
//! (`stdio`), and the meaning of lines (`dialect`).

use bytes::{Buf, Bytes, BytesMut};

use crate::protocol::{Body, json};

/// Bytes of stdout that are not yet returned as lines.
#[derive(Debug)]
pub(super) struct Lines {
    /// Bytes read and not yet returned.
    read: BytesMut,
    /// Leading bytes of `read` without a line end.
    scanned: usize,
    /// Room for the next read, in bytes.
    room: usize,
    /// Full reads since the buffer was empty, or its child was slowed down.
    full: u32,
    /// Limit of a line, in bytes.
    limit: usize,
    /// State of stdout.
    output: Output,
    /// Whether a line that is an array is returned item by item.
    has_arrays: bool,
    /// What is left of an array that is being returned, and the length of the whole. Its items are found
    /// one by one: a list of them could take more than the line.
    array: Option<(Bytes, usize)>,
}

/// What stdout has next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// A line, without its line end.
    Line(Bytes),
    /// A line above the limit; the rest of stdout is discarded.
    TooLong,
    /// The end; reported once.
    End,
}

/// State of a child's stdout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Output {
    /// Lines are returned.
    Lines,
    /// A line was too long, or none is wanted: the rest is discarded.
    Discarded,
    /// The end was reported.
    Closed,
}

impl Lines {
    /// Makes an empty buffer for lines of at most `limit` bytes.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            read: BytesMut::new(),
            scanned: 0,
            room: CHUNK,
            full: 0,
            limit,
            output: Output::Lines,
            has_arrays: false,
            array: None,
        }
    }

    /// Returns arrays item by item from now on (2025-03-26 basic, "Batching"): the reader may
    /// pause between two of them.
    pub(super) fn split_arrays(&mut self) {
        self.has_arrays = true;
    }

    /// The buffer for the next read, with room; [`Self::was_read`] must follow.
    pub(super) fn room(&mut self) -> &mut BytesMut {
        let length = self.read.len();
        // Behind the short beginning of a line there is less room, in the buffer that it was read into:
        // another one would be much larger.
        let room = match length {
            _ if length <= self.room / 2 => self.room - length,
            _ => CHUNK,
        };
        if self.read.capacity() - length < room {
            // Reuses freed room, or grows: a large line is moved twice, as what it leaves behind is
            // free only when the allocator gives it back. Memory that is not written to costs nothing.
            let more = match length {
                0..CHUNK => room,
                // Also among many children a line of a pipe's size takes three reads, each in its turn.
                CHUNK..PIPE => room.max(4 * length),
                PIPE.. => (length * 15).min((self.limit + PIPE).saturating_sub(length)),
            };
            self.read.reserve(more.max(room));
        }
        &mut self.read
    }

    /// Adapts the size of reads after one into [`Self::room`]; they stay small while many children are read:
    /// what is read waits until it is its turn.
    pub(super) fn was_read(&mut self, is_one_of_many: bool) {
        if self.read.len() < self.read.capacity() || is_one_of_many {
            return;
        }
        // The read was full: larger pieces of a long line, and of short ones once they are seen to be taken.
        self.full += 1;
        if self.full >= FULL || memchr::memchr(b'\n', &self.read).is_none() {
            self.room = LARGE;
        }
    }

    /// Small reads again: what was read is not taken at once.
    pub(super) fn slow_down(&mut self) {
        (self.room, self.full) = (CHUNK, 0);
    }

    /// Appends bytes that were read elsewhere.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.read.extend_from_slice(bytes);
    }

    /// Discards what was read and the rest of stdout: no line of it is cut any more.
    pub(super) fn discard(&mut self) {
        if self.output == Output::Lines {
            self.output = Output::Discarded;
        }
        (self.read, self.scanned, self.array) = (BytesMut::new(), 0, None);
    }

    /// Releases the memory of an empty buffer, until the next read.
    pub(super) fn release(&mut self) {
        if self.read.is_empty() {
            self.read = BytesMut::new();
            self.slow_down();
        }
    }

    /// The bytes that are read and not yet returned.
    pub(super) fn len(&self) -> usize {
        self.read.len() + self.array.as_ref().map_or(0, |(_, whole)| *whole)
    }

    /// Takes a complete line, the first above the limit, or the end once `is_ended`; `None` until
    /// more is read.
    pub(super) fn take(&mut self, is_ended: bool) -> Option<Taken> {
        if let Some(item) = self.next_item() {
            return Some(Taken::Line(item));
        }
        let taken = self.take_line(is_ended)?;
        match taken {
            Taken::Line(line) if self.has_arrays && Body::is_array(&line) => {
                self.array = Some((line.clone(), line.len()));
                // What is no array of messages stays a line.
                Some(Taken::Line(self.next_item().unwrap_or(line)))
            }
            taken => Some(taken),
        }
    }

    /// The next message of the array that is being returned; only an object can be one. Copied if it is
    /// small, as it may be kept for longer than the array.
    fn next_item(&mut self) -> Option<Bytes> {
        let (left, whole) = self.array.as_mut()?;
        while let Ok(Some(item)) = json::Items::of(left).next() {
            let item = left.slice_ref(item);
            let end = item.as_ptr().addr() - left.as_ptr().addr() + item.len();
            left.advance(end);
            if item.starts_with(b"{") {
                let is_small = item.len() < *whole / 2;
                return Some(if is_small {
                    Bytes::copy_from_slice(&item)
                } else {
                    item
                });
            }
        }
        self.array = None;
        None
    }

    fn take_line(&mut self, is_ended: bool) -> Option<Taken> {
        if self.output == Output::Discarded {
            self.read.clear();
        }
        let unseen = &self.read[self.scanned..];
        let end = memchr::memchr(b'\n', unseen).map(|at| self.scanned + at);
        if end.unwrap_or(self.read.len()) > self.limit {
            self.output = Output::Discarded;
            (self.read, self.scanned) = (BytesMut::new(), 0);
            return Some(Taken::TooLong);
        }
        if let Some(end) = end {
            self.scanned = 0;
            return Some(Taken::Line(self.cut(end, 1)));
        }
        self.scanned = self.read.len();
        if !is_ended || self.output == Output::Closed {
            return None;
        }
        if !self.read.is_empty() {
            // The last line may have no line end.
            self.scanned = 0;
            return Some(Taken::Line(self.cut(self.read.len(), 0)));
        }
        self.output = Output::Closed;
        Some(Taken::End)
    }

    /// Removes a line of `end` bytes and the `newline` bytes behind it from `read`.
    fn cut(&mut self, end: usize, newline: usize) -> Bytes {
        let length = end - usize::from(self.read[..end].ends_with(b"\r"));
        if length < self.read.capacity() / 2 {
            // Copied: a small line that is kept must not keep a large buffer alive.
            let line = Bytes::copy_from_slice(&self.read[..length]);
            self.read.advance(end + newline);
            self.part_from(end);
            return line;
        }
        let mut line = if self.read.len() == end + newline {
            // The line alone holds its buffer, and may be changed where it is.
            std::mem::take(&mut self.read)
        } else {
            let line = self.read.split_to(end + newline);
            self.part_from(end);
            line
        };
        line.truncate(length);
        line.freeze()
    }

    /// Moves what is behind a long line: each would keep the memory of the other, which nothing counts.
    fn part_from(&mut self, line: usize) {
        if line > PIPE && line >= self.read.len() {
            self.read = BytesMut::from(&self.read[..]);
        }
    }
}

/// Size of the first reads: more than most messages.
pub(super) const CHUNK: usize = 4 << 10;
/// Default capacity of a pipe.
const PIPE: usize = 64 << 10;
/// Size of large reads: what a pipe holds behind a first one.
const LARGE: usize = CHUNK + PIPE;
/// Full reads after which they are larger: a thousand sessions that wait for their log have read less.
const FULL: u32 = 16;

#[cfg(test)]
mod tests {
    use super::super::lines::*;

    fn line(text: &'static str) -> Taken {
        Taken::Line(Bytes::from_static(text.as_bytes()))
    }

    #[test]
    fn lines_are_the_same_however_the_pipe_cuts_them() {
        let stdout = b"one\r\n\n\r\ntwo\r\r\nnine byte\nlast";
        let wanted = ["one", "", "", "two\r", "nine byte", "last"].map(line);
        for size in 1..=stdout.len() {
            let mut lines = Lines::new(9);
            let mut all = Vec::new();
            for part in stdout.chunks(size) {
                lines.room().extend_from_slice(part);
                lines.was_read(false);
                all.extend(std::iter::from_fn(|| lines.take(false)));
                lines.release();
            }
            all.extend(std::iter::from_fn(|| lines.take(true)));
            assert_eq!(all.pop(), Some(Taken::End));
            assert_eq!(all, wanted, "{size}");
        }
    }

    /// A thousand children that printed without end took 64 KiB each, beside all budgets.
    #[test]
    fn reads_stay_small_while_many_children_are_read() {
        for (is_one_of_many, least, most) in [(true, 0, CHUNK), (false, LARGE, LARGE + CHUNK)] {
            let (mut lines, mut taken) = (Lines::new(99), 0);
            for _ in 0..20 {
                let room = lines.room();
                taken = taken.max(room.capacity());
                // The last line is not complete.
                room.resize(room.capacity() - 9, b'\n');
                room.resize(room.capacity(), b'x');
                lines.was_read(is_one_of_many);
                while lines.take(false).is_some() {}
            }
            assert!((least..=most).contains(&taken), "{taken}");
        }
    }

    /// A thousand sessions that waited for Redis had 64 KiB each of what their children had printed.
    #[test]
    fn reads_are_small_again_after_a_pause() {
        let mut lines = Lines::new(99);
        let mut read = |is_slow: bool| {
            let room = lines.room();
            let size = room.capacity();
            room.resize(size, b'\n');
            lines.was_read(false);
            while lines.take(false).is_some() {}
            if is_slow {
                lines.slow_down();
            }
            size
        };
        assert!((0..100).all(|_| read(true) == CHUNK));
        assert!((0..FULL).all(|_| read(false) == CHUNK));
        assert_eq!(read(false), LARGE);
    }

    /// Each empty line was cut, and thrown away.
    #[test]
    fn what_is_discarded_is_not_cut_into_lines() {
        let mut lines = Lines::new(99);
        lines.push(b"one\ntwo");
        lines.discard();
        assert_eq!((lines.take(false), lines.len()), (None, 0));
        lines.push(b"\n\nthree");
        assert_eq!(lines.take(false), None);
        assert_eq!(lines.take(true), Some(Taken::End));
        lines.discard();
        assert_eq!(lines.take(true), None, "it is reported once");
    }

    #[test]
    fn a_long_line_is_read_in_large_pieces_at_once() {
        let mut lines = Lines::new(1 << 20);
        let room = lines.room();
        room.resize(room.capacity(), b'x');
        lines.was_read(false);
        assert_eq!(lines.room().capacity(), LARGE);
    }

    /// A line a little longer than a pipe's content was read in pieces that doubled, six of them among many
    /// children, into a buffer that grew to sixteen times its size for the last, and was copied out of that.
    #[test]
    fn a_line_a_little_longer_than_a_pipe_takes_three_reads() {
        for is_one_of_many in [true, false] {
            let (mut lines, length) = (Lines::new(4 << 20), PIPE + 100);
            let (mut reads, mut place) = (0, std::ptr::null());
            while lines.len() < length {
                assert_eq!(lines.take(false), None);
                let room = lines.room();
                let read = (room.capacity() - room.len())
                    .min(length - room.len())
                    .min(PIPE - CHUNK);
                room.resize(room.len() + read, b'x');
                lines.was_read(is_one_of_many);
                (reads, place) = (reads + 1, lines.read.as_ptr());
            }
            lines.read.extend_from_slice(b"\n");
            let Some(Taken::Line(line)) = lines.take(false) else {
                panic!("no line");
            };
            assert_eq!((reads, line.len(), line.as_ptr()), (3, length, place));
        }
    }

    /// The beginning of the next line kept the memory of the one before it, once more as much as was counted.
    #[test]
    fn what_is_behind_a_long_line_keeps_none_of_its_memory() {
        for length in [200 << 10, 2 << 20, 4 << 20] {
            let mut lines = Lines::new(4 << 20);
            let mut stdout = vec![b'x'; length + 100];
            stdout[length] = b'\n';
            let mut parts = stdout.chunks(PIPE);
            let line = loop {
                if let Some(taken) = lines.take(false) {
                    break taken;
                }
                lines.room().extend_from_slice(parts.next().unwrap());
            };
            let Taken::Line(line) = line else {
                panic!("no line");
            };
            assert_eq!((line.len(), lines.len()), (length, 99));
            assert!(lines.read.capacity() <= CHUNK, "{length}");
            assert!(line.is_unique(), "{length}");
        }
    }

    #[test]
    fn arrays_are_returned_item_by_item() {
        let stdout = b"[{\"a\":1}, 2,\t{\"b\":[{}]}]\n[]\n[{},\n {\"c\":1}\n[[{}]]\n[{\"d\":1}]";
        let apart = [
            "{\"a\":1}",
            "{\"b\":[{}]}",
            "[]",
            "[{},",
            " {\"c\":1}",
            "[[{}]]",
            "{\"d\":1}",
        ];
        for has_arrays in [false, true] {
            let mut lines = Lines::new(99);
            if has_arrays {
                lines.split_arrays();
            }
            lines.push(stdout);
            let all: Vec<_> = std::iter::from_fn(|| lines.take(true)).collect();
            if has_arrays {
                assert_eq!(all[..7], apart.map(line));
            }
            assert_eq!(all.len(), if has_arrays { 8 } else { 7 });
            assert_eq!(lines.len(), 0);
        }
    }

    #[test]
    fn a_large_line_is_moved_twice_and_takes_no_more_than_the_limit() {
        let mut lines = Lines::new(4 << 20);
        let mut places = Vec::new();
        let mut sent = 0;
        while sent < 4 << 20 {
            let room = lines.room();
            let part = (room.capacity() - room.len()).min(PIPE);
            room.resize(room.len() + part, b'x');
            sent += part;
            lines.was_read(false);
            if sent <= 4 << 20 {
                assert_eq!(lines.take(false), None);
            }
            if sent > PIPE {
                places.push(lines.read.as_ptr());
            }
        }
        assert!(lines.read.capacity() <= (4 << 20) + 2 * PIPE);
        places.dedup();
        // Once more from the first of them, which was large enough for a pipe.
        assert!(places.len() <= 3, "{places:?}");
    }

    #[test]
    fn nothing_follows_a_line_that_is_too_long() {
        for size in [1, 4, 100] {
            let mut lines = Lines::new(3);
            let mut all = Vec::new();
            for part in b"abc\nabc\r\nabc\n".chunks(size) {
                lines.push(part);
                all.extend(std::iter::from_fn(|| lines.take(false)));
            }
            all.extend(std::iter::from_fn(|| lines.take(true)));
            // A carriage return counts.
            assert_eq!(all, [line("abc"), Taken::TooLong, Taken::End], "{size}");
        }
    }
}

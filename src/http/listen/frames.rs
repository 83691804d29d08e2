//! Frames of HTTP/2 in what is read of a connection, as far as header blocks are concerned (RFC 9113, sections 4.1
//! and 6.10).
//!
//! h2 decodes each part of a block as it comes, and keeps the fields until the block has its end; those of trailers as
//! long as their stream, also if nobody reads the body any more. Not here: what the frames say, and whether they are right,
//! which h2 knows; what its table keeps of blocks (`hpack`).

use super::hpack::Table;

/// How far the frames of a connection have come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frames {
    /// Bytes of the head or the payload that are still to come.
    left: usize,
    /// The head: length, type, flags and stream.
    head: [u8; HEAD],
    /// Whether it is the head that comes.
    is_head: bool,
    /// Whether a header block has begun whose end has not come.
    is_open: bool,
    /// The last stream that a header block has begun.
    highest: u32,
    /// Bytes of the last header block so far, if it is of trailers.
    trailers: Option<usize>,
    /// Bytes of the longest trailers.
    longest: usize,
    /// Fields of the frames that are complete.
    fields: usize,
    /// The most of one.
    most_fields: usize,
    /// Whether there was a frame that no client may send.
    is_wrong: bool,
    /// What the table of HPACK keeps.
    table: Table,
}

impl Frames {
    /// Those of a connection of which nothing was read.
    pub(super) fn new() -> Self {
        Self {
            // The preface is skipped like the payload of a frame.
            left: PREFACE,
            head: [0; HEAD],
            is_head: false,
            is_open: false,
            highest: 0,
            trailers: None,
            longest: 0,
            fields: 0,
            most_fields: 0,
            is_wrong: false,
            table: Table::new(),
        }
    }

    /// Follows what was read, wherever it is cut; returns whether a header block came to its end.
    pub(super) fn follow(&mut self, mut bytes: &[u8]) -> bool {
        let mut has_ended = false;
        loop {
            let (part, rest) = bytes.split_at(bytes.len().min(self.left));
            if self.is_head {
                let known = self.head.iter_mut().skip(HEAD - self.left);
                for (known, byte) in known.zip(part) {
                    *known = *byte;
                }
                self.table.pass(part.len());
            } else {
                self.table.follow(part);
            }
            (self.left, bytes) = (self.left - part.len(), rest);
            if self.left > 0 {
                return has_ended;
            }
            if self.is_head {
                self.begin();
            } else {
                has_ended |= self.end();
            }
        }
    }

    /// Whether a header block has begun and not come to its end.
    pub(super) fn are_within_block(&self) -> bool {
        self.is_open || self.is_cut()
    }

    /// What h2 may keep of that block.
    pub(super) fn kept(&self) -> usize {
        if self.is_open {
            BLOCK
        } else if self.is_cut() {
            self.length().min(FRAME)
        } else {
            0
        }
    }

    /// Whether the payload that comes is of a header block.
    fn is_cut(&self) -> bool {
        !self.is_head && self.is_of_block()
    }

    fn is_of_block(&self) -> bool {
        let [_, _, _, kind, ..] = self.head;
        matches!(kind, HEADERS | PUSH_PROMISE | CONTINUATION)
    }

    fn has_end(&self) -> bool {
        self.flags() & END_HEADERS != 0
    }

    fn flags(&self) -> u8 {
        let [_, _, _, _, flags, ..] = self.head;
        flags
    }

    fn length(&self) -> usize {
        let [high, middle, low, ..] = self.head;
        (usize::from(high) << 16) | (usize::from(middle) << 8) | usize::from(low)
    }

    fn stream(&self) -> u32 {
        let [.., a, b, c, d] = self.head;
        // The first bit means nothing (section 4.1).
        u32::from_be_bytes([a, b, c, d]) & (u32::MAX >> 1)
    }

    /// Bytes of the longest trailers that have begun.
    pub(super) fn longest_trailers(&self) -> usize {
        self.longest
    }

    /// What the table keeps of blocks as long as the connection lives.
    pub(super) fn kept_by_table(&self) -> u64 {
        self.table.held()
    }

    /// Fields of the frames so far that are complete: h2 decodes a frame once it has all of it.
    pub(super) fn fields(&self) -> usize {
        self.fields
    }

    /// The most of one of these.
    pub(super) fn most_fields(&self) -> usize {
        self.most_fields
    }

    /// Whether there was what no client may send, and of which h2 would take fields later or nevertheless: `PUSH_PROMISE`
    /// (section 8.4), and a field without a name (section 8.2.1).
    pub(super) fn is_wrong(&self) -> bool {
        self.is_wrong || self.table.is_wrong()
    }

    /// The head is complete.
    fn begin(&mut self) {
        (self.left, self.is_head) = (self.length(), false);
        let [_, _, _, kind, ..] = self.head;
        if kind == HEADERS {
            // A stream begins with the first one of its number, which is above all before it (section 5.1.1).
            let stream = self.stream();
            self.trailers = (stream <= self.highest).then_some(0);
            self.highest = self.highest.max(stream);
        }
        if self.is_of_block()
            && let Some(trailers) = self.trailers
        {
            let bytes = trailers + self.length();
            self.trailers = Some(bytes);
            self.longest = self.longest.max(bytes);
        }
        // Of a block into which another frame comes h2 keeps nothing.
        let goes_on = self.is_open && kind == CONTINUATION;
        match kind {
            HEADERS => self.table.begin(self.flags(), self.length(), self.stream()),
            CONTINUATION if goes_on => self.table.go_on(self.length()),
            _ => self.table.skip(),
        }
        self.is_wrong |= kind == PUSH_PROMISE;
        self.is_open = self.is_of_block() && (goes_on || !self.has_end());
    }

    /// The payload is complete; returns whether a header block is.
    fn end(&mut self) -> bool {
        let has_ended = self.is_of_block() && self.has_end();
        self.is_open &= !has_ended;
        let fields = self.table.take_fields();
        self.fields = self.fields.wrapping_add(fields);
        self.most_fields = self.most_fields.max(fields);
        (self.left, self.is_head) = (HEAD, true);
        has_ended
    }
}

/// Bytes of the preface (section 3.4).
const PREFACE: usize = 24;
/// Bytes of the head of a frame.
const HEAD: usize = 9;
/// The longest payload (section 4.2): h2 reads none of a longer frame, and ends the connection.
const FRAME: usize = 16 << 10;
/// Types of the frames of header blocks.
const HEADERS: u8 = 1;
const PUSH_PROMISE: u8 = 5;
const CONTINUATION: u8 = 9;
/// Flag of the last frame of a block.
const END_HEADERS: u8 = 4;
/// What h2 may keep of a block: a list of 64 KiB counts 32 bytes for each field, which takes 72, in room that is
/// doubled as it grows.
const BLOCK: usize = 192 << 10;

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop, prop_assert_eq, proptest};

    use super::super::frames::*;

    fn frame(kind: u8, flags: u8, length: u16) -> Vec<u8> {
        let [high, low] = length.to_be_bytes();
        let head = [0, high, low, kind, flags, 0, 0, 0, 1];
        [&head[..], &vec![kind; usize::from(length)]].concat()
    }

    fn of_stream(stream: u32, frame: &[u8]) -> Vec<u8> {
        [&frame[..HEAD - 4], &stream.to_be_bytes(), &frame[HEAD..]].concat()
    }

    fn begun() -> Frames {
        let mut frames = Frames::new();
        assert!(!frames.follow(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"));
        frames
    }

    #[test]
    fn a_block_is_open_from_its_beginning_to_its_end() {
        let mut frames = begun();
        assert!(!frames.follow(&frame(4, 0, 6)), "no block");
        assert!(frames.follow(&frame(HEADERS, END_HEADERS | 1, 20)));
        assert_eq!((frames.are_within_block(), frames.kept()), (false, 0));
        for kind in [HEADERS, PUSH_PROMISE] {
            assert!(!frames.follow(&frame(kind, 1, 20)));
            assert_eq!((frames.are_within_block(), frames.kept()), (true, BLOCK));
            assert!(!frames.follow(&frame(CONTINUATION, 0, 0)));
            let last = frame(CONTINUATION, END_HEADERS, 300);
            // Until all of it has come.
            let (first, rest) = last.split_at(200);
            assert!(!frames.follow(first));
            assert_eq!((frames.are_within_block(), frames.kept()), (true, BLOCK));
            assert!(frames.follow(rest));
            assert_eq!((frames.are_within_block(), frames.kept()), (false, 0));
        }
    }

    #[test]
    fn a_frame_that_is_cut_takes_its_length() {
        let mut frames = begun();
        let whole = frame(HEADERS, END_HEADERS, 10_000);
        let (first, rest) = whole.split_at(50);
        assert!(!frames.follow(first));
        assert_eq!((frames.are_within_block(), frames.kept()), (true, 10_000));
        assert!(frames.follow(rest));
        assert_eq!((frames.are_within_block(), frames.kept()), (false, 0));
        // A length that h2 takes for an error holds no more than another: nine bytes held 16 MiB.
        let mut longest = begun();
        assert!(!longest.follow(&[0xff, 0xff, 0xff, HEADERS, END_HEADERS, 0, 0, 0, 1]));
        assert_eq!(longest.kept(), FRAME);
        // Data is no block.
        assert!(!frames.follow(&frame(0, 0, 10_000)[..50]));
        assert_eq!((frames.are_within_block(), frames.kept()), (false, 0));
    }

    /// The last byte of a frame of 16 KiB had a field for itself, and all of them were decoded with it.
    #[test]
    fn the_fields_of_a_frame_count_when_it_is_complete() {
        let mut frames = begun();
        let whole = frame(HEADERS, END_HEADERS, 1000);
        let indexed = [&whole[..HEAD], &[0x82; 1000]].concat();
        let (first, last) = indexed.split_at(indexed.len() - 1);
        frames.follow(first);
        assert_eq!((frames.fields(), frames.most_fields()), (0, 0));
        frames.follow(last);
        assert_eq!((frames.fields(), frames.most_fields()), (1000, 1000));
        frames.follow(&[&frame(HEADERS, END_HEADERS, 10)[..HEAD], &[0x82; 10]].concat());
        assert_eq!((frames.fields(), frames.most_fields()), (1010, 1000));
        // A body has none.
        frames.follow(&[&frame(0, 0, 1000)[..HEAD], &[0x82; 1000]].concat());
        assert_eq!(frames.fields(), 1010);
    }

    /// h2 resets the stream of one that is wrong in itself, and its table keeps the fields.
    #[test]
    fn a_client_sends_no_push_promise() {
        for kind in 0..=PUSH_PROMISE {
            let mut frames = begun();
            // None within the preface or a payload.
            frames.follow(&frame(0, 0, 1000)[..500]);
            assert!(!frames.is_wrong());
            let mut frames = begun();
            frames.follow(&frame(kind, END_HEADERS, 20)[..HEAD]);
            assert_eq!(frames.is_wrong(), kind == PUSH_PROMISE);
        }
    }

    /// h2 decoded what was behind each with the next frame, all at once and without a wait.
    #[test]
    fn a_field_has_a_name() {
        for (field, is_wrong) in [
            (&b"\x00\x00\x00"[..], true),
            (b"\x40\x00\x01a", true),
            (b"\x10\x80\x00", true),
            (b"\x00\x01a\x00", false),
            (b"\x41\x00", false),
        ] {
            let mut frames = begun();
            let length = u16::try_from(field.len()).unwrap();
            let whole = [&frame(HEADERS, 0, length)[..HEAD], field].concat();
            frames.follow(&whole);
            assert_eq!(frames.is_wrong(), is_wrong, "{field:?}");
        }
    }

    /// Trailers behind a body that nobody read were kept with their streams, 72 bytes for each of theirs.
    #[test]
    fn a_block_of_a_stream_that_has_begun_is_of_trailers() {
        let mut frames = begun();
        for (stream, length, longest) in [
            (1, 500, 0),
            (7, 600, 0),
            (1, 20, 20),
            (7, 30, 30),
            (9, 700, 30),
            // The bit that means nothing.
            ((1 << 31) + 9, 40, 40),
            (9, 5, 40),
            ((1 << 31) + 11, 800, 40),
            (13, 900, 40),
        ] {
            frames.follow(&of_stream(stream, &frame(HEADERS, END_HEADERS, length)));
            assert_eq!(frames.longest_trailers(), longest, "{stream}");
            // A body is none.
            frames.follow(&of_stream(stream, &frame(0, 0, 1000)));
        }
        // In parts, and from the head of each on.
        frames.follow(&of_stream(1, &frame(HEADERS, 0, 30)));
        let last = of_stream(1, &frame(CONTINUATION, END_HEADERS, 300));
        frames.follow(&last[..HEAD - 1]);
        assert_eq!(frames.longest_trailers(), 40);
        frames.follow(&last[HEAD - 1..HEAD]);
        assert_eq!(frames.longest_trailers(), 330);
    }

    #[test]
    fn a_block_into_which_another_frame_comes_is_none() {
        let mut frames = begun();
        assert!(!frames.follow(&frame(HEADERS, 0, 20)));
        assert!(!frames.follow(&frame(0, 0, 20)));
        assert!(!frames.are_within_block());
    }

    proptest! {
        #[test]
        fn it_is_the_same_wherever_reads_are_cut(
            sent in prop::collection::vec((0..11_u8, any::<u8>(), 0..40_u16), 0..20),
            left_off in 0..60_usize,
            reads in prop::collection::vec(0..30_usize, 0..80),
        ) {
            let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
            for (kind, flags, length) in sent {
                bytes.extend(frame(kind, flags, length));
            }
            bytes.truncate(bytes.len().saturating_sub(left_off));
            let mut whole = Frames::new();
            let has_ended = whole.follow(&bytes);
            let (mut cut, mut rest, mut ended) = (Frames::new(), &bytes[..], false);
            for length in reads {
                let (read, behind) = rest.split_at(length.min(rest.len()));
                ended |= cut.follow(read);
                rest = behind;
            }
            ended |= cut.follow(rest);
            prop_assert_eq!((&cut, ended), (&whole, has_ended));
            let mut single = Frames::new();
            let ended = bytes.iter().fold(false, |ended, byte| ended | single.follow(&[*byte]));
            prop_assert_eq!((&single, ended), (&whole, has_ended));
        }

        #[test]
        fn any_bytes_are_followed(bytes in prop::collection::vec(any::<u8>(), 0..400), at in 0..400_usize) {
            let (mut whole, mut cut) = (Frames::new(), Frames::new());
            let (first, rest) = bytes.split_at(at.min(bytes.len()));
            let has_ended = whole.follow(&bytes);
            let ended = [cut.follow(first), cut.follow(rest)];
            prop_assert_eq!((cut, ended.contains(&true)), (whole, has_ended));
        }
    }
}

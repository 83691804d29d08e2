//! Header blocks of a connection of HTTP/2, as far as the table of HPACK keeps what was read of them (RFC 7541).
//!
//! h2 has names and values in its table as copies, but the values of `:authority`, `:path` and `:scheme` as parts of the
//! buffer into which they were read or, in Huffman's code, decoded: one of a byte keeps all of that buffer. It ignores a
//! smaller table in its settings until the peer says that it has taken it. Not here: frames (`frames`), what fields say, and
//! whether blocks are right, which h2 knows: at a wrong one it ends the connection.

use std::collections::VecDeque;

/// What the table of a connection keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Table {
    /// Bytes of the connection so far.
    position: u64,
    /// Where the present block began.
    block: u64,
    /// Its stream.
    stream: u32,
    /// Whether h2 decodes no more of it.
    is_lost: bool,
    /// What of its frame comes next.
    part: Part,
    /// Bytes of the frame that are still to come, without those behind its fields.
    left: usize,
    /// What of a field comes next.
    step: Step,
    /// That field.
    literal: Literal,
    /// The string that comes, or the last one.
    string: Text,
    /// Fields that have been inserted.
    inserted: u64,
    /// A bit for each of the last ones, the newest first: whether its name is one of those whose values keep a buffer.
    names: u128,
    /// The number of each of those among the last [`ENTRIES`], with what it keeps; of most connections one or two.
    kept: VecDeque<(u64, u64)>,
    /// What all of them keep.
    all: u64,
    /// Where the last one ended whose value was plain.
    plain: u64,
    /// Bytes in Huffman's code since the last one whose value was in it.
    packed: u64,
    /// The longest string in that code, to which h2's buffer for them has grown.
    longest: u64,
    /// Fields that have begun in the present frame.
    fields: usize,
    /// Whether there was a field without a name, which none may be (RFC 9113, section 8.2.1).
    is_wrong: bool,
}

/// What of a frame comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// The length of the padding, behind which there may be a priority.
    Padding(bool),
    /// So many bytes of the priority (RFC 9113, section 6.2), whose stream begins with these.
    Priority(u8, u32),
    Fields,
    /// What is no part of a field.
    Rest,
}

/// What of a field comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Its first byte.
    Field,
    /// More of a number (section 5.1), of which this is known, at this bit.
    Number(Number, u32, u8),
    /// The first byte of a string (section 5.2).
    String,
    /// The bytes of a string.
    Text,
}

/// What a number says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    /// All of a field, or the size of the table.
    All,
    /// The name of a literal.
    Name,
    /// The length of a string.
    Length,
}

/// A field with a value of its own (section 6.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Literal {
    /// Whether it is inserted into the table.
    is_inserted: bool,
    /// Whether its name is one of those whose values keep a buffer.
    keeps: bool,
    /// Whether its next string is its name.
    has_name: bool,
}

/// A string.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Text {
    /// Whether it is in Huffman's code.
    is_packed: bool,
    length: usize,
    /// Bytes that are still to come.
    left: usize,
}

impl Table {
    /// That of a connection of which nothing was read.
    pub(super) fn new() -> Self {
        Self {
            position: 0,
            block: 0,
            stream: 0,
            is_lost: false,
            part: Part::Rest,
            left: 0,
            step: Step::Field,
            literal: Literal::default(),
            string: Text::default(),
            inserted: 0,
            names: 0,
            kept: VecDeque::new(),
            all: 0,
            plain: 0,
            packed: 0,
            longest: 0,
            fields: 0,
            is_wrong: false,
        }
    }

    /// Whether there was a field without a name.
    pub(super) fn is_wrong(&self) -> bool {
        self.is_wrong
    }

    /// The fields of a frame that is complete, for each of which h2 makes one, though it may be a byte.
    pub(super) fn take_fields(&mut self) -> usize {
        std::mem::take(&mut self.fields)
    }

    /// What it keeps, if that is more than every connection may.
    pub(super) fn held(&self) -> u64 {
        let buffer = room(self.longest);
        let grown = if buffer > SCRATCH { buffer } else { 0 };
        let held = self.all + grown;
        if held > FREE { held } else { 0 }
    }

    /// A block begins, with a frame of these flags, of so many bytes and of this stream.
    pub(super) fn begin(&mut self, flags: u8, length: usize, stream: u32) {
        (self.block, self.step, self.is_lost) = (self.position, Step::Field, false);
        (self.stream, self.left) = (stream, length);
        let has_priority = flags & PRIORITY != 0;
        self.part = if flags & PADDED != 0 {
            Part::Padding(has_priority)
        } else {
            Part::behind_padding(has_priority)
        };
    }

    /// The block goes on, with a frame of so many bytes.
    pub(super) fn go_on(&mut self, length: usize) {
        self.left = length;
        self.part = if self.is_lost {
            Part::Rest
        } else {
            Part::Fields
        };
    }

    /// A frame comes whose fields, if there are any, h2 does not take.
    pub(super) fn skip(&mut self) {
        (self.part, self.is_lost) = (Part::Rest, true);
    }

    /// Passes over bytes that are no payload of a frame.
    pub(super) fn pass(&mut self, length: usize) {
        self.position += length as u64;
    }

    /// Follows a part of the payload of a frame, wherever it is cut.
    pub(super) fn follow(&mut self, mut bytes: &[u8]) {
        while let [first, ..] = bytes {
            let most = match (self.part, self.step) {
                (Part::Rest, _) => usize::MAX,
                (Part::Fields, Step::Text) => self.string.left.min(self.left),
                _ => 1,
            };
            let length = most.min(bytes.len());
            self.position += length as u64;
            self.left = self.left.saturating_sub(length);
            match self.part {
                Part::Rest => {}
                Part::Padding(has_priority) => {
                    self.left = self.left.saturating_sub(usize::from(*first));
                    self.part = Part::behind_padding(has_priority);
                }
                Part::Priority(left, begun) => self.take_priority(left - 1, begun, *first),
                Part::Fields => self.take(*first, length),
            }
            if self.left == 0 {
                self.part = Part::Rest;
            }
            bytes = &bytes[length..];
        }
    }

    /// Takes a byte of a priority.
    fn take_priority(&mut self, left: u8, begun: u32, byte: u8) {
        // The last one is the weight.
        let stream = if left == 0 {
            begun
        } else {
            (begun << 8) | u32::from(byte)
        };
        if left > 0 {
            self.part = Part::Priority(left, stream);
        } else if stream & (u32::MAX >> 1) == self.stream {
            // h2 resets a stream that depends on itself, and decodes none of its fields.
            self.skip();
        } else {
            self.part = Part::Fields;
        }
    }

    /// Takes a byte of the fields, or several of one string.
    fn take(&mut self, first: u8, length: usize) {
        match self.step {
            Step::Field => {
                // Section 6: indexed, with incremental indexing, the size of the table, without indexing.
                let (prefix, number) = match first {
                    0x80.. => (7, Number::All),
                    0x40..0x80 => (6, Number::Name),
                    0x20..0x40 => (5, Number::All),
                    0..0x20 => (4, Number::Name),
                };
                self.fields += 1;
                self.literal.is_inserted = prefix == 6;
                self.begin_number(number, first, prefix);
            }
            Step::String => {
                self.string.is_packed = first & 0x80 != 0;
                self.begin_number(Number::Length, first, 7);
            }
            Step::Number(number, known, shift) => self.go_on_with(number, known, shift, first),
            Step::Text => self.take_text(first, length),
        }
    }

    /// Takes the first byte of a number.
    fn begin_number(&mut self, number: Number, byte: u8, prefix: u8) {
        let most = (1_u8 << prefix) - 1;
        let known = byte & most;
        if known < most {
            self.end_number(number, known.into());
        } else {
            self.step = Step::Number(number, known.into(), 0);
        }
    }

    /// Takes a further byte of a number.
    fn go_on_with(&mut self, number: Number, known: u32, shift: u8, byte: u8) {
        let known = known + (u32::from(byte & 0x7f) << shift);
        if byte & 0x80 == 0 {
            self.end_number(number, known);
        } else if shift < LAST_SHIFT {
            self.step = Step::Number(number, known, shift + 7);
        } else {
            self.skip();
        }
    }

    /// A number is complete.
    fn end_number(&mut self, number: Number, value: u32) {
        match number {
            Number::All => self.step = Step::Field,
            Number::Name => {
                self.literal.has_name = value == 0;
                self.literal.keeps = self.is_name_that_keeps(value);
                self.step = Step::String;
            }
            Number::Length => {
                let length = value as usize;
                (self.string.length, self.string.left) = (length, length);
                self.step = Step::Text;
                if length == 0 {
                    if self.literal.has_name {
                        // h2 takes it for the end of what it has of a block, and decodes what is behind it with the next
                        // frame.
                        self.is_wrong = true;
                        self.literal.is_inserted = false;
                    }
                    self.end_text();
                }
            }
        }
    }

    /// Whether this index is that of a name whose values keep a buffer.
    fn is_name_that_keeps(&self, index: u32) -> bool {
        match index {
            AUTHORITY | PATH..=SCHEME_HTTPS => true,
            // An index beyond those that the table can have ends the connection.
            DYNAMIC.. => {
                let bits = self.names.checked_shr(index - DYNAMIC);
                bits.is_some_and(|bits| bits & 1 == 1)
            }
            _ => false,
        }
    }

    /// Takes bytes of a string.
    fn take_text(&mut self, first: u8, length: usize) {
        let Text {
            is_packed,
            length: whole,
            left,
        } = self.string;
        if self.literal.has_name && left == whole {
            // Only names of pseudo-header fields begin with a colon.
            self.literal.keeps = if is_packed {
                first >> 1 == PACKED_COLON
            } else {
                first == b':'
            };
        }
        self.string.left = left.saturating_sub(length);
        if self.string.left == 0 {
            self.end_text();
        }
    }

    /// A string is complete.
    fn end_text(&mut self) {
        let Text {
            is_packed, length, ..
        } = self.string;
        if is_packed {
            self.packed += length as u64;
            self.longest = self.longest.max(length as u64);
        }
        if std::mem::take(&mut self.literal.has_name) {
            self.step = Step::String;
            return;
        }
        self.step = Step::Field;
        if self.literal.is_inserted {
            self.insert();
        }
    }

    /// A field is inserted.
    fn insert(&mut self) {
        self.inserted += 1;
        self.names = (self.names << 1) | u128::from(self.literal.keeps);
        while let Some((number, bytes)) = self.kept.front()
            && number + ENTRIES <= self.inserted
        {
            self.all -= bytes;
            self.kept.pop_front();
        }
        if !self.literal.keeps {
            return;
        }
        let bytes = if self.string.is_packed {
            let since = std::mem::take(&mut self.packed);
            room(since).min(room(self.longest).max(SCRATCH))
        } else {
            // Fields that are inserted one behind the other keep the same buffer.
            let since = self.position - self.plain;
            self.plain = self.position;
            // What is left of a block is copied behind the payload of each further frame.
            let block = (self.position - self.block) * 2;
            (since * 2).min(block.max(BUFFER))
        };
        self.kept.push_back((self.inserted, bytes));
        self.all += bytes;
    }
}

impl Part {
    fn behind_padding(has_priority: bool) -> Self {
        if has_priority {
            Self::Priority(PRIORITY_LENGTH, 0)
        } else {
            Self::Fields
        }
    }
}

/// Room for a string of so many bytes in Huffman's code, in which h2 decodes it: each has at least five bits of it, and the
/// buffer is doubled as it grows.
const fn room(packed: u64) -> u64 {
    packed * 16 / 5
}

/// Flags of a frame (RFC 9113, section 6.2).
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// Bytes of a priority.
const PRIORITY_LENGTH: u8 = 5;
/// The bit at which h2 takes the last byte of a number.
const LAST_SHIFT: u8 = 21;
/// Indices of names whose values keep a buffer (appendix A).
const AUTHORITY: u32 = 1;
const PATH: u32 = 4;
const SCHEME_HTTPS: u32 = 7;
/// The index of the newest field of the table.
const DYNAMIC: u32 = 62;
/// The code of a colon, of seven bits (appendix B).
const PACKED_COLON: u8 = 0x5c;
/// The most fields that the table can have: of 4096 bytes each takes 33 (section 4.1).
const ENTRIES: u64 = 124;
/// The most that h2's read buffer takes for frames that are a block each: one of 16 KiB, in room that was doubled.
const BUFFER: u64 = 32 << 10;
/// The buffer for strings in Huffman's code that every connection has.
const SCRATCH: u64 = 4 << 10;
/// What a table may keep without being counted: the buffer that every connection has, of 8 KiB, and another one.
const FREE: u64 = (8 << 10) + BUFFER;

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop, prop_assert_eq, proptest};

    use super::super::hpack::*;

    /// A number behind the first bits of its first byte.
    fn number(first: u8, prefix: u8, value: usize) -> Vec<u8> {
        let most = (1_usize << prefix) - 1;
        let byte = |value: usize| u8::try_from(value).unwrap();
        if value < most {
            return vec![first | byte(value)];
        }
        let (mut bytes, mut rest) = (vec![first | byte(most)], value - most);
        while rest >= 128 {
            bytes.push(byte(rest % 128 + 128));
            rest /= 128;
        }
        bytes.push(byte(rest));
        bytes
    }

    fn string(is_packed: bool, bytes: &[u8]) -> Vec<u8> {
        let flag = if is_packed { 0x80 } else { 0 };
        [number(flag, 7, bytes.len()), bytes.to_vec()].concat()
    }

    /// A field without indexing, with a value of so many bytes.
    fn long(is_packed: bool, length: usize) -> Vec<u8> {
        let value = string(is_packed, &vec![0x1f; length]);
        [b"\x00\x01x".to_vec(), value].concat()
    }

    const STREAM: u32 = 7;

    /// A block in one frame.
    fn read(table: &mut Table, block: &[u8]) {
        table.pass(9);
        table.begin(0, block.len(), STREAM);
        table.follow(block);
    }

    /// A path of a byte kept the 16 KiB that it was read with.
    #[test]
    fn a_value_that_keeps_its_buffer_counts_as_that() {
        let fields: [(&[u8], bool); 9] = [
            (b"\x44\x01/", true),
            (b"\x41\x01a", true),
            (b"\x46\x00", true),
            (b"\x40\x05:path\x01/", true),
            // Not inserted, or a copy.
            (b"\x04\x01/", false),
            (b"\x14\x01/", false),
            (b"\x5c\x017", false),
            (b"\x42\x01A", false),
            (b"\x40\x01a\x01/", false),
        ];
        for (field, keeps) in fields {
            let mut table = Table::new();
            for _ in 0..100 {
                read(&mut table, &[long(false, 16_000), field.to_vec()].concat());
            }
            let most = 100 * BUFFER;
            let expected = if keeps { most * 9 / 10..=most } else { 0..=0 };
            assert!(expected.contains(&table.held()), "{field:?}");
            // Others take their places.
            for _ in 0..ENTRIES {
                read(&mut table, b"\x40\x01a\x01/");
            }
            assert_eq!(table.held(), 0, "{field:?}");
        }
    }

    #[test]
    fn values_that_keep_the_same_buffer_count_once() {
        let mut table = Table::new();
        for _ in 0..100 {
            read(&mut table, &[&b"\x44\x14"[..], &[b'/'; 20]].concat());
        }
        assert_eq!(table.held(), 0);
        for _ in 0..4 {
            table.pass(16_000);
            for _ in 0..10 {
                read(&mut table, b"\x44\x01/");
            }
        }
        assert!(
            (120_000..150_000).contains(&table.held()),
            "{}",
            table.held()
        );
    }

    /// What is left of a block is copied behind each further part of it.
    #[test]
    fn a_block_in_several_frames_counts_with_its_length() {
        let mut table = Table::new();
        let block = [long(false, 100_000), b"\x44\x01/".to_vec()].concat();
        let mut frames = block.chunks(16_384);
        let first = frames.next().unwrap();
        table.begin(0, first.len(), STREAM);
        table.follow(first);
        for frame in frames {
            table.pass(9);
            table.go_on(frame.len());
            table.follow(frame);
        }
        assert!(
            (200_000..=210_000).contains(&table.held()),
            "{}",
            table.held()
        );
    }

    /// The buffer into which strings are decoded stays as large as the longest one.
    #[test]
    fn strings_in_huffmans_code_count_with_their_buffers() {
        let mut table = Table::new();
        read(&mut table, &long(true, 12_000));
        assert_eq!(table.held(), 0);
        read(&mut table, &long(true, 15_000));
        assert_eq!(table.held(), 48_000);
        for _ in 0..10 {
            read(
                &mut table,
                &[long(true, 15_000), b"\x44\x81\x63".to_vec()].concat(),
            );
        }
        assert!(
            (11 * 48_000..=12 * 48_003).contains(&table.held()),
            "{}",
            table.held()
        );
    }

    /// h2 decodes nothing of it: behind its fields, which were not inserted, another name seemed to be meant.
    #[test]
    fn a_stream_that_depends_on_itself_inserts_nothing() {
        for (dependency, kept) in [(STREAM, 2), (STREAM | (1 << 31), 2), (5, 1)] {
            let mut table = Table::new();
            read(&mut table, b"\x44\x01/");
            let block = [&dependency.to_be_bytes()[..], b"\x10\x40\x01a\x01/"].concat();
            table.begin(PRIORITY, block.len(), STREAM);
            table.follow(&block);
            // The name of the newest one.
            read(&mut table, b"\x7e\x01/");
            assert_eq!(table.kept.len(), kept, "{dependency}");
        }
    }

    #[test]
    fn numbers_that_are_too_long_end_a_block() {
        let mut table = Table::new();
        read(&mut table, b"\x44\x7f\xff\xff\xff\xff\x01\x44\x01/");
        assert_eq!((table.is_lost, table.kept.len()), (true, 0));
        table.go_on(3);
        table.follow(b"\x44\x01/");
        assert_eq!(table.kept.len(), 0);
    }

    /// How a field is sent, its name, how far back that is in the table, and its value.
    type Sent = (u8, u8, usize, bool, usize);

    /// Encodes a field, and notes in the table, the newest first, whether its value keeps a buffer.
    fn encode((how, name, back, is_packed, length): Sent, table: &mut Vec<bool>) -> Vec<u8> {
        let (first, prefix) = match how {
            0 => return number(0x80, 7, back + 1),
            1 => return number(0x20, 5, back * 30),
            2 => (0, 4),
            3 => (0x10, 4),
            _ => (0x40, 6),
        };
        let known = table.get(back).filter(|_| name == 0).copied();
        let literal = |name: Vec<u8>| [vec![first], name].concat();
        let (name, keeps) = match (known, name) {
            (Some(keeps), _) => (number(first, prefix, 62 + back), Some(keeps)),
            (None, 1) => (number(first, prefix, 4), Some(true)),
            (None, 2) => (number(first, prefix, 1), Some(true)),
            (None, 3) => (literal(string(false, b":path")), Some(true)),
            // The code of ":path".
            (None, 4) => (literal(string(true, &[0xb9, 0x58, 0xd3, 0x3f])), Some(true)),
            (None, 5) => (literal(string(false, &[b'a'; 140])), Some(false)),
            (None, 6) => (literal(string(true, &[0x1f; 3])), Some(false)),
            // h2 drops it.
            (None, 7) => (literal(string(is_packed, b"")), None),
            (None, _) => (number(first, prefix, 28), Some(false)),
        };
        if let Some(keeps) = keeps.filter(|_| prefix == 6) {
            table.insert(0, keeps);
            table.truncate(124);
        }
        [name, string(is_packed, &vec![0x44; length])].concat()
    }

    proptest! {
        #[test]
        fn all_that_is_inserted_counts_wherever_reads_are_cut(
            blocks in prop::collection::vec(
                (
                    prop::collection::vec((0..9_u8, 0..9_u8, 0..124_usize, any::<bool>(), 0..300_usize), 0..40),
                    (any::<bool>(), any::<bool>(), any::<u8>()),
                    0..3000_usize,
                ),
                0..12,
            ),
            reads in prop::collection::vec(1..400_usize, 1..20),
        ) {
            let (mut whole, mut cut, mut inserted) = (Table::new(), Table::new(), Vec::new());
            let mut reads = reads.iter().copied().cycle();
            for (fields, (is_padded, has_priority, padding), at) in blocks {
                let block: Vec<u8> = fields
                    .into_iter()
                    .flat_map(|field| encode(field, &mut inserted))
                    .collect();
                let (first, rest) = block.split_at(at.min(block.len()));
                let (mut payload, mut flags) = (Vec::new(), 0);
                if is_padded {
                    payload.push(padding);
                    flags |= PADDED;
                }
                if has_priority {
                    payload.extend([0, 0, 0, 0, 0x44]);
                    flags |= PRIORITY;
                }
                payload.extend(first);
                if is_padded {
                    payload.extend(vec![0x44; padding.into()]);
                }
                for table in [&mut whole, &mut cut] {
                    table.begin(flags, payload.len(), STREAM);
                }
                for (payload, goes_on) in [(&payload[..], false), (rest, true)] {
                    if goes_on {
                        whole.go_on(payload.len());
                        cut.go_on(payload.len());
                    }
                    whole.follow(payload);
                    let mut left = payload;
                    while !left.is_empty() {
                        let (read, behind) = left.split_at(reads.next().unwrap_or(1).min(left.len()));
                        cut.follow(read);
                        left = behind;
                    }
                }
                prop_assert_eq!(whole.step, Step::Field);
            }
            prop_assert_eq!(whole.kept.len(), inserted.iter().filter(|keeps| **keeps).count());
            let all: u64 = whole.kept.iter().map(|(_, bytes)| bytes).sum();
            prop_assert_eq!(whole.all, all);
            prop_assert_eq!(cut, whole);
        }
    }
}

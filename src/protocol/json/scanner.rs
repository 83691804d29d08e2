//! Strict scanner over JSON text: finds the spans of values and builds none.
//!
//! It accepts exactly RFC 8259 text of bounded depth. Not here: members by their
//! names, and changes of objects (`members`).

use std::{num::NonZeroU32, thread};

/// The deepest nesting that is accepted.
pub(crate) const MAX_DEPTH: usize = 128;

/// A span of a scanned text. Texts are bounded far below 4 GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    start: u32,
    /// The end plus one: an optional span takes no more room than a span.
    end: NonZeroU32,
}

impl Span {
    pub(super) fn new(start: usize, end: usize) -> Self {
        let bound = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        Self {
            start: bound(start),
            end: NonZeroU32::MIN.saturating_add(bound(end)),
        }
    }

    /// All of `text`.
    pub(crate) fn whole(text: &[u8]) -> Self {
        Self::new(0, text.len())
    }

    /// This span, counted from the start of `outer`, as a span of the whole text.
    pub(crate) fn behind(self, outer: Self) -> Self {
        Self::new(outer.start() + self.start(), outer.start() + self.end())
    }

    /// The empty span behind the first brace of this one.
    pub(crate) fn behind_brace(self, text: &[u8]) -> Self {
        let brace = self.of(text).iter().position(|byte| *byte == b'{');
        let at = self.start() + brace.map_or(0, |brace| brace + 1);
        Self::new(at, at)
    }

    /// The span of the member whose value this is, with its key and one of the commas beside it.
    pub(crate) fn of_member(self, text: &[u8]) -> Self {
        // The key ends with a quote before the colon, and has no other quotes than escaped ones.
        let before = |end: usize, is: fn(&u8) -> bool| text[..end].iter().rposition(is);
        let is_quote: fn(&u8) -> bool = |byte| *byte == b'"';
        let is_dark: fn(&u8) -> bool = |byte| !byte.is_ascii_whitespace();
        let mut quote = before(self.start(), is_quote).unwrap_or(0);
        loop {
            quote = before(quote, is_quote).unwrap_or(0);
            let slashes = text[..quote].iter().rev();
            if slashes.take_while(|byte| **byte == b'\\').count() % 2 == 0 {
                break;
            }
        }
        match before(quote, is_dark) {
            Some(comma) if text[comma] == b',' => Self::new(comma, self.end()),
            _ => {
                let next = text[self.end()..].iter().position(is_dark);
                let next = next.map_or(self.end(), |next| self.end() + next);
                let has_comma = text.get(next) == Some(&b',');
                let end = if has_comma { next + 1 } else { self.end() };
                Self::new(quote, end)
            }
        }
    }

    /// The position of the first byte.
    pub(crate) const fn start(self) -> usize {
        self.start as usize
    }

    /// The position behind the last byte.
    pub(crate) const fn end(self) -> usize {
        (self.end.get() - 1) as usize
    }

    /// The bytes of the span in `text`, which must be the scanned text.
    pub(crate) fn of(self, text: &[u8]) -> &[u8] {
        text.get(self.start()..self.end()).unwrap_or_default()
    }
}

/// The reason why a text is not accepted as JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SyntaxError(pub(crate) &'static str);

/// A scanner: a text and the position of the next byte.
pub(crate) struct Scanner<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Scanner<'a> {
    /// A scanner at the first byte that is not white space.
    pub(crate) fn new(text: &'a [u8]) -> Self {
        let mut scanner = Self { text, at: 0 };
        scanner.space();
        scanner
    }

    /// The next byte.
    #[inline]
    pub(crate) fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    /// Checks that the text ends here.
    pub(crate) fn finish(mut self) -> Result<(), SyntaxError> {
        self.space();
        if self.at == self.text.len() {
            Ok(())
        } else {
            Err(SyntaxError("text behind the value"))
        }
    }

    /// Reads one value of any kind at `depth`; returns its span.
    pub(crate) fn value(&mut self, depth: usize) -> Result<Span, SyntaxError> {
        let start = self.at;
        match self.peek() {
            Some(b'{' | b'[') => self.container(depth)?,
            _ => self.at = scalar(self.text, self.at)?,
        }
        Ok(Span::new(start, self.at))
    }

    /// Reads an object at `depth`; `member` is called with each key (with its quotes) and must read
    /// its value.
    pub(crate) fn object<E: From<SyntaxError>>(
        &mut self,
        depth: usize,
        mut member: impl FnMut(&mut Self, Span) -> Result<(), E>,
    ) -> Result<Span, E> {
        let start = self.at;
        if self.peek() != Some(b'{') {
            return Err(SyntaxError("an object was expected").into());
        }
        if depth >= MAX_DEPTH {
            return Err(SyntaxError("nested too deeply").into());
        }
        self.at += 1;
        self.space();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(Span::new(start, self.at));
        }
        let mut pause = self.at + LONG;
        loop {
            give_way(self.at, &mut pause);
            let key = self.key()?;
            member(self, key)?;
            self.space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => {
                    self.at += 1;
                    return Ok(Span::new(start, self.at));
                }
                _ => return Err(SyntaxError("',' or '}' was expected").into()),
            }
            self.space();
        }
    }

    /// Reads an array at `depth`; `item` must read each value.
    pub(crate) fn array<E: From<SyntaxError>>(
        &mut self,
        depth: usize,
        mut item: impl FnMut(&mut Self) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.peek() != Some(b'[') {
            return Err(SyntaxError("an array was expected").into());
        }
        if depth >= MAX_DEPTH {
            return Err(SyntaxError("nested too deeply").into());
        }
        self.at += 1;
        self.space();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(());
        }
        let mut pause = self.at + LONG;
        loop {
            give_way(self.at, &mut pause);
            item(self)?;
            self.space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => {
                    self.at += 1;
                    return Ok(());
                }
                _ => return Err(SyntaxError("',' or ']' was expected").into()),
            }
            self.space();
        }
    }

    #[inline]
    fn key(&mut self) -> Result<Span, SyntaxError> {
        let (end, value) = key(self.text, self.at)?;
        let key = Span::new(self.at, end);
        self.at = value;
        Ok(key)
    }

    /// Objects and arrays without recursion.
    fn container(&mut self, depth: usize) -> Result<(), SyntaxError> {
        // The position stays in a register: a body can have millions of values.
        let (text, mut at) = (self.text, self.at);
        let mut nesting = Nesting {
            objects: 0,
            level: 0,
            deepest: MAX_DEPTH.saturating_sub(depth),
        };
        let mut pause = at + LONG;
        loop {
            give_way(at, &mut pause);
            // Here a value begins.
            if let Some(open @ (b'{' | b'[')) = byte(text, at) {
                let is_empty;
                (at, is_empty) = nesting.enter(open, text, at)?;
                if !is_empty {
                    continue;
                }
            } else {
                at = scalar(text, at)?;
            }
            at = nesting.behind_value(text, at)?;
            if nesting.level == 0 {
                self.at = at;
                return Ok(());
            }
        }
    }

    #[inline]
    fn space(&mut self) {
        self.at = space(self.text, self.at);
    }
}

/// The length from which on a text is long: it is scanned on a thread whose processor others need as well.
const LONG: usize = 256 << 10;

/// The bytes of a long text between two pauses: at most some 0.2 ms.
const STRIDE: usize = 64 << 10;

/// Lets other threads of this processor run, once a scan has come to `pause`. By itself the kernel lets them
/// wait for up to its time slice, 3 ms and more, even with another processor idle.
#[inline]
fn give_way(at: usize, pause: &mut usize) {
    if at >= *pause {
        *pause = at + STRIDE;
        thread::yield_now();
    }
}

/// The open containers: one bit a level says whether it is an object or an array.
struct Nesting {
    objects: u128,
    level: usize,
    /// The highest level, at most the number of bits.
    deepest: usize,
}

impl Nesting {
    /// Enters the container at `at`. Returns where its first value begins, or its end, and whether
    /// it is empty.
    #[inline]
    fn enter(
        &mut self,
        open: u8,
        text: &[u8],
        mut at: usize,
    ) -> Result<(usize, bool), SyntaxError> {
        if self.level >= self.deepest {
            return Err(SyntaxError("nested too deeply"));
        }
        // Eight arrays inside each other, with a ninth one behind them.
        if self.level + 8 < self.deepest && open == b'[' && word_at(text, at + 1) == Some(OPENED) {
            self.objects <<= 8;
            self.level += 8;
            return Ok((at + 8, false));
        }
        at = space(text, at + 1);
        let close = if open == b'{' { b'}' } else { b']' };
        if byte(text, at) == Some(close) {
            return Ok((at + 1, true));
        }
        self.objects = (self.objects << 1) | u128::from(open == b'{');
        self.level += 1;
        if open == b'{' {
            (_, at) = key(text, at)?;
        }
        Ok((at, false))
    }

    /// Leaves the containers that end behind the value that ends at `at`. Returns where the next value
    /// begins, or the end of the last container.
    #[inline]
    fn behind_value(&mut self, text: &[u8], mut at: usize) -> Result<usize, SyntaxError> {
        while self.level > 0 {
            at = space(text, at);
            let in_object = self.objects & 1 == 1;
            let closed = match byte(text, at) {
                Some(b',') if in_object => return Ok(key(text, space(text, at + 1))?.1),
                Some(b',') => {
                    at = behind_integers(text, space(text, at + 1));
                    return Ok(space(text, at));
                }
                Some(b'}') if in_object => 1,
                // Eight arrays inside each other, in a ninth container.
                Some(b']')
                    if self.level > 8
                        && self.objects.trailing_zeros() >= 8
                        && word_at(text, at) == Some(CLOSED) =>
                {
                    8
                }
                Some(b']') if !in_object => 1,
                _ => return Err(SyntaxError("',' or the end of a container was expected")),
            };
            at += closed;
            self.objects >>= closed;
            self.level -= closed;
        }
        Ok(at)
    }
}

#[inline]
fn byte(text: &[u8], at: usize) -> Option<u8> {
    text.get(at).copied()
}

/// The position behind white space.
#[inline]
fn space(text: &[u8], mut at: usize) -> usize {
    if byte(text, at).is_some_and(|byte| byte > b' ') {
        return at;
    }
    while let Some(b' ' | b'\n' | b'\r' | b'\t') = byte(text, at) {
        at += 1;
    }
    at
}

/// The end of a key, and the begin of its value.
#[inline]
fn key(text: &[u8], at: usize) -> Result<(usize, usize), SyntaxError> {
    if byte(text, at) != Some(b'"') {
        return Err(SyntaxError("a key was expected"));
    }
    let end = string(text, at)?;
    let colon = space(text, end);
    if byte(text, colon) != Some(b':') {
        return Err(SyntaxError("':' was expected"));
    }
    Ok((end, space(text, colon + 1)))
}

/// The end of a value that is neither an object nor an array.
#[inline]
fn scalar(text: &[u8], at: usize) -> Result<usize, SyntaxError> {
    match byte(text, at) {
        Some(b'"') => string(text, at),
        Some(b't') => word(text, at, b"true"),
        Some(b'f') => word(text, at, b"false"),
        Some(b'n') => word(text, at, b"null"),
        Some(b'-' | b'0'..=b'9') => number(text, at),
        Some(_) => Err(SyntaxError("a value was expected")),
        None => Err(SyntaxError("the text ends early")),
    }
}

fn word(text: &[u8], at: usize, word: &[u8]) -> Result<usize, SyntaxError> {
    let rest = text.get(at..);
    if rest.is_some_and(|rest| rest.starts_with(word)) {
        return Ok(at + word.len());
    }
    Err(SyntaxError("a value was expected"))
}

#[inline]
fn string(text: &[u8], quote: usize) -> Result<usize, SyntaxError> {
    let mut at = quote + 1;
    loop {
        if !matches!(byte(text, at), Some(b'"' | b'\\')) {
            // Most keys and many texts end within eight bytes.
            at += match word_at(text, at).map(marks_of) {
                Some(marks) if marks != 0 => (marks.trailing_zeros() / 8) as usize,
                _ => plain_length(text.get(at..).unwrap_or_default()),
            };
        }
        match byte(text, at) {
            Some(b'"') => return Ok(at + 1),
            Some(b'\\') => at = escape(text, at)?,
            Some(_) => return Err(SyntaxError("a control character inside a string")),
            None => return Err(SyntaxError("the text ends inside a string")),
        }
    }
}

#[inline]
fn escape(text: &[u8], at: usize) -> Result<usize, SyntaxError> {
    match byte(text, at + 1) {
        Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => Ok(at + 2),
        Some(b'u') => {
            let digits = text.get(at + 2..at + 6).unwrap_or_default();
            if digits.len() < 4 || !digits.iter().all(u8::is_ascii_hexdigit) {
                return Err(SyntaxError("a bad escape inside a string"));
            }
            Ok(at + 6)
        }
        _ => Err(SyntaxError("a bad escape inside a string")),
    }
}

#[inline]
fn number(text: &[u8], at: usize) -> Result<usize, SyntaxError> {
    // An integer of less than eight digits, of which a body can have millions.
    if let Some(word) = word_at(text, at) {
        let length = (digits_of(word) ^ HIGHS).trailing_zeros() / 8;
        let is_short = length == 1 || length > 1 && word & 0xff != u64::from(b'0');
        let behind = word.checked_shr(8 * length).unwrap_or_default() & 0xff;
        if is_short && [b',', b']', b'}'].map(u64::from).contains(&behind) {
            return Ok(at + length as usize);
        }
    }
    long_number(text, at)
}

fn long_number(text: &[u8], mut at: usize) -> Result<usize, SyntaxError> {
    if byte(text, at) == Some(b'-') {
        at += 1;
    }
    match byte(text, at) {
        Some(b'0') => at += 1,
        Some(b'1'..=b'9') => at = digits(text, at)?,
        _ => return Err(SyntaxError("a bad number")),
    }
    if byte(text, at) == Some(b'.') {
        at = digits(text, at + 1)?;
    }
    if let Some(b'e' | b'E') = byte(text, at) {
        at += 1;
        if let Some(b'+' | b'-') = byte(text, at) {
            at += 1;
        }
        at = digits(text, at)?;
    }
    Ok(at)
}

#[inline]
fn digits(text: &[u8], start: usize) -> Result<usize, SyntaxError> {
    let mut at = start;
    while let Some(word) = word_at(text, at) {
        let others = digits_of(word) ^ HIGHS;
        at += (others.trailing_zeros() / 8) as usize;
        if others != 0 {
            break;
        }
    }
    while byte(text, at).is_some_and(|byte| byte.is_ascii_digit()) {
        at += 1;
    }
    if at == start {
        return Err(SyntaxError("a bad number"));
    }
    Ok(at)
}

/// Behind the integers at `at`, each with the comma behind it, as far as this is quick: `at` is where
/// an item of an array begins.
#[inline]
fn behind_integers(text: &[u8], mut at: usize) -> usize {
    while let Some(word) = word_at(text, at) {
        let digits = digits_of(word);
        let commas = zeros_of(word ^ (ONES * u64::from(b',')));
        // Bytes at which an integer must begin.
        let begins = (commas << 8) | 0x80;
        let zeros = zeros_of(word ^ (ONES * u64::from(b'0')));
        let leading_zeros = zeros & begins & (digits >> 8);
        let others = (digits | commas) ^ HIGHS;
        if others | (begins & commas) | leading_zeros != 0 || commas == 0 {
            return at;
        }
        at += 8 - commas.leading_zeros() as usize / 8;
    }
    at
}

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = 0x8080_8080_8080_8080;
const OPENED: u64 = ONES * b'[' as u64;
const CLOSED: u64 = ONES * b']' as u64;

/// The eight bytes at `at`, the first of them the lowest.
#[inline]
fn word_at(text: &[u8], at: usize) -> Option<u64> {
    let bytes = text.get(at..)?.first_chunk()?;
    Some(u64::from_le_bytes(*bytes))
}

/// The high bit of each byte that is 0, and of no other.
#[inline]
const fn zeros_of(word: u64) -> u64 {
    !(((word & !HIGHS) + !HIGHS) | word) & HIGHS
}

/// The high bit of each byte that is a digit, and of no other.
#[inline]
const fn digits_of(word: u64) -> u64 {
    // Below 0x80 a sum does not carry into the next byte.
    let low = word & !HIGHS;
    let from_zero = low + ONES * (0x80 - b'0' as u64);
    let behind_nine = low + ONES * (0x80 - (b'9' as u64 + 1));
    from_zero & !behind_nine & !word & HIGHS
}

/// The high bits of bytes that are no plain string content: only the lowest one is exact, since a
/// borrow may set higher ones.
#[inline]
const fn marks_of(word: u64) -> u64 {
    let quotes = word ^ (ONES * b'"' as u64);
    let escapes = word ^ (ONES * b'\\' as u64);
    let zeros = (quotes.wrapping_sub(ONES) & !quotes) | (escapes.wrapping_sub(ONES) & !escapes);
    let controls = word.wrapping_sub(ONES * 0x20) & !word;
    (zeros | controls) & HIGHS
}

/// The number of bytes at the start of `text` that are plain string content. Eight are tested at a
/// time: most bytes of messages are inside strings.
fn plain_length(text: &[u8]) -> usize {
    let mut at = 0;
    for chunk in text.as_chunks::<8>().0 {
        let marks = marks_of(u64::from_le_bytes(*chunk));
        if marks != 0 {
            return at + (marks.trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    let is_plain = |byte: &&u8| **byte >= 0x20 && **byte != b'"' && **byte != b'\\';
    at + text[at..].iter().take_while(is_plain).count()
}

/// The items of an array in a text that was scanned before, one at a time.
pub(crate) struct Items<'a>(Scanner<'a>);

impl<'a> Items<'a> {
    /// The items of this text.
    pub(crate) fn of(text: &'a [u8]) -> Self {
        Self(Scanner::new(text))
    }

    /// The next item; none at the end.
    ///
    /// # Errors
    ///
    /// The text is no array.
    pub(crate) fn next(&mut self) -> Result<Option<&'a [u8]>, SyntaxError> {
        let Self(scanner) = self;
        scanner.space();
        let before = scanner.peek();
        if before == Some(b']') {
            return Ok(None);
        }
        if !matches!(before, Some(b'[' | b',')) {
            return Err(SyntaxError("an array was expected"));
        }
        scanner.at += 1;
        scanner.space();
        if before == Some(b'[') && scanner.peek() == Some(b']') {
            return Ok(None);
        }
        let item = scanner.value(1)?;
        Ok(Some(item.of(scanner.text)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Barrier,
        atomic::{AtomicBool, Ordering},
    };

    use proptest::prelude::*;
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    use super::super::scanner::*;

    fn check(text: &[u8]) -> Result<(), SyntaxError> {
        std::str::from_utf8(text).map_err(|_| SyntaxError("UTF-8"))?;
        let mut scanner = Scanner::new(text);
        scanner.value(0)?;
        scanner.finish()
    }

    #[test]
    fn accepts_exactly_json() {
        let good = [
            "null",
            " [ ] ",
            "{}",
            "{\"a\":[1,-0,2.5e+3,{\"b\":\"\\u00e9\\n\"}],\"c\":true}",
            "\"\"",
            "[[],[[]],{}]",
            "0",
            "-1.0E-2",
            "{\"a\":0,\"b\":1234567,\"c\":12345678,\"d\":123456789,\"e\":12.5,\"f\":1e5}",
            "{\"seven_b\":1234567,\"eight_by\":\"1234567\",\"nine_byte\":\"12345678\"}",
        ];
        for text in good {
            assert_eq!(check(text.as_bytes()), Ok(()), "{text}");
        }
        let bad = [
            "",
            " ",
            "nul",
            "[1,]",
            "{\"a\":}",
            "{\"a\" 1}",
            "{a:1}",
            "[1 2]",
            "{\"a\":1,}",
            "01",
            "{\"a\":01,\"b\":2222222}",
            "{\"a\":0123456,\"b\":2}",
            "{\"a\":1234567 1,\"b\":2}",
            "{\"a\":1234567:\"b\":2}",
            "{\"a\":12345678.,\"b\":2}",
            "1.",
            ".5",
            "+1",
            "1e",
            "\"\t\"",
            "\"\\x\"",
            "\"\\u12g4\"",
            "\"open",
            "{} {}",
            "]",
            "[}",
            "{]",
            "\u{feff}{}",
            "[1]x",
            "'a'",
            "NaN",
        ];
        for text in bad {
            assert!(check(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn bounds_the_depth() {
        let nested = |depth: usize| [vec![b'['; depth], vec![b']'; depth]].concat();
        assert_eq!(check(&nested(MAX_DEPTH)), Ok(()));
        assert_eq!(
            check(&nested(MAX_DEPTH + 1)),
            Err(SyntaxError("nested too deeply"))
        );
        let objects = |depth: usize| format!("{}1{}", "{\"a\":".repeat(depth), "}".repeat(depth));
        assert_eq!(check(objects(MAX_DEPTH).as_bytes()), Ok(()));
        assert!(check(objects(MAX_DEPTH + 1).as_bytes()).is_err());
    }

    /// How often another thread of the same processor runs during a scan, if it gives way at once each time.
    fn runs_beside(scan: impl FnOnce() + Send) -> usize {
        let allowed = sched_getaffinity(None).unwrap();
        let mut one = CpuSet::new();
        one.set((0..CpuSet::MAX_CPU).find(|at| allowed.is_set(*at)).unwrap());
        let (begin, is_over) = (Barrier::new(2), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                sched_setaffinity(None, &one).unwrap();
                begin.wait();
                scan();
                is_over.store(true, Ordering::Relaxed);
            });
            sched_setaffinity(None, &one).unwrap();
            begin.wait();
            let mut runs = 0;
            while !is_over.load(Ordering::Relaxed) {
                runs += 1;
                thread::yield_now();
            }
            sched_setaffinity(None, &allowed).unwrap();
            runs
        })
    }

    #[test]
    fn long_scans_give_way() {
        let value = format!("\"{}\"", "a".repeat(1000));
        let array = format!("[{}0]", format!("{value},").repeat(16 << 10));
        let object = format!("{{{}\"\":0}}", format!("\"\":{value},").repeat(16 << 10));
        // The kernel may go on with the same thread, but not each time.
        let strides = array.len() / STRIDE;
        let enough = strides / 4;
        let scanners = || {
            (
                Scanner::new(array.as_bytes()),
                Scanner::new(object.as_bytes()),
            )
        };
        let (mut values, _) = scanners();
        let runs = runs_beside(|| _ = values.value(0).unwrap());
        assert!(runs > enough, "{runs} of {strides}");
        let (mut items, mut members) = scanners();
        let item = |scanner: &mut Scanner<'_>| scanner.value(1).map(drop);
        let runs = runs_beside(|| items.array(0, item).unwrap());
        assert!(runs > enough, "{runs} of {strides}");
        let member = |scanner: &mut Scanner<'_>, _| scanner.value(1).map(drop);
        let runs = runs_beside(|| _ = members.object(0, member).unwrap());
        assert!(runs > enough, "{runs} of {strides}");
    }

    fn any_json() -> impl Strategy<Value = serde_json::Value> {
        use serde_json::Value;
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(6, 64, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::vec((any::<String>(), inner), 0..6)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn accepts_whatever_serde_json_writes(value in any_json()) {
            prop_assert_eq!(check(value.to_string().as_bytes()), Ok(()));
            let pretty = serde_json::to_string_pretty(&value).unwrap();
            prop_assert_eq!(check(pretty.as_bytes()), Ok(()));
        }

        #[test]
        fn agrees_with_serde_json_on_damaged_text(
            value in any_json(),
            at in any::<prop::sample::Index>(),
            byte in prop::sample::select(&b"{}[],:\"\\0123eE+-. tfn\x01u"[..]),
        ) {
            let mut text = value.to_string().into_bytes();
            let at = at.index(text.len());
            text[at] = byte;
            if let Ok(text) = std::str::from_utf8(&text) {
                let serde = serde_json::from_str::<&serde_json::value::RawValue>(text).is_ok();
                prop_assert_eq!(check(text.as_bytes()).is_ok(), serde, "{}", text);
            }
        }

        #[test]
        fn plain_length_is_the_naive_one(text in prop::collection::vec(any::<u8>(), 0..64)) {
            let naive = text.iter().take_while(|b| **b >= 0x20 && **b != b'"' && **b != b'\\').count();
            prop_assert_eq!(plain_length(&text), naive);
        }

        #[test]
        fn short_cuts_agree_with_serde_json(
            tokens in prop::collection::vec(
                prop::sample::select(&["1", "0", "234", "0", "5678901234", "-1", ".5", " ", ",", ",", ",",
                    "[", "]", "[[[[[[[[[", "]]]]]]]]]", "[[[[[[[[", "]]]]]]]]", "{\"a\":", "}", "[1,2,3,4,5]"][..]),
                0..40,
            ),
        ) {
            let open = tokens.concat();
            let closed = open.matches('[').count().saturating_sub(open.matches(']').count());
            let text = format!("[{open}{}]", "]".repeat(closed));
            let serde = serde_json::from_str::<serde_json::Value>(&text);
            let too_deep = serde.as_ref().is_err_and(|error| error.to_string().contains("recursion"));
            if !too_deep {
                prop_assert_eq!(check(text.as_bytes()).is_ok(), serde.is_ok(), "{}", text);
            }
        }

        #[test]
        fn arrays_of_integers_agree_with_serde_json(
            items in prop::collection::vec(
                prop::sample::select(&["1,", "23,", "0,", "4567,", "890123456,", "1,", "2,", "3, ", "0", ","][..]),
                0..20,
            ),
        ) {
            let text = format!("[1,{}1]", items.concat());
            let serde = serde_json::from_str::<serde_json::Value>(&text).is_ok();
            prop_assert_eq!(check(text.as_bytes()).is_ok(), serde, "{}", text);
        }

        #[test]
        fn the_depth_is_exact(arrays in 0_usize..140, objects in 0_usize..140, inner in 0_usize..140) {
            let text = format!("{}{}{}0{}{}{}", "[".repeat(arrays), "{\"a\":".repeat(objects),
                "[".repeat(inner), "]".repeat(inner), "}".repeat(objects), "]".repeat(arrays));
            let expected = arrays + objects + inner <= MAX_DEPTH;
            prop_assert_eq!(check(text.as_bytes()).is_ok(), expected);
        }

        #[test]
        fn never_panics(text in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = check(&text);
        }
    }
}

//! Log lines as JSON objects: time, level, the fields of the event, and its target.
//!
//! Written into a buffer of the thread in one pass: a busy gateway has a line for each request. Text of others is
//! escaped, because people read these lines on terminals too.

use std::cell::RefCell;
use std::fmt::{self, Debug, Write};

use serde::Serialize;
use time::OffsetDateTime;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use super::queue::Logs;
use crate::base::{Clock, terminal::steers};

/// Writes events as JSON objects, one on each line.
pub(super) struct Json {
    logs: Logs,
    clock: Clock,
}

impl Json {
    /// Lines for a queue.
    pub(super) fn new(logs: Logs) -> Self {
        Self {
            logs,
            clock: Clock::system(),
        }
    }
}

impl<S: Subscriber> Layer<S> for Json {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        BUFFER.with(|buffer| {
            // A field whose text logs something itself needs another buffer.
            let mut other = Vec::new();
            let mut own = buffer.try_borrow_mut();
            let line = own.as_deref_mut().unwrap_or(&mut other);
            line.clear();
            push_event(event, self.clock.now_ms(), line);
            self.logs.line(line);
            if line.capacity() > KEPT {
                *line = Vec::new();
            }
        });
    }
}

fn push_event(event: &Event<'_>, now_ms: i64, line: &mut Vec<u8>) {
    let metadata = event.metadata();
    line.extend_from_slice(b"{\"timestamp\":\"");
    push_time(now_ms, line);
    line.extend_from_slice(b"\",\"level\":\"");
    line.extend_from_slice(metadata.level().as_str().as_bytes());
    line.push(b'"');
    event.record(&mut Fields(line));
    line.extend_from_slice(b",\"target\":");
    let _ = serde_json::to_writer(&mut *line, metadata.target());
    line.extend_from_slice(b"}\n");
}

/// Appends a time in milliseconds since 1970 as RFC 3339 has it.
fn push_time(now_ms: i64, line: &mut Vec<u8>) {
    let nanos = i128::from(now_ms) * 1_000_000;
    let now = OffsetDateTime::from_unix_timestamp_nanos(nanos);
    let now = now.unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let (hour, minute, second, milli) = now.to_hms_milli();
    let year = u16::try_from(now.year()).unwrap_or_default();
    push_digits::<4>(year, line);
    for (before, number) in [
        (b'-', u8::from(now.month())),
        (b'-', now.day()),
        (b'T', hour),
        (b':', minute),
        (b':', second),
    ] {
        line.push(before);
        push_digits::<2>(number.into(), line);
    }
    line.push(b'.');
    push_digits::<3>(milli, line);
    line.push(b'Z');
}

fn push_digits<const COUNT: usize>(mut number: u16, line: &mut Vec<u8>) {
    let mut digits = [b'0'; COUNT];
    for digit in digits.iter_mut().rev() {
        *digit += u8::try_from(number % 10).unwrap_or_default();
        number /= 10;
    }
    line.extend_from_slice(&digits);
}

/// Appends the fields of an event as members of an object.
struct Fields<'l>(&'l mut Vec<u8>);

impl Fields<'_> {
    fn key(&mut self, field: &Field) {
        self.0.extend_from_slice(b",\"");
        // Names stand in the source: they need no escapes.
        self.0.extend_from_slice(field.name().as_bytes());
        self.0.extend_from_slice(b"\":");
    }

    fn member(&mut self, field: &Field, value: impl Serialize) {
        self.key(field);
        // Numbers can be written, and a vector takes them.
        let _ = serde_json::to_writer(&mut *self.0, &value);
    }

    fn text(&mut self, field: &Field, write: impl FnOnce(&mut Escaped<'_>) -> fmt::Result) {
        self.key(field);
        self.0.push(b'"');
        // Of a value that fails to write itself there is what came before.
        let _ = write(&mut Escaped(self.0));
        self.0.push(b'"');
    }
}

impl Visit for Fields<'_> {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.member(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.member(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.member(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.member(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.text(field, |to| to.write_str(value));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.text(field, |to| write!(to, "{value:?}"));
    }
}

/// The inside of a JSON string (RFC 8259, section 7), in which what steers a terminal is escaped as well. `serde_json`
/// leaves that as it is, and panics at a value that fails to write itself.
struct Escaped<'l>(&'l mut Vec<u8>);

impl Escaped<'_> {
    fn push(&mut self, letter: char) {
        match letter {
            '"' | '\\' => self.0.push(b'\\'),
            '\n' => return self.0.extend_from_slice(b"\\n"),
            '\r' => return self.0.extend_from_slice(b"\\r"),
            '\t' => return self.0.extend_from_slice(b"\\t"),
            letter if steers(letter) => {
                for unit in letter.encode_utf16(&mut [0; 2]) {
                    let escape = format!("\\u{unit:04x}");
                    self.0.extend_from_slice(escape.as_bytes());
                }
                return;
            }
            _ => {}
        }
        let mut bytes = [0; 4];
        let bytes = letter.encode_utf8(&mut bytes).as_bytes();
        self.0.extend_from_slice(bytes);
    }
}

impl Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        // Most text is ASCII without escapes, and copied at once. Only other characters are looked at one by one.
        let is_special = |byte: u8| !matches!(byte, b' '..=b'~') || matches!(byte, b'"' | b'\\');
        while let Some(at) = rest.bytes().position(is_special) {
            let (plain, special) = rest.split_at(at);
            self.0.extend_from_slice(plain.as_bytes());
            let mut letters = special.chars();
            if let Some(letter) = letters.next() {
                self.push(letter);
            }
            rest = letters.as_str();
        }
        self.0.extend_from_slice(rest.as_bytes());
        Ok(())
    }
}

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Most bytes that the buffer of a thread keeps.
const KEPT: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use super::super::json::*;

    #[test]
    fn times_are_those_of_rfc_3339() {
        for (ms, wanted) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_795_564_805_007, "2026-11-25T00:00:05.007Z"),
        ] {
            let mut line = Vec::new();
            push_time(ms, &mut line);
            assert_eq!(String::from_utf8(line).unwrap(), wanted);
        }
    }
}

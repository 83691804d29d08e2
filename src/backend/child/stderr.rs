//! Stderr of a child: the last bytes are kept, lines are logged at a limited rate.
//!
//! Not here: the pipe (`stdio`).

use std::{
    collections::VecDeque,
    sync::{Arc, PoisonError, RwLock},
};

use tokio::time::{Duration, Instant};

/// Stderr of one child, in bounded memory.
pub(crate) struct Stderr {
    /// Name of the child in the log.
    label: String,
    /// Last bytes; grows up to `limit`.
    ring: Tail,
    /// Limit of kept bytes.
    limit: usize,
    /// Beginning of an incomplete line.
    line: Vec<u8>,
    /// Beginning of the current window of the rate limit.
    since: Option<Instant>,
    /// Lines logged in this window.
    logged: u32,
    /// Lines dropped since the last logged one.
    suppressed: u64,
}

/// Last bytes of a child's stderr, readable while it runs.
#[derive(Clone, Default)]
pub(crate) struct Tail(Arc<RwLock<VecDeque<u8>>>);

impl Tail {
    /// Bytes kept at present.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let ring = self.0.read().unwrap_or_else(PoisonError::into_inner);
        ring.iter().copied().collect()
    }
}

impl Stderr {
    /// Empty stderr that keeps `limit` bytes.
    pub(crate) fn new(label: String, limit: usize) -> Self {
        let (ring, line) = (Tail::default(), Vec::new());
        Self {
            label,
            ring,
            limit,
            line,
            since: None,
            logged: 0,
            suppressed: 0,
        }
    }

    /// Name of the child in the log.
    pub(crate) fn label(&self) -> &str {
        &self.label
    }

    /// Adds bytes read from the pipe.
    pub(crate) fn take(&mut self, bytes: &[u8]) {
        self.keep(bytes);
        let mut rest = bytes;
        while let Some(end) = memchr::memchr(b'\n', rest) {
            if self.is_full() {
                rest = self.suppress(rest);
                break;
            }
            self.begin(&rest[..end]);
            self.end_line();
            rest = &rest[end + 1..];
        }
        self.begin(rest);
    }

    /// Logs a last line without line end.
    pub(crate) fn finish(&mut self) {
        if !self.line.is_empty() {
            self.end_line();
        }
    }

    /// Handle to the last bytes.
    pub(crate) fn tail(&self) -> &Tail {
        &self.ring
    }

    fn keep(&mut self, bytes: &[u8]) {
        let bytes = &bytes[bytes.len().saturating_sub(self.limit)..];
        let mut ring = self.ring.0.write().unwrap_or_else(PoisonError::into_inner);
        let surplus = (ring.len() + bytes.len()).saturating_sub(self.limit);
        ring.drain(..surplus);
        ring.extend(bytes);
    }

    fn begin(&mut self, part: &[u8]) {
        let room = MAX_LINE.saturating_sub(self.line.len());
        self.line.extend_from_slice(&part[..part.len().min(room)]);
    }

    fn end_line(&mut self) {
        if self.may_log() {
            let (child, suppressed) = (&self.label, std::mem::take(&mut self.suppressed));
            tracing::info!(target: "child", child, suppressed, "{}", printable(&self.line));
        } else {
            self.suppressed += 1;
        }
        self.line.clear();
        // Most children write at their start and then nothing for hours.
        self.line.shrink_to(SMALL);
    }

    /// Whether this window has no room for a line.
    fn is_full(&self) -> bool {
        self.logged >= PER_WINDOW && self.since.is_some_and(|since| since.elapsed() < WINDOW)
    }

    /// Counts the lines that end in `bytes`, all at once: a flood may have no other bytes. Returns the beginning of the
    /// next line.
    fn suppress<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        self.suppressed += memchr::memchr_iter(b'\n', bytes).count() as u64;
        self.line.clear();
        let next = memchr::memrchr(b'\n', bytes).map_or(0, |end| end + 1);
        &bytes[next..]
    }

    /// Whether this window has room for one more line.
    fn may_log(&mut self) -> bool {
        let now = Instant::now();
        if self
            .since
            .is_none_or(|since| now.duration_since(since) >= WINDOW)
        {
            (self.since, self.logged) = (Some(now), 0);
        }
        let may = self.logged < PER_WINDOW;
        self.logged += u32::from(may);
        may
    }
}

/// A line as text without control characters, which could act on a terminal or forge a line.
pub(crate) fn printable(line: &[u8]) -> String {
    let mut text = String::with_capacity(line.len());
    for letter in String::from_utf8_lossy(line).chars() {
        match letter {
            '"' | '\'' => text.push(letter),
            _ => text.extend(letter.escape_debug()),
        }
    }
    text
}

/// Logged bytes of a line.
const MAX_LINE: usize = 1024;

/// Capacity that an empty line buffer keeps.
const SMALL: usize = 128;

/// Logged lines of one child per window.
const PER_WINDOW: u32 = 10;

/// Length of a window.
const WINDOW: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::super::stderr::*;

    #[test]
    fn only_the_newest_bytes_are_kept() {
        let mut stderr = Stderr::new("t".into(), 8);
        stderr.take(b"hello ");
        stderr.take(b"world\n");
        assert_eq!(stderr.tail().bytes(), b"o world\n");
        stderr.take(&[b'x'; 100]);
        assert_eq!(stderr.tail().bytes(), [b'x'; 8]);
    }

    #[test]
    fn lines_beyond_the_rate_are_counted() {
        let mut stderr = Stderr::new("t".into(), 8);
        stderr.take(&b"line\n".repeat(100));
        assert_eq!((stderr.logged, stderr.suppressed), (10, 90));
        stderr.take(b"one\ntwo\nthr");
        stderr.take(b"ee\nfour");
        assert_eq!((stderr.logged, stderr.suppressed), (10, 93));
        assert_eq!(stderr.line, b"four");
        stderr.since = stderr.since.map(|since| since - WINDOW);
        stderr.take(b"\n");
        assert_eq!((stderr.logged, stderr.suppressed), (1, 0), "a new window");
    }

    #[test]
    fn a_line_without_end_takes_no_memory() {
        let mut stderr = Stderr::new("t".into(), 8);
        for _ in 0..100 {
            stderr.take(&[b'x'; 1000]);
        }
        assert_eq!(stderr.line.len(), MAX_LINE);
    }

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(
            printable(b"\x1b[2J\r\"a\" \xff"),
            "\\u{1b}[2J\\r\"a\" \u{fffd}"
        );
    }
}

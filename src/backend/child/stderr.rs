//! Stderr of a child: the last bytes are kept, lines are logged at a limited rate.
//!
//! The rate is of the child, and of its tenant: a tenant may have a thousand children, and the log
//! is one for all. Errors to requests of the gateway itself have a rate of their own. Not here: the pipe (`stdio`).

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, LazyLock, PoisonError, RwLock, Weak},
};

use tokio::time::{Duration, Instant};

use crate::protocol::json;

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
    /// Lines logged of it.
    own: Window,
    /// Lines logged of all children of its tenant.
    tenant: Arc<RwLock<TenantLines>>,
    /// Lines dropped since the last logged one.
    suppressed: u64,
}

/// Lines logged at present.
#[derive(Default)]
struct Window {
    /// Its beginning.
    since: Option<Instant>,
    /// Lines logged in it.
    logged: u32,
}

impl Window {
    /// Whether it has no room for a line.
    fn is_full(&self, most: u32) -> bool {
        self.logged >= most && self.since.is_some_and(|since| since.elapsed() < WINDOW)
    }

    /// Whether it, or the next one if it is over, has room for one more line.
    fn may_log(&mut self, most: u32) -> bool {
        let now = Instant::now();
        if self
            .since
            .is_none_or(|since| now.duration_since(since) >= WINDOW)
        {
            (self.since, self.logged) = (Some(now), 0);
        }
        let may = self.logged < most;
        self.logged += u32::from(may);
        may
    }
}

/// Lines logged at present of all children of a tenant.
#[derive(Default)]
struct TenantLines {
    /// Those of stderr.
    stderr: Window,
    /// Errors to requests of the gateway itself.
    errors: Window,
    /// Such errors that were left out since the last logged one.
    suppressed: u64,
}

/// The windows of tenants, as long as they have children.
#[derive(Default)]
struct Tenants(RwLock<BTreeMap<String, Weak<RwLock<TenantLines>>>>);

impl Tenants {
    /// The windows of a tenant.
    fn of(&self, tenant: &str) -> Arc<RwLock<TenantLines>> {
        let mut tenants = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(window) = tenants.get(tenant).and_then(Weak::upgrade) {
            return window;
        }
        tenants.retain(|_, window| window.strong_count() > 0);
        let window = Arc::default();
        tenants.insert(tenant.to_owned(), Arc::downgrade(&window));
        window
    }
}

impl TenantLines {
    /// Counts an error; if there is room for its line, returns how many were left out before it.
    fn may_log_error(&mut self) -> Option<u64> {
        if self.errors.may_log(PER_TENANT_ERRORS) {
            return Some(std::mem::take(&mut self.suppressed));
        }
        self.suppressed += 1;
        None
    }
}

/// Last bytes of a child's stderr, readable while it runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tail(Arc<RwLock<VecDeque<u8>>>);

impl Tail {
    /// Bytes kept at present.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.last(usize::MAX)
    }

    /// The last of them, at most `most`.
    pub(crate) fn last(&self, most: usize) -> Vec<u8> {
        let ring = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let begin = ring.len().saturating_sub(most);
        ring.range(begin..).copied().collect()
    }

    /// Their number at present.
    pub(crate) fn length(&self) -> usize {
        let ring = self.0.read().unwrap_or_else(PoisonError::into_inner);
        ring.len()
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
            own: Window::default(),
            tenant: Arc::default(),
            suppressed: 0,
        }
    }

    /// The same, whose lines count among those of a tenant.
    pub(crate) fn of_tenant(self, tenant: &str) -> Self {
        let tenant = TENANTS.of(tenant);
        Self { tenant, ..self }
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
            if self.own.is_full(PER_WINDOW) {
                rest = self.suppress(rest);
                break;
            }
            self.begin(&rest[..end]);
            self.end_line();
            rest = &rest[end + 1..];
        }
        self.begin(rest);
    }

    /// Logs a last line without line end, and the number of lines dropped since the last logged one.
    pub(crate) fn finish(&mut self) {
        if !self.line.is_empty() {
            self.end_line();
        }
        let (child, suppressed) = (&self.label, std::mem::take(&mut self.suppressed));
        // In no window, which may be full until then: a child has one end.
        if suppressed > 0 {
            tracing::info!(target: "child", child, suppressed, "its last lines were left out");
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
            tracing::info!(target: "child", child, suppressed, "{}", printable(&self.line, MAX_LINE));
        } else {
            self.suppressed += 1;
        }
        self.line.clear();
        // Most children write at their start and then nothing for hours.
        self.line.shrink_to(SMALL);
    }

    /// Counts the lines that end in `bytes`, all at once: a flood may have no other bytes. Returns the beginning of the
    /// next line.
    fn suppress<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        self.suppressed += memchr::memchr_iter(b'\n', bytes).count() as u64;
        self.line.clear();
        let next = memchr::memrchr(b'\n', bytes).map_or(0, |end| end + 1);
        &bytes[next..]
    }

    /// Whether the windows of the child and of its tenant have room for one more line.
    fn may_log(&mut self) -> bool {
        if !self.own.may_log(PER_WINDOW) {
            return false;
        }
        let mut tenant = self.tenant.write().unwrap_or_else(PoisonError::into_inner);
        tenant.stderr.may_log(PER_TENANT)
    }
}

/// Logs the error of a child to a request of the gateway itself, unless its tenant has had as many as a window takes:
/// clients cause such requests as often as they like. One to a ping is a sign of life, as good as a result.
pub(crate) fn log_own_error((tenant, server): (&str, &str), method: &'static str, error: &[u8]) {
    if method == "ping" {
        return;
    }
    // Before the error is looked at, which may have megabytes.
    let lines = TENANTS.of(tenant);
    let mut lines = lines.write().unwrap_or_else(PoisonError::into_inner);
    let may_log = lines.may_log_error();
    drop(lines);
    let Some(suppressed) = may_log else { return };
    let (code, why) = reason(error);
    tracing::warn!(
        tenant.id = tenant,
        server.name = server,
        mcp.method.name = method,
        code,
        why,
        suppressed,
        "the child refused a request of the gateway"
    );
}

/// Code and message of an error, the latter fit for one log line; the beginning of a long error, which no worker reads
/// as a whole outside of a turn.
fn reason(error: &[u8]) -> (i64, String) {
    if error.len() > READ_ERROR {
        return (0, printable(error, MAX_LINE));
    }
    let code = json::get(error, "code").and_then(|code| str::from_utf8(code).ok()?.parse().ok());
    let why = json::get(error, "message").and_then(json::decoded);
    let why = printable(why.as_deref().unwrap_or_default().as_bytes(), MAX_LINE);
    (code.unwrap_or(0), why)
}

/// The beginning of a line as text of at most `most` bytes without control characters, which could act on a terminal or
/// forge a line. A byte of the line may be five of the text.
pub(crate) fn printable(line: &[u8], most: usize) -> String {
    let line = &line[..line.len().min(most)];
    let mut text = String::with_capacity(line.len());
    for letter in String::from_utf8_lossy(line).chars() {
        let length = text.len();
        match letter {
            '"' | '\'' => text.push(letter),
            _ => text.extend(letter.escape_debug()),
        }
        if text.len() > most {
            text.truncate(length);
            break;
        }
    }
    text
}

/// The end of stderr as text without control characters, short enough for one log line.
pub(crate) fn last_words(stderr: &[u8]) -> String {
    let last = &stderr[stderr.len().saturating_sub(LAST_WORDS)..];
    String::from_utf8_lossy(last).escape_debug().to_string()
}

/// The windows of all tenants with children.
static TENANTS: LazyLock<Tenants> = LazyLock::new(Tenants::default);

/// Logged bytes of a line.
const MAX_LINE: usize = 1024;

/// The longest error whose members are read; of a longer one the beginning is logged.
const READ_ERROR: usize = 16 << 10;

/// Bytes of stderr in the line of a child's end.
const LAST_WORDS: usize = 512;

/// Capacity that an empty line buffer keeps.
const SMALL: usize = 128;

/// Logged lines of one child per window.
const PER_WINDOW: u32 = 10;

/// Logged lines of all children of one tenant per window: 200 KiB a second of what all write at once.
const PER_TENANT: u32 = 200;

/// Logged errors to requests of the gateway itself, of all children of one tenant per window.
const PER_TENANT_ERRORS: u32 = 10;

/// Length of a window.
const WINDOW: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek};

    use super::super::stderr::*;

    /// The lines that are logged meanwhile.
    fn logged(work: impl FnOnce()) -> Vec<String> {
        let mut file = tempfile::tempfile().unwrap();
        let lines = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(Arc::new(file.try_clone().unwrap()))
            .finish();
        tracing::subscriber::with_default(lines, work);
        let mut text = String::new();
        file.rewind().unwrap();
        file.read_to_string(&mut text).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn only_the_newest_bytes_are_kept() {
        let mut stderr = Stderr::new("t".into(), 8);
        stderr.take(b"hello ");
        stderr.take(b"world\n");
        assert_eq!(stderr.tail().bytes(), b"o world\n");
        assert_eq!(stderr.tail().last(3), b"ld\n");
        assert_eq!(
            (stderr.tail().last(9).len(), stderr.tail().length()),
            (8, 8)
        );
        stderr.take(&[b'x'; 100]);
        assert_eq!(stderr.tail().bytes(), [b'x'; 8]);
    }

    #[test]
    fn lines_beyond_the_rate_are_counted() {
        let mut stderr = Stderr::new("t".into(), 8);
        stderr.take(&b"line\n".repeat(100));
        assert_eq!((stderr.own.logged, stderr.suppressed), (10, 90));
        stderr.take(b"one\ntwo\nthr");
        stderr.take(b"ee\nfour");
        assert_eq!((stderr.own.logged, stderr.suppressed), (10, 93));
        assert_eq!(stderr.line, b"four");
        stderr.own.since = stderr.own.since.map(|since| since - WINDOW);
        stderr.take(b"\n");
        let counted = (stderr.own.logged, stderr.suppressed);
        assert_eq!(counted, (1, 0), "a new window");
    }

    /// A thousand children of one tenant took the log of all.
    #[test]
    fn lines_beyond_the_rate_of_a_tenant_are_counted() {
        let child = |tenant| Stderr::new("t".into(), 8).of_tenant(tenant);
        let mut loud: Vec<_> = (0..30).map(|_| child("loud")).collect();
        let began = Instant::now();
        for stderr in &mut loud {
            stderr.take(&b"line\n".repeat(10));
        }
        let suppressed: u64 = loud.iter().map(|stderr| stderr.suppressed).sum();
        // A machine may stand still meanwhile; then a window is over.
        assert!(
            suppressed == 100 || began.elapsed() >= WINDOW,
            "{suppressed}"
        );
        let mut quiet = child("quiet");
        quiet.take(b"line\n");
        assert_eq!(quiet.suppressed, 0);
        let last = loud.last_mut().unwrap();
        let over = last.own.since.map(|since| since - WINDOW);
        (last.own.since, last.tenant.write().unwrap().stderr.since) = (over, over);
        last.take(b"line\n");
        assert_eq!(last.suppressed, 0, "a new window");
        // Those without children are forgotten.
        drop((loud, quiet));
        let tenants = Tenants::default();
        let kept = tenants.of("kept");
        drop(tenants.of("gone"));
        assert!(Arc::ptr_eq(&kept, &tenants.of("kept")));
        drop(tenants.of("next"));
        let names: Vec<_> = tenants.0.read().unwrap().keys().cloned().collect();
        assert_eq!(names, ["kept", "next"]);
    }

    /// Of one that crashed in the midst of what it wrote, nothing said that lines are missing.
    #[test]
    fn lines_that_are_left_out_are_told_at_the_end() {
        let lines = logged(|| {
            let mut stderr = Stderr::new("whole".into(), 8);
            stderr.take(b"line\n");
            stderr.finish();
            let mut stderr = Stderr::new("cut".into(), 8);
            // A window that is full, and over in an hour.
            stderr.own = Window {
                since: Some(Instant::now() + WINDOW * 3600),
                logged: PER_WINDOW,
            };
            stderr.take(b"one\ntwo\nthr");
            stderr.finish();
            stderr.finish();
        });
        assert_eq!(lines.len(), 2, "{lines:#?}");
        assert!(lines[0].contains("suppressed=0"), "{lines:#?}");
        for part in ["its last lines were left out", "\"cut\"", "suppressed=3"] {
            assert!(lines[1].contains(part), "{part}: {lines:#?}");
        }
    }

    /// Each had a line, however many there were.
    #[test]
    fn errors_to_own_requests_are_logged_at_a_rate() {
        // As long as a tenant has children its lines are counted.
        let (_busy, _idle) = (TENANTS.of("errors"), TENANTS.of("others"));
        let refuse = |tenant| {
            let error = br#"{"code":-32601,"message":"no \u001b[2J"}"#;
            log_own_error((tenant, "main"), "logging/setLevel", error);
        };
        // A window that is over in an hour: a machine may stand still meanwhile.
        let since = Some(Instant::now() + WINDOW * 3600);
        TENANTS.of("errors").write().unwrap().errors.since = since;
        let lines = logged(|| {
            (0..1000).for_each(|_| refuse("errors"));
            log_own_error(("others", "main"), "ping", b"{}");
            refuse("others");
        });
        assert_eq!(lines.len(), 11, "{lines:#?}");
        for part in [
            "code=-32601",
            r"no \\u{1b}[2J",
            "\"others\"",
            "suppressed=0",
        ] {
            assert!(lines[10].contains(part), "{part}: {lines:#?}");
        }
        TENANTS.of("errors").write().unwrap().errors.since = None;
        let lines = logged(|| refuse("errors"));
        assert!(lines[0].contains("suppressed=990"), "{lines:?}");
    }

    /// It was decoded, escaped and logged whole.
    #[test]
    fn a_long_error_is_cut() {
        let long = |letters: &str| format!(r#"{{"code":1,"message":"{letters}"}}"#);
        let (code, why) = reason(long(&"\u{200b}".repeat(READ_ERROR)).as_bytes());
        assert_eq!(code, 0, "it was read as a whole");
        assert!(why.starts_with(r#"{"code":1,"message":"\u{200b}"#), "{why}");
        assert!(why.len() <= MAX_LINE, "{}", why.len());
        let (code, why) = reason(long(&"\u{200b}".repeat(READ_ERROR / 4)).as_bytes());
        assert_eq!((code, why), (1, "\\u{200b}".repeat(MAX_LINE / 8)));
    }

    #[test]
    fn the_end_of_stderr_is_one_line() {
        let stderr = "x".repeat(LAST_WORDS) + "\nboom\n";
        let wanted = format!("{}\\nboom\\n", "x".repeat(LAST_WORDS - 6));
        assert_eq!(last_words(stderr.as_bytes()), wanted);
        assert_eq!(last_words(b"\x1b[2J"), r"\u{1b}[2J");
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
            printable(b"\x1b[2J\r\"a\" \xff", 100),
            "\\u{1b}[2J\\r\"a\" \u{fffd}"
        );
    }

    /// Control characters made six times as much of a line.
    #[test]
    fn a_line_is_cut_as_it_is_logged() {
        assert_eq!(printable(&[1; 1024], MAX_LINE), "\\u{1}".repeat(204));
        assert_eq!(printable(&[b'x'; 2000], MAX_LINE), "x".repeat(MAX_LINE));
        assert_eq!(printable(b"ab\n", 3), "ab");
    }
}

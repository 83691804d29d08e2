//! Log lines: level, form, and the bounded queue that they go through.
//!
//! Logging never delays or fails a request. Not here: the short lines for people (`lines`).

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use time::UtcOffset;
use tracing::level_filters::LevelFilter;
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry as Spans};

use super::lines::{CALLS, Lines, Rendered};
use crate::base::{Output, Progress, Screen, terminal::escaped};

/// Format and destination of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// One JSON object per line, on stdout.
    Json,
    /// Text for people with every field, on stderr.
    Text,
    /// A short line for each call, on stderr, which has these abilities.
    Short(Screen),
}

/// Queue of log lines; a handle.
///
/// Lines go through a bounded queue to a thread of their own. If the reader of the output stalls,
/// lines are dropped and counted, and requests do not wait.
#[derive(Clone, Debug)]
pub(crate) struct Logs {
    queue: SyncSender<Output>,
    tally: Arc<Tally>,
    format: Format,
    /// The local time of short lines.
    offset: UtcOffset,
}

#[derive(Debug, Default)]
struct Tally {
    /// Bytes in the queue. The number of lines is no sufficient bound, because their sizes differ.
    waiting: AtomicUsize,
    /// Lines that were dropped.
    dropped: AtomicU64,
}

/// Begins logging for the whole process; may be called once only.
///
/// `directives` is the level or filter of the configuration, or `RUST_LOG`.
pub(crate) fn init(directives: &str, format: Format) -> Result<Logs, String> {
    let logs = match format {
        Format::Json => Logs::to(io::stdout(), format),
        Format::Text | Format::Short(_) => Logs::to(io::stderr(), format),
    }
    .map_err(|error| format!("cannot start the log thread: {error}"))?;
    subscriber(directives, &logs)?
        .try_init()
        .map_err(|error| format!("logging was begun before: {error}"))?;
    Ok(logs)
}

/// Makes the subscriber that formats events as lines for `logs`.
fn subscriber(directives: &str, logs: &Logs) -> Result<impl Subscriber + Send + Sync, String> {
    let mut filter = EnvFilter::try_new(directives)
        .map_err(|error| format!("{directives:?} is no log filter: {error}"))?;
    if let Format::Short(screen) = logs.format {
        // They are what these lines are for, unless only warnings are wanted.
        let is_quiet = filter.max_level_hint() < Some(LevelFilter::INFO);
        let calls = format!("{CALLS}={}", if is_quiet { "off" } else { "debug" });
        if !directives.contains(CALLS)
            && let Ok(calls) = calls.parse()
        {
            filter = filter.add_directive(calls);
        }
        let lines = Lines::new(screen, logs.offset);
        let short = Short(lines, logs.clone());
        return Ok(Spans::default().with(filter).with(short.boxed()));
    }
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(logs.clone())
        .with_ansi(false);
    let layer = match logs.format {
        Format::Json => layer
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .with_span_list(false)
            .boxed(),
        Format::Text | Format::Short(_) => layer.boxed(),
    };
    Ok(Spans::default().with(filter).with(layer))
}

/// Writes events as short lines.
struct Short(Lines, Logs);

impl<S: Subscriber> Layer<S> for Short {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        match self.0.render(event) {
            Some(Rendered::Line(line)) => self.1.send(line.into_bytes()),
            Some(Rendered::Begin { key, text, line }) => self.1.begin(key, text, line),
            Some(Rendered::End { key, line }) => self.1.end(key, line),
            None => {}
        }
    }
}

impl Logs {
    /// Progress on stderr, for a command that logs nothing.
    pub(crate) fn progress(screen: Screen) -> io::Result<Self> {
        Self::to(io::stderr(), Format::Short(screen))
    }

    /// Makes a queue and starts the thread that writes it to `sink`.
    fn to(sink: impl Write + Send + 'static, format: Format) -> io::Result<Self> {
        let (queue, lines) = sync_channel(LINES_WAITING);
        let tally = Arc::new(Tally::default());
        let own = Arc::clone(&tally);
        let redraws = matches!(format, Format::Short(screen) if screen.redraws());
        // Before the thread: a process with several has no local time that is safe to read.
        let offset = UtcOffset::current_local_offset().unwrap_or(UtcOffset::UTC);
        // A thread and not a task, because the write may block without limit.
        std::thread::Builder::new()
            .name("logs".into())
            .spawn(move || drain(sink, &lines, &own, redraws))?;
        Ok(Self {
            queue,
            tally,
            format,
            offset,
        })
    }

    /// Returns the number of lines dropped so far.
    pub(crate) fn dropped(&self) -> u64 {
        self.tally.dropped.load(Ordering::Relaxed)
    }

    /// Waits until all lines are written, at most `limit`. Blocks the thread; for the end of `main`.
    pub(crate) fn flush(&self, limit: Duration) {
        let step = Duration::from_millis(2);
        let mut waited = Duration::ZERO;
        while self.tally.waiting.load(Ordering::Acquire) > 0 && waited < limit {
            std::thread::sleep(step);
            waited += step;
        }
    }

    /// Shows work that begins: as a line that is drawn again until its end, else as `line`.
    pub(crate) fn begin(&self, key: String, text: String, line: String) {
        if matches!(self.format, Format::Short(screen) if screen.redraws()) {
            self.push(Output::Begin { key, text });
        } else {
            self.send(line.into_bytes());
        }
    }

    /// Replaces the line of work that has ended by `line`.
    pub(crate) fn end(&self, key: String, line: String) {
        self.push(Output::End { key });
        self.send(line.into_bytes());
    }

    /// Removes the lines of work that has not ended: the process ends before it.
    pub(crate) fn settle(&self) {
        self.push(Output::Settle);
    }

    fn send(&self, line: Vec<u8>) {
        self.push(Output::Line(line));
    }

    fn push(&self, output: Output) {
        let size = output.size();
        let before = self.tally.waiting.fetch_add(size, Ordering::Relaxed);
        if before + size > BYTES_WAITING || self.queue.try_send(output).is_err() {
            self.tally.waiting.fetch_sub(size, Ordering::Relaxed);
            self.tally.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Writes lines until every handle is gone.
fn drain(mut sink: impl Write, outputs: &Receiver<Output>, tally: &Tally, redraws: bool) {
    let mut progress = Progress::default();
    loop {
        let received = if redraws && !progress.is_empty() {
            outputs.recv_timeout(REDRAW)
        } else {
            outputs.recv().map_err(|_| RecvTimeoutError::Disconnected)
        };
        let (bytes, size) = match received {
            Ok(output) => {
                let size = output.size();
                (progress.take(output), size)
            }
            Err(RecvTimeoutError::Timeout) => (progress.redrawn(), 0),
            Err(RecvTimeoutError::Disconnected) => return,
        };
        // A full disk or a closed pipe may recover, so later lines are still tried.
        if sink.write_all(&bytes).and_then(|()| sink.flush()).is_err() {
            tally.dropped.fetch_add(1, Ordering::Relaxed);
        }
        tally.waiting.fetch_sub(size, Ordering::Release);
    }
}

/// One formatted line; tracing-subscriber writes each in a single call.
impl Write for Logs {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.send(match self.format {
            Format::Json => line.to_vec(),
            Format::Text | Format::Short(_) => one_line(line),
        });
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Logs {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

/// A line without what steers a terminal or begins another line.
fn one_line(line: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(line.strip_suffix(b"\n").unwrap_or(line));
    let mut safe = escaped(&text);
    safe.push('\n');
    safe.into_bytes()
}

/// The time between two drawings of a line of progress.
const REDRAW: Duration = Duration::from_millis(500);
/// Most lines in the queue: some seconds of a busy gateway.
const LINES_WAITING: usize = 16_384;
/// Most bytes in the queue: the memory that a stalled sink may cost.
const BYTES_WAITING: usize = 8 << 20;

#[cfg(test)]
#[expect(
    clippy::disallowed_types,
    reason = "plain threads; nothing here is async"
)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::Receiver as StdReceiver;

    use super::super::logs::*;

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("lock").extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A sink that takes nothing until it is told to.
    struct Stalled(StdReceiver<()>);

    impl Write for Stalled {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(format: Format, text: &str) -> String {
        let kept = Kept::default();
        let logs = Logs::to(kept.clone(), format).expect("thread");
        let subscriber = subscriber("info", &logs).expect("filter");
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(agent = text, "{text}");
            tracing::debug!("not shown");
        });
        logs.flush(Duration::from_secs(5));
        String::from_utf8(kept.0.lock().expect("lock").clone()).expect("UTF-8")
    }

    #[test]
    fn one_event_is_one_line() {
        for evil in [
            "a\r\nb",
            "\x1b[2Jx",
            "\u{85}x\u{2028}y",
            "{\"level\":\"ERROR\"}\n{}",
        ] {
            for format in [Format::Json, Format::Text, Format::Short(Screen::default())] {
                let line = logged(format, evil);
                assert_eq!(line.lines().count(), 1, "{line:?}");
                assert!(
                    !line.trim_end_matches('\n').contains(['\r', '\n', '\u{1b}']),
                    "{line:?}"
                );
                if format == Format::Json {
                    let value: serde_json::Value = serde_json::from_str(&line).expect("JSON");
                    assert_eq!(value["level"], "INFO");
                    assert_eq!(value["agent"], evil);
                }
            }
        }
    }

    #[test]
    fn a_stalled_sink_loses_lines_and_delays_no_request() {
        let (go, stop) = sync_channel(0);
        let logs = Logs::to(Stalled(stop), Format::Json).expect("thread");
        let line = vec![b'x'; 1024];
        for _ in 0..LINES_WAITING {
            logs.send(line.clone());
        }
        assert!(logs.dropped() > 0, "the bound in bytes holds");
        assert!(logs.tally.waiting.load(Ordering::Relaxed) <= BYTES_WAITING);
        let metrics = super::super::metrics::Metrics::new(Some(logs.clone())).expect("metrics");
        let shown = format!("lockgate_log_lines_dropped_total {}", logs.dropped());
        assert!(metrics.render().contains(&shown), "{}", metrics.render());
        drop(go);
        logs.flush(Duration::from_secs(5));
        assert_eq!(logs.tally.waiting.load(Ordering::Relaxed), 0);
    }
}

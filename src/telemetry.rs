//! Logs and metrics: what an operator sees of the gateway.
//!
//! Decides nothing; nothing here can make a request wait or fail.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Meter, MeterProvider, UpDownCounter};
use opentelemetry_sdk::metrics::SdkMeterProvider;
use prometheus::{Registry, TextEncoder};
use tracing::Subscriber;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry as Spans};

/// How log lines look, and where they go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// One JSON object a line, on stdout.
    Json,
    /// For people, on stderr.
    Text,
}

/// The way of log lines out of the process; a handle over one queue.
///
/// Lines go through a bounded queue to a thread of their own. When whatever reads our output
/// stands still, lines are dropped and counted; no request waits for it (P163).
#[derive(Clone, Debug)]
pub(crate) struct Logs {
    queue: SyncSender<Vec<u8>>,
    tally: Arc<Tally>,
    format: Format,
}

#[derive(Debug, Default)]
struct Tally {
    /// Bytes in the queue: lines differ too much in size for a bound on their number alone.
    waiting: AtomicUsize,
    /// Lines that were lost.
    dropped: AtomicU64,
}

/// Begins logging for the whole process; once only.
///
/// `directives` is the level or filter of the configuration, or `RUST_LOG`.
pub(crate) fn init(directives: &str, format: Format) -> Result<Logs, String> {
    let logs = match format {
        Format::Json => Logs::to(io::stdout(), format),
        Format::Text => Logs::to(io::stderr(), format),
    }
    .map_err(|error| format!("cannot start the log thread: {error}"))?;
    subscriber(directives, &logs)?
        .try_init()
        .map_err(|error| format!("logging was begun before: {error}"))?;
    Ok(logs)
}

/// What turns events into lines for `logs`.
fn subscriber(directives: &str, logs: &Logs) -> Result<impl Subscriber + Send + Sync, String> {
    let filter = EnvFilter::try_new(directives)
        .map_err(|error| format!("{directives:?} is no log filter: {error}"))?;
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
        Format::Text => layer.boxed(),
    };
    Ok(Spans::default().with(filter).with(layer))
}

impl Logs {
    /// Starts the thread that owns `sink`.
    fn to(sink: impl Write + Send + 'static, format: Format) -> io::Result<Self> {
        let (queue, lines) = sync_channel(LINES_WAITING);
        let tally = Arc::new(Tally::default());
        let own = Arc::clone(&tally);
        // A thread and not a task: the write may block for as long as its reader likes.
        std::thread::Builder::new()
            .name("logs".into())
            .spawn(move || drain(sink, &lines, &own))?;
        Ok(Self {
            queue,
            tally,
            format,
        })
    }

    /// How many lines were lost so far.
    pub(crate) fn dropped(&self) -> u64 {
        self.tally.dropped.load(Ordering::Relaxed)
    }

    /// Waits until all lines are out, at most `limit`; blocks, so only for the end of `main`.
    pub(crate) fn flush(&self, limit: Duration) {
        let step = Duration::from_millis(2);
        let mut waited = Duration::ZERO;
        while self.tally.waiting.load(Ordering::Acquire) > 0 && waited < limit {
            std::thread::sleep(step);
            waited += step;
        }
    }

    fn send(&self, line: Vec<u8>) {
        let size = line.len();
        let before = self.tally.waiting.fetch_add(size, Ordering::Relaxed);
        if before + size > BYTES_WAITING || self.queue.try_send(line).is_err() {
            self.tally.waiting.fetch_sub(size, Ordering::Relaxed);
            self.tally.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Writes lines until every handle is gone.
fn drain(mut sink: impl Write, lines: &Receiver<Vec<u8>>, tally: &Tally) {
    while let Ok(line) = lines.recv() {
        // A full disk or a closed pipe may pass; the line does not come back.
        if sink.write_all(&line).and_then(|()| sink.flush()).is_err() {
            tally.dropped.fetch_add(1, Ordering::Relaxed);
        }
        tally.waiting.fetch_sub(line.len(), Ordering::Release);
    }
}

/// One formatted line; tracing-subscriber writes each in a single call.
impl Write for Logs {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.send(match self.format {
            Format::Json => line.to_vec(),
            Format::Text => escaped(line),
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

/// Text in which no client can begin a line or move a terminal's cursor (P150).
fn escaped(line: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(line.strip_suffix(b"\n").unwrap_or(line));
    let mut safe = String::with_capacity(text.len() + 1);
    for letter in text.chars() {
        if letter.is_control() && letter != '\t' || matches!(letter, '\u{2028}' | '\u{2029}') {
            safe.extend(letter.escape_default());
        } else {
            safe.push(letter);
        }
    }
    safe.push('\n');
    safe.into_bytes()
}

/// Which kind of route answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// The MCP endpoint, any method.
    Mcp,
    /// HTTP+SSE of 2024-11-05.
    Sse,
    /// `/livez` and `/readyz`.
    Health,
    /// Nothing of ours.
    Other,
}

impl Route {
    /// The values of the label, in the order of the variants: change both together.
    const LABELS: [&str; 4] = ["mcp", "sse", "health", "other"];
}

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Its client said so.
    Deleted,
    /// Nobody used it.
    Idle,
    /// It reached its absolute age.
    Expired,
    /// The connection of an HTTP+SSE session is gone.
    Disconnected,
    /// Its child could not be restored.
    Lost,
    /// The gateway stops.
    Drained,
}

impl Ended {
    /// The values of the label, in the order of the variants: change both together.
    const LABELS: [&str; 6] = [
        "deleted",
        "idle",
        "expired",
        "disconnected",
        "lost",
        "drained",
    ];
}

/// Why a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// We asked it to.
    Stopped,
    /// It had nothing to do.
    Idle,
    /// By itself, after its start.
    Crashed,
    /// Before its answer to the first request.
    FailedStart,
    /// It did not answer our request to stop.
    Killed,
}

impl Exit {
    /// The values of the label, in the order of the variants: change both together.
    const LABELS: [&str; 5] = ["stopped", "idle", "crashed", "failed_start", "killed"];
}

/// What kind of call it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    /// `initialize`, `server/discover`.
    Initialize,
    /// `tools/call`.
    Tool,
    /// Any list.
    List,
    /// `resources/read`, `prompts/get`.
    Read,
    /// Everything else.
    Other,
}

impl Method {
    /// The values of the label, in the order of the variants: change both together.
    const LABELS: [&str; 5] = ["initialize", "tool", "list", "read", "other"];
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// With a result.
    Result,
    /// With the child's error.
    Error,
    /// By its client.
    Cancelled,
    /// At the end of its clock.
    TimedOut,
    /// With the child or its owner.
    Lost,
}

impl Outcome {
    /// The values of the label, in the order of the variants: change both together.
    const LABELS: [&str; 5] = ["result", "error", "cancelled", "timed_out", "lost"];
}

/// Why a message was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dropped {
    /// No stream may carry it.
    NoStream,
    /// It answers nothing that was asked.
    Unknown,
    /// It is longer than the bound.
    TooLarge,
}

impl Dropped {
    /// The values of the label, in the order of the variants: change both together.
    const LABELS: [&str; 3] = ["no_stream", "unknown", "too_large"];
}

/// The instruments of one gateway; share it by `Arc`.
///
/// Each has its own provider and registry, so that tests can run several gateways in a process.
/// Attribute sets are made once, here: recording only looks them up.
#[derive(Debug)]
pub(crate) struct Metrics {
    /// Keeps the instruments alive.
    _provider: SdkMeterProvider,
    /// Where they are read.
    registry: Registry,
    requests: Counter<u64>,
    /// By kind of route, then class of status.
    request_labels: [[[KeyValue; 2]; 5]; Route::LABELS.len()],
    sessions: UpDownCounter<i64>,
    sessions_ended: Family<{ Ended::LABELS.len() }>,
    streams_open: UpDownCounter<i64>,
    children: UpDownCounter<i64>,
    children_exits: Family<{ Exit::LABELS.len() }>,
    calls: Counter<u64>,
    /// By method, then outcome.
    call_labels: [[[KeyValue; 2]; Outcome::LABELS.len()]; Method::LABELS.len()],
    messages_dropped: Family<{ Dropped::LABELS.len() }>,
    noise_lines: Counter<u64>,
}

/// A counter with one label of `N` values.
#[derive(Debug)]
struct Family<const N: usize> {
    counter: Counter<u64>,
    labels: [[KeyValue; 1]; N],
}

impl<const N: usize> Family<N> {
    fn new(
        meter: &Meter,
        name: &'static str,
        label: &'static str,
        values: [&'static str; N],
    ) -> Self {
        let counter = meter.u64_counter(name).build();
        Self {
            counter,
            labels: values.map(|value| [KeyValue::new(label, value)]),
        }
    }

    fn add(&self, at: usize) {
        self.counter.add(1, &self.labels[at]);
    }
}

impl Metrics {
    /// Makes all instruments; `logs` is asked for its lost lines when metrics are read.
    pub(crate) fn new(logs: Option<Logs>) -> Result<Self, String> {
        let registry = Registry::new();
        let exporter = opentelemetry_prometheus::exporter()
            .with_registry(registry.clone())
            .without_target_info()
            .scope_info_enabled(false)
            .build()
            .map_err(|error| format!("cannot build metrics: {error}"))?;
        let provider = SdkMeterProvider::builder().with_reader(exporter).build();
        let meter = provider.meter("lockgate");
        meter
            .u64_observable_counter(LOG_LINES_DROPPED)
            .with_callback(move |lost| lost.observe(logs.as_ref().map_or(0, Logs::dropped), &[]))
            .build();
        Ok(Self {
            registry,
            requests: meter.u64_counter(REQUESTS).build(),
            request_labels: pairs("route", Route::LABELS, "status", STATUS_CLASSES),
            sessions: meter.i64_up_down_counter(SESSIONS).build(),
            sessions_ended: Family::new(&meter, SESSIONS_ENDED, "reason", Ended::LABELS),
            streams_open: meter.i64_up_down_counter(STREAMS_OPEN).build(),
            children: meter.i64_up_down_counter(CHILDREN).build(),
            children_exits: Family::new(&meter, CHILDREN_EXITS, "cause", Exit::LABELS),
            calls: meter.u64_counter(CALLS).build(),
            call_labels: pairs("method", Method::LABELS, "outcome", Outcome::LABELS),
            messages_dropped: Family::new(&meter, MESSAGES_DROPPED, "reason", Dropped::LABELS),
            noise_lines: meter.u64_counter(NOISE_LINES).build(),
            _provider: provider,
        })
    }

    /// A request was answered.
    pub(crate) fn request(&self, route: Route, status: u16) {
        let class = usize::from(status / 100).clamp(1, 5) - 1;
        self.requests
            .add(1, &self.request_labels[route as usize][class]);
    }

    /// A session began.
    pub(crate) fn session_began(&self) {
        self.sessions.add(1, &[]);
    }

    /// A session ended.
    pub(crate) fn session_ended(&self, why: Ended) {
        self.sessions.add(-1, &[]);
        self.sessions_ended.add(why as usize);
    }

    /// A response became a stream.
    pub(crate) fn stream_opened(&self) {
        self.streams_open.add(1, &[]);
    }

    /// A streamed response ended or lost its connection.
    pub(crate) fn stream_closed(&self) {
        self.streams_open.add(-1, &[]);
    }

    /// A child was started.
    pub(crate) fn child_started(&self) {
        self.children.add(1, &[]);
    }

    /// A child that was started is gone.
    pub(crate) fn child_exited(&self, why: Exit) {
        self.children.add(-1, &[]);
        self.children_exits.add(why as usize);
    }

    /// A call ended.
    pub(crate) fn call(&self, method: Method, outcome: Outcome) {
        self.calls
            .add(1, &self.call_labels[method as usize][outcome as usize]);
    }

    /// A message went nowhere.
    pub(crate) fn message_dropped(&self, why: Dropped) {
        self.messages_dropped.add(why as usize);
    }

    /// A child wrote a line that is no message.
    pub(crate) fn noise_line(&self) {
        self.noise_lines.add(1, &[]);
    }

    /// All metrics as Prometheus text.
    pub(crate) fn render(&self) -> String {
        // Names and labels are constants of this file: encoding them cannot fail.
        TextEncoder::new()
            .encode_to_string(&self.registry.gather())
            .unwrap_or_default()
    }
}

/// The attribute sets of a counter with two labels.
fn pairs<const A: usize, const B: usize>(
    first: &'static str,
    outer: [&'static str; A],
    second: &'static str,
    inner: [&'static str; B],
) -> [[[KeyValue; 2]; B]; A] {
    outer.map(|a| inner.map(|b| [KeyValue::new(first, a), KeyValue::new(second, b)]))
}

/// Answered requests, by kind of route and class of status.
pub(crate) const REQUESTS: &str = "lockgate_requests";
/// Living sessions.
pub(crate) const SESSIONS: &str = "lockgate_sessions";
/// Ended sessions, by reason.
pub(crate) const SESSIONS_ENDED: &str = "lockgate_sessions_ended";
/// Streams with a connection.
pub(crate) const STREAMS_OPEN: &str = "lockgate_streams_open";
/// Running children.
pub(crate) const CHILDREN: &str = "lockgate_children";
/// Ended children, by cause.
pub(crate) const CHILDREN_EXITS: &str = "lockgate_children_exits";
/// Ended calls, by class of method and outcome.
pub(crate) const CALLS: &str = "lockgate_calls";
/// Messages that no stream or child got, by reason.
pub(crate) const MESSAGES_DROPPED: &str = "lockgate_messages_dropped";
/// Lines of children that are no messages.
pub(crate) const NOISE_LINES: &str = "lockgate_noise_lines";
/// Log lines that were lost.
pub(crate) const LOG_LINES_DROPPED: &str = "lockgate_log_lines_dropped";
const STATUS_CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];
/// Some seconds of a busy gateway.
const LINES_WAITING: usize = 16_384;
/// What a stalled sink may cost.
const BYTES_WAITING: usize = 8 << 20;

#[cfg(test)]
#[expect(
    clippy::disallowed_types,
    reason = "plain threads; nothing here is async"
)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::Receiver as StdReceiver;

    use super::*;

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
            for format in [Format::Json, Format::Text] {
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
    fn a_stalled_sink_loses_lines_and_holds_nobody() {
        let (go, stop) = sync_channel(0);
        let logs = Logs::to(Stalled(stop), Format::Json).expect("thread");
        let line = vec![b'x'; 1024];
        for _ in 0..LINES_WAITING {
            logs.send(line.clone());
        }
        assert!(logs.dropped() > 0, "the bound in bytes holds");
        assert!(logs.tally.waiting.load(Ordering::Relaxed) <= BYTES_WAITING);
        let metrics = Metrics::new(Some(logs.clone())).expect("metrics");
        let shown = format!("lockgate_log_lines_dropped_total {}", logs.dropped());
        assert!(metrics.render().contains(&shown), "{}", metrics.render());
        drop(go);
        logs.flush(Duration::from_secs(5));
        assert_eq!(logs.tally.waiting.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn metrics_are_shown_without_scope_or_target() {
        let (one, other) = (
            Metrics::new(None).expect("one"),
            Metrics::new(None).expect("other"),
        );
        one.request(Route::Mcp, 200);
        one.request(Route::Mcp, 999);
        one.session_began();
        one.session_ended(Ended::Idle);
        one.child_started();
        one.child_exited(Exit::Crashed);
        one.stream_opened();
        one.stream_closed();
        one.call(Method::Tool, Outcome::Result);
        one.message_dropped(Dropped::Unknown);
        one.noise_line();
        let text = one.render();
        for line in [
            "lockgate_requests_total{route=\"mcp\",status=\"2xx\"} 1",
            "lockgate_sessions 0",
            "lockgate_sessions_ended_total{reason=\"idle\"} 1",
            "lockgate_streams_open 0",
            "lockgate_children 0",
            "lockgate_children_exits_total{cause=\"crashed\"} 1",
            "lockgate_calls_total{method=\"tool\",outcome=\"result\"} 1",
            "lockgate_messages_dropped_total{reason=\"unknown\"} 1",
            "lockgate_noise_lines_total 1",
            "lockgate_log_lines_dropped_total 0",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line} in {text}");
        }
        assert!(!text.contains("otel_scope") && !text.contains("target_info"));
        assert!(!other.render().contains("lockgate_requests_total"));
    }

    #[test]
    #[ignore = "a measurement"]
    fn cost_of_recording() {
        let metrics = Metrics::new(None).expect("metrics");
        let began = tokio::time::Instant::now();
        for _ in 0..1_000_000 {
            metrics.call(Method::Tool, Outcome::Result);
        }
        println!("two labels: {} ns", began.elapsed().as_nanos() / 1_000_000);
        let began = tokio::time::Instant::now();
        for _ in 0..1_000_000 {
            metrics.session_began();
        }
        println!("no label: {} ns", began.elapsed().as_nanos() / 1_000_000);
    }
}

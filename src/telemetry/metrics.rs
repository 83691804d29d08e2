//! Metrics: what an operator sees of the gateway as numbers.
//!
//! Decides nothing; nothing here can make a request wait or fail.

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Meter, MeterProvider, UpDownCounter};
use opentelemetry_sdk::metrics::SdkMeterProvider;
use prometheus::{Registry, TextEncoder};

use super::{hops::Hops, logs::Logs};

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
    /// Its principal may not use its server any more.
    Revoked,
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
    /// Another replica owns it now.
    Fenced,
    /// Its replica was cut off from the others for too long.
    Orphaned,
}

impl Ended {
    /// The values of the label, in the order of the variants: change both together.
    const LABELS: [&str; 9] = [
        "deleted",
        "revoked",
        "idle",
        "expired",
        "disconnected",
        "lost",
        "drained",
        "fenced",
        "orphaned",
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

/// What a child does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ChildState {
    /// It has not answered the first request yet.
    Starting,
    /// It waits for its first call.
    Ready,
    /// It has calls.
    Busy,
    /// It had calls.
    Idle,
    /// It was asked to end.
    Stopping,
}

impl ChildState {
    /// The values of the label, in the order of the variants: change both together.
    const LABELS: [&str; 5] = ["starting", "ready", "busy", "idle", "stopping"];

    /// As an operator reads it.
    pub(crate) fn as_str(self) -> &'static str {
        Self::LABELS[self as usize]
    }
}

impl From<u8> for ChildState {
    fn from(number: u8) -> Self {
        match number {
            0 => Self::Starting,
            1 => Self::Ready,
            2 => Self::Busy,
            3 => Self::Idle,
            _ => Self::Stopping,
        }
    }
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

    /// As an operator reads it.
    pub(crate) fn as_str(self) -> &'static str {
        Self::LABELS[self as usize]
    }
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

/// Why a caller was turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Denied {
    /// Without credentials: how most clients begin.
    NoToken,
    /// With credentials that are worth nothing here.
    BadToken,
    /// Somebody we know, but not for this server.
    NoGrant,
    /// A wrong password, or somebody who may not log in.
    BadPassword,
    /// A client that does not prove who it is.
    BadClient,
    /// A code or a refresh token that is worth nothing, or not for whoever has it.
    BadGrant,
}

impl Denied {
    /// The values of the label, in the order of the variants: change both together.
    const LABELS: [&str; 6] = [
        "no_token",
        "bad_token",
        "no_grant",
        "bad_password",
        "bad_client",
        "bad_grant",
    ];

    /// As an operator reads it.
    pub(crate) fn as_str(self) -> &'static str {
        Self::LABELS[self as usize]
    }
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
    children_state: UpDownCounter<i64>,
    state_labels: [[KeyValue; 1]; ChildState::LABELS.len()],
    starts_refused: Counter<u64>,
    circuits_opened: Counter<u64>,
    audit_dropped: Counter<u64>,
    restores: Counter<u64>,
    children_exits: Family<{ Exit::LABELS.len() }>,
    calls: Counter<u64>,
    /// By method, then outcome.
    call_labels: [[[KeyValue; 2]; Outcome::LABELS.len()]; Method::LABELS.len()],
    messages_dropped: Family<{ Dropped::LABELS.len() }>,
    noise_lines: Counter<u64>,
    limited: Counter<u64>,
    unenforced: UpDownCounter<i64>,
    denied: Family<{ Denied::LABELS.len() }>,
    /// Requests to other replicas.
    pub(crate) hops: Hops,
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
            children_state: meter.i64_up_down_counter(CHILDREN_STATE).build(),
            state_labels: ChildState::LABELS.map(|value| [KeyValue::new("state", value)]),
            starts_refused: meter.u64_counter(STARTS_REFUSED).build(),
            circuits_opened: meter.u64_counter(CIRCUITS_OPENED).build(),
            audit_dropped: meter.u64_counter(AUDIT_DROPPED).build(),
            restores: meter.u64_counter(RESTORES).build(),
            children_exits: Family::new(&meter, CHILDREN_EXITS, "cause", Exit::LABELS),
            calls: meter.u64_counter(CALLS).build(),
            call_labels: pairs("method", Method::LABELS, "outcome", Outcome::LABELS),
            messages_dropped: Family::new(&meter, MESSAGES_DROPPED, "reason", Dropped::LABELS),
            noise_lines: meter.u64_counter(NOISE_LINES).build(),
            limited: meter.u64_counter(LIMITED).build(),
            unenforced: meter.i64_up_down_counter(UNENFORCED).build(),
            denied: Family::new(&meter, DENIED, "reason", Denied::LABELS),
            hops: Hops::new(&meter),
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

    /// A child changed from one state to another; none is before its start or after its end.
    pub(crate) fn child_state(&self, from: Option<ChildState>, to: Option<ChildState>) {
        for (state, change) in [(from, -1), (to, 1)] {
            if let Some(state) = state {
                let label = &self.state_labels[state as usize];
                self.children_state.add(change, label);
            }
        }
    }

    /// A start found no room, or its circuit open.
    pub(crate) fn start_refused(&self) {
        self.starts_refused.add(1, &[]);
    }

    /// Records of the audit trail found no room, or no store.
    pub(crate) fn audit_dropped(&self, count: u64) {
        self.audit_dropped.add(count, &[]);
    }

    /// Something failed too often: its circuit opened.
    pub(crate) fn circuit_opened(&self) {
        self.circuits_opened.add(1, &[]);
    }

    /// A session got another child.
    pub(crate) fn restored(&self) {
        self.restores.add(1, &[]);
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

    /// Something was refused because `limit`, a name of ours, was reached.
    pub(crate) fn limited(&self, limit: &'static str) {
        self.limited.add(1, &[KeyValue::new("limit", limit)]);
    }

    /// A server's children are to be held to something that cannot be enforced here.
    pub(crate) fn unenforced(&self, tenant: &str, server: &str, key: &'static str, by: i64) {
        let label = |name, value: &str| KeyValue::new(name, value.to_owned());
        let labels = [
            label("tenant", tenant),
            label("server", server),
            label("key", key),
        ];
        self.unenforced.add(by, &labels);
    }

    /// A caller was turned away.
    pub(crate) fn denied(&self, why: Denied) {
        self.denied.add(why as usize);
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
/// Running children, by what they do.
pub(crate) const CHILDREN_STATE: &str = "lockgate_children_state";
/// Starts of children that found no room or an open circuit.
pub(crate) const STARTS_REFUSED: &str = "lockgate_starts_refused";
/// Records of the audit trail that found no room, or no store.
pub(crate) const AUDIT_DROPPED: &str = "lockgate_audit_dropped";
/// Circuits that opened.
pub(crate) const CIRCUITS_OPENED: &str = "lockgate_circuits_opened";
/// Sessions that got another child.
pub(crate) const RESTORES: &str = "lockgate_restores";
/// Ended children, by cause.
pub(crate) const CHILDREN_EXITS: &str = "lockgate_children_exits";
/// Ended calls, by class of method and outcome.
pub(crate) const CALLS: &str = "lockgate_calls";
/// Messages that no stream or child got, by reason.
pub(crate) const MESSAGES_DROPPED: &str = "lockgate_messages_dropped";
/// Lines of children that are no messages.
pub(crate) const NOISE_LINES: &str = "lockgate_noise_lines";
/// What was refused because a limit was reached, by limit.
pub(crate) const LIMITED: &str = "lockgate_limited";
/// The limit `stream.per_session`.
pub(crate) const SESSION_STREAMS: &str = "session_streams";
/// What servers ask for and cannot get here, by key.
pub(crate) const UNENFORCED: &str = "lockgate_sandbox_unenforced";
/// Callers that were turned away, by reason.
pub(crate) const DENIED: &str = "lockgate_denied";
/// Log lines that were lost.
pub(crate) const LOG_LINES_DROPPED: &str = "lockgate_log_lines_dropped";
const STATUS_CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];
#[cfg(test)]
mod tests {
    use super::super::metrics::*;

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

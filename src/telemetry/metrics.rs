//! Metrics: the instruments of a gateway and their Prometheus text.
//!
//! Recording never delays or fails a request.

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Meter, MeterProvider, UpDownCounter};
use opentelemetry_sdk::metrics::SdkMeterProvider;
use prometheus::{Registry, TextEncoder};

use super::{hops::Hops, logs::Logs};

/// Kind of the route that answered a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// The MCP endpoint, any method.
    Mcp,
    /// HTTP+SSE of 2024-11-05.
    Sse,
    /// `/livez` and `/readyz`.
    Health,
    /// Any other path.
    Other,
}

impl Route {
    /// Label values in the order of the variants. Change both together.
    const LABELS: [&str; 4] = ["mcp", "sse", "health", "other"];
}

/// Reason why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The client deleted the session.
    Deleted,
    /// The principal may not use the server any more.
    Revoked,
    /// The session was idle for too long.
    Idle,
    /// The session reached its maximum age.
    Expired,
    /// The connection of an HTTP+SSE session closed.
    Disconnected,
    /// The child could not be replaced.
    Lost,
    /// The gateway stopped.
    Drained,
    /// Another replica claimed the session.
    Fenced,
    /// The replica was cut off from the others for too long.
    Orphaned,
}

impl Ended {
    /// Label values in the order of the variants. Change both together.
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

/// Reason why a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// The gateway stopped the child.
    Stopped,
    /// The child was idle for too long.
    Idle,
    /// The child ended by itself after its start.
    Crashed,
    /// The child ended before it responded to the first request.
    FailedStart,
    /// The child did not stop in time and was killed.
    Killed,
}

impl Exit {
    /// Label values in the order of the variants. Change both together.
    const LABELS: [&str; 5] = ["stopped", "idle", "crashed", "failed_start", "killed"];
}

/// State of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ChildState {
    /// The child has not responded to the first request yet.
    Starting,
    /// The child waits for its first call.
    Ready,
    /// The child has open calls.
    Busy,
    /// The child has had calls and has none open.
    Idle,
    /// The child is being stopped.
    Stopping,
}

impl ChildState {
    /// Label values in the order of the variants. Change both together.
    const LABELS: [&str; 5] = ["starting", "ready", "busy", "idle", "stopping"];

    /// Returns the label value.
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

/// Class of a call's method.
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
    /// Label values in the order of the variants. Change both together.
    const LABELS: [&str; 5] = ["initialize", "tool", "list", "read", "other"];
}

/// Outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The child returned a result.
    Result,
    /// The child returned an error.
    Error,
    /// The client cancelled the call.
    Cancelled,
    /// The call exceeded its time limit.
    TimedOut,
    /// The child or the session owner was lost.
    Lost,
}

impl Outcome {
    /// Label values in the order of the variants. Change both together.
    const LABELS: [&str; 5] = ["result", "error", "cancelled", "timed_out", "lost"];

    /// Returns the label value.
    pub(crate) fn as_str(self) -> &'static str {
        Self::LABELS[self as usize]
    }
}

/// Reason why a message was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dropped {
    /// No stream may carry the message.
    NoStream,
    /// The response belongs to no open request.
    Unknown,
    /// The message exceeds the size limit.
    TooLarge,
}

impl Dropped {
    /// Label values in the order of the variants. Change both together.
    const LABELS: [&str; 3] = ["no_stream", "unknown", "too_large"];
}

/// Reason why a caller was denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Denied {
    /// No credentials; most clients begin like this.
    NoToken,
    /// Invalid credentials.
    BadToken,
    /// Valid credentials without access to this server.
    NoGrant,
    /// A wrong password, or a user that may not log in.
    BadPassword,
    /// Failed authentication of a client.
    BadClient,
    /// An invalid code or refresh token, or one of another client.
    BadGrant,
}

impl Denied {
    /// Label values in the order of the variants. Change both together.
    const LABELS: [&str; 6] = [
        "no_token",
        "bad_token",
        "no_grant",
        "bad_password",
        "bad_client",
        "bad_grant",
    ];

    /// Returns the label value.
    pub(crate) fn as_str(self) -> &'static str {
        Self::LABELS[self as usize]
    }
}

/// Instruments of one gateway; shared by `Arc`.
///
/// Each gateway has its own provider and registry, so that tests can run several in a process. Label
/// sets are made once, so that recording only looks them up.
#[derive(Debug)]
pub(crate) struct Metrics {
    /// Keeps the instruments alive.
    _provider: SdkMeterProvider,
    /// Source of the Prometheus text.
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
    /// Requests forwarded to other replicas.
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
    /// Creates all instruments. Dropped lines of `logs` are counted whenever metrics are read.
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
            .with_callback(move |count| count.observe(logs.as_ref().map_or(0, Logs::dropped), &[]))
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

    /// Counts an answered request.
    pub(crate) fn request(&self, route: Route, status: u16) {
        let class = usize::from(status / 100).clamp(1, 5) - 1;
        self.requests
            .add(1, &self.request_labels[route as usize][class]);
    }

    /// Counts a session that began.
    pub(crate) fn session_began(&self) {
        self.sessions.add(1, &[]);
    }

    /// Counts a session that ended.
    pub(crate) fn session_ended(&self, why: Ended) {
        self.sessions.add(-1, &[]);
        self.sessions_ended.add(why as usize);
    }

    /// Counts a response that became a stream.
    pub(crate) fn stream_opened(&self) {
        self.streams_open.add(1, &[]);
    }

    /// Counts a streamed response that ended or lost its connection.
    pub(crate) fn stream_closed(&self) {
        self.streams_open.add(-1, &[]);
    }

    /// Counts a started child.
    pub(crate) fn child_started(&self) {
        self.children.add(1, &[]);
    }

    /// Counts a child that exited.
    pub(crate) fn child_exited(&self, why: Exit) {
        self.children.add(-1, &[]);
        self.children_exits.add(why as usize);
    }

    /// Records a child's change of state; `None` stands for before its start and after its end.
    pub(crate) fn child_state(&self, from: Option<ChildState>, to: Option<ChildState>) {
        for (state, change) in [(from, -1), (to, 1)] {
            if let Some(state) = state {
                let label = &self.state_labels[state as usize];
                self.children_state.add(change, label);
            }
        }
    }

    /// Counts a start that was refused because of a limit or an open circuit.
    pub(crate) fn start_refused(&self) {
        self.starts_refused.add(1, &[]);
    }

    /// Counts audit records that were dropped: the queue was full or the database unavailable.
    pub(crate) fn audit_dropped(&self, count: u64) {
        self.audit_dropped.add(count, &[]);
    }

    /// Counts a circuit that opened after repeated failures.
    pub(crate) fn circuit_opened(&self) {
        self.circuits_opened.add(1, &[]);
    }

    /// Counts a session that got a new child.
    pub(crate) fn restored(&self) {
        self.restores.add(1, &[]);
    }

    /// Counts a call that ended.
    pub(crate) fn call(&self, method: Method, outcome: Outcome) {
        self.calls
            .add(1, &self.call_labels[method as usize][outcome as usize]);
    }

    /// Counts a dropped message.
    pub(crate) fn message_dropped(&self, why: Dropped) {
        self.messages_dropped.add(why as usize);
    }

    /// Counts a line of a child that is no message.
    pub(crate) fn noise_line(&self) {
        self.noise_lines.add(1, &[]);
    }

    /// Counts a refusal because of a limit; `limit` is a constant name.
    pub(crate) fn limited(&self, limit: &'static str) {
        self.limited.add(1, &[KeyValue::new("limit", limit)]);
    }

    /// Adds to the settings of a server that cannot be enforced on this machine.
    pub(crate) fn unenforced(&self, tenant: &str, server: &str, key: &'static str, by: i64) {
        let label = |name, value: &str| KeyValue::new(name, value.to_owned());
        let labels = [
            label("tenant", tenant),
            label("server", server),
            label("key", key),
        ];
        self.unenforced.add(by, &labels);
    }

    /// Counts a denied caller.
    pub(crate) fn denied(&self, why: Denied) {
        self.denied.add(why as usize);
    }

    /// Returns all metrics as Prometheus text.
    pub(crate) fn render(&self) -> String {
        // Names and labels are constants, so encoding them cannot fail.
        TextEncoder::new()
            .encode_to_string(&self.registry.gather())
            .unwrap_or_default()
    }
}

/// Makes the label sets of a counter with two labels.
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
/// Open sessions.
pub(crate) const SESSIONS: &str = "lockgate_sessions";
/// Ended sessions, by reason.
pub(crate) const SESSIONS_ENDED: &str = "lockgate_sessions_ended";
/// Streams with a connection.
pub(crate) const STREAMS_OPEN: &str = "lockgate_streams_open";
/// Running children.
pub(crate) const CHILDREN: &str = "lockgate_children";
/// Running children, by state.
pub(crate) const CHILDREN_STATE: &str = "lockgate_children_state";
/// Starts of children refused because of a limit or an open circuit.
pub(crate) const STARTS_REFUSED: &str = "lockgate_starts_refused";
/// Audit records dropped: the queue was full or the database unavailable.
pub(crate) const AUDIT_DROPPED: &str = "lockgate_audit_dropped";
/// Circuits that opened.
pub(crate) const CIRCUITS_OPENED: &str = "lockgate_circuits_opened";
/// Sessions that got a new child.
pub(crate) const RESTORES: &str = "lockgate_restores";
/// Ended children, by cause.
pub(crate) const CHILDREN_EXITS: &str = "lockgate_children_exits";
/// Ended calls, by class of method and outcome.
pub(crate) const CALLS: &str = "lockgate_calls";
/// Dropped messages, by reason.
pub(crate) const MESSAGES_DROPPED: &str = "lockgate_messages_dropped";
/// Lines of children that are no messages.
pub(crate) const NOISE_LINES: &str = "lockgate_noise_lines";
/// Refusals because of a limit, by limit.
pub(crate) const LIMITED: &str = "lockgate_limited";
/// Name of the limit `stream.per_session`.
pub(crate) const SESSION_STREAMS: &str = "session_streams";
/// Settings of servers that cannot be enforced on this machine, by key.
pub(crate) const UNENFORCED: &str = "lockgate_sandbox_unenforced";
/// Denied callers, by reason.
pub(crate) const DENIED: &str = "lockgate_denied";
/// Dropped log lines.
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

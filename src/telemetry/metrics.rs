//! Metrics: the declaration of each, and their Prometheus text.
//!
//! Recording never delays or fails a request. Not here: kinds of instruments (`instruments`), and
//! label values (`labels`).

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use opentelemetry::metrics::{Meter, MeterProvider};
use opentelemetry_sdk::metrics::{
    Instrument as Declared, PeriodicReader, SdkMeterProvider, Stream,
};
use prometheus::{Registry, TextEncoder};

use super::{
    instruments::{
        Count, Description, Durations, Gauge, Instrument, Level, Levels, LimitName, Observed,
    },
    labels::{
        ChildState, Denied, Dropped, Ended, Exit, HopOutcome, Login, MethodClass, Outcome, Resumed,
        Route, StatusClass,
    },
    logs::Logs,
    operations::Operations,
    otlp::{self, Exports},
    stores::StoreDurations,
};
use crate::config::Signal;

/// Declares metrics: help, field, kind of instrument, name, and names of its labels. All else
/// follows: the field of [`Metrics`], the help in the Prometheus text, and the row of
/// `docs/operations.md`.
macro_rules! metrics {
    ($(#[doc = $help:literal] $field:ident: $kind:ty = $name:literal $([$($label:literal),+])?;)+) => {
        /// Instruments of one gateway; shared by `Arc`.
        ///
        /// Each gateway has its own provider and registry, so that tests can run several in a
        /// process.
        #[derive(Debug)]
        pub(crate) struct Metrics {
            /// Keeps the instruments alive.
            provider: SdkMeterProvider,
            /// Source of the Prometheus text.
            registry: Registry,
            $(#[doc = $help] pub(crate) $field: $kind,)+
        }

        /// The declaration of each metric, by field.
        mod descriptions {
            use super::Description;

            $(#[expect(non_upper_case_globals, reason = "named like the field")]
            pub(super) const $field: &Description = &Description {
                name: $name,
                help: $help.trim_ascii(),
                labels: &[$($($label),+)?],
            };)+
        }

        impl Metrics {
            fn declared(provider: SdkMeterProvider, registry: Registry, meter: &Meter) -> Self {
                Self {
                    provider,
                    registry,
                    $($field: <$kind>::new(meter, descriptions::$field),)+
                }
            }

            /// Rows of the table of metrics.
            #[cfg(test)]
            fn rows() -> Vec<String> {
                vec![$(row(descriptions::$field, <$kind>::SUFFIX, &<$kind>::values()),)+]
            }
        }
    };
}

metrics! {
    /// Requests, by kind of route and class of the status of their answers.
    requests: Count<(Route, StatusClass)> = "lockgate_requests" ["route", "status"];
    /// Open sessions.
    sessions: Level = "lockgate_sessions";
    /// Time from the begin of a session to its end, by tenant and server.
    session_duration: Durations<[&'static str; 2]> = "mcp.server.session.duration"
        ["tenant", "server"];
    /// Ended sessions, by reason.
    sessions_ended: Count<(Ended,)> = "lockgate_sessions_ended" ["reason"];
    /// Streams with a connection.
    streams_open: Level = "lockgate_streams_open";
    /// Events that streams sent to their log.
    events: Count = "lockgate_events";
    /// Bytes of these events.
    event_bytes: Count = "lockgate_event_bytes";
    /// Bytes of events that are kept in memory.
    log_bytes: Gauge = "lockgate_log_bytes";
    /// Bytes of this replica's events in Redis, of log.redis.
    log_redis_bytes: Gauge = "lockgate_log_redis_bytes";
    /// Bytes drawn for requests and answers under way, of limits.memory.
    requests_bytes: Gauge = "lockgate_requests_bytes";
    /// Events and other writes of streams that wait for Redis.
    log_queue: Gauge = "lockgate_log_queue";
    /// Resumptions of streams, by outcome.
    streams_resumed: Count<(Resumed,)> = "lockgate_streams_resumed" ["outcome"];
    /// Running children.
    children: Level = "lockgate_children";
    /// Running children, by state.
    children_state: Levels<ChildState> = "lockgate_children_state" ["state"];
    /// Ended children, by cause.
    children_exits: Count<(Exit,)> = "lockgate_children_exits" ["cause"];
    /// Starts of children refused because of a limit or an open circuit.
    starts_refused: Count = "lockgate_starts_refused";
    /// Circuits that opened after repeated failures.
    circuits_opened: Count = "lockgate_circuits_opened";
    /// Time from the start of a child to its first response, by tenant and server.
    child_start_duration: Durations<[&'static str; 2]> = "lockgate_child_start_duration"
        ["tenant", "server"];
    /// Sessions that got a new child.
    restores: Count = "lockgate_restores";
    /// Ended calls, by class of method and outcome.
    calls: Count<(MethodClass, Outcome)> = "lockgate_calls" ["method", "outcome"];
    /// Durations of calls, by tenant, server, method, tool and type of error.
    operations: Operations = "mcp.server.operation.duration"
        ["tenant", "server", "mcp.method.name", "gen_ai.tool.name", "error.type"];
    /// Durations of operations of Redis and the database, by store, operation and type of error.
    stores: StoreDurations = "db.client.operation.duration"
        ["db.system.name", "db.operation.name", "error.type"];
    /// Dropped messages, by reason.
    messages_dropped: Count<(Dropped,)> = "lockgate_messages_dropped" ["reason"];
    /// Lines on stdout of children that are no messages.
    noise_lines: Count = "lockgate_noise_lines";
    /// Refusals because of a limit, by limit.
    limited: Count<(LimitName,)> = "lockgate_limited" ["limit"];
    /// Denied callers, by reason.
    denied: Count<(Denied,)> = "lockgate_denied" ["reason"];
    /// Log-ins of people at authorization servers, by outcome.
    logins: Count<(Login,)> = "lockgate_logins" ["outcome"];
    /// Requests of clients to authorization servers, by endpoint and outcome: `ok`, or the error code.
    oauth_requests: Count<[&'static str; 2]> = "lockgate_oauth_requests" ["endpoint", "outcome"];
    /// Settings of servers that cannot be enforced on this machine.
    unenforced: Level<[&'static str; 3]> = "lockgate_sandbox_unenforced" ["tenant", "server", "key"];
    /// Audit records dropped: the queue was full, the database unavailable, or a tenant had too many calls.
    audit_dropped: Count = "lockgate_audit_dropped";
    /// Audit records that wait for the database.
    audit_queue: Gauge = "lockgate_audit_queue";
    /// Dropped log lines.
    log_lines_dropped: Observed = "lockgate_log_lines_dropped";
    /// Spans that the OTLP collector took.
    spans_exported: Observed = "lockgate_spans_exported";
    /// Spans that the OTLP collector did not take.
    spans_failed: Observed = "lockgate_spans_failed";
    /// Exports of metrics that the OTLP collector did not take.
    metric_exports_failed: Observed = "lockgate_metric_exports_failed";
    /// Requests forwarded to other replicas, by outcome.
    hops: Count<(HopOutcome,)> = "lockgate_hops" ["outcome"];
    /// Time until the response of a forwarded request began, by outcome.
    hop_duration: Durations<(HopOutcome,)> = "lockgate_hop_duration" ["outcome"];
    /// Streams that continued after their session owner was lost.
    streams_spliced: Count = "lockgate_streams_spliced";
}

impl Metrics {
    /// Creates all instruments, which nobody exports.
    #[cfg(test)]
    pub(crate) fn new(logs: Option<Logs>) -> Result<Self, String> {
        Self::exported(logs, None, &Arc::default())
    }

    /// Creates all instruments, exported by OTLP if a `signal` is given, which must be inside of the
    /// runtime. Dropped lines of `logs` are counted whenever metrics are read.
    pub(super) fn exported(
        logs: Option<Logs>,
        signal: Option<Signal>,
        exports: &Arc<Exports>,
    ) -> Result<Self, String> {
        let registry = Registry::new();
        let exporter = opentelemetry_prometheus::exporter()
            .with_registry(registry.clone())
            .without_target_info()
            .scope_info_enabled(false)
            .build()
            .map_err(|error| format!("cannot build metrics: {error}"))?;
        let mut provider = SdkMeterProvider::builder()
            .with_reader(exporter)
            .with_view(with_more_series);
        if let Some(signal) = signal {
            let exporter = otlp::metrics(signal, Arc::clone(exports))?;
            provider = provider
                .with_reader(PeriodicReader::builder(exporter).build())
                .with_resource(otlp::resource());
        }
        let provider = provider.build();
        let meter = provider.meter("lockgate");
        let metrics = Self::declared(provider, registry, &meter);
        let dropped = move || logs.as_ref().map_or(0, Logs::dropped);
        metrics.log_lines_dropped.observe(&meter, dropped);
        let observe = |counter: &Observed, of: fn(&Exports) -> &AtomicU64| {
            let exports = Arc::clone(exports);
            counter.observe(&meter, move || of(&exports).load(Ordering::Relaxed));
        };
        observe(&metrics.spans_exported, |exports| &exports.spans);
        observe(&metrics.spans_failed, |exports| &exports.spans_failed);
        let failed = &metrics.metric_exports_failed;
        observe(failed, |exports| &exports.metrics_failed);
        Ok(metrics)
    }

    /// Exports them a last time; blocks the thread.
    pub(super) fn shut_down(&self) {
        // Failures were told when they began.
        let _ = self.provider.shutdown();
    }

    /// Counts a session of a tenant at a server that ended after `age`.
    pub(crate) fn session_ended(&self, why: Ended, names: [&str; 2], age: Duration) {
        self.sessions.add(-1);
        self.sessions_ended.add(why);
        self.session_duration.record(names, age);
    }

    /// Counts a child that exited.
    pub(crate) fn child_exited(&self, why: Exit) {
        self.children.add(-1);
        self.children_exits.add(why);
    }

    /// Records a child's change of state; `None` stands for before its start and after its end.
    pub(crate) fn child_state(&self, from: Option<ChildState>, to: Option<ChildState>) {
        for (state, change) in [(from, -1), (to, 1)] {
            if let Some(state) = state {
                self.children_state.add(state, change);
            }
        }
    }

    /// Records a hop that failed or whose response began after `elapsed`.
    pub(crate) fn hop(&self, outcome: HopOutcome, elapsed: Duration) {
        self.hops.add(outcome);
        self.hop_duration.record(outcome, elapsed);
    }

    /// Returns all metrics as Prometheus text.
    pub(crate) fn render(&self) -> String {
        // Names and labels are constants, so encoding them cannot fail.
        TextEncoder::new()
            .encode_to_string(&self.registry.gather())
            .unwrap_or_default()
    }
}

/// Durations of calls have more series than the SDK lets an instrument have: those of a server are bounded already, and
/// no server may take those of all.
fn with_more_series(of: &Declared) -> Option<Stream> {
    if of.name() != descriptions::operations.name {
        return None;
    }
    let stream = Stream::builder().with_cardinality_limit(OPERATION_SERIES);
    stream.build().ok()
}

/// The most series of durations of calls; all of them are about 25 MB of Prometheus text.
pub(super) const OPERATION_SERIES: usize = 10_000;

/// The limit `stream.per_session`.
pub(crate) const SESSION_STREAMS: LimitName = LimitName("session_streams");

/// The row of `docs/operations.md` for a metric.
#[cfg(test)]
fn row(of: &Description, suffix: &str, values: &[&[&str]]) -> String {
    let mut labels = String::new();
    let mut known = String::new();
    for (at, label) in of.labels.iter().enumerate() {
        labels.push_str(if at == 0 { "{" } else { "," });
        labels.push_str(label);
        if let Some(values) = values.get(at).filter(|values| !values.is_empty()) {
            let values: Vec<String> = values.iter().map(|value| format!("`{value}`")).collect();
            let label = label.replace('.', "_");
            known = format!("{known}; `{label}`: {}", values.join(", "));
        }
    }
    labels.push_str(if labels.is_empty() { "" } else { "}" });
    let help = of.help.trim_end_matches('.');
    // Names of Prometheus have no dots.
    let series = format!("{}{suffix}{labels}", of.name).replace('.', "_");
    format!("| `{series}` | {help}{known} |")
}

#[cfg(test)]
mod tests {
    use super::super::metrics::*;

    #[test]
    fn metrics_are_shown_without_scope_or_target() {
        let (one, other) = (
            Metrics::new(None).expect("one"),
            Metrics::new(None).expect("other"),
        );
        one.requests.add(Route::Mcp, 200.into());
        one.requests.add(Route::Mcp, 999.into());
        one.sessions.add(1);
        one.session_ended(Ended::Idle, ["a", "x"], Duration::from_secs(3));
        one.children.add(1);
        one.child_exited(Exit::Crashed);
        one.streams_open.add(1);
        one.streams_open.add(-1);
        one.calls.add(MethodClass::Tool, Outcome::Result);
        one.messages_dropped.add(Dropped::Unknown);
        one.noise_lines.add(1);
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
        assert!(
            text.contains("# HELP lockgate_sessions Open sessions"),
            "{text}"
        );
        // The other one has all series of fixed labels already, and no record.
        let text = other.render();
        assert!(text.contains("lockgate_requests_total{route=\"mcp\",status=\"2xx\"} 0\n"));
        assert!(text.contains("lockgate_noise_lines_total 0\n"), "{text}");
    }

    /// With `METRICS_WRITE=1` the test rewrites the table.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "a switch of this test alone")]
    fn the_table_of_metrics_is_in_the_docs() {
        let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/operations.md");
        let page = std::fs::read_to_string(&file).expect("the page");
        let is_row = |line: &&str| {
            ["| `lockgate_", "| `mcp_", "| `db_"]
                .iter()
                .any(|one| line.starts_with(one))
        };
        let head = page.lines().position(|line| is_row(&line)).expect("rows");
        let shown: Vec<&str> = page.lines().skip(head).take_while(is_row).collect();
        let declared = Metrics::rows();
        if std::env::var_os("METRICS_WRITE").is_some() {
            let text = page.replace(&shown.join("\n"), &declared.join("\n"));
            return std::fs::write(&file, text).expect("the page is written");
        }
        assert_eq!(shown, declared, "METRICS_WRITE=1 writes them anew");
    }

    #[test]
    #[ignore = "a measurement"]
    fn cost_of_recording() {
        let metrics = Metrics::new(None).expect("metrics");
        let began = tokio::time::Instant::now();
        for _ in 0..1_000_000 {
            metrics.calls.add(MethodClass::Tool, Outcome::Result);
        }
        println!("two labels: {} ns", began.elapsed().as_nanos() / 1_000_000);
        let began = tokio::time::Instant::now();
        for _ in 0..1_000_000 {
            metrics.sessions.add(1);
        }
        println!("no label: {} ns", began.elapsed().as_nanos() / 1_000_000);
    }
}

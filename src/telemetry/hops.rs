//! Metrics of hops: requests that are forwarded to other replicas.

use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Histogram, Meter};

/// Outcome of a hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HopOutcome {
    /// The other replica responded.
    Ok,
    /// The other replica refused the connection or never took the request.
    Refused,
    /// The other replica is not the owner of the session.
    Moved,
    /// The request was sent, and then the connection broke.
    Broken,
    /// The limit of concurrent requests to the other replica is reached.
    Full,
}

impl HopOutcome {
    /// Label values in the order of the variants. Change both together.
    const LABELS: [&str; 5] = ["ok", "refused", "moved", "broken", "full"];
}

/// Instruments for hops.
#[derive(Debug)]
pub(crate) struct Hops {
    hops: Counter<u64>,
    durations: Histogram<f64>,
    labels: [[KeyValue; 1]; HopOutcome::LABELS.len()],
    resumed_streams: Counter<u64>,
}

impl Hops {
    /// Creates the instruments.
    pub(crate) fn new(meter: &Meter) -> Self {
        let durations = meter.f64_histogram(DURATION);
        Self {
            hops: meter.u64_counter(HOPS).build(),
            durations: durations.with_boundaries(BUCKETS.to_vec()).build(),
            labels: HopOutcome::LABELS.map(|value| [KeyValue::new("outcome", value)]),
            resumed_streams: meter.u64_counter(RESUMED_STREAMS).build(),
        }
    }

    /// Records a hop that failed or whose response began after `elapsed`.
    pub(crate) fn record(&self, outcome: HopOutcome, elapsed: Duration) {
        let labels = &self.labels[outcome as usize];
        self.hops.add(1, labels);
        self.durations.record(elapsed.as_secs_f64(), labels);
    }

    /// Counts a stream that continues after its hop broke.
    pub(crate) fn stream_resumed(&self) {
        self.resumed_streams.add(1, &[]);
    }
}

/// Requests forwarded to other replicas, by outcome.
pub(crate) const HOPS: &str = "lockgate_hops";
/// Seconds until the response of a hop began.
pub(crate) const DURATION: &str = "lockgate_hop_duration_seconds";
/// Streams that continued after their hop broke.
pub(crate) const RESUMED_STREAMS: &str = "lockgate_streams_spliced";
/// Buckets from a hop alone to a long call: the duration includes the server's own time.
const BUCKETS: [f64; 14] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0,
];

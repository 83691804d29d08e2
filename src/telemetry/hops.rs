//! Metrics of requests that go to other replicas.
//!
//! A part of `telemetry`, in a file of its own; decides nothing either.

use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Histogram, Meter};

/// What became of a hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hopped {
    /// The other replica answered.
    Ok,
    /// Nobody listens there, or it never took the request.
    Refused,
    /// It is not the owner of the session.
    Moved,
    /// It was lost after it was sent.
    Broken,
    /// As many are under way as may be.
    Full,
}

impl Hopped {
    /// The values of the label, in the order of the variants: change both together.
    const LABELS: [&str; 5] = ["ok", "refused", "moved", "broken", "full"];
}

/// The instruments.
#[derive(Debug)]
pub(crate) struct Hops {
    hops: Counter<u64>,
    durations: Histogram<f64>,
    labels: [[KeyValue; 1]; Hopped::LABELS.len()],
    spliced: Counter<u64>,
}

impl Hops {
    /// Makes them.
    pub(crate) fn new(meter: &Meter) -> Self {
        let durations = meter.f64_histogram(DURATION);
        Self {
            hops: meter.u64_counter(HOPS).build(),
            durations: durations.with_boundaries(BUCKETS.to_vec()).build(),
            labels: Hopped::LABELS.map(|value| [KeyValue::new("outcome", value)]),
            spliced: meter.u64_counter(SPLICED).build(),
        }
    }

    /// A hop is over, or its response begins, `took` after it began.
    pub(crate) fn hop(&self, what: Hopped, took: Duration) {
        let labels = &self.labels[what as usize];
        self.hops.add(1, labels);
        self.durations.record(took.as_secs_f64(), labels);
    }

    /// A stream whose hop broke goes on.
    pub(crate) fn spliced(&self) {
        self.spliced.add(1, &[]);
    }
}

/// Requests that were sent to other replicas, by outcome.
pub(crate) const HOPS: &str = "lockgate_hops";
/// Seconds until their response began.
pub(crate) const DURATION: &str = "lockgate_hop_duration_seconds";
/// Streams that went on after their hop broke.
pub(crate) const SPLICED: &str = "lockgate_streams_spliced";
/// The server's own time is in it: from a hop alone to a long call.
const BUCKETS: [f64; 14] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0,
];

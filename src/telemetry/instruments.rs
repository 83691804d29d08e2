//! Instruments: counters, levels and durations with at most three labels.
//!
//! Recording allocates nothing where the label values are constants.

use std::{marker::PhantomData, time::Duration};

use opentelemetry::{
    KeyValue,
    metrics::{Counter, Histogram, Meter, UpDownCounter},
};
use strum::VariantNames;

/// Declaration of a metric.
#[derive(Debug)]
pub(super) struct Description {
    /// The name, without the suffix `_total` of a counter.
    pub(super) name: &'static str,
    /// One sentence of help.
    pub(super) help: &'static str,
    /// The names of its labels.
    pub(super) labels: &'static [&'static str],
}

/// A kind of instrument.
#[cfg_attr(
    not(test),
    expect(
        dead_code,
        reason = "a test writes the table of metrics from suffixes and values"
    )
)]
pub(super) trait Instrument {
    /// The suffix that the Prometheus text adds to the name.
    const SUFFIX: &'static str;

    /// Creates the instrument.
    fn new(meter: &Meter, description: &'static Description) -> Self;

    /// The values of each label that has a fixed set of them.
    fn values() -> Vec<&'static [&'static str]> {
        Vec::new()
    }
}

/// A counter.
#[derive(Debug)]
pub(crate) struct Count(Counter<u64>);

impl Instrument for Count {
    const SUFFIX: &'static str = "_total";

    fn new(meter: &Meter, description: &'static Description) -> Self {
        Self(counter(meter, description))
    }
}

impl Count {
    /// Counts `count` more.
    pub(crate) fn add(&self, count: u64) {
        self.0.add(count, &[]);
    }
}

/// A counter by one label.
#[derive(Debug)]
pub(crate) struct CountBy<L> {
    counter: Counter<u64>,
    labels: &'static [&'static str],
    values: PhantomData<fn(L)>,
}

impl<L: VariantNames> Instrument for CountBy<L> {
    const SUFFIX: &'static str = "_total";

    fn new(meter: &Meter, description: &'static Description) -> Self {
        Self {
            counter: counter(meter, description),
            labels: description.labels,
            values: PhantomData,
        }
    }

    fn values() -> Vec<&'static [&'static str]> {
        vec![L::VARIANTS]
    }
}

impl<L: Into<&'static str>> CountBy<L> {
    /// Counts one more.
    pub(crate) fn add(&self, value: L) {
        let label = KeyValue::new(self.labels[0], value.into());
        self.counter.add(1, &[label]);
    }
}

/// A counter by two labels.
#[derive(Debug)]
pub(crate) struct CountByTwo<A, B> {
    counter: Counter<u64>,
    labels: &'static [&'static str],
    values: PhantomData<fn(A, B)>,
}

impl<A: VariantNames, B: VariantNames> Instrument for CountByTwo<A, B> {
    const SUFFIX: &'static str = "_total";

    fn new(meter: &Meter, description: &'static Description) -> Self {
        Self {
            counter: counter(meter, description),
            labels: description.labels,
            values: PhantomData,
        }
    }

    fn values() -> Vec<&'static [&'static str]> {
        vec![A::VARIANTS, B::VARIANTS]
    }
}

impl<A: Into<&'static str>, B: Into<&'static str>> CountByTwo<A, B> {
    /// Counts one more.
    pub(crate) fn add(&self, first: A, second: B) {
        let labels = [
            KeyValue::new(self.labels[0], first.into()),
            KeyValue::new(self.labels[1], second.into()),
        ];
        self.counter.add(1, &labels);
    }
}

/// The name of a limit, as a label value: its set is open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LimitName(pub(crate) &'static str);

impl From<LimitName> for &'static str {
    fn from(limit: LimitName) -> Self {
        limit.0
    }
}

impl VariantNames for LimitName {
    const VARIANTS: &'static [&'static str] = &[];
}

/// A number that goes up and down.
#[derive(Debug)]
pub(crate) struct Level(UpDownCounter<i64>);

impl Instrument for Level {
    const SUFFIX: &'static str = "";

    fn new(meter: &Meter, description: &'static Description) -> Self {
        Self(level(meter, description))
    }
}

impl Level {
    /// Adds `change`.
    pub(crate) fn add(&self, change: i64) {
        self.0.add(change, &[]);
    }
}

/// A number that goes up and down, by one label.
#[derive(Debug)]
pub(crate) struct LevelBy<L> {
    level: UpDownCounter<i64>,
    labels: &'static [&'static str],
    values: PhantomData<fn(L)>,
}

impl<L: VariantNames> Instrument for LevelBy<L> {
    const SUFFIX: &'static str = "";

    fn new(meter: &Meter, description: &'static Description) -> Self {
        Self {
            level: level(meter, description),
            labels: description.labels,
            values: PhantomData,
        }
    }

    fn values() -> Vec<&'static [&'static str]> {
        vec![L::VARIANTS]
    }
}

impl<L: Into<&'static str>> LevelBy<L> {
    /// Adds `change`.
    pub(crate) fn add(&self, value: L, change: i64) {
        let label = KeyValue::new(self.labels[0], value.into());
        self.level.add(change, &[label]);
    }
}

/// A number that goes up and down, by labels with any values.
#[derive(Debug)]
pub(crate) struct LevelOf {
    level: UpDownCounter<i64>,
    labels: &'static [&'static str],
}

impl Instrument for LevelOf {
    const SUFFIX: &'static str = "";

    fn new(meter: &Meter, description: &'static Description) -> Self {
        Self {
            level: level(meter, description),
            labels: description.labels,
        }
    }
}

impl LevelOf {
    /// Adds `change`; `values` are in the order of the labels.
    pub(crate) fn add(&self, values: &[&str], change: i64) {
        let labels = self.labels.iter().zip(values);
        let labels: Vec<_> = labels
            .map(|(label, value)| KeyValue::new(*label, (*value).to_owned()))
            .collect();
        self.level.add(change, &labels);
    }
}

/// A histogram of durations, by one label.
#[derive(Debug)]
pub(crate) struct DurationBy<L> {
    histogram: Histogram<f64>,
    labels: &'static [&'static str],
    values: PhantomData<fn(L)>,
}

impl<L: VariantNames> Instrument for DurationBy<L> {
    const SUFFIX: &'static str = "";

    fn new(meter: &Meter, description: &'static Description) -> Self {
        let histogram = meter
            .f64_histogram(description.name)
            .with_description(description.help);
        Self {
            histogram: histogram.with_boundaries(BUCKETS.to_vec()).build(),
            labels: description.labels,
            values: PhantomData,
        }
    }

    fn values() -> Vec<&'static [&'static str]> {
        vec![L::VARIANTS]
    }
}

impl<L: Into<&'static str>> DurationBy<L> {
    /// Records a duration.
    pub(crate) fn record(&self, value: L, elapsed: Duration) {
        let label = KeyValue::new(self.labels[0], value.into());
        self.histogram.record(elapsed.as_secs_f64(), &[label]);
    }
}

/// A counter that is read whenever metrics are.
#[derive(Debug)]
pub(crate) struct Observed(&'static Description);

impl Instrument for Observed {
    const SUFFIX: &'static str = "_total";

    fn new(_: &Meter, description: &'static Description) -> Self {
        Self(description)
    }
}

impl Observed {
    /// Reads the counter from `read` from now on.
    pub(super) fn observe(&self, meter: &Meter, read: impl Fn() -> u64 + Send + Sync + 'static) {
        meter
            .u64_observable_counter(self.0.name)
            .with_description(self.0.help)
            .with_callback(move |count| count.observe(read(), &[]))
            .build();
    }
}

fn counter(meter: &Meter, description: &'static Description) -> Counter<u64> {
    let counter = meter.u64_counter(description.name);
    counter.with_description(description.help).build()
}

fn level(meter: &Meter, description: &'static Description) -> UpDownCounter<i64> {
    let level = meter.i64_up_down_counter(description.name);
    level.with_description(description.help).build()
}

/// Buckets from a hop alone to a long call: the duration includes the server's own time.
const BUCKETS: [f64; 14] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0,
];

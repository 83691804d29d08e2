//! Instruments: counters, levels and durations, with or without labels.
//!
//! Recording allocates nothing where the label values are constants, and counters of such labels look
//! nothing up.

use std::{
    fmt,
    marker::PhantomData,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use opentelemetry::{
    KeyValue,
    metrics::{BoundCounter, Counter, Histogram, Meter, UpDownCounter},
};
use strum::VariantNames;

/// Declaration of a metric.
#[derive(Debug)]
pub(super) struct Description {
    /// The name, without the suffix that the Prometheus text adds for its kind and its unit.
    pub(super) name: &'static str,
    /// One sentence of help.
    pub(super) help: &'static str,
    /// The names of its labels.
    pub(super) labels: &'static [&'static str],
}

/// An instrument of a metric.
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

    /// The possible values of each label that has a fixed set of them.
    fn values() -> Vec<&'static [&'static str]> {
        Vec::new()
    }
}

/// The label values of a record.
pub(super) trait Labels {
    /// The values with their `names`, which stand in the same order.
    fn key_values(self, names: &'static [&'static str]) -> impl AsRef<[KeyValue]>;

    /// The possible values of each label that has a fixed set of them.
    fn values() -> Vec<&'static [&'static str]>;
}

/// A label with a fixed set of values.
pub(crate) trait Label: VariantNames + Into<&'static str> {}

impl<L: VariantNames + Into<&'static str>> Label for L {}

impl Labels for () {
    fn key_values(self, _: &'static [&'static str]) -> impl AsRef<[KeyValue]> {
        []
    }

    fn values() -> Vec<&'static [&'static str]> {
        Vec::new()
    }
}

impl<A: Label> Labels for (A,) {
    fn key_values(self, names: &'static [&'static str]) -> impl AsRef<[KeyValue]> {
        [KeyValue::new(names[0], self.0.into())]
    }

    fn values() -> Vec<&'static [&'static str]> {
        vec![A::VARIANTS]
    }
}

impl<A: Label, B: Label> Labels for (A, B) {
    fn key_values(self, names: &'static [&'static str]) -> impl AsRef<[KeyValue]> {
        [
            KeyValue::new(names[0], self.0.into()),
            KeyValue::new(names[1], self.1.into()),
        ]
    }

    fn values() -> Vec<&'static [&'static str]> {
        vec![A::VARIANTS, B::VARIANTS]
    }
}

/// Labels with any values.
impl<const N: usize> Labels for [&str; N] {
    fn key_values(self, names: &'static [&'static str]) -> impl AsRef<[KeyValue]> {
        let label = |at: usize| KeyValue::new(names[at], self[at].to_owned());
        std::array::from_fn::<_, N, _>(label)
    }

    fn values() -> Vec<&'static [&'static str]> {
        Vec::new()
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

/// An instrument of the kind `I` whose records have the labels `L`.
#[derive(Debug)]
pub(crate) struct Labelled<I, L> {
    instrument: I,
    /// Of a counter: the series of all combinations of label values, in their order; none if the values
    /// are unknown.
    series: Vec<BoundCounter<u64>>,
    names: &'static [&'static str],
    labels: PhantomData<fn(L)>,
}

/// A counter.
pub(crate) type Count<L = ()> = Labelled<Counter<u64>, L>;
/// A number that goes up and down.
pub(crate) type Level<L = ()> = Labelled<UpDownCounter<i64>, L>;
/// A histogram of durations.
pub(crate) type Durations<L> = Labelled<Histogram<f64>, L>;

/// A kind of instrument that can have labels.
pub(super) trait Kind {
    /// The suffix that the Prometheus text adds to the name.
    const SUFFIX: &'static str;

    fn build(meter: &Meter, description: &'static Description) -> Self;

    /// Makes the series with these labels, which has no record yet: a rate needs the zero before its
    /// first record.
    fn begin(&self, _: &[KeyValue]) -> Option<BoundCounter<u64>> {
        None
    }
}

impl Kind for Counter<u64> {
    const SUFFIX: &'static str = "_total";

    fn build(meter: &Meter, description: &'static Description) -> Self {
        let counter = meter.u64_counter(description.name);
        counter.with_description(description.help).build()
    }

    fn begin(&self, labels: &[KeyValue]) -> Option<BoundCounter<u64>> {
        let series = self.bind(labels);
        series.add(0);
        Some(series)
    }
}

impl Kind for UpDownCounter<i64> {
    const SUFFIX: &'static str = "";

    fn build(meter: &Meter, description: &'static Description) -> Self {
        let level = meter.i64_up_down_counter(description.name);
        level.with_description(description.help).build()
    }

    fn begin(&self, labels: &[KeyValue]) -> Option<BoundCounter<u64>> {
        self.add(0, labels);
        None
    }
}

impl Kind for Histogram<f64> {
    const SUFFIX: &'static str = "_seconds";

    fn build(meter: &Meter, description: &'static Description) -> Self {
        let durations = meter.f64_histogram(description.name).with_unit("s");
        let durations = durations.with_description(description.help);
        durations.with_boundaries(BUCKETS.to_vec()).build()
    }
}

impl<I: Kind, L: Labels> Instrument for Labelled<I, L> {
    const SUFFIX: &'static str = I::SUFFIX;

    fn new(meter: &Meter, description: &'static Description) -> Self {
        let instrument = I::build(meter, description);
        let combinations = combinations(description.labels, &L::values());
        let series = combinations
            .iter()
            .filter_map(|labels| instrument.begin(labels));
        Self {
            series: series.collect(),
            instrument,
            names: description.labels,
            labels: PhantomData,
        }
    }

    fn values() -> Vec<&'static [&'static str]> {
        L::values()
    }
}

/// All combinations of the values of labels with these names; none if the values of one are unknown.
fn combinations(
    names: &'static [&'static str],
    values: &[&'static [&'static str]],
) -> Vec<Vec<KeyValue>> {
    if names.len() != values.len() {
        return Vec::new();
    }
    let mut all = vec![Vec::new()];
    for (name, values) in names.iter().zip(values) {
        let with = |begun: &Vec<KeyValue>, value: &&'static str| {
            let mut begun = begun.clone();
            begun.push(KeyValue::new(*name, *value));
            begun
        };
        let longer = all
            .iter()
            .flat_map(|begun| values.iter().map(move |value| with(begun, value)));
        all = longer.collect();
    }
    all
}

impl Count {
    /// Counts `count` more.
    pub(crate) fn add(&self, count: u64) {
        self.instrument.add(count, &[]);
    }
}

impl<A: Label> Count<(A,)> {
    /// Counts one more.
    pub(crate) fn add(&self, label: A) {
        let label = label.into();
        match position::<A>(label).and_then(|at| self.series.get(at)) {
            Some(series) => series.add(1),
            None => self
                .instrument
                .add(1, &[KeyValue::new(self.names[0], label)]),
        }
    }
}

impl<A: Label, B: Label> Count<(A, B)> {
    /// Counts one more.
    pub(crate) fn add(&self, first: A, second: B) {
        let (first, second) = (first.into(), second.into());
        let at = position::<A>(first).zip(position::<B>(second));
        let at = at.map(|(first, second)| first * B::VARIANTS.len() + second);
        match at.and_then(|at| self.series.get(at)) {
            Some(series) => series.add(1),
            None => self.instrument.add(
                1,
                &[
                    KeyValue::new(self.names[0], first),
                    KeyValue::new(self.names[1], second),
                ],
            ),
        }
    }
}

/// The place of a label value among all of its label.
fn position<L: Label>(value: &'static str) -> Option<usize> {
    L::VARIANTS.iter().position(|known| *known == value)
}

impl<const N: usize> Count<[&str; N]> {
    /// Counts one more; `labels` are in the order of their names.
    pub(crate) fn add(&self, labels: [&str; N]) {
        let labels = labels.key_values(self.names);
        self.instrument.add(1, labels.as_ref());
    }
}

impl Level {
    /// Adds `change`.
    pub(crate) fn add(&self, change: i64) {
        self.instrument.add(change, &[]);
    }
}

impl<const N: usize> Level<[&str; N]> {
    /// Adds `change`; `labels` are in the order of their names.
    pub(crate) fn add(&self, labels: [&str; N], change: i64) {
        let labels = labels.key_values(self.names);
        self.instrument.add(change, labels.as_ref());
    }
}

impl<A: Label> Durations<(A,)> {
    /// Records a duration.
    pub(crate) fn record(&self, label: A, elapsed: Duration) {
        let labels = (label,).key_values(self.names);
        self.instrument
            .record(elapsed.as_secs_f64(), labels.as_ref());
    }
}

impl<const N: usize> Durations<[&str; N]> {
    /// Records a duration; `labels` are in the order of their names.
    pub(crate) fn record(&self, labels: [&str; N], elapsed: Duration) {
        let labels = labels.key_values(self.names);
        self.instrument
            .record(elapsed.as_secs_f64(), labels.as_ref());
    }
}

/// Numbers that go up and down with each call, one for each value of a label.
#[derive(Debug)]
pub(crate) struct Levels<A> {
    /// In the order of the values.
    numbers: Arc<[AtomicI64]>,
    label: PhantomData<fn(A)>,
}

impl<A: Label> Instrument for Levels<A> {
    const SUFFIX: &'static str = "";

    fn new(meter: &Meter, description: &'static Description) -> Self {
        let zeros = A::VARIANTS.iter().map(|_| AtomicI64::new(0));
        let numbers: Arc<[AtomicI64]> = zeros.collect();
        let labels = combinations(description.labels, &[A::VARIANTS]);
        let read = Arc::clone(&numbers);
        meter
            .i64_observable_up_down_counter(description.name)
            .with_description(description.help)
            .with_callback(move |levels| {
                for (number, labels) in read.iter().zip(&labels) {
                    levels.observe(number.load(Ordering::Relaxed), labels);
                }
            })
            .build();
        Self {
            numbers,
            label: PhantomData,
        }
    }

    fn values() -> Vec<&'static [&'static str]> {
        vec![A::VARIANTS]
    }
}

impl<A: Label> Levels<A> {
    /// Adds `change`.
    pub(crate) fn add(&self, label: A, change: i64) {
        let at = position::<A>(label.into());
        if let Some(number) = at.and_then(|at| self.numbers.get(at)) {
            number.fetch_add(change, Ordering::Relaxed);
        }
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

/// A number that is read whenever metrics are.
pub(crate) struct Gauge(Arc<OnceLock<Box<dyn Fn() -> u64 + Send + Sync>>>);

impl fmt::Debug for Gauge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Gauge").finish_non_exhaustive()
    }
}

impl Instrument for Gauge {
    const SUFFIX: &'static str = "";

    fn new(meter: &Meter, description: &'static Description) -> Self {
        let read = Arc::new(OnceLock::<Box<dyn Fn() -> u64 + Send + Sync>>::new());
        let gauge = Self(Arc::clone(&read));
        meter
            .u64_observable_gauge(description.name)
            .with_description(description.help)
            .with_callback(move |gauge| gauge.observe(read.get().map_or(0, |read| read()), &[]))
            .build();
        gauge
    }
}

impl Gauge {
    /// Reads the number from `read` from now on.
    pub(crate) fn read_from(&self, read: impl Fn() -> usize + Send + Sync + 'static) {
        let read = move || u64::try_from(read()).unwrap_or(u64::MAX);
        // Each has one source.
        let _ = self.0.set(Box::new(read));
    }
}

/// Buckets from a hop alone to a long call: the duration includes the server's own time.
const BUCKETS: [f64; 14] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0,
];

//! Durations of operations of stores: `db.client.operation.duration` of the semantic conventions
//! for databases.
//!
//! Not here: the operations (`database/pool`, `state/redis`).

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use opentelemetry::{
    KeyValue,
    metrics::{Histogram, Meter},
};
use strum::{IntoStaticStr, VariantNames};

use super::{
    instruments::{Description, Instrument},
    semconv::STORE_BUCKETS,
};

/// The durations of all stores.
#[derive(Clone, Debug)]
pub(crate) struct StoreDurations {
    histogram: Histogram<f64>,
    names: &'static [&'static str],
}

/// A store: a value of `db.system.name`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub(crate) enum StoreSystem {
    /// Redis, or one that speaks its protocol.
    Redis,
    /// PostgreSQL.
    Postgresql,
    /// A SQLite file.
    Sqlite,
}

/// Reason why an operation of a store failed: a value of `error.type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub(crate) enum StoreFailure {
    /// No answer in time.
    Timeout,
    /// No connection, or one that broke.
    Unavailable,
    /// The store answered with an error.
    Refused,
}

/// Takes the durations of one store; clones share the metrics.
///
/// A store is opened before the metrics of its gateway exist, so what it does until
/// [`Self::report_to`] is not recorded.
#[derive(Clone, Debug, Default)]
pub(crate) struct StoreTimes(Arc<OnceLock<StoreDurations>>);

impl Instrument for StoreDurations {
    const SUFFIX: &'static str = "_seconds";

    fn new(meter: &Meter, description: &'static Description) -> Self {
        let histogram = meter
            .f64_histogram(description.name)
            .with_unit("s")
            .with_description(description.help)
            .with_boundaries(STORE_BUCKETS.to_vec())
            .build();
        Self {
            histogram,
            names: description.labels,
        }
    }

    fn values() -> Vec<&'static [&'static str]> {
        vec![StoreSystem::VARIANTS, &[], StoreFailure::VARIANTS]
    }
}

impl StoreDurations {
    fn record(
        &self,
        (system, operation): (StoreSystem, &'static str),
        failure: Option<StoreFailure>,
        elapsed: Duration,
    ) {
        let [of_system, of_operation, of_error] = self.names else {
            return;
        };
        let mut labels = Vec::with_capacity(self.names.len());
        labels.push(KeyValue::new(*of_system, <&str>::from(system)));
        labels.push(KeyValue::new(*of_operation, operation));
        labels.extend(failure.map(|failure| KeyValue::new(*of_error, <&str>::from(failure))));
        self.histogram.record(elapsed.as_secs_f64(), &labels);
    }
}

impl StoreTimes {
    /// Records into these durations from now on.
    pub(crate) fn report_to(&self, durations: &StoreDurations) {
        // A store belongs to one gateway.
        let _ = self.0.set(durations.clone());
    }

    /// Records an operation of `system`, with its name of a fixed set, which took `elapsed`.
    pub(crate) fn record(
        &self,
        operation: (StoreSystem, &'static str),
        failure: Option<StoreFailure>,
        elapsed: Duration,
    ) {
        if let Some(durations) = self.0.get() {
            durations.record(operation, failure, elapsed);
        }
    }
}

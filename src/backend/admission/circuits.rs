//! Circuits of launch specifications: failed starts, counted for each and for each cause.
//!
//! Not here: the policy of one circuit (`circuit`).

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock, RwLockWriteGuard},
};

use aws_lc_rs::rand::SecureRandom;
use tokio::time::Instant;

use super::{
    circuit::{Circuit, Verdict},
    failures::Failures,
    refused::Refused,
};
use crate::{
    declare::{Digest, Server},
    telemetry::Metrics,
};

/// Tenant, server and launch specification: a server that is changed begins with a closed circuit.
pub(crate) type Spec = (String, String, Digest);

/// What a start was given from outside, by which it may fail: the caller whose `initialize` it is, or the
/// revision that a shared child is offered.
pub(crate) type Cause = Arc<str>;

/// A launch specification, alone or with one cause.
type Key = (Spec, Option<Cause>);

/// A start that the circuits let through. One that is dropped before it has a result, because the
/// gateway had no room for it or its caller is gone, leaves the probe to the next start.
pub(crate) struct Attempt {
    circuits: Arc<Circuits>,
    keys: Vec<Key>,
    began: Instant,
}

/// Circuits of all launch specifications with recent failures.
///
/// A caller may be able to end a child by its `initialize`. So each cause has a circuit of its own, and
/// of its failures only the first few count for the server, whose circuit stops every start.
pub(crate) struct Circuits {
    /// Never locked across an await.
    circuits: RwLock<HashMap<Key, Circuit>>,
    random: Arc<dyn SecureRandom + Send + Sync>,
    metrics: Arc<Metrics>,
    /// The last failed start of each server.
    pub(crate) failures: Failures,
}

/// Failures of one cause that count for the server while they are recent: three causes open its
/// circuit.
const OF_ONE_CAUSE: usize = 2;

impl Circuits {
    /// All closed.
    pub(crate) fn new(random: Arc<dyn SecureRandom + Send + Sync>, metrics: Arc<Metrics>) -> Self {
        Self {
            circuits: RwLock::default(),
            random,
            metrics,
            failures: Failures::default(),
        }
    }

    /// Verdict on a start, without consequences.
    pub(crate) fn peek(&self, spec: &Spec, cause: Option<&Cause>) -> Verdict {
        let circuits = self.circuits.read();
        let circuits = circuits.unwrap_or_else(PoisonError::into_inner);
        peek(&circuits, &keys(spec, cause), Instant::now())
    }

    /// Begins a start, which may be the single probe of an open circuit.
    ///
    /// # Errors
    ///
    /// The verdict against it.
    pub(crate) fn try_start(
        self: &Arc<Self>,
        spec: &Spec,
        cause: Option<&Cause>,
    ) -> Result<Attempt, Verdict> {
        let mut circuits = self.write();
        let (began, mut keys) = (Instant::now(), keys(spec, cause));
        // No probe begins where the other circuit permits none.
        let verdict = peek(&circuits, &keys, began);
        if verdict != Verdict::Now {
            return Err(verdict);
        }
        // Most specifications never fail, and have no entry.
        keys.retain(|key| match circuits.get_mut(key) {
            Some(circuit) => circuit.try_start(began) == Verdict::Now,
            None => false,
        });
        Ok(Attempt {
            circuits: Arc::clone(self),
            keys,
            began,
        })
    }

    /// Records a start that succeeded.
    pub(crate) fn succeeded(&self, spec: &Spec, cause: Option<&Cause>) {
        let mut circuits = self.write();
        for key in &keys(spec, cause) {
            if let Some(circuit) = circuits.get_mut(key) {
                circuit.succeeded();
            }
        }
    }

    /// Counts a failed start; a circuit may open.
    pub(crate) fn count_failure(&self, spec: &Spec, cause: Option<&Cause>) {
        let (jitter, now) = (self.jitter(), Instant::now());
        let (tenant, server, _) = spec;
        let mut circuits = self.write();
        if circuits.len() > MOST_IDLE {
            circuits.retain(|_, circuit| !circuit.is_idle(now));
        }
        let mut is_of_server = true;
        if let Some(cause) = cause {
            let key = (spec.clone(), Some(Arc::clone(cause)));
            let own = circuits.entry(key).or_default();
            if own.failed(now, jitter) {
                self.metrics.circuits_opened.add(1);
                tracing::warn!(
                    tenant.id = tenant,
                    server.name = server,
                    "starts of one caller, or of one revision, keep failing: its circuit opens"
                );
            }
            is_of_server = own.recent() <= OF_ONE_CAUSE;
        }
        let all = circuits.entry((spec.clone(), None)).or_default();
        // A probe has a result, whichever start was it.
        if (is_of_server || all.is_open(now)) && all.failed(now, jitter) {
            self.metrics.circuits_opened.add(1);
            tracing::warn!(
                tenant.id = tenant,
                server.name = server,
                "starts keep failing: the circuit opens"
            );
        }
    }

    fn write(&self) -> RwLockWriteGuard<'_, HashMap<Key, Circuit>> {
        self.circuits
            .write()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a refused start.
    ///
    /// # Errors
    ///
    /// `refused`, always.
    pub(crate) fn refuse<T>(&self, refused: Refused) -> Result<T, Refused> {
        self.metrics.starts_refused.add(1);
        Err(refused)
    }

    /// Random number from 0 to 1.
    pub(crate) fn jitter(&self) -> f64 {
        let mut bytes = [0; 2];
        // Without randomness every wait is the longest one: correct, but not spread out.
        _ = self.random.fill(&mut bytes);
        f64::from(u16::from_le_bytes(bytes)) / f64::from(u16::MAX)
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if self.keys.is_empty() {
            return;
        }
        let mut circuits = self.circuits.write();
        for key in &self.keys {
            if let Some(circuit) = circuits.get_mut(key) {
                circuit.release(self.began);
            }
        }
    }
}

/// The circuits that a start asks: that of the server, then that of its cause.
fn keys(spec: &Spec, cause: Option<&Cause>) -> Vec<Key> {
    let own = cause.map(|cause| (spec.clone(), Some(Arc::clone(cause))));
    std::iter::once((spec.clone(), None)).chain(own).collect()
}

/// The verdict on a start: the first that opposes it, an open circuit before a backoff.
fn peek(circuits: &HashMap<Key, Circuit>, keys: &[Key], now: Instant) -> Verdict {
    let verdicts = keys.iter().filter_map(|key| circuits.get(key));
    let verdicts = verdicts.map(|circuit| circuit.peek(now));
    let against: Vec<Verdict> = verdicts
        .filter(|verdict| *verdict != Verdict::Now)
        .collect();
    let open = against
        .iter()
        .find(|verdict| matches!(verdict, Verdict::Open(_)));
    open.or(against.first()).copied().unwrap_or(Verdict::Now)
}

/// Entries beyond which those without recent failures are removed.
const MOST_IDLE: usize = 64;

/// Launch specification of a server.
pub(crate) fn spec(server: &Server) -> Spec {
    let digest = server.launch.digest();
    (server.tenant.clone(), server.name.clone(), digest)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use aws_lc_rs::rand::SystemRandom;

    use super::super::circuits::*;

    fn circuits() -> (Arc<Circuits>, Spec) {
        let random = Arc::new(SystemRandom::new());
        let metrics = Arc::new(Metrics::new(None).unwrap());
        let spec = ("t".to_owned(), "x".to_owned(), [0; 32]);
        (Arc::new(Circuits::new(random, metrics)), spec)
    }

    #[test]
    fn failures_of_one_cause_shut_no_other_out() {
        let (circuits, spec) = circuits();
        let causes: Vec<Cause> = ["a", "b", "c", "d"].map(Arc::from).to_vec();
        let is_open = |cause: &Cause| matches!(circuits.peek(&spec, Some(cause)), Verdict::Open(_));
        for _ in 0..60 {
            circuits.count_failure(&spec, Some(&causes[0]));
        }
        assert!(is_open(&causes[0]) && !is_open(&causes[1]));
        for _ in 0..60 {
            circuits.count_failure(&spec, Some(&causes[1]));
        }
        assert!(is_open(&causes[1]) && !is_open(&causes[2]));
        // Of a third one it is the server.
        circuits.count_failure(&spec, Some(&causes[2]));
        assert!(is_open(&causes[3]) && matches!(circuits.peek(&spec, None), Verdict::Open(_)));
    }

    #[test]
    fn failures_without_a_cause_are_those_of_the_server() {
        let (circuits, spec) = circuits();
        for _ in 0..5 {
            circuits.count_failure(&spec, None);
        }
        let other = Cause::from("a");
        let begun = circuits.try_start(&spec, Some(&other));
        assert!(matches!(begun.err(), Some(Verdict::Open(_))));
        circuits.succeeded(&spec, Some(&other));
        assert!(circuits.try_start(&spec, Some(&other)).is_ok());
    }

    /// Whoever came next was refused for two minutes.
    #[test]
    fn a_probe_without_a_result_is_given_back() {
        let (circuits, spec) = circuits();
        let cause = Cause::from("a");
        let long_ago = Instant::now() - Duration::from_mins(1);
        for key in keys(&spec, Some(&cause)) {
            let mut lapsed = Circuit::default();
            for _ in 0..5 {
                lapsed.failed(long_ago, 0.0);
            }
            circuits.write().insert(key, lapsed);
        }
        let probe = || circuits.try_start(&spec, Some(&cause)).ok();
        let first = probe();
        assert!(first.is_some() && probe().is_none(), "only one");
        drop(first);
        let second = probe();
        assert!(second.is_some(), "at once");
        circuits.count_failure(&spec, Some(&cause));
        drop(second);
        assert!(probe().is_none(), "its failure counts");
    }
}

//! Circuits of launch specifications: failed starts, counted for each.
//!
//! Not here: the policy of one circuit (`circuit`).

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
};

use aws_lc_rs::rand::SecureRandom;
use tokio::time::Instant;

use super::{circuit::Circuit, failures::Failures, refused::Refused};
use crate::{
    declare::{Digest, Server},
    telemetry::Metrics,
};

/// Tenant, server and launch specification: a server that is changed begins with a closed circuit.
pub(crate) type Spec = (String, String, Digest);

/// Circuits of all launch specifications with recent failures.
pub(crate) struct Circuits {
    /// Never locked across an await.
    circuits: RwLock<HashMap<Spec, Circuit>>,
    random: Arc<dyn SecureRandom + Send + Sync>,
    metrics: Arc<Metrics>,
    /// The last failed start of each server.
    pub(crate) failures: Failures,
}

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

    /// Calls `act` with the circuit of a specification and the present time.
    pub(crate) fn with<T>(&self, spec: &Spec, act: impl FnOnce(&mut Circuit, Instant) -> T) -> T {
        let mut circuits = self
            .circuits
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if circuits.len() > 64 {
            circuits.retain(|_, circuit| !circuit.is_idle(now));
        }
        // Most specifications never fail: entries without failures are not kept.
        if let Some(circuit) = circuits.get_mut(spec) {
            return act(circuit, now);
        }
        let mut circuit = Circuit::default();
        let result = act(&mut circuit, now);
        if !circuit.is_idle(now) {
            circuits.insert(spec.clone(), circuit);
        }
        result
    }

    /// Counts a failed start; the circuit may open.
    pub(crate) fn count_failure(&self, spec: &Spec) {
        let jitter = self.jitter();
        let has_opened = self.with(spec, |circuit, now| circuit.failed(now, jitter));
        if has_opened {
            self.metrics.circuits_opened.add(1);
            let (tenant, server, _) = spec;
            tracing::warn!(
                tenant.id = tenant,
                server.name = server,
                "starts keep failing: the circuit opens"
            );
        }
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

/// Launch specification of a server.
pub(crate) fn spec(server: &Server) -> Spec {
    let digest = server.launch.digest();
    (server.tenant.clone(), server.name.clone(), digest)
}

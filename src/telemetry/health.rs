//! Health of this replica: unavailable dependencies and their effect, and the drain.
//!
//! Not here: the endpoints that report it (`http::ops`, `http::admin`), and the measurements.

use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError},
};

/// Readiness of this replica for traffic; a handle.
#[derive(Clone, Debug, Default)]
pub(crate) struct Health(Arc<Lock>);

#[expect(
    clippy::disallowed_types,
    reason = "held for a few instructions, never across an await"
)]
type Lock = std::sync::Mutex<State>;

/// Effect of an unavailable dependency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// Some requests fail and the rest is served: 200 `degraded`.
    Some,
    /// No useful request can be served: 503 `unready`.
    All,
}

#[derive(Debug, Default)]
struct State {
    /// Set by the first signal.
    is_draining: bool,
    /// Unavailable dependencies and their effects.
    unavailable: BTreeMap<&'static str, Loss>,
}

/// Readiness for traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readiness {
    /// Everything is available.
    Ready,
    /// Some requests fail.
    Degraded,
    /// No useful request can be served.
    Unready,
    /// The replica is about to end.
    Draining,
}

impl Readiness {
    /// The word for clients.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Degraded => "degraded",
            Self::Unready => "unready",
            Self::Draining => "draining",
        }
    }
}

impl Health {
    /// Reports 503 from now on, so that load balancers stop sending requests. Irreversible.
    pub(crate) fn drain(&self) {
        self.with(|state| state.is_draining = true);
    }

    /// Marks a dependency as unavailable: a database, or a part that has not started yet.
    pub(crate) fn lost(&self, dependency: &'static str, loss: Loss) {
        self.with(|state| {
            state.unavailable.insert(dependency, loss);
        });
    }

    /// Marks a dependency as available again.
    pub(crate) fn back(&self, dependency: &'static str) {
        self.with(|state| {
            state.unavailable.remove(dependency);
        });
    }

    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The readiness, and the unavailable dependencies.
    pub(crate) fn readiness(&self) -> (Readiness, Vec<&'static str>) {
        self.with(|state| {
            let readiness = if state.is_draining {
                Readiness::Draining
            } else if state.unavailable.values().any(|loss| *loss == Loss::All) {
                Readiness::Unready
            } else if state.unavailable.is_empty() {
                Readiness::Ready
            } else {
                Readiness::Degraded
            };
            (readiness, state.unavailable.keys().copied().collect())
        })
    }
}

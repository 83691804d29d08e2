//! Pool of children: warm or new children for sessions and for shared keys.
//!
//! Not here: the use of a child (`hub`), and sessions that share one (`shared`).

use std::{sync::Arc, time::Duration};

use aws_lc_rs::rand::SecureRandom;
use tokio::{
    sync::oneshot,
    time::{Instant, sleep_until},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    admission::{Circuits, Refused, StartFailure, Verdict, spec},
    child::{ChildSeats, Launcher, Registry, TenantMemory},
    delivery::SecretSource,
    opening::{Eras, Probed},
    prepare::{Preparations, Ready},
    starter::{Occasion, Started, Starter},
    warm::WarmChildren,
};
use crate::{
    config::gateway,
    declare::Server,
    telemetry::{ChildState, Exit, Metrics, Traces},
};

/// Source of all children of a gateway.
pub(crate) struct Pool {
    wait: Duration,
    circuits: Arc<Circuits>,
    starter: Arc<Starter>,
    warm: WarmChildren,
    eras: Eras,
    /// The probes under way.
    tracker: TaskTracker,
    /// Installations that children start from.
    pub(crate) preparations: Arc<Preparations>,
    /// Children that run.
    pub(crate) registry: Arc<Registry>,
    /// Metrics of children.
    pub(crate) metrics: Arc<Metrics>,
}

/// What children take from the rest of the gateway.
pub(crate) struct PoolSources {
    /// Their seats.
    pub(crate) seats: Arc<ChildSeats>,
    /// The memory of their tenants.
    pub(crate) memory: TenantMemory,
    /// Their secrets.
    pub(crate) secrets: SecretSource,
}

impl Pool {
    /// A pool without children; preparations run in `tracker` until `stop`.
    pub(crate) fn new(
        launcher: Launcher,
        bounds: gateway::Spawn,
        random: Arc<dyn SecureRandom + Send + Sync>,
        PoolSources {
            seats,
            memory,
            secrets,
        }: PoolSources,
        (metrics, traces): (Arc<Metrics>, Traces),
        tracker: TaskTracker,
        stop: CancellationToken,
    ) -> Self {
        let circuits = Arc::new(Circuits::new(random, Arc::clone(&metrics)));
        let registry = Arc::new(Registry::new(seats, Arc::clone(&metrics)));
        let preparations = Preparations::new(
            launcher.clone(),
            Arc::clone(&circuits),
            (Arc::clone(&registry), Arc::clone(&memory)),
            bounds.wait,
            tracker.clone(),
            stop.clone(),
        );
        let preparations = Arc::new(preparations);
        let starter = Starter::new(
            launcher,
            bounds,
            Arc::clone(&circuits),
            (registry, memory, secrets),
            (Arc::clone(&metrics), traces),
            tracker.clone(),
        );
        let starter = Arc::new(starter);
        Self {
            wait: bounds.wait,
            circuits,
            eras: Eras::new(stop),
            tracker,
            warm: WarmChildren::new(Arc::clone(&starter), Arc::clone(&preparations)),
            preparations,
            registry: Arc::clone(&starter.registry),
            starter,
            metrics,
        }
    }

    /// Returns a child of `server`: a warm one, or a new one as soon as there is room.
    ///
    /// `not_before` is the end of a backoff of the caller.
    ///
    /// # Errors
    ///
    /// `Limit` and `Circuit` at once; `Prepare`; `Busy` after `spawn.wait`, which begins after the
    /// preparation.
    pub(crate) async fn get(
        self: Arc<Self>,
        server: Arc<Server>,
        restarts: u32,
        not_before: Option<Instant>,
        occasion: Occasion,
    ) -> Result<Started, Refused> {
        let ready = self.preparations.prepared(&server).await?;
        let deadline = Instant::now() + self.wait;
        if let Some(until) = not_before {
            if until > deadline {
                return self.circuits.refuse(Refused::Busy);
            }
            sleep_until(until).await;
        }
        let is_modern = occasion.is_modern;
        // A caller whose `initialize` ends children must not take all of the warm ones.
        let (spec, cause) = (spec(&server), occasion.cause.as_ref());
        if self.circuits.peek(&spec, cause) == Verdict::Now
            && let Some(mut warm) = self.warm.take(&server).await
        {
            // It may be the probe of a circuit that was open.
            let attempt = self.circuits.try_start(&spec, cause).ok();
            warm.place.begin(occasion, attempt);
            return self.open(server, ready, warm, is_modern).await;
        }
        let started = self
            .starter
            .start(&server, ready.as_deref(), restarts, deadline, occasion)
            .await?;
        self.open(server, ready, started, is_modern).await
    }

    /// Opens a started child for its owner.
    async fn open(
        self: Arc<Self>,
        server: Arc<Server>,
        ready: Option<Arc<Ready>>,
        started: Started,
        is_modern: bool,
    ) -> Result<Started, Refused> {
        if !self.eras.is_unknown(&server, is_modern) {
            let ready = ready.as_deref();
            return self.probed(&server, ready, started, is_modern).await;
        }
        // A caller that goes in the meantime leaves a child that has to be stopped.
        let (reply, opened) = oneshot::channel();
        self.tracker.clone().spawn(async move {
            let ready = ready.as_deref();
            let opened = self.probed(&server, ready, started, is_modern).await;
            if let Err(Ok(Started { child, place })) = reply.send(opened) {
                place.entry().set(ChildState::Stopping);
                child.stop(server.clocks.stop).await;
                self.metrics.child_exited(Exit::Stopped);
            }
        });
        opened.await.unwrap_or(Err(Refused::Busy))
    }

    /// The child, probed if it has to be. One that ended at the probe is replaced, in its place.
    async fn probed(
        &self,
        server: &Server,
        ready: Option<&Ready>,
        started: Started,
        is_modern: bool,
    ) -> Result<Started, Refused> {
        let Started { child, place } = started;
        let upset = match self.eras.open(child, server, is_modern).await {
            Probed::Ready(child) => return Ok(Started { child, place }),
            Probed::Upset(child) => child,
        };
        let exit = upset.kill().await;
        self.metrics.child_exited(Exit::Stopped);
        // The probe has not reached the server.
        if exit.is_shortage {
            return self.circuits.refuse(Refused::Busy);
        }
        self.eras.upset(server);
        let Started { child, place } = self.starter.spawn(server, ready, place).await?;
        // Its era counts as known now.
        match self.eras.open(child, server, is_modern).await {
            Probed::Ready(child) | Probed::Upset(child) => Ok(Started { child, place }),
        }
    }

    /// Keeps the declared number of warm children of each `wanted` server, and none of other servers,
    /// until `halt`.
    pub(crate) fn keep_warm<'s>(
        &self,
        wanted: impl Iterator<Item = &'s Arc<Server>>,
        halt: &CancellationToken,
        tracker: &TaskTracker,
    ) {
        self.warm.keep_only(wanted, halt, tracker);
    }

    /// Ends a warm child of a tenant for another one; false if it has none.
    pub(crate) async fn give_up_warm(&self, tenant: &str) -> bool {
        let Some((server, Started { child, place })) = self.warm.take_any(tenant).await else {
            return false;
        };
        place.give_way();
        place.entry().set(ChildState::Stopping);
        let metrics = Arc::clone(&self.metrics);
        self.tracker.spawn(async move {
            child.stop(server.clocks.stop).await;
            metrics.child_exited(Exit::Stopped);
            drop(place);
        });
        true
    }

    /// The last failed start of a server that has not started since.
    pub(crate) fn failure(&self, server: &Server) -> Option<Arc<StartFailure>> {
        self.circuits.failures.of(server)
    }

    /// Forgets the failed start of a server that was changed or removed.
    pub(crate) fn forget_failure(&self, server: &Server) {
        let failures = &self.circuits.failures;
        failures.forget((&server.tenant, &server.name));
    }

    /// Random number from 0 to 1, to spread out waits.
    pub(crate) fn jitter(&self) -> f64 {
        self.circuits.jitter()
    }
}

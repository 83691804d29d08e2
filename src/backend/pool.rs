//! Who may start a child, and when: caps, turns, backoff, circuits, and children kept warm
//! (DESIGN section 4, "Restarts").
//!
//! Not here: what a child is for (`hub`), and sharing one (`shared`).

use std::{
    borrow::Cow,
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use aws_lc_rs::rand::SecureRandom;
use bytes::Bytes;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, sleep_until, timeout_at},
};

use super::{
    child::{Child, Entry, Launcher, Roster, Seat},
    circuit::{Circuit, Verdict},
    prepare::{Preparations, Ready},
    start_slots::{Turn, Turns},
    warm::Keepers,
};
use crate::{
    config::gateway,
    declare::{Digest, Full, Server},
    telemetry::{ChildState, Metrics},
};

/// Starts children within the bounds of the gateway; one for all.
pub(crate) struct Pool {
    pub(super) launcher: Launcher,
    pub(super) wait: Duration,
    /// Children that may be starting.
    turns: Turns,
    /// Children that there may be.
    room: Arc<Semaphore>,
    /// Failed starts; never held across an await.
    circuits: RwLock<HashMap<Spec, Circuit>>,
    random: Arc<dyn SecureRandom + Send + Sync>,
    pub(super) keepers: Keepers,
    /// What is installed ahead of children.
    pub(crate) preparations: Preparations,
    /// What runs.
    pub(crate) roster: Arc<Roster>,
    /// Where it is counted.
    pub(crate) metrics: Arc<Metrics>,
}

/// A launch specification, as failed starts are counted: a changed one begins anew.
pub(crate) type Spec = (String, String, Digest);

/// A child that was started.
pub(crate) struct Started {
    /// The child.
    pub(crate) child: Child,
    /// Its place, to be kept for as long as anything of it is left.
    pub(crate) place: Place,
}

/// A child's place among all; dropping it gives it back.
pub(crate) struct Place {
    pool: Arc<Pool>,
    entry: Arc<Entry>,
    spec: Spec,
    _seat: Seat,
    _room: OwnedSemaphorePermit,
    /// Held until the child answered its first request, or never will.
    turn: Option<Turn>,
    /// Whether it has neither answered its first request nor failed to.
    is_starting: bool,
}

/// Why there is no child.
#[derive(Clone, Debug)]
pub(crate) enum Refused {
    /// The gateway has no room, and had none for `spawn.wait`.
    Busy,
    /// A quota of the tenant.
    Limit(Full),
    /// It failed too often: nothing is started for this long.
    Circuit(Duration),
    /// The operating system refused.
    Spawn,
    /// What it starts from could not be prepared.
    Prepare,
    /// What was started ended before it answered, or its answer was not usable.
    Failed(&'static str),
    /// What was started answered `initialize` with this raw error.
    Answered(Bytes),
}

impl Pool {
    /// Nothing runs yet.
    pub(crate) fn new(
        launcher: Launcher,
        preparations: Preparations,
        bounds: gateway::Spawn,
        random: Arc<dyn SecureRandom + Send + Sync>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            launcher,
            wait: bounds.wait,
            turns: Turns::new(bounds.parallel),
            room: Arc::new(Semaphore::new(bounds.children.min(Semaphore::MAX_PERMITS))),
            circuits: RwLock::default(),
            random,
            keepers: Keepers::default(),
            preparations,
            roster: Arc::new(Roster::new(Arc::clone(&metrics))),
            metrics,
        }
    }

    /// A child of `server`: one that is warm, or a new one, as soon as there is room.
    ///
    /// `not_before` is the end of a backoff of the caller's own.
    ///
    /// # Errors
    ///
    /// `Limit` and `Circuit` at once; `Busy` after `spawn.wait`, which begins when everything is
    /// prepared; `Prepare`.
    pub(crate) async fn get(
        self: Arc<Self>,
        server: Arc<Server>,
        restarts: u32,
        not_before: Option<Instant>,
    ) -> Result<Started, Refused> {
        let ready = self.prepared(&server).await?;
        let deadline = Instant::now() + self.wait;
        if let Some(until) = not_before {
            if until > deadline {
                return self.refuse(Refused::Busy);
            }
            sleep_until(until).await;
        }
        if let Some(warm) = self.keepers.take(&server).await {
            return Ok(warm);
        }
        self.start(&server, ready.as_deref(), restarts, deadline)
            .await
    }

    /// A new child, as soon as there is room, from what is `ready` for it.
    pub(super) async fn start(
        self: &Arc<Self>,
        server: &Server,
        ready: Option<&Ready>,
        restarts: u32,
        deadline: Instant,
    ) -> Result<Started, Refused> {
        let spec = spec(server);
        let seat = match self.roster.seat(&server.tenant, server.room) {
            Ok(seat) => seat,
            Err(full) => return self.refuse(Refused::Limit(full)),
        };
        let (room, turn) = loop {
            // A backoff is waited for without a turn: a server that fails holds up no other.
            match self.circuit(&spec, |circuit, now| circuit.peek(now)) {
                Verdict::Now => {}
                Verdict::Open(left) => return self.refuse(Refused::Circuit(left)),
                Verdict::After(wait) if Instant::now() + wait > deadline => {
                    return self.refuse(Refused::Busy);
                }
                Verdict::After(wait) => tokio::time::sleep(wait).await,
            }
            let room = timeout_at(deadline, Arc::clone(&self.room).acquire_owned()).await;
            let turn = timeout_at(deadline, self.turns.take(&server.tenant)).await;
            let (Ok(Ok(room)), Ok(turn)) = (room, turn) else {
                return self.refuse(Refused::Busy);
            };
            // What failed meanwhile counts.
            match self.circuit(&spec, Circuit::ask) {
                Verdict::Now => break (room, turn),
                Verdict::Open(left) => return self.refuse(Refused::Circuit(left)),
                Verdict::After(_) => {}
            }
        };
        let entry = self.roster.add(server, restarts);
        let place = Place {
            pool: Arc::clone(self),
            entry,
            spec,
            _seat: seat,
            _room: room,
            turn: Some(turn),
            is_starting: true,
        };
        self.spawn(server, ready, place)
    }

    fn spawn(
        &self,
        server: &Server,
        ready: Option<&Ready>,
        place: Place,
    ) -> Result<Started, Refused> {
        let launch = match (ready, &server.recipe) {
            (Some(ready), Some(recipe)) => Cow::Owned(ready.launch(server, recipe)),
            _ => Cow::Borrowed(&server.launch),
        };
        let label = format!("{}-{}", server.tenant, server.name);
        match Child::spawn(&self.launcher, &label, &launch, &server.limits) {
            Ok(child) => {
                place.entry.started(child.pid(), child.stderr().clone());
                self.metrics.child_started();
                Ok(Started { child, place })
            }
            Err(error) => {
                tracing::warn!(
                    tenant.id = server.tenant, server.name = server.name, %error,
                    "cannot start a child"
                );
                place.failed();
                Err(Refused::Spawn)
            }
        }
    }

    pub(super) fn refuse<T>(&self, why: Refused) -> Result<T, Refused> {
        self.metrics.start_refused();
        Err(why)
    }

    /// Counts a failed start.
    pub(super) fn count_failure(&self, spec: &Spec) {
        let jitter = self.jitter();
        let has_opened = self.circuit(spec, |circuit, now| circuit.failed(now, jitter));
        if has_opened {
            self.metrics.circuit_opened();
            let (tenant, server, _) = spec;
            tracing::warn!(
                tenant.id = tenant,
                server.name = server,
                "starts keep failing: the circuit opens"
            );
        }
    }

    pub(super) fn circuit<T>(
        &self,
        spec: &Spec,
        act: impl FnOnce(&mut Circuit, Instant) -> T,
    ) -> T {
        let mut circuits = self
            .circuits
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if circuits.len() > 64 {
            circuits.retain(|_, circuit| !circuit.is_idle(now));
        }
        // Most specifications never fail: only what did has an entry for long.
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

    /// A number from 0 to 1.
    pub(crate) fn jitter(&self) -> f64 {
        let mut bytes = [0; 2];
        // Without randomness everything waits the longest time: correct, and the more crowded.
        _ = self.random.fill(&mut bytes);
        f64::from(u16::from_le_bytes(bytes)) / f64::from(u16::MAX)
    }
}

impl Place {
    /// The child in the roster.
    pub(crate) fn entry(&self) -> &Arc<Entry> {
        &self.entry
    }

    /// The child answered its first request: another one may start.
    pub(crate) fn succeeded(&mut self) {
        self.turn = None;
        if std::mem::take(&mut self.is_starting) {
            self.pool
                .circuit(&self.spec, |circuit, _| circuit.succeeded());
            self.entry.set(ChildState::Ready);
        }
    }

    /// The child did not answer its first request; counted once.
    pub(crate) fn failed(mut self) {
        self.fail();
    }

    /// Whether the child has neither answered its first request nor failed to.
    pub(crate) fn is_starting(&self) -> bool {
        self.is_starting
    }

    /// The same, where the place is still needed.
    pub(crate) fn fail(&mut self) {
        self.turn = None;
        if std::mem::take(&mut self.is_starting) {
            self.pool.count_failure(&self.spec);
        }
    }

    /// A warm child gives its turn to the next start while it waits for a session.
    pub(super) fn settle(&mut self) {
        self.turn = None;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.pool.roster.remove(&self.entry);
    }
}

/// How failed starts of a server are counted.
pub(super) fn spec(server: &Server) -> Spec {
    let digest = server.launch.digest();
    (server.tenant.clone(), server.name.clone(), digest)
}

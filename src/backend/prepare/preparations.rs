//! Preparations: installation of a server into a store that all children of a recipe read.
//!
//! One run fills a store for all sessions and servers that need it. A failed run counts as a
//! failed start of the server that began it, and one that took long is remembered for as long, to its
//! tenant. A run is one of the children of that tenant. Not here: the recipe (`declare`), and the store
//! itself (`stores`).

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    path::Path,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    select,
    sync::{mpsc, watch},
    task::spawn_blocking,
    time::{Instant, sleep, sleep_until, timeout, timeout_at},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    output::{ERRORS, ended, last_lines, log_begin, log_failure},
    programs::{self, Found},
    stores::{KEPT, Store, Stores},
};
use crate::backend::{
    admission::{
        Circuits, Lapse, Refused, Spec, Stage, StartFailure, StartSlot, StartSlots, Verdict,
        is_shortage, spec,
    },
    child::{Child, Launcher, Owner, Registry, Seat, TenantMemory},
};
use crate::base::hex;
use crate::declare::{Launch, Limits, Recipe, Server};
use crate::telemetry::PREPARATIONS;

/// All preparations of a gateway.
pub(crate) struct Preparations {
    launcher: Launcher,
    circuits: Arc<Circuits>,
    registry: Arc<Registry>,
    memory: TenantMemory,
    /// Time that a caller waits for a backoff.
    wait: Duration,
    stores: Stores,
    /// By the name of the store; never locked across an await.
    flights: RwLock<HashMap<String, Flight>>,
    slots: StartSlots,
    /// The number of times that the servers to prepare were given.
    round: AtomicU64,
    tracker: TaskTracker,
    /// End of all preparations.
    stop: CancellationToken,
}

/// Preparation of one store, under way or over.
struct Flight {
    outcome: watch::Receiver<Outcome>,
    subject: String,
    /// The tenant whose server began it, by whose limits it runs.
    tenant: String,
    servers: BTreeSet<(String, String)>,
    /// Tenants in whose lines it stands for a slot.
    lines: BTreeSet<String>,
    /// Takes the slot that one of the others had first; closed once it has one.
    slot: mpsc::Sender<StartSlot>,
}

/// State of a preparation.
#[derive(Clone)]
enum Outcome {
    Running,
    Ready(Arc<Ready>),
    /// It failed as this tenant's, for which it is not tried again before this time.
    Failed(String, Arc<StartFailure>, Instant),
    /// There was no room for it among the children of this tenant, or of the gateway.
    Refused(String, Refused),
    /// The gateway stops.
    Stopped,
}

/// A complete store that children start from.
pub(crate) struct Ready {
    store: Store,
    found: Found,
}

/// The status of a preparation, for administrators.
#[derive(Clone, Debug)]
pub(crate) struct PreparationStatus {
    /// Name of the store.
    pub(crate) digest: String,
    /// Installed package, or the command that installs.
    pub(crate) subject: String,
    /// Tenants and servers that need it.
    pub(crate) servers: Vec<(String, String)>,
    /// `preparing`, `ready` or `failed`.
    pub(crate) state: &'static str,
    /// Installed version, if known.
    pub(crate) version: Option<String>,
    /// Last lines of the output of a failed one.
    pub(crate) output: Vec<String>,
}

/// A preparation to wait for, or the reason why none begins.
enum Joined {
    Flight(watch::Receiver<Outcome>),
    Failed(Arc<StartFailure>),
    Not(Verdict),
}

/// Reason why there is no store.
enum Failure {
    /// The gateway stops.
    Stopped,
    /// There is no room for it.
    Refused(Refused),
    /// The reason, and the last lines of the output.
    Failed(String, Vec<String>),
}

/// Time limit of a preparation. It is not configurable: a download that takes longer is stuck.
const LONGEST: Duration = Duration::from_mins(10);

/// Preparations at a time, at most three quarters of them of one tenant: they share one network and one
/// disk.
const PARALLEL: usize = 4;

/// The time for which a preparation keeps others out: a package that cannot be had takes longer to fail.
const SLOT: Duration = Duration::from_secs(10);

/// The duration from which on a failure is remembered; a quicker one has the delays of the circuit alone.
const SLOW: Duration = Duration::from_secs(1);

/// The longest time for which a failure is remembered.
const REMEMBERED: Duration = Duration::from_mins(1);

/// The reason of one that was refused, for operators.
const NO_ROOM: &str = "no room for it among the children of its tenant, or of the gateway";

/// The shortest time after which a preparation without room is tried again.
const PAUSE: Duration = Duration::from_secs(1);

impl Preparations {
    /// No preparation; stores lie in the directory that `launcher` names.
    pub(crate) fn new(
        launcher: Launcher,
        circuits: Arc<Circuits>,
        (registry, memory): (Arc<Registry>, TenantMemory),
        wait: Duration,
        tracker: TaskTracker,
        stop: CancellationToken,
    ) -> Self {
        Self {
            stores: Stores::new(launcher.prepared.clone()),
            launcher,
            circuits,
            registry,
            memory,
            wait,
            flights: RwLock::default(),
            slots: StartSlots::new(
                PARALLEL,
                Lapse {
                    after: SLOT,
                    tracker: tracker.clone(),
                },
            ),
            round: AtomicU64::new(0),
            tracker,
            stop,
        }
    }

    /// Lists all preparations by the names of their stores.
    pub(crate) fn list(&self) -> Vec<PreparationStatus> {
        let flights = self.flights.read().unwrap_or_else(PoisonError::into_inner);
        let seen = flights.iter().map(|(name, flight)| {
            let (state, version, output) = match &*flight.outcome.borrow() {
                Outcome::Running => ("preparing", None, Vec::new()),
                Outcome::Ready(ready) => ("ready", ready.found.version.clone(), Vec::new()),
                Outcome::Failed(_, failure, _) => {
                    let lines = failure.output.iter().chain([&failure.why]);
                    ("failed", None, lines.cloned().collect())
                }
                Outcome::Refused(..) => ("failed", None, vec![NO_ROOM.to_owned()]),
                Outcome::Stopped => ("failed", None, Vec::new()),
            };
            PreparationStatus {
                digest: name.clone(),
                subject: flight.subject.clone(),
                servers: flight.servers.iter().cloned().collect(),
                state,
                version,
                output,
            }
        });
        let mut seen: Vec<_> = seen.collect();
        seen.sort_by(|one, other| one.digest.cmp(&other.digest));
        seen
    }

    /// Finds the store of this name, if it is complete and has the program.
    async fn find(&self, name: &str, recipe: &Recipe) -> Option<Ready> {
        let (stores, name, start) = (self.stores.clone(), name.to_owned(), recipe.start.clone());
        let found = spawn_blocking(move || {
            let store = stores.find(&name).ok()??;
            match programs::find(&start, &store.path) {
                Ok(found) => Some(Ready { store, found }),
                Err(why) => {
                    tracing::warn!(why, "a store is of no use: it is made anew");
                    stores.forget(&name);
                    None
                }
            }
        });
        found.await.ok().flatten()
    }

    /// Waits for a slot in the line of `tenant`, or for the one that another line has `given`.
    async fn slot(
        &self,
        tenant: &str,
        mut given: mpsc::Receiver<StartSlot>,
    ) -> Result<StartSlot, Failure> {
        select! {
            slot = self.slots.take(tenant) => Ok(slot),
            Some(slot) = given.recv() => Ok(slot),
            () = self.stop.cancelled() => Err(Failure::Stopped),
        }
    }

    /// Has a preparation of another tenant stand in the line of this one too: the slots of the other may be taken for
    /// long, and this one waits for the same store.
    fn stand_in_line(self: &Arc<Self>, tenant: &str, wanted: mpsc::Sender<StartSlot>) {
        let (preparations, tenant) = (Arc::clone(self), tenant.to_owned());
        self.tracker.spawn(async move {
            let slot = select! {
                slot = preparations.slots.take(&tenant) => slot,
                () = wanted.closed() => return,
                () = preparations.stop.cancelled() => return,
            };
            // Not wanted if it has another one by now.
            _ = wanted.try_send(slot);
        });
    }

    /// Fills a store unless it exists; the second value is true if it existed. Sets the time at which it
    /// `began`, which waits for a slot first.
    async fn make(
        &self,
        (server, recipe): (&Server, &Recipe),
        name: &str,
        given: mpsc::Receiver<StartSlot>,
        began: &mut Instant,
    ) -> Result<(Ready, bool), Failure> {
        if let Some(ready) = self.find(name, recipe).await {
            return Ok((ready, true));
        }
        let _slot = self.slot(&server.tenant, given).await?;
        *began = Instant::now();
        // Another gateway may have filled it meanwhile.
        if let Some(ready) = self.find(name, recipe).await {
            return Ok((ready, true));
        }
        // Until the store is complete, or removed: both may take long.
        let (seat, _rest) = self.room(server).await?;
        let stores = self.stores.clone();
        let begun = blocking({
            let (stores, name) = (stores.clone(), name.to_owned());
            move || stores.begin(&name).map_err(|error| error.to_string())
        });
        let store = begun.await?;
        let filled = self.fill(server, recipe, &store.path, &seat).await;
        // The id of its guard may be that of another process soon.
        seat.started(None);
        if let Err(failure) = filled {
            _ = blocking(move || {
                store.discard();
                Ok(())
            })
            .await;
            return Err(failure);
        }
        let (name, start) = (name.to_owned(), recipe.start.clone());
        let completed = blocking(move || {
            let found = match programs::find(&start, &store.path) {
                Ok(found) => found,
                Err(why) => {
                    store.discard();
                    return Err(why);
                }
            };
            let made = store.path.clone();
            let store = stores.complete(&name, store).map_err(|e| e.to_string())?;
            // A store of another gateway has the same content at another path.
            let found = if store.path == made {
                found
            } else {
                programs::find(&start, &store.path)?
            };
            Ok(Ready { store, found })
        });
        Ok((completed.await?, false))
    }

    /// Takes a seat among the children of the tenant, a place among those of the gateway, and the descriptors of one.
    async fn room(&self, server: &Server) -> Result<(Seat, impl Sized), Failure> {
        let (seats, until) = (&self.registry.seats, Instant::now() + self.wait);
        let seat = seats.take(&server.tenant, &Owner::Tenant, server.room, until);
        let seat = self.stop.run_until_cancelled(seat).await;
        let seat = seat.ok_or(Failure::Stopped)?;
        let seat = seat.map_err(|full| Failure::Refused(Refused::Limit(full)))?;
        let place = timeout_at(until, seats.place(&server.tenant, false));
        let place = self.stop.run_until_cancelled(place).await;
        let place = place.ok_or(Failure::Stopped)?;
        let place = place.map_err(|_| Failure::Refused(Refused::Busy))?;
        let descriptors = self.launcher.descriptors.child();
        let descriptors = descriptors.ok_or(Failure::Refused(Refused::Busy))?;
        Ok((seat, (place, descriptors)))
    }

    /// Runs the recipe in an empty store, as a child behind a guard.
    async fn fill(
        &self,
        server: &Server,
        recipe: &Recipe,
        store: &Path,
        seat: &Seat,
    ) -> Result<(), Failure> {
        let failed = |why: String, output| Err(Failure::Failed(why, output));
        if store.to_str().is_none() {
            return failed("its path is not UTF-8".to_owned(), Vec::new());
        }
        let launch = recipe.launch(&server.launch, store);
        let name = format!("{}-prepare", server.name);
        let names = (&*server.tenant, &*name);
        let limits = Limits {
            stderr: ERRORS,
            ..server.limits
        };
        log_begin(server, recipe);
        let mut child = match Child::spawn(&self.launcher, names, &launch, &limits).await {
            Ok(child) => child,
            Err(error) if is_shortage(&error) => return Err(Failure::Refused(Refused::Busy)),
            Err(error) => return failed(error.to_string(), Vec::new()),
        };
        seat.started(child.pid());
        child.count_against(&(self.memory)(&server.tenant));
        let mut said = VecDeque::new();
        let ended = select! {
            () = self.stop.cancelled() => None,
            ended = timeout(LONGEST, ended(&mut child, &mut said)) => Some(ended),
        };
        match ended {
            Some(Ok(exit)) if exit.code == Some(0) => Ok(()),
            Some(Ok(exit)) if exit.is_shortage => Err(Failure::Refused(Refused::Busy)),
            Some(Ok(exit)) => {
                let why = match (exit.code, exit.signal) {
                    (Some(code), _) => format!("it ended with {code}"),
                    (None, signal) => format!("it ended by signal {}", signal.unwrap_or(0)),
                };
                failed(why, last_lines(&said, &exit.stderr_tail))
            }
            Some(Err(_)) => {
                let exit = child.kill().await;
                let why = format!("it did not end within {} s", LONGEST.as_secs());
                failed(why, last_lines(&said, &exit.stderr_tail))
            }
            None => {
                child.kill().await;
                Err(Failure::Stopped)
            }
        }
    }

    /// Prepares all `servers` in the background; starts the zygote, and removes old stores that none of
    /// them names, and leftovers of children.
    pub(crate) fn prepare_all(self: &Arc<Self>, servers: Vec<Arc<Server>>) {
        let mut named: HashMap<String, BTreeSet<(String, String)>> = HashMap::new();
        for server in &servers {
            if let Some(recipe) = &server.recipe {
                let name = (server.tenant.clone(), server.name.clone());
                let store = hex(&recipe.digest(&server.tenant, &server.launch.confinement));
                named.entry(store).or_default().insert(name);
            }
        }
        self.forget_replaced(&named);
        let named: HashSet<String> = named.into_keys().collect();
        let (stores, launcher) = (self.stores.clone(), self.launcher.clone());
        self.tracker.spawn_blocking(move || {
            launcher.zygote.start();
            let removed = stores.tidy(&named, KEPT);
            if removed > 0 {
                tracing::info!(removed, "removed old stores");
            }
            let removed = launcher.tidy();
            if removed > 0 {
                tracing::info!(
                    removed,
                    "removed private directories of children that are gone"
                );
            }
        });
        let round = self.round.fetch_add(1, Ordering::Relaxed) + 1;
        for server in servers {
            if server.recipe.is_none() {
                continue;
            }
            let (preparations, stop) = (Arc::clone(self), self.stop.clone());
            self.tracker.spawn(async move {
                let preparing = preparations.prepare(&server, round);
                _ = stop.run_until_cancelled(preparing).await;
            });
        }
    }

    /// Prepares a server. As long as there is no room it is tried again, unless there are others by then;
    /// after a failure the next caller tries again, and gets the error.
    async fn prepare(self: &Arc<Self>, server: &Arc<Server>, round: u64) {
        while let Err(Refused::Busy | Refused::Limit(_)) = self.prepared(server).await {
            sleep(self.wait.max(PAUSE)).await;
            if self.round.load(Ordering::Relaxed) != round {
                return;
            }
        }
    }

    /// Forgets the preparations that no server needs any more, and the servers that need others now.
    fn forget_replaced(&self, named: &HashMap<String, BTreeSet<(String, String)>>) {
        let mut flights = self.flights.write().unwrap_or_else(PoisonError::into_inner);
        flights.retain(|name, flight| {
            let wanted = named.get(name);
            let is_wanted =
                |server: &(String, String)| wanted.is_some_and(|wanted| wanted.contains(server));
            flight.servers.retain(is_wanted);
            let is_running = matches!(*flight.outcome.borrow(), Outcome::Running);
            is_running || !flight.servers.is_empty()
        });
    }

    /// Waits for the store that children of `server` start from; none for a server without recipe.
    ///
    /// # Errors
    ///
    /// `Prepare` if it failed, also a short time ago; `Preparing` if it takes longer than a start may;
    /// `Circuit` at once and `Busy` after `spawn.wait` if it must not be tried again yet; `Limit` if the
    /// tenant has too many children, `Busy` if the gateway has.
    pub(crate) async fn prepared(
        self: &Arc<Self>,
        server: &Arc<Server>,
    ) -> Result<Option<Arc<Ready>>, Refused> {
        let Some(recipe) = &server.recipe else {
            return Ok(None);
        };
        let name = hex(&recipe.digest(&server.tenant, &server.launch.confinement));
        self.check_paths(server, recipe, &name).await?;
        let mut until = None;
        loop {
            match self.settled(server, recipe, &name, &mut until).await? {
                // A server of another tenant began it, within the limits of that one, and with its paths.
                Outcome::Failed(tenant, ..) | Outcome::Refused(tenant, _)
                    if tenant != server.tenant => {}
                Outcome::Ready(ready) => return Ok(Some(ready)),
                Outcome::Failed(_, failure, _) => return self.failed(server, failure),
                Outcome::Refused(_, refused) => return self.circuits.refuse(refused),
                Outcome::Running | Outcome::Stopped => {
                    return self.circuits.refuse(Refused::Prepare);
                }
            }
        }
    }

    /// Refuses a server whose preparation another one could replace. Each is checked: one that may write to the
    /// program of the recipe may have begun it, or filled the store.
    async fn check_paths(
        &self,
        server: &Server,
        recipe: &Recipe,
        name: &str,
    ) -> Result<(), Refused> {
        let launch = recipe.launch(&server.launch, &self.launcher.prepared.join(name));
        let checked = self.launcher.check_paths(&server.tenant, &launch).await;
        let Err(error) = checked else { return Ok(()) };
        if is_shortage(&error) {
            return self.circuits.refuse(Refused::Busy);
        }
        let (stage, why, output) = (Stage::Prepare, error.to_string(), Vec::new());
        // Its clients may come as often as they like.
        let known = self.circuits.failures.of(server);
        if known.is_none_or(|known| known.why != why) {
            log_failure(server, recipe, &why);
        }
        self.failed(server, Arc::new(StartFailure { stage, why, output }))
    }

    /// Waits for the outcome of the preparation that is under way, or of a new one; `until` is the end of this and
    /// later waits, from the first on.
    async fn settled(
        self: &Arc<Self>,
        server: &Arc<Server>,
        recipe: &Recipe,
        name: &str,
        until: &mut Option<Instant>,
    ) -> Result<Outcome, Refused> {
        let deadline = Instant::now() + self.wait;
        let mut outcome = loop {
            match self.join(server, recipe, name) {
                Joined::Flight(outcome) => break outcome,
                Joined::Failed(failure) => return self.failed(server, failure),
                Joined::Not(Verdict::Open(left)) => {
                    return self.circuits.refuse(Refused::Circuit(left));
                }
                Joined::Not(Verdict::After(wait)) if Instant::now() + wait > deadline => {
                    sleep_until(deadline).await;
                    return self.circuits.refuse(Refused::Busy);
                }
                Joined::Not(Verdict::After(wait)) => sleep(wait).await,
                Joined::Not(Verdict::Now) => {}
            }
        };
        let settled = outcome.wait_for(|outcome| !matches!(outcome, Outcome::Running));
        // It goes on, and a client that comes again finds it done.
        let limit = match server.clocks.start {
            Duration::ZERO => LONGEST,
            start => start,
        };
        let until = *until.get_or_insert_with(|| Instant::now() + limit);
        let Ok(settled) = timeout_at(until, settled).await else {
            return self.circuits.refuse(Refused::Preparing);
        };
        Ok(settled.map_or(Outcome::Stopped, |settled| settled.clone()))
    }

    /// Refuses the start of a server whose preparation failed.
    fn failed<T>(&self, server: &Server, failure: Arc<StartFailure>) -> Result<T, Refused> {
        let names = (server.tenant.as_str(), server.name.as_str());
        self.circuits.failures.note(names, failure);
        self.circuits.refuse(Refused::Prepare)
    }

    /// Joins the preparation that is under way or has succeeded, or begins a new one.
    fn join(self: &Arc<Self>, server: &Arc<Server>, recipe: &Recipe, name: &str) -> Joined {
        let mut flights = self.flights.write().unwrap_or_else(PoisonError::into_inner);
        let asker = (server.tenant.clone(), server.name.clone());
        let mut servers = BTreeSet::new();
        if let Some(flight) = flights.get_mut(name) {
            flight.servers.insert(asker.clone());
            let is_over = match &*flight.outcome.borrow() {
                Outcome::Ready(_) => false,
                Outcome::Failed(_, failure, until)
                    if Instant::now() < *until && flight.tenant == server.tenant =>
                {
                    return Joined::Failed(Arc::clone(failure));
                }
                Outcome::Failed(..) | Outcome::Refused(..) | Outcome::Stopped => true,
                // The task ended without an outcome.
                Outcome::Running => flight.outcome.has_changed().is_err(),
            };
            if !is_over {
                // One that has a slot, or is over, wants no other.
                if !flight.slot.is_closed() && flight.lines.insert(server.tenant.clone()) {
                    self.stand_in_line(&server.tenant, flight.slot.clone());
                }
                return Joined::Flight(flight.outcome.clone());
            }
            servers.clone_from(&flight.servers);
        }
        let spec = spec(server);
        let attempt = match self.circuits.try_start(&spec, None) {
            Ok(attempt) => attempt,
            Err(not) => return Joined::Not(not),
        };
        servers.insert(asker);
        let (settle, outcome) = watch::channel(Outcome::Running);
        let (slot, given) = mpsc::channel(1);
        let flight = Flight {
            outcome: outcome.clone(),
            subject: recipe.subject().to_owned(),
            tenant: server.tenant.clone(),
            servers,
            lines: BTreeSet::from([server.tenant.clone()]),
            slot,
        };
        flights.insert(name.to_owned(), flight);
        let (preparations, server) = (Arc::clone(self), Arc::clone(server));
        let name = name.to_owned();
        self.tracker.spawn(async move {
            let outcome = preparations.run(&server, &spec, &name, given).await;
            // Before the outcome, for those that it makes try again.
            drop(attempt);
            settle.send_replace(outcome);
        });
        Joined::Flight(outcome)
    }

    /// Runs a preparation to its outcome.
    async fn run(
        &self,
        server: &Server,
        spec: &Spec,
        name: &str,
        given: mpsc::Receiver<StartSlot>,
    ) -> Outcome {
        let Some(recipe) = &server.recipe else {
            return Outcome::Stopped;
        };
        let (began, subject) = (Instant::now(), recipe.subject());
        // Without the wait for a slot.
        let mut filling = began;
        let made = self.make((server, recipe), name, given, &mut filling).await;
        let seconds = began.elapsed().as_secs_f64();
        match made {
            Ok((ready, was_there)) => {
                self.circuits.succeeded(spec, None);
                let version = ready.found.version.as_deref();
                tracing::info!(
                                    target: PREPARATIONS,
                {
                                    tenant.id = server.tenant,
                                    server.name = server.name,
                                    subject,
                                    version,
                                    was_there,
                                    seconds
                },
                                    "prepared"
                                );
                Outcome::Ready(Arc::new(ready))
            }
            // Not failures of the server.
            Err(Failure::Stopped) => Outcome::Stopped,
            Err(Failure::Refused(refused)) => Outcome::Refused(server.tenant.clone(), refused),
            Err(Failure::Failed(why, output)) => {
                tracing::warn!(
                                    target: PREPARATIONS,
                {
                                    tenant.id = server.tenant,
                                    server.name = server.name,
                                    subject,
                                    why,
                                    output = output.join("\n"),
                                    seconds
                },
                                    "cannot prepare"
                                );
                self.circuits.count_failure(spec, None);
                let (stage, took) = (Stage::Prepare, filling.elapsed());
                let remembered = if took < SLOW { Duration::ZERO } else { took };
                let until = Instant::now() + remembered.min(REMEMBERED);
                let failure = Arc::new(StartFailure { stage, why, output });
                Outcome::Failed(server.tenant.clone(), failure, until)
            }
        }
    }
}

impl Ready {
    /// Launch specification of a child of `server` from this store.
    pub(crate) fn launch(&self, server: &Server, recipe: &Recipe) -> Launch {
        let program = self.found.program.as_deref();
        server.launch.prepared(recipe, program, &self.store.path)
    }
}

/// Runs work on files; an error fails the preparation.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, Failure> {
    let failed = |why| Failure::Failed(why, Vec::new());
    match spawn_blocking(work).await {
        Ok(done) => done.map_err(failed),
        Err(error) => Err(failed(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::super::preparations::*;
    use crate::backend::starter::tests::{preparations, server, server_of, starter};

    fn store_name(server: &Server) -> String {
        let recipe = server.recipe.as_ref().unwrap();
        hex(&recipe.digest(&server.tenant, &server.launch.confinement))
    }

    /// It counted as a failure of the server, and was remembered.
    #[tokio::test]
    async fn a_preparation_without_a_process_is_no_failure_of_its_server() {
        let (starter, _work) = starter(1);
        let preparations = preparations(&starter);
        preparations.launcher.zygote.starve();
        let server = server("prepare: [sh, -c, exit 0]");
        let refused = preparations.prepared(&server).await.err();
        assert!(matches!(refused, Some(Refused::Busy)), "{refused:?}");
    }

    /// The files of its store, which may be very many, were sealed or removed beside the bounds of all children.
    #[test]
    fn a_preparation_counts_until_its_store_is_complete() {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        // One thread for files, which the test takes.
        let runtime = runtime.enable_all().max_blocking_threads(1);
        runtime.build().unwrap().block_on(async {
            let (starter, work) = starter(1);
            let preparations = preparations(&starter);
            let (began, go) = (work.path().join("began"), work.path().join("go"));
            let (ready, waits) = (began.display(), go.display());
            let server = server(&format!(
                "prepare: [sh, -c, \"echo $$PPID > {ready}; until [ -e {waits} ]; do sleep 0.01; done\"]"
            ));
            let observed = async {
                let guard = loop {
                    let said = std::fs::read_to_string(&began).unwrap_or_default();
                    if let Some(guard) = said.strip_suffix('\n') {
                        break format!("/proc/{guard}");
                    }
                    sleep(Duration::from_millis(1)).await;
                };
                let (go_on, gate) = std::sync::mpsc::channel::<()>();
                let taken = spawn_blocking(move || gate.recv().is_err());
                std::fs::write(&go, "").unwrap();
                while Path::new(&guard).exists() {
                    sleep(Duration::from_millis(1)).await;
                }
                let place = Box::pin(preparations.registry.seats.place("a", false));
                assert!(futures_util::poll!(place).is_pending(), "it was given up");
                drop(go_on);
                taken.await.unwrap()
            };
            let both = async { tokio::join!(preparations.prepared(&server), observed) };
            let (prepared, _) = timeout(Duration::from_secs(20), both).await.unwrap();
            assert!(prepared.is_ok());
        });
    }

    /// Its clients got the error of another tenant's server, with the path or the limit that had caused it.
    #[tokio::test]
    async fn a_preparation_that_failed_for_another_tenant_is_tried_for_this_one() {
        let (starter, _work) = starter(1);
        let preparations = preparations(&starter);
        let server = server("prepare: [sh, -c, exit 0]");
        let name = store_name(&server);
        let (settle, outcome) = watch::channel(Outcome::Running);
        let flight = Flight {
            outcome,
            subject: String::new(),
            tenant: "b".to_owned(),
            servers: BTreeSet::new(),
            lines: BTreeSet::new(),
            slot: mpsc::channel(1).0,
        };
        preparations.flights.write().unwrap().insert(name, flight);
        let failing = async {
            while settle.receiver_count() < 2 {
                tokio::task::yield_now().await;
            }
            let failure = StartFailure {
                stage: Stage::Prepare,
                why: "its own path".to_owned(),
                output: Vec::new(),
            };
            let until = Instant::now() + REMEMBERED;
            settle.send_replace(Outcome::Failed("b".to_owned(), Arc::new(failure), until));
        };
        let both = async { tokio::join!(preparations.prepared(&server), failing) };
        let (prepared, ()) = timeout(Duration::from_secs(20), both).await.unwrap();
        assert!(prepared.is_ok_and(|ready| ready.is_some()));
        assert!(preparations.circuits.failures.of(&server).is_none());
    }

    /// It waited for the slots of the tenant that had begun it, which others of that one's preparations had.
    #[tokio::test]
    async fn a_preparation_stands_in_the_lines_of_all_tenants_that_wait_for_it() {
        let (starter, _work) = starter(1);
        let mut preparations = preparations(&starter);
        let lapse = Lapse {
            after: LONGEST,
            tracker: TaskTracker::new(),
        };
        Arc::get_mut(&mut preparations).unwrap().slots = StartSlots::new(PARALLEL, lapse);
        let mut held = Vec::new();
        while let Some(slot) = preparations.slots.take("b").now_or_never() {
            held.push(slot);
        }
        let [first, own] = ["b", "a"].map(|tenant| server_of(tenant, "prepare: [sh, -c, exit 0]"));
        assert_eq!(store_name(&first), store_name(&own));
        let mut waiting = Box::pin(preparations.prepared(&first));
        while preparations.flights.read().unwrap().is_empty() {
            assert!((&mut waiting).now_or_never().is_none());
            tokio::task::yield_now().await;
        }
        let both = async { tokio::join!(preparations.prepared(&own), waiting) };
        let (prepared, of_first) = timeout(Duration::from_secs(20), both).await.unwrap();
        assert!(prepared.is_ok_and(|ready| ready.is_some()));
        assert!(of_first.is_ok_and(|ready| ready.is_some()));
    }

    /// It took a slot that others waited for, for nothing.
    #[tokio::test]
    async fn a_preparation_that_is_over_stands_in_no_line() {
        let (starter, _work) = starter(1);
        let preparations = preparations(&starter);
        let server = server("prepare: [sh, -c, exit 0]");
        let name = store_name(&server);
        let (store, found) = (preparations.stores.begin(&name).unwrap(), Found::default());
        let ready = Outcome::Ready(Arc::new(Ready { store, found }));
        let flight = Flight {
            outcome: watch::channel(ready).1,
            subject: String::new(),
            tenant: "b".to_owned(),
            servers: BTreeSet::new(),
            lines: BTreeSet::new(),
            slot: mpsc::channel(1).0,
        };
        let recipe = server.recipe.as_ref().unwrap();
        let flights = || preparations.flights.write().unwrap();
        flights().insert(name.clone(), flight);
        let joined = preparations.join(&server, recipe, &name);
        assert!(matches!(joined, Joined::Flight(_)));
        assert!(flights()[&name].lines.is_empty());
        assert!(preparations.tracker.is_empty());
    }

    /// The program of the first one's preparation was its own to replace, and became that of the others. Theirs is
    /// another store now, and the program is still one that it may replace.
    #[tokio::test]
    async fn a_shared_store_is_of_use_only_to_those_who_could_have_filled_it() {
        let (starter, _work) = starter(1);
        let preparations = preparations(&starter);
        let shared = tempfile::tempdir().unwrap();
        let shared = std::fs::canonicalize(shared.path()).unwrap();
        let dir = shared.display();
        let writer = server(&format!(
            "prepare: [{dir}/install], sandbox: {{write: [{dir}]}}"
        ));
        let other = server(&format!("prepare: [{dir}/install]"));
        let names = [store_name(&writer), store_name(&other)];
        assert_ne!(names[0], names[1]);
        for name in names {
            let store = preparations.stores.begin(&name).unwrap();
            let found = Found::default();
            let ready = Outcome::Ready(Arc::new(Ready { store, found }));
            let flight = Flight {
                outcome: watch::channel(ready).1,
                subject: String::new(),
                tenant: "a".to_owned(),
                servers: BTreeSet::new(),
                lines: BTreeSet::new(),
                slot: mpsc::channel(1).0,
            };
            preparations.flights.write().unwrap().insert(name, flight);
        }
        assert!(preparations.prepared(&other).await.is_ok());
        let sandbox = &preparations.launcher.sandbox;
        let written = Arc::new(BTreeSet::from([shared]));
        sandbox.know_written(move || Arc::clone(&written));
        assert!(preparations.prepared(&writer).await.is_ok());
        let refused = preparations.prepared(&other).await.err();
        assert!(matches!(refused, Some(Refused::Prepare)), "{refused:?}");
        let why = preparations.circuits.failures.of(&other).unwrap();
        assert!(why.why.contains("/install lies in a directory"), "{why:?}");
    }
}

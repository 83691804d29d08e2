//! Starts of children: within the limits of the gateway, the tenant and the server's circuit.
//!
//! Not here: the choice of a child for a session (`pool`), and the process itself (`child`).

use std::{borrow::Cow, future::pending, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::task::TaskTracker;

use super::{
    admission::{
        Attempt, Cause, Circuits, Lapse, Refused, Spec, Stage, StartFailure, StartSlot, StartSlots,
        Verdict, is_shortage, spec,
    },
    child::{CapacityPlace, Child, Entry, Launcher, Owner, Registry, Seat, TenantMemory, calm},
    delivery::{SecretSource, deliver},
    prepare::Ready,
};
use crate::{
    base::budget::{Drawn, Turns},
    config::gateway,
    declare::Server,
    telemetry::{ChildState, Metrics, TraceContext, Traces, traces::CHILD_START},
};

/// Starts children within the limits of the gateway.
pub(super) struct Starter {
    launcher: Launcher,
    /// Starts under way.
    slots: StartSlots,
    /// Turns of warm children until they are up: otherwise all of them would boot at once after a restart, and no child
    /// of a client beside them in time.
    warm: Turns,
    /// The end of slots and of these turns by themselves.
    lapse: Lapse,
    circuits: Arc<Circuits>,
    memory: TenantMemory,
    secrets: SecretSource,
    /// Children that run.
    pub(super) registry: Arc<Registry>,
    pub(super) metrics: Arc<Metrics>,
    traces: Traces,
}

/// What a child is started for.
#[derive(Default)]
pub(crate) struct Occasion {
    /// What its first request comes from; none for a warm child.
    pub(crate) cause: Option<Cause>,
    /// The trace of the request.
    pub(crate) trace: Option<TraceContext>,
    /// Whether the client is one of the modern era.
    pub(crate) is_modern: bool,
    /// The one that it is for; none for a warm child, for which no other gives way.
    pub(crate) owner: Option<Owner>,
    /// The one whose secrets it gets; none for a warm child, and where several people share it.
    pub(crate) holder: Option<Arc<str>>,
}

/// A started child.
pub(crate) struct Started {
    /// The child.
    pub(crate) child: Child,
    /// Its place, kept until the child is gone.
    pub(crate) place: Place,
}

/// Place of a child among all of the gateway, freed by being dropped.
pub(crate) struct Place {
    starter: Arc<Starter>,
    entry: Arc<Entry>,
    spec: Spec,
    seat: Seat,
    capacity: CapacityPlace,
    _descriptors: Drawn,
    /// Held until the child has answered its first request or failed to; that of a warm child, which is its turn, until
    /// it is up.
    slot: Option<StartSlot>,
    /// Held until then too, but by no warm child: its first request is the probe of a circuit.
    attempt: Option<Attempt>,
    /// Neither answered its first request nor failed to.
    is_starting: bool,
    /// Whether its first request waited for a session.
    is_warm: bool,
    /// What its first request comes from; none until then.
    cause: Option<Cause>,
    /// The trace of the request that it was started for.
    trace: Option<TraceContext>,
    /// The one whose secrets it gets.
    holder: Option<Arc<str>>,
}

impl Starter {
    /// Starts with no child.
    pub(super) fn new(
        launcher: Launcher,
        bounds: gateway::Spawn,
        circuits: Arc<Circuits>,
        (registry, memory, secrets): (Arc<Registry>, TenantMemory, SecretSource),
        (metrics, traces): (Arc<Metrics>, Traces),
        tracker: TaskTracker,
    ) -> Self {
        let lapse = Lapse {
            after: SLOT,
            tracker,
        };
        Self {
            launcher,
            slots: StartSlots::new(bounds.parallel, lapse.clone()),
            warm: Turns::new((bounds.parallel / 4).max(1)),
            lapse,
            circuits,
            memory,
            secrets,
            registry,
            metrics,
            traces,
        }
    }

    /// Waits for the turn of a warm child of `server`, before anything is taken for it; not during a backoff: a server
    /// that fails delays no other. It lapses whatever its start waits for.
    pub(super) async fn warm_turn(&self, server: &Server) -> StartSlot {
        if let Verdict::After(wait) = self.circuits.peek(&spec(server), None) {
            sleep(wait).await;
        }
        let turn = self.warm.take(&server.tenant).await;
        self.lapse.hold(turn, pending())
    }

    /// Starts a child as soon as there is room, from the prepared store if there is one.
    ///
    /// # Errors
    ///
    /// `Limit` and `Circuit` at once; `Busy` at the deadline; `Spawn`.
    pub(super) async fn start(
        self: &Arc<Self>,
        server: &Arc<Server>,
        ready: Option<&Ready>,
        restarts: u32,
        deadline: Instant,
        occasion: Occasion,
    ) -> Result<Started, Refused> {
        let spec = spec(server);
        let Occasion {
            cause,
            trace,
            owner,
            ..
        } = occasion;
        let (seats, tenant, is_warm) = (&self.registry.seats, &server.tenant, owner.is_none());
        let seat = match owner {
            Some(owner) => seats.take(tenant, &owner, server.room, deadline).await,
            None => seats.try_take(tenant, &Owner::Tenant, server.room),
        };
        let seat = match seat {
            Ok(seat) => seat,
            Err(full) => return self.circuits.refuse(Refused::Limit(full)),
        };
        let began = Instant::now();
        let (capacity, slot, attempt) = loop {
            // Without a slot during a backoff: a server that fails delays no other.
            match self.circuits.peek(&spec, cause.as_ref()) {
                Verdict::Now => {}
                Verdict::Open(left) => return self.circuits.refuse(Refused::Circuit(left)),
                Verdict::After(wait) if Instant::now() + wait > deadline => {
                    return self.circuits.refuse(Refused::Busy);
                }
                Verdict::After(wait) => sleep(wait).await,
            }
            let room = self.room(server, is_warm, (began, deadline)).await;
            let Some((capacity, slot)) = room else {
                return self.circuits.refuse(Refused::Busy);
            };
            // Failures of the meantime count.
            match self.circuits.try_start(&spec, cause.as_ref()) {
                Ok(attempt) => break (capacity, slot, attempt),
                Err(Verdict::Open(left)) => return self.circuits.refuse(Refused::Circuit(left)),
                Err(Verdict::After(_) | Verdict::Now) => {}
            }
        };
        let Some(descriptors) = self.launcher.descriptors.child() else {
            return self.circuits.refuse(Refused::Busy);
        };
        let entry = self.registry.add(server, occasion.holder.clone(), restarts);
        let place = Place {
            starter: Arc::clone(self),
            entry,
            spec,
            seat,
            capacity,
            _descriptors: descriptors,
            slot,
            attempt: Some(attempt),
            is_starting: true,
            is_warm: false,
            cause,
            trace,
            holder: occasion.holder,
        };
        self.spawn(server, ready, place).await
    }

    /// Waits for a place of the gateway until `deadline`, and then for a slot; none if there is none in time. A warm child
    /// takes no slot: it has its turn, and would wait in the line of its tenant's clients with it.
    async fn room(
        &self,
        server: &Server,
        is_warm: bool,
        (began, deadline): (Instant, Instant),
    ) -> Option<(CapacityPlace, Option<StartSlot>)> {
        let capacity = self.registry.seats.place(&server.tenant, is_warm);
        let capacity = timeout_at(deadline, capacity).await.ok()?;
        if is_warm {
            return Some((capacity, None));
        }
        // Who waits in line waits as long as a start may take, for those before it may take that.
        let in_line = deadline.max(began + server.clocks.start);
        let slot = timeout_at(in_line, self.slots.take(&server.tenant)).await;
        Some((capacity, Some(slot.ok()?)))
    }

    /// Starts a child in this place.
    pub(super) async fn spawn(
        &self,
        server: &Server,
        ready: Option<&Ready>,
        place: Place,
    ) -> Result<Started, Refused> {
        let mut launch = match (ready, &server.recipe) {
            (Some(ready), Some(recipe)) => Cow::Owned(ready.launch(server, recipe)),
            _ => Cow::Borrowed(&server.launch),
        };
        if !server.slots.is_empty() {
            match (self.secrets)(server, place.holder.as_deref()).await {
                Ok(delivery) => deliver(delivery, launch.to_mut(), &place.entry),
                Err(refused) => return self.circuits.refuse(refused),
            }
        }
        let names = (&*server.tenant, &*server.name);
        match Child::spawn(&self.launcher, names, &launch, &server.limits).await {
            Ok(mut child) => {
                child.count_against(&(self.memory)(&server.tenant));
                place.seat.started(child.pid());
                place.entry.started(child.pid(), child.stderr().clone());
                place.entry.keeps_files(child.private_files());
                self.metrics.children.add(1);
                Ok(Started { child, place })
            }
            Err(error) => {
                if is_shortage(&error) {
                    tracing::warn!(
                        tenant.id = server.tenant, server.name = server.name, %error,
                        "cannot start a child"
                    );
                    return self.circuits.refuse(Refused::Busy);
                }
                place.failed(&error.to_string());
                Err(Refused::Spawn)
            }
        }
    }
}

impl Started {
    /// Ends the attempt of a warm child, which waits for a session; its turn is over when the child is up, or lapses.
    pub(super) fn settle(&mut self, turn: StartSlot) {
        let Self { child, place } = self;
        let lapse = &place.starter.lapse;
        let slot = child.pid().map(|guard| lapse.hold(turn, calm(guard)));
        (place.slot, place.attempt) = (slot, None);
        place.is_warm = true;
    }
}

impl Place {
    /// Entry of the child in the registry.
    pub(crate) fn entry(&self) -> &Arc<Entry> {
        &self.entry
    }

    /// Records that the child answered its first request, and frees its slot.
    pub(crate) fn succeeded(&mut self) {
        if std::mem::take(&mut self.is_starting) {
            let circuits = &self.starter.circuits;
            circuits.succeeded(&self.spec, self.cause.as_ref());
            let [tenant, server] = self.entry.names();
            circuits.failures.forget((tenant, server));
            self.entry.set(ChildState::Ready);
            if !self.is_warm {
                let starts = &self.starter.metrics.child_start_duration;
                starts.record(self.entry.names(), self.entry.age());
                self.end_span(None);
            }
        }
        // After the state: the next start would be one too many in the list of children.
        (self.slot, self.attempt) = (None, None);
    }

    /// Records that the child was not started, and why.
    fn failed(mut self, why: &str) {
        self.fail(Stage::Start, why);
    }

    /// Whether the child has neither answered its first request nor failed to.
    pub(crate) fn is_starting(&self) -> bool {
        self.is_starting
    }

    /// Records that the child did not answer its first request, and why; counted once.
    pub(crate) fn fail(&mut self, stage: Stage, why: &str) {
        if std::mem::take(&mut self.is_starting) {
            let failure = StartFailure::new(stage, why, &self.entry.stderr());
            let [tenant, server] = self.entry.names();
            tracing::warn!(
                tenant.id = tenant,
                server.name = server,
                stage = <&str>::from(stage),
                why,
                stderr = failure.telling(),
                "a server could not be started"
            );
            let circuits = &self.starter.circuits;
            circuits.failures.note((tenant, server), Arc::new(failure));
            let cause = self.cause.as_ref().filter(|_| stage == Stage::Initialize);
            circuits.count_failure(&self.spec, cause);
            self.entry.set(ChildState::Stopping);
            self.end_span(Some("start_failed"));
        }
        (self.slot, self.attempt) = (None, None);
    }

    /// Records the span of the start, which has ended.
    fn end_span(&self, error: Option<&'static str>) {
        let (names, age) = (self.entry.names(), self.entry.age());
        let traces = &self.starter.traces;
        traces.ended(CHILD_START, names, self.trace.as_ref(), age, error);
    }

    /// A warm child gets its first request.
    pub(super) fn begin(&mut self, occasion: Occasion, attempt: Option<Attempt>) {
        (self.cause, self.attempt) = (occasion.cause, attempt);
        if let Some(owner) = occasion.owner {
            self.seat.pass_to(owner);
        }
    }

    /// The child is about to end for the sake of another caller.
    pub(crate) fn give_way(&self) {
        self.seat.leave();
        self.capacity.leave();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.starter.registry.remove(&self.entry);
    }
}

/// The time for which a start holds its slot: what it does then, if it still does anything, others need
/// not wait for.
pub(super) const SLOT: Duration = Duration::from_secs(5);

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeMap;

    use tokio_util::sync::CancellationToken;

    use super::super::{
        child::{Ambient, ChildSeats, Zygote},
        prepare::Preparations,
        sandbox::Sandbox,
        starter::*,
    };
    use crate::{
        base::budget::{Budget, Descriptors},
        config::Format,
        manifest::reader::parse,
    };

    /// A server with these keys, besides its command, which reads its stdin to the end.
    pub(in crate::backend) fn server(keys: &str) -> Arc<Server> {
        server_of("a", keys)
    }

    /// The same, of this tenant.
    pub(in crate::backend) fn server_of(tenant: &str, keys: &str) -> Arc<Server> {
        server_with(tenant, &format!("command: cat, {keys}"))
    }

    /// A server of this tenant with these keys alone.
    pub(in crate::backend) fn server_with(tenant: &str, keys: &str) -> Arc<Server> {
        let text =
            format!("tenants: {{{tenant}: {{auth: {{mode: none}}, servers: {{x: {{{keys}}}}}}}}}");
        let manifest = parse("F", &text, Format::Yaml, &BTreeMap::new()).unwrap();
        manifest.catalog.find(tenant, "x").unwrap().1
    }

    /// A starter of real children, with room for one slot and so many of them.
    #[expect(
        clippy::disallowed_methods,
        reason = "a test finds its programs as the gateway does"
    )]
    pub(in crate::backend) fn starter(children: usize) -> (Arc<Starter>, tempfile::TempDir) {
        let work = tempfile::tempdir().unwrap();
        let own = std::env::current_exe().unwrap();
        let binary = own.parent().unwrap().parent().unwrap().join("lockgate");
        let launcher = Launcher {
            zygote: Arc::new(Zygote::new(binary)),
            ambient: Ambient {
                path: std::env::var_os("PATH"),
                cwd: "/".into(),
                ..Ambient::default()
            },
            work: work.path().into(),
            prepared: work.path().join("prepared"),
            sandbox: Arc::new(Sandbox::none()),
            descriptors: Descriptors::new(10_000),
        };
        let metrics = Arc::new(Metrics::new(None).unwrap());
        let random = Arc::new(aws_lc_rs::rand::SystemRandom::new());
        let bounds = gateway::Spawn {
            parallel: 1,
            wait: Duration::from_secs(1),
            children,
        };
        let memory = Budget::new(1 << 30);
        let sources: (_, TenantMemory, SecretSource) = (
            Arc::new(Registry::new(
                ChildSeats::new(children).0,
                Arc::clone(&metrics),
            )),
            Arc::new(move |_: &str| memory.share()),
            Arc::new(|_: &Server, _: Option<&str>| Box::pin(async { Err(Refused::Missing) })),
        );
        let starter = Starter::new(
            launcher,
            bounds,
            Arc::new(Circuits::new(random, Arc::clone(&metrics))),
            sources,
            (metrics, Traces::default()),
            TaskTracker::new(),
        );
        (Arc::new(starter), work)
    }

    pub(in crate::backend) fn preparations(starter: &Starter) -> Arc<Preparations> {
        Arc::new(Preparations::new(
            starter.launcher.clone(),
            Arc::clone(&starter.circuits),
            (Arc::clone(&starter.registry), Arc::clone(&starter.memory)),
            Duration::ZERO,
            TaskTracker::new(),
            CancellationToken::new(),
        ))
    }

    /// It waited for a slot as well, which a start may hold for much longer than `spawn.wait`.
    #[tokio::test]
    async fn a_start_without_room_is_refused_at_its_deadline() {
        let (starter, _work) = starter(0);
        let began = Instant::now();
        let _slot = starter.slots.take("a").await;
        let occasion = Occasion {
            owner: Some(Owner::Tenant),
            ..Occasion::default()
        };
        let (deadline, server) = (began + SLOT / 10, server("clocks: {start: 60s}"));
        let started = starter.start(&server, None, 0, deadline, occasion).await;
        assert!(matches!(started.err(), Some(Refused::Busy)));
        assert!(Instant::now() >= deadline);
        assert!(began.elapsed() < SLOT, "it waited until the slot lapsed");
    }

    /// It stood behind the clients of its tenant for as long as a start may take, with a turn that all tenants need.
    #[tokio::test]
    async fn a_warm_child_stands_in_no_line_of_clients() {
        let (starter, _work) = starter(1);
        let (began, server) = (Instant::now(), server("warm: 1"));
        let _slot = starter.slots.take("a").await;
        let turn = starter.warm_turn(&server).await;
        let (deadline, occasion) = (began + SLOT, Occasion::default());
        let started = starter.start(&server, None, 0, deadline, occasion).await;
        assert!(began.elapsed() < SLOT, "it waited until the slot lapsed");
        started.ok().unwrap().settle(turn);
    }

    /// It was held until the process was there, and no warm child of another tenant began.
    #[tokio::test]
    async fn the_turn_of_a_warm_child_lapses_before_its_process_is_there() {
        let (mut starter, _work) = starter(1);
        Arc::get_mut(&mut starter).unwrap().lapse.after = SLOT / 100;
        let [first, second] = ["a", "b"].map(|tenant| server_of(tenant, "warm: 1"));
        let _turn = starter.warm_turn(&first).await;
        let next = starter.warm_turn(&second);
        let next = tokio::time::timeout(SLOT * 4, next).await;
        assert!(next.is_ok(), "it waits for the first");
    }
}

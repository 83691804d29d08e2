//! Registry of children: the state and the usage of each, and requests to restart it.
//!
//! The owner of a child writes its entry; metrics, quotas and the administration API read it. Not
//! here: starting and stopping children (`pool`, `hub`).

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    sync::{
        Arc, OnceLock, PoisonError, RwLock, RwLockWriteGuard,
        atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::stderr::Tail;
use crate::{
    declare::{Full, Room, Server},
    telemetry::{ChildState, Metrics},
};

/// All children of the gateway.
pub(crate) struct Registry {
    entries: RwLock<BTreeMap<u64, Arc<Entry>>>,
    /// Seats of each tenant by their numbers, with the guards whose memory is measured.
    seats: RwLock<HashMap<String, BTreeMap<u64, Option<u32>>>>,
    /// Resident bytes of the children of each tenant with a memory quota, as last measured.
    memory: RwLock<HashMap<String, u64>>,
    last: AtomicU64,
    last_seat: AtomicU64,
    metrics: Arc<Metrics>,
}

/// Place among the children of a tenant, of a server or of its preparation; freed by being dropped.
pub(crate) struct Seat {
    registry: Arc<Registry>,
    tenant: String,
    number: u64,
    /// Whether the memory of its child counts against a quota.
    is_measured: bool,
}

impl Seat {
    /// Sets the guard of its child, which has started.
    pub(crate) fn started(&self, guard: Option<u32>) {
        if self.is_measured {
            let mut seats = self.registry.seats();
            let seat = seats.get_mut(&self.tenant);
            if let Some(seat) = seat.and_then(|seats| seats.get_mut(&self.number)) {
                *seat = guard;
            }
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut seats = self.registry.seats();
        if let Some(taken) = seats.get_mut(&self.tenant) {
            taken.remove(&self.number);
            if taken.is_empty() {
                seats.remove(&self.tenant);
            }
        }
    }
}

/// Entry of one child.
pub(crate) struct Entry {
    number: u64,
    tenant: String,
    server: String,
    born: Instant,
    guard: AtomicU32,
    state: AtomicU8,
    calls: AtomicU32,
    restarts: u32,
    stderr: OnceLock<Tail>,
    metrics: Arc<Metrics>,
    restart: AtomicU8,
    /// Wakes the owner for a requested restart.
    wake: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

/// The mode of a restart: the child ends, and the next request starts another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Restart {
    /// After its calls have ended.
    Drain = 1,
    /// At once.
    Now = 2,
}

/// The status of a child, for administrators.
#[derive(Clone, Debug)]
pub(crate) struct ChildStatus {
    /// Number in this gateway, never reused.
    pub(crate) number: u64,
    /// Its tenant.
    pub(crate) tenant: String,
    /// Its server.
    pub(crate) server: String,
    /// Process id of its guard.
    pub(crate) guard: u32,
    /// Process id of the server itself, once it runs.
    pub(crate) pid: Option<u32>,
    /// Its state.
    pub(crate) state: ChildState,
    /// Time since its start.
    pub(crate) age: Duration,
    /// Children that its session or shared key lost before it.
    pub(crate) restarts: u32,
    /// Calls in flight.
    pub(crate) calls: u32,
    /// Resident memory of all its processes, in bytes.
    pub(crate) memory: u64,
    /// Processor time of all its processes.
    pub(crate) cpu: Duration,
    /// Last bytes of its stderr.
    pub(crate) stderr: Vec<u8>,
}

impl Registry {
    /// An empty registry.
    pub(crate) fn new(metrics: Arc<Metrics>) -> Self {
        Self {
            entries: RwLock::default(),
            seats: RwLock::default(),
            memory: RwLock::default(),
            last: AtomicU64::new(0),
            last_seat: AtomicU64::new(0),
            metrics,
        }
    }

    /// Adds a child that is about to start.
    pub(crate) fn add(&self, server: &Server, restarts: u32) -> Arc<Entry> {
        let entry = Arc::new(Entry {
            number: self.last.fetch_add(1, Ordering::Relaxed) + 1,
            tenant: server.tenant.clone(),
            server: server.name.clone(),
            born: Instant::now(),
            guard: AtomicU32::new(0),
            state: AtomicU8::new(ChildState::Starting as u8),
            calls: AtomicU32::new(0),
            restarts,
            stderr: OnceLock::new(),
            metrics: Arc::clone(&self.metrics),
            restart: AtomicU8::new(0),
            wake: OnceLock::new(),
        });
        self.metrics.child_state(None, Some(ChildState::Starting));
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        entries.insert(entry.number, Arc::clone(&entry));
        entry
    }

    /// Removes a child that is gone.
    pub(crate) fn remove(&self, entry: &Entry) {
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        if entries.remove(&entry.number).is_some() {
            self.metrics.child_state(Some(entry.state()), None);
        }
    }

    fn all(&self, is_selected: impl Fn(&Entry) -> bool) -> Vec<Arc<Entry>> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let selected = entries.values().filter(|entry| is_selected(entry));
        selected.cloned().collect()
    }

    fn seats(&self) -> RwLockWriteGuard<'_, HashMap<String, BTreeMap<u64, Option<u32>>>> {
        self.seats.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place among the children of a tenant, before a start.
    ///
    /// # Errors
    ///
    /// The quota of `room` that is used up.
    pub(crate) fn seat(self: &Arc<Self>, tenant: &str, room: Room) -> Result<Seat, Full> {
        if let Some(most) = room.memory
            && self.memory_of(tenant) > most.get()
        {
            return Err(Full::Memory(most));
        }
        let mut seats = self.seats();
        let taken = seats.get(tenant).map_or(0, BTreeMap::len);
        if let Some(most) = room.children
            && taken as u64 >= most.get()
        {
            return Err(Full::Children(most));
        }
        let number = self.last_seat.fetch_add(1, Ordering::Relaxed);
        let of_tenant = seats.entry(tenant.to_owned()).or_default();
        of_tenant.insert(number, None);
        Ok(Seat {
            registry: Arc::clone(self),
            tenant: tenant.to_owned(),
            number,
            is_measured: room.memory.is_some(),
        })
    }

    fn memory_of(&self, tenant: &str) -> u64 {
        let memory = self.memory.read().unwrap_or_else(PoisonError::into_inner);
        memory.get(tenant).copied().unwrap_or(0)
    }

    /// Measures the children of tenants with a memory quota, until the first of these tokens.
    pub(crate) async fn watch(self: Arc<Self>, [drain, halt]: [CancellationToken; 2]) {
        let mut pause = MEASURE_INTERVAL;
        loop {
            let pausing = drain.run_until_cancelled(sleep(pause));
            if halt.run_until_cancelled(pausing).await.flatten().is_none() {
                return;
            }
            let began = Instant::now();
            let registry = Arc::clone(&self);
            // Ends without being cancelled: reads of `/proc` do not block.
            _ = tokio::task::spawn_blocking(move || registry.measure_memory()).await;
            // At most a twentieth of a core, independent of the number of children.
            pause = MEASURE_INTERVAL.max(began.elapsed() * 20);
        }
    }

    fn measure_memory(&self) {
        let of_tenant = |(tenant, seats): (&String, &BTreeMap<u64, Option<u32>>)| {
            let guards: Vec<u32> = seats.values().copied().flatten().collect();
            (tenant.clone(), guards)
        };
        let seats: Vec<_> = self.seats().iter().map(of_tenant).collect();
        let used = |(tenant, guards): (String, Vec<u32>)| {
            let bytes = guards.into_iter().map(|guard| Usage::of(guard).memory);
            (tenant, bytes.sum::<u64>())
        };
        let memory = seats.into_iter().map(used).collect();
        *self.memory.write().unwrap_or_else(PoisonError::into_inner) = memory;
    }

    /// Lists all children, oldest first; reads `/proc`, so not for the path of a call.
    pub(crate) fn list(&self) -> Vec<ChildStatus> {
        let status = |entry: Arc<Entry>| {
            let guard = entry.guard.load(Ordering::Relaxed);
            let usage = Usage::of(guard);
            ChildStatus {
                number: entry.number,
                tenant: entry.tenant.clone(),
                server: entry.server.clone(),
                guard,
                pid: below(guard).first().copied(),
                state: entry.state(),
                age: entry.age(),
                restarts: entry.restarts,
                calls: entry.calls.load(Ordering::Relaxed),
                memory: usage.memory,
                cpu: usage.cpu,
                stderr: entry.stderr(),
            }
        };
        self.all(|_| true).into_iter().map(status).collect()
    }

    /// Ends the children of a server, now or after their calls; returns their number. Sessions continue
    /// with new ones.
    pub(crate) fn restart(&self, tenant: &str, server: &str, mode: Restart) -> usize {
        let selected = self.all(|entry| entry.tenant == tenant && entry.server == server);
        for entry in &selected {
            entry.restart.fetch_max(mode as u8, Ordering::Relaxed);
            if let Some(wake) = entry.wake.get() {
                wake();
            }
        }
        selected.len()
    }
}

impl Entry {
    /// Time since its start.
    pub(crate) fn age(&self) -> Duration {
        self.born.elapsed()
    }

    /// The tenant and the server of the child.
    pub(crate) fn names(&self) -> [&str; 2] {
        [&self.tenant, &self.server]
    }

    /// Sets the guard and the stderr of a started child.
    pub(crate) fn started(&self, guard: Option<u32>, stderr: Tail) {
        let guard = guard.unwrap_or_default();
        self.guard.store(guard, Ordering::Relaxed);
        _ = self.stderr.set(stderr);
    }

    /// The last bytes of its stderr.
    pub(crate) fn stderr(&self) -> Vec<u8> {
        self.stderr.get().map(Tail::bytes).unwrap_or_default()
    }

    /// Sets the function that wakes the owner of the child to look at [`Entry::restart`].
    pub(crate) fn on_restart(&self, wake: impl Fn() + Send + Sync + 'static) {
        _ = self.wake.set(Box::new(wake));
    }

    /// Requested restart.
    pub(crate) fn restart(&self) -> Option<Restart> {
        match self.restart.load(Ordering::Relaxed) {
            0 => None,
            1 => Some(Restart::Drain),
            _ => Some(Restart::Now),
        }
    }

    /// State of the child.
    pub(crate) fn state(&self) -> ChildState {
        state_of(self.state.load(Ordering::Relaxed))
    }

    /// Sets the state of the child.
    pub(crate) fn set(&self, state: ChildState) {
        let before = self.state.swap(state as u8, Ordering::Relaxed);
        if before != state as u8 {
            self.metrics
                .child_state(Some(state_of(before)), Some(state));
        }
    }

    /// Sets the number of calls; a stopping child stays in that state.
    pub(crate) fn set_calls(&self, calls: usize) {
        let calls = u32::try_from(calls).unwrap_or(u32::MAX);
        let before = self.calls.swap(calls, Ordering::Relaxed);
        match (before, calls, self.state()) {
            (_, _, ChildState::Stopping | ChildState::Starting) => {}
            (0, 1.., _) => self.set(ChildState::Busy),
            (1.., 0, _) => self.set(ChildState::Idle),
            _ => {}
        }
    }
}

/// Memory and processor time of a tree of processes.
#[derive(Default)]
struct Usage {
    memory: u64,
    cpu: Duration,
}

impl Usage {
    /// Usage of all processes below a guard.
    fn of(guard: u32) -> Self {
        let mut usage = Self::default();
        for pid in below(guard) {
            // `pid (name) state ppid …`: utime and stime are fields 14 and 15, rss is 24.
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
            let field = |number: usize| -> u64 {
                let text = rest.split_ascii_whitespace().nth(number - 3);
                text.and_then(|text| text.parse().ok()).unwrap_or(0)
            };
            let tick = Duration::from_secs(1) / 100;
            let ticks = u32::try_from(field(14) + field(15)).unwrap_or(u32::MAX);
            usage.cpu += tick.saturating_mul(ticks);
            usage.memory += field(24) * rustix::param::page_size() as u64;
        }
        usage
    }
}

/// Processes below `pid`, parents first.
fn below(pid: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let mut parents = vec![pid];
    while let Some(parent) = parents.pop() {
        let path = format!("/proc/{parent}/task/{parent}/children");
        let children = fs::read_to_string(path).unwrap_or_default();
        let children = children.split_ascii_whitespace();
        for child in children.filter_map(|text| text.parse().ok()) {
            found.push(child);
            parents.push(child);
        }
        if found.len() > MAX_PROCESSES {
            break;
        }
    }
    found
}

/// Interval of measuring memory for quotas.
const MEASURE_INTERVAL: Duration = Duration::from_secs(1);

/// The most processes that are measured in one tree.
const MAX_PROCESSES: usize = 4096;

/// Returns the state that was stored as a number.
fn state_of(number: u8) -> ChildState {
    ChildState::from_repr(number).unwrap_or(ChildState::Stopping)
}

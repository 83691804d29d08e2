//! Registry of children: the state and the usage of each, and requests to restart it.
//!
//! The owner of a child writes its entry; metrics and the administration API read it. Not here: places
//! among the children of a tenant (`seats`), starting and stopping children (`pool`, `hub`).

use std::{
    collections::BTreeMap,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{sync::Notify, task::spawn_blocking, time::Instant};

use super::{
    seats::ChildSeats,
    stderr::Tail,
    tokens::{AccessToken, ChildTokens, PrivateFiles},
    usage::{Usage, below},
};
use crate::{
    declare::{SecretChange, Server, TokenFrom},
    telemetry::{ChildState, Metrics},
};

/// All children of the gateway.
pub(crate) struct Registry {
    entries: RwLock<BTreeMap<u64, Arc<Entry>>>,
    /// Seats of their tenants.
    pub(crate) seats: Arc<ChildSeats>,
    last: AtomicU64,
    /// Told when a child may have an old access token.
    stale: Notify,
    metrics: Arc<Metrics>,
}

/// Entry of one child.
pub(crate) struct Entry {
    number: u64,
    /// The server as it was at the start.
    server: Arc<Server>,
    /// The one whose secrets it was started with.
    holder: Option<Arc<str>>,
    tokens: ChildTokens,
    born: Instant,
    guard: AtomicU32,
    state: AtomicU8,
    calls: AtomicU32,
    restarts: u32,
    metrics: Arc<Metrics>,
    restart: AtomicU8,
    /// Never locked across an await.
    present: RwLock<Present>,
}

/// What is known of the present process and owner of a child: a process that ends at the probe is replaced, and a warm
/// child passes to another owner.
#[derive(Default)]
struct Present {
    stderr: Option<Tail>,
    /// Wakes the owner for a requested restart.
    wake: Option<Box<dyn Fn() + Send + Sync>>,
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
    /// Last bytes of its stderr, which are not copied: children may be thousands.
    pub(crate) stderr: Tail,
}

impl Registry {
    /// An empty registry.
    pub(crate) fn new(seats: Arc<ChildSeats>, metrics: Arc<Metrics>) -> Self {
        Self {
            entries: RwLock::default(),
            seats,
            last: AtomicU64::new(0),
            stale: Notify::new(),
            metrics,
        }
    }

    /// Adds a child that is about to start.
    pub(crate) fn add(
        &self,
        server: &Arc<Server>,
        holder: Option<Arc<str>>,
        restarts: u32,
    ) -> Arc<Entry> {
        let entry = Arc::new(Entry {
            number: self.last.fetch_add(1, Ordering::Relaxed) + 1,
            server: Arc::clone(server),
            holder,
            tokens: ChildTokens::new(&server.slots),
            born: Instant::now(),
            guard: AtomicU32::new(0),
            state: AtomicU8::new(ChildState::Starting as u8),
            calls: AtomicU32::new(0),
            restarts,
            metrics: Arc::clone(&self.metrics),
            restart: AtomicU8::new(0),
            present: RwLock::default(),
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

    /// Lists children by the names of their tenants and servers, oldest first; reads `/proc`, so not for the path of a
    /// call.
    pub(crate) fn list(&self, is_wanted: impl Fn([&str; 2]) -> bool) -> Vec<ChildStatus> {
        let status = |entry: Arc<Entry>| {
            let guard = entry.guard.load(Ordering::Relaxed);
            let usage = Usage::of(guard);
            ChildStatus {
                number: entry.number,
                tenant: entry.server.tenant.clone(),
                server: entry.server.name.clone(),
                guard,
                pid: below(guard).first().copied(),
                state: entry.state(),
                age: entry.age(),
                restarts: entry.restarts,
                calls: entry.calls.load(Ordering::Relaxed),
                memory: usage.memory,
                cpu: usage.cpu,
                stderr: entry.tail(),
            }
        };
        let wanted = self.all(|entry| is_wanted(entry.names()));
        wanted.into_iter().map(status).collect()
    }

    /// Ends the children of a server, now or after their calls. Sessions continue with new ones.
    pub(crate) fn restart(&self, tenant: &str, server: &str, mode: Restart) {
        let selected = self.all(|entry| entry.names() == [tenant, server]);
        Self::end(&selected, mode);
    }

    /// Ends the children of a server that were started by another declaration of it, after their calls, if they
    /// differ in what children are started with.
    pub(crate) fn replace_old(&self, server: &Server) {
        let names = [&*server.tenant, &*server.name];
        let is_old = |entry: &Entry| entry.names() == names && entry.server.needs_restart(server);
        Self::end(&self.all(is_old), Restart::Drain);
    }

    /// The number of children of a server.
    pub(crate) fn count(&self, tenant: &str, server: &str) -> usize {
        self.all(|entry| entry.names() == [tenant, server]).len()
    }

    /// Ends the children that were started with secrets that have changed, after their calls if the change does not say
    /// now; those of a connection get the new access token first, where they can. `number` is that of the change.
    pub(crate) fn secret_changed(&self, number: i64, change: &SecretChange) {
        if let Some(upstream) = &change.upstream {
            let from = TokenFrom::Upstream(upstream.clone());
            let holder = change.holder.as_deref();
            let is_of =
                |entry: &Entry| entry.server.tenant == change.tenant && entry.holder() == holder;
            for entry in self.all(is_of) {
                entry.tokens.changed(&from, number);
            }
            return self.stale.notify_one();
        }
        let is_of = |entry: &Entry| match change.holder.as_deref() {
            Some(holder) => entry.holder.as_deref() == Some(holder),
            None => true,
        };
        let names = [&*change.tenant, &*change.server];
        let selected = self.all(|entry| entry.names() == names && is_of(entry));
        let mode = if change.is_now {
            Restart::Now
        } else {
            Restart::Drain
        };
        Self::end(&selected, mode);
    }

    /// Ends the children that were started with secrets, after their calls: what is stored is no longer known to be what
    /// they have.
    pub(crate) fn replace_those_with_secrets(&self) {
        let selected = self.all(|entry| !entry.server.slots.is_empty());
        Self::end(&selected, Restart::Drain);
    }

    /// Children with access tokens, which are renewed.
    pub(crate) fn with_tokens(&self) -> Vec<Arc<Entry>> {
        self.all(|entry| !entry.tokens.is_empty() && entry.restart().is_none())
    }

    /// Waits until a child may have an old access token.
    pub(crate) async fn stale(&self) {
        self.stale.notified().await;
    }

    fn end(selected: &[Arc<Entry>], mode: Restart) {
        for entry in selected {
            entry.end(mode);
        }
    }
}

impl Entry {
    /// Time since its start.
    pub(crate) fn age(&self) -> Duration {
        self.born.elapsed()
    }

    /// The tenant and the server of the child.
    pub(crate) fn names(&self) -> [&str; 2] {
        [&self.server.tenant, &self.server.name]
    }

    /// The one whose secrets it was started with.
    pub(crate) fn holder(&self) -> Option<&str> {
        self.holder.as_deref()
    }

    /// The origins whose access tokens it needs newer, or to be looked at.
    pub(crate) fn due_tokens(&self, now_ms: i64) -> Vec<TokenFrom> {
        self.tokens.due(now_ms)
    }

    /// Records an access token that the child is started with.
    pub(crate) fn started_with(&self, from: &TokenFrom, token: &AccessToken) {
        self.tokens.given(from, token);
    }

    /// Gives a running child a newer access token, and restarts it after its calls where that cannot be.
    ///
    /// Off the runtime's workers: the files are in a directory of the child, which may keep the file system busy.
    pub(crate) async fn renew(self: &Arc<Self>, from: &TokenFrom, token: &AccessToken) {
        let (entry, from, token) = (Arc::clone(self), from.clone(), token.clone());
        let renewed = spawn_blocking(move || entry.tokens.renew(&from, &token)).await;
        if renewed.is_ok_and(|is_renewed| !is_renewed) {
            self.drain();
        }
    }

    /// The access token could not be read: not again before `at_ms`.
    pub(crate) fn retry_token(&self, from: &TokenFrom, at_ms: i64) {
        self.tokens.retry(from, at_ms);
    }

    /// Restarts the child after its calls.
    pub(crate) fn drain(&self) {
        self.end(Restart::Drain);
    }

    fn end(&self, mode: Restart) {
        self.restart.fetch_max(mode as u8, Ordering::Relaxed);
        let present = self.present.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(wake) = &present.wake {
            wake();
        }
    }

    /// Changes what is known of its process or its owner.
    fn change(&self, change: impl FnOnce(&mut Present)) {
        change(&mut self.present.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// Sets the private directory of a started child.
    pub(crate) fn keeps_files(&self, files: Option<PrivateFiles>) {
        self.tokens.keeps(files);
    }

    /// Sets the guard and the stderr of a started child.
    pub(crate) fn started(&self, guard: Option<u32>, stderr: Tail) {
        let guard = guard.unwrap_or_default();
        self.guard.store(guard, Ordering::Relaxed);
        self.change(|present| present.stderr = Some(stderr));
    }

    /// The last bytes of its stderr.
    pub(crate) fn stderr(&self) -> Vec<u8> {
        self.tail().bytes()
    }

    /// Handle to them, which stays with this process if another one replaces it.
    fn tail(&self) -> Tail {
        let present = self.present.read().unwrap_or_else(PoisonError::into_inner);
        present.stderr.clone().unwrap_or_default()
    }

    /// Sets the function that wakes the owner of the child to look at [`Entry::restart`].
    pub(crate) fn on_restart(&self, wake: impl Fn() + Send + Sync + 'static) {
        self.change(|present| present.wake = Some(Box::new(wake)));
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

/// Returns the state that was stored as a number.
fn state_of(number: u8) -> ChildState {
    ChildState::from_repr(number).unwrap_or(ChildState::Stopping)
}

#[cfg(test)]
mod tests {
    use super::super::registry::*;
    use crate::backend::{child::stderr::Stderr, starter::tests::server};

    fn entry() -> Arc<Entry> {
        let metrics = Arc::new(Metrics::new(None).unwrap());
        let registry = Registry::new(ChildSeats::new(1).0, metrics);
        registry.add(&server("era: auto"), None, 0)
    }

    /// The complaint of the first one was shown for the second one.
    #[test]
    fn a_process_that_replaces_another_has_its_own_stderr() {
        let entry = entry();
        for (guard, said) in [(1, "what is that?"), (2, "API_KEY is not set")] {
            let mut stderr = Stderr::new("a-x".to_owned(), 100);
            entry.started(Some(guard), stderr.tail().clone());
            stderr.take(said.as_bytes());
            assert_eq!(entry.stderr(), said.as_bytes());
        }
    }

    #[test]
    fn children_without_secrets_stay_where_secrets_may_be_others() {
        let metrics = Arc::new(Metrics::new(None).unwrap());
        let registry = Registry::new(ChildSeats::new(1).0, metrics);
        let with = registry.add(&server("secrets: {KEY: {for: tenant}}"), None, 0);
        let without = registry.add(&server("era: auto"), None, 0);
        registry.replace_those_with_secrets();
        assert_eq!(with.restart(), Some(Restart::Drain));
        assert_eq!(without.restart(), None);
    }

    #[test]
    fn the_last_owner_of_a_child_is_woken_to_replace_it() {
        let entry = entry();
        let owners = [(); 2].map(|()| Arc::new(AtomicU32::new(0)));
        for owner in &owners {
            let owner = Arc::clone(owner);
            entry.on_restart(move || _ = owner.fetch_add(1, Ordering::Relaxed));
        }
        entry.drain();
        assert_eq!(owners.map(|owner| owner.load(Ordering::Relaxed)), [0, 1]);
    }
}

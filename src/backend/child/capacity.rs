//! Capacity of the gateway: the number of its children, shared out to tenants.
//!
//! A tenant may have all that no other wants. Of those in line, the one with the fewest children is first, and
//! one with more gives up a child for it. Not here: which child that is (`hub::reclaim`).

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, PoisonError, RwLock, RwLockWriteGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    select,
    sync::{mpsc, oneshot},
    time::sleep,
};

/// Places for the children of all tenants.
pub(super) struct Capacity {
    tenants: RwLock<Tenants>,
    wanted: mpsc::Sender<Wanted>,
}

struct Tenants {
    free: usize,
    /// Starts that have been in line.
    last: u64,
    /// Those with children, or in line.
    by_name: HashMap<String, Tenant>,
}

#[derive(Default)]
struct Tenant {
    /// Its places that are taken.
    taken: usize,
    /// Those of them whose child gives way.
    leaving: usize,
    /// Its starts that wait, in the order in which they came.
    line: BTreeMap<u64, oneshot::Sender<()>>,
}

/// A place that is taken, freed by being dropped.
pub(crate) struct CapacityPlace {
    capacity: Arc<Capacity>,
    tenant: String,
    is_leaving: AtomicBool,
}

/// A request for a child of others.
pub(crate) struct Wanted {
    /// Those that have more children, the ones with the most first.
    pub(crate) holders: Holders,
    /// Receives whether the child of one of them gives way.
    pub(crate) reply: oneshot::Sender<bool>,
}

/// The ones that a child is wanted of.
pub(crate) enum Holders {
    /// Callers of a tenant.
    Callers(String, Vec<Arc<str>>),
    /// Tenants.
    Tenants(Vec<String>),
}

/// A start in line, which leaves it by being dropped.
struct InLine {
    capacity: Arc<Capacity>,
    tenant: String,
    number: u64,
    /// Whether its place is another value's to free.
    is_over: bool,
}

impl Capacity {
    /// Free places for `count` children, and where those of others are asked for.
    pub(super) fn new(count: usize, wanted: mpsc::Sender<Wanted>) -> Arc<Self> {
        let tenants = Tenants {
            free: count,
            last: 0,
            by_name: HashMap::new(),
        };
        Arc::new(Self {
            tenants: RwLock::new(tenants),
            wanted,
        })
    }

    /// Waits for a place for a child of `tenant`. Children of tenants that have more give way for it, but
    /// none for one that is kept warm.
    pub(super) async fn take(self: &Arc<Self>, tenant: &str, is_warm: bool) -> CapacityPlace {
        let (line, mut turn) = self.line_up(tenant);
        if is_warm {
            // The sender is in line until it is used.
            _ = turn.await;
            return line.place();
        }
        loop {
            let asked = async {
                sleep(if self.ask(&line).await { GIVEN } else { PAUSE }).await;
            };
            select! {
                biased;
                _ = &mut turn => return line.place(),
                () = asked => {}
            }
        }
    }

    fn line_up(self: &Arc<Self>, tenant: &str) -> (InLine, oneshot::Receiver<()>) {
        let (sender, turn) = oneshot::channel();
        let mut tenants = self.tenants();
        tenants.last += 1;
        let number = tenants.last;
        let of_tenant = tenants.by_name.entry(tenant.to_owned()).or_default();
        of_tenant.line.insert(number, sender);
        tenants.hand_out();
        let line = InLine {
            capacity: Arc::clone(self),
            tenant: tenant.to_owned(),
            number,
            is_over: false,
        };
        (line, turn)
    }

    /// Asks for a child of a tenant that has more; false if there is none, or all of its are in use.
    async fn ask(&self, line: &InLine) -> bool {
        let (reply, is_given) = oneshot::channel();
        let holders = Holders::Tenants(match self.tenants().holders(line) {
            holders if holders.is_empty() => return false,
            holders => holders,
        });
        let wanted = Wanted { holders, reply };
        self.wanted.try_send(wanted).is_ok() && is_given.await.unwrap_or(false)
    }

    fn tenants(&self) -> RwLockWriteGuard<'_, Tenants> {
        self.tenants.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what a tenant has; what is free then goes to those in line.
    fn change(&self, tenant: &str, change: impl FnOnce(&mut Tenant) -> usize) {
        let mut tenants = self.tenants();
        if let Some(of_tenant) = tenants.by_name.get_mut(tenant) {
            let freed = change(of_tenant);
            if of_tenant.taken == 0 && of_tenant.line.is_empty() {
                tenants.by_name.remove(tenant);
            }
            tenants.free += freed;
            tenants.hand_out();
        }
    }
}

impl Tenants {
    /// Gives what is free to those in line.
    fn hand_out(&mut self) {
        while self.free > 0 {
            let waiting = self.by_name.values_mut().filter_map(|tenant| {
                let first = *tenant.line.keys().next()?;
                Some(((tenant.taken, first), tenant))
            });
            let Some((_, tenant)) = waiting.min_by_key(|(order, _)| *order) else {
                return;
            };
            let first = tenant.line.pop_first();
            tenant.taken += 1;
            self.free -= 1;
            // One that has gone gives its place back.
            _ = first.map(|(_, sender)| sender.send(()));
        }
    }

    /// The tenants that have more children than the one of `line`, also after they have given one to it;
    /// those with the most first.
    fn holders(&self, line: &InLine) -> Vec<String> {
        let own = self.by_name.get(&line.tenant).map_or(0, |tenant| {
            tenant.taken + tenant.line.range(..=line.number).count()
        });
        let stays = |tenant: &Tenant| tenant.taken - tenant.leaving;
        let all = self.by_name.iter();
        let more = all.filter(|(_, tenant)| stays(tenant) > own);
        let mut more: Vec<_> = more.map(|(name, tenant)| (stays(tenant), name)).collect();
        more.sort_by_key(|(count, _)| Reverse(*count));
        more.into_iter().map(|(_, name)| name.clone()).collect()
    }
}

impl InLine {
    /// The place that it waited for.
    fn place(mut self) -> CapacityPlace {
        self.is_over = true;
        CapacityPlace {
            capacity: Arc::clone(&self.capacity),
            tenant: self.tenant.clone(),
            is_leaving: AtomicBool::new(false),
        }
    }
}

impl Drop for InLine {
    fn drop(&mut self) {
        let (number, is_over) = (self.number, self.is_over);
        self.capacity.change(&self.tenant, |tenant| {
            // One that is in line no more has been given a place.
            let is_given = tenant.line.remove(&number).is_none();
            let is_free = is_given && !is_over;
            tenant.taken -= usize::from(is_free);
            usize::from(is_free)
        });
    }
}

impl CapacityPlace {
    /// Its child gives way.
    pub(crate) fn leave(&self) {
        if !self.is_leaving.swap(true, Ordering::Relaxed) {
            self.capacity.change(&self.tenant, |tenant| {
                tenant.leaving += 1;
                0
            });
        }
    }
}

impl Drop for CapacityPlace {
    fn drop(&mut self) {
        let is_leaving = *self.is_leaving.get_mut();
        self.capacity.change(&self.tenant, |tenant| {
            tenant.taken -= 1;
            tenant.leaving -= usize::from(is_leaving);
            1
        });
    }
}

/// Pause before tenants are asked again: the calls of one have ended since.
const PAUSE: Duration = Duration::from_millis(250);
/// Pause after one has given up a child, which takes time to end.
const GIVEN: Duration = Duration::from_secs(5);

#[cfg(test)]
#[path = "../tests/capacity.rs"]
mod tests;

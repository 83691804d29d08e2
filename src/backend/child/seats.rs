//! Seats: places among the children of a tenant, shared out to its callers, and their memory.
//!
//! A caller may have all that nobody else wants. One that finds none asks for a seat of a caller that has
//! more, and waits until it is free. Not here: the share of the tenant (`capacity`), and which child gives way
//! (`hub::reclaim`).

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, PoisonError, RwLock, RwLockWriteGuard,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{Notify, mpsc, oneshot},
    time::{Instant, sleep, timeout_at},
};
use tokio_util::sync::CancellationToken;

use super::{
    capacity::{Capacity, CapacityPlace, Holders, Wanted},
    usage::Usage,
};
use crate::declare::{Full, Room};

/// The seats of all tenants.
pub(crate) struct ChildSeats {
    /// Children and preparations of all tenants together.
    capacity: Arc<Capacity>,
    tenants: RwLock<HashMap<String, TenantSeats>>,
    /// Resident bytes of the children of each tenant with a memory quota, as last measured.
    memory: RwLock<HashMap<String, u64>>,
    last: AtomicU64,
    wanted: mpsc::Sender<Wanted>,
}

/// The seats of one tenant.
#[derive(Default)]
struct TenantSeats {
    /// Those that are taken, by their numbers.
    taken: BTreeMap<u64, Taken>,
    /// Callers that wait for one, in the order in which they came.
    line: BTreeMap<u64, Owner>,
    /// Wakes those in line.
    freed: Arc<Notify>,
}

/// A seat that is taken.
struct Taken {
    owner: Owner,
    /// The guard of its child, whose memory is measured.
    guard: Option<u32>,
    /// Whether its child gives way to another caller.
    is_leaving: bool,
}

/// The one that a child is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Owner {
    /// No caller in particular: preparations, and children that all callers share.
    Tenant,
    /// The caller of this name.
    Caller(Arc<str>),
}

/// A seat of a tenant, freed by being dropped.
pub(crate) struct Seat {
    seats: Arc<ChildSeats>,
    tenant: String,
    number: u64,
    /// Whether the memory of its child counts against a quota.
    is_measured: bool,
}

/// A place in the line for a seat, left by being dropped.
struct InLine {
    seats: Arc<ChildSeats>,
    tenant: String,
    number: u64,
    freed: Arc<Notify>,
}

/// The most requests that wait for an answer; those beyond are refused.
const MAX_WANTED: usize = 64;

/// Interval of measuring memory for quotas.
const MEASURE_INTERVAL: Duration = Duration::from_secs(1);

impl ChildSeats {
    /// Seats of which none is taken, `room` of them in all, and the requests for those of others.
    pub(crate) fn new(room: usize) -> (Arc<Self>, mpsc::Receiver<Wanted>) {
        let (wanted, requests) = mpsc::channel(MAX_WANTED);
        let seats = Self {
            capacity: Capacity::new(room, wanted.clone()),
            tenants: RwLock::default(),
            memory: RwLock::default(),
            last: AtomicU64::new(0),
            wanted,
        };
        (Arc::new(seats), requests)
    }

    fn tenants(&self) -> RwLockWriteGuard<'_, HashMap<String, TenantSeats>> {
        self.tenants.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self) -> u64 {
        self.last.fetch_add(1, Ordering::Relaxed)
    }

    /// Waits for a place among the children of all tenants, of which tenants with more give one up, but
    /// not for a child that is kept warm.
    pub(crate) async fn place(&self, tenant: &str, is_warm: bool) -> CapacityPlace {
        self.capacity.take(tenant, is_warm).await
    }

    /// Takes a seat of a tenant for `owner`, before a start; until `deadline` it waits for the child of
    /// another caller that has more, if one gives way.
    ///
    /// # Errors
    ///
    /// The quota of `room` that is used up.
    pub(crate) async fn take(
        self: &Arc<Self>,
        tenant: &str,
        owner: &Owner,
        room: Room,
        deadline: Instant,
    ) -> Result<Seat, Full> {
        let full = match self.try_take(tenant, owner, room) {
            Ok(seat) => return Ok(seat),
            Err(full @ Full::Memory(_)) => return Err(full),
            Err(full @ Full::Children(_)) => full,
        };
        let line = self.line_up(tenant, owner);
        let (reply, answer) = oneshot::channel();
        let holders = self.holders(tenant, owner, line.number);
        let is_alone = holders.is_empty();
        let holders = Holders::Callers(tenant.to_owned(), holders);
        if is_alone || self.wanted.try_send(Wanted { holders, reply }).is_err() {
            return Err(full);
        }
        if !matches!(timeout_at(deadline, answer).await, Ok(Ok(true))) {
            return Err(full);
        }
        loop {
            let freed = line.freed.notified();
            if let Ok(seat) = self.take_if_free(tenant, owner, room, line.number) {
                return Ok(seat);
            }
            if timeout_at(deadline, freed).await.is_err() {
                return Err(full);
            }
        }
    }

    /// Takes a seat of a tenant for `owner`, if one is free.
    ///
    /// # Errors
    ///
    /// The quota of `room` that is used up.
    pub(crate) fn try_take(
        self: &Arc<Self>,
        tenant: &str,
        owner: &Owner,
        room: Room,
    ) -> Result<Seat, Full> {
        self.take_if_free(tenant, owner, room, u64::MAX)
    }

    /// Takes a seat that is free, and for which nobody waits that came before `number`.
    fn take_if_free(
        self: &Arc<Self>,
        tenant: &str,
        owner: &Owner,
        room: Room,
        number: u64,
    ) -> Result<Seat, Full> {
        if let Some(most) = room.memory
            && self.memory_of(tenant) > most.get()
        {
            return Err(Full::Memory(most));
        }
        let mut tenants = self.tenants();
        let of_tenant = tenants.get(tenant);
        let used = of_tenant.map_or(0, |seats| {
            seats.taken.len() + seats.line.range(..number).count()
        });
        if let Some(most) = room.children
            && used as u64 >= most.get()
        {
            return Err(Full::Children(most));
        }
        let number = self.next();
        let taken = Taken {
            owner: owner.clone(),
            guard: None,
            is_leaving: false,
        };
        let of_tenant = tenants.entry(tenant.to_owned()).or_default();
        of_tenant.taken.insert(number, taken);
        Ok(Seat {
            seats: Arc::clone(self),
            tenant: tenant.to_owned(),
            number,
            is_measured: room.memory.is_some(),
        })
    }

    fn line_up(self: &Arc<Self>, tenant: &str, owner: &Owner) -> InLine {
        let number = self.next();
        let mut tenants = self.tenants();
        let of_tenant = tenants.entry(tenant.to_owned()).or_default();
        of_tenant.line.insert(number, owner.clone());
        InLine {
            seats: Arc::clone(self),
            tenant: tenant.to_owned(),
            number,
            freed: Arc::clone(&of_tenant.freed),
        }
    }

    /// The callers of a tenant that have more children than `owner`, also after they have given one to it;
    /// those with the most first. `owner` is in line as `number`: starts of it that wait behind that one take
    /// nothing from it.
    fn holders(&self, tenant: &str, owner: &Owner, number: u64) -> Vec<Arc<str>> {
        let tenants = self.tenants();
        let Some(of_tenant) = tenants.get(tenant) else {
            return Vec::new();
        };
        let mut counts: BTreeMap<&Owner, usize> = BTreeMap::new();
        let stays = of_tenant.taken.values().filter(|taken| !taken.is_leaving);
        for owner in stays.map(|taken| &taken.owner) {
            *counts.entry(owner).or_default() += 1;
        }
        let earlier = of_tenant.line.range(..=number);
        let waiting = earlier.filter(|(_, waiting)| *waiting == owner).count();
        let own = counts.get(owner).copied().unwrap_or(0) + waiting;
        let mut more: Vec<_> = counts
            .into_iter()
            .filter_map(|(owner, count)| match owner {
                Owner::Caller(name) if count > own => Some((count, Arc::clone(name))),
                _ => None,
            })
            .collect();
        more.sort_by_key(|(count, _)| std::cmp::Reverse(*count));
        more.into_iter().map(|(_, name)| name).collect()
    }

    fn change(&self, tenant: &str, change: impl FnOnce(&mut TenantSeats)) {
        let mut tenants = self.tenants();
        if let Some(of_tenant) = tenants.get_mut(tenant) {
            change(of_tenant);
            of_tenant.freed.notify_waiters();
            if of_tenant.taken.is_empty() && of_tenant.line.is_empty() {
                tenants.remove(tenant);
            }
        }
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
            let seats = Arc::clone(&self);
            // Ends without being cancelled: reads of `/proc` do not block.
            _ = tokio::task::spawn_blocking(move || seats.measure_memory()).await;
            // At most a twentieth of a core, independent of the number of children.
            pause = MEASURE_INTERVAL.max(began.elapsed() * 20);
        }
    }

    fn measure_memory(&self) {
        let of_tenant = |(tenant, seats): (&String, &TenantSeats)| {
            let guards: Vec<u32> = seats.taken.values().filter_map(|seat| seat.guard).collect();
            (tenant.clone(), guards)
        };
        let guards: Vec<_> = self.tenants().iter().map(of_tenant).collect();
        let used = |(tenant, guards): (String, Vec<u32>)| {
            let bytes = guards.into_iter().map(|guard| Usage::of(guard).memory);
            (tenant, bytes.sum::<u64>())
        };
        let memory = guards.into_iter().map(used).collect();
        *self.memory.write().unwrap_or_else(PoisonError::into_inner) = memory;
    }
}

impl Seat {
    /// Sets the guard of its child, which has started.
    pub(crate) fn started(&self, guard: Option<u32>) {
        if self.is_measured {
            self.change(|taken| taken.guard = guard);
        }
    }

    /// Its child gives way to another caller.
    pub(crate) fn leave(&self) {
        self.change(|taken| taken.is_leaving = true);
    }

    /// Its child is for this one from now on.
    pub(crate) fn pass_to(&self, owner: Owner) {
        self.change(|taken| taken.owner = owner);
    }

    fn change(&self, change: impl FnOnce(&mut Taken)) {
        let mut tenants = self.seats.tenants();
        let of_tenant = tenants.get_mut(&self.tenant);
        if let Some(taken) = of_tenant.and_then(|seats| seats.taken.get_mut(&self.number)) {
            change(taken);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let number = self.number;
        self.seats.change(&self.tenant, |of_tenant| {
            of_tenant.taken.remove(&number);
        });
    }
}

impl Drop for InLine {
    fn drop(&mut self) {
        let number = self.number;
        self.seats.change(&self.tenant, |of_tenant| {
            of_tenant.line.remove(&number);
        });
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use futures_util::FutureExt;

    use super::super::seats::*;

    fn caller(name: &str) -> Owner {
        Owner::Caller(name.into())
    }

    fn room(children: u64) -> Room {
        Room {
            children: NonZeroU64::new(children),
            memory: None,
        }
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(10)
    }

    #[test]
    fn those_with_more_are_asked_and_the_one_with_the_most_first() {
        let (seats, _requests) = ChildSeats::new(100);
        let take = |owner: &Owner, count| {
            let seat = || seats.try_take("a", owner, room(20)).ok().unwrap();
            std::iter::repeat_with(seat).take(count).collect::<Vec<_>>()
        };
        let of_all = take(&Owner::Tenant, 9);
        let held =
            [("two", 2), ("three", 3), ("one", 1)].map(|(name, count)| take(&caller(name), count));
        let asked = |owner: &Owner| {
            let line = seats.line_up("a", owner);
            let holders = seats.holders("a", owner, line.number);
            drop(line);
            holders.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(asked(&caller("none")), ["three", "two"]);
        assert_eq!(asked(&caller("one")), ["three"]);
        assert!(asked(&caller("two")).is_empty(), "it would have fewer then");
        assert!(asked(&Owner::Tenant).is_empty());
        // One that waits already has that one as good as taken.
        let line = seats.line_up("a", &caller("none"));
        assert_eq!(asked(&caller("none")), ["three"]);
        // Those that come later do not count.
        let later = seats.line_up("a", &caller("none"));
        let holders = seats.holders("a", &caller("none"), line.number);
        assert_eq!(holders.len(), 2, "{holders:?}");
        drop(later);
        // A child that gives way is as good as gone.
        held[1][0].leave();
        assert!(asked(&caller("none")).is_empty());
        drop((of_all, held, line));
        assert!(seats.tenants().is_empty());
    }

    #[tokio::test]
    async fn a_seat_that_was_given_up_is_for_the_one_that_asked_first() {
        let (seats, mut requests) = ChildSeats::new(100);
        let (hog, full) = (caller("hog"), room(3));
        let mut held: Vec<Seat> =
            std::iter::from_fn(|| seats.try_take("a", &hog, full).ok()).collect();
        let [first, second] = ["first", "second"].map(caller);
        let mut first = Box::pin(seats.take("a", &first, full, soon()));
        assert!((&mut first).now_or_never().is_none());
        let mut second = Box::pin(seats.take("a", &second, full, soon()));
        assert!((&mut second).now_or_never().is_none());
        for _ in 0..2 {
            let wanted = requests.recv().await.unwrap();
            let Holders::Callers(tenant, callers) = wanted.holders else {
                panic!("nobody wants another tenant's");
            };
            assert_eq!((&*tenant, &*callers), ("a", &["hog".into()][..]));
            wanted.reply.send(true).unwrap();
        }
        assert!((&mut second).now_or_never().is_none());
        assert!((&mut first).now_or_never().is_none());
        held.pop();
        assert!(
            seats.try_take("a", &hog, full).is_err(),
            "others wait for it"
        );
        assert!((&mut second).now_or_never().is_none());
        let of_first = (&mut first).now_or_never().unwrap().ok().unwrap();
        assert!((&mut second).now_or_never().is_none());
        drop(of_first);
        assert!(second.await.is_ok());
    }

    #[tokio::test]
    async fn without_one_to_give_way_the_quota_is_used_up_at_once() {
        let (seats, mut requests) = ChildSeats::new(100);
        let hog = caller("hog");
        let held = [(); 2].map(|()| seats.try_take("a", &hog, room(2)));
        let late = caller("late");
        let mut refused = Box::pin(seats.take("a", &late, room(2), soon()));
        assert!((&mut refused).now_or_never().is_none());
        requests.recv().await.unwrap().reply.send(false).unwrap();
        let refused = refused.now_or_never();
        assert!(matches!(refused, Some(Err(Full::Children(_)))));
        let own = seats.take("a", &hog, room(2), soon()).now_or_never();
        assert!(matches!(own, Some(Err(Full::Children(_)))));
        drop(held);
        assert!(seats.try_take("a", &late, room(1)).is_ok());
    }
}

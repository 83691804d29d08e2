//! Slots for starts and preparations under way, of which one tenant holds at most three quarters.
//!
//! A slot lapses: a server that never answers, or a package that cannot be had, holds it for a short
//! time only. Until then a tenant that fills its share waits for its own slots, and others still find
//! some. Not here: how long a start waits.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

/// All slots.
pub(crate) struct StartSlots {
    all: Arc<Semaphore>,
    /// Slots of one tenant at most.
    share: usize,
    /// When a slot is free again, although its start goes on.
    lapse: Lapse,
    /// Free part of the share of each tenant that holds a slot, and of a few that held one; never
    /// locked across an await.
    shares: RwLock<HashMap<String, Arc<Semaphore>>>,
}

/// The end of slots by themselves.
#[derive(Clone)]
pub(crate) struct Lapse {
    /// The time that a slot is held.
    pub(crate) after: Duration,
    /// The tasks that wait for it.
    pub(crate) tracker: TaskTracker,
}

/// One slot, freed by being dropped. Its permits are those of a task, which drops them when they lapse.
pub(crate) struct StartSlot {
    _end: DropGuard,
}

/// Shares kept for tenants without a slot.
const MAX_IDLE_SHARES: usize = 64;

impl StartSlots {
    /// `count` free slots, which lapse after this time.
    pub(crate) fn new(count: usize, lapse: Lapse) -> Self {
        let count = count.min(Semaphore::MAX_PERMITS);
        let share = count - (count / 4).max(1);
        Self {
            all: Arc::new(Semaphore::new(count)),
            share: share.max(1),
            lapse,
            shares: RwLock::default(),
        }
    }

    /// Waits for a slot for `tenant`: first for one of its share, so that a waiting tenant takes
    /// no slot from others.
    pub(crate) async fn take(&self, tenant: &str) -> StartSlot {
        let of_tenant = acquire(self.share_of(tenant)).await;
        let permits = [acquire(Arc::clone(&self.all)).await, of_tenant];
        let Lapse { after, tracker } = &self.lapse;
        let end = CancellationToken::new();
        let (ended, after) = (end.clone(), *after);
        tracker.spawn(async move {
            _ = timeout(after, ended.cancelled()).await;
            drop(permits);
        });
        StartSlot {
            _end: end.drop_guard(),
        }
    }

    fn share_of(&self, tenant: &str) -> Arc<Semaphore> {
        let mut shares = self.shares.write().unwrap_or_else(PoisonError::into_inner);
        if shares.len() > MAX_IDLE_SHARES {
            // A tenant that holds or awaits a slot refers to its share.
            shares.retain(|_, share| Arc::strong_count(share) > 1);
        }
        if let Some(share) = shares.get(tenant) {
            return Arc::clone(share);
        }
        let share = Arc::new(Semaphore::new(self.share));
        shares.insert(tenant.to_owned(), Arc::clone(&share));
        share
    }
}

async fn acquire(semaphore: Arc<Semaphore>) -> OwnedSemaphorePermit {
    let permit = semaphore.acquire_owned().await;
    permit.expect("it is never closed")
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::super::start_slots::*;

    fn slots(count: usize) -> StartSlots {
        lapsing(count, Duration::from_mins(1))
    }

    fn lapsing(count: usize, after: Duration) -> StartSlots {
        let tracker = TaskTracker::new();
        StartSlots::new(count, Lapse { after, tracker })
    }

    #[tokio::test]
    async fn a_tenant_has_three_quarters_and_others_the_rest() {
        for (count, share) in [(1, 1), (2, 1), (3, 2), (5, 4), (16, 12)] {
            let slots = slots(count);
            let of = |tenant: &str| slots.take(tenant).now_or_never();
            let mut held: Vec<StartSlot> = std::iter::from_fn(|| of("a")).collect();
            assert_eq!(held.len(), share, "of {count}");
            let others: Vec<StartSlot> =
                (0..count).filter_map(|one| of(&one.to_string())).collect();
            assert_eq!(others.len(), count - share, "of {count}");
            drop(others);
            held.pop();
            slots.take("a").await;
        }
    }

    #[tokio::test]
    async fn a_tenant_that_waits_for_its_own_slot_delays_no_other() {
        let slots = slots(2);
        let held = slots.take("a").now_or_never();
        let mut second = Box::pin(slots.take("a"));
        assert!((&mut second).now_or_never().is_none());
        assert!(slots.take("b").now_or_never().is_some());
        drop(held);
        second.await;
    }

    #[tokio::test]
    async fn tenants_without_a_slot_are_forgotten() {
        let slots = slots(4);
        let held = [(); 3].map(|()| slots.take("a").now_or_never().unwrap());
        for one in 0..1000 {
            slots.take(&one.to_string()).await;
        }
        assert!(slots.shares.read().unwrap().len() <= MAX_IDLE_SHARES + 1);
        assert!(slots.take("a").now_or_never().is_none());
        drop(held);
    }

    #[tokio::test]
    async fn a_slot_lapses_and_an_end_before_that_frees_it_too() {
        let after = Duration::from_millis(100);
        let slots = lapsing(1, after);
        let began = tokio::time::Instant::now();
        let first = slots.take("a").await;
        let second = slots.take("b").await;
        assert!(began.elapsed() >= after);
        drop(second);
        let _third = slots.take("c").await;
        assert!(
            began.elapsed() < after * 2,
            "the second did not wait for its end"
        );
        drop(first);
    }
}

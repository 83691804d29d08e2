//! Slots for starts and preparations under way, of which one tenant holds at most half.
//!
//! A slot may be held for long, for example by a server that never answers: a tenant that fills its
//! share waits for its own slots, and others still find some. Not here: how long a start waits.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// All slots.
pub(crate) struct StartSlots {
    all: Arc<Semaphore>,
    /// Slots of one tenant at most.
    share: usize,
    /// Free part of the share of each tenant that holds a slot, and of a few that held one; never
    /// locked across an await.
    shares: RwLock<HashMap<String, Arc<Semaphore>>>,
}

/// One slot, freed by being dropped.
pub(crate) struct StartSlot {
    _of_all: OwnedSemaphorePermit,
    _of_tenant: OwnedSemaphorePermit,
}

/// Shares kept for tenants without a slot.
const MAX_IDLE_SHARES: usize = 64;

impl StartSlots {
    /// `count` free slots.
    pub(crate) fn new(count: usize) -> Self {
        let count = count.min(Semaphore::MAX_PERMITS);
        Self {
            all: Arc::new(Semaphore::new(count)),
            share: (count / 2).max(1),
            shares: RwLock::default(),
        }
    }

    /// Waits for a slot for `tenant`: first for one of its share, so that a waiting tenant takes
    /// no slot from others.
    pub(crate) async fn take(&self, tenant: &str) -> StartSlot {
        let of_tenant = acquire(self.share_of(tenant)).await;
        let of_all = acquire(Arc::clone(&self.all)).await;
        StartSlot {
            _of_all: of_all,
            _of_tenant: of_tenant,
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

    #[test]
    fn a_tenant_has_half_and_others_the_rest() {
        for (count, share) in [(1, 1), (2, 1), (3, 1), (5, 2), (16, 8)] {
            let slots = StartSlots::new(count);
            let of = |tenant: &str| slots.take(tenant).now_or_never();
            let mut held: Vec<StartSlot> = std::iter::from_fn(|| of("a")).collect();
            assert_eq!(held.len(), share, "of {count}");
            let others: Vec<StartSlot> =
                (0..count).filter_map(|one| of(&one.to_string())).collect();
            assert_eq!(others.len(), count - share, "of {count}");
            drop(others);
            held.pop();
            assert!(of("a").is_some(), "a freed slot is available again");
        }
    }

    #[test]
    fn a_tenant_that_waits_for_its_own_slot_delays_no_other() {
        let slots = StartSlots::new(2);
        let held = slots.take("a").now_or_never();
        let mut second = Box::pin(slots.take("a"));
        assert!((&mut second).now_or_never().is_none());
        assert!(slots.take("b").now_or_never().is_some());
        drop(held);
        assert!(second.now_or_never().is_some());
    }

    #[test]
    fn tenants_without_a_slot_are_forgotten() {
        let slots = StartSlots::new(4);
        let held = [(); 2].map(|()| slots.take("a").now_or_never().unwrap());
        for one in 0..1000 {
            assert!(slots.take(&one.to_string()).now_or_never().is_some());
        }
        assert!(slots.shares.read().unwrap().len() <= MAX_IDLE_SHARES + 1);
        assert!(slots.take("a").now_or_never().is_none());
        drop(held);
    }
}

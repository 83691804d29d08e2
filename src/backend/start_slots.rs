//! Turns at what few may do at a time (starting, preparing), of which one tenant has at most half.
//!
//! A turn may be held by what never ends by itself, like a server that says nothing: whoever fills
//! what is theirs waits for themselves, and others find room. Not here: how long one waits.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The turns that there are.
pub(crate) struct Turns {
    all: Arc<Semaphore>,
    /// Those that one tenant may have.
    share: usize,
    /// What is left of the share of each tenant with a turn, and of a few that had one; never held
    /// across an await.
    shares: RwLock<HashMap<String, Arc<Semaphore>>>,
}

/// One of them; dropping it gives it back.
pub(super) struct Turn {
    _of_all: OwnedSemaphorePermit,
    _of_tenant: OwnedSemaphorePermit,
}

/// Tenants without a turn of which no more is known than this many.
const REMEMBERED: usize = 64;

impl Turns {
    /// This many, all of them free.
    pub(super) fn new(count: usize) -> Self {
        let count = count.min(Semaphore::MAX_PERMITS);
        Self {
            all: Arc::new(Semaphore::new(count)),
            share: (count / 2).max(1),
            shares: RwLock::default(),
        }
    }

    /// Waits for a turn of `tenant`: first among its own, so that only those are in the way of
    /// others who may have one.
    pub(super) async fn take(&self, tenant: &str) -> Turn {
        let of_tenant = acquire(self.share_of(tenant)).await;
        let of_all = acquire(Arc::clone(&self.all)).await;
        Turn {
            _of_all: of_all,
            _of_tenant: of_tenant,
        }
    }

    fn share_of(&self, tenant: &str) -> Arc<Semaphore> {
        let mut shares = self.shares.write().unwrap_or_else(PoisonError::into_inner);
        if shares.len() > REMEMBERED {
            // What has a turn, or waits for one, holds on to its share.
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
            let turns = Turns::new(count);
            let of = |tenant: &str| turns.take(tenant).now_or_never();
            let mut held: Vec<Turn> = std::iter::from_fn(|| of("a")).collect();
            assert_eq!(held.len(), share, "of {count}");
            let others: Vec<Turn> = (0..count).filter_map(|one| of(&one.to_string())).collect();
            assert_eq!(others.len(), count - share, "of {count}");
            drop(others);
            held.pop();
            assert!(of("a").is_some(), "what is given back is there again");
        }
    }

    #[test]
    fn who_waits_for_its_own_turn_is_in_nobodys_way() {
        let turns = Turns::new(2);
        let held = turns.take("a").now_or_never();
        let mut second = Box::pin(turns.take("a"));
        assert!((&mut second).now_or_never().is_none());
        assert!(turns.take("b").now_or_never().is_some());
        drop(held);
        assert!(second.now_or_never().is_some());
    }

    #[test]
    fn tenants_without_a_turn_are_forgotten() {
        let turns = Turns::new(4);
        let held = [(); 2].map(|()| turns.take("a").now_or_never().unwrap());
        for one in 0..1000 {
            assert!(turns.take(&one.to_string()).now_or_never().is_some());
        }
        assert!(turns.shares.read().unwrap().len() <= REMEMBERED + 1);
        assert!(turns.take("a").now_or_never().is_none());
        drop(held);
    }
}

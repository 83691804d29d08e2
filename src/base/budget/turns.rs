//! Turns at something that few may do at a time, of which one owner has at most three quarters.
//!
//! Not here: amounts, of which more than a share is refused (`tree`).

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// All turns.
#[derive(Debug)]
pub(crate) struct Turns {
    all: Arc<Semaphore>,
    /// Turns of one owner at most.
    share: usize,
    /// Free part of the share of each owner that has a turn, and of a few that had one; never locked
    /// across an await.
    shares: RwLock<HashMap<String, Arc<Semaphore>>>,
}

/// One turn, free again once this is dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    _of_all: OwnedSemaphorePermit,
    _of_owner: OwnedSemaphorePermit,
}

/// Shares kept for owners without a turn.
const MAX_IDLE_SHARES: usize = 64;

impl Turns {
    /// `count` free turns.
    pub(crate) fn new(count: usize) -> Self {
        let count = count.min(Semaphore::MAX_PERMITS);
        let share = count - (count / 4).max(1);
        Self {
            all: Arc::new(Semaphore::new(count)),
            share: share.max(1),
            shares: RwLock::default(),
        }
    }

    /// Waits for a turn for `owner`: first for one of its share, so that an owner that waits takes no turn
    /// from others.
    pub(crate) async fn take(&self, owner: &str) -> Turn {
        let of_owner = acquire(self.share_of(owner)).await;
        Turn {
            _of_all: acquire(Arc::clone(&self.all)).await,
            _of_owner: of_owner,
        }
    }

    fn share_of(&self, owner: &str) -> Arc<Semaphore> {
        let mut shares = self.shares.write().unwrap_or_else(PoisonError::into_inner);
        if shares.len() > MAX_IDLE_SHARES {
            // An owner that has or awaits a turn refers to its share.
            shares.retain(|_, share| Arc::strong_count(share) > 1);
        }
        if let Some(share) = shares.get(owner) {
            return Arc::clone(share);
        }
        let share = Arc::new(Semaphore::new(self.share));
        shares.insert(owner.to_owned(), Arc::clone(&share));
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

    use super::super::turns::*;

    #[tokio::test]
    async fn an_owner_has_three_quarters_and_others_the_rest() {
        for (count, share) in [(1, 1), (2, 1), (3, 2), (5, 4), (8, 6), (16, 12)] {
            let turns = Turns::new(count);
            let of = |owner: &str| turns.take(owner).now_or_never();
            let mut held: Vec<Turn> = std::iter::from_fn(|| of("a")).collect();
            assert_eq!(held.len(), share, "of {count}");
            let others: Vec<Turn> = (0..count).filter_map(|one| of(&one.to_string())).collect();
            assert_eq!(others.len(), count - share, "of {count}");
            drop(others);
            held.pop();
            turns.take("a").await;
        }
    }

    #[tokio::test]
    async fn an_owner_that_waits_for_its_own_turn_delays_no_other() {
        let turns = Turns::new(2);
        let held = turns.take("a").now_or_never();
        let mut second = Box::pin(turns.take("a"));
        assert!((&mut second).now_or_never().is_none());
        assert!(turns.take("b").now_or_never().is_some());
        drop(held);
        second.await;
    }

    #[tokio::test]
    async fn owners_without_a_turn_are_forgotten() {
        let turns = Turns::new(4);
        let held = [(); 3].map(|()| turns.take("a").now_or_never().unwrap());
        for one in 0..1000 {
            turns.take(&one.to_string()).await;
        }
        assert!(turns.shares.read().unwrap().len() <= MAX_IDLE_SHARES + 1);
        assert!(turns.take("a").now_or_never().is_none());
        drop(held);
    }
}

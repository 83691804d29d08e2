//! Shares of a budget by owner, as long as they are used.

use std::{
    collections::HashMap,
    hash::{BuildHasher, Hash},
    sync::{Arc, PoisonError, RwLock},
};

use super::tree::Budget;

/// The shares of owners, as long as they are used.
#[derive(Debug)]
pub(crate) struct Shares<K, S> {
    above: Arc<Budget>,
    owners: RwLock<Owners<K, S>>,
}

#[derive(Debug)]
struct Owners<K, S> {
    shares: HashMap<K, Arc<Budget>, S>,
    /// The number of owners at which unused shares are removed.
    sweep_at: usize,
}

impl<K: Clone + Eq + Hash, S: BuildHasher + Default> Shares<K, S> {
    /// No shares yet, of this budget.
    pub(crate) fn new(above: Arc<Budget>) -> Self {
        Self {
            above,
            owners: RwLock::new(Owners {
                shares: HashMap::default(),
                sweep_at: MIN_SWEEP,
            }),
        }
    }

    /// The share of an owner.
    pub(crate) fn of(&self, owner: &K) -> Arc<Budget> {
        self.below(|| Arc::clone(&self.above), owner)
    }

    /// The share of an owner, below another share of the same root.
    pub(crate) fn below(&self, above: impl FnOnce() -> Arc<Budget>, owner: &K) -> Arc<Budget> {
        {
            let owners = self.owners.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(share) = owners.shares.get(owner) {
                return Arc::clone(share);
            }
        }
        let above = above();
        let mut owners = self.owners.write().unwrap_or_else(PoisonError::into_inner);
        owners.sweep();
        let share = owners.shares.entry(owner.clone());
        Arc::clone(share.or_insert_with(|| above.share()))
    }
}

impl<K: Eq + Hash, S: BuildHasher + Default> Owners<K, S> {
    /// Removes unused shares once the table has doubled since the last removal, so that the cost for
    /// each owner is constant.
    fn sweep(&mut self) {
        if self.shares.len() < self.sweep_at {
            return;
        }
        // Each amount that is drawn from a share, and each share below it, has a reference to it.
        self.shares.retain(|_, share| Arc::strong_count(share) > 1);
        self.sweep_at = (self.shares.len() * 2).max(MIN_SWEEP);
        self.shares.shrink_to(self.sweep_at);
    }
}

/// The smallest table worth sweeping.
const MIN_SWEEP: usize = 1024;

#[cfg(test)]
mod tests {
    use std::hash::RandomState;

    use crate::base::budget::shares::*;

    #[test]
    fn shares_that_nobody_uses_are_forgotten() {
        let root = Budget::new(1 << 30);
        let tenants = Shares::<u64, RandomState>::new(Arc::clone(&root));
        let principals = Shares::<u64, RandomState>::new(root);
        let held = principals.below(|| tenants.of(&7), &7).draw(1);
        for owner in 0..100_000 {
            drop(principals.below(|| tenants.of(&owner), &owner).draw(1));
        }
        for shares in [&tenants, &principals] {
            let known = shares.owners.read().unwrap().shares.len();
            assert!(known <= 2 * MIN_SWEEP, "{known}");
        }
        assert_eq!(tenants.of(&7).used(), 1);
        assert_eq!(principals.of(&7).used(), 1);
        drop(held);
        assert_eq!(principals.of(&7).used(), 0);
    }
}

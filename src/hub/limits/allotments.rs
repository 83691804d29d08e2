//! Allotments: amounts of each rate that this replica has drawn and not yet spent.

use std::{
    collections::HashMap,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
};

use crate::state::Account;

/// The unspent allotments, by account.
pub(super) struct Meters {
    /// Never held across an await.
    pub(crate) meters: RwLock<HashMap<Account, Arc<Meter>>>,
    /// When those that nobody uses were last looked for, in milliseconds.
    pub(super) swept: AtomicU64,
    /// For accounts beyond those that are kept apart.
    pub(crate) others: Arc<Meter>,
}

/// An account as this replica sees it.
pub(super) struct Meter {
    /// What is left of its allotments; below zero it owes.
    pub(super) balance: AtomicI64,
    /// When the last one was drawn, in milliseconds; 0 is never.
    pub(super) drawn: AtomicU64,
    /// Whether a draw is under way.
    pub(super) is_drawing: AtomicBool,
}

impl Meters {
    pub(crate) fn new() -> Self {
        Self {
            meters: RwLock::default(),
            swept: AtomicU64::new(0),
            others: Arc::new(Meter::new(0)),
        }
    }

    pub(crate) fn of(&self, account: &Account, bound: u64, now: u64) -> Arc<Meter> {
        let known = {
            let meters = self.meters.read().unwrap_or_else(PoisonError::into_inner);
            meters.get(account).cloned()
        };
        known.unwrap_or_else(|| self.add(account, bound, now))
    }

    pub(super) fn add(&self, account: &Account, bound: u64, now: u64) -> Arc<Meter> {
        let mut meters = self.meters.write().unwrap_or_else(PoisonError::into_inner);
        // Once a second: in a flood every request would look through the table.
        let is_time = now.saturating_sub(self.swept.load(Ordering::Relaxed)) >= 1000;
        if meters.len() >= METERS && is_time {
            self.swept.store(now, Ordering::Relaxed);
            meters.retain(|_, meter| meter.is_used(now));
        }
        // A flood of addresses is limited as one rather than not at all.
        if meters.len() >= METERS && !meters.contains_key(account) {
            return Arc::clone(&self.others);
        }
        let new = || Arc::new(Meter::new(signed(allotment(bound))));
        Arc::clone(meters.entry(account.clone()).or_insert_with(new))
    }
}

impl Meter {
    pub(crate) const fn new(balance: i64) -> Self {
        Self {
            balance: AtomicI64::new(balance),
            drawn: AtomicU64::new(0),
            is_drawing: AtomicBool::new(false),
        }
    }

    pub(super) fn add(&self, given: u64, credit: u64) {
        let change = signed(given) - signed(credit);
        self.balance.fetch_add(change, Ordering::Relaxed);
    }

    /// Whether forgetting it would give away what it owes, or what was just drawn for it.
    pub(super) fn is_used(&self, now: u64) -> bool {
        let age = now.saturating_sub(self.drawn.load(Ordering::Relaxed));
        age < 2_000 || self.balance.load(Ordering::Relaxed) < 0 && age < 60_000
    }
}

/// A tenth of the rate, at least 10; never more than a second's.
pub(super) fn allotment(bound: u64) -> u64 {
    (bound / 10).max(10).min(bound)
}

pub(super) fn signed(amount: u64) -> i64 {
    i64::try_from(amount).unwrap_or(i64::MAX)
}

/// Accounts that are kept apart; each is about 100 bytes.
pub(super) const METERS: usize = 65_536;

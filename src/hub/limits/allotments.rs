//! Allotments: amounts of each rate that this replica has drawn from the limiter and not spent.

use std::{
    collections::HashMap,
    hash::BuildHasher,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
};

use crate::state::Account;

/// The unspent allotments, by account.
pub(super) struct Allotments<S> {
    /// Never held across an await.
    pub(super) accounts: RwLock<HashMap<Account, Arc<Allotment>, S>>,
    /// The time of the last sweep, in milliseconds.
    swept: AtomicU64,
    /// The shared allotment of the accounts beyond [`MAX_ACCOUNTS`].
    others: Arc<Allotment>,
}

/// The unspent allotment of an account.
pub(super) struct Allotment {
    /// The amount that is left; a negative amount is owed.
    pub(super) balance: AtomicI64,
    /// The time of the last draw, in milliseconds; 0 is never.
    pub(super) drawn: AtomicU64,
    /// Whether a draw is under way.
    pub(super) is_drawing: AtomicBool,
}

impl<S: BuildHasher + Default> Allotments<S> {
    pub(super) fn new() -> Self {
        Self {
            accounts: RwLock::default(),
            swept: AtomicU64::new(0),
            others: Arc::new(Allotment::new(0)),
        }
    }

    /// The allotment of an account.
    pub(super) fn of(&self, account: &Account, bound: u64, now: u64) -> Arc<Allotment> {
        let known = {
            let accounts = self.accounts.read().unwrap_or_else(PoisonError::into_inner);
            accounts.get(account).cloned()
        };
        known.unwrap_or_else(|| self.add(account, bound, now))
    }

    fn add(&self, account: &Account, bound: u64, now: u64) -> Arc<Allotment> {
        let mut accounts = self
            .accounts
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        // At most once a second: in a flood every request would sweep the table.
        let is_time = now.saturating_sub(self.swept.load(Ordering::Relaxed)) >= 1000;
        if accounts.len() >= MAX_ACCOUNTS && is_time {
            self.swept.store(now, Ordering::Relaxed);
            accounts.retain(|_, allotment| allotment.is_used(now));
        }
        // A flood of addresses is limited as one rather than not at all.
        if accounts.len() >= MAX_ACCOUNTS && !accounts.contains_key(account) {
            return Arc::clone(&self.others);
        }
        let new = || Arc::new(Allotment::new(signed(amount(bound))));
        Arc::clone(accounts.entry(account.clone()).or_insert_with(new))
    }
}

impl Allotment {
    const fn new(balance: i64) -> Self {
        Self {
            balance: AtomicI64::new(balance),
            drawn: AtomicU64::new(0),
            is_drawing: AtomicBool::new(false),
        }
    }

    /// Adds an amount that was drawn, less the credit of a new account.
    pub(super) fn add(&self, given: u64, credit: u64) {
        let change = signed(given) - signed(credit);
        self.balance.fetch_add(change, Ordering::Relaxed);
    }

    /// Whether the account is in use: without it, a debt or a fresh draw would be lost.
    pub(super) fn is_used(&self, now: u64) -> bool {
        let age = now.saturating_sub(self.drawn.load(Ordering::Relaxed));
        age < 2_000 || self.balance.load(Ordering::Relaxed) < 0 && age < 60_000
    }
}

/// The size of an allotment: a tenth of the rate, at least 10, and at most the rate of a second.
pub(super) fn amount(bound: u64) -> u64 {
    (bound / 10).max(10).min(bound)
}

/// An amount as a signed number.
pub(super) fn signed(amount: u64) -> i64 {
    i64::try_from(amount).unwrap_or(i64::MAX)
}

/// The most accounts with an allotment of their own; each takes about 100 bytes.
pub(super) const MAX_ACCOUNTS: usize = 65_536;

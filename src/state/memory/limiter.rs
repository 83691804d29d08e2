//! Limits in memory, for a gateway of one replica.

use std::{
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    task::Poll,
    time::Duration,
};

use tokio::time::Instant;

use super::uses::Uses;
use crate::base;
use crate::state::{Account, BoxFuture, Limiter, Seat, Use};

/// Limits in memory; no lock is held across an await.
pub(crate) struct MemoryLimiter {
    clock: Box<Clock>,
    buckets: RwLock<Table<Bucket>>,
    counts: RwLock<Table<Arc<AtomicU64>>>,
    uses: Uses,
}

/// The source of the current time.
type Clock = dyn Fn() -> Instant + Send + Sync;

/// The accounts in use.
struct Table<T> {
    accounts: base::Table<Account, T>,
    /// The number of accounts at which unused ones are removed.
    sweep_at: usize,
}

/// The token bucket of an account.
struct Bucket {
    /// The allowance, in thousandths.
    level: u64,
    /// The time of the last refill.
    at: Instant,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self {
            accounts: base::Table::default(),
            sweep_at: MIN_SWEEP,
        }
    }
}

impl<T> Table<T> {
    /// Removes unused accounts once the table has doubled since the last removal, so that the cost
    /// per account is constant.
    fn sweep(&mut self, is_used: impl Fn(&T) -> bool) {
        if self.accounts.len() < self.sweep_at {
            return;
        }
        self.accounts.retain(|_, kept| is_used(kept));
        self.sweep_at = (self.accounts.len() * 2).max(MIN_SWEEP);
        self.accounts.shrink_to(self.sweep_at);
    }
}

impl Default for MemoryLimiter {
    fn default() -> Self {
        Self::new(Instant::now)
    }
}

impl MemoryLimiter {
    /// An empty limiter.
    pub(crate) fn new(clock: impl Fn() -> Instant + Send + Sync + 'static) -> Self {
        Self {
            clock: Box::new(clock),
            buckets: RwLock::default(),
            counts: RwLock::default(),
            uses: Uses::default(),
        }
    }

    /// Takes a seat if one is free.
    pub(crate) fn seat(&self, account: &Account, most: u64) -> Option<Seat> {
        let known = {
            let counts = self.counts.read().unwrap_or_else(PoisonError::into_inner);
            counts.accounts.get(account).cloned()
        };
        let count = known.unwrap_or_else(|| {
            let mut counts = self.counts.write().unwrap_or_else(PoisonError::into_inner);
            // Each seat, and each caller about to take one, holds a reference to its count.
            counts.sweep(|count| Arc::strong_count(count) > 1);
            Arc::clone(counts.accounts.entry(account.clone()).or_default())
        });
        let taken = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
            (taken < most).then_some(taken + 1)
        });
        taken.ok()?;
        Some(Seat::counted(count))
    }

    fn take(&self, account: Account, rate: u64, wanted: u64) -> u64 {
        let now = (self.clock)();
        let capacity = rate.saturating_mul(1000);
        let mut buckets = self.buckets.write().unwrap_or_else(PoisonError::into_inner);
        // A bucket is full again after a second, so an absent one counts as full.
        buckets.sweep(|bucket| now.saturating_duration_since(bucket.at).as_millis() < 1000);
        let bucket = buckets.accounts.entry(account).or_insert(Bucket {
            level: capacity,
            at: now,
        });
        let passed = now.saturating_duration_since(bucket.at).as_millis();
        let passed = u64::try_from(passed).unwrap_or(u64::MAX);
        // Not `now`: the rest of a millisecond counts the next time.
        bucket.at += Duration::from_millis(passed);
        // Each millisecond adds a thousandth per unit of the rate.
        bucket.level = bucket
            .level
            .saturating_add(passed.saturating_mul(rate))
            .min(capacity);
        let given = wanted.min(bucket.level / 1000);
        bucket.level -= given * 1000;
        given
    }
}

impl Limiter for MemoryLimiter {
    fn draw(self: Arc<Self>, account: Account, rate: u64, wanted: u64) -> BoxFuture<'static, u64> {
        let given = self.take(account, rate, wanted);
        Box::pin(std::future::ready(given))
    }

    fn enter_at_once(&self, account: &Account, most: u64) -> Poll<Option<Seat>> {
        Poll::Ready(self.seat(account, most))
    }

    fn enter(self: Arc<Self>, account: Account, most: u64) -> BoxFuture<'static, Option<Seat>> {
        let seat = self.seat(&account, most);
        Box::pin(std::future::ready(seat))
    }

    fn once(
        self: Arc<Self>,
        tenant: Arc<str>,
        value: [u8; 32],
        window: Duration,
    ) -> BoxFuture<'static, Use> {
        let used = self.uses.take(&tenant, value, window, (self.clock)());
        Box::pin(std::future::ready(used))
    }

    fn give_back(self: Arc<Self>, value: [u8; 32]) -> BoxFuture<'static, ()> {
        self.uses.give_back(value);
        Box::pin(std::future::ready(()))
    }
}

/// The smallest table worth sweeping.
const MIN_SWEEP: usize = 1024;

#[cfg(test)]
mod tests {
    use super::super::limiter::*;

    fn account(name: &str) -> Account {
        Account {
            limit: "test",
            owner: name.into(),
        }
    }

    /// A limiter with a clock that the test advances.
    struct Bench {
        limiter: Arc<MemoryLimiter>,
        us: Arc<AtomicU64>,
    }

    impl Bench {
        fn new() -> Self {
            let (us, born) = (Arc::new(AtomicU64::new(0)), Instant::now());
            let passed = Arc::clone(&us);
            let clock = move || born + Duration::from_micros(passed.load(Ordering::Relaxed));
            let limiter = Arc::new(MemoryLimiter::new(clock));
            Self { limiter, us }
        }

        fn advance(&self, ms: u64) {
            self.us.fetch_add(ms * 1000, Ordering::Relaxed);
        }
    }

    // The rest of the trait's contract is tested in `state/tests/limiter.rs`.

    async fn gives_a_second_at_once_and_the_rate_after_it(
        limiter: Arc<dyn Limiter>,
        advance: impl Fn(u64),
    ) {
        let draw = |name: &str, wanted| Arc::clone(&limiter).draw(account(name), 100, wanted);
        assert_eq!(draw("a", 30).await, 30);
        assert_eq!(draw("a", 200).await, 70);
        assert_eq!(draw("a", 1).await, 0);
        assert_eq!(draw("b", 100).await, 100, "another account");
        advance(250);
        assert_eq!(draw("a", 100).await, 25);
        let mut given = 0;
        for _ in 0..1000 {
            advance(3);
            given += draw("a", 1).await;
        }
        assert_eq!(given, 300, "three seconds");
        advance(60_000);
        assert_eq!(
            draw("a", 1000).await,
            100,
            "nothing is kept for longer than a second"
        );
    }

    #[tokio::test]
    async fn keeps_the_contract() {
        let bench = Bench::new();
        let limiter = Arc::clone(&bench.limiter);
        gives_a_second_at_once_and_the_rate_after_it(limiter, |ms| bench.advance(ms)).await;
    }

    /// Half of the rate was lost to a caller that drew once in two milliseconds.
    #[test]
    fn parts_of_a_millisecond_count() {
        let bench = Bench::new();
        let draw = |wanted| bench.limiter.take(account("a"), 100, wanted);
        assert_eq!(draw(100), 100);
        let mut given = 0;
        for _ in 0..1000 {
            bench.us.fetch_add(1900, Ordering::Relaxed);
            given += draw(1);
        }
        assert_eq!(given, 190, "1.9 seconds");
    }

    #[test]
    fn threads_take_no_more_than_there_is() {
        let limiter = MemoryLimiter::default();
        let seats: Vec<Seat> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(|| {
                        let seats = (0..1000).filter_map(|_| limiter.seat(&account("a"), 999));
                        seats.collect::<Vec<_>>()
                    })
                })
                .collect();
            let all = threads
                .into_iter()
                .flat_map(|thread| thread.join().unwrap());
            all.collect()
        });
        assert_eq!(seats.len(), 999);
    }

    #[test]
    fn accounts_that_nobody_uses_are_forgotten() {
        let bench = Bench::new();
        let limiter = &bench.limiter;
        let kept = limiter.seat(&account("kept"), 1).unwrap();
        for number in 0..100_000 {
            let account = account(&format!("account {number}"));
            drop(limiter.seat(&account, 1));
            bench.advance(2);
            limiter.take(account, 1, 1);
        }
        let counts = limiter.counts.read().unwrap().accounts.len();
        let buckets = limiter.buckets.read().unwrap().accounts.len();
        assert!(
            counts <= 2 * MIN_SWEEP && buckets <= 2 * MIN_SWEEP,
            "{counts} {buckets}"
        );
        assert!(
            limiter.seat(&account("kept"), 1).is_none(),
            "the used one is not"
        );
        drop(kept);
        assert!(limiter.seat(&account("kept"), 1).is_some());
    }
}

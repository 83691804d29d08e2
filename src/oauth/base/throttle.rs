//! Rate limits per minute and key, checked before any work is done.
//!
//! The table has a fixed size, so that a flood from many addresses costs no memory. Two keys may
//! share a slot by a random hash, which clients cannot predict.

use std::{
    hash::{BuildHasher, Hash, RandomState},
    net::IpAddr,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::time::Instant;

/// Counts per key, each for a minute from its first event on.
pub(crate) struct Throttle {
    slots: Box<[AtomicU64]>,
    hasher: RandomState,
    began: Instant,
}

impl Throttle {
    /// An empty table.
    pub(crate) fn new() -> Self {
        Self {
            slots: (0..SLOTS).map(|_| AtomicU64::new(0)).collect(),
            hasher: RandomState::new(),
            began: Instant::now(),
        }
    }

    /// Counts an event of `key`.
    ///
    /// # Errors
    ///
    /// The time until a retry, if the minute's `bound` is used up; the event is not counted then.
    pub(crate) fn spend(&self, key: &impl Hash, bound: u32) -> Result<(), Duration> {
        self.spend_at(key, bound, self.now())
    }

    fn spend_at(&self, key: &impl Hash, bound: u32, now: u32) -> Result<(), Duration> {
        let count = |old: u64| {
            let entry = Entry::unpack(old).at(now);
            let more = Entry {
                count: entry.count + 1,
                ..entry
            };
            (entry.count < bound).then(|| more.pack())
        };
        let slot = self.slot(key);
        let counted = slot.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count);
        counted
            .map(drop)
            .map_err(|old| Entry::unpack(old).at(now).left(now))
    }

    /// Reports whether [`Self::spend`] would succeed.
    ///
    /// # Errors
    ///
    /// The time until a retry.
    pub(crate) fn check(&self, key: &impl Hash, bound: u32) -> Result<(), Duration> {
        self.check_at(key, bound, self.now())
    }

    fn check_at(&self, key: &impl Hash, bound: u32, now: u32) -> Result<(), Duration> {
        let entry = Entry::unpack(self.slot(key).load(Ordering::Relaxed)).at(now);
        if entry.count < bound {
            Ok(())
        } else {
            Err(entry.left(now))
        }
    }

    /// Counts an event of `key` without a bound.
    pub(crate) fn note(&self, key: &impl Hash) {
        let _ = self.spend(key, u32::MAX);
    }

    /// Gives back what [`Self::spend`] took for an event that did not happen.
    pub(crate) fn refund(&self, key: &impl Hash) {
        self.refund_at(key, self.now());
    }

    fn refund_at(&self, key: &impl Hash, now: u32) {
        let count = |old: u64| {
            let entry = Entry::unpack(old).at(now);
            let count = entry.count.checked_sub(1)?;
            Some(Entry { count, ..entry }.pack())
        };
        let slot = self.slot(key);
        // Nothing is left to give back where another minute has begun.
        let _ = slot.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count);
    }

    fn slot(&self, key: &impl Hash) -> &AtomicU64 {
        let hash = self.hasher.hash_one(key);
        #[expect(clippy::cast_possible_truncation, reason = "the remainder is small")]
        let at = (hash % SLOTS as u64) as usize;
        &self.slots[at]
    }

    /// Seconds since creation, plus one: zero marks an unused slot.
    fn now(&self) -> u32 {
        let passed = self.began.elapsed().as_secs() + 1;
        u32::try_from(passed).unwrap_or(u32::MAX)
    }
}

/// The account of an address. IPv6 addresses share one per /64, all of which a host can use (RFC
/// 4291, section 2.5.1).
pub(crate) fn account(address: Option<IpAddr>) -> u128 {
    match address.map(|address| address.to_canonical()) {
        Some(IpAddr::V4(v4)) => u128::from(v4.to_bits()),
        Some(IpAddr::V6(v6)) => v6.to_bits() >> 64 << 64,
        None => u128::MAX,
    }
}

/// A slot in the table: the start of its minute and the events since.
#[derive(Clone, Copy)]
struct Entry {
    since: u32,
    count: u32,
}

impl Entry {
    fn unpack(bits: u64) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "each half fits")]
        let (since, count) = ((bits >> 32) as u32, bits as u32);
        Self { since, count }
    }

    fn pack(self) -> u64 {
        u64::from(self.since) << 32 | u64::from(self.count)
    }

    /// This entry, or an empty one if its minute is over.
    fn at(self, now: u32) -> Self {
        if self.count > 0 && now.saturating_sub(self.since) < MINUTE {
            self
        } else {
            Self {
                since: now,
                count: 0,
            }
        }
    }

    /// The time until its minute is over.
    fn left(self, now: u32) -> Duration {
        let passed = now.saturating_sub(self.since);
        Duration::from_secs(u64::from(MINUTE.saturating_sub(passed).max(1)))
    }
}

/// Places in the table: 512 KiB.
const SLOTS: usize = 1 << 16;
/// Length of the window in seconds.
const MINUTE: u32 = 60;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn events_per_minute_are_limited() {
        let throttle = Throttle::new();
        for _ in 0..3 {
            assert_eq!(throttle.check_at(&"a", 3, 1), Ok(()));
            assert_eq!(throttle.spend_at(&"a", 3, 1), Ok(()));
        }
        let left = Duration::from_secs(50);
        assert_eq!(throttle.check_at(&"a", 3, 11), Err(left));
        assert_eq!(throttle.spend_at(&"a", 3, 11), Err(left));
        assert_eq!(throttle.spend_at(&"b", 3, 11), Ok(()), "another key");
        assert_eq!(throttle.spend_at(&"a", u32::MAX, 11), Ok(()));
        assert_eq!(throttle.check_at(&"a", 3, 60), Err(Duration::from_secs(1)));
        assert_eq!(throttle.spend_at(&"a", 3, 61), Ok(()), "another minute");
        assert_eq!(throttle.spend_at(&"a", 3, 61), Ok(()));
    }

    #[tokio::test]
    async fn refunded_events_do_not_count() {
        let throttle = Throttle::new();
        for _ in 0..100 {
            assert_eq!(throttle.spend_at(&"a", 2, 1), Ok(()));
            assert_eq!(throttle.spend_at(&"a", 2, 1), Ok(()));
            assert!(throttle.spend_at(&"a", 2, 1).is_err());
            throttle.refund_at(&"a", 1);
            throttle.refund_at(&"a", 1);
            throttle.refund_at(&"a", 1);
        }
        assert_eq!(throttle.spend_at(&"a", 1, 1), Ok(()));
        throttle.refund_at(&"a", 61);
        assert_eq!(throttle.spend_at(&"a", 1, 61), Ok(()), "another minute");
        assert!(throttle.spend_at(&"a", 1, 61).is_err());
    }

    #[tokio::test]
    async fn a_flood_of_keys_takes_no_memory_and_few_slots() {
        let throttle = Throttle::new();
        for key in 0..10_000 {
            assert_eq!(throttle.spend(&key, 100), Ok(()));
        }
        assert_eq!(throttle.slots.len(), SLOTS);
        assert_eq!(throttle.check(&"ada", 100), Ok(()));
    }

    #[test]
    fn a_host_is_counted_once() {
        let of = |text: &str| account(Some(text.parse().unwrap()));
        assert_eq!(of("2001:db8:0:1::1"), of("2001:db8:0:1:ffff::2"));
        assert_ne!(of("2001:db8:0:1::1"), of("2001:db8:0:2::1"));
        assert_eq!(of("192.0.2.1"), of("::ffff:192.0.2.1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
        assert_ne!(of("0.0.0.0"), account(None));
    }
}

//! Hops that were received: each counts once.
//!
//! A sliding window over the numbers of each sender (RFC 4303, section 3.4.3), because hops of one
//! connection overtake each other. A sender is in the table only by a valid signature, so their number
//! is that of the replicas that ran in the last minutes.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
};

use super::hop::{LIFETIME_MS, SKEW_MS};

/// The windows of all senders, by boot id; never held across an await.
#[derive(Default)]
pub(super) struct Received(RwLock<HashMap<Arc<str>, Window>>);

/// The last numbers of one sender.
struct Window {
    highest: u64,
    /// A bit for each of the last [`WIDTH`] numbers, by its remainder.
    bits: Box<[u64]>,
    /// The time of the last hop.
    used_ms: i64,
}

impl Received {
    /// Takes a number; false if it was taken before, or is too far behind to tell.
    pub(super) fn take(&self, sender: &Arc<str>, number: u64, now_ms: i64) -> bool {
        let mut windows = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if !windows.contains_key(sender) {
            // All hops of a sender that was silent for so long have expired.
            windows.retain(|_, window| now_ms.saturating_sub(window.used_ms) <= EXPIRED_MS);
        }
        let window = windows.entry(Arc::clone(sender)).or_insert_with(|| Window {
            highest: 0,
            bits: vec![0; WORDS].into(),
            used_ms: now_ms,
        });
        window.used_ms = window.used_ms.max(now_ms);
        window.take(number)
    }
}

impl Window {
    fn take(&mut self, number: u64) -> bool {
        if number > self.highest {
            if number - self.highest >= WIDTH {
                self.bits.fill(0);
            }
            for skipped in (self.highest + 1..=number).take(WORDS * 64) {
                self.set(skipped, false);
            }
            self.highest = number;
        } else if self.highest - number >= WIDTH || self.has(number) {
            return false;
        }
        self.set(number, true);
        true
    }

    fn has(&self, number: u64) -> bool {
        let (word, bit) = place(number);
        self.bits[word] & bit != 0
    }

    fn set(&mut self, number: u64, is_taken: bool) {
        let (word, bit) = place(number);
        if is_taken {
            self.bits[word] |= bit;
        } else {
            self.bits[word] &= !bit;
        }
    }
}

fn place(number: u64) -> (usize, u64) {
    let at = (number % WIDTH) as usize;
    (at / 64, 1 << (at % 64))
}

/// Numbers that a hop may be behind its successors: more than are under way to one replica
/// (`connections::MAX_CONCURRENT`), since a sender counts the hops to all replicas together. 8 KiB.
const WIDTH: u64 = 1 << 16;
const WORDS: usize = 1 << 10;
/// The time after which a hop has expired by every clock.
const EXPIRED_MS: i64 = LIFETIME_MS + 2 * SKEW_MS;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::received::*;

    #[test]
    fn a_number_counts_once() {
        let (received, a, b) = (Received::default(), "a".into(), "b".into());
        let take = |sender: &Arc<str>, number| received.take(sender, number, 0);
        assert!(take(&a, 1) && !take(&a, 1));
        assert!(take(&b, 1), "of another sender");
        assert!(take(&a, WIDTH + 5), "far ahead");
        assert!(!take(&a, 5), "too far behind");
        assert!(take(&a, 6) && !take(&a, 6), "overtaken");
        assert!(take(&a, 2 * WIDTH + 6) && take(&a, 2 * WIDTH + 5) && !take(&a, WIDTH + 5));
    }

    #[test]
    fn senders_are_forgotten_after_their_hops_expired() {
        let (received, a, b) = (Received::default(), "a".into(), "b".into());
        assert!(received.take(&a, 1, 0));
        assert!(received.take(&b, 1, EXPIRED_MS) && !received.take(&a, 1, EXPIRED_MS));
        let later = 2 * EXPIRED_MS + 1;
        assert!(received.take(&"c".into(), 1, later));
        let left = received.0.read().unwrap();
        assert_eq!(
            left.keys().map(|sender| &**sender).collect::<Vec<_>>(),
            ["c"]
        );
    }

    proptest! {
        #[test]
        fn is_a_set_of_the_last_numbers(numbers in prop::collection::vec(0..3 * WIDTH, 0..200)) {
            let (received, sender) = (Received::default(), "a".into());
            let (mut taken, mut highest) = (std::collections::HashSet::new(), 0);
            for number in numbers {
                let is_new = highest < WIDTH + number && taken.insert(number);
                prop_assert_eq!(received.take(&sender, number, 0), is_new, "{}", number);
                highest = highest.max(number);
            }
        }
    }
}

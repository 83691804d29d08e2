//! Values that are good once, remembered for a time in a table of bounded size.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    sync::{PoisonError, RwLock},
    time::Duration,
};

use tokio::time::Instant;

use crate::state::Use;

/// The values in use; never locked across an await.
#[derive(Default)]
pub(super) struct Uses(RwLock<Remembered>);

#[derive(Default)]
struct Remembered {
    /// The values, each with the time at which it is forgotten.
    values: HashMap<[u8; 32], Instant>,
    /// The same by that time, at which they are removed. A value that was given back is here until then.
    order: BinaryHeap<Reverse<(Instant, [u8; 32])>>,
}

impl Uses {
    /// Uses a value at `now`.
    pub(super) fn take(&self, value: [u8; 32], window: Duration, now: Instant) -> Use {
        let mut remembered = self.0.write().unwrap_or_else(PoisonError::into_inner);
        remembered.forget(now);
        if remembered.values.get(&value).is_some_and(|end| now < *end) {
            return Use::Again;
        }
        if remembered.order.len() >= MOST {
            return Use::Full;
        }
        remembered.values.insert(value, now + window);
        remembered.order.push(Reverse((now + window, value)));
        Use::First
    }

    /// Takes back the use of a value.
    pub(super) fn give_back(&self, value: [u8; 32]) {
        let mut remembered = self.0.write().unwrap_or_else(PoisonError::into_inner);
        remembered.values.remove(&value);
    }
}

impl Remembered {
    fn forget(&mut self, now: Instant) {
        while let Some(Reverse((end, value))) = self.order.peek()
            && *end <= now
        {
            // One that was given back may have been used anew.
            if self.values.get(value).is_some_and(|end| *end <= now) {
                self.values.remove(value);
            }
            self.order.pop();
        }
        // Room of a flood is given back.
        if self.values.capacity() > MIN_ROOM && self.values.len() < self.values.capacity() / 8 {
            self.values.shrink_to(MIN_ROOM);
            self.order.shrink_to(MIN_ROOM);
        }
    }
}

/// Most values that are remembered, with about 100 bytes each.
const MOST: usize = 1 << 20;
/// The smallest table worth shrinking.
const MIN_ROOM: usize = 4096;

#[cfg(test)]
mod tests {
    use super::super::uses::*;

    fn value(number: usize) -> [u8; 32] {
        let mut value = [0; 32];
        value[..8].copy_from_slice(&number.to_le_bytes());
        value
    }

    const WINDOW: Duration = Duration::from_secs(90);

    #[test]
    fn a_value_is_good_once_within_its_window() {
        let (uses, began) = (Uses::default(), Instant::now());
        let take = |number, after: u64| {
            let now = began + Duration::from_secs(after);
            uses.take(value(number), WINDOW, now)
        };
        assert_eq!([take(1, 0), take(2, 1)], [Use::First; 2]);
        assert_eq!([take(1, 0), take(1, 89), take(2, 90)], [Use::Again; 3]);
        assert_eq!(take(1, 90), Use::First, "forgotten");
        assert_eq!(take(1, 179), Use::Again);
    }

    #[test]
    fn a_short_window_behind_a_long_one_is_over_in_time() {
        let (uses, began) = (Uses::default(), Instant::now());
        let take = |number, window: u64, after: u64| {
            let [window, after] = [window, after].map(Duration::from_secs);
            uses.take(value(number), window, began + after)
        };
        assert_eq!([take(1, 90, 0), take(2, 1, 0)], [Use::First; 2]);
        assert_eq!([take(2, 90, 1), take(3, 1, 1)], [Use::First; 2]);
        assert_eq!([take(1, 90, 89), take(2, 90, 90)], [Use::Again; 2]);
        assert_eq!([take(2, 90, 91), take(1, 90, 91)], [Use::First; 2]);
        assert_eq!(take(2, 90, 180), Use::Again);
    }

    /// Tickets of ten minutes kept a minute's proofs for as long.
    #[test]
    fn a_long_window_keeps_no_room_of_short_ones_behind_it() {
        let (uses, began) = (Uses::default(), Instant::now());
        uses.take(value(0), 10 * WINDOW, began);
        for number in 1..=100 {
            uses.take(value(number), WINDOW, began);
        }
        uses.take(value(101), WINDOW, began + WINDOW);
        let remembered = uses.0.read().unwrap();
        assert_eq!((remembered.values.len(), remembered.order.len()), (2, 2));
    }

    #[test]
    fn a_use_that_was_given_back_is_none() {
        let (uses, began) = (Uses::default(), Instant::now());
        let take = |after: u64| uses.take(value(1), WINDOW, began + Duration::from_secs(after));
        assert_eq!([take(0), take(1)], [Use::First, Use::Again]);
        uses.give_back(value(1));
        assert_eq!([take(2), take(3)], [Use::First, Use::Again]);
        assert_eq!(take(91), Use::Again, "the window of its second use");
        assert_eq!(take(92), Use::First);
    }

    #[test]
    fn the_table_is_bounded_and_shrinks() {
        let (uses, began) = (Uses::default(), Instant::now());
        for number in 0..MOST {
            assert_eq!(uses.take(value(number), WINDOW, began), Use::First);
        }
        assert_eq!(uses.take(value(MOST), WINDOW, began), Use::Full);
        assert_eq!(uses.take(value(7), WINDOW, began), Use::Again);
        assert_eq!(uses.take(value(MOST), WINDOW, began + WINDOW), Use::First);
        uses.take(value(MOST), WINDOW, began + WINDOW);
        let remembered = uses.0.read().unwrap();
        assert_eq!((remembered.values.len(), remembered.order.len()), (1, 1));
        assert!(remembered.values.capacity() < MOST / 8);
    }
}

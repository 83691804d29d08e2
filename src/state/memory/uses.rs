//! Values that are good once, remembered for a time in a table of bounded size, which tenants share.

use std::{
    cmp::{Ordering, Reverse},
    collections::{BinaryHeap, HashMap},
    sync::{Arc, PoisonError, RwLock, RwLockWriteGuard},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    base::{
        FastHash,
        budget::{Budget, Drawn, Shares},
    },
    state::Use,
};

/// The values in use.
pub(super) struct Uses {
    /// Never locked across an await.
    remembered: RwLock<Remembered>,
    /// Room for values, shared out to tenants: a full table refuses what it cannot remember.
    room: Shares<Arc<str>, FastHash>,
}

impl Default for Uses {
    fn default() -> Self {
        Self {
            remembered: RwLock::default(),
            room: Shares::new(Budget::new(MOST)),
        }
    }
}

#[derive(Default)]
struct Remembered {
    /// The values, each with the time at which it is forgotten.
    values: HashMap<[u8; 32], Instant>,
    /// The same by that time, at which they are removed. A value that was given back is here until then.
    order: BinaryHeap<Reverse<Remembrance>>,
}

/// A value until it is forgotten, with the room that it takes.
struct Remembrance {
    end: Instant,
    value: [u8; 32],
    _room: Drawn,
}

impl Remembrance {
    fn key(&self) -> (Instant, &[u8; 32]) {
        (self.end, &self.value)
    }
}

impl Ord for Remembrance {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl PartialOrd for Remembrance {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Remembrance {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Remembrance {}

impl Uses {
    /// Uses a value of a tenant at `now`.
    pub(super) fn take(
        &self,
        tenant: &Arc<str>,
        value: [u8; 32],
        window: Duration,
        now: Instant,
    ) -> Use {
        let mut remembered = self.lock();
        remembered.forget(now);
        if remembered.values.get(&value).is_some_and(|end| now < *end) {
            return Use::Again;
        }
        let Some(room) = self.room.of(tenant).draw(1) else {
            return Use::Full;
        };
        let end = now + window;
        remembered.values.insert(value, end);
        remembered.order.push(Reverse(Remembrance {
            end,
            value,
            _room: room,
        }));
        Use::First
    }

    /// Takes back the use of a value.
    pub(super) fn give_back(&self, value: [u8; 32]) {
        self.lock().values.remove(&value);
    }

    fn lock(&self) -> RwLockWriteGuard<'_, Remembered> {
        let remembered = self.remembered.write();
        remembered.unwrap_or_else(PoisonError::into_inner)
    }
}

impl Remembered {
    fn forget(&mut self, now: Instant) {
        while let Some(Reverse(oldest)) = self.order.peek()
            && oldest.end <= now
        {
            // One that was given back may have been used anew.
            if self
                .values
                .get(&oldest.value)
                .is_some_and(|end| *end <= now)
            {
                self.values.remove(&oldest.value);
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

/// Most values that are remembered, with about 120 bytes each. A tenant has at most half of them.
const MOST: u64 = 1 << 20;
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
            uses.take(&"a".into(), value(number), WINDOW, now)
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
            uses.take(&"a".into(), value(number), window, began + after)
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
        uses.take(&"a".into(), value(0), 10 * WINDOW, began);
        for number in 1..=100 {
            uses.take(&"a".into(), value(number), WINDOW, began);
        }
        uses.take(&"a".into(), value(101), WINDOW, began + WINDOW);
        let remembered = uses.lock();
        assert_eq!((remembered.values.len(), remembered.order.len()), (2, 2));
    }

    #[test]
    fn a_use_that_was_given_back_is_none() {
        let (uses, began) = (Uses::default(), Instant::now());
        let take = |after: u64| {
            uses.take(
                &"a".into(),
                value(1),
                WINDOW,
                began + Duration::from_secs(after),
            )
        };
        assert_eq!([take(0), take(1)], [Use::First, Use::Again]);
        uses.give_back(value(1));
        assert_eq!([take(2), take(3)], [Use::First, Use::Again]);
        assert_eq!(take(91), Use::Again, "the window of its second use");
        assert_eq!(take(92), Use::First);
    }

    #[test]
    fn the_table_is_bounded_shared_out_and_shrinks() {
        let (uses, began) = (Uses::default(), Instant::now());
        let take =
            |tenant: &str, number, now| uses.take(&tenant.into(), value(number), WINDOW, now);
        let fill = |tenant: &str, from: usize| {
            let mut numbers = from..;
            let is_first = |number| take(tenant, number, began) == Use::First;
            numbers.position(|number| !is_first(number)).unwrap()
        };
        let most = usize::try_from(MOST).unwrap();
        let of_one = fill("a", 0);
        assert_eq!(of_one, most / 2, "one leaves the others theirs");
        let of_two = fill("b", most);
        assert!((most / 4 - 1..=most / 4 + 1).contains(&of_two), "{of_two}");
        assert_eq!(take("a", most * 2, began), Use::Full);
        assert_eq!(take("c", most * 2, began), Use::First);
        assert_eq!(take("a", 7, began), Use::Again);
        assert_eq!(take("a", 7, began + WINDOW), Use::First, "forgotten");
        let remembered = uses.lock();
        assert_eq!((remembered.values.len(), remembered.order.len()), (1, 1));
        assert!(remembered.values.capacity() < most / 8);
    }
}

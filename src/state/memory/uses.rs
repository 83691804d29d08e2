//! Values that are good once, remembered for a time in a table of bounded size, which tenants share.

use std::{
    collections::{BTreeSet, HashMap},
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
    values: HashMap<[u8; 32], Remembrance>,
    /// The same values by the time at which they are forgotten.
    order: BTreeSet<(Instant, [u8; 32])>,
}

/// A value that is in use until `end`, with the room that it takes.
struct Remembrance {
    end: Instant,
    _room: Drawn,
}

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
        if remembered
            .values
            .get(&value)
            .is_some_and(|known| now < known.end)
        {
            return Use::Again;
        }
        remembered.remove(&value);
        let share = self.room.of(tenant);
        let room = loop {
            match share.draw(1) {
                Some(room) => break room,
                // What has ended takes nobody's room.
                None if remembered.forget(now) => {}
                None => return Use::Full,
            }
        };
        let end = now + window;
        remembered.order.insert((end, value));
        let remembrance = Remembrance { end, _room: room };
        remembered.values.insert(value, remembrance);
        Use::First
    }

    /// Takes back the use of a value.
    pub(super) fn give_back(&self, value: [u8; 32]) {
        self.lock().remove(&value);
    }

    fn lock(&self) -> RwLockWriteGuard<'_, Remembered> {
        let remembered = self.remembered.write();
        remembered.unwrap_or_else(PoisonError::into_inner)
    }
}

impl Remembered {
    /// Forgets values that have ended, a few at a time: after a flood all others would wait. Returns whether there were
    /// any.
    fn forget(&mut self, now: Instant) -> bool {
        let before = self.values.len();
        for _ in 0..AT_ONCE {
            let oldest = self.order.first().copied();
            let Some((_, value)) = oldest.filter(|(end, _)| *end <= now) else {
                break;
            };
            self.remove(&value);
        }
        let has_forgotten = self.values.len() < before;
        // Room of a flood is given back.
        if self.values.capacity() > MIN_ROOM && self.values.len() < self.values.capacity() / 8 {
            self.values.shrink_to(MIN_ROOM);
        }
        has_forgotten
    }

    fn remove(&mut self, value: &[u8; 32]) {
        if let Some(known) = self.values.remove(value) {
            self.order.remove(&(known.end, *value));
        }
    }
}

/// Most values that are remembered, with about 120 bytes each. A tenant has at most half of them.
const MOST: u64 = 1 << 20;
/// Values that are forgotten for each that is used.
const AT_ONCE: usize = 64;
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
        for number in 1..=50 {
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
        // Each took a place until its window was over, and ten minutes of them all that a tenant has.
        let room = uses.room.of(&"a".into());
        for _ in 0..100 {
            assert_eq!(room.used(), 1);
            uses.give_back(value(1));
            assert_eq!((room.used(), take(93)), (0, Use::First));
        }
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
        assert_eq!(
            take("a", 7, began + WINDOW),
            Use::First,
            "those of before take no room"
        );
        let len = || uses.lock().values.len();
        let mut used = 1;
        while len() > used {
            let before = len();
            assert_eq!(take("a", most * 3 + used, began + WINDOW), Use::First);
            let forgotten = before + 1 - len();
            assert!(forgotten <= AT_ONCE, "others wait meanwhile: {forgotten}");
            used += 1;
        }
        let remembered = uses.lock();
        assert_eq!(remembered.order.len(), used);
        assert!(remembered.values.capacity() < most / 8);
    }
}

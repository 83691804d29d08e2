//! Line of readers to wake: a few of each owner at a time, between which others go first.
//!
//! Not here: the task that waits until others have gone, and what there is to read (`connection`).

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use tokio::time::Instant;

use crate::base::budget::{drop_room, push_back};

/// The line of a connection, one step of which may bring something for hundreds of readers of an owner.
///
/// A reader in line holds nothing that another one needs, and may read before its turn.
#[derive(Debug)]
pub(super) struct WakeLine<R> {
    owners: HashMap<usize, Owner<R>>,
    /// The readers in line, of all owners.
    waiting: usize,
    /// The time from which those that were woken are counted.
    since: Option<Instant>,
}

#[derive(Debug)]
struct Owner<R> {
    /// Its readers that were woken since others went first.
    woken: usize,
    waiting: VecDeque<R>,
}

impl<R> Default for WakeLine<R> {
    fn default() -> Self {
        Self {
            owners: HashMap::new(),
            waiting: 0,
            since: None,
        }
    }
}

impl<R> Default for Owner<R> {
    fn default() -> Self {
        Self {
            woken: 0,
            waiting: VecDeque::new(),
        }
    }
}

impl<R: Clone> WakeLine<R> {
    /// Counts a reader that is to be woken, and returns whether it waits for its turn, in line.
    pub(super) fn has_to_wait(&mut self, owner: usize, reader: &R, now: Instant) -> bool {
        let have_run = |since: Instant| now.saturating_duration_since(since) > RUN;
        if self.waiting == 0 && self.since.is_none_or(have_run) {
            self.owners.clear();
            self.since = Some(now);
        }
        let owner = self.owners.entry(owner).or_default();
        // Those that wait are behind as many.
        if owner.woken < WAKES {
            owner.woken += 1;
            return false;
        }
        push_back(&mut owner.waiting, reader.clone());
        self.waiting += 1;
        true
    }
}

impl<R> WakeLine<R> {
    /// Returns whether none waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Removes the first readers of each owner: others have gone first.
    pub(super) fn take_next(&mut self, now: Instant) -> Vec<R> {
        let mut next = Vec::new();
        self.owners.retain(|_, owner| {
            owner.woken = owner.waiting.len().min(WAKES);
            next.extend(owner.waiting.drain(..owner.woken));
            drop_room(&mut owner.waiting);
            owner.woken > 0
        });
        self.waiting -= next.len();
        self.since = Some(now);
        next
    }

    /// Returns the number of readers in line.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.waiting
    }
}

/// Readers of an owner that are woken before others go first: some tenths of a millisecond of work.
pub(super) const WAKES: usize = 16;
/// The time after which the readers that were woken have run, and others have gone first.
const RUN: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::super::wake_line::*;

    /// The readers of an owner that need not wait, of so many.
    fn woken(line: &mut WakeLine<usize>, owner: usize, count: usize, now: Instant) -> usize {
        let is_woken = |reader: &usize| !line.has_to_wait(owner, reader, now);
        (0..count).filter(is_woken).count()
    }

    #[test]
    fn readers_of_an_owner_are_woken_in_their_order_and_those_of_another_at_once() {
        let (mut line, now) = (WakeLine::default(), Instant::now());
        assert_eq!(woken(&mut line, 1, 3 * WAKES, now), WAKES);
        assert_eq!(woken(&mut line, 2, 1, now), 1);
        assert_eq!(woken(&mut line, 3, WAKES + 1, now), WAKES);
        let mut next = line.take_next(now);
        next.sort_unstable();
        let mut first: Vec<_> = (WAKES..2 * WAKES).collect();
        // The one of the third.
        first.insert(0, WAKES);
        assert_eq!(next, first);
        // A line that is long does not let one go that has just come.
        assert!(line.has_to_wait(1, &0, now + 2 * RUN));
        assert_eq!(line.len(), WAKES + 1);
        let next: Vec<_> = (2 * WAKES..3 * WAKES).collect();
        assert_eq!(line.take_next(now), next);
        assert_eq!(line.take_next(now), [0]);
        assert!(line.is_empty() && line.take_next(now).is_empty());
        assert!(line.owners.is_empty());
    }

    /// Those of one turn would be followed by as many at once.
    #[test]
    fn readers_that_were_woken_count_until_they_have_run() {
        let (mut line, begin) = (WakeLine::default(), Instant::now());
        assert_eq!(woken(&mut line, 1, WAKES + 1, begin), WAKES);
        let later = begin + 2 * RUN;
        assert_eq!(line.take_next(later), [WAKES]);
        assert_eq!(woken(&mut line, 1, WAKES, later + RUN), WAKES - 1);
        assert_eq!(line.take_next(later + RUN), [WAKES - 1]);
        assert_eq!(woken(&mut line, 1, WAKES + 1, later + 3 * RUN), WAKES);
    }
}

//! Budgets: trees of shares, and what is drawn from them.

use std::{
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::{runtime::Handle, sync::Semaphore, time::Instant};

use super::others_first::{looks, others_first};

/// A node in a tree of budgets: the root has the total, the others are the shares of owners, which may
/// have shares below them.
///
/// An owner may hold as much as is free: what a share and those above it hold together, each counted
/// once, is at most what is free at the root. So one owner alone gets half (a share of a share a third),
/// two get a third each, many get less each, and a part is always left for the next one. Nothing is set
/// aside for owners that want nothing.
#[derive(Debug)]
pub(crate) struct Budget {
    /// The share above, or the total of a root.
    place: Place,
    used: AtomicU64,
    /// Tasks of the owner that wait for a processor with more work.
    turns: Semaphore,
    /// Until when the owner pauses, in microseconds since [`BEGAN`].
    paced: AtomicU64,
    /// The small pieces of work of the owner since it rested, below the number of looks at the last one:
    /// `looks * PIECES + pieces`.
    pieces: AtomicU64,
}

#[derive(Debug)]
enum Place {
    Root { total: u64 },
    Below(Arc<Budget>),
}

impl Budget {
    /// A root.
    pub(crate) fn new(total: u64) -> Arc<Self> {
        Arc::new(Self {
            place: Place::Root { total },
            used: AtomicU64::new(0),
            turns: Semaphore::new(TURNS),
            paced: AtomicU64::new(0),
            pieces: AtomicU64::new(0),
        })
    }

    /// A share of this budget.
    pub(crate) fn share(self: &Arc<Self>) -> Arc<Self> {
        Arc::new(Self {
            place: Place::Below(Arc::clone(self)),
            used: AtomicU64::new(0),
            turns: Semaphore::new(TURNS),
            paced: AtomicU64::new(0),
            pieces: AtomicU64::new(0),
        })
    }

    /// What is held, by those below as well.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// The total of the root.
    pub(crate) fn total(&self) -> u64 {
        match &self.place {
            Place::Root { total } => *total,
            Place::Below(above) => above.total(),
        }
    }

    /// What may still be drawn; negative if more is held than the share allows.
    pub(crate) fn left(&self) -> i64 {
        let (spare, counted) = self.spare();
        // What is drawn is counted at each node of the path. Rounded down: a little too much is too much.
        spare.div_euclid(counted)
    }

    /// Whether so much may still be drawn.
    pub(crate) fn has_room(&self, amount: u64) -> bool {
        self.left() >= signed(amount)
    }

    /// What is free beyond what the shares of the path hold, and the nodes of it at which a draw counts.
    fn spare(&self) -> (i64, i64) {
        let (mut held, mut counted, mut node) = (0_i64, 1_i64, self);
        while let Place::Below(above) = &node.place {
            held = held.saturating_add(signed(node.used()));
            counted += 1;
            node = above;
        }
        let free = signed(node.total()).saturating_sub(signed(node.used()));
        (free.saturating_sub(held), counted)
    }

    /// Whether so much may still be drawn here while as much is drawn from another share of the same total, as two
    /// shares count each body.
    pub(crate) fn has_twice(&self, amount: u64) -> bool {
        let (spare, counted) = self.spare();
        // The other draw counts at the root.
        signed(amount).saturating_mul(counted + 1) <= spare
    }

    /// Draws an amount; none if it is more than the share allows.
    pub(crate) fn draw(self: &Arc<Self>, amount: u64) -> Option<Drawn> {
        self.try_take(amount).then(|| Drawn {
            budget: Arc::clone(self),
            amount,
        })
    }

    /// Holds an amount that exists already, although the share may not allow it.
    pub(crate) fn hold(self: &Arc<Self>, amount: u64) -> Drawn {
        self.take(amount);
        Drawn {
            budget: Arc::clone(self),
            amount,
        }
    }

    /// Counts an amount, which its owner gives back; false, with nothing counted, if the share does not
    /// allow it.
    fn try_take(&self, amount: u64) -> bool {
        // Counted before the check: of two at once both may fail, but never both pass wrongly.
        self.take(amount);
        let has_room = self.left() >= 0;
        if !has_room {
            self.give_back(amount);
        }
        has_room
    }

    /// Counts an amount; its owner gives it back.
    pub(crate) fn take(&self, amount: u64) {
        self.each(|node| _ = node.used.fetch_add(amount, Ordering::Relaxed));
    }

    /// Gives back an amount that was taken.
    pub(crate) fn give_back(&self, amount: u64) {
        self.each(|node| _ = node.used.fetch_sub(amount, Ordering::Relaxed));
    }

    /// Lets others go first, between two pieces of work of a millisecond at most.
    ///
    /// The runtime goes round all tasks, of which an owner may have any number. Here only a few of those
    /// with more work are in its queue at a time; the others wait in line for them, first in the line of
    /// their share, then in that of each share above it.
    pub(crate) async fn others_first(&self) {
        let (mut held, mut node) = (Vec::new(), self);
        while let Place::Below(above) = &node.place {
            // It is never closed.
            held.extend(node.turns.acquire().await);
            node = above;
        }
        others_first().await;
    }

    /// Counts a small piece of work of the owner, which of a caller is its tenant; returns whether others go first, as
    /// they do at every [`PIECES`]th of those that come at once, by however many tasks they are done.
    pub(crate) fn is_due(&self) -> bool {
        self.is_due_each(PIECES)
    }

    /// The same for larger pieces, with `every` instead of [`PIECES`], which it has to divide.
    pub(crate) fn is_due_each(&self, every: u64) -> bool {
        // Of each worker there is one before others have gone first.
        let workers = Handle::try_current().map_or(1, |runtime| runtime.metrics().num_workers());
        self.is_due_at(every, looks(), workers as u64)
    }

    /// After a rest others have gone first already: an owner with a call every few milliseconds would wait for them in vain.
    /// It is told by looks and not by time, which passes as well while the pieces of others stand between those of an owner.
    fn is_due_at(&self, every: u64, looks: u64, rest: u64) -> bool {
        let count = |pieces: u64| {
            let has_rested = looks.saturating_sub(pieces / PIECES) > rest;
            if has_rested { 0 } else { pieces % PIECES }
        };
        let next = |pieces: u64| looks * PIECES + (count(pieces) + 1) % PIECES;
        let order = Ordering::Relaxed;
        let before = self
            .top()
            .pieces
            .fetch_update(order, order, |pieces| Some(next(pieces)));
        count(before.unwrap_or_default()) % every == every - 1
    }

    /// The pieces since the owner rested.
    #[cfg(test)]
    pub(crate) fn pieces(&self) -> u64 {
        self.top().pieces.load(Ordering::Relaxed) % PIECES
    }

    /// A number of the owner, which of a caller is its tenant: as long as the share is held, no other owner has it.
    pub(crate) fn owner(&self) -> usize {
        std::ptr::from_ref(self.top()).addr()
    }

    /// The share of the path that is directly below the total.
    fn top(&self) -> &Self {
        let mut node = self;
        while let Place::Below(above) = &node.place
            && matches!(above.place, Place::Below(_))
        {
            node = above;
        }
        node
    }

    /// Whether tasks of the owner, or of one above it, wait in line.
    pub(crate) fn is_busy(&self) -> bool {
        let mut node = self;
        while let Place::Below(above) = &node.place {
            if node.turns.available_permits() == 0 {
                return true;
            }
            node = above;
        }
        false
    }

    /// Counts work that nobody waits for, and returns the time before which the owner does no more of it, at most
    /// [`PAUSE`] from now on: its tasks together do as much as one that takes `cost` for each piece.
    ///
    /// All owners of the share above it do about twice as much: a piece is the dearer, the further they are
    /// beyond that. The price is the same for all, so that one that wants little waits for itself alone.
    pub(crate) fn pace(&self, cost: Duration) -> Instant {
        let now = BEGAN.elapsed();
        *BEGAN + now + self.pace_at(cost, now)
    }

    fn pace_at(&self, cost: Duration, now: Duration) -> Duration {
        let dearer = match &self.place {
            Place::Below(above) if matches!(above.place, Place::Below(_)) => {
                above.advance(cost / 2, now).as_secs_f64() * DEARER
            }
            _ => 0.0,
        };
        self.advance(cost.mul_f64(1.0 + dearer), now)
    }

    /// Adds to what the owner has done; returns how far it is ahead of the time.
    fn advance(&self, cost: Duration, now: Duration) -> Duration {
        let (now, cost) = (micros(now), micros(cost));
        let latest = now + micros(PAUSE);
        let next = |at: u64| at.max(now).saturating_add(cost).min(latest);
        let order = Ordering::Relaxed;
        let before = self.paced.fetch_update(order, order, |at| Some(next(at)));
        Duration::from_micros(before.map_or(now, next) - now)
    }

    fn each(&self, change: impl Fn(&Self)) {
        let mut node = self;
        change(node);
        while let Place::Below(above) = &node.place {
            node = above;
            change(node);
        }
    }
}

/// An amount drawn from a budget, which gets it back when this is dropped.
#[derive(Debug)]
pub(crate) struct Drawn {
    budget: Arc<Budget>,
    amount: u64,
}

impl Drawn {
    /// Draws more; false, with nothing drawn, if the share does not allow it.
    pub(crate) fn grow(&mut self, more: u64) -> bool {
        let has_room = self.budget.try_take(more);
        if has_room {
            self.amount += more;
        }
        has_room
    }

    /// Holds more that exists already.
    pub(crate) fn add(&mut self, more: u64) {
        self.budget.take(more);
        self.amount += more;
    }

    /// Gives a part back.
    pub(crate) fn give_back(&mut self, part: u64) {
        let part = part.min(self.amount);
        self.budget.give_back(part);
        self.amount -= part;
    }

    /// Holds the whole steps of what exists now, although the share may not allow it: most owners have less than one, and
    /// take nothing.
    pub(crate) fn count(&mut self, bytes: usize, step: usize) {
        // Called at each message: less than a step needs no division.
        let whole = if bytes < step { 0 } else { bytes / step * step };
        let steps = whole as u64;
        if steps > self.amount {
            self.add(steps - self.amount);
        } else if steps < self.amount {
            self.give_back(self.amount - steps);
        }
    }

    /// The share that it is drawn from.
    pub(crate) fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// What is held.
    pub(crate) fn amount(&self) -> u64 {
        self.amount
    }

    /// Whether the share of this holds more than it may.
    pub(crate) fn is_too_much(&self) -> bool {
        self.budget.left() < 0
    }

    /// Holds the amount as long as any part of these bytes is held.
    pub(crate) fn until_dropped(self, bytes: Bytes) -> Bytes {
        Bytes::from_owner(Held {
            bytes,
            _drawn: self,
        })
    }
}

impl Drop for Drawn {
    fn drop(&mut self) {
        self.budget.give_back(self.amount);
    }
}

/// Bytes with what was drawn for them.
struct Held {
    bytes: Bytes,
    _drawn: Drawn,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Bytes that are counted at once for owners of which there are not many, as children: most have less.
pub(crate) const LARGE_STEP: usize = 64 << 10;

/// The same for owners of which there are very many, as sessions: less than this of each is in no budget.
pub(crate) const SMALL_STEP: usize = 4 << 10;

/// Tasks of a share, with more work, in the runtime's queue at a time.
const TURNS: usize = 4;

/// The small pieces of work, as requests are, after which others go first.
const PIECES: u64 = 8;

/// The longest pause of [`Budget::pace`].
const PAUSE: Duration = Duration::from_secs(2);

/// How much dearer a piece is for each second that the share above is ahead.
const DEARER: f64 = 64.0;

/// What the times of pauses count from.
static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn signed(amount: u64) -> i64 {
    i64::try_from(amount).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::base::budget::tree::*;

    /// Draws one by one until the share refuses.
    fn drain(share: &Arc<Budget>) -> Vec<Drawn> {
        std::iter::from_fn(|| share.draw(1)).collect()
    }

    #[test]
    fn one_owner_gets_half_and_the_next_what_is_left_by_the_same_rule() {
        let root = Budget::new(1000);
        let (one, two) = (root.share(), root.share());
        let held = drain(&one);
        assert_eq!(held.len(), 500);
        let others = drain(&two);
        assert_eq!(others.len(), 250);
        assert!(one.draw(1).is_none(), "the share of the first shrinks");
        drop(held);
        assert_eq!((one.used(), root.used()), (0, 250));
        assert_eq!(drain(&one).len(), 375);
    }

    #[test]
    fn owners_at_once_get_equal_parts_and_a_part_is_left() {
        let root = Budget::new(1100);
        let shares: Vec<_> = (0..10).map(|_| root.share()).collect();
        let mut held = Vec::new();
        loop {
            let drawn: Vec<_> = shares.iter().filter_map(|share| share.draw(1)).collect();
            if drawn.is_empty() {
                break;
            }
            held.extend(drawn);
        }
        assert!(shares.iter().all(|share| share.used() == 100));
        assert_eq!(root.used(), 1000);
    }

    #[test]
    fn a_share_of_a_share_leaves_room_beside_it() {
        let root = Budget::new(900);
        let tenant = root.share();
        let (noisy, quiet) = (tenant.share(), tenant.share());
        let held = drain(&noisy);
        assert_eq!(held.len(), 300);
        assert_eq!(tenant.used(), 300);
        assert_eq!(drain(&quiet).len(), 100);
        assert_eq!(drain(&root.share()).len(), 300);
    }

    #[test]
    fn a_body_has_room_if_both_shares_that_count_it_have() {
        let root = Budget::new(1200);
        let (address, caller) = (root.share(), root.share().share());
        assert!(address.has_twice(400) && !address.has_twice(401));
        assert!(caller.has_twice(300) && !caller.has_twice(301));
        let first = address.draw(300).unwrap();
        assert_eq!(caller.draw(300).unwrap().amount, 300);
        assert!(caller.draw(301).is_none());
        drop(first);
    }

    #[test]
    fn what_exists_already_is_held_and_nothing_more_is_drawn() {
        let root = Budget::new(100);
        let share = root.share();
        let held = share.hold(400);
        assert_eq!(share.left(), -350);
        assert!(share.draw(0).is_none());
        assert!(root.share().draw(1).is_none());
        drop(held);
        assert_eq!(share.left(), 50);
    }

    #[test]
    fn what_grows_and_shrinks_is_counted_in_steps() {
        for step in [SMALL_STEP, LARGE_STEP] {
            let root = Budget::new(1 << 20);
            let mut drawn = root.share().hold(0);
            let counts = [step - 1, step, 3 * step + 5, 2 * step - 1, 20 * step, 7];
            let held = counts.map(|bytes| {
                drawn.count(bytes, step);
                assert_eq!(root.used(), drawn.amount());
                drawn.amount() / step as u64
            });
            assert_eq!(held, [0, 1, 3, 1, 20, 0]);
        }
    }

    /// Those of a connection alone were counted, and of thousands of connections with a request each none was due.
    #[test]
    fn every_eighth_piece_is_due() {
        let tenant = Budget::new(1).share();
        let callers = [tenant.share(), tenant.share()];
        let due = |every| -> Vec<usize> {
            let is_due = |at: &usize| callers[at % 2].is_due_at(every, 1000, 1);
            (0..24).filter(is_due).collect()
        };
        assert_eq!(due(8), [7, 15, 23]);
        assert_eq!(due(4), [3, 7, 11, 15, 19, 23]);
        assert!(!tenant.is_busy());
    }

    /// One with a call every five milliseconds waited for all others at every eighth, and those were its longest.
    #[test]
    fn an_owner_that_rests_is_not_due() {
        let due = [2, 1, 0].map(|apart| {
            let share = Budget::new(1).share();
            let is_due = |number: &u64| share.is_due_at(8, 1000 + number * apart, 1);
            (0..64).filter(is_due).count()
        });
        assert_eq!(due, [0, 8, 8]);
        let share = Budget::new(1).share();
        assert!(!share.is_due());
        assert_eq!(share.pieces(), 1);
    }

    #[test]
    fn callers_of_a_tenant_have_one_owner() {
        let root = Budget::new(1);
        let tenants = [root.share(), root.share()];
        let numbers = tenants.map(|tenant| {
            let callers = [tenant.share(), tenant.share()];
            assert_eq!(callers[0].owner(), callers[1].owner());
            assert_eq!(callers[0].owner(), tenant.owner());
            (tenant.owner(), tenant)
        });
        assert_ne!(numbers[0].0, numbers[1].0);
        assert_ne!(numbers[0].0, root.owner());
    }

    #[test]
    fn bytes_hold_their_amount_until_the_last_part_is_gone() {
        let root = Budget::new(100);
        let bytes = root.share().draw(10).unwrap();
        let bytes = bytes.until_dropped(Bytes::from_static(b"0123456789"));
        let part = bytes.slice(3..5);
        drop(bytes);
        assert_eq!((&part[..], root.used()), (&b"34"[..], 10));
        drop(part);
        assert_eq!(root.used(), 0);
    }

    /// The most steps of many busy tasks, whose shares these are, between two of another owner's.
    async fn most_between(busy: Vec<Arc<Budget>>, other: Arc<Budget>) -> usize {
        let steps = Arc::new(AtomicU64::new(0));
        let mut tasks = tokio::task::JoinSet::new();
        for share in busy {
            let steps = Arc::clone(&steps);
            tasks.spawn(async move {
                loop {
                    share.others_first().await;
                    steps.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let mut most = 0;
        for _ in 0..100 {
            let before = steps.load(Ordering::Relaxed);
            other.others_first().await;
            most = most.max(steps.load(Ordering::Relaxed) - before);
        }
        usize::try_from(most).unwrap()
    }

    #[tokio::test]
    async fn a_thousand_busy_tasks_of_one_owner_take_a_few_turns_between_those_of_another() {
        let root = Budget::new(1);
        let (one, other) = (root.share(), root.share());
        let busy = (0..1000).map(|_| Arc::clone(&one)).collect();
        let most = most_between(busy, Arc::clone(&other)).await;
        assert!((1..=2 * TURNS).contains(&most), "{most} steps");
        let busy = (0..1000).map(|_| one.share()).collect();
        let most = most_between(busy, other.share()).await;
        assert!(
            (1..=2 * TURNS).contains(&most),
            "{most} steps of 1,000 shares"
        );
    }

    #[tokio::test]
    async fn an_owner_is_busy_while_its_tasks_wait_in_line() {
        let root = Budget::new(1);
        let (share, other) = (root.share(), root.share());
        let caller = share.share();
        assert!(!caller.is_busy());
        let held = share.turns.acquire_many(4).await.unwrap();
        assert!(share.is_busy() && caller.is_busy() && !other.is_busy());
        drop(held);
        assert!(!caller.is_busy());
    }

    #[test]
    fn an_owner_pauses_for_all_that_its_tasks_do() {
        let (share, cost) = (Budget::new(1).share(), Duration::from_millis(100));
        let at = |now: u64| share.pace_at(cost, Duration::from_millis(now)).as_millis();
        assert_eq!([at(0), at(0), at(50), at(1000)], [100, 200, 250, 100]);
        let longest = (0..100).map(|_| at(1000)).max();
        assert_eq!(longest, Some(2000));
        assert_eq!(at(2500), 600);
        let now = Instant::now();
        let paused = Budget::new(1).share().pace(cost) - now;
        assert!((100..2000).contains(&paused.as_millis()), "{paused:?}");
    }

    /// With one line for all owners of a share, two that never stop would hold up each of the others for two seconds.
    #[test]
    fn owners_pace_each_other_and_one_that_wants_little_hardly_waits() {
        let cost = Duration::from_micros(1600);
        for (owners, tasks) in [(1, 1), (1, 100), (2, 50), (100, 10)] {
            let tenant = Budget::new(1).share();
            let greedy: Vec<_> = (0..owners).map(|_| tenant.share()).collect();
            let modest = tenant.share();
            // The next times at which each of the tasks goes on; the last one is the modest owner's.
            let mut next = vec![Duration::ZERO; owners * tasks + 1];
            let (mut pieces, mut longest) = (0_u32, Duration::ZERO);
            for now in (0..10_000).map(Duration::from_millis) {
                for (at, next) in next
                    .iter_mut()
                    .enumerate()
                    .filter(|(_, next)| **next <= now)
                {
                    if let Some(owner) = greedy.get(at / tasks) {
                        *next = now + owner.pace_at(cost, now);
                        pieces += 1;
                    } else {
                        let pause = modest.pace_at(cost, now);
                        longest = longest.max(pause);
                        *next = now + pause + Duration::from_secs(1);
                    }
                }
            }
            // Ten seconds of one owner are 6,250 pieces, and of all together twice as many.
            let (least, most) = if owners == 1 {
                (3_500, 6_600)
            } else {
                (9_000, 15_000)
            };
            assert!(
                (least..most).contains(&pieces),
                "{pieces} of {owners} × {tasks}"
            );
            assert!(
                longest <= Duration::from_millis(250),
                "{longest:?} of {owners} × {tasks}"
            );
        }
    }

    proptest! {
        #[test]
        fn no_draw_exceeds_what_is_free(steps in proptest::collection::vec((0_usize..6, 0_u64..2000), 1..200)) {
            let root = Budget::new(10_000);
            let tenants = [root.share(), root.share()];
            let shares: Vec<_> = (0..6).map(|at| tenants[at % 2].share()).collect();
            let mut held = Vec::new();
            for (at, amount) in steps {
                let free = root.total() - root.used();
                let left = shares[at].left();
                match shares[at].draw(amount) {
                    Some(drawn) => {
                        prop_assert!(amount <= free);
                        prop_assert!(i64::try_from(amount).unwrap() <= left);
                        held.push(drawn);
                    }
                    None => prop_assert!(i64::try_from(amount).unwrap() > left),
                }
                if amount % 3 == 0 && !held.is_empty() {
                    held.swap_remove(at % held.len());
                }
                let sum: u64 = held.iter().map(|drawn| drawn.amount).sum();
                prop_assert_eq!(root.used(), sum);
                prop_assert!(root.used() < root.total());
            }
        }
    }
}

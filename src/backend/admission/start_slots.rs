//! Slots for starts and preparations under way, of which one tenant holds at most three quarters.
//!
//! A slot lapses: a server that never answers, or a package that cannot be had, holds it for a short
//! time only. Until then a tenant that fills its share waits for its own slots, and others still find
//! some. Not here: how long a start waits.

use std::{future::pending, time::Duration};

use tokio::time::timeout;
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

use crate::base::budget::Turns;

/// All slots.
pub(crate) struct StartSlots {
    turns: Turns,
    /// When a slot is free again, although its start goes on.
    lapse: Lapse,
}

/// The end of slots by themselves.
#[derive(Clone)]
pub(crate) struct Lapse {
    /// The time that a slot is held.
    pub(crate) after: Duration,
    /// The tasks that wait for it.
    pub(crate) tracker: TaskTracker,
}

/// One slot, freed by being dropped. Its turn is that of a task, which drops it when it lapses.
pub(crate) struct StartSlot {
    _end: DropGuard,
}

impl StartSlots {
    /// `count` free slots, which lapse after this time.
    pub(crate) fn new(count: usize, lapse: Lapse) -> Self {
        Self {
            turns: Turns::new(count),
            lapse,
        }
    }

    /// Waits for a slot for `tenant`.
    pub(crate) async fn take(&self, tenant: &str) -> StartSlot {
        let turn = self.turns.take(tenant).await;
        self.lapse.hold(turn, pending())
    }
}

impl Lapse {
    /// Holds a turn for a start, or a slot that may lapse before this one, until its slot is dropped, until `over`, or
    /// until it lapses.
    pub(crate) fn hold(
        &self,
        turn: impl Send + 'static,
        over: impl Future<Output = ()> + Send + 'static,
    ) -> StartSlot {
        let end = CancellationToken::new();
        let (ended, after) = (end.clone(), self.after);
        self.tracker.spawn(async move {
            _ = timeout(after, ended.run_until_cancelled(over)).await;
            drop(turn);
        });
        StartSlot {
            _end: end.drop_guard(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::start_slots::*;

    #[tokio::test]
    async fn a_slot_lapses_and_an_end_before_that_frees_it_too() {
        let after = Duration::from_millis(100);
        let tracker = TaskTracker::new();
        let slots = StartSlots::new(1, Lapse { after, tracker });
        let began = tokio::time::Instant::now();
        let first = slots.take("a").await;
        let second = slots.take("b").await;
        assert!(began.elapsed() >= after);
        drop(second);
        let _third = slots.take("c").await;
        assert!(
            began.elapsed() < after * 2,
            "the second did not wait for its end"
        );
        drop(first);
    }
}

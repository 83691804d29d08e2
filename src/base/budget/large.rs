//! Work on large messages, which no worker of the runtime waits for.
//!
//! A message of 4 MiB is some ten milliseconds of work. On a worker everybody whose socket is on it would
//! wait for that. Not here: the rotation among tenants (`rotation`), and small steps of long work
//! (`Budget::others_first`).

use std::{sync::LazyLock, thread::available_parallelism};

use futures_util::FutureExt;
use tokio::{
    runtime::{Handle, RuntimeFlavor},
    task::block_in_place,
};

use super::rotation::{Rotation, Turn};

/// A turn at work on a message; small ones need none.
pub(crate) enum LargeWork {
    /// Of a small message.
    Small,
    /// Of a large one, in a turn.
    InTurn(#[expect(dead_code, reason = "others have the turn once it is dropped")] Turn),
    /// Of a large one that has found no turn free.
    BesideTurns,
}

impl LargeWork {
    /// Whether a message of so many bytes is large.
    pub(crate) const fn is_large(bytes: usize) -> bool {
        bytes >= LARGE
    }

    /// Waits for a turn of `tenant`, if a message of so many bytes is large.
    pub(crate) async fn turn(tenant: &str, bytes: usize) -> Self {
        if !Self::is_large(bytes) {
            return Self::Small;
        }
        Self::InTurn(TURNS.take(tenant).await)
    }

    /// The same without a wait, for what is polled as its peer likes, as the body of a response is: a turn that came
    /// while the peer takes nothing would be kept from everybody.
    pub(crate) fn at_once(tenant: &str, bytes: usize) -> Self {
        let turn = Self::turn(tenant, bytes).now_or_never();
        turn.unwrap_or(Self::BesideTurns)
    }

    /// All turns, for tests.
    #[cfg(test)]
    pub(crate) async fn all_turns() -> Vec<Self> {
        let mut turns = Vec::new();
        for _ in 0..usual_turns() {
            turns.push(Self::turn("all", LARGE).await);
        }
        turns
    }

    /// Does the work; if the message is large, others take over the worker meanwhile.
    pub(crate) fn run<T>(self, work: impl FnOnce() -> T) -> T {
        match self {
            Self::Small => work(),
            Self::InTurn(_) | Self::BesideTurns => off_worker(work),
        }
    }
}

/// Does the work on this thread, whose other tasks go on with another thread.
fn off_worker<T>(work: impl FnOnce() -> T) -> T {
    // Tests have runtimes of a single thread, which cannot be left.
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => block_in_place(work),
        _ => work(),
    }
}

/// Length of a message that is large: half a millisecond of work at most. To change threads takes a tenth
/// of that.
const LARGE: usize = 256 << 10;

/// Turns of this process.
static TURNS: LazyLock<Rotation> = LazyLock::new(|| Rotation::new(usual_turns()));

/// The processors that `limits.workers` leaves by default.
fn usual_turns() -> usize {
    let processors = available_parallelism().map_or(1, usize::from);
    (processors / 4).max(1)
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use tokio_util::task::TaskTracker;

    use super::super::large::*;

    /// The only worker goes on with other tasks while it does large work.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn large_work_holds_no_other_task_up() {
        let all = [
            (LARGE, false, true),
            (LARGE, true, true),
            (LARGE - 1, false, false),
        ];
        for (bytes, is_at_once, goes_on) in all {
            let held = if is_at_once {
                LargeWork::all_turns().await
            } else {
                Vec::new()
            };
            let tracker = TaskTracker::new();
            let inner = tracker.clone();
            let (sent, received) = mpsc::sync_channel(1);
            let work = tracker.spawn(async move {
                let other = inner.spawn(async move { sent.send(()).unwrap() });
                let turn = if is_at_once {
                    LargeWork::at_once("a", bytes)
                } else {
                    LargeWork::turn("a", bytes).await
                };
                let patience = Duration::from_secs(if goes_on { 10 } else { 0 });
                let is_done = turn.run(|| received.recv_timeout(patience).is_ok());
                (is_done, other.await.is_ok())
            });
            assert_eq!(work.await.unwrap(), (goes_on, true), "{bytes}");
            drop(held);
        }
    }

    /// What is not polled any more has no turn, and none on its way.
    #[tokio::test]
    async fn work_at_once_keeps_no_turn_from_others() {
        let held = LargeWork::all_turns().await;
        let beside = LargeWork::at_once("a", LARGE);
        assert!(matches!(beside, LargeWork::BesideTurns));
        drop(held);
        let all = LargeWork::all_turns().now_or_never();
        assert!(all.is_some(), "one has gone to who did not wait");
        drop(all);
        let one = LargeWork::at_once("a", LARGE);
        assert!(matches!(one, LargeWork::InTurn(_)));
        assert!(LargeWork::all_turns().now_or_never().is_none());
    }
}

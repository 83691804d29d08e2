//! Work on large messages, which no worker of the runtime waits for.
//!
//! A message of 4 MiB is some ten milliseconds of work. On a worker everybody whose socket is on it would
//! wait for that. Not here: the rotation among tenants (`rotation`), and small steps of long work
//! (`Budget::others_first`).

use std::{sync::LazyLock, thread::available_parallelism};

use tokio::{
    runtime::{Handle, RuntimeFlavor},
    task::block_in_place,
};

use super::rotation::{Rotation, Turn};

/// A turn at work on a message; small ones need none.
pub(crate) struct LargeWork(Option<Turn>);

impl LargeWork {
    /// Whether a message of so many bytes is large.
    pub(crate) const fn is_large(bytes: usize) -> bool {
        bytes >= LARGE
    }

    /// Waits for a turn of `tenant`, if a message of so many bytes is large.
    pub(crate) async fn turn(tenant: &str, bytes: usize) -> Self {
        if !Self::is_large(bytes) {
            return Self(None);
        }
        Self(Some(TURNS.take(tenant).await))
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
        match self.0 {
            Some(_turn) => off_worker(work),
            None => work(),
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
        for (bytes, goes_on) in [(LARGE, true), (LARGE - 1, false)] {
            let tracker = TaskTracker::new();
            let inner = tracker.clone();
            let (sent, received) = mpsc::sync_channel(1);
            let work = tracker.spawn(async move {
                let other = inner.spawn(async move { sent.send(()).unwrap() });
                let turn = LargeWork::turn("a", bytes).await;
                let patience = Duration::from_secs(if goes_on { 10 } else { 0 });
                let is_done = turn.run(|| received.recv_timeout(patience).is_ok());
                (is_done, other.await.is_ok())
            });
            assert_eq!(work.await.unwrap(), (goes_on, true), "{bytes}");
        }
    }
}

//! Letting all other tasks go first.

use std::{
    future::poll_fn,
    pin::pin,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use futures_util::task::AtomicWaker;
use tokio::{task::yield_now, time::Instant};

/// Returns once the tasks that are ready have run, and the runtime has looked for what has arrived.
///
/// [`yield_now`] ends as soon as its task is woken by anybody, and hyper wakes a connection after each part
/// of a body that it has read: the same task then goes on with the next part.
pub(crate) async fn others_first() {
    let (passed, mut others) = (Arc::new(Passed::default()), pin!(yield_now()));
    let own = Waker::from(Arc::clone(&passed));
    let mut begun = false;
    poll_fn(|cx| {
        passed.task.register(cx.waker());
        if !begun {
            begun = true;
            // Not ready: it was never polled before.
            _ = others.as_mut().poll(&mut Context::from_waker(&own));
        }
        if passed.is_over.load(Ordering::Acquire) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}

/// How often workers have looked for what has arrived so far, while somebody let others go first.
pub(super) fn looks() -> u64 {
    LOOKS.load(Ordering::Relaxed)
}

/// Counts a look, at which all who let others go first are woken one behind the other.
fn note_look() {
    let now = u64::try_from(BEGAN.elapsed().as_micros()).unwrap_or(u64::MAX);
    let before = LAST.swap(now, Ordering::Relaxed);
    if Duration::from_micros(now.saturating_sub(before)) > SAME_LOOK {
        LOOKS.fetch_add(1, Ordering::Relaxed);
    }
}

/// The looks so far.
static LOOKS: AtomicU64 = AtomicU64::new(0);
/// When the last one woke somebody, in microseconds since [`BEGAN`].
static LAST: AtomicU64 = AtomicU64::new(0);
/// What these count from.
static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
/// The most time between two that are woken by one look. Shorter looks leave nobody waiting.
const SAME_LOOK: Duration = Duration::from_micros(50);

/// Whether the others have gone first, and the task that waits for it.
#[derive(Default)]
struct Passed {
    is_over: AtomicBool,
    task: AtomicWaker,
}

impl Wake for Passed {
    fn wake(self: Arc<Self>) {
        note_look();
        self.is_over.store(true, Ordering::Release);
        self.task.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A task that something else wakes all the time does not go on before the runtime has looked for what
    /// has arrived: a body that came as fast as it was read kept a worker for a millisecond at a time.
    #[tokio::test]
    async fn a_task_that_is_woken_again_and_again_waits_nevertheless() {
        let mut passing = pin!(others_first());
        for _ in 0..3 {
            let mut cx = Context::from_waker(Waker::noop());
            assert!(passing.as_mut().poll(&mut cx).is_pending());
        }
        passing.await;
    }
}

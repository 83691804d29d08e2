//! Letting all other tasks go first.

use std::{
    future::poll_fn,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use futures_util::task::AtomicWaker;
use tokio::task::yield_now;

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

/// Whether the others have gone first, and the task that waits for it.
#[derive(Default)]
struct Passed {
    is_over: AtomicBool,
    task: AtomicWaker,
}

impl Wake for Passed {
    fn wake(self: Arc<Self>) {
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

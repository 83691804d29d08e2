//! Memory of the allocator, which threads give back.

use std::{cell::Cell, time::Duration};

use tokio::time::Instant;

/// Gives back what other threads have freed of this thread's memory, at most once in [`PAUSE`]; for a
/// thread that has nothing to do.
///
/// mimalloc keeps blocks that another thread has freed until the thread that allocated them asks for
/// more. Sessions begin on one worker and end on another, so that an idle gateway would keep the memory
/// of its busiest time.
pub(crate) fn give_back() {
    LAST.with(|last| {
        let now = Instant::now();
        if last.get().is_some_and(|last| now - last < PAUSE) {
            return;
        }
        last.set(Some(now));
        #[expect(unsafe_code, reason = "the crate has no safe wrapper")]
        // SAFETY: mi_collect has no preconditions; it works on the heap of this thread.
        unsafe {
            libmimalloc_sys::mi_collect(true);
        }
    });
}

thread_local! {
    static LAST: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// The time between two collections of a thread.
const PAUSE: Duration = Duration::from_secs(1);

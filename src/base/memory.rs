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

/// Gives freed memory back to the system within a tenth of a second instead of ten; before the threads of
/// the runtime. `MIMALLOC_PURGE_DELAY` wins.
///
/// Large messages leave large blocks behind: with the delay of mimalloc, some requests of 4 MiB one after
/// the other held 25 MiB, now 14.
pub(crate) fn purge_soon() {
    #[expect(unsafe_code, reason = "the crate has no safe wrapper")]
    // SAFETY: sets a number, before other threads read it.
    unsafe {
        libmimalloc_sys::mi_option_set_default(PURGE_DELAY, 10);
    }
}

thread_local! {
    static LAST: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// The time between two collections of a thread.
const PAUSE: Duration = Duration::from_secs(1);
/// `mi_option_purge_delay` in milliseconds, which the crate has no name for; an arena waits ten times as
/// long.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;

#[cfg(test)]
mod tests {
    use crate::base::memory::*;

    #[test]
    fn the_option_is_that_of_the_delay() {
        #[expect(unsafe_code, reason = "the crate has no safe wrapper")]
        // SAFETY: reads a number.
        let delay = || unsafe { libmimalloc_sys::mi_option_get(PURGE_DELAY) };
        // The only option whose default is a second.
        assert_eq!(delay(), 1000);
        purge_soon();
        assert_eq!(delay(), 10);
    }
}

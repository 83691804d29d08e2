//! Allocator of the gateway, its memory, which threads give back, and futures on the heap.

use std::{
    alloc::{GlobalAlloc, Layout},
    cell::Cell,
    pin::Pin,
    time::Duration,
};

use libmimalloc_sys::{
    mi_free, mi_malloc, mi_malloc_aligned, mi_realloc, mi_realloc_aligned, mi_zalloc,
    mi_zalloc_aligned,
};

use tokio::time::Instant;

/// mimalloc, asked for an alignment only where it has to be: each block is aligned for most types as it
/// is, and what the crate's own allocator asks takes several times as long.
#[derive(Debug)]
pub struct Allocator;

impl Allocator {
    /// Whether every block of this layout is aligned as it has to be (`mi_malloc_satisfies_alignment`).
    const fn is_aligned(layout: &Layout, size: usize) -> bool {
        layout.align() <= 8 || (layout.align() == 16 && size > 8)
    }
}

#[expect(unsafe_code, reason = "the trait is unsafe")]
// SAFETY: mimalloc's functions keep the contract of the trait, as long as each block is aligned: those
// of `is_aligned` are, and the others are asked for with their alignment.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let size = layout.size();
        // SAFETY: any size and any power of two is good.
        let block = unsafe {
            if Self::is_aligned(&layout, size) {
                mi_malloc(size)
            } else {
                mi_malloc_aligned(size, layout.align())
            }
        };
        block.cast()
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let size = layout.size();
        // SAFETY: as above.
        let block = unsafe {
            if Self::is_aligned(&layout, size) {
                mi_zalloc(size)
            } else {
                mi_zalloc_aligned(size, layout.align())
            }
        };
        block.cast()
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller has `block` from this allocator.
        let block = unsafe {
            if Self::is_aligned(&layout, size) {
                mi_realloc(block.cast(), size)
            } else {
                mi_realloc_aligned(block.cast(), size, layout.align())
            }
        };
        block.cast()
    }

    unsafe fn dealloc(&self, block: *mut u8, _: Layout) {
        // SAFETY: the caller has `block` from this allocator.
        unsafe { mi_free(block.cast()) }
    }
}

/// A future on the heap, built in place.
///
/// `Box::pin(future)` builds it on the stack and copies all of it, with the room for its later states: 9 KiB for
/// each request, to memory that is in no cache. Here the memory is allocated first, so that only what the future
/// begins with is written.
#[inline]
pub(crate) fn pinned<F>(make: impl FnOnce() -> F) -> Pin<Box<F>> {
    let place = Box::new_uninit();
    Box::into_pin(Box::write(place, make()))
}

/// Gives back what other threads have freed of this thread's memory, at most once in [`PAUSE`]; for a
/// thread that has nothing to do: it may have a request in the next instant, which waits until the end of this.
///
/// mimalloc keeps blocks that another thread has freed until the thread that allocated them asks for
/// more. Sessions begin on one worker and end on another, so that an idle gateway would keep the memory
/// of its busiest time.
pub(crate) fn give_back() {
    NEXT.with(|next| {
        let began = Instant::now();
        if next.get().is_some_and(|next| began < next) {
            return;
        }
        #[expect(unsafe_code, reason = "the crate has no safe wrapper")]
        // SAFETY: mi_collect has no preconditions; it works on the heap of this thread.
        unsafe {
            libmimalloc_sys::mi_collect(true);
        }
        let ended = Instant::now();
        next.set(Some(ended + pause_after(ended - began)));
    });
}

/// The pause after a collection that took so long: a large memory takes a thousandth of a thread's time at most.
fn pause_after(took: Duration) -> Duration {
    PAUSE.max(took * 1000)
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
    static NEXT: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// The least time between two collections of a thread.
const PAUSE: Duration = Duration::from_secs(1);
/// `mi_option_purge_delay` in milliseconds, which the crate has no name for; an arena waits ten times as
/// long.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;

#[cfg(test)]
mod tests {
    use crate::base::memory::*;

    #[test]
    fn blocks_are_aligned_and_keep_their_bytes() {
        let sizes = [1, 7, 8, 9, 16, 17, 100, 1000, 1025, 5000, 100_000];
        for (size, align) in (0..=13).flat_map(|power| sizes.map(|size| (size, 1_usize << power))) {
            let layout = Layout::from_size_align(size, align).unwrap();
            let larger = Layout::from_size_align(size * 3, align).unwrap();
            #[expect(unsafe_code, reason = "the trait is unsafe")]
            // SAFETY: sizes above zero, and blocks that are freed once with their own layouts.
            unsafe {
                let (zeroed, block) = (Allocator.alloc_zeroed(layout), Allocator.alloc(layout));
                assert!(zeroed.addr().is_multiple_of(align), "{layout:?}");
                assert!(block.addr().is_multiple_of(align), "{layout:?}");
                let bytes = std::slice::from_raw_parts(zeroed, size);
                assert!(bytes.iter().all(|byte| *byte == 0));
                block.write_bytes(7, size);
                let grown = Allocator.realloc(block, layout, larger.size());
                assert!(grown.addr().is_multiple_of(align), "{layout:?}");
                let bytes = std::slice::from_raw_parts(grown, size);
                assert!(bytes.iter().all(|byte| *byte == 7));
                Allocator.dealloc(grown, larger);
                Allocator.dealloc(zeroed, layout);
            }
        }
    }

    /// One in each second took milliseconds of a large memory, right behind a request that a child had been passed.
    #[test]
    fn collections_that_take_long_are_few() {
        let millis = Duration::from_millis;
        let pauses = [0, 1, 5].map(|took| pause_after(millis(took)));
        assert_eq!(pauses, [millis(1000), millis(1000), millis(5000)]);
    }

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

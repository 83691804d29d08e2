//! The `lockgate` program, which counts the allocations of all its threads: the test reads their number
//! from the file that `COUNTED` names, in the byte order of the machine.

use std::{
    alloc::{GlobalAlloc, Layout},
    fs::File,
    sync::OnceLock,
    sync::atomic::{AtomicU64, Ordering},
};

use rustix::mm::{MapFlags, ProtFlags, mmap};

struct Counted;

static INNER: lockgate::Allocator = lockgate::Allocator;
static COUNT: OnceLock<&'static AtomicU64> = OnceLock::new();

fn count() {
    if let Some(count) = COUNT.get() {
        count.fetch_add(1, Ordering::Relaxed);
    }
}

#[expect(unsafe_code, reason = "the trait is unsafe")]
// SAFETY: all is done by the inner allocator.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as the caller's.
        unsafe { INNER.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as the caller's.
        unsafe { INNER.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as the caller's.
        unsafe { INNER.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as the caller's.
        unsafe { INNER.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counted = Counted;

/// Maps the file into memory, as a counter that others see.
fn map(file: &File) -> &'static AtomicU64 {
    let size = size_of::<AtomicU64>();
    let access = ProtFlags::READ | ProtFlags::WRITE;
    #[expect(unsafe_code, reason = "memory is shared with another process")]
    // SAFETY: the mapping is new and stays for ever; it is aligned to a page, and the file is as long as
    // the counter.
    unsafe {
        let place = mmap(
            std::ptr::null_mut(),
            size,
            access,
            MapFlags::SHARED,
            file,
            0,
        );
        AtomicU64::from_ptr(place.expect("the file is mapped").cast())
    }
}

#[expect(clippy::disallowed_methods, reason = "no setting of the gateway's")]
fn main() -> std::process::ExitCode {
    lockgate::guard();
    if let Some(path) = std::env::var_os("COUNTED") {
        let file = File::options().read(true).write(true).open(path);
        let file = file.expect("COUNTED is a file");
        file.set_len(8).expect("it has a length");
        _ = COUNT.set(map(&file));
    }
    lockgate::main()
}

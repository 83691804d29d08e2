//! The `lockgate` program, which counts the allocations of all its threads: the tests read their number,
//! the bytes that are allocated now, and those of all allocations so far, from the file that `COUNTED` names, in
//! the byte order of the machine.

use std::{
    alloc::{GlobalAlloc, Layout},
    fs::File,
    sync::OnceLock,
    sync::atomic::{AtomicU64, Ordering},
};

use rustix::mm::{MapFlags, ProtFlags, mmap};

struct Counted;

static INNER: lockgate::Allocator = lockgate::Allocator;
static COUNT: OnceLock<&'static Count> = OnceLock::new();

/// What others see.
#[repr(C)]
struct Count {
    allocations: AtomicU64,
    /// Bytes that are allocated now, from the first look on.
    bytes: AtomicU64,
    /// Bytes of all allocations.
    allocated: AtomicU64,
}

fn count(more: usize, less: usize) {
    if let Some(count) = COUNT.get() {
        count
            .allocations
            .fetch_add(u64::from(more > 0), Ordering::Relaxed);
        count.bytes.fetch_add(more as u64, Ordering::Relaxed);
        count.allocated.fetch_add(more as u64, Ordering::Relaxed);
        count.bytes.fetch_sub(less as u64, Ordering::Relaxed);
    }
}

#[expect(unsafe_code, reason = "the trait is unsafe")]
// SAFETY: all is done by the inner allocator.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: as the caller's.
        unsafe { INNER.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: as the caller's.
        unsafe { INNER.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size, layout.size());
        // SAFETY: as the caller's.
        unsafe { INNER.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(0, layout.size());
        // SAFETY: as the caller's.
        unsafe { INNER.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counted = Counted;

/// Maps the file into memory, as counters that others see.
fn map(file: &File) -> &'static Count {
    let size = size_of::<Count>();
    let access = ProtFlags::READ | ProtFlags::WRITE;
    #[expect(unsafe_code, reason = "memory is shared with another process")]
    // SAFETY: the mapping is new and stays for ever; it is aligned to a page, and the file is as long as
    // the counters, for which every content is good.
    unsafe {
        let place = mmap(
            std::ptr::null_mut(),
            size,
            access,
            MapFlags::SHARED,
            file,
            0,
        );
        &*place.expect("the file is mapped").cast::<Count>()
    }
}

#[expect(clippy::disallowed_methods, reason = "no setting of the gateway's")]
fn main() -> std::process::ExitCode {
    lockgate::guard();
    if let Some(path) = std::env::var_os("COUNTED") {
        let file = File::options().read(true).write(true).open(path);
        let file = file.expect("COUNTED is a file");
        let length = size_of::<Count>() as u64;
        file.set_len(length).expect("it has a length");
        _ = COUNT.set(map(&file));
    }
    lockgate::main()
}

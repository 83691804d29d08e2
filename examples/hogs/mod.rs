//! What the hostile child takes of the machine: processors, memory, disk and process ids.

use std::{
    io::Write,
    sync::{Mutex, mpsc},
    thread,
};

use crate::{lock, sleep};

/// The memory of [`hold`].
static HELD: Mutex<Vec<u8>> = Mutex::new(Vec::new());

/// Takes memory and all processors for a while.
pub(crate) fn hog(bytes: u64, ms: u64) -> String {
    let held = vec![1_u8; usize::try_from(bytes).unwrap_or(0)];
    let threads: Vec<_> = (0..8)
        .map(|_| {
            thread::spawn(move || {
                let (ended, waits) = mpsc::channel::<()>();
                thread::spawn(move || {
                    sleep(ms);
                    drop(ended);
                });
                let mut turns = 0_u64;
                while waits.try_recv() == Err(mpsc::TryRecvError::Empty) {
                    turns = std::hint::black_box(turns + 1);
                }
            })
        })
        .collect();
    for thread in threads {
        _ = thread.join();
    }
    format!("held {}", held.len())
}

/// Has so much memory in use from now on.
pub(crate) fn hold(bytes: u64) -> String {
    let mut held = lock(&HELD);
    *held = vec![1_u8; usize::try_from(bytes).unwrap_or(0)];
    format!("held {}", held.len())
}

/// Writes until it may no more.
pub(crate) fn fill(path: &str, bytes: u64) -> String {
    // SAFETY: no handler, only an ignored signal: the write fails instead.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let Ok(mut file) = std::fs::File::create(path) else {
        return "refused".into();
    };
    let chunk = vec![b'f'; 64 << 10];
    let mut left = usize::try_from(bytes).unwrap_or(0);
    while left > 0 && file.write_all(&chunk[..left.min(chunk.len())]).is_ok() {
        left -= left.min(chunk.len());
    }
    let length = file.metadata().map_or(0, |file| file.len());
    format!("filled {length}")
}

/// Leaves processes that fork and end at each step, in a session of their own each time, for so long at
/// most. All of them hold the lock of a file.
pub(crate) fn outrun(path: &str, ms: u64) -> String {
    let now = || {
        // SAFETY: the call only writes to `now`.
        unsafe {
            let mut now = std::mem::zeroed::<libc::timespec>();
            libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now);
            now.tv_sec.cast_unsigned() * 1000 + now.tv_nsec.cast_unsigned() / 1_000_000
        }
    };
    let end = now() + ms;
    let is_locked = std::fs::File::open(path).is_ok_and(|file| {
        let is_locked = file.try_lock().is_ok();
        // Each process that is forked has it.
        std::mem::forget(file);
        is_locked
    });
    if !is_locked {
        return "refused".into();
    }
    for _ in 0..RUNNERS {
        // SAFETY: the new processes only make system calls, and there are never more than a few.
        unsafe {
            if libc::fork() == 0 {
                while now() < end {
                    libc::setsid();
                    if libc::fork() > 0 {
                        break;
                    }
                }
                libc::_exit(0);
            }
        }
    }
    "ran".into()
}

/// Processes of [`outrun`] at a time.
const RUNNERS: usize = 8;

//! Threads of the runtime.

use std::{
    io,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use tokio::runtime::{Builder, Runtime};

use crate::{backend::linux::syscalls::set_time_slice, base::memory};

/// A runtime with so many workers.
pub(super) fn runtime(workers: usize) -> io::Result<Runtime> {
    let begun = AtomicUsize::new(0);
    Builder::new_multi_thread()
        .worker_threads(workers)
        .event_interval(EVENT_INTERVAL)
        .enable_all()
        .on_thread_start(move || {
            // The workers begin first and stay; those after them are for what blocks.
            if begun.fetch_add(1, Ordering::Relaxed) < workers {
                // A kernel or a sandbox that does not permit it costs time only.
                _ = set_time_slice(TIME_SLICE);
            }
        })
        .on_thread_park(memory::give_back)
        .build()
}

/// The tasks that a worker runs before it looks at its sockets again: each may take some 100 µs, and a request that
/// has come meanwhile waits for all of them. With 16, many requests at once are 7 % slower; with 32 they are not.
const EVENT_INTERVAL: u32 = 32;

/// The processor's time that a worker asks for at a time. The kernel gives a thread that asks for little the processor
/// before one that asks for much: a worker that is woken does not wait for the slices, of 0.7 to 2.8 ms each, of all
/// servers and other programs that compute. Its share is the same. With 100 µs, many sessions are 5 to 15 % slower, since
/// others interrupt a worker after that time.
const TIME_SLICE: Duration = Duration::from_micros(600);

#[cfg(test)]
mod tests {
    use tokio_util::task::TaskTracker;

    use super::super::workers::*;
    use crate::backend::linux::syscalls::time_slice;

    /// Workers waited for all that computed: with two compilers beside them, calls took up to 45 ms.
    #[test]
    fn workers_have_short_time_slices_and_what_they_start_has_not() {
        let usual = time_slice().unwrap();
        let runtime = runtime(2).unwrap();
        let slice = async || {
            TaskTracker::new()
                .spawn(async { time_slice().unwrap() })
                .await
                .unwrap()
        };
        let blocking = async || {
            TaskTracker::new()
                .spawn_blocking(|| time_slice().unwrap())
                .await
                .unwrap()
        };
        let thread = async || {
            let started = async { std::thread::spawn(|| time_slice().unwrap()).join().unwrap() };
            TaskTracker::new().spawn(started).await.unwrap()
        };
        let found = runtime.block_on(async { (slice().await, blocking().await, thread().await) });
        // Before Linux 6.12 there are no slices of a thread's own, and none is told.
        let short = if usual.is_zero() { usual } else { TIME_SLICE };
        assert_eq!(found, (short, usual, usual));
    }
}

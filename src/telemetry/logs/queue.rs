//! Queue of log output, and the thread that writes it.
//!
//! Logging never delays or fails a request. Output is appended to a bounded buffer; if its reader
//! stalls, lines are dropped and counted. The thread takes what has gathered every few milliseconds:
//! with a wake and a write for each line, a line cost its request 24 µs.

use std::io::{self, Write};
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::thread::{self, Thread};
use std::time::Duration;

use time::UtcOffset;

use crate::base::{Output, Progress, Screen};

/// Queue of log output; a handle.
#[derive(Clone, Debug)]
pub(crate) struct Logs {
    queue: Arc<Queue>,
    thread: Arc<Writer>,
    /// Whether lines of progress are drawn again in their place.
    redraws: bool,
    /// The local time of short lines.
    offset: UtcOffset,
}

/// What has not been written.
#[derive(Debug, Default)]
struct Queue {
    waiting: Lock,
    /// Bytes that wait, those of the write under way included. The number of lines is no sufficient
    /// bound, because their sizes differ.
    bytes: AtomicUsize,
    /// Lines that were dropped.
    dropped: AtomicU64,
    /// The thread waits to be woken.
    is_asleep: AtomicBool,
    /// Every handle is gone.
    is_closed: AtomicBool,
}

/// Held for an append only, never across a write.
#[expect(
    clippy::disallowed_types,
    reason = "appended to by every task; a channel would wake its receiver for each line"
)]
type Lock = std::sync::Mutex<Waiting>;

#[derive(Debug, Default)]
struct Waiting {
    outputs: Vec<Output>,
    /// An empty buffer of lines, kept for its memory.
    spare: Vec<u8>,
}

/// The thread that writes; it ends with its last handle.
#[derive(Debug)]
struct Writer {
    queue: Arc<Queue>,
    thread: Thread,
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.queue.is_closed.store(true, Ordering::SeqCst);
        self.thread.unpark();
    }
}

impl Logs {
    /// Progress on stderr, for a command that logs nothing.
    pub(crate) fn progress(screen: Screen) -> io::Result<Self> {
        Self::to(io::stderr(), screen.redraws())
    }

    /// Makes a queue and starts the thread that writes it to `sink`. `redraws`: whether lines of
    /// progress are drawn again in their place.
    pub(super) fn to(sink: impl Write + Send + 'static, redraws: bool) -> io::Result<Self> {
        let queue = Arc::new(Queue::default());
        let own = Arc::clone(&queue);
        // Before the thread: a process with several has no local time that is safe to read.
        let offset = UtcOffset::current_local_offset().unwrap_or(UtcOffset::UTC);
        // A thread and not a task, because the write may block without limit.
        let thread = thread::Builder::new()
            .name("logs".into())
            .spawn(move || drain(sink, &own, redraws))?;
        let thread = Arc::new(Writer {
            queue: Arc::clone(&queue),
            thread: thread.thread().clone(),
        });
        Ok(Self {
            queue,
            thread,
            redraws,
            offset,
        })
    }

    /// The local time of short lines.
    pub(super) fn offset(&self) -> UtcOffset {
        self.offset
    }

    /// Returns the number of lines dropped so far.
    pub(crate) fn dropped(&self) -> u64 {
        self.queue.dropped.load(Ordering::Relaxed)
    }

    /// Waits until all output is written, at most `limit`. Blocks the thread; for the end of `main`.
    pub(crate) fn flush(&self, limit: Duration) {
        let step = Duration::from_millis(2);
        let mut waited = Duration::ZERO;
        while self.queue.bytes.load(Ordering::Acquire) > 0 && waited < limit {
            thread::sleep(step);
            waited += step;
        }
    }

    /// Writes the last line of the process to stderr, within `limit`: the reader of a full pipe may never go on,
    /// and the process has to end.
    pub(crate) fn last(line: &str, limit: Duration) {
        match Self::to(io::stderr(), false) {
            Ok(last) => {
                last.line(format!("{line}\n").as_bytes());
                last.flush(limit);
            }
            // Without a thread to wait for: that is rarer than a full pipe, and may be what the line is about.
            Err(_) => eprintln!("{line}"),
        }
    }

    /// Shows work that begins: as a line that is drawn again until its end, else as `line`.
    pub(crate) fn begin(&self, key: String, text: String, line: &str) {
        if self.redraws {
            self.push(Output::Begin { key, text });
        } else {
            self.line(line.as_bytes());
        }
    }

    /// Replaces the line of work that has ended by `line`.
    pub(crate) fn end(&self, key: String, line: &str) {
        self.push(Output::End { key });
        self.line(line.as_bytes());
    }

    /// Removes the lines of work that has not ended: the process ends before it.
    pub(crate) fn settle(&self) {
        self.push(Output::Settle);
    }

    /// Appends a whole line.
    pub(super) fn line(&self, line: &[u8]) {
        self.admitted(line.len(), |waiting| waiting.line(line));
    }

    fn push(&self, output: Output) {
        self.admitted(output.size(), |waiting| waiting.outputs.push(output));
    }

    /// Appends output of `size` bytes, unless it would exceed the bound.
    fn admitted(&self, size: usize, append: impl FnOnce(&mut Waiting)) {
        let queue = &self.queue;
        let before = queue.bytes.fetch_add(size, Ordering::Relaxed);
        if before + size > BYTES_WAITING {
            queue.bytes.fetch_sub(size, Ordering::Relaxed);
            queue.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        append(&mut queue.locked());
        // The thread says that it is asleep before it looks into the queue for the last time.
        if queue.is_asleep.load(Ordering::SeqCst) && queue.is_asleep.swap(false, Ordering::SeqCst) {
            self.thread.thread.unpark();
        }
    }
}

impl Queue {
    fn locked(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for output, for the end of all handles, or at most `limit`.
    fn sleep(&self, limit: Option<Duration>) {
        self.is_asleep.store(true, Ordering::SeqCst);
        let is_due = !self.locked().outputs.is_empty() || self.is_closed.load(Ordering::SeqCst);
        match limit {
            _ if is_due => {}
            Some(limit) => thread::park_timeout(limit),
            None => thread::park(),
        }
        self.is_asleep.store(false, Ordering::SeqCst);
    }

    /// Keeps the memory of a buffer that was written.
    fn keep(&self, mut buffer: Vec<u8>) {
        if buffer.capacity() <= SPARE {
            buffer.clear();
            self.locked().spare = buffer;
        }
    }
}

impl Waiting {
    fn line(&mut self, line: &[u8]) {
        if let Some(Output::Lines(lines)) = self.outputs.last_mut() {
            lines.extend_from_slice(line);
        } else {
            let mut lines = mem::take(&mut self.spare);
            lines.extend_from_slice(line);
            self.outputs.push(Output::Lines(lines));
        }
    }
}

/// Writes output until every handle is gone.
fn drain(mut sink: impl Write, queue: &Queue, redraws: bool) {
    let mut progress = Progress::default();
    // A full disk or a closed pipe may recover, so later lines are still tried.
    let mut write = |bytes: &[u8]| {
        if sink.write_all(bytes).and_then(|()| sink.flush()).is_err() {
            let lines = memchr::memchr_iter(b'\n', bytes).count().max(1);
            queue.dropped.fetch_add(lines as u64, Ordering::Relaxed);
        }
    };
    loop {
        // Before the queue is taken: what came before the end is written.
        let is_closed = queue.is_closed.load(Ordering::SeqCst);
        let outputs = mem::take(&mut queue.locked().outputs);
        if outputs.is_empty() {
            if is_closed {
                return;
            }
            let is_drawn = redraws && !progress.is_empty();
            queue.sleep(is_drawn.then_some(REDRAW));
            if is_drawn {
                write(&progress.redrawn());
            }
            continue;
        }
        for output in outputs {
            let size = output.size();
            let bytes = progress.take(output);
            write(&bytes);
            queue.bytes.fetch_sub(size, Ordering::Release);
            queue.keep(bytes);
        }
        thread::sleep(GATHER);
    }
}

/// The time between two writes of a busy gateway: not noticed by people, and hundreds of lines.
const GATHER: Duration = Duration::from_millis(5);
/// The time between two drawings of a line of progress.
const REDRAW: Duration = Duration::from_millis(500);
/// Most bytes in the queue: the memory that a stalled sink may cost.
const BYTES_WAITING: usize = 8 << 20;
/// Most bytes of a buffer that is kept: the lines that a busy gateway writes at once.
const SPARE: usize = 256 << 10;

#[cfg(test)]
#[expect(
    clippy::disallowed_types,
    reason = "plain threads; nothing here is async"
)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver, sync_channel};

    use super::super::queue::*;

    /// A sink that keeps what it is given, each write apart.
    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<Vec<u8>>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("lock").push(bytes.to_vec());
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A sink that takes nothing until it is told to.
    struct Stalled(Receiver<()>);

    impl Write for Stalled {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A sink that fails.
    struct Full;

    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_stalled_sink_loses_lines_and_delays_no_request() {
        let (go, stop) = sync_channel(0);
        let logs = Logs::to(Stalled(stop), false).expect("thread");
        let line = vec![b'x'; 1024];
        for _ in 0..2 * BYTES_WAITING / line.len() {
            logs.line(&line);
        }
        assert!(logs.dropped() > 0, "the bound holds");
        assert!(logs.queue.bytes.load(Ordering::Relaxed) <= BYTES_WAITING);
        let metrics = crate::telemetry::Metrics::new(Some(logs.clone())).expect("metrics");
        let shown = format!("lockgate_log_lines_dropped_total {}", logs.dropped());
        assert!(metrics.render().contains(&shown), "{}", metrics.render());
        drop(go);
        logs.flush(Duration::from_secs(5));
        assert_eq!(logs.queue.bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn lines_of_many_threads_come_whole_in_few_writes_and_each_threads_in_order() {
        let kept = Kept::default();
        let logs = Logs::to(kept.clone(), false).expect("thread");
        let began = tokio::time::Instant::now();
        thread::scope(|scope| {
            for thread in 0..4 {
                let logs = logs.clone();
                scope.spawn(move || {
                    for number in 0..5000 {
                        logs.line(format!("{thread} {number}\n").as_bytes());
                    }
                });
            }
        });
        logs.flush(Duration::from_secs(5));
        let writes = kept.0.lock().expect("lock").clone();
        let most = began.elapsed().as_millis() / GATHER.as_millis() + 2;
        assert!((writes.len() as u128) <= most, "{} writes", writes.len());
        let text = String::from_utf8(writes.concat()).expect("UTF-8");
        for thread in 0..4 {
            let own = text
                .lines()
                .filter(|line| line.starts_with(&format!("{thread} ")));
            let wanted = (0..5000).map(|number| format!("{thread} {number}"));
            assert!(own.eq(wanted), "{thread}");
        }
        assert_eq!(text.lines().count(), 20_000);
    }

    #[test]
    fn a_line_after_a_long_silence_is_written_at_once() {
        let kept = Kept::default();
        let logs = Logs::to(kept.clone(), false).expect("thread");
        for number in 1..=20 {
            let end = tokio::time::Instant::now() + Duration::from_secs(5);
            while !logs.queue.is_asleep.load(Ordering::SeqCst) && end.elapsed().is_zero() {
                thread::yield_now();
            }
            logs.line(b"x\n");
            logs.flush(Duration::from_secs(5));
            assert_eq!(kept.0.lock().expect("lock").len(), number);
        }
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted() {
        let logs = Logs::to(Full, false).expect("thread");
        for _ in 0..100 {
            logs.line(b"x\n");
        }
        logs.flush(Duration::from_secs(5));
        assert_eq!(logs.dropped(), 100);
    }

    #[test]
    fn the_thread_writes_all_and_ends_with_the_last_handle() {
        let kept = Kept::default();
        let logs = Logs::to(kept.clone(), false).expect("thread");
        let queue = Arc::clone(&logs.queue);
        logs.line(b"last\n");
        drop(logs);
        let end = tokio::time::Instant::now() + Duration::from_secs(5);
        while Arc::strong_count(&queue) > 1 {
            assert!(end.elapsed().is_zero(), "the thread still has the queue");
            thread::yield_now();
        }
        assert_eq!(kept.0.lock().expect("lock").concat(), b"last\n");
    }
}

//! The queue of audit records that belong to no change: denials, and calls of servers with call
//! auditing; and of the steps of authorization attempts.
//!
//! One task writes them in batches, so no request waits for the database. The queue is bounded
//! in records and in bytes. Records that find it full or the database unreachable are dropped and
//! counted.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::current::CurrentSnapshot;
use crate::database::{Record, oauth::Step};

/// The queue of audit records; clones share it.
#[derive(Clone)]
pub(crate) struct AuditQueue {
    /// None for a queue that discards every record.
    sender: Option<mpsc::Sender<Queued>>,
    bytes: QueuedBytes,
    on_dropped: OnDropped,
}

/// The bytes of the records that are not written yet.
type QueuedBytes = Arc<AtomicUsize>;

/// Receives the number of dropped records.
pub(crate) type OnDropped = Arc<dyn Fn(u64) + Send + Sync>;

enum Queued {
    /// A record to write.
    Record(Box<Record>),
    /// A step to write.
    Step(Box<Step>),
    /// A caller that waits until all earlier records are written.
    Flush(oneshot::Sender<()>),
}

impl AuditQueue {
    /// A queue that discards every record, for gateways without a database.
    pub(crate) fn disabled() -> Self {
        Self {
            sender: None,
            bytes: QueuedBytes::default(),
            on_dropped: Arc::new(|_| ()),
        }
    }

    /// A queue into the database of `live`. Its task belongs to `tracker` and ends with `stop`,
    /// after it has written the queued records.
    pub(crate) fn new(
        snapshot: Arc<CurrentSnapshot>,
        on_dropped: OnDropped,
        tracker: &TaskTracker,
        stop: CancellationToken,
    ) -> Self {
        let (sender, queued) = mpsc::channel(QUEUE);
        let bytes = QueuedBytes::default();
        let writer = Writer {
            snapshot,
            bytes: Arc::clone(&bytes),
            on_dropped: Arc::clone(&on_dropped),
        };
        tracker.spawn(writer.run(queued, stop));
        Self {
            sender: Some(sender),
            bytes,
            on_dropped,
        }
    }

    /// Queues a record of what happens now, or began when the record says so.
    pub(crate) fn add(&self, record: Record) {
        let record = record.since(Instant::now());
        self.queue(record.size(), Queued::Record(Box::new(record)));
    }

    /// Queues a step of an authorization attempt.
    pub(crate) fn add_step(&self, step: Step) {
        self.queue(step.size(), Queued::Step(Box::new(step)));
    }

    fn queue(&self, size: usize, queued: Queued) {
        let Some(sender) = &self.sender else {
            return;
        };
        let before = self.bytes.fetch_add(size, Ordering::Relaxed);
        let fits = before + size <= QUEUE_BYTES;
        if !fits || sender.try_send(queued).is_err() {
            self.bytes.fetch_sub(size, Ordering::Relaxed);
            (self.on_dropped)(1);
        }
    }

    /// The number of queued records.
    pub(crate) fn len(&self) -> usize {
        let queue = self.sender.as_ref();
        queue.map_or(0, |queue| queue.max_capacity() - queue.capacity())
    }

    /// Waits until all queued records are written, at most for [`FLUSH_TIMEOUT`].
    pub(crate) async fn flush(&self) {
        let Some(queue) = &self.sender else {
            return;
        };
        let (done, written) = oneshot::channel();
        let waiting = async {
            queue.send(Queued::Flush(done)).await.ok()?;
            written.await.ok()
        };
        // Records that an unreachable database loses are counted, so the timeout is no error.
        let _ = tokio::time::timeout(FLUSH_TIMEOUT, waiting).await;
    }
}

struct Writer {
    snapshot: Arc<CurrentSnapshot>,
    bytes: QueuedBytes,
    on_dropped: OnDropped,
}

impl Writer {
    async fn run(self, mut queued: mpsc::Receiver<Queued>, stop: CancellationToken) {
        loop {
            let mut batch = Vec::new();
            let count = tokio::select! {
                count = queued.recv_many(&mut batch, BATCH) => count,
                () = stop.cancelled() => {
                    queued.close();
                    queued.recv_many(&mut batch, QUEUE).await
                }
            };
            if count == 0 {
                return;
            }
            self.write(batch).await;
        }
    }

    async fn write(&self, batch: Vec<Queued>) {
        let (mut records, mut steps, mut waiting) = (Vec::new(), Vec::new(), Vec::new());
        for queued in batch {
            match queued {
                Queued::Record(record) => records.push(*record),
                Queued::Step(step) => steps.push(*step),
                Queued::Flush(done) => waiting.push(done),
            }
        }
        if !records.is_empty() {
            let written = match self.snapshot.database() {
                Ok(store) => store.audit().append(&records).await.is_ok(),
                Err(_) => false,
            };
            if !written {
                (self.on_dropped)(records.len() as u64);
            }
            let size = records.iter().map(Record::size).sum();
            self.bytes.fetch_sub(size, Ordering::Relaxed);
        }
        for done in waiting {
            // The waiting caller may have timed out.
            let _ = done.send(());
        }
        // After those who wait for records.
        self.write_steps(&steps).await;
    }

    /// Writes steps. They explain and prove nothing, so that those which are lost are not counted.
    async fn write_steps(&self, steps: &[Step]) {
        if steps.is_empty() {
            return;
        }
        if let Ok(store) = self.snapshot.database()
            && let Err(error) = store.login_steps().add(steps).await
        {
            tracing::debug!(%error, "steps of attempts to log in are lost");
        }
        let size = steps.iter().map(Step::size).sum();
        self.bytes.fetch_sub(size, Ordering::Relaxed);
    }
}

/// Maximum number of queued records and steps.
const QUEUE: usize = 4096;
/// Maximum bytes of queued records: 2 KiB for each, where most have less than one.
const QUEUE_BYTES: usize = 8 << 20;
/// Maximum number of records in a transaction.
const BATCH: usize = 256;
/// Maximum time that a denial waits for its record.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use serde_json::json;

    use super::super::audit_queue::*;

    /// A stop and a record at the same instant. Without a database every record is counted as
    /// dropped, so each one is either written or counted.
    #[tokio::test]
    async fn no_record_is_forgotten_at_the_stop() {
        let dropped = Arc::new(AtomicU64::new(0));
        let tracker = TaskTracker::new();
        // Twenty queues: the task of one may see the record before the stop by chance.
        for _ in 0..20 {
            let (counted, stop) = (Arc::clone(&dropped), CancellationToken::new());
            let on_dropped: OnDropped = Arc::new(move |count| {
                counted.fetch_add(count, Ordering::Relaxed);
            });
            let snapshot = CurrentSnapshot::empty();
            let queue = AuditQueue::new(snapshot, on_dropped, &tracker, stop.clone());
            queue.add(Record::new(None, "denied", "", "x", json!({})));
            stop.cancel();
        }
        tracker.close();
        tracker.wait().await;
        assert_eq!(dropped.load(Ordering::Relaxed), 20);
    }

    /// Records of the largest size fill the queue before their number does; small ones do not.
    #[tokio::test]
    async fn the_queue_is_bounded_in_bytes() {
        let long = "x".repeat(1 << 20);
        let large = Record::new(Some(&long), "call", &long, &long, json!({"name": long}));
        for (record, fitting) in [
            (large.clone(), QUEUE_BYTES / large.size()),
            (Record::new(None, "denied", "", "x", json!({})), QUEUE),
        ] {
            let dropped = Arc::new(AtomicU64::new(0));
            let (counted, stop) = (Arc::clone(&dropped), CancellationToken::new());
            let on_dropped: OnDropped = Arc::new(move |count| {
                counted.fetch_add(count, Ordering::Relaxed);
            });
            let tracker = TaskTracker::new();
            let snapshot = CurrentSnapshot::empty();
            let queue = AuditQueue::new(snapshot, on_dropped, &tracker, stop.clone());
            // The writer does not run before this task waits.
            for _ in 0..QUEUE + 10 {
                queue.add(record.clone());
            }
            assert_eq!(queue.len(), fitting);
            assert!(queue.bytes.load(Ordering::Relaxed) <= QUEUE_BYTES);
            let lost = dropped.load(Ordering::Relaxed);
            assert_eq!(usize::try_from(lost), Ok(QUEUE + 10 - fitting));
            stop.cancel();
            tracker.close();
            tracker.wait().await;
            assert_eq!(queue.bytes.load(Ordering::Relaxed), 0, "nothing is left");
        }
    }
}

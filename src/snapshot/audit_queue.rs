//! The queue of audit records that belong to no change: denials, and calls of servers with call
//! auditing; and of the steps of authorization attempts.
//!
//! One task writes them in batches, so no request waits for the database. Calls have a lane of their
//! own, so that however many there are, they push out no other record and none waits for them. Each
//! lane is bounded in records and in bytes, which tenants share. Records that find no room or the
//! database unreachable are dropped and counted. At the stop those that wait are still written, in
//! batches and for some seconds, and the number of the rest is logged. Not here: how many calls of a
//! tenant are recorded (`call_records`).

use std::{
    hash::RandomState,
    mem,
    sync::{Arc, OnceLock},
    time::Duration,
};

use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, MissedTickBehavior, interval_at, sleep_until},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    call_records::{CallRecords, Missing},
    current::CurrentSnapshot,
};
use crate::{
    base::budget::{Budget, Drawn, Shares},
    database::{Record, oauth::Step},
};

/// The queue of audit records; clones share it.
#[derive(Clone)]
pub(crate) struct AuditQueue {
    /// None for a queue that discards every record.
    lanes: Option<Lanes>,
    calls: Arc<CallRecords>,
    on_dropped: OnDropped,
}

#[derive(Clone)]
struct Lanes {
    /// Records of calls.
    calls: Lane,
    /// All else.
    others: Lane,
}

/// A lane of the queue.
#[derive(Clone)]
struct Lane {
    sender: mpsc::Sender<Queued>,
    /// Room for what is not written yet, in bytes, shared out to tenants.
    room: Arc<Shares<Arc<str>, RandomState>>,
    /// The bytes that each record counts for at least, so that what has room has a place.
    least: u64,
}

/// Receives the number of dropped records.
pub(crate) type OnDropped = Arc<dyn Fn(u64) + Send + Sync>;

enum Queued {
    /// A record to write.
    Record(Box<Record>, Drawn),
    /// A step to write.
    Step(Box<Step>, Drawn),
    /// A caller that waits until all earlier records of the lane are written.
    Flush(oneshot::Sender<()>),
}

impl Lane {
    fn new(places: usize, bytes: u64) -> (Self, mpsc::Receiver<Queued>) {
        let (sender, queued) = mpsc::channel(places);
        let lane = Self {
            sender,
            room: Arc::new(Shares::new(Budget::new(bytes))),
            least: bytes / places as u64,
        };
        (lane, queued)
    }

    /// Room for a record of a tenant, or of the gateway as a whole; none if its share has no more.
    fn room(&self, tenant: Option<&str>, size: usize) -> Option<Drawn> {
        let share = self.room.of(&tenant.unwrap_or_default().into());
        share.draw(self.least.max(size as u64))
    }

    fn len(&self) -> usize {
        self.sender.max_capacity() - self.sender.capacity()
    }
}

impl AuditQueue {
    /// A queue that discards every record, for gateways without a database.
    pub(crate) fn disabled() -> Self {
        Self {
            lanes: None,
            calls: Arc::default(),
            on_dropped: Arc::new(|_| ()),
        }
    }

    /// A queue into the database of `snapshot`. Its task belongs to `tracker` and ends with `stop`,
    /// after it has written the queued records, or [`LAST_COUNTS`] later.
    pub(crate) fn new(
        snapshot: Arc<CurrentSnapshot>,
        on_dropped: OnDropped,
        tracker: &TaskTracker,
        stop: CancellationToken,
    ) -> Self {
        let (others, queued) = Lane::new(QUEUE, QUEUE_BYTES);
        let (calls, queued_calls) = Lane::new(CALL_QUEUE, CALL_QUEUE_BYTES);
        let records = Arc::<CallRecords>::default();
        let writer = Writer {
            snapshot,
            calls: Arc::clone(&records),
            on_dropped: Arc::clone(&on_dropped),
            stop,
            stopped: OnceLock::new(),
        };
        tracker.spawn(writer.run(queued, queued_calls));
        Self {
            lanes: Some(Lanes { calls, others }),
            calls: records,
            on_dropped,
        }
    }

    /// Queues a record of what happens now, or began when the record says so; not of a call.
    pub(crate) fn add(&self, record: Record) {
        let record = record.since(Instant::now());
        let (tenant, size) = (record.tenant.clone(), record.size());
        let record = Box::new(record);
        self.queue(tenant.as_deref(), size, |room| Queued::Record(record, room));
    }

    /// Queues a step of an authorization attempt.
    pub(crate) fn add_step(&self, step: Step) {
        let (tenant, size, step) = (step.tenant.clone(), step.size(), Box::new(step));
        self.queue(Some(&tenant), size, |room| Queued::Step(step, room));
    }

    fn queue(&self, tenant: Option<&str>, size: usize, queued: impl FnOnce(Drawn) -> Queued) {
        let Some(Lanes { others, .. }) = &self.lanes else {
            return;
        };
        let room = others.room(tenant, size);
        let is_queued = room.is_some_and(|room| others.sender.try_send(queued(room)).is_ok());
        if !is_queued {
            (self.on_dropped)(1);
        }
    }

    /// Queues the record of a call that ended, unless its tenant has too many: then it is counted, and the
    /// count is recorded within a minute.
    pub(crate) fn add_call(&self, call: Record) {
        let Some(Lanes { calls, .. }) = &self.lanes else {
            return;
        };
        let now = Instant::now();
        let call = call.since(now);
        let room = calls.room(call.tenant.as_deref(), call.size());
        // After the room, so that only calls that are recorded use the allowance up.
        let Some(room) = room.filter(|_| self.calls.take(&call, now)) else {
            self.calls.miss(&call, now);
            (self.on_dropped)(1);
            return;
        };
        let queued = Queued::Record(Box::new(call), room);
        // What has room has a place, but none after the stop.
        if calls.sender.try_send(queued).is_err() {
            (self.on_dropped)(1);
        }
    }

    /// The number of queued records.
    pub(crate) fn len(&self) -> usize {
        let lanes = self.lanes.as_ref();
        lanes.map_or(0, |lanes| lanes.calls.len() + lanes.others.len())
    }

    /// Waits until all queued records but those of calls are written, at most for [`FLUSH_TIMEOUT`].
    pub(crate) async fn flush(&self) {
        let Some(Lanes { others, .. }) = &self.lanes else {
            return;
        };
        let (done, written) = oneshot::channel();
        let waiting = async {
            others.sender.send(Queued::Flush(done)).await.ok()?;
            written.await.ok()
        };
        // Records that an unreachable database loses are counted, so the timeout is no error.
        let _ = tokio::time::timeout(FLUSH_TIMEOUT, waiting).await;
    }
}

struct Writer {
    snapshot: Arc<CurrentSnapshot>,
    calls: Arc<CallRecords>,
    on_dropped: OnDropped,
    stop: CancellationToken,
    /// When the writer saw the stop.
    stopped: OnceLock<Instant>,
}

impl Writer {
    async fn run(self, mut queued: mpsc::Receiver<Queued>, mut calls: mpsc::Receiver<Queued>) {
        let mut lost = 0;
        let mut minutes = interval_at(Instant::now() + MINUTE, MINUTE);
        minutes.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let (mut batch, mut of_calls) = (Vec::new(), Vec::new());
            tokio::select! {
                biased;
                () = self.stop.cancelled() => break,
                _ = minutes.tick() => self.write_missing().await,
                count = queued.recv_many(&mut batch, BATCH) => if count == 0 { break },
                count = calls.recv_many(&mut of_calls, CALL_BATCH) => if count == 0 { break },
            }
            // Some go along with each batch of others, which may never have a pause.
            while of_calls.len() < CALL_BATCH
                && let Ok(call) = calls.try_recv()
            {
                of_calls.push(call);
            }
            let lost_now = self.write(batch).await.len() + self.write_calls(of_calls).await;
            // The stop may have come meanwhile.
            lost = if self.stop.is_cancelled() {
                lost_now
            } else {
                0
            };
        }
        queued.close();
        calls.close();
        lost += self.write_rest(queued, calls).await;
        if lost > 0 {
            // The counter of dropped records ends with the process.
            tracing::warn!(
                count = lost,
                "audit records are lost at the end of the gateway"
            );
        }
        self.write_missing().await;
    }

    /// Writes what waits at the stop, calls after all else; returns the number of records that are lost. In
    /// batches, so that each one that is written stays when another fails or the time is over.
    async fn write_rest(
        &self,
        mut queued: mpsc::Receiver<Queued>,
        mut calls: mpsc::Receiver<Queued>,
    ) -> usize {
        let (mut batch, mut lost) = (Vec::new(), 0);
        while queued.recv_many(&mut batch, BATCH).await > 0 {
            lost += self.write(mem::take(&mut batch)).await.len();
        }
        while calls.recv_many(&mut batch, CALL_BATCH).await > 0 {
            lost += self.write_calls(mem::take(&mut batch)).await;
        }
        lost
    }

    /// Writes records of calls, and counts those that are lost; returns their number.
    async fn write_calls(&self, batch: Vec<Queued>) -> usize {
        let lost = self.write(batch).await;
        let now = Instant::now();
        for call in &lost {
            self.calls.miss(call, now);
        }
        lost.len()
    }

    /// Records how many calls of each tenant are not in the trail. Counts that are not written wait for the
    /// next time.
    async fn write_missing(&self) {
        let missing = self.calls.take_missing(Instant::now());
        for part in missing.chunks(CALL_BATCH) {
            let records: Vec<Record> = part.iter().map(Missing::record).collect();
            if !self.append(&records, LAST_COUNTS).await {
                self.calls.give_back(part);
            }
        }
    }

    /// Writes a batch; returns the records that are lost.
    async fn write(&self, batch: Vec<Queued>) -> Vec<Record> {
        let (mut records, mut steps, mut waiting) = (Vec::new(), Vec::new(), Vec::new());
        let mut held = Vec::new();
        for queued in batch {
            match queued {
                Queued::Record(record, room) => {
                    records.push(*record);
                    held.push(room);
                }
                Queued::Step(step, room) => {
                    steps.push(*step);
                    held.push(room);
                }
                Queued::Flush(done) => waiting.push(done),
            }
        }
        let is_lost = !records.is_empty() && !self.append(&records, LAST_RECORDS).await;
        if is_lost {
            (self.on_dropped)(records.len() as u64);
        }
        for done in waiting {
            // The waiting caller may have timed out.
            let _ = done.send(());
        }
        // After those who wait for records.
        self.write_steps(&steps).await;
        drop(held);
        if is_lost { records } else { Vec::new() }
    }

    /// Writes records, all or none, until `limit` after the stop; false if it wrote none. Of a commit that is
    /// under way at that time the outcome is not known, and counts as none.
    async fn append(&self, records: &[Record], limit: Duration) -> bool {
        let Ok(store) = self.snapshot.database() else {
            return false;
        };
        let write = Box::pin(store.audit().append(records));
        let appended = self.in_time(limit, write).await;
        matches!(appended, Some(Ok(())))
    }

    /// Waits for a write until `limit` after the stop; none if that is over before its end.
    async fn in_time<T>(&self, limit: Duration, write: impl Future<Output = T>) -> Option<T> {
        let over = async {
            self.stop.cancelled().await;
            let stopped = *self.stopped.get_or_init(Instant::now);
            sleep_until(stopped + limit).await;
        };
        tokio::select! {
            biased;
            () = over => None,
            written = write => Some(written),
        }
    }

    /// Writes steps. They explain and prove nothing, so that those which are lost are not counted.
    async fn write_steps(&self, steps: &[Step]) {
        if steps.is_empty() {
            return;
        }
        let Ok(store) = self.snapshot.database() else {
            return;
        };
        let write = Box::pin(store.login_steps().add(steps));
        if let Some(Err(error)) = self.in_time(LAST_RECORDS, write).await {
            tracing::debug!(%error, "steps of attempts to log in are lost");
        }
    }
}

/// Maximum number of queued records and steps, calls aside.
const QUEUE: usize = 4096;
/// Maximum bytes of these: 1.5 KiB for each, where most have less than one. A tenant has half at most.
const QUEUE_BYTES: u64 = 6 << 20;
/// Maximum number of queued records of calls.
const CALL_QUEUE: usize = 2048;
/// Maximum bytes of these: 1 KiB for each, where most have less. A tenant has half at most.
const CALL_QUEUE_BYTES: u64 = 2 << 20;
/// Maximum number of records in a transaction.
const BATCH: usize = 256;
/// Maximum number of records of calls in one: others wait for it.
const CALL_BATCH: usize = 128;
/// The time after the stop in which queued records are written: thousands, where a statement takes a millisecond.
const LAST_RECORDS: Duration = Duration::from_secs(4);
/// The time after the stop in which counts of calls are written that are not in the trail: some is left for them
/// when that for records is used up. Shorter than the stage of the writer in `gateway::lifecycle`.
const LAST_COUNTS: Duration = Duration::from_millis(4500);
/// Maximum time that a denial waits for its record.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(500);
/// Interval between records of how many calls are not in the trail.
const MINUTE: Duration = Duration::from_mins(1);

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeMap,
        io::{Read, Seek},
        sync::atomic::{AtomicU64, Ordering},
    };

    use serde_json::json;

    use super::super::audit_queue::*;
    use crate::{
        base::Clock,
        config::{Config, Sources},
        database::{Database, Entry, Filter, Opening, Pool},
        telemetry::StoreTimes,
    };

    /// A queue whose writer does not run before the test waits.
    struct Bench {
        queue: AuditQueue,
        snapshot: Arc<CurrentSnapshot>,
        dropped: Arc<AtomicU64>,
        tracker: TaskTracker,
        stop: CancellationToken,
    }

    impl Bench {
        fn new(snapshot: Arc<CurrentSnapshot>) -> Self {
            let dropped = Arc::new(AtomicU64::new(0));
            let (counted, stop) = (Arc::clone(&dropped), CancellationToken::new());
            let on_dropped: OnDropped = Arc::new(move |count| {
                counted.fetch_add(count, Ordering::Relaxed);
            });
            let tracker = TaskTracker::new();
            let of = Arc::clone(&snapshot);
            let queue = AuditQueue::new(of, on_dropped, &tracker, stop.clone());
            Self {
                queue,
                snapshot,
                dropped,
                tracker,
                stop,
            }
        }

        fn dropped(&self) -> usize {
            usize::try_from(self.dropped.load(Ordering::Relaxed)).unwrap()
        }

        fn lanes(&self) -> &Lanes {
            self.queue.lanes.as_ref().unwrap()
        }

        /// Of calls, and of all else.
        fn queued(&self) -> (usize, usize) {
            (self.lanes().calls.len(), self.lanes().others.len())
        }

        async fn stop(&self) {
            self.stop.cancel();
            self.tracker.close();
            self.tracker.wait().await;
        }

        /// The records of a kind in the trail.
        async fn recorded(&self, kind: &str) -> Vec<Entry> {
            let filter = Filter {
                kind: Some(kind.to_owned()),
                ..Filter::default()
            };
            let audit = self.snapshot.database().unwrap().audit();
            audit.page(&filter, None, 99_999).await.unwrap().entries
        }
    }

    async fn with_database() -> (tempfile::TempDir, Bench) {
        let (dir, snapshot) = (tempfile::tempdir().unwrap(), CurrentSnapshot::empty());
        let config = Config::load(&Sources {
            set: vec![format!("data_dir={}", dir.path().display())],
            env: BTreeMap::from([("HOME".to_owned(), "/".to_owned())]),
            ..Sources::default()
        });
        let judge = Arc::new(|_: &_, _| Vec::new());
        let opening = Opening::of(&config.unwrap(), judge, Clock::of(|| 1_000));
        snapshot.set_database(Database::open(opening).await.unwrap());
        (dir, Bench::new(snapshot))
    }

    /// Makes the database refuse records with the target `refused`.
    async fn refuse(dir: &tempfile::TempDir) {
        let (file, clock) = (dir.path().join("lockgate.db"), Clock::system());
        let pool = Pool::sqlite(&file, clock, StoreTimes::default()).await;
        let trigger = "
            CREATE TRIGGER refuse BEFORE INSERT ON audit WHEN NEW.target = 'refused'
            BEGIN SELECT RAISE(ABORT, 'refused'); END";
        pool.unwrap().write(trigger, Vec::new()).await.unwrap();
    }

    fn denied(tenant: Option<&str>) -> Record {
        Record::new(tenant, "denied", "", "x", json!({}))
    }

    fn call(tenant: &str) -> Record {
        Record::new(Some(tenant), "call", "ada", "server a/x", json!({}))
    }

    /// A stop and a record at the same instant. Without a database every record is counted as
    /// dropped, so each one is either written or counted.
    #[tokio::test]
    async fn no_record_is_forgotten_at_the_stop() {
        // Twenty queues: the task of one may see the record before the stop by chance.
        for _ in 0..20 {
            let bench = Bench::new(CurrentSnapshot::empty());
            bench.queue.add(denied(None));
            bench.queue.add_call(call("a"));
            bench.stop().await;
            assert_eq!(bench.dropped(), 2);
        }
    }

    /// They were one transaction: what kept one of them out, or took too long, cost all.
    #[tokio::test]
    async fn the_last_records_are_written_in_batches() {
        let (dir, bench) = with_database().await;
        refuse(&dir).await;
        for _ in 0..BATCH {
            bench.queue.add(denied(None));
        }
        let refused = Record::new(None, "denied", "", "refused", json!({}));
        bench.queue.add(refused);
        for _ in 0..=CALL_BATCH {
            bench.queue.add_call(call("a"));
        }
        bench.stop().await;
        assert_eq!(bench.recorded("denied").await.len(), BATCH);
        assert_eq!(bench.recorded("call").await.len(), CALL_BATCH + 1);
        assert_eq!(bench.dropped(), 1);
    }

    /// Nothing said so: the counter ends with the process.
    #[tokio::test]
    async fn records_that_are_left_at_the_end_are_logged() {
        let (_dir, bench) = with_database().await;
        let mut file = tempfile::tempfile().unwrap();
        let lines = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(Arc::new(file.try_clone().unwrap()))
            .finish();
        let _default = tracing::subscriber::set_default(lines);
        let stopped = Instant::now().checked_sub(LAST_RECORDS * 2).unwrap();
        let late = Writer {
            snapshot: Arc::clone(&bench.snapshot),
            calls: Arc::clone(&bench.queue.calls),
            on_dropped: Arc::clone(&bench.queue.on_dropped),
            stop: CancellationToken::new(),
            stopped: OnceLock::from(stopped),
        };
        late.stop.cancel();
        let (others, queued) = Lane::new(QUEUE, QUEUE_BYTES);
        let (calls, queued_calls) = Lane::new(CALL_QUEUE, CALL_QUEUE_BYTES);
        let queue = AuditQueue {
            lanes: Some(Lanes { calls, others }),
            ..bench.queue.clone()
        };
        queue.add(denied(None));
        queue.add(denied(Some("a")));
        queue.add_call(call("a"));
        late.run(queued, queued_calls).await;
        assert_eq!(bench.recorded("denied").await.len(), 0);
        assert_eq!(bench.dropped(), 3);
        let mut text = String::new();
        file.rewind().unwrap();
        file.read_to_string(&mut text).unwrap();
        assert!(text.contains("count=3"), "{text}");
        bench.stop().await;
    }

    /// Records of the largest size fill the queue before their number does; small ones do not.
    #[tokio::test]
    async fn the_queue_is_bounded_in_bytes() {
        let long = "x".repeat(1 << 20);
        let large = Record::new(Some(&long), "login", &long, &long, json!({"name": long}));
        let half = usize::try_from(QUEUE_BYTES).unwrap() / 2;
        for (record, fitting) in [
            (large.clone(), half / large.size()),
            (denied(None), QUEUE / 2),
        ] {
            let bench = Bench::new(CurrentSnapshot::empty());
            for _ in 0..QUEUE + 10 {
                bench.queue.add(record.clone());
            }
            assert_eq!((bench.queue.len(), bench.queued()), (fitting, (0, fitting)));
            let owner: Arc<str> = record.tenant.as_deref().unwrap_or_default().into();
            let share = bench.lanes().others.room.of(&owner);
            assert!(share.used() <= QUEUE_BYTES / 2);
            assert_eq!(bench.dropped(), QUEUE + 10 - fitting);
            bench.stop().await;
            assert_eq!(share.used(), 0, "nothing is left");
        }
    }

    /// Calls of one tenant filled the queue, and denials and log-ins of all others were lost.
    #[tokio::test]
    async fn calls_of_a_tenant_push_out_no_other_record() {
        let bench = Bench::new(CurrentSnapshot::empty());
        for _ in 0..QUEUE + 10 {
            bench.queue.add_call(call("a"));
        }
        let of_one = CALL_QUEUE / 2;
        assert_eq!(bench.queued(), (of_one, 0));
        assert_eq!(bench.dropped(), QUEUE + 10 - of_one);
        for tenant in [None, Some("a"), Some("b")] {
            bench.queue.add(denied(tenant));
        }
        bench.queue.add_call(call("b"));
        assert_eq!(bench.queued(), (of_one + 1, 3));
        // Nor do denials of one tenant push out those of others.
        for _ in 0..QUEUE {
            bench.queue.add(denied(Some("a")));
        }
        let (before, (_, queued)) = (bench.dropped(), bench.queued());
        bench.queue.add(denied(Some("b")));
        bench.queue.add(denied(None));
        assert_eq!(bench.queued(), (of_one + 1, queued + 2));
        assert_eq!(bench.dropped(), before);
        bench.stop().await;
    }

    #[tokio::test]
    async fn the_trail_says_how_many_calls_are_missing() {
        let (_dir, bench) = with_database().await;
        for _ in 0..CALL_QUEUE {
            bench.queue.add_call(call("a"));
        }
        bench.queue.add_call(call("b"));
        bench.stop().await;
        let of_one = CALL_QUEUE / 2;
        assert_eq!(bench.recorded("call").await.len(), of_one + 1);
        let missing = bench.recorded("calls.dropped").await;
        assert_eq!(missing.len(), 1, "{missing:?}");
        let (record, count) = (&missing[0].record, CALL_QUEUE - of_one);
        assert_eq!(record.tenant.as_deref(), Some("a"));
        assert_eq!(
            (&*record.target, &record.detail["count"]),
            ("tenant a", &json!(count))
        );
        assert_eq!(bench.dropped(), count);
    }

    /// Each log-in and first denial waited for half a second, in vain.
    #[tokio::test]
    async fn a_denial_waits_for_no_records_of_calls() {
        let (_dir, bench) = with_database().await;
        for _ in 0..CALL_QUEUE / 2 {
            bench.queue.add_call(call("a"));
        }
        bench.queue.add(denied(Some("b")));
        bench.queue.flush().await;
        let (calls, _) = bench.queued();
        assert!(calls > 0, "it waited for all calls");
        assert_eq!(bench.recorded("denied").await.len(), 1);
        bench.stop().await;
        assert_eq!(bench.recorded("call").await.len(), CALL_QUEUE / 2);
    }
}

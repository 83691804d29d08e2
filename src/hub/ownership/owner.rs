//! Lease of this replica as an owner of sessions, renewed by heartbeats.
//!
//! A session serves while the lease runs and the session's fence was read after its last lapse.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    error::Error,
    state::{Directory, Heartbeat, Replica, StoreError},
};

/// How long a lease runs from when its heartbeat was sent; the key in the store lives longer.
const LEASE: Duration = Duration::from_secs(3);
/// From one heartbeat to the next.
const BEAT: Duration = Duration::from_secs(1);
/// The same after one that failed: requests are served soon after the return of the store.
const AGAIN: Duration = Duration::from_millis(200);
/// Milliseconds in which every replica has told a store that is back that it lives: one heartbeat, and
/// what connecting again takes.
const SETTLED: u64 = 1500;
/// How long a heartbeat may take.
const ANSWER: Duration = Duration::from_millis(800);

/// The lease of this replica.
pub(crate) struct Owner {
    /// This replica.
    pub(crate) me: Replica,
    directory: Arc<dyn Directory>,
    /// Whether this is the only replica: its lease never ends.
    is_alone: bool,
    began: Instant,
    /// Milliseconds after `began` at which the lease ends.
    until: AtomicU64,
    lapses: AtomicU32,
    /// Milliseconds after `began` at which the last lapse was over; 0 before the first one, which is no
    /// lapse but the beginning.
    back: AtomicU64,
    epoch: AtomicU32,
    /// Whether it is about to end.
    is_closed: AtomicBool,
    beats: watch::Sender<()>,
    /// Whether the lease runs, and how often it has ended.
    standing: watch::Sender<(bool, u32)>,
}

impl Owner {
    /// The only replica there is.
    pub(crate) fn alone(directory: Arc<dyn Directory>, epoch: u32) -> Self {
        let nobody = Replica {
            address: "".into(),
            boot: "".into(),
        };
        Self {
            is_alone: true,
            until: AtomicU64::new(u64::MAX),
            epoch: AtomicU32::new(epoch),
            ..Self::new(nobody, directory)
        }
    }

    /// One of several; it has no lease before its first heartbeat.
    pub(crate) fn new(me: Replica, directory: Arc<dyn Directory>) -> Self {
        Self {
            me,
            directory,
            is_alone: false,
            began: Instant::now(),
            until: AtomicU64::new(0),
            lapses: AtomicU32::new(0),
            back: AtomicU64::new(0),
            epoch: AtomicU32::new(0),
            is_closed: AtomicBool::new(false),
            beats: watch::Sender::new(()),
            standing: watch::Sender::new((false, 0)),
        }
    }

    /// Whether no other replica can be there.
    pub(crate) fn is_alone(&self) -> bool {
        self.is_alone
    }

    /// It is about to end: others begin and claim sessions, as far as there are any.
    pub(crate) async fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        let closing = self.directory.close(&self.me);
        let _ = tokio::time::timeout(ANSWER, closing).await;
    }

    /// Whether it is about to end.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// The replicas that begin and claim sessions in its place; none before it is about to end.
    pub(crate) async fn successors(&self) -> Vec<Replica> {
        if !self.is_closed() {
            return Vec::new();
        }
        let mut open = self.directory.open().await.unwrap_or_default();
        open.retain(|replica| replica.boot != self.me.boot);
        open
    }

    /// Whether the lease runs.
    pub(crate) fn is_valid(&self) -> bool {
        self.is_alone || self.runs_at(self.now())
    }

    /// Whether a session may serve whose fence was read after lapse number `confirmed`.
    pub(crate) fn serves(&self, confirmed: u32) -> bool {
        self.is_alone || self.serves_at(self.now(), confirmed)
    }

    fn runs_at(&self, now: u64) -> bool {
        now < self.until.load(Ordering::Acquire)
    }

    fn serves_at(&self, now: u64, confirmed: u32) -> bool {
        self.runs_at(now) && self.lapses.load(Ordering::Acquire) == confirmed
    }

    /// How often the lease has ended before it was renewed.
    pub(crate) fn lapses(&self) -> u32 {
        self.lapses.load(Ordering::Acquire)
    }

    /// The life of the store that was last heard of.
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Fails while this replica is cut off from the others.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.is_valid() { Ok(()) } else { Err(AWAY) }
    }

    /// Whether the store was out of reach until just now: owners that live may not have told it so
    /// yet, and an outage that hits all replicas alike is to cost no child.
    pub(crate) fn is_just_back(&self) -> bool {
        self.is_back_at(self.now())
    }

    fn is_back_at(&self, now: u64) -> bool {
        let back = self.back.load(Ordering::Acquire);
        back > 0 && now < back + SETTLED
    }

    /// Changes whenever sessions have to look whether they may be served.
    pub(crate) fn standing(&self) -> watch::Receiver<(bool, u32)> {
        self.standing.subscribe()
    }

    fn stand(&self, now: u64) {
        let standing = (self.runs_at(now), self.lapses());
        self.standing.send_if_modified(|known| {
            let is_other = *known != standing;
            *known = standing;
            is_other
        });
    }

    /// Waits for the next heartbeat that was acknowledged.
    pub(crate) async fn renewed(&self) {
        // The sender lives as long as `self`.
        let _ = self.beats.subscribe().changed().await;
    }

    /// Sends a heartbeat.
    pub(crate) async fn beat(&self) -> Result<Heartbeat, StoreError> {
        let sent = self.now();
        let beat = tokio::time::timeout(ANSWER, self.directory.beat(&self.me)).await;
        let beat = beat.unwrap_or(Err(StoreError::Away))?;
        self.acknowledged((sent, self.now()), beat);
        Ok(beat)
    }

    fn acknowledged(&self, (sent, now): (u64, u64), beat: Heartbeat) {
        // The store has begun another life without the earlier writes: that counts as a lapse.
        let is_other = self.epoch.swap(beat.epoch, Ordering::AcqRel) != beat.epoch;
        if is_other || !self.runs_at(now) {
            let is_first = self.lapses.fetch_add(1, Ordering::AcqRel) == 0;
            self.back
                .store(if is_first { 0 } else { now }, Ordering::Release);
        }
        let lease = u64::try_from(LEASE.as_millis()).unwrap_or(u64::MAX);
        self.until.fetch_max(sent + lease, Ordering::AcqRel);
        self.beats.send_replace(());
        self.stand(now);
    }

    /// Sends heartbeats until `stop`, tells `report` whether the lease runs, and takes the last
    /// heartbeat back.
    pub(crate) async fn run(self: Arc<Self>, report: impl Fn(bool), stop: CancellationToken) {
        loop {
            let next = Instant::now();
            let is_acknowledged = self.beat().await.is_ok();
            self.stand(self.now());
            report(self.is_valid());
            let next = next + if is_acknowledged { BEAT } else { AGAIN };
            let sleep = tokio::time::sleep_until(next);
            if stop.run_until_cancelled(sleep).await.is_none() {
                break;
            }
        }
        let _ = tokio::time::timeout(ANSWER, self.directory.leave(&self.me)).await;
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// The refusal while the directory is out of reach.
pub(crate) const AWAY: Error = Error::Busy {
    what: "sessions cannot be served at this moment",
    retry: Duration::from_secs(1),
};

#[cfg(test)]
mod tests {
    use super::super::owner::*;
    use crate::state::memory::MemoryDirectory;

    fn owner() -> Owner {
        let me = Replica {
            address: "127.0.0.1:1".into(),
            boot: "a".into(),
        };
        Owner::new(me, Arc::new(MemoryDirectory::default()))
    }

    const BEAT: Heartbeat = Heartbeat {
        epoch: 7,
        is_recovering: false,
    };

    #[test]
    fn a_lease_runs_three_seconds_from_when_its_heartbeat_was_sent() {
        let owner = owner();
        assert!(!owner.runs_at(0), "none before the first heartbeat");
        owner.acknowledged((0, 500), BEAT);
        let confirmed = owner.lapses();
        assert!(owner.serves_at(2999, confirmed));
        assert!(!owner.serves_at(3000, confirmed), "from when it was sent");
        owner.acknowledged((1000, 2900), BEAT);
        owner.acknowledged((500, 2950), BEAT);
        assert!(owner.serves_at(3999, confirmed), "renewed before it ended");
        owner.acknowledged((3900, 4000), BEAT);
        assert!(owner.runs_at(4000));
        assert!(
            !owner.serves_at(4000, confirmed),
            "the fence has to be read again"
        );
        assert!(owner.serves_at(4000, owner.lapses()));
    }

    #[test]
    fn a_store_that_is_back_is_left_to_settle() {
        let owner = owner();
        owner.acknowledged((0, 0), BEAT);
        owner.acknowledged((1000, 1000), BEAT);
        assert!(!owner.is_back_at(1000), "it was never away");
        owner.acknowledged((9000, 9000), BEAT);
        assert!(owner.is_back_at(9000) && owner.is_back_at(9000 + SETTLED - 1));
        owner.acknowledged((9500, 9500), BEAT);
        assert!(!owner.is_back_at(9000 + SETTLED), "from its return");
    }

    #[test]
    fn another_life_of_the_store_is_a_lapse() {
        let owner = owner();
        owner.acknowledged((0, 0), BEAT);
        let confirmed = owner.lapses();
        owner.acknowledged((1000, 1000), BEAT);
        assert!(owner.serves_at(1000, confirmed));
        owner.acknowledged((2000, 2000), Heartbeat { epoch: 8, ..BEAT });
        assert!(owner.runs_at(2000) && !owner.serves_at(2000, confirmed));
    }

    #[test]
    fn one_that_is_alone_has_it_for_ever() {
        let owner = Owner::alone(Arc::new(MemoryDirectory::default()), 1);
        assert!(owner.is_valid() && owner.serves(7) && owner.check().is_ok());
    }
}

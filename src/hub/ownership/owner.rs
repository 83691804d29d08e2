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
    base::MacKeys,
    error::Error,
    state::{Directory, Heartbeat, Replica, ReplicaKeys, StoreError},
};

/// The time that a lease runs after its heartbeat was sent; the key in the store has a
/// longer time to live (`state::redis::directory`).
const LEASE: Duration = Duration::from_secs(3);
/// The interval of heartbeats.
const BEAT: Duration = Duration::from_secs(1);
/// The time until the next heartbeat after a failed one: requests are served soon after the store
/// returns.
const RETRY: Duration = Duration::from_millis(200);
/// Milliseconds after the return of the store in which every live replica has sent a heartbeat: one
/// interval, and the time to reconnect.
const SETTLE_TIME: u64 = 1500;
/// The deadline of a request to the directory.
const TIMEOUT: Duration = Duration::from_millis(800);

/// The lease of this replica.
pub(crate) struct ReplicaLease {
    /// This replica.
    pub(crate) me: Replica,
    /// By these the others prove that they are replicas.
    keys: ReplicaKeys,
    directory: Arc<dyn Directory>,
    /// Whether this is the only replica: its lease never ends.
    is_alone: bool,
    began: Instant,
    /// Milliseconds after `began` at which the lease ends.
    until: AtomicU64,
    lapses: AtomicU32,
    /// The claims from this replica, as its last heartbeat learned.
    claims: AtomicU64,
    /// Milliseconds after `began` at which the last lapse was over; 0 before that. The first
    /// heartbeat ends no lapse.
    back: AtomicU64,
    epoch: AtomicU32,
    /// Whether this replica is about to end.
    is_closed: AtomicBool,
    beats: watch::Sender<()>,
    status: watch::Sender<LeaseStatus>,
}

/// The status of a lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeaseStatus {
    /// Whether the lease runs.
    is_running: bool,
    /// The number of times that it has ended.
    lapses: u32,
}

impl ReplicaLease {
    /// The only replica.
    pub(crate) fn alone(directory: Arc<dyn Directory>, epoch: u32) -> Self {
        let me = Replica {
            address: "".into(),
            boot: "".into(),
        };
        Self {
            is_alone: true,
            until: AtomicU64::new(u64::MAX),
            epoch: AtomicU32::new(epoch),
            ..Self::new(me, ReplicaKeys::new(MacKeys::new([])), directory)
        }
    }

    /// One of several; it has no lease before its first heartbeat.
    pub(crate) fn new(me: Replica, keys: ReplicaKeys, directory: Arc<dyn Directory>) -> Self {
        Self {
            me,
            keys,
            directory,
            is_alone: false,
            began: Instant::now(),
            until: AtomicU64::new(0),
            lapses: AtomicU32::new(0),
            claims: AtomicU64::new(0),
            back: AtomicU64::new(0),
            epoch: AtomicU32::new(0),
            is_closed: AtomicBool::new(false),
            beats: watch::Sender::new(()),
            status: watch::Sender::default(),
        }
    }

    /// Whether this is the only replica.
    pub(crate) fn is_alone(&self) -> bool {
        self.is_alone
    }

    /// Marks this replica as about to end: other replicas begin and claim sessions, if there are any.
    pub(crate) async fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        let closing = self.directory.close(&self.me);
        let _ = tokio::time::timeout(TIMEOUT, closing).await;
    }

    /// Whether this replica is about to end.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// The replicas that begin and claim sessions in place of this one; none before it is about to
    /// end.
    pub(crate) async fn successors(&self) -> Vec<Replica> {
        if !self.is_closed() {
            return Vec::new();
        }
        let mut open = self.directory.open().await.unwrap_or_default();
        open.retain(|replica| replica.boot != self.me.boot && self.keys.is_genuine(replica));
        open
    }

    /// Whether a replica of this deployment wrote this name into the directory.
    pub(super) fn is_genuine(&self, replica: &Replica) -> bool {
        self.keys.is_genuine(replica)
    }

    /// Whether the lease runs.
    pub(crate) fn is_valid(&self) -> bool {
        self.is_alone || self.runs_at(self.now())
    }

    /// Whether a session may be served whose fence was read after lapse number `confirmed`.
    pub(crate) fn serves(&self, confirmed: u32) -> bool {
        self.is_alone || self.serves_at(self.now(), confirmed)
    }

    fn runs_at(&self, now: u64) -> bool {
        now < self.until.load(Ordering::Acquire)
    }

    fn serves_at(&self, now: u64, confirmed: u32) -> bool {
        self.runs_at(now) && self.lapses.load(Ordering::Acquire) == confirmed
    }

    /// The number of times that the lease ended before it was renewed.
    pub(crate) fn lapses(&self) -> u32 {
        self.lapses.load(Ordering::Acquire)
    }

    /// The epoch of the store in its latest acknowledgement.
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Checks that the lease runs.
    ///
    /// # Errors
    ///
    /// `Busy` while this replica is cut off from the others.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.is_valid() {
            Ok(())
        } else {
            Err(STORE_AWAY)
        }
    }

    /// Whether the store has just returned: live owners may not have sent a heartbeat yet, and an
    /// outage that hits all replicas must end no child.
    pub(crate) fn is_just_back(&self) -> bool {
        self.is_back_at(self.now())
    }

    fn is_back_at(&self, now: u64) -> bool {
        let back = self.back.load(Ordering::Acquire);
        back > 0 && now < back + SETTLE_TIME
    }

    /// The status of the lease; at each change, sessions check whether they may be served.
    pub(crate) fn lease_status(&self) -> watch::Receiver<LeaseStatus> {
        self.status.subscribe()
    }

    fn publish_status(&self, now: u64) {
        let status = LeaseStatus {
            is_running: self.runs_at(now),
            lapses: self.lapses(),
        };
        self.status.send_if_modified(|known| {
            let is_other = *known != status;
            *known = status;
            is_other
        });
    }

    /// Waits for the next acknowledged heartbeat.
    pub(crate) async fn renewed(&self) {
        // The sender lives as long as `self`.
        let _ = self.beats.subscribe().changed().await;
    }

    /// Sends a heartbeat.
    pub(crate) async fn beat(&self) -> Result<Heartbeat, StoreError> {
        let sent = self.now();
        let beat = tokio::time::timeout(TIMEOUT, self.directory.beat(&self.me)).await;
        let beat = beat.unwrap_or(Err(StoreError::Away))?;
        self.acknowledged(sent, self.now(), beat);
        Ok(beat)
    }

    fn acknowledged(&self, sent: u64, now: u64, beat: Heartbeat) {
        // Another epoch of the store lacks the earlier writes: that counts as a lapse.
        let is_other = self.epoch.swap(beat.epoch, Ordering::AcqRel) != beat.epoch;
        // The store may have seen a lapse that this clock has not: a suspended machine's stands still, and that of
        // the store may be set. Others also claim from an owner that they alone do not reach.
        let is_claimed = self.claims.swap(beat.claims, Ordering::AcqRel) != beat.claims;
        if is_other || !self.runs_at(now) {
            let is_first = self.lapses.fetch_add(1, Ordering::AcqRel) == 0;
            self.back
                .store(if is_first { 0 } else { now }, Ordering::Release);
        } else if is_claimed {
            self.lapses.fetch_add(1, Ordering::AcqRel);
        }
        let lease = u64::try_from(LEASE.as_millis()).unwrap_or(u64::MAX);
        self.until.fetch_max(sent + lease, Ordering::AcqRel);
        self.beats.send_replace(());
        self.publish_status(now);
    }

    /// Sends heartbeats until `stop`, reports whether the lease runs, and withdraws the last
    /// heartbeat.
    pub(crate) async fn run(self: Arc<Self>, report: impl Fn(bool), stop: CancellationToken) {
        loop {
            let next = Instant::now();
            let is_acknowledged = self.beat().await.is_ok();
            self.publish_status(self.now());
            report(self.is_valid());
            let next = next + if is_acknowledged { BEAT } else { RETRY };
            let sleep = tokio::time::sleep_until(next);
            if stop.run_until_cancelled(sleep).await.is_none() {
                break;
            }
        }
        let _ = tokio::time::timeout(TIMEOUT, self.directory.leave(&self.me)).await;
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// The refusal while the directory is out of reach.
pub(crate) const STORE_AWAY: Error = Error::Busy {
    what: "sessions cannot be served at this moment",
    retry: Duration::from_secs(1),
};

#[cfg(test)]
mod tests {
    use super::super::owner::*;
    use crate::state::memory::MemoryDirectory;

    fn owner() -> ReplicaLease {
        let me = Replica {
            address: "127.0.0.1:1".into(),
            boot: "a".into(),
        };
        let keys = ReplicaKeys::new(MacKeys::new([]));
        ReplicaLease::new(me, keys, Arc::new(MemoryDirectory::default()))
    }

    const BEAT: Heartbeat = Heartbeat {
        epoch: 7,
        is_recovering: false,
        claims: 0,
    };

    #[test]
    fn a_lease_runs_three_seconds_from_when_its_heartbeat_was_sent() {
        let owner = owner();
        assert!(!owner.runs_at(0), "none before the first heartbeat");
        owner.acknowledged(0, 500, BEAT);
        let confirmed = owner.lapses();
        assert!(owner.serves_at(2999, confirmed));
        assert!(!owner.serves_at(3000, confirmed), "from when it was sent");
        owner.acknowledged(1000, 2900, BEAT);
        owner.acknowledged(500, 2950, BEAT);
        assert!(owner.serves_at(3999, confirmed), "renewed before it ended");
        owner.acknowledged(3900, 4000, BEAT);
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
        owner.acknowledged(0, 0, BEAT);
        owner.acknowledged(1000, 1000, BEAT);
        assert!(!owner.is_back_at(1000), "it was never away");
        owner.acknowledged(9000, 9000, BEAT);
        assert!(owner.is_back_at(9000) && owner.is_back_at(9000 + SETTLE_TIME - 1));
        owner.acknowledged(9500, 9500, BEAT);
        assert!(!owner.is_back_at(9000 + SETTLE_TIME), "from its return");
    }

    #[test]
    fn another_life_of_the_store_is_a_lapse() {
        let owner = owner();
        owner.acknowledged(0, 0, BEAT);
        let confirmed = owner.lapses();
        owner.acknowledged(1000, 1000, BEAT);
        assert!(owner.serves_at(1000, confirmed));
        owner.acknowledged(2000, 2000, Heartbeat { epoch: 8, ..BEAT });
        assert!(owner.runs_at(2000) && !owner.serves_at(2000, confirmed));
    }

    /// One whose machine was suspended went on with sessions that others had, and so did one that others did not reach.
    #[test]
    fn a_claim_by_others_is_a_lapse() {
        let owner = owner();
        owner.acknowledged(0, 0, BEAT);
        let mut confirmed = owner.lapses();
        for claims in [1, 3, 0] {
            let beat = Heartbeat { claims, ..BEAT };
            owner.acknowledged(1000, 1000, beat);
            assert!(owner.runs_at(1000) && !owner.serves_at(1000, confirmed));
            assert!(!owner.is_back_at(1000), "the store was not away");
            confirmed = owner.lapses();
            owner.acknowledged(1000, 1000, beat);
            assert!(owner.serves_at(1000, confirmed), "each counts once");
        }
    }

    #[test]
    fn one_that_is_alone_has_it_for_ever() {
        let owner = ReplicaLease::alone(Arc::new(MemoryDirectory::default()), 1);
        assert!(owner.is_valid() && owner.serves(7) && owner.check().is_ok());
    }
}

//! The copy of a task in the directory: other replicas find a task there whose own replica is gone, with
//! its result if it has ended.
//!
//! A copy is a record of a session that no client has: it ends by itself, and names its owner, whose
//! heartbeat tells whether the task goes on. Who answers for a task without its owner claims the copy first, so that
//! the owner cannot say anything else when it is back.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::{
    select,
    sync::watch,
    time::{Instant, Interval, MissedTickBehavior, interval_at},
};

use crate::{
    auth::Access,
    error::Error,
    hub::{
        core::Core,
        limits::RecordMemory,
        ownership::{LeaseStatus, STORE_AWAY, UNRESPONSIVE},
        stateless::Ticket,
    },
    protocol::{Message, json, modern},
    state::{ClaimFrom, Fence, Found, Record, SessionId, StoreError},
};

/// The copy of a task of this replica.
pub(super) struct OwnCopy {
    core: Arc<Core>,
    access: Access,
    id: SessionId,
    ttl: Duration,
    held: Option<RecordMemory>,
    /// The lapses of the lease of this replica before the last write; none if the store was away then.
    confirmed: Option<u32>,
    /// Whether no claim can come behind the last write. One of a replica of an earlier build that found no heartbeat may
    /// come shortly after the heartbeat that ends a lapse, which does not count it.
    is_settled: bool,
}

/// The outcome of a write.
#[derive(Clone, Copy, Debug)]
pub(super) enum Copied {
    /// The task was still this replica's after this many lapses of its lease.
    Own(u32),
    /// Another replica has claimed the task, and says that it has failed.
    Lost,
    /// The store was away.
    Missed,
}

/// The moments at which a copy may have to be written again.
pub(super) struct Moments {
    lease: watch::Receiver<LeaseStatus>,
    ticks: Interval,
}

impl Moments {
    /// The first of them is now.
    pub(super) fn new(core: &Core) -> Self {
        let mut lease = core.owner.lease_status();
        lease.mark_changed();
        let mut ticks = interval_at(Instant::now() + AGAIN, AGAIN);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { lease, ticks }
    }

    /// Waits for the next one. Cancel-safe.
    pub(super) async fn next(&mut self) {
        select! {
            // The sender lives as long as the lease.
            _ = self.lease.changed() => {}
            _ = self.ticks.tick() => {}
        }
    }
}

/// A task of a replica that is gone.
pub(crate) struct TaskCopy {
    /// The call without its arguments.
    pub(crate) call: Message,
    /// The rendered state.
    pub(crate) state: Bytes,
}

impl OwnCopy {
    /// The copy of a task of this replica; none where no other replica could find it.
    pub(super) fn new(
        core: &Arc<Core>,
        access: &Access,
        number: u64,
        ttl: Duration,
    ) -> Option<Self> {
        (!core.owner.is_alone()).then(|| Self {
            core: Arc::clone(core),
            access: access.clone(),
            id: id(&core.owner.me.boot, number),
            ttl,
            held: None,
            confirmed: None,
            is_settled: true,
        })
    }

    /// Whether the state has to be written again: the store was away, or the lease of this replica has lapsed since,
    /// so that the store may have begun another life, or another replica may have claimed the task; and once more when
    /// no claim of that time can be under way any longer.
    pub(super) fn is_due(&self) -> bool {
        let owner = &self.core.owner;
        let is_open = !self.is_settled && !owner.is_just_back();
        let is_due = is_open || self.confirmed.is_none_or(|lapses| !owner.serves(lapses));
        // Without a lease the store is away.
        is_due && owner.is_valid()
    }

    /// Writes the state. Where there is no room for it, the copy stays as it was, and the task is here alone;
    /// and while the store is away.
    pub(super) async fn write(&mut self, call: &Message, state: &[u8]) -> Copied {
        // Before the store is asked: a lapse or a claim that follows is behind its answer.
        let lapses = self.core.owner.lapses();
        self.is_settled = !self.core.owner.is_just_back();
        self.confirmed = None;
        match self.insert(call, state).await {
            Ok(true) => {
                self.confirmed = Some(lapses);
                Copied::Own(lapses)
            }
            Ok(false) => Copied::Lost,
            Err(error) => {
                tracing::warn!(%error, "a task could not be copied to the store");
                Copied::Missed
            }
        }
    }

    /// Returns whether the task is this replica's.
    async fn insert(&mut self, call: &Message, state: &[u8]) -> Result<bool, StoreError> {
        let kept: Bytes = [b"[", &**call.bytes(), b",", state, b"]"].concat().into();
        if kept.len() as u64 > self.core.config.log.max_event {
            return Ok(self.is_own().await?.unwrap_or(true));
        }
        let mut drawn = None;
        // Not beside what is held for the same state, for which there may be no room.
        if self.held.as_ref().is_none_or(|held| !held.is_for(&kept)) {
            drawn = self.core.limits.memory().record(&self.access, &kept);
            if drawn.is_none() {
                self.core.limits.count_no_room();
                return Ok(self.is_own().await?.unwrap_or(true));
            }
        }
        let owner = &self.core.owner;
        let record = Record {
            principal: principal(&self.access).into(),
            server: self.access.server().name.clone(),
            owner: Some(owner.me.clone()),
            fence: FENCE,
            kept,
            ttl: self.ttl,
            age: Duration::ZERO,
        };
        let inserted = self.core.directory.insert(&self.id, record, owner.epoch());
        if !inserted.await? {
            return Ok(self.is_own().await?.unwrap_or(false));
        }
        if drawn.is_some() {
            self.held = drawn;
        }
        Ok(true)
    }

    /// Whether no other replica says anything else than the copy that the store has; none if there is no copy.
    async fn is_own(&self) -> Result<Option<bool>, StoreError> {
        let found = self.core.directory.find(&self.id).await?;
        let me = &self.core.owner.me;
        Ok(found.map(|Found { record, .. }| {
            let is_mine = record.owner.as_ref() == Some(me);
            // The end, which this replica alone writes, was there before the claim: the others answer with it.
            is_mine || TaskCopy::of(&record.kept).is_some_and(|copy| modern::is_over(&copy.state))
        }))
    }

    /// Removes what was written; false while the store is away.
    pub(super) async fn remove(&mut self) -> bool {
        let removed = self.core.directory.remove(&self.id, FENCE).await;
        let is_away = removed == Err(StoreError::Away);
        if !is_away {
            self.held = None;
        }
        !is_away
    }
}

impl TaskCopy {
    /// The task of another replica that did not answer; none if it is not there any more. One that went on is claimed,
    /// and has failed with this raw error: its replica cannot write another end behind that.
    ///
    /// # Errors
    ///
    /// `Busy` if its replica lives, or the store is away or has just returned.
    pub(super) async fn find(
        core: &Core,
        access: &Access,
        ticket: &Ticket,
        lost: &[u8],
    ) -> Result<Option<Self>, Error> {
        if core.owner.is_alone() {
            return Ok(None);
        }
        let replica = ticket.replica();
        let id = id(&replica.boot, ticket.call);
        // Again behind a claim: its replica may have written the end just before that.
        for _ in 0..2 {
            let found = core.directory.find(&id).await.map_err(|_| STORE_AWAY)?;
            let is_its = |record: &Record| *record.principal == *principal(access);
            let Some(found) = found.filter(|found| is_its(&found.record)) else {
                return Ok(None);
            };
            let Some(mut copy) = Self::of(&found.record.kept) else {
                return Ok(None);
            };
            let owner = found.record.owner.as_ref();
            let is_claimed = owner.is_none_or(|owner| owner.boot != replica.boot);
            if modern::is_over(&copy.state) {
                return Ok(Some(copy));
            }
            if is_claimed {
                copy.state = modern::failed(&copy.state, lost);
                return Ok(Some(copy));
            }
            if found.heartbeat_age.is_some() {
                return Err(UNRESPONSIVE);
            }
            if core.owner.is_just_back() {
                return Err(STORE_AWAY);
            }
            let (me, silent) = (&core.owner.me, ClaimFrom::Silent);
            let claimed = core.directory.claim(&id, &found.record, me, silent);
            // Without effect if another replica was faster, or its own has come back.
            claimed.await.map_err(|_| STORE_AWAY)?;
        }
        Err(STORE_AWAY)
    }

    /// The copy as it is kept; none if that is none.
    fn of(kept: &[u8]) -> Option<Self> {
        let mut items = json::Items::of(kept);
        let (Ok(Some(call)), Ok(Some(state))) = (items.next(), items.next()) else {
            return None;
        };
        Some(Self {
            call: Message::parse(Bytes::copy_from_slice(call)).ok()?,
            state: Bytes::copy_from_slice(state),
        })
    }
}

/// Ids of sessions are hexadecimal: none is the same.
fn id(boot: &str, number: u64) -> SessionId {
    SessionId(format!("task:{boot}:{number}").into())
}

/// The owner of the record: no principal has a name with a line end, so none has it as a session.
fn principal(access: &Access) -> String {
    format!(
        "task\n{}\n{}",
        access.tenant().name,
        access.principal().key()
    )
}

/// The fence of the replica that has the call. One that claims the task has another, and writes nothing.
const FENCE: Fence = Fence(1);
/// The time between two attempts to write to a store that is away, or to remove what is there.
pub(super) const AGAIN: Duration = Duration::from_secs(10);

//! The copy of a task in the directory: other replicas find a task there whose own replica is gone, with
//! its result if it has ended.
//!
//! A copy is a record of a session that no client has: it ends by itself, and names its owner, whose
//! heartbeat tells whether the task goes on.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use crate::{
    auth::Access,
    error::Error,
    hub::{
        core::Core,
        limits::RecordMemory,
        ownership::{STORE_AWAY, UNRESPONSIVE},
        stateless::Ticket,
    },
    protocol::{Message, json, modern},
    state::{Fence, Record, SessionId, StoreError},
};

/// The copy of a task of this replica.
pub(super) struct OwnCopy {
    core: Arc<Core>,
    access: Access,
    id: SessionId,
    ttl: Duration,
    held: Option<RecordMemory>,
    /// Whether the store was away at the last write.
    is_missed: bool,
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
            is_missed: false,
        })
    }

    /// Whether the state has to be written again: the store was away.
    pub(super) fn is_missed(&self) -> bool {
        self.is_missed
    }

    /// Writes the state. Where there is no room for it, the copy stays as it was, and the task is here alone;
    /// and while the store is away.
    pub(super) async fn write(&mut self, call: &Message, state: &[u8]) {
        self.is_missed = false;
        let kept: Bytes = [b"[", &**call.bytes(), b",", state, b"]"].concat().into();
        if kept.len() as u64 > self.core.config.log.max_event {
            return;
        }
        let memory = self.core.limits.memory();
        let Some(held) = memory.record(&self.access, &kept) else {
            return self.core.limits.count_no_room();
        };
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
        let written = self.core.directory.insert(&self.id, record, owner.epoch());
        match written.await {
            Ok(_) => self.held = Some(held),
            Err(error) => {
                self.is_missed = true;
                tracing::warn!(%error, "a task could not be copied to the store");
            }
        }
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
    /// The task of another replica that did not answer; none if it is not there any more. One that goes on
    /// without its replica has failed with this raw error.
    ///
    /// # Errors
    ///
    /// `Busy` if its replica lives, or the store is away.
    pub(super) async fn find(
        core: &Core,
        access: &Access,
        ticket: &Ticket,
        lost: &[u8],
    ) -> Result<Option<Self>, Error> {
        if core.owner.is_alone() {
            return Ok(None);
        }
        let id = id(&ticket.replica().boot, ticket.call);
        let found = core.directory.find(&id).await.map_err(|_| STORE_AWAY)?;
        let is_its = |record: &Record| *record.principal == *principal(access);
        let Some(found) = found.filter(|found| is_its(&found.record)) else {
            return Ok(None);
        };
        let mut items = json::Items::of(&found.record.kept);
        let (Ok(Some(call)), Ok(Some(state))) = (items.next(), items.next()) else {
            return Ok(None);
        };
        let Ok(call) = Message::parse(Bytes::copy_from_slice(call)) else {
            return Ok(None);
        };
        let state = if modern::is_over(state) {
            Bytes::copy_from_slice(state)
        } else if found.heartbeat_age.is_some() {
            return Err(UNRESPONSIVE);
        } else {
            modern::failed(state, lost)
        };
        Ok(Some(Self { call, state }))
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

/// No other replica becomes the owner of a task.
const FENCE: Fence = Fence(1);

//! Table of the sessions that this replica owns.

use std::{
    collections::HashSet,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use tokio::{sync::mpsc, time::Instant};

use super::command::{Command, Transport};
use crate::{
    auth::Access,
    base::Table,
    error::Error,
    state::{Fence, SessionId},
};

/// The sessions that this replica owns, by id. Read on every request, never held across an await.
#[derive(Default)]
pub(crate) struct Sessions {
    table: RwLock<Table<SessionId, Handle>>,
    /// Those that have a child of their own: no more than there are children, and so found without a look at all
    /// sessions. Locked behind the table, never before it.
    with_child: RwLock<HashSet<(SessionId, Fence)>>,
    /// Those for which a task waits for room in their queue, to tell them what has changed by then.
    late: RwLock<HashSet<(SessionId, Fence)>>,
}

/// The handle of a session: the channel to its task, and the access that it requires.
#[derive(Clone)]
pub(crate) struct Handle {
    /// Sends commands to the task.
    pub(crate) commands: mpsc::Sender<Command>,
    /// The access that the session began with, joined with those of later requests, as it was told of it last.
    pub(crate) access: Arc<Access>,
    /// The transport of its client.
    pub(crate) transport: Transport,
    /// When the session began.
    pub(crate) born: Instant,
    /// The fence of this owner.
    pub(crate) fence: Fence,
}

impl Sessions {
    /// The session with this id, if it belongs to the principal and the server of `access`.
    pub(crate) fn of(&self, access: &Access, id: &str) -> Option<Handle> {
        let sessions = self.read();
        let handle = sessions.get(id)?;
        let is_own = handle.access.principal() == access.principal()
            && handle.access.server().name == access.server().name;
        is_own.then(|| handle.clone())
    }

    /// Whether the table has the session.
    pub(crate) fn has(&self, id: &str) -> bool {
        self.read().contains_key(id)
    }

    /// The session with this id, of any principal.
    pub(crate) fn get(&self, id: &SessionId) -> Option<Handle> {
        self.read().get(id).cloned()
    }

    /// Every session.
    pub(crate) fn all(&self) -> Vec<(SessionId, Handle)> {
        let sessions = self.read();
        let all = sessions.iter();
        all.map(|(id, handle)| (id.clone(), handle.clone()))
            .collect()
    }

    /// The sessions of a tenant, in no order.
    pub(crate) fn of_tenant(&self, tenant: &str) -> Vec<(SessionId, Handle)> {
        let sessions = self.read();
        let own = sessions
            .iter()
            .filter(|(_, handle)| handle.access.tenant().name == tenant);
        own.map(|(id, handle)| (id.clone(), handle.clone()))
            .collect()
    }

    /// The sessions of a tenant that have a child of their own, in no order.
    pub(crate) fn with_child_of(&self, tenant: &str) -> Vec<Handle> {
        let (sessions, with_child) = (self.read(), &self.with_child);
        let with_child = with_child.read().unwrap_or_else(PoisonError::into_inner);
        let own = with_child.iter().filter_map(|(id, fence)| {
            let handle = sessions.get(id)?;
            let is_own = handle.fence == *fence && handle.access.tenant().name == tenant;
            is_own.then(|| handle.clone())
        });
        own.collect()
    }

    /// Notes that a session has a child of its own from now on.
    pub(crate) fn gained_child(&self, id: &SessionId, fence: Fence) {
        self.those_with_child().insert((id.clone(), fence));
    }

    /// Notes that a session has no child of its own any more.
    pub(crate) fn lost_child(&self, id: &SessionId, fence: Fence) {
        self.those_with_child().remove(&(id.clone(), fence));
    }

    /// Adds a session, which requests find from now on.
    pub(crate) fn insert(&self, id: &SessionId, handle: Handle) {
        self.write().insert(id.clone(), handle);
    }

    /// Removes a session with this fence; false if there is none.
    pub(crate) fn remove(&self, id: &SessionId, fence: Fence) -> bool {
        // Its child ends with it.
        self.lost_child(id, fence);
        let mut sessions = self.write();
        // This replica may have claimed the session again before the task of its old fence ended.
        let is_own = sessions.get(id).is_some_and(|own| own.fence == fence);
        let was_there = is_own && sessions.remove(id).is_some();
        // The table shrinks again after a flood of sessions.
        if sessions.capacity() > 1024 && sessions.len() < sessions.capacity() / 4 {
            sessions.shrink_to_fit();
        }
        was_there
    }

    /// Joins `access` to the access of a session, which ends with either of them, unless `is_lost`.
    ///
    /// The check runs under the lock: sessions follow a later change of the catalogue afterwards.
    pub(crate) fn join(
        &self,
        access: &Access,
        id: &str,
        is_lost: impl FnOnce() -> bool,
    ) -> Result<(), Error> {
        let mut sessions = self.write();
        if is_lost() {
            return Err(Error::NoSession);
        }
        let handle = sessions.get_mut(id).ok_or(Error::NoSession)?;
        if let Some(joined) = handle.access.joined(access) {
            handle.access = Arc::new(joined);
        }
        Ok(())
    }

    /// Changes the entry of a session with this fence, if there is one, under the lock.
    pub(crate) fn change(&self, id: &SessionId, fence: Fence, change: impl FnOnce(&mut Handle)) {
        let mut sessions = self.write();
        let handle = sessions.get_mut(id);
        if let Some(handle) = handle.filter(|handle| handle.fence == fence) {
            change(handle);
        }
    }

    /// Marks a session that is told of changes later; false if it was marked before.
    pub(crate) fn mark_late(&self, id: &SessionId, fence: Fence) -> bool {
        self.late_ones().insert((id.clone(), fence))
    }

    /// Removes that mark: what changes from now on is told anew.
    pub(crate) fn unmark_late(&self, id: &SessionId, fence: Fence) {
        self.late_ones().remove(&(id.clone(), fence));
    }

    fn late_ones(&self) -> RwLockWriteGuard<'_, HashSet<(SessionId, Fence)>> {
        self.late.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn those_with_child(&self) -> RwLockWriteGuard<'_, HashSet<(SessionId, Fence)>> {
        let with_child = self.with_child.write();
        with_child.unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self) -> RwLockReadGuard<'_, Table<SessionId, Handle>> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Table<SessionId, Handle>> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }
}

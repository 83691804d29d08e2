//! What sessions and children do about a change of what is declared.
//!
//! Who lost a server loses its sessions there; whose server is another now goes on with it, and
//! its child is replaced like one that was idle. Not here: what was changed (`control/live`).

use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};

use futures_util::future::join_all;

use super::{
    core::{Core, Handle, Hub},
    session::{Command, Over, Session},
};
use crate::{
    auth::{Access, access},
    backend::child::Restart,
    declare::{Catalog, Server},
    error::Error,
};

impl Hub {
    /// Makes sessions and children follow `catalog`; returns when every session was told.
    ///
    /// A session whose principal may not use its server any more ends at once, with what is open
    /// on it. Children of a server that is gone end at once; those of one that starts something
    /// else now end when their calls have ended, and are replaced at the next request.
    pub(crate) async fn follow(&self, catalog: &Arc<Catalog>) {
        let core = &self.0;
        let before = {
            let mut told = core.told.write().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *told, Arc::clone(catalog))
        };
        let handles: Vec<Handle> = {
            let sessions = core.sessions.read().unwrap_or_else(PoisonError::into_inner);
            sessions.values().cloned().collect()
        };
        // Side by side: one that is busy must not keep the others from being told.
        let telling = join_all(handles.iter().map(|handle| core.tell(handle)));
        if tokio::time::timeout(TOLD, telling).await.is_err() {
            tracing::warn!("a session was not told in time what changed");
        }
        for old in before.servers() {
            match catalog.find(&old.tenant, &old.name) {
                None => {
                    let roster = &core.pool.roster;
                    roster.restart(&old.tenant, &old.name, Restart::Now);
                }
                Some((_, new)) if is_replaced(old, &new) => {
                    core.pool
                        .roster
                        .restart(&new.tenant, &new.name, Restart::Drain);
                }
                Some(_) => {}
            }
        }
        let wanted: Vec<Arc<Server>> = catalog.servers().cloned().collect();
        core.pool.keep_only(&wanted, &core.drain, &core.tracker);
    }
}

/// How long sessions may take until they know (CONTRACT P16).
const TOLD: Duration = Duration::from_secs(5);

/// Whether what a child was started by is another now.
fn is_replaced(old: &Arc<Server>, new: &Arc<Server>) -> bool {
    !Arc::ptr_eq(old, new)
        && (old.launch != new.launch
            || old.recipe != new.recipe
            || old.limits != new.limits
            || old.supervision.isolation != new.supervision.isolation)
}

impl Core {
    /// What has become of an access meanwhile.
    fn changed(&self, access: &Access) -> Changed {
        if !self.live.is_loaded() {
            return Changed::Not;
        }
        // The newest there is: an access may rest on what nobody was told of yet.
        let renewed = access::renew(&self.live.current(), access);
        let is_same = renewed.as_ref().is_some_and(|renewed| {
            Arc::ptr_eq(renewed.server(), access.server())
                && Arc::ptr_eq(renewed.tenant(), access.tenant())
        });
        match renewed {
            None => Changed::Lost,
            Some(_) if is_same => Changed::Not,
            Some(renewed) => Changed::Renewed(Box::new(renewed)),
        }
    }

    /// Lets a session end also with what this access rests on.
    pub(super) fn join(&self, access: &Access, id: &str) -> Result<(), Error> {
        let mut sessions = self
            .sessions
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        // As long as this is held nobody is told of a change: one that is not known yet comes after.
        if matches!(self.changed(access), Changed::Lost) {
            return Err(Error::NoSession);
        }
        let handle = sessions.get_mut(id).ok_or(Error::NoSession)?;
        if let Some(joined) = handle.access.joined(access) {
            handle.access = Arc::new(joined);
        }
        Ok(())
    }

    /// Tells a session what has become of its access.
    pub(super) async fn tell(&self, handle: &Handle) {
        let access = match self.changed(&handle.access) {
            Changed::Not => return,
            Changed::Renewed(access) => Some(access),
            Changed::Lost => None,
        };
        // One that has ended needs to know nothing.
        let _ = handle.commands.send(Command::Change(access)).await;
    }
}

/// What a change of what is declared made of an access.
enum Changed {
    /// Nothing.
    Not,
    /// Another tenant or server behind the same names.
    Renewed(Box<Access>),
    /// It holds no longer.
    Lost,
}

impl Session {
    /// A session that has just come to be: what was declared may have changed since it began.
    pub(super) fn catch_up(&mut self, access: &Access) {
        match self.core.changed(access) {
            Changed::Not => {}
            Changed::Renewed(access) => self.change(Some(&access)),
            Changed::Lost => self.change(None),
        }
    }

    /// Goes on with another access, or not at all.
    pub(super) fn change(&mut self, access: Option<&Access>) {
        let Some(access) = access else {
            self.over.get_or_insert(Over::Revoked);
            self.core.drop_session(&self.id, self.fence);
            return;
        };
        self.tenant = Arc::clone(access.tenant());
        self.server = Arc::clone(access.server());
        self.policy = Arc::clone(&access.server().policy);
    }
}

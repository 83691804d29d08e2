//! Changes of the catalogue, followed by sessions and children.
//!
//! A principal that loses its access to a server loses its sessions there. A session whose server
//! has changed continues with the new declaration, and its child is replaced like an idle one. Not
//! here: the catalogue itself (`snapshot`).

use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};

use futures_util::future::join_all;
use tokio::{sync::mpsc::error::TrySendError, task::JoinHandle};

use super::{core::Handle, requests::Hub};
use crate::{
    backend::child::Restart,
    declare::{Catalog, Server},
    protocol::Revision,
};

impl Hub {
    /// Makes sessions and children follow `catalog`; returns once every session has its command, or after
    /// `NOTIFY_TIMEOUT`: those whose queue is full get it later.
    ///
    /// A session whose principal may not use its server any more ends at once, with its calls and
    /// streams. Children of a removed server end at once. Children of a server with another launch
    /// end when their calls have ended, and are replaced at the next request; shared ones of a revision
    /// that their tenant excludes end likewise, and are not.
    pub(crate) async fn follow(&self, catalog: &Arc<Catalog>) {
        let core = &self.0;
        let before = {
            let mut followed = core
                .followed
                .write()
                .unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *followed, Arc::clone(catalog))
        };
        let handles = core.sessions.all();
        let late = handles.into_iter().filter_map(|handle| self.tell(handle));
        let told = join_all(late.collect::<Vec<_>>());
        if tokio::time::timeout(NOTIFY_TIMEOUT, told).await.is_err() {
            tracing::warn!("a session was not told in time what changed; it will be");
        }
        for old in before.servers() {
            let found = catalog.find(&old.tenant, &old.name);
            // What began for a tenant is of no other one of that name.
            match found.filter(|_| catalog.is_still(&old.tenant, &before)) {
                None => {
                    core.pool.forget_failure(old);
                    core.tools.forget(old);
                    let registry = &core.pool.registry;
                    registry.restart(&old.tenant, &old.name, Restart::Now);
                }
                Some((_, new)) if needs_restart(old, &new) => {
                    core.pool.forget_failure(old);
                    core.pool
                        .registry
                        .restart(&new.tenant, &new.name, Restart::Drain);
                }
                Some(_) => {}
            }
        }
        for (tenant, revision) in excluded(&before, catalog) {
            core.shared_children.close(tenant, revision);
        }
        let wanted: Vec<Arc<Server>> = catalog.servers().cloned().collect();
        core.pool.keep_warm(&wanted, &core.drain, &core.tracker);
    }

    /// Tells a session what changed for it. Returns the task that waits for room in its queue, if there is none: a
    /// busy session must not delay the others, and one that was never told would go on without its access.
    fn tell(&self, handle: Handle) -> Option<JoinHandle<()>> {
        let change = self.0.change_for(&handle)?;
        match handle.commands.try_send(change) {
            Err(TrySendError::Full(change)) => Some(self.0.tracker.spawn(async move {
                // A session that has ended needs no change.
                let _ = handle.commands.send(change).await;
            })),
            Ok(()) | Err(TrySendError::Closed(_)) => None,
        }
    }
}

/// The revisions that tenants have offered before, and offer no more.
fn excluded<'c>(
    before: &'c Catalog,
    now: &'c Catalog,
) -> impl Iterator<Item = (&'c str, Revision)> {
    before.tenants.values().flat_map(|old| {
        let new = now.tenants.get(&old.name);
        let is_gone =
            move |revision: &Revision| new.is_some_and(|new| !new.revisions.contains(revision));
        let gone = old.revisions.iter().copied().filter(is_gone);
        gone.map(|revision| (old.name.as_str(), revision))
    })
}

/// The longest wait for sessions whose queues are full.
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(5);

/// Whether a change affects the start of a child.
fn needs_restart(old: &Arc<Server>, new: &Arc<Server>) -> bool {
    !Arc::ptr_eq(old, new)
        && (old.launch != new.launch
            || old.slots != new.slots
            || old.recipe != new.recipe
            || old.limits != new.limits
            || old.supervision.isolation != new.supervision.isolation)
}

//! Changes of the catalogue, followed by sessions and children.
//!
//! A principal that loses its access to a server loses its sessions there. A session whose server
//! has changed continues with the new declaration, and its child is replaced like an idle one. Not
//! here: the catalogue itself (`snapshot`).

use std::{
    pin::pin,
    sync::{Arc, PoisonError},
    time::Duration,
};

use tokio::{sync::mpsc::error::TrySendError, task::yield_now, time::timeout};

use super::{
    core::{AccessChange, Core, Handle},
    requests::Hub,
};
use crate::{backend::child::Restart, declare::Catalog, protocol::Revision, state::SessionId};

impl Hub {
    /// Makes sessions and children follow `catalog`. Sessions whose queue is full are told later: neither the others
    /// nor the next change may wait for them.
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
        for (number, (id, handle)) in core.sessions.all().into_iter().enumerate() {
            if number % AT_ONCE == AT_ONCE - 1 {
                yield_now().await;
            }
            self.tell(id, handle);
        }
        // Behind the sessions: one that had not been told yet would get another child of the server as that was.
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
                Some((_, new)) if old.needs_restart(&new) => {
                    core.pool.forget_failure(old);
                    core.pool.registry.replace_old(&new);
                }
                Some(_) => {}
            }
        }
        for (tenant, revision) in excluded(&before, catalog) {
            core.shared_children.close(tenant, revision);
        }
        core.pool
            .keep_warm(catalog.servers(), &core.drain, &core.tracker);
    }

    /// Tells a session what changed for it; in a task that waits for room in its queue, if there is none. One that was
    /// never told would go on without its access.
    pub(super) fn tell(&self, id: SessionId, handle: Handle) {
        let core = &self.0;
        // For most nothing has: the table is locked for the others alone.
        if matches!(core.changed(&handle.access), AccessChange::None) {
            return;
        }
        let mut is_full = false;
        core.tell(&id, handle.fence, |change| {
            let told = handle.commands.try_send(change);
            is_full = matches!(told, Err(TrySendError::Full(_)));
            told.is_ok()
        });
        // One task for all the changes that it is late for.
        if is_full && core.sessions.mark_late(&id, handle.fence) {
            let told = tell_late(Arc::clone(core), id, handle);
            core.tracker.spawn(told);
        }
    }
}

/// Tells a session what has changed for it by the time that its queue has room.
async fn tell_late(core: Arc<Core>, id: SessionId, handle: Handle) {
    loop {
        let mut room = pin!(handle.commands.reserve());
        let room = if let Ok(room) = timeout(LATE, &mut room).await {
            room
        } else {
            tracing::warn!(
                session.id = id.short(),
                "a session was not told in time what changed; it will be"
            );
            room.await
        };
        // What changes from here on needs another task.
        core.sessions.unmark_late(&id, handle.fence);
        // A session that has ended needs no change.
        let Ok(room) = room else {
            return;
        };
        let catalog = core.snapshot.catalog();
        core.tell(&id, handle.fence, |change| {
            room.send(change);
            true
        });
        // A newer change may have gone before that one.
        let is_newest = Arc::ptr_eq(&catalog, &core.snapshot.catalog());
        if is_newest || !core.sessions.mark_late(&id, handle.fence) {
            break;
        }
    }
    // It may have started a child of the server as that was.
    let (tenant, server) = (&handle.access.tenant().name, &handle.access.server().name);
    if let Some((_, server)) = core.snapshot.catalog().find(tenant, server) {
        core.pool.registry.replace_old(&server);
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

/// Sessions that are looked at before other tasks of the worker go on: all of a large gateway take a tenth of a second,
/// for each revocation of anybody's. These take two milliseconds. On a busy worker the next ones have to wait longer than
/// that, so that with fewer at a time the last ones would hear of it too late.
const AT_ONCE: usize = 2048;
/// The wait for room in the queue of a session from which on people are told that it is late.
const LATE: Duration = Duration::from_secs(5);

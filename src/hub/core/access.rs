//! Lookup of a session by an access, and changes of that access since.

use std::sync::Arc;

use super::{command::Command, sessions::Handle, shared::Core};
use crate::{
    auth::{Access, access},
    error::Error,
};

/// The effect of a changed catalogue on an access.
pub(crate) enum Changed {
    /// The access is the same.
    Not,
    /// Another tenant or server stands behind the same names.
    Renewed(Box<Access>),
    /// The access holds no longer.
    Lost,
}

impl Core {
    /// The session with this id, if `access` may use it and this replica may serve it.
    ///
    /// # Errors
    ///
    /// `NoSession` for an unknown, ended or foreign id; `Busy` without a lease.
    pub(crate) fn find(&self, access: &Access, id: &str) -> Result<Handle, Error> {
        let handle = self.sessions.of(access, id).ok_or(Error::NoSession)?;
        self.owner.check()?;
        if handle.access.joined(access).is_some() {
            let is_lost = || matches!(self.changed(access), Changed::Lost);
            self.sessions.join(access, id, is_lost)?;
        }
        Ok(handle)
    }

    /// The effect of the catalogue in force on an access.
    pub(crate) fn changed(&self, access: &Access) -> Changed {
        if !self.snapshot.is_loaded() {
            return Changed::Not;
        }
        // The newest catalogue: an access may rest on one that no session was told of yet.
        let renewed = access::renew(&self.snapshot.catalog(), access);
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

    /// Tells a session how its access has changed.
    pub(crate) async fn tell(&self, handle: &Handle) {
        let access = match self.changed(&handle.access) {
            Changed::Not => return,
            Changed::Renewed(access) => Some(access),
            Changed::Lost => None,
        };
        // A session that has ended needs no news.
        let _ = handle.commands.send(Command::Change(access)).await;
    }
}

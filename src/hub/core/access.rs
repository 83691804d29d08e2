//! Lookup of a session by an access, and changes of that access since.

use std::sync::Arc;

use super::{
    command::{Command, Transport},
    sessions::Handle,
    shared::Core,
};
use crate::{
    auth::{Access, access},
    backend::child::Owner,
    error::Error,
    hub::limits::Source,
    state::{Fence, SessionId},
};

/// The caller that children of an access are for: a person by any client, or an address, where the tenant
/// has no authentication.
pub(crate) fn owner_of(access: &Access) -> Owner {
    let name = match (access.principal().person(), access.anonymous_from()) {
        (Some(person), _) => person,
        (None, Some(address)) => format!("{:?}", Source::of(address)),
        (None, None) => String::new(),
    };
    Owner::Caller(name.into())
}

/// The effect of a changed catalogue on an access, and of time on its API key.
pub(crate) enum AccessChange {
    /// None: the access is the same.
    None,
    /// The tenant or the server has another declaration under the same name.
    Renewed(Box<Access>),
    /// The access is no longer valid.
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
        if handle.transport != Transport::Stateless {
            self.owner.check()?;
        }
        if handle.access.joined(access).is_some() {
            let is_lost = || matches!(self.changed(access), AccessChange::Lost);
            self.sessions.join(access, id, is_lost)?;
        }
        Ok(handle)
    }

    /// The effect of the present catalogue on an access.
    pub(crate) fn changed(&self, access: &Access) -> AccessChange {
        if !self.snapshot.is_loaded() {
            return AccessChange::None;
        }
        // The newest catalogue: no session may have followed it yet.
        let now_ms = self.snapshot.clock().now_ms();
        let renewed = access::renew(&self.snapshot.catalog(), access, now_ms);
        let is_same = renewed
            .as_ref()
            .is_some_and(|renewed| renewed.permits_the_same(access));
        match renewed {
            None => AccessChange::Lost,
            Some(_) if is_same => AccessChange::None,
            Some(renewed) => AccessChange::Renewed(Box::new(renewed)),
        }
    }

    /// The access by the present catalogue; none if that is the same, which is found out at no cost as long as nothing
    /// has changed.
    ///
    /// # Errors
    ///
    /// `NoSession` if it is no longer valid.
    pub(crate) fn newer(&self, access: &Access) -> Result<Option<Box<Access>>, Error> {
        if access.is_of(&self.snapshot.catalog()) {
            return Ok(None);
        }
        match self.changed(access) {
            AccessChange::None => Ok(None),
            AccessChange::Renewed(renewed) => Ok(Some(renewed)),
            AccessChange::Lost => Err(Error::NoSession),
        }
    }

    /// The access by the present catalogue.
    ///
    /// # Errors
    ///
    /// Those of [`Self::newer`].
    pub(crate) fn renewed(&self, access: &Access) -> Result<Access, Error> {
        let newer = self.newer(access)?;
        Ok(newer.map_or_else(|| access.clone(), |newer| *newer))
    }

    /// Tells a session what has changed for its access by now, if anything has; `send` returns whether it could. The session
    /// has the new access in the table from then on: compared with the one that it began with, it would be told of each
    /// later change of anybody's. The table is locked meanwhile, so that it keeps the last change that the session learns of.
    pub(crate) fn tell(&self, id: &SessionId, fence: Fence, send: impl FnOnce(Command) -> bool) {
        self.sessions
            .change(id, fence, |handle| match self.changed(&handle.access) {
                AccessChange::None => {}
                AccessChange::Renewed(newer) => {
                    let known = Arc::new(Access::clone(&newer));
                    if send(Command::Change(Some(newer))) {
                        handle.access = known;
                    }
                }
                AccessChange::Lost => _ = send(Command::Change(None)),
            });
    }
}

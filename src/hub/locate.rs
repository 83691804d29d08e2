//! Look-up of the replica that serves a session, which becomes this one if there is none.
//!
//! Not here: the claim (`takeover`), and the verdict on a record of the directory
//! (`ownership::place`).

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{
    core::{Handle, Transport},
    ownership::{
        LookupSource, Place, RecordedOwner, STORE_AWAY, UNRESPONSIVE, is_of, note_answer,
        recorded_owner,
    },
    requests::Hub,
};
use crate::{
    auth::Access,
    error::Error,
    state::{Replica, SessionId},
};

/// The time after which a session that the directory assigns to this replica is lost if the
/// replica does not have it.
const PATIENCE: Duration = Duration::from_secs(1);
const RETRY: Duration = Duration::from_millis(10);

impl Hub {
    /// Finds the replica that serves a session; this replica claims a session without a live
    /// owner.
    ///
    /// # Errors
    ///
    /// `NoSession` for an unknown, ended or foreign id; `Busy` while the directory is out of reach.
    pub(crate) async fn locate_or_claim(
        &self,
        access: &Access,
        id: &str,
        lookup: LookupSource,
    ) -> Result<Place, Error> {
        let core = &self.0;
        if core.owner.is_alone() || core.sessions.has(id) {
            return match core.find(access, id) {
                Err(Error::NoSession) => Err(self.foreign().await),
                found => found.map(|_| Place::Here),
            };
        }
        core.owner.check()?;
        let id = SessionId(id.into());
        match &lookup {
            LookupSource::Cached => {
                let known = core.places.get(&id);
                let known = known.map(|(known, _)| known);
                if let Some(replica) = known.filter(|known| !core.unresponsive.has(known)) {
                    return Ok(Place::There(replica));
                }
            }
            LookupSource::Fresh
            | LookupSource::OwnerRefused(_)
            | LookupSource::OwnerReplaced(..) => core.places.invalidate(&id),
        }
        let deadline = Instant::now() + PATIENCE;
        loop {
            let asked = Instant::now();
            let found = core.directory.find(&id).await.map_err(|_| STORE_AWAY)?;
            let Some(found) = found.filter(|found| is_of(found, access)) else {
                return Err(self.missing().await);
            };
            let is_late = Instant::now() >= deadline;
            match recorded_owner(&core.owner, &found, &lookup, is_late) {
                RecordedOwner::Other(replica, sign) => {
                    if core.unresponsive.is_silent(&replica, asked, sign) {
                        return Err(UNRESPONSIVE);
                    }
                    core.places.insert(id, (replica.clone(), Instant::now()));
                    return Ok(Place::There(replica));
                }
                RecordedOwner::None => {
                    self.may_claim(found.heartbeat_age.is_some()).await?;
                    if self.claim(access, &id, found).await? {
                        return Ok(Place::Here);
                    }
                    if is_late {
                        // It ended while the store was silent, and its record is about to be removed.
                        return Err(STORE_AWAY);
                    }
                }
                // The session is being taken over, or has just ended.
                RecordedOwner::Here => sleep(RETRY).await,
            }
            if core.sessions.has(id.as_str()) {
                return core.find(access, id.as_str()).map(|_| Place::Here);
            }
        }
    }

    /// Notes that another replica, which owns a session, has answered a request for it.
    pub(crate) fn owner_answered(&self, id: &str, owner: &Replica) {
        note_answer(&self.0.places, SessionId(id.into()), owner);
    }

    /// The access of a stream that has been relayed for a while, by the present catalogue.
    ///
    /// # Errors
    ///
    /// `NoSession` if it is no longer valid.
    pub(crate) fn renewed(&self, access: &Access) -> Result<Access, Error> {
        self.0.renewed(access)
    }

    /// The access of a request whose body has just arrived, by the present catalogue; none if that is the same.
    ///
    /// # Errors
    ///
    /// `NoSession` if it is no longer valid.
    pub(crate) fn newer(&self, access: &Access) -> Result<Option<Box<Access>>, Error> {
        self.0.newer(access)
    }

    /// The session of a request that was sent to this replica.
    ///
    /// # Errors
    ///
    /// `NoSession` if there is none; `Moved` if another replica has just claimed it.
    pub(crate) async fn here(
        &self,
        access: &Access,
        transport: Transport,
        id: &str,
    ) -> Result<Handle, Error> {
        match self.0.find(access, id) {
            Err(Error::NoSession) => Err(self.gone(access, id).await),
            // A session cannot change its transport.
            Ok(found) if found.transport != transport => Err(Error::NoSession),
            found => found,
        }
    }

    /// The error for a session that has ended here.
    pub(crate) async fn gone(&self, access: &Access, id: &str) -> Error {
        if self.0.owner.is_alone() || self.0.sessions.has(id) {
            return self.foreign().await;
        }
        match self.0.directory.find(&SessionId(id.into())).await {
            Ok(Some(found)) if is_of(&found, access) => Error::Moved,
            Ok(_) => Error::NoSession,
            Err(_) => STORE_AWAY,
        }
    }

    /// The error for a session of this replica that is not the caller's: that for an unknown id, so that the two
    /// cannot be told apart while the directory is out of reach either.
    async fn foreign(&self) -> Error {
        if self.0.owner.is_alone() {
            return Error::NoSession;
        }
        self.missing().await
    }

    /// The error for an id that the directory does not have. After a loss of the store's data the
    /// owner may insert the session again; only a heartbeat shows the loss.
    pub(crate) async fn missing(&self) -> Error {
        let known = self.0.owner.epoch();
        match self.0.owner.beat().await {
            Ok(beat) if beat.epoch == known && !beat.is_recovering => Error::NoSession,
            _ => STORE_AWAY,
        }
    }

    /// Checks that this replica may claim a session. A replica that is about to end leaves claims to
    /// others, unless the owner counts as alive: only this replica knows that its address refuses
    /// connections.
    async fn may_claim(&self, is_owner_alive: bool) -> Result<(), Error> {
        let is_left = !is_owner_alive && !self.0.owner.successors().await.is_empty();
        if self.0.drain.is_cancelled() || is_left {
            return Err(Error::Draining);
        }
        if !is_owner_alive && self.0.owner.is_just_back() {
            return Err(STORE_AWAY);
        }
        Ok(())
    }

    /// Whether a replica has given no sign of life since it did not answer a request; for requests that no record of
    /// the directory has brought to it.
    pub(crate) async fn is_unresponsive(&self, replica: &Replica) -> bool {
        let core = &self.0;
        if !core.unresponsive.has(replica) {
            return false;
        }
        let asked = Instant::now();
        match core.directory.heartbeat_age(replica).await {
            Ok(sign) => {
                let sign = sign.unwrap_or(Duration::MAX);
                core.unresponsive.is_silent(replica, asked, sign)
            }
            Err(_) => false,
        }
    }

    /// Marks a replica that did not answer a request: its sessions are `Busy` until its next
    /// heartbeat.
    pub(crate) fn mark_unresponsive(&self, replica: &Replica) {
        tracing::warn!(address = &*replica.address, "a replica does not answer");
        self.0.unresponsive.add(replica, Instant::now());
    }
}

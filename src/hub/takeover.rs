//! Takeover: finds the replica that serves a session, and makes this replica the owner of a
//! session whose owner is gone.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};

use super::{
    core::{COMMANDS, Handle, Transport},
    ownership::{AWAY, Look, Place, UNRESPONSIVE, Whose, is_of, whose},
    requests::Hub,
    session::{Adopted, Remembered, Session},
    stream::Unowned,
};
use crate::{
    auth::Access,
    declare::OnLoss,
    error::Error,
    state::{Fence, Record, Replica, SessionId},
};

/// How long a session may be on its way to this replica.
const PATIENCE: Duration = Duration::from_secs(1);
const AGAIN: Duration = Duration::from_millis(10);

impl Hub {
    /// Finds the replica that serves a session; this one becomes its owner if it has none that
    /// lives.
    ///
    /// # Errors
    ///
    /// `NoSession` for an unknown, ended or foreign id; `Busy` while the directory is out of reach.
    pub(crate) async fn locate(
        &self,
        access: &Access,
        id: &str,
        look: Look,
    ) -> Result<Place, Error> {
        let core = &self.0;
        if core.owner.is_alone() || core.sessions.has(id) {
            return core.find(access, id).map(|_| Place::Here);
        }
        core.owner.check()?;
        let id = SessionId(id.into());
        match &look {
            Look::Known => {
                let known = core.places.get(&id);
                if let Some(replica) = known.filter(|known| !core.unresponsive.has(known)) {
                    return Ok(Place::There(replica));
                }
            }
            Look::Anew | Look::Refused(_) => core.places.invalidate(&id),
        }
        let deadline = Instant::now() + PATIENCE;
        loop {
            let asked = Instant::now();
            let found = core.directory.find(&id).await.map_err(|_| AWAY)?;
            let Some(found) = found.filter(|found| is_of(found, access)) else {
                return Err(self.nowhere().await);
            };
            let is_late = Instant::now() >= deadline;
            match whose(&core.owner.me, &found, &look, is_late) {
                Whose::Other(replica, sign) => {
                    if core.unresponsive.lasts(&replica, asked, sign) {
                        return Err(UNRESPONSIVE);
                    }
                    core.places.insert(id, replica.clone());
                    return Ok(Place::There(replica));
                }
                Whose::Nobody => {
                    self.may_claim(found.heartbeat_age.is_some()).await?;
                    if self.claim(access, &id, found.record).await? {
                        return Ok(Place::Here);
                    }
                }
                // It is being restored, or has just ended.
                Whose::Ours => sleep(AGAIN).await,
            }
            if core.sessions.has(id.as_str()) {
                return core.find(access, id.as_str()).map(|_| Place::Here);
            }
        }
    }

    /// Reads on behind an event without the owner of the session; none at the end of a stream that
    /// has ended.
    ///
    /// # Errors
    ///
    /// Those of [`Hub::attach`]; `Busy` while the store is away.
    pub(crate) async fn read_on(
        &self,
        access: &Access,
        id: &str,
        last_event_id: &[u8],
    ) -> Result<Option<Unowned>, Error> {
        let core = &self.0;
        let session = SessionId(id.into());
        let found = core.directory.find(&session).await.map_err(|_| AWAY)?;
        let Some(found) = found.filter(|found| is_of(found, access)) else {
            return Err(self.nowhere().await);
        };
        let cursor = core.key.decode(id, last_event_id).ok_or(Error::NoCursor)?;
        let seats = core.limits.stream(access).await?;
        let remembered = Remembered::parse(&found.record.kept);
        let stores = (Arc::clone(&core.log), Arc::clone(&core.owner));
        let revision = remembered.and_then(|remembered| remembered.revision());
        Unowned::begin(stores, core.key.clone(), (session, cursor), revision, seats).await
    }
}

/// A replica that is about to end.
impl Hub {
    /// From now on other replicas begin and claim sessions, as far as there are any.
    pub(crate) async fn close(&self) {
        self.0.owner.close().await;
    }

    /// Marks a replica that let a request go without an answer: until its next sign of life, its
    /// sessions are `Busy`.
    pub(crate) fn mark_unresponsive(&self, replica: &Replica) {
        tracing::warn!(address = &*replica.address, "a replica does not answer");
        self.0.unresponsive.note(replica, Instant::now());
    }

    /// Whether this replica is about to end.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.owner.is_closed()
    }

    /// The replicas that begin and claim sessions instead, in random order; none before this one is
    /// about to end.
    pub(crate) async fn successors(&self) -> Vec<Replica> {
        let mut replicas = self.0.owner.successors().await;
        let mut chance = [0];
        // Without randomness the first is asked first.
        let _ = self.0.random.fill(&mut chance);
        let first = usize::from(chance[0]) % replicas.len().max(1);
        replicas.rotate_left(first);
        replicas
    }
}

impl Hub {
    /// The session of a request that was sent to this replica.
    ///
    /// # Errors
    ///
    /// `NoSession` where there is none; `Moved` if it has just gone to another replica.
    pub(crate) async fn here(
        &self,
        access: &Access,
        (transport, id): (Transport, &str),
    ) -> Result<Handle, Error> {
        match self.0.find(access, id) {
            Err(Error::NoSession) => Err(self.gone(access, id).await),
            // What one transport began the endpoints of the other could not go on with.
            Ok(found) if found.transport != transport => Err(Error::NoSession),
            found => found,
        }
    }

    /// The error for a session that has ended here.
    pub(crate) async fn gone(&self, access: &Access, id: &str) -> Error {
        if self.0.owner.is_alone() || self.0.sessions.has(id) {
            return Error::NoSession;
        }
        match self.0.directory.find(&SessionId(id.into())).await {
            Ok(Some(found)) if is_of(&found, access) => Error::Moved,
            Ok(_) => Error::NoSession,
            Err(_) => AWAY,
        }
    }

    /// The error for an id that the directory does not have. A store that lost its data may get
    /// the session back, which only a heartbeat tells.
    pub(crate) async fn nowhere(&self) -> Error {
        let known = self.0.owner.epoch();
        match self.0.owner.beat().await {
            Ok(beat) if beat.epoch == known && !beat.is_recovering => Error::NoSession,
            _ => AWAY,
        }
    }

    /// A replica that is about to end leaves claims to others. Not where it alone knows that nobody
    /// listens at the owner's address: to them that owner lives until its heartbeat ends.
    async fn may_claim(&self, is_owner_alive: bool) -> Result<(), Error> {
        let is_left = !is_owner_alive && !self.0.owner.successors().await.is_empty();
        if self.0.drain.is_cancelled() || is_left {
            return Err(Error::Draining);
        }
        if !is_owner_alive && self.0.owner.is_just_back() {
            return Err(AWAY);
        }
        Ok(())
    }

    /// Becomes the owner of a session; false if another replica was faster.
    async fn claim(&self, access: &Access, id: &SessionId, record: Record) -> Result<bool, Error> {
        let Some(claiming) = self.0.claims.begin(id) else {
            // Another request claims it; the caller looks again afterwards.
            sleep(AGAIN).await;
            return Ok(false);
        };
        let (hub, access, id) = (self.clone(), access.clone(), id.clone());
        // In a task of its own: a request that goes away must not leave the session half claimed.
        let claimed = self.0.tracker.spawn(async move {
            let (_claiming, core) = (claiming, &hub.0);
            if core.sessions.has(id.as_str()) {
                return Ok(true);
            }
            let claimed = core.directory.claim(&id, &record, &core.owner.me).await;
            let Some(fence) = claimed.map_err(|_| AWAY)? else {
                return Ok(false);
            };
            hub.adopt(&access, &id, fence, record).await.map(|()| true)
        });
        claimed.await.unwrap_or(Err(Error::Bug("a claim panicked")))
    }

    /// Goes on with a session that was claimed, or ends it.
    async fn adopt(
        &self,
        access: &Access,
        id: &SessionId,
        fence: Fence,
        record: Record,
    ) -> Result<(), Error> {
        let max = self.0.config.session.max;
        let remembered = Remembered::parse(&record.kept);
        let remembered = remembered.filter(|_| {
            let is_kept = access.server().supervision.on_loss == OnLoss::Restore;
            is_kept && (max.is_zero() || record.age < max)
        });
        let revision = remembered.as_ref().and_then(Remembered::revision);
        let transport = remembered.as_ref().map(Remembered::transport);
        let adopted = remembered.and_then(Remembered::kept).zip(revision);
        let Some((kept, revision)) = adopted else {
            // A record that stays ends with its time to live.
            let _ = self.0.directory.remove(id, fence).await;
            return Err(Error::NoSession);
        };
        let Ok(streams) = self.0.log.streams(id).await else {
            let _ = self.0.directory.release(id, fence).await;
            return Err(AWAY);
        };
        let seats = self.0.limits.session(access).await.unwrap_or_default();
        let (commands, received) = mpsc::channel(COMMANDS);
        let handle = Handle {
            commands,
            access: Arc::new(access.clone()),
            transport: transport.unwrap_or(Transport::Streamable),
            born: born(record.age),
            fence,
        };
        let mut session = Session::new(
            Arc::clone(&self.0),
            id.clone(),
            access,
            handle.clone(),
            seats,
        );
        session.adopt(Adopted {
            fence,
            revision,
            kept,
            streams,
            born: born(record.age),
        });
        self.0.sessions.insert(id, handle);
        self.0.tracker.spawn(session.run(received));
        Ok(())
    }
}

/// When something began that is so old; a machine that started later does not know.
fn born(age: Duration) -> Instant {
    let now = Instant::now();
    now.checked_sub(age).unwrap_or(now)
}

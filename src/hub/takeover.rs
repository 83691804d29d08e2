//! Takeover: finds the replica that serves a session, and makes this replica the owner of a
//! session whose owner is gone.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};

use super::{
    core::{COMMANDS, Handle, Transport},
    ownership::{
        LookupSource, Place, RecordedOwner, STORE_AWAY, UNRESPONSIVE, is_of, recorded_owner,
    },
    requests::Hub,
    session::{Session, SessionRecord, Takeover},
    stream::{LogOnlyStream, SessionLog},
};
use crate::{
    auth::Access,
    declare::OnLoss,
    error::Error,
    state::{Fence, Record, Replica, SessionId},
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
            return core.find(access, id).map(|_| Place::Here);
        }
        core.owner.check()?;
        let id = SessionId(id.into());
        match &lookup {
            LookupSource::Cached => {
                let known = core.places.get(&id);
                if let Some(replica) = known.filter(|known| !core.unresponsive.has(known)) {
                    return Ok(Place::There(replica));
                }
            }
            LookupSource::Fresh | LookupSource::OwnerRefused(_) => core.places.invalidate(&id),
        }
        let deadline = Instant::now() + PATIENCE;
        loop {
            let asked = Instant::now();
            let found = core.directory.find(&id).await.map_err(|_| STORE_AWAY)?;
            let Some(found) = found.filter(|found| is_of(found, access)) else {
                return Err(self.missing().await);
            };
            let is_late = Instant::now() >= deadline;
            match recorded_owner(&core.owner.me, &found, &lookup, is_late) {
                RecordedOwner::Other(replica, sign) => {
                    if core.unresponsive.is_silent(&replica, asked, sign) {
                        return Err(UNRESPONSIVE);
                    }
                    core.places.insert(id, replica.clone());
                    return Ok(Place::There(replica));
                }
                RecordedOwner::None => {
                    self.may_claim(found.heartbeat_age.is_some()).await?;
                    if self.claim(access, &id, found.record).await? {
                        return Ok(Place::Here);
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

    /// Reads behind an event from the log, without the owner of the session; none at the end of a
    /// stream that has ended.
    ///
    /// # Errors
    ///
    /// Those of [`Hub::attach`]; `Busy` while the store is away.
    pub(crate) async fn read_log(
        &self,
        access: &Access,
        id: &str,
        last_event_id: &[u8],
    ) -> Result<Option<LogOnlyStream>, Error> {
        let core = &self.0;
        let session = SessionId(id.into());
        let found = core
            .directory
            .find(&session)
            .await
            .map_err(|_| STORE_AWAY)?;
        let Some(found) = found.filter(|found| is_of(found, access)) else {
            return Err(self.missing().await);
        };
        let cursor = core.key.decode(id, last_event_id).ok_or(Error::NoCursor)?;
        let seats = core.limits.stream(access).await?;
        let record = SessionRecord::parse(&found.record.kept);
        let revision = record.and_then(|record| record.revision());
        let log = SessionLog {
            log: Arc::clone(&core.log),
            owner: Arc::clone(&core.owner),
            key: core.key.clone(),
            session,
        };
        LogOnlyStream::begin(log, cursor, revision, seats).await
    }
}

/// Stop of this replica.
impl Hub {
    /// Marks this replica as about to end: other replicas begin and claim sessions, if there are any.
    pub(crate) async fn close(&self) {
        self.0.owner.close().await;
    }

    /// Marks a replica that did not answer a request: its sessions are `Busy` until its next
    /// heartbeat.
    pub(crate) fn mark_unresponsive(&self, replica: &Replica) {
        tracing::warn!(address = &*replica.address, "a replica does not answer");
        self.0.unresponsive.add(replica, Instant::now());
    }

    /// Whether this replica is about to end.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.owner.is_closed()
    }

    /// The replicas that begin and claim sessions in place of this one, from a random one on; none
    /// before this replica is about to end.
    pub(crate) async fn successors(&self) -> Vec<Replica> {
        let mut replicas = self.0.owner.successors().await;
        let mut random = [0];
        // Without randomness the order stays.
        let _ = self.0.random.fill(&mut random);
        let first = usize::from(random[0]) % replicas.len().max(1);
        replicas.rotate_left(first);
        replicas
    }
}

impl Hub {
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
            return Error::NoSession;
        }
        match self.0.directory.find(&SessionId(id.into())).await {
            Ok(Some(found)) if is_of(&found, access) => Error::Moved,
            Ok(_) => Error::NoSession,
            Err(_) => STORE_AWAY,
        }
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

    /// Becomes the owner of a session; false if another replica was faster.
    async fn claim(&self, access: &Access, id: &SessionId, record: Record) -> Result<bool, Error> {
        let Some(claim) = self.0.claims.begin(id) else {
            // Another request claims it; the caller looks it up again afterwards.
            sleep(RETRY).await;
            return Ok(false);
        };
        let (hub, access, id) = (self.clone(), access.clone(), id.clone());
        // In a task of its own: a request that goes away must not leave the session half claimed.
        let claimed = self.0.tracker.spawn(async move {
            let (_claim, core) = (claim, &hub.0);
            if core.sessions.has(id.as_str()) {
                return Ok(true);
            }
            let claimed = core.directory.claim(&id, &record, &core.owner.me).await;
            let Some(fence) = claimed.map_err(|_| STORE_AWAY)? else {
                return Ok(false);
            };
            hub.adopt(&access, &id, fence, record).await.map(|()| true)
        });
        claimed.await.unwrap_or(Err(Error::Bug("a claim panicked")))
    }

    /// Continues a session that was claimed, or ends it.
    async fn adopt(
        &self,
        access: &Access,
        id: &SessionId,
        fence: Fence,
        record: Record,
    ) -> Result<(), Error> {
        let max = self.0.config.session.max;
        let stored = SessionRecord::parse(&record.kept);
        let stored = stored.filter(|_| {
            let is_kept = access.server().supervision.on_loss == OnLoss::Restore;
            is_kept && (max.is_zero() || record.age < max)
        });
        let revision = stored.as_ref().and_then(SessionRecord::revision);
        let transport = stored.as_ref().map(SessionRecord::transport);
        let replay = stored.and_then(SessionRecord::into_replay).zip(revision);
        let Some((replay, revision)) = replay else {
            // A record that cannot be removed ends with its time to live.
            let _ = self.0.directory.remove(id, fence).await;
            return Err(Error::NoSession);
        };
        let Ok(streams) = self.0.log.streams(id).await else {
            let _ = self.0.directory.release(id, fence).await;
            return Err(STORE_AWAY);
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
        session.adopt(Takeover {
            fence,
            revision,
            replay,
            streams,
            born: born(record.age),
        });
        self.0.sessions.insert(id, handle);
        self.0.tracker.spawn(session.run(received));
        Ok(())
    }
}

/// The time of birth for an age; `now` if the clock of this machine does not reach back so far.
fn born(age: Duration) -> Instant {
    let now = Instant::now();
    now.checked_sub(age).unwrap_or(now)
}

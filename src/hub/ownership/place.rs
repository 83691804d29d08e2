//! Where a session is served: here, or by another replica; and how this one becomes the owner of
//! a session that has none which lives (DESIGN section 5, "Claims").

use std::{
    collections::HashSet,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};

use super::{owner::AWAY, unresponsive::SILENT};
use crate::hub::{
    COMMANDS, Core, Handle, Hub,
    session::{Adopted, Remembered, Session, Transport},
};
use crate::{
    auth::Access,
    declare::OnLoss,
    error::Error,
    state::{Fence, Found, Record, Replica, SessionId},
};

/// Which replica serves a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// This one.
    Here,
    /// Another one, which lives.
    There(Replica),
}

/// What the asker knows already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Nothing: what was learned of the session a moment ago will do.
    Known,
    /// What was learned is not true any more (421, or a hop that broke): ask the directory.
    Anew,
    /// Nobody listens at its owner's address: the session may be claimed at once.
    Refused(Replica),
}

/// Sessions of other replicas whose place is remembered.
const PLACES: u64 = 100_000;
/// For how long: an owner that froze is asked no longer than its heartbeat stands, and this.
const REMEMBERED: Duration = Duration::from_secs(1);

/// Where sessions of other replicas were found.
pub(crate) type Places = moka::sync::Cache<SessionId, Replica>;

/// An empty table of places.
pub(crate) fn places() -> Places {
    moka::sync::Cache::builder()
        .max_capacity(PLACES)
        .time_to_live(REMEMBERED)
        .build()
}

/// Sessions that are being claimed: one request does it for all. Never held across an await.
pub(crate) type Claims = RwLock<HashSet<SessionId>>;

/// One claim; others begin when it is dropped.
pub(crate) struct Claiming {
    core: Arc<Core>,
    id: SessionId,
}

impl Claiming {
    fn begin(core: &Arc<Core>, id: &SessionId) -> Option<Self> {
        let mut claims = core.claims.write().unwrap_or_else(PoisonError::into_inner);
        claims.insert(id.clone()).then(|| Self {
            core: Arc::clone(core),
            id: id.clone(),
        })
    }
}

impl Drop for Claiming {
    fn drop(&mut self) {
        let claims = &self.core.claims;
        let mut claims = claims.write().unwrap_or_else(PoisonError::into_inner);
        claims.remove(&self.id);
    }
}

/// How long a session may be on its way to this replica.
const PATIENCE: Duration = Duration::from_secs(1);
const AGAIN: Duration = Duration::from_millis(10);

impl Hub {
    /// Finds the replica that serves a session; this one becomes its owner if it has none that
    /// lives.
    ///
    /// # Errors
    ///
    /// `NoSession` for an unknown, ended or foreign id; `Busy` while nobody can say.
    pub(crate) async fn locate(
        &self,
        access: &Access,
        id: &str,
        look: Look,
    ) -> Result<Place, Error> {
        let core = &self.0;
        if core.owner.is_alone() || core.is_here(id) {
            return core.find(access, id).map(|_| Place::Here);
        }
        core.owner.check()?;
        let id = SessionId(id.into());
        match &look {
            Look::Known => {
                let known = core.places.get(&id);
                if let Some(replica) = known.filter(|known| !core.silence.has(known)) {
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
                return Err(core.nowhere().await);
            };
            let is_late = Instant::now() >= deadline;
            match core.whose(&found, &look, is_late) {
                Whose::Other(replica, sign) => {
                    if core.silence.lasts(&replica, asked, sign) {
                        return Err(SILENT);
                    }
                    core.places.insert(id, replica.clone());
                    return Ok(Place::There(replica));
                }
                Whose::Nobody => {
                    core.may_claim(found.sign.is_some()).await?;
                    if core.claim(access, &id, found.record).await? {
                        return Ok(Place::Here);
                    }
                }
                // It is being restored, or has just ended.
                Whose::Ours => sleep(AGAIN).await,
            }
            if core.is_here(id.as_str()) {
                return core.find(access, id.as_str()).map(|_| Place::Here);
            }
        }
    }
}

/// A replica that is about to end.
impl Hub {
    /// From now on other replicas begin and claim sessions, as far as there are any.
    pub(crate) async fn close(&self) {
        self.0.owner.close().await;
    }

    /// Whether they do.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.owner.is_closed()
    }

    /// Which ones, in an order of chance; nobody before this one is about to end.
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

/// Who owns what was found.
enum Whose {
    /// One that lives, and how long ago it gave its last sign of that.
    Other(Replica, Duration),
    Ours,
    Nobody,
}

pub(crate) fn is_of(found: &Found, access: &Access) -> bool {
    *found.record.principal == *access.principal().key()
        && found.record.server == access.server().name
}

impl Core {
    /// Keeps this replica from claiming a session, as long as the result is held: it is about to
    /// end, and still in the directory.
    pub(crate) fn keep_off(self: &Arc<Self>, id: &SessionId) -> Option<Claiming> {
        let is_shared = !self.owner.is_alone();
        is_shared.then(|| Claiming::begin(self, id)).flatten()
    }

    /// A session of this replica, for whoever was told that it is here.
    ///
    /// # Errors
    ///
    /// `NoSession` where there is none; `Moved` if it has just gone to another replica.
    pub(crate) async fn here(
        &self,
        access: &Access,
        (transport, id): (Transport, &str),
    ) -> Result<Handle, Error> {
        match self.find(access, id) {
            Err(Error::NoSession) => Err(self.gone(access, id).await),
            // What one transport began the endpoints of the other could not go on with.
            Ok(found) if found.transport != transport => Err(Error::NoSession),
            found => found,
        }
    }

    /// What is said of a session that has ended here.
    pub(crate) async fn gone(&self, access: &Access, id: &str) -> Error {
        if self.owner.is_alone() || self.is_here(id) {
            return Error::NoSession;
        }
        match self.directory.find(&SessionId(id.into())).await {
            Ok(Some(found)) if is_of(&found, access) => Error::Moved,
            Ok(_) => Error::NoSession,
            Err(_) => AWAY,
        }
    }

    pub(super) fn is_here(&self, id: &str) -> bool {
        let sessions = self.sessions.read().unwrap_or_else(PoisonError::into_inner);
        sessions.contains_key(id)
    }

    /// What is said of an id that is nowhere. Where the store lost what it had, it may soon be
    /// somewhere again; a heartbeat tells, before which nobody here may know.
    pub(crate) async fn nowhere(&self) -> Error {
        let known = self.owner.epoch();
        match self.owner.beat().await {
            Ok(beat) if beat.epoch == known && !beat.is_recovering => Error::NoSession,
            _ => AWAY,
        }
    }

    fn whose(&self, found: &Found, look: &Look, is_late: bool) -> Whose {
        match &found.record.owner {
            None => Whose::Nobody,
            Some(owner) if owner.boot == self.owner.me.boot => {
                if is_late {
                    Whose::Nobody
                } else {
                    Whose::Ours
                }
            }
            Some(owner) => {
                let is_refused = matches!(look, Look::Refused(replica) if replica == owner);
                match found.sign.filter(|_| !is_refused) {
                    Some(sign) => Whose::Other(owner.clone(), sign),
                    None => Whose::Nobody,
                }
            }
        }
    }

    /// A replica that is about to end leaves claims to others. Not where it alone knows that nobody
    /// listens at the owner's address: to them that owner lives until its heartbeat ends.
    async fn may_claim(&self, is_owner_alive: bool) -> Result<(), Error> {
        let is_left = !is_owner_alive && !self.owner.successors().await.is_empty();
        if self.drain.is_cancelled() || is_left {
            return Err(Error::Draining);
        }
        if !is_owner_alive && self.owner.is_just_back() {
            return Err(AWAY);
        }
        Ok(())
    }

    /// Becomes the owner of a session; false if somebody else was faster.
    async fn claim(
        self: &Arc<Self>,
        access: &Access,
        id: &SessionId,
        record: Record,
    ) -> Result<bool, Error> {
        let Some(claiming) = Claiming::begin(self, id) else {
            // Another request is about to; what it makes of the session is looked at again.
            sleep(AGAIN).await;
            return Ok(false);
        };
        let (core, access, id) = (Arc::clone(self), access.clone(), id.clone());
        // To the end, whatever becomes of the request: half claimed it would be nobody's.
        let claimed = self.tracker.spawn(async move {
            let _claiming = claiming;
            if core.is_here(id.as_str()) {
                return Ok(true);
            }
            let claimed = core.directory.claim(&id, &record, &core.owner.me).await;
            let Some(fence) = claimed.map_err(|_| AWAY)? else {
                return Ok(false);
            };
            core.adopt(&access, &id, fence, record).await.map(|()| true)
        });
        claimed.await.unwrap_or(Err(Error::Bug("a claim panicked")))
    }

    /// Goes on with a session that was claimed, or ends it.
    async fn adopt(
        self: &Arc<Self>,
        access: &Access,
        id: &SessionId,
        fence: Fence,
        record: Record,
    ) -> Result<(), Error> {
        let max = self.config.session.max;
        let remembered = Remembered::parse(&record.kept);
        let remembered = remembered.filter(|_| {
            let is_kept = access.server().supervision.on_loss == OnLoss::Restore;
            is_kept && (max.is_zero() || record.age < max)
        });
        let revision = remembered.as_ref().and_then(Remembered::revision);
        let transport = remembered.as_ref().map(Remembered::transport);
        let adopted = remembered.and_then(Remembered::kept).zip(revision);
        let Some((kept, revision)) = adopted else {
            // What is not removed now ends with its time to live.
            let _ = self.directory.remove(id, fence).await;
            return Err(Error::NoSession);
        };
        let Ok(streams) = self.log.streams(id).await else {
            let _ = self.directory.release(id, fence).await;
            return Err(AWAY);
        };
        let seats = self.limits.session(access).await.unwrap_or_default();
        let (commands, received) = mpsc::channel(COMMANDS);
        let handle = Handle {
            commands,
            access: Arc::new(access.clone()),
            transport: transport.unwrap_or(Transport::Streamable),
            born: born(record.age),
            fence,
        };
        let mut session = Session::new(Arc::clone(self), id.clone(), access, handle.clone(), seats);
        session.adopt(Adopted {
            fence,
            revision,
            kept,
            streams,
            born: born(record.age),
        });
        self.keep(id, handle);
        self.tracker.spawn(session.run(received));
        Ok(())
    }
}

/// When something began that is so old; a machine that started later does not know.
fn born(age: Duration) -> Instant {
    let now = Instant::now();
    now.checked_sub(age).unwrap_or(now)
}

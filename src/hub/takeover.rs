//! Takeover: makes this replica the owner of a session whose owner is gone.
//!
//! Not here: whether this replica may claim it (`locate`).

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};

use super::{
    core::{COMMANDS, Handle, Transport},
    ownership::STORE_AWAY,
    requests::Hub,
    session::{Session, SessionRecord, Takeover},
};
use crate::{
    auth::Access,
    declare::OnLoss,
    error::Error,
    state::{ClaimFrom, Fence, Found, Record, SessionId},
};

/// The wait for another request that claims the same session.
const RETRY: Duration = Duration::from_millis(10);

impl Hub {
    /// Becomes the owner of a session that was found; false if another replica was faster, or its owner has come back.
    pub(super) async fn claim(
        &self,
        access: &Access,
        id: &SessionId,
        found: Found,
    ) -> Result<bool, Error> {
        let Some(claim) = self.0.claims.begin(id) else {
            // Another request claims it; the caller looks it up again afterwards.
            sleep(RETRY).await;
            return Ok(false);
        };
        // The caller knows of an owner with a heartbeat that it is gone nevertheless.
        let from = match found.heartbeat_age {
            Some(_) => ClaimFrom::Any,
            None => ClaimFrom::Silent,
        };
        let (hub, access, id) = (self.clone(), access.clone(), id.clone());
        let mut record = found.record;
        // In a task of its own: a request that goes away must not leave the session half claimed.
        let claimed = self.0.tracker.spawn(async move {
            let (_claim, core) = (claim, &hub.0);
            if core.sessions.has(id.as_str()) {
                return Ok(true);
            }
            // That of a stream which another replica served may be as old as the stream: the next child would start by
            // what was declared then.
            let access = core.renewed(&access)?;
            // Before the claim: a lapse during it leaves room for another one, so that the fence is read again.
            let lapses = core.owner.lapses();
            let (me, directory) = (&core.owner.me, &core.directory);
            let claimed = directory.claim(&id, &record, me, from).await;
            let Some(claimed) = claimed.map_err(|_| STORE_AWAY)? else {
                return Ok(false);
            };
            // Its owner may have changed it since it was found.
            record.kept = claimed.kept;
            let claimed = (claimed.fence, lapses);
            let adopted = hub.adopt(&access, &id, claimed, record).await;
            adopted.map(|()| true)
        });
        claimed.await.unwrap_or(Err(Error::Bug("a claim panicked")))
    }

    /// Continues a session that was claimed, or ends it.
    async fn adopt(
        &self,
        access: &Access,
        id: &SessionId,
        (fence, lapses): (Fence, u32),
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
        let memory = self.0.limits.memory().session_state(access);
        let replay = stored
            .and_then(|stored| stored.into_replay(memory))
            .zip(revision);
        let Some((replay, revision)) = replay else {
            // A record that cannot be removed ends with its time to live.
            let _ = self.0.directory.remove(id, fence).await;
            return Err(Error::NoSession);
        };
        let Ok(streams) = self.0.log.streams(id).await else {
            let _ = self.0.directory.release(id, fence).await;
            return Err(STORE_AWAY);
        };
        let place = self.0.limits.adopted(access).await;
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
            place,
        );
        session.adopt(Takeover {
            fence,
            lapses,
            revision,
            replay,
            streams,
            born: born(record.age),
        });
        self.0.sessions.insert(id, handle.clone());
        self.0.tracker.spawn(session.run(received));
        // Sessions may have followed a change of the catalogue before this one was among them.
        self.tell(id.clone(), handle);
        Ok(())
    }
}

/// The time of birth for an age; `now` if the clock of this machine does not reach back so far.
fn born(age: Duration) -> Instant {
    let now = Instant::now();
    now.checked_sub(age).unwrap_or(now)
}

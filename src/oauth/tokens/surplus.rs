//! Room for another grant of a person: the longest unused ones give way to it, and where all are in use it has to wait.
//!
//! Not here: how many there may be, and which give way (`database`).

use std::time::Duration;

use super::token::{Exchange, millis};
use crate::{
    database::oauth::{Room, Unused},
    oauth::base::OauthRefusal,
};

impl Exchange<'_> {
    /// The grants that give way to that of a code, by its hash, before anything is used up for it. A code that is wrong
    /// is refused where it is taken.
    pub(super) async fn giving_way(
        &self,
        hash: &[u8; 32],
        verifier: &str,
    ) -> Result<Vec<Unused>, OauthRefusal> {
        let (tenant, grants) = (&self.server.tenant.name, self.store.grants());
        let code = grants.unused_code(tenant, hash).await?;
        let Some(code) = code.filter(|code| self.check_code(code, verifier).is_ok()) else {
            return Ok(Vec::new());
        };
        let of = (code.grant.subject.as_str(), self.client.id.as_str());
        let access_ms = millis(self.state.config.oauth.access);
        match grants.room(tenant, of, access_ms).await? {
            Room::Behind(giving_way) => Ok(giving_way),
            Room::Before(first) => {
                self.end_surplus(&first).await;
                let what = "too many grants of the person began at once";
                Err(OauthRefusal::too_many(what, SOON))
            }
            Room::Full { until_ms } => {
                let left = u64::try_from(until_ms - self.now_ms).unwrap_or_default();
                let what = "the person has too many grants that are in use";
                Err(OauthRefusal::too_many(what, Duration::from_millis(left)))
            }
            Room::Revoked => Err(too_many_revoked()),
        }
    }

    /// Ends grants behind the begin of the one that they give way to. Those that are left are among the surplus of the
    /// next one.
    pub(super) async fn end_surplus(&self, giving_way: &[Unused]) {
        let (tenant, revocations) = (&self.server.tenant.name, self.store.revocations());
        for grant in giving_way {
            match revocations.end_unused(tenant, *grant).await {
                Ok(true) => {
                    self.note_revoked(grant.id, "newer grants of its person took its place");
                }
                Ok(false) => {}
                Err(failure) => {
                    let tenant = tenant.as_str();
                    tracing::warn!(tenant.id = tenant, %failure, "a surplus grant is left");
                    return;
                }
            }
        }
    }
}

/// The refusal of another grant of a person or a machine, of which all replicas keep so many revoked ones.
pub(super) fn too_many_revoked() -> OauthRefusal {
    OauthRefusal::too_many("too many grants were revoked within a day", LATER)
}

/// The time after which there is room, once some grants have ended.
const SOON: Duration = Duration::from_secs(1);
/// The time after which a client may ask again that had too many grants revoked: they count for a day.
const LATER: Duration = Duration::from_hours(1);

//! Surplus grants: those that have to end so that one person has only so many.
//!
//! Only grants with refresh tokens count: machines have one for each resource, and other grants without a code last no
//! longer than their access token. Not here: their end (`revocations`), and the begin of grants of machines
//! (`direct_grants`).

use uuid::Uuid;

use super::{
    grants::{Grants, NewCode, new_code},
    revocations::{Revocations, ended_at, number_grants},
};
use crate::database::pool::{Error, Value};

/// A grant that was not used since its last token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unused {
    /// The grant.
    pub(crate) id: Uuid,
    /// The time of its last token, in milliseconds since 1970.
    pub(crate) last_ms: i64,
}

/// The room that a person has for another grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// There is room if these grants end behind its begin: none as a rule.
    Behind(Vec<Unused>),
    /// There is none until these have ended: more began together than give way to one.
    Before(Vec<Unused>),
    /// Every grant is in use, the first one until this time in milliseconds since 1970.
    Full {
        /// The end of its last access token.
        until_ms: i64,
    },
    /// Too many grants, to the client or in all, were revoked within a day.
    Revoked,
}

impl Grants<'_> {
    /// A code that nobody used, which stays so.
    pub(crate) async fn unused_code(
        self,
        tenant: &str,
        hash: &[u8; 32],
    ) -> Result<Option<NewCode>, Error> {
        let values = vec![hash.into(), tenant.into()];
        let rows = self.pool.read(UNUSED_CODE, values).await?;
        rows.first().map(|row| new_code(row, hash)).transpose()
    }

    /// The room of a subject for another grant to a client. A grant is in use for `access_ms` after its last token. The
    /// longest unused ones give way, [`AT_ONCE`] at most: as many as begin together are too many for a while.
    pub(crate) async fn room(
        self,
        tenant: &str,
        (subject, client): (&str, &str),
        access_ms: i64,
    ) -> Result<Room, Error> {
        let now_ms = self.pool.now_ms();
        let values = |client: Option<&str>, limit: i64| -> Vec<Value> {
            let client = Value::Text(client.map(str::to_owned));
            let (tenant, subject) = (tenant.into(), subject.into());
            vec![tenant, subject, client, now_ms.into(), limit.into()]
        };
        let mut counted = values(Some(client), OF_PERSON + AT_ONCE);
        counted.extend([ENDED.into(), ENDED_OF_PERSON.into()]);
        let counted = self.pool.read(COUNTS, counted).await?;
        let count = |column| counted.first().map_or(Ok(0), |row| row.get::<i64>(column));
        if count("ended")? >= ENDED || count("ended_of_person")? >= ENDED_OF_PERSON {
            return Ok(Room::Revoked);
        }
        let of_client = (Some(client), count("of_client")? + 1 - OF_CLIENT);
        let of_person = (None, count("of_person")? + 1 - OF_PERSON);
        let are_many = of_client.1.max(of_person.1) > AT_ONCE;
        let mut behind = Vec::new();
        for (client, surplus) in [of_client, of_person] {
            let surplus = usize::try_from(surplus.min(AT_ONCE)).unwrap_or_default();
            // Those that end for their client count for their person.
            if surplus <= behind.len() {
                continue;
            }
            let longest = values(client, 2 * AT_ONCE);
            for row in self.pool.read(LONGEST_UNUSED, longest).await? {
                let (id, last_ms): (Uuid, i64) = (row.get("id")?, row.get("last_ms")?);
                let until_ms = last_ms.saturating_add(access_ms);
                if until_ms > now_ms && behind.is_empty() {
                    return Ok(Room::Full { until_ms });
                }
                if until_ms > now_ms || behind.len() == surplus {
                    break;
                }
                if !behind.iter().any(|known: &Unused| known.id == id) {
                    behind.push(Unused { id, last_ms });
                }
            }
        }
        Ok(if are_many {
            Room::Before(behind)
        } else {
            Room::Behind(behind)
        })
    }
}

impl Revocations<'_> {
    /// Ends a grant; returns false if it has had another token since, or has ended.
    pub(crate) async fn end_unused(self, tenant: &str, unused: Unused) -> Result<bool, Error> {
        let of = || -> Vec<Value> { vec![tenant.into(), unused.id.into(), unused.last_ms.into()] };
        // Others that found it as well come for it in turn, and would take the lock of all writers for nothing.
        if self.readers.read(IS_UNUSED, of()).await?.is_empty() {
            return Ok(false);
        }
        let pool = self.at_turn(tenant).await?;
        let mut transaction = pool.begin().await?;
        let (mut values, now_ms) = (of(), self.pool.now_ms());
        values.extend(ended_at(now_ms));
        let ended = transaction.run(END_UNUSED, values).await?;
        number_grants(&mut transaction, tenant, &ended, now_ms).await?;
        transaction.commit().await?;
        Ok(!ended.is_empty())
    }
}

/// Maximum live grants of a person to one client, which has one for each log-in.
const OF_CLIENT: i64 = 100;
/// Maximum live grants of a person.
const OF_PERSON: i64 = 1000;
/// Maximum revoked grants of a person to one client, or of a client for itself, which stay for a day: all replicas have
/// each in memory for as long.
const ENDED: i64 = 500;
/// Maximum revoked grants of a person to all clients, of which anybody registers as many as they like.
pub(super) const ENDED_OF_PERSON: i64 = 5000;
/// Maximum grants that give way to one.
const AT_ONCE: i64 = 16;

const UNUSED_CODE: &str = "
    SELECT grant_id, subject, groups, client_id, resource, scope, session, jkt, auth_ms,
           grant_ms, redirect_uri, challenge, expires_ms
      FROM codes
     WHERE hash = $1 AND tenant = $2 AND used_ms IS NULL";

const COUNTS: &str = "
    SELECT COUNT(*) AS of_person,
           COUNT(CASE WHEN client_id = $3 THEN 1 END) AS of_client,
           (SELECT COUNT(*)
              FROM (SELECT 1 AS one
                      FROM grants
                     WHERE tenant = $1 AND subject = $2 AND client_id = $3
                       AND revoked_ms IS NOT NULL AND family IS NOT NULL
                     LIMIT $6) AS revoked) AS ended,
           (SELECT COUNT(*)
              FROM (SELECT 1 AS one
                      FROM grants
                     WHERE tenant = $1 AND subject = $2
                       AND revoked_ms IS NOT NULL AND family IS NOT NULL
                     LIMIT $7) AS revoked) AS ended_of_person
      FROM (SELECT client_id
              FROM grants
             WHERE tenant = $1 AND subject = $2 AND revoked_ms IS NULL AND expires_ms > $4
               AND family IS NOT NULL
             LIMIT $5) AS live";

const LONGEST_UNUSED: &str = "
    SELECT id, COALESCE(used_ms, created_ms) AS last_ms
      FROM grants
     WHERE tenant = $1 AND subject = $2 AND revoked_ms IS NULL AND expires_ms > $4
       AND family IS NOT NULL
       AND (CAST($3 AS TEXT) IS NULL OR client_id = $3)
     ORDER BY last_ms, id
     LIMIT $5";

const IS_UNUSED: &str = "
    SELECT id
      FROM grants
     WHERE tenant = $1 AND id = $2 AND revoked_ms IS NULL
       AND COALESCE(used_ms, created_ms) <= $3";

// A refresh at this moment has the row first, or finds it revoked.
const END_UNUSED: &str = "
    UPDATE grants
       SET revoked_ms = $4,
           expires_ms = CASE WHEN expires_ms < $5 THEN expires_ms ELSE $5 END
     WHERE tenant = $1 AND id = $2 AND revoked_ms IS NULL
       AND COALESCE(used_ms, created_ms) <= $3
    RETURNING id";

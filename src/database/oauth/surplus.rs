//! Surplus grants: those that have to end so that one person has only so many.
//!
//! Only grants with refresh tokens count: machines have one for each resource, and other grants without a code last no
//! longer than their access token. Not here: their end (`revocations`).

use uuid::Uuid;

use super::grants::{Grants, NewCode, new_code};
use crate::database::pool::{Error, Value};

/// The room that a person has for another grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// There is room if these grants end behind its begin: none as a rule.
    Behind(Vec<Uuid>),
    /// Every grant is in use, the first one until this time in milliseconds since 1970.
    Full {
        /// The end of its last access token.
        until_ms: i64,
    },
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
        let counted = values(Some(client), OF_PERSON + AT_ONCE);
        let counted = self.pool.read(COUNTS, counted).await?;
        let count = |column| counted.first().map_or(Ok(0), |row| row.get::<i64>(column));
        let of_client = (Some(client), count("of_client")? + 1 - OF_CLIENT);
        let of_person = (None, count("of_person")? + 1 - OF_PERSON);
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
                if !behind.contains(&id) {
                    behind.push(id);
                }
            }
        }
        Ok(Room::Behind(behind))
    }
}

/// Maximum live grants of a person to one client, which has one for each log-in.
const OF_CLIENT: i64 = 100;
/// Maximum live grants of a person.
const OF_PERSON: i64 = 1000;
/// Maximum grants that give way to one.
const AT_ONCE: i64 = 16;

const UNUSED_CODE: &str = "
    SELECT grant_id, subject, groups, client_id, resource, scope, session, jkt, auth_ms,
           grant_ms, redirect_uri, challenge, expires_ms
      FROM codes
     WHERE hash = $1 AND tenant = $2 AND used_ms IS NULL";

const COUNTS: &str = "
    SELECT COUNT(*) AS of_person,
           COUNT(CASE WHEN client_id = $3 THEN 1 END) AS of_client
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

//! What is forgotten: rows that can have no effect any more.
//!
//! A little at a time, so that nobody waits for it. Not here: the audit trail (`audit`).

use super::{revocations::KEPT_MS, signing_keys};
use crate::database::{Failure, Store, Value};

impl Store {
    /// Removes some of the rows of the authorization servers that have ended. True says that there
    /// may be more.
    pub(crate) async fn forget_some(&self) -> Result<bool, Failure> {
        let (core, now_ms) = (&self.0, self.0.now_ms());
        let mut is_more = false;
        for (sql, kept_ms) in EXPIRED {
            let values: Vec<Value> = vec![(now_ms - kept_ms).into()];
            is_more |= core.write(*sql, values).await?.len() == PART;
        }
        is_more |= core.write(LOST_CONSENTS, Vec::new()).await?.len() == PART;
        let mut transaction = core.pool.begin_beside().await?;
        if signing_keys::forget(&mut transaction, now_ms).await? > 0 {
            transaction.commit().await?;
        }
        Ok(is_more)
    }
}

/// What a statement removes at most.
const PART: usize = 1000;

/// Access tokens of a grant outlive it for minutes, and are to be revoked until then.
const HOUR_MS: i64 = 3600 * 1000;

/// A code that is used again later than this says nothing any more of who had it.
const DAY_MS: i64 = 24 * HOUR_MS;

/// The statements, each with how long rows stay after their end.
const EXPIRED: &[(&str, i64)] = &[
    (
        "DELETE FROM codes
          WHERE hash IN (SELECT hash FROM codes WHERE expires_ms < $1 ORDER BY expires_ms LIMIT 1000)
         RETURNING hash",
        DAY_MS,
    ),
    (
        "DELETE FROM refresh_tokens
          WHERE hash IN (SELECT hash FROM refresh_tokens
                          WHERE expires_ms < $1 ORDER BY expires_ms LIMIT 1000)
         RETURNING hash",
        HOUR_MS,
    ),
    (
        "DELETE FROM grants
          WHERE id IN (SELECT id FROM grants WHERE expires_ms < $1 ORDER BY expires_ms LIMIT 1000)
         RETURNING id",
        HOUR_MS,
    ),
    (
        "DELETE FROM revocations
          WHERE number IN (SELECT number FROM revocations WHERE at_ms < $1 ORDER BY at_ms LIMIT 1000)
         RETURNING number",
        KEPT_MS,
    ),
    (
        "DELETE FROM registrations
          WHERE (tenant, client_id) IN (SELECT tenant, client_id FROM registrations
                                         WHERE expires_ms < $1 ORDER BY expires_ms LIMIT 1000)
         RETURNING client_id",
        0,
    ),
    (
        "DELETE FROM logins
          WHERE (tenant, browser) IN (SELECT tenant, browser FROM logins
                                       WHERE expires_ms < $1 ORDER BY expires_ms LIMIT 1000)
         RETURNING browser",
        0,
    ),
    (
        "DELETE FROM trips
          WHERE (tenant, state) IN (SELECT tenant, state FROM trips
                                     WHERE expires_ms < $1 ORDER BY expires_ms LIMIT 1000)
         RETURNING state",
        0,
    ),
    (
        "DELETE FROM used
          WHERE (tenant, value) IN (SELECT tenant, value FROM used
                                     WHERE expires_ms < $1 ORDER BY expires_ms LIMIT 1000)
         RETURNING value",
        0,
    ),
];

/// Consents given to clients that registered and are forgotten: their ids never come again.
const LOST_CONSENTS: &str = "
    DELETE FROM consents
     WHERE (tenant, subject, client_id, digest) IN (
               SELECT tenant, subject, client_id, digest
                 FROM consents
                WHERE client_id LIKE 'c~_%' ESCAPE '~'
                  AND NOT EXISTS (SELECT 1
                                    FROM registrations
                                   WHERE registrations.tenant = consents.tenant
                                     AND registrations.client_id = consents.client_id)
                LIMIT 1000)
    RETURNING client_id";

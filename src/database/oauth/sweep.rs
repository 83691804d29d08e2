//! The removal of rows of the authorization servers that are worth nothing any more: expired ones, and those of a restored
//! database.
//!
//! In small batches, so that no writer waits long. Not here: how often (`snapshot::upkeep`), the copy that is restored
//! (`cli/local/database`), registered clients (`clients`), and the audit trail (`pool/audit`).

use super::{
    login_steps,
    revocations::{self, KEPT_MS},
    signing_keys,
};
use crate::database::pool::{Error, Pool, Value};

/// Removes some expired rows; returns true if there may be more. Where rows of one table cannot be removed, those of the
/// others go all the same.
///
/// # Errors
///
/// The first one. Without a connection it is the last, since each would be waited for.
pub(crate) async fn sweep(pool: &Pool) -> Result<bool, Error> {
    let now_ms = pool.now_ms();
    let mut is_more = false;
    let mut failed = None;
    for (sql, kept_ms) in EXPIRED {
        let values: Vec<Value> = vec![(now_ms - kept_ms).into()];
        match pool.write(*sql, values).await.map_err(Error::from) {
            Ok(rows) => is_more |= rows.len() == PART,
            Err(failure) if failure.lacks_connection() => return Err(failed.unwrap_or(failure)),
            Err(failure) => failed = failed.or(Some(failure)),
        }
    }
    let forgotten = forget_keys(pool, now_ms).await;
    failed.map_or(forgotten, Err)?;
    Ok(is_more)
}

/// Removes signing keys that are not published any more.
async fn forget_keys(pool: &Pool, now_ms: i64) -> Result<(), Error> {
    let mut transaction = revocations::begin_beside(pool).await?;
    if signing_keys::forget(&mut transaction, now_ms).await? > 0 {
        transaction.commit().await?;
    }
    Ok(())
}

/// Removes some consents to removed clients, and identities without log-in, grant and key, which takes a look at
/// every one; returns true if there may be more. Where the ones cannot be removed, the others go all the same.
///
/// # Errors
///
/// The first one. Without a connection it is the last, since each would be waited for.
pub(crate) async fn sweep_orphans(pool: &Pool) -> Result<bool, Error> {
    let consents = pool.write(LOST_CONSENTS, Vec::new()).await;
    let consents = consents.map_err(Error::from);
    if consents.as_ref().is_err_and(Error::lacks_connection) {
        return consents.map(|_| false);
    }
    // An identity is there before its log-in.
    let values = vec![(pool.now_ms() - HOUR_MS).into()];
    let identities = pool.write(LOST_IDENTITIES, values).await;
    let most = consents?.len().max(identities?.len());
    Ok(most == PART)
}

/// Ends all that a restored database says was issued: every grant with its tokens, every log-in and every consent. Returns
/// the number of grants. A copy does not know what was revoked after it was made: its refresh tokens, log-ins and consents
/// would be good again, and access tokens until they expire.
///
/// The database must have no replicas: nothing is announced. After an error some are left, and it must not be used.
pub(crate) async fn end_issued(pool: &Pool) -> Result<usize, Error> {
    // Tokens before their grants, which would take them along.
    removed(pool, REFRESH_TOKENS).await?;
    removed(pool, CODES).await?;
    let grants = removed(pool, GRANTS).await?;
    let mut transaction = pool.begin().await?;
    for sql in [LOGINS, IDENTITIES, OWN_KEYS, CONSENTS, TRIPS, SIGNING_KEYS] {
        transaction.run(sql, Vec::new()).await?;
    }
    transaction.commit().await?;
    Ok(grants)
}

/// Removes all rows of a table by a statement for a part of them, since there may be more than one statement has time for;
/// returns their number.
async fn removed(pool: &Pool, sql: &'static str) -> Result<usize, Error> {
    let mut count = 0;
    loop {
        let part = pool.write(sql, Vec::new()).await?.len();
        count += part;
        if part == 0 {
            return Ok(count);
        }
    }
}

/// Maximum rows that a statement removes.
const PART: usize = 1000;

/// Access tokens outlive their grant by minutes, and stay revocable until then.
const HOUR_MS: i64 = 3600 * 1000;

/// The time after which a reused code no longer counts as a replay.
const DAY_MS: i64 = 24 * HOUR_MS;

/// The time after which no request begins a grant by a code any more: the clocks of replicas differ by less.
const MINUTE_MS: i64 = 60 * 1000;

/// The statements, each with the time that rows outlive their expiry.
const EXPIRED: &[(&str, i64)] = &[
    (
        "DELETE FROM codes
          WHERE hash IN (SELECT hash FROM codes WHERE expires_ms < $1 ORDER BY expires_ms LIMIT 1000)
         RETURNING hash",
        DAY_MS,
    ),
    // The use is looked for outside, too: a code that is taken at this moment stays.
    (
        "DELETE FROM codes
          WHERE used_ms IS NULL
            AND hash IN (SELECT hash FROM codes
                          WHERE used_ms IS NULL AND expires_ms < $1 ORDER BY expires_ms LIMIT 1000)
         RETURNING hash",
        MINUTE_MS,
    ),
    (UNGRANTED, MINUTE_MS),
    (
        "DELETE FROM refresh_tokens
          WHERE hash IN (SELECT hash FROM refresh_tokens
                          WHERE expires_ms < $1 ORDER BY expires_ms LIMIT 1000)
         RETURNING hash",
        HOUR_MS,
    ),
    // Grants that ended early have tokens that have not expired, each maybe very many: they go in parts, and not with
    // their grants.
    (
        "DELETE FROM refresh_tokens
          WHERE hash IN (SELECT hash
                           FROM grants
                           JOIN refresh_tokens ON refresh_tokens.grant_id = grants.id
                          WHERE grants.expires_ms < $1
                          LIMIT 1000)
         RETURNING hash",
        HOUR_MS,
    ),
    (
        "DELETE FROM grants
          WHERE id IN (SELECT id
                         FROM grants
                        WHERE expires_ms < $1
                          AND NOT EXISTS (SELECT 1 FROM refresh_tokens WHERE grant_id = grants.id)
                        ORDER BY expires_ms
                        LIMIT 1000)
         RETURNING id",
        HOUR_MS,
    ),
    (
        "DELETE FROM own_keys
          WHERE (tenant, name) IN (SELECT tenant, name FROM own_keys
                                    WHERE expires_ms < $1 ORDER BY expires_ms LIMIT 1000)
         RETURNING name",
        HOUR_MS,
    ),
    (
        "DELETE FROM revocations
          WHERE number IN (SELECT number FROM revocations WHERE at_ms < $1 ORDER BY at_ms LIMIT 1000)
         RETURNING number",
        KEPT_MS,
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
    (
        "DELETE FROM login_steps
          WHERE id IN (SELECT id FROM login_steps WHERE at_ms < $1 ORDER BY at_ms LIMIT 1000)
         RETURNING id",
        login_steps::KEPT_MS,
    ),
];

/// Used codes that began no grant, of which a replay ends nothing. That is looked for outside, too: a code whose grant
/// begins at this moment stays.
pub(crate) const UNGRANTED: &str = "
    DELETE FROM codes
     WHERE ungranted_ms IS NOT NULL
       AND hash IN (SELECT hash FROM codes
                     WHERE ungranted_ms < $1 ORDER BY ungranted_ms LIMIT 1000)
    RETURNING hash";

/// Consents to removed registered clients, whose ids are never reused.
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

/// Identities of people who have nothing here any more.
const LOST_IDENTITIES: &str = "
    DELETE FROM identities
     WHERE (tenant, subject) IN (
               SELECT tenant, subject
                 FROM identities
                WHERE checked_ms < $1
                  AND NOT EXISTS (SELECT 1
                                    FROM logins
                                   WHERE logins.tenant = identities.tenant
                                     AND logins.subject = identities.subject)
                  AND NOT EXISTS (SELECT 1
                                    FROM grants
                                   WHERE grants.tenant = identities.tenant
                                     AND grants.subject = identities.subject
                                     AND revoked_ms IS NULL)
                  AND NOT EXISTS (SELECT 1
                                    FROM own_keys
                                   WHERE own_keys.tenant = identities.tenant
                                     AND own_keys.subject = identities.subject)
                LIMIT 1000)
    RETURNING subject";

const REFRESH_TOKENS: &str = "
    DELETE FROM refresh_tokens
     WHERE hash IN (SELECT hash FROM refresh_tokens LIMIT 1000)
    RETURNING hash";
const CODES: &str = "
    DELETE FROM codes
     WHERE hash IN (SELECT hash FROM codes LIMIT 1000)
    RETURNING hash";
const GRANTS: &str = "
    DELETE FROM grants
     WHERE id IN (SELECT id FROM grants LIMIT 1000)
    RETURNING id";
const LOGINS: &str = "DELETE FROM logins";
/// Their refresh tokens are those of the original, which may use them up.
const IDENTITIES: &str = "DELETE FROM identities";
/// Nobody can be asked about these people any more, whose subjects begin with the issuer. Those of local users are told.
const OWN_KEYS: &str = "DELETE FROM own_keys WHERE subject LIKE '%#%'";
const CONSENTS: &str = "DELETE FROM consents";
const TRIPS: &str = "DELETE FROM trips";
/// Access tokens also of grants that began after the copy was made.
const SIGNING_KEYS: &str = "DELETE FROM signing_keys";

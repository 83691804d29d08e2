//! End of all that a restored database says was issued.
//!
//! A copy does not know what was revoked after it was made: its refresh tokens, log-ins and consents
//! would be good again, and access tokens until they expire. Not here: the copy (`cli/local/database`).

use crate::database::pool::{Error, Pool};

/// Ends every grant with its tokens, every log-in and every consent; returns the number of grants.
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

//! End of all that a restored database says was issued.
//!
//! A copy does not know what was revoked after it was made: its refresh tokens, log-ins and consents
//! would be good again, and access tokens until they expire. Not here: the copy (`cli/local/database`).

use crate::database::pool::{Error, Pool};

/// Ends every grant with its tokens, every log-in and every consent; returns the number of grants.
/// The database must have no replicas: nothing is announced.
pub(crate) async fn end_issued(pool: &Pool) -> Result<usize, Error> {
    let mut transaction = pool.begin().await?;
    let grants = transaction.run(GRANTS, Vec::new()).await?;
    for sql in [
        CODES,
        LOGINS,
        IDENTITIES,
        OWN_KEYS,
        CONSENTS,
        TRIPS,
        SIGNING_KEYS,
    ] {
        transaction.run(sql, Vec::new()).await?;
    }
    transaction.commit().await?;
    Ok(grants.len())
}

/// Refresh tokens go with their grants.
const GRANTS: &str = "
    DELETE FROM grants
    RETURNING id";
const CODES: &str = "DELETE FROM codes";
const LOGINS: &str = "DELETE FROM logins";
/// Their refresh tokens are those of the original, which may use them up.
const IDENTITIES: &str = "DELETE FROM identities";
/// Nobody can be asked about these people any more, whose subjects begin with the issuer. Those of local users are told.
const OWN_KEYS: &str = "DELETE FROM own_keys WHERE subject LIKE '%#%'";
const CONSENTS: &str = "DELETE FROM consents";
const TRIPS: &str = "DELETE FROM trips";
/// Access tokens also of grants that began after the copy was made.
const SIGNING_KEYS: &str = "DELETE FROM signing_keys";

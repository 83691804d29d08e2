//! Whether the replicas that share a Redis are of one deployment: with other master keys or another
//! public URL they could not read each other's event ids, hops and tokens (DESIGN section 5).

use std::time::Duration;

use super::{client::Redis, scripts::ms};
use crate::state::StoreError;

/// How long what was agreed on outlives the last replica.
const KEPT: Duration = Duration::from_secs(60);
/// How often a replica says it again.
pub(crate) const EVERY: Duration = Duration::from_secs(15);

/// Says which deployment this replica is of; false if the others are of another.
///
/// `mine` are fingerprints of this one's master keys, the first in use: while one replaces another,
/// replicas agree that have any in common.
///
/// # Errors
///
/// `Away`.
pub(crate) async fn agree(redis: &Redis, mine: &[String]) -> Result<bool, StoreError> {
    let Some(first) = mine.first() else {
        return Ok(true);
    };
    let key = redis.key("deployment");
    let mut ask = redis::cmd("SET");
    ask.arg(&key).arg(first);
    let mut say = ask.clone();
    ask.arg("NX").arg("GET").arg("PX").arg(ms(KEPT));
    let known = redis.command(ask).await?;
    let known: Option<String> = redis::from_redis_value(known).map_err(|_| StoreError::Away)?;
    if known.is_some_and(|known| !mine.contains(&known)) {
        return Ok(false);
    }
    say.arg("PX").arg(ms(KEPT));
    redis.command(say).await.map(|_| true)
}

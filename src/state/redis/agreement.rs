//! Agreement of the replicas that share a Redis on master keys and public URL.
//!
//! Replicas that disagree could not read each other's event ids, hops and tokens.

use std::time::Duration;

use super::{client::Redis, scripts::ms};
use crate::state::StoreError;

/// The time that the agreed deployment outlives its last replica.
const LIFETIME: Duration = Duration::from_secs(60);
/// The interval at which a replica renews it.
pub(crate) const RENEWAL: Duration = Duration::from_secs(15);

/// Registers this replica's deployment; returns false if the others belong to another one.
///
/// `own` are the fingerprints of this replica's master keys, the first in use. During a key
/// rotation, one key in common is enough.
///
/// # Errors
///
/// `Away`.
pub(crate) async fn agree(redis: &Redis, own: &[String]) -> Result<bool, StoreError> {
    let Some(first) = own.first() else {
        return Ok(true);
    };
    let key = redis.key("deployment");
    let mut register = redis::cmd("SET");
    register.arg(&key).arg(first);
    let mut renew = register.clone();
    register.arg("NX").arg("GET").arg("PX").arg(ms(LIFETIME));
    let known = redis.command(register).await?;
    let known: Option<String> = redis::from_redis_value(known).map_err(|_| StoreError::Away)?;
    if known.is_some_and(|known| !own.contains(&known)) {
        return Ok(false);
    }
    renew.arg("PX").arg(ms(LIFETIME));
    redis.command(renew).await.map(|_| true)
}

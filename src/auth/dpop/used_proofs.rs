//! Proofs that were used: each is good once, at all replicas (RFC 9449, section 11.1).
//!
//! While Redis is away, a proof is good once at each replica.

use std::{sync::Arc, time::Duration};

use super::proof::{FUTURE_S, PAST_S, Proof};
use crate::{
    error::Error,
    state::{Account, Limiter, Use, memory::MemoryLimiter},
};

/// The proofs that were used; a handle.
#[derive(Clone)]
pub(crate) struct UsedProofs {
    limiter: Arc<dyn Limiter>,
    /// Proofs of each owner on this replica.
    rates: Arc<MemoryLimiter>,
}

impl UsedProofs {
    /// Remembers proofs in `limiter`.
    pub(crate) fn new(limiter: Arc<dyn Limiter>) -> Self {
        let rates = Arc::default();
        Self { limiter, rates }
    }

    /// Uses a proof of `owner`, who belongs to `tenant`; false if it was used before.
    ///
    /// # Errors
    ///
    /// The owner uses too many, or the tenant does.
    pub(crate) async fn take(
        &self,
        tenant: &str,
        owner: Arc<str>,
        proof: &Proof,
    ) -> Result<bool, Error> {
        let limit = "proofs";
        let rates = Arc::clone(&self.rates);
        // Counted before it is remembered, so that no caller fills the table.
        if rates.draw(Account { limit, owner }, RATE, 1).await == 0 {
            let what = "too many proofs of this caller";
            return Err(Error::Limit { what, retry: RETRY });
        }
        match Arc::clone(&self.limiter)
            .once(tenant.into(), *proof.id(), WINDOW)
            .await
        {
            Use::First => Ok(true),
            Use::Again => Ok(false),
            Use::Full => Err(Error::Busy {
                what: "too many proofs are remembered",
                retry: RETRY,
            }),
        }
    }
}

/// The time for which a proof is remembered: that for which it may be used, and the difference that clocks of
/// replicas may have.
const WINDOW: Duration = Duration::from_secs(PAST_S + FUTURE_S + 20);
/// Maximum proofs of an owner per second on one replica, each of which takes about 120 bytes for the window.
const RATE: u64 = 500;
/// Delay before a retry.
const RETRY: Duration = Duration::from_secs(1);

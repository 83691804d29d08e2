//! Proofs that were used: each is good once, at all replicas (RFC 9449, section 11.1).
//!
//! While Redis is away, a proof is good once at each replica. Without Redis, what was used is forgotten with the process:
//! the next one refuses proofs from before its begin. One whose `iat` was ahead of the clock, by [`FUTURE_S`] at most, is good
//! once more after a restart within that time: to refuse it would refuse every proof of the first seconds of a process.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::proof::{FUTURE_S, PAST_S, Proof, ProvenRequest, TOO_OLD};
use crate::{
    base::Clock,
    error::Error,
    state::{Account, Limiter, Use, memory::MemoryLimiter},
};

/// The proofs that were used; a handle.
#[derive(Clone)]
pub(crate) struct UsedProofs {
    limiter: Arc<dyn Limiter>,
    /// Proofs of each owner on this replica.
    rates: Arc<MemoryLimiter>,
    /// Wall time.
    clock: Clock,
    /// The begin of the process with which the proofs are forgotten; none if they outlive it.
    begun: Option<Instant>,
}

impl UsedProofs {
    /// Remembers proofs in `limiter`, which is of this process alone or shared with others.
    pub(crate) fn new(limiter: Arc<dyn Limiter>, clock: Clock, is_shared: bool) -> Self {
        Self {
            limiter,
            rates: Arc::default(),
            clock,
            begun: (!is_shared).then(Instant::now),
        }
    }

    /// Verifies the text of a proof for a request now. It may have been used since the begin of this process.
    ///
    /// # Errors
    ///
    /// The reason why it proves nothing, for the client's developer.
    pub(crate) fn verify(
        &self,
        text: &str,
        request: ProvenRequest<'_>,
    ) -> Result<Proof, &'static str> {
        let now_ms = self.clock.now_ms();
        let proof = Proof::verify(text, request, seconds(now_ms))?;
        // By the present clock, which may not have been set to that of the database at the begin.
        let begin = self.begun.map(|begun| {
            let age_ms = i64::try_from(begun.elapsed().as_millis()).unwrap_or(i64::MAX);
            seconds(now_ms.saturating_sub(age_ms))
        });
        if begin.is_some_and(|begin| proof.issued() < begin) {
            return Err(TOO_OLD);
        }
        Ok(proof)
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

fn seconds(ms: i64) -> u64 {
    u64::try_from(ms / 1000).unwrap_or(0)
}

/// The time for which a proof is remembered: that for which it may be used, and the difference that clocks of
/// replicas may have.
const WINDOW: Duration = Duration::from_secs(PAST_S + FUTURE_S + 20);
/// Maximum proofs of an owner per second on one replica, each of which takes about 120 bytes for the window.
const RATE: u64 = 500;
/// Delay before a retry.
const RETRY: Duration = Duration::from_secs(1);

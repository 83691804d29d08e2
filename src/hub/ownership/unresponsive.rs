//! Unresponsive replicas: skipped until their next heartbeat.
//!
//! A hop to a frozen replica fails after four seconds. Its heartbeat may be valid for as long, and
//! the next hops must not wait for the same failure.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use tokio::time::Instant;

use crate::{error::Error, state::Replica};

/// The unresponsive replicas by boot id, with the time of the failure. Never held across an await.
#[derive(Default)]
pub(crate) struct Unresponsive(RwLock<HashMap<Arc<str>, Instant>>);

impl Unresponsive {
    /// Adds a replica that did not answer.
    pub(crate) fn add(&self, replica: &Replica, now: Instant) {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, since| now.duration_since(*since) < TTL);
        known.insert(Arc::clone(&replica.boot), now);
    }

    /// Whether a replica is unresponsive, without regard to its heartbeats.
    pub(crate) fn has(&self, replica: &Replica) -> bool {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        known.contains_key(&replica.boot)
    }

    /// Whether a replica is still unresponsive at `now`, with a last heartbeat of age `sign`.
    pub(crate) fn is_silent(&self, replica: &Replica, now: Instant, sign: Duration) -> bool {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let Some(since) = known.get(&replica.boot) else {
            return false;
        };
        let is_silent = now.duration_since(*since) <= sign;
        if !is_silent {
            known.remove(&replica.boot);
        }
        is_silent
    }
}

/// The refusal for sessions of an unresponsive replica while its heartbeat is valid.
pub(crate) const UNRESPONSIVE: Error = Error::Busy {
    what: "the replica that has the session does not answer",
    retry: Duration::from_secs(1),
};

/// The time to live of an entry: longer than a heartbeat is valid.
const TTL: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::super::unresponsive::*;

    #[test]
    fn a_replica_is_silent_until_its_next_sign_of_life() {
        let replica = |boot: &str| Replica {
            address: "127.0.0.1:1".into(),
            boot: boot.into(),
        };
        let (known, one, began) = (Unresponsive::default(), replica("a"), Instant::now());
        let s = Duration::from_secs_f64;
        known.add(&one, began);
        assert!(known.has(&one) && !known.has(&replica("b")));
        assert!(!known.is_silent(&replica("b"), began, s(4.0)));
        assert!(known.is_silent(&one, began, s(4.0)));
        assert!(known.is_silent(&one, began + s(0.9), s(4.9)));
        assert!(
            !known.is_silent(&one, began + s(0.9), s(0.1)),
            "it beat again"
        );
        assert!(!known.is_silent(&one, began + s(1.0), s(1.2)), "forgotten");
        known.add(&one, began);
        known.add(&replica("b"), began + TTL);
        assert!(!known.has(&one));
    }
}

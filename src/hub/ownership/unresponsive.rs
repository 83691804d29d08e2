//! Replicas that let a request go without an answer, until they give another sign of life.
//!
//! A frozen one is found out by a hop to it, which takes four seconds; its heartbeat may stand for as
//! long, and the hops that follow are not to find out the same.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use tokio::time::Instant;

use crate::hub::Hub;
use crate::{error::Error, state::Replica};

/// Which of them, by their boot ids, and since when. Never held across an await.
#[derive(Default)]
pub(crate) struct Silence(RwLock<HashMap<Arc<str>, Instant>>);

impl Silence {
    /// It does not answer, as was found out just now.
    fn note(&self, replica: &Replica, now: Instant) {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, since| now.duration_since(*since) < FORGOTTEN);
        known.insert(Arc::clone(&replica.boot), now);
    }

    /// Whether it is one of them, as far as was heard here.
    pub(crate) fn has(&self, replica: &Replica) -> bool {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        known.contains_key(&replica.boot)
    }

    /// Whether it still is, where its last sign of life was so long before `now`.
    pub(super) fn lasts(&self, replica: &Replica, now: Instant, sign: Duration) -> bool {
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

impl Hub {
    /// A replica let a request go without an answer: until it gives a sign of life, its sessions
    /// are `Busy`.
    pub(crate) fn is_silent(&self, replica: &Replica) {
        tracing::warn!(address = &*replica.address, "a replica does not answer");
        self.0.silence.note(replica, Instant::now());
    }
}

/// What is said of sessions of such a replica while its heartbeat stands.
pub(super) const SILENT: Error = Error::Busy {
    what: "the replica that has the session does not answer",
    retry: Duration::from_secs(1),
};

/// Longer than a heartbeat stands.
const FORGOTTEN: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::super::unresponsive::*;

    #[test]
    fn a_replica_is_silent_until_its_next_sign_of_life() {
        let replica = |boot: &str| Replica {
            address: "127.0.0.1:1".into(),
            boot: boot.into(),
        };
        let (silence, one, began) = (Silence::default(), replica("a"), Instant::now());
        let s = Duration::from_secs_f64;
        silence.note(&one, began);
        assert!(silence.has(&one) && !silence.has(&replica("b")));
        assert!(!silence.lasts(&replica("b"), began, s(4.0)));
        assert!(silence.lasts(&one, began, s(4.0)));
        assert!(silence.lasts(&one, began + s(0.9), s(4.9)));
        assert!(
            !silence.lasts(&one, began + s(0.9), s(0.1)),
            "it beat again"
        );
        assert!(!silence.lasts(&one, began + s(1.0), s(1.2)), "forgotten");
        silence.note(&one, began);
        silence.note(&replica("b"), began + FORGOTTEN);
        assert!(!silence.has(&one));
    }
}

//! Connections at the cluster listener whose peer has not sent a valid hop.
//!
//! Any host that reaches the listener can open connections. Such a connection has a deadline, and gives its
//! place to a newer one when there are many, so that a replica always gets in.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, timeout},
};

/// A connection until its first valid hop.
pub(crate) struct Stranger {
    limit: Duration,
    is_replica: AtomicBool,
    is_displaced: Notify,
}

/// The newest connections of a listener.
pub(crate) struct Strangers {
    newest: VecDeque<Arc<Stranger>>,
    most: usize,
    limit: Duration,
}

impl Strangers {
    /// Lets at most `most` connections be without a valid hop, each for at most `limit`.
    pub(crate) const fn new(most: usize, limit: Duration) -> Self {
        Self {
            newest: VecDeque::new(),
            most,
            limit,
        }
    }

    /// Adds a connection in place of the oldest one, if there are too many.
    pub(crate) fn enter(&mut self) -> Arc<Stranger> {
        if self.newest.len() >= self.most
            && let Some(oldest) = self.newest.pop_front()
        {
            oldest.is_displaced.notify_one();
        }
        let stranger = Arc::new(Stranger {
            limit: self.limit,
            is_replica: AtomicBool::new(false),
            is_displaced: Notify::new(),
        });
        self.newest.push_back(Arc::clone(&stranger));
        stranger
    }
}

impl Stranger {
    /// Notes that the peer has sent a valid hop.
    pub(crate) fn is_replica(&self) {
        self.is_replica.store(true, Ordering::Relaxed);
    }

    /// Returns whether the peer has sent a valid hop.
    pub(crate) fn is_known(&self) -> bool {
        self.is_replica.load(Ordering::Relaxed)
    }

    /// Waits until the connection has to end; that of a replica never has.
    pub(crate) async fn has_to_end(&self) {
        // An error is that it was not displaced in time.
        let _ = timeout(self.limit, self.is_displaced.notified()).await;
        if self.is_known() {
            std::future::pending::<()>().await;
        }
    }
}

/// Refused requests, of which the log has at most one each second.
pub(crate) struct Refusals {
    since: Instant,
    /// The second of the last line, from 1.
    last: AtomicU64,
    untold: AtomicU64,
}

impl Refusals {
    pub(crate) fn new() -> Self {
        Self {
            since: Instant::now(),
            last: AtomicU64::new(0),
            untold: AtomicU64::new(0),
        }
    }

    /// Counts one; how many there were since the last line, if there is to be another.
    pub(crate) fn count(&self) -> Option<u64> {
        self.count_at(self.since.elapsed().as_secs() + 1)
    }

    fn count_at(&self, now: u64) -> Option<u64> {
        self.untold.fetch_add(1, Ordering::Relaxed);
        let is_next = self.last.fetch_max(now, Ordering::Relaxed) < now;
        is_next.then(|| self.untold.swap(0, Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_millis(500);

    async fn ends(stranger: &Stranger, within: Duration) -> bool {
        timeout(within, stranger.has_to_end()).await.is_ok()
    }

    #[tokio::test]
    async fn a_stranger_ends_in_time_or_when_newer_ones_come_and_a_replica_never() {
        let mut strangers = Strangers::new(2, LIMIT);
        let [replica, oldest, newest] = [(); 3].map(|()| strangers.enter());
        replica.is_replica();
        let next = strangers.enter();
        assert!(ends(&oldest, LIMIT / 2).await);
        assert!(!ends(&newest, LIMIT / 4).await);
        let (replica, next) = tokio::join!(ends(&replica, LIMIT * 2), ends(&next, LIMIT * 2));
        assert!(next && !replica);
    }

    #[test]
    fn refusals_have_a_line_each_second_that_counts_them() {
        let refusals = Refusals::new();
        let counted = [1, 1, 1, 2, 2, 5].map(|second| refusals.count_at(second));
        assert_eq!(counted, [Some(1), None, None, Some(3), None, Some(2)]);
    }
}

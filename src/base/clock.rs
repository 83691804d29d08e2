//! Wall time, passed in.
//!
//! For what is written down; how long things take is measured by tokio's clock.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use arc_swap::ArcSwapOption;
use tokio::time::Instant;

/// Tells what time it is; a handle.
///
/// Codes, tokens and revocations have times that any replica may have written. So replicas go by the
/// clock of the database that they share, and one whose own clock is wrong, or is set meanwhile,
/// agrees with the others (CONTRACT P161, P162).
#[derive(Clone)]
pub(crate) struct Clock {
    own: Arc<dyn Fn() -> i64 + Send + Sync>,
    /// What the database said; none for a clock that goes by nothing else.
    shared: Option<Arc<ArcSwapOption<Said>>>,
}

/// It was this time then.
struct Said {
    now_ms: i64,
    then: Instant,
}

/// By how much the clocks may differ before the time is corrected: answers of a database are late,
/// now more and now less, and nobody needs a time that goes back and forth.
const TOLERANCE_MS: u64 = 250;

impl Clock {
    /// The clock of this machine, until another one is set.
    #[expect(clippy::disallowed_methods, reason = "the one place that reads it")]
    pub(crate) fn system() -> Self {
        let own = || {
            let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            ms(since.unwrap_or_default())
        };
        Self {
            own: Arc::new(own),
            shared: Some(Arc::default()),
        }
    }

    /// A clock that says what `now` says, whatever others say.
    #[cfg(test)]
    pub(crate) fn of(now: impl Fn() -> i64 + Send + Sync + 'static) -> Self {
        Self {
            own: Arc::new(now),
            shared: None,
        }
    }

    /// Milliseconds since 1970.
    pub(crate) fn now_ms(&self) -> i64 {
        self.at(Instant::now())
    }

    fn at(&self, now: Instant) -> i64 {
        let said = self.shared.as_ref().and_then(|shared| shared.load_full());
        match said {
            Some(said) => said
                .now_ms
                .saturating_add(ms(now.saturating_duration_since(said.then))),
            None => (self.own)(),
        }
    }

    /// From now on this handle and its clones go by a clock that was asked at `asked`, and has just
    /// answered that it was `now_ms`.
    pub(crate) fn set(&self, now_ms: i64, asked: Instant) {
        self.answered(now_ms, asked, Instant::now());
    }

    fn answered(&self, now_ms: i64, asked: Instant, answered: Instant) {
        let Some(shared) = &self.shared else { return };
        let then = asked + (answered - asked) / 2;
        let is_right = shared.load().is_some() && self.at(then).abs_diff(now_ms) <= TOLERANCE_MS;
        if !is_right {
            shared.store(Some(Arc::new(Said { now_ms, then })));
        }
    }
}

fn ms(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Clock")
    }
}

#[cfg(test)]
mod tests {
    use super::super::clock::*;

    #[test]
    fn goes_by_the_clock_that_it_was_set_by() {
        let clock = Clock {
            own: Arc::new(|| 5),
            shared: Some(Arc::default()),
        };
        let (other, began) = (clock.clone(), Instant::now());
        let after = |ms| began + Duration::from_millis(ms);
        assert_eq!(other.at(began), 5);
        // It said so on half of the way.
        clock.answered(1_000, began, after(200));
        assert_eq!(other.at(after(200)), 1_100);
        assert_eq!(other.at(after(1_200)), 2_100, "it runs");
        let now = after(1_200);
        for (said, wanted) in [
            (2_350, 2_100),
            (1_850, 2_100),
            (2_351, 2_351),
            (2_100, 2_100),
        ] {
            clock.answered(said, now, now);
            assert_eq!(other.at(now), wanted, "{said}");
        }
        let fixed = Clock::of(|| 7);
        fixed.answered(1_000, began, began);
        assert_eq!(fixed.at(now), 7);
    }
}

//! Wall-clock time, passed in, and corrected by the clock of the database.
//!
//! For stored and transmitted times; durations are measured with tokio's clock.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use arc_swap::ArcSwapOption;
use tokio::time::Instant;

/// The processor time of this thread, for tests of how long something takes: the machine may be busy.
#[cfg(test)]
pub(crate) fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// The tolerated difference of clocks, for the times in tokens of others, in seconds.
pub(crate) const LEEWAY_S: u32 = 60;

/// A clock; a handle.
///
/// Codes, tokens and revocations carry times that any replica may have written. Replicas therefore
/// follow the clock of the shared database, so that a replica whose own clock is wrong or changes
/// agrees with the others.
#[derive(Clone)]
pub(crate) struct Clock {
    own: Arc<dyn Fn() -> i64 + Send + Sync>,
    /// Latest time of the database; `None` for a clock that ignores it.
    shared: Option<Arc<ArcSwapOption<Reading>>>,
}

/// A reading of the database's clock.
struct Reading {
    now_ms: i64,
    at: Instant,
}

/// Largest difference that is not corrected. The delay of a database varies, and without a tolerance
/// the time would jump back and forth.
const TOLERANCE_MS: u64 = 250;

impl Clock {
    /// Makes a clock that shows the time of this machine until [`Self::set`].
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

    /// Makes a clock that shows the time of `now` and ignores [`Self::set`].
    #[cfg(test)]
    pub(crate) fn of(now: impl Fn() -> i64 + Send + Sync + 'static) -> Self {
        Self {
            own: Arc::new(now),
            shared: None,
        }
    }

    /// Returns the time in milliseconds since 1970.
    pub(crate) fn now_ms(&self) -> i64 {
        self.at(Instant::now())
    }

    fn at(&self, now: Instant) -> i64 {
        let reading = self.shared.as_ref().and_then(|shared| shared.load_full());
        match reading {
            Some(reading) => reading
                .now_ms
                .saturating_add(ms(now.saturating_duration_since(reading.at))),
            None => (self.own)(),
        }
    }

    /// Sets this handle and its clones to the clock of the database: a query sent at `sent` has just
    /// returned `now_ms`.
    pub(crate) fn set(&self, now_ms: i64, sent: Instant) {
        self.correct(now_ms, sent, Instant::now());
    }

    fn correct(&self, now_ms: i64, sent: Instant, received: Instant) {
        let Some(shared) = &self.shared else { return };
        let at = sent + (received - sent) / 2;
        let is_right = shared.load().is_some() && self.at(at).abs_diff(now_ms) <= TOLERANCE_MS;
        if !is_right {
            shared.store(Some(Arc::new(Reading { now_ms, at })));
        }
    }
}

/// Formats a time in milliseconds since 1970 by RFC 3339.
pub(crate) fn moment(ms: i64) -> String {
    use time::{OffsetDateTime, format_description::well_known::Rfc3339};
    let at = OffsetDateTime::from_unix_timestamp_nanos(i128::from(ms) * 1_000_000);
    let text = at.ok().and_then(|at| at.format(&Rfc3339).ok());
    text.unwrap_or_default()
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
    fn follows_the_clock_of_the_database() {
        let clock = Clock {
            own: Arc::new(|| 5),
            shared: Some(Arc::default()),
        };
        let (other, began) = (clock.clone(), Instant::now());
        let after = |ms| began + Duration::from_millis(ms);
        assert_eq!(other.at(began), 5);
        // The database is assumed to read its clock half-way between request and response.
        clock.correct(1_000, began, after(200));
        assert_eq!(other.at(after(200)), 1_100);
        assert_eq!(other.at(after(1_200)), 2_100, "it runs");
        let now = after(1_200);
        for (said, wanted) in [
            (2_350, 2_100),
            (1_850, 2_100),
            (2_351, 2_351),
            (2_100, 2_100),
        ] {
            clock.correct(said, now, now);
            assert_eq!(other.at(now), wanted, "{said}");
        }
        let fixed = Clock::of(|| 7);
        fixed.correct(1_000, began, began);
        assert_eq!(fixed.at(now), 7);
    }
}

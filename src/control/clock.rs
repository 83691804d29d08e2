//! Wall time, passed in.
//!
//! For what is written down; how long things take is measured by tokio's clock.

use std::{sync::Arc, time::SystemTime};

/// Tells what time it is; a handle over one function.
#[derive(Clone)]
pub(crate) struct Clock(Arc<dyn Fn() -> i64 + Send + Sync>);

impl Clock {
    /// The clock of this machine.
    #[expect(clippy::disallowed_methods, reason = "the one place that reads it")]
    pub(crate) fn system() -> Self {
        Self(Arc::new(|| {
            let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            let since = since.unwrap_or_default().as_millis();
            i64::try_from(since).unwrap_or(i64::MAX)
        }))
    }

    /// A clock that says what `now` says.
    #[cfg(test)]
    pub(crate) fn of(now: impl Fn() -> i64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// Milliseconds since 1970.
    pub(crate) fn now_ms(&self) -> i64 {
        (self.0)()
    }
}

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Clock")
    }
}

//! The wait for a database that may be slow or silent, beside what it shows of a standstill of this process.
//!
//! Not here: what is asked (`current`).

use std::time::Duration;

use tokio::time::{Instant, timeout};

/// The wait for a database, in parts that show whether this process stood still meanwhile.
pub(super) struct Wait {
    began: Instant,
    /// The begin of the last part.
    pub(super) part: Instant,
    is_steady: bool,
    /// The database was silent for a part.
    pub(super) is_late: bool,
}

impl Wait {
    /// A wait that begins now.
    pub(super) fn begin() -> Self {
        let began = Instant::now();
        Self {
            began,
            part: began,
            is_steady: true,
            is_late: false,
        }
    }

    /// Waits for another part; none if that was too short.
    pub(super) async fn part<T>(&mut self, step: impl Future<Output = T>) -> Option<T> {
        self.part = Instant::now();
        let done = timeout(POLL_TIMEOUT, step).await.ok();
        self.is_steady &= self.part.elapsed() < POLL_TIMEOUT * 2;
        done
    }

    /// The time for which an answer of now counts: of a database that is slow, as of one that is silent, it is that
    /// of the last part; but an answer may be from before a standstill.
    pub(super) fn known(&self) -> Instant {
        if self.is_steady {
            self.part
        } else {
            self.began
        }
    }
}

/// The silence after which a database does not count as reachable. Two of them are shorter than `MAX_POLL_AGE`, so that
/// one that hangs ends no access.
pub(super) const POLL_TIMEOUT: Duration = Duration::from_millis(800);

//! Clock of one call: the time of the child, stopped while the child waits for the client.
//!
//! Pure: the time is passed in.

use std::time::Duration;

use tokio::time::Instant;

/// The deadline of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallClock {
    /// The time of the child, restarted by progress; none for a call that only waits.
    limit: Option<Duration>,
    /// The latest deadline.
    max: Instant,
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Running; overdue at this time.
    Running(Instant),
    /// Stopped for a number of asks, with this much time left.
    Stopped { asks: u32, left: Duration },
}

impl CallClock {
    /// Starts a clock; without `limit` only `max` counts (`tasks/result`).
    pub(crate) fn start(now: Instant, limit: Option<Duration>, max: Duration) -> Self {
        let max = now + max;
        Self {
            limit,
            max,
            state: State::Running(limit.map_or(max, |limit| now + limit)),
        }
    }

    /// The time at which the call is overdue if nothing happens.
    pub(crate) fn deadline(&self) -> Instant {
        match self.state {
            State::Running(until) => until.min(self.max),
            State::Stopped { .. } => self.max,
        }
    }

    /// Restarts the time of the child after progress.
    pub(crate) fn progress(&mut self, now: Instant) {
        let Some(limit) = self.limit else { return };
        match &mut self.state {
            State::Running(until) => *until = now + limit,
            State::Stopped { left, .. } => *left = limit,
        }
    }

    /// Restarts the time of the child for a call that waited for a child until now.
    pub(crate) fn restart(&mut self, now: Instant) {
        self.progress(now);
    }

    /// Stops the time of the child for an ask.
    pub(crate) fn ask(&mut self, now: Instant) {
        match &mut self.state {
            State::Running(until) => {
                let left = until.saturating_duration_since(now);
                self.state = State::Stopped { asks: 1, left };
            }
            State::Stopped { asks, .. } => *asks += 1,
        }
    }

    /// Continues the time of the child once all asks are settled.
    pub(crate) fn settle(&mut self, now: Instant) {
        if let State::Stopped { asks, left } = &mut self.state {
            *asks -= 1;
            if *asks == 0 {
                self.state = State::Running(now + *left);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::clock::*;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn runs_out_stands_still_and_begins_anew() {
        let now = Instant::now();
        let at = |offset| now + seconds(offset);
        let mut clock = CallClock::start(now, Some(seconds(60)), seconds(1800));
        assert_eq!(clock.deadline(), at(60));
        clock.ask(at(10));
        assert_eq!(clock.deadline(), at(1800));
        clock.ask(at(11));
        clock.settle(at(20));
        assert_eq!(clock.deadline(), at(1800), "one ask is still open");
        clock.settle(at(30));
        assert_eq!(clock.deadline(), at(80), "50 s were left");
        clock.progress(at(70));
        assert_eq!(clock.deadline(), at(130));
        clock.progress(at(1790));
        assert_eq!(clock.deadline(), at(1800), "never beyond the maximum");
        clock.settle(at(1791));
    }

    #[test]
    fn a_call_that_only_waits_has_the_maximum() {
        let now = Instant::now();
        let mut clock = CallClock::start(now, None, seconds(1800));
        clock.progress(now + seconds(5));
        assert_eq!(clock.deadline(), now + seconds(1800));
    }
}

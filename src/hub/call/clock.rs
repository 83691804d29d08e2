//! The clock of one call: the child's own time, which stands still while the child waits
//! for the client. Pure: the time is passed in.

use std::time::Duration;

use tokio::time::Instant;

/// When a call is overdue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallClock {
    /// The child's own time, anew after each progress; none for a call that only waits.
    limit: Option<Duration>,
    /// The end of all.
    max: Instant,
    state: State,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum State {
    /// Runs out at this time.
    Runs(Instant),
    /// Stands still for this many asks, with this much left.
    Stands { asks: u32, left: Duration },
}

impl CallClock {
    /// Starts; without `limit` only `max` counts (`tasks/result`).
    pub(crate) fn start(now: Instant, limit: Option<Duration>, max: Duration) -> Self {
        let max = now + max;
        Self {
            limit,
            max,
            state: State::Runs(limit.map_or(max, |limit| now + limit)),
        }
    }

    /// When it is overdue if nothing happens.
    pub(crate) fn deadline(&self) -> Instant {
        match self.state {
            State::Runs(until) => until.min(self.max),
            State::Stands { .. } => self.max,
        }
    }

    /// Progress: the child's own time begins anew.
    pub(crate) fn progress(&mut self, now: Instant) {
        let Some(limit) = self.limit else { return };
        match &mut self.state {
            State::Runs(until) => *until = now + limit,
            State::Stands { left, .. } => *left = limit,
        }
    }

    /// The call was waiting for a child, which has it only now.
    pub(crate) fn restart(&mut self, now: Instant) {
        self.progress(now);
    }

    /// The child asks something: its time stands still.
    pub(crate) fn ask(&mut self, now: Instant) {
        match &mut self.state {
            State::Runs(until) => {
                let left = until.saturating_duration_since(now);
                self.state = State::Stands { asks: 1, left };
            }
            State::Stands { asks, .. } => *asks += 1,
        }
    }

    /// A request of the child is settled.
    pub(crate) fn settle(&mut self, now: Instant) {
        if let State::Stands { asks, left } = &mut self.state {
            *asks -= 1;
            if *asks == 0 {
                self.state = State::Runs(now + *left);
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

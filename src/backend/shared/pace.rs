//! Pace of a shared child: the lines that it may write within a window, and the time that it has for what it owes.

use std::time::Duration;

use tokio::time::Instant;

/// The lines of a child in the present window.
pub(super) struct Pace {
    began: Instant,
    lines: u32,
}

impl Pace {
    /// None yet.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            began: now,
            lines: 0,
        }
    }

    /// Counts a line that nobody waits for, while this many calls are in flight. Returns the end of the pause in
    /// reading that it causes.
    pub(super) fn count(
        &mut self,
        calls: usize,
        clock: impl FnOnce() -> Instant,
    ) -> Option<Instant> {
        self.lines += 1;
        // A call has progress of its own.
        let calls = u32::try_from(calls).unwrap_or(u32::MAX);
        if self.lines < WINDOW_LINES.saturating_add(calls.saturating_mul(CALL_LINES)) {
            return None;
        }
        // The clock is read for many lines at once.
        let (now, until) = (clock(), self.began + WINDOW);
        (self.began, self.lines) = (now.max(until), 0);
        (until > now).then_some(until)
    }
}

/// Whether a shared child does what it owes: answers to pings, and reading what is queued for it.
#[derive(Default)]
pub(super) struct Health {
    /// The time of the first ping since its last line.
    pinged: Option<Instant>,
    /// The time since which its queue is full, and it says nothing.
    full: Option<Instant>,
}

impl Health {
    /// Counts a ping that it was sent.
    pub(super) fn count_ping(&mut self, now: Instant) {
        self.pinged.get_or_insert(now);
    }

    /// Counts a line of it, by which it is alive.
    pub(super) fn count_line(&mut self) {
        *self = Self::default();
    }

    /// Why it is to be ended, in words: it has had [`PROBE`] to answer a ping, or to read some of its queue, which has
    /// been full all that time.
    pub(super) fn failure(&mut self, is_full: bool, now: Instant) -> Option<&'static str> {
        if is_full {
            self.full.get_or_insert(now);
        } else {
            self.full = None;
        }
        let is_over = |since: Option<Instant>| since.is_some_and(|since| since + PROBE <= now);
        if is_over(self.pinged) {
            return Some("does not answer a ping");
        }
        is_over(self.full).then_some("does not read its stdin")
    }
}

/// Time for a child to answer a ping, and to read some of a full queue.
const PROBE: Duration = Duration::from_secs(5);

/// Lines per window, as for a child of one session.
const WINDOW_LINES: u32 = 4000;
/// Further lines for each call in flight.
const CALL_LINES: u32 = 64;
const WINDOW: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::super::pace::*;

    /// The lines, all written at `now`, up to the one that causes a pause.
    fn until_pause(pace: &mut Pace, calls: usize, now: Instant) -> (u32, Instant) {
        for lines in 1..100_000 {
            if let Some(until) = pace.count(calls, || now) {
                return (lines, until);
            }
        }
        panic!("no pause");
    }

    /// A child that had read all of a full queue at once was ended for a ping that it was never sent.
    #[test]
    fn a_child_is_ended_for_a_ping_or_for_a_queue_that_stays_full() {
        let began = Instant::now();
        let at = |seconds: u64| began + Duration::from_secs(seconds);
        let mut health = Health::default();
        assert_eq!(health.failure(true, at(0)), None);
        assert_eq!(health.failure(false, at(1)), None);
        assert_eq!(health.failure(true, at(9)), None, "full again");
        assert_eq!(health.failure(true, at(13)), None);
        assert!(health.failure(true, at(14)).unwrap().contains("read"));
        health.count_line();
        assert_eq!(health.failure(true, at(20)), None, "it is alive");
        health.count_line();
        health.count_ping(at(30));
        health.count_ping(at(34));
        assert_eq!(health.failure(false, at(34)), None);
        assert!(health.failure(false, at(35)).unwrap().contains("ping"));
        health.count_line();
        assert_eq!(health.failure(false, at(40)), None);
    }

    #[test]
    fn lines_beyond_those_of_a_window_wait_for_its_end() {
        let began = Instant::now();
        let at = |windows: u32| began + WINDOW * windows;
        let mut pace = Pace::new(began);
        assert_eq!(until_pause(&mut pace, 0, began), (4000, at(1)));
        // The next window begins at the end of the pause.
        assert_eq!(until_pause(&mut pace, 0, at(1)), (4000, at(2)));
        assert_eq!(until_pause(&mut pace, 10, at(2)), (4640, at(3)));
        // Slower than that, there is no pause.
        for windows in 4..24 {
            assert!((0..4000).all(|_| pace.count(0, || at(windows)).is_none()));
        }
    }
}

//! Pace of a shared child: the lines that it may write within a window.

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

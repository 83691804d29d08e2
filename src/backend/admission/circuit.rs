//! Restart policy: backoff after failures, and a circuit that opens after too many.
//!
//! Pure: time and randomness are passed in. One circuit counts the failed starts of a launch
//! specification, another the crashes of the child of each session or shared key.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

/// Recent failures, and the state that follows from them.
#[derive(Debug, Default)]
pub(crate) struct Circuit {
    failures: VecDeque<Instant>,
    state: State,
}

#[derive(Debug, Default)]
enum State {
    /// Starts are allowed.
    #[default]
    Closed,
    /// No start before this time.
    Backoff(Instant),
    /// No start before this time, then a single one as a probe.
    Open(Instant),
    /// The probe is under way since this time.
    Probing(Instant),
}

/// Answer to a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Start now.
    Now,
    /// Start after this long.
    After(Duration),
    /// Do not start; try again after this long.
    Open(Duration),
}

/// Age beyond which failures do not count.
const WINDOW: Duration = Duration::from_secs(30);

/// Failed starts within the window that open the circuit: no sixth is tried.
const FAILED_STARTS: usize = 5;

/// Crashes within the window that open the circuit: behind five of them a child is started again.
const CRASHES: usize = 6;

/// Delay after the first failure; each further one doubles it.
const FIRST: Duration = Duration::from_millis(200);

/// Longest delay, and the time that a circuit stays open.
const LONGEST: Duration = Duration::from_secs(30);

/// Time after which a probe that takes long keeps no other from being one.
const PROBE: Duration = Duration::from_mins(2);

impl Circuit {
    /// Verdict on a start, without consequences.
    pub(crate) fn peek(&self, now: Instant) -> Verdict {
        match self.state {
            State::Backoff(until) if now < until => Verdict::After(until - now),
            State::Open(until) if now < until => Verdict::Open(until - now),
            State::Probing(since) if now < since + PROBE => Verdict::Open(FIRST),
            _ => Verdict::Now,
        }
    }

    /// Verdict on a start that follows at once; `Now` of an open circuit is its single probe.
    pub(crate) fn try_start(&mut self, now: Instant) -> Verdict {
        let verdict = self.peek(now);
        if verdict == Verdict::Now && matches!(self.state, State::Open(_) | State::Probing(_)) {
            self.state = State::Probing(now);
        }
        verdict
    }

    /// Gives up the probe that began then: the next start may be one at once.
    pub(crate) fn release(&mut self, began: Instant) {
        if matches!(self.state, State::Probing(since) if since == began) {
            self.state = State::Open(began);
        }
    }

    /// Whether the circuit is open; a backoff does not count.
    pub(crate) fn is_open(&self, now: Instant) -> bool {
        match self.state {
            State::Open(until) => now < until,
            State::Probing(_) => true,
            State::Closed | State::Backoff(_) => false,
        }
    }

    /// Counts a failed start, and returns whether the circuit opened. `jitter` from 0 to 1 shortens the
    /// wait by up to a half, so that children that failed together do not start together.
    pub(crate) fn failed(&mut self, now: Instant, jitter: f64) -> bool {
        self.count(now, jitter, FAILED_STARTS)
    }

    /// Counts a crash of a child that had started, like [`Self::failed`].
    pub(crate) fn crashed(&mut self, now: Instant, jitter: f64) -> bool {
        self.count(now, jitter, CRASHES)
    }

    /// Counts a failure, of which `most` within the window open the circuit.
    fn count(&mut self, now: Instant, jitter: f64, most: usize) -> bool {
        let is_probe = matches!(self.state, State::Probing(_));
        let is_open = matches!(self.state, State::Open(until) if now < until);
        let recent = |at: &Instant| now.saturating_duration_since(*at) < WINDOW;
        while self.failures.front().is_some_and(|at| !recent(at)) {
            self.failures.pop_front();
        }
        self.failures.push_back(now);
        let jittered = |wait: Duration| wait.mul_f64(1.0 - jitter.clamp(0.0, 1.0) / 2.0);
        if is_probe || self.failures.len() >= most {
            // Starts that were under way when it opened do not prolong it.
            if !is_open {
                self.state = State::Open(now + jittered(LONGEST));
            }
            while self.failures.len() > most {
                self.failures.pop_front();
            }
            return !is_open;
        }
        let doublings = u32::try_from(self.failures.len() - 1).unwrap_or(u32::MAX);
        let wait = FIRST.saturating_mul(1 << doublings.min(16)).min(LONGEST);
        self.state = State::Backoff(now + jittered(wait));
        false
    }

    /// Records a success: closes an open circuit, and is not counted otherwise.
    pub(crate) fn succeeded(&mut self) {
        if matches!(self.state, State::Probing(_) | State::Open(_)) {
            self.failures.clear();
            self.state = State::Closed;
        }
    }

    /// The number of failures that count.
    pub(crate) fn recent(&self) -> usize {
        self.failures.len()
    }

    /// Whether it is closed without recent failures.
    pub(crate) fn is_idle(&self, now: Instant) -> bool {
        let last = self.failures.back();
        !self.is_open(now)
            && last.is_none_or(|at| now.saturating_duration_since(*at) >= WINDOW)
            && !matches!(self.state, State::Backoff(until) if now < until)
    }
}

#[cfg(test)]
mod tests {
    use super::super::circuit::*;

    #[test]
    fn backs_off_opens_and_closes_by_one_probe() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut circuit = Circuit::default();
        assert_eq!(circuit.try_start(at(0)), Verdict::Now);
        let mut now = 0;
        for wait in [200, 400, 800, 1600] {
            assert!(!circuit.failed(at(now), 0.0), "after {now} ms");
            assert_eq!(
                circuit.try_start(at(now)),
                Verdict::After(Duration::from_millis(wait))
            );
            now += wait;
            assert_eq!(circuit.try_start(at(now)), Verdict::Now);
        }
        assert!(circuit.failed(at(now), 0.0), "the fifth within 30 s");
        assert!(circuit.is_open(at(now)));
        assert!(!circuit.failed(at(now + 1), 0.0), "it was open before");
        assert_eq!(
            circuit.try_start(at(now)),
            Verdict::Open(Duration::from_secs(30)),
            "not prolonged by what was under way"
        );
        let later = now + 30_000;
        assert_eq!(circuit.try_start(at(later)), Verdict::Now, "the probe");
        assert_eq!(
            circuit.try_start(at(later)),
            Verdict::Open(FIRST),
            "only one"
        );
        assert!(circuit.failed(at(later), 1.0), "and it opens again");
        assert_eq!(
            circuit.try_start(at(later)),
            Verdict::Open(Duration::from_secs(15)),
            "jitter halves at most"
        );
        assert_eq!(circuit.try_start(at(later + 15_000)), Verdict::Now);
        circuit.succeeded();
        assert_eq!(circuit.try_start(at(later + 15_001)), Verdict::Now);
        assert!(circuit.is_idle(at(later + 15_001)));
    }

    /// A warm child is taken without a probe: its failure left a circuit that had lapsed as it was.
    #[test]
    fn a_failure_after_it_lapsed_opens_it_again() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut circuit = Circuit::default();
        for _ in 0..5 {
            circuit.failed(at(0), 1.0);
        }
        assert_eq!(circuit.peek(at(15_000)), Verdict::Now);
        assert!(circuit.failed(at(15_000), 1.0), "it opens again");
        assert_eq!(
            circuit.peek(at(15_000)),
            Verdict::Open(Duration::from_secs(15))
        );
    }

    #[test]
    fn failures_that_are_far_apart_never_open_it() {
        let start = Instant::now();
        let (mut starts, mut crashes) = (Circuit::default(), Circuit::default());
        for count in 0..20 {
            let now = start + Duration::from_secs(8 * count);
            assert!(!starts.failed(now, 0.5));
            starts.succeeded();
            assert!(!starts.is_open(now));
            let now = start + Duration::from_secs(7 * count);
            assert!(!crashes.crashed(now, 0.5));
            crashes.succeeded();
            assert!(!crashes.is_open(now));
        }
    }

    #[test]
    fn a_success_between_failures_counts_nothing() {
        let now = Instant::now();
        let mut circuit = Circuit::default();
        for count in 0..5 {
            circuit.succeeded();
            assert_eq!(circuit.failed(now, 0.0), count == 4);
        }
    }

    /// The last of five crashes is followed by another start, the last of five failed starts is not.
    #[test]
    fn a_sixth_crash_opens_it() {
        let now = Instant::now();
        let mut circuit = Circuit::default();
        for count in 0..6 {
            assert_eq!(circuit.crashed(now, 0.0), count == 5);
        }
    }

    #[test]
    fn a_probe_is_given_back_by_the_start_that_has_it() {
        let now = Instant::now();
        let mut circuit = Circuit::default();
        for _ in 0..5 {
            circuit.failed(now, 0.0);
        }
        let later = now + LONGEST;
        assert_eq!(circuit.try_start(later), Verdict::Now);
        circuit.release(now);
        assert_eq!(circuit.peek(later), Verdict::Open(FIRST), "of another");
        circuit.release(later);
        assert_eq!(circuit.try_start(later), Verdict::Now);
        circuit.succeeded();
        circuit.release(later);
        assert!(!circuit.is_open(later), "it has a result");
    }

    #[test]
    fn a_probe_that_takes_long_does_not_block_for_ever() {
        let now = Instant::now();
        let mut circuit = Circuit::default();
        for _ in 0..5 {
            circuit.failed(now, 0.0);
        }
        let later = now + LONGEST;
        assert_eq!(circuit.try_start(later), Verdict::Now);
        assert_eq!(circuit.try_start(later + PROBE), Verdict::Now);
    }
}

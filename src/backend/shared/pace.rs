//! Pace of a shared child: the lines that it may write within a window, and the time that it has for what it owes.

use std::{
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    time::Duration,
};

use tokio::time::Instant;

/// The calls of all sessions at a shared child.
#[derive(Default)]
pub(super) struct Calls {
    in_flight: AtomicUsize,
    /// All that have begun.
    begun: AtomicU64,
}

impl Calls {
    /// A session has `now` calls in flight instead of `before`. Returns those of all sessions.
    pub(super) fn set(&self, before: usize, now: usize) -> usize {
        if let Some(fewer) = before.checked_sub(now) {
            return self.in_flight.fetch_sub(fewer, Ordering::Relaxed) - fewer;
        }
        let more = now - before;
        self.begun.fetch_add(more as u64, Ordering::Relaxed);
        self.in_flight.fetch_add(more, Ordering::Relaxed) + more
    }

    /// Those in flight.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }
}

/// The paces of a shared child: of its answers, and of all else that it writes. An answer that no call waits for is known
/// to its session alone, which may not read.
pub(super) struct Paces {
    answers: Pace,
    others: Pace,
    /// The calls that had had an answer, or more, at the last pause for answers.
    answered: u64,
}

impl Paces {
    /// No line yet.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            answers: Pace::new(now),
            others: Pace::new(now),
            answered: 0,
        }
    }

    /// Counts a line. Returns the end of the pause in reading that it causes.
    pub(super) fn count(
        &mut self,
        is_answer: bool,
        calls: &Calls,
        clock: impl FnOnce() -> Instant,
    ) -> Option<Instant> {
        if !is_answer {
            // A call has progress of its own.
            let room = || (calls.in_flight() as u64).saturating_mul(CALL_LINES);
            return self.others.count(room, clock);
        }
        // Each call has an answer, however fast: those beyond are invented.
        let begun = || calls.begun.load(Ordering::Relaxed);
        let pause = self.answers.count(|| begun() - self.answered, clock);
        if self.answers.lines == 0 {
            self.answered = begun().saturating_sub(calls.in_flight() as u64);
        }
        pause
    }
}

/// Lines of one kind in the present window.
struct Pace {
    began: Instant,
    lines: u64,
}

impl Pace {
    /// None yet.
    fn new(now: Instant) -> Self {
        Self {
            began: now,
            lines: 0,
        }
    }

    /// Counts a line; there is room for this many beyond those of any window.
    fn count(
        &mut self,
        room: impl FnOnce() -> u64,
        clock: impl FnOnce() -> Instant,
    ) -> Option<Instant> {
        self.lines += 1;
        if self.lines < WINDOW_LINES || self.lines < WINDOW_LINES.saturating_add(room()) {
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
    /// The time since which its queue is full and nothing could be written to it, and the bytes written by then.
    full: Option<(Instant, u64)>,
}

impl Health {
    /// Counts a ping that it was sent.
    pub(super) fn count_ping(&mut self, now: Instant) {
        self.pinged.get_or_insert(now);
    }

    /// Counts a line of it, by which it is alive. It may still not read.
    pub(super) fn count_line(&mut self) {
        self.pinged = None;
    }

    /// Why it is to be ended, in words: it has had [`PROBE`] to answer a ping, or that and its `work` to read some of its
    /// queue, which has been full all that time. `full` is the number of bytes that were ever written to it, while its
    /// queue is full. The length of the queue would not do: sessions fill it again as soon as the child has read.
    pub(super) fn failure(
        &mut self,
        full: Option<u64>,
        work: Duration,
        now: Instant,
    ) -> Option<&'static str> {
        self.full = full.map(|written| match self.full {
            Some((since, before)) if written == before => (since, before),
            _ => (now, written),
        });
        let is_over = |since: Option<Instant>, time| since.is_some_and(|since| since + time <= now);
        if is_over(self.pinged, PROBE) {
            return Some("does not answer a ping");
        }
        let since = self.full.map(|(since, _)| since);
        is_over(since, PROBE + work).then_some("does not read its stdin")
    }
}

/// Time for a child to answer a ping, and to read some of a full queue.
const PROBE: Duration = Duration::from_secs(5);

/// Lines per window, as for a child of one session.
const WINDOW_LINES: u64 = 4000;
/// Further lines for each call in flight.
const CALL_LINES: u64 = 64;
const WINDOW: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::super::pace::*;

    /// The lines, all written at `now`, up to the one that causes a pause.
    fn until_pause(paces: &mut Paces, calls: &Calls, now: Instant) -> (u32, Instant) {
        for lines in 1..100_000 {
            if let Some(until) = paces.count(false, calls, || now) {
                return (lines, until);
            }
        }
        panic!("no pause");
    }

    const NONE: Duration = Duration::ZERO;

    /// A child that had read all of a full queue at once was ended for a ping that it was never sent.
    #[test]
    fn a_child_is_ended_for_a_ping_or_for_a_queue_that_stays_full() {
        let began = Instant::now();
        let at = |seconds: u64| began + Duration::from_secs(seconds);
        let mut health = Health::default();
        assert_eq!(health.failure(Some(9), NONE, at(0)), None);
        assert_eq!(health.failure(None, NONE, at(1)), None);
        assert_eq!(health.failure(Some(9), NONE, at(9)), None, "full again");
        assert_eq!(health.failure(Some(9), NONE, at(13)), None);
        assert!(
            health
                .failure(Some(9), NONE, at(14))
                .unwrap()
                .contains("read")
        );
        assert_eq!(health.failure(None, NONE, at(20)), None);
        health.count_line();
        health.count_ping(at(30));
        health.count_ping(at(34));
        assert_eq!(health.failure(None, NONE, at(34)), None);
        assert!(health.failure(None, NONE, at(35)).unwrap().contains("ping"));
        health.count_line();
        assert_eq!(health.failure(None, NONE, at(40)), None);
    }

    /// One that wrote a line now and then was never ended, and what waited for it stayed for a day.
    #[test]
    fn a_child_that_writes_and_does_not_read_is_ended() {
        let began = Instant::now();
        let at = |seconds: u64| began + Duration::from_secs(seconds);
        let mut health = Health::default();
        for (seconds, written) in [(0, 10), (3, 20), (7, 21), (9, 21), (11, 21)] {
            health.count_line();
            assert_eq!(health.failure(Some(written), NONE, at(seconds)), None);
        }
        health.count_line();
        assert!(
            health
                .failure(Some(21), NONE, at(12))
                .unwrap()
                .contains("read")
        );
    }

    /// One that worked a second on each long request was ended: its sessions had filled the queue again before each look
    /// at the length of that.
    #[test]
    fn a_child_that_reads_is_not_ended_for_a_queue_that_is_always_full() {
        let began = Instant::now();
        let at = |ticks: u64| began + Duration::from_millis(ticks * 500);
        let mut health = Health::default();
        for ticks in 0..100 {
            health.count_line();
            // It reads a request of 3 MiB each four seconds.
            let written = ticks / 8 * (3 << 20);
            assert_eq!(
                health.failure(Some(written), NONE, at(ticks)),
                None,
                "{ticks}"
            );
        }
        let written = Some(99 / 8 * (3 << 20));
        assert_eq!(health.failure(written, NONE, at(105)), None);
        assert!(
            health
                .failure(written, NONE, at(106))
                .unwrap()
                .contains("read")
        );
    }

    /// Those that were invented went into the inboxes of sessions that did not read, as fast as the pipe.
    #[test]
    fn answers_have_a_pace_of_their_own_beyond_those_of_calls() {
        let began = Instant::now();
        let (mut paces, calls) = (Paces::new(began), Calls::default());
        let mut count = |is_answer| paces.count(is_answer, &calls, || began);
        assert!((1..4000).all(|_| count(true).is_none()));
        assert!((1..4000).all(|_| count(false).is_none()));
        assert_eq!(calls.set(0, 100), 100);
        assert!((4000..4100).all(|_| count(true).is_none()));
        assert_eq!(count(true), Some(began + WINDOW));
        assert!((4000..10_400).all(|_| count(false).is_none()));
        assert_eq!(count(false), Some(began + WINDOW));
        // Those in flight have an answer in the next window still.
        assert!((1..4100).all(|_| count(true).is_none()));
        assert_eq!(count(true), Some(began + WINDOW * 2));
    }

    /// A child that answered 64,000 calls a second was held to 40,000.
    #[test]
    fn answers_to_calls_have_no_pace() {
        let began = Instant::now();
        let (mut paces, calls) = (Paces::new(began), Calls::default());
        for _ in 0..10_000 {
            assert_eq!(calls.set(3, 35), 32);
            assert!((0..32).all(|_| paces.count(true, &calls, || began).is_none()));
            assert_eq!(calls.set(35, 3), 0);
        }
        assert!((1..4000).all(|_| paces.count(true, &calls, || began).is_none()));
        let until = paces.count(true, &calls, || began);
        assert_eq!(until, Some(began + WINDOW), "invented");
    }

    #[test]
    fn lines_beyond_those_of_a_window_wait_for_its_end() {
        let began = Instant::now();
        let at = |windows: u32| began + WINDOW * windows;
        let (mut paces, calls) = (Paces::new(began), Calls::default());
        assert_eq!(until_pause(&mut paces, &calls, began), (4000, at(1)));
        // The next window begins at the end of the pause.
        assert_eq!(until_pause(&mut paces, &calls, at(1)), (4000, at(2)));
        assert_eq!(calls.set(0, 10), 10);
        assert_eq!(until_pause(&mut paces, &calls, at(2)), (4640, at(3)));
        // Slower than that, there is no pause.
        for windows in 4..24 {
            let at = at(windows);
            assert!((0..4640).all(|_| paces.count(false, &calls, || at).is_none()));
        }
    }

    /// A server of one thread reads nothing while it works on a call, and was ended after 5 s.
    #[test]
    fn a_child_that_works_on_a_call_has_the_time_of_it() {
        let began = Instant::now();
        let at = |seconds: u64| began + Duration::from_secs(seconds);
        let (mut health, work) = (Health::default(), Duration::from_secs(60));
        for seconds in [0, 5, 64] {
            assert_eq!(health.failure(Some(9), work, at(seconds)), None);
        }
        assert!(
            health
                .failure(Some(9), work, at(65))
                .unwrap()
                .contains("read")
        );
        health.count_ping(at(65));
        let failure = health.failure(None, work, at(70)).unwrap();
        assert!(failure.contains("ping"), "whatever it works on");
    }
}

//! Pacing of a child: pauses in reading it, for slow readers of the session, for bursts of messages and events
//! that nobody takes, and for others who wait for a processor.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::base::budget::Budget;

/// The time that the child waits for a connection that is far behind. A busy reader catches up
/// within it; a reader that does not read at all loses its place.
const READER_PATIENCE: Duration = Duration::from_secs(2);

/// The messages of a child within a window beyond which it is not read until the window ends.
/// Responses are not counted: their number is bounded by the requests of clients.
const WINDOW_MESSAGES: u32 = 4000;
const WINDOW: Duration = Duration::from_millis(100);

/// The events of a child after which others go first: a tenth of a millisecond. Of a thousand sessions with more, four go on
/// at a time, and a call of another tenant waits for them twice.
const STEP: u32 = 16;

/// What an event that no connection takes costs its caller: 10,000 of them a second are read for one, and about
/// 20,000 for a tenant. A thousand sessions whose clients do not read would have both processors to themselves.
const UNREAD: Duration = Duration::from_micros(100);

/// Such events that are paid for together: few, because a pause is at most two seconds, and a thousand sessions that
/// each read this many after it are still within the pace of their tenant.
const UNREAD_STEP: u32 = 16;

/// The pauses in reading a child.
pub(super) struct Pacing {
    /// The end of the pause for slow readers.
    readers_until: Option<Instant>,
    /// The end of the pause after a burst, or after events that nobody takes.
    burst_until: Option<Instant>,
    window_began: Instant,
    /// Messages of the child in the present window.
    messages: u32,
    /// Events of the child since others went first.
    events: u32,
    /// Events that no connection takes, since they were last paid for.
    unread: u32,
    /// The share of the client.
    share: Arc<Budget>,
}

impl Pacing {
    /// No pause.
    pub(super) fn new(now: Instant, share: Arc<Budget>) -> Self {
        Self {
            readers_until: None,
            burst_until: None,
            window_began: now,
            messages: 0,
            events: 0,
            unread: 0,
            share,
        }
    }

    /// Lets others go first now and then; called after each event of the child.
    pub(super) async fn others_first(&mut self) {
        self.events += 1;
        if self.events >= STEP {
            self.events = 0;
            self.share.others_first().await;
        }
    }

    /// Waits for a turn where other tasks of the client, or of its tenant, do: a thousand sessions that are
    /// woken at once are not worked on at once.
    pub(super) async fn wait_in_line(&self) {
        if self.share.is_busy() {
            self.share.others_first().await;
        }
    }

    /// The share of the client, for work on one event that takes long.
    pub(super) fn share(&self) -> &Budget {
        &self.share
    }

    /// Whether the child is not read.
    pub(super) fn is_paused(&self) -> bool {
        self.readers_until.is_some() || self.burst_until.is_some()
    }

    /// Counts a message. Returns the end of the pause that it causes.
    pub(super) fn count(&mut self, now: Instant) -> Option<Instant> {
        if now.duration_since(self.window_began) >= WINDOW {
            (self.window_began, self.messages) = (now, 0);
        }
        self.messages += 1;
        if self.messages >= WINDOW_MESSAGES {
            self.burst_until = Some(self.window_began + WINDOW);
            return self.burst_until;
        }
        None
    }

    /// Counts an event that no connection takes. Returns the end of the pause that it causes.
    pub(super) fn count_unread(&mut self) -> Option<Instant> {
        self.unread += 1;
        if self.unread < UNREAD_STEP {
            return None;
        }
        self.unread = 0;
        let until = self.share.pace(UNREAD * UNREAD_STEP);
        self.burst_until = self.burst_until.max(Some(until));
        Some(until)
    }

    /// Ends the pause after a burst: its child is gone.
    pub(super) fn forget_burst(&mut self) {
        self.burst_until = None;
    }

    /// Whether the child waits for slow readers.
    pub(super) fn is_waiting_for_readers(&self) -> bool {
        self.readers_until.is_some()
    }

    /// Begins the pause for slow readers; returns its end, or nothing if the child waits already.
    pub(super) fn wait_for_readers(&mut self, now: Instant) -> Option<Instant> {
        if self.readers_until.is_some() {
            return None;
        }
        self.readers_until = Some(now + READER_PATIENCE);
        self.readers_until
    }

    /// Ends the pause for slow readers.
    pub(super) fn stop_waiting_for_readers(&mut self) {
        self.readers_until = None;
    }

    /// Whether the pause for slow readers has lasted long enough.
    pub(super) fn is_patience_over(&self, now: Instant) -> bool {
        self.readers_until.is_some_and(|until| until <= now)
    }

    /// Ends the pause after a burst if it is over.
    pub(super) fn sweep_burst(&mut self, now: Instant) {
        self.burst_until = self.burst_until.filter(|until| *until > now);
    }

    /// The earlier end of the two pauses.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let ends = [self.readers_until, self.burst_until];
        ends.into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use super::super::pacing::*;

    /// A thousand sessions whose clients did not read had both processors to themselves.
    #[test]
    fn events_that_nobody_takes_are_read_at_the_pace_of_their_caller() {
        let caller = Budget::new(1 << 20).share();
        let now = Instant::now();
        let mut sessions = [(); 100].map(|()| Pacing::new(now, Arc::clone(&caller)));
        let mut last = None;
        for pacing in &mut sessions {
            for at in 1..=UNREAD_STEP {
                let until = pacing.count_unread();
                assert_eq!(until.is_some(), at == UNREAD_STEP);
                last = last.max(until);
            }
            assert!(pacing.is_paused());
        }
        // 1,600 events at 10,000 a second.
        let pause = last.unwrap() - now;
        assert!((160..240).contains(&pause.as_millis()), "{pause:?}");
        sessions[99].sweep_burst(now + pause / 2);
        assert!(sessions[99].is_paused());
        sessions[99].sweep_burst(now + pause);
        assert!(!sessions[99].is_paused());
    }

    /// Of a thousand busy sessions four had a turn of sixty-four events each before a call of another tenant went on.
    #[tokio::test]
    async fn a_turn_is_a_few_events() {
        let share = Budget::new(1 << 20).share();
        let mut pacing = Pacing::new(Instant::now(), share);
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..3 {
            let mut events = 1;
            while Box::pin(pacing.others_first())
                .as_mut()
                .poll(&mut context)
                .is_ready()
            {
                events += 1;
            }
            assert!(events == STEP && events <= 32, "{events} events");
        }
    }

    #[tokio::test]
    async fn events_wait_in_line_while_other_tasks_of_the_tenant_do() {
        let tenant = Budget::new(1 << 20).share();
        let pacing = Pacing::new(Instant::now(), tenant.share());
        let mut context = Context::from_waker(Waker::noop());
        assert!(
            Box::pin(pacing.wait_in_line())
                .as_mut()
                .poll(&mut context)
                .is_ready()
        );
        let mut busy: Vec<_> = (0..4).map(|_| Box::pin(tenant.others_first())).collect();
        for one in &mut busy {
            assert!(one.as_mut().poll(&mut context).is_pending());
        }
        let mut waiting = Box::pin(pacing.wait_in_line());
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        drop(busy);
        waiting.await;
    }
}

//! Loss of a backend, its replacement by another one with the replay of the session's state, and the
//! stop of idle children.
//!
//! The session continues, with as little effect on the client as possible. Not here: the end of each
//! call that is lost (`ending`), with its code and text (`hub::call::error`).

use std::{sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use tokio::time::Instant;

use super::{
    lifetime::{DISCONNECTED, EndReason},
    link::Own,
    task::Session,
};
use crate::{
    backend::{
        Refused, Stage,
        child::{Exit as ChildExit, Restart},
        dialect::{AskId, CallId},
        shared::Loss,
    },
    declare::OnLoss,
    hub::{
        call::{Ask, CallError, Effect},
        core::{ChildUse, Transport, or_never},
        stream::Answer,
    },
    protocol::{LISTENER_STREAM, Revision, initialize, jsonrpc, log_level},
    telemetry::{ChildState, Exit},
};

impl Session {
    /// Takes back the subscription of a call that ends without a response.
    pub(super) fn abandon_subscription(&mut self, call: CallId, effect: &Effect) {
        self.link.drop_waiting(call);
        if let (Effect::Subscribed(uri, _), Some(member)) = (effect, self.link.member()) {
            let is_kept = self.replay.subscriptions.contains_key(uri);
            member.abandon(call, uri.clone(), is_kept);
        }
    }

    /// Whether a restored child can replace the first one; ends the session if not.
    pub(super) fn check_replacement(&mut self, revision: Revision, capabilities: &[u8]) -> bool {
        let is_same = self.lifetime.revision() == Some(revision)
            && initialize::covers(capabilities, &self.replay.capabilities);
        if !is_same {
            tracing::warn!(
                tenant.id = self.client.tenant().name,
                server.name = self.client.server().name,
                session.id = self.id.short(),
                revision = revision.as_str(),
                "the restored child has another revision or lacks a capability: the session ends"
            );
            self.lifetime.end(EndReason::Lost);
        }
        is_same
    }

    /// Continues the session with another backend.
    pub(super) fn backend_replaced(&mut self) {
        tracing::info!(
            tenant.id = self.client.tenant().name,
            server.name = self.client.server().name,
            session.id = self.id.short(),
            "session got another child"
        );
        self.core.metrics.restores.add(1);
        self.calls.restart(Instant::now());
        self.link.set_calls(self.calls.count());
        if std::mem::take(&mut self.replay.is_stale) {
            self.announce_lists();
        }
    }

    /// Tells the client that its lists may have changed.
    pub(super) fn announce_lists(&mut self) {
        for line in initialize::list_changed(&self.replay.capabilities) {
            self.send_to_listener(line);
        }
    }

    /// Replays the log level and the subscriptions to the session's own child, before the lines that
    /// its client sent meanwhile; a session that begins has neither.
    pub(super) fn restore_in_own(&mut self, own: &mut Own) {
        if self.lifetime.is_ready() {
            let state = self.replay.session_state();
            self.dialect.restore(&state, own.child.out());
            // The clocks of these requests begin.
            self.wake_by(Instant::now());
        }
    }

    /// Replays the log level and the subscriptions to a shared child.
    pub(super) fn restore_in_shared(&mut self) {
        let Some(member) = self.link.member() else {
            return;
        };
        if let Some(level) = self.replay.level.as_deref().and_then(log_level) {
            member.set_level(level);
        }
        for uri in self.replay.subscriptions.keys() {
            let (call, line) = self.dialect.subscribe(uri);
            member.subscription(call, uri.clone(), true, line);
        }
        self.link.send_waiting();
        self.wake_by(Instant::now());
    }

    /// Sends a message on the listener.
    pub(super) fn send_to_listener(&mut self, line: Bytes) {
        let written = self.streams.message(LISTENER_STREAM, line).map(drop);
        self.handle_write(written);
    }

    /// Ends the link, with its probe and its pauses. Returns the session's own child.
    fn unlink(&mut self) -> Option<Box<Own>> {
        self.link.end_probe();
        self.pacing.forget_burst();
        self.stop_waiting_for_readers();
        let own = self.link.disconnect();
        if own.is_some() {
            let (sessions, fence) = (&self.core.sessions, self.lease.fence());
            sessions.lost_child(&self.id, fence);
        }
        own
    }

    /// Handles the loss of the session's own child, with its calls.
    pub(super) fn child_lost(&mut self, error: CallError) {
        self.child_lost_by(error, error.message);
    }

    /// The same with the reason in words, for a child that did not become ready.
    pub(super) fn child_lost_by(&mut self, error: CallError, why: &str) {
        let is_crash = self.link.is_up();
        if let Some(mut own) = self.unlink() {
            if is_crash || !own.place.is_starting() {
                self.count_crash(&own);
            } else {
                own.place.fail(Stage::Initialize, why);
            }
            let exit = if is_crash {
                Exit::Crashed
            } else {
                Exit::FailedStart
            };
            self.stop_child(own, exit);
        }
        self.count_initialize(Some(error.of_start().reason), || Some(why.to_owned()));
        if let Some(initializing) = self.lifetime.initializing() {
            let line = self.error_line(error.of_start(), &initializing.id);
            self.lifetime.force_end(EndReason::Failed);
            return self.answer_start(Answer::Failed(line));
        }
        // No server has seen a call that waited for a child whose start failed.
        self.backend_lost(if is_crash { error } else { error.of_start() });
        if is_crash && !self.lifetime.is_over() && self.is_awaited() {
            self.acquire_backend();
        }
    }

    /// Handles the end of the session's own child before it was initialized: that of one for which the machine had no
    /// process is no failure of the server.
    pub(super) fn start_ended(&mut self, exit: &ChildExit) {
        if !exit.is_shortage {
            return self.child_lost_by(CallError::EXITED, &exit.in_words());
        }
        if let Some(own) = self.unlink() {
            self.stop_child(own, Exit::FailedStart);
        }
        self.core.metrics.starts_refused.add(1);
        self.start_refused(&Refused::Busy);
    }

    fn count_crash(&mut self, own: &Own) {
        let jitter = self.core.pool.jitter();
        if self.link.count_crash(own, Instant::now(), jitter) {
            self.core.metrics.circuits_opened.add(1);
            tracing::warn!(
                server.name = self.client.server().name,
                session.id = self.id.short(),
                "the child of a session keeps crashing: its circuit opens"
            );
        }
    }

    /// Ends the calls and the asks of a lost backend; ends the session if the server is
    /// declared with `on_loss = "end"`.
    fn backend_lost(&mut self, error: CallError) {
        self.replay.is_stale = true;
        self.end_asks();
        self.fail_calls(error);
        self.dialect.forget();
        self.calls.forget_tasks();
        if self.client.server().supervision.on_loss == OnLoss::End {
            self.lifetime.end(EndReason::Lost);
        }
    }

    /// Whether the client waits for notifications of a backend.
    fn is_awaited(&self) -> bool {
        let has_news = !self.replay.subscriptions.is_empty()
            || !initialize::list_changed(&self.replay.capabilities).is_empty();
        has_news && self.streams.has_reader(Instant::now())
    }

    /// Withdraws the requests of the lost backend to the client.
    pub(super) fn end_asks(&mut self) {
        for ask in self.calls.open_asks() {
            self.withdraw_ask(ask, "the backend ended");
        }
    }

    /// Refuses a request of the child, which its client may have got.
    pub(super) fn refuse_ask(&mut self, ask: AskId, why: &str) {
        self.dialect.refuse(ask, why, self.link.out());
        self.link.try_flush();
        self.withdraw_ask(ask, why);
    }

    /// Withdraws a request to the client: cancels it (2025-11-25 lifecycle, "Timeouts"), or keeps it from
    /// a client that has not got it, for which a cancellation would name no request.
    pub(super) fn withdraw_ask(&mut self, ask: AskId, reason: &str) {
        let settled = self.calls.settle(ask, Instant::now());
        let Some(Ask {
            stream,
            number,
            task,
            ..
        }) = settled
        else {
            return;
        };
        if !self.streams.is_written(stream, number) {
            self.streams.withdraw(stream, number);
            // A reader that took it at this moment had said so before it looked.
            if !self.streams.is_written(stream, number) {
                return;
            }
        }
        let carrier = self.streams.cancelled_on(stream, number);
        let mut line = BytesMut::new();
        jsonrpc::push_ask_cancelled(ask, task.as_deref(), reason, &mut line);
        let written = self.streams.message(carrier, line.freeze()).map(drop);
        self.handle_write(written);
    }

    /// Handles the end of a shared child.
    pub(super) fn shared_child_ended(&mut self, loss: Loss) {
        if loss == Loss::Crash {
            // One that has dropped the session alone lives on, for others.
            self.cancel_at_lost_child();
        }
        self.unlink();
        match loss {
            Loss::Idle if self.calls.is_empty() => self.dialect.forget(),
            Loss::Idle | Loss::Crash => {
                self.backend_lost(CallError::EXITED);
                if !self.lifetime.is_over() && self.is_awaited() {
                    self.acquire_backend();
                }
            }
            Loss::TooLong => self.backend_lost(CallError::TOO_LONG),
            Loss::Restart => self.backend_restarted(),
        }
    }

    /// Ends the calls and the asks of a backend that an administrator has restarted.
    fn backend_restarted(&mut self) {
        self.replay.is_stale = true;
        self.end_asks();
        self.fail_calls(CallError::EXITED);
        self.dialect.forget();
        self.calls.forget_tasks();
        if self.is_awaited() {
            self.acquire_backend();
        }
    }

    /// Stops the session's own child when it is idle or an administrator has requested its restart.
    /// Returns the end of its idle time.
    pub(super) fn stop_idle_child(&mut self, now: Instant) -> Option<Instant> {
        let is_at_rest = self.lifetime.is_ready() && !self.calls.is_in_use();
        match self.link.restart() {
            // A session whose server is gone is about to be told so, and stops its child in less time.
            Some(Restart::Now) if self.is_declared() => self.replace_child(),
            Some(Restart::Drain) if is_at_rest => self.replace_child(),
            _ => {}
        }
        if !self.link.is_own() {
            return None;
        }
        let idle = self.client.server().supervision.idle;
        if idle.is_zero() {
            return None;
        }
        if self.calls.is_in_use() || !self.replay.subscriptions.is_empty() {
            self.link.touch(now);
        }
        let due = self.link.used() + idle;
        if due <= now {
            if let Some(own) = self.unlink() {
                self.link.forget_crashes();
                self.stop_child(own, Exit::Idle);
            }
            self.dialect.forget();
            return None;
        }
        Some(due)
    }

    /// Gives up the session's own child for another caller of the tenant, if it is used for this only.
    pub(super) fn give_up_child(&mut self, use_of_child: ChildUse) -> bool {
        if !self.link.is_own() || self.use_of_child(Instant::now()) != Some(use_of_child) {
            return false;
        }
        self.link.give_way();
        if self.client.transport() == Transport::Stateless {
            // Its client knows of no session, and gets another one.
            self.lifetime.end(EndReason::Idle);
        } else if let Some(own) = self.unlink() {
            self.link.forget_crashes();
            self.stop_child(own, Exit::Idle);
            self.end_asks();
            self.dialect.forget();
        }
        true
    }

    /// The use of the session's own child; none if no other caller may have it.
    fn use_of_child(&self, now: Instant) -> Option<ChildUse> {
        if self.client.transport() == Transport::Stateless {
            if self.calls.wait_for_client() {
                return Some(ChildUse::Parked);
            }
            let is_used = self.calls.is_in_use() || self.streams.has_reader(now);
            return (!is_used).then_some(ChildUse::Spare);
        }
        let read = self.streams.no_reader_since();
        let last = read.map_or(self.lifetime.touched(), |at| {
            at.max(self.lifetime.touched())
        });
        if !self.lifetime.is_ready() || self.calls.is_in_use() {
            return None;
        }
        let is_unused = !self.streams.has_reader(now)
            && now.saturating_duration_since(last) >= self.time_out_of_use();
        Some(if is_unused {
            ChildUse::Unused
        } else {
            ChildUse::Pausing
        })
    }

    /// The time after which a session without a request or a reader counts as out of use: a connection that
    /// is alive has been heard of by then.
    fn time_out_of_use(&self) -> Duration {
        let keep_alive = or_never(self.core.config.stream.keep_alive);
        (keep_alive * 4).min(DISCONNECTED)
    }

    /// Leaves a backend that is to be replaced, unless a call needs it. Called before each request, so that the
    /// request behind a new secret gets a child that was started with it.
    pub(super) fn replace_stale_backend(&mut self) {
        if !self.link.is_to_be_replaced() || !self.lifetime.is_ready() || self.calls.is_in_use() {
            return;
        }
        if self.link.is_own() {
            self.replace_child();
        } else {
            self.leave_shared(Loss::Restart);
        }
    }

    fn leave_shared(&mut self, loss: Loss) {
        self.unlink();
        self.dialect.forget();
        let is_restart = loss == Loss::Restart;
        self.replay.is_stale |= is_restart;
        // An idle child is replaced only if the client has subscribed meanwhile.
        if (is_restart || !self.replay.subscriptions.is_empty()) && self.is_awaited() {
            self.acquire_backend();
        }
    }

    /// Once no call is in flight: leaves a shared child that is about to end, or checks the
    /// session's own child for a restart.
    pub(super) fn leave_if_idle(&mut self) {
        if !self.calls.is_empty() {
            return;
        }
        if let Some(loss) = self.link.closing() {
            self.leave_shared(loss);
        } else if self.link.restart().is_some() {
            self.wake_by(Instant::now());
        }
    }

    /// Whether its server is still there.
    fn is_declared(&self) -> bool {
        let (server, snapshot) = (self.client.server(), &self.core.snapshot);
        let found = snapshot.catalog().find(&server.tenant, &server.name);
        !snapshot.is_loaded() || found.is_some()
    }

    fn replace_child(&mut self) {
        if self.lifetime.is_ready()
            && let Some(own) = self.unlink()
        {
            self.link.forget_crashes();
            self.stop_child(own, Exit::Stopped);
            self.backend_restarted();
        }
    }

    /// Stops or kills a child, which keeps its place until all of its processes are gone.
    pub(super) fn stop_child(&self, own: Box<Own>, reason: Exit) {
        let (mut stop, metrics) = (
            self.client.server().clocks.stop,
            Arc::clone(&self.core.metrics),
        );
        let end = self.lifetime.end_reason();
        if end == Some(EndReason::Revoked) {
            // All processes of the child must be gone after 5 s.
            stop = stop.map(|clock| clock.min(REVOKED));
        }
        // Another replica has started a child for the session.
        let is_fenced = end == Some(EndReason::Fenced);
        self.core.tracker.spawn(async move {
            let Own { child, place } = *own;
            place.entry().set(ChildState::Stopping);
            let exit = match reason {
                Exit::Crashed | Exit::FailedStart => child.kill().await,
                _ if is_fenced => child.kill().await,
                Exit::Stopped | Exit::Idle | Exit::Killed => child.stop(stop).await,
            };
            tracing::debug!(code = exit.code, signal = exit.signal, "child ended");
            // The guard reports a signal as shells do.
            let is_killed = exit.signal == Some(9) || exit.code == Some(128 + 9);
            let is_forced = is_killed && matches!(reason, Exit::Idle | Exit::Stopped);
            metrics.child_exited(if is_forced { Exit::Killed } else { reason });
        });
    }
}

/// The time for each step of stopping the child of a revoked session.
const REVOKED: Duration = Duration::from_millis(1500);

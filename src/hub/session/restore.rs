//! Loss of a backend, and the return to service of another one.
//!
//! The session goes on, and the client notices as little as possible.

use std::{sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use tokio::time::Instant;

use super::{
    lifetime::{Over, Phase},
    link::{Own, State},
    record::Subscription,
    task::Session,
};
use crate::{
    backend::{
        child::Restart,
        dialect::CallId,
        shared::{Loss, STABLE, routing},
    },
    declare::OnLoss,
    hub::{
        call::{Effect, Fault},
        stream::Answer,
    },
    protocol::{LISTENER, Revision, initialize, jsonrpc},
    telemetry::{ChildState, Exit},
};

impl Session {
    /// Passes a subscription on to the shared child, or keeps it until there is one.
    pub(crate) fn subscribe(&mut self, subscription: Subscription) {
        if let State::Shared(member) = &mut self.link.state {
            subscription.send(member);
        } else {
            self.kept.waiting.push(subscription);
        }
    }

    /// A call ends without an answer: if it was a subscription, a shared child must not have it for
    /// this session.
    pub(super) fn unanswered(&mut self, call: CallId, effect: &Effect) {
        self.kept.waiting.retain(|waiting| waiting.call != call);
        if let (Effect::Subscribed(uri), State::Shared(member)) = (effect, &mut self.link.state) {
            let is_kept = self.kept.subscriptions.contains(uri);
            member.abandon(call, uri.clone(), is_kept);
        }
    }

    /// Whether a restored child can take the place of the first one; ends the session if not.
    pub(crate) fn is_same(&mut self, revision: Revision, capabilities: &[u8]) -> bool {
        let is_same = matches!(self.phase, Phase::Ready(told) if told == revision)
            && initialize::covers(capabilities, &self.kept.capabilities);
        if !is_same {
            tracing::warn!(
                tenant.id = self.tenant.name,
                server.name = self.server.name,
                session.id = self.id.short(),
                revision = revision.as_str(),
                "the restored child has another revision or lacks a capability: the session ends"
            );
            self.over.get_or_insert(Over::Lost);
        }
        is_same
    }

    pub(super) fn is_same_shared(&mut self, revision: Revision, capabilities: &[u8]) -> bool {
        let told = match self.phase {
            Phase::Ready(told) if self.kept.shared == Some(revision) => told,
            _ => revision,
        };
        self.is_same(told, capabilities)
    }

    /// The session goes on with another backend.
    pub(crate) fn resume(&mut self) {
        tracing::info!(
            tenant.id = self.tenant.name,
            server.name = self.server.name,
            session.id = self.id.short(),
            "session got another child"
        );
        self.core.metrics.restored();
        self.calls.restart(Instant::now());
        self.link.set_calls(self.calls.count());
        if std::mem::take(&mut self.kept.is_stale) {
            for line in initialize::list_changed(&self.kept.capabilities) {
                self.message(line);
            }
        }
    }

    pub(super) fn resume_shared(&mut self) {
        let State::Shared(member) = &mut self.link.state else {
            return;
        };
        if let Some(level) = self.kept.level.as_deref().and_then(routing::level) {
            member.set_level(level);
        }
        for uri in &self.kept.subscriptions {
            let (call, line) = self.dialect.subscribe(uri);
            member.subscription(call, uri.clone(), true, line);
        }
        for waiting in self.kept.waiting.drain(..) {
            waiting.send(member);
        }
    }

    /// Puts a message on the listener.
    pub(crate) fn message(&mut self, line: Bytes) {
        let written = self.streams.message(LISTENER, line).map(drop);
        self.stored(written);
    }

    /// Ends the link, and with it all that waits for its backend. Returns the session's own child.
    fn unlink(&mut self) -> Option<Box<Own>> {
        (self.probe, self.paced) = (None, None);
        self.unchoke();
        self.kept.waiting.clear();
        self.kept.leaving = None;
        self.link.down()
    }

    /// Handles the loss of the backend, with its calls.
    pub(super) fn lose(&mut self, fault: Fault) {
        let is_crash = self.link.is_up();
        if let Some(mut own) = self.unlink() {
            if is_crash || !own.place.is_starting() {
                self.count_crash(&own);
            } else {
                own.place.fail();
            }
            let why = if is_crash {
                Exit::Crashed
            } else {
                Exit::FailedStart
            };
            self.end_child(own, why);
        }
        if let Phase::Starting { id, .. } = &self.phase {
            let line = fault.of_start().line(id);
            self.over = Some(Over::Failed);
            return self.answer_start(Answer::Failed(line));
        }
        // No server has seen a call that waited for a child which never began.
        self.lost(if is_crash { fault } else { fault.of_start() });
        if is_crash && self.over.is_none() && self.is_awaited() {
            self.get_backend();
        }
    }

    fn count_crash(&mut self, own: &Own) {
        self.kept.restarts += 1;
        if own.place.entry().age() >= STABLE {
            self.kept.crashes.succeeded();
        }
        let jitter = self.core.pool.jitter();
        if self.kept.crashes.failed(Instant::now(), jitter) {
            self.core.metrics.circuit_opened();
            tracing::warn!(
                server.name = self.server.name,
                session.id = self.id.short(),
                "the child of a session keeps crashing: its circuit opens"
            );
        }
    }

    /// Ends the calls and asks of a lost backend; the session goes on if its server allows it.
    fn lost(&mut self, fault: Fault) {
        self.kept.is_stale = true;
        self.end_asks();
        self.fail_calls(fault);
        self.dialect.forget();
        self.calls.forget_tasks();
        if self.server.supervision.on_loss == OnLoss::End {
            self.over.get_or_insert(Over::Lost);
        }
    }

    /// Whether the client waits for notifications of a backend.
    fn is_awaited(&self) -> bool {
        let has_news = !self.kept.subscriptions.is_empty()
            || !initialize::list_changed(&self.kept.capabilities).is_empty();
        has_news && self.streams.is_listened_to(Instant::now())
    }

    /// Cancels the requests of the lost backend to the client.
    pub(super) fn end_asks(&mut self) {
        for (ask, stream) in self.calls.drop_asks(Instant::now()) {
            let mut line = BytesMut::new();
            jsonrpc::push_cancelled(ask, "the backend ended", &mut line);
            let written = self.streams.message(stream, line.freeze()).map(drop);
            self.stored(written);
        }
    }

    /// A shared child ended.
    pub(super) fn shared_ended(&mut self, loss: Loss) {
        self.unlink();
        match loss {
            Loss::Idle if self.calls.is_empty() => {}
            Loss::Idle | Loss::Crash => {
                self.lost(Fault::EXITED);
                if self.over.is_none() && self.is_awaited() {
                    self.get_backend();
                }
            }
            Loss::TooLong => self.lost(Fault::TOO_LONG),
            Loss::Restart => {
                self.lost_by_order();
            }
        }
    }

    fn lost_by_order(&mut self) {
        self.kept.is_stale = true;
        self.end_asks();
        self.fail_calls(Fault::EXITED);
        self.dialect.forget();
        self.calls.forget_tasks();
        if self.is_awaited() {
            self.get_backend();
        }
    }

    /// Ends a child that has nothing to do, or that an operator wants to be replaced. Returns
    /// when it has to be looked at again.
    pub(super) fn rest(&mut self, now: Instant) -> Option<Instant> {
        let has_ended = matches!(self.phase, Phase::Ready(_)) && !self.calls.is_in_use();
        match self.link.restart() {
            Some(Restart::Now) => self.replace(),
            Some(Restart::Drain) if has_ended => self.replace(),
            _ => {}
        }
        let State::Ready(_) = &self.link.state else {
            return None;
        };
        let idle = self.server.supervision.idle;
        if idle.is_zero() {
            return None;
        }
        if self.calls.is_in_use() || !self.kept.subscriptions.is_empty() {
            self.used = now;
        }
        let due = self.used + idle;
        if due <= now {
            if let Some(own) = self.unlink() {
                self.kept.crashes.succeeded();
                self.end_child(own, Exit::Idle);
            }
            self.dialect.forget();
            return None;
        }
        Some(due)
    }

    /// Once no call is left: leaves a shared child that is about to go, or has the session's own
    /// looked at.
    pub(super) fn leave_closing(&mut self) {
        if !self.calls.is_empty() {
            return;
        }
        if let Some(loss) = self.kept.leaving {
            self.unlink();
            self.dialect.forget();
            let is_restart = loss == Loss::Restart;
            self.kept.is_stale |= is_restart;
            // Nobody misses one that had nothing to do, unless it was subscribed meanwhile.
            if (is_restart || !self.kept.subscriptions.is_empty()) && self.is_awaited() {
                self.get_backend();
            }
        } else if self.link.restart().is_some() {
            self.wake_by(Instant::now());
        }
    }

    fn replace(&mut self) {
        if matches!(self.phase, Phase::Ready(_))
            && let Some(own) = self.unlink()
        {
            self.kept.crashes.succeeded();
            self.end_child(own, Exit::Stopped);
            self.lost_by_order();
        }
    }

    /// Stops a child, which keeps its place until nothing of it is left.
    pub(super) fn end_child(&self, own: Box<Own>, why: Exit) {
        let (mut stop, metrics) = (self.server.clocks.stop, Arc::clone(&self.core.metrics));
        if self.over == Some(Over::Revoked) {
            // Nothing of it may be left after 5 s.
            stop = stop.map(|clock| clock.min(REVOKED));
        }
        // Another replica has started one of its own.
        let is_fenced = self.over == Some(Over::Fenced);
        self.core.tracker.spawn(async move {
            let Own { child, place } = *own;
            place.entry().set(ChildState::Stopping);
            let exit = match why {
                Exit::Crashed | Exit::FailedStart => child.kill().await,
                _ if is_fenced => child.kill().await,
                Exit::Stopped | Exit::Idle | Exit::Killed => child.stop(stop).await,
            };
            tracing::debug!(code = exit.code, signal = exit.signal, "child ended");
            // The guard reports a signal as shells do.
            let is_killed = exit.signal == Some(9) || exit.code == Some(128 + 9);
            let is_forced = is_killed && matches!(why, Exit::Idle | Exit::Stopped);
            metrics.child_exited(if is_forced { Exit::Killed } else { why });
        });
    }
}

/// How long a child may take for each step of its end when its session was revoked.
const REVOKED: Duration = Duration::from_millis(1500);

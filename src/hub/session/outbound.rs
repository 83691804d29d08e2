//! Messages from the backend to the client; the end of a child; timers.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::{
    lifetime::Phase,
    link::{Heard, State},
    task::Session,
};
use crate::{
    auth::policy,
    backend::{
        child::Happened,
        dialect::{CallId, Said},
        shared::{mailbox, routing},
    },
    hub::{
        call::{Effect, Fault, Overdue},
        core::or_never,
        stream::About,
    },
    protocol::{Body, Kind, LISTENER, Message, StreamId, json},
    telemetry::{Dropped, Outcome},
};

/// How long the child waits for a connection that is far behind. Within it a busy reader
/// catches up; one that does not read at all loses its place.
const PATIENCE: Duration = Duration::from_secs(2);

/// Messages of a child within a window; beyond, the child is read no further until the
/// window ends. Responses are not counted: clients pace those themselves.
const PACE: (u32, Duration) = (2000, Duration::from_millis(100));

/// How long a child has to show that it lives after a call that was overdue.
const PROBE: Duration = Duration::from_secs(5);

impl Session {
    pub(super) async fn heard(&mut self, heard: Heard) {
        match heard {
            Heard::Happened(happened) => self.happened(happened).await,
            Heard::Shared(mailbox::Heard::Message(message)) => self.message_of(&message).await,
            Heard::Shared(mailbox::Heard::Garbage(call)) => {
                self.fail_call(call, Fault::INVALID);
            }
            Heard::Shared(mailbox::Heard::Closing(loss)) => {
                self.kept.leaving = Some(loss);
                self.leave_closing();
            }
            Heard::Shared(mailbox::Heard::Ended(loss)) => {
                self.shared_ended(loss);
            }
            Heard::Got(got) => Box::pin(self.got(got)).await,
        }
    }

    async fn happened(&mut self, happened: Happened) {
        match happened {
            Happened::Line(line) => self.line(line).await,
            Happened::TooLong => {
                tracing::warn!(
                    server.name = self.server.name,
                    session.id = self.id.short(),
                    "a line above limits.line: the child is ended"
                );
                self.core.metrics.message_dropped(Dropped::TooLarge);
                self.lose(Fault::TOO_LONG);
            }
            Happened::Closed => self.lose(Fault::EXITED),
            Happened::Exited(exit) => {
                tracing::warn!(
                    server.name = self.server.name, session.id = self.id.short(),
                    code = exit.code, signal = exit.signal,
                    stderr = %String::from_utf8_lossy(tail(&exit.stderr_tail)).escape_debug(),
                    "the child ended by itself"
                );
                self.lose(Fault::EXITED);
            }
        }
    }

    async fn line(&mut self, line: Bytes) {
        match Message::parse(line.clone()) {
            Ok(message) => self.message_of(&message).await,
            Err(_) => Box::pin(self.no_message(line)).await,
        }
    }

    /// Handles a message of the backend.
    async fn message_of(&mut self, message: &Message) {
        if let State::Starting { hello, .. } = self.link.state
            && matches!(message.kind(), Kind::Result | Kind::Error)
            && message
                .id()
                .is_some_and(|id| id == hello.to_string().as_bytes())
        {
            return Box::pin(self.greeted(message)).await;
        }
        let out = match &mut self.link.state {
            State::Starting { own, .. } => own.child.out(),
            _ => self.link.out(),
        };
        let said = self.dialect.line(message, out);
        self.pace(&said);
        let said = self.said(said, message);
        self.stored(said);
    }

    fn said(&mut self, said: Said, message: &Message) -> Result<(), crate::state::StoreError> {
        let now = Instant::now();
        let (stream, line) = match said {
            Said::Done { call, line } => return self.done(call, line, message),
            Said::Progress { call, line } => (self.calls.route_progress(call, now), line),
            Said::Ask { ask, task, line } => {
                let stream = self
                    .calls
                    .route(About::Ask(task.as_deref()))
                    .unwrap_or(LISTENER);
                let number = self.streams.message(stream, line)?;
                let clocks = &self.server.clocks;
                let clocks = (or_never(clocks.ask), or_never(clocks.ask_unclaimed));
                let due = self.calls.ask(ask, (stream, number), now, clocks);
                self.wake_by(due);
                return Ok(());
            }
            Said::AskCancelled { ask, line } => (self.calls.settle(ask, now), line),
            // A log message of a shared child belongs to none of its calls.
            Said::Log { line, .. } if self.link.is_shared() => (Some(LISTENER), line),
            Said::Log { task, line } => (self.calls.route(About::Log(task.as_deref())), line),
            Said::Note(_) if policy::is_muted(&self.policy, message) => (None, Bytes::new()),
            Said::Note(line) => (self.calls.route(About::Other), line),
            Said::Pinged => {
                self.link.try_flush();
                return Ok(());
            }
            Said::Pong => {
                self.probe = None;
                return Ok(());
            }
            Said::Dropped(why) => {
                self.probe = None;
                tracing::debug!(
                    session.id = self.id.short(),
                    why,
                    "a message of the child is dropped"
                );
                self.core.metrics.message_dropped(Dropped::Unknown);
                return Ok(());
            }
        };
        let Some(stream) = stream else {
            self.core.metrics.message_dropped(Dropped::NoStream);
            return Ok(());
        };
        self.tell(stream, line, now)
    }

    fn tell(
        &mut self,
        stream: StreamId,
        line: Bytes,
        now: Instant,
    ) -> Result<(), crate::state::StoreError> {
        self.streams.message(stream, line)?;
        // A shared child waits for none of its sessions: retention ends those that are behind.
        if !self.link.is_shared() && self.streams.is_behind(stream) {
            self.choke(now, PATIENCE);
        }
        Ok(())
    }

    fn done(
        &mut self,
        id: CallId,
        line: Bytes,
        message: &Message,
    ) -> Result<(), crate::state::StoreError> {
        let Some(call) = self.calls.end(id) else {
            return Ok(());
        };
        self.used = Instant::now();
        self.link.set_calls(self.calls.count());
        let is_result = message.kind() == Kind::Result;
        let outcome = if is_result {
            Outcome::Result
        } else {
            Outcome::Error
        };
        self.call_ended(&call, outcome);
        let has_effect = call.effect.is_kept();
        if call.wants_task
            && let Some(task) = message
                .result()
                .and_then(|result| json::get(result, "task"))
            && let Some(name) = json::get(task, "taskId")
        {
            let most = or_never(self.server.clocks.call_max);
            let life = ttl(task).map_or(most, |ttl| ttl.min(most));
            self.calls.keep_task(id, name, self.used + life);
            self.wake_by(self.used + life);
        }
        if let Some(task) = &call.task {
            self.calls.forget_task(task);
        }
        if is_result {
            self.take_effect(call.effect, message);
        }
        // After the effect: the next child gets it as well.
        self.leave_closing();
        let line = match &call.list {
            Some((listed, policy)) if is_result => self
                .page_cursors()
                .sealed(*listed, policy::filtered(policy, *listed, line)),
            _ => line,
        };
        if has_effect {
            return self.finish_kept(call.stream, line);
        }
        self.streams.finish_call(call.stream, Some(line))
    }

    fn take_effect(&mut self, effect: Effect, message: &Message) {
        match effect {
            Effect::None => {}
            Effect::Level(level) => {
                self.kept.level = Some(level);
                self.remember();
            }
            Effect::Subscribed(uri) => {
                self.kept.subscriptions.insert(uri);
                self.remember();
            }
            Effect::Unsubscribed(uri) => {
                self.kept.subscriptions.remove(&uri);
                self.remember();
            }
            Effect::Tools => {
                let tools = message
                    .result()
                    .and_then(|result| json::get(result, "tools"));
                if let Some(tools) = tools {
                    self.core.tools.compare(&self.server, tools);
                }
            }
        }
    }

    /// A line that is no message: an array, noise, or an answer that cannot be read.
    async fn no_message(&mut self, line: Bytes) {
        self.pace(&Said::Dropped("no message"));
        // 2025-03-26 basic, "Batching".
        if line.starts_with(b"[")
            && let Phase::Ready(revision) = self.phase
            && revision.has_batches()
            && let Ok(Body::Batch(items)) = Body::parse(line.clone())
        {
            for message in items.iter().flatten() {
                self.message_of(message).await;
            }
            return;
        }
        self.core.metrics.noise_line();
        tracing::debug!(
            server.name = self.server.name,
            session.id = self.id.short(),
            bytes = line.len(),
            "a line of the child that is no message is skipped"
        );
        let Some(call) = routing::salvaged(&line) else {
            return;
        };
        match self.link.state {
            State::Starting { hello, .. } if hello == call => self.lose(Fault::INVALID),
            _ => self.fail_call(call, Fault::INVALID),
        }
    }

    fn pace(&mut self, said: &Said) {
        if matches!(said, Said::Done { .. }) {
            return;
        }
        let now = Instant::now();
        let (began, count) = &mut self.pace;
        if now.duration_since(*began) >= PACE.1 {
            (*began, *count) = (now, 0);
        }
        *count += 1;
        if *count >= PACE.0 {
            let until = *began + PACE.1;
            self.paced = Some(until);
            self.wake_by(until);
        }
    }

    /// Does what is due, and sets the time of the next look.
    pub(super) fn tick(&mut self) {
        let now = Instant::now();
        let held = self.streams.open_due(now).unwrap_or_else(|error| {
            self.stored(Err(error));
            // The others that were due are looked at again when the session may serve.
            Some(now)
        });
        if self.choked.is_some_and(|until| until <= now) {
            self.streams.give_up();
            self.unchoke();
        }
        if self.paced.is_some_and(|until| until <= now) {
            self.paced = None;
        }
        if self.probe.is_some_and(|until| until <= now) {
            tracing::warn!(
                server.name = self.server.name,
                session.id = self.id.short(),
                "the child does not answer a ping: it is ended"
            );
            self.lose(Fault::EXITED);
            return;
        }
        if self.link.starts_by().is_some_and(|until| until <= now) {
            self.lose(Fault::TIMEOUT);
            return;
        }
        if !self.link.is_up() {
            // The time of a call is the child's, and there is none yet.
            self.calls.restart(now);
        }
        let tasks = self.calls.sweep_tasks(now);
        let rest = self.rest(now);
        let (overdue, next) = {
            let Self { calls, streams, .. } = self;
            calls.overdue(now, |stream, number| streams.is_written(stream, number))
        };
        for due in overdue {
            self.overdue(due, now);
        }
        let keep = self.keep_record(now);
        let (end, why) = self.end_of_life(now);
        if end <= now {
            self.over.get_or_insert(why);
        }
        let start = self.link.starts_by();
        let others = [
            next,
            held,
            self.choked,
            self.paced,
            self.probe,
            start,
            tasks,
            rest,
            keep,
        ];
        self.wake = others.into_iter().flatten().fold(end, Instant::min);
    }

    fn overdue(&mut self, due: Overdue, now: Instant) {
        match due {
            Overdue::Ask(ask) => {
                let text = "the client did not answer in time";
                self.dialect.refuse(ask, text, self.link.out());
                self.link.try_flush();
                self.calls.settle(ask, now);
            }
            Overdue::Call(call) => {
                self.dialect
                    .cancel(call, "the call took too long", self.link.out());
                if let State::Shared(member) = &self.link.state {
                    member.probe();
                } else {
                    self.dialect.ping(self.link.out());
                    self.probe.get_or_insert(now + PROBE);
                }
                self.link.try_flush();
                self.fail_call(call, Fault::TIMEOUT);
            }
        }
    }
}

/// How long a task lives (2025-11-25 tasks, "TTL and Resource Management"); none is unlimited.
fn ttl(task: &[u8]) -> Option<Duration> {
    let ms = str::from_utf8(json::get(task, "ttl")?).ok()?;
    ms.parse().ok().map(Duration::from_millis)
}

/// Enough of the last lines of stderr for one log line.
fn tail(stderr: &[u8]) -> &[u8] {
    &stderr[stderr.len().saturating_sub(512)..]
}

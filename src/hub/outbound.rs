//! From the child to the client: what a session does with what the child says, with its
//! end, and with the time that passes.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::{
    Answer,
    calls::Overdue,
    routes::About,
    session::{Over, Phase, Session, Transport, failure, or_never},
};
use crate::{
    backend::{
        legacy::{CallId, Dialect, Said},
        stdio::Happened,
    },
    protocol::{
        event::{LISTENER, StreamId},
        json,
        message::{Kind, Message},
        revision::Revision,
    },
    telemetry::{Dropped, Method, Outcome},
};

/// How long the child waits for a connection that is far behind. Within it a busy reader
/// catches up; one that does not read at all loses its place (CONTRACT C16).
const PATIENCE: Duration = Duration::from_secs(2);

/// What a child may say on its own within a window; beyond it is read no further until the
/// window ends. Responses are not counted: clients pace those themselves.
const PACE: (u32, Duration) = (2000, Duration::from_millis(100));

/// How long a child has to show that it lives after a call that was overdue.
const PROBE: Duration = Duration::from_secs(5);

impl Session {
    pub(super) async fn happened(&mut self, happened: Happened) {
        match happened {
            Happened::Line(line) => self.line(line).await,
            Happened::TooLong => {
                tracing::warn!(
                    server.name = self.server.name,
                    session.id = self.id.short(),
                    "a line above limits.line: the child is ended"
                );
                self.core.metrics.message_dropped(Dropped::TooLarge);
                self.lose(
                    "oversized_line",
                    -31003,
                    "the backend sent a line that is too long",
                )
                .await;
            }
            Happened::Closed => self.lose_exited().await,
            Happened::Exited(exit) => {
                tracing::warn!(
                    server.name = self.server.name, session.id = self.id.short(),
                    code = exit.code, signal = exit.signal,
                    stderr = %String::from_utf8_lossy(tail(&exit.stderr_tail)).escape_debug(),
                    "the child ended by itself"
                );
                self.lose_exited().await;
            }
        }
    }

    async fn lose_exited(&mut self) {
        let message = "the backend ended before it answered";
        self.lose("backend_exited", -31001, message).await;
    }

    /// The child is lost, and until children can be restored the session with it.
    async fn lose(&mut self, reason: &str, code: i32, message: &str) {
        self.start_failed(reason).await;
        self.fail_calls(code, message, reason).await;
        self.over.get_or_insert(Over::Lost);
    }

    async fn start_failed(&mut self, reason: &str) {
        if let (Transport::Sse2024, Phase::Starting { id, .. }) = (self.transport, &self.phase) {
            let line = failure(id, -31001, "the backend could not be started", reason, true);
            self.answer_start(line, None).await;
        }
        self.fail_start(reason);
    }

    async fn line(&mut self, line: Bytes) {
        let Ok(message) = Message::parse(line.clone()) else {
            return Box::pin(self.garbage(&line)).await;
        };
        if let Phase::Starting { call, .. } = self.phase
            && matches!(message.kind(), Kind::Result | Kind::Error)
            && message
                .id()
                .is_some_and(|id| id == call.to_string().as_bytes())
        {
            return Box::pin(self.started(&message)).await;
        }
        let Some(child) = &mut self.child else { return };
        let said = self.dialect.line(&message, child.out());
        self.pace(&said);
        if let Err(error) = self.said(said, &message).await {
            tracing::error!(session.id = self.id.short(), %error, "the event log failed");
            self.over = Some(Over::Lost);
        }
    }

    async fn said(&mut self, said: Said, message: &Message) -> Result<(), crate::store::LogError> {
        let now = Instant::now();
        let (stream, line) = match said {
            Said::Done { call, line } => return self.done(call, line, message).await,
            Said::Progress { call, line } => (self.calls.route_progress(call, now), line),
            Said::Ask { ask, task, line } => {
                let stream = self
                    .calls
                    .route(About::Ask(task.as_deref()))
                    .unwrap_or(LISTENER);
                let number = self.streams.message(stream, line).await?;
                let clocks = &self.server.clocks;
                let clocks = (or_never(clocks.ask), or_never(clocks.ask_unclaimed));
                let due = self.calls.ask(ask, (stream, number), now, clocks);
                self.wake_by(due);
                return Ok(());
            }
            Said::AskCancelled { ask, line } => (self.calls.settle(ask, now), line),
            Said::Log { task, line } => (self.calls.route(About::Log(task.as_deref())), line),
            Said::Note(line) => (self.calls.route(About::Other), line),
            Said::Pinged => {
                self.child
                    .iter_mut()
                    .for_each(crate::backend::stdio::Child::try_flush);
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
        self.tell(stream, line, now).await
    }

    async fn tell(
        &mut self,
        stream: StreamId,
        line: Bytes,
        now: Instant,
    ) -> Result<(), crate::store::LogError> {
        self.streams.message(stream, line).await?;
        if self.streams.is_behind(stream) {
            self.choke(now, PATIENCE);
        }
        Ok(())
    }

    async fn done(
        &mut self,
        id: CallId,
        line: Bytes,
        message: &Message,
    ) -> Result<(), crate::store::LogError> {
        let Some(call) = self.calls.end(id) else {
            return Ok(());
        };
        let is_result = message.kind() == Kind::Result;
        self.core.metrics.call(
            call.class,
            if is_result {
                Outcome::Result
            } else {
                Outcome::Error
            },
        );
        if call.wants_task
            && let Some(task) = message
                .result()
                .and_then(|result| json::get(result, "task"))
            && let Some(task) = json::get(task, "taskId")
        {
            self.calls.keep_task(id, task);
        }
        self.streams.finish_call(call.stream, Some(line)).await
    }

    /// The answer to `initialize`: the session comes to be, or it does not.
    async fn started(&mut self, message: &Message) {
        let Some(child) = &mut self.child else { return };
        let Said::Done { line, .. } = self.dialect.line(message, child.out()) else {
            return;
        };
        let Phase::Starting { id, reply, .. } = std::mem::replace(&mut self.phase, Phase::New)
        else {
            return;
        };
        let reply = reply.map(|(reply, _)| reply);
        let outcome = if message.kind() == Kind::Error {
            Outcome::Error
        } else {
            Outcome::Result
        };
        self.core.metrics.call(Method::Initialize, outcome);
        if message.kind() == Kind::Error {
            self.over = Some(Over::Failed);
            return self.answer_start(line, reply).await;
        }
        let revision = message
            .result()
            .and_then(|result| json::decoded(json::get(result, "protocolVersion")?))
            .and_then(|name| Revision::parse(&name))
            .filter(|revision| self.tenant.revisions.contains(revision));
        let Some(revision) = revision else {
            self.over = Some(Over::Failed);
            let text = "the backend speaks no protocol revision that is allowed here";
            let line = failure(&id, -31003, text, "unsupported_revision", false);
            return self.answer_start(line, reply).await;
        };
        self.phase = Phase::Ready(revision);
        self.streams.settle(revision);
        tracing::info!(
            tenant.id = self.tenant.name,
            server.name = self.server.name,
            session.id = self.id.short(),
            revision = revision.as_str(),
            "session began"
        );
        let Some(reply) = reply else {
            return self.answer_start(line, None).await;
        };
        if let Some(handle) = self.handle.take() {
            self.core.keep(&self.id, handle);
        }
        // A client that is gone never learned the id.
        if reply.send(Answer::Json(line)).is_err() {
            self.over = Some(Over::Deleted);
        }
    }

    /// A line that is no message: noise, unless it was meant to answer a call.
    async fn garbage(&mut self, line: &[u8]) {
        self.core.metrics.noise_line();
        tracing::debug!(
            server.name = self.server.name,
            session.id = self.id.short(),
            bytes = line.len(),
            "a line of the child that is no message is skipped"
        );
        let readable: String = String::from_utf8_lossy(line)
            .chars()
            .map(|letter| if letter.is_control() { ' ' } else { letter })
            .collect();
        let Ok(message) = Message::parse(readable.into()) else {
            return;
        };
        let Some(child) = &mut self.child else { return };
        if !matches!(message.kind(), Kind::Result | Kind::Error) {
            return;
        }
        let id = message
            .id()
            .and_then(|id| std::str::from_utf8(id).ok()?.parse().ok());
        if let Phase::Starting { call, .. } = self.phase
            && id == Some(call)
        {
            return self
                .lose(
                    "invalid_answer",
                    -31003,
                    "the backend's answer is not usable",
                )
                .await;
        }
        let _ = child;
        if let Some(id) = id {
            let text = "the backend's answer is not valid JSON";
            self.fail_call(id, -31003, text, "invalid_answer").await;
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
    pub(super) async fn tick(&mut self) {
        let now = Instant::now();
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
            self.lose_exited().await;
            return;
        }
        if let Phase::Starting { until, .. } = self.phase
            && until <= now
        {
            self.start_failed("timeout").await;
            self.over = Some(Over::Lost);
            return;
        }
        let (overdue, next) = {
            let Self { calls, streams, .. } = self;
            calls.overdue(now, |stream, number| streams.is_written(stream, number))
        };
        for due in overdue {
            self.overdue(due, now).await;
        }
        let (end, why) = self.end_of_life(now);
        if end <= now {
            self.over.get_or_insert(why);
        }
        let start = if let Phase::Starting { until, .. } = self.phase {
            Some(until)
        } else {
            None
        };
        let others = [next, self.choked, self.paced, self.probe, start];
        self.wake = others.into_iter().flatten().fold(end, Instant::min);
    }

    async fn overdue(&mut self, due: Overdue, now: Instant) {
        match due {
            Overdue::Ask(ask) => {
                if let Some(child) = &mut self.child {
                    self.dialect
                        .refuse(ask, "the client did not answer in time", child.out());
                    child.try_flush();
                }
                self.calls.settle(ask, now);
            }
            Overdue::Call(call) => {
                if let Some(child) = &mut self.child {
                    Dialect::cancel(call, "the call took too long", child.out());
                    Dialect::ping(child.out());
                    child.try_flush();
                }
                self.probe.get_or_insert(now + PROBE);
                let text = "the backend did not answer in time";
                self.fail_call(call, -31002, text, "timeout").await;
            }
        }
    }
}

/// Enough of the last lines of stderr for one log line.
fn tail(stderr: &[u8]) -> &[u8] {
    &stderr[stderr.len().saturating_sub(512)..]
}

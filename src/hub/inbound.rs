//! From the client to the child: what a session does with a body that was delivered.

use std::time::Duration;

use bytes::BytesMut;
use tokio::{sync::oneshot, time::Instant};

use super::{
    Answer, Form,
    calls::Call,
    clock::CallClock,
    session::{Delivery, Over, Phase, Session, Transport, failure, or_never},
};
use crate::{
    backend::{
        legacy::{Noted, push_result},
        stdio::Child,
    },
    error::Error,
    protocol::{
        event::{LISTENER, StreamId},
        json,
        message::{Body, Kind, Message, Method, Refusal},
        revision::Revision,
    },
    telemetry,
};

/// Bytes that may wait for a child that does not read: the largest body and then some.
const MAX_QUEUED: usize = 8 * 1024 * 1024;

impl Session {
    pub(super) async fn deliver(&mut self, delivery: Delivery) {
        let Delivery {
            body,
            form,
            reply,
            begun,
        } = delivery;
        let message = match body {
            Body::One(message) => message,
            Body::Batch(items) => return Box::pin(self.batch(items, form, reply, begun)).await,
        };
        match (message.kind(), message.method()) {
            (Kind::Request, Method::Initialize) => {
                Box::pin(self.initialize(&message, form, reply)).await;
            }
            (Kind::Request, _) => self.request(message, form, reply, begun).await,
            _ => {
                let taken = self.one_way(&message).await;
                let _ = reply.send(taken.map_or_else(Answer::Refused, |()| Answer::Accepted));
            }
        }
    }

    /// Starts the child with the client's own `initialize`.
    #[expect(
        clippy::too_many_lines,
        reason = "one sequence; its parts have no name"
    )]
    async fn initialize(&mut self, message: &Message, form: Form, reply: oneshot::Sender<Answer>) {
        let is_new = matches!(self.phase, Phase::New);
        if !is_new || self.is_draining {
            let why = if is_new {
                Error::Draining
            } else {
                Error::Invalid("already initialized")
            };
            let _ = reply.send(Answer::Refused(why));
            return;
        }
        let id: Box<[u8]> = message.id().unwrap_or_default().into();
        let label = format!("{}-{}", self.server.tenant, self.server.name);
        let spawned = Child::spawn(
            &self.core.launcher,
            &label,
            &self.server.launch,
            &self.server.limits,
        );
        let mut child = match spawned {
            Ok(child) => child,
            Err(error) => {
                tracing::warn!(server.name = self.server.name, %error, "cannot start the child");
                let why = failure(
                    &id,
                    -31001,
                    "the backend could not be started",
                    "backend_exited",
                    true,
                );
                self.answer_start(why, Some(reply)).await;
                self.over = Some(Over::Failed);
                return;
            }
        };
        self.core.metrics.child_started();
        let asked = message
            .protocol_version()
            .and_then(|span| Revision::parse(&json::decoded(span.of(message.bytes()))?));
        // 2025-11-25 lifecycle, "Version Negotiation": what the tenant does not allow is
        // answered with the newest that it does.
        let is_allowed = asked.is_some_and(|asked| self.tenant.revisions.contains(&asked));
        let newest = self
            .tenant
            .revisions
            .first()
            .copied()
            .filter(|_| !is_allowed);
        let newest = newest.map(Revision::as_str);
        let call = self.dialect.request_as(message, newest, child.out());
        self.child = Some(child);
        let until = Instant::now() + or_never(self.server.clocks.start);
        self.wake_by(until);
        let reply = match self.transport {
            Transport::Streamable => Some((reply, form)),
            Transport::Sse2024 => {
                let _ = reply.send(Answer::Accepted);
                None
            }
        };
        self.phase = Phase::Starting {
            call,
            id,
            reply,
            until,
        };
    }

    /// Sends the answer to `initialize` where this transport has it.
    pub(super) async fn answer_start(
        &mut self,
        line: bytes::Bytes,
        reply: Option<oneshot::Sender<Answer>>,
    ) {
        match (self.transport, reply) {
            (Transport::Streamable, Some(reply)) => {
                let _ = reply.send(Answer::Failed(line));
            }
            (_, reply) => {
                if let Some(reply) = reply {
                    let _ = reply.send(Answer::Accepted);
                }
                if self.streams.message(LISTENER, line).await.is_err() {
                    self.over = Some(Over::Lost);
                }
            }
        }
    }

    /// Takes one request: its response has a stream of its own, or the listener.
    async fn request(
        &mut self,
        message: Message,
        form: Form,
        reply: oneshot::Sender<Answer>,
        begun: oneshot::Sender<StreamId>,
    ) {
        if let Err(error) = self.check_room(message.method()) {
            let _ = reply.send(Answer::Refused(error));
            return;
        }
        let Some(stream) = self.begin(1, form, false, reply, begun).await else {
            return;
        };
        self.send(&message, stream, form).await;
    }

    fn check_room(&self, method: Method) -> Result<(), Error> {
        if method == Method::Ping {
            return Ok(());
        }
        if !matches!(self.phase, Phase::Ready(_)) {
            return Err(Error::Invalid("initialize comes first"));
        }
        if self.is_draining {
            return Err(Error::Draining);
        }
        if self
            .child
            .as_ref()
            .is_some_and(|child| child.queued() > MAX_QUEUED)
        {
            let retry = Duration::from_secs(5);
            return Err(Error::Busy {
                what: "the backend does not read",
                retry,
            });
        }
        Ok(())
    }

    /// Begins the response to `calls` requests; nothing if it was refused.
    async fn begin(
        &mut self,
        calls: usize,
        form: Form,
        is_batch: bool,
        reply: oneshot::Sender<Answer>,
        begun: oneshot::Sender<StreamId>,
    ) -> Option<StreamId> {
        if self.transport == Transport::Sse2024 {
            let _ = reply.send(Answer::Accepted);
            return Some(LISTENER);
        }
        match self.streams.begin(calls, form, is_batch, reply) {
            Ok(stream) => {
                // The front may have gone; then nobody will ask to open the stream.
                let _ = begun.send(stream);
                if form == Form::Sse && self.streams.open(stream).await.is_err() {
                    self.over = Some(Over::Lost);
                }
                Some(stream)
            }
            Err((error, reply)) => {
                let _ = reply.send(Answer::Refused(error));
                None
            }
        }
    }

    /// Passes a request on to the child; pings are answered here.
    async fn send(&mut self, message: &Message, stream: StreamId, form: Form) {
        if message.method() == Method::Ping {
            let mut line = BytesMut::new();
            push_result(message.id().unwrap_or_default(), b"{}", &mut line);
            if self
                .streams
                .finish_call(stream, Some(line.freeze()))
                .await
                .is_err()
            {
                self.over = Some(Over::Lost);
            }
            return;
        }
        let Some(child) = &mut self.child else { return };
        let id = self.dialect.request(message, child.out());
        let now = Instant::now();
        let method = message.method();
        let tool = if method == Method::ToolsCall {
            message.name()
        } else {
            None
        };
        let clocks = self.server.clocks_of(tool.as_deref());
        let limit = (method != Method::TasksResult).then_some(or_never(clocks.call));
        let clock = CallClock::start(now, limit, or_never(clocks.call_max));
        let task = message
            .task_id()
            .filter(|_| method == Method::TasksResult)
            .map(Into::into);
        let is_carrier = form != Form::Json || self.transport == Transport::Sse2024;
        let wants_task = message.wants_task();
        let class = class(message);
        self.calls.begin(
            id,
            Call {
                stream,
                is_carrier,
                task,
                wants_task,
                clock,
                class,
            },
        );
        self.wake_by(clock.deadline());
    }

    /// Takes a notification or a response.
    async fn one_way(&mut self, message: &Message) -> Result<(), Error> {
        if !matches!(self.phase, Phase::Ready(_)) {
            return Err(Error::Invalid("initialize comes first"));
        }
        let Some(child) = &mut self.child else {
            return Ok(());
        };
        if child.queued() > MAX_QUEUED {
            let retry = Duration::from_secs(5);
            return Err(Error::Busy {
                what: "the backend does not read",
                retry,
            });
        }
        if message.kind() != Kind::Notification {
            match self.dialect.answer(message, child.out()) {
                Some(ask) => {
                    self.calls.settle(ask, Instant::now());
                    self.wake = Instant::now();
                }
                None => self
                    .core
                    .metrics
                    .message_dropped(telemetry::Dropped::Unknown),
            }
            return Ok(());
        }
        match self.dialect.notification(message, child.out()) {
            Noted::Passed => {}
            Noted::Dropped => self
                .core
                .metrics
                .message_dropped(telemetry::Dropped::Unknown),
            Noted::Cancelled(call) => {
                let Some(call) = self.calls.end(call) else {
                    return Ok(());
                };
                self.core
                    .metrics
                    .call(call.class, telemetry::Outcome::Cancelled);
                if self.streams.finish_call(call.stream, None).await.is_err() {
                    self.over = Some(Over::Lost);
                }
            }
        }
        Ok(())
    }

    /// Takes an array (2025-03-26 basic, "Batching"), all of it or nothing.
    async fn batch(
        &mut self,
        items: Vec<Result<Message, Refusal>>,
        form: Form,
        reply: oneshot::Sender<Answer>,
        begun: oneshot::Sender<StreamId>,
    ) {
        let messages = match self.check_batch(items) {
            Ok(messages) => messages,
            Err(error) => {
                let _ = reply.send(Answer::Refused(error));
                return;
            }
        };
        let requests = messages
            .iter()
            .filter(|message| message.kind() == Kind::Request)
            .count();
        let stream = if requests == 0 {
            let _ = reply.send(Answer::Accepted);
            LISTENER
        } else {
            let Some(stream) = self.begin(requests, form, true, reply, begun).await else {
                return;
            };
            stream
        };
        for message in &messages {
            match message.kind() {
                Kind::Request => self.send(message, stream, form).await,
                // Checked before: what can fail here is only a child that does not read.
                _ => _ = self.one_way(message).await,
            }
        }
    }

    fn check_batch(&self, items: Vec<Result<Message, Refusal>>) -> Result<Vec<Message>, Error> {
        if !matches!(self.phase, Phase::Ready(revision) if revision.has_batches()) {
            return Err(Error::Invalid("batches are not part of this revision"));
        }
        let messages: Result<Vec<_>, _> = items.into_iter().collect();
        let messages = messages.map_err(|_| Error::Invalid("a batch with an invalid message"))?;
        if messages
            .iter()
            .any(|message| message.method() == Method::Initialize)
        {
            return Err(Error::Invalid("initialize must not be part of a batch"));
        }
        self.check_room(Method::Other)?;
        Ok(messages)
    }
}

fn class(message: &Message) -> telemetry::Method {
    match &*message.method_name() {
        "tools/call" => telemetry::Method::Tool,
        "resources/read" | "prompts/get" => telemetry::Method::Read,
        name if name.ends_with("/list") => telemetry::Method::List,
        _ => telemetry::Method::Other,
    }
}

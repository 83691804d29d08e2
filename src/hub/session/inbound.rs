//! Messages from the client to the backend.

use std::{sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use tokio::{sync::oneshot, time::Instant};

use super::{
    lifetime::{EndReason, Initializing},
    record::Subscription,
    task::Session,
};
use crate::{
    auth::{Listed, PolicyRefusal, policy},
    backend::dialect::{CallId, Forwarded},
    declare::Isolation,
    error::Error,
    hub::{
        call::{Audited, Call, CallClock, CallError, Effect},
        core::{Delivery, Transport, check_initialize, or_never},
        limits::{NoRoom, Seats},
        stream::{Answer, Form, PageCursors},
    },
    protocol::{
        Body, Kind, LISTENER_STREAM, Message, Method, Refusal, Rejected, Revision, StreamId, Trace,
        json, jsonrpc, log_level,
    },
    telemetry::{CallSpans, Dropped, MethodClass, Outcome, SESSION_STREAMS, TraceContext, semconv},
};

/// The most subscriptions of a session: they live as long as it does, and are part of its record.
pub(crate) const MAX_SUBSCRIPTIONS: usize = 1000;
/// The most bytes of a raw URI, of which two are its quotes.
const MAX_URI: usize = 8 * 1024 + 2;

/// The `Retry-After` of an `initialize` that the share of its caller has no room for.
const RETRY: Duration = Duration::from_secs(10);

/// The longest reason of a cancellation in the log, in characters.
const MAX_REASON: usize = 256;

/// The most bytes that wait for a child that does not read: more than the largest body.
const MAX_QUEUED: usize = 8 * 1024 * 1024;

/// Why a request with a key that the gateway gives to itself is refused: it would be taken for the gateway's.
const OWN_KEY: &str = "_meta has a key that begins with lockgate/";

impl Session {
    /// Handles a body of the client.
    pub(super) fn deliver(&mut self, delivery: Delivery) {
        let Delivery {
            body,
            form,
            policy,
            calls,
            header,
            trace,
            reply,
        } = delivery;
        self.log_header(header);
        self.replace_stale_backend();
        let mut calls = calls.into_iter();
        self.client.set_policy(policy);
        self.client.set_trace(trace);
        let message = match body {
            Body::One(message) => message,
            Body::Batch(items) => {
                return self.batch(&items, form, calls, reply);
            }
        };
        match (message.kind(), message.method()) {
            (Kind::Request, Method::Initialize) => {
                self.initialize(message, reply);
            }
            (Kind::Request, _) => {
                let seats = calls.next().unwrap_or_default();
                self.request(&message, form, seats, reply);
            }
            _ => {
                let was_initialized = self.replay.is_initialized;
                match self.one_way(&message) {
                    Ok(()) => self.accept_recorded(was_initialized, reply),
                    Err(error) => _ = reply.send(Answer::Refused(error)),
                }
            }
        }
    }

    /// Logs a version header that is not the revision of the session, which decides: "the client MUST
    /// include [...] the one negotiated" (2025-11-25 transports, "Protocol Version Header").
    fn log_header(&self, header: Option<Revision>) {
        if let Some((header, revision)) = header.zip(self.lifetime.revision())
            && header != revision
        {
            tracing::debug!(
                server.name = self.client.server().name,
                session.id = self.id.short(),
                header = header.as_str(),
                revision = revision.as_str(),
                "MCP-Protocol-Version is not the negotiated revision"
            );
        }
    }

    /// Acquires a backend for the client's `initialize`.
    fn initialize(&mut self, message: Message, reply: oneshot::Sender<Answer>) {
        let refused = if !self.lifetime.is_new() {
            Some(Error::Invalid("already initialized"))
        } else if self.lifetime.is_draining() {
            Some(Error::Draining)
        } else {
            check_initialize(&message).err()
        };
        if let Some(error) = refused {
            let _ = reply.send(Answer::Refused(error));
            return;
        }
        let id: Box<[u8]> = message.id().unwrap_or_default().into();
        if !self.replay.keep_initialize(message) {
            let _ = reply.send(Answer::Refused(self.core.limits.no_room(RETRY)));
            // A client of HTTP+SSE knows its session and may try again.
            if self.client.transport() != Transport::Sse2024 {
                self.lifetime.force_end(EndReason::Failed);
            }
            return;
        }
        let reply = match self.client.transport() {
            Transport::Streamable | Transport::Stateless => Some(reply),
            Transport::Sse2024 => {
                let _ = reply.send(Answer::Accepted);
                None
            }
        };
        let began = Instant::now();
        let trace = self.client.trace().cloned();
        self.lifetime.start(Initializing {
            id,
            began,
            trace,
            reply,
        });
        self.acquire_backend();
    }

    /// Handles one request: its response goes to a stream of its own, or to the listener.
    fn request(
        &mut self,
        message: &Message,
        form: Form,
        seats: Seats,
        reply: oneshot::Sender<Answer>,
    ) {
        let mut room = self.check_room(message.method());
        // The stream of a ping ends as it begins.
        if room.is_ok() && message.method() != Method::Ping {
            room = self.check_streams(1);
        }
        if let Err(error) = room {
            let _ = reply.send(Answer::Refused(error));
            return;
        }
        let stream = self.begin_stream(1, form, false, reply);
        self.send_request(message, stream, form, seats);
    }

    fn check_room(&self, method: Method) -> Result<(), Error> {
        if method == Method::Ping {
            return Ok(());
        }
        if !self.lifetime.is_ready() {
            return Err(Error::Invalid("initialize comes first"));
        }
        // With several replicas, a session continues until no call is in flight; then another replica
        // takes it over.
        if self.lifetime.is_draining()
            && (self.stores.owner.is_alone() || self.lifetime.is_closing())
        {
            return Err(Error::Draining);
        }
        self.check_queue()
    }

    fn check_queue(&self) -> Result<(), Error> {
        if self.link.queued() > MAX_QUEUED || self.link.is_too_much() {
            let retry = Duration::from_secs(5);
            return Err(Error::Busy {
                what: "the backend does not read",
                retry,
            });
        }
        Ok(())
    }

    fn check_streams(&self, calls: usize) -> Result<(), Error> {
        let room = if self.client.transport() == Transport::Sse2024 {
            // Those whose responses wait for the record have not been answered either.
            let others = self.calls.count() + self.lease.held();
            self.streams.check_calls(calls, others)
        } else {
            self.streams.check_room()
        };
        if matches!(room, Err(Error::Limit { .. })) {
            self.core.metrics.limited.add(SESSION_STREAMS);
        }
        room
    }

    /// Begins the stream of the responses to `calls` requests.
    fn begin_stream(
        &mut self,
        calls: usize,
        form: Form,
        is_batch: bool,
        reply: oneshot::Sender<Answer>,
    ) -> StreamId {
        if self.client.transport() == Transport::Sse2024 {
            self.streams.accept(reply);
            return LISTENER_STREAM;
        }
        let hold = (form == Form::Auto).then_some(self.client.server().reply.sse_after);
        let until = hold.map(|hold| Instant::now() + hold);
        let stream = self.streams.begin(calls, form, until, is_batch, reply);
        if let Some(until) = until {
            self.wake_by(until);
        }
        if form == Form::Sse {
            let opened = self.streams.open(stream);
            self.handle_write(opened);
        }
        stream
    }

    /// Sends a request to the backend, unless the gateway answers it itself.
    fn send_request(&mut self, message: &Message, stream: StreamId, form: Form, seats: Seats) {
        let answered = self.gateway_answer(message);
        let effect = match answered.map_or_else(|| self.effect(message), Err) {
            Ok(effect) => effect,
            Err(line) => {
                let finished = self.streams.finish_call(stream, Some(line));
                return self.handle_write(finished);
            }
        };
        let Ok(unsealed) = self.page_cursors().unsealed(message) else {
            let id = message.id().unwrap_or_default();
            return self.refuse_request(id, stream, -32602, "Invalid cursor");
        };
        let message = unsealed.as_ref().unwrap_or(message);
        let ordinary = self.without_unknown_task(message);
        let message = ordinary.as_ref().unwrap_or(message);
        self.acquire_backend();
        let spans = self.begin_spans(message);
        let trace = spans.as_ref().map(|spans| spans.passed_on().to_meta());
        let (id, subscription) = self.forward(message, trace.as_ref());
        let now = Instant::now();
        let method = message.method();
        let tool = message.tool().map(Box::from);
        let clocks = self.client.server().clocks_of(tool.as_deref());
        let limit = (method != Method::TasksResult).then_some(or_never(clocks.call));
        let clock = CallClock::start(now, limit, or_never(clocks.call_max));
        let task = message
            .task_id()
            .filter(|_| method == Method::TasksResult)
            .map(Into::into);
        let is_carrier = form != Form::Json || self.client.transport() == Transport::Sse2024;
        let wants_task = message.wants_task();
        let name = message.method_name();
        self.calls.begin(
            id,
            Call {
                stream,
                is_carrier,
                task,
                wants_task,
                clock,
                began: now,
                class: class(&name),
                method: semconv::method(&name),
                tool,
                audited: Audited::begin(self.client.server(), message),
                effect,
                spans,
                _seats: seats,
                list: Listed::of(method).map(|listed| (listed, Arc::clone(self.client.policy()))),
            },
        );
        let raw_id = message.id().unwrap_or_default();
        self.streams.await_response(stream, raw_id);
        self.link.set_calls(self.calls.count());
        self.wake_by(clock.deadline());
        if let Some(subscription) = subscription {
            self.link.subscribe(subscription);
        }
    }

    /// The request without its task, if the session has a server without tasks: "Receivers that do not
    /// declare the task capability for a request type MUST process requests of that type normally,
    /// ignoring any task-augmentation metadata" (2025-11-25 tasks, "Task Support and Handling" 1). A
    /// shared child may know tasks, but they are not announced.
    fn without_unknown_task(&self, message: &Message) -> Option<Message> {
        if !message.wants_task() || json::get(&self.replay.capabilities, "tasks").is_some() {
            return None;
        }
        message.without_task()
    }

    /// Begins the spans of a call, if they are recorded.
    fn begin_spans(&self, message: &Message) -> Option<Box<CallSpans>> {
        let traces = &self.core.traces;
        if !traces.is_enabled() {
            return None;
        }
        let own = Trace::of(message)
            .and_then(|own| TraceContext::parse(&own.parent, &own.state))
            .map(|own| traces.admitted(own));
        let method = semconv::method(&message.method_name());
        let names = self.client.operations().names();
        traces.call(method, names, own.as_ref(), self.client.trace())
    }

    /// The sealed page cursors of this principal at this server.
    pub(super) fn page_cursors(&self) -> PageCursors<'_> {
        PageCursors {
            key: &self.core.key,
            tenant: &self.client.tenant().name,
            server: &self.client.server().name,
            principal: self.client.principal().key(),
        }
    }

    /// Answers a request with an error of the gateway.
    fn refuse_request(&mut self, id: &[u8], stream: StreamId, code: i32, message: &str) {
        let mut line = BytesMut::new();
        jsonrpc::push_error(id, code, message, None, &mut line);
        let finished = self.streams.finish_call(stream, Some(line.freeze()));
        self.handle_write(finished);
    }

    /// Writes a request to the backend; returns the gateway's id of it. A shared child has one
    /// subscription to a URI for all sessions, so subscriptions to it are returned instead.
    fn forward(
        &mut self,
        message: &Message,
        trace: Option<&Trace>,
    ) -> (CallId, Option<Subscription>) {
        let is_subscribe = message.method() == Method::Subscribe;
        let is_subscription = is_subscribe || message.method() == Method::Unsubscribe;
        let is_shared = self.client.server().supervision.isolation != Isolation::Session;
        let subject = (is_subscription && is_shared).then(|| message.subject());
        let Some(uri) = subject.flatten() else {
            return (self.dialect.request(message, trace, self.link.out()), None);
        };
        let mut line = BytesMut::new();
        let call = self.dialect.request(message, trace, &mut line);
        let subscription = Subscription {
            call,
            uri,
            is_subscribe,
            line: line.freeze(),
        };
        (call, Some(subscription))
    }

    /// The answer of the gateway itself: to pings, to requests with a key of the gateway in `_meta` or the name of a
    /// notification (their ids would reach the server unchanged), and to requests that the policy denies. None for
    /// a request that the backend answers.
    fn gateway_answer(&mut self, message: &Message) -> Option<Bytes> {
        let id = message.id().unwrap_or_default();
        let mut line = BytesMut::new();
        if message.method() == Method::Ping {
            tracing::debug!(
                server.name = self.client.server().name,
                session.id = self.id.short(),
                how = "ping",
                "the gateway answered a request of the client"
            );
            jsonrpc::push_result(id, b"{}", &mut line);
            return Some(line.freeze());
        }
        if message.has_own_key() && self.client.transport() != Transport::Stateless {
            jsonrpc::push_error(id, -32602, OWN_KEY, None, &mut line);
            return Some(line.freeze());
        }
        if message.method().is_notification() {
            jsonrpc::push_error(id, -32601, "Method not found", None, &mut line);
            return Some(line.freeze());
        }
        // Of the gateway itself where clients have no sessions, and for each subscription that its own policy allows.
        let is_own = self.client.transport() == Transport::Stateless
            && matches!(message.method(), Method::Subscribe | Method::Unsubscribe);
        if !is_own && let Some(denied) = policy::denied(self.client.policy(), message) {
            let PolicyRefusal {
                code,
                message,
                data,
            } = denied;
            jsonrpc::push_error(id, code, &message, data.as_deref(), &mut line);
            return Some(line.freeze());
        }
        if self.client.server().supervision.isolation == Isolation::Session {
            return None;
        }
        self.gateway_answer_for_shared(message)
    }

    /// The answer of the gateway in place of a shared child: to log levels, which belong to one
    /// session, and to tasks, which all sessions of the child would see.
    fn gateway_answer_for_shared(&mut self, message: &Message) -> Option<Bytes> {
        let id = message.id().unwrap_or_default();
        let mut line = BytesMut::new();
        match message.method() {
            // "Servers that emit log message notifications MUST declare the logging capability"
            // (2025-11-25 logging, "Capabilities"): others are not asked.
            Method::SetLevel if json::get(&self.replay.capabilities, "logging").is_none() => {
                jsonrpc::push_error(id, -32601, "the server does not log", None, &mut line);
            }
            Method::SetLevel => {
                let name = message.level();
                let level = name.as_deref().and_then(log_level);
                let Some((name, level)) = name.zip(level) else {
                    jsonrpc::push_error(id, -32602, "no such log level", None, &mut line);
                    return Some(line.freeze());
                };
                self.replay.level = Some((&*name).into());
                self.record_changed();
                if let Some(member) = self.link.member() {
                    member.set_level(level);
                }
                jsonrpc::push_result(id, b"{}", &mut line);
            }
            Method::Tasks | Method::TasksResult => {
                jsonrpc::push_error(id, -32601, "a shared server has no tasks", None, &mut line);
            }
            _ => return None,
        }
        Some(line.freeze())
    }

    /// The change that the result of a request will make in the session, whose memory is drawn before the
    /// backend sees the request; the response with the error if there is no room.
    fn effect(&self, message: &Message) -> Result<Effect, Bytes> {
        let effect = match message.method() {
            // An unknown level is left to the child to refuse.
            Method::SetLevel => message
                .level()
                .filter(|level| log_level(level).is_some())
                .map(|level| Effect::Level((&*level).into())),
            Method::Subscribe => match message.subject() {
                Some(uri) => Some(self.subscribed(message.id().unwrap_or_default(), uri)?),
                None => None,
            },
            // There is no subscription to a longer one.
            Method::Unsubscribe => message
                .subject()
                .filter(|uri| uri.len() <= MAX_URI)
                .map(Effect::Unsubscribed),
            Method::ToolsList => Some(Effect::Tools),
            _ => None,
        };
        Ok(effect.unwrap_or_default())
    }

    /// The begin of a subscription; the response with the error if there is no room for it.
    fn subscribed(&self, id: &[u8], uri: Box<[u8]>) -> Result<Effect, Bytes> {
        let is_full = self.replay.subscriptions.len() >= MAX_SUBSCRIPTIONS;
        let room = if is_full || uri.len() > MAX_URI {
            Err(NoRoom::Session)
        } else {
            self.replay.memory.subscribe(&uri)
        };
        match room {
            Ok(memory) => Ok(Effect::Subscribed(uri, memory)),
            Err(NoRoom::Session) => {
                let mut line = BytesMut::new();
                let text = "too many subscriptions, or too long URIs";
                jsonrpc::push_error(id, -32602, text, None, &mut line);
                Err(line.freeze())
            }
            Err(NoRoom::Caller) => {
                self.core.limits.count_no_room();
                Err(CallError::NO_ROOM.line(id))
            }
        }
    }

    /// Handles a notification or a response.
    fn one_way(&mut self, message: &Message) -> Result<(), Error> {
        if !self.lifetime.is_ready() {
            return Err(Error::Invalid("initialize comes first"));
        }
        let is_answer = message.kind() != Kind::Notification;
        let id = message.id().unwrap_or_default();
        if is_answer && self.pings.answer(self.lease.fence(), id) {
            return Ok(());
        }
        self.check_queue()?;
        // A server may treat a notification with the name of a request as that request: with ids
        // that are not the gateway's, and without the checks of requests.
        let is_disguised = message.kind() == Kind::Notification && message.method().is_request();
        if is_disguised || policy::denied(self.client.policy(), message).is_some() {
            self.core.metrics.messages_dropped.add(Dropped::Unknown);
            return Ok(());
        }
        if is_answer {
            return self.answer(message);
        }
        if self.link.is_absent() {
            // The next child gets its state when it starts.
            self.replay.is_initialized |= message.method() == Method::Initialized;
            self.record_changed();
            return Ok(());
        }
        if message.method() == Method::Initialized {
            // Where the child is shared as well: the next one may be of this session alone.
            self.replay.is_initialized = true;
            self.record_changed();
        }
        // The gateway has initialized a shared child, which does not know its sessions.
        let is_shared = self.client.server().supervision.isolation != Isolation::Session;
        if is_shared && matches!(message.method(), Method::Initialized | Method::ListChanged) {
            return Ok(());
        }
        self.log_cancellation("client", message);
        match self.dialect.notification(message, self.link.out()) {
            Forwarded::Passed => {}
            Forwarded::Dropped => self.core.metrics.messages_dropped.add(Dropped::Unknown),
            Forwarded::Cancelled(call) => {
                let id = message.request_id().map(|span| span.of(message.bytes()));
                self.cancel_call(call, id.unwrap_or_default());
            }
        }
        Ok(())
    }

    /// Handles a response to a request of the child.
    fn answer(&mut self, message: &Message) -> Result<(), Error> {
        match self.dialect.answer(message, self.link.out()) {
            Some(ask) => {
                self.calls.settle(ask, Instant::now());
                self.wake_by(Instant::now());
            }
            None => self.core.metrics.messages_dropped.add(Dropped::Unknown),
        }
        if message.has_shape() {
            Ok(())
        } else {
            Err(Error::Invalid(
                "a result must be an object, and an error have an integer code and a message",
            ))
        }
    }

    /// Logs a cancellation with its reason: "Both parties SHOULD log cancellation reasons for debugging"
    /// (2025-11-25 cancellation, "Implementation Notes").
    pub(super) fn log_cancellation(&self, by: &'static str, message: &Message) {
        if message.method() != Method::Cancelled {
            return;
        }
        let reason = message.params().and_then(|params| {
            let reason = json::decoded(json::get(params, "reason")?)?;
            Some(reason.chars().take(MAX_REASON).collect::<String>())
        });
        tracing::debug!(
            server.name = self.client.server().name,
            session.id = self.id.short(),
            by,
            reason,
            "a request is cancelled"
        );
    }

    /// Ends a call that the client has cancelled under its own raw id.
    fn cancel_call(&mut self, call: CallId, id: &[u8]) {
        self.abandon_task(call);
        let Some(mut ended) = self.calls.end(call) else {
            return;
        };
        self.abandon_subscription(call, &ended.effect);
        self.link.set_calls(self.calls.count());
        self.count_call(&mut ended, Outcome::Cancelled, Some("cancelled"), || None);
        self.streams.forget_request(ended.stream, id);
        let finished = self.streams.finish_call(ended.stream, None);
        self.handle_write(finished);
    }

    /// Handles an array (2025-03-26 basic, "Batching"). An item that is no message is answered with an
    /// error of its own (JSON-RPC 2.0 section 6).
    fn batch(
        &mut self,
        items: &[Result<Message, Rejected>],
        form: Form,
        mut calls: impl Iterator<Item = Seats>,
        reply: oneshot::Sender<Answer>,
    ) {
        if let Err(error) = self.check_batch() {
            let _ = reply.send(Answer::Refused(error));
            return;
        }
        let is_answered = |item: &Result<Message, Rejected>| {
            item.as_ref()
                .map_or(true, |message| message.kind() == Kind::Request)
        };
        let answers = items.iter().filter(|item| is_answered(item)).count();
        let was_initialized = self.replay.is_initialized;
        let (stream, accepted) = if answers == 0 {
            (LISTENER_STREAM, Some(reply))
        } else if let Err(error) = self.check_streams(answers) {
            let _ = reply.send(Answer::Refused(error));
            return;
        } else {
            (self.begin_stream(answers, form, true, reply), None)
        };
        let mut taken = Ok(());
        for item in items {
            let message = match item {
                Ok(message) => message,
                Err(Rejected { refusal, id }) => {
                    let (Refusal::NotJson(why) | Refusal::Invalid(why)) = refusal;
                    let id = id.as_deref().unwrap_or(b"null");
                    self.refuse_request(id, stream, -32600, why);
                    continue;
                }
            };
            match message.kind() {
                // 2025-03-26 lifecycle, "Initialization".
                Kind::Request if message.method() == Method::Initialize => {
                    let why = "initialize must not be part of a batch";
                    self.refuse_request(message.id().unwrap_or_default(), stream, -32600, why);
                }
                Kind::Request if message.method() == Method::Ping => {
                    self.send_request(message, stream, form, Seats::new());
                }
                Kind::Request => {
                    let seats = calls.next().unwrap_or_default();
                    self.send_request(message, stream, form, seats);
                }
                _ => {
                    let one = self.one_way(message);
                    if let (Err(error), None) = (&one, &accepted) {
                        self.log_refused(message, error);
                    }
                    taken = taken.and(one);
                }
            }
        }
        // 2025-03-26 transports, "Sending Messages to the Server" 4: without a request, 202 only if the
        // server accepts the input.
        if let Some(reply) = accepted {
            match taken {
                Ok(()) => self.accept_recorded(was_initialized, reply),
                Err(error) => _ = reply.send(Answer::Refused(error)),
            }
        }
    }

    /// Counts and logs a notification or response that is refused beside requests: the answer of the batch
    /// does not say so, as neither is ever answered (JSON-RPC 2.0, section 4.1).
    fn log_refused(&self, message: &Message, error: &Error) {
        self.core.metrics.messages_dropped.add(Dropped::Refused);
        tracing::debug!(
            server.name = self.client.server().name,
            session.id = self.id.short(),
            mcp.method.name = &*message.method_name(),
            %error,
            "a message of a batch is refused"
        );
    }

    fn check_batch(&self) -> Result<(), Error> {
        if !self.lifetime.revision().is_some_and(Revision::has_batches) {
            return Err(Error::Invalid("batches are not part of this revision"));
        }
        self.check_room(Method::Other)
    }
}

fn class(method: &str) -> MethodClass {
    match method {
        "tools/call" => MethodClass::Tool,
        "resources/read" | "prompts/get" => MethodClass::Read,
        name if name.ends_with("/list") => MethodClass::List,
        _ => MethodClass::Other,
    }
}

//! Messages from the client to the backend.

use std::{sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use tokio::{sync::oneshot, time::Instant};

use super::{lifetime::Phase, link::State, record::Subscription, task::Session};
use crate::{
    auth::{Listed, PolicyRefusal, policy},
    backend::{
        dialect::{CallId, Noted},
        shared::routing,
    },
    declare::Isolation,
    error::Error,
    hub::{
        call::{Audited, Call, CallClock, Effect},
        core::{Delivery, Transport, check_initialize, or_never},
        limits::Seats,
        stream::{Answer, Form, PageCursors},
    },
    protocol::{Body, Kind, LISTENER, Message, Method, Refusal, StreamId, jsonrpc},
    telemetry::metrics,
};

/// Bytes of a URI to which a session may subscribe, and how many it may have: they live as long as it
/// does, and go with it from replica to replica.
const SUBSCRIPTIONS: (usize, usize) = (8 * 1024, 1000);

/// Bytes that may wait for a child that does not read: the largest body and then some.
const MAX_QUEUED: usize = 8 * 1024 * 1024;

impl Session {
    pub(crate) fn deliver(&mut self, delivery: Delivery) {
        let Delivery {
            body,
            form,
            policy,
            calls,
            reply,
        } = delivery;
        let mut calls = calls.into_iter();
        self.policy = policy;
        let message = match body {
            Body::One(message) => message,
            Body::Batch(items) => {
                return self.batch(items, (form, calls), reply);
            }
        };
        match (message.kind(), message.method()) {
            (Kind::Request, Method::Initialize) => {
                self.initialize(message, form, reply);
            }
            (Kind::Request, _) => {
                let seats = calls.next().unwrap_or_default();
                self.request(&message, (form, seats), reply);
            }
            _ => {
                let taken = self.one_way(&message);
                let _ = reply.send(taken.map_or_else(Answer::Refused, |()| Answer::Accepted));
            }
        }
    }

    /// Gets a backend for the client's `initialize`.
    fn initialize(&mut self, message: Message, form: Form, reply: oneshot::Sender<Answer>) {
        let refused = if !matches!(self.phase, Phase::New) {
            Some(Error::Invalid("already initialized"))
        } else if self.is_draining {
            Some(Error::Draining)
        } else {
            check_initialize(&message).err()
        };
        if let Some(why) = refused {
            let _ = reply.send(Answer::Refused(why));
            return;
        }
        let id: Box<[u8]> = message.id().unwrap_or_default().into();
        self.kept.initialize = Some(message);
        let reply = match self.transport {
            Transport::Streamable => Some((reply, form)),
            Transport::Sse2024 => {
                let _ = reply.send(Answer::Accepted);
                None
            }
        };
        self.phase = Phase::Starting { id, reply };
        self.get_backend();
    }

    /// Takes one request: its response has a stream of its own, or the listener.
    fn request(
        &mut self,
        message: &Message,
        (form, seats): (Form, Seats),
        reply: oneshot::Sender<Answer>,
    ) {
        let mut room = self.check_room(message.method());
        // The stream of a ping ends as it begins.
        if room.is_ok() && message.method() != Method::Ping {
            room = self.check_streams();
        }
        if let Err(error) = room {
            let _ = reply.send(Answer::Refused(error));
            return;
        }
        let stream = self.begin(1, form, false, reply);
        self.send(message, stream, (form, seats));
    }

    fn check_room(&self, method: Method) -> Result<(), Error> {
        if method == Method::Ping {
            return Ok(());
        }
        if !matches!(self.phase, Phase::Ready(_)) {
            return Err(Error::Invalid("initialize comes first"));
        }
        // Among replicas a session that has a call goes on until it has none: then it is another's.
        if self.is_draining && (self.core.owner.is_alone() || self.is_closing) {
            return Err(Error::Draining);
        }
        self.check_queue()
    }

    fn check_queue(&self) -> Result<(), Error> {
        if self.link.queued() > MAX_QUEUED {
            let retry = Duration::from_secs(5);
            return Err(Error::Busy {
                what: "the backend does not read",
                retry,
            });
        }
        Ok(())
    }

    fn check_streams(&self) -> Result<(), Error> {
        if self.transport == Transport::Sse2024 {
            return Ok(());
        }
        let room = self.streams.check_room();
        if room.is_err() {
            self.core.metrics.limited(metrics::SESSION_STREAMS);
        }
        room
    }

    /// Begins the response to `calls` requests.
    fn begin(
        &mut self,
        calls: usize,
        form: Form,
        is_batch: bool,
        reply: oneshot::Sender<Answer>,
    ) -> StreamId {
        if self.transport == Transport::Sse2024 {
            let _ = reply.send(Answer::Accepted);
            return LISTENER;
        }
        let hold = (form == Form::Auto).then_some(self.server.reply.sse_after);
        let until = hold.map(|hold| Instant::now() + hold);
        let stream = self.streams.begin(calls, (form, until), is_batch, reply);
        if let Some(until) = until {
            self.wake_by(until);
        }
        if form == Form::Sse {
            let opened = self.streams.open(stream);
            self.stored(opened);
        }
        stream
    }

    /// Passes a request on to the child, unless it is answered here.
    fn send(&mut self, message: &Message, stream: StreamId, (form, seats): (Form, Seats)) {
        if let Some(line) = self.answered_here(message) {
            let finished = self.streams.finish_call(stream, Some(line));
            return self.stored(finished);
        }
        let Ok(unsealed) = self.page_cursors().unsealed(message) else {
            let id = message.id().unwrap_or_default();
            return self.refuse(id, stream, "Invalid cursor");
        };
        let message = unsealed.as_ref().unwrap_or(message);
        self.get_backend();
        let (id, subscription) = self.pass(message);
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
                audited: Audited::begin(&self.server, message),
                effect: effect(message),
                _seats: seats,
                list: Listed::of(method).map(|listed| (listed, Arc::clone(&self.policy))),
            },
        );
        let awaited = self
            .streams
            .awaits(stream, message.id().unwrap_or_default());
        self.stored(awaited);
        self.link.set_calls(self.calls.count());
        self.wake_by(clock.deadline());
        if let Some(subscription) = subscription {
            self.subscribe(subscription);
        }
    }

    /// The cursors of this principal at this server.
    pub(super) fn page_cursors(&self) -> PageCursors<'_> {
        PageCursors {
            key: &self.core.key,
            tenant: &self.tenant.name,
            server: &self.server.name,
            principal: self.principal.key(),
        }
    }

    /// Answers a request with −32602.
    fn refuse(&mut self, id: &[u8], stream: StreamId, why: &str) {
        let mut line = BytesMut::new();
        jsonrpc::push_error(id, -32602, why, None, &mut line);
        let finished = self.streams.finish_call(stream, Some(line.freeze()));
        self.stored(finished);
    }

    /// Writes a request for the backend, and returns the gateway's id of it. A shared child has
    /// one subscription to a URI for all sessions: those go another way.
    fn pass(&mut self, message: &Message) -> (CallId, Option<Subscription>) {
        let begins = message.method() == Method::Subscribe;
        let is_subscription = begins || message.method() == Method::Unsubscribe;
        let is_shared = self.server.supervision.isolation != Isolation::Session;
        let subject = (is_subscription && is_shared).then(|| message.subject());
        let Some(uri) = subject.flatten() else {
            return (self.dialect.request(message, self.link.out()), None);
        };
        let mut line = BytesMut::new();
        let call = self.dialect.request(message, &mut line);
        let subscription = Subscription {
            call,
            uri,
            begins,
            line: line.freeze(),
        };
        (call, Some(subscription))
    }

    /// The answer of the gateway itself, if it has one: to pings, requests by the name of a notification, whose ids
    /// would go to the server as they are, and requests for what policy denies.
    fn answered_here(&mut self, message: &Message) -> Option<Bytes> {
        let id = message.id().unwrap_or_default();
        let mut line = BytesMut::new();
        if message.method() == Method::Ping {
            jsonrpc::push_result(id, b"{}", &mut line);
            return Some(line.freeze());
        }
        if message.method().is_notification() {
            jsonrpc::push_error(id, -32601, "Method not found", None, &mut line);
            return Some(line.freeze());
        }
        if message.method() == Method::Subscribe {
            let (bytes, number) = SUBSCRIPTIONS;
            let is_long = message.uri().is_some_and(|uri| uri.len() > bytes);
            if is_long || self.kept.subscriptions.len() >= number {
                let why = "too many subscriptions, or too long a URI";
                jsonrpc::push_error(id, -32602, why, None, &mut line);
                return Some(line.freeze());
            }
        }
        if let Some(denied) = policy::denied(&self.policy, message) {
            let PolicyRefusal {
                code,
                message,
                data,
            } = denied;
            jsonrpc::push_error(id, code, &message, data.as_deref(), &mut line);
            return Some(line.freeze());
        }
        if self.server.supervision.isolation == Isolation::Session {
            return None;
        }
        self.answered_for_all(message)
    }

    /// The answer of the gateway in place of a shared child: to log levels, which each
    /// session has for itself, and tasks, which would be everybody's.
    fn answered_for_all(&mut self, message: &Message) -> Option<Bytes> {
        let id = message.id().unwrap_or_default();
        let mut line = BytesMut::new();
        match message.method() {
            Method::SetLevel => {
                let name = message.level();
                let level = name.as_deref().and_then(routing::level);
                let Some((name, level)) = name.zip(level) else {
                    jsonrpc::push_error(id, -32602, "no such log level", None, &mut line);
                    return Some(line.freeze());
                };
                self.kept.level = Some((&*name).into());
                self.remember();
                if let State::Shared(member) = &mut self.link.state {
                    member.set_level(level);
                }
                jsonrpc::push_result(id, b"{}", &mut line);
            }
            Method::Tasks | Method::TasksResult => {
                jsonrpc::push_error(id, -32601, "a shared server has no tasks", None, &mut line);
            }
            _ if message.wants_task() => {
                jsonrpc::push_error(id, -32602, "a shared server has no tasks", None, &mut line);
            }
            _ => return None,
        }
        Some(line.freeze())
    }

    /// Takes a notification or a response.
    fn one_way(&mut self, message: &Message) -> Result<(), Error> {
        if !matches!(self.phase, Phase::Ready(_)) {
            return Err(Error::Invalid("initialize comes first"));
        }
        self.check_queue()?;
        // A server may take a notification by the name of a request for that request: with ids that
        // are not the gateway's, and past all that is looked at in requests.
        let is_disguised = message.kind() == Kind::Notification && message.method().is_request();
        if is_disguised || policy::denied(&self.policy, message).is_some() {
            self.core.metrics.message_dropped(metrics::Dropped::Unknown);
            return Ok(());
        }
        if matches!(self.link.state, State::Absent) {
            // It has asked nothing and knows nothing: what it must know it is told at its start.
            self.kept.is_initialized |= message.method() == Method::Initialized;
            self.remember();
            return Ok(());
        }
        if message.kind() != Kind::Notification {
            match self.dialect.answer(message, self.link.out()) {
                Some(ask) => {
                    self.calls.settle(ask, Instant::now());
                    self.wake = Instant::now();
                }
                None => self.core.metrics.message_dropped(metrics::Dropped::Unknown),
            }
            return Ok(());
        }
        match message.method() {
            Method::Initialized if self.server.supervision.isolation == Isolation::Session => {
                self.kept.is_initialized = true;
                self.remember();
            }
            // A shared child was initialized by the gateway and knows nothing of its sessions.
            Method::Initialized | Method::ListChanged
                if self.server.supervision.isolation != Isolation::Session =>
            {
                return Ok(());
            }
            _ => {}
        }
        match self.dialect.notification(message, self.link.out()) {
            Noted::Passed => {}
            Noted::Dropped => self.core.metrics.message_dropped(metrics::Dropped::Unknown),
            Noted::Cancelled(call) => {
                let id = message.request_id().map(|span| span.of(message.bytes()));
                self.cancelled(call, id.unwrap_or_default());
            }
        }
        Ok(())
    }

    /// The client wants no answer to a call, which it knows by a raw id.
    fn cancelled(&mut self, call: CallId, id: &[u8]) {
        let Some(ended) = self.calls.end(call) else {
            return;
        };
        self.unanswered(call, &ended.effect);
        self.link.set_calls(self.calls.count());
        self.call_ended(&ended, metrics::Outcome::Cancelled);
        let forgotten = self.streams.forgets(ended.stream, id);
        self.stored(forgotten);
        let finished = self.streams.finish_call(ended.stream, None);
        self.stored(finished);
    }

    /// Takes an array (2025-03-26 basic, "Batching"), all of it or nothing.
    fn batch(
        &mut self,
        items: Vec<Result<Message, Refusal>>,
        (form, mut calls): (Form, std::vec::IntoIter<Seats>),
        reply: oneshot::Sender<Answer>,
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
        } else if let Err(error) = self.check_streams() {
            let _ = reply.send(Answer::Refused(error));
            return;
        } else {
            self.begin(requests, form, true, reply)
        };
        for message in &messages {
            match message.kind() {
                Kind::Request if message.method() == Method::Ping => {
                    self.send(message, stream, (form, Seats::new()));
                }
                Kind::Request => {
                    let seats = calls.next().unwrap_or_default();
                    self.send(message, stream, (form, seats));
                }
                // Checked before: what can fail here is only a child that does not read.
                _ => _ = self.one_way(message),
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

fn effect(message: &Message) -> Effect {
    let effect = match message.method() {
        // An unknown level is left to the child to refuse.
        Method::SetLevel => message
            .level()
            .filter(|level| routing::level(level).is_some())
            .map(|level| Effect::Level((&*level).into())),
        Method::Subscribe => message.subject().map(Effect::Subscribed),
        Method::Unsubscribe => message.subject().map(Effect::Unsubscribed),
        Method::ToolsList => Some(Effect::Tools),
        _ => None,
    };
    effect.unwrap_or_default()
}

fn class(message: &Message) -> metrics::Method {
    match &*message.method_name() {
        "tools/call" => metrics::Method::Tool,
        "resources/read" | "prompts/get" => metrics::Method::Read,
        name if name.ends_with("/list") => metrics::Method::List,
        _ => metrics::Method::Other,
    }
}

//! Messages from the backend to the client, exits of its child, and the timers of the session.

use std::{
    path::Path,
    sync::{Arc, LazyLock},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use memchr::memmem::Finder;
use tokio::time::Instant;

use super::{link::BackendEvent, task::Session};
use crate::{
    auth::{Listed, policy},
    backend::{
        NO_ANSWER,
        child::{
            ChildEvent,
            stderr::{last_words, log_own_error},
        },
        dialect::{AskId, CallId, Legacy, ServerMessage},
        shared::{mailbox, routing},
    },
    declare::{Policy, Server},
    hub::{
        Transport,
        call::{Call, CallClock, CallError, Effect, NewAsk, Overdue},
        core::or_never,
        stream::About,
    },
    protocol::{Kind, LISTENER_STREAM, Message, StreamId, json, jsonrpc, modern},
    state::{BoxFuture, StoreError},
    telemetry::{Dropped, Outcome, semconv},
};

/// The part of an event that takes time, which few have. The task of a session would keep room for it as
/// long as the session lives.
pub(super) type Rest<'s> = Option<BoxFuture<'s, ()>>;

/// A list in the response to a call, before it is filtered.
struct List {
    listed: Listed,
    policy: Arc<Policy>,
    line: Bytes,
    stream: StreamId,
    has_effect: bool,
}

impl Session {
    /// Handles an event of the backend, but for the rest that takes time.
    pub(super) fn handle_backend(&mut self, event: BackendEvent) -> Rest<'_> {
        match event {
            BackendEvent::Own(event) => return self.handle_child(event),
            BackendEvent::Shared(mailbox::ToSession::Message(message)) => {
                return self.handle_message(*message);
            }
            BackendEvent::Shared(mailbox::ToSession::InvalidResponse(call)) => {
                self.fail_invalid_call(call);
            }
            BackendEvent::Shared(mailbox::ToSession::Closing(loss)) => {
                self.link.close(loss);
                self.leave_if_idle();
            }
            BackendEvent::Shared(mailbox::ToSession::Ended(loss)) => {
                self.shared_child_ended(loss);
            }
            BackendEvent::Acquired(acquired) => {
                return Some(Box::pin(self.backend_acquired(acquired)));
            }
        }
        None
    }

    fn handle_child(&mut self, event: ChildEvent) -> Rest<'_> {
        match event {
            ChildEvent::Line(line) => return self.handle_line(line),
            ChildEvent::Translated => self.count_unsolicited(),
            ChildEvent::TooLong => {
                tracing::warn!(
                    server.name = self.client.server().name,
                    session.id = self.id.short(),
                    "a line above limits.line: the child is ended"
                );
                self.core.metrics.messages_dropped.add(Dropped::TooLarge);
                self.child_lost(CallError::TOO_LONG);
            }
            // Its exit follows, and says why.
            ChildEvent::Closed if self.link.await_exit(Instant::now() + EXIT) => {
                self.wake_by(Instant::now() + EXIT);
            }
            ChildEvent::Closed => self.child_lost(CallError::EXITED),
            ChildEvent::Exited(exit) if self.link.initializing().is_some() => {
                self.start_ended(&exit);
            }
            ChildEvent::Exited(exit) => {
                tracing::warn!(
                    server.name = self.client.server().name, session.id = self.id.short(),
                    code = exit.code, signal = exit.signal,
                    stderr = %last_words(&exit.stderr_tail),
                    "the child ended by itself"
                );
                self.child_lost(CallError::EXITED);
            }
        }
        None
    }

    fn handle_line(&mut self, line: Bytes) -> Rest<'_> {
        match Message::parse_line(line) {
            Ok(message) => self.handle_message(message),
            Err(line) => {
                self.handle_invalid_line(&line);
                None
            }
        }
    }

    /// Handles a message of the backend.
    fn handle_message(&mut self, message: Message) -> Rest<'_> {
        if let Some(initialize) = self.link.initialize_id()
            && matches!(message.kind(), Kind::Result | Kind::Error)
            && message
                .id()
                .is_some_and(|id| id == initialize.to_string().as_bytes())
        {
            return Some(Box::pin(self.child_initialized(message)));
        }
        self.log_cancellation("server", &message);
        let said = self.dialect.line(&message, self.link.out_now());
        self.count_message(&said);
        match self.route_message(said, message) {
            Ok(Some(list)) => return Some(Box::pin(self.finish_list(list))),
            Ok(None) => self.handle_write(Ok(())),
            Err(error) => self.handle_write(Err(error)),
        }
        None
    }

    /// Writes a message of the backend to the stream that it belongs to; returns a list that is to be
    /// filtered first.
    fn route_message(
        &mut self,
        said: ServerMessage,
        message: Message,
    ) -> Result<Option<List>, StoreError> {
        let now = Instant::now();
        let (stream, line) = match said {
            ServerMessage::Response { call, id } => {
                return self.finish_call(call, &id, message);
            }
            ServerMessage::Progress { call, line } => (self.calls.route_progress(call, now), line),
            ServerMessage::Ask { ask, task, line } => {
                self.route_ask(ask, task.as_deref(), line)?;
                return Ok(None);
            }
            ServerMessage::AskCancelled { ask, line } => {
                let ask = self.calls.settle(ask, now);
                let stream = ask.map(|ask| self.streams.cancelled_on(ask.stream, ask.number));
                (stream, line)
            }
            // A log message of a shared child belongs to none of its calls.
            ServerMessage::Log { line, .. } if self.link.is_shared() => {
                (Some(LISTENER_STREAM), line)
            }
            ServerMessage::Log { task, line } => {
                (self.calls.route(About::Log(task.as_deref())), line)
            }
            ServerMessage::Notification(_) if self.client.is_muted(&message) => {
                (None, Bytes::new())
            }
            ServerMessage::Notification(line) => (self.calls.route(About::Other), line),
            said @ (ServerMessage::Answered(_) | ServerMessage::Undeclared { .. }) => {
                self.answered_child(&said);
                return Ok(None);
            }
            ServerMessage::UnwantedTask(task) => {
                self.cancel_task(&task);
                return Ok(None);
            }
            ServerMessage::OwnResponse { method } => {
                self.own_response(method, &message);
                return Ok(None);
            }
            ServerMessage::Dropped(why) => {
                self.link.end_probe();
                tracing::debug!(
                    session.id = self.id.short(),
                    why,
                    "a message of the child is dropped"
                );
                self.core.metrics.messages_dropped.add(Dropped::Unknown);
                return Ok(None);
            }
        };
        let Some(stream) = stream else {
            self.core.metrics.messages_dropped.add(Dropped::NoStream);
            return Ok(None);
        };
        self.write_message(stream, line, now)?;
        Ok(None)
    }

    /// Handles the response to a request of the gateway itself.
    fn own_response(&mut self, method: &'static str, message: &Message) {
        self.link.end_probe();
        if let Some(error) = message.error() {
            let server = self.client.server();
            log_own_error((&server.tenant, &server.name), method, error);
        }
    }

    /// Cancels the task of a call that has ended. Its client never learned the id, and "for task-augmented
    /// requests, the `tasks/cancel` request MUST be used" (2025-11-25 cancellation, "Behavior
    /// Requirements" 3), which a server may not know (tasks, "Server Capabilities").
    fn cancel_task(&mut self, task: &[u8]) {
        self.link.end_probe();
        let tasks = json::get(&self.replay.capabilities, "tasks");
        if tasks.and_then(|tasks| json::get(tasks, "cancel")).is_some() {
            self.dialect.cancel_task(task, self.link.out());
            self.link.try_flush();
            // Its clock begins.
            self.wake_by(Instant::now());
        }
    }

    /// The raw id of the task that a call of a client without sessions became: such a client knows no tasks of
    /// a session, and waits for the result.
    fn task_to_follow(&self, call: &Call, message: &Message) -> Option<Box<[u8]>> {
        // Asked first: to look for a member reads the whole of a result, which may be long.
        if !call.wants_task || self.client.transport() != Transport::Stateless {
            return None;
        }
        let task = json::get(message.result()?, "task")?;
        json::get(task, "taskId").map(Into::into)
    }

    /// Asks for the result of the task that a call became, in place of its client.
    fn follow_task(&mut self, (id, call): (CallId, Call), task: &[u8], clients_id: &[u8]) {
        let params = [br#"{"taskId":"#, task, b"}"].concat();
        let mut line = BytesMut::new();
        jsonrpc::push_request(clients_id, "tasks/result", Some(&params), &mut line);
        let request = Message::parse(line.freeze());
        let request = request.expect("the parts of messages that were parsed");
        self.link.touch(Instant::now());
        let next = self.dialect.request(&request, None, self.link.out());
        self.link.try_flush();
        let clocks = self.client.server().clocks_of(call.tool.as_deref());
        let clock = CallClock::start(call.began, None, or_never(clocks.call_max));
        self.calls.keep_task(id, task, clock.deadline());
        self.wake_by(clock.deadline());
        let call = Call {
            task: Some(task.into()),
            wants_task: false,
            clock,
            ..call
        };
        self.calls.begin(next, call);
    }

    /// Cancels the task whose result a call waits for, if its client cannot.
    pub(super) fn abandon_task(&mut self, call: CallId) {
        let is_stateless = self.client.transport() == Transport::Stateless;
        let task = self.calls.task_of(call).filter(|_| is_stateless);
        let Some(task) = task.map(Box::<[u8]>::from) else {
            return;
        };
        self.calls.forget_task(&task);
        self.cancel_task(&task);
    }

    /// Handles a request of the child that the gateway has answered itself.
    fn answered_child(&mut self, said: &ServerMessage) {
        self.link.try_flush();
        let (how, lacking) = match *said {
            ServerMessage::Undeclared { capability, how } => (how, Some(capability)),
            ServerMessage::Answered(how) => (how, None),
            _ => return,
        };
        tracing::debug!(
            server.name = self.client.server().name,
            session.id = self.id.short(),
            how,
            "the gateway answered a request of the child"
        );
        if let Some(capability) = lacking {
            self.end_for_lack_of(capability);
        }
    }

    /// Writes a request of the child to the stream that it belongs to. Clients without sessions answer none on the
    /// listener.
    fn route_ask(&mut self, id: AskId, task: Option<&[u8]>, line: Bytes) -> Result<(), StoreError> {
        let now = Instant::now();
        let stream = self.calls.route(About::Ask(task));
        let stream = stream.unwrap_or(LISTENER_STREAM);
        if stream == LISTENER_STREAM && self.client.transport() == Transport::Stateless {
            self.refuse_ask(id, "the client cannot be asked beside its requests");
            return Ok(());
        }
        let Some(line) = self.streams.admit(line) else {
            self.refuse_ask(id, "too much of this caller is under way");
            return Ok(());
        };
        let number = self.streams.message(stream, line)?;
        let server = self.client.server();
        let clocks = server.clocks_of(self.calls.asking_tool(task));
        let due = self.calls.ask(&NewAsk {
            id,
            stream,
            number,
            until: now + or_never(clocks.ask),
            claim_by: now + or_never(clocks.ask_unclaimed),
            now,
            task,
        });
        self.wake_by(due);
        Ok(())
    }

    fn write_message(
        &mut self,
        stream: StreamId,
        line: Bytes,
        now: Instant,
    ) -> Result<(), StoreError> {
        if let Some(line) = self.streams.admit(line) {
            self.streams.message(stream, line)?;
        }
        self.pace_child(stream, now);
        Ok(())
    }

    /// Ends a call with the response of the backend; returns a list that is to be filtered first.
    fn finish_call(
        &mut self,
        id: CallId,
        clients_id: &[u8],
        message: Message,
    ) -> Result<Option<List>, StoreError> {
        let Some(mut call) = self.calls.end(id) else {
            return Ok(None);
        };
        if let Some(task) = self.task_to_follow(&call, &message) {
            self.follow_task((id, call), &task, clients_id);
            return Ok(None);
        }
        let now = Instant::now();
        self.link.touch(now);
        self.link.set_calls(self.calls.count());
        let is_result = message.kind() == Kind::Result;
        let outcome = if is_result {
            Outcome::Result
        } else {
            Outcome::Error
        };
        let error = error_type(&call, &message);
        self.count_call(&mut call, outcome, error, || reason(&message));
        let has_effect = call.effect.is_recorded();
        if call.wants_task
            && let Some(task) = message
                .result()
                .and_then(|result| json::get(result, "task"))
            && let Some(name) = json::get(task, "taskId")
        {
            // 2025-11-25 tasks, "TTL and Resource Management": the client was told how long the task
            // lives. `session.max` and the quotas bound it, and without a ttl the longest call.
            let life = ttl(task).unwrap_or(or_never(self.client.server().clocks.call_max));
            let until = now + life.min(or_never(Duration::ZERO));
            self.calls.keep_task(id, name, until);
            self.wake_by(until);
        }
        if let Some(task) = &call.task {
            self.calls.forget_task(task);
        }
        if is_result {
            self.apply_effect(call.effect, &message);
        }
        let is_stateless = self.link.is_stateless();
        // After the effect, which is replayed to the next child.
        self.leave_if_idle();
        let mut line = message.into_bytes_with_id(clients_id);
        if is_stateless && self.client.transport() != Transport::Stateless {
            line = modern::for_session_client(call.method, line);
        }
        if let Some((listed, policy)) = call.list.take().filter(|_| is_result) {
            return Ok(Some(List {
                listed,
                policy,
                line,
                stream: call.stream,
                has_effect,
            }));
        }
        self.write_response(call.stream, line, has_effect)?;
        Ok(None)
    }

    /// Ends a call with a list, of which the client gets what it may use.
    async fn finish_list(&mut self, list: List) {
        let share = self.pacing.share();
        let cut = policy::filtered(&list.policy, list.listed, list.line, share).await;
        let line = self.page_cursors().sealed(list.listed, cut);
        let written = self.write_response(list.stream, line, list.has_effect);
        self.handle_write(written);
    }

    fn write_response(
        &mut self,
        stream: StreamId,
        line: Bytes,
        has_effect: bool,
    ) -> Result<(), StoreError> {
        if has_effect {
            return self.finish_recorded_call(stream, line);
        }
        self.streams.finish_call(stream, Some(line))
    }

    /// Applies the change that the result of a call makes in the session.
    fn apply_effect(&mut self, effect: Effect, message: &Message) {
        match effect {
            Effect::None => {}
            Effect::Level(level) => {
                self.replay.level = Some(level);
                self.record_changed();
            }
            Effect::Subscribed(uri, memory) => {
                self.replay.subscriptions.insert(uri, memory);
                self.record_changed();
            }
            Effect::Unsubscribed(uri) => {
                self.replay.subscriptions.remove(&uri);
                self.record_changed();
            }
            Effect::Tools => {
                let tools = message
                    .result()
                    .and_then(|result| json::get(result, "tools"));
                if let Some(tools) = tools {
                    self.core.tools.compare(self.client.server(), tools);
                }
            }
        }
    }

    /// Skips a line that is no message; if it was meant as the response to calls, they fail.
    fn handle_invalid_line(&mut self, line: &[u8]) {
        self.count_message(&ServerMessage::Dropped("no message"));
        self.core.metrics.noise_lines.add(1);
        tracing::debug!(
            server.name = self.client.server().name,
            session.id = self.id.short(),
            bytes = line.len(),
            "a line of the child that is no message is skipped"
        );
        self.link.keep_noise(line);
        for call in routing::salvage_calls(line) {
            if self.link.initialize_id() == Some(call) {
                self.child_lost(CallError::INVALID);
            } else {
                self.fail_invalid_call(call);
            }
        }
    }

    /// Counts a message of the child, other than a response.
    fn count_message(&mut self, said: &ServerMessage) {
        if !matches!(said, ServerMessage::Response { .. }) {
            self.count_unsolicited();
        }
    }

    fn count_unsolicited(&mut self) {
        if let Some(until) = self.pacing.count(Instant::now()) {
            self.wake_by(until);
        }
    }

    /// Runs the timers that are due, and sets the alarm for the next one.
    pub(super) fn tick(&mut self) {
        let now = Instant::now();
        let held = self.streams.open_due(now).unwrap_or_else(|error| {
            self.handle_write(Err(error));
            // The other held responses that are due are opened when the session may serve again.
            Some(now)
        });
        if self.pacing.is_patience_over(now) {
            self.streams.give_up();
            self.stop_waiting_for_readers();
        }
        self.pacing.sweep_burst(now);
        if !self.may_read_child() {
            self.link.postpone_probe(now);
        }
        if self.link.probe_deadline().is_some_and(|at| at <= now) {
            tracing::warn!(
                server.name = self.client.server().name,
                session.id = self.id.short(),
                "the child does not answer a ping: it is ended"
            );
            self.child_lost(CallError::EXITED);
            return;
        }
        if !self.check_start(now) {
            return;
        }
        if !self.link.is_up() {
            // The clock of a call is the child's time, and there is no child yet.
            self.calls.restart(now);
        }
        let own = self.sweep_own(now);
        let tasks = self.calls.sweep_tasks(now);
        let idle = self.stop_idle_child(now);
        let pings = [self.ping_child(now), self.ping_client(now)];
        let (overdue, next) = {
            let Self { calls, streams, .. } = self;
            calls.overdue(now, |stream, number| streams.is_written(stream, number))
        };
        for due in overdue {
            self.end_overdue(due, now);
        }
        let record = self.write_record(now);
        let (end, reason) = self.expiry(now);
        if end <= now {
            self.lifetime.end(reason);
        }
        let others = [
            next,
            held,
            self.pacing.deadline(),
            self.link.probe_deadline(),
            self.link.initialize_deadline(),
            self.link.silence(),
            own,
            tasks,
            idle,
            record,
        ];
        let others = others.into_iter().chain(pings);
        self.set_alarm(others.flatten().fold(end, Instant::min));
    }

    /// Ends the wait for answers to requests of the gateway itself that are overdue; returns the time of the
    /// next one.
    fn sweep_own(&mut self, now: Instant) -> Option<Instant> {
        let server = self.client.server();
        let limit = or_never(server.clocks.call);
        let names = (&*server.tenant, &*server.name);
        let own = self.dialect.own_requests();
        let next = own.sweep((now, limit), names, self.link.out());
        self.link.try_flush();
        next
    }

    /// Looks at the child that has to answer `initialize`; false if it is lost.
    fn check_start(&mut self, now: Instant) -> bool {
        let deadline = self.link.initialize_deadline();
        if deadline.is_some_and(|at| at <= now) {
            if self.link.is_closed() {
                self.child_lost_by(CallError::EXITED, "it closed its stdout");
            } else {
                self.child_lost_by(CallError::TIMEOUT, NO_ANSWER);
            }
            return false;
        }
        if self.link.is_silent(now) {
            tracing::warn!(
                tenant.id = self.client.tenant().name,
                server.name = self.client.server().name,
                session.id = self.id.short(),
                no_message = self.link.noise(),
                "the server has not answered initialize for 5 s: is it an MCP server on stdio{}?",
                downloading(self.client.server())
            );
        }
        true
    }

    /// Pings the session's own child while it has no call (`clocks.ping`): one that works may be busy, and
    /// the clock of its call watches over it. Returns the time of the next ping.
    fn ping_child(&mut self, now: Instant) -> Option<Instant> {
        let every = self.client.server().clocks.ping;
        if every.is_zero() || !self.link.is_own() {
            return None;
        }
        if self.link.next_ping(every) <= now {
            self.link.count_ping(now);
            if self.calls.is_empty() {
                self.dialect.ping(self.link.out());
                self.link.begin_probe(now);
                self.link.try_flush();
            }
        }
        Some(self.link.next_ping(every))
    }

    /// Pings the client over its listener (`session.ping`). If no response is received, the connection is
    /// stale and is closed (2025-11-25 ping, "Behavior Requirements" 2): a client that lives connects again.
    /// Returns the time of the next ping.
    fn ping_client(&mut self, now: Instant) -> Option<Instant> {
        let every = self.core.config.session.ping;
        // Clients without sessions answer no request on this stream.
        let is_stateless = self.client.transport() == Transport::Stateless;
        if every.is_zero() || is_stateless || !self.lifetime.is_ready() {
            return None;
        }
        if !self.streams.has_reader(now) {
            self.pings.pause();
            return None;
        }
        if self.pings.is_due(now, every) {
            if let Some(number) = self.pings.take_unanswered() {
                tracing::info!(
                    tenant.id = self.client.tenant().name,
                    server.name = self.client.server().name,
                    session.id = self.id.short(),
                    "the client does not answer a ping: its listener is closed"
                );
                self.streams.withdraw(LISTENER_STREAM, number);
                self.streams.release_listener();
                self.pings.pause();
                return None;
            }
            let id = self.pings.begin(self.lease.fence());
            let mut line = BytesMut::new();
            jsonrpc::push_request(id.as_bytes(), "ping", None, &mut line);
            match self.streams.message(LISTENER_STREAM, line.freeze()) {
                Ok(number) => self.pings.sent(number, now + every),
                Err(error) => {
                    self.pings.pause();
                    self.handle_write(Err(error));
                }
            }
        }
        self.pings.next()
    }

    fn end_overdue(&mut self, due: Overdue, now: Instant) {
        match due {
            Overdue::Ask(ask) => self.refuse_ask(ask, "the client did not answer in time"),
            Overdue::Call(call) => {
                self.abandon_task(call);
                Legacy::cancel(call, "the call took too long", self.link.out());
                if let Some(member) = self.link.member() {
                    member.probe();
                } else {
                    self.dialect.ping(self.link.out());
                    self.link.begin_probe(now);
                }
                self.link.try_flush();
                self.fail_call(call, CallError::TIMEOUT);
            }
        }
    }
}

/// The type of the error of a response: the code of an error, or that of a tool whose result is one.
fn error_type(call: &Call, message: &Message) -> Option<&'static str> {
    if let Some(error) = message.error() {
        return Some(semconv::error_type(error));
    }
    // Most results are no errors and may be long: they are searched, not parsed.
    let is_tool = call.tool.is_some();
    let result = message.result().filter(|_| is_tool)?;
    IS_ERROR.find(result)?;
    let is_error = json::get(result, "isError") == Some(b"true");
    is_error.then_some(semconv::TOOL_ERROR)
}

/// Made once: making it takes longer than a search in a short result.
static IS_ERROR: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"isError\""));

/// The message of the error of a response; none for a result, which is never logged.
fn reason(message: &Message) -> Option<String> {
    CallError::said(message.error()?)
}

/// The time to live of a task (2025-11-25 tasks, "TTL and Resource Management"); none is unlimited.
fn ttl(task: &[u8]) -> Option<Duration> {
    let ms = str::from_utf8(json::get(task, "ttl")?).ok()?;
    ms.parse().ok().map(Duration::from_millis)
}

/// What a server without an answer may be doing, if its program fetches packages.
fn downloading(server: &Server) -> String {
    let program = Path::new(&server.launch.command).file_name();
    match program.and_then(|name| name.to_str()) {
        Some(name @ ("npx" | "uvx")) if server.recipe.is_none() => {
            format!(", or is {name} still downloading it")
        }
        _ => String::new(),
    }
}

/// The time from the end of a child's stdout to its exit.
const EXIT: Duration = Duration::from_secs(1);

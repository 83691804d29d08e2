//! Event streams of the modern era: the response to a call, and the notifications of a subscription.
//! Their events have no ids, since "Resumable SSE streams via Last-Event-ID are not supported"
//! (2026-07-28 streamable-http, "Receiving Messages").

use std::{collections::VecDeque, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use tokio::{
    select,
    sync::oneshot,
    time::{Instant, sleep_until},
};

use super::modern_request::{ModernRequest, listed};
use crate::http::{
    admission::Front,
    reply::{Part, Source},
};
use crate::{
    auth::Access,
    base::budget::{Budget, Drawn, LargeWork},
    declare::TenantProfile,
    hub::{
        CallError,
        stateless::{CallInFlight, Parked, Stateless, Subscription},
        stream::{Next, Reader},
        tasks::{Begun, Tasks, WatchedTasks},
    },
    protocol::{
        ClientCapabilities, Kind, Lacking, Message, Method,
        event::push_message,
        jsonrpc, log_level,
        modern::{
            self, AnswersAhead, Completion, Filter, InputRequest, RequestMeta, WantedInput,
            is_mirrored, task_created, task_notification, with_subscription,
        },
    },
    state::LogShare,
};

/// Makes the responses to a request out of the answers of its server.
pub(super) struct Responder {
    stateless: Arc<Stateless>,
    tasks: Arc<Tasks>,
    /// The request, which names a parked call.
    request: Message,
    completion: Completion,
    /// Whether the client can be asked to visit a URL before it calls again.
    may_visit: bool,
    tenant: Arc<TenantProfile>,
}

impl Responder {
    pub(super) fn new(
        front: &Front,
        request: &ModernRequest<'_>,
        server_info: Option<Bytes>,
    ) -> Self {
        Self {
            stateless: Arc::clone(&front.stateless),
            tasks: Arc::clone(&front.tasks),
            request: request.message.clone(),
            completion: request.completion(server_info),
            may_visit: is_mirrored(&request.method) && request.caller.visits_urls(),
            tenant: Arc::clone(request.caller.access.tenant()),
        }
    }

    /// The response with the answer of a server.
    pub(super) fn response(&self, call: &CallInFlight, answer: Bytes) -> Bytes {
        let access = call.access();
        let answer = listed(&self.request, access, answer);
        let Ok(message) = Message::parse(answer.clone()) else {
            return answer;
        };
        if let Some(round) = call.carried()
            && let Some(wanted) = WantedInput::in_answer(&message)
        {
            return self.carried(access, wanted, round + 1);
        }
        if self.may_visit
            && let Some((asks, ticket)) = self.stateless.visits(access, &self.request, &message)
        {
            return self.input_required(&asks, &ticket);
        }
        self.completion.complete(&message)
    }

    /// The response with what a server of this era asks, or the error where its client cannot be asked.
    fn carried(&self, access: &Access, wanted: WantedInput, round: u32) -> Bytes {
        let state = wanted.state.clone();
        let asks = wanted.into_requests();
        let declared = RequestMeta::of(&self.request).capabilities.unwrap_or(b"{}");
        let declared = ClientCapabilities::declared_in(declared);
        let mut undeclared = asks
            .iter()
            .filter_map(|ask| declared.refusal(&ask.message()?));
        if let Some(lacking) = undeclared.next() {
            let data = Lacking::data(lacking.capability);
            return self.error(Lacking::CODE, Lacking::MESSAGE, Some(&data));
        }
        let stateless = &self.stateless;
        match stateless.carry(access, &self.request, state.as_deref(), round) {
            Ok(ticket) => self.input_required(&asks, &ticket),
            Err(why) => self.error(-32603, why, None),
        }
    }

    fn error(&self, code: i32, why: &str, data: Option<&str>) -> Bytes {
        let mut line = BytesMut::new();
        jsonrpc::push_error(&self.completion.id, code, why, data, &mut line);
        line.freeze()
    }

    fn input_required(&self, asks: &[InputRequest], ticket: &str) -> Bytes {
        let Completion {
            id, server_info, ..
        } = &self.completion;
        modern::input_required(id, asks, ticket, server_info.as_deref())
    }
}

/// What a server says to a call, as its client gets it.
pub(super) struct CallStream {
    responder: Responder,
    /// The call and the reader of its stream, until it has ended, is parked, or is about to be a task.
    source: Option<(CallInFlight, Reader)>,
    share: LogShare,
    /// The least level of log messages.
    level: Option<u8>,
    /// The raw progress token of this round.
    token: Option<Bytes>,
    /// Events that were read and not yet given.
    read: VecDeque<Bytes>,
    asks: Vec<InputRequest>,
    /// What the client has answered ahead, once the server asks for what it may have.
    ahead: Option<AnswersAhead>,
    /// The time at which the client is asked.
    ask_at: Option<Instant>,
    /// The latest such time.
    ask_by: Option<Instant>,
    /// The time at which it becomes a task.
    task_at: Option<Instant>,
    /// The task that it is about to be.
    task: Option<oneshot::Receiver<Begun>>,
    round: u32,
}

/// The next step of a call.
pub(super) enum Step {
    /// A notification.
    Notification(Bytes),
    /// The response, which ends the stream.
    Final(Bytes),
    /// The session of the call has ended without a response to it.
    Over,
}

/// The time that a server has to ask more after each question before its client is asked: servers ask several
/// things at once, and a busy machine takes a while to read them.
const GATHER: Duration = Duration::from_millis(50);
/// The longest time from the first question.
const GATHER_MAX: Duration = Duration::from_millis(500);

impl CallStream {
    /// The stream of a call that was begun.
    pub(super) fn new(
        front: &Front,
        request: &ModernRequest<'_>,
        call: CallInFlight,
        reader: Reader,
    ) -> Self {
        let level = request.level.as_deref().and_then(log_level);
        let task_at = request.task_after().map(|after| Instant::now() + after);
        Self {
            responder: Responder::new(front, request, call.server_info()),
            share: reader.budgets().clone(),
            source: Some((call, reader)),
            level,
            token: request.progress_token.map(Bytes::copy_from_slice),
            read: VecDeque::new(),
            asks: Vec::new(),
            ahead: None,
            ask_at: None,
            ask_by: None,
            task_at,
            task: None,
            round: 0,
        }
    }

    /// The stream of a parked call, whose client has answered.
    pub(super) fn resumed(front: &Front, request: &ModernRequest<'_>, parked: Parked) -> Self {
        let Parked {
            call,
            reader,
            asks,
            round,
            ..
        } = parked;
        Self {
            asks,
            round,
            ..Self::new(front, request, call, reader)
        }
    }

    /// Waits for the next step. Cancel-safe.
    pub(super) async fn step(&mut self) -> Step {
        loop {
            while let Some(event) = self.read.front() {
                let turn = LargeWork::at_once(&self.responder.tenant.name, event.len());
                if let Some(event) = self.read.pop_front()
                    && let Some(step) = turn.run(|| self.translate(event))
                {
                    return step;
                }
            }
            if let Some(task) = &mut self.task {
                let begun = task.await;
                self.task = None;
                match begun {
                    Ok(Ok(task)) => {
                        return Step::Final(task_created(&self.responder.completion.id, &task));
                    }
                    Ok(Err(source)) => self.source = Some(*source),
                    Err(_) => return Step::Over,
                }
            }
            let Some((_, reader)) = &mut self.source else {
                return Step::Over;
            };
            let ask_at = self.ask_at;
            // "SHOULD resolve all MRTR exchanges synchronously before" it (ext-tasks, "Task Creation").
            let task_at = self.task_at.filter(|_| self.asks.is_empty());
            select! {
                biased;
                next = reader.next() => match next {
                    Next::Events(events) => {
                        self.read.extend(events.into_iter().map(|(_, event)| event));
                    }
                    // Its session has ended.
                    Next::Finished | Next::Released => {
                        self.source = None;
                        return Step::Over;
                    }
                },
                () = sleep_until(ask_at.unwrap_or_else(Instant::now)), if ask_at.is_some() => {
                    (self.ask_at, self.ask_by) = (None, None);
                    if is_mirrored(&self.responder.request.method_name()) {
                        return self.park();
                    }
                    let asks = std::mem::take(&mut self.asks);
                    if let Some((call, _)) = &self.source {
                        call.refuse(&asks);
                    }
                }
                () = sleep_until(task_at.unwrap_or_else(Instant::now)), if task_at.is_some() => {
                    self.task_at = None;
                    let request = &self.responder.request;
                    self.task = self.source.take().map(|(call, reader)| {
                        self.responder.tasks.begin(call, reader, request)
                    });
                }
            }
        }
    }

    /// The step that an event of the server is; none for one that this client does not get.
    fn translate(&mut self, event: Bytes) -> Option<Step> {
        let message = Message::parse(event).ok()?;
        match (message.kind(), message.method()) {
            (Kind::Result | Kind::Error, _) => {
                let (call, _) = self.source.take()?;
                // What it has asked meanwhile is no part of the call any more.
                call.refuse(&self.asks);
                let answer = message.bytes().clone();
                let response = self.responder.response(&call, answer);
                call.finish();
                Some(Step::Final(response))
            }
            (Kind::Request, _) => {
                let ask = InputRequest::of(&message);
                // "Each value MUST be" one of three kinds of requests (2026-07-28 mrtr, "InputRequests").
                if !InputRequest::is_one(&message.method_name()) {
                    if let Some((call, _)) = &self.source {
                        call.refuse(&[ask]);
                    }
                    return None;
                }
                if !self.answer_ahead(&ask) {
                    self.gather(ask);
                }
                None
            }
            (Kind::Notification, Method::Progress) => self.progress(&message),
            // "The server MUST NOT emit notifications/message for a request that does not include this
            // field" (2026-07-28 logging, "Per-request log level").
            (Kind::Notification, Method::Log) => {
                let level = message.level().as_deref().and_then(log_level)?;
                let is_wanted = self.level.is_some_and(|least| level >= least);
                is_wanted.then(|| Step::Notification(message.bytes().clone()))
            }
            (Kind::Notification, Method::Cancelled) => {
                let ask = message.request_id().map(|span| span.of(message.bytes()));
                self.asks.retain(|known| Some(&*known.id) != ask);
                if self.asks.is_empty() {
                    (self.ask_at, self.ask_by) = (None, None);
                }
                None
            }
            // "These notifications MUST relate to the originating client request" (2026-07-28
            // streamable-http, "Receiving Messages").
            (Kind::Notification, _) => None,
        }
    }

    /// Keeps what the server asks until its client is asked. It stays until the client answers (`clocks.ask`), so that
    /// it is refused where the share has no room for it.
    fn gather(&mut self, mut ask: InputRequest) {
        let Some(drawn) = self.share.draw(ask.request.len() as u64) else {
            if let Some((call, _)) = &self.source {
                call.refuse_without_room(&ask);
            }
            return;
        };
        ask.request = drawn.until_dropped(ask.request);
        self.asks.push(ask);
        let now = Instant::now();
        let last = *self.ask_by.get_or_insert(now + GATHER_MAX);
        self.ask_at = Some(last.min(now + GATHER));
    }

    /// Answers what the server asks, if the client has done so ahead.
    fn answer_ahead(&mut self, ask: &InputRequest) -> bool {
        let Some((call, _)) = self.source.as_ref().filter(|_| ask.has_key()) else {
            return false;
        };
        let Responder {
            request, tenant, ..
        } = &self.responder;
        let ahead = self.ahead.get_or_insert_with(|| {
            let turn = LargeWork::at_once(&tenant.name, request.bytes().len());
            turn.run(|| AnswersAhead::of(request))
        });
        let Some(answer) = ahead.take(ask) else {
            return false;
        };
        let turn = LargeWork::at_once(&tenant.name, answer.len());
        turn.run(|| call.answer(ask, &answer));
        true
    }

    /// Progress under the token of this round.
    fn progress(&self, message: &Message) -> Option<Step> {
        let token = self.token.as_ref()?;
        let span = message.progress_token()?;
        if span.of(message.bytes()) == &**token {
            return Some(Step::Notification(message.bytes().clone()));
        }
        let mut line = BytesMut::with_capacity(message.bytes().len() + token.len());
        message.splice(&mut line, &[(span, token)]);
        Some(Step::Notification(line.freeze()))
    }

    /// Ends the response with the requests of the server, and parks the call until they are answered.
    fn park(&mut self) -> Step {
        let Some((call, mut reader)) = self.source.take() else {
            return Step::Over;
        };
        // What is asked is counted by itself.
        drop(reader.drawn_for(0));
        let responder = &self.responder;
        let asks = self.asks.clone();
        let parked = Parked::new(call, reader, asks, &responder.request, self.round);
        Step::Final(match responder.stateless.park(parked) {
            Ok(ticket) => responder.input_required(&self.asks, &ticket),
            Err(_) => CallError::EXITED.line(&responder.completion.id),
        })
    }
}

impl Source for CallStream {
    async fn next(&mut self) -> Part {
        let mut bytes = BytesMut::new();
        match self.step().await {
            Step::Notification(line) => {
                push_message(&mut bytes, "", &line);
                Part::More(bytes.freeze())
            }
            Step::Final(line) => {
                push_message(&mut bytes, "", &line);
                Part::Last(Some(bytes.freeze()))
            }
            Step::Over => {
                push_message(
                    &mut bytes,
                    "",
                    &CallError::EXITED.line(&self.responder.completion.id),
                );
                Part::Last(Some(bytes.freeze()))
            }
        }
    }

    fn budget(&self) -> &Arc<Budget> {
        self.share.memory()
    }

    fn drawn(&mut self, bytes: usize) -> Drawn {
        match &mut self.source {
            Some((_, reader)) => reader.drawn_for(bytes),
            None => self.share.on_its_way(bytes).hold(bytes as u64),
        }
    }

    fn took(&self) {
        if let Some((_, reader)) = &self.source {
            reader.took();
        }
    }
}

/// The notifications of a subscription.
pub(super) struct SubscriptionStream {
    /// The raw id of the request.
    id: Bytes,
    subscription: Subscription,
    reader: Reader,
    tasks: WatchedTasks,
    tenant: Arc<TenantProfile>,
}

impl SubscriptionStream {
    pub(super) fn new(
        request: &ModernRequest<'_>,
        subscription: Subscription,
        reader: Reader,
        tasks: WatchedTasks,
    ) -> Self {
        Self {
            id: Bytes::copy_from_slice(request.id()),
            subscription,
            reader,
            tasks,
            tenant: Arc::clone(request.caller.access.tenant()),
        }
    }

    /// The notification of a task.
    fn task(&self, state: &[u8]) -> Option<Bytes> {
        let message = Message::parse(task_notification(state)).ok()?;
        Some(with_subscription(&message, &self.id))
    }

    /// A notification of another session, if it is wanted. One that was or would be missed ends the subscription: the
    /// client subscribes again, and reads all anew.
    fn changed(&mut self, change: Option<Bytes>) -> Result<Option<Bytes>, Next> {
        let event = change.ok_or(Next::Released)?;
        let turn = LargeWork::at_once(&self.tenant.name, event.len());
        let share = self.reader.budgets();
        let copied = turn.run(|| {
            let hears = |message: &Message| self.subscription.hears(message);
            copied(heard(event, hears), share, &self.id)
        })?;
        let Some((line, drawn)) = copied else {
            return Ok(None);
        };
        self.reader.give(drawn);
        Ok(Some(line))
    }

    fn wanted(&self, event: Bytes) -> Option<Bytes> {
        let turn = LargeWork::at_once(&self.tenant.name, event.len());
        turn.run(|| {
            let message = heard(event, |message| self.subscription.hears(message))?;
            Some(with_subscription(&message, &self.id))
        })
    }
}

/// The notification in an event, if a subscription `hears` it.
fn heard(event: Bytes, hears: impl FnOnce(&Message) -> bool) -> Option<Message> {
    // Most of what is long is of no subscription.
    if !modern::is_change(&event) {
        return None;
    }
    Message::parse(event).ok().filter(hears)
}

/// A copy of what the subscription of this raw id has heard, with what was drawn for it before; an end without room for
/// it. What was not heard needs none.
fn copied(
    heard: Option<Message>,
    share: &LogShare,
    id: &[u8],
) -> Result<Option<(Bytes, Drawn)>, Next> {
    let Some(message) = heard else {
        return Ok(None);
    };
    let drawn = share.room_for(message.bytes().len());
    let drawn = drawn.ok_or(Next::Released)?;
    Ok(Some((with_subscription(&message, id), drawn)))
}

impl Source for SubscriptionStream {
    async fn next(&mut self) -> Part {
        let mut bytes = BytesMut::new();
        let share = self.reader.budgets().clone();
        loop {
            let next = tokio::select! {
                next = self.reader.next() => next,
                change = self.subscription.changes.next() => match self.changed(change) {
                    Ok(Some(line)) => {
                        push_message(&mut bytes, "", &line);
                        return Part::More(bytes.freeze());
                    }
                    Ok(None) => continue,
                    Err(end) => end,
                },
                (state, drawn) = self.tasks.next(&self.tenant.name, &share) => {
                    let Some(line) = self.task(&state) else { continue };
                    self.reader.give(drawn);
                    push_message(&mut bytes, "", &line);
                    return Part::More(bytes.freeze());
                }
            };
            match next {
                Next::Events(events) => {
                    for (_, event) in events {
                        if let Some(line) = self.wanted(event) {
                            push_message(&mut bytes, "", &line);
                        }
                    }
                    if !bytes.is_empty() {
                        return Part::More(bytes.freeze());
                    }
                }
                Next::Finished | Next::Released => {
                    let info = self.subscription.server_info();
                    let end = Filter::end(&self.id, info.as_deref());
                    push_message(&mut bytes, "", &end);
                    return Part::Last(Some(bytes.freeze()));
                }
            }
        }
    }

    fn budget(&self) -> &Arc<Budget> {
        self.reader.budget()
    }

    fn drawn(&mut self, bytes: usize) -> Drawn {
        self.reader.drawn_for(bytes)
    }

    fn took(&self) {
        self.reader.took();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::LONG_EVENT;

    /// A long change of a resource ended each subscription of a caller without room, also one for a list.
    #[test]
    fn a_change_that_a_subscription_does_not_hear_needs_no_room() {
        let budget = Budget::new(LONG_EVENT as u64);
        let share = LogShare {
            under_way: budget.share(),
            ..LogShare::plenty()
        };
        let uri = "x".repeat(LONG_EVENT);
        let copied = |is_heard: bool| {
            let event = format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{{"uri":"{uri}"}}}}"#
            );
            copied(heard(event.into(), |_| is_heard), &share, b"1")
        };
        assert!(matches!(copied(false), Ok(None)));
        assert!(matches!(copied(true), Err(Next::Released)));
        let event = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;
        let short = super::copied(heard(event.into(), |_| true), &share, b"1");
        let (line, drawn) = short.unwrap().expect("a short one needs none");
        assert!(line.len() > event.len() && drawn.amount() == event.len() as u64);
        assert_eq!(budget.used(), 0);
    }
}

//! Legacy dialect: sessions that begin with `initialize`, up to revision 2025-11-25.
//!
//! Every id and progress token is rewritten, in both directions. A state machine without IO,
//! streams, clocks or HTTP.

use std::{collections::VecDeque, ops::RangeInclusive};

use bytes::{BufMut, Bytes, BytesMut};

use super::id_blocks::IdLease;
use super::own_requests::OwnRequests;
use super::translated::{AskId, CallId, Forwarded, ServerMessage, SessionState};
use crate::base::Table;
use crate::protocol::{
    ClientCapabilities, Kind, Lacking, Message, Method, Span, Trace, initialize, json,
    jsonrpc::{push_cancelled, push_error, push_request, push_result},
    modern::ClientMeta,
};

/// Translation state of one child.
pub(crate) struct Legacy {
    last: u64,
    /// The range of ids.
    range: RangeInclusive<u64>,
    /// Where the next range comes from; none for a child of one session, whose ids wrap around.
    lease: Option<IdLease>,
    calls: Table<CallId, Original>,
    asks: Table<AskId, Original>,
    /// The gateway's own requests: one ping, what restored the state of the session, and cancellations of
    /// tasks.
    own: OwnRequests,
    /// What the child may ask: it is answered at once if its client declared nothing of the kind.
    client: ClientCapabilities,
    /// What a shared child is told of the client with each call during which it may ask.
    told: Option<Box<ClientMeta>>,
    /// Tokens of calls and asks that became tasks: valid for the task's lifetime
    /// (2025-11-25 progress, "Task-augmented requests").
    tasks: VecDeque<(u64, Box<[u8]>)>,
    /// Calls that requested a task and ended before the child told its id.
    unwanted: VecDeque<CallId>,
}

/// The original id and progress token of a request: raw, echoed byte for byte.
struct Original {
    id: Box<[u8]>,
    token: Option<Box<[u8]>>,
    wants_task: bool,
    is_initialize: bool,
}

/// Ids of a child of one session. Older SDKs hold an id in 32 bits with a sign.
const IDS: RangeInclusive<u64> = 1..=(1 << 31) - 1;

impl Default for Legacy {
    fn default() -> Self {
        Self {
            last: 0,
            range: IDS,
            lease: None,
            calls: Table::default(),
            asks: Table::default(),
            own: OwnRequests::default(),
            client: ClientCapabilities::default(),
            told: None,
            tasks: VecDeque::new(),
            unwanted: VecDeque::new(),
        }
    }
}

/// The most progress tokens of tasks; the oldest are dropped first.
const MAX_TASK_TOKENS: usize = 256;

/// The most calls whose tasks are unwanted before they are known; the oldest are dropped first.
const MAX_UNWANTED: usize = 256;

/// The most open requests of the child; further ones are refused at once.
const MAX_ASKS: usize = 256;

/// The most bytes that wait for the child when the gateway adds a line of its own: twice the bound
/// for lines of clients.
pub(super) const MAX_OWED: usize = 16 << 20;

impl Legacy {
    /// Starts ids apart from those of 63 earlier owners.
    pub(crate) fn rebase(&mut self, owner: u64) {
        self.last = (owner % 64) << 25;
    }

    /// Takes ids from a lease: a shared child knows a session by its ids.
    pub(crate) fn confine(&mut self, lease: IdLease) {
        self.range = lease.ids();
        self.last = *self.range.start();
        self.lease = Some(lease);
    }

    /// Forgets all open requests, which mean nothing to another child. Ids continue to grow, so that
    /// a late answer matches no other request.
    pub(crate) fn forget(&mut self) {
        (self.calls, self.asks, self.own, self.tasks) = Default::default();
        self.unwanted.clear();
    }

    /// Tells a shared child, which gets no `initialize` of the client, with each call what the client declared with
    /// this one; nothing without one.
    pub(crate) fn tell_with_calls(&mut self, initialize: Option<&Message>) {
        self.client = initialize.map(ClientCapabilities::of).unwrap_or_default();
        let meta = initialize.map(ClientMeta::of);
        self.told = meta.filter(ClientMeta::may_be_asked).map(Box::new);
    }

    /// Appends a client's request as a line, in this trace; returns its new id.
    pub(crate) fn request(
        &mut self,
        message: &Message,
        trace: Option<&Trace>,
        out: &mut BytesMut,
    ) -> CallId {
        self.request_as(message, None, trace, out)
    }

    /// Appends a client's `initialize`, with another revision if one is given.
    pub(crate) fn request_as(
        &mut self,
        message: &Message,
        revision: Option<&str>,
        trace: Option<&Trace>,
        out: &mut BytesMut,
    ) -> CallId {
        if message.method() == Method::Initialize {
            self.client = ClientCapabilities::of(message);
        }
        let marked = self.told.as_ref().and_then(|client| client.marked(message));
        let message = marked.as_ref().unwrap_or(message);
        let call = self.next();
        let number = call.to_string();
        let token = message.meta_progress_token();
        let quoted = revision.map(|revision| format!("\"{revision}\""));
        let traced = trace.map(|trace| trace.cuts(message)).unwrap_or_default();
        let mut cuts: Vec<(Span, &[u8])> = Vec::with_capacity(3 + traced.len());
        cuts.extend(traced.iter().map(|(span, text)| (*span, &**text)));
        cuts.extend(message.id_span().map(|span| (span, number.as_bytes())));
        cuts.extend(token.map(|span| (span, number.as_bytes())));
        cuts.extend(
            message
                .protocol_version()
                .zip(quoted.as_ref().map(String::as_bytes)),
        );
        push_line(message, cuts, out);
        let token = token.map(|span| span.of(message.bytes()).into());
        let id = message.id().unwrap_or_default().into();
        self.calls.insert(
            call,
            Original {
                id,
                token,
                wants_task: message.wants_task(),
                is_initialize: message.method() == Method::Initialize,
            },
        );
        call
    }

    /// Appends a client's notification as a line, unless it names a request that is not open, or `initialize`:
    /// it "MUST NOT be cancelled by clients" (2025-11-25 cancellation, "Behavior Requirements" 2), and the id
    /// that it had is that of another call while a restored child starts.
    pub(crate) fn notification(&mut self, message: &Message, out: &mut BytesMut) -> Forwarded {
        let (span, number, forwarded) = match message.method() {
            Method::Cancelled => {
                let named = message
                    .request_id()
                    .map(|span| (span, span.of(message.bytes())));
                let Some((span, id)) = named else {
                    return Forwarded::Dropped;
                };
                let newest = self
                    .calls
                    .iter()
                    .filter(|(_, call)| *call.id == *id && !call.is_initialize)
                    .map(|(id, _)| *id)
                    .max();
                let Some(call) = newest else {
                    return Forwarded::Dropped;
                };
                self.remove_unwanted(call);
                (span, call, Forwarded::Cancelled(call))
            }
            Method::Progress => {
                let Some(span) = message.progress_token() else {
                    return Forwarded::Dropped;
                };
                let ask = number(span.of(message.bytes()));
                let Some(token) = ask.and_then(|ask| self.token(&self.asks, ask)) else {
                    return Forwarded::Dropped;
                };
                push_line(message, vec![(span, token)], out);
                return Forwarded::Passed;
            }
            _ => {
                push_line(message, Vec::new(), out);
                return Forwarded::Passed;
            }
        };
        push_line(message, vec![(span, number.to_string().as_bytes())], out);
        forwarded
    }

    /// Appends a client's response as a line, if it answers an open request of the child. In place of one of
    /// a wrong shape the child gets an error: "The client MUST NOT write anything to the server's stdin that
    /// is not a valid MCP message" (2025-11-25 transports, "stdio").
    pub(crate) fn answer(&mut self, message: &Message, out: &mut BytesMut) -> Option<AskId> {
        let ask = number(message.id()?)?;
        if !message.has_shape() {
            return self.refuse(ask, "the client's answer is no response", out);
        }
        let original = self.asks.remove(&ask)?;
        push_line(message, vec![(message.id_span()?, &original.id)], out);
        self.keep_task(ask, original, message);
        Some(ask)
    }

    /// Ends an ask with an error of the gateway; returns it if it was open.
    pub(crate) fn refuse(
        &mut self,
        ask: AskId,
        message: &str,
        out: &mut BytesMut,
    ) -> Option<AskId> {
        let original = self.asks.remove(&ask)?;
        owe(out, |out| {
            push_error(&original.id, -32603, message, None, out);
        });
        Some(ask)
    }

    /// Ends a call by the gateway; returns the client's raw id. A late answer is dropped.
    pub(crate) fn abandon(&mut self, call: CallId) -> Option<Box<[u8]>> {
        self.remove_unwanted(call).map(|original| original.id)
    }

    /// Removes a call whose answer is not wanted any more, nor is the task that it may become.
    fn remove_unwanted(&mut self, call: CallId) -> Option<Original> {
        let original = self.calls.remove(&call)?;
        if original.wants_task {
            if self.unwanted.len() == MAX_UNWANTED {
                self.unwanted.pop_front();
            }
            self.unwanted.push_back(call);
        }
        Some(original)
    }

    /// Appends a cancellation of a call.
    pub(crate) fn cancel(call: CallId, reason: &str, out: &mut BytesMut) {
        push_cancelled(call, reason, out);
        out.put_u8(b'\n');
    }

    /// Appends the state of a session for a restored child.
    pub(crate) fn restore(&mut self, state: &SessionState<'_>, out: &mut BytesMut) {
        if state.is_initialized {
            out.extend_from_slice(initialize::INITIALIZED);
        }
        if let Some(level) = state.level {
            let id = self.own_request("logging/setLevel");
            out.extend_from_slice(&initialize::set_level(&id, level));
        }
        for uri in &state.subscriptions {
            let id = self.own_request("resources/subscribe");
            out.extend_from_slice(&initialize::subscribe(&id, uri));
        }
    }

    /// The id of a request of the gateway itself. "The request ID MUST NOT have been previously used by
    /// the requestor within the same session" (2025-11-25 basic, "Requests"): SDKs drop a request whose
    /// id is in flight.
    fn own_request(&mut self, method: &'static str) -> String {
        let id = self.next();
        self.own.begin(id, method);
        id.to_string()
    }

    /// A subscription to a raw URI that the gateway makes for a session.
    pub(crate) fn subscribe(&mut self, uri: &[u8]) -> (CallId, Bytes) {
        let call = self.next();
        self.own.begin(call, "resources/subscribe");
        (call, initialize::subscribe(&call.to_string(), uri))
    }

    /// Appends a ping of the gateway, unless one is on its way.
    pub(crate) fn ping(&mut self, out: &mut BytesMut) {
        if self.own.is_pinged() {
            return;
        }
        let id = self.own_request("ping");
        push_request(id.as_bytes(), "ping", None, out);
        out.put_u8(b'\n');
    }

    /// Appends the cancellation of a task, by its raw id.
    pub(crate) fn cancel_task(&mut self, task: &[u8], out: &mut BytesMut) {
        let params = [&br#"{"taskId":"#[..], task, b"}"].concat();
        let id = self.own_request("tasks/cancel");
        push_request(id.as_bytes(), "tasks/cancel", Some(&params), out);
        out.put_u8(b'\n');
    }

    /// The gateway's own requests that the child has not answered.
    pub(crate) fn own_requests(&mut self) -> &mut OwnRequests {
        &mut self.own
    }

    /// Translates a message of the child; answers of the gateway itself go to `out`.
    pub(crate) fn line(&mut self, message: &Message, out: &mut BytesMut) -> ServerMessage {
        match (message.kind(), message.method()) {
            (Kind::Result | Kind::Error, _) => self.response(message),
            (Kind::Request, Method::Ping) => {
                let id = message.id().unwrap_or_default();
                owe(out, |out| push_result(id, b"{}", out));
                ServerMessage::Answered("ping")
            }
            (Kind::Request, _) => match self.client.refusal(message) {
                Some(lacking) => {
                    let Lacking {
                        capability,
                        code,
                        text: how,
                    } = lacking;
                    refuse(message, code, how, out);
                    ServerMessage::Undeclared { capability, how }
                }
                None if self.asks.len() >= MAX_ASKS => {
                    refuse(message, -32603, "too many requests are open", out)
                }
                None => self.ask(message),
            },
            (Kind::Notification, Method::Progress) => self.progress(message),
            (Kind::Notification, Method::Cancelled) => self.ask_cancelled(message),
            (Kind::Notification, Method::Log) => ServerMessage::Log {
                task: message.related_task().map(Into::into),
                line: message.bytes().clone(),
            },
            (Kind::Notification, _) => ServerMessage::Notification(message.bytes().clone()),
        }
    }

    fn response(&mut self, message: &Message) -> ServerMessage {
        let Some(id) = message.id() else {
            return ServerMessage::Dropped("no_id");
        };
        let number = number(id);
        if let Some(method) = number.and_then(|id| self.own.end(id)) {
            return ServerMessage::OwnResponse { method };
        }
        let found = number.and_then(|call| Some((call, self.calls.remove(&call)?)));
        let Some((call, original)) = found else {
            let unwanted = number.and_then(|call| self.unwanted_task(call, message));
            return unwanted.map_or(
                ServerMessage::Dropped("unknown_id"),
                ServerMessage::UnwantedTask,
            );
        };
        let id = self.keep_task(call, original, message);
        ServerMessage::Response { call, id }
    }

    /// The raw id of the task that a call became whose answer is not wanted any more.
    fn unwanted_task(&mut self, call: CallId, answer: &Message) -> Option<Box<[u8]>> {
        let at = self
            .unwanted
            .iter()
            .position(|unwanted| *unwanted == call)?;
        self.unwanted.remove(at);
        json::get(json::get(answer.result()?, "task")?, "taskId").map(Into::into)
    }

    /// Keeps the token of a request that became a task: its progress continues under that token
    /// (2025-11-25 progress, "Progress Flow"), on either side. Returns the id of the request.
    fn keep_task(&mut self, id: u64, original: Original, answer: &Message) -> Box<[u8]> {
        if original.wants_task
            && answer.kind() == Kind::Result
            && let Some(token) = original.token
        {
            if self.tasks.len() == MAX_TASK_TOKENS {
                self.tasks.pop_front();
            }
            self.tasks.push_back((id, token));
        }
        original.id
    }

    fn ask(&mut self, message: &Message) -> ServerMessage {
        let ask = self.next();
        let number = ask.to_string();
        let token = message.meta_progress_token();
        let mut cuts: Vec<(Span, &[u8])> = Vec::with_capacity(2);
        cuts.extend(message.id_span().map(|span| (span, number.as_bytes())));
        cuts.extend(token.map(|span| (span, number.as_bytes())));
        cuts.sort_by_key(|(span, _)| span.start());
        let mut line = BytesMut::with_capacity(message.bytes().len() + 16);
        message.splice(&mut line, &cuts);
        let token = token.map(|span| span.of(message.bytes()).into());
        let id = message.id().unwrap_or_default().into();
        self.asks.insert(
            ask,
            Original {
                id,
                token,
                wants_task: message.wants_task(),
                is_initialize: false,
            },
        );
        ServerMessage::Ask {
            ask,
            task: message.related_task().map(Into::into),
            line: line.freeze(),
        }
    }

    fn progress(&mut self, message: &Message) -> ServerMessage {
        let Some(span) = message.progress_token() else {
            return ServerMessage::Dropped("no_token");
        };
        let call = number(span.of(message.bytes()));
        let found = call.and_then(|call| Some((call, self.token(&self.calls, call)?)));
        let Some((call, token)) = found else {
            return ServerMessage::Dropped("unknown_token");
        };
        ServerMessage::Progress {
            call,
            line: spliced(message, span, token),
        }
    }

    fn ask_cancelled(&mut self, message: &Message) -> ServerMessage {
        let Some(span) = message.request_id() else {
            return ServerMessage::Dropped("no_id");
        };
        let id = span.of(message.bytes());
        let found = self
            .asks
            .iter()
            .find(|(_, ask)| *ask.id == *id)
            .map(|(ask, _)| *ask);
        let Some(ask) = found else {
            return ServerMessage::Dropped("unknown_id");
        };
        self.asks.remove(&ask);
        ServerMessage::AskCancelled {
            ask,
            line: spliced(message, span, ask.to_string().as_bytes()),
        }
    }

    /// The progress token of an open request, or of one that became a task.
    fn token<'a>(&'a self, open: &'a Table<u64, Original>, id: u64) -> Option<&'a [u8]> {
        if let Some(original) = open.get(&id) {
            return original.token.as_deref();
        }
        let (_, token) = self.tasks.iter().find(|(own, _)| *own == id)?;
        Some(token)
    }

    /// A new id. At the end of its range follows the next one, and ids in use are skipped.
    fn next(&mut self) -> u64 {
        loop {
            self.last = if self.last >= *self.range.end() {
                self.next_range();
                *self.range.start()
            } else {
                self.last + 1
            };
            let id = &self.last;
            let is_free = !self.calls.contains_key(id) && !self.asks.contains_key(id);
            if is_free && !self.own.contains(*id) {
                return self.last;
            }
        }
    }

    /// Goes on with the next range of the lease.
    fn next_range(&mut self) {
        if let Some(lease) = &mut self.lease {
            let (calls, own) = (&self.calls, &self.own);
            lease.renew(|ids| calls.keys().chain(own.ids()).any(|id| ids.contains(id)));
            self.range = lease.ids();
        }
    }
}

/// Answers a request of the child with an error of the gateway.
fn refuse(message: &Message, code: i32, text: &'static str, out: &mut BytesMut) -> ServerMessage {
    let id = message.id().unwrap_or_default();
    owe(out, |out| push_error(id, code, text, None, out));
    ServerMessage::Answered(text)
}

/// Appends an answer of the gateway to the child, or drops it if the child does not read: repeated
/// requests of the child must not fill the memory of the gateway.
pub(crate) fn owe(out: &mut BytesMut, push: impl FnOnce(&mut BytesMut)) {
    if out.len() < MAX_OWED {
        push(out);
        out.put_u8(b'\n');
    }
}

fn push_line(message: &Message, mut cuts: Vec<(Span, &[u8])>, out: &mut BytesMut) {
    cuts.sort_by_key(|(span, _)| span.start());
    out.reserve(message.bytes().len() + 32);
    message.splice(out, &cuts);
    out.put_u8(b'\n');
}

fn spliced(message: &Message, span: Span, replacement: &[u8]) -> Bytes {
    let mut line = BytesMut::with_capacity(message.bytes().len() + replacement.len());
    message.splice(&mut line, &[(span, replacement)]);
    line.freeze()
}

/// Parses an id or token of the gateway.
fn number(token: &[u8]) -> Option<u64> {
    std::str::from_utf8(token).ok()?.parse().ok()
}

#[cfg(test)]
#[path = "../tests/legacy.rs"]
mod tests;

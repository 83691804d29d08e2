//! Modern dialect: stateless servers of revision 2026-07-28, for sessions.
//!
//! It stands between a child and its owner, which sees a session-based server: requests get what the server
//! has to know of the client, results that ask for input become requests of the server, and the answers of
//! the client make the request again. A state machine without IO, streams, clocks or HTTP.

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
};

use bytes::{BufMut, Bytes, BytesMut};
use tokio::time::Instant;

use super::caller_rooms::CallerRooms;
use super::id_blocks::{Caller, IdBlocks};
use super::legacy::MAX_OWED;
use super::listening::{Listening, Out, push_cancelled};
use super::results::Results;
use crate::base::{FastHash, Table, budget::LargeWork};
use crate::declare::Isolation;
use crate::protocol::{
    Kind, Message, Method, initialize, json,
    jsonrpc::{push_error, push_result},
    log_level,
    modern::{self, CacheHint, ClientMeta, Mark, ServerAnswer, WantedInput},
};

/// The session of a stateless server.
#[derive(Default)]
pub(super) struct Modern {
    client: ClientMeta,
    /// Whether the client is one of this era, for which the gateway keeps the session.
    is_for_modern: bool,
    /// The raw capabilities of the server.
    capabilities: Bytes,
    /// Pings of the owner, by their raw ids: servers of this era know none.
    pings: Vec<Box<[u8]>>,
    /// Calls that the server may have made again, by their raw ids.
    calls: Table<Box<[u8]>, Call>,
    /// The bytes that they take, with what the server and the client have said meanwhile.
    kept: usize,
    /// The same for each caller, where several share the child.
    rooms: CallerRooms,
    /// The raw id of one that is large, and waits for its turn to be made again.
    due: Option<Box<[u8]>>,
    /// Calls whose clients make them again themselves, by their raw ids.
    carried: HashSet<Box<[u8]>, FastHash>,
    listening: Listening,
    results: Results,
    /// Whether the owner has clients of this era, which are told what only they know.
    has_modern_clients: bool,
}

/// A call that may be made again with what the client has answered.
struct Call {
    /// The request, as the server got it first.
    request: Bytes,
    /// Its caller, where several share the child.
    caller: Option<Caller>,
    /// Whether its client can be asked.
    may_be_asked: bool,
    /// How often the server has asked.
    round: u32,
    /// What the server waits for; empty while it works.
    asks: Vec<Ask>,
    /// The raw state of the server.
    state: Option<Box<[u8]>>,
}

/// What a server waits for.
struct Ask {
    /// The raw key that the server gave it.
    key: Box<[u8]>,
    is_elicitation: bool,
    answer: Option<Bytes>,
}

impl Call {
    /// Whether the server has asked, and has not got the request again.
    fn is_to_be_made_again(&self) -> bool {
        !self.asks.is_empty() || self.state.is_some()
    }

    /// The bytes that it takes.
    fn size(&self) -> usize {
        let of_ask = |ask: &Ask| ask.key.len() + ask.answer.as_ref().map_or(0, Bytes::len);
        let asks = self.asks.iter().map(of_ask).sum::<usize>();
        self.request.len() + self.state.as_ref().map_or(0, |state| state.len()) + asks
    }
}

/// Where translated lines go.
pub(super) struct To<'t> {
    /// Lines for the server, with line ends.
    pub(super) server: &'t mut BytesMut,
    /// Lines for the owner, without.
    pub(super) owner: &'t mut VecDeque<Bytes>,
    /// The time at which they are translated.
    pub(super) now: Instant,
}

/// The most bytes that calls of one child take which can be made again. The server cannot ask during further
/// ones, nor say more than that leaves.
const MAX_KEPT: usize = 16 << 20;

/// The level of log messages for a client that has set none.
const DEFAULT_LEVEL: &[u8] = b"\"info\"";

/// Why a call ends that would be asked more than is kept or passed on.
const TOO_MUCH: &str = "the server asks for too much at once";

/// The most rounds of one call: a server that asks for nothing is called again at once.
const MAX_ROUNDS: u32 = 64;

impl To<'_> {
    fn owner(&mut self, push: impl FnOnce(&mut BytesMut)) {
        let mut line = BytesMut::new();
        push(&mut line);
        self.owner.push_back(line.freeze());
    }

    fn listening<'o>(&'o mut self, client: &'o ClientMeta) -> Out<'o> {
        Out {
            client,
            server: self.server,
            session: self.owner,
            now: self.now,
        }
    }
}

impl Modern {
    /// A session that has not begun, for a client of this era or of another one, or for several.
    pub(super) fn new(is_for_modern: bool, isolation: Isolation) -> Self {
        Self {
            is_for_modern,
            rooms: CallerRooms::new(isolation),
            results: Results::new(isolation),
            has_modern_clients: is_for_modern || isolation != Isolation::Session,
            ..Self::default()
        }
    }

    /// The callers of the sessions of the owner are known by the ids of their calls from now on.
    pub(super) fn know_callers(&mut self, ids: &Arc<IdBlocks>) {
        self.rooms.know_callers(ids);
    }

    /// Begins with the `initialize` of the owner: requests its counterpart in this era, under this raw id.
    pub(super) fn begin(&mut self, initialize: &Message, id: &[u8], to: &mut To<'_>) {
        self.client = ClientMeta::of(initialize);
        self.client.push_discover(id, to.server);
        to.server.put_u8(b'\n');
    }

    /// Answers the `initialize` of the owner as the server has answered `server/discover`.
    pub(super) fn opened(&mut self, initialize: &Message, answer: &Message, to: &mut To<'_>) {
        let id = initialize.id().unwrap_or_default();
        match answer.result() {
            Some(result) => self.discovered(initialize, result, to),
            None => to.owner.push_back(answer.clone().into_bytes_with_id(id)),
        }
    }

    fn discovered(&mut self, request: &Message, result: &[u8], to: &mut To<'_>) {
        self.client = ClientMeta::of(request);
        if !self.is_for_modern {
            // Without a level a session-based server says what it thinks fit, and one of this era nothing.
            self.client.set_level(DEFAULT_LEVEL);
        }
        self.capabilities = modern::server_capabilities(result).freeze();
        let requested = request.protocol_version();
        let requested = requested.map(|span| span.of(request.bytes()));
        let revision = requested.filter(|revision| {
            let known = initialize::revision(revision);
            known.is_some()
        });
        let newest = format!("\"{}\"", initialize::NEWEST.as_str());
        let revision = revision.unwrap_or(newest.as_bytes());
        let result = modern::initialize_result(result, revision, self.has_modern_clients);
        let id = request.id().unwrap_or_default();
        to.owner(|line| push_result(id, &result, line));
    }

    /// Translates a message of the owner.
    pub(super) fn request(&mut self, message: &Message, to: &mut To<'_>) {
        self.listening.resume(&mut to.listening(&self.client));
        let id = message.id().unwrap_or_default();
        match (message.kind(), message.method()) {
            (Kind::Result | Kind::Error, _) => self.answer(message, to),
            (Kind::Request, Method::Ping) => {
                // A sign of life: it is what every server has to answer.
                self.pings.push(id.into());
                self.client.push_discover(id, to.server);
                to.server.put_u8(b'\n');
            }
            (Kind::Request, Method::SetLevel) => self.set_level(message, to),
            (Kind::Request, Method::Subscribe) => {
                let out = &mut to.listening(&self.client);
                self.listening
                    .subscribe(id, message.uri().unwrap_or(b"\"\""), out);
            }
            (Kind::Request, Method::Unsubscribe) => {
                let out = &mut to.listening(&self.client);
                self.listening
                    .unsubscribe(id, message.uri().unwrap_or(b"\"\""), out);
            }
            (Kind::Request, _) => match self.results.find(message, to.now) {
                Some(result) => to.owner(|line| push_result(id, &result, line)),
                None => self.call(message, to),
            },
            (Kind::Notification, Method::Initialized) => {
                let out = &mut to.listening(&self.client);
                self.listening.begin(&self.capabilities, out);
            }
            (Kind::Notification, Method::Cancelled) => self.cancelled(message, to),
            // Progress of what the client was asked, and changes of its roots: there are none in this era.
            (Kind::Notification, Method::Progress | Method::ListChanged) => {}
            (Kind::Notification, _) => {
                to.server.extend_from_slice(message.bytes());
                to.server.put_u8(b'\n');
            }
        }
    }

    /// Sets the level of log messages, which each further request says. An unknown one is refused here: a server would
    /// refuse it with every request (2026-07-28 logging, "Error Handling").
    fn set_level(&mut self, message: &Message, to: &mut To<'_>) {
        let id = message.id().unwrap_or_default();
        let level = message.level();
        if let Some(level) = level.filter(|level| log_level(level).is_some()) {
            self.client.set_level(format!("\"{level}\"").as_bytes());
            to.owner(|line| push_result(id, b"{}", line));
        } else {
            to.owner(|line| push_error(id, -32602, "no such log level", None, line));
        }
    }

    /// Passes a request on, and keeps it if the server may have it made again before it answers (2026-07-28 mrtr,
    /// "Supported Requests"): for that alone its client need not have declared anything ("Client Requirements").
    fn call(&mut self, message: &Message, to: &mut To<'_>) {
        let start = to.server.len();
        let is_asked_back = matches!(
            message.method(),
            Method::ToolsCall | Method::PromptsGet | Method::ResourcesRead
        );
        let mark = is_asked_back.then(|| Mark::of(message)).flatten();
        self.client.push(message, mark, to.server);
        let length = to.server.len() - start;
        if matches!(mark, Some(Mark::Carried | Mark::Bare)) {
            self.carried.insert(message.id().unwrap_or_default().into());
            to.server.put_u8(b'\n');
            return;
        }
        let may_be_asked = mark.map_or(self.client.may_be_asked(), |mark| mark == Mark::Asked);
        // Those of clients that cannot be asked leave room for others: few servers have them made again.
        let most = if may_be_asked { MAX_KEPT } else { MAX_KEPT / 2 };
        let id = message.id().unwrap_or_default();
        let caller = is_asked_back.then(|| self.rooms.caller(id)).flatten();
        let of_all = (self.kept, most);
        if is_asked_back
            && self.kept + length <= most
            && self.rooms.has_room(caller, length, of_all)
        {
            self.kept += length;
            self.rooms.take(caller, length);
            let call = Call {
                request: Bytes::copy_from_slice(&to.server[start..]),
                caller,
                may_be_asked,
                round: 0,
                asks: Vec::new(),
                state: None,
            };
            self.calls.insert(id.into(), call);
        }
        to.server.put_u8(b'\n');
    }

    /// The bytes of calls that may have to be made again, of results that may be given again, and of the resources
    /// that are watched.
    pub(super) fn kept(&self) -> usize {
        self.kept + self.results.size() + self.listening.size()
    }

    fn remove(&mut self, id: &[u8]) -> Option<Call> {
        let call = self.calls.remove(id)?;
        self.kept -= call.size();
        self.rooms.give_back(call.caller, call.size());
        Some(call)
    }

    /// The owner cancels a call.
    fn cancelled(&mut self, message: &Message, to: &mut To<'_>) {
        let Some(span) = message.request_id() else {
            return;
        };
        let id = span.of(message.bytes());
        let out = &mut to.listening(&self.client);
        if self.listening.cancelled(id, out) {
            // The server knows no such request.
            return;
        }
        self.results.forget(id);
        self.carried.remove(id);
        match self.remove(id) {
            Some(call) if !call.asks.is_empty() => cancel_asks(id, &call, to),
            Some(call) if call.round > 0 => {
                let id = retry_id(id, call.round);
                message.splice(to.server, &[(span, &*id)]);
                to.server.put_u8(b'\n');
            }
            _ => {
                to.server.extend_from_slice(message.bytes());
                to.server.put_u8(b'\n');
            }
        }
    }

    /// Translates a message of the server.
    pub(super) fn line(&mut self, message: &Message, to: &mut To<'_>) {
        match message.kind() {
            Kind::Result | Kind::Error => self.response(message, to),
            // "The server MUST NOT write JSON-RPC requests" (2026-07-28 stdio, "Receiving Messages"), and the
            // gateway no responses.
            Kind::Request => {}
            Kind::Notification => self.notification(message, to),
        }
    }

    fn notification(&mut self, message: &Message, to: &mut To<'_>) {
        self.results.changed(message);
        // "On stdio, the server also sends this notification, solely to terminate a subscriptions/listen stream"
        // (2026-07-28 schema, `CancelledNotification`).
        let named = message.request_id().map(|span| span.of(message.bytes()));
        if let Some(id) = named.filter(|id| Listening::is_own(id))
            && message.method() == Method::Cancelled
        {
            let out = &mut to.listening(&self.client);
            return self.listening.ended(id, None, out);
        }
        let Some(subscription) = modern::subscription_of(message) else {
            to.owner.push_back(message.bytes().clone());
            return;
        };
        if message.method_name() == "notifications/subscriptions/acknowledged" {
            let out = &mut to.listening(&self.client);
            if self.listening.acknowledged(subscription, message, out) {
                self.results.clear();
            }
            return;
        }
        if self.listening.is_heard(subscription, message) {
            to.owner.push_back(modern::without_subscription(message));
        }
    }

    fn response(&mut self, message: &Message, to: &mut To<'_>) {
        let id = message.id().unwrap_or_default();
        if let Some(at) = self.pings.iter().position(|ping| **ping == *id) {
            self.pings.swap_remove(at);
            return to.owner(|line| push_result(id, b"{}", line));
        }
        if Listening::is_own(id) {
            let out = &mut to.listening(&self.client);
            return self.listening.ended(id, message.error(), out);
        }
        let (call, round) = match numbers(id) {
            Some((call, [round])) => (call, round),
            None => (id, 0),
        };
        let known = self.calls.get(call);
        // A server that knows the next id has not got the request that has it.
        let is_early = known.is_some_and(Call::is_to_be_made_again);
        if known.map_or(0, |call| call.round) != round || is_early {
            return;
        }
        let is_carried = self.carried.remove(call);
        match ServerAnswer::of(message, call) {
            ServerAnswer::Complete(line) => {
                self.remove(call);
                let line = self.hinted(call, round, (message, line), to.now);
                to.owner.push_back(line);
            }
            ServerAnswer::InputRequired(_) if is_carried => {
                self.results.forget(call);
                to.owner.push_back(message.bytes().clone());
            }
            ServerAnswer::InputRequired(wanted) => self.ask(call, wanted, to),
            ServerAnswer::TooMuch => self.fail(call, TOO_MUCH, to),
            ServerAnswer::Unknown => self.fail(call, "the result is none of this revision", to),
        }
    }

    /// The answer for the owner, with what the server says of how long its result may be kept. "Results produced
    /// by retrying a request MUST NOT be cached" (2026-07-28 caching, "Cache Key").
    fn hinted(
        &mut self,
        id: &[u8],
        round: u32,
        (answer, line): (&Message, Bytes),
        now: Instant,
    ) -> Bytes {
        match answer.result() {
            Some(result) if round == 0 => {
                let hint = || CacheHint::of(result).filter(|_| self.has_modern_clients);
                self.results.answered(id, line, hint, now)
            }
            Some(_) => {
                self.results.forget(id);
                line
            }
            None => {
                self.results.refused(id);
                line
            }
        }
    }

    /// Ends a call with an error.
    fn fail(&mut self, id: &[u8], why: &str, to: &mut To<'_>) {
        self.results.forget(id);
        if let Some(call) = self.remove(id) {
            cancel_asks(id, &call, to);
        }
        to.owner(|line| push_error(id, -32603, why, None, line));
    }

    /// Asks the client for what the server wants to know before it answers a call.
    fn ask(&mut self, id: &[u8], wanted: WantedInput, to: &mut To<'_>) {
        let is_asked = !wanted.requests.is_empty();
        let call = self.calls.get_mut(id);
        let Some(call) = call.filter(|call| call.may_be_asked || !is_asked) else {
            return self.fail(id, "the server asks a client that cannot be asked", to);
        };
        call.round += 1;
        if call.round > MAX_ROUNDS {
            return self.fail(id, "the server asks without an end", to);
        }
        let size = wanted.size();
        if self.kept + size > MAX_KEPT {
            return self.fail(id, TOO_MUCH, to);
        }
        let (caller, of_all) = (call.caller, (self.kept, MAX_KEPT));
        if !self.rooms.may_grow(caller, size, of_all) {
            return self.fail(id, TOO_MUCH, to);
        }
        self.rooms.take(caller, size);
        self.kept += size;
        call.state = wanted.state;
        for (at, (key, request)) in wanted.requests.into_iter().enumerate() {
            let method = json::get(&request, "method").and_then(json::decoded);
            call.asks.push(Ask {
                key: key.clone(),
                is_elicitation: method.as_deref() == Some("elicitation/create"),
                answer: None,
            });
            let ask = ask_id(id, call.round, at);
            let key = self.is_for_modern.then_some(&*key);
            to.owner(|line| modern::push_ask(&ask, &request, key, line));
        }
        if call.asks.is_empty() {
            self.call_again(id, to);
        }
    }

    /// The client has answered, or refused to.
    fn answer(&mut self, message: &Message, to: &mut To<'_>) {
        let Some((id, [round, at])) = numbers(message.id().unwrap_or_default()) else {
            return;
        };
        let known = self.calls.get(id);
        let caller = known.and_then(|call| call.caller);
        let call = self.calls.get_mut(id).filter(|call| call.round == round);
        let asks = call.map(|call| &mut call.asks);
        let Some(ask) = asks.and_then(|asks| asks.get_mut(usize::try_from(at).ok()?)) else {
            return;
        };
        if ask.answer.is_some() {
            return;
        }
        let answer = if let Some(result) = message.result() {
            Bytes::copy_from_slice(result)
        } else {
            // There are no errors among the answers of this era.
            let code = message.error().and_then(|error| json::get(error, "code"));
            let code = code.and_then(|code| str::from_utf8(code).ok()?.parse::<i64>().ok());
            tracing::debug!(code, "a client answers what it is asked by an error");
            CANCELLED
        };
        let is_refused = message.result().is_none() && !ask.is_elicitation;
        let (caller, of_all) = (caller, (self.kept, MAX_KEPT));
        let has_room = self.rooms.may_grow(caller, answer.len(), of_all);
        let answer = if has_room { answer } else { CANCELLED };
        self.kept += answer.len();
        self.rooms.take(caller, answer.len());
        // Also of one that was refused, so that it is not cancelled.
        ask.answer = Some(answer);
        if !has_room {
            return self.fail(id, TOO_MUCH, to);
        }
        if is_refused {
            return self.fail(id, "the client did not answer what the server asked", to);
        }
        let call = self.calls.get(id);
        if call.is_some_and(|call| call.asks.iter().all(|ask| ask.answer.is_some())) {
            self.call_again(id, to);
        }
    }

    /// Makes a call again, with all answers; a large one in its turn, however short the line is that leads to it.
    fn call_again(&mut self, id: &[u8], to: &mut To<'_>) {
        let Some(call) = self.calls.get(id) else {
            return;
        };
        // What else it has not read was sent to the gateway, and the request once for all rounds.
        if to.server.len() > MAX_OWED {
            return self.fail(id, "the server does not read", to);
        }
        if LargeWork::is_large(call.size()) {
            self.due = Some(id.into());
        } else {
            self.push_again(id, to);
        }
    }

    /// The size of the call that waits for its turn to be made again.
    pub(super) fn due(&self) -> Option<usize> {
        let call = self.calls.get(self.due.as_ref()?);
        Some(call.map_or(0, Call::size))
    }

    /// Makes the call again that waits for its turn; whether there was one.
    pub(super) fn push_due(&mut self, to: &mut To<'_>) -> bool {
        let due = self.due.take();
        if let Some(id) = &due {
            self.push_again(id, to);
        }
        due.is_some()
    }

    fn push_again(&mut self, id: &[u8], to: &mut To<'_>) {
        let Some(call) = self.calls.get_mut(id) else {
            return;
        };
        let before = call.size();
        let asks = std::mem::take(&mut call.asks);
        let answers = asks
            .iter()
            .filter_map(|ask| Some((&*ask.key, &**ask.answer.as_ref()?)));
        let again = retry_id(id, call.round);
        let state = call.state.take();
        let less = before - call.size();
        self.kept -= less;
        self.rooms.give_back(call.caller, less);
        match modern::retry(&call.request, &again, answers, state.as_deref()) {
            Some(line) => {
                to.server.extend_from_slice(&line);
                to.server.put_u8(b'\n');
            }
            None => self.fail(id, "the request cannot be made again", to),
        }
    }
}

/// The answer of a client that does not answer (2025-11-25 elicitation, "Response Actions").
const CANCELLED: Bytes = Bytes::from_static(br#"{"action":"cancel"}"#);

/// Tells the client that what it was asked during a call need not be answered.
fn cancel_asks(id: &[u8], call: &Call, to: &mut To<'_>) {
    for (at, ask) in call.asks.iter().enumerate() {
        if ask.answer.is_none() {
            to.owner(|line| push_cancelled(&ask_id(id, call.round, at), line));
        }
    }
}

/// The raw id of a call that is made again: "The JSON-RPC `id` MUST be different between the initial request
/// and the retry" (2026-07-28 mrtr, "Client Requirements").
fn retry_id(id: &[u8], round: u32) -> Vec<u8> {
    [b"\"", id, b".", round.to_string().as_bytes(), b"\""].concat()
}

/// The raw id of a request to the client.
fn ask_id(id: &[u8], round: u32, at: usize) -> Vec<u8> {
    let numbers = format!(".{round}.{at}\"");
    [b"\"", id, numbers.as_bytes()].concat()
}

/// The call during which a server asks with this raw id, whose own id is a number.
pub(crate) fn asked_call(id: &[u8]) -> Option<u64> {
    let (call, [_, _]) = numbers(id)?;
    str::from_utf8(call).ok()?.parse().ok()
}

/// The raw id of the call and the numbers behind it, of an id of this dialect.
fn numbers<const N: usize>(id: &[u8]) -> Option<(&[u8], [u32; N])> {
    let inside = id.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    let mut parts = inside.split(|byte| *byte == b'.');
    let call = parts.next()?;
    let mut numbers = [0; N];
    for number in &mut numbers {
        *number = str::from_utf8(parts.next()?).ok()?.parse().ok()?;
    }
    parts.next().is_none().then_some((call, numbers))
}

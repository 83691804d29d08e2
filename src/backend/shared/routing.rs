//! Routing of a shared child's messages to sessions: responses, subscriptions and log messages.
//!
//! Pure: lines in, lines out. The ids and progress tokens of a session at the child are those of its
//! blocks: responses need no table, and no session receives the response of another.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    fmt,
    sync::Arc,
};

use bytes::{BufMut, Bytes, BytesMut};
use serde::{
    Deserializer,
    de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

use crate::backend::dialect::{IdBlocks, OWN_IDS, OwnRequests, Watched, asked_call, owe};
use crate::{
    declare::Isolation,
    protocol::{
        Kind, LOG_LEVELS, LogLevel, Message, Method, initialize, json,
        jsonrpc::{push_error, push_notification, push_request, push_result},
        log_level,
    },
};

/// Sessions of a shared child, with their subscriptions and log levels.
pub(super) struct Routing {
    isolation: Isolation,
    /// Sessions by their ids.
    ids: Arc<IdBlocks>,
    /// Number of each session, and the log level that its client has set.
    members: BTreeMap<u32, Option<LogLevel>>,
    /// Subscribed sessions of each URI, in its canonical spelling; empty while a session waits for
    /// the confirmation of a subscription that the child may have.
    subscriptions: Watched<BTreeSet<u32>>,
    /// Subscriptions that the child has not confirmed, by the id of the request.
    pending: HashMap<u64, PendingSubscription>,
    /// Log level set at the child.
    level: Option<LogLevel>,
    /// Last id of the gateway's own requests, which belong to no session.
    last: u64,
    /// Own requests that the child has not answered.
    own: OwnRequests,
    /// Whether the child may ask during calls: its translator names the call by the id of what it asks.
    may_ask: bool,
}

/// A subscription that the child has not confirmed.
struct PendingSubscription {
    /// Number of its session.
    session: u32,
    uri: Box<[u8]>,
    /// Still wanted by its session.
    is_wanted: bool,
}

/// Recipients of a message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Recipients {
    /// This session alone.
    Session(u32),
    /// These sessions, in the order of their numbers.
    Sessions(Vec<u32>),
    /// The gateway itself.
    Gateway,
    /// The gateway itself: the response to its request of this method.
    Own(&'static str),
    /// No recipient: the message is dropped and counted.
    None,
}

impl Routing {
    /// No session.
    pub(crate) fn new(isolation: Isolation, ids: Arc<IdBlocks>) -> Self {
        Self {
            isolation,
            ids,
            members: BTreeMap::new(),
            subscriptions: Watched::default(),
            pending: HashMap::new(),
            level: None,
            last: 0,
            own: OwnRequests::default(),
            may_ask: false,
        }
    }

    /// The child is a server of 2026-07-28, which asks during a call alone.
    pub(super) fn let_ask(&mut self) {
        self.may_ask = true;
    }

    /// Whether there is no session.
    pub(crate) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Whether a session has a subscription.
    pub(super) fn is_subscribed(&self) -> bool {
        !self.subscriptions.is_empty()
            || self
                .pending
                .values()
                .any(|subscription| subscription.is_wanted)
    }

    /// Adds a session.
    pub(crate) fn join(&mut self, number: u32) {
        self.members.insert(number, None);
    }

    /// Removes a session and its subscriptions, unconfirmed ones too, unless another session holds
    /// or awaits them.
    pub(super) fn leave(&mut self, number: u32, out: &mut BytesMut) {
        if self.members.remove(&number).is_none() {
            return;
        }
        let removed = self.pending.extract_if(|_, one| one.session == number);
        for (_, subscription) in removed {
            self.subscriptions.or_default(&subscription.uri);
        }
        let wanted = self
            .pending
            .values()
            .filter(|subscription| subscription.is_wanted);
        let awaited: HashSet<&[u8]> = wanted.map(|subscription| &*subscription.uri).collect();
        let left = self.subscriptions.extract(|uri, holders| {
            holders.remove(&number);
            holders.is_empty() && !awaited.contains(uri)
        });
        for uri in left {
            self.push_unsubscribe(&uri, out);
        }
        self.push_level(out);
    }

    /// Handles a request to subscribe or unsubscribe; returns the response if the child need not
    /// know. Only the first holder of a URI subscribes at the child, and only the last one
    /// unsubscribes.
    pub(super) fn subscription(
        &mut self,
        call: u64,
        uri: Box<[u8]>,
        is_subscribe: bool,
        line: &[u8],
        out: &mut BytesMut,
    ) -> Option<Bytes> {
        let number = self.session(call)?;
        if !self.members.contains_key(&number) {
            return None;
        }
        let is_met = if is_subscribe {
            self.hold(number, &uri)
        } else {
            self.release(number, &uri)
        };
        if is_met {
            let mut answer = BytesMut::new();
            push_result(call.to_string().as_bytes(), b"{}", &mut answer);
            return Some(answer.freeze());
        }
        if is_subscribe {
            let pending = PendingSubscription {
                session: number,
                uri,
                is_wanted: true,
            };
            self.pending.insert(call, pending);
        } else {
            self.subscriptions.remove(&uri);
        }
        out.extend_from_slice(line);
        None
    }

    /// Abandons a subscription without a response, for which nothing waits from now on: a server need not
    /// answer a request that was cancelled (2025-11-25 cancellation, "Behavior Requirements" 4). `is_kept` if
    /// the session has the subscription by an earlier request.
    pub(crate) fn abandon(&mut self, call: u64, uri: &[u8], is_kept: bool, out: &mut BytesMut) {
        if let Some(left) = self.pending.remove(&call) {
            // The child may have it, or get it still.
            self.subscriptions.or_default(&left.uri);
        } else if !is_kept
            && let Some(session) = self.session(call)
            && let Some(holders) = self.subscriptions.get_mut(uri)
        {
            holders.remove(&session);
        }
        self.settle(uri, out);
    }

    /// Adds a session to the holders of a URI; false if there is no holder.
    fn hold(&mut self, number: u32, uri: &[u8]) -> bool {
        let holders = self.subscriptions.get_mut(uri);
        let Some(holders) = holders.filter(|holders| !holders.is_empty()) else {
            return false;
        };
        holders.insert(number);
        true
    }

    /// Removes a session from the holders of a URI; returns whether others need the subscription.
    fn release(&mut self, number: u32, uri: &[u8]) -> bool {
        let is_own = |subscription: &PendingSubscription| {
            subscription.session == number && *subscription.uri == *uri
        };
        for subscription in self.pending.values_mut() {
            subscription.is_wanted &= !is_own(subscription);
        }
        let is_held = self.subscriptions.get_mut(uri).is_some_and(|holders| {
            holders.remove(&number);
            !holders.is_empty()
        });
        if is_held || self.is_awaited(uri) {
            return true;
        }
        // The request to unsubscribe follows them to the child.
        self.pending.retain(|_, subscription| !is_own(subscription));
        false
    }

    fn is_awaited(&self, uri: &[u8]) -> bool {
        let mut pending = self.pending.values();
        pending.any(|subscription| subscription.is_wanted && *subscription.uri == *uri)
    }

    /// Ends a subscription that no session wants.
    fn settle(&mut self, uri: &[u8], out: &mut BytesMut) {
        let is_left = self.subscriptions.get(uri).is_some_and(BTreeSet::is_empty);
        if is_left && !self.is_awaited(uri) {
            self.subscriptions.remove(uri);
            self.push_unsubscribe(uri, out);
        }
    }

    /// Sets the log level of a session; the child gets the lowest level of all sessions.
    pub(super) fn set_level(&mut self, number: u32, level: LogLevel, out: &mut BytesMut) {
        if let Some(member) = self.members.get_mut(&number) {
            *member = Some(level);
            self.push_level(out);
        }
    }

    fn push_level(&mut self, out: &mut BytesMut) {
        let lowest = self.members.values().copied().flatten().min();
        // A level cannot be unset: the last one stays without sessions that want one.
        if lowest.is_none() || lowest == self.level {
            return;
        }
        self.level = lowest;
        let name = LOG_LEVELS[usize::from(lowest.unwrap_or(INFO))];
        let id = self.own_id("logging/setLevel").to_string();
        out.extend_from_slice(&initialize::set_level(&id, name));
    }

    fn push_unsubscribe(&mut self, uri: &[u8], out: &mut BytesMut) {
        let params = [&br#"{"uri":"#[..], uri, b"}"].concat();
        self.push_own_request("resources/unsubscribe", Some(&params), out);
    }

    /// Appends a request of the gateway itself as a line; returns its id.
    pub(super) fn push_own_request(
        &mut self,
        method: &'static str,
        params: Option<&[u8]>,
        out: &mut BytesMut,
    ) -> u64 {
        let id = self.own_id(method);
        push_request(id.to_string().as_bytes(), method, params, out);
        out.put_u8(b'\n');
        id
    }

    /// An id for a request of the gateway itself, never used twice (2025-11-25 basic, "Requests"): SDKs
    /// drop a request whose id is in flight.
    fn own_id(&mut self, method: &'static str) -> u64 {
        self.last = (self.last + 1) % OWN_IDS;
        self.own.begin(self.last, method);
        self.last
    }

    /// The gateway's own requests that the child has not answered.
    pub(super) fn own_requests(&mut self) -> &mut OwnRequests {
        &mut self.own
    }

    /// Recipients of a message of the child; responses of the gateway itself go to `out`.
    pub(super) fn route(&mut self, message: &Message, out: &mut BytesMut) -> Recipients {
        if let Some(call) = self.asked_call(message) {
            return self.asked(call, message, out);
        }
        match (message.kind(), message.method()) {
            (Kind::Result | Kind::Error, _) => match message.id().and_then(number) {
                Some(id) if id < OWN_IDS => {
                    self.own.end(id).map_or(Recipients::None, Recipients::Own)
                }
                Some(call) => {
                    self.confirm(call, message.kind() == Kind::Result, out);
                    self.one(call)
                }
                None => Recipients::None,
            },
            (Kind::Request, method) => {
                refuse(message, method, out);
                Recipients::Gateway
            }
            (Kind::Notification, Method::Progress) => {
                let token = message.progress_token();
                let call = token.and_then(|span| number(span.of(message.bytes())));
                call.map_or(Recipients::None, |call| self.one(call))
            }
            (Kind::Notification, Method::ListChanged) => self.all(),
            (Kind::Notification, Method::Updated) => self.updated(message),
            // A log message may contain data of another principal's call.
            (Kind::Notification, Method::Log) if self.isolation == Isolation::Principal => {
                self.log(message)
            }
            // Without a known recipient: for all sessions of one principal, never of several.
            (Kind::Notification, Method::Other) if self.isolation == Isolation::Principal => {
                self.all()
            }
            (Kind::Notification, _) => Recipients::None,
        }
    }

    /// A message for several sessions as they get it: without what its server adds where they are of several
    /// principals, of whom it may be about one.
    pub(super) fn for_several(&self, message: Message) -> Message {
        let Some(params) = message.params() else {
            return message;
        };
        if self.isolation == Isolation::Principal {
            return message;
        }
        let uri = json::get(params, "uri").filter(|_| message.method() == Method::Updated);
        let params = uri.map(|uri| [br#"{"uri":"#, uri, b"}"].concat());
        let mut bare = BytesMut::new();
        push_notification(&message.method_name(), params.as_deref(), &mut bare);
        Message::parse(bare.freeze()).unwrap_or(message)
    }

    /// The call during which the child asks, or asks no longer.
    fn asked_call(&self, message: &Message) -> Option<u64> {
        let id = match (message.kind(), message.method()) {
            (Kind::Request, _) => message.id(),
            (Kind::Notification, Method::Cancelled) => {
                let id = message.request_id();
                id.map(|id| id.of(message.bytes()))
            }
            _ => None,
        };
        id.and_then(asked_call).filter(|_| self.may_ask)
    }

    fn asked(&self, call: u64, message: &Message, out: &mut BytesMut) -> Recipients {
        let session = self.one(call);
        if session == Recipients::None && message.kind() == Kind::Request {
            let id = message.id().unwrap_or_default();
            owe(out, |out| {
                push_error(id, -32603, "the session has ended", None, out);
            });
        }
        session
    }

    /// The session of an id or progress token.
    pub(super) fn session(&self, call: u64) -> Option<u32> {
        self.ids.holder(call)
    }

    fn one(&self, call: u64) -> Recipients {
        match self.session(call) {
            Some(number) if self.members.contains_key(&number) => Recipients::Session(number),
            _ => Recipients::None,
        }
    }

    fn all(&self) -> Recipients {
        Recipients::Sessions(self.members.keys().copied().collect())
    }

    fn confirm(&mut self, call: u64, is_result: bool, out: &mut BytesMut) {
        let Some(PendingSubscription {
            session,
            uri,
            is_wanted,
        }) = self.pending.remove(&call)
        else {
            return;
        };
        if is_result {
            let holders = self.subscriptions.or_default(&uri);
            holders.extend(is_wanted.then_some(session));
        }
        self.settle(&uri, out);
    }

    fn updated(&self, message: &Message) -> Recipients {
        let Some(uri) = message.subject().map(Bytes::from) else {
            return Recipients::None;
        };
        let holders = self.subscriptions.told(&uri).flatten();
        let holders: BTreeSet<u32> = holders.copied().collect();
        if holders.is_empty() {
            Recipients::None
        } else {
            Recipients::Sessions(holders.into_iter().collect())
        }
    }

    fn log(&self, message: &Message) -> Recipients {
        let severity = message
            .level()
            .and_then(|name| log_level(&name))
            .unwrap_or(INFO);
        // A session without a level gets no more than before another session set one.
        let quiet = if self.level.is_some() { INFO } else { 0 };
        let recipients = self
            .members
            .iter()
            .filter(|(_, wanted)| severity >= wanted.unwrap_or(quiet))
            .map(|(number, _)| *number)
            .collect();
        Recipients::Sessions(recipients)
    }
}

/// Refuses a request of the child, whose client has declared no capabilities.
pub(crate) fn refuse(message: &Message, method: Method, out: &mut BytesMut) {
    let id = message.id().unwrap_or_default();
    if method == Method::Ping {
        owe(out, |out| push_result(id, b"{}", out));
    } else {
        let text = "a shared server cannot ask its clients; isolation = \"session\" can";
        owe(out, |out| push_error(id, -32601, text, None, out));
    }
}

fn number(token: &[u8]) -> Option<u64> {
    std::str::from_utf8(token).ok()?.parse().ok()
}

/// The calls that an invalid line was meant to respond to, as far as their ids can be read: by one object, by several
/// without a line end between them, or by those of an array. A line of a logger may have an `id`, too: one without
/// `jsonrpc`, `result` and `error` is no response.
pub(crate) fn salvage_calls(line: &[u8]) -> Vec<u64> {
    let mut readable = String::from_utf8_lossy(line).into_owned().into_bytes();
    for byte in readable.iter_mut().filter(|byte| **byte < b' ') {
        *byte = b' ';
    }
    let text = readable.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&readable);
    // Not by the scanner: it may be nested too deeply, or have its id twice.
    let mut reader = serde_json::Deserializer::from_slice(text);
    let mut salvaged = Salvaged::default();
    let end = loop {
        if let Err(error) = reader.deserialize_any(&mut salvaged) {
            break error;
        }
    };
    // The end of a child may have cut its last line short, and is what its calls are told then.
    if !end.is_eof() {
        salvaged.end_object(false);
    }
    salvaged.calls
}

const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// The most calls that one line ends.
const MAX_SALVAGED: usize = 100;

/// What is found in an invalid line.
#[derive(Default)]
struct Salvaged {
    calls: Vec<u64>,
    /// The members of the object that is being read.
    open: Members,
}

/// The members of an object by which it is a response; the others are not kept.
#[derive(Default)]
struct Members {
    /// The last one, if it is one of the gateway's.
    id: Option<u64>,
    has_version: bool,
    has_outcome: bool,
    has_method: bool,
}

impl Members {
    /// The call that an object with these was meant to respond to. One with a method may also be a request of the child
    /// or a line of a logger, and of one that is broken it is not known what follows.
    fn call(&self, is_whole: bool) -> Option<u64> {
        let is_response = if is_whole && !self.has_method {
            self.has_version || self.has_outcome
        } else {
            self.has_version && self.has_outcome
        };
        self.id.filter(|_| is_response)
    }
}

impl Salvaged {
    fn end_object(&mut self, is_whole: bool) {
        let call = std::mem::take(&mut self.open).call(is_whole);
        if self.calls.len() < MAX_SALVAGED {
            self.calls.extend(call);
        }
    }
}

impl<'a> Visitor<'a> for &mut Salvaged {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object or an array of objects")
    }

    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<(), A::Error> {
        self.open = Members::default();
        let mut id = None;
        while let Some(member) = map.next_key_seed(Name)? {
            // Not before something follows it: the digits of one that is cut short are another call's.
            self.open.id = id;
            self.open.has_version |= matches!(member, Member::Version);
            self.open.has_outcome |= matches!(member, Member::Outcome);
            self.open.has_method |= matches!(member, Member::Method);
            if matches!(member, Member::Id) {
                let raw: &RawValue = map.next_value()?;
                id = number(raw.get().as_bytes());
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        self.open.id = id;
        self.end_object(true);
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'a>>(self, mut items: A) -> Result<(), A::Error> {
        while items.next_element_seed(&mut *self)?.is_some() {}
        Ok(())
    }
}

/// An object of an array.
impl<'a> DeserializeSeed<'a> for &mut Salvaged {
    type Value = ();

    fn deserialize<D: Deserializer<'a>>(self, item: D) -> Result<(), D::Error> {
        item.deserialize_map(self)
    }
}

/// A member of a line.
enum Member {
    Id,
    Method,
    Version,
    Outcome,
    Other,
}

/// The name of a member, which is compared where it is.
struct Name;

impl<'a> DeserializeSeed<'a> for Name {
    type Value = Member;

    fn deserialize<D: Deserializer<'a>>(self, name: D) -> Result<Member, D::Error> {
        name.deserialize_str(self)
    }
}

impl Visitor<'_> for Name {
    type Value = Member;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a name")
    }

    fn visit_str<E>(self, name: &str) -> Result<Member, E> {
        Ok(match name {
            "id" => Member::Id,
            "method" => Member::Method,
            "jsonrpc" => Member::Version,
            "result" | "error" => Member::Outcome,
            _ => Member::Other,
        })
    }
}

const INFO: LogLevel = 1;

#[cfg(test)]
#[path = "../tests/routing.rs"]
mod tests;

//! Requests of session-based clients for servers of this era, and the answers of these servers for such
//! clients (2026-07-28 versioning, "Compatibility Matrix").

use std::{borrow::Cow, collections::HashSet};

use bytes::{BufMut, Bytes, BytesMut};
use memchr::memmem;

use super::answer::{Completion, SUBSCRIPTION};
use super::cache::CacheHint;
use super::input::{InputRequest, with_key};
use super::request::without_tasks;
use crate::protocol::{
    Kind, Message, Span, initialize, json, jsonrpc,
    meta::{
        BARE, CARRIES, CLIENT_CAPABILITIES, CLIENT_INFO, LOG_LEVEL, MODERN_KEYS, SERVER_INFO,
        STATELESS, VERSION,
    },
    revision::FIRST_MODERN,
};

/// What each request of a session-based client has to say in `_meta`, known from its `initialize` (2026-07-28
/// basic, "Per-request protocol fields").
#[derive(Debug, Default)]
pub(crate) struct ClientMeta {
    /// The members, without braces.
    members: Vec<u8>,
    /// The length of the one that says the revision.
    version: usize,
    /// The length of those that say nothing of a level.
    without_level: usize,
    may_be_asked: bool,
}

impl ClientMeta {
    /// The fields of a client that begins with this `initialize`.
    pub(crate) fn of(initialize: &Message) -> Self {
        let params = initialize.params().unwrap_or(b"{}");
        let object = |name: &str| json::get(params, name).filter(|value| value.starts_with(b"{"));
        let declared = object("capabilities").unwrap_or(b"{}");
        // Those of 2025-11-25, which this era has not, and those of this era, which are the gateway's own: a server
        // that knew of them might answer by a task that no client can follow.
        let mut capabilities = BytesMut::with_capacity(declared.len());
        let whole = Span::whole(declared);
        json::push_without(&mut capabilities, declared, whole, |name| name == "tasks");
        let capabilities = without_tasks(&capabilities);
        let mut members = Vec::new();
        push_member(
            &mut members,
            VERSION,
            format!("\"{FIRST_MODERN}\"").as_bytes(),
        );
        let version = members.len();
        push_member(&mut members, CLIENT_CAPABILITIES, &capabilities);
        if let Some(info) = object("clientInfo") {
            push_member(&mut members, CLIENT_INFO, info);
        }
        Self {
            version,
            without_level: members.len(),
            members,
            may_be_asked: super::may_be_asked(declared),
        }
    }

    /// The fields of the gateway itself.
    pub(crate) fn own() -> Self {
        let mut members = Vec::new();
        push_member(
            &mut members,
            VERSION,
            format!("\"{FIRST_MODERN}\"").as_bytes(),
        );
        let version = members.len();
        push_member(&mut members, CLIENT_CAPABILITIES, b"{}");
        push_member(&mut members, CLIENT_INFO, initialize::OWN_INFO.as_bytes());
        Self {
            version,
            without_level: members.len(),
            members,
            may_be_asked: false,
        }
    }

    /// Whether a server may ask the client for anything.
    pub(crate) fn may_be_asked(&self) -> bool {
        self.may_be_asked
    }

    /// Requests log messages of at least this raw level from now on, with each request.
    pub(crate) fn set_level(&mut self, level: &[u8]) {
        self.members.truncate(self.without_level);
        push_member(&mut self.members, LOG_LEVEL, level);
    }

    /// Appends the `params` of a request that has none but these fields.
    fn push_params(&self, out: &mut BytesMut) {
        out.extend_from_slice(br#"{"_meta":{"#);
        out.extend_from_slice(&self.members);
        out.extend_from_slice(b"}}");
    }

    /// A request of the client, marked as one of a session that is asked, and with what the client is, for a child
    /// that others use as well; none for one during which the client cannot be asked.
    pub(crate) fn marked(&self, request: &Message) -> Option<Message> {
        if !self.may_be_asked || !super::is_mirrored(&request.method_name()) {
            return None;
        }
        let own = &self.members[self.version..self.without_level];
        let members = [format!(r#""{CARRIES}":"asks""#).as_bytes(), own].concat();
        let mut line = BytesMut::with_capacity(request.bytes().len() + members.len());
        push_with_meta(
            request,
            &members,
            |name| MODERN_KEYS.contains(&name),
            &mut line,
        );
        Message::parse(line.freeze()).ok()
    }

    /// Appends a request of the client with its fields. One with a mark says itself what its client is, unless that is
    /// bare.
    pub(crate) fn push(&self, request: &Message, mark: Option<Mark>, out: &mut BytesMut) {
        let is_marked = mark.is_some_and(|mark| mark != Mark::Bare);
        let is_dropped = |name: &str| match name {
            CLIENT_CAPABILITIES | CLIENT_INFO => !is_marked,
            CARRIES => true,
            name => MODERN_KEYS.contains(&name),
        };
        let (version, level) = (
            &self.members[..self.version],
            &self.members[self.without_level..],
        );
        let members = if is_marked {
            Cow::Owned([version, level].concat())
        } else {
            Cow::Borrowed(&*self.members)
        };
        push_with_meta(request, &members, is_dropped, out);
    }

    /// Appends a `server/discover` under a raw id.
    pub(crate) fn push_discover(&self, id: &[u8], out: &mut BytesMut) {
        let mut params = BytesMut::new();
        self.push_params(&mut params);
        jsonrpc::push_request(id, "server/discover", Some(&params), out);
    }

    /// Appends a `subscriptions/listen` under a raw id, for these members of its filter and these raw URIs.
    pub(crate) fn push_listen<'u>(
        &self,
        id: &[u8],
        lists: &[&str],
        uris: impl Iterator<Item = &'u [u8]>,
        out: &mut BytesMut,
    ) {
        let mut params = BytesMut::new();
        params.extend_from_slice(br#"{"_meta":{"#);
        params.extend_from_slice(&self.members);
        params.extend_from_slice(br#"},"notifications":{"#);
        for list in lists {
            params.extend_from_slice(format!("\"{list}\":true,").as_bytes());
        }
        params.extend_from_slice(br#""resourceSubscriptions":["#);
        for (at, uri) in uris.enumerate() {
            if at > 0 {
                params.put_u8(b',');
            }
            params.extend_from_slice(uri);
        }
        params.extend_from_slice(b"]}}");
        jsonrpc::push_request(id, "subscriptions/listen", Some(&params), out);
    }
}

/// Appends a request with these members in `_meta`, in place of those that are dropped.
fn push_with_meta(
    request: &Message,
    members: &[u8],
    is_dropped: impl Fn(&str) -> bool,
    out: &mut BytesMut,
) {
    let text = request.bytes();
    let cut = match (request.meta(), request.params_span()) {
        (Some(meta), _) if meta.of(text).starts_with(b"{") => {
            // The client's own fields come after those of its session.
            out.extend_from_slice(&text[..=meta.start()]);
            out.extend_from_slice(members);
            json::push_members(out, text, meta, is_dropped);
            return out.extend_from_slice(&text[meta.end() - 1..]);
        }
        (Some(_), _) => None,
        (None, Some(params)) => {
            let meta = [b"\"_meta\":{", members, b"}"].concat();
            json::with_member(text, params, "_meta", meta)
        }
        (None, None) => {
            let params = [b"\"params\":{\"_meta\":{", members, b"}}"].concat();
            json::with_member(text, Span::whole(text), "params", params)
        }
    };
    match cut {
        Some((span, added)) => request.splice(out, &[(span, &added)]),
        // Parameters that are no object are an error of the client's, of which the server tells.
        None => out.extend_from_slice(text),
    }
}

fn push_member(members: &mut Vec<u8>, name: &str, value: &[u8]) {
    if !members.is_empty() {
        members.push(b',');
    }
    members.push(b'"');
    members.extend_from_slice(name.as_bytes());
    members.extend_from_slice(b"\":");
    members.extend_from_slice(value);
}

/// The mark of a request, for a server of this era.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// Its client gets what the server asks as it asks, and makes the request again itself.
    Carried,
    /// The same, and the server is told nothing of what it declares.
    Bare,
    /// Its session is asked.
    Asked,
}

impl Mark {
    /// The mark of a request.
    pub(crate) fn of(request: &Message) -> Option<Self> {
        let meta = request.meta()?.of(request.bytes());
        match json::get(meta, CARRIES)? {
            b"true" => Some(Self::Carried),
            mark if *mark == *BARE.as_bytes() => Some(Self::Bare),
            _ => Some(Self::Asked),
        }
    }
}

/// The result of an `initialize` that requested this raw revision, made of the raw result of
/// `server/discover`, and marked if the owner has clients of this era.
///
/// The tasks of this era are an extension that session-based clients do not know.
pub(crate) fn initialize_result(discovered: &[u8], revision: &[u8], is_marked: bool) -> Bytes {
    let mut result = BytesMut::from(&br#"{"protocolVersion":"#[..]);
    result.extend_from_slice(revision);
    result.extend_from_slice(br#","capabilities":"#);
    result.extend_from_slice(&server_capabilities(discovered));
    let info = json::get(discovered, "_meta").and_then(|meta| json::get(meta, SERVER_INFO));
    result.extend_from_slice(br#","serverInfo":"#);
    result.extend_from_slice(info.unwrap_or(br#"{"name":"unnamed","version":"0"}"#));
    if let Some(instructions) = json::get(discovered, "instructions") {
        result.extend_from_slice(br#","instructions":"#);
        result.extend_from_slice(instructions);
    }
    if is_marked {
        result.extend_from_slice(format!(r#","_meta":{{"{STATELESS}":true}}"#).as_bytes());
    }
    result.put_u8(b'}');
    result.freeze()
}

/// Whether a raw result of `initialize` is marked as that of a server of this era.
pub(crate) fn is_stateless(initialized: &[u8]) -> bool {
    let meta = json::get(initialized, "_meta");
    meta.is_some_and(|meta| json::get(meta, STATELESS) == Some(b"true"))
}

/// A raw result of `initialize` without that mark.
pub(crate) fn unmarked(initialized: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(initialized.len());
    if is_stateless(initialized) {
        let whole = Span::whole(initialized);
        json::push_without(&mut out, initialized, whole, |name| name == "_meta");
    } else {
        out.extend_from_slice(initialized);
    }
    out.freeze()
}

/// The raw capabilities in the raw result of `server/discover`, without the tasks of this era.
pub(crate) fn server_capabilities(discovered: &[u8]) -> BytesMut {
    let declared = json::get(discovered, "capabilities").filter(|value| value.starts_with(b"{"));
    without_tasks(declared.unwrap_or(b"{}"))
}

/// The answer of a server of this era, for a session-based client.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ServerAnswer {
    /// The answer, under the id that was given.
    Complete(Bytes),
    /// What the server wants to know before it answers.
    InputRequired(WantedInput),
    /// A result that asks for more than [`MAX_REQUESTS`] at once.
    TooMuch,
    /// A result of a type that was not agreed on: "A client MUST treat an unrecognized `resultType` as an
    /// error" (2026-07-28 basic, `resultType`); or one that asks for what is no input.
    Unknown,
}

/// What a server wants to know (2026-07-28 mrtr, `InputRequiredResult`).
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct WantedInput {
    /// Its requests, each with its raw key.
    pub(crate) requests: Vec<(Box<[u8]>, Bytes)>,
    /// The raw `requestState`.
    pub(crate) state: Option<Box<[u8]>>,
}

/// The members of results that only this era has.
const MODERN_MEMBERS: [&str; 3] = ["resultType", "ttlMs", "cacheScope"];

impl ServerAnswer {
    /// Reads an answer, which gets this raw id.
    pub(crate) fn of(answer: &Message, id: &[u8]) -> Self {
        let text = answer.bytes();
        let Some(outcome) = answer
            .outcome_span()
            .filter(|_| answer.kind() == Kind::Result)
        else {
            return Self::Complete(answer.clone().into_bytes_with_id(id));
        };
        let (mut kind, mut result) = (None, BytesMut::with_capacity(text.len() + id.len()));
        result.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
        result.extend_from_slice(id);
        result.extend_from_slice(br#","result":"#);
        let mut separator = b'{';
        json::each_member(text, outcome, |key, value| {
            let key = key.of(text);
            let mut known = MODERN_MEMBERS.iter();
            match known.position(|name| json::is_named(key, name)) {
                Some(0) => kind = Some(value.of(text)),
                Some(_) => {}
                None => {
                    result.put_u8(separator);
                    separator = b',';
                    result.extend_from_slice(key);
                    result.put_u8(b':');
                    result.extend_from_slice(value.of(text));
                }
            }
        });
        if separator == b'{' {
            result.put_u8(b'{');
        }
        result.extend_from_slice(b"}}");
        match kind.map(json::decoded) {
            // "Clients MUST treat an absent `resultType` as "complete"".
            None => Self::Complete(result.freeze()),
            Some(Some(kind)) if kind == "complete" => Self::Complete(result.freeze()),
            Some(Some(kind)) if kind == "input_required" => {
                let wanted = WantedInput::of(outcome.of(text));
                wanted.map_or_else(|refused| refused, Self::InputRequired)
            }
            Some(_) => Self::Unknown,
        }
    }
}

/// An answer of a server of this era to a request with this method, for a client with a session: without what is said of
/// how long its result may be kept, and without the optional members that clients of older revisions cannot read, who would
/// refuse the whole answer because of one tool. Until 2025-11-25 a result is structured as an object alone (tools, "Structured
/// Content").
pub(crate) fn for_session_client(method: &str, mut answer: Bytes) -> Bytes {
    if Completion::is_cacheable(method)
        && let Some((_, plain)) = CacheHint::take_from(&answer)
    {
        answer = plain;
    }
    let cut = match method {
        "tools/list" => with_object_schemas(&answer),
        "tools/call" => with_structured_object(&answer),
        _ => None,
    };
    cut.unwrap_or(answer)
}

/// A list of tools without output schemas of what is no object; none for one that has none such.
fn with_object_schemas(answer: &[u8]) -> Option<Bytes> {
    memmem::find(answer, OUTPUT_SCHEMA.as_bytes())?;
    let result = json::member(answer, Span::whole(answer), "result")?;
    let tools = json::member(answer, result, "tools")?;
    let mut kept = BytesMut::with_capacity(tools.of(answer).len());
    let mut is_cut = false;
    let mut items = json::Items::of(tools.of(answer));
    while let Ok(Some(tool)) = items.next() {
        kept.put_u8(if kept.is_empty() { b'[' } else { b',' });
        let schema = json::get(tool, OUTPUT_SCHEMA);
        let kind = |schema| json::get(schema, "type").and_then(json::decoded);
        if schema.is_none_or(|schema| kind(schema).as_deref() == Some("object")) {
            kept.extend_from_slice(tool);
        } else {
            is_cut = true;
            json::push_without(&mut kept, tool, Span::whole(tool), |name| {
                name == OUTPUT_SCHEMA
            });
        }
    }
    kept.put_u8(b']');
    is_cut.then(|| {
        let mut list = BytesMut::with_capacity(answer.len());
        json::splice(&mut list, answer, &[(tools, &kept)]);
        list.freeze()
    })
}

/// A result of a tool without what is structured and no object; none for one that has none such.
fn with_structured_object(answer: &[u8]) -> Option<Bytes> {
    memmem::find(answer, STRUCTURED.as_bytes())?;
    let result = json::member(answer, Span::whole(answer), "result")?;
    let structured = json::member(answer, result, STRUCTURED)?;
    if structured.of(answer).starts_with(b"{") {
        return None;
    }
    let mut plain = BytesMut::with_capacity(answer.len());
    json::splice(&mut plain, answer, &[(structured.of_member(answer), b"")]);
    Some(plain.freeze())
}

const OUTPUT_SCHEMA: &str = "outputSchema";
const STRUCTURED: &str = "structuredContent";

impl WantedInput {
    /// The bytes that are kept of it until it is answered.
    pub(crate) fn size(&self) -> usize {
        let keys = self
            .requests
            .iter()
            .map(|(key, _)| key.len())
            .sum::<usize>();
        keys + self.state.as_ref().map_or(0, |state| state.len())
    }

    /// What an answer asks for, if it is such a result.
    pub(crate) fn in_answer(answer: &Message) -> Option<Self> {
        let result = answer.result()?;
        let kind = json::get(result, MODERN_MEMBERS[0]).and_then(json::decoded);
        (kind.as_deref() == Some("input_required")).then(|| Self::of(result).ok())?
    }

    /// Its requests for the client, under the keys of the server.
    pub(crate) fn into_requests(self) -> Vec<InputRequest> {
        let requests = self.requests.into_iter();
        requests
            .map(|(key, request)| InputRequest {
                key: json::decoded(&key).map(Into::into),
                id: Bytes::from(key),
                request,
            })
            .collect()
    }

    /// The input that a raw result asks for.
    ///
    /// # Errors
    ///
    /// `TooMuch`; `Unknown` if it asks for nothing, and where its state is no string, or its requests are no object with a
    /// key for each: "keys are server assigned identifiers and MUST be unique within the scope of the request" (2026-07-28
    /// mrtr, "Server Requirements").
    fn of(result: &[u8]) -> Result<Self, ServerAnswer> {
        let unknown = ServerAnswer::Unknown;
        // Some libraries write what is absent as null.
        let member = |name| json::get(result, name).filter(|value| *value != b"null");
        let state = member("requestState");
        let wanted = member("inputRequests").unwrap_or(b"{}");
        if state.is_some_and(|state| !state.starts_with(b"\"")) || !wanted.starts_with(b"{") {
            return Err(unknown);
        }
        let mut requests: Vec<(Box<[u8]>, Bytes)> = Vec::new();
        for (key, request) in json::members(wanted, Span::whole(wanted)) {
            let request = request.of(wanted);
            if requests.len() >= MAX_REQUESTS {
                return Err(ServerAnswer::TooMuch);
            }
            let method = json::get(request, "method").and_then(json::decoded);
            if method.is_none_or(|method| !InputRequest::is_one(&method)) {
                return Err(unknown);
            }
            let key = key.of(wanted);
            let own = json::canonical(key);
            let mut known = requests.iter();
            if known.any(|(key, _)| json::canonical(key) == own) {
                return Err(unknown);
            }
            requests.push((key.into(), Bytes::copy_from_slice(request)));
        }
        let is_anything = state.is_some() || !requests.is_empty();
        let state = state.map(Into::into);
        is_anything
            .then_some(Self { requests, state })
            .ok_or(unknown)
    }
}

/// The most requests of one answer.
const MAX_REQUESTS: usize = 16;

/// Appends an input request as a request of a session-based server, under a raw id: with its raw key for a client of this
/// era, which will need it, and else with what those of other eras need.
pub(crate) fn push_ask(id: &[u8], request: &[u8], key: Option<&[u8]>, out: &mut BytesMut) {
    let method = json::get(request, "method").and_then(json::decoded);
    let params = json::get(request, "params");
    let changed = match (key, params) {
        (Some(key), params) => Some(with_key(params, key)),
        (None, Some(params)) => with_elicitation_id(params, id),
        (None, None) => None,
    };
    let params = changed.as_deref().or(params);
    jsonrpc::push_request(id, &method.unwrap_or_default(), params, out);
}

/// The raw parameters of a URL elicitation with the id that it has until 2025-11-25 (elicitation, "URL Mode"): the raw id of
/// its request. None for others, and for one that has an id.
fn with_elicitation_id(params: &[u8], id: &[u8]) -> Option<Bytes> {
    let mode = json::get(params, "mode").and_then(json::decoded)?;
    if mode != "url" {
        return None;
    }
    let member = [b"\"", ELICITATION_ID.as_bytes(), b"\":", id].concat();
    let (span, member) = json::with_member(params, Span::whole(params), ELICITATION_ID, member)?;
    let mut out = BytesMut::with_capacity(params.len() + member.len());
    json::splice(&mut out, params, &[(span, &member)]);
    Some(out.freeze())
}

/// The member with the id of a URL elicitation, which this era does not have.
const ELICITATION_ID: &str = "elicitationId";

/// A request made again, under another raw id, with the raw answers of the client, by their raw keys, and the
/// raw state of the server. None for a request without parameters, which is none that may be asked back.
pub(crate) fn retry<'r>(
    request: &[u8],
    id: &[u8],
    answers: impl Iterator<Item = (&'r [u8], &'r [u8])>,
    state: Option<&[u8]>,
) -> Option<Bytes> {
    let message = Message::parse(Bytes::copy_from_slice(request)).ok()?;
    let mut added = BytesMut::new();
    for (at, (key, answer)) in answers.enumerate() {
        added.extend_from_slice(if at == 0 {
            br#""inputResponses":{"#
        } else {
            b","
        });
        added.extend_from_slice(key);
        added.put_u8(b':');
        added.extend_from_slice(answer);
    }
    if !added.is_empty() {
        added.extend_from_slice(b"},");
    }
    if let Some(state) = state {
        added.extend_from_slice(br#""requestState":"#);
        added.extend_from_slice(state);
        added.put_u8(b',');
    }
    // There is `_meta` at least, so that a comma is in place.
    let place = message.params_span()?.behind_brace(request);
    let mut cuts = [(message.id_span()?, id), (place, &*added)];
    cuts.sort_by_key(|(span, _)| span.start());
    let mut line = BytesMut::with_capacity(request.len() + added.len() + id.len());
    message.splice(&mut line, &cuts);
    Some(line.freeze())
}

/// The raw id of the subscription that a notification is sent for.
pub(crate) fn subscription_of(notification: &Message) -> Option<&[u8]> {
    let meta = notification.meta()?;
    json::get(meta.of(notification.bytes()), SUBSCRIPTION)
}

/// A notification without the id of its subscription.
pub(crate) fn without_subscription(notification: &Message) -> Bytes {
    let text = notification.bytes();
    let Some(meta) = notification.meta() else {
        return text.clone();
    };
    let mut kept = BytesMut::new();
    json::push_without(&mut kept, text, meta, |name| name == SUBSCRIPTION);
    let mut line = BytesMut::with_capacity(text.len());
    notification.splice(&mut line, &[(meta, &kept)]);
    line.freeze()
}

/// Leaves those of these raw URIs, in their canonical spelling, that a server has not agreed to watch (2026-07-28
/// subscriptions, "Acknowledgment"). It may name any number of others, of which nothing is kept.
pub(crate) fn leave_unacknowledged(acknowledgement: &Message, asked: &mut HashSet<&[u8]>) {
    let filter = acknowledgement
        .params()
        .and_then(|params| json::get(params, "notifications"));
    let uris = filter.and_then(|filter| json::get(filter, "resourceSubscriptions"));
    let mut items = uris.map(json::Items::of);
    while !asked.is_empty()
        && let Some(Ok(Some(uri))) = items.as_mut().map(json::Items::next)
    {
        asked.remove(&*json::canonical(uri));
    }
}

#[cfg(test)]
#[path = "../tests/session_client.rs"]
mod tests;

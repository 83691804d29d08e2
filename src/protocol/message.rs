//! JSON-RPC messages over raw bytes: the kind of a message, and the spans of its members.
//!
//! A [`Message`] owns its bytes and the spans of the members that the gateway acts on; everything
//! else is forwarded unchanged. Translation is by splicing (`json::splice`).

use bytes::{Buf, Bytes, BytesMut};

use super::json::{self, Scanner, Span};
use super::method::Method;
use super::params::{Params, check_count, check_imitation, decode_key, set_once};
use super::refusal::{Refusal, Rejected};

/// A checked JSON-RPC message on one line.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    bytes: Bytes,
    kind: Kind,
    method: Method,
    method_name: Option<Span>,
    id: Option<Span>,
    params: Option<Span>,
    /// The result or the error of a response.
    outcome: Option<Span>,
    members: Params,
}

/// The kind of a message, by its envelope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A method and an id.
    Request,
    /// A method only.
    Notification,
    /// An id and a result.
    Result,
    /// An id and an error.
    Error,
}

/// The body of a request: one message, or an array of messages.
#[derive(Debug)]
pub(crate) enum Body {
    /// One message.
    One(Message),
    /// A batch (2025-03-26 only); each item is accepted or refused by itself.
    Batch(Vec<Result<Message, Rejected>>),
}

/// The most items of a batch.
pub(crate) const MAX_BATCH: usize = 100;

/// The longest id, progress token, method, or name of a tool or prompt, in bytes. The specification
/// has no bound; usual tokens are counters and UUIDs, and each is kept for as long as its call is in
/// flight.
const MAX_TOKEN: usize = 1024;

impl Message {
    /// The whole message, on one line.
    pub(crate) fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The message to be kept, with bytes of its own: a part of a connection's buffer, or of a batch, would
    /// keep all of it.
    pub(crate) fn kept(self) -> Self {
        Self {
            bytes: Bytes::copy_from_slice(&self.bytes),
            ..self
        }
    }

    /// The kind of the message.
    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// The method, as far as the gateway distinguishes it.
    pub(crate) fn method(&self) -> Method {
        self.method
    }

    /// The decoded method; empty for a response.
    pub(crate) fn method_name(&self) -> std::borrow::Cow<'_, str> {
        let decoded = self
            .method_name
            .and_then(|span| json::decoded(span.of(&self.bytes)));
        decoded.unwrap_or_default()
    }

    /// The span of the id; requests and responses have one.
    pub(crate) fn id_span(&self) -> Option<Span> {
        self.id
    }

    /// The raw id: `1`, `1.0` and `"1"` are three different ids.
    pub(crate) fn id(&self) -> Option<&[u8]> {
        self.id.map(|span| span.of(&self.bytes))
    }

    /// The raw `result` of a response.
    pub(crate) fn result(&self) -> Option<&[u8]> {
        let outcome = self.outcome.filter(|_| self.kind == Kind::Result);
        outcome.map(|span| span.of(&self.bytes))
    }

    /// The raw `error` of a response.
    pub(crate) fn error(&self) -> Option<&[u8]> {
        let outcome = self.outcome.filter(|_| self.kind == Kind::Error);
        outcome.map(|span| span.of(&self.bytes))
    }

    /// Whether the outcome of a response has the shape of the schema: a result is an object, an error has an
    /// integer as code and a text (2025-11-25 basic, "Responses").
    pub(crate) fn has_shape(&self) -> bool {
        if let Some(result) = self.result() {
            return result.starts_with(b"{");
        }
        self.error().is_none_or(|error| {
            let code = json::get(error, "code").and_then(|code| str::from_utf8(code).ok());
            let message = json::get(error, "message").and_then(json::decoded);
            code.is_some_and(|code| code.parse::<i64>().is_ok()) && message.is_some()
        })
    }

    /// The span of the result or the error of a response.
    pub(super) fn outcome_span(&self) -> Option<Span> {
        self.outcome
    }

    /// The span of `params`, which are an object.
    pub(super) fn params_span(&self) -> Option<Span> {
        self.params
    }

    /// The raw `params`, which are an object.
    pub(crate) fn params(&self) -> Option<&[u8]> {
        self.params.map(|span| span.of(&self.bytes))
    }

    /// The decoded `params.name`.
    pub(crate) fn name(&self) -> Option<std::borrow::Cow<'_, str>> {
        json::decoded(self.members.name?.of(&self.bytes))
    }

    /// The decoded name of the tool that a request calls.
    pub(crate) fn tool(&self) -> Option<std::borrow::Cow<'_, str>> {
        self.name().filter(|_| self.method == Method::ToolsCall)
    }

    /// The raw `params.uri`.
    pub(crate) fn uri(&self) -> Option<&[u8]> {
        Some(self.members.uri?.of(&self.bytes))
    }

    /// `params.uri` in its canonical spelling, which identifies a subscription: servers may write `/`
    /// or `&` as escapes.
    pub(crate) fn subject(&self) -> Option<Box<[u8]>> {
        self.uri().map(json::canonical)
    }

    /// Whether there is a `params.ref` (completions).
    pub(crate) fn has_reference(&self) -> bool {
        self.members.reference.is_some()
    }

    /// The raw `name` and `uri` of `params.ref`, a reference to a prompt or a resource.
    pub(crate) fn reference(&self) -> (Option<&[u8]>, Option<&[u8]>) {
        let reference = self.members.reference.map(|span| span.of(&self.bytes));
        let get = |key| json::get(reference?, key);
        (get("name"), get("uri"))
    }

    /// The raw `params.name`.
    pub(crate) fn raw_name(&self) -> Option<&[u8]> {
        Some(self.members.name?.of(&self.bytes))
    }

    /// The span of `params.cursor` (lists).
    pub(crate) fn cursor(&self) -> Option<Span> {
        self.members.cursor
    }

    /// The decoded `params.level` (log messages, and the level of logging).
    pub(crate) fn level(&self) -> Option<std::borrow::Cow<'_, str>> {
        json::decoded(self.members.level?.of(&self.bytes))
    }

    /// The raw `params.taskId`.
    pub(crate) fn task_id(&self) -> Option<&[u8]> {
        self.members.task_id.map(|span| span.of(&self.bytes))
    }

    /// Whether `params.task` requests a task (2025-11-25 tasks).
    pub(crate) fn wants_task(&self) -> bool {
        self.members.task.is_some()
    }

    /// The message without `params.task`; none if it has none.
    pub(crate) fn without_task(&self) -> Option<Self> {
        let value = self.members.task?;
        let mut bytes = BytesMut::with_capacity(self.bytes.len());
        json::splice(
            &mut bytes,
            &self.bytes,
            &[(value.of_member(&self.bytes), b"")],
        );
        // Removing a member of an object leaves an object.
        Self::parse(bytes.freeze()).ok()
    }

    /// The span of `params.requestId` (cancelled).
    pub(crate) fn request_id(&self) -> Option<Span> {
        self.members.request_id
    }

    /// The span of `params.progressToken` (progress).
    pub(crate) fn progress_token(&self) -> Option<Span> {
        self.members.progress_token
    }

    /// The span of `params._meta.progressToken` (requests).
    pub(crate) fn meta_progress_token(&self) -> Option<Span> {
        self.members.meta_progress_token
    }

    /// The span of `params.protocolVersion` (initialize).
    pub(crate) fn protocol_version(&self) -> Option<Span> {
        self.members.protocol_version
    }

    /// The raw `taskId` of the related task in `params._meta`.
    pub(crate) fn related_task(&self) -> Option<&[u8]> {
        json::get(self.members.meta_related_task?.of(&self.bytes), "taskId")
    }

    /// The span of `params._meta`.
    pub(super) fn meta(&self) -> Option<Span> {
        self.members.meta
    }

    /// Whether `params._meta` names a revision, which only requests of the modern era do.
    pub(crate) fn is_modern(&self) -> bool {
        self.members.is_modern
    }

    /// Whether `params` has a member that belongs to one round of a request (2026-07-28 mrtr).
    pub(super) fn has_round(&self) -> bool {
        self.members.has_round()
    }

    /// Whether `params._meta` has a key that the gateway gives to itself.
    pub(crate) fn has_own_key(&self) -> bool {
        self.members.has_own_key
    }

    /// Appends the message with each span of `cuts` replaced.
    pub(crate) fn splice(&self, out: &mut BytesMut, cuts: &[(Span, &[u8])]) {
        json::splice(out, &self.bytes, cuts);
    }

    /// The message with another id. It is changed where it is if nobody else holds its bytes and it
    /// does not grow: answers may be large.
    pub(crate) fn into_bytes_with_id(self, id: &[u8]) -> Bytes {
        let Some(span) = self.id else {
            return self.bytes;
        };
        let Some(spare) = (span.end() - span.start()).checked_sub(id.len()) else {
            return with_id(&self.bytes, span, id);
        };
        match self.bytes.try_into_mut() {
            Ok(mut bytes) => {
                bytes[span.end() - id.len()..span.end()].copy_from_slice(id);
                bytes.copy_within(..span.start(), spare);
                bytes.advance(spare);
                bytes.freeze()
            }
            Err(shared) => with_id(&shared, span, id),
        }
    }

    /// Parses one message from a line that contains nothing else.
    pub(crate) fn parse(bytes: Bytes) -> Result<Self, Refusal> {
        let (envelope, checked) = Envelope::of(&bytes).map_err(|rejected| rejected.refusal)?;
        Ok(envelope.into_message(checked, bytes))
    }

    /// Parses one message of a server as [`Message::parse`] does, and checks the shape of a response.
    ///
    /// # Errors
    ///
    /// The line itself, if it is no message.
    pub(crate) fn parse_line(line: Bytes) -> Result<Self, Bytes> {
        let Ok((envelope, checked)) = Envelope::of(&line) else {
            return Err(line);
        };
        let message = envelope.into_message(checked, line);
        if message.has_shape() {
            Ok(message)
        } else {
            Err(message.bytes)
        }
    }
}

fn with_id(bytes: &[u8], span: Span, id: &[u8]) -> Bytes {
    let mut line = BytesMut::with_capacity(bytes.len() + id.len());
    json::splice(&mut line, bytes, &[(span, id)]);
    line.freeze()
}

impl Body {
    /// Parses the body of a request.
    ///
    /// # Errors
    ///
    /// `NotJson` unless the body is exactly one JSON text in UTF-8; `Invalid` for a single message
    /// that is not JSON-RPC 2.0, and for an empty or oversized batch.
    pub(crate) fn parse(bytes: Bytes) -> Result<Self, Rejected> {
        let first = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
        if first != Some(&b'[') {
            return message(bytes).map(Self::One);
        }
        if std::str::from_utf8(&bytes).is_err() {
            return Err(Refusal::NotJson("not UTF-8").into());
        }
        let mut items = Vec::new();
        let mut scanner = Scanner::new(&bytes);
        scanner.array::<Refusal>(0, |scanner| {
            if items.len() == MAX_BATCH {
                return Err(Refusal::Invalid("more than 100 messages in a batch"));
            }
            items.push(scanner.value(1)?);
            Ok(())
        })?;
        scanner.finish()?;
        if items.is_empty() {
            return Err(Refusal::Invalid("an empty batch").into());
        }
        let item = |span: Span| message(bytes.slice(span.start()..span.end()));
        Ok(Self::Batch(items.into_iter().map(item).collect()))
    }

    /// Whether a line of a server is an array, of any length (2025-03-26 basic, "Batching").
    pub(crate) fn is_array(line: &[u8]) -> bool {
        if !line.starts_with(b"[") || std::str::from_utf8(line).is_err() {
            return false;
        }
        let mut scanner = Scanner::new(line);
        let read = scanner.array::<Refusal>(0, |scanner| Ok(scanner.value(1).map(drop)?));
        read.is_ok() && scanner.finish().is_ok()
    }

    /// The raw id of the request that the body is, if it is one.
    pub(crate) fn request_id(&self) -> Option<&[u8]> {
        match self {
            Self::One(message) if message.kind() == Kind::Request => message.id(),
            Self::One(_) | Self::Batch(_) => None,
        }
    }

    /// Whether a message of the body is of the modern era.
    pub(crate) fn is_modern(&self) -> bool {
        match self {
            Self::One(message) => message.is_modern(),
            Self::Batch(items) => items.iter().flatten().any(Message::is_modern),
        }
    }
}

/// Parses one message of a client; a refusal has the id of the request, if one can be read.
fn message(bytes: Bytes) -> Result<Message, Rejected> {
    let (envelope, checked) = Envelope::of(&bytes)?;
    Ok(envelope.into_message(checked, bytes))
}

/// The spans of the members of an envelope while it is read.
#[derive(Default)]
struct Envelope {
    jsonrpc: Option<Span>,
    id: Option<Span>,
    method: Option<Span>,
    params: Option<Span>,
    result: Option<Span>,
    error: Option<Span>,
    members: Params,
    /// Whether `id` or `method` is there twice, so that it cannot be said which one is meant.
    is_ambiguous: bool,
}

impl Envelope {
    /// Reads and checks the envelope of a text that contains nothing else.
    fn of(text: &[u8]) -> Result<(Self, (Kind, Method)), Rejected> {
        if std::str::from_utf8(text).is_err() {
            return Err(Refusal::NotJson("not UTF-8").into());
        }
        let mut scanner = Scanner::new(text);
        let (envelope, read) = Self::read(&mut scanner, text)?;
        scanner.finish()?;
        match read.and_then(|()| envelope.check(text)) {
            Ok(checked) => Ok((envelope, checked)),
            Err(refusal) => Err(Rejected {
                refusal,
                id: envelope.refused_id(text).map(Into::into),
            }),
        }
    }

    /// The raw id by which a refusal answers; none for a response, whose id is one of the server's.
    fn refused_id<'t>(&self, text: &'t [u8]) -> Option<&'t [u8]> {
        let id = self.method.and(self.id)?.of(text);
        (!self.is_ambiguous && check_token(id, "").is_ok()).then_some(id)
    }

    /// Reads an envelope. The outer error is broken JSON, the inner one the refusal of a message: the
    /// whole text is read first, so that broken JSON is reported as such wherever it is.
    fn read(
        scanner: &mut Scanner<'_>,
        text: &[u8],
    ) -> Result<(Self, Result<(), Refusal>), Refusal> {
        let mut envelope = Self::default();
        if scanner.peek() != Some(b'{') {
            scanner.value(0)?;
            let refusal = Refusal::Invalid("a message must be an object");
            return Ok((envelope, Err(refusal)));
        }
        let mut refusal = Ok(());
        let mut count = 0;
        scanner.object::<Refusal>(0, |scanner, key| {
            count += 1;
            refusal = refusal.and(check_count(count));
            if refusal.is_err() {
                // The rest is only checked to be JSON, and read for the id of the refusal.
                let value = scanner.value(1)?;
                envelope.member_behind_refusal(key.of(text), value);
                return Ok(());
            }
            refusal = envelope.member(scanner, 1, key, text)?;
            Ok(())
        })?;
        Ok((envelope, refusal))
    }

    fn member_behind_refusal(&mut self, key: &[u8], value: Span) {
        let slot = if json::is_named(key, "id") {
            &mut self.id
        } else if json::is_named(key, "method") {
            &mut self.method
        } else {
            return;
        };
        self.is_ambiguous |= slot.replace(value).is_some();
    }

    fn member(
        &mut self,
        scanner: &mut Scanner<'_>,
        depth: usize,
        key: Span,
        text: &[u8],
    ) -> Result<Result<(), Refusal>, Refusal> {
        let slot = match &*decode_key(key, text) {
            b"jsonrpc" => &mut self.jsonrpc,
            b"id" => {
                self.is_ambiguous |= self.id.is_some();
                &mut self.id
            }
            b"method" => {
                self.is_ambiguous |= self.method.is_some();
                &mut self.method
            }
            b"result" => &mut self.result,
            b"error" => &mut self.error,
            b"params" => {
                let (span, refusal) = self.members.read_params(scanner, depth, text)?;
                return Ok(set_once(&mut self.params, span).and(refusal));
            }
            other => {
                let refusal = check_imitation(other, &KNOWN);
                scanner.value(depth)?;
                return Ok(refusal);
            }
        };
        let span = scanner.value(depth)?;
        Ok(set_once(slot, span))
    }

    /// The method of a request or notification. It and the name behind it are bounded, because they are
    /// decoded again and again.
    fn method_of(&self, bytes: &[u8]) -> Result<Method, Refusal> {
        if self.method.is_some_and(is_long) {
            return Err(Refusal::Invalid("method is too long"));
        }
        let method = match self.method {
            Some(span) => json::decoded(span.of(bytes))
                .map(|name| Method::of(&name))
                .ok_or(Refusal::Invalid("method must be a string"))?,
            None => Method::Other,
        };
        let is_named = matches!(method, Method::ToolsCall | Method::PromptsGet);
        if is_named && self.members.name.is_some_and(is_long) {
            return Err(Refusal::Invalid("params.name is too long"));
        }
        Ok(method)
    }

    /// Checks that the members make a message of JSON-RPC.
    fn check(&self, bytes: &[u8]) -> Result<(Kind, Method), Refusal> {
        if self.jsonrpc.map(|span| span.of(bytes)) != Some(b"\"2.0\"") {
            return Err(Refusal::Invalid("jsonrpc must be \"2.0\""));
        }
        let kind = match (self.method, self.id, self.result, self.error) {
            (Some(_), Some(_), None, None) => Kind::Request,
            (Some(_), None, None, None) => Kind::Notification,
            (None, Some(_), Some(_), None) => Kind::Result,
            (None, Some(_), None, Some(_)) => Kind::Error,
            _ => {
                return Err(Refusal::Invalid(
                    "neither a request, a notification nor a response",
                ));
            }
        };
        if let Some(id) = self.id {
            check_token(id.of(bytes), "id must be a string or an integer")?;
        }
        let is_object =
            |span: Option<Span>| span.is_none_or(|span| span.of(bytes).starts_with(b"{"));
        if !is_object(self.params) {
            return Err(Refusal::Invalid("params must be an object"));
        }
        if !is_object(self.error) {
            return Err(Refusal::Invalid("error must be an object"));
        }
        let Params {
            meta_progress_token,
            progress_token,
            ..
        } = self.members;
        for token in [meta_progress_token, progress_token].iter().flatten() {
            check_token(
                token.of(bytes),
                "a progress token must be a string or an integer",
            )?;
        }
        Ok((kind, self.method_of(bytes)?))
    }

    fn into_message(self, (kind, method): (Kind, Method), bytes: Bytes) -> Message {
        let Self {
            id,
            members,
            method: method_name,
            params,
            result,
            error,
            ..
        } = self;
        Message {
            bytes: on_one_line(bytes),
            kind,
            method,
            method_name,
            id,
            params,
            outcome: result.or(error),
            members,
        }
    }
}

/// The members of an envelope.
const KNOWN: [&str; 6] = ["jsonrpc", "id", "method", "params", "result", "error"];

fn is_long(token: Span) -> bool {
    token.end() - token.start() > MAX_TOKEN
}

/// Checks an id or a progress token: a string or an integer, never null (2025-11-25 basic,
/// "Requests").
fn check_token(token: &[u8], message: &'static str) -> Result<(), Refusal> {
    if token.len() > MAX_TOKEN {
        return Err(Refusal::Invalid("an id or progress token is too long"));
    }
    let is_string = token.first() == Some(&b'"');
    let mut parts = token.splitn(2, |byte| *byte == b'.');
    let whole = parts.next().unwrap_or_default();
    let digits = whole.strip_prefix(b"-").unwrap_or(whole);
    let is_integer = !digits.is_empty()
        && digits.iter().all(u8::is_ascii_digit)
        && parts
            .next()
            .is_none_or(|fraction| fraction.iter().all(|digit| *digit == b'0'));
    if is_string || is_integer {
        Ok(())
    } else {
        Err(Refusal::Invalid(message))
    }
}

/// Replaces each CR and LF by a blank: lines and SSE break at them, and spans stay valid. Only for
/// text that was scanned, where they are white space: inside a string they are an error that a
/// blank would hide.
fn on_one_line(bytes: Bytes) -> Bytes {
    if !has_line_end(&bytes) {
        return bytes;
    }
    let mut bytes = bytes
        .try_into_mut()
        .unwrap_or_else(|shared| BytesMut::from(&*shared));
    replace_line_ends(&mut bytes, b' ');
    bytes.freeze()
}

/// Reports whether a text contains CR or LF.
pub(crate) fn has_line_end(text: &[u8]) -> bool {
    memchr::memchr2(b'\n', b'\r', text).is_some()
}

/// Replaces each CR and LF of JSON that was not scanned by a tab: which is white space where they are, and an error
/// inside a string, as they are.
pub(crate) fn end_no_line(json: &mut [u8]) {
    replace_line_ends(json, b'\t');
}

fn replace_line_ends(text: &mut [u8], by: u8) {
    // One pass, without a search for each: a body may consist of them.
    for byte in text {
        if matches!(*byte, b'\n' | b'\r') {
            *byte = by;
        }
    }
}

#[cfg(test)]
#[path = "tests/message.rs"]
mod tests;

//! The JSON-RPC envelope over raw bytes: what a message is, and where its parts stand.
//!
//! A [`Message`] owns its bytes and knows the spans of the members that the gateway acts
//! on; everything else is forwarded as it came. Translation is by splicing (`json::splice`).

use bytes::{Bytes, BytesMut};

use super::json::{self, Fault, Scanner, Span};
use super::meta;

/// One checked JSON-RPC message on one line.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    bytes: Bytes,
    kind: Kind,
    method: Method,
    method_name: Option<Span>,
    id: Option<Span>,
    params: Option<Span>,
    acted: Acted,
}

/// What a message is, by its envelope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Has a method and an id.
    Request,
    /// Has a method only.
    Notification,
    /// Has an id and a result.
    Result,
    /// Has an id and an error.
    Error,
}

/// The methods that the gateway treats in a way of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    /// `initialize`
    Initialize,
    /// `ping`
    Ping,
    /// `tools/call`
    ToolsCall,
    /// `tasks/result`
    TasksResult,
    /// `notifications/cancelled`
    Cancelled,
    /// `notifications/progress`
    Progress,
    /// `notifications/message`
    Log,
    /// Any other, and the absence of one.
    Other,
}

impl Method {
    fn of(name: &str) -> Self {
        match name {
            "initialize" => Self::Initialize,
            "ping" => Self::Ping,
            "tools/call" => Self::ToolsCall,
            "tasks/result" => Self::TasksResult,
            "notifications/cancelled" => Self::Cancelled,
            "notifications/progress" => Self::Progress,
            "notifications/message" => Self::Log,
            _ => Self::Other,
        }
    }
}

/// Members of `params` (and of its `_meta`) that the gateway acts on.
#[derive(Clone, Copy, Debug, Default)]
struct Acted {
    name: Option<Span>,
    uri: Option<Span>,
    task: Option<Span>,
    task_id: Option<Span>,
    request_id: Option<Span>,
    progress_token: Option<Span>,
    protocol_version: Option<Span>,
    meta: Option<Span>,
    meta_progress_token: Option<Span>,
    meta_related_task: Option<Span>,
    meta_modern: bool,
}

/// Why bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Not JSON (−32700).
    NotJson(&'static str),
    /// JSON, but not a message (−32600).
    Invalid(&'static str),
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        Self::NotJson(fault.0)
    }
}

/// A body: one message, or an array of them.
#[derive(Debug)]
pub(crate) enum Body {
    /// One message.
    One(Message),
    /// A batch (2025-03-26 only); each item stands or falls by itself.
    Batch(Vec<Result<Message, Refusal>>),
}

/// The most items of a batch (CONTRACT C10).
pub(crate) const MAX_BATCH: usize = 100;

/// The longest id or progress token. The specification names no bound; real ones are
/// counters and UUIDs, and each is kept for as long as its call is in flight.
const MAX_TOKEN: usize = 1024;

impl Message {
    /// The whole message, on one line.
    pub(crate) fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// What it is.
    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// Its method, as far as the gateway cares.
    pub(crate) fn method(&self) -> Method {
        self.method
    }

    /// Its method, decoded; empty for a response.
    pub(crate) fn method_name(&self) -> std::borrow::Cow<'_, str> {
        let decoded = self
            .method_name
            .and_then(|span| json::decoded(span.of(&self.bytes)));
        decoded.unwrap_or_default()
    }

    /// Where its id stands; responses and requests have one.
    pub(crate) fn id_span(&self) -> Option<Span> {
        self.id
    }

    /// The raw token of its id: `1`, `1.0` and `"1"` are three different ids.
    pub(crate) fn id(&self) -> Option<&[u8]> {
        self.id.map(|span| span.of(&self.bytes))
    }

    /// The raw `params`.
    pub(crate) fn params(&self) -> Option<&[u8]> {
        self.params.map(|span| span.of(&self.bytes))
    }

    /// The raw `result` of a response.
    pub(crate) fn result(&self) -> Option<&[u8]> {
        (self.kind == Kind::Result)
            .then(|| json::get(&self.bytes, "result"))
            .flatten()
    }

    /// `params.name`, decoded.
    pub(crate) fn name(&self) -> Option<std::borrow::Cow<'_, str>> {
        json::decoded(self.acted.name?.of(&self.bytes))
    }

    /// The raw `params.taskId`.
    pub(crate) fn task_id(&self) -> Option<&[u8]> {
        self.acted.task_id.map(|span| span.of(&self.bytes))
    }

    /// Whether `params.task` asks for a task (2025-11-25 tasks).
    pub(crate) fn wants_task(&self) -> bool {
        self.acted.task.is_some()
    }

    /// Where `params.requestId` stands (cancelled).
    pub(crate) fn request_id(&self) -> Option<Span> {
        self.acted.request_id
    }

    /// Where `params.progressToken` stands (progress).
    pub(crate) fn progress_token(&self) -> Option<Span> {
        self.acted.progress_token
    }

    /// Where `params._meta.progressToken` stands (requests).
    pub(crate) fn meta_progress_token(&self) -> Option<Span> {
        self.acted.meta_progress_token
    }

    /// Where `params.protocolVersion` stands (initialize).
    pub(crate) fn protocol_version(&self) -> Option<Span> {
        self.acted.protocol_version
    }

    /// The raw `taskId` of `params._meta`'s related task.
    pub(crate) fn related_task(&self) -> Option<&[u8]> {
        json::get(self.acted.meta_related_task?.of(&self.bytes), "taskId")
    }

    /// Whether `params._meta` has a key of the modern era.
    pub(crate) fn is_modern(&self) -> bool {
        self.acted.meta_modern
    }

    /// Appends the message with each stretch of `cuts` replaced.
    pub(crate) fn splice(&self, out: &mut BytesMut, cuts: &[(Span, &[u8])]) {
        json::splice(out, &self.bytes, cuts);
    }

    /// Reads one message from a line that holds nothing else.
    pub(crate) fn parse(bytes: Bytes) -> Result<Self, Refusal> {
        if std::str::from_utf8(&bytes).is_err() {
            return Err(Refusal::NotJson("not UTF-8"));
        }
        let mut scanner = Scanner::new(&bytes);
        let envelope = Envelope::read(&mut scanner, 0, &bytes)?;
        scanner.finish()?;
        envelope.into_message(on_one_line(bytes))
    }
}

impl Body {
    /// Reads a request body.
    ///
    /// # Errors
    ///
    /// `NotJson` for anything that is not exactly one JSON text in UTF-8, `Invalid` for a
    /// single message that is not JSON-RPC 2.0 and for an empty or oversized batch.
    pub(crate) fn parse(bytes: Bytes) -> Result<Self, Refusal> {
        let first = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
        if first != Some(&b'[') {
            return Message::parse(bytes).map(Self::One);
        }
        if std::str::from_utf8(&bytes).is_err() {
            return Err(Refusal::NotJson("not UTF-8"));
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
            return Err(Refusal::Invalid("an empty batch"));
        }
        let message = |span: Span| Message::parse(bytes.slice(span.start()..span.end()));
        Ok(Self::Batch(items.into_iter().map(message).collect()))
    }
}

/// Spans of the envelope's members while it is being read.
#[derive(Default)]
struct Envelope {
    jsonrpc: Option<Span>,
    id: Option<Span>,
    method: Option<Span>,
    params: Option<Span>,
    result: Option<Span>,
    error: Option<Span>,
    acted: Acted,
}

impl Envelope {
    fn read(scanner: &mut Scanner<'_>, depth: usize, text: &[u8]) -> Result<Self, Refusal> {
        let mut envelope = Self::default();
        if scanner.peek() != Some(b'{') {
            scanner.value(depth)?;
            return Err(Refusal::Invalid("a message must be an object"));
        }
        let mut refusal = None;
        scanner.object::<Refusal>(depth, |scanner, key| {
            // The whole text is read before a message is refused: broken JSON is reported
            // as such wherever it is broken.
            if let Err(Refusal::Invalid(why)) = envelope.member(scanner, depth + 1, key, text)? {
                refusal.get_or_insert(Refusal::Invalid(why));
            }
            Ok(())
        })?;
        refusal.map_or(Ok(envelope), Err)
    }

    fn member(
        &mut self,
        scanner: &mut Scanner<'_>,
        depth: usize,
        key: Span,
        text: &[u8],
    ) -> Result<Result<(), Refusal>, Refusal> {
        let slot = match &*name(key, text) {
            "jsonrpc" => &mut self.jsonrpc,
            "id" => &mut self.id,
            "method" => &mut self.method,
            "result" => &mut self.result,
            "error" => &mut self.error,
            "params" => {
                let (span, refusal) = self.acted.read_params(scanner, depth, text)?;
                return Ok(set(&mut self.params, span).and(refusal));
            }
            other => {
                let refusal = imitates(
                    other,
                    &["jsonrpc", "id", "method", "params", "result", "error"],
                );
                scanner.value(depth)?;
                return Ok(refusal);
            }
        };
        let span = scanner.value(depth)?;
        Ok(set(slot, span))
    }

    fn into_message(self, bytes: Bytes) -> Result<Message, Refusal> {
        if self.jsonrpc.map(|span| span.of(&bytes)) != Some(b"\"2.0\"") {
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
            check_token(id.of(&bytes), "id must be a string or an integer")?;
        }
        if self
            .params
            .is_some_and(|span| !span.of(&bytes).starts_with(b"{"))
        {
            return Err(Refusal::Invalid("params must be an object"));
        }
        if self
            .error
            .is_some_and(|span| !span.of(&bytes).starts_with(b"{"))
        {
            return Err(Refusal::Invalid("error must be an object"));
        }
        for token in [self.acted.meta_progress_token, self.acted.progress_token]
            .iter()
            .flatten()
        {
            check_token(
                token.of(&bytes),
                "a progress token must be a string or an integer",
            )?;
        }
        let method = match self.method {
            Some(span) => json::decoded(span.of(&bytes))
                .map(|name| Method::of(&name))
                .ok_or(Refusal::Invalid("method must be a string"))?,
            None => Method::Other,
        };
        let Self {
            id,
            params,
            acted,
            method: method_name,
            ..
        } = self;
        Ok(Message {
            bytes,
            kind,
            method,
            method_name,
            id,
            params,
            acted,
        })
    }
}

impl Acted {
    /// Reads `params` of whatever kind; the members are looked at only in an object.
    fn read_params(
        &mut self,
        scanner: &mut Scanner<'_>,
        depth: usize,
        text: &[u8],
    ) -> Result<(Span, Result<(), Refusal>), Refusal> {
        if scanner.peek() != Some(b'{') {
            return Ok((scanner.value(depth)?, Ok(())));
        }
        let mut refusal = Ok(());
        let span = scanner.object::<Refusal>(depth, |scanner, key| {
            refusal = refusal.and(self.member(scanner, depth + 1, key, text)?);
            Ok(())
        })?;
        Ok((span, refusal))
    }

    fn member(
        &mut self,
        scanner: &mut Scanner<'_>,
        depth: usize,
        key: Span,
        text: &[u8],
    ) -> Result<Result<(), Refusal>, Refusal> {
        let slot = match &*name(key, text) {
            "name" => &mut self.name,
            "uri" => &mut self.uri,
            "task" => &mut self.task,
            "taskId" => &mut self.task_id,
            "requestId" => &mut self.request_id,
            "progressToken" => &mut self.progress_token,
            "protocolVersion" => &mut self.protocol_version,
            "_meta" if scanner.peek() == Some(b'{') => {
                let mut refusal = Ok(());
                let span = scanner.object::<Refusal>(depth, |scanner, key| {
                    refusal = refusal.and(self.meta_member(scanner, depth + 1, key, text)?);
                    Ok(())
                })?;
                return Ok(set(&mut self.meta, span).and(refusal));
            }
            "_meta" => &mut self.meta,
            other => {
                let refusal = imitates(other, &["name", "uri", "_meta"]);
                scanner.value(depth)?;
                return Ok(refusal);
            }
        };
        let span = scanner.value(depth)?;
        Ok(set(slot, span))
    }

    fn meta_member(
        &mut self,
        scanner: &mut Scanner<'_>,
        depth: usize,
        key: Span,
        text: &[u8],
    ) -> Result<Result<(), Refusal>, Refusal> {
        let name = name(key, text);
        let span = scanner.value(depth)?;
        Ok(match &*name {
            "progressToken" => set(&mut self.meta_progress_token, span),
            meta::RELATED_TASK => set(&mut self.meta_related_task, span),
            other => {
                self.meta_modern |= meta::MODERN_KEYS.contains(&other);
                Ok(())
            }
        })
    }
}

fn name(key: Span, text: &[u8]) -> std::borrow::Cow<'_, str> {
    json::decoded(key.of(text)).unwrap_or_default()
}

fn set(slot: &mut Option<Span>, span: Span) -> Result<(), Refusal> {
    if slot.replace(span).is_some() {
        return Err(Refusal::Invalid("a key stands twice"));
    }
    Ok(())
}

/// Refuses keys that a lenient parser takes for one of `known`: case variants and Unicode
/// folds (`Name`, `paramſ`). The gateway and the server must see the same message.
fn imitates(key: &str, known: &[&str]) -> Result<(), Refusal> {
    let longest = known
        .iter()
        .map(|name| name.len())
        .max()
        .unwrap_or_default();
    if key.chars().count() > longest {
        return Ok(());
    }
    let folded: String = key
        .chars()
        .flat_map(char::to_uppercase)
        .flat_map(char::to_lowercase)
        .collect();
    if known.contains(&folded.as_str()) {
        return Err(Refusal::Invalid("a key imitates another one"));
    }
    Ok(())
}

/// 2025-11-25 basic, "Requests": an id is a string or an integer, and never null.
fn check_token(token: &[u8], why: &'static str) -> Result<(), Refusal> {
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
        Err(Refusal::Invalid(why))
    }
}

/// A raw CR or LF in valid JSON is white space; lines and SSE break at them, so they
/// become blanks, and every span stays true. Only for text that was scanned: inside a
/// string they are an error that blanking would hide.
fn on_one_line(bytes: Bytes) -> Bytes {
    if memchr::memchr2(b'\n', b'\r', &bytes).is_none() {
        return bytes;
    }
    let mut bytes = bytes
        .try_into_mut()
        .unwrap_or_else(|shared| BytesMut::from(&*shared));
    let mut at = 0;
    while let Some(found) = memchr::memchr2(b'\n', b'\r', &bytes[at..]) {
        at += found;
        bytes[at] = b' ';
    }
    bytes.freeze()
}

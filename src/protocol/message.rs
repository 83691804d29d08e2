//! JSON-RPC messages over raw bytes: the kind of a message, and the spans of its members.
//!
//! A [`Message`] owns its bytes and the spans of the members that the gateway acts on; everything
//! else is forwarded unchanged. Translation is by splicing (`json::splice`).

use bytes::{Bytes, BytesMut};

use super::json::{self, Scanner, Span};
use super::method::Method;
use super::params::{Params, check_imitation, decode_key, set_once};
use super::refusal::Refusal;

/// A checked JSON-RPC message on one line.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    bytes: Bytes,
    kind: Kind,
    method: Method,
    method_name: Option<Span>,
    id: Option<Span>,
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
    Batch(Vec<Result<Message, Refusal>>),
}

/// The most items of a batch.
pub(crate) const MAX_BATCH: usize = 100;

/// The longest id or progress token, in bytes. The specification has no bound; usual tokens are
/// counters and UUIDs, and each is kept for as long as its call is in flight.
const MAX_TOKEN: usize = 1024;

impl Message {
    /// The whole message, on one line.
    pub(crate) fn bytes(&self) -> &Bytes {
        &self.bytes
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
        (self.kind == Kind::Result)
            .then(|| json::get(&self.bytes, "result"))
            .flatten()
    }

    /// The raw `error` of a response.
    pub(crate) fn error(&self) -> Option<&[u8]> {
        (self.kind == Kind::Error)
            .then(|| json::get(&self.bytes, "error"))
            .flatten()
    }

    /// The decoded `params.name`.
    pub(crate) fn name(&self) -> Option<std::borrow::Cow<'_, str>> {
        json::decoded(self.members.name?.of(&self.bytes))
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

    /// Whether `params._meta` has a key of the modern era.
    pub(crate) fn is_modern(&self) -> bool {
        self.members.is_modern
    }

    /// Appends the message with each span of `cuts` replaced.
    pub(crate) fn splice(&self, out: &mut BytesMut, cuts: &[(Span, &[u8])]) {
        json::splice(out, &self.bytes, cuts);
    }

    /// Parses one message from a line that contains nothing else.
    pub(crate) fn parse(bytes: Bytes) -> Result<Self, Refusal> {
        if std::str::from_utf8(&bytes).is_err() {
            return Err(Refusal::NotJson("not UTF-8"));
        }
        let mut scanner = Scanner::new(&bytes);
        let envelope = Envelope::read(&mut scanner, &bytes)?;
        scanner.finish()?;
        envelope?.into_message(on_one_line(bytes))
    }
}

impl Body {
    /// Parses the body of a request.
    ///
    /// # Errors
    ///
    /// `NotJson` unless the body is exactly one JSON text in UTF-8; `Invalid` for a single message
    /// that is not JSON-RPC 2.0, and for an empty or oversized batch.
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

    /// Whether a message of the body is of the modern era.
    pub(crate) fn is_modern(&self) -> bool {
        match self {
            Self::One(message) => message.is_modern(),
            Self::Batch(items) => items.iter().flatten().any(Message::is_modern),
        }
    }
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
}

impl Envelope {
    /// Reads an envelope. The outer error is broken JSON, the inner one the refusal of a message: the
    /// whole text is read first, so that broken JSON is reported as such wherever it is.
    fn read(scanner: &mut Scanner<'_>, text: &[u8]) -> Result<Result<Self, Refusal>, Refusal> {
        let mut envelope = Self::default();
        if scanner.peek() != Some(b'{') {
            scanner.value(0)?;
            return Ok(Err(Refusal::Invalid("a message must be an object")));
        }
        let mut refusal = Ok(());
        scanner.object::<Refusal>(0, |scanner, key| {
            refusal = refusal.and(envelope.member(scanner, 1, key, text)?);
            Ok(())
        })?;
        Ok(refusal.map(|()| envelope))
    }

    fn member(
        &mut self,
        scanner: &mut Scanner<'_>,
        depth: usize,
        key: Span,
        text: &[u8],
    ) -> Result<Result<(), Refusal>, Refusal> {
        let slot = match &*decode_key(key, text) {
            "jsonrpc" => &mut self.jsonrpc,
            "id" => &mut self.id,
            "method" => &mut self.method,
            "result" => &mut self.result,
            "error" => &mut self.error,
            "params" => {
                let (span, refusal) = self.members.read_params(scanner, depth, text)?;
                return Ok(set_once(&mut self.params, span).and(refusal));
            }
            other => {
                let refusal = check_imitation(other, "jsonrpc id method params result error");
                scanner.value(depth)?;
                return Ok(refusal);
            }
        };
        let span = scanner.value(depth)?;
        Ok(set_once(slot, span))
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
        let is_object =
            |span: Option<Span>| span.is_none_or(|span| span.of(&bytes).starts_with(b"{"));
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
            members,
            method: method_name,
            ..
        } = self;
        Ok(Message {
            bytes,
            kind,
            method,
            method_name,
            id,
            members,
        })
    }
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::message::*;
    use super::super::meta;

    fn parse(text: impl Into<Vec<u8>>) -> Result<Message, Refusal> {
        Message::parse(Bytes::from(text.into()))
    }

    fn is_invalid(text: &str) -> bool {
        matches!(parse(text), Err(Refusal::Invalid(_)))
    }

    fn is_not_json(text: &[u8]) -> bool {
        matches!(parse(text), Err(Refusal::NotJson(_)))
    }

    #[test]
    fn tells_the_four_kinds() {
        let kinds = [
            (r#""id":1,"method":"a""#, Kind::Request),
            (r#""method":"a""#, Kind::Notification),
            (r#""id":1,"result":null"#, Kind::Result),
            (r#""id":1,"error":{}"#, Kind::Error),
        ];
        for (members, kind) in kinds {
            let text = format!(r#"{{"jsonrpc":"2.0",{members}}}"#);
            assert_eq!(parse(text.as_str()).unwrap().kind(), kind, "{text}");
        }
    }

    #[test]
    fn refuses_what_is_no_message() {
        let bad = [
            "{}",
            "1",
            "null",
            r#""text""#,
            r#"{"id":1,"method":"a"}"#,
            r#"{"jsonrpc":"1.0","id":1,"method":"a"}"#,
            r#"{"jsonrpc":2.0,"id":1,"method":"a"}"#,
            r#"{"jsonrpc":"2.0","id":1}"#,
            r#"{"jsonrpc":"2.0","result":{}}"#,
            r#"{"jsonrpc":"2.0","error":{}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":5}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":null}"#,
            r#"{"jsonrpc":"2.0","id":1,"error":"text"}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":1,"error":{}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"a","result":1}"#,
        ];
        for text in bad {
            assert!(is_invalid(text), "{text}");
        }
        for params in ["1", "null", "true", "[]", r#""text""#] {
            let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"a","params":{params}}}"#);
            assert!(is_invalid(&text), "{text}");
        }
        let long = format!("\"{}\"", "x".repeat(MAX_TOKEN));
        for id in ["null", "true", "{}", "[]", "1.5", "1e3", "-0.1", &long] {
            let texts = [
                format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"a"}}"#),
                format!(r#"{{"jsonrpc":"2.0","id":{id},"result":1}}"#),
                format!(r#"{{"jsonrpc":"2.0","method":"a","params":{{"progressToken":{id}}}}}"#),
                format!(
                    r#"{{"jsonrpc":"2.0","id":1,"method":"a","params":{{"_meta":{{"progressToken":{id}}}}}}}"#
                ),
            ];
            for text in texts {
                assert!(is_invalid(&text), "{text}");
            }
        }
    }

    #[test]
    fn bounds_the_depth() {
        let nested = |depth: usize| {
            let (open, close) = ("[".repeat(depth), "]".repeat(depth));
            format!(r#"{{"jsonrpc":"2.0","method":"a","params":{{"x":{open}{close}}}}}"#)
        };
        assert!(parse(nested(126)).is_ok());
        assert!(is_not_json(nested(127).as_bytes()));
    }

    #[test]
    fn refuses_other_encodings_and_what_trails() {
        let good = r#"{"jsonrpc":"2.0","method":"a"}"#;
        let wide: Vec<u8> = good.encode_utf16().flat_map(u16::to_le_bytes).collect();
        assert!(is_not_json(&wide));
        for text in [
            format!("\u{feff}{good}"),
            format!("{good}x"),
            format!("{good}{good}"),
            format!("{good}\n{good}"),
            format!("{good}\0"),
            String::new(),
            " ".to_owned(),
        ] {
            assert!(is_not_json(text.as_bytes()), "{text}");
        }
        assert!(is_not_json(b"{\"jsonrpc\":\"2.0\",\"method\":\"\xff\"}"));
    }

    /// Found by the fuzz target `envelope`: what trails a message that is refused anyway.
    #[test]
    fn broken_json_is_told_as_such_however_invalid_its_beginning_is() {
        for text in [
            r#"{"jsonrpc":"2.0","jsonrpc":"2.0","#,
            r#"{"jsonrpc":"2.0","METHOD":"a"}x"#,
            r#"{"jsonrpc":"2.0","jsonrpc":"2.0"}{}"#,
            r#""text" x"#,
            "1 2",
            "[] {}",
        ] {
            assert!(is_not_json(text.as_bytes()), "{text}");
        }
        assert!(is_invalid(r#"{"jsonrpc":"2.0","METHOD":"a"} "#));
    }

    #[test]
    fn ids_are_kept_as_they_were_written() {
        for id in [
            "1",
            "1.0",
            "-7",
            "\"1\"",
            r#""\u0061""#,
            "18446744073709551616",
        ] {
            let text = format!(r#"{{"jsonrpc":"2.0","id": {id} ,"method":"a"}}"#);
            assert_eq!(parse(text).unwrap().id(), Some(id.as_bytes()));
        }
    }

    #[test]
    fn a_key_that_stands_twice_is_refused_also_when_escaped() {
        let bad = [
            r#"{"jsonrpc":"2.0","jsonrpc":"2.0","method":"a"}"#,
            r#"{"jsonrpc":"2.0","method":"a","method":"b"}"#,
            r#"{"jsonrpc":"2.0","method":"a","m\u0065thod":"b"}"#,
            r#"{"jsonrpc":"2.0","method":"a","id":1,"\u0069d":2}"#,
            r#"{"jsonrpc":"2.0","method":"a","params":{},"p\u0061rams":{}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"name":"a","n\u0061me":"b"}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"uri":"a","uri":"b"}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"cursor":"a","curso\u0072":"b"}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"_meta":{},"\u005fmeta":{}}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"_meta":1,"_meta":{}}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"ref":{},"r\u0065f":{}}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"ref":{"name":"a","n\u0061me":"b"}}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"ref":{"uri":"a","uri":"b"}}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"ref":{"type":"a","type":"b"}}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"_meta":{"progressToken":1,"progress\u0054oken":2}}}"#,
        ];
        for text in bad {
            assert!(is_invalid(text), "{text}");
        }
    }

    #[test]
    fn a_key_that_imitates_another_is_refused() {
        for key in ["METHOD", "Id", "paramſ", "Jsonrpc", "RESULT", r"\u0045rror"] {
            let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"a","{key}":{{}}}}"#);
            assert!(is_invalid(&text), "{text}");
        }
        for key in ["Name", "NAME", "URI", "_Meta", r"n\u0041me"] {
            let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"a","params":{{"{key}":1}}}}"#);
            assert!(is_invalid(&text), "{text}");
        }
        for key in ["Name", "URI", "TYPE", r"tY\u0070e"] {
            let text = format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"a","params":{{"ref":{{"{key}":1}}}}}}"#
            );
            assert!(is_invalid(&text), "{text}");
        }
        assert!(is_invalid(
            r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"Ref":{}}}"#
        ));
        let harmless = r#"{"jsonrpc":"2.0","id":1,"method":"a","x":1,"params":{"arguments":{"Name":1,"name":2,"name":3}}}"#;
        assert!(parse(harmless).is_ok());
    }

    #[test]
    fn finds_what_the_gateway_acts_on() {
        let text = r#"{"params":{"name":"\u0061b","task":{},"taskId":"t","_meta":{"io.modelcontextprotocol/related-task":{"taskId":"r"},"progressToken":7}},"id":1,"method":"tools\/call","jsonrpc":"2.0"}"#;
        let message = parse(text).unwrap();
        assert_eq!(message.method(), Method::ToolsCall);
        assert_eq!(message.method_name(), "tools/call");
        assert_eq!(message.name().as_deref(), Some("ab"));
        assert!(message.wants_task() && !message.is_modern());
        assert_eq!(message.task_id(), Some(&b"\"t\""[..]));
        assert_eq!(message.related_task(), Some(&b"\"r\""[..]));
        let token = message.meta_progress_token().unwrap();
        assert_eq!(token.of(message.bytes()), b"7");
        for key in meta::MODERN_KEYS {
            let text = format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"a","params":{{"_meta":{{"{key}":1}}}}}}"#
            );
            assert!(parse(text).unwrap().is_modern(), "{key}");
        }
    }

    #[test]
    fn batches_have_bounds_and_their_items_stand_alone() {
        let one = r#"{"jsonrpc":"2.0","method":"a"}"#;
        let body = |text: String| Body::parse(text.into());
        let of = |count: usize| format!("[{}]", vec![one; count].join(","));
        let invalid = |text: &str| matches!(body(text.to_owned()), Err(Refusal::Invalid(_)));
        assert!(invalid("[]") && invalid(" [ ] ") && invalid(&of(101)));
        assert!(matches!(body(of(100)), Ok(Body::Batch(items)) if items.len() == 100));
        assert!(matches!(body(one.to_owned()), Ok(Body::One(_))));
        let mixed = body(format!("\n[{one}, [{one}], 5, {{}}, {one}]\n"));
        let Ok(Body::Batch(items)) = mixed else {
            panic!("{mixed:?}");
        };
        let fine: Vec<_> = items.iter().map(Result::is_ok).collect();
        assert_eq!(fine, [true, false, false, false, true]);
        for text in [
            format!("[{one}"),
            format!("[{one},]"),
            format!("{}x", of(1)),
        ] {
            assert!(matches!(body(text), Err(Refusal::NotJson(_))));
        }
    }

    #[test]
    fn line_ends_become_blanks_and_spans_stay_true() {
        let text =
            "{\r\n\"jsonrpc\":\"2.0\",\n\"id\":\n7,\"method\":\"a\",\"params\":{\"name\":\r\"b\"}}";
        let message = parse(text).unwrap();
        assert_eq!(message.bytes().len(), text.len());
        assert!(!message.bytes().iter().any(|byte| b"\r\n".contains(byte)));
        assert_eq!(message.id(), Some(&b"7"[..]));
        assert_eq!(message.name().as_deref(), Some("b"));
        for end in ["\n", "\r"] {
            let text = format!("{{\"jsonrpc\":\"2.0\",\"method\":\"a{end}b\"}}");
            assert!(is_not_json(text.as_bytes()));
        }
    }

    fn token() -> impl Strategy<Value = String> {
        prop_oneof![
            any::<i64>().prop_map(|number| number.to_string()),
            any::<u32>().prop_map(|number| format!("{number}.0")),
            "\\PC{0,20}".prop_map(|text| serde_json::Value::from(text).to_string()),
        ]
    }

    proptest! {
        #[test]
        fn splicing_tokens_changes_nothing_else(
            id in token(), progress in token(), new_id: u64, new_progress: u64, text in "\\PC{0,40}",
        ) {
            let text = serde_json::Value::from(text);
            let request = format!(
                "{{\"params\":{{\"name\":{text},\"_meta\":{{\"progressToken\":{progress},\"k\":{text}}}}},\n\"id\":{id},\"jsonrpc\":\"2.0\",\"method\":\"tools/call\"}}"
            );
            let message = parse(request.as_str()).unwrap();
            prop_assert_eq!(message.id(), Some(id.as_bytes()));
            let (new_id, new_progress) = (new_id.to_string(), new_progress.to_string());
            let mut cuts: Vec<(Span, &[u8])> = vec![
                (message.id_span().unwrap(), new_id.as_bytes()),
                (message.meta_progress_token().unwrap(), new_progress.as_bytes()),
            ];
            cuts.sort_by_key(|(span, _)| span.start());
            let mut out = BytesMut::new();
            message.splice(&mut out, &cuts);
            let again = Message::parse(out.freeze()).unwrap();
            prop_assert_eq!(again.id(), Some(new_id.as_bytes()));
            let mut expected: serde_json::Value = serde_json::from_str(&request).unwrap();
            expected["id"] = serde_json::from_str(&new_id).unwrap();
            expected["params"]["_meta"]["progressToken"] =
                serde_json::from_str(&new_progress).unwrap();
            let found: serde_json::Value = serde_json::from_slice(again.bytes()).unwrap();
            prop_assert_eq!(found, expected);
        }

        #[test]
        fn never_panics(
            bytes in prop::collection::vec(any::<u8>(), 0..100),
            members in "[\\[{]\"(jsonrpc|id|method|params)\":[\\[{}\\]\",:0-9a\\\\\n]{0,40}",
        ) {
            let _ = Body::parse(bytes.into());
            let _ = Body::parse(members.into_bytes().into());
        }
    }
}

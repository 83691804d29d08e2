//! What a modern request says in `_meta` (2026-07-28 basic, "Per-request protocol fields"), and the same
//! request for a session-based server.

use std::{borrow::Cow, time::Duration};

use bytes::{BufMut, BytesMut};

use crate::protocol::{
    Message, Refusal, Span, json, jsonrpc,
    meta::{
        BARE, CARRIES, CLIENT_CAPABILITIES, CLIENT_INFO, LOG_LEVEL, MODERN_KEYS, TASKS, VERSION,
    },
    params::ROUND,
};

/// The fields of the protocol in the `_meta` of a request.
#[derive(Debug, Default)]
pub(crate) struct RequestMeta<'m> {
    /// The protocol version.
    pub(crate) version: Option<Cow<'m, str>>,
    /// The raw capabilities of the client.
    pub(crate) capabilities: Option<&'m [u8]>,
    /// The raw name and version of the client.
    pub(crate) client_info: Option<&'m [u8]>,
    /// The raw least level of log messages.
    pub(crate) log_level: Option<&'m [u8]>,
    /// The raw progress token.
    pub(crate) progress_token: Option<&'m [u8]>,
}

impl<'m> RequestMeta<'m> {
    /// The fields of a message.
    pub(crate) fn of(message: &'m Message) -> Self {
        let text = message.bytes();
        let mut fields = Self {
            progress_token: message.meta_progress_token().map(|span| span.of(text)),
            ..Self::default()
        };
        let mut take = |key: Span, value: Span| {
            let value = value.of(text);
            match json::decoded(key.of(text)).as_deref() {
                Some(VERSION) => fields.version = json::decoded(value),
                Some(CLIENT_CAPABILITIES) => fields.capabilities = Some(value),
                Some(CLIENT_INFO) => fields.client_info = Some(value),
                Some(LOG_LEVEL) => fields.log_level = Some(value),
                _ => {}
            }
        };
        if let Some(meta) = message.meta() {
            json::each_member(text, meta, &mut take);
        }
        fields.capabilities = fields
            .capabilities
            .filter(|capabilities| capabilities.starts_with(b"{"));
        fields.client_info = fields.client_info.filter(|info| info.starts_with(b"{"));
        fields
    }
}

/// Whether a request with this method existed before this era only (2026-07-28 changelog).
pub(crate) fn is_removed(method: &str) -> bool {
    matches!(
        method,
        "initialize"
            | "ping"
            | "logging/setLevel"
            | "resources/subscribe"
            | "resources/unsubscribe"
    ) || method.starts_with("notifications/")
        // `tasks/list` and `tasks/result`, and all of them where the extension is not offered.
        || method.starts_with("tasks/")
}

/// The capability that a server declares which has this method; none for methods of extensions, and for those that are none.
pub(crate) fn capability_of(method: &str) -> Option<&'static str> {
    match method {
        "tools/list" | "tools/call" => Some("tools"),
        "prompts/list" | "prompts/get" => Some("prompts"),
        "resources/list" | "resources/templates/list" | "resources/read" => Some("resources"),
        "completion/complete" => Some("completions"),
        _ => None,
    }
}

/// Whether a server may ask a client with these raw capabilities for anything (2026-07-28 mrtr,
/// `InputRequests`).
pub(crate) fn may_be_asked(capabilities: &[u8]) -> bool {
    let is_declared = |name: &&str| {
        let declared = json::get(capabilities, name);
        declared.is_some_and(|value| !matches!(value, b"null" | b"false"))
    };
    ["elicitation", "sampling", "roots"].iter().any(is_declared)
}

/// The member that makes a call a task in 2025-11-25: none of this era's.
const TASK: &str = "task";

/// A round of a request, for a server of this era.
pub(crate) struct Round<'r> {
    /// The raw `requestState` of the server itself.
    pub(crate) state: Option<&'r str>,
    /// Whether the server is told what the client declares. It need not know that of one which it cannot ask, so that
    /// what that reads may be what others have read.
    pub(crate) is_told: bool,
}

/// The request for a session-based server: under this id, without what only this era knows, and as a task of
/// 2025-11-25 with this time to live if there is one. In a `round` it is for a server of this era, which gets the
/// answers of the client and its own state, and what the client says of itself.
///
/// # Errors
///
/// Never for a message of a client, which is an object without duplicate keys.
pub(crate) fn for_session(
    message: &Message,
    id: u64,
    task: Option<Duration>,
    round: Option<&Round<'_>>,
) -> Result<Message, Refusal> {
    let text = message.bytes();
    let mut params = BytesMut::with_capacity(text.len() + EXTRA);
    params.put_u8(b'{');
    let mut push = |key: Span, value: Span| {
        let name = json::decoded(key.of(text)).unwrap_or_default();
        let is_answer = round.is_some() && name == ROUND[0];
        if ROUND.contains(&&*name) && !is_answer || name == TASK {
            return;
        }
        if params.len() > 1 {
            params.put_u8(b',');
        }
        params.extend_from_slice(key.of(text));
        params.put_u8(b':');
        if name == "_meta" {
            push_meta(&mut params, text, value, round);
        } else {
            params.extend_from_slice(value.of(text));
        }
    };
    if let Some(whole) = message.params_span() {
        json::each_member(text, whole, &mut push);
    }
    if let Some(state) = round.and_then(|round| round.state) {
        let separator = if params.len() > 1 { "," } else { "" };
        let state = format!(r#"{separator}"{}":{state}"#, ROUND[1]);
        params.extend_from_slice(state.as_bytes());
    }
    if let Some(ttl) = task {
        let separator = if params.len() > 1 { "," } else { "" };
        let task = format!(r#"{separator}"{TASK}":{{"ttl":{}}}"#, ttl.as_millis());
        params.extend_from_slice(task.as_bytes());
    }
    params.put_u8(b'}');
    let mut line = BytesMut::with_capacity(params.len() + 128);
    jsonrpc::push_request(
        id.to_string().as_bytes(),
        &message.method_name(),
        Some(&params),
        &mut line,
    );
    Message::parse(line.freeze())
}

/// Appends `_meta` without what only this era knows; in a round with what the client says of itself, and with the
/// mark of such a request.
fn push_meta(out: &mut BytesMut, text: &[u8], meta: Span, round: Option<&Round<'_>>) {
    let Some(round) = round.filter(|_| meta.of(text).starts_with(b"{")) else {
        return json::push_without(out, text, meta, |name| MODERN_KEYS.contains(&name));
    };
    let mark = if round.is_told { "true" } else { BARE };
    out.extend_from_slice(format!(r#"{{"{CARRIES}":{mark}"#).as_bytes());
    let capabilities = json::get(meta.of(text), CLIENT_CAPABILITIES).filter(|_| round.is_told);
    if let Some(capabilities) = capabilities {
        // Its tasks are those of the gateway.
        out.extend_from_slice(format!(r#","{CLIENT_CAPABILITIES}":"#).as_bytes());
        out.extend_from_slice(&without_tasks(capabilities));
    }
    json::push_members(out, text, meta, |name| {
        MODERN_KEYS.contains(&name) && !(round.is_told && name == CLIENT_INFO)
    });
    out.put_u8(b'}');
}

/// A raw object of capabilities without the tasks of this era.
pub(super) fn without_tasks(declared: &[u8]) -> BytesMut {
    let mut capabilities = BytesMut::with_capacity(declared.len());
    let members = json::members(declared, Span::whole(declared));
    let mut separator = b'{';
    for (key, value) in members {
        capabilities.put_u8(separator);
        separator = b',';
        capabilities.extend_from_slice(key.of(declared));
        capabilities.put_u8(b':');
        if json::decoded(key.of(declared)).as_deref() == Some("extensions") {
            json::push_without(&mut capabilities, declared, value, |name| name == TASKS);
        } else {
            capabilities.extend_from_slice(value.of(declared));
        }
    }
    if separator == b'{' {
        capabilities.put_u8(b'{');
    }
    capabilities.put_u8(b'}');
    capabilities
}

/// Room for what a request for a session gets besides.
const EXTRA: usize = 64;

/// The raw `requestState` of a retry.
pub(crate) fn request_state(message: &Message) -> Option<&[u8]> {
    if !message.has_round() {
        return None;
    }
    json::get(message.params()?, ROUND[1])
}

/// The raw answers of a retry.
pub(crate) fn input_responses(message: &Message) -> Option<&[u8]> {
    if !message.has_round() {
        return None;
    }
    json::get(message.params()?, ROUND[0])
}

/// What makes two requests the same call: the method and the parameters, but for `_meta` and what belongs to one
/// round. The order of members and the white space between tokens do not count; how a number or an escape in a string
/// is spelled does, since nothing is built of a text that may have millions of values.
pub(crate) fn salient(message: &Message) -> BytesMut {
    let text = message.bytes();
    let mut salient = BytesMut::with_capacity(text.len());
    json::push_string(&mut salient, &message.method_name());
    if let Some(params) = message.params_span() {
        json::push_sorted(&mut salient, text, params, |key| {
            ["_meta", ROUND[0], ROUND[1]]
                .iter()
                .any(|name| json::is_named(key, name))
        });
    }
    salient
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::super::request::*;

    fn message(text: &str) -> Message {
        Message::parse(Bytes::copy_from_slice(text.as_bytes())).unwrap()
    }

    const CALL: &str = r#"{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"echo","arguments":{"b":1,"a":[2.0]},"requestState":"x","_meta":{"progressToken":7,"io.modelcontextprotocol/protocolVersion":"2026-07-28","own":{},"io.modelcontextprotocol/clientCapabilities":{"elicitation":{}},"io.modelcontextprotocol/logLevel":"info"},"inputResponses":{"1":{}}}}"#;

    #[test]
    fn reads_the_fields_of_the_protocol() {
        let message = message(CALL);
        let meta = RequestMeta::of(&message);
        assert_eq!(meta.version.as_deref(), Some("2026-07-28"));
        assert_eq!(meta.capabilities, Some(&br#"{"elicitation":{}}"#[..]));
        assert_eq!(meta.log_level, Some(&br#""info""#[..]));
        assert_eq!(meta.progress_token, Some(&b"7"[..]));
        assert_eq!(meta.client_info, None);
    }

    #[test]
    fn a_session_based_server_sees_nothing_of_this_era() {
        let own = r#"{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"echo","arguments":{"b":1,"a":[2.0]},"_meta":{"progressToken":7,"own":{}}"#;
        let ordinary = for_session(&message(CALL), 5, None, None).unwrap();
        assert_eq!(ordinary.bytes(), &format!("{own}}}}}"));
        let task = for_session(&message(CALL), 5, Some(Duration::from_secs(2)), None).unwrap();
        assert_eq!(task.bytes(), &format!(r#"{own},"task":{{"ttl":2000}}}}}}"#));
    }

    #[test]
    fn a_server_of_this_era_gets_its_own_state() {
        let round = Round {
            state: Some("\"own\""),
            is_told: true,
        };
        let again = for_session(&message(CALL), 5, None, Some(&round)).unwrap();
        assert_eq!(
            again.bytes(),
            r#"{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"echo","arguments":{"b":1,"a":[2.0]},"_meta":{"lockgate/carries":true,"io.modelcontextprotocol/clientCapabilities":{"elicitation":{}},"progressToken":7,"own":{}},"inputResponses":{"1":{}},"requestState":"own"}}"#
        );
        let bare = Round {
            state: None,
            is_told: false,
        };
        let bare = for_session(&message(CALL), 5, None, Some(&bare)).unwrap();
        assert_eq!(
            bare.bytes(),
            r#"{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"echo","arguments":{"b":1,"a":[2.0]},"_meta":{"lockgate/carries":"bare","progressToken":7,"own":{}},"inputResponses":{"1":{}}}}"#
        );
    }

    #[test]
    fn the_same_call_is_known_in_any_order() {
        let first = salient(&message(CALL));
        assert_eq!(
            first,
            r#""tools/call"{"arguments":{"a":[2.0],"b":1},"name":"echo"}"#
        );
        let again = message(
            r#"{"jsonrpc":"2.0","id":2,"method":"tools/c\u0061ll","params":{"arguments":{"a": [ 2.0 ], "b":1},"name":"echo","_m\u0065ta":{}}}"#,
        );
        assert_eq!(salient(&again), first);
        for other in [
            r#"{"arguments":{"a":[2.0],"b":2},"name":"echo"}"#,
            r#"{"arguments":{"a":[2.0],"b":1},"name":"echo","more":0}"#,
            r#"{"arguments":{"a":[2.0],"b":1,"_meta":{}},"name":"echo"}"#,
        ] {
            let other =
                format!(r#"{{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{other}}}"#);
            assert_ne!(salient(&message(&other)), first, "{other}");
        }
    }
}

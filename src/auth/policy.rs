//! The access policy of a server, applied to messages: requests and notifications of clients, lists
//! and notifications of servers. Without I/O.
//!
//! Names and URIs are compared after JSON unescaping and nothing else: no case folding, dot
//! segments, percent encoding or Unicode normalization. The server receives the same bytes and so
//! acts on the judged name. Only the server knows which spellings it treats alike; hence `allow` is
//! safer than `deny`.
//!
//! A refusal repeats only the requested name, so that a denied name and an unknown one look the
//! same.

use bytes::{Bytes, BytesMut};

use super::access::Access;
use crate::{
    declare::{Names, Policy},
    protocol::{Body, Message, Method, Scanner, Span, SyntaxError, json},
};

/// The error response to a request that policy refuses, in the form the server uses for unknown
/// names.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PolicyRefusal {
    /// The JSON-RPC error code.
    pub(crate) code: i32,
    /// The message.
    pub(crate) message: String,
    /// The `data` member, as raw JSON.
    pub(crate) data: Option<String>,
}

/// A list that policy filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listed {
    /// `tools/list`
    Tools,
    /// `prompts/list`
    Prompts,
    /// `resources/list`
    Resources,
    /// `resources/templates/list`
    Templates,
}

impl Listed {
    /// The list that a method requests, if any.
    pub(crate) fn of(method: Method) -> Option<Self> {
        match method {
            Method::ToolsList => Some(Self::Tools),
            Method::PromptsList => Some(Self::Prompts),
            Method::ResourcesList => Some(Self::Resources),
            Method::TemplatesList => Some(Self::Templates),
            _ => None,
        }
    }

    /// The result member with the list.
    pub(crate) const fn list(self) -> &'static str {
        self.members().0
    }

    /// The result member with the list, and the entry member with the name.
    const fn members(self) -> (&'static str, &'static str) {
        match self {
            Self::Tools => ("tools", "name"),
            Self::Prompts => ("prompts", "name"),
            Self::Resources => ("resources", "uri"),
            Self::Templates => ("resourceTemplates", "uriTemplate"),
        }
    }

    fn is_open(self, policy: &Policy) -> bool {
        match self {
            Self::Tools => policy.tools.is_open(),
            Self::Prompts => policy.prompts.is_open(),
            Self::Resources | Self::Templates => policy.resources.is_open(),
        }
    }

    fn allows(self, policy: &Policy, name: &str) -> bool {
        match self {
            Self::Tools => policy.tools.allows(name),
            Self::Prompts => policy.prompts.allows(name),
            Self::Resources => policy.resources.allows(name),
            Self::Templates => policy.resources.allows_template(name),
        }
    }
}

/// The refusal of a client's request or notification, if any.
pub(crate) fn denied(policy: &Policy, message: &Message) -> Option<PolicyRefusal> {
    match message.method() {
        Method::ToolsCall => {
            let name = unless_allowed(&policy.tools, message.raw_name())?;
            Some(unknown(format!("Unknown tool: {name}")))
        }
        Method::PromptsGet => {
            let name = unless_allowed(&policy.prompts, message.raw_name())?;
            Some(unknown(format!("Unknown prompt: {name}")))
        }
        Method::ResourcesRead | Method::Subscribe | Method::Unsubscribe => {
            unless_allowed(&policy.resources, message.uri())?;
            Some(no_resource(message.uri()))
        }
        Method::Complete => completion(policy, message),
        Method::Other => other_method(policy, &message.method_name()),
        _ => None,
    }
}

/// Returns the shortened name for a refusal, unless the name is allowed.
fn unless_allowed(names: &Names, raw: Option<&[u8]>) -> Option<String> {
    if names.is_open() {
        return None;
    }
    // A value that is not a string, or has lone surrogates, has no name to compare.
    let name = raw.and_then(json::decoded).unwrap_or_default();
    let is_allowed = raw.and_then(json::decoded).is_some() && names.allows(&name);
    (!is_allowed).then(|| name.chars().take(REPEATED).collect())
}

/// Makes the error of 2025-11-25 tools, "Error Handling", and prompts, "Error Handling".
fn unknown(message: String) -> PolicyRefusal {
    let (code, data) = (-32602, None);
    PolicyRefusal {
        code,
        message,
        data,
    }
}

/// Makes the error of 2025-11-25 resources, "Error Handling".
fn no_resource(uri: Option<&[u8]>) -> PolicyRefusal {
    let uri = uri.filter(|uri| uri.len() <= REPEATED);
    let uri = uri.and_then(|uri| std::str::from_utf8(uri).ok());
    PolicyRefusal {
        code: -32002,
        message: "Resource not found".to_owned(),
        data: uri.map(|uri| format!(r#"{{"uri":{uri}}}"#)),
    }
}

/// Checks both members of a reference, regardless of its type, because a server may ignore the type.
fn completion(policy: &Policy, message: &Message) -> Option<PolicyRefusal> {
    if policy.prompts.is_open() && policy.resources.is_open() {
        return None;
    }
    let (name, uri) = message.reference();
    if let Some(name) = name.and_then(|name| unless_allowed(&policy.prompts, Some(name))) {
        return Some(unknown(format!("Unknown prompt: {name}")));
    }
    let Some(raw) = uri else {
        let is_known = name.is_some() && message.has_reference();
        return (!is_known).then(|| unknown("Unknown reference".to_owned()));
    };
    // 2025-11-25 schema, `ResourceTemplateReference`: a URI or a URI template.
    let text = json::decoded(raw).unwrap_or_default();
    let is_allowed = policy.resources.is_open()
        || policy.resources.allows(&text) && !text.contains('{')
        || text.contains('{') && policy.resources.allows_template(&text);
    (!is_allowed || text.is_empty()).then(|| {
        let text: String = text.chars().take(REPEATED).collect();
        unknown(format!("Unknown resource template: {text}"))
    })
}

/// Refuses an unknown method whose kind of object the policy restricts: it might reach a denied
/// object.
fn other_method(policy: &Policy, method: &str) -> Option<PolicyRefusal> {
    let is_open = |kind: &str| match kind {
        "tools" => policy.tools.is_open() && !policy.has_scopes(),
        "prompts" => policy.prompts.is_open(),
        "resources" => policy.resources.is_open(),
        "completion" => policy.prompts.is_open() && policy.resources.is_open(),
        _ => true,
    };
    let all = ["tools", "prompts", "resources", "completion"];
    if all.into_iter().all(is_open) {
        return None;
    }
    // A server that ignores case must not offer a bypass.
    let folded: String = method
        .chars()
        .flat_map(char::to_uppercase)
        .flat_map(char::to_lowercase)
        .collect();
    let kind = folded.split('/').next().unwrap_or_default().trim();
    (!is_open(kind)).then(|| PolicyRefusal {
        code: -32601,
        message: "Method not found".to_owned(),
        data: None,
    })
}

/// Reports whether a server's notification concerns a resource that policy denies.
pub(crate) fn is_muted(policy: &Policy, message: &Message) -> bool {
    message.method() == Method::Updated
        && unless_allowed(&policy.resources, message.uri()).is_some()
}

/// Returns all scopes that the caller should have, present ones included, if the body needs more
/// than the access has (2025-11-25 authorization, "Runtime Insufficient Scope Errors", the
/// recommended approach).
pub(crate) fn missing_scopes(access: &Access, body: &Body) -> Option<Vec<String>> {
    let policy = &access.server().policy;
    if !policy.has_scopes() {
        return None;
    }
    let mut wanted = access.scopes().to_vec();
    let mut add = |message: &Message| {
        if message.method() != Method::ToolsCall || denied(policy, message).is_some() {
            return;
        }
        let name = message.name();
        let needed: Vec<&String> = match &name {
            Some(name) => policy.scopes_of(name).collect(),
            // An unreadable name may stand for any tool.
            None => policy.all_scopes().into_iter().collect(),
        };
        for scope in needed {
            if !policy.covers(access.scopes(), scope) && !wanted.contains(scope) {
                wanted.push(scope.clone());
            }
        }
    };
    match body {
        Body::One(message) => add(message),
        Body::Batch(items) => items.iter().flatten().for_each(add),
    }
    (wanted.len() > access.scopes().len()).then_some(wanted)
}

/// The response to a list request with allowed entries only, byte for byte.
pub(crate) fn filtered(policy: &Policy, listed: Listed, answer: Bytes) -> Bytes {
    if listed.is_open(policy) {
        return answer;
    }
    let list = listed.list();
    let mut cuts: Vec<(Span, BytesMut)> = Vec::new();
    for (key, result) in json::members(&answer, Span::whole(&answer)) {
        if !is(&answer, key, "result") {
            continue;
        }
        for (key, value) in json::members(&answer, result) {
            if is(&answer, key, list) {
                cuts.extend(kept(policy, listed, &answer, value).map(|kept| (value, kept)));
            }
        }
    }
    if cuts.is_empty() {
        return answer;
    }
    let cuts: Vec<(Span, &[u8])> = cuts.iter().map(|(span, kept)| (*span, &**kept)).collect();
    let mut out = BytesMut::with_capacity(answer.len());
    json::splice(&mut out, &answer, &cuts);
    out.freeze()
}

/// Removes denied entries from a list; `None` if all entries are allowed.
fn kept(policy: &Policy, listed: Listed, answer: &[u8], list: Span) -> Option<BytesMut> {
    let (_, name) = listed.members();
    let text = list.of(answer);
    let (mut kept, mut is_whole) = (BytesMut::from(&b"["[..]), true);
    let read = Scanner::new(text).array::<SyntaxError>(0, |scanner| {
        let entry = scanner.value(1)?.of(text);
        let name = json::get(entry, name).and_then(json::decoded);
        if name.is_some_and(|name| listed.allows(policy, &name)) {
            if kept.len() > 1 {
                kept.extend_from_slice(b",");
            }
            kept.extend_from_slice(entry);
        } else {
            is_whole = false;
        }
        Ok(())
    });
    if read.is_err() {
        // A value that is not a list is emptied.
        kept.truncate(1);
        is_whole = false;
    }
    kept.extend_from_slice(b"]");
    (!is_whole).then_some(kept)
}

fn is(text: &[u8], key: Span, name: &str) -> bool {
    json::decoded(key.of(text)).is_some_and(|key| key == name)
}

/// Maximum characters (bytes of a URI) of a name in a response.
const REPEATED: usize = 1024;

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, sync::Arc};

    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        config::Format,
        declare::{Server, Tenant},
        manifest::reader,
    };

    fn message(text: &str) -> Message {
        Message::parse(Bytes::copy_from_slice(text.as_bytes())).unwrap()
    }

    fn request(method: &str, params: &str) -> Message {
        message(&format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#
        ))
    }

    fn code(policy: &Policy, method: &str, params: &str) -> Option<i32> {
        denied(policy, &request(method, params)).map(|denied| denied.code)
    }

    #[test]
    fn names_that_cannot_be_compared_are_denied() {
        let policy = Policy::of(&json!({"tools": {"deny": ["x"]}, "resources": {"deny": ["x"]}}));
        for params in [
            "{}",
            r#"{"name":1}"#,
            r#"{"name":"\ud800"}"#,
            r#"{"name":["a"]}"#,
        ] {
            assert_eq!(
                code(&policy, "tools/call", params),
                Some(-32602),
                "{params}"
            );
        }
        for params in ["{}", r#"{"uri":null}"#] {
            assert_eq!(
                code(&policy, "resources/read", params),
                Some(-32002),
                "{params}"
            );
        }
        assert_eq!(code(&policy, "tools/call", r#"{"name":"y"}"#), None);
        let open = Policy::default();
        for method in [
            "tools/call",
            "resources/read",
            "completion/complete",
            "tools/new",
        ] {
            assert_eq!(
                code(&open, method, r#"{"x":1}"#),
                None,
                "the server's own affair"
            );
        }
    }

    #[test]
    fn completions_are_checked_by_all_members_of_the_reference() {
        let policy = Policy::of(&json!({
            "prompts": {"deny": ["p"]}, "resources": {"allow": ["a:*"]}}));
        let table = [
            (r#"{"type":"ref/prompt","name":"q"}"#, true),
            (r#"{"type":"ref/prompt","name":"p"}"#, false),
            (r#"{"type":"ref/prompt","name":"q","uri":"b:c"}"#, false),
            (r#"{"type":"ref/resource","uri":"a:c"}"#, true),
            (r#"{"type":"ref/resource","uri":"{x}:c"}"#, true),
            (r#"{"type":"ref/resource","uri":"b:{x}"}"#, false),
            (r#"{"type":"ref/resource","uri":"b:c"}"#, false),
            (r#"{"type":"ref/resource","uri":"a:c","name":"p"}"#, false),
            (r#"{"type":"ref/new","id":"p"}"#, false),
            (r#"{"type":"ref/resource","uri":5}"#, false),
            (r#""p""#, false),
        ];
        for (reference, is_allowed) in table {
            let params = format!(r#"{{"ref":{reference}}}"#);
            let found = code(&policy, "completion/complete", &params);
            assert_eq!(found.is_none(), is_allowed, "{reference}");
        }
        assert!(code(&policy, "completion/complete", "{}").is_some());
    }

    #[test]
    fn unknown_methods_do_not_bypass_policy() {
        let policy = Policy::of(&json!({"resources": {"deny": ["x"]}}));
        for method in [
            "resources/copy",
            "Resources/Read",
            "resources",
            " resources/read",
            "RE\u{17f}ources/x",
        ] {
            assert_eq!(code(&policy, method, "{}"), Some(-32601), "{method}");
        }
        for method in [
            "tools/new",
            "prompts/new",
            "x/resources/read",
            "notifications/x",
        ] {
            assert_eq!(code(&policy, method, "{}"), None, "{method}");
        }
        let scopes = Policy::of(&json!({"scopes": {"x": ["y"]}}));
        assert_eq!(code(&scopes, "tools/new", "{}"), Some(-32601));
    }

    #[test]
    fn lists_keep_allowed_entries_unchanged() {
        let policy = Policy::of(&json!({"tools": {"allow": ["a*", "ü"]}}));
        let cut = |text: &str| {
            let answer = filtered(
                &policy,
                Listed::Tools,
                Bytes::copy_from_slice(text.as_bytes()),
            );
            String::from_utf8(answer.to_vec()).unwrap()
        };
        let line = |tools: &str| {
            format!(
                r#"{{"id": 1,"result":{{"x" : [1] ,"tools": {tools} ,"nextCursor":"\u0063"}},"jsonrpc":"2.0"}}"#
            )
        };
        let table = [
            (
                r#"[ {"name":"a"} , {"name":"a\u0062", "x":{"name":"b"}} ]"#,
                None,
            ),
            (
                r#"[ {"name":"b"} , {"n\u0061me" : "\u0061b", "x":1.0} , {"name":"ü"}]"#,
                Some(r#"[{"n\u0061me" : "\u0061b", "x":1.0},{"name":"ü"}]"#),
            ),
            (r#"[{"name":"b"}]"#, Some("[]")),
            (
                r#"[{"title":"a"},{"name":5},"a",{"name":"a","name":"b"}]"#,
                Some("[]"),
            ),
            (r#"{"name":"b"}"#, Some("[]")),
        ];
        for (tools, expected) in table {
            assert_eq!(
                cut(&line(tools)),
                line(expected.unwrap_or(tools)),
                "{tools}"
            );
        }
        // A repeated list is filtered twice, because clients may take either one.
        let twice = r#"{"result":{"tools":[{"name":"b"}],"t\u006fols":[{"name":"b"}]}}"#;
        assert_eq!(cut(twice), r#"{"result":{"tools":[],"t\u006fols":[]}}"#);
        let error = r#"{"id":1,"error":{"code":1,"message":"b"}}"#;
        assert_eq!(cut(error), error);
    }

    fn access(policy: &Value, scopes: &[&str]) -> Access {
        let server = json!({"command": "x", "policy": policy});
        let text = json!({"version": 1, "tenants": {"a": {"auth": {"mode": "none"},
            "servers": {"s": server}}}});
        let manifest =
            reader::parse("F", &text.to_string(), Format::Json, &BTreeMap::new()).unwrap();
        let (tenant, server): (Arc<Tenant>, Arc<Server>) = manifest.catalog.find("a", "s").unwrap();
        Access::of(&tenant, &server, "ada").with_scopes(scopes)
    }

    #[test]
    fn all_missing_scopes_are_named_at_once() {
        let policy = json!({
            "tools": {"deny": ["delete_secret"]},
            "scopes": {"delete_*": ["files:write", "files:delete"], "*": ["files:read"]},
            "implies": {"files:write": ["files:read"]},
        });
        let missing = |scopes: &[&str], body: &str| {
            let body = Body::parse(Bytes::copy_from_slice(body.as_bytes())).unwrap();
            missing_scopes(&access(&policy, scopes), &body)
        };
        let call = |name: &str| {
            format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"{name}"}}}}"#
            )
        };
        let all = |scopes: &[&str]| Some(scopes.iter().map(|scope| (*scope).to_owned()).collect());
        let delete = call("delete_x");
        assert_eq!(
            missing(&[], &delete),
            all(&["files:read", "files:write", "files:delete"])
        );
        assert_eq!(
            missing(&["other", "files:write"], &delete),
            all(&["other", "files:write", "files:delete"])
        );
        assert_eq!(missing(&["files:write", "files:delete"], &delete), None);
        assert_eq!(missing(&["files:read"], &call("read")), None);
        assert_eq!(
            missing(&[], &call("delete_secret")),
            None,
            "unknown, not forbidden"
        );
        let list = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
        assert_eq!(missing(&[], list), None);
        let batch = format!("[{list},{},{delete},5]", call("read"));
        assert_eq!(
            missing(&["files:read"], &batch),
            all(&["files:read", "files:write", "files:delete"])
        );
        // As a notification, too: a server may take it for a call.
        assert!(missing(&[], &delete.replace(r#""id":1,"#, "")).is_some());
    }

    #[test]
    fn a_call_whose_name_cannot_be_read_needs_every_scope() {
        let policy = json!({"scopes": {"a": ["x"], "b": ["y"]}});
        let body = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"\ud800"}}"#;
        let body = Body::parse(Bytes::copy_from_slice(body.as_bytes())).unwrap();
        let missing = missing_scopes(&access(&policy, &["x"]), &body).unwrap();
        assert_eq!(missing, ["x", "y"]);
    }

    /// A text as JSON with any of its characters escaped.
    fn escaped(text: &str, mask: u64) -> String {
        let escape = |(at, letter): (usize, char)| {
            if mask >> (at % 64) & 1 == 0 && letter >= ' ' && letter != '"' && letter != '\\' {
                return letter.to_string();
            }
            let mut units = [0; 2];
            let units = letter.encode_utf16(&mut units).iter();
            units.map(|unit| format!("\\u{unit:04x}")).collect()
        };
        format!(
            "\"{}\"",
            text.chars().enumerate().map(escape).collect::<String>()
        )
    }

    proptest! {
        /// Key smuggling: in each message that passes, another parser finds the same name that policy
        /// checked.
        #[test]
        fn policy_and_other_parsers_read_the_same_name(
            name in "[ad]{0,3}|\\PC{0,6}", other in "[ad]{0,3}",
            first in "name|Name|nam\u{17f}|uri|x", second in "name|NAME|uri|ref|arguments",
            mask in any::<u64>(), place in 0..3_usize,
        ) {
            let policy = Policy::of(&json!({"tools": {"deny": ["d*", "*\u{17f}*"]}}));
            let mut members = vec![
                format!("{}:{}", escaped(&first, mask), escaped(&name, mask >> 7)),
                format!("{}:{}", escaped(&second, mask >> 13), escaped(&other, mask >> 3)),
            ];
            members.insert(place, r#""_meta":{"name":"d"}"#.to_owned());
            let params = format!("{{{}}}", members.join(","));
            let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}"#);
            let Ok(message) = Message::parse(text.into()) else { return Ok(()) };
            let seen: Value = serde_json::from_slice(message.bytes()).unwrap();
            let lenient = seen["params"].as_object().unwrap().iter()
                .filter(|(key, _)| key.to_lowercase() == "name" || key.to_uppercase() == "NAME");
            let names: Vec<&str> = lenient.filter_map(|(_, name)| name.as_str()).collect();
            let is_denied = denied(&policy, &message).is_some();
            prop_assert!(names.len() <= 1, "{:?}", names);
            let expected = names.first().is_none_or(|name| !policy.tools.allows(name));
            prop_assert_eq!(is_denied, expected, "{:?}", names);
        }

        #[test]
        fn filtering_keeps_only_allowed_entries(
            names in prop::collection::vec("[abd]{0,3}", 0..8), mask in any::<u64>(),
        ) {
            let policy = Policy::of(&json!({"prompts": {"deny": ["*d*"]}}));
            let entry = |name: &String| format!(r#"{{"x": 1.50,"name":{} }}"#, escaped(name, mask));
            let all: Vec<String> = names.iter().map(entry).collect();
            let allowed = names.iter().zip(&all).filter(|(name, _)| policy.prompts.allows(name));
            let kept: Vec<&str> = allowed.map(|(_, entry)| entry.as_str()).collect();
            let line = |entries: &str| format!(r#"{{"result":{{"prompts":[{entries}]}},"id":1}}"#);
            let cut = filtered(&policy, Listed::Prompts, line(&all.join(",")).into());
            prop_assert_eq!(cut, line(&kept.join(",")));
        }

        #[test]
        fn never_panics(text in prop::collection::vec(any::<u8>(), 0..100)) {
            let policy = Policy::of(&json!({"tools": {"deny": ["x"]}}));
            let text = [br#"{"result":{"tools":"#, &*text, b"}}"].concat();
            let _ = filtered(&policy, Listed::Tools, text.into());
        }
    }
}

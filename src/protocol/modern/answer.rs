//! Answers of session-based servers, completed for modern clients (2026-07-28 basic, "Result
//! Responses"; caching).

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};

use super::cache::CacheHint;
use crate::protocol::{
    Kind, Message, Span, json,
    meta::{RELATED_TASK, SERVER_INFO, TASKS},
};

/// What an answer lacks for a modern client.
#[derive(Clone, Debug)]
pub(crate) struct Completion {
    /// The raw id of the client's request.
    pub(crate) id: Bytes,
    /// The raw `serverInfo` of the server.
    pub(crate) server_info: Option<Bytes>,
    /// What is said of how long its result may be kept; none for methods whose results do not say.
    pub(crate) caching: Option<Caching>,
}

/// What a client is told of how long it may keep a result.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caching {
    /// The milliseconds that the operator has set, in place of those of the server.
    pub(crate) set: Option<u64>,
    /// Whether it may be given to any user if the server says so: nobody is kept from it.
    pub(crate) may_be_public: bool,
}

impl Caching {
    /// What the client is told, after this hint of the server.
    fn after(self, hint: Option<CacheHint>) -> CacheHint {
        let own = hint.map_or(0, |hint| hint.ttl_ms);
        CacheHint {
            ttl_ms: self.set.unwrap_or(own),
            is_public: self.may_be_public && hint.is_some_and(|hint| hint.is_public),
        }
    }
}

impl Completion {
    /// Whether results of this method have the members of caching (2026-07-28 caching, "Cacheable
    /// Results").
    pub(crate) fn is_cacheable(method: &str) -> bool {
        matches!(
            method,
            "tools/list"
                | "prompts/list"
                | "resources/list"
                | "resources/templates/list"
                | "resources/read"
        )
    }

    /// The answer as the client gets it.
    pub(crate) fn complete(&self, answer: &Message) -> Bytes {
        let hinted = self.caching.and_then(|caching| {
            let (hint, plain) = CacheHint::take_from(answer.bytes())?;
            Some((caching.after(Some(hint)), Message::parse(plain).ok()?))
        });
        match hinted {
            Some((hint, plain)) => self.completed(&plain, Some(hint)),
            None => self.completed(answer, self.caching.map(|caching| caching.after(None))),
        }
    }

    fn completed(&self, answer: &Message, hint: Option<CacheHint>) -> Bytes {
        let text = answer.bytes();
        let mut cuts: Vec<(Span, Cow<'_, [u8]>)> = Vec::with_capacity(4);
        let id = Cow::Borrowed(&*self.id);
        cuts.extend(answer.id_span().map(|span| (span, id)));
        if let Some(outcome) = answer.outcome_span() {
            match answer.kind() {
                Kind::Result => self.complete_result((text, outcome), hint, &mut cuts),
                _ => cuts.extend(renumbered(text, outcome)),
            }
        }
        cuts.sort_by_key(|(span, _)| (span.start(), span.end()));
        let cuts: Vec<(Span, &[u8])> = cuts.iter().map(|(span, text)| (*span, &**text)).collect();
        let added: usize = cuts.iter().map(|(_, text)| text.len()).sum();
        let mut line = BytesMut::with_capacity(text.len() + added);
        json::splice(&mut line, text, &cuts);
        line.freeze()
    }

    fn complete_result(
        &self,
        (text, result): (&[u8], Span),
        hint: Option<CacheHint>,
        cuts: &mut Vec<(Span, Cow<'_, [u8]>)>,
    ) {
        // How it goes on, for how long it may be kept, and by whom. They mean nothing in a session: a value of
        // the server's own is none that may be passed on.
        let ttl = hint.map(|hint| hint.ttl_ms.to_string());
        let own = [
            ("resultType", Some("\"complete\"")),
            ("ttlMs", ttl.as_deref()),
            ("cacheScope", hint.map(CacheHint::scope)),
        ];
        let (mut found, mut meta, mut is_empty) = ([None; 3], None, true);
        json::each_member(text, result, |key, value| {
            let key = key.of(text);
            is_empty = false;
            match own.iter().position(|(name, _)| json::is_named(key, name)) {
                Some(at) => found[at] = Some(value),
                None if json::is_named(key, "_meta") => meta = Some(value),
                None => {}
            }
        });
        let mut added = Vec::with_capacity(ROOM + self.server_info.as_ref().map_or(0, Bytes::len));
        for ((name, value), found) in own.into_iter().zip(found) {
            match (value, found) {
                (None, _) => {}
                (Some(value), None) => push_member(&mut added, name, &[value.as_bytes()]),
                (Some(value), Some(span)) => {
                    cuts.push((span, Cow::Owned(value.as_bytes().to_vec())));
                }
            }
        }
        if let Some(info) = &self.server_info {
            match meta {
                None => {
                    let name = SERVER_INFO.as_bytes();
                    push_member(&mut added, "_meta", &[b"{\"", name, b"\":", info, b"}"]);
                }
                Some(meta) => {
                    let mut member = Vec::with_capacity(ROOM + info.len());
                    push_member(&mut member, SERVER_INFO, &[info]);
                    let cut = json::with_member(text, meta, SERVER_INFO, member);
                    cuts.extend(cut.map(|(span, member)| (span, Cow::Owned(member))));
                }
            }
        }
        if !added.is_empty() {
            if !is_empty {
                added.push(b',');
            }
            cuts.push((result.behind_brace(text), Cow::Owned(added)));
        }
    }
}

/// Room for the names of what a result lacks.
const ROOM: usize = 128;

/// Appends a member to others, with these parts of its value.
fn push_member(members: &mut Vec<u8>, name: &str, value: &[&[u8]]) {
    let separator: &[u8] = if members.is_empty() { b"\"" } else { b",\"" };
    for part in [separator, name.as_bytes(), b"\":"].iter().chain(value) {
        members.extend_from_slice(part);
    }
}

/// The cut that gives an error its code of this era.
fn renumbered(text: &[u8], error: Span) -> Option<(Span, Cow<'static, [u8]>)> {
    let code = json::member(text, error, "code")?;
    let new: &'static [u8] = match code.of(text) {
        // Its client may have declared them: they are those of the gateway.
        b"-32021" if requires_tasks(error.of(text)) => {
            return Some((error, Cow::Borrowed(NO_TASKS)));
        }
        // A resource that is not found, until 2025-11-25.
        b"-32002" => b"-32602",
        code if is_reserved(code) => b"-32603",
        _ => return None,
    };
    Some((code, Cow::Borrowed(new)))
}

/// Whether a raw error says that the client lacks the tasks of this era.
fn requires_tasks(error: &[u8]) -> bool {
    let path = ["data", "requiredCapabilities", "extensions", TASKS];
    let mut names = path.iter();
    let required = names.try_fold(error, |value, name| json::get(value, name));
    required.is_some()
}

/// The error of a server that answers by tasks of its own alone.
const NO_TASKS: &[u8] =
    br#"{"code":-32603,"message":"the server cannot do without a task of its own"}"#;

/// Whether a code is one that only this era may give a meaning, and no server of another one can mean:
/// "MUST NOT emit any code from this sub-range that is not defined by this specification" (2026-07-28 basic,
/// "Error Codes"). A lack of a capability is the same in both.
fn is_reserved(code: &[u8]) -> bool {
    let code = std::str::from_utf8(code)
        .ok()
        .and_then(|code| code.parse().ok());
    code.is_some_and(|code: i64| (-32099..=-32020).contains(&code) && code != -32021)
}

/// A notification with the raw id of the subscription that it is sent for (2026-07-28 subscriptions,
/// "Receiving Notifications").
pub(crate) fn with_subscription(notification: &Message, id: &[u8]) -> Bytes {
    let text = notification.bytes();
    let member = [b"\"", SUBSCRIPTION.as_bytes(), b"\":", id].concat();
    let cut = match (notification.meta(), notification.params_span()) {
        (Some(meta), _) => json::with_member(text, meta, SUBSCRIPTION, member),
        (None, Some(params)) => {
            let meta = [b"\"_meta\":{", &*member, b"}"].concat();
            json::with_member(text, params, "_meta", meta)
        }
        (None, None) => {
            let params = [b"\"params\":{\"_meta\":{", &*member, b"}}"].concat();
            json::with_member(text, Span::whole(text), "params", params)
        }
    };
    let Some((span, added)) = cut else {
        return text.clone();
    };
    let mut line = BytesMut::with_capacity(text.len() + added.len());
    json::splice(&mut line, text, &[(span, &added)]);
    line.freeze()
}

/// A raw answer of a client, with the raw id of the task that it is about: "All requests, notifications, and
/// responses related to a task MUST include" it (2025-11-25 tasks, "Associating Task-Related Messages" 1).
pub(super) fn with_task(answer: &[u8], task: &[u8]) -> Bytes {
    let whole = Span::whole(answer);
    let member = [
        b"\"",
        RELATED_TASK.as_bytes(),
        b"\":{\"taskId\":",
        task,
        b"}",
    ]
    .concat();
    let cut = if let Some(meta) = json::member(answer, whole, "_meta") {
        json::with_member(answer, meta, RELATED_TASK, member)
    } else {
        let meta = [b"\"_meta\":{", &*member, b"}"].concat();
        json::with_member(answer, whole, "_meta", meta)
    };
    let mut line = BytesMut::new();
    let cut = cut.as_ref().map(|(span, added)| (*span, &**added));
    json::splice(&mut line, answer, cut.as_slice());
    line.freeze()
}

/// The key of the id of a subscription.
pub(super) const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

#[cfg(test)]
mod tests {
    use super::super::answer::*;

    fn message(text: &str) -> Message {
        Message::parse(Bytes::copy_from_slice(text.as_bytes())).unwrap()
    }

    fn completed(text: &str, is_cacheable: bool) -> String {
        let completion = Completion {
            id: Bytes::from_static(b"\"own\""),
            server_info: Some(Bytes::from_static(br#"{"name":"s"}"#)),
            caching: is_cacheable.then_some(Caching {
                set: None,
                may_be_public: true,
            }),
        };
        String::from_utf8(completion.complete(&message(text)).to_vec()).unwrap()
    }

    #[test]
    fn results_get_what_this_era_requires_and_keep_their_own() {
        for (answer, is_cacheable, expected) in [
            (
                r#"{"jsonrpc":"2.0","id":5,"result":{}}"#,
                false,
                r#"{"jsonrpc":"2.0","id":"own","result":{"resultType":"complete","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"s"}}}}"#,
            ),
            (
                r#"{"result":{"tools":[],"_meta":{"a":1}},"jsonrpc":"2.0","id":5}"#,
                true,
                r#"{"result":{"resultType":"complete","ttlMs":0,"cacheScope":"private","tools":[],"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"s"},"a":1}},"jsonrpc":"2.0","id":"own"}"#,
            ),
            (
                r#"{"jsonrpc":"2.0","id":5,"result":{"resultType":"complete","ttlMs":7,"cacheScope":"public","_meta":{"io.modelcontextprotocol/serverInfo":{}}}}"#,
                true,
                r#"{"jsonrpc":"2.0","id":"own","result":{"resultType":"complete","ttlMs":0,"cacheScope":"private","_meta":{"io.modelcontextprotocol/serverInfo":{}}}}"#,
            ),
            (
                r#"{"jsonrpc":"2.0","id":5,"result":{"resultType":"input_required","ttlMs":7,"_meta":{"io.modelcontextprotocol/serverInfo":{}}}}"#,
                false,
                r#"{"jsonrpc":"2.0","id":"own","result":{"resultType":"complete","ttlMs":7,"_meta":{"io.modelcontextprotocol/serverInfo":{}}}}"#,
            ),
        ] {
            assert_eq!(completed(answer, is_cacheable), expected);
        }
    }

    #[test]
    fn clients_are_told_what_the_server_says_unless_the_operator_does() {
        let hint = |scope| {
            format!(r#"{{"_meta":{{"lockgate/cache":{{"ttlMs":7,"cacheScope":"{scope}"}}}}}}"#)
        };
        for (result, set, may_be_public, told) in [
            (
                "{}".to_owned(),
                None,
                true,
                r#""ttlMs":0,"cacheScope":"private""#,
            ),
            (
                "{}".to_owned(),
                Some(9),
                true,
                r#""ttlMs":9,"cacheScope":"private""#,
            ),
            (
                hint("public"),
                None,
                true,
                r#""ttlMs":7,"cacheScope":"public""#,
            ),
            (
                hint("public"),
                None,
                false,
                r#""ttlMs":7,"cacheScope":"private""#,
            ),
            (
                hint("public"),
                Some(9),
                true,
                r#""ttlMs":9,"cacheScope":"public""#,
            ),
            (
                hint("private"),
                Some(0),
                true,
                r#""ttlMs":0,"cacheScope":"private""#,
            ),
        ] {
            let completion = Completion {
                id: Bytes::from_static(b"1"),
                server_info: None,
                caching: Some(Caching { set, may_be_public }),
            };
            let answer = format!(r#"{{"jsonrpc":"2.0","id":5,"result":{result}}}"#);
            let expected = format!(
                r#"{{"jsonrpc":"2.0","id":1,"result":{{"resultType":"complete",{told}}}}}"#
            );
            assert_eq!(completion.complete(&message(&answer)), expected);
        }
    }

    #[test]
    fn errors_have_the_codes_of_this_era() {
        assert_eq!(
            completed(
                r#"{"jsonrpc":"2.0","error":{"message":"-32002","code":-32002},"id":5}"#,
                true
            ),
            r#"{"jsonrpc":"2.0","error":{"message":"-32002","code":-32602},"id":"own"}"#
        );
        for (code, expected) in [
            (-32603, -32603),
            (-32000, -32000),
            (-32019, -32019),
            (-32020, -32603),
            (-32021, -32021),
            (-32022, -32603),
            (-32042, -32603),
            (-32099, -32603),
            (-32100, -32100),
            (7, 7),
        ] {
            let error =
                |code: i32| format!(r#"{{"jsonrpc":"2.0","id":"own","error":{{"code":{code}}}}}"#);
            assert_eq!(completed(&error(code), true), error(expected));
        }
    }

    #[test]
    fn a_server_that_needs_tasks_of_its_own_does_not_blame_the_client() {
        let error = |code: i32, extension: &str| {
            let required = format!(r#"{{"extensions":{{"{extension}":{{}}}}}}"#);
            format!(
                r#"{{"jsonrpc":"2.0","id":"own","error":{{"code":{code},"message":"m","data":{{"requiredCapabilities":{required}}}}}}}"#
            )
        };
        assert_eq!(
            completed(&error(-32021, TASKS), false),
            r#"{"jsonrpc":"2.0","id":"own","error":{"code":-32603,"message":"the server cannot do without a task of its own"}}"#
        );
        for passed in [error(-32021, "a/b"), error(-32000, TASKS)] {
            assert_eq!(completed(&passed, false), passed);
        }
    }

    #[test]
    fn answers_name_the_task_that_they_are_about() {
        let meta = r#""_meta":{"io.modelcontextprotocol/related-task":{"taskId":"t"}"#;
        for (answer, expected) in [
            ("{}", format!("{{{meta}}}}}")),
            (r#"{"a":1}"#, format!(r#"{{{meta}}},"a":1}}"#)),
            (r#"{"_meta":{"b":2}}"#, format!(r#"{{{meta},"b":2}}}}"#)),
        ] {
            assert_eq!(with_task(answer.as_bytes(), b"\"t\""), expected);
        }
    }

    #[test]
    fn notifications_name_their_subscription() {
        for (text, expected) in [
            (
                r#"{"jsonrpc":"2.0","method":"n"}"#,
                r#"{"params":{"_meta":{"io.modelcontextprotocol/subscriptionId":1}},"jsonrpc":"2.0","method":"n"}"#,
            ),
            (
                r#"{"jsonrpc":"2.0","method":"n","params":{}}"#,
                r#"{"jsonrpc":"2.0","method":"n","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":1}}}"#,
            ),
            (
                r#"{"jsonrpc":"2.0","method":"n","params":{"uri":"u","_meta":{"a":2}}}"#,
                r#"{"jsonrpc":"2.0","method":"n","params":{"uri":"u","_meta":{"io.modelcontextprotocol/subscriptionId":1,"a":2}}}"#,
            ),
        ] {
            assert_eq!(with_subscription(&message(text), b"1"), expected);
        }
    }
}

//! For how long and by whom a result of a stateless server may be kept, and for which requests (2026-07-28
//! caching).
//!
//! Not here: the results that are kept (`backend::dialect`).

use bytes::{Bytes, BytesMut};
use memchr::memmem;

use crate::protocol::{
    Message, Method, Span, is_subscribed, json,
    meta::{BARE, CACHE, CARRIES, MODERN_KEYS},
    trace::TRACE_KEYS,
};

/// What a server says of its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CacheHint {
    /// The milliseconds for which it may be taken as fresh.
    pub(crate) ttl_ms: u64,
    /// Whether it may be given to any user.
    pub(crate) is_public: bool,
}

/// The longest time that is taken from a server: a day.
const MAX_TTL: u64 = 24 * 3600 * 1000;

impl CacheHint {
    /// The hint of a raw result; none if it says nothing. A time that is no whole number is none ("Clients
    /// SHOULD ignore it and treat it as 0").
    pub(crate) fn of(result: &[u8]) -> Option<Self> {
        let ttl = json::get(result, "ttlMs")?;
        let ttl = str::from_utf8(ttl).ok().and_then(|ttl| ttl.parse().ok());
        Some(Self {
            ttl_ms: ttl.map_or(0, |ttl: u64| ttl.min(MAX_TTL)),
            is_public: json::get(result, "cacheScope") == Some(b"\"public\""),
        })
    }

    /// The raw value of `cacheScope`.
    pub(crate) fn scope(self) -> &'static str {
        if self.is_public {
            r#""public""#
        } else {
            r#""private""#
        }
    }

    /// The raw result with this hint in `_meta`, where sessions leave it alone.
    pub(crate) fn put_into(self, result: &[u8]) -> Bytes {
        let member = format!(
            r#""{CACHE}":{{"ttlMs":{},"cacheScope":{}}}"#,
            self.ttl_ms,
            self.scope()
        );
        let whole = Span::whole(result);
        let cut = if let Some(meta) = json::member(result, whole, "_meta") {
            json::with_member(result, meta, CACHE, member.into())
        } else {
            let meta = format!(r#""_meta":{{{member}}}"#);
            json::with_member(result, whole, "_meta", meta.into())
        };
        let cut = cut.as_ref().map(|(span, added)| (*span, &**added));
        let mut out = BytesMut::with_capacity(result.len() + 64);
        json::splice(&mut out, result, cut.as_slice());
        out.freeze()
    }

    /// The hint in an answer, and the answer without it; none if there is none.
    pub(crate) fn take_from(answer: &[u8]) -> Option<(Self, Bytes)> {
        memmem::find(answer, CACHE.as_bytes())?;
        let result = json::member(answer, Span::whole(answer), "result")?;
        let meta = json::member(answer, result, "_meta")?;
        let hint = Self::of(json::get(meta.of(answer), CACHE)?)?;
        let (mut kept, mut out) = (BytesMut::new(), BytesMut::with_capacity(answer.len()));
        json::push_without(&mut kept, answer, meta, |name| name == CACHE);
        if *kept == b"{}"[..] {
            let mut rest = BytesMut::with_capacity(answer.len());
            json::push_without(&mut rest, answer, result, |name| name == "_meta");
            json::splice(&mut out, answer, &[(result, &rest)]);
        } else {
            json::splice(&mut out, answer, &[(meta, &kept)]);
        }
        Some((hint, out.freeze()))
    }
}

/// What makes two requests the same: "Clients MUST NOT serve a cached response for a request whose method or
/// parameters differ" (2026-07-28 caching, "Cache Key").
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CacheKey {
    method: Method,
    /// Its one parameter, `cursor` or `uri`; empty without one.
    name: &'static str,
    /// The raw value, in its canonical spelling.
    value: Box<[u8]>,
}

impl CacheKey {
    /// The key of a request whose result may be kept: of one of five methods, with no parameters but the one
    /// that it has, and no fields in `_meta` that the server may answer by.
    pub(crate) fn of(request: &Message) -> Option<Self> {
        let method = request.method();
        let parameter = match method {
            Method::ToolsList
            | Method::PromptsList
            | Method::ResourcesList
            | Method::TemplatesList => "cursor",
            Method::ResourcesRead => "uri",
            _ => return None,
        };
        let text = request.bytes();
        let mut key = Self {
            method,
            name: "",
            value: Box::default(),
        };
        let Some(params) = request.params_span() else {
            return Some(key);
        };
        if !params.of(text).starts_with(b"{") {
            return None;
        }
        for (name, value) in json::members(text, params) {
            match &*json::decoded(name.of(text))? {
                "_meta" => {
                    let fields = json::members(text, value);
                    let mut fields = fields
                        .iter()
                        .map(|(name, value)| (json::decoded(name.of(text)), value.of(text)));
                    if !fields
                        .all(|(name, value)| name.is_some_and(|name| changes_nothing(&name, value)))
                    {
                        return None;
                    }
                }
                name if name == parameter => {
                    (key.name, key.value) = (parameter, json::canonical(value.of(text)));
                }
                _ => return None,
            }
        }
        Some(key)
    }

    /// The bytes of its texts.
    pub(crate) fn size(&self) -> usize {
        self.value.len()
    }

    /// Whether both are pages of one list.
    pub(crate) fn is_page_with(&self, other: &Self) -> bool {
        self.method == other.method && self.method != Method::ResourcesRead
    }

    /// Whether the result may be another one after a change.
    pub(crate) fn is_changed_by(&self, change: &Change) -> bool {
        match (change, self.method) {
            (Change::Tools, Method::ToolsList)
            | (Change::Prompts, Method::PromptsList)
            | (Change::Resources, Method::ResourcesList | Method::TemplatesList) => true,
            (Change::Resource(uri), Method::ResourcesRead) => {
                is_subscribed(&self.value, uri) || is_subscribed(uri, &self.value)
            }
            _ => false,
        }
    }
}

/// A change that a notification tells of. Read once for all keys: a notification may be long, and its URI is
/// decoded.
pub(crate) enum Change {
    /// The list of tools.
    Tools,
    /// The list of prompts.
    Prompts,
    /// The lists of resources and of templates.
    Resources,
    /// The resource with this raw URI, in its canonical spelling, and those above and below it.
    Resource(Box<[u8]>),
}

impl Change {
    /// The change that a notification tells of; none if it tells of no results.
    pub(crate) fn of(notification: &Message) -> Option<Self> {
        Some(match &*notification.method_name() {
            "notifications/tools/list_changed" => Self::Tools,
            "notifications/prompts/list_changed" => Self::Prompts,
            "notifications/resources/list_changed" => Self::Resources,
            "notifications/resources/updated" => Self::Resource(notification.subject()?),
            _ => return None,
        })
    }
}

/// Whether a field of `_meta` has no part in the result. What the server is told of the client is the same for
/// all requests of a child.
fn changes_nothing(name: &str, value: &[u8]) -> bool {
    let is_bare = name == CARRIES && *value == *BARE.as_bytes();
    is_bare || name == "progressToken" || MODERN_KEYS.contains(&name) || TRACE_KEYS.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::super::cache::*;

    #[test]
    fn a_hint_is_what_a_server_says() {
        let hint = |ttl_ms, is_public| Some(CacheHint { ttl_ms, is_public });
        for (result, expected) in [
            ("{}", None),
            (r#"{"cacheScope":"public"}"#, None),
            (r#"{"ttlMs":5}"#, hint(5, false)),
            (r#"{"ttlMs":5,"cacheScope":"private"}"#, hint(5, false)),
            (r#"{"ttlMs":5,"cacheScope":"public"}"#, hint(5, true)),
            (r#"{"ttlMs":-5,"cacheScope":"Public"}"#, hint(0, false)),
            (r#"{"ttlMs":1.5}"#, hint(0, false)),
            (r#"{"ttlMs":"5"}"#, hint(0, false)),
            (r#"{"ttlMs":99999999999999999999}"#, hint(0, false)),
            (r#"{"ttlMs":9999999999999}"#, hint(MAX_TTL, false)),
        ] {
            assert_eq!(CacheHint::of(result.as_bytes()), expected, "{result}");
        }
    }

    fn key(method: &str, params: &str) -> Option<CacheKey> {
        let request =
            format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
        CacheKey::of(&Message::parse(request.into()).unwrap())
    }

    #[test]
    fn requests_have_one_key_if_nothing_in_them_differs() {
        let first = key("tools/list", "{}").unwrap();
        for same in [
            r#"{"_meta":{}}"#,
            r#"{"_meta":{"progressToken":7,"traceparent":"x","io.modelcontextprotocol/logLevel":"info"}}"#,
        ] {
            assert_eq!(key("tools/list", same).as_ref(), Some(&first), "{same}");
        }
        let (a, b) = (r#"{"cursor":"a"}"#, r#"{"cursor":"b"}"#);
        assert_eq!(
            key("tools/list", r#"{"cursor":"\u0061"}"#),
            key("tools/list", a)
        );
        let uri = |uri: &str| key("resources/read", &format!(r#"{{"uri":"{uri}"}}"#));
        let all = [
            Some(first),
            key("prompts/list", "{}"),
            key("tools/list", a),
            key("tools/list", b),
            key("tools/list", r#"{"cursor":null}"#),
            uri("a"),
            uri("b"),
        ];
        for (at, one) in all.iter().enumerate() {
            assert!(one.is_some());
            assert_eq!(all.iter().position(|other| other == one), Some(at));
        }
        for (method, params) in [
            ("tools/call", r#"{"name":"x"}"#),
            ("server/discover", "{}"),
            ("tools/list", r#"{"filter":"x"}"#),
            ("tools/list", r#"{"_meta":{"example.org/user":"x"}}"#),
            ("resources/read", r#"{"uri":"a","inputResponses":{}}"#),
            ("resources/read", r#"{"uri":"a","requestState":"s"}"#),
        ] {
            assert_eq!(key(method, params), None, "{method} {params}");
        }
    }

    #[test]
    fn a_notification_concerns_what_it_names() {
        let uri = |uri: &str| ("resources/read", format!(r#"{{"uri":"{uri}"}}"#));
        let list = |name| (name, "{}".to_owned());
        for (notification, changed, unchanged) in [
            (
                r#""notifications/tools/list_changed""#,
                list("tools/list"),
                list("prompts/list"),
            ),
            (
                r#""notifications/prompts/list_changed""#,
                list("prompts/list"),
                list("tools/list"),
            ),
            (
                r#""notifications/resources/list_changed""#,
                list("resources/list"),
                uri("a"),
            ),
            (
                r#""notifications/resources/list_changed""#,
                list("resources/templates/list"),
                list("tools/list"),
            ),
            (
                r#""notifications/resources/updated","params":{"uri":"x:/a/b"}"#,
                uri("x:/a/b"),
                uri("x:/b"),
            ),
            (
                r#""notifications/resources/updated","params":{"uri":"x:/a/b"}"#,
                uri("x:/a"),
                uri("x:/ab"),
            ),
            (
                r#""notifications/resources/updated","params":{"uri":"x:/a"}"#,
                uri("x:/a/b"),
                uri("x:/b"),
            ),
            (r#""notifications/message""#, uri("x:/a"), uri("x:/b")),
        ] {
            let told = format!(r#"{{"jsonrpc":"2.0","method":{notification}}}"#);
            let told = Message::parse(told.into()).unwrap();
            let change = Change::of(&told);
            let is_changed = |(method, params): (&str, String)| {
                let key = key(method, &params).unwrap();
                change
                    .as_ref()
                    .is_some_and(|change| key.is_changed_by(change))
            };
            let is_any = !notification.contains("message");
            assert_eq!(
                (is_changed(changed), is_changed(unchanged)),
                (is_any, false)
            );
        }
    }

    #[test]
    fn a_hint_leaves_an_answer_as_it_was() {
        let hint = CacheHint {
            ttl_ms: 7,
            is_public: true,
        };
        for result in [
            "{}",
            r#"{"tools":[{"_meta":{"lockgate/cache":1}}]}"#,
            r#"{"_meta":{"a":1},"tools":[]}"#,
        ] {
            let answer = |result: &str| format!(r#"{{"id":1,"result":{result},"jsonrpc":"2.0"}}"#);
            let told = hint.put_into(result.as_bytes());
            let told = answer(str::from_utf8(&told).unwrap());
            let taken = CacheHint::take_from(told.as_bytes());
            assert_eq!(taken, Some((hint, answer(result).into())));
            assert_eq!(CacheHint::take_from(answer(result).as_bytes()), None);
        }
    }
}

//! Answers to `server/discover`, and the filters of `subscriptions/listen` (2026-07-28 discover,
//! subscriptions).

use std::collections::HashSet;

use bytes::{BufMut, Bytes, BytesMut};

use super::{answer::SUBSCRIPTION, tasks::push_capabilities};
use crate::protocol::{
    Message, Method, initialize, is_subscribed,
    json::{self, Scanner, SyntaxError},
    jsonrpc,
    meta::SERVER_INFO,
};

/// Whether a notification that was read before is one that subscriptions are for. Nothing behind its method is looked at:
/// each subscription of a session gets all that the session hears, however long.
pub(crate) fn is_change(notification: &[u8]) -> bool {
    let mut method = Method::Other;
    let mut scanner = Scanner::new(notification);
    // An error ends the reading.
    let _ = scanner.object(0, |scanner, key| {
        let value = scanner.value(1)?;
        if !json::is_named(key.of(notification), "method") {
            return Ok(());
        }
        let name = json::decoded(value.of(notification));
        method = name.map_or(Method::Other, |name| Method::of(&name));
        Err(SyntaxError("it is known"))
    });
    matches!(method, Method::ListChanged | Method::Updated)
}

/// The result of `server/discover`, made of the raw result of the server's `initialize`.
///
/// The client may keep it for so many milliseconds. The tasks of a session are none of this era's, but for the extension of that name, which the gateway has.
pub(crate) fn discover_result(
    initialized: &[u8],
    supported: &[&str],
    offers_tasks: bool,
    cache_for: u64,
) -> Bytes {
    let initialized = &*initialize::without_tasks(initialized);
    let mut result = BytesMut::new();
    result.extend_from_slice(br#"{"resultType":"complete","supportedVersions":["#);
    for (at, revision) in supported.iter().enumerate() {
        if at > 0 {
            result.put_u8(b',');
        }
        json::push_string(&mut result, revision);
    }
    result.extend_from_slice(br#"],"capabilities":"#);
    let capabilities = json::get(initialized, "capabilities").unwrap_or(b"{}");
    push_capabilities(&mut result, capabilities, offers_tasks);
    if let Some(instructions) = json::get(initialized, "instructions") {
        result.extend_from_slice(br#","instructions":"#);
        result.extend_from_slice(instructions);
    }
    if let Some(info) = json::get(initialized, "serverInfo") {
        result.extend_from_slice(br#","_meta":{""#);
        result.extend_from_slice(SERVER_INFO.as_bytes());
        result.extend_from_slice(br#"":"#);
        result.extend_from_slice(info);
        result.put_u8(b'}');
    }
    result.extend_from_slice(br#","ttlMs":"#);
    result.extend_from_slice(cache_for.to_string().as_bytes());
    result.extend_from_slice(br#","cacheScope":"private"}"#);
    result.freeze()
}

/// The notifications that a subscription asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Filter {
    /// Changes of lists, in the order of [`LISTS`].
    lists: [bool; 3],
    /// The raw URIs of resources, in their canonical spelling.
    pub(crate) resources: Vec<Box<[u8]>>,
    /// The ids of tasks (ext-tasks, "Task Status Notifications").
    pub(crate) tasks: Vec<Box<str>>,
}

/// The lists whose changes are told: the member of a filter, and the capability.
const LISTS: [(&str, &str); 3] = [
    ("toolsListChanged", "tools"),
    ("promptsListChanged", "prompts"),
    ("resourcesListChanged", "resources"),
];
const RESOURCES: &str = "resourceSubscriptions";
const TASKS: &str = "taskIds";

impl Filter {
    /// The filter of a `subscriptions/listen`.
    ///
    /// # Errors
    ///
    /// The text for its client, if it is no such object, or names more than `max` resources or tasks.
    pub(crate) fn of(request: &Message, max: usize) -> Result<Self, &'static str> {
        let params = request.params();
        let wanted = params.and_then(|params| json::get(params, "notifications"));
        let wanted = wanted.filter(|wanted| wanted.starts_with(b"{"));
        let wanted = wanted.ok_or(NO_FILTER)?;
        let mut filter = Self::default();
        for (slot, (member, _)) in filter.lists.iter_mut().zip(LISTS) {
            *slot = match json::get(wanted, member) {
                None | Some(b"false" | b"null") => false,
                Some(b"true") => true,
                Some(_) => return Err(NO_FILTER),
            };
        }
        let mut seen = HashSet::new();
        for uri in texts(wanted, RESOURCES, max)? {
            let uri = json::canonical(uri);
            if seen.insert(uri.clone()) {
                filter.resources.push(uri);
            }
        }
        let mut known = HashSet::new();
        for id in texts(wanted, TASKS, max)? {
            let id: Box<str> = json::decoded(id).ok_or(NO_FILTER)?.into();
            if known.insert(id.clone()) {
                filter.tasks.push(id);
            }
        }
        Ok(filter)
    }

    /// The part of it that a server with these raw capabilities can honour.
    pub(crate) fn honoured(mut self, capabilities: &[u8]) -> Self {
        let has = |kind: &str, what: &str| {
            let declared = json::get(capabilities, kind);
            declared.and_then(|declared| json::get(declared, what)) == Some(b"true")
        };
        for (slot, (_, kind)) in self.lists.iter_mut().zip(LISTS) {
            *slot &= has(kind, "listChanged");
        }
        if !has("resources", "subscribe") {
            self.resources.clear();
        }
        self
    }

    /// Whether a notification of the server is one of these.
    pub(crate) fn matches(&self, notification: &Message) -> bool {
        match notification.method() {
            Method::ListChanged => {
                let name = notification.method_name();
                let is_it = |(wanted, (_, kind)): (&bool, &(&str, &str))| {
                    let list = name.strip_prefix("notifications/");
                    let list = list.and_then(|list| list.strip_suffix("/list_changed"));
                    *wanted && list == Some(kind)
                };
                self.lists.iter().zip(&LISTS).any(is_it)
            }
            Method::Updated => {
                let uri = notification.subject();
                let covers =
                    |uri: &[u8]| self.resources.iter().any(|held| is_subscribed(held, uri));
                uri.is_some_and(|uri| covers(&uri))
            }
            _ => false,
        }
    }

    /// The acknowledgement of a subscription with this raw id.
    pub(crate) fn acknowledgement(&self, id: &[u8]) -> Bytes {
        let mut params = BytesMut::from(&b"{\"_meta\":{\""[..]);
        params.extend_from_slice(SUBSCRIPTION.as_bytes());
        params.extend_from_slice(b"\":");
        params.extend_from_slice(id);
        params.extend_from_slice(br#"},"notifications":{"#);
        let mut members = Vec::new();
        for (wanted, (member, _)) in self.lists.iter().zip(LISTS) {
            if *wanted {
                members.push(format!("\"{member}\":true").into_bytes());
            }
        }
        if !self.resources.is_empty() {
            let uris: Vec<&[u8]> = self.resources.iter().map(|uri| &**uri).collect();
            let uris = uris.join(&b","[..]);
            members.push([b"\"", RESOURCES.as_bytes(), b"\":[", &*uris, b"]"].concat());
        }
        if !self.tasks.is_empty() {
            let ids = serde_json::json!(self.tasks);
            members.push(format!(r#""{TASKS}":{ids}"#).into_bytes());
        }
        params.extend_from_slice(&members.join(&b","[..]));
        params.extend_from_slice(b"}}");
        let mut line = BytesMut::new();
        let method = "notifications/subscriptions/acknowledged";
        jsonrpc::push_notification(method, Some(&params), &mut line);
        line.freeze()
    }

    /// The response that ends a subscription with this raw id (2026-07-28 subscriptions, "Graceful
    /// Closure").
    pub(crate) fn end(id: &[u8], server_info: Option<&[u8]>) -> Bytes {
        let mut result = BytesMut::from(&br#"{"resultType":"complete","_meta":{""#[..]);
        result.extend_from_slice(SUBSCRIPTION.as_bytes());
        result.extend_from_slice(b"\":");
        result.extend_from_slice(id);
        if let Some(info) = server_info {
            result.extend_from_slice(b",\"");
            result.extend_from_slice(SERVER_INFO.as_bytes());
            result.extend_from_slice(b"\":");
            result.extend_from_slice(info);
        }
        result.extend_from_slice(b"}}");
        let mut line = BytesMut::new();
        jsonrpc::push_result(id, &result, &mut line);
        line.freeze()
    }
}

/// The strings of a list in a filter, as they stand.
///
/// # Errors
///
/// The text for the client, if it is no such list, or has more than `max`.
fn texts<'w>(wanted: &'w [u8], name: &str, max: usize) -> Result<Vec<&'w [u8]>, &'static str> {
    let Some(list) = json::get(wanted, name) else {
        return Ok(Vec::new());
    };
    let (mut items, mut texts) = (json::Items::of(list), Vec::new());
    while let Some(text) = items.next().map_err(|_| NO_FILTER)? {
        json::decoded(text).ok_or(NO_FILTER)?;
        if texts.len() == max {
            return Err(TOO_MANY);
        }
        texts.push(text);
    }
    Ok(texts)
}

const NO_FILTER: &str = "params.notifications is no filter of subscriptions";
const TOO_MANY: &str = "too many subscriptions";

#[cfg(test)]
mod tests {
    use super::super::discover::*;

    fn message(text: &str) -> Message {
        Message::parse(Bytes::copy_from_slice(text.as_bytes())).unwrap()
    }

    /// A long log message was read whole by each of a thousand subscriptions.
    #[test]
    fn a_change_is_known_by_its_method_alone() {
        for (text, is_one) in [
            (r#"{"method":"notifications/tools/list_changed"}"#, true),
            (
                r#"{"params":{"method":1},"method":"notifications\/resources\/updated"}"#,
                true,
            ),
            (
                r#"{"jsonrpc":"2.0","method":"notifications/message","params":{}}"#,
                false,
            ),
            (
                r#"{"jsonrpc":"2.0","params":{"method":"notifications/resources/updated"}}"#,
                false,
            ),
            (r#"{"jsonrpc":"2.0","id":1,"result":{}}"#, false),
            (r#"["method"]"#, false),
            // Whatever follows.
            (
                r#"{"method":"notifications/resources/updated","method":"x"}"#,
                true,
            ),
            (
                r#"{"method":"notifications/message","method":"notifications/resources/updated"}"#,
                false,
            ),
        ] {
            assert_eq!(is_change(text.as_bytes()), is_one, "{text}");
        }
    }

    #[test]
    fn discover_repeats_what_initialize_said() {
        let initialized = br#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"},"instructions":"do"}"#;
        assert_eq!(
            discover_result(initialized, &["2026-07-28", "2025-11-25"], false, 0),
            r#"{"resultType":"complete","supportedVersions":["2026-07-28","2025-11-25"],"capabilities":{"tools":{}},"instructions":"do","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"s","version":"1"}},"ttlMs":0,"cacheScope":"private"}"#
        );
    }

    /// Each was compared with all before it.
    #[test]
    fn a_filter_of_many_uris_is_read_in_time_that_is_linear_in_their_number() {
        let texts: Vec<String> = (0..50_000)
            .map(|one| format!("\"test://x{one}\""))
            .collect();
        for member in [RESOURCES, TASKS] {
            let listen = message(&format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{{"notifications":{{"{member}":[{}]}}}}}}"#,
                texts.join(",")
            ));
            let began = crate::base::processor_time();
            let filter = Filter::of(&listen, texts.len()).unwrap();
            let read = filter.resources.len() + filter.tasks.len();
            assert_eq!(read, texts.len(), "{member}");
            let took = crate::base::processor_time().saturating_sub(began);
            assert!(
                took < std::time::Duration::from_secs(3),
                "{member} {took:?}"
            );
        }
    }

    #[test]
    fn a_subscription_gets_what_it_asked_for_and_the_server_offers() {
        let listen = message(
            r#"{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true,"promptsListChanged":true,"resourceSubscriptions":["test:\/\/a","test://a"],"taskIds":["t","t"]}}}"#,
        );
        let filter = Filter::of(&listen, 10).unwrap();
        let capabilities = br#"{"tools":{"listChanged":true},"resources":{"subscribe":true}}"#;
        let filter = filter.honoured(capabilities);
        assert_eq!(
            filter.acknowledgement(b"1"),
            r#"{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":1},"notifications":{"toolsListChanged":true,"resourceSubscriptions":["test://a"],"taskIds":["t"]}}}"#
        );
        for (text, matches) in [
            (
                r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#,
                true,
            ),
            (
                r#"{"jsonrpc":"2.0","method":"notifications/prompts/list_changed"}"#,
                false,
            ),
            (
                r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"test:\u002f/a"}}"#,
                true,
            ),
            (
                r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"test://b"}}"#,
                false,
            ),
            (
                r#"{"jsonrpc":"2.0","method":"notifications/message"}"#,
                false,
            ),
        ] {
            assert_eq!(filter.matches(&message(text)), matches, "{text}");
        }
    }

    #[test]
    fn a_filter_that_cannot_be_read_is_refused() {
        for (notifications, why) in [
            ("1", NO_FILTER),
            (r#"{"toolsListChanged":1}"#, NO_FILTER),
            (r#"{"resourceSubscriptions":"a"}"#, NO_FILTER),
            (r#"{"resourceSubscriptions":[1]}"#, NO_FILTER),
            (r#"{"resourceSubscriptions":["a","b","c"]}"#, TOO_MANY),
            (r#"{"taskIds":[1]}"#, NO_FILTER),
            (r#"{"taskIds":["a","b","c"]}"#, TOO_MANY),
        ] {
            let text = format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"x","params":{{"notifications":{notifications}}}}}"#
            );
            assert_eq!(Filter::of(&message(&text), 2), Err(why), "{notifications}");
        }
    }
}

//! Results of `initialize`, and the lines that restore the state of a session in another child
//! (2025-11-25 lifecycle, "Initialization").

use std::{borrow::Cow, collections::HashMap};

use bytes::{Bytes, BytesMut};

use super::{
    json::{self, Scanner, Span, SyntaxError},
    jsonrpc,
    revision::Revision,
};

/// The line that ends the initialization.
pub(crate) const INITIALIZED: &[u8] =
    b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n";

/// The revision of a raw `protocolVersion`.
pub(crate) fn revision(token: &[u8]) -> Option<Revision> {
    Revision::parse(&json::decoded(token)?)
}

/// The revision of an `initialize` result.
pub(crate) fn of_result(result: &[u8]) -> Option<Revision> {
    revision(json::get(result, "protocolVersion")?)
}

/// The raw capabilities of an `initialize` result.
pub(crate) fn capabilities(result: &[u8]) -> &[u8] {
    json::get(result, "capabilities").unwrap_or(b"{}")
}

/// The most bytes of raw capabilities that a server may declare, as many as those of a client: sessions keep them.
const MAX_CAPABILITIES: usize = 64 << 10;

/// The most bytes of a whole result: each session, and each client that asks for it, has a copy.
const MAX_RESULT: usize = 256 << 10;

/// Whether a raw result is one that is kept and passed on, by its bytes.
pub(crate) fn is_bounded(result: &[u8]) -> bool {
    result.len() <= MAX_RESULT && capabilities(result).len() <= MAX_CAPABILITIES
}

/// Whether the capabilities `new` include all of `old`.
pub(crate) fn covers(new: &[u8], old: &[u8]) -> bool {
    // Read once: a server has as many names as it likes, and each look-up by a scan would read all of them.
    let mut known: HashMap<Cow<'_, str>, Option<&[u8]>> = HashMap::new();
    json::each_member(new, Span::whole(new), |name, value| {
        if let Some(name) = json::decoded(name.of(new)) {
            // As for `json::get`, a repeated name has no value.
            let known = known.entry(name);
            known
                .and_modify(|value| *value = None)
                .or_insert(Some(value.of(new)));
        }
    });
    members(old).into_iter().all(|(name, value)| {
        let value = value.of(old);
        let Some(name) = json::decoded(name.of(old)) else {
            return true;
        };
        match value {
            b"false" | b"null" => true,
            value => known.get(&name).copied().flatten().is_some_and(|new| {
                if value.starts_with(b"{") {
                    covers(new, value)
                } else {
                    new == value
                }
            }),
        }
    })
}

/// The notifications that lists have changed, for the lists whose capability `listChanged` the
/// client knows.
pub(crate) fn list_changed(capabilities: &[u8]) -> Vec<Bytes> {
    let is_declared = |kind: &&str| {
        json::get(capabilities, kind).and_then(|of| json::get(of, "listChanged")) == Some(b"true")
    };
    let line = |kind: &str| {
        let mut line = BytesMut::new();
        jsonrpc::push_notification(
            &format!("notifications/{kind}/list_changed"),
            None,
            &mut line,
        );
        line.freeze()
    };
    let kinds = ["tools", "prompts", "resources"];
    kinds
        .iter()
        .filter(|kind| is_declared(kind))
        .map(|kind| line(kind))
        .collect()
}

/// An `initialize` result without the capability `tasks`: all sessions of a shared child would see
/// its tasks.
pub(crate) fn without_tasks(result: &[u8]) -> Bytes {
    let Some((at, _)) = member(result, "capabilities") else {
        return Bytes::copy_from_slice(result);
    };
    let mut kept = BytesMut::new();
    json::push_without(&mut kept, result, at, |name| name == "tasks");
    let mut out = BytesMut::new();
    json::splice(&mut out, result, &[(at, &kept)]);
    out.freeze()
}

/// An `initialize` of the gateway for a client with these raw capabilities, and with this raw name and
/// version if it has said any.
pub(crate) fn request(capabilities: &[u8], client_info: Option<&[u8]>) -> Bytes {
    let params = [
        br#"{"protocolVersion":""#,
        NEWEST.as_str().as_bytes(),
        br#"","capabilities":"#,
        capabilities,
        br#","clientInfo":"#,
        client_info.unwrap_or(OWN_INFO.as_bytes()),
        b"}",
    ];
    let mut line = BytesMut::new();
    jsonrpc::push_request(b"0", "initialize", Some(&params.concat()), &mut line);
    line.freeze()
}

/// The raw name and version of the gateway as a client.
pub(super) const OWN_INFO: &str = concat!(
    r#"{"name":"lockgate","version":""#,
    env!("CARGO_PKG_VERSION"),
    r#""}"#
);

/// The newest session-based revision.
pub(crate) const NEWEST: Revision = Revision::V2025_11_25;

/// A line that subscribes to a raw URI; `id` is raw as well.
pub(crate) fn subscribe(id: &str, uri: &[u8]) -> Bytes {
    let params = [&br#"{"uri":"#[..], uri, b"}"].concat();
    let mut line = BytesMut::new();
    jsonrpc::push_request(
        id.as_bytes(),
        "resources/subscribe",
        Some(&params),
        &mut line,
    );
    line.extend_from_slice(b"\n");
    line.freeze()
}

/// A line that sets the level of log messages; `id` is raw.
pub(crate) fn set_level(id: &str, level: &str) -> Bytes {
    let mut params = BytesMut::from(&br#"{"level":"#[..]);
    json::push_string(&mut params, level);
    params.extend_from_slice(b"}");
    let mut line = BytesMut::new();
    jsonrpc::push_request(id.as_bytes(), "logging/setLevel", Some(&params), &mut line);
    line.extend_from_slice(b"\n");
    line.freeze()
}

/// The members of an object that was scanned before.
fn members(object: &[u8]) -> Vec<(Span, Span)> {
    let mut found = Vec::new();
    let mut scanner = Scanner::new(object);
    let read = scanner.object::<SyntaxError>(0, |scanner, name| {
        found.push((name, scanner.value(1)?));
        Ok(())
    });
    read.map_or_else(|_| Vec::new(), |_| found)
}

fn member<'a>(object: &'a [u8], key: &str) -> Option<(Span, &'a [u8])> {
    let is_key = |name: &Span| json::decoded(name.of(object)).is_some_and(|name| name == key);
    let (_, value) = members(object).into_iter().find(|(name, _)| is_key(name))?;
    Some((value, value.of(object)))
}

#[cfg(test)]
mod tests {
    use super::super::initialize::*;

    const RESULT: &[u8] = br#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true},"tasks":{"list":{}},"resources":{"subscribe":true,"listChanged":false},"x-own":[1, 2]},"serverInfo":{"name":"s","version":"1"},"instructions":"a \u00e9"}"#;

    #[test]
    fn a_shared_child_has_no_tasks_and_the_rest_as_it_was() {
        let result = without_tasks(RESULT);
        let text = std::str::from_utf8(RESULT).unwrap();
        assert_eq!(result, text.replace(r#""tasks":{"list":{}},"#, ""));
        assert_eq!(of_result(&result), Some(Revision::V2025_11_25));
    }

    #[test]
    fn a_restored_child_may_offer_more_and_never_less() {
        let told = capabilities(RESULT);
        assert!(covers(told, told));
        for (new, is_enough) in [
            (
                r#"{"tools":{"listChanged":true},"tasks":{"list":{}},"resources":{"subscribe":true},"x-own":[1, 2],"more":{}}"#,
                true,
            ),
            (
                r#"{"tools":{"listChanged":false},"tasks":{"list":{}},"resources":{"subscribe":true},"x-own":[1, 2]}"#,
                false,
            ),
            (
                r#"{"tools":{"listChanged":true},"tasks":{"list":{}},"resources":{},"x-own":[1, 2]}"#,
                false,
            ),
            (
                r#"{"tools":{"listChanged":true},"resources":{"subscribe":true},"x-own":[1, 2]}"#,
                false,
            ),
            (
                r#"{"tools":{"listChanged":true},"tasks":{"list":{}},"resources":{"subscribe":true},"x-own":[1, 2],"t\u006fols":{"listChanged":true}}"#,
                false,
            ),
            ("{}", false),
            ("[]", false),
        ] {
            assert_eq!(covers(new.as_bytes(), told), is_enough, "{new}");
        }
        assert!(covers(b"{}", b"{}"));
    }

    /// Each name of the first child was sought in all that the second one said: of a few MiB for an hour.
    #[test]
    fn many_capabilities_are_compared_in_one_pass() {
        let name = |n: u32| format!(r#""capability-{n}":{{"x":{n}}}"#);
        let names: Vec<String> = (0..20_000).map(name).collect();
        let told = format!("{{{}}}", names.join(","));
        let began = tokio::time::Instant::now();
        assert!(covers(told.as_bytes(), told.as_bytes()));
        assert!(began.elapsed() < std::time::Duration::from_secs(5));
    }

    #[test]
    fn only_what_was_announced_is_announced_again() {
        let lines = list_changed(capabilities(RESULT));
        assert_eq!(lines.len(), 1);
        assert_eq!(
            lines[0],
            r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#
        );
        assert!(list_changed(b"{}").is_empty());
    }

    #[test]
    fn lines_are_messages() {
        use super::super::message::Message;
        for line in [
            subscribe("7", br#""file:///a""#),
            set_level("\"x\"", "debug"),
            Bytes::from_static(INITIALIZED),
        ] {
            assert_eq!(line.last(), Some(&b'\n'));
            Message::parse(line.slice(..line.len() - 1)).unwrap();
        }
    }
}

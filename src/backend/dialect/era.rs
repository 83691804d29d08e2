//! Eras that a server understands: the probe for the modern one, and what is known (2026-07-28 stdio,
//! "Backward Compatibility").

use std::{
    sync::atomic::{AtomicU8, Ordering},
    time::Duration,
};

use bytes::{BufMut, BytesMut};

use crate::protocol::{Kind, Message, initialize, json, modern::ClientMeta};

/// The eras that a server understands, as its answers have shown. They are a property of the server, not of a
/// request, so that they are remembered for as long as the launch specification is the same.
///
/// A server of both names modern versions alone in `server/discover`, and answers `initialize`.
#[derive(Debug, Default)]
pub(crate) struct KnownEra {
    /// Whether it answers `initialize`.
    pub(crate) legacy: Known,
    /// Whether it answers `server/discover`.
    pub(crate) modern: Known,
}

/// What an answer has shown.
#[derive(Debug, Default)]
pub(crate) struct Known(AtomicU8);

impl Known {
    /// What is known.
    pub(crate) fn get(&self) -> Option<bool> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            value => Some(value == 1),
        }
    }

    /// Remembers what an answer has shown. `None` forgets what an answer has refuted.
    pub(crate) fn set(&self, is_so: Option<bool>) {
        let value = is_so.map_or(0, |is_so| if is_so { 1 } else { 2 });
        self.0.store(value, Ordering::Relaxed);
    }
}

/// The raw id of the probe: the last one that requests of sessions get, in 32 bits with a sign.
pub(crate) const PROBE: &[u8] = b"2147483647";

/// The time for the answer to a probe.
pub(crate) const PROBE_WAIT: Duration = Duration::from_secs(3);

/// Appends the probe as a line: a request for which servers of the modern era have an answer.
pub(crate) fn push_probe(out: &mut BytesMut) {
    ClientMeta::own().push_discover(PROBE, out);
    out.put_u8(b'\n');
}

/// Whether an answer to `server/discover` is that of a modern server. Others refuse it with any error before
/// `initialize`, unless the error is one that only the modern era has.
pub(crate) fn is_modern(answer: &Message) -> bool {
    if answer.kind() == Kind::Result {
        let result = answer.result().unwrap_or_default();
        return json::get(result, "supportedVersions").is_some_and(has_modern);
    }
    MODERN_ERRORS.contains(&code_of(answer))
}

/// Whether the refusal of an `initialize` may be that of a server which knows no such method: "the exact code
/// is implementation-defined (`initialize` is an unknown method and the request also lacks the required `_meta`
/// fields)" (2026-07-28 versioning, "Compatibility Matrix").
pub(super) fn may_be_modern(refusal: &Message) -> bool {
    let code = code_of(refusal);
    MODERN_ERRORS.contains(&code) || UNKNOWN.contains(&code)
}

fn code_of(answer: &Message) -> &[u8] {
    let error = answer.error().unwrap_or_default();
    json::get(error, "code").unwrap_or_default()
}

/// Errors that only servers of the modern era have (2026-07-28 basic, "Error Codes").
const MODERN_ERRORS: [&[u8]; 3] = [b"-32020", b"-32021", b"-32022"];
/// Invalid request, unknown method, and invalid parameters.
const UNKNOWN: [&[u8]; 3] = [b"-32600", b"-32601", b"-32602"];

/// Whether there is one among these versions that has no sessions.
fn has_modern(versions: &[u8]) -> bool {
    let mut items = json::Items::of(versions);
    while let Ok(Some(version)) = items.next() {
        if initialize::revision(version).is_none() {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::super::era::*;

    #[test]
    fn an_answer_shows_the_era() {
        for (answer, is_one, may_be) in [
            (
                r#""result":{"supportedVersions":["2026-07-28"]}"#,
                true,
                false,
            ),
            (
                r#""result":{"supportedVersions":["2025-11-25","2026-07-28"]}"#,
                true,
                false,
            ),
            (
                r#""result":{"supportedVersions":["2025-06-18"]}"#,
                false,
                false,
            ),
            (r#""result":{}"#, false, false),
            (r#""error":{"code":-32601,"message":"no"}"#, false, true),
            (r#""error":{"code":-32602,"message":"no"}"#, false, true),
            (r#""error":{"code":-32603,"message":"no"}"#, false, false),
            (
                r#""error":{"code":-32022,"message":"no","data":{"supported":["2027-01-01"]}}"#,
                true,
                true,
            ),
            (r#""error":{"code":-32021,"message":"no"}"#, true, true),
        ] {
            let line = format!(r#"{{"jsonrpc":"2.0","id":1,{answer}}}"#);
            let message = Message::parse(Bytes::from(line)).unwrap();
            assert_eq!(is_modern(&message), is_one, "{answer}");
            assert_eq!(may_be_modern(&message), may_be, "{answer}");
        }
    }
}

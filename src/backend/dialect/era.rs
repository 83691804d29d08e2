//! Era of a server: the probe for it, and what is known of it (2026-07-28 stdio, "Backward Compatibility").

use std::sync::atomic::{AtomicU8, Ordering};

use bytes::{BufMut, BytesMut};

use crate::protocol::{Kind, Message, Revision, initialize, json, modern::ClientMeta};

/// The revisions that a server understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Era {
    /// Session-based ones only.
    Legacy = 1,
    /// Stateless ones only.
    Modern,
    /// Both kinds.
    Dual,
}

/// What is known of the era of a server, by its answers. It is a property of the server, not of a request, so
/// that it is remembered for as long as the launch specification is the same.
#[derive(Debug, Default)]
pub(crate) struct KnownEra(AtomicU8);

impl KnownEra {
    /// The era, if it is known.
    pub(crate) fn get(&self) -> Option<Era> {
        match self.0.load(Ordering::Relaxed) {
            1 => Some(Era::Legacy),
            2 => Some(Era::Modern),
            3 => Some(Era::Dual),
            _ => None,
        }
    }

    /// Remembers the era that an answer has shown, or forgets the one that an answer has refuted.
    pub(crate) fn set(&self, era: Option<Era>) {
        self.0
            .store(era.map_or(0, |era| era as u8), Ordering::Relaxed);
    }
}

/// The raw id of the probe: the last one that requests of sessions get, in 32 bits with a sign.
pub(crate) const PROBE: &[u8] = b"2147483647";

/// Appends the probe as a line: a request for which servers of the modern era have an answer.
pub(crate) fn push_probe(out: &mut BytesMut) {
    ClientMeta::own().push_discover(PROBE, out);
    out.put_u8(b'\n');
}

/// The era that an answer to `server/discover` shows. Servers refuse it with any error before `initialize`,
/// unless the error is one that only the modern era has.
pub(crate) fn era_of(answer: &Message) -> Era {
    if answer.kind() == Kind::Result {
        let versions = answer
            .result()
            .and_then(|result| json::get(result, "supportedVersions"));
        return versions.map_or(Era::Legacy, era_of_versions);
    }
    let error = answer.error().unwrap_or_default();
    let code = json::get(error, "code").unwrap_or_default();
    if MODERN_ERRORS.contains(&code) {
        let supported = json::get(error, "data").and_then(|data| json::get(data, "supported"));
        return supported.map_or(Era::Modern, era_of_versions);
    }
    Era::Legacy
}

/// Errors that only servers of the modern era have (2026-07-28 basic, "Error Codes").
const MODERN_ERRORS: [&[u8]; 3] = [b"-32020", b"-32021", b"-32022"];

/// The era of a server that supports these versions.
fn era_of_versions(versions: &[u8]) -> Era {
    let mut items = json::Items::of(versions);
    let mut is_modern = false;
    let mut is_legacy = false;
    while let Ok(Some(version)) = items.next() {
        if initialize::revision(version).is_some() {
            is_legacy = true;
        } else {
            is_modern = true;
        }
    }
    match (is_modern, is_legacy) {
        (true, true) => Era::Dual,
        (false, true) => Era::Legacy,
        _ => Era::Modern,
    }
}

/// The newest session-based revision, which a server of the modern era is said to speak if its client
/// requests one that this gateway does not know.
pub(crate) const NEWEST: Revision = Revision::V2025_11_25;

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::super::era::*;

    #[test]
    fn an_answer_shows_the_era() {
        for (answer, era) in [
            (
                r#""result":{"supportedVersions":["2026-07-28"]}"#,
                Era::Modern,
            ),
            (
                r#""result":{"supportedVersions":["2026-07-28","2025-11-25"]}"#,
                Era::Dual,
            ),
            (
                r#""result":{"supportedVersions":["2025-06-18"]}"#,
                Era::Legacy,
            ),
            (r#""result":{}"#, Era::Legacy),
            (r#""error":{"code":-32601,"message":"no"}"#, Era::Legacy),
            (r#""error":{"code":-32602,"message":"no"}"#, Era::Legacy),
            (
                r#""error":{"code":-32022,"message":"no","data":{"supported":["2027-01-01"]}}"#,
                Era::Modern,
            ),
            (
                r#""error":{"code":-32022,"message":"no","data":{"supported":["2027-01-01","2025-11-25"]}}"#,
                Era::Dual,
            ),
            (r#""error":{"code":-32021,"message":"no"}"#, Era::Modern),
        ] {
            let line = format!(r#"{{"jsonrpc":"2.0","id":1,{answer}}}"#);
            let message = Message::parse(Bytes::from(line)).unwrap();
            assert_eq!(era_of(&message), era, "{answer}");
        }
    }
}

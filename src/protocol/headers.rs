//! What the headers of an MCP request say: accepted types, revision, era.

use super::revision::{FIRST_MODERN, Revision};

/// `Mcp-Session-Id`
pub(crate) const SESSION_ID: &str = "mcp-session-id";
/// `MCP-Protocol-Version`
pub(crate) const PROTOCOL_VERSION: &str = "mcp-protocol-version";
/// `Last-Event-ID`
pub(crate) const LAST_EVENT_ID: &str = "last-event-id";

/// Which content types a client takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Accepts {
    /// `application/json`
    pub(crate) json: bool,
    /// `text/event-stream`
    pub(crate) sse: bool,
    /// `text/html` by name, as browsers send it.
    pub(crate) html: bool,
}

impl Accepts {
    /// Reads all `Accept` fields; none at all accepts everything (RFC 9110 12.5.1).
    pub(crate) fn parse<'a>(fields: impl Iterator<Item = &'a str>) -> Self {
        let mut best = [(0, false); 3];
        let mut is_empty = true;
        for (range, takes) in fields.flat_map(|field| field.split(',')).filter_map(range) {
            is_empty = false;
            for (best, media) in best.iter_mut().zip([JSON, SSE, HTML]) {
                let fit = fit(range, media);
                if fit > best.0 {
                    *best = (fit, takes);
                }
            }
        }
        let [json, sse, html] = best;
        Self {
            json: is_empty || json.1,
            sse: is_empty || sse.1,
            html: html == (EXACT, true),
        }
    }
}

const JSON: (&str, &str) = ("application", "json");
const SSE: (&str, &str) = ("text", "event-stream");
const HTML: (&str, &str) = ("text", "html");

/// A media range and whether its weight is not zero.
fn range(text: &str) -> Option<(&str, bool)> {
    let mut parts = text.split(';').map(str::trim);
    let range = parts.next().filter(|range| !range.is_empty())?;
    let weight = parts.find_map(|part| part.strip_prefix("q=").or(part.strip_prefix("Q=")));
    let takes = weight.is_none_or(|weight| weight.parse::<f32>().is_ok_and(|q| q > 0.0));
    Some((range, takes))
}

/// How closely a range means a media type, 0 if not at all: the closest one decides.
fn fit(range: &str, (kind, own): (&str, &str)) -> u8 {
    let is = |said: &str, wanted: &str| said.eq_ignore_ascii_case(wanted);
    match range.split_once('/') {
        Some(("*", "*")) => 1,
        Some((said, "*")) if is(said, kind) => 2,
        Some((said, rest)) if is(said, kind) && is(rest, own) => EXACT,
        _ => 0,
    }
}

const EXACT: u8 = 3;

/// Whether a `Content-Type` says JSON, whatever its parameters.
pub(crate) fn is_json(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case("application/json")
}

/// What the version header says about the era.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    /// No header: the session's revision.
    Absent,
    /// A session-based revision that this build serves.
    Legacy(Revision),
    /// 2026-07-28 or later.
    Modern,
    /// No revision that this build knows.
    Unknown,
}

impl Version {
    /// Reads the header's value.
    pub(crate) fn parse(value: Option<&str>) -> Self {
        let Some(value) = value else {
            return Self::Absent;
        };
        if let Some(revision) = Revision::parse(value) {
            return Self::Legacy(revision);
        }
        if is_date(value) && value >= FIRST_MODERN {
            Self::Modern
        } else {
            Self::Unknown
        }
    }
}

fn is_date(text: &str) -> bool {
    text.len() == 10
        && text.bytes().enumerate().all(|(at, byte)| match at {
            4 | 7 => byte == b'-',
            _ => byte.is_ascii_digit(),
        })
}

#[cfg(test)]
mod tests {
    use super::super::headers::*;
    use proptest::prelude::*;

    #[test]
    fn reads_accept() {
        let cases: [(&[&str], (bool, bool)); 12] = [
            (&[], (true, true)),
            (&["application/json, text/event-stream"], (true, true)),
            (&["application/json", "text/event-stream"], (true, true)),
            (&["application/json"], (true, false)),
            (&["text/event-stream"], (false, true)),
            (&["*/*"], (true, true)),
            (&["application/*"], (true, false)),
            (&["text/*;q=0.5"], (false, true)),
            (&["text/html"], (false, false)),
            (&["*/*, text/event-stream;q=0"], (true, false)),
            (&["Application/JSON; q=1.0"], (true, false)),
            (&["application/json;q=0"], (false, false)),
        ];
        for (fields, (json, sse)) in cases {
            let accepts = Accepts::parse(fields.iter().copied());
            assert_eq!((accepts.json, accepts.sse), (json, sse), "{fields:?}");
        }
        assert!(Accepts::parse(["text/html,*/*;q=0.8"].into_iter()).html);
    }

    #[test]
    fn reads_content_type() {
        assert!(is_json("application/json"));
        assert!(is_json("Application/JSON; charset=utf-8"));
        assert!(!is_json("text/plain"));
        assert!(!is_json("application/jsonp"));
        assert!(!is_json(""));
    }

    #[test]
    fn reads_version() {
        assert_eq!(Version::parse(None), Version::Absent);
        assert_eq!(
            Version::parse(Some("2025-06-18")),
            Version::Legacy(Revision::V2025_06_18)
        );
        assert_eq!(Version::parse(Some("2026-07-28")), Version::Modern);
        assert_eq!(Version::parse(Some("2099-01-01")), Version::Modern);
        assert_eq!(Version::parse(Some("2025-06-19")), Version::Unknown);
        assert_eq!(Version::parse(Some("9999")), Version::Unknown);
        assert_eq!(Version::parse(Some("")), Version::Unknown);
    }

    proptest! {
        #[test]
        fn never_panics(text: String) {
            Accepts::parse([text.as_str()].into_iter());
            is_json(&text);
            Version::parse(Some(&text));
        }
    }
}

//! Names and values of the header fields of MCP requests: accepted content types, protocol revision,
//! era.
//!
//! Not here: refusals (`http::admission::headers`).

use super::revision::{FIRST_MODERN, Revision};

/// `Mcp-Session-Id`
pub(crate) const SESSION_ID: &str = "mcp-session-id";
/// `MCP-Protocol-Version`
pub(crate) const PROTOCOL_VERSION: &str = "mcp-protocol-version";
/// `Mcp-Method`
pub(crate) const METHOD: &str = "mcp-method";
/// `Mcp-Name`
pub(crate) const NAME: &str = "mcp-name";
/// The first part of the names of fields that mirror arguments, `Mcp-Param-…`.
pub(crate) const ARGUMENT_PREFIX: &str = "mcp-param-";
/// The most such fields of a call, for as many annotated arguments of its tool.
pub(crate) const MAX_ARGUMENTS: usize = 64;
/// `Last-Event-ID`
pub(crate) const LAST_EVENT_ID: &str = "last-event-id";

/// The content types that a client accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Accepts {
    /// `application/json`
    pub(crate) json: bool,
    /// `text/event-stream`
    pub(crate) sse: bool,
    /// `text/html`, named as browsers do.
    pub(crate) html: bool,
}

impl Accepts {
    /// Parses all `Accept` fields; without one, everything is accepted (RFC 9110 12.5.1).
    pub(crate) fn parse<'a>(mut fields: impl Iterator<Item = &'a str>) -> Self {
        let first = [fields.next(), fields.next()];
        if first == [Some(USUAL), None] {
            return Self {
                json: true,
                sse: true,
                html: false,
            };
        }
        let mut best = [(0, false); 3];
        let mut is_empty = true;
        let fields = first.into_iter().flatten().chain(fields);
        for (range, is_accepted) in fields.flat_map(|field| field.split(',')).filter_map(range) {
            is_empty = false;
            for (best, media) in best.iter_mut().zip([JSON, SSE, HTML]) {
                let specificity = media.specificity(range);
                if specificity > best.0 {
                    *best = (specificity, is_accepted);
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

/// The field of most clients, whose ranges need not be read one by one.
const USUAL: &str = "application/json, text/event-stream";

/// A media type.
struct MediaType {
    kind: &'static str,
    subtype: &'static str,
}

const JSON: MediaType = MediaType {
    kind: "application",
    subtype: "json",
};
const SSE: MediaType = MediaType {
    kind: "text",
    subtype: "event-stream",
};
const HTML: MediaType = MediaType {
    kind: "text",
    subtype: "html",
};

/// A media range, and whether its weight is above zero.
fn range(text: &str) -> Option<(&str, bool)> {
    let mut parts = text.split(';').map(str::trim);
    let range = parts.next().filter(|range| !range.is_empty())?;
    let weight = parts.find_map(|part| part.strip_prefix("q=").or(part.strip_prefix("Q=")));
    let is_accepted = weight.is_none_or(|weight| weight.parse::<f32>().is_ok_and(|q| q > 0.0));
    Some((range, is_accepted))
}

impl MediaType {
    /// The specificity of a range for this type, 0 if it does not match: the most specific decides.
    fn specificity(&self, range: &str) -> u8 {
        let is = |part: &str, own: &str| part.eq_ignore_ascii_case(own);
        match range.split_once('/') {
            Some(("*", "*")) => 1,
            Some((kind, "*")) if is(kind, self.kind) => 2,
            Some((kind, rest)) if is(kind, self.kind) && is(rest, self.subtype) => EXACT,
            _ => 0,
        }
    }
}

const EXACT: u8 = 3;

/// Whether a `Content-Type` is JSON, with any parameters.
pub(crate) fn is_json(content_type: &str) -> bool {
    if content_type == "application/json" {
        return true;
    }
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case("application/json")
}

/// The value of the version header, by era.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    /// No header: the revision of the session applies.
    Absent,
    /// A session-based revision that this build serves.
    Legacy(Revision),
    /// 2026-07-28 or later.
    Modern,
    /// An unknown revision.
    Unknown,
}

impl Version {
    /// Parses the value of the header.
    pub(crate) fn parse(value: Option<&str>) -> Self {
        let Some(value) = value.map(only_member) else {
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

/// The member of a list whose members are all the same; any other text as it is. Clients and proxies make such a list of
/// two equal lines (RFC 9110, section 5.3), which are one value as well.
fn only_member(list: &str) -> &str {
    let Some((first, rest)) = list.split_once(',') else {
        return list;
    };
    let first = first.trim_ascii();
    if rest.split(',').all(|member| member.trim_ascii() == first) {
        first
    } else {
        list
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
    fn only_browsers_accept_html() {
        for (fields, html) in [
            (vec![USUAL], false),
            (vec![USUAL, "text/html"], true),
            (vec!["text/html, */*;q=0.8"], true),
            (vec!["*/*"], false),
        ] {
            assert_eq!(
                Accepts::parse(fields.iter().copied()).html,
                html,
                "{fields:?}"
            );
        }
    }

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
        for (list, version) in [
            (
                "2025-06-18, 2025-06-18",
                Version::Legacy(Revision::V2025_06_18),
            ),
            (
                "2025-06-18,2025-06-18 ,\t2025-06-18",
                Version::Legacy(Revision::V2025_06_18),
            ),
            ("2026-07-28, 2026-07-28", Version::Modern),
            ("2025-06-18, 2025-11-25", Version::Unknown),
            ("2025-06-18, 2025-06-18, 2026-07-28", Version::Unknown),
            ("2025-06-18,", Version::Unknown),
            (",", Version::Unknown),
        ] {
            assert_eq!(Version::parse(Some(list)), version, "{list}");
        }
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

//! Any text as the value of the headers that the protocol reads.

use crate::protocol::headers::{Accepts, Version, is_json};
use crate::protocol::revision::{FIRST_MODERN, Revision};

pub fn run(text: &str) {
    accept(text);
    content_type(text);
    version(text);
}

/// One field a line.
fn accept(text: &str) {
    let fields: Vec<&str> = text.lines().collect();
    let accepts = Accepts::parse(fields.iter().copied());
    // RFC 9110 5.3: fields of one name are one list.
    let joined = fields.join(",");
    assert_eq!(accepts, Accepts::parse([joined.as_str()].into_iter()));
    // RFC 9110 8.3.1: types are case-insensitive.
    let upper = joined.to_ascii_uppercase();
    assert_eq!(accepts, Accepts::parse([upper.as_str()].into_iter()));
    // A range in front that names neither decides nothing, unless the list was empty.
    let more = format!("image/png,{joined}");
    let is_empty = joined.split(',').all(|range| essence(range).is_empty());
    let wanted = Accepts {
        json: accepts.json && !is_empty,
        sse: accepts.sse && !is_empty,
        html: accepts.html,
    };
    assert_eq!(wanted, Accepts::parse([more.as_str()].into_iter()));
}

fn content_type(text: &str) {
    let is = is_json(text);
    assert_eq!(is, essence(text).eq_ignore_ascii_case("application/json"));
    assert_eq!(is, is_json(&format!(" {text} ; charset=utf-8")));
}

fn version(text: &str) {
    match Version::parse(Some(text)) {
        Version::Absent => panic!("a header that is there"),
        Version::Legacy(revision) => {
            assert_eq!(revision.as_str(), text);
            assert!(text < FIRST_MODERN);
        }
        Version::Modern => assert!(text.len() == 10 && text >= FIRST_MODERN),
        Version::Unknown => assert_eq!(Revision::parse(text), None),
    }
}

fn essence(value: &str) -> &str {
    value.split(';').next().unwrap_or_default().trim()
}

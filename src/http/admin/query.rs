//! What requests to the administration API carry: parameters of the query, and documents.

use http::StatusCode;
use serde_json::Value as Json;

use crate::{
    config::{Format, Node, Value, Wrong, reader::nearest},
    declare::Document,
    http::reply::Problem,
};

/// The parameters of a query, each at most once.
#[derive(Debug, Default)]
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    /// Those of `query`, which may only be `known` ones.
    pub(crate) fn parse(query: Option<&str>, known: &[&str]) -> Result<Self, Problem> {
        let mut read: Vec<(String, String)> = Vec::new();
        for (name, value) in url::form_urlencoded::parse(query.unwrap_or("").as_bytes()) {
            let refuse = |what: &str| Err(bad(format!("the parameter {name}: {what}")));
            if !known.contains(&&*name) {
                let near = nearest(&name, known.iter().copied());
                let near = near.map(|near| format!("there is no such one; did you mean {near}?"));
                return refuse(&near.unwrap_or_else(|| "there is no such one".to_owned()));
            }
            if value.contains('\0') {
                // PostgreSQL has no such texts.
                return refuse("it has a NUL in it");
            }
            if read.iter().any(|(other, _)| *other == name) {
                return refuse("it is repeated");
            }
            read.push((name.into_owned(), value.into_owned()));
        }
        Ok(Self(read))
    }

    /// A parameter.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(other, _)| other == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Whether a switch is on; off by default.
    pub(super) fn flag(&self, name: &str) -> Result<bool, Problem> {
        match self.get(name) {
            None | Some("false") => Ok(false),
            Some("true" | "") => Ok(true),
            Some(_) => Err(bad(format!("the parameter {name}: write true or false"))),
        }
    }

    /// How many things are wanted at most.
    pub(crate) fn limit(&self) -> Result<usize, Problem> {
        let Some(text) = self.get("limit") else {
            return Ok(PAGE);
        };
        let limit = text.parse().ok().filter(|limit| (1..=MOST).contains(limit));
        limit.ok_or_else(|| {
            bad(format!(
                "the parameter limit: write a number from 1 to {MOST}"
            ))
        })
    }

    /// A point in time in milliseconds since 1970.
    pub(super) fn moment(&self, name: &str) -> Result<Option<i64>, Problem> {
        use time::{OffsetDateTime, format_description::well_known::Rfc3339};
        let read = |text: &str| {
            let at = OffsetDateTime::parse(text, &Rfc3339).ok()?;
            i64::try_from(at.unix_timestamp_nanos() / 1_000_000).ok()
        };
        let Some(text) = self.get(name) else {
            return Ok(None);
        };
        let remedy = "write a point in time like 2027-01-31T12:00:00Z";
        read(text)
            .map(Some)
            .ok_or_else(|| bad(format!("the parameter {name}: {remedy}")))
    }
}

fn bad(detail: String) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, detail)
}

/// The document of a body: one JSON object, no name in it twice.
pub(super) fn read_document(body: &[u8]) -> Result<Document, Problem> {
    let not_json = || bad("the body is no JSON".to_owned());
    let text = std::str::from_utf8(body).map_err(|_| not_json())?;
    let json: Json = serde_json::from_str(text).map_err(|_| not_json())?;
    let Json::Object(document) = json else {
        return Err(bad("the body is no JSON object".to_owned()));
    };
    let (tree, _) = Format::Json.parse("body", text);
    if let Some(name) = tree.as_ref().and_then(twice) {
        let wrong = Wrong::new("stands there twice", "keep one of the two");
        return Err(Problem::invalid(vec![wrong.at("body", &name)]));
    }
    Ok(document)
}

/// A name that a table of the tree has twice.
fn twice(node: &Node) -> Option<String> {
    match &node.value {
        Value::List(items) => items.iter().find_map(twice),
        Value::Map(entries) => {
            let again = entries
                .iter()
                .enumerate()
                .find(|(at, (name, _))| entries[..*at].iter().any(|(other, _)| other == name));
            again
                .map(|(_, (name, _))| name.clone())
                .or_else(|| entries.iter().find_map(|(_, node)| twice(node)))
        }
        _ => None,
    }
}

/// Things on a page by default.
const PAGE: usize = 100;
/// Things on a page at most.
const MOST: usize = 1000;

#[cfg(test)]
mod tests {
    use super::super::query::*;

    #[test]
    fn parameters_are_known_and_single() {
        let known = ["limit", "dry_run", "from"];
        let parse = |text: &str| Query::parse(Some(text), &known);
        assert_eq!(parse("limit=3").unwrap().limit().unwrap(), 3);
        assert_eq!(parse("").unwrap().limit().unwrap(), PAGE);
        for wrong in ["limit=0", "limit=1001", "limit=x", "limit=-1"] {
            assert!(parse(wrong).unwrap().limit().is_err(), "{wrong}");
        }
        for wrong in ["limt=3", "limit=1&limit=1", "x", "limit=1%00"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        assert!(parse("dry_run").unwrap().flag("dry_run").unwrap());
        assert!(!parse("dry_run=false").unwrap().flag("dry_run").unwrap());
        assert!(parse("dry_run=1").unwrap().flag("dry_run").is_err());
        let at = parse("from=1970-01-01T00:00:01.5Z").unwrap();
        assert_eq!(at.moment("from").unwrap(), Some(1500));
        assert!(parse("from=today").unwrap().moment("from").is_err());
    }

    #[test]
    fn documents_are_objects_without_repetition() {
        assert!(read_document(br#"{"a": {"b": 1}, "c": [{"b": 1}]}"#).is_ok());
        for wrong in [
            &b"[]"[..],
            b"1",
            b"",
            b"{",
            b"{} {}",
            b"{\"a\": 1, \"a\": 1}",
            b"{\"a\": [{\"b\": 1, \"b\": 2}]}",
            b"{\"a\": 1, \"\\u0061\": 1}",
            b"\xff",
        ] {
            assert!(read_document(wrong).is_err(), "{wrong:?}");
        }
    }
}

//! Parts of requests: path and query parameters, conditions, and documents.

use std::collections::HashSet;

use axum::{body::Body, extract::FromRequestParts};
use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, StatusCode,
    header::{IF_MATCH, IF_NONE_MATCH},
    request::Parts,
};
use serde_json::Value as Json;

use crate::{
    auth::Administrator,
    config::{Format, Node, Value, Wrong, reader::nearest},
    database::Expected,
    declare::{Document, counted},
    http::{Front, admission::body, reply::McpRefusal, reply::Problem},
};

/// The parameters of a path by name.
pub(super) struct Path(Vec<(String, String)>);

impl Path {
    /// Reads the parameters of a request's path; a path that is not UTF-8 names no object.
    pub(super) async fn of(parts: &mut Parts) -> Result<Self, Problem> {
        let path = axum::extract::Path::from_request_parts(parts, &()).await;
        let axum::extract::Path(found) = path.map_err(|_| Problem::not_found())?;
        let found: Vec<(String, String)> = found;
        // No name has one, and PostgreSQL refuses it in any text.
        if found.iter().any(|(_, value)| value.contains('\0')) {
            return Err(Problem::not_found());
        }
        Ok(Self(found))
    }

    /// A parameter.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(other, _)| other == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Returns `{tenant}`, or an empty text, which is the name of no tenant.
    pub(super) fn tenant(&self) -> &str {
        self.get("tenant").unwrap_or_default()
    }

    /// Returns `{name}`, or an empty text, which is the name of no object.
    pub(super) fn name(&self) -> &str {
        self.get("name").unwrap_or_default()
    }
}

/// A parameter of a query, by its type.
#[derive(Clone, Copy, Debug)]
pub(super) enum Parameter {
    /// Text.
    Text(&'static str),
    /// A switch, off by default.
    Flag(&'static str),
    /// A time in the format of RFC 3339.
    Moment(&'static str),
    /// `mode`: the way to end a session or a child, `drain` or `now`.
    Mode,
    /// `limit`: items on a page.
    Limit,
}

impl Parameter {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Text(name) | Self::Flag(name) | Self::Moment(name) => name,
            Self::Mode => "mode",
            Self::Limit => "limit",
        }
    }
}

/// Parameters of every list.
pub(super) const PAGE: &[Parameter] = &[Parameter::Limit, Parameter::Text("after")];

/// Parameters of a query, each at most once.
#[derive(Debug, Default)]
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    /// Reads a query that may only have the `known` parameters. If there are none, it is ignored.
    pub(super) fn of(query: Option<&str>, known: &[Parameter]) -> Result<Self, Problem> {
        let mut read: Vec<(String, String)> = Vec::new();
        if known.is_empty() {
            return Ok(Self(read));
        }
        let known = || known.iter().map(|parameter| parameter.name());
        for (name, value) in url::form_urlencoded::parse(query.unwrap_or("").as_bytes()) {
            let refuse = |what: &str| Err(bad(format!("the parameter {name}: {what}")));
            if !known().any(|known| known == name) {
                let near = nearest(&name, known());
                let near = near.map(|near| format!("there is no such one; did you mean {near}?"));
                return refuse(&near.unwrap_or_else(|| "there is no such one".to_owned()));
            }
            if value.contains('\0') {
                // PostgreSQL cannot store such texts.
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
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(other, _)| other == name);
        found.map(|(_, value)| value.as_str())
    }

    /// A switch; off by default.
    pub(super) fn flag(&self, name: &str) -> Result<bool, Problem> {
        match self.get(name) {
            None | Some("false") => Ok(false),
            Some("true" | "") => Ok(true),
            Some(_) => Err(bad(format!("the parameter {name}: write true or false"))),
        }
    }

    /// The number of items on a page.
    pub(super) fn limit(&self) -> Result<usize, Problem> {
        let Some(text) = self.get("limit") else {
            return Ok(DEFAULT_LIMIT);
        };
        let limit = text
            .parse()
            .ok()
            .filter(|limit| (1..=MAX_LIMIT).contains(limit));
        limit.ok_or_else(|| {
            bad(format!(
                "the parameter limit: write a number from 1 to {MAX_LIMIT}"
            ))
        })
    }

    /// A time in milliseconds since 1970.
    pub(super) fn moment(&self, name: &str) -> Result<Option<i64>, Problem> {
        let Some(text) = self.get(name) else {
            return Ok(None);
        };
        let remedy = "write a point in time like 2027-01-31T12:00:00Z";
        milliseconds(text)
            .map(Some)
            .ok_or_else(|| bad(format!("the parameter {name}: {remedy}")))
    }
}

/// A time in the format of RFC 3339, in milliseconds since 1970.
pub(super) fn milliseconds(text: &str) -> Option<i64> {
    use time::{OffsetDateTime, format_description::well_known::Rfc3339};
    let at = OffsetDateTime::parse(text, &Rfc3339).ok()?;
    i64::try_from(at.unix_timestamp_nanos() / 1_000_000).ok()
}

fn bad(detail: String) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, detail)
}

/// Returns what a conditional request expects of the object.
pub(super) fn expected(headers: &HeaderMap) -> Result<Option<Expected>, Problem> {
    match (
        conditions(headers, &IF_MATCH)?,
        conditions(headers, &IF_NONE_MATCH)?,
    ) {
        (None, None) => Ok(None),
        (Some(tags), None) if tags == ["*"] => Ok(Some(Expected::Present)),
        // A version without quotes is no ETag, and would never be that of the object.
        (Some(tags), None) if !tags.contains(&"*") && has_tags(&tags) => {
            // A tag that was never issued is that of no version, as a weak one is (RFC 9110, section 13.1.1).
            let versions = tags.into_iter().filter_map(version);
            Ok(Some(Expected::Versions(versions.collect())))
        }
        (None, Some(tags)) if tags == ["*"] => Ok(Some(Expected::Absent)),
        _ => Err(bad(
            "write If-Match with ETags, in their quotes, or *, or If-None-Match: *".to_owned(),
        )),
    }
}

/// Whether a list is empty, or has an `ETag`, which has quotes.
fn has_tags(tags: &[&str]) -> bool {
    tags.is_empty() || tags.iter().any(|tag| tag.contains('"'))
}

/// Returns the members of a condition, which is a list on any number of lines; none if the field is absent.
fn conditions<'h>(
    headers: &'h HeaderMap,
    name: &HeaderName,
) -> Result<Option<Vec<&'h str>>, Problem> {
    let lines: Result<Vec<&str>, _> = headers
        .get_all(name)
        .iter()
        .map(HeaderValue::to_str)
        .collect();
    let lines = lines.map_err(|_| bad(format!("{name} is no text")))?;
    if lines.is_empty() {
        return Ok(None);
    }
    // A comma within a tag divides it in two that were never issued.
    let members = lines.into_iter().flat_map(|line| line.split(','));
    let members = members.map(|member| member.trim_matches([' ', '\t']));
    let members: Vec<&str> = members
        .filter(|member| !member.is_empty())
        .take(TAGS + 1)
        .collect();
    if members.len() > TAGS {
        return Err(bad(format!("{name} has more than {TAGS} ETags")));
    }
    Ok(Some(members))
}

/// Returns the version whose `ETag` this is, character by character.
fn version(tag: &str) -> Option<i64> {
    let number = tag.strip_prefix('"')?.strip_suffix('"')?;
    let version: i64 = number.parse().ok()?;
    (version.to_string() == number).then_some(version)
}

/// Reads a body of any type, of at most `max` bytes.
pub(super) async fn body(body: Body, max: usize) -> Result<Bytes, Problem> {
    let read = body::whole(body, max).await;
    read.map_err(|refusal| unread(&refusal))
}

/// Reads a JSON body of at most `max` bytes. It counts for its sender, a document made of it does not, and takes a
/// hundred times as much: parse it at the turn of what it is for.
pub(super) async fn json_body(
    headers: &HeaderMap,
    body: Body,
    max: usize,
) -> Result<Bytes, Problem> {
    let read = body::read(headers, body, max).await;
    read.map_err(|refusal| unread(&refusal))
}

/// Reads the body that has an object, as [`json_body`]: an operator's within the size limit of requests, that of a
/// tenant's administrator within [`OBJECT`].
pub(super) async fn spec(
    front: &Front,
    administrator: &Administrator,
    headers: &HeaderMap,
    body: Body,
) -> Result<Bytes, Problem> {
    let max = front.config.http.max_body;
    if administrator.is_operator() || max <= OBJECT {
        return json_body(headers, body, max).await;
    }
    let read = json_body(headers, body, OBJECT).await;
    read.map_err(|problem| match problem.status() {
        StatusCode::PAYLOAD_TOO_LARGE => too_large(),
        _ => problem,
    })
}

/// Refuses the document of a tenant's administrator that counts more than [`OBJECT`].
pub(super) fn check_size(
    administrator: &Administrator,
    document: &Document,
) -> Result<(), Problem> {
    if administrator.is_operator() || counted(document) <= OBJECT as u64 {
        return Ok(());
    }
    Err(too_large())
}

fn too_large() -> Problem {
    let text = format!(
        "an object that a tenant's administrator writes has at most {OBJECT} bytes, of which each value \
         in it takes 32 beside its text: divide it, or ask an operator"
    );
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, text)
}

fn unread(refusal: &McpRefusal) -> Problem {
    let (status, text) = refusal.parts();
    Problem::new(status, text)
}

/// Parses a document: one JSON object without repeated names.
pub(super) fn read_document(body: &[u8]) -> Result<Document, Problem> {
    let not_json = || bad("the body is no JSON".to_owned());
    let text = std::str::from_utf8(body).map_err(|_| not_json())?;
    let json: Json = serde_json::from_str(text).map_err(|_| not_json())?;
    let Json::Object(document) = json else {
        return Err(bad("the body is no JSON object".to_owned()));
    };
    let (tree, _) = Format::Json.parse("body", text);
    if let Some(name) = tree.as_ref().and_then(repeated_name) {
        let wrong = Wrong::new("stands there twice", "keep one of the two");
        return Err(Problem::invalid(vec![wrong.at("body", &name)]));
    }
    Ok(document)
}

/// Returns a name that is repeated in one table of the tree.
fn repeated_name(node: &Node) -> Option<String> {
    match &node.value {
        Value::List(items) => items.iter().find_map(repeated_name),
        Value::Map(entries) => {
            let mut known = HashSet::with_capacity(entries.len());
            let mut names = entries.iter().map(|(name, _)| name);
            let again = names.find(|name| !known.insert(name.as_str()));
            again
                .cloned()
                .or_else(|| entries.iter().find_map(|(_, node)| repeated_name(node)))
        }
        _ => None,
    }
}

/// Maximum bytes of an object that a tenant's administrator writes, as [`counted`]: the largest are clients with inline
/// keys. Operators write whole manifests, too.
const OBJECT: usize = 64 << 10;
/// Most members of a condition.
const TAGS: usize = 16;
/// Default number of items on a page.
const DEFAULT_LIMIT: usize = 100;
/// Largest number of items on a page.
const MAX_LIMIT: usize = 1000;

#[cfg(test)]
mod tests {
    use super::super::request::*;

    #[test]
    fn parameters_are_known_and_single() {
        let known = [
            Parameter::Limit,
            Parameter::Flag("dry_run"),
            Parameter::Moment("from"),
        ];
        let parse = |text: &str| Query::of(Some(text), &known);
        assert_eq!(parse("limit=3").unwrap().limit().unwrap(), 3);
        assert_eq!(parse("").unwrap().limit().unwrap(), DEFAULT_LIMIT);
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
    fn conditions_are_lists() {
        let of = |fields: &[(HeaderName, &str)]| {
            let fields = fields.iter().cloned();
            let headers = fields.map(|(name, value)| (name, HeaderValue::try_from(value).unwrap()));
            expected(&headers.collect()).map_err(|problem| problem.status().as_u16())
        };
        let one_of = |versions: &[i64]| Ok(Some(Expected::Versions(versions.to_vec())));
        for (value, wanted) in [
            ("\"7\"", one_of(&[7])),
            ("\"7\", \"8\"", one_of(&[7, 8])),
            (" ,\"7\",\t\"8\" ,,", one_of(&[7, 8])),
            ("W/\"7\", \"8\"", one_of(&[8])),
            ("\"07\", \"+7\", 7, x, \"a,7\", \"7", one_of(&[])),
            ("", one_of(&[])),
            ("7", Err(400)),
            ("1796083200000, x", Err(400)),
            ("*", Ok(Some(Expected::Present))),
            ("*, \"7\"", Err(400)),
            ("\"7\", *", Err(400)),
        ] {
            assert_eq!(of(&[(IF_MATCH, value)]), wanted, "{value}");
        }
        let lines = [(IF_MATCH, "\"7\""), (IF_MATCH, "\"8\", \"9\"")];
        assert_eq!(of(&lines), one_of(&[7, 8, 9]));
        let many = ["\"1\""; TAGS].join(",");
        assert_eq!(of(&[(IF_MATCH, &many)]), one_of(&[1; TAGS]));
        assert_eq!(of(&[(IF_MATCH, &format!("{many}, \"2\""))]), Err(400));
        assert_eq!(of(&[]), Ok(None));
        assert_eq!(of(&[(IF_NONE_MATCH, "*")]), Ok(Some(Expected::Absent)));
        assert_eq!(of(&[(IF_NONE_MATCH, "\"1\"")]), Err(400));
        assert_eq!(of(&[(IF_MATCH, "*"), (IF_NONE_MATCH, "*")]), Err(400));
    }

    /// 60,000 names took 17 s.
    #[test]
    fn the_search_for_repeated_names_is_linear() {
        let members: Vec<String> = (0..60_000).map(|at| format!("\"k{at}\": 1")).collect();
        let text = format!("{{{}}}", members.join(","));
        let twice = format!("{{{}, \"k59999\": 1}}", members.join(","));
        let began = crate::base::processor_time();
        assert_eq!(read_document(text.as_bytes()).unwrap().len(), 60_000);
        assert!(read_document(twice.as_bytes()).is_err());
        let took = crate::base::processor_time().checked_sub(began).unwrap();
        assert!(took < std::time::Duration::from_secs(4), "{took:?}");
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

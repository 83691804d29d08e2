//! Header fields that mirror arguments of tools (`x-mcp-header`; 2026-07-28 streamable-http, "Custom
//! Headers from Tool Parameters"), and tools that have to be called as tasks.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{Bytes, BytesMut};
use http::HeaderName;
use memchr::memmem;
use serde_json::Value as Json;

use super::mirrored::Mirrored;
use crate::protocol::{
    Span,
    headers::{ARGUMENT_PREFIX, MAX_ARGUMENTS},
    json::{self, Scanner, SyntaxError},
    params::fold,
};

/// The mirrored arguments of the tools of a server that have any, by the name of the tool.
#[derive(Clone, Debug, Default)]
pub(crate) struct ToolHeaders {
    tools: BTreeMap<String, MirroredArguments>,
    /// The tools of a session-based server that have to be called as tasks.
    as_tasks: BTreeSet<String>,
    /// About what they take.
    bytes: usize,
}

/// An argument that a header field mirrors.
#[derive(Clone, Debug, PartialEq, Eq)]
struct MirroredArgument {
    /// The name of the header field, `mcp-param-…`.
    header: HeaderName,
    /// The members that lead to it.
    path: Vec<String>,
}

/// What header fields mirror of the arguments of a tool.
#[derive(Clone, Debug, Default)]
struct MirroredArguments {
    headers: Vec<HeaderName>,
    members: Members,
}

/// The members of an object that are mirrored or lead to what is, by their folded names.
#[derive(Clone, Debug, Default)]
struct Members(BTreeMap<String, Vec<Member>>);

#[derive(Clone, Debug)]
struct Member {
    name: String,
    /// The place of its header field, if it is mirrored itself.
    header: Option<usize>,
    inside: Members,
}

impl MirroredArguments {
    fn of(arguments: Vec<MirroredArgument>) -> Self {
        let mut all = Self::default();
        for MirroredArgument { header, path } in arguments {
            all.members.add(&path, all.headers.len());
            all.headers.push(header);
        }
        all
    }

    /// The value of each in these arguments. Two of one name are an error, or one beside another that
    /// imitates it: the gateway would compare the one, and the server could act on the other.
    fn find(&self, arguments: &[u8]) -> Result<Vec<Option<Span>>, SyntaxError> {
        let mut found = vec![None; self.headers.len()];
        let mut scanner = Scanner::new(arguments);
        if scanner.peek() == Some(b'{') {
            self.members.find(&mut scanner, 0, arguments, &mut found)?;
        }
        Ok(found)
    }
}

impl Members {
    fn add(&mut self, path: &[String], header: usize) {
        let Some((name, rest)) = path.split_first() else {
            return;
        };
        let alike = self.0.entry(fold(name).into_owned()).or_default();
        let known = alike.iter().position(|one| one.name == *name);
        let at = known.unwrap_or_else(|| {
            alike.push(Member {
                name: name.clone(),
                header: None,
                inside: Self::default(),
            });
            alike.len() - 1
        });
        if rest.is_empty() {
            alike[at].header = Some(header);
        } else {
            alike[at].inside.add(rest, header);
        }
    }

    /// Reads one object at `depth`, each of its bytes once.
    fn find(
        &self,
        scanner: &mut Scanner<'_>,
        depth: usize,
        text: &[u8],
        found: &mut [Option<Span>],
    ) -> Result<Span, SyntaxError> {
        let longest = self.0.keys().map(String::len).max().unwrap_or(0);
        let mut seen = BTreeSet::new();
        scanner.object(depth, |scanner, key| {
            // A letter that folds to ASCII has at most 3 bytes.
            let name = json::decoded(key.of(text)).filter(|name| name.len() <= 3 * longest);
            let alike = name.and_then(|name| Some((self.0.get_key_value(&*fold(&name))?, name)));
            let Some(((folded, alike), name)) = alike else {
                scanner.value(depth + 1)?;
                return Ok(());
            };
            if !seen.insert(folded) {
                return Err(SyntaxError("a mirrored argument stands twice"));
            }
            let member = alike.iter().find(|one| *one.name == *name);
            let value = match member {
                Some(member) if scanner.peek() == Some(b'{') => {
                    member.inside.find(scanner, depth + 1, text, found)?
                }
                _ => scanner.value(depth + 1)?,
            };
            if let Some(header) = member.and_then(|member| member.header) {
                found[header] = Some(value);
            }
            Ok(())
        })
    }
}

impl MirroredArgument {
    /// About the bytes that it takes.
    fn size(&self) -> usize {
        let path = self.path.iter().map(|name| 2 * name.len() + MEMBER);
        // Each object below the first has a tree of its own.
        let trees = self.path.len().saturating_sub(1) * MEMBER;
        self.header.as_str().len() + path.sum::<usize>() + trees
    }
}

/// About the bytes that a tool takes which has to be called as a task, beside its name.
const TASK_TOOL: usize = 64;
/// About the bytes that a tool with mirrored arguments takes, beside its name and these: trees have room for eleven.
const TOOL: usize = 1 << 10;
/// About the bytes that a member takes which leads to a mirrored argument, or a tree of some, beside the names.
const MEMBER: usize = 512;
/// The longest schema with annotations, in bytes: a tool with a longer one is invalid.
const MAX_SCHEMA: usize = 256 << 10;
/// The longest way to one, in bytes.
const MAX_PATH: usize = 4 << 10;
/// The most bytes that are kept of one list. The header fields of later tools are not checked: their
/// server has too many.
const MAX_KEPT: usize = 1 << 20;

/// The largest integer that all parsers of JSON agree on: "MUST be within" it (2026-07-28 streamable-http,
/// "Schema Extension").
const SAFE: f64 = 9_007_199_254_740_991.0;

/// What a tool says of tasks, in its `execution` (2025-11-25 tasks, "Tool-Level Negotiation").
const TASK_SUPPORT: &str = "taskSupport";

/// The annotation in a schema.
const ANNOTATION: &str = "x-mcp-header";

impl ToolHeaders {
    /// About the bytes that it takes.
    pub(crate) fn size(&self) -> usize {
        self.bytes
    }

    /// Adds the tools of a `tools/list` answer.
    pub(crate) fn add(&mut self, answer: &[u8]) {
        if !has_annotation(answer) && memmem::find(answer, TASK_SUPPORT.as_bytes()).is_none() {
            return;
        }
        let tools = json::get(answer, "result").and_then(|result| json::get(result, "tools"));
        let mut tools = tools.map(json::Items::of);
        while let Some(Ok(Some(tool))) = tools.as_mut().map(json::Items::next) {
            let name = json::get(tool, "name").and_then(json::decoded);
            if let Some(name) = name.as_ref().filter(|_| is_for_tasks(tool))
                && self.bytes + name.len() + TASK_TOOL <= MAX_KEPT
            {
                self.bytes += name.len() + TASK_TOOL;
                self.as_tasks.insert(name.clone().into_owned());
            }
            if let Some((name, Some(arguments))) = name.map(|name| (name, annotated(tool)))
                && !arguments.is_empty()
            {
                let size = |one: &MirroredArgument| one.size();
                let bytes = TOOL + name.len() + arguments.iter().map(size).sum::<usize>();
                if self.bytes + bytes > MAX_KEPT {
                    return;
                }
                self.bytes += bytes;
                let arguments = MirroredArguments::of(arguments);
                self.tools.insert(name.into_owned(), arguments);
            }
        }
    }

    /// Whether a tool has to be called as a task of 2025-11-25.
    pub(crate) fn is_for_tasks(&self, tool: &str) -> bool {
        self.as_tasks.contains(tool)
    }

    /// Whether the header fields of a call mirror its arguments: those that are annotated have a field
    /// with their value, those that are not there or null have none.
    pub(crate) fn agree<'a, 'h>(
        &self,
        tool: &str,
        arguments: impl FnOnce() -> Option<&'a [u8]>,
        fields: impl Fn(&HeaderName) -> Vec<&'h [u8]>,
    ) -> bool {
        let Some(mirrored) = self.tools.get(tool) else {
            return true;
        };
        let text = arguments().unwrap_or_default();
        let Ok(values) = mirrored.find(text) else {
            return false;
        };
        mirrored.headers.iter().zip(values).all(|(header, value)| {
            let value = value.map(|value| value.of(text));
            let value = value.filter(|value| *value != b"null");
            match (value, &*fields(header)) {
                (None, []) => true,
                (Some(value), [field]) => {
                    Mirrored::decode(field).is_some_and(|field| is_same(value, field.as_str()))
                }
                _ => false,
            }
        })
    }
}

/// Whether "clients MUST invoke the tool as a task" (2025-11-25 tasks, "Tool-Level Negotiation").
fn is_for_tasks(tool: &[u8]) -> bool {
    let execution = json::get(tool, "execution");
    let support = execution.and_then(|execution| json::get(execution, TASK_SUPPORT));
    support == Some(br#""required""#)
}

/// Whether a header field has the value of an argument: "servers SHOULD compare the header value and the
/// body value numerically" ("Server Validation").
fn is_same(value: &[u8], field: &str) -> bool {
    match value.first() {
        Some(b'"') => json::decoded(value).is_some_and(|text| text == field),
        Some(b't' | b'f') => value == field.as_bytes(),
        Some(b'-' | b'0'..=b'9') => {
            let number = serde_json::from_slice::<f64>(value).ok();
            let both = number.zip(field.parse::<f64>().ok());
            both.is_some_and(|(one, other)| one.abs() <= SAFE && one.total_cmp(&other).is_eq())
        }
        _ => false,
    }
}

/// A `tools/list` answer without the tools whose annotations are invalid, and their names.
pub(crate) fn without_invalid_tools(answer: Bytes) -> (Bytes, Vec<String>) {
    if !has_annotation(&answer) {
        return (answer, Vec::new());
    }
    let find = |object: Span, name: &str| json::member(&answer, object, name);
    let tools = find(Span::whole(&answer), "result").and_then(|result| find(result, "tools"));
    let Some(tools) = tools else {
        return (answer, Vec::new());
    };
    let (mut kept, mut dropped) = (BytesMut::from(&b"["[..]), Vec::new());
    let mut items = json::Items::of(tools.of(&answer));
    while let Ok(Some(tool)) = items.next() {
        if annotated(tool).is_none() {
            let name = json::get(tool, "name").and_then(json::decoded);
            let name: String = name.unwrap_or_default().chars().take(SHOWN).collect();
            dropped.push(name);
            continue;
        }
        if kept.len() > 1 {
            kept.extend_from_slice(b",");
        }
        kept.extend_from_slice(tool);
    }
    kept.extend_from_slice(b"]");
    if dropped.is_empty() {
        return (answer, dropped);
    }
    let mut line = BytesMut::with_capacity(answer.len());
    json::splice(&mut line, &answer, &[(tools, &kept)]);
    (line.freeze(), dropped)
}

/// The most characters of a name in the log.
const SHOWN: usize = 64;

fn has_annotation(text: &[u8]) -> bool {
    // An escaped spelling is none that a client knows either: it compares decoded keys, so both are
    // looked for.
    memmem::find(text, ANNOTATION.as_bytes()).is_some() || memmem::find(text, b"\\u00").is_some()
}

/// The annotated arguments of a tool; none if an annotation is invalid.
fn annotated(tool: &[u8]) -> Option<Vec<MirroredArgument>> {
    if !has_annotation(tool) {
        return Some(Vec::new());
    }
    let schema = json::get(tool, "inputSchema").unwrap_or(b"{}");
    if schema.len() > MAX_SCHEMA {
        return None;
    }
    let schema: Json = serde_json::from_slice(schema).ok()?;
    let mut found = Vec::new();
    collect(&schema, &mut Vec::new(), &mut found)?;
    let mut names = BTreeSet::new();
    let is_unique = found
        .iter()
        .all(|one: &MirroredArgument| names.insert(one.header.as_str().to_owned()));
    is_unique.then_some(found)
}

/// Collects the annotations that are reached by `properties` alone; none if there is another one, or one
/// that is invalid.
fn collect(schema: &Json, path: &mut Vec<String>, found: &mut Vec<MirroredArgument>) -> Option<()> {
    let Json::Object(members) = schema else {
        return (!is_annotated(schema)).then_some(());
    };
    for (key, value) in members {
        match key.as_str() {
            ANNOTATION => {
                // The root is no argument.
                let is_argument = !path.is_empty();
                let name = value.as_str().filter(|name| !name.is_empty())?;
                let kind = members.get("type").and_then(Json::as_str);
                let is_primitive = matches!(kind, Some("string" | "integer" | "boolean"));
                let is_small = path.iter().map(String::len).sum::<usize>() <= MAX_PATH;
                if !is_argument || !is_primitive || !is_small || found.len() == MAX_ARGUMENTS {
                    return None;
                }
                found.push(MirroredArgument {
                    header: format!("{ARGUMENT_PREFIX}{name}").parse().ok()?,
                    path: path.clone(),
                });
            }
            "properties" => {
                let Json::Object(properties) = value else {
                    return (!is_annotated(value)).then_some(());
                };
                for (name, property) in properties {
                    path.push(name.clone());
                    collect(property, path, found)?;
                    path.pop();
                }
            }
            _ if is_annotated(value) => return None,
            _ => {}
        }
    }
    Some(())
}

/// Whether an annotation is anywhere in a value.
fn is_annotated(value: &Json) -> bool {
    match value {
        Json::Object(members) => members
            .iter()
            .any(|(key, value)| key == ANNOTATION || is_annotated(value)),
        Json::Array(items) => items.iter().any(is_annotated),
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tool_headers::*;

    fn answer(schema: &str) -> Bytes {
        format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"tools":[{{"name":"a","inputSchema":{schema}}},{{"name":"b","inputSchema":{{"type":"object"}}}}]}}}}"#).into()
    }

    #[test]
    fn tools_that_have_to_be_tasks_are_known() {
        let mut tools = ToolHeaders::default();
        for (name, support) in [("a", "required"), ("b", "optional"), ("c", "forbidden")] {
            let tool = format!(r#"{{"name":"{name}","execution":{{"taskSupport":"{support}"}}}}"#);
            tools.add(format!(r#"{{"result":{{"tools":[{tool}]}}}}"#).as_bytes());
        }
        let known = ["a", "b", "c", "d"].map(|name| tools.is_for_tasks(name));
        assert_eq!(known, [true, false, false, false]);
    }

    #[test]
    fn tools_with_invalid_annotations_are_left_out() {
        let property =
            |property: &str| format!(r#"{{"type":"object","properties":{{"p":{property}}}}}"#);
        for (schema, is_valid) in [
            (property(r#"{"type":"string","x-mcp-header":"Region"}"#), true),
            (property(r#"{"type":"integer","x-mcp-header":"N"}"#), true),
            (property(r#"{"type":"number","x-mcp-header":"N"}"#), false),
            (property(r#"{"type":"string","x-mcp-header":""}"#), false),
            (property(r#"{"type":"string","x-mcp-header":"a b"}"#), false),
            (property(r#"{"type":"string","x-mcp-header":"a\r\nb"}"#), false),
            (property(r#"{"type":"string","x-mcp-header":"ü"}"#), false),
            (property(r#"{"type":"string","x-mcp-header":1}"#), false),
            (property(r#"{"type":"object","x-mcp-header":"N"}"#), false),
            (property(r#"{"type":"object","properties":{"q":{"type":"boolean","x-mcp-header":"N"}}}"#), true),
            (property(r#"{"type":"array","items":{"type":"string","x-mcp-header":"N"}}"#), false),
            (property(r#"{"anyOf":[{"type":"string","x-mcp-header":"N"}]}"#), false),
            (r#"{"type":"string","x-mcp-header":"N"}"#.to_owned(), false),
            (r#"{"type":"object","properties":{"p":{"type":"string","x-mcp-header":"N"},"q":{"type":"string","x-mcp-header":"n"}}}"#.to_owned(), false),
            (r#"{"type":"object","properties":{"x-mcp-header":{"type":"string"}}}"#.to_owned(), true),
        ] {
            let before = answer(&schema);
            let (after, dropped) = without_invalid_tools(before.clone());
            assert_eq!(dropped.is_empty(), is_valid, "{schema}");
            if is_valid {
                assert_eq!(after, before);
            } else {
                assert_eq!(after, r#"{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"b","inputSchema":{"type":"object"}}]}}"#);
            }
        }
    }

    #[test]
    fn schemas_beyond_what_is_kept_are_invalid() {
        let annotated = |number: usize| {
            format!(r#""p{number}":{{"type":"string","x-mcp-header":"H{number}"}}"#)
        };
        let schema = |count: usize, rest: &str| {
            let properties: Vec<String> = (0..count).map(annotated).collect();
            format!(
                r#"{{"properties":{{{}}},"description":"{rest}"}}"#,
                properties.join(",")
            )
        };
        let deep = |length: usize| {
            let name = "x".repeat(length);
            format!(
                r#"{{"properties":{{"{name}":{{"type":"object","properties":{{{}}}}}}}}}"#,
                annotated(0)
            )
        };
        for (schema, is_valid) in [
            (schema(MAX_ARGUMENTS, ""), true),
            (schema(MAX_ARGUMENTS + 1, ""), false),
            (schema(1, &"x".repeat(MAX_SCHEMA - 100)), true),
            (schema(1, &"x".repeat(MAX_SCHEMA)), false),
            (deep(MAX_PATH - 2), true),
            (deep(MAX_PATH - 1), false),
        ] {
            let (_, dropped) = without_invalid_tools(answer(&schema));
            assert_eq!(dropped.is_empty(), is_valid, "{} bytes", schema.len());
        }
        // Each list adds to what is kept of those before it, up to a limit.
        let mut tools = ToolHeaders::default();
        let list = |number: usize| {
            let schema = deep(MAX_PATH - 2);
            format!(r#"{{"result":{{"tools":[{{"name":"t{number}","inputSchema":{schema}}}]}}}}"#)
        };
        (0..1000).for_each(|number| tools.add(list(number).as_bytes()));
        assert!(
            (MAX_KEPT - 3 * MAX_PATH..=MAX_KEPT).contains(&tools.size()),
            "{}",
            tools.size()
        );
        let agrees = |tool| tools.agree(tool, || None, |_| vec![b"x"]);
        assert!(!agrees("t0"), "checked");
        assert!(agrees("t999"), "not checked");
    }

    /// 350,000 short names took 17 MB, and were counted as 1.
    #[test]
    fn many_short_names_count_with_what_is_kept_of_them() {
        let mut tools = ToolHeaders::default();
        let tool =
            |n: usize| format!(r#"{{"name":"{n}","execution":{{"taskSupport":"required"}}}}"#);
        let all: Vec<String> = (0..20_000).map(tool).collect();
        tools.add(format!(r#"{{"result":{{"tools":[{}]}}}}"#, all.join(",")).as_bytes());
        let kept = tools.as_tasks.len();
        assert!((14_000..16_000).contains(&kept), "{kept}");
        assert!(tools.size() <= MAX_KEPT && tools.size() >= 64 * kept);
        let mut tools = ToolHeaders::default();
        tools.add(&answer(
            r#"{"properties":{"p":{"type":"string","x-mcp-header":"N"}}}"#,
        ));
        assert!((1500..2000).contains(&tools.size()), "{}", tools.size());
    }

    #[test]
    fn fields_have_to_mirror_the_arguments() {
        let schema = r#"{"properties":{"s":{"type":"string","x-mcp-header":"S"},"o":{"properties":{"n":{"type":"integer","x-mcp-header":"N"}}}}}"#;
        let mut tools = ToolHeaders::default();
        tools.add(&answer(schema));
        let agree = |arguments: &str, fields: &[(&str, &'static str)]| {
            tools.agree(
                "a",
                || Some(arguments.as_bytes()),
                |name| {
                    let named = fields.iter().filter(|(field, _)| name == field);
                    named.map(|(_, value)| value.as_bytes()).collect()
                },
            )
        };
        assert!(agree("{}", &[]));
        assert!(agree(r#"{"s":null}"#, &[]));
        assert!(agree(r#"{"s":"x"}"#, &[("mcp-param-s", "x")]));
        for twice in [
            r#"{"s":"y","s":"x"}"#,
            r#"{"s":"x","s":"x"}"#,
            r#"{"s":"x","S":"y"}"#,
            r#"{"\u017f":"y","s":"x"}"#,
        ] {
            assert!(!agree(twice, &[("mcp-param-s", "x")]), "{twice}");
        }
        for twice in [
            r#"{"o":{"n":1},"O":{"n":2}}"#,
            r#"{"o":{"n":1,"N":2}}"#,
            r#"{"o":{"n":2},"o":{"n":1}}"#,
        ] {
            assert!(!agree(twice, &[("mcp-param-n", "1")]), "{twice}");
        }
        let beside = r#"{"o":{"n":1,"m":2,"m":3},"t":1,"T":2}"#;
        assert!(agree(beside, &[("mcp-param-n", "1")]), "not mirrored");
        assert!(agree(r#"{"s":"ü"}"#, &[("mcp-param-s", "=?base64?w7w=?=")]));
        assert!(agree(r#"{"o":{"n":42}}"#, &[("mcp-param-n", "42.0")]));
        let large = 9_007_199_254_740_991_u64;
        for (number, field, is_same) in [
            (large, "9007199254740991", true),
            (large + 2, "9007199254740993", false),
            (large + 2, "9007199254740992", false),
            (1, "1.0", true),
            (1, "one", false),
            (1, "nan", false),
        ] {
            let arguments = format!(r#"{{"o":{{"n":{number}}}}}"#);
            let fields = [("mcp-param-n", field)];
            assert_eq!(agree(&arguments, &fields), is_same, "{number} {field}");
        }
        assert!(!agree(r#"{"s":"x"}"#, &[]), "left out");
        assert!(!agree("{}", &[("mcp-param-s", "x")]), "not in the body");
        assert!(!agree(r#"{"s":"x"}"#, &[("mcp-param-s", "y")]));
        assert!(!agree(r#"{"s":"x"}"#, &[("mcp-param-s", "=?base64?#?=")]));
        assert!(!agree(
            r#"{"s":"x"}"#,
            &[("mcp-param-s", "x"), ("mcp-param-s", "x")]
        ));
        assert!(tools.agree("b", || None, |_| vec![b"x"]), "no annotation");
    }
}

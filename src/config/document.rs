//! Documents in TOML, YAML or JSON as one tree, in which every value has its place.
//!
//! Not here: the meaning of keys (`reader` and its callers).

use std::{fmt, path::Path};

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_saphyr::{DuplicateKeyPolicy, Spanned};
use toml::de::{DeTable, DeValue};

/// A value and its place.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// `FILE:LINE`, a variable, or a flag; for a member of a map, the place of its key.
    pub(crate) place: String,
    /// The parsed value.
    pub(crate) value: Value,
    /// The plain text, if the source is untyped (flags and the environment): a text that looks like
    /// a number can still be read as a text.
    pub(crate) word: Option<String>,
}

/// The values that all three formats can express.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    /// `null`, or a key without a value.
    Nothing,
    /// true or false.
    Flag(bool),
    /// A whole number.
    Whole(i64),
    /// A text.
    Text(String),
    /// A list.
    List(Vec<Node>),
    /// Keys and values in the order of the document; a key may occur twice.
    Map(Vec<(String, Node)>),
    /// A value that no setting accepts (fractions, dates), by its name.
    Other(&'static str),
}

impl Value {
    /// A number of JSON.
    pub(crate) fn of_number(number: &serde_json::Number) -> Self {
        let whole = number.as_i64().map(Self::Whole);
        let other = number.as_f64().map(Self::other_number);
        whole.or(other).unwrap_or(Self::Other("a fraction"))
    }

    /// A number that is no `i64`. Parsers read a whole one that is too large as a fraction as well.
    fn other_number(number: f64) -> Self {
        Self::Other(if number.fract() == 0.0 && number.abs() >= TWO_TO_63 {
            "a number out of range"
        } else {
            "a fraction"
        })
    }
}

impl PartialEq for Node {
    /// Compares values, not places.
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl Node {
    /// A node with its place.
    pub(crate) fn new(place: &str, value: Value) -> Self {
        Self {
            place: place.to_owned(),
            value,
            word: None,
        }
    }

    /// The node of an untyped text: a TOML value if it parses as one, else the text itself.
    pub(crate) fn from_word(place: &str, text: &str) -> Self {
        let value = match DeValue::parse(text) {
            Ok(parsed) => toml_value(parsed.get_ref(), &|_| place.to_owned()),
            Err(_) => Value::Text(text.to_owned()),
        };
        Self {
            place: place.to_owned(),
            value,
            word: Some(text.to_owned()),
        }
    }

    /// The name of its type, for messages.
    pub(crate) fn kind(&self) -> &'static str {
        match &self.value {
            Value::Nothing => "nothing",
            Value::Flag(_) => "true or false",
            Value::Whole(_) => "a number",
            Value::Text(_) => "a text",
            Value::List(_) => "a list",
            Value::Map(_) => "a table",
            Value::Other(kind) => kind,
        }
    }
}

/// A syntax error and its line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SyntaxError {
    /// The line, from 1.
    pub(crate) line: usize,
    /// The parser's message, on one line.
    pub(crate) what: String,
}

/// The format of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// `.toml`
    Toml,
    /// `.yaml`, `.yml`
    Yaml,
    /// `.json`
    Json,
}

impl Format {
    /// The format by a file's extension.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "toml" => Some(Self::Toml),
            "yaml" | "yml" => Some(Self::Yaml),
            "json" => Some(Self::Json),
            _ => None,
        }
    }

    /// Parses `text`, the content of `file`.
    ///
    /// TOML continues after an error, so that one run reports all mistakes; the other formats
    /// return no tree then.
    pub(crate) fn parse(self, file: &str, text: &str) -> (Option<Node>, Vec<SyntaxError>) {
        let parsed = match self {
            Self::Toml => return parse_toml(file, text),
            Self::Yaml => parse_yaml(file, text),
            Self::Json => parse_json(file, text),
        };
        match parsed {
            Ok(node) => (Some(node), Vec::new()),
            Err(error) => (None, vec![error]),
        }
    }
}

/// The segments of a dotted TOML key (`a."b.c".d`).
pub(crate) fn key_path(text: &str) -> Option<Vec<String>> {
    if text.contains(['\n', '#']) {
        return None;
    }
    let line = format!("{text} = 0");
    let table = DeTable::parse(&line).ok()?;
    let mut path = Vec::new();
    let mut table = table.get_ref();
    loop {
        let (key, value) = table.iter().next().filter(|_| table.len() == 1)?;
        path.push(key.get_ref().to_string());
        match value.get_ref() {
            DeValue::Table(inner) => table = inner,
            _ => return Some(path),
        }
    }
}

fn parse_toml(file: &str, text: &str) -> (Option<Node>, Vec<SyntaxError>) {
    let (table, errors) = DeTable::parse_recoverable(text);
    let lines = Lines::of(text);
    let place = |offset| format!("{file}:{}", lines.at(offset));
    let value = toml_table(table.get_ref(), &place);
    let errors = errors.iter().map(|error| SyntaxError {
        line: lines.at(error.span().map_or(0, |span| span.start)),
        what: one_line(error.message()),
    });
    (
        Some(Node::new(&format!("{file}:1"), value)),
        errors.collect(),
    )
}

fn toml_table(table: &DeTable<'_>, place: &dyn Fn(usize) -> String) -> Value {
    let entries = table.iter().map(|(key, value)| {
        let node = Node::new(&place(key.span().start), toml_value(value.get_ref(), place));
        (key.get_ref().to_string(), node)
    });
    Value::Map(entries.collect())
}

fn toml_value(value: &DeValue<'_>, place: &dyn Fn(usize) -> String) -> Value {
    match value {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Boolean(flag) => Value::Flag(*flag),
        DeValue::Integer(whole) => i64::from_str_radix(whole.as_str(), whole.radix())
            .map_or(Value::Other("a number out of range"), Value::Whole),
        DeValue::Float(_) => Value::Other("a fraction"),
        DeValue::Datetime(_) => Value::Other("a date"),
        DeValue::Table(table) => toml_table(table, place),
        DeValue::Array(items) => {
            let nodes = items.iter().map(|item| {
                Node::new(&place(item.span().start), toml_value(item.get_ref(), place))
            });
            Value::List(nodes.collect())
        }
    }
}

fn parse_yaml(file: &str, text: &str) -> Result<Node, SyntaxError> {
    // PassThrough: a duplicate key is reported together with all other mistakes.
    // Strict booleans: `no` is a text, as in YAML 1.2.
    let options = serde_saphyr::options! {
        duplicate_keys: DuplicateKeyPolicy::PassThrough,
        strict_booleans: true,
        leading_zero_numbers_as_strings: true,
        underscored_numbers_as_strings: true,
    };
    let tree: Spanned<Tree> = serde_saphyr::from_str_with_options(text, options).map_err(|e| {
        let line = e.location().map_or(1, |location| location.line());
        SyntaxError {
            line: usize::try_from(line).unwrap_or(1).max(1),
            what: yaml_error(&e),
        }
    })?;
    Ok(yaml_node(file, tree))
}

/// The message of the parser, but for two that are about types of Rust.
fn yaml_error(error: &serde_saphyr::Error) -> String {
    let error = error.without_snippet();
    match error {
        serde_saphyr::Error::NullIntoString { .. } => {
            "null where the name of a key is expected".to_owned()
        }
        serde_saphyr::Error::RecursiveReferencesRequireWeakTypes { .. } => {
            "an alias within its own anchor".to_owned()
        }
        _ => one_line(&error.to_string()),
    }
}

/// The tree that serde reads from a YAML document.
enum Tree {
    Leaf(Value),
    List(Vec<Spanned<Tree>>),
    Map(Vec<(Spanned<String>, Spanned<Tree>)>),
}

fn yaml_node(file: &str, tree: Spanned<Tree>) -> Node {
    let place = |line: u64| format!("{file}:{}", line.max(1));
    let value = match tree.value {
        Tree::Leaf(value) => value,
        Tree::List(items) => Value::List(
            items
                .into_iter()
                .map(|item| yaml_node(file, item))
                .collect(),
        ),
        Tree::Map(entries) => {
            let nodes = entries.into_iter().map(|(key, value)| {
                let mut node = yaml_node(file, value);
                node.place = place(key.referenced.line());
                (key.value, node)
            });
            Value::Map(nodes.collect())
        }
    };
    Node::new(&place(tree.referenced.line()), value)
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TreeVisitor)
    }
}

struct TreeVisitor;

impl<'de> Visitor<'de> for TreeVisitor {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Tree, E> {
        Ok(Tree::Leaf(Value::Flag(flag)))
    }

    fn visit_i64<E>(self, whole: i64) -> Result<Tree, E> {
        Ok(Tree::Leaf(Value::Whole(whole)))
    }

    fn visit_u64<E>(self, whole: u64) -> Result<Tree, E> {
        let value = i64::try_from(whole);
        Ok(Tree::Leaf(value.map_or(
            Value::Other("a number out of range"),
            Value::Whole,
        )))
    }

    fn visit_i128<E>(self, _: i128) -> Result<Tree, E> {
        Ok(Tree::Leaf(Value::Other("a number out of range")))
    }

    fn visit_u128<E>(self, _: u128) -> Result<Tree, E> {
        Ok(Tree::Leaf(Value::Other("a number out of range")))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Tree, E> {
        Ok(Tree::Leaf(Value::other_number(number)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Tree, E> {
        Ok(Tree::Leaf(Value::Text(text.to_owned())))
    }

    fn visit_unit<E>(self) -> Result<Tree, E> {
        Ok(Tree::Leaf(Value::Nothing))
    }

    fn visit_none<E>(self) -> Result<Tree, E> {
        Ok(Tree::Leaf(Value::Nothing))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Tree, D::Error> {
        Tree::deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Tree, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Tree::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Tree, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Tree::Map(entries))
    }
}

fn parse_json(file: &str, text: &str) -> Result<Node, SyntaxError> {
    let syntax = |e: &serde_json::Error| SyntaxError {
        line: e.line().max(1),
        what: one_line(&e.to_string()),
    };
    // The whole text first: errors in its parts count lines from the part.
    let raw: &RawValue = serde_json::from_str(text).map_err(|e| syntax(&e))?;
    json_node(file, &Lines::of(text), raw, MAX_DEPTH)
}

/// Parses one level of the document. Raw values borrow from the text of `lines`, so that their
/// address gives their line. Each level is scanned once per level above it; manifests are flat.
fn json_node(
    file: &str,
    lines: &Lines<'_>,
    raw: &RawValue,
    depth: usize,
) -> Result<Node, SyntaxError> {
    let offset = (raw.get().as_ptr() as usize).saturating_sub(lines.text.as_ptr() as usize);
    let line = lines.at(offset);
    let fault = |what: String| SyntaxError { line, what };
    let Some(depth) = depth.checked_sub(1) else {
        return Err(fault(format!("nested deeper than {MAX_DEPTH} levels")));
    };
    let refused = |e: serde_json::Error| fault(one_line(&e.to_string()));
    let value = match raw.get().as_bytes().first() {
        Some(b'{') => {
            let Entries(entries) = serde_json::from_str(raw.get()).map_err(refused)?;
            let nodes = entries
                .into_iter()
                .map(|(key, inner)| Ok((key, json_node(file, lines, inner, depth)?)));
            Value::Map(nodes.collect::<Result<_, SyntaxError>>()?)
        }
        Some(b'[') => {
            let items: Vec<&RawValue> = serde_json::from_str(raw.get()).map_err(refused)?;
            let nodes = items
                .into_iter()
                .map(|inner| json_node(file, lines, inner, depth));
            Value::List(nodes.collect::<Result<_, _>>()?)
        }
        _ => match serde_json::from_str(raw.get()).map_err(refused)? {
            serde_json::Value::Null => Value::Nothing,
            serde_json::Value::Bool(flag) => Value::Flag(flag),
            serde_json::Value::String(text) => Value::Text(text),
            serde_json::Value::Number(number) => Value::of_number(&number),
            _ => return Err(fault("not a plain value".to_owned())),
        },
    };
    Ok(Node::new(&format!("{file}:{line}"), value))
}

/// The members of a JSON object, including duplicates.
struct Entries<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Entries<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(EntriesVisitor)
    }
}

struct EntriesVisitor;

impl<'de> Visitor<'de> for EntriesVisitor {
    type Value = Entries<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Entries(entries))
    }
}

/// The lines of a text, found once: a document has as many places as values.
struct Lines<'t> {
    text: &'t str,
    /// The offset of each line's end.
    ends: Vec<usize>,
}

impl<'t> Lines<'t> {
    fn of(text: &'t str) -> Self {
        let ends = memchr::memchr_iter(b'\n', text.as_bytes()).collect();
        Self { text, ends }
    }

    /// The line of a byte offset, from 1.
    fn at(&self, offset: usize) -> usize {
        self.ends.partition_point(|end| *end < offset) + 1
    }
}

/// Joins the lines of a parser's message: a mistake has one line.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The first number behind those of an `i64`.
const TWO_TO_63: f64 = 9_223_372_036_854_775_808.0;

/// The maximum depth of JSON, which bounds the stack; a manifest has eight levels.
const MAX_DEPTH: usize = 64;

#[cfg(test)]
mod tests {
    use super::super::document::*;

    fn member<'a>(node: &'a Node, path: &[&str]) -> &'a Node {
        path.iter().fold(node, |node, key| match &node.value {
            Value::Map(entries) => &entries.iter().find(|(name, _)| name == key).unwrap().1,
            _ => panic!("no table at {key}"),
        })
    }

    #[test]
    fn numbers_and_errors_are_told_in_words_of_the_document() {
        for (text, kind) in [
            ("99999999999999999999999", "a number out of range"),
            ("-9223372036854775809", "a number out of range"),
            ("1.5", "a fraction"),
        ] {
            for (format, text) in [
                (Format::Toml, format!("a = {text}")),
                (Format::Yaml, format!("a: {text}")),
                (Format::Json, format!("{{\"a\": {text}}}")),
            ] {
                let tree = format.parse("F", &text).0.unwrap();
                assert_eq!(member(&tree, &["a"]).kind(), kind, "{text}");
            }
        }
        let error = |text| Format::Yaml.parse("F", text).1.remove(0).what;
        assert_eq!(error("null: 1"), "null where the name of a key is expected");
        assert_eq!(error("a: &x [*x]"), "an alias within its own anchor");
    }

    #[test]
    fn three_formats_have_one_tree_and_lines() {
        let toml = "a = 1\n[b]\nc = \"x\"\nd = [true,\n \"z\"]\n";
        let yaml = "a: 1\nb:\n  c: x\n  d:\n    - true\n    - z\n";
        let json = "{\"a\": 1,\n \"b\": {\n\"c\": \"x\", \"d\": [true,\n\"z\"]}}";
        let cases = [
            (Format::Toml, toml, ["F:1", "F:2", "F:3", "F:4"]),
            (Format::Yaml, yaml, ["F:1", "F:2", "F:3", "F:4"]),
            (Format::Json, json, ["F:1", "F:2", "F:3", "F:3"]),
        ];
        for (format, text, places) in cases {
            let (node, errors) = format.parse("F", text);
            let node = node.unwrap();
            assert!(errors.is_empty(), "{errors:?}");
            assert_eq!(member(&node, &["a"]).value, Value::Whole(1));
            assert_eq!(member(&node, &["b", "c"]).value, Value::Text("x".into()));
            let Value::List(items) = &member(&node, &["b", "d"]).value else {
                panic!()
            };
            assert_eq!(items[0].value, Value::Flag(true));
            assert_eq!(items[1].value, Value::Text("z".into()));
            let found = [&["a"][..], &["b"], &["b", "c"], &["b", "d"]]
                .map(|path| member(&node, path).place.clone());
            assert_eq!(found, places, "{format:?}");
        }
    }

    /// Lines were once counted from the beginning of the text for each value, which took minutes.
    #[test]
    fn a_document_of_megabytes_is_read_in_seconds() {
        let members: Vec<String> = (0..40_000)
            .map(|n| format!(r#"{{"name": "n{n}", "text": "{}"}}"#, "x".repeat(80)))
            .collect();
        let text = format!("[{}]", members.join(","));
        let began = crate::base::processor_time();
        for format in [Format::Json, Format::Toml] {
            let text = match format {
                Format::Toml => format!("items = {}", text.replace("\": ", "\" = ")),
                _ => text.clone(),
            };
            let (node, errors) = format.parse("F", &text);
            assert!(node.is_some() && errors.is_empty(), "{errors:?}");
        }
        let took = crate::base::processor_time().saturating_sub(began);
        assert!(took < std::time::Duration::from_secs(10), "{took:?}");
    }

    #[test]
    fn keys_that_occur_twice_are_kept() {
        for (format, text) in [
            (Format::Yaml, "a: 1\na: 2\n"),
            (Format::Json, r#"{"a":1,"a":2}"#),
        ] {
            let (node, errors) = format.parse("F", text);
            assert!(errors.is_empty(), "{format:?}: {errors:?}");
            let Value::Map(entries) = node.unwrap().value else {
                panic!()
            };
            assert_eq!(entries.len(), 2, "{format:?}");
        }
    }

    #[test]
    fn says_where_the_syntax_is_wrong() {
        let cases = [
            (Format::Toml, "a = 1\nb = [\n", 2..=3),
            (Format::Yaml, "a: 1\nb: [1\n", 2..=3),
            (Format::Json, "{\"a\": 1,\n}", 2..=2),
        ];
        for (format, text, lines) in cases {
            let (_, errors) = format.parse("F", text);
            assert!(lines.contains(&errors[0].line), "{format:?}: {errors:?}");
            assert!(!errors[0].what.contains('\n'));
        }
        let deep = "[".repeat(5000) + &"]".repeat(5000);
        assert!(Format::Json.parse("F", &deep).0.is_none());
        assert!(Format::Yaml.parse("F", &deep).0.is_none());
    }

    #[test]
    fn words_are_toml_values_or_texts() {
        let cases = [
            ("5", Value::Whole(5)),
            ("true", Value::Flag(true)),
            ("\"a b\"", Value::Text("a b".into())),
            ("30s", Value::Text("30s".into())),
            ("", Value::Text(String::new())),
            ("127.0.0.1:0", Value::Text("127.0.0.1:0".into())),
        ];
        for (text, value) in cases {
            assert_eq!(Node::from_word("--set", text).value, value, "{text}");
        }
    }

    #[test]
    fn key_paths() {
        let path = |text| key_path(text).map(|path| path.join("|"));
        assert_eq!(path("a.b").as_deref(), Some("a|b"));
        assert_eq!(path("a.\"b.c\".d").as_deref(), Some("a|b.c|d"));
        for wrong in ["", "a b", "a=1\nb", "a..b", "a#"] {
            assert_eq!(path(wrong), None, "{wrong}");
        }
    }
}

//! Members of a table: what a reader of a manifest reads, and describes at the same lines.

use std::{cell::RefCell, collections::BTreeMap};

use super::{
    findings::Findings,
    outline::{ANY, Form, dotted},
    parse::Parser,
};
use crate::config::{Node, Value, Wrong, reader::unknown_key};

/// The members of one table of a document.
///
/// A key is known once it is read: [`Fields::end`] reports all others. Every read states what the
/// key means and how its value is parsed, from which the schema of manifests follows.
pub(crate) struct Fields<'a> {
    /// The table's own key, dotted; empty at the root.
    pub(crate) path: String,
    /// The place of the table.
    pub(crate) place: String,
    /// Whether it is a table; a value of another type was reported, and has no members.
    pub(crate) is_table: bool,
    entries: BTreeMap<&'a str, &'a Node>,
    findings: &'a Findings,
    /// The known keys, in the order in which a mistake lists them.
    known: RefCell<Vec<&'static str>>,
    /// The position of this table's unknown keys among the mistakes: before those of its values.
    at: usize,
}

impl<'a> Fields<'a> {
    /// The members of `node` by name; keys that occur twice are mistakes.
    pub(crate) fn of(node: &'a Node, path: &str, findings: &'a Findings) -> Self {
        let mut entries: BTreeMap<&str, &Node> = BTreeMap::new();
        let key = |name: &str| dotted(path, name);
        let mut is_table = true;
        if let Value::Map(members) = &node.value {
            for (name, member) in members {
                if let Some(first) = entries.get(name.as_str()) {
                    let what = format!("also at {}", first.place);
                    let wrong = Wrong::new(what, "keep one of the two");
                    findings.add(wrong.at(&member.place, &key(name)));
                } else {
                    entries.insert(name, member);
                }
            }
        } else {
            is_table = false;
            let key = if path.is_empty() { "document" } else { path };
            findings.add(node.unexpected("a table").at(&node.place, key));
        }
        if let Some(outline) = findings.outline() {
            outline.open(path);
        }
        Self {
            path: path.to_owned(),
            place: node.place.clone(),
            is_table,
            entries,
            findings,
            known: RefCell::default(),
            at: findings.len(),
        }
    }

    /// States what the table is.
    pub(crate) fn described(self, about: &'static str) -> Self {
        if let Some(outline) = self.findings.outline() {
            outline.describe(&self.path, about);
        }
        self
    }

    /// Names the table in the schema, which then has it once.
    pub(crate) fn defined(self, name: &'static str) -> Self {
        if let Some(outline) = self.findings.outline() {
            outline.define(&self.path, name);
        }
        self
    }

    /// The dotted key of a member.
    pub(crate) fn path_of(&self, name: &str) -> String {
        dotted(&self.path, name)
    }

    /// The place of a member, without marking it as known.
    pub(crate) fn place_of(&self, name: &str) -> Option<&'a str> {
        self.entries.get(name).map(|node| node.place.as_str())
    }

    /// Marks `names` as known, in this order: for tables whose keys are read in another order, or
    /// with another table.
    pub(crate) fn order(&self, names: &[&'static str]) {
        let mut known = self.known.borrow_mut();
        for name in names {
            if !known.contains(name) {
                known.push(name);
            }
        }
    }

    /// A member, if it is there.
    pub(crate) fn member(&self, name: &'static str) -> Option<&'a Node> {
        self.order(&[name]);
        self.entries.get(name).copied()
    }

    /// All members, sorted by name, where the operator chooses the names.
    pub(crate) fn members(&self) -> impl Iterator<Item = (&'a str, &'a Node)> {
        self.entries.iter().map(|(name, node)| (*name, *node))
    }

    /// The key `name`, to be read; `about` says what it means.
    pub(crate) fn key(&self, name: &'static str, about: &'static str) -> Key<'_, 'a> {
        Key {
            fields: self,
            name,
            about,
        }
    }

    /// Reports the member `name` as missing, unless it is there.
    pub(crate) fn require(&self, name: &'static str, remedy: &str) {
        if let Some(outline) = self.findings.outline() {
            outline.require(&self.path, name);
        } else if self.place_of(name).is_none() {
            self.wrong(name, &self.place, Wrong::new("is missing", remedy));
        }
    }

    /// The form of a table, chosen by the word of the key `name`; `word` is what was read. A reader
    /// that describes its keys gets one form after another.
    pub(crate) fn form<'w>(
        &self,
        name: &'static str,
        forms: &'static [Form],
        word: &'w str,
    ) -> &'w str {
        self.order(&[name]);
        match self.findings.outline() {
            Some(outline) => outline.form(&self.path, name, forms),
            None => word,
        }
    }

    /// Adds a mistake in the member `name`, written at `place`.
    pub(crate) fn wrong(&self, name: &str, place: &str, wrong: Wrong) {
        self.findings.add(wrong.at(place, &self.path_of(name)));
    }

    /// Reports the keys that were not read.
    pub(crate) fn end(self) {
        let known = self.known.borrow();
        if let Some(outline) = self.findings.outline() {
            return outline.close(&self.path, &known);
        }
        let unknown = self
            .entries
            .iter()
            .filter(|(name, _)| !known.contains(name));
        let mistake = |(name, node): (&&str, &&Node)| {
            unknown_key(name, known.iter().copied()).at(&node.place, &self.path_of(name))
        };
        self.findings
            .insert(self.at, unknown.map(mistake).collect());
    }
}

/// A key of a table, to be read.
#[must_use = "a key that is not read is unknown"]
pub(crate) struct Key<'f, 'a> {
    fields: &'f Fields<'a>,
    name: &'static str,
    about: &'static str,
}

impl<'a> Key<'_, 'a> {
    /// The value as `parser` reads it; `default` where it is absent or wrong.
    #[expect(clippy::needless_pass_by_value, reason = "made for this read alone")]
    pub(crate) fn read<T>(self, default: T, parser: Parser<'_, T>) -> T {
        self.parsed(&parser, Some(&default)).unwrap_or(default)
    }

    /// The value as `parser` reads it, unless it is absent or wrong.
    #[expect(clippy::needless_pass_by_value, reason = "made for this read alone")]
    pub(crate) fn optional<T>(self, parser: Parser<'_, T>) -> Option<T> {
        self.parsed(&parser, None)
    }

    /// The members of a table.
    pub(crate) fn table(self) -> Option<Fields<'a>> {
        let (fields, name) = (self.fields, self.name);
        let node = fields.member(name);
        let outline = fields.findings.outline();
        if let Some(outline) = outline {
            outline.add(&fields.path, name, None);
        }
        let node = node.or(outline.map(|_| &SAMPLE))?;
        let inner = Fields::of(node, &fields.path_of(name), fields.findings);
        Some(inner.described(self.about))
    }

    /// The members of a table in which the operator chooses names; `names` accepts one.
    pub(crate) fn entries(self, names: Parser<'a, String>) -> Option<Entries<'a>> {
        self.table().map(|fields| Entries::of(fields, names))
    }

    fn parsed<T>(self, parser: &Parser<'_, T>, default: Option<&T>) -> Option<T> {
        let (fields, name) = (self.fields, self.name);
        let node = fields.member(name);
        if let Some(outline) = fields.findings.outline() {
            let key = fields.path_of(name);
            assert!(!self.about.is_empty(), "{key}: no description");
            let schema = parser.schema().with("description", self.about);
            let shown = default.and_then(|default| parser.show(default));
            let schema = match shown {
                Some(shown) => schema.with("default", shown),
                None => schema,
            };
            outline.add(&fields.path, name, Some(schema));
        }
        let node = node?;
        let wrong = |wrong| fields.wrong(name, &node.place, wrong);
        parser.parse(node).map_err(wrong).ok()
    }
}

/// The members of a table in which the operator chooses names.
pub(crate) struct Entries<'a> {
    fields: Fields<'a>,
    names: Parser<'a, String>,
}

impl<'a> Entries<'a> {
    /// The members `fields`, whose names `names` accepts.
    pub(crate) fn of(fields: Fields<'a>, names: Parser<'a, String>) -> Self {
        if let Some(outline) = fields.findings.outline() {
            outline.names(&fields.path, names.schema());
            outline.add(&fields.path, ANY, None);
        }
        Self { fields, names }
    }

    /// The place of the table.
    pub(crate) fn place(&self) -> &str {
        &self.fields.place
    }

    /// The dotted key of a member.
    pub(crate) fn path_of(&self, name: &str) -> String {
        self.fields.path_of(name)
    }

    /// All members, sorted by name; each name that is not accepted is a mistake.
    pub(crate) fn members(&self) -> impl Iterator<Item = (&'a str, &'a Node)> {
        let sample = self.fields.findings.outline().map(|_| (ANY, &SAMPLE));
        let members = self.fields.members().inspect(|(name, node)| {
            let text = Node::new(&node.place, Value::Text((*name).to_owned()));
            if let Err(wrong) = self.names.parse(&text) {
                self.wrong(name, &node.place, wrong);
            }
        });
        members.chain(sample)
    }

    /// A member as `parser` reads it; none where it is wrong.
    #[expect(clippy::needless_pass_by_value, reason = "made for this read alone")]
    pub(crate) fn read<T>(&self, name: &str, node: &Node, parser: Parser<'_, T>) -> Option<T> {
        if let Some(outline) = self.fields.findings.outline() {
            outline.add(&self.fields.path, ANY, Some(parser.schema()));
            return None;
        }
        let wrong = |wrong| self.wrong(name, &node.place, wrong);
        parser.parse(node).map_err(wrong).ok()
    }

    /// The members of a member; `about` says what it is.
    pub(crate) fn table(&self, name: &str, node: &'a Node, about: &'static str) -> Fields<'a> {
        Fields::of(node, &self.path_of(name), self.fields.findings).described(about)
    }

    /// Adds a mistake in the member `name`, written at `place`.
    pub(crate) fn wrong(&self, name: &str, place: &str, wrong: Wrong) {
        self.fields.wrong(name, place, wrong);
    }
}

/// Any table, for readers that describe their keys.
pub(crate) static SAMPLE: Node = Node {
    place: String::new(),
    value: Value::Map(Vec::new()),
    word: None,
};

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value as Json, json};

    use super::super::{fields::*, parse};

    static FORMS: [Form; 2] = [
        Form {
            words: &["round"],
            table: "A circle.",
            key: "Round.",
            is_default: true,
        },
        Form {
            words: &["square"],
            table: "A square.",
            key: "Square.",
            is_default: false,
        },
    ];

    /// Reads a table with a key of each kind.
    fn read(node: &Node, findings: &Findings) -> Vec<String> {
        let fields = Fields::of(node, "", findings).described("Shapes.");
        let mut read = Vec::new();
        let entries = fields.key("shapes", "By name.").entries(parse::name());
        let entries = entries.expect("shapes");
        for (name, node) in entries.members() {
            let fields = entries.table(name, node, "A shape.").defined("shape");
            let form = fields.form("form", &FORMS, "square");
            let size = match form {
                "round" => "radius",
                _ => "side",
            };
            fields.require(size, "measure it");
            let size = fields
                .key(size, "Its size.")
                .optional(parse::count::<u32>(1));
            let every = fields.key("every", "Pause.");
            let every = every.read(Duration::from_secs(90), parse::duration());
            read.push(format!("{name} {form} {size:?} {every:?}"));
            fields.end();
        }
        fields.end();
        read
    }

    #[test]
    fn the_same_reads_read_and_describe() {
        let shape = Node::new(
            "F:3",
            Value::Map(vec![
                (
                    "form".to_owned(),
                    Node::new("F:4", Value::Text("square".to_owned())),
                ),
                ("side".to_owned(), Node::new("F:5", Value::Whole(0))),
                ("radius".to_owned(), Node::new("F:6", Value::Whole(1))),
            ]),
        );
        let shapes = Node::new("F:2", Value::Map(vec![("a".to_owned(), shape)]));
        let root = Node::new("F:1", Value::Map(vec![("shapes".to_owned(), shapes)]));
        let findings = Findings::default();
        assert_eq!(read(&root, &findings), ["a square None 90s"]);
        let found = findings.result(()).expect_err("mistakes");
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        insta::assert_snapshot!(found.join("\n"), @r"
        F:6: shapes.a.radius: unknown key; known here: form, side, every
        F:5: shapes.a.side: 0 is out of range; write a number from 1 to 4294967295
        ");
        let schema = Findings::describe(|findings| drop(read(&SAMPLE, findings)));
        let schema: Json = serde_json::from_str(&schema.document()).expect("JSON");
        let shapes = &schema["properties"]["shapes"];
        assert_eq!(shapes["propertyNames"]["$ref"], "#/$defs/name");
        assert_eq!(shapes["additionalProperties"]["$ref"], "#/$defs/shape");
        let [round, square] = [0, 1].map(|form| &schema["$defs"]["shape"]["oneOf"][form]);
        assert_eq!(round["required"], json!(["radius"]));
        let wanted = json!({
            "type": "object",
            "description": "A square.",
            "properties": {
                "form": {"const": "square", "description": "Square."},
                "side": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": u32::MAX,
                    "description": "Its size.",
                },
                "every": {
                    "$ref": "#/$defs/duration",
                    "description": "Pause.",
                    "default": "1m30s",
                },
            },
            "additionalProperties": false,
            "required": ["form", "side"],
        });
        assert_eq!(*square, wanted);
    }

    #[test]
    #[should_panic(expected = "again is known, and no read describes it")]
    fn a_known_key_is_described() {
        Findings::describe(|findings| {
            let fields = Fields::of(&SAMPLE, "", findings);
            fields.order(&["again"]);
            fields.end();
        });
    }
}

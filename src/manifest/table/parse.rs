//! Parsers of values, with the schema of what they accept.
//!
//! Not here: types and units themselves (`config/reader`).

use std::{collections::HashSet, hash::Hash, time::Duration};

use serde_json::Value as Json;

use super::json_schema::JsonSchema;
use crate::config::{Node, Wrong, reader};

/// A parser of values of one type: how a value is read, what it may be, and how a default is shown.
pub(crate) struct Parser<'p, T> {
    parse: Parse<'p, T>,
    schema: Box<dyn Fn() -> JsonSchema + 'p>,
    show: Show<'p, T>,
}

type Parse<'p, T> = Box<dyn Fn(&Node) -> Result<T, Wrong> + 'p>;
type Show<'p, T> = Box<dyn Fn(&T) -> Option<Json> + 'p>;

impl<'p, T: 'p> Parser<'p, T> {
    /// A parser of values with this schema.
    pub(crate) fn new(
        schema: impl Fn() -> JsonSchema + 'p,
        parse: impl Fn(&Node) -> Result<T, Wrong> + 'p,
    ) -> Self {
        Self {
            parse: Box::new(parse),
            schema: Box::new(schema),
            show: Box::new(|_| None),
        }
    }

    /// Shows defaults as `show` writes them.
    pub(crate) fn shown(self, show: impl Fn(&T) -> Json + 'p) -> Self {
        let show = Box::new(move |value: &T| Some(show(value)));
        Self { show, ..self }
    }

    /// Adds a keyword to the schema. The parser checks it elsewhere, with a better text.
    pub(crate) fn having(self, keyword: &'static str, value: impl Into<Json> + Clone + 'p) -> Self {
        let schema = self.schema;
        let schema = Box::new(move || schema().with(keyword, value.clone()));
        Self { schema, ..self }
    }

    /// Writes the schema once, under this name.
    pub(crate) fn defined(self, name: &'static str) -> Self {
        let schema = self.schema;
        let schema = Box::new(move || schema().defined(name));
        Self { schema, ..self }
    }

    /// Checks the node before it is parsed.
    pub(crate) fn first(self, check: impl Fn(&Node) -> Result<(), Wrong> + 'p) -> Self {
        let parse = self.parse;
        let parse = Box::new(move |node: &Node| {
            check(node)?;
            parse(node)
        });
        Self { parse, ..self }
    }

    /// Checks each value.
    pub(crate) fn check(self, check: impl Fn(&T) -> Result<(), Wrong> + 'p) -> Self {
        let parse = self.parse;
        let parse = Box::new(move |node: &Node| {
            let value = parse(node)?;
            check(&value).map(|()| value)
        });
        Self { parse, ..self }
    }

    /// Makes something else of each value; defaults are not shown.
    pub(crate) fn and<U: 'p>(self, then: impl Fn(T) -> Result<U, Wrong> + 'p) -> Parser<'p, U> {
        let Self { parse, schema, .. } = self;
        Parser {
            parse: Box::new(move |node| parse(node).and_then(&then)),
            schema,
            show: Box::new(|_| None),
        }
    }

    /// Makes something else of each value, and the value again of a default.
    pub(crate) fn convert<U: 'p>(
        self,
        to: impl Fn(T) -> U + 'p,
        back: impl Fn(&U) -> T + 'p,
    ) -> Parser<'p, U> {
        let Self {
            parse,
            schema,
            show,
        } = self;
        Parser {
            parse: Box::new(move |node| parse(node).map(&to)),
            schema,
            show: Box::new(move |value| show(&back(value))),
        }
    }

    /// Parses a node.
    pub(crate) fn parse(&self, node: &Node) -> Result<T, Wrong> {
        (self.parse)(node)
    }

    /// The schema of the values that it accepts.
    pub(crate) fn schema(&self) -> JsonSchema {
        (self.schema)()
    }

    /// A default as a manifest would have it.
    pub(super) fn show(&self, value: &T) -> Option<Json> {
        (self.show)(value)
    }
}

/// Any text. `$$` is `$` in it, as in every text of a manifest: whoever puts a value in writes it so. One alone stays.
pub(crate) fn text<'p>() -> Parser<'p, String> {
    let (read, write) = (
        |text: String| text.replace("$$", "$"),
        |text: &String| text.replace('$', "$$"),
    );
    written().convert(read, write)
}

/// A text as it is written.
pub(crate) fn written<'p>() -> Parser<'p, String> {
    Parser::new(|| JsonSchema::of("string"), Node::text).shown(|text| text.as_str().into())
}

/// true or false.
pub(crate) fn flag<'p>() -> Parser<'p, bool> {
    Parser::new(|| JsonSchema::of("boolean"), Node::flag).shown(|flag| (*flag).into())
}

/// A number of at least `min`.
pub(crate) fn count<'p, T: From<u32> + Into<Json> + Copy + 'p>(min: u32) -> Parser<'p, T> {
    let schema = move || {
        JsonSchema::of("integer")
            .with("minimum", min)
            .with("maximum", u32::MAX)
    };
    Parser::new(schema, move |node| node.count(min).map(T::from)).shown(|count| (*count).into())
}

/// A duration.
pub(crate) fn duration<'p>() -> Parser<'p, Duration> {
    let schema = || {
        JsonSchema::of("string")
            .with("pattern", "^(([0-9]+(ms|s|m|h|d))+)?$")
            .with(
                "description",
                "A duration such as \"250ms\", \"30s\" or \"1m30s\"; \"0s\" and \"\" are off.",
            )
            .defined("duration")
    };
    Parser::new(schema, Node::duration).shown(|duration| shown_duration(*duration).into())
}

/// A size in bytes.
pub(crate) fn size<'p>() -> Parser<'p, u64> {
    let schema = || {
        JsonSchema::default()
            .with("type", ["string", "integer"].as_slice())
            .with("minimum", 0)
            .with("pattern", "^([0-9]+(B|KiB|MiB|GiB|TiB)?)?$")
            .with(
                "description",
                "A size such as \"64KiB\" or \"4MiB\"; \"\" is off.",
            )
            .defined("size")
    };
    Parser::new(schema, Node::size).shown(|bytes| shown_size(*bytes).into())
}

/// A name that can be a part of a URL.
pub(crate) fn name<'p>() -> Parser<'p, String> {
    let name = text().having("pattern", "^[a-z0-9][a-z0-9-]{0,62}$");
    name.check(|text| reader::name(text).map(drop))
        .defined("name")
}

/// One of a few words.
pub(crate) fn choice<'p, T: Copy + PartialEq>(choices: &'static [(&str, T)]) -> Parser<'p, T> {
    let words = || choices.iter().map(|(word, _)| *word).collect::<Vec<_>>();
    let schema = move || JsonSchema::default().with("enum", words());
    let word = |value: &T| choices.iter().find(|(_, one)| one == value);
    Parser {
        parse: Box::new(|node| reader::choice(&node.text()?, choices)),
        schema: Box::new(schema),
        show: Box::new(move |value| word(value).map(|(word, _)| (*word).into())),
    }
}

/// A list of values.
pub(crate) fn list<'p, T: 'p>(item: Parser<'p, T>) -> Parser<'p, Vec<T>> {
    let Parser {
        parse,
        schema,
        show,
    } = item;
    Parser {
        parse: Box::new(move |node| node.items()?.iter().map(&parse).collect()),
        schema: Box::new(move || JsonSchema::of("array").with_schema("items", schema())),
        show: Box::new(move |values| values.iter().map(&show).collect()),
    }
}

/// A list of different values; a value that is repeated counts once.
pub(crate) fn set<'p, T: Clone + Eq + Hash + 'p>(item: Parser<'p, T>) -> Parser<'p, Vec<T>> {
    let distinct = |mut values: Vec<T>| {
        let mut known = HashSet::with_capacity(values.len());
        values.retain(|value| known.insert(value.clone()));
        values
    };
    list(item).convert(distinct, Vec::clone)
}

/// The text of a duration.
fn shown_duration(duration: Duration) -> String {
    let mut rest = duration.as_millis();
    let mut text = String::new();
    for (unit, millis) in [
        ("d", 86_400_000),
        ("h", 3_600_000),
        ("m", 60_000),
        ("s", 1000),
        ("ms", 1),
    ] {
        if rest >= millis {
            text.push_str(&format!("{}{unit}", rest / millis));
            rest %= millis;
        }
    }
    if text.is_empty() {
        "0s".to_owned()
    } else {
        text
    }
}

/// The text of a size in its largest unit; zero is the empty text.
fn shown_size(bytes: u64) -> String {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10), ("B", 0)];
    let fits = |(_, shift): &&(&str, u32)| bytes.trailing_zeros() >= *shift;
    match units.iter().find(fits) {
        Some((unit, shift)) if bytes > 0 => format!("{}{unit}", bytes >> shift),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::parse::*;

    #[test]
    fn defaults_are_shown_as_they_are_written() {
        let shown = |millis| shown_duration(Duration::from_millis(millis));
        assert_eq!(shown(0), "0s");
        assert_eq!(shown(100), "100ms");
        assert_eq!(shown(90_000), "1m30s");
        assert_eq!(shown(86_400_000), "1d");
        let sizes = [(0, ""), (7, "7B"), (65_536, "64KiB"), (1 << 30, "1GiB")];
        for (bytes, text) in sizes {
            assert_eq!(shown_size(bytes), text);
        }
    }

    proptest! {
        #[test]
        fn defaults_are_read_again(millis in 0..1_u64 << 38, bytes in 0_u64..1 << 62) {
            let duration = Duration::from_millis(millis);
            prop_assert_eq!(reader::duration(&shown_duration(duration)), Ok(duration));
            prop_assert_eq!(reader::size(&shown_size(bytes)), Ok(bytes));
        }
    }
}

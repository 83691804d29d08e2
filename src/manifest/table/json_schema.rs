//! JSON schemas (draft 2020-12) with their keywords in order.
//!
//! Not here: the schemas of single values (`parse`) and tables (`outline`).

use serde::{Serialize, Serializer, ser::SerializeMap};
use serde_json::Value as Json;

/// A schema: its keywords, in the order in which they are written.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct JsonSchema(Vec<(&'static str, Keyword)>);

/// The value of a keyword.
#[derive(Clone, Debug, PartialEq)]
enum Keyword {
    /// A plain value.
    Plain(Json),
    /// A schema.
    One(JsonSchema),
    /// Alternatives.
    Any(Vec<JsonSchema>),
    /// Schemas by name.
    Named(Vec<(&'static str, JsonSchema)>),
    /// A reference to a schema that is written once, by its name in `$defs`.
    Reference(&'static str, JsonSchema),
}

impl JsonSchema {
    /// The schema of values of `kind`.
    pub(crate) fn of(kind: &str) -> Self {
        Self::default().with("type", kind)
    }

    /// The schema with one more keyword.
    pub(crate) fn with(self, keyword: &'static str, value: impl Into<Json>) -> Self {
        self.and(keyword, Keyword::Plain(value.into()))
    }

    /// The schema with a schema as one more keyword.
    pub(crate) fn with_schema(self, keyword: &'static str, schema: Self) -> Self {
        self.and(keyword, Keyword::One(schema))
    }

    /// The schema with alternatives as one more keyword, `anyOf` or `oneOf`.
    pub(crate) fn with_any(self, keyword: &'static str, schemas: Vec<Self>) -> Self {
        self.and(keyword, Keyword::Any(schemas))
    }

    /// The schema with schemas by name as one more keyword.
    pub(super) fn with_named(
        self,
        keyword: &'static str,
        schemas: Vec<(&'static str, Self)>,
    ) -> Self {
        self.and(keyword, Keyword::Named(schemas))
    }

    /// The schema with the keywords of `other` too.
    pub(crate) fn extended(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }

    /// A reference to this schema, which is written once, as `$defs/name`.
    pub(crate) fn defined(self, name: &'static str) -> Self {
        Self(vec![("$ref", Keyword::Reference(name, self))])
    }

    /// The text of a whole schema, with its definitions.
    pub(crate) fn document(self) -> String {
        let mut definitions = Vec::new();
        self.collect(&mut definitions);
        let whole = self.with_named("$defs", definitions);
        // Names are texts and numbers are finite, so writing cannot fail.
        let mut text = serde_json::to_string_pretty(&whole).unwrap_or_default();
        text.push('\n');
        text
    }

    fn and(mut self, keyword: &'static str, value: Keyword) -> Self {
        self.0.push((keyword, value));
        self
    }

    /// Adds the definitions that this schema refers to, in the order of their first use.
    fn collect(&self, found: &mut Vec<(&'static str, Self)>) {
        for (_, keyword) in &self.0 {
            match keyword {
                Keyword::Plain(_) => {}
                Keyword::One(schema) => schema.collect(found),
                Keyword::Any(schemas) => schemas.iter().for_each(|one| one.collect(found)),
                Keyword::Named(schemas) => schemas.iter().for_each(|(_, one)| one.collect(found)),
                Keyword::Reference(name, schema) => {
                    if !found.iter().any(|(other, _)| other == name) {
                        found.push((name, schema.clone()));
                        schema.collect(found);
                    }
                }
            }
        }
    }
}

impl Serialize for JsonSchema {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, keyword) in &self.0 {
            match keyword {
                Keyword::Plain(json) => map.serialize_entry(name, json)?,
                Keyword::One(schema) => map.serialize_entry(name, schema)?,
                Keyword::Any(schemas) => map.serialize_entry(name, schemas)?,
                Keyword::Named(schemas) => map.serialize_entry(name, &Named(schemas))?,
                Keyword::Reference(target, _) => {
                    map.serialize_entry(name, &format!("#/$defs/{target}"))?;
                }
            }
        }
        map.end()
    }
}

/// Schemas by name, in their order.
struct Named<'s>(&'s [(&'static str, JsonSchema)]);

impl Serialize for Named<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, schema)| (name, schema)))
    }
}

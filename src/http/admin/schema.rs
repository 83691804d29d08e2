//! Schemas of request and response bodies.
//!
//! Not here: the schemas of single operations, which stand beside these.

use serde_json::{Map, Value as Json, json};

/// Schema of a body, with its name in the document.
pub(super) struct Schema {
    pub(super) name: &'static str,
    pub(super) shape: Shape,
}

/// Form of a body.
pub(super) enum Shape {
    /// JSON of this schema.
    Json(fn() -> Json),
    /// JSON of this schema, with the version of the object as `ETag`.
    Versioned(fn() -> Json),
    /// A page of a list, and the cursor of the next page.
    Page(&'static Schema),
    /// A whole list.
    List(&'static Schema),
    /// JSON lines with this description.
    Lines(&'static str),
    /// A manifest: JSON, YAML or TOML.
    Manifest,
}

impl Schema {
    /// Returns the schema itself.
    pub(super) fn json(&self) -> Json {
        let items = |item: &Self| json!({"type": "array", "items": item.reference()});
        match &self.shape {
            Shape::Json(schema) | Shape::Versioned(schema) => schema(),
            Shape::Page(item) => object(&[("items", items(item)), ("next", nullable_text())]),
            Shape::List(item) => object(&[("items", items(item))]),
            Shape::Lines(text) => json!({"type": "string", "description": text}),
            Shape::Manifest => any_object(),
        }
    }

    /// Returns the schema that this one refers to.
    pub(super) fn item(&self) -> Option<&'static Self> {
        match self.shape {
            Shape::Page(item) | Shape::List(item) => Some(item),
            Shape::Json(_) | Shape::Versioned(_) | Shape::Lines(_) | Shape::Manifest => None,
        }
    }

    /// Returns the body by its media types.
    pub(super) fn content(&self) -> Json {
        let own = json!({"schema": self.reference()});
        match self.shape {
            Shape::Lines(_) => json!({LINES: own}),
            Shape::Manifest => json!({
                "application/json": own,
                "application/yaml": {"schema": text()},
                "application/toml": {"schema": text()},
            }),
            _ => json!({"application/json": own}),
        }
    }

    pub(super) fn reference(&self) -> Json {
        json!({"$ref": format!("#/components/schemas/{}", self.name)})
    }
}

/// Schema of an object with these members; later versions may add others.
pub(super) fn object(members: &[(&str, Json)]) -> Json {
    let names: Vec<&str> = members.iter().map(|(name, _)| *name).collect();
    let properties: Map<String, Json> = members
        .iter()
        .map(|(name, schema)| ((*name).to_owned(), schema.clone()))
        .collect();
    json!({"type": "object", "required": names, "properties": properties})
}

/// Schema of an object with any members.
pub(super) fn any_object() -> Json {
    json!({"type": "object", "additionalProperties": true})
}

pub(super) fn text() -> Json {
    json!({"type": "string"})
}

pub(super) fn nullable_text() -> Json {
    json!({"type": ["string", "null"]})
}

pub(super) fn texts() -> Json {
    json!({"type": "array", "items": text()})
}

pub(super) fn integer() -> Json {
    json!({"type": "integer"})
}

pub(super) fn number() -> Json {
    json!({"type": "number"})
}

/// Schema of a time in the format of RFC 3339.
pub(super) fn moment() -> Json {
    json!({"type": "string", "format": "date-time"})
}

pub(super) fn nullable_moment() -> Json {
    json!({"type": ["string", "null"], "format": "date-time"})
}

/// Media type of JSON lines.
pub(super) const LINES: &str = "application/x-ndjson";

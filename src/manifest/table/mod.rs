//! Tables of a manifest: their members as text, and their JSON schema, from the same reads.
//!
//! Not here: the keys that exist (the readers of `manifest`), and the types of values (`config`).
//!
//! * `fields`: the members of one table, which a reader reads or describes; unknown ones are refused
//! * `findings`: what the reading of one document leads to
//! * `json_schema`: JSON schemas with their keywords in order
//! * `outline`: the keys of all tables, as their readers describe them
//! * `parse`: parsers of values, with the schema of what they accept

mod fields;
mod findings;
mod json_schema;
mod outline;
pub(crate) mod parse;

pub(crate) use self::fields::{Entries, Fields, Key, SAMPLE};
pub(crate) use self::findings::Findings;
pub(crate) use self::json_schema::JsonSchema;
pub(crate) use self::outline::Form;
pub(crate) use self::parse::Parser;

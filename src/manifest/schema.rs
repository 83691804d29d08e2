//! The JSON schema of manifests, for editors and programs.
//!
//! The readers describe every key at the line that reads it: the schema is their outline. Not
//! here: mistakes that only the reader finds, such as names of missing servers.

use std::collections::BTreeMap;

use super::{
    reader::Reader,
    table::{Findings, JsonSchema, SAMPLE},
};

/// The schema, draft 2020-12: the text of `docs/manifest.schema.json`.
pub(crate) fn schema() -> String {
    let env = BTreeMap::new();
    let tables = Findings::describe(|findings| {
        Reader::new(&env, findings).root(&SAMPLE);
    });
    JsonSchema::default()
        .with("$schema", "https://json-schema.org/draft/2020-12/schema")
        .with("title", "Lockgate manifest")
        .extended(tables)
        .document()
}

#[cfg(test)]
mod tests {
    use std::{
        collections::{BTreeMap, BTreeSet},
        path::Path,
    };

    use serde_json::{Map, Value as Json, json};

    use super::super::reader::parse;
    use super::super::schema::*;
    use crate::config::Format;

    /// A key that no table has, and that resembles no other key.
    const UNKNOWN: &str = "no-key-of-any-table";

    /// The keys of each table of a schema, by the table's key in a manifest.
    #[derive(Default)]
    struct Tables {
        keys: BTreeMap<String, BTreeSet<String>>,
        /// The index of the form to use where a schema has several.
        form: usize,
    }

    impl Tables {
        /// A value with every table of `schema`, and an unknown key in each.
        fn sample(&mut self, root: &Json, schema: &Json, key: &str) -> Option<Json> {
            let inner = |name: &str| match key {
                "" => name.to_owned(),
                _ => format!("{key}.{name}"),
            };
            if let Some(place) = schema["$ref"].as_str() {
                let target = root.pointer(place.strip_prefix('#').unwrap()).unwrap();
                return self.sample(root, target, key);
            }
            if let Some(forms) = schema["oneOf"].as_array() {
                return self.sample(root, &forms[self.form % forms.len()], key);
            }
            if let Some(properties) = schema["properties"].as_object() {
                assert_eq!(schema["additionalProperties"], false, "{key}");
                let names = properties.keys().cloned().collect();
                self.keys.insert(key.to_owned(), names);
                let mut table = Map::from_iter([(UNKNOWN.to_owned(), json!(1))]);
                for (name, member) in properties {
                    let sample = self.sample(root, member, &inner(name));
                    table.extend(sample.map(|sample| (name.clone(), sample)));
                }
                return Some(table.into());
            }
            if schema["additionalProperties"].is_object() {
                let sample = self.sample(root, &schema["additionalProperties"], &inner("n"));
                return sample.map(|sample| json!({"n": sample}));
            }
            let choices = |name: &str| schema[name].as_array();
            if let Some(choices) = choices("enum") {
                return Some(choices[self.form % choices.len()].clone());
            }
            if let Some(choices) = choices("anyOf") {
                return self.sample(root, &choices[self.form % choices.len()], key);
            }
            match schema["type"].as_str() {
                Some("boolean") => Some((self.form.is_multiple_of(2)).into()),
                Some("integer") => Some(json!(1)),
                Some("array") => Some(json!([self.sample(root, &schema["items"], key)])),
                Some("object") => Some(json!({})),
                _ => schema.get("const").or(Some(&json!("x"))).cloned(),
            }
        }
    }

    /// The keys that the reader reports as known, by table.
    fn known(manifest: &Json) -> BTreeMap<String, BTreeSet<String>> {
        let text = manifest.to_string();
        let mistakes = parse("F", &text, Format::Json, &BTreeMap::new()).unwrap_err();
        let tables = mistakes.iter().filter_map(|mistake| {
            let table = mistake.key.strip_suffix(UNKNOWN)?;
            let keys = mistake.remedy.strip_prefix("known here: ").unwrap();
            let keys = keys.split(", ").map(str::to_owned).collect();
            Some((table.trim_end_matches('.').to_owned(), keys))
        });
        tables.collect()
    }

    /// With `SCHEMA_WRITE=1` the test rewrites the file.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "a switch of this test alone")]
    fn the_schema_is_in_the_docs() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/manifest.schema.json");
        if std::env::var_os("SCHEMA_WRITE").is_some() {
            return std::fs::write(&file, schema()).expect("the file is written");
        }
        let shown = std::fs::read_to_string(&file).expect("the file");
        assert!(shown == schema(), "SCHEMA_WRITE=1 writes it anew");
    }

    /// The schema describes a reader that finds no values, so it could lack a key that is read only
    /// beside a certain value.
    #[test]
    fn it_has_every_key_that_the_reader_knows() {
        let schema: Json = serde_json::from_str(&schema()).unwrap();
        let (mut modes, mut kinds) = (BTreeSet::new(), BTreeSet::new());
        for form in 0..6 {
            let mut tables = Tables {
                form,
                ..Tables::default()
            };
            let manifest = tables.sample(&schema, &schema, "").unwrap();
            let tenant = &manifest["tenants"]["n"];
            modes.insert(tenant["auth"]["mode"].to_string());
            kinds.insert(tenant["providers"]["n"]["kind"].to_string());
            assert!(tables.keys.len() > 20);
            assert_eq!(known(&manifest), tables.keys);
        }
        assert_eq!((modes.len(), kinds.len()), (4, 2));
    }
}

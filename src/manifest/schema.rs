//! The JSON schema of manifests, for editors and programs.
//!
//! It describes keys and their types. Not here: mistakes that only the reader finds, such as names
//! of missing servers.

/// The schema, draft 2020-12: `docs/manifest.schema.json`.
pub(crate) const TEXT: &str = include_str!("../../docs/manifest.schema.json");

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use serde_json::{Map, Value as Json, json};

    use super::super::reader::parse;
    use super::super::schema::*;
    use crate::config::Format;

    /// A key that no table has, and none is near to.
    const UNKNOWN: &str = "no-key-of-any-table";

    /// The tables of a schema by the key under which a manifest has them, with their keys.
    #[derive(Default)]
    struct Tables {
        keys: BTreeMap<String, BTreeSet<String>>,
        /// Which of several forms is taken, where a schema has some.
        form: usize,
    }

    impl Tables {
        /// A value that has every table of `schema`, and in each a key that is unknown.
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
            let choices = schema["enum"].as_array();
            schema.get("const").or(choices.map(|all| &all[0])).cloned()
        }
    }

    /// What the reader says that it knows, by table.
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

    #[test]
    fn it_has_the_keys_of_the_reader_and_no_other() {
        let schema: Json = serde_json::from_str(TEXT).unwrap();
        for form in [0, 1, 2, 5] {
            let mut tables = Tables {
                form,
                ..Tables::default()
            };
            let manifest = tables.sample(&schema, &schema, "").unwrap();
            let auth = &manifest["tenants"]["n"]["auth"]["mode"];
            assert_eq!(auth, ["none", "external", "builtin"][form % 3]);
            let kind = &manifest["tenants"]["n"]["providers"]["n"]["kind"];
            assert_eq!(kind, ["openid", "oauth"][form % 2]);
            assert!(tables.keys.len() > 20);
            assert_eq!(known(&manifest), tables.keys);
        }
    }

    #[test]
    fn every_key_is_described() {
        fn undescribed(schema: &Json, at: &str, found: &mut Vec<String>) {
            for (name, member) in schema["properties"].as_object().into_iter().flatten() {
                let at = format!("{at}.{name}");
                if member["description"].as_str().is_none_or(str::is_empty)
                    && member["$ref"].is_null()
                {
                    found.push(at.clone());
                }
                undescribed(member, &at, found);
                undescribed(&member["additionalProperties"], &at, found);
            }
            for form in schema["oneOf"].as_array().into_iter().flatten() {
                undescribed(form, at, found);
            }
        }
        let schema: Json = serde_json::from_str(TEXT).unwrap();
        let mut found = Vec::new();
        undescribed(&schema, "", &mut found);
        for (name, schema) in schema["$defs"].as_object().unwrap() {
            assert!(
                schema["description"].is_string() || name == "name",
                "{name}"
            );
            undescribed(schema, name, &mut found);
        }
        assert_eq!(found, Vec::<String>::new());
    }
}

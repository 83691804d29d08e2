//! Outline of manifests: the keys of all tables, as their readers describe them.
//!
//! A reader that describes its keys runs as if every table were there, and no value. A table that
//! has several forms takes another one in each run.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
};

use super::json_schema::JsonSchema;

/// One of the forms of a table, chosen by the word of one key.
#[derive(Debug)]
pub(crate) struct Form {
    /// The words that choose it.
    pub(crate) words: &'static [&'static str],
    /// The table in this form.
    pub(crate) table: &'static str,
    /// The key in this form.
    pub(crate) key: &'static str,
    /// Whether a table without the key has this form.
    pub(crate) is_default: bool,
}

/// The name of a member whose name the operator chooses.
pub(super) const ANY: &str = "*";

/// The keys of all tables.
#[derive(Debug, Default)]
pub(super) struct Outline {
    run: Cell<usize>,
    tables: RefCell<BTreeMap<String, Table>>,
}

/// A table, or a map from names to values.
#[derive(Debug, Default)]
struct Table {
    about: &'static str,
    /// Its name in `$defs`.
    definition: Option<&'static str>,
    /// The names of its members, if the operator chooses them.
    names: Option<JsonSchema>,
    /// The index of the form in this run.
    form: usize,
    /// The keys of each form; a table of one form has one element.
    forms: Vec<Keys>,
}

/// The keys of a table in one form.
#[derive(Debug, Default)]
struct Keys {
    /// The description of the table in this form; empty in a table of one form.
    about: &'static str,
    /// The schema of each key; none for a table, which has its own entry.
    schemas: Vec<(&'static str, Option<JsonSchema>)>,
    required: Vec<&'static str>,
}

impl Outline {
    /// Begins the next run; false if every form of every table had its own.
    pub(super) fn advance(&self) -> bool {
        self.run.set(self.run.get() + 1);
        let tables = self.tables.borrow();
        tables
            .values()
            .any(|table| table.forms.len() > self.run.get())
    }

    /// The schema of the table `path`.
    pub(super) fn schema(&self, path: &str) -> JsonSchema {
        schema(&self.tables.borrow(), path)
    }

    /// Begins the table `path`.
    pub(super) fn open(&self, path: &str) {
        self.change(path, |table| {
            table.form = 0;
            if table.forms.is_empty() {
                table.forms.push(Keys::default());
            }
        });
    }

    /// Describes the table `path`.
    pub(super) fn describe(&self, path: &str, about: &'static str) {
        assert!(!about.is_empty(), "{path}: no description");
        self.change(path, |table| table.about = about);
    }

    /// Writes the table `path` once, under this name.
    pub(super) fn define(&self, path: &str, name: &'static str) {
        self.change(path, |table| table.definition = Some(name));
    }

    /// The operator chooses the names of the members of `path`.
    pub(super) fn names(&self, path: &str, names: JsonSchema) {
        self.change(path, |table| table.names = Some(names));
    }

    /// Adds a key with its schema; without one it is the table of that name.
    pub(super) fn add(&self, path: &str, key: &'static str, schema: Option<JsonSchema>) {
        self.change(path, |table| {
            let schemas = &mut table.forms[table.form].schemas;
            schemas.retain(|(known, _)| *known != key);
            schemas.push((key, schema));
        });
    }

    /// Makes a key of the table `path` required.
    pub(super) fn require(&self, path: &str, key: &'static str) {
        self.change(path, |table| {
            let required = &mut table.forms[table.form].required;
            if !required.contains(&key) {
                required.push(key);
            }
        });
    }

    /// The form of the table `path` in this run.
    pub(super) fn form(
        &self,
        path: &str,
        key: &'static str,
        forms: &'static [Form],
    ) -> &'static str {
        let index = self.run.get() % forms.len();
        let form = &forms[index];
        self.change(path, |table| {
            table.forms.resize_with(forms.len(), Keys::default);
            table.form = index;
            table.forms[index].about = form.table;
        });
        let schema = match form.words {
            [word] => JsonSchema::default().with("const", *word),
            words => JsonSchema::default().with("enum", words.to_vec()),
        };
        self.add(path, key, Some(schema.with("description", form.key)));
        if !form.is_default {
            self.require(path, key);
        }
        form.words[0]
    }

    /// Ends the table `path`: its keys stand in the order in which they became known.
    pub(super) fn close(&self, path: &str, known: &[&'static str]) {
        self.change(path, |table| {
            let schemas = &mut table.forms[table.form].schemas;
            for key in known {
                let is_described = schemas.iter().any(|(described, _)| described == key);
                assert!(
                    is_described,
                    "{path}: {key} is known, and no read describes it"
                );
            }
            schemas.sort_by_key(|(key, _)| known.iter().position(|known| known == key));
        });
    }

    fn change(&self, path: &str, change: impl FnOnce(&mut Table)) {
        change(self.tables.borrow_mut().entry(path.to_owned()).or_default());
    }
}

/// The schema of the table `path`.
fn schema(tables: &BTreeMap<String, Table>, path: &str) -> JsonSchema {
    let table = &tables[path];
    let whole = JsonSchema::of("object").with("description", table.about);
    let whole = match (&table.names, &*table.forms) {
        (Some(names), keys) => with_names(whole, names, tables, path, keys),
        (None, [keys]) => with_keys(whole, tables, path, keys),
        (None, forms) => {
            let form = |keys: &Keys| {
                let form = JsonSchema::of("object").with("description", keys.about);
                with_keys(form, tables, path, keys)
            };
            whole.with_any("oneOf", forms.iter().map(form).collect())
        }
    };
    match table.definition {
        Some(name) => whole.defined(name),
        None => whole,
    }
}

/// Adds the members of a map from names to values of one kind.
fn with_names(
    map: JsonSchema,
    names: &JsonSchema,
    tables: &BTreeMap<String, Table>,
    path: &str,
    keys: &[Keys],
) -> JsonSchema {
    let members = keys.iter().flat_map(|keys| schemas(tables, path, keys));
    let map = members.fold(map, |map, (_, member)| {
        map.with_schema("additionalProperties", member)
    });
    // Any text is a name where nothing else is said.
    if *names == JsonSchema::of("string") {
        map
    } else {
        map.with_schema("propertyNames", names.clone())
    }
}

/// Adds the keys of a table.
fn with_keys(
    table: JsonSchema,
    tables: &BTreeMap<String, Table>,
    path: &str,
    keys: &Keys,
) -> JsonSchema {
    let table = table
        .with_named("properties", schemas(tables, path, keys))
        .with("additionalProperties", false);
    if keys.required.is_empty() {
        table
    } else {
        table.with("required", keys.required.clone())
    }
}

fn schemas(
    tables: &BTreeMap<String, Table>,
    path: &str,
    keys: &Keys,
) -> Vec<(&'static str, JsonSchema)> {
    let one = |(key, leaf): &(&'static str, Option<JsonSchema>)| match leaf {
        Some(leaf) => (*key, leaf.clone()),
        None => (*key, schema(tables, &dotted(path, key))),
    };
    keys.schemas.iter().map(one).collect()
}

/// The key of the member `name` of the table `path`.
pub(super) fn dotted(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    }
}

//! Conversion between manifests and declared objects.
//!
//! The same reader reads files and rows. Not here: the keys of an object (`reader`).

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde_json::Value as Json;

use super::{
    interpolation::{files, is_closed, resolve},
    reader::{self, Manifest},
    table::{Fields, Findings},
};
use crate::base::{self, ContentDigest, content_digest};
use crate::config::{Format, Mistake, Node, Value, Wrong, reader::syntax_mistakes};
use crate::declare::{Declared, Document, Kind, Object, ObjectName, PLACE};

impl Object {
    /// The object as a document in the manifest's syntax, including secrets.
    pub(crate) fn tree(&self) -> Node {
        Node::new(PLACE, Value::Map(self.node()))
    }

    fn node(&self) -> Vec<(String, Node)> {
        let members = self.spec.iter().chain(&self.secret.0);
        members
            .map(|(key, value)| (key.clone(), of_json(value)))
            .collect()
    }
}

impl Declared {
    /// The objects that a manifest without mistakes declares.
    ///
    /// `${env:…}` and `${file:…}` are resolved; `${prepared}` and `$$` stay.
    fn of_tree(tree: &Node, env: &BTreeMap<String, String>) -> Result<Self, Vec<Mistake>> {
        let (mut objects, mut mistakes) = (BTreeMap::new(), Vec::new());
        let mut add = |name: ObjectName, members: Vec<(&str, &Node)>| {
            let key = name.key();
            let json = |(member, node): (&str, &Node)| {
                let key = format!("{key}.{member}");
                (member.to_owned(), to_json(node, env, &key, &mut mistakes))
            };
            let document = members.into_iter().map(json).collect();
            objects.insert(name.clone(), Object::new(name.kind(), document));
        };
        let tenants = members(tree)
            .into_iter()
            .filter(|(key, _)| *key == "tenants");
        for (tenant, node) in tenants.flat_map(|(_, node)| members(node)) {
            let kind_of = |key: &str| Kind::ALL[1..].iter().find(|kind| kind.plural() == key);
            let (lists, own): (Vec<_>, Vec<_>) = members(node)
                .into_iter()
                .partition(|(key, _)| kind_of(key).is_some());
            add(ObjectName::tenant(tenant), own);
            for (key, list) in lists {
                for (name, node) in members(list) {
                    let kind = *kind_of(key).expect("lists are those with a kind");
                    add(ObjectName::of(tenant, kind, name), members(node));
                }
            }
        }
        if mistakes.is_empty() {
            Ok(Self(objects))
        } else {
            Err(mistakes)
        }
    }

    /// Builds an equal manifest, with the reader of files.
    ///
    /// # Errors
    ///
    /// Every mistake. References to the environment or to files are among them, because the author
    /// of the objects may have no access to this process's.
    pub(crate) fn manifest(&self) -> Result<Manifest, Vec<Mistake>> {
        let open: Vec<Mistake> = self.0.iter().flat_map(reference_mistakes).collect();
        if !open.is_empty() {
            return Err(open);
        }
        let mut manifest = reader::stored(self.tenants())?;
        manifest.usage = self.usage();
        Ok(manifest)
    }

    /// The whole manifest as JSON, including secrets, to be sent to a gateway.
    pub(crate) fn json(&self) -> Json {
        // No references are left, so none is resolved and none can fail.
        to_json(&self.tree(), &BTreeMap::new(), "", &mut Vec::new())
    }

    fn tree(&self) -> Node {
        let node = |value: Value| Node::new(PLACE, value);
        node(Value::Map(vec![
            ("version".to_owned(), node(Value::Whole(1))),
            ("tenants".to_owned(), node(Value::Map(self.tenants()))),
        ]))
    }

    /// Each tenant with the lists of its objects, as in a manifest.
    fn tenants(&self) -> Vec<(String, Node)> {
        let node = |value: Value| Node::new(PLACE, value);
        // An object follows its tenant, so it belongs to the last tenant, or to a new one.
        let mut tenants: Vec<(String, Vec<(String, Node)>)> = Vec::new();
        for (name, object) in &self.0 {
            if name.kind() == Kind::Tenant {
                tenants.push((name.name().to_owned(), object.node()));
                continue;
            }
            let own = tenants.last_mut();
            let Some((_, members)) = own.filter(|(tenant, _)| name.owner() == Some(tenant)) else {
                continue;
            };
            let member = (name.name().to_owned(), node(Value::Map(object.node())));
            match members.last_mut() {
                Some((
                    list,
                    Node {
                        value: Value::Map(inner),
                        ..
                    },
                )) if list == name.kind().plural() => {
                    inner.push(member);
                }
                _ => {
                    let list = node(Value::Map(vec![member]));
                    members.push((name.kind().plural().to_owned(), list));
                }
            }
        }
        let tenant = |(name, members)| (name, node(Value::Map(members)));
        tenants.into_iter().map(tenant).collect()
    }
}

/// A manifest in both forms: checked, and as single objects.
#[derive(Debug)]
pub(crate) struct Declaration {
    /// The checked manifest, with the places of its keys.
    pub(crate) manifest: Manifest,
    /// Its objects, with all references resolved.
    pub(crate) declared: Declared,
    /// The files that `${file:…}` refers to, each with its content just before it was read.
    pub(crate) files: BTreeMap<PathBuf, ContentDigest>,
}

/// Loads a manifest from a file, in the format of its extension.
pub(crate) fn load(
    path: &Path,
    env: &BTreeMap<String, String>,
) -> Result<Declaration, Vec<Mistake>> {
    let file = path.display().to_string();
    let refuse =
        |what: String, remedy: &str| Err(vec![Wrong::new(what, remedy).at(&file, "--apply")]);
    let Some(format) = Format::of(path) else {
        let remedy = "name it .yaml, .yml, .toml or .json";
        return refuse("its ending names no format".to_owned(), remedy);
    };
    match base::text(path, base::MANIFEST_MAX) {
        Ok(text) => parse(&file, &text, format, env),
        Err(error) => refuse(format!("cannot be read: {error}"), "name a readable file"),
    }
}

/// Parses the manifest `text`, the content of `file`.
pub(crate) fn parse(
    file: &str,
    text: &str,
    format: Format,
    env: &BTreeMap<String, String>,
) -> Result<Declaration, Vec<Mistake>> {
    let (tree, errors) = format.parse(file, text);
    let mut files = BTreeMap::new();
    if let Some(tree) = &tree {
        referenced_files(tree, &mut files);
    }
    let mut manifest = reader::read(tree.as_ref(), syntax_mistakes(file, errors), env)?;
    let declared = tree.map(|tree| Declared::of_tree(&tree, env)).transpose()?;
    let declared = declared.unwrap_or_default();
    manifest.usage = declared.usage();
    Ok(Declaration {
        manifest,
        files,
        declared,
    })
}

/// Parses the manifest `text` of a request. References to the environment or to files are mistakes,
/// because they would be the gateway's.
pub(crate) fn parse_request(
    file: &str,
    text: &str,
    format: Format,
) -> Result<Declaration, Vec<Mistake>> {
    let mut open = Vec::new();
    if let Some(tree) = format.parse(file, text).0 {
        find_references(&tree, "", &mut open);
    }
    if !open.is_empty() {
        return Err(open);
    }
    parse(file, text, format, &BTreeMap::new())
}

/// Parses the document of one object and resolves its references. Its recipient checks the keys.
pub(crate) fn document(
    file: &str,
    text: &str,
    format: Format,
    env: &BTreeMap<String, String>,
) -> Result<Document, Vec<Mistake>> {
    let (tree, errors) = format.parse(file, text);
    let findings = Findings::from(syntax_mistakes(file, errors));
    let mut document = Document::new();
    let mut open = Vec::new();
    if let Some(tree) = &tree {
        let fields = Fields::of(tree, "", &findings);
        for (member, node) in fields.members() {
            let json = to_json(node, env, member, &mut open);
            document.insert(member.to_owned(), json);
        }
    }
    for mistake in open {
        findings.add(mistake);
    }
    findings.result(document)
}

fn members(node: &Node) -> Vec<(&str, &Node)> {
    let Value::Map(entries) = &node.value else {
        return Vec::new();
    };
    let named = entries.iter().map(|(key, node)| (key.as_str(), node));
    named.collect()
}

/// Converts a tree to JSON, and resolves `${env:…}` and `${file:…}`.
fn to_json(
    node: &Node,
    env: &BTreeMap<String, String>,
    key: &str,
    mistakes: &mut Vec<Mistake>,
) -> Json {
    match &node.value {
        // No key accepts such a value, so the manifest has a mistake.
        Value::Nothing | Value::Other(_) => Json::Null,
        Value::Flag(flag) => (*flag).into(),
        Value::Whole(whole) => (*whole).into(),
        Value::Text(text) => match resolve(text, env) {
            Ok(text) => text.into(),
            Err(wrong) => {
                mistakes.push(wrong.at(&node.place, key));
                Json::Null
            }
        },
        Value::List(items) => {
            let items = items.iter().map(|item| to_json(item, env, key, mistakes));
            Json::Array(items.collect())
        }
        Value::Map(entries) => {
            let member = |(name, node): &(String, Node)| {
                let key = format!("{key}.{name}");
                (name.clone(), to_json(node, env, &key, mistakes))
            };
            Json::Object(entries.iter().map(member).collect())
        }
    }
}

fn of_json(json: &Json) -> Node {
    let value = match json {
        Json::Null => Value::Nothing,
        Json::Bool(flag) => Value::Flag(*flag),
        Json::Number(number) => Value::of_number(number),
        Json::String(text) => Value::Text(text.clone()),
        Json::Array(items) => Value::List(items.iter().map(of_json).collect()),
        Json::Object(members) => {
            let member = |(key, json): (&String, &Json)| (key.clone(), of_json(json));
            Value::Map(members.iter().map(member).collect())
        }
    };
    Node::new(PLACE, value)
}

fn referenced_files(node: &Node, found: &mut BTreeMap<PathBuf, ContentDigest>) {
    match &node.value {
        Value::Text(text) => {
            found.extend(files(text).map(|file| (file.to_owned(), content_digest(file))));
        }
        Value::List(items) => items.iter().for_each(|item| referenced_files(item, found)),
        Value::Map(entries) => {
            let nodes = entries.iter().map(|(_, node)| node);
            nodes.for_each(|node| referenced_files(node, found));
        }
        _ => {}
    }
}

fn find_references(node: &Node, key: &str, found: &mut Vec<Mistake>) {
    match &node.value {
        Value::Text(text) if !is_closed(text) => {
            found.push(reference_mistake().at(&node.place, key));
        }
        Value::List(items) => items
            .iter()
            .for_each(|item| find_references(item, key, found)),
        Value::Map(entries) => entries.iter().for_each(|(name, node)| {
            let dot = if key.is_empty() { "" } else { "." };
            find_references(node, &format!("{key}{dot}{name}"), found);
        }),
        _ => {}
    }
}

fn reference_mistake() -> Wrong {
    let what = "names a variable or a file, which only its author's side can put in";
    Wrong::new(what, "write the value itself, or use lockgate apply")
}

/// The mistakes of an object with references to the environment or files of its reader.
fn reference_mistakes((name, object): (&ObjectName, &Object)) -> Vec<Mistake> {
    fn walk(json: &Json, key: &str, found: &mut Vec<Mistake>) {
        match json {
            Json::String(text) if !is_closed(text) => {
                found.push(reference_mistake().at(PLACE, key));
            }
            Json::Array(items) => items.iter().for_each(|item| walk(item, key, found)),
            Json::Object(members) => members
                .iter()
                .for_each(|(member, json)| walk(json, &format!("{key}.{member}"), found)),
            _ => {}
        }
    }
    let (key, mut found) = (name.key(), Vec::new());
    for (member, json) in object.spec.iter().chain(&object.secret.0) {
        walk(json, &format!("{key}.{member}"), &mut found);
    }
    found
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::objects::*;

    fn env() -> BTreeMap<String, String> {
        BTreeMap::from([("TOKEN".to_owned(), "s$3cret".to_owned())])
    }

    #[test]
    fn a_mistake_in_the_whole_document_names_something() {
        for text in ["", "5", "[]"] {
            let said = yaml(text).unwrap_err()[0].to_string();
            assert!(said.starts_with("F:1: document: "), "{said}");
        }
        let said = load(Path::new("/nonexistent/x.yaml"), &env()).unwrap_err();
        let said = said[0].to_string();
        assert!(
            said.starts_with("/nonexistent/x.yaml: --apply: cannot be read"),
            "{said}"
        );
    }

    fn yaml(text: &str) -> Result<Declaration, Vec<Mistake>> {
        parse("F", text, Format::Yaml, &env())
    }

    const FULL: &str = r#"
version: 1
tenants:
  acme:
    auth: {mode: none}
    default_server: files
    servers:
      files:
        command: npx
        args: ["-y", "$${HOME}", "${prepared}/x"]
        prepare: [cp, x, "${prepared}"]
        env: {TOKEN: "a ${env:TOKEN}", EMPTY: ""}
        clocks: {stop: [1s, 0s]}
        limits: {files: 64}
        sandbox: {required: false}
  b: {auth: {mode: none}}
"#;

    #[test]
    fn rows_say_the_same_as_the_file() {
        let Declaration {
            manifest, declared, ..
        } = yaml(FULL).unwrap();
        let names: Vec<String> = declared.0.keys().map(ToString::to_string).collect();
        assert_eq!(names, ["tenant acme", "server acme/files", "tenant b"]);
        let read = declared.manifest().unwrap();
        let (_, wanted) = manifest.catalog.find("acme", "files").unwrap();
        let (_, found) = read.catalog.find("acme", "files").unwrap();
        assert_eq!(format!("{wanted:?}"), format!("{found:?}"));
        assert_eq!(found.launch.env["TOKEN"], "a s$3cret");
        assert_eq!(found.launch.digest(), wanted.launch.digest());
        let acme = &read.catalog.tenants["acme"];
        assert_eq!(acme.default_server.as_deref(), Some("files"));
        assert!(read.catalog.tenants["b"].servers.is_empty());
    }

    #[test]
    fn secrets_stand_apart_and_are_not_shown() {
        let declared = yaml(FULL).unwrap().declared;
        let server = &declared.0[&ObjectName::of("acme", Kind::Server, "files")];
        assert!(!server.spec.contains_key("env"));
        assert_eq!(server.secret.0["env"]["TOKEN"], "a s$$3cret");
        assert!(!format!("{declared:?}").contains("3cret"));
    }

    #[test]
    fn what_others_wrote_does_not_read_our_environment_or_files() {
        let document = |arg: &str| {
            let json = serde_json::json!({"command": "cat", "args": [arg]});
            let Json::Object(document) = json else {
                panic!()
            };
            Object::new(Kind::Server, document)
        };
        let with = |arg: &str| {
            let mut declared = yaml(FULL).unwrap().declared;
            let name = ObjectName::of("acme", Kind::Server, "x");
            declared.0.insert(name, document(arg));
            declared.manifest().map(drop).map_err(|found| found.len())
        };
        assert_eq!(with("${env:TOKEN}"), Err(1));
        assert_eq!(with("a${file:/etc/passwd}"), Err(1));
        assert_eq!(with("$${env:TOKEN}"), Ok(()));
        assert_eq!(with("$$${env:TOKEN}"), Err(1));
        assert_eq!(with("$"), Err(1));
    }

    /// What was put in, by a reference or a flag, had each `$` twice in texts that are read without references.
    #[test]
    fn a_dollar_is_the_same_in_every_text() {
        let text = "tenants:\n  a:\n    auth: {mode: none}\n    servers:\n      x:\n        command: cat\n        args: [a$$b]\n        sandbox: {read: [/a$$b, /a$b, '/${env:A}']}\n";
        let env = BTreeMap::from([("A".to_owned(), "a$b".to_owned())]);
        let read = parse("F", text, Format::Yaml, &env).unwrap();
        let stored = read.declared.manifest().unwrap();
        let (_, server) = stored.catalog.find("a", "x").unwrap();
        assert_eq!(server.launch.args, ["a$b"]);
        let read = &server.launch.confinement.read;
        assert_eq!(*read, ["/a$b"; 3].map(PathBuf::from));
    }

    #[test]
    fn a_manifest_that_was_sent_names_nothing_of_ours() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("secret");
        fs::write(&file, "s3cret").unwrap();
        let text = format!(
            "tenants:\n  a:\n    auth: {{mode: none}}\n    servers:\n      x:\n        command: cat\n        args: [\"${{file:{}}}\"]\n        env: {{A: \"${{env:PATH}}\"}}\n",
            file.display()
        );
        assert!(yaml(&text).is_err(), "no PATH in this environment");
        let found = parse_request("F", &text, Format::Yaml).unwrap_err();
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        insta::assert_snapshot!(found.join("\n"), @r"
        F:7: tenants.a.servers.x.args: names a variable or a file, which only its author's side can put in; write the value itself, or use lockgate apply
        F:8: tenants.a.servers.x.env.A: names a variable or a file, which only its author's side can put in; write the value itself, or use lockgate apply
        ");
    }

    #[test]
    fn what_is_sent_is_received_as_it_was() {
        let declared = yaml(FULL).unwrap().declared;
        let sent = declared.json().to_string();
        let parse_request = parse_request("F", &sent, Format::Json).unwrap().declared;
        assert_eq!(parse_request, declared);
    }

    #[test]
    fn files_are_read_by_their_ending() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.yml");
        fs::write(&path, FULL).unwrap();
        assert!(load(&path, &env()).is_ok());
        assert!(load(&dir.path().join("m.txt"), &env()).is_err());
        assert!(load(&dir.path().join("missing.yaml"), &env()).is_err());
        assert!(yaml("").is_err());
    }

    #[test]
    fn a_document_is_read_where_it_is_written() {
        let env = BTreeMap::from([("TOKEN".to_owned(), "a$b".to_owned())]);
        let read = |text| document("F", text, Format::Yaml, &env);
        let found = read("command: x\nenv: {T: \"${env:TOKEN}\"}\n").unwrap();
        // In the manifest's syntax a dollar sign is doubled.
        assert_eq!(found["env"]["T"], "a$$b");
        let lines = |text| {
            let found = read(text).unwrap_err();
            found.iter().map(Mistake::to_string).collect::<Vec<_>>()
        };
        let unset = lines("command: x\nargs: [\"${env:NO}\"]\n");
        assert!(unset[0].starts_with("F:2: args: "), "{unset:?}");
        assert!(lines("[1]")[0].starts_with("F:1: document: "));
        assert!(lines("a: 1\na: 2\n")[0].starts_with("F:2: a: "));
    }
}

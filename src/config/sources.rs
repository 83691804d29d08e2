//! The sources of the configuration, merged: defaults, file, environment, flags.
//!
//! The known keys are those of `config.default.toml`, which contains all. Not here: the meaning of
//! values (`gateway`).

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use super::{
    document::{Format, Node, Value, key_path},
    reader::{Mistake, Wrong, syntax_mistakes, unknown_key},
};
use crate::base::{self, ContentDigest, content_digest};

/// The merged value of every key, and the mistakes so far.
pub(crate) struct Layers {
    /// Keys of the one server of `run`, from flags, in order.
    pub(crate) server: Vec<Override>,
    /// The mistakes so far.
    pub(crate) mistakes: Vec<Mistake>,
    /// This is `lockgate run`.
    pub(crate) run: bool,
    /// The files of keys that a variable with `_FILE` sets.
    pub(crate) files: BTreeMap<String, SettingFile>,
    leaves: BTreeMap<String, Node>,
    defaults: BTreeMap<String, Node>,
}

impl Layers {
    /// The defaults only.
    pub(crate) fn new(run: bool) -> Self {
        let (tree, errors) = Format::Toml.parse(DEFAULT_PLACE, DEFAULTS);
        let mut defaults = BTreeMap::new();
        if let Some(tree) = tree.filter(|_| errors.is_empty()) {
            flatten("", tree, &mut defaults);
        }
        if run {
            for (key, value) in RUN_DEFAULTS {
                let node = Node::new(DEFAULT_PLACE, Value::Text(value.to_owned()));
                defaults.insert(key.to_owned(), node);
            }
        }
        let (server, mistakes) = (Vec::new(), Vec::new());
        Self {
            files: BTreeMap::new(),
            leaves: defaults.clone(),
            defaults,
            server,
            mistakes,
            run,
        }
    }

    /// Merges a TOML file.
    pub(crate) fn add_file(&mut self, path: &Path) {
        let file = path.display().to_string();
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) => {
                let wrong = Wrong::new(
                    format!("cannot be read: {error}"),
                    "name a readable TOML file, or none",
                );
                return self.mistakes.push(wrong.at(&file, "--config"));
            }
        };
        let (tree, errors) = Format::Toml.parse(&file, &text);
        self.mistakes.extend(syntax_mistakes(&file, errors));
        if let Some(Node {
            value: Value::Map(entries),
            ..
        }) = tree
        {
            for (key, node) in entries {
                self.add(&key, node);
            }
        }
    }

    /// Merges the environment variables of keys.
    pub(crate) fn add_env(&mut self, env: &BTreeMap<String, String>) {
        if let Some(filter) = env.get("RUST_LOG").filter(|filter| !filter.is_empty()) {
            self.add("telemetry.log", text_node("RUST_LOG", filter));
        }
        let variables: BTreeMap<String, String> = self
            .keys()
            .map(|key| (variable(key), key.to_owned()))
            .collect();
        for (name, value) in env.iter().filter(|(name, _)| name.starts_with(PREFIX)) {
            let base = name.strip_suffix("_FILE").unwrap_or(name);
            let elsewhere = [&READ_ELSEWHERE[..], &FILES_ELSEWHERE].concat();
            if elsewhere.contains(&&name[PREFIX.len()..]) {
                continue;
            }
            if let Some(key) = variables.get(name) {
                self.add(key, Node::from_word(name, value));
            } else if let Some(key) = variables.get(base) {
                if env.get(base).is_some_and(|value| !value.is_empty()) {
                    self.mistakes.push(twice(base).at(name, key));
                }
                self.add_secret(name, key, value);
            } else if !is_service_link(name, value) {
                let elsewhere = READ_ELSEWHERE.map(|other| format!("{PREFIX}{other}"));
                let known = variables.keys().chain(&elsewhere).map(String::as_str);
                let mut wrong = unknown_key(base, known);
                "unknown variable".clone_into(&mut wrong.what);
                if wrong.remedy.starts_with("known") {
                    wrong.remedy = format!("unset it; {SEE_DEFAULTS}");
                }
                self.mistakes.push(wrong.at(name, &dotted(base)));
            }
        }
    }

    fn add_secret(&mut self, variable: &str, key: &str, path: &str) {
        let file = SettingFile::now(path);
        match file_node(variable, path) {
            Ok(node) => {
                self.add(key, node);
                self.files.insert(key.to_owned(), file);
            }
            Err(wrong) => self.mistakes.push(wrong.at(variable, key)),
        }
    }

    /// Merges one `--set KEY=VALUE`.
    pub(crate) fn add_set(&mut self, set: &str) {
        let split = set.split_once('=');
        let path = split.and_then(|(key, _)| key_path(key.trim()));
        let (Some((_, value)), Some(path)) = (split, path) else {
            let wrong = Wrong::new("is no KEY=VALUE", "write --set http.listen=127.0.0.1:8080");
            return self.mistakes.push(wrong.at("--set", set));
        };
        let value = Node::from_word("--set", value);
        match path.split_first() {
            Some((first, rest)) if first == "server" && self.run => {
                self.server.push(Override {
                    path: rest.to_vec(),
                    value,
                });
            }
            Some((first, _)) if first == "server" => {
                let remedy = "write it into the manifest (--apply)";
                let wrong = Wrong::new("a server's key, which only run takes", remedy);
                self.mistakes.push(wrong.at("--set", &path.join(".")));
            }
            _ => self.add(&path.join("."), value),
        }
    }

    fn keys(&self) -> impl Iterator<Item = &str> + Clone {
        self.defaults.keys().map(String::as_str)
    }

    /// Merges a value, or a table of values.
    pub(crate) fn add(&mut self, key: &str, node: Node) {
        if self.defaults.contains_key(key) {
            self.files.remove(key);
            self.leaves.insert(key.to_owned(), node);
            return;
        }
        let inside = format!("{key}.");
        if !self.keys().any(|known| known.starts_with(&inside)) {
            let mut wrong = unknown_key(key, self.keys());
            if wrong.remedy.starts_with("known") {
                SEE_DEFAULTS.clone_into(&mut wrong.remedy);
            }
            return self.mistakes.push(wrong.at(&node.place, key));
        }
        let kind = node.kind();
        let Value::Map(entries) = node.value else {
            let members: Vec<&str> = self
                .keys()
                .filter_map(|known| known.strip_prefix(&inside))
                .collect();
            let remedy = format!("its keys are {}", members.join(", "));
            let wrong = Wrong::new(format!("{kind} where a table is expected"), remedy);
            return self.mistakes.push(wrong.at(&node.place, key));
        };
        for (name, member) in entries {
            self.add(&format!("{inside}{name}"), member);
        }
    }

    /// The value of a key as `parse` reads it; its default after a mistake.
    pub(crate) fn leaf<T>(&mut self, key: &str, parse: impl Fn(&Node) -> Result<T, Wrong>) -> T {
        let node = self.leaves.get(key).expect("every key has a default");
        match parse(node) {
            Ok(value) => value,
            Err(wrong) => {
                self.mistakes.push(wrong.at(&node.place, key));
                parse(&self.defaults[key]).expect("a test reads every default")
            }
        }
    }

    /// The places of all keys that are set.
    pub(crate) fn written(&self) -> BTreeMap<String, String> {
        let places = self.leaves.iter().map(|(key, node)| (key, &node.place));
        let written = places.filter(|(_, place)| *place != DEFAULT_PLACE);
        written
            .map(|(key, place)| (key.clone(), place.clone()))
            .collect()
    }

    /// Reports whether a key has its default.
    pub(crate) fn is_default(&self, key: &str) -> bool {
        self.leaves
            .get(key)
            .is_none_or(|node| node.place == DEFAULT_PLACE)
    }

    /// Adds a mistake in the value of a key, at its place.
    pub(crate) fn mistake(&mut self, key: &str, what: &str, remedy: &str) {
        let place = self
            .leaves
            .get(key)
            .map_or(DEFAULT_PLACE, |node| node.place.as_str());
        self.mistakes.push(Wrong::new(what, remedy).at(place, key));
    }
}

/// A key of the one server of `run`, read together with the manifest.
#[derive(Clone, Debug)]
pub(crate) struct Override {
    /// The segments of its path behind `server.`.
    pub(crate) path: Vec<String>,
    /// Its value, with the flag as its place.
    pub(crate) value: Node,
}

fn flatten(path: &str, node: Node, leaves: &mut BTreeMap<String, Node>) {
    let Value::Map(entries) = node.value else {
        leaves.insert(
            path.to_owned(),
            Node {
                place: DEFAULT_PLACE.to_owned(),
                ..node
            },
        );
        return;
    };
    for (name, member) in entries {
        let key = if path.is_empty() {
            name
        } else {
            format!("{path}.{name}")
        };
        flatten(&key, member, leaves);
    }
}

/// A file that contains a setting.
#[derive(Clone, Debug)]
pub(crate) struct SettingFile {
    /// Its path.
    pub(crate) path: PathBuf,
    /// The content when the setting was read, or just before that.
    pub(crate) content: ContentDigest,
}

impl SettingFile {
    /// The file as it is before it is read.
    pub(super) fn now(path: &str) -> Self {
        let path = PathBuf::from(path);
        let content = content_digest(&path);
        Self { path, content }
    }
}

/// Reads the value of a key from its file.
pub(crate) fn file_node(variable: &str, path: &str) -> Result<Node, Wrong> {
    match base::text(Path::new(path), base::SETTING_MAX) {
        Ok(text) => Ok(Node::from_word(
            variable,
            text.trim_end_matches(['\r', '\n']),
        )),
        Err(error) => {
            let what = format!("{path:?} cannot be read: {error}");
            Err(Wrong::new(what, "name a readable file"))
        }
    }
}

fn text_node(place: &str, text: &str) -> Node {
    Node::new(place, Value::Text(text.to_owned()))
}

/// The mistake of a variable that is set together with its `_FILE` variant.
pub(crate) fn twice(variable: &str) -> Wrong {
    Wrong::new(
        format!("is set, and {variable} is too"),
        "unset one of them",
    )
}

/// Reports whether the kubelet sets the variable, as it does in every container of a namespace with
/// a Service named `lockgate…` (Kubernetes, "Service", "Environment variables").
///
/// No variable of the gateway has this form. A bare `…_PORT` must be a URL: with a number it is a
/// mistaken setting.
fn is_service_link(name: &str, value: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
    if name.contains("__") || !name.bytes().all(is_plain) {
        return false;
    }
    let name = name.strip_prefix("LOCKGATE").unwrap_or(name);
    let is_url = ["tcp://", "udp://", "sctp://"]
        .iter()
        .any(|scheme| value.starts_with(scheme));
    let parts = ["_PROTO", "_PORT", "_ADDR"]
        .iter()
        .find_map(|part| name.strip_suffix(part));
    let port = parts.unwrap_or(name);
    let port = ["_TCP", "_UDP", "_SCTP"]
        .iter()
        .find_map(|end| port.strip_suffix(end));
    let is_port = port
        .and_then(|port| port.rsplit_once('_'))
        .is_some_and(|(before, number)| before.ends_with("_PORT") && number.parse::<u16>().is_ok());
    let is_named = name
        .split_once("_SERVICE_PORT_")
        .is_some_and(|(_, port)| !port.is_empty());
    let is_whole = ["_SERVICE_HOST", "_SERVICE_PORT"]
        .iter()
        .any(|end| name.ends_with(end));
    is_whole || is_named || is_port || (is_url && name.ends_with("_PORT"))
}

fn variable(key: &str) -> String {
    format!("{PREFIX}{}", key.to_uppercase().replace('.', "__"))
}

fn dotted(variable: &str) -> String {
    variable
        .strip_prefix(PREFIX)
        .unwrap_or(variable)
        .to_lowercase()
        .replace("__", ".")
}

const DEFAULTS: &str = include_str!("config.default.toml");
const DEFAULT_PLACE: &str = "(default)";
/// The defaults that differ in `run`: it ends quickly, opens one port, and logs for people.
const RUN_DEFAULTS: [(&str, &str); 4] = [
    ("drain.timeout", "2s"),
    ("ops.listen", ""),
    ("sandbox.separation", "none"),
    ("telemetry.format", "short"),
];
const SEE_DEFAULTS: &str = "see config.default.toml for all keys";
const PREFIX: &str = "LOCKGATE_";
/// Variables that other parts read: flags and secrets, not keys of the configuration.
const READ_ELSEWHERE: [&str; 6] = [
    "CONFIG",
    "APPLY",
    "URL",
    "KEY",
    "ADMIN_KEY",
    "USER_PASSWORD",
];
/// Those of them that may be read from a file.
const FILES_ELSEWHERE: [&str; 3] = ["KEY_FILE", "ADMIN_KEY_FILE", "USER_PASSWORD_FILE"];

#[cfg(test)]
mod tests {
    use super::super::sources::*;

    #[test]
    fn links_to_services_are_no_settings_and_misspelt_ones_are_mistakes() {
        let mistakes = |name: &str, value: &str| {
            let mut layers = Layers::new(false);
            layers.add_env(&BTreeMap::from([(name.to_owned(), value.to_owned())]));
            layers.mistakes.len()
        };
        for (name, value) in [
            ("LOCKGATE_SERVICE_HOST", "10.0.0.1"),
            ("LOCKGATE_SERVICE_PORT", "8080"),
            ("LOCKGATE_SERVICE_PORT_HTTP", "8080"),
            ("LOCKGATE_PORT", "tcp://10.0.0.1:8080"),
            ("LOCKGATE_PORT_8080_TCP", "tcp://10.0.0.1:8080"),
            ("LOCKGATE_PORT_8080_TCP_PROTO", "tcp"),
            ("LOCKGATE_PORT_8080_TCP_PORT", "8080"),
            ("LOCKGATE_PORT_8080_SCTP_ADDR", "10.0.0.1"),
            ("LOCKGATE_OPS_SERVICE_HOST", "10.0.0.1"),
            ("LOCKGATE_OPS_2_PORT_53_UDP", "udp://10.0.0.1:53"),
            ("LOCKGATE_CONFIG", "/etc/lockgate.toml"),
            ("LOCKGATE_ADMIN_KEY_FILE", "/run/key"),
        ] {
            assert_eq!(mistakes(name, value), 0, "{name}");
        }
        for (name, value) in [
            ("LOCKGATE_HTTP_LISTEN", "127.0.0.1:1"),
            ("LOCKGATE_HTTP__PORT", "tcp://10.0.0.1:8080"),
            ("LOCKGATE_HTTP__SERVICE_HOST", "10.0.0.1"),
            ("LOCKGATE_PORT", "8080"),
            ("LOCKGATE_HTTP_PORT", "8080"),
            ("LOCKGATE_PORT_HTTP_TCP", "tcp://10.0.0.1:8080"),
            ("LOCKGATE_PORT_8080_TLS", "8080"),
            ("LOCKGATE_8080_TCP_ADDR", "10.0.0.1"),
            ("LOCKGATE_SERVICE_PORT_", "8080"),
            ("LOCKGATE_SERVICE_HOSTS", "10.0.0.1"),
            ("LOCKGATE_SERVICE_PORT_http", "8080"),
            ("LOCKGATE_CONFIG_FILE", "/etc/lockgate.toml"),
            ("LOCKGATE_APPLY_FILE", "/etc/manifest.yaml"),
            ("LOCKGATE_URL_FILE", "/run/url"),
        ] {
            assert_eq!(mistakes(name, value), 1, "{name}");
        }
    }

    #[test]
    fn a_variable_and_its_file_are_not_both_read() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("url");
        fs::write(&file, "postgres://file/x\n").unwrap();
        let mistakes = |value: &str| {
            let mut layers = Layers::new(false);
            let pairs = [("", value), ("_FILE", file.to_str().unwrap())];
            let name = |end: &str| format!("LOCKGATE_SQL__URL{end}");
            let env = pairs.map(|(end, value)| (name(end), value.to_owned()));
            layers.add_env(&BTreeMap::from(env));
            layers
                .mistakes
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        };
        let twice = "LOCKGATE_SQL__URL_FILE: sql.url: is set, and LOCKGATE_SQL__URL is too; unset one of them";
        assert_eq!(mistakes("postgres://own/x"), [twice]);
        // Compose files pass an unset variable as an empty string.
        assert_eq!(mistakes(""), [""; 0]);
    }

    #[test]
    fn every_default_is_explained() {
        let keys = Layers::new(false).defaults.len();
        assert_eq!(keys, 81);
        let (_, errors) = Format::Toml.parse("F", DEFAULTS);
        assert!(errors.is_empty(), "{errors:?}");
    }
}

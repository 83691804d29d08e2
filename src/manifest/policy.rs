//! Reader of `policy`.

use std::collections::BTreeMap;

use crate::config::{Fields, Node, Wrong};
use crate::declare::{Names, Pattern, Policy, is_scope};

/// Reads the key `policy` of a server.
pub(super) fn policy(server: &Fields<'_>) -> Policy {
    let Some(fields) = server.inner("policy") else {
        return Policy::default();
    };
    fields.order(&["tools", "prompts", "resources"]);
    let mut scopes = Vec::new();
    for (tools, needed) in lists(&fields, "scopes", scope) {
        match Pattern::parse(tools.name) {
            Ok(pattern) => scopes.push((pattern, needed)),
            Err(wrong) => fields.wrong(&tools.key(), tools.place, wrong),
        }
    }
    let mut implies = BTreeMap::new();
    for (implying, implied) in lists(&fields, "implies", scope) {
        if let Err(wrong) = scope(implying.name) {
            fields.wrong(&implying.key(), implying.place, wrong);
        }
        implies.insert(implying.name.to_owned(), implied);
    }
    let read = Policy::new(
        names(&fields, "tools"),
        names(&fields, "prompts"),
        names(&fields, "resources"),
        scopes,
        &implies,
    );
    fields.end();
    read
}

/// A key that the operator chose, and its place.
struct Chosen<'n> {
    table: &'static str,
    name: &'n str,
    place: &'n str,
}

impl Chosen<'_> {
    /// Its dotted key below `policy`.
    fn key(&self) -> String {
        format!("{}.{}", self.table, self.name)
    }
}

/// The members of a table of lists.
fn lists<'n, T>(
    policy: &Fields<'n>,
    table: &'static str,
    item: fn(&str) -> Result<T, Wrong>,
) -> Vec<(Chosen<'n>, Vec<T>)> {
    let Some(members) = policy.inner(table) else {
        return Vec::new();
    };
    let mut read = Vec::new();
    for (name, node) in members.members() {
        let items = members.value(name, node, Vec::new(), |node| each(node, item));
        let place = &*node.place;
        read.push((Chosen { table, name, place }, items));
    }
    read
}

fn names(policy: &Fields<'_>, kind: &'static str) -> Names {
    let Some(fields) = policy.inner(kind) else {
        return Names::default();
    };
    let patterns = |node: &Node| each(node, Pattern::parse);
    let allow = fields.read("allow", None, |node| patterns(node).map(Some));
    let deny = fields.read("deny", Vec::new(), patterns);
    fields.end();
    Names::new(allow, deny)
}

fn each<T>(node: &Node, item: fn(&str) -> Result<T, Wrong>) -> Result<Vec<T>, Wrong> {
    let items = node.items()?;
    if items.len() > MAX_ENTRIES {
        let remedy = format!("write at most {MAX_ENTRIES}, with * where many begin alike");
        return Err(Wrong::new("has too many entries", remedy));
    }
    items.iter().map(|node| item(&node.text()?)).collect()
}

/// Parses a `scope-token` (RFC 6749, section 3.3), which is safe in a quoted string of a header.
fn scope(text: &str) -> Result<String, Wrong> {
    if is_scope(text) {
        return Ok(text.to_owned());
    }
    let remedy = "use visible ASCII characters except \" and \\";
    Err(Wrong::new(format!("{text:?} is no scope"), remedy))
}

/// Maximum entries of a list.
const MAX_ENTRIES: usize = 256;

#[cfg(test)]
impl Policy {
    /// The policy of a manifest with this `policy`.
    pub(crate) fn of(policy: &serde_json::Value) -> Self {
        let server = serde_json::json!({"command": "x", "policy": policy});
        let text = serde_json::json!({"version": 1, "tenants": {"a": {"auth": {"mode": "none"},
            "servers": {"s": server}}}});
        let env = BTreeMap::new();
        let format = crate::config::Format::Json;
        let manifest = crate::manifest::reader::parse("F", &text.to_string(), format, &env);
        let (_, server) = manifest.unwrap().catalog.find("a", "s").unwrap();
        Self::clone(&server.policy)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use crate::config::Format;
    use crate::manifest::reader;

    #[test]
    fn mistakes_name_their_place() {
        let text = r#"
version: 1
tenants:
  a:
    auth: {mode: none}
    servers:
      s:
        command: x
        policy:
          tools: {alow: ["*"], deny: [""]}
          prompts: 1
          scopes:
            "": [x]
            "a": ["b c"]
          implies: {"d\"": [e]}
"#;
        let read = reader::parse("F", text, Format::Yaml, &BTreeMap::new());
        let found: Vec<String> = read.unwrap_err().iter().map(ToString::to_string).collect();
        insta::assert_snapshot!(found.join("\n"), @r#"
        F:14: tenants.a.servers.s.policy.scopes.a: "b c" is no scope; use visible ASCII characters except " and \
        F:13: tenants.a.servers.s.policy.scopes.: "" matches nothing; write "*", or leave it out
        F:15: tenants.a.servers.s.policy.implies.d": "d\"" is no scope; use visible ASCII characters except " and \
        F:10: tenants.a.servers.s.policy.tools.alow: unknown key; did you mean allow?
        F:10: tenants.a.servers.s.policy.tools.deny: "" matches nothing; write "*", or leave it out
        F:11: tenants.a.servers.s.policy.prompts: a number where a table is expected; write a table
        "#);
    }
}

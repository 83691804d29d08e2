//! Reader of `policy`.

use std::collections::BTreeMap;

use crate::config::{Fields, Mistake, Node, Wrong};
use crate::declare::{Names, Pattern, Policy, is_scope};

/// Reads the key `policy` of a server.
pub(super) fn policy(server: &Fields<'_>, mistakes: &mut Vec<Mistake>) -> Policy {
    let Some(node) = server.member("policy") else {
        return Policy::default();
    };
    let known = ["tools", "prompts", "resources", "scopes", "implies"];
    let fields = Fields::of(node, &server.key("policy"), &known, mistakes);
    let mut scopes = Vec::new();
    for (tools, needed) in lists(&fields, "scopes", scope, mistakes) {
        match Pattern::parse(tools.name) {
            Ok(pattern) => scopes.push((pattern, needed)),
            Err(wrong) => mistakes.push(wrong.at(tools.place, &tools.key)),
        }
    }
    let mut implies = BTreeMap::new();
    for (implying, implied) in lists(&fields, "implies", scope, mistakes) {
        if let Err(wrong) = scope(implying.name) {
            mistakes.push(wrong.at(implying.place, &implying.key));
        }
        implies.insert(implying.name.to_owned(), implied);
    }
    Policy::new(
        names(&fields, "tools", mistakes),
        names(&fields, "prompts", mistakes),
        names(&fields, "resources", mistakes),
        scopes,
        &implies,
    )
}

/// A key that an operator chose, and where it stands.
struct Chosen<'n> {
    name: &'n str,
    place: &'n str,
    key: String,
}

/// The members of a table whose values are lists of texts.
fn lists<'n, T>(
    policy: &Fields<'n>,
    table: &str,
    item: fn(&str) -> Result<T, Wrong>,
    mistakes: &mut Vec<Mistake>,
) -> Vec<(Chosen<'n>, Vec<T>)> {
    let Some(node) = policy.member(table) else {
        return Vec::new();
    };
    let members = Fields::any(node, &policy.key(table), mistakes);
    let mut read = Vec::new();
    for (name, node) in members.members() {
        let items = members.read(name, Vec::new(), |node| each(node, item), mistakes);
        let (place, key) = (&*node.place, members.key(name));
        read.push((Chosen { name, place, key }, items));
    }
    read
}

fn names(policy: &Fields<'_>, kind: &str, mistakes: &mut Vec<Mistake>) -> Names {
    let Some(node) = policy.member(kind) else {
        return Names::default();
    };
    let fields = Fields::of(node, &policy.key(kind), &["allow", "deny"], mistakes);
    let patterns = |node: &Node| each(node, Pattern::parse);
    let allow = fields.read("allow", None, |node| patterns(node).map(Some), mistakes);
    let deny = fields.read("deny", Vec::new(), patterns, mistakes);
    Names::new(allow, deny)
}

fn each<T>(node: &Node, item: fn(&str) -> Result<T, Wrong>) -> Result<Vec<T>, Wrong> {
    let items = node.items()?;
    if items.len() > MOST {
        let remedy = format!("write at most {MOST}, with * where many begin alike");
        return Err(Wrong::new("has too many entries", remedy));
    }
    items.iter().map(|node| item(&node.text()?)).collect()
}

/// RFC 6749, section 3.3: `scope-token`. What stands in a header must not end a quoted string.
fn scope(text: &str) -> Result<String, Wrong> {
    if is_scope(text) {
        return Ok(text.to_owned());
    }
    let remedy = "use visible ASCII characters except \" and \\";
    Err(Wrong::new(format!("{text:?} is no scope"), remedy))
}

/// Entries of one list.
const MOST: usize = 256;

#[cfg(test)]
impl Policy {
    /// What a manifest with this `policy` reads.
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

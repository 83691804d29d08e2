//! What of a server its clients may use, and which scopes that takes, as an operator declared it.
//!
//! Not here: what of a message is judged by it (`auth/policy`).

use std::collections::{BTreeMap, BTreeSet};

use super::pattern::{Pattern, Template};
use crate::config::{Fields, Mistake, Node, Wrong};

/// What of a server may be used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Policy {
    /// Tools, by name.
    pub(crate) tools: Names,
    /// Prompts, by name.
    pub(crate) prompts: Names,
    /// Resources, by URI.
    pub(crate) resources: Names,
    /// Scopes that calls of tools need: every entry whose pattern matches counts.
    scopes: Vec<(Pattern, Vec<String>)>,
    /// By a scope, those that imply it, at whatever distance.
    implied_by: BTreeMap<String, BTreeSet<String>>,
}

/// Names that are allowed: those of `allow` that are not of `deny`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Names {
    /// None is `["*"]`.
    allow: Option<Vec<Pattern>>,
    deny: Vec<Pattern>,
}

impl Names {
    /// Whether every name is allowed, also one that cannot be read.
    pub(crate) fn is_open(&self) -> bool {
        let allow = self.allow.as_ref();
        self.deny.is_empty() && allow.is_none_or(|all| all.iter().any(Pattern::is_everything))
    }

    /// Whether this name is.
    pub(crate) fn allows(&self, name: &str) -> bool {
        if self.is_open() {
            return true;
        }
        let is_one = |patterns: &[Pattern]| patterns.iter().any(|pattern| pattern.matches(name));
        name.len() <= LONGEST_NAME
            && self.allow.as_deref().is_none_or(is_one)
            && !is_one(&self.deny)
    }

    /// Whether a URI of the template is: one that is allowed could be named.
    pub(crate) fn allows_template(&self, template: &str) -> bool {
        if self.is_open() {
            return true;
        }
        let Some(template) = Template::parse(template) else {
            return false;
        };
        let everything = [Pattern::parse("*").ok()];
        let allow: Vec<&Pattern> = match &self.allow {
            Some(allow) => allow.iter().collect(),
            None => everything.iter().flatten().collect(),
        };
        let mut examples = allow
            .iter()
            .filter_map(|pattern| pattern.example(&template));
        examples.any(|uri| self.allows(&uri))
    }
}

impl Policy {
    /// Whether it says anything about calls of tools beside their names.
    pub(crate) fn has_scopes(&self) -> bool {
        !self.scopes.is_empty()
    }

    /// The scopes that a call of this tool needs, in the order of their patterns.
    pub(crate) fn scopes_of<'p>(&'p self, tool: &'p str) -> impl Iterator<Item = &'p String> {
        let matching = self.scopes.iter().filter(|(tools, _)| tools.matches(tool));
        matching.flat_map(|(_, scopes)| scopes)
    }

    /// Every scope that a call of any tool may need.
    pub(crate) fn all_scopes(&self) -> BTreeSet<&String> {
        self.scopes.iter().flat_map(|(_, scopes)| scopes).collect()
    }

    /// Whether whoever has the scopes `has` has `needed`, by itself or by what implies it.
    pub(crate) fn covers(&self, has: &[String], needed: &str) -> bool {
        let implied_by = self.implied_by.get(needed);
        has.iter()
            .any(|scope| scope == needed || implied_by.is_some_and(|by| by.contains(scope)))
    }

    /// Reads the key `policy` of a server.
    pub(crate) fn read(server: &Fields<'_>, mistakes: &mut Vec<Mistake>) -> Self {
        let Some(node) = server.member("policy") else {
            return Self::default();
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
        Self {
            tools: names(&fields, "tools", mistakes),
            prompts: names(&fields, "prompts", mistakes),
            resources: names(&fields, "resources", mistakes),
            scopes,
            implied_by: implied_by(&implies),
        }
    }
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
    Names {
        allow: fields.read("allow", None, |node| patterns(node).map(Some), mistakes),
        deny: fields.read("deny", Vec::new(), patterns, mistakes),
    }
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

/// Whether a text is one `scope-token` (RFC 6749, section 3.3).
pub(crate) fn is_scope(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\';
    !text.is_empty() && text.bytes().all(fits)
}

/// Turns `implies` round and follows it: what implies a scope, at whatever distance.
fn implied_by(implies: &BTreeMap<String, Vec<String>>) -> BTreeMap<String, BTreeSet<String>> {
    let mut implied_by: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for scope in implies.keys() {
        let mut left = vec![scope];
        let mut seen = BTreeSet::new();
        while let Some(at) = left.pop() {
            for implied in implies.get(at).into_iter().flatten() {
                if seen.insert(implied) {
                    left.push(implied);
                }
            }
        }
        for implied in seen {
            let by = implied_by.entry(implied.clone()).or_default();
            by.insert(scope.clone());
        }
    }
    implied_by
}

/// Entries of one list.
const MOST: usize = 256;
/// Bytes of a name or URI that patterns are compared with; a longer one is not allowed where
/// anything is not.
const LONGEST_NAME: usize = 64 << 10;

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
    use serde_json::json;

    use super::super::policy::*;
    use crate::config::Format;
    use crate::manifest::reader;

    #[test]
    fn deny_wins_and_nothing_said_is_everything() {
        let policy = Policy::of(&json!({
            "tools": {"allow": ["read_*", "write_*"], "deny": ["*_secret"]},
            "prompts": {"deny": ["x"]},
            "resources": {"allow": []},
        }));
        for (name, expected) in [
            ("read_a", true),
            ("write_a", true),
            ("read_secret", false),
            ("Read_a", false),
            ("run", false),
        ] {
            assert_eq!(policy.tools.allows(name), expected, "{name}");
        }
        assert!(policy.prompts.allows("y") && !policy.prompts.allows("x"));
        assert!(!policy.resources.allows("a://b"));
        assert!(Names::default().is_open() && !policy.prompts.is_open());
        let open = Policy::of(&json!({"tools": {"allow": ["a", "*"]}, "resources": {}}));
        assert!(open.tools.is_open() && open.resources.is_open());
        let long = "x".repeat(LONGEST_NAME + 1);
        assert!(open.tools.allows(&long) && !policy.prompts.allows(&long));
    }

    #[test]
    fn a_template_is_shown_while_one_of_its_uris_is_allowed() {
        let of = |allow: &[&str], deny: &[&str]| {
            Policy::of(&json!({"resources": {"allow": allow, "deny": deny}})).resources
        };
        let table: [(&[&str], &[&str], &str, bool); 9] = [
            (&["*"], &[], "file:///{path}", true),
            (&["file:///pub/*"], &[], "file:///{path}", true),
            (&["file:///pub/*"], &[], "db://{table}", false),
            (&["file:///pub/*.md"], &[], "file:///pub/{name}.txt", false),
            (&["*"], &["file:///etc/*"], "file:///etc/{name}", false),
            (&["*"], &["file:///etc/*"], "file:///{name}", true),
            (&["file:*"], &["file:*"], "file:///{name}", false),
            (&["a*"], &["a*1"], "{x}1", false),
            (&[], &[], "{x}", false),
        ];
        for (allow, deny, template, expected) in table {
            let names = of(allow, deny);
            assert_eq!(
                names.allows_template(template),
                expected,
                "{allow:?} {deny:?} {template}"
            );
        }
        assert!(!of(&["x*"], &[]).allows_template(&format!("x{}", "y".repeat(2000))));
    }

    #[test]
    fn scopes_add_up_and_imply_each_other() {
        let policy = Policy::of(&json!({
            "scopes": {"delete_*": ["files:write", "files:delete"], "*_all": ["admin"]},
            "implies": {"admin": ["files:write"], "files:write": ["files:read"], "a": ["b"], "b": ["a"]},
        }));
        let needed: Vec<&String> = policy.scopes_of("delete_all").collect();
        assert_eq!(needed, ["admin", "files:write", "files:delete"]);
        assert_eq!(policy.scopes_of("read").count(), 0);
        let has = |scopes: &[&str], needed| {
            let scopes: Vec<String> = scopes.iter().map(|scope| (*scope).to_owned()).collect();
            policy.covers(&scopes, needed)
        };
        assert!(has(&["admin"], "files:read") && has(&["x", "files:read"], "files:read"));
        assert!(!has(&["files:read"], "files:write") && !has(&[], "admin"));
        assert!(has(&["a"], "b") && has(&["b"], "a"));
    }

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

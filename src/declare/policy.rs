//! Access policy of a server: allowed tools, prompts and resources, and the scopes they require.
//!
//! Not here: its application to messages (`auth/policy`).

use std::collections::{BTreeMap, BTreeSet};

use super::pattern::{Pattern, Template};

/// The access policy of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Policy {
    /// Tools, by name.
    pub(crate) tools: Names,
    /// Prompts, by name.
    pub(crate) prompts: Names,
    /// Resources, by URI.
    pub(crate) resources: Names,
    /// The scopes that calls of tools require: all entries with a matching pattern apply.
    scopes: Vec<(Pattern, Vec<String>)>,
    /// For each scope, the scopes that imply it, directly or indirectly.
    implied_by: BTreeMap<String, BTreeSet<String>>,
}

/// The allowed names: those that match `allow` and do not match `deny`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Names {
    /// None means `["*"]`.
    allow: Option<Vec<Pattern>>,
    deny: Vec<Pattern>,
}

impl Names {
    /// The names that match a pattern of `allow`, if given, and no pattern of `deny`.
    pub(crate) fn new(allow: Option<Vec<Pattern>>, deny: Vec<Pattern>) -> Self {
        Self { allow, deny }
    }

    /// Reports whether every name is allowed, even one that cannot be read.
    pub(crate) fn is_open(&self) -> bool {
        let allow = self.allow.as_ref();
        self.deny.is_empty() && allow.is_none_or(|all| all.iter().any(Pattern::is_everything))
    }

    /// Reports whether this name is allowed.
    pub(crate) fn allows(&self, name: &str) -> bool {
        if self.is_open() {
            return true;
        }
        if name.len() > MAX_NAME {
            return false;
        }
        let mut allow = self.allow.iter();
        allow.all(|allow| is_one(allow, name)) && !is_one(&self.deny, name)
    }

    /// Reports whether the template has an allowed URI, by a few examples of its URIs.
    pub(crate) fn allows_template(&self, template: &str) -> bool {
        if self.is_open() {
            return true;
        }
        let Some(template) = Template::parse(template) else {
            return false;
        };
        let allow = self.allow.iter().flatten();
        let mut meeting = allow.filter(|pattern| pattern.meets(&template));
        if self.deny.is_empty() {
            return meeting.next().is_some();
        }
        let mut examples = meeting
            .take(EXAMPLES)
            .flat_map(|pattern| pattern.examples(&template));
        template.fillings().iter().any(|uri| self.allows(uri))
            || examples.any(|uri| !is_one(&self.deny, &uri))
    }

    /// The number of patterns that a name is compared with.
    pub(crate) fn patterns(&self) -> usize {
        self.allow.as_ref().map_or(0, Vec::len) + self.deny.len()
    }
}

fn is_one(patterns: &[Pattern], name: &str) -> bool {
    patterns.iter().any(|pattern| pattern.matches(name))
}

impl Policy {
    /// A policy of names, scopes by tool patterns, and implied scopes by the implying scope.
    pub(crate) fn new(
        tools: Names,
        prompts: Names,
        resources: Names,
        scopes: Vec<(Pattern, Vec<String>)>,
        implies: &BTreeMap<String, Vec<String>>,
    ) -> Self {
        Self {
            tools,
            prompts,
            resources,
            scopes,
            implied_by: implied_by(implies),
        }
    }

    /// Reports whether lists show the same under `other`, whatever their calls require.
    pub(crate) fn shows_the_same(&self, other: &Self) -> bool {
        (&self.tools, &self.prompts, &self.resources)
            == (&other.tools, &other.prompts, &other.resources)
    }

    /// Reports whether every caller may use all that there is.
    pub(crate) fn is_open(&self) -> bool {
        let all = [&self.tools, &self.prompts, &self.resources];
        all.into_iter().all(Names::is_open) && !self.has_scopes()
    }

    /// Reports whether calls of tools may require scopes.
    pub(crate) fn has_scopes(&self) -> bool {
        !self.scopes.is_empty()
    }

    /// The scopes that a call of this tool requires, in the order of their patterns; all for a name that
    /// is too long to be matched.
    pub(crate) fn scopes_of<'p>(&'p self, tool: &'p str) -> impl Iterator<Item = &'p String> {
        let applies = |tools: &Pattern| tool.len() > MAX_NAME || tools.matches(tool);
        let matching = self.scopes.iter().filter(move |(tools, _)| applies(tools));
        matching.flat_map(|(_, scopes)| scopes)
    }

    /// Every scope that a call of any tool may require.
    pub(crate) fn all_scopes(&self) -> BTreeSet<&String> {
        self.scopes.iter().flat_map(|(_, scopes)| scopes).collect()
    }

    /// The scopes that a call of every tool requires.
    pub(crate) fn scopes_of_every_tool(&self) -> impl Iterator<Item = &String> {
        let of_every = self
            .scopes
            .iter()
            .filter(|(tools, _)| tools.is_everything());
        of_every.flat_map(|(_, scopes)| scopes)
    }

    /// Reports whether the scopes `has` include `needed`, or a scope that implies it.
    pub(crate) fn covers(&self, has: &[String], needed: &str) -> bool {
        let implied_by = self.implied_by.get(needed);
        has.iter()
            .any(|scope| scope == needed || implied_by.is_some_and(|by| by.contains(scope)))
    }
}

/// Reports whether a text is one `scope-token` (RFC 6749, section 3.3).
pub(crate) fn is_scope(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\';
    !text.is_empty() && text.bytes().all(fits)
}

/// Inverts `implies` transitively: for each scope, those that imply it.
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

/// Maximum bytes of a name or URI that is matched; a longer one is allowed only where everything
/// is. Senders and recipients of URIs should support 8,000 (RFC 9110, section 4.1).
const MAX_NAME: usize = 8 << 10;
/// Patterns of `allow` whose URIs of a template are compared with `deny`.
const EXAMPLES: usize = 16;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::policy::*;

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
        let long = "x".repeat(MAX_NAME + 1);
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
        let all: Vec<String> = (10..=10 + EXAMPLES).map(|at| format!("x:{at}/*")).collect();
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        for (tried, expected) in [(EXAMPLES, true), (EXAMPLES + 1, false)] {
            let names = of(&all[..tried], &all[..tried - 1]);
            assert_eq!(names.allows_template("x:{a}/b"), expected, "{tried}");
        }
    }

    #[test]
    fn a_long_list_of_long_templates_takes_a_moment() {
        let docs: Vec<String> = (0..40)
            .map(|at| format!("file:///public/*/docs/{at}/*.md"))
            .collect();
        let template = format!("file:///public/{}}}", &"{a}p".repeat(251)[..1000]);
        for policy in [
            json!({"resources": {"allow": docs}}),
            json!({"resources": {"allow": ["file:///public/*"], "deny": ["*/../*", "*p*"]}}),
        ] {
            let names = Policy::of(&policy).resources;
            let began = tokio::time::Instant::now();
            for _ in 0..500 {
                assert!(!names.allows_template(&template));
            }
            assert!(began.elapsed() < std::time::Duration::from_secs(2));
        }
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
        let long = "x".repeat(MAX_NAME + 1);
        assert_eq!(policy.scopes_of(&long).count(), 3);
        let has = |scopes: &[&str], needed| {
            let scopes: Vec<String> = scopes.iter().map(|scope| (*scope).to_owned()).collect();
            policy.covers(&scopes, needed)
        };
        assert!(has(&["admin"], "files:read") && has(&["x", "files:read"], "files:read"));
        assert!(!has(&["files:read"], "files:write") && !has(&[], "admin"));
        assert!(has(&["a"], "b") && has(&["b"], "a"));
    }
}

//! Access policy of a server: allowed tools, prompts and resources, the scopes they require, and what of it is for
//! which group.
//!
//! Not here: its application to messages (`auth/policy`), and who may have which scopes (`identity`).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    pattern::{Pattern, Template},
    subset::Subset,
};

/// The access policy of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Policy {
    /// Tools, by name.
    pub(crate) tools: Names,
    /// Prompts, by name.
    pub(crate) prompts: Names,
    /// Resources, by URI.
    pub(crate) resources: Names,
    /// The patterns of tools whose calls require scopes: all that match apply.
    scoped: Arc<[Pattern]>,
    /// The scopes that each of these patterns requires.
    scopes: Arc<[Vec<String>]>,
    /// For each scope, the scopes that imply it, directly or indirectly.
    implied_by: Arc<BTreeMap<String, BTreeSet<String>>>,
    /// The names of each group; none if they are the same for all callers.
    groups: Option<Arc<NamesByGroup>>,
}

/// What each group may use, by its name; [`EVERYBODY`] is a group that every caller is in.
pub(crate) type NamesByGroup = BTreeMap<String, GroupNames>;

/// What a group may use of that which the policy allows.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct GroupNames {
    /// Tools, by name.
    pub(crate) tools: Arc<Names>,
    /// Prompts, by name.
    pub(crate) prompts: Arc<Names>,
    /// Resources, by URI.
    pub(crate) resources: Arc<Names>,
}

/// The allowed names: those that match `allow` and do not match `deny`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Names {
    /// None means `["*"]`.
    allow: Option<Arc<[Pattern]>>,
    deny: Arc<[Pattern]>,
    /// Patterns of tools that are denied because the caller may not have a scope that they require.
    unreachable: Option<Subset<Pattern>>,
    /// One of these has to allow a name, too.
    within: Option<Vec<Arc<Self>>>,
}

impl Names {
    /// The names that match a pattern of `allow`, if given, and no pattern of `deny`.
    pub(crate) fn new(allow: Option<Vec<Pattern>>, deny: Vec<Pattern>) -> Self {
        Self {
            allow: allow.map(Into::into),
            deny: deny.into(),
            unreachable: None,
            within: None,
        }
    }

    /// Those of them that one of `all` allows.
    fn within(&self, all: impl Iterator<Item = Arc<Self>>) -> Self {
        Self {
            within: Some(all.collect()),
            ..self.clone()
        }
    }

    /// Reports whether every name is allowed, even one that cannot be read.
    pub(crate) fn is_open(&self) -> bool {
        self.has_no_patterns() && self.is_within(Self::is_open)
    }

    fn has_no_patterns(&self) -> bool {
        let allow = self.allow.as_ref();
        self.deny.is_empty()
            && self.unreachable.is_none()
            && allow.is_none_or(|all| all.iter().any(Pattern::is_everything))
    }

    /// Reports whether this name is allowed.
    pub(crate) fn allows(&self, name: &str) -> bool {
        if self.is_open() {
            return true;
        }
        if name.len() > MAX_NAME {
            return false;
        }
        let allow = self.allow.as_ref();
        allow.is_none_or(|allow| is_one(allow, name))
            && !is_one(&self.deny, name)
            && !self.unreachable().any(|tools| tools.matches(name))
            && self.is_within(|names| names.allows(name))
    }

    fn unreachable(&self) -> impl Iterator<Item = &Pattern> {
        self.unreachable.iter().flat_map(Subset::items)
    }

    fn is_within(&self, allows: impl Fn(&Self) -> bool) -> bool {
        let within = self.within.as_ref();
        within.is_none_or(|all| all.iter().any(|one| allows(one)))
    }

    /// Reports whether the template has an allowed URI, by a few examples of its URIs.
    pub(crate) fn allows_template(&self, template: &str) -> bool {
        if self.is_open() {
            return true;
        }
        if !self.is_within(|names| names.allows_template(template)) {
            return false;
        }
        if self.has_no_patterns() {
            return true;
        }
        let Some(template) = Template::parse(template) else {
            return false;
        };
        let allow = self.allow.iter().flat_map(|all| all.iter());
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
        let within = self.within.iter().flatten();
        let within: usize = within.map(|names| names.patterns()).sum();
        let allow = self.allow.as_ref().map_or(0, |all| all.len());
        allow + self.deny.len() + self.unreachable().count() + within
    }
}

fn is_one(patterns: &[Pattern], name: &str) -> bool {
    patterns.iter().any(|pattern| pattern.matches(name))
}

impl Policy {
    /// A policy of names, scopes by tool patterns, implied scopes by the implying scope, and names by group.
    pub(crate) fn new(
        tools: Names,
        prompts: Names,
        resources: Names,
        scopes: Vec<(Pattern, Vec<String>)>,
        implies: &BTreeMap<String, Vec<String>>,
        groups: Option<NamesByGroup>,
    ) -> Self {
        let (scoped, scopes): (Vec<_>, Vec<_>) = scopes.into_iter().unzip();
        Self {
            tools,
            prompts,
            resources,
            scoped: scoped.into(),
            scopes: scopes.into(),
            implied_by: Arc::new(implied_by(implies)),
            groups: groups.map(Arc::new),
        }
    }

    /// The policy for a caller in `groups` that may have these scopes: what one of its groups allows, without the tools
    /// that require a scope which it may not have. It shares all patterns with this one: each stream, call and session
    /// keeps the policy of its caller.
    pub(crate) fn of_caller(
        self: &Arc<Self>,
        groups: &[String],
        scopes: &AllowedScopes<'_>,
    ) -> Arc<Self> {
        let unreachable = self.unreachable(scopes);
        if self.groups.is_none() && unreachable.is_none() {
            return Arc::clone(self);
        }
        let mut narrowed = Self::clone(self);
        if let Some(by_group) = narrowed.groups.take() {
            let is_named = |group: &&String| by_group.contains_key(*group);
            let mut named: Vec<&String> = groups.iter().filter(is_named).collect();
            // Each counts once: a token may repeat a group any number of times.
            named.sort_unstable();
            named.dedup();
            let own = || named.iter().filter_map(|group| by_group.get(*group));
            let everybody = by_group.get(EVERYBODY);
            let of = |names: &Names, part: fn(&GroupNames) -> &Arc<Names>| {
                names.within(own().chain(everybody).map(|of| Arc::clone(part(of))))
            };
            narrowed.tools = of(&self.tools, |group| &group.tools);
            narrowed.prompts = of(&self.prompts, |group| &group.prompts);
            narrowed.resources = of(&self.resources, |group| &group.resources);
        }
        narrowed.tools.unreachable = unreachable;
        Arc::new(narrowed)
    }

    /// The patterns of tools that require a scope which a caller with these may not have, if there are any.
    fn unreachable(&self, scopes: &AllowedScopes<'_>) -> Option<Subset<Pattern>> {
        if *scopes == AllowedScopes::All {
            return None;
        }
        let out = self.scopes.iter().map(|needed| {
            let mut needed = needed.iter();
            needed.any(|scope| !scopes.include(self, scope))
        });
        let out = Subset::new(&self.scoped, out);
        let is_any = out.items().next().is_some();
        is_any.then_some(out)
    }

    /// Reports whether it differs by groups.
    pub(crate) fn has_groups(&self) -> bool {
        self.groups.is_some()
    }

    /// Reports whether it has names for this group.
    pub(crate) fn names_group(&self, group: &str) -> bool {
        let by_group = self.groups.as_ref();
        by_group.is_some_and(|by_group| by_group.contains_key(group))
    }

    /// The scopes that imply others.
    pub(crate) fn implying(&self) -> BTreeSet<&String> {
        self.implied_by.values().flatten().collect()
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
        let all = self.scoped.iter().zip(self.scopes.iter());
        let matching = all.filter(move |&(tools, _)| applies(tools));
        matching.flat_map(|(_, scopes)| scopes)
    }

    /// Every scope that a call of any tool may require.
    pub(crate) fn all_scopes(&self) -> BTreeSet<&String> {
        self.scopes.iter().flatten().collect()
    }

    /// The scopes that a call of every tool requires.
    pub(crate) fn scopes_of_every_tool(&self) -> impl Iterator<Item = &String> {
        let all = self.scoped.iter().zip(self.scopes.iter());
        let of_every = all.filter(|(tools, _)| tools.is_everything());
        of_every.flat_map(|(_, scopes)| scopes)
    }

    /// Reports whether the scopes `has` include `needed`, or a scope that implies it.
    pub(crate) fn covers(&self, has: &Subset<String>, needed: &str) -> bool {
        self.has_or_implies(needed, |wanted| has.items().any(|scope| scope == wanted))
    }

    /// Reports whether `has` holds for `needed`, or for a scope that implies it.
    pub(super) fn has_or_implies(&self, needed: &str, has: impl Fn(&str) -> bool) -> bool {
        let implied_by = self.implied_by.get(needed);
        has(needed) || implied_by.is_some_and(|by| by.iter().any(|scope| has(scope)))
    }
}

/// The scopes that a caller may have for a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AllowedScopes<'g> {
    /// Every scope.
    All,
    /// Those in any of the sets, and what they imply.
    Named(Vec<&'g BTreeSet<String>>),
}

impl AllowedScopes<'_> {
    /// Reports whether the caller may have `scope`, which `policy` may let others imply. `offline_access` gives access
    /// to nothing.
    pub(crate) fn include(&self, policy: &Policy, scope: &str) -> bool {
        match self {
            Self::All => true,
            Self::Named(sets) => {
                let has = |wanted: &str| sets.iter().any(|set| set.contains(wanted));
                scope == OFFLINE_ACCESS || policy.has_or_implies(scope, has)
            }
        }
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

/// Scope that requests a refresh token (OpenID Connect Core, section 11). Every client gets one, and
/// the scope is granted if it is requested.
pub(crate) const OFFLINE_ACCESS: &str = "offline_access";
/// The name of all callers among the groups of a policy.
pub(crate) const EVERYBODY: &str = "*";
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
    fn a_caller_may_use_what_one_of_its_groups_may() {
        let policy = Arc::new(Policy::of(&json!({
            "tools": {"deny": ["drop"]},
            "scopes": {"w*": ["write"], "a*": ["admin"]},
            "implies": {"admin": ["write"]},
            "groups": {"*": {"tools": {"allow": ["r*"]}, "resources": {"allow": ["pub:*"]}},
                "eng": {"tools": {"deny": ["admin"]}}, "ops": {"prompts": {"allow": []}}},
        })));
        let write = BTreeSet::from(["write".to_owned()]);
        let some = AllowedScopes::Named(vec![&write]);
        for (groups, scopes, tools) in [
            (&[][..], &AllowedScopes::All, "read"),
            (&["eng"], &AllowedScopes::All, "read write all"),
            (&["ops"], &AllowedScopes::All, "read write all admin"),
            (&["ops"], &some, "read write"),
            (&["other"], &some, "read"),
        ] {
            let groups: Vec<String> = groups.iter().map(|group| (*group).to_owned()).collect();
            let own = policy.of_caller(&groups, scopes);
            let all = ["read", "write", "all", "admin", "drop"].into_iter();
            let allowed: Vec<&str> = all.filter(|name| own.tools.allows(name)).collect();
            assert_eq!(allowed.join(" "), tools, "{groups:?}");
            let is_member = groups.iter().any(|group| group != "other");
            assert_eq!(own.resources.allows("priv:x"), is_member);
            assert_eq!(own.resources.allows_template("priv:{x}"), is_member);
            assert!(own.resources.allows("pub:x") && own.resources.allows_template("pub:{x}"));
            assert!(own.prompts.is_open(), "everybody has all prompts");
            assert!(!own.tools.is_open() && !own.has_groups());
            let is_named = groups.iter().any(|group| policy.names_group(group));
            assert_eq!(is_named, is_member, "{groups:?}");
        }
        let alike = Arc::new(Policy::of(&json!({"scopes": {"w*": ["write"]}})));
        assert!(
            Arc::ptr_eq(&alike.of_caller(&[], &some), &alike),
            "nothing is copied"
        );
    }

    /// Each stream, call and session had patterns of its own: a quarter of a mebibyte for a large policy.
    #[test]
    fn a_caller_has_no_copies_of_patterns() {
        let policy = Arc::new(Policy::of(&json!({
            "scopes": {"a*": ["x"], "b*": ["y"], "c*": ["x", "y"]},
            "groups": {"eng": {"tools": {"allow": ["a*", "b*", "c*"]}}},
        })));
        let x = BTreeSet::from(["x".to_owned()]);
        let some = AllowedScopes::Named(vec![&x]);
        let eng = |times: usize| vec!["eng".to_owned(); times];
        let own = policy.of_caller(&eng(1), &some);
        let is_shared = |tools: &Pattern| policy.scoped.iter().any(|one| std::ptr::eq(one, tools));
        assert!(own.tools.unreachable().all(is_shared));
        assert_eq!(own.tools.unreachable().count(), 2);
        assert_eq!(own.tools.patterns(), 5);
        let repeated = policy.of_caller(&eng(9), &some);
        assert_eq!(repeated.tools.patterns(), 5, "a group counts once");
        assert!(repeated.shows_the_same(&own));
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
            let began = crate::base::processor_time();
            for _ in 0..500 {
                assert!(!names.allows_template(&template));
            }
            let took = crate::base::processor_time().saturating_sub(began);
            assert!(took < std::time::Duration::from_secs(2));
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
            let scopes: Arc<[String]> = scopes.iter().map(|scope| (*scope).to_owned()).collect();
            policy.covers(&scopes.into(), needed)
        };
        assert!(has(&["admin"], "files:read") && has(&["x", "files:read"], "files:read"));
        assert!(!has(&["files:read"], "files:write") && !has(&[], "admin"));
        assert!(has(&["a"], "b") && has(&["b"], "a"));
    }
}

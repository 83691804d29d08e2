//! Reader of `policy`.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    identity::{SCOPE, word},
    table::{Entries, Fields, Key, Parser, parse},
};
use crate::config::Wrong;
use crate::declare::{GroupNames, Names, NamesByGroup, Pattern, Policy, is_scope};

/// Reads the key `policy` of a server.
pub(super) fn policy(server: &Fields<'_>) -> Policy {
    let Some(fields) = server.key("policy", "Access policy of the server.").table() else {
        return Policy::default();
    };
    fields.order(&["tools", "prompts", "resources", "groups"]);
    let scopes = scopes(&fields);
    let implies = implies(&fields);
    let [tools, prompts, resources] = kinds(&fields);
    let groups = groups(&fields);
    fields.end();
    Policy::new(tools, prompts, resources, scopes, &implies, groups)
}

/// Reads the tools, prompts and resources of a policy, or of a group in it.
fn kinds(fields: &Fields<'_>) -> [Names; 3] {
    let tools = fields.key(
        "tools",
        "Allowed tools, by pattern; a denied one answers like an unknown one.",
    );
    let tools = names(tools);
    let prompts = fields.key(
        "prompts",
        "Allowed prompts, by pattern; a denied one answers like an unknown one.",
    );
    let prompts = names(prompts);
    let resources = fields.key(
        "resources",
        "Allowed resources, by pattern; a denied one answers like an unknown one.",
    );
    [tools, prompts, names(resources)]
}

fn groups(policy: &Fields<'_>) -> Option<NamesByGroup> {
    let entries = policy
        .key(
            "groups",
            "What each group may use of that, * being every caller; a caller may use what one of its groups may. \
             Absent: the same for all.",
        )
        .entries(word())?;
    let mut groups = NamesByGroup::new();
    for (name, node) in entries.members() {
        let fields = entries.table(
            name,
            node,
            "What the group may use; all kinds that it does not name.",
        );
        let [tools, prompts, resources] = kinds(&fields).map(Arc::new);
        fields.end();
        let of = GroupNames {
            tools,
            prompts,
            resources,
        };
        groups.insert(name.to_owned(), of);
    }
    if groups.len() > MAX_ENTRIES {
        let remedy = format!("write at most {MAX_ENTRIES}");
        policy.wrong(
            "groups",
            entries.place(),
            Wrong::new("has too many entries", remedy),
        );
    }
    Some(groups)
}

fn scopes(policy: &Fields<'_>) -> Vec<(Pattern, Vec<String>)> {
    let entries = policy
        .key(
            "scopes",
            "Scopes that tools require, by pattern of the tool's name.",
        )
        .entries(parse::text());
    let Some(entries) = entries else {
        return Vec::new();
    };
    let mut scopes = Vec::new();
    for (tools, place, needed) in lists_of_scopes(&entries) {
        match Pattern::parse(tools) {
            Ok(pattern) => scopes.push((pattern, needed)),
            Err(wrong) => entries.wrong(tools, place, wrong),
        }
    }
    scopes
}

fn implies(policy: &Fields<'_>) -> BTreeMap<String, Vec<String>> {
    let entries = policy
        .key("implies", "Scopes that a scope includes.")
        .entries(parse::text());
    let Some(entries) = entries else {
        return BTreeMap::new();
    };
    let mut implies = BTreeMap::new();
    for (implying, place, implied) in lists_of_scopes(&entries) {
        if let Err(wrong) = scope(implying) {
            entries.wrong(implying, place, wrong);
        }
        implies.insert(implying.to_owned(), implied);
    }
    implies
}

/// The names of a table of lists, with their places and their scopes.
fn lists_of_scopes<'a>(entries: &Entries<'a>) -> Vec<(&'a str, &'a str, Vec<String>)> {
    let members = entries.members().map(|(name, node)| {
        let item = parse::text().having("pattern", SCOPE);
        let scopes = entries.read(name, node, list(item.and(|text| scope(&text))));
        (name, &*node.place, scopes.unwrap_or_default())
    });
    members.collect()
}

fn names(kind: Key<'_, '_>) -> Names {
    let Some(fields) = kind.table() else {
        return Names::default();
    };
    let patterns = || list(parse::text().and(|text| Pattern::parse(&text)));
    let allow = fields
        .key(
            "allow",
            "Patterns of allowed names; absent allows all. * matches any number of characters.",
        )
        .optional(patterns());
    let deny = fields
        .key(
            "deny",
            "Patterns of denied names, also where allow matches.",
        )
        .optional(patterns());
    fields.end();
    Names::new(allow, deny.unwrap_or_default())
}

fn list<'p, T: 'p>(item: Parser<'p, T>) -> Parser<'p, Vec<T>> {
    parse::list(item)
        .having("maxItems", MAX_ENTRIES)
        .first(|node| {
            if node.items()?.len() > MAX_ENTRIES {
                let remedy = format!("write at most {MAX_ENTRIES}, with * where many begin alike");
                return Err(Wrong::new("has too many entries", remedy));
            }
            Ok(())
        })
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
        let text = serde_json::json!({"version": 1, "tenants": {"a": {"auth": {"mode": "keys"},
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

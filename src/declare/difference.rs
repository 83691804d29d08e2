//! The difference of two declared states: the changes from one to the other.
//!
//! Pure, for applying changes (`database`) and for showing them.

use std::fmt;

use super::object::{Declared, Kind, ObjectName};

/// One changed object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    /// Its name.
    pub(crate) name: ObjectName,
    /// Its change.
    pub(crate) what: ChangeKind,
}

/// The change of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ChangeKind {
    /// The object is new.
    Added,
    /// These members differ, secret ones included.
    Changed(Vec<String>),
    /// The object is removed, with a tenant all its objects.
    Removed,
}

/// The treatment of stored objects that are not wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prune {
    /// They stay.
    Keep,
    /// They are removed.
    Remove,
}

/// The occasion of checking a declared state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    /// A whole manifest is applied.
    Applying,
    /// One object changes; others may follow.
    Changing,
    /// The state is stored, maybe by another replica, and is about to be served.
    Serving,
}

impl fmt::Display for Change {
    /// `+ server acme/files`, `~ server acme/files: args, env`, `- server acme/files`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.what {
            ChangeKind::Added => write!(f, "+ {}", self.name),
            ChangeKind::Changed(members) => write!(f, "~ {}: {}", self.name, members.join(", ")),
            ChangeKind::Removed => write!(f, "- {}", self.name),
        }
    }
}

/// The changes from `stored` to `wanted`: first removals, objects before their tenant, then
/// additions, tenants before their objects.
///
/// Operators' API keys are in no manifest, so they are never pruned.
pub(crate) fn difference(stored: &Declared, wanted: &Declared, prune: Prune) -> Vec<Change> {
    let unwanted = stored.0.keys().rev().filter(|name| {
        prune == Prune::Remove && name.owner().is_some() && !wanted.0.contains_key(name)
    });
    let removed = unwanted.map(|name| (name, ChangeKind::Removed));
    let others = wanted.0.iter().filter_map(|(name, object)| {
        let what = match stored.0.get(name) {
            None => ChangeKind::Added,
            Some(old) if old == object => return None,
            Some(old) => ChangeKind::Changed(object.differing(old)),
        };
        Some((name, what))
    });
    let change = |(name, what): (&ObjectName, ChangeKind)| Change {
        name: name.clone(),
        what,
    };
    removed.chain(others).map(change).collect()
}

/// The objects that are removed with `name`: itself, and before it all objects of a tenant.
pub(crate) fn with_members(stored: &Declared, name: &ObjectName) -> Vec<ObjectName> {
    let own = stored.0.keys().rev().filter(|inner| {
        *inner == name || (name.kind() == Kind::Tenant && inner.owner() == name.owner())
    });
    own.cloned().collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::super::difference::*;
    use super::super::object::Object;

    fn object(kind: Kind, json: &serde_json::Value) -> Object {
        Object::new(kind, json.as_object().unwrap().clone())
    }

    fn state(of: &[(&str, &str, serde_json::Value)]) -> Declared {
        let mut objects = BTreeMap::new();
        for (tenant, server, json) in of {
            objects.insert(ObjectName::tenant(tenant), Object::default());
            let name = ObjectName::of(tenant, Kind::Server, server);
            objects.insert(name, object(Kind::Server, json));
        }
        Declared(objects)
    }

    fn shown(stored: &Declared, wanted: &Declared, prune: Prune) -> Vec<String> {
        let changes = difference(stored, wanted, prune);
        changes.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn says_what_comes_changes_and_goes() {
        let old = state(&[
            (
                "acme",
                "files",
                json!({"command": "a", "args": ["1"], "env": {"T": "1"}}),
            ),
            ("acme", "same", json!({"command": "b"})),
            ("gone", "x", json!({"command": "c"})),
        ]);
        let new = state(&[
            (
                "acme",
                "files",
                json!({"command": "a", "args": ["2"], "env": {"T": "2"}}),
            ),
            ("acme", "same", json!({"command": "b"})),
            ("new", "y", json!({"command": "d"})),
        ]);
        let kept = [
            "~ server acme/files: args, env",
            "+ tenant new",
            "+ server new/y",
        ];
        assert_eq!(shown(&old, &new, Prune::Keep), kept);
        let pruned = ["- server gone/x", "- tenant gone"];
        assert_eq!(shown(&old, &new, Prune::Remove)[..2], pruned);
        assert_eq!(shown(&old, &new, Prune::Remove)[2..], kept);
        assert!(shown(&new, &new, Prune::Remove).is_empty());
    }

    #[test]
    fn a_key_of_an_operator_is_not_pruned() {
        let key = object(Kind::ApiKey, &json!({"hash": "sha256:0"}));
        let stored = Declared(BTreeMap::from([(ObjectName::operator_key("root"), key)]));
        assert!(shown(&stored, &Declared::default(), Prune::Remove).is_empty());
    }

    #[test]
    fn what_belongs_to_a_tenant_goes_with_it() {
        let old = state(&[("acme", "files", json!({})), ("b", "x", json!({}))]);
        let names = with_members(&old, &ObjectName::tenant("acme"));
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        assert_eq!(names, ["server acme/files", "tenant acme"]);
    }
}

//! Difference of two declared states: the changes that lead from one to the other.
//!
//! Pure: used to make changes (`database`) and to show them only.

use std::fmt;

use super::object::{Declared, Kind, ObjectName};

/// One object that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    /// Which object.
    pub(crate) name: ObjectName,
    /// What happens to it.
    pub(crate) what: What,
}

/// What happens to an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// It was not there.
    Added,
    /// These members are different, secret ones included.
    Changed(Vec<String>),
    /// It goes; with a tenant all that belongs to it goes.
    Removed,
}

/// What happens to objects that are stored and not wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prune {
    /// They stay.
    Keep,
    /// They go.
    Remove,
}

/// The occasion on which a declared state is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    /// A whole manifest leads to the state.
    Applying,
    /// The change of one object leads to it; others may follow.
    Changing,
    /// It is stored already, perhaps by another replica, and is to be served here.
    Serving,
}

impl fmt::Display for Change {
    /// `+ server acme/files`, `~ server acme/files: args, env`, `- server acme/files`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.what {
            What::Added => write!(f, "+ {}", self.name),
            What::Changed(members) => write!(f, "~ {}: {}", self.name, members.join(", ")),
            What::Removed => write!(f, "- {}", self.name),
        }
    }
}

/// The changes that make `stored` into `wanted`: what goes first, inner objects before their
/// tenant, then what comes, tenants before what belongs to them.
///
/// Operators' API keys are in no manifest, so they are never pruned.
pub(crate) fn difference(stored: &Declared, wanted: &Declared, prune: Prune) -> Vec<Change> {
    let unwanted = stored.0.keys().rev().filter(|name| {
        prune == Prune::Remove && name.owner().is_some() && !wanted.0.contains_key(name)
    });
    let removed = unwanted.map(|name| (name, What::Removed));
    let others = wanted.0.iter().filter_map(|(name, object)| {
        let what = match stored.0.get(name) {
            None => What::Added,
            Some(old) if old == object => return None,
            Some(old) => What::Changed(object.differing(old)),
        };
        Some((name, what))
    });
    let change = |(name, what): (&ObjectName, What)| Change {
        name: name.clone(),
        what,
    };
    removed.chain(others).map(change).collect()
}

/// The objects that go with `name`: itself, and for a tenant all that belongs to it, which comes
/// first.
pub(crate) fn with_its_own(stored: &Declared, name: &ObjectName) -> Vec<ObjectName> {
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
        let names = with_its_own(&old, &ObjectName::tenant("acme"));
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        assert_eq!(names, ["server acme/files", "tenant acme"]);
    }
}

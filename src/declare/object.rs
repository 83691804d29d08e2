//! Declared objects: tenants, servers, users, clients, providers, upstreams and API keys, one row each.
//!
//! An object is a subtree of the manifest as JSON, in the manifest's syntax. Not here: its reader
//! (`manifest/objects`) and its storage (`database/objects`).

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use serde_json::Value as Json;

use super::password::{PASSWORD, PASSWORD_HASH};

/// The members of an object, by their manifest keys.
pub(crate) type Document = serde_json::Map<String, Json>;

/// The kind of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    /// A tenant, without the objects that belong to it.
    Tenant,
    /// A server of a tenant.
    Server,
    /// A user of a tenant.
    User,
    /// A client of a tenant's authorization server.
    Client,
    /// An identity provider behind a tenant's authorization server.
    Provider,
    /// A service whose access tokens people connect.
    Upstream,
    /// An API key, of a tenant or of an operator.
    ApiKey,
}

impl Kind {
    /// Every kind; tenants first, because the others belong to one.
    pub(crate) const ALL: [Self; 7] = [
        Self::Tenant,
        Self::Server,
        Self::User,
        Self::Client,
        Self::Provider,
        Self::Upstream,
        Self::ApiKey,
    ];

    /// The name in messages.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Tenant => "tenant",
            Self::Server => "server",
            Self::User => "user",
            Self::Client => "client",
            Self::Provider => "provider",
            Self::Upstream => "upstream",
            Self::ApiKey => "api_key",
        }
    }

    /// The manifest key of a tenant's objects of this kind.
    pub(crate) fn plural(self) -> &'static str {
        match self {
            Self::Tenant => "tenants",
            Self::Server => "servers",
            Self::User => "users",
            Self::Client => "clients",
            Self::Provider => "providers",
            Self::Upstream => "upstreams",
            Self::ApiKey => "api_keys",
        }
    }

    /// The members that are stored sealed.
    fn secrets(self) -> &'static [&'static str] {
        match self {
            Self::Tenant => &["introspection"],
            Self::ApiKey => &[],
            Self::Server => &["env"],
            Self::User => &[PASSWORD, PASSWORD_HASH],
            Self::Client => &["secret"],
            Self::Provider | Self::Upstream => &["client_secret"],
        }
    }
}

/// The name of an object. The order sorts by tenant, each tenant before its objects.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ObjectName {
    /// The tenant of the object, or the tenant itself; none for an operator's API key.
    tenant: Option<String>,
    kind: Kind,
    name: String,
}

impl ObjectName {
    /// The name of a tenant.
    pub(crate) fn tenant(name: &str) -> Self {
        Self {
            tenant: Some(name.to_owned()),
            kind: Kind::Tenant,
            name: name.to_owned(),
        }
    }

    /// The name of an object of a tenant.
    pub(crate) fn of(tenant: &str, kind: Kind, name: &str) -> Self {
        Self {
            tenant: Some(tenant.to_owned()),
            kind,
            name: name.to_owned(),
        }
    }

    /// The name of an operator's API key, which belongs to no tenant.
    pub(crate) fn operator_key(name: &str) -> Self {
        Self {
            tenant: None,
            kind: Kind::ApiKey,
            name: name.to_owned(),
        }
    }

    /// Its kind.
    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// Its name within the tenant.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Its tenant, or the tenant itself.
    pub(crate) fn owner(&self) -> Option<&str> {
        self.tenant.as_deref()
    }

    /// Its manifest key; empty for an operator's key.
    pub(crate) fn key(&self) -> String {
        match (&self.tenant, self.kind) {
            (Some(tenant), Kind::Tenant) => format!("tenants.{tenant}"),
            (Some(tenant), kind) => format!("tenants.{tenant}.{}.{}", kind.plural(), self.name),
            (None, kind) => format!("{}.{}", kind.plural(), self.name),
        }
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.tenant, self.kind) {
            (Some(tenant), Kind::Tenant) => write!(f, "tenant {tenant}"),
            (Some(tenant), kind) => write!(f, "{} {tenant}/{}", kind.as_str(), self.name),
            (None, kind) => write!(f, "{} {}", kind.as_str(), self.name),
        }
    }
}

/// A declared object, compared by its members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Object {
    /// The members that may be shown.
    pub(crate) spec: Document,
    /// The members that are stored sealed.
    pub(crate) secret: SecretMembers,
}

/// Members that are never shown.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct SecretMembers(pub(crate) Document);

impl fmt::Debug for SecretMembers {
    /// Prints the names of the members, never their values.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Object {
    /// The object of a `document` in the manifest's syntax, which includes its secrets.
    pub(crate) fn new(kind: Kind, document: Document) -> Self {
        let (secret, spec) = document
            .into_iter()
            .partition(|(key, _)| kind.secrets().contains(&key.as_str()));
        Self {
            spec,
            secret: SecretMembers(secret),
        }
    }

    /// What it counts, as its two documents do.
    pub(crate) fn bytes(&self) -> u64 {
        counted(&self.spec) + counted(&self.secret.0)
    }

    /// The members, secrets included, that differ from those of `other`.
    pub(crate) fn differing(&self, other: &Self) -> Vec<String> {
        let pairs = [(&self.spec, &other.spec), (&self.secret.0, &other.secret.0)];
        let differing = pairs.iter().flat_map(|(one, other)| {
            let keys: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
            keys.into_iter()
                .filter(|key| one.get(*key) != other.get(*key))
        });
        let members: BTreeSet<String> = differing.cloned().collect();
        members.into_iter().collect()
    }
}

/// What a document counts: its bytes as JSON, and [`VALUE`] for each value in it. Every change of a tenant makes trees of all
/// its objects, which take some five times as much at most; of a text of short values they take seventy times its length.
pub(crate) fn counted(document: &Document) -> u64 {
    // A tree of JSON is always written.
    let length = serde_json::to_vec(document).map_or(0, |text| text.len() as u64);
    length + VALUE * members(document)
}

/// The values in a table.
fn members(table: &Document) -> u64 {
    table.values().map(values).sum()
}

/// A value, and those in it.
fn values(value: &Json) -> u64 {
    let inner: u64 = match value {
        Json::Array(items) => items.iter().map(values).sum(),
        Json::Object(table) => members(table),
        _ => 0,
    };
    1 + inner
}

/// What a value counts beside its bytes.
const VALUE: u64 = 32;

/// What the objects of a tenant take of its quotas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Their number.
    pub(crate) objects: u64,
    /// What they count together.
    pub(crate) bytes: u64,
}

/// All declared objects, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Declared(pub(crate) BTreeMap<ObjectName, Object>);

/// The place in mistakes of objects that come from no file.
pub(crate) const PLACE: &str = "store";

impl Declared {
    /// What each tenant takes of its quotas; a tenant without objects is not listed.
    pub(crate) fn usage(&self) -> BTreeMap<String, Usage> {
        let mut usage: BTreeMap<String, Usage> = BTreeMap::new();
        let owned = self.0.iter().filter(|(name, _)| name.kind != Kind::Tenant);
        for (name, object) in owned {
            let Some(owner) = name.owner() else { continue };
            let usage = usage.entry(owner.to_owned()).or_default();
            usage.objects += 1;
            usage.bytes += object.bytes();
        }
        usage
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::object::*;

    /// 64 KiB of zeros are 32,000 values of a tree, of which each takes more than a hundred bytes.
    #[test]
    fn an_object_counts_its_values_beside_its_bytes() {
        for (document, wanted) in [
            (json!({}), 2),
            (json!({"command": "cat"}), 17 + 32),
            (json!({"a": [0, 1]}), 11 + 3 * 32),
            (json!({"a": {"b": [{}, null], "c": true}}), 30 + 5 * 32),
        ] {
            let document = document.as_object().unwrap();
            let text = serde_json::to_string(document).unwrap();
            assert_eq!(counted(document), wanted, "{text}");
        }
        // Both documents of an object count.
        let document = json!({"command": "cat", "env": {"KEY": "value"}});
        let document = document.as_object().unwrap().clone();
        let server = Object::new(Kind::Server, document);
        assert_eq!(server.bytes(), 17 + 23 + 3 * 32);
    }
}

//! Principals, and a cache of those without tokens.
//!
//! Principals of tokens are cached with the verified token.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock, Weak},
};

use crate::base::Table;
use crate::declare::{ApiKey, Tenant};

/// An authenticated caller, to whom sessions belong; a handle.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Principal(Arc<Identity>);

#[derive(Debug, PartialEq, Eq, Hash)]
struct Identity {
    tenant: Arc<str>,
    /// None for the anonymous principal of a tenant without authentication.
    issuer: Option<String>,
    subject: Option<String>,
    client: Option<String>,
    /// The tenant, a slash, and all fields as one text.
    account: Arc<str>,
}

impl Principal {
    /// A principal of a tenant, identified by an issuer, with subject and client.
    pub(super) fn new(
        tenant: &str,
        issuer: Option<&str>,
        subject: Option<&str>,
        client: Option<&str>,
    ) -> Self {
        // JSON keeps the parts apart. Serialization of strings cannot fail.
        let key = serde_json::to_string(&(tenant, issuer, subject, client)).unwrap_or_default();
        let own = |text: Option<&str>| text.map(str::to_owned);
        Self(Arc::new(Identity {
            account: format!("{tenant}/{key}").into(),
            tenant: tenant.into(),
            issuer: own(issuer),
            subject: own(subject),
            client: own(client),
        }))
    }

    /// The tenant.
    pub(super) fn tenant(&self) -> &str {
        &self.0.tenant
    }

    /// The issuer; none for the anonymous principal.
    pub(crate) fn issuer(&self) -> Option<&str> {
        self.0.issuer.as_deref()
    }

    /// The subject.
    pub(crate) fn subject(&self) -> Option<&str> {
        self.0.subject.as_deref()
    }

    /// The client id, or the name of the API key.
    pub(crate) fn client(&self) -> Option<&str> {
        self.0.client.as_deref()
    }

    /// The person, by any of their clients; of a client without a person, the client. None for the
    /// anonymous principal.
    pub(crate) fn person(&self) -> Option<String> {
        let name = self.subject().or(self.client()).unwrap_or_default();
        Some(format!("{} {name}", self.issuer()?))
    }

    /// The name under which the use of the principal's limits is counted.
    pub(crate) fn account(&self) -> &Arc<str> {
        &self.0.account
    }

    /// The name under which the use of its tenant's limits is counted.
    pub(crate) fn tenant_account(&self) -> &Arc<str> {
        &self.0.tenant
    }

    /// A text unique to the principal.
    pub(crate) fn key(&self) -> &str {
        // The name of a tenant has no slash.
        &self.0.account[self.0.tenant.len() + 1..]
    }
}

/// Cached principals; read on every request, never locked across an await.
#[derive(Default)]
pub(super) struct Principals {
    anonymous: RwLock<HashMap<String, Principal>>,
    keys: RwLock<Table<[u8; 32], KeyPrincipal>>,
}

/// A principal with its API key: a changed key with the same hash makes a new principal. The reference is weak: nothing
/// takes out a removed key before the cache is full, and a key may have many scopes and servers.
type KeyPrincipal = (Weak<ApiKey>, Principal);

impl Principals {
    /// The anonymous principal, cached.
    pub(super) fn anonymous(&self, tenant: &Tenant) -> Principal {
        let known = self
            .anonymous
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(principal) = known.get(&tenant.name) {
            return principal.clone();
        }
        drop(known);
        let new = anonymous(tenant);
        let mut known = self
            .anonymous
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        clear_if_full(&mut known);
        known.insert(tenant.name.clone(), new.clone());
        new
    }

    /// The principal of an API key as declared now, cached.
    pub(super) fn by_key(&self, tenant: &Tenant, hash: [u8; 32], key: &Arc<ApiKey>) -> Principal {
        let known = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        // The key's address is no other's as long as there is the weak reference.
        let is_of = |of: &Weak<ApiKey>| std::ptr::eq(of.as_ptr(), Arc::as_ptr(key));
        if let Some((_, principal)) = known
            .get(&hash)
            .filter(|(of, principal)| is_of(of) && principal.tenant() == tenant.name)
        {
            return principal.clone();
        }
        drop(known);
        let new = by_key(tenant, key);
        let mut known = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        clear_if_full(&mut known);
        known.insert(hash, (Arc::downgrade(key), new.clone()));
        new
    }
}

/// The anonymous principal of a tenant.
pub(super) fn anonymous(tenant: &Tenant) -> Principal {
    Principal::new(&tenant.name, None, None, None)
}

/// The principal of an API key.
pub(super) fn by_key(tenant: &Tenant, key: &ApiKey) -> Principal {
    let (subject, client) = (Some(key.subject.as_str()), Some(key.name.as_str()));
    Principal::new(&tenant.name, Some(API_KEY_ISSUER), subject, client)
}

/// The issuer of principals with API keys: not a URL, so no authorization server can claim it.
const API_KEY_ISSUER: &str = "lockgate:api-key";

/// Clears a full cache; stale entries stay until then.
fn clear_if_full<K, V, S>(known: &mut HashMap<K, V, S>) {
    if known.len() >= CACHED_MAX {
        known.clear();
    }
}

/// Maximum cached principals: about 450 bytes each, also where its API key was removed.
const CACHED_MAX: usize = 100_000;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::{config::Format, manifest::reader::parse};

    fn tenant(subject: &str) -> Arc<Tenant> {
        let text = format!(
            "tenants: {{a: {{auth: {{mode: keys}}, api_keys: {{ci: {{hash: \"sha256:{}\", subject: {subject}, servers: [\"*\"]}}}}}}}}",
            "0".repeat(64)
        );
        let read = parse("F", &text, Format::Yaml, &BTreeMap::new()).unwrap();
        Arc::clone(&read.catalog.tenants["a"])
    }

    #[test]
    fn cached_principals_last_until_the_key_changes() {
        let principals = Principals::default();
        let of = |tenant: &Arc<Tenant>| {
            let key = &tenant.api_keys[&[0; 32]];
            principals.by_key(tenant, [0; 32], key)
        };
        let (ada, eve) = (tenant("ada"), tenant("eve"));
        assert_eq!(of(&ada).subject(), Some("ada"));
        assert!(Arc::ptr_eq(&of(&ada).0, &of(&ada).0));
        assert_eq!(of(&eve).subject(), Some("eve"));
        assert_eq!(of(&ada).subject(), Some("ada"));
        let everybody = principals.anonymous(&ada);
        assert!(Arc::ptr_eq(&everybody.0, &principals.anonymous(&eve).0));
        assert_eq!(everybody.subject(), None);
    }

    /// Removed keys stayed with all their scopes and servers: 100,000 of them.
    #[test]
    fn no_removed_key_is_kept() {
        let (principals, ada) = (Principals::default(), tenant("ada"));
        let key = &ada.api_keys[&[0; 32]];
        principals.by_key(&ada, [0; 32], key);
        let key = Arc::downgrade(key);
        drop(ada);
        assert!(key.upgrade().is_none());
    }
}

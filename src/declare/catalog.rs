//! The catalogue: the tenants that this gateway serves, each with its servers.
//!
//! Not here: the declaration of one server (`server`) and of its callers (`identity`).

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Deref,
    sync::Arc,
};

use url::Url;
use uuid::Uuid;

use crate::base::Table;
use crate::endpoint::TenantHost;
use crate::protocol::Revision;

use super::identity::{ApiKeys, AuthMode, Dpop, Issued};
use super::quotas::Quotas;
use super::server::Server;

/// Every tenant that this gateway serves.
#[derive(Clone, Debug, Default)]
pub(crate) struct Catalog {
    /// Tenants by name.
    pub(crate) tenants: Table<String, Arc<Tenant>>,
    /// Keys and revocations, which decide whether tokens of this gateway are valid.
    pub(crate) issued: Arc<Issued>,
    /// Hosts of tenants, by their names in lower case.
    hosts: Table<String, (Option<u16>, String)>,
}

impl Catalog {
    /// The catalogue of these tenants. A host that two of them declare is that of the first by name.
    pub(crate) fn new(tenants: Table<String, Arc<Tenant>>, issued: Arc<Issued>) -> Self {
        let mut hosts: Table<String, (Option<u16>, String)> = Table::default();
        for tenant in tenants.values() {
            for (host, port) in &tenant.hosts {
                let owner = hosts.get(host).map(|(_, owner)| owner);
                if owner.is_none_or(|owner| tenant.name < *owner) {
                    hosts.insert(host.clone(), (*port, tenant.name.clone()));
                }
            }
        }
        Self {
            tenants,
            issued,
            hosts,
        }
    }

    /// The site of the tenant with this host, in lower case, and port. A host that was declared without a port has
    /// that of the public URL.
    pub(crate) fn host(&self, public_url: &str, host: &str, port: u16) -> Option<TenantHost> {
        let (own, tenant) = self.hosts.get(host)?;
        let public = || Url::parse(public_url).ok()?.port_or_known_default();
        let tenant = self.tenants.get(tenant)?;
        let server = tenant.unnamed_server().unwrap_or_default();
        (own.or_else(public) == Some(port))
            .then(|| TenantHost::new(public_url, (host, port), (&tenant.name, server)))
    }

    /// Every server of every tenant, in no order.
    pub(crate) fn servers(&self) -> impl Iterator<Item = &Arc<Server>> {
        let tenants = self.tenants.values();
        tenants.flat_map(|tenant| tenant.servers.values())
    }

    /// Notes the row that declares a tenant. No other reference to the tenant exists yet.
    pub(crate) fn identify(&mut self, tenant: &str, id: Uuid) {
        let tenant = self.tenants.get_mut(tenant);
        if let Some(tenant) = tenant.and_then(Arc::get_mut) {
            Arc::make_mut(&mut tenant.profile).id = Some(id);
        }
    }

    /// Lets a server start the children that it had in `before`, because those that are declared cannot be started; one
    /// that this tenant did not have is left out. Who may use it is as declared now. No other reference to the tenant
    /// exists yet.
    pub(crate) fn keep_children(&mut self, tenant: &str, server: &str, before: &Self) {
        let old = before
            .find(tenant, server)
            .filter(|_| self.is_still(tenant, before));
        let Some(tenant) = self.tenants.get_mut(tenant).and_then(Arc::get_mut) else {
            return;
        };
        let new = tenant.servers.get_mut(server).and_then(Arc::get_mut);
        if let (Some(new), Some((_, old))) = (new, &old) {
            new.start_as(old);
        } else {
            tenant.servers.remove(server);
        }
    }

    /// Reports whether the tenant of that name is the one that it was in `before`.
    pub(crate) fn is_still(&self, tenant: &str, before: &Self) -> bool {
        let id = |catalog: &Self| catalog.tenants.get(tenant).map(|tenant| tenant.id);
        id(self).is_some() && id(self) == id(before)
    }

    /// Reports whether its servers are those of `before`, unchanged; unchanged parts keep their address.
    pub(crate) fn has_servers_of(&self, before: &Self) -> bool {
        let is_known = |server: &Arc<Server>| {
            let tenant = before.tenants.get(&server.tenant);
            let known = tenant.and_then(|tenant| tenant.servers.get(&server.name));
            known.is_some_and(|known| Arc::ptr_eq(known, server))
        };
        self.servers().count() == before.servers().count() && self.servers().all(is_known)
    }

    /// Replaces equal parts by those of `before`, so that unchanged parts keep their address.
    pub(crate) fn reusing(mut self, before: &Self) -> Self {
        for (name, tenant) in &mut self.tenants {
            let Some(old) = before.tenants.get(name) else {
                continue;
            };
            if tenant == old {
                *tenant = Arc::clone(old);
                continue;
            }
            if tenant.id != old.id {
                continue;
            }
            // No other reference exists yet.
            if let Some(tenant) = Arc::get_mut(tenant) {
                tenant.reuse(old);
            }
        }
        self
    }

    /// The server at `/t/{tenant}/{server}`, with its tenant.
    pub(crate) fn find(&self, tenant: &str, server: &str) -> Option<(Arc<Tenant>, Arc<Server>)> {
        let tenant = self.tenants.get(tenant)?;
        let server = tenant.servers.get(server)?;
        Some((Arc::clone(tenant), Arc::clone(server)))
    }

    /// The first end of an API key after `after_ms`, in milliseconds since 1970.
    pub(crate) fn next_key_end(&self, after_ms: i64) -> Option<i64> {
        let tenants = self.tenants.values();
        let ends = tenants.flat_map(|tenant| self.key_ends(tenant));
        ends.filter(|end_ms| *end_ms > after_ms).min()
    }

    /// The ends of the API keys of a tenant, those that people made included, in no order.
    fn key_ends(&self, tenant: &Tenant) -> impl Iterator<Item = i64> {
        let rules = match &tenant.auth {
            AuthMode::Builtin(builtin) => builtin.own_keys,
            _ => None,
        };
        let own = rules.and_then(|rules| Some((rules, self.issued.own_keys.get(&tenant.name)?)));
        let own = own.into_iter().flat_map(|(rules, keys)| {
            keys.values().flat_map(move |key| {
                let previous = key.previous.map(|(_, until_ms)| until_ms);
                previous.into_iter().chain([key.ends_ms(&rules)])
            })
        });
        let declared = tenant.api_keys.values();
        declared.filter_map(|key| key.ends_ms()).chain(own)
    }
}

/// The unit of isolation: tenants share nothing.
#[derive(Debug, PartialEq)]
pub(crate) struct Tenant {
    /// The part that streams, calls and sessions keep of it.
    pub(crate) profile: Arc<TenantProfile>,
    /// The authentication of callers.
    pub(crate) auth: AuthMode,
    /// Whether access tokens have to be bound to a key.
    pub(crate) dpop: Dpop,
    /// Its API keys.
    pub(crate) api_keys: ApiKeys,
    /// The server of requests that name none.
    pub(crate) default_server: Option<String>,
    /// Hosts of its own, in lower case, each with its port if that is not the one of the public URL.
    pub(crate) hosts: Vec<(String, Option<u16>)>,
    /// Its servers by name.
    pub(crate) servers: BTreeMap<String, Arc<Server>>,
}

/// The part of a tenant that streams, calls and sessions keep, with a few hundred bytes whatever the tenant declares.
/// Each change makes another tenant: with the whole of it, a stream for each change would keep a copy of everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TenantProfile {
    /// The name in URLs.
    pub(crate) name: String,
    /// The row that declares it, once it is stored: one that is declared again under the name of a removed one is
    /// another, even if no snapshot was without it.
    pub(crate) id: Option<Uuid>,
    /// The session-based MCP revisions that its clients may negotiate, newest first; empty if it serves
    /// the modern one alone.
    pub(crate) revisions: Vec<Revision>,
    /// Whether it serves revision 2026-07-28.
    pub(crate) is_modern: bool,
    /// Its quotas.
    pub(crate) quotas: Quotas,
}

impl TenantProfile {
    /// The profile of a tenant that no row declares yet, with its session-based revisions and whether it serves
    /// revision 2026-07-28.
    pub(crate) fn new(
        name: &str,
        (revisions, is_modern): (Vec<Revision>, bool),
        quotas: Quotas,
    ) -> Self {
        Self {
            name: name.to_owned(),
            id: None,
            revisions,
            is_modern,
            quotas,
        }
    }
}

impl Deref for Tenant {
    type Target = TenantProfile;

    fn deref(&self) -> &TenantProfile {
        &self.profile
    }
}

impl Tenant {
    /// Replaces equal parts by those of `old`, the same tenant before a change, so that a change of one object makes no
    /// copies of the others.
    fn reuse(&mut self, old: &Self) {
        reuse(&mut self.profile, &old.profile);
        reuse_all(&mut self.api_keys, |hash| old.api_keys.get(hash));
        reuse_all(&mut self.servers, |name| old.servers.get(name));
        match (&mut self.auth, &old.auth) {
            (AuthMode::Builtin(new), AuthMode::Builtin(old)) => {
                reuse(new, old);
                // There are other references to one that is reused as a whole.
                if let Some(new) = Arc::get_mut(new) {
                    reuse_all(&mut new.users, |name| old.users.get(name));
                    reuse_all(&mut new.clients, |id| old.clients.get(id));
                    reuse_all(&mut new.providers, |name| old.providers.get(name));
                    reuse_all(&mut new.upstreams, |name| old.upstreams.get(name));
                }
            }
            (AuthMode::External(new), AuthMode::External(old)) => reuse(new, old),
            _ => {}
        }
    }

    /// Returns the server of requests that name none: the declared one, or the only one.
    pub(crate) fn unnamed_server(&self) -> Option<&str> {
        let mut names = self.servers.keys();
        let only = names.next().filter(|_| names.next().is_none());
        self.default_server.as_ref().or(only).map(String::as_str)
    }

    /// Returns the scopes that access tokens for `servers` may have: those of the authentication
    /// mode, then those that the policies of the servers require, without repetitions.
    pub(crate) fn scopes<'t>(
        &'t self,
        servers: impl IntoIterator<Item = &'t Arc<Server>>,
    ) -> Vec<&'t str> {
        let required = servers
            .into_iter()
            .flat_map(|server| server.policy.all_scopes());
        self.scopes_and(required)
    }

    /// Returns the scopes that a client of `servers` begins with: those of the authentication mode, then
    /// those that every tool requires. It asks for others when a call needs them (2025-11-25
    /// authorization, "Scope Selection Strategy": "the minimal set of scopes necessary for basic
    /// functionality").
    pub(crate) fn baseline_scopes<'t>(
        &'t self,
        servers: impl IntoIterator<Item = &'t Arc<Server>>,
    ) -> Vec<&'t str> {
        let required = servers
            .into_iter()
            .flat_map(|server| server.policy.scopes_of_every_tool());
        self.scopes_and(required)
    }

    fn scopes_and<'t>(&'t self, required: impl Iterator<Item = &'t String>) -> Vec<&'t str> {
        let Some(own) = self.auth.scopes() else {
            return Vec::new();
        };
        let mut seen = BTreeSet::new();
        let all = own.iter().chain(required).map(String::as_str);
        all.filter(|scope| seen.insert(*scope)).collect()
    }
}

/// Replaces a part by the old one if they are equal.
fn reuse<T: PartialEq>(part: &mut Arc<T>, old: &Arc<T>) {
    if *part == *old {
        *part = Arc::clone(old);
    }
}

/// Replaces parts by the old ones under the same keys where they are equal.
fn reuse_all<'p, 'o, K: 'p, T: PartialEq + 'p + 'o>(
    parts: impl IntoIterator<Item = (&'p K, &'p mut Arc<T>)>,
    old: impl Fn(&'p K) -> Option<&'o Arc<T>>,
) {
    for (key, part) in parts {
        if let Some(old) = old(key) {
            reuse(part, old);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::identity::{OwnKey, Servers};
    use super::*;
    use crate::config::Format;
    use crate::manifest::reader::parse;

    #[test]
    fn the_next_end_of_a_key_is_known() {
        let of = |auth: &str| {
            let hash = |digit: &str| format!("hash: \"sha256:{}\"", digit.repeat(64));
            let (late, soon, never) = (hash("1"), hash("2"), hash("3"));
            let keys = format!(
                "{{late: {{{late}, subject: ada, servers: [\"*\"], expires: \"1970-01-01T00:00:50Z\"}},
                  soon: {{{soon}, subject: ada, servers: [\"*\"], expires: \"1970-01-01T00:00:20Z\"}},
                  never: {{{never}, subject: ada, servers: [\"*\"]}}}}"
            );
            let text = format!("tenants: {{a: {{auth: {{{auth}}}, api_keys: {keys}}}}}");
            let read = parse("F", &text, Format::Yaml, &BTreeMap::new());
            let own = OwnKey {
                name: "k_1".to_owned(),
                subject: "ada".to_owned(),
                groups: Arc::default(),
                scopes: Arc::default(),
                servers: Servers::All,
                hash: [1; 32],
                previous: Some(([2; 32], 30_000)),
                since_ms: 10_000,
                expires_ms: 300_000,
            };
            let mut issued = Issued::default();
            let own = [([1; 32], Arc::new(own))].into_iter().collect();
            issued.own_keys.insert("a".to_owned(), Arc::new(own));
            Catalog::new(read.unwrap().catalog.tenants, Arc::new(issued))
        };
        let ends = |catalog: &Catalog| {
            let mut ends = Vec::new();
            while let Some(end_ms) = catalog.next_key_end(ends.last().copied().unwrap_or(0)) {
                ends.push(end_ms);
            }
            ends
        };
        assert_eq!(ends(&of("mode: builtin")), [20_000, 50_000]);
        let all = [20_000, 30_000, 50_000, 130_000];
        assert_eq!(ends(&of("own_keys: {ttl: 2m}")), all);
        assert_eq!(ends(&Catalog::default()), [0; 0]);
    }

    fn read(text: &str) -> Catalog {
        let read = parse("F", text, Format::Yaml, &BTreeMap::new());
        read.unwrap().catalog
    }

    /// Each change made a copy of all keys, users and clients, and streams from before it kept theirs.
    #[test]
    fn a_change_of_one_object_copies_no_other() {
        let of = |expires: &str, title: &str| {
            let hash = |digit: usize| format!("hash: \"sha256:{}\"", digit.to_string().repeat(64));
            let key = |digit: usize| {
                let expires = if digit == 0 {
                    expires
                } else {
                    "2030-01-01T00:00:00Z"
                };
                let hash = hash(digit);
                format!(
                    "k{digit}: {{{hash}, subject: s{digit}, servers: [x], expires: \"{expires}\"}}"
                )
            };
            let keys = (0..10).map(key).collect::<Vec<_>>().join(", ");
            let client = |id: &str, title: &str| {
                format!("{id}: {{title: {title}, redirect_uris: [\"https://{id}.test/back\"]}}")
            };
            let clients = [client("one", title), client("other", "Other")].join(", ");
            read(&format!(
                "tenants: {{a: {{auth: {{mode: builtin}}, api_keys: {{{keys}}}, users: {{ada: {{}}, eve: {{}}}},
                  clients: {{{clients}}}, servers: {{x: {{command: cat}}}}}}}}"
            ))
        };
        let builtin = |catalog: &Catalog| match &catalog.tenants["a"].auth {
            AuthMode::Builtin(builtin) => Arc::clone(builtin),
            _ => unreachable!("it has its own authorization server"),
        };
        let before = of("2030-01-01T00:00:00Z", "One");
        let after = of("2031-01-01T00:00:00Z", "One").reusing(&before);
        let [old, new] = [&before, &after].map(|catalog| &catalog.tenants["a"]);
        assert!(!Arc::ptr_eq(old, new) && Arc::ptr_eq(&old.profile, &new.profile));
        let is_kept = |hash: &[u8; 32]| Arc::ptr_eq(&old.api_keys[hash], &new.api_keys[hash]);
        assert_eq!(new.api_keys.len(), 10);
        for hash in new.api_keys.keys() {
            assert_eq!(is_kept(hash), *hash != [0; 32]);
        }
        assert!(Arc::ptr_eq(&old.servers["x"], &new.servers["x"]));
        assert!(Arc::ptr_eq(&builtin(&before), &builtin(&after)));
        let retitled = of("2030-01-01T00:00:00Z", "Two").reusing(&before);
        let (old, new) = (builtin(&before), builtin(&retitled));
        assert!(!Arc::ptr_eq(&old, &new));
        assert!(
            old.users
                .iter()
                .all(|(name, user)| Arc::ptr_eq(user, &new.users[name]))
        );
        assert!(!Arc::ptr_eq(&old.clients["one"], &new.clients["one"]));
        assert_eq!(new.clients["one"].title, "Two");
        assert!(Arc::ptr_eq(&old.clients["other"], &new.clients["other"]));
    }

    #[test]
    fn a_change_copies_no_provider_and_no_issuer() {
        let of = |client: &str| {
            let all = |issuer: &str| {
                let one = format!("one: {{issuer: \"https://one.{issuer}\", client_id: {client}}}");
                let other = format!("other: {{issuer: \"https://other.{issuer}\", client_id: c}}");
                format!("{{{one}, {other}}}")
            };
            let (providers, upstreams) = (all("id.test"), all("hub.test"));
            read(&format!(
                "tenants: {{a: {{auth: {{mode: builtin}}, providers: {providers}, upstreams: {upstreams}}}}}"
            ))
        };
        let builtin = |catalog: &Catalog| match &catalog.tenants["a"].auth {
            AuthMode::Builtin(builtin) => Arc::clone(builtin),
            _ => unreachable!("it has its own authorization server"),
        };
        let before = of("c");
        let after = of("d").reusing(&before);
        let (old, new) = (builtin(&before), builtin(&after));
        for (name, is_kept) in [("one", false), ("other", true)] {
            let provider = Arc::ptr_eq(&old.providers[name], &new.providers[name]);
            let upstream = Arc::ptr_eq(&old.upstreams[name], &new.upstreams[name]);
            assert_eq!((provider, upstream), (is_kept, is_kept), "{name}");
        }
        let external = |server: &str| {
            read(&format!(
                "tenants: {{a: {{auth: {{mode: external, issuer: \"https://i.test\"}}, servers: {{{server}: {{command: cat}}}}}}}}"
            ))
        };
        let issuer = |catalog: &Catalog| match &catalog.tenants["a"].auth {
            AuthMode::External(external) => Arc::clone(external),
            _ => unreachable!("it has an external one"),
        };
        let before = external("x");
        let after = external("y").reusing(&before);
        assert!(Arc::ptr_eq(&issuer(&before), &issuer(&after)));
    }
}

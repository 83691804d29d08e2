//! The catalogue: the tenants that this gateway serves, each with its servers.
//!
//! Not here: the declaration of one server (`server`) and of its callers (`identity`).

use std::{
    collections::{BTreeMap, BTreeSet},
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
            tenant.id = Some(id);
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
                for (name, server) in &mut tenant.servers {
                    if let Some(old) = old.servers.get(name).filter(|old| *old == server) {
                        *server = Arc::clone(old);
                    }
                }
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
    /// The name in URLs.
    pub(crate) name: String,
    /// The row that declares it, once it is stored: one that is declared again under the name of a removed one is
    /// another, even if no snapshot was without it.
    pub(crate) id: Option<Uuid>,
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
    /// The session-based MCP revisions that its clients may negotiate, newest first; empty if it serves
    /// the modern one alone.
    pub(crate) revisions: Vec<Revision>,
    /// Whether it serves revision 2026-07-28.
    pub(crate) is_modern: bool,
    /// Its quotas.
    pub(crate) quotas: Quotas,
    /// Its servers by name.
    pub(crate) servers: BTreeMap<String, Arc<Server>>,
}

impl Tenant {
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
}

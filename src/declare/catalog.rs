//! The catalogue: the tenants that this gateway serves, each with its servers.
//!
//! Not here: the declaration of one server (`server`) and of its callers (`identity`).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::base::Table;
use crate::protocol::Revision;

use super::authorization_server::Issued;
use super::identity::{ApiKeys, AuthMode};
use super::quotas::Quotas;
use super::server::Server;

/// Every tenant that this gateway serves.
#[derive(Clone, Debug, Default)]
pub(crate) struct Catalog {
    /// Tenants by name.
    pub(crate) tenants: Table<String, Arc<Tenant>>,
    /// Keys and revocations, which decide whether tokens of this gateway are valid.
    pub(crate) issued: Arc<Issued>,
}

impl Catalog {
    /// Every server of every tenant, in no order.
    pub(crate) fn servers(&self) -> impl Iterator<Item = &Arc<Server>> {
        let tenants = self.tenants.values();
        tenants.flat_map(|tenant| tenant.servers.values())
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
}

/// The unit of isolation: tenants share nothing.
#[derive(Debug, PartialEq)]
pub(crate) struct Tenant {
    /// The name in URLs.
    pub(crate) name: String,
    /// The authentication of callers.
    pub(crate) auth: AuthMode,
    /// Its API keys.
    pub(crate) api_keys: ApiKeys,
    /// The server of requests that name none.
    pub(crate) default_server: Option<String>,
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

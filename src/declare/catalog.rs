//! Catalogue: the tenants that this gateway serves, each with its servers.
//!
//! Not here: the declaration of one server (`server`) and of its callers (`identity`).

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use crate::protocol::Revision;

use super::authorization_server::Issued;
use super::identity::{ApiKeys, AuthMode};
use super::quotas::Quotas;
use super::server::Server;

/// Every tenant that this gateway serves, by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Catalog {
    /// Tenants by their name.
    pub(crate) tenants: HashMap<String, Arc<Tenant>>,
    /// What decides whether tokens of our own issuers are worth anything.
    pub(crate) issued: Arc<Issued>,
}

impl Catalog {
    /// Every server of every tenant, in no order.
    pub(crate) fn servers(&self) -> impl Iterator<Item = &Arc<Server>> {
        let tenants = self.tenants.values();
        tenants.flat_map(|tenant| tenant.servers.values())
    }

    /// Takes over from `before` what is the same, so that what did not change can be told by its
    /// address.
    pub(crate) fn keeping(mut self, before: &Self) -> Self {
        for (name, tenant) in &mut self.tenants {
            let Some(old) = before.tenants.get(name) else {
                continue;
            };
            if tenant == old {
                *tenant = Arc::clone(old);
                continue;
            }
            // Nobody else has it yet.
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

/// The isolation boundary: nothing below it is ever shared with another tenant.
#[derive(Debug, PartialEq)]
pub(crate) struct Tenant {
    /// Its name, as in the URL.
    pub(crate) name: String,
    /// How callers prove who they are.
    pub(crate) auth: AuthMode,
    /// Its API keys.
    pub(crate) api_keys: ApiKeys,
    /// The server meant where a request names none.
    pub(crate) default_server: Option<String>,
    /// Revisions that its clients may negotiate, newest first; never empty.
    pub(crate) revisions: Vec<Revision>,
    /// How much of the gateway it may use.
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
        let Some(own) = self.auth.scopes() else {
            return Vec::new();
        };
        let required = servers
            .into_iter()
            .flat_map(|server| server.policy.all_scopes());
        let mut seen = BTreeSet::new();
        let all = own.iter().chain(required).map(String::as_str);
        all.filter(|scope| seen.insert(*scope)).collect()
    }
}

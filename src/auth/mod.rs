//! Who calls, and the proof that they may.
//!
//! Hub methods take an [`Access`], and this module alone can make one: a call that nobody
//! checked does not compile.

use std::sync::Arc;

use crate::control::{AuthMode, Server, Tenant};

pub(crate) mod policy;

/// Who calls. Sessions belong to one of these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Principal {
    tenant: String,
    /// None is the anonymous principal of a tenant without authentication.
    subject: Option<String>,
}

impl Principal {
    /// What tells it from every other principal of its tenant.
    pub(crate) fn key(&self) -> &str {
        self.subject.as_deref().unwrap_or_default()
    }
}

/// Proof that a principal may use a server.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    principal: Principal,
    tenant: Arc<Tenant>,
    server: Arc<Server>,
    scopes: Arc<[String]>,
}

impl Access {
    /// Who calls.
    pub(crate) fn principal(&self) -> &Principal {
        &self.principal
    }

    /// The tenant whose server it is.
    pub(crate) fn tenant(&self) -> &Arc<Tenant> {
        &self.tenant
    }

    /// What the credentials allow beside the server itself: OAuth scopes.
    pub(crate) fn scopes(&self) -> &[String] {
        &self.scopes
    }

    /// What may be used.
    pub(crate) fn server(&self) -> &Arc<Server> {
        &self.server
    }
}

/// Decides whether a request may use `server` of `tenant`.
pub(crate) fn admit(tenant: Arc<Tenant>, server: Arc<Server>) -> Access {
    match tenant.auth {
        AuthMode::None => {
            let principal = Principal {
                tenant: tenant.name.clone(),
                subject: None,
            };
            Access {
                principal,
                tenant,
                server,
                scopes: Arc::default(),
            }
        }
    }
}

#[cfg(test)]
impl Access {
    /// The access of a person of the tenant, whoever checked it.
    pub(crate) fn of(tenant: &Arc<Tenant>, server: &Arc<Server>, subject: &str) -> Self {
        Self {
            principal: Principal {
                tenant: tenant.name.clone(),
                subject: Some(subject.to_owned()),
            },
            tenant: Arc::clone(tenant),
            server: Arc::clone(server),
            scopes: Arc::default(),
        }
    }

    /// The same with these scopes.
    pub(crate) fn with_scopes(mut self, scopes: &[&str]) -> Self {
        self.scopes = scopes.iter().map(|scope| (*scope).to_owned()).collect();
        self
    }
}

//! Who may administrate: operators, who see every tenant, and administrators of one.
//!
//! Both prove it by an API key with the scope `admin`: an operator's belongs to no tenant. Not
//! here: what may be administrated (`http/admin`).

use super::{
    Credential, Principal, Verifier, api_key,
    denials::{Caller, Denial},
};
use crate::{
    auth::API_KEY_ISSUER,
    control::{Catalog, identity::OperatorKeys},
    telemetry::Denied,
};

/// Somebody who may administrate.
#[derive(Clone, Debug)]
pub(crate) struct Administrator {
    /// Who it is, for the audit trail.
    pub(crate) actor: String,
    /// The only tenant that it sees; none sees all.
    tenant: Option<String>,
}

impl Administrator {
    /// Whether it is an operator.
    pub(crate) fn is_operator(&self) -> bool {
        self.tenant.is_none()
    }

    /// Whether what belongs to `tenant` exists for it.
    pub(crate) fn sees(&self, tenant: &str) -> bool {
        self.tenant.as_ref().is_none_or(|own| own == tenant)
    }

    /// The only tenant that it sees.
    pub(crate) fn tenant(&self) -> Option<&str> {
        self.tenant.as_deref()
    }
}

/// Why somebody may not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoAdministrator {
    /// There were no credentials.
    NoToken,
    /// They are worth nothing here.
    BadToken,
    /// They lack the scope.
    NoScope,
}

impl Verifier {
    /// Whom a credential shows, if that is somebody who may administrate.
    ///
    /// # Errors
    ///
    /// Why not; it has been reported.
    pub(crate) fn administrator(
        &self,
        catalog: &Catalog,
        operators: &OperatorKeys,
        credential: Credential<'_>,
        from: Option<std::net::IpAddr>,
    ) -> Result<Administrator, NoAdministrator> {
        let deny = |why, who, tenant: &str, reason, detail| {
            self.0.denials.report(Denial {
                who,
                tenant: tenant.into(),
                server: "".into(),
                route: "admin",
                reason,
                detail,
            });
            Err(why)
        };
        let (none, bad) = (Denied::NoToken, Denied::BadToken);
        let at = Caller::At(from);
        let text = match credential {
            Credential::None => return deny(NoAdministrator::NoToken, at, "", none, "no token"),
            Credential::Malformed => {
                return deny(NoAdministrator::BadToken, at, "", bad, "malformed");
            }
            Credential::Bearer(text) => text,
        };
        let now = (self.0.clock)();
        let hash = api_key::hash_of(text);
        if let Some(key) = hash
            .and_then(|hash| operators.get(&hash))
            .filter(|key| key.holds(now))
        {
            return Ok(Administrator {
                actor: format!("operator:{}", key.name),
                tenant: None,
            });
        }
        let found = catalog
            .tenants
            .values()
            .find_map(|tenant| Some((tenant, api_key::find(tenant, text, now)?.1)));
        let Some((tenant, key)) = found else {
            return deny(NoAdministrator::BadToken, at, "", bad, "no key known here");
        };
        if !key.scopes.iter().any(|scope| scope == SCOPE) {
            let (issuer, subject) = (Some(API_KEY_ISSUER), Some(key.subject.as_str()));
            let who = Principal::new(&tenant.name, issuer, subject, Some(&key.name));
            let (who, reason) = (Caller::Known(who), Denied::NoGrant);
            return deny(
                NoAdministrator::NoScope,
                who,
                &tenant.name,
                reason,
                "no scope admin",
            );
        }
        Ok(Administrator {
            actor: format!("key:{}/{}", tenant.name, key.name),
            tenant: Some(tenant.name.clone()),
        })
    }
}

/// The scope of those who administrate.
pub(crate) const SCOPE: &str = "admin";

//! Authorization server of one tenant, extracted from the path of a request.

use std::sync::Arc;

use axum::{
    extract::FromRequestParts,
    response::{IntoResponse, Response},
};
use http::request::Parts;

use super::state::{Oauth, OauthState};
use crate::{
    declare::{AuthMode, Builtin, Tenant},
    endpoint::{self, OauthEndpoint},
    oauth::clients::Clients,
};

/// Authorization server of one tenant, for the duration of one request.
#[derive(Clone)]
pub(crate) struct AuthorizationServer {
    /// The tenant.
    pub(crate) tenant: Arc<Tenant>,
    /// Its declaration.
    pub(crate) builtin: Arc<Builtin>,
    /// Its issuer.
    pub(crate) issuer: String,
}

impl AuthorizationServer {
    /// Returns the authorization server of a tenant; `None` if the tenant does not exist or does not
    /// have its own.
    pub(crate) fn of(state: &OauthState, tenant: &str) -> Option<Self> {
        let tenant = state.snapshot.catalog().tenants.get(tenant).cloned()?;
        let AuthMode::Builtin(builtin) = &tenant.auth else {
            return None;
        };
        let config = &state.config;
        Some(Self {
            builtin: Arc::clone(builtin),
            issuer: endpoint::issuer(&config.public_url, config.default.as_ref(), &tenant.name),
            tenant,
        })
    }

    /// Returns the authorization server for a path below the public URL: `/t/{tenant}/oauth/…`, or
    /// an alias path of the default tenant.
    pub(crate) fn at(state: &OauthState, path: &str) -> Option<Self> {
        let tenant = endpoint::oauth_tenant(path, state.config.default.as_ref())?;
        Self::of(state, tenant)
    }

    /// Builds the URL of an endpoint.
    pub(crate) fn endpoint(&self, state: &OauthState, endpoint: OauthEndpoint<'_>) -> String {
        endpoint.url(&state.config.public_url, &self.tenant.name)
    }

    /// Returns the clients of the tenant.
    pub(crate) fn clients<'s>(&'s self, state: &'s OauthState) -> Clients<'s> {
        Clients {
            tenant: &self.tenant.name,
            builtin: &self.builtin,
            documents: &state.documents,
            snapshot: &state.snapshot,
        }
    }

    /// Returns the scopes that its metadata advertise, sorted by name. Clients that know of no others
    /// request all of them, so those that single tools require are not told (RFC 8414, section 2: "Servers
    /// MAY choose not to advertise some supported scope values").
    pub(crate) fn advertised_scopes(&self) -> Vec<&str> {
        let mut scopes = self.tenant.baseline_scopes(self.tenant.servers.values());
        scopes.sort_unstable();
        scopes
    }
}

impl FromRequestParts<Oauth> for AuthorizationServer {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, oauth: &Oauth) -> Result<Self, Response> {
        let found = Self::at(&oauth.0, parts.uri.path());
        found.ok_or_else(|| oauth.0.no_server().into_response())
    }
}

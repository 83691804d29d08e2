//! Authorization server of one tenant, extracted from the path of a request.

use std::{collections::BTreeSet, future::ready, net::IpAddr, sync::Arc};

use axum::{
    extract::FromRequestParts,
    response::{IntoResponse, Response},
};
use futures_util::future::BoxFuture;
use http::{Extensions, request::Parts};

use super::state::{Oauth, OauthState};
use crate::{
    auth::{People, PersonStanding},
    declare::{AllowedScopes, AuthMode, Builtin, DeclaredClient, OFFLINE_ACCESS, Provider, Tenant},
    endpoint::{OauthEndpoint, Site, TenantHost},
    oauth::{
        base::OauthRefusal,
        clients::{CLIENT_CREDENTIALS, Clients, GRANT_TYPES, JWT_BEARER},
        providers::{Standing, StandingOf, WantedClaims},
    },
};

/// Authorization server of one tenant, for the duration of one request.
#[derive(Clone)]
pub(crate) struct AuthorizationServer {
    /// The tenant.
    pub(crate) tenant: Arc<Tenant>,
    /// Its declaration.
    pub(crate) builtin: Arc<Builtin>,
    /// Its issuer, at the host of the request.
    pub(crate) issuer: String,
    /// The host of the tenant that the request names.
    host: Option<Arc<TenantHost>>,
}

impl AuthorizationServer {
    /// Returns the authorization server of a tenant; `None` if the tenant does not exist or does not
    /// have its own.
    fn of(state: &OauthState, host: Option<&Arc<TenantHost>>, tenant: &str) -> Option<Self> {
        let tenant = state.snapshot.catalog().tenants.get(tenant).cloned()?;
        let AuthMode::Builtin(builtin) = &tenant.auth else {
            return None;
        };
        Some(Self {
            builtin: Arc::clone(builtin),
            issuer: site(state, host).issuer(&tenant.name),
            host: host.cloned(),
            tenant,
        })
    }

    /// Returns the authorization server for the path of a request: `/t/{tenant}/oauth/…`, or an alias path of
    /// the default tenant or of the tenant whose host it names.
    pub(crate) fn at(state: &OauthState, path: &str, extensions: &Extensions) -> Option<Self> {
        let host = extensions.get();
        let tenant = site(state, host).oauth_tenant(path)?;
        Self::of(state, host, tenant)
    }

    /// Returns the authorization server whose issuer has this well-known path.
    ///
    /// The path of the public URL precedes only an inserted prefix. The proxy has removed it in front of an
    /// appended suffix, as for every other endpoint.
    pub(crate) fn described_at(
        state: &OauthState,
        path: &str,
        extensions: &Extensions,
    ) -> Result<Self, OauthRefusal> {
        let host = extensions.get();
        let tenant = site(state, host).issuer_tenant(path);
        let found = tenant.and_then(|tenant| Self::of(state, host, tenant));
        found.ok_or_else(|| state.no_server(tenant))
    }

    /// Returns the site of the request.
    pub(crate) fn site<'s>(&'s self, state: &'s OauthState) -> Site<'s> {
        site(state, self.host.as_ref())
    }

    /// Builds the URL of an endpoint.
    pub(crate) fn endpoint(&self, state: &OauthState, endpoint: OauthEndpoint<'_>) -> String {
        endpoint.url(self.site(state).url, &self.tenant.name)
    }

    /// Returns the names of the issuer as an audience: clients write the URL of a host with the path "/" (RFC 3986, section
    /// 6.2.3).
    pub(crate) fn own_audiences(&self) -> [String; 2] {
        [self.issuer.clone(), format!("{}/", self.issuer)]
    }

    /// Returns the clients of the tenant, for a request from this address.
    pub(crate) fn clients<'s>(
        &'s self,
        state: &'s OauthState,
        from: Option<IpAddr>,
    ) -> Clients<'s> {
        Clients {
            tenant: &self.tenant.name,
            from,
            builtin: &self.builtin,
            documents: &state.documents,
            snapshot: &state.snapshot,
        }
    }

    /// Returns the grant types of its clients; those of machines only if an operator declared one.
    pub(crate) fn grant_types(&self) -> Vec<&'static str> {
        let has =
            |is: fn(&DeclaredClient) -> bool| self.builtin.clients.values().any(|one| is(one));
        let machines = has(|client| client.is_machine && client.workload.is_none());
        let machines = machines.then_some(CLIENT_CREDENTIALS);
        let workloads = has(|client| client.workload.is_some());
        let assertions = (workloads || self.is_vouched_to()).then_some(JWT_BEARER);
        let all = GRANT_TYPES.into_iter().chain(machines);
        all.chain(assertions).collect()
    }

    /// Reports whether the identity assertions (ID-JAG) of a provider let clients act for its people.
    pub(crate) fn is_vouched_to(&self) -> bool {
        self.builtin.providers.values().any(|one| one.vouches())
    }

    /// Returns the scopes that a person, or a client itself, may have for a server of the tenant with a client; `None` if it may not use
    /// the server, or the server does not exist. `claimed` are groups that an identity provider told.
    pub(crate) fn allowed_scopes(
        &self,
        server: &str,
        (subject, claimed): (&str, &[String]),
        client: &str,
    ) -> Option<AllowedScopes<'_>> {
        let person = self.builtin.subject(subject, claimed).ok()?;
        let server = self.tenant.servers.get(server)?;
        server.scopes_of(subject, person.groups(claimed), Some(client))
    }

    /// Returns those of the groups of a subject that decide something at a server: its declaration or `allow` of the
    /// provider names them. The groups of a local user count as they are declared, whatever a token tells.
    pub(crate) fn needed_groups(
        &self,
        server: Option<&str>,
        (subject, groups): (&str, &[String]),
    ) -> Vec<String> {
        let Some(provider) = self.builtin.provider_of(subject) else {
            return Vec::new();
        };
        let server = server.and_then(|name| self.tenant.servers.get(name));
        let is_needed = |group: &&String| {
            provider.allow.groups.contains(group)
                || server.is_some_and(|server| server.names_group(group))
        };
        // `groups_map` may call several by one name.
        let needed: BTreeSet<&String> = groups.iter().filter(is_needed).collect();
        needed.into_iter().cloned().collect()
    }

    /// Returns a person of an identity provider, whose standing can be asked for.
    pub(crate) fn standing_of(&self, subject: &str) -> Option<StandingOf> {
        StandingOf::of(&self.tenant, &self.builtin, subject)
    }

    /// Returns the claims on which access depends, in addition to the subject.
    pub(crate) fn wanted_claims(&self, provider: &Provider) -> WantedClaims {
        WantedClaims::of(&self.tenant, provider)
    }

    /// Returns those of the scopes that `allowed` includes; `offline_access` if it includes none of them, since the
    /// token response cannot name an empty scope (RFC 6749, section 5.1).
    pub(crate) fn granted<'r>(
        &self,
        server: &str,
        allowed: &AllowedScopes<'_>,
        scopes: impl Iterator<Item = &'r str>,
    ) -> Vec<&'r str> {
        let Some(server) = self.tenant.servers.get(server) else {
            return Vec::new();
        };
        let mut scopes = scopes.peekable();
        let has_asked = scopes.peek().is_some();
        let granted = scopes.filter(|scope| allowed.include(&server.policy, scope));
        let mut granted: Vec<&str> = granted.collect();
        if granted.is_empty() && has_asked {
            granted.push(OFFLINE_ACCESS);
        }
        granted
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

/// For API keys that people made, which are asked about as tokens are at a refresh.
impl People for Oauth {
    fn standing<'p>(
        &'p self,
        tenant: &'p Tenant,
        builtin: &'p Builtin,
        subject: &'p str,
    ) -> BoxFuture<'p, PersonStanding> {
        let Some(of) = StandingOf::of(tenant, builtin, subject) else {
            return Box::pin(ready(PersonStanding::Good));
        };
        Box::pin(async {
            match self.0.standings.ask(of).await {
                Ok(Standing::Good(_)) => PersonStanding::Good,
                Ok(Standing::Ended) => PersonStanding::Ended,
                Ok(Standing::Unknown) => PersonStanding::Unknown,
                Err(_) => PersonStanding::NoStore,
            }
        })
    }
}

fn site<'s>(state: &'s OauthState, host: Option<&'s Arc<TenantHost>>) -> Site<'s> {
    let config = &state.config;
    Site::of(
        &config.public_url,
        config.default.as_ref(),
        host.map(AsRef::as_ref),
    )
}

impl FromRequestParts<Oauth> for AuthorizationServer {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, oauth: &Oauth) -> Result<Self, Response> {
        let (state, path, host) = (&*oauth.0, parts.uri.path(), parts.extensions.get());
        let tenant = site(state, host).oauth_tenant(path);
        let found = tenant.and_then(|tenant| Self::of(state, host, tenant));
        found.ok_or_else(|| state.no_server(tenant).into_response())
    }
}

//! The authorization server of each tenant (OAuth 2.1, DESIGN section 6).
//!
//! `metadata` says where everything is; `register` and `cimd` are how clients become known, `client`
//! is who they are and how they prove it; `token` and `revoke` are the rest of the machine side.
//! The browser side begins at `authorize`: `ask` is what a request means, `visit` what its steps
//! share, `flow` what it carries from page to page, `login` and `consent` are the pages' steps,
//! `provider` and `callback` the way to somebody else who knows people.
//! Not here: what tokens are worth (`auth`), and the rows (`control`).

use super::browser::authorize;
use super::clients::register;
use super::metadata;
use super::providers::openid;
use super::tokens::revoke;
use super::tokens::token;
use std::{net::IpAddr, sync::Arc};

use aws_lc_rs::rand::SystemRandom;
use axum::{
    Router,
    extract::FromRequestParts,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use http::request::Parts;

use crate::{
    auth::Denials,
    base::{Clock, Outbound},
    config::{ClientAddress, Config},
    declare::{AuthMode, Builtin, Tenant, issuer},
    snapshot::{Live, Trail},
};

use super::clients::Documents;
use super::error::Refusal;
use super::throttle::Throttle;

/// What every endpoint shares; clones are the same.
#[derive(Clone)]
pub(crate) struct Oauth(pub(crate) Arc<State>);

/// The parts.
pub(crate) struct State {
    /// Settings.
    pub(crate) config: Arc<Config>,
    /// Tenants, and the store.
    pub(crate) live: Arc<Live>,
    /// Asks what clients and providers name.
    pub(crate) outbound: Outbound,
    /// Wall time.
    pub(crate) clock: Clock,
    /// The audit trail.
    pub(crate) trail: Trail,
    /// Randomness.
    pub(crate) random: SystemRandom,
    /// Wrong codes, secrets, tokens and passwords, by address.
    pub(crate) failures: Throttle,
    /// Registrations, by address, by redirect host and in all.
    pub(crate) registrations: Throttle,
    /// What client ids that are URLs lead to.
    pub(crate) documents: Documents,
    /// What identity providers say about themselves.
    pub(crate) openid: openid::Known,
    /// Where wrong passwords are reported.
    pub(crate) denials: Denials,
}

impl Oauth {
    /// From what it is given.
    pub(crate) fn new(
        config: Arc<Config>,
        live: Arc<Live>,
        outbound: Outbound,
        clock: Clock,
        trail: Trail,
        denials: Denials,
    ) -> Self {
        Self(Arc::new(State {
            config,
            live,
            documents: Documents::new(outbound.clone()),
            outbound,
            clock,
            trail,
            random: SystemRandom::new(),
            failures: Throttle::new(),
            registrations: Throttle::new(),
            openid: openid::Known::new(),
            denials,
        }))
    }

    /// Every endpoint of every issuer.
    pub(crate) fn routes(self) -> Router {
        let managed = get(register::read)
            .put(register::replace)
            .delete(register::remove);
        Router::new()
            .route(metadata::OAUTH, get(metadata::document))
            .route(
                &format!("{}/{{*path}}", metadata::OAUTH),
                get(metadata::document),
            )
            .route(metadata::OPENID, get(metadata::document))
            .route(
                &format!("{}/{{*path}}", metadata::OPENID),
                get(metadata::document),
            )
            .route(
                &format!("/t/{{tenant}}{}", metadata::OPENID),
                get(metadata::document),
            )
            .route("/t/{tenant}/oauth/jwks", get(metadata::keys))
            .route("/t/{tenant}/oauth/register", post(register::register))
            .route("/t/{tenant}/oauth/register/{client_id}", managed)
            .route("/t/{tenant}/oauth/token", post(token::token))
            .route("/t/{tenant}/oauth/revoke", post(revoke::revoke))
            // 2025-03-26 authorization, "Fallbacks for Servers without Metadata Discovery".
            .route("/register", post(register::register))
            .route("/token", post(token::token))
            .merge(authorize::routes())
            .with_state(self)
    }
}

/// One tenant's authorization server, for the time of one request.
#[derive(Clone)]
pub(crate) struct Server {
    /// The tenant.
    pub(crate) tenant: Arc<Tenant>,
    /// What is declared for it.
    pub(crate) builtin: Arc<Builtin>,
    /// Its issuer.
    pub(crate) issuer: String,
}

impl Server {
    /// The server of a tenant; none if there is no such tenant, or it has no server of its own.
    pub(crate) fn of(state: &State, tenant: &str) -> Option<Self> {
        let tenant = state.live.current().tenants.get(tenant).cloned()?;
        let AuthMode::Builtin(builtin) = &tenant.auth else {
            return None;
        };
        let config = &state.config;
        Some(Self {
            builtin: Arc::clone(builtin),
            issuer: issuer::issuer(&config.public_url, config.default.as_ref(), &tenant.name),
            tenant,
        })
    }

    /// The server that a path below the public URL belongs to: `/t/{tenant}/oauth/…`, or one of the
    /// short ones.
    pub(crate) fn at(state: &State, path: &str) -> Option<Self> {
        let tenant = match path.strip_prefix("/t/") {
            Some(rest) => rest.split_once('/')?.0,
            None => &state.config.default.as_ref()?.0,
        };
        Self::of(state, tenant)
    }

    /// The URL of one of its endpoints.
    pub(crate) fn endpoint(&self, state: &State, name: &str) -> String {
        let public_url = &state.config.public_url;
        format!("{public_url}/t/{}/oauth/{name}", self.tenant.name)
    }

    /// Every scope that somebody may ask for, in the order of their names.
    pub(crate) fn scopes(&self) -> Vec<&str> {
        let servers = self.tenant.servers.values();
        let needed = servers.flat_map(|server| server.policy.all_scopes());
        let own = self.builtin.scopes.iter().chain(needed);
        let all: std::collections::BTreeSet<&str> = own.map(String::as_str).collect();
        all.into_iter().collect()
    }
}

impl FromRequestParts<Oauth> for Server {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, oauth: &Oauth) -> Result<Self, Response> {
        let found = Self::at(&oauth.0, parts.uri.path());
        found.ok_or_else(|| Refusal::no_server(&oauth.0).into_response())
    }
}

/// The address that a request is accounted to.
pub(crate) fn address(parts: &Parts) -> Option<IpAddr> {
    let address = parts.extensions.get::<ClientAddress>();
    address.map(|address| address.0)
}

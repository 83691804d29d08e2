//! All routes of the authorization servers.

use axum::{
    Router,
    routing::{MethodRouter, get, post},
};

use super::{
    browser::{account, authorize, callback, connection, consent, login},
    discovery, logout, registration,
    server::Oauth,
    tokens::{revoke, token},
};
use crate::endpoint::{
    AUTHORIZATION_SERVER, OPENID_CONFIGURATION, OauthEndpoint, appended_configuration,
};

impl Oauth {
    /// The routes of all tenants' authorization servers.
    pub(crate) fn routes(self) -> Router {
        Router::new()
            .merge(for_discovery())
            .merge(for_clients())
            .merge(for_browsers())
            .with_state(self)
    }
}

/// Metadata at the well-known URLs of each issuer, and the JWK set.
fn for_discovery() -> Router<Oauth> {
    let document = || get(discovery::document);
    let below = |prefix| format!("{prefix}/{{*path}}");
    Router::new()
        .route(AUTHORIZATION_SERVER, document())
        .route(&below(AUTHORIZATION_SERVER), document())
        .route(OPENID_CONFIGURATION, document())
        .route(&below(OPENID_CONFIGURATION), document())
        .route(&appended_configuration(TENANT), document())
        .route(&OauthEndpoint::Jwks.path(TENANT), get(discovery::keys))
}

/// Registration, tokens, revocation, and logout tokens of providers.
fn for_clients() -> Router<Oauth> {
    let managed = get(registration::read)
        .put(registration::replace)
        .delete(registration::remove);
    let one = OauthEndpoint::Registration("{client_id}").path(TENANT);
    let revoked = OauthEndpoint::Revoke.path(TENANT);
    let routes = Router::new().route(&one, managed);
    let routes = routes.route(&revoked, post(revoke::revoke));
    let logged_out = OauthEndpoint::Logout("{provider}").path(TENANT);
    let routes = routes.route(&logged_out, post(logout::logout));
    let register = || post(registration::register);
    let routes = with_alias(routes, OauthEndpoint::Register, register);
    with_alias(routes, OauthEndpoint::Token, || post(token::token))
}

/// The authorization endpoint and the steps of a log-in.
fn for_browsers() -> Router<Oauth> {
    let authorize = || get(authorize::begin).post(authorize::begin_by_form);
    let returned = OauthEndpoint::Callback("{provider}").path(TENANT);
    let connected = OauthEndpoint::Connected("{upstream}").path(TENANT);
    let routes = Router::new()
        .route(
            &OauthEndpoint::Account.path(TENANT),
            get(account::show).post(account::change),
        )
        .route(&OauthEndpoint::Login.path(TENANT), post(login::login))
        .route(&OauthEndpoint::Consent.path(TENANT), post(consent::consent))
        .route(&returned, get(callback::callback))
        .route(&connected, get(connection::connected));
    with_alias(routes, OauthEndpoint::Authorize, authorize)
}

/// Adds an endpoint of each tenant, with its alias for the default tenant.
fn with_alias(
    routes: Router<Oauth>,
    endpoint: OauthEndpoint<'_>,
    handlers: impl Fn() -> MethodRouter<Oauth>,
) -> Router<Oauth> {
    let routes = routes.route(&endpoint.path(TENANT), handlers());
    match endpoint.alias() {
        Some(alias) => routes.route(alias, handlers()),
        None => routes,
    }
}

/// Placeholder of the tenant in the path of a route.
const TENANT: &str = "{tenant}";

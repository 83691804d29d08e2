//! Every endpoint of every authorization server, on one page.

use axum::{
    Router,
    routing::{get, post},
};

use super::{
    browser::{authorize, callback, consent, login},
    discovery, registration,
    server::Oauth,
    tokens::{revoke, token},
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
        .route(discovery::OAUTH, document())
        .route(&below(discovery::OAUTH), document())
        .route(discovery::OPENID, document())
        .route(&below(discovery::OPENID), document())
        .route(&format!("/t/{{tenant}}{}", discovery::OPENID), document())
        .route("/t/{tenant}/oauth/jwks", get(discovery::keys))
}

/// Registration, tokens and revocation.
fn for_clients() -> Router<Oauth> {
    let managed = get(registration::read)
        .put(registration::replace)
        .delete(registration::remove);
    Router::new()
        .route("/t/{tenant}/oauth/register", post(registration::register))
        .route("/t/{tenant}/oauth/register/{client_id}", managed)
        .route("/t/{tenant}/oauth/token", post(token::token))
        .route("/t/{tenant}/oauth/revoke", post(revoke::revoke))
        // 2025-03-26 authorization, "Fallbacks for Servers without Metadata Discovery".
        .route("/register", post(registration::register))
        .route("/token", post(token::token))
}

/// The authorization endpoint and the steps of a log-in.
fn for_browsers() -> Router<Oauth> {
    let authorize = || get(authorize::begin).post(authorize::begin_by_form);
    Router::new()
        .route("/authorize", authorize())
        .route("/t/{tenant}/oauth/authorize", authorize())
        .route("/t/{tenant}/oauth/login", post(login::login))
        .route("/t/{tenant}/oauth/consent", post(consent::consent))
        .route(
            "/t/{tenant}/oauth/callback/{provider}",
            get(callback::callback),
        )
}

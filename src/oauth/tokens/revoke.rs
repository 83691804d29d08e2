//! The revocation endpoint (RFC 7009): a client revokes the grant behind one of its tokens.

use axum::{
    body::Body,
    extract::{self, Request},
    response::Response,
};
use serde_json::json;

use super::{client_authentication::authenticate, jose};
use crate::{
    database::oauth::Revoked,
    oauth::{
        base::{OauthRefusal, SecretKind, posted::posted, refusal::forbid_storing, secret},
        server::{
            Attempt, AuthorizationServer, Oauth, OauthState,
            attempt::{address, attempt, note},
        },
    },
};

/// POST: revokes the grant of a token.
pub(crate) async fn revoke(
    extract::State(oauth): extract::State<Oauth>,
    server: AuthorizationServer,
    request: Request,
) -> Response {
    let state = &*oauth.0;
    let (address, attempted) = (
        address(request.extensions()),
        revoke_grant(state, &server, request),
    );
    attempt(state, &server, address, "revoke", Box::pin(attempted)).await
}

async fn revoke_grant(
    state: &OauthState,
    server: &AuthorizationServer,
    request: Request,
) -> Result<Response, OauthRefusal> {
    let (head, form) = posted(request).await?;
    let text = form.need("token", "token is missing")?;
    // A revocation is no attempt to be let in: the log alone has the reason.
    let attempt = Attempt::default();
    let client = authenticate(state, server, (&head, &form), &attempt).await?;
    let (tenant, store) = (&server.tenant.name, state.snapshot.database()?);
    // The prefix shows the type; the hint is ignored (section 2.1).
    let found = if text.starts_with(SecretKind::Refresh.prefix()) {
        let grants = store.grants();
        let mut grant = grants.of_refresh(tenant, &secret::hash(text)).await?;
        // A used one that is not kept any more.
        if let (None, Some(family)) = (&grant, secret::family(text)) {
            grant = grants.of_family(tenant, &family).await?;
        }
        grant.map(|grant| (grant.id, grant.client_id))
    } else {
        let catalog = state.snapshot.catalog();
        let keys = catalog.issued.keys.get(tenant);
        keys.and_then(|keys| jose::grant_of(text, &server.issuer, keys))
    };
    // A token of another client is left alone, with the same response (section 2.1).
    if let Some((grant, _)) = found.filter(|(_, owner)| *owner == client.id) {
        let issued = &state.snapshot.catalog().issued;
        let known = issued.revoked.get(tenant);
        // It holds here already, and would take the lock of all writers for nothing.
        if known.is_some_and(|known| known.grants.contains_key(&grant)) {
            return Ok(revoked_or_unknown());
        }
        // One that has ended otherwise, or long ago, would do so as well. A flood that keeps this from being read keeps no
        // revocation from being made.
        let is_live = store.revocations().is_live(tenant, grant).await;
        let revoked = Revoked::Grant(grant);
        if is_live.unwrap_or(true) && store.revocations().revoke(tenant, &revoked).await? {
            let (actor, target) = (format!("client:{}", client.id), format!("grant {grant}"));
            let detail = json!({"why": "its client revoked it"});
            note(state, server, "grant.revoked", &actor, &target, detail);
            state.audit.flush().await;
        }
        // The token is of no use here once this is answered; without that it is 503, and the client may
        // ask again (section 2.2.1).
        state.snapshot.refresh_issued().await?;
    }
    Ok(revoked_or_unknown())
}

/// The response is the same for a token that is not known (section 2.2).
fn revoked_or_unknown() -> Response {
    let mut response = Response::new(Body::empty());
    forbid_storing(response.headers_mut());
    response
}

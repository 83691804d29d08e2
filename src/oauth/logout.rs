//! Back-channel logout: an identity provider ends the log-ins and grants of a person (OpenID Connect Back-Channel
//! Logout 1.0).
//!
//! Not here: the verification of logout tokens (`providers`), and the end of grants (`database::oauth::revocations`).

use axum::{
    body::Body,
    extract::{self, Request},
    response::Response,
};
use serde_json::json;

use super::{
    base::{OauthRefusal, RefusalCode, posted::posted, refusal::forbid_storing},
    providers::{LogoutToken, ProviderError, REFETCH},
    server::{
        AuthorizationServer, Oauth, OauthState,
        attempt::{address, attempt},
    },
};
use crate::{
    base::Sha256,
    database::{Record, oauth::LoggedOut},
    declare::Provider,
};

/// POST: handles the logout token of a provider.
pub(crate) async fn logout(
    extract::State(oauth): extract::State<Oauth>,
    extract::Path((_, provider)): extract::Path<(String, String)>,
    server: AuthorizationServer,
    request: Request,
) -> Response {
    let state = &*oauth.0;
    let address = address(request.extensions());
    let attempted = log_out(state, &server, &provider, request);
    attempt(state, &server, address, "logout", Box::pin(attempted)).await
}

async fn log_out(
    state: &OauthState,
    server: &AuthorizationServer,
    provider: &str,
    request: Request,
) -> Result<Response, OauthRefusal> {
    let (_, form) = posted(request).await?;
    let text = form.need("logout_token", "logout_token is missing")?;
    let provider = server.builtin.providers.get(provider).ok_or(BAD_TOKEN)?;
    let token = state.providers.of(provider).logout_token(text).await;
    let token = token.map_err(|error| refused(provider, &error))?;
    // While the store is away 503, so that the provider sends it again: section 2.8 has 400 alone.
    end(state, server, provider, &token).await?;
    let mut response = Response::new(Body::empty());
    forbid_storing(response.headers_mut());
    Ok(response)
}

async fn end(
    state: &OauthState,
    server: &AuthorizationServer,
    provider: &Provider,
    token: &LogoutToken,
) -> Result<(), OauthRefusal> {
    let there = |name: &String| format!("{}#{name}", provider.issuer());
    let what = match (&token.session, &token.subject) {
        (Some(session), subject) => LoggedOut::Session {
            session: there(session),
            subject: subject.as_ref().map(there),
        },
        (None, Some(subject)) => LoggedOut::Subject(there(subject)),
        (None, None) => return Err(BAD_TOKEN),
    };
    let tenant = &server.tenant.name;
    let detail = json!({
        "by": provider.name, "why": "logged out there", "subject": token.subject.as_ref().map(there),
    });
    let target = format!("tenant {tenant}");
    let record = Record::new(Some(tenant), "identity.ended", "provider", &target, detail);
    let until_ms = token.expires_s.saturating_mul(1000);
    let once = (&replay_key(provider, token), until_ms);
    let revocations = state.snapshot.database()?.revocations();
    if !revocations.log_out(tenant, &what, once, &record).await? {
        return Err(BAD_TOKEN);
    }
    // What is made is followed by the next poll, and would be no logout if it came again.
    if let Err(failure) = state.snapshot.refresh_issued().await {
        tracing::warn!(%failure, "a logout is stored and not served yet");
    }
    Ok(())
}

/// The key under which a used token is recorded.
fn replay_key(provider: &Provider, token: &LogoutToken) -> [u8; 32] {
    let mut digest = Sha256::new();
    for part in ["logout_token", provider.issuer(), &token.id] {
        digest.add_part(part.as_bytes());
    }
    digest.finish()
}

fn refused(provider: &Provider, error: &ProviderError) -> OauthRefusal {
    tracing::warn!(
        provider = provider.name,
        %error,
        "a logout token is not accepted"
    );
    if error.may_pass() {
        // Nothing is known to be wrong with it. Section 2.8 has 400 alone, after which no provider sends it again.
        let what = "the keys of the provider cannot be fetched";
        return OauthRefusal::away(what, REFETCH);
    }
    BAD_TOKEN
}

/// The refusal of a logout token, the same for every reason.
const BAD_TOKEN: OauthRefusal = OauthRefusal::new(
    RefusalCode::InvalidLogoutToken,
    "the logout token is not valid here, or was used",
);

//! Requests to identity providers, through the guarded outbound client.

use http::{
    StatusCode,
    header::{ACCEPT, AUTHORIZATION},
};
use oauth2::{
    AsyncHttpClient, ExtraTokenFields, HttpRequest, HttpResponse, StandardTokenResponse,
    TokenResponse,
    basic::{BasicErrorResponse, BasicTokenType},
};
use serde_json::{Map, Value};
use url::Url;

use super::provider::{ANSWER, ProviderError, ProviderFuture, ProviderTokens};
use crate::base::{Outbound, OutboundError, Secret};

/// The HTTP client of the `oauth2` crate: the guarded outbound client.
pub(super) struct OutboundClient<'o>(pub(super) &'o Outbound);

impl<'c> AsyncHttpClient<'c> for OutboundClient<'_> {
    type Error = OutboundError;
    type Future = ProviderFuture<'c, Result<HttpResponse, OutboundError>>;

    fn call(&'c self, request: HttpRequest) -> Self::Future {
        Box::pin(self.0.exchange(request, ANSWER))
    }
}

/// Parses a URL.
pub(super) fn url(text: &str) -> Result<Url, ProviderError> {
    Url::parse(text).map_err(|_| ProviderError::Invalid(format!("{text:?} is no URL")))
}

/// Maps a failed code exchange.
pub(super) fn exchange_error<E: oauth2::ErrorResponse>(
    error: oauth2::RequestTokenError<OutboundError, E>,
) -> ProviderError {
    match error {
        oauth2::RequestTokenError::Request(refused) => refused.into(),
        // The text may contain the provider's response, so only its kind is logged.
        oauth2::RequestTokenError::ServerResponse(_) => {
            ProviderError::Invalid("the token endpoint refused the code".to_owned())
        }
        oauth2::RequestTokenError::Parse(..) | oauth2::RequestTokenError::Other(_) => {
            ProviderError::Invalid("the token endpoint answered no tokens".to_owned())
        }
    }
}

/// Maps a failed refresh.
pub(super) fn refresh_error(
    error: oauth2::RequestTokenError<OutboundError, BasicErrorResponse>,
) -> ProviderError {
    let code = match &error {
        oauth2::RequestTokenError::ServerResponse(refused) => refused.error().as_ref().to_owned(),
        // Some services refuse with 200.
        oauth2::RequestTokenError::Parse(_, body) => {
            let body: Value = serde_json::from_slice(body).unwrap_or_default();
            body["error"].as_str().unwrap_or_default().to_owned()
        }
        _ => String::new(),
    };
    if ENDED.contains(&code.as_str()) {
        return ProviderError::Ended;
    }
    match exchange_error(error) {
        ProviderError::Invalid(_) => {
            ProviderError::Invalid("the token endpoint refused to refresh".to_owned())
        }
        other => other,
    }
}

/// The tokens of a response.
pub(super) fn given<F: ExtraTokenFields>(
    answer: &StandardTokenResponse<F, BasicTokenType>,
) -> ProviderTokens {
    let secret = |text: &str| Secret::new(text.to_owned());
    ProviderTokens {
        access: secret(answer.access_token().secret()),
        refresh: answer.refresh_token().map(|token| secret(token.secret())),
        lasts: answer.expires_in(),
    }
}

/// The JSON object that a provider returns to the holder of `token`, which it gave just now.
pub(super) async fn get_with_token(
    outbound: &Outbound,
    url: &str,
    token: &str,
) -> Result<Map<String, Value>, ProviderError> {
    let answer = get_with_old_token(outbound, url, token).await;
    answer.map_err(|error| match error {
        ProviderError::Ended => ProviderError::Invalid(format!("{url}: it refused its own token")),
        other => other,
    })
}

/// The same to the holder of a token that may have ended.
pub(super) async fn get_with_old_token(
    outbound: &Outbound,
    url: &str,
    token: &str,
) -> Result<Map<String, Value>, ProviderError> {
    let wrong = |what: &str| ProviderError::Invalid(format!("{url}: {what}"));
    let request = http::Request::get(url)
        .header(ACCEPT, "application/json")
        .header(AUTHORIZATION, format!("Bearer {token}"))
        .body(Vec::new())
        .map_err(|_| wrong("it cannot be asked with such a token"))?;
    let answer = outbound.exchange(request, ANSWER).await?;
    match answer.status() {
        StatusCode::OK => {}
        // RFC 6750, section 3.1.
        StatusCode::UNAUTHORIZED => return Err(ProviderError::Ended),
        _ => return Err(wrong("it does not describe the owner of a token")),
    }
    serde_json::from_slice(answer.body()).map_err(|_| wrong("no JSON object"))
}

/// Errors by which a provider says that a person has to log in again (RFC 6749, section 5.2; OpenID Connect Core, section
/// 3.1.2.6, which Entra ID's token endpoint has, too). GitHub has a name of its own.
const ENDED: [&str; 5] = [
    "invalid_grant",
    "bad_refresh_token",
    "interaction_required",
    "login_required",
    "consent_required",
];

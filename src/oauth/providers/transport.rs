//! Requests to identity providers, through the guarded outbound client.

use http::{
    StatusCode,
    header::{ACCEPT, AUTHORIZATION},
};
use oauth2::{AsyncHttpClient, HttpRequest, HttpResponse};
use serde_json::{Map, Value};
use url::Url;

use super::provider::{ANSWER, ProviderError, ProviderFuture};
use crate::base::{Outbound, OutboundError};

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

/// The JSON object that a provider returns to the holder of `token`.
pub(super) async fn get_with_token(
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
    if answer.status() != StatusCode::OK {
        return Err(wrong("it refused its own token"));
    }
    serde_json::from_slice(answer.body()).map_err(|_| wrong("no JSON object"))
}

//! Identity providers that speak OAuth 2.0 alone, like GitHub: who somebody is, is asked for with
//! the access token.

use std::sync::Arc;

use http::{
    StatusCode,
    header::{ACCEPT, AUTHORIZATION},
};
use oauth2::{
    AsyncHttpClient, AuthType, AuthUrl, AuthorizationCode, ClientId, ClientSecret, CsrfToken,
    HttpRequest, HttpResponse, PkceCodeChallenge, PkceCodeVerifier, RedirectUrl, Scope,
    TokenResponse, TokenUrl, basic::BasicClient,
};
use serde_json::{Map, Value};
use url::Url;

use super::provider::{
    ANSWER, Found, IdentityProvider, Journey, Later, SUBJECT, Unknown, Wanted, title,
};
use crate::{
    base::{Outbound, Refused},
    declare::{Hidden, Provider, ProviderKind},
};

/// One of them.
pub(super) struct OAuth {
    provider: Arc<Provider>,
    outbound: Outbound,
}

/// Where it is, as it was declared.
struct Places<'p> {
    authorization_url: &'p str,
    token_url: &'p str,
    user_url: &'p str,
    subject_member: &'p str,
}

impl OAuth {
    /// As it was declared.
    pub(crate) fn new(provider: Arc<Provider>, outbound: Outbound) -> Self {
        Self { provider, outbound }
    }

    fn places(&self) -> Result<Places<'_>, Unknown> {
        match &self.provider.kind {
            ProviderKind::OAuth {
                authorization_url,
                token_url,
                user_url,
                subject_member,
                ..
            } => Ok(Places {
                authorization_url,
                token_url,
                user_url,
                subject_member,
            }),
            ProviderKind::OpenId { .. } => Err(Unknown::Wrong("it speaks OpenID".to_owned())),
        }
    }

    async fn user(&self, places: &Places<'_>, token: &str) -> Result<Found, Unknown> {
        let user = owned(&self.outbound, places.user_url, token).await?;
        let subject = match user.get(places.subject_member) {
            Some(Value::String(text)) => Some(text.clone()),
            // GitHub's ids are numbers.
            Some(Value::Number(number)) if !number.is_f64() => Some(number.to_string()),
            _ => None,
        };
        let subject = subject.filter(|text| (1..=SUBJECT).contains(&text.len()));
        let missing = || Unknown::Wrong(format!("user_url: no {}", places.subject_member));
        Ok(Found {
            subject: subject.ok_or_else(missing)?,
            title: title(&user, &["name", "login", "username", "email"]),
            groups: Vec::new(),
            // Nothing says whether an address there is verified.
            email: None,
        })
    }
}

impl IdentityProvider for OAuth {
    fn depart<'a>(
        &'a self,
        journey: &'a Journey<'a>,
        _again: bool,
    ) -> Later<'a, Result<Url, Unknown>> {
        Box::pin(async move {
            let places = self.places()?;
            let client = BasicClient::new(ClientId::new(self.provider.client_id.clone()))
                .set_auth_uri(url(places.authorization_url).map(AuthUrl::from_url)?)
                .set_redirect_uri(url(journey.callback).map(RedirectUrl::from_url)?);
            let verifier = PkceCodeVerifier::new(journey.verifier.to_owned());
            let state = || CsrfToken::new(journey.state.to_owned());
            let scopes = self.provider.scopes.iter().cloned().map(Scope::new);
            let (url, _) = client
                .authorize_url(state)
                .add_scopes(scopes)
                .set_pkce_challenge(PkceCodeChallenge::from_code_verifier_sha256(&verifier))
                .url();
            Ok(url)
        })
    }

    fn arrive<'a>(
        &'a self,
        journey: &'a Journey<'a>,
        code: &'a str,
        _wanted: Wanted,
    ) -> Later<'a, Result<Found, Unknown>> {
        Box::pin(async move {
            let places = self.places()?;
            let mut client = BasicClient::new(ClientId::new(self.provider.client_id.clone()))
                .set_token_uri(url(places.token_url).map(TokenUrl::from_url)?)
                .set_redirect_uri(url(journey.callback).map(RedirectUrl::from_url)?)
                // What the providers of this kind document.
                .set_auth_type(AuthType::RequestBody);
            if let Some(secret) = self.provider.client_secret.as_ref().map(Hidden::expose) {
                client = client.set_client_secret(ClientSecret::new(secret.to_owned()));
            }
            let http = Through(&self.outbound);
            let answer = client
                .exchange_code(AuthorizationCode::new(code.to_owned()))
                .set_pkce_verifier(PkceCodeVerifier::new(journey.verifier.to_owned()))
                .request_async(&http)
                .await
                .map_err(unknown)?;
            self.user(&places, answer.access_token().secret()).await
        })
    }
}

/// The crate's way out: through the one client that asks nobody inside.
pub(super) struct Through<'o>(pub(super) &'o Outbound);

impl<'c> AsyncHttpClient<'c> for Through<'_> {
    type Error = Refused;
    type Future = Later<'c, Result<HttpResponse, Refused>>;

    fn call(&'c self, request: HttpRequest) -> Self::Future {
        Box::pin(self.0.exchange(request, ANSWER))
    }
}

/// A URL that the crate takes.
pub(crate) fn url(text: &str) -> Result<Url, Unknown> {
    Url::parse(text).map_err(|_| Unknown::Wrong(format!("{text:?} is no URL")))
}

/// What a failed exchange of a code means.
pub(crate) fn unknown<E: oauth2::ErrorResponse>(
    error: oauth2::RequestTokenError<Refused, E>,
) -> Unknown {
    match error {
        oauth2::RequestTokenError::Request(refused) => refused.into(),
        // The text may hold what the provider sent: its kind is enough.
        oauth2::RequestTokenError::ServerResponse(_) => {
            Unknown::Wrong("the token endpoint refused the code".to_owned())
        }
        oauth2::RequestTokenError::Parse(..) | oauth2::RequestTokenError::Other(_) => {
            Unknown::Wrong("the token endpoint answered no tokens".to_owned())
        }
    }
}

/// What a provider says to whoever has `token`.
pub(super) async fn owned(
    outbound: &Outbound,
    url: &str,
    token: &str,
) -> Result<Map<String, Value>, Unknown> {
    let wrong = |what: &str| Unknown::Wrong(format!("{url}: {what}"));
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

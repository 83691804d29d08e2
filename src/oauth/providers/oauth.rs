//! Identity providers with OAuth 2.0 alone, such as GitHub: the user endpoint identifies the
//! person.

use std::sync::Arc;

use oauth2::{
    AuthType, AuthUrl, AuthorizationCode, ClientId, ClientSecret, CsrfToken, PkceCodeChallenge,
    PkceCodeVerifier, RedirectUrl, Scope, TokenResponse, TokenUrl, basic::BasicClient,
};
use serde_json::Value;
use url::Url;

use super::{
    provider::{
        IdentityProvider, ProviderError, ProviderFuture, ProviderIdentity, ProviderLogin, SUBJECT,
        WantedClaims, title,
    },
    transport::{OutboundClient, exchange_error, get_with_token, url},
};
use crate::{
    base::{Outbound, Secret},
    declare::{Provider, ProviderKind},
};

/// A provider without OpenID Connect.
pub(super) struct OauthProvider {
    provider: Arc<Provider>,
    outbound: Outbound,
}

/// Its declared URLs.
struct Endpoints<'p> {
    authorization_url: &'p str,
    token_url: &'p str,
    user_url: &'p str,
    subject_member: &'p str,
}

impl OauthProvider {
    /// A provider as declared.
    pub(crate) fn new(provider: Arc<Provider>, outbound: Outbound) -> Self {
        Self { provider, outbound }
    }

    fn endpoints(&self) -> Result<Endpoints<'_>, ProviderError> {
        match &self.provider.kind {
            ProviderKind::OAuth {
                authorization_url,
                token_url,
                user_url,
                subject_member,
                ..
            } => Ok(Endpoints {
                authorization_url,
                token_url,
                user_url,
                subject_member,
            }),
            ProviderKind::OpenId { .. } => {
                Err(ProviderError::Invalid("it speaks OpenID".to_owned()))
            }
        }
    }

    async fn user(
        &self,
        endpoints: &Endpoints<'_>,
        token: &str,
    ) -> Result<ProviderIdentity, ProviderError> {
        let user = get_with_token(&self.outbound, endpoints.user_url, token).await?;
        let subject = match user.get(endpoints.subject_member) {
            Some(Value::String(text)) => Some(text.clone()),
            // GitHub's ids are numbers.
            Some(Value::Number(number)) if !number.is_f64() => Some(number.to_string()),
            _ => None,
        };
        let subject = subject.filter(|text| (1..=SUBJECT).contains(&text.len()));
        let missing =
            || ProviderError::Invalid(format!("user_url: no {}", endpoints.subject_member));
        Ok(ProviderIdentity {
            subject: subject.ok_or_else(missing)?,
            title: title(&user, &["name", "login", "username", "email"]),
            groups: Vec::new(),
            // The response does not say whether an address is verified.
            email: None,
        })
    }
}

impl IdentityProvider for OauthProvider {
    fn authorization_url<'a>(
        &'a self,
        login: &'a ProviderLogin<'a>,
        _again: bool,
    ) -> ProviderFuture<'a, Result<Url, ProviderError>> {
        Box::pin(async move {
            let endpoints = self.endpoints()?;
            let client = BasicClient::new(ClientId::new(self.provider.client_id.clone()))
                .set_auth_uri(url(endpoints.authorization_url).map(AuthUrl::from_url)?)
                .set_redirect_uri(url(login.callback).map(RedirectUrl::from_url)?);
            let verifier = PkceCodeVerifier::new(login.verifier.to_owned());
            let state = || CsrfToken::new(login.state.to_owned());
            let scopes = self.provider.scopes.iter().cloned().map(Scope::new);
            let request = client
                .authorize_url(state)
                .add_scopes(scopes)
                .set_pkce_challenge(PkceCodeChallenge::from_code_verifier_sha256(&verifier));
            let more = &self.provider.authorization_parameters;
            let request = more.iter().fold(request, |request, (name, value)| {
                request.add_extra_param(name, value)
            });
            Ok(request.url().0)
        })
    }

    fn identify<'a>(
        &'a self,
        login: &'a ProviderLogin<'a>,
        code: &'a str,
        _wanted: WantedClaims,
    ) -> ProviderFuture<'a, Result<ProviderIdentity, ProviderError>> {
        Box::pin(async move {
            let endpoints = self.endpoints()?;
            let mut client = BasicClient::new(ClientId::new(self.provider.client_id.clone()))
                .set_token_uri(url(endpoints.token_url).map(TokenUrl::from_url)?)
                .set_redirect_uri(url(login.callback).map(RedirectUrl::from_url)?)
                // As documented by providers of this kind.
                .set_auth_type(AuthType::RequestBody);
            if let Some(secret) = self.provider.client_secret.as_ref().map(Secret::expose) {
                client = client.set_client_secret(ClientSecret::new(secret.to_owned()));
            }
            let http = OutboundClient(&self.outbound);
            let answer = client
                .exchange_code(AuthorizationCode::new(code.to_owned()))
                .set_pkce_verifier(PkceCodeVerifier::new(login.verifier.to_owned()))
                .request_async(&http)
                .await
                .map_err(exchange_error)?;
            self.user(&endpoints, answer.access_token().secret()).await
        })
    }
}

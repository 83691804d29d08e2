//! Identity providers with OAuth 2.0 alone, such as GitHub: the user endpoint identifies the
//! person.

use std::sync::Arc;

use oauth2::{
    AuthType, AuthUrl, AuthorizationCode, ClientId, ClientSecret, CsrfToken, EndpointNotSet,
    EndpointSet, PkceCodeChallenge, PkceCodeVerifier, RedirectUrl, RefreshToken, Scope, TokenUrl,
    basic::BasicClient,
};
use serde_json::{Map, Value};
use url::Url;

use super::{
    provider::{
        AskedAgain, ExchangeError, IdentityProvider, LogoutToken, ProviderError, ProviderFuture,
        ProviderIdentity, ProviderLogin, ProviderTokens, WantedClaims, check_subject, title,
    },
    transport::{
        OutboundClient, exchange, exchange_error, get_with_old_token, get_with_token, given,
        refresh_error, url, was_sent,
    },
};
use crate::{
    base::{Outbound, Secret},
    database::Tokens,
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

    fn token_client(&self, endpoints: &Endpoints<'_>) -> Result<TokenClient, ProviderError> {
        let client = BasicClient::new(ClientId::new(self.provider.client_id.clone()))
            .set_token_uri(url(endpoints.token_url).map(TokenUrl::from_url)?)
            // As documented by providers of this kind.
            .set_auth_type(AuthType::RequestBody);
        let secret = self.provider.client_secret.as_ref().map(Secret::expose);
        Ok(match secret {
            Some(secret) => client.set_client_secret(ClientSecret::new(secret.to_owned())),
            None => client,
        })
    }

    /// The person's word by old tokens; `renewed` are those in their place, and `is_sent` says whether a refresh token was
    /// sent.
    async fn again(
        &self,
        tokens: &Tokens,
        (renewed, is_sent): (&mut Option<ProviderTokens>, &mut bool),
    ) -> Result<Option<ProviderIdentity>, ProviderError> {
        let endpoints = self.endpoints()?;
        let place = endpoints.user_url;
        let user = match &tokens.refresh {
            None => get_with_old_token(&self.outbound, place, tokens.access.expose()).await?,
            Some(refresh) => {
                let refresh = RefreshToken::new(refresh.expose().to_owned());
                let http = OutboundClient(&self.outbound);
                let client = self.token_client(&endpoints)?;
                let answer = client.exchange_refresh_token(&refresh).request_async(&http);
                let answer = answer.await;
                *is_sent = was_sent(&answer);
                let given = given(&answer.map_err(refresh_error)?);
                let token = &renewed.insert(given).access;
                get_with_token(&self.outbound, place, token.expose()).await?
            }
        };
        Self::identity(&endpoints, &user).map(Some)
    }

    /// The person that the user endpoint describes.
    fn identity(
        endpoints: &Endpoints<'_>,
        user: &Map<String, Value>,
    ) -> Result<ProviderIdentity, ProviderError> {
        let subject = match user.get(endpoints.subject_member) {
            Some(Value::String(text)) => Some(text.clone()),
            // GitHub's ids are numbers.
            Some(Value::Number(number)) if !number.is_f64() => Some(number.to_string()),
            _ => None,
        };
        let subject = subject.unwrap_or_default();
        check_subject(&subject).map_err(|what| {
            ProviderError::Invalid(format!("user_url: {}: {what}", endpoints.subject_member))
        })?;
        Ok(ProviderIdentity {
            subject,
            title: title(user, &["name", "login", "username", "email"]),
            groups: None,
            session: None,
            asked_s: None,
            // The response does not say whether an address is verified.
            email: None,
        })
    }
}

impl IdentityProvider for OauthProvider {
    fn authorization_url<'a>(
        &'a self,
        login: &'a ProviderLogin<'a>,
        again: bool,
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
            // GitHub knows it, and others ignore it (RFC 6749, section 3.1). None of them has a word for a fresh log-in.
            let request = if again && !more.contains_key(PROMPT) {
                request.add_extra_param(PROMPT, "select_account")
            } else {
                request
            };
            Ok(request.url().0)
        })
    }

    fn is_from<'a>(
        &'a self,
        iss: Option<&'a str>,
    ) -> ProviderFuture<'a, Result<bool, ProviderError>> {
        // It has no metadata that could announce one.
        let is_from = iss.is_none_or(|iss| self.provider.may_name(iss));
        Box::pin(async move { Ok(is_from) })
    }

    fn identify<'a>(
        &'a self,
        login: &'a ProviderLogin<'a>,
        code: &'a str,
        _wanted: WantedClaims,
    ) -> ProviderFuture<'a, Result<(ProviderIdentity, ProviderTokens), ProviderError>> {
        Box::pin(async move {
            let endpoints = self.endpoints()?;
            let callback = url(login.callback).map(RedirectUrl::from_url)?;
            let client = self.token_client(&endpoints)?.set_redirect_uri(callback);
            let http = OutboundClient(&self.outbound);
            let answer = client
                .exchange_code(AuthorizationCode::new(code.to_owned()))
                .set_pkce_verifier(PkceCodeVerifier::new(login.verifier.to_owned()))
                .request_async(&http)
                .await
                .map_err(exchange_error)?;
            let given = given(&answer);
            let token = given.access.expose();
            let user = get_with_token(&self.outbound, endpoints.user_url, token).await?;
            Ok((Self::identity(&endpoints, &user)?, given))
        })
    }

    fn ask_again<'a>(
        &'a self,
        tokens: &'a Tokens,
        _wanted: WantedClaims,
    ) -> ProviderFuture<'a, AskedAgain> {
        Box::pin(async move {
            let (mut renewed, mut is_sent) = (None, false);
            let word = self.again(tokens, (&mut renewed, &mut is_sent)).await;
            AskedAgain {
                tokens: renewed,
                is_sent,
                word,
            }
        })
    }

    fn exchange<'a>(
        &'a self,
        subject: &'a Secret,
        audience: &'a str,
    ) -> ProviderFuture<'a, Result<ProviderTokens, ExchangeError>> {
        Box::pin(async move {
            let endpoints = self.endpoints()?;
            // As its codes are redeemed.
            let at = (&*self.provider, endpoints.token_url, false);
            exchange(&self.outbound, at, subject, audience).await
        })
    }

    fn logout_token<'a>(
        &'a self,
        _text: &'a str,
    ) -> ProviderFuture<'a, Result<LogoutToken, ProviderError>> {
        let what = "it speaks no OpenID".to_owned();
        Box::pin(async { Err(ProviderError::Invalid(what)) })
    }
}

/// The parameter that demands a page of the provider.
const PROMPT: &str = "prompt";

/// The crate's client with a token endpoint.
type TokenClient =
    BasicClient<EndpointNotSet, EndpointNotSet, EndpointNotSet, EndpointNotSet, EndpointSet>;

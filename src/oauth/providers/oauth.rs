//! Identity providers that speak OAuth 2.0 alone, like GitHub: who somebody is, is asked for with
//! the access token.

use std::sync::Arc;

use oauth2::{
    AuthType, AuthUrl, AuthorizationCode, ClientId, ClientSecret, CsrfToken, PkceCodeChallenge,
    PkceCodeVerifier, RedirectUrl, Scope, TokenResponse, TokenUrl, basic::BasicClient,
};
use serde_json::Value;
use url::Url;

use super::{
    provider::{Found, IdentityProvider, Journey, Later, SUBJECT, Unknown, Wanted, title},
    transport::{Through, owned, unknown, url},
};
use crate::{
    base::Outbound,
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

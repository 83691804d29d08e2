//! OpenID Connect providers: metadata, ID tokens and user info.
//!
//! Not here: the log-in of an identified person (`oauth::browser`).

use std::{sync::Arc, time::Duration};

use moka::future::Cache;
use oauth2::{
    AuthType, AuthUrl, AuthorizationCode, Client, ClientId, ClientSecret, CsrfToken,
    EndpointNotSet, EndpointSet, ExtraTokenFields, PkceCodeChallenge, PkceCodeVerifier,
    RedirectUrl, RefreshToken, Scope, StandardRevocableToken, StandardTokenResponse, TokenResponse,
    TokenUrl,
    basic::{
        BasicClient, BasicErrorResponse, BasicRevocationErrorResponse,
        BasicTokenIntrospectionResponse, BasicTokenType,
    },
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use url::Url;

use super::{
    logout_token,
    provider::{
        ANSWER, AskedAgain, ExchangeError, IdentityProvider, LogoutToken, ProviderError,
        ProviderFuture, ProviderIdentity, ProviderLogin, ProviderTokens, WantedClaims,
        check_groups, check_subject, title,
    },
    transport::{
        OutboundClient, exchange, exchange_error, get_with_old_token, get_with_token, given,
        refresh_error, url, was_sent,
    },
};
use crate::{
    auth::{
        KeySet, Signature,
        jose::{declared, numeric_date, parse_unverified, string, strings},
    },
    base::{Clock, LEEWAY_S, Outbound, Secret},
    database::Tokens,
    declare::{ALGORITHMS, GroupsClaim, OFFLINE_ACCESS, Provider, ProviderKind},
};

/// Cached metadata of providers by issuer; clones share it.
#[derive(Clone)]
pub(crate) struct MetadataCache {
    fetched: Cache<String, Arc<ProviderMetadata>>,
    /// The last failures to fetch them, after which tokens of strangers cause no fetch.
    failed: Cache<String, ProviderError>,
}

impl MetadataCache {
    /// An empty cache.
    pub(crate) fn new() -> Self {
        let fetched = Cache::builder().max_capacity(ISSUERS).time_to_live(FRESH);
        let failed = Cache::builder().max_capacity(ISSUERS);
        Self {
            fetched: fetched.build(),
            failed: failed.time_to_live(REFETCH).build(),
        }
    }
}

/// Metadata of a provider (OpenID Connect Discovery, section 3) and its keys.
struct ProviderMetadata {
    document: MetadataDocument,
    keys: KeySet,
    /// The time of the fetch, in milliseconds since 1970.
    fetched_ms: i64,
}

#[derive(Deserialize)]
struct MetadataDocument {
    issuer: String,
    authorization_endpoint: String,
    token_endpoint: String,
    jwks_uri: String,
    userinfo_endpoint: Option<String>,
    scopes_supported: Option<Vec<String>>,
    token_endpoint_auth_methods_supported: Option<Vec<String>>,
    #[serde(default)]
    authorization_response_iss_parameter_supported: bool,
}

/// The additional field of the token response.
#[derive(Debug, Deserialize, Serialize)]
struct IdField {
    id_token: Option<String>,
}

impl ExtraTokenFields for IdField {}

/// The crate's client, for token responses with an ID token.
type IdClient<Token = EndpointNotSet> = Client<
    BasicErrorResponse,
    StandardTokenResponse<IdField, BasicTokenType>,
    BasicTokenIntrospectionResponse,
    StandardRevocableToken,
    BasicRevocationErrorResponse,
    EndpointNotSet,
    EndpointNotSet,
    EndpointNotSet,
    EndpointNotSet,
    Token,
>;

/// The sender of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sender {
    /// The provider, over a connection of the gateway.
    Provider,
    /// Anybody: what their tokens cause is bounded.
    Anybody,
}

impl Sender {
    /// Reports whether keys of that age may be fetched again for an unknown one.
    fn may_refetch(self, age_ms: i64) -> bool {
        self == Self::Provider || u128::try_from(age_ms).is_ok_and(|age| age >= REFETCH.as_millis())
    }
}

/// An OpenID Connect provider.
pub(super) struct OpenIdProvider {
    provider: Arc<Provider>,
    outbound: Outbound,
    clock: Clock,
    known: MetadataCache,
}

impl OpenIdProvider {
    /// A provider as declared.
    pub(crate) fn new(
        provider: Arc<Provider>,
        outbound: Outbound,
        clock: Clock,
        known: MetadataCache,
    ) -> Self {
        Self {
            provider,
            outbound,
            clock,
            known,
        }
    }

    /// Its issuer, and its claim with groups.
    fn declared(&self) -> (&str, Option<&GroupsClaim>) {
        match &self.provider.kind {
            ProviderKind::OpenId { issuer, groups, .. } => (issuer, Some(groups)),
            ProviderKind::OAuth { issuer, .. } => (issuer, None),
        }
    }

    /// The declared `prompt`, with that for a fresh log-in (OpenID Connect Core, section 3.1.2.1).
    fn prompt(&self, again: bool) -> Option<String> {
        let declared = self.provider.authorization_parameters.get(PROMPT);
        let words = declared.map_or("", String::as_str);
        if !again {
            return declared.cloned();
        }
        // `none` stands alone.
        let others = words
            .split(' ')
            .filter(|word| !matches!(*word, "" | "none" | "login"));
        Some(
            std::iter::once("login")
                .chain(others)
                .collect::<Vec<_>>()
                .join(" "),
        )
    }

    /// Metadata and keys; concurrent callers share one fetch.
    async fn metadata(&self) -> Result<Arc<ProviderMetadata>, ProviderError> {
        let (issuer, _) = self.declared();
        let fetch = async {
            let fetched = self.fetch().await;
            if let Err(error) = &fetched {
                let (issuer, error) = (issuer.to_owned(), error.clone());
                self.known.failed.insert(issuer, error).await;
            }
            fetched
        };
        let fetched = self.known.fetched.try_get_with(issuer.to_owned(), fetch);
        // The error is shared by all waiting callers.
        fetched.await.map_err(|error| (*error).clone())
    }

    /// The same for a token that anybody may have sent, which causes no fetch soon after one that failed.
    async fn metadata_for(&self, sender: Sender) -> Result<Arc<ProviderMetadata>, ProviderError> {
        let (issuer, _) = self.declared();
        if let Some(known) = self.known.fetched.get(issuer).await {
            return Ok(known);
        }
        match self.failed(sender).await {
            Some(error) => Err(error),
            None => self.metadata().await,
        }
    }

    /// Metadata and keys, fetched once more for a key that is not among those.
    async fn refetched(
        &self,
        known: Arc<ProviderMetadata>,
        sender: Sender,
    ) -> Result<Arc<ProviderMetadata>, ProviderError> {
        if let Some(error) = self.failed(sender).await {
            return Err(error);
        }
        let (issuer, _) = self.declared();
        self.known.fetched.invalidate(issuer).await;
        let fetched = self.metadata().await;
        let age_ms = self.clock.now_ms().saturating_sub(known.fetched_ms);
        if fetched.is_err() && u128::try_from(age_ms).is_ok_and(|age| age < FRESH.as_millis()) {
            // While the provider is away, a key that somebody made up must not take away those that are known.
            // Unless another one was faster and has newer ones.
            let entry = self.known.fetched.entry(issuer.to_owned());
            entry.or_insert(known).await;
        }
        fetched
    }

    /// The failure of a moment ago that tokens of this sender have to wait for.
    async fn failed(&self, sender: Sender) -> Option<ProviderError> {
        let (issuer, _) = self.declared();
        match sender {
            Sender::Provider => None,
            Sender::Anybody => self.known.failed.get(issuer).await,
        }
    }

    async fn fetch(&self) -> Result<Arc<ProviderMetadata>, ProviderError> {
        let (issuer, _) = self.declared();
        // OpenID Connect Discovery, section 4: appended to any path of the issuer.
        let place = format!(
            "{}/.well-known/openid-configuration",
            issuer.trim_end_matches('/')
        );
        let document = self.outbound.json(&place, ANSWER).await?;
        let document: MetadataDocument = serde_json::from_slice(&document)
            .map_err(|_| ProviderError::Invalid("its metadata lack an endpoint".to_owned()))?;
        if document.issuer != issuer {
            return Err(ProviderError::Invalid(
                "its metadata are of another issuer".to_owned(),
            ));
        }
        let keys = self.outbound.json(&document.jwks_uri, KEYS).await?;
        let keys = KeySet::parse(&keys)
            .map_err(|what| ProviderError::Invalid(format!("its keys cannot be read: {what}")))?;
        Ok(Arc::new(ProviderMetadata {
            document,
            keys,
            fetched_ms: self.clock.now_ms(),
        }))
    }

    /// Verifies an ID token, of the log-in with this nonce, and returns its claims.
    async fn claims(
        &self,
        text: &str,
        nonce: Option<&str>,
    ) -> Result<Map<String, Value>, ProviderError> {
        let (issuer, _) = self.declared();
        let expected = ExpectedIdToken {
            issuer,
            client: &self.provider.client_id,
            nonce,
            now: self.now_s(),
        };
        let check = |header: &_, claims: &_| expected.check(header, claims);
        let (claims, ()) = self.verified(text, Sender::Provider, check).await?;
        Ok(claims)
    }

    /// Verifies a token of the provider, whose claims pass `check`. An unknown key may be new, so metadata and keys
    /// are fetched once more, unless they are young and anybody may have sent the token, which may then come again.
    async fn verified<T>(
        &self,
        text: &str,
        sender: Sender,
        check: impl Fn(&Map<String, Value>, &Map<String, Value>) -> Result<T, &'static str>,
    ) -> Result<(Map<String, Value>, T), ProviderError> {
        let wrong = |what: &str| ProviderError::Invalid(format!("its token: {what}"));
        // Claims are checked first, so that a useless token does not cause a fetch.
        let algorithms = ALGORITHMS.map(|(_, algorithm)| algorithm);
        // Parsed again behind the wait for keys: until then the trees are not kept, which anybody may have sent.
        let (jws, checked) = {
            let (header, claims, jws) = parse_unverified(text, &algorithms).map_err(wrong)?;
            (jws, check(&header, &claims).map_err(wrong)?)
        };
        let metadata = self.metadata_for(sender).await?;
        let age_ms = self.clock.now_ms().saturating_sub(metadata.fetched_ms);
        let outcome = match metadata.keys.check(&jws) {
            Signature::NoKey if sender.may_refetch(age_ms) => {
                self.refetched(metadata, sender).await?.keys.check(&jws)
            }
            // It may be new: until keys are fetched again, nothing tells that there is no such one.
            Signature::NoKey => {
                let what = "its token: an unknown key, for which keys may not be fetched again yet";
                return Err(ProviderError::Unavailable(what.to_owned()));
            }
            outcome => outcome,
        };
        match outcome {
            Signature::By(_) => Ok((jws.claims().map_err(wrong)?, checked)),
            Signature::Bad => Err(wrong("a bad signature")),
            Signature::NoKey => Err(wrong("an unknown key")),
        }
    }

    fn now_s(&self) -> u64 {
        u64::try_from(self.clock.now_ms() / 1000).unwrap_or(0)
    }

    /// Adds wanted claims that the ID token lacks from the user info endpoint (OpenID Connect Core,
    /// section 5.3).
    async fn complete(
        &self,
        mut claims: Map<String, Value>,
        document: &MetadataDocument,
        token: &str,
        wanted: WantedClaims,
    ) -> Result<Map<String, Value>, ProviderError> {
        let (_, groups) = self.declared();
        let lacks = |name: &str| declared(&claims, name).is_none();
        let is_needed = (wanted.groups && groups.is_some_and(|groups| lacks(&groups.name)))
            || (wanted.email && lacks("email"));
        let Some(place) = document.userinfo_endpoint.as_ref().filter(|_| is_needed) else {
            return Ok(claims);
        };
        let more = get_with_token(&self.outbound, place, token).await?;
        // Section 5.3.2: otherwise the response may describe another person.
        if more.get("sub") != claims.get("sub") {
            return Err(ProviderError::Invalid(
                "its user info is of another sub".to_owned(),
            ));
        }
        for (name, value) in more {
            claims.entry(name).or_insert(value);
        }
        Ok(claims)
    }

    fn token_client(
        &self,
        document: &MetadataDocument,
    ) -> Result<IdClient<EndpointSet>, ProviderError> {
        let client = IdClient::new(ClientId::new(self.provider.client_id.clone()))
            .set_token_uri(url(&document.token_endpoint).map(TokenUrl::from_url)?)
            .set_auth_type(document.auth_type());
        let secret = self.provider.client_secret.as_ref().map(Secret::expose);
        Ok(match secret {
            Some(secret) => client.set_client_secret(ClientSecret::new(secret.to_owned())),
            None => client,
        })
    }

    /// The provider's word by old tokens; `renewed` are those in their place, and `is_sent` says whether a refresh token was
    /// sent.
    async fn again(
        &self,
        tokens: &Tokens,
        wanted: WantedClaims,
        (renewed, is_sent): (&mut Option<ProviderTokens>, &mut bool),
    ) -> Result<Option<ProviderIdentity>, ProviderError> {
        let metadata = self.metadata().await?;
        let document = &metadata.document;
        let place = document.userinfo_endpoint.as_ref();
        let Some(refresh) = &tokens.refresh else {
            let Some(place) = place else {
                return Ok(None);
            };
            let token = tokens.access.expose();
            let claims = get_with_old_token(&self.outbound, place, token).await?;
            return self.identity(&claims).map(Some);
        };
        let refresh = RefreshToken::new(refresh.expose().to_owned());
        let http = OutboundClient(&self.outbound);
        let client = self.token_client(document)?;
        let answer = client.exchange_refresh_token(&refresh).request_async(&http);
        let answer = answer.await;
        *is_sent = was_sent(&answer);
        let answer = answer.map_err(refresh_error)?;
        *renewed = Some(given(&answer));
        let token = answer.access_token().secret();
        // Section 12.2: the response may be without one.
        let Some(text) = &answer.extra_fields().id_token else {
            let Some(place) = place else {
                return Ok(None);
            };
            let claims = get_with_token(&self.outbound, place, token).await?;
            return self.identity(&claims).map(Some);
        };
        let claims = self.claims(text, None).await?;
        let claims = self.complete(claims, document, token, wanted).await?;
        let mut identity = self.identity(&claims)?;
        // As at a log-in: where the ID token could have them, an absent claim is an empty one.
        identity.groups.get_or_insert_default();
        Ok(Some(identity))
    }

    fn identity(&self, claims: &Map<String, Value>) -> Result<ProviderIdentity, ProviderError> {
        let (_, groups) = self.declared();
        let wrong = |what| ProviderError::Invalid(format!("its claims: {what}"));
        identity(claims, groups).map_err(wrong)
    }
}

/// The person of verified claims, whose groups are in the claim `wanted`.
///
/// # Errors
///
/// The reason why they are invalid, for the log.
pub(crate) fn identity(
    claims: &Map<String, Value>,
    wanted: Option<&GroupsClaim>,
) -> Result<ProviderIdentity, &'static str> {
    let subject = string(claims, "sub")?.unwrap_or_default();
    check_subject(subject)?;
    let found = wanted.and_then(|wanted| Some((wanted, declared(claims, &wanted.name)?)));
    let groups = match found {
        Some((wanted, claim)) => {
            let groups = wanted.groups(&strings(claim)?);
            check_groups(&groups)?;
            Some(groups)
        }
        None => None,
    };
    let is_verified = match claims.get("email_verified") {
        Some(Value::Bool(is)) => *is,
        // Some providers send a string.
        Some(Value::String(text)) => text == "true",
        _ => false,
    };
    let email = claims.get("email").and_then(Value::as_str);
    let session = claims.get("sid").and_then(Value::as_str);
    let session = session.filter(|text| check_subject(text).is_ok());
    Ok(ProviderIdentity {
        subject: subject.to_owned(),
        title: title(claims, &["name", "preferred_username", "email"]),
        groups,
        email: email.filter(|_| is_verified).map(str::to_owned),
        session: session.map(str::to_owned),
        // Most log-ins do not need it, so one that cannot be read is none.
        asked_s: numeric_date(claims, "auth_time").ok().flatten(),
    })
}

/// Expected claims of an ID token (OpenID Connect Core, section 3.1.3.7).
struct ExpectedIdToken<'e> {
    issuer: &'e str,
    client: &'e str,
    /// None of a refreshed one (section 12.2).
    nonce: Option<&'e str>,
    /// In seconds since 1970.
    now: u64,
}

impl ExpectedIdToken<'_> {
    fn check(
        &self,
        header: &Map<String, Value>,
        claims: &Map<String, Value>,
    ) -> Result<(), &'static str> {
        let kind = string(header, "typ")?.unwrap_or("JWT");
        if !kind.eq_ignore_ascii_case("JWT") {
            return Err("another type of token");
        }
        if string(claims, "iss")? != Some(self.issuer) {
            return Err("another issuer");
        }
        let audiences = claims.get("aud").map(strings).ok_or("no aud")??;
        if !audiences.iter().any(|audience| audience == self.client) {
            return Err("another audience");
        }
        match string(claims, "azp")? {
            None if audiences.len() > 1 => return Err("several audiences and no azp"),
            Some(party) if party != self.client => return Err("another azp"),
            _ => {}
        }
        if self.nonce.is_some() && string(claims, "nonce")? != self.nonce {
            return Err("another nonce");
        }
        let subject = string(claims, "sub")?.unwrap_or_default();
        check_subject(subject)?;
        let (expires, issued) = (numeric_date(claims, "exp")?, numeric_date(claims, "iat")?);
        let leeway = u64::from(LEEWAY_S);
        if self.now >= expires.ok_or("no exp")?.saturating_add(leeway) {
            return Err("expired");
        }
        let issued = issued.ok_or("no iat")?;
        if issued > self.now.saturating_add(leeway) {
            return Err("issued in the future");
        }
        if issued.saturating_add(AGE + leeway) < self.now {
            return Err("issued long ago");
        }
        if numeric_date(claims, "nbf")?.is_some_and(|from| from > self.now.saturating_add(leeway)) {
            return Err("not valid yet");
        }
        Ok(())
    }
}

impl IdentityProvider for OpenIdProvider {
    fn authorization_url<'a>(
        &'a self,
        login: &'a ProviderLogin<'a>,
        again: bool,
    ) -> ProviderFuture<'a, Result<Url, ProviderError>> {
        Box::pin(async move {
            let metadata = self.metadata().await?;
            let place = url(&metadata.document.authorization_endpoint)?;
            if !matches!(place.scheme(), "https" | "http") {
                return Err(ProviderError::Invalid(
                    "its authorization endpoint is no page".to_owned(),
                ));
            }
            let client = BasicClient::new(ClientId::new(self.provider.client_id.clone()))
                .set_auth_uri(AuthUrl::from_url(place))
                .set_redirect_uri(url(login.callback).map(RedirectUrl::from_url)?);
            let verifier = PkceCodeVerifier::new(login.verifier.to_owned());
            let state = || CsrfToken::new(login.state.to_owned());
            // Required for an ID token (OpenID Connect Core, section 3.1.2.1).
            let openid = std::iter::once("openid".to_owned());
            let others = self
                .provider
                .scopes
                .iter()
                .filter(|scope| *scope != "openid");
            // Section 11. Many providers give a refresh token without `prompt=consent`; for others an operator adds it.
            let offline = login.is_kept && metadata.document.gives_offline();
            let is_asked = self
                .provider
                .scopes
                .iter()
                .any(|scope| scope == OFFLINE_ACCESS);
            let offline = (offline && !is_asked).then(|| OFFLINE_ACCESS.to_owned());
            let scopes = openid.chain(others.cloned()).chain(offline).map(Scope::new);
            let mut request = client
                .authorize_url(state)
                .add_scopes(scopes)
                .add_extra_param("nonce", login.nonce)
                .set_pkce_challenge(PkceCodeChallenge::from_code_verifier_sha256(&verifier));
            for (name, value) in &self.provider.authorization_parameters {
                if name != PROMPT {
                    request = request.add_extra_param(name, value);
                }
            }
            if let Some(prompt) = self.prompt(again) {
                request = request.add_extra_param(PROMPT, prompt);
            }
            Ok(request.url().0)
        })
    }

    fn is_from<'a>(
        &'a self,
        iss: Option<&'a str>,
    ) -> ProviderFuture<'a, Result<bool, ProviderError>> {
        Box::pin(async move {
            if let Some(iss) = iss {
                return Ok(self.provider.may_name(iss));
            }
            let metadata = self.metadata().await?;
            Ok(!metadata
                .document
                .authorization_response_iss_parameter_supported)
        })
    }

    fn identify<'a>(
        &'a self,
        login: &'a ProviderLogin<'a>,
        code: &'a str,
        wanted: WantedClaims,
    ) -> ProviderFuture<'a, Result<(ProviderIdentity, ProviderTokens), ProviderError>> {
        Box::pin(async move {
            let metadata = self.metadata().await?;
            let document = &metadata.document;
            let callback = url(login.callback).map(RedirectUrl::from_url)?;
            let client = self.token_client(document)?.set_redirect_uri(callback);
            let http = OutboundClient(&self.outbound);
            let answer = client
                .exchange_code(AuthorizationCode::new(code.to_owned()))
                .set_pkce_verifier(PkceCodeVerifier::new(login.verifier.to_owned()))
                .request_async(&http)
                .await
                .map_err(exchange_error)?;
            let no_token = || ProviderError::Invalid("it gave no ID token".to_owned());
            let text = &answer.extra_fields().id_token;
            let text = text.as_ref().ok_or_else(no_token)?;
            let claims = self.claims(text, Some(login.nonce)).await?;
            let token = answer.access_token().secret();
            let claims = self.complete(claims, document, token, wanted).await?;
            Ok((self.identity(&claims)?, given(&answer)))
        })
    }

    fn ask_again<'a>(
        &'a self,
        tokens: &'a Tokens,
        wanted: WantedClaims,
    ) -> ProviderFuture<'a, AskedAgain> {
        Box::pin(async move {
            let (mut renewed, mut is_sent) = (None, false);
            let word = self.again(tokens, wanted, (&mut renewed, &mut is_sent));
            let word = word.await;
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
            let metadata = self.metadata().await?;
            let document = &metadata.document;
            let is_basic = matches!(document.auth_type(), AuthType::BasicAuth);
            let at = (&*self.provider, document.token_endpoint.as_str(), is_basic);
            exchange(&self.outbound, at, subject, audience).await
        })
    }

    fn logout_token<'a>(
        &'a self,
        text: &'a str,
    ) -> ProviderFuture<'a, Result<LogoutToken, ProviderError>> {
        Box::pin(async move {
            let (issuer, _) = self.declared();
            let of = (issuer, self.provider.client_id.as_str());
            let check =
                |header: &_, claims: &_| logout_token::read(header, claims, of, self.now_s());
            let (_, token) = self.verified(text, Sender::Anybody, check).await?;
            Ok(token)
        })
    }
}

impl MetadataDocument {
    /// Reports whether the provider has a scope for refresh tokens.
    fn gives_offline(&self) -> bool {
        let scopes = self.scopes_supported.iter().flatten();
        scopes.into_iter().any(|scope| scope == OFFLINE_ACCESS)
    }

    /// The authentication method by OpenID Connect Core, section 9: Basic, unless the provider
    /// excludes it.
    fn auth_type(&self) -> AuthType {
        let methods = self.token_endpoint_auth_methods_supported.as_ref();
        let is_basic = |all: &Vec<String>| all.iter().any(|one| one == "client_secret_basic");
        if methods.is_none_or(is_basic) {
            AuthType::BasicAuth
        } else {
            AuthType::RequestBody
        }
    }
}

const PROMPT: &str = "prompt";
/// Maximum providers with cached metadata.
const ISSUERS: u64 = 256;
/// Lifetime of cached metadata. The first token of a new key refreshes it sooner.
const FRESH: Duration = Duration::from_secs(300);
/// The time between two fetches that tokens of strangers can cause.
pub(crate) const REFETCH: Duration = Duration::from_secs(15);
/// Maximum size of a key set in bytes.
const KEYS: usize = 256 << 10;
/// Maximum age of an ID token in seconds.
const AGE: u64 = 600;

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeMap,
        sync::atomic::{AtomicI64, Ordering},
    };

    use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
    use serde_json::json;

    use super::*;
    use crate::declare::Allow;

    fn check(header: &Value, claims: &Value) -> Result<(), &'static str> {
        let expected = ExpectedIdToken {
            issuer: "https://idp.test",
            client: "us",
            nonce: Some("n"),
            now: 10_000,
        };
        expected.check(header.as_object().unwrap(), claims.as_object().unwrap())
    }

    fn good() -> Value {
        json!({"iss": "https://idp.test", "sub": "1", "aud": "us", "nonce": "n",
            "iat": 9_990, "exp": 10_300})
    }

    /// The reason against a subject that names nobody.
    const NOBODY: &str = "no subject, or one that is blank, too long or not to be shown";

    #[test]
    fn a_session_that_cannot_be_stored_is_none() {
        let session = |sid: &str| {
            let claims = json!({"sub": "1", "sid": sid});
            identity(claims.as_object().unwrap(), None).unwrap().session
        };
        assert_eq!(session("s").as_deref(), Some("s"));
        assert_eq!(session("s\0"), None);
    }

    /// A provider that no fetch reaches, at a time.
    fn out_of_reach(issuer: &str, now: &Arc<AtomicI64>) -> OpenIdProvider {
        let provider = Provider {
            name: "acme".to_owned(),
            title: "Acme".to_owned(),
            kind: ProviderKind::OpenId {
                issuer: issuer.to_owned(),
                groups: GroupsClaim {
                    name: "groups".to_owned(),
                    map: None,
                },
                vouches: false,
            },
            client_id: "us".to_owned(),
            client_secret: None,
            scopes: Vec::new(),
            authorization_parameters: BTreeMap::new(),
            exchange: Vec::new(),
            allow: Allow::default(),
        };
        let (provider, now) = (Arc::new(provider), Arc::clone(now));
        let clock = Clock::of(move || now.load(Ordering::Relaxed));
        OpenIdProvider::new(
            provider,
            Outbound::new(Vec::new()),
            clock,
            MetadataCache::new(),
        )
    }

    /// A key that nobody has took away those that are known, for as long as the provider was away.
    #[tokio::test]
    async fn known_keys_outlive_a_fetch_that_fails() {
        let (issuer, now) = ("http://127.0.0.1:1", Arc::new(AtomicI64::new(0)));
        let document = json!({"issuer": issuer, "authorization_endpoint": issuer, "token_endpoint": issuer,
            "jwks_uri": issuer});
        let known = Arc::new(ProviderMetadata {
            document: serde_json::from_value(document).unwrap(),
            keys: KeySet::parse(br#"{"keys":[]}"#).unwrap(),
            fetched_ms: 0,
        });
        for (at_ms, is_kept) in [(15_000, true), (299_999, true), (300_000, false)] {
            now.store(at_ms, Ordering::Relaxed);
            let provider = out_of_reach(issuer, &now);
            let fetched = &provider.known.fetched;
            fetched.insert(issuer.to_owned(), Arc::clone(&known)).await;
            let new = provider.refetched(Arc::clone(&known), Sender::Anybody);
            assert!(new.await.is_err(), "{at_ms}");
            assert_eq!(fetched.get(issuer).await.is_some(), is_kept, "{at_ms}");
            assert!(provider.failed(Sender::Anybody).await.is_some());
            assert!(provider.failed(Sender::Provider).await.is_none());
        }
    }

    /// A logout by a new key was refused for good for as long as a stranger's made-up key had the keys fetched before it.
    #[tokio::test]
    async fn an_unknown_key_of_young_keys_may_pass() {
        let (issuer, now) = ("http://127.0.0.1:1", Arc::new(AtomicI64::new(14_999)));
        let document = json!({"issuer": issuer, "authorization_endpoint": issuer, "token_endpoint": issuer,
            "jwks_uri": issuer});
        let known = ProviderMetadata {
            document: serde_json::from_value(document).unwrap(),
            keys: KeySet::parse(br#"{"keys":[]}"#).unwrap(),
            fetched_ms: 0,
        };
        let provider = out_of_reach(issuer, &now);
        let fetched = &provider.known.fetched;
        fetched.insert(issuer.to_owned(), Arc::new(known)).await;
        let part = |text: &str| URL_SAFE_NO_PAD.encode(text);
        let header = part(r#"{"alg":"ES256","kid":"new"}"#);
        let text = format!("{header}.{}.c2ln", part("{}"));
        let refused = async |checked: Result<(), &'static str>| {
            let outcome = provider.verified(&text, Sender::Anybody, |_, _| checked);
            outcome.await.unwrap_err()
        };
        assert!(refused(Ok(())).await.may_pass());
        assert!(!refused(Err("expired")).await.may_pass());
        let has_failed = async || provider.failed(Sender::Anybody).await.is_some();
        assert!(!has_failed().await, "no keys were asked for");
        now.store(15_000, Ordering::Relaxed);
        refused(Ok(())).await;
        assert!(has_failed().await);
    }

    /// A provider that names them in another order each time changed the groups of everybody at each log-in.
    #[test]
    fn groups_have_no_order() {
        let wanted = GroupsClaim {
            name: "groups".to_owned(),
            map: None,
        };
        let of = |groups| {
            let claims = json!({"sub": "ada", "groups": groups});
            let found = identity(claims.as_object().unwrap(), Some(&wanted));
            found.map(|found| found.groups.unwrap())
        };
        assert_eq!(of(json!(["ops", "eng", "ops"])).unwrap(), ["eng", "ops"]);
        assert!(of(json!(["eng\u{0}"])).is_err());
    }

    #[test]
    fn groups_that_are_too_many_are_refused_and_not_cut() {
        let mut wanted = GroupsClaim {
            name: "groups".to_owned(),
            map: None,
        };
        let all: Vec<String> = (0..1001).map(|number| number.to_string()).collect();
        let of = |count: usize, wanted: &GroupsClaim| {
            let claims = json!({"sub": "1", "groups": all[..count]});
            let found = identity(claims.as_object().unwrap(), Some(wanted));
            found.map(|found| found.groups.unwrap().len())
        };
        assert_eq!(of(1000, &wanted), Ok(1000));
        let what = "more than 1,000 groups of one person, or more than 32 KiB of them";
        assert_eq!(of(1001, &wanted), Err(what));
        // Those that have no name here do not count.
        wanted.map = Some([("7".to_owned(), "staff".to_owned())].into());
        assert_eq!(of(1001, &wanted), Ok(1));
    }

    #[test]
    fn a_time_that_cannot_be_read_is_none() {
        for (claimed, wanted) in [
            (json!(9_000), Some(9_000)),
            (json!("9000"), None),
            (json!(-1), None),
            (Value::Null, None),
        ] {
            let claims = json!({"sub": "1", "auth_time": claimed});
            let found = identity(claims.as_object().unwrap(), None).unwrap();
            assert_eq!(found.asked_s, wanted, "{claims}");
        }
    }

    #[test]
    fn id_tokens_are_for_this_gateway_and_log_in() {
        let header = json!({"alg": "ES256"});
        assert_eq!(check(&header, &good()), Ok(()));
        for (name, value, wanted) in [
            ("iss", json!("https://idp.test/"), Err("another issuer")),
            ("iss", Value::Null, Err("a member that is no text")),
            ("aud", json!("them"), Err("another audience")),
            ("aud", json!(["us"]), Ok(())),
            (
                "aud",
                json!(["us", "them"]),
                Err("several audiences and no azp"),
            ),
            ("aud", json!([]), Err("another audience")),
            ("azp", json!("us"), Ok(())),
            ("azp", json!("them"), Err("another azp")),
            ("nonce", json!("m"), Err("another nonce")),
            ("nonce", json!(""), Err("another nonce")),
            ("sub", json!("a\0b"), Err(NOBODY)),
            ("sub", json!(""), Err(NOBODY)),
            ("sub", json!("x".repeat(256)), Err(NOBODY)),
            ("sub", json!(1), Err("a member that is no text")),
            ("exp", json!(9_941), Ok(())),
            ("exp", json!(9_940), Err("expired")),
            ("iat", json!(10_060), Ok(())),
            ("iat", json!(10_061), Err("issued in the future")),
            ("iat", json!(9_340), Ok(())),
            ("iat", json!(9_339), Err("issued long ago")),
            ("nbf", json!(10_061), Err("not valid yet")),
        ] {
            let mut claims = good();
            claims[name] = value.clone();
            assert_eq!(check(&header, &claims), wanted, "{name}: {value}");
        }
        for name in ["iss", "sub", "aud", "nonce", "iat", "exp"] {
            let mut claims = good();
            claims.as_object_mut().unwrap().remove(name);
            assert!(check(&header, &claims).is_err(), "{name}");
        }
        for kind in ["at+jwt", "logout+jwt", "secevent+jwt"] {
            let header = json!({"typ": kind});
            assert_eq!(check(&header, &good()), Err("another type of token"));
        }
        let mut several = good();
        (several["aud"], several["azp"]) = (json!(["us", "them"]), json!("us"));
        assert_eq!(check(&header, &several), Ok(()));
    }
}

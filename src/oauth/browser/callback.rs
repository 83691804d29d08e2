//! Redirect to an identity provider and the return from it.
//!
//! The consent page comes before (`consent`), so the return completes the flow. Only the browser that
//! was redirected can return, and only once.

use std::sync::Arc;

use axum::{
    extract::{self, Request},
    response::Response,
};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::{
    authorization_request::{AuthorizationRefusal, AuthorizationRequest},
    cookie::BrowserId,
    flow::Flow,
    pages::{ErrorPage, redirect},
    request::{
        BrowserRequest, RECONNECT, StepRefusal, StepResult, no_randomness, not_found_page,
        provider_gone, unreadable,
    },
};
use crate::{
    base::LEEWAY_S,
    database::oauth::Person,
    declare::Provider,
    endpoint::OauthEndpoint,
    oauth::{
        base::{Form, secret},
        providers::{ProviderError, ProviderIdentity, ProviderLogin, ProviderTokens},
        server::{Oauth, StepKind},
    },
    telemetry::Login,
};

/// An unfinished log-in at a provider, sealed in the database.
#[derive(Serialize, Deserialize)]
struct PendingLogin {
    query: String,
    is_short: bool,
    provider: String,
    nonce: String,
    verifier: String,
    /// The digest of the consent given before the redirect.
    allowed: [u8; 32],
    /// Set if it leads to the account page.
    #[serde(default)]
    is_account: bool,
    /// The time since which the provider has to have asked the person, in milliseconds since 1970, if the client
    /// requested a fresh log-in.
    #[serde(default)]
    asked_since_ms: Option<i64>,
}

/// GET: handles the return from a provider.
pub(crate) async fn callback(
    extract::State(oauth): extract::State<Oauth>,
    extract::Path((_, provider)): extract::Path<(String, String)>,
    request: Request,
) -> Response {
    let (parts, _) = request.into_parts();
    let Some(request) = BrowserRequest::of(&oauth, &parts) else {
        return not_found_page(&oauth);
    };
    let query = parts.uri.query().unwrap_or_default();
    let step = request.handle_return(&provider, query).await;
    request.respond(step, StatusCode::FOUND)
}

impl BrowserRequest {
    /// Redirects a person who consented, or wants to see the account page, to the provider.
    pub(crate) async fn redirect_to_provider(
        &self,
        authorization: Option<&AuthorizationRequest>,
        flow: &Flow,
        provider: &Arc<Provider>,
    ) -> StepResult {
        let trips = self.trips.as_ref().ok_or_else(expired_log_in)?;
        let (state, nonce, verifier) = (self.random()?, self.random()?, self.random()?);
        let callback = self.callback(provider);
        let login = ProviderLogin {
            callback: &callback,
            state: &state,
            nonce: &nonce,
            verifier: &verifier,
            is_kept: !self.server.builtin.recheck.is_zero(),
        };
        let identity = self.oauth.0.providers.of(provider);
        let asked_since_ms = authorization.and_then(|of| asked_since(of, self.now_ms()));
        let again =
            asked_since_ms.is_some() || authorization.is_some_and(|of| of.parameters.prompt.login);
        let to = identity.authorization_url(&login, again).await;
        let to = to.map_err(|unknown| provider_error_page(provider, &unknown))?;
        // After the provider's metadata are known: without them the page stays valid.
        self.take_decision(flow).await?;
        let pending = PendingLogin {
            query: flow.query.clone(),
            is_short: flow.is_short,
            provider: provider.name.clone(),
            nonce,
            verifier,
            allowed: authorization.map_or([0; 32], |of| of.digest),
            is_account: flow.is_account,
            asked_since_ms,
        };
        let content = Zeroizing::new(serde_json::to_vec(&pending).unwrap_or_default());
        let expires_ms = self.flow_expiry();
        let (logins, key) = (self.store()?.logins(), trips.login_key(&state));
        let added = logins.add_trip(self.tenant(), &key, &content, expires_ms);
        if let Err(failure) = added.await {
            self.give_back_decision(flow).await;
            return Err(failure.into());
        }
        self.tell(StepKind::SentToProvider, "");
        Ok(self.send_off(trips, to.as_str()))
    }

    /// Builds the redirect URI at the gateway, byte for byte as registered at the provider.
    fn callback(&self, provider: &Provider) -> String {
        let endpoint = OauthEndpoint::Callback(&provider.name);
        self.server.endpoint(&self.oauth.0, endpoint)
    }

    async fn handle_return(&self, name: &str, query: &str) -> StepResult {
        let fields = Form::parse(query).map_err(|_| unreadable())?;
        if fields.repeated(&[]).is_some() {
            return Err(unreadable().into());
        }
        let trips = self.trips.as_ref().ok_or_else(expired_log_in)?;
        let state = fields.get("state").ok_or_else(expired_log_in)?;
        // Another cookie gives another key, so no browser can take over the log-in of another one.
        let key = trips.login_key(state);
        let pending = self
            .store()?
            .logins()
            .take_trip(self.tenant(), &key)
            .await?;
        let pending =
            pending.and_then(|content| serde_json::from_slice::<PendingLogin>(&content).ok());
        let pending = pending
            .filter(|pending| pending.provider == name)
            .ok_or_else(expired_log_in)?;
        // First, so that each refusal is a step of the attempt that the log-in is of.
        let authorization = if pending.is_account {
            None
        } else {
            Some(self.read(&pending.query).await?)
        };
        let authorization = authorization.as_ref();
        let provider = Arc::clone(self.provider(name).ok_or_else(provider_gone)?);
        let identity = self.oauth.0.providers.of(&provider);
        // RFC 9207: a response of another provider is a mix-up attack.
        let iss = fields.get("iss");
        let is_from = identity.is_from(iss).await;
        if !is_from.map_err(|unknown| self.unidentified(&provider, &unknown))? {
            return Err(self.no_answer(&provider, wrong_issuer(iss), iss).into());
        }
        if let Some(error) = fields.get("error") {
            self.oauth.0.metrics.logins.add(Login::Refused);
            return Err(provider_refusal(&provider, authorization, error));
        }
        let code = fields.get("code");
        let code = code.ok_or_else(|| self.no_answer(&provider, NO_CODE, iss))?;
        let callback = self.callback(&provider);
        let login = ProviderLogin {
            callback: &callback,
            state,
            nonce: &pending.nonce,
            verifier: &pending.verifier,
            is_kept: false,
        };
        let wanted = self.server.wanted_claims(&provider);
        let found = identity.identify(&login, code, wanted).await;
        let found = found.map_err(|unknown| self.unidentified(&provider, &unknown))?;
        self.check_asked(&provider, authorization, &pending, &found.0)?;
        self.complete_log_in(&provider, authorization, &pending, found)
            .await
    }

    /// Refuses a log-in by a session at the provider, where the client requested a fresh one. A provider may not know that
    /// request (OpenID Connect Core, sections 3.1.2.1 and 3.1.3.7); one that does not tell what it did is believed.
    fn check_asked(
        &self,
        provider: &Provider,
        authorization: Option<&AuthorizationRequest>,
        pending: &PendingLogin,
        found: &ProviderIdentity,
    ) -> Result<(), StepRefusal> {
        let (Some(of), Some(since_ms)) = (authorization, pending.asked_since_ms) else {
            return Ok(());
        };
        let leeway = u64::from(LEEWAY_S);
        let latest = found.asked_s.map(|asked| asked.saturating_add(leeway));
        let since = u64::try_from(since_ms / 1000).unwrap_or(0);
        if latest.is_none_or(|latest| latest >= since) {
            return Ok(());
        }
        let name = provider.name.as_str();
        tracing::info!(
            provider = name,
            "an identity provider did not ask for a fresh log-in"
        );
        self.oauth.0.metrics.logins.add(Login::Refused);
        let refusal = AuthorizationRefusal {
            error: "login_required",
            description: "the identity provider did not ask the person again",
        };
        Err(StepRefusal::Client(of.redirect.clone(), refusal))
    }

    /// Counts a log-in at a provider that identified nobody, and makes its page.
    fn unidentified(&self, provider: &Provider, unknown: &ProviderError) -> ErrorPage {
        let outcome = if unknown.may_pass() {
            Login::Unavailable
        } else {
            Login::Refused
        };
        self.oauth.0.metrics.logins.add(outcome);
        provider_error_page(provider, unknown)
    }

    /// Counts a return that is no answer of the provider, and makes its page, with the reason `why`.
    fn no_answer(&self, provider: &Provider, why: &'static str, iss: Option<&str>) -> ErrorPage {
        self.oauth.0.metrics.logins.add(Login::Refused);
        let (name, title) = (provider.name.as_str(), super::pages::shown(&provider.title));
        // It may be anything, so the log alone has it.
        let iss: String = iss.unwrap_or_default().chars().take(256).collect();
        tracing::warn!(
            provider = name,
            why,
            iss,
            "a return from an identity provider is no answer of it"
        );
        let what = format!("This is no answer of {title}: {why}. You are not signed in.");
        ErrorPage::bad("Log-in failed", what, LOOK_IN_LOG)
    }

    /// Logs in the identified person and completes the flow to which the person consented.
    async fn complete_log_in(
        &self,
        provider: &Provider,
        authorization: Option<&AuthorizationRequest>,
        pending: &PendingLogin,
        (found, given): (ProviderIdentity, ProviderTokens),
    ) -> StepResult {
        let subject = format!("{}#{}", provider.issuer(), found.subject);
        let email = found.email.as_deref();
        self.attempt.subject(&subject);
        let groups = found.groups.unwrap_or_default();
        if !provider.allow.admits(&found.subject, &groups, email) {
            let target = format!("tenant {}", self.tenant());
            let detail = serde_json::json!({"by": provider.name});
            self.audit("login.refused", &subject, target, detail).await;
            self.oauth.0.metrics.logins.add(Login::Refused);
            return Err(not_allowed(provider).into());
        }
        let person = Person {
            title: found.title.unwrap_or_else(|| found.subject.clone()),
            subject,
            groups,
            provider: Some(provider.name.clone()),
            session: found
                .session
                .map(|session| format!("{}#{session}", provider.issuer())),
            auth_ms: self.now_ms(),
            password: None,
        };
        if let Some(of) = self.server.standing_of(&person.subject) {
            let standings = &self.oauth.0.standings;
            let told = (person.groups.as_slice(), person.auth_ms);
            standings.keep(&of, told, given).await?;
        }
        let browser = self.log_in(&person).await?;
        let step = match authorization {
            None => {
                let account = self.path(OauthEndpoint::Account);
                Ok(redirect(StatusCode::FOUND, &account))
            }
            Some(authorization) => {
                self.complete_consent(authorization, pending, &browser, &person)
                    .await
            }
        };
        let mut response = self.respond(step, StatusCode::FOUND);
        self.set_cookie(&mut response, &browser);
        Ok(response)
    }

    /// Completes a flow to which a person consented before it was known who they are. The page is shown again if
    /// the client's metadata changed meanwhile, and if it has accounts to connect, of which it could not know.
    async fn complete_consent(
        &self,
        authorization: &AuthorizationRequest,
        pending: &PendingLogin,
        browser: &BrowserId,
        person: &Person,
    ) -> StepResult {
        let is_given = pending.allowed == authorization.digest;
        if is_given && !self.has_to_connect(authorization, person).await? {
            self.draw_code(person)?;
            return self
                .record_consent(authorization, person, StatusCode::FOUND)
                .await;
        }
        let (query, ends) = (pending.query.clone(), self.flow_expiry());
        let flow = Flow::new(query, pending.is_short, browser, ends);
        self.consent_page(authorization, flow, Some(person), None)
            .await
    }

    /// Generates 256 random bits as text.
    pub(super) fn random(&self) -> Result<String, StepRefusal> {
        secret::plain(&self.oauth.0.random).ok_or_else(no_randomness)
    }
}

/// The time since which a provider has to have asked the person, for a request of a fresh log-in at `now_ms`.
fn asked_since(authorization: &AuthorizationRequest, now_ms: i64) -> Option<i64> {
    let of = &authorization.parameters;
    let age = if of.prompt.credentials {
        0
    } else {
        of.max_age?
    };
    let age_ms = i64::try_from(age.saturating_mul(1000)).unwrap_or(i64::MAX);
    Some(now_ms.saturating_sub(age_ms))
}

fn expired_log_in() -> ErrorPage {
    let what = "It was started in another browser, has already ended, or took too long.";
    ErrorPage::bad("This log-in has expired", what, RECONNECT)
}

/// The reason against a return with this `iss`, which is not that of the provider or upstream.
pub(super) fn wrong_issuer(iss: Option<&str>) -> &'static str {
    match iss {
        Some(_) => "it names another issuer (iss)",
        None => "it does not name its issuer (iss), which the metadata announce",
    }
}

/// Makes the response to the client after a provider's error, which is always `access_denied`.
fn provider_refusal(
    provider: &Provider,
    authorization: Option<&AuthorizationRequest>,
    error: &str,
) -> StepRefusal {
    let name = provider.name.as_str();
    let error: String = error.chars().take(64).collect();
    tracing::info!(
        provider = name,
        error,
        "an identity provider lets nobody in"
    );
    let Some(authorization) = authorization else {
        let known = ERRORS.into_iter().find(|known| *known == error);
        let what = format!(
            "{} did not log you in: {}.",
            super::pages::shown(&provider.title),
            // Another text may be anything.
            known.unwrap_or("an error")
        );
        return ErrorPage {
            status: StatusCode::FORBIDDEN,
            title: "Log-in failed",
            what,
            remedy: "Try again. If this goes on, an administrator of the tenant can find the reason in the \
                     gateway's log.",
            retry: None,
        }
        .into();
    };
    let refusal = AuthorizationRefusal {
        error: "access_denied",
        description: "the identity provider did not log the person in",
    };
    StepRefusal::Client(authorization.redirect.clone(), refusal)
}

fn provider_error_page(provider: &Provider, unknown: &ProviderError) -> ErrorPage {
    let (name, why) = (provider.name.as_str(), unknown.to_string());
    match unknown {
        ProviderError::Unavailable(_) => {
            tracing::warn!(provider = name, why, "an identity provider does not answer");
            ErrorPage::away("The identity provider does not answer.")
        }
        ProviderError::Unusable(_) => {
            tracing::warn!(
                provider = name,
                why,
                "an identity provider does not answer as it should"
            );
            ErrorPage::away("The identity provider does not answer as it should.")
        }
        ProviderError::Refused(error) => {
            tracing::warn!(
                provider = name,
                why,
                "an identity provider refuses the code of a log-in"
            );
            let title = super::pages::shown(&provider.title);
            let what = format!("{title} did not log you in: {error}.");
            ErrorPage::bad("Log-in failed", what, LOOK_IN_LOG)
        }
        ProviderError::Invalid(_) | ProviderError::Ended => {
            tracing::warn!(provider = name, why, "an identity provider is not believed");
            let what = "The answer of the identity provider is not valid. You are not signed in.";
            ErrorPage::bad("Log-in failed", what, LOOK_IN_LOG)
        }
    }
}

fn not_allowed(provider: &Provider) -> ErrorPage {
    ErrorPage {
        status: StatusCode::FORBIDDEN,
        title: "You may not come in",
        what: format!(
            "{} knows you, but this tenant does not let you in.",
            super::pages::shown(&provider.title)
        ),
        remedy: "Ask an administrator of the tenant, or connect again with another account.",
        retry: None,
    }
}

/// The reason against a return that says nothing (RFC 6749, sections 4.1.2 and 4.1.2.1).
const NO_CODE: &str = "it has neither a code nor an error";
/// The remedy where the operator has to look.
const LOOK_IN_LOG: &str = "Connect again from your application. If this goes on, an administrator \
                           of the tenant can find the reason in the gateway's log.";
/// Errors that a person is told by their names (RFC 6749, section 4.1.2.1; OpenID Connect Core, section 3.1.2.6).
const ERRORS: [&str; 16] = [
    "access_denied",
    "account_selection_required",
    "consent_required",
    "interaction_required",
    "invalid_request",
    "invalid_request_object",
    "invalid_request_uri",
    "invalid_scope",
    "login_required",
    "registration_not_supported",
    "request_not_supported",
    "request_uri_not_supported",
    "server_error",
    "temporarily_unavailable",
    "unauthorized_client",
    "unsupported_response_type",
];

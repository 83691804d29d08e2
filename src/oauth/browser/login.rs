//! Log-in: the password form and the choice of an identity provider.
//!
//! Not here: the providers (`oauth::providers`).

use axum::{
    extract::{self, Request},
    response::Response,
};
use http::StatusCode;
use serde_json::json;

use super::{
    authorization_request::{AuthorizationRequest, without_log_in_prompt},
    cookie::BrowserId,
    flow::{Flow, FormKind},
    pages::{ErrorPage, FormTarget, LoginPage, STYLE, html, redirect, shown},
    request::{
        BrowserRequest, RECONNECT, StepRefusal, StepResult, fields, not_found_page,
        password_digest, provider_gone,
    },
};
use crate::endpoint::OauthEndpoint;
use crate::{
    auth::{Caller, Denial},
    base::Secret,
    database::oauth::Person,
    declare::password,
    oauth::{
        base::{Form, throttle::account},
        server::{Oauth, OauthState, StepKind},
    },
    telemetry::{Denied, Login},
};

/// POST: handles a user name with password, or the choice of a provider.
pub(crate) async fn login(
    extract::State(oauth): extract::State<Oauth>,
    request: Request,
) -> Response {
    let (parts, body) = request.into_parts();
    let Some(request) = BrowserRequest::of(&oauth, &parts) else {
        return not_found_page(&oauth);
    };
    let step = async {
        let fields = fields(&parts, body).await?;
        request.log_in_by_form(&fields).await
    };
    request.respond(step.await, StatusCode::SEE_OTHER)
}

impl BrowserRequest {
    async fn log_in_by_form(&self, fields: &Form) -> StepResult {
        let mut flow = self.open_form(fields, FormKind::Login)?;
        let authorization = self.read_flow(&flow).await?;
        let authorization = authorization.as_ref();
        if let Some(name) = fields.get("provider") {
            let provider = self.provider(name).ok_or_else(provider_gone)?;
            flow.provider = Some(provider.name.clone());
            return match authorization {
                Some(authorization) => {
                    self.consent_page(authorization, flow, None, Some(provider))
                        .await
                }
                // This log-in lets in the person at this page alone, and no client.
                None => self.redirect_to_provider(None, &flow, provider).await,
            };
        }
        let name = fields.get("username").unwrap_or_default();
        let given = fields.get("password").unwrap_or_default();
        // Before the comparison, whose result must not show in what is refused.
        self.draw_write()?;
        self.spend_attempt(name)
            .inspect_err(|_| self.refund_write())?;
        let user = self.server.builtin.users.get(name);
        // Unknown and disabled users cost the same work, so that timing does not reveal them.
        let active = user.filter(|user| !user.disabled);
        let stored = active.and_then(|user| user.password.as_ref());
        let stored = stored.map(Secret::expose);
        let Some(is_right) = password::verify(self.tenant(), stored, given).await else {
            self.refund_attempt(name);
            self.refund_write();
            return Err(ErrorPage::away("Too many people log in at this moment.").into());
        };
        let Some(user) = active.filter(|_| is_right) else {
            return self.failed_log_in(authorization, &flow, name).await;
        };
        self.refund_attempt(name);
        let person = Person {
            subject: user.name.clone(),
            title: user.name.clone(),
            groups: Vec::new(),
            provider: None,
            session: None,
            auth_ms: self.now_ms(),
            password: password_digest(user),
        };
        let browser = self.log_in(&person).await?;
        let back = self.restart_url(&flow, &without_log_in_prompt(&flow.query));
        let mut response = redirect(StatusCode::SEE_OTHER, &back);
        self.set_cookie(&mut response, &browser);
        Ok(response)
    }

    /// Logs a person in under a new cookie, so that a cookie planted in the browser beforehand is
    /// useless (session fixation).
    pub(super) async fn log_in(&self, person: &Person) -> Result<BrowserId, StepRefusal> {
        let browser = Self::new_browser(&self.oauth.0.random)?;
        let lasts = i64::try_from(self.oauth.0.config.oauth.login.as_millis());
        let expires_ms = self.now_ms().saturating_add(lasts.unwrap_or(i64::MAX));
        let (store, tenant) = (self.store()?, self.tenant());
        let logins = store.logins();
        let is_stored = logins
            .log_in(tenant, &browser.hash(), person, expires_ms)
            .await?;
        if !is_stored {
            return Err(ended_meanwhile().into());
        }
        if let Some(old) = &self.browser {
            logins.log_out(tenant, &old.hash()).await?;
        }
        let by = person.provider.as_deref().unwrap_or("password");
        let target = format!("tenant {tenant}");
        self.audit("login", &person.subject, target, json!({"by": by}))
            .await;
        self.oauth.0.metrics.logins.add(Login::Success);
        self.attempt.subject(&person.subject);
        self.tell(StepKind::LoggedIn, "");
        Ok(browser)
    }

    /// Makes the response to a failed log-in, the same for every reason, so that it does not reveal
    /// user names.
    async fn failed_log_in(
        &self,
        authorization: Option<&AuthorizationRequest>,
        flow: &Flow,
        name: &str,
    ) -> StepResult {
        self.refund_write();
        self.oauth.0.metrics.logins.add(Login::BadPassword);
        let denials = &self.oauth.0.denials;
        denials.report(Denial {
            who: Caller::At(self.address),
            tenant: self.tenant().into(),
            server: "".into(),
            route: "login",
            reason: Denied::BadPassword,
            // Only names that exist: what was typed may be a password.
            user: self
                .server
                .builtin
                .users
                .get(name)
                .map(|user| user.name.as_str().into()),
            detail: "a wrong password, or a user who may not log in",
        });
        denials.settle().await;
        self.tell(
            StepKind::LogInFailed,
            "a wrong password, or a user who may not log in",
        );
        let wrong = "User name or password is wrong, or this user may not log in.";
        self.login_page(
            authorization,
            flow,
            Some((wrong, name)),
            StatusCode::FORBIDDEN,
        )
    }

    /// Takes an attempt of the address and of the user name before the password is compared, so that
    /// attempts at the same time are no more. No user is locked out for longer than a minute.
    fn spend_attempt(&self, name: &str) -> Result<(), ErrorPage> {
        let OauthState {
            failures, config, ..
        } = &*self.oauth.0;
        let (of_address, of_name) = (account(self.address), (self.tenant(), name));
        let address = failures.spend(&of_address, config.oauth.failures);
        let tried = address.and_then(|()| {
            let tried = failures.spend(&of_name, TRIES);
            tried.inspect_err(|_| failures.refund(&of_address))
        });
        tried.map_err(|retry| ErrorPage {
            status: StatusCode::TOO_MANY_REQUESTS,
            title: "Too many attempts",
            what: "There were too many wrong passwords in the last minute, from your address or \
                   for this user name."
                .to_owned(),
            remedy: "Wait a minute, then go back and try again. If you have forgotten your \
                     password, an administrator of the tenant can set another.",
            retry: Some(retry.as_secs().max(1)),
        })
    }

    /// Gives back an attempt that was no failure.
    fn refund_attempt(&self, name: &str) {
        let failures = &self.oauth.0.failures;
        failures.refund(&account(self.address));
        failures.refund(&(self.tenant(), name));
    }

    /// Shows the log-in page, after a failed attempt with its error and its user name.
    pub(super) fn login_page(
        &self,
        authorization: Option<&AuthorizationRequest>,
        flow: &Flow,
        failed: Option<(&str, &str)>,
        status: StatusCode,
    ) -> StepResult {
        let form = self.seal(flow, FormKind::Login)?;
        let providers = self.server.builtin.providers.values();
        let page = LoginPage {
            tenant: self.tenant(),
            client: authorization.map(|of| shown(&of.client.title)),
            server: authorization.map_or("", |of| &of.parameters.resource.server),
            action: &self.path(OauthEndpoint::Login),
            form: &form,
            wrong: failed.map(|(wrong, _)| wrong),
            username: failed.map_or("", |(_, name)| name),
            has_passwords: self.has_passwords(),
            providers: providers
                .map(|provider| (provider.name.as_str(), shown(&provider.title)))
                .collect(),
            style: STYLE,
        };
        if failed.is_none() {
            self.tell(StepKind::AskedToLogIn, "");
        }
        // With a stored consent the redirect to the client follows the log-in at once.
        let leads_on = authorization.is_some() || !page.providers.is_empty();
        let target = if leads_on {
            FormTarget::Onward
        } else {
            FormTarget::Own
        };
        Ok(html(status, &page, target))
    }
}

fn ended_meanwhile() -> ErrorPage {
    let what = "An administrator, or your identity provider, ended your access at the same moment.";
    ErrorPage::bad("This log-in was ended", what, RECONNECT)
}

/// Maximum wrong passwords per minute for one user name.
const TRIES: u32 = 20;

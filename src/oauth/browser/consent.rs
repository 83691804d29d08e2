//! Consent: the page that lists what a client requests, and the decision it records.
//!
//! A consent is stored for a person, a client and everything that the page showed. If only a provider
//! can identify the person, the page comes before the redirect. Otherwise an existing session at the
//! provider would admit any client without consent (2025-11-25 security best practices, "Confused
//! Deputy Problem"). A decision is taken once.

use axum::{
    extract::{Request, State},
    response::Response,
};
use http::StatusCode;
use serde_json::json;

use super::{
    authorization_request::{AuthorizationRefusal, AuthorizationRequest, with_log_in_prompt},
    flow::{Flow, FormKind},
    pages::{ConsentPage, ErrorPage, FormTarget, STYLE, html, redirect, shown},
    request::{
        BrowserRequest, RECONNECT, StepRefusal, StepResult, fields, not_found_page, provider_gone,
    },
};
use crate::endpoint::OauthEndpoint;
use crate::{
    database::oauth::Person,
    declare::{AllowedScopes, OFFLINE_ACCESS, Provider},
    oauth::{
        base::Form,
        clients::{ClientSource, redirect as client_redirect},
        server::{Oauth, StepKind},
    },
};

/// POST: handles the decision.
pub(crate) async fn consent(State(oauth): State<Oauth>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let Some(request) = BrowserRequest::of(&oauth, &parts) else {
        return not_found_page(&oauth);
    };
    let step = async {
        let fields = fields(&parts, body).await?;
        request.decide(&fields).await
    };
    request.respond(step.await, StatusCode::SEE_OTHER)
}

impl BrowserRequest {
    /// Shows the consent page.
    pub(super) fn consent_page(
        &self,
        authorization: &AuthorizationRequest,
        mut flow: Flow,
        person: Option<&Person>,
        provider: Option<&std::sync::Arc<Provider>>,
    ) -> StepResult {
        // Whom a provider will identify is not known yet: the code has what that person may have.
        let allowed = match person {
            Some(person) => self.allowed_scopes(authorization, person)?,
            None => AllowedScopes::All,
        };
        let granted = self.granted_scopes(authorization, &allowed);
        let asked = authorization.parameters.scopes.iter().map(String::as_str);
        flow.shown = Some(self.consent_digest(authorization, &allowed));
        let form = self.seal(&flow, FormKind::Consent)?;
        let redirect_host = shown(&authorization.redirect.shown_host());
        let (document_host, document_date) = match &authorization.client.kind {
            ClientSource::Document { host, date } => (Some(host.as_str()), date.as_deref()),
            ClientSource::Declared | ClientSource::Registered { .. } => (None, None),
        };
        let page = ConsentPage {
            tenant: self.tenant(),
            client: shown(&authorization.client.title),
            document_host,
            document_date,
            redirect_host: &redirect_host,
            server: &authorization.parameters.resource.server,
            resource: &authorization.parameters.resource.url,
            withheld: asked.filter(|scope| !granted.contains(scope)).collect(),
            scopes: granted
                .into_iter()
                .filter(|scope| *scope != OFFLINE_ACCESS)
                .collect(),
            is_unverified: authorization.client.kind != ClientSource::Declared,
            is_local: client_redirect::is_loopback(&authorization.redirect.uri),
            action: &self.path(OauthEndpoint::Consent),
            form: &form,
            person: person.map(|person| shown(&person.title)),
            provider: provider.map(|provider| shown(&provider.title)),
            style: STYLE,
        };
        self.tell(StepKind::AskedToConsent, "");
        let target = match provider {
            Some(_) => FormTarget::Provider,
            None => FormTarget::Client(authorization.redirect.uri.clone()),
        };
        Ok(html(StatusCode::OK, &page, &target))
    }

    async fn decide(&self, fields: &Form) -> StepResult {
        let flow = self.open_form(fields, FormKind::Consent)?;
        let authorization = self.read(&flow.query).await?;
        match fields.get("decision") {
            Some("allow") => self.allow(authorization, flow).await,
            Some("deny") => self.deny(&authorization, &flow).await,
            Some("switch") => self.switch_account(&flow).await,
            _ => {
                let what = "The form contains no decision.";
                Err(ErrorPage::bad("This form cannot be read", what, RECONNECT).into())
            }
        }
    }

    async fn allow(&self, authorization: AuthorizationRequest, flow: Flow) -> StepResult {
        if let Some(name) = &flow.provider {
            let provider = self.provider(name).ok_or_else(provider_gone)?;
            // Changes since the page was shown need a new consent.
            if flow.shown != Some(authorization.digest) {
                let provider = std::sync::Arc::clone(provider);
                return self.consent_page(&authorization, flow, None, Some(&provider));
            }
            return self
                .redirect_to_provider(Some(&authorization), &flow, provider)
                .await;
        }
        let Some(person) = self.person().await? else {
            // The log-in expired while the page was open.
            let again = self.restart_url(&flow, &flow.query);
            return Ok(redirect(StatusCode::SEE_OTHER, &again));
        };
        let allowed = self.allowed_scopes(&authorization, &person)?;
        if flow.shown != Some(self.consent_digest(&authorization, &allowed)) {
            return self.consent_page(&authorization, flow, Some(&person), None);
        }
        self.take_decision(&flow).await?;
        self.record_consent(&authorization, &person, StatusCode::SEE_OTHER)
            .await
    }

    /// Stores the consent and completes the flow.
    pub(super) async fn record_consent(
        &self,
        authorization: &AuthorizationRequest,
        person: &Person,
        redirect_status: StatusCode,
    ) -> StepResult {
        let allowed = self.allowed_scopes(authorization, person)?;
        let digest = self.consent_digest(authorization, &allowed);
        let (subject, client) = (&person.subject, &authorization.client.id);
        if authorization.is_remembered() {
            let logins = self.store()?.logins();
            logins
                .consent(self.tenant(), subject, client, &digest)
                .await?;
        }
        self.audit_consent("consent.given", subject, authorization)
            .await;
        self.issue_code(authorization, person, redirect_status)
            .await
    }

    async fn deny(&self, authorization: &AuthorizationRequest, flow: &Flow) -> StepResult {
        let person = self.person().await?;
        self.take_decision(flow).await?;
        let subject = person.map(|person| person.subject).unwrap_or_default();
        self.audit_consent("consent.denied", &subject, authorization)
            .await;
        let refusal = AuthorizationRefusal {
            error: "access_denied",
            description: "the person did not allow it",
        };
        Err(StepRefusal::Client(authorization.redirect.clone(), refusal))
    }

    async fn audit_consent(&self, kind: &str, subject: &str, authorization: &AuthorizationRequest) {
        let target = format!("client {}/{}", self.tenant(), authorization.client.id);
        let detail = json!({
            "resource": authorization.parameters.resource.url,
            "scope": authorization.parameters.scope(),
            "redirect_host": authorization.redirect.shown_host(),
        });
        self.audit(kind, subject, target, detail).await;
    }

    /// Logs out and starts the log-in of another person.
    async fn switch_account(&self, flow: &Flow) -> StepResult {
        if let Some(browser) = &self.browser {
            self.store()?
                .logins()
                .log_out(self.tenant(), &browser.hash())
                .await?;
        }
        // The prompt keeps a session at a provider from identifying the same person again.
        let again = self.restart_url(flow, &with_log_in_prompt(&flow.query));
        let mut response = redirect(StatusCode::SEE_OTHER, &again);
        let browser = Self::new_browser(&self.oauth.0.random)?;
        self.set_cookie(&mut response, &browser);
        Ok(response)
    }
}

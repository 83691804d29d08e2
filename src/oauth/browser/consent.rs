//! Consent: the page that lists what a client requests, and the decision it records.
//!
//! A consent is stored for a person, a client and all that was shown. If only a provider can
//! identify the person, the page comes before the redirect to it: otherwise an existing session at
//! the provider would let any client in without consent (2025-11-25 security best practices,
//! "Confused Deputy Problem").

use axum::{
    extract::{Request, State},
    response::Response,
};
use http::StatusCode;
use serde_json::json;

use super::{
    authorization_request::{
        AuthorizationRefusal, AuthorizationRequest, OFFLINE_ACCESS, with_log_in_prompt,
    },
    flow::{Flow, FormKind},
    pages::{ConsentPage, ErrorPage, FormTarget, STYLE, html, redirect, shown},
    request::{
        AGAIN, BrowserRequest, StepRefusal, StepResult, fields, not_found_page, provider_gone,
    },
};
use crate::endpoint::OauthEndpoint;
use crate::{
    database::oauth::Person,
    declare::Provider,
    oauth::{base::Form, clients::ClientSource, server::Oauth},
};

/// POST: the decision.
pub(crate) async fn consent(State(oauth): State<Oauth>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let Some(request) = BrowserRequest::of(&oauth, &parts) else {
        return not_found_page(&oauth);
    };
    let step = async {
        let fields = fields(&parts, body).await?;
        request.decided(&fields).await
    };
    request.answer(step.await, StatusCode::SEE_OTHER)
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
        flow.shown = Some(authorization.digest);
        let form = self.sealed(&flow, FormKind::Consent)?;
        let redirect_host = shown(&authorization.redirect.shown_host());
        let scopes = authorization.parameters.scopes.iter().map(String::as_str);
        let document_host = match &authorization.client.kind {
            ClientSource::Document { host } => Some(host.as_str()),
            ClientSource::Declared | ClientSource::Registered { .. } => None,
        };
        let page = ConsentPage {
            tenant: self.tenant(),
            client: shown(&authorization.client.title),
            document_host,
            redirect_host: &redirect_host,
            server: &authorization.parameters.resource.server,
            resource: &authorization.parameters.resource.url,
            scopes: scopes.filter(|scope| *scope != OFFLINE_ACCESS).collect(),
            is_unverified: authorization.client.kind != ClientSource::Declared,
            is_local: authorization.client.is_loopback_only(),
            action: &self.path(OauthEndpoint::Consent),
            form: &form,
            person: person.map(|person| shown(&person.title)),
            provider: provider.map(|provider| shown(&provider.title)),
            style: STYLE,
        };
        let target = match provider {
            Some(_) => FormTarget::Provider,
            None => FormTarget::Client(authorization.redirect.uri.clone()),
        };
        Ok(html(StatusCode::OK, &page, &target))
    }

    async fn decided(&self, fields: &Form) -> StepResult {
        let flow = self.opened(fields, FormKind::Consent)?;
        let authorization = self.read(&flow.query).await?;
        match fields.get("decision") {
            Some("allow") => self.allowed(authorization, flow).await,
            Some("deny") => self.denied(&authorization).await,
            Some("switch") => self.switched(&flow).await,
            _ => {
                let what = "The form does not say what was decided.";
                Err(ErrorPage::bad("This form cannot be read", what, AGAIN).into())
            }
        }
    }

    async fn allowed(&self, authorization: AuthorizationRequest, flow: Flow) -> StepResult {
        if let Some(name) = &flow.provider {
            let provider = self.provider(name).ok_or_else(provider_gone)?;
            // Changes since the page was shown lack consent.
            if flow.shown != Some(authorization.digest) {
                let provider = std::sync::Arc::clone(provider);
                return self.consent_page(&authorization, flow, None, Some(&provider));
            }
            return self
                .redirect_to_provider(&authorization, &flow, provider)
                .await;
        }
        let Some(person) = self.person().await? else {
            // The log-in expired while the page was open.
            let again = self.again(&flow, &flow.query);
            return Ok(redirect(StatusCode::SEE_OTHER, &again));
        };
        if flow.shown != Some(authorization.digest) {
            return self.consent_page(&authorization, flow, Some(&person), None);
        }
        self.agreed(&authorization, &person, StatusCode::SEE_OTHER)
            .await
    }

    /// Stores the consent and completes the flow.
    pub(super) async fn agreed(
        &self,
        authorization: &AuthorizationRequest,
        person: &Person,
        redirecting: StatusCode,
    ) -> StepResult {
        self.check_server(authorization, person)?;
        let (subject, client) = (&person.subject, &authorization.client.id);
        let (store, tenant) = (self.store()?, self.tenant());
        store
            .logins()
            .consent(tenant, subject, client, &authorization.digest)
            .await?;
        self.note_consent("consent.given", subject, authorization)
            .await;
        self.grant(authorization, person, redirecting).await
    }

    async fn denied(&self, authorization: &AuthorizationRequest) -> StepResult {
        let person = self.person().await?;
        let subject = person.map(|person| person.subject).unwrap_or_default();
        self.note_consent("consent.denied", &subject, authorization)
            .await;
        let refusal = AuthorizationRefusal {
            error: "access_denied",
            description: "the person did not allow it",
        };
        Err(StepRefusal::Client(authorization.redirect.clone(), refusal))
    }

    async fn note_consent(&self, kind: &str, subject: &str, authorization: &AuthorizationRequest) {
        let target = format!("client {}/{}", self.tenant(), authorization.client.id);
        let detail = json!({
            "resource": authorization.parameters.resource.url,
            "scope": authorization.parameters.scope(),
            "redirect_host": authorization.redirect.shown_host(),
        });
        self.note(kind, subject, target, detail).await;
    }

    /// Logs out, and starts a log-in of another person.
    async fn switched(&self, flow: &Flow) -> StepResult {
        if let Some(browser) = &self.browser {
            self.store()?
                .logins()
                .log_out(self.tenant(), &browser.hash())
                .await?;
        }
        // Otherwise a session at a provider would identify the same person again.
        let again = self.again(flow, &with_log_in_prompt(&flow.query));
        let mut response = redirect(StatusCode::SEE_OTHER, &again);
        let stranger = Self::stranger(&self.oauth.0.random)?;
        self.remember(&mut response, &stranger);
        Ok(response)
    }
}

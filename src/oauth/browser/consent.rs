//! Consent: the page that lists what a client requests, and the decision it records.
//!
//! A consent is stored for a person, a client and everything that the page showed. If only a provider
//! can identify the person, the page comes before the redirect. Otherwise an existing session at the
//! provider would admit any client without consent (2025-11-25 security best practices, "Confused
//! Deputy Problem"). A decision is taken once; a redirect to an upstream takes it, and the return begins another.
//! Whether the person's accounts are connected is no part of what they consent to.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    response::Response,
};
use http::StatusCode;
use serde_json::json;

use super::{
    authorization_request::{AuthorizationRefusal, AuthorizationRequest, with_account_prompt},
    flow::{Flow, FormKind},
    pages::{ConsentPage, ErrorPage, FormTarget, STYLE, ShownUpstream, html, redirect, shown},
    request::{
        BrowserRequest, RECONNECT, StepRefusal, StepResult, fields, not_found_page, provider_gone,
    },
};
use crate::endpoint::OauthEndpoint;
use crate::{
    auth::REGISTERED,
    database::oauth::Person,
    declare::{OFFLINE_ACCESS, Provider},
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
    pub(super) async fn consent_page(
        &self,
        authorization: &AuthorizationRequest,
        flow: Flow,
        person: Option<&Person>,
        provider: Option<&Arc<Provider>>,
    ) -> StepResult {
        let upstreams = match person {
            Some(person) => self.upstreams_of(authorization, person).await?,
            None => Vec::new(),
        };
        self.consent_page_with((upstreams, None), authorization, flow, (person, provider))
    }

    /// Shows the consent page again, because an account was not connected.
    pub(super) async fn consent_page_after(
        &self,
        failed: &ErrorPage,
        authorization: &AuthorizationRequest,
        flow: Flow,
        person: &Person,
    ) -> StepResult {
        let upstreams = self.upstreams_of(authorization, person).await?;
        let accounts = (upstreams, Some(&*failed.what));
        self.consent_page_with(accounts, authorization, flow, (Some(person), None))
    }

    /// The upstreams that the server needs of the person.
    async fn upstreams_of(
        &self,
        authorization: &AuthorizationRequest,
        person: &Person,
    ) -> Result<Vec<ShownUpstream>, StepRefusal> {
        let server = &authorization.parameters.resource.server;
        self.shown_upstreams(person, Some(server)).await
    }

    fn consent_page_with(
        &self,
        (upstreams, failed): (Vec<ShownUpstream>, Option<&str>),
        authorization: &AuthorizationRequest,
        mut flow: Flow,
        (person, provider): (Option<&Person>, Option<&Arc<Provider>>),
    ) -> StepResult {
        let asked = authorization.parameters.scopes.iter().map(String::as_str);
        let (granted, digest) = match person {
            Some(person) => {
                let allowed = self.allowed_scopes(authorization, person)?;
                let granted = self.granted_scopes(authorization, &allowed);
                (granted, self.consent_digest(authorization, &allowed))
            }
            // Whom a provider will identify is not known yet: the code has what that person may have. Nothing is
            // withheld here, so that a stranger does not learn which servers there are.
            None => (asked.clone().collect(), authorization.digest),
        };
        flow.shown = Some(digest);
        let form = self.seal(&flow, FormKind::Consent)?;
        let redirect_host = shown(&authorization.redirect.shown_host());
        let (document_host, document_date) = match &authorization.client.kind {
            ClientSource::Document { host, date } => (Some(host.as_str()), date.as_deref()),
            ClientSource::Declared | ClientSource::Registered { .. } => (None, None),
        };
        // A name of which nothing can be seen is none.
        let client = match shown(&authorization.client.title) {
            title if title.is_empty() => redirect_host.clone(),
            title => title,
        };
        let page = ConsentPage {
            tenant: self.tenant(),
            client,
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
            upstreams,
            failed,
            style: STYLE,
        };
        self.tell(StepKind::AskedToConsent, "");
        Ok(html(StatusCode::OK, &page, FormTarget::Onward))
    }

    async fn decide(&self, fields: &Form) -> StepResult {
        let flow = self.open_form(fields, FormKind::Consent)?;
        let authorization = self.read(&flow.query).await?;
        if let Some(upstream) = fields.get("connect") {
            return self.connect(&authorization, flow, upstream).await;
        }
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
                let provider = Arc::clone(provider);
                return self
                    .consent_page(&authorization, flow, None, Some(&provider))
                    .await;
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
            return self
                .consent_page(&authorization, flow, Some(&person), None)
                .await;
        }
        self.draw_code(&person)?;
        self.take_decision(&flow).await?;
        self.record_consent(&authorization, &person, StatusCode::SEE_OTHER)
            .await
    }

    /// Redirects a person to an upstream that the server needs, from where they return to this consent.
    async fn connect(
        &self,
        authorization: &AuthorizationRequest,
        flow: Flow,
        name: &str,
    ) -> StepResult {
        let Some(person) = self.person().await? else {
            let again = self.restart_url(&flow, &flow.query);
            return Ok(redirect(StatusCode::SEE_OTHER, &again));
        };
        // The page shows upstreams only to a person who is known.
        let server =
            Some(&*authorization.parameters.resource.server).filter(|_| flow.provider.is_none());
        let upstream = server.and_then(|server| self.needed_upstream(&person, Some(server), name));
        let Some(upstream) = upstream else {
            let what = "The server does not need this account, or not any more.";
            return Err(ErrorPage::bad("This form cannot be read", what, RECONNECT).into());
        };
        match self.depart(&person, &upstream, Some(&flow)).await? {
            Ok(departed) => Ok(departed),
            Err(failed) => {
                self.consent_page_after(&failed, authorization, flow, &person)
                    .await
            }
        }
    }

    /// Reports whether the server needs an account of the person that is not connected, and the person has not
    /// allowed this request before, with the page in view.
    pub(super) async fn has_to_connect(
        &self,
        authorization: &AuthorizationRequest,
        person: &Person,
    ) -> Result<bool, StepRefusal> {
        let upstreams = self.upstreams_of(authorization, person).await?;
        if !upstreams.iter().any(is_unconnected) {
            return Ok(false);
        }
        let allowed = self.allowed_scopes(authorization, person)?;
        let digest = self.consent_digest(authorization, &allowed);
        Ok(!self.has_consented(authorization, person, &digest).await?)
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
        let granted = self.granted_scopes(authorization, &allowed).join(" ");
        self.audit_consent("consent.given", subject, authorization, &granted)
            .await?;
        self.issue_code(authorization, person, redirect_status)
            .await
    }

    async fn deny(&self, authorization: &AuthorizationRequest, flow: &Flow) -> StepResult {
        let person = self.person().await?;
        self.take_decision(flow).await?;
        let subject = person.map(|person| person.subject).unwrap_or_default();
        let asked = authorization.parameters.scope();
        self.audit_consent("consent.denied", &subject, authorization, &asked)
            .await?;
        let refusal = AuthorizationRefusal {
            error: "access_denied",
            description: "the person did not allow it",
        };
        Err(StepRefusal::Client(authorization.redirect.clone(), refusal))
    }

    /// Records a decision about a client, whose registration stays on record from now on. Before the log-in at a provider
    /// anybody may deny: that is nobody's decision.
    async fn audit_consent(
        &self,
        kind: &str,
        subject: &str,
        authorization: &AuthorizationRequest,
        scope: &str,
    ) -> Result<(), StepRefusal> {
        if subject.is_empty() {
            return Ok(());
        }
        let id = &authorization.client.id;
        if id.starts_with(REGISTERED) {
            self.store()?.clients().decided(self.tenant(), id).await?;
        }
        let target = format!("client {}/{}", self.tenant(), authorization.client.id);
        let detail = json!({
            "resource": authorization.parameters.resource.url,
            "scope": scope,
            "asked": authorization.parameters.scope(),
            "redirect_host": authorization.redirect.shown_host(),
        });
        self.audit(kind, subject, target, detail).await;
        Ok(())
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
        let again = self.restart_url(flow, &with_account_prompt(&flow.query));
        let mut response = redirect(StatusCode::SEE_OTHER, &again);
        let browser = Self::new_browser(&self.oauth.0.random)?;
        self.set_cookie(&mut response, &browser);
        Ok(response)
    }
}

fn is_unconnected(upstream: &ShownUpstream) -> bool {
    upstream.connected.is_none()
}

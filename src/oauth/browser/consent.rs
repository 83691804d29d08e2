//! Whether a client may: the page that shows what it wants, and what a person says to that.
//!
//! A consent is remembered for a person, a client and all that was shown. Where the person is not
//! known yet, since only a provider can say who it is, the page comes before the way there: else
//! whoever is logged in at the provider would let any client in without being asked (2025-11-25
//! security best practices, "Confused Deputy Problem").

use axum::{
    extract::{Request, State},
    response::Response,
};
use http::StatusCode;
use serde_json::json;

use super::{
    authorization_request::{OFFLINE, Refusal, asking_who},
    flow::{Flow, Page},
    pages::{ConsentPage, Leads, STYLE, Trouble, html, redirect, shown},
    request::{AGAIN, Asked, Step, Stop, Visit, fields, gone, nobody},
};
use crate::endpoint::OauthEndpoint;
use crate::{
    database::oauth::Person,
    declare::Provider,
    oauth::{base::Form, clients::Kind, server::Oauth},
};

/// POST: what somebody decided.
pub(crate) async fn consent(State(oauth): State<Oauth>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let Some(visit) = Visit::of(&oauth, &parts) else {
        return nobody(&oauth);
    };
    let step = async {
        let fields = fields(&parts, body).await?;
        visit.decided(&fields).await
    };
    visit.answer(step.await, StatusCode::SEE_OTHER)
}

impl Visit {
    /// The page that asks whether a client may.
    pub(super) fn ask_whether(
        &self,
        asked: &Asked,
        mut flow: Flow,
        person: Option<&Person>,
        provider: Option<&std::sync::Arc<Provider>>,
    ) -> Step {
        flow.shown = Some(asked.digest);
        let form = self.sealed(&flow, Page::Consent)?;
        let redirect_host = shown(&asked.back.shown_host());
        let scopes = asked.wish.scopes.iter().map(String::as_str);
        let document_host = match &asked.client.kind {
            Kind::Document { host } => Some(host.as_str()),
            Kind::Declared | Kind::Registered { .. } => None,
        };
        let page = ConsentPage {
            tenant: self.tenant(),
            client: shown(&asked.client.title),
            document_host,
            redirect_host: &redirect_host,
            server: &asked.wish.resource.server,
            resource: &asked.wish.resource.url,
            scopes: scopes.filter(|scope| *scope != OFFLINE).collect(),
            is_unverified: asked.client.kind != Kind::Declared,
            is_local: asked.client.is_loopback_only(),
            action: &self.path(OauthEndpoint::Consent),
            form: &form,
            person: person.map(|person| shown(&person.title)),
            provider: provider.map(|provider| shown(&provider.title)),
            style: STYLE,
        };
        let leads = match provider {
            Some(_) => Leads::Provider,
            None => Leads::Client(asked.back.uri.clone()),
        };
        Ok(html(StatusCode::OK, &page, &leads))
    }

    async fn decided(&self, fields: &Form) -> Step {
        let flow = self.opened(fields, Page::Consent)?;
        let asked = self.read(&flow.query).await?;
        match fields.get("decision") {
            Some("allow") => self.allowed(asked, flow).await,
            Some("deny") => self.denied(&asked).await,
            Some("switch") => self.switched(&flow).await,
            _ => {
                let what = "The form does not say what was decided.";
                Err(Trouble::bad("This form cannot be read", what, AGAIN).into())
            }
        }
    }

    async fn allowed(&self, asked: Asked, flow: Flow) -> Step {
        if let Some(name) = &flow.provider {
            let provider = self.provider(name).ok_or_else(gone)?;
            // What changed since it was shown was not allowed.
            if flow.shown != Some(asked.digest) {
                let provider = std::sync::Arc::clone(provider);
                return self.ask_whether(&asked, flow, None, Some(&provider));
            }
            return self.depart(&asked, &flow, provider).await;
        }
        let Some(person) = self.person().await? else {
            // The log-in ended while the page was open.
            let again = self.again(&flow, &flow.query);
            return Ok(redirect(StatusCode::SEE_OTHER, &again));
        };
        if flow.shown != Some(asked.digest) {
            return self.ask_whether(&asked, flow, Some(&person), None);
        }
        self.agreed(&asked, &person, StatusCode::SEE_OTHER).await
    }

    /// Remembers a consent and lets the client in.
    pub(super) async fn agreed(
        &self,
        asked: &Asked,
        person: &Person,
        redirecting: StatusCode,
    ) -> Step {
        self.check_server(asked, person)?;
        let (subject, client) = (&person.subject, &asked.client.id);
        let (store, tenant) = (self.store()?, self.tenant());
        store
            .consent(tenant, subject, client, &asked.digest)
            .await?;
        self.note_consent("consent.given", subject, asked).await;
        self.grant(asked, person, redirecting).await
    }

    async fn denied(&self, asked: &Asked) -> Step {
        let person = self.person().await?;
        let subject = person.map(|person| person.subject).unwrap_or_default();
        self.note_consent("consent.denied", &subject, asked).await;
        let refusal = Refusal {
            error: "access_denied",
            description: "the person did not allow it",
        };
        Err(Stop::Back(asked.back.clone(), refusal))
    }

    async fn note_consent(&self, kind: &str, subject: &str, asked: &Asked) {
        let target = format!("client {}/{}", self.tenant(), asked.client.id);
        let detail = json!({
            "resource": asked.wish.resource.url,
            "scope": asked.wish.scope(),
            "redirect_host": asked.back.shown_host(),
        });
        self.note(kind, subject, target, detail).await;
    }

    /// Lets somebody else log in in this browser.
    async fn switched(&self, flow: &Flow) -> Step {
        if let Some(browser) = &self.browser {
            self.store()?
                .log_out(self.tenant(), &browser.hash())
                .await?;
        }
        // Else a provider at which somebody is logged in would say that name again.
        let again = self.again(flow, &asking_who(&flow.query));
        let mut response = redirect(StatusCode::SEE_OTHER, &again);
        let stranger = Self::stranger(&self.oauth.0.random)?;
        self.remember(&mut response, &stranger);
        Ok(response)
    }
}

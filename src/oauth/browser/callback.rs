//! The way to an identity provider and back.
//!
//! The client was shown before (`consent`); what comes back ends the flow at once. Only the browser
//! that left can come back, and only once (CONTRACT P96).

use std::sync::Arc;

use axum::{
    extract::{self, Request},
    response::Response,
};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::{
    authorization_request::Refusal,
    flow::Flow,
    pages::{Trouble, redirect},
    request::{AGAIN, Asked, Step, Stop, Visit, gone, no_randomness, nobody, unreadable},
};
use crate::endpoint::OauthEndpoint;
use crate::{
    database::oauth::Person,
    declare::Provider,
    oauth::{
        base::{Form, secret},
        providers::{Found, Journey, Unknown, Wanted},
        server::Oauth,
    },
};

/// What is kept of a log-in while somebody is at a provider; the store seals it.
#[derive(Serialize, Deserialize)]
struct Trip {
    query: String,
    is_short: bool,
    provider: String,
    nonce: String,
    verifier: String,
    /// What the person allowed before it left.
    allowed: [u8; 32],
}

/// GET: somebody comes back.
pub(crate) async fn callback(
    extract::State(oauth): extract::State<Oauth>,
    extract::Path((_, provider)): extract::Path<(String, String)>,
    request: Request,
) -> Response {
    let (parts, _) = request.into_parts();
    let Some(visit) = Visit::of(&oauth, &parts) else {
        return nobody(&oauth);
    };
    let query = parts.uri.query().unwrap_or_default();
    let step = visit.returned(&provider, query).await;
    visit.answer(step, StatusCode::FOUND)
}

impl Visit {
    /// Sends somebody who allowed the client to the provider that says who they are.
    pub(crate) async fn depart(
        &self,
        asked: &Asked,
        flow: &Flow,
        provider: &Arc<Provider>,
    ) -> Step {
        let browser = self.browser.as_ref().ok_or_else(lost)?;
        let (state, nonce, verifier) = (self.random()?, self.random()?, self.random()?);
        let callback = self.callback(provider);
        let journey = Journey {
            callback: &callback,
            state: &state,
            nonce: &nonce,
            verifier: &verifier,
        };
        let identity = self.oauth.0.providers.of(provider);
        let again = asked.wish.prompt.login || asked.wish.max_age.is_some();
        let to = identity.depart(&journey, again).await;
        let to = to.map_err(|unknown| trouble(provider, &unknown))?;
        let trip = Trip {
            query: flow.query.clone(),
            is_short: flow.is_short,
            provider: provider.name.clone(),
            nonce,
            verifier,
            allowed: asked.digest,
        };
        let content = Zeroizing::new(serde_json::to_vec(&trip).unwrap_or_default());
        let expires_ms = self.flow_ends();
        let (store, key) = (self.store()?, browser.trip(&state));
        store
            .add_trip(self.tenant(), &key, &content, expires_ms)
            .await?;
        Ok(redirect(StatusCode::SEE_OTHER, to.as_str()))
    }

    /// Where a provider sends people back to, byte for byte as an operator registers it there.
    fn callback(&self, provider: &Provider) -> String {
        let endpoint = OauthEndpoint::Callback(&provider.name);
        self.server.endpoint(&self.oauth.0, endpoint)
    }

    async fn returned(&self, name: &str, query: &str) -> Step {
        let fields = Form::parse(query).map_err(|_| unreadable())?;
        if fields.repeated(&[]).is_some() {
            return Err(unreadable().into());
        }
        let browser = self.browser.as_ref().ok_or_else(lost)?;
        let state = fields.get("state").ok_or_else(lost)?;
        // Whoever has another cookie finds another trip, or none: nobody takes that of another.
        let key = browser.trip(state);
        let trip = self.store()?.take_trip(self.tenant(), &key).await?;
        let trip = trip.and_then(|content| serde_json::from_slice::<Trip>(&content).ok());
        let trip = trip.filter(|trip| trip.provider == name).ok_or_else(lost)?;
        let provider = Arc::clone(self.provider(name).ok_or_else(gone)?);
        // RFC 9207: an answer of another provider is nobody's answer (mix-up).
        if fields.get("iss").is_some_and(|iss| !provider.is_named(iss)) {
            return Err(lost().into());
        }
        let asked = self.read(&trip.query).await?;
        if let Some(error) = fields.get("error") {
            return Err(refused(&provider, &asked, error));
        }
        let code = fields.get("code").ok_or_else(lost)?;
        let callback = self.callback(&provider);
        let journey = Journey {
            callback: &callback,
            state,
            nonce: &trip.nonce,
            verifier: &trip.verifier,
        };
        let identity = self.oauth.0.providers.of(&provider);
        let found = identity
            .arrive(&journey, code, self.wanted(&provider))
            .await;
        let found = found.map_err(|unknown| trouble(&provider, &unknown))?;
        self.arrived(&provider, &asked, &trip, found).await
    }

    /// Somebody is known: logs them in, and ends the flow that they allowed before.
    async fn arrived(&self, provider: &Provider, asked: &Asked, trip: &Trip, found: Found) -> Step {
        let subject = format!("{}#{}", provider.issuer(), found.subject);
        let email = found.email.as_deref();
        if !provider.allow.lets_in(&found.subject, &found.groups, email) {
            let target = format!("tenant {}", self.tenant());
            let detail = serde_json::json!({"by": provider.name});
            self.note("login.refused", &subject, target, detail).await;
            return Err(not_allowed(provider).into());
        }
        let person = Person {
            title: found.title.unwrap_or_else(|| found.subject.clone()),
            subject,
            groups: found.groups,
            provider: Some(provider.name.clone()),
            auth_ms: self.now_ms(),
            password: None,
        };
        let browser = self.log_in(&person).await?;
        let step = if trip.allowed == asked.digest {
            self.agreed(asked, &person, StatusCode::FOUND).await
        } else {
            // The client changed while the person was away: what it is now was not allowed.
            let (query, ends) = (trip.query.clone(), self.flow_ends());
            let flow = Flow::new(query, trip.is_short, &browser, ends);
            self.ask_whether(asked, flow, Some(&person), None)
        };
        let mut response = self.answer(step, StatusCode::FOUND);
        self.remember(&mut response, &browser);
        Ok(response)
    }

    /// What decides about somebody beside the subject.
    fn wanted(&self, provider: &Provider) -> Wanted {
        let mut servers = self.server.tenant.servers.values();
        let has_groups = servers.any(|server| {
            let grants = server.grants.as_ref();
            grants.is_some_and(|grants| !grants.groups.is_empty())
        });
        Wanted {
            groups: has_groups || !provider.allow.groups.is_empty(),
            email: !provider.allow.domains.is_empty(),
        }
    }

    /// 256 random bits as text.
    fn random(&self) -> Result<String, Stop> {
        secret::plain(&self.oauth.0.random).ok_or_else(no_randomness)
    }
}

fn lost() -> Trouble {
    let what = "This log-in was not begun in this browser, is over already, or took too long.";
    Trouble::bad("This log-in does not hold any more", what, AGAIN)
}

/// What a provider's error means to the client: the person is not known, whatever the reason.
fn refused(provider: &Provider, asked: &Asked, error: &str) -> Stop {
    let name = provider.name.as_str();
    let error: String = error.chars().take(64).collect();
    tracing::info!(
        provider = name,
        error,
        "an identity provider lets nobody in"
    );
    let refusal = Refusal {
        error: "access_denied",
        description: "the identity provider did not log the person in",
    };
    Stop::Back(asked.back.clone(), refusal)
}

fn trouble(provider: &Provider, unknown: &Unknown) -> Trouble {
    let name = provider.name.as_str();
    match unknown {
        Unknown::Away(why) => {
            tracing::warn!(provider = name, why, "an identity provider does not answer");
            Trouble::away("The identity provider does not answer.")
        }
        Unknown::Wrong(why) => {
            tracing::warn!(provider = name, why, "an identity provider is not believed");
            let what = "What the identity provider answered cannot be believed. Nobody was \
                        logged in.";
            let remedy = "Connect again from your application. If this goes on, whoever \
                          administrates this tenant can find the reason in the gateway's log.";
            Trouble::bad("Log-in failed", what, remedy)
        }
    }
}

fn not_allowed(provider: &Provider) -> Trouble {
    Trouble {
        status: StatusCode::FORBIDDEN,
        title: "You may not come in",
        what: format!(
            "{} knows you, but this tenant does not let you in.",
            super::pages::shown(&provider.title)
        ),
        remedy: "Ask whoever administrates this tenant, or connect again with another account.",
        retry: None,
    }
}

//! Authorization endpoint (RFC 6749, section 4.1.1).
//!
//! Not here: the parameters (`authorization_request`) and the steps that follow (`login`,
//! `consent`, `callback`).

use axum::{
    extract::{Request, State},
    response::Response,
};
use http::{StatusCode, request::Parts};

use super::{
    authorization_request::{AuthorizationRefusal, AuthorizationRequest},
    flow::Flow,
    request::{BrowserRequest, StepResult, not_found_page, text, unreadable},
};
use crate::endpoint::OauthEndpoint;
use crate::{
    database::{self, oauth::Person},
    oauth::server::Oauth,
};

impl BrowserRequest {
    /// Starts a request, or resumes it after a log-in.
    async fn authorize(
        &self,
        query: String,
        is_short: bool,
        redirect_status: StatusCode,
    ) -> StepResult {
        let authorization = self.read(&query).await?;
        let prompt = authorization.parameters.prompt;
        let person = self.person().await?;
        let is_fresh = |person: &Person| {
            let age = self.now_ms().saturating_sub(person.auth_ms) / 1000;
            let max = authorization
                .parameters
                .max_age
                .map(|max| i64::try_from(max).unwrap_or(i64::MAX));
            max.is_none_or(|max| age <= max) && !prompt.login
        };
        let refused = async |error, description| {
            let refusal = AuthorizationRefusal { error, description };
            let back = authorization.redirect.clone();
            Err(self.refuse(&authorization.client, back, refusal).await)
        };
        let browser = match &self.browser {
            Some(browser) => browser.clone(),
            None => Self::new_browser(&self.oauth.0.random)?,
        };
        let flow = Flow::new(query, is_short, &browser, self.flow_expiry());
        let Some(person) = person.filter(is_fresh) else {
            if prompt.none {
                return refused("login_required", "nobody is logged in").await;
            }
            let mut response = self.begin_log_in(&authorization, flow).await?;
            self.set_cookie(&mut response, &browser);
            return Ok(response);
        };
        let allowed = self.allowed_scopes(&authorization, &person)?;
        let digest = self.consent_digest(&authorization, &allowed);
        if !prompt.consent && self.has_consented(&authorization, &person, &digest).await? {
            self.draw_code(&person)?;
            self.draw_write()?;
            return self
                .issue_code(&authorization, &person, redirect_status)
                .await;
        }
        if prompt.none {
            return refused("consent_required", "the person was not asked yet").await;
        }
        self.consent_page(&authorization, flow, Some(&person), None)
            .await
    }

    /// Reports whether the person has allowed this very request before.
    pub(super) async fn has_consented(
        &self,
        authorization: &AuthorizationRequest,
        person: &Person,
        digest: &[u8; 32],
    ) -> Result<bool, database::Error> {
        let (subject, client) = (&person.subject, &authorization.client.id);
        let logins = self.store()?.logins();
        let known = logins.has_consented(self.tenant(), subject, client, digest);
        Ok(authorization.is_remembered() && known.await?)
    }

    /// Shows the log-in page. With a single provider and no passwords, its consent page comes
    /// first.
    async fn begin_log_in(
        &self,
        authorization: &AuthorizationRequest,
        mut flow: Flow,
    ) -> StepResult {
        let mut providers = self.server.builtin.providers.values();
        if let (Some(only), None, false) =
            (providers.next(), providers.next(), self.has_passwords())
        {
            flow.provider = Some(only.name.clone());
            return self
                .consent_page(authorization, flow, None, Some(only))
                .await;
        }
        self.login_page(Some(authorization), &flow, None, StatusCode::OK)
    }
}

/// GET: handles an authorization request with its parameters in the query.
pub(crate) async fn begin(State(oauth): State<Oauth>, request: Request) -> Response {
    let (parts, _) = request.into_parts();
    let query = parts.uri.query().unwrap_or_default().to_owned();
    let Some(request) = BrowserRequest::of(&oauth, &parts) else {
        return not_found_page(&oauth);
    };
    let step = request.authorize(query, is_short(&parts), StatusCode::FOUND);
    request.respond(step.await, StatusCode::FOUND)
}

/// POST: handles an authorization request with its parameters in the body (RFC 6749, section 3.1). A
/// query in addition is refused.
pub(crate) async fn begin_by_form(State(oauth): State<Oauth>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let Some(request) = BrowserRequest::of(&oauth, &parts) else {
        return not_found_page(&oauth);
    };
    let step = async {
        let query = text(&parts, body).await?;
        // After the log-in the parameters return as a query.
        if query.len() > QUERY {
            return Err(unreadable().into());
        }
        let short = is_short(&parts);
        request.authorize(query, short, StatusCode::SEE_OTHER).await
    };
    request.respond(step.await, StatusCode::SEE_OTHER)
}

fn is_short(parts: &Parts) -> bool {
    OauthEndpoint::Authorize.alias() == Some(parts.uri.path())
}

/// Maximum size of a query in bytes, which keeps the request target below the limit for any path.
const QUERY: usize = 7 << 10;

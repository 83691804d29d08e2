//! Issue of an authorization code, at the end of a log-in.
//!
//! Not here: its lifetime (`oauth.code` in `config`), and its exchange for tokens (`oauth::tokens`).

use http::StatusCode;
use uuid::Uuid;

use super::{
    authorization_request::{AuthorizationRefusal, AuthorizationRequest},
    pages::redirect,
    request::{BrowserRequest, StepRefusal, StepResult, no_randomness},
};
use crate::{
    database::oauth::{Grant, NewCode, Person},
    oauth::base::secret,
};

impl BrowserRequest {
    /// Completes a flow with a code for the client.
    pub(crate) async fn issue_code(
        &self,
        authorization: &AuthorizationRequest,
        person: &Person,
        redirect_status: StatusCode,
    ) -> StepResult {
        self.check_server(authorization, person)?;
        let issuing = &self.oauth.0.config.oauth;
        let code = secret::generate(&self.oauth.0.random, secret::SecretKind::Code);
        let code = code.ok_or_else(no_randomness)?;
        let now_ms = self.now_ms();
        let after = |time: std::time::Duration| {
            let ms = i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
            now_ms.saturating_add(ms)
        };
        let new = NewCode {
            hash: secret::hash(&code),
            grant: Grant {
                id: Uuid::new_v4(),
                subject: person.subject.clone(),
                groups: person.groups.clone(),
                client_id: authorization.client.id.clone(),
                resource: authorization.parameters.resource.url.clone(),
                scope: authorization.parameters.scope(),
                auth_ms: person.auth_ms,
                expires_ms: after(issuing.refresh_max),
            },
            redirect_uri: authorization.redirect.sent.clone(),
            challenge: authorization.parameters.challenge.clone(),
            expires_ms: after(issuing.code),
        };
        self.store()?.grants().add_code(self.tenant(), &new).await?;
        Ok(redirect(
            redirect_status,
            &authorization.redirect.with(&[("code", &code)]),
        ))
    }

    /// Checks that the person may use the server. The refusal is the same as for an unknown server.
    pub(super) fn check_server(
        &self,
        authorization: &AuthorizationRequest,
        person: &Person,
    ) -> Result<(), StepRefusal> {
        let server = self
            .server
            .tenant
            .servers
            .get(&authorization.parameters.resource.server);
        let subject = self.server.builtin.subject(&person.subject, &person.groups);
        let is_admitted = server.zip(subject.ok()).is_some_and(|(server, subject)| {
            let (groups, client) = (subject.groups(&person.groups), &authorization.client.id);
            server.admits(&person.subject, groups, Some(client))
        });
        let refusal = AuthorizationRefusal {
            error: "invalid_target",
            description: "there is no such server for this person",
        };
        let back = || StepRefusal::Client(authorization.redirect.clone(), refusal);
        is_admitted.then_some(()).ok_or_else(back)
    }
}

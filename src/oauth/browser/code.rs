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
    declare::AllowedScopes,
    oauth::{base::secret, server::StepKind},
};

impl BrowserRequest {
    /// Completes a flow with a code for the client.
    pub(crate) async fn issue_code(
        &self,
        authorization: &AuthorizationRequest,
        person: &Person,
        redirect_status: StatusCode,
    ) -> StepResult {
        let allowed = self.allowed_scopes(authorization, person)?;
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
                scope: self.granted_scopes(authorization, &allowed).join(" "),
                session: person.session.clone(),
                jkt: authorization.parameters.jkt.clone(),
                auth_ms: person.auth_ms,
                expires_ms: after(issuing.refresh_max),
            },
            redirect_uri: authorization.redirect.sent.clone(),
            challenge: authorization.parameters.challenge.clone(),
            expires_ms: after(issuing.code),
        };
        let consent = self.consent_digest(authorization, &allowed);
        let consent = authorization.is_remembered().then_some(&consent);
        let grants = self.store()?.grants();
        let added = grants.add_code(self.tenant(), &new, self.begun_ms, consent);
        if !added.await? {
            let refusal = AuthorizationRefusal {
                error: "access_denied",
                description: "its access has just been ended",
            };
            return Err(StepRefusal::Client(authorization.redirect.clone(), refusal));
        }
        self.attempt.subject(&person.subject);
        self.tell(StepKind::CodeSent, "");
        Ok(redirect(
            redirect_status,
            &authorization.redirect.with(&[("code", &code)]),
        ))
    }

    /// Returns the scopes that the person may have for the server. The refusal of a server that it may not use is the
    /// same as for an unknown one.
    pub(super) fn allowed_scopes(
        &self,
        authorization: &AuthorizationRequest,
        person: &Person,
    ) -> Result<AllowedScopes<'_>, StepRefusal> {
        let allowed = self.server.allowed_scopes(
            &authorization.parameters.resource.server,
            (&person.subject, &person.groups),
            &authorization.client.id,
        );
        let refusal = AuthorizationRefusal {
            error: "invalid_target",
            description: "there is no such server for this person",
        };
        let back = || StepRefusal::Client(authorization.redirect.clone(), refusal);
        allowed.ok_or_else(back)
    }

    /// Returns the requested scopes that are among those.
    pub(super) fn granted_scopes<'a>(
        &self,
        authorization: &'a AuthorizationRequest,
        allowed: &AllowedScopes<'_>,
    ) -> Vec<&'a str> {
        let asked = &authorization.parameters;
        let scopes = asked.scopes.iter().map(String::as_str);
        let server = &asked.resource.server;
        self.server.granted(server, allowed, scopes)
    }

    /// Computes the digest of what a person consents to who may have those scopes. A scope that was withheld when
    /// the person was asked needs another consent when it is not any more.
    pub(super) fn consent_digest(
        &self,
        authorization: &AuthorizationRequest,
        allowed: &AllowedScopes<'_>,
    ) -> [u8; 32] {
        let granted = self.granted_scopes(authorization, allowed);
        if authorization.parameters.scopes.iter().eq(&granted) {
            return authorization.digest;
        }
        secret::hash(&serde_json::json!([authorization.digest, granted]).to_string())
    }
}

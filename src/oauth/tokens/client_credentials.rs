//! Tokens of clients that act for themselves, by their own credentials (RFC 6749, section 4.4; extension
//! `io.modelcontextprotocol/oauth-client-credentials`).
//!
//! Such a client has one grant for each resource at a time: it is listed, and ends, like the grants of people.

use axum::response::Response;
use uuid::Uuid;

use super::{
    binding::ProofAccount,
    refreshes::REFRESHES,
    surplus::too_many_revoked,
    token::{Exchange, millis},
    workload::Unused,
};
use crate::{
    database::oauth::{Grant, MachineGrant},
    declare::{OFFLINE_ACCESS, machine_subject},
    oauth::{
        base::{OauthRefusal, RefusalCode, Resource},
        server::attempt::not_guessed,
    },
};

impl Exchange<'_> {
    /// Issues an access token to the client itself, without a refresh token (section 4.4.3); `unused` is the token by which
    /// a workload was authenticated.
    pub(super) async fn client_credentials(
        &self,
        unused: Option<Unused>,
    ) -> Result<Response, OauthRefusal> {
        let of = ("client", &self.server.tenant.name, &self.client.id);
        let issued = self.machine(unused).await;
        issued.map_err(|refusal| not_guessed(self.state, &of, refusal))
    }

    async fn machine(&self, unused: Option<Unused>) -> Result<Response, OauthRefusal> {
        let (server, client) = (self.server, &self.client.id);
        let declared = server.builtin.clients.get(client);
        if !declared.is_some_and(|declared| declared.is_machine) {
            let what =
                "the client gets no tokens for itself; an operator may allow it by its grant_types";
            return Err(OauthRefusal::new(RefusalCode::UnauthorizedClient, what));
        }
        let resource = self.resource()?;
        let subject = machine_subject(client);
        let scope = self.scope(&resource, &subject)?;
        // Each use may write a grant, and a line to the audit trail.
        let by = ("machine", &server.tenant.name, client);
        let budget = self.state.writes.spend(&by, REFRESHES);
        budget.map_err(|retry| OauthRefusal::too_many("too many tokens", retry))?;
        let settings = &self.state.config.oauth;
        let new = Grant {
            id: Uuid::new_v4(),
            subject,
            groups: Vec::new(),
            client_id: client.clone(),
            resource: resource.url,
            scope: scope.clone(),
            session: None,
            jkt: None,
            auth_ms: self.now_ms,
            expires_ms: self.now_ms.saturating_add(millis(settings.refresh_max)),
        };
        self.check_length(&new, &[], &scope)?;
        let until_ms = self.now_ms + millis(settings.access);
        let binding = self.bind(ProofAccount::Client).await?;
        let tenant = &server.tenant.name;
        let stored = self.store.grants().of_machine(tenant, new, until_ms).await;
        let grant = match stored? {
            MachineGrant::Known(grant) => grant,
            MachineGrant::New(grant) => {
                self.note_started(&grant).await;
                grant
            }
            MachineGrant::Refused => {
                let what = "the access of the client was revoked meanwhile";
                return Err(OauthRefusal::new(RefusalCode::InvalidGrant, what));
            }
            MachineGrant::Revoked => return Err(too_many_revoked()),
        };
        // After all that can fail, since a job may have no other token. A used one may begin a grant, and gets nothing of it.
        if let Some(token) = unused {
            token.redeem(self.state, server, client).await?;
        }
        self.issue(&grant, &[], &scope, (None, binding))
    }

    /// The resource of the request, or the default server of the tenant.
    fn resource(&self) -> Result<Resource, OauthRefusal> {
        let place = self.server.site(self.state);
        let tenant = &self.server.tenant;
        let found = match self.form.get("resource") {
            Some(text) => Resource::named(place, &tenant.name, text),
            None => Resource::unnamed(place, tenant),
        };
        let what = "resource must be the URL of an MCP server here, byte for byte";
        found.ok_or(OauthRefusal::new(RefusalCode::InvalidTarget, what))
    }

    /// The requested scopes that the client may have; without a request all that it may have (section 3.3: "a
    /// pre-defined default value"), since nobody is asked for more of them later.
    fn scope(&self, resource: &Resource, subject: &str) -> Result<String, OauthRefusal> {
        let (server, name) = (self.server, resource.server.as_str());
        let allowed = server.allowed_scopes(name, (subject, &[]), &self.client.id);
        let what = "there is no such server for this client";
        let allowed = allowed.ok_or(OauthRefusal::new(RefusalCode::InvalidTarget, what))?;
        let tenant = &server.tenant;
        let asked = self
            .form
            .get("scope")
            .map(|text| resource.existing_scopes(tenant, text));
        let asked = asked.transpose();
        let asked = asked.map_err(|what| OauthRefusal::new(RefusalCode::InvalidScope, what))?;
        let every = || tenant.scopes(tenant.servers.get(name));
        let all: Vec<&str> = match &asked {
            Some(asked) => asked.iter().map(String::as_str).collect(),
            None => every(),
        };
        // `offline_access` is for the refresh token, which it does not get.
        let granted = server.granted(name, &allowed, all.into_iter());
        let granted: Vec<&str> = granted
            .into_iter()
            .filter(|scope| *scope != OFFLINE_ACCESS)
            .collect();
        if granted.is_empty() && asked.is_some() {
            let what = "the client may have none of these scopes";
            return Err(OauthRefusal::new(RefusalCode::InvalidScope, what));
        }
        Ok(granted.join(" "))
    }
}

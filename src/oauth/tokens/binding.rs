//! Binding of tokens to a key of the client, by the proof in a token request (RFC 9449, sections 5 and 10).
//!
//! Not here: the proof itself, and bound tokens at MCP endpoints (`auth`).

use http::{header::HOST, request::Parts, uri::Authority};
use uuid::Uuid;

use crate::{
    auth::{Proof, ProvenRequest, Thumbprint, dpop::offered},
    database::oauth::Grant,
    declare::Dpop,
    endpoint::{OauthEndpoint, spelled},
    error::Error,
    oauth::{
        base::{OauthRefusal, RefusalCode},
        clients::Client,
        server::{AuthorizationServer, OauthState},
    },
};

/// The key to which an access token is bound; none for a bearer token. A proof was used for it.
#[derive(Clone, Copy)]
pub(super) struct Binding(Option<Thumbprint>);

impl Binding {
    /// The key.
    pub(super) fn key(&self) -> Option<Thumbprint> {
        self.0
    }

    /// `token_type` of the token (section 5; RFC 6750, section 6.1.1).
    pub(super) fn token_type(self) -> &'static str {
        match self.0 {
            Some(_) => "DPoP",
            None => "Bearer",
        }
    }
}

/// The account whose proofs of a second are counted together. The id of a public client is everybody's, so that one of its
/// people could use up what it has.
#[derive(Clone, Copy)]
pub(super) enum ProofAccount {
    /// The client, which has proved itself.
    Client,
    /// An address that sends codes for the client.
    Address(u128),
    /// A grant of the client, which is refreshed.
    Grant(Uuid),
}

impl ProofAccount {
    /// Its name. The last part has no slash, so that no id of another client reads the same.
    fn of(self, tenant: &str, client: &str) -> String {
        match self {
            Self::Client => format!("{tenant}/{client}/"),
            Self::Address(account) => format!("{tenant}/{client}/address {account}"),
            Self::Grant(id) => format!("{tenant}/{client}/grant {id}"),
        }
    }
}

/// The proof of a token request, not used yet; none if it has none.
pub(super) struct RequestProof(Option<Proof>);

impl RequestProof {
    /// Verifies the proof of a request.
    pub(super) fn of(
        state: &OauthState,
        server: &AuthorizationServer,
        head: &Parts,
    ) -> Result<Self, OauthRefusal> {
        let Some(text) = offered(&head.headers).map_err(invalid)? else {
            return match server.tenant.dpop {
                Dpop::Optional => Ok(Self(None)),
                Dpop::Required => Err(invalid(
                    "a proof is required: tokens are bound to a key here",
                )),
            };
        };
        let request = ProvenRequest {
            method: head.method.as_str(),
            url: &url(state, server, head),
        };
        let proof = state.proofs.verify(text, request).map_err(invalid)?;
        Ok(Self(Some(proof)))
    }

    /// Refuses a client without a proof whose tokens are always bound, as its metadata say (section 5.2).
    pub(super) fn check_client(&self, client: &Client) -> Result<(), OauthRefusal> {
        if client.is_bound && self.0.is_none() {
            let what = "a proof is required: the client has said that it always has one";
            return Err(invalid(what));
        }
        Ok(())
    }

    /// Uses the proof, once everything else about the request is right, but for its code: a wrong code counts.
    pub(super) async fn bind(
        &self,
        state: &OauthState,
        tenant: &str,
        (client, account): (&Client, ProofAccount),
    ) -> Result<Binding, OauthRefusal> {
        let Some(proof) = &self.0 else {
            return Ok(Binding(None));
        };
        let owner = account.of(tenant, &client.id);
        match state.proofs.take(tenant, owner.into(), proof).await {
            Ok(true) => Ok(Binding(Some(proof.key()))),
            Ok(false) => Err(invalid("the proof was used before")),
            Err(Error::Limit { what, retry }) => Err(OauthRefusal::too_many(what, retry)),
            Err(_) => Err(OauthRefusal::later("no proof can be remembered now")),
        }
    }

    /// The thumbprint of its key.
    pub(super) fn thumbprint(&self) -> Option<Thumbprint> {
        self.0.as_ref().map(Proof::key)
    }

    /// The same as a text.
    pub(super) fn key(&self) -> Option<String> {
        self.thumbprint().map(|key| key.text())
    }

    /// Reports whether it is of the key to which an authorization request has bound a code.
    pub(super) fn has_key_of(&self, code: &Grant) -> bool {
        code.jkt.is_none() || code.jkt == self.key()
    }

    /// Requires the key to which an identity assertion is bound, if there is one (RFC 9449, section 6).
    ///
    /// # Errors
    ///
    /// It is of no key or of another one.
    pub(super) fn check_holder(&self, holder: Option<Thumbprint>) -> Result<(), OauthRefusal> {
        let own = self.0.as_ref().map(Proof::key);
        match (holder, own) {
            (None, _) => Ok(()),
            (Some(_), None) => Err(invalid(
                "a proof is required: the assertion is bound to a key",
            )),
            (Some(holder), Some(own)) if holder == own => Ok(()),
            (Some(_), Some(_)) => Err(OauthRefusal::new(
                RefusalCode::InvalidGrant,
                "the assertion is bound to another key",
            )),
        }
    }

    /// The key to which the refresh tokens of a grant are bound from now on: those of public clients, since others
    /// prove themselves by their credentials (section 5).
    ///
    /// # Errors
    ///
    /// They are bound already, and it is of no key or of another one.
    pub(super) fn refresh_key(
        &self,
        client: &Client,
        grant: &Grant,
    ) -> Result<Option<String>, OauthRefusal> {
        let own = self.key();
        match (&grant.jkt, &own) {
            (None, _) => Ok(own.filter(|_| client.is_public())),
            (Some(_), None) => Err(invalid(
                "a proof is required: the refresh token is bound to a key",
            )),
            (Some(_), Some(_)) if grant.jkt == own => Ok(own),
            (Some(_), Some(_)) => Err(OauthRefusal::new(
                RefusalCode::InvalidGrant,
                "the refresh token is bound to another key",
            )),
        }
    }
}

/// The URL of a token request, as the client has it.
fn url(state: &OauthState, server: &AuthorizationServer, head: &Parts) -> String {
    let host = head.headers.get(HOST).and_then(|host| host.to_str().ok());
    let host = head.uri.authority().map(Authority::as_str).or(host);
    let base = spelled(server.site(state).url, host.unwrap_or_default());
    let endpoint = OauthEndpoint::Token;
    match endpoint.alias().filter(|alias| *alias == head.uri.path()) {
        Some(alias) => format!("{base}{alias}"),
        None => endpoint.url(&base, &server.tenant.name),
    }
}

const fn invalid(what: &'static str) -> OauthRefusal {
    OauthRefusal::new(RefusalCode::InvalidDpopProof, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One of its people took all proofs of a public client.
    #[test]
    fn people_of_a_client_use_proofs_of_their_own() {
        let (one, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let accounts = [
            ProofAccount::Client,
            ProofAccount::Address(1),
            ProofAccount::Address(2),
            ProofAccount::Grant(one),
            ProofAccount::Grant(other),
        ];
        let clients = [("a", "app"), ("b", "app"), ("a", "app/address 1")];
        let names = accounts.iter().flat_map(|account| {
            let of = |(tenant, client): &(&str, &str)| account.of(tenant, client);
            clients.iter().map(of).collect::<Vec<_>>()
        });
        let names: std::collections::BTreeSet<String> = names.collect();
        assert_eq!(names.len(), accounts.len() * clients.len(), "{names:?}");
    }
}

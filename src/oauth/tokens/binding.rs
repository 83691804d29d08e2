//! Binding of tokens to a key of the client, by the proof in a token request (RFC 9449, sections 5 and 10).
//!
//! Not here: the proof itself, and bound tokens at MCP endpoints (`auth`).

use http::{header::HOST, request::Parts, uri::Authority};

use super::token::Exchange;
use crate::{
    auth::{Proof, ProvenRequest, Thumbprint, dpop::offered},
    database::oauth::Grant,
    declare::Dpop,
    endpoint::{OauthEndpoint, spelled},
    error::Error,
    oauth::{
        base::{OauthRefusal, RefusalCode},
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

/// Verifies the proof of a token request, which is not used yet; none if it has none and needs none.
pub(super) fn proof(
    state: &OauthState,
    server: &AuthorizationServer,
    head: &Parts,
) -> Result<Option<Proof>, OauthRefusal> {
    let Some(text) = offered(&head.headers).map_err(invalid)? else {
        return match server.tenant.dpop {
            Dpop::Optional => Ok(None),
            Dpop::Required => Err(invalid(
                "a proof is required: tokens are bound to a key here",
            )),
        };
    };
    let request = ProvenRequest {
        method: head.method.as_str(),
        url: &url(state, server, head),
    };
    let now = u64::try_from(state.clock.now_ms() / 1000).unwrap_or(0);
    Proof::verify(text, request, now).map(Some).map_err(invalid)
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

impl Exchange<'_> {
    /// Uses the proof of the request, once everything else about it is right. Whoever gets that far was counted.
    pub(super) async fn bind(&self) -> Result<Binding, OauthRefusal> {
        let Some(proof) = &self.proof else {
            return Ok(Binding(None));
        };
        let owner = format!("{}/{}", self.server.tenant.name, self.client.id);
        match self.state.proofs.take(owner.into(), proof).await {
            Ok(true) => Ok(Binding(Some(proof.key()))),
            Ok(false) => Err(invalid("the proof was used before")),
            Err(Error::Limit { what, retry }) => Err(OauthRefusal::too_many(what, retry)),
            Err(_) => Err(OauthRefusal::later("no proof can be remembered now")),
        }
    }

    /// The thumbprint of the key that the request proves.
    fn proved(&self) -> Option<String> {
        self.proof.as_ref().map(|proof| proof.key().text())
    }

    /// Reports whether the request proves the key to which an authorization request has bound a code.
    pub(super) fn has_key_of(&self, code: &Grant) -> bool {
        code.jkt.is_none() || code.jkt == self.proved()
    }

    /// The key to which the refresh tokens of a grant are bound from now on: those of public clients, since others
    /// prove themselves by their credentials (section 5).
    ///
    /// # Errors
    ///
    /// They are bound already, and the request does not prove that key.
    pub(super) fn refresh_key(&self, grant: &Grant) -> Result<Option<String>, OauthRefusal> {
        let proved = self.proved();
        match (&grant.jkt, &proved) {
            (None, _) => Ok(proved.filter(|_| self.client.is_public())),
            (Some(_), None) => Err(invalid("a proof is required: it is bound to a key")),
            (Some(_), Some(_)) if grant.jkt == proved => Ok(proved),
            (Some(_), Some(_)) => Err(OauthRefusal::new(
                RefusalCode::InvalidGrant,
                "it is bound to another key",
            )),
        }
    }
}

const fn invalid(what: &'static str) -> OauthRefusal {
    OauthRefusal::new(RefusalCode::InvalidDpopProof, what)
}

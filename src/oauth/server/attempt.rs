//! Failure limit and audit records of the endpoints for clients.
//!
//! An address with too many failures at a tenant is refused before any work is done. Failures that may be guesses
//! are counted and reported.

use std::{hash::Hash, net::IpAddr};

use axum::response::{IntoResponse, Response};
use http::Extensions;

use super::{authorization_server::AuthorizationServer, state::OauthState};
use crate::{
    auth::{Caller, Denial},
    config::ClientAddress,
    database::Record,
    oauth::base::{OauthRefusal, RefusalCode, throttle},
    telemetry::Denied,
};

/// Returns the client address of a request.
pub(crate) fn address(extensions: &Extensions) -> Option<IpAddr> {
    let address = extensions.get::<ClientAddress>();
    address.map(|address| address.0)
}

/// Runs `attempted`, unless the address has used up its failures of this minute at the tenant. Services have the
/// clients of many tenants at one address: what one of these makes fail must not keep the others out.
pub(crate) async fn attempt(
    state: &OauthState,
    server: &AuthorizationServer,
    address: Option<IpAddr>,
    route: &'static str,
    attempted: impl Future<Output = Result<Response, OauthRefusal>>,
) -> Response {
    let account = ("client", &*server.tenant.name, throttle::account(address));
    let bound = state.config.oauth.failures;
    let count = |outcome| state.metrics.oauth_requests.add([route, outcome]);
    if let Err(retry) = state.failures.check(&account, bound) {
        let refusal = OauthRefusal::too_many("too many failures", retry);
        count(refusal.code().name());
        return refusal.into_response();
    }
    let refusal = match attempted.await {
        Ok(response) => {
            count("ok");
            return response;
        }
        Err(refusal) => refusal,
    };
    count(refusal.code().name());
    // These may be guesses; all other refusals are mistakes of programs.
    let reason = match refusal.code() {
        RefusalCode::InvalidClient => Denied::BadClient,
        RefusalCode::InvalidGrant => Denied::BadGrant,
        RefusalCode::InvalidToken | RefusalCode::InvalidLogoutToken => Denied::BadToken,
        _ => return refusal.into_response(),
    };
    if refusal.is_guess() {
        state.failures.note(&account);
    }
    state.denials.report(Denial {
        who: Caller::At(address),
        tenant: server.tenant.name.as_str().into(),
        server: "".into(),
        route,
        reason,
        user: None,
        detail: refusal.what(),
    });
    // The denial is in the audit trail before the response is sent.
    state.denials.settle().await;
    refusal.into_response()
}

/// The refusal of what was surely given out, as its row or its signature proves: it is no guess. If the same, which `of`
/// names, comes again and again, that counts all the same.
pub(crate) fn not_guessed(
    state: &OauthState,
    of: &impl Hash,
    refusal: OauthRefusal,
) -> OauthRefusal {
    let is_refused = refusal.code() == RefusalCode::InvalidGrant;
    if is_refused && state.writes.spend(&("refused", of), REFUSALS).is_ok() {
        return refusal.no_guess();
    }
    refusal
}

/// Writes an audit record.
pub(crate) fn note(
    state: &OauthState,
    server: &AuthorizationServer,
    kind: &str,
    actor: &str,
    target: &str,
    detail: serde_json::Value,
) {
    let tenant = Some(server.tenant.name.as_str());
    let record = Record::new(tenant, kind, actor, target, detail);
    state.audit.add(record);
}

/// Refusals a minute of the same that are no failures of their address: a service comes with the tokens and the assertions
/// of many people, of which many may have ended.
const REFUSALS: u32 = 10;

//! What every request to a machine endpoint passes: whoever was wrong too often is refused before
//! any work is done, and what is refused is counted and, where somebody should know, put on record.

use std::net::IpAddr;

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

/// The address that a request is accounted to.
pub(crate) fn address(extensions: &Extensions) -> Option<IpAddr> {
    let address = extensions.get::<ClientAddress>();
    address.map(|address| address.0)
}

/// Does `act`, unless its address was wrong too often in this minute.
pub(crate) async fn attempt(
    state: &OauthState,
    server: &AuthorizationServer,
    address: Option<IpAddr>,
    what: &'static str,
    act: impl Future<Output = Result<Response, OauthRefusal>>,
) -> Response {
    let (account, bound) = (throttle::account(address), state.config.oauth.failures);
    if let Err(retry) = state.failures.check(&account, bound) {
        return OauthRefusal::too_many("too many failures", retry).into_response();
    }
    let refusal = match act.await {
        Ok(response) => return response,
        Err(refusal) => refusal,
    };
    // What somebody tries who guesses; the rest are mistakes of programs.
    let reason = match refusal.code() {
        RefusalCode::InvalidClient => Denied::BadClient,
        RefusalCode::InvalidGrant => Denied::BadGrant,
        RefusalCode::InvalidToken => Denied::BadToken,
        _ => return refusal.into_response(),
    };
    state.failures.note(&account);
    state.denials.report(Denial {
        who: Caller::At(address),
        tenant: server.tenant.name.as_str().into(),
        server: "".into(),
        route: what,
        reason,
        detail: refusal.what(),
    });
    // A denial is on record before it is answered.
    state.denials.settle().await;
    refusal.into_response()
}

/// Puts something on record.
pub(crate) fn note(
    state: &OauthState,
    server: &AuthorizationServer,
    kind: &str,
    actor: &str,
    target: &str,
    detail: serde_json::Value,
) {
    state.trail.note(Record {
        tenant: Some(server.tenant.name.clone()),
        kind: kind.to_owned(),
        actor: actor.to_owned(),
        target: target.to_owned(),
        detail,
    });
}

//! The gate of listeners for operators, which web pages in their browsers must not pass.

use std::net::SocketAddr;

use axum::extract::Request;
use axum::response::Response;
use http::StatusCode;
use http::header::ORIGIN;

use super::address::is_to_loopback;
use crate::http::reply::refusal::refusal;

/// Refuses what a web page sends: no scraper, no probe and no operator names an origin. A page whose
/// own name was made to lead here (DNS rebinding) needs none, but its browser names that host.
///
/// Only on loopback can that be told: elsewhere a scraper may call us by any name, those of pods and
/// services among them.
pub(super) fn check(bound: SocketAddr, request: &Request) -> Result<(), Response> {
    if request.headers().contains_key(ORIGIN) {
        return Err(refusal(StatusCode::FORBIDDEN, "origin not allowed"));
    }
    let is_local = bound.ip().to_canonical().is_loopback();
    if is_local && !is_to_loopback(request.uri(), request.headers()) {
        return Err(refusal(StatusCode::FORBIDDEN, "host not allowed"));
    }
    Ok(())
}

//! Gate of the listeners for operators, which refuses web pages in their browsers.

use std::net::SocketAddr;

use axum::extract::Request;
use axum::response::Response;
use http::StatusCode;
use http::header::ORIGIN;

use super::address::is_to_loopback;
use crate::http::reply::refusal::refusal;

/// Refuses requests of web pages.
///
/// Scrapers, probes and operators send no `Origin`. A page that uses DNS rebinding sends none either,
/// but its browser sends the name of its host. Hosts are checked on loopback only: elsewhere a
/// scraper may use any name, for example that of a pod or a service.
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

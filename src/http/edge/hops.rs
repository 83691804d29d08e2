//! Gate of the cluster listener, which admits requests of other replicas only.
//!
//! The hop names the caller, in place of credentials. Those, host, origin and rates were checked by the
//! replica that forwarded the request.

use std::net::SocketAddr;

use axum::{extract::Request, response::Response};

use super::routes::Routes;
use crate::{config::ClientAddress, http::peers::Cluster, telemetry::TraceContext};

/// Passes a request of another replica to its route.
pub(super) async fn pass(
    cluster: &Cluster,
    peer: SocketAddr,
    mut request: Request,
    routes: &Routes,
) -> Response {
    if let Some(proof) = cluster.prove(&request) {
        return proof;
    }
    let hop = match cluster.verify(&mut request) {
        Ok(hop) => hop,
        Err(invalid) => return cluster.refuse(peer, invalid),
    };
    if let Some(trace) = TraceContext::of_headers(request.headers()) {
        request.extensions_mut().insert(trace);
    }
    if let Some(client) = hop.client {
        request.extensions_mut().insert(ClientAddress(client));
    }
    request.extensions_mut().insert(hop);
    routes.call_safely(request).await
}

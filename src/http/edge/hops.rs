//! Gate of the cluster listener, which admits requests of other replicas only.
//!
//! The hop names the caller, in place of credentials. Those, host, origin and rates were checked by the
//! replica that forwarded the request.

use std::net::SocketAddr;

use axum::{extract::Request, response::Response};
use http::{HeaderValue, StatusCode, header::RETRY_AFTER};

use super::routes::Routes;
use crate::{
    config::ClientAddress,
    http::{
        peers::{Cluster, InvalidHop, takes_answer},
        reply::refusal::{in_form_of, refusal},
    },
    telemetry::TraceContext,
};

/// Receives a request, before anything is waited for: hyper begins a task for each, which runs behind all that are ready,
/// and a stranger may send as many as a replica.
///
/// # Errors
///
/// The refusal of a head that no replica sends, of which nothing is kept.
pub(super) fn receive(
    cluster: &Cluster,
    peer: SocketAddr,
    request: Request,
) -> Result<Request, Response> {
    if request.headers().len() > FIELDS_MAX {
        drop(request);
        return Err(cluster.refuse(peer, InvalidHop::Forged));
    }
    Ok(request)
}

/// Passes a request of another replica to its route. Its signature is verified before anything is waited for.
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
    let path = request.uri().path().to_owned();
    let response = routes.call_safely(request).await;
    if takes_answer(response.headers()) {
        response
    } else {
        too_long(&path)
    }
}

/// Makes the answer in place of one whose header fields would end the connection between the replicas.
fn too_long(path: &str) -> Response {
    tracing::debug!(
        path,
        "the head of an answer is too long for another replica"
    );
    let text = "the header fields of the answer are too long";
    let mut refused = in_form_of(path, refusal(StatusCode::SERVICE_UNAVAILABLE, text));
    let retry = HeaderValue::from_static("1");
    refused.headers_mut().insert(RETRY_AFTER, retry);
    refused
}

/// Most header fields of a hop: it carries those of a client, of which the public listener takes 100, with a few of its
/// replica's own, and a newer one may have more.
const FIELDS_MAX: usize = 200;

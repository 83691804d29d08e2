//! Gate of the cluster listener, which admits requests of other replicas only.
//!
//! Routes verify credentials again. Host, origin and rates were checked by the replica that forwarded
//! the request.

use axum::{body::Body, extract::Request, response::Response};
use http::{StatusCode, header::CONTENT_LENGTH};

use super::routes::Routes;
use crate::{
    config::ClientAddress,
    http::{
        peers::{Cluster, mark_refused},
        reply::{header_name::HOP, refusal::refusal},
    },
    telemetry::TraceContext,
};

/// Passes a request of another replica to its route.
pub(super) async fn pass(cluster: &Cluster, mut request: Request, routes: &Routes) -> Response {
    let hop = match cluster.verify(&request) {
        Ok(hop) => hop,
        Err(invalid) => {
            tracing::warn!(worthless = %invalid, "refused a request on the cluster listener");
            return mark_refused(refusal(StatusCode::FORBIDDEN, "no valid hop"));
        }
    };
    request.headers_mut().remove(HOP);
    if let Some(trace) = TraceContext::of_headers(request.headers()) {
        request.extensions_mut().insert(trace);
    }
    if !request.headers().contains_key(CONTENT_LENGTH) {
        // A body without a length is not covered by the signature.
        *request.body_mut() = Body::empty();
    }
    if let Some(client) = hop.client {
        request.extensions_mut().insert(ClientAddress(client));
    }
    request.extensions_mut().insert(hop);
    routes.call_safely(request).await
}

//! The gate of the cluster listener: checks that a request comes from another replica.

//!
//! Routes check credentials and requests here once more, as if the client had come itself; host,
//! origin and rates were checked and counted by the replica that forwarded the request.

use axum::{Router, body::Body, extract::Request, response::Response};
use http::{StatusCode, header::CONTENT_LENGTH};

use super::panic::route;
use crate::{
    config::ClientAddress,
    http::{
        peers::{Cluster, no_route},
        reply::{header_name::HOP, refusal::refusal},
    },
};

/// One request of another replica.
pub(super) async fn pass(cluster: &Cluster, mut request: Request, routes: Router) -> Response {
    let hop = match cluster.verify(&request) {
        Ok(hop) => hop,
        Err(worthless) => {
            tracing::warn!(%worthless, "refused a request on the cluster listener");
            return no_route(refusal(StatusCode::FORBIDDEN, "no valid hop"));
        }
    };
    request.headers_mut().remove(HOP);
    if !request.headers().contains_key(CONTENT_LENGTH) {
        // None was signed.
        *request.body_mut() = Body::empty();
    }
    if let Some(client) = hop.client {
        request.extensions_mut().insert(ClientAddress(client));
    }
    request.extensions_mut().insert(hop);
    route(routes, request).await
}

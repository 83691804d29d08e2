//! Rate limit of client addresses, applied before credentials are read.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use http::Extensions;

use super::front::Front;
use crate::{config::ClientAddress, error::Error, http::reply::McpRefusal};

/// Middleware that refuses addresses beyond their rate, for routes that are no MCP endpoints.
pub(crate) async fn limit(
    State(front): State<Arc<Front>>,
    request: Request,
    next: Next,
) -> Response {
    match count(&front, request.extensions()) {
        Ok(()) => next.run(request).await,
        Err(error) => McpRefusal::from(error).into_response(),
    }
}

/// Counts a request against the rate of its client address.
///
/// # Errors
///
/// `Quota` if the address is beyond its rate.
pub(crate) fn count(front: &Front, extensions: &Extensions) -> Result<(), Error> {
    let address = extensions.get::<ClientAddress>();
    match front.config.http.per_address.zip(address) {
        Some((bound, address)) => front.hub.limits().address(address.0, bound),
        None => Ok(()),
    }
}

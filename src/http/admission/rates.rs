//! Rates of client addresses: the limit before any credentials are read.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use http::Extensions;

use super::front::Front;
use crate::{config::ClientAddress, error::Error, http::reply::Failure};

/// Refuses addresses that ask too often; what is no MCP endpoint has it as a layer.
pub(crate) async fn pass(
    State(front): State<Arc<Front>>,
    request: Request,
    next: Next,
) -> Response {
    match address(&front, request.extensions()) {
        Ok(()) => next.run(request).await,
        Err(error) => Failure::from(error).into_response(),
    }
}

/// Counts a request of an address.
///
/// # Errors
///
/// `Quota` if it asks too often.
pub(crate) fn address(front: &Front, extensions: &Extensions) -> Result<(), Error> {
    let address = extensions.get::<ClientAddress>();
    match front.config.http.per_address.zip(address) {
        Some((bound, address)) => front.hub.limits().address(address.0, bound),
        None => Ok(()),
    }
}

//! Rate limit of client addresses, applied before credentials are read.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use http::Extensions;

use super::{front::Front, headers::site_of};
use crate::{config::ClientAddress, error::Error, http::reply::McpRefusal, telemetry::LimitName};

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

/// Middleware that answers as many requests of authorization servers at once as the shares of their
/// tenant and address allow.
pub(crate) async fn take_turns(
    State(front): State<Arc<Front>>,
    request: Request,
    next: Next,
) -> Response {
    let address = request.extensions().get::<ClientAddress>();
    let site = site_of(&front.config, request.extensions());
    let _turn = match (site.oauth_tenant(request.uri().path()), address) {
        (Some(tenant), Some(address)) => {
            let turn = front.hub.limits().authorization().take(tenant, address.0);
            if turn.is_none() {
                front.metrics.limited.add(LimitName("authorization"));
                return McpRefusal::from(TOO_MANY).into_response();
            }
            turn
        }
        _ => None,
    };
    next.run(request).await
}

/// The refusal of a request beyond its share.
const TOO_MANY: Error = Error::Busy {
    what: "too many requests of this address at this authorization server",
    retry: Duration::from_secs(1),
};

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

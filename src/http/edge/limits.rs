//! Limits as a client sees them: what is refused before anybody is known, and the fields that say
//! how much is left (draft-ietf-httpapi-ratelimit-headers-10).

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use http::{Extensions, HeaderMap, HeaderName, HeaderValue};

use crate::config::ClientAddress;
use crate::http::{Front, mcp::Failure};
use crate::{
    error::{Error, Limit, Quota},
    hub::limits::Left,
};

/// What may be used: `"requests";q=100;w=1`.
pub(crate) const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// What is left of it: `"requests";r=0;t=1`.
pub(crate) const LEFT: HeaderName = HeaderName::from_static("ratelimit");

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

/// Tells whoever is about to be refused.
pub(crate) fn tell(headers: &mut HeaderMap, left: Left) {
    let (policy, left) = fields(left.limit, left.bound.get(), left.left);
    headers.entry(POLICY).or_insert(policy);
    headers.entry(LEFT).or_insert(left);
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

/// The two fields of a quota that is used up.
pub(crate) fn used_up(quota: &Quota) -> [(HeaderName, HeaderValue); 2] {
    let (policy, left) = fields(quota.limit, quota.bound.get(), 0);
    [(POLICY, policy), (LEFT, left)]
}

fn fields(limit: Limit, bound: u64, left: u64) -> (HeaderValue, HeaderValue) {
    let name = limit.name();
    // A window is of rates; what is counted at one time has none.
    let (window, time) = if limit.is_rate() {
        (";w=1", ";t=1")
    } else {
        ("", "")
    };
    let field = |text: String| {
        // Names are constants of ours and the rest digits.
        HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("\"limit\""))
    };
    (
        field(format!("\"{name}\";q={bound}{window}")),
        field(format!("\"{name}\";r={left}{time}")),
    )
}

#[cfg(test)]
mod tests {
    use super::super::limits::*;

    #[test]
    fn fields_are_structured() {
        let of = |limit| fields(limit, 100, 3);
        let (policy, left) = of(Limit::Requests);
        assert_eq!(policy, "\"requests\";q=100;w=1");
        assert_eq!(left, "\"requests\";r=3;t=1");
        let (policy, left) = of(Limit::PrincipalSessions);
        assert_eq!(policy, "\"principal_sessions\";q=100");
        assert_eq!(left, "\"principal_sessions\";r=3");
    }
}

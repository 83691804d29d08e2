//! Limits as a client sees them: what is refused before anybody is known, and the fields that say
//! how much is left (draft-ietf-httpapi-ratelimit-headers-10).

use std::sync::{Arc, OnceLock};

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use http::{HeaderName, HeaderValue};

use super::{Front, gate::ClientAddress, reply::Failure};
use crate::{
    error::{Error, Limit, Quota},
    hub::limits::Left,
};

/// What may be used: `"requests";q=100;w=1`.
pub(crate) const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// What is left of it: `"requests";r=0;t=1`.
pub(crate) const LEFT: HeaderName = HeaderName::from_static("ratelimit");

/// How the route that found out who calls says that little is left; in the extensions of the
/// request.
#[derive(Clone, Default)]
pub(super) struct Notice(Arc<OnceLock<Left>>);

impl Notice {
    /// Little is left.
    pub(super) fn set(&self, left: Left) {
        // A request is counted once.
        let _ = self.0.set(left);
    }
}

/// Refuses addresses that ask too often, and tells those who are about to be refused.
pub(super) async fn pass(
    State(front): State<Arc<Front>>,
    mut request: Request,
    next: Next,
) -> Response {
    if let Err(error) = address(&front, &request) {
        return Failure::from(error).into_response();
    }
    let notice = Notice::default();
    request.extensions_mut().insert(notice.clone());
    let mut response = next.run(request).await;
    if let Some(left) = notice.0.get() {
        let (policy, left) = fields(left.limit, left.bound.get(), left.left);
        let headers = response.headers_mut();
        headers.entry(POLICY).or_insert(policy);
        headers.entry(LEFT).or_insert(left);
    }
    response
}

/// Counts a request of an address.
///
/// # Errors
///
/// `Quota` if it asks too often.
pub(super) fn address(front: &Front, request: &Request) -> Result<(), Error> {
    let address = request.extensions().get::<ClientAddress>();
    match front.config.http.per_address.zip(address) {
        Some((bound, address)) => front.hub.limits().address(address.0, bound),
        None => Ok(()),
    }
}

/// The two fields of a quota that is used up.
pub(super) fn used_up(quota: &Quota) -> [(HeaderName, HeaderValue); 2] {
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
    use super::*;

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

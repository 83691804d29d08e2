//! `RateLimit` and `RateLimit-Policy` header fields (draft-ietf-httpapi-ratelimit-headers-10).
//!
//! Not here: counting and deciding (`hub::limits`).

use http::{HeaderMap, HeaderName, HeaderValue};

use super::header_name::{RATE_LIMIT, RATE_LIMIT_POLICY};
use crate::{
    error::{Limit, Quota},
    hub::limits::Remaining,
};

/// Adds the fields that warn a caller whose quota is almost used up.
pub(crate) fn add_warning(headers: &mut HeaderMap, left: Remaining) {
    let (policy, left) = fields(left.limit, left.bound.get(), left.left);
    headers.entry(RATE_LIMIT_POLICY).or_insert(policy);
    headers.entry(RATE_LIMIT).or_insert(left);
}

/// Makes the two fields of a quota that is used up.
pub(crate) fn used_up(quota: &Quota) -> [(HeaderName, HeaderValue); 2] {
    let (policy, left) = fields(quota.limit, quota.bound.get(), 0);
    [(RATE_LIMIT_POLICY, policy), (RATE_LIMIT, left)]
}

fn fields(limit: Limit, bound: u64, left: u64) -> (HeaderValue, HeaderValue) {
    let name = limit.name();
    // Only rates have a window; concurrent uses have none.
    let (window, time) = if limit.is_rate() {
        (";w=1", ";t=1")
    } else {
        ("", "")
    };
    let field = |text: String| {
        // The text consists of constant names and digits, so the conversion cannot fail.
        HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("\"limit\""))
    };
    (
        field(format!("\"{name}\";q={bound}{window}")),
        field(format!("\"{name}\";r={left}{time}")),
    )
}

#[cfg(test)]
mod tests {
    use super::super::rate_limit::*;

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

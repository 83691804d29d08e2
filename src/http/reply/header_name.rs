//! Names of header fields that neither the `http` crate nor MCP defines.

use http::HeaderName;

/// Quota policy of the caller: `"requests";q=100;w=1`.
pub(crate) const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
/// Remainder of that quota: `"requests";r=0;t=1`.
pub(crate) const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
/// Proof of a forwarded request between replicas. The public listener refuses it in requests; in a
/// response it says that no route answered.
pub(crate) const HOP: HeaderName = HeaderName::from_static("lockgate-hop");
/// Turns off response buffering in nginx and proxies that follow it.
pub(super) const X_ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");
/// Relation of the requesting page to the target (Fetch Metadata).
pub(crate) const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

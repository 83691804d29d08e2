//! Names of header fields that neither the `http` crate nor the MCP specification defines.

use http::HeaderName;

/// Quota policy of the caller: `"requests";q=100;w=1`.
pub(crate) const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
/// Remainder of that quota: `"requests";r=0;t=1`.
pub(crate) const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
/// Proof of a forwarded request between replicas. The public listener refuses requests with it. A
/// response with it comes from no route: the replica refused the hop.
pub(crate) const HOP: HeaderName = HeaderName::from_static("lockgate-hop");
/// Id of the event behind which the stream of a response to a hop begins. No client gets it: the replica that relays the
/// stream resumes it there, if it breaks before its first event.
pub(crate) const STREAM_BEGIN: HeaderName = HeaderName::from_static("lockgate-stream-begin");
/// Host of a tenant that the client of a forwarded request named.
pub(crate) const TENANT_HOST: HeaderName = HeaderName::from_static("lockgate-host");
/// Mark of a replica's GET for the rest of a stream that it relays: of that one and no other.
pub(crate) const REST_OF_STREAM: HeaderName = HeaderName::from_static("lockgate-rest");
/// Connection parameters of HTTP/1.0 (RFC 9112, appendix C.2.2).
pub(crate) const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
/// Obsolete relative of `Connection`, which some clients send to proxies.
pub(crate) const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
/// Trace context of a request (W3C Trace Context, section 3.2).
pub(crate) const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// Vendors' additions to it (W3C Trace Context, section 3.3).
pub(crate) const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
/// Client address and proxies, as each proxy appends them.
pub(crate) const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// Switch for response buffering in nginx and proxies that follow it.
pub(super) const X_ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");
/// Relation of the requesting page to the target (Fetch Metadata).
pub(crate) const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

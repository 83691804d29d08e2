//! Errors of the core, by what the caller can do about them.
//!
//! Not here: statuses and JSON-RPC codes (`http::reply`).

use std::{num::NonZeroU64, time::Duration};

/// Reason why the gateway could not execute a request; the text is for the log, not for the client.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// No such session for this caller: unknown, ended, or another principal's.
    #[error("no such session")]
    NoSession,
    /// No such server for this caller.
    #[error("no such server")]
    NoServer,
    /// The message is invalid.
    #[error("invalid message: {0}")]
    Invalid(&'static str),
    /// The bytes are not JSON.
    #[error("not JSON: {0}")]
    NotJson(&'static str),
    /// A cursor that is malformed, foreign, or was never issued.
    #[error("no such cursor")]
    NoCursor,
    /// A cursor whose events are no longer kept.
    #[error("events behind the cursor are gone")]
    Gone,
    /// The credentials lack scopes; holds all scopes that the request needs.
    #[error("scopes are missing")]
    Scopes(Vec<String>),
    /// A quota of the caller's tenant, of the caller or of its address is used up.
    #[error("quota reached: {}", .0.limit.as_str())]
    Quota(Quota),
    /// A limit of the caller's session is reached.
    #[error("limit reached: {what}")]
    Limit {
        /// Text of the limit for the client.
        what: &'static str,
        /// Delay before a retry.
        retry: Duration,
    },
    /// The gateway or the child is overloaded.
    #[error("overloaded: {what}")]
    Busy {
        /// Text of the reason for the client.
        what: &'static str,
        /// Delay before a retry.
        retry: Duration,
    },
    /// The session has just moved to another replica, which has not seen the request.
    #[error("the session is another replica's now")]
    Moved,
    /// The session has ended here, or its replica has, and the message may have been executed: a retry could do so twice.
    #[error("the message may have been executed")]
    Lost,
    /// The gateway is shutting down.
    #[error("draining")]
    Draining,
    /// A bug of the gateway.
    #[error("bug: {0}")]
    Bug(&'static str),
}

/// A quota that is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quota {
    /// The limited resource.
    pub(crate) limit: Limit,
    /// Size of the quota, in total or per second.
    pub(crate) bound: NonZeroU64,
    /// Delay before a retry.
    pub(crate) retry: Duration,
}

/// A limited resource of a tenant, a principal or an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// Requests per second of an address, before authentication.
    AddressRequests,
    /// Requests per second of a tenant.
    Requests,
    /// Requests per second of a principal.
    PrincipalRequests,
    /// Bytes per second to the clients of a tenant.
    BytesOut,
    /// Bytes per second to a principal.
    PrincipalBytesOut,
    /// Calls in flight of a tenant.
    Calls,
    /// Calls in flight of a principal.
    PrincipalCalls,
    /// Children of a tenant.
    Children,
    /// Resident bytes of the children of a tenant.
    Memory,
    /// Sessions of a tenant.
    Sessions,
    /// Sessions of a principal.
    PrincipalSessions,
    /// Streams of a tenant.
    Streams,
    /// Streams of a principal.
    PrincipalStreams,
}

impl Limit {
    /// Returns the text for the client.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::AddressRequests => "requests of the address",
            Self::Requests => "requests of the tenant",
            Self::PrincipalRequests => "requests of the principal",
            Self::BytesOut => "bytes out of the tenant",
            Self::PrincipalBytesOut => "bytes out of the principal",
            Self::Calls => "calls of the tenant",
            Self::PrincipalCalls => "calls of the principal",
            Self::Children => "children of the tenant",
            Self::Memory => "memory of the tenant",
            Self::Sessions => "sessions of the tenant",
            Self::PrincipalSessions => "sessions of the principal",
            Self::Streams => "streams of the tenant",
            Self::PrincipalStreams => "streams of the principal",
        }
    }

    /// Returns the name in header fields and metrics.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::AddressRequests => "address_requests",
            Self::Requests => "requests",
            Self::PrincipalRequests => "principal_requests",
            Self::BytesOut => "bytes_out",
            Self::PrincipalBytesOut => "principal_bytes_out",
            Self::Calls => "calls",
            Self::PrincipalCalls => "principal_calls",
            Self::Children => "children",
            Self::Memory => "memory",
            Self::Sessions => "sessions",
            Self::PrincipalSessions => "principal_sessions",
            Self::Streams => "streams",
            Self::PrincipalStreams => "principal_streams",
        }
    }

    /// Returns whether the bound is per second; otherwise it is a total at one time.
    pub(crate) const fn is_rate(self) -> bool {
        match self {
            Self::AddressRequests
            | Self::Requests
            | Self::PrincipalRequests
            | Self::BytesOut
            | Self::PrincipalBytesOut => true,
            Self::Calls
            | Self::PrincipalCalls
            | Self::Children
            | Self::Memory
            | Self::Sessions
            | Self::PrincipalSessions
            | Self::Streams
            | Self::PrincipalStreams => false,
        }
    }
}

//! What went wrong, and whose fault it is.
//!
//! Knows neither HTTP nor JSON-RPC: `http/reply.rs` turns each variant into an answer.

use std::{num::NonZeroU64, time::Duration};

/// Why the gateway could not do what it was asked; the text is for the log, not the client.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// No such session for this caller: unknown, ended, or another principal's.
    #[error("no such session")]
    NoSession,
    /// No such server for this caller.
    #[error("no such server")]
    NoServer,
    /// The message cannot be accepted as it stands.
    #[error("invalid message: {0}")]
    Invalid(&'static str),
    /// The bytes are not JSON.
    #[error("not JSON: {0}")]
    NotJson(&'static str),
    /// A cursor that is malformed, foreign, or was never given out.
    #[error("no such cursor")]
    NoCursor,
    /// A cursor whose events are no longer kept.
    #[error("events behind the cursor are gone")]
    Gone,
    /// The caller's credentials do not allow it: all scopes that it should have.
    #[error("scopes are missing")]
    Scopes(Vec<String>),
    /// A quota of the caller's tenant, of the caller or of its address.
    #[error("quota reached: {}", .0.limit.as_str())]
    Quota(Quota),
    /// The caller's own limit.
    #[error("limit reached: {what}")]
    Limit {
        /// Which limit.
        what: &'static str,
        /// When to come back.
        retry: Duration,
    },
    /// The gateway or the child cannot take more now.
    #[error("overloaded: {what}")]
    Busy {
        /// What is busy.
        what: &'static str,
        /// When to come back.
        retry: Duration,
    },
    /// The session has just gone to another replica, which has not seen the request.
    #[error("the session is another replica's now")]
    Moved,
    /// The gateway is about to end.
    #[error("draining")]
    Draining,
    /// A bug of ours.
    #[error("bug: {0}")]
    Bug(&'static str),
}

/// A quota that is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quota {
    /// Of what.
    pub(crate) limit: Limit,
    /// How much of it there is, or how much a second.
    pub(crate) bound: NonZeroU64,
    /// When to come back.
    pub(crate) retry: Duration,
}

/// What is limited, and for whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// Requests a second of an address, before anybody is known.
    AddressRequests,
    /// Requests a second of a tenant.
    Requests,
    /// Requests a second of a principal.
    PrincipalRequests,
    /// Bytes a second to the clients of a tenant.
    BytesOut,
    /// Bytes a second to a principal.
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
    /// What the client reads.
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

    /// Its name in header fields and metrics.
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

    /// Whether its bound is that of one second; else it is of one time.
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

//! Requests before the decision on them, their credentials, and refusals.
//!
//! Not here: the decision (`access`).

use std::{net::IpAddr, sync::Arc};

use crate::{
    declare::Tenant,
    endpoint::{Endpoint, Site, TenantHost},
    error::Error,
};

/// The credential of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Credential<'r> {
    /// The request has no credential.
    None,
    /// A bearer token: an API key, or an access token.
    Bearer(&'r str),
    /// A token of the scheme DPoP, which is bound to a key (RFC 9449, section 7.1).
    Bound {
        /// The access token.
        token: &'r str,
        /// The proof that comes with it, or the reason why none counts.
        proof: Result<&'r str, &'static str>,
    },
    /// A malformed `Authorization` header.
    Malformed,
    /// The caller, as the replica says that verified the credentials ([`super::Access::caller`]).
    Asserted(&'r str),
}

/// The reason why access is refused.
#[derive(Debug)]
pub(crate) enum AccessRefusal {
    /// The server does not exist, or not for this caller.
    NoServer,
    /// The caller is not authenticated and gets a challenge.
    Unknown {
        /// The tenant whose issuer the challenge names.
        tenant: Arc<Tenant>,
        /// What was refused.
        rejected: Rejected,
    },
    /// The decision is temporarily impossible.
    Later(Error),
}

/// The credential that is refused, on which the challenge depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rejected {
    /// The request had none.
    Nothing,
    /// A bearer token.
    Bearer,
    /// A token of the scheme DPoP.
    Bound,
    /// The proof of such a token, for this reason.
    Proof(&'static str),
}

/// An unverified request for a server.
pub(crate) struct AccessRequest<'r> {
    /// The endpoint that its path names.
    pub(crate) endpoint: Endpoint<'r>,
    /// What its URL begins with.
    pub(crate) site: Site<'r>,
    /// The same, in the spelling of the client.
    pub(crate) public_url: &'r str,
    /// Its method.
    pub(crate) method: &'r str,
    /// Credential of the request.
    pub(crate) credential: Credential<'r>,
    /// The client address.
    pub(crate) from: Option<IpAddr>,
    /// The host of the tenant that it names.
    pub(crate) host: Option<&'r Arc<TenantHost>>,
}

impl AccessRequest<'_> {
    /// Reports whether `text` is a URL of the requested server, byte for byte (RFC 8707, section 2) but for the names
    /// of this machine: at the host of the request. `/messages` is part of `/sse`.
    pub(super) fn is_for(&self, text: &str) -> bool {
        let named = self.endpoint;
        self.site.endpoint_at(text).is_some_and(|endpoint| {
            endpoint.is_resource()
                && (endpoint.tenant, endpoint.server) == (named.tenant, named.server)
        })
    }
}

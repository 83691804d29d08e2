//! External identity providers: OpenID Connect, and plain OAuth 2.0 with a user endpoint.
//!
//! Not here: the log-in of an identified person (`oauth::browser`).
//!
//! * `implementations`: choice of the implementation for a declared provider.
//! * `oauth`: providers with OAuth 2.0 alone.
//! * `openid`: OpenID Connect providers.
//! * `provider`: the seam and its contract.
//! * `transport`: requests to providers, through the guarded outbound client.

mod implementations;
mod oauth;
mod openid;
mod provider;
mod transport;

pub(crate) use self::implementations::Providers;
pub(crate) use self::openid::identity;
pub(crate) use self::provider::{ProviderError, ProviderIdentity, ProviderLogin, WantedClaims};

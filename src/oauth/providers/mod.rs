//! External identity providers: OpenID Connect, and plain OAuth 2.0 with a user endpoint; and the standing of people there.
//!
//! Not here: the log-in of an identified person (`oauth::browser`).
//!
//! * `implementations`: choice of the implementation for a declared provider.
//! * `logout_token`: claims of logout tokens.
//! * `oauth`: providers with OAuth 2.0 alone.
//! * `openid`: OpenID Connect providers.
//! * `provider`: the seam and its contract.
//! * `standing`: the provider's word about a person, asked for again when it is old.
//! * `transport`: requests to providers, through the guarded outbound client.

mod implementations;
mod logout_token;
mod oauth;
mod openid;
mod provider;
mod standing;
mod transport;

pub(crate) use self::implementations::Providers;
pub(crate) use self::openid::{REFETCH, identity};
pub(crate) use self::provider::{
    ExchangeError, LogoutToken, ProviderError, ProviderIdentity, ProviderLogin, ProviderTokens,
    WantedClaims,
};
pub(crate) use self::standing::{HeldToken, Standing, StandingOf, Standings};

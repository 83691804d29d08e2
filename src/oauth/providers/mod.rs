//! External identity providers.

mod oauth;
pub(crate) mod openid;
pub(crate) mod provider;

pub(crate) use self::provider::{Found, Journey, Unknown, Wanted};

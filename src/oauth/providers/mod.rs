//! External identity providers.

pub(crate) mod oauth;
pub(crate) mod openid;
pub(crate) mod provider;

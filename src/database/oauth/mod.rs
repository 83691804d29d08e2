//! Rows of the authorization server: grants, clients, log-ins, signing keys, revocations.

pub(crate) mod clients;
pub(crate) mod grants;
pub(crate) mod logins;
pub(crate) mod revocations;
pub(crate) mod signing_keys;
pub(crate) mod sweep;

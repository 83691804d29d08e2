//! Tests of API keys, tokens, policy, and the separation of tenants.

pub(crate) mod api_keys;
pub(crate) mod builtin_tokens;
pub(crate) mod dpop;
pub(crate) mod external_tokens;
pub(crate) mod groups;
mod late_bodies;
pub(crate) mod policy;
mod secrets;
pub(crate) mod tenancy;

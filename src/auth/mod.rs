//! Authentication and access: who calls, and what they may use.

pub(crate) mod access;
pub(crate) mod administrator;
pub(crate) mod api_key;
pub(crate) mod builtin;
pub(crate) mod denials;
mod external;
pub(crate) mod jws;
mod jwt;
pub(crate) mod policy;
pub(crate) mod principals;

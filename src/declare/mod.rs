//! The model that an operator declares: tenants, their servers, identity, policy and limits.
//!
//! Not here: how the model is read from text (`manifest`) or stored (`database`).

pub(crate) mod authorization_server;
pub(crate) mod catalog;
pub(crate) mod checks;
pub(crate) mod confinement;
pub(crate) mod difference;
pub(crate) mod identity;
pub(crate) mod issuer;
pub(crate) mod object;
pub(crate) mod packages;
pub(crate) mod password;
pub(crate) mod pattern;
pub(crate) mod policy;
pub(crate) mod quotas;
pub(crate) mod recipe;
pub(crate) mod redirect;
pub(crate) mod supervision;

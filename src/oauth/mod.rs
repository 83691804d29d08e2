//! The authorization server of each tenant (OAuth 2.1).

mod attempt;
pub(crate) mod browser;
pub(crate) mod clients;
pub(crate) mod error;
pub(crate) mod form;
mod metadata;
pub(crate) mod providers;
mod resource;
pub(crate) mod secret;
pub(crate) mod server;
pub(crate) mod throttle;
pub(crate) mod tokens;

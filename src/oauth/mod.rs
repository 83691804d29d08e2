//! The authorization server of each tenant (OAuth 2.1).

pub(crate) mod attempt;
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

pub(crate) use self::error::{Code, Refusal};
pub(crate) use self::form::Form;
pub(crate) use self::resource::{Place, Resource};
pub(crate) use self::secret::Kind;
pub(crate) use self::server::{Oauth, Server, State};
pub(crate) use self::throttle::Throttle;

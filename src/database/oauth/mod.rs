//! Rows of the authorization server: grants, clients, log-ins, signing keys, revocations.

mod clients;
mod grants;
mod logins;
pub(crate) mod revocations;
pub(crate) mod signing_keys;
mod sweep;

pub(crate) use self::clients::Registered;
pub(crate) use self::grants::{
    Grant, NewCode, NewRefresh, Refreshed, Revoked, Succession, TakenCode,
};
pub(crate) use self::logins::Person;
pub(crate) use self::revocations::{GrantFilter, SeenGrant};
pub(crate) use self::signing_keys::{Schedule, SeenKey, Signing, SigningKey};

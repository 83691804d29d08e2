//! The model that an operator declares: tenants, their servers, identity, policy and limits.
//!
//! Not here: how the model is read from text (`manifest`) or stored (`database`).

mod authorization_server;
pub(crate) mod catalog;
pub(crate) mod checks;
pub(crate) mod confinement;
pub(crate) mod difference;
pub(crate) mod identity;
pub(crate) mod issuer;
pub(crate) mod object;
mod packages;
pub(crate) mod password;
mod pattern;
mod policy;
mod quotas;
mod recipe;
pub(crate) mod redirect;
pub(crate) mod supervision;

pub(crate) use self::authorization_server::{
    Allow, Builtin, DeclaredClient, Hidden, Provider, ProviderKind, User,
};
pub(crate) use self::catalog::{
    Catalog, Clocks, Digest, Home, Launch, Limits, Reply, ReplyMode, Server, Tenant,
};
pub(crate) use self::confinement::{Confinement, Offer, Profile, Tcp};
pub(crate) use self::difference::{Change, Prune, What};
pub(crate) use self::identity::{
    ALGORITHMS, Algorithm, ApiKey, AuthMode, External, OperatorKey, OperatorKeys,
};
pub(crate) use self::object::{
    Declaration, Declared, Document, Kind, Object, ObjectName, PLACE, Secret,
};
pub(crate) use self::password::{PASSWORD, PASSWORD_HASH};
pub(crate) use self::policy::{Names, Policy};
pub(crate) use self::quotas::{Bounds, Full, Quotas, Room};
pub(crate) use self::recipe::{Recipe, STORE, Start};
pub(crate) use self::supervision::{Isolation, OnLoss, Supervision};

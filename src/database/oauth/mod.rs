//! Rows of the authorization server: grants, clients, log-ins, identities, signing keys, revocations.
//!
//! Not here: the protocol (`oauth` of the crate), lifetimes (`config::oauth`), and declared users and clients (`objects`).
//!
//! * `browser_logins`: log-ins of browsers and new consents, so many of a person
//! * `login_steps`: steps of attempts of clients to be let in
//! * `clients`: registered clients
//! * `direct_grants`: grants that begin without a code
//! * `grants`: authorization codes, grants, and rotation of refresh tokens
//! * `identities`: last words of identity providers about people
//! * `issued`: public keys and revocations, as replicas read them
//! * `logins`: people who are logged in, consents, log-ins in progress, and logouts at providers
//! * `own_keys`: API keys that people made for themselves
//! * `revocations`: revocations, numbered for replicas
//! * `signing_keys`: signing keys of tenants
//! * `surplus`: grants that end so that one person has only so many
//! * `sweep`: removal of expired rows, and of those of a restored database

mod browser_logins;
mod clients;
mod direct_grants;
pub(crate) mod grants;
pub(crate) mod identities;
mod issued;
mod login_steps;
pub(crate) mod logins;
pub(crate) mod own_keys;
pub(crate) mod revocations;
pub(crate) mod signing_keys;
mod surplus;
pub(crate) mod sweep;

pub(crate) use self::clients::{ClientPage, Clients, ListedClient, Registered, millis};
pub(crate) use self::direct_grants::MachineGrant;
pub(crate) use self::grants::{
    Grant, GrantFilter, Grants, ListedGrant, NewCode, NewRefresh, Refreshed, Succession, TakenCode,
};
pub(crate) use self::identities::{Identities, Identity, IdentityAt};
pub(crate) use self::issued::{Issuance, Reached};
pub(crate) use self::login_steps::{LoginSteps, Step};
pub(crate) use self::logins::{LoggedOut, Logins, Person};
pub(crate) use self::own_keys::{
    ListedOwnKey, NewOwnKey, OwnKeyAt, OwnKeyBounds, OwnKeyChange, OwnKeyPage, OwnKeys,
};
pub(crate) use self::revocations::{Revocations, Revoked};
pub(crate) use self::signing_keys::{ListedKey, Schedule, Signing, SigningKey, SigningKeys};
pub(crate) use self::surplus::{Room, Unused};

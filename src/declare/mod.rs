//! The model that an operator declares: tenants, their servers, identity, policy and limits.
//!
//! Not here: how the model is read from text (`manifest`) or stored (`database`).
//!
//! * `authorization_server`: users, clients, identity providers and upstreams of a tenant
//! * `catalog`: the tenants that this gateway serves
//! * `difference`: changes between two declared states, and the lines that `lockgate apply` prints
//! * `identity`: authentication mode, API keys and grants
//! * `launch`: the program of a server, and its preparation
//! * `object`: declared objects, as they are stored
//! * `offer`: the sandboxing that a machine can enforce
//! * `password`: hashes of passwords
//! * `pattern`: patterns of names and URIs
//! * `policy`: access policy of a server
//! * `quotas`: quotas of a tenant and of its principals
//! * `redirect`: redirect URIs that a client may register
//! * `server`: a server, its time limits, bounds and supervision
//! * `subset`: subset of a shared list

mod authorization_server;
mod catalog;
pub(crate) mod difference;
mod identity;
mod launch;
mod object;
mod offer;
pub(crate) mod password;
mod pattern;
mod policy;
mod quotas;
pub(crate) mod redirect;
mod server;
mod subset;

pub(crate) use self::authorization_server::TenantRevocations;
pub(crate) use self::authorization_server::{
    Allow, Builtin, DeclaredClient, GroupsClaim, OwnKeyRules, PRIVATE_MEMBERS, Provider,
    ProviderKind, PublicKey, SecretChange, Subject, Upstream, UpstreamEndpoints, User, Workload,
    are_too_many, machine_subject,
};
pub(crate) use self::catalog::{Catalog, Tenant, TenantProfile};
pub(crate) use self::difference::{Change, ChangeKind, Prune, When};
pub(crate) use self::identity::{
    ALGORITHMS, Algorithm, ApiKey, ApiKeys, AuthMode, Dpop, External, Grantees, Grants,
    Introspection, Issued, OWN_KEY, OperatorKey, OperatorKeys, OwnKey, OwnKeys, Servers,
};
pub(crate) use self::launch::{
    Confinement, Digest, Holder, Home, Launch, Profile, Recipe, SECRET_MAX, SLOTS_MAX, STORE, Slot,
    SlotForm, Slots, Sockets, Start, Tcp, TokenFrom, derive, is_secret, is_slot_name,
};
pub(crate) use self::object::{
    Declared, Document, Kind, Object, ObjectName, PLACE, SecretMembers, Usage, counted,
};
pub(crate) use self::offer::{Offer, SCOPES_ABI};
pub(crate) use self::password::{PASSWORD, PASSWORD_HASH};
pub(crate) use self::pattern::Pattern;
pub(crate) use self::policy::{
    AllowedScopes, GroupNames, Names, NamesByGroup, OFFLINE_ACCESS, Policy, is_scope,
};
pub(crate) use self::quotas::{Bounds, Full, Quotas, Room};
pub(crate) use self::server::{
    Clocks, Isolation, Limits, OnLoss, Reply, ReplyMode, Server, ServerEra, Supervision,
};
pub(crate) use self::subset::Subset;

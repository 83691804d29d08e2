//! Token and revocation endpoints, and the JWTs behind them.
//!
//! Not here: verification of access tokens by MCP endpoints (`auth`).
//!
//! * `binding`: proofs of a key, to which tokens are bound (DPoP).
//! * `client_authentication`: verification of secrets and signed assertions of clients.
//! * `client_credentials`: tokens of clients that act for themselves.
//! * `id_jag`: identity assertions, by which a provider lets a client act for a person.
//! * `jose`: signing of access tokens and parsing of client assertions.
//! * `refreshes`: budgets of refreshes by the minute.
//! * `revoke`: the revocation endpoint.
//! * `surplus`: grants that give way, so that one person has only so many.
//! * `token`: the token endpoint, which exchanges codes and refresh tokens.
//! * `workload`: workloads, which prove themselves by tokens of their platform.

mod binding;
mod client_authentication;
mod client_credentials;
mod id_jag;
mod jose;
mod refreshes;
pub(crate) mod revoke;
mod surplus;
pub(crate) mod token;
mod workload;

pub(crate) use self::jose::ASSERTIONS;

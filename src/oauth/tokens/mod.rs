//! Token and revocation endpoints, and the JWTs behind them.
//!
//! Not here: verification of access tokens by MCP endpoints (`auth`).
//!
//! * `client_authentication`: verification of secrets and signed assertions of clients.
//! * `jose`: signing of access tokens and parsing of client assertions.
//! * `revoke`: the revocation endpoint.
//! * `token`: the token endpoint: codes and refresh tokens are exchanged.

mod client_authentication;
mod jose;
pub(crate) mod revoke;
pub(crate) mod token;

pub(crate) use self::jose::ASSERTIONS;

//! The token and revocation endpoints, and the JWTs behind them.
//!
//! Not here: verification of access tokens by MCP endpoints (`auth`).
//!
//! * `client_authentication`: secrets and signed assertions of clients.
//! * `jose`: access tokens, signed, and client assertions, parsed.
//! * `revoke`: the revocation endpoint.
//! * `token`: the token endpoint.

mod client_authentication;
mod jose;
pub(crate) mod revoke;
pub(crate) mod token;

pub(crate) use self::jose::ASSERTIONS;

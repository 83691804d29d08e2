//! HTTP: listeners, gates, admission and routes.
//!
//! Not here: sessions and streams (`hub`), credentials (`auth`), the authorization server (`oauth`).
//!
//! * `routes`: all routes of the gateway, by listener
//! * `ops`: health, metrics and lists of children, for operators
//! * `admin`: administration API
//! * `mcp`: MCP endpoints
//! * `replicas`: requests for sessions of other replicas
//! * `admission`: checks before every MCP endpoint
//! * `edge`: the gates of the listeners
//! * `listen`: connections and TLS
//! * `peers`: connections to other replicas and the proof they carry
//! * `reply`: responses

pub(crate) mod admin;
pub(crate) mod admission;
pub(crate) mod edge;
pub(crate) mod listen;
mod mcp;
pub(crate) mod ops;
pub(crate) mod peers;
pub(crate) mod replicas;
pub(crate) mod reply;
pub(crate) mod routes;
#[cfg(test)]
mod tests;

pub(crate) use self::admission::Front;

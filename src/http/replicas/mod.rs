//! Requests for sessions of other replicas: forwarded to the owner, and the response relayed.
//!
//! Not here: connections (`peers`), ownership (`hub::ownership`).
//!
//! * `forward`: forwarding to the session owner, with retries
//! * `request`: a forwarded request and a single hop
//! * `draining`: new sessions while this replica shuts down
//! * `parked`: retries of parked calls (2026-07-28)
//! * `relay`: event streams of other replicas, continued after a lost connection
//! * `sse_parser`: parser that splits a byte stream into whole server-sent events

mod draining;
pub(crate) mod forward;
pub(crate) mod parked;
mod relay;
mod request;
mod sse_parser;

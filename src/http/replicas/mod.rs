//! Requests for sessions of other replicas: sent to the owner, and its answer relayed.
//!
//! Not here: connections (`peers`), ownership (`hub::ownership`).
//!
//! * `forward`: a request that belongs to another replica
//! * `request`: a request that goes to another replica
//! * `draining`: new sessions while this replica ends
//! * `relay`: a stream of another replica
//! * `sse_parser`: server-sent events cut into whole ones

mod draining;
pub(crate) mod forward;
mod relay;
mod request;
mod sse_parser;

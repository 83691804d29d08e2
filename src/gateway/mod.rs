//! A running gateway: construction, start and stop of its parts.
//!
//! Not here: flags, sockets and signals (`cli`), and the work of the parts.
//!
//! * `wiring`: builds every part and connects it to the others
//! * `lifecycle`: the stages in which a gateway stops
//! * `listeners`: the bound sockets
//! * `snapshot_follower`: applies new snapshots to sessions, children and metrics
//! * `first_operator`: the API key with which the administration begins
//! * `cluster`: the connection to Redis, and keys that replicas share
//! * `rotation`: takes over secrets whose files change while the gateway serves
//! * `readiness`: what the outage of a database or of Redis means for this replica

mod cluster;
mod first_operator;
mod lifecycle;
mod listeners;
mod readiness;
mod rotation;
mod snapshot_follower;
mod wiring;

pub(crate) use self::lifecycle::{Lifecycle, longest_end};
pub(crate) use self::listeners::{ClusterListener, Listeners};
pub(crate) use self::wiring::{Served, run};

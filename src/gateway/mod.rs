//! A running gateway: its parts built, started and stopped in order.
//!
//! Not here: flags, sockets and signals (`cli`), and what the parts do.
//!
//! * `wiring`: every part, built and handed to the others
//! * `lifecycle`: the stages in which a gateway stops
//! * `listeners`: the bound sockets
//! * `snapshot_follower`: a new snapshot applied to sessions, children and metrics
//! * `cluster`: Redis, heartbeats and keys that replicas share

mod cluster;
mod lifecycle;
mod listeners;
mod snapshot_follower;
mod wiring;

pub(crate) use self::lifecycle::Shutdown;
pub(crate) use self::listeners::{Listeners, Reached};
pub(crate) use self::wiring::{Served, run};

//! Other replicas: connections to them, and proof that a request comes from one.
//!
//! Not here: which replica owns a session (`hub::locate`), forwarding (`replicas`).
//!
//! * `cluster`: this replica in the cluster
//! * `connections`: HTTP/2 connections to other replicas
//! * `hop`: the signed header of a forwarded request

mod cluster;
mod connections;
pub(crate) mod hop;

pub(crate) use self::cluster::{Cluster, mark_refused};
#[cfg(test)]
pub(crate) use self::connections::MAX_CONCURRENT;
pub(crate) use self::connections::{BrokenResponse, Peers, ResponseBody, SendError};
pub(crate) use self::hop::{Hop, HopKeys, SignedRequest};

//! Other replicas: connections to them, and proof that a request comes from one.
//!
//! Not here: which replica owns a session (`hub::locate`), forwarding (`replicas`).
//!
//! * `cluster`: this replica in the cluster
//! * `connection`: one HTTP/2 connection to another replica
//! * `connections`: the connections to all of them
//! * `hop`: the signed header of a forwarded request
//! * `proof`: what a peer proves on a new connection
//! * `received`: hops that were received, each of which counts once
//! * `signed_body`: the body of a hop, compared to its signed digest
//! * `stranger`: connections whose peer has not sent a valid hop
//! * `unread`: bytes of an answer that its client has not taken
//! * `wake_line`: the line of readers to wake

mod cluster;
mod connection;
mod connections;
pub(crate) mod hop;
mod proof;
mod received;
mod signed_body;
mod stranger;
mod unread;
mod wake_line;

pub(crate) use self::cluster::{Cluster, mark_refused, replaced_for};
pub(crate) use self::connection::{
    BrokenResponse, HEADER_LIST, ResponseBody, STREAM_WINDOW, SendError, takes_answer,
};
#[cfg(test)]
pub(crate) use self::connections::MAX_CONCURRENT;
pub(crate) use self::connections::{BrokenConnections, Peers};
pub(crate) use self::hop::{Hop, HopKeys, InvalidHop, SignedRequest, carried};
pub(crate) use self::stranger::{Stranger, Strangers};

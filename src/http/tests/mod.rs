//! Tests of the HTTP surface over real sockets.

pub(crate) mod peers;
pub(crate) mod replicas;
pub(crate) mod surface;

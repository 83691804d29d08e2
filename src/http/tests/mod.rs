//! Tests of the HTTP surface over real sockets.

mod peers;
mod replicas;
mod surface;

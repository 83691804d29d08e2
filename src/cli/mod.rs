//! The command line.

pub(crate) mod arguments;
mod check;
mod credentials;
mod database;
mod demo;
mod descriptors;
mod directory;
mod import;
mod key;
pub(crate) mod remote;
mod serve;
mod signals;
mod sockets;

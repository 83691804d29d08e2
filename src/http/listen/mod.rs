//! Listeners: from a socket to requests.
//!
//! Not here: checks of requests (`edge`).
//!
//! * `accept`: the accept loop
//! * `connections`: connections at once, shared out to addresses
//! * `activity`: open requests of a connection
//! * `tls`: certificates and their reload
//! * `wire`: a socket with a lingering close

pub(crate) mod accept;
mod activity;
mod connections;
mod tls;
mod wire;

pub(crate) use self::accept::Bounds;
pub(crate) use self::connections::Connections;
pub(crate) use self::tls::{CERTIFICATE, Files, TlsError, TlsReload};

//! Listeners: from a socket to requests.
//!
//! Not here: checks of requests (`edge`).
//!
//! * `accept`: the accept loop
//! * `connections`: connections at once, shared out to addresses
//! * `requests`: requests of a connection, and how far the current one is
//! * `activity`: open requests of a connection of HTTP/2
//! * `dense`: what was read of a connection of HTTP/2 and has many fields, until its turn
//! * `frames`: frames of HTTP/2, as far as header blocks are concerned
//! * `hpack`: what the table of HPACK keeps of header blocks
//! * `tls`: certificates and their reload
//! * `wire`: a socket that is read within bounds, with a lingering close

pub(crate) mod accept;
mod activity;
mod connections;
mod dense;
mod frames;
mod hpack;
mod requests;
mod tls;
mod wire;

pub(crate) use self::accept::Bounds;
pub(crate) use self::connections::Connections;
pub(crate) use self::tls::{CERTIFICATE, Files, TlsError, TlsReload};

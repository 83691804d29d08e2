//! Settings of the listeners that are not for clients.

use std::net::SocketAddr;

use super::{address::address, document::Node, reader::Wrong, sources::Layers};

/// The operations listener.
#[derive(Clone, Debug)]
pub(crate) struct Ops {
    /// Where it listens, if it does.
    pub(crate) listen: Option<SocketAddr>,
}

impl Ops {
    /// The key `ops.listen`.
    pub(crate) fn read(layers: &mut Layers, http: SocketAddr) -> Self {
        let listen = layers.leaf("ops.listen", maybe_address);
        if listen.is_some_and(|ops| ops == http && ops.port() != 0) {
            let what = "is http.listen too";
            layers.mistake("ops.listen", what, "choose another port");
        }
        Self { listen }
    }
}

/// The administration API.
#[derive(Clone, Debug)]
pub(crate) struct Admin {
    /// A listener of its own; none is the public one.
    pub(crate) listen: Option<SocketAddr>,
}

impl Admin {
    /// The key `admin.listen`.
    pub(crate) fn read(layers: &mut Layers, http: SocketAddr, ops: Option<SocketAddr>) -> Self {
        let listen: Option<SocketAddr> = layers.leaf("admin.listen", maybe_address);
        if listen.is_some_and(|own| own.port() != 0 && [Some(http), ops].contains(&Some(own))) {
            let what = "is http.listen or ops.listen too";
            layers.mistake("admin.listen", what, "choose another port");
        }
        Self { listen }
    }
}

fn maybe_address(node: &Node) -> Result<Option<SocketAddr>, Wrong> {
    let text = node.text()?;
    if text.is_empty() {
        return Ok(None);
    }
    address(&text).map(Some)
}

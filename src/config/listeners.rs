//! Settings of the operations and administration listeners.

use std::net::SocketAddr;

use super::{address::address, document::Node, reader::Wrong, sources::Layers};

/// The operations listener.
#[derive(Clone, Debug)]
pub(crate) struct Ops {
    /// Its address, if enabled.
    pub(crate) listen: Option<SocketAddr>,
}

impl Ops {
    /// Reads `ops.listen`.
    pub(crate) fn read(layers: &mut Layers, http: SocketAddr) -> Self {
        let listen = layers.leaf("ops.listen", optional_address);
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
    /// The address of a separate listener; none for the public listener.
    pub(crate) listen: Option<SocketAddr>,
}

impl Admin {
    /// Reads `admin.listen`.
    pub(crate) fn read(layers: &mut Layers, http: SocketAddr, ops: Option<SocketAddr>) -> Self {
        let listen: Option<SocketAddr> = layers.leaf("admin.listen", optional_address);
        if listen.is_some_and(|own| own.port() != 0 && [Some(http), ops].contains(&Some(own))) {
            let what = "is http.listen or ops.listen too";
            layers.mistake("admin.listen", what, "choose another port");
        }
        Self { listen }
    }
}

fn optional_address(node: &Node) -> Result<Option<SocketAddr>, Wrong> {
    let text = node.text()?;
    if text.is_empty() {
        return Ok(None);
    }
    address(&text).map(Some)
}

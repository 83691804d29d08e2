//! The edge: connections, TLS, hosts, origins, bodies and limits before any route.

pub(crate) mod accept;
pub(crate) mod address;
pub(crate) mod body;
pub(crate) mod cors;
pub(crate) mod gate;
pub(crate) mod limits;
pub(crate) mod own_form;
pub(crate) mod refusal;
pub(crate) mod tls;
pub(crate) mod wire;

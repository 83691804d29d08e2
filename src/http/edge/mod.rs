//! The edge: connections, TLS, hosts, origins, bodies and limits before any route.

pub(crate) mod accept;
mod address;
mod body;
mod cors;
pub(crate) mod gate;
pub(crate) mod limits;
mod own_form;
mod problem;
pub(crate) mod refusal;
mod tls;
mod wire;

pub(crate) use self::accept::Bounds;
pub(crate) use self::address::Allowed;
pub(crate) use self::gate::{App, Gate};
pub(crate) use self::problem::{PROBLEM, Problem, answer};
pub(crate) use self::tls::{CERTIFICATE, Files, TlsError};

//! Commands that speak to the administration API of a running gateway.

pub(crate) mod apply;
mod client;
pub(crate) mod keys;
pub(crate) mod log_in;
pub(crate) mod objects;
pub(crate) mod reference;
mod table;

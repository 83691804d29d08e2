//! The HTTP skin: all routes, and what stands before them.

pub(crate) mod admin;
pub(crate) mod edge;
pub(crate) mod front;
pub(crate) mod mcp;
pub(crate) mod ops;
pub(crate) mod replicas;
#[cfg(test)]
mod tests;

pub(crate) use self::front::Front;
pub(crate) use self::ops::{Health, Loss};

//! Preparations: what a server's children need, installed once.

pub(crate) mod preparations;
pub(crate) mod programs;
pub(crate) mod stores;

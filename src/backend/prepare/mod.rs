//! Preparations: what a server's children need, installed once.

mod preparations;
mod programs;
pub(crate) mod stores;

pub(crate) use self::preparations::{Preparations, Prepared, Ready};

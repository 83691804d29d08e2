//! Child processes: launch, stdio, registry and removal.

mod launcher;
mod registry;
pub(crate) mod stderr;
mod stdio;
#[cfg(test)]
mod tests;

pub(crate) use self::launcher::{Ambient, Launcher, SCRATCH};
pub(crate) use self::registry::{Entry, Registry, Restart, Seat, Seen};
pub(crate) use self::stdio::{Child, Exit, Happened};

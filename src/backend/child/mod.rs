//! Child processes: launch, stdio and registry.
//!
//! Not here: the decision to start a child (`starter`), and the processes below a guard (`guard`).
//!
//! * `launcher`: surroundings of all children, and the orders for each
//! * `stdio`: a running child, its pipes and its end
//! * `stderr`: kept and logged part of a child's stderr
//! * `registry`: all children with state and usage

mod launcher;
mod registry;
pub(crate) mod stderr;
mod stdio;
#[cfg(test)]
mod tests;

pub(crate) use self::launcher::{Ambient, Launcher, SCRATCH};
pub(crate) use self::registry::{Entry, Registry, Restart, Seat, Seen};
pub(crate) use self::stdio::{Child, ChildEvent, Exit};

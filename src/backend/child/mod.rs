//! Child processes: launch, stdio and registry.
//!
//! Not here: the decision to start a child (`starter`), and the processes below a guard (`guard`).
//!
//! * `launcher`: environment of all children, and the launch request to the guard of each
//! * `zygote`: fork of guards, and the wait for their ends
//! * `lines`: lines of its stdout
//! * `held`: what its pipes hold in the gateway's memory
//! * `stdio`: a running child and its pipes
//! * `stop`: stop and kill of a child: the signals and the waits between them
//! * `stderr`: kept and logged part of a child's stderr
//! * `registry`: all children with state and usage
//! * `tokens`: access tokens of a child, and their renewal in its files
//! * `usage`: memory and processor time of a child's processes
//! * `seats`: places among the children of a tenant, shared out to its callers
//! * `capacity`: places among those of the gateway, shared out to tenants

mod capacity;
mod held;
mod launcher;
mod lines;
mod registry;
mod seats;
pub(crate) mod stderr;
mod stdio;
mod stop;
#[cfg(test)]
mod tests;
mod tokens;
mod usage;
mod zygote;

pub(crate) use self::capacity::{CapacityPlace, Holders, Wanted};
pub(crate) use self::held::TenantMemory;
pub(crate) use self::launcher::{Ambient, Launcher, SCRATCH};
pub(crate) use self::registry::{ChildStatus, Entry, Registry, Restart};
pub(crate) use self::seats::{ChildSeats, Owner, Seat};
pub(crate) use self::stdio::{Child, ChildEvent, Exit};
pub(crate) use self::tokens::AccessToken;
pub(crate) use self::usage::calm;
#[cfg(test)]
pub(crate) use self::zygote::Zygote;

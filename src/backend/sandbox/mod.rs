//! The sandbox of a child: namespaces, cgroups, file and network rules, uids.

mod cgroup;
pub(crate) mod confine;
mod files;
pub(crate) mod namespace;
mod network;
mod seccomp;
mod uids;
pub(crate) mod walls;

pub(crate) use self::namespace::User;
pub(crate) use self::uids::Lease;
pub(crate) use self::walls::{Kernel, Sandbox};

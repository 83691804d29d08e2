//! The sandbox of a child: capabilities of this machine, and the walls made of them.
//!
//! Not here: the process that puts itself behind these walls (`guard`).
//!
//! * `cage`: walls around one child, as a value
//! * `walls`: capabilities of this machine, and the cage that each child gets
//! * `cgroup`: cgroups of children, and their limits
//! * `domain`: Landlock domain of a child
//! * `files`: files that a child in profile `standard` reaches
//! * `namespace`: user and mount namespaces of a child
//! * `network`: addresses that the kernel refuses to children
//! * `seccomp`: system calls denied to a child
//! * `uids`: uids of children

mod cage;
mod cgroup;
pub(crate) mod domain;
mod files;
pub(crate) mod namespace;
mod network;
pub(crate) mod seccomp;
mod uids;
pub(crate) mod walls;

pub(crate) use self::cage::{Cage, Files, Store, Tcp};
pub(crate) use self::namespace::User;
pub(crate) use self::uids::Lease;
pub(crate) use self::walls::{Kernel, Sandbox};

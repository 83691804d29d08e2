//! Sandbox of a child: the capabilities of this machine, and the restrictions made of them.
//!
//! Not here: the process that applies the restrictions to itself (`guard`).
//!
//! * `machine`: capabilities of this machine, and the restrictions that each child gets
//! * `restrictions`: restrictions of one child, as a value
//! * `cgroup`: cgroups of children, and their limits
//! * `domain`: Landlock domain of a child
//! * `files`: files that a child in profile `standard` reaches
//! * `namespace`: user and mount namespaces of a child
//! * `network`: addresses that the kernel refuses to children
//! * `seccomp`: system calls denied to a child
//! * `uids`: uids of children

mod cgroup;
pub(crate) mod domain;
mod files;
pub(crate) mod machine;
pub(crate) mod namespace;
mod network;
mod restrictions;
pub(crate) mod seccomp;
mod uids;

pub(crate) use self::machine::{Kernel, Sandbox};
pub(crate) use self::namespace::User;
pub(crate) use self::restrictions::{Files, Restrictions, Store, Tcp};
pub(crate) use self::uids::UidLease;

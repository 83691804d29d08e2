//! Sandbox of a child: the capabilities of this machine, and the restrictions made of them.
//!
//! Not here: the process that applies the restrictions to itself (`guard`).
//!
//! * `machine`: capabilities of this machine
//! * `choice`: choice of the restrictions of each child: files, TCP, processes, uid and cgroup
//! * `restrictions`: restrictions of one child, as a value
//! * `cgroup`: cgroups of children, and their limits
//! * `domain`: Landlock domain of a child
//! * `files`: system directories, devices and programs, for that choice
//! * `looks`: looks at file systems of servers, of which one may not answer
//! * `namespace`: user and mount namespaces of a child
//! * `root`: root directory of a child
//! * `network`: addresses that the kernel refuses to children
//! * `seccomp`: system calls denied to a child
//! * `uids`: uids of children
//! * `wall`: what profile `standard` holds back from a child

mod cgroup;
pub(crate) mod choice;
pub(crate) mod domain;
mod files;
mod looks;
mod machine;
pub(crate) mod namespace;
mod network;
mod restrictions;
mod root;
pub(crate) mod seccomp;
mod uids;
mod wall;

pub(crate) use self::choice::Sandbox;
pub(crate) use self::machine::Kernel;
pub(crate) use self::namespace::User;
pub(crate) use self::network::{Filter, MOST_NETWORKS, Unreachable};
pub(crate) use self::restrictions::{
    Files, Namespaces, Restrictions, Scheduling, Sockets, Store, Tcp,
};
pub(crate) use self::uids::UidLease;

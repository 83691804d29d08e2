//! The sandbox of a child: namespaces, cgroups, file and network rules, uids.

pub(crate) mod cgroup;
pub(crate) mod confine;
pub(crate) mod files;
pub(crate) mod namespace;
pub(crate) mod network;
pub(crate) mod seccomp;
pub(crate) mod uids;
pub(crate) mod walls;

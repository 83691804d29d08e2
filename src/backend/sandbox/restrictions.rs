//! Restrictions of one child, as a value that the gateway chooses and the guard applies.

use std::path::{Path, PathBuf};

/// How a child gets a processor (sched(7)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Scheduling {
    /// The niceness that is added to that of the gateway.
    pub(crate) nice: u8,
    /// Whether it takes the processor from none that runs (`SCHED_BATCH`).
    pub(crate) is_batch: bool,
}

/// The restrictions of one child, as chosen for this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Restrictions {
    /// The uid of the child, also the number of its gid.
    pub(crate) uid: Option<u32>,
    /// Its part of the processors.
    pub(crate) scheduling: Scheduling,
    /// The namespaces of its own.
    pub(crate) namespaces: Namespaces,
    /// Whether Landlock also blocks signals and abstract sockets to processes outside.
    pub(crate) is_scoped: bool,
    /// Whether system calls are filtered and capabilities dropped.
    pub(crate) is_hardened: bool,
    /// Whether calls are denied that reach what its user has elsewhere: limits of other processes, and keyrings.
    pub(crate) is_filtered: bool,
    /// Version of the Landlock ABI.
    pub(crate) landlock: u32,
    /// Files that it may access; none means all but hidden ones.
    pub(crate) files: Option<Files>,
    /// Hidden files and directories.
    pub(crate) hide: Vec<PathBuf>,
    /// UNIX sockets that it may use.
    pub(crate) sockets: Sockets,
    /// TCP that it may use.
    pub(crate) tcp: Tcp,
    /// Limit of processes and threads of its uid (`RLIMIT_NPROC`), which must be its own.
    pub(crate) processes: Option<u64>,
    /// Its own cgroup, which the guard ends and removes.
    pub(crate) group: Option<PathBuf>,
    /// Prepared store that it may access, even in a hidden directory.
    pub(crate) store: Option<Store>,
}

/// A prepared store that a child may access.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Store {
    /// Read and execute.
    Read(PathBuf),
    /// Read and write: its recipe fills it.
    Fill(PathBuf),
}

impl Store {
    /// Directory of the store.
    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::Read(path) | Self::Fill(path) => path,
        }
    }
}

/// The files that a child may access.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Files {
    /// Read and execute.
    pub(crate) read: Vec<PathBuf>,
    /// Full access, its private directory among them.
    pub(crate) write: Vec<PathBuf>,
}

/// The namespaces of a child.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Namespaces {
    /// None of its own.
    #[default]
    None,
    /// Mount and IPC namespaces; only a gateway with `CAP_SYS_ADMIN` makes them without the others.
    Mounts,
    /// User, pid, mount and IPC namespaces.
    All,
}

/// UNIX sockets that a child may use, besides pairs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Sockets {
    /// Any.
    #[default]
    Any,
    /// None.
    Off,
    /// Those in its own root directory: it has `Restrictions::files`, these files and directories,
    /// and no other.
    Root(Vec<PathBuf>),
}

/// TCP that a child may use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Tcp {
    /// Any.
    #[default]
    Any,
    /// None.
    Off,
    /// Only these ports, to connect to and to bind.
    Ports(Vec<u16>),
}

impl Restrictions {
    /// Whether the child is separated from other processes.
    pub(crate) fn is_apart(&self) -> bool {
        self.uid.is_some() || self.has_own_processes() || self.is_scoped
    }

    /// Whether System V objects and message queues may outlive the child, and belong to the next one with its uid: it
    /// may make some, in the IPC namespace of all.
    pub(crate) fn leaves_ipc(&self) -> bool {
        self.inherits_ipc() && !self.is_hardened
    }

    /// Whether those that an earlier child with its uid has left belong to this one, though it may not be able to use
    /// them.
    pub(crate) fn inherits_ipc(&self) -> bool {
        self.uid.is_some() && self.namespaces == Namespaces::None
    }

    /// Whether it has user and pid namespaces of its own.
    pub(crate) fn has_own_processes(&self) -> bool {
        self.namespaces == Namespaces::All
    }
}

#[cfg(test)]
mod tests {
    use super::super::restrictions::*;

    /// Those of a child in profile `open` stayed, until another one in that profile had its uid.
    #[test]
    fn ipc_of_an_earlier_child_belongs_to_one_that_can_make_none() {
        for (uid, namespaces, is_hardened, expected) in [
            (Some(1), Namespaces::None, false, [true, true]),
            (Some(1), Namespaces::None, true, [true, false]),
            (Some(1), Namespaces::Mounts, false, [false, false]),
            (None, Namespaces::None, false, [false, false]),
        ] {
            let restrictions = Restrictions {
                uid,
                namespaces,
                is_hardened,
                ..Restrictions::default()
            };
            let found = [restrictions.inherits_ipc(), restrictions.leaves_ipc()];
            assert_eq!(found, expected, "{restrictions:?}");
        }
    }
}

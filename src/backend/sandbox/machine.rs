//! Capabilities of this machine, and the means that children get of them.
//!
//! Probed once at the start and held as a value. Not here: the restrictions of each child
//! (`choice`).

use std::{fs, path::Path};

use rustix::{process::Resource, thread::CapabilitySet};

use super::{cgroup::Delegation, network, restrictions::Namespaces};
use crate::{
    backend::linux::syscalls,
    config::{Separation, Uids},
    declare::{Offer, SCOPES_ABI},
};

/// Capabilities of this kernel and the rights of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a fact of the machine, independent of the others"
)]
pub(crate) struct Kernel {
    /// Version of the Landlock ABI; 0 for none.
    pub(crate) landlock: u32,
    /// System calls can be filtered.
    pub(crate) has_seccomp: bool,
    /// Children can have user, pid, mount and IPC namespaces.
    pub(crate) has_namespaces: bool,
    /// Children can have mount and IPC namespaces without a user namespace.
    pub(crate) has_mounts: bool,
    /// This process may change users and end processes of others.
    pub(crate) has_users: bool,
    /// This process is root.
    pub(crate) is_root: bool,
    /// This process may load BPF programs that filter connections.
    pub(crate) has_filters: bool,
    /// Limit of open files of this process.
    pub(crate) open_files: u64,
    /// Cgroup of this process.
    pub(crate) cgroup: Option<Delegation>,
}

impl Kernel {
    /// Probes the kernel; a guard has tested the namespaces.
    pub(crate) fn probe(namespaces: &[Namespaces]) -> Self {
        let needed = CapabilitySet::SETUID
            | CapabilitySet::SETGID
            | CapabilitySet::CHOWN
            | CapabilitySet::KILL
            | CapabilitySet::DAC_OVERRIDE;
        Self {
            landlock: syscalls::landlock(),
            has_seccomp: fs::read_to_string("/proc/sys/kernel/seccomp/actions_avail")
                .is_ok_and(|actions| actions.contains("errno")),
            has_namespaces: namespaces.contains(&Namespaces::All),
            has_mounts: namespaces.contains(&Namespaces::Mounts),
            has_users: rustix::thread::capabilities(None)
                .is_ok_and(|sets| sets.effective.contains(needed)),
            is_root: rustix::process::geteuid().is_root(),
            has_filters: network::is_offered(),
            open_files: rustix::process::getrlimit(Resource::Nofile)
                .maximum
                .unwrap_or(u64::MAX),
            cgroup: Delegation::probe(Path::new("/")),
        }
    }

    /// Means that children get: separation `wish`, or the first one that works.
    ///
    /// # Errors
    ///
    /// The configuration key that requires a missing capability, the reason, and the remedy.
    pub(crate) fn offer(
        &self,
        wish: Option<Separation>,
        uids: Option<Uids>,
    ) -> Result<Offer, (&'static str, &'static str, &'static str)> {
        let works = |separation: Separation| match separation {
            Separation::Uid => uids.is_some() && self.has_users,
            Separation::Namespace => self.has_namespaces,
            Separation::Landlock => self.landlock >= SCOPES_ABI,
            Separation::None => true,
        };
        let why = |separation: Separation| match separation {
            Separation::Uid if uids.is_none() => "needs sandbox.uids",
            Separation::Uid => {
                "needs a gateway with CAP_SETUID, CAP_SETGID, CAP_CHOWN, CAP_KILL and CAP_DAC_OVERRIDE"
            }
            Separation::Namespace => "user, pid and mount namespaces cannot be made here",
            _ => "needs Landlock of Linux 6.12 or newer",
        };
        let all = [
            Separation::Uid,
            Separation::Namespace,
            Separation::Landlock,
            Separation::None,
        ];
        let separation = match wish {
            Some(wish) if works(wish) => wish,
            Some(wish) => return Err(("sandbox.separation", why(wish), CHOOSE)),
            // Configured uids must be used.
            None if uids.is_some() && !self.has_users => {
                return Err(("sandbox.uids", why(Separation::Uid), CHOOSE));
            }
            None => all
                .into_iter()
                .find(|&one| works(one))
                .unwrap_or(Separation::None),
        };
        let shares_root = matches!(separation, Separation::Landlock | Separation::None);
        if wish.is_none() && self.is_root && shares_root {
            return Err(("sandbox.separation", CHILDREN_ARE_ROOT, NAME_IT));
        }
        let bounds = |controller: &str| {
            let cgroup = self.cgroup.as_ref();
            cgroup.is_some_and(|cgroup| cgroup.bounds(controller))
        };
        Ok(Offer {
            separation,
            has_mounts: match separation {
                Separation::Namespace => true,
                Separation::Uid => self.has_mounts,
                Separation::Landlock | Separation::None => false,
            },
            landlock: self.landlock,
            has_seccomp: self.has_seccomp,
            bounds_memory: bounds("memory"),
            bounds_pids: bounds("pids") || separation == Separation::Uid,
            bounds_cpu: bounds("cpu"),
            refuses_addresses: self.has_filters
                && self.cgroup.as_ref().is_some_and(|group| group.is_delegated),
        })
    }
}

const CHOOSE: &str = "choose another, or see lockgate check for what is offered here";
const CHILDREN_ARE_ROOT: &str = "this gateway is root, and so would be its children: sandbox.uids is not set, and no \
     user namespaces can be made here";
const NAME_IT: &str =
    "set sandbox.uids, start the gateway as another user, or name a separation like \"landlock\"";

#[cfg(test)]
mod tests {
    use super::super::machine::*;

    const BARE: Kernel = Kernel {
        landlock: 0,
        has_seccomp: false,
        has_namespaces: false,
        has_mounts: false,
        has_users: false,
        is_root: false,
        has_filters: false,
        open_files: u64::MAX,
        cgroup: None,
    };
    const UIDS: Uids = Uids {
        first: 100_000,
        count: 9,
    };

    #[test]
    fn the_first_that_works_separates() {
        let all = Kernel {
            landlock: 7,
            has_namespaces: true,
            has_users: true,
            ..BARE
        };
        let separation =
            |kernel: &Kernel, wish, uids| kernel.offer(wish, uids).map(|offer| offer.separation);
        assert_eq!(separation(&all, None, Some(UIDS)), Ok(Separation::Uid));
        assert_eq!(separation(&all, None, None), Ok(Separation::Namespace));
        let landlock = Kernel {
            has_namespaces: false,
            ..all.clone()
        };
        assert_eq!(separation(&landlock, None, None), Ok(Separation::Landlock));
        let old = Kernel {
            landlock: 5,
            ..BARE
        };
        assert_eq!(separation(&old, None, None), Ok(Separation::None));
        for wish in [Separation::Uid, Separation::Namespace, Separation::Landlock] {
            assert_eq!(separation(&all, Some(wish), Some(UIDS)), Ok(wish));
            let refused = separation(&old, Some(wish), Some(UIDS));
            assert_eq!(refused.unwrap_err().0, "sandbox.separation");
        }
        let refused = separation(&old, None, Some(UIDS));
        assert_eq!(refused.unwrap_err().0, "sandbox.uids");
        assert_eq!(
            separation(&all, Some(Separation::None), Some(UIDS)),
            Ok(Separation::None)
        );
    }

    #[test]
    fn children_are_root_only_by_name() {
        let root = Kernel {
            landlock: 7,
            has_seccomp: true,
            has_users: true,
            is_root: true,
            ..BARE
        };
        let (key, what, _) = root.offer(None, None).unwrap_err();
        assert_eq!(key, "sandbox.separation");
        assert!(what.starts_with("this gateway is root"), "{what}");
        for named in [Separation::Landlock, Separation::None] {
            assert_eq!(root.offer(Some(named), None).unwrap().separation, named);
        }
        assert_eq!(
            root.offer(None, Some(UIDS)).unwrap().separation,
            Separation::Uid
        );
        let namespaced = Kernel {
            has_namespaces: true,
            ..root
        };
        let offer = namespaced.offer(None, None).unwrap();
        assert!(offer.separation == Separation::Namespace && offer.confines_sockets());
    }

    #[test]
    fn pids_are_bounded_by_a_uid_or_a_group() {
        let users = Kernel {
            has_users: true,
            ..BARE
        };
        assert!(users.offer(None, Some(UIDS)).unwrap().bounds_pids);
        assert!(!users.offer(None, None).unwrap().bounds_pids);
        let delegation = Delegation {
            path: "/x".into(),
            is_delegated: true,
            controllers: vec!["pids".into(), "memory".into()],
            processes: 4096,
        };
        let mut grouped = Kernel {
            cgroup: Some(delegation),
            ..BARE
        };
        let offer = grouped.offer(None, None).unwrap();
        assert!(offer.bounds_pids && offer.bounds_memory && !offer.bounds_cpu);
        grouped.cgroup.as_mut().unwrap().is_delegated = false;
        assert!(!grouped.offer(None, None).unwrap().bounds_memory);
    }
}

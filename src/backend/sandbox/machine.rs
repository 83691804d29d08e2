//! Capabilities of this machine, and the restrictions that each child gets.
//!
//! Probed once at the start and held as a value. Not here: the application of the restrictions
//! (`domain`, `namespace`, `seccomp`).

use std::{
    ffi::OsStr,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::{process::Resource, thread::CapabilitySet};

use super::{
    cgroup::{Delegation, Groups},
    files,
    network::{self, Refused},
    restrictions::{Files, Restrictions, Store, Tcp},
    uids::{Pool, UidLease},
};
use crate::{
    backend::linux::syscalls,
    base::HiddenPaths,
    config::{Separation, Uids},
    declare::{self, Home, Launch, Limits, Offer, Profile},
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
    /// Children can have user, pid and mount namespaces.
    pub(crate) has_namespaces: bool,
    /// This process may change users and end processes of others.
    pub(crate) has_users: bool,
    /// This process may load BPF programs that filter connections.
    pub(crate) has_filters: bool,
    /// Limit of open files of this process.
    pub(crate) open_files: u64,
    /// Cgroup of this process.
    pub(crate) cgroup: Option<Delegation>,
}

impl Kernel {
    /// Probes the kernel; a guard has tested `has_namespaces`.
    pub(crate) fn probe(has_namespaces: bool) -> Self {
        let needed = CapabilitySet::SETUID
            | CapabilitySet::SETGID
            | CapabilitySet::CHOWN
            | CapabilitySet::KILL
            | CapabilitySet::DAC_OVERRIDE;
        Self {
            landlock: syscalls::landlock(),
            has_seccomp: fs::read_to_string("/proc/sys/kernel/seccomp/actions_avail")
                .is_ok_and(|actions| actions.contains("errno")),
            has_namespaces,
            has_users: rustix::thread::capabilities(None)
                .is_ok_and(|sets| sets.effective.contains(needed)),
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
    /// The configuration key that requires a missing capability, and the reason.
    pub(crate) fn offer(
        &self,
        wish: Option<Separation>,
        uids: Option<Uids>,
    ) -> Result<Offer, (&'static str, &'static str)> {
        let works = |separation: Separation| match separation {
            Separation::Uid => uids.is_some() && self.has_users,
            Separation::Namespace => self.has_namespaces,
            Separation::Landlock => self.landlock >= SCOPES_SINCE,
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
            Some(wish) => return Err(("sandbox.separation", why(wish))),
            // Configured uids must be used.
            None if uids.is_some() && !self.has_users => {
                return Err(("sandbox.uids", why(Separation::Uid)));
            }
            None => all
                .into_iter()
                .find(|&one| works(one))
                .unwrap_or(Separation::None),
        };
        let bounds = |controller: &str| {
            let cgroup = self.cgroup.as_ref();
            cgroup.is_some_and(|cgroup| cgroup.bounds(controller))
        };
        Ok(Offer {
            separation,
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

/// The sandbox of the children of one gateway.
#[derive(Debug)]
pub(crate) struct Sandbox {
    /// The restrictions that can be enforced.
    offer: Offer,
    /// Uids of children.
    uids: Option<Arc<Pool>>,
    /// Cgroups of children.
    groups: Option<Groups>,
    /// Files of the gateway hidden from children; none for `run`, whose server may use all files of
    /// its user.
    hide: Option<HiddenPaths>,
    /// Parts of the system that every child may read.
    system: Vec<PathBuf>,
}

impl Sandbox {
    /// A sandbox with the capabilities of `kernel`; `ports` are those of the gateway.
    pub(crate) fn new(
        kernel: &Kernel,
        offer: Offer,
        uids: Option<Uids>,
        hide: Option<HiddenPaths>,
        ports: &[u16],
    ) -> io::Result<Self> {
        let uids = uids.filter(|_| offer.separation == Separation::Uid);
        let delegated = kernel.cgroup.as_ref().filter(|group| group.is_delegated);
        let filter = offer
            .refuses_addresses
            .then_some(|group: &Path| Refused::on_this_machine(ports).apply(group));
        let groups = delegated.map(|delegation| Groups::create(delegation, filter));
        let groups = groups.transpose();
        let needs_groups = offer.bounds_memory || offer.bounds_cpu || offer.refuses_addresses;
        Ok(Self {
            offer,
            uids: uids.map(|uids| Arc::new(Pool::new(uids))),
            groups: match groups {
                Err(error) if needs_groups => return Err(error),
                groups => groups.unwrap_or_default(),
            },
            hide,
            system: files::system(),
        })
    }

    /// The restrictions that can be enforced here.
    pub(crate) fn offer(&self) -> &Offer {
        &self.offer
    }

    /// A sandbox without restrictions, for other tests.
    #[cfg(test)]
    pub(crate) fn none() -> Self {
        Self {
            offer: Offer {
                separation: Separation::None,
                landlock: 0,
                has_seccomp: false,
                bounds_memory: false,
                bounds_pids: false,
                bounds_cpu: false,
                refuses_addresses: false,
            },
            uids: None,
            groups: None,
            hide: None,
            system: Vec::new(),
        }
    }

    /// Leases a uid for a child, if each has its own.
    pub(crate) fn lease(&self) -> io::Result<Option<UidLease>> {
        let Some(uids) = &self.uids else {
            return Ok(None);
        };
        let none_left = || io::Error::other("no uid of sandbox.uids is free");
        uids.take().ok_or_else(none_left).map(Some)
    }

    /// Creates a cgroup for a child, if cgroups are delegated.
    pub(crate) fn group(
        &self,
        name: &str,
        launch: &Launch,
        limits: &Limits,
    ) -> io::Result<Option<PathBuf>> {
        let is_standard = launch.confinement.profile == Profile::Standard;
        let leaf = |groups: &Groups| groups.leaf(name, limits, is_standard);
        self.groups.as_ref().map(leaf).transpose()
    }

    /// Decides the restrictions of a child with this PATH, HOME and working directory.
    pub(crate) fn restrictions(
        &self,
        launch: &Launch,
        limits: &Limits,
        path: &OsStr,
        home: Option<&Path>,
        cwd: &Path,
    ) -> Restrictions {
        let (offer, wanted) = (&self.offer, &launch.confinement);
        let is_standard = wanted.profile == Profile::Standard;
        let by_group = self.groups.is_some() && offer.separation != Separation::Uid;
        Restrictions {
            uid: None,
            has_namespaces: offer.separation == Separation::Namespace,
            is_scoped: offer.landlock >= SCOPES_SINCE
                && (is_standard || offer.separation == Separation::Landlock),
            is_hardened: is_standard && offer.has_seccomp,
            landlock: offer.landlock,
            files: (is_standard && offer.landlock > 0).then(|| self.files(launch, path, home, cwd)),
            hide: self.hidden(),
            tcp: match &wanted.tcp {
                declare::Tcp::Off if offer.has_seccomp => Tcp::Off,
                declare::Tcp::Ports(ports) if offer.has_seccomp => Tcp::Ports(ports.clone()),
                _ => Tcp::Any,
            },
            processes: limits.pids.filter(|_| !by_group).map(u64::from),
            group: None,
            store: launch.prepared.clone().map(if launch.is_preparing {
                Store::Fill
            } else {
                Store::Read
            }),
        }
    }

    fn hidden(&self) -> Vec<PathBuf> {
        let found = self.hide.iter().flat_map(|hide| {
            let found = hide.existing().into_iter();
            found.chain(root_secrets(self.offer.separation))
        });
        found.collect()
    }

    fn files(&self, launch: &Launch, path: &OsStr, home: Option<&Path>, cwd: &Path) -> Files {
        let read = readable(&self.system, launch, path, home);
        let mut write = launch.confinement.write.clone();
        if launch.home == Home::Caller {
            write.push(cwd.to_owned());
        }
        Files { read, write }
    }
}

/// Files in system directories that children of root must not read.
fn root_secrets(separation: Separation) -> impl Iterator<Item = PathBuf> {
    let are_root = rustix::process::geteuid().is_root() && separation != Separation::Uid;
    let files = SECRETS.iter().filter(move |_| are_root);
    files.map(PathBuf::from)
}

/// Arguments of a server in profile `standard` that name unreadable files.
pub(crate) fn out_of_reach<'l>(
    launch: &'l Launch,
    path: &OsStr,
    home: Option<&Path>,
) -> Vec<&'l str> {
    let roots = readable(&files::system(), launch, path, home);
    let is_in_reach = |file: &Path| {
        let mut roots = roots.iter().chain(&launch.confinement.write);
        roots.any(|root| file.starts_with(root))
    };
    let args = launch.args.iter().map(String::as_str);
    args.filter(|_| launch.confinement.profile == Profile::Standard)
        .filter(|arg| Path::new(arg).is_absolute())
        .filter(|arg| fs::canonicalize(arg).is_ok_and(|file| !is_in_reach(&file)))
        .collect()
}

/// Files that a child in profile `standard` may read, besides those that it may write.
fn readable(
    system: &[PathBuf],
    launch: &Launch,
    path: &OsStr,
    home: Option<&Path>,
) -> Vec<PathBuf> {
    let homes: Vec<PathBuf> = home.into_iter().map(Path::to_owned).collect();
    let mut read = system.to_vec();
    read.extend(files::programs(OsStr::new(&launch.command), path, &homes));
    read.extend(launch.confinement.read.iter().cloned());
    read.extend(launch.cwd.clone());
    read
}

/// First Landlock ABI that scopes signals and abstract sockets (Linux 6.12).
const SCOPES_SINCE: u32 = 6;

/// Files readable for uid 0 alone.
const SECRETS: [&str; 6] = [
    "/etc/shadow",
    "/etc/shadow-",
    "/etc/gshadow",
    "/etc/gshadow-",
    "/etc/sudoers",
    "/etc/ssl/private",
];

#[cfg(test)]
mod tests {
    use super::super::machine::*;

    const BARE: Kernel = Kernel {
        landlock: 0,
        has_seccomp: false,
        has_namespaces: false,
        has_users: false,
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

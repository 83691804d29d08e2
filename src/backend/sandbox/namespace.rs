//! User and mount namespaces of a child: its user mapping, hidden paths and its own `/proc`.
//!
//! Not here: process 1 of these namespaces (`guard::init`).

use std::{
    fs, io,
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{Mode, OFlags, StatVfsMountFlags},
    mount::{MountFlags, MountPropagationFlags},
    process::DumpableBehavior,
};

use super::restrictions::Store;

/// User and group of a process before it entered a user namespace.
#[derive(Clone, Copy)]
pub(crate) struct User {
    uid: u32,
    gid: u32,
}

impl User {
    /// Those of this process.
    pub(crate) fn own() -> Self {
        Self {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        }
    }

    /// Maps them to themselves inside the namespace, and no other.
    pub(crate) fn map(self) -> io::Result<()> {
        // The maps of a process that is not dumpable belong to root.
        rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable)?;
        let Self { uid, gid } = self;
        fs::write("/proc/self/setgroups", "deny")?;
        fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
        fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))?;
        Ok(rustix::process::set_dumpable_behavior(
            DumpableBehavior::NotDumpable,
        )?)
    }
}

/// Sets up the mount namespace: hides `hide` except `private` and the store, and mounts `/proc`.
pub(crate) fn set_up(
    hide: &[PathBuf],
    private: Option<&Path>,
    store: Option<&Store>,
) -> io::Result<()> {
    let all = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", all)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let held = private.into_iter().chain(store.map(Store::path));
    let kept: Vec<(&Path, OwnedFd)> = held
        .map(|path| Ok((path, rustix::fs::open(path, flags, Mode::empty())?)))
        .collect::<io::Result<_>>()?;
    for path in hide {
        let Ok(kind) = fs::metadata(path) else {
            continue;
        };
        if kind.is_dir() {
            let inert = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
            rustix::mount::mount("tmpfs", path, "tmpfs", inert, Some(c"mode=0711,size=64k"))?;
        } else {
            rustix::mount::mount_bind("/dev/null", path)?;
        }
    }
    for (path, kept) in kept {
        // Exists already unless it was hidden.
        fs::create_dir_all(path)?;
        rustix::mount::mount_bind(format!("/proc/self/fd/{}", kept.as_raw_fd()), path)?;
    }
    if let Some(Store::Read(path)) = store {
        remount_read_only(path)?;
    }
    let proc = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    Ok(rustix::mount::mount("proc", "/proc", "proc", proc, None)?)
}

/// Remounts a mount read-only.
fn remount_read_only(path: &Path) -> io::Result<()> {
    let mut flags = MountFlags::BIND | MountFlags::RDONLY;
    // Flags of the mount below cannot be dropped.
    let below = rustix::fs::statvfs(path)?.f_flag;
    for (set, flag) in [
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
    ] {
        if below.contains(set) {
            flags |= flag;
        }
    }
    Ok(rustix::mount::mount_remount(path, flags, "")?)
}

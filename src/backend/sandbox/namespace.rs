//! User and mount namespaces of a child: its user mapping, hidden paths, its own `/proc` and shared
//! memory.
//!
//! Not here: process 1 of these namespaces (`guard::init`).

use std::{
    fs, io,
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{Mode, OFlags, StatVfsMountFlags},
    io::Errno,
    mount::{MountFlags, MountPropagationFlags},
    process::DumpableBehavior,
};

use super::{
    cgroup,
    restrictions::{Files, Restrictions, Sockets, Store},
    root::{self, Root},
};
use crate::backend::linux::syscalls::set_read_only;

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

/// Sets up the mount namespace: hides what is to be hidden except `private` and the store, and mounts
/// shared memory and, in a pid namespace, `/proc`.
pub(crate) fn set_up(restrictions: &Restrictions, private: Option<&Path>) -> io::Result<()> {
    let all = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", all)?;
    let store = restrictions.store.as_ref();
    let shown: Vec<&Path> = private.into_iter().chain(store.map(Store::path)).collect();
    let has_own_processes = restrictions.has_own_processes();
    let mut has_root = false;
    if let (Sockets::Root(sockets), Some(files)) = (&restrictions.sockets, &restrictions.files) {
        has_root = true;
        root::enter(files, sockets, has_own_processes)?;
        hide(&restrictions.hide)?;
        // What is hidden has new directories.
        let mut root = Root::default();
        shown.iter().try_for_each(|path| root.show(path, false))?;
    } else if has_own_processes {
        let kept = hold(&shown)?;
        hide(&restrictions.hide)?;
        show_again(kept)?;
    }
    if let (false, Some(files)) = (has_root, &restrictions.files) {
        close_for_writing(files, &shown)?;
    }
    // Elsewhere it is no mount, and belongs to another uid.
    if let Some(Store::Read(path)) = store.filter(|_| has_root || has_own_processes) {
        remount_read_only(path)?;
    }
    own_shared_memory(restrictions)?;
    if has_own_processes {
        rustix::mount::mount("proc", "/proc", "proc", INERT, None)?;
    }
    if has_root {
        root::leave_former()?;
    }
    if has_own_processes && restrictions.group.is_some() {
        close_groups()?;
    }
    Ok(())
}

/// Makes all cgroups read-only: the child has the uid of the gateway, which owns its cgroup, and could raise
/// its limits or leave it.
fn close_groups() -> io::Result<()> {
    for mount in cgroup::mounts() {
        match set_read_only(&mount, true).map_err(|error| Errno::from_io_error(&error)) {
            // Behind another mount, or out of reach of the child, too.
            Ok(()) | Err(Some(Errno::INVAL | Errno::NOENT | Errno::ACCESS | Errno::NOTDIR)) => {}
            Err(error) => return Err(error.unwrap_or(Errno::IO).into()),
        }
    }
    // In a user namespace and a cgroup namespace of its own it could mount them again. Some containers refuse this.
    _ = fs::write("/proc/sys/user/max_cgroup_namespaces", "0");
    Ok(())
}

/// Opens directories, so that they can be shown again after they are hidden.
fn hold<'p>(paths: &[&'p Path]) -> io::Result<Vec<(&'p Path, OwnedFd)>> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let held = paths
        .iter()
        .map(|&path| Ok((path, rustix::fs::open(path, flags, Mode::empty())?)));
    held.collect()
}

fn hide(paths: &[PathBuf]) -> io::Result<()> {
    for path in paths {
        let Ok(kind) = fs::metadata(path) else {
            continue;
        };
        if kind.is_dir() {
            rustix::mount::mount("tmpfs", path, "tmpfs", INERT, Some(c"mode=0711,size=64k"))?;
        } else {
            rustix::mount::mount_bind("/dev/null", path)?;
        }
    }
    Ok(())
}

/// Makes all mounts read-only but those of files that the child may write, and of `shown`.
///
/// Landlock lets an owner change modes, owners, times and attributes of files that it may not write.
fn close_for_writing(files: &Files, shown: &[&Path]) -> io::Result<()> {
    let written = files.write.iter().map(PathBuf::as_path);
    let open: Vec<&Path> = written.chain(shown.iter().copied()).collect();
    let exist: Vec<&Path> = open.into_iter().filter(|path| path.exists()).collect();
    for &path in &exist {
        rustix::mount::mount_bind_recursive(path, path)?;
    }
    set_read_only(Path::new("/"), true)?;
    for path in exist {
        match set_read_only(path, false) {
            // It was read-only before, and locked.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            outcome => outcome?,
        }
    }
    Ok(())
}

fn show_again(kept: Vec<(&Path, OwnedFd)>) -> io::Result<()> {
    for (path, kept) in kept {
        // Exists already unless it was hidden.
        fs::create_dir_all(path)?;
        rustix::mount::mount_bind(format!("/proc/self/fd/{}", kept.as_raw_fd()), path)?;
    }
    Ok(())
}

/// Mounts shared memory of POSIX (`shm_overview(7)`) for this child alone, unless it was given that of
/// the machine.
fn own_shared_memory(restrictions: &Restrictions) -> io::Result<()> {
    let files = restrictions.files.iter();
    let mut given = files.flat_map(|files| &files.write);
    if given.any(|path| path.starts_with(SHARED_MEMORY)) || !Path::new(SHARED_MEMORY).is_dir() {
        return Ok(());
    }
    let options = Some(c"mode=1777,size=64m");
    Ok(rustix::mount::mount(
        "tmpfs",
        SHARED_MEMORY,
        "tmpfs",
        INERT,
        options,
    )?)
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

/// Shared memory of POSIX.
pub(super) const SHARED_MEMORY: &str = "/dev/shm";

/// Flags of mounts without programs and devices.
const INERT: MountFlags = MountFlags::NOSUID
    .union(MountFlags::NODEV)
    .union(MountFlags::NOEXEC);

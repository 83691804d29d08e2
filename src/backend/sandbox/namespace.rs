//! The first process of a child's namespaces: it furnishes them, and ends with the server.
//!
//! Not here: making them (`launch`), and what becomes of the server (`confine`).

use std::{
    fs, io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{Mode, OFlags, StatVfsMountFlags},
    io::Errno,
    mount::{MountFlags, MountPropagationFlags},
    process::{DumpableBehavior, Pid, Signal, WaitOptions},
};

use super::confine;
use crate::backend::guard::{
    Clone, Orders, Store, launch,
    tree::{is_readable, wait_for},
};

/// The user and group that a process was before it came into a user namespace.
#[derive(Clone, Copy)]
pub(crate) struct User {
    uid: u32,
    gid: u32,
}

impl User {
    /// This process's own.
    pub(crate) fn own() -> Self {
        Self {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        }
    }

    /// Says who it is inside: the same as outside, without any right over others.
    pub(crate) fn map(self) -> io::Result<()> {
        // What is not dumpable belongs to root, its maps too.
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

/// Furnishes the mount namespace: nothing of `hide` but `private` and the store, and a `/proc` of
/// its own.
pub(crate) fn furnish(
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
        // Where nothing hid it, it is still there.
        fs::create_dir_all(path)?;
        rustix::mount::mount_bind(format!("/proc/self/fd/{}", kept.as_raw_fd()), path)?;
    }
    if let Some(Store::Read(path)) = store {
        only_read(path)?;
    }
    let proc = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    Ok(rustix::mount::mount("proc", "/proc", "proc", proc, None)?)
}

/// Makes a mount such that nothing can be written to it.
fn only_read(path: &Path) -> io::Result<()> {
    let mut flags = MountFlags::BIND | MountFlags::RDONLY;
    // What the mount below forbids cannot be allowed here.
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

/// Process 1: starts the server, buries what dies, and ends as the server did.
///
/// With it ends, by the kernel's doing, everything in its namespaces.
pub(crate) fn first(orders: &Orders, user: User, guard: &OwnedFd) -> io::Result<i32> {
    rustix::process::setsid()?;
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // A guard that ended before the line above sends no signal any more.
    if is_readable(guard) {
        return Ok(0);
    }
    _ = rustix::thread::set_name(c"lockgate-init");
    user.map()?;
    let cage = &orders.cage;
    furnish(&cage.hide, orders.private.as_deref(), cage.store.as_ref())?;
    let signals = launch::signals()?;
    let Clone::Parent(server) = launch::clone(0, None)? else {
        let error = confine::become_server(orders, Pid::from_raw(1));
        std::process::exit(launch::refuse(&orders.command, &error))
    };
    launch::drop_streams()?;
    loop {
        wait_for(&[signals.as_fd()], None);
        match launch::next_signal(&signals) {
            Some(launch::CHILD_ENDED) => {
                if let Some(code) = buried(server) {
                    return Ok(code);
                }
            }
            Some(_) => _ = rustix::process::kill_process_group(server, Signal::TERM),
            None => {}
        }
    }
}

/// Buries the dead; how the server ended, once it has.
fn buried(server: Pid) -> Option<i32> {
    let mut code = None;
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if pid == server => {
                let killed = status.terminating_signal().map(|signal| 128 + signal);
                code = status.exit_status().or(killed);
            }
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) | Err(_) => return code,
        }
    }
}

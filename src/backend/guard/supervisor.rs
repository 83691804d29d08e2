//! Guard process: starts the server, and kills every process below it at its end.
//!
//! A guard is forked from the zygote, before any runtime, thread or large allocation. It also
//! outlives a gateway that was killed. Not here: the process of the server until `exec` (`exec`), and
//! the side of the gateway (`child`).

use std::{
    fs::{self, File},
    io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
    time::Duration,
};

use rustix::{
    event::{EventfdFlags, eventfd},
    fs::FlockOperation,
    process::{DumpableBehavior, Pid, PidfdFlags, Signal},
};

use super::{
    exec::{NO_PROCESS, NOT_STARTED, become_server, refuse, refuse_process},
    init,
    protocol::LaunchRequest,
    tree::{Left, Tree},
};
use crate::backend::{
    linux::{
        Clone,
        poll::{is_readable, wait_for},
        removal,
        syscalls::{
            CHILD_ENDED, clone, close_all_but_streams, drop_streams, end_by, next_signal, null,
            read_exact, signals,
        },
    },
    sandbox::{Namespaces, User, namespace::set_up},
};

impl LaunchRequest {
    /// Reads exactly one message from stdin: the rest belongs to the server. Of one that is cut off, since its server is
    /// not wanted any more, the private directory is removed: it may have secrets.
    fn receive() -> io::Result<Self> {
        let mut length = [0; 4];
        read_exact(&mut length)?;
        let length = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
        if length > MAX_ORDERS {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut body = vec![0; length];
        if let Err(error) = read_exact(&mut body) {
            remove(Self::private_in(&body).as_deref(), None);
            return Err(error);
        }
        Self::decode(&body).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

/// Stage guard: starts the server, and stays until no process is left below it.
///
/// In a process with one thread, whose streams are pipes of the gateway.
pub(super) fn supervise(gateway: Pid) -> io::Result<i32> {
    let Some(ready) = make_ready(gateway).transpose() else {
        return Ok(0);
    };
    let request = LaunchRequest::receive()?;
    let LaunchRequest {
        private,
        restrictions,
        ..
    } = &request;
    let (private, group) = (private.clone(), restrictions.group.clone());
    let (uid, leaves_ipc) = (restrictions.uid, restrictions.leaves_ipc());
    // Locked while this process lives: a gateway removes directories without a lock.
    let _held = private.as_deref().map(hold);
    // Whatever fails before the server starts, its private directory goes; afterwards nothing may fail.
    let started = ready.and_then(|ready| Ok((ready, start(&request)?)));
    let ((watched, signals), started) = match started {
        Ok(started) => started,
        Err(error) => {
            remove(private.as_deref(), group.as_deref());
            if refuse_process(&request.command, &error) {
                end_by(NO_PROCESS);
            }
            return Ok(NOT_STARTED);
        }
    };
    drop(request);
    let Started {
        server,
        shortage,
        null,
    } = started;
    // The guard must hold no end of the pipes, or an end of file would not get through.
    drop_streams(&null);
    _ = rustix::process::chdir("/");
    let mut tree = Tree {
        server,
        code: None,
        group: group.as_deref(),
        uid,
    };
    watch(&mut tree, &watched, &signals);
    if !tree.kill_all(&signals) {
        // The gateway tells a guard that was killed from one whose child has ended, and says so.
        let own = rustix::process::getpid();
        _ = rustix::process::kill_process(own, Signal::KILL);
    }
    if leaves_ipc {
        tree.remove_ipc();
    }
    remove(private.as_deref(), group.as_deref());
    // Only what has not become the server yet can write to it.
    if is_readable(&shortage) {
        end_by(NO_PROCESS);
    }
    Ok(tree.code.unwrap_or(128 + libc::SIGKILL))
}

/// Prepares this process for a server: a descriptor of the gateway, and one of signals; none if the gateway is gone.
fn make_ready(gateway: Pid) -> io::Result<Option<(OwnedFd, OwnedFd)>> {
    close_all_but_streams()?;
    _ = rustix::thread::set_name(c"lockgate-guard");
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let signals = signals()?;
    let watched = rustix::process::pidfd_open(gateway, PidfdFlags::empty());
    // In this order: a parent that still has this number is the one that the pidfd holds.
    if rustix::process::getppid() != Some(gateway) {
        return Ok(None);
    }
    Ok(Some((watched?, signals)))
}

/// Waits for the end of the server, or of the gateway, or for the signal that ends both.
fn watch(tree: &mut Tree<'_>, gateway: &OwnedFd, signals: &OwnedFd) {
    let mut left = Left::Running;
    while tree.code.is_none() {
        // Their signal was heard already.
        let at_once = (left == Left::Ended).then_some(Duration::ZERO);
        wait_for(&[gateway.as_fd(), signals.as_fd()], at_once);
        if is_readable(gateway) {
            break;
        }
        match next_signal(signals) {
            Some(CHILD_ENDED) => left = tree.reap(),
            Some(libc::SIGUSR1) => tree.terminate(),
            Some(_) => break,
            None if at_once.is_some() => left = tree.reap(),
            None => {}
        }
    }
}

/// A server that was started.
struct Started {
    server: Pid,
    /// Readable if the machine has no process for it.
    shortage: OwnedFd,
    /// The file for the streams of this process: on a machine without descriptors none could be opened later, when the
    /// server runs.
    null: File,
}

/// Starts the server with stdin, stdout and stderr of this process.
///
/// A plain clone suffices instead of a second start of this program: this process has one thread,
/// and the copy has the request.
fn start(request: &LaunchRequest) -> io::Result<Started> {
    let restrictions = &request.restrictions;
    let (own, user) = (rustix::process::getpid(), User::own());
    let guard = rustix::process::pidfd_open(own, PidfdFlags::empty())?;
    let shortage = eventfd(0, EventfdFlags::CLOEXEC)?;
    let null = null()?;
    if restrictions.has_own_processes() {
        // Not possible inside; outside only for root.
        _ = rustix::thread::set_thread_groups(&[]);
    }
    let group = restrictions.group.as_ref().map(File::open).transpose()?;
    match clone(
        flags(restrictions.namespaces),
        group.as_ref().map(AsFd::as_fd),
    )? {
        Clone::Parent(server) => Ok(Started {
            server,
            shortage,
            null,
        }),
        Clone::Child => {
            let outcome = match restrictions.namespaces {
                Namespaces::All => init::run(request, user, &guard, &shortage, &null),
                Namespaces::Mounts => set_up(restrictions, request.private.as_deref())
                    .and_then(|()| Err(become_server(request, Some(own)))),
                Namespaces::None => Err(become_server(request, Some(own))),
            };
            let code = outcome.unwrap_or_else(|error| refuse(&request.command, &error));
            std::process::exit(code)
        }
    }
}

/// The flags of `clone(2)` for namespaces.
pub(super) fn flags(namespaces: Namespaces) -> i32 {
    let mounts = libc::CLONE_NEWNS | libc::CLONE_NEWIPC;
    match namespaces {
        Namespaces::None => 0,
        Namespaces::Mounts => mounts,
        Namespaces::All => libc::CLONE_NEWUSER | libc::CLONE_NEWPID | mounts,
    }
}

/// Removes the private directory and the cgroup of a tree that has ended.
fn remove(private: Option<&Path>, group: Option<&Path>) {
    if let Some(path) = private {
        // Errors have no reader here; the gateway looks for leftovers.
        _ = removal::remove_patiently(path);
    }
    if let Some(group) = group {
        _ = fs::remove_dir(group);
    }
}

/// Locks a private directory that this process will remove, so that `Launcher::tidy` leaves it.
/// A file system without locks has none to check either.
fn hold(path: &Path) -> io::Result<File> {
    let dir = File::open(path)?;
    rustix::fs::flock(&dir, FlockOperation::NonBlockingLockShared)?;
    Ok(dir)
}

/// Limit of a message, above the size of any environment.
const MAX_ORDERS: usize = 16 << 20;

//! Process of a server until `exec`: limits, user, capabilities, Landlock and seccomp.
//!
//! No step can be undone, so the order matters: a step that needs a right comes before the step that
//! drops it. Not here: the choice of restrictions (`sandbox`).

use std::{
    ffi::OsStr,
    fs,
    io::{self, Write},
};

use rustix::{
    fs::Mode,
    io::Errno,
    process::{Pid, Resource, Rlimit, Signal},
    thread::{CapabilitiesSecureBits, CapabilitySet, CapabilitySets},
};

use super::protocol::LaunchRequest;
use crate::backend::{
    linux::{ipc, syscalls},
    sandbox::{Scheduling, domain, seccomp},
};

/// Becomes the server of `request`; returns only the error.
///
/// The process ends with `parent`.
pub(super) fn become_server(request: &LaunchRequest, parent: Option<Pid>) -> io::Error {
    match confine(request, parent) {
        Ok(()) => syscalls::exec(&request.command, &request.args, &request.env),
        Err(error) => error,
    }
}

fn confine(request: &LaunchRequest, parent: Option<Pid>) -> io::Result<()> {
    let restrictions = &request.restrictions;
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
    rustix::process::setsid()?;
    yield_to_gateway(restrictions.scheduling)?;
    limit(Resource::Nofile, request.files)?;
    limit(Resource::Fsize, request.file_size)?;
    limit(Resource::Core, 0)?;
    if let Some(processes) = restrictions.processes {
        limit(Resource::Nproc, processes)?;
    }
    // A Landlock domain does not confine a process with capabilities: CAP_PERFMON alone reads the
    // memory maps and the environment of any process (Linux 6.13, `may_access_mm`).
    let loses_capabilities = restrictions.is_hardened || restrictions.is_apart();
    if loses_capabilities {
        bound_capabilities();
    }
    if let Some(uid) = restrictions.uid {
        become_user(uid)?;
    }
    if restrictions.inherits_ipc() {
        // The guard of an earlier child with this uid may have been killed. Also before the filter of system calls, which
        // denies these: its memory and its part of the machine's limits are taken until then.
        ipc::remove_own();
    }
    if loses_capabilities {
        let none = CapabilitySet::empty();
        let (effective, permitted, inheritable) = (none, none, none);
        let sets = CapabilitySets {
            effective,
            permitted,
            inheritable,
        };
        rustix::thread::set_capabilities(None, sets)?;
    }
    // After the change of user, which clears it.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // A parent that ended before the line above sends no signal.
    if rustix::process::getppid() != parent {
        return Err(io::ErrorKind::Interrupted.into());
    }
    rustix::process::chdir(&request.cwd)?;
    rustix::thread::set_no_new_privs(true)?;
    // The gateway's allocator forbids huge pages, and execve keeps that.
    _ = rustix::thread::disable_transparent_huge_pages(false);
    syscalls::default_signals();
    syscalls::close_all_but_streams()?;
    let private = request.private.as_deref();
    domain::restrict(restrictions, private).map_err(|error| step("Landlock", &error))?;
    seccomp::apply(restrictions).map_err(|error| step("seccomp", &error))
}

/// Takes less of the processors than the gateway, while that wants them.
fn yield_to_gateway(scheduling: Scheduling) -> io::Result<()> {
    let Scheduling { nice, is_batch } = scheduling;
    if is_batch {
        // A kernel or a sandbox that does not permit it costs time only.
        _ = syscalls::become_batch();
    }
    if nice == 0 {
        return Ok(());
    }
    rustix::process::nice(nice.into())?;
    // Where the kernel groups processes by session (sched(7), autogroup), niceness counts within a
    // session only, and a session has one of its own. Only root may set that of a process that is not
    // dumpable; in a cgroup with the controller cpu it has no effect.
    _ = fs::write("/proc/self/autogroup", nice.to_string());
    Ok(())
}

fn step(name: &str, error: &io::Error) -> io::Error {
    io::Error::other(format!("cannot be confined by {name}: {error}"))
}

/// Sets the soft and the hard limit, at most to the present hard limit.
fn limit(resource: Resource, value: u64) -> io::Result<()> {
    let hard = rustix::process::getrlimit(resource)
        .maximum
        .unwrap_or(u64::MAX);
    let value = Some(value.min(hard)).filter(|&value| value != u64::MAX);
    let (current, maximum) = (value, value);
    Ok(rustix::process::setrlimit(
        resource,
        Rlimit { current, maximum },
    )?)
}

/// Changes to the child's own uid and gid, without further groups.
fn become_user(uid: u32) -> io::Result<()> {
    let (user, group) = (
        rustix::fs::Uid::from_raw(uid),
        rustix::fs::Gid::from_raw(uid),
    );
    rustix::thread::set_thread_groups(&[])?;
    rustix::thread::set_thread_res_gid(group, group, group)?;
    Ok(rustix::thread::set_thread_res_uid(user, user, user)?)
}

/// Drops capabilities for every program that is executed later.
///
/// A process without the right to drop them has none; `no_new_privs` holds in any case.
fn bound_capabilities() {
    _ = rustix::thread::clear_ambient_capability_set();
    for capability in CapabilitySet::all().iter() {
        _ = rustix::thread::remove_capability_from_bounding_set(capability);
    }
    let no_root = CapabilitiesSecureBits::NO_ROOT | CapabilitiesSecureBits::NO_ROOT_LOCKED;
    _ = rustix::thread::set_capabilities_secure_bits(no_root);
}

/// Writes the reason why a command did not start to stderr, as one line.
pub(super) fn refuse(command: &OsStr, error: &io::Error) -> i32 {
    let line = format!("lockgate: cannot start {}: {error}\n", command.display());
    _ = io::stderr().write_all(line.as_bytes());
    NOT_STARTED
}

/// The same of a command that there is no process for; returns whether it is the machine that has none left, which the
/// gateway has to know.
pub(super) fn refuse_process(command: &OsStr, error: &io::Error) -> bool {
    refuse(command, error);
    Errno::from_io_error(error).is_some_and(|errno| {
        matches!(
            errno,
            Errno::AGAIN | Errno::NOMEM | Errno::NFILE | Errno::MFILE
        )
    })
}

/// The exit code of shells for a command that could not be started.
pub(super) const NOT_STARTED: i32 = 127;

/// The signal by which a guard ends itself whose machine had no process left for the server. No exit code says so: each
/// of them may be the server's own.
pub(crate) const NO_PROCESS: Signal = Signal::USR2;

#[cfg(test)]
mod tests {
    use super::super::exec::*;

    #[test]
    fn a_machine_without_processes_is_told_from_a_command_that_cannot_be_started() {
        for (errno, is_shortage) in [
            (Errno::AGAIN, true),
            (Errno::NOMEM, true),
            (Errno::INVAL, false),
            (Errno::PERM, false),
        ] {
            let told = refuse_process(OsStr::new("x"), &errno.into());
            assert_eq!(told, is_shortage, "{errno}");
        }
    }
}

//! Process 1 of the namespaces of a child: sets them up, starts the server and ends with it.
//!
//! Not here: the creation of the namespaces (`supervisor`).

use std::{
    fs::File,
    io,
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

use rustix::{
    io::Errno,
    process::{Pid, Signal, WaitOptions},
};

use super::{
    exec::{NOT_STARTED, become_server, refuse, refuse_process},
    protocol::LaunchRequest,
};
use crate::backend::{
    linux::{
        Clone,
        poll::{is_readable, wait_for},
        syscalls::{CHILD_ENDED, clone, drop_streams, next_signal, signals},
    },
    sandbox::{User, namespace::set_up},
};

/// Starts the server, reaps processes, and exits with the server's code. If the machine has no process for it, it writes
/// to `shortage`: its own code could be the server's. `null` takes the place of its streams.
///
/// The kernel then ends every process of the namespaces.
pub(super) fn run(
    request: &LaunchRequest,
    user: User,
    guard: &OwnedFd,
    shortage: &OwnedFd,
    null: &File,
) -> io::Result<i32> {
    rustix::process::setsid()?;
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // A guard that ended before the line above sends no signal.
    if is_readable(guard) {
        return Ok(0);
    }
    _ = rustix::thread::set_name(c"lockgate-init");
    user.map()?;
    set_up(&request.restrictions, request.private.as_deref())?;
    let signals = signals()?;
    let server = match clone(0, None) {
        Ok(Clone::Parent(server)) => server,
        Ok(Clone::Child) => {
            let error = become_server(request, Pid::from_raw(1));
            std::process::exit(refuse(&request.command, &error))
        }
        // In a cgroup it may be the limit of the server itself.
        Err(error) if request.restrictions.group.is_some() => return Err(error),
        Err(error) => {
            if refuse_process(&request.command, &error) {
                _ = rustix::io::write(shortage, &1_u64.to_ne_bytes());
            }
            return Ok(NOT_STARTED);
        }
    };
    drop_streams(null);
    let mut has_ended = false;
    loop {
        // Processes may end as fast as they are reaped: a signal is heard in between.
        let at_once = has_ended.then_some(Duration::ZERO);
        wait_for(&[signals.as_fd()], at_once);
        match next_signal(&signals) {
            Some(CHILD_ENDED) => has_ended = true,
            Some(_) => _ = rustix::process::kill_process_group(server, Signal::TERM),
            None => {}
        }
        if has_ended {
            match reap(server)? {
                Reaped::Server(code) => return Ok(code),
                Reaped::Another => {}
                Reaped::None => has_ended = false,
            }
        }
    }
}

/// What has ended.
enum Reaped {
    /// The server, with this exit code.
    Server(i32),
    /// Another process.
    Another,
    /// No process.
    None,
}

/// Reaps one process that has ended.
fn reap(server: Pid) -> io::Result<Reaped> {
    Ok(match rustix::process::wait(WaitOptions::NOHANG) {
        Ok(Some((pid, status))) if pid == server => {
            let killed = status.terminating_signal().map(|signal| 128 + signal);
            Reaped::Server(status.exit_status().or(killed).unwrap_or_default())
        }
        Ok(Some(_)) | Err(Errno::INTR) => Reaped::Another,
        Ok(None) => Reaped::None,
        Err(error) => return Err(error.into()),
    })
}

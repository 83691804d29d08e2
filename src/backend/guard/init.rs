//! Process 1 of the namespaces of a child: sets them up, starts the server and ends with it.
//!
//! Not here: the creation of the namespaces (`supervisor`).

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

use rustix::{
    io::Errno,
    process::{Pid, Signal, WaitOptions},
};

use super::{
    exec::{become_server, refuse},
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

/// Starts the server, reaps processes, and exits with the server's code.
///
/// The kernel then ends every process of the namespaces.
pub(super) fn run(request: &LaunchRequest, user: User, guard: &OwnedFd) -> io::Result<i32> {
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
    let Clone::Parent(server) = clone(0, None)? else {
        let error = become_server(request, Pid::from_raw(1));
        std::process::exit(refuse(&request.command, &error))
    };
    drop_streams()?;
    loop {
        wait_for(&[signals.as_fd()], None);
        match next_signal(&signals) {
            Some(CHILD_ENDED) => {
                if let Some(code) = reap(server) {
                    return Ok(code);
                }
            }
            Some(_) => _ = rustix::process::kill_process_group(server, Signal::TERM),
            None => {}
        }
    }
}

/// Reaps processes; returns the exit code of the server once it has ended.
fn reap(server: Pid) -> Option<i32> {
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

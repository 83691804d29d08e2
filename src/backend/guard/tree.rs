//! Process tree below a guard: SIGTERM to the server, SIGKILL to every process.
//!
//! Not here: the start of the tree (`supervisor`), and when each signal is due (`child::stop`).

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::Read,
    os::fd::{AsFd, OwnedFd},
    path::Path,
    time::Duration,
};

use rustix::{
    io::Errno,
    process::{Pid, PidfdFlags, Signal, WaitOptions},
    thread::{CapabilitySet, CapabilitySets},
};

use crate::backend::linux::{
    Clone, ipc,
    poll::wait_for,
    syscalls::{clone, next_signal},
};

/// All processes below the guard.
pub(super) struct Tree<'o> {
    /// The server, which leads its process group and session; with namespaces their process 1,
    /// which forwards signals.
    pub(crate) server: Pid,
    /// Exit code of the server, by the convention of shells; none while it runs.
    pub(crate) code: Option<i32>,
    /// Cgroup of all of them, if any.
    pub(crate) group: Option<&'o Path>,
    /// Uid that all of them have, and no other process.
    pub(crate) uid: Option<u32>,
}

/// What a pass over the processes below has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// No process.
    Nothing,
    /// Processes that run.
    Running,
    /// Maybe some that have ended as well.
    Ended,
}

impl Tree<'_> {
    /// Reaps processes that have ended, at most as many as one pass may: with a child that forks all the time it
    /// would find more without end, and hear no signal.
    ///
    /// The guard is a subreaper: without a child of its own no process is left below it.
    pub(super) fn reap(&mut self) -> Left {
        for _ in 0..PASS {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.server => {
                    let killed = status.terminating_signal().map(|signal| 128 + signal);
                    self.code = status.exit_status().or(killed);
                }
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => return Left::Running,
                Err(_) => return Left::Nothing,
            }
        }
        Left::Ended
    }

    /// Terminates the server and its process group by SIGTERM.
    pub(crate) fn terminate(&self) {
        // Before the server has made its group, only the process exists. After it is reaped, its id
        // may belong to another process.
        if self.code.is_none()
            && rustix::process::kill_process_group(self.server, Signal::TERM).is_err()
        {
            _ = rustix::process::kill_process(self.server, Signal::TERM);
        }
    }

    /// Kills every process below, in rounds until none is left; false if some are left all the same.
    pub(crate) fn kill_all(&mut self, signals: &OwnedFd) -> bool {
        if let Some(group) = self.group {
            // All at once; before Linux 5.14 the rounds below do it.
            _ = fs::write(group.join("cgroup.kill"), "1");
        }
        for _ in 0..ROUNDS {
            if self.reap() == Left::Nothing || self.kill_at_once() && self.have_ended(signals) {
                return true;
            }
            // Processes that fork and end all the time may be gone from where this finds them.
            if self.code.is_none() {
                _ = rustix::process::kill_process_group(self.server, Signal::STOP);
            }
            for (pid, parent) in Self::freeze() {
                signal_process(pid, parent, Signal::KILL);
            }
            if self.have_ended(signals) {
                return true;
            }
        }
        false
    }

    /// Removes the System V objects and message queues of the uid, by a process with it: its owner may. No other process
    /// has the uid by now.
    pub(super) fn remove_ipc(&self) {
        let Some(uid) = self.uid else { return };
        match clone(0, None) {
            Ok(Clone::Parent(helper)) => {
                _ = rustix::process::waitpid(Some(helper), WaitOptions::empty());
            }
            Ok(Clone::Child) => {
                if has_become(uid) {
                    ipc::remove_own();
                }
                std::process::exit(0)
            }
            // The next child with the uid does it.
            Err(_) => {}
        }
    }

    /// Kills every process below, at once, so that none can outrun it by forking; false if that cannot be
    /// tried here.
    fn kill_at_once(&self) -> bool {
        self.uid.is_some_and(kill_user)
    }

    /// Waits a while for the end of every process below.
    fn have_ended(&mut self, signals: &OwnedFd) -> bool {
        for _ in 0..10 {
            match self.reap() {
                Left::Nothing => return true,
                Left::Ended => continue,
                Left::Running => {}
            }
            wait_for(&[signals.as_fd()], Some(Duration::from_millis(20)));
            while next_signal(signals).is_some() {}
        }
        false
    }

    /// Stops every process below, until a walk finds no further one.
    ///
    /// A stopped process cannot fork, so the last walk has seen all of them.
    fn freeze() -> BTreeMap<i32, i32> {
        let mut stopped = BTreeMap::new();
        for _ in 0..ROUNDS {
            let mut is_new = false;
            for (pid, parent) in below() {
                if stopped.insert(pid, parent).is_none() {
                    signal_process(pid, parent, Signal::STOP);
                    is_new = true;
                }
            }
            if !is_new {
                break;
            }
        }
        stopped
    }
}

/// Kills all processes that this one may signal, except itself: those of a child's uid.
///
/// The kernel passes through them under the lock that a fork needs for its new process, and a process with
/// a pending signal does not fork.
fn kill_all_in_reach() {
    // kill(2): −1 is no group, but all.
    _ = rustix::process::kill_process_group(Pid::INIT, Signal::KILL);
}

/// Has a new process with this uid, of a child, kill all processes that have it; false if there is none.
///
/// They may end or stop the new process before it does that: it is not waited for, and tried again.
fn kill_user(uid: u32) -> bool {
    match clone(0, None) {
        Ok(Clone::Parent(_)) => true,
        Ok(Clone::Child) => {
            if has_become(uid) {
                kill_all_in_reach();
            }
            std::process::exit(0)
        }
        Err(_) => false,
    }
}

/// Changes to a uid other than that of this process, without the right to signal processes of others; whether
/// all of that was done.
fn has_become(uid: u32) -> bool {
    let (user, own) = (rustix::fs::Uid::from_raw(uid), rustix::process::geteuid());
    let only = CapabilitySet::SETUID;
    let (effective, permitted, inheritable) = (only, only, CapabilitySet::empty());
    let sets = CapabilitySets {
        effective,
        permitted,
        inheritable,
    };
    // The uid comes last: from then on processes with it may signal this one.
    let changed = || -> rustix::io::Result<bool> {
        rustix::thread::set_capabilities(None, sets)?;
        let left = rustix::thread::capabilities(None)?;
        if user.is_root() || user == own || !only.contains(left.permitted | left.effective) {
            return Ok(false);
        }
        rustix::thread::set_thread_res_uid(user, user, user)?;
        Ok(rustix::process::geteuid() == user && rustix::process::getuid() == user)
    };
    changed() == Ok(true)
}

/// All processes below this one, with their parents.
fn below() -> BTreeMap<i32, i32> {
    let own = rustix::process::getpid().as_raw_pid();
    let names = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = names.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let mut others: BTreeMap<i32, i32> = pids
        .filter_map(|pid| Some((pid, parent_of(pid)?)))
        .collect();
    let mut found = BTreeMap::new();
    loop {
        let before = found.len();
        others.retain(|&pid, &mut parent| {
            let is_below = parent == own || found.contains_key(&parent);
            if is_below {
                found.insert(pid, parent);
            }
            !is_below
        });
        if found.len() == before {
            return found;
        }
    }
}

/// Parent of a process; none if the process does not exist.
fn parent_of(pid: i32) -> Option<i32> {
    let mut text = [0; 256];
    let length = File::open(format!("/proc/{pid}/stat"))
        .ok()?
        .read(&mut text)
        .ok()?;
    // `pid (name) state parent …`, where the name may contain any character.
    let end = text[..length].iter().rposition(|&byte| byte == b')')?;
    let rest = std::str::from_utf8(&text[end + 1..length]).ok()?;
    rest.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Signals a process found below, unless its id was reused.
fn signal_process(pid: i32, parent: i32, signal: Signal) {
    let Some(number) = Pid::from_raw(pid) else {
        return;
    };
    let Ok(process) = rustix::process::pidfd_open(number, PidfdFlags::empty()) else {
        return;
    };
    // The id may have been reused since the walk: only a process that still has this parent, or
    // was orphaned to this one, is meant.
    let now = parent_of(pid);
    if now == Some(parent) || now == Some(rustix::process::getpid().as_raw_pid()) {
        _ = rustix::process::pidfd_send_signal(&process, signal);
    }
}

/// The most processes that are reaped at once: a fraction of a millisecond.
const PASS: usize = 256;

/// The most rounds: a tree that survives them cannot be killed (uninterruptible sleep).
const ROUNDS: usize = 100;

#[cfg(test)]
mod tests {
    use super::super::tree::*;

    #[test]
    fn the_parent_of_this_process_is_known() {
        let own = rustix::process::getpid().as_raw_pid();
        let parent = rustix::process::getppid().map(Pid::as_raw_pid);
        assert_eq!(parent_of(own), parent);
        assert_eq!(parent_of(i32::MAX), None);
    }
}

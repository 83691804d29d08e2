//! The processes below a guard, and how they are ended so that none is left.
//!
//! Not here: starting them (`launch`).

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
};

use crate::backend::linux::{poll::wait_for, syscalls::next_signal};

/// All processes below the guard.
pub(super) struct Tree<'o> {
    /// The server itself, whose process group and session have the same number; with namespaces
    /// the first process of them, which passes on what it is told.
    pub(crate) server: Pid,
    /// How the server ended, as a shell would say it; none while it runs.
    pub(crate) code: Option<i32>,
    /// The cgroup in which all of them are, if there is one.
    pub(crate) group: Option<&'o Path>,
}

impl Tree<'_> {
    /// Buries the dead; false once no process at all is left below.
    ///
    /// Orphans come to the guard (subreaper), so having no child proves that there is nothing.
    pub(super) fn reap(&mut self) -> bool {
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.server => {
                    let killed = status.terminating_signal().map(|signal| 128 + signal);
                    self.code = status.exit_status().or(killed);
                }
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    }

    /// Asks the server and its group to end.
    pub(crate) fn ask(&self) {
        // Until the server has made the group there is only the process. Once the server is
        // reaped, its number may be somebody else's.
        if self.code.is_none()
            && rustix::process::kill_process_group(self.server, Signal::TERM).is_err()
        {
            _ = rustix::process::kill_process(self.server, Signal::TERM);
        }
    }

    /// Kills all that is below, in rounds until nothing is left.
    pub(crate) fn end(&mut self, signals: &OwnedFd) {
        if let Some(group) = self.group {
            // All at once, wherever they hang; older than Linux 5.14: the rounds do it.
            _ = fs::write(group.join("cgroup.kill"), "1");
        }
        for _ in 0..ROUNDS {
            if !self.reap() {
                break;
            }
            if self.code.is_none() {
                _ = rustix::process::kill_process_group(self.server, Signal::STOP);
            }
            for (pid, parent) in Self::freeze() {
                strike(pid, parent, Signal::KILL);
            }
            for _ in 0..10 {
                if !self.reap() {
                    break;
                }
                wait_for(&[signals.as_fd()], Some(Duration::from_millis(20)));
                while next_signal(signals).is_some() {}
            }
        }
        if let Some(group) = self.group {
            _ = fs::remove_dir(group);
        }
    }

    /// Stops each process below, until a walk finds none that still ran.
    ///
    /// What is stopped cannot fork, so that the last walk has seen everything.
    fn freeze() -> BTreeMap<i32, i32> {
        let mut stopped = BTreeMap::new();
        for _ in 0..ROUNDS {
            let mut is_new = false;
            for (pid, parent) in below() {
                if stopped.insert(pid, parent).is_none() {
                    strike(pid, parent, Signal::STOP);
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

/// Every process below this one, with its parent.
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

/// The parent of a process; none if there is no such process.
fn parent_of(pid: i32) -> Option<i32> {
    let mut text = [0; 256];
    let length = File::open(format!("/proc/{pid}/stat"))
        .ok()?
        .read(&mut text)
        .ok()?;
    // `pid (name) state parent …`, where the name may have any character.
    let end = text[..length].iter().rposition(|&byte| byte == b')')?;
    let rest = std::str::from_utf8(&text[end + 1..length]).ok()?;
    rest.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Signals a process that was found below, if it is still that process.
fn strike(pid: i32, parent: i32, signal: Signal) {
    let Some(number) = Pid::from_raw(pid) else {
        return;
    };
    let Ok(process) = rustix::process::pidfd_open(number, PidfdFlags::empty()) else {
        return;
    };
    // The number may have been given anew since the walk: only a process that (still) has this
    // parent, or has become an orphan of ours, is meant.
    let now = parent_of(pid);
    if now == Some(parent) || now == Some(rustix::process::getpid().as_raw_pid()) {
        _ = rustix::process::pidfd_send_signal(&process, signal);
    }
}

/// A tree that is not ended in so many rounds cannot be ended (uninterruptible sleep).
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

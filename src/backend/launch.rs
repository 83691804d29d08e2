//! The two small processes between the gateway and a server: guard and confine.
//!
//! Both are this binary under `__launch`, before any runtime, allocation of note or thread. The
//! guard outlives the server and ends all that it left behind, also when the gateway was killed.
//! Not here: the gateway's side of the pipes (`stdio`).

use std::{
    collections::BTreeMap,
    convert::Infallible,
    ffi::{CString, OsStr, OsString},
    fs::{self, File},
    io::{self, Read, Write},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::{ffi::OsStrExt, process::CommandExt},
    },
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::Mode,
    io::Errno,
    process::{DumpableBehavior, Pid, PidfdFlags, Resource, Rlimit, Signal, WaitOptions},
};

use super::orders::Orders;

/// Becomes guard or confine if the command line says so, and then never returns.
///
/// To be called first in `main`: nothing of the gateway may have started yet.
pub fn guard() {
    let mut args = std::env::args_os().skip(1);
    if args.next().is_none_or(|first| first != STAGE) {
        return;
    }
    let code = match args.next() {
        Some(stage) if stage == CONFINE => {
            let Err((command, error)) = confine(args);
            refuse(&command, &error)
        }
        Some(gateway) => {
            supervise(&gateway).unwrap_or_else(|error| refuse(OsStr::new("guard"), &error))
        }
        None => NOT_STARTED,
    };
    std::process::exit(code)
}

/// The argument that makes this binary a launcher.
pub(crate) const STAGE: &str = "__launch";

impl Orders {
    /// Takes exactly one message from stdin: all that follows is the server's.
    fn receive() -> io::Result<Self> {
        let mut length = [0; 4];
        read_exact(&mut length)?;
        let length = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
        if length > MAX_ORDERS {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut body = vec![0; length];
        read_exact(&mut body)?;
        Self::decode(&body).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Starts stage confine with stdin, stdout and stderr of this process.
    fn start(&self) -> io::Result<Pid> {
        let child = Command::new("/proc/self/exe")
            .arg0("lockgate")
            .args([STAGE, CONFINE])
            .arg(std::process::id().to_string())
            .args([self.files.to_string(), self.file_size.to_string()])
            .arg("--")
            .arg(&self.command)
            .args(&self.args)
            .env_clear()
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .current_dir(&self.cwd)
            .spawn()?;
        pid_of(child.id()).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// All processes below the guard.
struct Tree {
    /// The server itself, whose process group and session have the same number.
    server: Pid,
    /// How the server ended, as a shell would say it; none while it runs.
    code: Option<i32>,
}

impl Tree {
    /// Buries the dead; false once no process at all is left below.
    ///
    /// Orphans come to the guard (subreaper), so having no child proves that there is nothing.
    fn reap(&mut self) -> bool {
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
    fn ask(&self) {
        // Until confine has made the group there is only the process. Once the server is
        // reaped, its number may be somebody else's.
        if self.code.is_none()
            && rustix::process::kill_process_group(self.server, Signal::TERM).is_err()
        {
            _ = rustix::process::kill_process(self.server, Signal::TERM);
        }
    }

    /// Kills all that is below, in rounds until nothing is left.
    fn end(&mut self, signals: &OwnedFd) {
        for _ in 0..ROUNDS {
            if !self.reap() {
                return;
            }
            if self.code.is_none() {
                _ = rustix::process::kill_process_group(self.server, Signal::STOP);
            }
            for (pid, parent) in Self::freeze() {
                strike(pid, parent, Signal::KILL);
            }
            for _ in 0..10 {
                if !self.reap() {
                    return;
                }
                wait_for(&[signals.as_fd()], Some(Duration::from_millis(20)));
                while next_signal(signals).is_some() {}
            }
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

/// Stage guard: starts the server and stays until nothing below it is left.
fn supervise(gateway: &OsStr) -> io::Result<i32> {
    let gateway = gateway
        .to_str()
        .and_then(|text| text.parse().ok())
        .and_then(pid_of);
    let gateway = gateway.ok_or(io::ErrorKind::InvalidInput)?;
    close_all_but_streams()?;
    _ = rustix::thread::set_name(c"lockgate-guard");
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let signals = signals()?;
    let watched = rustix::process::pidfd_open(gateway, PidfdFlags::empty());
    // In this order: a parent that still has this number is the one that the pidfd holds.
    if rustix::process::getppid() != Some(gateway) {
        return Ok(0);
    }
    let watched = watched?;
    let orders = Orders::receive()?;
    let server = match orders.start() {
        Ok(server) => server,
        Err(error) => {
            remove(orders.private.as_deref());
            return Ok(refuse(&orders.command, &error));
        }
    };
    let private = orders.private.clone();
    drop(orders);
    // The guard must hold no end of the pipes, or an end of file would not get through.
    drop_streams()?;
    rustix::process::chdir("/")?;
    let mut tree = Tree { server, code: None };
    while tree.code.is_none() {
        wait_for(&[watched.as_fd(), signals.as_fd()], None);
        if is_readable(&watched) {
            break;
        }
        match next_signal(&signals) {
            Some(libc::SIGCHLD) => _ = tree.reap(),
            Some(libc::SIGUSR1) => tree.ask(),
            Some(_) => break,
            None => {}
        }
    }
    tree.end(&signals);
    remove(private.as_deref());
    Ok(tree.code.unwrap_or(128 + libc::SIGKILL))
}

/// Stage confine: puts the bounds on itself, and becomes the server.
fn confine(mut args: impl Iterator<Item = OsString>) -> Result<Infallible, (OsString, io::Error)> {
    let mut number = || args.next()?.to_str()?.parse::<u64>().ok();
    let (guard, files, file_size) = (number(), number(), number());
    let command = args.nth(1).unwrap_or_default();
    let args: Vec<OsString> = args.collect();
    let bound = || -> io::Result<Infallible> {
        let missing = || io::Error::from(io::ErrorKind::InvalidInput);
        rustix::process::umask(Mode::RWXG | Mode::RWXO);
        rustix::process::setsid()?;
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        let guard = guard.and_then(|pid| pid_of(u32::try_from(pid).ok()?));
        // A guard that ended before the line above sends no signal any more.
        if rustix::process::getppid() != Some(guard.ok_or_else(missing)?) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        limit(Resource::Nofile, files.ok_or_else(missing)?)?;
        limit(Resource::Fsize, file_size.ok_or_else(missing)?)?;
        limit(Resource::Core, 0)?;
        rustix::thread::set_no_new_privs(true)?;
        // The gateway's allocator forbids huge pages, and execve keeps that.
        _ = rustix::thread::disable_transparent_huge_pages(false);
        default_signals();
        close_all_but_streams()?;
        Err(exec(&command, &args))
    };
    bound().map_err(|error| (command.clone(), error))
}

/// Sets a soft and hard limit, no higher than the hard limit that is there.
fn limit(resource: Resource, value: u64) -> io::Result<()> {
    let hard = rustix::process::getrlimit(resource)
        .maximum
        .unwrap_or(u64::MAX);
    let value = Some(value.min(hard)).filter(|&value| value != u64::MAX);
    Ok(rustix::process::setrlimit(
        resource,
        Rlimit {
            current: value,
            maximum: value,
        },
    )?)
}

/// Becomes `command`; returns only why that failed.
///
/// Not `execvp`, which hands what the kernel cannot start to a shell.
fn exec(command: &OsStr, args: &[OsString]) -> io::Error {
    let c_string = |text: &OsStr| CString::new(text.as_bytes());
    let argv: Result<Vec<_>, _> = std::iter::once(command)
        .chain(args.iter().map(OsString::as_os_str))
        .map(c_string)
        .collect();
    let Ok(argv) = argv else {
        return io::ErrorKind::InvalidInput.into();
    };
    let mut pointers: Vec<_> = argv.iter().map(|arg| arg.as_ptr()).collect();
    pointers.push(std::ptr::null());
    let candidates: Vec<PathBuf> = if command.as_bytes().contains(&b'/') {
        vec![command.into()]
    } else {
        #[expect(
            clippy::disallowed_methods,
            reason = "the child's own PATH, as execvp has it"
        )]
        let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
        std::env::split_paths(&path)
            .filter(|dir| dir != "")
            .map(|dir| dir.join(command))
            .collect()
    };
    let mut why = io::Error::from(Errno::NOENT);
    for candidate in candidates {
        let Ok(path) = c_string(candidate.as_os_str()) else {
            continue;
        };
        #[expect(
            unsafe_code,
            reason = "no safe wrapper that keeps the environment as it is"
        )]
        // SAFETY: `path` and every pointer but the last, which is null, point to strings that
        // end with a null byte and outlive the call.
        unsafe {
            libc::execv(path.as_ptr(), pointers.as_ptr());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR) => {}
            Some(libc::EACCES) => why = error,
            _ => return error,
        }
    }
    why
}

/// Says on stderr, in one line, why a command did not start.
fn refuse(command: &OsStr, error: &io::Error) -> i32 {
    let line = format!("lockgate: cannot start {}: {error}\n", command.display());
    _ = io::stderr().write_all(line.as_bytes());
    NOT_STARTED
}

/// Removes the private directory of a tree that has ended.
fn remove(private: Option<&Path>) {
    if let Some(path) = private {
        _ = fs::remove_dir_all(path);
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

/// Waits until one of `fds` can be read, or for so long.
fn wait_for(fds: &[BorrowedFd<'_>], longest: Option<Duration>) {
    let longest = longest.and_then(|longest| Timespec::try_from(longest).ok());
    let mut fds = [fds[0], *fds.last().unwrap_or(&fds[0])]
        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    _ = poll(&mut fds, longest.as_ref());
}

/// Whether `fd` can be read now; for a pidfd: whether that process has ended.
fn is_readable(fd: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    poll(
        &mut fds,
        Some(&Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        }),
    )
    .is_ok_and(|count| count > 0)
}

fn pid_of(number: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(number).ok()?)
}

/// Reads from descriptor 0, past which nothing is taken.
fn read_exact(mut to: &mut [u8]) -> io::Result<()> {
    #[expect(unsafe_code, reason = "std's stdin reads ahead")]
    // SAFETY: descriptor 0 stays open until `drop_streams`, which runs after all reads.
    let stdin = unsafe { BorrowedFd::borrow_raw(0) };
    while !to.is_empty() {
        match rustix::io::read(stdin, &mut *to) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => to = &mut to[count..],
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Blocks the signals that a guard acts on; they are read from the descriptor.
fn signals() -> io::Result<OwnedFd> {
    default_signals();
    #[expect(unsafe_code, reason = "rustix has neither signal masks nor signalfd")]
    // SAFETY: the set is initialised by `sigemptyset` before it is used, and `signalfd` gives
    // a descriptor that nobody else owns.
    unsafe {
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut set);
        for signal in [
            libc::SIGTERM,
            libc::SIGHUP,
            libc::SIGINT,
            libc::SIGUSR1,
            libc::SIGCHLD,
        ] {
            libc::sigaddset(&raw mut set, signal);
        }
        libc::sigprocmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut());
        match libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}

/// The next signal that came, if one did.
fn next_signal(signals: &OwnedFd) -> Option<i32> {
    // `struct signalfd_siginfo` has 128 bytes and begins with the number.
    let mut record = [0; 128];
    rustix::io::read(signals, &mut record)
        .ok()
        .filter(|&count| count == record.len())?;
    i32::from_ne_bytes(*record.first_chunk()?).into()
}

/// Gives every signal its default action and blocks none.
///
/// std ignores SIGPIPE, and whoever started the gateway may have ignored more.
fn default_signals() {
    #[expect(unsafe_code, reason = "rustix does not change signal actions")]
    // SAFETY: no handler is installed, and the set is initialised before it is used.
    unsafe {
        for signal in 1..=libc::SIGRTMAX() {
            libc::signal(signal, libc::SIG_DFL);
        }
        let mut none = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
}

/// Closes everything that was inherited beside stdin, stdout and stderr.
fn close_all_but_streams() -> io::Result<()> {
    #[expect(unsafe_code, reason = "rustix has no close_range")]
    // SAFETY: at both callers nothing of this process owns a descriptor above 2.
    let done = unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Puts `/dev/null` in the place of stdin, stdout and stderr.
fn drop_streams() -> io::Result<()> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    for stream in 0..=2 {
        #[expect(
            unsafe_code,
            reason = "the streams have no owner that rustix could take"
        )]
        // SAFETY: the guard is single-threaded and does not use its streams at this point.
        if unsafe { libc::dup2(null.as_raw_fd(), stream) } == -1 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// The argument of the second stage.
const CONFINE: &str = "confine";

/// As a shell says that a command could not be started.
const NOT_STARTED: i32 = 127;

/// More than an environment can have; the orders come from the gateway alone.
const MAX_ORDERS: usize = 16 << 20;

/// A tree that is not ended in so many rounds cannot be ended (uninterruptible sleep).
const ROUNDS: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_of_this_process_is_known() {
        let own = rustix::process::getpid().as_raw_pid();
        let parent = rustix::process::getppid().map(Pid::as_raw_pid);
        assert_eq!(parent_of(own), parent);
        assert_eq!(parent_of(i32::MAX), None);
    }
}

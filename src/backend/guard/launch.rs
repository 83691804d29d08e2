//! The small process between the gateway and a server: the guard, and how it starts the server.
//!
//! It is this binary under `__launch`, before any runtime, allocation of note or thread. It
//! outlives the server and ends all that it left behind (`tree`), also when the gateway was
//! killed. All unsafe code is here. Not here: what a process does to itself before it becomes the
//! server (`confine`), and the gateway's side of the pipes (`stdio`).

use std::{
    ffi::{CString, OsStr, OsString},
    fs::{self, File},
    io::{self, Write},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::FlockOperation,
    io::Errno,
    process::{DumpableBehavior, Pid, PidfdFlags, WaitOptions},
};

use super::{
    protocol::Orders,
    tree::{Tree, is_readable, wait_for},
};
use crate::backend::{
    child::removal,
    sandbox::{User, confine, namespace},
};

/// Becomes a guard if the command line says so, and then never returns.
///
/// To be called first in `main`: nothing of the gateway may have started yet.
pub fn guard() {
    let mut args = std::env::args_os().skip(1);
    if args.next().is_none_or(|first| first != STAGE) {
        return;
    }
    let code = match args.next() {
        Some(stage) if stage == PROBE => probe(),
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
    let Orders { private, cage, .. } = &orders;
    let (private, group) = (private.clone(), cage.group.clone());
    // For as long as this process lives: what nobody holds is removed by the next gateway.
    let _held = private.as_deref().map(hold);
    let server = match start(&orders) {
        Ok(server) => server,
        Err(error) => {
            remove(private.as_deref(), group.as_deref());
            return Ok(refuse(&orders.command, &error));
        }
    };
    drop(orders);
    // The guard must hold no end of the pipes, or an end of file would not get through.
    drop_streams()?;
    rustix::process::chdir("/")?;
    let mut tree = Tree {
        server,
        code: None,
        group: group.as_deref(),
    };
    while tree.code.is_none() {
        wait_for(&[watched.as_fd(), signals.as_fd()], None);
        if is_readable(&watched) {
            break;
        }
        match next_signal(&signals) {
            Some(CHILD_ENDED) => _ = tree.reap(),
            Some(libc::SIGUSR1) => tree.ask(),
            Some(_) => break,
            None => {}
        }
    }
    tree.end(&signals);
    remove(private.as_deref(), group.as_deref());
    Ok(tree.code.unwrap_or(128 + libc::SIGKILL))
}

/// Starts the server with stdin, stdout and stderr of this process.
///
/// By a plain clone, without a second program start: this process has one thread, and the copy
/// has the orders.
fn start(orders: &Orders) -> io::Result<Pid> {
    let cage = &orders.cage;
    let (own, user) = (rustix::process::getpid(), User::own());
    let guard = rustix::process::pidfd_open(own, PidfdFlags::empty())?;
    let flags = if cage.has_namespaces { NAMESPACES } else { 0 };
    if cage.has_namespaces {
        // Inside it can no more be done; only root can outside.
        _ = rustix::thread::set_thread_groups(&[]);
    }
    let group = cage.group.as_ref().map(File::open).transpose()?;
    match clone(flags, group.as_ref().map(AsFd::as_fd))? {
        Clone::Parent(server) => Ok(server),
        Clone::Child => {
            let outcome = if cage.has_namespaces {
                namespace::first(orders, user, &guard)
            } else {
                Err(confine::become_server(orders, Some(own)))
            };
            let code = outcome.unwrap_or_else(|error| refuse(&orders.command, &error));
            std::process::exit(code)
        }
    }
}

/// Whether a child could have namespaces of its own: tries it.
fn probe() -> i32 {
    let user = User::own();
    let furnished = || {
        user.map()
            .and_then(|()| namespace::furnish(&[], None, None))
    };
    match clone(NAMESPACES, None) {
        Ok(Clone::Child) => std::process::exit(i32::from(furnished().is_err())),
        Ok(Clone::Parent(_)) => {
            let ended = rustix::process::wait(WaitOptions::empty());
            i32::from(!matches!(ended, Ok(Some((_, status))) if status.exit_status() == Some(0)))
        }
        Err(_) => 1,
    }
}

/// In which of the two processes one is after [`clone`].
pub(crate) enum Clone {
    /// In the one that called; the number is that of the other.
    Parent(Pid),
    /// In the new one.
    Child,
}

/// `fork`, with namespaces and into a cgroup.
pub(crate) fn clone(flags: i32, group: Option<BorrowedFd<'_>>) -> io::Result<Clone> {
    let all = libc::c_long::from(flags | libc::SIGCHLD);
    #[expect(unsafe_code, reason = "std and rustix have no fork")]
    // SAFETY: this process has one thread and shares no memory with the new one, so that the
    // copy is as good as the original. `clone_args` holds only numbers.
    let pid = unsafe {
        match group {
            // Into the cgroup at birth: to move a process later takes all cgroups' lock.
            Some(group) => {
                let mut args = std::mem::zeroed::<libc::clone_args>();
                args.flags = u64::from(flags.cast_unsigned()) | CLONE_INTO_CGROUP;
                args.exit_signal = u64::from(libc::SIGCHLD.cast_unsigned());
                args.cgroup = u64::from(group.as_raw_fd().cast_unsigned());
                libc::syscall(libc::SYS_clone3, &raw mut args, size_of_val(&args))
            }
            None => libc::syscall(libc::SYS_clone, all, 0, 0, 0, 0),
        }
    };
    match i32::try_from(pid).ok().and_then(Pid::from_raw) {
        Some(pid) if pid.as_raw_pid() > 0 => Ok(Clone::Parent(pid)),
        _ if pid == 0 => Ok(Clone::Child),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The version of Landlock's interface; 0 where the kernel does not offer it.
pub(crate) fn landlock() -> u32 {
    #[expect(unsafe_code, reason = "the crate does not tell it")]
    // SAFETY: with this flag the kernel reads and writes no memory.
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<u8>(),
            0_usize,
            LANDLOCK_CREATE_RULESET_VERSION,
        )
    };
    u32::try_from(version).unwrap_or(0)
}

/// Hands a program over connections to the kernel, which checks that it ends and reads nothing else.
pub(crate) fn load_filter(program: &[u64], hook: u32) -> io::Result<OwnedFd> {
    /// `union bpf_attr`, as far as `BPF_PROG_LOAD` is concerned.
    #[repr(C)]
    struct Load {
        program_type: u32,
        count: u32,
        program: u64,
        license: u64,
        unused: [u32; 11],
        hook: u32,
    }
    let load = Load {
        program_type: BPF_PROG_TYPE_CGROUP_SOCK_ADDR,
        count: u32::try_from(program.len()).unwrap_or(u32::MAX),
        program: program.as_ptr() as u64,
        license: c"Apache-2.0".as_ptr() as u64,
        unused: [0; 11],
        hook,
    };
    #[expect(unsafe_code, reason = "rustix has no bpf")]
    // SAFETY: the pointers in `load` are good for the call, which only reads, and the descriptor
    // that it gives is nobody else's.
    unsafe {
        match libc::syscall(
            libc::SYS_bpf,
            BPF_PROG_LOAD,
            &raw const load,
            size_of_val(&load),
        ) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(i32::try_from(fd).unwrap_or(-1))),
        }
    }
}

/// Puts a loaded program before the connections of all that is in a cgroup.
pub(crate) fn attach_filter(
    group: BorrowedFd<'_>,
    program: BorrowedFd<'_>,
    hook: u32,
) -> io::Result<()> {
    let descriptors = [group, program].map(|fd| fd.as_raw_fd().cast_unsigned());
    let attach = [descriptors[0], descriptors[1], hook, BPF_F_ALLOW_MULTI];
    #[expect(unsafe_code, reason = "rustix has no bpf")]
    // SAFETY: it reads the four numbers of `attach`.
    let done = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            BPF_PROG_ATTACH,
            attach.as_ptr(),
            size_of_val(&attach),
        )
    };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Becomes `command`; returns only why that failed.
///
/// Not `execvp`, which hands what the kernel cannot start to a shell.
pub(crate) fn exec(command: &OsStr, args: &[OsString], env: &[(OsString, OsString)]) -> io::Error {
    let c_string = |text: &OsStr| CString::new(text.as_bytes());
    let pair = |(name, value): &(OsString, OsString)| {
        CString::new([name.as_bytes(), b"=", value.as_bytes()].concat())
    };
    let argv: Result<Vec<_>, _> = std::iter::once(command)
        .chain(args.iter().map(OsString::as_os_str))
        .map(c_string)
        .collect();
    let envp: Result<Vec<_>, _> = env.iter().map(pair).collect();
    let (Ok(argv), Ok(envp)) = (argv, envp) else {
        return io::ErrorKind::InvalidInput.into();
    };
    let pointers = |texts: &[CString]| -> Vec<*const libc::c_char> {
        let texts = texts.iter().map(|text| text.as_ptr());
        texts.chain([std::ptr::null()]).collect()
    };
    let (argv, envp) = (pointers(&argv), pointers(&envp));
    let candidates: Vec<PathBuf> = if command.as_bytes().contains(&b'/') {
        vec![command.into()]
    } else {
        // The child's own, as execvp has it.
        let path = env.iter().rfind(|(name, _)| name == "PATH");
        let path = path.map_or(OsStr::new("/usr/bin:/bin"), |(_, path)| path);
        std::env::split_paths(path)
            .filter(|dir| dir != "")
            .map(|dir| dir.join(command))
            .collect()
    };
    let mut why = io::Error::from(Errno::NOENT);
    for candidate in candidates {
        let Ok(path) = c_string(candidate.as_os_str()) else {
            continue;
        };
        #[expect(unsafe_code, reason = "no safe wrapper without a shell behind it")]
        // SAFETY: `path` and every pointer but the last ones, which are null, point to strings
        // that end with a null byte and outlive the call.
        unsafe {
            libc::execve(path.as_ptr(), argv.as_ptr(), envp.as_ptr());
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
pub(crate) fn refuse(command: &OsStr, error: &io::Error) -> i32 {
    let line = format!("lockgate: cannot start {}: {error}\n", command.display());
    _ = io::stderr().write_all(line.as_bytes());
    NOT_STARTED
}

/// Removes the private directory of a tree that has ended, and its cgroup.
fn remove(private: Option<&Path>, group: Option<&Path>) {
    if let Some(path) = private {
        // It has nobody to tell; the gateway looks for what stays.
        _ = removal::remove(path);
    }
    if let Some(group) = group {
        _ = fs::remove_dir(group);
    }
}

/// Says of a private directory that somebody will remove it (`Launcher::tidy`). Where that cannot be
/// said, it cannot be asked either.
fn hold(path: &Path) -> io::Result<File> {
    let dir = File::open(path)?;
    rustix::fs::flock(&dir, FlockOperation::NonBlockingLockShared)?;
    Ok(dir)
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
pub(crate) fn signals() -> io::Result<OwnedFd> {
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
pub(crate) fn next_signal(signals: &OwnedFd) -> Option<i32> {
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
pub(crate) fn default_signals() {
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
pub(crate) fn close_all_but_streams() -> io::Result<()> {
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
pub(crate) fn drop_streams() -> io::Result<()> {
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

/// The argument that makes this binary try namespaces.
pub(crate) const PROBE: &str = "probe";

/// SIGCHLD: some process below has ended.
pub(crate) const CHILD_ENDED: i32 = libc::SIGCHLD;

/// What a child has of its own in separation `namespace`.
const NAMESPACES: i32 = libc::CLONE_NEWUSER | libc::CLONE_NEWPID | libc::CLONE_NEWNS;

/// `clone(2)`, Linux 5.7; libc has it as a number that is too small for it.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// `landlock_create_ruleset(2)`; not in libc.
const LANDLOCK_CREATE_RULESET_VERSION: u32 = 1;

/// `bpf(2)`; not in libc.
const BPF_PROG_LOAD: i32 = 5;
const BPF_PROG_ATTACH: i32 = 8;
const BPF_PROG_TYPE_CGROUP_SOCK_ADDR: u32 = 18;
const BPF_F_ALLOW_MULTI: u32 = 2;

/// As a shell says that a command could not be started.
const NOT_STARTED: i32 = 127;

/// More than an environment can have; the orders come from the gateway alone.
const MAX_ORDERS: usize = 16 << 20;

//! System calls that need unsafe code: clone, exec, signals, descriptors, mounts, Landlock's version, BPF, an
//! option of sockets, time slices, System V objects.
//!
//! The only file with unsafe code. Not here: the order of the calls (`guard`).

use std::{
    ffi::{CString, OsStr, OsString},
    fs::File,
    io,
    os::{
        fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::{
    io::Errno,
    process::{Pid, Signal},
};

/// Side of a [`clone`].
pub(crate) enum Clone {
    /// The caller, with the id of the new process.
    Parent(Pid),
    /// The new process.
    Child,
}

/// Forks this process, with new namespaces and into a cgroup.
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
    let new = match i32::try_from(pid) {
        Ok(0) => Some(Clone::Child),
        Ok(pid @ 1..) => Pid::from_raw(pid).map(Clone::Parent),
        _ => None,
    };
    new.ok_or_else(io::Error::last_os_error)
}

/// Forks this process into a child of its own parent.
pub(crate) fn clone_sibling() -> io::Result<Clone> {
    clone(libc::CLONE_PARENT, None)
}

/// Limits what the kernel takes of the output of a socket beyond what it has sent, in bytes. Accepted sockets have
/// the limit of their listener.
pub(crate) fn limit_unsent(socket: BorrowedFd<'_>, bytes: u32) -> io::Result<()> {
    let (at, size) = ((&raw const bytes).cast(), size_of_val(&bytes));
    let size = libc::socklen_t::try_from(size).map_err(io::Error::other)?;
    let (socket, level) = (socket.as_raw_fd(), libc::IPPROTO_TCP);
    #[expect(unsafe_code, reason = "rustix has no such option")]
    // SAFETY: the option is an int, which lives longer than the call.
    let result = unsafe { libc::setsockopt(socket, level, libc::TCP_NOTSENT_LOWAT, at, size) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Has this thread ask for so much of a processor's time at a time; its share is the same. What it starts asks for as
/// much as is usual. No effect before Linux 6.12.
pub(crate) fn set_time_slice(slice: Duration) -> io::Result<()> {
    let mut scheduling = scheduling()?;
    scheduling.sched_runtime = u64::try_from(slice.as_nanos()).map_err(io::Error::other)?;
    scheduling.sched_flags |= RESET_ON_FORK;
    schedule(&scheduling)
}

/// Has this process, and what it starts, take the processor from no other when it is woken: it waits until that sleeps,
/// or has had its time slice (sched(7), `SCHED_BATCH`). Its share is the same.
pub(crate) fn become_batch() -> io::Result<()> {
    let mut scheduling = scheduling()?;
    scheduling.sched_policy = u32::try_from(libc::SCHED_BATCH).map_err(io::Error::other)?;
    scheduling.sched_runtime = 0;
    schedule(&scheduling)
}

/// `sched_setattr(2)` of this thread.
fn schedule(scheduling: &libc::sched_attr) -> io::Result<()> {
    let at: *const libc::sched_attr = scheduling;
    #[expect(unsafe_code, reason = "rustix has no such call")]
    // SAFETY: the kernel reads the struct, which lives longer than the call.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, at, 0) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// The time slice of this thread; 0 before Linux 6.12.
#[cfg(test)]
pub(crate) fn time_slice() -> io::Result<Duration> {
    Ok(Duration::from_nanos(scheduling()?.sched_runtime))
}

/// How the kernel schedules this thread, `sched_setattr(2)`.
fn scheduling() -> io::Result<libc::sched_attr> {
    let mut scheduling = libc::sched_attr {
        size: 0,
        sched_policy: 0,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    };
    let (at, size) = (&raw mut scheduling, size_of_val(&scheduling));
    #[expect(unsafe_code, reason = "rustix has no such call")]
    // SAFETY: the kernel writes at most as many bytes as it is told.
    let result = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, at, size, 0) };
    if result == 0 {
        Ok(scheduling)
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Version of the Landlock ABI; 0 if the kernel has none.
pub(crate) fn landlock() -> u32 {
    #[expect(unsafe_code, reason = "the crate does not report it")]
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

/// Makes a mount and those below it read-only, or writable again.
pub(crate) fn set_read_only(path: &Path, is_read_only: bool) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let (set, cleared) = if is_read_only {
        (libc::MOUNT_ATTR_RDONLY, 0)
    } else {
        (0, libc::MOUNT_ATTR_RDONLY)
    };
    let change = libc::mount_attr {
        attr_set: set,
        attr_clr: cleared,
        propagation: 0,
        userns_fd: 0,
    };
    #[expect(unsafe_code, reason = "rustix has no mount_setattr")]
    // SAFETY: path and change are good for the call, which only reads them.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            path.as_ptr(),
            libc::AT_RECURSIVE,
            &raw const change,
            size_of_val(&change),
        )
    };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Loads a BPF program that filters connections, or packets that arrive; the kernel verifies it.
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
        program_type: match hook {
            BPF_CGROUP_INET_INGRESS => BPF_PROG_TYPE_CGROUP_SKB,
            _ => BPF_PROG_TYPE_CGROUP_SOCK_ADDR,
        },
        count: u32::try_from(program.len()).unwrap_or(u32::MAX),
        program: program.as_ptr() as u64,
        license: c"Apache-2.0".as_ptr() as u64,
        unused: [0; 11],
        hook,
    };
    #[expect(unsafe_code, reason = "rustix has no bpf")]
    // SAFETY: the pointers in `load` are good for the call, which only reads, and the descriptor
    // that it returns has no other owner.
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

/// Attaches a loaded program to the connections of all processes in a cgroup, beside others.
pub(crate) fn attach_filter(
    group: BorrowedFd<'_>,
    program: BorrowedFd<'_>,
    hook: u32,
) -> io::Result<()> {
    change_filter(BPF_PROG_ATTACH, group, program, [hook, BPF_F_ALLOW_MULTI])
}

/// Detaches an attached program.
pub(crate) fn detach_filter(
    group: BorrowedFd<'_>,
    program: BorrowedFd<'_>,
    hook: u32,
) -> io::Result<()> {
    change_filter(BPF_PROG_DETACH, group, program, [hook, 0])
}

fn change_filter(
    command: libc::c_int,
    group: BorrowedFd<'_>,
    program: BorrowedFd<'_>,
    [hook, flags]: [u32; 2],
) -> io::Result<()> {
    let descriptors = [group, program].map(|fd| fd.as_raw_fd().cast_unsigned());
    let attach = [descriptors[0], descriptors[1], hook, flags];
    #[expect(unsafe_code, reason = "rustix has no bpf")]
    // SAFETY: it reads the four numbers of `attach`.
    let done = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
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

/// A kind of System V objects.
#[derive(Clone, Copy)]
pub(crate) enum Ipc {
    /// Segments of shared memory.
    Memory,
    /// Sets of semaphores.
    Semaphores,
    /// Message queues.
    Messages,
}

/// Removes a System V object; only its owner and its maker may.
pub(crate) fn remove_ipc(kind: Ipc, id: i32) -> io::Result<()> {
    let (command, none) = (libc::IPC_RMID, std::ptr::null::<u8>());
    #[expect(unsafe_code, reason = "rustix has no System V IPC")]
    // SAFETY: with this command the kernel reads and writes no memory of this process.
    let done = unsafe {
        match kind {
            Ipc::Memory => libc::syscall(libc::SYS_shmctl, id, command, none),
            Ipc::Semaphores => libc::syscall(libc::SYS_semctl, id, 0, command, none),
            Ipc::Messages => libc::syscall(libc::SYS_msgctl, id, command, none),
        }
    };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Replaces this process by `command`; returns only the error.
///
/// Not `execvp`, which runs a shell for a file that the kernel cannot execute.
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
        // The child's own PATH, like execvp.
        let path = env.iter().rfind(|(name, _)| name == "PATH");
        let path = path.map_or(OsStr::new(DEFAULT_PATH), |(_, path)| path);
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

/// Reads exactly `to` from descriptor 0, without reading ahead.
pub(crate) fn read_exact(mut to: &mut [u8]) -> io::Result<()> {
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

/// Blocks the signals that a guard handles, and returns a descriptor to read them from.
pub(crate) fn signals() -> io::Result<OwnedFd> {
    default_signals();
    #[expect(unsafe_code, reason = "rustix has neither signal masks nor signalfd")]
    // SAFETY: the set is initialised by `sigemptyset` before it is used, and `signalfd` gives
    // a descriptor without another owner.
    unsafe {
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut set);
        for signal in [
            libc::SIGTERM,
            libc::SIGHUP,
            libc::SIGINT,
            libc::SIGUSR1,
            libc::SIGUSR2,
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

/// Ends this process by one of the [`signals`]; the others stay blocked.
pub(crate) fn end_by(signal: Signal) {
    #[expect(unsafe_code, reason = "rustix has no signal masks")]
    // SAFETY: the set is initialised by `sigemptyset` before it is used.
    unsafe {
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, signal.as_raw());
        libc::sigprocmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
    }
    _ = rustix::process::kill_process(rustix::process::getpid(), signal);
}

/// The next pending signal.
pub(crate) fn next_signal(signals: &OwnedFd) -> Option<i32> {
    // `struct signalfd_siginfo` has 128 bytes and begins with the number.
    let mut record = [0; 128];
    rustix::io::read(signals, &mut record)
        .ok()
        .filter(|&count| count == record.len())?;
    i32::from_ne_bytes(*record.first_chunk()?).into()
}

/// Restores the default action of every signal and blocks none.
///
/// std ignores SIGPIPE, and the parent of the gateway may have ignored more.
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

/// Closes every inherited descriptor except stdin, stdout and stderr.
pub(crate) fn close_all_but_streams() -> io::Result<()> {
    #[expect(unsafe_code, reason = "rustix has no close_range")]
    // SAFETY: at both callers no value of this process owns a descriptor above 2.
    let done = unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Opens the file that streams are dropped to.
pub(crate) fn null() -> io::Result<File> {
    File::options().read(true).write(true).open("/dev/null")
}

/// Redirects stdin, stdout and stderr to this [`null`]. Both ends are open, so that it does not fail.
pub(crate) fn drop_streams(null: &File) {
    for stream in 0..=2 {
        #[expect(
            unsafe_code,
            reason = "the streams have no owner that rustix could take"
        )]
        // SAFETY: the guard is single-threaded and does not use its streams at this point.
        unsafe {
            libc::dup2(null.as_raw_fd(), stream);
        }
    }
}

/// PATH where a child has none.
pub(crate) const DEFAULT_PATH: &str = "/usr/bin:/bin";

/// SIGCHLD: a process below has ended.
pub(crate) const CHILD_ENDED: i32 = libc::SIGCHLD;
/// Of `sched_setattr(2)`: what a thread starts does not get its time slice.
const RESET_ON_FORK: u64 = 1;

/// `clone(2)`, since Linux 5.7; the type of the constant in libc is too small.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// `landlock_create_ruleset(2)`; not in libc.
const LANDLOCK_CREATE_RULESET_VERSION: u32 = 1;

/// `bpf(2)`; not in libc.
const BPF_PROG_LOAD: i32 = 5;
const BPF_PROG_ATTACH: i32 = 8;
const BPF_PROG_DETACH: i32 = 9;
const BPF_PROG_TYPE_CGROUP_SOCK_ADDR: u32 = 18;
const BPF_PROG_TYPE_CGROUP_SKB: u32 = 8;
/// The hook of packets that arrive at a socket.
pub(crate) const BPF_CGROUP_INET_INGRESS: u32 = 0;
const BPF_F_ALLOW_MULTI: u32 = 2;

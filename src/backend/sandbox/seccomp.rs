//! Seccomp filters: system calls that are denied because no server needs them and they help to escape.
//!
//! A deny-list, since servers are arbitrary programs: denied calls fail with EPERM, as for a missing
//! privilege.

use std::io;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen::Dword, SeccompCmpOp as Is, SeccompCondition,
    SeccompFilter, SeccompRule, sock_filter,
};

use super::restrictions::{Namespaces, Restrictions, Sockets, Tcp};

/// Applies the filters of `restrictions` to this thread, which must be the only one; needs `no_new_privs`.
///
/// # Errors
///
/// Seccomp's.
pub(crate) fn apply(restrictions: &Restrictions) -> io::Result<()> {
    for program in programs(restrictions).map_err(io::Error::other)? {
        seccompiler::apply_filter(&program).map_err(io::Error::other)?;
    }
    Ok(())
}

/// Filters of `restrictions`; a call must pass all of them.
fn programs(restrictions: &Restrictions) -> Result<Vec<BpfProgram>, seccompiler::BackendError> {
    let mut denied: Vec<(i64, Vec<SeccompRule>)> = Vec::new();
    if restrictions.is_hardened {
        let calls = DENIED.iter().chain(KEYRINGS);
        denied.extend(calls.map(|&call| (call, Vec::new())));
        denied.extend(conditional()?);
        if restrictions.landlock < TRUNCATE_SINCE {
            denied.push((libc::SYS_truncate, Vec::new()));
        }
    } else if restrictions.is_filtered {
        denied.extend(KEYRINGS.iter().map(|&call| (call, Vec::new())));
        denied.push(limits_of_others()?);
        denied.push(descriptors()?);
    }
    let sockets = sockets(restrictions)?;
    if !sockets.is_empty() {
        denied.push((libc::SYS_socket, sockets));
    }
    let pairs = pairs(restrictions)?;
    if !pairs.is_empty() {
        denied.push((libc::SYS_socketpair, pairs));
    }
    if restrictions.tcp != Tcp::Any {
        denied.extend(fast_open()?);
    }
    if restrictions.tcp != Tcp::Any || restrictions.sockets == Sockets::Off {
        // It could create sockets past this filter.
        denied.push((libc::SYS_io_uring_setup, Vec::new()));
    }
    if denied.is_empty() {
        return Ok(Vec::new());
    }
    let mut programs = vec![filter(denied, libc::EPERM)?];
    if cfg!(target_arch = "x86_64") {
        programs.push(without_x32());
    }
    if restrictions.is_hardened {
        // Its arguments are in memory, invisible to a filter. libc falls back to `clone`, whose
        // flags are visible.
        let mut missing = vec![(libc::SYS_clone3, Vec::new())];
        if restrictions.namespaces == Namespaces::None {
            missing.extend(IPC.iter().map(|&call| (call, Vec::new())));
        }
        programs.push(filter(missing, libc::ENOSYS)?);
    }
    Ok(programs)
}

/// Allows all calls but `calls`, and kills processes of another architecture.
fn filter(
    calls: Vec<(i64, Vec<SeccompRule>)>,
    errno: i32,
) -> Result<BpfProgram, seccompiler::BackendError> {
    let errno = SeccompAction::Errno(errno.unsigned_abs());
    let arch = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(
        calls.into_iter().collect(),
        SeccompAction::Allow,
        errno,
        arch,
    )?
    .try_into()
}

/// Kills processes that use x32 call numbers, which the rules do not cover.
fn without_x32() -> BpfProgram {
    let step = |code, jt, jf, k| sock_filter { code, jt, jf, k };
    vec![
        // The number; if it has the x32 bit, kill; allow.
        step(0x20, 0, 0, 0),
        step(0x35, 0, 1, 0x4000_0000),
        step(0x06, 0, 0, 0x8000_0000),
        step(0x06, 0, 0, 0x7fff_0000),
    ]
}

/// Rule of conditions that must all hold: argument, comparison and value.
fn rule(
    conditions: impl IntoIterator<Item = (u8, Is, u64)>,
) -> Result<SeccompRule, seccompiler::BackendError> {
    let conditions: Result<Vec<_>, _> = conditions
        .into_iter()
        .map(|(argument, is, value)| SeccompCondition::new(argument, Dword, is, value))
        .collect();
    SeccompRule::new(conditions?)
}

/// Calls denied for some of their arguments.
fn conditional() -> Result<Vec<(i64, Vec<SeccompRule>)>, seccompiler::BackendError> {
    let new_user = libc::CLONE_NEWUSER.unsigned_abs().into();
    Ok(vec![
        (
            libc::SYS_clone,
            vec![rule([(0, Is::MaskedEq(new_user), new_user)])?],
        ),
        // A query and the default personality are allowed.
        (
            libc::SYS_personality,
            vec![rule([(0, Is::Ne, 0), (0, Is::Ne, 0xffff_ffff)])?],
        ),
        limits_of_others()?,
        // Input faked for a terminal.
        (
            libc::SYS_ioctl,
            vec![
                rule([(1, Is::Eq, libc::TIOCSTI)])?,
                rule([(1, Is::Eq, TIOCLINUX)])?,
            ],
        ),
        descriptors()?,
    ])
}

/// Denies leases, which hold up each open of the file for most of a minute: that of another server's script, or of the
/// file with a token that the gateway renews. And larger pipes: the kernel counts those of a child's streams among
/// the gateway's (`fs.pipe-user-pages-soft`), and beyond its bound all later ones are small.
fn descriptors() -> Result<(i64, Vec<SeccompRule>), seccompiler::BackendError> {
    let lease: u64 = libc::F_SETLEASE.unsigned_abs().into();
    let pipe: u64 = libc::F_SETPIPE_SZ.unsigned_abs().into();
    let calls = [lease, F_SETDELEG, pipe].map(|call| rule([(1, Is::Eq, call)]));
    let rules: Result<Vec<_>, _> = calls.into_iter().collect();
    Ok((libc::SYS_fcntl, rules?))
}

/// Denies limits of other processes: a limit of processor time ends one of the same user, past Landlock.
fn limits_of_others() -> Result<(i64, Vec<SeccompRule>), seccompiler::BackendError> {
    Ok((libc::SYS_prlimit64, vec![rule([(0, Is::Ne, 0)])?]))
}

/// Denied sockets.
fn sockets(restrictions: &Restrictions) -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    let family = |family: i32| u64::from(family.unsigned_abs());
    let (inet, inet6) = (family(libc::AF_INET), family(libc::AF_INET6));
    let mut rules = Vec::new();
    // Others may be TCP inside the kernel, past Landlock and the rules below: AF_SMC, AF_RDS.
    if restrictions.is_hardened || restrictions.tcp != Tcp::Any {
        let known = [family(libc::AF_UNIX), inet, inet6, family(libc::AF_NETLINK)];
        rules.push(rule(known.map(|known| (0, Is::Ne, known)))?);
    }
    if restrictions.is_hardened {
        // Netlink only as libc uses it to list addresses (NETLINK_ROUTE).
        rules.push(rule([
            (0, Is::Eq, family(libc::AF_NETLINK)),
            (2, Is::Ne, 0),
        ])?);
    }
    if restrictions.sockets == Sockets::Off {
        rules.push(rule([(0, Is::Eq, family(libc::AF_UNIX))])?);
    }
    for family in [inet, inet6] {
        match restrictions.tcp {
            Tcp::Off => rules.push(rule([
                (0, Is::Eq, family),
                (1, Is::MaskedEq(SOCKET_TYPE), 1),
            ])?),
            // Landlock restricts ports of plain TCP only.
            Tcp::Ports(_) => rules.push(rule([
                (0, Is::Eq, family),
                (1, Is::MaskedEq(SOCKET_TYPE), 1),
                (2, Is::Ne, 0),
                (2, Is::Ne, 6),
            ])?),
            Tcp::Any => {}
        }
    }
    Ok(rules)
}

/// Denied pairs of sockets.
fn pairs(restrictions: &Restrictions) -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    let unix = u64::from(libc::AF_UNIX.unsigned_abs());
    let mut rules = Vec::new();
    if restrictions.is_hardened {
        rules.push(rule([(0, Is::Ne, unix)])?);
    }
    if restrictions.sockets == Sockets::Off {
        // These send to any address, and can be bound; the others stay connected to each other.
        for kind in [libc::SOCK_DGRAM, libc::SOCK_RAW] {
            let kind = u64::from(kind.unsigned_abs());
            rules.push(rule([
                (0, Is::Eq, unix),
                (1, Is::MaskedEq(SOCKET_TYPE), kind),
            ])?);
        }
    }
    Ok(rules)
}

/// Denies TCP fast open, which connects without `connect`, past Landlock.
fn fast_open() -> Result<Vec<(i64, Vec<SeccompRule>)>, seccompiler::BackendError> {
    let flag = libc::MSG_FASTOPEN.unsigned_abs().into();
    let with = |argument| Ok(vec![rule([(argument, Is::MaskedEq(flag), flag)])?]);
    Ok(vec![
        (libc::SYS_sendto, with(3)?),
        (libc::SYS_sendmsg, with(2)?),
        (libc::SYS_sendmmsg, with(3)?),
    ])
}

/// Calls denied for all arguments.
const DENIED: &[i64] = &[
    // Other processes and their descriptors.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_migrate_pages,
    libc::SYS_move_pages,
    // A time slice shorter than that of the gateway's workers, which would be interrupted at each wake.
    libc::SYS_sched_setattr,
    // Large and young interfaces of the kernel.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_fanotify_init,
    // Mounts and namespaces.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_setns,
    libc::SYS_unshare,
    // Files without their paths.
    libc::SYS_open_by_handle_at,
    // The machine.
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_reboot,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_syslog,
    libc::SYS_vhangup,
    libc::SYS_nfsservctl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_uselib,
    #[cfg(target_arch = "x86_64")]
    libc::SYS__sysctl,
];

/// Keyrings, which all processes of a user share, and which outlive them.
const KEYRINGS: &[i64] = &[libc::SYS_keyctl, libc::SYS_add_key, libc::SYS_request_key];

/// Calls to objects that all processes of an IPC namespace share, and that outlive them. Programs fall
/// back as for a kernel without them.
const IPC: &[i64] = &[
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_shmctl,
    libc::SYS_semget,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_semctl,
    libc::SYS_msgget,
    libc::SYS_msgsnd,
    libc::SYS_msgrcv,
    libc::SYS_msgctl,
    libc::SYS_mq_open,
    libc::SYS_mq_unlink,
];

/// The part of a socket's type that is not a flag.
const SOCKET_TYPE: u64 = 0xf;

/// `ioctl_console(2)`; not in libc.
const TIOCLINUX: u64 = 0x541c;
/// A lease by another name (Linux 6.19, `linux/fcntl.h`).
const F_SETDELEG: u64 = 1040;

/// Landlock watches `truncate` since its interface 3 (Linux 6.2).
const TRUNCATE_SINCE: u32 = 3;

#[cfg(test)]
mod tests {
    use super::super::seccomp::*;

    /// One end of a pair of datagrams sends to the socket of another program.
    #[test]
    fn a_pair_reaches_no_other_socket() {
        use rustix::net::{
            AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket,
            socketpair,
        };

        let dir = tempfile::tempdir().unwrap();
        let connected = [SocketType::STREAM, SocketType::SEQPACKET].map(|kind| {
            let path = dir.path().join(format!("{}.sock", kind.as_raw()));
            let address = SocketAddrUnix::new(path).unwrap();
            let listener = socket(AddressFamily::UNIX, kind, None).unwrap();
            bind(&listener, &address).unwrap();
            listen(&listener, 1).unwrap();
            (kind, address, listener)
        });
        // A filter holds for its thread.
        let confined = std::thread::spawn(move || {
            let pair = |family, kind| socketpair(family, kind, SocketFlags::CLOEXEC, None);
            let unix = AddressFamily::UNIX;
            assert!(pair(unix, SocketType::DGRAM).is_ok());
            let mut restrictions = Restrictions {
                sockets: Sockets::Off,
                ..Restrictions::default()
            };
            rustix::thread::set_no_new_privs(true).unwrap();
            apply(&restrictions).unwrap();
            for kind in [SocketType::DGRAM, SocketType::RAW] {
                assert_eq!(pair(unix, kind).unwrap_err(), rustix::io::Errno::PERM);
            }
            for (kind, address, _listener) in connected {
                let (one, _other) = pair(unix, kind).unwrap();
                let moved = connect(&one, &address);
                assert_eq!(moved.unwrap_err(), rustix::io::Errno::ISCONN);
                assert!(listen(&one, 1).is_err());
            }
            let other = || pair(AddressFamily::INET, SocketType::STREAM).unwrap_err();
            assert_eq!(other(), rustix::io::Errno::OPNOTSUPP);
            restrictions.is_hardened = true;
            apply(&restrictions).unwrap();
            assert_eq!(other(), rustix::io::Errno::PERM);
        });
        confined.join().unwrap();
    }

    /// In profile `open`, a socket of another family was TCP past its bounds.
    #[test]
    fn no_other_family_is_tcp() {
        use rustix::net::{AddressFamily, SocketType, socket};

        for tcp in [Tcp::Off, Tcp::Ports(vec![443])] {
            let confined = std::thread::spawn(move || {
                let made = |family, kind| socket(family, kind, None).map(drop);
                let smc = || made(AddressFamily::from_raw(AF_SMC), SocketType::STREAM);
                rustix::thread::set_no_new_privs(true).unwrap();
                let mut restrictions = Restrictions {
                    is_filtered: true,
                    ..Restrictions::default()
                };
                apply(&restrictions).unwrap();
                assert_ne!(smc(), Err(rustix::io::Errno::PERM));
                restrictions.tcp = tcp;
                apply(&restrictions).unwrap();
                assert_eq!(smc(), Err(rustix::io::Errno::PERM));
                assert_eq!(made(AddressFamily::UNIX, SocketType::STREAM), Ok(()));
                assert_eq!(made(AddressFamily::INET, SocketType::DGRAM), Ok(()));
                assert_eq!(made(AddressFamily::NETLINK, SocketType::RAW), Ok(()));
            });
            confined.join().unwrap();
        }
    }

    /// The owner of a lease on a script stopped the starts of a server.
    #[test]
    fn no_file_is_leased() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let python = "import fcntl, os, sys
file = os.open(sys.argv[1], os.O_RDWR)
fcntl.fcntl(file, fcntl.F_GETLEASE)
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)";
        for (is_filtered, is_hardened) in [(false, false), (true, false), (false, true)] {
            let file = file.clone();
            // A filter holds for its thread and the processes that this starts.
            let confined = std::thread::spawn(move || {
                rustix::thread::set_no_new_privs(true).unwrap();
                let restrictions = Restrictions {
                    is_filtered,
                    is_hardened,
                    ..Restrictions::default()
                };
                apply(&restrictions).unwrap();
                let mut leased = std::process::Command::new("python3");
                leased.args(["-c", python]).arg(file).output().unwrap()
            });
            let output = confined.join().unwrap();
            let errors = String::from_utf8(output.stderr).unwrap();
            let is_denied = is_filtered || is_hardened;
            assert_eq!(output.status.success(), !is_denied, "{errors}");
            assert_eq!(errors.contains("PermissionError: [Errno 1]"), is_denied);
        }
    }

    /// Some twenty children with three pipes of 1 MiB each left all others pipes of 8 KiB.
    #[test]
    fn no_pipe_is_enlarged() {
        for (is_filtered, is_hardened) in [(false, false), (true, false), (false, true)] {
            let confined = std::thread::spawn(move || {
                let (pipe, _writer) = rustix::pipe::pipe().unwrap();
                rustix::thread::set_no_new_privs(true).unwrap();
                let restrictions = Restrictions {
                    is_filtered,
                    is_hardened,
                    ..Restrictions::default()
                };
                apply(&restrictions).unwrap();
                rustix::pipe::fcntl_getpipe_size(&pipe).unwrap();
                rustix::pipe::fcntl_setpipe_size(&pipe, 32 << 10).is_err()
            });
            assert_eq!(confined.join().unwrap(), is_filtered || is_hardened);
        }
    }

    /// Linux; not in libc for every target.
    const AF_SMC: u16 = 43;

    #[test]
    fn filters_compile_and_are_small() {
        let mut restrictions = Restrictions::default();
        assert!(programs(&restrictions).unwrap().is_empty());
        restrictions.tcp = Tcp::Off;
        assert_eq!(programs(&restrictions).unwrap().len(), 2);
        restrictions.tcp = Tcp::Ports(vec![443]);
        restrictions.is_hardened = true;
        let programs = programs(&restrictions).unwrap();
        assert_eq!(programs.len(), 3);
        // The kernel accepts at most 4096 instructions (BPF_MAXINSNS).
        assert!(programs.iter().all(|program| program.len() < 500));
    }
}

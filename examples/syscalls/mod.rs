//! System calls of the hostile child that a sandbox may deny.

use serde_json::Value;

use super::{number, string};

/// Makes one.
pub(crate) fn attempt(name: &str, args: &Value) -> std::io::Result<()> {
    let pid = i32::try_from(number(args, "pid")).unwrap_or(-1);
    let null = std::ptr::null_mut::<u8>();
    // SAFETY: each of them gets numbers and null pointers only, and is meant to fail.
    let outcome = unsafe {
        match (name, string(args, "what").as_str()) {
            ("kill", _) => libc::kill(pid, 0).into(),
            ("attach", _) => libc::ptrace(libc::PTRACE_ATTACH, pid, null, null),
            (_, "unshare") => libc::unshare(libc::CLONE_NEWUSER).into(),
            (_, "clone") => libc::syscall(libc::SYS_clone, libc::CLONE_NEWUSER, 0, 0, 0, 0),
            (_, "clone3") => libc::syscall(libc::SYS_clone3, null, 0),
            (_, "mount") => {
                libc::mount(null.cast(), c"/".as_ptr(), null.cast(), 0, null.cast()).into()
            }
            (_, "bpf") => libc::syscall(libc::SYS_bpf, 0, null, 0),
            (_, "keyctl") => libc::syscall(libc::SYS_keyctl, 0, -3, 0),
            (_, "io_uring") => libc::syscall(libc::SYS_io_uring_setup, 1, null),
            (_, "perf") => libc::syscall(libc::SYS_perf_event_open, null, 0, -1, -1, 0),
            (_, "process_vm_readv") => {
                libc::process_vm_readv(pid, null.cast(), 0, null.cast(), 0, 0) as i64
            }
            (_, "personality") => libc::personality(0x0004_0000).into(),
            (_, "prlimit") => {
                libc::prlimit(pid, libc::RLIMIT_NOFILE, null.cast(), null.cast()).into()
            }
            (_, "packet") => libc::socket(libc::AF_PACKET, libc::SOCK_DGRAM, 0).into(),
            (_, "vsock") => libc::socket(libc::AF_VSOCK, libc::SOCK_STREAM, 0).into(),
            (_, "netfilter") => libc::socket(libc::AF_NETLINK, libc::SOCK_RAW, 12).into(),
            (_, "mptcp") => libc::socket(libc::AF_INET, libc::SOCK_STREAM, 262).into(),
            (_, "udp") => libc::socket(libc::AF_INET, libc::SOCK_DGRAM, 0).into(),
            (_, "tcp") => libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0).into(),
            (_, "route") => libc::socket(libc::AF_NETLINK, libc::SOCK_RAW, 0).into(),
            (_, "x32") => libc::syscall(0x4000_0000 + 39),
            _ => 0,
        }
    };
    if outcome == -1 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(())
}

/// Lets its owner write to a file.
pub(crate) fn chmod(path: &str) -> std::io::Result<()> {
    let all = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(path, all)
}

//! Processes of this binary that are no gateway: the zygote, and the probe for namespaces.
//!
//! Before any runtime, thread or large allocation. Not here: what a zygote does (`zygote`).

use std::{
    ffi::OsStr,
    io,
    path::Path,
    process::{Command, Stdio},
};

use rustix::process::{Pid, WaitOptions};

use super::{
    exec::{NOT_STARTED, refuse},
    supervisor::flags,
    zygote,
};
use crate::backend::{
    linux::{Clone, syscalls::clone},
    sandbox::{Files, Namespaces, Restrictions, Sockets, User, namespace},
};

/// Becomes the zygote if the command line requests it, or a probe, and then never returns.
///
/// The first call of `main`: no thread of the gateway may run yet.
pub fn guard() {
    let mut args = std::env::args_os().skip(1);
    if args.next().is_none_or(|first| first != GUARD_ARGUMENT) {
        return;
    }
    let code = match args.next() {
        Some(stage) if stage == PROBE => probe(),
        Some(stage) if stage == ZYGOTE => match args.next().as_deref().and_then(pid_of) {
            Some(gateway) => {
                zygote::run(gateway).unwrap_or_else(|error| refuse(OsStr::new("guard"), &error))
            }
            None => NOT_STARTED,
        },
        _ => NOT_STARTED,
    };
    std::process::exit(code)
}

/// The namespaces that children can have: a probe process of `program`, this binary, tries them.
pub(crate) fn offered_namespaces(program: &Path) -> Vec<Namespaces> {
    let mut probe = Command::new(program);
    let probe = probe
        .args([GUARD_ARGUMENT, PROBE])
        .env_clear()
        // As for a guard: a small process is cheap to clone.
        .env("MIMALLOC_DISALLOW_ARENA_ALLOC", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let code = probe.status().ok().and_then(|status| status.code());
    // Another code is that of a probe that went wrong.
    let code = code.filter(|code| *code < 1 << PROBED.len());
    let offered = PROBED.into_iter().enumerate();
    let offered = offered.filter(|(at, _)| code.is_some_and(|code| code >> at & 1 == 1));
    offered.map(|(_, namespaces)| namespaces).collect()
}

/// Stage probe: tries to make namespaces; each has a bit in the exit code.
fn probe() -> i32 {
    let tried = PROBED.into_iter().enumerate();
    tried.fold(0, |code, (at, one)| code | i32::from(is_offered(one)) << at)
}

/// Whether a process with these namespaces can be made and set up.
fn is_offered(namespaces: Namespaces) -> bool {
    let user = User::own();
    let restrictions = Restrictions {
        namespaces,
        sockets: Sockets::Root(Vec::new()),
        files: Some(Files {
            read: vec!["/usr".into(), "/proc".into(), "/sys".into()],
            write: Vec::new(),
        }),
        ..Restrictions::default()
    };
    let set_up = || -> io::Result<()> {
        if namespaces == Namespaces::All {
            user.map()?;
        }
        namespace::set_up(&restrictions, None)
    };
    match clone(flags(namespaces), None) {
        Ok(Clone::Child) => std::process::exit(i32::from(set_up().is_err())),
        Ok(Clone::Parent(_)) => {
            let ended = rustix::process::wait(WaitOptions::empty());
            matches!(ended, Ok(Some((_, status))) if status.exit_status() == Some(0))
        }
        Err(_) => false,
    }
}

fn pid_of(text: &OsStr) -> Option<Pid> {
    Pid::from_raw(text.to_str()?.parse().ok()?)
}

/// First argument of a process of this room.
pub(crate) const GUARD_ARGUMENT: &str = "__launch";

/// Second argument of the zygote.
pub(crate) const ZYGOTE: &str = "zygote";

/// The namespaces that are tried, in the order of their bits.
const PROBED: [Namespaces; 2] = [Namespaces::All, Namespaces::Mounts];

/// Second argument of a probe.
const PROBE: &str = "probe";

//! Processes of this binary that are no gateway: the zygote, and the probe for namespaces.
//!
//! Before any runtime, thread or large allocation. Not here: what a zygote does (`zygote`).

use std::{
    ffi::OsStr,
    path::Path,
    process::{Command, Stdio},
};

use rustix::process::{Pid, WaitOptions};

use super::{
    exec::{NOT_STARTED, refuse},
    supervisor::NAMESPACES,
    zygote,
};
use crate::backend::{
    linux::{Clone, syscalls::clone},
    sandbox::{User, namespace},
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

/// Whether children can have user, pid and mount namespaces: a probe process of `program`, this
/// binary, tries.
pub(crate) fn offers_namespaces(program: &Path) -> bool {
    let mut probe = Command::new(program);
    let probe = probe
        .args([GUARD_ARGUMENT, PROBE])
        .env_clear()
        // As for a guard: a small process is cheap to clone.
        .env("MIMALLOC_DISALLOW_ARENA_ALLOC", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    probe.status().is_ok_and(|status| status.success())
}

/// Stage probe: tries to make namespaces.
fn probe() -> i32 {
    let user = User::own();
    let furnished = || user.map().and_then(|()| namespace::set_up(&[], None, None));
    match clone(NAMESPACES, None) {
        Ok(Clone::Child) => std::process::exit(i32::from(furnished().is_err())),
        Ok(Clone::Parent(_)) => {
            let ended = rustix::process::wait(WaitOptions::empty());
            i32::from(!matches!(ended, Ok(Some((_, status))) if status.exit_status() == Some(0)))
        }
        Err(_) => 1,
    }
}

fn pid_of(text: &OsStr) -> Option<Pid> {
    Pid::from_raw(text.to_str()?.parse().ok()?)
}

/// First argument of a process of this room.
pub(crate) const GUARD_ARGUMENT: &str = "__launch";

/// Second argument of the zygote.
pub(crate) const ZYGOTE: &str = "zygote";

/// Second argument of a probe.
const PROBE: &str = "probe";

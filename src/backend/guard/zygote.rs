//! Zygote: the process that guards are forked from.
//!
//! It is this binary under `__launch zygote`, in which nothing runs yet. A forked guard shares its
//! pages and starts without loading a program of many megabytes. The gateway is the parent of each
//! guard, not the zygote, so that only the end of the gateway orphans them.
//!
//! Not here: the gateway's end of the socket (`child::zygote`), and what a guard does (`supervisor`).

use std::{
    fs,
    io::{self, IoSliceMut},
    mem::MaybeUninit,
    os::fd::OwnedFd,
};

use rustix::{
    cmsg_space,
    io::Errno,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags, recvmsg, send,
    },
    process::{DumpableBehavior, Pid},
    stdio::{dup2_stderr, dup2_stdin, dup2_stdout, stdin},
};

use super::supervisor::supervise;
use crate::backend::linux::{
    Clone,
    syscalls::{clone_sibling, close_all_but_streams},
};

/// Stage zygote: forks guards at the gateway's request, until the gateway closes the socket.
///
/// Returns in the zygote with its exit code, and in each guard with that of the guard.
pub(super) fn run(gateway: Pid) -> io::Result<i32> {
    close_all_but_streams()?;
    _ = rustix::thread::set_name(c"lockgate-zygote");
    end_before_gateway();
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    while let Some((order, streams)) = receive()? {
        let forked = match clone_sibling() {
            Ok(Clone::Child) => {
                // If the zygote was killed by now, only the guard can tell of itself.
                _ = answer(order, rustix::process::getpid().as_raw_pid());
                take(streams)?;
                return supervise(gateway);
            }
            Ok(Clone::Parent(guard)) => guard.as_raw_pid(),
            Err(error) => -error.raw_os_error().unwrap_or(Errno::IO.raw_os_error()),
        };
        drop(streams);
        if answer(order, forked).is_err() {
            break;
        }
    }
    Ok(0)
}

/// Has the kernel end guards and servers, which inherit the score, before the gateway when memory ends.
///
/// A process may raise its own without any right, but only while it is dumpable: else the file is root's.
fn end_before_gateway() {
    let file = "/proc/self/oom_score_adj";
    let own = fs::read_to_string(file).unwrap_or_default();
    // In a container it may be higher already.
    if own.trim().parse::<i32>().is_ok_and(|own| own < OOM_SCORE) {
        // A sandbox that does not permit it changes the order only.
        _ = fs::write(file, OOM_SCORE.to_string());
    }
}

/// Answers an order: with the process id of the guard, or a negative error number.
fn answer(order: Order, forked: i32) -> rustix::io::Result<usize> {
    let answer = [order, forked.to_ne_bytes()];
    send(stdin(), answer.as_flattened(), SendFlags::NOSIGNAL)
}

/// Receives an order, and stdin, stdout and stderr of its guard; none once the gateway is gone.
fn receive() -> io::Result<Option<(Order, [OwnedFd; STREAMS])>> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(STREAMS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut order = Order::default();
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = loop {
        let into = &mut [IoSliceMut::new(&mut order)];
        match recvmsg(stdin(), into, &mut control, flags) {
            Err(Errno::INTR) => {}
            received => break received?,
        }
    };
    if received.bytes == 0 {
        return Ok(None);
    }
    let streams = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(received) => Some(received.collect::<Vec<_>>()),
        _ => None,
    });
    match <[OwnedFd; STREAMS]>::try_from(streams.unwrap_or_default()) {
        Ok(streams) if !received.flags.contains(ReturnFlags::CTRUNC) => Ok(Some((order, streams))),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Replaces the streams of the zygote in a guard.
fn take([stdin, stdout, stderr]: [OwnedFd; STREAMS]) -> io::Result<()> {
    // Ctrl-C of a terminal is for the gateway alone, which stops its children in order.
    rustix::process::setpgid(None, None)?;
    dup2_stdin(&stdin)?;
    dup2_stdout(&stdout)?;
    dup2_stderr(&stderr)?;
    Ok(())
}

/// The number of an order to fork a guard, which its answers begin with.
type Order = [u8; 4];

/// Score of guards and servers (`proc_pid_oom_score_adj(5)`): as if each used four fifths of the memory more.
const OOM_SCORE: i32 = 800;

/// Number of streams of a guard.
pub(crate) const STREAMS: usize = 3;

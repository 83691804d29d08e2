//! Guard: the process between the gateway and a server, which ends every process below it.
//!
//! Not here: the side of the gateway (`child`), which says when to stop; and the choice of restrictions (`sandbox`).
//!
//! * `stages`: processes of this binary that are no gateway
//! * `zygote`: process that guards are forked from
//! * `protocol`: the request of the gateway that a guard starts a program
//! * `supervisor`: guard process, from its start to the end of the last process below it
//! * `tree`: processes below a guard, and the signals to them
//! * `init`: process 1 of the namespaces of a child
//! * `exec`: process of a server until `exec`

mod exec;
mod init;
mod protocol;
pub(crate) mod stages;
mod supervisor;
mod tree;
mod zygote;

pub(crate) use self::exec::NO_PROCESS;
pub(crate) use self::protocol::LaunchRequest;
pub(crate) use self::stages::{GUARD_ARGUMENT, ZYGOTE};
pub(crate) use self::zygote::STREAMS;

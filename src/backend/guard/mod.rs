//! Guard: the process between the gateway and a server, which ends every process below it.
//!
//! Not here: the side of the gateway (`child`), which says when to stop; and the choice of restrictions (`sandbox`).
//!
//! * `protocol`: the request of the gateway that a guard starts a program
//! * `supervisor`: guard process, from its start to the end of the last process below it
//! * `tree`: processes below a guard, and the signals to them
//! * `init`: process 1 of the namespaces of a child
//! * `exec`: process of a server until `exec`

mod exec;
mod init;
mod protocol;
pub(crate) mod supervisor;
mod tree;

pub(crate) use self::protocol::LaunchRequest;
pub(crate) use self::supervisor::GUARD_ARGUMENT;

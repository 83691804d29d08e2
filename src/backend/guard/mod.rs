//! The guard: the process between the gateway and a server, which ends every process below it.
//!
//! Not here: the gateway's side (`child`), and the decision which walls a child gets (`sandbox`).
//!
//! * `protocol`: orders of the gateway to a guard
//! * `supervisor`: the guard process, from its start to the end of the last process below it
//! * `tree`: the processes below a guard, and how they are ended
//! * `init`: process 1 of a child's namespaces
//! * `exec`: the process of a server until `exec`

mod exec;
mod init;
mod protocol;
pub(crate) mod supervisor;
mod tree;

pub(crate) use self::protocol::Orders;
pub(crate) use self::supervisor::STAGE;

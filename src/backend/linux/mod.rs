//! Linux system calls of the guard: with std, rustix and libc only, in a process of one thread.
//!
//! Not here: decisions about children (`sandbox`, `guard`).
//!
//! * `syscalls`: system calls that need unsafe code
//! * `poll`: wait for descriptors
//! * `ipc`: removal of System V objects and message queues that outlive a child
//! * `removal`: deletion of directory trees
//! * `regular_file`: opening of files that others chose

pub(crate) mod ipc;
pub(crate) mod poll;
pub(crate) mod regular_file;
pub(crate) mod removal;
pub(crate) mod syscalls;

pub(crate) use self::syscalls::Clone;

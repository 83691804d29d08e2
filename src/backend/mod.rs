//! What runs behind a session: today a child process that speaks MCP on its stdio.
//!
//! `stdio` moves bytes, `launch` is the guard between the gateway and the child, `sandbox` decides
//! what walls a child gets and `confine` puts them up, and `legacy` is the dialect: the translation
//! between messages and lines, without IO. `pool` says who may start a child and when (`circuit`,
//! `turns`), `warm` keeps some started, `shares` and `shared` let sessions share one, over a `lane`,
//! whose lines `audience` tells apart; `roster` knows all that run.
//! `prepare` fills the `stores` that children start from, where `programs` finds what to start;
//! `removal` takes away what they leave.

pub(crate) mod audience;
mod cgroup;
pub(crate) mod circuit;
mod confine;
pub(crate) mod lane;
pub(crate) mod launch;
pub(crate) mod launcher;
pub(crate) mod legacy;
mod namespace;
mod network;
mod orders;
pub(crate) mod pool;
pub(crate) mod prepare;
mod programs;
mod removal;
pub(crate) mod roster;
pub(crate) mod sandbox;
mod seccomp;
mod shared;
pub(crate) mod shares;
pub(crate) mod stderr;
pub(crate) mod stdio;
pub(crate) mod stores;
mod tree;
mod turns;
mod uids;
mod view;
mod warm;

#[cfg(test)]
mod child_tests;

//! What runs behind a session: today a child process that speaks MCP on its stdio.
//!
//! `stdio` moves bytes, `launch` is the guard between the gateway and the child, and
//! `legacy` is the dialect: the translation between messages and lines, without IO. `pool` says
//! who may start a child and when (`circuit`), `warm` keeps some started, `shares` and `shared`
//! let sessions share one, whose lines `audience` tells apart; `roster` knows all that run.

pub(crate) mod audience;
pub(crate) mod circuit;
pub(crate) mod launch;
pub(crate) mod launcher;
pub(crate) mod legacy;
mod orders;
pub(crate) mod pool;
pub(crate) mod roster;
pub(crate) mod shared;
pub(crate) mod shares;
pub(crate) mod stderr;
pub(crate) mod stdio;
mod warm;

#[cfg(test)]
mod child_tests;

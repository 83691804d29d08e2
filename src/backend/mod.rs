//! What runs behind a session: today a child process that speaks MCP on its stdio.
//!
//! `stdio` moves bytes, `launch` is the guard between the gateway and the child, and
//! `legacy` is the dialect: the translation between messages and lines, without IO.

pub(crate) mod launch;
pub(crate) mod launcher;
pub(crate) mod legacy;
mod orders;
mod stderr;
pub(crate) mod stdio;

#[cfg(test)]
mod child_tests;

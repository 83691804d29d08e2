//! The commands.

pub(crate) mod commands;

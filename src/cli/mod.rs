//! The command line: its commands and their dispatch.
//!
//! Not here: the gateway that `run` and `serve` start (`gateway`).
//!
//! * `commands`: all commands, and the dispatch of a command line
//! * `doctor`: `lockgate doctor`
//! * `serve`: `lockgate run` and `serve`
//! * `local`: commands that need no running gateway
//! * `remote`: commands that call the administration API of a running gateway

mod commands;
mod doctor;
mod local;
mod remote;
mod serve;

pub use self::commands::main;

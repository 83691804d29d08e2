//! Commands that need no running gateway.
//!
//! * `check`: mistakes in configuration and manifest, and the capabilities of this machine
//! * `database`: schema, copies and master key of the database
//! * `demo`: the demo server on stdio
//! * `healthcheck`: whether the gateway of a configuration serves
//! * `import`: conversion of an `mcp.json` into a manifest
//! * `key`: new API keys
//! * `progress`: progress of a single command
//! * `prompt`: secrets that a person types
//! * `reach`: notes on files that the children of a server will not find
//! * `runtime`: runtime, configuration and output of a single command

pub(crate) mod check;
pub(crate) mod database;
pub(crate) mod demo;
pub(crate) mod healthcheck;
pub(crate) mod import;
pub(crate) mod key;
pub(crate) mod progress;
pub(crate) mod prompt;
pub(crate) mod reach;
mod runtime;

pub(crate) use self::runtime::{print, said, wait};

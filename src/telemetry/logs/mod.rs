//! Log lines: their forms, and the queue that they go through.
//!
//! Not here: which lines there are, and metrics and traces (`telemetry`).
//!
//! * `format`: level and form of the lines of this process
//! * `json`: one JSON object for each event
//! * `short`: short lines for people
//! * `queue`: the bounded queue, and the thread that writes it

mod format;
mod json;
mod queue;
mod short;

pub(crate) use self::format::{Format, init};
pub(crate) use self::queue::Logs;
pub(crate) use self::short::{CALLS, MIGRATIONS, PREPARATIONS};

//! Output of a preparation: its last lines, and what the log says of it before it has any.
//!
//! Not here: the run itself (`preparations`).

use std::collections::VecDeque;

use bytes::Bytes;

use crate::backend::child::{Child, Exit, stderr::printable};
use crate::declare::{Recipe, Server};
use crate::telemetry::PREPARATIONS;

/// Runs a child to its end with an empty stdin, and keeps the last lines of its stdout.
pub(super) async fn ended(child: &mut Child, said: &mut VecDeque<Bytes>) -> Exit {
    let keep = |line: Bytes| {
        if said.len() == LINES {
            said.pop_front();
        }
        // A part would hold the whole line in memory.
        said.push_back(Bytes::copy_from_slice(&line[..line.len().min(LINE)]));
    };
    child.run_without_input(keep).await
}

/// Last lines of stderr, preceded by those of stdout as far as there is room.
pub(super) fn last_lines(said: &VecDeque<Bytes>, errors: &[u8]) -> Vec<String> {
    let errors: Vec<&[u8]> = errors
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .collect();
    let errors = &errors[errors.len().saturating_sub(LINES)..];
    let room = LINES - errors.len();
    let said = said.iter().skip(said.len().saturating_sub(room));
    let lines = said.map(|line| &**line).chain(errors.iter().copied());
    lines.map(|line| printable(line, LINE)).collect()
}

/// Logs that a preparation begins: one whose store is there takes no time worth a line.
pub(super) fn log_begin(server: &Server, recipe: &Recipe) {
    tracing::info!(
        target: PREPARATIONS,
        {
            tenant.id = server.tenant,
            server.name = server.name,
            subject = recipe.subject()
        },
        "preparing"
    );
}

/// Logs that a server cannot be prepared, without a try.
pub(super) fn log_failure(server: &Server, recipe: &Recipe, why: &str) {
    tracing::warn!(
        target: PREPARATIONS,
        {
            tenant.id = server.tenant,
            server.name = server.name,
            subject = recipe.subject(),
            why
        },
        "cannot prepare"
    );
}

/// Lines of output kept of a failed preparation.
const LINES: usize = 20;

/// Bytes kept of each of these lines.
const LINE: usize = 1024;

/// Bytes of stderr that are kept.
pub(super) const ERRORS: u64 = 64 << 10;

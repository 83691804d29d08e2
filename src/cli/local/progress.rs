//! Progress of a single command, on stderr: a line that is drawn again on a terminal, else a line
//! at the begin and one at the end.

use std::{
    io::{self, IsTerminal},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    base::{Screen, terminal::shortened},
    config::gateway::environment,
    telemetry::Logs,
};

/// Shows `work` while it is under way.
pub(crate) async fn shown<T, E>(
    doing: &str,
    done: &str,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let screen = Screen::of(&environment(), io::stderr().is_terminal());
    // A machine without room for one more thread does the work nevertheless.
    let Ok(logs) = Logs::progress(screen) else {
        return work.await;
    };
    let [doing, done] = [doing, done].map(|text| shortened(text, TEXT_MAX).into_owned());
    let began = Instant::now();
    logs.begin(doing.clone(), doing.clone(), &format!("{doing}\n"));
    let outcome = work.await;
    if outcome.is_ok() {
        let seconds = began.elapsed().as_secs_f64();
        logs.end(doing, &format!("{done}  {seconds:.1} s\n"));
    } else {
        logs.settle();
    }
    logs.flush(FLUSH);
    outcome
}

/// The most characters of a text.
const TEXT_MAX: usize = 300;
/// The time that the end of a command waits for a stalled stderr.
const FLUSH: Duration = Duration::from_millis(500);

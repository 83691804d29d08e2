//! Secrets that a person types: without echo on a terminal.
//!
//! Not here: secrets from files, the environment or a pipe.

use std::io::{self, BufRead, IsTerminal, Read, Write};

use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr,
};
use tokio::signal::unix::{SignalKind, signal};

/// The terminal of stdin without echo; dropped, it is as it was.
struct Silent(Termios);

/// Whether a person may be asked.
pub(crate) fn is_possible() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Asks twice for a new secret, which is not shown.
///
/// # Errors
///
/// Both answers differ, one is empty, or the terminal does not answer.
pub(crate) async fn new_secret(what: &str) -> io::Result<String> {
    let _silent = Silent::begin()?;
    let secret = line(&format!("{what}: ")).await?;
    if secret.is_empty() {
        return Err(io::Error::other("it is empty"));
    }
    if line(&format!("{what} again: ")).await? != secret {
        return Err(io::Error::other("the two differ"));
    }
    Ok(secret)
}

/// Asks whether to do something; only `y` and `yes` are a yes.
///
/// # Errors
///
/// The terminal does not answer.
pub(crate) async fn confirm(what: &str) -> io::Result<bool> {
    let answer = line(&format!("{what}; go on? [y/N] ")).await?;
    let answer = answer.trim();
    Ok(answer.eq_ignore_ascii_case("y") || answer.eq_ignore_ascii_case("yes"))
}

impl Silent {
    #[expect(
        clippy::disallowed_methods,
        reason = "a command has no tracker, and these tasks end with the process"
    )]
    /// Turns the echo off; a signal turns it on again before it ends the process.
    fn begin() -> io::Result<Self> {
        let saved = tcgetattr(io::stdin())?;
        for (kind, code) in [
            (SignalKind::interrupt(), 130),
            (SignalKind::quit(), 131),
            (SignalKind::terminate(), 143),
            (SignalKind::hangup(), 129),
        ] {
            let (mut signals, saved) = (signal(kind)?, saved.clone());
            // Not ended with the prompt: from now on the signal has no other effect.
            tokio::spawn(async move {
                signals.recv().await;
                restore(&saved);
                std::process::exit(code);
            });
        }
        let mut silent = saved.clone();
        silent.local_modes.remove(LocalModes::ECHO);
        silent.local_modes.insert(LocalModes::ECHONL);
        // A stopped process would leave the terminal without echo.
        silent.special_codes[SpecialCodeIndex::VSUSP] = 0;
        // What was typed before the prompt was shown, and is no answer to it.
        tcsetattr(io::stdin(), OptionalActions::Flush, &silent)?;
        Ok(Self(saved))
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        restore(&self.0);
    }
}

fn restore(saved: &Termios) {
    // A terminal that has gone away needs nothing.
    let _ = tcsetattr(io::stdin(), OptionalActions::Now, saved);
}

/// Asks for a line.
async fn line(prompt: &str) -> io::Result<String> {
    let mut screen = io::stderr().lock();
    screen
        .write_all(prompt.as_bytes())
        .and_then(|()| screen.flush())?;
    drop(screen);
    let read = tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        io::stdin().lock().take(MOST).read_line(&mut line)?;
        match line.strip_suffix('\n') {
            Some(line) => Ok(line.to_owned()),
            None => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
        }
    });
    read.await.map_err(io::Error::other)?
}

/// Maximum bytes of an answer: those that a terminal takes as a line.
const MOST: u64 = 4096;

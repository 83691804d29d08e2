//! Failed starts: the last one of each server, as people are told of it.
//!
//! Not here: the circuits that failures open (`circuits`), and the answers to clients
//! (`hub::call::error`).

use std::sync::{Arc, PoisonError, RwLock};

use strum::{Display, IntoStaticStr};

use super::remembered::Remembered;
use crate::{backend::child::stderr::printable, declare::Server};

/// A start that failed.
#[derive(Clone, Debug)]
pub(crate) struct StartFailure {
    /// The stage that failed.
    pub(crate) stage: Stage,
    /// The exit status, or what did not happen, in words.
    pub(crate) why: String,
    /// The last lines of its output.
    pub(crate) output: Vec<String>,
}

/// A stage of a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Display, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub(crate) enum Stage {
    /// The installation of its packages.
    Prepare,
    /// The start of its process.
    Start,
    /// The wait for its answer to `initialize`.
    Initialize,
}

impl StartFailure {
    /// A failure with the last bytes of stderr.
    pub(crate) fn new(stage: Stage, why: &str, stderr: &[u8]) -> Self {
        Self {
            stage,
            why: why.to_owned(),
            output: last_lines(stderr),
        }
    }

    /// Whether another try would end in the same way: the package or its version does not exist.
    pub(crate) fn is_lasting(&self) -> bool {
        let mut lines = self.output.iter();
        lines.any(|line| LASTING.iter().any(|text| line.contains(text)))
    }

    /// The failure in one line: the stage, the reason and the line of its output that tells most.
    pub(crate) fn summary(&self) -> String {
        let Self { stage, why, .. } = self;
        match self.telling() {
            Some(line) => format!("{stage}: {why}: {line}"),
            None => format!("{stage}: {why}"),
        }
    }

    /// The line of the output that tells most: the first message of npm, which ends with where its log
    /// is, or the last line of other programs.
    pub(crate) fn telling(&self) -> Option<&str> {
        let lines = self.output.iter().map(String::as_str);
        let lines = lines.filter(|line| !line.trim().is_empty() && !line.contains(LOG_OF_NPM));
        let of_npm = |line: &&str| NPM.iter().any(|begin| line.starts_with(begin));
        let mut messages = lines.clone().filter(of_npm).filter(|line| is_message(line));
        let message = messages.next().or_else(|| lines.clone().find(of_npm));
        message.or_else(|| lines.clone().next_back())
    }
}

/// Whether a line of npm says more than a member of its error, like `npm error code E404`.
fn is_message(line: &str) -> bool {
    let mut words = line.split_whitespace().skip(2);
    let first = words.next();
    first.is_some_and(|first| !MEMBERS.contains(&first)) && words.next().is_some()
}

/// The last failed start of each server that has not started since.
pub(crate) struct Failures(RwLock<Remembered<String, Arc<StartFailure>>>);

impl Default for Failures {
    fn default() -> Self {
        Self(RwLock::new(Remembered::new(MOST)))
    }
}

impl Failures {
    /// Keeps a failure in place of an earlier one. Those of removed servers stay until there are too many.
    pub(crate) fn note(&self, (tenant, server): (&str, &str), failure: Arc<StartFailure>) {
        let mut failures = self.0.write().unwrap_or_else(PoisonError::into_inner);
        failures.insert(tenant, server.to_owned(), failure);
    }

    /// Forgets the failure of a server that has started.
    pub(crate) fn forget(&self, (tenant, server): (&str, &str)) {
        let is_known = {
            let failures = self.0.read().unwrap_or_else(PoisonError::into_inner);
            failures.get(tenant, server).is_some()
        };
        if is_known {
            let mut failures = self.0.write().unwrap_or_else(PoisonError::into_inner);
            failures.remove(tenant, server);
        }
    }

    /// The last failure of a server.
    pub(crate) fn of(&self, server: &Server) -> Option<Arc<StartFailure>> {
        let failures = self.0.read().unwrap_or_else(PoisonError::into_inner);
        failures.get(&server.tenant, &server.name).cloned()
    }
}

/// The last lines of an output, printable.
fn last_lines(output: &[u8]) -> Vec<String> {
    let lines: Vec<&[u8]> = output
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.trim_ascii().is_empty())
        .collect();
    let last = &lines[lines.len().saturating_sub(LINES)..];
    last.iter().map(|line| printable(line, LINE)).collect()
}

/// What npm and uv say of a package, or a version of it, that their registry does not have.
const LASTING: [&str; 3] = [
    "code E404",
    "code ETARGET",
    "was not found in the package registry",
];
/// The beginnings of npm's lines about an error.
const NPM: [&str; 2] = ["npm error ", "npm ERR! "];
/// What npm says of its log, which is gone with the preparation.
const LOG_OF_NPM: &str = "A complete log of this run";
/// Members of an error that npm prints before its message.
const MEMBERS: [&str; 6] = ["code", "errno", "syscall", "path", "dest", "command"];
/// Lines kept of a failure.
const LINES: usize = 20;
/// Bytes kept of each line.
const LINE: usize = 256;
/// Servers whose failures are kept.
const MOST: usize = 1000;

#[cfg(test)]
mod tests {
    use super::super::failures::*;

    #[test]
    fn a_failure_is_told_in_a_line() {
        let stderr = b"one\n\n\x1b[31mno token\n";
        let failure = StartFailure::new(Stage::Initialize, "exit status 3", stderr);
        assert_eq!(failure.output, ["one", r"\u{1b}[31mno token"]);
        let wanted = r"initialize: exit status 3: \u{1b}[31mno token";
        assert_eq!(failure.summary(), wanted);
        let silent = StartFailure::new(Stage::Start, "exit status 3", b"");
        assert_eq!(silent.summary(), "start: exit status 3");
        let many = "x\n".repeat(LINES * 2);
        let long = StartFailure::new(Stage::Start, "", many.as_bytes());
        assert_eq!(long.output.len(), LINES);
    }

    #[test]
    fn the_message_of_npm_is_told_and_not_the_place_of_its_log() {
        let log = "npm error A complete log of this run can be found in: /x/_logs/1-debug-0.log\n";
        for (output, wanted) in [
            (
                "npm error code SELF_SIGNED\nnpm error errno SELF_SIGNED\nnpm error request to \
                 https://r.test failed, reason: self-signed\n",
                "npm error request to https://r.test failed, reason: self-signed",
            ),
            (
                "npm warn x\nnpm ERR! code E404\nnpm ERR! 404 Not Found - GET https://r.test/x\n\
                 npm ERR! 404\n",
                "npm ERR! 404 Not Found - GET https://r.test/x",
            ),
            ("npm error code E500\n", "npm error code E500"),
            ("one\n  x Because of y\n \n", "  x Because of y"),
        ] {
            let stderr = format!("{output}{log}");
            let failure = StartFailure::new(Stage::Prepare, "it ended with 1", stderr.as_bytes());
            assert_eq!(
                failure.summary(),
                format!("prepare: it ended with 1: {wanted}")
            );
        }
    }

    #[test]
    fn only_a_package_that_does_not_exist_lasts() {
        for (stderr, is_lasting) in [
            ("npm error code E404\nnpm error 404 Not Found\n", true),
            ("npm ERR! code ETARGET\n", true),
            (
                "  x Because nosuch was not found in the package registry\n",
                true,
            ),
            ("npm error code ECONNREFUSED\n", false),
            ("npm error code E503\n", false),
        ] {
            let failure = StartFailure::new(Stage::Prepare, "", stderr.as_bytes());
            assert_eq!(failure.is_lasting(), is_lasting, "{stderr}");
        }
    }

    #[test]
    fn the_last_failure_is_kept_until_a_start_succeeds() {
        let failures = Failures::default();
        let failure = |why| Arc::new(StartFailure::new(Stage::Start, why, b""));
        let why = || {
            let kept = failures.0.read().unwrap();
            kept.get("a", "x").map(|one| one.why.clone())
        };
        failures.note(("a", "x"), failure("1"));
        failures.note(("a", "x"), failure("2"));
        assert_eq!(why().as_deref(), Some("2"));
        failures.forget(("a", "x"));
        assert_eq!(why(), None);
        failures.note(("a", "x"), failure("3"));
        for number in 0..MOST {
            failures.note(("b", &number.to_string()), failure(""));
        }
        assert_eq!(why().as_deref(), Some("3"), "that of another tenant");
        assert!(failures.0.read().unwrap().get("b", "0").is_none());
    }
}

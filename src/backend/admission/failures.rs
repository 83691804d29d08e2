//! Failed starts: the last one of each server, as people are told of it.
//!
//! Not here: the circuits that failures open (`circuits`), and the answers to clients
//! (`hub::call::error`).

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
};

use strum::{Display, IntoStaticStr};

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

    /// The failure in one line: the stage, the reason and the last line of its output.
    pub(crate) fn summary(&self) -> String {
        let Self { stage, why, .. } = self;
        match self.output.last() {
            Some(last) => format!("{stage}: {why}: {last}"),
            None => format!("{stage}: {why}"),
        }
    }
}

/// The last failed start of each server that has not started since.
#[derive(Default)]
pub(crate) struct Failures(RwLock<HashMap<(String, String), Arc<StartFailure>>>);

impl Failures {
    /// Keeps a failure in place of an earlier one.
    pub(crate) fn note(&self, server: (&str, &str), failure: Arc<StartFailure>) {
        let mut failures = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let name = (server.0.to_owned(), server.1.to_owned());
        // Names of removed servers stay until there are too many: which one goes is of no weight.
        if failures.len() >= MOST
            && !failures.contains_key(&name)
            && let Some(other) = failures.keys().next().cloned()
        {
            failures.remove(&other);
        }
        failures.insert(name, failure);
    }

    /// Forgets the failure of a server that has started.
    pub(crate) fn forget(&self, (tenant, server): (&str, &str)) {
        let name = (tenant.to_owned(), server.to_owned());
        let is_known = {
            let failures = self.0.read().unwrap_or_else(PoisonError::into_inner);
            failures.contains_key(&name)
        };
        if is_known {
            let mut failures = self.0.write().unwrap_or_else(PoisonError::into_inner);
            failures.remove(&name);
        }
    }

    /// The last failure of a server.
    pub(crate) fn of(&self, server: &Server) -> Option<Arc<StartFailure>> {
        let name = (server.tenant.clone(), server.name.clone());
        let failures = self.0.read().unwrap_or_else(PoisonError::into_inner);
        failures.get(&name).cloned()
    }
}

/// The last lines of an output, printable.
fn last_lines(output: &[u8]) -> Vec<String> {
    let lines: Vec<&[u8]> = output
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.trim_ascii().is_empty())
        .collect();
    let last = &lines[lines.len().saturating_sub(LINES)..];
    last.iter()
        .map(|line| printable(&line[..line.len().min(LINE)]))
        .collect()
}

/// What npm and uv say of a package, or a version of it, that their registry does not have.
const LASTING: [&str; 3] = [
    "code E404",
    "code ETARGET",
    "was not found in the package registry",
];
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
            let name = ("a".to_owned(), "x".to_owned());
            kept.get(&name).map(|one| one.why.clone())
        };
        failures.note(("a", "x"), failure("1"));
        failures.note(("a", "x"), failure("2"));
        assert_eq!(why().as_deref(), Some("2"));
        failures.forget(("a", "x"));
        assert_eq!(why(), None);
        for number in 0..MOST + 5 {
            failures.note(("a", &number.to_string()), failure(""));
        }
        assert_eq!(failures.0.read().unwrap().len(), MOST);
    }
}

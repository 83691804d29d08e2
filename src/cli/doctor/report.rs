//! The report of an examination, for people and for programs.

use std::fmt::Write;

use serde::Serialize;

use super::causes::Finding;
use crate::base::{Screen, Secret, Tone};

/// The report.
#[derive(Serialize)]
pub(super) struct Report {
    /// The URL that was examined.
    pub(super) url: String,
    /// Whether there is no finding.
    pub(super) ok: bool,
    /// The authentication that the server wants.
    pub(super) authentication: Authentication,
    /// What stands in front, and the transports.
    pub(super) checks: Vec<Line>,
    /// The clients.
    pub(super) clients: Vec<Line>,
    /// The findings, each once.
    pub(super) findings: Vec<Finding>,
    /// The number of requests.
    pub(super) requests: u32,
}

/// The authentication of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Authentication {
    /// None.
    None,
    /// A token.
    Token,
    /// It did not come to that.
    Unknown,
}

/// A line of the report.
#[derive(Serialize)]
pub(super) struct Line {
    /// The name, for programs.
    pub(super) name: &'static str,
    /// The name, for people.
    pub(super) title: &'static str,
    /// The result.
    pub(super) result: Outcome,
    /// More about it.
    pub(super) note: String,
    /// The position of its finding in the list of findings, from 1.
    pub(super) finding: Option<usize>,
}

/// The result of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outcome {
    /// Nothing is wrong.
    Ok,
    /// Something is.
    Finding,
    /// It was not examined.
    Skipped,
}

impl Report {
    /// An empty report.
    pub(super) fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            ok: true,
            authentication: Authentication::Unknown,
            checks: Vec::new(),
            clients: Vec::new(),
            findings: Vec::new(),
            requests: 0,
        }
    }

    /// The line of a result; none means that the server does not have the thing.
    pub(super) fn line(
        &mut self,
        (name, title): (&'static str, &'static str),
        result: Result<Option<String>, Finding>,
    ) -> Line {
        let (result, note, finding) = match result {
            Ok(Some(note)) => (Outcome::Ok, note, None),
            Ok(None) => (Outcome::Skipped, "not offered".to_owned(), None),
            Err(finding) => {
                let note = finding.what.to_owned();
                (Outcome::Finding, note, Some(self.add(finding)))
            }
        };
        Line {
            name,
            title,
            result,
            note,
            finding,
        }
    }

    /// The line of a thing that was not examined.
    pub(super) fn skipped((name, title): (&'static str, &'static str), why: &str) -> Line {
        Line {
            name,
            title,
            result: Outcome::Skipped,
            note: why.to_owned(),
            finding: None,
        }
    }

    /// Adds a finding, unless it is there; returns its position from 1.
    fn add(&mut self, finding: Finding) -> usize {
        self.ok = false;
        // The same cause at the same request, whatever a clock or a random id made of the rest.
        let is_it = |one: &Finding| one.code == finding.code && one.came == finding.came;
        if let Some(at) = self.findings.iter().position(is_it) {
            return at + 1;
        }
        self.findings.push(finding);
        self.findings.len()
    }

    /// Takes the token out of what a server sent back.
    pub(super) fn redact(&mut self, token: &Secret) {
        for finding in &mut self.findings {
            for text in [&mut finding.asked, &mut finding.came, &mut finding.mend] {
                *text = text.replace(token.expose(), "(token)");
            }
        }
    }

    /// The report for people.
    pub(super) fn text(&self, screen: Screen) -> String {
        let mut text = format!("{}\n\n", crate::base::terminal::escaped(&self.url));
        let lines = || self.checks.iter().chain(&self.clients);
        let width = lines().map(|line| line.title.len()).max().unwrap_or(0);
        for (at, line) in lines().enumerate() {
            if at == self.checks.len() {
                text.push('\n');
            }
            let (word, tone) = match line.result {
                Outcome::Ok => ("ok", Tone::Good),
                Outcome::Finding => ("finding", Tone::Bad),
                Outcome::Skipped => ("-", Tone::Faint),
            };
            let number = line
                .finding
                .map_or_else(String::new, |at| format!("{at}: "));
            let word = screen.paint(tone, format!("{word:<7}"));
            let row = format!("{:<width$}  {word}  {number}{}", line.title, line.note);
            text += row.trim_end();
            text.push('\n');
        }
        for (at, one) in self.findings.iter().enumerate() {
            let _ = write!(
                text,
                "\n{}. {} ({})\n   asked    {}\n   came     {}\n   section  {}\n   mend     {}\n",
                at + 1,
                one.what,
                one.code,
                one.asked,
                one.came,
                one.section,
                one.mend
            );
        }
        text
    }
}

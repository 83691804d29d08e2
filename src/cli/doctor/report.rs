//! The report of an examination, for people and for programs.

use std::fmt::Write;

use serde::Serialize;

use super::causes::Finding;
use crate::base::{Screen, Secret, Tone, terminal::shortened};

/// The report. Its texts have no token, and steer no terminal, whatever a server sent.
#[derive(Serialize)]
pub(super) struct Report {
    /// The token of the examination, which a server may send back.
    #[serde(skip)]
    token: Option<Secret>,
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
    /// An empty report of an examination with this token.
    pub(super) fn new(url: &str, token: Option<Secret>) -> Self {
        Self {
            url: without(token.as_ref(), url),
            token,
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
            Ok(Some(note)) => (Outcome::Ok, self.shown(&note, LONGEST), None),
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
    fn add(&mut self, mut finding: Finding) -> usize {
        self.ok = false;
        finding.asked = self.shown(&finding.asked, LONGEST);
        finding.came = self.shown(&finding.came, LONGEST);
        // With what the cause has to say about it.
        finding.mend = self.shown(&finding.mend, 3 * LONGEST);
        // The same cause at the same request, whatever a clock or a random id made of the rest.
        let is_it = |one: &Finding| one.code == finding.code && one.came == finding.came;
        if let Some(at) = self.findings.iter().position(is_it) {
            return at + 1;
        }
        self.findings.push(finding);
        self.findings.len()
    }

    /// A text of at most `most` characters as it is shown. It is cut last: of a token across the cut the begin would be
    /// left.
    fn shown(&self, text: &str, most: usize) -> String {
        shortened(&without(self.token.as_ref(), text), most).into_owned()
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

/// A text without a token, and without the begin of one at its end, where the answer was cut.
fn without(token: Option<&Secret>, text: &str) -> String {
    let Some(token) = token.map(Secret::expose) else {
        return text.to_owned();
    };
    let mut text = text.replace(token, TOKEN);
    let begins = (TELLING..token.len()).rev();
    let mut begins = begins.filter_map(|end| token.get(..end));
    if let Some(begin) = begins.find(|begin| text.ends_with(begin)) {
        text.truncate(text.len() - begin.len());
        text += TOKEN;
    }
    text
}

/// What stands in the place of a token.
const TOKEN: &str = "(token)";
/// The bytes of the begin of a token that tell more than its kind.
const TELLING: usize = 8;
/// The most characters of a text.
const LONGEST: usize = 300;

#[cfg(test)]
mod tests {
    use super::super::{causes, report::*};

    /// An answer was cut before the token was taken out, and of a long token nothing is whole then.
    #[test]
    fn no_part_of_the_token_is_left() {
        let token = format!("eyJhbGciOiJFUzI1NiJ9.{}", "abcdefghij".repeat(50));
        let mut report = Report::new(
            &format!("https://gw.test/?t={token}"),
            Secret::of(token.clone()),
        );
        for came in [
            format!("400 you sent {token} and {token}"),
            format!("400 {} you sent {token}", "x".repeat(270)),
            format!("400 you sent {}", &token[..380]),
        ] {
            let finding = Finding::new(&causes::NOT_MCP, &format!("GET /?t={token}"), &came);
            let finding = finding.mending(&format!("it has to be {token}"));
            let line = report.line(("a", "A"), Err(finding));
            report.checks.push(line);
        }
        let line = report.line(("b", "B"), Ok(Some(format!("log-in at {token}"))));
        report.checks.push(line);
        assert_eq!(report.findings.len(), 3);
        let (json, text) = (
            serde_json::to_string(&report).unwrap(),
            report.text(Screen::default()),
        );
        for shown in [json, text] {
            assert!(!shown.contains(&token[..TELLING]), "{shown}");
            assert!(shown.contains("you sent (token)"), "{shown}");
        }
        assert_eq!(report.findings[0].came, "400 you sent (token) and (token)");
    }
}

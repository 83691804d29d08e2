//! The command line of `lockgate doctor`, and the order of an examination.

use std::{
    fs,
    io::{self, IsTerminal},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use clap::{Args, builder::PossibleValuesParser};
use url::Url;

use super::{
    clients::{CLIENTS, Client},
    front::{Challenge, Door, knock, page},
    login::log_in,
    message::MODERN,
    report::{Authentication, Outcome, Report},
    session::{self, Depth},
    transports::{http_sse, without_sessions},
    visitor::{Limits, Visitor},
};
use crate::{
    base::{
        Screen, Secret,
        terminal::{escaped, escaped_json},
    },
    cli::local::{said, wait},
    config::{gateway::environment, reader::duration},
};

/// `lockgate doctor`
#[derive(Args)]
pub(crate) struct DoctorArgs {
    /// URL of an MCP server, as it is entered in clients
    url: String,
    /// Examine for this client only; can be repeated
    #[arg(long = "client", value_name = "NAME", value_parser = PossibleValuesParser::new(CLIENTS.iter().map(|one| one.name)))]
    clients: Vec<String>,
    /// Environment variable with a token or an API key, with which the examination goes on behind the log-in
    #[arg(long, value_name = "NAME")]
    token_env: Option<String>,
    /// Client ID of a client that is declared at the authorization server; with one --client
    #[arg(long, value_name = "ID")]
    client_id: Option<String>,
    /// Origin of a web page that calls the server, such as `https://inspector.example.com`
    #[arg(long, value_name = "ORIGIN")]
    origin: Option<String>,
    /// PEM file of authorities that clients trust beside those of the system
    #[arg(long, value_name = "F")]
    ca_file: Option<PathBuf>,
    /// Time limit of an answer, such as 10s
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = span)]
    timeout: Duration,
    /// Time for which an idle stream is watched; longer than `stream.keep_alive` of the
    /// gateway
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = span)]
    idle: Duration,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A time of at least 100 ms and at most an hour.
fn span(text: &str) -> Result<Duration, String> {
    let span = duration(text).map_err(|wrong| format!("{}; {}", wrong.what, wrong.remedy))?;
    let is_sane = (Duration::from_millis(100)..=Duration::from_secs(3600)).contains(&span);
    is_sane
        .then_some(span)
        .ok_or_else(|| "use 100ms to 1h".to_owned())
}

impl DoctorArgs {
    /// Examines the server, and prints the report. Exit code: 0 without a finding, 1 with one, 2 after a mistake in
    /// usage.
    pub(crate) fn run(self) -> ExitCode {
        let plan = match self.plan() {
            Ok(plan) => plan,
            Err(mistake) => {
                eprintln!("lockgate: {}", escaped(&mistake));
                return ExitCode::from(2);
            }
        };
        let report = match wait(plan.examine()) {
            Ok(Ok(report)) => report,
            Ok(Err(error)) => {
                eprintln!("lockgate: --ca-file: {error}");
                return ExitCode::from(2);
            }
            Err(code) => return code,
        };
        let screen = Screen::of(&environment(), io::stdout().is_terminal());
        let text = match serde_json::to_string_pretty(&report) {
            Ok(json) if self.json => escaped_json(&json) + "\n",
            _ => report.text(screen),
        };
        match said(text) {
            code if report.ok => code,
            _ => ExitCode::FAILURE,
        }
    }

    fn plan(&self) -> Result<Plan<'_>, String> {
        let url = Url::parse(&self.url).ok();
        let url = url.filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
        let url = url.ok_or(
            "URL: is no URL of a server; write it like https://gw.example.org/t/acme/files/mcp",
        )?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err("URL: has a user name; give a token with --token-env".to_owned());
        }
        let token = match &self.token_env {
            None => None,
            Some(name) => {
                let value = environment().remove(name).and_then(Secret::of);
                Some(value.ok_or_else(|| format!("--token-env: {name} is not set"))?)
            }
        };
        if self.client_id.is_some() && self.clients.len() != 1 {
            return Err("--client-id: is of one client; name it with --client".to_owned());
        }
        let read = |file: &PathBuf| {
            let name = file.display();
            fs::read(file).map_err(|error| format!("--ca-file: {name}: {error}"))
        };
        Ok(Plan {
            url,
            token,
            authorities: self.ca_file.as_ref().map(read).transpose()?,
            args: self,
        })
    }
}

/// An examination.
struct Plan<'a> {
    url: Url,
    token: Option<Secret>,
    authorities: Option<Vec<u8>>,
    args: &'a DoctorArgs,
}

impl Plan<'_> {
    async fn examine(self) -> Result<Report, reqwest::Error> {
        let limits = Limits {
            answer: self.args.timeout,
            idle: self.args.idle,
        };
        let mut report = Report::new(self.url.as_str(), self.token.clone());
        let authorities = self.authorities.as_deref();
        let visitor = Visitor::new(self.url.clone(), self.token.clone(), authorities, &limits);
        let mut visitor = visitor.await?;
        let door = self.front(&mut visitor, &mut report).await;
        if !matches!(door, Door::Shut) {
            self.transports(&mut visitor, &mut report, &door).await;
        }
        self.clients(&mut visitor, &mut report, &door).await;
        report.requests = visitor.requests;
        Ok(report)
    }

    /// What stands in front of the server.
    async fn front(&self, visitor: &mut Visitor, report: &mut Report) -> Door {
        let (door, findings) = knock(visitor).await;
        report.authentication = match &door {
            Door::Open => Authentication::None,
            Door::Challenge(_) => Authentication::Token,
            Door::Shut => Authentication::Unknown,
        };
        let names = ("front", "First request");
        if findings.is_empty() {
            let note = match &door {
                Door::Open => "no log-in",
                _ => "401 with a challenge",
            };
            let line = report.line(names, Ok(Some(note.to_owned())));
            report.checks.push(line);
        }
        for finding in findings {
            let line = report.line(names, Err(finding));
            report.checks.push(line);
        }
        if let (Some(origin), false) = (&self.args.origin, matches!(door, Door::Shut)) {
            let result = page(visitor, origin).await;
            let line = report.line(("cors", "Web pages"), result.map(|()| Some(origin.clone())));
            report.checks.push(line);
        }
        door
    }

    /// The transports, behind the log-in.
    async fn transports(&self, visitor: &mut Visitor, report: &mut Report, door: &Door) {
        if matches!(door, Door::Challenge(_)) && !visitor.has_token() {
            let why = "behind the log-in; --token-env goes on";
            report
                .checks
                .push(Report::skipped(("transports", "Transports"), why));
            return;
        }
        let result = without_sessions(visitor).await;
        let is_refused = result
            .as_ref()
            .is_err_and(|wrong| wrong.code == "token_refused");
        let has_modern = matches!(result, Ok(Some(_)));
        let line = report.line((MODERN, MODERN), result);
        report.checks.push(line);
        if is_refused {
            return;
        }
        let sse = http_sse(visitor).await;
        // A server may have given sessions up, or have HTTP+SSE alone.
        let is_sse_alone = visitor.target.path().ends_with("/sse") && matches!(sse, Ok(Some(_)));
        for (at, revision) in REVISIONS.iter().copied().enumerate() {
            let depth = match at {
                0 => Depth::Streams(self.args.idle),
                _ => Depth::Requests,
            };
            let result = match session::examine(visitor, revision, depth).await {
                Err(wrong)
                    if wrong.code == "initialize_refused" && (has_modern || is_sse_alone) =>
                {
                    Ok(None)
                }
                result => result.map(Some),
            };
            let line = report.line((revision, revision), result);
            report.checks.push(line);
        }
        let line = report.line(("2024-11-05", "2024-11-05 (SSE)"), sse);
        report.checks.push(line);
    }

    /// The clients, each up to its log-in.
    async fn clients(&self, visitor: &mut Visitor, report: &mut Report, door: &Door) {
        let wanted = &self.args.clients;
        let is_wanted =
            |one: &&Client| wanted.is_empty() || wanted.iter().any(|name| name == one.name);
        let has_metadata = |challenge: &Challenge| challenge.resource_metadata.is_some();
        // A token that is good at a server without metadata is an API key, which people enter in their clients.
        let is_examined = report
            .checks
            .iter()
            .any(|line| line.name == REVISIONS[0] && line.result == Outcome::Ok);
        for client in CLIENTS.iter().filter(is_wanted) {
            let names = (client.name, client.title);
            let line = match door {
                Door::Shut => Report::skipped(names, "not examined: see above"),
                Door::Open => report.line(names, Ok(Some("no log-in".to_owned()))),
                Door::Challenge(challenge) if is_examined && !has_metadata(challenge) => {
                    Report::skipped(
                        names,
                        "the server has no log-in; enter the API key in the client",
                    )
                }
                Door::Challenge(challenge) => {
                    let id = self.args.client_id.as_deref();
                    let reached = log_in(visitor, client, challenge, id).await;
                    report.line(names, reached.map(Some))
                }
            };
            report.clients.push(line);
        }
    }
}

/// The revisions with sessions over Streamable HTTP, newest first.
const REVISIONS: [&str; 3] = ["2025-11-25", "2025-06-18", "2025-03-26"];

//! The HTTP client of the administration API, and the outcome of a command.
//!
//! Not here: the commands, and the form of their output (`table`).

use std::{fs, io::Write, process::ExitCode, time::Duration};

use clap::Args;
use reqwest::{Method, Response, StatusCode, header::ACCEPT};
use serde_json::{Value as Json, json};
use url::Url;

use super::table::plain;
use crate::cli::local::wait;
use crate::config::{Config, Mistake, Sources, gateway::environment};

/// The flags of every command: gateway, API key and output format.
#[derive(Args)]
pub(crate) struct Connection {
    /// Where the administration API is
    #[arg(
        long,
        global = true,
        value_name = "URL",
        env = "LOCKGATE_URL",
        default_value = "http://127.0.0.1:8080"
    )]
    url: String,
    /// API key of an administrator; without it, that in `{data_dir}/admin.key`
    #[arg(
        long,
        global = true,
        value_name = "KEY",
        env = "LOCKGATE_KEY",
        hide_env_values = true
    )]
    key: Option<String>,
    /// Print what the API answers, as JSON
    #[arg(long, global = true)]
    json: bool,
}

/// The failure of a command.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The gateway cannot execute the command, or refuses it to this caller.
    Cannot(String),
    /// The command has mistakes: one line each.
    Mistaken(Vec<String>),
}

impl Failure {
    /// A single mistake in a flag or an argument.
    pub(super) fn usage(key: &str, what: &str, remedy: &str) -> Self {
        Self::Mistaken(vec![format!("{key}: {what}; {remedy}")])
    }
}

impl From<Vec<Mistake>> for Failure {
    fn from(mistakes: Vec<Mistake>) -> Self {
        Self::Mistaken(mistakes.iter().map(Mistake::to_string).collect())
    }
}

/// The rest of a request, behind method and path.
#[derive(Default)]
pub(crate) struct Ask<'a> {
    /// Parameters of the query.
    pub(super) query: Vec<(&'a str, String)>,
    /// The JSON body.
    pub(crate) body: Option<Json>,
    /// Refuses what is there already (RFC 9110, section 13.1.2).
    pub(super) only_new: bool,
    /// Asks for lines of JSON in place of a page.
    pub(crate) lines: bool,
}

impl Ask<'_> {
    /// Asks to end something, now or when its calls have ended.
    pub(super) fn ending(now: bool) -> Self {
        let mode = if now { "now" } else { "drain" };
        Self {
            query: vec![("mode", mode.to_owned())],
            ..Self::default()
        }
    }
}

/// A client of the administration API of one gateway.
pub(crate) struct Client {
    http: reqwest::Client,
    base: Url,
    key: String,
    /// Output is the JSON of the API.
    pub(crate) json: bool,
}

impl Client {
    fn of(to: &Connection) -> Result<Self, Failure> {
        let base = Url::parse(&to.url).ok();
        let base = base.filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
        let remedy = "write it like https://gateway.example.com";
        let base = base.ok_or_else(|| Failure::usage("--url", "is no URL of a gateway", remedy))?;
        let mut builder = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT)
            .read_timeout(READ);
        if base.host_str().is_some_and(is_loopback) {
            // The loopback of a proxy is another one.
            builder = builder.no_proxy();
        }
        let http = builder
            .build()
            .map_err(|error| Failure::Cannot(format!("cannot speak HTTP: {error}")))?;
        Ok(Self {
            http,
            base,
            key: key(to)?,
            json: to.json,
        })
    }

    /// Sends a request; a status other than success is a failure.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &[&str],
        ask: Ask<'_>,
    ) -> Result<Response, Failure> {
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(["api", "v1"]).extend(path);
        }
        if !ask.query.is_empty() {
            url.query_pairs_mut().extend_pairs(&ask.query);
        }
        let mut request = self.http.request(method, url).bearer_auth(&self.key);
        if let Some(body) = &ask.body {
            request = request.json(body);
        }
        if ask.only_new {
            request = request.header("if-none-match", "*");
        }
        if ask.lines {
            request = request.header(ACCEPT, "application/x-ndjson");
        } else {
            request = request.timeout(WHOLE);
        }
        let response = request.send().await.map_err(|error| self.broken(&error))?;
        if response.status().is_success() {
            return Ok(response);
        }
        Err(self.problem(response).await)
    }

    /// Sends a request and reads the JSON of its response.
    pub(crate) async fn json(
        &self,
        method: Method,
        path: &[&str],
        ask: Ask<'_>,
    ) -> Result<Json, Failure> {
        let response = self.send(method, path, ask).await?;
        let body = response
            .bytes()
            .await
            .map_err(|error| self.broken(&error))?;
        serde_json::from_slice(&body)
            .map_err(|_| Failure::Cannot(format!("{} does not answer with JSON", self.base)))
    }

    /// The items of all pages of a list, at most `most`.
    pub(crate) async fn items(
        &self,
        path: &[&str],
        query: &[(&str, String)],
        most: usize,
    ) -> Result<Vec<Json>, Failure> {
        let (mut items, mut after) = (Vec::new(), None);
        loop {
            let limit = (most - items.len()).min(PAGE);
            let mut query = query.to_vec();
            query.push(("limit", limit.to_string()));
            query.extend(after.map(|after| ("after", after)));
            let ask = Ask {
                query,
                ..Ask::default()
            };
            let mut page = self.json(Method::GET, path, ask).await?;
            if let Json::Array(found) = page["items"].take() {
                items.extend(found);
            }
            match page["next"].take() {
                Json::String(next) if items.len() < most => after = Some(next),
                _ => return Ok(items),
            }
        }
    }

    /// Reads a response of lines, and prints for each line the result of `each`.
    pub(crate) async fn lines(
        &self,
        path: &[&str],
        query: Vec<(&str, String)>,
        mut each: impl FnMut(&str) -> String,
    ) -> Result<(), Failure> {
        let ask = Ask {
            query,
            lines: true,
            ..Ask::default()
        };
        let mut response = self.send(Method::GET, path, ask).await?;
        let mut rest = Vec::new();
        while let Some(chunk) = response
            .chunk()
            .await
            .map_err(|error| self.broken(&error))?
        {
            rest.extend_from_slice(&chunk);
            let Some(end) = rest.iter().rposition(|byte| *byte == b'\n') else {
                continue;
            };
            let whole: Vec<u8> = rest.drain(..=end).collect();
            let whole = String::from_utf8_lossy(&whole);
            let shown: String = whole.lines().map(|line| each(line) + "\n").collect();
            print(&shown)?;
        }
        Ok(())
    }

    fn broken(&self, error: &reqwest::Error) -> Failure {
        let mut why: &dyn std::error::Error = error;
        while let Some(source) = why.source() {
            why = source;
        }
        let base = &self.base;
        Failure::Cannot(match error {
            _ if error.is_connect() => format!("cannot reach {base}: {why}"),
            _ if error.is_timeout() => format!("{base} did not answer in time"),
            _ => format!("the answer of {base} broke off: {why}"),
        })
    }

    /// The failure in a problem (RFC 9457).
    async fn problem(&self, response: Response) -> Failure {
        let status = response.status();
        let body = response.bytes().await.unwrap_or_default();
        let problem: Json = serde_json::from_slice(&body).unwrap_or_default();
        let error = |error: &Json| {
            let text = |name: &str| plain(error[name].as_str().unwrap_or_default());
            format!("{}: {}; {}", text("key"), text("what"), text("remedy"))
        };
        let errors = problem["errors"].as_array();
        let errors: Vec<String> = errors.into_iter().flatten().map(error).collect();
        if status == StatusCode::UNPROCESSABLE_ENTITY && !errors.is_empty() {
            return Failure::Mistaken(errors);
        }
        let detail = problem["detail"].as_str();
        let said = detail.map_or_else(
            || format!("{} answered {status}", self.base),
            |detail| format!("{} ({})", plain(detail), status.as_u16()),
        );
        match status {
            StatusCode::BAD_REQUEST
            | StatusCode::PAYLOAD_TOO_LARGE
            | StatusCode::UNSUPPORTED_MEDIA_TYPE
            | StatusCode::UNPROCESSABLE_ENTITY => Failure::Mistaken(vec![said]),
            _ => Failure::Cannot(said),
        }
    }
}

/// Runs a command on a gateway and prints its result.
pub(crate) fn run(
    to: &Connection,
    act: impl AsyncFnOnce(&Client) -> Result<String, Failure>,
) -> ExitCode {
    let done = match wait(async { act(&Client::of(to)?).await }) {
        Ok(done) => done,
        Err(code) => return code,
    };
    match done.and_then(|text| print(&text)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Cannot(why)) => {
            eprintln!("lockgate: {why}");
            ExitCode::FAILURE
        }
        Err(Failure::Mistaken(lines)) => {
            for line in lines {
                eprintln!("{line}");
            }
            ExitCode::from(2)
        }
    }
}

/// A whole list in the form of one page.
pub(crate) fn page(items: &[Json]) -> Json {
    json!({"items": items, "next": null})
}

fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|error| Failure::Cannot(format!("cannot write: {error}")))
}

/// The API key of the caller: given, or stored on this machine by the gateway's first start.
fn key(to: &Connection) -> Result<String, Failure> {
    if let Some(key) = to.key.as_ref().filter(|key| !key.is_empty()) {
        return Ok(key.trim().to_owned());
    }
    let env = environment();
    let file = if let Some(file) = env.get("LOCKGATE_KEY_FILE") {
        file.into()
    } else {
        let sources = Sources {
            env,
            ..Sources::default()
        };
        let config = Config::load(&sources).map_err(|error| Failure::from(error.mistakes))?;
        config.data_dir.join("admin.key")
    };
    let key = fs::read_to_string(&file).map_err(|error| {
        let what = format!(
            "was not named, and {} cannot be read: {error}",
            file.display()
        );
        Failure::usage("--key", &what, "set LOCKGATE_KEY")
    })?;
    Ok(key.trim().to_owned())
}

fn is_loopback(host: &str) -> bool {
    let address = host.trim_matches(['[', ']']).parse();
    host == "localhost" || address.is_ok_and(|address: std::net::IpAddr| address.is_loopback())
}

/// The deadline of a connection, after which a gateway counts as absent.
const CONNECT: Duration = Duration::from_secs(10);
/// The longest pause in a response; the deadlines of the database are shorter.
const READ: Duration = Duration::from_secs(60);
/// The deadline of a whole response other than lines.
const WHOLE: Duration = Duration::from_secs(120);
/// The maximum of items on a page of the API.
const PAGE: usize = 1000;

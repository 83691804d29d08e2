//! The HTTP client of the administration API, and the result of a command.
//!
//! Not here: the commands, and the format of their output (`table`).

use std::{
    collections::BTreeSet,
    fs, io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use clap::Args;
use reqwest::{
    Method, Response, StatusCode,
    header::{ACCEPT, IF_MATCH, IF_NONE_MATCH},
};
use serde_json::{Value as Json, json};
use url::Url;

use super::table::plain;
use crate::auth::api_key::fingerprint;
use crate::base::{terminal::escaped, without_user};
use crate::cli::local::{self, wait};
use crate::config::{Config, Mistake, Sources, Wrong, gateway::environment, reader::name};
use crate::manifest::Manifest;

/// The flags of every command: gateway, API key and output format.
#[derive(Args)]
pub(crate) struct Connection {
    /// Gateway: a URL, or an address like localhost:9501 or :9501; default: the listener of the
    /// configuration
    #[arg(long, global = true, value_name = "URL", env = "LOCKGATE_URL")]
    url: Option<String>,
    /// Configuration file of the gateway, which has its listener and its data directory
    #[arg(long, global = true, value_name = "F")]
    config: Option<PathBuf>,
    /// API key of an administrator, which the list of processes shows: rather set the variable, or `LOCKGATE_KEY_FILE`;
    /// default: the key in `{data_dir}/admin.key`
    #[arg(
        long,
        global = true,
        value_name = "KEY",
        env = "LOCKGATE_KEY",
        hide_env_values = true
    )]
    key: Option<String>,
    /// Print the JSON of the API
    #[arg(long, global = true)]
    json: bool,
}

impl Connection {
    /// The same for another gateway.
    pub(super) fn at(self, url: String) -> Self {
        Self {
            url: Some(url),
            ..self
        }
    }

    /// The settings of the gateway on this machine.
    fn settings(&self) -> Result<Config, Error> {
        let mut env = environment();
        // A service may have no home. The gateway's is not known then, but its address is.
        env.entry("HOME".to_owned())
            .or_insert_with(|| NO_HOME.to_owned());
        let sources = Sources {
            file: self.config.clone(),
            env,
            ..Sources::default()
        };
        Config::load(&sources).map_err(|error| Error::from(error.mistakes))
    }

    /// The base of the API: what was given, or the listener of the configuration.
    fn base(&self) -> Result<Url, Error> {
        let Some(given) = self.url.as_ref().filter(|given| !given.is_empty()) else {
            let own = own_url(&self.settings()?);
            return Url::parse(&own).map_err(|_| Error::usage("--url", "is missing", ADDRESS));
        };
        let is_url = given.contains("://");
        let text = match given.strip_prefix(':') {
            _ if is_url => given.clone(),
            Some("") => String::new(),
            Some(port) => format!("http://127.0.0.1:{port}"),
            None => format!("http://{given}"),
        };
        let base = Url::parse(&text).ok();
        let base = base.filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
        // A name alone may be meant as http or as https.
        let base = base.filter(|_| is_url || given.contains(':'));
        base.ok_or_else(|| Error::usage("--url", "is no address of a gateway", ADDRESS))
    }
}

/// The home of users that have none (`nobody` of Debian).
const NO_HOME: &str = "/nonexistent";

/// The URL of the administration API of a gateway on this machine.
fn own_url(config: &Config) -> String {
    if config.http.tls.is_some() && config.admin.listen.is_none() {
        // Its certificate is for this name.
        return config.public_url.clone();
    }
    let mut address = config.admin.listen.unwrap_or(config.http.listen);
    if address.ip().is_unspecified() {
        address.set_ip(match address {
            SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    format!("http://{address}")
}

/// The error of a command.
#[derive(Debug)]
pub(crate) enum Error {
    /// The gateway is unreachable, or refuses the command.
    Failed(String),
    /// There is no such object.
    Missing(String),
    /// The object that this names has changed since it was read.
    Changed(String),
    /// The mistakes in the command, one line each.
    Mistakes(Vec<String>),
    /// The reader of the output has seen enough, which ends the command and is no error.
    Unread,
}

impl Error {
    /// A single mistake in a flag or an argument.
    pub(super) fn usage(key: &str, what: &str, remedy: &str) -> Self {
        Self::Mistakes(vec![format!("{key}: {what}; {remedy}")])
    }
}

impl From<Vec<Mistake>> for Error {
    fn from(mistakes: Vec<Mistake>) -> Self {
        Self::Mistakes(mistakes.iter().map(Mistake::to_string).collect())
    }
}

/// The query, body and headers of a request.
#[derive(Default)]
pub(crate) struct RequestOptions<'a> {
    /// Parameters of the query.
    pub(super) query: Vec<(&'a str, String)>,
    /// The JSON body.
    pub(crate) body: Option<Json>,
    /// The precondition of a change (RFC 9110, section 13.1).
    pub(super) condition: Condition,
    /// Requests lines of JSON instead of a page.
    pub(crate) lines: bool,
    /// The manifest in the body, with the places of its keys.
    pub(crate) manifest: Option<&'a Manifest>,
}

/// The precondition of a change.
#[derive(Clone, Copy, Default)]
pub(super) enum Condition {
    /// None.
    #[default]
    None,
    /// There is no such object.
    Absent,
    /// The object has this version.
    Version(i64),
}

impl RequestOptions<'_> {
    /// A request to end sessions or children, at once or after their calls.
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
    /// The file of the key, if that is the one of this machine.
    key_file: Option<PathBuf>,
    /// Prints the JSON of the API.
    pub(crate) json: bool,
}

impl Client {
    fn of(to: &Connection) -> Result<Self, Error> {
        let base = to.base()?;
        let mut builder = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT)
            .read_timeout(READ);
        if base.host_str().is_some_and(is_loopback) {
            // A proxy would connect to its own loopback.
            builder = builder.no_proxy();
        }
        let http = builder
            .build()
            .map_err(|error| Error::Failed(format!("cannot speak HTTP: {error}")))?;
        let (key, key_file) = key(to, &base)?;
        Ok(Self {
            http,
            key,
            key_file,
            base,
            json: to.json,
        })
    }

    /// Whether the gateway is on this machine.
    pub(super) fn is_here(&self) -> bool {
        self.base.host_str().is_some_and(is_loopback)
    }

    /// The hash by which the gateway knows the key of the command.
    pub(super) fn fingerprint(&self) -> String {
        fingerprint(&self.key)
    }

    /// Sends a request; a status other than success is an error.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &[&str],
        options: RequestOptions<'_>,
    ) -> Result<Response, Error> {
        check_names(path)?;
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(["api", "v1"]).extend(path);
        }
        if !options.query.is_empty() {
            url.query_pairs_mut().extend_pairs(&options.query);
        }
        let mut request = self.http.request(method, url).bearer_auth(&self.key);
        if let Some(body) = &options.body {
            request = request.json(body);
        }
        request = match options.condition {
            Condition::None => request,
            Condition::Absent => request.header(IF_NONE_MATCH, "*"),
            Condition::Version(version) => request.header(IF_MATCH, format!("\"{version}\"")),
        };
        if options.lines {
            request = request.header(ACCEPT, "application/x-ndjson");
        } else {
            request = request.timeout(WHOLE);
        }
        let response = request
            .send()
            .await
            .map_err(|error| self.transport_error(&error))?;
        match (response.status(), options.condition) {
            (status, _) if status.is_success() => Ok(response),
            (StatusCode::PRECONDITION_FAILED, Condition::Absent) => {
                let what = format!("{} exists; use --replace (412)", named(path));
                Err(Error::Failed(what))
            }
            (StatusCode::PRECONDITION_FAILED, Condition::Version(_)) => {
                Err(Error::Changed(named(path)))
            }
            _ => Err(self.problem(response, options.manifest).await),
        }
    }

    /// An object; none if there is none.
    pub(super) async fn find(&self, path: &[&str]) -> Result<Option<Json>, Error> {
        match self
            .json(Method::GET, path, RequestOptions::default())
            .await
        {
            Ok(found) => Ok(Some(found)),
            Err(Error::Missing(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sends a request and reads the JSON of its response.
    pub(crate) async fn json(
        &self,
        method: Method,
        path: &[&str],
        options: RequestOptions<'_>,
    ) -> Result<Json, Error> {
        let mut response = self.send(method, path, options).await?;
        let mut body = Vec::new();
        while self.read(&mut response, &mut body).await? {}
        serde_json::from_slice(&body)
            .map_err(|_| Error::Failed(format!("{} does not answer with JSON", self.place())))
    }

    /// The items of all pages of a list, up to `most`.
    pub(crate) async fn items(
        &self,
        path: &[&str],
        query: &[(&str, String)],
        most: usize,
    ) -> Result<Vec<Json>, Error> {
        let (mut items, mut after) = (Vec::new(), None);
        let mut seen = BTreeSet::new();
        loop {
            let limit = (most - items.len()).min(PAGE);
            let mut query = query.to_vec();
            query.push(("limit", limit.to_string()));
            query.extend(after.map(|after| ("after", after)));
            let options = RequestOptions {
                query,
                ..RequestOptions::default()
            };
            let mut page = self.json(Method::GET, path, options).await?;
            if let Json::Array(found) = page["items"].take() {
                items.extend(found);
            }
            match page["next"].take() {
                Json::String(next) if items.len() < most => {
                    if !seen.insert(next.clone()) {
                        let what = format!("{} names a page of a list again", self.place());
                        return Err(Error::Failed(what));
                    }
                    after = Some(next);
                }
                _ => return Ok(items),
            }
        }
    }

    /// Reads a response of lines, and prints the result of `each` for each; returns their number.
    pub(crate) async fn lines(
        &self,
        path: &[&str],
        query: Vec<(&str, String)>,
        mut each: impl FnMut(&str) -> String,
    ) -> Result<usize, Error> {
        let options = RequestOptions {
            query,
            lines: true,
            ..RequestOptions::default()
        };
        let mut response = self.send(Method::GET, path, options).await?;
        let (mut rest, mut count) = (Vec::new(), 0);
        loop {
            let known = rest.len();
            if !self.read(&mut response, &mut rest).await? {
                return Ok(count);
            }
            let end = rest[known..].iter().rposition(|byte| *byte == b'\n');
            let Some(end) = end else {
                continue;
            };
            let whole: Vec<u8> = rest.drain(..=known + end).collect();
            let whole = String::from_utf8_lossy(&whole);
            count += whole.lines().count();
            let output: String = whole.lines().map(|line| each(line) + "\n").collect();
            print(&output)?;
        }
    }

    /// Appends the next part of an answer to what is there of it; returns whether there was one.
    async fn read(&self, response: &mut Response, into: &mut Vec<u8>) -> Result<bool, Error> {
        let chunk = response.chunk().await;
        let Some(chunk) = chunk.map_err(|error| self.transport_error(&error))? else {
            return Ok(false);
        };
        if into.len() + chunk.len() > ANSWER {
            let (base, most) = (self.place(), ANSWER >> 20);
            return Err(Error::Failed(format!(
                "the answer of {base} is longer than {most} MiB"
            )));
        }
        into.extend_from_slice(&chunk);
        Ok(true)
    }

    /// The address of the gateway, for texts of errors.
    fn place(&self) -> String {
        without_user(self.base.as_str())
    }

    fn transport_error(&self, error: &reqwest::Error) -> Error {
        let mut why: &dyn std::error::Error = error;
        while let Some(source) = why.source() {
            why = source;
        }
        let base = self.place();
        Error::Failed(match error {
            _ if error.is_connect() => format!("cannot reach {base}: {why}"),
            _ if error.is_timeout() => format!("{base} did not answer in time"),
            _ => format!("the answer of {base} broke off: {why}"),
        })
    }

    /// The failure in a problem (RFC 9457).
    async fn problem(&self, mut response: Response, manifest: Option<&Manifest>) -> Error {
        let status = response.status();
        let mut body = Vec::new();
        while matches!(self.read(&mut response, &mut body).await, Ok(true)) {}
        let problem: Json = serde_json::from_slice(&body).unwrap_or_default();
        let error = |error: &Json| {
            let text = |name: &str| plain(error[name].as_str().unwrap_or_default());
            let (key, what, remedy) = (text("key"), text("what"), text("remedy"));
            match manifest {
                Some(manifest) => manifest.mistake(&key, what, &remedy).to_string(),
                None => format!("{key}: {what}; {remedy}"),
            }
        };
        let errors = problem["errors"].as_array();
        let errors: Vec<String> = errors.into_iter().flatten().map(error).collect();
        if status == StatusCode::UNPROCESSABLE_ENTITY && !errors.is_empty() {
            return Error::Mistakes(errors);
        }
        let detail = problem["detail"].as_str();
        let message = detail.map_or_else(
            || format!("{} answered {status}", self.place()),
            |detail| format!("{} ({})", plain(detail), status.as_u16()),
        );
        if let (StatusCode::UNAUTHORIZED, Some(file)) = (status, &self.key_file) {
            let file = file.display();
            return Error::Failed(format!(
                "{message}; {file} is no key of this gateway: {OTHER_KEY}"
            ));
        }
        match status {
            StatusCode::BAD_REQUEST
            | StatusCode::PAYLOAD_TOO_LARGE
            | StatusCode::UNSUPPORTED_MEDIA_TYPE
            | StatusCode::UNPROCESSABLE_ENTITY => Error::Mistakes(vec![message]),
            StatusCode::NOT_FOUND => Error::Missing(message),
            _ => Error::Failed(message),
        }
    }
}

/// Refuses what is no name: in a path it would ask for something else.
fn check_names(path: &[&str]) -> Result<(), Error> {
    let check = |key: &str, text: &str, checked: Result<(), Wrong>| {
        let mistake =
            |Wrong { what, remedy }| Error::usage(&plain(&format!("{key}.{text}")), &what, &remedy);
        checked.map_err(mistake)
    };
    let named = |text: &str| name(text).map(drop);
    match path {
        ["tenants", tenant, rest @ ..] => {
            check("tenants", tenant, named(tenant))?;
            let [segment, one, ..] = rest else {
                return Ok(());
            };
            let key = format!("tenants.{tenant}.{}", segment.replace('-', "_"));
            let checked = match *segment {
                "servers" | "providers" | "upstreams" | "api-keys" => named(one),
                _ => segment_name(one),
            };
            check(&key, one, checked)
        }
        ["operator-keys", one, ..] => check("api_keys", one, named(one)),
        _ => Ok(()),
    }
}

/// The name of a user, or the id of a client or a session: the API knows more about them.
fn segment_name(text: &str) -> Result<(), Wrong> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.@".contains(&byte);
    if !text.is_empty() && !text.starts_with('.') && text.bytes().all(fits) {
        return Ok(());
    }
    let remedy = "use letters, digits, -, _, . and @, the first not .";
    Err(Wrong::new(format!("{text:?} is not a name"), remedy))
}

/// An object in words, by its path in the API.
fn named(path: &[&str]) -> String {
    match path {
        ["tenants", tenant] => format!("tenant {tenant}"),
        ["tenants", tenant, kind, name] => {
            format!("{} {tenant}/{name}", kind.trim_end_matches('s'))
        }
        path => path.join("/"),
    }
}

/// Runs a command on a gateway and prints its result.
pub(crate) fn run(
    to: &Connection,
    act: impl AsyncFnOnce(&Client) -> Result<String, Error>,
) -> ExitCode {
    let done = match wait(async { act(&Client::of(to)?).await }) {
        Ok(done) => done,
        Err(code) => return code,
    };
    match done.and_then(|text| print(&text)) {
        Ok(()) | Err(Error::Unread) => ExitCode::SUCCESS,
        Err(Error::Failed(why) | Error::Missing(why)) => {
            eprintln!("lockgate: {}", escaped(&why));
            ExitCode::FAILURE
        }
        Err(Error::Changed(name)) => {
            let name = escaped(&name);
            eprintln!("lockgate: another client keeps changing {name}; try again (412)");
            ExitCode::FAILURE
        }
        Err(Error::Mistakes(lines)) => {
            for line in lines {
                eprintln!("{}", escaped(&line));
            }
            ExitCode::from(2)
        }
    }
}

/// A whole list in the form of one page.
pub(crate) fn page(items: &[Json]) -> Json {
    json!({"items": items, "next": null})
}

fn print(text: &str) -> Result<(), Error> {
    match local::print(&mut io::stdout().lock(), text.as_bytes()) {
        Ok(true) => Ok(()),
        Ok(false) => Err(Error::Unread),
        Err(error) => Err(Error::Failed(format!("cannot write: {error}"))),
    }
}

/// The API key of the caller: given, or stored on this machine by the gateway's first start, and in which file then.
fn key(to: &Connection, base: &Url) -> Result<(String, Option<PathBuf>), Error> {
    if let Some(key) = to.key.as_ref().filter(|key| !key.is_empty()) {
        return Ok((sendable(key, "--key or LOCKGATE_KEY")?, None));
    }
    let given = environment().get("LOCKGATE_KEY_FILE").map(PathBuf::from);
    let (file, remedy) = if let Some(file) = &given {
        (file.clone(), "set LOCKGATE_KEY")
    } else {
        let settings = to.settings()?;
        let file = settings.data_dir.join("admin.key");
        if !is_of(&settings, base) {
            let file = file.display();
            let what = format!("was not named, and {file} is for the gateway of this machine");
            return Err(Error::usage("--key", &what, "set LOCKGATE_KEY"));
        }
        (file, OTHER_KEY)
    };
    let key = fs::read_to_string(&file).map_err(|error| {
        let what = format!(
            "was not named, and {} cannot be read: {error}",
            file.display()
        );
        Error::usage("--key", &what, remedy)
    })?;
    let is_own = given.is_none();
    let key = sendable(&key, &file.display().to_string())?;
    Ok((key, is_own.then_some(file)))
}

/// A key as a header field can have it; `place` is where it is written.
fn sendable(key: &str, place: &str) -> Result<String, Error> {
    let key = key.trim();
    if key.chars().any(char::is_control) {
        let what = "has a line break or another control character inside";
        return Err(Error::usage(place, what, "write one key and nothing else"));
    }
    Ok(key.to_owned())
}

/// Whether a URL is of the gateway with these settings: another one must not be told its key.
fn is_of(settings: &Config, base: &Url) -> bool {
    let has = |own: &str| Url::parse(own).is_ok_and(|own| own.origin() == base.origin());
    base.host_str().is_some_and(is_loopback) || has(&own_url(settings)) || has(&settings.public_url)
}

fn is_loopback(host: &str) -> bool {
    let address = host.trim_matches(['[', ']']).parse();
    host == "localhost" || address.is_ok_and(|address: std::net::IpAddr| address.is_loopback())
}

/// How to administrate without the key of this machine, which a copy of the database does not bring back.
const OTHER_KEY: &str =
    "set LOCKGATE_KEY; without any key start the gateway once with LOCKGATE_ADMIN_KEY";
/// How to name a gateway.
const ADDRESS: &str = "write it like https://gateway.example.com or localhost:8080";
/// The deadline of a connection, after which a gateway counts as absent.
const CONNECT: Duration = Duration::from_secs(10);
/// The longest pause in a response; the deadlines of the database are shorter.
const READ: Duration = Duration::from_secs(60);
/// The deadline of a whole response other than lines.
const WHOLE: Duration = Duration::from_secs(120);
/// The most bytes of an answer, or of a line where it is printed line by line: those of a page of the largest objects,
/// and more.
const ANSWER: usize = 256 << 20;
/// The maximum of items on a page of the API.
const PAGE: usize = 1000;

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::super::client::*;

    fn client(url: &str) -> Client {
        let client = Client::of(&Connection {
            url: Some(url.to_owned()),
            config: None,
            key: Some("k".to_owned()),
            json: false,
        });
        client.unwrap()
    }

    #[test]
    fn an_address_is_a_url_a_host_with_port_or_a_port() {
        let base = |given: &str| {
            let to = Connection {
                url: Some(given.to_owned()),
                config: None,
                key: None,
                json: false,
            };
            to.base().ok().map(String::from)
        };
        for (given, url) in [
            ("https://gw.test/x", "https://gw.test/x"),
            ("localhost:9501", "http://localhost:9501/"),
            (":9501", "http://127.0.0.1:9501/"),
            ("[::1]:9501", "http://[::1]:9501/"),
            ("gw.test:80", "http://gw.test/"),
        ] {
            assert_eq!(base(given).as_deref(), Some(url), "{given}");
        }
        for wrong in [
            "gw.test",
            ":",
            ":x",
            "ftp://h",
            "http://",
            "localhost:99999",
        ] {
            assert_eq!(base(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn no_text_repeats_the_password_of_a_url() {
        let client = client("http://u:SECRET@127.0.0.1:1");
        assert_eq!(client.place(), "http://…@127.0.0.1:1/");
    }

    #[test]
    fn a_key_that_is_no_header_field_is_named() {
        for (key, wanted) in [
            ("lgk_x\n", Some("lgk_x")),
            ("lgk_x\nlgk_y", None),
            ("lgk\u{1b}x", None),
        ] {
            match sendable(key, "--key or LOCKGATE_KEY") {
                Ok(key) => assert_eq!(Some(key.as_str()), wanted),
                Err(Error::Mistakes(lines)) => {
                    assert!(lines[0].contains("LOCKGATE_KEY: has"), "{lines:?}");
                    assert_eq!(wanted, None, "{key:?}");
                }
                Err(error) => panic!("{error:?}"),
            }
        }
    }

    #[tokio::test]
    async fn an_answer_without_end_is_not_read() {
        let client = client("http://127.0.0.1:1");
        for (length, is_read) in [(0, true), (ANSWER, false)] {
            let mut answer = Response::from(http::Response::new("x"));
            let mut body = vec![0; length];
            let read = client.read(&mut answer, &mut body).await;
            assert_eq!(read.is_ok(), is_read, "{read:?}");
            assert_eq!(body.len(), length + usize::from(is_read));
        }
    }

    #[tokio::test]
    async fn a_page_that_names_itself_ends_a_list() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = client(&format!("http://{}", listener.local_addr().unwrap()));
        let answering = async move {
            for _ in 0..2 {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = [0; 4096];
                assert!(stream.read(&mut request).await.unwrap() > 0);
                let body = r#"{"items": [1], "next": "x"}"#;
                let head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length";
                let answer = format!("{head}: {}\r\n\r\n{body}", body.len());
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        };
        let (listed, ()) = tokio::join!(client.items(&["tenants"], &[], usize::MAX), answering);
        let Err(Error::Failed(why)) = listed else {
            panic!("{listed:?}");
        };
        assert!(why.ends_with("names a page of a list again"), "{why}");
    }

    #[test]
    fn what_is_no_name_is_in_no_path() {
        let said = |path: &[&str]| match check_names(path) {
            Err(Error::Mistakes(lines)) => lines[0].clone(),
            _ => String::new(),
        };
        let remedy = "use a-z, 0-9 and -, at most 63, the first not -";
        let wanted = format!("tenants.My Team: \"My Team\" is not a name; {remedy}");
        assert_eq!(said(&["tenants", "My Team"]), wanted);
        for (path, begin) in [
            (&["tenants", "..", "servers"][..], "tenants...: "),
            (&["tenants", "a", "servers", ".."], "tenants.a.servers...: "),
            (
                &["tenants", "a", "servers", "X", "logs"],
                "tenants.a.servers.X: ",
            ),
            (
                &["tenants", "a", "api-keys", "a/b"],
                "tenants.a.api_keys.a/b: ",
            ),
            (
                &["tenants", "a", "users", "Bob X"],
                "tenants.a.users.Bob X: ",
            ),
            (
                &["tenants", "a", "sessions", "..", "x"],
                "tenants.a.sessions...: ",
            ),
            (&["tenants", "a", "clients", ""], "tenants.a.clients.: "),
            (&["operator-keys", "a/b"], "api_keys.a/b: "),
        ] {
            assert!(said(path).starts_with(begin), "{path:?}: {}", said(path));
        }
        for path in [
            &["tenants", "a", "users", "ada@corp.test"][..],
            &["tenants", "a", "clients", "c_aX-9"],
            &["tenants"],
            &["operator-keys", "eve"],
            &["status"],
        ] {
            assert_eq!(said(path), "", "{path:?}");
        }
    }

    #[test]
    fn the_configuration_has_the_address_of_its_gateway() {
        let url = |set: &[&str]| {
            let sources = Sources {
                env: [("HOME".to_owned(), "/home/ada".to_owned())].into(),
                set: set.iter().map(|&set| set.to_owned()).collect(),
                ..Sources::default()
            };
            own_url(&Config::load(&sources).unwrap())
        };
        assert_eq!(url(&[]), "http://127.0.0.1:8080");
        let public = ["http.listen=0.0.0.0:9501", "public_url=https://gw.test"];
        assert_eq!(url(&public), "http://127.0.0.1:9501");
        let both = [&public[..], &["admin.listen=[::]:9600"]].concat();
        assert_eq!(url(&both), "http://[::1]:9600");
    }

    #[test]
    fn the_key_of_this_machine_is_for_its_gateway() {
        let sources = Sources {
            env: [("HOME".to_owned(), "/home/ada".to_owned())].into(),
            set: ["admin.listen=10.0.0.7:9091", "public_url=https://gw.test"]
                .map(str::to_owned)
                .into(),
            ..Sources::default()
        };
        let settings = Config::load(&sources).unwrap();
        for (base, is_own) in [
            ("http://localhost:9091", true),
            ("http://127.0.0.1:1", true),
            ("http://10.0.0.7:9091", true),
            ("https://gw.test/", true),
            ("http://gw.test/", false),
            ("https://gw.test:8443/", false),
            ("https://other.test/", false),
            ("http://10.0.0.8:9091", false),
        ] {
            assert_eq!(
                is_of(&settings, &Url::parse(base).unwrap()),
                is_own,
                "{base}"
            );
        }
    }
}

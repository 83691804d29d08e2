//! The gateway's own configuration: defaults, then a file, the environment, and flags.
//!
//! Only here are the environment and the configuration file read. Not here: tenants and
//! servers, which stand in the manifest (`control/manifest`).

use std::{
    collections::BTreeMap,
    fmt,
    net::SocketAddr,
    num::NonZeroU64,
    path::{Path, PathBuf},
    time::Duration,
};

use ipnet::IpNet;
use tracing_subscriber::EnvFilter;

pub(crate) use super::cluster::{Cluster, Drain, Log, Redis};
use super::listeners::{Admin, Ops};
pub(crate) use super::oauth::Issuing;
pub(crate) use super::reader::Mistake;
pub(crate) use super::sources::Override;
pub(crate) use super::storage::Keeping;
use super::{
    address::{address, host, network, origin, public_url},
    document::Node,
    reader::{Wrong, choice, name},
    separation::{Separation, Uids},
    sources::Layers,
};

/// The checked settings of one gateway.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// The URL under which clients reach it, without a slash at the end.
    pub(crate) public_url: String,
    /// Where files are kept; empty if nothing says where, which only `run` allows.
    pub(crate) data_dir: PathBuf,
    /// The public listener.
    pub(crate) http: Http,
    /// The operations listener.
    pub(crate) ops: Ops,
    /// The administration API.
    pub(crate) admin: Admin,
    /// Tenant and server that `/mcp` means.
    pub(crate) default: Option<(String, String)>,
    /// Who may call.
    pub(crate) auth: Auth,
    /// Special-purpose networks that may be asked for documents all the same.
    pub(crate) outbound_allow: Vec<IpNet>,
    /// How long sessions live.
    pub(crate) session: Session,
    /// How streams are written.
    pub(crate) stream: Stream,
    /// Bounds of the event log.
    pub(crate) log: Log,
    /// How the gateway ends.
    pub(crate) drain: Drain,
    /// What replicas share; none is one gateway alone, in memory.
    pub(crate) redis: Option<Redis>,
    /// How replicas reach each other.
    pub(crate) cluster: Cluster,
    /// How many children, and how fast.
    pub(crate) spawn: Spawn,
    /// What separates children.
    pub(crate) sandbox: Sandbox,
    /// What is kept.
    pub(crate) keeping: Keeping,
    /// What the authorization servers of tenants issue.
    pub(crate) oauth: Issuing,
    /// What is logged.
    pub(crate) telemetry: Telemetry,
    /// Keys of the one server of `run`, in the order of the flags; empty in `serve`.
    pub(crate) server: Vec<Override>,
    /// Whether nobody wrote `public_url`, so that it follows the listener.
    is_url_derived: bool,
    /// Where keys are written that are not left to their defaults.
    written: BTreeMap<String, String>,
}

/// The public listener.
#[derive(Clone, Debug)]
pub(crate) struct Http {
    /// Where it listens; port 0 is a free one.
    pub(crate) listen: SocketAddr,
    /// Further hosts that requests may name.
    pub(crate) allowed_hosts: Vec<String>,
    /// Further origins that may call.
    pub(crate) allowed_origins: Vec<String>,
    /// Whose `X-Forwarded-For` is believed.
    pub(crate) trusted_proxies: Vec<IpNet>,
    /// Largest body of a request, in bytes.
    pub(crate) max_body: usize,
    /// Connections at once.
    pub(crate) max_connections: usize,
    /// Requests a second of one address; none is without bound.
    pub(crate) per_address: Option<NonZeroU64>,
    /// Certificate and key; none is plain HTTP.
    pub(crate) tls: Option<Tls>,
}

/// The files of a TLS listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tls {
    /// Certificate chain, PEM.
    pub(crate) cert: PathBuf,
    /// Private key, PEM.
    pub(crate) key: PathBuf,
}

/// Who may call.
#[derive(Clone, Debug)]
pub(crate) struct Auth {
    /// Whether tenants without authentication may be served beyond loopback.
    pub(crate) insecure: bool,
}

/// How many children, and how fast.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spawn {
    /// Children that are starting at a time.
    pub(crate) parallel: usize,
    /// How long a start may wait for its turn.
    pub(crate) wait: Duration,
    /// Children of the whole gateway.
    pub(crate) children: usize,
}

/// How long sessions live; zero is without end.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    /// Without a request or an attached listener.
    pub(crate) idle: Duration,
    /// At most.
    pub(crate) max: Duration,
}

/// How streams are written.
#[derive(Clone, Debug)]
pub(crate) struct Stream {
    /// Silence before a comment; zero is never.
    pub(crate) keep_alive: Duration,
    /// When clients should connect again.
    pub(crate) retry: Duration,
    /// Open streams of one session.
    pub(crate) per_session: usize,
}

/// What separates children.
#[derive(Clone, Debug)]
pub(crate) struct Sandbox {
    /// Whether several tenants may share one user id.
    pub(crate) shared_uid: bool,
    /// User ids for children.
    pub(crate) uids: Option<Uids>,
    /// The one way to keep children apart; none is the first that works.
    pub(crate) separation: Option<Separation>,
}

/// What is logged.
#[derive(Clone, Debug)]
pub(crate) struct Telemetry {
    /// Filter directives; they parse.
    pub(crate) log: String,
    /// How a line looks.
    pub(crate) format: LogFormat,
}

/// How a line of the log looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// One JSON object.
    Json,
    /// For people.
    Text,
}

/// Where settings come from, beside the defaults.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sources {
    /// `--config`; without it `LOCKGATE_CONFIG`, in `serve`.
    pub(crate) file: Option<PathBuf>,
    /// The environment, as [`environment`] reads it.
    pub(crate) env: BTreeMap<String, String>,
    /// `--set KEY=VALUE`, in order.
    pub(crate) set: Vec<String>,
    /// `--listen ADDR`.
    pub(crate) listen: Option<String>,
    /// Whether this is `lockgate run`: its defaults, its limits, and the keys `server.…`.
    pub(crate) run: bool,
}

impl Sources {
    /// The configuration file, if anybody names one.
    pub(crate) fn file(&self) -> Option<PathBuf> {
        let named = self.env.get("LOCKGATE_CONFIG").filter(|_| !self.run);
        let named = named.filter(|path| !path.is_empty()).map(PathBuf::from);
        self.file.clone().or(named)
    }
}

/// Everything that keeps the gateway from starting.
#[derive(Debug)]
pub(crate) struct LoadError {
    /// At least one mistake.
    pub(crate) mistakes: Vec<Mistake>,
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.mistakes.iter().map(ToString::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl std::error::Error for LoadError {}

impl Config {
    /// The settings that `sources` amount to.
    ///
    /// # Errors
    ///
    /// Every mistake in them.
    pub(crate) fn load(sources: &Sources) -> Result<Self, LoadError> {
        let mut layers = Layers::new(sources.run);
        if let Some(file) = sources.file() {
            layers.add_file(&file);
        }
        layers.add_env(&sources.env);
        for set in &sources.set {
            layers.add_set(set);
        }
        if let Some(listen) = &sources.listen {
            layers.add("http.listen", Node::from_word("--listen", listen));
        }
        let config = layers.read(&sources.env);
        if layers.mistakes.is_empty() {
            Ok(config)
        } else {
            Err(LoadError {
                mistakes: layers.mistakes,
            })
        }
    }

    /// What is wrong if there is more than this one replica: they would share sessions, and neither
    /// users nor revocations.
    pub(crate) fn separate_stores(&self) -> Option<&'static str> {
        let is_separate = self.redis.is_some() && self.keeping.sql_url.is_none();
        is_separate.then_some(SEPARATE_STORES)
    }

    /// Where this key is written: for mistakes that only show when its value is used.
    pub(crate) fn place(&self, key: &str) -> &str {
        self.written
            .get(key)
            .map_or("configuration", String::as_str)
    }

    /// Makes the public URL true once it is known which port was bound.
    pub(crate) fn bind(&mut self, bound: SocketAddr) {
        if self.is_url_derived {
            self.public_url = derived_url(bound, self.http.tls.is_some());
        }
    }
}

/// Key, what, and remedy.
const SEPARATE_STORES: &str = "sql.url: is not set while redis.url is: each replica has users, keys, \
    servers and revocations of its own; write sql.url, the same PostgreSQL for all, or leave \
    redis.url out";

/// The process's environment; values that are not UTF-8 are replaced in part and so refused
/// where they are used.
#[must_use]
pub(crate) fn environment() -> BTreeMap<String, String> {
    let lossy = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
    std::env::vars_os()
        .map(|(name, value)| (lossy(name), lossy(value)))
        .collect()
}

/// How the merged layers become settings.
impl Layers {
    fn read(&mut self, env: &BTreeMap<String, String>) -> Config {
        let http = self.http(env);
        let (public_url, is_url_derived) = self.public_url(&http);
        let ops = Ops::read(self, http.listen);
        let redis = Redis::read(self, env);
        let keeping = Keeping::read(self, env);
        Config {
            admin: Admin::read(self, http.listen, ops.listen),
            public_url,
            data_dir: self.data_dir(env),
            http,
            ops,
            default: self.default_server(),
            auth: Auth {
                insecure: self.leaf("auth.insecure", Node::flag),
            },
            outbound_allow: self.leaf("outbound.allow", |node| each(node, network)),
            session: Session {
                idle: self.leaf("session.idle", Node::duration),
                max: self.leaf("session.max", Node::duration),
            },
            stream: Stream {
                keep_alive: self.leaf("stream.keep_alive", Node::duration),
                retry: self.leaf("stream.retry", Node::duration),
                per_session: self.leaf("stream.per_session", Node::at_least_one),
            },
            log: Log::read(self),
            drain: Drain::read(self, redis.as_ref()),
            cluster: Cluster::read(self, redis.as_ref(), keeping.sql_url.as_ref()),
            redis,
            spawn: Spawn {
                parallel: self.leaf("spawn.parallel", Node::at_least_one),
                wait: self.leaf("spawn.wait", Node::duration),
                children: self.leaf("spawn.children", Node::at_least_one),
            },
            sandbox: Sandbox {
                shared_uid: self.leaf("sandbox.shared_uid", Node::flag),
                uids: self.leaf("sandbox.uids", Uids::read),
                separation: self.leaf("sandbox.separation", Separation::read),
            },
            keeping,
            oauth: Issuing::read(self),
            telemetry: Telemetry {
                log: self.leaf("telemetry.log", filter),
                format: self.leaf("telemetry.format", |node| {
                    choice(&node.text()?, &LOG_FORMATS)
                }),
            },
            server: std::mem::take(&mut self.server),
            is_url_derived,
            written: self.written(),
        }
    }

    fn http(&mut self, env: &BTreeMap<String, String>) -> Http {
        let listen = self.leaf("http.listen", |node| address(&node.text()?));
        let cert = self.leaf("http.tls.cert", Node::text);
        let key = self.leaf("http.tls.key", Node::text);
        if cert.is_empty() != key.is_empty() {
            let empty = if cert.is_empty() {
                "http.tls.cert"
            } else {
                "http.tls.key"
            };
            let remedy = "write both http.tls.cert and http.tls.key, or neither";
            self.mistake(empty, "is empty while the other is not", remedy);
        }
        let path = |text: &str| expand(text, env).unwrap_or_else(|_| PathBuf::from(text));
        let tls = (!cert.is_empty()).then(|| Tls {
            cert: path(&cert),
            key: path(&key),
        });
        Http {
            listen,
            allowed_hosts: self.leaf("http.allowed_hosts", |node| each(node, host)),
            allowed_origins: self.leaf("http.allowed_origins", |node| each(node, origin)),
            trusted_proxies: self.leaf("http.trusted_proxies", |node| each(node, network)),
            max_body: self.leaf("http.max_body", Node::some_bytes),
            max_connections: self.leaf("http.max_connections", Node::at_least_one),
            per_address: self.leaf("http.per_address.requests_per_second", |node| {
                Ok(NonZeroU64::new(node.count(0)?.into()))
            }),
            tls,
        }
    }

    fn public_url(&mut self, http: &Http) -> (String, bool) {
        let written = self.leaf("public_url", |node| optional(node, public_url));
        let is_loopback = is_loopback(http.listen);
        if self.run && !is_loopback {
            let what = "run serves without authentication, so only on loopback";
            self.mistake(
                "http.listen",
                what,
                "listen on 127.0.0.1, or use serve with a manifest",
            );
        } else if written.is_none() && !is_loopback {
            let what = "is not set, and http.listen is not loopback";
            self.mistake(
                "public_url",
                what,
                "write the URL that clients use, https://…",
            );
        }
        let is_derived = written.is_none();
        (
            written.unwrap_or_else(|| derived_url(http.listen, http.tls.is_some())),
            is_derived,
        )
    }

    fn data_dir(&mut self, env: &BTreeMap<String, String>) -> PathBuf {
        let text = self.leaf("data_dir", Node::text);
        let is_default = self.is_default("data_dir");
        let state = env.get("XDG_STATE_HOME").map(Path::new);
        // XDG Base Directory Specification: relative paths in its variables are ignored.
        if let Some(state) = state.filter(|state| is_default && state.is_absolute()) {
            return state.join("lockgate");
        }
        match expand(&text, env) {
            Ok(path) if path.as_os_str().is_empty() => {
                self.mistake("data_dir", "is empty", "name a directory");
                path
            }
            Ok(path) => path,
            // Nothing is written there in `run`.
            Err(_) if self.run => PathBuf::new(),
            Err(wrong) => {
                self.mistake("data_dir", &wrong.what, &wrong.remedy);
                PathBuf::new()
            }
        }
    }

    fn default_server(&mut self) -> Option<(String, String)> {
        let tenant = self.leaf("default.tenant", |node| optional(node, name));
        let server = self.leaf("default.server", |node| optional(node, name));
        if self.run {
            return Some((RUN_TENANT.to_owned(), RUN_SERVER.to_owned()));
        }
        let is_empty = |node: &Node| node.text().map(|text| text.is_empty());
        let empty = (
            self.leaf("default.tenant", is_empty),
            self.leaf("default.server", is_empty),
        );
        if empty.0 != empty.1 {
            let empty = if empty.0 {
                "default.tenant"
            } else {
                "default.server"
            };
            let remedy = "write both default.tenant and default.server, or neither";
            self.mistake(empty, "is empty while the other is not", remedy);
        }
        tenant.zip(server)
    }
}

/// Whether only this machine can reach an address.
pub(crate) fn is_loopback(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

fn derived_url(listen: SocketAddr, is_tls: bool) -> String {
    format!("{}://{listen}", if is_tls { "https" } else { "http" })
}

fn optional<T>(node: &Node, parse: impl Fn(&str) -> Result<T, Wrong>) -> Result<Option<T>, Wrong> {
    let text = node.text()?;
    if text.is_empty() {
        Ok(None)
    } else {
        parse(&text).map(Some)
    }
}

fn each<T>(node: &Node, parse: impl Fn(&str) -> Result<T, Wrong>) -> Result<Vec<T>, Wrong> {
    node.items()?
        .iter()
        .map(|item| parse(&item.text()?))
        .collect()
}

fn filter(node: &Node) -> Result<String, Wrong> {
    let text = node.text()?;
    match EnvFilter::builder().parse(&text) {
        Ok(_) => Ok(text),
        Err(error) => {
            let what = format!("{text:?} is no log filter: {error}");
            Err(Wrong::new(what, "write a level like info, or target=level"))
        }
    }
}

/// `~/` is the home directory.
fn expand(text: &str, env: &BTreeMap<String, String>) -> Result<PathBuf, Wrong> {
    let Some(rest) = text.strip_prefix("~/") else {
        return Ok(PathBuf::from(text));
    };
    match env.get("HOME").filter(|home| !home.is_empty()) {
        Some(home) => Ok(Path::new(home).join(rest)),
        None => Err(Wrong::new(
            "begins with ~/, and HOME is not set",
            "write an absolute path",
        )),
    }
}

/// The tenant of `run`.
pub(crate) const RUN_TENANT: &str = "local";
/// The one server of `run`.
pub(crate) const RUN_SERVER: &str = "main";

const LOG_FORMATS: [(&str, LogFormat); 2] = [("json", LogFormat::Json), ("text", LogFormat::Text)];
#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::gateway::*;

    fn env(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        let home = [("HOME", "/home/ada")];
        let all = home.iter().chain(pairs);
        all.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    fn sources(variables: &[(&str, &str)], set: &[&str]) -> Sources {
        Sources {
            env: env(variables),
            set: set.iter().map(|set| (*set).to_owned()).collect(),
            ..Sources::default()
        }
    }

    fn with_file(text: &str) -> (tempfile::TempDir, Sources) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("lockgate.toml");
        fs::write(&file, text).unwrap();
        (
            dir,
            Sources {
                file: Some(file),
                ..sources(&[], &[])
            },
        )
    }

    fn mistakes(sources: &Sources) -> Vec<String> {
        let Err(error) = Config::load(sources) else {
            panic!("no mistake")
        };
        let name = sources
            .file
            .as_ref()
            .map_or(String::new(), |file| file.display().to_string());
        let text = |mistake: &Mistake| mistake.to_string();
        let short = |text: String| {
            if name.is_empty() {
                text
            } else {
                text.replace(&name, "F")
            }
        };
        error.mistakes.iter().map(text).map(short).collect()
    }

    #[test]
    fn defaults_are_those_of_the_design() {
        let config = Config::load(&sources(&[], &[])).unwrap();
        assert_eq!(config.public_url, "http://127.0.0.1:8080");
        assert_eq!(
            config.data_dir,
            Path::new("/home/ada/.local/state/lockgate")
        );
        assert_eq!(config.http.listen, "127.0.0.1:8080".parse().unwrap());
        assert_eq!(config.http.max_body, 4 << 20);
        assert_eq!(config.http.max_connections, 20_000);
        assert_eq!(config.http.tls, None);
        assert_eq!(config.ops.listen, Some("127.0.0.1:9090".parse().unwrap()));
        assert_eq!(config.default, None);
        assert_eq!(config.session.idle, Duration::from_secs(1800));
        assert_eq!(config.session.max, Duration::from_secs(86_400));
        assert_eq!(config.stream.keep_alive, Duration::from_secs(15));
        assert_eq!(config.stream.per_session, 32);
        assert_eq!((config.log.events, config.log.bytes), (1000, 4 << 20));
        assert_eq!(config.drain.timeout, Duration::from_secs(30));
        assert!(!config.auth.insecure && !config.sandbox.shared_uid);
        assert_eq!(config.telemetry.format, LogFormat::Json);
    }

    #[test]
    fn later_sources_win() {
        let (_dir, mut all) =
            with_file("[session]\nidle = \"1s\"\nmax = \"1s\"\n[stream]\nretry = \"1ms\"\n");
        all.env = env(&[
            ("LOCKGATE_SESSION__IDLE", "2s"),
            ("LOCKGATE_SESSION__MAX", "2s"),
        ]);
        all.set = vec!["session.max=3s".to_owned()];
        let config = Config::load(&all).unwrap();
        assert_eq!(config.stream.retry, Duration::from_millis(1));
        assert_eq!(config.session.idle, Duration::from_secs(2));
        assert_eq!(config.session.max, Duration::from_secs(3));
        all.set.push("http.listen=127.0.0.1:1".to_owned());
        all.listen = Some("127.0.0.1:0".to_owned());
        assert_eq!(Config::load(&all).unwrap().http.listen.port(), 0);
    }

    #[test]
    fn file_takes_every_way_to_write_a_table() {
        for text in [
            "http.listen = \"127.0.0.1:1\"\nhttp.tls = {cert = \"c\", key = \"k\"}\n",
            "[http]\nlisten = \"127.0.0.1:1\"\n[http.tls]\ncert = \"c\"\nkey = \"k\"\n",
            "http = {listen = \"127.0.0.1:1\", tls.cert = \"c\", tls.key = \"k\"}\n",
        ] {
            let (_dir, sources) = with_file(text);
            let config = Config::load(&sources).unwrap();
            assert_eq!(config.public_url, "https://127.0.0.1:1", "{text}");
            assert_eq!(config.http.tls.unwrap().key, Path::new("k"));
        }
    }

    #[test]
    fn words_fit_the_type_of_their_key() {
        let config = Config::load(&sources(
            &[
                ("LOCKGATE_HTTP__ALLOWED_HOSTS", "a.example, b.example:81"),
                (
                    "LOCKGATE_HTTP__TRUSTED_PROXIES",
                    "[\"10.0.0.0/8\", \"::1\"]",
                ),
                ("LOCKGATE_LOG__EVENTS", "5"),
                ("LOCKGATE_OPS__LISTEN", ""),
                ("RUST_LOG", "debug"),
                ("LOCKGATE_MASTER_KEY", "x"),
                ("LOCKGATE_APPLY", "x"),
                ("LOCKGATE_KEY_FILE", "x"),
            ],
            &[
                "http.max_body=512",
                "auth.insecure=true",
                "default={tenant=\"a\", server=\"b\"}",
            ],
        ))
        .unwrap();
        assert_eq!(config.http.allowed_hosts, ["a.example", "b.example:81"]);
        assert_eq!(config.http.trusted_proxies.len(), 2);
        assert_eq!((config.log.events, config.http.max_body), (5, 512));
        assert!(config.ops.listen.is_none() && config.auth.insecure);
        assert_eq!(config.telemetry.log, "debug");
        assert_eq!(config.default, Some(("a".to_owned(), "b".to_owned())));
    }

    #[test]
    fn variables_may_name_files() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("idle");
        fs::write(&file, "7s\n").unwrap();
        let name = "LOCKGATE_SESSION__IDLE_FILE";
        let config = Config::load(&sources(&[(name, file.to_str().unwrap())], &[])).unwrap();
        assert_eq!(config.session.idle, Duration::from_secs(7));
        let found = mistakes(&sources(&[(name, "/nonexistent/x")], &[]));
        assert!(
            found[0].starts_with("LOCKGATE_SESSION__IDLE_FILE: session.idle: "),
            "{found:?}"
        );
    }

    #[test]
    fn reports_all_mistakes_with_place_and_remedy() {
        let (_dir, mut all) = with_file(
            "public_url = 5\nhttp.lisen = \"x\"\n[stream]\nretry = \"1x\"\nper_session = 0\n[vault]\nurl = 1\n",
        );
        all.env = env(&[
            ("LOCKGATE_HTTP__LISTNE", "x"),
            ("LOCKGATE_LOG__AGE", "soon"),
        ]);
        all.set = ["sandbox.uid=1-2", "nonsense", "http=5", "server.args=1"]
            .map(String::from)
            .to_vec();
        let mut found = mistakes(&all);
        found.sort();
        insta::assert_snapshot!(found.join("\n"), @r###"
        --set: http: a number where a table is expected; its keys are allowed_hosts, allowed_origins, listen, max_body, max_connections, per_address.requests_per_second, tls.cert, tls.key, trusted_proxies
        --set: nonsense: is no KEY=VALUE; write --set http.listen=127.0.0.1:8080
        --set: sandbox.uid: unknown key; did you mean sandbox.uids?
        --set: server.args: a server's key, which only run takes; write it into the manifest (--apply)
        F:1: public_url: a number where a text is expected; put it in quotes
        F:2: http.lisen: unknown key; did you mean http.listen?
        F:4: stream.retry: "1x" is not a duration; write it like "250ms", "30s" or "1m30s"
        F:5: stream.per_session: 0 is out of range; write a number from 1 to 4294967295
        F:6: vault: unknown key; see config.default.toml for all keys
        LOCKGATE_HTTP__LISTNE: http.listne: unknown variable; did you mean LOCKGATE_HTTP__LISTEN?
        LOCKGATE_LOG__AGE: log.age: "soon" is not a duration; write it like "250ms", "30s" or "1m30s"
        "###);
    }

    #[test]
    fn bad_values_are_refused() {
        for set in [
            "public_url=ftp://x",
            "public_url=http://x/",
            "public_url=http://x?y",
            "public_url=x",
            "http.listen=8080",
            "http.allowed_origins=https://a.example/",
            "http.allowed_origins=example",
            "http.allowed_hosts=https://x",
            "http.trusted_proxies=10/8",
            "http.max_body=",
            "http.max_connections=0",
            "http.tls.cert=x",
            "default.tenant=a",
            "default={tenant=\"A\",server=\"b\"}",
            "telemetry.format=xml",
            "telemetry.log=a=b=c",
            "auth.insecure=1",
            "http.listen=0.0.0.0:1",
            "log.events=-1",
            "ops.listen=127.0.0.1:8080",
            "data_dir=",
            "server.reply.mode=json",
            "http.tls=5",
        ] {
            assert_eq!(mistakes(&sources(&[], &[set])).len(), 1, "{set}");
        }
    }

    #[test]
    fn public_url_follows_the_listener() {
        let mut config = Config::load(&sources(&[], &["http.listen=[::1]:0"])).unwrap();
        config.bind("[::1]:77".parse().unwrap());
        assert_eq!(config.public_url, "http://[::1]:77");
        let set = ["http.listen=0.0.0.0:0", "public_url=https://a.example/x"];
        let mut config = Config::load(&sources(&[], &set)).unwrap();
        config.bind("0.0.0.0:77".parse().unwrap());
        assert_eq!(config.public_url, "https://a.example/x");
    }

    #[test]
    fn data_dir_has_a_home() {
        let at = |variables: &[(&str, &str)], set: &[&str]| {
            Config::load(&sources(variables, set)).unwrap().data_dir
        };
        assert_eq!(
            at(&[("XDG_STATE_HOME", "/s")], &[]),
            Path::new("/s/lockgate")
        );
        assert_eq!(
            at(&[("XDG_STATE_HOME", "s")], &[]),
            Path::new("/home/ada/.local/state/lockgate")
        );
        assert_eq!(
            at(&[("XDG_STATE_HOME", "/s")], &["data_dir=~/d"]),
            Path::new("/home/ada/d")
        );
        let homeless = Sources::default();
        assert_eq!(mistakes(&homeless).len(), 1);
        assert!(
            Config::load(&Sources {
                run: true,
                ..homeless
            })
            .is_ok()
        );
    }

    #[test]
    fn run_has_its_own_defaults() {
        let run = |set: &[&str]| Sources {
            run: true,
            ..sources(&[("LOCKGATE_CONFIG", "/no")], set)
        };
        let config = Config::load(&run(&[
            "server.reply.close_after=300ms",
            "server.tools.\"a.b\".call=1s",
        ]))
        .unwrap();
        assert_eq!(config.drain.timeout, Duration::from_secs(2));
        assert_eq!(config.ops.listen, None);
        assert_eq!(
            config.default,
            Some(("local".to_owned(), "main".to_owned()))
        );
        assert_eq!(config.telemetry.format, LogFormat::Text);
        assert_eq!(config.server[1].path, ["tools", "a.b", "call"]);
        assert_eq!(mistakes(&run(&["http.listen=0.0.0.0:1"])).len(), 1);
        assert_eq!(
            Config::load(&run(&["drain.timeout=9s"]))
                .unwrap()
                .drain
                .timeout
                .as_secs(),
            9
        );
    }

    #[test]
    fn unreadable_and_broken_files_are_mistakes() {
        let missing = Sources {
            file: Some("/nonexistent.toml".into()),
            ..sources(&[], &[])
        };
        assert!(mistakes(&missing)[0].contains("cannot be read"));
        let (_dir, broken) = with_file("a = [\n");
        assert!(mistakes(&broken)[0].starts_with("F:"));
        let by_variable = sources(&[("LOCKGATE_CONFIG", "/nonexistent.toml")], &[]);
        assert_eq!(mistakes(&by_variable).len(), 1);
    }
}

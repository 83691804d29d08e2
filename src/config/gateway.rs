//! The settings of one gateway: from defaults, a file, the environment, and flags.
//!
//! No other file reads the environment or the configuration file. Not here: tenants and servers
//! (`manifest`).

use std::{
    collections::BTreeMap,
    fmt,
    net::SocketAddr,
    num::{NonZeroU64, NonZeroUsize},
    path::{Path, PathBuf},
    time::Duration,
};

use ipnet::IpNet;
use tracing_subscriber::EnvFilter;

use crate::base::budget::machine_memory;

pub(crate) use super::cluster::{Cluster, Drain, Log, Redis};
use super::listeners::{Admin, Ops};
pub(crate) use super::oauth::{OauthSettings, OutboundSettings};
pub(crate) use super::reader::Mistake;
pub(crate) use super::sources::Override;
pub(crate) use super::storage::Storage;
use super::{
    address::{address, host, network, origin, public_url},
    document::Node,
    export::Export,
    reader::{Wrong, choice, name},
    separation::{Children, Separation, Uids},
    sources::{Layers, SettingFile},
    volume::{own_directory, own_work_directory},
};

/// The checked settings of one gateway.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// The base URL for clients, without a trailing slash.
    pub(crate) public_url: String,
    /// The directory of all files; empty if unknown, which only `run` permits.
    pub(crate) data_dir: PathBuf,
    /// The directory of the files of running children; none for one in `data_dir`, or a temporary one.
    pub(crate) work_dir: Option<PathBuf>,
    /// The public listener.
    pub(crate) http: Http,
    /// The operations listener.
    pub(crate) ops: Ops,
    /// The administration API.
    pub(crate) admin: Admin,
    /// The tenant and server behind `/mcp`.
    pub(crate) default: Option<(String, String)>,
    /// Authentication of callers.
    pub(crate) auth: Auth,
    /// Requests of the gateway itself.
    pub(crate) outbound: OutboundSettings,
    /// Lifetimes of sessions.
    pub(crate) session: Session,
    /// Settings of streams.
    pub(crate) stream: Stream,
    /// Bounds of the event log.
    pub(crate) log: Log,
    /// Limits of what the gateway keeps.
    pub(crate) limits: Limits,
    /// Timeouts of the shutdown.
    pub(crate) drain: Drain,
    /// The Redis that replicas share; none for a single gateway with state in memory.
    pub(crate) redis: Option<Redis>,
    /// Connections between replicas.
    pub(crate) cluster: Cluster,
    /// Limits of children and their starts.
    pub(crate) spawn: Spawn,
    /// The environment that all children share.
    pub(crate) children: Children,
    /// Separation of children.
    pub(crate) sandbox: Sandbox,
    /// Location, encryption and retention of stored data.
    pub(crate) storage: Storage,
    /// Settings of the tenants' authorization servers.
    pub(crate) oauth: OauthSettings,
    /// Logs, and the export of traces and metrics.
    pub(crate) telemetry: Telemetry,
    /// This is `lockgate run`, whose caller owns its server.
    pub(crate) is_run: bool,
    /// Keys of the one server of `run`, in the order of the flags; empty in `serve`.
    pub(crate) server: Vec<Override>,
    /// The files that contain settings, by their keys.
    pub(super) files: BTreeMap<String, SettingFile>,
    /// `public_url` is not set, so it follows the listener.
    is_url_derived: bool,
    /// The places of all keys that are set.
    written: BTreeMap<String, String>,
}

/// The public listener.
#[derive(Clone, Debug)]
pub(crate) struct Http {
    /// Its address; port 0 for a free one.
    pub(crate) listen: SocketAddr,
    /// Additional hosts that requests may name.
    pub(crate) allowed_hosts: Vec<String>,
    /// Additional origins that may call.
    pub(crate) allowed_origins: Vec<String>,
    /// Proxies whose `X-Forwarded-For` is trusted.
    pub(crate) trusted_proxies: Vec<IpNet>,
    /// Maximum bytes of a request body.
    pub(crate) max_body: usize,
    /// Maximum number of connections.
    pub(crate) max_connections: usize,
    /// Maximum requests per second of one address; none for no limit.
    pub(crate) per_address: Option<NonZeroU64>,
    /// Maximum connections of one address; none for as many as are free.
    pub(crate) address_connections: Option<u64>,
    /// The requests that have a line in the log.
    pub(crate) access_log: LoggedRequests,
    /// Certificate and key; none for plain HTTP.
    pub(crate) tls: Option<Tls>,
}

/// The requests that have a line in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoggedRequests {
    /// All.
    All,
    /// Those that are answered by 400 or above.
    Errors,
    /// Errors, and a sample of the others.
    Sampled,
    /// None.
    Off,
}

/// The files of a TLS listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tls {
    /// Certificate chain, PEM.
    pub(crate) cert: PathBuf,
    /// Private key, PEM.
    pub(crate) key: PathBuf,
}

/// Authentication of callers.
#[derive(Clone, Debug)]
pub(crate) struct Auth {
    /// Tenants without authentication may be served beyond loopback.
    pub(crate) insecure: bool,
}

/// Limits of what the gateway keeps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Maximum bytes of requests and answers under way.
    pub(crate) memory: u64,
    /// Threads that serve requests.
    pub(crate) workers: usize,
}

impl Limits {
    /// Reads the keys of `limits`.
    fn read(layers: &mut Layers, max_body: usize) -> Self {
        let least = (max_body as u64).saturating_mul(BODIES);
        let written = layers.leaf("limits.memory", Node::size);
        if written > 0 && written < least {
            let what = format!("is less than {BODIES} bodies of http.max_body");
            let remedy = "write more, or a smaller http.max_body, or nothing";
            layers.mistake("limits.memory", &what, remedy);
        }
        let usual = (machine_memory() / 4).max(LEAST_MEMORY).max(least);
        let workers = layers.leaf("limits.workers", |node| {
            let count = usize::try_from(node.count(0)?).ok();
            let count = count.filter(|count| *count <= MOST_WORKERS);
            count.ok_or_else(|| {
                Wrong::new(
                    "is no number of threads",
                    format!("write 0 to {MOST_WORKERS}"),
                )
            })
        });
        let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        Self {
            memory: if written > 0 { written } else { usual },
            workers: if workers > 0 {
                workers
            } else {
                usual_workers(processors)
            },
        }
    }
}

/// The threads that serve requests where the configuration does not say: three for every four processors.
///
/// The rest is left to children. Where a request wakes two threads of the gateway, the kernel moves the child that
/// it is for to another processor, which may be busy.
fn usual_workers(processors: usize) -> usize {
    (processors * 3 / 4).max(1)
}

/// Most threads that serve requests.
const MOST_WORKERS: usize = 1024;

/// The least `limits.memory` in bodies: one takes four times its length of what is free for a principal alone, and a
/// little for the call.
const BODIES: u64 = 5;
/// The least default of `limits.memory`.
const LEAST_MEMORY: u64 = 64 << 20;

/// Limits of children and their starts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spawn {
    /// Maximum number of children that start at the same time.
    pub(crate) parallel: usize,
    /// Maximum time that a start waits for its slot.
    pub(crate) wait: Duration,
    /// Maximum number of children of the gateway.
    pub(crate) children: usize,
}

/// Lifetimes of sessions; zero is unlimited.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    /// Maximum time without a request or a listener stream.
    pub(crate) idle: Duration,
    /// Maximum lifetime.
    pub(crate) max: Duration,
    /// The time between two pings of a client; zero is never.
    pub(crate) ping: Duration,
}

/// Settings of streams.
#[derive(Clone, Debug)]
pub(crate) struct Stream {
    /// Idle time before a keep-alive comment; zero is never.
    pub(crate) keep_alive: Duration,
    /// The reconnect delay for clients.
    pub(crate) retry: Duration,
    /// Maximum number of open streams of a session.
    pub(crate) per_session: usize,
}

/// Separation of children.
#[derive(Clone, Debug)]
pub(crate) struct Sandbox {
    /// Several tenants may share one user id.
    pub(crate) shared_uid: bool,
    /// User ids of children.
    pub(crate) uids: Option<Uids>,
    /// The required means of separation; none for the strongest available.
    pub(crate) separation: Option<Separation>,
    /// Networks that children in profile `standard` may not connect to.
    pub(crate) refuse: Vec<IpNet>,
}

/// Logs, and the export of traces and metrics.
#[derive(Clone, Debug)]
pub(crate) struct Telemetry {
    /// Valid filter directives.
    pub(crate) log: String,
    /// The format of log lines.
    pub(crate) format: LogFormat,
    /// The export of traces and metrics.
    pub(crate) export: Export,
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// One JSON object.
    Json,
    /// Text for people, with every field.
    Text,
    /// A short line for each call.
    Short,
    /// Short on a terminal, else JSON.
    Auto,
}

/// The sources of settings besides the defaults.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sources {
    /// `--config`; `serve` falls back to `LOCKGATE_CONFIG`.
    pub(crate) file: Option<PathBuf>,
    /// The environment, as [`environment`] reads it.
    pub(crate) env: BTreeMap<String, String>,
    /// `--set KEY=VALUE`, in order.
    pub(crate) set: Vec<String>,
    /// `--listen ADDR`.
    pub(crate) listen: Option<String>,
    /// This is `lockgate run`, with other defaults, limits, and the keys `server.…`.
    pub(crate) run: bool,
}

impl Sources {
    /// The configuration file, if one is named.
    pub(crate) fn file(&self) -> Option<PathBuf> {
        let from_env = self.env.get("LOCKGATE_CONFIG").filter(|_| !self.run);
        let from_env = from_env.filter(|path| !path.is_empty()).map(PathBuf::from);
        self.file.clone().or(from_env)
    }
}

/// The mistakes that prevent the start.
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
    /// Reads the settings from `sources`.
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
        layers.refuse_in_run();
        let config = layers.read(&sources.env);
        if layers.mistakes.is_empty() {
            Ok(config)
        } else {
            Err(LoadError {
                mistakes: layers.mistakes,
            })
        }
    }

    /// The mistake of a gateway with Redis and a local database: several replicas would share
    /// sessions, but neither users nor revocations.
    pub(crate) fn separate_databases(&self) -> Option<&'static str> {
        let is_separate = self.redis.is_some() && self.storage.sql_url.is_none();
        is_separate.then_some(SEPARATE_DATABASES)
    }

    /// The place of a key, for mistakes that appear only when its value is used.
    pub(crate) fn place(&self, key: &str) -> &str {
        self.written
            .get(key)
            .map_or("configuration", String::as_str)
    }

    /// Completes a derived public URL with the bound port.
    pub(crate) fn bind(&mut self, bound: SocketAddr) {
        if self.is_url_derived {
            self.public_url = derived_url(bound, self.http.tls.is_some());
        }
    }
}

/// Key, mistake, and remedy.
const SEPARATE_DATABASES: &str = "sql.url: is not set while redis.url is: each replica has users, keys, \
    servers and revocations of its own; write sql.url, the same PostgreSQL for all, or leave \
    redis.url out";

/// The environment of the process. Invalid UTF-8 is replaced, and therefore refused where the value
/// is used.
#[must_use]
pub(crate) fn environment() -> BTreeMap<String, String> {
    let lossy = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
    std::env::vars_os()
        .map(|(name, value)| (lossy(name), lossy(value)))
        .collect()
}

/// The conversion of merged layers into settings.
impl Layers {
    fn read(&mut self, env: &BTreeMap<String, String>) -> Config {
        let http = self.http(env);
        let (public_url, is_url_derived) = self.public_url(&http);
        let ops = Ops::read(self, http.listen);
        let redis = Redis::read(self, env);
        let storage = Storage::read(self, env);
        let admin = Admin::read(self, http.listen, ops.listen);
        let listeners = [Some(http.listen), ops.listen, admin.listen];
        Config {
            limits: Limits::read(self, http.max_body),
            cluster: Cluster::read(self, redis.as_ref(), storage.sql_url.as_ref(), listeners),
            admin,
            public_url,
            data_dir: self.data_dir(env),
            work_dir: self.work_dir(env),
            http,
            ops,
            default: self.default_server(),
            auth: Auth {
                insecure: self.leaf("auth.insecure", Node::flag),
            },
            outbound: OutboundSettings::read(self, env),
            session: self.session(),
            stream: Stream {
                keep_alive: self.leaf("stream.keep_alive", Node::duration),
                retry: self.leaf("stream.retry", Node::duration),
                per_session: self.leaf("stream.per_session", Node::at_least_one),
            },
            log: Log::read(self),
            drain: Drain::read(self, redis.as_ref()),
            redis,
            spawn: Spawn {
                parallel: self.leaf("spawn.parallel", Node::at_least_one),
                wait: self.leaf("spawn.wait", Node::duration),
                children: self.leaf("spawn.children", Node::at_least_one),
            },
            children: self.children(env),
            sandbox: Sandbox {
                shared_uid: self.leaf("sandbox.shared_uid", Node::flag),
                uids: self.leaf("sandbox.uids", Uids::read),
                separation: self.leaf("sandbox.separation", Separation::read),
                refuse: self.leaf("sandbox.refuse", |node| node.each(network)),
            },
            storage,
            oauth: OauthSettings::read(self),
            telemetry: Telemetry {
                log: self.leaf("telemetry.log", filter),
                format: self.leaf("telemetry.format", |node| {
                    choice(&node.text()?, &LOG_FORMATS)
                }),
                export: Export::read(env, &mut self.mistakes),
            },
            is_run: self.run,
            server: std::mem::take(&mut self.server),
            is_url_derived,
            written: self.written(),
            files: std::mem::take(&mut self.files),
        }
    }

    fn session(&mut self) -> Session {
        Session {
            idle: self.leaf("session.idle", Node::duration),
            max: self.leaf("session.max", Node::duration),
            ping: self.leaf("session.ping", Node::duration),
        }
    }

    /// Refuses what has no effect in `run`.
    fn refuse_in_run(&mut self) {
        for key in [
            "admin.listen",
            "default.server",
            "default.tenant",
            "sql.url",
        ] {
            if self.run && !self.leaf(key, Node::text).is_empty() {
                let what = "is written, and has no effect in run";
                self.mistake(key, what, "leave it out, or use serve");
            }
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
            allowed_hosts: self.leaf("http.allowed_hosts", |node| node.each(host)),
            allowed_origins: self.leaf("http.allowed_origins", |node| node.each(origin)),
            trusted_proxies: self.leaf("http.trusted_proxies", |node| node.each(network)),
            max_body: self.leaf("http.max_body", Node::some_bytes),
            max_connections: self.leaf("http.max_connections", Node::at_least_one),
            per_address: self.leaf("http.per_address.requests_per_second", |node| {
                Ok(NonZeroU64::new(node.count(0)?.into()))
            }),
            address_connections: self.leaf("http.per_address.connections", |node| {
                Ok(Some(node.count(0)?.into()).filter(|most| *most > 0))
            }),
            access_log: self.leaf("http.access_log", |node| {
                choice(&node.text()?, &ACCESS_LOGS)
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
        // `run` writes nothing there.
        let own = if self.run { |path| path } else { own_directory };
        match expand(&text, env) {
            Ok(path) if path.as_os_str().is_empty() => {
                self.mistake("data_dir", "is empty", "name a directory");
                path
            }
            // Children have other working directories, and other roots.
            Ok(path) => own(std::path::absolute(&path).unwrap_or(path)),
            Err(_) if self.run => PathBuf::new(),
            Err(wrong) => {
                self.mistake("data_dir", &wrong.what, &wrong.remedy);
                PathBuf::new()
            }
        }
    }

    fn work_dir(&mut self, env: &BTreeMap<String, String>) -> Option<PathBuf> {
        let text = self.leaf("work_dir", Node::text);
        match expand(&text, env) {
            Ok(path) if path.as_os_str().is_empty() => None,
            // Children have other working directories, and other roots.
            Ok(path) => Some(own_work_directory(
                std::path::absolute(&path).unwrap_or(path),
            )),
            Err(wrong) => {
                self.mistake("work_dir", &wrong.what, &wrong.remedy);
                None
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

/// Reports whether only this machine can reach an address.
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

/// Expands `~/` to the home directory.
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

const ACCESS_LOGS: [(&str, LoggedRequests); 4] = [
    ("all", LoggedRequests::All),
    ("errors", LoggedRequests::Errors),
    ("sampled", LoggedRequests::Sampled),
    ("off", LoggedRequests::Off),
];

const LOG_FORMATS: [(&str, LogFormat); 4] = [
    ("json", LogFormat::Json),
    ("text", LogFormat::Text),
    ("short", LogFormat::Short),
    ("auto", LogFormat::Auto),
];
#[cfg(test)]
#[path = "tests/gateway.rs"]
mod tests;

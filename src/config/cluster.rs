//! Settings of replicas: shared state, connections to each other, and shutdown.
//!
//! Not here: the Redis client (`state/redis`), and requests between replicas (`http/replicas`).

use crate::base::{self, Secret};
use std::{collections::BTreeMap, net::SocketAddr, path::Path, sync::Arc, time::Duration};

use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, pem::PemObject},
};
use url::Url;

use super::{
    address::{address, host},
    document::Node,
    reader::Wrong,
    sources::{Layers, SettingFile},
};

/// The Redis that replicas share.
#[derive(Clone, Debug)]
pub(crate) struct Redis {
    /// The URL; a secret, because it may contain a password.
    pub(crate) url: Secret,
    /// The prefix of all keys.
    pub(crate) prefix: String,
    /// The certificate authorities to trust, as PEM; none for the public ones.
    pub(crate) authorities: Option<Arc<[u8]>>,
}

impl Redis {
    /// Reads `redis.url` (else `REDIS_URL`), `redis.prefix` and `redis.ca_file`; none without a
    /// URL.
    pub(crate) fn read(layers: &mut Layers, env: &BTreeMap<String, String>) -> Option<Self> {
        if let Some(url) = env.get("REDIS_URL").filter(|url| !url.is_empty())
            && layers.is_default("redis.url")
            && !layers.run
        {
            layers.add("redis.url", Node::from_word("REDIS_URL", url));
        }
        let url = layers.leaf("redis.url", redis_url);
        let prefix = layers.leaf("redis.prefix", prefix);
        let file = SettingFile::now(&layers.leaf("redis.ca_file", Node::text));
        let authorities = layers.leaf("redis.ca_file", |node| authorities(&node.text()?));
        if authorities.is_some() {
            layers.files.insert(AUTHORITIES.to_owned(), file);
        }
        let is_encrypted = |url: &Secret| {
            let mut schemes = ENCRYPTED.iter();
            schemes.any(|scheme| url.expose().starts_with(scheme))
        };
        if authorities.is_some() && !url.as_ref().is_some_and(is_encrypted) {
            let what = "is written, and redis.url does not begin with rediss://";
            layers.mistake(
                "redis.ca_file",
                what,
                "write redis.url so, or leave this out",
            );
        }
        if layers.run && url.is_some() {
            let what = "is written, and run keeps everything in memory";
            layers.mistake("redis.url", what, "leave it out, or use serve");
            return None;
        }
        url.map(|url| Self {
            url,
            prefix,
            authorities,
        })
    }
}

/// Connections between replicas, and the timeouts of a replica that loses Redis.
#[derive(Clone, Debug)]
pub(crate) struct Cluster {
    /// The address of the cluster listener, which is bound only with Redis.
    pub(crate) listen: SocketAddr,
    /// The address for other replicas, `host:port`; none to detect it.
    pub(crate) advertise: Option<String>,
    /// The time after which a replica without Redis ends its children.
    pub(crate) orphan_after: Duration,
    /// The time after which it ends its streams.
    pub(crate) close_after: Duration,
}

impl Cluster {
    /// Reads the keys of `cluster`. `sql` is the database that all replicas share, if there is one.
    /// `others` are the listeners beside that for replicas.
    pub(crate) fn read(
        layers: &mut Layers,
        redis: Option<&Redis>,
        sql: Option<&Secret>,
        others: [Option<SocketAddr>; 3],
    ) -> Self {
        // Used for this check only: the gateway does not count replicas.
        let replicas = layers.leaf("cluster.replicas", |node| node.count(0));
        if replicas > 1 && redis.is_none() {
            let what = "is more than 1, and redis.url is not set";
            let remedy = "write redis.url, which replicas share sessions by, or run one replica";
            layers.mistake("cluster.replicas", what, remedy);
        } else if replicas > 1 && sql.is_none() {
            let what = "is more than 1, and sql.url is not set: each would have a store of its own";
            let remedy = "write sql.url, the same PostgreSQL for all, or run one replica";
            layers.mistake("cluster.replicas", what, remedy);
        }
        let listen = layers.leaf("cluster.listen", |node| address(&node.text()?));
        let is_same = |other: &SocketAddr| {
            let is_any = other.ip().is_unspecified() || listen.ip().is_unspecified();
            listen.port() != 0
                && other.port() == listen.port()
                && (is_any || other.ip() == listen.ip())
        };
        if redis.is_some() && others.iter().flatten().any(is_same) {
            let what = "is http.listen, ops.listen or admin.listen too";
            layers.mistake("cluster.listen", what, "choose another port");
        }
        Self {
            listen,
            advertise: layers.leaf("cluster.advertise", advertised),
            orphan_after: layers.leaf("cluster.orphan_after", Node::duration),
            close_after: layers.leaf("cluster.close_after", Node::duration),
        }
    }
}

/// Bounds of the event log, per stream.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    /// Maximum number of kept events.
    pub(crate) events: usize,
    /// Maximum number of kept bytes.
    pub(crate) bytes: u64,
    /// Maximum age of kept events; zero is unlimited.
    pub(crate) age: Duration,
    /// Maximum bytes of an event that is kept in Redis.
    pub(crate) max_event: u64,
    /// Maximum bytes of the events of all sessions in the memory of this replica.
    pub(crate) memory: u64,
    /// Maximum bytes of the events of all its sessions in Redis.
    pub(crate) redis: u64,
}

impl Log {
    /// Reads the keys of `log`.
    pub(crate) fn read(layers: &mut Layers) -> Self {
        Self {
            events: layers.leaf("log.events", Node::at_least_one),
            bytes: layers.leaf("log.bytes", Node::some_bytes),
            age: layers.leaf("log.age", Node::duration),
            max_event: layers.leaf("log.max_event", Node::some_bytes),
            memory: layers.leaf("log.memory", Node::some_bytes),
            redis: layers.leaf("log.redis", Node::some_bytes),
        }
    }
}

/// The timeouts of a shutdown.
#[derive(Clone, Debug)]
pub(crate) struct Drain {
    /// The time that the gateway continues to accept requests.
    pub(crate) delay: Duration,
    /// The time that calls in flight have to end.
    pub(crate) timeout: Duration,
}

impl Drain {
    /// Reads the keys of `drain`. With Redis, other replicas take over once load balancers know.
    pub(crate) fn read(layers: &mut Layers, redis: Option<&Redis>) -> Self {
        let delay = layers.leaf("drain.delay", Node::duration);
        let is_default = redis.is_some() && layers.is_default("drain.delay");
        Self {
            delay: if is_default { DEFAULT_DELAY } else { delay },
            timeout: layers.leaf("drain.timeout", Node::duration),
        }
    }
}

/// Parses a URL of Redis; none if empty.
pub(super) fn redis_url(node: &Node) -> Result<Option<Secret>, Wrong> {
    let text = node.text()?;
    if !text.is_empty() && !is_redis(&text) {
        // Without the text, which may contain a password.
        let what = "is no URL of Redis";
        let remedy = "write redis://HOST:6379 or rediss://…, or \"\" for memory";
        return Err(Wrong::new(what, remedy));
    }
    Ok(Secret::of(text))
}

/// Reports whether the Redis client can use the URL.
fn is_redis(text: &str) -> bool {
    let is_known = SCHEMES.iter().any(|scheme| text.starts_with(scheme));
    let Some(url) = Url::parse(text).ok().filter(|_| is_known) else {
        return false;
    };
    let has_host = url.host_str().is_some_and(|host| !host.is_empty());
    let database = url.path().trim_matches('/');
    let is_number = database.is_empty() || database.parse::<u32>().is_ok();
    // The client's own fragment turns off the check of certificates.
    url.fragment().is_none()
        && (url.scheme().ends_with("unix") || (has_host && is_number))
        && url.query_pairs().all(|(name, value)| {
            let is_version = matches!(&*value, "2" | "3" | "resp2" | "resp3");
            name != "protocol" || is_version
        })
}

/// Parses a prefix of keys, without characters that Redis or its tools interpret.
fn prefix(node: &Node) -> Result<String, Wrong> {
    let text = node.text()?;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if (1..=64).contains(&text.len()) && text.bytes().all(is_plain) {
        return Ok(text);
    }
    let remedy = "write up to 64 letters, digits, dots, dashes";
    Err(Wrong::new(format!("{text:?} is no prefix"), remedy))
}

/// Reads a file of certificates; none without a file.
pub(super) fn authorities(file: &str) -> Result<Option<Arc<[u8]>>, Wrong> {
    if file.is_empty() {
        return Ok(None);
    }
    let remedy = "name a PEM file with the certificates of authorities";
    let text = base::content(Path::new(file), base::SETTING_MAX)
        .map_err(|error| Wrong::new(format!("{file:?} cannot be read: {error}"), remedy))?;
    let mut known = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&text) {
        let added = certificate
            .map_err(|error| error.to_string())
            .and_then(|one| known.add(one).map_err(|error| error.to_string()));
        added.map_err(|why| Wrong::new(format!("{file:?} is not usable: {why}"), remedy))?;
    }
    if known.is_empty() {
        return Err(Wrong::new(format!("{file:?} holds no certificate"), remedy));
    }
    Ok(Some(text.into()))
}

/// Parses a host with its port; none if empty.
fn advertised(node: &Node) -> Result<Option<String>, Wrong> {
    let text = node.text()?;
    if text.is_empty() {
        return Ok(None);
    }
    let port = text.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
    if !matches!(port, Some(Ok(1..))) {
        let what = format!("{text:?} has no port that others can connect to");
        return Err(Wrong::new(what, "write HOST:PORT like 10.0.0.7:7080"));
    }
    let ip = text.parse::<SocketAddr>().map(|address| address.ip());
    if ip.is_ok_and(|ip| ip.is_unspecified()) {
        let what = format!("{text:?} is every address of this machine, and none for others");
        return Err(Wrong::new(what, "write HOST:PORT like 10.0.0.7:7080"));
    }
    host(&text).map(Some)
}

/// The name of the certificates among the files of settings.
pub(super) const AUTHORITIES: &str = "redis.ca_file";
const SCHEMES: [&str; 7] = [
    "redis://",
    "rediss://",
    "redis+unix://",
    "unix://",
    "valkey://",
    "valkeys://",
    "valkey+unix://",
];
/// The schemes with TLS.
const ENCRYPTED: [&str; 2] = ["rediss://", "valkeys://"];
/// The time that load balancers need to notice.
const DEFAULT_DELAY: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::super::cluster::*;

    struct Settings {
        redis: Option<Redis>,
        cluster: Cluster,
        drain: Drain,
        mistakes: Vec<String>,
    }

    fn read(is_run: bool, env: &[(&str, &str)], set: &[&str]) -> Settings {
        let pairs = env
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let env: BTreeMap<String, String> = pairs.collect();
        let mut layers = Layers::new(is_run);
        layers.add_env(&env);
        for set in set {
            layers.add_set(set);
        }
        let redis = Redis::read(&mut layers, &env);
        let sql = super::super::storage::Storage::read(&mut layers, &env).sql_url;
        let http = "127.0.0.1:8080".parse().ok();
        let cluster = Cluster::read(
            &mut layers,
            redis.as_ref(),
            sql.as_ref(),
            [http, None, None],
        );
        let drain = Drain::read(&mut layers, redis.as_ref());
        let mistakes = layers.mistakes.iter().map(ToString::to_string).collect();
        Settings {
            redis,
            cluster,
            drain,
            mistakes,
        }
    }

    fn url(env: &[(&str, &str)], set: &[&str]) -> Option<String> {
        let read = read(false, env, set);
        assert!(read.mistakes.is_empty(), "{:?}", read.mistakes);
        read.redis.map(|redis| redis.url.expose().to_owned())
    }

    #[test]
    fn the_usual_variable_names_redis_where_nothing_else_does() {
        let usual = ("REDIS_URL", "redis://usual");
        let own = ("LOCKGATE_REDIS__URL", "rediss://own");
        assert_eq!(url(&[], &[]), None);
        assert_eq!(url(&[usual], &[]).as_deref(), Some("redis://usual"));
        assert_eq!(url(&[usual, own], &[]).as_deref(), Some("rediss://own"));
        assert_eq!(url(&[usual], &["redis.url="]), None);
        assert!(read(true, &[usual], &[]).redis.is_none());
        assert_eq!(read(true, &[], &["redis.url=redis://x"]).mistakes.len(), 1);
    }

    #[test]
    fn a_url_that_the_client_would_refuse_is_a_mistake() {
        for (url, is_good) in [
            ("redis://h:6379/3?protocol=resp3", true),
            ("redis+unix:///run/redis.sock", true),
            ("redis://h?protocol=x", false),
            ("rediss://h/#insecure", false),
            ("redis://h/x", false),
            ("redis:///0", false),
        ] {
            let read = read(false, &[], &[&format!("redis.url={url}")]);
            assert_eq!(
                read.mistakes.is_empty(),
                is_good,
                "{url} {:?}",
                read.mistakes
            );
            assert_eq!(read.redis.is_some(), is_good, "{url}");
        }
    }

    #[test]
    fn the_listener_for_replicas_has_a_port_of_its_own() {
        for (listen, is_good) in [
            ("127.0.0.1:8080", false),
            ("0.0.0.0:8080", false),
            ("127.0.0.2:8080", true),
            ("127.0.0.1:8081", true),
            ("127.0.0.1:0", true),
        ] {
            let listen = format!("cluster.listen={listen}");
            let is_read = |more: &[&str]| {
                let sets = [&[listen.as_str()], more].concat();
                read(false, &[], &sets).mistakes.is_empty()
            };
            assert_eq!(is_read(&["redis.url=redis://h"]), is_good, "{listen}");
            assert!(is_read(&[]), "it is not listened at");
        }
    }

    #[test]
    fn a_wrong_url_is_not_shown() {
        let read = read(false, &[("REDIS_URL", "http://u:s3cret@h")], &[]);
        let shown = format!("{:?}{:?}", read.redis, read.mistakes);
        assert!(read.mistakes.len() == 1 && !shown.contains("s3cret"));
        assert!(shown.contains("redis.url"), "{shown}");
    }

    #[test]
    fn a_file_of_authorities_has_some_and_a_use() {
        let dir = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(vec!["h".to_owned()]).unwrap();
        let begun = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let secure = "redis.url=rediss://h";
        for (text, url, wrong) in [
            (&*made.cert.pem(), secure, None),
            (&*made.cert.pem(), "redis.url=valkeys://h", None),
            (
                &*made.cert.pem(),
                "redis.url=redis://h",
                Some("does not begin with rediss://"),
            ),
            (
                &*made.cert.pem(),
                "redis.url=",
                Some("does not begin with rediss://"),
            ),
            (
                &*made.signing_key.serialize_pem(),
                secure,
                Some("holds no certificate"),
            ),
            (begun, secure, Some("is not usable")),
            ("", secure, Some("holds no certificate")),
        ] {
            let file = dir.path().join("ca.pem");
            std::fs::write(&file, text).unwrap();
            let set = format!("redis.ca_file={}", file.display());
            let read = read(false, &[], &[url, &set]);
            assert_eq!(read.mistakes.len(), usize::from(wrong.is_some()), "{url}");
            if let Some(wrong) = wrong {
                let mistake = &read.mistakes[0];
                assert!(
                    mistake.contains("redis.ca_file") && mistake.contains(wrong),
                    "{mistake}"
                );
            } else {
                let authorities = read.redis.unwrap().authorities.unwrap();
                assert_eq!(&*authorities, text.as_bytes());
            }
        }
        let missing = read(false, &[], &[secure, "redis.ca_file=/no/such"]).mistakes;
        assert!(missing[0].contains("cannot be read"), "{missing:?}");
    }

    #[test]
    fn several_replicas_need_redis_and_one_store() {
        let wrong = read(false, &[], &["cluster.replicas=2"]).mistakes;
        assert!(wrong[0].contains("cluster.replicas: is more than 1"));
        assert!(
            read(false, &[], &["cluster.replicas=1"])
                .mistakes
                .is_empty()
        );
        let both = ["cluster.replicas=2", "redis.url=redis://h"];
        let wrong = read(false, &[], &both).mistakes;
        assert!(wrong[0].contains("sql.url is not set") && wrong.len() == 1);
        let url = [("DATABASE_URL", "postgres://h/x")];
        assert!(read(false, &url, &both).mistakes.is_empty());
        assert!(read(false, &[], &both[1..]).mistakes.is_empty());
    }

    #[test]
    fn draining_takes_longer_where_others_take_over() {
        let delay = |set: &[&str]| read(false, &[], set).drain.delay;
        assert_eq!(delay(&[]), Duration::ZERO);
        assert_eq!(delay(&["redis.url=redis://h"]), DEFAULT_DELAY);
        let written = ["redis.url=redis://h", "drain.delay=0s"];
        assert_eq!(delay(&written), Duration::ZERO);
    }

    #[test]
    fn what_others_connect_to_has_a_port() {
        for (text, is_good) in [
            ("10.0.0.7:7080", true),
            ("[::1]:7080", true),
            ("replica-1.lockgate:7080", true),
            ("10.0.0.7", false),
            ("10.0.0.7:0", false),
            ("10.0.0.7:x", false),
            ("h/x:1", false),
            ("0.0.0.0:7080", false),
            ("[::]:7080", false),
        ] {
            let read = read(false, &[], &[&format!("cluster.advertise={text}")]);
            assert_eq!(read.mistakes.is_empty(), is_good, "{text}");
            assert_eq!(read.cluster.advertise.is_some(), is_good, "{text}");
        }
        assert!(read(false, &[], &["redis.prefix=a b"]).mistakes.len() == 1);
    }
}

//! Settings of the tenants' authorization servers, and of requests to others.
//!
//! Not here: the declaration of one authorization server (`declare/authorization_server`).

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use ipnet::IpNet;
use serde::Deserialize;
use serde_json::value::RawValue;
use url::Url;

use super::{address::network, document::Node, reader::Wrong, sources::Layers};
use crate::base::{self, Proxy, Secret, without_user};

/// Requests of the gateway itself: for documents, keys and tokens of others.
#[derive(Clone, Debug)]
pub(crate) struct OutboundSettings {
    /// Special-purpose networks that they may reach.
    pub(crate) allow: Vec<IpNet>,
    /// The proxy of requests to public addresses.
    pub(crate) proxy: Option<Proxy>,
    /// URLs that show whether documents of clients can be fetched; empty to assume it.
    pub(crate) probe: Vec<String>,
}

impl OutboundSettings {
    /// Reads the keys below `outbound`; `HTTPS_PROXY` stands for the proxy, and `NO_PROXY` has its exceptions.
    pub(crate) fn read(layers: &mut Layers, env: &BTreeMap<String, String>) -> Self {
        let variable = |names: [&'static str; 2]| {
            let set = |name| env.get(name).filter(|text| !text.is_empty());
            names.into_iter().find_map(|name| Some((name, set(name)?)))
        };
        if let Some((name, url)) = variable(["HTTPS_PROXY", "https_proxy"])
            && layers.is_default("outbound.proxy")
            && !layers.run
        {
            layers.add("outbound.proxy", Node::from_word(name, url));
        }
        let no_proxy = variable(["NO_PROXY", "no_proxy"]).map_or("", |(_, text)| text);
        let proxy = layers.leaf("outbound.proxy", proxy_url);
        Self {
            allow: layers.leaf("outbound.allow", |node| node.each(network)),
            proxy: proxy.map(|url| Proxy::new(url, no_proxy)),
            probe: layers.leaf("outbound.probe", |node| node.each(https_url)),
        }
    }
}

/// Parses the URL of a proxy; none if empty.
fn proxy_url(node: &Node) -> Result<Option<Secret>, Wrong> {
    let text = node.text()?;
    if text.is_empty() {
        return Ok(None);
    }
    // As other programs read the variable.
    let text = if text.contains("://") {
        text
    } else {
        format!("http://{text}")
    };
    let is_proxy = Url::parse(&text).is_ok_and(|url| {
        let is_bare = matches!(url.path(), "" | "/") && url.query().is_none();
        matches!(url.scheme(), "http" | "https") && url.host().is_some() && is_bare
    });
    if !is_proxy {
        // Without the text, which may contain a password.
        let remedy = "write http://HOST:PORT or http://USER:PASSWORD@HOST:PORT";
        return Err(Wrong::new("is no URL of an HTTP proxy", remedy));
    }
    Ok(Some(Secret::new(text)))
}

fn https_url(text: &str) -> Result<String, Wrong> {
    let is_good = Url::parse(text).is_ok_and(|url| url.scheme() == "https" && url.host().is_some());
    let wrong = || {
        Wrong::new(
            format!("{:?} is no https URL", without_user(text)),
            "write https://HOST/PATH",
        )
    };
    is_good.then(|| text.to_owned()).ok_or_else(wrong)
}

/// Lifetimes of codes, tokens and keys, and limits of registrations.
#[derive(Clone, Debug)]
pub(crate) struct OauthSettings {
    /// Lifetime of access tokens, at most 15 minutes.
    pub(crate) access: Duration,
    /// Lifetime of authorization codes, at most 10 minutes (RFC 6749, section 4.1.2).
    pub(crate) code: Duration,
    /// Time within which a replayed code does not revoke the grant of its first use.
    pub(crate) replay: Duration,
    /// Time within which a used refresh token yields the same successor again.
    pub(crate) grace: Duration,
    /// Lifetime of an unused refresh token.
    pub(crate) refresh_idle: Duration,
    /// Maximum lifetime of a grant, with refreshes.
    pub(crate) refresh_max: Duration,
    /// Lifetime of a registered client that is never used.
    pub(crate) client_unused: Duration,
    /// Lifetime of a registered client after its last use.
    pub(crate) client_used: Duration,
    /// Maximum number of registered clients of a tenant.
    pub(crate) clients: u32,
    /// Maximum registrations per minute of one address.
    pub(crate) registrations_address: u32,
    /// Maximum registrations per minute for one redirect host.
    pub(crate) registrations_host: u32,
    /// Maximum registrations per minute in total, of which a tenant has a quarter.
    pub(crate) registrations: u32,
    /// Maximum wrong codes, secrets, tokens and passwords per minute of one address.
    pub(crate) failures: u32,
    /// Maximum log-ins, decisions and codes per minute of one address.
    pub(crate) writes: u32,
    /// Lifetime of a browser's log-in.
    pub(crate) login: Duration,
    /// Maximum time from the authorization request to the consent.
    pub(crate) flow: Duration,
    /// Age at which a signing key is rotated; zero is never.
    pub(crate) key_age: Duration,
    /// Time that a signing key is published before its first use.
    pub(crate) key_ahead: Duration,
    /// Documents of clients whose sites do not answer.
    pub(crate) known_clients: KnownClients,
}

/// Client ID metadata documents, as their sites had them on a day; a handle.
#[derive(Clone, Debug, Default)]
pub(crate) struct KnownClients {
    /// The day.
    pub(crate) date: Arc<str>,
    /// The documents, unchanged, by client ID.
    pub(crate) documents: Arc<BTreeMap<String, String>>,
}

impl KnownClients {
    /// The documents that a setting names.
    fn named(setting: &str) -> Result<Self, Wrong> {
        match setting {
            "shipped" => Self::parse(SHIPPED),
            "none" => Ok(Self::default()),
            file => {
                let remedy = "write \"shipped\", \"none\" or the path of a readable file";
                let text = base::text(Path::new(file), base::SETTING_MAX);
                let text = text.map_err(|error| {
                    Wrong::new(format!("{file:?} cannot be read: {error}"), remedy)
                });
                Self::parse(&text?)
            }
        }
    }

    /// Parses `{"date": …, "clients": […]}`.
    fn parse(text: &str) -> Result<Self, Wrong> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Written<'t> {
            date: Arc<str>,
            #[serde(borrow)]
            clients: Vec<&'t RawValue>,
        }
        #[derive(Deserialize)]
        struct Named {
            client_id: String,
        }
        let wrong = |error: serde_json::Error| {
            let what = format!("has no documents of clients: {error}");
            Wrong::new(
                what,
                "write {\"date\": \"2026-09-01\", \"clients\": [{\"client_id\": …}, …]}",
            )
        };
        let Written { date, clients } = serde_json::from_str(text).map_err(wrong)?;
        let documents = clients.into_iter().map(|document| {
            let Named { client_id } = serde_json::from_str(document.get()).map_err(wrong)?;
            Ok((client_id, document.get().to_owned()))
        });
        Ok(Self {
            date,
            documents: Arc::new(documents.collect::<Result<_, Wrong>>()?),
        })
    }

    /// The documents that came with this release.
    #[cfg(test)]
    pub(crate) fn shipped() -> Self {
        Self::parse(SHIPPED).unwrap()
    }
}

impl OauthSettings {
    /// Reads the keys below `oauth`.
    pub(crate) fn read(layers: &mut Layers) -> Self {
        let some = |max: Duration| {
            move |node: &Node| {
                let read = node.duration()?;
                if read.is_zero() || read > max {
                    let what = format!("{read:?} is not between 1 ms and {max:?}");
                    return Err(Wrong::new(what, "write a duration like \"10m\""));
                }
                Ok(read)
            }
        };
        let count = |node: &Node| node.count(1);
        Self {
            access: layers.leaf("oauth.access", some(Duration::from_mins(15))),
            code: layers.leaf("oauth.code", some(Duration::from_mins(10))),
            replay: layers.leaf("oauth.replay", Node::duration),
            grace: layers.leaf("oauth.grace", some(Duration::from_hours(1))),
            refresh_idle: layers.leaf("oauth.refresh_idle", some(YEAR)),
            refresh_max: layers.leaf("oauth.refresh_max", some(YEAR)),
            client_unused: layers.leaf("oauth.client_unused", some(YEAR)),
            client_used: layers.leaf("oauth.client_used", some(YEAR)),
            clients: layers.leaf("oauth.clients", count),
            registrations_address: layers.leaf("oauth.registrations_address", count),
            registrations_host: layers.leaf("oauth.registrations_host", count),
            registrations: layers.leaf("oauth.registrations", count),
            failures: layers.leaf("oauth.failures", count),
            writes: layers.leaf("oauth.writes", count),
            login: layers.leaf("oauth.login", some(YEAR)),
            flow: layers.leaf("oauth.flow", some(Duration::from_hours(1))),
            key_age: layers.leaf("oauth.key_age", Node::duration),
            key_ahead: layers.leaf("oauth.key_ahead", Node::duration),
            known_clients: layers.leaf("oauth.known_clients", |node| {
                KnownClients::named(&node.text()?)
            }),
        }
    }
}

const YEAR: Duration = Duration::from_hours(366 * 24);
/// The documents of this release. A newer release may replace them: a changed one is asked about again.
const SHIPPED: &str = include_str!("known_clients.json");

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::super::gateway::{Config, LoadError, Sources};

    fn load(env: &[(&str, &str)], set: &[&str]) -> Result<Config, String> {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let set = set.iter().map(|&set| set.to_owned());
        let loaded = Config::load(&Sources {
            env: env.iter().map(owned).collect(),
            set: set.chain(["data_dir=/d".to_owned()]).collect(),
            ..Sources::default()
        });
        loaded.map_err(|error: LoadError| format!("{:?}", error.mistakes))
    }

    fn read(env: &[(&str, &str)], set: &[&str]) -> Result<Option<String>, String> {
        let proxy = load(env, set)?.outbound.proxy;
        Ok(proxy.map(|proxy| proxy.url.expose().to_owned()))
    }

    #[test]
    fn known_clients_are_shipped_or_in_a_file_or_none() {
        let known = |setting: &str| {
            let set = format!("oauth.known_clients={setting}");
            load(&[], &[&set]).map(|config| config.oauth.known_clients)
        };
        let shipped = load(&[], &[]).unwrap().oauth.known_clients;
        assert_eq!((&*shipped.date, shipped.documents.len()), ("2026-09-01", 6));
        assert!(known("none").unwrap().documents.is_empty());
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap().to_owned();
        for (text, wanted) in [
            ("", Err("has no documents")),
            ("{\"clients\": []}", Err("missing field `date`")),
            (
                "{\"date\": \"1\", \"clients\": [{}]}",
                Err("missing field `client_id`"),
            ),
            (
                "{\"date\": \"1\", \"clients\": [ {\"client_id\":  \"a\"} ]}",
                Ok("{\"client_id\":  \"a\"}"),
            ),
        ] {
            file.as_file_mut().set_len(0).unwrap();
            std::io::Seek::rewind(file.as_file_mut()).unwrap();
            file.write_all(text.as_bytes()).unwrap();
            match (known(&path), wanted) {
                (Ok(known), Ok(document)) => assert_eq!(known.documents["a"], document),
                (Err(why), Err(part)) => assert!(why.contains(part), "{why}"),
                (known, _) => panic!("{text}: {known:?}"),
            }
        }
        let missing = known("/no/such").unwrap_err();
        assert!(missing.contains("cannot be read"), "{missing}");
    }

    #[test]
    fn the_proxy_is_that_of_the_environment_unless_one_is_written() {
        let usual = ("HTTPS_PROXY", "proxy.test:3128");
        assert_eq!(read(&[], &[]), Ok(None));
        let of_env = read(&[usual], &[]);
        assert_eq!(of_env, Ok(Some("http://proxy.test:3128".to_owned())));
        let lower = read(&[("https_proxy", "https://u:p@proxy.test")], &[]);
        assert_eq!(lower, Ok(Some("https://u:p@proxy.test".to_owned())));
        let written = read(&[usual], &["outbound.proxy=http://other.test:1"]);
        assert_eq!(written, Ok(Some("http://other.test:1".to_owned())));
        for wrong in [
            "ftp://s3cret@h",
            "http://s3cret@h/path",
            "http://",
            "socks5://s3cret@h",
        ] {
            let why = read(&[("HTTPS_PROXY", wrong)], &[]).unwrap_err();
            assert!(
                why.contains("HTTPS_PROXY") && !why.contains("s3cret"),
                "{why}"
            );
        }
        let why = read(&[], &["outbound.probe=[\"http://x.test\"]"]).unwrap_err();
        assert!(why.contains("is no https URL"), "{why}");
    }
}

//! Any header fields as `Host`, `Origin` and `X-Forwarded-For`, any text as a path: what is accepted
//! is allowed by the letter, as the parser of browsers (`url`) reads it.

use std::net::{IpAddr, SocketAddr};
use std::sync::LazyLock;

use http::header::{HOST, ORIGIN};
use http::uri::{Authority, Uri};
use http::{HeaderMap, HeaderName, HeaderValue, Version};
use ipnet::IpNet;
use url::{Host, Url};

use crate::http::edge::address::{
    Allowed, HostCheck, OriginCheck, client_address, is_canonical, is_to_loopback,
};
use crate::http::reply::header_name::X_FORWARDED_FOR;

/// A listener, and what it should accept.
struct Listener {
    allowed: Allowed,
    hosts: &'static [&'static str],
    origins: &'static [&'static str],
    /// The default port.
    port: u16,
    /// The port on which every address is a host.
    any: Option<u16>,
}

static LISTENERS: LazyLock<[Listener; 3]> = LazyLock::new(|| {
    let url = |text: &str| Url::parse(text).unwrap();
    let bound = |text: &str| text.parse::<SocketAddr>().unwrap();
    let all = |texts: &[&str]| {
        texts
            .iter()
            .map(|&text| text.to_owned())
            .collect::<Vec<_>>()
    };
    let public = Allowed::new(
        &url("https://gw.example.test"),
        bound("0.0.0.0:8443"),
        true,
        &all(&["other.test:8443", "gw"]),
        &all(&["https://app.example.test", "vscode-file://vscode-app"]),
    );
    let local = Allowed::new(
        &url("http://localhost:8080"),
        bound("127.0.0.1:8080"),
        false,
        &[],
        &[],
    );
    let operators = Allowed::for_operators(bound("0.0.0.0:9090"), &[], &[]);
    [
        Listener {
            allowed: public.unwrap(),
            hosts: &["gw.example.test:443", "other.test:8443", "gw:443"],
            origins: &[
                "https://gw.example.test",
                "https://app.example.test",
                "vscode-file://vscode-app",
            ],
            port: 443,
            any: None,
        },
        Listener {
            allowed: local.unwrap(),
            hosts: &["localhost:8080", "127.0.0.1:8080", "[::1]:8080"],
            origins: &[
                "http://localhost:8080",
                "http://127.0.0.1:8080",
                "http://[::1]:8080",
            ],
            port: 80,
            any: None,
        },
        Listener {
            allowed: operators.unwrap(),
            hosts: &["localhost:9090", "0.0.0.0:9090"],
            origins: &["http://0.0.0.0:9090"],
            port: 80,
            any: Some(9090),
        },
    ]
});

/// Lines of `Host`, `:authority`, `Origin`, `X-Forwarded-For` and the path; a tab between fields of
/// one name.
pub fn run(data: &[u8]) {
    let mut lines = data.split(|byte| *byte == b'\n');
    let [hosts, authority, origins, forwarded, path] =
        [(); 5].map(|()| lines.next().unwrap_or_default());
    let mut headers = HeaderMap::new();
    add(&mut headers, &HOST, hosts);
    add(&mut headers, &ORIGIN, origins);
    add(&mut headers, &X_FORWARDED_FOR, forwarded);
    let mut uri = Uri::from_static("/mcp");
    if let Ok(authority) = Authority::try_from(authority) {
        uri = Uri::builder()
            .scheme("http")
            .authority(authority)
            .path_and_query("/mcp")
            .build()
            .unwrap();
    }
    for listener in LISTENERS.iter() {
        for version in [Version::HTTP_11, Version::HTTP_2] {
            host(listener, version, &uri, &headers);
        }
        origin(listener, &headers);
    }
    if is_to_loopback(&uri, &headers) {
        for named in named(&uri, &headers) {
            let host = parsed(&named).and_then(|url| url.host().map(|host| host.to_owned()));
            assert!(host.is_some_and(|host| is_loopback(&host)), "{named:?}");
        }
    }
    client(&headers);
    if let Ok(path) = std::str::from_utf8(path) {
        canonical(path);
    }
}

fn add(headers: &mut HeaderMap, name: &HeaderName, values: &[u8]) {
    let values = values.split(|byte| *byte == b'\t');
    for value in values.filter(|value| !value.is_empty()).take(4) {
        if let Ok(value) = HeaderValue::from_bytes(value) {
            headers.append(name, value);
        }
    }
}

/// The hosts that a request names.
fn named(uri: &Uri, headers: &HeaderMap) -> Vec<String> {
    let fields = headers.get_all(HOST).iter();
    let fields = fields.map(|host| String::from_utf8_lossy(host.as_bytes()).into_owned());
    fields
        .chain(uri.authority().map(ToString::to_string))
        .collect()
}

/// A host as a browser reads it; none if it is more than a host.
fn parsed(host: &str) -> Option<Url> {
    let url = Url::parse(&format!("http://{host}/")).ok()?;
    let is_bare = url.path() == "/" && url.query().is_none() && url.fragment().is_none();
    let is_plain = !host.contains(|letter: char| "@/\\?#% ".contains(letter) || !letter.is_ascii());
    (is_bare && is_plain).then_some(url)
}

fn is_loopback(host: &Host) -> bool {
    match host {
        Host::Domain(name) => name == "localhost",
        Host::Ipv4(ip) => ip.is_loopback(),
        Host::Ipv6(ip) => ip.to_canonical().is_loopback(),
    }
}

fn host(listener: &Listener, version: Version, uri: &Uri, headers: &HeaderMap) {
    let verdict = listener.allowed.host(version, uri, headers);
    let all = named(uri, headers);
    if verdict == HostCheck::Ours {
        assert!(!all.is_empty() && headers.get_all(HOST).iter().count() <= 1);
        for host in &all {
            // `url` drops the default port of its scheme.
            let url = parsed(host).unwrap_or_else(|| panic!("accepted: {host:?}"));
            let has_port = host
                .rsplit_once(':')
                .is_some_and(|(_, port)| !port.contains(']'));
            let port = if has_port {
                url.port().unwrap_or(80)
            } else {
                listener.port
            };
            let full = format!("{}:{port}", url.host_str().unwrap_or_default());
            let is_address = !matches!(url.host(), Some(Host::Domain(_)));
            let is_any = is_address && listener.any == Some(port);
            assert!(
                is_any || listener.hosts.contains(&full.as_str()),
                "accepted: {host:?}"
            );
        }
    }
    // One name that is allowed, in any case, is accepted.
    if let [one] = &*all
        && headers.contains_key(HOST)
        && listener.hosts.contains(&one.to_ascii_lowercase().as_str())
    {
        assert_eq!(verdict, HostCheck::Ours, "refused: {one:?}");
    }
}

fn origin(listener: &Listener, headers: &HeaderMap) {
    let all: Vec<_> = headers.get_all(ORIGIN).iter().collect();
    match listener.allowed.origin(headers) {
        OriginCheck::Absent => assert!(all.is_empty()),
        OriginCheck::Foreign => {
            let [one] = &*all else { return };
            assert!(
                !listener
                    .origins
                    .iter()
                    .any(|known| known.as_bytes() == one.as_bytes())
            );
        }
        OriginCheck::OwnUrl => {
            assert_eq!(all.len(), 1);
            let text = all[0].to_str().expect("a URL is a text");
            let url = Url::parse(text).expect("a URL with a path is one");
            let ascii = url.origin().ascii_serialization();
            let is_below = |known: &&str| text.starts_with(&format!("{known}/"));
            let is_known = listener.origins.contains(&&*ascii);
            assert!(is_known || listener.origins.iter().any(is_below));
            assert!(!text.contains([' ', ',']) && url.path().starts_with('/'));
        }
        OriginCheck::Ours => {
            assert_eq!(all.len(), 1);
            let text = all[0].to_str().expect("an origin is a text");
            let url = Url::parse(text).expect("an origin is a URL");
            let ascii = url.origin().ascii_serialization();
            let is_known = |text: &str| listener.origins.contains(&text);
            assert!(is_known(&ascii) || is_known(text), "accepted: {text:?}");
            assert!(!text.contains(['@', '\\', '?', '#', '%', ' ']) && url.path().len() <= 1);
        }
    }
}

/// Only what a trusted proxy says counts, and of that only what trusted proxies have added.
fn client(headers: &HeaderMap) {
    let trusted: Vec<IpNet> = vec!["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()];
    let is_trusted = |ip: IpAddr| trusted.iter().any(|net| net.contains(&ip));
    let stranger: IpAddr = "203.0.113.7".parse().unwrap();
    assert_eq!(client_address(stranger, headers, &trusted), stranger);
    let proxy: IpAddr = "10.0.0.1".parse().unwrap();
    let found = client_address(proxy, headers, &trusted);
    let fields = headers.get_all(X_FORWARDED_FOR).iter();
    let fields = fields.map(|field| String::from_utf8_lossy(field.as_bytes()));
    let joined = fields.collect::<Vec<_>>().join(",");
    let entries = joined.split(',').map(str::trim_ascii);
    let address = |entry: &str| {
        let port = |text: &str| text.parse::<SocketAddr>().map(|address| address.ip());
        let bare = entry
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'));
        let ip = bare.unwrap_or(entry).parse().or_else(|_| port(entry));
        ip.ok().map(|ip: IpAddr| ip.to_canonical())
    };
    // Read from the right: trusted ones are passed over, up to the first that is no address.
    let read = entries
        .rev()
        .map(address)
        .take_while(Option::is_some)
        .flatten();
    let (mut wanted, mut is_done) = (proxy, false);
    for ip in read {
        if !is_done {
            wanted = ip;
            is_done = !is_trusted(ip);
        }
    }
    assert_eq!(found, wanted, "{joined:?}");
}

/// A canonical path is the same to every parser.
fn canonical(path: &str) {
    if is_canonical(path) {
        let url = Url::parse(&format!("http://gw.test{path}")).expect("a path");
        assert_eq!(url.path(), path);
        assert!(url.query().is_none() && url.fragment().is_none());
        assert!(!path.contains("//") && !path.contains(['%', '\\', ';']));
        let uri: Uri = path.parse().expect("a target");
        assert_eq!(uri.path(), path);
    }
}

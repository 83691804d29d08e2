//! Checks of hosts, origins, paths and forwarded client addresses.
//!
//! Pure functions and one table; not here: responses.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};

use http::header::{HOST, ORIGIN};
use http::uri::{self, Uri};
use http::{HeaderMap, Version};
use ipnet::IpNet;
use url::Url;

use crate::config::address::{authority, is_trustworthy};
use crate::endpoint::LOOPBACK;
use crate::http::reply::header_name::X_FORWARDED_FOR;

/// Allowed hosts and origins of a listener.
#[derive(Clone, Debug)]
pub(crate) struct Allowed {
    /// Allowed hosts, each with its port.
    hosts: HashSet<(String, u16)>,
    /// Port on which any IP address is an allowed host; `None` if the hosts are known.
    any_address: Option<u16>,
    /// Port of a host without one.
    default_port: u16,
    /// Allowed origins, in the form that browsers send.
    origins: HashSet<String>,
    /// Whether browsers treat the public URL as potentially trustworthy.
    is_trustworthy: bool,
}

/// Result of the host check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostCheck {
    /// The host is allowed.
    Ours,
    /// The host is well-formed but not allowed: 403.
    Foreign,
    /// An IP address that is not allowed. No page of another site has one as its host by rebinding a name.
    ForeignAddress,
    /// No host in a request of HTTP/1.0, which needs none: 400 but for probes.
    Missing,
    /// The host is missing, repeated, malformed or contradictory: 400.
    Malformed,
}

/// Result of the origin check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OriginCheck {
    /// The request has no origin, so no web page sent it.
    Absent,
    /// The origin is allowed.
    Ours,
    /// The whole URL of something at an allowed origin, so no web page sent the request.
    OwnUrl,
    /// The origin is not allowed: 403.
    Foreign,
}

impl Allowed {
    /// Makes the table for one listener; `bound` is the actual address of its socket.
    ///
    /// # Errors
    ///
    /// The entry of the configuration that could never match.
    pub(crate) fn new(
        public_url: &Url,
        bound: SocketAddr,
        is_tls: bool,
        more_hosts: &[String],
        more_origins: &[String],
    ) -> Result<Self, String> {
        let default_port = if public_url.scheme() == "https" {
            443
        } else {
            80
        };
        let host = public_url
            .host_str()
            .ok_or("public_url has no host")?
            .to_ascii_lowercase();
        let port = public_url.port().unwrap_or(default_port);
        let mut allowed = Self {
            hosts: HashSet::from([(host, port)]),
            any_address: None,
            default_port,
            origins: HashSet::from([public_url.origin().ascii_serialization()]),
            is_trustworthy: is_trustworthy(public_url),
        };
        if bound.ip().to_canonical().is_loopback() {
            let scheme = if is_tls { "https" } else { "http" };
            allowed.add_loopback(scheme, bound.port());
        }
        if public_url
            .host_str()
            .is_some_and(|host| LOOPBACK.contains(&host))
        {
            // In a container, behind a forwarded port.
            allowed.add_loopback(public_url.scheme(), port);
        }
        for host in more_hosts {
            let (host, port) = authority(host).ok_or_else(|| format!("{host:?} is no host"))?;
            allowed.hosts.insert((host, port.unwrap_or(default_port)));
        }
        for origin in more_origins {
            let known = origin_of(origin).ok_or_else(|| format!("{origin:?} is no origin"))?;
            allowed.origins.insert(known);
        }
        Ok(allowed)
    }

    /// Adds the names of this machine, which no name server answers for.
    fn add_loopback(&mut self, scheme: &str, port: u16) {
        for host in LOOPBACK {
            self.hosts.insert((host.to_owned(), port));
            let origin = format!("{scheme}://{host}:{port}");
            self.origins.extend(origin_of(&origin));
        }
    }

    /// Makes the table for a listener for operators, which has no public URL.
    ///
    /// A listener on all addresses (`0.0.0.0`, in a container) allows any IP address as the host. A
    /// page that uses DNS rebinding still sends its own name.
    pub(crate) fn for_operators(
        bound: SocketAddr,
        more_hosts: &[String],
        more_origins: &[String],
    ) -> Result<Self, String> {
        let own = Url::parse(&format!("http://{bound}")).map_err(|error| error.to_string())?;
        let mut allowed = Self::new(&own, bound, false, more_hosts, more_origins)?;
        if bound.ip().is_unspecified() {
            allowed.hosts.insert(("localhost".to_owned(), bound.port()));
            allowed.any_address = Some(bound.port());
        }
        Ok(allowed)
    }

    /// Returns whether browsers treat the public URL as potentially trustworthy.
    pub(crate) fn is_trustworthy(&self) -> bool {
        self.is_trustworthy
    }

    /// Compares the target, `:authority` and `Host` with each other and with the table.
    pub(crate) fn host(&self, version: Version, uri: &Uri, headers: &HeaderMap) -> HostCheck {
        let mut hosts = headers.get_all(HOST).iter();
        let header = match (hosts.next(), hosts.next()) {
            (None, _) => None,
            (Some(host), None) => match host.to_str().ok().and_then(authority) {
                Some(host) => Some(host),
                None => return HostCheck::Malformed,
            },
            (Some(_), Some(_)) => return HostCheck::Malformed,
        };
        let target = match uri.authority() {
            None => None,
            Some(target) => match authority(target.as_str()) {
                Some(target) => Some(target),
                None => return HostCheck::Malformed,
            },
        };
        let (host, port) = match (header, target) {
            // RFC 9112, section 3.2: a request of HTTP/1.1 is refused without `Host`.
            (None, None) if version < Version::HTTP_11 => return HostCheck::Missing,
            (None, None) => return HostCheck::Malformed,
            // RFC 9112, section 3.2: HTTP/1.1 needs `Host` even if the target is absolute.
            (None, Some(_)) if version < Version::HTTP_2 => return HostCheck::Malformed,
            (Some(one), None) | (None, Some(one)) => one,
            (Some(header), Some(target)) => {
                if header.0 != target.0 || self.port(header.1) != self.port(target.1) {
                    return HostCheck::Malformed;
                }
                header
            }
        };
        let own = (host, self.port(port));
        if self.hosts.contains(&own) {
            return HostCheck::Ours;
        }
        let (host, port) = own;
        if host.trim_matches(['[', ']']).parse::<IpAddr>().is_err() {
            HostCheck::Foreign
        } else if self.any_address == Some(port) {
            HostCheck::Ours
        } else {
            HostCheck::ForeignAddress
        }
    }

    /// Returns the host and the port that a request names, which [`Self::host`] has checked.
    pub(crate) fn named(&self, uri: &Uri, headers: &HeaderMap) -> Option<(String, u16)> {
        let header = headers.get(HOST).and_then(|host| host.to_str().ok());
        let target = uri.authority().map(uri::Authority::as_str);
        let (host, port) = authority(target.or(header)?)?;
        Some((host, self.port(port)))
    }

    /// Checks `Origin` at the host of a tenant, whose own is that of this URL, which has no path.
    pub(crate) fn origin_at(headers: &HeaderMap, url: &str) -> OriginCheck {
        check_origin(headers, |origin| origin == url)
    }

    /// Checks `Origin`.
    pub(crate) fn origin(&self, headers: &HeaderMap) -> OriginCheck {
        check_origin(headers, |origin| self.origins.contains(origin))
    }

    fn port(&self, port: Option<u16>) -> u16 {
        port.unwrap_or(self.default_port)
    }
}

/// Returns whether every host that a request names is a loopback name of this machine.
///
/// A page that uses DNS rebinding sends its own name. The port is not compared, because a port
/// forwarder may use another one.
pub(crate) fn is_to_loopback(uri: &Uri, headers: &HeaderMap) -> bool {
    let hosts = headers.get_all(HOST).iter();
    let hosts = hosts.map(|host| host.to_str().unwrap_or_default());
    let mut hosts = hosts.chain(uri.authority().map(uri::Authority::as_str));
    hosts.all(|host| authority(host).is_some_and(|(host, _)| is_loopback(&host)))
}

fn is_loopback(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let ip = bare.parse::<IpAddr>();
    host == "localhost" || ip.is_ok_and(|ip| ip.to_canonical().is_loopback())
}

/// Checks `Origin`; a repeated field is foreign.
fn check_origin(headers: &HeaderMap, is_ours: impl Fn(&str) -> bool) -> OriginCheck {
    let mut origins = headers.get_all(ORIGIN).iter();
    let (first, second) = (origins.next(), origins.next());
    let Some(first) = first else {
        return OriginCheck::Absent;
    };
    let text = first.to_str().ok().filter(|_| second.is_none());
    let is_of = |read: fn(&str) -> Option<String>| {
        let origin = text.and_then(read);
        origin.is_some_and(|origin| is_ours(&origin))
    };
    if is_of(origin_of) {
        OriginCheck::Ours
    } else if is_of(origin_of_url) {
        OriginCheck::OwnUrl
    } else {
        OriginCheck::Foreign
    }
}

/// Returns the origin of a URL with a path. There are programs (ruby_llm-mcp) that send the URL which they request as
/// `Origin`; browsers send no path (RFC 6454, section 7).
fn origin_of_url(text: &str) -> Option<String> {
    let host = text.find("://")? + "://".len();
    let path = host + text[host..].find('/')?;
    // A list of origins is none.
    let is_list = text.contains([' ', ',']);
    origin_of(&text[..path]).filter(|_| !is_list)
}

/// Normalizes an origin: lower case, no default port. `None` if the text is no origin.
fn origin_of(text: &str) -> Option<String> {
    let (scheme, rest) = text.split_once("://")?;
    let scheme = scheme.to_ascii_lowercase();
    let default = match scheme.as_str() {
        "http" => 80,
        "https" => 443,
        // Extensions and editors have their own schemes, which are compared verbatim.
        _ if rest.is_empty() || rest.contains(['/', ',', ' ']) => return None,
        _ => return Some(text.to_owned()),
    };
    let (host, port) = authority(rest)?;
    Some(match port {
        Some(port) if port != default => format!("{scheme}://{host}:{port}"),
        _ => format!("{scheme}://{host}"),
    })
}

/// Returns whether a path is in canonical form, the only form that routes accept.
///
/// Any other path would have to be decoded before it is compared, and the gateway, a proxy in front
/// of it and an authorization rule could decode it differently.
pub(crate) fn is_canonical(path: &str) -> bool {
    // `@` needs no encoding in a path (RFC 3986, section 3.3), and user names may contain it.
    let is_plain = |byte: u8| {
        byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'~' | b'-' | b'/' | b'@')
    };
    let Some(mut rest) = path.as_bytes().strip_prefix(b"/") else {
        return false;
    };
    if !path.bytes().all(is_plain) {
        return false;
    }
    loop {
        let end = rest.iter().position(|byte| *byte == b'/');
        match (&rest[..end.unwrap_or(rest.len())], end) {
            // Only the last segment may be empty: "/" and "/a/".
            (b"." | b"..", _) | (b"", Some(_)) => return false,
            (_, Some(end)) => rest = &rest[end + 1..],
            (_, None) => return true,
        }
    }
}

/// Returns the address of the client: the peer, or the address that trusted proxies forward.
///
/// `X-Forwarded-For` is read from the right. Addresses of trusted proxies are skipped, and the first
/// other one is the client. The rest was written by the client and is never read.
pub(crate) fn client_address(peer: IpAddr, headers: &HeaderMap, trusted: &[IpNet]) -> IpAddr {
    let is_trusted = |ip: IpAddr| trusted.iter().any(|net| net.contains(&ip));
    let mut client = peer.to_canonical();
    if !is_trusted(client) {
        return client;
    }
    let lines = headers.get_all(X_FORWARDED_FOR).iter().rev();
    // By entry: what a client wrote must not make the one that a proxy appended to its line unreadable.
    for entry in lines.flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b',')) {
        let entry = std::str::from_utf8(entry.trim_ascii());
        // An entry that is no address ends the chain: entries further left cannot be trusted.
        let Some(ip) = entry.ok().and_then(forwarded) else {
            break;
        };
        client = ip;
        if !is_trusted(ip) {
            break;
        }
    }
    client
}

/// Parses an address as proxies write it, with or without a port.
fn forwarded(entry: &str) -> Option<IpAddr> {
    let bare = entry
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .unwrap_or(entry);
    let ip = bare
        .parse()
        .or_else(|_| entry.parse::<SocketAddr>().map(|address| address.ip()));
    ip.ok().map(|ip: IpAddr| ip.to_canonical())
}

/// Copies a target: over HTTP/2 it is a part of the buffer that its head was read or decoded into, and keeps all of that.
pub(super) fn copied(target: &Uri) -> Uri {
    let mut parts = target.clone().into_parts();
    let authority = parts.authority.take();
    parts.authority = authority.and_then(|text| uri::Authority::try_from(text.as_str()).ok());
    let path = parts.path_and_query.take();
    parts.path_and_query = path.and_then(|text| uri::PathAndQuery::try_from(text.as_str()).ok());
    Uri::from_parts(parts).unwrap_or_else(|_| target.clone())
}

#[cfg(test)]
#[path = "../tests/address.rs"]
mod tests;

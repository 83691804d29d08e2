//! Addresses, hosts, origins and URLs in settings.
//!
//! Not here: comparison with those in requests (`http/edge/address`).

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use ipnet::IpNet;
use url::{Host, Url};

use super::reader::Wrong;
use crate::base::without_user;

/// The address that a request is accounted to, stored in the extensions of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientAddress(pub(crate) IpAddr);

/// Reports whether connections to a URL are confidential, by TLS or because they stay on this
/// machine: a potentially trustworthy URL (Secure Contexts, section 3.1).
pub(crate) fn is_trustworthy(url: &Url) -> bool {
    url.scheme() == "https"
        || match url.host() {
            Some(Host::Domain(name)) => name == "localhost",
            Some(Host::Ipv4(address)) => address.is_loopback(),
            Some(Host::Ipv6(address)) => address.is_loopback(),
            None => false,
        }
}

/// Parses `host[:port]` into lower case; user information is not allowed.
pub(crate) fn authority(text: &str) -> Option<(String, Option<u16>)> {
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let (inside, after) = rest.split_once(']')?;
        inside.parse::<Ipv6Addr>().ok()?;
        let port = match after {
            "" => None,
            after => Some(after.strip_prefix(':')?),
        };
        (&text[..inside.len() + 2], port)
    } else {
        match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        }
    };
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    if !host.starts_with('[') && (host.is_empty() || !host.bytes().all(is_name)) {
        return None;
    }
    let port = match port {
        None => None,
        // `parse` alone would accept "+80".
        Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
            Some(port.parse::<u16>().ok().filter(|port| *port != 0)?)
        }
        Some(_) => return None,
    };
    Some((host.to_ascii_lowercase(), port))
}

/// Parses an IP address with its port.
pub(crate) fn address(text: &str) -> Result<SocketAddr, Wrong> {
    let remedy = "write an IP address and a port like 127.0.0.1:8080 or [::1]:8080";
    text.parse()
        .map_err(|_| Wrong::new(format!("{text:?} is no address"), remedy))
}

/// Parses a network in CIDR, or a single address.
pub(crate) fn network(text: &str) -> Result<IpNet, Wrong> {
    let single = text.parse::<IpAddr>().map(IpNet::from);
    let wrong = || {
        Wrong::new(
            format!("{text:?} is no network"),
            "write CIDR like 10.0.0.0/8",
        )
    };
    text.parse().or(single).map_err(|_| wrong())
}

/// Parses a host with an optional port.
pub(crate) fn host(text: &str) -> Result<String, Wrong> {
    let parsed = Url::parse(&format!("http://{text}/")).ok();
    let is_host = parsed.is_some_and(|url| {
        let is_bare = url.path() == "/" && url.query().is_none() && url.fragment().is_none();
        is_bare && url.username().is_empty() && url.password().is_none()
    });
    if is_host && !text.ends_with('/') && !text.contains(['*', ' ']) {
        return Ok(text.to_owned());
    }
    Err(Wrong::new(
        format!("{:?} is no host", without_user(text)),
        "write example.com or example.com:8443",
    ))
}

/// Parses an origin. It must be spelled as browsers send it, because it is compared exactly.
pub(crate) fn origin(text: &str) -> Result<String, Wrong> {
    let wrong =
        |remedy: String| Wrong::new(format!("{:?} is no origin", without_user(text)), remedy);
    let Ok(url) = Url::parse(text) else {
        return Err(wrong("write it like https://example.com".to_owned()));
    };
    // Origins with custom schemes (vscode-file://…, chrome-extension://…) are opaque to `url`.
    let sent = match url.origin() {
        tuple @ url::Origin::Tuple(..) => tuple.ascii_serialization(),
        url::Origin::Opaque(_) if url.host_str().is_some() && url.path().is_empty() => {
            return Ok(text.to_owned());
        }
        url::Origin::Opaque(_) => {
            return Err(wrong("write it like https://example.com".to_owned()));
        }
    };
    if sent == text {
        Ok(sent)
    } else {
        Err(wrong(format!("write {sent}")))
    }
}

/// Parses an http or https URL that can be a base.
pub(crate) fn public_url(text: &str) -> Result<String, Wrong> {
    let told = without_user(text);
    let wrong = |what: &str, remedy: &str| Wrong::new(format!("{told:?} {what}"), remedy);
    let like = "write it like https://mcp.example.com";
    let url = Url::parse(text).map_err(|_| wrong("is no URL", like))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err(wrong("is no http or https URL", like));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(wrong("has a query or a fragment", "leave them out"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(wrong("has a user name", "leave it out"));
    }
    if text.ends_with('/') {
        return Err(wrong("ends with a slash", "leave the slash out"));
    }
    Ok(text.to_owned())
}

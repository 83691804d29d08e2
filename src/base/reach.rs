//! Addresses that outbound requests may reach: public ones, and those an operator allows. The proxy that they
//! go through, and the hosts that they do not.
//!
//! Against server-side request forgery. Pure functions; not here: connections (`outbound`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use url::{Host, Url};

use super::secret::Secret;

/// Addresses that one of the two clients may connect to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Public addresses and allowed networks, for https.
    Public,
    /// Allowed networks only, for http.
    Allowed,
}

impl Reach {
    /// Returns the addresses that a URL may lead to, if it is allowed; does not resolve its host.
    ///
    /// # Errors
    ///
    /// The reason why the URL is not allowed.
    pub(crate) fn of(url: &Url, allow: &[IpNet]) -> Result<Self, &'static str> {
        let reach = match url.scheme() {
            "https" => Self::Public,
            "http" if !allow.is_empty() => Self::Allowed,
            _ => return Err("not https"),
        };
        if !url.username().is_empty() || url.password().is_some() {
            return Err("a user name in a URL");
        }
        // The resolver never sees IP addresses. `Host` has normalized all spellings of IPv4.
        let literal = match url.host() {
            Some(Host::Ipv4(v4)) => Some(IpAddr::V4(v4)),
            Some(Host::Ipv6(v6)) => Some(IpAddr::V6(v6)),
            Some(Host::Domain(_)) => None,
            None => return Err("no host"),
        };
        if literal.is_some_and(|ip| !reach.contains(ip, allow)) {
            return Err("an address that is not public");
        }
        Ok(reach)
    }

    /// Reports whether a connection may lead to this address.
    pub(crate) fn contains(self, ip: IpAddr, allow: &[IpNet]) -> bool {
        let ip = ip.to_canonical();
        allow.iter().any(|net| net.contains(&ip)) || (self == Self::Public && is_public(ip))
    }
}

/// Returns whether an address is public, by the registries of special-purpose addresses (RFC 6890).
/// An IPv6 address that embeds an IPv4 address is judged by the latter.
pub(super) fn is_public(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(v4) => is_public_v4(v4),
        IpAddr::V6(v6) => is_public_v6(v6),
    }
}

fn is_public_v4(ip: Ipv4Addr) -> bool {
    let bits = ip.to_bits();
    let is_within = |(base, length): &(Ipv4Addr, u32)| {
        let mask = u32::MAX << (32 - length);
        bits & mask == base.to_bits()
    };
    !SPECIAL_V4.iter().any(is_within)
}

fn is_public_v6(ip: Ipv6Addr) -> bool {
    let [first, second, ..] = ip.segments();
    // NAT64 (RFC 6052), by which IPv6-only networks reach IPv4.
    if ip.to_bits() >> 32 == NAT64 >> 32 {
        let [.., a, b, c, d] = ip.octets();
        return is_public_v4(Ipv4Addr::new(a, b, c, d));
    }
    // Global unicast is 2000::/3 so far; loopback, mapped, translated, local, link-local and
    // multicast addresses lie outside.
    let is_global_unicast = first & 0xe000 == 0x2000;
    let is_special = match first {
        // Protocol assignments, Teredo and benchmarking among them, and documentation.
        0x2001 => second < 0x0200 || second == 0x0db8,
        // 6to4 carries any IPv4 address and is no longer in use (RFC 7526).
        0x2002 => true,
        // Documentation (RFC 9637).
        0x3fff => second < 0x1000,
        _ => false,
    };
    is_global_unicast && !is_special
}

/// A proxy for https, which looks names up itself, and the hosts that are reached without it.
#[derive(Clone, Debug)]
pub(crate) struct Proxy {
    /// Its URL, with a password if it wants one.
    pub(crate) url: Secret,
    exempt: Vec<Exempt>,
}

/// An entry of `NO_PROXY`.
#[derive(Clone, Debug)]
enum Exempt {
    Everything,
    Network(IpNet),
    /// A host and all names below it.
    Domain(String),
}

impl Proxy {
    /// A proxy at `url`, but for the hosts of `no_proxy`: domains, addresses and networks with commas between
    /// them, as the variable `NO_PROXY` has them.
    pub(crate) fn new(url: Secret, no_proxy: &str) -> Self {
        let entries = no_proxy.split(',').map(str::trim);
        let exempt = |entry: &str| {
            let address = || entry.parse::<IpAddr>().map(IpNet::from);
            match entry.parse::<IpNet>().or_else(|_| address()) {
                Ok(network) => Exempt::Network(network),
                Err(_) if entry == "*" => Exempt::Everything,
                Err(_) => Exempt::Domain(entry.trim_start_matches('.').to_ascii_lowercase()),
            }
        };
        let exempt = entries.filter(|entry| !entry.is_empty()).map(exempt);
        Self {
            url,
            exempt: exempt.collect(),
        }
    }

    /// Reports whether a host is reached without the proxy.
    pub(super) fn exempts(&self, host: &Host<&str>) -> bool {
        let ip = match *host {
            Host::Ipv4(v4) => Some(IpAddr::V4(v4)),
            Host::Ipv6(v6) => Some(IpAddr::V6(v6)),
            Host::Domain(_) => None,
        };
        let is_below = |name: &str, domain: &str| {
            let above = name.strip_suffix(domain);
            above.is_some_and(|above| above.is_empty() || above.ends_with('.'))
        };
        self.exempt.iter().any(|exempt| match (exempt, host) {
            (Exempt::Everything, _) => true,
            (Exempt::Network(network), _) => ip.is_some_and(|ip| network.contains(&ip)),
            (Exempt::Domain(domain), Host::Domain(name)) => is_below(name, domain),
            (Exempt::Domain(_), _) => false,
        })
    }
}

/// Reports whether a name is one of a private network: no public name server has it (RFC 6761, 6762, 7686,
/// 8375), or it is no whole name.
pub(super) fn is_private_name(name: &str) -> bool {
    let name = name.trim_end_matches('.');
    !name.contains('.') || PRIVATE_NAMES.iter().any(|suffix| name.ends_with(suffix))
}

const PRIVATE_NAMES: [&str; 7] = [
    ".localhost",
    ".local",
    ".internal",
    ".home.arpa",
    ".invalid",
    ".onion",
    ".test",
];

/// `64:ff9b::/96`
const NAT64: u128 = 0x0064_ff9b << 96;

/// IPv4 networks that are not public.
const SPECIAL_V4: [(Ipv4Addr, u32); 18] = [
    // This network (RFC 791).
    (Ipv4Addr::UNSPECIFIED, 8),
    // Private use (RFC 1918).
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    // Shared by carriers (RFC 6598).
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    // Loopback.
    (Ipv4Addr::new(127, 0, 0, 0), 8),
    // Link-local, metadata services of clouds among them (RFC 3927).
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    // Private use.
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    // Protocol assignments (RFC 6890).
    (Ipv4Addr::new(192, 0, 0, 0), 24),
    // Documentation (RFC 5737).
    (Ipv4Addr::new(192, 0, 2, 0), 24),
    // AS112, twice (RFC 7534, RFC 7535), and AMT (RFC 7450): anycast to the nearest node.
    (Ipv4Addr::new(192, 31, 196, 0), 24),
    (Ipv4Addr::new(192, 175, 48, 0), 24),
    (Ipv4Addr::new(192, 52, 193, 0), 24),
    // Relays of 6to4, no longer in use (RFC 7526).
    (Ipv4Addr::new(192, 88, 99, 0), 24),
    // Private use.
    (Ipv4Addr::new(192, 168, 0, 0), 16),
    // Benchmarking (RFC 2544).
    (Ipv4Addr::new(198, 18, 0, 0), 15),
    // Documentation.
    (Ipv4Addr::new(198, 51, 100, 0), 24),
    (Ipv4Addr::new(203, 0, 113, 0), 24),
    // Multicast.
    (Ipv4Addr::new(224, 0, 0, 0), 4),
    // Reserved, and the limited broadcast.
    (Ipv4Addr::new(240, 0, 0, 0), 4),
];

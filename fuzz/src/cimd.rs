//! Any text as a client id that is a URL, and any address as what its name resolves to: nothing but
//! public addresses is asked.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::LazyLock;

use ipnet::IpNet;
use url::Host;

use crate::base::reach::Reach;
use crate::oauth::client_id;

/// Networks that are not public, by the registries of IANA, IPv6 as it stands on the wire.
static SPECIAL: LazyLock<Vec<IpNet>> = LazyLock::new(|| {
    let all = "0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 \
        192.0.0.0/24 192.0.2.0/24 192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 \
        203.0.113.0/24 224.0.0.0/4 240.0.0.0/4 ::/96 64:ff9b:1::/48 100::/64 2001::/23 \
        2001:db8::/32 2002::/16 3fff::/20 5f00::/16 fc00::/7 fe80::/10 fec0::/10 ff00::/8";
    all.split_whitespace()
        .map(|net| net.parse().unwrap())
        .collect()
});

/// Prefixes of addresses that embed an IPv4 address in their last 32 bits.
const EMBEDDING: [u128; 4] = [
    // IPv4-mapped, IPv4-compatible, NAT64, IPv4-translated.
    0xffff << 32,
    0,
    0x0064_ff9b << 96,
    0xffff_0000 << 32,
];

/// Sixteen bytes of an address, then a client id.
pub fn run(data: &[u8]) {
    let text = data.get(16..).unwrap_or(data);
    if let Some(bytes) = data.first_chunk::<16>() {
        let bits = u128::from_be_bytes(*bytes);
        let v4 = Ipv4Addr::from_bits(u32::from_be_bytes([
            bytes[12], bytes[13], bytes[14], bytes[15],
        ]));
        address(IpAddr::V4(v4));
        address(IpAddr::V6(Ipv6Addr::from_bits(bits)));
        for prefix in EMBEDDING {
            let v6 = Ipv6Addr::from_bits(prefix | u128::from(v4.to_bits()));
            address(IpAddr::V6(v6));
            if is_special(IpAddr::V4(v4)) {
                assert!(
                    !Reach::Public.contains(IpAddr::V6(v6), &[]),
                    "{v6} embeds {v4}"
                );
            }
        }
        // In a URL, and in each spelling of it.
        let [a, b, c, d] = v4.octets();
        for host in [
            format!("{v4}"),
            format!("{}", v4.to_bits()),
            format!("{:#x}", v4.to_bits()),
            format!("{a:#o}.{b:#x}.{c}.{d}").replace("0o", "0"),
            format!("{a}.{}", v4.to_bits() & 0xff_ffff),
            format!("{v4}."),
            format!("[{}]", Ipv6Addr::from_bits(bits)),
            format!("[::ffff:{v4}]"),
            format!("[64:ff9b::{v4}]"),
        ] {
            url(&format!("https://{host}/client.json"));
        }
    }
    if let Ok(text) = std::str::from_utf8(text) {
        url(text);
    }
}

fn is_special(ip: IpAddr) -> bool {
    SPECIAL.iter().any(|net| net.contains(&ip))
}

fn address(ip: IpAddr) {
    let is_let_through = Reach::Public.contains(ip, &[]);
    assert!(!Reach::Allowed.contains(ip, &[]));
    if !is_let_through {
        return;
    }
    assert!(!is_special(ip), "{ip}");
    assert!(
        !ip.is_loopback() && !ip.is_multicast() && !ip.is_unspecified(),
        "{ip}"
    );
    match ip {
        IpAddr::V4(v4) => {
            let is_local = v4.is_private() || v4.is_link_local() || v4.is_broadcast();
            assert!(!is_local && !v4.is_documentation(), "{ip}");
        }
        IpAddr::V6(v6) => {
            assert!(!v6.is_unique_local() && !v6.is_unicast_link_local(), "{ip}");
            // The metadata services of clouds, embedded or not.
            let last = v6.to_bits() & 0xffff_ffff;
            let is_native = v6.to_bits() >> 125 == 1;
            assert!(is_native || last != 0xa9fe_a9fe, "{ip}");
        }
    }
    // What is allowed by name is let through, and nothing else besides.
    let net: IpNet = "10.1.0.0/16".parse().unwrap();
    assert!(!Reach::Allowed.contains(ip, &[net]), "{ip}");
}

fn url(id: &str) {
    let Ok(url) = client_id::parse(id) else {
        return;
    };
    assert_eq!(url.as_str(), id, "the one spelling");
    let mut segments = url.path().split('/');
    let is_dots = |part: &str| {
        let plain = part.to_ascii_lowercase().replace("%2e", ".");
        plain == "." || plain == ".."
    };
    // The path of a URL without an authority is one text.
    assert!(url.cannot_be_a_base() || !segments.any(is_dots), "{id:?}");
    if Reach::of(&url, &[]).is_ok() {
        assert_eq!(url.scheme(), "https");
        assert!(url.path().len() > 1, "{id:?}");
        assert!(!id.contains(['#', '\\', ' ', '\n']), "{id:?}");
        assert!(url.username().is_empty() && url.password().is_none());
        let authority = id.strip_prefix("https://").expect("https");
        let end = authority.find(['/', '?']).unwrap_or(authority.len());
        let authority = &authority[..end];
        assert!(!authority.contains(['@', '%']), "{id:?}");
        let ip = match url.host().expect("a host") {
            Host::Domain(name) => {
                // A number would be an address to other parsers.
                let name = name.strip_suffix('.').unwrap_or(name);
                let last = name.rsplit('.').next().unwrap_or("");
                let is_number = !last.is_empty() && last.bytes().all(|byte| byte.is_ascii_digit());
                assert!(!is_number, "{id:?}");
                return;
            }
            Host::Ipv4(ip) => IpAddr::V4(ip),
            Host::Ipv6(ip) => IpAddr::V6(ip),
        };
        assert!(!is_special(ip.to_canonical()), "{id:?}");
    }
    // Over http only to what is allowed, and there is nothing else.
    let allow = ["10.1.0.0/16".parse().unwrap()];
    if url.scheme() == "http" && Reach::of(&url, &allow).is_ok() {
        let is_allowed = |ip: IpAddr| allow.iter().any(|net: &IpNet| net.contains(&ip));
        match url.host() {
            Some(Host::Ipv4(ip)) => assert!(is_allowed(ip.into()), "{id:?}"),
            Some(Host::Ipv6(ip)) => assert!(is_allowed(IpAddr::V6(ip).to_canonical()), "{id:?}"),
            _ => {}
        }
    }
}

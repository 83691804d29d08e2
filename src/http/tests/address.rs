//! Tests of `http::edge::address`.

use http::HeaderValue;
use proptest::prelude::*;

use super::super::address::*;

fn allowed(public: &str, bound: &str) -> Allowed {
    let hosts = ["gw.internal:8443".to_owned()];
    let origins = [
        "https://app.test:443".to_owned(),
        "vscode-webview://abc".to_owned(),
    ];
    let bound = bound.parse().expect("address");
    Allowed::new(
        &public.parse().expect("url"),
        bound,
        false,
        &hosts,
        &origins,
    )
    .expect("table")
}

fn headers(name: &'static str, values: &[&str]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for value in values {
        headers.append(
            name,
            HeaderValue::from_bytes(value.as_bytes()).expect("value"),
        );
    }
    headers
}

#[test]
fn hosts() {
    use HostCheck::{Foreign, ForeignAddress, Malformed, Ours};
    let local = allowed("http://127.0.0.1:8080", "127.0.0.1:8080");
    let public = allowed("https://gw.example.com", "0.0.0.0:8080");
    let relative = Uri::from_static("/mcp");
    for (table, values, expected) in [
        (&local, &["127.0.0.1:8080"][..], Ours),
        (&local, &["LocalHost:8080"], Ours),
        (&local, &["[::1]:8080"], Ours),
        (&local, &["gw.internal:8443"], Ours),
        (&local, &["127.0.0.1"], ForeignAddress),
        (&local, &["127.0.0.1:8081"], ForeignAddress),
        (&public, &["10.1.2.3:8080"], ForeignAddress),
        (&public, &["[fd00::1]"], ForeignAddress),
        (&local, &["evil.test"], Foreign),
        (&local, &["localhost:8080.evil.test"], Malformed),
        (&local, &["localhost.evil.test:8080"], Foreign),
        (&public, &["gw.example.com"], Ours),
        (&public, &["GW.example.com:443"], Ours),
        (&public, &["gw.example.com:80"], Foreign),
        (&public, &["gw.example.com."], Foreign),
        (&public, &["localhost:8080"], Foreign),
        (&public, &[], Malformed),
        (&public, &[""], Malformed),
        (&public, &["gw.example.com", "gw.example.com"], Malformed),
        (&public, &["gw.example.com, evil.test"], Malformed),
        (&public, &["user@gw.example.com"], Malformed),
        (&public, &["gw.example.com/x"], Malformed),
        (&public, &["gw.example.com?x"], Malformed),
        (&public, &["gw.example.com#x"], Malformed),
        (&public, &["gw.example.com\\x"], Malformed),
        (&public, &["gw.example.com x"], Malformed),
        (&public, &["gw.example.com:"], Malformed),
        (&public, &["gw.example.com:+443"], Malformed),
        (&public, &["gw.example.com:65536"], Malformed),
        (&public, &["gw.example.com:0"], Malformed),
        (&public, &["[::1"], Malformed),
        (&public, &["[::1]x"], Malformed),
        (&public, &["[nonsense]"], Malformed),
        (&public, &["gw.ex\u{e4}mple.com"], Malformed),
    ] {
        assert_eq!(
            table.host(Version::HTTP_11, &relative, &headers("host", values)),
            expected,
            "{values:?}"
        );
    }
}

#[test]
fn target_and_host_must_agree() {
    let table = allowed("https://gw.example.com", "0.0.0.0:8080");
    for (target, values, expected) in [
        (
            "https://gw.example.com/mcp",
            &["gw.example.com"][..],
            HostCheck::Ours,
        ),
        (
            "https://gw.example.com:443/mcp",
            &["gw.example.com"],
            HostCheck::Ours,
        ),
        (
            "https://gw.example.com/mcp",
            &["evil.test"],
            HostCheck::Malformed,
        ),
        (
            "https://evil.test/mcp",
            &["gw.example.com"],
            HostCheck::Malformed,
        ),
        ("https://evil.test/mcp", &["evil.test"], HostCheck::Foreign),
        ("https://gw.example.com/mcp", &[], HostCheck::Malformed),
        (
            "https://u@gw.example.com/mcp",
            &["gw.example.com"],
            HostCheck::Malformed,
        ),
    ] {
        let uri: Uri = target.parse().expect("uri");
        let found = table.host(Version::HTTP_11, &uri, &headers("host", values));
        assert_eq!(found, expected, "{target} {values:?}");
    }
    let uri = Uri::from_static("https://gw.example.com/mcp");
    assert_eq!(
        table.host(Version::HTTP_2, &uri, &HeaderMap::new()),
        HostCheck::Ours
    );
    for (version, expected) in [
        (Version::HTTP_10, HostCheck::Missing),
        (Version::HTTP_11, HostCheck::Malformed),
        (Version::HTTP_2, HostCheck::Malformed),
    ] {
        let found = table.host(version, &Uri::from_static("/"), &HeaderMap::new());
        assert_eq!(found, expected, "{version:?}");
    }
}

#[test]
fn origins() {
    use OriginCheck::{Absent, Foreign, Ours, OwnUrl};
    let local = allowed("http://127.0.0.1:8080", "127.0.0.1:8080");
    for (values, expected) in [
        (&[][..], Absent),
        (&["http://127.0.0.1:8080"], Ours),
        (&["http://localhost:8080"], Ours),
        (&["http://[::1]:8080"], Ours),
        (&["https://app.test"], Ours),
        (&["https://app.test:443"], Ours),
        (&["vscode-webview://abc"], Ours),
        (&["null"], Foreign),
        (&[""], Foreign),
        (&["*"], Foreign),
        (&["https://localhost:8080"], Foreign),
        (&["http://localhost"], Foreign),
        (&["http://localhost:8081"], Foreign),
        (&["http://localhost:8080.evil.test"], Foreign),
        (&["http://localhost:8080/"], OwnUrl),
        (&["http://localhost:8080/t/a/x/mcp?y=//z"], OwnUrl),
        (&["HTTPS://APP.test:443/x"], OwnUrl),
        (&["http://localhost:8081/x"], Foreign),
        (&["https://localhost:8080/x"], Foreign),
        (&["http://localhost:8080?/x"], Foreign),
        (&["http://localhost:8080\\/x"], Foreign),
        (&["http://localhost:8080@evil.test/x"], Foreign),
        (&["http://evil.test/http://localhost:8080/x"], Foreign),
        (&["http://localhost:8080/ http://evil.test"], Foreign),
        (&["http://localhost:8080/,http://evil.test"], Foreign),
        (
            &["http://localhost:8080/", "http://localhost:8080/"],
            Foreign,
        ),
        (&["/http://localhost:8080/x"], Foreign),
        (&["http://evil.test"], Foreign),
        (&["http://localhost:8080", "http://localhost:8080"], Foreign),
        (&["http://localhost:8080 http://evil.test"], Foreign),
        (&["http://localhost:8080@evil.test"], Foreign),
    ] {
        assert_eq!(
            local.origin(&headers("origin", values)),
            expected,
            "{values:?}"
        );
    }
}

#[test]
fn operators_may_use_any_address_of_a_listener_on_all_addresses() {
    let check = |bound: &str, host: &str| {
        let allowed = Allowed::for_operators(bound.parse().unwrap(), &[], &[]).unwrap();
        let uri = Uri::from_static("/");
        allowed.host(Version::HTTP_11, &uri, &headers("host", &[host])) == HostCheck::Ours
    };
    for bound in ["0.0.0.0:9091", "[::]:9091"] {
        for host in [
            "10.0.0.7:9091",
            "127.0.0.1:9091",
            "[fd00::7]:9091",
            "localhost:9091",
        ] {
            assert!(check(bound, host), "{bound} {host}");
        }
        for host in [
            "10.0.0.7",
            "10.0.0.7:8080",
            "evil.test:9091",
            "1.2.3.4.evil.test:9091",
        ] {
            assert!(!check(bound, host), "{bound} {host}");
        }
    }
    assert!(check("127.0.0.1:9091", "localhost:9091"));
    assert!(!check("127.0.0.1:9091", "10.0.0.7:9091"));
    assert!(!check("10.0.0.7:9091", "10.0.0.8:9091"));
}

#[test]
fn an_entry_that_never_matches_is_a_mistake() {
    let url: Url = "http://127.0.0.1:8080".parse().expect("url");
    let bound = "127.0.0.1:8080".parse().expect("address");
    for (hosts, origins) in [
        (&["a b"][..], &[][..]),
        (&["http://x"], &[]),
        (&[], &["null"]),
        (&[], &["*"]),
    ] {
        let owned = |list: &[&str]| list.iter().map(|&one| one.to_owned()).collect::<Vec<_>>();
        let table = Allowed::new(&url, bound, false, &owned(hosts), &owned(origins));
        assert!(table.is_err(), "{hosts:?} {origins:?}");
    }
}

#[test]
fn paths() {
    for path in [
        "/",
        "/mcp",
        "/t/acme/files/mcp",
        "/.well-known/x",
        "/a/",
        "/a.b_c~d-e",
        "/users/ada@example.com",
    ] {
        assert!(is_canonical(path), "{path}");
    }
    for path in [
        "",
        "*",
        "mcp",
        "//",
        "//mcp",
        "/a//b",
        "/.",
        "/..",
        "/a/../b",
        "/a/.",
        "/a/./b",
        "/%2e%2e/a",
        "/a%2fb",
        "/a%00",
        "/a%252fb",
        "/a;b",
        "/a\\b",
        "/a b",
        "/\u{e4}",
        "/a//",
    ] {
        assert!(!is_canonical(path), "{path}");
    }
}

#[test]
fn clients() {
    let trusted = [
        "10.0.0.0/8".parse().expect("net"),
        "fd00::/8".parse().expect("net"),
    ];
    for (peer, lines, expected) in [
        ("192.0.2.1", &["198.51.100.7"][..], "192.0.2.1"),
        ("10.0.0.1", &[], "10.0.0.1"),
        ("10.0.0.1", &["198.51.100.7"], "198.51.100.7"),
        ("::ffff:10.0.0.1", &["198.51.100.7"], "198.51.100.7"),
        (
            "10.0.0.1",
            &["1.1.1.1, 198.51.100.7, 10.0.0.9"],
            "198.51.100.7",
        ),
        ("10.0.0.1", &["1.1.1.1", "198.51.100.7"], "198.51.100.7"),
        ("10.0.0.1", &["198.51.100.7:4711"], "198.51.100.7"),
        ("10.0.0.1", &["[2001:db8::1]:4711"], "2001:db8::1"),
        ("10.0.0.1", &["1.1.1.1, unknown, 10.0.0.9"], "10.0.0.9"),
        ("10.0.0.1", &["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
        ("fd00::1", &["2001:db8::1"], "2001:db8::1"),
    ] {
        let peer: IpAddr = peer.parse().expect("ip");
        let found = client_address(peer, &headers("x-forwarded-for", lines), &trusted);
        assert_eq!(
            found,
            expected.parse::<IpAddr>().expect("ip"),
            "{peer} {lines:?}"
        );
    }
    // A client's own entry, however odd, does not hide the one that a proxy appends to it.
    let mut odd = HeaderMap::new();
    let line = HeaderValue::from_bytes(b"\xff, 198.51.100.7 , 10.0.0.2").expect("a value");
    odd.append("x-forwarded-for", line);
    let found = client_address("10.0.0.1".parse().expect("ip"), &odd, &trusted);
    assert_eq!(found, "198.51.100.7".parse::<IpAddr>().expect("ip"));
}

proptest! {
    #[test]
    fn parsers_never_panic(text in "\\PC{0,40}", bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
        let _ = authority(&text);
        let _ = origin_of(&text);
        let _ = forwarded(&text);
        if is_canonical(&text) {
            prop_assert!(text.starts_with('/') && !text.contains('%') && !text.contains("//"));
        }
        if let Ok(value) = HeaderValue::from_bytes(&bytes) {
            let table = allowed("http://127.0.0.1:8080", "127.0.0.1:8080");
            let mut map = HeaderMap::new();
            for name in ["host", "origin", "x-forwarded-for"] {
                map.insert(name, value.clone());
            }
            let _ = table.host(Version::HTTP_11, &Uri::from_static("/"), &map);
            let _ = table.origin(&map);
            let _ = client_address("10.0.0.1".parse().expect("ip"), &map, &["10.0.0.0/8".parse().expect("net")]);
        }
    }

    #[test]
    fn an_authority_reads_back(host in "[a-z0-9.-]{1,20}", port in proptest::option::of(1u16..)) {
        let text = port.map_or(host.clone(), |port| format!("{host}:{port}"));
        prop_assert_eq!(authority(&text), Some((host, port)));
    }
}

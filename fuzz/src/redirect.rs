//! Any two texts as redirect URIs, registered and requested: what is registered leads where every
//! parser says that it leads, and what matches it is the same URI, but for a loopback port.

use url::{Host, Url};

use crate::declare::redirect::check_redirect_uri;
use crate::oauth::redirect::{host, is_loopback, is_site, matches_registered};

/// A line each.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let (registered, requested) = text.split_once('\n').unwrap_or((text, text));
    for uri in [registered, requested] {
        if check_redirect_uri(uri).is_ok() {
            accepted(uri);
            assert!(!is_site(uri) || !is_loopback(uri), "of this machine: {uri}");
            assert!(matches_registered(uri, uri), "itself");
        }
    }
    if check_redirect_uri(registered).is_err() {
        return;
    }
    let is_match = matches_registered(registered, requested);
    assert_eq!(
        is_match,
        same(registered, requested),
        "{registered} {requested}"
    );
    assert_eq!(is_match, matches_registered(requested, registered));
    if is_match {
        assert_eq!(check_redirect_uri(requested), Ok(()), "{requested}");
        assert_eq!(host(registered), host(requested));
    }
}

/// A URI that may be registered, as browsers read it.
fn accepted(uri: &str) {
    let url = Url::parse(uri).unwrap_or_else(|why| panic!("no URL: {uri:?}: {why}"));
    assert!(
        uri.is_ascii() && !uri.contains(['#', '*', ' ', '\\', '\t', '\n']),
        "{uri:?}"
    );
    assert!(
        url.username().is_empty() && url.password().is_none(),
        "{uri:?}"
    );
    let (scheme, _) = uri.split_once(':').expect("a scheme");
    assert_eq!(url.scheme(), scheme);
    let reserved = [
        "javascript",
        "data",
        "vbscript",
        "file",
        "blob",
        "about",
        "ws",
        "wss",
    ];
    assert!(!reserved.contains(&scheme), "{uri:?}");
    match scheme {
        "http" => {
            assert!(is_loopback(uri));
            let is_own = match url.host().expect("a host") {
                Host::Domain(name) => name == "localhost",
                Host::Ipv4(ip) => ip.is_loopback(),
                Host::Ipv6(ip) => ip.is_loopback(),
            };
            assert!(is_own, "http to {uri:?}");
        }
        "https" => {
            assert!(!is_loopback(uri));
            // The page of consent names the host that a browser will ask.
            let name = url.host_str().expect("a host");
            assert!(!name.is_empty());
            assert!(
                host(uri).eq_ignore_ascii_case(name),
                "{uri:?} is shown as {:?}",
                host(uri)
            );
        }
        _ => assert_eq!(host(uri), scheme),
    }
}

/// Equality, by the text, but for the port of a loopback URI, by the parser of browsers.
fn same(registered: &str, requested: &str) -> bool {
    if registered == requested {
        return true;
    }
    let native = |uri: &str| {
        check_redirect_uri(uri).ok()?;
        let rest = uri.strip_prefix("http://")?;
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let port = Url::parse(uri).ok()?.port_or_known_default()?;
        let name = authority
            .strip_suffix(&format!(":{port}"))
            .unwrap_or(authority);
        Some((name.to_owned(), path.to_owned()))
    };
    let (one, other) = (native(registered), native(requested));
    one.is_some() && one == other
}

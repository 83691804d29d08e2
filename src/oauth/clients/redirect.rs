//! Comparison of redirect URIs.
//!
//! Not here: the rules for registered redirect URIs (`declare`).

use crate::{declare::redirect::loopback, endpoint::LOOPBACK};

/// Reports whether `requested` matches `registered`: byte for byte (RFC 9700, section 2.1), except
/// for the port of a loopback URI, which the operating system assigns to a native app at each start
/// (RFC 8252, section 7.3).
pub(crate) fn matches_registered(registered: &str, requested: &str) -> bool {
    registered == requested
        || loopback(registered).is_some_and(|known| loopback(requested) == Some(known))
}

/// Returns the destination of a redirect URI for people and rate limits: the host, or the scheme of
/// an app.
pub(crate) fn host(uri: &str) -> &str {
    let (scheme, rest) = uri.split_once(':').unwrap_or((uri, ""));
    if !matches!(scheme, "http" | "https") {
        return scheme;
    }
    let authority = rest.trim_start_matches('/');
    let end = authority.find(['/', '?']).unwrap_or(authority.len());
    let authority = &authority[..end];
    match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    }
}

/// Reports whether a redirect URI belongs to an https site, not to a program on the browser's machine.
pub(crate) fn is_site(uri: &str) -> bool {
    let own = |name: &str| name.eq_ignore_ascii_case(host(uri));
    uri.starts_with("https:") && !LOOPBACK.into_iter().any(own)
}

/// Reports whether a redirect URI points to the browser's own machine.
pub(crate) fn is_loopback(uri: &str) -> bool {
    loopback(uri).is_some()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{Just, Strategy, any, prop_oneof, proptest};

    use super::*;
    use crate::declare::redirect::check_redirect_uri;

    #[test]
    fn only_the_port_of_a_loopback_uri_may_differ() {
        let native = "http://127.0.0.1:33418/cb?x=1";
        for (registered, requested) in [
            (native, native),
            (native, "http://127.0.0.1/cb?x=1"),
            (native, "http://127.0.0.1:1/cb?x=1"),
            ("http://localhost/cb", "http://localhost:65535/cb"),
            ("http://[::1]:8080/", "http://[::1]:9/"),
            ("cursor://x/cb", "cursor://x/cb"),
            ("https://app.test/cb", "https://app.test/cb"),
        ] {
            assert!(matches_registered(registered, requested), "{requested}");
        }
        for (registered, requested) in [
            (native, "http://127.0.0.1:33418/cb"),
            (native, "http://127.0.0.1:33418/cb?x=2"),
            (native, "http://127.0.0.1:33418/cb/?x=1"),
            (native, "http://127.0.0.1:33418/CB?x=1"),
            (native, "http://127.0.0.1:33418/%63b?x=1"),
            (native, "http://127.0.0.1:33418/./cb?x=1"),
            (native, "http://127.0.0.1:33418//cb?x=1"),
            (native, "http://localhost:33418/cb?x=1"),
            (native, "http://[::1]:33418/cb?x=1"),
            (native, "https://127.0.0.1:33418/cb?x=1"),
            (native, "http://127.0.0.1:/cb?x=1"),
            (native, "http://127.0.0.1:0/cb?x=1"),
            (native, "http://127.0.0.1:01/cb?x=1"),
            (native, "http://127.0.0.1:99999/cb?x=1"),
            (native, "http://127.0.0.1:80@evil.test/cb?x=1"),
            (native, "http://127.0.0.1:80\\@evil.test/cb?x=1"),
            (native, "http://127.0.0.1.evil.test/cb?x=1"),
            (native, "http://user@127.0.0.1:33418/cb?x=1"),
            (native, "HTTP://127.0.0.1:33418/cb?x=1"),
            (native, "http://127.1:33418/cb?x=1"),
            ("http://127.0.0.1", "http://127.0.0.1:9/"),
            ("https://localhost/cb", "https://localhost:9/cb"),
            ("https://app.test/cb", "https://app.test:443/cb"),
            ("https://app.test/cb", "https://app.test:9/cb"),
            ("https://app.test/cb", "https://APP.test/cb"),
            ("https://app.test/cb", "https://app.test./cb"),
            ("https://app.test/cb", "https://app.test/cb/"),
            ("https://app.test/cb", "https://app.test/cb?"),
            ("https://app.test/cb", "https://app.test/cb#"),
            ("https://app.test/cb", "https://app.test/cb\0"),
            ("https://app.test/cb", "https://app.test\\cb"),
            ("https://app.test/cb", "https://app.test@evil.test/cb"),
            ("https://app.test/cb", "https://xn--pp-yia.test/cb"),
            ("https://app.test/cb", ""),
            ("cursor://x/cb", "cursor://x:1/cb"),
        ] {
            assert!(!matches_registered(registered, requested), "{requested}");
        }
    }

    #[test]
    fn hosts_are_shown_without_ports() {
        for (uri, wanted) in [
            ("https://app.test/cb", "app.test"),
            ("https://app.test:8443?x", "app.test"),
            ("http://[::1]:80/", "[::1]"),
            ("http://localhost", "localhost"),
            ("cursor://x/cb", "cursor"),
        ] {
            assert_eq!(host(uri), wanted);
        }
        assert!(is_loopback("http://localhost:1/") && !is_loopback("https://localhost/"));
    }

    #[test]
    fn sites_are_not_of_the_own_machine() {
        for (uri, wanted) in [
            ("https://app.test/cb", true),
            ("https://app.test:8443/cb", true),
            ("https://localhost.app.test/cb", true),
            ("https://localhost/cb", false),
            ("https://LOCALHOST:1/cb", false),
            ("https://127.0.0.1:1/cb", false),
            ("https://[::1]/cb", false),
            ("http://localhost/cb", false),
            ("cursor://x/cb", false),
        ] {
            assert_eq!(is_site(uri), wanted, "{uri}");
        }
    }

    fn uris() -> impl Strategy<Value = String> {
        let host = prop_oneof![
            Just("127.0.0.1"),
            Just("localhost"),
            Just("[::1]"),
            Just("app.test")
        ];
        let scheme = prop_oneof![Just("http"), Just("https")];
        let port = prop_oneof![Just(None), any::<u16>().prop_map(Some)];
        (scheme, host, port, "(/[a-z%?=]{0,6})?").prop_map(|(scheme, host, port, rest)| {
            let port = port.map_or_else(String::new, |port| format!(":{port}"));
            format!("{scheme}://{host}{port}{rest}")
        })
    }

    proptest! {
        #[test]
        fn equal_uris_differ_in_port_digits_only(one in uris(), other in uris()) {
            let bare = |uri: &str| {
                let digits = |letter: char| letter.is_ascii_digit() || letter == ':';
                uri.replace("127.0.0.1", "L").replace("[::1]", "S").replace(digits, "")
            };
            if matches_registered(&one, &other) {
                assert_eq!(bare(&one), bare(&other));
                assert!(one == other || one.starts_with("http://"));
            }
            // Every registered URI matches itself.
            assert!(check_redirect_uri(&one).is_err() || matches_registered(&one, &one));
        }

        #[test]
        fn a_changed_letter_is_another_uri(at in 0..40_usize, letter in any::<char>()) {
            let registered = "http://localhost:8080/callback?client=a";
            let mut letters: Vec<char> = registered.chars().collect();
            let at = at % letters.len();
            letters[at] = letter;
            let changed: String = letters.into_iter().collect();
            let is_of_port = (17..21).contains(&at) && letter.is_ascii_digit();
            if matches_registered(registered, &changed) {
                assert!(changed == registered || is_of_port, "{changed}");
            }
        }

        #[test]
        fn nothing_panics(registered in ".*", requested in ".*") {
            let _ = matches_registered(&registered, &requested);
            let _ = check_redirect_uri(&requested);
            let _ = host(&requested);
        }
    }
}
